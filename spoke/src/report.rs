//! What the hub is told: a CommandStatus made from a HealAction, which is the only truth of it, so that whichever replica
//! leads tells the same. An outcome is told again at each new session until the hub has acked it, and whatever was acked
//! once more to a hub whose database may have lost that ([`again`]); nothing is repeated inside a live session else. One
//! that our watch shows and nobody here has told, since the answer to its write was lost, is told as soon as it shows. A
//! refusal that leaves no trace, and bytes that did not verify, are told once. What is only on its way is told after a
//! moment, and not at all when the outcome comes first: each status costs the hub a commit.

mod again;
mod owed;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use gpuheal_proto::{
    bytes_text::clip,
    command::{CommandState, Refusal},
    limits::REASON_BYTES_MAX,
    link::v1,
};
use gpuheal_spoke_core::verify::Refused;
use tokio::sync::mpsc;

use crate::{
    clock,
    healaction::{self, HealAction, PodRecord, StepRecord},
    link::fits,
    ports::Audience,
};

pub use again::RETELL;
pub(crate) use again::{Told, again, asked, tell_again, tell_until_acked};
pub use owed::Owed;

/// Pods of one step that are told; the rest is in the HealAction.
const PODS_MAX: usize = 256;
/// Commands of which it is remembered what was told and acked: above what stays in a cluster for a day of storms.
const KNOWN_MAX: usize = 65_536;

/// How long a status that ends nothing waits for the next one to take its place. A mark is over by then: its command costs
/// the hub one commit instead of two. The hub's own deadlines are minutes.
const GATHER: Duration = Duration::from_millis(25);

/// The way to the hub.
#[derive(Clone, Debug)]
pub struct Reports {
    up: mpsc::Sender<v1::CommandStatus>,
    known: Arc<Mutex<BTreeMap<String, Known>>>,
    /// Statuses that end nothing and wait to be told, by command: one each, and no more commands than run at once.
    gathering: Arc<Mutex<BTreeMap<String, v1::CommandStatus>>>,
    owed: Arc<Mutex<Owed>>,
}

/// Of one command: the highest number of a status that was told, and that the hub has committed.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    told: u64,
    acked: u64,
}

impl Reports {
    /// Tells through this channel.
    #[must_use]
    pub fn new(up: mpsc::Sender<v1::CommandStatus>) -> Self {
        Self { up, known: Arc::default(), gathering: Arc::default(), owed: Arc::default() }
    }

    /// Tells how an action stands, unless the hub has acked that already.
    #[tracing::instrument(name = "spoke.report", skip_all, fields(command.id = action.id()))]
    pub async fn tell(&self, action: &HealAction) {
        if self.acked(action) {
            return;
        }
        self.will_tell(action);
        let (id, status) = (action.id(), self.status(action));
        if healaction::is_final(action) {
            self.gathering().remove(id);
            self.send(status).await;
        } else if self.gathering().insert(id.to_owned(), status).is_none() {
            tokio::spawn(self.clone().tell_soon(id.to_owned()));
        }
    }

    async fn tell_soon(self, id: String) {
        tokio::time::sleep(GATHER).await;
        let gathered = self.gathering().remove(&id);
        if let Some(status) = gathered {
            self.send(status).await;
        }
    }

    /// Tells how an action stands to a hub that asked.
    pub async fn answer(&self, action: &HealAction) {
        self.will_tell(action);
        self.send(self.status(action)).await;
    }

    /// Tells a hub that may have lost it: with the command as it was signed, so that it can take it over.
    pub(crate) async fn answer_whole(&self, action: &HealAction) {
        self.send(whole(action)).await;
    }

    /// Tells that a command is refused and leaves no trace.
    pub async fn not_now(&self, command_id: String, refused: &Refused) {
        self.send(refusal(command_id, String::new(), v1::CommandState::NotNow, refused)).await;
    }

    /// Tells that bytes are refused whose id cannot be believed: by their hash.
    pub async fn unverifiable(&self, sha256: String, refused: &Refused) {
        self.send(refusal(String::new(), sha256, v1::CommandState::Refused, refused)).await;
    }

