//! `kubesim`: one simulated cluster as a process. Prints where it listens; runs until it is told to stop.

use std::path::PathBuf;

use anyhow::Context;
use clap::Parser;
use kubesim::{Config, Controllers, KubeSim};
use serde::Deserialize;
use serde_json::Value;

/// A Kubernetes API server in memory.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// Port to listen on; 0 takes a free one.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Objects to start with: YAML, many documents.
    #[arg(long)]
    data: Vec<PathBuf>,
    /// Where to write the admin's kubeconfig.
    #[arg(long)]
    kubeconfig_out: Option<PathBuf>,
    /// Cluster name in the kubeconfig.
    #[arg(long, default_value = "kubesim")]
    name: String,
    /// The admin's token; drawn when absent.
    #[arg(long)]
    token: Option<String>,
    /// Run no controllers, scheduler and kubelets.
    #[arg(long)]
    bare: bool,
}

fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let args = Args::parse();
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(run(args))
}

async fn run(args: Args) -> anyhow::Result<()> {
    let controllers = if args.bare { Controllers::NONE } else { Controllers::ALL };
    let config = Config { port: args.port, name: args.name, admin_token: args.token, controllers, ..Config::default() };
    let sim = KubeSim::start(config).await?;
    for path in &args.data {
        load(&sim, path)?;
    }
    if let Some(path) = &args.kubeconfig_out {
        sim.write_kubeconfig(path).with_context(|| format!("write the kubeconfig to {}", path.display()))?;
    }
    println!("{}", sim.url());
    stop_signal().await?;
    sim.shutdown().await;
    Ok(())
}

fn load(sim: &KubeSim, path: &std::path::Path) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).with_context(|| format!("parse {}", path.display()))?;
    for object in documents {
        let items = match object.get("items") {
            Some(items) => Vec::<Value>::deserialize(items)?,
            None => vec![object],
        };
        for item in items.into_iter().filter(|item| !item.is_null()) {
            let what = format!("{} {}", item["kind"], item["metadata"]["name"]);
            sim.store().create(item).with_context(|| format!("create {what} of {}", path.display()))?;
        }
    }
    Ok(())
}

async fn stop_signal() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        ended = tokio::signal::ctrl_c() => ended,
        _ = terminate.recv() => Ok(()),
    }
}
