//! Versions that slime, miles and SGLang exchange in folders beside each other: checkpoints, each whole or as
//! differences from the version before.
//!
//! ```text
//! weight_vNNNNNN/                 a version; without delta_encoding in its index, it is whole
//! | model.safetensors.index.json  metadata: version, base_version, delta_encoding,
//! |                               compression_format (zstd), checksum_format; weight_map
//! | *.safetensors                 for each tensor that changes, one of bytes: its difference, a zstd frame.
//! |                               __metadata__ has the checksum of each result, by the tensor's name
//! xor                             new bytes ^ old bytes
//! overwrite                       count | positions of bytes | new bytes; u32 LE for count and each position
//! gcodec                          a stream of one delta, whose base is the tensor; only gcodec writes it
//! ```
//! Version 0 is the checkpoint that the engines load at first; trainers do not publish it. Here it is the
//! folder, or the link, `weight_v000000`. docs/engines.md names the sources.

use super::shards::{self, Index};
use super::{Data, Dump, NamedTensor, Opaque, Room, folder, kind, quoted};
use crate::fail::{Failure, InFile, Result};
use crate::files;
use crate::input::{DEFAULT_MAX_BYTES, Input};
use crate::stream::Updates;
use gcodec::compress;
use gcodec::frame::{Manifest, TensorInfo, UpdateHeader};
use gcodec::internal::zstd_frame;
use gcodec::stream::EncodeOptions;
use gcodec::{Limits, TensorView};
use rayon::prelude::*;
use serde_json::Value;
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use twox_hash::XxHash3_128;

/// Name of the index in the folder of a version.
pub(crate) const INDEX: &str = "model.safetensors.index.json";
/// Most versions of differences, one on another.
const MAX_STEPS: usize = 100_000;

/// Returns the name of the folder of a version.
pub(crate) fn folder_of(version: u64) -> String {
    format!("weight_v{version:06}")
}

/// Returns the version whose folder has this name.
pub(crate) fn version_of(folder: &Path) -> Option<u64> {
    let digits = folder.file_name()?.to_str()?.strip_prefix("weight_v")?;
    let is_number = digits.len() >= 6 && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_number)
}

/// Returns the folder of a version, of which a path is the folder or the index.
pub(crate) fn folder_with(path: &Path) -> Option<PathBuf> {
    let folder = if path.file_name()? == INDEX { path.parent()? } else { path };
    version_of(folder).map(|_| folder.to_owned())
}

/// Returns the folders of the versions of a run, in their order.
pub(crate) fn folders_in(run: &Path) -> Result<Vec<PathBuf>> {
    let mut found = files::entries(run).in_file(run)?;
    found.retain(|path| version_of(path).is_some() && files::is_folder(path));
    found.sort_by_key(|path| version_of(path));
    Ok(found)
}

/// Returns the newest version of a run.
pub(crate) fn newest(run: &Path) -> Result<Option<u64>> {
    Ok(folders_in(run)?.last().and_then(|path| version_of(path)))
}

/// Returns the newest version of a run that is complete: trainers write the index last.
pub(crate) fn published(run: &Path) -> Result<Option<u64>> {
    let folders = folders_in(run)?;
    let newest = folders.iter().rev().find(|folder| files::is_file(&folder.join(INDEX)) || is_alone(folder));
    Ok(newest.and_then(|path| version_of(path)))
}

/// Whether the tensors of a folder without an index are one file, which is then a whole version.
fn is_alone(folder: &Path) -> bool {
    let mut entries = files::entries(folder).unwrap_or_default();
    entries.retain(|path| path.extension().is_some_and(|ending| ending == "safetensors"));
    matches!(&entries[..], [one] if one.ends_with("model.safetensors"))
}

/// Reads the version in a folder, or all versions of a run, and compares every checksum: returns the number
/// of versions, of their differences, and of the newest version's tensors. `None`: it is neither.
pub(crate) fn verify(folder: &Path) -> Result<Option<(u64, u64, u64)>> {
    if !files::is_folder(folder) {
        return Ok(None);
    }
    let folders = match Step::at(folder)? {
        Some(_) => vec![folder.to_owned()],
        None => folders_in(folder)?,
    };
    let mut differences = 0;
    let mut before: Option<(u64, Dump)> = None;
    for folder in &folders {
        let folder = named(folder);
        let chain = Chain::to(&folder, before.as_ref().map(|(version, _)| *version))?;
        let base =
            before.take().filter(|(version, _)| matches!(chain.start, Start::Version(at) if at == *version));
        differences += chain.steps.iter().map(|step| step.changes.len() as u64).sum::<u64>();
        before = version_of(&folder).zip(Some(chain.resolve(base.map(|(_, dump)| dump)).in_file(&folder)?));
    }
    let tensors = before.map_or(0, |(_, dump)| dump.tensors.len() as u64);
    Ok((!folders.is_empty()).then_some((folders.len() as u64, differences, tensors)))
}

