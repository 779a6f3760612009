//! A model check of the whole protocol: every interleaving of a few incarnations, with the crate's own decisions.
//!
//! What may happen: claims at once and by frozen claimers, two checkpoints in flight, declined checkpoints, puts whose
//! answer is lost or that arrive late (also after their sender was replaced), entries that only say what is committed, commits and removals carried out late
//! by zombies, sweeps at any time, collection interrupted anywhere, `--from`, an emptied store. A crash is an
//! incarnation that does nothing more. The second half takes rules out one by one: each must be missed.
#![allow(clippy::unwrap_used)]

#[path = "model/facts.rs"]
mod facts;
#[path = "model/protocol.rs"]
mod protocol;
#[path = "model/shared.rs"]
mod shared;
#[path = "model/sink.rs"]
mod sink;
#[path = "model/state.rs"]
mod state;

use sink::Kind;
use state::{Budget, Content, State};
use stateright::{Checker, HasDiscoveries, Model, Property};
use std::time::Duration;

/// How a put goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Put {
    Answered,
    /// It happens; the answer is lost.
    AnswerLost,
    /// The answer is lost; it happens at any later time, or never.
    Delayed,
}

/// A step; the number is the incarnation's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Action {
    Start(usize, Option<u8>),
    Put(usize, Put),
    Step(usize),
    Commit(usize),
    Sweep(usize),
    Barrier(usize),
    Decline(usize),
    FailUpload(usize),
    Complete(usize),
    Tell(usize),
    List(usize),
    Plan(usize),
    Remove(usize),
    Deliver(usize),
    Wipe,
}

/// The rules that can be taken out.
#[derive(Clone, Copy, Debug)]
struct Rules {
    put_if_absent: bool,
    read_next_after_repeat: bool,
    read_start_after_put: bool,
    list_after_claim: bool,
    recommit_all: bool,
    declined_rows_travel: bool,
    generation_in_names: bool,
    job_in_names: bool,
    sweep_only_lower: bool,
    commit_before_sweep: bool,
    reuse_after_durable_entry: bool,
    only_committed_is_told: bool,
    generation_entries_stay: bool,
    uncommitted_entries_stay: bool,
    own_files_in_flight_stay: bool,
}

const ALL: Rules = Rules {
    put_if_absent: true,
    read_next_after_repeat: true,
    read_start_after_put: true,
    list_after_claim: true,
    recommit_all: true,
    declined_rows_travel: true,
    generation_in_names: true,
    job_in_names: true,
    sweep_only_lower: true,
    commit_before_sweep: true,
    reuse_after_durable_entry: true,
    only_committed_is_told: true,
    generation_entries_stay: true,
    uncommitted_entries_stay: true,
    own_files_in_flight_stay: true,
};

/// What is checked: how much of what.
#[derive(Clone, Copy, Debug)]
struct Config {
    rules: Rules,
    kind: Kind,
    incarnations: u8,
    records: u8,
    num_retained: u8,
    budget: Budget,
}

const NOTHING: Budget = Budget { faults: 0, declines: 0, collections: 0, tells: 0, wipes: 0, from: 0 };
const BASE: Config = Config { rules: ALL, kind: Kind::TestsAndSets, incarnations: 2, records: 3, num_retained: 1, budget: NOTHING };

impl Model for Config {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.initial()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.enabled(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        self.step(last, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(DOUBLED, |_, state| none_doubled(state)),
            Property::always(LOST, none_lost),
            Property::always(UNTRUE, |_, state| committed_is_true(state)),
            Property::always(MISSING, files_exist),
            Property::always(MISLED, |_, state: &State| !state.misled),
            Property::always("the job can be started again", |_, state| Config::can_restart(state)),
            Property::sometimes("all records are visible", |_, state: &State| {
                state.external.visible.iter().any(|job| job.iter().all(|count| *count == 1))
            }),
        ]
    }
}

const DOUBLED: &str = "no record is visible more often than allowed";
const LOST: &str = "every record of a completed checkpoint is visible or can be committed";
const UNTRUE: &str = "what an entry calls committed is visible";
const MISSING: &str = "the files of every checkpoint that can be restored exist";
const MISLED: &str = "no append is called durable after a successor has claimed";

fn none_doubled(state: &State) -> bool {
    let jobs = state.external.visible.iter().zip(state.allowed.iter());
    jobs.into_iter().all(|(visible, allowed)| visible.iter().zip(allowed).all(|(visible, allowed)| visible <= allowed))
}

fn none_lost(config: &Config, state: &State) -> bool {
    let Some(job) = state.job() else { return true };
    let Some(head) = state.head() else {
        return false;
    };
    let position = head.map_or(0, |head| head.position);
    (1..=position).all(|record| {
        let held = state
            .checkpoints()
            .flat_map(|checkpoint| &checkpoint.transactions)
            .any(|transaction| transaction.records.contains(&record) && state.external.is_open(&config.rules, transaction));
        held || state.external.is_visible(job, record)
    })
}

