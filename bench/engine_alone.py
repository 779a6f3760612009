#!/usr/bin/env python3
"""The engine without connectors (crates/semel/examples/engine_alone.rs). One JSON line per figure.

  engine_alone.py keys       filter, running sums and windows over 1 k, 1 M and 10 M keys
  engine_alone.py scaling    1 thread, 2 threads, 2 processes
  engine_alone.py interval   cost of the checkpoint interval: 10 s, 1 s, 200 ms, 50 ms; the same run without a change between
  engine_alone.py state      10 M keys: snapshot sizes, pause at a barrier, memory, restore after kill -9

Runs of one comparison are interleaved and repeated; the median is what counts. Nothing else should run on the machine.
"""
import json, os, re, shutil, signal, socket, statistics, subprocess, sys, tempfile, time, urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TARGET = os.environ.get("SEMEL_TARGET_DIR", os.path.expanduser("~/.cache/semel-target"))
BINARY = f"{TARGET}/release/examples/engine_alone"
LIMIT = 180  # seconds that one run may take


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Run:
    """A job in a folder of its own."""

    def __init__(self, folder, params, flags=()):
        self.folder, self.port = folder, free_port()
        self.log = open(f"{folder}/log", "ab")
        command = [BINARY, "run", "--checkpoint-dir", f"{folder}/checkpoints", "--set", f"metrics.port={self.port}"]
        for name, value in params.items():
            command += ["--param", f"{name}={value}"]
        self.began = time.time()
        self.process = subprocess.Popen(command + list(flags), stdout=self.log, stderr=self.log)
        self.metrics, self.peak = {}, 0

    def watch(self):
        """Keeps what is shown while the job runs."""
        try:
            text = urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=1).read().decode()
            for line in text.splitlines():
                if not line.startswith("#") and " " in line:
                    name, value = line.rsplit(" ", 1)
                    self.metrics[name] = float(value)
        except (OSError, ValueError):
            pass
        self.peak = max(self.peak, sum(map(high_water, tree(self.process.pid))))

    def wait(self):
        while True:
            pid, status, usage = os.wait4(self.process.pid, os.WNOHANG)
            if pid:
                self.process.returncode = os.waitstatus_to_exitcode(status)
                return time.time() - self.began, usage.ru_utime + usage.ru_stime
            if time.time() - self.began > LIMIT:
                self.process.terminate()
            self.watch()
            time.sleep(0.1)

    def most(self, name, label=""):
        return max((v for k, v in self.metrics.items() if k.startswith(name) and label in k), default=None)

    def text(self):
        return open(f"{self.folder}/log", errors="replace").read()


def tree(pid):
    pids = [pid]
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in open(f"/proc/{pid}/task/{task}/children").read().split():
                pids += tree(int(child))
    except OSError:
        pass
    return pids


def high_water(pid):
    try:
        return int(re.search(r"VmHWM:\s+(\d+)", open(f"/proc/{pid}/status").read())[1]) / 1024
    except (OSError, TypeError):
        return 0


def measure(what, params, flags=()):
    folder = tempfile.mkdtemp(prefix="semel-bench-")
    try:
        run = Run(folder, params, flags)
        seconds, cpu = run.wait()
        if run.process.returncode:
            sys.exit(f"the job failed ({run.process.returncode}):\n{run.text()[-3000:]}")
        rows = int(params["rows"])
        result = {"what": what, **params, "rows_per_s": round(rows / seconds), "cpu_us_per_row": round(cpu * 1e6 / rows, 3), "peak_rss_mb": round(run.peak)}
        print(json.dumps(result), flush=True)
        return result
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def interleaved(cases, repeats=3):
    """cases: {name: (params, flags)}"""
    results = {name: [] for name in cases}
    for _ in range(repeats):
        for name, (params, flags) in cases.items():
            results[name].append(measure(name, params, flags))
    for name, all in results.items():
        medians = {k: statistics.median(r[k] for r in all) for k in ("rows_per_s", "cpu_us_per_row", "peak_rss_mb")}
        print(json.dumps({"median of": name, **medians}), flush=True)


