//! etcd, kube-apiserver, kube-controller-manager and kube-scheduler as child processes on loopback.
//! Ready about three seconds after `start`; ended when dropped, or with the test process however it ends.
//! Has no kubelet (see `kubelet.rs`) and no node lifecycle controller: nobody renews the nodes.
//! Works as root and as anybody else; needs no container and no network.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::{assets, connect, raw};
pub(crate) use files::write_private;
use files::{Files, Who};
use process::{Part, Reaper};
pub use record::Mark;

mod files;
mod flags;
mod process;
mod record;
mod run_dir;

/// From the first process to a cluster that answers. 3 s is usual; a machine that compiles on every
/// core beside it took 20 s, and there are slower ones.
const READY: Duration = Duration::from_secs(240);

/// Between two looks at a starting part.
const PAUSE: Duration = Duration::from_millis(25);

/// Starts, each with new ports, before giving up: somebody else may take a port between its choice and its use.
const ATTEMPTS: u32 = 3;

/// Why there is no control plane.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its programs could not be found or built.
    #[error(transparent)]
    Assets(#[from] assets::Error),
    /// Its folder could not be filled.
    #[error(transparent)]
    Files(#[from] files::Error),
    /// A part did not start or did not stay.
    #[error(transparent)]
    Process(#[from] process::Error),
    /// No port, or the folder cannot be made.
    #[error("preparing {dir}")]
    Prepare {
        /// The control plane's folder.
        dir: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It answers, but is not ready in time.
    #[error("not ready after {} s: {last}", READY.as_secs())]
    NotReady {
        /// The last answer, or the end of the API server's log.
        last: String,
    },
}

/// A running control plane.
#[derive(Debug)]
pub struct ControlPlane {
    files: Files,
    audit_log: PathBuf,
    // In the order in which they end: those that talk to the API server before it, and the reaper last.
    _scheduler: Part,
    _controllers: Part,
    _api_server: Part,
    _etcd: Part,
    _reaper: Reaper,
}

impl ControlPlane {
    /// Starts one with its data, keys and logs in `dir`, and waits until it is ready.
    ///
    /// Blocks (minutes, if its programs must be built first). May be called from async code in a test.
    pub fn start(dir: &Path) -> Result<Self, Error> {
        let assets = assets::locate()?;
        let mut attempt = 1;
        loop {
            match Self::start_once(&assets, &dir.join(format!("start-{attempt}"))) {
                Err(Error::Process(process::Error::Ended { .. })) if attempt < ATTEMPTS => attempt += 1,
                outcome => return outcome,
            }
        }
    }

    /// The one that all tests of a process share: started by the first who asks.
    ///
    /// Its folder is under `target/kube/run` and stays there for a look at the logs, until a later run
    /// finds that its process is gone.
    ///
    /// # Panics
    /// When it cannot be started: a test must fail then, not skip.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<ControlPlane> = OnceLock::new();
        SHARED.get_or_init(|| {
            let dir = run_dir::fresh();
            Self::start(&dir).unwrap_or_else(|error| panic!("no real control plane: {}", chain(&error)))
        })
    }

    fn start_once(assets: &Path, dir: &Path) -> Result<Self, Error> {
        let prepared = std::fs::create_dir_all(dir).and_then(|()| free_ports::<5>());
        let [etcd_port, peer_port, api_port, controllers_port, scheduler_port] =
            prepared.map_err(|source| Error::Prepare { dir: dir.to_owned(), source })?;
        let files = Files::write(dir, api_port)?;
        let began = Instant::now();

        let mut etcd = Part::start(assets, dir, "etcd", &flags::etcd(&files, etcd_port, peer_port))?;
        wait_for_port(&mut etcd, etcd_port, began)?;
        let mut api_server = Part::start(assets, dir, "kube-apiserver", &flags::api_server(&files, etcd_port, api_port))?;
        wait_for_port(&mut api_server, api_port, began)?;
        let controllers = Part::start(assets, dir, "kube-controller-manager", &flags::controllers(&files, controllers_port))?;
        let scheduler = Part::start(assets, dir, "kube-scheduler", &flags::scheduler(&files, scheduler_port))?;
        let reaper = Reaper::over(&[etcd.pid(), api_server.pid(), controllers.pid(), scheduler.pid()])?;

        let mut plane = Self {
            audit_log: files.path("audit.log"),
            files,
            _scheduler: scheduler,
            _controllers: controllers,
            _api_server: api_server,
            _etcd: etcd,
            _reaper: reaper,
        };
        plane.wait_until_ready(began)?;
        Ok(plane)
    }

    /// Ready is: the API server says so, and the controllers have made the first service account,
    /// without which no pod can be created.
    fn wait_until_ready(&mut self, began: Instant) -> Result<(), Error> {
        let kubeconfig = self.kubeconfig_yaml();
        let mut check = || {
            // It ends when somebody else has its port, who then answers in its place.
            self._etcd.check()?;
            self._api_server.check()?;
            self._controllers.check()?;
            self._scheduler.check()
        };
        let mut last = String::new();
        run_apart(async {
            while began.elapsed() < READY {
                check()?;
                match readiness(&kubeconfig).await {
                    Ok(()) => return Ok(()),
                    Err(why) => last = why,
                }
                tokio::time::sleep(PAUSE).await;
            }
            Err(Error::NotReady { last: std::mem::take(&mut last) })
        })
    }

    /// `https://127.0.0.1:<port>`.
    #[must_use]
    pub fn server(&self) -> &str {
        self.files.server()
    }

    /// The CA that signed the API server's certificate.
    #[must_use]
    pub fn ca_pem(&self) -> &str {
        self.files.ca_pem()
    }

    /// An administrator's kubeconfig.
    #[must_use]
    pub fn kubeconfig_yaml(&self) -> String {
        self.files.kubeconfig(Who::Admin)
    }

    /// A kubeconfig for whom `token` belongs to, such as a service account's from a TokenRequest.
    #[must_use]
    pub fn kubeconfig_with_token(&self, token: &str) -> String {
        files::kubeconfig(self.files.server(), self.files.ca_pem(), token)
    }

    /// Writes the administrator's kubeconfig, readable by its owner only.
    pub fn write_kubeconfig(&self, path: &Path) -> Result<(), Error> {
        Ok(files::write_private(path, &self.kubeconfig_yaml())?)
    }

    /// An administrator's client without hidden retries, for the runtime that calls this.
    pub async fn client(&self) -> kube::Client {
        connect::connect(&self.kubeconfig_yaml(), "test").await.expect("the kubeconfig is our own")
    }

    /// The stand-in kubelet's client: its writes bear another user's name in the record.
    pub async fn kubelet_client(&self) -> kube::Client {
        let kubeconfig = self.files.kubeconfig(Who::Kubelet);
        connect::connect(&kubeconfig, "stand-in-kubelet").await.expect("the kubeconfig is our own")
    }
}

async fn readiness(kubeconfig: &str) -> Result<(), String> {
    let client = connect::connect(kubeconfig, "test").await.map_err(|error| error.to_string())?;
    for path in ["/readyz", "/api/v1/namespaces/default/serviceaccounts/default"] {
        let answer = raw::try_get(&client, path).await.map_err(|error| error.to_string())?;
        if answer.code != 200 {
            return Err(format!("{path} answers {} {}", answer.code, answer.text));
        }
    }
    Ok(())
}

/// Waits until something listens on `port`, or the part has ended.
fn wait_for_port(part: &mut Part, port: u16, began: Instant) -> Result<(), Error> {
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        part.check()?;
        if began.elapsed() > READY {
            return Err(Error::NotReady { last: part.log_end() });
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Ports that were free a moment ago; all held until the last is known, so that no two are the same.
fn free_ports<const N: usize>() -> std::io::Result<[u16; N]> {
    let mut held = Vec::with_capacity(N);
    let mut ports = [0; N];
    for port in &mut ports {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        *port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(ports)
}

/// Runs a future to its end on a thread and a runtime of its own, so that a caller inside a runtime may block on it.
fn run_apart<T: Send>(future: impl Future<Output = T> + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime needs two file descriptors")
                .block_on(future)
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// An error with its sources, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(&source.to_string());
        next = source.source();
    }
    text
}
