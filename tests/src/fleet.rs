//! A whole fleet on one machine: a private Postgres, a development PKI, the hub, and clusters with their spokes. The
//! programs are the shipping ones; what is simulated is named in `cluster.rs` and `exporter.rs`.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use sqlx::PgPool;

use crate::{
    cluster::{Cluster, Kind, Machine, SpokeSettings},
    process::{Process, Programs},
    script::WITHIN,
    seed::Seeded,
    wait,
};

/// Where a run keeps its files; removed at the end unless it is to be looked at.
pub struct Place {
    /// The folder.
    pub dir: PathBuf,
    keep: Option<tempfile::TempDir>,
}

impl Place {
    /// A new folder that goes when the run ends. Nobody else may look into it: keys and a token are in there. Where Postgres
    /// runs as a user of its own, which it does for root, that user must pass through.
    pub fn temporary() -> Result<Self> {
        let mode = if rustix::process::getuid().is_root() { 0o711 } else { 0o700 };
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
        let dir = tempfile::Builder::new().prefix("gpuheal-").permissions(permissions).tempdir()?;
        Ok(Self { dir: dir.path().to_owned(), keep: Some(dir) })
    }

    /// The error of a run that failed while `doing`, and where its logs are: they are left there.
    pub fn left_for(&mut self, error: anyhow::Error, doing: &str) -> anyhow::Error {
        self.keep();
        error.context(format!("{doing}; the logs are in {}", self.dir.display()))
    }

    /// Leaves the folder there after the run.
    pub fn keep(&mut self) {
        if let Some(dir) = self.keep.take() {
            let _path = dir.keep();
        }
    }
}

/// A cluster to start.
pub struct ClusterPlan {
    /// Its id.
    pub id: &'static str,
    /// What serves it.
    pub kind: Kind,
    /// Its nodes.
    pub machines: Vec<Machine>,
}

/// How a fleet is started.
pub struct Plan {
    /// Seed of everything that is drawn.
    pub seed: u64,
    /// The fleet's policy.
    pub policy: String,
    /// Its clusters.
    pub clusters: Vec<ClusterPlan>,
    /// Lease duration, renew deadline, retry of the spokes.
    pub lease: [&'static str; 3],
}

/// The running fleet. Everything that it started ends with it.
pub struct Fleet {
    /// Its clusters, in the order of the plan.
    pub clusters: Vec<Cluster>,
    /// Its database.
    pub pool: PgPool,
    /// Where `psql` finds it.
    pub database_url: String,
    /// The hub.
    pub hub: Process,
    /// Where the hub serves people.
    pub fleet_address: String,
    /// Where the hub serves /metrics.
    pub http_address: String,
    /// Everything that the run wrote.
    pub place: Place,
    token: String,
    settings: Vec<SpokeSettings>,
    link_address: String,
    programs: Programs,
    _postgres: Option<testpg::Postgres>,
}

impl Fleet {
    /// Starts all of it and waits until every cluster's leader is attached and its nodes are known to the hub.
    pub async fn start(plan: Plan, mut say: impl FnMut(&str)) -> Result<Self> {
        let mut fleet = Self::without_spokes(plan, None, &mut say).await?;
        fleet.start_spokes(&mut say).await?;
        Ok(fleet)
    }

    /// Starts two spokes for each cluster and waits until its leader is attached and its nodes are known to the hub.
    pub async fn start_spokes(&mut self, mut say: impl FnMut(&str)) -> Result<()> {
        for (cluster, settings) in self.clusters.iter_mut().zip(&self.settings) {
            say(&format!("two spokes for cluster {}", cluster.id));
            cluster.start_spokes(settings).await?;
        }
        for cluster in &self.clusters {
            cluster.leader().await?;
            taken_over(&self.pool, cluster).await?;
        }
        Ok(())
    }

