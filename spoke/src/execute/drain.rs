//! The drain step: lists the node's pods once, then watches them; evicts what the plan says, each pod at its own pace;
//! waits until the very UIDs are gone. Nothing is polled. A pod that is on its way out already is not evicted again, so
//! that a step which is taken up calls nobody twice.

mod again;
mod evict;
mod jobs;
mod look;
mod pods;
mod scope;
mod volumes;

pub(super) use volumes::Attachments;

use std::{collections::BTreeSet, time::Duration};

use gpuheal_proto::{
    chain::chain,
    command::{Command, DeadlineOutcome, Drain, Step},
};
use gpuheal_spoke_core::drain::{Claims, Plan, PodFacts, Ready, Rules, bare, only_ready, plan, stays};
use tokio::{
    sync::OwnedSemaphorePermit,
    task::JoinSet,
    time::{Instant, sleep_until, timeout_at},
};

pub use self::look::{DRA_GROUP, DRA_VERSION};
use self::{
    evict::Outcome,
    jobs::{Hold, Jobs},
    pods::{Event, Pods},
    scope::Scope,
};
use super::{Ctx, guard::Halt, mark, notify, run::Run};
use crate::{
    events::{Kind, Moment, Whose},
    healaction::PodRecord,
    metrics,
    verify::{hub_now, record_now},
};

/// Evictions in flight at once, per node.
const IN_FLIGHT_MAX: usize = 16;
/// How long the first list may take before the step is left to another try.
const LIST_WAIT: Duration = Duration::from_secs(20);
/// How often a drain looks whether the ConfigMap is heard again.
const LISTEN_EVERY: Duration = Duration::from_secs(1);
/// How long a drain waits past the pods' own grace for what it begins at its deadline: evictions of what was let finish until
/// then, or deletes past the budgets.
const LAST_WAIT: Duration = Duration::from_secs(60);
/// Pods that an intent names: a node has 16 GPUs at most, and seven slices of each.
const EXPECTED_MAX: usize = 128;

/// Pods that one drain posts Events on, nine each at most: evicted or deleted, left, and seven kinds of what kept it before
/// ([`Hold`]). As many as an intent names.
const TOLD_MAX: usize = EXPECTED_MAX;

/// Drains the node.
pub(super) async fn drain(run: &mut Run<'_>, index: usize, drain: &Drain) -> Result<String, Halt> {
    let mut events = Pods::on(run.ctx, run.command.target.node.name.as_str());
    if run.command.drains_marked() {
        mark::standing(run).await?;
        notify::tell(run, "drain", Kind::Warning, "draining: GPU pods are being evicted".to_owned());
    }
    let earlier = run.pods_before(index);
    let (late, mut pods) = first_list(run, &mut events).await?.into_iter().partition::<Vec<_>, _>(|pod| came_later(&earlier, pod));
    let config = run.ctx.config();
    let claims = look::claims(&run.ctx.kube, run.command.target.node.name.as_str(), &pods).await;
    let scope = Scope::of(run.ctx, run.command, claims, &earlier);
    let gpus = run.ctx.deps.nodes.gpus();
    scope.tell(&mut pods, gpus);
    let storage = look::storage(&run.ctx.kube, &pods, (drain, gpus), scope.other_devices()).await;
    let ready_by_owner = look::ready_by_owner(&run.ctx.deps.nodes, &BTreeSet::new());
    let mut plan = plan(
        pods,
        &Rules {
            drain,
            gpus: run.ctx.deps.nodes.gpus(),
            gpu: scope.gpu(),
            namespace_allowed: &|namespace| config.namespace_allowed(namespace),
            stateful_allowed: &storage.allowed,
            bound_claims: &storage.bound,
            ready_by_owner: &ready_by_owner,
            other_devices: scope.other_devices(),
            spared: scope.spared(),
        },
    );
    plan.hold_back(bare);
    hold_back(run, &mut plan);
    volumes::hold_back(&run.ctx.attachments, run.command.target.node.name.as_str(), &mut plan, &storage.volumes).await;
    let skipped: Vec<PodRecord> = plan.leftovers().map(jobs::skipped_record).collect();
    let mut jobs = Jobs::new(&plan, config.grace_max(drain.grace_max), Instant::now());
    jobs.recall(&earlier);
    late.into_iter().for_each(|pod| jobs.came_later(pod));
    let mut work = Work {
        drain,
        gone_before: gone_before(earlier, &plan),
        jobs,
        calls: JoinSet::new(),
        deadline: deadline(run, index, drain)?,
        outcome: drain.on_deadline,
        extended: false,
        bypass: drain.allow_pdb_bypass,
        skipped,
        spared: spared(&plan).collect(),
        scope: scope.words(&plan),
        told_past: BTreeSet::new(),
        told_pods: BTreeSet::new(),
        other_devices: scope.into_other_devices(),
        kept: String::new(),
        judged: BTreeSet::new(),
        slot: None,
        crowded: false,
        index,
    };
    for record in work.skipped.clone() {
        let left = format!("left on node {}: {}", run.command.target.node.name, record.reason);
        work.tell_pod(run, Whose::from(&record), Moment::of("stays", &record.uid), Kind::Warning, left);
    }
    let (node, pods) = (&run.command.target.node.name, work.jobs.len());
    tracing::info!(command.id = %run.command.id, node.name = %node, pods, scope = work.scope, "draining");
    let result = work.run(run, &mut events).await;
    while let Some(done) = work.calls.join_next().await {
        work.answered(run, done);
    }
    run.status.steps[index].pods = work.records();
    work.tell_past_budgets(run);
    result?;
    work.kept = volumes::kept(&run.ctx.attachments, node.as_str(), &work.jobs.stuck_pods(), &storage.volumes).await;
    work.outcome()
}

