//! The bytes of a tensor: held, in a mapped file, or in one that is read by ranges.

use super::chunked::Chunked;
use crate::input::Input;
use std::borrow::Cow;
use std::ops::{Deref, Range};
use std::sync::{Arc, OnceLock};

/// A tensor's bytes: owned, a part of the file, made of such a part, or in several chunks.
#[derive(Debug)]
pub(super) enum Data {
    Owned(Vec<u8>),
    Shared(Shared),
    Later(Later),
    Chunked(Box<Chunked>),
}

/// A part of the file.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) input: Arc<Input>,
    pub(super) range: Range<u64>,
    /// The bytes, if the file is read by ranges and they were asked for whole.
    read: OnceLock<Vec<u8>>,
}

/// Bytes that are put together when they are first read.
pub(super) struct Later {
    len: u64,
    make: Box<dyn Fn() -> Vec<u8> + Send + Sync>,
    made: OnceLock<Vec<u8>>,
}

impl Data {
    /// Returns the bytes of a range, which lies in the input.
    pub(super) fn shared(input: &Arc<Input>, range: Range<u64>) -> Self {
        Self::Shared(Shared { input: Arc::clone(input), range, read: OnceLock::new() })
    }

    /// Returns `len` bytes that `make` puts together: now if the input is held, and when they are first read
    /// if it is read by ranges.
    pub(super) fn made(
        input: &Arc<Input>,
        len: u64,
        make: impl Fn(&Input) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        if input.held().is_some() {
            return Self::Owned(make(input));
        }
        let input = Arc::clone(input);
        Self::later(len, move || make(&input))
    }

    /// Returns `len` bytes that `make` puts together when they are first read.
    pub(super) fn later(len: u64, make: impl Fn() -> Vec<u8> + Send + Sync + 'static) -> Self {
        Self::Later(Later { len, make: Box::new(make), made: OnceLock::new() })
    }

    /// Returns the number of bytes, without reading them.
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Owned(bytes) => bytes.len() as u64,
            Self::Shared(shared) => shared.range.end - shared.range.start,
            Self::Later(later) => later.len,
            Self::Chunked(chunked) => chunked.len(),
        }
    }

    /// Whether the bytes lie one after another in a file that is read by ranges.
    pub(super) fn is_elsewhere(&self) -> bool {
        match self {
            Self::Shared(shared) => shared.input.held().is_none(),
            Self::Chunked(chunked) => chunked.alone().is_some_and(Self::is_elsewhere),
            Self::Owned(_) | Self::Later(_) => false,
        }
    }

    /// Returns the bytes of a range, and keeps none that are read for it.
    pub(super) fn part(&self, range: Range<u64>) -> Cow<'_, [u8]> {
        match self {
            Self::Shared(Shared { input, range: all, read }) if read.get().is_none() => {
                input.slice(all.start + range.start..all.start + range.end)
            }
            Self::Chunked(chunked) if self.is_elsewhere() => match chunked.alone() {
                Some(chunk) => chunk.part(range),
                None => Cow::Borrowed(&[]),
            },
            held => Cow::Borrowed(&held[range.start as usize..range.end as usize]),
        }
    }

    /// Returns all bytes, and keeps none that are read for it.
    pub(super) fn read(&self) -> Cow<'_, [u8]> {
        match self {
            Self::Later(later) if later.made.get().is_none() => Cow::Owned((later.make)()),
            Self::Chunked(chunked) => chunked.read(),
            other => other.part(0..other.len()),
        }
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::Owned(bytes) => bytes,
            Self::Chunked(chunked) => chunked.into_bytes(),
            other => other.read().into_owned(),
        }
    }
}

impl Deref for Data {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Owned(bytes) => bytes,
            // The range was checked against the input when it was made.
            Self::Shared(Shared { input, range, read }) => match input.held() {
                Some(bytes) => &bytes[range.start as usize..range.end as usize],
                None => read.get_or_init(|| input.slice(range.clone()).into_owned()),
            },
            Self::Later(later) => later.made.get_or_init(&later.make),
            Self::Chunked(chunked) => chunked.bytes(),
        }
    }
}

