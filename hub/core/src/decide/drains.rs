//! Which drains an incident has had, and which it needs next. A drain is of one GPU's users, or of the whole node; it counts for
//! the faults that it covers and for no other, so that a second GPU that fails has its own.
//!
//! Several GPUs that are ill are drained one after the other, the worst first, and not the node at once: who uses the others loses
//! nothing by a fault that is not theirs, each drain ends with the fault that it is for, and its record says whom it was for. What
//! that costs is time: the second GPU's users wait for the first drain, which its own deadline bounds.

use gpuheal_proto::{
    command::Refusal,
    fault::{FaultClass, GpuRef},
    ids::FaultKey,
    words::{Action, Mode},
};

use super::{case::Case, judge::Judged, plan::Words, progress::Stage};
use crate::{
    gpu::same_board,
    snapshot::{KnownCommand, KnownFault, Snapshot},
};

/// How far each drain of the incident got, oldest first: of what it was, or of the whole node.
#[derive(Clone, Debug, Default)]
pub(super) struct Drains<'a>(Vec<(Option<&'a GpuRef>, Stage)>);

impl<'a> Drains<'a> {
    /// Takes a later drain in. It is the last word on whatever it covers; what came to nothing says nothing.
    pub(super) fn take(&mut self, gpu: Option<&'a GpuRef>, stage: Stage) {
        if stage != Stage::None {
            self.0.retain(|(earlier, _)| !covers(gpu, *earlier));
            self.0.push((gpu, stage));
        }
    }

    /// The users of this GPU, or with none all of the node's, are drained.
    fn done(&self, gpu: Option<&GpuRef>) -> bool {
        self.0.iter().any(|(drained, stage)| *stage == Stage::Done && covers(*drained, gpu))
    }

    /// A drain that covers this GPU has ended, well or ill: there is none to come.
    fn over(&self, gpu: Option<&GpuRef>) -> bool {
        self.0.iter().any(|(drained, stage)| !matches!(stage, Stage::None | Stage::Pending) && covers(*drained, gpu))
    }

    /// One of the whole node ended ill.
    pub(super) fn of_all_ended_ill(&self) -> bool {
        self.0.iter().any(|(gpu, stage)| gpu.is_none() && matches!(stage, Stage::Failed(_) | Stage::Unknown(_)))
    }

    /// The whole node is.
    pub(super) fn of_all_done(&self) -> bool {
        self.done(None)
    }

    /// One is under way.
    pub(super) fn under_way(&self) -> bool {
        self.0.iter().any(|(_, stage)| *stage == Stage::Pending)
    }

    /// Those that ended and did not succeed, or of which nobody knows.
    pub(super) fn ended_ill(&self) -> impl Iterator<Item = &Stage> {
        self.0.iter().map(|(_, stage)| stage).filter(|stage| matches!(stage, Stage::Failed(_) | Stage::Unknown(_)))
    }
}

/// Whether a drain of the one leaves nobody that a drain of the other would move. Only who is known for the same GPU is covered.
fn covers(drained: Option<&GpuRef>, gpu: Option<&GpuRef>) -> bool {
    match (drained, gpu) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(drained), Some(gpu)) => same_board(drained, gpu) == Some(true),
    }
}

/// A drain that is needed.
#[derive(Clone, Debug)]
pub(super) struct NextDrain {
    /// Of which GPU's users; `None`: of all.
    gpu: Option<GpuRef>,
    /// The faults that it is for: once all of them are cleared it is not needed any more.
    faults: Vec<FaultKey>,
    /// None of the faults that ask for it is in mode heal: a person says yes first.
    pub(super) waits: bool,
    /// How far it reaches and why, for people.
    pub(super) words: String,
}

impl NextDrain {
    /// Whether it is for another GPU than this command, of which the fault was over before anything was done: that says nothing
    /// of this one, which need not wait for it.
    pub(super) fn outlives(&self, command: &KnownCommand) -> bool {
        let other = self.gpu.as_ref().zip(command.gpu.as_ref()).and_then(|(gpu, other)| same_board(gpu, other)) == Some(false);
        other && command.refusal == Some(Refusal::FaultCleared)
    }
}

