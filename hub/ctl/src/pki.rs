//! A development PKI: one CA, the hub's and each cluster's certificate, users' certificates and the key that signs commands.
//! For demos, tests and first steps: all private keys lie in one directory, which no production system should do.
//! Never touches a directory that already holds a PKI unless told to replace it.

mod authority;
mod files;
mod trust;

use std::path::{Path, PathBuf};

use ed25519_dalek::{
    SigningKey,
    pkcs8::{EncodePrivateKey as _, KeypairBytes, spki::der::pem::LineEnding},
};
use gpuheal_proto::{ids::ClusterId, time::Timestamp};

pub use authority::{Authority, Issued, Leaf};
pub use trust::{CommandKey, TrustBundle, keyid};

/// The trust domain of development certificates unless another is named.
pub const TRUST_DOMAIN: &str = "dev.gpuheal";
/// How long development certificates are good for: long enough for a test bed, short enough to be noticed.
pub const DAYS_DEFAULT: u32 = 90;
/// Ten years: nobody who asks for more means it.
const DAYS_MAX: u32 = 3650;
/// The user who is always there.
const ADMIN: &str = "admin";
/// Names by which a hub on this machine or in the chart's namespace is reached.
const HUB_NAMES: [&str; 2] = ["localhost", "gpuheal-hub"];

/// What to make.
#[derive(Clone, Debug)]
pub struct Request {
    /// Where; made when absent.
    pub dir: PathBuf,
    /// A certificate each.
    pub clusters: Vec<ClusterId>,
    /// A certificate each, beside `admin`.
    pub users: Vec<String>,
    /// More DNS names of the hub.
    pub dns: Vec<String>,
    /// Trust domain of the SPIFFE ids.
    pub trust_domain: String,
    /// Life of every certificate.
    pub days: u32,
    /// Replace what is there: everything that it had issued stops being trusted.
    pub force: bool,
    /// The wall clock.
    pub now: Timestamp,
}

impl Request {
    /// For the clusters named, everything else as usual.
    #[must_use]
    pub fn new(dir: &Path, clusters: Vec<ClusterId>, now: Timestamp) -> Self {
        Self {
            dir: dir.to_owned(),
            clusters,
            users: Vec::new(),
            dns: Vec::new(),
            trust_domain: TRUST_DOMAIN.to_owned(),
            days: DAYS_DEFAULT,
            force: false,
            now,
        }
    }
}

/// Makes the PKI and writes it. Returns the files in the order in which they were written.
///
/// # Errors
/// When the request is not sensible, when a PKI is there already, or when a file cannot be written.
pub fn init(request: &Request) -> Result<Vec<PathBuf>, Error> {
    check(request)?;
    let mut out = files::Tree::open(&request.dir, request.force)?;
    let authority = Authority::new(&request.trust_domain, request.days, request.now)?;
    out.public("ca.crt", authority.cert_pem())?;
    out.secret("ca.key", &authority.key_pem())?;
    let hub = authority.issue(&hub_leaf(request))?;
    leaf_files(&mut out, "hub", &hub, &authority)?;

    let signing = signing_key()?;
    out.secret("signing/command.key", &signing_pem(&signing)?)?;
    let bundle = TrustBundle::first(&request.trust_domain, &signing.verifying_key(), authority.cert_pem());
    for cluster in &request.clusters {
        let dir = format!("clusters/{cluster}");
        let leaf = authority.issue(&Leaf::spoke(&request.trust_domain, cluster))?;
        leaf_files(&mut out, &dir, &leaf, &authority)?;
        out.public(&format!("{dir}/trust.json"), &bundle.to_json())?;
    }
    for user in std::iter::once(ADMIN).chain(request.users.iter().map(String::as_str).filter(|user| *user != ADMIN)) {
        let leaf = authority.issue(&Leaf::user(&request.trust_domain, user))?;
        leaf_files(&mut out, &format!("users/{user}"), &leaf, &authority)?;
    }
    Ok(out.written())
}

fn check(request: &Request) -> Result<(), Error> {
    if request.clusters.is_empty() {
        return Err(Error::NoCluster);
    }
    if !(1..=DAYS_MAX).contains(&request.days) {
        return Err(Error::Days { days: request.days });
    }
    if let Some(user) = request.users.iter().find(|user| !plain_name(user)) {
        return Err(Error::User { user: user.clone() });
    }
    if !trust_domain_valid(&request.trust_domain) {
        return Err(Error::TrustDomain { trust_domain: request.trust_domain.clone() });
    }
    Ok(())
}

/// A user's name becomes a path segment, of a SPIFFE id and of a directory.
fn plain_name(name: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'@');
    (1..=64).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(allowed)
}

fn trust_domain_valid(name: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_' | b'.');
    (1..=255).contains(&name.len()) && name.bytes().all(allowed)
}

fn hub_leaf(request: &Request) -> Leaf {
    let mut leaf = Leaf::hub(&request.trust_domain);
    leaf.dns = HUB_NAMES.iter().map(|name| (*name).to_owned()).chain(request.dns.iter().cloned()).collect();
    leaf.ips = vec![std::net::Ipv4Addr::LOCALHOST.into()];
    leaf
}

fn leaf_files(out: &mut files::Tree, dir: &str, leaf: &Issued, authority: &Authority) -> Result<(), Error> {
    out.public(&format!("{dir}/tls.crt"), &leaf.cert_pem)?;
    out.secret(&format!("{dir}/tls.key"), &leaf.key_pem)?;
    out.public(&format!("{dir}/ca.crt"), authority.cert_pem())
}

fn signing_key() -> Result<SigningKey, Error> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).map_err(|_| Error::Random)?;
    Ok(SigningKey::from_bytes(&seed))
}

/// PKCS#8 version 1, without the public half, which every tool reads.
fn signing_pem(key: &SigningKey) -> Result<String, Error> {
    let pair = KeypairBytes { secret_key: key.to_bytes(), public_key: None };
    let pem = pair.to_pkcs8_pem(LineEnding::LF).map_err(|_| Error::Encode)?;
    Ok(pem.as_str().to_owned())
}

/// Why no PKI was made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Without a cluster there is nobody to talk to the hub.
    #[error("name at least one cluster: --cluster ID")]
    NoCluster,
    /// Zero or absurd.
    #[error("--days {days}: between 1 and {DAYS_MAX} are allowed")]
    Days {
        /// What was asked for.
        days: u32,
    },
    /// Not a path segment.
    #[error("user {user:?}: 1 to 64 letters, digits, '-', '_', '.' or '@' are allowed, no '.' first")]
    User {
        /// What was asked for.
        user: String,
    },
    /// Not a trust domain.
    #[error("trust domain {trust_domain:?}: 1 to 255 lower-case letters, digits, '-', '_' and '.' are allowed")]
    TrustDomain {
        /// What was asked for.
        trust_domain: String,
    },
    /// There is one already.
    #[error("{} holds a PKI already; --force replaces it, and everything that it has issued stops being trusted", dir.display())]
    Exists {
        /// Where.
        dir: PathBuf,
    },
    /// A file or directory.
    #[error("cannot write {}", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A name that no certificate can carry, or a signature that failed.
    #[error("cannot make the certificate of {subject}")]
    Certificate {
        /// Whose.
        subject: String,
        /// Why.
        source: rcgen::Error,
    },
    /// The operating system gave no randomness.
    #[error("the operating system gave no random bytes")]
    Random,
    /// The signing key.
    #[error("cannot encode the signing key")]
    Encode,
}

#[cfg(test)]
mod tests;
