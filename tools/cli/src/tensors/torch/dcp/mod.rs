//! Distributed checkpoints of PyTorch: a folder with the pickle `.metadata` and files `.distcp`.
//!
//! ```text
//! __0_0.distcp: chunk, chunk, .. (each an archive of torch.save with one tensor, or another object)
//! .metadata:    for each tensor its type, shape and chunks; for each chunk its file, offset and length
//! ```
//! gcodec's own writer has streams, `__0_0.gcu`, in which each chunk is a tensor.
//!
//! A chunk whose file is missing, or that is not what `.metadata` says, is a fault: its tensor is opaque.

mod metadata;

use super::super::chunked::{Chunk, Chunked};
use super::super::streamed::{Stream, not_one};
use super::super::{Data, Dump, NamedTensor, Opaque, Plain, check_unique, quoted};
use super::elements::Element;
use crate::fail::{Failure, InFile, Result};
use crate::files;
use crate::input::{DEFAULT_MAX_BYTES, Input, Section};
use crate::output::{counted, warn};
use gcodec::internal::elements;
use gcodec::tensor::Dtype;
use metadata::{Metadata, Part, Stored, Tensor};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Name of the file that describes the others.
const NAME: &str = ".metadata";
/// The class of its object, which stands in the beginning.
const CLASS: &[u8] = b"torch.distributed.checkpoint.metadata";
/// Bytes in which the class is looked for.
const HEAD: usize = 1024;
/// Most files that a placement names.
const MAX_NAMED: usize = 1;

/// Whether the bytes are those of a `.metadata`.
pub(crate) fn is_metadata(bytes: &[u8]) -> bool {
    let head = &bytes[..bytes.len().min(HEAD)];
    head.starts_with(b"\x80") && head.windows(CLASS.len()).any(|window| window == CLASS)
}

/// Whether a path is that of a `.metadata`.
pub(crate) fn is_metadata_path(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == NAME)
}

/// Returns the `.metadata` of a folder that has one.
pub(crate) fn of_folder(path: &Path) -> Option<PathBuf> {
    Some(path.join(NAME)).filter(|file| files::is_folder(path) && files::is_file(file))
}

/// Whether the file is a part of a checkpoint by its name.
pub(crate) fn is_part(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "distcp")
}

/// Returns the names of the files that a `.metadata` lists.
pub(crate) fn files_of(metadata: &[u8]) -> Result<BTreeSet<String>> {
    Ok(Metadata::read(metadata)?.stored.into_iter().map(|stored| stored.file).collect())
}

/// Reads all tensors of the checkpoint whose folder or `.metadata` is at `path`. `copies`: bytes of views
/// that may be copied beyond those of the checkpoint's files. `unread`: the elements of streams are not
/// decoded to see whether they can be.
pub(in crate::tensors) fn read(path: &Path, bytes: &[u8], copies: &mut u64, unread: bool) -> Result<Dump> {
    let folder = if files::is_folder(path) { path } else { path.parent().unwrap_or(Path::new("")) };
    let metadata = Metadata::read(bytes)?;
    let files = Files::open(folder, &metadata.stored)?;
    *copies = copies.saturating_add(files.bytes());
    let mut dump = Dump::default();
    for tensor in &metadata.tensors {
        let placement = placement(tensor, &metadata.stored);
        dump.placements.insert(tensor.name.clone(), placement);
        let (name, shape) = (tensor.name.clone(), tensor.shape.clone());
        let bytes = elements(&shape).and_then(|n| n.checked_mul(tensor.element.width())).unwrap_or(0);
        let opaque = |reason: String| {
            Opaque::new(name.clone(), tensor.element.name(), Some(shape.clone()), bytes, reason)
        };
        if tensor.element.is_unknown() {
            dump.opaque.push(opaque(super::NOT_READ.to_owned()));
            continue;
        }
        match (files.data(tensor, &metadata.stored, copies, unread), tensor.element) {
            (Ok(data), Element::Known(dtype)) => {
                dump.tensors.push(NamedTensor { name, dtype, shape, data, stored: None });
            }
            (Ok(data), _) => dump.opaque.push(opaque(super::NOT_READ.to_owned()).with_data(data)),
            (Err(reason), _) => {
                dump.faults.push(Failure::invalid(&reason).about(quoted(&name)));
                dump.opaque.push(opaque(reason));
            }
        }
    }
    if dump.tensors.is_empty() && dump.opaque.is_empty() {
        return Err(Failure::invalid("a distributed checkpoint without tensors"));
    }
    check_unique(dump.names(), Failure::invalid)?;
    for (name, stored) in &metadata.others {
        if let Some(plain) = stored.and_then(|number| files.plain(&metadata.stored[number])) {
            dump.plain.insert(name.clone(), plain);
        }
    }
    if let [(first, _), more @ ..] = &metadata.others[..] {
        let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
        warn(format_args!("{}: {first:?}{more} left out: no tensors", path.display()));
    }
    files.warn_of_others(folder);
    Ok(dump)
}

