//! The server's certificates: a CA of its own and a leaf for the loopback names. Keys never leave the process.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// Names that the leaf is good for.
const NAMES: [&str; 5] = ["localhost", "127.0.0.1", "::1", "kubernetes", "kubernetes.default.svc"];

/// Certificates could not be made.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Making a key or a certificate.
    #[error("make the server's certificate")]
    Certificate(#[from] rcgen::Error),
    /// Taking it into the TLS stack.
    #[error("configure the server's TLS")]
    Config(#[from] rustls::Error),
}

/// A CA and a serving certificate under it.
#[derive(Debug, Clone)]
pub struct TlsIdentity {
    pub(crate) server: Arc<ServerConfig>,
    pub(crate) ca_pem: Arc<str>,
}

impl TlsIdentity {
    /// Makes a fresh CA and leaf.
    pub fn generate() -> Result<Self, TlsError> {
        let ca_key = KeyPair::generate()?;
        let mut ca = CertificateParams::new(Vec::<String>::new())?;
        ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        ca.distinguished_name.push(DnType::CommonName, "kubesim-ca");
        let ca_pem = ca.self_signed(&ca_key)?.pem();

        let leaf_key = KeyPair::generate()?;
        let mut leaf = CertificateParams::new(NAMES.map(str::to_owned).to_vec())?;
        leaf.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let leaf_certificate = leaf.signed_by(&leaf_key, &Issuer::from_params(&ca, &ca_key))?;

        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(leaf_key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![leaf_certificate.der().clone()], key)?;
        server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { server: Arc::new(server), ca_pem: Arc::from(ca_pem) })
    }
}