    /// The same but for the spokes. Without a database that is there already it gets a Postgres of its own.
    pub async fn without_spokes(plan: Plan, database_url: Option<String>, mut say: impl FnMut(&str)) -> Result<Self> {
        let place = Place::temporary()?;
        let dir = place.dir.clone();
        let (postgres, database_url) = match database_url {
            Some(url) => (None, url),
            None => {
                say("a private Postgres");
                let at = dir.join("postgres");
                let postgres = tokio::task::spawn_blocking(move || testpg::Postgres::start(&at)).await??;
                let url = postgres.url();
                (Some(postgres), url)
            }
        };
        let pool = sqlx::postgres::PgPoolOptions::new().max_connections(4).connect(&database_url).await?;
        say("a development PKI");
        let ids: Vec<String> = plan.clusters.iter().map(|cluster| cluster.id.to_owned()).collect();
        let pki = dir.join("pki");
        let programs = Programs::built()?;
        make_pki(&programs, &pki, &ids)?;
        let token = hex::encode(gpuheal_proto::ids::digest(&["webhook token", &plan.seed.to_string()]));
        let token_file = dir.join("webhook.token");
        std::fs::write(&token_file, &token)?;
        std::fs::write(dir.join("policy.yaml"), &plan.policy)?;
        std::fs::write(dir.join("database.url"), &database_url)?;
        say("the hub");
        migrate(&programs, &dir)?;
        let (ports, hub) = first_hub(&programs, &dir, "hub").await?;
        let mut clusters = vec![];
        let mut settings = vec![];
        for planned in plan.clusters {
            let kind = if planned.kind == Kind::Real { "Kubernetes' own control plane" } else { "kubesim" };
            let gpu_nodes = planned.machines.iter().filter(|machine| machine.gpus > 0).count();
            say(&format!("cluster {}: {gpu_nodes} GPU nodes on {kind}", planned.id));
            clusters.push(Cluster::start(planned.id, planned.kind, &dir, plan.seed, planned.machines).await?);
            settings.push(SpokeSettings {
                hub: format!("https://{}", ports.link),
                identity: pki.join("clusters").join(planned.id),
                token_file: token_file.clone(),
                lease: plan.lease,
                program: programs.spoke.clone(),
                dies_at: None,
                own_user: false,
            });
        }
        Ok(Self {
            clusters,
            pool,
            database_url,
            hub,
            fleet_address: ports.fleet.clone(),
            http_address: ports.http.clone(),
            place,
            token,
            settings,
            link_address: ports.link,
            programs,
            _postgres: postgres,
        })
    }

    /// A cluster by its id.
    pub fn cluster(&self, id: &str) -> Result<&Cluster> {
        self.clusters.iter().find(|cluster| cluster.id == id).with_context(|| format!("no cluster {id}"))
    }

    /// A cluster by its id, to change.
    pub fn cluster_mut(&mut self, id: &str) -> Result<(&mut Cluster, SpokeSettings)> {
        let at = self.clusters.iter().position(|cluster| cluster.id == id).with_context(|| format!("no cluster {id}"))?;
        Ok((&mut self.clusters[at], self.settings[at].clone()))
    }

    /// Kills the hub as a crash would.
    pub fn kill_hub(&mut self) -> Result<()> {
        self.hub.kill()
    }

    /// Starts the hub again where it was.
    pub async fn start_hub_again(&mut self) -> Result<()> {
        migrate(&self.programs, &self.place.dir)?;
        let program = self.programs.hub.clone();
        self.start_hub_as(&program, None).await
    }

    /// Starts this program as the hub, where the one before was, to die at a fail point if it is the crash tests'.
    pub async fn start_hub_as(&mut self, program: &Path, dies_at: Option<&str>) -> Result<()> {
        let ports =
            HubPorts { link: self.link_address.clone(), fleet: self.fleet_address.clone(), http: self.http_address.clone() };
        let dir = &self.place.dir;
        self.hub = Process::start_dying(dir, "hub", program, &hub_args(dir, "hub", &ports), dies_at)?;
        self.hub.ready().await?;
        Ok(())
    }

    /// POSTs a webhook body to one address, with the token; gives the answer's status.
    pub async fn post_alert(&self, address: &str, body: &serde_json::Value) -> Result<u16> {
        self.post(address, "/api/v1/alert", Some(&self.token), body).await.map(|(status, _)| status)
    }

