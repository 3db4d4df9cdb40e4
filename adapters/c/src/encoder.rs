//! The encoder: updates in, bytes of a stream out.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_char, c_void};
use std::mem;
use std::sync::Arc;

use gcodec::block::PendingBlock;
use gcodec::block::Profile;
use gcodec::compress::{Digests, Input, NonFinite, Options, compress, deltas, pending};
use gcodec::frame::{Manifest, Metadata, TensorInfo, UpdateHeader};
use gcodec::stream::EncodeOptions;
use gcodec::{Codec, TensorView};

use crate::error::{Failure, Result, call, gcodec_error, gcodec_status};
use crate::feedback::{Feedback, gcodec_feedback};
use crate::handle::{self, Content};
use crate::tensor::{gcodec_entry, gcodec_header, gcodec_tensor, views};
use crate::{given, threads};

/// An encoder of one stream. It keeps the bytes that it made until the caller has taken them.
pub struct gcodec_encoder {
    _opaque: [u8; 0],
}

/// An update to encode. Zeros and NULLs are allowed where a field's comment says so.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gcodec_update {
    /// The tensors, each name once. They are read during the call only.
    pub tensors: *const gcodec_tensor,
    /// Number of tensors.
    pub tensor_count: usize,
    /// Codecs, such as "topk:density=0.01", each ending with a zero byte (docs/codecs.md).
    pub codecs: *const *const c_char,
    /// Number of codecs: 1 for all tensors, or one for each tensor.
    pub codec_count: usize,
    /// For the codec "delta": the tensors that the update replaces, found by their names. They are read
    /// during the call only. NULL: none.
    pub base: *const gcodec_tensor,
    /// Number of bases.
    pub base_count: usize,
    /// Residuals of this sender, which lossy codecs read and change. NULL: no error feedback.
    pub feedback: *mut gcodec_feedback,
    /// Sender, step and label. NULL: a header of zeros, with the codecs as its label.
    pub header: *const gcodec_header,
    /// 0: a lossy codec refuses NaN and infinity; 1: it takes them for zero.
    pub zero_non_finite: u32,
}

#[derive(Default)]
pub(crate) struct Encoder {
    inner: Inner,
    pending: Vec<u8>,
    /// Bytes of `pending` that the caller has taken.
    taken: usize,
}

struct Inner(gcodec::stream::Encoder);

impl Default for Inner {
    fn default() -> Self {
        Self(gcodec::stream::Encoder::new(EncodeOptions::default()))
    }
}

impl Content for Encoder {
    type Opaque = gcodec_encoder;
    const TAG: u32 = u32::from_le_bytes(*b"GCen");
    const NAME: &'static str = "encoder";
}

impl Encoder {
    fn rest(&self) -> &[u8] {
        &self.pending[self.taken..]
    }

    fn take(&mut self, bytes: usize) {
        self.taken += bytes;
        // What was taken is given back when it is the larger part: fewer bytes move than were taken.
        if self.taken > self.pending.len() / 2 {
            self.pending.drain(..self.taken);
            self.taken = 0;
        }
    }

