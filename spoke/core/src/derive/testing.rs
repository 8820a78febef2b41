//! A node, its exporter and its alerts for tests: pages are text and go through the real parsers.

use std::{collections::BTreeMap, fmt::Write as _, net::IpAddr, time::Duration};

use gpuheal_proto::{
    fault::{Fault, NodeRef, Onset, Witness},
    ids::{ClusterId, NodeName, NodeUid},
    time::Timestamp,
};

use super::*;
use crate::scrape::{alias::AlertLabels, alias::Aliases, allocatable, dcgm, webhook};

pub(super) const START: Timestamp = Timestamp::from_unix_ms(1_764_442_800_000);
const MODEL: &str = "NVIDIA H100 80GB HBM3";

/// A spoke that looks at one node, and the time that goes by.
#[derive(Clone)]
pub(super) struct Scene {
    pub(super) held: Held,
    pub(super) settings: Settings,
    pub(super) now: Timestamp,
    pub(super) node: NodeRef,
    pub(super) start: &'static str,
    energy: u64,
    clock_set_ms: i64,
}

/// What a page says of one GPU beside its identity and its energy.
#[derive(Clone, Debug, Default)]
pub(super) struct Gpu {
    pub(super) index: u8,
    pub(super) board: u8,
    slotless: bool,
    rows: Vec<(&'static str, String, String)>,
}

pub(super) fn gpu(index: u8) -> Gpu {
    Gpu { index, board: index, slotless: false, rows: Vec::new() }
}

pub(super) fn uuid(board: u8) -> String {
    format!("GPU-00000000-0000-0000-0000-0000000000{board:02x}")
}

pub(super) fn slot(index: u8) -> String {
    format!("0000:{:02x}:00", 0x10 + index)
}

impl Gpu {
    pub(super) fn row(self, metric: &'static str, value: impl ToString) -> Self {
        self.labelled(metric, "", value)
    }

    pub(super) fn labelled(mut self, metric: &'static str, labels: &str, value: impl ToString) -> Self {
        self.rows.push((metric, labels.to_owned(), value.to_string()));
        self
    }

    pub(super) fn xid(self, code: u16) -> Self {
        self.row("DCGM_FI_DEV_XID_ERRORS", code)
    }

    pub(super) fn temp(self, celsius: u16) -> Self {
        self.row("DCGM_FI_DEV_GPU_TEMP", celsius)
    }

    pub(super) fn count(self, code: u16, count: u32) -> Self {
        self.labelled("DCGM_EXP_XID_ERRORS_COUNT", &format!(",window_size_in_ms=\"300000\",xid=\"{code}\""), count)
    }

    pub(super) fn board(mut self, board: u8) -> Self {
        self.board = board;
        self
    }

    /// As older exporters tell of it, by its UUID alone.
    pub(super) fn slotless(mut self) -> Self {
        self.slotless = true;
        self
    }

    fn write(&self, energy: u64, page: &mut String) {
        let (index, uuid) = (self.index, uuid(self.board));
        let slot = if self.slotless { String::new() } else { format!(",pci_bus_id=\"0000{}.0\"", slot(self.index)) };
        let labels = format!("gpu=\"{index}\",UUID=\"{uuid}\"{slot},modelName=\"{MODEL}\",Hostname=\"exporter-abc\"");
        writeln!(page, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{labels}}} {energy}").unwrap();
        for (metric, more, value) in &self.rows {
            writeln!(page, "{metric}{{{labels}{more}}} {value}").unwrap();
        }
    }
}

impl Scene {
    pub(super) fn new() -> Self {
        let node = NodeRef {
            name: NodeName::parse("gpu-1").unwrap(),
            uid: NodeUid::parse("uid-1").unwrap(),
            boot_id: "boot-1".to_owned(),
        };
        let held = Held::new(ClusterId::parse("c1").unwrap());
        Self { held, settings: Settings::default(), now: START, node, start: "", energy: 1_000, clock_set_ms: 0 }
    }

    pub(super) fn wait_s(&mut self, seconds: u64) -> &mut Self {
        self.now = self.now.after(Duration::from_secs(seconds));
        self
    }

    /// A reading of the wall clock, beside the time since boot.
    pub(super) fn read_clock(&mut self) -> i64 {
        let boot = self.now.moved(-self.clock_set_ms).since(START);
        self.held.read_clock(self.now, boot)
    }

    /// Somebody sets the wall clock between two readings.
    pub(super) fn set_clock(&mut self, by_ms: i64) {
        self.read_clock();
        self.now = self.now.moved(by_ms);
        self.clock_set_ms += by_ms;
        assert_eq!(self.read_clock(), by_ms);
    }

    /// The next scrape, a minute later, with energy that moved.
    pub(super) fn page(&mut self, gpus: &[Gpu]) -> Outcome {
        self.energy += 1_000;
        self.page_of_energy(self.energy, gpus)
    }

    pub(super) fn page_of_energy(&mut self, energy: u64, gpus: &[Gpu]) -> Outcome {
        self.text(&written(energy, gpus))
    }

    /// The same scrape by a replica that does not lead.
    pub(super) fn learn(&mut self, energy: u64, gpus: &[Gpu]) {
        self.wait_s(60);
        let text = written(energy, gpus);
        let page = dcgm::decode(text.as_bytes(), &Aliases::new()).unwrap();
        self.held.take_inventory(&self.node, &page, &self.settings, self.now);
    }

