//! The fleet's policy as decisions read it: one document, parsed and checked as a whole, immutable under its revision.
//! Reading text is in `parse` and its helpers; nothing here knows YAML.

use std::{collections::BTreeMap, time::Duration};

use gpuheal_proto::{
    command::Drain,
    words::{Level, Mode},
};
use serde::{Deserialize, Serialize};

use crate::budget::{Budget, Rate};

pub mod defaults;
pub mod detection;
pub mod narrow;
pub mod parse;
mod read;
mod schema;
pub mod scope;
mod short_form;
mod tree;

pub use parse::Problem;

/// A policy under its revision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    /// Its name in `metadata.name`.
    pub name: String,
    /// Its number in the store; 0 before it has one.
    pub revision: u64,
    /// SHA-256 over its canonical form, 64 hex digits: what it says, however it was written.
    pub digest: String,
    /// What holds where no rule says otherwise.
    pub settings: Settings,
    /// Exceptions by name.
    pub rules: BTreeMap<String, Rule>,
}

/// What a policy says about everything.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// How far it may go.
    pub mode: Mode,
    /// The lowest level that is acted on.
    pub act_from: Level,
    /// What spokes look for.
    pub detection: Detection,
    /// Levels that differ from the shipped tables, by `class/code` or `class`.
    pub levels: BTreeMap<String, LevelOverride>,
    /// What counts as a second witness.
    pub corroboration: Corroboration,
    /// What is done.
    pub response: Response,
    /// How long things take.
    pub windows: Windows,
    /// Pause of a node after something was done to it.
    pub cooldown: Duration,
    /// How often before a person is called.
    pub attempts: Attempts,
    /// How many may be out.
    pub budgets: Budgets,
    /// How fast they may go out.
    pub rates: Rates,
    /// When too much looks ill.
    pub breaker: Breaker,
    /// What must be seen before a release.
    pub recovery: Recovery,
    /// Field managers that are automations: their hand is no order.
    pub automations: Vec<String>,
    /// Foreign markers that do not count.
    pub markers_ignored: Vec<String>,
}

/// What a policy says about where rules and levels meet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rule {
    /// Where it holds.
    pub scope: Scope,
    /// Which faults, as `class/code` or `class`; empty = all.
    pub faults: Vec<String>,
    /// Higher ones win; among equals the more careful mode does.
    pub priority: i32,
    /// How far, instead of the policy's own mode.
    pub mode: Option<Mode>,
    /// The lowest level acted on, instead.
    pub act_from: Option<Level>,
    /// The level of these faults, instead.
    pub level: Option<Level>,
}

/// Where a rule holds: everything that is named must fit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scope {
    /// Cluster ids; empty = any.
    pub clusters: Vec<String>,
    /// Labels that the node must carry.
    pub node_labels: BTreeMap<String, String>,
    /// Parts of a GPU model's name, without regard to case; empty = any.
    pub gpu_models: Vec<String>,
}

/// A level that differs from the shipped tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LevelOverride {
    /// The level.
    pub level: Option<Level>,
    /// Whether it is the application's own fault: never a reason to quarantine by itself.
    pub user_app: Option<bool>,
}

/// What spokes look for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Detection {
    /// How often exporters are asked.
    pub scrape_interval: Duration,
    /// How long an answer may take.
    pub scrape_timeout: Duration,
    /// Thresholds where no model says otherwise.
    pub thermal: Thermal,
    /// Thresholds by a part of the model's name.
    pub thermal_by_model: BTreeMap<String, Thermal>,
    /// How many Xids of one code in the window are a reason of their own.
    pub xid_errors: u32,
    /// That window.
    pub xid_window: Duration,
    /// Scrapes without a GPU's rows before it counts as lost.
    pub gpu_lost_scrapes: u32,
    /// Missed intervals before a source is stale.
    pub stale_after_intervals: u32,
    /// Silence before a source is broken.
    pub broken_after: Duration,
    /// How long allocatable must stay low.
    pub allocatable_debounce: Duration,
    /// One's own metric names to DCGM's.
    pub metric_aliases: BTreeMap<String, String>,
    /// One's own alert labels to what they mean.
    pub alert_labels: BTreeMap<String, String>,
    /// Node labels to report beside the usual ones.
    pub node_labels: Vec<String>,
    /// Node conditions that are faults.
    pub conditions: BTreeMap<String, Condition>,
    /// Which sources are on.
    pub sources: Sources,
}

/// Temperatures in degrees Celsius.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Thermal {
    /// P1 above it.
    pub warn_celsius: f64,
    /// P0 above it.
    pub high_celsius: f64,
    /// How long it must last.
    pub dwell: Duration,
}

/// A node condition that is a fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// `True` or `False`.
    pub bad_status: String,
    /// How long it must last.
    pub hold: Duration,
}

/// Which sources are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sources {
    /// Scraping of exporters.
    pub scrape: bool,
    /// The alert webhook.
    pub webhook: bool,
    /// Node conditions.
    pub conditions: bool,
    /// Allocatable below capacity.
    pub allocatable: bool,
}

/// What counts as a second witness.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Corroboration {
    /// How long a notification waits for a second witness. It makes nothing harmful.
    pub within: Duration,
    /// Conditions that stand alone, by type.
    pub trusted_conditions: Vec<String>,
    /// Alerts that stand alone, by name.
    pub trusted_alerts: Vec<String>,
}

/// What is done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Response {
    /// Post Kubernetes Events.
    pub notify: bool,
    /// Taint, beside the label.
    pub taint: bool,
    /// Cordon, beside label and taint.
    pub cordon: bool,
    /// Evict GPU pods.
    pub evict: bool,
    /// How.
    pub drain: Drain,
}

/// How long things take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Windows {
    /// How long a P1 is watched before it is acted on.
    pub observation: Duration,
    /// Faults on one GPU within it are one cause.
    pub merge: Duration,
    /// How young a node is left alone.
    pub node_youth: Duration,
}

/// How often before a person is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempts {
    /// So many quarantines of one node ...
    pub max: u32,
    /// ... within this.
    pub window: Duration,
}

/// How many nodes may be out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budgets {
    /// Of the fleet.
    pub fleet: Budget,
    /// Of each cluster.
    pub cluster: Budget,
}

/// How fast nodes may go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rates {
    /// Of the fleet.
    pub fleet: Rate,
    /// Of each cluster.
    pub cluster: Rate,
}

/// When too much looks ill at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Breaker {
    /// This share of a cluster's GPU nodes ...
    pub percent: u32,
    /// ... and at least so many of them, newly suspect ...
    pub nodes_min: u32,
    /// ... within this.
    pub window: Duration,
}

/// What must be seen before a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovery {
    /// How long each fault's own source must show it clear.
    pub soak: Duration,
    /// GPU rows must equal the node's capacity.
    pub row_count: bool,
    /// Release without a person.
    pub automatic: bool,
}

/// A cluster owner's own settings in the seed's short form: each may only make things more careful.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Narrowing {
    /// At least this cooldown.
    pub cooldown: Option<Duration>,
    /// At least this level is acted on.
    pub alert_level: Option<Level>,
    /// Notify and no more.
    pub notify_only: bool,
    /// At least so many Xids.
    pub xid_errors: Option<u32>,
    /// At least this temperature for P0.
    pub gpu_temp_high: Option<f64>,
    /// At least this temperature for P1.
    pub gpu_temp_warn: Option<f64>,
    /// No eviction.
    pub evict_off: bool,
    /// No taint.
    pub taint_off: bool,
    /// No Events.
    pub notify_off: bool,
}
