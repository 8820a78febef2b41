//! Ids as types of their own: parsed at the edge, trusted inside, so that a node's name cannot stand where its UID must.

use std::fmt;

use sha2::{Digest as _, Sha256};
use uuid::Uuid;

/// A text that cannot be the id it was given for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a {kind}: {rule}")]
pub struct ParseIdError {
    kind: &'static str,
    rule: &'static str,
    text: String,
}

/// Longest name that Kubernetes gives an object: a DNS subdomain.
const NAME_BYTES_MAX: usize = 253;

fn visible(text: &str) -> bool {
    !text.is_empty() && text.len() <= NAME_BYTES_MAX && text.bytes().all(|b| b.is_ascii_graphic())
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $rule:literal, $valid:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Takes a text that keeps the id's rule.
            ///
            /// # Errors
            /// When the rule is broken; the error names it.
            pub fn parse(text: &str) -> Result<Self, ParseIdError> {
                let valid: fn(&str) -> bool = $valid;
                if valid(text) {
                    Ok(Self(text.to_owned()))
                } else {
                    let text = crate::bytes_text::clip(text, 80).to_owned();
                    Err(ParseIdError { kind: $kind, rule: $rule, text })
                }
            }

            /// The id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = ParseIdError;
            fn try_from(text: String) -> Result<Self, ParseIdError> {
                Self::parse(&text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0
            }
        }

        impl std::str::FromStr for $name {
            type Err = ParseIdError;
            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                Self::parse(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_id!(
    /// A cluster: opaque, never used again once retired. Lower-case letters, digits and dashes.
    ClusterId, "cluster id", "1 to 63 lower-case letters, digits and dashes, a letter or digit first", |t: &str| {
        (1..=63).contains(&t.len())
            && t.as_bytes()[0] != b'-'
            && t.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    }
);
text_id!(
    /// A node's name: a label for people. What ties a fault to a node is its UID.
    NodeName, "node name", "1 to 253 visible ASCII characters", visible
);
text_id!(
    /// `metadata.uid` of a Node: another machine under an old name has another one.
    NodeUid, "node uid", "1 to 253 visible ASCII characters", visible
);
text_id!(
    /// One spoke replica: the pod's name.
    ReplicaId, "replica id", "1 to 253 visible ASCII characters", visible
);
text_id!(
    /// One journal stream: random, new when the journal is new, damaged or was not closed cleanly.
    StreamId, "stream id", "1 to 253 visible ASCII characters", visible
);
text_id!(
    /// A GPU's UUID as the driver prints it. An attribute: a swapped GPU has a new one in the same slot.
    GpuUuid, "GPU UUID", "1 to 253 visible ASCII characters", visible
);
text_id!(
    /// A GPU's PCI address, normalised: `0000:5d:00`, lower case, four-digit domain where it fits, no function.
    GpuSlot, "GPU slot", "a PCI address like 0000:5d:00", |t: &str| normal_slot(t).as_deref() == Some(t)
);

impl GpuSlot {
    /// From any spelling of a PCI address: `00000000:5D:00.0`, `0000:5d:00`, `PCI:0000:5D:00.0`, `5d:00.0`.
    #[must_use]
    pub fn normalise(text: &str) -> Option<Self> {
        normal_slot(text).map(Self)
    }
}

fn normal_slot(text: &str) -> Option<String> {
    let text = text.strip_prefix("PCI:").unwrap_or(text);
    let text = text.split_once('.').map_or(text, |(address, _function)| address);
    let mut parts = text.rsplit(':');
    let device = hex_part(parts.next()?, 2)?;
    let bus = hex_part(parts.next()?, 2)?;
    let domain = parts.next().map_or(Some(0), |d| hex_part(d, 8))?;
    parts.next().is_none().then(|| format!("{domain:04x}:{bus:02x}:{device:02x}"))
}

fn hex_part(text: &str, digits_max: usize) -> Option<u32> {
    let fits = (1..=digits_max).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit());
    fits.then(|| u32::from_str_radix(text, 16).ok()).flatten()
}

/// What tells a GPU from the others of its node: where it sits, and of one whose slot nobody knows, which one it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuPlace {
    /// Where it sits.
    Slot(GpuSlot),
    /// Which one it is.
    Uuid(GpuUuid),
}

impl fmt::Display for GpuPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slot(slot) => slot.fmt(f),
            Self::Uuid(uuid) => uuid.fmt(f),
        }
    }
}

/// A fault's identity: H(cluster, node UID, GPU slot or else its UUID or else `node`, class, code). The same thing seen twice has
/// one key. Boot id, driver, and the UUID of a GPU whose slot is known are attributes: in the key they would make a lasting
/// state look new after each reboot or repair.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FaultKey([u8; 32]);

impl FaultKey {
    /// Derives the key. `gpu` is `None` for a fault of the whole node or of a GPU nobody named.
    #[must_use]
    pub fn derive(cluster: &ClusterId, node: &NodeUid, gpu: Option<&GpuPlace>, class: &str, code: &str) -> Self {
        let (cluster, node) = (cluster.as_str(), node.as_str());
        Self(match gpu {
            None => digest(&["fault", cluster, node, "node", class, code]),
            Some(GpuPlace::Slot(slot)) => digest(&["fault", cluster, node, slot.as_str(), class, code]),
            // One field more: no UUID can be taken for a slot or for the node, whatever it says.
            Some(GpuPlace::Uuid(uuid)) => digest(&["fault", cluster, node, "uuid", uuid.as_str(), class, code]),
        })
    }

