//! `gpuhealctl`, and `kubectl gpuheal` when it is installed under the name `kubectl-gpuheal`.

use std::process::ExitCode;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    gpuheal_ctl::run::main(std::env::args_os()).await
}
