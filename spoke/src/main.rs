//! The spoke's program. Exit codes: 0 told to end, 1 failed, 2 wrong usage.

use std::process::ExitCode;

fn main() -> ExitCode {
    gpuheal_spoke::app::main()
}
