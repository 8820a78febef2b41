//! How known faults stand, gathered for a second: the last word about each key counts. Bounded: the oldest key goes when
//! a cluster has more known faults than any hub could use.
//!
//! Nobody acks evidence, and what went into a stream that was dead already is lost. That a fault is seen or stale is told
//! again as long as it is; that one has cleared is told once, so such words are remembered until the session that carried
//! them has outlived every way in which they could have been lost, and told again in the next one if it has not.

use std::{collections::BTreeMap, time::Duration};

use gpuheal_proto::{
    ids::FaultKey,
    limits::{DEAD_AFTER, EVIDENCE_MAX},
    link::v1,
};
use gpuheal_spoke_core::derive::{Evidence, EvidenceState};

/// Most keys that wait: what 40 full messages carry, which is 40 s. As many are remembered as told and not sure.
const KEYS_MAX: usize = 40 * EVIDENCE_MAX;
/// A word that was told in a session that still lives so much later has arrived: a dead stream ends after 45 s, and a hub
/// that cannot keep it gives up after 30 s, for it and for each of at most 5 messages before it: 225 s.
const ARRIVED_AFTER: Duration = Duration::from_secs(DEAD_AFTER.as_secs() + 6 * 30);

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

    /// All that waits is about to be told anew as it then stands.
    pub(super) fn begin(&mut self) {
        let cleared = |(key, item): (FaultKey, v1::Evidence)| (item.state() == v1::EvidenceState::Clear).then_some(key);
        for key in std::mem::take(&mut self.items).into_iter().filter_map(cleared) {
            self.remember(key, v1::EvidenceState::Clear, Duration::ZERO);
        }
    }

    /// As [`Self::put`], but for what has cleared and the hub is sure to have heard.
    pub(super) fn put_unheard(&mut self, evidence: &[Evidence]) {
        let unheard = |item: &&Evidence| item.state != EvidenceState::Clear || self.unsure.contains_key(&item.key);
        let unheard: Vec<Evidence> = evidence.iter().filter(unheard).copied().collect();
        self.put(&unheard);
    }

    /// Less than a message waits.
    pub(super) fn has_room(&self) -> bool {
        self.items.len() < EVIDENCE_MAX
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuheal_proto::time::Timestamp;

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
        // The session ended, and another tells it again: it is as unsure as before.
        pending.put_unheard(&[clear]);
        pending.lives(told + ARRIVED_AFTER * 2);
        assert_eq!(pending.next(told + ARRIVED_AFTER * 2).unwrap().items.len(), 1);
        pending.put_unheard(&[clear]);
        assert_eq!(pending.next(told + ARRIVED_AFTER * 2).unwrap().items.len(), 1);
        pending.lives(told + ARRIVED_AFTER * 3);
        pending.put_unheard(&[clear, seen]);
        assert_eq!(pending.next(told + ARRIVED_AFTER * 3).unwrap().items.len(), 1, "what is seen is told to everybody");
    }

    #[test]
    fn what_is_seen_again_is_not_remembered_as_cleared() {
        let mut pending = Pending::default();
        for state in [EvidenceState::Clear, EvidenceState::Seen] {
            pending.put(&[evidence(1, state)]);
            assert!(pending.next(Duration::ZERO).is_some());
        }
        pending.put_unheard(&[evidence(1, EvidenceState::Clear)]);
        assert!(pending.next(Duration::ZERO).is_none());
    }
}
