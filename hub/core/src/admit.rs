//! Pure: what one more sight of a fault is, given what is known of it. The hub numbers episodes: a new one only after
//! the last was settled and something new was seen. A repeat changes nothing.

use std::{collections::BTreeMap, time::Duration};

use gpuheal_proto::{
    fault::{Fault, Onset},
    time::Timestamp,
};

use crate::snapshot::{EvidenceState, Seen};

/// Everybody who saw a fault, by the word of its kind.
pub type Witnesses = BTreeMap<String, Seen>;

/// How often a repeat that tells nothing new is written down as the last sight. One write per fault and 5 s is what a
/// row may cost; decisions measure silence in minutes.
const REPEAT: Duration = Duration::from_secs(5);

/// What the store knows of a fault's latest episode.
#[derive(Clone, Debug, PartialEq)]
pub struct Known {
    /// Its number.
    pub episode: u32,
    /// An incident that held it has closed.
    pub settled: bool,
    /// Edge once any sight was.
    pub onset: Onset,
    /// Highest reading.
    pub value: f64,
    /// Highest count.
    pub count: u32,
    /// Which GPU; empty when nobody said.
    pub gpu_uuid: String,
    /// Everybody who saw it.
    pub witnesses: Witnesses,
    /// When it was received last.
    pub last_at: Timestamp,
    /// When the spoke saw it last, by its own clock.
    pub observed_at: Timestamp,
    /// How it stands.
    pub evidence: EvidenceState,
}

/// All sights of one fault in one commit, as one.
#[derive(Clone, Debug, PartialEq)]
pub struct Sight {
    /// The latest of them.
    pub fault: Fault,
    /// Edge if any was.
    pub onset: Onset,
    /// Highest reading.
    pub value: f64,
    /// Highest count.
    pub count: u32,
    /// Everybody who saw it.
    pub witnesses: Witnesses,
}

/// What to do with a sight.
#[derive(Clone, Debug, PartialEq)]
pub enum Admission {
    /// A new episode of this number.
    Opens {
        /// From 1.
        episode: u32,
    },
    /// The known episode gains what the judge must see.
    Gains,
    /// The known episode was seen again: worth a new time of last sight, no new judgement.
    Refreshes,
    /// Nothing that was not known.
    Repeats,
}

impl Sight {
    /// The first sight.
    #[must_use]
    pub fn of(fault: Fault, now: Timestamp) -> Self {
        let seen = Seen {
            kind: fault.witness,
            onset: fault.onset,
            first_at: now,
            last_at: now,
            count: fault.count,
            value: fault.value,
            threshold: fault.threshold,
            source: fault.source.clone(),
            detail: fault.detail.clone(),
        };
        let witnesses = [(fault.witness.as_str().to_owned(), seen)].into();
        Self { onset: fault.onset, value: fault.value, count: fault.count, witnesses, fault }
    }

    /// With a later sight of the same fault.
    #[must_use]
    pub fn and(mut self, later: Self) -> Self {
        self.onset = self.onset.max(later.onset);
        self.value = self.value.max(later.value);
        self.count = self.count.max(later.count);
        merge(&mut self.witnesses, later.witnesses);
        self.fault = later.fault;
        self
    }

    /// What this sight is.
    #[must_use]
    pub fn admit(&self, known: Option<&Known>, now: Timestamp) -> Admission {
        match known {
            None => Admission::Opens { episode: 1 },
            Some(known) if known.settled && self.begins_again(known) => Admission::Opens { episode: known.episode + 1 },
            Some(known) if self.tells_more(known) => Admission::Gains,
            Some(known) if now.since(known.last_at) >= REPEAT => Admission::Refreshes,
            Some(_) => Admission::Repeats,
        }
    }

    /// A change that was seen, later than all that is known; or a fault that stands though its own source had shown it
    /// gone. A settled fault that still stands is not new: a person may have released its node knowing it.
    fn begins_again(&self, known: &Known) -> bool {
        match self.onset {
            Onset::Edge => self.fault.observed_at > known.observed_at,
            Onset::Standing => known.evidence == EvidenceState::Clear,
        }
    }

    fn tells_more(&self, known: &Known) -> bool {
        let named = self.fault.gpu.as_ref().is_some_and(|gpu| gpu.uuid.is_some());
        self.onset > known.onset
            || self.count > known.count
            || known.evidence != EvidenceState::Seen
            || (named && known.gpu_uuid.is_empty())
            || self.witnesses.iter().any(|(kind, seen)| known.witnesses.get(kind).is_none_or(|before| seen.onset > before.onset))
    }

    /// Together with what was known of the same episode.
    #[must_use]
    pub fn onto(mut self, known: Known) -> Self {
        self.onset = self.onset.max(known.onset);
        self.value = self.value.max(known.value);
        self.count = self.count.max(known.count);
        let mut witnesses = known.witnesses;
        merge(&mut witnesses, self.witnesses);
        self.witnesses = witnesses;
        self
    }
}