    /// Appends an update of these tensors, or gives its parts to `put`.
    #[expect(clippy::too_many_arguments, reason = "what an update in C has")]
    pub(crate) fn update(
        &mut self,
        tensors: &[(&str, TensorView<'_>)],
        bases: &[(&str, TensorView<'_>)],
        codecs: &[Codec],
        header: UpdateHeader,
        options: &Options,
        feedback: Option<&mut Feedback>,
        put: Option<Put>,
    ) -> Result<()> {
        let infos = tensors.iter().map(|(name, view)| TensorInfo::new(*name, view.dtype(), view.shape()));
        let manifest = Arc::new(Manifest::new(infos.collect())?);
        let bases: HashMap<&str, TensorView<'_>> = bases.iter().copied().collect();
        let inputs: Vec<Input<'_>> = (0u64..)
            .zip(tensors)
            .map(|(tensor, &(name, view))| Input { tensor, name, view, base: bases.get(name).copied() })
            .collect();
        let codecs = match codecs {
            [one] => vec![*one; inputs.len()],
            all => all.to_vec(),
        };
        let result = match feedback {
            None => threads::run(|| {
                let mut blocks = pending(&inputs, &codecs, options)?;
                let runs = blocks.deltas(&manifest, &mut Digests::default())?;
                Ok((blocks, runs))
            })
            .and_then(|(blocks, runs)| self.append(header.with_runs(runs), &manifest, blocks, put)),
            Some(feedback) => threads::run(|| {
                let blocks = compress(&inputs, &codecs, options, Some(&mut feedback.inner))?;
                let runs = deltas(&manifest, &inputs, &codecs, &blocks)?;
                Ok((blocks, runs))
            })
            .and_then(|(blocks, runs)| self.append(header.with_runs(runs), &manifest, blocks, put)),
        };
        result
            .map_err(|e| e.named(|number| tensors.get(usize::try_from(number).ok()?).map(|(name, _)| *name)))
    }

    /// Appends an update of these blocks, or gives its parts to `put`, after the bytes that are ready.
    fn append<'a, B>(
        &mut self,
        header: UpdateHeader,
        manifest: &Arc<Manifest>,
        blocks: impl IntoIterator<Item = B, IntoIter: Send> + Send,
        put: Option<Put>,
    ) -> Result<()>
    where
        B: TryInto<PendingBlock<'a>, Error: Into<gcodec::Error>>,
    {
        let inner = &mut self.inner.0;
        let Some(put) = put else {
            let out = &mut self.pending;
            return threads::run(|| Ok(inner.update(out, &header, manifest, blocks)?));
        };
        put.put(&self.pending[self.taken..])?;
        let mut part = mem::take(&mut self.pending);
        self.taken = 0;
        let mut parts = inner.parts(&header, manifest, blocks)?;
        let mut more = true;
        while more {
            part.clear();
            more = threads::run(|| Ok(parts.write_next(&mut part)?))?;
            // On the caller's thread, and while those of the pool are free.
            put.put(&part)?;
        }
        parts.finish();
        Ok(())
    }
}

/// Takes bytes of a stream in order: `len` bytes at `data`, valid during the call. Returns 0, or another
/// number to stop. It must return: no exception and no `longjmp` may leave it, and it must not call with the
/// handles of the call that calls it.
pub type gcodec_put = Option<unsafe extern "C" fn(context: *mut c_void, data: *const u8, len: usize) -> i32>;

/// A caller's function, with its context.
#[derive(Clone, Copy)]
pub(crate) struct Put {
    function: unsafe extern "C" fn(*mut c_void, *const u8, usize) -> i32,
    context: *mut c_void,
}

impl Put {
    /// Does not call for zero bytes.
    fn put(self, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller's function takes its own context, and reads during the call only.
        match unsafe { (self.function)(self.context, bytes.as_ptr(), bytes.len()) } {
            0 => Ok(()),
            code => {
                let message = format!("the function that takes the bytes stopped with {code}");
                Err(Failure::new(gcodec_status::Io, "io", message))
            }
        }
    }
}

/// Makes an encoder at the beginning of a stream, which the caller frees with `gcodec_encoder_free`.
/// `part_bytes`: approximate bytes of values in one frame of an update; 0 means 64 MiB. `with_index`: 1 if
/// each segment ends in an index, for random access; 0 for a stream that never ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_encoder_new(
    part_bytes: u64,
    with_index: u32,
    out: *mut *mut gcodec_encoder,
    error: *mut gcodec_error,
) -> gcodec_status {
    // SAFETY: the caller gives a place for a handle, and one for an error, or null.
    unsafe { call(error, || new(part_bytes, with_index, Profile::Full, out)) }
}

/// Makes an encoder as `gcodec_encoder_new` does, which writes only what readers of the core profile of the
/// format know: the same elements, in other kinds where it must. It refuses updates that have no such form:
/// deltas, and the codecs `demo` and `powersgd`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_encoder_new_core(
    part_bytes: u64,
    with_index: u32,
    out: *mut *mut gcodec_encoder,
    error: *mut gcodec_error,
) -> gcodec_status {
    // SAFETY: the caller gives a place for a handle, and one for an error, or null.
    unsafe { call(error, || new(part_bytes, with_index, Profile::Core, out)) }
}

/// # Safety
/// `out` is a place for a handle, or null.
unsafe fn new(
    part_bytes: u64,
    with_index: u32,
    profile: Profile,
    out: *mut *mut gcodec_encoder,
) -> Result<()> {
    let out = given::place(out)?;
    let options = EncodeOptions::default().with_index(with_index != 0).with_profile(profile);
    let options = if part_bytes == 0 { options } else { options.with_part_bytes(part_bytes) };
    let inner = Inner(gcodec::stream::Encoder::new(options));
    // SAFETY: the caller gives a place for a handle.
    unsafe { out.set(handle::new(Encoder { inner, ..Encoder::default() })) };
    Ok(())
}

/// Encodes an update, which is then ready to be taken. An encoder or residuals whose call fails do not
/// change.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_encoder_update(
    encoder: *mut gcodec_encoder,
    update: *const gcodec_update,
    error: *mut gcodec_error,
) -> gcodec_status {
    // SAFETY: the caller gives live handles, an update whose parts are valid for the call, and a place for an
    // error, or null.
    unsafe { call(error, || encode(encoder, update, None)) }
}

