//! The command line and its environment (`GPUHEAL_*`): the only place that reads either. Long options only.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use gpuheal_proto::{ids::ReplicaId, kubernetes, words::Level};
use gpuheal_spoke_core::{ceiling::parse_duration, gpu_resources};

use crate::{
    ceiling::Flags,
    elector, journal,
    link::Hub,
    rights::{Grant, Sheet},
    scrape::StaticTarget,
};

/// What is logged by default.
pub const LOG: &str = "info,kube_client=off";

/// Label of DCGM exporter pods as NVIDIA's own chart and operator set it.
const EXPORTER_SELECTOR: &str = "app=nvidia-dcgm-exporter";
const PLUGIN_SELECTORS: [&str; 3] =
    ["app=nvidia-device-plugin-daemonset", "app.kubernetes.io/name=nvidia-device-plugin", "k8s-app=nvidia-gpu-device-plugin"];
/// Port of DCGM exporters.
const EXPORTER_PORT: u16 = 9400;
/// Longest name of a namespace: a label of DNS.
const NAMESPACE_MAX: usize = 63;

/// One cluster's spoke of gpu-selfhealing.
#[derive(Debug, Parser)]
#[command(name = "gpuheal-spoke", version)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What the program can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the spoke until it is told to end.
    Run(Box<Run>),
    /// Print the CustomResourceDefinition of HealAction as YAML.
    Crd,
    /// Print what the spoke's account needs in a cluster, or must not do there, as YAML for `kubectl apply -f -`.
    Rights(Rights),
    /// Look for what stands in the way of a spoke in this cluster, before it is installed and after. Changes nothing. Exit
    /// status 0: no problem, and all that guards the cluster was seen, 1: problems, or nobody to ask, 2: wrong usage, 3: no problem was
    /// found, and rights, admission policies or the owner's ceiling could not be looked at.
    Doctor(Box<Doctor>),
}

/// What counts as a GPU, and where their sources are: the same for the spoke and for its doctor.
#[derive(Clone, Debug, clap::Args)]
pub struct Sources {
    /// What counts as a GPU: the name of an extended resource, or with - or / at its end how names begin. May be repeated. NVIDIA's own
    /// when left out: nvidia.com/gpu and nvidia.com/mig-.
    #[arg(long = "gpu-resource", env = "GPUHEAL_GPU_RESOURCES", value_name = "NAME", value_delimiter = ',', value_parser = gpu_resources::parse)]
    pub gpu_resources: Vec<String>,
    /// Label selector of DCGM exporter pods.
    #[arg(long, env = "GPUHEAL_EXPORTER_SELECTOR", default_value = EXPORTER_SELECTOR)]
    pub exporter_selector: String,
    /// Label selector of device plugin pods, whose start takes allocatable down for a while. May be repeated; by environment,
    /// several are separated by semicolons.
    #[arg(
        long = "device-plugin-selector",
        env = "GPUHEAL_DEVICE_PLUGIN_SELECTORS",
        value_name = "SELECTOR",
        value_delimiter = ';',
        default_values = PLUGIN_SELECTORS
    )]
    pub device_plugin_selectors: Vec<String>,
    /// Port of an exporter pod that declares none.
    #[arg(long, env = "GPUHEAL_EXPORTER_PORT", default_value_t = EXPORTER_PORT)]
    pub exporter_port: u16,
    /// An exporter outside of pods, as URL=NODE. May be repeated.
    #[arg(long = "exporter", env = "GPUHEAL_EXPORTERS", value_name = "URL=NODE", value_delimiter = ',')]
    pub exporters: Vec<StaticTarget>,
}

/// Settings of `doctor`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Doctor {
    /// Kubeconfig of the cluster; the pod's own account when left out.
    #[arg(long, env = "GPUHEAL_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of our own objects.
    #[arg(long, env = "GPUHEAL_NAMESPACE", default_value = kubernetes::NAMESPACE, value_parser = namespace)]
    pub namespace: String,
    /// How far the spoke is to go here; mode approve takes what heal does.
    #[arg(long, value_enum, default_value_t = Grant::Observe)]
    pub mode: Grant,
    /// Namespaces in which pods may be evicted or deleted, and workloads restarted, as `rights` was told; when left out, all of them, or
    /// those with GPU pods in which it may.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = namespace)]
    pub namespaces: Vec<String>,
    /// What is looked at in the cluster.
    #[command(flatten)]
    pub sources: Sources,
    /// Where Alertmanager reaches the spoke, such as http://gpuheal-spoke.gpu-selfhealing:8080; not looked at when left out.
    #[arg(long, value_name = "URL", value_parser = http_url)]
    pub webhook: Option<String>,
    /// File with the bearer token that posts must show.
    #[arg(long, env = "GPUHEAL_WEBHOOK_TOKEN_FILE", value_name = "FILE")]
    pub webhook_token_file: Option<PathBuf>,
    /// How to print it.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// How results look; gpuhealctl's option has the same name and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Table,
    /// For scripts.
    Json,
    /// For scripts and people.
    Yaml,
}

