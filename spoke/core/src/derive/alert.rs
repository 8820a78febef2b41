//! One alert: which node it is about, which fault it tells of, whether it was told before.
//!
//! Judged by its own status: a resolved alert starts nothing and proves nothing. An alert that carries an Xid or a
//! temperature is a witness of that very fault, so that it meets what the exporter says; any other is a fault of its own
//! name. Node and GPU are looked up and never guessed: an address is no name, and no GPU is not GPU 0.

use gpuheal_proto::{
    fault::{FaultClass, NodeRef, Onset, Witness},
    time::Timestamp,
};

use super::held::{ALERTS_MAX, NodePart};
use super::known::{Context, Found};
use super::outcome::{EvidenceState, Skip};
use super::{Nodes, workload};
use crate::scrape::webhook::{Alert, AlertReading, NodeIdentity, Status};

/// What an alert tells of.
struct Told {
    class: FaultClass,
    code: String,
    value: f64,
    threshold: f64,
    count: Option<u32>,
}

/// The first of the alert's candidates that the cluster knows.
pub(super) fn node_of(alert: &Alert, nodes: &dyn Nodes) -> Result<NodeRef, Skip> {
    if alert.subject.node.is_empty() {
        return Err(Skip::AlertNamesNoNode);
    }
    let found = alert.subject.node.iter().find_map(|candidate| match &candidate.identity {
        NodeIdentity::Name(name) => nodes.named(name),
        NodeIdentity::MaybeName(name) => nodes.named(name).or_else(|| nodes.of_pod(name)),
        // There are nodes that are called by an address.
        NodeIdentity::Address(address) => nodes.at(*address).or_else(|| nodes.named(&address.to_string())),
    });
    found.ok_or(Skip::AlertNodeUnknown)
}

/// Takes an alert of this node.
pub(super) fn take(part: &mut NodePart, alert: &Alert, context: &mut Context<'_>) {
    let named = alert.subject.gpu.as_ref();
    let slot = named.and_then(|gpu| gpu.slot).map(Into::into);
    let gpu = part.named(named.and_then(|gpu| gpu.uuid.as_deref()), slot.as_ref());
    let model = gpu.as_ref().map_or("", |gpu| gpu.model.as_str());
    let Some(told) = told(alert, model, context) else {
        context.out.skip(Skip::AlertNamesNothing);
        return;
    };
    if alert.status == Status::Resolved {
        context.out.skip(Skip::AlertResolved);
        part.known.unseen(told.class, &told.code, gpu.as_ref(), Witness::Alert, EvidenceState::Stale, context);
        return;
    }
    let onset = if is_repeat(part, alert, context.now) {
        context.out.skip(Skip::AlertRepeated);
        Onset::Standing
    } else {
        context.out.changed = true;
        Onset::Edge
    };
    let pod = alert.subject.workload.as_ref();
    let found = Found {
        class: told.class,
        code: &told.code,
        gpu: gpu.as_ref(),
        onset,
        witness: Witness::Alert,
        value: told.value,
        threshold: told.threshold,
        count: told.count,
        source: &format!("alert {}", alert.name),
        detail: &detail(alert),
        workload: &pod.map(|pod| workload::join(&pod.namespace, &pod.pod)).unwrap_or_default(),
    };
    part.known.report(&part.node, &found, context);
}

fn told(alert: &Alert, model: &str, context: &Context<'_>) -> Option<Told> {
    let mut count = None;
    let mut told = None;
    for reading in &alert.subject.readings {
        match *reading {
            AlertReading::XidCode(code) => {
                told =
                    Some(Told { class: FaultClass::Xid, code: code.to_string(), value: code.into(), threshold: 0.0, count: None });
            }
            AlertReading::XidCount(counted) => count = Some(counted),
            AlertReading::GpuTemp(celsius) => told = told.or_else(|| hot(celsius, model, context)),
        }
    }
    let own = || {
        let told = Told { class: FaultClass::Alert, code: alert.name.clone(), value: 0.0, threshold: 0.0, count: None };
        (!alert.name.is_empty()).then_some(told)
    };
    let mut told = told.or_else(own)?;
    // A count that the alert carries is what it saw; without one, each new alert is one occurrence.
    told.count = count.filter(|_| told.class == FaultClass::Xid);
    Some(told)
}

/// A temperature under our own thresholds stays an alert of its own name: somebody else found it too hot.
fn hot(celsius: f64, model: &str, context: &Context<'_>) -> Option<Told> {
    let thermal = context.settings.thermal_of(model);
    let (code, threshold) = if celsius > thermal.high_celsius {
        ("high", thermal.high_celsius)
    } else if celsius > thermal.warn_celsius {
        ("warn", thermal.warn_celsius)
    } else {
        return None;
    };
    Some(Told { class: FaultClass::Thermal, code: code.to_owned(), value: celsius, threshold, count: None })
}

/// Alertmanager repeats, and its twins send the same again: fingerprint and start tell one alert from the next.
fn is_repeat(part: &mut NodePart, alert: &Alert, now: Timestamp) -> bool {
    let id = format!("{}@{}", alert.fingerprint, alert.starts_at.unwrap_or(Timestamp::EPOCH).unix_ms());
    if part.alerts.len() >= ALERTS_MAX
        && !part.alerts.contains_key(&id)
        && let Some(oldest) = part.alerts.iter().min_by_key(|(_, at)| **at).map(|(id, _)| id.clone())
    {
        part.alerts.remove(&oldest);
    }
    part.alerts.insert(id, now).is_some()
}

fn detail(alert: &Alert) -> String {
    let index = alert.subject.gpu.as_ref().filter(|gpu| gpu.uuid.is_none() && gpu.slot.is_none()).and_then(|gpu| gpu.index_hint);
    let since = alert.starts_at.map(|at| format!("since {at}")).unwrap_or_default();
    match index {
        Some(index) => format!("{since}, names a GPU only by its index {index}").trim_start_matches(", ").to_owned(),
        None => since,
    }
}
