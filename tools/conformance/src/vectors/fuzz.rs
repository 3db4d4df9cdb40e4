//! Random streams, and corrupt ones with correct checksums, decoded by the library and by the reference
//! decoder.
//!
//! The library's encoder writes a few blocks of random kinds. The corrupt stream has some changed bytes in a
//! frame's body, and correct checksums. Both decoders must accept it with the same contents, or both refuse
//! it; the reasons may differ if there are several.

use std::process::Command;

use gcodec::Limits;
use gcodec::stream::{EncodeOptions, Encoder};
use serde_json::{Value, json};

use super::arbitrary::{self, Random};
use super::build::{self, Stream};
use super::describe;
use crate::{Result, root};

/// Limits of both decoders, which keep the reference decoder fast.
const ELEMENTS: u64 = 1 << 14;
const MEMORY: u64 = 1 << 22;

pub(crate) fn run(count: u64) -> Result<()> {
    let mut vectors = Vec::new();
    let (mut taken, mut refused) = (0, 0);
    for seed in 0..count {
        let mut random = Random::of_seed(seed);
        let bytes = stream(&mut random);
        vectors.push(vector(format!("valid-{seed}"), &bytes)?);
        if vectors.last().is_some_and(|v| v["result"] == "invalid") {
            return Err(format!("seed {seed}: the library refuses what it wrote").into());
        }
        let damaged = vector(format!("damaged-{seed}"), &damaged(&mut random, &bytes))?;
        *if damaged["result"] == "valid" { &mut taken } else { &mut refused } += 1;
        vectors.push(damaged);
    }
    let folder = tempfile::Builder::new().prefix("gcodec-fuzz-").tempdir()?;
    std::fs::write(folder.path().join("index.json"), serde_json::to_vec(&json!({ "vectors": vectors }))?)?;
    println!("{count} streams; of as many damaged ones the library takes {taken} and refuses {refused}");
    let decoder = root().join("spec/reference/decoder.py");
    let agreed = Command::new("python3").arg(decoder).arg("--vectors").arg(folder.path()).status()?.success();
    if !agreed {
        return Err(format!("the decoders disagree: see {}", folder.keep().display()).into());
    }
    Ok(folder.close()?)
}

/// Returns the stream and the library's result, which must not depend on how the bytes arrive.
fn vector(id: String, bytes: &[u8]) -> Result<Value> {
    let limits = json!({ "max_elements": ELEMENTS, "max_alloc_bytes": MEMORY });
    let mut out = json!({ "id": id, "hex": describe::hex(bytes), "limits": limits });
    let limits: Limits = describe::limits(&out);
    let whole = describe::describe(bytes, &limits);
    match (whole, describe::describe_in_pieces(bytes, &limits, 3)) {
        (Ok(whole), Ok(pieces)) if whole == pieces => {
            out["result"] = json!("valid");
            out["expected"] = whole;
        }
        (Err(whole), Err(pieces)) if whole.to_string() == pieces.to_string() => {
            out["result"] = json!("invalid");
            out["error"] = json!({});
            out["notes"] = json!(whole.to_string());
        }
        _ => return Err(format!("{id}: another outcome in pieces").into()),
    }
    Ok(out)
}

/// Changes one to three bytes of a frame's body and corrects all checksums.
fn damaged(random: &mut Random<'_>, bytes: &[u8]) -> Vec<u8> {
    let mut frames = Vec::new();
    let mut at = 16;
    while let Some(head) = bytes.get(at..at + 24) {
        let len = u64::from_le_bytes(std::array::from_fn(|i| head[8 + i])) as usize;
        let [kind, flags] = [4, 6].map(|i| u16::from_le_bytes([head[i], head[i + 1]]));
        frames.push((kind, flags, bytes[at + 24..at + 24 + len].to_vec()));
        at += 24 + len;
    }
    frames.pop();
    // Mostly in the update's blocks; a changed manifest has another id, which the update does not refer to.
    let victim =
        if random.below(8) == 0 { random.below(frames.len() as u64) as usize } else { frames.len() - 1 };
    let body = &mut frames[victim].2;
    let first = if victim > 0 { 40.min(body.len() as u64 - 1) } else { 0 };
    for _ in 0..=random.below(3) {
        let at = (first + random.below(body.len() as u64 - first)) as usize;
        body[at] = match random.below(3) {
            0 => body[at] ^ 1 << random.below(8),
            1 => random.next() as u8,
            _ => body[at].wrapping_add(1),
        };
    }
    frames
        .into_iter()
        .fold(build::stream(), |s: Stream, (kind, flags, body)| s.frame(kind, flags, body))
        .done()
}

fn stream(random: &mut Random<'_>) -> Vec<u8> {
    let manifest = arbitrary::manifest(random);
    let update = arbitrary::update(random, &manifest, false);
    let mut encoder = Encoder::new(EncodeOptions::default().with_index(false));
    let mut out = Vec::new();
    let blocks: Vec<_> = update.blocks.iter().map(|(b, o)| (b, *o)).collect();
    encoder.update(&mut out, &update.header, &manifest, &blocks).expect("blocks that hold together");
    encoder.finish(&mut out);
    out
}
