//! The decision about one node: snapshot, policy and moment in; incident, commands, reasons out. Pure: the same
//! question has the same answer, live, in `explain`, and in a replay. Ids are derived from content.

use gpuheal_proto::{
    command::{Others, Step, Times},
    fault::{GpuRef, NodeRef},
    ids::{CommandId, FaultKey, IncidentId},
    time::Timestamp,
    words::{Action, Level, Mode},
};
use serde::{Deserialize, Serialize};

use crate::{
    cooldown::CooldownOp,
    incident::IncidentState,
    policy::Policy,
    snapshot::{Settled, Snapshot},
};

mod back;
mod case;
mod course;
mod drains;
mod guards;
mod hand;
mod judge;
mod lines;
mod plan;
mod progress;
mod recover;
mod request;
mod tell;
#[cfg(test)]
mod tests;

use case::Case;

/// All that follows from one look at one node. The hub stores it in one transaction, or not at all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// The incident to open or to update; `None`: there is none and none is needed.
    pub incident: Option<IncidentChange>,
    /// Commands to store as PROPOSED, in order.
    pub commands: Vec<PlannedCommand>,
    /// Commands to call off.
    pub cancel: Vec<CancelCommand>,
    /// What happens to the node's place in the budgets.
    pub budget: BudgetOp,
    /// What happens to the node's cooldown row.
    pub cooldown: CooldownOp,
    /// When to look again if nothing else happens first.
    pub recheck_at: Option<Timestamp>,
    /// What people should hear.
    pub notify: Vec<Notice>,
    /// Why, most important first, with numbers.
    pub reasons: Vec<String>,
    /// What would have to be different for more to be done.
    pub would_change: Vec<String>,
    /// What became of each fault.
    pub verdicts: Vec<Verdict>,
    /// Faults whose episode is done with, since the incident closes.
    pub settle: Vec<SettleFault>,
    /// The answer to a person's request, when there was one.
    pub request: Option<RequestOutcome>,
    /// The policy that spoke.
    pub policy_revision: u64,
}

/// The incident after the decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IncidentChange {
    /// Which.
    pub id: IncidentId,
    /// It is new.
    pub opens: bool,
    /// Something of it changed: this is a decision with a number of its own. Otherwise only `recheck_at` moves.
    pub changed: bool,
    /// The number of this decision, or of the last one when nothing changed.
    pub decision_no: u32,
    /// Where it stands now. Closed when the state says so.
    pub state: IncidentState,
    /// The worst level so far.
    pub level: Level,
    /// A person asked for it.
    pub manual: bool,
    /// The faults it holds now.
    pub fault_keys: Vec<FaultKey>,
    /// Those of them that have asked for an eviction, in this decision or before.
    pub asked_keys: Vec<FaultKey>,
    /// Why it stands there, with numbers.
    pub reason: String,
}

impl IncidentChange {
    /// Its level in the word that people see.
    #[must_use]
    pub const fn level_word(&self) -> &'static str {
        level_word(self.level, self.manual)
    }
}

/// An incident's level in the word that people see: `manual` when a person asked for it and no fault made it worse.
#[must_use]
pub const fn level_word(level: Level, manual: bool) -> &'static str {
    match level {
        Level::P2 if manual => "manual",
        Level::P0 | Level::P1 | Level::P2 => level.as_str(),
    }
}

/// A command to store and sign. The store adds what only it knows: `cmd_seq`, epochs, term.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlannedCommand {
    /// Derived from the key and the moment.
    pub id: CommandId,
    /// Unique in the store: H(incident, decision, action).
    pub idempotency_key: String,
    /// What for.
    pub action: Action,
    /// In order.
    pub steps: Vec<Step>,
    /// Where.
    pub node: NodeRef,
    /// Which GPU, when the faults are one GPU's.
    pub gpu: Option<GpuRef>,
    /// `P0`, `P1`, `P2` or `manual`.
    pub level: String,
    /// Why, with numbers.
    pub reason: String,
    /// Faults whose own source must not have cleared them by then.
    pub fault_keys: Vec<FaultKey>,
    /// A person's waiver of the cooldown.
    pub ignore_cooldown: bool,
    /// What policy says of others' marks and hands, for one that harms.
    #[serde(default)]
    pub others: Others,
    /// Its moments.
    pub times: Times,
    /// Higher than every one given out for this node before.
    pub plan_rev: u64,
    /// It takes one token of the cluster's and of the fleet's rate.
    pub takes_rate: bool,
}

/// A command to call off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelCommand {
    /// Which.
    pub id: CommandId,
    /// Why.
    pub reason: String,
}

