//! Kinds of files, found by the first bytes and not by the name.

use super::torch::{dcp, exported, legacy};
use super::{archive, gguf, safetensors};
use crate::fail::{Failure, Result};
use crate::input::{Input, Section};
use gcodec::frame::MAGIC;
use gcodec::internal::{PREAMBLE_LEN, SYNC};
use std::path::Path;

/// Kind of a file that gcodec reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A gcodec stream.
    Stream,
    /// Hugging Face's `.safetensors`.
    Safetensors,
    /// `model.safetensors.index.json`: the names of tensors and their files.
    Shards,
    /// NumPy's `.npz`: a zip archive of `.npy` files.
    Npz,
    /// NumPy's `.npy`: one array.
    Npy,
    /// A state dict of `torch.save`: a zip archive with a pickle.
    Torch,
    /// The `.metadata` of a distributed checkpoint of PyTorch, which names its other files.
    Distributed,
    /// A model of llama.cpp.
    Gguf,
}

impl Kind {
    /// Returns the kind's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stream => "gcodec",
            Self::Safetensors => "safetensors",
            Self::Shards => "sharded safetensors",
            Self::Npz => "npz",
            Self::Npy => "npy",
            Self::Torch => "PyTorch",
            Self::Distributed => "PyTorch distributed checkpoint",
            Self::Gguf => "GGUF",
        }
    }

    /// Whether one file has everything: tensors, and no names of other files.
    pub(crate) fn is_alone(self) -> bool {
        !matches!(self, Self::Stream | Self::Shards | Self::Distributed)
    }

    /// Returns the kind of a file.
    ///
    /// # Errors
    /// A failure that names what the file looks like, and what to do with it.
    pub(crate) fn of<'a>(file: impl Into<Section<'a>>) -> Result<Self> {
        let file = file.into();
        let bytes = &*file.head(HEAD);
        if is_stream(bytes) {
            return Ok(Self::Stream);
        }
        match bytes {
            [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => Ok(Self::Npy),
            [b'P', b'K', 3, 4, ..] | [b'P', b'K', 5, 6, ..] => of_archive(file),
            _ if legacy::is_legacy(bytes) => Ok(Self::Torch),
            _ if dcp::is_metadata(bytes) => Ok(Self::Distributed),
            _ if bytes.starts_with(gguf::MAGIC) => Ok(Self::Gguf),
            _ if safetensors::looks_like(bytes) => Ok(Self::Safetensors),
            _ if bytes.trim_ascii_start().starts_with(b"{") && file.contains(b"\"weight_map\"") => {
                Ok(Self::Shards)
            }
            _ => Err(unknown(bytes)),
        }
    }
}

/// Returns the kind of the file at `path`, as [`Kind::of`] does.
///
/// # Errors
/// Also for a part of a distributed checkpoint, which only the whole explains.
pub(crate) fn of_file(path: &Path, input: &Input) -> Result<Kind> {
    if dcp::is_part(path) {
        return Err(Failure::invalid(
            "a part of a PyTorch distributed checkpoint: give its folder, or the file .metadata in it",
        ));
    }
    Kind::of(input)
}

/// Bytes that tell the kinds of most files.
const HEAD: u64 = 1 << 16;

/// Whether the bytes stand for a file that Git LFS has not downloaded.
pub(crate) fn is_pointer(bytes: &[u8]) -> bool {
    bytes.starts_with(POINTER)
}

/// Bytes that tell a pointer of Git LFS.
pub(crate) const POINTER_BYTES: u64 = POINTER.len() as u64;
/// First bytes of a pointer of Git LFS.
const POINTER: &[u8] = b"version https://git-lfs";

/// Refuses an input of no known kind by its first bytes.
pub(crate) fn refuse(head: &[u8]) -> Result<()> {
    match head {
        // The end of an archive tells its kind, and any part of JSON.
        [b'P', b'K', ..] => Ok(()),
        _ if head.trim_ascii_start().starts_with(b"{") => Ok(()),
        _ => Kind::of(head).map(drop),
    }
}

/// Whether the bytes are those of a gcodec stream, even if its preamble is damaged.
pub(crate) fn is_stream(bytes: &[u8]) -> bool {
    let same = bytes.iter().zip(MAGIC).filter(|(a, b)| **a == *b).count();
    let frame = bytes.get(PREAMBLE_LEN..PREAMBLE_LEN + SYNC.len());
    same == MAGIC.len()
        || (!bytes.is_empty() && bytes.len() < MAGIC.len() && same == bytes.len())
        || frame == Some(&SYNC)
}

