//! What comes down the link, judged in the order of link.md: the checks are the shipping core's, what passes is run, what
//! does not is answered. An open HealAction that nobody works on is taken up the same way.

use std::rc::Rc;

use gpuheal_proto::{
    command::{CommandState, Refusal},
    ids::CommandId,
    link::v1,
};
use gpuheal_spoke::healaction::{self, HealAction, HealActionSpec, Tombstone};
use gpuheal_spoke_core::{
    mark::NodeFacts,
    verify::{self, Authentic, Cancel, Envelope, Held, HubNow, Known, Live, Refused, fingerprint},
};

use super::{Out, Spoke, Wait, run::Run};
use crate::{api::Call, mutation::Mutation};

impl Spoke {
    /// A command's bytes. `looked_up` is what the API server said of the node when our watch did not show it.
    pub(super) fn command(&mut self, bytes: Vec<u8>, looked_up: Option<Option<NodeFacts>>) {
        let sha256 = fingerprint(&bytes);
        let envelope = match self.authenticate(bytes) {
            Ok(envelope) => envelope,
            Err(refused) => return self.refuse_unread(sha256, &refused),
        };
        let id = envelope.command().id;
        if let Some(refused) = self.not_ready() {
            return self.not_now(id.to_string(), &refused);
        }
        let action = self.action_of(id);
        let known = match &action {
            None => Known::No,
            Some(action) if healaction::is_final(action) => Known::Final,
            Some(action) => Known::Open { begun: self.begun(action, envelope.command()) },
        };
        if let (Known::Final, Some(action)) = (known, &action) {
            return self.answer(&Rc::clone(action));
        }
        if self.called_off.contains_key(&id) {
            return;
        }
        if self.running.contains_key(&id) || self.pending.contains(&id) {
            if let Some(action) = action {
                self.answer(&action);
            }
            return;
        }
        match self.admit(envelope.clone(), known, looked_up.as_ref()) {
            Ok(verified) => self.begin(verified, action),
            Err(refused) if is_of_node(refused.refusal) && looked_up.is_none() => self.look_up(&envelope),
            Err(refused) if refused.refusal.not_now() => self.not_now(id.to_string(), &refused),
            Err(refused) => self.refuse(&envelope, &refused, action),
        }
    }

    fn authenticate(&self, bytes: Vec<u8>) -> Result<Envelope<Authentic>, Refused> {
        Envelope::received(bytes).authenticate(&self.me.trust, &self.me.cluster)
    }

    /// Takes up every open action that nobody here works on.
    pub(super) fn resume(&mut self) {
        self.beat_if_news();
        self.report_again();
        self.answer_asked();
        if self.reign().is_none() || !self.cache.listed {
            return;
        }
        if self.fence.is_none() {
            if !std::mem::replace(&mut self.fence_asked, true) {
                self.call(Wait::FenceRead, Call::GetFence, None);
            }
            return;
        }
        if self.me.mutations.has(Mutation::NobodyResumes) {
            return;
        }
        self.tell_untold();
        self.tell_owed();
        self.call_off();
        let open: Vec<Rc<HealAction>> = self.open_actions().cloned().collect();
        for action in open {
            let Ok(id) = CommandId::parse(action.id()) else { continue };
            if !self.running.contains_key(&id) && !self.pending.contains(&id) && !self.called_off.contains_key(&id) {
                self.adopt(id, &action);
            }
        }
    }

    fn adopt(&mut self, id: CommandId, action: &Rc<HealAction>) {
        let Some(bytes) = healaction::envelope_bytes(action) else {
            return self.end_open(action, CommandState::Failed, "", "the HealAction holds no signed command");
        };
        let envelope = match self.authenticate(bytes) {
            Ok(envelope) => envelope,
            Err(refused) => return self.end_open(action, CommandState::Refused, refused.refusal.as_str(), &refused.reason),
        };
        let begun = self.begun(action, envelope.command());
        match self.admit(envelope.clone(), Known::Open { begun }, None) {
            Ok(verified) => self.begin(verified, Some(Rc::clone(action))),
            Err(refused) if is_of_node(refused.refusal) => self.look_up_for(id, &envelope),
            Err(refused) if refused.refusal.not_now() => {}
            Err(refused) => self.refuse(&envelope, &refused, Some(Rc::clone(action))),
        }
    }

    /// Whether an effect may have happened, by the record or by the node.
    fn begun(&self, action: &HealAction, command: &gpuheal_proto::command::Command) -> bool {
        healaction::may_have_begun(action, command, || self.cache.facts(command.target.node.name.as_str()))
    }

