//! Readers of a file while a writer replaces it or appends to it.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gcodec::block::{Block, BlockOptions, Constant, Groups, ScaleFormat, Scales, Scope, Support, Values};
use gcodec::file::{AtomicFile, File, Map, append};
use gcodec::frame::{Manifest, TensorInfo, UpdateHeader};
use gcodec::stream::{Body, EncodeOptions, Encoder, Event, SliceReader};
use gcodec::{Limits, Reader};

use super::scratch::Scratch;
use super::{Section, thousands};
use crate::Result;

/// A reader: returns the steps of the file's updates, whose tensors must be filled with their step.
type Read = fn(&Path) -> Result<Vec<u64>, String>;

const READERS: &[(&str, Read)] = &[
    ("read whole, by the index", |path| by_index(&std::fs::read(path).map_err(io)?)),
    ("mapped, by the index", |path| by_index(&Map::open(path).map_err(io)?)),
    ("mapped, in order", |path| in_order(&Map::open(path).map_err(io)?)),
    ("in pieces, in order", piece_by_piece),
];

/// Numbers of updates of the replaced file, for alternate steps.
const UPDATES: u64 = 20;

pub(crate) fn run(quick: bool) -> Result<Vec<Section>> {
    let mut section = Section::new(
        "Races",
        "A writer replaces a file (`AtomicFile`) or appends segments to it (`file::append`) \
         repeatedly, while readers read it. A reader gets the old file, the new file, or a typed \
         error with a position, and never a mixture. An appended file always gives a prefix of the \
         written updates. A replaced file is never refused.",
        &["Writer", "Reader", "writes", "reads", "read", "refused", "wrong"],
    );
    let time = Duration::from_millis(if quick { 600 } else { 8000 });
    let scratch = Scratch::new("race")?;
    let path = scratch.path("raced.gcu");
    for (name, read) in READERS {
        std::fs::write(&path, same_steps(0)?)?;
        let mut turn = 0;
        let write = || -> Result<()> {
            turn += 1;
            let mut file = AtomicFile::create(&path)?;
            file.write_all(&same_steps(turn)?)?;
            Ok(file.commit()?)
        };
        let whole = |steps: &[u64]| steps.len() as u64 == UPDATES && steps.iter().all(|s| *s == steps[0]);
        race(&mut section, "replaces", name, time, write, || read(&path), whole, false)?;

        std::fs::write(&path, same_steps(0)?)?;
        let mut appended = 0;
        let write = || -> Result<()> {
            // The index of each segment lists the whole file, so the file is replaced from time to time,
            // like a rotated log.
            if appended == 200 {
                let mut file = AtomicFile::create(&path)?;
                file.write_all(&same_steps(0)?)?;
                file.commit()?;
                appended = 0;
            }
            appended += 1;
            let mut writer = append(&path, EncodeOptions::default())?;
            let (header, block) = (UpdateHeader::default().with_step(appended), constant(appended));
            writer.update(&header, &manifest()?, &[block])?;
            writer.finish()?;
            Ok(())
        };
        let whole = |steps: &[u64]| {
            let (first, rest) = steps.split_at(steps.len().min(UPDATES as usize));
            first.len() as u64 == UPDATES
                && first.iter().all(|s| *s == 0)
                && rest.iter().zip(1..).all(|(s, i)| *s == i)
        };
        race(&mut section, "appends", name, time, write, || read(&path), whole, true)?;
    }
    Ok(vec![section])
}

