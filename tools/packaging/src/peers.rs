//! The table of speeds beside other compressors, in `docs/speed.md`.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::{Result, python, root};

/// Page with the table, between these lines.
const PAGE: &str = "docs/speed.md";
const BEGIN: &str = "<!-- cargo xtask peers --write: from here -->\n";
const END: &str = "<!-- to here -->\n";

/// Options of the task.
#[derive(clap::Args)]
pub struct Args {
    /// Writes the table into docs/speed.md.
    #[arg(long)]
    write: bool,
    /// Gradient whose elements are compressed.
    #[arg(long, default_value = "../shared/gradients/gpt_step0300_worker0.safetensors")]
    gradient: PathBuf,
    /// Weights (bf16) whose elements are compressed.
    #[arg(long, default_value = "../shared/gradients/weight_sync/gpt_bf16_sync020.safetensors")]
    weights: PathBuf,
}

/// Measures gcodec and its peers, and prints or writes the table.
pub fn measure(args: &Args) -> Result<()> {
    let python = python::with_peers()?;
    let output = Command::new(python)
        .arg("adapters/python/benches/peers.py")
        .args([&args.gradient, &args.weights])
        .current_dir(root())
        .stderr(Stdio::inherit())
        .output()?;
    let table = String::from_utf8(output.stdout)?;
    print!("{table}");
    if !output.status.success() {
        return Err("adapters/python/benches/peers.py failed".into());
    }
    if args.write {
        let page = root().join(PAGE);
        fs::write(&page, with_table(&fs::read_to_string(&page)?, &table)?)?;
    }
    Ok(())
}

/// Returns the page with this table in place of the one before.
fn with_table(page: &str, table: &str) -> Result<String> {
    let parts = page.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let (before, after) = parts.ok_or_else(|| format!("{PAGE} has no place for the table: {BEGIN:?}"))?;
    Ok(format!("{before}{BEGIN}{table}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_table_replaces_the_old_one() {
        let page = |table: &str| format!("a\n{BEGIN}{table}{END}b\n");
        assert_eq!(with_table(&page("| old |\n"), "| new |\n").unwrap(), page("| new |\n"));
        assert!(with_table("no place\n", "| new |\n").is_err());
    }
}
