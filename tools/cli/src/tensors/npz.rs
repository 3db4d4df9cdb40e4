//! `.npz`: a zip archive with one `.npy` file for each array, stored or deflated.

use super::label::{Form, Label, Labels};
use super::{Data, Dump, Opaque, Outline, Source, archive, check_unique, npy, quoted};
use crate::fail::{Failure, Result};
use crate::input::Input;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::sync::Arc;
use zip::read::ZipFile;
use zip::result::ZipError;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// Reads all arrays, in the order of the archive.
///
/// `left`: most bytes of all arrays together, unpacked; reduced by those that it has. An archive can unpack
/// to a thousand times its size, so memory is allocated as the bytes arrive, up to this limit. Stored arrays
/// stay in the input.
pub(super) fn read(input: &Arc<Input>, left: &mut u64) -> Result<Dump> {
    let mut archive = archive::open(&**input)?;
    if archive.has_duplicate_names() {
        return Err(Failure::invalid("two entries of the archive have one name"));
    }
    let (mut dump, max_bytes) = (Dump::default(), *left);
    for i in 0..archive.len() {
        let mut entry = archive.by_index(i).map_err(Failure::invalid)?;
        let file_name = entry.name().map_err(Failure::invalid)?.into_owned();
        if entry.is_dir() && entry.size() == 0 {
            continue;
        }
        let name = file_name.strip_suffix(".npy").unwrap_or(&file_name);
        let (input, range) = match stored(input, &mut entry).map_err(|e| e.about(quoted(name)))? {
            Some(range) => (Arc::clone(input), range),
            None => {
                let bytes = read_entry(&mut entry, *left, max_bytes).map_err(|e| e.about(quoted(name)))?;
                *left -= bytes.len() as u64;
                let range = 0..bytes.len() as u64;
                (Arc::new(Input::Owned(bytes)), range)
            }
        };
        if name.len() < file_name.len() {
            npy::read_entry(&input, range, name.to_owned(), &mut dump).map_err(|e| e.about(quoted(name)))?;
            continue;
        }
        let opaque = Opaque::new(file_name, "file", None, range.end - range.start, "a file that is no array");
        dump.opaque.push(opaque.with_data(Data::shared(&input, range)).with_form(Form::File));
    }
    // `x.npy` and a file `x` would be one tensor.
    check_unique(dump.names(), Failure::invalid)?;
    Ok(dump)
}

/// Writes arrays in the order given, uncompressed: gcodec is the compressor here.
pub(crate) fn write(
    out: &mut impl Write,
    tensors: &[Outline<'_>],
    labels: &Labels,
    source: &mut Source<'_>,
) -> Result<()> {
    check_unique(tensors.iter().map(|tensor| tensor.name), Failure::usage)?;
    let is_file = |tensor: &Outline<'_>| labels.find(tensor).is_some_and(Label::is_file);
    let headers = tensors.iter().map(|tensor| match is_file(tensor) {
        true => Ok((tensor.name.to_owned(), Vec::new())),
        false => {
            let header = npy::header(tensor, labels).map_err(|e| e.about(quoted(tensor.name)))?;
            Ok((format!("{}.npy", tensor.name), header))
        }
    });
    let headers = headers.collect::<Result<Vec<_>>>()?;
    // With sizes after the data, no seeking is needed; 64-bit sizes, as `np.savez` writes them.
    let mut archive = ZipWriter::new_stream(out);
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored).large_file(true);
    let (mut next, mut begun) = (headers.into_iter(), None);
    source(&mut |name, bytes| {
        if begun != Some(name.to_owned())
            && let Some((file_name, header)) = next.next()
        {
            archive.start_file(file_name, options).map_err(write_failure)?;
            archive.write_all(&header)?;
            begun = Some(name.to_owned());
        }
        Ok(archive.write_all(bytes)?)
    })?;
    archive.finish().map_err(write_failure)?;
    Ok(())
}

