#!/usr/bin/env bash
# engine.sh JOB : runs benchmark job A (filter), B (10 s windows per customer) or D (running count per customer) on Semel,
# from Kafka to Kafka, exactly once. Builds what is not built. Settings come from the environment:
#   BOOT IN_TOPIC OUT_TOPIC TXN_PREFIX CK_MS PAR STATE_DIR BOUNDED (latest-offset | unbounded)
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TARGET_DIR=${SEMEL_TARGET_DIR:-$HOME/.cache/semel-target}
binary=$CARGO_TARGET_DIR/release/examples/engine_bench
# Cargo takes a moment even when nothing is to do: not in the time that is measured.
if [ ! -x "$binary" ] || [ -n "$(find crates Cargo.toml Cargo.lock -newer "$binary" -name '*.rs' -print -quit)" ]; then
  cargo build --release --quiet -p semel --example engine_bench
  touch "$binary"
fi
exec "$binary" "$@"
