//! What is told again, and how: at a new session or reign what the hub has not acked, and when its database may have lost
//! commits, which shows as a risen term or as a request for the open commands, also what it had acked. Only the hub knows
//! which of it is news; what it knows changes nothing there.

use std::{sync::Arc, time::Duration};

use super::Reports;
use crate::{
    healaction::{HealAction, is_final},
    ports::Audience,
};

/// Outcomes that are told though they were acked, the newest: a HealAction stays a day after its command has run out, so
/// that these are two days of 2,000 commands each. At about 2 KiB a status with its command they are 8 MiB, and at a commit
/// of 5 ms each 20 s of a hub's work.
const ACKED_MAX: usize = 4096;
/// So many go at once.
const BATCH: usize = 64;
/// Then others have their turn: 640 a second at most.
const BETWEEN: Duration = Duration::from_millis(100);
/// What is not acked by then is told again. A hub that takes a cluster over takes no command before the cluster's nodes are there,
/// which a second sees done for 5,000 of them; at 640 a second three more are 1,920 commands that are held, more than a storm has.
pub const RETELL: Duration = Duration::from_secs(4);

/// What is to be told again: what is under way, then what is over and held, then history, each in the order of the commands: a cluster
/// is taken over once the first two are there. `forgetful`: also what the hub had acked.
#[must_use]
pub(crate) fn again(mut all: Vec<Arc<HealAction>>, forgetful: bool) -> Vec<Told> {
    // Ids of commands are in the order of their making.
    all.sort_by(|one, other| (!one.held(), is_final(one), one.id()).cmp(&(!other.held(), is_final(other), other.id())));
    let finals = all.iter().filter(|action| is_final(action) && !action.held()).count();
    let mut passed_over = finals.saturating_sub(ACKED_MAX);
    let mut told = Vec::new();
    for action in all {
        if action.held() {
            told.push(Told { action, anew: forgetful });
        } else if forgetful && is_final(&action) {
            if passed_over > 0 {
                passed_over -= 1;
            } else {
                told.push(Told { action, anew: true });
            }
        }
    }
    told
}

/// What a hub asked for by name, acked or not.
#[must_use]
pub(crate) fn asked(found: Vec<Arc<HealAction>>) -> Vec<Told> {
    found.into_iter().map(|action| Told { action, anew: true }).collect()
}

/// One that is told again.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) action: Arc<HealAction>,
    /// Even if its ack is known.
    pub(super) anew: bool,
}

/// Tells them, and what this audience has not acked once more `every` so often: it may have been too early for it.
pub(crate) async fn tell_until_acked(
    reports: &Reports,
    (to, every): (Audience, Duration),
    told: Vec<Told>,
    now: impl Fn(&str) -> Option<Arc<HealAction>>,
    lives: impl Fn() -> bool,
) {
    let acked = async {
        loop {
            tokio::time::sleep(every).await;
            let owed = reports.owed_to(to);
            if owed.is_empty() || !lives() {
                return;
            }
            let (there, gone): (Vec<_>, Vec<_>) =
                owed.into_iter().map(|id| (now(&id), id)).partition(|(action, _)| action.is_some());
            gone.iter().for_each(|(_, id)| reports.forgive(id));
            tell_again(reports, asked(there.into_iter().filter_map(|(action, _)| action).collect()), &lives).await;
        }
    };
    let (held, history) = told.into_iter().partition(|told| told.action.held());
    tell_again(reports, held, &lives).await;
    tokio::join!(tell_again(reports, history, &lives), acked);
}

