//! `gpuheal-hub`: everything is in the library. Exit status 2: the command line is wrong; 1: it failed.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    gpuheal_hub::app::main().await
}
