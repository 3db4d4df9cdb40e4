//! Supports, views and signs that use what the receiver knows (spec, supports/classed.md, 7.6 and 7.7).

use super::block::{Around, Kept};
use super::ints::{entropy, ints, kept_ints, table};
use super::walk::{Result, Stop, Walk};

/// Most tensors whose views are spelled out.
const SPELLED: usize = 8;

/// Notes a classed support in a scope of `tensors` tensors.
pub(crate) fn classed(w: &mut Walk<'_>, around: &Around<'_>, tensors: u64) -> Result<Kept> {
    let rule = w.u8("rule", |r| match r {
        1 => "base",
        2 => "rows and columns",
        _ => "out of range",
    })?;
    let classes = w.u8("C", |_| "classes")?;
    match rule {
        1 => {
            let bounds = u64::from(classes).saturating_sub(1);
            w.payload(bounds, "bounds", "class: how many of them are greater than the key").map(drop)?;
        }
        2 => w.under("classes of rows and columns", |w| matrices(w, around, tensors))?,
        other => return Err(Stop(format!("rule {other}"))),
    }
    let group_count = w.varint("group_count", |_| "groups of classes")?;
    let mut groups = Vec::new();
    for number in 0..group_count {
        w.varint(format_args!("classes of group {number}"), |_| "consecutive classes")?;
        let count = w.varint("count", |_| "positions")?;
        if count > 0 {
            let code = w.u8("code", |c| {
                let coding = if c & 0x40 != 0 { "tokens" } else { "ones after zeros" };
                format!("shift {}, quotients as {coding}", c & 0x3f)
            })?;
            groups.push((number, count, code & 0x40 != 0));
        }
    }
    for &(number, count, tokens) in &groups {
        w.under(format_args!("quotients of group {number}"), |w| {
            if tokens {
                return entropy(w, around.tables, count, true);
            }
            let len = unary_len(w.ahead(), count)?;
            w.payload(len, "unary plane", format_args!("{count} quotients as zeros, then a one")).map(drop)
        })?;
    }
    w.payload(w.rest() as u64, "low bits", "of the gaps of all groups")?;
    let counts = groups.iter().map(|group| group.1);
    let m = counts.clone().try_fold(0u64, u64::checked_add).ok_or(Stop("too many positions".into()))?;
    Ok(Kept { m, groups: if rule == 1 { counts.collect() } else { Vec::new() } })
}

/// Returns the number of bytes up to the one that has the last of `count` one bits.
fn unary_len(bytes: &[u8], count: u64) -> Result<u64> {
    let mut ones = 0;
    let ends = bytes.iter().position(|byte| {
        ones += u64::from(byte.count_ones());
        ones >= count
    });
    ends.map(|at| at as u64 + 1).ok_or(Stop("a unary plane is truncated".into()))
}

/// Notes the fields of rule 2.
fn matrices(w: &mut Walk<'_>, around: &Around<'_>, tensors: u64) -> Result<()> {
    let lists = views(w, around, tensors)?;
    ints(w, around.tables, tensors, "levels")?;
    let tables = w.u8("table_count", |_| "tables of symbols")?;
    for number in 0..tables {
        table(w, &format!("table {number} of lists"))?;
    }
    ints(w, around.tables, lists, "tables of lists")?;
    if lists > 0 {
        let words = w.varint("word_count", |_| "")?;
        w.u32("state", "of the lane for all lists")?;
        let len = words.checked_mul(2).ok_or(Stop("too many words".into()))?;
        w.payload(len, "words of lists", format_args!("{words} u16 of rANS"))?;
    }
    Ok(())
}

/// Notes views; returns how many lists of rows or columns they have.
fn views(w: &mut Walk<'_>, around: &Around<'_>, tensors: u64) -> Result<u64> {
    let views = kept_ints(w, around.tables, tensors, "views")?;
    for (tensor, &view) in views.iter().enumerate().take(if views.len() > SPELLED { 0 } else { SPELLED }) {
        let flags = match view >> 6 {
            0 => "none",
            1 => "rows",
            2 => "columns",
            _ => "rows and columns",
        };
        let cut = match (view & 7, view >> 3 & 7) {
            _ if view == 0 => String::new(),
            (7, _) => " of the matrix view".into(),
            (a, b) => format!(", rows are dims before {a}, columns dims before {b}"),
        };
        w.heading(format_args!("view of tensor {tensor} of the scope: {flags}{cut}"));
    }
    Ok(views.iter().map(|view| u64::from((view >> 6 & 3).count_ones())).sum())
}

/// Notes `count` signs, if the number is known, in a scope of `tensors` tensors, to the end of the values.
pub(crate) fn signs(
    w: &mut Walk<'_>,
    around: &Around<'_>,
    tensors: Option<u64>,
    count: Option<u64>,
) -> Result<()> {
    let coding = w.u8("coding of signs", |c| match c {
        0 => "plane",
        1 => "predicted",
        _ => "out of range",
    })?;
    match (coding, tensors) {
        (0, _) => {
            let len = count.map_or(w.rest() as u64, |count| count.div_ceil(8));
            w.payload(len, "signs", "a bit for each, 1 for minus").map(drop)
        }
        (1, Some(tensors)) => {
            w.under("views of the signs", |w| views(w, around, tensors))?;
            // How many bits there are depends on the rows and columns that the positions are in.
            let meaning = "bits of rows and columns that have signs, width of symbols, symbols";
            w.payload(w.rest() as u64, "predicted signs", meaning).map(drop)
        }
        (1, None) => Err(Stop("predicted signs in nested values".into())),
        (other, _) => Err(Stop(format!("coding of signs {other}"))),
    }
}
