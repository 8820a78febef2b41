//! What comes down the link, judged. Commands and cancellations are checked here, in the order of link.md, without a
//! single API call in the usual case; what passes is given to a task, what does not is answered.

use std::{sync::Arc, time::Duration};

use gpuheal_proto::{
    command::{CommandState, Refusal},
    ids::CommandId,
};
use gpuheal_spoke_core::{
    mark::NodeFacts,
    verify::{self, Authentic, Envelope, Held, Known, Live, Refused, fingerprint},
};
use kube::Api;

use super::{Back, Ctx, RUNNING_MAX, api, hand::HandLoop, record::Created};
use crate::{
    clock::boottime,
    healaction::{self, HealAction, HealActionSpec, Tombstone},
    metrics,
    verify::{cached_node, hub_now, node_facts, out, standing},
};

impl HandLoop {
    /// A command's bytes. `looked_up` is what the API server said of the node when our watch did not show it.
    #[tracing::instrument(name = "spoke.verify", skip_all)]
    pub(super) fn command(&mut self, bytes: Vec<u8>, looked_up: Option<Option<NodeFacts>>) {
        let (sha256, began) = (fingerprint(&bytes), boottime());
        let deps = &self.ctx.deps;
        let envelope = match Envelope::received(bytes).authenticate(&deps.trust, &deps.cluster) {
            Ok(envelope) => envelope,
            Err(refused) => {
                self.count(began, refused.refusal.as_str());
                return self.refuse_unread(sha256, refused);
            }
        };
        let id = envelope.command().id;
        if let Some(refused) = self.not_ready() {
            return self.say_not_now(id, refused);
        }
        let (known, action) = self.known(envelope.command());
        if let (Known::Final, Some(action)) = (known, &action) {
            return self.tell(Arc::clone(action));
        }
        if self.called_off.contains_key(&id) {
            // Its end is on the way, and is told.
            return;
        }
        if self.running.contains_key(&id) || self.pending.contains(&id) {
            if let Some(action) = action {
                self.tell(action);
            }
            return;
        }
        let admitted = self.admit(envelope.clone(), known, looked_up.as_ref());
        self.count(began, admitted.as_ref().map_or_else(|refused| refused.refusal.as_str(), |_| "verified"));
        match admitted {
            Ok(verified) => self.spawn_run(verified, action),
            Err(refused) if is_of_node(refused.refusal) && looked_up.is_none() => self.look_up(&envelope),
            Err(refused) if refused.refusal.not_now() => self.say_not_now(id, refused),
            Err(refused) => self.refuse(&envelope, refused, action),
        }
    }

    fn count(&self, began: Duration, outcome: &str) {
        let (metrics, took) = (&self.ctx.deps.metrics, boottime().saturating_sub(began));
        metrics.inc(metrics::VERIFIED, &[("outcome", outcome)]);
        metrics.observe(metrics::VERIFY_SECONDS, &[], took.as_secs_f64());
    }

    /// Takes up an open action: its own bytes are checked as if they had just come.
    pub(super) fn adopt(&mut self, id: CommandId, action: &Arc<HealAction>) {
        let deps = &self.ctx.deps;
        let Some(bytes) = healaction::envelope_bytes(action) else {
            return self.end_open(action, CommandState::Failed, "", "the HealAction holds no signed command".to_owned());
        };
        let envelope = match Envelope::received(bytes).authenticate(&deps.trust, &deps.cluster) {
            Ok(envelope) if envelope.command().id == id => envelope,
            Ok(_) => {
                return self.end_open(
                    action,
                    CommandState::Refused,
                    "MALFORMED",
                    "the HealAction is not named by its command".to_owned(),
                );
            }
            Err(refused) => return self.end_open(action, CommandState::Refused, refused.refusal.as_str(), refused.reason),
        };
        let begun = self.begun(action, envelope.command());
        match self.admit(envelope.clone(), Known::Open { begun }, None) {
            Ok(verified) => self.spawn_run(verified, Some(Arc::clone(action))),
            Err(refused) if is_of_node(refused.refusal) => self.look_up(&envelope),
            Err(refused) if refused.refusal.not_now() => {}
            Err(refused) => self.refuse(&envelope, refused, Some(Arc::clone(action))),
        }
    }

