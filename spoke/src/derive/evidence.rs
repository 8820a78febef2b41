//! How known faults stand, gathered for a second: the last word about each key counts. Bounded: the oldest key goes when
//! a cluster has more known faults than any hub could use.
//!
//! Nobody acks evidence, and what went into a stream that was dead already is lost. That a fault is seen or stale is told
//! again as long as it is; that one has cleared is told once, so such words are remembered until the session that carried
//! them has outlived every way in which they could have been lost, and told again in the next one if it has not.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use gpuheal_proto::{
    ids::FaultKey,
    limits::{DEAD_AFTER, EVIDENCE_MAX},
    link::v1,
};
use gpuheal_spoke_core::derive::Evidence;

/// Most keys that wait: what 40 full messages carry, which is 40 s. As many are remembered as told and not sure.
const KEYS_MAX: usize = 40 * EVIDENCE_MAX;
/// A word that was told in a session that still lives so much later has arrived: a dead stream ends after 45 s, and a hub
/// that cannot keep it gives up after 30 s, for it and for each of at most 5 messages before it: 225 s.
const ARRIVED_AFTER: Duration = Duration::from_secs(DEAD_AFTER.as_secs() + 6 * 30);
/// Of a process before this one nobody knows when it died and what it had told by then: what has cleared within the hour is
/// told by the next. A spoke that is down for longer has people looking at it.
pub(super) const CLEARED_KEPT: Duration = Duration::from_secs(3600);

/// Evidence on its way.
#[derive(Debug, Default)]
pub(super) struct Pending {
    items: BTreeMap<FaultKey, v1::Evidence>,
    /// Words that a fault has cleared, with the time since boot at which each was told.
    unsure: BTreeMap<FaultKey, Duration>,
}

impl Pending {
    /// Takes evidence; a later word about a key replaces the earlier.
    pub(super) fn put(&mut self, evidence: &[Evidence]) {
        for item in evidence {
            if self.items.len() >= KEYS_MAX && !self.items.contains_key(&item.key) {
                self.items.pop_first();
            }
            self.items.insert(item.key, item.into());
        }
    }

    /// The next message.
    pub(super) fn next(&mut self, now: Duration) -> Option<v1::EvidenceBatch> {
        let mut items = Vec::new();
        while items.len() < EVIDENCE_MAX
            && let Some((key, item)) = self.items.pop_first()
        {
            self.remember(key, item.state(), now);
            items.push(item);
        }
        (!items.is_empty()).then_some(v1::EvidenceBatch { items })
    }

    fn remember(&mut self, key: FaultKey, state: v1::EvidenceState, now: Duration) {
        if state != v1::EvidenceState::Clear {
            self.unsure.remove(&key);
            return;
        }
        if self.unsure.len() >= KEYS_MAX {
            self.unsure.pop_first();
        }
        self.unsure.insert(key, now);
    }

    /// The session lives: what was told in it long ago has arrived.
    pub(super) fn lives(&mut self, now: Duration) {
        let waits = &self.items;
        self.unsure.retain(|key, told| waits.contains_key(key) || now.saturating_sub(*told) < ARRIVED_AFTER);
    }

    /// Keys of which it is not sure that the hub has heard that they have cleared.
    pub(super) fn unsure(&self) -> BTreeSet<FaultKey> {
        self.unsure.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use gpuheal_proto::time::Timestamp;
    use gpuheal_spoke_core::derive::EvidenceState;

    use super::*;

    fn evidence(key: u8, state: EvidenceState) -> Evidence {
        let key = FaultKey::parse(&format!("{key:02x}").repeat(32)).unwrap();
        Evidence { key, state, first: Timestamp::EPOCH, last: Timestamp::EPOCH, count: 1 }
    }

    #[test]
    fn that_a_fault_has_cleared_is_remembered_until_its_session_has_outlived_every_loss() {
        let (clear, seen) = (evidence(1, EvidenceState::Clear), evidence(2, EvidenceState::Seen));
        let mut pending = Pending::default();
        pending.put(&[clear, seen]);
        let told = Duration::from_secs(1000);
        assert_eq!(pending.next(told).unwrap().items.len(), 2);
        pending.lives(told + ARRIVED_AFTER - Duration::from_secs(1));
        assert_eq!(pending.unsure(), [clear.key].into());
        // The session ended, and another tells it again: it is as unsure as before.
        pending.put(&[clear]);
        pending.lives(told + ARRIVED_AFTER * 2);
        assert_eq!(pending.unsure(), [clear.key].into(), "it waits to be told");
        assert_eq!(pending.next(told + ARRIVED_AFTER * 2).unwrap().items.len(), 1);
        pending.lives(told + ARRIVED_AFTER * 3);
        assert!(pending.unsure().is_empty());
    }

    #[test]
    fn what_is_seen_again_is_not_remembered_as_cleared() {
        let mut pending = Pending::default();
        for state in [EvidenceState::Clear, EvidenceState::Seen] {
            pending.put(&[evidence(1, state)]);
            assert!(pending.next(Duration::ZERO).is_some());
        }
        assert!(pending.unsure().is_empty());
    }
}
