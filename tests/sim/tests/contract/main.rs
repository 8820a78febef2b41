//! One contract for the simulated store and for the hub's own functions on a real PostgreSQL: every claim runs on both,
//! step by step, and after each step both must hold the same. What only the real one can prove, its isolation, is shown
//! in the hub's own tests.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod claims;
mod fixtures;
mod pair;
mod postgres;
mod walk;
