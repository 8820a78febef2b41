//! Findings about what the spoke would see: nodes with GPUs, their exporters, and the listener that alerts come to.

use std::collections::{BTreeMap, BTreeSet};

use gpuheal_spoke_core::scrape::metric::Metric;

use super::{seen, some};
use crate::doctor::{
    Finding, Level,
    facts::{Exporter, Facts, Node, Webhook},
};

/// What a page must have, by any of these metrics, and the field that an exporter is told to export for it.
const NEEDED: [(&str, &[Metric], &str); 5] = [
    ("Xids", &[Metric::XidLast, Metric::XidCount], "DCGM_FI_DEV_XID_ERRORS"),
    (
        "uncorrectable ECC errors",
        &[Metric::EccUncorrectedVolatile, Metric::EccUncorrectedLifetime],
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
    ),
    ("corrected ECC errors", &[Metric::EccCorrectedVolatile, Metric::EccCorrectedLifetime], "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL"),
    ("temperature", &[Metric::GpuTemp], "DCGM_FI_DEV_GPU_TEMP"),
    ("utilisation", &[Metric::GpuUtil, Metric::EngineActive], "DCGM_FI_DEV_GPU_UTIL"),
];

pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let mut all = Vec::new();
    let with_gpus = seen("gpus", &facts.nodes, &mut all).map(|known| nodes(known, &mut all)).unwrap_or_default();
    if let Some(known) = seen("exporter", &facts.exporters, &mut all) {
        exporters(&with_gpus, known, &mut all);
    }
    if let Some(there) = &facts.webhook {
        webhook(there, &mut all);
    }
    all
}

/// Names of those with GPUs.
fn nodes<'a>(known: &'a [Node], all: &mut Vec<Finding>) -> Vec<&'a str> {
    let names = |fits: &dyn Fn(&Node) -> bool| -> Vec<&'a str> {
        known.iter().filter(|node| fits(node)).map(|node| node.name.as_str()).collect()
    };
    let with_gpus = names(&|node| node.gpus > 0);
    let silent = names(&|node| node.labelled && node.gpus == 0);
    let short = names(&|node| node.offered < node.gpus);
    let mut tell = |level, found, next| all.push(Finding::new(level, "gpus", "", found, next));
    if with_gpus.is_empty() {
        let next = "install driver and device plugin, for instance by the GPU Operator; GPUs shared by DRA alone are not counted";
        tell(Level::Problem, format!("none of {} nodes offers what counts as a GPU (--gpu-resource)", known.len()), next);
    } else {
        let gpus: u32 = known.iter().map(|node| node.gpus).sum();
        tell(Level::Ok, format!("{gpus} GPUs on {} of {} nodes", with_gpus.len(), known.len()), "");
    }
    if !silent.is_empty() {
        let found = format!("a label says that there is a GPU, and none is offered: {}", some(&silent));
        tell(Level::Warning, found, "look at driver and device plugin of these nodes");
    }
    if !short.is_empty() {
        let found = format!("fewer GPUs are offered than there are: {}", some(&short));
        tell(Level::Warning, found, "look at the device plugin's log: a GPU that it calls unhealthy is a fault that will be seen");
    }
    with_gpus
}

fn exporters(with_gpus: &[&str], known: &[Exporter], all: &mut Vec<Finding>) {
    let mut tell = |level, about: &str, found, next: &str| all.push(Finding::new(level, "exporter", about, found, next));
    let covered: BTreeSet<&str> = known.iter().map(|exporter| exporter.node.as_str()).collect();
    let blind: Vec<&str> = with_gpus.iter().copied().filter(|node| !covered.contains(node)).collect();
    if !blind.is_empty() {
        let next = "run dcgm-exporter there, or say where it is: --exporter-selector, --exporter URL=NODE";
        tell(
            Level::Problem,
            "",
            format!("{} of {} nodes with GPUs have none: {}", blind.len(), with_gpus.len(), some(&blind)),
            next,
        );
    }
    let mut lacking: BTreeMap<Vec<usize>, Vec<&str>> = BTreeMap::new();
    let mut unreachable: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for exporter in known {
        match &exporter.page {
            Ok(page) => {
                let has = |at: &usize| NEEDED[*at].1.iter().any(|metric| page.contains(metric));
                let none_to_have = |at: &usize| exporter.without_ecc && NEEDED[*at].0.ends_with("ECC errors");
                let lacks = (0..NEEDED.len()).filter(|at| !has(at) && !none_to_have(at));
                lacking.entry(lacks.collect()).or_default().push(&exporter.node);
            }
            Err(why) => unreachable.entry(why).or_default().push(&exporter.address),
        }
    }
    for (why, addresses) in unreachable {
        let next = "check the pod and the NetworkPolicy; from outside of the pod network no pod can be reached: run doctor in a spoke's pod";
        tell(Level::Problem, "", format!("{} of {}: {why}: {}", addresses.len(), known.len(), some(&addresses)), next);
    }
    for (lacks, nodes) in lacking {
        let of = format!("{} of {}", nodes.len(), known.len());
        if lacks.is_empty() {
            tell(Level::Ok, "", format!("{of} have every metric that is needed"), "");
            continue;
        }
        let what: Vec<&str> = lacks.iter().map(|at| NEEDED[*at].0).collect();
        let fields: Vec<&str> = lacks.iter().map(|at| NEEDED[*at].2).collect();
        let next = format!("add {} to the exporter's list of fields", fields.join(", "));
        tell(Level::Warning, "", format!("{of} have no {}: {}", what.join(", no "), some(&nodes)), &next);
    }
}

fn webhook(there: &Webhook, all: &mut Vec<Finding>) {
    let mut tell = |level, found: String, next: &str| all.push(Finding::new(level, "webhook", &there.url, found, next));
    match &there.ready {
        Err(why) => {
            let next = "check the Service, --listen-http and the NetworkPolicy: Alertmanager cannot reach it either";
            return tell(Level::Problem, format!("cannot be reached: {why}"), next);
        }
        Ok((200, _)) => tell(Level::Ok, "is ready".to_owned(), ""),
        Ok((_, words)) => {
            words.lines().for_each(|line| tell(Level::Warning, line.to_owned(), "see docs/execution.md, Troubleshooting"));
        }
    }
    match &there.without_token {
        Ok(401) => {}
        Ok(code) => {
            tell(Level::Problem, format!("a post without a token is answered {code}, not 401"), "is this a spoke's listener?")
        }
        Err(why) => tell(Level::Problem, format!("a post is not answered: {why}"), "look at the spoke's log"),
    }
    match &there.with_token {
        None => {}
        // An empty object is no alert: it is refused once the token was looked at.
        Some(Ok(400)) => tell(Level::Ok, "takes the token".to_owned(), ""),
        Some(Ok(401)) => tell(Level::Problem, "does not take this token".to_owned(), "give spoke and Alertmanager the same one"),
        Some(Ok(code)) => tell(Level::Warning, format!("a post with the token is answered {code}"), "look at the spoke's log"),
        Some(Err(why)) => tell(Level::Problem, format!("a post with the token is not answered: {why}"), "look at the spoke's log"),
    }
}
