//! Limits of readers.

use gcodec::Limits;

use crate::error::{Result, call, gcodec_error, gcodec_status};
use crate::given;

/// Limits of a reader on memory and time. `gcodec_limits_default` fills it in.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gcodec_limits {
    /// Bytes in the body of one frame.
    pub max_frame_bytes: u64,
    /// Tensors in one manifest.
    pub max_tensors: u64,
    /// Dimensions of one tensor.
    pub max_rank: u64,
    /// Bytes in one tensor name.
    pub max_name_bytes: u64,
    /// Elements spanned by all blocks of one update part together, or by one index set.
    pub max_elements: u64,
    /// Bytes of memory for decoding one frame, beyond the bytes that have arrived.
    pub max_alloc_bytes: u64,
    /// Blocks in one update part.
    pub max_blocks: u64,
    /// Bytes of a decompressed metadata or model payload.
    pub max_inflated_bytes: u64,
    /// Manifests, index sets and models kept per stream, each.
    pub max_definitions: u64,
}

impl gcodec_limits {
    /// Returns the limits behind a pointer, or the defaults if it is null.
    ///
    /// # Safety
    /// `limits` is null or points to limits.
    pub(crate) unsafe fn get(limits: *const Self) -> Result<Limits> {
        // SAFETY: the caller's promise.
        let Some(given) = (unsafe { given::optional(limits, "limits") })? else {
            return Ok(Limits::default());
        };
        Ok(Limits::default()
            .with_max_frame_bytes(given.max_frame_bytes)
            .with_max_tensors(given.max_tensors)
            .with_max_rank(given.max_rank)
            .with_max_name_bytes(given.max_name_bytes)
            .with_max_elements(given.max_elements)
            .with_max_alloc_bytes(given.max_alloc_bytes)
            .with_max_blocks(given.max_blocks)
            .with_max_inflated_bytes(given.max_inflated_bytes)
            .with_max_definitions(given.max_definitions))
    }
}

/// Writes the default limits to `out`. Any thread may call it at any time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_limits_default(
    out: *mut gcodec_limits,
    error: *mut gcodec_error,
) -> gcodec_status {
    let body = || {
        let limits = Limits::default();
        let limits = gcodec_limits {
            max_frame_bytes: limits.max_frame_bytes,
            max_tensors: limits.max_tensors,
            max_rank: limits.max_rank,
            max_name_bytes: limits.max_name_bytes,
            max_elements: limits.max_elements,
            max_alloc_bytes: limits.max_alloc_bytes,
            max_blocks: limits.max_blocks,
            max_inflated_bytes: limits.max_inflated_bytes,
            max_definitions: limits.max_definitions,
        };
        // SAFETY: the caller gives a place for limits.
        unsafe { given::place(out)?.set(limits) };
        Ok(())
    };
    // SAFETY: the caller gives a place for an error, or null.
    unsafe { call(error, body) }
}
