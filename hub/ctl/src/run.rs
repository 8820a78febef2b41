//! From arguments to an exit code: 0 done, 1 failed or not allowed, 2 wrong use. The only file that reads the wall clock.

use std::{
    ffi::OsString,
    io::{self, Write as _},
    path::Path,
    process::ExitCode,
    time::{SystemTime, UNIX_EPOCH},
};

use clap::{CommandFactory as _, FromArgMatches as _};
use gpuheal_proto::{chain::chain, time::Timestamp};

use crate::{
    args::{Args, Pki, Verb},
    call, connect,
    output::Printer,
    pki, visible,
};

const FAILED: u8 = 1;
const USAGE: u8 = 2;

/// The whole program.
pub async fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.collect();
    let mut command = Args::command();
    if args.first().is_some_and(|path| Path::new(path).file_stem().is_some_and(|name| name == "kubectl-gpuheal")) {
        command = command.name("kubectl-gpuheal").bin_name("kubectl gpuheal");
    }
    let parsed = command.try_get_matches_from_mut(&args).and_then(|matches| Args::from_arg_matches(&matches));
    let args = match parsed {
        Ok(args) => args,
        // Help and version are no failures, and clap knows which stream each belongs to.
        Err(error) => {
            let code = if error.use_stderr() { USAGE } else { 0 };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    match run(&args).await {
        Ok(code) => code,
        // Whoever reads has seen enough, as `head` does: no failure of ours.
        Err(error) if error.unread() => ExitCode::SUCCESS,
        Err(error) => {
            report(&error);
            ExitCode::from(if error.usage() { USAGE } else { FAILED })
        }
    }
}

async fn run(args: &Args) -> Result<ExitCode, Error> {
    let mut printer = Printer::new(args.output, now());
    if let Verb::Pki(verb) = &args.verb {
        return init_pki(verb, &mut printer);
    }
    // No provider may be there yet, and a second one is none of our business.
    let _ = rustls::crypto::ring::default_provider().install_default();
    call::check(&args.verb)?;
    let channel = connect::connect(&args.reach).await?;
    let met = call::call(&args.verb, channel, &mut printer).await?;
    Ok(ExitCode::from(if met { 0 } else { FAILED }))
}

fn init_pki(verb: &Pki, printer: &mut Printer) -> Result<ExitCode, Error> {
    let Pki::Init { dir, cluster, user, dns, days, trust_domain, force } = verb;
    let request = pki::Request {
        dir: dir.clone(),
        clusters: cluster.clone(),
        users: user.clone(),
        dns: dns.clone(),
        trust_domain: trust_domain.clone(),
        days: *days,
        force: *force,
        now: now(),
    };
    let written = pki::init(&request)?;
    printer.files(&written)?;
    Ok(ExitCode::SUCCESS)
}

#[expect(clippy::disallowed_methods, reason = "this is the place")]
fn now() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_unix_ms(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
}

/// The whole chain on one line, so that it can be searched for. The hub's words are in it, and theirs whom it quotes.
fn report(error: &Error) {
    let _ = writeln!(io::stderr(), "error: {}", visible::clean(&chain(error).to_string()));
}

/// Why nothing came of it.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Pki(#[from] pki::Error),
    #[error(transparent)]
    Connect(#[from] connect::Error),
    #[error(transparent)]
    Call(#[from] call::Error),
    #[error("cannot write the result")]
    Output(#[from] io::Error),
}

impl Error {
    fn unread(&self) -> bool {
        let mut cause: Option<&dyn std::error::Error> = Some(self);
        while let Some(error) = cause {
            if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
                return true;
            }
            cause = error.source();
        }
        false
    }

    const fn usage(&self) -> bool {
        match self {
            Self::Pki(error) => {
                matches!(
                    error,
                    pki::Error::NoCluster | pki::Error::Days { .. } | pki::Error::User { .. } | pki::Error::TrustDomain { .. }
                )
            }
            Self::Connect(error) => error.usage(),
            Self::Call(error) => error.usage(),
            Self::Output(_) => false,
        }
    }
}
