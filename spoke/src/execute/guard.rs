//! What is asked before each side effect: still told to go on, still leading with margin, still in time, still what the
//! command assumed, still below the ceiling, and no person in between. Costs no API call, but where our watch does not show
//! the node: the API server is asked then, since a watch may be late, and a node that nobody can read is not gone.

use std::time::Duration;

use gpuheal_proto::{
    command::{Command, CommandState, Refusal},
    time::Timestamp,
    words::Action,
};
use gpuheal_spoke_core::{
    ceiling::Out,
    mark::{NodeFacts, Want},
    verify::{STEP_MARGIN, check_faults, check_time, marker, unmarked},
};
use tokio::sync::watch;

use super::{Ctx, StopWord, api::Error, mark::pause};
use crate::{
    verify::{cached_node, hub_now, standing},
    watch::{CONFIG, STALE_AFTER},
};

/// How often a margin that is too small is looked at again.
const MARGIN_RECHECK: Duration = Duration::from_millis(100);
/// How often, while somebody waits, it is looked how the faults stand, of which nothing tells, and the API server is asked for a node
/// that our watch does not show.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// How long ago the watch of the owner's ConfigMap, and with it of the cluster's own stop, may have been heard where something that
/// harms is done. A stop that is written reaches a watch that lives at once; one that has died without a word is noticed after 40 s
/// and heard again within 71 of its last word, so that whoever is held up by this has an API server that does not answer its watches.
/// Nobody harms anything more than 90 s after the last moment at which there was no stop.
const STOP_UNHEARD_MAX: Duration = STALE_AFTER;

/// Why nothing more is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Halt {
    /// Not ours any more: no last word, the next leader takes it up.
    Lost(String),
    /// It ends here.
    End {
        /// With this state.
        state: CommandState,
        /// And this code, when it is a refusal.
        refusal: Option<Refusal>,
        /// With numbers.
        reason: String,
    },
}

impl Halt {
    pub(super) fn end(state: CommandState, refusal: Refusal, reason: impl Into<String>) -> Self {
        Self::End { state, refusal: Some(refusal), reason: reason.into() }
    }

    pub(super) fn failed(reason: impl Into<String>) -> Self {
        Self::End { state: CommandState::Failed, refusal: None, reason: reason.into() }
    }

    /// With what it was held back by until then.
    fn after(self, held: Option<&str>) -> Self {
        match (self, held) {
            (Self::End { state, refusal, reason }, Some(held)) => {
                Self::End { state, refusal, reason: format!("{reason}; it was held back: {held}") }
            }
            (halt, _) => halt,
        }
    }

    /// The machine that the command means is not there any more.
    pub(super) fn gone(command: &Command) -> Self {
        let target = &command.target.node;
        Self::end(CommandState::Failed, Refusal::NodeGone, format!("node {} of UID {} is gone", target.name, target.uid))
    }

    /// Nothing keeps pods off the node that is to be drained.
    pub(super) fn unmarked(node: &NodeFacts) -> Self {
        Self::end(CommandState::Cancelled, Refusal::Unmarked, unmarked(node))
    }

    /// A person has taken away what we set: that is an order.
    pub(super) fn overridden(what: &str, node: &NodeFacts) -> Self {
        let reason = format!("overridden by a person: {what} of node {} was taken away", node.name);
        Self::End { state: CommandState::Cancelled, refusal: None, reason }
    }
}

impl Ctx {
    /// Why nobody knows whether the owner says stop: the watch of the ConfigMap was not heard for too long.
    pub(super) fn stop_unheard(&self) -> Option<String> {
        let unheard = |age: String| {
            let max = STOP_UNHEARD_MAX.as_secs();
            format!("the ConfigMap that may say stop was {age}, and nothing that harms is done once that is more than {max}s ago")
        };
        match self.deps.heard.age(CONFIG) {
            Some(age) if age <= STOP_UNHEARD_MAX => None,
            Some(age) => Some(unheard(format!("last heard {}s ago", age.as_secs()))),
            None => Some(unheard("never heard".to_owned())),
        }
    }
}

/// What a running command is held to.
pub(super) struct Guard<'a> {
    pub(super) ctx: &'a Ctx,
    pub(super) command: &'a Command,
    pub(super) stop: watch::Receiver<Option<StopWord>>,
    /// The reign under which it runs.
    pub(super) reign: u64,
    /// `start_by` until the first effect, `finish_by` from then on.
    pub(super) by: Timestamp,
    /// What is set on the node, by this command or by the mark before it, and under which plan revision: a person who takes it away
    /// is obeyed.
    pub(super) marked: Option<(Want, u64)>,
}

