//! Classed supports of ten elements, decoded step by step as the text of the spec says
//! (supports/classed.md), and compared with what the library decodes.

use std::fmt::Write;

use gcodec::block::Support;
use gcodec::stream::{Assembler, Body, Event, SliceReader};
use gcodec::{Dtype, Limits, TensorBuf};

use super::segment::{Frequencies, Plane};
use crate::Result;
use crate::page::paragraph;
use crate::vectors::classed as made;

/// Returns both examples as a section of the page. `annotated` returns the lines of a stream's annotation.
pub(super) fn section(annotated: impl Fn(&[u8]) -> Result<String>) -> Result<String> {
    Ok(format!("{}\n{}", by_base(&annotated)?, by_rows_and_columns(&annotated)?))
}

/// Returns the lines of the first block's support and values.
fn block_of(annotated: &str) -> String {
    let block = annotated.lines().skip_while(|line| !line.trim().starts_with("support classed"));
    let block: Vec<&str> = block.take_while(|line| !line.is_empty()).collect();
    format!("```text\n{}\n```\n", block.join("\n"))
}

/// Calls `f` with the bytes of the support and of the values of a stream's only block, and with what the
/// library decodes.
fn with_block<T>(stream: &[u8], f: impl FnOnce(&[u8], &[u8], &Support) -> Result<T>) -> Result<T> {
    for event in SliceReader::new(stream, Limits::default()) {
        if let Event::Frame(_, Body::Update(part)) = event? {
            let block = part.decode(0, &part.budget())?;
            return f(part.blocks[0].support, part.blocks[0].values, &block.support);
        }
    }
    Err("the example has no update".into())
}

/// Fields of the example's supports: all varints are below 128, so each is one byte.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or("the example's support is too short")?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    /// Reads `ints(count)` in the coding `packed`.
    fn packed(&mut self, count: usize) -> Result<Vec<u32>> {
        let [0, width] = *self.take(2)? else { return Err("the example's integers are not packed".into()) };
        let mut plane = Plane { bytes: self.take((count * usize::from(width)).div_ceil(8))?, at: 0 };
        Ok((0..count).map(|_| plane.field(width.into())).collect())
    }
}

/// Consecutive classes.
struct Group {
    classes: std::ops::Range<u8>,
    count: usize,
    shift: u8,
    /// Its elements, by rank.
    elements: Vec<usize>,
}

/// A step of the decoder: one position.
struct Step {
    group: usize,
    /// Rank behind the position before.
    next: usize,
    /// The class of the element with this rank, counted from the first class of the group.
    class: u8,
    width: u8,
    quotient: u32,
    low: u32,
    rank: usize,
    element: usize,
}

/// Reads the fields from `group_count` on; `classes` are those of the elements.
fn positions(fields: &mut Fields<'_>, classes: &[u8]) -> Result<(Vec<Group>, Vec<Step>)> {
    let mut groups = Vec::new();
    let mut first = 0;
    for _ in 0..fields.byte()? {
        let of_group = first..first + fields.byte()?;
        first = of_group.end;
        let count = usize::from(fields.byte()?);
        let shift = if count > 0 { fields.byte()? } else { 0 };
        let mut elements: Vec<usize> =
            (0..classes.len()).filter(|&i| of_group.contains(&classes[i])).collect();
        elements.sort_by_key(|&i| classes[i]);
        groups.push(Group { classes: of_group, count, shift, elements });
    }
    let mut quotients = Vec::new();
    for group in groups.iter().filter(|group| group.count > 0) {
        let mut plane = Plane { bytes: fields.0, at: 0 };
        quotients.extend((0..group.count).map(|_| (0..).take_while(|_| plane.field(1) == 0).count() as u32));
        fields.0 = plane.rest();
    }
    let mut low = Plane { bytes: fields.0, at: 0 };
    let (mut quotients, mut steps) = (quotients.into_iter(), Vec::new());
    for (number, group) in groups.iter().enumerate() {
        let mut next = 0;
        for quotient in quotients.by_ref().take(group.count) {
            let class = classes[group.elements[next]] - group.classes.start;
            let width = group.shift.saturating_sub(class);
            let low = low.field(width.into());
            let rank = next + (quotient << width | low) as usize;
            let element = *group.elements.get(rank).ok_or("a rank of the example is beyond its group")?;
            steps.push(Step { group: number, next, class, width, quotient, low, rank, element });
            next = rank + 1;
        }
    }
    if !low.rest().is_empty() {
        return Err("the example's low bits are left over".into());
    }
    Ok((groups, steps))
}

