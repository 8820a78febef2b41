//! Commands as the decision plans them: ids and keys from content, moments from now, and a plan revision above every one
//! that was given out for the node. The plan leaves no choice to whoever executes it.

use std::time::Duration;

use gpuheal_proto::{
    command::{DeadlineOutcome, Drain, Others, Step, Times, Undo, UndoField, UndoKind},
    fault::GpuRef,
    ids::{CommandId, FaultKey, IncidentId, digest, uuid_v7},
    kubernetes::{LABEL_STATUS, STATUS_FAULTY, TAINT_EFFECT, TAINT_FAULTY, TAINT_VALUE},
    time::Timestamp,
    words::Action,
    workload::Workload,
};

use super::PlannedCommand;
use crate::{policy::Settings, snapshot::Snapshot};

const MINUTE: Duration = Duration::from_secs(60);
/// A harmful command starts within this or never: what it assumed is older by then than any of our windows.
const START: Duration = Duration::from_secs(5 * 60);
/// An Event that is a quarter of an hour late still tells something.
const START_NOTIFY: Duration = Duration::from_secs(15 * 60);
/// A release waits for a cluster that is away; finish_by stays inside the 24 h that no command may outlive.
const START_RELEASE: Duration = Duration::from_secs(12 * 3600);

/// What goes into a command.
pub(super) struct Plan<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) settings: &'a Settings,
    pub(super) incident: IncidentId,
    pub(super) decision_no: u32,
    pub(super) now: Timestamp,
}

/// What a command says for itself.
pub(super) struct Words {
    pub(super) level: String,
    pub(super) reason: String,
    pub(super) fault_keys: Vec<FaultKey>,
    pub(super) gpu: Option<GpuRef>,
    pub(super) ignore_cooldown: bool,
}

impl Plan<'_> {
    pub(super) fn command(&self, action: Action, steps: Vec<Step>, words: Words, takes_rate: bool) -> PlannedCommand {
        let node = &self.snapshot.node;
        let plan_rev = node.plan_revision.max(node.plan_rev_floor) + 1;
        // The plan's revision too: an incident that a restore has put back counts its decisions anew, and may meet a command of its own
        // that was lost and taken over.
        let (number, revision) = (self.decision_no.to_string(), plan_rev.to_string());
        let key = hex::encode(digest(&["command", &self.incident.to_string(), &number, &revision, action.as_str()]));
        PlannedCommand {
            id: CommandId::from_uuid(uuid_v7(self.now, &digest(&["command id", &key]))),
            idempotency_key: key,
            action,
            times: self.times(action),
            steps,
            node: node.reference.clone(),
            gpu: words.gpu,
            level: words.level,
            reason: clip(words.reason),
            fault_keys: words.fault_keys,
            ignore_cooldown: words.ignore_cooldown,
            others: self.others(action),
            plan_rev,
            takes_rate,
        }
    }

    /// The spoke asks about others' marks and hands anew at each step of what harms, by the same lists as our guards.
    fn others(&self, action: Action) -> Others {
        match action {
            Action::Notify | Action::Release => Others::default(),
            Action::Mark | Action::Restart | Action::Evict => {
                Others { markers_ignored: self.settings.markers_ignored.clone(), automations: self.settings.automations.clone() }
            }
        }
    }

    fn times(&self, action: Action) -> Times {
        let (start, work) = match action {
            Action::Notify => (START_NOTIFY, MINUTE * 5),
            Action::Mark | Action::Restart => (START, MINUTE * 5),
            Action::Evict => (START, self.settings.response.drain.deadline + MINUTE * 5),
            Action::Release => (START_RELEASE, MINUTE * 60),
        };
        let start_by = self.now.after(start);
        let finish_by = start_by.after(work);
        Times {
            created: self.now,
            deliver_by: self.now.after(start - MINUTE),
            start_by,
            finish_by,
            expires: finish_by.after(MINUTE * 5),
        }
    }

    pub(super) fn mark(&self) -> Step {
        Step::Mark { label: true, taint: self.settings.response.taint, cordon: self.settings.response.cordon }
    }

    /// A drain that keeps to the budgets, whatever policy lets a person do: only one who asks for it in so many words passes them.
    pub(super) fn drain(&self) -> Step {
        let mut drain = self.settings.response.drain.clone();
        if drain.on_deadline == DeadlineOutcome::BypassPdb {
            drain.on_deadline = DeadlineOutcome::Stop;
        }
        drain.allow_pdb_bypass = false;
        Step::Drain(drain)
    }

    /// A drain whose deadline budgets do not outlast, as a person asked for it.
    pub(super) fn drain_past_budgets(&self) -> Step {
        let drain = self.settings.response.drain.clone();
        Step::Drain(Drain { on_deadline: DeadlineOutcome::BypassPdb, allow_pdb_bypass: true, ..drain })
    }

    /// One rollout of each; the spoke gives each template the command's own id, so that none is restarted twice.
    pub(super) fn restart(workloads: &[Workload]) -> Step {
        Step::RestartWorkload { owners: workloads.iter().map(ToString::to_string).collect() }
    }

    /// Undoes what the record says, and where there is none, what the cluster shows of ours. `overridden`: a person has begun it.
    pub(super) fn release(&self, overridden: bool) -> Step {
        let recorded = self.snapshot.incident.as_ref().map(|incident| incident.undo.clone()).unwrap_or_default();
        let undo = if recorded.fields.is_empty() { found(self.snapshot) } else { recorded };
        Step::Release { undo, overridden }
    }
}

/// The spoke takes reasons up to this; the rest is in the audit.
fn clip(reason: String) -> String {
    gpuheal_proto::bytes_text::clip(&reason, gpuheal_proto::limits::REASON_BYTES_MAX).to_owned()
}

fn found(snapshot: &Snapshot) -> Undo {
    let mark = snapshot.node.mark.clone().unwrap_or_default();
    let field = |kind, key: &str, after: String| UndoField {
        kind,
        key: key.to_owned(),
        before: String::new(),
        after,
        resource_version: String::new(),
    };
    let taint = serde_json::json!({ "key": TAINT_FAULTY, "value": TAINT_VALUE, "effect": TAINT_EFFECT }).to_string();
    let label = serde_json::json!(STATUS_FAULTY).to_string();
    let fields = [
        mark.labelled.then(|| field(UndoKind::Label, LABEL_STATUS, label)),
        mark.tainted.then(|| field(UndoKind::Taint, TAINT_FAULTY, taint)),
        mark.cordoned_by_us.then(|| field(UndoKind::Unschedulable, "", "true".to_owned())),
    ];
    Undo { fields: fields.into_iter().flatten().collect() }
}