/// Says in how many chunks a tensor lies, and in which files.
fn placement(tensor: &Tensor, stored: &[Stored]) -> String {
    // Chunks of another number of dimensions are a fault.
    let rank = tensor.chunks.iter().map(|chunk| chunk.offsets.len()).min().unwrap_or(0);
    let cuts = |d: usize| tensor.chunks.iter().map(|c| c.offsets.get(d)).collect::<BTreeSet<_>>().len();
    let cut: Vec<String> =
        (0..rank.min(tensor.shape.len())).filter(|d| cuts(*d) > 1).map(|d| d.to_string()).collect();
    let along = match &cut[..] {
        [] => String::new(),
        [one] => format!(" along dimension {one}"),
        more => format!(" along dimensions {}", more.join(", ")),
    };
    let files = tensor.chunks.iter().filter_map(|chunk| Some(stored[chunk.stored?].file.as_str()));
    let files: Vec<&str> = files.collect::<BTreeSet<_>>().into_iter().collect();
    let named = files[..files.len().min(MAX_NAMED)].join(", ");
    let more = match files.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{}{along} in {named}{more}", counted(tensor.chunks.len() as u64, "chunk"))
}

/// The files of a checkpoint, by name; `None` for one that is not there.
struct Files(BTreeMap<String, Option<Opened>>);

/// A file of a checkpoint.
enum Opened {
    Archives(Arc<Input>),
    Stream(Arc<Stream>),
}

impl Files {
    /// Opens the files, and checks that archives fill each that has them.
    fn open(folder: &Path, stored: &[Stored]) -> Result<Self> {
        let mut by_file: BTreeMap<&str, Vec<Option<&Range<u64>>>> = BTreeMap::new();
        for Stored { file, part } in stored {
            by_file.entry(file).or_default().push(match part {
                Part::Bytes(range, _) => Some(range),
                Part::OfStream { .. } => None,
            });
        }
        let mut files = BTreeMap::new();
        for (file, ranges) in by_file {
            let path = folder.join(file);
            // Another kind of file, such as a pipe or a device, may have no end.
            let opened = match files::is_file(&path) {
                true => Some(Opened::open(&path, &ranges).in_file(&path)?),
                false => None,
            };
            files.insert(file.to_owned(), opened);
        }
        Ok(Self(files))
    }

    /// Returns the bytes of all files.
    fn bytes(&self) -> u64 {
        self.0.values().flatten().fold(0u64, |sum, opened| sum.saturating_add(opened.len()))
    }

    /// Puts the elements of a tensor together. The error is the reason why that cannot be.
    fn data(
        &self,
        tensor: &Tensor,
        stored: &[Stored],
        copies: &mut u64,
        unread: bool,
    ) -> std::result::Result<Data, String> {
        let (mut chunks, mut seen) = (Vec::new(), HashSet::new());
        for chunk in &tensor.chunks {
            let about = |what: &str| format!("its chunk at {:?} {what}", chunk.offsets);
            let number = chunk.stored.ok_or_else(|| about("is in no file"))?;
            // Each would be read each time. Ranks without elements may have one chunk.
            match seen.insert(number) {
                true => {}
                false if chunk.sizes.contains(&0) => continue,
                false => return Err(about("is listed twice")),
            }
            let stored = &stored[number];
            let place = match &stored.part {
                Part::Bytes(range, _) => format!("in {} at byte {:#x}", stored.file, range.start),
                Part::OfStream { update, .. } => format!("in {}, update {update}", stored.file),
            };
            let data = self.piece(stored, (tensor.element, &chunk.sizes), copies, unread);
            let data = data.map_err(|e| about(&format!("{place}: {e}")))?;
            chunks.push(Chunk { offsets: chunk.offsets.clone(), sizes: chunk.sizes.clone(), data });
        }
        let chunked = Chunked::new(tensor.element.width() as usize, &tensor.shape, chunks)?;
        Ok(Data::Chunked(Box::new(chunked)))
    }

