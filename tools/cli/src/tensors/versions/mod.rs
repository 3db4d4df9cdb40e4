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

mod encoding;

use super::shards::{self, Index};
use super::{Data, Dump, NamedTensor, Opaque, Outline, Room, Spooled, folder, kind, quoted};
use crate::fail::{Failure, InFile, Result};
use crate::files;
use crate::input::{DEFAULT_MAX_BYTES, Input};
use encoding::unknown;
pub(crate) use encoding::{Checksum, Encoding};
use rayon::prelude::*;
use serde_json::Value;
use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

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

/// Returns the index of the folder of a version. If it is damaged, the files that it lists must not be taken
/// for a checkpoint: they may be differences.
pub(super) fn index_in(folder: &Path) -> Option<PathBuf> {
    let is_published = version_of(&named(folder)).is_some_and(|version| version > 0);
    Some(folder.join(INDEX)).filter(|path| is_published && files::is_file(path))
}

/// Refuses differences whose index does not say that they are some.
pub(super) fn check_whole(dump: &Dump) -> Result<()> {
    let is_difference = |tensor: &&NamedTensor| {
        tensor.view().dtype() == gcodec::tensor::Dtype::U8 && dump.metadata.contains_key(tensor.name())
    };
    match dump.tensors.iter().find(is_difference) {
        None => Ok(()),
        Some(tensor) => {
            let what = "it has a checksum as a difference has, and the index does not say of which encoding";
            Err(Failure::invalid(what).about(quoted(tensor.name())))
        }
    }
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

/// The metadata of an index whose files have differences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) version: u64,
    /// The version that they apply to.
    pub(crate) base: u64,
    pub(crate) encoding: Encoding,
    pub(crate) checksum: Checksum,
}

impl Difference {
    /// Whether an index is of differences. A damaged one must not turn them into a whole version.
    pub(super) fn is_in(index: &Index) -> bool {
        ["delta_encoding", "base_version"].iter().any(|key| index.metadata.get(key).is_some())
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

/// The version that the oldest differences apply to.
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
        let mut dump = self.begin_within(base, room)?;
        if room.unread {
            return Ok(dump);
        }
        let changed: BTreeSet<&str> = self.steps.iter().flat_map(Step::names).collect();
        let is_changed = |tensor: &&mut NamedTensor| changed.contains(tensor.name());
        let mut changed: Vec<&mut NamedTensor> = dump.tensors.iter_mut().filter(is_changed).collect();
        let mut spooled = Spooled::new();
        for tensors in changed.chunks(rayon::current_num_threads()) {
            let found: Vec<_> = tensors.par_iter().map(|tensor| self.bytes_of(tensor)).collect();
            for (tensor, bytes) in tensors.iter().zip(found) {
                spooled.add(&Outline::from(&**tensor), &bytes?)?;
            }
        }
        changed.iter_mut().zip(spooled.finish()?).for_each(|(tensor, new)| **tensor = new);
        Ok(dump)
    }

    /// Returns the tensors of the start, with the metadata of the version: [`Self::bytes_of`] tells what each
    /// becomes.
    #[cfg(feature = "store")]
    pub(crate) fn begin(&self, base: Option<Dump>) -> Result<Dump> {
        self.begin_within(base, &mut Room::default())
    }

    fn begin_within(&self, base: Option<Dump>, room: &mut Room) -> Result<Dump> {
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
        dump.metadata.extend(self.steps.last().map(|step| step.difference.said()).into_iter().flatten());
        Ok(dump)
    }

