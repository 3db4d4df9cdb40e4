//! Reports on streams: frames, tensors and blocks, as far as a stream can be read.

use std::ffi::c_char;

use gcodec::block::Scope;
use gcodec::file::report::{self, BlockReport, Detail, UpdateReport};
use gcodec::frame::UpdatePart;
use gcodec::reduce::stats::StatsOptions;
use gcodec::stream::FrameInfo;

use crate::error::{Failure, Result, call, gcodec_error, gcodec_status};
use crate::handle::{self, Content};
use crate::options::gcodec_limits;
use crate::tensor::{Text, gcodec_header, gcodec_tensor};
use crate::{GCODEC_UNKNOWN, given, threads};

/// A report on a stream. It does not change after it was made.
pub struct gcodec_report {
    _opaque: [u8; 0],
}

/// How much a report contains.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct gcodec_summary {
    /// Bytes of the stream.
    pub bytes: u64,
    /// Segments that end.
    pub segments: u64,
    /// Number of frames.
    pub frames: usize,
    /// Number of updates.
    pub updates: usize,
    /// Number of blocks of all updates together.
    pub blocks: usize,
}

/// A frame of a stream.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gcodec_frame {
    /// Number of the frame.
    pub number: u64,
    /// Offset of its header in the stream.
    pub offset: u64,
    /// Bytes of header and body.
    pub bytes: u64,
    /// Number of its kind in the registry.
    pub kind: u32,
    /// Name of its kind in the registry, lent, or NULL if the kind is not known.
    pub kind_name: *const c_char,
}

/// A block of an update.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gcodec_block {
    /// Number of the block's update in the report.
    pub update: usize,
    /// Number of its frame in the stream.
    pub frame: u64,
    /// Number of its first tensor in the update.
    pub tensor: u64,
    /// Number of tensors that it spans.
    pub tensors: u64,
    /// First element that it spans, inside of the first tensor.
    pub start: u64,
    /// Number of elements that it spans.
    pub elements: u64,
    /// Number of elements that it has values for.
    pub kept: u64,
    /// Bytes of the block.
    pub bytes: u64,
    /// Bytes of its positions.
    pub support_bytes: u64,
    /// Bytes of its values.
    pub values_bytes: u64,
    /// Kind of its positions, by its name in the registry, lent.
    pub support: *const c_char,
    /// Kind of its values, by its name in the registry, lent.
    pub values: *const c_char,
}

/// A report, and the texts that it lends.
pub(crate) struct Report {
    summary: gcodec_summary,
    frames: Vec<(FrameInfo, Option<Text>)>,
    updates: Vec<Update>,
    /// The number of each block's update, and its kinds of positions and values.
    blocks: Vec<(usize, BlockReport, [Text; 2])>,
}

struct Update {
    report: UpdateReport,
    label: Text,
    names: Vec<Text>,
}

/// A row for each block, without statistics.
struct Blocks;

impl Detail for Blocks {
    type Error = gcodec::Error;

    fn stats(&self, _: &UpdatePart<'_>) -> Option<StatsOptions> {
        None
    }
}

impl Content for Report {
    type Opaque = gcodec_report;
    const TAG: u32 = u32::from_le_bytes(*b"GCre");
    const NAME: &'static str = "report";
}

impl Report {
    fn new(report: report::Report) -> Self {
        let frames = report.frames.into_iter().map(|frame| (frame, frame.header.kind.name().map(Text::new)));
        let frames: Vec<_> = frames.collect();
        let (mut updates, mut blocks) = (Vec::new(), Vec::new());
        for mut update in report.updates {
            let rows = std::mem::take(&mut update.block_rows).into_iter();
            let kinds = |row: &BlockReport| [row.support.to_string(), row.values.to_string()];
            blocks.extend(rows.map(|row| (updates.len(), row, kinds(&row).map(|kind| Text::new(&kind)))));
            updates.push(Update {
                label: Text::new(&update.header.label),
                names: update.manifest.tensors().iter().map(|t| Text::new(&t.name)).collect(),
                report: update,
            });
        }
        let summary = gcodec_summary {
            bytes: report.bytes,
            segments: report.segments,
            frames: frames.len(),
            updates: updates.len(),
            blocks: blocks.len(),
        };
        Self { summary, frames, updates, blocks }
    }
}

/// Returns an item by its number.
fn item<'a, T>(items: &'a [T], index: usize, what: &str) -> Result<&'a T> {
    items.get(index).ok_or_else(|| Failure::input(format!("no {what} {index}: there are {}", items.len())))
}