    fn admit(
        &self,
        envelope: Envelope<Authentic>,
        known: Known,
        looked_up: Option<&Option<NodeFacts>>,
    ) -> Result<Envelope<verify::Verified>, Refused> {
        let Some((_, fence)) = self.fence else { return Err(Refused::new(Refusal::Busy, "the fence has not been read yet")) };
        let has = |mutation| self.me.mutations.has(mutation);
        let mut now = self.hub_now();
        if has(Mutation::AnyTime) {
            now = Some(HubNow { at: envelope.command().times.created, uncertainty: std::time::Duration::ZERO });
        }
        let timely = envelope.timely(&Held { known, fence, now })?;
        let command = timely.command();
        let name = command.target.node.name.as_str();
        let node = match looked_up {
            Some(node) => node.clone(),
            None => self.cache.facts(name),
        };
        let standing = command.fault_keys.iter().map(|key| (*key, self.standing(key))).collect();
        let open = gpuheal_spoke_core::ceiling::Config::default();
        let live = Live {
            node: node.as_ref(),
            standing: &standing,
            margin: self.margin(),
            config: if has(Mutation::NoCeiling) { &open } else { &self.config },
            out: self.places(name),
            at_work: self.at_work(command),
            now: now.map(|now| now.at).unwrap_or_default(),
        };
        timely.admit(&live)
    }

    /// The highest plan revision of another command that changes the node and is at work on it.
    fn at_work(&self, command: &gpuheal_proto::command::Command) -> Option<u64> {
        let uid = &command.target.node.uid;
        let others = self.running.values().map(|run| &run.command).filter(|other| other.id != command.id && other.changes_node());
        others.filter(|other| other.target.node.uid == *uid).map(|other| other.plan_rev).max()
    }

    fn not_ready(&mut self) -> Option<Refused> {
        if self.reign().is_none() {
            return Some(Refused::new(Refusal::NotLeader, "another replica leads"));
        }
        if !self.cache.listed || self.fence.is_none() {
            self.resume();
            return Some(Refused::new(Refusal::Busy, "this replica has just begun to lead"));
        }
        None
    }

    /// Our watch shows no such node, or another machine: the API server is asked once before that is believed.
    fn look_up(&mut self, envelope: &Envelope<Authentic>) {
        self.look_up_for(envelope.command().id, envelope);
    }

    fn look_up_for(&mut self, id: CommandId, envelope: &Envelope<Authentic>) {
        let name = envelope.command().target.node.name.to_string();
        self.pending.insert(id);
        self.call(Wait::LookUp(id, envelope.bytes().to_vec()), Call::GetNode(name), None);
    }

    /// A refusal for ever: a tombstone, or the end of the open action.
    fn refuse(&mut self, envelope: &Envelope<Authentic>, refused: &Refused, action: Option<Rc<HealAction>>) {
        let command = envelope.command();
        self.say(format!("refuses {} of {}: {} ({})", command.action(), command.target.node.name, refused.refusal, refused.reason));
        match action {
            None => {
                let mut spec = self.spec(command, envelope.bytes());
                spec.tombstone = Some(Tombstone::refused(refused));
                if self.me.mutations.has(Mutation::NoTombstone) {
                    self.out.push(Out::Word(command.id, CommandState::Refused));
                    let status = self.refusal(command.id.to_string(), String::new(), v1::CommandState::Refused, refused);
                    return self.say_status(v1::CommandStatus { status_seq: 1, ..status });
                }
                self.bury(command.id, spec);
            }
            Some(action) => {
                let state = healaction::state_refused(self.begun(&action, command), refused.refusal);
                self.end_open(&action, state, refused.refusal.as_str(), &refused.reason);
            }
        }
    }

    fn refuse_unread(&mut self, sha256: String, refused: &Refused) {
        if let (Some(command), true) = (&refused.command, self.reign().is_some() && self.cache.listed) {
            let mut spec = healaction::foreign_spec(command, self.me.replica.as_str(), self.reign().unwrap_or(0));
            spec.tombstone = Some(Tombstone::refused(refused));
            return self.bury(command.id, spec);
        }
        self.unverifiable(sha256, refused);
    }

    pub(super) fn spec(&self, command: &gpuheal_proto::command::Command, bytes: &[u8]) -> HealActionSpec {
        healaction::new_spec(command, bytes, self.me.replica.as_str(), self.reign().unwrap_or(0))
    }

