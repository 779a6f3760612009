//! Replicated brokers: leaders move and brokers die under load, also between pre-commit and commit.
#![allow(clippy::unwrap_used)]
mod support;

use semel_checkpoint::CheckpointId;
use semel_engine::sink::{SinkCommitter, SinkContext, SinkWriter, TwoPhaseCommitSink};
use semel_engine::source::{Source, SourceEvent, SourceReader};
use semel_testkit::{Kafka, KafkaOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use support::{Job, committed, open_ids, pre_commit, rows, sink, source};

/// What happens between a checkpoint's pre-commit and its commit.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Nothing,
    MoveLeaders,
    /// Kill -9 of this broker; it starts again while rows go on.
    Kill(usize),
    /// The process is frozen for a while.
    Freeze(usize),
}

#[tokio::test(flavor = "multi_thread")]
async fn leaders_that_move_and_brokers_that_die_lose_and_double_nothing() {
    use Fault::{Freeze, Kill, MoveLeaders, Nothing};
    let kafka = Arc::new(Kafka::start_with(KafkaOptions::three_brokers()).unwrap());
    let topic = kafka.create_topic("replicated", 3).unwrap();
    let job = Job::new();
    // A reader of committed rows stays for all of it.
    let mut reader = source(&kafka, &topic).build().unwrap().open(job.source(0, 1), None).await.unwrap();
    let total = Arc::new(AtomicUsize::new(usize::MAX));
    let until = total.clone();
    let reading = tokio::spawn(async move {
        let mut values = vec![];
        while values.len() < until.load(Ordering::Relaxed) {
            match tokio::time::timeout(Duration::from_millis(100), reader.next()).await {
                Ok(Ok(SourceEvent::Rows { rows, .. })) => values.extend(support::texts(&rows)),
                Ok(other) => panic!("{other:?}"),
                Err(_) => {}
            }
        }
        values.sort();
        values
    });
    let sink = sink(&kafka, &topic).build().unwrap();
    let (mut writer, mut committer) = sink.open(job.sink(1)).await.unwrap();
    let mut wanted: Vec<String> = vec![];
    let mut next = 0;
    // Some rows per call, for about as long as a fault lasts.
    let mut batch = || {
        next += 200;
        rows((next - 200..next).map(|i| format!("{i:0>8}")))
    };
    let mut held = None;
    let faults = [Nothing, MoveLeaders, Kill(1), MoveLeaders, Kill(2), Freeze(3), Kill(3), Nothing];
    for (checkpoint, fault) in (1..).zip(faults) {
        let began = Instant::now();
        let (mut transaction, mut mine) = held.take().unwrap_or((None, vec![]));
        if transaction.is_none() {
            transaction = Some(writer.begin_transaction(CheckpointId(checkpoint)).await.unwrap());
        }
        let mut transaction = transaction.unwrap();
        let one = batch();
        mine.extend(support::texts(&one));
        writer.invoke(&mut transaction, one).await.unwrap();
        writer.pre_commit(&mut transaction).await.unwrap();
        let breaker = {
            let (kafka, topic) = (kafka.clone(), topic.clone());
            tokio::task::spawn_blocking(move || match fault {
                Nothing => {}
                MoveLeaders => {
                    for partition in 0..3 {
                        let leader = kafka.leader(&topic, partition).unwrap().unwrap_or(1);
                        move_leader(&kafka, &topic, partition, leader % 3 + 1);
                    }
                }
                Kill(id) => {
                    kafka.kill(id).unwrap();
                    std::thread::sleep(Duration::from_millis(300));
                    kafka.start_again(id).unwrap();
                }
                Freeze(id) => {
                    kafka.pause(id).unwrap();
                    std::thread::sleep(Duration::from_secs(5));
                    kafka.resume(id).unwrap();
                }
            })
        };
        if !matches!(fault, Nothing) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        // The commit of this checkpoint, and rows of the next one meanwhile.
        let permit = job.permit(checkpoint, 1);
        let (done, following) = tokio::join!(committer.commit(&transaction, &permit), async {
            let mut following = writer.begin_transaction(CheckpointId(checkpoint + 1)).await.unwrap();
            let mut values = vec![];
            loop {
                let one = batch();
                values.extend(support::texts(&one));
                writer.invoke(&mut following, one).await.unwrap();
                if breaker.is_finished() {
                    return (Some(following), values);
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        done.unwrap();
        breaker.await.unwrap();
        committer.released(CheckpointId(checkpoint - 1)).await.unwrap();
        wanted.append(&mut mine);
        println!("{fault:?}: {:?}, {} rows committed", began.elapsed(), wanted.len());
        held = Some(following);
    }
    let (transaction, mut mine) = held.unwrap();
    let mut transaction = transaction.unwrap();
    writer.pre_commit(&mut transaction).await.unwrap();
    committer.commit(&transaction, &job.permit(faults.len() as u64 + 1, 1)).await.unwrap();
    wanted.append(&mut mine);
    assert!(wanted.is_sorted());
    total.store(wanted.len(), Ordering::Relaxed);
    support::swept_until_stable(&kafka, &topic, &sink, &job.identity(1)).await;
    let seen = tokio::time::timeout(Duration::from_secs(60), reading).await.unwrap().unwrap();
    assert!(seen == wanted, "the source saw {} rows, {} were committed", seen.len(), wanted.len());
    let java = committed(&kafka, &topic);
    assert!(java == wanted, "Apache's reader saw {} rows, {} were committed", java.len(), wanted.len());
    assert!(open_ids(&kafka, &topic).is_empty());
    // The one that the client would ask first.
    a_hung_broker_is_left_behind(&kafka, 1).await;
}

/// A broker that has just started takes the lead only when it is in sync.
fn move_leader(kafka: &Kafka, topic: &str, partition: i32, to: usize) {
    let end = Instant::now() + Duration::from_secs(40);
    while let Err(error) = kafka.move_leader(topic, partition, to) {
        assert!(Instant::now() < end, "{error}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// A broker whose process is frozen keeps its connections. The job goes on with the others while it is still frozen.
async fn a_hung_broker_is_left_behind(kafka: &Kafka, id: usize) {
    let topic = kafka.create_topic("hung", 3).unwrap();
    move_leader(kafka, &topic, 0, id);
    let job = Job::new();
    let built = sink(kafka, &topic).property("request.timeout.ms", "2000").build().unwrap();
    // Several subtasks: their coordinators are on all brokers.
    let mut halves = vec![];
    let mut held = vec![];
    for subtask in 0..4 {
        let mut half = built.open(SinkContext { subtask, parallelism: 4, ..job.sink(1) }).await.unwrap();
        held.push(pre_commit(&mut half.0, 1, rows((0..100).map(|i| format!("1/{subtask}/{i:0>3}")))).await);
        halves.push(half);
    }
    kafka.pause(id).unwrap();
    let began = Instant::now();
    let work = halves.iter_mut().zip(&held).zip(0..).map(|(((writer, committer), held), subtask)| async move {
        committer.commit(held, &job.permit(1, 1)).await.unwrap();
        let next = pre_commit(writer, 2, rows((0..100).map(|i| format!("2/{subtask}/{i:0>3}")))).await;
        committer.commit(&next, &job.permit(2, 1)).await.unwrap();
    });
    let done = tokio::time::timeout(Duration::from_secs(90), futures::future::join_all(work)).await;
    println!("broker {id} hung: the others have committed after {:?}", began.elapsed());
    let swept = tokio::time::timeout(Duration::from_secs(30), built.sweep(&job.identity(2), &support::uid())).await;
    kafka.resume(id).unwrap();
    done.unwrap();
    assert!(swept.unwrap().unwrap().aborted.is_empty());
    kafka.wait_ready(id).unwrap();
    let mut wanted: Vec<String> =
        [1, 2].iter().flat_map(|c| (0..4).flat_map(move |s| (0..100).map(move |i| format!("{c}/{s}/{i:0>3}")))).collect();
    wanted.sort();
    support::swept_until_stable(kafka, &topic, &built, &job.identity(2)).await;
    let seen = committed(kafka, &topic);
    assert!(seen == wanted, "Apache's reader saw {} rows, {} were committed", seen.len(), wanted.len());
}
