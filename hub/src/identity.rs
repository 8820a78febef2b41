//! Who is on the other end: the one SPIFFE id in a client certificate whose chain was verified before.
//! Never looks at the subject, never at what the peer says about itself; a certificate with two ids has none.

pub mod denied;

use std::{fmt, net::SocketAddr, sync::Arc};

use gpuheal_proto::{
    ids::{ClusterId, ParseIdError},
    time::Timestamp,
};
use rustls::pki_types::CertificateDer;
use tonic::{Request, Status};
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

use denied::{Certificate, Serial};

/// A role and its name. The hub's own certificate gives none: nobody may speak to a hub as the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// A cluster's spoke, any replica of it.
    Spoke(ClusterId),
    /// A person or a tool.
    User(UserName),
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spoke(cluster) => write!(f, "spoke {cluster}"),
            Self::User(name) => write!(f, "user {name}"),
        }
    }
}

/// A user's name as it is in the certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserName(String);

/// What fits a table and an audit entry.
const USER_BYTES_MAX: usize = 64;

impl UserName {
    fn parse(text: &str) -> Option<Self> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'@');
        let valid = (1..=USER_BYTES_MAX).contains(&text.len()) && text.bytes().all(allowed);
        valid.then(|| Self(text.to_owned()))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for UserName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The other end of one connection, as each of its requests carries it.
#[derive(Clone, Debug)]
pub struct Peer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    identity: Identity,
    certificate: Certificate,
    not_after: Timestamp,
    addr: SocketAddr,
}

impl Peer {
    /// From a certificate whose chain was verified.
    ///
    /// # Errors
    /// When it does not carry exactly one id of ours.
    pub fn from_verified(cert: &CertificateDer<'_>, trust_domain: &str, addr: SocketAddr) -> Result<Self, Error> {
        let (rest, cert) = X509Certificate::from_der(cert).map_err(|_| Error::Malformed)?;
        if !rest.is_empty() {
            return Err(Error::Malformed);
        }
        let usage = cert.key_usage().map_err(|_| Error::Malformed)?.ok_or(Error::KeyUsage)?.value;
        if cert.is_ca() || !usage.digital_signature() || usage.key_cert_sign() || usage.crl_sign() {
            return Err(Error::KeyUsage);
        }
        let identity = parse_uri(only_uri(&cert)?, trust_domain)?;
        let not_after = Timestamp::from_unix_ms(cert.validity().not_after.timestamp().saturating_mul(1000));
        Ok(Self(Arc::new(Inner { identity, certificate: certificate(&cert), not_after, addr })))
    }

    /// Who.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.0.identity
    }

    /// Which certificate it showed.
    #[must_use]
    pub fn certificate(&self) -> &Certificate {
        &self.0.certificate
    }

    /// Until when its certificate is good. An open stream ends with it.
    #[must_use]
    pub fn not_after(&self) -> Timestamp {
        self.0.not_after
    }

    /// From where.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.0.addr
    }
}

fn certificate(cert: &X509Certificate<'_>) -> Certificate {
    let not_before = Timestamp::from_unix_ms(cert.validity().not_before.timestamp().saturating_mul(1000));
    Certificate { serial: Serial::from_bytes(cert.raw_serial()), not_before }
}

/// The cluster that a certificate is for, whatever its trust domain, for whoever must refuse one before it is looked at in
/// full. None: it is no spoke's.
#[must_use]
pub(crate) fn spoke_certificate(cert: &CertificateDer<'_>) -> Option<(ClusterId, Certificate)> {
    let (_, cert) = X509Certificate::from_der(cert).ok()?;
    let (domain, _) = only_uri(&cert).ok()?.strip_prefix("spiffe://")?.split_once('/')?;
    match parse_uri(only_uri(&cert).ok()?, domain).ok()? {
        Identity::Spoke(cluster) => Some((cluster, certificate(&cert))),
        Identity::User(_) => None,
    }
}

/// Whose a certificate is that cannot be a hub's, whatever its trust domain: a spoke's or a user's. A hub's own may carry
/// `spiffe://…/hub` or no id at all.
#[must_use]
pub(crate) fn of_somebody_else(cert: &CertificateDer<'_>) -> Option<Identity> {
    let (_, cert) = X509Certificate::from_der(cert).ok()?;
    let uri = only_uri(&cert).ok()?;
    let (domain, _) = uri.strip_prefix("spiffe://")?.split_once('/')?;
    parse_uri(uri, domain).ok()
}

