//! Zip archives that account for every byte of their file.
//!
//! ```text
//! local header, data, descriptor? (for each entry) | directory | zip64 record and locator? | end record
//! ```
//! Readers of zip archives look for the last end record and take the rest on trust: of archives one after
//! another they show the last alone, and of two entries of one name the second. Here entries and directory
//! must fill the file.

use crate::fail::{Failure, Result};
use crate::input::Section;
use std::ops::Range;
use zip::{CompressionMethod, ZipArchive};

/// An archive that is an input, or a part of one.
pub(crate) type Archive<'a> = ZipArchive<Section<'a>>;

const END: &[u8] = b"PK\x05\x06";
const END_LEN: usize = 22;
const LOCATOR: &[u8] = b"PK\x06\x07";
const LOCATOR_LEN: usize = 20;
const RECORD: &[u8] = b"PK\x06\x06";
const RECORD_LEN: usize = 56;
const DESCRIPTOR: &[u8] = b"PK\x07\x08";
/// Longest end of an archive from its record on: with a comment.
const TAIL: usize = RECORD_LEN + LOCATOR_LEN + END_LEN + u16::MAX as usize;

/// Longest descriptor.
const MAX_DESCRIPTOR: u64 = 24;
/// Most archives one after another that are counted.
const MAX_ARCHIVES: usize = 1_000_000;

/// Opens the archive that a file is, from the first byte to the last.
///
/// # Errors
/// A failure if there are several archives, or bytes outside of the entries and the directory.
pub(crate) fn open<'a>(file: impl Into<Section<'a>>) -> Result<Archive<'a>> {
    let file = file.into();
    let found = find(&file)?;
    if let [_, second, ..] = &found[..] {
        let (all, second) = (found.len(), second.start);
        return Err(Failure::invalid(format_args!(
            "{all} archives one after another, the second at byte {second:#x}, as torch.save writes to a file \
             opened for appending: call torch.load as often on the open file, and save each in its own file"
        )));
    }
    let mut archive = ZipArchive::new(file.clone()).map_err(damaged)?;
    check(&mut archive, &file)?;
    Ok(archive)
}

/// Returns the places of the archives one after another, which fill the bytes.
fn find(file: &Section<'_>) -> Result<Vec<Range<u64>>> {
    let mut found = Vec::new();
    let mut end = file.len();
    while end > 0 {
        if found.len() == MAX_ARCHIVES {
            return Err(Failure::limit(format_args!("more than {MAX_ARCHIVES} archives one after another")));
        }
        let start = start(file, end).ok_or_else(|| match found.last() {
            None => damaged("no end record: it is cut, or bytes were added behind it"),
            Some(_) => damaged(format_args!("{end} bytes before the archive at byte {end:#x} are of none")),
        })?;
        found.push(start..end);
        end = start;
    }
    found.reverse();
    Ok(found)
}

/// Returns the start of the archive that ends before the byte `end`.
fn start(file: &Section<'_>, end: u64) -> Option<u64> {
    let before = end.saturating_sub(TAIL as u64);
    let bytes = &*file.slice(before..end);
    let last = bytes.len().checked_sub(END_LEN)?;
    let first = last.saturating_sub(usize::from(u16::MAX));
    let end = (first..=last).rev().find(|at| {
        bytes[*at..].starts_with(END)
            && number(bytes, at + 20, 2) == Some((bytes.len() - at - END_LEN) as u64)
    })?;
    let (mut len, mut offset, mut directory_end) =
        (number(bytes, end + 12, 4)?, number(bytes, end + 16, 4)?, end);
    if let Some(locator) = end.checked_sub(LOCATOR_LEN).filter(|at| bytes[*at..].starts_with(LOCATOR)) {
        let record = locator.checked_sub(RECORD_LEN).filter(|at| bytes[*at..].starts_with(RECORD))?;
        (len, offset) = (number(bytes, record + 40, 8)?, number(bytes, record + 48, 8)?);
        directory_end = record;
    }
    (before + directory_end as u64).checked_sub(len)?.checked_sub(offset)
}

/// Returns the number of `len` bytes at `at`.
fn number(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    let mut word = [0; 8];
    word[..len].copy_from_slice(bytes.get(at..at.checked_add(len)?)?);
    Some(u64::from_le_bytes(word))
}

