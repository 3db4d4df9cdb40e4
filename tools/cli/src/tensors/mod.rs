//! Named tensors in files: `.safetensors`, `.npz` and `.npy`, read and written; PyTorch's and llama.cpp's
//! files, read.
//!
//! Every length in a file is checked against the file's size before anything is allocated for it.

mod archive;
mod chunked;
mod data;
pub(crate) mod folder;
mod gguf;
pub(crate) mod kind;
mod label;
mod laid;
pub(crate) mod npy;
pub(crate) mod npz;
mod opaque;
pub(crate) mod safetensors;
pub(crate) mod shards;
mod spooled;
mod streamed;
pub(crate) mod torch;
mod values;
pub(crate) mod versions;

use crate::fail::{Failure, InFile, InOutput, Result};
use crate::input::{DEFAULT_MAX_BYTES, Input, Opened, is_standard};
use crate::output::{Output, counted};
use data::Data;
use gcodec::frame::TensorInfo;
use gcodec::internal::{check_len, stats_of_pieces};
use gcodec::reduce::stats::{Stats, StatsOptions};
use gcodec::tensor::{Dtype, TensorBuf, TensorView};
use kind::Kind;
pub(crate) use label::{Label, Labels};
pub(crate) use laid::Laid;
pub(crate) use opaque::Opaque;
pub(crate) use spooled::Spooled;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
pub(crate) use streamed::AROUND;

/// The tensors of one file.
#[derive(Debug, Default)]
pub(crate) struct Dump {
    /// Tensors in the order of their data (safetensors) or of the archive (npz).
    pub(crate) tensors: Vec<NamedTensor>,
    /// The `__metadata__` of safetensors; empty for other formats.
    pub(crate) metadata: BTreeMap<String, String>,
    /// Tensors of types that are not read, without their elements.
    pub(crate) opaque: Vec<Opaque>,
    /// Files and tensors that are missing or damaged, of those that an index lists. They are opaque, too.
    pub(crate) faults: Vec<Failure>,
    /// Integers and texts beside the tensors, by name; only PyTorch's files have them.
    pub(crate) plain: HashMap<String, Plain>,
    /// In which chunks and files tensors lie, by name; only distributed checkpoints have them.
    pub(crate) placements: HashMap<String, String>,
}

/// A value that is no tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Plain {
    Int(i64),
    Text(String),
}

/// A tensor and its name.
#[derive(Debug)]
pub(crate) struct NamedTensor {
    name: String,
    dtype: Dtype,
    shape: Vec<u64>,
    data: Data,
    stored: Option<Stored>,
}

/// Where elements lie in the file that has them in another order.
#[derive(Debug, Clone)]
struct Stored {
    input: Arc<Input>,
    range: Range<u64>,
    /// The tensor's dimensions, that of the longest steps first.
    order: Vec<usize>,
}

/// A file format of tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// Hugging Face's `.safetensors`.
    Safetensors,
    /// NumPy's `.npz`: a zip archive of `.npy` files.
    Npz,
    /// NumPy's `.npy`: one array.
    Npy,
}

