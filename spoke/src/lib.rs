//! The spoke: sees one cluster's GPUs, tells the hub, and does there what the hub signed. The pure half, parsers,
//! detectors, checks and plans, is in `gpuheal-spoke-core`; here are files, sockets, clocks and the Kubernetes API.
//! A spoke never decides to harm anything on its own.

#[macro_use]
extern crate gpuheal_crash;

pub mod app;
pub mod args;
mod backoff;
pub mod ceiling;
mod chance;
pub mod clock;
pub mod derive;
pub mod doctor;
pub mod elector;
pub mod events;
pub mod execute;
pub mod fence;
pub mod healaction;
pub mod http;
pub mod identity;
pub mod journal;
pub mod kube_client;
pub mod link;
pub mod metrics;
pub mod ports;
pub mod report;
pub mod rights;
pub mod scrape;
pub mod send;
pub mod settings;
pub mod state;
mod tasks;
#[cfg(test)]
pub(crate) mod testing;
pub mod verify;
pub mod watch;
