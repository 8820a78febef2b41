//! How many repeated signals `derive` collapses in a second on one core, and what one node's memory takes.
//!
//! `cargo run --release -p gpuheal-spoke-core --example derive_bench`. Every signal but the first says what is known
//! already, as in a storm: a kernel that prints one Xid again and again, an exporter whose eight GPUs stand at Xid 79, an
//! Alertmanager that repeats. "pages" counts samples; parsing is measured by `parse_bench` and left out here.

use std::hint::black_box;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use gpuheal_proto::fault::NodeRef;
use gpuheal_proto::ids::{ClusterId, NodeName, NodeUid};
use gpuheal_proto::time::Timestamp;
use gpuheal_spoke_core::derive::{Held, Nodes, Settings, Source};
use gpuheal_spoke_core::scrape::kernel::{KernelEvent, Xid, XidDetail};
use gpuheal_spoke_core::scrape::slot::PciSlot;
use gpuheal_spoke_core::scrape::{alias::AlertLabels, alias::Aliases, dcgm, webhook};

const SPAN: Duration = Duration::from_secs(1);
const NODES: usize = 100;

struct Cluster(Vec<NodeRef>);

impl Nodes for Cluster {
    fn named(&self, name: &str) -> Option<NodeRef> {
        self.0.iter().find(|node| node.name.as_str() == name).cloned()
    }
    fn at(&self, _: IpAddr) -> Option<NodeRef> {
        None
    }
    fn of_pod(&self, _: &str) -> Option<NodeRef> {
        None
    }
}

fn main() {
    let nodes: Vec<NodeRef> = (0..NODES).map(node).collect();
    let settings = Settings::default();
    println!("{:<8} {:>14} {:>10} {:>16}", "signals", "a second", "faults", "bytes of a node");
    let kernel = {
        let events: Vec<KernelEvent> = (0..8).map(xid).collect();
        let per_round = events.len();
        move |held: &mut Held, node: &NodeRef, now| {
            (held.take_kernel(node, "kernel log", &events, &settings, now).faults.len(), per_round)
        }
    };
    measure("kernel", &nodes, kernel);

    let settings = Settings::default();
    let texts = [page(1), page(2)];
    let aliases = Aliases::new();
    let pages: Vec<_> = texts.iter().map(|text| dcgm::decode(text.as_bytes(), &aliases).expect("fits")).collect();
    let mut turn = 0;
    measure("pages", &nodes, |held, node, now| {
        turn += 1;
        let page = &pages[turn / NODES % 2];
        let source = Source { name: "exporter", start: "" };
        (held.take_page(node, &source, page, &settings, now).faults.len(), page.samples.len())
    });

    let settings = Settings::default();
    let cluster = Cluster(nodes[..1].to_vec());
    let body = webhook::decode(alerts().as_bytes(), &AlertLabels::default()).expect("is a body");
    measure("alerts", &nodes[..1], |held, _, now| {
        (held.take_alerts(&body, &cluster, &settings, now).faults.len(), body.alerts.len())
    });
}

fn measure(what: &str, nodes: &[NodeRef], mut take: impl FnMut(&mut Held, &NodeRef, Timestamp) -> (usize, usize)) {
    let mut held = Held::new(ClusterId::parse("bench").expect("is a label"));
    let started = Instant::now();
    let (mut signals, mut faults, mut now_ms) = (0, 0, 1_764_442_800_000);
    while started.elapsed() < SPAN {
        now_ms += 15_000;
        for node in nodes {
            let (new, all) = black_box(take(&mut held, node, Timestamp::from_unix_ms(now_ms)));
            signals += all;
            faults += new;
        }
    }
    let rate = signals as f64 / started.elapsed().as_secs_f64();
    println!("{what:<8} {rate:>14.0} {faults:>10} {:>16}", held.node_bytes(&nodes[0].uid).len());
}

fn node(at: usize) -> NodeRef {
    NodeRef {
        name: NodeName::parse(&format!("gpu-{at}")).expect("is a name"),
        uid: NodeUid::parse(&format!("uid-{at}")).expect("is a uid"),
        boot_id: "boot".to_owned(),
    }
}

fn xid(index: u8) -> KernelEvent {
    let slot = PciSlot::parse(&format!("0000:{:02x}:00", 16 + index)).expect("is a slot");
    KernelEvent::Xid(Xid { slot, code: 119, pid: None, process: None, detail: XidDetail::None, text: String::new() })
}

fn page(energy: u32) -> String {
    let names = ["XID_ERRORS 79", "GPU_TEMP 61", "MEMORY_TEMP 70", "SM_CLOCK 1980", "MEM_CLOCK 2619", "GPU_UTIL 100", "FB_USED 9"];
    let energy = format!("TOTAL_ENERGY_CONSUMPTION {energy}");
    let rows = |name: &str| -> String {
        let (name, value) = name.split_once(' ').expect("has a value");
        let row = |index: usize| {
            format!(
                "DCGM_FI_DEV_{name}{{gpu=\"{index}\",UUID=\"GPU-{index}\",pci_bus_id=\"00000000:1{index}:00.0\",modelName=\"NVIDIA H100\"}} {value}\n"
            )
        };
        (0..8).map(row).collect()
    };
    names.iter().copied().chain([energy.as_str()]).map(rows).collect()
}

fn alerts() -> String {
    let one = |index: usize| {
        serde_json::json!({
            "status": "firing", "startsAt": "2026-11-29T19:00:00Z",
            "labels": {"alertname": "GPUXid", "node": "gpu-0", "err_code": "79", "pci_bus_id": format!("00000000:1{index}:00.0")},
        })
    };
    serde_json::json!({"version": "4", "status": "firing", "alerts": (0..8).map(one).collect::<Vec<_>>()}).to_string()
}
