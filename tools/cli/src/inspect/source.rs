//! Opens what `inspect` looks at: streams, files of tensors, and folders of both.

use super::report::{MAX_GRIDS, Report, Totals, Wanted};
use super::tensor::Tensor;
use super::update::Update;
use crate::fail::{Failure, InFile, Result};
use crate::files;
use crate::input::{DEFAULT_MAX_BYTES, Input, Opened, Section, is_standard};
use crate::options::is_wanted;
use crate::order;
use crate::origin::Origin;
use crate::output::warn;
use crate::tensors::kind::{self, Kind};
use crate::tensors::torch::dcp;
use crate::tensors::{Dump, Opaque, Outline, folder, npz, shards};
use gcodec::Limits;
use gcodec::file::File;
use gcodec::reduce::stats::StatsOptions;
use rayon::prelude::*;
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// Returns the files of the arguments, in the order of the numbers in their names: a folder stands for the
/// files in it that are of a known kind.
pub(crate) fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for path in &order::arranged(paths) {
        match files::is_folder(path) {
            true => found.extend(files_in(path)?),
            false => found.push(path.clone()),
        }
    }
    Ok(found)
}

/// Returns the bytes of the arguments' files.
pub(crate) fn bytes(paths: &[PathBuf]) -> u64 {
    let len = |path: &Path| files::len(path).unwrap_or(0);
    let in_folder = |folder: &Path| -> u64 {
        files::entries(folder).unwrap_or_default().iter().map(|path| len(path)).sum()
    };
    let all = |path: &Path| match (files::is_folder(path), dcp::is_metadata_path(path), path.parent()) {
        (true, ..) => in_folder(path),
        // It stands for the files beside it.
        (_, true, Some(folder)) => in_folder(folder),
        _ => len(path),
    };
    paths.iter().map(|path| all(path)).sum()
}

fn files_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let (known, others) = folder::files_in(folder)?;
    if others > 0 {
        let s = if others == 1 { " is" } else { "s are" };
        warn(format_args!("{}: {others} other file{s} left out", folder.display()));
    }
    Ok(known)
}

/// Reads the file at `path`; `-` is standard input. The failure is the first fault of a stream, which does
/// not hide the rest of it.
pub(crate) fn read(path: &Path, wanted: &Wanted, limits: &Limits) -> Result<(Report, Option<Failure>)> {
    let (opened, path) = folder::open(path)?;
    let path = &*path;
    let (mut report, failure) = match opened {
        Opened::Pipe(pipe) if kind::is_stream(pipe.head()) => {
            Report::of(pipe.into_reader(), 0, wanted, limits)
        }
        Opened::Pipe(pipe) => {
            kind::refuse(pipe.head()).in_file(path)?;
            of_bytes(path, pipe.read_to_end(DEFAULT_MAX_BYTES).in_file(path)?, wanted, limits)
                .in_file(path)?
        }
        Opened::Whole(input) => of_bytes(path, input, wanted, limits).in_file(path)?,
    };
    report.file = if is_standard(path) { "standard input".to_owned() } else { path.display().to_string() };
    Ok((report, failure.map(|failure| failure.in_file(path))))
}

fn of_bytes(
    path: &Path,
    input: Input,
    wanted: &Wanted,
    limits: &Limits,
) -> Result<(Report, Option<Failure>)> {
    match kind::of_file(path, &input)? {
        Kind::Stream => Ok(match input.held() {
            Some(bytes) => of_stream(bytes, wanted, limits),
            None => Report::of(BufReader::new(Section::from(&input)), input.len(), wanted, limits),
        }),
        kind => {
            let mut bytes = input.len();
            let name = if kind == Kind::Shards { shards::kind_name(&input) } else { kind.name() };
            // Their checksums are compared while they are opened, unless they are read by ranges.
            if kind == Kind::Npz && !wanted.quick && input.held().is_none() {
                npz::check(&input)?;
            }
            let parse = if wanted.quick { Dump::parse_unread } else { Dump::parse };
            let dump = parse(kind, input, path)?;
            if matches!(kind, Kind::Shards | Kind::Distributed) {
                bytes += dump.tensors.iter().map(|t| Outline::from(t).bytes()).sum::<u64>();
                bytes += dump.opaque.iter().map(|t| t.bytes).sum::<u64>();
            }
            let failure = dump.fault();
            if failure.is_none() {
                dump.warn_of_opaque(path, "");
            }
            let report = of_dump(path, name, bytes, &dump, wanted);
            Ok((Report { ok: failure.is_none(), ..report }, failure))
        }
    }
}

fn of_stream(bytes: &[u8], wanted: &Wanted, limits: &Limits) -> (Report, Option<Failure>) {
    // A part of a finished stream is found by its index. If anything is wrong there, all of it is read.
    if (wanted.is_part() || wanted.quick)
        && wanted.frame.is_none()
        && let Ok(file) = File::open(bytes, limits.clone())
    {
        let report = match wanted.quick {
            true => Report::of_index(&file, bytes, wanted),
            false => Report::of_file(&file, bytes, wanted).ok(),
        };
        if let Some(report) = report {
            return (report, None);
        }
    }
    Report::of(bytes, bytes.len() as u64, wanted, limits)
}

/// Returns the report on a file of tensors: one update, with the step and the sender that the file says.
fn of_dump(path: &Path, kind: &'static str, bytes: u64, dump: &Dump, wanted: &Wanted) -> Report {
    let origin = Origin::of(dump, path);
    let mut report = Report { kind, bytes, ok: true, metadata: dump.metadata.clone(), ..Report::default() };
    if !wanted.update(origin.step, origin.sender) {
        return report;
    }
    let options = StatsOptions::default().with_grid(wanted.grid && dump.tensors.len() <= MAX_GRIDS);
    let is_wanted = |name: &str| is_wanted(wanted.tensor.as_ref(), name);
    let dense = dump.tensors.par_iter().filter(|t| is_wanted(t.name()));
    let mut rows: Vec<Tensor> = dense
        .map(|t| match wanted.quick {
            true => {
                // The elements of chunks are put together only where they are read.
                let outline = Outline::from(t);
                let mut row = Tensor::unread(outline.name, outline.dtype, outline.shape);
                row.value_bits = outline.bytes() as f64 * 8.0;
                row
            }
            false => Tensor::of_dense(t, &options),
        })
        .collect();
    let opaque = dump.opaque.iter().filter(|t| is_wanted(&t.name));
    let stats = |tensor: &Opaque| if wanted.quick { None } else { tensor.stats(&options) };
    rows.extend(opaque.map(|tensor| match stats(tensor) {
        Some(stats) => Tensor::of_values(tensor, stats),
        None => Tensor::of_opaque(tensor),
    }));
    for row in &mut rows {
        row.placement = dump.placements.get(&row.name).cloned();
    }
    let mut totals = Totals::default();
    let bytes = if wanted.tensor.is_some() { rows.iter().map(|t| t.source_bytes).sum() } else { bytes };
    report.updates.push(Update::of_tensors(origin, bytes, rows, wanted, &mut totals));
    report.totals = totals;
    report
}
