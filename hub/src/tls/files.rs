//! Reading the identity's three PEM files, all of one moment as far as a digest can tell.

use std::{fs, path::Path};

use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use sha2::{Digest as _, Sha256};

use super::Error;

pub(super) struct Files {
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: PrivateKeyDer<'static>,
    pub(super) ca: Vec<CertificateDer<'static>>,
    /// Of all three, so that any change is one.
    pub(super) digest: [u8; 32],
}

pub(super) fn read(dir: &Path) -> Result<Files, Error> {
    let (cert, key, ca) = (bytes(dir, "tls.crt")?, bytes(dir, "tls.key")?, bytes(dir, "ca.crt")?);
    let digest = Sha256::new_with_prefix(&cert).chain_update(&key).chain_update(&ca).finalize().into();
    Ok(Files {
        chain: certificates(dir, "tls.crt", &cert)?,
        key: PrivateKeyDer::from_pem_slice(&key).map_err(|_| Error::Pem { path: dir.join("tls.key"), what: "private key" })?,
        ca: certificates(dir, "ca.crt", &ca)?,
        digest,
    })
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
