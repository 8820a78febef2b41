//! One server: made, started, and stopped by its process id when its owner lets go of it or dies.

use std::{
    fs, io,
    net::TcpListener,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::{
    binaries,
    keeper::{Keeper, as_owner},
};

/// A cold start on a loaded two-core machine takes about 2 s; sixty times that.
pub(crate) const READY_WITHIN: Duration = Duration::from_secs(120);
/// What the server logs when somebody else has taken its port: then nothing is to be waited for.
const PORT_TAKEN: &str = "could not create any TCP/IP sockets";
/// A free port may be taken by somebody else before the server binds it.
pub(crate) const PORT_ATTEMPTS: u32 = 5;

/// A running server. Dropping it stops it.
#[derive(Debug)]
pub struct Postgres {
    port: u16,
    _keeper: Keeper,
}

/// How a server treats what it is told to keep.
#[derive(Clone, Copy)]
enum Durability {
    /// As shipped: a commit survives a crash of the machine.
    Kept,
    /// For tests, where the machine is not expected to crash: no fsync.
    Lost,
}

impl Postgres {
    /// Starts a durable server whose data is in `dir/pgdata`, made when it is not there. User `postgres` must be able
    /// to reach `dir` when we are root.
    ///
    /// # Errors
    /// When PostgreSQL is not installed or does not start.
    pub fn start(dir: &Path) -> Result<Self, Error> {
        Self::run(dir, None, Durability::Kept)
    }

    /// Starts a fast server in a temporary directory that goes with it.
    pub(crate) fn start_throwaway() -> Result<Self, Error> {
        let dir = tempfile::Builder::new()
            .prefix("testpg-")
            .tempdir()
            .map_err(|source| Error::Directory { path: std::env::temp_dir(), source })?;
        // The keeper removes it: this process may be killed.
        let dir = dir.keep();
        Self::run(&dir, Some(&dir), Durability::Lost)
    }

    fn run(dir: &Path, remove: Option<&Path>, durability: Durability) -> Result<Self, Error> {
        let bin = binaries::directory()?;
        let data = dir.join("pgdata");
        let mut said = String::new();
        for _ in 0..PORT_ATTEMPTS {
            // Also after a throwaway server that did not get its port: its directory went with it.
            if !data.join("PG_VERSION").exists() {
                initialise(&bin, dir, &data)?;
            }
            let port = free_port().map_err(Error::Port)?;
            configure(&data, port, durability)?;
            let log = dir.join("postgres.log");
            let args = ["-D".as_ref(), data.as_os_str()];
            let server = Self { port, _keeper: Keeper::start(&bin.join("postgres"), &args, &log, remove)? };
            if server.ready(&data, &log) {
                return Ok(server);
            }
            said = fs::read_to_string(&log).unwrap_or_default();
        }
        Err(Error::NotReady { log: said })
    }

    /// The server's lock file tells that this very server is ready, whoever else may answer on some port.
    fn ready(&self, data: &Path, log: &Path) -> bool {
        let since = Instant::now();
        while since.elapsed() < READY_WITHIN {
            let lock = fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
            let mut lines = lock.lines().skip(3).map(str::trim);
            if lines.next() == Some(&self.port.to_string()) && lines.last() == Some("ready") {
                return true;
            }
            if fs::read_to_string(log).is_ok_and(|log| log.contains(PORT_TAKEN)) {
                return false;
            }
            thread::sleep(Duration::from_millis(10));
        }
        false
    }

    /// URL of the server's own database `postgres`.
    #[must_use]
    pub fn url(&self) -> String {
        self.database_url("postgres")
    }

    /// URL of a database of this server.
    #[must_use]
    pub fn database_url(&self, name: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{name}", self.port)
    }

    /// The port on 127.0.0.1.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }
}

fn initialise(bin: &Path, dir: &Path, data: &Path) -> Result<(), Error> {
    let wrap = |source| Error::Directory { path: dir.to_owned(), source };
    fs::create_dir_all(data).map_err(wrap)?;
    if binaries::root() {
        // `tempdir` is for its maker alone; the server runs as somebody else.
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).map_err(wrap)?;
        run(Command::new("chown").arg("postgres").arg(data))?;
    }
    let owner = as_owner();
    let initdb = bin.join("initdb");
    run(Command::new(owner[0]).args(&owner[1..]).arg(initdb).current_dir("/").arg("-D").arg(data).args([
        "--auth=trust",
        "--username=postgres",
        "--encoding=UTF8",
        "--locale=C",
        "--no-sync",
    ]))
}

fn run(command: &mut Command) -> Result<(), Error> {
    let name = command.get_program().to_string_lossy().into_owned();
    let out = command.stdin(Stdio::null()).output().map_err(|source| Error::Spawn { name: name.clone(), source })?;
    if out.status.success() {
        Ok(())
    } else {
        Err(Error::Failed { name, output: String::from_utf8_lossy(&out.stderr).into_owned() })
    }
}

pub(crate) fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

fn configure(data: &Path, port: u16, durability: Durability) -> Result<(), Error> {
    let durable = match durability {
        Durability::Kept => "",
        Durability::Lost => "fsync = off\nfull_page_writes = off\n",
    };
    let path = data.join("postgresql.auto.conf");
    let text = format!(
        "listen_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = ''\nmax_connections = 200\nshared_buffers = '64MB'\n\
         timezone = 'UTC'\nlog_timezone = 'UTC'\n{durable}"
    );
    fs::write(&path, text).map_err(|source| Error::Directory { path, source })
}

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No programs.
    #[error(
        "PostgreSQL's server programs are neither in /usr/lib/postgresql/*/bin nor in PATH: on Debian or Ubuntu run `apt-get install postgresql`"
    )]
    NotInstalled,
    /// No pooler.
    #[error(
        "PgBouncer is neither at /usr/sbin/pgbouncer nor in PATH: run `tests/postgres/install.sh pooler`, or install it yourself"
    )]
    NoPooler,
    /// A directory or file that cannot be made.
    #[error("cannot write {}", path.display())]
    Directory {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// No port to be had.
    #[error("no free port on 127.0.0.1")]
    Port(#[source] io::Error),
    /// A program that does not start.
    #[error("cannot run {name}")]
    Spawn {
        /// Which.
        name: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A program that failed.
    #[error("{name} failed: {output}")]
    Failed {
        /// Which.
        name: String,
        /// What it said.
        output: String,
    },
    /// Started, and never answered.
    #[error("the server did not answer in time; its log: {log}")]
    NotReady {
        /// What it logged.
        log: String,
    },
}
