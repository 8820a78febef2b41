//! The script: ten ways in which a fault may come, each with the outcome that it must have. The demo plays all of them,
//! the end-to-end tests play them one by one. A scene that ends otherwise is an error with what was seen instead.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{
    cluster::{Cluster, Kind, Machine},
    facts,
    fleet::{ClusterPlan, Fleet, Plan},
    seed::Seeded,
    wait,
};

mod a_quarantine;
mod b_many_ways;
mod c_partly_resolved;
mod d_temperature;
mod e_burst;
mod f_leader_killed;
mod g_hub_killed;
mod h_forged;
mod i_by_hand;
mod j_release;
mod setting;

/// The policy of the script: decide.md's defaults with times short enough to watch.
pub const POLICY: &str = include_str!("script/policy.yaml");
/// Lease duration, renew deadline and retry of the script's spokes: a takeover is shown in seconds, not in fifteen.
pub const LEASE: [&str; 3] = ["8s", "5s", "1s"];
/// The same for tests, which must pass on a machine ten times slower: there a renewal takes as long as these leave it, and
/// a replica that loses its Lease ends.
pub const PATIENT_LEASE: [&str; 3] = ["20s", "12s", "1s"];
/// How long any one outcome may take: a takeover and a drain on a busy two-core machine are under 20 s, and slower machines
/// are given nine times that.
pub const WITHIN: Duration = Duration::from_secs(180);

/// Longest pause before a scene: half of what the script's spokes wait between two looks at an exporter.
const PAUSE_MS_MAX: u64 = 500;

/// What came of one fault, for the tables at the end.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Outcome {
    /// Letter of the scene.
    pub scene: char,
    /// The fault in short.
    pub fault: String,
    /// Cluster and node.
    pub node: String,
    /// What was decided.
    pub decided: String,
    /// Why, in the hub's words.
    pub why: String,
    /// What was done.
    pub done: String,
    /// From the exporter's first page with the fault to the taint, in milliseconds.
    pub taint_ms: Option<u64>,
    /// From the same moment to the last GPU pod gone.
    pub drained_ms: Option<u64>,
    /// What was refused or skipped, and why.
    pub refused: String,
}

/// A fleet with the script's names, and what has come of it so far.
pub struct Stage {
    /// The fleet.
    pub fleet: Fleet,
    /// Outcomes so far.
    pub outcomes: Vec<Outcome>,
    /// Draws of the seed.
    pub seeded: Seeded,
}

/// One scene: its letter, what it shows, and how it is played.
pub struct Scene {
    /// Its letter.
    pub letter: char,
    /// What it shows.
    pub title: &'static str,
}

/// All scenes in their order.
pub const SCENES: [Scene; 10] = [
    Scene { letter: 'a', title: "Xid 79 on a busy node: quarantined once, GPU pods moved within their PDB" },
    Scene { letter: 'b', title: "the same fault by scrape, three webhooks and an HA twin: one incident, one command" },
    Scene { letter: 'c', title: "a firing group with a resolved alert inside: only the firing one counts" },
    Scene { letter: 'd', title: "82 °C is warned and watched; 90 °C with a second field is acted on" },
    Scene { letter: 'e', title: "Xid 31 and 45 on ten nodes: recorded, nobody isolated" },
    Scene { letter: 'f', title: "the leading spoke is killed mid-drain: the other goes on, no pod evicted twice" },
    Scene { letter: 'g', title: "the hub is killed between ack and command: nothing lost, nothing twice" },
    Scene { letter: 'h', title: "forged, misaddressed, expired, replayed and over-ceiling commands: refused, and the hub knows" },
    Scene { letter: 'i', title: "a request by hand, without and with its token" },
    Scene { letter: 'j', title: "release: what was ours goes, a person's cordon stays" },
];

/// The fleet that the scenes of one cluster need, and no more.
#[must_use]
pub fn plan_of(seed: u64, cluster: &str, kind: Kind) -> Plan {
    let mut plan = plan(seed, kind);
    plan.clusters.retain(|planned| planned.id == cluster);
    plan
}

