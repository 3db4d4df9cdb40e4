//! Stream functions that the aggregator and the worker share.

use std::cell::Cell;
use std::io::{self, Read};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gcodec::Limits;
use gcodec::block::CodedBlock;
use gcodec::compress::{Codec, Feedback, Input, Options, compress};
use gcodec::frame::{Manifest, Metadata, UpdatePart};
use gcodec::stream::Assembler;

use crate::Result;
use crate::model::{Numbers, SHAPES};

/// Limits for a peer: enough for this network's dense tensors, 154 KB, and little more.
pub fn limits() -> Limits {
    Limits::default()
        .with_max_frame_bytes(1 << 20)
        .with_max_tensors(16)
        .with_max_name_bytes(64)
        .with_max_elements(1 << 18)
        .with_max_alloc_bytes(8 << 20)
        .with_max_blocks(64)
        .with_max_inflated_bytes(16 << 10)
        .with_max_definitions(4)
}

/// Compresses the numbers with a codec; the residual of a lossy codec stays in `feedback`.
///
/// # Errors
/// The errors of [`compress`].
pub fn blocks(
    numbers: &Numbers,
    codec: Codec,
    feedback: Option<&mut Feedback>,
) -> gcodec::Result<Vec<CodedBlock>> {
    let tensors = numbers.to_tensors()?;
    let named = SHAPES.iter().zip(&tensors).enumerate();
    let inputs: Vec<Input<'_>> = named
        .map(|(number, ((name, _), tensor))| Input {
            tensor: number as u64,
            name,
            view: tensor.view(),
            base: None,
        })
        .collect();
    compress(&inputs, &[codec; SHAPES.len()], &Options::default(), feedback)
}

/// Decodes an update, which has one part like all updates of this network.
///
/// # Errors
/// If it has another manifest or several parts, and the errors of [`Assembler`].
pub fn numbers(part: &UpdatePart<'_>, manifest: &Arc<Manifest>) -> Result<Numbers> {
    if part.manifest.id() != manifest.id() {
        return Err("an update of another network's tensors".into());
    }
    if part.part != 0 || !part.last {
        return Err("an update in several parts".into());
    }
    let mut assembler = Assembler::new(manifest, &limits(), |_| true)?;
    assembler.apply(part)?;
    let tensors: Vec<_> = assembler.finish()?.into_iter().map(|(_, tensor)| tensor).collect();
    Numbers::from_tensors(&tensors)
}

/// Returns a metadata frame with these entries.
pub fn metadata<const N: usize>(entries: [(&str, String); N]) -> Metadata {
    Metadata { entries: entries.map(|(key, value)| (key.to_owned(), value)).into() }
}

/// Reads from a socket up to a deadline, even if bytes arrive slowly one by one; without a deadline it waits
/// forever.
pub struct Timed<'a> {
    socket: &'a TcpStream,
    until: &'a Cell<Option<Instant>>,
}

impl<'a> Timed<'a> {
    /// Returns a reader with the deadline `until`.
    pub fn new(socket: &'a TcpStream, until: &'a Cell<Option<Instant>>) -> Self {
        Self { socket, until }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = match self.until.get().map(|until| until.saturating_duration_since(Instant::now())) {
            Some(Duration::ZERO) => return Err(io::ErrorKind::TimedOut.into()),
            left => left,
        };
        self.socket.set_read_timeout(left)?;
        self.socket.read(buffer)
    }
}
