//! The spoke as the crash tests run it: the same program, which dies at the fail points that `FAILPOINTS` names. Never shipped.

use std::process::ExitCode;

use clap::Parser as _;
use gpuheal_spoke::{
    app,
    args::{Args, Command},
    crash,
};

fn main() -> ExitCode {
    crash::arm();
    match Args::parse().command {
        Command::Run(run) => app::main(*run),
        Command::Crd => ExitCode::from(2),
    }
}
