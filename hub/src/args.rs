//! The command line and its environment: the only place that reads either.

use std::{
    ffi::OsString,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use clap::{
    Args as ClapArgs, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum, error::ErrorKind,
    parser::ValueSource,
};
use gpuheal_proto::ids::ClusterId;

/// The hub of gpu-selfhealing: keeps the fleet's faults, decides, signs commands and hands them to the clusters' spokes.
#[derive(Debug, Parser)]
#[command(name = "gpuheal-hub", version, propagate_version = true)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// What is logged, as in `info,gpuheal_hub=debug`.
    #[arg(long, env = "GPUHEAL_LOG", default_value = "info", global = true)]
    pub log: String,
    /// How it is logged.
    #[arg(long, env = "GPUHEAL_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text, global = true)]
    pub log_format: LogFormat,
}

impl Args {
    /// Reads a command line. A password in it is refused: whoever lists processes would read it. Nothing of it is told.
    ///
    /// # Errors
    /// When it is wrong, or only asks for help.
    pub fn read<T: Into<OsString> + Clone>(args: impl IntoIterator<Item = T>) -> Result<Self, clap::Error> {
        let mut command = Self::command();
        let matches = command.try_get_matches_from_mut(args)?;
        for (id, flag, env) in URLS {
            if let Some((_, given)) = matches.subcommand()
                && given.value_source(id) == Some(ValueSource::CommandLine)
                && given.get_one::<String>(id).is_some_and(|url| holds_password(url))
            {
                let why = format!(
                    "{flag} holds a password, which everybody who lists processes could read; put the URL into a file and name it by \
                     {flag}-file, or into the environment as {env}"
                );
                return Err(command.error(ErrorKind::ValueValidation, why));
            }
        }
        Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
    }
}

/// Arguments that may hold a password: name, flag and environment.
const URLS: [(&str, &str, &str); 2] = [
    ("database_url", "--database-url", "GPUHEAL_DATABASE_URL"),
    ("database_direct_url", "--database-direct-url", "GPUHEAL_DATABASE_DIRECT_URL"),
];

/// Whether a URL carries a password, before its host or among its parameters. Rather once too often than once too few.
fn holds_password(url: &str) -> bool {
    let (url, parameters) = url.split_once('?').unwrap_or((url, ""));
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let user = rest.rsplit_once('@').map_or("", |(user, _)| user);
    user.contains(':') || parameters.split('&').any(|parameter| parameter.starts_with("password="))
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For machines.
    Json,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve spokes, people and probes.
    Serve(Box<Serve>),
    /// Bring the database's schema to this version's, and end.
    Migrate(Database),
    /// Refuse a cluster's certificates from now on, all that were issued until now or some; every hub cuts their streams.
    Revoke(Revoke),
    /// Let a cluster in again whose identity was seen in two places, after the copy is gone.
    ClearQuarantine(ClearQuarantine),
    /// Take a cluster that is gone for good out of the fleet: nothing waits for it, and its id is never let in again.
    Decommission(Decommission),
}

/// What is refused.
#[derive(Debug, ClapArgs)]
pub struct Revoke {
    /// Whose, by whom and why.
    #[command(flatten)]
    pub who: Who,
    /// Serial number in hex of one certificate; may be repeated. Without it: every certificate that began before now.
    #[arg(long)]
    pub serial: Vec<String>,
}

/// Who is let in.
#[derive(Debug, ClapArgs)]
pub struct ClearQuarantine {
    /// Whose, by whom and why.
    #[command(flatten)]
    pub who: Who,
}

/// Who is taken out.
#[derive(Debug, ClapArgs)]
pub struct Decommission {
    /// Whose, by whom and why.
    #[command(flatten)]
    pub who: Who,
    /// Although spokes of it are attached.
    #[arg(long)]
    pub force: bool,
}

/// An operator's word on a cluster, as the audit keeps it.
#[derive(Debug, ClapArgs)]
pub struct Who {
    /// The database.
    #[command(flatten)]
    pub database: Database,
    /// The cluster's id.
    #[arg(value_parser = |text: &str| ClusterId::parse(text))]
    pub cluster: ClusterId,
    /// Why, for the audit.
    #[arg(long, value_parser = said)]
    pub reason: String,
    /// Who does it, for the audit.
    #[arg(long, value_parser = said)]
    pub by: String,
}

impl Who {
    /// As the audit names people.
    #[must_use]
    pub fn actor(&self) -> String {
        format!("user/{}", self.by)
    }
}