    /// The hub has committed a status under an epoch of its database.
    pub fn ack(&self, id: &str, seq: u64, term: u64) {
        if self.owed().ack(id, seq, term) {
            self.note(id, |known| known.acked = known.acked.max(seq));
        }
    }

    /// Whether the hub has committed the latest status of an action.
    #[must_use]
    pub fn acked(&self, action: &HealAction) -> bool {
        self.known().get(action.id()).is_some_and(|known| known.acked >= healaction::seq(action))
    }

    /// Whether the latest status of an action was told by this process at all.
    #[must_use]
    pub(crate) fn told(&self, action: &HealAction) -> bool {
        self.known().get(action.id()).is_some_and(|known| known.told.max(known.acked) >= healaction::seq(action))
    }

    /// Its latest status is about to be told.
    pub(crate) fn will_tell(&self, action: &HealAction) {
        self.note(action.id(), |known| known.told = known.told.max(healaction::seq(action)));
    }

    /// These are about to be told to an audience that is told all again: who has acked those of them that are held knows all.
    pub(crate) fn owes(&self, audience: Audience, told: &[Told]) {
        let held = told.iter().filter(|told| told.action.held());
        let unheard = held.filter(|told| told.anew || !self.acked(&told.action));
        let statuses = unheard.map(|told| (told.action.id().to_owned(), healaction::seq(&told.action))).collect();
        self.owed().begin(audience, statuses);
    }

    /// The audience that has acked all that was told again to it.
    pub(crate) fn whole_for(&self) -> Option<Audience> {
        self.owed().whole_for()
    }

    /// What it has not acked of it.
    fn owed_to(&self, audience: Audience) -> Vec<String> {
        self.owed().owed_to(audience)
    }

    /// Nobody can tell of it any more: a person deleted it.
    fn forgive(&self, id: &str) {
        self.owed().forgive(id);
    }

    /// How an action stands; for a hub that may never have had the command, with the bytes that were signed, so that it can
    /// take it over.
    fn status(&self, action: &HealAction) -> v1::CommandStatus {
        if self.owed().is_owed(action.id()) { whole(action) } else { status(action) }
    }

    fn note(&self, id: &str, write: impl FnOnce(&mut Known)) {
        let mut all = self.known();
        if all.len() >= KNOWN_MAX && !all.contains_key(id) {
            all.pop_first();
        }
        write(all.entry(id.to_owned()).or_default());
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.known.lock().expect("no holder of this lock panics")
    }

    fn owed(&self) -> MutexGuard<'_, Owed> {
        self.owed.lock().expect("no holder of this lock panics")
    }

    fn gathering(&self) -> MutexGuard<'_, BTreeMap<String, v1::CommandStatus>> {
        self.gathering.lock().expect("no holder of this lock panics")
    }

    async fn send(&self, status: v1::CommandStatus) {
        if self.up.send(sendable(status)).await.is_err() {
            tracing::debug!("link is gone, status is told at the next session");
        }
    }
}

/// A status that can be sent: one over the limit leaves out first what is told of each pod, then of each step, and in the end
/// all but how the command stands. A hub that never heard the outcome would count its node as out for ever.
fn sendable(mut status: v1::CommandStatus) -> v1::CommandStatus {
    let leave_out: [fn(&mut v1::CommandStatus); 3] = [
        |status| status.steps.iter_mut().for_each(|step| step.pods.clear()),
        |status| status.steps.clear(),
        |status| (status.envelope, status.undo) = Default::default(),
    ];
    for (left_out, what) in ["pods", "steps", "command and undo record"].into_iter().zip(leave_out) {
        let Err(error) = fits(&status) else { return status };
        tracing::error!(command.id = %status.command_id, %error, left_out, "a status is told in short, its HealAction has the rest");
        what(&mut status);
    }
    status
}

