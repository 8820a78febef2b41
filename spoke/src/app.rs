//! Puts the spoke's parts together, and takes them apart in the order that loses nothing: sources first, then the hand,
//! then the Lease, then the link, then the journal. Losing the Lease ends the process, since its other half may act.

mod kube_system;
mod logs;
mod needs;
mod parts;

use std::{process::ExitCode, time::Duration};

use anyhow::Context as _;
use clap::{CommandFactory as _, Parser as _};
use gpuheal_proto::chain::chain;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::{
    args::{Args, Command, Doctor, Run},
    doctor, healaction,
};
use parts::Parts;

/// What a web server's open requests, or the last statuses on the link, may take at the end.
const LINGER: Duration = Duration::from_secs(5);
/// The hand stops between two steps; one step is one API call.
const HAND_WITHIN: Duration = Duration::from_secs(20);

/// Threads for everything but the journal. What a spoke does waits for others nearly always; a thread for each core, as is usual,
/// would have each keep memory of its own, and a machine of 64 cores make the spoke several times as large.
const WORKERS: usize = 2;

/// The program: does what its command line says. Exit codes: 0 told to end, 1 failed or problems found; clap exits with 2 by
/// itself.
#[must_use]
pub fn main() -> ExitCode {
    match Args::parse().command {
        Command::Crd => {
            print!("{}", healaction::crd_yaml());
            ExitCode::SUCCESS
        }
        Command::Rights(rights) => {
            if !rights.namespaces.is_empty() && !rights.sheet.narrows() {
                let why = format!("--namespaces: nothing that {} gives is about pods or workloads", rights.sheet.name());
                Args::command().error(clap::error::ErrorKind::ArgumentConflict, why).exit();
            }
            print!("{}", rights.sheet.yaml(&rights.namespace, &rights.namespaces));
            ExitCode::SUCCESS
        }
        Command::Doctor(doctor) => self::examine(&doctor),
        Command::Run(run) => self::run(*run),
    }
}

fn examine(args: &Doctor) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime");
    let told = runtime.and_then(|runtime| {
        let report = runtime.block_on(doctor::run(args))?;
        print!("{}", report.text(args.output)?);
        Ok(report.exit_status())
    });
    match told {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("error: {}", chain(&*error));
            ExitCode::FAILURE
        }
    }
}

fn run(run: Run) -> ExitCode {
    logs::init(&run);
    // A second provider is never installed here.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let result = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()
        .context("start the runtime")
        .and_then(|runtime| runtime.block_on(serve(run)));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = %chain(&*error), "spoke ended");
            ExitCode::FAILURE
        }
    }
}

async fn serve(run: Run) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let starting = Parts::start(&run);
    let mut parts = tokio::select! {
        parts = starting => parts?,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    let elector = parts.elector.clone();
    let why = tokio::select! {
        _ = terminate.recv() => Ok("SIGTERM"),
        _ = interrupt.recv() => Ok("SIGINT"),
        why = elector.ended() => Err(anyhow::anyhow!("leadership cannot be held: {why}")),
        why = parts.died() => Err(anyhow::anyhow!("a part of the spoke died: {why}")),
    };
    match &why {
        Ok(signal) => tracing::info!(signal, "ending"),
        Err(error) => tracing::error!(%error, "ending"),
    }
    stop(parts, why.is_ok()).await;
    why.map(|_| ())
}

/// Takes the parts down. The Lease is given back only when everything that acts was joined.
async fn stop(parts: Parts, release: bool) {
    let Parts { elector, journal, sources, hand, link, .. } = parts;
    sources.end(LINGER).await;
    let joined = hand.end(HAND_WITHIN).await;
    if release && joined {
        let released = tokio::time::timeout(LINGER, elector.release()).await;
        tracing::info!(in_time = released.is_ok(), "lease released");
    }
    link.end(LINGER).await;
    match journal.close().await {
        Ok(()) => tracing::info!("journal closed"),
        Err(error) => tracing::error!(%error, "journal was not closed cleanly, it goes on under a new stream"),
    }
}

/// Tasks that end together, and the token that ends them.
struct Group {
    name: &'static str,
    cancel: CancellationToken,
    tasks: tokio::task::JoinSet<&'static str>,
}

impl Group {
    fn new(name: &'static str) -> Self {
        Self { name, cancel: CancellationToken::new(), tasks: tokio::task::JoinSet::new() }
    }

    fn spawn(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(async move {
            task.await;
            name
        });
    }

    /// Waits for the first task that ends although nobody asked it to.
    async fn died(&mut self) -> String {
        match self.tasks.join_next().await {
            None => std::future::pending().await,
            Some(Ok(name)) => format!("{name} ended"),
            Some(Err(error)) => format!("{} failed: {error}", self.name),
        }
    }

    /// Ends the tasks. True when all were joined in time.
    async fn end(mut self, within: Duration) -> bool {
        self.cancel.cancel();
        let all = async { while self.tasks.join_next().await.is_some() {} };
        let joined = tokio::time::timeout(within, all).await.is_ok();
        if !joined {
            tracing::warn!(group = self.name, "did not end in time");
        }
        joined
    }
}
