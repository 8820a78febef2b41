//! The command line. Every environment variable that counts is named here.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use gpuheal_proto::{ids::ClusterId, workload::Workload};

/// Heading of what says where the hub is: told apart from what a verb itself takes.
const CONNECTION: &str = "Connection";

/// See faults, explain decisions, act on nodes and change policy of a gpu-selfhealing hub.
#[derive(Debug, Parser)]
#[command(name = "gpuhealctl", version, about, max_term_width = 100)]
pub struct Args {
    /// Where and as whom.
    #[command(flatten)]
    pub reach: Reach,
    /// Output format.
    #[arg(short, long, global = true, value_enum, default_value_t = Format::Table)]
    pub output: Format,
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// Where the hub is and who is asking.
#[derive(Clone, Debug, ClapArgs)]
pub struct Reach {
    /// The hub's fleet listener, https://HOST:PORT
    #[arg(long, global = true, env = "GPUHEAL_HUB", value_name = "URL", help_heading = CONNECTION)]
    pub hub: Option<String>,
    /// Directory with tls.crt, tls.key and ca.crt of a user
    #[arg(long, global = true, env = "GPUHEAL_IDENTITY", value_name = "DIR", help_heading = CONNECTION)]
    pub identity: Option<PathBuf>,
    /// Seconds that the whole call may take
    #[arg(
        long, global = true, env = "GPUHEAL_TIMEOUT_S", value_name = "SECONDS", default_value_t = 10, help_heading = CONNECTION,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub timeout_s: u32,
}

/// How results are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Columns for people.
    Table,
    /// For scripts; field names are those of the API.
    Json,
    /// The same as YAML.
    Yaml,
}

/// What can be done.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Development certificates and keys
    #[command(subcommand)]
    Pki(Pki),
    /// List clusters
    Clusters,
    /// List what each cluster's spoke watches, and how fresh it is
    Sources {
        /// Of one cluster
        #[arg(long)]
        cluster: Option<ClusterId>,
        /// Only those that are not fresh
        #[arg(long)]
        stale: bool,
        /// How many at most
        #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
    },
    /// List GPU nodes
    Nodes {
        /// Of one cluster
        #[arg(long)]
        cluster: Option<ClusterId>,
        /// Only those that are quarantined
        #[arg(long)]
        out: bool,
        /// How many at most
        #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
    },
    /// List incidents, newest first
    Incidents(Filter),
    /// List commands, newest first
    Commands(Filter),
    /// Say what was decided, why, and what would change it
    Explain {
        /// A node's name, with --cluster
        node: Option<String>,
        /// The node's cluster
        #[arg(long)]
        cluster: Option<ClusterId>,
        /// An incident's id
        #[arg(long, conflicts_with_all = ["node", "fault"])]
        incident: Option<String>,
        /// A fault's key
        #[arg(long, conflicts_with = "node")]
        fault: Option<String>,
    },
    /// Act on a node by hand; the same guards hold
    Process {
        /// The node's name
        node: String,
        /// What to do
        #[arg(long, value_enum)]
        action: ProcessAction,
        /// What to restart: deployment/NAMESPACE/NAME, or a statefulset or daemonset; may be repeated
        #[arg(long, value_name = "KIND/NAMESPACE/NAME", required_if_eq("action", "restart"))]
        workload: Vec<Workload>,
        /// Delete what budgets still keep at the drain's deadline, where policy allows that; for evict
        #[arg(long)]
        past_budgets: bool,
        /// Act although a cooldown runs
        #[arg(long)]
        override_cooldown: bool,
        /// Whose, why and under which id
        #[command(flatten)]
        request: Request,
    },
    /// Undo what we did to a node: label, taint and our own cordon
    Release {
        /// The node's name
        node: String,
        /// Whose, why and under which id
        #[command(flatten)]
        request: Request,
    },
    /// Stop the whole fleet: nothing harmful is begun anywhere, and what is under way is called off
    Stop {
        /// Why; everybody who asks why nothing is done reads it
        #[arg(long, value_parser = said)]
        reason: String,
    },
    /// Let a stopped fleet go on
    Resume {
        /// Why; it is kept in the audit
        #[arg(long, value_parser = said)]
        reason: String,
    },
    /// The fleet's policy
    #[command(subcommand)]
    Policy(Policy),
    /// What was done, by whom, and the proof that the record is whole
    #[command(subcommand)]
    Audit(Audit),
}

