//! Pods that came to the node after its drain began, made by owners whose pods are being drained: what makes a drain that
//! never ends. They are not evicted, since no plan names them; they are counted by UID, their owner is named, and once it has
//! come back [`RETURNS_MAX`] times that is told and the node is not called drained while one of them is there.

use std::collections::{BTreeMap, BTreeSet};

use gpuheal_spoke_core::drain::PodFacts;

use super::record::record;
use crate::healaction::PodRecord;

/// From so many new pods on, their owner keeps coming back. One may have been bound before the scheduler saw the taint, and a
/// second be made by a kubelet's refusal of the first, which the faulty GPU explains; nothing explains a third but an owner
/// that tolerates the taint or names the node.
const RETURNS_MAX: usize = 3;
/// New pods that are told apart, per owner: a kubelet that refuses each makes its owner try about once a second at first, and
/// after that less and less; 512 UIDs of 36 bytes are 18 KiB.
const UIDS_MAX: usize = 512;
/// Owners that are watched: a node has 16 GPUs at most, and seven slices of each.
const OWNERS_MAX: usize = 128;

/// All of one drain, by their owner's UID.
#[derive(Debug, Default)]
pub(super) struct Returns(BTreeMap<String, Returned>);

#[derive(Debug)]
struct Returned {
    /// As people know it.
    owner: String,
    seen: BTreeSet<String>,
    /// Those of `seen` that are still on the node, unfinished.
    here: BTreeMap<String, PodFacts>,
    told: bool,
}

impl Returned {
    fn often(&self) -> bool {
        self.seen.len() >= RETURNS_MAX
    }

    fn words(&self) -> String {
        let count = self.seen.len();
        let more = if count == UIDS_MAX { " or more" } else { "" };
        let pods = if count == 1 { "pod" } else { "pods" };
        format!("{count}{more} new {pods} of {}", self.owner)
    }
}

impl Returns {
    pub(super) fn knows(&self, owner_uid: &str) -> bool {
        self.0.contains_key(owner_uid)
    }

    /// A pod of an owner that comes back, as it is now.
    pub(super) fn saw(&mut self, pod: PodFacts) {
        let Some(owner) = &pod.owner else { return };
        let known = self.0.get(&owner.uid);
        let new = known.is_none_or(|returned| !returned.seen.contains(&pod.uid));
        let full = known.map_or(self.0.len() >= OWNERS_MAX, |returned| returned.seen.len() >= UIDS_MAX);
        if new && (pod.deleting || full) {
            return;
        }
        let named = || format!("{} {}/{}", owner.kind, pod.namespace, owner.name);
        let first = || Returned { owner: named(), seen: BTreeSet::new(), here: BTreeMap::new(), told: false };
        let returned = self.0.entry(owner.uid.clone()).or_insert_with(first);
        returned.seen.insert(pod.uid.clone());
        if pod.finished() {
            returned.here.remove(&pod.uid);
        } else {
            returned.here.insert(pod.uid.clone(), pod);
        }
    }

    pub(super) fn left(&mut self, uid: &str) {
        self.0.values_mut().for_each(|returned| drop(returned.here.remove(uid)));
    }

    /// After a new list of the node's pods.
    pub(super) fn listed(&mut self, there: &[String]) {
        self.0.values_mut().for_each(|returned| returned.here.retain(|uid, _| there.contains(uid)));
    }

    /// What to tell people, with the owner's UID, each once.
    pub(super) fn take_told(&mut self) -> Vec<(String, String)> {
        let mut told = Vec::new();
        for (uid, returned) in self.0.iter_mut().filter(|(_, returned)| returned.often() && !returned.told) {
            returned.told = true;
            let words = format!("{} came to this node since its drain began: they are left alone", returned.words());
            told.push((uid.clone(), words));
        }
        told
    }

    /// All of them, in words; empty when there are none.
    pub(super) fn words(&self) -> String {
        self.0.values().map(Returned::words).collect::<Vec<_>>().join(", ")
    }

    /// Owners that keep coming back, and have a pod here now.
    pub(super) fn leftovers(&self) -> Vec<String> {
        let stays = self.0.values().filter(|returned| returned.often() && !returned.here.is_empty());
        stays.map(|returned| format!("{} keeps coming back to it ({})", returned.owner, returned.words())).collect()
    }

    /// Of those that are here.
    pub(super) fn records(&self) -> Vec<PodRecord> {
        let here = self.0.values().flat_map(|returned| returned.here.values().map(|pod| (pod, &returned.owner)));
        let told = |(pod, owner): (&PodFacts, &String)| PodRecord {
            came_later: true,
            ..record(pod, "skipped", format!("came after the drain began: one of {owner}"), 0)
        };
        here.map(told).collect()
    }
}

#[cfg(test)]
mod tests {
    use gpuheal_spoke_core::drain::pod::Owner;

    use super::*;

    fn pod(name: &str) -> PodFacts {
        let owner = Owner { kind: "CloneSet".into(), name: "web".into(), uid: "o1".into() };
        PodFacts { namespace: "ml".into(), name: name.into(), uid: name.into(), owner: Some(owner), ..PodFacts::default() }
    }

    #[test]
    fn one_new_pod_counts_once_however_often_it_is_seen() {
        let mut returns = Returns::default();
        for _ in 0..10 {
            returns.saw(pod("a"));
            returns.saw(PodFacts { phase: "Running".into(), ..pod("a") });
        }
        assert_eq!(returns.words(), "1 new pod of CloneSet ml/web");
        assert!(returns.take_told().is_empty());
        assert!(returns.leftovers().is_empty());
    }

    #[test]
    fn an_owner_whose_pods_keep_coming_back_is_named_and_told_once() {
        let mut returns = Returns::default();
        returns.saw(pod("a"));
        returns.saw(PodFacts { phase: "Failed".into(), ..pod("a") });
        returns.saw(pod("b"));
        returns.left("b");
        assert!(returns.take_told().is_empty());
        returns.saw(pod("c"));
        let told = returns.take_told();
        let words = "3 new pods of CloneSet ml/web came to this node since its drain began: they are left alone";
        assert_eq!(told, [("o1".to_owned(), words.to_owned())]);
        returns.saw(pod("d"));
        assert!(returns.take_told().is_empty(), "once");
        assert_eq!(returns.leftovers(), ["CloneSet ml/web keeps coming back to it (4 new pods of CloneSet ml/web)"]);
        returns.listed(&["c".to_owned()]);
        let records = returns.records();
        assert_eq!(records.len(), 1);
        assert!(records[0].came_later, "{records:?}");
        returns.left("c");
        assert!(returns.leftovers().is_empty(), "none of them is there");
    }

    #[test]
    fn what_was_on_its_way_out_when_first_seen_has_not_come() {
        let mut returns = Returns::default();
        returns.saw(PodFacts { deleting: true, ..pod("a") });
        assert_eq!(returns.words(), "");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut returns = Returns::default();
        for n in 0..2 * UIDS_MAX {
            returns.saw(PodFacts { phase: "Failed".into(), ..pod(&format!("p{n}")) });
        }
        assert_eq!(returns.words(), "512 or more new pods of CloneSet ml/web");
    }
}