fn committed_is_true(state: &State) -> bool {
    let own = state.journal.values().filter(|record| Some(record.job) == state.job());
    own.filter_map(|record| match &record.content {
        Content::Checkpoint(checkpoint) => Some((record.job, checkpoint.committed_position)),
        Content::Committed { position, .. } => Some((record.job, *position)),
        _ => None,
    })
    .all(|(job, position)| (1..=position).all(|record| state.external.is_visible(job, record)))
}

fn files_exist(config: &Config, state: &State) -> bool {
    let Some(newest) = state.checkpoints().next_back() else {
        return true;
    };
    state.checkpoints().filter(|checkpoint| newest.retained.contains(&checkpoint.id)).all(|checkpoint| {
        checkpoint.files.iter().all(|file| {
            // The content must be that of the generation named in the entry.
            let writer = state.files.get(&State::file_name(&config.rules, *file));
            writer.is_some_and(|n| {
                let writer = &state.incarnations[usize::from(*n)];
                (writer.job, writer.generation) == (file.job, file.generation)
            })
        })
    })
}

/// Searches everything, for both sinks.
fn holds(name: &str, config: Config) {
    for kind in [Kind::TestsAndSets, Kind::ByName] {
        let checker = Config { kind, ..config }.checker().spawn_bfs().join();
        println!("{name}, {kind:?}: {} states, depth {}", checker.unique_state_count(), checker.max_depth());
        checker.assert_properties();
    }
}