/// What an index says of the differences that its files have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) version: u64,
    /// The version that they apply to.
    pub(crate) base: u64,
    pub(crate) encoding: Encoding,
    pub(crate) checksum: Checksum,
}

/// How the difference of a tensor is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Encoding {
    /// The new bytes and the old ones, exclusive or
    Xor,
    /// The positions of the bytes that change, and the new ones
    Overwrite,
    /// A stream of one delta
    Gcodec,
}

/// Checksum of a tensor's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Checksum {
    #[value(name = "xxh3-128")]
    Xxh3,
    Blake3,
    Adler32,
}

impl Difference {
    /// Whether an index is of differences.
    pub(super) fn is_in(index: &Index) -> bool {
        index.metadata.get("delta_encoding").is_some()
    }

    /// Names the format of the files of an index of differences.
    pub(super) fn kind_name(index: &Index) -> Option<&'static str> {
        Some(match Encoding::of(index.metadata.get("delta_encoding")?.as_str()?) {
            Ok(Encoding::Xor) => "xor differences",
            Ok(Encoding::Overwrite) => "overwrite differences",
            Ok(Encoding::Gcodec) => "gcodec differences",
            Err(_) => "differences",
        })
    }

    fn of(index: &Index) -> Result<Self> {
        let text = |key: &str| match index.metadata.get(key) {
            Some(Value::String(text)) => Ok(text.clone()),
            Some(Value::Number(number)) => Ok(number.to_string()),
            other => Err(Failure::invalid(format_args!(
                "metadata {key:?} of the index: {}",
                if other.is_some() { "no text" } else { "it is missing" }
            ))),
        };
        let number = |key: &str| {
            let found = text(key)?;
            found.parse::<u64>().map_err(|_| {
                Failure::invalid(format_args!("metadata {key:?} of the index: {found:?} is no number"))
            })
        };
        let (version, base) = (number("version")?, number("base_version")?);
        if base >= version {
            return Err(Failure::invalid(format_args!("version {version} is said to change version {base}")));
        }
        let compression = text("compression_format")?;
        if compression != "zstd" {
            return Err(unknown("compression", &compression, "zstd"));
        }
        let (encoding, checksum) = (text("delta_encoding")?, text("checksum_format")?);
        Ok(Self { version, base, encoding: Encoding::of(&encoding)?, checksum: Checksum::of(&checksum)? })
    }

    /// Returns the entries of the index's metadata.
    pub(crate) fn said(&self) -> [(String, String); 5] {
        [
            ("version", format!("{:06}", self.version)),
            ("base_version", format!("{:06}", self.base)),
            ("delta_encoding", self.encoding.name().to_owned()),
            ("compression_format", "zstd".to_owned()),
            ("checksum_format", self.checksum.name().to_owned()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
    }
}

impl Encoding {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Xor => "xor",
            Self::Overwrite => "overwrite",
            Self::Gcodec => "gcodec",
        }
    }

    fn of(name: &str) -> Result<Self> {
        let all = [Self::Xor, Self::Overwrite, Self::Gcodec];
        let found = all.into_iter().find(|encoding| encoding.name() == name);
        found.ok_or_else(|| unknown("encoding", name, "xor, overwrite and gcodec"))
    }

    /// Changes the bytes of a tensor.
    fn apply(self, data: &mut [u8], compressed: &[u8]) -> Result<()> {
        let len = data.len() as u64;
        let most = match self {
            Self::Xor => len,
            // A position and a byte for each byte, and their number.
            Self::Overwrite => len.saturating_mul(5).saturating_add(4),
            // No stream of the tensor is longer.
            Self::Gcodec => len.saturating_mul(2).saturating_add(1 << 20),
        };
        let change = zstd_frame(compressed, most)
            .ok_or_else(|| Failure::invalid("its difference is not one whole zstd frame"))?;
        if change.len() as u64 > most {
            let what =
                format!("more than {most} bytes of differences for {len} bytes: the base is the wrong one");
            return Err(Failure::invalid(what));
        }
        match self {
            Self::Xor => xor(data, &change),
            Self::Overwrite => overwrite(data, &change),
            Self::Gcodec => change_by_stream(data, &change),
        }
    }

    /// Returns the difference of a tensor and one of its type and shape; `None` if they are equal.
    ///
    /// # Errors
    /// A limit, if the positions do not fit.
    pub(crate) fn difference(self, old: &NamedTensor, new: &NamedTensor) -> Result<Option<Vec<u8>>> {
        let (old_bytes, new_bytes) = (old.bytes(), new.bytes());
        match self {
            _ if old_bytes == new_bytes => Ok(None),
            Self::Xor => Ok(Some(old_bytes.iter().zip(&*new_bytes).map(|(old, new)| old ^ new).collect())),
            Self::Overwrite => positions(&old_bytes, &new_bytes).map(Some),
            Self::Gcodec => stream(old, new).map(Some),
        }
    }
}

