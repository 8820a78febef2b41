//! Which certificates count no longer, as every hub keeps it in memory. Pure but for the one place that holds the current
//! list. The truth is the table `revocations`; a hub that cannot read it goes on with what it read last, so that a database
//! that is away locks nobody out and lets nobody back in.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use arc_swap::ArcSwap;
use gpuheal_proto::{ids::ClusterId, time::Timestamp};

/// Longest serial number of a certificate, RFC 5280: 20 bytes.
const SERIAL_BYTES_MAX: usize = 20;

/// A certificate's serial number: lower hex without leading zeros, however it was written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Serial(String);

impl Serial {
    /// From the bytes in a certificate.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self::short(&hex::encode(bytes))
    }

    /// From what a person copied out of a tool: hex, with or without colons.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits: String = text.chars().filter(|c| *c != ':').map(|c| c.to_ascii_lowercase()).collect();
        let hex = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
        let serial = Self::short(&digits);
        (hex && serial.0.len() <= 2 * SERIAL_BYTES_MAX).then_some(serial)
    }

    fn short(digits: &str) -> Self {
        Self(digits.trim_start_matches('0').to_owned())
    }

    /// As stored.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What tells one certificate of a cluster from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Its number.
    pub serial: Serial,
    /// When it began.
    pub not_before: Timestamp,
}

/// What was revoked of one cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Denial {
    /// Certificates that began before are refused.
    pub not_before_min: Option<Timestamp>,
    /// So are these.
    pub serials: BTreeSet<Serial>,
}

impl Denial {
    /// Whether this certificate counts no longer.
    #[must_use]
    pub fn covers(&self, certificate: &Certificate) -> bool {
        self.not_before_min.is_some_and(|min| certificate.not_before < min) || self.serials.contains(&certificate.serial)
    }
}

/// All of it, by cluster.
pub type Denials = BTreeMap<ClusterId, Denial>;

/// The list that is in force in this process.
#[derive(Debug, Default)]
pub struct DenyList(ArcSwap<Denials>);

impl DenyList {
    /// Takes another list from now on.
    pub fn set(&self, denials: Denials) {
        self.0.store(Arc::new(denials));
    }

    /// Whether a cluster's certificate counts no longer.
    #[must_use]
    pub fn denies(&self, cluster: &ClusterId, certificate: &Certificate) -> bool {
        self.0.load().get(cluster).is_some_and(|denial| denial.covers(certificate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(serial: &str, not_before_ms: i64) -> Certificate {
        Certificate { serial: Serial::parse(serial).unwrap(), not_before: Timestamp::from_unix_ms(not_before_ms) }
    }

    #[test]
    fn a_serial_is_the_same_however_a_tool_writes_it() {
        let plain = Serial::parse("0A:1b:2C").unwrap();
        for text in ["a1b2c", "0a1b2c", "00:0a:1b:2c", "A1B2C"] {
            assert_eq!(Serial::parse(text), Some(plain.clone()), "{text}");
        }
        assert_eq!(Serial::from_bytes(&[0, 0x0a, 0x1b, 0x2c]), plain);
        for text in ["", ":", "xyz", "12 34", &"f".repeat(41)] {
            assert_eq!(Serial::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_certificate_is_refused_by_its_number_or_because_it_began_too_early_and_only_in_its_cluster() {
        let (alpha, beta) = (ClusterId::parse("alpha").unwrap(), ClusterId::parse("beta").unwrap());
        let list = DenyList::default();
        assert!(!list.denies(&alpha, &certificate("1", 0)));
        let early = Denial { not_before_min: Some(Timestamp::from_unix_ms(100)), serials: BTreeSet::new() };
        let number = Denial { not_before_min: None, serials: BTreeSet::from([Serial::parse("ff").unwrap()]) };
        list.set(Denials::from([(alpha.clone(), early), (beta.clone(), number)]));
        assert!(list.denies(&alpha, &certificate("ff", 99)));
        assert!(!list.denies(&alpha, &certificate("ff", 100)), "what begins at the limit is new");
        assert!(list.denies(&beta, &certificate("ff", 100)));
        assert!(!list.denies(&beta, &certificate("fe", 0)));
    }
}
