//! Random streams, and damaged ones with right checksums, decoded by the library and by the reference decoder.
//!
//! A stream holds a few blocks of random kinds by the library's encoder. The damaged one is the same with some bytes of a
//! frame's body changed and the checksums made right again: both decoders must take it, and to the same contents, or
//! both refuse it; for which reason may differ where there are several.

use std::process::Command;
use std::sync::Arc;

use gcodec::block::{
    Bits, Groups, Minifloat, ModelId, Norm, ScaleFormat, Scales, Spacing, Stored, Underflow, Zero,
};
use gcodec::{
    Block, BlockOptions, Dtype, EncodeOptions, Encoder, Limits, Manifest, Positions, Scope, Support,
    TensorInfo, UpdateHeader, Values,
};
use serde_json::{Value, json};

use super::build::{self, Stream};
use super::{Outcome, describe, repository};

/// Both decoders' limits: what the reference decoder can do in a short time.
const ELEMENTS: u64 = 1 << 14;
const MEMORY: u64 = 1 << 22;

pub(crate) fn run(count: u64) -> Outcome {
    let mut vectors = Vec::new();
    let (mut taken, mut refused) = (0, 0);
    for seed in 0..count {
        let mut random = Random { seed, drawn: 0 };
        let bytes = stream(&mut random);
        vectors.push(vector(format!("valid-{seed}"), &bytes)?);
        if vectors.last().is_some_and(|v| v["result"] == "invalid") {
            return Err(format!("seed {seed}: the library refuses what it wrote").into());
        }
        let damaged = vector(format!("damaged-{seed}"), &damaged(&mut random, &bytes))?;
        *if damaged["result"] == "valid" { &mut taken } else { &mut refused } += 1;
        vectors.push(damaged);
    }
    let folder = std::env::temp_dir().join(format!("gcodec-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("index.json"), serde_json::to_vec(&json!({ "vectors": vectors }))?)?;
    println!("{count} streams; of as many damaged ones the library takes {taken} and refuses {refused}");
    let decoder = repository().join("spec/reference/decoder.py");
    let agreed = Command::new("python3").arg(decoder).arg("--vectors").arg(&folder).status()?.success();
    if !agreed {
        return Err(format!("the decoders disagree: see {}", folder.display()).into());
    }
    Ok(std::fs::remove_dir_all(folder)?)
}

/// The stream and what the library makes of it, which must not depend on how it arrives.
fn vector(id: String, bytes: &[u8]) -> Outcome<Value> {
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

/// Changes one to three bytes of a frame's body and makes all checksums right.
fn damaged(random: &mut Random, bytes: &[u8]) -> Vec<u8> {
    let mut frames = Vec::new();
    let mut at = 16;
    while let Some(head) = bytes.get(at..at + 24) {
        let len = u64::from_le_bytes(std::array::from_fn(|i| head[8 + i])) as usize;
        let [kind, flags] = [4, 6].map(|i| u16::from_le_bytes([head[i], head[i + 1]]));
        frames.push((kind, flags, bytes[at + 24..at + 24 + len].to_vec()));
        at += 24 + len;
    }
    frames.pop();
    // Mostly the update's blocks; a damaged manifest has another id, which the update does not refer to.
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

/// Words that follow from the seed alone.
struct Random {
    seed: u64,
    drawn: u64,
}

impl Random {
    fn next(&mut self) -> u32 {
        self.drawn += 1;
        gcodec::random::word(self.seed, 1, self.drawn)
    }

    fn below(&mut self, n: u64) -> u64 {
        u64::from(self.next()) % n.max(1)
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    fn bytes(&mut self, count: u64) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }

    /// Numbers below `n` that are small more often than great, or are all alike, or even.
    fn symbols(&mut self, count: u64, n: u16) -> Vec<u8> {
        let shape = self.below(4);
        let n = u64::from(n);
        let one = |r: &mut Self| match shape {
            0 => r.below(n),
            1 => 0,
            2 => r.below(n).min(r.below(n)).min(r.below(n)),
            _ => u64::from(r.next().leading_zeros()) % n,
        };
        (0..count).map(|_| one(self) as u8).collect()
    }

    fn bits(&mut self, count: u64) -> Bits {
        (0..count).map(|_| self.below(2) == 1).collect()
    }

    /// Elements of a type, any bit patterns.
    fn elements(&mut self, dtype: Dtype, count: u64) -> Vec<u8> {
        let mut bytes = self.bytes(dtype.bytes_for(count).unwrap_or(0));
        if dtype.bits() == 4 && count % 2 == 1 {
            bytes.iter_mut().last().into_iter().for_each(|b| *b &= 15);
        }
        bytes
    }
}

fn stream(random: &mut Random) -> Vec<u8> {
    let tensors = 1 + random.below(4);
    let infos: Vec<TensorInfo> = (0..tensors)
        .map(|i| {
            let shape: Vec<u64> = (0..random.below(4)).map(|_| random.below(13)).collect();
            let dtype = if random.below(2) == 0 { random.one(&Dtype::ALL) } else { Dtype::F32 };
            TensorInfo::new(format!("tensor.{i}"), dtype, shape)
        })
        .collect();
    let manifest = Arc::new(Manifest::new(infos.clone()).expect("a manifest"));
    let mut blocks = Vec::new();
    let mut tensor = 0;
    while tensor < tensors {
        let info = &infos[tensor as usize];
        let n = info.elements();
        let alike = infos[tensor as usize..].iter().take_while(|t| t.dtype == info.dtype).count() as u64;
        let scope = match random.below(3) {
            0 if n > 1 => {
                let start = random.below(n - 1) + 1;
                Scope::Range { tensor, start, len: 1 + random.below(n - start) }
            }
            1 if alike > 1 => Scope::Tensors { first: tensor, count: 2 + random.below(alike - 1) },
            _ => Scope::Tensor(tensor),
        };
        tensor += scope.tensors();
        let space = manifest.space(scope, 0).expect("a scope inside the manifest");
        let (support, m) = support(random, space.len());
        let all = support == Support::All;
        let values = values(random, info.dtype, m, scope.tensors(), all);
        let add = random.below(4) == 0 && !values.gives_bits();
        let positions =
            [Positions::Auto, Positions::Rice, Positions::RiceOne, Positions::Tokens, Positions::Bitmap];
        let options = BlockOptions::default().with_positions(random.one(&positions));
        blocks.push((Block { scope, add, support, values }, options));
    }
    let mut encoder = Encoder::new(EncodeOptions::default().with_index(false));
    let mut out = Vec::new();
    let header = UpdateHeader::default().with_step(random.next().into());
    let blocks: Vec<_> = blocks.iter().map(|(b, o)| (b, *o)).collect();
    encoder.update(&mut out, &header, &manifest, &blocks).expect("blocks that hold together");
    encoder.finish(&mut out);
    out
}

/// A support over `n` elements, and how many it has.
fn support(random: &mut Random, n: u64) -> (Support, u64) {
    let some = |random: &mut Random, n: u64| -> Vec<u64> {
        let rarity = 1 + random.below(9);
        (0..n).filter(|_| random.below(rarity) == 0).collect()
    };
    let support = match random.below(5) {
        0 => Support::Sparse(some(random, n)),
        1 => {
            let chunk_len = 1 + random.below(40);
            let kept = 1 + random.below(chunk_len);
            let mut positions = Vec::new();
            for start in (0..n).step_by(chunk_len as usize) {
                let len = chunk_len.min(n - start);
                let mut chosen: Vec<u32> = (0..len as u32).collect();
                while chosen.len() as u64 > kept {
                    chosen.remove(random.below(chosen.len() as u64) as usize);
                }
                positions.append(&mut chosen);
            }
            Support::Chunked { chunk_len, kept, positions }
        }
        2 => {
            let row_len = (1..=n.max(1)).rev().find(|l| n.is_multiple_of(*l) && l * l <= n).unwrap_or(1);
            Support::Rows { row_len, rows: some(random, n / row_len) }
        }
        3 => Support::Seeded { count: random.below(n + 1), seed: random.next().into() },
        _ => Support::All,
    };
    let m = match &support {
        Support::Sparse(positions) => positions.len() as u64,
        Support::Chunked { positions, .. } => positions.len() as u64,
        Support::Rows { row_len, rows } => row_len * rows.len() as u64,
        Support::Seeded { count, .. } => *count,
        _ => n,
    };
    (support, m)
}

fn scales(random: &mut Random, count: u64) -> Scales {
    let (format, _) = random.one(&ScaleFormat::REGISTERED);
    Scales { format, bytes: random.bytes(count * format.bytes() as u64) }
}

/// Groups of `m` values, and how many there are; `tensors` is 0 for nested values.
fn groups(random: &mut Random, m: u64, tensors: u64) -> (Groups, u64) {
    match random.below(3) {
        0 if tensors > 0 => (Groups::Tensor, tensors),
        1 => {
            let len = 2 + random.below(70);
            (Groups::Len(len), m.div_ceil(len))
        }
        _ => (Groups::Block, 1),
    }
}

/// `m` values for elements of a type, of any kind that may be there.
fn values(random: &mut Random, dtype: Dtype, m: u64, tensors: u64, all: bool) -> Values {
    if !dtype.is_float() || random.below(6) == 0 {
        let bytes = random.elements(dtype, m);
        return if random.below(2) == 0 {
            Values::Floats { stored: Stored::Source, bytes }
        } else {
            Values::Planes { bytes }
        };
    }
    let (groups, count) = groups(random, m, tensors);
    match random.below(10) {
        0 => Values::Constant { groups, scales: scales(random, count) },
        1 => Values::Sign { groups, scales: scales(random, count), negative: random.bits(m) },
        2 if random.below(2) == 0 => {
            let rank = 1 + random.below(3);
            let shape = vec![rank, random.below(6)];
            let codes = Box::new(numbers(random, shape.iter().product(), 0));
            Values::Latent { model: ModelId([random.next() as u8; 32]), shape, codes }
        }
        3 if all && m > 0 => {
            let rows = (1..=m).rev().find(|r| m.is_multiple_of(*r) && r * r <= m).unwrap_or(1);
            let (cols, rank) = (m / rows, 1 + random.below(3));
            let left = Box::new(numbers(random, rows * rank, 0));
            let right = Box::new(numbers(random, cols * rank, 0));
            Values::LowRank { rows, cols, rank, left, right }
        }
        4 if all && m > 0 => {
            let rows = (1..=m).rev().find(|r| m.is_multiple_of(*r) && r * r <= m).unwrap_or(1);
            let side = |random: &mut Random, dim: u64| {
                let sides: Vec<u64> = (1..=dim.min(128)).filter(|s| dim.is_multiple_of(*s)).collect();
                random.one(&sides)
            };
            let cols = m / rows;
            let (chunk_rows, chunk_cols) = (side(random, rows), side(random, cols));
            let positions: Vec<u64> = (0..m).filter(|_| random.below(4) == 0).collect();
            let (support, count) = match random.below(3) {
                0 => (Support::All, m),
                _ => (Support::Sparse(positions.clone()), positions.len() as u64),
            };
            let coefficients = Box::new(match random.below(2) {
                0 => Values::Sign {
                    groups: Groups::Block,
                    scales: scales(random, 1),
                    negative: random.bits(count),
                },
                _ => numbers(random, count, 0),
            });
            Values::Dct { rows, cols, chunk_rows, chunk_cols, support, coefficients }
        }
        _ => numbers(random, m, tensors),
    }
}

/// `m` values of a kind that may be nested.
fn numbers(random: &mut Random, m: u64, tensors: u64) -> Values {
    let (groups, count) = groups(random, m, tensors);
    match random.below(6) {
        0 => {
            let stored = random.one(&[Stored::F32, Stored::F16, Stored::Bf16]);
            Values::Floats { stored, bytes: random.elements(stored.dtype(Dtype::F32), m) }
        }
        1 => {
            let (codes, bits) = (random.symbols(m, 256), random.bits(m));
            Values::Pow2 {
                min_exponent: random.below(2098) as i16 - 1074,
                underflow: random.one(&[Underflow::Unbiased, Underflow::Zero, Underflow::Smallest]),
                negative: codes.iter().enumerate().map(|(i, &c)| c != 0 && bits.get(i)).collect(),
                codes,
            }
        }
        2 => {
            let spacing = random.one(&[Spacing::Uniform, Spacing::Natural]);
            let max_level = 1 + random.below(if spacing == Spacing::Uniform { 65_535 } else { 255 }) as u32;
            let max_level = if random.below(2) == 0 { max_level } else { max_level.min(3) };
            let levels = (0..m).map(|_| random.below(2 * u64::from(max_level) + 1) as i32 - max_level as i32);
            let levels = levels.collect();
            let norm = random.one(&[Norm::L1, Norm::L2, Norm::Max]);
            Values::Levels { spacing, max_level, norm, groups, norms: scales(random, count), levels }
        }
        3 => {
            let bits = 1 + random.below(8) as u8;
            let zero = match random.below(3) {
                0 => Zero::Centre,
                1 => Zero::Point(random.symbols(count, 1 << bits)),
                _ => Zero::Offset(scales(random, count)),
            };
            Values::Affine {
                bits,
                groups,
                scales: scales(random, count),
                zero,
                codes: random.symbols(m, 1 << bits),
            }
        }
        4 => {
            let entries = 2 + random.below(255) as u16;
            let table = (0..entries).map(|_| f32::from_bits(random.next())).collect();
            let maybe = |random: &mut Random| (random.below(2) == 0).then(|| scales(random, count));
            let (scales, shifts) = (maybe(random), maybe(random));
            Values::Codebook { table, groups, scales, shifts, codes: random.symbols(m, entries) }
        }
        _ => {
            let (format, _) = random.one(&Minifloat::REGISTERED);
            let codes = random.symbols(m, 1 << format.bits());
            Values::Minifloat { format, groups, scales: scales(random, count), codes }
        }
    }
}
