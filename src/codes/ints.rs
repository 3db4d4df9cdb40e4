//! Writes coded integers (spec, section 7.1): an array of integers of known length, in whichever coding is
//! smallest.

use std::borrow::Cow;

use crate::arch::{pages, threads};
use crate::bits::{PlaneWriter, put_packed, put_varint};
use crate::codes::count::count;
use crate::codes::cut::{COARSE_LOG, Cost, Cut, FINE_LOG, Tally, bits, sum};
use crate::codes::integers::Integers;
use crate::codes::joined::Joined;
use crate::codes::rans;
use crate::codes::reference::Referenced;
use crate::codes::table::{Counts, Table, least_cost};
use crate::codes::tree::{self, Tree};
use crate::codes::{Effort, Entropy, Profile, tokens};
use crate::limits::in_memory;

pub(crate) const PACKED: u8 = 0;
pub(super) const TOKENS: u8 = 1;
pub(super) const SYMBOLS: u8 = 2;
pub(super) const REFERENCED: u8 = 3;
pub(super) const JOINED: u8 = 4;
pub(super) const TREE: u8 = 5;

/// Value of `segment_log` for a segment for each group.
pub(super) const BY_GROUP: u8 = 1;

/// Every coding of integers by number, with its name in the registry.
pub const CODINGS: [(u8, &str); 6] = [
    (PACKED, "packed"),
    (TOKENS, "tokens"),
    (SYMBOLS, "symbols"),
    (REFERENCED, "referenced"),
    (JOINED, "joined"),
    (TREE, "tree"),
];

/// The coder of the segments of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SegmentKind {
    /// States and words of rANS.
    Rans,
    /// The bits of the nodes of a tree.
    Tree,
}

/// Meaning of an array of integers. Arrays of one role may share a frequency table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Role {
    Gaps,
    /// High parts of gaps inside classes.
    Quotients,
    /// Views, levels and tables of lists.
    Views,
    /// Wrong predictions of signs.
    Signs,
    /// Joined integers, by their number in a symbol.
    Joined(u8),
    Exponents,
    Residuals,
    References,
    Levels,
    Codes,
    Ulps,
    /// A byte plane, by its significance.
    Plane(u8),
}

/// Context of an encoder of integers.
pub(crate) struct Coder<'a> {
    /// Whether to use entropy coding.
    pub(crate) entropy: Entropy,
    /// Frequency tables shared by the update.
    pub(crate) tables: &'a [Table],
    /// Receives the counts of each segment while the shared tables are still being chosen.
    pub(crate) record: Option<&'a mut Vec<(Role, Counts)>>,
    /// Whether codings must be those of the core profile.
    pub(crate) profile: Profile,
    pub(crate) effort: Effort,
    /// Whether segments are only as long as they will be about, with zeros for their bytes: for counts alone.
    pub(crate) dry: bool,
    /// Number of symbols from which on a segment has 32 lanes.
    pub(crate) wide_from: usize,
    /// Whether the symbols have signs beside them, with about as many bytes.
    has_signs: bool,
    pub(crate) scratch: Scratch,
}

/// Memory that blocks use one after another: new memory takes longer than most coding.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Symbols of byte planes.
    pub(crate) symbols: Vec<u8>,
    /// Residuals of the symbols of [`SymbolPlan::Referenced`].
    residuals: Vec<u8>,
    /// Symbols of joined integers.
    joined: Vec<u8>,
    /// Codes and signs of values.
    pub(crate) codes: Vec<u8>,
    pub(crate) signs: Vec<u8>,
    /// Signs of all elements of a tensor.
    pub(crate) matrix: Vec<i8>,
    /// For each thread.
    segments: Vec<SegmentMemory>,
}

impl<'a> Coder<'a> {
    pub(crate) fn new(
        entropy: Entropy,
        tables: &'a [Table],
        record: Option<&'a mut Vec<(Role, Counts)>>,
    ) -> Self {
        let (profile, effort) = (Profile::Full, Effort::Default);
        let (wide_from, scratch) = (rans::WIDE_FROM, Scratch::default());
        let (dry, has_signs) = (false, false);
        Self { entropy, tables, record, profile, effort, dry, wide_from, has_signs, scratch }
    }

    /// Whether to look for references of symbols.
    fn tries_references(&self) -> bool {
        self.profile == Profile::Full && self.effort == Effort::Default
    }

    /// The number of segments whose counts are recorded.
    pub(crate) fn recorded(&self) -> usize {
        self.record.as_ref().map_or(0, |record| record.len())
    }

    /// Removes the recorded segments from number `mark` on.
    pub(crate) fn take_recorded(&mut self, mark: usize) -> Vec<(Role, Counts)> {
        self.record.as_mut().map_or_else(Vec::new, |record| record.split_off(mark))
    }