impl std::fmt::Debug for Later {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Later").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use crate::input::{Input, Ranges};
    use crate::tensors::kind::Kind;
    use crate::tensors::{Dump, NamedTensor, npz};
    use gcodec::reduce::stats::{Stats, StatsOptions};
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Returns an input that reads these bytes by ranges, and counts them.
    fn by_ranges(bytes: &[u8]) -> (Input, Arc<AtomicU64>) {
        let (bytes, len, read) = (bytes.to_vec(), bytes.len() as u64, Arc::new(AtomicU64::new(0)));
        let counted = Arc::clone(&read);
        let read_at = move |at: u64, out: &mut [u8]| {
            counted.fetch_add(out.len() as u64, Ordering::Relaxed);
            out.copy_from_slice(&bytes[at as usize..at as usize + out.len()]);
        };
        (Input::Ranges(Ranges::new(len, Box::new(read_at))), read)
    }

    fn parse(input: Input) -> Result<Dump, String> {
        let kind = Kind::of(&input).map_err(|e| e.message)?;
        Dump::parse(kind, input, Path::new("t")).map_err(|e| e.message)
    }

    /// Whether both readings have the same tensors, statistics and messages.
    fn check(bytes: &[u8], what: &str) {
        let (input, _) = by_ranges(bytes);
        let checked = match Kind::of(&input) {
            Ok(Kind::Npz) => npz::check(&input).map_err(|e| e.message),
            _ => Ok(()),
        };
        match (parse(Input::Owned(bytes.to_vec())), checked.and_then(|()| parse(input))) {
            (Ok(held), Ok(read)) => {
                let options = StatsOptions::default().with_grid(true);
                let rows = |dump: &Dump| -> Vec<(String, u64, Stats)> {
                    let row = |t: &NamedTensor| (t.name.clone(), t.data.len(), t.stats(&options));
                    dump.tensors.iter().map(row).collect()
                };
                assert_eq!(format!("{:?}", rows(&held)), format!("{:?}", rows(&read)), "{what}");
                let opaque = |dump: &Dump| -> Vec<String> {
                    let row = |t: &crate::tensors::Opaque| {
                        format!("{} {:?} {:?}", t.name, t.bytes, t.stats(&options))
                    };
                    dump.opaque.iter().map(row).collect()
                };
                assert_eq!(opaque(&held), opaque(&read), "{what}");
                for (held, read) in held.tensors.iter().zip(&read.tensors) {
                    assert_eq!(held.view(), read.view(), "{what}");
                    assert_eq!(held.bytes(), read.bytes(), "{what}");
                }
            }
            (Err(held), Err(read)) => assert_eq!(held, read, "{what}"),
            (held, read) => panic!("{what}: {:?} or {:?}", held.err(), read.err()),
        }
    }

    #[test]
    fn files_that_are_read_by_ranges_are_the_same() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let (bytes, what) = (std::fs::read(&path).unwrap(), path.display().to_string());
            check(&bytes, &what);
            // Damaged and cut.
            for at in (0..bytes.len()).step_by(bytes.len() / 50 + 1) {
                let mut wrong = bytes.clone();
                wrong[at] ^= 0x11;
                check(&wrong, &format!("{what} with a wrong byte {at}"));
                check(&bytes[..at], &format!("{what} cut to {at}"));
            }
        }
    }

    #[test]
    fn a_large_file_is_opened_by_its_header() {
        let elements = 3u64 << 20;
        let header = format!(
            "{{\"a\":{{\"dtype\":\"F32\",\"shape\":[{elements}],\"data_offsets\":[0,{0}]}},\
            \"b\":{{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[{0},{1}]}}}}",
            elements * 4,
            elements * 4 + 4
        );
        let values: Vec<u8> = (0..elements).flat_map(|i| (i as f32).sqrt().to_le_bytes()).collect();
        let bytes =
            [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &values, &[1, 2, 3, 4]].concat();
        let (input, read) = by_ranges(&bytes);
        let dump = parse(input).unwrap();
        assert_eq!(dump.tensors.len(), 2);
        assert!(read.load(Ordering::Relaxed) <= 1 << 17, "{} bytes", read.load(Ordering::Relaxed));
        let held = parse(Input::Owned(bytes)).unwrap();
        let options = StatsOptions::default();
        assert_eq!(dump.tensors[0].stats(&options), held.tensors[0].stats(&options));
    }
}
