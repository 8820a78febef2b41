//! What the hub is told of commands: a status made from the HealAction, again at each new session until it is acked, and
//! when it shows and nobody has told it.

use std::rc::Rc;

use gpuheal_proto::{
    command::{CommandState, Undo},
    ids::CommandId,
    link::v1::{self, attach_request::Message as Up},
};
use gpuheal_spoke::{
    healaction::{self, HealAction, marked_node},
    ports::Audience,
    report::{self, RETELL},
};
use gpuheal_spoke_core::{mark::NodeFacts, release::cordoned, verify::Refused};

use super::{Out, Spoke, Wait};
use crate::{api::Call, mutation::Mutation};

impl Spoke {
    /// Tells how an action stands, unless the hub has acked that.
    pub(super) fn report(&mut self, action: &HealAction) {
        if !self.is_acked(action) {
            self.answer(action);
        }
    }

    /// Tells a hub that asked.
    pub(super) fn answer(&mut self, action: &HealAction) {
        if self.owed.is_owed(action.id()) {
            self.answer_whole(action);
        } else {
            self.tell_with(action, Vec::new());
        }
    }

    /// Tells a hub that may have lost it: with the command as it was signed, so that it can take it over.
    fn answer_whole(&mut self, action: &HealAction) {
        self.tell_with(action, healaction::envelope_bytes(action).unwrap_or_default());
    }

    fn tell_with(&mut self, action: &HealAction, envelope: Vec<u8>) {
        if let Ok(id) = CommandId::parse(action.id())
            && healaction::is_final(action)
        {
            self.out.push(Out::Word(id, healaction::state(action)));
        }
        self.will_tell(action);
        let at_unix_ms = self.now.wall.unix_ms();
        self.say_status(v1::CommandStatus { envelope: envelope.into(), at_unix_ms, ..report::status(action) });
    }

    pub(super) fn not_now(&mut self, id: String, refused: &Refused) {
        self.say_status(self.refusal(id, String::new(), v1::CommandState::NotNow, refused));
    }

    pub(super) fn unverifiable(&mut self, sha256: String, refused: &Refused) {
        self.say_status(self.refusal(String::new(), sha256, v1::CommandState::Refused, refused));
    }

    pub(super) fn refusal(&self, id: String, sha256: String, state: v1::CommandState, refused: &Refused) -> v1::CommandStatus {
        v1::CommandStatus {
            command_id: id,
            envelope_sha256: sha256,
            state: state.into(),
            refusal: v1::RefusalCode::from(refused.refusal).into(),
            reason: refused.reason.clone(),
            at_unix_ms: self.now.wall.unix_ms(),
            ..v1::CommandStatus::default()
        }
    }

    pub(super) fn say_status(&mut self, status: v1::CommandStatus) {
        if self.session.is_some() {
            self.out.push(Out::Up(Up::CommandStatus(status)));
        }
    }

    pub(super) fn will_tell(&mut self, action: &HealAction) {
        let known = self.told_seq.entry(action.id().to_owned()).or_default();
        *known = (*known).max(healaction::seq(action));
    }

    /// Each end that nobody has told, since the answer to its write was lost.
    pub(super) fn tell_untold(&mut self) {
        let untold = |action: &&Rc<HealAction>| {
            let told = self.told_seq.get(action.id()).is_some_and(|seq| *seq >= healaction::seq(action));
            let busy = CommandId::parse(action.id()).is_ok_and(|id| self.running.contains_key(&id) || self.pending.contains(&id));
            action.held() && healaction::is_final(action) && !told && !busy && !self.is_acked(action)
        };
        let untold: Vec<Rc<HealAction>> = self.cache.actions.values().filter(untold).cloned().collect();
        untold.iter().for_each(|action| self.answer(action));
    }

    fn is_acked(&self, action: &HealAction) -> bool {
        self.acked.get(action.id()).is_some_and(|seq| *seq >= healaction::seq(action))
    }

