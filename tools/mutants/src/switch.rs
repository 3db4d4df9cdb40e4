//! Turns a mistake on, or records which of them tests reach.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

const UNKNOWN: u32 = u32::MAX;
static ON: AtomicU32 = AtomicU32::new(UNKNOWN);
static REACHED: [AtomicU64; WORDS_OF_ALL] = [const { AtomicU64::new(0) }; WORDS_OF_ALL];
static RECORD: OnceLock<Option<File>> = OnceLock::new();

/// Whether the mistake of this number is on.
#[inline]
pub(crate) fn on(number: u32) -> bool {
    let on = ON.load(Relaxed);
    if on == UNKNOWN { first(number) } else { on == number }
}

#[cold]
fn first(number: u32) -> bool {
    let record = RECORD.get_or_init(|| {
        let path = std::env::var_os("GCODEC_MUTANTS_REACHED")?;
        Some(OpenOptions::new().create(true).append(true).open(path).expect("a file for what is reached"))
    });
    let Some(mut file) = record.as_ref() else {
        let chosen = std::env::var("GCODEC_MUTANT").ok().and_then(|text| text.parse().ok());
        let chosen = chosen.unwrap_or(UNKNOWN - 1);
        ON.store(chosen, Relaxed);
        return chosen == number;
    };
    let bit = 1 << (number % 64);
    let word = &REACHED[number as usize / 64];
    if word.load(Relaxed) & bit == 0 && word.fetch_or(bit, Relaxed) & bit == 0 {
        file.write_all(&number.to_le_bytes()).expect("a file for what is reached");
    }
    false
}