    /// Records segments.
    pub(crate) fn record_all(&mut self, segments: Vec<(Role, Counts)>) {
        if let Some(record) = self.record.as_mut() {
            record.extend(segments);
        }
    }

    /// Records a segment with these `counts`.
    fn note(&mut self, role: Role, counts: &Counts) {
        if let Some(record) = self.record.as_deref_mut() {
            record.push((role, *counts));
        }
    }

    /// Returns the cheapest table for symbols with these `counts`.
    fn table_for(&self, counts: &Counts) -> Choice {
        let shared = self.tables.iter().enumerate().filter_map(|(i, table)| Some((i, table.cost(counts)?)));
        let shared = shared.min_by_key(|&(_, cost)| cost);
        let is_shared = |own: Cost| shared.filter(|&(_, cost)| cost < own);
        let choice = |(number, cost)| Choice { shared: Some(number), own: None, cost };
        let (least, distinct) = if shared.is_some() { least_cost(counts) } else { (0, 0) };
        // A table has at least so many bits.
        let least = least.saturating_add(bits(24 + 4 * distinct.saturating_sub(1)));
        if let Some(shared) = is_shared(least) {
            return choice(shared);
        }
        let own = Table::from_counts(counts);
        let cost = own
            .as_ref()
            .and_then(|t| Some(t.cost(counts)?.saturating_add(bits(t.bits().next_multiple_of(8)))))
            .unwrap_or(Cost::MAX);
        is_shared(cost).map_or(Choice { shared: None, own, cost }, choice)
    }

    /// Returns the cost of a segment of `len` symbols, in 1/65536 bit.
    pub(crate) fn segment_cost(&self, counts: &Counts, len: usize) -> Cost {
        let cost = self.table_for(counts).cost;
        cost.saturating_add(bits(32 + (32 << self.lanes_log(len, cost))))
    }

    /// Returns the cost of a segment with these counts whose symbols are in trees, in 1/65536 bit.
    pub(super) fn tree_cost(&self, counts: &Counts) -> Cost {
        let choice = self.table_for(counts);
        let own = choice.own.as_ref().map_or(0, |table| bits(table.bits().next_multiple_of(8)));
        let cost = choice.table(self.tables).map_or(Cost::MAX, |table| Tree::new(&table).cost(counts));
        cost.saturating_add(own).saturating_add(bits(32))
    }

    /// Calls `f` to code symbols of `per` integers each: a segment has 32 lanes from as many integers on as
    /// otherwise.
    pub(super) fn of_joined<T>(&mut self, per: u8, f: impl FnOnce(&mut Self) -> T) -> T {
        let usually = self.wide_from;
        self.wide_from /= usize::from(per);
        let result = f(self);
        self.wide_from = usually;
        result
    }

    /// Whether a segment of `len` symbols of this cost has 32 lanes.
    pub(super) fn is_wide(&self, len: usize, cost: Cost) -> bool {
        1 << self.lanes_log(len, cost) == rans::MAX_LANES
    }

    /// Returns the binary logarithm of the number of lanes for a segment of `len` symbols of this cost.
    fn lanes_log(&self, len: usize, cost: Cost) -> u8 {
        let wide = cost >= WIDE_COST || (self.has_signs && len == DIVIDED && cost >= WIDE_COST / 2);
        let wide_from = if wide { 256 } else { self.wide_from };
        rans::lanes_log(len, wide_from)
    }
}

/// The cheapest table for some symbols, and their cost with it: a shared one, by its number, or an own one.
struct Choice {
    shared: Option<usize>,
    own: Option<Table>,
    /// In 1/65536 bit, an own table included.
    cost: Cost,
}

impl Choice {
    /// Returns the table; none for no symbols.
    fn table(self, shared: &[Table]) -> Option<Cow<'_, Table>> {
        match self.shared {
            Some(number) => Some(Cow::Borrowed(&shared[number])),
            None => self.own.map(Cow::Owned),
        }
    }
}

/// Cost of 32 lanes in place of 4.
pub(super) const MORE_LANES: Cost = bits(28 * 32);

/// Cost from which on a segment has 32 lanes, however few symbols it has: they are at most 0.8 % of it. Twice
/// the share is worth the speed of a divided array that has signs beside it.
const WIDE_COST: Cost = MORE_LANES / 8 * 1000;

/// Length of the segments of most divided arrays.
const DIVIDED: usize = 1 << COARSE_LOG;