/// Encodes an update and gives its bytes to `put`: first those that are ready to be taken, then part by part,
/// each before the next is made (`part_bytes` of `gcodec_encoder_new`). Without residuals, this takes the
/// memory of one part, however large the update. `context` is the first argument of `put`.
///
/// A call that fails leaves the encoder as it was before the update, without bytes that are ready if `put`
/// took them; the parts of the update that `put` has taken are not of the stream: a file ends before them, a
/// connection ends. `GCODEC_STATUS_IO` says that `put` stopped; the residuals have then changed, and
/// `gcodec_feedback_begin` before and `gcodec_feedback_undo` after the call restore them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_encoder_write(
    encoder: *mut gcodec_encoder,
    update: *const gcodec_update,
    put: gcodec_put,
    context: *mut c_void,
    error: *mut gcodec_error,
) -> gcodec_status {
    // SAFETY: as above; `put` may be called with `context` during the call.
    unsafe {
        call(error, || {
            let function = put.ok_or_else(|| Failure::input("put is NULL"))?;
            encode(encoder, update, Some(Put { function, context }))
        })
    }
}

/// # Safety
/// As [`gcodec_encoder_update`], and [`Put`] may be called.
unsafe fn encode(encoder: *mut gcodec_encoder, update: *const gcodec_update, put: Option<Put>) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        handle::with(encoder, |encoder: &mut Encoder| {
            let update = given::optional(update, "update")?;
            let update = update.ok_or_else(|| Failure::input("the update is NULL"))?;
            let codecs = codecs(update)?;
            let labels: Vec<String> = codecs.iter().map(Codec::to_string).collect();
            let header = gcodec_header::get(update.header, labels.join("; "))?;
            let non_finite = if update.zero_non_finite == 0 { NonFinite::Reject } else { NonFinite::Zero };
            let options = Options::default().with_non_finite(non_finite);
            let tensors = views(update.tensors, update.tensor_count)?;
            let bases = views(update.base, update.base_count)?;
            if update.feedback.is_null() {
                return encoder.update(&tensors, &bases, &codecs, header, &options, None, put);
            }
            handle::with(update.feedback, |feedback| {
                encoder.update(&tensors, &bases, &codecs, header, &options, Some(feedback), put)
            })
        })
    }
}

/// # Safety
/// The codecs of `update` are valid texts.
unsafe fn codecs(update: &gcodec_update) -> Result<Vec<Codec>> {
    // SAFETY: the caller's promise.
    let codecs = unsafe { given::items(update.codecs, update.codec_count, "codecs") }?;
    if codecs.len() != 1 && codecs.len() != update.tensor_count {
        let message = format!(
            "{} codecs for {} tensors: give one, or one for each tensor",
            codecs.len(),
            update.tensor_count
        );
        return Err(Failure::input(message));
    }
    // SAFETY: the caller's promise.
    codecs.iter().map(|codec| Ok(unsafe { given::text(*codec, 0, "a codec") }?.parse()?)).collect()
}

