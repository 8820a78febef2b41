//! How known faults stand, gathered for a second: the last word about each key counts. Bounded: the oldest key goes when
//! a cluster has more known faults than any hub could use.

use std::collections::BTreeMap;

use gpuheal_proto::{ids::FaultKey, limits::EVIDENCE_MAX, link::v1};
use gpuheal_spoke_core::derive::Evidence;

/// Most keys that wait: what 40 full messages carry, which is 40 s.
const KEYS_MAX: usize = 40 * EVIDENCE_MAX;

/// Evidence on its way.
#[derive(Debug, Default)]
pub(super) struct Pending {
    items: BTreeMap<FaultKey, v1::Evidence>,
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
    pub(super) fn next(&mut self) -> Option<v1::EvidenceBatch> {
        let mut items = Vec::new();
        while items.len() < EVIDENCE_MAX
            && let Some((_, item)) = self.items.pop_first()
        {
            items.push(item);
        }
        (!items.is_empty()).then_some(v1::EvidenceBatch { items })
    }
}
