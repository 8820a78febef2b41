//! One fault's verdict: its level, whether its witnesses are enough, what the mode allows for it here, and until when
//! it waits if it does.

use gpuheal_proto::{
    fault::{FaultClass, GpuRef},
    time::Timestamp,
    words::{Action, Level, Mode},
};

use super::{Verdict, VerdictOutcome};
use crate::{
    classify::{Classified, classify},
    corroborate::{Standing, corroborate},
    policy::{Policy, Settings, scope::Stance},
    snapshot::{EvidenceState, KnownFault, Snapshot},
};

/// A fault, judged.
#[derive(Clone, Debug)]
pub(super) struct Judged<'a> {
    pub(super) fault: &'a KnownFault,
    pub(super) classified: Classified,
    pub(super) stance: Stance,
    pub(super) outcome: VerdictOutcome,
    pub(super) reason: String,
    /// What it is reason enough for.
    pub(super) want: Option<Action>,
    /// When it must be looked at again.
    pub(super) wait_until: Option<Timestamp>,
    /// From when on people should be told.
    pub(super) tell_at: Option<Timestamp>,
    /// What would have to be different.
    pub(super) would: Option<String>,
}

impl Judged<'_> {
    pub(super) fn verdict(&self) -> Verdict {
        Verdict {
            key: self.fault.key,
            level: self.classified.level,
            rule: self.classified.rule.clone(),
            mode: self.stance.mode,
            mode_from: self.stance.mode_from.clone(),
            outcome: self.outcome,
            reason: self.reason.clone(),
        }
    }

    /// Still part of the node's trouble.
    pub(super) fn live(&self) -> bool {
        match self.outcome {
            VerdictOutcome::Acts | VerdictOutcome::Waits | VerdictOutcome::Recorded => true,
            VerdictOutcome::Settled | VerdictOutcome::Clear => false,
        }
    }

    /// It is reason enough for its GPU's users to be moved.
    pub(super) fn asks_to_evict(&self) -> bool {
        self.want == Some(Action::Evict)
    }

    /// `xid 79 on GPU 0000:5d:00`.
    pub(super) fn name(&self) -> String {
        name(self.fault)
    }
}

/// A fault in words.
pub(super) fn name(fault: &KnownFault) -> String {
    let code = if fault.code.is_empty() { String::new() } else { format!(" {}", fault.code) };
    let place = fault.gpu.as_ref().and_then(GpuRef::place).map(|place| format!(" on GPU {place}"));
    format!("{}{code}{}", fault.class, place.unwrap_or_default())
}

/// Judges every fault of the snapshot, the worst first.
pub(super) fn judge_all<'a>(snapshot: &'a Snapshot, policy: &Policy, settings: &Settings, now: Timestamp) -> Vec<Judged<'a>> {
    let judge = |fault| judge(fault, snapshot, policy, settings, now);
    let mut judged: Vec<_> = snapshot.faults.iter().map(judge).collect();
    let rank = |one: &Judged<'_>| (one.want, one.classified.level, std::cmp::Reverse(one.fault.first_at), one.fault.key);
    judged.sort_by_key(|one| std::cmp::Reverse(rank(one)));
    judged
}

