//! One hub on a Postgres of its own, without any cluster: what the measurements of the link and of the ingest run against.
//! The hub is the shipping program; those who talk to it are in `simulated.rs`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sqlx::PgPool;

use crate::{
    fleet::{HubPorts, Place, first_hub, make_pki, migrate, start_hub},
    process::{Process, Programs},
};

/// Connections of the harness to Postgres, beside the hub's own.
const CONNECTIONS: u32 = 8;
/// Open files of a process beside its spokes: listeners, Postgres, logs.
const FILES_BESIDE: u64 = 512;

/// The running hub and what it needs.
pub(super) struct Alone {
    pub(super) pool: PgPool,
    pub(super) hub: Process,
    pub(super) place: Place,
    ports: HubPorts,
    programs: Programs,
    _postgres: testpg::Postgres,
}

impl Alone {
    /// Starts Postgres and the hub, with a certificate for each of these clusters.
    pub(super) async fn start(policy: &str, clusters: &[String], say: &impl Fn(&str)) -> Result<Self> {
        let place = Place::temporary()?;
        let dir = place.dir.clone();
        say("a private Postgres");
        let postgres = {
            let at = dir.join("postgres");
            tokio::task::spawn_blocking(move || testpg::Postgres::start(&at)).await??
        };
        let url = postgres.url();
        let pool = sqlx::postgres::PgPoolOptions::new().max_connections(CONNECTIONS).connect(&url).await?;
        say(&format!("certificates of {} clusters", clusters.len()));
        let programs = Programs::kept_in(&dir.join("bin"))?;
        make_pki(&programs, &dir.join("pki"), clusters)?;
        std::fs::write(dir.join("policy.yaml"), policy)?;
        std::fs::write(dir.join("database.url"), &url)?;
        say("the hub");
        migrate(&programs, &dir)?;
        let (ports, hub) = first_hub(&programs, &dir, "hub").await?;
        Ok(Self { pool, hub, place, ports, programs, _postgres: postgres })
    }

    /// Where spokes attach.
    pub(super) fn link(&self) -> &str {
        &self.ports.link
    }

    /// Where a cluster's certificate is.
    pub(super) fn identity(&self, cluster: &str) -> PathBuf {
        self.place.dir.join("pki/clusters").join(cluster)
    }

    /// Starts the hub again where it was, and waits until it is ready.
    pub(super) async fn start_again(&mut self) -> Result<()> {
        self.hub = start_hub(&self.programs, &self.place.dir, "hub", &self.ports)?;
        self.hub.ready().await?;
        Ok(())
    }

    /// What came of the run; the logs of one that failed are kept, and named.
    pub(super) fn end<T>(mut self, outcome: Result<T>) -> Result<T> {
        match outcome {
            Ok(figures) => self.hub.stop().map(|()| figures),
            Err(error) => Err(self.place.left_for(error, "measuring")),
        }
    }
}

/// Allows this process, and the hub that it will start, a file for each of so many spokes.
pub(super) fn allow_files(spokes: usize) -> Result<()> {
    let need = spokes as u64 + FILES_BESIDE;
    let now = getrlimit(Resource::Nofile);
    if now.current.is_none_or(|files| files >= need) {
        return Ok(());
    }
    // Above the hard limit only root may go.
    let raised = Rlimit { current: Some(need), maximum: now.maximum.map(|most| most.max(need)) };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        bail!(
            "{spokes} spokes need {need} open files in one process and {} are allowed here ({error}): raise the limit with \
             `ulimit -n {need}`, as root where the hard limit is lower, or take fewer with --spokes",
            now.maximum.unwrap_or_default()
        );
    }
    Ok(())
}