/// Returns the difference of bytes as positions and new bytes.
fn positions(old: &[u8], new: &[u8]) -> Result<Vec<u8>> {
    if new.len() as u64 > u64::from(u32::MAX) {
        let what = format!("{} bytes; positions of overwrite end at 2^32: use xor", new.len());
        return Err(Failure::limit(what));
    }
    let changed: Vec<u32> =
        (0u32..).zip(old.iter().zip(new)).filter(|(_, (old, new))| old != new).map(|(at, _)| at).collect();
    let mut bytes = (changed.len() as u32).to_le_bytes().to_vec();
    bytes.extend(changed.iter().flat_map(|at| at.to_le_bytes()));
    bytes.extend(changed.iter().map(|&at| new[at as usize]));
    Ok(bytes)
}

/// Returns the difference of tensors as a stream of one delta.
fn stream(old: &NamedTensor, new: &NamedTensor) -> Result<Vec<u8>> {
    let view = new.view();
    let manifest = Arc::new(Manifest::new(vec![TensorInfo::new(new.name(), view.dtype(), view.shape())])?);
    let input = [compress::Input { tensor: 0, name: new.name(), view, base: Some(old.view()) }];
    let codecs = ["delta".parse().map_err(Failure::usage)?];
    let pending = compress::pending(&input, &codecs, &compress::Options::default())?;
    let runs = pending.deltas(&manifest, &mut compress::Digests::default())?;
    let mut writer = gcodec::Writer::new(Vec::new(), EncodeOptions::default());
    writer.update(&UpdateHeader::default().with_runs(runs), &manifest, pending)?;
    Ok(writer.finish()?)
}

/// Changes the bytes of a tensor by a stream of one delta, which says its type and shape.
fn change_by_stream(data: &mut [u8], stream: &[u8]) -> Result<()> {
    let updates = Updates::open(stream, &Limits::default())?;
    let one = (updates.len() == 1).then(|| updates.manifest(0).tensors());
    let Some([info]) = one else {
        return Err(Failure::invalid("its difference is not a stream of one update of one tensor"));
    };
    if info.bytes() != data.len() as u64 {
        let (found, old) = (info.bytes(), data.len());
        return Err(Failure::usage(format_args!(
            "a difference of {found} bytes for {old} bytes of the base"
        )));
    }
    let base = TensorView::new(info.dtype, &info.shape, data)?;
    let tensors = updates.decode(0, |_| true, &[(info.name.clone(), base)].into())?;
    let new = tensors.first().map(NamedTensor::bytes).unwrap_or_default().into_owned();
    if new.len() == data.len() {
        data.copy_from_slice(&new);
    }
    Ok(())
}

impl Checksum {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Xxh3 => "xxh3-128",
            Self::Blake3 => "blake3",
            Self::Adler32 => "adler32",
        }
    }

    fn of(name: &str) -> Result<Self> {
        let all = [Self::Xxh3, Self::Blake3, Self::Adler32];
        let found = all.into_iter().find(|checksum| checksum.name() == name);
        found.ok_or_else(|| unknown("checksum", name, "xxh3-128, blake3 and adler32"))
    }

    /// Returns the checksum in hexadecimal digits.
    pub(crate) fn digits(self, data: &[u8]) -> String {
        match self {
            Self::Xxh3 => format!("{:032x}", XxHash3_128::oneshot(data)),
            Self::Blake3 => blake3::hash(data).to_hex().to_string(),
            Self::Adler32 => format!("{:08x}", adler2::adler32_slice(data)),
        }
    }
}

