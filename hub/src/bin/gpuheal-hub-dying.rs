//! The hub as the crash tests run it: the same program, which dies at the fail points that `FAILPOINTS` names. Never shipped.

use std::process::ExitCode;

use gpuheal_hub::{app, crash};

#[tokio::main]
async fn main() -> ExitCode {
    crash::arm();
    app::main().await
}
