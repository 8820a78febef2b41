//! Stage 5: judges nodes that are due and commits what follows. Snapshot and policy in; incident, decision, commands,
//! cooldown, place in the budgets and audit out, in one transaction or not at all. The judging itself is pure and in
//! `gpuheal_hub_core::decide`; here are the transaction around it and the workers that run it.

mod apply;
mod explain;
mod judge;
mod policies;
mod process;
mod told;
mod wire;
mod worker;

pub(crate) use apply::Issued;
pub use explain::{Closed, Explained, Now, Subject, explain, explain_subject};
pub use policies::policy_in_force;
pub use process::{Answer, ManualRequest, Outcome, process};
pub use wire::{process_by_user, process_from_spoke};
pub(crate) use worker::within;
pub use worker::{WORKERS, run, step};

use crate::store;

/// Why nothing was decided.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// A stored policy that this version cannot read.
    #[error("policy revision {revision} cannot be read by this version: {first}")]
    Policy {
        /// Which.
        revision: u64,
        /// The first of what is wrong.
        first: String,
    },
    /// The decision function itself failed: a defect, which stays with the node that shows it.
    #[error("judging node {node} failed: {why}")]
    Panicked {
        /// The node.
        node: String,
        /// What it said.
        why: String,
    },
    /// A decision with commands and no incident, or the like: nothing of it is stored.
    #[error("a decision about node {node} makes no sense: {why}")]
    Senseless {
        /// The node.
        node: String,
        /// Why.
        why: &'static str,
    },
    /// Something asked for that is not there.
    #[error("{what} is not known")]
    Unknown {
        /// What.
        what: String,
    },
    /// Something asked for that cannot be.
    #[error("{field}: {why}")]
    Invalid {
        /// Which field.
        field: &'static str,
        /// Why.
        why: String,
    },
}

impl Error {
    /// Whether the same question may be answered in a moment.
    #[must_use]
    pub fn transient(&self) -> bool {
        matches!(self, Self::Store(error) if error.class() != store::Class::Bug)
    }
}

impl From<Error> for tonic::Status {
    fn from(error: Error) -> Self {
        match &error {
            Error::Store(store) if store.class() == store::Class::Transient => Self::unavailable(error.to_string()),
            Error::Store(_) | Error::Panicked { .. } | Error::Senseless { .. } => Self::internal(error.to_string()),
            Error::Policy { .. } => Self::failed_precondition(error.to_string()),
            Error::Unknown { .. } => Self::not_found(error.to_string()),
            Error::Invalid { .. } => Self::invalid_argument(error.to_string()),
        }
    }
}
