//! The machines: what is really wrong with each GPU, and the exporter's page that shows it. The only truth of health in a
//! run; nothing but pages and alerts tells anybody of it.

use std::{fmt::Write as _, time::Duration};

use gpuheal_proto::{fault::FaultClass, time::Timestamp};

/// So long heat must last before it is a fault, and a page more.
const HOT_LASTS: Duration = Duration::from_secs(95);
/// GPUs of a node.
pub const GPUS: u8 = 2;
/// Where all pods are.
pub const NAMESPACE: &str = "train";

/// What can be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ill {
    /// A row could not be remapped: a flag that stays until the board is changed or reset.
    RowRemap,
    /// Too hot, GPU and memory both: goes when it cools.
    Hot,
    /// Fallen off the bus: the gauge says 79, and an alert says so too. Ends with a boot.
    Xid,
}

/// All of them.
pub const ILLS: [Ill; 3] = [Ill::RowRemap, Ill::Hot, Ill::Xid];

impl Ill {
    /// The class of the faults by which it shows.
    #[must_use]
    pub const fn class(self) -> FaultClass {
        match self {
            Self::RowRemap => FaultClass::RowRemap,
            Self::Hot => FaultClass::Thermal,
            Self::Xid => FaultClass::Xid,
        }
    }
}

/// One machine.
#[derive(Clone, Debug)]
pub struct Body {
    /// Its name.
    pub name: String,
    /// UID of its Node object.
    pub uid: String,
    /// How often it has booted.
    pub boots: u32,
    /// How often its exporter has started.
    pub starts: u32,
    energy: u64,
    /// What is wrong, by GPU, and since when.
    pub ills: Vec<(u8, Ill, Timestamp)>,
    /// Its exporter answers nobody until then.
    pub silent_until: Timestamp,
    /// When it was last well as a whole.
    pub well_since: Timestamp,
    /// Slot and reign of the leader that has got every page since then.
    watched: Option<((usize, u64), Timestamp)>,
    /// When some leader had seen for as long as it must last that it is too hot.
    felt_at: Option<Timestamp>,
}

impl Body {
    /// A healthy one.
    #[must_use]
    pub fn new(name: &str, uid: &str, now: Timestamp) -> Self {
        Self {
            name: name.to_owned(),
            uid: uid.to_owned(),
            boots: 1,
            starts: 1,
            energy: 1000,
            ills: Vec::new(),
            silent_until: Timestamp::EPOCH,
            well_since: now,
            watched: None,
            felt_at: None,
        }
    }

    /// Of its running system.
    #[must_use]
    pub fn boot_id(&self) -> String {
        format!("{}-boot-{}", self.uid, self.boots)
    }

    /// Tells one start of its exporter from the next.
    #[must_use]
    pub fn start(&self) -> String {
        format!("{}-{}", self.uid, self.starts)
    }

    /// Something breaks.
    pub fn falls_ill(&mut self, gpu: u8, ill: Ill, now: Timestamp) {
        if !self.ills.iter().any(|(at, known, _)| (*at, *known) == (gpu, ill)) {
            self.ills.push((gpu, ill, now));
            self.felt_at = self.felt_at.filter(|_| ill != Ill::Hot);
        }
    }

    /// A page of its went to this leader, or to nobody who leads.
    pub fn read_by(&mut self, leader: Option<(usize, u64)>, now: Timestamp) {
        let known = self.watched.filter(|(who, _)| Some(*who) == leader);
        self.watched = leader.map(|who| known.unwrap_or((who, now)));
        let hot_since = self.ills.iter().filter(|(_, ill, _)| *ill == Ill::Hot).map(|(.., since)| *since).max();
        if let (Some((_, watched)), Some(hot)) = (self.watched, hot_since)
            && now.since(watched.max(hot)) >= HOT_LASTS
        {
            self.felt_at.get_or_insert(now);
        }
    }