/// Appends `entropy(N)`; `values` are the integers behind the symbols if these are tokens.
fn write_entropy(
    out: &mut Vec<u8>,
    coder: &mut Coder<'_>,
    role: Role,
    symbols: &[u8],
    values: Option<Integers<'_>>,
    cut: &Cut,
) {
    out.push(cut.segment_log);
    let kind = cut.kind;
    if cut.segment_log == 0 {
        let counts = sum(&cut.fine);
        return write_one(out, coder, role, SegmentSymbols { kind, symbols, values, counts });
    }
    if cut.segment_log == BY_GROUP {
        let mut start = 0;
        let parts = cut.groups.iter().zip(&cut.fine).map(|(&len, counts)| {
            let own = start..start + len;
            start += len;
            let values = values.map(|values| values.part(own.clone()));
            SegmentSymbols { kind, symbols: &symbols[own], values, counts: sum(&[*counts]) }
        });
        let parts: Vec<SegmentSymbols<'_>> = parts.collect();
        parts.iter().for_each(|part| coder.note(role, &part.counts));
        return write_in_turn(coder, &parts, |segment| pages::append(out, segment));
    }
    let len = 1usize << cut.segment_log;
    let counts = cut.fine.chunks(1 << (cut.segment_log - FINE_LOG)).map(sum);
    let mut parts = symbols.chunks(len).zip(counts).enumerate().map(|(i, (symbols, counts))| {
        let values = values.map(|values| values.part(i * len..i * len + symbols.len()));
        SegmentSymbols { kind, symbols, values, counts }
    });
    let mut memory = std::mem::take(&mut coder.scratch.segments);
    memory.resize_with(threads::count(), SegmentMemory::default);
    // Each thread has a segment at a time, or several narrow ones, which are small.
    let is_narrow = cut.cost / (parts.len() as u64).max(1) < WIDE_COST;
    let several = if is_narrow { rans::MOST } else { 1 };
    loop {
        let batch: Vec<SegmentSymbols<'_>> = parts.by_ref().take(several * memory.len()).collect();
        if batch.is_empty() {
            break;
        }
        batch.iter().for_each(|part| coder.note(role, &part.counts));
        let shares = batch.chunks(batch.len().div_ceil(memory.len()));
        threads::each(memory.iter_mut().zip(shares.clone()), |(memory, parts)| {
            memory.bytes.clear();
            memory.ends.clear();
            write_segments(coder, parts, memory);
        });
        for (memory, _) in memory.iter().zip(shares) {
            memory.for_each(|segment| {
                put_varint(out, segment.len() as u64);
                pages::append(out, segment);
            });
        }
    }
    coder.scratch.segments = memory;
}

/// The symbols of a segment, the integers behind them if they are tokens, and their counts.
struct SegmentSymbols<'a> {
    kind: SegmentKind,
    symbols: &'a [u8],
    values: Option<Integers<'a>>,
    counts: Counts,
}

/// Memory that segments use one after another.
#[derive(Default)]
struct SegmentMemory {
    /// The bytes of segments, and where each of them ends.
    bytes: Vec<u8>,
    ends: Vec<usize>,
    words: Vec<rans::Word>,
    /// Words of narrow segments, which are encoded in turn.
    narrow: [Vec<rans::Word>; rans::MOST],
    trees: tree::Memory,
}

impl SegmentMemory {
    /// Calls `f` with the bytes of each segment.
    fn for_each(&self, mut f: impl FnMut(&[u8])) {
        let starts = [0].iter().chain(&self.ends);
        starts.zip(&self.ends).for_each(|(&start, &end)| f(&self.bytes[start..end]));
    }
}

fn write_one(out: &mut Vec<u8>, coder: &mut Coder<'_>, role: Role, part: SegmentSymbols<'_>) {
    coder.note(role, &part.counts);
    let mut memory = coder.scratch.segments.pop().unwrap_or_default();
    let own = std::mem::replace(&mut memory.bytes, std::mem::take(out));
    write_segments(coder, &[part], &mut memory);
    *out = std::mem::replace(&mut memory.bytes, own);
    memory.ends.clear();
    coder.scratch.segments.push(memory);
}

/// Encodes segments, narrow ones in turn, and calls `f` with the bytes of each.
fn write_in_turn(coder: &mut Coder<'_>, parts: &[SegmentSymbols<'_>], mut f: impl FnMut(&[u8])) {
    let mut memory = coder.scratch.segments.pop().unwrap_or_default();
    for parts in parts.chunks(rans::MOST) {
        memory.bytes.clear();
        memory.ends.clear();
        write_segments(coder, parts, &mut memory);
        memory.for_each(&mut f);
    }
    coder.scratch.segments.push(memory);
}

