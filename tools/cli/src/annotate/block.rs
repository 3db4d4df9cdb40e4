//! Blocks: supports and values (spec, section 5, supports/ and values/).

use super::classed::{classed, signs};
use super::ints::{Table, entropy, grouped_ints, ints};
use super::walk::{Result, Stop, Walk, few_floats, short_hex};
use gcodec::block::{IndexSpace, Scope, SupportId, ValuesId};
use gcodec::frame::Manifest;
use gcodec::tensor::Dtype;
use std::collections::HashMap;

/// Definitions that a block refers to.
pub(crate) struct Around<'a> {
    /// The update's manifest.
    pub(crate) manifest: Option<&'a Manifest>,
    /// The update's tables.
    pub(crate) tables: &'a [Table],
    /// Number of elements of each index set.
    pub(crate) sets: &'a HashMap<[u8; 32], u64>,
}

/// Notes a block.
pub(crate) fn block(w: &mut Walk<'_>, around: &Around<'_>) -> Result<()> {
    let len = w.varint("block_len", |_| "bytes that follow")?;
    let len = usize::try_from(len).map_err(|_| Stop("a block is too long".into()))?;
    w.inside(len, |w| {
        let (scope, space) = scope(w, around)?;
        let support_id = w.varint("support_id", |id| SupportId(id).to_string())?;
        let values_id = w.varint("values_id", |id| ValuesId(id).to_string())?;
        let support_len = w.varint("support_len", |_| "bytes of the support")?;
        let support_len = usize::try_from(support_len).map_err(|_| Stop("a support is too long".into()))?;
        let kept = w.under(format_args!("support {}", SupportId(support_id)), |w| {
            let (id, over) = (SupportId(support_id), Over { n: space.len(), tensors: scope.tensors() });
            w.inside(support_len, |w| support(w, around, id, over))
        })?;
        let m = kept.m;
        let heading =
            format!("values {} of {m} element{}", ValuesId(values_id), if m == 1 { "" } else { "s" });
        let (tensors, dtype) = (Some(scope.tensors()), space.dtype);
        let space = Space { m, groups: &kept.groups, tensors, dtype };
        w.under(heading, |w| values(w, around, ValuesId(values_id), &space))
    })
}

/// Notes a scope.
pub(crate) fn scope(w: &mut Walk<'_>, around: &Around<'_>) -> Result<(Scope, IndexSpace)> {
    let flags = w.u8("scope flags", |f| {
        let kind = match f & 3 {
            0 => "one tensor",
            1 => "several tensors",
            2 => "a range of one tensor",
            _ => "out of range",
        };
        format!("{kind}{}", if f & 4 != 0 { ", added" } else { "" })
    })?;
    let named = |t: u64| {
        let info = around.manifest.and_then(|m| m.tensors().get(usize::try_from(t).ok()?));
        info.map(|info| format!("{:?}", info.name)).unwrap_or_default()
    };
    let tensor = w.varint("tensor", named)?;
    let scope = match flags & 3 {
        0 => Scope::Tensor(tensor),
        1 => Scope::Tensors { first: tensor, count: w.varint("count", |_| "tensors")? },
        2 => {
            let start = w.varint("start", |_| "first element")?;
            Scope::Range { tensor, start, len: w.varint("len", |_| "elements")? }
        }
        _ => return Err(Stop("scope 3".into())),
    };
    let manifest = around.manifest.ok_or(Stop("the manifest is unknown".into()))?;
    let space = manifest.space(scope, 0).map_err(|_| Stop("the scope is not in the manifest".into()))?;
    Ok((scope, space))
}

/// The index space of a support.
#[derive(Clone, Copy)]
pub(crate) struct Over {
    /// Number of elements.
    pub(crate) n: u64,
    /// Number of tensors.
    pub(crate) tensors: u64,
}

/// The elements of a support.
pub(crate) struct Kept {
    /// Number of elements.
    pub(crate) m: u64,
    /// For a support classed by the base, the number of elements of each group that has some.
    pub(crate) groups: Vec<u64>,
}

/// Notes a support of a block or index set, up to the end of its structure.
pub(crate) fn support(w: &mut Walk<'_>, around: &Around<'_>, id: SupportId, over: Over) -> Result<Kept> {
    match id {
        SupportId::CLASSED => classed(w, around, over.tensors),
        other => Ok(Kept { m: unclassed(w, around, other, over.n)?, groups: Vec::new() }),
    }
}

