//! What is asked of each effect: a change that a command of ours made in a cluster.

use gpuheal_proto::{ids::ClusterId, time::Timestamp, words::Action};

use super::{Oracle, marked};
use crate::{
    api::{Api, Effect},
    memory::Memory,
};

/// Who acted, and what was true when it was sent.
#[derive(Clone, Copy, Debug)]
pub struct Acting {
    /// When the request left, by the database's clock.
    pub sent_at: Timestamp,
    /// The Lease was this replica's then.
    pub led: bool,
    /// When this replica last heard from a hub.
    pub contact_at: Timestamp,
}

impl Oracle {
    /// A command of ours has changed something.
    pub fn acted(&mut self, cluster: &ClusterId, api: &Api, effect: &Effect, acting: Acting, now: Timestamp) {
        self.acts += 1;
        self.an_effect_follows_its_intent(api, effect, now);
        self.at_most_one_effect_per_command(effect, now);
        self.no_effect_after_its_deadline(effect, acting, now);
        self.no_effect_without_the_lease(effect, acting, now);
        self.a_final_word_is_final(cluster, effect, acting, now);
        self.cut_off_from_its_hub_a_spoke_takes_no_new_harm(effect, acting, now);
        self.every_command_is_audited_before_it_acts(effect, now);
        if effect.what == "mark" {
            self.a_ceiling_is_kept(cluster, api, now);
        }
    }

    fn an_effect_follows_its_intent(&mut self, api: &Api, effect: &Effect, now: Timestamp) {
        let intent = api.actions.get(&effect.command.to_string());
        if intent.is_none_or(|action| action.spec.tombstone.is_some()) {
            self.breaks(
                "an effect follows its intent",
                now,
                format!("{} of node {} by {}", effect.what, effect.node, effect.command),
            );
        }
    }

    /// 2. One in-flight request may repeat, and then changes nothing: here only changes are seen.
    fn at_most_one_effect_per_command(&mut self, effect: &Effect, now: Timestamp) {
        let known = self.effects.entry((effect.command, effect.what.clone())).or_insert_with(|| (0, effect.uid.clone()));
        known.0 += 1;
        let times = known.0;
        if times > 1 {
            let why = format!("{} of node {} by {}, {times} times", effect.what, effect.node, effect.command);
            self.breaks("at most one effect per command", now, why);
        }
    }

    /// 3. No first effect after `start_by`, no step after `finish_by`.
    fn no_effect_after_its_deadline(&mut self, effect: &Effect, acting: Acting, now: Timestamp) {
        let Some(issued) = self.issued.get(&effect.command) else { return };
        let before = self.effects.iter().filter(|((id, _), _)| *id == effect.command).count();
        let by = if before <= 1 { issued.times.start_by } else { issued.times.finish_by };
        if acting.sent_at > by {
            let why = format!("{} of node {} by {} at {}, due by {by}", effect.what, effect.node, effect.command, acting.sent_at);
            self.breaks("no effect after its deadline", now, why);
        }
    }

    /// 3. None without the Lease held.
    fn no_effect_without_the_lease(&mut self, effect: &Effect, acting: Acting, now: Timestamp) {
        if !acting.led {
            let why = format!("{} of node {} by {} sent at {}", effect.what, effect.node, effect.command, acting.sent_at);
            self.breaks("no effect without the Lease", now, why);
        }
    }

    /// What a request may still do that was on its way is not asked.
    fn a_final_word_is_final(&mut self, cluster: &ClusterId, effect: &Effect, acting: Acting, now: Timestamp) {
        let word = self.words.get(&(cluster.clone(), effect.command)).copied();
        if let Some((state, at)) = word.filter(|(_, at)| acting.sent_at > *at) {
            let why = format!("{} of node {} by {}, which was told as {state} at {at}", effect.what, effect.node, effect.command);
            self.breaks("a final word is final", now, why);
        }
    }

    /// 9. What a spoke does that is cut off was commanded before, and is bounded by `finish_by`.
    fn cut_off_from_its_hub_a_spoke_takes_no_new_harm(&mut self, effect: &Effect, acting: Acting, now: Timestamp) {
        let Some(issued) = self.issued.get(&effect.command) else {
            return self.breaks("no command without an incident", now, format!("nobody issued {}", effect.command));
        };
        let life = issued.times.finish_by.since(issued.times.created);
        if issued.action != Action::Release && acting.sent_at.since(acting.contact_at) > life {
            let why = format!("{} of node {} while the hub was last heard at {}", effect.what, effect.node, acting.contact_at);
            self.breaks("cut off from its hub a spoke takes no new harm", now, why);
        }
    }

    /// 8. No audit, no action.
    fn every_command_is_audited_before_it_acts(&mut self, effect: &Effect, now: Timestamp) {
        if self.issued.get(&effect.command).is_some_and(|issued| !issued.audited) {
            self.breaks("every command is audited before it acts", now, format!("{}", effect.command));
        }
    }

    /// 4. The owner's ceiling.
    fn a_ceiling_is_kept(&mut self, cluster: &ClusterId, api: &Api, now: Timestamp) {
        let Ok(config) = gpuheal_spoke_core::ceiling::parse(&api.config) else { return };
        let marked = count(api);
        if let Some(limit) = config.ceiling.nodes_out.filter(|limit| marked > *limit) {
            self.breaks("nodes out never exceed the ceiling", now, format!("{marked} of cluster {cluster}, {limit} are allowed"));
        }
    }

    /// 4. Nodes that we have out at once never exceed any budget: what clusters really show, at each new mark. The fleet's is not
    ///    asked where no hub can know what the others have out.
    pub fn nodes_out_never_exceed_the_budget(&mut self, db: &Memory, clusters: &[(&ClusterId, &Api)], now: Timestamp) {
        let Some(policy) = db.policies.last() else { return };
        let budgets = policy.settings.budgets;
        let mut out = 0;
        for (cluster, api) in clusters {
            let allowed = budgets.cluster.allowed(self.most.get(*cluster).copied().unwrap_or(0));
            let marks = count(api);
            if marks > allowed {
                let why = format!("{marks} of cluster {cluster}, {allowed} are allowed");
                self.breaks("nodes out never exceed the budget", now, why);
            }
            out += marks;
        }
        let allowed = budgets.fleet.allowed(self.most.values().sum());
        if out > allowed && !self.was_restored_in_place() {
            self.breaks("nodes out never exceed the budget", now, format!("{out} of the fleet, {allowed} are allowed"));
        }
    }
}

fn count(api: &Api) -> u32 {
    u32::try_from(marked(api).count()).unwrap_or(u32::MAX)
}