fn unknown(what: &str, found: &str, known: &str) -> Failure {
    Failure::invalid(format_args!("{what} {found:?} is unknown; gcodec reads {known}"))
}

fn xor(data: &mut [u8], change: &[u8]) -> Result<()> {
    if change.len() != data.len() {
        let (change, old) = (change.len(), data.len());
        return Err(Failure::usage(format_args!(
            "{change} bytes of differences for {old} bytes of the base"
        )));
    }
    data.iter_mut().zip(change).for_each(|(byte, change)| *byte ^= change);
    Ok(())
}

fn overwrite(data: &mut [u8], change: &[u8]) -> Result<()> {
    let cut = || Failure::invalid("its difference ends early");
    let (count, rest) = change.split_first_chunk::<4>().ok_or_else(cut)?;
    let count = u32::from_le_bytes(*count) as usize;
    let (places, bytes) = count.checked_mul(4).and_then(|len| rest.split_at_checked(len)).ok_or_else(cut)?;
    if bytes.len() != count {
        return Err(Failure::invalid(format_args!("{} bytes for {count} positions", bytes.len())));
    }
    for (place, byte) in places.as_chunks::<4>().0.iter().zip(bytes) {
        let place = u32::from_le_bytes(*place);
        let len = data.len();
        *data.get_mut(place as usize).ok_or_else(|| {
            Failure::invalid(format_args!("byte {place} is to change, of {len}: the base is the wrong one"))
        })? = *byte;
    }
    Ok(())
}

/// The differences of one version.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) difference: Difference,
    /// Path of the index.
    path: PathBuf,
    index: Index,
    /// Differences by name, as the files have them.
    changes: HashMap<String, NamedTensor>,
    checksums: HashMap<String, String>,
}

impl Step {
    /// Reads the differences that the index at `path` lists.
    fn open(path: &Path, index: Index, room: &mut Room) -> Result<Self> {
        let difference = Difference::of(&index)?;
        let folder = named(path.parent().unwrap_or(Path::new("")));
        if let Some(number) = version_of(&folder).filter(|number| *number != difference.version) {
            let version = difference.version;
            return Err(Failure::invalid(format_args!(
                "the folder of version {number} has version {version}"
            )));
        }
        let Dump { tensors, mut metadata, opaque, faults, .. } = shards::read_listed(path, &index, room)?;
        if let Some(fault) = faults.into_iter().next() {
            return Err(fault);
        }
        let found: BTreeSet<&str> =
            tensors.iter().map(|t| t.name()).chain(opaque.iter().map(|t| t.name.as_str())).collect();
        // A file of another version would change what the index does not say.
        if let Some(extra) = found.iter().find(|name| !index.weight_map.contains_key(**name)) {
            return Err(Failure::invalid("its index does not list it").about(quoted(extra)));
        }
        if let Some(other) = tensors.iter().find(|t| t.view().dtype() != gcodec::tensor::Dtype::U8) {
            let what = format!("a difference is of u8, not of {}", other.view().dtype());
            return Err(Failure::invalid(what).about(quoted(other.name())));
        }
        if let Some(other) = opaque.first() {
            return Err(Failure::invalid("a difference is of u8").about(quoted(&other.name)));
        }
        let checksums = tensors.iter().filter_map(|t| metadata.remove_entry(t.name())).collect();
        let changes = tensors.into_iter().map(|t| (t.name().to_owned(), t)).collect();
        Ok(Self { difference, path: path.to_owned(), index, changes, checksums })
    }

    /// Reads the differences in a folder, or of an index; `None` if the version is whole.
    pub(crate) fn at(path: &Path) -> Result<Option<Self>> {
        let folder = if files::is_folder(path) { path } else { path.parent().unwrap_or(Path::new("")) };
        let found = differences(folder)?;
        let open = |(path, index): (PathBuf, Index)| Self::open(&path, index, &mut Room::default());
        found.map(open).transpose()
    }

    /// Returns the tensors of the version, whose base these are.
    pub(crate) fn resolve(self, base: Dump) -> Result<Dump> {
        let start = Start::Version(self.difference.base);
        Chain { steps: vec![self], start }.resolve(Some(base))
    }

