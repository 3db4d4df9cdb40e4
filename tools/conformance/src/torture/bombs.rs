//! Bombs: the smallest inputs that declare the largest outputs, one for each kind of declaration. Under the
//! default limits they are refused before they take memory or time. Under small limits they stay within the
//! formulas of section 10.1 of the spec.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use gcodec::Limits;
use gcodec::frame::{Metadata, Model};
use gcodec::stream::{Assembler, Body, EncodeOptions, Encoder, Event, SliceReader, Writer};

use super::scratch::Scratch;
use super::{Section, thousands};
use crate::Result;
use crate::vectors::build::*;

const MIB: u64 = 1 << 20;

/// A kind of bomb.
struct Bomb {
    name: &'static str,
    /// Whether its blocks are only decoded and kept, or also assembled to dense tensors.
    how: How,
    /// Declared amount for a reader that allows `max_alloc_bytes` of memory.
    most: fn(u64) -> u64,
    make: fn(u64) -> Vec<u8>,
    /// Bytes of memory for the declared amount `n`, beyond the input.
    memory: fn(u64) -> u64,
    /// The formula in words, with the meaning of n.
    formula: &'static str,
}

#[derive(Clone, Copy, PartialEq)]
enum How {
    Decode,
    Assemble,
}

impl How {
    fn name(self) -> &'static str {
        if self == Self::Decode { "decode" } else { "assemble" }
    }
}

use How::{Assemble, Decode};

/// Integers of one symbol: any number of them in the same number of bytes.
fn symbols(symbol: u8) -> Bytes {
    bytes().u8(2).raw(entropy(&[symbol], 0))
}

fn tokens_of(token: u8) -> Bytes {
    bytes().u8(1).raw(entropy(&[token], 0))
}

/// A Rice support of `m` neighbours: one bit each.
fn neighbours(m: u64) -> (u64, Bytes) {
    (2, bytes().v(m).u8(0).u8(0).raw(ones_plane(m)))
}

/// A plane of `n` ones.
fn ones_plane(n: u64) -> Vec<u8> {
    let mut plane = vec![0xff; (n / 8) as usize];
    if !n.is_multiple_of(8) {
        plane.push((1 << (n % 8)) - 1);
    }
    plane
}

fn pow2_zeros() -> (u64, Bytes) {
    (4, bytes().u16(0).u8(0).raw(symbols(0)).u8(0))
}

/// A matrix of n elements whose rank is 16, of 4-bit codes of one symbol.
fn low_rank(n: u64) -> Vec<u8> {
    let factor = bytes().u8(4).u8(0).raw(scale(1.0)).raw(symbols(7));
    let values = bytes().v(n / 1024).v(1024).v(16).v(6).text(&factor).v(6).raw(&factor);
    dense(F32, &[n / 1024, 1024], (12, values))
}

/// A transform without coefficients, with the largest chunks.
fn transform(n: u64) -> Vec<u8> {
    let values = bytes().v(n / 128).v(128).v(128).v(128).v(2).text(bytes().v(0)).v(2).raw(scale(1.0));
    dense(F32, &[n / 128, 128], (13, values))
}

/// Tensors without elements, whose names of three bytes share their prefixes.
fn empty_tensors(n: u64) -> Vec<u8> {
    let mut body = bytes().v(n);
    let mut previous = [0u8; 4];
    for i in 0..n {
        let digit = |shift: u32| 0x21 + (i >> shift & 63) as u8;
        let name = [digit(18), digit(12), digit(6), digit(0)];
        let shared = if i == 0 { 0 } else { name.iter().zip(&previous).take_while(|(a, b)| a == b).count() };
        body = body.v(shared as u64).text(&name[shared..]).u8(F32).v(1).v(0).u8(0);
        previous = name;
    }
    stream().manifest(&body).done()
}

/// Names of 4096 bytes that differ only in their last two bytes.
fn long_names(n: u64) -> Vec<u8> {
    let tail = |i: u64| [0x21 + (i / 64 % 64) as u8, 0x21 + (i % 64) as u8];
    let mut body = bytes().v(n);
    for i in 0..n {
        let shared = if i == 0 { 0 } else { 4094 + u64::from(tail(i)[0] == tail(i - 1)[0]) };
        let name: Vec<u8> = std::iter::repeat_n(b'n', 4094).chain(tail(i)).collect();
        body = body.v(shared).text(&name[shared as usize..]).u8(F32).v(0).u8(0);
    }
    stream().manifest(&body).done()
}

