//! What must be seen before a release. Never absence: each fault's own source must be fresh and show it clear for the
//! soak, the rows of GPUs must equal the inventory, and nothing new may have come. Or a person's word.

use std::time::Duration;

use gpuheal_proto::{
    fault::{FaultClass, Witness},
    time::Timestamp,
    words::Level,
};

use super::judge::Judged;
use crate::{
    gpu::same_place,
    policy::Settings,
    snapshot::{EvidenceState, Incident, KnownFault, Snapshot},
};

/// A cluster says every 30 s at the latest that nothing changed, and up to when all that it saw was told. One that did not
/// for three times as long may have seen its faults come back: what was clear then is no longer fresh.
const HEARD_WITHIN: Duration = Duration::from_secs(90);
/// When to look again at a cluster that was not heard of: its next word comes within it.
const WORD_WITHIN: Duration = Duration::from_secs(30);

/// Whether the trouble is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Recovery {
    /// It is, and why.
    Over(String),
    /// Not yet; when to look again, if time alone may end it.
    NotYet { reason: String, recheck_at: Option<Timestamp> },
}

impl Recovery {
    fn not_yet(reason: impl Into<String>, recheck_at: Option<Timestamp>) -> Self {
        Self::NotYet { reason: reason.into(), recheck_at }
    }
}

/// Judges the open incident. A `bare` one has left nothing on the node: its end is no release and needs no leave.
pub(super) fn recovery(
    snapshot: &Snapshot,
    incident: &Incident,
    judged: &[Judged<'_>],
    settings: &Settings,
    now: Timestamp,
    bare: bool,
) -> Recovery {
    if !settings.recovery.automatic && !bare {
        return Recovery::not_yet("the policy leaves releases to people", None);
    }
    if incident.fault_keys.is_empty() {
        return Recovery::not_yet("no fault tells when it is over: waits for a person", None);
    }
    let known: Vec<&KnownFault> =
        incident.fault_keys.iter().filter_map(|key| snapshot.faults.iter().find(|f| f.key == *key)).collect();
    if known.len() < incident.fault_keys.len() {
        let lacking = incident.fault_keys.len() - known.len();
        return Recovery::not_yet(format!("{lacking} of its faults have no evidence at all, and absence is not health"), None);
    }
    let holding = holding(judged, &known);
    let mut clear_at = Timestamp::EPOCH;
    for one in &holding {
        match one.fault.evidence.state {
            EvidenceState::Clear => clear_at = clear_at.max(one.fault.evidence.since.after(settings.recovery.soak)),
            EvidenceState::Seen => return Recovery::not_yet(format!("{} is still seen", one.name()), None),
            EvidenceState::Stale => return Recovery::not_yet(format!("the source of {} is silent", one.name()), None),
        }
    }
    if let Some(reason) = rows_lacking(snapshot, settings) {
        return Recovery::not_yet(reason, None);
    }
    let minutes = settings.recovery.soak.as_secs() / 60;
    if holding.is_empty() {
        let last = known.iter().map(|fault| fault.last_at).max().unwrap_or(incident.opened_at);
        clear_at = last.after(settings.recovery.soak);
    }
    if now < clear_at {
        return Recovery::not_yet(format!("clear, and watched for {minutes} min until {clear_at}"), Some(clear_at));
    }
    // What left nothing on the node, and waits for no fault, has nothing to be undone too early.
    let needs_no_word = bare && holding.is_empty();
    if let Some(reason) = unheard(snapshot, now).filter(|_| !needs_no_word) {
        return Recovery::not_yet(reason, Some(now.after(WORD_WITHIN)));
    }
    if holding.is_empty() {
        return Recovery::Over(format!("only the applications' own errors or P2, and none of them within {minutes} min"));
    }
    let names: Vec<String> = holding.iter().map(|one| one.name()).collect();
    Recovery::Over(format!("{} clear by their own sources for {minutes} min", names.join(", ")))
}

/// The faults that a release waits for: those that could have led to the mark, of this incident or come since. An alert's
/// end is only a hint, so one that may say what a better witness says too does not hold; one of another GPU does, and so
/// does one of another kind: that a GPU is cool again tells nothing of its Xid.
fn holding<'a, 'b>(judged: &'a [Judged<'b>], known: &[&KnownFault]) -> Vec<&'a Judged<'b>> {
    let ours = |one: &Judged<'_>| known.iter().any(|fault| fault.key == one.fault.key);
    let heavy = |one: &&Judged<'_>| one.classified.level > Level::P2 && !one.classified.user_app && (ours(one) || one.live());
    let heavy: Vec<_> = judged.iter().filter(heavy).collect();
    let same = |alert: &KnownFault, other: &KnownFault| may_be_of_one_gpu(alert, other) && may_be_of_one_kind(alert, other);
    let better = |alert: &KnownFault| heavy.iter().any(|one| !only_alerts(one.fault) && same(alert, one.fault));
    heavy.iter().copied().filter(|one| !(only_alerts(one.fault) && better(one.fault))).collect()
}

/// Of one GPU, or one of them names none.
fn may_be_of_one_gpu(one: &KnownFault, other: &KnownFault) -> bool {
    one.gpu.as_ref().zip(other.gpu.as_ref()).and_then(|(one, other)| same_place(one, other)) != Some(false)
}

/// Of one class, or an alert that names none.
fn may_be_of_one_kind(alert: &KnownFault, other: &KnownFault) -> bool {
    alert.class == other.class || alert.class == FaultClass::Alert
}

/// Clear by a source of which nobody has heard lately is not clear for the soak; nor is it while faults that were found may
/// wait in a journal, or a new leader has not looked yet.
fn unheard(snapshot: &Snapshot, now: Timestamp) -> Option<String> {
    let cluster = &snapshot.cluster.id;
    match snapshot.cluster.observer.told_upto {
        None => Some(format!("clear by what is known, but cluster {cluster} has not said yet that all it sees was told")),
        Some(upto) if now.since(upto) > HEARD_WITHIN => {
            Some(format!("clear when cluster {cluster} had last told all that it sees, at {upto}: not heard of since"))
        }
        Some(_) => None,
    }
}

fn only_alerts(fault: &KnownFault) -> bool {
    fault.witnesses.iter().all(|seen| seen.kind == Witness::Alert)
}

fn rows_lacking(snapshot: &Snapshot, settings: &Settings) -> Option<String> {
    let (rows, inventory) = (snapshot.node.gpus.len(), snapshot.node.capacity_gpus);
    let lacking = settings.recovery.row_count && (rows as u64) < u64::from(inventory);
    lacking.then(|| format!("rows of {rows} GPUs are seen, the node has {inventory}"))
}