    /// A new session, a new reign, or a hub that asks: everything that it has not acked is told again, by the leader. A hub
    /// whose database may have lost what it acked is told that too.
    pub(super) fn report_again(&mut self) {
        let to = self.audience();
        if to.is_none() || to == self.reported || !self.cache.listed {
            return;
        }
        let (Some(to), Some((_, fence))) = (to, self.fence) else { return };
        let first = self.reported.is_none();
        self.reported = Some(to);
        let term = self.reported_term.unwrap_or(fence.hub_term);
        let forgetful = self.hub_term > term || to.asked_term > 0;
        self.reported_term = Some(term.max(self.hub_term));
        if self.me.mutations.has(Mutation::ToldOnce) && !first {
            return;
        }
        let told = |action: &&Rc<HealAction>| action.held() || (forgetful && healaction::is_final(action));
        let mut again: Vec<Rc<HealAction>> = self.cache.actions.values().filter(told).cloned().collect();
        again.sort_by_key(|action| (!action.held(), healaction::is_final(action)));
        let unheard = again.iter().filter(|action| action.held() && (forgetful || !self.is_acked(action)));
        let statuses = unheard.map(|action| (action.id().to_owned(), healaction::seq(action))).collect();
        self.owed.begin(to, statuses);
        self.owed_told = self.now.boot;
        for action in again {
            if forgetful {
                self.answer_whole(&action);
            } else {
                self.report(&action);
            }
        }
    }

    /// What is held and not acked is told once more, since it may have been too early for a hub that takes the cluster over.
    pub(super) fn tell_owed(&mut self) {
        let Some(to) = self.audience().filter(|_| self.now.boot.saturating_sub(self.owed_told) >= RETELL) else { return };
        self.owed_told = self.now.boot;
        for id in self.owed.owed_to(to) {
            match self.cache.actions.get(&id).cloned() {
                Some(action) => self.answer_whole(&action),
                None => self.owed.forgive(&id),
            }
        }
    }

    /// Whom all is told.
    pub(super) fn audience(&self) -> Option<Audience> {
        let (reign, session) = self.reign().zip(self.session.as_ref())?;
        Some(Audience { reign, session: session.generation, asked_term: self.wanted.term })
    }

    /// What the hub asks for by name is told by the leader, acked or not, once all that there is was listed.
    pub(super) fn answer_asked(&mut self) {
        if self.reign().is_none() || !self.cache.listed {
            return;
        }
        let asked = std::mem::take(&mut self.asked);
        if self.me.mutations.has(Mutation::ToldOnce) {
            return;
        }
        let found: Vec<Rc<HealAction>> = asked.iter().filter_map(|id| self.cache.actions.get(id)).cloned().collect();
        found.iter().for_each(|action| self.answer_whole(action));
    }

    pub(super) fn status_acked(&mut self, ack: &v1::StatusAck) {
        if !self.owed.ack(&ack.command_id, ack.status_seq, ack.hub_term) {
            return;
        }
        let known = self.acked.entry(ack.command_id.clone()).or_default();
        *known = (*known).max(ack.status_seq);
        let Some(action) = self.cache.actions.get(&ack.command_id).cloned() else { return };
        if self.reign().is_none() || !healaction::is_final(&action) || !self.is_acked(&action) {
            return;
        }
        if action.held() && !marked_node(&action) {
            self.let_go(&action);
        }
        if action.spec.action == "release" && healaction::state(&action) == CommandState::Succeeded {
            let older = self.cache.actions.values().filter(|older| {
                older.spec.node_uid == action.spec.node_uid
                    && older.spec.plan_revision < action.spec.plan_revision
                    && marked_node(older)
                    && older.held()
                    && healaction::is_final(older)
                    && self.is_acked(older)
            });
            let older: Vec<_> = older.cloned().collect();
            older.iter().for_each(|older| self.let_go(older));
        }
    }

    fn let_go(&mut self, action: &HealAction) {
        let version = action.metadata.resource_version.clone().unwrap_or_default();
        self.call(Wait::Nothing, Call::LetGo(action.id().to_owned(), version), None);
    }

    /// The record of what is ours on a node now, but for what a command did.
    pub(super) fn standing_undo(&self, node: &NodeFacts, not: CommandId) -> Undo {
        let not = not.to_string();
        healaction::standing_undo(self.cache.actions.values().map(|action| &**action).filter(|action| action.id() != not), node)
    }

    /// Whether the cordon of a node that carries a mark of ours is ours, as the standing record says.
    pub(super) fn cordon_is_ours(&self, node_uid: &str) -> Option<bool> {
        let of_node = self.cache.actions.values().map(|action| &**action).filter(|action| action.spec.node_uid == node_uid);
        let standing = healaction::standing_marks(of_node).into_values().next()?;
        cordoned(&healaction::undo_of(standing))
    }
}