impl Dump {
    /// Reads the tensors of the file at `path`, or of that for which a folder stands; `-` is standard input.
    /// Its bytes tell its kind.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        Self::open_quietly(path).inspect(|dump| dump.warn_of_opaque(path, " (left out)"))
    }

    /// As [`Self::open`]; opaque tensors become tensors of their bytes.
    pub(crate) fn open_carrying(path: &Path) -> Result<Self> {
        let mut dump = Self::open_quietly(path)?;
        dump.carry();
        Ok(dump)
    }

    /// As [`Self::open`], without a warning of opaque tensors.
    pub(crate) fn open_quietly(path: &Path) -> Result<Self> {
        match Any::open(path)? {
            Any::Tensors(dump) => dump.whole(path),
            Any::Stream(_) => {
                let what = "a gcodec stream, not a file of tensors; `gcodec decode` makes one";
                Err(Failure::invalid(what)).in_file(path)
            }
        }
    }

    /// Gives the tensors other names.
    pub(crate) fn rename(&mut self, name: impl Fn(&str) -> String) -> Result<()> {
        self.tensors.iter_mut().for_each(|tensor| tensor.name = name(&tensor.name));
        self.opaque.iter_mut().for_each(|tensor| tensor.name = name(&tensor.name));
        let placements = std::mem::take(&mut self.placements);
        self.placements = placements.into_iter().map(|(of, place)| (name(&of), place)).collect();
        self.metadata = Labels::of(&self.metadata).renamed(&name).put(&self.metadata);
        check_unique(self.names(), Failure::usage)
    }

    /// Returns the tensors, unless some of them are missing.
    fn whole(self, path: &Path) -> Result<Self> {
        match self.fault() {
            None => Ok(self),
            Some(failure) => Err(failure).in_file(path),
        }
    }

    /// Returns a failure that names what is missing, if anything is.
    pub(crate) fn fault(&self) -> Option<Failure> {
        let first = self.faults.first()?;
        let more = match self.faults.len() - 1 {
            0 => String::new(),
            more => format!("; and {}", counted(more as u64, "more fault")),
        };
        Some(Failure::new(first.code, format_args!("{}{more}", first.message)))
    }

    /// Reads the tensors of an input of this kind, which is no stream. `path` names the tensor where the kind
    /// has no names, and the folder of other files.
    pub(crate) fn parse(kind: Kind, input: Input, path: &Path) -> Result<Self> {
        Self::parse_within(kind, input, path, &mut Room::default())
    }

    /// As [`Self::parse`], for callers that read no elements.
    pub(crate) fn parse_unread(kind: Kind, input: Input, path: &Path) -> Result<Self> {
        Self::parse_within(kind, input, path, &mut Room { unread: true, ..Room::default() })
    }

    /// As [`Self::parse`], of one file of several that share the room.
    fn parse_within(kind: Kind, input: Input, path: &Path, room: &mut Room) -> Result<Self> {
        Self::of_input(kind, &Arc::new(input), path, room)
    }

    /// As [`Self::parse_within`], of an input that others also have.
    fn of_input(kind: Kind, input: &Arc<Input>, path: &Path, room: &mut Room) -> Result<Self> {
        // Elements that a view repeats or reorders are copied: on the whole as many bytes as the files have,
        // and some more.
        room.views = room.views.saturating_add(input.len());
        let dump = match kind {
            Kind::Stream => Err(Failure::invalid("a gcodec stream")),
            Kind::Safetensors => safetensors::read(input),
            Kind::Shards => shards::read(path, input, room),
            Kind::Npz => npz::read(input, &mut room.unpacked),
            Kind::Npy => npy::read(input, &stem(path)),
            Kind::Torch => torch::read(input, &mut room.views),
            Kind::Distributed => torch::dcp::read(path, input, &mut room.views, room.unread),
            Kind::Gguf => gguf::read(input),
        };
        dump.map(|mut dump| {
            dump.uncarry();
            dump
        })
    }
}

/// Bytes that tensors may still take beyond those of their files.
struct Room {
    /// Bytes unpacked from archives.
    unpacked: u64,
    /// Bytes of views: an expanded one repeats elements.
    views: u64,
    /// Whether elements will not be read: those of streams are then not checked.
    unread: bool,
}

impl Default for Room {
    fn default() -> Self {
        Self { unpacked: DEFAULT_MAX_BYTES, views: torch::MAX_VIEWS, unread: false }
    }
}

/// A file of tensors, or a stream.
pub(crate) enum Any {
    Tensors(Dump),
    Stream(Input),
}

impl Any {
    /// As [`Self::open`]; opaque tensors become tensors of their bytes.
    pub(crate) fn open_carrying(path: &Path) -> Result<Self> {
        let mut any = Self::open(path)?;
        if let Self::Tensors(dump) = &mut any {
            dump.warn_of_opaque(path, "; of such tensors, the bytes are compared");
            dump.carry();
        }
        Ok(any)
    }

    /// Reads the tensors of the file at `path`, unless it is a stream; `-` is standard input. It gives no
    /// warning of opaque tensors.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let (opened, path) = folder::open(path)?;
        let (kind, input) = whole(opened, &path)?;
        match kind {
            Kind::Stream => Ok(Self::Stream(input)),
            kind => Dump::parse(kind, input, &path).map(Self::Tensors),
        }
        .in_file(&path)
    }
}

