//! The development CA and what it issues: one URI SAN per certificate, P-256, digitalSignature only, both roles in EKU.

use std::{net::IpAddr, time::Duration};

use gpuheal_proto::{ids::ClusterId, time::Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType, SerialNumber, string::Ia5String,
};

use super::Error;

/// Clocks of a fleet differ a little: a certificate is good from this long before it was made.
const BACKDATED: Duration = Duration::from_secs(5 * 60);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A certificate to be issued. Built by hand only where a test wants one that must be refused.
#[derive(Clone, Debug, Default)]
pub struct Leaf {
    /// Common name, for people.
    pub common_name: String,
    /// URI SANs; exactly one in everything that we trust.
    pub uris: Vec<String>,
    /// DNS SANs.
    pub dns: Vec<String>,
    /// IP SANs.
    pub ips: Vec<IpAddr>,
}

impl Leaf {
    /// The hub.
    #[must_use]
    pub fn hub(trust_domain: &str) -> Self {
        Self {
            common_name: "gpu-selfhealing development hub".into(),
            uris: vec![format!("spiffe://{trust_domain}/hub")],
            ..Self::default()
        }
    }

    /// A cluster's spoke, shared by its replicas.
    #[must_use]
    pub fn spoke(trust_domain: &str, cluster: &ClusterId) -> Self {
        Self {
            common_name: common_name("spoke of", cluster.as_str()),
            uris: vec![format!("spiffe://{trust_domain}/cluster/{cluster}/spoke")],
            ..Self::default()
        }
    }

    /// A person or a tool.
    #[must_use]
    pub fn user(trust_domain: &str, name: &str) -> Self {
        Self {
            common_name: common_name("user", name),
            uris: vec![format!("spiffe://{trust_domain}/user/{name}")],
            ..Self::default()
        }
    }
}

/// X.509 allows 64 characters in a common name, and a cluster's id alone may have 63.
fn common_name(role: &str, name: &str) -> String {
    gpuheal_proto::bytes_text::clip(&format!("development {role} {name}"), 64).to_owned()
}

/// A certificate and its key, as PEM.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The certificate.
    pub cert_pem: String,
    /// Its private key, PKCS#8.
    pub key_pem: String,
}

/// A CA whose key is in memory.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    cert_pem: String,
    life: Duration,
    now: Timestamp,
}

impl Authority {
    /// A new CA for `trust_domain`, good for `days` like all that it issues.
    ///
    /// # Errors
    /// When the key or the certificate cannot be made.
    pub fn new(trust_domain: &str, days: u32, now: Timestamp) -> Result<Self, Error> {
        let subject = format!("development CA of {trust_domain}");
        let fail = |source| Error::Certificate { subject: subject.clone(), source };
        let life = DAY * days;
        let key = KeyPair::generate().map_err(fail)?;
        let mut params = params(gpuheal_proto::bytes_text::clip(&subject, 64), now, life);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        params.serial_number = Some(serial()?);
        let cert_pem = params.self_signed(&key).map_err(fail)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), cert_pem, life, now })
    }

    /// The CA's certificate.
    #[must_use]
    pub fn cert_pem(&self) -> &str {
        &self.cert_pem
    }

    /// The CA's private key.
    #[must_use]
    pub fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Issues a certificate with a fresh key.
    ///
    /// # Errors
    /// When a name cannot be put into a certificate.
    pub fn issue(&self, leaf: &Leaf) -> Result<Issued, Error> {
        let fail = |source| Error::Certificate { subject: leaf.common_name.clone(), source };
        let mut params = params(&leaf.common_name, self.now, self.life);
        params.subject_alt_names = names(leaf).map_err(fail)?;
        params.is_ca = IsCa::ExplicitNoCa;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.serial_number = Some(serial()?);
        let key = KeyPair::generate().map_err(fail)?;
        let cert_pem = params.signed_by(&key, &self.issuer).map_err(fail)?.pem();
        Ok(Issued { cert_pem, key_pem: key.serialize_pem() })
    }
}

fn params(common_name: &str, now: Timestamp, life: Duration) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    // Built on the epoch, so that the date type stays rcgen's own business.
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let since_epoch = |at: Timestamp| at.since(Timestamp::EPOCH);
    params.not_before = epoch + since_epoch(now.before(BACKDATED));
    params.not_after = epoch + since_epoch(now.after(life));
    params
}

fn names(leaf: &Leaf) -> Result<Vec<SanType>, rcgen::Error> {
    let text = |text: &String| Ia5String::try_from(text.as_str());
    let uris = leaf.uris.iter().map(|uri| Ok(SanType::URI(text(uri)?)));
    let dns = leaf.dns.iter().map(|name| Ok(SanType::DnsName(text(name)?)));
    let ips = leaf.ips.iter().map(|ip| Ok(SanType::IpAddress(*ip)));
    uris.chain(dns).chain(ips).collect()
}

/// 127 random bits: positive, and never met twice.
fn serial() -> Result<SerialNumber, Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|_| Error::Random)?;
    bytes[0] &= 0x7f;
    Ok(SerialNumber::from_slice(&bytes))
}
