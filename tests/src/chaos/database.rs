//! The run's Postgres: one address for as long as the run lasts, whatever happens to the server behind it. It can be
//! stopped, started again, copied while it is stopped, and put back as it was when it was copied.

use std::{net::SocketAddr, path::PathBuf, process::Stdio, sync::Arc};

use anyhow::{Context as _, Result, ensure};

use super::proxy::Proxy;

/// The server and the wires that lead to it.
pub struct Database {
    dir: PathBuf,
    server: Option<testpg::Postgres>,
    wires: Vec<Arc<Proxy>>,
}

impl Database {
    /// Starts a server with its data under `dir`.
    pub async fn start(dir: PathBuf) -> Result<Self> {
        let mut database = Self { dir, server: None, wires: vec![] };
        database.serve().await?;
        Ok(database)
    }

    /// A new wire to it, and the URL over that wire.
    pub async fn wire(&mut self) -> Result<(Arc<Proxy>, String)> {
        let wire = Arc::new(Proxy::start(self.behind()).await?);
        self.wires.push(Arc::clone(&wire));
        let url = format!("postgres://postgres@{}/postgres", wire.address());
        Ok((wire, url))
    }

    fn behind(&self) -> Vec<SocketAddr> {
        self.server.iter().map(|server| SocketAddr::from(([127, 0, 0, 1], server.port()))).collect()
    }

    /// Serves, anew or for the first time.
    pub async fn serve(&mut self) -> Result<()> {
        if self.server.is_none() {
            let dir = self.dir.clone();
            self.server = Some(tokio::task::spawn_blocking(move || testpg::Postgres::start(&dir)).await??);
        }
        self.lead();
        Ok(())
    }

    /// Stops the server; whoever is connected is sent away.
    pub async fn stop(&mut self) -> Result<()> {
        let server = self.server.take();
        self.lead();
        tokio::task::spawn_blocking(move || drop(server)).await?;
        Ok(())
    }

    fn lead(&self) {
        for wire in &self.wires {
            wire.lead_to(self.behind());
        }
    }

    /// Copies the data as it is now. The server is stopped meanwhile, so that the copy is whole.
    pub async fn back_up(&mut self) -> Result<()> {
        self.stop().await?;
        self.copy("pgdata", "backup").await?;
        self.serve().await
    }

    /// Puts back what was copied: whatever was committed since is gone.
    pub async fn restore(&mut self) -> Result<()> {
        self.stop().await?;
        self.copy("backup", "pgdata").await?;
        self.serve().await
    }

    /// Whether there is something to put back.
    #[must_use]
    pub fn backed_up(&self) -> bool {
        self.dir.join("backup/PG_VERSION").exists()
    }

    async fn copy(&self, from: &str, to: &str) -> Result<()> {
        let (from, to) = (self.dir.join(from), self.dir.join(to));
        match tokio::fs::remove_dir_all(&to).await {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error).context("removing the old data"),
            _ => {}
        }
        // With owner and modes: the server is somebody else when the run is root's.
        let copied = tokio::process::Command::new("cp").arg("-a").arg(&from).arg(&to).stdin(Stdio::null()).status().await?;
        ensure!(copied.success(), "copying {} to {} ended with {copied}", from.display(), to.display());
        Ok(())
    }
}