/// Appends at most [`rans::MOST`] segments of one kind to the bytes of the memory.
fn write_segments(coder: &Coder<'_>, parts: &[SegmentSymbols<'_>], memory: &mut SegmentMemory) {
    let SegmentMemory { bytes: out, ends, words, narrow, trees } = memory;
    let plans: Vec<SegmentPlan<'_>> = parts.iter().map(|part| SegmentPlan::of(coder, part)).collect();
    if parts.iter().any(|part| part.kind == SegmentKind::Tree) {
        for (part, plan) in parts.iter().zip(&plans) {
            plan.write_table(out);
            plan.table.iter().for_each(|table| tree::write(out, table, part.symbols, trees));
            ends.push(out.len());
        }
        return;
    }
    let coded: Vec<Option<rans::Part<'_>>> =
        parts.iter().zip(&plans).map(|(part, plan)| plan.coded(part).filter(|_| !coder.dry)).collect();
    let together: Vec<rans::Part<'_>> =
        coded.iter().flatten().filter(|part| part.is_narrow()).copied().collect();
    let mut together = rans::encode_narrow(&together, narrow).into_iter();
    for ((part, plan), coded) in parts.iter().zip(&plans).zip(coded) {
        match coded {
            None if coder.dry => out.resize(out.len() + plan.expected_len(part), 0),
            None => {}
            Some(coded) => {
                plan.write_table(out);
                match coded.is_narrow().then(|| together.next()).flatten() {
                    Some(segment) => segment.write(out),
                    None => rans::write(out, coded, words),
                }
                part.write_raw(out);
            }
        }
        ends.push(out.len());
    }
}

impl SegmentSymbols<'_> {
    /// Appends the raw bits of tokens.
    fn write_raw(&self, out: &mut Vec<u8>) {
        let Some(values) = self.values else { return };
        let mut plane = PlaneWriter::new(out);
        for (symbols, start) in self.symbols.chunks(64).zip((0..).step_by(64)) {
            let mut with_raw = tokens::with_raw(symbols);
            while with_raw != 0 {
                let place = in_memory(with_raw.trailing_zeros().into());
                let bits = tokens::raw_bits(symbols[place]);
                plane.put(tokens::raw(values.at(start + place), bits), bits);
                with_raw &= with_raw - 1;
            }
        }
        plane.finish();
    }
}

/// How the symbols of a segment are coded.
struct SegmentPlan<'a> {
    /// Number of the shared table, unless the segment has its own.
    shared: Option<usize>,
    /// None without symbols.
    table: Option<Cow<'a, Table>>,
    lanes_log: u8,
    cost: Cost,
}

impl<'a> SegmentPlan<'a> {
    fn of(coder: &Coder<'a>, part: &SegmentSymbols<'_>) -> Self {
        let choice = coder.table_for(&part.counts);
        let (shared, cost) = (choice.shared, choice.cost);
        let table = choice.table(coder.tables);
        Self { shared, table, lanes_log: coder.lanes_log(part.symbols.len(), cost), cost }
    }

    /// Returns what the coder of symbols needs.
    fn coded<'s>(&'s self, part: &'s SegmentSymbols<'_>) -> Option<rans::Part<'s>> {
        let (table, counts) = (self.table.as_deref()?, &part.counts);
        Some(rans::Part { symbols: part.symbols, counts, table, lanes_log: self.lanes_log })
    }

    /// Returns about the number of bytes.
    fn expected_len(&self, part: &SegmentSymbols<'_>) -> usize {
        let raw = if part.values.is_some() { bits(tokens::raw_cost(&part.counts)) } else { 0 };
        let states = bits(16 + (32 << self.lanes_log));
        in_memory(self.cost.saturating_add(raw).saturating_add(states).div_ceil(bits(8)))
    }

    /// Appends the number of the shared table, or the table.
    fn write_table(&self, out: &mut Vec<u8>) {
        put_varint(out, self.shared.map_or(0, |number| number as u64 + 1));
        if let (None, Some(table)) = (self.shared, &self.table) {
            table.write(out);
        }
    }
}

/// Appends `entropy(N)` over tokens; nothing if there are no values.
pub(crate) fn write_entropy_tokens(out: &mut Vec<u8>, coder: &mut Coder<'_>, role: Role, values: &[u64]) {
    TokenPlan::new(coder, values).write(out, coder, role, values);
}

/// Appends `entropy(N)` over symbols; nothing if there are none.
pub(crate) fn write_entropy_symbols(out: &mut Vec<u8>, coder: &mut Coder<'_>, role: Role, symbols: &[u8]) {
    if !symbols.is_empty() {
        let cut = Cut::new(coder, symbols);
        write_entropy(out, coder, role, symbols, None, &cut);
    }
}

/// The form of values as tokens.
pub(crate) struct TokenPlan {
    symbols: Vec<u8>,
    cut: Cut,
}

impl TokenPlan {
    /// Finds the cheapest form.
    pub(crate) fn new(coder: &Coder<'_>, values: &[u64]) -> Self {
        let symbols = Integers::Plain(values).tokens();
        let cut = Cut::new(coder, &symbols);
        Self { symbols, cut }
    }

    /// Returns the cost in 1/65536 bit.
    pub(crate) fn cost(&self) -> u64 {
        self.cut.cost.saturating_add(self.cut.raw_cost())
    }

