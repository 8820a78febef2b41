//! Which resources the server knows: the built-in table, and what CustomResourceDefinitions add.
//! Pure data; the store keeps one registry per cluster.

mod builtin;
mod crd;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

pub(crate) use crd::CustomSpec;

/// How a stored object is shown under this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum View {
    Same,
    /// Stored as core/v1 Event, shown as events.k8s.io/v1.
    EventsV1,
}

/// One resource under one group and version.
#[derive(Debug, Clone)]
pub struct ResourceKind {
    /// API group; empty for core.
    pub group: String,
    /// Version within the group.
    pub version: String,
    /// Plural name, as in paths.
    pub plural: String,
    /// Singular name.
    pub singular: String,
    /// CamelCase kind.
    pub kind: String,
    /// Kind of its list.
    pub list_kind: String,
    /// Whether objects live in a namespace.
    pub namespaced: bool,
    /// Short names, as kubectl takes them.
    pub short_names: Vec<String>,
    pub(crate) categories: Vec<String>,
    pub(crate) subresources: Vec<String>,
    /// `metadata.generation` is kept.
    pub(crate) generation: bool,
    /// A PUT without resourceVersion is taken.
    pub(crate) unconditional_update: bool,
    pub(crate) custom: Option<Arc<CustomSpec>>,
    /// Where objects are kept: shared by all versions of one resource.
    pub(crate) storage: Arc<str>,
    pub(crate) view: View,
    /// `{"kind":…,"apiVersion":…,` — what goes before the stored text.
    pub(crate) prefix: String,
}

impl ResourceKind {
    /// `pods`, `deployments.apps`.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() { self.plural.clone() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// `v1`, `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    pub(crate) fn has(&self, subresource: &str) -> bool {
        self.subresources.iter().any(|known| known == subresource)
    }

    pub(crate) fn is(&self, storage: &str) -> bool {
        &*self.storage == storage
    }

    fn sealed(mut self) -> Self {
        self.prefix = format!("{{\"kind\":\"{}\",\"apiVersion\":\"{}\",", self.kind, self.api_version());
        self
    }
}

type Gvr = (String, String, String);

/// All resources of one cluster.
#[derive(Debug, Clone)]
pub(crate) struct Registry {
    kinds: BTreeMap<Gvr, Arc<ResourceKind>>,
}

impl Registry {
    pub(crate) fn builtin() -> Self {
        let mut registry = Self { kinds: BTreeMap::new() };
        for kind in builtin::kinds() {
            registry.insert(kind);
        }
        registry
    }

    fn insert(&mut self, kind: ResourceKind) {
        let key = (kind.group.clone(), kind.version.clone(), kind.plural.clone());
        self.kinds.insert(key, Arc::new(kind.sealed()));
    }

    pub(crate) fn find(&self, group: &str, version: &str, plural: &str) -> Option<Arc<ResourceKind>> {
        self.kinds.get(&(group.to_owned(), version.to_owned(), plural.to_owned())).cloned()
    }

    /// By `apiVersion` and `kind`, as they stand in an object.
    pub(crate) fn find_kind(&self, api_version: &str, kind: &str) -> Option<Arc<ResourceKind>> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let mut of_group = self.kinds.values().filter(|k| k.group == group && k.version == version);
        of_group.find(|k| k.kind == kind).cloned()
    }

    /// By plural, `plural.group` or kind: for the direct helpers.
    pub(crate) fn find_loose(&self, word: &str) -> Option<Arc<ResourceKind>> {
        let named = self.kinds.values().find(|k| k.plural == word || k.qualified() == word);
        named.or_else(|| self.kinds.values().find(|k| k.kind == word)).cloned()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<ResourceKind>> {
        self.kinds.values()
    }

    /// Registers what a CustomResourceDefinition declares, in place of what it declared before.
    pub(crate) fn add_custom(&mut self, definition: &Value) {
        self.remove_custom(definition);
        for kind in crd::kinds(definition) {
            self.insert(kind);
        }
    }

    pub(crate) fn remove_custom(&mut self, definition: &Value) {
        let storage = crd::storage(definition);
        self.kinds.retain(|_, kind| *kind.storage != *storage);
    }
}
