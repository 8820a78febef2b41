//! The rules of the API that hold for every resource: what create, update and delete mean.
//! Works inside one store transaction; knows nothing of HTTP, users and faults, which `http` puts before it.

mod create;
mod defaults;
mod delete;
mod eviction;
mod update;
mod validate;

pub(crate) use create::{create, ensure_namespace};
pub(crate) use delete::{DeleteOptions, Deleted, delete};
pub(crate) use eviction::{Eviction, bind, evict, refused_by_budget};
pub(crate) use update::{Part, update};

/// Who writes, and in which manner.
#[derive(Debug, Clone)]
pub(crate) struct WriteOptions {
    /// `managedFields` manager.
    pub(crate) manager: String,
    /// A PUT, which must carry a resourceVersion where the kind demands it.
    pub(crate) replace: bool,
    /// Unknown fields are an error, not pruned.
    pub(crate) strict: bool,
    /// An apply, which has worked out `managedFields` already.
    pub(crate) applied: bool,
}

impl WriteOptions {
    pub(crate) fn by(manager: &str) -> Self {
        Self { manager: manager.to_owned(), replace: false, strict: false, applied: false }
    }
}