    /// Appends `entropy(N)` over the tokens of `values`, which are those that the plan was made for; nothing
    /// if there are none.
    pub(crate) fn write(&self, out: &mut Vec<u8>, coder: &mut Coder<'_>, role: Role, values: &[u64]) {
        if !values.is_empty() {
            write_entropy(out, coder, role, &self.symbols, Some(Integers::Plain(values)), &self.cut);
        }
    }
}

/// Returns `entropy(N)` over the tokens of each of these arrays, none of them empty, with their plans. Narrow
/// segments are encoded in turn.
pub(crate) fn entropy_tokens(
    coder: &mut Coder<'_>,
    role: Role,
    arrays: &[(&TokenPlan, &[u64])],
) -> Vec<Vec<u8>> {
    let undivided = arrays.iter().filter(|(plan, _)| plan.cut.segment_log == 0);
    let parts = undivided.map(|(TokenPlan { symbols, cut }, values)| SegmentSymbols {
        kind: cut.kind,
        symbols,
        values: Some(Integers::Plain(values)),
        counts: sum(&cut.fine),
    });
    let parts: Vec<SegmentSymbols<'_>> = parts.collect();
    let mut segments = Vec::with_capacity(parts.len());
    // The first byte is `segment_log`.
    write_in_turn(coder, &parts, |segment| segments.push([&[0], segment].concat()));
    let mut segments = parts.iter().zip(segments);
    let coded = arrays.iter().map(|(plan, values)| {
        let whole = if plan.cut.segment_log == 0 { segments.next() } else { None };
        if let Some((part, bytes)) = whole {
            coder.note(role, &part.counts);
            return bytes;
        }
        let mut out = Vec::new();
        plan.write(&mut out, coder, role, values);
        out
    });
    coded.collect()
}

/// Appends `ints(N)` for integers of any size.
pub(crate) fn write_ints(out: &mut Vec<u8>, coder: &mut Coder<'_>, role: Role, values: &[u64]) {
    write_grouped_ints(out, coder, role, Integers::Plain(values), &[]);
}

/// Appends `ints(N)`, where groups of these lengths may have a segment each.
pub(crate) fn write_grouped_ints(
    out: &mut Vec<u8>,
    coder: &mut Coder<'_>,
    role: Role,
    values: Integers<'_>,
    groups: &[u64],
) {
    if values.len() == 0 {
        return;
    }
    let width = 64 - values.bits().leading_zeros();
    let packed = bits((values.len() as u64).saturating_mul(width.into()).saturating_add(8));
    if width <= 8 {
        return write_small_grouped_ints(out, coder, role, &values.bytes(), groups);
    }
    if coder.entropy == Entropy::Auto {
        let symbols = values.tokens();
        let by_tokens = Cut::cheapest(coder, Tally::new(&symbols, groups));
        let token_cost = by_tokens.cost.saturating_add(by_tokens.raw_cost());
        if token_cost < packed {
            out.push(TOKENS);
            return write_entropy(out, coder, role, &symbols, Some(values), &by_tokens);
        }
    }
    out.push(PACKED);
    out.push(width as u8);
    let mut plane = PlaneWriter::new(out);
    values.for_each_part(|part| plane.put_all(part, width));
    plane.finish();
}

/// Appends `ints(N)` for integers below 256: the same bytes as [`write_ints`].
pub(crate) fn write_small_ints(out: &mut Vec<u8>, coder: &mut Coder<'_>, role: Role, values: &[u8]) {
    write_small_grouped_ints(out, coder, role, values, &[]);
}

/// Appends `ints(N)` for integers below 256: the same bytes as [`write_grouped_ints`].
fn write_small_grouped_ints(
    out: &mut Vec<u8>,
    coder: &mut Coder<'_>,
    role: Role,
    values: &[u8],
    groups: &[u64],
) {
    if values.is_empty() {
        return;
    }
    let width = 8 - values.iter().fold(0, |max, &v| v.max(max)).leading_zeros();
    if coder.entropy == Entropy::Auto {
        let packed = bits((values.len() as u64).saturating_mul(width.into()).saturating_add(8));
        let mut memory = std::mem::take(&mut coder.scratch.joined);
        let (joined, tally) = match Joined::new(coder, values, width, &mut memory) {
            Some((joined, tally)) if groups.is_empty() => (Some(joined), tally),
            _ => (None, Tally::new(values, groups)),
        };
        let by_tokens = Cut::cheapest(coder, tally.of_tokens());
        let by_symbols = Cut::cheapest(coder, tally);
        let token_cost = by_tokens.cost.saturating_add(by_tokens.raw_cost());
        let least = by_symbols.cost.min(token_cost);
        let joined = joined.and_then(|joined| joined.worth(least, coder, values, &mut memory));
        let joined = joined.filter(|joined| joined.cut.cost < packed);
        if let Some(joined) = &joined {
            write_joined(out, coder, joined, &memory);
        }
        coder.scratch.joined = memory;
        if joined.is_some() {
            return;
        }
        if by_symbols.cost <= token_cost.min(packed) {
            out.push(SYMBOLS);
            return write_entropy(out, coder, role, values, None, &by_symbols);
        }
        if token_cost < packed {
            let symbols: Vec<u8> = values.iter().map(|&v| tokens::token(v.into())).collect();
            let values: Vec<u64> = values.iter().map(|&v| v.into()).collect();
            out.push(TOKENS);
            return write_entropy(out, coder, role, &symbols, Some(Integers::Plain(&values)), &by_tokens);
        }
    }
    out.extend([PACKED, width as u8]);
    put_packed(out, values, width);
}