/// Returns the kind and the bytes of the file at `path`. A pipe of no known kind is not read to its end.
fn whole(opened: Opened, path: &Path) -> Result<(Kind, Input)> {
    let input = match opened {
        Opened::Whole(input) => input,
        Opened::Pipe(pipe) => {
            kind::refuse(pipe.head()).in_file(path)?;
            pipe.read_to_end(DEFAULT_MAX_BYTES).in_file(path)?
        }
    };
    Ok((kind::of_file(path, &input).in_file(path)?, input))
}

impl NamedTensor {
    /// Returns a tensor that owns its elements.
    pub(crate) fn new(name: String, tensor: TensorBuf) -> Self {
        let (dtype, shape) = (tensor.dtype(), tensor.shape().to_vec());
        Self { name, dtype, shape, data: Data::Owned(tensor.into_data()), stored: None }
    }

    /// Checks that `data` is as long as `shape` and `dtype` need.
    fn from_data(name: String, dtype: Dtype, shape: Vec<u64>, data: Data) -> Result<Self> {
        // The file is wrong here; the library would blame its caller.
        check_len(dtype, &shape, data.len()).map_err(|e| Failure::invalid(e).about(quoted(&name)))?;
        Ok(Self { name, dtype, shape, data, stored: None })
    }

    /// Returns a copy. It shares the elements of a file.
    pub(crate) fn copied(&self) -> Self {
        let (name, shape) = (self.name.clone(), self.shape.clone());
        let data = match &self.data {
            Data::Shared(shared) => Data::shared(&shared.input, shared.range.clone()),
            other => Data::Owned(other.read().into_owned()),
        };
        Self { name, dtype: self.dtype, shape, data, stored: None }
    }

    /// Returns the name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the name and the elements.
    pub(crate) fn into_parts(self) -> gcodec::Result<(String, TensorBuf)> {
        Ok((self.name, TensorBuf::new(self.dtype, self.shape, self.data.into_bytes())?))
    }

    /// Returns the elements.
    pub(crate) fn view(&self) -> TensorView<'_> {
        match TensorView::new(self.dtype, &self.shape, &self.data) {
            Ok(view) => view,
            Err(_) => unreachable!("the length was checked when the tensor was made"),
        }
    }

    /// Returns the statistics of the elements. Those of a file that is read by ranges are not kept.
    pub(crate) fn stats(&self, options: &StatsOptions) -> Stats {
        let stats = match self.data.is_elsewhere() {
            true => stats_of_pieces(&self.shape, options, |elements| self.piece(elements)),
            false => TensorView::new(self.dtype, &self.shape, &self.data.read())
                .map(|view| Stats::of(&view, options)),
        };
        // The length was checked when the tensor was made.
        stats.unwrap_or_default()
    }

    /// Returns all bytes of the elements, and keeps none that are read for it.
    pub(crate) fn bytes(&self) -> Cow<'_, [u8]> {
        self.data.read()
    }

    /// Returns where the bytes of elements are among those of all. The first is at a whole byte.
    pub(crate) fn place(&self, elements: &Range<u64>) -> Range<u64> {
        let byte = |element: u64| (element * u64::from(self.dtype.bits())).div_ceil(8);
        byte(elements.start)..byte(elements.end)
    }

    /// Returns elements as a tensor of one dimension.
    pub(crate) fn piece(&self, elements: Range<u64>) -> gcodec::Result<TensorBuf> {
        let bytes = self.data.part(self.place(&elements)).into_owned();
        TensorBuf::new(self.dtype, vec![elements.end - elements.start], bytes)
    }

    /// Returns the number of elements.
    pub(crate) fn elements(&self) -> u64 {
        gcodec::internal::elements(&self.shape).unwrap_or(0)
    }

    /// Whether the elements are in a file that is read by ranges: better a piece at a time than whole.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.data.is_elsewhere()
    }
}

impl Format {
    /// Returns the format of an extension.
    pub(crate) fn of_path(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "safetensors" => Some(Self::Safetensors),
            "npz" => Some(Self::Npz),
            "npy" => Some(Self::Npy),
            _ => None,
        }
    }
}