/// Notes a support over `n` elements, up to the end of its structure; returns the number of its elements.
fn unclassed(w: &mut Walk<'_>, around: &Around<'_>, id: SupportId, n: u64) -> Result<u64> {
    match id {
        SupportId::ALL => Ok(n),
        SupportId::GAPS_RICE => rice(w),
        SupportId::GAPS_TOKENS => {
            let m = w.varint("m", |_| "positions")?;
            if m > 0 {
                w.under(format_args!("gaps: entropy({m}) over tokens"), |w| {
                    entropy(w, around.tables, m, true)
                })?;
            }
            Ok(m)
        }
        SupportId::BITMAP => {
            let plane = w.payload(n.div_ceil(8), "bitmap", format_args!("a bit for each of {n} elements"))?;
            Ok(plane.iter().map(|b| u64::from(b.count_ones())).sum())
        }
        SupportId::CHUNKED => {
            let chunk_len = w.varint("chunk_len", |_| "elements in a chunk")?;
            let kept = w.varint("kept", |_| "positions in a chunk")?;
            if chunk_len == 0 {
                return Err(Stop("chunks of no elements".into()));
            }
            let width = u64::BITS - (chunk_len - 1).leading_zeros();
            let whole = (n / chunk_len).checked_mul(kept).ok_or(Stop("too many positions".into()))?;
            let m = whole + kept.min(n % chunk_len);
            let bits = u128::from(m) * u128::from(width);
            let len = u64::try_from(bits.div_ceil(8)).map_err(|_| Stop("too many positions".into()))?;
            w.payload(len, "positions", format_args!("{m} fields of {width} bits"))?;
            Ok(m)
        }
        SupportId::ROWS => {
            let row_len = w.varint("row_len", |_| "elements in a row")?;
            let inner = SupportId(w.varint("inner", |id| SupportId(id).to_string())?);
            if row_len == 0
                || !matches!(inner, SupportId::GAPS_RICE | SupportId::GAPS_TOKENS | SupportId::BITMAP)
            {
                return Err(Stop("rows without elements, or an inner kind that is not allowed".into()));
            }
            let rows = unclassed(w, around, inner, n / row_len)?;
            rows.checked_mul(row_len).ok_or(Stop("too many rows".into()))
        }
        SupportId::SEEDED => {
            let m = w.varint("m", |_| "positions")?;
            w.u64("seed", "key of the generator")?;
            Ok(m)
        }
        SupportId::SET => {
            let id = w.hash("id", "of an index set")?;
            around.sets.get(&id).copied().ok_or(Stop("the index set is unknown".into()))
        }
        other => Err(Stop(format!("unknown {other}"))),
    }
}

fn rice(w: &mut Walk<'_>) -> Result<u64> {
    let m = w.varint("m", |_| "positions")?;
    if m == 0 {
        return Ok(m);
    }
    let log = w.u8("chunk_log", |c| match c {
        0 => "one chunk".to_owned(),
        c => format!("chunks of 2^{c} gaps"),
    })?;
    let low = |w: &mut Walk<'_>, count: u64, k: u8| {
        let len = (u128::from(count) * u128::from(k)).div_ceil(8);
        let len = u64::try_from(len).map_err(|_| Stop("too many gaps".into()))?;
        w.payload(len, "low plane", format_args!("low {k} bits of {count} gaps")).map(drop)
    };
    if log == 0 {
        let k = w.u8("k", |_| "Rice parameter")?;
        low(w, m, k)?;
        w.payload(w.rest() as u64, "unary plane", "each gap's high part as zeros, then a one")?;
        return Ok(m);
    }
    if log > 16 {
        return Err(Stop(format!("chunk_log {log}")));
    }
    let each = 1u64 << log;
    let counts: Vec<u64> =
        (0..m.div_ceil(each).min(w.rest() as u64 + 1)).map(|i| each.min(m - i * each)).collect();
    let mut chunks = Vec::new();
    for (i, &count) in counts.iter().enumerate() {
        let k = w.u8(format_args!("k of chunk {i}"), |_| "Rice parameter")?;
        let unary_len = w.varint("unary_len", |_| "bytes of its unary plane")?;
        w.varint("span", |_| "its last position minus that of the chunk before")?;
        chunks.push((count, k, unary_len));
    }
    for (count, k, unary_len) in chunks {
        low(w, count, k)?;
        w.payload(unary_len, "unary plane", "each gap's high part as zeros, then a one")?;
    }
    Ok(m)
}

