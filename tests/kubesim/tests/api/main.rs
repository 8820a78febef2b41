//! What clients see of a simulated cluster over HTTPS. One file per part of the API; one binary, so that it links once.
#![expect(clippy::unwrap_used, reason = "in a test's helper a panic is the failure of the test")]

mod client;
mod eviction;
mod faults;
mod kube_client;
mod kubectl;
mod listing;
mod objects;
mod patching;
mod scale;
mod watching;
mod workloads;
