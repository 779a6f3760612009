//! The main job on embedded defaults: generated orders, windows of 10 s per customer, files; killed again and again.
//!
//! Without arguments it is a show: it starts itself as a job with two worker processes, ends workers and the supervisor with
//! SIGKILL at random moments, and then compares every committed row with what was computed from the orders one by one.
//! With arguments it is the job alone: `demo run --checkpoint-dir FOLDER --param out=FOLDER`.
use rustix::process::{Pid, Signal, kill_process};
use semel::api::*;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::error::Error;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

const SEED: u64 = 1;
const WINDOW: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    if std::env::args().len() > 1 {
        return job();
    }
    match show() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("demo: {error}");
            ExitCode::FAILURE
        }
    }
}

fn job() -> ExitCode {
    execute("demo", |env| {
        env.enable_checkpointing(Duration::from_millis(200));
        let rows: u64 = env.parse_parameter("rows")?.unwrap_or(300_000);
        let rate: f64 = env.parse_parameter("rate")?.unwrap_or(30_000.0);
        let out = env.parameter("out").ok_or("--param out=FOLDER is needed")?;
        let watermarks = WatermarkStrategy::for_bounded_out_of_orderness("ts", Duration::from_secs(2));
        env.from_source(datagen::orders(SEED).rows(rows).rows_per_second(rate), watermarks, "orders")?
            .key_by(["customer_id"])
            .window(TumblingEventTimeWindows::of(WINDOW))
            .aggregate([count().alias("cnt"), sum("amount").alias("total")])?
            .select_columns(["window_start", "customer_id", "cnt", "total"])?
            .sink_to(FileSink::json(out).build()?)?
            .uid("windows")?;
        Ok(())
    })
}

const ROWS: u64 = 300_000;

fn show() -> Result<bool, Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("semel-demo-{}", std::process::id()));
    let out = folder.join("out");
    fs::create_dir_all(&out)?;
    println!("job:   {ROWS} generated orders at 30000/s -> {} s windows per customer -> JSON files", WINDOW.as_secs());
    println!("       2 worker processes, exactly-once checkpoints each 200 ms; log: {}", folder.join("log").display());
    println!("kills: SIGKILL to a worker about every second, twice to the supervisor");
    let started = Instant::now();
    let mut random = started.elapsed().subsec_nanos() as usize ^ std::process::id() as usize;
    let mut running = start(&folder)?;
    let (mut worker_kills, mut supervisor_kills) = (0, 0);
    let mut next_kill = started + Duration::from_millis(1500);
    let code = loop {
        std::thread::sleep(Duration::from_millis(20));
        if let Some(status) = running.try_wait()? {
            break status;
        }
        if started.elapsed() > Duration::from_secs(120) {
            _ = running.kill();
            return Err("the job has not finished within 120 s".into());
        }
        if Instant::now() < next_kill {
            continue;
        }
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        next_kill += Duration::from_millis(700 + (random >> 33) as u64 % 700);
        let seconds = started.elapsed().as_secs_f64();
        if (worker_kills + 1) % 4 == 0 && supervisor_kills < 2 {
            running.kill()?;
            running.wait()?;
            supervisor_kills += 1;
            println!("{seconds:6.2} s  killed the supervisor and with it all; the same command again");
            running = start(&folder)?;
            worker_kills += 1;
            continue;
        }
        let workers = children(running.id());
        let Some(victim) = workers.get((random >> 40) % workers.len().max(1)) else { continue };
        if kill_process(*victim, Signal::KILL).is_ok() {
            worker_kills += 1;
            println!("{seconds:6.2} s  killed worker process {}, {} rows committed", victim.as_raw_nonzero(), committed(&out)?.len());
        }
    };
    worker_kills -= supervisor_kills;
    println!(
        "{:6.2} s  the job has ended ({code}) after {worker_kills} killed workers and {supervisor_kills} killed supervisors",
        started.elapsed().as_secs_f64()
    );
    if !code.success() {
        return Err(format!("the job failed; see {}", folder.join("log").display()).into());
    }
    verify(&out, &folder)
}

fn start(folder: &Path) -> Result<Child, Box<dyn Error>> {
    let log = File::options().create(true).append(true).open(folder.join("log"))?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["run", "--parallelism", "2", "--processes", "2", "--checkpoint-dir"]).arg(folder.join("checkpoints"));
    command.arg("--param").arg(format!("out={}", folder.join("out").display()));
    command.arg("--param").arg(format!("rows={ROWS}"));
    command.args(["--set", "restart-strategy.exponential-delay.initial-backoff=10ms"]);
    command.args(["--set", "restart-strategy.exponential-delay.max-backoff=100ms"]);
    Ok(command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?)
}

/// The processes that a process has started.
fn children(pid: u32) -> Vec<Pid> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return vec![] };
    let lists = tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect::<Vec<_>>()).collect()
}

#[derive(Deserialize)]
struct Row {
    window_start: String,
    customer_id: u64,
    cnt: u64,
    total: serde_json::Number,
}

/// Every line of every visible file.
fn committed(out: &Path) -> Result<Vec<String>, Box<dyn Error>> {
    let files = fs::read_dir(out)?.flatten().map(|entry| entry.path());
    let visible: Vec<PathBuf> =
        files.filter(|path| path.is_file() && !path.file_name().is_some_and(|n| n.as_encoded_bytes().starts_with(b"."))).collect();
    let mut lines = vec![];
    for path in visible {
        lines.extend(fs::read_to_string(path)?.lines().map(str::to_owned));
    }
    Ok(lines)
}

fn verify(out: &Path, folder: &Path) -> Result<bool, Box<dyn Error>> {
    let size = WINDOW.as_millis() as i64;
    let mut expected: BTreeMap<(String, u64), (u64, i64)> = BTreeMap::new();
    for order in (0..ROWS).map(|i| datagen::order(SEED, i)) {
        let start = order.ts - order.ts.rem_euclid(size);
        let window = expected.entry((timestamp(start), order.customer_id)).or_default();
        *window = (window.0 + 1, window.1 + order.cents);
    }
    let (rows, windows) = (committed(out)?, expected.len());
    let (mut doubled, mut wrong) = (0, 0);
    let mut seen: BTreeMap<(String, u64), (u64, i64)> = BTreeMap::new();
    for line in &rows {
        let row: Row = serde_json::from_str(line).map_err(|e| format!("{line}: {e}"))?;
        let cents = (row.total.as_f64().unwrap_or(f64::NAN) * 100.0).round() as i64;
        let key = (row.window_start, row.customer_id);
        wrong += u64::from(expected.get(&key) != Some(&(row.cnt, cents)));
        doubled += u64::from(seen.insert(key, (row.cnt, cents)).is_some());
    }
    let lost = expected.keys().filter(|key| !seen.contains_key(key)).count();
    println!("rows:  {} committed, {windows} expected: {lost} lost, {doubled} doubled, {wrong} wrong", rows.len());
    let good = lost == 0 && doubled == 0 && wrong == 0;
    if good {
        println!("every window is there exactly once, with the right count and sum");
        fs::remove_dir_all(folder)?;
    } else {
        println!("NOT exactly once. Everything is kept in {}", folder.display());
    }
    Ok(good)
}

/// `YYYY-MM-DD HH:MM:SS`, as the JSON format writes timestamps.
fn timestamp(ms: i64) -> String {
    arrow::temporal_conversions::timestamp_ms_to_datetime(ms).map_or_else(String::new, |t| t.format("%Y-%m-%d %H:%M:%S").to_string())
}