/// Appends joined integers, whose `symbols` these are.
fn write_joined(out: &mut Vec<u8>, coder: &mut Coder<'_>, joined: &Joined, symbols: &[u8]) {
    out.extend([JOINED, joined.per]);
    let role = Role::Joined(joined.per);
    coder.of_joined(joined.per, |coder| write_entropy(out, coder, role, symbols, None, &joined.cut));
}

/// Chosen coding of an array of bytes.
pub(crate) enum SymbolPlan {
    /// Fields of this width in bits.
    Packed(u32),
    /// Entropy-coded symbols.
    Symbols(Cut),
    /// Several integers in a symbol; the symbols are in the scratch memory of the coder.
    Joined(Joined),
    /// Entropy-coded differences from references, which are in the scratch memory of the coder.
    Referenced(Box<Referenced>, Cut),
}

impl SymbolPlan {
    /// Finds the smallest coding of `symbols`. `row_lens` are the row lengths of matrices that they may form.
    ///
    /// Counting all symbols takes a fifth of the time of a code. Of a long array, only a sample is counted
    /// where references are clearly better there: then the others are not counted but as residuals.
    pub(crate) fn new(coder: &mut Coder<'_>, symbols: &[u8], row_lens: &[u64]) -> Self {
        let width = 8 - symbols.iter().fold(0, |max, &s| s.max(max)).leading_zeros();
        if coder.entropy == Entropy::Packed {
            return Self::Packed(width);
        }
        let packed = bits((symbols.len() as u64 * u64::from(width)).div_ceil(8) * 8 + 8);
        let mut residuals = std::mem::take(&mut coder.scratch.residuals);
        let mut joined = std::mem::take(&mut coder.scratch.joined);
        let plan = match Joined::new(coder, symbols, width, &mut joined) {
            None => Self::cheapest(coder, symbols, row_lens, &mut residuals, packed, None),
            Some((by_joined, tally)) => {
                let plain = Cut::cheapest(coder, tally);
                let cost = plain.cost;
                match Self::cheapest(coder, symbols, row_lens, &mut residuals, packed, Some(plain)) {
                    Some(Self::Referenced(split, cut)) => Some(Self::Referenced(split, cut)),
                    plan => by_joined
                        .worth(cost, coder, symbols, &mut joined)
                        .filter(|joined| joined.cut.cost < packed)
                        .map(Self::Joined)
                        .or(plan),
                }
            }
        };
        (coder.scratch.residuals, coder.scratch.joined) = (residuals, joined);
        plan.unwrap_or(Self::Packed(width))
    }

    /// Finds a code without joined integers that costs less than `packed`. `counted`: the division of
    /// `symbols`, if they were counted.
    fn cheapest(
        coder: &Coder<'_>,
        symbols: &[u8],
        row_lens: &[u64],
        residuals: &mut Vec<u8>,
        packed: Cost,
        counted: Option<Cut>,
    ) -> Option<Self> {
        let about = match counted.is_none() && coder.tries_references() {
            true => cost_about(coder, symbols),
            false => None,
        };
        let mut plain = counted.or_else(|| about.is_none().then(|| Cut::new(coder, symbols)));
        let limit = plain.as_ref().map(|plain| plain.cost).or(about).unwrap_or(packed).min(packed);
        if plain.as_ref().is_some_and(|plain| is_noise(&sum(&plain.fine))) {
            return plain.filter(|plain| plain.cost < packed).map(Self::Symbols);
        }
        if coder.tries_references()
            && let Some((row_len, columns)) = best_reference(coder, symbols, row_lens, limit, residuals)
        {
            let residuals = pages::reused(residuals, symbols.len());
            let split = Referenced::split(symbols, row_len, columns, residuals);
            let by_reference = Cut::new(coder, residuals);
            let cost = by_reference.cost.saturating_add(reference_cost(coder, &split));
            let is_less = cost < packed
                && (about.is_some_and(|about| cost < about - about / 16)
                    || cost < plain.get_or_insert_with(|| Cut::new(coder, symbols)).cost);
            if is_less {
                return Some(Self::Referenced(Box::new(split), by_reference));
            }
        }
        let plain = plain.unwrap_or_else(|| Cut::new(coder, symbols));
        (plain.cost < packed).then_some(Self::Symbols(plain))
    }