/// Leaves alone whose owner has put it onto this node again and again; who waives the cooldown by hand means to try once more.
fn hold_back(run: &mut Run<'_>, plan: &mut Plan) {
    if run.command.ignore_cooldown {
        return;
    }
    let all = run.ctx.actions.all();
    let actions = all.iter().map(|action| &**action);
    let earlier = again::earlier(actions, run.command.target.node.uid.as_str(), &run.command.id.to_string());
    for (owner, told) in again::hold_back(plan, &earlier) {
        tell(run, Moment::of("again", &owner), told);
    }
}

/// The pods that this drain is about, as our watch shows them: for the intent, so that whoever takes it up before the
/// first progress was written still knows of those that are gone. Costs no call. Whether storage may be touched is found
/// out later: until then its pods are among them.
pub(super) fn expected(ctx: &Ctx, command: &Command) -> Vec<PodRecord> {
    let drain = command.steps.iter().find_map(|step| if let Step::Drain(drain) = step { Some(drain) } else { None });
    let Some(drain) = drain else { return Vec::new() };
    let pods = ctx.deps.nodes.pods_on(command.target.node.name.as_str());
    let config = ctx.config();
    let scope = Scope::of(ctx, command, Claims::default(), &[]);
    let mut pods: Vec<_> = pods.iter().map(|pod| pod.facts()).collect();
    scope.tell(&mut pods, ctx.deps.nodes.gpus());
    let mut plan = plan(
        pods,
        &Rules {
            drain,
            gpus: ctx.deps.nodes.gpus(),
            gpu: scope.gpu(),
            namespace_allowed: &|namespace| config.namespace_allowed(namespace),
            stateful_allowed: &BTreeSet::new(),
            bound_claims: &BTreeSet::new(),
            ready_by_owner: &Ready::new(),
            other_devices: scope.other_devices(),
            spared: scope.spared(),
        },
    );
    plan.hold_back(bare);
    let stored = plan.leftovers().filter(|left| drain.include_stateful && !left.pod.claims.is_empty()).map(|left| &left.pod);
    let go = plan.planned().map(|planned| &planned.pod).chain(stored).map(jobs::planned_record);
    go.chain(spared(&plan)).take(EXPECTED_MAX).collect()
}

/// Records of those that are left alone since they use another GPU.
fn spared(plan: &Plan) -> impl Iterator<Item = PodRecord> {
    let spared = plan.skipped.iter().filter(|skipped| plan.spared.contains(&skipped.pod.uid));
    spared.map(|skipped| PodRecord { spared: true, ..jobs::skipped_record(skipped) })
}

