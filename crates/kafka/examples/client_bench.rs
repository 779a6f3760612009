//! Rows per second and CPU time per row of the client alone, with rows of 100 bytes.
//!
//! `client_bench <bootstrap> <topic> <rows in millions> [compression]`; the topic must exist. Prints one line each for
//! producing in transactions and for fetching to Arrow.
use semel_formats::{Format, Records, Span};
use semel_kafka::client::*;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// CPU time of this process in seconds.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/schedstat").ok();
    // Per thread; summed over all threads of the process.
    _ = stat;
    let mut total = 0u64;
    if let Ok(tasks) = std::fs::read_dir("/proc/self/task") {
        for task in tasks.flatten() {
            let text = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            total += text.split_whitespace().next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    total as f64 / 1e9
}

fn report(what: &str, rows: u64, began: Instant, cpu_before: f64) {
    let (wall, cpu) = (began.elapsed().as_secs_f64(), cpu() - cpu_before);
    println!("{what}: {rows} rows, {:.2} M rows/s, {:.3} us CPU per row", rows as f64 / wall / 1e6, cpu * 1e6 / rows as f64);
}

#[tokio::main]
async fn main() -> std::result::Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, bootstrap, topic, millions, rest @ ..] = &args[..] else {
        return Err("usage: client_bench <bootstrap> <topic> <millions> [compression]".into());
    };
    let rows = millions.parse::<u64>()? * 1_000_000;
    let compression: Compression = rest.first().map_or(Ok(Compression::None), |c| c.parse())?;
    let limit = || Deadline::after(Duration::from_secs(300));
    let cluster = Cluster::connect(ClientConfig::new([bootstrap.as_str()])).await?;
    let partitions = cluster.topic(topic, limit()).await?.partitions.len() as u64;
    let ends: Vec<_> = (0..partitions as i32).map(|p| (TopicPartition::new(topic.as_str(), p), OffsetSpec::Latest)).collect();
    let starts = Offsets::new(cluster.clone()).list(&ends, IsolationLevel::ReadCommitted, limit()).await?;

    const BATCH: u64 = 4096;
    let mut data = Vec::new();
    for i in 0..BATCH {
        data.extend_from_slice(
            format!(
                "{{\"id\":{i:0>10},\"customer\":\"c{:0>6}\",\"amount\":{:0>8},\"note\":\"some text that fills the row\"}}       ",
                i * 7,
                i * 13
            )
            .as_bytes()[..100]
                .as_ref(),
        );
    }
    let ends: Vec<usize> = (1..=BATCH as usize).map(|i| i * 100).collect();
    let transactions = Transactions::new(cluster.clone());
    let id = format!("{topic}-bench");
    let mut identity = transactions.init_producer_id(Some(&id), 60_000, limit()).await?;
    let config = ProducerConfig { compression, ..ProducerConfig::default() };
    let mut producer = Producer::new(cluster.clone(), config, Identity::Producer(identity.clone()))?;
    let (began, before) = (Instant::now(), cpu());
    let (mut sent, mut commit_at) = (0u64, Instant::now() + Duration::from_secs(1));
    while sent < rows {
        let columns = RowColumns {
            timestamps: Timestamps::All(1_700_000_000_000 + sent as i64 / 1000),
            keys: None,
            values: Column { data: &data, ends: &ends, valid: None },
            headers: &[],
        };
        let partition = TopicPartition::new(topic.as_str(), (sent / BATCH % partitions) as i32);
        producer.send_rows(&partition, &columns, None, limit()).await?;
        sent += BATCH;
        if Instant::now() > commit_at || sent >= rows {
            producer.flush(limit()).await?;
            let ended = transactions.end_txn(&id, identity.producer_id, identity.epoch, true, limit()).await?;
            let (Some(producer_id), Some(epoch)) = (ended.producer_id, ended.epoch) else {
                return Err(format!("commit: {}", ended.code).into());
            };
            (identity.producer_id, identity.epoch) = (producer_id, epoch);
            producer.set_identity(Identity::Producer(identity.clone()))?;
            commit_at = Instant::now() + Duration::from_secs(1);
        }
    }
    report("produce", sent, began, before);

    for arrow in [false, true] {
        let mut fetcher = Fetcher::new(cluster.clone(), FetchConfig::default());
        fetcher.add(
            starts.iter().filter_map(|(p, found)| Some((p.clone(), StartAt { offset: found.as_ref().ok()?.offset?, leader_epoch: None }))),
        );
        let schema =
            Arc::new(arrow::datatypes::Schema::new(vec![arrow::datatypes::Field::new("v", arrow::datatypes::DataType::Utf8, false)]));
        let mut decoder = Format::Raw.deserializer(schema)?;
        let (began, before) = (Instant::now(), cpu());
        let (mut read, mut bytes) = (0u64, 0u64);
        let mut spans: Vec<Span> = Vec::new();
        while read < sent {
            let Some(event) = fetcher.next(limit()).await? else { return Err("nothing came".into()) };
            let FetchEvent::Records(fetched) = event else { return Err(format!("{event:?}").into()) };
            let records = fetched.records;
            read += records.len() as u64;
            bytes += records.values.iter().map(|v| u64::from(v.len)).sum::<u64>();
            if arrow {
                for values in records.values.chunks(16 << 10) {
                    spans.clear();
                    spans.extend(values.iter().map(|v| Span::new(v.start, v.len)));
                    let decoded = decoder.decode(Records { data: &records.data, spans: &spans });
                    if decoded.rows.num_rows() != values.len() {
                        return Err("rows are missing".into());
                    }
                }
            }
        }
        if bytes != sent * 100 {
            return Err(format!("{bytes} bytes came").into());
        }
        report(if arrow { "fetch to raw Arrow rows" } else { "fetch and decode" }, read, began, before);
    }
    Ok(())
}