    /// Puts the symbols of long arrays in trees, which are faster, if this costs little more. `beside`: bytes
    /// that belong to these symbols.
    pub(crate) fn prefer_trees(&mut self, coder: &Coder<'_>, symbols: &[u8], beside: usize) {
        if let Self::Symbols(cut) | Self::Referenced(_, cut) = self
            && coder.profile == Profile::Full
            && !coder.dry
            && symbols.len() >= FEWEST_IN_TREES
        {
            let all = cut.cost.saturating_add(bits(8 * beside as u64));
            let thousandths = match coder.effort {
                Effort::Fast => FAST_FOR_TREES,
                Effort::Default => FOR_TREES,
            };
            cut.prefer_trees(coder, all / 1000 * thousandths);
        }
    }

    /// Appends `ints(N)`.
    pub(crate) fn write(&self, out: &mut Vec<u8>, coder: &mut Coder<'_>, role: Role, symbols: &[u8]) {
        if symbols.is_empty() {
            return;
        }
        match self {
            Self::Packed(width) => {
                out.extend([PACKED, *width as u8]);
                put_packed(out, symbols, *width);
            }
            Self::Symbols(cut) => {
                put_coding(out, SYMBOLS, cut);
                write_entropy(out, coder, role, symbols, None, cut);
            }
            Self::Joined(joined) => {
                let symbols = std::mem::take(&mut coder.scratch.joined);
                write_joined(out, coder, joined, &symbols);
                coder.scratch.joined = symbols;
            }
            Self::Referenced(split, cut) => {
                put_coding(out, REFERENCED, cut);
                put_varint(out, split.row_len as u64);
                out.push(u8::from(!split.columns.is_empty()) | u8::from(split.zero_apart) << 1);
                for references in [&split.rows, &split.columns].into_iter().filter(|r| !r.is_empty()) {
                    let cut = Cut::new(coder, references);
                    write_entropy(out, coder, Role::References, references, None, &cut);
                }
                let residuals = std::mem::take(&mut coder.scratch.residuals);
                write_entropy(out, coder, Role::Residuals, &residuals[..symbols.len()], None, cut);
                coder.scratch.residuals = residuals;
            }
        }
    }
}

/// Thousandths of the symbols and of what belongs to them that trees may cost more. On the public set of
/// gradients, with 4 no file grows by 0.3 %; with 5 one of weights does.
const FOR_TREES: Cost = 4;
const FAST_FOR_TREES: Cost = 10;

/// Fewest symbols that are put in trees: nodes of few symbols take as long as those of 64.
const FEWEST_IN_TREES: usize = 1 << 10;

/// Appends the coding of symbols, after [`TREE`] if their segments are trees.
fn put_coding(out: &mut Vec<u8>, coding: u8, cut: &Cut) {
    out.extend((cut.kind == SegmentKind::Tree).then_some(TREE));
    out.push(coding);
}

/// Appends `ints(N)` for integers below 256.
pub(crate) fn write_symbols(out: &mut Vec<u8>, coder: &mut Coder<'_>, role: Role, symbols: &[u8]) {
    SymbolPlan::new(coder, symbols, &[]).write(out, coder, role, symbols);
}

/// Appends `ints(N)` for the exponents of numbers whose signs are beside them.
pub(crate) fn write_exponents(out: &mut Vec<u8>, coder: &mut Coder<'_>, exponents: &[u8], row_lens: &[u64]) {
    // References and short segments save up to a tenth of these bytes: too much to leave out.
    let effort = std::mem::take(&mut coder.effort);
    coder.has_signs = true;
    let mut plan = SymbolPlan::new(coder, exponents, row_lens);
    coder.effort = effort;
    if effort == Effort::Fast {
        plan.prefer_trees(coder, exponents, exponents.len() / 8);
    }
    plan.write(out, coder, Role::Exponents, exponents);
    coder.has_signs = false;
}

/// Whether a code saves more than 1/256 of these bytes.
pub(crate) fn pays(coder: &Coder<'_>, symbols: &[u8]) -> bool {
    let whole = bits(8 * symbols.len() as u64);
    coder.table_for(&count(symbols)).cost < whole - whole / 256
}

/// Whether bytes with these counts are almost as likely as each other, so that they have no references.
fn is_noise(counts: &Counts) -> bool {
    let whole = bits(8 * counts.iter().sum::<u64>());
    let is_most = |cost: Cost| cost >= whole - whole / 64;
    let cost = || Table::from_counts(counts).and_then(|table| table.cost(counts));
    is_most(least_cost(counts).0) || cost().is_some_and(is_most)
}

fn reference_cost(coder: &Coder<'_>, split: &Referenced) -> Cost {
    let of = |r: &[u8]| Cut::new(coder, r).cost;
    of(&split.rows).saturating_add(of(&split.columns)).saturating_add(bits(32))
}