    fn admit(
        &self,
        envelope: Envelope<Authentic>,
        known: Known,
        looked_up: Option<&Option<NodeFacts>>,
    ) -> Result<Envelope<verify::Verified>, Refused> {
        let deps = &self.ctx.deps;
        let Some(fence) = self.ctx.fence() else { return Err(Refused::new(Refusal::Busy, "the fence has not been read yet")) };
        let now = hub_now(&deps.clock);
        let timely = envelope.timely(&Held { known, fence, now })?;
        let command = timely.command();
        if let Some(why) = self.ctx.stop_unheard().filter(|_| command.harmful()) {
            return Err(Refused::new(Refusal::Busy, why));
        }
        let name = command.target.node.name.as_str();
        let node = match looked_up {
            Some(node) => node.clone(),
            None => cached_node(&deps.nodes, name),
        };
        let standing = standing(deps.faults.as_ref(), command);
        let config = self.ctx.config();
        let live = Live {
            node: node.as_ref(),
            standing: &standing,
            margin: deps.elector.margin(),
            config: &config,
            out: out(&deps.nodes, &self.admitted(), name),
            at_work: self.at_work(command),
            now: now.map(|now| now.at).unwrap_or_default(),
        };
        timely.admit(&live)
    }

    fn not_ready(&mut self) -> Option<Refused> {
        if self.ctx.reign().is_none() {
            return Some(Refused::new(Refusal::NotLeader, "another replica leads"));
        }
        if !self.ctx.actions.ready() || self.ctx.fence().is_none() {
            self.resume();
            return Some(Refused::new(Refusal::Busy, "this replica has just begun to lead"));
        }
        let running = self.running.len();
        (running >= RUNNING_MAX)
            .then(|| Refused::new(Refusal::Busy, format!("{running} commands are at work, {RUNNING_MAX} may be")))
    }

    /// Our watch shows no such node, another machine, or one without its mark: the API server is asked once before that is believed.
    fn look_up(&mut self, envelope: &Envelope<Authentic>) {
        let (bytes, command) = (envelope.bytes().to_vec(), envelope.command());
        let (id, name) = (command.id, command.target.node.name.to_string());
        let ctx = Arc::clone(&self.ctx);
        self.attend(id, async move {
            let api: Api<k8s_openapi::api::core::v1::Node> = Api::all(ctx.kube.client());
            let node =
                ctx.kube.call("get node", api.get_opt(&name)).await.map(|node| node.as_ref().and_then(node_facts).map(Box::new));
            Back::Node { bytes, id, node }
        });
    }

    /// A refusal for ever: a tombstone, or the end of the open action.
    fn refuse(&mut self, envelope: &Envelope<Authentic>, refused: Refused, action: Option<Arc<HealAction>>) {
        let command = envelope.command();
        let labels = [("node", command.target.node.name.as_str()), ("reason", refused.refusal.as_str())];
        self.ctx.deps.metrics.inc(metrics::SKIPPED, &labels);
        tracing::info!(command.id = %command.id, node.name = %command.target.node.name, refusal = %refused.refusal, reason = refused.reason, "command refused");
        match action {
            None => {
                let reign = self.ctx.reign().unwrap_or(0);
                let mut spec = self.ctx.records.spec(command, envelope.bytes(), self.ctx.deps.replica.as_str(), reign);
                spec.tombstone = Some(Tombstone::refused(&refused));
                self.bury_refused(command.id, spec);
            }
            Some(action) => {
                let state = healaction::state_refused(self.begun(&action, command), refused.refusal);
                self.end_open(&action, state, refused.refusal.as_str(), refused.reason);
            }
        }
    }