/// Empty blocks, of the fewest bytes.
fn smallest_blocks(n: u64) -> Vec<u8> {
    let man = manifest(&[("w", F32, &[0])]);
    let block = block(adding(whole(0)), ALL(), (4, bytes().u16(0).u8(0).u8(0)));
    stream().manifest(&man).update(&update(&man, vec![block; n as usize])).done()
}

/// Blocks that touch 2^10 empty tensors each.
fn spanning_blocks(n: u64) -> Vec<u8> {
    let count = 1024;
    let names: Vec<String> = (0..count).map(|i| format!("{i}")).collect();
    let tensors: Vec<(&str, u8, &[u64])> = names.iter().map(|n| (n.as_str(), F32, &[0][..])).collect();
    let man = manifest(&tensors);
    let block = block(adding(several(0, count)), ALL(), ones());
    stream().manifest(&man).frame(UPDATE, LAST, update(&man, vec![block; (n / count) as usize]).body()).done()
}

/// An index of frames that do not exist, which shows at its end.
fn false_index(n: u64) -> Vec<u8> {
    let listing = (0..n).fold(bytes().v(n), |out, _| out.v(4).v(24));
    stream().index_of(listing).done()
}

fn zstd_metadata(n: u64) -> Vec<u8> {
    let mut metadata = Metadata::default();
    metadata.entries.insert("zeros".into(), "\0".repeat(n as usize));
    let mut out = Vec::new();
    let mut encoder = Encoder::new(EncodeOptions::default());
    encoder.metadata(&mut out, &metadata);
    encoder.finish(&mut out);
    out
}

fn zstd_model(n: u64) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = Encoder::new(EncodeOptions::default());
    encoder.model(&mut out, &Model::inline("test/1", "zeros", vec![0; n as usize])).expect("a model");
    encoder.finish(&mut out);
    out
}

