//! Identity of an alert: FNV-1a 64 over its sorted labels, as Alertmanager computes it.
//!
//! Posters that go past Prometheus leave the field empty; computed here it is the same number as everywhere else.

use std::collections::BTreeMap;
use std::fmt;

/// Shown as 16 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(u64);

const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;
/// Never part of UTF-8 text, so names and values cannot run into each other.
const SEPARATOR: u8 = 0xff;

impl Fingerprint {
    /// Computes it.
    pub fn of(labels: &BTreeMap<String, String>) -> Self {
        let texts = labels.iter().flat_map(|(name, value)| [name, value]);
        let bytes = texts.flat_map(|text| text.bytes().chain([SEPARATOR]));
        Self(bytes.fold(OFFSET_BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME)))
    }

    /// Reads 1 to 16 hex digits; Go prints it without leading zeros in some versions.
    pub fn parse(text: &str) -> Option<Self> {
        let all_hex = text.bytes().all(|b| b.is_ascii_hexdigit());
        if text.len() <= 16 && all_hex { u64::from_str_radix(text, 16).ok().map(Self) } else { None }
    }

    /// The number.
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
