//! How the harness's programs run and end.

use std::process::ExitCode;

use anyhow::{Result, bail};

/// Runs until done, or until somebody asks for the end: then whatever was started ends with us. An error is told with all
/// its causes, and is exit status 1.
#[must_use]
pub fn run(program: impl Future<Output = Result<()>>) -> ExitCode {
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: starting: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(until_told_to_end(program)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn until_told_to_end(program: impl Future<Output = Result<()>>) -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        done = program => done,
        _ = term.recv() => bail!("told to end (SIGTERM)"),
        _ = int.recv() => bail!("told to end (Ctrl-C)"),
    }
}
