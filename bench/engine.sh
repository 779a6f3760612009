#!/usr/bin/env bash
# engine.sh JOB : runs benchmark job A (filter), B (10 s windows per customer) or D (running count per customer) on Semel,
# from Kafka to Kafka, exactly once. Builds what is not built. Settings come from the environment:
#   BOOT IN_TOPIC OUT_TOPIC TXN_PREFIX CK_MS PAR STATE_DIR BOUNDED (latest-offset | unbounded) PROCESSES (1)
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TARGET_DIR=${SEMEL_TARGET_DIR:-$HOME/.cache/semel-target}
binary=$CARGO_TARGET_DIR/release/examples/engine_bench
# Cargo takes a moment even when nothing is to do: not in the time that is measured.
if [ ! -x "$binary" ] || [ -n "$(find crates Cargo.toml Cargo.lock -newer "$binary" \( -name '*.rs' -o -name 'Cargo.*' \) -print -quit)" ]; then
  command -v cargo >/dev/null || PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH
  cargo build --release --quiet --locked -p semel --example engine_bench
  touch "$binary"
fi
exec "$binary" run \
  --param "job=${1:?A, B or D}" --param "brokers=$BOOT" --param "in=$IN_TOPIC" --param "out=$OUT_TOPIC" \
  --param "prefix=$TXN_PREFIX" --param "bounded=${BOUNDED:-latest-offset}" \
  --checkpoint-dir "$STATE_DIR" --parallelism "${PAR:-2}" --processes "${PROCESSES:-1}" \
  --set "execution.checkpointing.interval=${CK_MS:-1000} ms"
