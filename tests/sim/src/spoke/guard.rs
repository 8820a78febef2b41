//! What is asked before each side effect: still told to go on, still leading with margin, still in time, still what the
//! command assumed, and no person in between. Each question is the shipping core's; the order is the executor's.

use gpuheal_proto::{
    command::{CommandState, Refusal},
    words::Action,
};
use gpuheal_spoke::healaction;
use gpuheal_spoke_core::{
    ceiling::Out as Places,
    mark::NodeFacts,
    verify::{HubNow, STEP_MARGIN, check_faults, check_time, marker},
};

use super::{Spoke, run::Run};
use crate::mutation::Mutation;

/// Why nothing more is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Halt {
    /// Margin is too small: asked again soon.
    Wait,
    /// Not ours any more.
    Lost(String),
    /// It ends here.
    End(CommandState, Option<Refusal>, String),
}

impl Halt {
    pub(super) fn failed(why: impl Into<String>) -> Self {
        Self::End(CommandState::Failed, None, why.into())
    }

    /// A person has taken away what we set: that is an order.
    pub(super) fn overridden(what: &str, node: &NodeFacts) -> Self {
        let reason = format!("overridden by a person: {what} of node {} was taken away", node.name);
        Self::End(CommandState::Cancelled, None, reason)
    }
}

impl Spoke {
    pub(super) fn hub_now(&self) -> Option<HubNow> {
        self.clock.map(|clock| clock.at(self.now.boot))
    }

    pub(super) fn pass(&self, run: &Run) -> Result<(), Halt> {
        self.still_ours(run)?;
        self.in_time(run)?;
        self.as_assumed(run)
    }

    fn still_ours(&self, run: &Run) -> Result<(), Halt> {
        if let Some((state, reason)) = &run.stop {
            return Err(Halt::End(*state, None, reason.clone()));
        }
        if self.reign() != Some(run.reign) {
            return Err(Halt::Lost("the Lease was lost".to_owned()));
        }
        match self.margin() {
            None => Err(Halt::Lost("the Lease was lost".to_owned())),
            Some(left) if left < STEP_MARGIN => Err(Halt::Wait),
            Some(_) => Ok(()),
        }
    }

    fn in_time(&self, run: &Run) -> Result<(), Halt> {
        if self.me.mutations.has(Mutation::AnyTime) {
            return Ok(());
        }
        check_time(&run.command, self.hub_now(), run.by).map_err(|refused| {
            if refused.refusal.not_now() {
                Halt::Lost(refused.reason)
            } else {
                Halt::End(CommandState::Failed, Some(refused.refusal), refused.reason)
            }
        })
    }

    /// The ceiling's stop, the fault, the node, a person. A release is held to the node alone.
    pub(super) fn as_assumed(&self, run: &Run) -> Result<(), Halt> {
        let command = &run.command;
        let target = &command.target.node;
        let cancelled = |refusal, reason: String| Err(Halt::End(CommandState::Cancelled, Some(refusal), reason));
        let node = self.cache.facts(target.name.as_str()).filter(|node| node.uid == target.uid.as_str());
        if let Some(seen) = node.as_ref().and_then(NodeFacts::plan_revision)
            && seen > command.plan_rev
        {
            return cancelled(Refusal::Superseded, format!("plan revision {}, the node carries {seen}", command.plan_rev));
        }
        if command.action() == Action::Release {
            return Ok(());
        }
        if self.config.ceiling.stop && !self.me.mutations.has(Mutation::NoCeiling) {
            return cancelled(Refusal::Stopped, "the cluster's ceiling says stop: true".to_owned());
        }
        if !command.harmful() {
            return Ok(());
        }
        let standing = command.fault_keys.iter().map(|key| (*key, self.standing(key))).collect();
        check_faults(command, &standing).or_else(|refused| cancelled(refused.refusal, refused.reason))?;
        let Some(node) = node else { return Ok(()) };
        if marker::opted_out(&node) {
            return cancelled(Refusal::OptedOut, format!("node {} has opted out", node.name));
        }
        match run.marked.and_then(|(want, plan_rev)| want.taken_away(&node, plan_rev, &command.others)) {
            Some(what) => Err(Halt::overridden(what, &node)),
            None => Ok(()),
        }
    }

    /// How many GPU nodes are out: marked by us, or about to be by a command that is admitted already.
    pub(super) fn places(&self, target: &str) -> Places {
        let seen = |name: &str, uid: &str| {
            let node = self.cache.facts(name).filter(|node| node.uid == uid)?;
            Some(node.plan_revision().unwrap_or(0))
        };
        let unshown = healaction::unshown(self.cache.actions.values().map(|action| &**action), seen);
        let runs =
            |name: &str| self.running.values().any(|run| run.command.harmful() && run.command.target.node.name.as_str() == name);
        let admitted = |name: &str| runs(name) || unshown.contains(name);
        let mut out = Places::default();
        for (name, node) in &self.cache.nodes {
            let marked = node.facts.marked();
            out.gpu_nodes += u32::from(node.gpus > 0);
            if name == target {
                out.target = marked;
            } else {
                out.others += u32::from(marked || (node.gpus > 0 && admitted(name)));
            }
        }
        out
    }
}
