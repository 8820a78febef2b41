//! Deliberate defects, each the removal of one guard. A simulation that does not catch them proves nothing: the tests
//! switch each one on and demand that an invariant is broken within a few seeds.

/// One guard taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mutation {
    /// The hub takes what a session sends that was taken over.
    AnyGeneration,
    /// The hub acks a batch before it is committed, and then loses it.
    AckBeforeCommit,
    /// The hub sends a command again whatever its deadlines say.
    ResendAfterExpiry,
    /// The epoch of the database never rises, whatever clusters have seen.
    TermNeverRises,
    /// A place in the budgets is taken without looking whether there is one.
    BudgetUnguarded,
    /// A command that came to nothing gives its place back before the cluster has been seen.
    HoldFreedBlind,
    /// Decisions are not written to the audit.
    NoAudit,
    /// The spoke leaves no tombstone for what it refuses or is told to cancel.
    NoTombstone,
    /// The spoke acts whatever the time is.
    AnyTime,
    /// The spoke acts without holding the Lease.
    AnyLeader,
    /// The spoke patches nodes without their resourceVersion.
    AnyVersion,
    /// The intent is created after the act.
    ActBeforeIntent,
    /// The undo record is read after our own patch.
    UndoAfterPatch,
    /// A journal that was not closed goes on under its old stream.
    StreamReused,
    /// A source that is silent counts as clear.
    SilenceIsHealth,
    /// The ceiling is not looked at.
    NoCeiling,
    /// An open HealAction is never taken up by the next leader.
    NobodyResumes,
    /// A status is told once and never again, whoever asks.
    ToldOnce,
    /// Commands that ran out of time are left as they are.
    NoSweep,
    /// Anybody's signature is as good as the hub's.
    AnySignature,
    /// The hub takes whatever it knows of a cluster for all that there is to know.
    ToldBlind,
    /// The hub takes a drain of one GPU's users for one of the whole node.
    AnyDrainIsAll,
    /// Nobody is asked what became of a command whose end was not told.
    NobodyIsAsked,
    /// A server that was started anew is taken for the one that it was.
    AnyServer,
    /// A leader proves itself before it knows what its cluster has seen.
    ProvesUnseen,
    /// Nobody is asked how faults stand that another replica found.
    FindersAlone,
    /// What is due is never judged.
    NobodyJudges,
    /// A release is decided and never commanded.
    NobodyReleases,
    /// A hub that does not reach its database serves what it last saw there.
    ServesWithoutDatabase,
}

impl Mutation {
    /// Every one.
    pub const ALL: &'static [Self] = &[
        Self::AnyGeneration,
        Self::AckBeforeCommit,
        Self::ResendAfterExpiry,
        Self::TermNeverRises,
        Self::BudgetUnguarded,
        Self::HoldFreedBlind,
        Self::NoAudit,
        Self::NoTombstone,
        Self::AnyTime,
        Self::AnyLeader,
        Self::AnyVersion,
        Self::ActBeforeIntent,
        Self::UndoAfterPatch,
        Self::StreamReused,
        Self::SilenceIsHealth,
        Self::NoCeiling,
        Self::NobodyResumes,
        Self::ToldOnce,
        Self::NoSweep,
        Self::AnySignature,
        Self::ToldBlind,
        Self::AnyDrainIsAll,
        Self::NobodyIsAsked,
        Self::AnyServer,
        Self::ProvesUnseen,
        Self::FindersAlone,
        Self::NobodyJudges,
        Self::NobodyReleases,
        Self::ServesWithoutDatabase,
    ];
}

/// Those that are switched on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mutations(Option<Mutation>);

impl Mutations {
    /// This one.
    #[must_use]
    pub const fn only(mutation: Mutation) -> Self {
        Self(Some(mutation))
    }

    /// Whether it is on.
    #[must_use]
    pub fn has(self, mutation: Mutation) -> bool {
        self.0 == Some(mutation)
    }
}
