//! Which extended resources are GPUs: the cluster's one word on it, for the inventory, the watches, what device plugins offer, drains and
//! the doctor. Pure. It is a matter of the cluster's device plugin, so that its spoke is told, and no policy.

use std::{fmt, sync::Arc};

/// How the names of MIG instances begin, one for each profile.
const MIG: &str = "nvidia.com/mig-";
/// NVIDIA's, unless others are named: whole GPUs and their shares, and MIG instances.
const NVIDIA: [&str; 2] = ["nvidia.com/gpu", MIG];
/// Longest name: a DNS subdomain of 253 bytes, `/`, and 63 more.
const NAME_BYTES_MAX: usize = 317;

/// Names, or beginnings of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuResources(Arc<[String]>);

impl Default for GpuResources {
    fn default() -> Self {
        Self(NVIDIA.iter().map(|&name| name.to_owned()).collect())
    }
}

impl GpuResources {
    /// These; NVIDIA's when none is named.
    #[must_use]
    pub fn of(names: &[String]) -> Self {
        if names.is_empty() { Self::default() } else { Self(names.into()) }
    }

    /// Whether a resource is GPUs. A name is of itself and of what goes on after a `.`, as shares do; one that ends with `-` or `/` is
    /// of all that begin so. `nvidia.com/gpumem` is thus no GPU, though its name begins like one.
    #[must_use]
    pub fn is_gpu(&self, resource: &str) -> bool {
        self.0.iter().any(|name| match resource.strip_prefix(name.as_str()) {
            Some(rest) => rest.is_empty() || rest.starts_with('.') || name.ends_with(['-', '/']),
            None => false,
        })
    }

    /// Whether a device plugin offers one of it for each GPU: of a name that was named as it is. Shares, whose names go on after it, and
    /// what is of an open end, such as MIG instances, tell of no number of GPUs.
    #[must_use]
    pub fn counts_gpus(&self, resource: &str) -> bool {
        self.0.iter().any(|name| name == resource)
    }
}

/// Whether a resource is MIG instances, whose layout a person may change.
pub(crate) fn is_mig(resource: &str) -> bool {
    resource.starts_with(MIG)
}

impl fmt::Display for GpuResources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(", "))
    }
}

/// What may be named: the shape of an extended resource, whose domain keeps it apart from a node's own.
///
/// # Errors
/// The rule that it breaks.
pub fn parse(text: &str) -> Result<String, &'static str> {
    let (domain, name) = text.split_once('/').ok_or("it is DOMAIN/NAME, such as nvidia.com/gpu")?;
    let letters = |part: &str| part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'));
    if domain.is_empty() || text.len() > NAME_BYTES_MAX || !letters(domain) || !letters(name) {
        return Err("it is DOMAIN/NAME in letters, digits, dashes and dots, such as nvidia.com/gpu");
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_of_itself_and_its_shares_and_an_open_end_of_all_that_begin_so() {
        let usual = GpuResources::default();
        for gpu in ["nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb"] {
            assert!(usual.is_gpu(gpu), "{gpu}");
        }
        for other in ["cpu", "nvidia.com/gpumem", "nvidia.com/gpucores", "amd.com/gpu", "nvidia.com/mig"] {
            assert!(!usual.is_gpu(other), "{other}");
        }
        let own = GpuResources::of(&["amd.com/gpu".to_owned(), "example.com/".to_owned()]);
        assert!(own.is_gpu("amd.com/gpu") && own.is_gpu("example.com/anything") && !own.is_gpu("nvidia.com/gpu"));
    }

    #[test]
    fn one_for_each_gpu_is_offered_of_what_was_named_itself() {
        let usual = GpuResources::default();
        assert!(usual.counts_gpus("nvidia.com/gpu"));
        let own = GpuResources::of(&["amd.com/gpu".to_owned(), "example.com/".to_owned()]);
        assert!(own.counts_gpus("amd.com/gpu") && !own.counts_gpus("nvidia.com/gpu"));
        for other in ["nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb", "example.com/anything", "cpu"] {
            assert!(!usual.counts_gpus(other) && !own.counts_gpus(other), "{other}");
        }
    }

    #[test]
    fn what_has_no_domain_names_no_extended_resource() {
        assert_eq!(parse("nvidia.com/mig-").as_deref(), Ok("nvidia.com/mig-"));
        for wrong in ["cpu", "", "/gpu", "a b/gpu", "a/b/c"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
