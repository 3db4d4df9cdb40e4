//! Measures sizes on real gradients and on data of known entropy, and compares them with their targets.
//!
//! `cargo xtask measure` prints two pages; `--write` writes them to `docs/`. Without the public gradient
//! set, the rows that need it are left out, with a note.

mod compressors;
mod dumps;
pub(crate) mod picture;
mod profiles;
mod quantised;
mod report;
mod shapes;
mod sizes;

use std::path::PathBuf;

use report::Report;

use crate::{Result, root};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder of the public gradient set.
    #[arg(long, default_value = "../shared/gradients")]
    gradients: PathBuf,
    /// Writes `docs/measurements.md` and `docs/compressors.md`.
    #[arg(long)]
    write: bool,
}

/// Measures everything; false if a target is missed.
pub(crate) fn run(args: &Args) -> Result<bool> {
    if args.write && !args.gradients.is_dir() {
        return Err(format!("--write needs the gradient set: {} is missing", args.gradients.display()).into());
    }
    let mut report = Report::default();
    sizes::independent_positions(&mut report)?;
    sizes::sbc_resnet50(&mut report)?;
    sizes::sbc_networks(&mut report)?;
    sizes::random_bits(&mut report)?;
    let mut compressors = None;
    if args.gradients.is_dir() {
        let dumps = dumps::load_all(&args.gradients)?;
        sizes::real_positions(&mut report, &dumps)?;
        sizes::real_signs(&mut report, &dumps)?;
        sizes::natural(&mut report, &dumps)?;
        sizes::lossless(&mut report, &dumps)?;
        sizes::delta(&mut report, &args.gradients)?;
        quantised::casts(&mut report, &args.gradients)?;
        compressors = Some(compressors::page(&dumps)?);
    } else {
        report.note(format!(
            "{} is missing: the rows on real gradients are left out",
            args.gradients.display()
        ));
    }
    let text = report.to_string();
    print!("{text}");
    if let Some(page) = compressors {
        print!("\n{page}");
        if args.write {
            std::fs::write(root().join("docs/measurements.md"), text)?;
            std::fs::write(root().join("docs/compressors.md"), page)?;
        }
    }
    Ok(report.all_reached())
}