    /// Returns the elements that a tensor of the start has in the version, after comparing their checksums.
    pub(crate) fn bytes_of<'t>(&self, tensor: &'t NamedTensor) -> Result<Cow<'t, [u8]>> {
        let mut data = tensor.bytes();
        for step in self.steps.iter().filter(|step| step.changes.contains_key(tensor.name())) {
            step.apply(tensor.name(), data.to_mut())?;
        }
        Ok(data)
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

    /// Writes version `version` of one tensor, whose base is the version before.
    fn publish(run: &Path, version: u64, old: &[u8], new: &[u8]) -> [PathBuf; 2] {
        let folder = run.join(folder_of(version));
        std::fs::create_dir(&folder).unwrap();
        let change: Vec<u8> = old.iter().zip(new).map(|(old, new)| old ^ new).collect();
        let packed = packed(&change);
        let header = serde_json::json!({
            "__metadata__": {"w": Checksum::Xxh3.digits(new)},
            "w": {"dtype": "U8", "shape": [packed.len()], "data_offsets": [0, packed.len()]},
        });
        let header = header.to_string();
        let shard = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &packed].concat();
        let (base, checksum) = (version - 1, Checksum::Xxh3);
        let said = Difference { version, base, encoding: Encoding::Xor, checksum }.said();
        let metadata: serde_json::Map<_, _> =
            said.into_iter().map(|(key, value)| (key, Value::from(value))).collect();
        let index = serde_json::json!({"metadata": metadata, "weight_map": {"w": "a.safetensors"}});
        let paths = [folder.join("a.safetensors"), folder.join(INDEX)];
        std::fs::write(&paths[0], shard).unwrap();
        std::fs::write(&paths[1], index.to_string()).unwrap();
        paths
    }

    #[test]
    fn every_wrong_byte_and_every_cut_is_refused_or_changes_nothing() {
        let dir = crate::testing::TempDir::new();
        let tensor = |data: &[u8]| {
            gcodec::TensorBuf::new(gcodec::tensor::Dtype::Bf16, vec![data.len() as u64 / 2], data.to_vec())
        };
        let data: Vec<Vec<u8>> =
            (0..3u8).map(|version| (0..40).map(|i| i * (1 + version % 2)).collect()).collect();
        let base = dir.path("weight_v000000");
        std::fs::create_dir(&base).unwrap();
        let whole = tensor(&data[0]).unwrap();
        super::super::write(&base.join("w.safetensors"), &[("w", whole.view())], &Default::default())
            .unwrap();
        let files = [publish(dir.root(), 1, &data[0], &data[1]), publish(dir.root(), 2, &data[1], &data[2])];
        let last = dir.path("weight_v000002");
        let read = || Dump::open_quietly(&last).map(|dump| dump.tensors[0].bytes().into_owned());
        assert_eq!(read().unwrap(), data[2]);
        let mut refused = 0;
        for file in files.iter().flatten() {
            let bytes = std::fs::read(file).unwrap();
            for at in 0..bytes.len() {
                let mut wrong = bytes.clone();
                wrong[at] ^= 1;
                for wrong in [&wrong[..], &bytes[..at]] {
                    std::fs::write(file, wrong).unwrap();
                    match read() {
                        Ok(found) => assert_eq!(found, data[2], "{} byte {at}", file.display()),
                        Err(failure) => {
                            assert!(!failure.message.is_empty());
                            refused += 1;
                        }
                    }
                }
            }
            std::fs::write(file, &bytes).unwrap();
        }
        assert!(refused > 1000, "{refused}");
        assert_eq!(verify(dir.root()).unwrap(), Some((3, 2, 1)));
    }

    #[test]
    fn versions_do_not_lead_in_a_circle_or_without_end() {
        let dir = crate::testing::TempDir::new();
        for version in 1..4 {
            publish(dir.root(), version, b"0000", b"1111");
        }
        // A missing folder ends the way, whatever its name would be.
        assert!(Chain::to(&dir.path("weight_v000003"), None).unwrap().steps.len() == 3);
        let index = dir.path("weight_v000002").join(INDEX);
        let text = std::fs::read_to_string(&index).unwrap();
        std::fs::write(&index, text.replace("\"000001\"", "\"000003\"")).unwrap();
        let failure = Chain::to(&dir.path("weight_v000003"), None).unwrap_err();
        assert!(failure.message.contains("version 2 is said to change version 3"), "{failure}");
    }
}
