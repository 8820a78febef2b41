//! A private PgBouncer in transaction mode before a server: settings as shipped but for the mode and few connections, so that two
//! transactions of one client rarely meet the same one. Started and ended as the server is.

use std::{
    env,
    fs::{self, File},
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::server::{Error, PORT_ATTEMPTS, READY_WITHIN, as_owner, free_port};

/// Where Debian and Ubuntu put it, which PATH need not name.
const DEBIAN: &str = "/usr/sbin/pgbouncer";
/// What it logs once it listens.
const LISTENS: &str = "process up: PgBouncer";
/// What it logs when it cannot.
const GAVE_UP: &str = "FATAL";

/// Runs it, and waits for its own standard input to end, which it does when the owner drops it or dies by any signal.
const KEEPER: &str = r#"
pgbouncer=$1 settings=$2 remove=$3; shift 3
"$@" "$pgbouncer" "$settings" &
pid=$!
read -r _
kill -INT "$pid" 2>/dev/null
wait "$pid"
rm -rf "$remove"
exit 0
"#;

/// A running pooler. Dropping it stops it.
#[derive(Debug)]
pub struct Pooler {
    port: u16,
    keeper: Child,
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
            let pooler = Self { port, keeper: keep(&program, &dir, &log)? };
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

impl Drop for Pooler {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _stopped = self.keeper.wait();
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

fn keep(program: &Path, dir: &Path, log: &Path) -> Result<Child, Error> {
    let wrap = |source| Error::Directory { path: log.to_owned(), source };
    let out = File::create(log).map_err(wrap)?;
    let err = out.try_clone().map_err(wrap)?;
    Command::new("sh")
        .args(["-c", KEEPER, "keeper"])
        .arg(program)
        .arg(dir.join("pgbouncer.ini"))
        .arg(dir)
        .args(as_owner())
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(out)
        .stderr(err)
        // As for the server: an interrupt ends the owner first.
        .process_group(0)
        .spawn()
        .map_err(|source| Error::Spawn { name: "sh".to_owned(), source })
}