/// Those of `earlier` that were to go and that the plan does not know any more.
fn gone_before(earlier: Vec<PodRecord>, plan: &Plan) -> Vec<PodRecord> {
    let stays = plan.leftovers().map(|one| &one.pod).map(uid).chain(plan.spared.iter().map(String::as_str));
    let here: BTreeSet<&str> = plan.planned().map(|one| &one.pod).map(uid).chain(stays).collect();
    let went = earlier.into_iter().filter(|pod| pod.state != "skipped" && !here.contains(pod.uid.as_str()));
    went.map(|pod| PodRecord { state: "gone".to_owned(), reason: String::new(), ..pod }).collect()
}

/// Whoever was at work before saw it come after the drain had begun: it was none of the plan's, and does not become one.
fn came_later(earlier: &[PodRecord], pod: &PodFacts) -> bool {
    earlier.iter().any(|record| record.uid == pod.uid && record.came_later)
}

fn uid(pod: &PodFacts) -> &str {
    pod.uid.as_str()
}

/// A pod's storage when its turn has come.
#[derive(Default)]
struct StorageNow {
    known: look::Storage,
    /// Why its volumes could not follow it.
    stuck: Option<String>,
    /// Why it is not known.
    unread: Option<String>,
}

struct Work<'a> {
    /// The command's words.
    drain: &'a Drain,
    jobs: Jobs,
    calls: JoinSet<(String, Outcome)>,
    deadline: Instant,
    outcome: DeadlineOutcome,
    /// The deadline was moved once for those on their way out.
    extended: bool,
    bypass: bool,
    skipped: Vec<PodRecord>,
    /// Pods that use another GPU.
    spared: Vec<PodRecord>,
    /// What became of the wish to drain one GPU alone.
    scope: String,
    /// UIDs of those of whom it was told that they went past their budgets.
    told_past: BTreeSet<String>,
    /// UIDs of those that an Event was posted on.
    told_pods: BTreeSet<String>,
    /// ResourceClaims that are for no GPU.
    other_devices: BTreeSet<String>,
    /// What to say of volumes that a dead node keeps.
    kept: String,
    /// UIDs of those whose turn had come before.
    judged: BTreeSet<String>,
    /// Room for an eviction, for which this drain has waited in turn.
    slot: Option<OwnedSemaphorePermit>,
    /// There was none.
    crowded: bool,
    /// Pods that went while somebody else was at work on this drain.
    gone_before: Vec<PodRecord>,
    index: usize,
}