/// What happens to the node's place in the budgets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum BudgetOp {
    /// Nothing.
    Keep,
    /// Take a place: fails, and the whole decision with it, when by then so many are out already.
    Hold {
        /// Out in the cluster must be below it.
        cluster_allowed: u32,
        /// Out in the fleet must be below it.
        fleet_allowed: u32,
    },
    /// Take a place whatever the numbers: the node is out already.
    HoldFound,
    /// Give it back.
    Free,
}

/// Something that people should hear.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// How urgent.
    pub urgency: Urgency,
    /// What to say.
    pub text: String,
}

/// How urgent a notice is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Urgency {
    /// For the record.
    Info,
    /// For whoever looks.
    Warn,
    /// A person must act.
    Page,
}

/// What became of one fault.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Which.
    pub key: FaultKey,
    /// Its level.
    pub level: Level,
    /// The rule that gave the level.
    pub rule: String,
    /// The mode that holds for it here.
    pub mode: Mode,
    /// Where that mode is from.
    pub mode_from: String,
    /// In one word: `acts`, `waits`, `recorded`, `settled`.
    pub outcome: VerdictOutcome,
    /// Why.
    pub reason: String,
}

/// What became of a fault, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictOutcome {
    /// It is reason enough for what the mode allows.
    Acts,
    /// It waits: for a witness or for the end of its window.
    Waits,
    /// It is written down.
    Recorded,
    /// A closed incident has dealt with this episode.
    Settled,
    /// Its own source shows it no longer.
    Clear,
}

impl VerdictOutcome {
    /// The word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Acts => "acts",
            Self::Waits => "waits",
            Self::Recorded => "recorded",
            Self::Settled => "settled",
            Self::Clear => "clear",
        }
    }
}

/// A fault whose episode is done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettleFault {
    /// Which.
    pub key: FaultKey,
    /// How.
    pub settled: Settled,
}

/// The answer to a person's request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum RequestOutcome {
    /// This command does it.
    Accepted {
        /// Which.
        command: CommandId,
    },
    /// A command under way, or done, does it already.
    AlreadyDone {
        /// Which, if one is known.
        command: Option<CommandId>,
        /// In words.
        reason: String,
    },
    /// A guard said no.
    Blocked {
        /// With the arithmetic.
        reason: String,
    },
}

/// Decides about one node.
#[must_use]
pub fn decide(snapshot: &Snapshot, policy: &Policy, now: Timestamp) -> Decision {
    let settings = policy.settings_for(snapshot.cluster.narrowing.as_ref());
    let judged = judge::judge_all(snapshot, policy, &settings, now);
    let progress = progress::fold(snapshot);
    let mut decision = Decision::nothing(policy.revision);
    decision.verdicts = judged.iter().map(judge::Judged::verdict).collect();
    let mut case = Case { snapshot, policy, settings: &settings, judged: &judged, progress: &progress, now, decision };
    case.run();
    case.decision
}

impl Case<'_> {
    /// The order matters: what is gone needs nothing, a person's hand comes before any plan, a way back before a new one.
    fn run(&mut self) {
        if self.snapshot.node.gone {
            return self.gone();
        }
        let given_back = self.settle_outcomes();
        if let Some(why) = hand::overridden(self.snapshot, self.progress, self.settings) {
            return self.overriding(&why);
        }
        let state = self.incident().map(|incident| incident.state);
        if let Some(state @ (IncidentState::Releasing | IncidentState::Overriding)) = state {
            self.releasing(state);
            if let Some(request) = &self.snapshot.request {
                self.answer_while_releasing(request);
            }
            return;
        }
        if let Some(request) = &self.snapshot.request
            && self.request(request)
        {
            return;
        }
        match hand::orphan(self.snapshot, self.now) {
            hand::Orphan::Found => self.adopt(),
            hand::Orphan::Unsure(at) => {
                self.again(at);
                self.course(given_back);
            }
            hand::Orphan::None => self.course(given_back),
        }
        self.count_found();
    }
}

impl Decision {
    /// Whether anybody need read of it: a judgement that changed nothing is not news.
    #[must_use]
    pub fn is_news(&self) -> bool {
        self.incident.as_ref().is_some_and(|change| change.changed || change.opens)
            || self.budget != BudgetOp::Keep
            || !self.cancel.is_empty()
            || !self.settle.is_empty()
            || self.request.is_some()
    }

    /// The decision to do nothing.
    #[must_use]
    pub const fn nothing(policy_revision: u64) -> Self {
        Self {
            incident: None,
            commands: Vec::new(),
            cancel: Vec::new(),
            budget: BudgetOp::Keep,
            cooldown: CooldownOp::Keep,
            recheck_at: None,
            notify: Vec::new(),
            reasons: Vec::new(),
            would_change: Vec::new(),
            verdicts: Vec::new(),
            settle: Vec::new(),
            request: None,
            policy_revision,
        }
    }
}