fn refusal(command_id: String, envelope_sha256: String, state: v1::CommandState, refused: &Refused) -> v1::CommandStatus {
    v1::CommandStatus {
        command_id,
        envelope_sha256,
        state: state.into(),
        refusal: v1::RefusalCode::from(refused.refusal).into(),
        reason: refused.reason.clone(),
        at_unix_ms: clock::wall().unix_ms(),
        ..v1::CommandStatus::default()
    }
}

fn whole(action: &HealAction) -> v1::CommandStatus {
    v1::CommandStatus { envelope: healaction::envelope_bytes(action).unwrap_or_default().into(), ..status(action) }
}

/// A HealAction as the hub is told of it.
#[must_use]
pub fn status(action: &HealAction) -> v1::CommandStatus {
    let status = healaction::status_of(action);
    let (refusal, reason) = match &action.spec.tombstone {
        Some(tombstone) => (tombstone.refusal.as_str(), tombstone.reason.as_str()),
        None => (status.refusal.as_str(), status.outcome.as_str()),
    };
    let undo = healaction::undo_of(action);
    v1::CommandStatus {
        command_id: action.id().to_owned(),
        envelope_sha256: healaction::envelope_bytes(action)
            .map(|bytes| gpuheal_spoke_core::verify::fingerprint(&bytes))
            .unwrap_or_default(),
        status_seq: healaction::seq(action),
        state: wire_state(healaction::state(action)).into(),
        refusal: refusal_code(refusal).map_or(0, |refusal| v1::RefusalCode::from(refusal).into()),
        reason: clip(reason, REASON_BYTES_MAX).to_owned(),
        steps: status.steps.iter().map(step).collect(),
        undo: (!undo.fields.is_empty()).then(|| (&undo).into()),
        lease_transitions: healaction::reign(action),
        at_unix_ms: clock::wall().unix_ms(),
        ..v1::CommandStatus::default()
    }
}

/// The refusal of a code as it is written in a HealAction.
fn refusal_code(text: &str) -> Option<Refusal> {
    Refusal::parse(text)
}

const fn wire_state(state: CommandState) -> v1::CommandState {
    match state {
        CommandState::Proposed | CommandState::AwaitingApproval | CommandState::Signed | CommandState::Dispatched => {
            v1::CommandState::Unspecified
        }
        CommandState::Received => v1::CommandState::Received,
        CommandState::Started => v1::CommandState::Started,
        CommandState::Succeeded => v1::CommandState::Succeeded,
        CommandState::Failed => v1::CommandState::Failed,
        CommandState::Unknown => v1::CommandState::Unknown,
        CommandState::Refused | CommandState::Expired => v1::CommandState::Refused,
        CommandState::Cancelled => v1::CommandState::Cancelled,
    }
}

fn step(step: &StepRecord) -> v1::StepStatus {
    let state = match step.state.as_str() {
        "pending" => v1::StepState::Pending,
        "running" => v1::StepState::Running,
        "done" => v1::StepState::Done,
        "failed" => v1::StepState::Failed,
        "skipped" => v1::StepState::Skipped,
        _ => v1::StepState::Unspecified,
    };
    v1::StepStatus {
        name: step.name.clone(),
        state: state.into(),
        message: clip(&step.message, REASON_BYTES_MAX).to_owned(),
        started_unix_ms: step.started_unix_ms,
        finished_unix_ms: step.finished_unix_ms,
        pods: step.pods.iter().take(PODS_MAX).map(pod).collect(),
    }
}

