//! What the device plugin offers: allocatable against capacity, and both against what the node once had.
//!
//! A pure reading, and a weak one: a plugin or kubelet restart shows 0 for a minute, MIG re-layouts move both numbers,
//! time slicing multiplies them, and a restored number proves no repair. Debouncing is `derive`'s.

use std::collections::BTreeMap;

use crate::gpu_resources::{GpuResources, is_mig};

/// Most GPU resources of a node. There are some 20 MIG profiles.
pub const RESOURCES_MAX: usize = 64;

/// One extended resource of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Offer {
    /// Such as `nvidia.com/gpu`.
    pub resource: String,
    /// There is one of it for each GPU: not of slices, nor of shares that bear a name of their own.
    pub counts_gpus: bool,
    /// What the plugin registered; `None` where the resource is gone.
    pub capacity: Option<u64>,
    /// What of it may be given out; `None` where the resource is gone or unreadable.
    pub allocatable: Option<u64>,
}

/// How an offer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// All of it.
    Full,
    /// Some devices are held back: the plugin marked them unhealthy.
    Short {
        /// How many.
        missing: u64,
    },
    /// None, while the capacity stays: the plugin is gone or restarts, or every device is held back.
    NoneOffered,
    /// One of the two numbers is absent or no number: nothing can be said.
    Unreadable,
}

impl Offer {
    /// How it stands.
    pub fn standing(&self) -> Standing {
        match (self.capacity, self.allocatable) {
            (Some(0), Some(_)) => Standing::Full,
            (Some(_), Some(0)) => Standing::NoneOffered,
            (Some(capacity), Some(allocatable)) if allocatable < capacity => Standing::Short { missing: capacity - allocatable },
            (Some(_), Some(_)) => Standing::Full,
            _ => Standing::Unreadable,
        }
    }
}

/// The GPU resources of a node, from the two maps of its status.
pub fn offers(capacity: &BTreeMap<String, String>, allocatable: &BTreeMap<String, String>, gpus: &GpuResources) -> Vec<Offer> {
    let ours = |name: &&String| gpus.is_gpu(name);
    let mut names: Vec<&String> = capacity.keys().chain(allocatable.keys()).filter(ours).collect();
    names.sort();
    names.dedup();
    names.truncate(RESOURCES_MAX);
    let count = |map: &BTreeMap<String, String>, name: &String| map.get(name).and_then(|text| quantity(text));
    let offer = |name: &String| Offer {
        resource: name.clone(),
        counts_gpus: gpus.counts_gpus(name),
        capacity: count(capacity, name),
        allocatable: count(allocatable, name),
    };
    names.into_iter().map(offer).collect()
}

/// Whether the same resources are laid out otherwise than before: a MIG re-layout or another sharing factor, after which
/// a smaller number is no loss.
pub fn is_relayout(before: &[Offer], after: &[Offer]) -> bool {
    let shape = |offers: &[Offer]| -> Vec<(String, Option<u64>)> {
        let used = offers.iter().filter(|offer| offer.capacity.is_none_or(|capacity| capacity > 0));
        used.map(|offer| (offer.resource.clone(), offer.capacity)).collect()
    };
    let (before, after) = (shape(before), shape(after));
    let mig = |shape: &[(String, Option<u64>)]| shape.iter().any(|(name, _)| is_mig(name));
    let grew = after.iter().any(|(name, count)| before.iter().all(|(other, was)| other != name || was < count));
    before != after && (mig(&before) || mig(&after) || grew)
}

/// Counts of devices are whole; the API may write thousands as `1k`.
fn quantity(text: &str) -> Option<u64> {
    let (digits, factor) = match text.strip_suffix('k') {
        Some(digits) => (digits, 1000),
        None => (text, 1),
    };
    let all_digits = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    if all_digits { digits.parse::<u64>().ok()?.checked_mul(factor) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: &str = "nvidia.com/gpu";

    fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        entries.iter().map(|(name, count)| ((*name).to_owned(), (*count).to_owned())).collect()
    }

    fn standing(capacity: &[(&str, &str)], allocatable: &[(&str, &str)]) -> Vec<(String, Standing)> {
        offers(&map(capacity), &map(allocatable), &GpuResources::default())
            .into_iter()
            .map(|offer| (offer.resource.clone(), offer.standing()))
            .collect()
    }

    #[test]
    fn seven_of_eight_is_one_missing() {
        let got = standing(&[(GPU, "8"), ("cpu", "96")], &[(GPU, "7"), ("cpu", "95")]);
        assert_eq!(got, [(GPU.to_owned(), Standing::Short { missing: 1 })]);
    }

    #[test]
    fn zero_of_eight_is_a_plugin_that_is_gone_and_not_eight_faults() {
        assert_eq!(standing(&[(GPU, "8")], &[(GPU, "0")])[0].1, Standing::NoneOffered);
    }

    #[test]
    fn a_resource_that_is_gone_says_nothing() {
        assert_eq!(standing(&[(GPU, "8")], &[])[0].1, Standing::Unreadable);
        assert_eq!(standing(&[], &[]), []);
        assert_eq!(standing(&[(GPU, "8")], &[(GPU, "-1")])[0].1, Standing::Unreadable);
    }

    #[test]
    fn mig_profiles_are_read_one_by_one() {
        let got = standing(&[("nvidia.com/mig-1g.5gb", "7"), (GPU, "0")], &[("nvidia.com/mig-1g.5gb", "6"), (GPU, "0")]);
        assert_eq!(got, [(GPU.to_owned(), Standing::Full), ("nvidia.com/mig-1g.5gb".to_owned(), Standing::Short { missing: 1 })]);
    }

    #[test]
    fn a_mig_relayout_is_told_from_a_loss() {
        let offers = |entries: &[(&str, &str)]| offers(&map(entries), &map(entries), &GpuResources::default());
        assert!(is_relayout(&offers(&[(GPU, "8")]), &offers(&[(GPU, "7"), ("nvidia.com/mig-1g.5gb", "7")])));
        assert!(is_relayout(&offers(&[(GPU, "8")]), &offers(&[(GPU, "32")])));
        assert!(!is_relayout(&offers(&[(GPU, "8")]), &offers(&[(GPU, "7")])));
        assert!(!is_relayout(&offers(&[(GPU, "8")]), &offers(&[(GPU, "8")])));
    }

    #[test]
    fn quantities_are_whole_counts() {
        for (text, want) in [
            ("8", Some(8)),
            ("1k", Some(1000)),
            ("", None),
            ("k", None),
            ("1.5", None),
            ("8Gi", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(quantity(text), want, "{text}");
        }
    }
}