/// A text that says something.
fn said(text: &str) -> Result<String, String> {
    let text = text.trim();
    if text.is_empty() { Err("it is empty".to_owned()) } else { Ok(text.to_owned()) }
}

/// Where the database is.
#[derive(Debug, ClapArgs)]
pub struct Database {
    /// The database, or a pooler before it.
    #[command(flatten)]
    serving: Serving,
    /// The database itself, when that is a pooler.
    #[command(flatten)]
    direct: Direct,
}

#[derive(Debug, ClapArgs)]
#[group(required = true, multiple = false)]
struct Serving {
    /// `postgres://user@host:port/database`; with a password only by environment or file.
    #[arg(long, env = "GPUHEAL_DATABASE_URL", hide_env_values = true)]
    database_url: Option<String>,
    /// A file that holds the URL, so that no secret is in a command line.
    #[arg(long, env = "GPUHEAL_DATABASE_URL_FILE")]
    database_url_file: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
#[group(required = false, multiple = false)]
struct Direct {
    /// The database itself, when `--database-url` is a pooler in transaction mode, such as PgBouncer: for what needs a session.
    #[arg(long, env = "GPUHEAL_DATABASE_DIRECT_URL", hide_env_values = true)]
    database_direct_url: Option<String>,
    /// A file that holds that URL.
    #[arg(long, env = "GPUHEAL_DATABASE_DIRECT_URL_FILE")]
    database_direct_url_file: Option<PathBuf>,
}

impl Database {
    /// The URL to serve by, from wherever it is.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn url(&self) -> Result<String, Error> {
        from(self.serving.database_url.as_deref(), self.serving.database_url_file.as_deref())?.ok_or(Error::NoUrl)
    }

    /// The URL of the database itself, when the other one is a pooler's.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn direct_url(&self) -> Result<Option<String>, Error> {
        from(self.direct.database_direct_url.as_deref(), self.direct.database_direct_url_file.as_deref())
    }

    /// The URL past any pooler.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn url_past_poolers(&self) -> Result<String, Error> {
        self.direct_url()?.map_or_else(|| self.url(), Ok)
    }
}

/// A URL that is given, or that a file holds.
fn from(url: Option<&str>, file: Option<&Path>) -> Result<Option<String>, Error> {
    match (url, file) {
        (Some(url), _) => Ok(Some(url.to_owned())),
        (None, Some(path)) => {
            let text = fs::read_to_string(path).map_err(|source| Error::UrlFile { path: path.to_owned(), source })?;
            Ok(Some(text.trim().to_owned()))
        }
        (None, None) => Ok(None),
    }
}

/// How to serve.
#[derive(Debug, ClapArgs)]
pub struct Serve {
    /// The database.
    #[command(flatten)]
    pub database: Database,
    /// Connections to the database for spokes and stages; people's tools have four of their own.
    #[arg(long, env = "GPUHEAL_DATABASE_CONNECTIONS", default_value_t = 16, value_parser = clap::value_parser!(u32).range(4..=512))]
    pub database_connections: u32,
    /// Directory with the hub's `tls.crt`, `tls.key` and `ca.crt`.
    #[arg(long, env = "GPUHEAL_IDENTITY")]
    pub identity: PathBuf,
    /// Ed25519 key (PKCS#8 PEM) that signs commands.
    #[arg(long, env = "GPUHEAL_SIGNING_KEY")]
    pub signing_key: PathBuf,
    /// Epoch of the signing keys: raised when a key is replaced because it was lost.
    #[arg(long, env = "GPUHEAL_KEY_EPOCH", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub key_epoch: u64,
    /// Trust domain of SPIFFE ids.
    #[arg(long, env = "GPUHEAL_TRUST_DOMAIN", default_value = "dev.gpuheal")]
    pub trust_domain: String,
    /// The fleet's policy. Without it, the one stored last is in force; without any, nothing is ever done but recording.
    #[arg(long, env = "GPUHEAL_POLICY")]
    pub policy: Option<PathBuf>,
    /// Where spokes attach.
    #[arg(long, env = "GPUHEAL_LISTEN_LINK", default_value = "0.0.0.0:7443")]
    pub listen_link: SocketAddr,
    /// Where people and tools call.
    #[arg(long, env = "GPUHEAL_LISTEN_FLEET", default_value = "0.0.0.0:7444")]
    pub listen_fleet: SocketAddr,
    /// Where probes and Prometheus ask, without TLS.
    #[arg(long, env = "GPUHEAL_LISTEN_HTTP", default_value = "0.0.0.0:7080")]
    pub listen_http: SocketAddr,
    /// Written once the hub is ready: `{"link":"ADDR","fleet":"ADDR","http":"ADDR"}`.
    #[arg(long, env = "GPUHEAL_READY_FILE")]
    pub ready_file: Option<PathBuf>,
}

