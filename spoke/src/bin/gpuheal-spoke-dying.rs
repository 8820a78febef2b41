//! The spoke as the crash tests run it: the same program, which dies at the fail point that `FAILPOINTS` names. Never shipped.

use std::process::ExitCode;

use clap::Parser as _;
use gpuheal_spoke::{
    app,
    args::{Args, Command},
};

fn main() -> ExitCode {
    match Args::parse().command {
        Command::Run(run) => app::main(*run),
        Command::Crd => ExitCode::from(2),
    }
}
