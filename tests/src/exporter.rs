//! DCGM exporters that are not real: one HTTP server a node, serving text shaped like a scrape of dcgm-exporter 4.x from
//! a state that a script changes. When a change is first served is remembered: that is when a fault became visible.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use anyhow::Result;
use axum::{Router, extract::State, http::header, response::IntoResponse, routing::get};
use tokio::{net::TcpListener, task::JoinHandle};

/// One GPU as its exporter shows it.
#[derive(Clone, Debug)]
pub struct Gpu {
    /// Driver's index.
    pub index: u32,
    /// `GPU-…`.
    pub uuid: String,
    /// PCI address with eight domain digits, as the exporter prints it.
    pub pci: String,
    /// Marketing name.
    pub model: String,
    /// Degrees Celsius.
    pub temperature: f64,
    /// Memory's temperature.
    pub memory_temperature: f64,
    /// Last Xid; 0 = none yet.
    pub xid: u32,
    /// Xids in the count window, by code.
    pub xid_counts: BTreeMap<u32, u32>,
    /// Hardware thermal clock events in the window.
    pub hw_thermal: u32,
    /// Are its rows there at all?
    pub present: bool,
    /// Namespace and name of the pod that uses it, on every row; an exporter may be started without.
    pub pod: Option<(String, String)>,
}

/// A node's exporter: what it shows, and when it last changed and was first seen.
pub struct Exporter {
    node: String,
    driver: String,
    started: Instant,
    shown: Mutex<Shown>,
}

struct Shown {
    gpus: Vec<Gpu>,
    version: u64,
    served_at: BTreeMap<u64, Vec<Instant>>,
    raw: Option<Vec<u8>>,
}

/// How many versions' serving is remembered: a script changes a node a handful of times.
const VERSIONS_KEPT: usize = 64;
/// How many servings of a version: both replicas ask, and the one that leads is among the first few.
const SERVINGS_KEPT: usize = 8;

impl Exporter {
    fn new(node: &str, gpus: Vec<Gpu>) -> Self {
        let shown = Shown { gpus, version: 0, served_at: BTreeMap::new(), raw: None };
        Self { node: node.to_owned(), driver: "580.95.05".to_owned(), started: Instant::now(), shown: Mutex::new(shown) }
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().expect("no holder of the exporter's state panics")
    }

    /// Changes what is shown; gives the new version's number for [`Exporter::visible_at`].
    pub fn change(&self, change: impl FnOnce(&mut Vec<Gpu>)) -> u64 {
        let mut shown = self.shown();
        change(&mut shown.gpus);
        shown.version += 1;
        shown.version
    }

    /// Serves these bytes instead of a page, until `None` is given.
    pub fn serve_raw(&self, raw: Option<Vec<u8>>) {
        self.shown().raw = raw;
    }

    /// When a version was first served: the moment from which a spoke could know.
    #[must_use]
    pub fn visible_at(&self, version: u64) -> Option<Instant> {
        self.shown().served_at.range(version..).next().and_then(|(_, at)| at.first().copied())
    }

    /// When this version was served, the first few times.
    #[must_use]
    pub fn servings(&self, version: u64) -> Vec<Instant> {
        self.shown().served_at.get(&version).cloned().unwrap_or_default()
    }

    /// The GPUs as shown now.
    #[must_use]
    pub fn gpus(&self) -> Vec<Gpu> {
        self.shown().gpus.clone()
    }

    fn page(&self) -> Vec<u8> {
        let mut shown = self.shown();
        let version = shown.version;
        let servings = shown.served_at.entry(version).or_default();
        if servings.len() < SERVINGS_KEPT {
            servings.push(Instant::now());
        }
        while shown.served_at.len() > VERSIONS_KEPT {
            shown.served_at.pop_first();
        }
        shown.raw.clone().unwrap_or_else(|| render(&self.node, &self.driver, self.started.elapsed(), &shown.gpus).into_bytes())
    }
}

/// Name, kind, help and reading of each metric on the page, in the exporter's own order.
type Reading = fn(&Gpu, Duration) -> f64;
const METRICS: &[(&str, &str, &str, Reading)] = &[
    ("DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz).", |g, _| if g.hw_thermal > 0 { 1095.0 } else { 1980.0 }),
    ("DCGM_FI_DEV_MEM_CLOCK", "gauge", "Memory clock frequency (in MHz).", |_, _| 2619.0),
    ("DCGM_FI_DEV_MEMORY_TEMP", "gauge", "Memory temperature (in C).", |g, _| g.memory_temperature),
    ("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C).", |g, _| g.temperature),
    ("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W).", |_, up| 402.5 + f64::from(up.subsec_millis() % 7)),
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "Total energy consumption since boot (in mJ).", |g, up| {
        9_000_000.0 + f64::from(g.index) + (up.as_millis() as f64 * 0.4).floor()
    }),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter", "Total number of PCIe retries.", |_, _| 0.0),
    ("DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %).", |_, _| 97.0),
    ("DCGM_FI_DEV_XID_ERRORS", "gauge", "Value of the last XID error encountered.", |g, _| f64::from(g.xid)),
    ("DCGM_FI_DEV_FB_FREE", "gauge", "Framebuffer memory free (in MiB).", |_, _| 10_240.0),
    ("DCGM_FI_DEV_FB_USED", "gauge", "Framebuffer memory used (in MiB).", |_, _| 71_000.0),
    ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "counter", "Number of remapped rows for uncorrectable errors", |_, _| 0.0),
    ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "counter", "Number of remapped rows for correctable errors", |_, _| 0.0),
    ("DCGM_FI_DEV_ROW_REMAP_FAILURE", "gauge", "Whether remapping of rows has failed", |_, _| 0.0),
];

