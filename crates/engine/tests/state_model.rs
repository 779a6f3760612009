//! Keyed state, its snapshots, restarts and rescaling against a plain map, under random operations and a store that fails.
#![allow(clippy::unwrap_used)]
mod state_support;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use semel_checkpoint::testing::{FaultyStore, Rates};
use semel_checkpoint::{CheckpointId, OperatorSnapshot};
use semel_engine::state::{Saved, StateError, subtask_of};
use state_support::*;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What a completed checkpoint stands for.
#[derive(Clone, Default)]
struct Complete {
    snapshot: OperatorSnapshot,
    model: Model,
    /// Namespaces below are dead.
    live_from: i64,
}

#[derive(Default, Debug)]
struct Seen {
    declined: usize,
    complete: usize,
    restarts: usize,
    /// A chain that became shorter.
    compactions: usize,
}

struct Run {
    chance: StdRng,
    job: Job,
    faulty: FaultyStore,
    parallelism: usize,
    generation: u64,
    subtasks: Vec<Subtask>,
    model: Model,
    live_from: i64,
    newest: Complete,
    next_checkpoint: u64,
    seen: Seen,
}

impl Run {
    async fn new(seed: u64) -> Run {
        let rates = Rates { lose: 30, refuse: 60, refuse_reads: 8, hold: 30, ..Rates::default() };
        let faulty = FaultyStore::random(memory(), seed, rates);
        let job = Job::new(Arc::new(faulty.clone()), schema(seed.is_multiple_of(2)));
        let chance = StdRng::seed_from_u64(seed);
        let mut run = Run {
            chance,
            job,
            faulty,
            parallelism: 1,
            generation: 0,
            subtasks: vec![],
            model: Model::new(),
            live_from: 0,
            newest: Complete::default(),
            next_checkpoint: 1,
            seen: Seen::default(),
        };
        run.restart(1).await;
        run
    }

    /// All of the generation's memory is lost.
    async fn restart(&mut self, parallelism: usize) {
        self.generation += 1;
        self.parallelism = parallelism;
        self.delete_what_no_checkpoint_lists().await;
        self.model = self.newest.model.clone();
        self.live_from = self.newest.live_from;
        let mut subtasks = vec![];
        for subtask in 0..parallelism {
            let live_from = self.live_from;
            subtasks.push(loop {
                match self.job.start(self.generation, subtask, parallelism, &self.newest.snapshot, |namespace| namespace >= live_from).await
                {
                    Ok(subtask) => break subtask,
                    Err(StateError::Store { .. }) => continue,
                    Err(error) => panic!("{error}"),
                }
            });
        }
        self.subtasks = subtasks;
        self.compare();
    }

    async fn delete_what_no_checkpoint_lists(&mut self) {
        let wanted: BTreeSet<&str> =
            self.newest.snapshot.parts.iter().flat_map(|part| &part.files).map(|file| file.path.as_str()).collect();
        self.faulty.deliver().await.unwrap();
        // Refused calls are left for the next time.
        for object in self.faulty_list().await {
            if !wanted.contains(object.as_str()) {
                _ = semel_checkpoint::Store::delete(&self.faulty, &object).await;
            }
        }
    }

    async fn faulty_list(&self) -> Vec<String> {
        let listed = semel_checkpoint::Store::list(&self.faulty, "snapshots/").await;
        listed.unwrap_or_default().into_iter().map(|object| object.path).collect()
    }

    fn compare(&self) {
        let mut all = Model::new();
        for subtask in &self.subtasks {
            let part = contents(&subtask.state);
            let slots = slots_of_keys(&self.job.schema, &part.keys().collect::<Vec<_>>());
            assert!(slots.iter().all(|slot| subtask.slots.contains(slot)), "a subtask holds its own slots only");
            all.extend(part);
        }
        assert!(all == self.model, "{} groups instead of {}", all.len(), self.model.len());
    }

    fn key(&mut self) -> Key {
        let namespace = self.live_from + self.chance.random_range(0..3);
        let number = (!self.chance.random_ratio(1, 50)).then(|| self.chance.random_range(0..400));
        let text = (self.job.schema.keys.len() == 2 && !self.chance.random_ratio(1, 10))
            .then(|| ["", "x", "longer than the others"][self.chance.random_range(0..3)].to_string());
        (namespace, text, number)
    }

    fn owner(&self, key: &Key) -> usize {
        subtask_of(slots_of_keys(&self.job.schema, &[key])[0], SLOTS, self.parallelism)
    }

    fn update(&mut self) {
        let mut rows: Vec<Vec<Row>> = vec![vec![]; self.parallelism];
        for _ in 0..self.chance.random_range(1..300) {
            let key = self.key();
            let value = (!self.chance.random_ratio(1, 5)).then(|| self.chance.random_range(-1000..1000));
            let text = (!self.chance.random_ratio(1, 5)).then(|| "m".repeat(self.chance.random_range(0..20)));
            let row = Row { key, value, text };
            add(&mut self.model, &row);
            rows[self.owner(&row.key)].push(row);
        }
        self.subtasks.iter_mut().zip(&rows).for_each(|(subtask, rows)| update(&mut subtask.state, rows));
    }

    fn remove(&mut self) {
        for _ in 0..self.chance.random_range(1..60) {
            let key = self.key();
            self.model.remove(&key);
            let owner = self.owner(&key);
            remove(&mut self.subtasks[owner].state, &key);
        }
    }

    /// The oldest namespace is over for all.
    fn drop_namespace(&mut self) {
        let dead = self.live_from;
        self.live_from += 1;
        self.model.retain(|key, _| key.0 != dead);
        self.subtasks.iter_mut().for_each(|subtask| _ = subtask.state.drop_namespace(dead));
    }

    async fn checkpoint(&mut self) {
        let mut files = vec![];
        let mut declined = false;
        for subtask in &mut self.subtasks {
            let before = subtask.snapshotter.chain().files().len();
            let frozen = subtask.state.freeze(Some(self.live_from)).unwrap();
            match subtask.snapshotter.save(CheckpointId(self.next_checkpoint), frozen).await {
                Saved::Uploaded { files: chain, .. } => {
                    self.seen.compactions += usize::from(before > chain.len() + 3);
                    files.push(chain);
                }
                Saved::Declined { .. } => declined = true,
            }
        }
        self.next_checkpoint += 1;
        match declined {
            true => self.seen.declined += 1,
            false => {
                self.seen.complete += 1;
                self.newest = Complete { snapshot: snapshot(files), model: self.model.clone(), live_from: self.live_from };
            }
        }
    }

    async fn step(&mut self) {
        match self.chance.random_range(0..100u32) {
            0..45 => self.update(),
            45..55 => self.remove(),
            55..57 => self.drop_namespace(),
            57..97 => self.checkpoint().await,
            97.. => {
                self.seen.restarts += 1;
                self.restart([1, 2, 3, 1, 5][self.seen.restarts % 5]).await;
            }
        }
        self.compare();
    }
}

#[tokio::test]
async fn state_survives_failed_uploads_restarts_and_rescaling() {
    let mut all = Seen::default();
    for seed in 0..10 {
        let mut run = Run::new(seed).await;
        for _ in 0..400 {
            run.step().await;
        }
        run.restart(2).await;
        all.declined += run.seen.declined;
        all.complete += run.seen.complete;
        all.restarts += run.seen.restarts;
        all.compactions += run.seen.compactions;
    }
    assert!(
        all.declined > 50 && all.complete > 500 && all.restarts > 50 && all.compactions > 20,
        "the test must reach what it is about: {all:?}"
    );
}