/// Writes tensors, in the order given, in the format of the extension of `path`; `-` is standard output, as
/// safetensors. A file appears complete or not at all. Opaque tensors are written as their source had them,
/// where the format has their element type, and as bytes otherwise.
pub(crate) fn write(
    path: &Path,
    tensors: &[(&str, TensorView<'_>)],
    metadata: &BTreeMap<String, String>,
) -> Result<()> {
    with_source(tensors, |outlines, source| write_from(path, outlines, metadata, Some(path), source))
}

/// Calls `f` with the outlines of tensors, and their elements as a source.
fn with_source<T>(
    tensors: &[(&str, TensorView<'_>)],
    f: impl FnOnce(&[Outline<'_>], &mut Source<'_>) -> T,
) -> T {
    let outlines: Vec<_> = tensors.iter().map(Outline::of).collect();
    f(&outlines, &mut |sink| tensors.iter().try_for_each(|(name, tensor)| sink(name, tensor.data())))
}

/// Writes tensors as [`write()`] does, whose elements come from `source`. `input`: the file that its failures
/// are about, unless they say it.
pub(crate) fn write_from(
    path: &Path,
    outlines: &[Outline<'_>],
    metadata: &BTreeMap<String, String>,
    input: Option<&Path>,
    source: &mut Source<'_>,
) -> Result<()> {
    prepare(path, outlines, metadata, input, source)?.finish().in_output(path)
}

/// Writes tensors as [`write_from`] does, to an output that the caller finishes.
pub(crate) fn prepare(
    path: &Path,
    outlines: &[Outline<'_>],
    metadata: &BTreeMap<String, String>,
    input: Option<&Path>,
    source: &mut Source<'_>,
) -> Result<Output> {
    let format = check_output(path)?;
    let labels = Labels::of(metadata);
    let mut out = Output::create(path)?;
    let mut is_of_source = false;
    let written = {
        let source: &mut Source<'_> = &mut |sink| {
            let mut is_of_sink = false;
            let taken = source(&mut |name, bytes| sink(name, bytes).inspect_err(|_| is_of_sink = true));
            taken.inspect_err(|_| is_of_source = !is_of_sink)
        };
        match (format, outlines) {
            (Format::Safetensors, _) => safetensors::write(&mut out, outlines, metadata, labels, source),
            (Format::Npz, _) => npz::write(&mut out, outlines, &labels, source),
            (Format::Npy, [one]) => npy::write(&mut out, one, &labels, source),
            (Format::Npy, all) => {
                Err(Failure::usage(format_args!(".npy holds one tensor, not {}", all.len())))
            }
        }
    };
    match written {
        Err(failure) if is_of_source => Err(input.into_iter().fold(failure, Failure::in_file)),
        written => written.and_then(|()| Ok(out.flush()?)).map(|()| out).in_output(path),
    }
}

/// A tensor without its elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outline<'a> {
    pub(crate) name: &'a str,
    pub(crate) dtype: Dtype,
    pub(crate) shape: &'a [u64],
}

impl<'a> Outline<'a> {
    fn of((name, tensor): &'a (&str, TensorView<'_>)) -> Self {
        Self { name, dtype: tensor.dtype(), shape: tensor.shape() }
    }

    /// Returns the number of bytes of the elements.
    pub(crate) fn bytes(&self) -> u64 {
        let elements = gcodec::internal::elements(self.shape);
        elements.and_then(|elements| self.dtype.bytes_for(elements)).unwrap_or(u64::MAX)
    }
}

impl<'a> From<&'a NamedTensor> for Outline<'a> {
    fn from(tensor: &'a NamedTensor) -> Self {
        Self { name: &tensor.name, dtype: tensor.dtype, shape: &tensor.shape }
    }
}

impl<'a> From<&'a TensorInfo> for Outline<'a> {
    fn from(info: &'a TensorInfo) -> Self {
        Self { name: &info.name, dtype: info.dtype, shape: &info.shape }
    }
}

/// Gives the elements of tensors to a function, in order. A tensor may come in several pieces, at least one.
pub(crate) type Source<'s> = dyn FnMut(&mut Sink<'_>) -> Result<()> + 's;

/// Takes the name of a tensor, and some of its bytes.
pub(crate) type Sink<'s> = dyn FnMut(&str, &[u8]) -> Result<()> + 's;

/// Returns the format of an output, which its extension must give.
pub(crate) fn check_output(path: &Path) -> Result<Format> {
    match Format::of_path(path) {
        Some(format) => Ok(format),
        None if is_standard(path) => Ok(Format::Safetensors),
        None => {
            let what = "cannot tell the format: the name must end in .safetensors, .npz or .npy";
            Err(Failure::usage(what)).in_file(path)
        }
    }
}

/// Formats `tensor "name"` for messages, escaped.
fn quoted(name: &str) -> String {
    format!("tensor {name:?}")
}

/// Refuses repeated names.
fn check_unique<'a>(names: impl Iterator<Item = &'a str>, fail: fn(String) -> Failure) -> Result<()> {
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(fail(format!("{} occurs twice", quoted(name))));
        }
    }
    Ok(())
}

