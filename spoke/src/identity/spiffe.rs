//! The one URI of a certificate, and its end. Called only on certificates whose chain has been verified: webpki knows no URI names.

use gpuheal_proto::time::Timestamp;
use rustls::pki_types::CertificateDer;
use x509_parser::{extensions::GeneralName, prelude::FromDer as _};

/// The certificate's single URI SAN.
///
/// # Errors
/// When it has none, or more than one: SPIFFE allows exactly one.
pub fn uri_of(certificate: &CertificateDer<'_>) -> Result<String, SpiffeError> {
    let (_, parsed) = x509_parser::certificate::X509Certificate::from_der(certificate).map_err(|_| SpiffeError::Malformed)?;
    let names = parsed.subject_alternative_name().map_err(|_| SpiffeError::Malformed)?;
    let names = names.map(|extension| extension.value.general_names.as_slice()).unwrap_or_default();
    let uris: Vec<&str> =
        names.iter().filter_map(|name| if let GeneralName::URI(uri) = name { Some(*uri) } else { None }).collect();
    match uris[..] {
        [uri] => Ok(uri.to_owned()),
        _ => Err(SpiffeError::Count { count: uris.len() }),
    }
}

/// The last moment at which the certificate is good.
///
/// # Errors
/// When it does not parse.
pub fn expiry_of(certificate: &CertificateDer<'_>) -> Result<Timestamp, SpiffeError> {
    let (_, parsed) = x509_parser::certificate::X509Certificate::from_der(certificate).map_err(|_| SpiffeError::Malformed)?;
    Ok(Timestamp::from_unix_ms(parsed.validity().not_after.timestamp().saturating_mul(1000)))
}

/// Why a certificate carries no SPIFFE id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpiffeError {
    /// Not a certificate, or broken extensions.
    #[error("certificate does not parse")]
    Malformed,
    /// None, or several.
    #[error("certificate has {count} URI names, exactly one is allowed")]
    Count {
        /// How many.
        count: usize,
    },
}
