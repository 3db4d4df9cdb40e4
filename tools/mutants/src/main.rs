//! Mutation tests: small mistakes, such as `<=` for `<`, are compiled into a copy of the library, all of them
//! at once, and turned on one by one while the tests run. A mistake that no test notices is a survivor.

mod report;
mod rewrite;
mod run;
mod tree;

use std::process::ExitCode;

use clap::Parser;
use gcodec_packaging::Result;

/// Modules of the library whose mistakes let wrong data or hostile input through.
const MODULES: &[&str] = &["bits", "codes", "block", "frame", "stream", "file", "reduce"];

/// Runs the library's tests on small mistakes in it, and lists those that no test notices.
#[derive(Parser)]
#[command(name = "cargo xtask mutants")]
struct Args {
    /// Only mistakes in lines that differ from this commit
    #[arg(long, value_name = "COMMIT", num_args = 0..=1, default_missing_value = "HEAD")]
    changed: Option<String>,
    /// Only mistakes in files whose path contains this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Seconds of tests that a mistake must survive, beginning with the quickest tests
    #[arg(long, value_name = "N", default_value_t = 20.0)]
    seconds: f64,
    /// Only mistakes that no earlier run found to be noticed, and that are not explained
    #[arg(long)]
    rest: bool,
    /// Runs nothing, and reports what earlier runs found.
    #[arg(long, conflicts_with = "rest")]
    report: bool,
    /// Only prints how many mistakes there are.
    #[arg(long)]
    list: bool,
    /// Writes the tables of docs/mutants.md; takes hours
    #[arg(long, conflicts_with_all = ["changed", "only"])]
    write: bool,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

/// True if every survivor is explained.
fn run(args: &Args) -> Result<bool> {
    let changed = args.changed.as_deref().map(tree::changed_lines).transpose()?;
    let mut tree = tree::Tree::copy()?;
    let is_wanted = |m: &tree::Located| {
        args.only.as_ref().is_none_or(|only| m.file.contains(only.as_str()))
            && changed.as_ref().is_none_or(|lines| lines.contains(&(m.file.clone(), m.mutant.line)))
    };
    let wanted: Vec<usize> = (0..tree.mutants.len()).filter(|&i| is_wanted(&tree.mutants[i])).collect();
    println!("{} mistakes, {} of them wanted", tree.mutants.len(), wanted.len());
    if args.list || wanted.is_empty() {
        return Ok(true);
    }
    if args.report {
        return report::report(&tree, &run::earlier(&tree)?, args.write);
    }
    tree.compile()?;
    let kept = if args.rest { report::settled(run::earlier(&tree)?)? } else { run::Results::new() };
    let results = run::run(&tree, &wanted, args.seconds, kept)?;
    report::report(&tree, &results, args.write)
}
