//! What the control plane reads from its folder: keys, tokens, policies, configurations, kubeconfigs.
//! All of it is made afresh for each start and is worth nothing outside of it.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::{Value, json};

/// The folder could not be filled.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be written.
    #[error("writing {path}")]
    Write {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A key or certificate could not be made.
    #[error("making the serving certificate")]
    Certificate(#[from] rcgen::Error),
}

/// Someone with a token of its own. All are in `system:masters`; the name is for the audit log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    Admin,
    Kubelet,
    Controllers,
    Scheduler,
}

impl Who {
    pub(crate) const ALL: [Self; 4] = [Self::Admin, Self::Kubelet, Self::Controllers, Self::Scheduler];

    pub(crate) fn user(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Kubelet => "system:stand-in-kubelet",
            Self::Controllers => "system:kube-controller-manager",
            Self::Scheduler => "system:kube-scheduler",
        }
    }
}

/// What was written, as far as others must know it.
#[derive(Debug, Clone)]
pub(crate) struct Files {
    dir: PathBuf,
    server: String,
    ca_pem: String,
    secret: String,
}

impl Files {
    /// Fills `dir` for an API server on `port`.
    pub(crate) fn write(dir: &Path, port: u16) -> Result<Self, Error> {
        let secret = uuid::Uuid::new_v4().simple().to_string();
        let (ca_pem, cert_pem, key_pem) = serving_certificate()?;
        let files = Self { dir: dir.to_owned(), server: format!("https://127.0.0.1:{port}"), ca_pem, secret };
        files.put("ca.crt", &files.ca_pem)?;
        files.put("serving.crt", &cert_pem)?;
        files.put("serving.key", &key_pem)?;
        let service_accounts = KeyPair::generate()?;
        files.put("service-accounts.key", &service_accounts.serialize_pem())?;
        files.put("service-accounts.pub", &service_accounts.public_key_pem())?;
        files.put("tokens.csv", &files.tokens())?;
        files.put("audit-policy.json", &audit_policy().to_string())?;
        files.put("scheduler.json", &files.scheduler_config().to_string())?;
        files.put("controllers.kubeconfig", &files.kubeconfig(Who::Controllers))?;
        files.put("scheduler.kubeconfig", &files.kubeconfig(Who::Scheduler))?;
        Ok(files)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// `--flag=<path in the folder>`.
    pub(crate) fn flag(&self, flag: &str, name: &str) -> String {
        format!("--{flag}={}", self.path(name).display())
    }

    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    pub(crate) fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    pub(crate) fn token(&self, who: Who) -> String {
        format!("{}-{}", who.user().replace(':', "-"), self.secret)
    }

    /// JSON, which is YAML too.
    pub(crate) fn kubeconfig(&self, who: Who) -> String {
        kubeconfig(&self.server, &self.ca_pem, &self.token(who))
    }

    fn tokens(&self) -> String {
        let line = |who: Who| format!("{},{},{},\"system:masters\"\n", self.token(who), who.user(), who.user());
        Who::ALL.map(line).concat()
    }

    fn scheduler_config(&self) -> Value {
        json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {
                "kubeconfig": self.path("scheduler.kubeconfig"), "qps": 1000, "burst": 2000,
            },
            "leaderElection": { "leaderElect": false },
            // A pod that waits for a test to release a node should not wait 10 s more.
            "podInitialBackoffSeconds": 1,
            "podMaxBackoffSeconds": 1,
        })
    }

    fn put(&self, name: &str, text: &str) -> Result<(), Error> {
        write_private(&self.path(name), text)
    }
}

/// A kubeconfig for one server, CA and token.
pub(crate) fn kubeconfig(server: &str, ca_pem: &str, token: &str) -> String {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{ "name": "test", "cluster": {
            "server": server, "certificate-authority-data": BASE64.encode(ca_pem) } }],
        "users": [{ "name": "test", "user": { "token": token } }],
        "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test" } }],
    })
    .to_string()
}

/// Writes a file that only its owner can read: it may hold a token.
pub(crate) fn write_private(path: &Path, text: &str) -> Result<(), Error> {
    let attempt = || {
        let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        file.write_all(text.as_bytes())
    };
    attempt().map_err(|source| Error::Write { path: path.to_owned(), source })
}

/// CA, serving certificate and its key, as PEM. Ours rather than the API server's own self-signed one,
/// so that a client that insists on a proper chain is content.
fn serving_certificate() -> Result<(String, String, String), rcgen::Error> {
    let mut ca = CertificateParams::new(Vec::<String>::new())?;
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.distinguished_name.push(rcgen::DnType::CommonName, "gpu-selfhealing test CA");
    let issuer = CertifiedIssuer::self_signed(ca, KeyPair::generate()?)?;
    let names = ["127.0.0.1", "localhost", "kubernetes", "kubernetes.default.svc"].map(String::from);
    let key = KeyPair::generate()?;
    let mut leaf = CertificateParams::new(names)?;
    leaf.distinguished_name.push(rcgen::DnType::CommonName, "kube-apiserver");
    let cert = leaf.signed_by(&key, &issuer)?;
    Ok((issuer.pem(), cert.pem(), key.serialize_pem()))
}

/// Every request, its metadata, once when it is answered.
fn audit_policy() -> Value {
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{ "level": "Metadata" }],
    })
}
