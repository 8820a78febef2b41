//! The spoke as the crash tests run it: the same program, which dies at the fail point that `FAILPOINTS` names. Never shipped.

use std::process::ExitCode;

fn main() -> ExitCode {
    gpuheal_spoke::app::main()
}
