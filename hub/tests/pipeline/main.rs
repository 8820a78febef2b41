//! The hub's stages on a real PostgreSQL: ingest, decide, settle, and the store's rules. One database per test.

mod chain;
mod deciding;
mod guards;
mod ingesting;
mod policy;
mod settling;
mod world;
