//! The hub's stages on a real PostgreSQL: ingest, decide, settle, and the store's rules. One database per test.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod adopting;
mod at_once;
mod chain;
mod deciding;
mod decommissioning;
mod draining;
mod dying;
mod explaining;
mod growth;
mod guards;
mod ingesting;
mod owning;
mod policy;
mod pooled;
mod pruning;
mod questions;
mod restarting;
mod settling;
mod signing;
mod stopping;
mod telling;
mod vanishing;
mod waking;
mod world;