    pub(super) fn text(&mut self, text: &str) -> Outcome {
        self.wait_s(60);
        let page = dcgm::decode(text.as_bytes(), &Aliases::new()).unwrap();
        let source = Source { name: "exporter 10.0.0.1:9400", start: self.start };
        self.held.take_page(&self.node, &source, &page, &self.settings, self.now)
    }

    pub(super) fn no_page(&mut self, why: NoPage) -> Outcome {
        self.wait_s(60);
        let source = Source { name: "exporter 10.0.0.1:9400", start: self.start };
        self.held.take_no_page(&self.node, &source, why, &self.settings, self.now)
    }

    pub(super) fn alerts(&mut self, body: &str) -> Outcome {
        let body = webhook::decode(body.as_bytes(), &AlertLabels::default()).unwrap();
        let nodes = Cluster(self.node.clone());
        self.held.take_alerts(&body, &nodes, &self.settings, self.now)
    }

    pub(super) fn object(&mut self, conditions: &[(&str, &str, &str, &str)], offers: &[(&str, &str, &str)]) -> Outcome {
        self.object_with_plugin(conditions, offers, None)
    }

    pub(super) fn object_with_plugin(
        &mut self,
        conditions: &[(&str, &str, &str, &str)],
        offers: &[(&str, &str, &str)],
        plugin_started_at: Option<Timestamp>,
    ) -> Outcome {
        let conditions: Vec<_> =
            conditions.iter().map(|&(kind, status, reason, message)| Condition { kind, status, reason, message }).collect();
        let map = |pick: fn(&(&str, &str, &str)) -> String| -> BTreeMap<String, String> {
            offers.iter().map(|offer| (offer.0.to_owned(), pick(offer))).collect()
        };
        let offers = allocatable::offers(
            &map(|offer| offer.1.to_owned()),
            &map(|offer| offer.2.to_owned()),
            &crate::gpu_resources::GpuResources::default(),
        );
        let node = self.node.clone();
        let view = NodeView { node: &node, conditions: &conditions, offers: &offers, plugin_started_at };
        self.held.take_node(&view, &self.settings, self.now)
    }

    pub(super) fn kernel(&mut self, lines: &[&str]) -> Outcome {
        use crate::scrape::kernel::{Assembler, KmsgRecord};
        let mut log = Assembler::default();
        let records = lines.iter().enumerate().map(|(at, line)| format!("4,{at},{},-;{line}", at * 5_000_000));
        let events: Vec<_> = records.flat_map(|record| log.take(&KmsgRecord::parse(record.as_bytes()).unwrap()).events).collect();
        self.held.take_kernel(&self.node, "kernel log", &events, &self.settings, self.now)
    }

    /// The spoke restarts with what its journal held.
    pub(super) fn restart(&mut self) {
        let bytes = self.held.node_bytes(&self.node.uid);
        self.held = Held::new(ClusterId::parse("c1").unwrap());
        if !bytes.is_empty() {
            self.held.restore(&bytes).unwrap();
        }
    }

    pub(super) fn reboot(&mut self) {
        self.node.boot_id = "boot-2".to_owned();
    }

    pub(super) fn standing(&self, fault: &Fault) -> Standing {
        self.held.standing(&fault.key, &self.settings, self.now)
    }

    pub(super) fn state(&self, fault: &Fault) -> EvidenceState {
        self.held.evidence().iter().find(|evidence| evidence.key == fault.key).expect("the fault is known").state
    }
}

fn written(energy: u64, gpus: &[Gpu]) -> String {
    let mut text = String::new();
    gpus.iter().for_each(|gpu| gpu.write(energy, &mut text));
    text
}

/// Short form of faults: class, code, index of the slot, onset, witness.
pub(super) fn brief(outcome: &Outcome) -> Vec<String> {
    let one = |fault: &Fault| {
        let slot = fault.gpu.as_ref().and_then(|gpu| gpu.slot.as_ref()).map_or("node", |slot| slot.as_str());
        let (class, code, onset, witness) = (fault.class, &fault.code, fault.onset, fault.witness);
        format!("{class} {code} {slot} {onset} {witness}")
    };
    outcome.faults.iter().map(one).collect()
}

pub(super) fn only(outcome: &Outcome) -> Fault {
    assert_eq!(outcome.faults.len(), 1, "{:?}", brief(outcome));
    outcome.faults[0].clone()
}

pub(super) fn is(fault: &Fault, onset: Onset, witness: Witness) -> bool {
    (fault.onset, fault.witness) == (onset, witness)
}

/// A cluster of one node at 10.0.0.9, whose exporter pod is called exporter-abc and has 10.0.0.1.
struct Cluster(NodeRef);

impl Nodes for Cluster {
    fn named(&self, name: &str) -> Option<NodeRef> {
        (name == self.0.name.as_str()).then(|| self.0.clone())
    }

    fn at(&self, address: IpAddr) -> Option<NodeRef> {
        ["10.0.0.1", "10.0.0.9"].contains(&address.to_string().as_str()).then(|| self.0.clone())
    }

    fn of_pod(&self, name: &str) -> Option<NodeRef> {
        (name == "exporter-abc").then(|| self.0.clone())
    }
}

/// A webhook body with one alert.
pub(super) fn alert(status: &str, labels: &[(&str, &str)], starts_at: &str) -> String {
    let labels: BTreeMap<_, _> = labels.iter().copied().collect();
    serde_json::json!({
        "version": "4", "status": "firing", "receiver": "gpuheal",
        "alerts": [{"status": status, "labels": labels, "annotations": {}, "startsAt": starts_at}],
    })
    .to_string()
}
