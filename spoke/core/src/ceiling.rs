//! The cluster owner's ConfigMap `gpu-selfhealing-config`, key `config.yaml`: the short form, and the ceiling that no hub
//! can raise. Pure: text in, settings or errors with their place out; and the arithmetic of a refusal. What is absent
//! narrows nothing; what is zero allows nothing. A release passes every ceiling.

mod config;
mod duration;

use std::{collections::BTreeMap, time::Duration};

use gpuheal_proto::{
    command::{Command, DeadlineOutcome, Refusal, Step},
    words::{Action, Level, Mode},
};

pub use self::{
    config::{Error, parse},
    duration::{parse_duration, show},
};

/// Cooldown while nobody has said otherwise.
pub const COOLDOWN: Duration = Duration::from_secs(15 * 60);
/// Largest ConfigMap text that is parsed: a full one is about 2 KiB.
pub const CONFIG_BYTES_MAX: usize = 64 << 10;

/// All of `config.yaml`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    /// How long a node is left alone after something was done to it.
    pub cooldown: Option<Duration>,
    /// Lowest level that is acted on.
    pub alert_level: Option<Level>,
    /// Say it, do nothing.
    pub notify_only: bool,
    /// Thresholds by name: `xidErrors`, `gpuTempHigh`, `gpuTempWarn`.
    pub thresholds: BTreeMap<String, f64>,
    /// Actions that are switched off.
    pub actions: Actions,
    /// The upper limit.
    pub ceiling: Ceiling,
}

/// Each may be switched off, none can be switched on here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Actions {
    /// Evict pods.
    pub evict: bool,
    /// Label and taint.
    pub taint: bool,
    /// Post Events.
    pub notify: bool,
}

impl Default for Actions {
    fn default() -> Self {
        Self { evict: true, taint: true, notify: true }
    }
}

/// The cluster owner's own upper limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Ceiling {
    /// Highest mode.
    pub mode: Mode,
    /// Namespaces whose pods may be touched; `None` = all. A trailing `*` matches any rest.
    pub namespaces: Option<Vec<String>>,
    /// Most GPU nodes out at once, absolute.
    pub nodes_out: Option<u32>,
    /// The same in percent of the cluster's GPU nodes, rounded down, yet never below 1 unless it is 0.
    pub nodes_out_percent: Option<u32>,
    /// A node that carries one of these labels is never touched; an empty value means any.
    pub protected_labels: BTreeMap<String, String>,
    /// Longest grace.
    pub grace_max: Option<Duration>,
    /// Everything but releases ends.
    pub stop: bool,
}

impl Default for Ceiling {
    fn default() -> Self {
        Self {
            mode: Mode::Heal,
            namespaces: None,
            nodes_out: None,
            nodes_out_percent: None,
            protected_labels: BTreeMap::new(),
            grace_max: None,
            stop: false,
        }
    }
}

/// How the cluster stands when a command asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Out {
    /// GPU nodes that we have out, the target not counted.
    pub others: u32,
    /// All GPU nodes.
    pub gpu_nodes: u32,
    /// The target is out already: doing more to it takes no further node out.
    pub target: bool,
}

impl Config {
    /// The cooldown in force.
    #[must_use]
    pub fn cooldown(&self) -> Duration {
        self.cooldown.unwrap_or(COOLDOWN)
    }

    /// The highest mode that the short form and the ceiling leave together.
    #[must_use]
    pub fn mode(&self) -> Mode {
        let short = match self.actions {
            _ if self.notify_only => Mode::Notify,
            Actions { taint: false, .. } => Mode::Notify,
            Actions { evict: false, .. } => Mode::Mark,
            Actions { .. } => Mode::Heal,
        };
        short.min(self.ceiling.mode)
    }