    /// Since when an illness could be known: heat that no leader has watched for long enough is none yet.
    #[must_use]
    pub fn known_since(&self, ill: Ill, since: Timestamp) -> Option<Timestamp> {
        if ill == Ill::Hot { self.felt_at.filter(|at| *at >= since) } else { Some(since) }
    }

    /// It cools.
    pub fn cools(&mut self, now: Timestamp) {
        self.felt_at = None;
        self.ills.retain(|(_, ill, _)| *ill != Ill::Hot);
        self.is_well(now);
    }

    /// It boots; what only a boot ends, ends; with `repaired` everything does.
    pub fn boots(&mut self, repaired: bool, now: Timestamp) {
        self.boots += 1;
        self.starts += 1;
        self.energy = 1000;
        self.felt_at = None;
        self.ills.retain(|(_, ill, _)| !repaired && *ill == Ill::RowRemap);
        self.is_well(now);
    }

    fn is_well(&mut self, now: Timestamp) {
        if self.ills.is_empty() {
            self.well_since = now;
        }
    }

    /// The exporter's page, if it answers, with the pods that use each GPU.
    pub fn page(&mut self, now: Timestamp, users: &[(u8, String)]) -> Option<String> {
        if now < self.silent_until {
            return None;
        }
        self.energy += 1000;
        let mut page = String::new();
        for gpu in 0..GPUS {
            let has = |ill: Ill| self.ills.iter().any(|(at, known, _)| (*at, *known) == (gpu, ill));
            let hot = if has(Ill::Hot) { 95 } else { 50 };
            let labels = labels(&self.name, gpu);
            let of_gpu = users.iter().filter(|(at, _)| *at == gpu);
            let mut pods: Vec<String> = of_gpu.map(|(_, pod)| format!(",namespace=\"{NAMESPACE}\",pod=\"{pod}\"")).collect();
            if pods.is_empty() {
                pods.push(String::new());
            }
            let rows = [
                ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", self.energy),
                ("DCGM_FI_DEV_GPU_TEMP", hot),
                ("DCGM_FI_DEV_MEMORY_TEMP", hot),
                ("DCGM_FI_DEV_ROW_REMAP_FAILURE", u64::from(has(Ill::RowRemap))),
                ("DCGM_FI_DEV_XID_ERRORS", if has(Ill::Xid) { 79 } else { 0 }),
            ];
            for ((metric, value), pod) in rows.into_iter().flat_map(|row| pods.iter().map(move |pod| (row, pod))) {
                // Writing to a string does not fail.
                let _ = writeln!(page, "{metric}{{{labels}{pod}}} {value}");
            }
        }
        Some(page)
    }
}

/// UUID of a GPU.
#[must_use]
pub fn gpu_uuid(node: &str, gpu: u8) -> String {
    format!("GPU-{node}-{gpu}")
}

/// Where a GPU sits.
#[must_use]
pub fn slot(gpu: u8) -> String {
    format!("0000:{:02x}:00", 0x10 + gpu)
}

fn labels(node: &str, gpu: u8) -> String {
    let bus = 0x10 + gpu;
    let uuid = gpu_uuid(node, gpu);
    format!("gpu=\"{gpu}\",UUID=\"{uuid}\",pci_bus_id=\"00000000:{bus:02X}:00.0\",modelName=\"NVIDIA H100\",Hostname=\"{node}\"")
}

/// Alertmanager's word about an Xid.
#[must_use]
pub fn alert(node: &str, gpu: u8, now: Timestamp) -> String {
    serde_json::json!({
        "version": "4", "status": "firing", "receiver": "gpuheal",
        "alerts": [{
            "status": "firing", "startsAt": now.to_string(),
            "labels": {"alertname": "GpuXid", "node": node, "UUID": gpu_uuid(node, gpu), "xid": "79"},
            "annotations": {},
        }],
    })
    .to_string()
}