/// The fleet that the script is played on; `first` serves the first cluster.
#[must_use]
pub fn plan(seed: u64, first: Kind) -> Plan {
    let mut seeded = Seeded::new(seed);
    let mut machines = |cluster: &str, count: u32, models: &[&'static str]| -> Vec<Machine> {
        (0..count)
            .map(|index| {
                let model = *seeded.one_of(models);
                let short = model.split([' ', '-']).nth(1).unwrap_or("gpu").to_lowercase();
                let name = format!("{cluster}-{short}-{index:02}-{:04x}", seeded.between(0, 0xffff));
                Machine { name, gpus: if seeded.between(0, 1) == 0 { 4 } else { 8 }, model }
            })
            .collect()
    };
    let mut alpha = machines("alpha", 12, &["NVIDIA H100 80GB HBM3"]);
    alpha.push(Machine { name: "alpha-cpu-00".into(), gpus: 0, model: "" });
    let beta = machines("beta", 6, &["NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"]);
    let gamma = machines("gamma", 4, &["NVIDIA H200", "NVIDIA L40S"]);
    Plan {
        seed,
        policy: POLICY.to_owned(),
        clusters: vec![
            ClusterPlan { id: "alpha", kind: first, machines: alpha },
            ClusterPlan { id: "beta", kind: Kind::Sim, machines: beta },
            ClusterPlan { id: "gamma", kind: Kind::Sim, machines: gamma },
        ],
        lease: LEASE,
    }
}

impl Stage {
    /// Sets the stage on a running fleet.
    #[must_use]
    pub fn new(fleet: Fleet, seed: u64) -> Self {
        Self { fleet, outcomes: vec![], seeded: Seeded::new(seed ^ 0x5ce7e) }
    }

    /// Plays one scene by its letter, after a pause that is drawn: where in the rounds of spokes and hub its fault falls
    /// comes from the seed, what comes of it does not.
    pub async fn play(&mut self, letter: char) -> Result<()> {
        tokio::time::sleep(Duration::from_millis(self.seeded.between(0, PAUSE_MS_MAX))).await;
        let played = match letter {
            'a' => a_quarantine::play(self).await,
            'b' => b_many_ways::play(self).await,
            'c' => c_partly_resolved::play(self).await,
            'd' => d_temperature::play(self).await,
            'e' => e_burst::play(self).await,
            'f' => f_leader_killed::play(self).await,
            'g' => g_hub_killed::play(self).await,
            'h' => h_forged::play(self).await,
            'i' => i_by_hand::play(self).await,
            'j' => j_release::play(self).await,
            other => bail!("there is no scene {other:?}: they go from a to j"),
        };
        played.with_context(|| format!("scene {letter}"))
    }

    /// One of a node's GPUs: every machine of the script has at least four.
    pub(crate) fn draw_gpu(&mut self) -> usize {
        usize::try_from(self.seeded.between(0, 3)).expect("a number below four fits")
    }

    /// A span of pods: how long they are given to end, or need for it.
    pub(crate) fn draw_span(&mut self, low: u32, high: u32) -> u32 {
        u32::try_from(self.seeded.between(low.into(), high.into())).expect("it lies between two that fit")
    }

    /// A GPU node of a cluster, by its place.
    pub(crate) fn node(&self, cluster: &str, index: usize) -> Result<String> {
        let nodes = self.fleet.cluster(cluster)?.gpu_nodes();
        nodes.get(index).cloned().with_context(|| format!("{cluster} has no GPU node {index}"))
    }

    /// Waits for our taint on a node.
    pub(crate) async fn tainted(&self, cluster: &str, node: &str, since: Instant) -> Result<Instant> {
        let observer = &self.fleet.cluster(cluster)?.observer;
        let seen = wait::until(&format!("our taint on {node}"), WITHIN, || async { Ok(observer.tainted_at(node, since)) }).await;
        match seen {
            Ok(at) => Ok(at),
            Err(error) => Err(error.context(self.story(cluster, node).await)),
        }
    }