fn render(node: &str, driver: &str, up: Duration, gpus: &[Gpu]) -> String {
    let mut page = String::with_capacity(512 * METRICS.len() * gpus.len().max(1));
    let labels = |gpu: &Gpu| {
        let pod = gpu.pod.as_ref().map(|(namespace, pod)| format!(",container=\"main\",namespace=\"{namespace}\",pod=\"{pod}\""));
        format!(
            "gpu=\"{i}\",UUID=\"{uuid}\",pci_bus_id=\"{pci}\",device=\"nvidia{i}\",modelName=\"{model}\",Hostname=\"{node}\",DCGM_FI_DRIVER_VERSION=\"{driver}\"{pod}",
            i = gpu.index,
            uuid = gpu.uuid,
            pci = gpu.pci,
            model = gpu.model,
            pod = pod.unwrap_or_default()
        )
    };
    let present: Vec<&Gpu> = gpus.iter().filter(|gpu| gpu.present).collect();
    for (name, kind, help, reading) in METRICS {
        let _infallible = write!(page, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        for gpu in &present {
            let _infallible = writeln!(page, "{name}{{{}}} {}", labels(gpu), reading(gpu, up));
        }
    }
    page.push_str("# HELP DCGM_EXP_XID_ERRORS_COUNT Count of XID Errors within user-specified time window.\n");
    page.push_str("# TYPE DCGM_EXP_XID_ERRORS_COUNT gauge\n");
    for gpu in &present {
        if gpu.xid_counts.is_empty() {
            let _infallible = writeln!(page, "DCGM_EXP_XID_ERRORS_COUNT{{{},window_size_in_ms=\"300000\"}} 0", labels(gpu));
        }
        for (xid, count) in &gpu.xid_counts {
            let _infallible =
                writeln!(page, "DCGM_EXP_XID_ERRORS_COUNT{{{},window_size_in_ms=\"300000\",xid=\"{xid}\"}} {count}", labels(gpu));
        }
    }
    page.push_str("# HELP DCGM_EXP_CLOCK_EVENTS_COUNT Count of clock events within the user-specified time window.\n");
    page.push_str("# TYPE DCGM_EXP_CLOCK_EVENTS_COUNT gauge\n");
    for gpu in present.iter().filter(|gpu| gpu.hw_thermal > 0) {
        let _infallible = writeln!(
            page,
            "DCGM_EXP_CLOCK_EVENTS_COUNT{{{},clock_event=\"hw_thermal\",window_size_in_ms=\"300000\"}} {}",
            labels(gpu),
            gpu.hw_thermal
        );
    }
    page
}

/// The exporters of one cluster, each on a port of its own.
#[derive(Default)]
pub struct Exporters {
    by_node: BTreeMap<String, (SocketAddr, Arc<Exporter>)>,
    tasks: Vec<JoinHandle<()>>,
}

impl Exporters {
    /// Starts one for a node; `models` says its GPUs. UUIDs come from `seed`, so that a run can be played again.
    pub async fn add(&mut self, seed: u64, node: &str, model: &str, gpus: u32) -> Result<SocketAddr> {
        let gpus = (0..gpus).map(|index| healthy(seed, node, model, index)).collect();
        let exporter = Arc::new(Exporter::new(node, gpus));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let router = Router::new().route("/metrics", get(metrics)).with_state(Arc::clone(&exporter));
        self.tasks.push(tokio::spawn(async move {
            let _until_aborted = axum::serve(listener, router).await;
        }));
        self.by_node.insert(node.to_owned(), (address, exporter));
        Ok(address)
    }

    /// A node's exporter.
    ///
    /// # Panics
    /// When the node has none: a script names only nodes that it made.
    #[must_use]
    pub fn of(&self, node: &str) -> Arc<Exporter> {
        Arc::clone(&self.by_node.get(node).unwrap_or_else(|| panic!("node {node} has no exporter")).1)
    }

    /// Names of the nodes that have one.
    #[must_use]
    pub fn nodes(&self) -> BTreeSet<String> {
        self.by_node.keys().cloned().collect()
    }
}

impl Drop for Exporters {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

async fn metrics(State(exporter): State<Arc<Exporter>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], exporter.page())
}

fn healthy(seed: u64, node: &str, model: &str, index: u32) -> Gpu {
    let id = gpuheal_proto::ids::digest(&["gpu", &seed.to_string(), node, &index.to_string()]);
    let h = hex::encode(id);
    Gpu {
        index,
        uuid: format!("GPU-{}-{}-{}-{}-{}", &h[..8], &h[8..12], &h[12..16], &h[16..20], &h[20..32]),
        pci: format!("00000000:{:02X}:00.0", 0x1b + 0x10 * index),
        model: model.to_owned(),
        temperature: 54.0 + f64::from(id[0] % 8),
        memory_temperature: 60.0 + f64::from(id[1] % 8),
        xid: 0,
        xid_counts: BTreeMap::new(),
        hw_thermal: 0,
        present: true,
        pod: None,
    }
}
