//! The decision table, row by row.
#![allow(clippy::unwrap_used)]
use super::*;
use crate::Committed;
use crate::client::TopicPartition;

fn transaction(epoch: i16) -> KafkaTransaction {
    KafkaTransaction {
        transactional_id: "p-00000000-s-1-0-0".to_owned(),
        producer_id: 7,
        epoch,
        partitions: [("out".to_owned(), [0, 2].into())].into(),
        end_version: 5,
        rows: 10,
        ..KafkaTransaction::default()
    }
}

fn described(state: TransactionState, producer_id: i64, epoch: i16) -> TransactionDescription {
    TransactionDescription {
        transactional_id: "p-00000000-s-1-0-0".to_owned(),
        code: ErrorCode::NONE,
        state,
        producer_id,
        epoch,
        timeout_ms: 1000,
        start_ms: -1,
        partitions: Vec::new(),
    }
}

fn failed(code: ErrorCode) -> TransactionDescription {
    TransactionDescription { code, ..described(TransactionState::Empty, -1, -1) }
}

fn is_lost(decision: Decision) -> bool {
    matches!(decision, Decision::Lost { .. })
}

fn is_undecidable(decision: Decision) -> bool {
    matches!(decision, Decision::Undecidable { .. })
}

fn is_stop(decision: Decision) -> bool {
    matches!(decision, Decision::Stop { .. })
}

#[test]
fn none_is_the_proof_of_a_commit() {
    assert_eq!(commit_answered(&transaction(3), Answer::Code(ErrorCode(0))), Decision::Committed(Committed::Now));
    assert_eq!(commit_answered(&transaction(LAST_EPOCH), Answer::Code(ErrorCode(0))), Decision::Committed(Committed::Now));
}

#[test]
fn a_silent_or_busy_coordinator_is_asked_again() {
    for answer in [
        Answer::Nothing,
        Answer::Code(ErrorCode(51)),
        Answer::Code(ErrorCode(14)),
        Answer::Code(ErrorCode(7)),
        Answer::Code(ErrorCode(13)),
        Answer::Code(ErrorCode(-1)),
    ] {
        assert_eq!(commit_answered(&transaction(3), answer), Decision::RetryAfter, "{answer:?}");
        assert_eq!(abort_answered(&transaction(3), answer), Decision::RetryAfter, "{answer:?}");
    }
    for code in [15, 16] {
        assert_eq!(commit_answered(&transaction(3), Answer::Code(ErrorCode(code))), Decision::FindCoordinator);
    }
}

#[test]
fn refusals_that_depend_on_the_state_are_decided_by_describe() {
    for code in [48, 90, 47, 49, 120] {
        assert_eq!(commit_answered(&transaction(3), Answer::Code(ErrorCode(code))), Decision::AskDescribe, "{code}");
        assert_eq!(abort_answered(&transaction(3), Answer::Code(ErrorCode(code))), Decision::AskDescribe, "{code}");
    }
}

#[test]
fn configuration_stops_loudly_and_names_the_remedy() {
    let Decision::Stop { why } = commit_answered(&transaction(3), Answer::Code(ErrorCode(53))) else { panic!() };
    assert!(why.contains("kafka-acls.sh") && why.contains("--transactional-id"), "{why}");
    assert!(is_stop(commit_answered(&transaction(3), Answer::Code(ErrorCode(35)))));
    assert!(is_stop(commit_answered(&transaction(3), Answer::Code(ErrorCode(42)))));
}

#[test]
fn invalid_state_48_after_a_timeout_or_an_abort_is_a_loss() {
    // Timed out, or aborted by EndTxn v5: the epoch is one higher.
    assert!(is_lost(commit_described(&transaction(3), ErrorCode(48), &described(TransactionState::CompleteAbort, 7, 4))));
    // Aborted by EndTxn v3: the epoch is the same.
    assert!(is_lost(commit_described(&transaction(3), ErrorCode(48), &described(TransactionState::CompleteAbort, 7, 3))));
    // At the end of the epoch range the next one is epoch 0 of another producer id.
    assert!(is_lost(commit_described(&transaction(LAST_EPOCH), ErrorCode(48), &described(TransactionState::CompleteAbort, 8, 0))));
    assert!(is_lost(commit_described(&transaction(LAST_EPOCH), ErrorCode(48), &described(TransactionState::CompleteAbort, 7, i16::MAX))));
}

#[test]
fn invalid_state_48_with_a_commit_at_the_same_epoch_was_committed_by_somebody_with_an_older_end() {
    let decision = commit_described(&transaction(3), ErrorCode(48), &described(TransactionState::CompleteCommit, 7, 3));
    assert_eq!(decision, Decision::Committed(Committed::Already));
}

#[test]
fn invalid_state_48_with_nothing_begun_is_a_fault() {
    assert!(is_stop(commit_described(&transaction(3), ErrorCode(48), &described(TransactionState::Empty, 7, 3))));
}

