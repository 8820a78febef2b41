//! The program itself against a running hub: each verb as table, JSON and YAML, what a mistake is answered with, and how it
//! looks on a narrow terminal.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod ask;
mod mistakes;
mod running;