/// Tells archives of NumPy from those of PyTorch.
fn of_archive(file: Section<'_>) -> Result<Kind> {
    let archive = archive::open(file)?;
    if super::torch::prefix(&archive).or_else(|| exported::prefix(&archive)).is_some() {
        return Ok(Kind::Torch);
    }
    let names: Vec<String> =
        archive.file_names().take(1000).flatten().map(|name| name.into_owned()).collect();
    let is_script = names.iter().any(|name| name.ends_with("constants.pkl"));
    let is_array = |name: &String| name.ends_with(".npy");
    if names.iter().all(is_array) || (!is_script && names.iter().any(is_array)) {
        return Ok(Kind::Npz);
    }
    let what = if is_script {
        "a TorchScript archive: save its state_dict() with torch.save"
    } else if names.iter().any(|name| name == "config.json") && names.iter().any(|name| name.ends_with(".h5"))
    {
        "a Keras archive: save its weights as .npz or .safetensors"
    } else {
        "a zip archive without data.pkl and without .npy files: unpack it"
    };
    let other = names.iter().find(|name| !name.ends_with(".npy")).cloned().unwrap_or_default();
    Err(Failure::invalid(format_args!("{what} (it holds {other:?})")))
}

const TAR: &str = "a PyTorch file from before version 0.4, a tar archive: load it with torch.load, which still \
                   reads it, and save it again";

/// Signatures of other files: offset, bytes, what it is and what to do.
const SIGNATURES: [(usize, &[u8], &str); 22] = [
    (0, b"\x1f\x8b", "gzip: unpack it with gunzip"),
    (0, b"\x28\xb5\x2f\xfd", "zstd: unpack it with `zstd -d`"),
    (0, b"BZh", "bzip2: unpack it with bunzip2"),
    (0, b"\xfd7zXZ\0", "xz: unpack it with unxz"),
    (0, b"\x04\x22\x4d\x18", "lz4: unpack it with `lz4 -d`"),
    (0, b"7z\xbc\xaf", "a 7-Zip archive: unpack it"),
    (0, b"sys_info\0", TAR),
    (0, b"pickle\0", TAR),
    (0, b"storages\0", TAR),
    (0, b"tensors\0", TAR),
    (257, b"ustar", "a tar archive: unpack it"),
    (4, b"ET12", "an ExecuTorch program (.pte): export the weights of the model that it was made from"),
    (4, b"ET13", "an ExecuTorch program (.pte): export the weights of the model that it was made from"),
    (0, b"\x89HDF\r\n\x1a\n", "HDF5 (Keras, h5py): save the tensors as .npz or .safetensors"),
    (0, b"PAR1", "Parquet: it holds tables, not tensors"),
    (0, b"ARROW1", "an Arrow file: it holds tables, not tensors"),
    (0, POINTER, "a Git LFS pointer, not the file itself: run `git lfs pull`"),
    (0, b"\x7fELF", "a program"),
    (0, b"\x89PNG", "a PNG picture"),
    (0, b"%PDF", "a PDF document"),
    (0, b"SQLite format 3", "an SQLite database"),
    (0, b"lmgg", "a llama.cpp model from before GGUF: convert it to GGUF"),
];

/// Returns the failure for a file that should be safetensors and begins otherwise: what it looks like.
pub(super) fn not_safetensors(input: &Input) -> Failure {
    match Kind::of(input) {
        Ok(kind) => Failure::invalid(format_args!("not a safetensors file but {}", kind.name())),
        Err(failure) => failure.about("not a safetensors file"),
    }
}

