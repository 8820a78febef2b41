//! Whom it was told last how faults stand, and of which nodes it is still to be told. Pure: time is an argument.
//!
//! A new session or reign is owed how everything stands that has not cleared, and what has cleared as far as it is not sure
//! that the hub has heard of it. A hub that asks is owed all.

use std::{collections::BTreeSet, time::Duration};

use gpuheal_proto::{ids::NodeUid, time::Timestamp};

/// Of a process before this one nobody knows when it died and what it had told by then: what has cleared within the hour is
/// told by the next. A spoke that is down for longer has people looking at it.
const CLEARED_KEPT: Duration = Duration::from_secs(3600);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Telling {
    /// Reign and session.
    audience: Option<(u64, u64)>,
    owed: BTreeSet<NodeUid>,
    /// What has cleared since then is owed, whoever has heard of it; nothing: what nobody may have heard.
    cleared: Option<Timestamp>,
    /// The session that asked for all: whoever leads in it owes it all, also one who led later than it asked.
    asked: Option<u64>,
}

impl Telling {
    /// Whether this is another audience than the last; it is taken as that from now on.
    pub(super) fn begins(&mut self, audience: (u64, u64), now: Timestamp) -> bool {
        let before = self.audience.replace(audience);
        if before == Some(audience) {
            return false;
        }
        let asked = self.asked == Some(audience.1);
        self.cleared = if asked { Some(Timestamp::EPOCH) } else { before.is_none().then(|| now.before(CLEARED_KEPT)) };
        true
    }

    /// These nodes are to be told.
    pub(super) fn owe(&mut self, nodes: Vec<NodeUid>) {
        self.owed.extend(nodes);
    }

    /// This session asks for all: these nodes are to be told with all that has ever cleared.
    pub(super) fn owe_all(&mut self, session: u64, nodes: Vec<NodeUid>) {
        (self.cleared, self.asked) = (Some(Timestamp::EPOCH), Some(session));
        self.owe(nodes);
    }

    pub(super) fn owes_nothing(&self) -> bool {
        self.owed.is_empty()
    }

    /// The next node, and since when what has cleared counts.
    pub(super) fn next(&mut self) -> Option<(NodeUid, Option<Timestamp>)> {
        Some((self.owed.pop_first()?, self.cleared))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_audience_begins_once_and_only_a_process_that_starts_looks_back() {
        let now = Timestamp::from_unix_ms(7_200_000);
        let node = || vec![NodeUid::parse("u").unwrap()];
        let mut telling = Telling::default();
        for (audience, begins, cleared) in [
            ((1, 1), true, Some(Some(Timestamp::from_unix_ms(3_600_000)))),
            ((1, 1), false, None),
            ((1, 2), true, Some(None)),
            ((2, 2), true, Some(None)),
        ] {
            assert_eq!(telling.begins(audience, now), begins, "{audience:?}");
            if begins {
                telling.owe(node());
            }
            assert_eq!(telling.next().map(|(_, cleared)| cleared), cleared, "{audience:?}");
        }
        telling.owe_all(2, node());
        assert_eq!(telling.next().unwrap().1, Some(Timestamp::EPOCH), "who asks is told all");
    }

    #[test]
    fn who_asks_before_it_was_told_anything_or_before_this_replica_leads_is_told_all() {
        let node = || vec![NodeUid::parse("u").unwrap()];
        let mut telling = Telling::default();
        telling.owe_all(5, node());
        for (audience, cleared) in [((1, 5), Some(Timestamp::EPOCH)), ((3, 5), Some(Timestamp::EPOCH)), ((3, 6), None)] {
            assert!(telling.begins(audience, Timestamp::from_unix_ms(7_200_000)));
            telling.owe(node());
            assert_eq!(telling.next().unwrap().1, cleared, "{audience:?}");
        }
    }
}
