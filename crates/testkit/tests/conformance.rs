//! The conformance kit can fail: a correct sink passes, and each wrong one is found, with the reason.
#![allow(clippy::unwrap_used)]

#[path = "conformance/memory.rs"]
mod memory;

use memory::{Memory, Wrong};
use semel_testkit::conformance;
use std::panic::AssertUnwindSafe;

/// What the kit says of a sink; `None`: it passes.
fn verdict(wrong: Option<Wrong>) -> Option<String> {
    let outcome = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        std::panic::catch_unwind(AssertUnwindSafe(|| runtime.block_on(conformance::run(&Memory::new(wrong)))))
    });
    let panic = outcome.join().unwrap().err()?;
    let text = panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    Some(text.unwrap_or_default())
}

/// Whether the kit finds this fault, in this scene and with these words.
fn found(wrong: Wrong, expected: &[&str]) {
    let verdict = verdict(Some(wrong)).unwrap_or_else(|| panic!("{wrong:?} passes"));
    println!("{wrong:?}: {verdict}");
    assert!(expected.iter().all(|words| verdict.contains(words)), "{wrong:?}: {verdict}");
}

#[test]
fn a_correct_sink_passes() {
    assert_eq!(verdict(None), None);
}

#[test]
fn rows_that_are_visible_before_the_commit() {
    found(Wrong::VisibleAtInvoke, &["every crash point", "at Written", "visible but not committed ["]);
    found(Wrong::VisibleAtPreCommit, &["every crash point", "at HalfPreCommitted", "visible but not committed ["]);
}

#[test]
fn a_drop_that_commits() {
    found(Wrong::CommitsOnDrop, &["every crash point", "visible but not committed ["]);
}

#[test]
fn rows_that_were_not_flushed() {
    found(Wrong::FlushesLate, &["lost ["]);
}

#[test]
fn a_commit_that_is_not_idempotent() {
    found(Wrong::CommitsTwice, &["every crash point", "doubled ["]);
}

#[test]
fn a_recovery_that_sweeps_first() {
    found(Wrong::SweepsFirst, &["recover: transaction lost"]);
    found(Wrong::SweepsFirstAndIsContent, &["lost ["]);
}

#[test]
fn a_recovery_that_commits_only_the_newest_entry() {
    found(Wrong::CommitsNewestOnly, &["several pending entries", "lost ["]);
}

#[test]
fn a_sweep_that_ends_nothing() {
    found(Wrong::SweepsNothing, &["still open"]);
}

#[test]
fn a_sweep_that_ends_a_successors_transactions() {
    found(Wrong::SweepsAllGenerations, &["zombies", "commit"]);
}

#[test]
fn names_without_the_generation() {
    found(Wrong::NoGenerationInNames, &["zombies"]);
}

#[test]
fn sweeps_that_do_not_look_at_the_job_or_take_a_prefix_for_a_name() {
    found(Wrong::NoJobInSweep, &["strangers", "commit: transaction lost"]);
    found(Wrong::SweepsByPrefix, &["strangers", "commit: transaction lost"]);
}

#[test]
fn a_name_that_is_used_again_once_its_commit_is_answered() {
    found(Wrong::ReusesAtCommit, &["every crash point", "visible but not committed ["]);
}

#[test]
fn an_unknown_commit_that_is_called_a_success() {
    found(Wrong::CallsLostCommitted, &["lost transactions", "must fail with Lost, not Ok(Already)"]);
}

#[test]
fn a_permit_that_is_compared_with_equality() {
    found(Wrong::PermitMustBeEqual, &["declined checkpoints"]);
}

#[test]
fn a_checkpoint_that_waits_for_the_commit_before_it() {
    found(Wrong::OneAtATime, &["begin_transaction: waits for the commit"]);
}
