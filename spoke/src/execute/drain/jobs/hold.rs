//! What kind of thing keeps a pod from being evicted yet. Each is told once of each pod: what is in the way may change, and words
//! that change with every answer are no news.

use super::super::evict::Outcome;

/// One kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum Hold {
    /// A PodDisruptionBudget has no disruption left.
    Budget,
    /// Several of them match it, which a person must mend.
    Budgets,
    /// A webhook or an admission policy says no, or cannot be asked.
    Admission,
    /// The API server fails at it, or does not answer.
    Server,
    /// The API server takes no such eviction: its namespace goes away, or our words do not hold there.
    Refusal,
    /// It is the only ready replica of its owner.
    Replica,
    /// Its storage could not be read.
    Storage,
}

impl Hold {
    /// Kinds that there are: so many Events of this sort a pod may get from one command.
    #[cfg(test)]
    pub(super) const ALL: [Self; 7] =
        [Self::Budget, Self::Budgets, Self::Admission, Self::Server, Self::Refusal, Self::Replica, Self::Storage];

    /// What an answer tells of, where it was no yes.
    pub(super) const fn of(outcome: &Outcome) -> Option<Self> {
        match outcome {
            Outcome::Budget { .. } => Some(Self::Budget),
            Outcome::ManyBudgets { .. } => Some(Self::Budgets),
            Outcome::Denied { .. } => Some(Self::Admission),
            Outcome::Failed { .. } | Outcome::Again { .. } | Outcome::Doubt => Some(Self::Server),
            Outcome::Terminating | Outcome::Invalid { .. } | Outcome::NoRight { .. } => Some(Self::Refusal),
            Outcome::Accepted | Outcome::Gone | Outcome::Throttled { .. } | Outcome::Unsent => None,
        }
    }

    /// As it stands in an Event's name: the same for whoever takes the command up.
    pub(in super::super) const fn word(self) -> &'static str {
        match self {
            Self::Budget => "budget",
            Self::Budgets => "budgets",
            Self::Admission => "admission",
            Self::Server => "server",
            Self::Refusal => "refusal",
            Self::Replica => "replica",
            Self::Storage => "storage",
        }
    }
}
