//! Which of a policy's words hold at one place: the cluster owner's narrowing, and the rules whose scope fits.

use gpuheal_proto::words::{Level, Mode};

use super::{Narrowing, Policy, Rule, Scope, Settings};
use crate::snapshot::{KnownFault, Snapshot};

/// What holds for one fault at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stance {
    /// How far.
    pub mode: Mode,
    /// The lowest level acted on.
    pub act_from: Level,
    /// The level that a rule gives, with the rule's name.
    pub level: Option<(String, Level)>,
    /// Where the mode is from, for people.
    pub mode_from: String,
}

impl Policy {
    /// The settings of one cluster: the policy's own, narrowed by the cluster's owner.
    #[must_use]
    pub fn settings_for(&self, narrowing: Option<&Narrowing>) -> Settings {
        let mut settings = self.settings.clone();
        if let Some(narrowing) = narrowing {
            narrowing.apply(&mut settings);
        }
        settings
    }

    /// What holds for `fault` there; without a fault, what holds for the node as such.
    #[must_use]
    pub fn stance(&self, snapshot: &Snapshot, fault: Option<&KnownFault>) -> Stance {
        let mut rules: Vec<(&String, &Rule)> = self.rules.iter().filter(|(_, rule)| rule.fits(snapshot, fault)).collect();
        // The highest priority first; among equals the more careful mode, then the name.
        rules.sort_by(|(a_name, a), (b_name, b)| {
            b.priority.cmp(&a.priority).then_with(|| a.mode.cmp(&b.mode)).then_with(|| a_name.cmp(b_name))
        });
        let first = |has: fn(&Rule) -> bool| rules.iter().find(|(_, rule)| has(rule));
        let (mode, mode_from) = first(|rule| rule.mode.is_some())
            .and_then(|(name, rule)| rule.mode.map(|mode| (mode, format!("rule {name}"))))
            .unwrap_or_else(|| (self.settings.mode, "the policy".to_owned()));
        let act_from = first(|rule| rule.act_from.is_some()).and_then(|(_, rule)| rule.act_from).unwrap_or(self.settings.act_from);
        let level = first(|rule| rule.level.is_some()).and_then(|(name, rule)| rule.level.map(|level| ((*name).clone(), level)));
        let stance = Stance { mode, act_from, level, mode_from };
        snapshot.cluster.narrowing.as_ref().map_or(stance.clone(), |narrowing| stance.narrowed(narrowing))
    }
}

impl Stance {
    fn narrowed(self, narrowing: &Narrowing) -> Self {
        let act_from = narrowing.alert_level.map_or(self.act_from, |level| level.max(self.act_from));
        if narrowing.notify_only && self.mode > Mode::Notify {
            return Self { mode: Mode::Notify, act_from, mode_from: "the cluster's own notifyOnly".to_owned(), ..self };
        }
        Self { act_from, ..self }
    }
}

impl Rule {
    fn fits(&self, snapshot: &Snapshot, fault: Option<&KnownFault>) -> bool {
        let names = |fault: &KnownFault| {
            let full = format!("{}/{}", fault.class, fault.code);
            self.faults.iter().any(|name| *name == full || name == fault.class.as_str())
        };
        let faults = self.faults.is_empty() || fault.is_some_and(names);
        faults && self.scope.fits(snapshot, fault)
    }
}

impl Scope {
    fn fits(&self, snapshot: &Snapshot, fault: Option<&KnownFault>) -> bool {
        let cluster = self.clusters.is_empty() || self.clusters.iter().any(|id| id == snapshot.cluster.id.as_str());
        let has = |labels: &std::collections::BTreeMap<String, String>, wanted: &std::collections::BTreeMap<String, String>| {
            wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
        };
        cluster && has(&snapshot.node.labels, &self.node_labels) && self.model_fits(snapshot, fault)
    }

    fn model_fits(&self, snapshot: &Snapshot, fault: Option<&KnownFault>) -> bool {
        if self.gpu_models.is_empty() {
            return true;
        }
        let own = fault.and_then(|fault| fault.gpu.as_ref()).map(|gpu| gpu.model.as_str()).filter(|model| !model.is_empty());
        let models: Vec<&str> =
            own.map_or_else(|| snapshot.node.gpus.iter().map(|gpu| gpu.model.as_str()).collect(), |own| vec![own]);
        let named = |model: &str| {
            let model = model.to_ascii_lowercase();
            self.gpu_models.iter().any(|part| model.contains(&part.to_ascii_lowercase()))
        };
        models.into_iter().any(named)
    }
}