fn only_uri<'a>(cert: &'a X509Certificate<'_>) -> Result<&'a str, Error> {
    // Two SAN extensions are an error of the certificate, not a list to choose from.
    let names = cert.subject_alternative_name().map_err(|_| Error::Malformed)?.ok_or(Error::Uris { count: 0 })?;
    let uris: Vec<&str> = names
        .value
        .general_names
        .iter()
        .filter_map(|name| match name {
            GeneralName::URI(uri) => Some(*uri),
            _ => None,
        })
        .collect();
    match uris.as_slice() {
        [uri] => Ok(uri),
        _ => Err(Error::Uris { count: uris.len() }),
    }
}

/// `spiffe://<trust domain>/cluster/<id>/spoke` or `spiffe://<trust domain>/user/<name>`, and nothing that merely looks so.
fn parse_uri(uri: &str, trust_domain: &str) -> Result<Identity, Error> {
    let shown = || gpuheal_proto::bytes_text::clip(uri, 200).to_owned();
    let (domain, path) =
        uri.strip_prefix("spiffe://").and_then(|rest| rest.split_once('/')).ok_or_else(|| Error::NotSpiffe { uri: shown() })?;
    if domain != trust_domain {
        return Err(Error::TrustDomain { uri: shown() });
    }
    match path.split('/').collect::<Vec<_>>().as_slice() {
        ["cluster", id, "spoke"] => Ok(Identity::Spoke(ClusterId::parse(id)?)),
        ["user", name] => UserName::parse(name).map(Identity::User).ok_or_else(|| Error::Path { uri: shown() }),
        ["hub"] => Err(Error::Hub),
        _ => Err(Error::Path { uri: shown() }),
    }
}

/// The cluster that a request on the link speaks for.
///
/// # Errors
/// `permission_denied` when the peer is no spoke.
pub fn spoke<T>(request: &Request<T>) -> Result<(ClusterId, Peer), Status> {
    let peer = peer(request.extensions())?;
    match peer.identity() {
        Identity::Spoke(cluster) => Ok((cluster.clone(), peer.clone())),
        Identity::User(_) => Err(wrong_listener(&peer)),
    }
}

/// The user who makes a request of the fleet API.
///
/// # Errors
/// `permission_denied` when the peer is no user.
pub fn user<T>(request: &Request<T>) -> Result<UserName, Status> {
    let peer = peer(request.extensions())?;
    match peer.identity() {
        Identity::User(name) => Ok(name.clone()),
        Identity::Spoke(_) => Err(wrong_listener(&peer)),
    }
}

fn peer(extensions: &tonic::Extensions) -> Result<Peer, Status> {
    let peer = extensions.get::<Peer>().cloned();
    peer.ok_or_else(|| Status::unauthenticated("this connection has no verified identity"))
}

fn wrong_listener(peer: &Peer) -> Status {
    tracing::warn!(peer.identity = %peer.identity(), peer.addr = %peer.addr(), "identity refused on this listener");
    Status::permission_denied(match peer.identity() {
        Identity::Spoke(_) => "this listener is for users; a spoke's certificate belongs on the link listener",
        Identity::User(_) => "this listener is for spokes; a user's certificate belongs on the fleet listener",
    })
}

/// Why a certificate names nobody that we talk to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not a certificate, or with an extension that appears twice.
    #[error("certificate does not parse")]
    Malformed,
    /// Not a leaf that signs and nothing else.
    #[error("certificate is no leaf with key usage digitalSignature alone")]
    KeyUsage,
    /// None, or a choice.
    #[error("certificate has {count} URI names, exactly 1 is wanted")]
    Uris {
        /// How many there are.
        count: usize,
    },
    /// Another kind of URI.
    #[error("{uri:?} is no SPIFFE id")]
    NotSpiffe {
        /// The URI.
        uri: String,
    },
    /// Somebody else's.
    #[error("{uri:?} is of another trust domain")]
    TrustDomain {
        /// The URI.
        uri: String,
    },
    /// The hub itself.
    #[error("a hub's certificate is no client's")]
    Hub,
    /// A path that we do not give out.
    #[error("{uri:?} names no role of ours")]
    Path {
        /// The URI.
        uri: String,
    },
    /// A cluster id that breaks its rule.
    #[error(transparent)]
    Cluster(#[from] ParseIdError),
}

#[cfg(test)]
mod tests;