/// Symbols examined by the search for the best references.
const SAMPLE: usize = 1 << 16;
/// Symbols examined first, to leave out all references but two.
const GLANCE: usize = 1 << 14;
/// Pieces of the sample of [`cost_about`].
const PIECES: usize = 8;

/// Returns the cost of all `symbols` if they are like those of a part of them.
fn scaled(coder: &Coder<'_>, symbols: &[u8], part: &[u8]) -> Cost {
    let cost = coder.table_for(&count(part)).cost;
    (u128::from(cost) * symbols.len() as u128 / part.len() as u128) as Cost
}

/// Returns about the cost of many symbols without references, if pieces from everywhere cost alike. A
/// gradient of an embedding, for instance, has rows of zeros between others: only counting all of it tells
/// its cost.
fn cost_about(coder: &Coder<'_>, symbols: &[u8]) -> Option<Cost> {
    if symbols.len() <= SAMPLE {
        return None;
    }
    let parts = symbols.chunks_exact(symbols.len() / PIECES).take(PIECES);
    let costs = parts.map(|part| scaled(coder, part, &part[..SAMPLE / PIECES]));
    let (least, most, sum) = costs.fold((Cost::MAX, 0, 0), |(least, most, sum): (Cost, Cost, Cost), cost| {
        (least.min(cost), most.max(cost), sum.saturating_add(cost))
    });
    (most - least <= most / 8).then_some(sum)
}

/// Returns the row length, and whether to use columns, that should cost less than `limit`, estimated from a
/// part of the symbols.
fn best_reference(
    coder: &Coder<'_>,
    symbols: &[u8],
    row_lens: &[u64],
    limit: Cost,
    residuals: &mut Vec<u8>,
) -> Option<(usize, bool)> {
    let n = symbols.len();
    let mut cost_of = |sample: usize, row_len: usize, columns: bool| {
        let len = (sample / row_len).max(8).saturating_mul(row_len).min(n);
        let start = (n - len) / 2 / row_len * row_len;
        let part = &symbols[start..start + len];
        let residuals = pages::reused(residuals, len);
        let split = Referenced::split(part, row_len, columns, residuals);
        let cost_of = |s: &[u8]| coder.table_for(&count(s)).cost;
        let of_rows = (u128::from(cost_of(&split.rows)) * n as u128 / len as u128) as Cost;
        let of_columns = if columns { cost_of(&split.columns) } else { 0 };
        scaled(coder, symbols, residuals).saturating_add(of_rows).saturating_add(of_columns)
    };
    let row_lens = &row_lens[..row_lens.len().min(4)];
    let default = (!row_lens.contains(&64)).then_some((0, 64, false));
    let row_lens = row_lens.iter().map(|&row_len| usize::try_from(row_len).unwrap_or(usize::MAX));
    let mut candidates: Vec<(Cost, usize, bool)> = row_lens
        .flat_map(|row_len| [(0, row_len, true), (0, row_len, false)])
        .chain(default)
        // There must be at least two rows, and rows long enough to pay for a reference.
        .filter(|&(_, row_len, _)| row_len >= 4 && row_len <= n / 2)
        .collect();
    if n > 2 * GLANCE && candidates.len() > 2 {
        candidates
            .iter_mut()
            .for_each(|(cost, row_len, columns)| *cost = cost_of(GLANCE, *row_len, *columns));
        candidates.sort_by_key(|candidate| candidate.0);
        let first = candidates[0];
        // Where one is clearly the best, the others are left out, and if it clearly pays, so is the sample.
        if candidates[1].0 - first.0 > first.0 / 32 {
            if first.0 < limit - limit / 16 {
                return Some((first.1, first.2));
            }
            candidates.truncate(1);
        }
        candidates.truncate(2);
    }
    candidates.iter_mut().for_each(|(cost, row_len, columns)| *cost = cost_of(SAMPLE, *row_len, *columns));
    let best = candidates.into_iter().min_by_key(|candidate| candidate.0);
    // Without references, the same part is like it in all else, its table included: `limit` may come from
    // smaller pieces with a table each.
    let len = SAMPLE.min(n);
    let limit = (limit - limit / 128).min(scaled(coder, symbols, &symbols[(n - len) / 2..][..len]));
    best.filter(|(cost, ..)| *cost < limit).map(|(_, row_len, columns)| (row_len, columns))
}

/// Returns the cost of `values` as `entropy(N)` over tokens with the coder's tables, raw bits included, in
/// bits.
#[cfg(test)]
fn token_bits(coder: &Coder<'_>, values: &[u64]) -> u64 {
    let symbols: Vec<u8> = values.iter().map(|&v| tokens::token(v)).collect();
    let raw: u64 = symbols.iter().map(|&t| u64::from(tokens::raw_bits(t))).sum();
    (Cut::new(coder, &symbols).cost >> 16) + raw
}

#[cfg(test)]
mod tests;
