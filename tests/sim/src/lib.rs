//! The deterministic simulation: clusters, spokes, two hubs and their database in one thread, under one seed that decides
//! every delay, loss, crash and fault. The pure cores are the shipping ones; what is IO in production has a counterpart
//! here. The invariants of docs/architecture.md are checked as it goes, each under its name.

pub mod api;
pub mod body;
pub mod chance;
pub mod hub;
pub mod hub_time;
pub mod journal;
pub mod keys;
pub mod memory;
pub mod mutation;
pub mod oracle;
pub mod spoke;
pub mod store;
pub mod trace;
pub mod world;