/// Encodes metadata, which is then ready to be taken. `entries` are read during the call only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_encoder_metadata(
    encoder: *mut gcodec_encoder,
    entries: *const gcodec_entry,
    count: usize,
    error: *mut gcodec_error,
) -> gcodec_status {
    // SAFETY: the caller gives a live handle, valid entries, and a place for an error, or null.
    unsafe {
        call(error, || {
            handle::with(encoder, |encoder: &mut Encoder| {
                let text = |text, what| given::text(text, 0, what).map(str::to_owned);
                let entries: BTreeMap<String, String> = given::items(entries, count, "entries")?
                    .iter()
                    .map(|e| Ok((text(e.key, "a key")?, text(e.value, "a value")?)))
                    .collect::<Result<_>>()?;
                encoder.inner.0.metadata(&mut encoder.pending, &Metadata { entries });
                Ok(())
            })
        })
    }
}

/// Ends the stream's segment: its index, if enabled, and its end are then ready to be taken. Another segment
/// may follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_encoder_finish(
    encoder: *mut gcodec_encoder,
    error: *mut gcodec_error,
) -> gcodec_status {
    // SAFETY: the caller gives a live handle, and a place for an error, or null.
    unsafe {
        call(error, || {
            handle::with(encoder, |encoder: &mut Encoder| {
                encoder.inner.0.finish(&mut encoder.pending);
                Ok(())
            })
        })
    }
}

/// Lends the bytes that are ready: `data` and `len` say where they are. They belong to the encoder and are
/// valid until its next call other than this one. `gcodec_encoder_take` takes them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_encoder_output(
    encoder: *mut gcodec_encoder,
    data: *mut *const u8,
    len: *mut usize,
    error: *mut gcodec_error,
) -> gcodec_status {
    // SAFETY: the caller gives a live handle, places for the results, and a place for an error, or null.
    unsafe {
        call(error, || {
            let (data, len) = (given::place(data)?, given::place(len)?);
            handle::with(encoder, |encoder: &mut Encoder| {
                data.set(encoder.rest().as_ptr());
                len.set(encoder.rest().len());
                Ok(())
            })
        })
    }
}

/// Forgets the first `bytes` of the bytes that are ready.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_encoder_take(
    encoder: *mut gcodec_encoder,
    bytes: usize,
    error: *mut gcodec_error,
) -> gcodec_status {
    // SAFETY: the caller gives a live handle, and a place for an error, or null.
    unsafe {
        call(error, || {
            handle::with(encoder, |encoder: &mut Encoder| {
                if bytes > encoder.rest().len() {
                    let ready = encoder.rest().len();
                    return Err(Failure::input(format!("{bytes} bytes taken, {ready} are ready")));
                }
                encoder.take(bytes);
                Ok(())
            })
        })
    }
}

/// Copies bytes that are ready into the caller's buffer and forgets them: `written` are the smaller of
/// `capacity` and of those that are ready. Zero says that all have been taken.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_encoder_read(
    encoder: *mut gcodec_encoder,
    buffer: *mut u8,
    capacity: usize,
    written: *mut usize,
    error: *mut gcodec_error,
) -> gcodec_status {
    // SAFETY: the caller gives a live handle, a buffer, a place for the result, and one for an error or null.
    unsafe {
        call(error, || {
            let written = given::place(written)?;
            handle::with(encoder, |encoder: &mut Encoder| {
                let buffer = given::buffer(buffer, capacity)?;
                let bytes = buffer.len().min(encoder.rest().len());
                buffer[..bytes].copy_from_slice(&encoder.rest()[..bytes]);
                encoder.take(bytes);
                written.set(bytes);
                Ok(())
            })
        })
    }
}

/// Frees an encoder, with bytes that were not taken. Does nothing for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_encoder_free(encoder: *mut gcodec_encoder) {
    // SAFETY: the caller gives a live handle, or null.
    unsafe { handle::free::<Encoder>(encoder) };
}
