//! The hub's mTLS listeners over real sockets: clients that lie, sessions and deliveries on a real Postgres.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod attacks;
mod delivery;
mod frames;
mod hub;
mod identities;
mod lists;
mod replica;
mod services;
mod sessions;
mod sources;
mod states;
mod transport;
mod two_hubs;
mod unheard;
mod verdicts;
mod zero_bytes;
