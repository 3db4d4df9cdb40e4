//! A segment of tokens, decoded step by step as the text of the spec says (gcodec.md, sections 7.1 to 7.3).

use std::fmt::Write;

use crate::Result;

/// A bit plane, read one field at a time.
pub(super) struct Plane<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Plane<'a> {
    pub(super) fn field(&mut self, width: u32) -> u32 {
        let bit = |i: usize| u32::from(self.bytes.get(i / 8).is_some_and(|byte| byte >> (i % 8) & 1 == 1));
        let value = (0..width).fold(0, |value, i| value | bit(self.at + i as usize) << i);
        self.at += width as usize;
        value
    }

    /// Returns the bytes after the plane.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at.div_ceil(8)..).unwrap_or_default()
    }
}

/// A frequency table (7.2).
pub(super) struct Frequencies {
    pub(super) of: [u32; 256],
}

impl Frequencies {
    pub(super) fn read(plane: &mut Plane<'_>) -> Self {
        let mut of = [0; 256];
        let first = plane.field(8) as usize;
        let (last, rest) = (first + plane.field(8) as usize, first + plane.field(8) as usize);
        for symbol in (first..=last).filter(|&s| s != rest) {
            let x = plane.field(4);
            if x > 0 {
                let e = x - 1;
                of[symbol] = (1 << e) + (plane.field(e.min(3)) << (e - e.min(3)));
            }
        }
        of[rest] = 4096 - of.iter().sum::<u32>();
        Self { of }
    }

    pub(super) fn start(&self, symbol: usize) -> u32 {
        self.of[..symbol].iter().sum()
    }

    /// Returns the symbol that owns a slot.
    pub(super) fn owner(&self, slot: u32) -> usize {
        (0..256).find(|&s| slot < self.start(s) + self.of[s]).unwrap_or(0)
    }

    pub(super) fn to_markdown(&self) -> String {
        let mut out = "| token | frequency | slots |\n|---|---|---|\n".to_owned();
        for (token, &frequency) in self.of.iter().enumerate().filter(|(_, frequency)| **frequency > 0) {
            let start = self.start(token);
            let _ = writeln!(out, "| {token} | {frequency} | {start} to {} |", start + frequency - 1);
        }
        out
    }
}

/// A step of the decoder: one integer.
struct Step {
    /// State before the step.
    before: u32,
    token: usize,
    /// State before a word is taken.
    between: u32,
    word: Option<u32>,
    /// State after the step.
    after: u32,
}

/// A decoded support of kind `gaps-tokens`.
pub(super) struct Decoded {
    frequencies: Frequencies,
    steps: Vec<Step>,
    /// Raw bits of each gap, and their number.
    raw: Vec<(u32, u32)>,
    pub(super) positions: Vec<u64>,
}

/// Decodes a support of one segment with its own table, one lane, and fields below 128.
pub(super) fn decode(support: &[u8]) -> Result<Decoded> {
    let [m, 0, 0, ..] = *support else {
        return Err("the example is not one segment with its own table".into());
    };
    let mut plane = Plane { bytes: &support[3..], at: 0 };
    let frequencies = Frequencies::read(&mut plane);
    let [0, word_count, a, b, c, d, ref rest @ ..] = *plane.rest() else {
        return Err("the example's segment has more than one lane".into());
    };
    let (words, raw) = rest.split_at_checked(2 * usize::from(word_count)).ok_or("words are missing")?;
    let mut words = words.as_chunks::<2>().0.iter().map(|word| u32::from(u16::from_le_bytes(*word)));
    let mut steps = Vec::new();
    let mut state = u32::from_le_bytes([a, b, c, d]);
    for _ in 0..m {
        let (before, slot) = (state, state % 4096);
        let token = frequencies.owner(slot);
        let between = frequencies.of[token] * (state / 4096) + slot - frequencies.start(token);
        let word = if between < 1 << 16 { words.next() } else { None };
        state = word.map_or(between, |word| between << 16 | word);
        steps.push(Step { before, token, between, word, after: state });
    }
    if state != 1 << 16 || words.next().is_some() {
        return Err("the example's segment does not end in its initial state".into());
    }
    let mut plane = Plane { bytes: raw, at: 0 };
    let widths = steps.iter().map(|step| (step.token as u32 / 2).saturating_sub(1));
    let raw: Vec<(u32, u32)> = widths.map(|width| (plane.field(width), width)).collect();
    let mut decoded = Decoded { frequencies, steps, raw, positions: Vec::new() };
    let mut next = 0;
    for i in 0..usize::from(m) {
        let position = next + u64::from(decoded.gap(i));
        decoded.positions.push(position);
        next = position + 1;
    }
    Ok(decoded)
}

impl Decoded {
    fn gap(&self, i: usize) -> u32 {
        let (token, (raw, width)) = (self.steps[i].token as u32, self.raw[i]);
        if token < 2 { token } else { (2 + token % 2) << width | raw }
    }

    /// Returns the frequency table as a Markdown table.
    pub(super) fn frequencies(&self) -> String {
        self.frequencies.to_markdown()
    }

    /// Returns a Markdown table with a row for each integer.
    pub(super) fn steps(&self) -> String {
        let mut out =
            "| i | x | slot | token | freq * (x div 4096) + slot - start | word | next x | raw bits | gap \
                       | position |\n|---|---|---|---|---|---|---|---|---|---|\n"
                .to_owned();
        for (i, step) in self.steps.iter().enumerate() {
            let Step { before, token, between, word, after } = *step;
            let (slot, start, frequency) =
                (before % 4096, self.frequencies.start(token), self.frequencies.of[token]);
            let word = word.map_or("none".to_owned(), |word| format!("`{word:04x}`"));
            let raw = match self.raw[i] {
                (_, 0) => "none".to_owned(),
                (raw, width) => format!("`{raw:0width$b}`", width = width as usize),
            };
            let _ = writeln!(
                out,
                "| {i} | {before} | {slot} | {token} | {frequency} * {} + {slot} - {start} = {between} | {word} | \
                 {after} | {raw} | {} | {} |",
                before / 4096,
                self.gap(i),
                self.positions[i],
            );
        }
        out
    }
}