/// Context that determines the layout of values.
struct Space<'a> {
    m: u64,
    /// Number of values of each group that has some, for a support classed by the base.
    groups: &'a [u64],
    /// `None` for nested values.
    tensors: Option<u64>,
    dtype: Dtype,
}

/// Notes values, up to the end of their structure.
fn values(w: &mut Walk<'_>, around: &Around<'_>, id: ValuesId, space: &Space<'_>) -> Result<()> {
    let m = space.m;
    match id {
        ValuesId::FLOATS => {
            let stored = w.u8("stored", |s| match s {
                0 => "the element type".to_owned(),
                s => dtype_name(s),
            })?;
            let dtype = if stored == 0 { Some(space.dtype) } else { Dtype::from_id(stored) };
            let dtype = dtype.ok_or(Stop(format!("unknown type {stored}")))?;
            numbers(w, "numbers", dtype, m)
        }
        ValuesId::CONSTANT => {
            let count = groups(w, space)?;
            scales(w, "scales", count)
        }
        ValuesId::SIGN => {
            let count = groups(w, space)?;
            scales(w, "scales", count)?;
            signs(w, around, space.tensors, Some(m))
        }
        ValuesId::POW2 => {
            w.array::<2>("min_exponent", |b| {
                let e = i16::from_le_bytes(b);
                (e.to_string(), format!("code c is 2^({e} + c - 1)"))
            })?;
            w.u8("underflow", |u| match u {
                0 => "drew without bias",
                1 => "took zero",
                2 => "took the power",
                _ => "out of range",
            })?;
            ints(w, around.tables, m, "codes")?;
            // One for each code above 0.
            signs(w, around, space.tensors, None)
        }
        ValuesId::LEVELS => {
            w.u8("spacing", |s| if s == 0 { "uniform" } else { "natural" })?;
            w.varint("s", |_| "the largest level")?;
            w.u8("norm", |n| match n {
                1 => "L1",
                2 => "L2",
                255 => "largest magnitude",
                _ => "out of range",
            })?;
            let count = groups(w, space)?;
            scales(w, "norms", count)?;
            ints(w, around.tables, m, "levels")
        }
        ValuesId::AFFINE => {
            w.u8("bits", |_| "of a code")?;
            let zero = w.u8("zero", |z| match z {
                0 => "in the middle of the codes",
                1 => "at a point for each group",
                2 => "an offset for each group",
                _ => "out of range",
            })?;
            let count = groups(w, space)?;
            scales(w, "scales", count)?;
            match zero {
                1 => w.payload(count, "zero points", "a u8 for each group").map(drop)?,
                2 => scales(w, "offsets", count)?,
                _ => {}
            }
            ints(w, around.tables, m, "codes")
        }
        ValuesId::CODEBOOK => {
            let last = w.u8("entries - 1", |e| format!("{} entries", u32::from(e) + 1))?;
            numbers(w, "entries", Dtype::F32, u64::from(last) + 1)?;
            let flags = w.u8("flags", |f| match f {
                0 => "no scales, no shifts",
                1 => "scales",
                2 => "shifts",
                3 => "scales and shifts",
                _ => "reserved bits",
            })?;
            let count = groups(w, space)?;
            if flags & 1 != 0 {
                scales(w, "scales", count)?;
            }
            if flags & 2 != 0 {
                scales(w, "shifts", count)?;
            }
            ints(w, around.tables, m, "codes")
        }
        ValuesId::MINIFLOAT => {
            w.u8("format", |f| match f {
                65 => "f6e3m2".to_owned(),
                66 => "f6e2m3".to_owned(),
                67 => "f4e3m0".to_owned(),
                68 => "int8".to_owned(),
                f => dtype_name(f),
            })?;
            let count = groups(w, space)?;
            scales(w, "scales", count)?;
            ints(w, around.tables, m, "bit patterns")
        }
        ValuesId::PLANES => {
            let (planes, symbols) = match space.dtype.bits() {
                4 => (1, m.div_ceil(2)),
                bits => (bits / 8, m),
            };
            for plane in 0..planes {
                w.under(format_args!("plane {plane}"), |w| {
                    match w.u8("coded", |c| if c == 0 { "as bytes" } else { "as integers" })? {
                        0 => w.payload(symbols, "symbols", "").map(drop),
                        _ => ints(w, around.tables, symbols, "symbols"),
                    }
                })?;
            }
            Ok(())
        }
        ValuesId::ULP => grouped_ints(w, around.tables, m, "differences, zigzag", space.groups),
        ValuesId::LATENT => {
            w.hash("model id", "")?;
            let rank = w.varint("rank", |_| "dimensions of the codes")?;
            let mut count = 1u64;
            for _ in 0..rank.min(32) {
                let dim = w.varint("dim", |_| "")?;
                count = count.checked_mul(dim).ok_or(Stop("too many codes".into()))?;
            }
            nested(w, around, "codes", count)
        }
        ValuesId::LOW_RANK => {
            let rows = w.varint("rows", |_| "")?;
            let cols = w.varint("cols", |_| "")?;
            let rank = w.varint("rank", |_| "")?;
            let count = |side: u64| side.checked_mul(rank).ok_or(Stop("too many factors".into()));
            let (left, right) = (count(rows)?, count(cols)?);
            w.under("P", |w| {
                let id = ValuesId(w.varint("values_id", |id| ValuesId(id).to_string())?);
                let len = w.varint("length", |_| "bytes of P")?;
                let len = usize::try_from(len).map_err(|_| Stop("P is too long".into()))?;
                let space = Space { m: left, groups: &[], tensors: None, dtype: Dtype::F32 };
                w.inside(len, |w| values(w, around, id, &space))
            })?;
            nested(w, around, "Q", right)
        }
        ValuesId::DCT => {
            let rows = w.varint("rows", |_| "")?;
            let cols = w.varint("cols", |_| "")?;
            w.varint("chunk_rows", |_| "")?;
            w.varint("chunk_cols", |_| "")?;
            let n = rows.checked_mul(cols).ok_or(Stop("too many coefficients".into()))?;
            let count = w.under("support of the coefficients", |w| {
                let id = SupportId(w.varint("support_id", |id| SupportId(id).to_string())?);
                let len = w.varint("length", |_| "bytes of the support")?;
                let len = usize::try_from(len).map_err(|_| Stop("a support is too long".into()))?;
                w.inside(len, |w| unclassed(w, around, id, n))
            })?;
            nested(w, around, "coefficients", count)
        }
        other => Err(Stop(format!("unknown {other}"))),
    }
}