/// Finds the fault of a rule that was taken out.
fn fails(name: &str, config: Config, properties: &[&'static str]) {
    let found = HasDiscoveries::AnyOf(properties.iter().copied().collect());
    let checker = config.checker().finish_when(found).timeout(Duration::from_secs(240)).spawn_bfs().join();
    let discoveries = checker.discoveries();
    let path = properties.iter().find_map(|property| discoveries.get(property));
    let Some(path) = path else {
        panic!("{name}: not found in {} states; {:?}", checker.unique_state_count(), discoveries.keys());
    };
    println!(
        "{name}: {} states, {} steps: {:?}",
        checker.unique_state_count(),
        path.clone().into_actions().len(),
        path.clone().into_actions()
    );
}

#[test]
fn zombies_and_declined_checkpoints() {
    holds("zombies", Config { budget: Budget { declines: 2, ..NOTHING }, ..BASE });
}

#[test]
fn lost_and_late_puts() {
    holds("puts", Config { records: 2, budget: Budget { faults: 2, ..NOTHING }, ..BASE });
}

#[test]
fn three_incarnations() {
    holds("three", Config { incarnations: 3, records: 2, ..BASE });
}

#[test]
fn collection_by_anyone() {
    holds("collection", Config { budget: Budget { collections: 1, ..NOTHING }, ..BASE });
}

#[test]
fn collection_and_late_puts() {
    holds("collection and puts", Config { records: 2, budget: Budget { collections: 1, faults: 1, ..NOTHING }, ..BASE });
}

#[test]
fn collection_and_failed_uploads() {
    holds("collection and uploads", Config { records: 2, budget: Budget { collections: 1, declines: 1, ..NOTHING }, ..BASE });
}

#[test]
fn restore_of_an_older_checkpoint() {
    let budget = Budget { from: 1, ..NOTHING };
    holds("from", Config { num_retained: 2, budget, ..BASE });
}

#[test]
fn an_emptied_store() {
    holds("wiped", Config { records: 2, budget: Budget { wipes: 1, ..NOTHING }, ..BASE });
}

#[test]
fn entries_that_tell_what_is_committed() {
    let budget = Budget { tells: 1, faults: 1, ..NOTHING };
    holds("tells", Config { records: 2, budget, ..BASE });
    let budget = Budget { tells: 1, collections: 1, ..NOTHING };
    holds("tells and a collection", Config { records: 2, budget, ..BASE });
    let budget = Budget { tells: 1, from: 1, ..NOTHING };
    holds("tells and from", Config { num_retained: 2, records: 2, budget, ..BASE });
    let budget = Budget { tells: 1, wipes: 1, ..NOTHING };
    holds("tells, wiped", Config { records: 2, budget, ..BASE });
}

/// The same with more of everything: some minutes and gigabytes, in a release build.
/// `cargo test --release -p semel-checkpoint --test model -- --ignored --nocapture --test-threads 1`
#[test]
#[ignore = "minutes; see the comment"]
fn more_of_everything() {
    let all = Budget { faults: 1, declines: 1, collections: 1, tells: 1, wipes: 0, from: 0 };
    let wiped = Budget { wipes: 1, collections: 1, faults: 1, ..NOTHING };
    holds("wiped, with puts and a collection", Config { records: 2, budget: wiped, ..BASE });
    holds("all at once", Config { records: 2, budget: all, ..BASE });
    holds("two collections", Config { budget: Budget { collections: 2, ..NOTHING }, ..BASE });
    holds("three incarnations and puts", Config { incarnations: 3, records: 2, budget: Budget { faults: 1, ..NOTHING }, ..BASE });
    holds("three incarnations, a collection", Config { incarnations: 3, records: 2, budget: Budget { collections: 1, ..NOTHING }, ..BASE });
    let budget = Budget { from: 1, collections: 1, ..NOTHING };
    holds("from and a collection", Config { num_retained: 2, budget, ..BASE });
}

#[test]
fn without_put_if_absent_zombies_append() {
    let rules = Rules { put_if_absent: false, ..ALL };
    fails("put_if_absent", Config { rules, ..BASE }, &[DOUBLED, LOST]);
}

#[test]
fn without_reading_the_next_number_a_repeated_put_fills_a_hole() {
    let rules = Rules { read_next_after_repeat: false, ..ALL };
    let budget = Budget { faults: 1, collections: 1, ..NOTHING };
    fails("read_next_after_repeat", Config { rules, budget, ..BASE }, &[MISLED]);
}

#[test]
fn without_reading_its_start_a_zombie_goes_on_in_an_emptied_store() {
    let rules = Rules { read_start_after_put: false, ..ALL };
    let budget = Budget { wipes: 1, ..NOTHING };
    fails("read_start_after_put", Config { rules, records: 2, budget, ..BASE }, &[DOUBLED]);
}

#[test]
fn without_listing_after_a_claim_a_frozen_claimer_starts() {
    let rules = Rules { list_after_claim: false, ..ALL };
    let budget = Budget { collections: 1, ..NOTHING };
    fails("list_after_claim", Config { rules, budget, ..BASE }, &[DOUBLED, LOST, MISSING]);
}

#[test]
fn without_committing_all_after_committed_rows_are_lost() {
    fails("recommit_all", Config { rules: Rules { recommit_all: false, ..ALL }, ..BASE }, &[LOST]);
}

#[test]
fn without_their_transactions_declined_checkpoints_lose_rows() {
    let rules = Rules { declined_rows_travel: false, ..ALL };
    let budget = Budget { declines: 1, ..NOTHING };
    fails("declined_rows_travel", Config { rules, budget, ..BASE }, &[LOST]);
}

#[test]
fn without_the_generation_in_names_a_zombie_overwrites() {
    let rules = Rules { generation_in_names: false, ..ALL };
    fails("generation_in_names", Config { rules, ..BASE }, &[LOST, MISSING, DOUBLED]);
}

#[test]
fn without_the_job_uuid_in_names_foreign_work_counts_as_done() {
    let rules = Rules { job_in_names: false, ..ALL };
    let budget = Budget { wipes: 1, ..NOTHING };
    fails("job_in_names", Config { rules, budget, kind: Kind::ByName, ..BASE }, &[LOST, UNTRUE]);
}

#[test]
fn sweeping_other_than_lower_generations_ends_a_successors_work() {
    let rules = Rules { sweep_only_lower: false, ..ALL };
    fails("sweep_only_lower", Config { rules, ..BASE }, &[LOST]);
}

#[test]
fn sweeping_before_what_is_pending_is_committed_loses_it() {
    let rules = Rules { commit_before_sweep: false, ..ALL };
    fails("commit_before_sweep", Config { rules, ..BASE }, &[LOST]);
}

#[test]
fn using_an_id_again_once_its_commit_answered_doubles() {
    let rules = Rules { reuse_after_durable_entry: false, ..ALL };
    fails("reuse_after_durable_entry", Config { rules, ..BASE }, &[DOUBLED]);
}

#[test]
fn telling_of_a_checkpoint_before_its_commits_loses_its_rows() {
    let rules = Rules { only_committed_is_told: false, ..ALL };
    let budget = Budget { tells: 1, ..NOTHING };
    fails("only_committed_is_told", Config { rules, budget, ..BASE }, &[LOST, UNTRUE]);
}

#[test]
fn collecting_generation_entries_lets_a_zombie_append() {
    let rules = Rules { generation_entries_stay: false, ..ALL };
    let budget = Budget { collections: 1, ..NOTHING };
    fails("generation_entries_stay", Config { rules, budget, ..BASE }, &[DOUBLED, LOST]);
}

#[test]
fn collecting_uncommitted_entries_loses_their_rows() {
    let rules = Rules { uncommitted_entries_stay: false, ..ALL };
    let budget = Budget { collections: 1, ..NOTHING };
    fails("uncommitted_entries_stay", Config { rules, budget, ..BASE }, &[LOST]);
}

#[test]
fn collecting_files_in_flight_breaks_the_next_entry() {
    let rules = Rules { own_files_in_flight_stay: false, ..ALL };
    let budget = Budget { collections: 1, ..NOTHING };
    fails("own_files_in_flight_stay", Config { rules, budget, ..BASE }, &[MISSING]);
}
