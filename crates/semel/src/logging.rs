//! Log lines on stderr. Several processes share it, so each line is written with a single call; worker index and generation are
//! put into every line.
use crate::options::Settings;
use std::io::{self, Write};
use std::sync::RwLock;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Who writes, for people and as JSON members.
static WHO: RwLock<(String, String)> = RwLock::new((String::new(), String::new()));

/// Says who writes from now on; `None`: the supervisor. In the log: `w1 g3`, or `"worker":1,"generation":3`.
pub fn set_who(worker: Option<usize>, generation: Option<u64>) {
    let who = describe(worker, generation);
    if let Ok(mut place) = WHO.write() {
        *place = who;
    }
}

fn describe(worker: Option<usize>, generation: Option<u64>) -> (String, String) {
    let (mut human, mut json) = match worker {
        Some(worker) => (format!("w{worker}"), format!("\"worker\":{worker},")),
        None => ("sv".to_owned(), "\"worker\":null,".to_owned()),
    };
    if let Some(generation) = generation {
        human.push_str(&format!(" g{generation}"));
        json.push_str(&format!("\"generation\":{generation},"));
    }
    human.push(' ');
    (human, json)
}

/// Starts logging under `log.format` and `log.level`. Only the first call in a process counts.
pub fn start(settings: &Settings) {
    let json = settings.text("log.format") == Some("json");
    let level = settings.text("log.level").unwrap_or("info");
    let filter = EnvFilter::builder().parse(level).unwrap_or_else(|e| {
        eprintln!("log.level = {level:?} is not understood ({e}); logging at info");
        EnvFilter::new("info")
    });
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(Lines { json }).with_ansi(false);
    let started = if json {
        builder.json().flatten_event(true).with_current_span(false).with_span_list(false).try_init()
    } else {
        builder.try_init()
    };
    _ = started; // The program has its own subscriber.
}

/// Makes a [`Line`] per event.
struct Lines {
    json: bool,
}

/// Gathers a line and writes it when it is dropped.
struct Line {
    json: bool,
    bytes: Vec<u8>,
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line;
    fn make_writer(&'a self) -> Line {
        Line { json: self.json, bytes: vec![] }
    }
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.bytes.is_empty() {
            return;
        }
        let line = match WHO.read() {
            Ok(who) if self.json => with_json(&self.bytes, &who.1),
            Ok(who) => [who.0.as_bytes(), &self.bytes].concat(),
            Err(_) => std::mem::take(&mut self.bytes),
        };
        _ = io::stderr().write_all(&line);
    }
}

/// Puts members after the brace that opens the object.
fn with_json(line: &[u8], members: &str) -> Vec<u8> {
    match line.strip_prefix(b"{") {
        Some(rest) if rest.starts_with(b"}") => line.to_vec(),
        Some(rest) => [b"{", members.as_bytes(), rest].concat(),
        None => line.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_line_says_who_wrote_it() {
        let (human, json) = describe(Some(1), Some(3));
        assert_eq!(human, "w1 g3 ");
        let line = with_json(b"{\"message\":\"x\"}\n", &json);
        let value: serde_json::Value = serde_json::from_slice(&line).unwrap();
        assert_eq!((value["worker"].as_u64(), value["generation"].as_u64(), value["message"].as_str()), (Some(1), Some(3), Some("x")));
        assert_eq!(describe(None, None).0, "sv ");
    }
}