    /// From 64 hex digits.
    ///
    /// # Errors
    /// When the text is anything else.
    pub fn parse(text: &str) -> Result<Self, ParseIdError> {
        let mut key = [0; 32];
        hex::decode_to_slice(text, &mut key).map_err(|_| ParseIdError {
            kind: "fault key",
            rule: "64 hex digits",
            text: crate::bytes_text::clip(text, 80).to_owned(),
        })?;
        Ok(Self(key))
    }

    /// The raw 32 bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl TryFrom<String> for FaultKey {
    type Error = ParseIdError;
    fn try_from(text: String) -> Result<Self, ParseIdError> {
        Self::parse(&text)
    }
}

impl From<FaultKey> for String {
    fn from(key: FaultKey) -> Self {
        key.to_string()
    }
}

impl fmt::Display for FaultKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for FaultKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(&self.0[..6]))
    }
}

/// SHA-256 over the parts, each led by its length so that no two lists of parts meet in one digest.
#[must_use]
pub fn digest(parts: &[&str]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().into()
}

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// Wraps a UUID made elsewhere.
            #[must_use]
            pub const fn from_uuid(id: Uuid) -> Self {
                Self(id)
            }

            /// Reads the hyphenated form, lower case, and no other: one id has one spelling.
            ///
            /// # Errors
            /// When the text is anything else.
            pub fn parse(text: &str) -> Result<Self, ParseIdError> {
                match Uuid::try_parse(text) {
                    Ok(id) if id.to_string() == text => Ok(Self(id)),
                    _ => Err(ParseIdError {
                        kind: $kind,
                        rule: "a lower-case hyphenated UUID",
                        text: crate::bytes_text::clip(text, 80).to_owned(),
                    }),
                }
            }

            /// The UUID itself.
            #[must_use]
            pub const fn uuid(self) -> Uuid {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

uuid_id!(
    /// Everything known and done about one node's current trouble.
    IncidentId, "incident id"
);
uuid_id!(
    /// One command; also the name of its HealAction in the cluster.
    CommandId, "command id"
);

/// A UUID of version 7 for moment `at`, its 74 free bits taken from `seed`: content decides it, not chance, so that
/// the same decision taken twice names the same thing.
#[must_use]
pub fn uuid_v7(at: crate::time::Timestamp, seed: &[u8; 32]) -> Uuid {
    let mut bytes = [0; 16];
    let ms = u64::try_from(at.unix_ms()).unwrap_or(0);
    bytes[..6].copy_from_slice(&ms.to_be_bytes()[2..]);
    bytes[6..].copy_from_slice(&seed[..10]);
    bytes[6] = bytes[6] & 0x0f | 0x70;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Uuid::from_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_pci_address_is_one_slot() {
        for text in ["00000000:5D:00.0", "0000:5d:00", "PCI:0000:5D:00.0", "5d:00.0", "PCI:0000:5d:00"] {
            assert_eq!(GpuSlot::normalise(text).unwrap().as_str(), "0000:5d:00", "{text}");
        }
        assert_eq!(GpuSlot::normalise("0009:01:00").unwrap().as_str(), "0009:01:00");
        for text in ["", "gpu0", "0000:5d", "0000:5d:00:00:00", "zz:00:00", "0000:5d:000"] {
            assert!(GpuSlot::normalise(text).is_none(), "{text}");
        }
        assert!(GpuSlot::parse("0000:5D:00").is_err(), "only the normal spelling is an id");
    }

    #[test]
    fn keys_of_different_faults_differ_even_when_their_texts_join_alike() {
        let cluster = ClusterId::parse("a").unwrap();
        let uid = NodeUid::parse("u").unwrap();
        let one = FaultKey::derive(&cluster, &uid, None, "xid", "79");
        assert_eq!(one, FaultKey::derive(&cluster, &uid, None, "xid", "79"));
        assert_ne!(one, FaultKey::derive(&cluster, &uid, None, "xid7", "9"));
        assert_eq!(FaultKey::parse(&one.to_string()).unwrap(), one);
    }

    #[test]
    fn gpus_without_a_slot_have_keys_of_their_own_by_their_uuid() {
        let (cluster, node) = (ClusterId::parse("a").unwrap(), NodeUid::parse("u").unwrap());
        let of = |uuid: &str| {
            let place = GpuPlace::Uuid(GpuUuid::parse(uuid).unwrap());
            FaultKey::derive(&cluster, &node, Some(&place), "xid", "79")
        };
        let slot = GpuPlace::Slot(GpuSlot::normalise("0000:5d:00").unwrap());
        let slot = FaultKey::derive(&cluster, &node, Some(&slot), "xid", "79");
        let whole = FaultKey::derive(&cluster, &node, None, "xid", "79");
        let keys = [of("GPU-1"), of("GPU-2"), of("node"), of("0000:5d:00"), slot, whole];
        let different: std::collections::BTreeSet<_> = keys.into_iter().collect();
        assert_eq!(different.len(), keys.len(), "{keys:?}");
        assert_eq!(of("GPU-1"), of("GPU-1"));
    }

    #[test]
    fn an_id_made_from_content_is_a_uuid_of_version_7() {
        let id = uuid_v7(crate::time::Timestamp::from_unix_ms(1_764_442_800_000), &[0xff; 32]);
        assert_eq!(id.get_version_num(), 7);
        assert_eq!(id.get_variant(), uuid::Variant::RFC4122);
    }

    #[test]
    fn a_cluster_id_is_a_dns_label() {
        assert!(ClusterId::parse("prod-eu-1").is_ok());
        for text in ["", "-a", "A", "a b", "a/b", &"x".repeat(64)] {
            assert!(ClusterId::parse(text).is_err(), "{text}");
        }
    }
}
