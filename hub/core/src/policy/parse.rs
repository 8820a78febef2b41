//! From text to policy, as a whole or not at all: every error with its line, its column and its path.

use std::fmt;

use gpuheal_proto::limits::POLICY_BYTES_MAX;
use sha2::{Digest as _, Sha256};

use super::{
    Narrowing, Policy, Settings,
    read::{Problems, Section},
    schema, short_form,
    tree::{self, Place, Tree},
};

/// The one version that is spoken.
pub const API_VERSION: &str = "gpu-selfhealing.io/v1";
/// The kind of a policy document.
pub const KIND: &str = "FleetPolicy";

/// One thing that is wrong with a document.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Problem {
    /// From 1.
    pub line: u32,
    /// From 1.
    pub column: u32,
    /// `spec.budgets.cluster.percent`; empty for the document as a whole.
    pub path: String,
    /// What is wrong and what is wanted.
    pub message: String,
}

impl Problem {
    pub(super) fn new(place: Place, path: &str, message: impl Into<String>) -> Self {
        Self { line: place.line, column: place.column, path: path.to_owned(), message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, column, path, message } = self;
        if path.is_empty() { write!(f, "{line}:{column}: {message}") } else { write!(f, "{line}:{column}: {path}: {message}") }
    }
}

impl Policy {
    /// Reads a policy in its long or its short form. Its revision is 0 until a store gives it one.
    ///
    /// # Errors
    /// Everything that is wrong with the document, by place.
    pub fn parse(text: &str) -> Result<Self, Vec<Problem>> {
        let tree = document(text)?;
        let mut problems = Problems::default();
        let Some(mut top) = Section::open(&tree, "", &mut problems) else { return problems.settle(Self::observing()) };
        let short = !top.has("apiVersion") && !top.has("spec") && short_form::KEYS.iter().any(|key| top.has(key));
        let policy = if short {
            let short = short_form::read(&mut top, &mut problems);
            let settings = short.expand(&top, &mut problems);
            Self { settings, ..Self::observing() }
        } else {
            long(&mut top, &mut problems)
        };
        top.close(&mut problems);
        problems.settle(policy.sealed())
    }

    /// The policy of a fleet that nobody has written one for: it observes.
    #[must_use]
    pub fn observing() -> Self {
        let policy = Self {
            name: "default".to_owned(),
            revision: 0,
            digest: String::new(),
            settings: Settings::default(),
            rules: std::collections::BTreeMap::new(),
        };
        policy.sealed()
    }

    /// The same policy under its number.
    #[must_use]
    pub fn with_revision(self, revision: u64) -> Self {
        Self { revision, ..self }
    }

    /// The digest is over what the policy says, in JSON with sorted maps: two spellings of one policy have one digest.
    fn sealed(mut self) -> Self {
        let says = serde_json::to_vec(&(&self.name, &self.settings, &self.rules));
        let says = says.expect("settings are plain data with text keys: they always serialise");
        self.digest = hex::encode(Sha256::digest(&says));
        self
    }
}

impl Narrowing {
    /// Reads a cluster owner's ConfigMap. Empty text narrows nothing.
    ///
    /// # Errors
    /// Everything that is wrong with it, by place.
    pub fn parse(text: &str) -> Result<Self, Vec<Problem>> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let tree = document(text)?;
        let mut problems = Problems::default();
        let Some(mut top) = Section::open(&tree, "", &mut problems) else { return problems.settle(Self::default()) };
        let short = short_form::read(&mut top, &mut problems);
        // The spoke's own: it is checked and kept there.
        let _ = top.get("ceiling");
        top.close(&mut problems);
        problems.settle(short.narrowing())
    }
}

fn document(text: &str) -> Result<Tree, Vec<Problem>> {
    if text.len() > POLICY_BYTES_MAX {
        let message = format!("{} bytes, {POLICY_BYTES_MAX} are allowed", text.len());
        return Err(vec![Problem::new(Place { line: 1, column: 1 }, "", message)]);
    }
    tree::read(text).map_err(|problem| vec![problem])
}

fn long(top: &mut Section<'_>, problems: &mut Problems) -> Policy {
    for (key, wanted) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        match top.text(key, problems) {
            Some(found) if found == wanted => {}
            Some(found) => problems.add(top.place_of(key), key, format!("{wanted} is wanted, not {found:?}")),
            None if top.has(key) => {}
            None => problems.add(top.place, key, format!("{wanted} is wanted, and the key is missing")),
        }
    }
    let mut policy = Policy::observing();
    if let Some(mut metadata) = top.section("metadata", problems) {
        if let Some(name) = metadata.text("name", problems) {
            policy.name = name;
        }
        let _ = metadata.labels("labels", 64, problems);
        let _ = metadata.labels("annotations", 64, problems);
        metadata.close(problems);
    }
    if let Some(section) = top.section("spec", problems) {
        let (settings, rules) = schema::spec(section, problems);
        policy.settings = settings;
        policy.rules = rules.into_iter().collect();
    } else if !top.has("spec") {
        problems.add(top.place, "spec", "the key is missing");
    }
    policy
}

#[cfg(test)]
mod tests;
