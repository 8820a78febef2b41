//! A private PgBouncer in transaction mode before a server: settings as shipped but for the mode and few connections, so that two
//! transactions of one client rarely meet the same one. Started and ended as the server is.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use crate::{
    keeper::Keeper,
    server::{Error, PORT_ATTEMPTS, READY_WITHIN, free_port},
};

/// Where Debian and Ubuntu put it, which PATH need not name.
const DEBIAN: &str = "/usr/sbin/pgbouncer";
/// What it logs once it listens.
const LISTENS: &str = "process up: PgBouncer";
/// What it logs when it cannot.
const GAVE_UP: &str = "FATAL";

/// A running pooler. Dropping it stops it.
#[derive(Debug)]
pub struct Pooler {
    port: u16,
    _keeper: Keeper,
}

impl Pooler {
    /// Starts one before the server at `server_port`, with so many connections to each database.
    ///
    /// # Errors
    /// When PgBouncer is not installed or does not start.
    pub(crate) fn start(server_port: u16, connections: u32) -> Result<Self, Error> {
        let program = program()?;
        let mut said = String::new();
        for _ in 0..PORT_ATTEMPTS {
            let dir = tempfile::Builder::new()
                .prefix("testpg-pooler-")
                .tempdir()
                .map_err(|source| Error::Directory { path: env::temp_dir(), source })?
                .keep();
            let wrap = |source| Error::Directory { path: dir.clone(), source };
            // `tempdir` is for its maker alone; the pooler runs as somebody else.
            fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).map_err(wrap)?;
            let port = free_port().map_err(Error::Port)?;
            fs::write(dir.join("users"), "\"postgres\" \"\"\n").map_err(wrap)?;
            fs::write(dir.join("pgbouncer.ini"), settings(&dir, server_port, port, connections)).map_err(wrap)?;
            let log = dir.join("pgbouncer.log");
            let settings = dir.join("pgbouncer.ini");
            let pooler = Self { port, _keeper: Keeper::start(&program, &[settings.as_os_str()], &log, Some(&dir))? };
            if pooler.ready(&log) {
                return Ok(pooler);
            }
            said = fs::read_to_string(&log).unwrap_or_default();
        }
        Err(Error::NotReady { log: said })
    }

    fn ready(&self, log: &Path) -> bool {
        let since = Instant::now();
        while since.elapsed() < READY_WITHIN {
            let said = fs::read_to_string(log).unwrap_or_default();
            if said.contains(LISTENS) {
                return true;
            }
            if said.contains(GAVE_UP) {
                return false;
            }
            thread::sleep(Duration::from_millis(10));
        }
        false
    }

    /// URL of a database of the server behind it.
    #[must_use]
    pub fn database_url(&self, name: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{name}?sslmode=disable", self.port)
    }
}

fn program() -> Result<PathBuf, Error> {
    let path = env::var_os("PATH").unwrap_or_default();
    let on_path = env::split_paths(&path).map(|dir| dir.join("pgbouncer"));
    on_path.chain([PathBuf::from(DEBIAN)]).find(|program| program.is_file()).ok_or(Error::NoPooler)
}

fn settings(dir: &Path, server_port: u16, port: u16, connections: u32) -> String {
    format!(
        "[databases]\n* = host=127.0.0.1 port={server_port}\n\
         [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
         auth_type = trust\nauth_file = {}\npool_mode = transaction\ndefault_pool_size = {connections}\nmax_client_conn = 500\n",
        dir.join("users").display()
    )
}
