//! Reading the identity's three PEM files, all of one moment as far as a digest can tell.

use std::{fs, path::Path};

use gpuheal_proto::time::Timestamp;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use sha2::{Digest as _, Sha256};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::Error;

pub(super) struct Files {
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: PrivateKeyDer<'static>,
    pub(super) ca: Vec<CertificateDer<'static>>,
    /// Until when the first certificate of the chain is good.
    pub(super) not_after: Timestamp,
    /// Of all three, so that any change is one.
    pub(super) digest: [u8; 32],
}

pub(super) fn read(dir: &Path) -> Result<Files, Error> {
    let (cert, key, ca) = (bytes(dir, "tls.crt")?, bytes(dir, "tls.key")?, bytes(dir, "ca.crt")?);
    let digest = Sha256::new_with_prefix(&cert).chain_update(&key).chain_update(&ca).finalize().into();
    let chain = certificates(dir, "tls.crt", &cert)?;
    let leaf = chain.first().and_then(|leaf| not_after(leaf));
    Ok(Files {
        not_after: leaf.ok_or_else(|| Error::Pem { path: dir.join("tls.crt"), what: "certificate" })?,
        chain,
        key: PrivateKeyDer::from_pem_slice(&key).map_err(|_| Error::Pem { path: dir.join("tls.key"), what: "private key" })?,
        ca: certificates(dir, "ca.crt", &ca)?,
        digest,
    })
}

fn not_after(leaf: &CertificateDer<'_>) -> Option<Timestamp> {
    let (_, leaf) = X509Certificate::from_der(leaf).ok()?;
    Some(Timestamp::from_unix_ms(leaf.validity().not_after.timestamp().saturating_mul(1000)))
}

fn bytes(dir: &Path, name: &str) -> Result<Vec<u8>, Error> {
    let path = dir.join(name);
    fs::read(&path).map_err(|source| Error::Read { path, source })
}

fn certificates(dir: &Path, name: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    let fail = || Error::Pem { path: dir.join(name), what: "certificate" };
    let all: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|_| fail())?;
    if all.is_empty() { Err(fail()) } else { Ok(all) }
}