impl Case<'_> {
    /// What is to be drained next for faults that no drain covers yet. One that is of the whole node, or whose GPU has no UUID that
    /// anybody knows, needs the whole node. Faults in mode heal come first, and those that wait for a person neither start their
    /// drain nor widen it. Once a GPU's drain has ended ill, only other GPUs have theirs: one of the whole node would ask again for
    /// what failed.
    pub(super) fn next_drain(&self) -> Option<NextDrain> {
        let asking: Vec<&Judged<'_>> = self.judged.iter().filter(|one| one.want == Some(Action::Evict)).collect();
        let open = asking.iter().filter(|one| {
            let over = self.progress.drains.over(one.fault.gpu.as_ref());
            !over && (one.fault.gpu.is_some() || !self.accounted_for(one.fault))
        });
        let mut open: Vec<(&Judged<'_>, Option<GpuRef>)> = open.map(|one| (*one, identified(self.snapshot, one.fault))).collect();
        if self.progress.drains.ended_ill().next().is_some() {
            open.retain(|(_, gpu)| gpu.is_some());
        }
        let heals = |one: &Judged<'_>| one.stance.mode == Mode::Heal;
        let waits = !open.iter().any(|(one, _)| heals(one));
        open.retain(|(one, _)| waits || heals(one));
        let counts = |one: &&Judged<'_>| one.want.is_some() && (waits || heals(one) || one.want < Some(Action::Evict));
        let of_all = |why: String| NextDrain {
            gpu: None,
            faults: self.judged.iter().filter(counts).map(|one| one.fault.key).collect(),
            waits,
            words: format!("drains the whole node: {why}"),
        };
        if let Some((one, _)) = open.iter().find(|(_, gpu)| gpu.is_none()) {
            let why = if one.fault.gpu.is_some() { "has a GPU of which no UUID is known" } else { "names no GPU" };
            return Some(of_all(format!("{} {why}", one.name())));
        }
        let gpu = open.first()?.1.clone()?;
        let (ours, others): (Vec<_>, Vec<_>) = open.iter().partition(|(_, other)| covers(Some(&gpu), other.as_ref()));
        let name = gpu.place().map(|place| place.to_string()).unwrap_or_default();
        let then = if others.is_empty() { "" } else { "; those of the other GPUs that are ill come after" };
        Some(NextDrain {
            faults: ours.iter().map(|(one, _)| one.fault.key).collect(),
            waits,
            words: format!("drains the users of GPU {name} alone{then}"),
            gpu: Some(gpu),
        })
    }

    /// GPUs that are not offered any more, as many as are ill: the device plugin says only how many it took back, and it takes back
    /// those of which the driver reports an Xid error that is no application's, and those that are gone, for no heat and no row that
    /// waits for a reset. One more than those, and nobody knows which. Of a resource that counts slices or shares the spoke tells no
    /// number of GPUs.
    fn accounted_for(&self, fault: &KnownFault) -> bool {
        if fault.class != FaultClass::Allocatable || fault.count == 0 {
            return false;
        }
        let node = &self.snapshot.node;
        let lacking = fault.count.max(node.capacity_gpus.saturating_sub(node.allocatable_gpus));
        let noticed = self.judged.iter().filter(|one| {
            let class = matches!(one.fault.class, FaultClass::Xid | FaultClass::GpuLost) && !one.classified.user_app;
            class && (one.live() || self.progress.drains.done(one.fault.gpu.as_ref()))
        });
        let mut known: Vec<&GpuRef> = Vec::new();
        for gpu in noticed.filter_map(|one| one.fault.gpu.as_ref()) {
            // Only who is another for sure counts once more.
            if known.iter().all(|other| same_board(gpu, other) == Some(false)) {
                known.push(gpu);
            }
        }
        known.len() as u64 >= u64::from(lacking)
    }

    /// The words of a command that marks, and drains where that is needed. One for a GPU says what is wrong with that.
    pub(super) fn words_of_harm(&self, drain: Option<&NextDrain>) -> Words {
        let acts = |one: &&Judged<'_>| match drain {
            Some(drain) => drain.faults.contains(&one.fault.key),
            None => one.want.is_some(),
        };
        let acting: Vec<&Judged<'_>> = self.judged.iter().filter(acts).collect();
        let first = self.decision.reasons.first().cloned().unwrap_or_default();
        let of_gpu = drain.filter(|drain| drain.gpu.is_some()).and(acting.first());
        let words = self.words(&acting, &of_gpu.map_or(first, |one| format!("{}: {}", one.name(), one.reason)));
        match drain {
            Some(drain) => Words { gpu: drain.gpu.clone(), ..words },
            None => words,
        }
    }
}

/// The GPU of a fault with its UUID, by which alone a spoke knows who uses it: as its source named it, else as the node shows what
/// sits in that slot.
fn identified(snapshot: &Snapshot, fault: &KnownFault) -> Option<GpuRef> {
    let gpu = fault.gpu.as_ref()?;
    if gpu.uuid.is_some() {
        return Some(gpu.clone());
    }
    let slot = gpu.slot.as_ref()?;
    snapshot.node.gpus.iter().find(|shown| shown.slot.as_ref() == Some(slot) && shown.uuid.is_some()).cloned()
}