fn joined(elements: impl IntoIterator<Item = impl ToString>) -> String {
    elements.into_iter().map(|e| e.to_string()).collect::<Vec<_>>().join(", ")
}

/// Returns a table of groups and a table of steps.
fn tables(groups: &[Group], steps: &[Step]) -> (String, String) {
    let mut listed =
        "| group | classes | elements, by rank | positions | shift |\n|---|---|---|---|---|\n".to_owned();
    for (number, group) in groups.iter().enumerate() {
        let Group { classes, count, shift, elements } = group;
        let shift = if *count > 0 { shift.to_string() } else { "none".to_owned() };
        let (classes, elements) = (joined(classes.clone()), joined(elements));
        let _ = writeln!(listed, "| {number} | {classes} | {elements} | {count} | {shift} |");
    }
    let mut found =
        "| group | rank before + 1 | its class c | s | quotient | low bits | gap | rank | element |\n\
                     |---|---|---|---|---|---|---|---|---|\n"
            .to_owned();
    for step in steps {
        let &Step { group, next, class, width, quotient, low, rank, element } = step;
        let zeros = "0".repeat(quotient as usize);
        let bits = match width {
            0 => "none".to_owned(),
            width => format!("`{low:0width$b}`", width = width.into()),
        };
        let shift = groups[group].shift;
        let _ = writeln!(
            found,
            "| {group} | {next} | {class} | max(0, {shift} - {class}) = {width} | `{zeros}1`: {quotient} | {bits} | \
             {} | {rank} | {element} |",
            rank - next
        );
    }
    (listed, found)
}

