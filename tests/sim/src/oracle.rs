//! The ten invariants of docs/architecture.md as named checks, and the rules of link.md that guard them. It sees what no
//! part of the system sees: every object in every cluster, every commit, every clock. The first broken one ends a run.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use gpuheal_hub::audit::Kind;
use gpuheal_hub_core::{incident::IncidentState, snapshot::EvidenceState};
use gpuheal_proto::{
    command::{CommandState, Times},
    fault::FaultClass,
    ids::{ClusterId, CommandId, FaultKey, NodeUid},
    time::{Timestamp, parse_rfc3339},
    words::Action,
};
use gpuheal_spoke::healaction;

use crate::{
    api::{Api, Effect},
    body::{self, Body, Ill},
    memory::{Cluster, Memory},
    store::{Due, Owner},
};

/// So long something may be ill before a silent source counts as stale, three minutes, and the hub has heard of it.
const SIGHT: Duration = Duration::from_secs(240);

/// What was broken, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Name of the invariant.
    pub invariant: &'static str,
    /// What broke it.
    pub why: String,
    /// When.
    pub at: Timestamp,
}

/// A command as it was issued, kept whatever the database forgets.
#[derive(Clone, Debug)]
struct Issued {
    times: Times,
    action: Action,
    audited: bool,
    reasoned: bool,
}

/// Who acted, and what was true when it was sent.
#[derive(Clone, Copy, Debug)]
pub struct Acting {
    /// When the request left, by the database's clock.
    pub sent_at: Timestamp,
    /// The Lease was this replica's then.
    pub led: bool,
    /// When this replica last heard from a hub.
    pub contact_at: Timestamp,
    /// What this replica had said of the command for ever before.
    pub final_word: Option<CommandState>,
}

/// Everything that is watched.
#[derive(Clone, Debug, Default)]
pub struct Oracle {
    /// The first broken invariant.
    pub broken: Option<Broken>,
    issued: BTreeMap<CommandId, Issued>,
    /// Cluster, term and number of every command.
    numbers: BTreeSet<(ClusterId, u64, u64)>,
    effects: BTreeMap<(CommandId, String), (u32, String)>,
    acked: BTreeMap<(ClusterId, FaultKey), Timestamp>,
    closed: BTreeSet<gpuheal_proto::ids::IncidentId>,
    /// Most GPU nodes that each cluster ever had: what shares are of.
    most: BTreeMap<ClusterId, u32>,
    /// The database was restored and nobody raised its epoch: places that were taken since the backup are known again only
    /// once each cluster was seen.
    forgot: bool,
    /// The database was restored, whoever raised its epoch.
    pub restored: bool,
    /// How many effects there were.
    pub acts: u64,
    /// How many incidents were closed.
    pub closings: u64,
}

impl Oracle {
    /// Notes a broken invariant, if it is the first.
    pub fn breaks(&mut self, invariant: &'static str, at: Timestamp, why: impl Into<String>) {
        if self.broken.is_none() {
            self.broken = Some(Broken { invariant, why: why.into(), at });
        }
    }

