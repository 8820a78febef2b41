//! The API for people and tools, on a listener of its own: lists, explanations, requests by hand, policy, audit.
//! Reads Postgres and calls the stages' own functions; has no rules of its own. Users only: a spoke's certificate gets nothing.

mod audit;
mod call;
mod clusters;
pub(crate) mod commands;
pub(crate) mod incidents;
mod page;
mod policy;
mod serve;

use std::sync::Arc;

use sqlx::PgPool;

use crate::wake::Wake;
pub use serve::serve;

/// What every service here works with. Its pool is its own, so that tools cannot starve spokes.
#[derive(Clone)]
pub struct Fleet {
    pool: PgPool,
    wake: Arc<Wake>,
}

impl Fleet {
    /// Over a pool.
    #[must_use]
    pub const fn new(pool: PgPool, wake: Arc<Wake>) -> Self {
        Self { pool, wake }
    }
}
