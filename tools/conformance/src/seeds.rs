//! Seeds of the fuzz targets, made from the vectors, and their dictionary.

use std::fs;
use std::path::{Path, PathBuf};

use gcodec::block::{RawBlock, Scope, SupportId, ValuesId};
use gcodec::stream::{Body, Event, SliceReader};
use gcodec::{Dtype, Limits};
use serde_json::Value;

use crate::{Result, dictionary, root};

const DICTIONARY: &str = "fuzz/gcodec.dict";

/// Without `--write`: checks the dictionary and writes the seeds of the targets.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only writes the dictionary, after a change to the registry.
    #[arg(long)]
    write: bool,
    /// Folder to write the seeds to, one folder in it for each target.
    #[arg(long, value_name = "FOLDER", default_value = "fuzz/corpus")]
    into: PathBuf,
    /// Targets; all targets if none is given.
    targets: Vec<String>,
}

/// Input that a fuzz target takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Food {
    /// Streams: the vectors.
    Streams,
    /// Choices and a block: the blocks of the vectors.
    Blocks,
    /// Choices.
    Choices,
}

const TARGETS: &[(&str, Food)] = &[
    ("stream", Food::Streams),
    ("body", Food::Blocks),
    ("file", Food::Streams),
    ("roundtrip", Food::Choices),
    ("inspect", Food::Streams),
    ("recover", Food::Streams),
    ("delta", Food::Choices),
    ("reference", Food::Streams),
];

pub(crate) fn run(args: &Args) -> Result<()> {
    let path = root().join(DICTIONARY);
    let text = dictionary::text()?;
    if args.write {
        return Ok(fs::write(path, text)?);
    }
    if fs::read_to_string(path).ok() != Some(text) {
        return Err(format!("{DICTIONARY} is out of date: cargo xtask fuzz --write").into());
    }
    let wanted = |name: &str| args.targets.is_empty() || args.targets.iter().any(|target| target == name);
    TARGETS
        .iter()
        .filter(|(name, _)| wanted(name))
        .try_for_each(|(name, food)| write(&root().join(&args.into).join(name), name, *food))
}

/// Writes a target's seeds into its corpus.
fn write(corpus: &Path, name: &str, food: Food) -> Result<()> {
    fs::create_dir_all(corpus)?;
    if food == Food::Choices {
        return write_choices(corpus, name == "roundtrip");
    }
    let index: Value = serde_json::from_slice(&fs::read(root().join("spec/vectors/index.json"))?)?;
    for vector in index["vectors"].as_array().ok_or("no vectors")? {
        let (id, digits) =
            vector["id"].as_str().zip(vector["hex"].as_str()).ok_or("a vector without id or bytes")?;
        let bytes = unhex(digits).ok_or_else(|| format!("{id}: bytes that are no hexadecimal digits"))?;
        let path = corpus.join(id.replace('/', "-"));
        match food {
            Food::Streams => fs::write(path, bytes)?,
            _ => write_blocks(&path, &bytes)?,
        }
    }
    Ok(())
}

/// Writes random choices, 16 to 512 bytes each.
fn write_choices(corpus: &Path, roundtrip: bool) -> Result<()> {
    for number in 0..32u64 {
        let len = 16 << (number % 6);
        let byte = |i| gcodec::compress::random::word(number, 0, i) as u8;
        let bytes: Vec<u8> = (0..len).map(byte).collect();
        fs::write(corpus.join(format!("choices-{number}")), bytes)?;
    }
    // Choices of `roundtrip` that lead to a tensor of more than 131,072 elements, for each codec and
    // structure.
    for number in (0..20u8).filter(|_| roundtrip) {
        let (codec, structure) = (number % 5, number / 5);
        let bytes = [160, 0, number, 1, 2, 3, number, 20, structure % 2, structure / 2, codec];
        fs::write(corpus.join(format!("long-{number}")), bytes)?;
    }
    Ok(())
}

fn unhex(digits: &str) -> Option<Vec<u8>> {
    let byte = |i| u8::from_str_radix(digits.get(i..i + 2)?, 16).ok();
    (0..digits.len()).step_by(2).map(byte).collect()
}

fn write_blocks(path: &Path, stream: &[u8]) -> Result<()> {
    let mut number = 0;
    for event in SliceReader::new(stream, Limits::default()) {
        let Ok(Event::Frame(_, Body::Update(part))) = event else { continue };
        for block in &part.blocks {
            fs::write(path.with_extension(number.to_string()), choices(block))?;
            number += 1;
        }
    }
    Ok(())
}

/// Returns the choices with which the target `body` makes this block on one of its tensors.
fn choices(block: &RawBlock<'_>) -> Vec<u8> {
    let delta = block.values_id == ValuesId::ULP;
    let all = block.support_id == SupportId::ALL;
    let (kind, fields) = match block.scope {
        Scope::Tensor(_) => (0, vec![]),
        Scope::Tensors { count, .. } => (1, vec![count]),
        Scope::Range { start, len, .. } => (2, vec![start, len]),
    };
    let tensor = match block.space.dtype {
        Dtype::F32 if block.space.len() == 36 => 3,
        Dtype::Bf16 | Dtype::F16 => 4,
        Dtype::F64 => 6,
        Dtype::I64 | Dtype::I32 => 7,
        Dtype::F4E2M1 => 8,
        Dtype::F8E4M3Fn => 10,
        Dtype::Bool => 11,
        _ => 0,
    };
    let mut out = vec![u8::from(!delta), 0, kind | u8::from(block.add) << 2 | u8::from(all) << 3, tensor];
    out.extend(fields.iter().map(|f| *f as u8 % 40));
    if !all {
        out.push(block.support_id.0 as u8 - 1);
    }
    out.push(block.values_id.0 as u8 - 1);
    if !all {
        out.push(block.support.len().min(63) as u8);
    }
    out.extend(&block.support[..block.support.len().min(63)]);
    out.extend(block.values);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dictionary_matches_the_registry() {
        let written = fs::read_to_string(root().join(DICTIONARY)).unwrap();
        assert_eq!(written, dictionary::text().unwrap(), "cargo xtask fuzz --write");
    }

    #[test]
    fn every_target_has_a_file_and_every_file_is_a_target() {
        let files = fs::read_dir(root().join("fuzz/fuzz_targets")).unwrap();
        let stem = |path: std::path::PathBuf| path.file_stem().unwrap().to_string_lossy().into_owned();
        let mut found: Vec<String> = files.map(|file| stem(file.unwrap().path())).collect();
        let mut targets: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
        found.sort();
        targets.sort();
        assert_eq!(found, targets);
    }
}
