//! Logs to standard error, with fields. Secrets never get here: tokens and keys are in no Debug or Display.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use crate::args::Run;

/// Starts logging as the arguments say.
pub(super) fn init(run: &Run) {
    let filter = EnvFilter::try_new(&run.log).unwrap_or_else(|_| EnvFilter::new("info"));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = if run.log_json { logs.json().try_init() } else { logs.with_ansi(std::io::stderr().is_terminal()).try_init() };
    // Only a test that logs already gets here twice.
    drop(started);
}