fn pod(pod: &PodRecord) -> v1::PodStatus {
    v1::PodStatus {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        state: pod.state.clone(),
        reason: pod.reason.clone(),
        eviction_calls: pod.eviction_calls,
        past_budget: pod.past_budget,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::healaction::{HealActionSpec, HealActionStatus, Tombstone};

    fn action(status: Option<HealActionStatus>) -> HealAction {
        let mut action = HealAction::named("id", "ns", HealActionSpec::default());
        action.status = status;
        action
    }

    #[test]
    fn an_intent_alone_is_told_as_received_number_one() {
        let told = status(&action(None));
        assert_eq!((told.state(), told.status_seq), (v1::CommandState::Received, 1));
    }

    #[test]
    fn a_tombstone_is_told_as_refused_with_its_code_and_reason() {
        let mut action = action(None);
        action.spec.tombstone =
            Some(Tombstone { state: "REFUSED".into(), refusal: "OVER_CEILING".into(), reason: "3 of 10 GPU nodes are out".into() });
        let told = status(&action);
        assert_eq!((told.state(), told.refusal()), (v1::CommandState::Refused, v1::RefusalCode::OverCeiling));
        assert_eq!(told.reason, "3 of 10 GPU nodes are out");
    }

    fn at(state: &str, seq: u64) -> HealAction {
        action(Some(HealActionStatus { state: state.into(), status_seq: seq, ..HealActionStatus::default() }))
    }

    #[tokio::test]
    async fn an_outcome_over_the_limit_is_told_in_short_and_not_kept_back() {
        let (up, mut down) = mpsc::channel(1);
        let reports = Reports::new(up);
        let long = |bytes: usize| "x".repeat(bytes);
        let pod = || PodRecord { name: long(5000), ..PodRecord::default() };
        let step = StepRecord { name: "evict".into(), pods: vec![pod(); PODS_MAX], ..StepRecord::default() };
        let mut over = at("SUCCEEDED", 3);
        over.status.as_mut().unwrap().steps = vec![step];
        reports.tell(&over).await;
        let told = down.recv().await.unwrap();
        assert_eq!((told.state(), told.status_seq), (v1::CommandState::Succeeded, 3));
        assert_eq!((told.steps.len(), told.steps[0].pods.len()), (1, 0), "as much as there is room for");
        let name = || StepRecord { name: long(5000), ..StepRecord::default() };
        over.status.as_mut().unwrap().steps = vec![name(); 400];
        reports.tell(&over).await;
        let told = down.recv().await.unwrap();
        assert_eq!((told.state(), told.steps.len()), (v1::CommandState::Succeeded, 0));
    }

    #[tokio::test]
    async fn an_acked_status_is_not_told_again_and_a_newer_one_is() {
        let (up, mut down) = mpsc::channel(8);
        let reports = Reports::new(up);
        reports.tell(&at("STARTED", 2)).await;
        assert_eq!(down.recv().await.unwrap().status_seq, 2);
        reports.ack("id", 2, 1);
        reports.tell(&at("STARTED", 2)).await;
        reports.tell(&at("STARTED", 3)).await;
        assert_eq!(down.recv().await.unwrap().status_seq, 3);
        assert!(down.try_recv().is_err());
    }

    #[tokio::test]
    async fn what_was_never_told_is_known_to_be_until_it_is_told_or_acked() {
        let (up, _down) = mpsc::channel(8);
        let reports = Reports::new(up);
        assert!(!reports.told(&at("REFUSED", 1)), "the answer to its write was lost");
        reports.tell(&at("REFUSED", 1)).await;
        assert!(reports.told(&at("REFUSED", 1)) && !reports.told(&at("REFUSED", 2)));
        reports.ack("id", 2, 1);
        assert!(reports.told(&at("REFUSED", 2)));
    }

    #[tokio::test]
    async fn a_command_that_is_over_at_once_is_told_once_with_its_outcome() {
        let (up, mut down) = mpsc::channel(8);
        let reports = Reports::new(up);
        reports.tell(&action(None)).await;
        reports.tell(&at("STARTED", 2)).await;
        reports.tell(&at("SUCCEEDED", 3)).await;
        assert_eq!(down.recv().await.unwrap().state(), v1::CommandState::Succeeded);
        assert!(reports.gathering().is_empty(), "nothing waits to be told after the outcome");
    }

    #[tokio::test]
    async fn a_command_that_takes_its_time_is_told_on_its_way_and_at_its_end() {
        let (up, mut down) = mpsc::channel(8);
        let reports = Reports::new(up);
        reports.tell(&action(None)).await;
        assert_eq!(down.recv().await.unwrap().state(), v1::CommandState::Received);
        reports.tell(&at("FAILED", 2)).await;
        assert_eq!(down.recv().await.unwrap().state(), v1::CommandState::Failed);
    }
}