    /// POSTs to the manual endpoint; gives the answer's status and body.
    pub async fn post_process(
        &self,
        address: &str,
        with_token: bool,
        body: &serde_json::Value,
    ) -> Result<(u16, serde_json::Value)> {
        self.post(address, "/api/v1/process", with_token.then_some(self.token.as_str()), body).await
    }

    /// POSTs any bytes to the webhook, with the token; gives the answer's status and text.
    pub async fn post_bytes(&self, address: &str, body: Vec<u8>) -> Result<(u16, String)> {
        let client = reqwest::Client::builder().timeout(WITHIN).build()?;
        let request = client.post(format!("http://{address}/api/v1/alert")).bearer_auth(&self.token).body(body);
        let answer = request.send().await?;
        Ok((answer.status().as_u16(), answer.text().await?))
    }

    /// Runs gpuhealctl as the administrator; gives its exit code, output and errors.
    pub fn ctl(&self, args: &[&str]) -> Result<(i32, String, String)> {
        let output = std::process::Command::new(&self.programs.ctl)
            .args(["--timeout-s", "120", "--hub", &format!("https://{}", self.fleet_address), "--identity"])
            .arg(self.place.dir.join("pki/users/admin"))
            .args(args)
            .stdin(std::process::Stdio::null())
            .output()
            .context("running gpuhealctl")?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok((output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr)))
    }

