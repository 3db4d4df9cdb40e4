//! Compares the command line with the same program built for another machine, on the same cases.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use super::cases::{Case, demo_cases, uncovered};
use crate::programs::gcodec;
use crate::readers::{self, run};
use crate::{Outcome, Result};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The other program, with the emulator that runs it
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<String>,
}

/// A program, and the folder that it writes to.
struct Side<'a> {
    words: &'a [String],
    place: &'a Path,
}

impl Side<'_> {
    fn run(&self, arguments: &[String]) -> Result<()> {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).arg("--quiet").args(arguments).current_dir(self.place);
        run(&mut command).map(drop)
    }
}

/// Runs every case with both programs; their streams and the tensors that they decode must be the same
/// bytes.
pub(crate) fn run_all(args: &Args) -> Result<Outcome> {
    let here = vec![gcodec()?.display().to_string()];
    let (near, far) = (readers::fresh("foreign/here")?, readers::fresh("foreign/there")?);
    let (ours, theirs) = (demo_cases(&near)?, demo_cases(&far)?);
    let uncovered = uncovered(&ours);
    if !uncovered.is_empty() {
        return Err(format!("no case has {}", uncovered.join(", ")).into());
    }
    let sides = [Side { words: &here, place: &near }, Side { words: &args.program, place: &far }];
    let queue = Mutex::new(ours.iter().zip(&theirs));
    let failures = Mutex::new(0);
    let next = || queue.lock().ok()?.next();
    let work = || {
        while let Some((ours, theirs)) = next() {
            if let Err(e) = check(&sides, [ours, theirs]) {
                println!("{}: {e}", ours.name);
                failures.lock().map(|mut count| *count += 1).unwrap_or_default();
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from).min(8) {
            scope.spawn(work);
        }
    });
    let failures = failures.into_inner()?;
    println!("{} streams, the same bytes, encoded and decoded, in {}", ours.len(), ours.len() - failures);
    Ok(Outcome::from(failures == 0))
}

/// Encodes and decodes a case with both programs; the two cases differ in the folder of their base.
fn check(sides: &[Side<'_>; 2], cases: [&Case; 2]) -> Result<()> {
    let name = &cases[0].name;
    for (side, case) in sides.iter().zip(cases) {
        for command in &case.commands {
            side.run(command)?;
        }
    }
    same(sides, &format!("{name}.gcu"))?;
    let mut base = cases.map(|case| case.base.clone());
    for step in &cases[0].steps {
        let output = format!("{name}.{step}.safetensors");
        for (side, base) in sides.iter().zip(&mut base) {
            let mut decode = ["decode".into(), format!("{name}.gcu"), "-o".into(), output.clone()].to_vec();
            decode.extend(["--step".into(), step.to_string()]);
            if let Some(base) = base {
                decode.extend(["--base".into(), base.display().to_string()]);
            }
            side.run(&decode)?;
            *base = cases[0].is_chain.then(|| side.place.join(&output));
        }
        same(sides, &output)?;
    }
    Ok(())
}

/// Compares a file that both programs wrote.
fn same(sides: &[Side<'_>; 2], file: &str) -> Result<()> {
    let [ours, theirs] = sides.each_ref().map(|side| fs::read(side.place.join(file)));
    let (ours, theirs) = (ours?, theirs?);
    if ours == theirs {
        return Ok(());
    }
    let at = ours.iter().zip(&theirs).take_while(|(a, b)| a == b).count();
    Err(format!("{file}: {} and {} bytes, the same up to byte {at}", ours.len(), theirs.len()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_byte_and_another_length_are_found() {
        let place = tempfile::tempdir().unwrap();
        let folders = ["a", "b"].map(|name| place.path().join(name));
        let sides = folders.each_ref().map(|place| Side { words: &[], place });
        let write = |number: usize, bytes: &[u8]| {
            fs::create_dir_all(&folders[number]).unwrap();
            fs::write(folders[number].join("x"), bytes).unwrap();
        };
        write(0, &[1, 2, 3]);
        for (theirs, why) in [(&[1, 2, 4][..], "up to byte 2"), (&[1, 2], "3 and 2 bytes")] {
            write(1, theirs);
            let error = same(&sides, "x").unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        write(1, &[1, 2, 3]);
        same(&sides, "x").unwrap();
    }
}
