//! Runs the conformance vectors of `spec/vectors` through the library's public API.

use crate::describe::{describe_in_pieces, limits, outcome, reencode, unhex};
use gcodec::block::{
    Affine, Block, Chunked, Codebook, Levels, Minifloat, Planes, Pow2, Sparse, Support, Ulp, Values,
};
use gcodec::frame::Budget;
use gcodec::stream::{Body, Event, SliceReader};
use serde_json::Value;

/// Returns the vectors of `spec/vectors`.
pub(crate) fn vectors() -> Vec<Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/spec/vectors/index.json");
    let index: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    index["vectors"].as_array().unwrap().clone()
}

/// Runs `check` on all vectors with this result, and panics at the end with a list of all failures.
fn each(result: &str, mut check: impl FnMut(&Value, &[u8]) -> Result<(), String>) {
    let mut checked = 0;
    let mut wrong = Vec::new();
    for vector in vectors().iter().filter(|v| v["result"] == result) {
        checked += 1;
        if let Err(e) = check(vector, &unhex(vector["hex"].as_str().unwrap())) {
            wrong.push(format!("{}: {e}", vector["id"]));
        }
    }
    assert!(checked > 100, "only {checked} {result} vectors");
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

fn same(what: &str, found: &Value, expected: &Value) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what}: {found}, expected {expected}")) }
}

#[test]
fn valid_vectors_decode_as_expected() {
    each("valid", |vector, bytes| {
        let (described, tensors) = outcome(vector, bytes).map_err(|e| e.to_string())?;
        same("frames", &described, &vector["expected"])?;
        tensors.map_or(Ok(()), |tensors| same("tensors", &tensors, &vector["tensors"]))
    });
}

#[test]
fn valid_vectors_decode_the_same_in_pieces() {
    each("valid", |vector, bytes| {
        for piece in [1, 7] {
            let described = describe_in_pieces(bytes, &limits(vector), piece).map_err(|e| e.to_string())?;
            same("frames in pieces", &described, &vector["expected"])?;
        }
        Ok(())
    });
}

#[test]
fn invalid_vectors_give_the_expected_error() {
    each("invalid", |vector, bytes| {
        let expected = vector["error"]["kind"].as_str().unwrap();
        match outcome(vector, bytes) {
            Err(e) if e.name() == expected => {}
            Err(e) => return Err(format!("{expected} expected, {}: {e}", e.name())),
            Ok(_) => return Err(format!("{expected} expected, accepted")),
        }
        // Decoding byte by byte gives the same error at the same offset.
        let whole = crate::describe::describe(bytes, &limits(vector));
        match (whole, describe_in_pieces(bytes, &limits(vector), 1)) {
            (Err(whole), Err(pieces)) if whole.to_string() == pieces.to_string() => Ok(()),
            (Ok(_), Ok(_)) if vector["error"]["stage"] == "tensors" => Ok(()),
            (whole, pieces) => Err(format!("as a whole {:?}, byte by byte {:?}", whole.err(), pieces.err())),
        }
    });
}

#[test]
fn roundtrip_vectors_are_encoded_to_the_same_bytes() {
    each("valid", |vector, bytes| {
        if vector["roundtrip"] != true {
            return Ok(());
        }
        match reencode(bytes, &limits(vector)) {
            Some(again) if again == bytes => Ok(()),
            _ => Err("encoded to different bytes".to_owned()),
        }
    });
}

/// Returns the bytes that a decoded block takes beyond those of its wire form, at least.
fn memory_of(block: &Block) -> u64 {
    let support = match &block.support {
        Support::Sparse(Sparse { positions }) => 8 * positions.len(),
        Support::Chunked(Chunked { positions, .. }) => 4 * positions.len(),
        _ => 0,
    };
    let values = match &block.values {
        // Levels up to 127 are kept as bytes.
        Values::Levels(Levels { max_level, levels, .. }) => {
            levels.len() * if *max_level <= 127 { 1 } else { 4 }
        }
        Values::Ulp(Ulp { diffs }) => 8 * diffs.len(),
        Values::Pow2(Pow2 { codes, negative, .. }) => codes.len() + negative.as_bytes().len(),
        Values::Affine(Affine { codes, .. }) => codes.len(),
        Values::Codebook(Codebook { codes, .. }) => codes.len(),
        Values::Minifloat(Minifloat { codes, .. }) => codes.len(),
        Values::Planes(Planes { bytes }) => bytes.len(),
        _ => 0,
    };
    (support + values) as u64
}

#[test]
fn memory_is_reserved_for_what_is_decoded() {
    let mut measured = 0;
    each("valid", |vector, bytes| {
        let limits = limits(vector);
        for event in SliceReader::new(bytes, limits.clone()) {
            let Ok(Event::Frame(_, Body::Update(part))) = event else { continue };
            for number in 0..part.blocks.len() {
                let Ok(block) = part.decode(number, &part.budget()) else { continue };
                let memory = memory_of(&block);
                let budget = |bytes| Budget::new(&limits.clone().with_max_alloc_bytes(bytes));
                if memory > 0 && part.decode(number, &budget(memory - 1)).is_ok() {
                    return Err(format!("block {number} takes {memory} bytes that are not reserved"));
                }
                measured += u32::from(memory > 0);
            }
        }
        Ok(())
    });
    assert!(measured > 100, "{measured}");
}

/// The texts of errors have the place: kind, byte offset, frame, block and tensor. Those of limits have the
/// defaults of machines of 64 bits.
#[test]
#[cfg(target_pointer_width = "64")]
fn errors_of_invalid_vectors_name_their_places() {
    let mut found = String::new();
    each("invalid", |vector, bytes| {
        let error = outcome(vector, bytes).map(drop).expect_err("an invalid vector");
        found += &format!("{} | {error}\n", vector["id"].as_str().unwrap());
        Ok(())
    });
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/wire/errors.txt");
    if std::env::var_os("GCODEC_WRITE_ERRORS").is_some() {
        std::fs::write(path, &found).unwrap();
    }
    let expected = std::fs::read_to_string(path).unwrap();
    let lines = || found.lines().zip(expected.lines()).filter(|(found, expected)| found != expected);
    let differ: Vec<String> = lines().map(|(found, expected)| format!("{expected}\n  is {found}")).collect();
    assert!(
        differ.is_empty() && found.lines().count() == expected.lines().count(),
        "errors differ; if this is intended, write them with GCODEC_WRITE_ERRORS=1:\n{}",
        differ.join("\n")
    );
}