/// Returns the failure for bytes of another kind.
fn unknown(bytes: &[u8]) -> Failure {
    let known = "gcodec reads its streams, .safetensors, .npz, .npy, PyTorch's .pt and .bin, and GGUF";
    if bytes.is_empty() {
        return Failure::invalid("an empty file");
    }
    let signature =
        SIGNATURES.iter().find(|(at, with, _)| bytes.get(*at..).is_some_and(|b| b.starts_with(with)));
    if let Some((.., what)) = signature {
        return Failure::invalid(what);
    }
    let page = bytes.trim_ascii_start();
    let begins_with =
        |with: &str| page.get(..with.len()).is_some_and(|b| b.eq_ignore_ascii_case(with.as_bytes()));
    if ["<!doctype", "<html", "<head", "<?xml", "<error"].into_iter().any(begins_with) {
        return Failure::invalid("a page of HTML or XML: the download gave an error page");
    }
    let head = &bytes[..bytes.len().min(256)];
    let what = match bytes {
        [0x80, protocol @ 2..=5, ..] => {
            return Failure::invalid(format_args!(
                "a Python pickle of protocol {protocol}, which can run any code: load it where you trust it, \
                 and save the tensors as .safetensors"
            ));
        }
        _ if bytes.trim_ascii_start().starts_with(b"{") => "JSON",
        _ if bytes.iter().take(4096).all(|b| *b == 0) => "zeros",
        _ if is_text(head) => {
            let line = String::from_utf8_lossy(head).lines().next().unwrap_or_default().to_owned();
            let line: String = line.chars().take(60).collect();
            return Failure::invalid(format_args!(
                "not a gcodec stream, and no tensors: text, beginning with {line:?}; {known}"
            ));
        }
        _ => "bytes of no known kind",
    };
    let begins: Vec<String> = bytes.iter().take(8).map(|b| format!("{b:02x}")).collect();
    Failure::invalid(format_args!(
        "not a gcodec stream, and no tensors: {what}, beginning with {}; {known}",
        begins.join(" ")
    ))
}

fn is_text(bytes: &[u8]) -> bool {
    // A character may be cut at the end.
    let valid = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(e) if e.error_len().is_none() => {
            return is_text(&bytes[..e.valid_up_to()]) && e.valid_up_to() > 0;
        }
        Err(_) => return false,
    };
    !valid.contains(|c: char| c.is_control() && !c.is_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    #[test]
    fn kinds_are_told_by_content() {
        assert_eq!(Kind::of(&MAGIC).unwrap(), Kind::Stream);
        assert_eq!(Kind::of(b"\x93NUMPY\x01\0").unwrap(), Kind::Npy);
        assert_eq!(Kind::of(b"GGUF\x03\0\0\0").unwrap(), Kind::Gguf);
        assert_eq!(Kind::of(b"\x08\0\0\0\0\0\0\0{      }").unwrap(), Kind::Safetensors);
        assert_eq!(Kind::of(b"{\"metadata\": {}, \"weight_map\": {}}").unwrap(), Kind::Shards);
        assert_eq!(Kind::of(include_bytes!("../../fixtures/stored.npz")).unwrap(), Kind::Npz);
        assert_eq!(Kind::of(include_bytes!("../../fixtures/state.pt")).unwrap(), Kind::Torch);
        assert_eq!(Kind::of(b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.").unwrap(), Kind::Torch);
        // One wrong bit in the magic does not make it another kind.
        let mut damaged = [0; 20];
        damaged[..8].copy_from_slice(&MAGIC);
        damaged[16..].copy_from_slice(&SYNC);
        damaged[3] ^= 4;
        assert_eq!(Kind::of(&damaged).unwrap(), Kind::Stream);
    }

    #[test]
    fn other_kinds_are_named_with_what_to_do() {
        let cases: [(&[u8], &str); 9] = [
            (b"", "empty"),
            (b"\x1f\x8b\x08", "gunzip"),
            (b"\x1c\0\0\0ET12", "ExecuTorch"),
            (b"\x80\x04\x95", "pickle of protocol 4"),
            (b"{\"a\": 1}", "JSON"),
            (b"hello world", "text"),
            (&[0; 5000], "zeros"),
            (b"version https://git-lfs.github.com/spec/v1", "git lfs pull"),
            (b"\xff\xfe\xfd", "ff fe fd"),
        ];
        for (bytes, part) in cases {
            let failure = Kind::of(bytes).unwrap_err();
            assert!(failure.message.contains(part), "{failure}");
        }
        // A text is told by its beginning.
        let long = [&b"hello ".repeat(100)[..], &[0xff; 100]].concat();
        assert!(Kind::of(&long).unwrap_err().message.contains("text, beginning with \"hello"));
        let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
        zip.start_file("readme.txt", zip::write::SimpleFileOptions::default()).unwrap();
        let bytes = zip.finish().unwrap().into_inner();
        let failure = Kind::of(&bytes).unwrap_err();
        assert!(
            failure.message.contains("without data.pkl") && failure.message.contains("readme.txt"),
            "{failure}"
        );
    }
}