/// Settings of `rights`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Rights {
    /// Which file of deploy/spoke.
    #[arg(value_enum)]
    pub sheet: Sheet,
    /// Namespace of our own objects.
    #[arg(long, env = "GPUHEAL_NAMESPACE", default_value = kubernetes::NAMESPACE, value_parser = namespace)]
    pub namespace: String,
    /// Namespaces in which pods may be evicted or deleted, and workloads restarted; all of them when left out. For heal, restart and
    /// past-budgets.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = namespace)]
    pub namespaces: Vec<String>,
}

/// Settings of `run`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Run {
    /// The hub: https://HOST:PORT.
    #[arg(long, env = "GPUHEAL_HUB", value_parser = Hub::parse)]
    pub hub: Hub,
    /// Directory with tls.crt, tls.key, ca.crt and trust.json; the cluster's id is in the certificate.
    #[arg(long, env = "GPUHEAL_IDENTITY", value_name = "DIR")]
    pub identity: PathBuf,
    /// Kubeconfig of the cluster; the pod's own account when left out.
    #[arg(long, env = "GPUHEAL_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Name of this replica, unlike any other of the cluster: the pod's name.
    #[arg(long, env = "GPUHEAL_REPLICA_ID", value_parser = ReplicaId::parse)]
    pub replica_id: ReplicaId,
    /// Namespace of our own objects.
    #[arg(long, env = "GPUHEAL_NAMESPACE", default_value = kubernetes::NAMESPACE, value_parser = namespace)]
    pub namespace: String,
    /// Directory of the journal; no other replica's.
    #[arg(long, env = "GPUHEAL_JOURNAL", value_name = "DIR")]
    pub journal: PathBuf,
    /// Most that the journal may hold, in MiB.
    #[arg(long, env = "GPUHEAL_JOURNAL_MIB_MAX", value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u32).range(16..=65_536))]
    pub journal_mib_max: u32,
    /// Address of health, metrics, webhook and manual requests.
    #[arg(long, env = "GPUHEAL_LISTEN_HTTP", value_name = "ADDR", default_value = "0.0.0.0:8080")]
    pub listen_http: SocketAddr,
    /// File with the bearer token that posts must show; without it nobody may post.
    #[arg(long, env = "GPUHEAL_WEBHOOK_TOKEN_FILE", value_name = "FILE")]
    pub webhook_token_file: Option<PathBuf>,
    /// What is looked at in the cluster.
    #[command(flatten)]
    pub sources: Sources,
    /// How long the Lease lasts without renewal.
    #[arg(long, env = "GPUHEAL_LEASE_DURATION", default_value = "15s", value_parser = span)]
    pub lease_duration: Duration,
    /// After how long without success the leader gives up.
    #[arg(long, env = "GPUHEAL_LEASE_RENEW_DEADLINE", default_value = "10s", value_parser = span)]
    pub lease_renew_deadline: Duration,
    /// How often the Lease is tried.
    #[arg(long, env = "GPUHEAL_LEASE_RETRY", default_value = "2s", value_parser = span)]
    pub lease_retry: Duration,
    /// Least time between two things done to one node, such as 15m; the longer of this and the ConfigMap's counts.
    #[arg(long, env = "GPUHEAL_COOLDOWN", value_parser = span)]
    pub cooldown: Option<Duration>,
    /// Lowest level that is acted on: P0 or P1.
    #[arg(long, env = "GPUHEAL_LEVEL", value_parser = level)]
    pub level: Option<Level>,
    /// Say what is wrong and do nothing.
    #[arg(long, env = "GPUHEAL_NOTIFY_ONLY")]
    pub notify_only: bool,
    /// Written once ready to serve: JSON with the bound address.
    #[arg(long, env = "GPUHEAL_READY_FILE", value_name = "PATH")]
    pub ready_file: Option<PathBuf>,
    /// How it is logged.
    #[arg(long, env = "GPUHEAL_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// What to log, such as info or gpuheal_spoke=debug. The Kubernetes client's own lines are off by default: each failed
    /// call is told by whoever made it, with its cause.
    #[arg(long, env = "GPUHEAL_LOG", default_value = LOG, value_parser = filter)]
    pub log: String,
}

