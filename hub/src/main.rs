//! `gpuheal-hub`: everything is in the library. Exit status 2: the command line is wrong; 1: it failed.

use std::process::ExitCode;

use gpuheal_hub::{app, args::Args};
use gpuheal_proto::chain::chain;

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::read(std::env::args_os()).unwrap_or_else(|wrong| wrong.exit());
    if let Err(error) = app::start_log(&args.log, args.log_format) {
        eprintln!("gpuheal-hub: {error:#}");
        return ExitCode::from(2);
    }
    match app::run(args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{}", chain(&*error));
            ExitCode::FAILURE
        }
    }
}