fn judge<'a>(fault: &'a KnownFault, snapshot: &Snapshot, policy: &Policy, settings: &Settings, now: Timestamp) -> Judged<'a> {
    let stance = policy.stance(snapshot, Some(fault));
    let ruled = stance.level.as_ref().map(|(name, level)| (name.as_str(), *level));
    let classified = classify(fault, settings, ruled);
    let mut judged = Judged {
        fault,
        reason: classified.why.clone(),
        classified,
        stance,
        outcome: VerdictOutcome::Recorded,
        want: None,
        wait_until: None,
        tell_at: None,
        would: None,
    };
    let level = judged.classified.level;
    if let Some(settled) = fault.settled.filter(|settled| level <= settled.level) {
        judged.outcome = VerdictOutcome::Settled;
        judged.reason = format!("an earlier incident settled this episode up to {}", settled.level);
        judged.would = reopens(&judged, settled.level);
        return judged;
    }
    if fault.evidence.state == EvidenceState::Clear {
        judged.outcome = VerdictOutcome::Clear;
        judged.reason = format!("its own source shows it no longer, since {}", fault.evidence.since);
        return judged;
    }
    if level == Level::P2 || judged.classified.user_app || fault.class == FaultClass::Source {
        judged.tell_at = judged.classified.notify.then_some(fault.first_at);
        judged.reason = recorded(&judged);
        return judged;
    }
    match corroborate(fault, &judged.classified, &snapshot.faults, settings, now) {
        Standing::Waits(why) => {
            judged.outcome = VerdictOutcome::Waits;
            judged.tell_at = Some(fault.first_at.after(settings.corroboration.within));
            judged.wait_until = judged.tell_at.filter(|at| now < *at);
            judged.would = Some(format!("{}: a second kind of witness, or a person", judged.name()));
            judged.reason = format!("{}; {why}", judged.classified.why);
        }
        Standing::Stands(why) => {
            judged.tell_at = Some(fault.first_at);
            judged.reason = format!("{}; {why}", judged.classified.why);
            stands(&mut judged, settings, now);
        }
    }
    judged
}

/// What would make a settled fault count again, while its source still shows it or is silent.
fn reopens(judged: &Judged<'_>, settled: Level) -> Option<String> {
    let worse = if settled < Level::P0 { format!(", becomes worse than {settled}") } else { String::new() };
    let stands = judged.fault.evidence.state != EvidenceState::Clear;
    stands.then(|| format!("{}: its source shows it anew{worse}, or a person asks for process mark or evict", judged.name()))
}

fn recorded(judged: &Judged<'_>) -> String {
    let level = judged.classified.level;
    if judged.classified.user_app {
        return format!("{level} {}: the application's own error, never by itself a reason to quarantine", judged.classified.why);
    }
    format!("{level} {}: recorded", judged.classified.why)
}

fn stands(judged: &mut Judged<'_>, settings: &Settings, now: Timestamp) {
    let (level, act_from) = (judged.classified.level, judged.stance.act_from);
    if level < act_from {
        judged.reason = format!("{}; only {act_from} and worse is acted on here", judged.reason);
        judged.would = Some(format!("actFrom {level} in the policy or the cluster's alertLevel"));
        return;
    }
    if level == Level::P1 && !watched(judged, settings, now) {
        return;
    }
    let reach = |action| if settings.response.evict { action } else { Action::Mark };
    judged.want = match judged.stance.mode {
        Mode::Observe | Mode::Notify => None,
        Mode::Mark => Some(Action::Mark),
        Mode::Approve | Mode::Heal => Some(reach(Action::Evict)),
    };
    if judged.want.is_some() {
        judged.outcome = VerdictOutcome::Acts;
    } else {
        let (mode, from) = (judged.stance.mode, &judged.stance.mode_from);
        judged.reason = format!("{}; mode {mode} ({from}) allows no more", judged.reason);
        judged.would = Some(format!("mode mark or higher, {from} says {mode}"));
    }
}

/// P1 is acted on when it outlasts its window and is still seen then. Silence is no sight.
fn watched(judged: &mut Judged<'_>, settings: &Settings, now: Timestamp) -> bool {
    let window = settings.windows.observation;
    let until = judged.fault.first_at.after(window);
    let minutes = window.as_secs() / 60;
    if now < until {
        judged.outcome = VerdictOutcome::Waits;
        judged.wait_until = Some(until);
        judged.reason = format!("{}; watched for {minutes} min, until {until}", judged.reason);
        judged.would = Some(format!("{} still seen at {until}", judged.name()));
        return false;
    }
    if judged.fault.evidence.state != EvidenceState::Seen {
        judged.outcome = VerdictOutcome::Waits;
        judged.reason = format!("{}; its window of {minutes} min is over, yet its source is silent", judged.reason);
        judged.would = Some(format!("{} seen by a fresh source", judged.name()));
        return false;
    }
    judged.reason = format!("{}; outlasted its window of {minutes} min", judged.reason);
    true
}
