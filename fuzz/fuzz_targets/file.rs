#![no_main]
//! A file through its footer: the index leads to the same updates as sequential reading, and appending keeps
//! the old contents.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::sync::LazyLock;

use gcodec::file::{File, append};
use gcodec::frame::{Metadata, UpdateHeader};
use gcodec::stream::{Assembler, Body, EncodeOptions, Event, SliceReader};
use gcodec::{Result, TensorBuf};
use gcodec_fuzz::{allowance, begin, fingerprint, limits, memory};
use libfuzzer_sys::fuzz_target;
use tempfile::TempPath;

gcodec_fuzz::mutate_streams!();

/// A file in memory, on systems that have a file system in memory.
static PLACE: LazyLock<TempPath> = LazyLock::new(|| {
    let shm = PathBuf::from("/dev/shm");
    let folder = if shm.is_dir() { shm } else { std::env::temp_dir() };
    let file = tempfile::Builder::new().prefix("gcodec-fuzz-").suffix(".gcu").tempfile_in(folder);
    file.expect("a temporary file").into_temp_path()
});

fuzz_target!(|bytes: &[u8]| {
    // The mutator gives a wrong index a correct checksum.
    begin(true);
    // Memory: the stored definitions.
    let opened = memory::within(allowance(bytes.len(), 2), "opening", || File::open(bytes, limits()));
    let in_order = in_order(bytes);
    match (&opened, &in_order) {
        (Ok(file), _) => {
            let found = updates(bytes, file);
            if let Some((_, expected)) = &in_order {
                assert_eq!(found.len(), expected.len(), "updates by the index and in order");
                for (found, expected) in found.iter().zip(expected) {
                    assert_eq!(found.0, expected.0, "headers by the index and in order");
                    match (&found.1, &expected.1) {
                        (Ok(found), Ok(expected)) => {
                            assert!(found == expected, "tensors by the index and in order")
                        }
                        (Err(_), Err(_)) => {}
                        (found, expected) => panic!(
                            "by the index {:?}, in order {:?}",
                            found.as_ref().err(),
                            expected.as_ref().err()
                        ),
                    }
                }
            }
        }
        (Err(e), Some((true, _))) => panic!("a whole stream with an index is refused: {e}"),
        (Err(_), _) => {}
    }
    appended(bytes, in_order.is_some());
});

type Tensors = Vec<(u64, TensorBuf)>;

/// Reads the updates through the index: all their tensors at once, and one by one.
fn updates(bytes: &[u8], file: &File<'_>) -> Vec<(String, Result<Tensors>)> {
    let base = BTreeMap::new();
    let mut out = Vec::new();
    for (number, update) in file.updates().iter().enumerate() {
        assert!(
            file.find(Some(update.header.step)).is_some_and(|last| last >= number),
            "an update by its step"
        );
        // Memory: the tensors, the decoded blocks, and unwanted tensors.
        let allowed = allowance(bytes.len(), 3);
        let all = memory::within(allowed, "reading tensors", || file.tensors(number, |_| true, &base));
        for info in update.manifest.tensors().iter().take(8) {
            let one = memory::within(allowed, "reading a tensor", || file.tensor(number, &info.name, &base));
            if let Ok(all) = &all {
                let tensor = update.manifest.find(&info.name).expect("a name of the manifest");
                let expected = all.iter().find(|(n, _)| *n == tensor).map(|(_, t)| t).expect("all tensors");
                assert!(one.expect("one of those that are there") == *expected, "a tensor alone");
            }
        }
        let mut header = update.header.clone();
        header.label.clear();
        out.push((format!("{header:?}"), all));
    }
    out
}

/// Reads the same sequentially, if the stream is valid. Also returns whether its last frames are an index
/// and the end. The spec allows frames between them, but then the index is incomplete and the file is
/// refused.
fn in_order(bytes: &[u8]) -> Option<(bool, Vec<(String, Result<Tensors>)>)> {
    let mut out: Vec<(String, Result<Tensors>)> = Vec::new();
    let mut parts = Vec::new();
    let (mut after_index, mut indexed) = (false, false);
    for event in SliceReader::new(bytes, limits()) {
        let Event::Frame(_, body) = event.ok()? else { continue };
        match body {
            Body::Index(_) => after_index = true,
            Body::End(_) => indexed = std::mem::take(&mut after_index),
            Body::Update(part) => {
                after_index = false;
                let last = part.last;
                parts.push(part);
                if last {
                    out.push(update(&std::mem::take(&mut parts)));
                }
            }
            _ => after_index = false,
        }
    }
    Some((indexed, out))
}

fn update(parts: &[Box<gcodec::frame::UpdatePart<'_>>]) -> (String, Result<Tensors>) {
    let mut header: UpdateHeader = parts[0].header.clone();
    header.label.clear();
    for part in &parts[1..] {
        if let (Some(all), Some(more)) = (&mut header.delta, &part.header.delta) {
            all.extend(more);
            all.sort_by_key(|d| d.first);
            all.dedup();
        }
        if let (Some(all), Some(more)) = (&mut header.sums, &part.header.sums) {
            all.extend(more);
            all.sort_by_key(|d| d.first);
            all.dedup();
        }
    }
    let tensors = Assembler::new(&parts[0].manifest, &limits(), |_| true).and_then(|mut assembler| {
        parts.iter().try_for_each(|part| assembler.apply(part))?;
        assembler.finish()
    });
    (format!("{header:?}"), tensors)
}

/// Appends a segment. Either the file is refused and unchanged, or it keeps its beginning, and stays valid
/// if it was.
fn appended(bytes: &[u8], well: bool) {
    if bytes.len() % 4 != 0 {
        return;
    }
    std::fs::write(&*PLACE, bytes).expect("a place to write");
    let metadata = Metadata::default();
    let written = memory::within(allowance(bytes.len(), 2), "appending", || {
        let mut writer = append(&PLACE, EncodeOptions::default())?;
        writer.metadata(&metadata)?;
        writer.finish().and_then(|mut file| Ok(file.flush()?))
    });
    let after = std::fs::read(&*PLACE).expect("the file");
    assert!(after.starts_with(bytes), "what was there stays");
    if written.is_err() {
        assert_eq!(after.len(), bytes.len(), "a refused file is unchanged");
        return;
    }
    if !well {
        return;
    }
    let events = |bytes: &[u8]| {
        let events =
            SliceReader::new(bytes, limits()).map(|e| fingerprint(&e.expect("a stream that is well")));
        events.collect::<Vec<_>>()
    };
    let (before, after) = (events(bytes), events(&after));
    assert_eq!(after[..before.len()], before, "what was there reads as before");
    assert_eq!(after.len(), before.len() + 3, "metadata, index and end follow");
}
