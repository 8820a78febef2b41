//! The hub as the crash tests run it: the same program, which dies at the fail point that `FAILPOINTS` names. Never shipped.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    gpuheal_hub::app::main().await
}