impl Guard<'_> {
    /// Waits for margin and for an API server that wants to be left alone, then asks everything. What comes next is sent at once:
    /// nothing waits between this and the call.
    pub(super) async fn pass(&self) -> Result<(), Halt> {
        let mut held = None;
        loop {
            self.there().await?;
            let margin = self.still_ours()?;
            self.in_time().map_err(|halt| halt.after(held.as_deref()))?;
            self.as_assumed()?;
            if let Some(why) = self.unheard() {
                if held.is_none() {
                    tracing::warn!(command.id = %self.command.id, why, "held back");
                }
                held = Some(why);
                tokio::time::sleep(MARGIN_RECHECK).await;
            } else if margin < STEP_MARGIN {
                tokio::time::sleep(MARGIN_RECHECK).await;
            } else if let Some(until) = self.ctx.kube.patience_of(self.command.id) {
                tokio::select! {
                    () = tokio::time::sleep_until(until) => {}
                    () = self.interrupted() => {}
                }
            } else {
                return Ok(());
            }
        }
    }

    /// Why a command that harms has to wait, whatever else is as it should be: nobody knows whether the owner says stop.
    pub(super) fn unheard(&self) -> Option<String> {
        self.ctx.stop_unheard().filter(|_| self.command.harmful())
    }

    /// Resolves when somebody says stop, the reign ends, or something is not as the command assumed any more: for whoever waits.
    pub(super) async fn interrupted(&self) {
        let mut stop = self.stop.clone();
        let mut leadership = self.ctx.deps.leadership.clone();
        let mut config = self.ctx.config.clone();
        let mut nodes = self.ctx.deps.nodes.changes();
        loop {
            tokio::select! {
                () = self.ctx.halt.cancelled() => return,
                () = until(&mut stop, Option::is_some) => return,
                () = until(&mut leadership, |now| now.transitions() != Some(self.reign)) => return,
                () = change(&mut config) => {}
                () = change(&mut nodes) => {}
                () = tokio::time::sleep(ASK_EVERY) => {
                    if self.missing() && matches!(self.is_there().await, Ok(false)) {
                        return;
                    }
                }
            }
            if self.as_assumed().is_err() {
                return;
            }
        }
    }

    /// Returns at once while our watch shows the node. Where it does not, and the API server cannot be read either, nobody
    /// knows: that is waited for.
    async fn there(&self) -> Result<(), Halt> {
        let mut attempt = 0;
        while self.missing() {
            self.still_ours()?;
            self.in_time()?;
            self.as_assumed()?;
            match self.is_there().await {
                Ok(true) => return Ok(()),
                Ok(false) => return Err(Halt::gone(self.command)),
                Err(error) if error.transient() => pause(attempt).await,
                Err(error) => return Err(Halt::failed(error.to_string())),
            }
            attempt += 1;
        }
        Ok(())
    }

    /// Our watch does not show the machine that the command means: it is gone, or the watch is late.
    fn missing(&self) -> bool {
        let target = &self.command.target.node;
        self.command.changes_node() && !self.ctx.deps.nodes.shows(target.name.as_str(), target.uid.as_str())
    }

    /// The API server's word on it.
    async fn is_there(&self) -> Result<bool, Error> {
        let target = &self.command.target.node;
        self.ctx.kube.has_machine(target.name.as_str(), target.uid.as_str()).await
    }

    fn still_ours(&self) -> Result<Duration, Halt> {
        if let Some(word) = self.stop.borrow().clone() {
            return Err(Halt::End { state: word.state, refusal: None, reason: word.reason });
        }
        if self.ctx.halt.is_cancelled() {
            return Err(Halt::Lost("this replica is shutting down".to_owned()));
        }
        match self.ctx.reign() {
            Some(reign) if reign == self.reign => {}
            _ => return Err(Halt::Lost("the Lease was lost".to_owned())),
        }
        self.ctx.deps.elector.margin().ok_or_else(|| Halt::Lost("the Lease was lost".to_owned()))
    }

    fn in_time(&self) -> Result<(), Halt> {
        check_time(self.command, hub_now(&self.ctx.deps.clock), self.by).map_err(|refused| {
            if refused.refusal.not_now() {
                Halt::Lost(refused.reason)
            } else {
                Halt::end(CommandState::Failed, refused.refusal, refused.reason)
            }
        })
    }

    /// The ceiling, the fault, others' marks, a person. A release is held to the node alone.
    pub(super) fn as_assumed(&self) -> Result<(), Halt> {
        let target = &self.command.target.node;
        let cancelled = |refusal, reason: String| Err(Halt::end(CommandState::Cancelled, refusal, reason));
        let node = cached_node(&self.ctx.deps.nodes, target.name.as_str()).filter(|node| node.uid == target.uid.as_str());
        if let Some(seen) = node.as_ref().and_then(NodeFacts::plan_revision)
            && seen > self.command.plan_rev
        {
            return cancelled(Refusal::Superseded, format!("plan revision {}, the node carries {seen}", self.command.plan_rev));
        }
        if self.command.action() == Action::Release {
            return Ok(());
        }
        // How many are out was asked when it was admitted: its own node is one of them since.
        let out = Out { target: true, ..Out::default() };
        let labels = node.as_ref().and_then(|node| node.labels.clone()).unwrap_or_default();
        self.ctx.config().admit(self.command, &labels, out).or_else(|(refusal, reason)| cancelled(refusal, reason))?;
        if !self.command.harmful() {
            return Ok(());
        }
        let standing = standing(self.ctx.deps.faults.as_ref(), self.command);
        check_faults(self.command, &standing).or_else(|refused| cancelled(refused.refusal, refused.reason))?;
        let Some(node) = node else { return Ok(()) };
        if marker::opted_out(&node) {
            return cancelled(Refusal::OptedOut, format!("node {} has opted out", node.name));
        }
        if let Some(mark) = marker::foreign(&node, &self.command.others) {
            return cancelled(Refusal::ForeignMarker, format!("node {} carries {mark}", node.name));
        }
        match self.marked.and_then(|(want, plan_rev)| want.taken_away(&node, plan_rev, &self.command.others)) {
            Some(what) => Err(Halt::overridden(what, &node)),
            None => Ok(()),
        }
    }
}

