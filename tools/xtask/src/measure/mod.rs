//! What the format must reach, measured: sizes on real gradients and on data of known entropy.
//!
//! `cargo xtask measure` prints a table, `--write` puts it into `docs/measurements.md`. Without the public gradient set
//! the rows that need it are left out, with a note.

mod dumps;
mod report;
mod sizes;

use std::path::PathBuf;

use report::Report;

use crate::Result;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder of the public gradient set.
    #[arg(long, default_value = "../shared/gradients")]
    gradients: PathBuf,
    /// Writes the table to this file as well.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "docs/measurements.md")]
    write: Option<PathBuf>,
}

/// Measures everything; false if something does not reach what it must.
pub(crate) fn run(args: &Args) -> Result<bool> {
    if args.write.is_some() && !args.gradients.is_dir() {
        return Err(
            format!("--write needs the gradient set: {} is not there", args.gradients.display()).into()
        );
    }
    let mut report = Report::default();
    sizes::independent_positions(&mut report)?;
    sizes::sbc_resnet50(&mut report)?;
    sizes::random_bits(&mut report)?;
    if args.gradients.is_dir() {
        let dumps = dumps::load_all(&args.gradients)?;
        sizes::real_positions(&mut report, &dumps)?;
        sizes::natural(&mut report, &dumps)?;
        sizes::lossless(&mut report, &dumps)?;
        sizes::delta(&mut report, &args.gradients)?;
    } else {
        report.note(format!(
            "{} is not there: the rows on real gradients are left out",
            args.gradients.display()
        ));
    }
    let text = report.to_string();
    print!("{text}");
    if let Some(path) = &args.write {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(path, text)?;
    }
    Ok(report.all_reached())
}