#[test]
fn fenced_is_a_loss_only_where_the_abort_of_the_very_next_epoch_is_seen() {
    for code in [90, 47, 49] {
        assert!(is_lost(commit_described(&transaction(3), ErrorCode(code), &described(TransactionState::CompleteAbort, 7, 4))), "{code}");
        // The same picture two epochs on can be the abort of a later transaction.
        assert!(
            is_undecidable(commit_described(&transaction(3), ErrorCode(code), &described(TransactionState::CompleteAbort, 7, 5))),
            "{code}"
        );
        assert!(is_undecidable(commit_described(&transaction(3), ErrorCode(code), &described(TransactionState::Empty, 7, 4))), "{code}");
        assert!(is_undecidable(commit_described(&transaction(3), ErrorCode(code), &described(TransactionState::Ongoing, 7, 4))), "{code}");
        assert!(
            is_undecidable(commit_described(&transaction(3), ErrorCode(code), &described(TransactionState::CompleteCommit, 7, 4))),
            "{code}"
        );
        assert!(
            is_undecidable(commit_described(&transaction(3), ErrorCode(code), &described(TransactionState::CompleteCommit, 7, 3))),
            "{code}"
        );
        assert!(
            is_undecidable(commit_described(&transaction(3), ErrorCode(code), &described(TransactionState::CompleteAbort, 9, 0))),
            "{code}"
        );
        assert!(
            is_undecidable(commit_described(&transaction(LAST_EPOCH), ErrorCode(code), &described(TransactionState::CompleteAbort, 9, 0))),
            "{code}"
        );
    }
}

#[test]
fn an_expired_id_is_undecidable_not_committed_and_not_retried_for_ever() {
    let gone = failed(ErrorCode::TRANSACTIONAL_ID_NOT_FOUND);
    assert!(is_undecidable(commit_described(&transaction(3), ErrorCode(49), &gone)));
    // To abort what does not exist is done.
    assert_eq!(abort_described(&transaction(3), &gone), Decision::Aborted);
}

#[test]
fn a_state_in_between_is_asked_again() {
    let unknown = TransactionState::Other("New".to_owned());
    for state in [TransactionState::PrepareCommit, TransactionState::PrepareAbort, TransactionState::PrepareEpochFence, unknown] {
        for epoch in [3, 4] {
            assert_eq!(commit_described(&transaction(3), ErrorCode(48), &described(state.clone(), 7, epoch)), Decision::RetryAfter);
            assert_eq!(abort_described(&transaction(3), &described(state.clone(), 7, epoch)), Decision::RetryAfter);
        }
    }
    let moved = failed(ErrorCode::NOT_COORDINATOR);
    assert_eq!(commit_described(&transaction(3), ErrorCode(48), &moved), Decision::FindCoordinator);
    let loading = failed(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS);
    assert_eq!(commit_described(&transaction(3), ErrorCode(48), &loading), Decision::RetryAfter);
    let forbidden = failed(ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED);
    assert!(is_stop(commit_described(&transaction(3), ErrorCode(48), &forbidden)));
}

#[test]
fn no_description_makes_an_unproven_commit_a_success() {
    // The only success without NONE is the one above: 48, CompleteCommit, the same producer id and epoch.
    use TransactionState::*;
    for answered in [48, 90, 47, 49, 120] {
        for state in [Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort, Dead] {
            for producer_id in [7, 8] {
                for epoch in [0, 2, 3, 4, 5] {
                    let decision = commit_described(&transaction(3), ErrorCode(answered), &described(state.clone(), producer_id, epoch));
                    let allowed = answered == 48 && state == CompleteCommit && producer_id == 7 && epoch == 3;
                    assert_eq!(matches!(decision, Decision::Committed(_)), allowed, "{answered} {state:?} {producer_id} {epoch}");
                }
            }
        }
    }
}

#[test]
fn an_abort_reports_what_it_came_too_late_for() {
    for (producer_id, epoch) in [(7, 3), (7, 4)] {
        let decision = abort_described(&transaction(3), &described(TransactionState::CompleteCommit, producer_id, epoch));
        assert_eq!(decision, Decision::Committed(Committed::Already));
    }
    assert_eq!(abort_described(&transaction(3), &described(TransactionState::CompleteAbort, 7, 4)), Decision::Aborted);
    assert_eq!(abort_described(&transaction(3), &described(TransactionState::Ongoing, 7, 9)), Decision::Aborted);
    assert_eq!(abort_described(&transaction(3), &described(TransactionState::Ongoing, 7, 3)), Decision::RetryAfter);
}

#[test]
fn pre_commit_needs_our_transaction_open_with_every_partition() {
    let with = |description: TransactionDescription, partitions: &[i32]| TransactionDescription {
        partitions: partitions.iter().map(|id| TopicPartition::new("out", *id)).collect(),
        ..description
    };
    let open = described(TransactionState::Ongoing, 7, 3);
    assert_eq!(pre_commit_described(&transaction(3), &with(open.clone(), &[0, 2, 5])), Ok(()));
    let Err(Decision::Stop { why }) = pre_commit_described(&transaction(3), &with(open.clone(), &[0])) else { panic!() };
    assert!(why.contains("out-2"), "{why}");
    for wrong in [
        described(TransactionState::CompleteAbort, 7, 4),
        described(TransactionState::Empty, 7, 3),
        // The previous transaction of a fresh epoch: looks committed, is not ours.
        described(TransactionState::CompleteCommit, 7, 3),
        described(TransactionState::Ongoing, 7, 4),
        described(TransactionState::Ongoing, 8, 3),
    ] {
        let wrong = with(wrong, &[0, 2]);
        assert!(matches!(pre_commit_described(&transaction(3), &wrong), Err(Decision::Stop { .. })), "{wrong:?}");
    }
    assert_eq!(pre_commit_described(&transaction(3), &failed(ErrorCode::NOT_COORDINATOR)), Err(Decision::FindCoordinator));
}