/// Checks that the entries follow one another from the first byte to the directory.
fn check(archive: &mut Archive<'_>, file: &Section<'_>) -> Result<()> {
    let mut entries = Vec::new();
    for index in 0..archive.len() {
        let entry = archive.by_index_raw(index).map_err(damaged)?;
        let data = entry.data_start().ok_or_else(|| damaged("an entry has no data"))?;
        // Tensors borrow so many bytes of the archive.
        if entry.compression() == CompressionMethod::Stored && entry.size() != entry.compressed_size() {
            let (size, stored) = (entry.size(), entry.compressed_size());
            return Err(damaged(format_args!("an entry of {size} bytes is stored in {stored}")));
        }
        let end = data.checked_add(entry.compressed_size()).ok_or_else(|| damaged("an entry is too long"))?;
        entries.push((entry.header_start(), end, entry.crc32()));
    }
    entries.sort_unstable();
    let starts = entries.iter().map(|entry| entry.0).skip(1).chain([archive.central_directory_start()]);
    if let Some((first, ..)) = entries.first().filter(|entry| entry.0 != 0) {
        return Err(damaged(format_args!("its first {first} bytes are of no entry")));
    }
    for ((_, end, crc), next) in entries.iter().zip(starts) {
        let gap = (*end <= next && next <= file.len()).then_some(*end..next);
        let gap = gap.ok_or_else(|| damaged(format_args!("two entries overlap at byte {next:#x}")))?;
        // A longer one is no descriptor.
        let len = next - end;
        if len > 0 && (len > MAX_DESCRIPTOR || !is_descriptor(&file.slice(gap), *crc)) {
            return Err(damaged(format_args!(
                "{len} bytes at byte {end:#x} are of no entry: an entry was replaced by another of its name, \
                 or bytes were added"
            )));
        }
    }
    Ok(())
}

/// Whether the bytes behind an entry's data are its checksum and sizes again.
fn is_descriptor(gap: &[u8], crc: u32) -> bool {
    let body = gap.strip_prefix(DESCRIPTOR).unwrap_or(gap);
    matches!(body.len(), 12 | 20) && body.starts_with(&crc.to_le_bytes())
}

fn damaged(what: impl std::fmt::Display) -> Failure {
    Failure::invalid(format_args!("a damaged or truncated zip archive: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Cursor, Write};
    use zip::write::SimpleFileOptions;

    const STATE: &[u8] = include_bytes!("../../fixtures/state.pt");
    const ARRAYS: &[u8] = include_bytes!("../../fixtures/compressed.npz");

    fn message(bytes: &[u8]) -> String {
        open(bytes).unwrap_err().message
    }

    #[test]
    fn archives_of_each_writer_are_opened() {
        for file in [STATE, ARRAYS, include_bytes!("../../fixtures/odd.pt")] {
            assert!(!open(file).unwrap().is_empty());
        }
        // With a comment, and with sizes behind the data.
        let mut zip = zip::ZipWriter::new_stream(Vec::new());
        for name in ["a", "b"] {
            zip.start_file(name, SimpleFileOptions::default().large_file(name == "a")).unwrap();
            zip.write_all(b"text").unwrap();
        }
        zip.set_comment("written as a stream").unwrap();
        let bytes = zip.finish().unwrap().into_inner();
        assert_eq!(open(&bytes[..]).unwrap().len(), 2);
        let empty = zip::ZipWriter::new(Cursor::new(Vec::new())).finish().unwrap().into_inner();
        assert!(open(&empty[..]).unwrap().is_empty());
    }

    #[test]
    fn archives_one_after_another_are_counted() {
        assert!(message(&[STATE, STATE].concat()).contains("2 archives one after another"));
        let three = message(&[ARRAYS, STATE, ARRAYS].concat());
        assert!(three.contains("3 archives") && three.contains(&format!("{:#x}", ARRAYS.len())), "{three}");
        assert_eq!(find(&STATE.repeat(3)[..].into()).unwrap().len(), 3);
    }

    #[test]
    fn no_byte_is_left_over() {
        for file in [STATE, ARRAYS] {
            assert!(message(&[file, b"\0"].concat()).contains("no end record"));
            assert!(message(&[b"\0", file].concat()).contains("1 bytes before the archive"));
            assert!(message(&[file, b"between", file].concat()).contains("are of none"));
        }
    }

    #[test]
    fn an_entry_that_another_hides_is_found() {
        // Two entries that differ in one letter, until both have one name.
        let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
        for name in ["same", "sama"] {
            zip.start_file(name, SimpleFileOptions::default()).unwrap();
            zip.write_all(name.as_bytes()).unwrap();
        }
        let mut bytes = zip.finish().unwrap().into_inner();
        assert_eq!(open(&bytes[..]).unwrap().len(), 2);
        for at in 0..bytes.len() - 4 {
            if &bytes[at..at + 4] == b"sama" {
                bytes[at..at + 4].copy_from_slice(b"same");
            }
        }
        let text = message(&bytes);
        assert!(text.contains("of no entry"), "{text}");
    }

    #[test]
    fn hostile_archives_end_well() {
        for file in [STATE, ARRAYS] {
            for at in 0..file.len() {
                let mut wrong = file.to_vec();
                wrong[at] ^= 0xff;
                let _ = open(&wrong[..]);
            }
        }
        let ends = [&END.to_vec()[..], &[0; 18]].concat().repeat(1000);
        assert!(message(&ends).contains("1000 archives"));
    }
}
