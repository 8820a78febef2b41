//! The executor against a Kubernetes API over real HTTPS: what is written, in which order, and what is not. Each test has
//! its own cluster (kubesim) and its own spoke: elector, watches and hand as they ship, without link and detectors.

#![expect(clippy::unwrap_used, reason = "a test may fail by it")]

mod drain;
mod harness;
mod quarantine;
mod refuse;
mod release;
mod resume;
mod takeover;
