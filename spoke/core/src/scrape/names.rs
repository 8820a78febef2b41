//! The operator's own names, as settings write them: metrics, alert labels, node conditions.
//!
//! ```yaml
//! metrics: {site_gpu_hot: gpu_temp, site_util: {metric: gpu_util, scale: 100}}
//! alertLabels: {machine: node}
//! conditions: {SiteGpuOk: {bad: false, topic: gpu}}
//! ```

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::alias::{AlertLabels, Alias, Aliases, LabelMeaning};
use super::conditions::{Conditions, Rule};
use super::metric::Metric;

/// Own names beside the defaults. A name that means nothing known is refused when settings are read, with its text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Names {
    /// Metric names.
    pub metrics: BTreeMap<String, MetricName>,
    /// Alert labels.
    pub alert_labels: BTreeMap<String, LabelMeaning>,
    /// Node conditions.
    pub conditions: BTreeMap<String, Rule>,
}

/// What an own metric name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum MetricName {
    /// The metric in its own unit.
    Plain(Metric),
    /// The metric in another unit.
    Scaled {
        /// The metric.
        metric: Metric,
        /// What to multiply with.
        scale: f64,
    },
}

impl Names {
    /// The table of metric names.
    pub fn aliases(&self) -> Aliases {
        self.metrics.iter().fold(Aliases::new(), |table, (name, own)| table.with(name, own.alias()))
    }

    /// The table of alert labels.
    pub fn alert_labels(&self) -> AlertLabels {
        self.alert_labels.iter().fold(AlertLabels::default(), |table, (label, &meaning)| table.with(label, meaning))
    }

    /// The table of node conditions.
    pub fn conditions(&self) -> Conditions {
        self.conditions.iter().fold(Conditions::default(), |table, (kind, &rule)| table.with(kind, rule))
    }
}

impl MetricName {
    fn alias(self) -> Alias {
        match self {
            Self::Plain(metric) => Alias { metric, scale: 1.0 },
            Self::Scaled { metric, scale } => Alias { metric, scale },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scrape::conditions::Condition;

    const SETTINGS: &str = "metrics: {site_gpu_hot: gpu_temp, site_util: {metric: gpu_util, scale: 100}}\nalertLabels: {machine: node}\nconditions: {SiteGpuOk: {bad: false, topic: gpu}}\n";

    #[test]
    fn own_names_reach_all_three_tables() {
        let names: Names = serde_saphyr::from_str(SETTINGS).unwrap();
        assert_eq!(names.aliases().get("site_gpu_hot"), Some(Alias { metric: Metric::GpuTemp, scale: 1.0 }));
        assert_eq!(names.aliases().get("site_util"), Some(Alias { metric: Metric::GpuUtil, scale: 100.0 }));
        assert_eq!(names.alert_labels().carrying(LabelMeaning::Node).next(), Some("machine"));
        assert!(names.conditions().read(&Condition { kind: "SiteGpuOk", status: "False", ..Condition::default() }).is_some());
        assert_eq!(serde_saphyr::from_str::<Names>("{}").unwrap(), Names::default());
    }

    #[test]
    fn a_name_that_means_nothing_known_is_refused() {
        for settings in
            ["metrics: {x: gpu_warmth}", "alertLabels: {x: rack}", "conditions: {x: {bad: maybe, topic: gpu}}", "metric: {}"]
        {
            assert!(serde_saphyr::from_str::<Names>(settings).is_err(), "{settings}");
        }
    }
}