/// Value of a bf16 element.
fn number(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Maps the bits of a bf16 element to an integer of the same order (values/ulp.md), or back.
fn order(bits: u16) -> u16 {
    if bits & 0x8000 != 0 { !bits } else { bits | 0x8000 }
}

fn from_order(order: u16) -> u16 {
    if order & 0x8000 != 0 { order & 0x7fff } else { !order }
}

fn by_base(annotated: &impl Fn(&[u8]) -> Result<String>) -> Result<String> {
    let (stream, base) = (made::example_by_base(), made::EXAMPLE_BASE);
    with_block(&stream, |support, values, _| {
        let mut fields = Fields(support);
        let [1, count] = *fields.take(2)? else { return Err("the example's rule is not 1".into()) };
        let bounds = fields.take(usize::from(count) - 1)?;
        let mut keys = "| element | base | bits | key | bounds above the key | class |\n\
                        |---|---|---|---|---|---|\n"
            .to_owned();
        let mut classes = Vec::new();
        for (i, &bits) in base.iter().enumerate() {
            let key = (bits >> 7) as u8;
            let above: Vec<u8> = bounds.iter().copied().filter(|&bound| bound > key).collect();
            classes.push(above.len() as u8);
            let listed = if above.is_empty() { "none".to_owned() } else { joined(&above) };
            let (number, class) = (number(bits), above.len());
            let _ = writeln!(keys, "| {i} | {number} | `{bits:04x}` | {key} | {listed} | {class} |");
        }
        let (groups, steps) = positions(&mut fields, &classes)?;
        let (listed, found) = tables(&groups, &steps);
        let mut result = base;
        let mut changes = "| element | integer | difference | o(old) | o(new) | new bits | new element |\n\
                           |---|---|---|---|---|---|---|\n"
            .to_owned();
        let integers = Fields(values).packed(steps.len())?;
        for (&Step { element, .. }, integer) in steps.iter().zip(integers) {
            let difference = (integer >> 1) as i16 ^ -((integer & 1) as i16);
            let old = order(result[element]);
            let new = old.wrapping_add_signed(difference);
            result[element] = from_order(new);
            let (bits, number) = (result[element], number(result[element]));
            let _ = writeln!(
                changes,
                "| {element} | {integer} | {difference} | `{old:04x}` | `{new:04x}` | `{bits:04x}` | {number} |"
            );
        }
        agrees_with_the_library(&stream, &base, &result)?;
        Ok(format!(
            "## Positions classed by the base\n\n{}\n{}\n{}\n{keys}\n{}\n{listed}\n{}\n{found}\n{}\n{changes}",
            paragraph(
                "A delta changes a tensor of ten bf16 elements. Its block has a support of kind `classed` with rule 1 \
                 (`supports/classed.md`) and values of kind `ulp`:"
            ),
            block_of(&annotated(&stream)?),
            paragraph(&format!(
                "**Classes.** The key of a bf16 element is its exponent, the eight bits below the sign. The bounds are \
                 {}. The class is the number of bounds above the key, so the smallest elements have the highest class:",
                joined(bounds)
            )),
            paragraph(
                "**Ranks.** Each group has one class (CLS-9). Its elements are in ascending order, and their ranks \
                 begin at 0:"
            ),
            paragraph(
                "**Positions.** The quotients of a group are a bit plane, read from the lowest bit of each byte: zeros, \
                 then a one. The next group begins with a new byte. The low bits of all groups follow. The gap is \
                 quotient * 2^s + low bits, and the rank is the rank before + 1 + gap:"
            ),
            paragraph(
                "**Values.** They are in the order of the groups and ranks (CLS-9), not of the elements. Each integer \
                 is the zigzag of a difference of o (`values/ulp.md`):"
            ),
        ))
    })
}

/// Compares the elements after a delta with those that the library computes.
fn agrees_with_the_library(stream: &[u8], base: &[u16; 10], result: &[u16; 10]) -> Result<()> {
    let tensor = |elements: &[u16; 10]| {
        TensorBuf::new(Dtype::Bf16, vec![10], elements.iter().flat_map(|e| e.to_le_bytes()).collect())
    };
    let (base, expected) = (tensor(base)?, tensor(result)?);
    for event in SliceReader::new(stream, Limits::default()) {
        if let Event::Frame(_, Body::Update(part)) = event? {
            let mut assembler = Assembler::new(&part.manifest, &Limits::default(), |_| true)?;
            assembler.base("w", base.view())?;
            assembler.apply(&part)?;
            if assembler.finish()? != [(0, expected.clone())] {
                return Err("the library decodes the example otherwise".into());
            }
        }
    }
    Ok(())
}

fn by_rows_and_columns(annotated: &impl Fn(&[u8]) -> Result<String>) -> Result<String> {
    const ROWS: usize = 2;
    const COLUMNS: usize = 5;
    let stream = made::example_by_rows_and_columns();
    with_block(&stream, |support, _, decoded| {
        let mut fields = Fields(support);
        let [2, _] = *fields.take(2)? else { return Err("the example's rule is not 2".into()) };
        let (view, level) = (fields.packed(1)?[0], fields.packed(1)?[0] as u8);
        let [1, ..] = *fields.take(1)? else { return Err("the example's lists have several tables".into()) };
        let mut plane = Plane { bytes: fields.0, at: 0 };
        let frequencies = Frequencies::read(&mut plane);
        fields.0 = plane.rest();
        if view != 0xd1 || fields.packed(2)? != [0, 0] || fields.byte()? != 0 {
            return Err("the example's lists are not those of a matrix, without words".into());
        }
        let mut state = fields.take(4)?.iter().rev().fold(0, |state, &byte| state << 8 | u32::from(byte));
        let mut lists = "| symbol of | x | slot | symbol | next x |\n|---|---|---|---|---|\n".to_owned();
        let mut symbols = Vec::new();
        for i in 0..ROWS + COLUMNS {
            let (before, slot) = (state, state % 4096);
            let symbol = frequencies.owner(slot);
            let (frequency, start) = (frequencies.of[symbol], frequencies.start(symbol));
            state = frequency * (state / 4096) + slot - start;
            let place = if i < ROWS { format!("row {i}") } else { format!("column {}", i - ROWS) };
            let quotient = before / 4096;
            let _ = writeln!(
                lists,
                "| {place} | {before} | {slot} | {symbol} | {frequency} * {quotient} + {slot} - {start} = {state} |"
            );
            symbols.push(symbol as u8);
        }
        if state != 1 << 16 {
            return Err("the example's lists do not end in the initial state".into());
        }
        let (rows, columns) = symbols.split_at(ROWS);
        let mut sums = "| row | symbol |".to_owned();
        (0..COLUMNS).for_each(|column| sums += &format!(" column {column} |"));
        sums += &format!("\n|---|---|{}\n| | |", "---|".repeat(COLUMNS));
        columns.iter().for_each(|symbol| sums += &format!(" symbol {symbol} |"));
        let mut classes = Vec::new();
        for (row, symbol) in rows.iter().enumerate() {
            let _ = write!(sums, "\n| {row} | {symbol} |");
            for column in columns {
                let element = classes.len();
                let class = level + symbol + column;
                let _ = write!(sums, " element {element}: class {class} |");
                classes.push(class);
            }
        }
        sums.push('\n');
        let (groups, steps) = positions(&mut fields, &classes)?;
        let (listed, found) = tables(&groups, &steps);
        let mut elements: Vec<u64> = steps.iter().map(|step| step.element as u64).collect();
        elements.sort_unstable();
        match decoded {
            Support::Sparse(sparse) if sparse.positions == elements => {}
            _ => return Err("the library decodes the example otherwise".into()),
        }
        Ok(format!(
            "## Positions classed by rows and columns\n\n{}\n{}\n{}\n{}\n{}\n{lists}\n{}\n{sums}\n{}\n{listed}\n{}\n{found}\n{}",
            paragraph(
                "A matrix of 2 rows and 5 columns has four values, all in its second row. The columns 1 and 4 were \
                 expected to be denser, too. The block has a support of kind `classed` with rule 2:"
            ),
            block_of(&annotated(&stream)?),
            paragraph(
                "**Lists.** The view `d1` has both flags, a = 1 and b = 2 (section 7.6): a list for the rows, the first \
                 dim, and one for the columns, the second. Both have table 0:"
            ),
            frequencies.to_markdown().replace("token", "symbol"),
            paragraph(&format!(
                "One lane decodes the symbols of both lists, rows first, by the steps of section 7.3. No state is below \
                 2^16, so there are no words. The last state is {}, as ANS-2 requires.",
                1 << 16
            )),
            paragraph(&format!(
                "**Classes.** The class of an element is the level of its tensor, here {level}, plus the symbol of its \
                 row, plus the symbol of its column:"
            )),
            paragraph(
                "**Ranks.** The elements of a group are ordered by class, and inside a class by index. The first group \
                 has two classes:"
            ),
            paragraph(
                "**Positions.** A class has one low bit less than the class before it. The class that counts is that of \
                 the element behind the last position, because the gap begins there:"
            ),
            paragraph(&format!(
                "In ascending order the support is {}. The values are in this order.",
                joined(&elements)
            )),
        ))
    })
}