def one_second(*more):
    return ["--parallelism", "2", "--set", "execution.checkpointing.interval=1s", *more]


def keys():
    cases = {"filter": (dict(job="filter", rows=50_000_000), one_second())}
    for job in ("sum", "window"):
        for n, label, rows in ((1_000, "1 k", 30_000_000), (1_000_000, "1 M", 30_000_000), (10_000_000, "10 M", 30_000_000)):
            cases[f"{job} over {label} keys"] = (dict(job=job, keys=n, rows=rows), one_second())
    interleaved(cases)


def scaling():
    work = dict(job="sum", keys=100_000, rows=30_000_000)
    interval = ["--set", "execution.checkpointing.interval=1s"]
    interleaved({
        "1 thread": (work, ["--parallelism", "1", *interval]),
        "2 threads": (work, ["--parallelism", "2", *interval]),
        "2 processes": (work, ["--parallelism", "2", "--processes", "2", *interval]),
    })


def interval():
    work = dict(job="sum", keys=100_000, rows=30_000_000)
    interleaved({each: (work, ["--parallelism", "2", "--set", f"execution.checkpointing.interval={each}"]) for each in ("10s", "1s", "200ms", "50ms")})


def state():
    folder = tempfile.mkdtemp(prefix="semel-bench-")
    try:
        params = dict(job="sum", keys=10_000_000, rows=0)
        first = Run(folder, params, one_second())
        while "state_bytes" not in first.text() or first.most("numRecordsIn", "") is None or first.metrics_rows() < 30_000_000:
            first.watch()
            time.sleep(0.2)
            if time.time() - first.began > LIMIT:
                first.process.kill()
                sys.exit(first.text()[-3000:])
        full = first.most("lastCheckpointFullSize")
        summary = {
            "what": "10 M keys, every key changed at full speed",
            "peak_rss_mb": round(first.peak),
            "snapshot_bytes": full,
            "sync_p50_ms": ms(first.most("checkpointSyncDuration", 'quantile="0.5"')),
            "sync_p99_ms": ms(first.most("checkpointSyncDuration", 'quantile="0.99"')),
        }
        print(json.dumps(summary), flush=True)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        # The same state, and few changes.
        second = Run(folder, {**params, "rate": 100_000}, one_second())
        deadline = time.time() + 20
        while time.time() < deadline:
            second.watch()
            time.sleep(0.2)
        second.process.terminate()
        second.process.wait(timeout=60)
        log = second.text()
        restored = re.findall(r"state restored .*?groups=(\d+).*? ms=(\d+)", log)
        sizes = [int(n) for n in re.findall(r"new_bytes=(\d+)", log.split("state restored")[-1])]
        print(json.dumps({
            "what": "10 M keys restored after kill -9, then 100,000 changes per second",
            "restored_groups": sum(int(groups) for groups, _ in restored),
            "restore_ms": max((int(each) for _, each in restored), default=None),
            "incremental_bytes_median": statistics.median(sizes) if sizes else None,
            "peak_rss_mb": round(second.peak),
            "sync_p50_ms": ms(second.most("checkpointSyncDuration", 'quantile="0.5"')),
            "sync_p99_ms": ms(second.most("checkpointSyncDuration", 'quantile="0.99"')),
        }), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def ms(seconds):
    return None if seconds is None else round(seconds * 1e3, 2)


def metrics_rows(self):
    return sum(v for k, v in self.metrics.items() if k.startswith("numRecordsIn") and "Errors" not in k)


Run.metrics_rows = metrics_rows

if __name__ == "__main__":
    commands = {"keys": keys, "scaling": scaling, "interval": interval, "state": state}
    if len(sys.argv) != 2 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    subprocess.run(["cargo", "build", "--release", "--quiet", "--locked", "-p", "semel", "--example", "engine_alone"], cwd=ROOT, check=True, env={**os.environ, "CARGO_TARGET_DIR": TARGET})
    commands[sys.argv[1]]()