impl Work<'_> {
    async fn run(&mut self, run: &mut Run<'_>, events: &mut Pods) -> Result<(), Halt> {
        let mut changes = run.ctx.deps.nodes.changes();
        while !self.jobs.settled() {
            self.look(run);
            self.launch(run).await?;
            if self.jobs.settled() {
                break;
            }
            let listen = run.guard.unheard().map(|_| Instant::now() + LISTEN_EVERY);
            let next = [self.jobs.next_due(), run.ctx.kube.patience_of(run.command.id), listen].into_iter().flatten().min();
            let wake = next.unwrap_or(self.deadline).min(self.deadline);
            let wake = if self.jobs.dirty() { wake.min(run.progress_at()) } else { wake };
            tokio::select! {
                Some(done) = self.calls.join_next() => self.answered(run, done),
                slot = run.ctx.kube.slot_in_turn(), if self.crowded => {
                    (self.slot, self.crowded) = (Some(slot), false);
                }
                event = events.next() => self.jobs.seen(event, Instant::now()),
                () = run.guard.interrupted() => run.guard.pass().await?,
                // Its kubelet may fall silent.
                Ok(()) = changes.changed(), if self.jobs.leaving() => {}
                () = sleep_until(wake) => {}
            }
            self.look(run);
            self.jobs.age(Instant::now());
            self.tell_past_budgets(run);
            for (owner, told) in self.jobs.take_told() {
                tell(run, Moment::of("returns", &owner), told);
            }
            if Instant::now() >= self.deadline && !self.jobs.settled() {
                self.past_deadline(run).await?;
            }
            if self.jobs.take_dirty(Instant::now() >= run.progress_at()) {
                run.progress(self.index, self.records()).await?;
            }
        }
        Ok(())
    }

    fn look(&mut self, run: &Run<'_>) {
        let node = run.ctx.deps.nodes.node(run.command.target.node.name.as_str());
        let silent = node.is_some_and(|node| look::kubelet_silent(&node));
        self.jobs.look(run.ctx.config().grace_max(self.drain.grace_max), silent);
    }

    /// Asks for every eviction that is due, each after the guard. While the API server wants to be left alone, or nobody knows whether
    /// the owner says stop, nobody is due: what happens meanwhile is seen.
    async fn launch(&mut self, run: &mut Run<'_>) -> Result<(), Halt> {
        for uid in self.jobs.due(Instant::now()) {
            if self.calls.len() >= IN_FLIGHT_MAX
                || run.ctx.kube.patience_of(run.command.id).is_some()
                || run.guard.unheard().is_some()
            {
                self.slot = None;
                return Ok(());
            }
            if let Some(why) = self.only_ready(run, &uid) {
                self.waits(run, &uid, why);
                continue;
            }
            let now = self.storage_now(run, &uid).await?;
            self.judged.insert(uid.clone());
            run.guard.pass().await?;
            // From here on nothing is waited for.
            let unread = now.unread.as_ref().map(|why| (Hold::Storage, format!("its storage could not be read: {why}")));
            if let Some(why) = self.only_ready(run, &uid).or(unread) {
                self.waits(run, &uid, why);
            } else if let Some(why) = self.stays(run, &uid, &now) {
                self.leave(run, &uid, &why);
            } else {
                let Some(slot) = self.slot.take().or_else(|| run.ctx.kube.slot()) else {
                    self.crowded = true;
                    return Ok(());
                };
                if let Some(call) = self.jobs.launch(&uid) {
                    let kube = run.ctx.kube.clone();
                    self.calls.spawn(async move {
                        let outcome = evict::evict(&kube, &call).await;
                        drop(slot);
                        (uid, outcome)
                    });
                }
            }
        }
        // Who needs it now waits for it.
        self.slot = None;
        Ok(())
    }

    /// It is to stay after all, and is named.
    fn leave(&mut self, run: &mut Run<'_>, uid: &str, why: &str) {
        if let Some(pod) = self.left(run, uid, why) {
            let left = format!("left on node {}: {why}", run.command.target.node.name);
            self.tell_pod(run, pod, Moment::of("stays", uid), Kind::Warning, left);
        }
    }

    /// The same, told on the node alone.
    fn left(&mut self, run: &mut Run<'_>, uid: &str, why: &str) -> Option<Whose> {
        let (record, told) = self.jobs.stays(uid, why)?;
        let pod = Whose::from(&record);
        self.skipped.push(record);
        tell(run, Moment::of("stays", uid), told);
        Some(pod)
    }

    fn waits(&mut self, run: &mut Run<'_>, uid: &str, why: (Hold, String)) {
        if let Some(told) = self.jobs.waits(uid, why, Instant::now()) {
            self.tell_blocked(run, uid, told);
        }
    }

    /// Why a pod with storage waits for another replica to be ready: those that were may be gone by now, and this drain evicted them.
    fn only_ready(&self, run: &Run<'_>, uid: &str) -> Option<(Hold, String)> {
        let pod = self.jobs.to_judge(uid).filter(|pod| !pod.claims.is_empty())?;
        Some((Hold::Replica, only_ready(pod, &look::ready_by_owner(&run.ctx.deps.nodes, &self.jobs.going()))?))
    }

    /// What is known of a pod's storage now that its turn has come: minutes or hours after the plan.
    async fn storage_now(&self, run: &Run<'_>, uid: &str) -> Result<StorageNow, Halt> {
        let Some(pod) = self.jobs.to_judge(uid).filter(|pod| !pod.claims.is_empty()) else { return Ok(StorageNow::default()) };
        let (kube, node) = (&run.ctx.kube, run.command.target.node.name.as_str());
        let again = self.judged.contains(uid);
        loop {
            let ask = async {
                let known =
                    look::storage(kube, std::slice::from_ref(pod), (self.drain, run.ctx.deps.nodes.gpus()), &self.other_devices)
                        .await;
                let stuck = volumes::in_the_way(&run.ctx.attachments, node, (pod, again), &known.volumes).await;
                let unread = known.unread.clone().or_else(|| Some(chain(stuck.as_ref().err()?).to_string()));
                StorageNow { known, stuck: stuck.ok().flatten(), unread }
            };
            tokio::select! {
                now = ask => return Ok(now),
                () = run.guard.interrupted() => run.guard.pass().await?,
            }
        }
    }

    /// Why a pod whose turn has come is to stay after all: its own word, the ceiling, its storage.
    fn stays(&self, run: &Run<'_>, uid: &str, now: &StorageNow) -> Option<String> {
        let pod = self.jobs.to_judge(uid)?;
        let config = run.ctx.config();
        let rules = Rules {
            drain: self.drain,
            gpus: run.ctx.deps.nodes.gpus(),
            gpu: None,
            namespace_allowed: &|namespace| config.namespace_allowed(namespace),
            stateful_allowed: &now.known.allowed,
            bound_claims: &now.known.bound,
            ready_by_owner: &Ready::new(),
            other_devices: &self.other_devices,
            spared: &BTreeSet::new(),
        };
        stays(pod, &rules).or_else(|| bare(pod)).or_else(|| now.stuck.clone())
    }

    /// Each kind once, also by whoever takes the drain up: an Event of that name is there already.
    fn tell_blocked(&mut self, run: &mut Run<'_>, uid: &str, (hold, told): (Hold, String)) {
        let moment = Moment::of_kind("blocked", hold.word(), uid);
        if let Some(pod) = self.jobs.pod(uid).map(Whose::from) {
            self.tell_pod(run, pod, moment.clone(), Kind::Warning, told.clone());
        }
        tell(run, moment, told);
    }

    /// An Event on the pod itself, where its owners look; beyond [`TOLD_MAX`] pods the HealAction alone tells.
    fn tell_pod(&mut self, run: &mut Run<'_>, pod: Whose, moment: Moment, kind: Kind, message: String) {
        if !self.told_pods.contains(pod.uid()) && self.told_pods.len() >= TOLD_MAX {
            return;
        }
        self.told_pods.insert(pod.uid().to_owned());
        let (events, command) = (run.ctx.events.clone(), run.command.clone());
        run.aside(None, async move { events.on_pod(&command, &pod, &moment, kind, &message).await });
    }

    /// Each once: whoever asked for it, and whose pod it was, are to see it.
    fn tell_past_budgets(&mut self, run: &mut Run<'_>) {
        for (pod, told) in self.jobs.past_budgets() {
            if self.told_past.insert(pod.uid.clone()) {
                tracing::warn!(command.id = %run.command.id, pod.uid = pod.uid, "deleted past its budget");
                let moment = Moment::of("past-budget", &pod.uid);
                tell(run, moment.clone(), told.clone());
                self.tell_pod(run, Whose::from(&pod), moment, Kind::Warning, told);
            }
        }
    }

    fn answered(&mut self, run: &mut Run<'_>, done: Result<(String, Outcome), tokio::task::JoinError>) {
        let Ok((uid, outcome)) = done else { return };
        let evicted = outcome == Outcome::Accepted;
        if evicted {
            run.ctx.deps.metrics.inc(metrics::EVICTED, &[]);
        }
        match &outcome {
            // Where we may evict nobody we may post no Event either: the same role gives both.
            Outcome::NoRight { why } if !self.jobs.is_past_budget(&uid) => return drop(self.left(run, &uid, why)),
            Outcome::NoRight { why } => return self.leave(run, &uid, why),
            _ => {}
        }
        if let Some(blocked) = self.jobs.answered(&uid, outcome, Instant::now()) {
            tracing::info!(command.id = %run.command.id, pod.uid = uid, blocked = blocked.1, "eviction blocked");
            self.tell_blocked(run, &uid, blocked);
        } else if let Some(pod) = self.jobs.pod(&uid).filter(|_| evicted && !self.jobs.is_past_budget(&uid)).map(Whose::from) {
            let told = format!("evicted from node {}", run.command.target.node.name);
            self.tell_pod(run, pod, Moment::of("evict", &uid), Kind::Normal, told);
        }
    }

    /// First what was let finish until now is evicted, and what is on its way out gets its grace. Then the policy's word: wait until
    /// `finish_by`, pass the budgets, or stop and ask.
    async fn past_deadline(&mut self, run: &Run<'_>) -> Result<(), Halt> {
        if self.jobs.end_patience(Instant::now()) {
            self.deadline = self.last_wait().min(finish_by(run)?);
            tracing::info!(command.id = %run.command.id, "deadline passed: what was let finish until now is evicted");
            return Ok(());
        }
        // Whoever is on its way out only needs its grace: nobody is to be asked for any more.
        if let Some(by) = self.jobs.last_gone_by().filter(|_| !std::mem::replace(&mut self.extended, true)) {
            self.deadline = by.min(finish_by(run)?);
            tracing::info!(command.id = %run.command.id, "deadline passed: all that are left are on their way out, and have their grace");
            return Ok(());
        }
        match std::mem::replace(&mut self.outcome, DeadlineOutcome::Stop) {
            DeadlineOutcome::Wait => {
                self.deadline = finish_by(run)?;
                Ok(())
            }
            DeadlineOutcome::BypassPdb if self.bypass => {
                run.guard.pass().await?;
                self.deadline = self.last_wait().min(finish_by(run)?);
                tracing::warn!(command.id = %run.command.id, "deadline passed: budgets are passed as the command allows");
                self.jobs.bypass(Instant::now());
                Ok(())
            }
            DeadlineOutcome::BypassPdb | DeadlineOutcome::Stop => {
                Err(Halt::failed(format!("not drained in time: {}", self.jobs.open())))
            }
        }
    }

    fn last_wait(&self) -> Instant {
        Instant::now() + self.jobs.grace_longest() + LAST_WAIT
    }

    fn records(&self) -> Vec<PodRecord> {
        let others = self.skipped.iter().chain(&self.spared).chain(&self.gone_before).cloned();
        self.jobs.records().into_iter().chain(others).collect()
    }

    /// While a pod that holds a GPU is left, nobody may say that the node is drained.
    fn outcome(&self) -> Result<String, Halt> {
        let left: Vec<_> = self.skipped.iter().map(|pod| format!("{}/{}: {}", pod.namespace, pod.name, pod.reason)).collect();
        let stuck = self.jobs.stuck();
        let before = self.gone_before.len();
        let mut message = format!("{} of {} pods gone", self.jobs.gone() + before, self.jobs.len() + before);
        if !self.scope.is_empty() {
            message = format!("{message} ({})", self.scope);
        }
        let returned = self.jobs.returned();
        if !returned.is_empty() {
            message = format!("{message}; {returned} came to this node meanwhile and are left alone");
        }
        if left.is_empty() && stuck.is_empty() {
            return Ok(message);
        }
        let kept = Some(self.kept.clone()).filter(|kept| !kept.is_empty());
        let all: Vec<_> = left.into_iter().chain(stuck).chain(kept).collect();
        Err(Halt::failed(format!("not drained: {message}; left: {}", all.join("; "))))
    }
}