/// The first time is kept, the last reading wins, an edge stays one, counts only rise.
fn merge(into: &mut Witnesses, later: Witnesses) {
    for (kind, seen) in later {
        match into.get_mut(&kind) {
            None => {
                into.insert(kind, seen);
            }
            Some(before) => {
                *before = Seen {
                    first_at: before.first_at,
                    onset: before.onset.max(seen.onset),
                    count: before.count.max(seen.count),
                    ..seen
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuheal_proto::{
        fault::{FaultClass, NodeRef, Witness},
        ids::{ClusterId, FaultKey, NodeName, NodeUid},
    };

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_unix_ms(ms)
    }

    fn fault(onset: Onset, witness: Witness, observed: i64) -> Fault {
        let node = NodeRef { name: NodeName::parse("n1").unwrap(), uid: NodeUid::parse("u1").unwrap(), boot_id: String::new() };
        Fault {
            key: FaultKey::derive(&ClusterId::parse("c1").unwrap(), &node.uid, None, "xid", "79"),
            node,
            gpu: None,
            class: FaultClass::Xid,
            code: "79".into(),
            onset,
            witness,
            observed_at: at(observed),
            value: 79.0,
            threshold: 0.0,
            count: 1,
            source: "exporter".into(),
            detail: String::new(),
            workload: String::new(),
        }
    }

    fn known(settled: bool, evidence: EvidenceState) -> Known {
        let sight = Sight::of(fault(Onset::Edge, Witness::ExporterGauge, 100), at(100));
        Known {
            episode: 1,
            settled,
            onset: sight.onset,
            value: sight.value,
            count: sight.count,
            gpu_uuid: String::new(),
            witnesses: sight.witnesses,
            last_at: at(100),
            observed_at: at(100),
            evidence,
        }
    }

    #[test]
    fn the_same_sight_again_changes_nothing() {
        let again = Sight::of(fault(Onset::Edge, Witness::ExporterGauge, 200), at(200));
        assert_eq!(again.admit(Some(&known(false, EvidenceState::Seen)), at(200)), Admission::Repeats);
        assert_eq!(again.admit(Some(&known(false, EvidenceState::Seen)), at(100_000)), Admission::Refreshes);
    }

    #[test]
    fn a_second_kind_of_witness_and_a_higher_count_are_worth_a_judgement() {
        let other = Sight::of(fault(Onset::Standing, Witness::Allocatable, 200), at(200));
        assert_eq!(other.admit(Some(&known(false, EvidenceState::Seen)), at(200)), Admission::Gains);
        let mut more = fault(Onset::Edge, Witness::ExporterGauge, 200);
        more.count = 5;
        assert_eq!(Sight::of(more, at(200)).admit(Some(&known(false, EvidenceState::Seen)), at(200)), Admission::Gains);
    }

    #[test]
    fn a_new_episode_needs_the_last_one_settled_and_something_new() {
        let edge = Sight::of(fault(Onset::Edge, Witness::ExporterGauge, 200), at(200));
        assert_eq!(edge.admit(Some(&known(false, EvidenceState::Clear)), at(200)), Admission::Gains, "not settled");
        assert_eq!(edge.admit(Some(&known(true, EvidenceState::Seen)), at(200)), Admission::Opens { episode: 2 });
        let replayed = Sight::of(fault(Onset::Edge, Witness::ExporterGauge, 100), at(200));
        assert_eq!(
            replayed.admit(Some(&known(true, EvidenceState::Seen)), at(200)),
            Admission::Repeats,
            "the very edge that is known"
        );
    }

    #[test]
    fn a_fault_that_still_stands_after_its_release_is_not_new() {
        let standing = Sight::of(fault(Onset::Standing, Witness::ExporterGauge, 200), at(200));
        assert_eq!(standing.admit(Some(&known(true, EvidenceState::Seen)), at(200)), Admission::Repeats);
        assert_eq!(
            standing.admit(Some(&known(true, EvidenceState::Clear)), at(200)),
            Admission::Opens { episode: 2 },
            "it had been gone"
        );
    }

    #[test]
    fn witnesses_keep_their_first_time_and_the_last_reading() {
        let one = Sight::of(fault(Onset::Standing, Witness::ExporterGauge, 100), at(100));
        let two = Sight::of(Fault { value: 80.0, ..fault(Onset::Edge, Witness::ExporterGauge, 200) }, at(200));
        let both = one.and(two);
        let seen = &both.witnesses["exporter_gauge"];
        assert_eq!((seen.first_at, seen.last_at, seen.onset, seen.value), (at(100), at(200), Onset::Edge, 80.0));
        assert_eq!(both.onset, Onset::Edge);
    }
}