#[allow(clippy::too_many_arguments)] // a writer, a reader and what is right
fn race(
    section: &mut Section,
    writer: &str,
    reader: &str,
    time: Duration,
    mut write: impl FnMut() -> Result<()> + Send,
    read: impl Fn() -> Result<Vec<u64>, String> + Sync,
    whole: impl Fn(&[u64]) -> bool + Sync,
    may_refuse: bool,
) -> Result<()> {
    let (over, reads, good, refused) =
        (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let mut writes = 0u64;
    let (wrote, wrong) = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut wrong = Vec::new();
                    while !over.load(Ordering::Relaxed) {
                        reads.fetch_add(1, Ordering::Relaxed);
                        match read() {
                            Ok(steps) if whole(&steps) => good.fetch_add(1, Ordering::Relaxed),
                            Ok(steps) => {
                                wrong.push(format!("a mixture of {} updates", steps.len()));
                                0
                            }
                            Err(error) if may_refuse && error.starts_with(TYPED) => {
                                refused.fetch_add(1, Ordering::Relaxed)
                            }
                            Err(error) => {
                                wrong.push(error);
                                0
                            }
                        };
                    }
                    wrong
                })
            })
            .collect();
        let start = Instant::now();
        let mut wrote = Ok(());
        while start.elapsed() < time && wrote.is_ok() {
            wrote = write().map_err(|e| e.to_string());
            writes += 1;
        }
        over.store(true, Ordering::Relaxed);
        let wrong =
            readers.into_iter().map(|r| r.join().unwrap_or_else(|_| vec!["a reader panicked".into()]));
        (wrote, wrong.flatten().collect::<Vec<String>>())
    });
    wrote?;
    for wrong in wrong.iter().take(5) {
        section.wrong(format!("{writer}, {reader}: {wrong}"));
    }
    let counts = [reads, good, refused].map(AtomicU64::into_inner);
    let counts = [writes].into_iter().chain(counts).chain([wrong.len() as u64]).map(thousands);
    section.row([writer.to_owned(), reader.to_owned()].into_iter().chain(counts));
    if reads_none(section) {
        section.wrong(format!("{writer}, {reader}: nothing was read"));
    }
    Ok(())
}

/// Whether the last row has no successful read.
fn reads_none(section: &Section) -> bool {
    section.rows.last().is_some_and(|row| row[4] == "0")
}

/// Returns the prefix of a typed error with a position.
const TYPED: &str = "typed: ";

fn typed(error: gcodec::Error) -> String {
    match error.location() {
        Some(_) => format!("{TYPED}{error}"),
        None => format!("no place: {error}"),
    }
}

fn io(error: std::io::Error) -> String {
    error.to_string()
}

/// Returns the step of an update, whose elements must all equal the step.
fn step_of(step: u64, data: &[u8]) -> Result<u64, String> {
    let expected = (step as f32).to_le_bytes();
    match data.chunks(4).all(|c| c == expected) {
        true => Ok(step),
        false => Err(format!("the tensor of step {step} has other elements")),
    }
}

fn by_index(bytes: &[u8]) -> Result<Vec<u64>, String> {
    let file = File::open(bytes, Limits::default()).map_err(typed)?;
    let steps = (0..file.updates().len()).map(|number| {
        let tensors = file.tensors(number, |_| true, &BTreeMap::new()).map_err(typed)?;
        step_of(file.updates()[number].header.step, tensors[0].1.data())
    });
    steps.collect()
}

fn in_order(bytes: &[u8]) -> Result<Vec<u64>, String> {
    let mut steps = Vec::new();
    for event in SliceReader::new(bytes, Limits::default()) {
        steps.extend(step_in(event.map_err(typed)?)?);
    }
    Ok(steps)
}

fn piece_by_piece(path: &Path) -> Result<Vec<u64>, String> {
    let mut reader = Reader::new(std::fs::File::open(path).map_err(io)?, Limits::default());
    let mut steps = Vec::new();
    while let Some(event) = reader.next_event().map_err(typed)? {
        steps.extend(step_in(event)?);
    }
    Ok(steps)
}

fn step_in(event: Event<'_>) -> Result<Option<u64>, String> {
    let Event::Frame(_, Body::Update(part)) = event else { return Ok(None) };
    let blocks = part.decode_all().map_err(typed)?;
    let step = part.header.step;
    match blocks[..] == [constant(step)] {
        true => Ok(Some(step)),
        false => Err(format!("the block of step {step} says something else")),
    }
}

fn manifest() -> Result<std::sync::Arc<Manifest>> {
    let info = TensorInfo::new("w", gcodec::Dtype::F32, [64]);
    Ok(std::sync::Arc::new(Manifest::new(vec![info])?))
}

/// Returns tensors whose elements all equal the step.
fn constant(step: u64) -> Block {
    let scales = Scales::from_f32s(ScaleFormat::F32, &[step as f32]);
    let values = Values::Constant(Constant { groups: Groups::Block, scales });
    Block { scope: Scope::Tensor(0), add: false, support: Support::All, values }
}

/// Returns a stream of updates of one step.
fn same_steps(step: u64) -> Result<Vec<u8>> {
    let (manifest, block) = (manifest()?, constant(step));
    let mut out = Vec::new();
    let mut encoder = Encoder::new(EncodeOptions::default());
    for _ in 0..UPDATES {
        let header = UpdateHeader::default().with_step(step);
        encoder.update(&mut out, &header, &manifest, &[(&block, BlockOptions::default())])?;
    }
    encoder.finish(&mut out);
    Ok(out)
}