    /// What did not pass the first checks: by its id where its signature holds, else by its hash.
    fn refuse_unread(&mut self, sha256: String, refused: Refused) {
        tracing::warn!(envelope.sha256 = sha256, refusal = %refused.refusal, reason = refused.reason, "command not accepted");
        let leads = self.ctx.reign().is_some() && self.ctx.actions.ready();
        if let (Some(command), true) = (&refused.command, leads) {
            let holder = self.ctx.deps.replica.as_str();
            let mut spec = healaction::foreign_spec(command, holder, self.ctx.reign().unwrap_or(0));
            spec.tombstone = Some(Tombstone::refused(&refused));
            return self.bury_refused(command.id, spec);
        }
        let ctx = Arc::clone(&self.ctx);
        self.tasks.spawn(async move {
            ctx.reports.unverifiable(sha256, &refused).await;
            Back::Done
        });
    }

    pub(super) fn say_not_now(&mut self, id: CommandId, refused: Refused) {
        let ctx = Arc::clone(&self.ctx);
        tracing::debug!(command.id = %id, refusal = %refused.refusal, reason = refused.reason, "command not taken now");
        self.tasks.spawn(async move {
            ctx.reports.not_now(id.to_string(), &refused).await;
            Back::Done
        });
    }

    /// Answers from the record, acked before or not: a hub that asks again does not know, whatever it once acked.
    pub(super) fn tell(&mut self, action: Arc<HealAction>) {
        let ctx = Arc::clone(&self.ctx);
        // Now, not when the task begins: the next look must not tell it once more.
        ctx.reports.will_tell(&action);
        self.tasks.spawn(async move {
            ctx.reports.answer(&action).await;
            Back::Done
        });
    }

    /// Buries what is refused for ever. Where its tombstone could not be written the hub is asked for the bytes again: without it nobody
    /// could answer for the refusal later.
    fn bury_refused(&mut self, id: CommandId, spec: HealActionSpec) {
        let ctx = Arc::clone(&self.ctx);
        self.attend(id, async move {
            match bury(&ctx, id, spec).await {
                Ok(()) => Back::Settled(id),
                Err(error) => {
                    Back::NotBuried(id, format!("its refusal could not be written: {}", gpuheal_proto::chain::chain(&error)))
                }
            }
        });
    }

    /// Buries what was called off before it came. The word of the hub is kept until there is a tombstone.
    pub(super) fn bury_cancelled(&mut self, id: CommandId, spec: HealActionSpec) {
        let ctx = Arc::clone(&self.ctx);
        self.attend(id, async move {
            if let Err(error) = bury(&ctx, id, spec).await {
                tracing::warn!(command.id = %id, error = %gpuheal_proto::chain::chain(&error), "tombstone not created yet");
            }
            Back::Settled(id)
        });
    }

    pub(super) fn end_open(&mut self, action: &Arc<HealAction>, state: CommandState, refusal: &str, reason: String) {
        let (ctx, action, refusal) = (Arc::clone(&self.ctx), Arc::clone(action), refusal.to_owned());
        let reign = self.ctx.reign().unwrap_or(0);
        let id = CommandId::parse(action.id()).ok();
        let work = async move {
            match ctx.records.finish(&action, state, &refusal, &reason, reign).await {
                Ok(action) => ctx.reports.tell(&action).await,
                Err(error) => {
                    tracing::warn!(command.id = action.id(), error = %gpuheal_proto::chain::chain(&error), "HealAction not ended yet")
                }
            }
            id.map_or(Back::Done, Back::Settled)
        };
        match id {
            Some(id) => self.attend(id, work),
            None => drop(self.tasks.spawn(work)),
        }
    }
}

/// Whether it says of the node what a watch that is late would say as well.
const fn is_of_node(refusal: Refusal) -> bool {
    matches!(refusal, Refusal::NodeGone | Refusal::Unmarked)
}

/// Creates a tombstone and tells it.
async fn bury(ctx: &Ctx, id: CommandId, spec: HealActionSpec) -> Result<(), api::Error> {
    match ctx.records.create(&ctx.records.named(&id.to_string(), spec)).await? {
        Created::New(action) => {
            ctx.reports.tell(&action).await;
            ctx.records.show_tombstone(&action).await;
        }
        Created::Exists(action) => ctx.reports.tell(&action).await,
    }
    Ok(())
}