/// Tells them, a batch at a time, while the session for which this was asked lives.
pub(crate) async fn tell_again(reports: &Reports, told: Vec<Told>, lives: impl Fn() -> bool) {
    for (at, batch) in told.chunks(BATCH).enumerate() {
        if at > 0 {
            tokio::time::sleep(BETWEEN).await;
        }
        if !lives() {
            return;
        }
        for Told { action, anew } in batch {
            if *anew {
                reports.answer_whole(action).await;
            } else {
                reports.tell(action).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::healaction::{HealActionSpec, HealActionStatus};

    fn action(id: usize, held: bool, state: &str) -> Arc<HealAction> {
        let mut action = HealAction::named(&format!("{id:06}"), "ns", HealActionSpec::default());
        action.status = Some(HealActionStatus { state: state.into(), status_seq: 2, ..HealActionStatus::default() });
        if !held {
            action.metadata.finalizers = None;
        }
        Arc::new(action)
    }

    fn ids(told: &[Told]) -> Vec<usize> {
        told.iter().map(|told| told.action.id().parse().unwrap()).collect()
    }

    #[test]
    fn what_was_acked_and_let_go_is_told_again_only_to_a_hub_that_may_have_lost_it() {
        let all = || vec![action(3, true, "STARTED"), action(1, false, "SUCCEEDED"), action(2, true, "FAILED")];
        assert_eq!(ids(&again(all(), false)), [3, 2], "what is under way first");
        assert_eq!(ids(&again(all(), true)), [3, 2, 1], "history last");
    }

    #[test]
    fn of_what_was_acked_only_the_newest_are_told_and_all_that_is_still_held() {
        let mut all: Vec<_> = (1..=ACKED_MAX + 10).map(|id| action(id, false, "SUCCEEDED")).collect();
        all.push(action(0, true, "SUCCEEDED"));
        let told = ids(&again(all, true));
        assert_eq!((told.len(), told[0], told[1]), (ACKED_MAX + 1, 0, 11));
    }

    #[tokio::test]
    async fn who_is_told_again_is_told_what_it_acked_and_nothing_once_its_session_is_over() {
        let (up, mut down) = tokio::sync::mpsc::channel(8);
        let reports = Reports::new(up);
        reports.ack("000001", 2, 1);
        tell_again(&reports, again(vec![action(1, true, "SUCCEEDED")], false), || true).await;
        tell_again(&reports, again(vec![action(1, true, "SUCCEEDED")], true), || false).await;
        assert!(down.try_recv().is_err());
        let mut lost = HealAction::clone(&action(1, true, "SUCCEEDED"));
        lost.spec.envelope = "c2lnbmVk".into();
        tell_again(&reports, again(vec![Arc::new(lost)], true), || true).await;
        let told = down.try_recv().unwrap();
        assert_eq!((told.command_id.as_str(), &told.envelope[..]), ("000001", &b"signed"[..]), "as it was signed");
    }

    /// Failure table, row 18: a hub takes a cluster over only once its nodes are there, and acks no command before.
    #[tokio::test]
    async fn what_is_held_is_told_as_it_stands_until_it_is_acked_and_what_a_person_deletes_is_owed_no_more() {
        let (up, mut down) = tokio::sync::mpsc::channel(64);
        let (reports, to) = (Reports::new(up), Audience { reign: 1, session: 7, asked_term: 2 });
        let (one, two, history) = (action(1, true, "STARTED"), action(2, true, "FAILED"), action(3, false, "SUCCEEDED"));
        let mut later = HealAction::clone(&one);
        later.status.as_mut().unwrap().status_seq = 3;
        let told = again(vec![one, two, history], true);
        reports.owes(to, &told);
        let now = |id: &str| (id == "000001").then(|| Arc::new(later.clone()));
        let telling = tell_until_acked(&reports, (to, Duration::from_millis(20)), told, now, || true);
        let hub = async {
            for expected in [("000001", 2), ("000002", 2), ("000003", 2), ("000001", 3), ("000001", 3)] {
                let status = down.recv().await.unwrap();
                assert_eq!((status.command_id.as_str(), status.status_seq), expected);
            }
            assert_eq!(reports.whole_for(), None);
            reports.ack("000001", 3, 2);
        };
        tokio::join!(telling, hub);
        assert_eq!(reports.whole_for(), Some(to), "the second is gone, and nobody waits for history");
    }
}