    /// Whether pods of a namespace may be touched.
    #[must_use]
    pub fn namespace_allowed(&self, namespace: &str) -> bool {
        let matches = |pattern: &String| match pattern.strip_suffix('*') {
            Some(start) => namespace.starts_with(start),
            None => pattern == namespace,
        };
        self.ceiling.namespaces.as_ref().is_none_or(|allowed| allowed.iter().any(matches))
    }

    /// The most grace that a step may give: the command's, narrowed.
    #[must_use]
    pub fn grace_max(&self, asked: Duration) -> Duration {
        self.ceiling.grace_max.map_or(asked, |max| max.min(asked))
    }

    /// Whether the command stays under the ceiling. Called last before the intent.
    ///
    /// # Errors
    /// The refusal, with its arithmetic.
    pub fn admit(&self, command: &Command, labels: &BTreeMap<String, String>, out: Out) -> Result<(), (Refusal, String)> {
        let action = command.action();
        if action == Action::Release {
            return Ok(());
        }
        if self.ceiling.stop {
            return Err((Refusal::Stopped, "the cluster's ceiling says stop: true".to_owned()));
        }
        let over = |text: String| Err((Refusal::OverCeiling, text));
        if let Some(why) = self.over_mode(action, &command.level) {
            return over(why);
        }
        if !command.harmful() {
            return Ok(());
        }
        if command.level != MANUAL && command.steps.iter().any(passes_budgets) {
            return over(
                "passing a PodDisruptionBudget is for a person alone: the command is not one that was asked for by hand".to_owned(),
            );
        }
        if let (Some(lowest), Some(level)) = (self.alert_level, Level::parse(&command.level))
            && level < lowest
        {
            return over(format!("the incident is {level}, the cluster's alertLevel acts on {lowest} and above"));
        }
        let protects = |(key, value): &(&String, &String)| labels.get(*key).is_some_and(|has| value.is_empty() || has == *value);
        if let Some((key, _)) = self.ceiling.protected_labels.iter().find(protects) {
            return over(format!("the node carries {key}, which the ceiling protects"));
        }
        // A rollout takes no node out.
        if action == Action::Restart {
            return Ok(());
        }
        match self.nodes_out(out.gpu_nodes) {
            Some(limit) if out.others >= limit && !out.target => {
                over(format!("{} of {} GPU nodes are out, the ceiling allows {limit}", out.others, out.gpu_nodes))
            }
            Some(_) | None => Ok(()),
        }
    }

    fn over_mode(&self, action: Action, level: &str) -> Option<String> {
        let mode = self.mode();
        let needs = match action {
            Action::Notify => Mode::Notify,
            Action::Mark => Mode::Mark,
            // An approval is not in the signed bytes: under `approve` only what a person asked for by hand passes.
            Action::Restart | Action::Evict if level == MANUAL => Mode::Approve,
            Action::Restart | Action::Evict => Mode::Heal,
            Action::Release => return None,
        };
        if action == Action::Notify && !self.actions.notify {
            return Some("the cluster's actions.notify is off".to_owned());
        }
        (mode < needs).then(|| format!("{action} needs mode {needs}, the cluster's own limit is {mode}"))
    }

    /// The lower of both limits for a cluster of this size.
    fn nodes_out(&self, gpu_nodes: u32) -> Option<u32> {
        let share = |percent: u32| {
            let nodes = u64::from(gpu_nodes) * u64::from(percent) / 100;
            u32::try_from(nodes).unwrap_or(u32::MAX).max(u32::from(percent > 0))
        };
        let percent = self.ceiling.nodes_out_percent.map(share);
        match (self.ceiling.nodes_out, percent) {
            (Some(count), Some(share)) => Some(count.min(share)),
            (one, other) => one.or(other),
        }
    }
}

/// Whether a drain deletes past a budget at its deadline.
fn passes_budgets(step: &Step) -> bool {
    matches!(step, Step::Drain(drain) if drain.on_deadline == DeadlineOutcome::BypassPdb)
}

/// Level of a command that a person asked for.
pub const MANUAL: &str = "manual";

#[cfg(test)]
mod tests;
