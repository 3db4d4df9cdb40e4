//! Seeds of the targets, from the vectors.

use std::fs;
use std::path::Path;

use gcodec::block::{RawBlock, SupportId, ValuesId};
use gcodec::{Body, Dtype, Event, Limits, Scope, SliceReader};
use serde_json::Value;

use super::{Food, Target, folder};
use crate::{Result, root};

/// Writes a target's seeds into its corpus.
pub(super) fn write(target: &Target) -> Result<()> {
    let corpus = folder().join("corpus").join(target.name);
    fs::create_dir_all(&corpus)?;
    if target.food == Food::Choices {
        for number in 0..32u64 {
            // Random choices, of 16 to 512 bytes.
            let len = 16 << (number % 6);
            let byte = |i| gcodec::random::word(number, 0, i) as u8;
            let bytes: Vec<u8> = (0..len).map(byte).collect();
            fs::write(corpus.join(format!("choices-{number}")), bytes)?;
        }
        // The choices of `roundtrip` that lead to a tensor of more than 131,072 elements, for each codec and structure.
        for number in (0..20u8).filter(|_| target.name == "roundtrip") {
            let (codec, structure) = (number % 5, number / 5);
            let bytes = [160, 0, number, 1, 2, 3, number, 20, structure % 2, structure / 2, codec];
            fs::write(corpus.join(format!("long-{number}")), bytes)?;
        }
        return Ok(());
    }
    let index: Value = serde_json::from_slice(&fs::read(root().join("spec/vectors/index.json"))?)?;
    for vector in index["vectors"].as_array().ok_or("no vectors")? {
        let (id, digits) =
            vector["id"].as_str().zip(vector["hex"].as_str()).ok_or("a vector without id or bytes")?;
        let bytes = unhex(digits).ok_or_else(|| format!("{id}: bytes that are no hexadecimal digits"))?;
        let path = corpus.join(id.replace('/', "-"));
        match target.food {
            Food::Streams => fs::write(path, bytes)?,
            _ => write_blocks(&path, &bytes)?,
        }
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

/// The choices by which the target `body` makes this block, of one of its own tensors.
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