    /// Returns the names of the tensors that change.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.changes.keys().map(String::as_str)
    }

    /// Changes the bytes of a tensor, and compares the checksum of the result.
    fn apply(&self, name: &str, data: &mut [u8]) -> Result<()> {
        let Some(change) = self.changes.get(name) else { return Ok(()) };
        let file = self.index.weight_map.get(name).map_or("", String::as_str);
        let place = match &change.data {
            Data::Shared(shared) => format!("{} at byte {:#x}", quoted(name), shared.range.start),
            _ => quoted(name),
        };
        let about = |failure: Failure| failure.about(&place).in_file(&self.path.with_file_name(file));
        self.difference.encoding.apply(data, &change.bytes()).map_err(about)?;
        let expected =
            self.checksums.get(name).ok_or_else(|| about(Failure::invalid("its checksum is missing")))?;
        let found = self.difference.checksum.digits(data);
        if found != *expected {
            let (checksum, base) = (self.difference.checksum.name(), self.difference.base);
            let what = format!(
                "wrong checksum: {checksum} {found}, and {expected} is stated; its version {base} is another, \
                 or the difference is damaged"
            );
            return Err(about(Failure::invalid(what)));
        }
        Ok(())
    }

    /// Returns a failure that names the first tensor that a base does not have.
    fn check_names(&self, base: &Dump) -> Result<()> {
        let has: BTreeSet<&str> = base.names().collect();
        let mut names: Vec<&str> = self.names().collect();
        names.sort_unstable();
        match names.into_iter().find(|name| !has.contains(name)) {
            None => Ok(()),
            Some(name) => {
                let what = format!("version {} does not have it", self.difference.base);
                Err(Failure::usage(what).about(quoted(name)).in_file(&self.path))
            }
        }
    }
}

/// The way to a version.
#[derive(Debug)]
pub(crate) struct Chain {
    /// Differences, the oldest first.
    pub(crate) steps: Vec<Step>,
    pub(crate) start: Start,
}

/// What the oldest differences apply to.
#[derive(Debug)]
pub(crate) enum Start {
    /// The folder of a whole version.
    Whole(PathBuf),
    /// A version of which there is no folder, or the one that the caller has.
    Version(u64),
}

impl Chain {
    /// Finds the way to the version in a folder: from the version `held`, if it leads there, or from a whole
    /// one.
    pub(crate) fn to(folder: &Path, held: Option<u64>) -> Result<Self> {
        if !files::is_folder(folder) && version_of(folder) != held {
            return Err(Failure::usage("there is no such version")).in_file(folder);
        }
        Self::find(folder, held, &mut Room::default())
    }

    fn find(folder: &Path, held: Option<u64>, room: &mut Room) -> Result<Self> {
        let mut steps = Vec::new();
        let mut at = folder.to_owned();
        if let Some(version) = held.filter(|_| version_of(folder) == held) {
            return Ok(Self { steps, start: Start::Version(version) });
        }
        loop {
            let Some((path, index)) = differences(&at)? else {
                return Ok(Self::new(steps, Start::Whole(at)));
            };
            let step = Step::open(&path, index, room).map_err(|failure| failure.in_file(&at))?;
            let base = step.difference.base;
            steps.push(step);
            if steps.len() > MAX_STEPS {
                return Err(Failure::limit(format_args!("more than {MAX_STEPS} versions of differences")));
            }
            at = at.with_file_name(folder_of(base));
            if held == Some(base) || !files::is_folder(&at) {
                return Ok(Self::new(steps, Start::Version(base)));
            }
        }
    }

    fn new(mut steps: Vec<Step>, start: Start) -> Self {
        steps.reverse();
        Self { steps, start }
    }

    /// Returns the bytes of the differences.
    pub(crate) fn bytes(&self) -> u64 {
        let changes = self.steps.iter().flat_map(|step| step.changes.values());
        changes.map(|change| change.data.len()).sum()
    }

    /// Returns the tensors of the version.
    ///
    /// `base`: those of the version that the chain starts with, unless it is whole and among the folders.
    pub(crate) fn resolve(&self, base: Option<Dump>) -> Result<Dump> {
        self.resolve_within(base, &mut Room::default())
    }

