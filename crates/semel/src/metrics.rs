//! Metrics: recorded in each worker process, shown by the supervisor as one page of Prometheus text.
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use std::collections::BTreeMap;

/// Installs this process' recorder. `None`: the program has its own.
pub fn install() -> Option<PrometheusHandle> {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder).ok().map(|()| handle)
}

/// One page out of those of several worker processes: each sample gets the label `worker`, each family one heading.
/// `own` has no such label.
pub fn merge<'a>(own: &str, workers: impl IntoIterator<Item = (usize, &'a str)>) -> String {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    take(&mut families, own, None);
    for (worker, page) in workers {
        take(&mut families, page, Some(worker));
    }
    let mut page = String::new();
    for family in families.values() {
        for line in family.headings.iter().chain(&family.samples) {
            page.push_str(line);
            page.push('\n');
        }
    }
    page
}

#[derive(Default)]
struct Family {
    headings: Vec<String>,
    samples: Vec<String>,
}

fn take(families: &mut BTreeMap<String, Family>, page: &str, worker: Option<usize>) {
    let mut current = String::new();
    for line in page.lines().filter(|l| !l.trim().is_empty()) {
        if let Some(heading) = line.strip_prefix("# ") {
            let mut words = heading.splitn(3, ' ');
            let (kind, name) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            current = name.to_owned();
            let family = families.entry(current.clone()).or_default();
            let start = format!("# {kind} ");
            if !family.headings.iter().any(|h| h.starts_with(&start)) {
                family.headings.push(line.to_owned());
            }
        } else {
            let sample = worker.map_or_else(|| line.to_owned(), |worker| labelled(line, worker));
            families.entry(current.clone()).or_default().samples.push(sample);
        }
    }
}

fn labelled(sample: &str, worker: usize) -> String {
    let end = sample.find(['{', ' ']).unwrap_or(sample.len());
    let (name, rest) = sample.split_at(end);
    match rest.strip_prefix('{') {
        Some(labels) if labels.starts_with('}') => format!("{name}{{worker=\"{worker}\"{labels}"),
        Some(labels) => format!("{name}{{worker=\"{worker}\",{labels}"),
        None => format!("{name}{{worker=\"{worker}\"}}{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_workers_become_one() {
        let first = "# TYPE numRecordsIn counter\nnumRecordsIn{operator=\"a b\"} 5\n\n# TYPE lag gauge\nlag 1\n";
        let second = "# TYPE numRecordsIn counter\nnumRecordsIn{operator=\"a b\"} 7\n";
        let page = merge("# TYPE numRestarts gauge\nnumRestarts 2\n", [(0, first), (1, second)]);
        let expected = "# TYPE lag gauge\nlag{worker=\"0\"} 1\n# TYPE numRecordsIn counter\nnumRecordsIn{worker=\"0\",operator=\"a b\"} 5\n\
                        numRecordsIn{worker=\"1\",operator=\"a b\"} 7\n# TYPE numRestarts gauge\nnumRestarts 2\n";
        assert_eq!(page, expected);
    }
}
