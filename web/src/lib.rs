//! `gcodec inspect` for a browser: the modules of the command line that read and report, on files that
//! JavaScript reads by ranges, behind a few functions of WebAssembly.
//!
//! `session` answers requests; `abi` carries them to and from JavaScript; `files`, `console`, `progress`,
//! `signals` and `spool` stand in for the modules of these names in tools/cli, whose others are the same
//! files.

#![deny(unsafe_code)]

// The tool's modules, declared as in its `lib.rs`, since they refer to each other as `crate::..`.
macro_rules! modules_of_the_tool {
    ($($name:ident $path:literal)*) => { $(
        #[path = $path]
        #[allow(dead_code, unused_imports, reason = "the tool uses more of it")]
        #[allow(unfulfilled_lint_expectations, reason = "the tool expects lints of what is unused here")]
        mod $name;
    )* };
}
modules_of_the_tool! {
    annotate "../../tools/cli/src/annotate/mod.rs"
    compare "../../tools/cli/src/compare.rs"
    damage "../../tools/cli/src/damage.rs"
    diff "../../tools/cli/src/diff.rs"
    fail "../../tools/cli/src/fail.rs"
    fit "../../tools/cli/src/fit.rs"
    input "../../tools/cli/src/input/mod.rs"
    learned "../../tools/cli/src/learned.rs"
    naming "../../tools/cli/src/naming.rs"
    options "../../tools/cli/src/options.rs"
    order "../../tools/cli/src/order.rs"
    origin "../../tools/cli/src/origin.rs"
    output "../../tools/cli/src/output.rs"
    pairs "../../tools/cli/src/pairs.rs"
    parquet "../../tools/cli/src/parquet.rs"
    records "../../tools/cli/src/records.rs"
    stream "../../tools/cli/src/stream.rs"
    tensors "../../tools/cli/src/tensors/mod.rs"
    terminal "../../tools/cli/src/terminal.rs"
}

#[cfg(target_family = "wasm")]
mod abi;
mod console;
mod files;
#[allow(dead_code, unused_imports, reason = "the tool uses more of it")]
mod inspect;
mod progress;
mod session;
mod signals;
mod spool;

pub use files::{add, clear};
pub use session::{Answer, answer};
