//! Who this spoke is and whom it believes: `tls.crt`, `tls.key`, `ca.crt` and `trust.json` of one directory. The cluster's
//! id is what the certificate's SPIFFE URI says, nothing else. Read again at each attach, so that renewed files are
//! taken up; what cannot be used leaves the last good ones in force, see [`Keeper`]. Private keys stay in the TLS
//! configuration and are never printed.

mod keeper;
mod spiffe;

use std::{fs, io, path::Path, sync::Arc};

use gpuheal_proto::{
    ids::{ClusterId, ParseIdError},
    time::Timestamp,
};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use sha2::{Digest as _, Sha256};

use crate::settings::{Keys, KeysError};

pub use keeper::{Keeper, Standing};
pub use spiffe::{SpiffeError, expiry_of, uri_of};

/// What the directory says.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The cluster that the certificate speaks for.
    pub cluster: ClusterId,
    /// Trust domain of the certificate.
    pub trust_domain: String,
    /// Ready to dial the hub: TLS 1.3, our certificate, the one CA.
    pub tls: Arc<ClientConfig>,
    /// Bytes of `trust.json`.
    pub trust: Vec<u8>,
    /// Until when the certificate is good.
    pub not_after: Timestamp,
    /// Of all files: tells whether they have changed.
    digest: [u8; 32],
}

impl Identity {
    /// Reads the directory.
    ///
    /// # Errors
    /// When a file is missing or does not say what it must.
    pub fn load(dir: &Path) -> Result<Self, Error> {
        let read = |name: &'static str| fs::read(dir.join(name)).map_err(|source| Error::Read { name, source });
        let (certificate, key, ca, trust) = (read("tls.crt")?, read("tls.key")?, read("ca.crt")?, read("trust.json")?);
        let mut digest = Sha256::new();
        for file in [&certificate, &key, &ca, &trust] {
            digest.update(Sha256::digest(file));
        }
        let chain = certificates(&certificate, "tls.crt")?;
        let key = PrivateKeyDer::from_pem_slice(&key).map_err(|_| Error::Pem { name: "tls.key" })?;
        let leaf = chain.first().ok_or(Error::Pem { name: "tls.crt" })?;
        let uri = uri_of(leaf)?;
        let (trust_domain, cluster) = spoke_uri(&uri).ok_or_else(|| Error::NotASpoke { uri: uri.clone() })?;
        let cluster = ClusterId::parse(cluster)?;
        let (trust_domain, not_after) = (trust_domain.to_owned(), expiry_of(leaf)?);
        let tls = Arc::new(client_config(&ca, chain, key)?);
        Keys::parse(&trust)?;
        Ok(Self { cluster, trust_domain, tls, trust, not_after, digest: digest.finalize().into() })
    }

    /// The URI that the hub's certificate must carry.
    #[must_use]
    pub fn hub_uri(&self) -> String {
        format!("spiffe://{}/hub", self.trust_domain)
    }
}

/// Trust domain and cluster of `spiffe://<td>/cluster/<id>/spoke`.
fn spoke_uri(uri: &str) -> Option<(&str, &str)> {
    let (trust_domain, path) = uri.strip_prefix("spiffe://")?.split_once('/')?;
    let cluster = path.strip_prefix("cluster/")?.strip_suffix("/spoke")?;
    (!trust_domain.is_empty()).then_some((trust_domain, cluster))
}

fn certificates(pem: &[u8], name: &'static str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let all: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|_| Error::Pem { name })?;
    if all.is_empty() { Err(Error::Pem { name }) } else { Ok(all) }
}

fn client_config(ca: &[u8], chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca, "ca.crt")? {
        roots.add(certificate)?;
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)?;
    // A resumed session would carry an identity that nobody verifies again.
    config.resumption = rustls::client::Resumption::disabled();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

/// Why the directory is no identity.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("identity file {name} cannot be read")]
    Read {
        /// Which.
        name: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file holds no PEM of its kind.
    #[error("identity file {name} holds no PEM of its kind")]
    Pem {
        /// Which.
        name: &'static str,
    },
    /// The certificate is for something else.
    #[error("certificate is for {uri:?}, not for a cluster's spoke")]
    NotASpoke {
        /// What it says.
        uri: String,
    },
    /// The certificate's names are not as they must be.
    #[error(transparent)]
    Spiffe(#[from] SpiffeError),
    /// The cluster's id breaks its rule.
    #[error(transparent)]
    Id(#[from] ParseIdError),
    /// Key and certificate do not fit, or the like.
    #[error(transparent)]
    Tls(#[from] rustls::Error),
    /// The keys in the trust bundle.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// A running spoke is of one cluster.
    #[error("certificate is for cluster {got}, this spoke runs as {want}'s")]
    OtherCluster {
        /// What it says.
        got: ClusterId,
        /// Whose this process is.
        want: ClusterId,
    },
    /// It is over already.
    #[error("certificate has expired at {not_after}")]
    Expired {
        /// When.
        not_after: Timestamp,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spoke_is_told_by_its_uri_alone() {
        assert_eq!(spoke_uri("spiffe://dev.gpuheal/cluster/c1/spoke"), Some(("dev.gpuheal", "c1")));
        for uri in [
            "spiffe://dev.gpuheal/hub",
            "https://dev.gpuheal/cluster/c1/spoke",
            "spiffe:///cluster/c1/spoke",
            "spiffe://d/cluster/c1/hub",
        ] {
            assert_eq!(spoke_uri(uri), None, "{uri}");
        }
    }
}