    /// Returns the elements of a stored chunk.
    fn piece(
        &self,
        stored: &Stored,
        (element, sizes): (Element, &[u64]),
        copies: &mut u64,
        unread: bool,
    ) -> std::result::Result<Data, String> {
        let Some(Some(opened)) = self.0.get(&stored.file) else {
            return Err("the file is not there".to_owned());
        };
        match (opened, &stored.part) {
            (Opened::Stream(stream), Part::OfStream { update, name, as_bytes }) => {
                let bytes = elements(sizes).and_then(|n| n.checked_mul(element.width()));
                match (as_bytes, bytes, element) {
                    (true, Some(bytes), _) => stream.data((*update, name), (Dtype::U8, &[bytes]), unread),
                    (false, _, Element::Known(dtype)) => stream.data((*update, name), (dtype, sizes), unread),
                    _ => Err(not_one(element.name(), sizes)),
                }
            }
            (Opened::Archives(input), Part::Bytes(range, transforms)) => {
                if !transforms.is_empty() {
                    return Err(format!("it is transformed by {}", transforms.join(", ")));
                }
                archived(input, range, (element, sizes), copies)
            }
            _ => unreachable!("a file has parts of one kind"),
        }
    }

    /// Returns the integer or the text that is stored here.
    fn plain(&self, stored: &Stored) -> Option<Plain> {
        match (self.0.get(&stored.file)?.as_ref()?, &stored.part) {
            (Opened::Archives(input), Part::Bytes(range, transforms)) if transforms.is_empty() => {
                super::plain(input.section(range.clone()))
            }
            (Opened::Stream(stream), Part::OfStream { update, name, .. }) => {
                super::plain(Section::from(&*stream.read(*update, name)?))
            }
            _ => None,
        }
    }

    /// Names parts in the folder that belong to no tensor.
    fn warn_of_others(&self, folder: &Path) {
        let is_other = |path: &Path| {
            let name = path.file_name().and_then(|name| name.to_str());
            is_part(path) && name.is_none_or(|name| !self.0.contains_key(name))
        };
        let others =
            files::entries(folder).unwrap_or_default().iter().filter(|path| is_other(path)).count() as u64;
        if others > 0 {
            let files = counted(others, "file");
            warn(format_args!("{}: {files} .distcp left out, which {NAME} does not name", folder.display()));
        }
    }
}

impl Opened {
    /// Opens a file with archives in these ranges, or a stream.
    fn open(path: &Path, ranges: &[Option<&Range<u64>>]) -> Result<Self> {
        let input = Input::open(path, DEFAULT_MAX_BYTES)?;
        if ranges.iter().all(Option::is_none) {
            return Ok(Self::Stream(Arc::new(Stream::open(input)?)));
        }
        let all = ranges.iter().copied().collect::<Option<Vec<_>>>();
        let mut all =
            all.ok_or_else(|| Failure::invalid(format_args!("{NAME} has it as two kinds of file")))?;
        all.sort_unstable_by_key(|range| (range.start, range.end));
        check(&all, input.len())?;
        Ok(Self::Archives(Arc::new(input)))
    }

    fn len(&self) -> u64 {
        match self {
            Self::Archives(input) => input.len(),
            Self::Stream(stream) => stream.len(),
        }
    }
}

/// Returns the elements of the tensor in an archive. The range was found to lie in the file.
fn archived(
    input: &Arc<Input>,
    range: &Range<u64>,
    (element, sizes): (Element, &[u64]),
    copies: &mut u64,
) -> std::result::Result<Data, String> {
    let mut dump = super::read_range(input, range.clone(), copies).map_err(|e| e.message)?;
    let data = match (dump.tensors.pop(), dump.opaque.pop(), element) {
        (Some(piece), None, Element::Known(dtype)) => {
            Some(piece.data).filter(|_| (piece.dtype, &piece.shape[..]) == (dtype, sizes))
        }
        (None, Some(mut piece), Element::Other(dtype, _)) => {
            let data = piece.take_data().map(|(data, _)| data);
            data.filter(|_| (&*piece.dtype, piece.shape.as_deref()) == (dtype, Some(sizes)))
        }
        _ => None,
    };
    let data = data.filter(|_| dump.tensors.is_empty() && dump.opaque.is_empty());
    data.ok_or_else(|| not_one(element.name(), sizes))
}

/// Checks that sorted ranges fill `len` bytes, each byte once.
fn check(ranges: &[&Range<u64>], len: u64) -> Result<()> {
    let starts = ranges.iter().map(|range| range.start).chain([len]);
    let ends = [0].into_iter().chain(ranges.iter().map(|range| range.end));
    for (start, end) in starts.zip(ends) {
        if start != end {
            return Err(Failure::invalid(format_args!(
                "{NAME} describes other bytes than its {len}: one entry ends at byte {end:#x}, and the next \
                 begins at {start:#x}; the files are of different saves, or damaged"
            )));
        }
    }
    Ok(())
}