/// How log lines look; the hub's option has the same name and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For machines: an object a line.
    Json,
}

impl Run {
    /// How to elect.
    #[must_use]
    pub fn elector(&self) -> elector::Config {
        elector::Config {
            namespace: self.namespace.clone(),
            lease: kubernetes::LEASE.to_owned(),
            identity: self.replica_id.to_string(),
            duration: self.lease_duration,
            renew_deadline: self.lease_renew_deadline,
            retry: self.lease_retry,
        }
    }

    /// What the flags narrow.
    #[must_use]
    pub const fn flags(&self) -> Flags {
        Flags { cooldown: self.cooldown, level: self.level, notify_only: self.notify_only }
    }

    /// How much the journal may hold.
    #[must_use]
    pub fn journal_limits(&self) -> journal::Limits {
        journal::Limits { bytes_max: u64::from(self.journal_mib_max) << 20, ..journal::Limits::default() }
    }
}

fn span(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| format!("{text:?} is no span like 90s or 15m"))
}

/// As Kubernetes takes it: it becomes part of paths and of YAML.
fn namespace(text: &str) -> Result<String, String> {
    let inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let good =
        (1..=NAMESPACE_MAX).contains(&text.len()) && text.chars().all(inside) && !text.starts_with('-') && !text.ends_with('-');
    if good { Ok(text.to_owned()) } else { Err(format!("{text:?} is no name of a namespace")) }
}

fn http_url(text: &str) -> Result<String, String> {
    let good =
        text.parse::<http::Uri>().is_ok_and(|uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some());
    if good { Ok(text.to_owned()) } else { Err(format!("{text:?} is no URL like http://gpuheal-spoke.gpu-selfhealing:8080")) }
}

fn filter(text: &str) -> Result<String, String> {
    match tracing_subscriber::EnvFilter::try_new(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("{text:?} is no filter like info or gpuheal_spoke=debug: {error}")),
    }
}

fn level(text: &str) -> Result<Level, String> {
    match Level::parse(text) {
        Some(level @ (Level::P0 | Level::P1)) => Ok(level),
        Some(Level::P2) | None => Err("P0 or P1 is allowed: P2 is never acted on".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: [&str; 10] =
        ["gpuheal-spoke", "run", "--hub", "https://hub:1", "--identity", "i", "--replica-id", "r", "--journal", "j"];

    fn run(more: &[&str]) -> Result<Box<Run>, clap::Error> {
        match Args::try_parse_from(LEAST.iter().chain(more))?.command {
            Command::Run(run) => Ok(run),
            Command::Crd | Command::Rights(_) | Command::Doctor(_) => unreachable!("run was asked"),
        }
    }

    #[test]
    fn the_lease_and_the_short_form_are_as_the_flags_say() {
        let plain = run(&[]).unwrap();
        assert_eq!(plain.elector().duration, Duration::from_secs(15));
        assert_eq!(plain.flags(), Flags::default());
        let run = run(&[
            "--cooldown",
            "30m",
            "--level",
            "P0",
            "--notify-only",
            "--exporter",
            "http://h:1=n1",
            "--exporter",
            "http://h:2=n2",
        ])
        .unwrap();
        assert_eq!(run.flags(), Flags { cooldown: Some(Duration::from_secs(1800)), level: Some(Level::P0), notify_only: true });
        assert_eq!(run.sources.exporters.len(), 2);
        assert_eq!(
            (plain.log_format, self::run(&["--log-format", "json"]).unwrap().log_format),
            (LogFormat::Text, LogFormat::Json)
        );
    }

    #[test]
    fn the_commands_of_going_live_are_ones_that_this_spoke_takes() {
        let page = include_str!("../../docs/going-live.md").replace("\\\n", " ");
        let lines: Vec<&str> = page.lines().filter(|line| line.starts_with("gpuheal-spoke ")).collect();
        assert_eq!(lines.len(), 4, "doctor, two replicas, and rights");
        for line in lines {
            let line = line.split(" | ").next().unwrap_or(line);
            Args::try_parse_from(line.split_whitespace()).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
        for file in ["kubectl apply -f deploy/spoke\n", "modes/notify.yaml", "modes/mark.yaml", "modes/heal.yaml"] {
            assert!(page.contains(file), "{file}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_its_flag() {
        for more in [
            ["--cooldown", "soon"],
            ["--level", "P2"],
            ["--hub", "http://hub"],
            ["--exporter", "h"],
            ["--journal-mib-max", "1"],
            ["--log", "]["],
            ["--namespace", "No: name"],
        ] {
            let error = run(&more).unwrap_err().to_string();
            assert!(error.contains(more[0]), "{error}");
        }
    }
}