/// An Event on the node, on the side.
fn tell(run: &mut Run<'_>, moment: Moment, message: String) {
    let (events, command) = (run.ctx.events.clone(), run.command.clone());
    run.aside(None, async move { events.on_node(&command, &moment, Kind::Warning, &message).await });
}

/// The pods as the first list gives them. Not being able to list is no empty node.
async fn first_list(run: &Run<'_>, events: &mut Pods) -> Result<Vec<PodFacts>, Halt> {
    let until = Instant::now() + LIST_WAIT;
    let mut pods = Vec::new();
    loop {
        let event = tokio::select! {
            event = timeout_at(until, events.next()) => event,
            () = run.guard.interrupted() => {
                run.guard.pass().await?;
                continue;
            }
        };
        match event {
            Ok(Event::Listing) => pods.clear(),
            Ok(Event::Is(pod)) => pods.push(*pod),
            Ok(Event::Listed) => return Ok(pods),
            Ok(Event::Gone(_)) => {}
            Err(_) => return Err(Halt::Lost("the node's pods could not be listed".to_owned())),
        }
    }
}

/// The step's own deadline, counted from its first beginning, and never past `finish_by`.
fn deadline(run: &Run<'_>, index: usize, drain: &Drain) -> Result<Instant, Halt> {
    let began = gpuheal_proto::time::Timestamp::from_unix_ms(run.status.steps[index].started_unix_ms);
    let used = record_now(&run.ctx.deps.clock).since(began);
    Ok((Instant::now() + drain.deadline.saturating_sub(used)).min(finish_by(run)?))
}

/// Without the hub's time no deadline has passed: whoever takes the step up will know.
fn finish_by(run: &Run<'_>) -> Result<Instant, Halt> {
    let Some(now) = hub_now(&run.ctx.deps.clock) else { return Err(Halt::Lost("the hub's time is not known".to_owned())) };
    Ok(Instant::now() + run.command.times.finish_by.since(now.at.after(now.uncertainty)))
}
