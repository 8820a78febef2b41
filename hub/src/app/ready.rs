//! Saying that the hub is ready, and whether it still is.

use std::{fs, net::SocketAddr, path::Path};

use anyhow::Context as _;
use serde_json::json;
use sqlx::PgPool;

use crate::http::Check;

/// Where the listeners are.
pub(super) struct Bound {
    pub(super) link: SocketAddr,
    pub(super) fleet: SocketAddr,
    pub(super) http: SocketAddr,
}

impl Bound {
    /// Says it in the log and, if asked, in a file that appears whole or not at all.
    pub(super) fn tell(&self, file: Option<&Path>) -> anyhow::Result<()> {
        let Self { link, fleet, http } = self;
        tracing::info!("listening link={link}");
        tracing::info!("listening fleet={fleet}");
        tracing::info!("listening http={http}");
        let Some(file) = file else { return Ok(()) };
        let text = json!({"link": link.to_string(), "fleet": fleet.to_string(), "http": http.to_string()}).to_string();
        let partial = file.with_extension("partial");
        fs::write(&partial, text)
            .and_then(|()| fs::rename(&partial, file))
            .with_context(|| format!("cannot write {}", file.display()))
    }
}

/// The database answers.
pub(super) struct DatabaseCheck(pub(super) PgPool);

#[tonic::async_trait]
impl Check for DatabaseCheck {
    fn name(&self) -> &'static str {
        "database"
    }

    async fn problem(&self) -> Option<String> {
        sqlx::query("SELECT 1").execute(&self.0).await.err().map(|error| error.to_string())
    }
}