const BOMBS: &[Bomb] = &[
    Bomb {
        name: "support all, values constant",
        how: Decode,
        most: |_| ELEMENTS,
        make: |n| dense(F32, &[n], ones()),
        memory: |_| 0,
        formula: "0 for n elements",
    },
    Bomb {
        name: "the same, dense",
        how: Assemble,
        most: |a| a / 4,
        make: |n| dense(F32, &[n], ones()),
        memory: |n| 8 * n,
        formula: "4 n for the tensor, 4 n for n numbers",
    },
    Bomb {
        name: "support gaps-rice",
        how: Decode,
        most: |a| a / 8,
        make: |m| placed(m, neighbours(m)),
        memory: |m| 8 * m,
        formula: "8 m for m positions",
    },
    Bomb {
        name: "support gaps-tokens, one symbol",
        how: Decode,
        most: |a| a / 16,
        make: |m| placed(m, (3, bytes().v(m).raw(entropy(&[0], 0)))),
        memory: |m| 16 * m,
        formula: "16 m for m positions",
    },
    Bomb {
        name: "support bitmap",
        how: Decode,
        most: |a| a / 8,
        make: |n| placed(n, (4, bytes().raw(ones_plane(n)))),
        memory: |n| 8 * n,
        formula: "8 m for m positions",
    },
    Bomb {
        name: "support chunked, chunks of one",
        how: Decode,
        most: |a| a / 4,
        make: |n| placed(n, (5, bytes().v(1).v(1))),
        memory: |n| 4 * n,
        formula: "4 m for m positions",
    },
    Bomb {
        name: "support rows of 64, gaps of one symbol",
        how: Decode,
        most: |a| a / 16,
        make: |r| placed(64 * r, (6, bytes().v(64).v(3).v(r).raw(entropy(&[0], 0)))),
        memory: |r| 16 * r,
        formula: "16 r for r rows",
    },
    Bomb {
        name: "support classed by rows and columns, gaps of one token",
        how: Decode,
        most: |a| a / 33,
        make: |m| placed(m, classed(2, no_lists(), m)),
        memory: |m| 32 * m,
        formula: "32 m for m positions",
    },
    Bomb {
        name: "support classed by the base, gaps of one token",
        how: Decode,
        most: |a| a / 48,
        make: |m| ulp(m, classed(1, bytes(), m)),
        memory: |m| 48 * m,
        formula: "32 m for m positions, 16 m for m values ulp",
    },
    Bomb {
        name: "support seeded, dense",
        how: Assemble,
        most: |a| a / 20,
        make: |m| placed(m, (7, bytes().v(m).u64(1))),
        memory: |m| 24 * m,
        formula: "16 m to draw m positions, 4 m for numbers, 4 n for the tensor, n = m",
    },
    Bomb {
        name: "values sign, predicted by one symbol",
        how: Decode,
        most: |a| 2 * a,
        make: |n| dense(F32, &[n], (3, predicted())),
        memory: |n| n / 4,
        formula: "m / 4 for m values",
    },
    Bomb {
        name: "values pow2, one symbol",
        how: Decode,
        most: |a| a / 2,
        make: |n| dense(F32, &[n], pow2_zeros()),
        memory: |n| n + n / 8,
        formula: "9/8 m for m values",
    },
    Bomb {
        name: "values levels, one symbol",
        how: Decode,
        most: |a| a / 13,
        make: |n| dense(F32, &[n], (5, bytes().u8(0).v(7).u8(2).raw(scale(1.0)).raw(symbols(0)))),
        memory: |n| 13 * n,
        formula: "13 m for m values",
    },
    Bomb {
        name: "values affine, width 0",
        how: Decode,
        most: |a| a / 9,
        make: |n| dense(F32, &[n], (6, bytes().u8(4).u8(0).raw(scale(1.0)).packed(0, &[]))),
        memory: |n| 9 * n,
        formula: "9 m for m values",
    },
    Bomb {
        name: "values codebook, one symbol",
        how: Decode,
        most: |a| a / 2,
        make: |n| dense(F32, &[n], (7, bytes().u8(1).f32(0.0).f32(1.0).u8(0).v(0).raw(symbols(1)))),
        memory: |n| n,
        formula: "m for m values",
    },
    Bomb {
        name: "values minifloat, one symbol",
        how: Decode,
        most: |a| a / 2,
        make: |n| dense(F32, &[n], (8, bytes().u8(5).raw(scale(1.0)).raw(symbols(1)))),
        memory: |n| n,
        formula: "m for m values",
    },
    Bomb {
        name: "values planes, one symbol",
        how: Decode,
        most: |a| a / 8,
        make: |n| dense(F32, &[n], (9, (0..4).fold(bytes(), |out, _| out.u8(1).raw(symbols(9))))),
        memory: |n| 5 * n,
        formula: "5 m for m elements of 4 bytes",
    },
    Bomb {
        name: "values ulp, one symbol",
        how: Decode,
        most: |a| a / 16,
        make: |n| ulp(n, ALL()),
        memory: |n| 16 * n,
        formula: "16 m for m values",
    },
    Bomb {
        name: "values latent, codes of one symbol",
        how: Decode,
        most: |a| a / 2,
        make: |n| dense(F32, &[n], (11, bytes().raw([7; 32]).v(1).v(n).v(4).raw(pow2_zeros().1))),
        memory: |n| n + n / 8,
        formula: "9/8 c for c codes",
    },
    Bomb {
        name: "values low-rank, dense",
        how: Assemble,
        most: |a| a / 8 / 1024 * 1024,
        make: low_rank,
        memory: |n| 8 * n + 5 * 16 * (n / 1024 + 1024),
        formula: "4 n for the tensor, 4 n for numbers, 5 r (rows + cols) for the factors",
    },
    Bomb {
        name: "values dct, dense",
        how: Assemble,
        most: |a| a / 8 / (1 << 14) * (1 << 14),
        make: transform,
        memory: |n| 8 * n,
        formula: "4 n for the tensor, 4 n for numbers",
    },
    Bomb {
        name: "metadata, zstd",
        how: Decode,
        most: |_| INFLATED / 2,
        make: zstd_metadata,
        memory: |n| 2 * n,
        formula: "2 i for i inflated bytes",
    },
    Bomb {
        name: "model, zstd",
        how: Decode,
        most: |_| INFLATED,
        make: zstd_model,
        memory: |n| 2 * n,
        formula: "2 i for i inflated bytes",
    },
    Bomb {
        name: "manifest, names with long common prefixes",
        how: Decode,
        most: |_| INFLATED / 4096,
        make: long_names,
        memory: |n| 4096 * n + 320 * n,
        formula: "the names' bytes, and 320 t for t tensors",
    },
    Bomb {
        name: "manifest, empty tensors",
        how: Decode,
        most: |_| TENSORS,
        make: empty_tensors,
        memory: |n| 320 * n,
        formula: "320 t for t tensors",
    },
    Bomb {
        name: "update, the smallest blocks",
        how: Decode,
        most: |_| BLOCKS,
        make: smallest_blocks,
        memory: |n| 600 * n,
        formula: "600 b for b blocks",
    },
    Bomb {
        name: "update, blocks that span 1024 empty tensors",
        how: Assemble,
        most: |_| BLOCKS,
        make: spanning_blocks,
        memory: |n| 20 * n,
        formula: "20 t for t tensors that blocks touch",
    },
    Bomb {
        name: "index of missing frames",
        how: Decode,
        most: |_| 1 << 20,
        make: false_index,
        memory: |n| 32 * n,
        formula: "32 f for f listed frames",
    },
];