/// Waits until it holds; for ever when nobody can say so any more.
async fn until<T>(word: &mut watch::Receiver<T>, holds: impl FnMut(&T) -> bool) {
    if word.wait_for(holds).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Waits for the next change, likewise.
async fn change<T>(word: &mut watch::Receiver<T>) {
    if word.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use gpuheal_proto::{
        command::{Target, Times},
        fault::NodeRef,
        ids::{ClusterId, CommandId, IncidentId, NodeName, NodeUid, uuid_v7},
    };
    use serde_json::json;

    use super::*;

    fn command() -> Command {
        let at = Timestamp::EPOCH;
        Command {
            id: CommandId::from_uuid(uuid_v7(at, &[1; 32])),
            idempotency_key: String::new(),
            audience: ClusterId::parse("c").unwrap(),
            key_epoch: 1,
            hub_term: 1,
            cmd_seq: 1,
            plan_rev: 7,
            times: Times { created: at, deliver_by: at, start_by: at, finish_by: at, expires: at },
            incident: IncidentId::from_uuid(uuid_v7(at, &[2; 32])),
            level: "P0".into(),
            reason: String::new(),
            policy_revision: 1,
            policy_digest: String::new(),
            target: Target {
                node: NodeRef { name: NodeName::parse("n").unwrap(), uid: NodeUid::parse("u").unwrap(), boot_id: String::new() },
                gpu: None,
            },
            fault_keys: vec![],
            ignore_cooldown: false,
            others: Default::default(),
            steps: vec![],
        }
    }

    fn node(revision: &str, label: bool) -> NodeFacts {
        let mut node = json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1",
            "annotations": {"gpu-selfhealing.io/plan-revision": revision}, "labels": {}}});
        if label {
            node["metadata"]["labels"]["gpu-selfhealing.io/status"] = json!("faulty");
        }
        NodeFacts::from_json(&node).unwrap()
    }

    const LABEL: Want = Want { label: true, taint: false, cordon: false };

    #[test]
    fn a_label_taken_away_after_our_write_is_a_persons_hand() {
        assert_eq!(LABEL.taken_away(&node("7", false), command().plan_rev, &command().others), Some("the label"));
        assert_eq!(LABEL.taken_away(&node("7", true), command().plan_rev, &command().others), None);
    }

    #[test]
    fn a_watch_that_does_not_show_our_write_yet_is_no_persons_hand() {
        assert_eq!(LABEL.taken_away(&node("6", false), command().plan_rev, &command().others), None);
    }
}
