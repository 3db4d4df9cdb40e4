//! Tests on machines that this one is not: `tools/foreign/foreign.sh` sets them up and says how.

use std::process::Command;

use gcodec_packaging::programs::run as succeed;
use gcodec_packaging::{Result, root};

use crate::programs::conformance;

const ALL: [&str; 3] = ["s390x", "i686", "aarch64"];

/// The tests of the wire format, and those of them that take minutes under emulation.
const WIRE: &[&str] = &["cargo", "test", "-p", "gcodec", "--lib", "--test", "wire", "--"];
const SLOW: &[&str] =
    &["classed::a_very_large_tensor_has_several_blocks", "salvage::a_flipped_bit_hides_only_its_frame"];

/// The command line without its features, which make no bytes of the format.
const CLI: &[&str] = &["cargo", "build", "-p", "gcodec-cli"];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Machines; all three if none is named
    #[arg(value_name = "TARGET", value_parser = ALL)]
    targets: Vec<String>,
    /// Runs this command instead of the tests
    #[arg(last = true)]
    command: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let named = |target: &&str| args.targets.is_empty() || args.targets.iter().any(|t| t == target);
    for target in ALL.into_iter().filter(named) {
        succeed(&mut script("install", target))?;
        match args.command.is_empty() {
            true => test(target)?,
            false => succeed(script("run", target).args(&args.command))?,
        }
    }
    Ok(())
}

/// Runs the tests of the wire format on a machine, and compares its command line with this machine's.
fn test(target: &str) -> Result<()> {
    println!("== {target}");
    let skips = SLOW.iter().flat_map(|name| ["--skip", name]);
    succeed(script("run", target).args(WIRE).args(skips))?;
    succeed(script("run", target).args(CLI))?;
    let words = String::from_utf8(script("outside", target).arg("gcodec").output()?.stdout)?;
    let compare = ["foreign"].into_iter().chain(words.split_whitespace());
    match conformance(&compare.collect::<Vec<_>>())? {
        true => Ok(()),
        false => Err(format!("the command line gives other bytes on {target}").into()),
    }
}

fn script(task: &str, target: &str) -> Command {
    let mut command = Command::new(root().join("tools/foreign/foreign.sh"));
    command.args([task, target]).current_dir(root());
    command
}