/// A delta of n elements.
fn ulp(n: u64, support: (u64, Bytes)) -> Vec<u8> {
    let man = manifest(&[("w", F32, &[n])]);
    let block = block(whole(0), support, (10, tokens_of(0)));
    let update = update(&man, [block]).attribute(2, bytes().v(1).v(0).v(0).raw([0; 32]));
    stream().manifest(&man).update(&update).done()
}

/// A classed support of one class, by a rule with these fields, and of m neighbours with gaps of one token.
fn classed(rule: u8, fields: Bytes, m: u64) -> (u64, Bytes) {
    (9, bytes().u8(rule).u8(1).raw(fields).v(1).v(1).v(m).u8(1 << 6).raw(entropy(&[0], 0)))
}

/// Fields of a rule of rows and columns that has neither: one view, one level, no tables.
fn no_lists() -> Bytes {
    bytes().packed(1, &[0]).packed(1, &[0]).u8(0)
}

/// Predictions of no rows and columns, of eight signs by a symbol.
fn predicted() -> Bytes {
    bytes().raw(scale(1.0)).u8(1).packed(1, &[0]).u8(8).raw(entropy(&[0], 0))
}

const ELEMENTS: u64 = 1 << 28;
const INFLATED: u64 = 8 * MIB;
const TENSORS: u64 = 1 << 16;
const BLOCKS: u64 = 1 << 16;
/// Memory of a process, its allocator and its threads beyond the formula.
const SLACK: u64 = 6 * MIB;
/// Factor of a formula for a vector that grows by doubling, with its old copy.
const MOST: f64 = 1.1;
/// Bytes of memory per byte of input, which is held in memory, and copied where it is kept.
const INPUT: u64 = 3;

fn small(alloc: u64) -> Limits {
    Limits::default()
        .with_max_alloc_bytes(alloc)
        .with_max_elements(ELEMENTS)
        .with_max_inflated_bytes(INFLATED)
        .with_max_tensors(TENSORS)
        .with_max_blocks(BLOCKS)
}

pub(crate) fn run(quick: bool) -> Result<Vec<Section>> {
    let alloc = if quick { 16 * MIB } else { 64 * MIB };
    let mut section = Section::new(
        "Bombs",
        format!(
            "The smallest input of each kind declares as much as the limits allow ({} of memory, \
             2^28 elements, 8 MiB inflated, 2^16 tensors and 2^16 blocks). A separate process reads \
             it. *Measured*: the peak memory of the process minus that of a process that reads an \
             empty stream. Target: at most {MOST} times the formula of section 10.1 of the spec, \
             plus {INPUT} bytes per byte of input, plus {} MiB. The last column is the same input \
             with 2^40 declared, under the default limits, where this can be declared.",
            if quick { "16 MiB" } else { "64 MiB" },
            SLACK / MIB
        ),
        &[
            "Kind",
            "Read",
            "bytes of input",
            "declared",
            "declared per byte",
            "Memory by formula, bytes",
            "by formula",
            "measured",
            "seconds",
            "2^40 declared, default limits",
        ],
    );
    if !Path::new("/proc/self/status").exists() {
        section.skipped("the memory of a process is read from /proc");
        return Ok(vec![section]);
    }
    let scratch = Scratch::new("bombs")?;
    let path = scratch.path("bomb.gcu");
    let read = |bytes: &[u8], how: &str, limits: &str| -> Result<Taken> {
        std::fs::write(&path, bytes)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["torture", "--read"]).arg(format!("{how} {limits}")).arg(&path);
        let output = command.env("RAYON_NUM_THREADS", "2").output()?;
        let text = String::from_utf8(output.stdout)?;
        let mut words = text.split_whitespace();
        let mut next =
            || words.next().ok_or_else(|| format!("a bomb's process ended with {}", output.status));
        Ok(Taken { outcome: next()?.into(), seconds: next()?.parse()?, memory: next()?.parse()? })
    };
    let before =
        read(&Writer::new(Vec::new(), EncodeOptions::default()).finish()?, "decode", "default")?.memory;
    for bomb in BOMBS {
        let n = (bomb.most)(alloc);
        let bytes = (bomb.make)(n);
        let taken = read(&bytes, bomb.how.name(), &alloc.to_string())?;
        let formula = (bomb.memory)(n);
        let measured = taken.memory.saturating_sub(before);
        let allowed = (formula as f64 * MOST) as u64 + INPUT * bytes.len() as u64 + SLACK;
        let refused = bomb.name.starts_with("index");
        if (taken.outcome == "read") == refused {
            section.wrong(format!("{}: {} of {n} ends with {}", bomb.name, bytes.len(), taken.outcome));
        }
        if measured > allowed {
            section.wrong(format!("{}: {measured} bytes of memory, {allowed} allowed", bomb.name));
        }
        let huge = huge(bomb);
        let by_default = match huge {
            None => "-".to_owned(),
            Some(bytes) => {
                let taken = read(&bytes, bomb.how.name(), "default")?;
                let memory = taken.memory.saturating_sub(before);
                if !["limit", "length_mismatch"].contains(&taken.outcome.as_str())
                    || memory > SLACK
                    || taken.seconds > 0.1
                {
                    section.wrong(format!(
                        "{}: with 2^40 {} after {} s and {memory} bytes",
                        bomb.name, taken.outcome, taken.seconds
                    ));
                }
                format!("{}, {:.4} s", taken.outcome, taken.seconds)
            }
        };
        section.row([
            bomb.name.into(),
            bomb.how.name().into(),
            thousands(bytes.len() as u64),
            thousands(n),
            format!("{:.3}", n as f64 / bytes.len() as f64),
            bomb.formula.into(),
            thousands(formula),
            thousands(measured),
            format!("{:.3}", taken.seconds),
            by_default,
        ]);
    }
    Ok(vec![section])
}