    fn bury(&mut self, id: CommandId, spec: HealActionSpec) {
        self.pending.insert(id);
        let action = HealAction::named(&id.to_string(), "gpu-selfhealing", spec);
        self.call(Wait::Bury(id), Call::CreateAction(Box::new(action)), None);
    }

    pub(super) fn end_open(&mut self, action: &HealAction, state: CommandState, refusal: &str, reason: &str) {
        let id = CommandId::parse(action.id()).ok();
        self.pending.extend(id);
        self.finish_open(action, state, refusal, reason, id);
    }

    /// Ends an open action by one write.
    pub(super) fn finish_open(
        &mut self,
        action: &HealAction,
        state: CommandState,
        refusal: &str,
        reason: &str,
        id: Option<CommandId>,
    ) {
        let mut status = healaction::status_of(action);
        status.state = state.to_string();
        refusal.clone_into(&mut status.refusal);
        reason.clone_into(&mut status.outcome);
        status.lease_transitions = self.reign().unwrap_or(0);
        status.status_seq = healaction::seq(action) + 1;
        let version = action.metadata.resource_version.clone().unwrap_or_default();
        self.call(Wait::End(id), Call::PutStatus(action.id().to_owned(), version, Box::new(status)), None);
    }

    /// A cancellation, kept until the command has an end.
    pub(super) fn cancel(&mut self, bytes: &[u8]) {
        let fence = self.fence.unwrap_or_default().1;
        let Ok(cancel) = verify::cancel(bytes, &self.me.trust, &self.me.cluster, fence) else { return };
        if let Some(action) = self.action_of(cancel.command).filter(|action| healaction::is_final(action))
            && self.reign().is_some()
        {
            return self.answer(&action);
        }
        self.called_off.insert(cancel.command, cancel);
        self.call_off();
    }

    /// Stops what is at work, ends what is open, and leaves a tombstone for what has not come yet.
    fn call_off(&mut self) {
        if self.reign().is_none() || !self.cache.listed {
            return;
        }
        let ended = |id: &CommandId| self.action_of(*id).is_some_and(|action| healaction::is_final(&action));
        let over: Vec<CommandId> = self.called_off.keys().filter(|id| ended(id)).copied().collect();
        for id in over {
            self.called_off.remove(&id);
        }
        let waiting: Vec<Cancel> =
            self.called_off.values().filter(|cancel| !self.pending.contains(&cancel.command)).cloned().collect();
        for cancel in waiting {
            self.carry_out(&cancel);
        }
    }

    fn carry_out(&mut self, cancel: &Cancel) {
        let reason = healaction::called_off_reason(cancel);
        if let Some(run) = self.running.get_mut(&cancel.command) {
            if run.stop.is_none() {
                run.stop = Some((CommandState::Cancelled, reason));
                self.runs_tick();
            }
            return;
        }
        match self.action_of(cancel.command) {
            Some(action) => self.end_open(&action, CommandState::Cancelled, "", &reason),
            None if self.me.mutations.has(Mutation::NoTombstone) => {
                self.called_off.remove(&cancel.command);
                self.out.push(Out::Word(cancel.command, CommandState::Cancelled));
            }
            None => {
                let spec = healaction::called_off_spec(cancel, self.me.replica.as_str(), self.reign().unwrap_or(0));
                self.bury(cancel.command, spec);
            }
        }
    }

    fn begin(&mut self, envelope: Envelope<verify::Verified>, existing: Option<Rc<HealAction>>) {
        let command = envelope.command();
        let node = command.target.node.name.as_str();
        let mut older = Vec::new();
        if command.changes_node() {
            for (id, run) in &mut self.running {
                if run.command.target.node.name.as_str() == node && run.command.plan_rev < command.plan_rev {
                    run.stop = Some((CommandState::Cancelled, format!("superseded by plan revision {}", command.plan_rev)));
                    older.push(*id);
                }
            }
        }
        let Some(reign) = self.reign() else { return };
        let id = command.id;
        self.say(format!(
            "takes {} of {node}, plan revision {}{}",
            command.action(),
            command.plan_rev,
            if existing.is_some() { ", again" } else { "" }
        ));
        let effect = existing.as_deref().is_some_and(|action| self.begun(action, command));
        let run = Run::new(command.clone(), envelope.bytes().to_vec(), existing, effect, older, reign, self.now.boot);
        self.running.insert(id, run);
        self.runs_tick();
    }
}

/// Whether it says of the node what a watch that is late would say as well.
const fn is_of_node(refusal: Refusal) -> bool {
    matches!(refusal, Refusal::NodeGone | Refusal::Unmarked)
}