/// Why the arguments cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No file to read the URL from.
    #[error("cannot read the database's URL from {}", path.display())]
    UrlFile {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Neither given.
    #[error("neither --database-url nor --database-url-file is given")]
    NoUrl,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_holds_together() {
        Args::command().debug_assert();
    }

    #[test]
    fn one_place_for_the_database_is_needed_and_two_are_too_many() {
        let parse = |args: &[&str]| Args::try_parse_from([&["gpuheal-hub"], args].concat());
        assert!(parse(&["migrate", "--database-url", "postgres://h/d"]).is_ok());
        assert!(parse(&["migrate"]).is_err());
        assert!(parse(&["migrate", "--database-url", "a", "--database-url-file", "b"]).is_err());
        assert!(parse(&[]).is_err(), "a subcommand must be named");
    }

    #[test]
    fn the_database_behind_a_pooler_is_named_once_and_is_what_needs_a_session_asks() {
        let direct = |args: &[&str]| {
            let all = [&["gpuheal-hub", "migrate", "--database-url", "postgres://pooler/d"], args].concat();
            let Command::Migrate(database) = Args::try_parse_from(all)?.command else { panic!("migrate") };
            Ok::<_, clap::Error>((database.direct_url().unwrap(), database.url_past_poolers().unwrap()))
        };
        assert_eq!(direct(&[]).unwrap(), (None, "postgres://pooler/d".to_owned()));
        let itself = "postgres://db/d".to_owned();
        assert_eq!(direct(&["--database-direct-url", "postgres://db/d"]).unwrap(), (Some(itself.clone()), itself));
        assert!(direct(&["--database-direct-url", "a", "--database-direct-url-file", "b"]).is_err());
        assert!(
            Args::try_parse_from(["gpuheal-hub", "migrate", "--database-direct-url", "a"]).is_err(),
            "the other is needed all the same"
        );
    }

    #[test]
    fn the_commands_of_going_live_are_ones_that_this_hub_takes() {
        let page = include_str!("../../docs/going-live.md").replace("\\\n", " ");
        let lines: Vec<&str> = page.lines().filter(|line| line.starts_with("gpuheal-hub ")).collect();
        assert!(lines.iter().any(|line| line.starts_with("gpuheal-hub serve ")), "{lines:?}");
        for line in lines {
            // What a person fills in, and the only text in quotes.
            let line = line.replace(" C ", " c1 ").replace("\"...\"", "why");
            Args::try_parse_from(line.split_whitespace()).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    #[test]
    fn an_operator_must_say_who_and_why() {
        let parse = |args: &[&str]| Args::try_parse_from([&["gpuheal-hub"], args].concat());
        let whole = ["revoke", "--database-url", "postgres://h/d", "alpha", "--by", "operator", "--reason", "lost laptop"];
        assert!(parse(&whole).is_ok());
        assert!(parse(&whole[..6]).is_err());
        for blank in ["", "  "] {
            assert!(parse(&[&whole[..7], &[blank]].concat()).is_err(), "a reason says something");
        }
        assert!(parse(&["clear-quarantine", "--database-url", "u", "ALPHA", "--by", "e", "--reason", "r"]).is_err(), "no such id");
    }
    #[test]
    fn a_password_in_the_command_line_is_refused_and_not_repeated() {
        let read = |url: &str| Args::read(["gpuheal-hub", "migrate", "--database-url", url]);
        for url in ["postgres://ops:s3cret@db/fleet", "postgres://ops@db/fleet?sslmode=require&password=s3cret", "ops:s3@cret@db"] {
            let said = read(url).unwrap_err().render().to_string();
            assert!(said.contains("--database-url-file") && !said.contains("s3"), "{said}");
            let direct = ["gpuheal-hub", "migrate", "--database-url", "postgres://db/d", "--database-direct-url", url];
            let said = Args::read(direct).unwrap_err().render().to_string();
            assert!(said.contains("GPUHEAL_DATABASE_DIRECT_URL") && !said.contains("s3"), "{said}");
        }
        for url in ["postgres://ops@db:5432/fleet", "postgres://db:5432/fleet", "postgres://%2Frun%2Fpostgresql/fleet"] {
            assert!(read(url).is_ok(), "{url}");
        }
    }
}