/// Returns the bomb with 2^40 declared, where few bytes can declare it.
fn huge(bomb: &Bomb) -> Option<Vec<u8>> {
    let n = 1u64 << 40;
    Some(match bomb.name {
        "support gaps-rice" => placed(n, (2, bytes().v(n).u8(0).u8(0).raw([0xff; 100]))),
        "support bitmap" => placed(n, (4, bytes().raw([0xff; 100]))),
        "metadata, zstd" => stream().frame(METADATA, 0, bytes().u8(1).v(n)).done(),
        "model, zstd" => stream().frame(MODEL, 0, bytes().raw([1; 32]).text("f").text("n").v(n).u8(2)).done(),
        "manifest, empty tensors" => stream().manifest(bytes().v(n)).done(),
        name if name.starts_with("support") || name.starts_with("values") || name.starts_with("the same") => {
            (bomb.make)(n)
        }
        _ => return None,
    })
}

/// Cost of reading a bomb in a process.
struct Taken {
    outcome: String,
    seconds: f64,
    memory: u64,
}

/// Reads the stream at `path`. `how` is `decode` or `assemble`, and a limit on memory or `default`. Prints
/// the outcome, the seconds, and this process's peak memory in bytes.
pub(crate) fn read(how: &str, path: &str) -> Result<()> {
    let (how, alloc) = how.split_once(' ').ok_or("how and limits")?;
    let limits = if alloc == "default" { Limits::default() } else { small(alloc.parse()?) };
    let bytes = std::fs::read(path)?;
    let start = Instant::now();
    let outcome = match outcome(&bytes, how == "assemble", &limits) {
        Ok(()) => "read",
        Err(e) => e.name(),
    };
    let seconds = start.elapsed().as_secs_f64();
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    println!("{outcome} {seconds} {}", kib * 1024);
    Ok(())
}

fn outcome(bytes: &[u8], dense: bool, limits: &Limits) -> gcodec::Result<()> {
    let mut open: Option<Assembler<'_>> = None;
    let mut kept = Vec::new();
    for event in SliceReader::new(bytes, limits.clone()) {
        let event = event?;
        let Event::Frame(_, Body::Update(part)) = &event else {
            kept.push((Some(event), Vec::new()));
            continue;
        };
        if dense {
            if open.is_none() {
                open = Some(Assembler::new(&part.manifest, limits, |_| true)?);
            }
            if let Some(assembler) = &mut open {
                assembler.apply(part)?;
            }
        } else {
            let blocks = part.decode_all()?;
            kept.push((Some(event), blocks));
        }
    }
    open.map(Assembler::finish).transpose().map(drop)
}
