//! How the harness's programs run and end.

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use anyhow::{Result, bail};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::Notify,
};

/// Runs until done, or until somebody asks for the end: then whatever was started ends with us. An error is told with all
/// its causes, and is exit status 1.
#[must_use]
pub fn run(program: impl Future<Output = Result<()>>) -> ExitCode {
    run_staying(|_| program)
}

/// The same for a program that may stay when it is done: being told to end is then no failure.
#[must_use]
pub fn run_staying<F: Future<Output = Result<()>>>(program: impl FnOnce(Stay) -> F) -> ExitCode {
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: starting: {error}");
            return ExitCode::FAILURE;
        }
    };
    let stay = Stay::default();
    match runtime.block_on(until_told_to_end(program(stay.clone()), &stay)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// How a program that is done stays until it is told to end.
#[derive(Clone, Default)]
pub struct Stay {
    staying: Arc<AtomicBool>,
    end: Arc<Notify>,
}

impl Stay {
    /// Waits until somebody asks for the end: whoever called cleans up then.
    pub async fn until_told(&self) {
        self.staying.store(true, Relaxed);
        self.end.notified().await;
    }
}

async fn until_told_to_end(program: impl Future<Output = Result<()>>, stay: &Stay) -> Result<()> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut program = std::pin::pin!(program);
    let told = tokio::select! {
        done = &mut program => return done,
        _ = term.recv() => "SIGTERM",
        _ = int.recv() => "Ctrl-C",
    };
    if !stay.staying.load(Relaxed) {
        bail!("told to end ({told})");
    }
    stay.end.notify_one();
    // A second one does not wait for the cleaning.
    tokio::select! {
        done = program => done,
        _ = term.recv() => bail!("told to end at once (SIGTERM)"),
        _ = int.recv() => bail!("told to end at once (Ctrl-C)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_stays_and_is_told_to_end_has_not_failed() {
        let code = run_staying(async |stay| {
            let told = stay.until_told();
            let tell = async {
                while !stay.staying.load(Relaxed) {
                    tokio::task::yield_now().await;
                }
                rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::INT)?;
                Ok::<_, rustix::io::Errno>(())
            };
            let ((), told) = tokio::join!(told, tell);
            Ok(told?)
        });
        assert_eq!(code, ExitCode::SUCCESS);
    }
}
