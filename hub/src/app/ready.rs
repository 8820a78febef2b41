//! Saying that the hub is ready, and whether it still is.

use std::{fs, net::SocketAddr, path::Path, sync::Arc};

use anyhow::Context as _;
use serde_json::json;
use sqlx::PgPool;

use crate::{
    clock,
    http::Check,
    store::{Labelled as _, pool::answered},
    tls,
};

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
        let asked = answered("ready.database", async { sqlx::query("SELECT 1").execute(&self.0).await.label("ready.database") });
        asked.await.err().map(|error| crate::chain::chain(&error).to_string())
    }
}

/// Our certificate is good: nobody talks to a hub whose is not.
pub(super) struct CertificateCheck(pub(super) Arc<tls::Identity>);

#[tonic::async_trait]
impl Check for CertificateCheck {
    fn name(&self) -> &'static str {
        "certificate"
    }

    async fn problem(&self) -> Option<String> {
        let (end, now) = (self.0.not_after(), clock::now());
        (end <= now)
            .then(|| format!("expired at {end}: no spoke and no user trusts this hub, put new identity files in their place"))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gpuheal_ctl::pki::{Authority, Leaf};

    use super::*;

    async fn problem(now: gpuheal_proto::time::Timestamp) -> Option<String> {
        let (dir, authority) = (tempfile::tempdir().unwrap(), Authority::new("d", 30, now).unwrap());
        let hub = authority.issue(&Leaf::hub("d")).unwrap();
        for (name, text) in [("tls.crt", hub.cert_pem.as_str()), ("tls.key", &hub.key_pem), ("ca.crt", authority.cert_pem())] {
            fs::write(dir.path().join(name), text).unwrap();
        }
        CertificateCheck(tls::Identity::open(dir.path().to_owned()).unwrap()).problem().await
    }

    #[test]
    fn a_spokes_or_a_users_certificate_is_refused_as_the_hubs() {
        let authority = Authority::new("d", 30, clock::now()).unwrap();
        for (leaf, whose) in
            [(Leaf::user("d", "operator"), "user operator"), (Leaf::spoke("d", &"c1".parse().unwrap()), "spoke c1")]
        {
            let (dir, leaf) = (tempfile::tempdir().unwrap(), authority.issue(&leaf).unwrap());
            for (name, text) in [("tls.crt", leaf.cert_pem.as_str()), ("tls.key", &leaf.key_pem), ("ca.crt", authority.cert_pem())]
            {
                fs::write(dir.path().join(name), text).unwrap();
            }
            let refused = tls::Identity::open(dir.path().to_owned()).unwrap_err().to_string();
            assert!(refused.contains(whose) && refused.contains("pki init"), "{refused}");
        }
    }

    #[tokio::test]
    async fn a_hub_is_not_ready_once_its_certificate_expired() {
        assert_eq!(problem(clock::now()).await, None);
        let long_ago = clock::now().before(Duration::from_secs(60 * 24 * 3600));
        assert!(problem(long_ago).await.unwrap().starts_with("expired at "));
    }
}