/// Returns where a stored entry lies in the input, after checking its CRC; `None` if it is deflated. Of an
/// input that is read by ranges, [`check`] does that, which reads all of it.
fn stored<R: Read>(input: &Input, entry: &mut ZipFile<'_, R>) -> Result<Option<Range<u64>>> {
    if entry.compression() != CompressionMethod::Stored {
        return Ok(None);
    }
    let len = match input.held() {
        Some(_) => io::copy(entry, &mut io::sink()).map_err(Failure::invalid)?,
        None => entry.size(),
    };
    let place = |start: u64| Some(start..start.checked_add(len)?);
    let range = entry.data_start().and_then(place).filter(|range| range.end <= input.len());
    range.map(Some).ok_or_else(|| Failure::invalid("an entry of the archive has no data"))
}

/// Compares the checksums of stored entries, which reads all of them.
pub(crate) fn check(input: &Input) -> Result<()> {
    let mut archive = archive::open(input)?;
    for i in 0..archive.len() {
        let mut entry = archive.by_index(i).map_err(Failure::invalid)?;
        if entry.compression() == CompressionMethod::Stored {
            let name = entry.name().map_err(Failure::invalid)?.into_owned();
            let name = name.strip_suffix(".npy").unwrap_or(&name);
            io::copy(&mut entry, &mut io::sink()).map_err(|e| Failure::invalid(e).about(quoted(name)))?;
        }
    }
    Ok(())
}

fn read_entry(entry: &mut impl Read, left: u64, max_bytes: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // The whole archive is in memory, so an error is one of its contents.
    entry.take(left.saturating_add(1)).read_to_end(&mut bytes).map_err(Failure::invalid)?;
    if bytes.len() as u64 > left {
        return Err(Failure::limit(format_args!("the archive unpacks to more than {max_bytes} bytes")));
    }
    Ok(bytes)
}