/// Returns the name of a tensor whose format has no names: the file's, without its extension.
fn stem(path: &Path) -> String {
    if is_standard(path) {
        return "stdin".into();
    }
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fail::Code;
    use crate::testing::TempDir;

    fn parts(dump: &Dump) -> Vec<(&str, Dtype, &[u64], &[u8])> {
        dump.tensors.iter().map(|t| (t.name(), t.dtype, t.view().shape(), t.view().data())).collect()
    }

    #[test]
    fn each_format_round_trips_through_its_file() {
        let dir = TempDir::new();
        let b = TensorBuf::from_f32(vec![2, 3], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        let a = TensorBuf::new(Dtype::I16, vec![], vec![7, 0]).unwrap();
        let none = TensorBuf::new(Dtype::Bool, vec![0, 4], vec![]).unwrap();
        let both = [("b", b.view()), ("none", none.view()), ("a", a.view())];
        for (file, tensors) in [("x.safetensors", &both[..]), ("x.npz", &both[..]), ("b.npy", &both[..1])] {
            let path = dir.path(file);
            write(&path, tensors, &BTreeMap::new()).unwrap();
            let dump = Dump::open(&path).unwrap();
            let expected: Vec<_> =
                tensors.iter().map(|(name, t)| (*name, t.dtype(), t.shape(), t.data())).collect();
            assert_eq!(parts(&dump), expected, "{file}");

            let bytes = std::fs::read(&path).unwrap();
            let kind = Kind::of(&bytes).unwrap();
            let piped = Dump::parse(kind, Input::Owned(bytes), Path::new("b")).unwrap();
            assert_eq!(parts(&piped), expected, "{file}");
        }
    }

    #[test]
    fn an_error_leaves_the_old_file() {
        let dir = TempDir::new();
        let bf16 = TensorBuf::new(Dtype::Bf16, vec![1], vec![0, 0]).unwrap();
        for file in ["x.npz", "x.npy"] {
            let path = dir.path(file);
            std::fs::write(&path, "old").unwrap();
            let failure = write(&path, &[("a", bf16.view())], &BTreeMap::new()).unwrap_err();
            assert_eq!(failure.code, Code::Usage);
            assert!(failure.message.contains(file) && failure.message.contains("bf16"), "{failure}");
            assert_eq!(std::fs::read(&path).unwrap(), b"old");
        }
        assert_eq!(std::fs::read_dir(dir.root()).unwrap().count(), 2);
    }

    #[test]
    fn formats_are_told_or_refused() {
        let dir = TempDir::new();
        let path = dir.path("noise.bin");
        std::fs::write(&path, "noise").unwrap();
        assert_eq!(Dump::open(&path).unwrap_err().code, Code::Invalid);
        std::fs::write(&path, "").unwrap();
        assert_eq!(Dump::open(&path).unwrap_err().code, Code::Invalid);
        assert_eq!(write(&path, &[], &BTreeMap::new()).unwrap_err().code, Code::Usage);
        assert_eq!(Format::of_path(Path::new("A.NPZ")), Some(Format::Npz));
    }

    #[test]
    fn owned_tensors_keep_their_parts() {
        let tensor = NamedTensor::new("t".into(), TensorBuf::from_f32(vec![1], &[1.0]).unwrap());
        assert_eq!((tensor.name(), tensor.view().data()), ("t", &1f32.to_le_bytes()[..]));
    }
}
