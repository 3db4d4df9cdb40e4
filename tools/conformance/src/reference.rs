//! Compares the reference decoder with the library, on files that the command line writes from the public
//! gradients.
//!
//! The inputs are `tools/cli/gradients/` and excerpts of the public gradient set, since the reference
//! decoder takes some microseconds per element. Every name, key and choice of a codec specification must
//! occur in a case (`uncovered`).

mod cases;
mod dump;
pub(crate) mod foreign;
mod profile;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Instant;

use serde_json::Value;

use self::cases::{Case, cases, uncovered};
use self::dump::Dump;
use crate::programs::gcodec;
use crate::readers::{self, run};
use crate::{Outcome, Result, root};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder of the public gradient set; without it only the files of tools/cli/gradients/ are used
    #[arg(long, default_value = "../shared/gradients")]
    gradients: PathBuf,
    /// Tests every file of the set with every family of codecs, and longer excerpts: some minutes
    #[arg(long)]
    long: bool,
}

pub(crate) fn run_all(args: &Args) -> Result<Outcome> {
    let python = match readers::python() {
        Ok(python) => python,
        Err(reason) => return Ok(Outcome::Skipped(reason)),
    };
    let (gcodec, place) = (gcodec()?, readers::fresh("reference")?);
    let decoder = root().join("spec/reference/decoder.py");
    for profile in ["full", "core"] {
        let said = run(Command::new(&python)
            .arg(&decoder)
            .args(["--vectors", "--no-skips", "--profile", profile])
            .arg(root().join("spec/vectors")))?;
        print!("vectors, with zstd, {profile} profile: {}", String::from_utf8_lossy(&said));
    }
    run(Command::new(&python).arg(root().join("spec/reference/test_decoder.py")))?;

    let streams = profile::check(&gcodec, &python, &decoder, &place)?;
    println!("{streams} streams of the core profile: a decoder of this profile alone gives the same bits");

    let cases = cases(args, &place)?;
    let uncovered = uncovered(&cases);
    if !uncovered.is_empty() {
        return Err(format!("no case has {}", uncovered.join(", ")).into());
    }
    let start = Instant::now();
    let queue = Mutex::new(cases.iter());
    let failures = Mutex::new(Vec::new());
    let total = Mutex::new((0, 0, 0));
    let next = || queue.lock().ok()?.next();
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from).min(8) {
            scope.spawn(|| {
                while let Some(case) = next() {
                    match check(case, &gcodec, &python, &decoder, &place) {
                        Ok((updates, bytes, elements)) => {
                            if let Ok(mut total) = total.lock() {
                                *total = (total.0 + updates, total.1 + bytes, total.2 + elements);
                            }
                        }
                        Err(e) => {
                            println!("{}: {e}", case.name);
                            failures.lock().map(|mut list| list.push(case.name.clone())).unwrap_or_default();
                        }
                    }
                }
            });
        }
    });
    let failures = failures.into_inner()?;
    let (updates, bytes, elements) = total.into_inner()?;
    println!(
        "{} streams, {updates} updates, {bytes} bytes, {elements} elements in {:.1?}: both decoders give the same bits in {}",
        cases.len(),
        start.elapsed(),
        cases.len() - failures.len()
    );
    match failures.is_empty() {
        true => Ok(Outcome::Passed),
        false => Err(format!("{} streams failed", failures.len()).into()),
    }
}

/// Writes the stream of a case and decodes it with both; returns its updates, bytes and elements.
fn check(
    case: &Case,
    gcodec: &Path,
    python: &Path,
    decoder: &Path,
    place: &Path,
) -> Result<(usize, u64, usize)> {
    let file = |ending: &str| place.join(format!("{}{ending}", case.name));
    for command in &case.commands {
        run(Command::new(gcodec).arg("--quiet").args(command).current_dir(place))?;
    }
    let stream = file(".gcu");
    let bytes = fs::read(&stream)?;
    if let Some(twin) = &case.twin
        && fs::read(place.join(twin))? != bytes
    {
        return Err(format!("other bytes than {twin}").into());
    }
    let mut base = case.base.clone();
    let mut elements = 0;
    for (number, step) in case.steps.iter().enumerate() {
        let (ours, theirs) =
            (file(&format!(".{step}.safetensors")), file(&format!(".{}.base.json", number % 2)));
        let mut decode = Command::new(gcodec);
        decode
            .args(["--quiet", "decode"])
            .arg(&stream)
            .arg("-o")
            .arg(&ours)
            .args(["--step", &step.to_string()]);
        let mut reference = Command::new(python);
        reference.arg(decoder).arg("--tensors").arg(&stream).args(["--step", &step.to_string()]);
        if let Some(base) = &base {
            decode.arg("--base").arg(base);
            let converted = file(".base.json");
            fs::write(&converted, serde_json::to_vec(&Dump::read(base)?.as_json())?)?;
            reference.arg("--base").arg(converted);
        }
        run(&mut decode)?;
        let got = run(&mut reference)?;
        elements += compare(&serde_json::from_slice(&got)?, &Dump::read(&ours)?.as_json())
            .map_err(|e| format!("step {step}: {e}"))?;
        fs::write(theirs, got)?;
        base = case.is_chain.then_some(ours);
    }
    Ok((case.steps.len(), bytes.len() as u64, elements))
}

/// Compares two sets of tensors in the reference decoder's form; returns the number of elements.
fn compare(reference: &Value, library: &Value) -> Result<usize> {
    let (Some(a), Some(b)) = (reference.as_object(), library.as_object()) else {
        return Err("no tensors".into());
    };
    let names = |tensors: &serde_json::Map<String, Value>| tensors.keys().cloned().collect::<BTreeSet<_>>();
    if names(a) != names(b) {
        return Err("other tensors".into());
    }
    let mut elements = 0;
    for (name, tensor) in a {
        for field in ["dtype", "shape", "data"] {
            let (x, y) = (&tensor[field], &b[name][field]);
            if x == y {
                continue;
            }
            let at = match (x.as_str(), y.as_str()) {
                (Some(x), Some(y)) => x.bytes().zip(y.bytes()).take_while(|(x, y)| x == y).count() / 2,
                _ => 0,
            };
            return Err(format!("tensor {name:?} has another {field}, from byte {at} on").into());
        }
        let dims = tensor["shape"].as_array().into_iter().flatten();
        elements += dims.map(|d| d.as_u64().unwrap_or(0) as usize).product::<usize>();
    }
    Ok(elements)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::dump::Tensor;
    use super::*;

    #[test]
    fn a_difference_of_one_bit_is_found() {
        let tensors = |name: &str, dtype: &str, data: &[u8]| {
            let tensor = Tensor { dtype: dtype.into(), shape: vec![2, 2], data: data.to_vec() };
            Dump { tensors: BTreeMap::from([(name.to_owned(), tensor)]) }.as_json()
        };
        let ours = tensors("w", "F8_E4M3", &[1, 2, 3, 4]);
        assert_eq!(ours["w"]["dtype"], "f8e4m3fn");
        assert_eq!(compare(&ours, &ours).unwrap(), 4);
        for (theirs, why) in [
            (tensors("w", "F8_E4M3", &[1, 2, 7, 4]), "data, from byte 2"),
            (tensors("w", "F8_E4M3", &[1, 2, 3]), "data, from byte 3"),
            (tensors("w", "U8", &[1, 2, 3, 4]), "another dtype"),
            (tensors("v", "F8_E4M3", &[1, 2, 3, 4]), "other tensors"),
            (json!([]), "no tensors"),
        ] {
            let error = compare(&theirs, &ours).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
