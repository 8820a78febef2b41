//! The defaults, all in this one table. The zero value is the careful one: a policy that says nothing observes.

use std::{collections::BTreeMap, time::Duration};

use gpuheal_proto::{
    command::{DeadlineOutcome, Drain},
    words::{Level, Mode},
};

use super::{
    Attempts, Breaker, Budgets, Condition, Corroboration, Detection, Rates, Recovery, Response, Settings, Sources, Thermal, Windows,
};
use crate::budget::{Budget, Rate};

const SECOND: u64 = 1;
const MINUTE: u64 = 60;
const HOUR: u64 = 3600;

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// Node conditions that mean a GPU or its node is ill, as the usual detectors name them.
const CONDITIONS: &[(&str, &str)] = &[
    ("GPUUnhealthy", "True"),
    ("GpuUnhealthy", "True"),
    ("XIDError", "True"),
    ("GPUXidError", "True"),
    ("AcceleratedHardwareReady", "False"),
    ("KernelDeadlock", "True"),
    ("ReadonlyFilesystem", "True"),
];

/// Field managers that uncordon by themselves: the GPU Operator's driver manager does so after every boot.
const AUTOMATIONS: &[&str] = &["driver-manager", "k8s-driver-manager", "gpu-operator", "cluster-autoscaler", "karpenter"];

impl Default for Settings {
    fn default() -> Self {
        Self {
            mode: Mode::Observe,
            act_from: Level::P1,
            detection: detection(),
            levels: BTreeMap::new(),
            corroboration: Corroboration { within: secs(60), trusted_conditions: Vec::new(), trusted_alerts: Vec::new() },
            response: response(),
            windows: Windows { observation: secs(10 * MINUTE), merge: secs(5 * MINUTE), node_youth: secs(10 * MINUTE) },
            cooldown: secs(15 * MINUTE),
            attempts: Attempts { max: 3, window: secs(24 * HOUR) },
            budgets: Budgets { fleet: Budget { percent: 5, nodes: None }, cluster: Budget { percent: 10, nodes: None } },
            rates: Rates { fleet: Rate { milli_nodes_per_second: 10_000 }, cluster: Rate { milli_nodes_per_second: 2_000 } },
            breaker: Breaker { percent: 20, nodes_min: 3, window: secs(10 * MINUTE) },
            recovery: Recovery { soak: secs(15 * MINUTE), row_count: true, automatic: true },
            automations: AUTOMATIONS.iter().map(|&name| name.to_owned()).collect(),
            markers_ignored: Vec::new(),
        }
    }
}

fn detection() -> Detection {
    Detection {
        scrape_interval: secs(60 * SECOND),
        scrape_timeout: secs(10 * SECOND),
        thermal: Thermal { warn_celsius: 80.0, high_celsius: 85.0, dwell: secs(60 * SECOND) },
        thermal_by_model: BTreeMap::new(),
        xid_errors: 5,
        xid_window: secs(5 * MINUTE),
        gpu_lost_scrapes: 3,
        stale_after_intervals: 3,
        broken_after: secs(5 * MINUTE),
        allocatable_debounce: secs(3 * MINUTE),
        metric_aliases: BTreeMap::new(),
        alert_labels: BTreeMap::new(),
        node_labels: Vec::new(),
        conditions: CONDITIONS
            .iter()
            .map(|&(name, bad)| (name.to_owned(), Condition { bad_status: bad.to_owned(), hold: secs(60 * SECOND) }))
            .collect(),
        sources: Sources { scrape: true, webhook: true, conditions: true, allocatable: true },
    }
}

fn response() -> Response {
    Response {
        notify: true,
        taint: true,
        cordon: false,
        evict: true,
        drain: Drain {
            grace_max: secs(10 * MINUTE),
            deadline: secs(30 * MINUTE),
            on_deadline: DeadlineOutcome::Stop,
            allow_pdb_bypass: false,
            // Of no effect in a namespace whose owner has not labelled it: see gpu-selfhealing.io/stateful-eviction.
            include_stateful: true,
        },
    }
}