    fn resolve_within(&self, base: Option<Dump>, room: &mut Room) -> Result<Dump> {
        let mut dump = match (base, &self.start) {
            (Some(base), _) => base,
            (None, Start::Whole(folder)) => whole(folder, room)?,
            (None, Start::Version(version)) => return Err(no_base(*version)),
        };
        dump.carry();
        if let Some(fault) = dump.fault() {
            return Err(fault);
        }
        self.steps.iter().try_for_each(|step| step.check_names(&dump))?;
        if !room.unread {
            let changed: BTreeSet<&str> = self.steps.iter().flat_map(Step::names).collect();
            dump.tensors.par_iter_mut().filter(|t| changed.contains(t.name())).try_for_each(|tensor| {
                let mut data = tensor.bytes().into_owned();
                self.steps.iter().try_for_each(|step| step.apply(tensor.name(), &mut data))?;
                tensor.data = Data::Owned(data);
                tensor.stored = None;
                Ok::<(), Failure>(())
            })?;
        }
        dump.metadata.extend(self.steps.last().map(|step| step.difference.said()).into_iter().flatten());
        Ok(dump)
    }
}

/// Reads the version whose differences the index at `path` lists. Without its base, the differences are
/// opaque, and a fault.
pub(super) fn read(path: &Path, index: Index, room: &mut Room) -> Result<Dump> {
    let folder = named(path.parent().unwrap_or(Path::new("")));
    // Only names that the layout gives tell which folders are beside it.
    let is_named = version_of(&folder).is_some() && path.file_name().is_some_and(|name| name == INDEX);
    let chain = match is_named {
        true => Chain::find(&folder, None, room)?,
        false => {
            let step = Step::open(path, index, room)?;
            let start = Start::Version(step.difference.base);
            Chain { steps: vec![step], start }
        }
    };
    match chain.start {
        Start::Whole(_) => chain.resolve_within(None, room),
        Start::Version(version) => Ok(unresolved(chain, version)),
    }
}

/// Shows differences whose base is missing.
fn unresolved(mut chain: Chain, missing: u64) -> Dump {
    let Some(step) = chain.steps.pop() else { return Dump::default() };
    let metadata = step.difference.said().into();
    let Difference { base, encoding, .. } = step.difference;
    let reason = format!("its difference from version {base}, by {}", encoding.name());
    let opaque = |(name, change): (String, NamedTensor)| {
        Opaque::new(name, encoding.name(), None, change.data.len(), reason.clone())
    };
    let mut opaque: Vec<Opaque> = step.changes.into_iter().map(opaque).collect();
    opaque.sort_by(|a, b| crate::order::compare(&a.name, &b.name));
    Dump { opaque, faults: vec![no_base(missing)], metadata, ..Dump::default() }
}

fn no_base(version: u64) -> Failure {
    let folder = folder_of(version);
    Failure::usage(format_args!(
        "version {version} is not beside it: link it there as {folder}{}",
        if version == 0 { ", the checkpoint that the engines loaded first" } else { "" }
    ))
}

/// Returns the index of a folder if it is of differences.
fn differences(folder: &Path) -> Result<Option<(PathBuf, Index)>> {
    let path = folder.join(INDEX);
    if !files::is_file(&path) {
        return Ok(None);
    }
    let input = Input::open(&path, DEFAULT_MAX_BYTES)?;
    let index = Index::parse(&input).in_file(&path)?;
    Ok(Difference::is_in(&index).then_some((path, index)))
}

/// Reads a whole version.
fn whole(folder: &Path, room: &mut Room) -> Result<Dump> {
    // Differences may be there before their index. Version 0 is a folder of the user's.
    let is_complete = files::is_file(&folder.join(INDEX)) || is_alone(folder);
    if version_of(folder).is_some_and(|version| version > 0) && !is_complete {
        return Err(Failure::invalid("its index is missing: it is not complete")).in_file(folder);
    }
    let path = folder::of(folder)?;
    let input = match shards::index_of_set(&path) {
        Some(index) => Input::Owned(index),
        None => Input::open(&path, DEFAULT_MAX_BYTES)?,
    };
    let kind = kind::of_file(&path, &input).in_file(&path)?;
    Dump::of_input(kind, &Arc::new(input), &path, room).in_file(&path)
}

