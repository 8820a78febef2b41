//! The spoke's program. Exit codes: 0 told to end, 1 failed, 2 wrong usage.

use std::process::ExitCode;

use clap::Parser as _;
use gpuheal_spoke::{
    app,
    args::{Args, Command},
    healaction,
};

fn main() -> ExitCode {
    // clap exits with 2 by itself.
    match Args::parse().command {
        Command::Crd => {
            print!("{}", healaction::crd_yaml());
            ExitCode::SUCCESS
        }
        Command::Run(run) => app::main(*run),
    }
}