    /// Waits until these pods, by UID, are gone; gives the moment when the last one was.
    pub(crate) async fn gone(&self, cluster: &str, node: &str, uids: &[String]) -> Result<Instant> {
        let observer = &self.fleet.cluster(cluster)?.observer;
        let seen = wait::until(&format!("{} pods to leave {node}", uids.len()), WITHIN, || async {
            let pods = observer.pods_of(node);
            let gone: Option<Vec<Instant>> = uids.iter().map(|uid| pods.get(uid).and_then(|pod| pod.gone_at)).collect();
            Ok(gone.and_then(|gone| gone.into_iter().max()))
        })
        .await;
        match seen {
            Ok(at) => Ok(at),
            Err(error) => Err(error.context(self.story(cluster, node).await)),
        }
    }

    /// Waits until a node's one command of this action has succeeded.
    pub(crate) async fn succeeded(&self, cluster: &str, node: &str, action: &str) -> Result<facts::Command> {
        let seen = wait::until(&format!("the {action} command for {node} to succeed"), WITHIN, || async {
            let commands = facts::commands(&self.fleet.pool, cluster, node).await?;
            Ok(commands.into_iter().find(|command| command.action == action && command.state == "SUCCEEDED"))
        })
        .await;
        match seen {
            Ok(command) => Ok(command),
            Err(error) => Err(error.context(self.story(cluster, node).await)),
        }
    }

    /// The one incident of a node, and the number of its commands of one action: the proof of "once".
    pub(crate) async fn once(&self, cluster: &str, node: &str, action: &str) -> Result<facts::Incident> {
        let incidents = facts::incidents(&self.fleet.pool, cluster, node).await?;
        let commands = facts::commands(&self.fleet.pool, cluster, node).await?;
        let of_action = commands.iter().filter(|command| command.action == action).count();
        ensure!(of_action == 1, "{node} got {of_action} {action} commands instead of one: {commands:#?}");
        // The spoke's word may be here before the observer's own watch has shown what it did.
        let observer = &self.fleet.cluster(cluster)?.observer;
        let times = wait::until(&format!("our taint on {node} to be seen"), WITHIN, || async {
            Ok(Some(observer.times_tainted(node)).filter(|times| *times > 0))
        })
        .await?;
        ensure!(times == 1, "{node} was tainted {times} times instead of once");
        match <[facts::Incident; 1]>::try_from(incidents) {
            Ok([incident]) => Ok(incident),
            Err(incidents) => bail!("{node} has {} incidents instead of one: {incidents:#?}", incidents.len()),
        }
    }

    /// Everything that Postgres says about a node, for an error.
    async fn story(&self, cluster: &str, node: &str) -> String {
        let pool = &self.fleet.pool;
        let faults = facts::faults(pool, cluster, node).await;
        let incidents = facts::incidents(pool, cluster, node).await;
        let commands = facts::commands(pool, cluster, node).await;
        format!("what Postgres says about {cluster}/{node}: faults {faults:#?}, incidents {incidents:#?}, commands {commands:#?}")
    }
}

/// Milliseconds from one moment to a later one.
pub(crate) fn ms(from: Instant, to: Instant) -> u64 {
    u64::try_from(to.saturating_duration_since(from).as_millis()).unwrap_or(u64::MAX)
}

/// UIDs of the pods of these apps on a node.
pub(crate) async fn uids_of(cluster: &Cluster, node: &str, apps: &[&str]) -> Result<Vec<String>> {
    let pods = cluster.pods_on(node).await?;
    let of_apps = pods
        .iter()
        .filter(|pod| pod.metadata.labels.iter().flatten().any(|(key, app)| key == "app" && apps.contains(&app.as_str())));
    Ok(of_apps.filter_map(|pod| pod.metadata.uid.clone()).collect())
}

#[cfg(test)]
mod tests {
    use gpuheal_hub_core::policy::Policy;

    #[test]
    fn the_policies_of_script_and_measurement_are_valid() {
        for text in [super::POLICY, include_str!("measure/policy.yaml")] {
            assert_eq!(Policy::parse(text).err(), None);
        }
    }
}