/// A text that says something: whoever reads the audit must not find nothing.
fn said(text: &str) -> Result<String, &'static str> {
    if text.trim().is_empty() { Err("it is empty: say why") } else { Ok(text.to_owned()) }
}

/// Which incidents or commands.
#[derive(Clone, Debug, ClapArgs)]
pub struct Filter {
    /// Of one cluster
    #[arg(long)]
    pub cluster: Option<ClusterId>,
    /// Of one node, with --cluster
    #[arg(long, requires = "cluster")]
    pub node: Option<String>,
    /// Only those that are not finished
    #[arg(long)]
    pub open: bool,
    /// How many at most
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

/// What a request by hand must say.
#[derive(Clone, Debug, ClapArgs)]
pub struct Request {
    /// The node's cluster
    #[arg(long)]
    pub cluster: ClusterId,
    /// Why; it is kept in the audit
    #[arg(long, value_parser = said)]
    pub reason: String,
    /// Repeat a request safely: the same id gives the first answer again (random unless given)
    #[arg(long, value_name = "ID")]
    pub request_id: Option<String>,
}

/// What a person may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProcessAction {
    /// Label and taint
    Mark,
    /// Mark, then evict GPU pods
    Evict,
    /// Undo exactly what we did
    Release,
    /// Post an Event
    Notify,
    /// Roll out workloads anew, named by --workload
    Restart,
}

impl ProcessAction {
    /// The word of the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Mark => "mark",
            Self::Evict => "evict",
            Self::Release => "release",
            Self::Notify => "notify",
            Self::Restart => "restart",
        }
    }
}

/// `pki`.
#[derive(Debug, Subcommand)]
pub enum Pki {
    /// Make a CA, certificates and a signing key for development; not for production
    Init {
        /// Where to write
        #[arg(long)]
        dir: PathBuf,
        /// A cluster's id; may be repeated
        #[arg(long, required = true, num_args = 1..)]
        cluster: Vec<ClusterId>,
        /// A user beside admin; may be repeated
        #[arg(long, num_args = 1..)]
        user: Vec<String>,
        /// Another DNS name of the hub; may be repeated
        #[arg(long, num_args = 1..)]
        dns: Vec<String>,
        /// How many days everything is good for
        #[arg(long, default_value_t = crate::pki::DAYS_DEFAULT)]
        days: u32,
        /// Trust domain of the SPIFFE ids
        #[arg(long, default_value = crate::pki::TRUST_DOMAIN)]
        trust_domain: String,
        /// Replace a PKI that is there
        #[arg(long)]
        force: bool,
    },
}

/// `policy`.
#[derive(Debug, Subcommand)]
pub enum Policy {
    /// Check a policy and put it in force
    Apply {
        /// The file, - for standard input
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
        /// Only check it
        #[arg(long)]
        dry_run: bool,
    },
    /// Print a policy as it was applied
    Get {
        /// Which one; the one in force unless given
        #[arg(long, default_value_t = 0)]
        revision: u64,
    },
}

/// `audit`.
#[derive(Debug, Subcommand)]
pub enum Audit {
    /// List entries of a cluster's chain, oldest first; of the fleet's own unless a cluster or an incident is named
    List {
        /// Of which cluster
        #[arg(long)]
        cluster: Option<ClusterId>,
        /// Only what concerns this incident
        #[arg(long)]
        incident: Option<String>,
        /// How many at most
        #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
    },
    /// Check a cluster's chain from its first entry on; the fleet's own and all clusters' unless one is named
    Verify {
        /// Of which cluster
        #[arg(long)]
        cluster: Option<ClusterId>,
    },
}
