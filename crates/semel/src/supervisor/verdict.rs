//! What the facts about worker processes mean. Decisions only: facts come in.
use semel_engine::failure::Failure;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

/// Signs of life of one worker process.
#[derive(Debug, Clone)]
pub struct Signs {
    /// When it last sent something.
    pub heard: Instant,
    /// For how long its slowest thread had not finished a step by then.
    pub stalled: Duration,
}

/// Why a process is taken for hung, if it is.
pub fn hung(signs: &Signs, now: Instant, timeout: Duration) -> Option<String> {
    let silent = now.saturating_duration_since(signs.heard);
    if silent >= timeout {
        return Some(format!("no sign of life for {:.1} s (heartbeat.timeout = {timeout:?})", silent.as_secs_f64()));
    }
    // What it said is as old as the silence since.
    let stalled = if signs.stalled.is_zero() { Duration::ZERO } else { signs.stalled + silent };
    (stalled >= timeout)
        .then(|| format!("a worker thread has not finished a step for {:.1} s (heartbeat.timeout = {timeout:?})", stalled.as_secs_f64()))
}

/// A watcher that has itself been paused (SIGSTOP, a suspended machine) knows nothing about the time in between: everybody gets
/// the benefit of the doubt. `expected`: how often it looks.
pub fn was_paused(last_look: Instant, now: Instant, expected: Duration) -> bool {
    now.saturating_duration_since(last_look) > expected * 4 + Duration::from_secs(1)
}

/// What it means that a worker process has ended. `None`: it had finished its part.
pub fn of_exit(status: ExitStatus) -> Option<Failure> {
    match (status.code(), status.signal()) {
        (Some(0), _) => None,
        (Some(75), _) => Some(Failure::Retryable("it ended with code 75 and did not get to say why; see its log lines".into())),
        (Some(76), _) => Some(Failure::Fenced("it ended with code 76".into())),
        (Some(78), _) => Some(Failure::Fatal("it ended with code 78; see its log lines".into())),
        (Some(79), _) => Some(Failure::Lost("it ended with code 79; see its log lines".into())),
        (Some(code), _) => Some(Failure::Retryable(format!("it ended with code {code}"))),
        (None, Some(9)) => Some(Failure::Retryable("it was killed (signal 9): by somebody, or by the system when memory ran out".into())),
        (None, signal) => Some(Failure::Retryable(format!("it was ended by signal {}", signal.unwrap_or_default()))),
    }
}

/// Of all failures of a generation the one that decides: most of them only follow from another one.
pub fn worst(failures: impl IntoIterator<Item = Failure>) -> Option<Failure> {
    let rank = |f: &Failure| match f {
        Failure::Lost(_) => 4,
        Failure::Fatal(_) => 3,
        Failure::Fenced(_) => 2,
        Failure::Retryable(_) => 1,
        Failure::PeerLost(_) => 0,
    };
    // The first of equals: it is the nearest to the cause.
    failures.into_iter().reduce(|worst, next| if rank(&next) > rank(&worst) { next } else { worst })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn silence_and_a_stalled_thread_are_hung() {
        let heard = Instant::now();
        let at = |ms| heard + Duration::from_millis(ms);
        let timeout = Duration::from_secs(10);
        let well = Signs { heard, stalled: Duration::from_millis(400) };
        assert_eq!(hung(&well, at(9000), timeout), None);
        assert!(hung(&well, at(10_000), timeout).unwrap().contains("no sign of life"));
        let stalled = Signs { heard, stalled: Duration::from_secs(9) };
        assert_eq!(hung(&stalled, at(500), timeout), None);
        assert!(hung(&stalled, at(1000), timeout).unwrap().contains("worker thread"));
    }

    #[test]
    fn a_watcher_that_slept_itself_blames_nobody() {
        let start = Instant::now();
        let every = Duration::from_millis(100);
        assert!(!was_paused(start, start + Duration::from_millis(1300), every));
        assert!(was_paused(start, start + Duration::from_secs(3), every));
    }

    #[test]
    fn exit_codes_are_those_of_the_engine() {
        for failure in
            [Failure::Retryable(String::new()), Failure::Fenced(String::new()), Failure::Fatal(String::new()), Failure::Lost(String::new())]
        {
            let status = ExitStatus::from_raw(failure.exit_code() << 8);
            let read = of_exit(status).unwrap();
            assert_eq!(std::mem::discriminant(&read), std::mem::discriminant(&failure));
        }
        assert_eq!(of_exit(ExitStatus::from_raw(0)), None);
        assert!(matches!(of_exit(ExitStatus::from_raw(9)), Some(Failure::Retryable(why)) if why.contains("killed")));
        assert!(matches!(of_exit(ExitStatus::from_raw(101 << 8)), Some(Failure::Retryable(_))));
    }

    #[test]
    fn the_cause_outweighs_what_follows_from_it() {
        let failures = [
            Failure::Retryable("a peer is gone".into()),
            Failure::Retryable("later".into()),
            Failure::Fatal("bad row".into()),
            Failure::Fenced("g".into()),
        ];
        assert_eq!(worst(failures.clone()), Some(failures[2].clone()));
        assert_eq!(worst(failures[..2].to_vec()), Some(failures[0].clone()));
        let gone = Failure::PeerLost("lost the link".into());
        assert_eq!(worst([gone.clone(), failures[0].clone()]), Some(failures[0].clone()));
        assert_eq!(worst([gone.clone()]), Some(gone));
        assert_eq!(worst([]), None);
    }
}
