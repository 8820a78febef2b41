//! One look at one GPU: what the detectors report through, with who is asked and about what.

use gpuheal_proto::fault::{FaultClass, GpuRef, NodeRef, Onset, Witness};

use super::super::known::{Context, Faults, Found};
use super::super::outcome::EvidenceState;

pub(super) struct Look<'l, 'c> {
    pub(super) node: &'l NodeRef,
    pub(super) known: &'l mut Faults,
    pub(super) gpu: &'l GpuRef,
    /// The place that it has left empty: what this GPU does not show any more is over there too.
    pub(super) left: Option<GpuRef>,
    pub(super) source: &'l str,
    pub(super) workload: &'l str,
    pub(super) context: &'l mut Context<'c>,
    /// What GPUs without slot and UUID do not show: they share keys, so it is settled once all of them were looked at.
    pub(super) later: &'l mut Vec<Unseen>,
}

/// A fault that one GPU does not show.
#[derive(Clone, Debug)]
pub(super) struct Unseen {
    class: FaultClass,
    code: String,
    witness: Witness,
    state: EvidenceState,
}

/// Takes in what no GPU of the page showed.
pub(super) fn settle_later(known: &mut Faults, later: Vec<Unseen>, context: &mut Context<'_>) {
    for Unseen { class, code, witness, state } in later {
        let shown =
            known.find(class, &code, None).any(|fault| fault.sights.get(&witness).is_some_and(|sight| sight.last < context.now));
        if shown {
            known.unseen(class, &code, None, witness, state, context);
        }
    }
}

/// What was seen, beside what the look knows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen<'a> {
    pub(super) class: FaultClass,
    pub(super) code: &'a str,
    pub(super) onset: Onset,
    pub(super) witness: Witness,
    pub(super) value: f64,
    pub(super) threshold: f64,
    pub(super) count: Option<u32>,
    pub(super) detail: &'a str,
}

impl<'a> Seen<'a> {
    pub(super) const fn new(class: FaultClass, code: &'a str, onset: Onset, witness: Witness, value: f64) -> Self {
        Self { class, code, onset, witness, value, threshold: 0.0, count: Some(1), detail: "" }
    }
}

impl Look<'_, '_> {
    pub(super) fn seen(&mut self, seen: Seen<'_>) {
        let Seen { class, code, onset, witness, value, threshold, count, detail } = seen;
        let (gpu, source, workload) = (Some(self.gpu), self.source, self.workload);
        let found = Found { class, code, gpu, onset, witness, value, threshold, count, source, detail, workload };
        self.known.report(self.node, &found, self.context);
    }

    pub(super) fn unseen(&mut self, class: FaultClass, code: &str, witness: Witness, state: EvidenceState) {
        if self.gpu.is_placed() {
            self.known.unseen(class, code, Some(self.gpu), witness, state, self.context);
        } else if self.known.find(class, code, None).next().is_some() {
            self.later.push(Unseen { class, code: code.to_owned(), witness, state });
        }
    }

    pub(super) fn clear(&mut self, class: FaultClass, code: &str, witness: Witness) {
        self.unseen(class, code, witness, EvidenceState::Clear);
        if self.left.is_some() {
            self.known.unseen(class, code, self.left.as_ref(), witness, EvidenceState::Clear, self.context);
        }
    }

    /// The source said again what it said before.
    pub(super) fn still(&mut self, class: FaultClass, code: &str, witness: Witness) {
        for sight in self.known.find(class, code, Some(self.gpu)).filter_map(|known| known.sights.get_mut(&witness)) {
            sight.checked = self.context.now;
        }
    }

    pub(super) fn is_known(&mut self, class: FaultClass, code: &str) -> bool {
        self.known.find(class, code, Some(self.gpu)).next().is_some()
    }
}
