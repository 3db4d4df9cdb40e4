//! The program `gcodec`.

use std::process::ExitCode;

fn main() -> ExitCode {
    gcodec_cli::run(std::env::args_os()).into()
}