/// Returns a folder's path with its name, which `.` does not have.
fn named(folder: &Path) -> PathBuf {
    match folder.file_name() {
        Some(_) => folder.to_owned(),
        None => std::path::absolute(Path::new(".").join(folder)).unwrap_or_else(|_| folder.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(bytes: &[u8]) -> Vec<u8> {
        zstd::bulk::compress(bytes, 1).unwrap()
    }

    #[test]
    fn both_encodings_give_the_new_bytes() {
        let (old, new) = ([1u8, 2, 3, 4], [1u8, 7, 3, 9]);
        let tensor = |data: [u8; 4]| {
            let tensor = gcodec::TensorBuf::new(gcodec::tensor::Dtype::I16, vec![2], data.into()).unwrap();
            NamedTensor::new("w".into(), tensor)
        };
        for (encoding, expected) in [
            (Encoding::Xor, Some(&[0, 5, 0, 13][..])),
            (Encoding::Overwrite, Some(&[2, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 7, 9])),
            (Encoding::Gcodec, None),
        ] {
            let change = encoding.difference(&tensor(old), &tensor(new)).unwrap().unwrap();
            assert!(expected.is_none_or(|expected| change == expected), "{encoding:?}");
            assert_eq!(encoding.difference(&tensor(new), &tensor(new)).unwrap(), None);
            let mut data = old;
            encoding.apply(&mut data, &packed(&change)).unwrap();
            assert_eq!(data, new, "{encoding:?}");
            for cut in 0..change.len() {
                let failed = encoding.apply(&mut old.clone(), &packed(&change[..cut]));
                assert!(failed.is_err(), "{encoding:?} {cut}");
            }
            let whole = packed(&change);
            for cut in 0..whole.len() {
                assert!(encoding.apply(&mut old.clone(), &whole[..cut]).is_err(), "{encoding:?} frame {cut}");
            }
            let more = encoding.apply(&mut old.clone(), &[&whole[..], b"x"].concat());
            assert!(more.is_err(), "{encoding:?}");
            let bomb = encoding.apply(&mut old.clone(), &packed(&[0; 2 << 20])).unwrap_err();
            assert!(bomb.message.contains("more than"), "{bomb}");
        }
        let outside = Encoding::Overwrite.apply(&mut old.clone(), &packed(&[1, 0, 0, 0, 4, 0, 0, 0, 1]));
        assert!(outside.unwrap_err().message.contains("byte 4 is to change, of 4"));
    }

    #[test]
    fn checksums_are_those_of_python() {
        // xxhash.xxh3_128(b"gcodec"), blake3.blake3(..) and zlib.adler32(..), in hexadecimal digits.
        for (name, expected) in [
            ("xxh3-128", "23606de186c05214ae642933514ff759"),
            ("blake3", "867392d5a901f3508ee1cee40ee8bed89cf45f0bbf2908824d4553982f03bd2b"),
            ("adler32", "08740266"),
        ] {
            assert_eq!(Checksum::of(name).unwrap().digits(b"gcodec"), expected);
        }
        assert!(Checksum::of("crc").is_err());
    }

    #[test]
    fn folders_have_the_number_of_their_version() {
        assert_eq!(version_of(Path::new("a/weight_v000012")), Some(12));
        assert_eq!(version_of(Path::new(&folder_of(1_234_567))), Some(1_234_567));
        for other in ["weight_v12", "weight_v", "weight_v00001x", "v000001", ".."] {
            assert_eq!(version_of(Path::new(other)), None, "{other}");
        }
    }

    #[test]
    fn what_an_index_says_is_checked() {
        let entries = [
            ("version", "000003"),
            ("base_version", "2"),
            ("delta_encoding", "xor"),
            ("compression_format", "zstd"),
            ("checksum_format", "blake3"),
        ];
        let parse = |changed: &str, value: Option<&str>| {
            let entry = |&(key, usual): &(&str, &str)| {
                let value = if key == changed { value? } else { usual };
                Some((key.to_owned(), Value::from(value)))
            };
            let metadata: serde_json::Map<String, Value> = entries.iter().filter_map(entry).collect();
            let index = serde_json::json!({"metadata": metadata, "weight_map": {}}).to_string();
            Difference::of(&Index::parse(index.as_bytes()).unwrap())
        };
        let read = parse("", None).unwrap();
        assert_eq!((read.version, read.base), (3, 2));
        for (key, _) in entries {
            assert!(parse(key, None).unwrap_err().message.contains(key), "{key}");
            assert!(parse(key, Some("other")).unwrap_err().message.contains("other"), "{key}");
        }
        assert!(parse("base_version", Some("3")).is_err());
    }
}
