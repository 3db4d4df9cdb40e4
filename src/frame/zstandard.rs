//! Zstandard frames (RFC 8878): by zstd's own library, and where no C compiler reaches, by one in Rust.

#[cfg(not(all(target_family = "wasm", target_os = "unknown")))]
pub(super) use native::{content_size, decode, encode};
#[cfg(all(target_family = "wasm", target_os = "unknown"))]
pub(super) use portable::{content_size, decode, encode};

#[cfg(not(all(target_family = "wasm", target_os = "unknown")))]
mod native {
    use std::io::Read;

    /// Largest window that zstd accepts on this machine; the caller limits the window of each frame.
    const WINDOW_LOG_MAX: u32 = if usize::BITS < 64 { 30 } else { 31 };

    /// zstd level for metadata and models, which are small and sent once.
    const LEVEL: i32 = 9;

    /// Returns the bytes that a frame declares to hold, if it does; `None` if it is no frame.
    pub(crate) fn content_size(compressed: &[u8]) -> Option<Option<u64>> {
        zstd::zstd_safe::get_frame_content_size(compressed).ok()
    }

    /// Decodes the first frame, at most `most` bytes; returns them and the number of bytes behind the frame.
    /// Memory grows with the decoded bytes.
    pub(crate) fn decode(compressed: &[u8], most: u64) -> Option<(Vec<u8>, usize)> {
        let mut plain = Vec::new();
        let mut decoder = zstd::stream::read::Decoder::with_buffer(compressed).ok()?.single_frame();
        decoder.window_log_max(WINDOW_LOG_MAX).ok()?;
        Read::take(&mut decoder, most).read_to_end(&mut plain).ok()?;
        Some((plain, decoder.finish().len()))
    }

    pub(crate) fn encode(plain: &[u8]) -> Option<Vec<u8>> {
        zstd::bulk::compress(plain, LEVEL).ok()
    }
}

#[cfg(all(target_family = "wasm", target_os = "unknown"))]
mod portable {
    use ruzstd::decoding::StreamingDecoder;
    use std::io::Read;

    /// See the native form. This decoder finds the size, and a wrong header, while it decodes.
    pub(crate) fn content_size(_: &[u8]) -> Option<Option<u64>> {
        Some(None)
    }

    /// See the native form.
    pub(crate) fn decode(compressed: &[u8], most: u64) -> Option<(Vec<u8>, usize)> {
        let (mut rest, mut plain) = (compressed, Vec::new());
        let mut decoder = StreamingDecoder::new(&mut rest).ok()?;
        Read::take(&mut decoder, most).read_to_end(&mut plain).ok()?;
        let frame = decoder.into_frame_decoder();
        let declared = frame.content_size();
        let is_sound = frame.is_finished()
            && (declared == 0 || declared == plain.len() as u64)
            && frame.get_checksum_from_data().is_none_or(|sum| frame.get_calculated_checksum() == Some(sum));
        is_sound.then_some((plain, rest.len()))
    }

    /// Nothing: what is written without compression can be read everywhere.
    pub(crate) fn encode(_: &[u8]) -> Option<Vec<u8>> {
        None
    }
}