fn nested(w: &mut Walk<'_>, around: &Around<'_>, what: &str, m: u64) -> Result<()> {
    w.under(what, |w| {
        let id = ValuesId(w.varint("values_id", |id| ValuesId(id).to_string())?);
        if matches!(id, ValuesId::LATENT | ValuesId::LOW_RANK | ValuesId::DCT) {
            return Err(Stop(format!("{id} inside other values")));
        }
        values(w, around, id, &Space { m, groups: &[], tensors: None, dtype: Dtype::F32 })
    })
}

/// Notes `groups`; returns their number.
fn groups(w: &mut Walk<'_>, space: &Space<'_>) -> Result<u64> {
    let groups = w.varint("groups", |g| match g {
        0 => "all values of the block".to_owned(),
        1 => "the values of each tensor".to_owned(),
        g => format!("each run of {g} values"),
    })?;
    match groups {
        0 => Ok(1),
        1 => space.tensors.ok_or(Stop("groups by tensor in nested values".into())),
        len => Ok(space.m.div_ceil(len)),
    }
}

/// Notes `scales`.
fn scales(w: &mut Walk<'_>, name: &str, count: u64) -> Result<()> {
    let format =
        w.u8(format_args!("format of {name}"), |f| if f == 64 { "e8m0".into() } else { dtype_name(f) })?;
    match format {
        64 => w.payload(count, name, "2^(x - 127)").map(drop),
        2..=4 => numbers(w, name, Dtype::from_id(format).unwrap_or(Dtype::F32), count),
        other => Err(Stop(format!("unknown format of scales {other}"))),
    }
}

fn numbers(w: &mut Walk<'_>, name: &str, dtype: Dtype, count: u64) -> Result<()> {
    let len = dtype.bytes_for(count).ok_or(Stop(format!("too many {name}")))?;
    let len = usize::try_from(len).map_err(|_| Stop(format!("too many {name}")))?;
    if len == 0 {
        return Ok(());
    }
    w.bytes(len, name, |bytes| match few_floats(dtype, bytes) {
        few if few.is_empty() => (format!("{count} x {dtype}"), String::new()),
        few => (few, dtype.to_string()),
    })?;
    Ok(())
}

fn dtype_name(id: u8) -> String {
    Dtype::from_id(id).map_or_else(|| format!("unknown {id}"), |d| d.to_string())
}

/// Returns the short form of a digest.
pub(crate) fn digest(w: &mut Walk<'_>, name: &str) -> Result<()> {
    w.array::<16>(name, |d| (short_hex(&d), String::new())).map(drop)
}