    /// Refuses every certificate that a cluster's spokes have shown until now.
    pub fn revoke(&self, cluster: &str) -> Result<()> {
        let output = std::process::Command::new(&self.programs.hub)
            .args(["revoke", "--database-url-file"])
            .arg(self.place.dir.join("database.url"))
            .args([cluster, "--by", "measuring", "--reason", "measuring"])
            .stdin(std::process::Stdio::null())
            .output()
            .context("running gpuheal-hub revoke")?;
        if !output.status.success() {
            bail!("gpuheal-hub revoke failed: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    }

    async fn post(
        &self,
        address: &str,
        path: &str,
        token: Option<&str>,
        body: &serde_json::Value,
    ) -> Result<(u16, serde_json::Value)> {
        let client = reqwest::Client::builder().timeout(WITHIN).build()?;
        let mut request = client.post(format!("http://{address}{path}")).json(body);
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        let answer = request.send().await?;
        let status = answer.status().as_u16();
        let text = answer.text().await?;
        Ok((status, serde_json::from_str(&text).unwrap_or(serde_json::Value::String(text))))
    }

    /// The file that holds the key with which the hub signs commands: a run plays the thief of it.
    #[must_use]
    pub fn signing_key(&self) -> PathBuf {
        self.place.dir.join("pki/signing/command.key")
    }

    /// Ends everything in good order, spokes first.
    pub fn stop(mut self) -> Result<()> {
        for cluster in &mut self.clusters {
            for replica in cluster.replicas().values_mut() {
                replica.process.stop()?;
            }
        }
        self.hub.stop()
    }
}

/// Waits until the hub knows every GPU node of a cluster, and all else that it has: before that nothing new begins there, and a person
/// who asks is told so.
pub(crate) async fn taken_over(pool: &PgPool, cluster: &Cluster) -> Result<()> {
    let want = i64::try_from(cluster.gpu_nodes().len())?;
    wait::until(&format!("the hub to know the {want} GPU nodes of {}", cluster.id), WITHIN, || async {
        let known: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM nodes WHERE cluster_id = $1 AND gone_at IS NULL AND jsonb_array_length(gpus) > 0",
        )
        .bind(&cluster.id)
        .fetch_one(pool)
        .await?;
        Ok((known >= want).then_some(()))
    })
    .await?;
    wait::until(&format!("the hub to take {} over", cluster.id), WITHIN, || async {
        let whole: bool =
            sqlx::query_scalar("SELECT COALESCE(taken_over_term = hub_term(), false) FROM clusters WHERE cluster_id = $1")
                .bind(&cluster.id)
                .fetch_one(pool)
                .await?;
        Ok(whole.then_some(()))
    })
    .await
}

/// Certificates and keys of a hub and of these clusters' spokes, as `gpuhealctl pki init` makes them.
pub(crate) fn make_pki(programs: &Programs, dir: &Path, clusters: &[String]) -> Result<()> {
    let mut command = std::process::Command::new(&programs.ctl);
    command.args(["pki", "init", "--dir"]).arg(dir);
    for cluster in clusters {
        command.args(["--cluster", cluster]);
    }
    let made = command.stdin(std::process::Stdio::null()).output()?;
    if !made.status.success() {
        bail!("gpuhealctl pki init failed: {}", String::from_utf8_lossy(&made.stderr));
    }
    Ok(())
}

/// Ports are drawn from these: below those that the kernel gives to connections that go out (32768 and up), so that nobody
/// sits on the hub's port while the hub is away.
const PORTS: (u64, u64) = (20_000, 32_000);
/// Draws for three ports: on a machine on which half of them are taken sixty-four draws are far too many.
const PORT_DRAWS: usize = 64;
/// Attempts at a hub: somebody else may take a port between its choice and its use.
const HUB_ATTEMPTS: u32 = 3;

/// Starts a hub of the run, on other ports when those that were chosen turn out to be taken.
pub(crate) async fn first_hub(programs: &Programs, dir: &Path, name: &str) -> Result<(HubPorts, Process)> {
    let mut attempt = 1;
    loop {
        let ports = HubPorts::free()?;
        let mut hub = start_hub(programs, dir, name, &ports)?;
        match hub.ready().await {
            Ok(_) => return Ok((ports, hub)),
            Err(_) if attempt < HUB_ATTEMPTS => attempt += 1,
            Err(error) => return Err(error),
        }
    }
}

/// Where a hub listens.
#[derive(Clone, Debug)]
pub(crate) struct HubPorts {
    pub(crate) link: String,
    pub(crate) fleet: String,
    pub(crate) http: String,
}

impl HubPorts {
    /// Three free ports. Fixed for the run, since the hub is killed and started again under its spokes.
    fn free() -> Result<Self> {
        let nanos = chrono::Utc::now().timestamp_subsec_nanos();
        let mut draw = Seeded::new((u64::from(std::process::id()) << 32) | u64::from(nanos));
        let mut held = vec![];
        for _ in 0..PORT_DRAWS {
            // Those that are taken are passed over; those that are not are held until there are three.
            held.extend(std::net::TcpListener::bind(format!("127.0.0.1:{}", draw.between(PORTS.0, PORTS.1))));
            if held.len() == 3 {
                break;
            }
        }
        let addresses: Vec<String> = held.iter().map(|l| l.local_addr().map(|a| a.to_string())).collect::<Result<_, _>>()?;
        let [link, fleet, http] = addresses.try_into().map_err(|_| anyhow::anyhow!("three ports"))?;
        Ok(Self { link, fleet, http })
    }
}

/// Brings the schema of the database in `dir/database.url` to the hub's.
pub(crate) fn migrate(programs: &Programs, dir: &Path) -> Result<()> {
    let migrated = std::process::Command::new(&programs.hub)
        .args(["migrate", "--database-url-file"])
        .arg(dir.join("database.url"))
        .stdin(std::process::Stdio::null())
        .output()?;
    if !migrated.status.success() {
        bail!("gpuheal-hub migrate failed: {}", String::from_utf8_lossy(&migrated.stderr));
    }
    Ok(())
}

/// Starts the hub `name`.
pub(crate) fn start_hub(programs: &Programs, dir: &Path, name: &str, ports: &HubPorts) -> Result<Process> {
    Process::start(dir, name, &programs.hub, &hub_args(dir, name, ports))
}

/// It finds its database in `dir/NAME.database.url`, or else in `dir/database.url`.
fn hub_args(dir: &Path, name: &str, ports: &HubPorts) -> Vec<String> {
    let path = |tail: &str| dir.join(tail).display().to_string();
    let own = format!("{name}.database.url");
    let database = if dir.join(&own).exists() { path(&own) } else { path("database.url") };
    [
        "serve",
        "--database-url-file",
        &database,
        "--identity",
        &path("pki/hub"),
        "--signing-key",
        &path("pki/signing/command.key"),
        "--policy",
        &path("policy.yaml"),
        "--listen-link",
        &ports.link,
        "--listen-fleet",
        &ports.fleet,
        "--listen-http",
        &ports.http,
    ]
    .map(str::to_owned)
    .to_vec()
}