    /// A command of ours has changed something.
    pub fn acted(&mut self, cluster: &ClusterId, api: &Api, effect: &Effect, acting: Acting, now: Timestamp) {
        self.acts += 1;
        self.an_effect_follows_its_intent(api, effect, now);
        self.at_most_one_effect_per_command(effect, now);
        self.no_effect_after_its_deadline(effect, acting, now);
        self.no_effect_without_the_lease(effect, acting, now);
        self.a_final_word_is_final(effect, acting, now);
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

    fn a_final_word_is_final(&mut self, effect: &Effect, acting: Acting, now: Timestamp) {
        if let Some(state) = acting.final_word {
            let why = format!("{} of node {} by {}, which was told as {state}", effect.what, effect.node, effect.command);
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
        let marked = marked(api);
        if let Some(limit) = config.ceiling.nodes_out.filter(|limit| marked > *limit) {
            self.breaks("nodes out never exceed the ceiling", now, format!("{marked} of cluster {cluster}, {limit} are allowed"));
        }
    }

    /// What was committed since the last look.
    pub fn committed(&mut self, db: &Memory, now: Timestamp) {
        for (id, cluster) in &db.clusters {
            let most = self.most.entry(id.clone()).or_default();
            *most = (*most).max(cluster.gpu_nodes());
            for command in cluster.commands.values() {
                if !self.issued.contains_key(&command.planned.id) {
                    self.issue(db, id, cluster, command, now);
                }
            }
            for incident in cluster.incidents.values().filter(|incident| incident.closed_at.is_some()) {
                if self.closed.insert(incident.id) {
                    self.closings += 1;
                }
            }
            if let Some(mute) = cluster.mute.first() {
                self.breaks("what is refused says so", now, mute.clone());
            }
        }
        self.a_budgets_counter_is_the_number_of_its_holds(db, now);
    }

    /// 1. No command without an incident, a reason and the policy revision it came from.
    fn issue(&mut self, db: &Memory, id: &ClusterId, cluster: &Cluster, command: &crate::memory::Command, now: Timestamp) {
        let planned = &command.planned;
        let reasoned =
            cluster.incidents.contains_key(&command.incident) && !planned.reason.is_empty() && command.policy_revision > 0;
        if !reasoned {
            self.breaks("every command has an incident, a reason and a policy", now, planned.id.to_string());
        }
        let text = planned.id.to_string();
        let told = |entry: &std::rc::Rc<gpuheal_hub_core::audit::Entry>| {
            entry.fact.kind == Kind::Decision.as_str() && entry.fact.body.contains(&text)
        };
        let audited = db.audit.get(id.as_str()).is_some_and(|chain| chain.iter().rev().take(200).any(told));
        let number = (id.clone(), command.hub_term, command.cmd_seq);
        if !self.numbers.insert(number) && !self.forgot {
            let why = format!("{id}: term {}, number {}", command.hub_term, command.cmd_seq);
            self.breaks("no number is given out twice", now, why);
        }
        let issued = Issued { times: planned.times, action: planned.action, audited, reasoned };
        self.issued.insert(planned.id, issued);
    }

    fn a_budgets_counter_is_the_number_of_its_holds(&mut self, db: &Memory, now: Timestamp) {
        if let Some(why) = db.counters_differ() {
            self.breaks("a budget's counter is the number of its holds", now, why);
        }
    }

    /// 4. Nodes that we have out at once never exceed any budget: what clusters really show, at each new mark.
    pub fn nodes_out_never_exceed_the_budget(&mut self, db: &Memory, marks: &[(ClusterId, u32)], now: Timestamp) {
        let Some(policy) = db.policies.last().filter(|_| !self.forgot) else { return };
        let budgets = policy.settings.budgets;
        for (cluster, out) in marks {
            let allowed = budgets.cluster.allowed(self.most.get(cluster).copied().unwrap_or(0));
            if *out > allowed {
                self.breaks("nodes out never exceed the budget", now, format!("{out} of cluster {cluster}, {allowed} are allowed"));
            }
        }
        let (all, out) = (self.most.values().sum(), marks.iter().map(|(_, out)| out).sum::<u32>());
        let allowed = budgets.fleet.allowed(all);
        if out > allowed {
            self.breaks("nodes out never exceed the budget", now, format!("{out} of the fleet, {allowed} are allowed"));
        }
    }

    /// A fault's ack reached its spoke.
    pub fn fault_acked(&mut self, cluster: &ClusterId, key: FaultKey, now: Timestamp) {
        self.acked.insert((cluster.clone(), key), now);
    }

    /// The database was restored from a backup of that moment: what was acked since is the journals' to send again.
    pub fn is_restored(&mut self, backup: Timestamp, raised: bool) {
        self.acked.retain(|_, at| *at <= backup);
        self.forgot |= !raised;
        self.restored = true;
    }

    /// Somebody else has taken a mark off a node: to set it again is another effect.
    pub fn unmarked(&mut self, uid: &str) {
        self.effects.retain(|(_, what), (_, of)| what != "mark" || of != uid);
    }

    /// 5. A fault that the hub acked is settled or open, never lost: in front of a judge or in an incident.
    pub fn no_acked_fault_is_lost(&mut self, db: &Memory, now: Timestamp) {
        let lost = self.acked.keys().find(|(cluster, key)| {
            let Some(rows) = db.clusters.get(cluster) else { return true };
            let Some(fault) = rows.faults.get(key).and_then(|episodes| episodes.last()) else { return true };
            let node = &fault.node().uid;
            let held = rows.incidents.values().any(|incident| incident.faults.contains_key(&(*key, fault.known.episode)));
            fault.known.settled.is_none() && !held && !rows.judgements.contains_key(node)
        });
        if let Some((cluster, key)) = lost.cloned() {
            self.breaks("no acked fault is lost", now, format!("{key} of cluster {cluster}"));
        }
    }

    /// 7. Absence is not health: no incident that had a fault which is still there is closed as released.
    pub fn silence_closes_nothing(&mut self, id: &ClusterId, db: &Memory, bodies: &BTreeMap<String, Body>, now: Timestamp) {
        let Some(cluster) = db.clusters.get(id) else { return };
        for incident in cluster.incidents.values() {
            let fresh = incident.closed_at.is_some_and(|at| now.since(at) < Duration::from_secs(2));
            if incident.state != IncidentState::Released || !fresh {
                continue;
            }
            let body = bodies.get(incident.node.name.as_str()).filter(|body| body.uid == incident.node.uid.as_str());
            // What broke after the release was decided is the next incident's.
            let releases = cluster
                .commands
                .values()
                .filter(|command| command.incident == incident.id && command.planned.action == Action::Release);
            let decided_at = releases.map(|command| command.planned.times.created).max().or(incident.closed_at).unwrap_or(now);
            for (key, _) in incident.faults.keys() {
                let Some(fault) = cluster.faults.get(key).and_then(|episodes| episodes.last()) else { continue };
                let slot = fault.known.gpu.as_ref().and_then(|gpu| gpu.slot.as_ref()).map(ToString::to_string);
                let shown =
                    |(gpu, ill, _): &&(u8, Ill, Timestamp)| Some(body::slot(*gpu)) == slot && shows(*ill, fault.known.class);
                let Some((_, ill, since)) = body.and_then(|body| body.ills.iter().find(shown)) else { continue };
                let evidence = fault.known.evidence;
                let seen = decided_at.since(*since) > SIGHT;
                if seen && (evidence.state != EvidenceState::Clear || evidence.since > *since) {
                    let (node, state) = (&incident.node.name, evidence.state);
                    let why = format!(
                        "{node} was released, {ill:?} is there since {since}, its evidence is {state:?} since {}",
                        evidence.since
                    );
                    self.breaks("silence closes nothing", now, why);
                }
            }
        }
    }

    /// 8. The audit chain verifies from its first entry.
    pub fn the_audit_chain_is_whole(&mut self, db: &Memory, now: Timestamp) {
        if let Err(verdict) = db.audit_verify() {
            self.breaks("the audit chain is whole", now, format!("{verdict:?}"));
        }
    }

    /// Liveness: every command is terminal by `finish_by` + 60 s, what was received and what was not.
    pub fn every_command_ends(&mut self, db: &Memory, now: Timestamp) {
        for command in db.clusters.values().flat_map(|cluster| cluster.commands.values()) {
            let late = now.since(command.planned.times.finish_by) > Duration::from_secs(70);
            if late && !command.state.terminal() {
                let why = format!("{} is {} and was due by {}", command.planned.id, command.state, command.planned.times.finish_by);
                self.breaks("every command ends by finish_by and a minute", now, why);
            }
        }
    }

    /// The generation is looked at in the transaction that takes a batch.
    pub fn a_session_that_was_taken_over_commits_nothing(&mut self, db: &Memory, owner: &Owner, now: Timestamp) {
        let session = db.sessions(&owner.cluster).find(|(replica, _)| **replica == owner.replica);
        let generation = session.map(|(_, session)| session.generation);
        if generation != Some(owner.generation) {
            let why = format!("generation {} of {}/{}, {generation:?} owns it", owner.generation, owner.cluster, owner.replica);
            self.breaks("a session that was taken over commits nothing", now, why);
        }
    }

    /// Undelivered by `deliver_by`: dead.
    pub fn nothing_is_sent_after_its_time(&mut self, sent: &[Due], now: Timestamp) {
        for due in sent.iter().filter(|due| !due.cancels) {
            let late = self.issued.get(&due.command).filter(|issued| due.at > issued.times.deliver_by);
            if let Some(by) = late.map(|issued| issued.times.deliver_by) {
                self.breaks("nothing is sent after its time", now, format!("{} was to be delivered by {by}", due.command));
            }
        }
    }

    /// Liveness: an intent is taken up until it has an end.
    pub fn every_intent_ends(&mut self, id: &ClusterId, api: &Api, now: Timestamp) {
        for action in api.actions.values().filter(|action| !healaction::is_final(action)) {
            let by = parse_rfc3339(&action.spec.finish_by).unwrap_or(Timestamp::EPOCH);
            if now.since(by) > Duration::from_secs(60) {
                self.breaks("every intent ends", now, format!("{id}: {} is {} past {by}", action.id(), healaction::state(action)));
            }
        }
    }

    /// Liveness: what a cluster says of a command is what the hub knows of it, if it knows the command at all.
    pub fn what_was_done_is_known(&mut self, id: &ClusterId, api: &Api, db: &Memory, now: Timestamp) {
        // What was acked and then forgotten is not told again: see docs/simulation.md.
        let Some(rows) = db.clusters.get(id).filter(|_| !self.restored) else { return };
        for action in api.actions.values().filter(|action| healaction::is_final(action)) {
            let command = CommandId::parse(action.id()).ok().and_then(|id| rows.commands.get(&id));
            let Some(state) = command.map(|command| command.state) else { continue };
            if state != healaction::state(action) {
                let why = format!("{id}: {} is {} there and {state} at the hub", action.id(), healaction::state(action));
                self.breaks("what was done is known", now, why);
            }
        }
    }

    /// 5. No node is marked without an open incident.
    pub fn no_mark_without_an_open_incident(&mut self, id: &ClusterId, api: &Api, db: &Memory, now: Timestamp) {
        let Some(cluster) = db.clusters.get(id) else { return };
        for node in api.nodes.values().filter(|node| node.facts.marked()) {
            let open = NodeUid::parse(&node.facts.uid).ok().and_then(|uid| cluster.open_incident(&uid));
            if open.is_none() {
                self.breaks("no mark without an open incident", now, format!("{id}/{}", node.facts.name));
            }
        }
    }

    /// 10. What is refused, skipped, blocked or dropped says so.
    pub fn what_is_refused_says_so(&mut self, db: &Memory, now: Timestamp) {
        for incident in db.clusters.values().flat_map(|cluster| cluster.incidents.values()) {
            if incident.reason.is_empty() {
                self.breaks(
                    "what is refused says so",
                    now,
                    format!("incident {} is {} without a reason", incident.id, incident.state),
                );
            }
        }
        if let Some((id, _)) = self.issued.iter().find(|(_, issued)| !issued.reasoned) {
            self.breaks("what is refused says so", now, format!("command {id} has no reason"));
        }
    }
}

/// Nodes with a mark of ours.
#[must_use]
pub fn marked(api: &Api) -> u32 {
    u32::try_from(api.nodes.values().filter(|node| node.facts.marked()).count()).unwrap_or(u32::MAX)
}

/// Whether an illness shows as a fault of that class.
fn shows(ill: Ill, class: FaultClass) -> bool {
    match ill {
        Ill::RowRemap => class == FaultClass::RowRemap,
        Ill::Hot => class == FaultClass::Thermal,
        Ill::Xid => class == FaultClass::Xid,
    }
}