/// Reads a whole stream, during the call only, and decodes every block. The caller frees the report with
/// `gcodec_report_free`. If the stream is damaged, the call returns the first error, and the report has all
/// that could be read; `out` is NULL only after `GCODEC_STATUS_INPUT` or `GCODEC_STATUS_PANIC` about the
/// arguments. `limits`: NULL means the defaults. A report takes a few hundred bytes for each frame and block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_report_new(
    bytes: *const u8,
    count: usize,
    limits: *const gcodec_limits,
    out: *mut *mut gcodec_report,
    error: *mut gcodec_error,
) -> gcodec_status {
    // SAFETY: the caller gives bytes, limits or null, and places for a handle and for an error, or null.
    unsafe {
        call(error, || {
            given::place(out)?.set(std::ptr::null_mut());
            let bytes = given::items(bytes, count, "bytes")?;
            let limits = gcodec_limits::get(limits)?;
            let (report, found) = threads::run(|| Ok(report::Report::of(bytes, limits, &Blocks)))?;
            given::place(out)?.set(handle::new(Report::new(report)));
            found.map_or(Ok(()), |error| Err(error.into()))
        })
    }
}

/// Writes how much the report contains to `out`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_report_summary(
    report: *const gcodec_report,
    out: *mut gcodec_summary,
    error: *mut gcodec_error,
) -> gcodec_status {
    // SAFETY: the caller gives a live handle, a place for the result, and one for an error, or null.
    unsafe {
        call(error, || {
            let out = given::place(out)?;
            handle::with(report, |report: &mut Report| {
                out.set(report.summary);
                Ok(())
            })
        })
    }
}

/// Writes a frame to `out`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_report_frame(
    report: *const gcodec_report,
    index: usize,
    out: *mut gcodec_frame,
    error: *mut gcodec_error,
) -> gcodec_status {
    // SAFETY: the caller gives a live handle, a place for the result, and one for an error, or null.
    unsafe {
        call(error, || {
            let out = given::place(out)?;
            handle::with(report, |report: &mut Report| {
                let (frame, name) = item(&report.frames, index, "frame")?;
                out.set(gcodec_frame {
                    number: frame.number,
                    offset: frame.offset,
                    bytes: frame.len(),
                    kind: frame.header.kind.0.into(),
                    kind_name: name.as_ref().map_or(std::ptr::null(), Text::as_ptr),
                });
                Ok(())
            })
        })
    }
}

/// Writes the header of an update to `header`, and the number of its tensors to `tensors`. The label is lent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_report_update(
    report: *const gcodec_report,
    index: usize,
    header: *mut gcodec_header,
    tensors: *mut usize,
    error: *mut gcodec_error,
) -> gcodec_status {
    // SAFETY: the caller gives a live handle, places for the results, and one for an error, or null.
    unsafe {
        call(error, || {
            let (header, tensors) = (given::place(header)?, given::place(tensors)?);
            handle::with(report, |report: &mut Report| {
                let update = item(&report.updates, index, "update")?;
                header.set(gcodec_header::of(&update.report.header, &update.label));
                tensors.set(update.names.len());
                Ok(())
            })
        })
    }
}

/// Writes a tensor of an update to `out`. Name and shape are lent; `data` is NULL, and `bytes` is what its
/// elements would take.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_report_tensor(
    report: *const gcodec_report,
    update: usize,
    index: usize,
    out: *mut gcodec_tensor,
    error: *mut gcodec_error,
) -> gcodec_status {
    // SAFETY: the caller gives a live handle, a place for the result, and one for an error, or null.
    unsafe {
        call(error, || {
            let out = given::place(out)?;
            handle::with(report, |report: &mut Report| {
                let update = item(&report.updates, update, "update")?;
                let info = item(update.report.manifest.tensors(), index, "tensor")?;
                let name = item(&update.names, index, "tensor")?;
                out.set(gcodec_tensor {
                    name: name.as_ptr(),
                    name_len: name.len(),
                    data: std::ptr::null(),
                    bytes: usize::try_from(info.bytes()).unwrap_or(usize::MAX),
                    shape: info.shape.as_ptr(),
                    rank: info.shape.len(),
                    dtype: info.dtype.id().into(),
                });
                Ok(())
            })
        })
    }
}

/// Writes a block to `out`. Its texts are lent. `kept` is `GCODEC_UNKNOWN` if the block is damaged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_report_block(
    report: *const gcodec_report,
    index: usize,
    out: *mut gcodec_block,
    error: *mut gcodec_error,
) -> gcodec_status {
    // SAFETY: the caller gives a live handle, a place for the result, and one for an error, or null.
    unsafe {
        call(error, || {
            let out = given::place(out)?;
            handle::with(report, |report: &mut Report| {
                let (update, block, [support, values]) = item(&report.blocks, index, "block")?;
                let start = match block.scope {
                    Scope::Range { start, .. } => start,
                    _ => 0,
                };
                out.set(gcodec_block {
                    update: *update,
                    frame: block.frame,
                    tensor: block.scope.first(),
                    tensors: block.scope.tensors(),
                    start,
                    elements: block.elements,
                    kept: block.kept.unwrap_or(GCODEC_UNKNOWN),
                    bytes: block.bytes,
                    support_bytes: block.support_bytes,
                    values_bytes: block.values_bytes,
                    support: support.as_ptr(),
                    values: values.as_ptr(),
                });
                Ok(())
            })
        })
    }
}

/// Frees a report and all that it was lending. Does nothing for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_report_free(report: *mut gcodec_report) {
    // SAFETY: the caller gives a live handle, or null.
    unsafe { handle::free::<Report>(report) };
}