fn write_failure(e: ZipError) -> Failure {
    match e {
        ZipError::Io(e) => e.into(),
        // A name too long, too many entries.
        e => Failure::usage(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fail::Code;
    use crate::input::DEFAULT_MAX_BYTES;
    use crate::tensors::with_source;
    use gcodec::tensor::{Dtype, TensorBuf};
    use std::io::Cursor;

    fn parse(bytes: &[u8], mut max_bytes: u64) -> Result<Dump> {
        read(&Arc::new(Input::Owned(bytes.to_vec())), &mut max_bytes)
    }

    fn npy(tensor: &TensorBuf) -> Vec<u8> {
        let mut bytes = Vec::new();
        with_source(&[("", tensor.view())], |one, source| {
            npy::write(&mut bytes, &one[0], &Labels::default(), source)
        })
        .unwrap();
        bytes
    }

    fn archive(entries: &[(&str, &[u8])], method: CompressionMethod) -> Vec<u8> {
        let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
        for (name, bytes) in entries {
            zip.start_file(*name, SimpleFileOptions::default().compression_method(method)).unwrap();
            zip.write_all(bytes).unwrap();
        }
        zip.finish().unwrap().into_inner()
    }

    #[test]
    fn stored_and_deflated_entries_come_in_order() {
        let a = TensorBuf::from_f32(vec![2, 2], &[1.0, 2.0, 3.0, 4.0]).unwrap();
        let b = TensorBuf::from_f32(vec![1000], &[0.5; 1000]).unwrap();
        for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
            let bytes = archive(&[("z.npy", &npy(&a)), ("dir/a.npy", &npy(&b))], method);
            let dump = parse(&bytes, DEFAULT_MAX_BYTES).unwrap();
            let read: Vec<_> = dump.tensors.iter().map(|t| (t.name(), t.view())).collect();
            assert_eq!(read, [("z", a.view()), ("dir/a", b.view())]);
        }
    }

    #[test]
    fn numpys_own_files_are_read() {
        let w = TensorBuf::from_f32(vec![2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
        let b = TensorBuf::new(Dtype::Bool, vec![], vec![1]).unwrap();
        let empty = TensorBuf::new(Dtype::F64, vec![0, 3], vec![]).unwrap();
        let files = [
            &include_bytes!("../../fixtures/stored.npz")[..],
            include_bytes!("../../fixtures/compressed.npz"),
        ];
        for bytes in files {
            let dump = parse(bytes, DEFAULT_MAX_BYTES).unwrap();
            let read: Vec<_> = dump.tensors.iter().map(|t| (t.name(), t.view())).collect();
            assert_eq!(read, [("w", w.view()), ("b", b.view()), ("empty", empty.view())]);
        }
    }

    #[test]
    fn a_bomb_is_stopped() {
        let zeros = TensorBuf::new(Dtype::U8, vec![1 << 20], vec![0; 1 << 20]).unwrap();
        let bytes = archive(&[("a.npy", &npy(&zeros)), ("b.npy", &npy(&zeros))], CompressionMethod::Deflated);
        assert!(bytes.len() < 10_000);
        let whole = 2 * npy(&zeros).len() as u64;
        assert!(parse(&bytes, whole).is_ok());
        for max_bytes in [0, 1 << 20, whole - 1] {
            assert_eq!(parse(&bytes, max_bytes).unwrap_err().code, Code::Limit);
        }
    }

    #[test]
    fn damage_is_found() {
        let tensor = TensorBuf::from_f32(vec![4], &[1.0, 2.0, 3.0, 4.0]).unwrap();
        let mut written = Vec::new();
        with_source(&[("t", tensor.view())], |all, source| {
            write(&mut written, all, &Labels::default(), source)
        })
        .unwrap();
        let deflated = archive(&[("t.npy", &npy(&tensor))], CompressionMethod::Deflated);
        for bytes in [written, deflated] {
            assert!(parse(&bytes, DEFAULT_MAX_BYTES).is_ok());
            for len in 0..bytes.len() {
                assert_eq!(parse(&bytes[..len], DEFAULT_MAX_BYTES).unwrap_err().code, Code::Invalid, "{len}");
            }
            for bit in 0..bytes.len() * 8 {
                let mut damaged = bytes.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                if let Ok(dump) = parse(&damaged, DEFAULT_MAX_BYTES) {
                    assert!(dump.tensors.iter().all(|t| t.view() == tensor.view()), "bit {bit}");
                }
            }
        }
    }

    #[test]
    fn other_files_are_opaque_and_damaged_arrays_refused() {
        let array = npy(&TensorBuf::from_f32(vec![1], &[1.0]).unwrap());
        let entries =
            [("a.npy", &array[..]), ("dir/", b""), ("dir/readme.txt", b"hello"), ("dir/b.npy", &array)];
        let dump = parse(&archive(&entries, CompressionMethod::Deflated), DEFAULT_MAX_BYTES).unwrap();
        assert_eq!(dump.names().collect::<Vec<_>>(), ["a", "dir/b", "dir/readme.txt"]);
        assert_eq!((&*dump.opaque[0].dtype, dump.opaque[0].bytes), ("file", 5));
        for (entries, message) in [
            (&[("a.npy", &b"hello"[..])][..], "tensor \"a\": not a .npy"),
            (&[("a.npy", &[&array[..], &array].concat())], "bytes behind"),
            (&[("a.npy", &array), ("a", b"hello")], "\"a\" occurs twice"),
        ] {
            let failure = parse(&archive(entries, CompressionMethod::Stored), DEFAULT_MAX_BYTES).unwrap_err();
            assert_eq!(failure.code, Code::Invalid);
            assert!(failure.message.contains(message), "{failure}");
        }
        assert!(parse(&archive(&[], CompressionMethod::Stored), 0).unwrap().tensors.is_empty());
    }

    #[test]
    fn one_name_is_written_once() {
        let tensor = TensorBuf::from_f32(vec![], &[1.0]).unwrap();
        let twice = [("t", tensor.view()), ("t", tensor.view())];
        let written =
            with_source(&twice, |all, source| write(&mut Vec::new(), all, &Labels::default(), source));
        assert_eq!(written.unwrap_err().code, Code::Usage);
    }
}
