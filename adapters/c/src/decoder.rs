//! The decoder: bytes of a stream in, dense tensors out.

use std::collections::HashSet;
use std::ffi::c_char;
use std::sync::Arc;

use gcodec::file::{File, UpdateEntry};
use gcodec::frame::{Manifest, UpdateHeader, UpdatePart};
use gcodec::stream::{Assembler, Body, Event};
use gcodec::{Dtype, Limits, TensorBuf, TensorView};
use self_cell::self_cell;

use crate::error::{Failure, Result, call, gcodec_error, gcodec_status};
use crate::handle::{self, Content};
use crate::options::gcodec_limits;
use crate::tensor::{Text, gcodec_entry, gcodec_header, gcodec_tensor, views};
use crate::{given, threads};

/// A decoder of one stream, which may arrive in pieces. It lends the content of the last event.
pub struct gcodec_decoder {
    _opaque: [u8; 0],
}

/// Result of `gcodec_decoder_next`: the event it found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum gcodec_event {
    /// Nothing: more bytes are needed.
    NeedMore = 0,
    /// A whole update: its header and tensors can be read.
    Update = 1,
    /// Metadata: its entries can be read.
    Metadata = 2,
    /// The end of a segment. The stream may end here.
    End = 3,
}

/// A base of deltas, with its own copy of everything but the elements.
struct Base {
    name: String,
    dtype: Dtype,
    shape: Vec<u64>,
    /// Elements of the caller, which promised to keep them.
    data: &'static [u8],
}

impl Base {
    fn view(&self) -> gcodec::Result<TensorView<'_>> {
        TensorView::new(self.dtype, &self.shape, self.data)
    }
}

/// `None` once the assembler has finished, which consumes it.
type Unfinished<'b> = Option<Assembler<'b>>;

self_cell! {
    /// An update whose last part has not come, with the bases that it borrows.
    struct Open {
        owner: Arc<Vec<Base>>,
        #[not_covariant]
        dependent: Unfinished,
    }
}

/// A whole update.
struct Done {
    manifest: Arc<Manifest>,
    header: UpdateHeader,
    label: Text,
    names: Vec<Text>,
    tensors: Vec<(u64, TensorBuf)>,
}

impl Done {
    fn new(manifest: Arc<Manifest>, header: UpdateHeader, tensors: Vec<(u64, TensorBuf)>) -> Self {
        let name = |number: u64| manifest.tensors()[number as usize].name.as_str();
        let names = tensors.iter().map(|(number, _)| Text::new(name(*number))).collect();
        Self { label: Text::new(&header.label), names, manifest, header, tensors }
    }
}

pub(crate) struct Decoder {
    inner: gcodec::stream::Decoder,
    limits: Limits,
    wanted: Option<HashSet<String>>,
    base: Arc<Vec<Base>>,
    open: Option<(UpdateHeader, Arc<Manifest>, Open)>,
    done: Option<Done>,
    metadata: Vec<(Text, Text)>,
    /// Why the stream cannot be read on.
    failed: Option<Failure>,
}

impl Content for Decoder {
    type Opaque = gcodec_decoder;
    const TAG: u32 = u32::from_le_bytes(*b"GCde");
    const NAME: &'static str = "decoder";
}

impl Decoder {
    /// Begins an update with its first part, in the memory of the last one where it has the same tensors.
    fn begin(&mut self, manifest: &Arc<Manifest>, is_delta: bool, last: Option<Done>) -> Result<Open> {
        let is_wanted = |name: &str| self.wanted.as_ref().is_none_or(|names| names.contains(name));
        let wanted = (0u64..).zip(manifest.tensors()).filter(|(_, t)| is_wanted(&t.name)).map(|(n, _)| n);
        let reused = last.filter(|done| done.manifest.id() == manifest.id()).map(|done| done.tensors);
        // The update before may be one of another choice.
        let reused = reused.filter(|tensors| wanted.eq(tensors.iter().map(|(number, _)| *number)));
        let open = Open::try_new(Arc::clone(&self.base), |base| -> gcodec::Result<_> {
            let mut assembler = match reused {
                Some(tensors) => Assembler::with_buffers(manifest, tensors)?,
                None => Assembler::new(manifest, &self.limits, is_wanted)?,
            };
            if is_delta {
                base.iter().try_for_each(|base| assembler.base(&base.name, base.view()?))?;
            }
            Ok(Some(assembler))
        })?;
        Ok(open)
    }

    fn part(&mut self, part: &UpdatePart<'_>, last: &mut Option<Done>) -> Result<bool> {
        let manifest = Arc::clone(&part.manifest);
        let name =
            |number: u64| manifest.tensors().get(usize::try_from(number).ok()?).map(|t| t.name.as_str());
        if part.part == 0 {
            self.open = None;
            let is_delta = part.header.is_delta();
            let open = self.begin(&manifest, is_delta, last.take()).map_err(|e| e.named(name))?;
            self.open = Some((part.header.clone(), Arc::clone(&part.manifest), open));
        }
        // An update whose part failed is given up, up to the next update.
        let Some((header, manifest, mut open)) = self.open.take() else { return Ok(false) };
        let applied = open.with_dependent_mut(|_, unfinished| {
            unfinished.as_mut().map_or(Ok(()), |assembler| assembler.apply(part))
        });
        applied.map_err(|e| Failure::from(e).named(name))?;
        if !part.last {
            self.open = Some((header, manifest, open));
            return Ok(false);
        }
        let tensors = open
            .with_dependent_mut(|_, unfinished| unfinished.take().map_or(Ok(Vec::new()), Assembler::finish));
        let tensors = tensors.map_err(|e| Failure::from(e).named(name))?;
        self.done = Some(Done::new(manifest, header, tensors));
        Ok(true)
    }

    fn next(&mut self) -> Result<gcodec_event> {
        let mut last = self.done.take();
        self.metadata.clear();
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        let found = self.find(&mut last);
        if let Err(e) = &found
            && e.ends_stream()
        {
            self.failed = Some(e.clone());
        }
        found
    }

    fn find(&mut self, last: &mut Option<Done>) -> Result<gcodec_event> {
        // The frame that is being read borrows the inner decoder.
        let fresh = gcodec::stream::Decoder::new(Limits::default());
        let mut inner = std::mem::replace(&mut self.inner, fresh);
        let found = self.find_in(&mut inner, last);
        self.inner = inner;
        found
    }

    fn find_in(
        &mut self,
        inner: &mut gcodec::stream::Decoder,
        last: &mut Option<Done>,
    ) -> Result<gcodec_event> {
        while let Some(event) = inner.next_event()? {
            let Event::Frame(_, body) = event else { continue };
            match body {
                Body::Update(part) if self.part(&part, last)? => return Ok(gcodec_event::Update),
                Body::Metadata(metadata) => {
                    let texts = metadata.entries.iter().map(|(k, v)| (Text::new(k), Text::new(v)));
                    self.metadata = texts.collect();
                    return Ok(gcodec_event::Metadata);
                }
                Body::End(_) => return Ok(gcodec_event::End),
                _ => {}
            }
        }
        Ok(gcodec_event::NeedMore)
    }

    /// Decodes the last update of a whole stream, after checking every frame.
    fn whole(&mut self, bytes: &[u8]) -> Result<()> {
        let last_done = self.done.take();
        self.metadata.clear();
        let file = File::scan(bytes, self.limits.clone())?;
        let number = file.last()?;
        let UpdateEntry { manifest, header, .. } = file.updates()[number].clone();
        let mut open = self.begin(&manifest, header.is_delta(), last_done)?;
        let decoded = open.with_dependent_mut(|_, unfinished| {
            let Some(mut assembler) = unfinished.take() else { return Ok(Vec::new()) };
            file.apply(number, &mut assembler)?;
            assembler.finish()
        });
        let name =
            |number: u64| manifest.tensors().get(usize::try_from(number).ok()?).map(|t| t.name.as_str());
        let tensors = decoded.map_err(|e| Failure::from(e).named(name))?;
        self.done = Some(Done::new(manifest, header, tensors));
        Ok(())
    }

    fn done(&self) -> Result<&Done> {
        self.done.as_ref().ok_or_else(|| Failure::input("the decoder's last event was not an update"))
    }

    /// Returns the tensors of the update, copied.
    pub(crate) fn copies(&self) -> Result<Vec<(String, TensorBuf)>> {
        let done = self.done()?;
        let name = |number: u64| done.manifest.tensors()[number as usize].name.clone();
        Ok(done.tensors.iter().map(|(number, tensor)| (name(*number), tensor.clone())).collect())
    }

    fn tensor(&self, index: usize) -> Result<(&Text, &TensorBuf)> {
        let done = self.done()?;
        let found = done.names.iter().zip(&done.tensors).nth(index).map(|(name, (_, t))| (name, t));
        found.ok_or_else(|| Failure::input(format!("no tensor {index}: there are {}", done.tensors.len())))
    }
}

/// Makes a decoder at the beginning of a stream, which the caller frees with `gcodec_decoder_free`. `limits`:
/// NULL means the defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_decoder_new(
    limits: *const gcodec_limits,
    out: *mut *mut gcodec_decoder,
    error: *mut gcodec_error,
) -> gcodec_status {
    // SAFETY: the caller gives limits or null, and places for a handle and for an error, or null.
    unsafe {
        call(error, || {
            let out = given::place(out)?;
            let limits = gcodec_limits::get(limits)?;
            let decoder = Decoder {
                inner: gcodec::stream::Decoder::new(limits.clone()),
                limits,
                wanted: None,
                base: Arc::default(),
                open: None,
                done: None,
                metadata: Vec::new(),
                failed: None,
            };
            out.set(handle::new(decoder));
            Ok(())
        })
    }
}

/// Sets the bases of the deltas that begin after this call, by their names. Names, shapes and the array are
/// copied. The elements are borrowed: they stay in place and unchanged until the decoder is freed, or until
/// it has other bases and a later update has begun.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_decoder_base(
    decoder: *mut gcodec_decoder,
    base: *const gcodec_tensor,
    count: usize,
    error: *mut gcodec_error,
) -> gcodec_status {
    // SAFETY: the caller gives a live handle, tensors whose elements stay for as long as the comment above
    // says, and a place for an error, or null.
    unsafe {
        call(error, || {
            handle::with(decoder, |decoder: &mut Decoder| {
                let own = |(name, view): (&str, TensorView<'static>)| Base {
                    name: name.to_owned(),
                    dtype: view.dtype(),
                    shape: view.shape().to_vec(),
                    data: view.data(),
                };
                decoder.base = Arc::new(views(base, count)?.into_iter().map(own).collect());
                Ok(())
            })
        })
    }
}

/// Lets the updates that begin after this call contain only the tensors of these names, which are copied.
/// Names that an update lacks are ignored. A count of 0 means all tensors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_decoder_select(
    decoder: *mut gcodec_decoder,
    names: *const *const c_char,
    count: usize,
    error: *mut gcodec_error,
) -> gcodec_status {
    // SAFETY: the caller gives a live handle, texts, and a place for an error, or null.
    unsafe {
        call(error, || {
            handle::with(decoder, |decoder: &mut Decoder| {
                let names = given::items(names, count, "names")?.iter();
                let names = names.map(|name| Ok(given::text(*name, 0, "a name")?.to_owned()));
                let names: HashSet<String> = names.collect::<Result<_>>()?;
                decoder.wanted = (count > 0).then_some(names);
                Ok(())
            })
        })
    }
}

/// Gives the next bytes of the stream, which are copied. What the decoder was lending is still valid. Call
/// `gcodec_decoder_next` until it needs more before giving more: the decoder then keeps at most one frame.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_decoder_feed(
    decoder: *mut gcodec_decoder,
    bytes: *const u8,
    count: usize,
    error: *mut gcodec_error,
) -> gcodec_status {
    // SAFETY: the caller gives a live handle, bytes, and a place for an error, or null.
    unsafe {
        call(error, || {
            handle::with(decoder, |decoder: &mut Decoder| {
                decoder.inner.feed(given::items(bytes, count, "bytes")?);
                Ok(())
            })
        })
    }
}

/// Writes to `out` how many bytes are missing for the next frame: 0 if `gcodec_decoder_next` has something
/// to say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_decoder_needed(
    decoder: *const gcodec_decoder,
    out: *mut u64,
    error: *mut gcodec_error,
) -> gcodec_status {
    // SAFETY: the caller gives a live handle, a place for the result, and one for an error, or null.
    unsafe {
        call(error, || {
            let out = given::place(out)?;
            handle::with(decoder, |decoder: &mut Decoder| {
                out.set(decoder.inner.needed());
                Ok(())
            })
        })
    }
}

/// Reads up to the next event. What the decoder was lending is no longer valid. After an error of the bytes
/// or of a limit, every later call returns the same error. After `GCODEC_STATUS_INPUT` (a base that is
/// missing or differs) the update is given up, and later updates can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_decoder_next(
    decoder: *mut gcodec_decoder,
    event: *mut gcodec_event,
    error: *mut gcodec_error,
) -> gcodec_status {
    // SAFETY: the caller gives a live handle, a place for the result, and one for an error, or null.
    unsafe {
        call(error, || {
            let event = given::place(event)?;
            handle::with(decoder, |decoder: &mut Decoder| {
                event.set(threads::run(|| decoder.next())?);
                Ok(())
            })
        })
    }
}

/// Checks that the stream is complete: the last byte given was the last byte of a segment.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_decoder_finish(
    decoder: *mut gcodec_decoder,
    error: *mut gcodec_error,
) -> gcodec_status {
    // SAFETY: the caller gives a live handle, and a place for an error, or null.
    unsafe {
        call(error, || {
            handle::with(decoder, |decoder: &mut Decoder| match &decoder.failed {
                Some(failed) => Err(failed.clone()),
                None => Ok(decoder.inner.finish()?),
            })
        })
    }
}

/// Decodes the last update of a whole stream in memory, which is read during the call only, without a copy.
/// Every frame is checked. The decoder then lends the update as after `GCODEC_EVENT_UPDATE`. Bytes that
/// `gcodec_decoder_feed` was given have no part in it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_decoder_decode(
    decoder: *mut gcodec_decoder,
    bytes: *const u8,
    count: usize,
    error: *mut gcodec_error,
) -> gcodec_status {
    // SAFETY: the caller gives a live handle, bytes, and a place for an error, or null.
    unsafe {
        call(error, || {
            handle::with(decoder, |decoder: &mut Decoder| {
                let bytes = given::items(bytes, count, "bytes")?;
                threads::run(|| decoder.whole(bytes))
            })
        })
    }
}

/// Writes the header of the decoder's update to `out`. Its label is lent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_decoder_header(
    decoder: *const gcodec_decoder,
    out: *mut gcodec_header,
    error: *mut gcodec_error,
) -> gcodec_status {
    // SAFETY: the caller gives a live handle, a place for the result, and one for an error, or null.
    unsafe {
        call(error, || {
            let out = given::place(out)?;
            handle::with(decoder, |decoder: &mut Decoder| {
                let done = decoder.done()?;
                out.set(gcodec_header::of(&done.header, &done.label));
                Ok(())
            })
        })
    }
}

/// Writes the number of tensors of the decoder's update to `out`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_decoder_count(
    decoder: *const gcodec_decoder,
    out: *mut usize,
    error: *mut gcodec_error,
) -> gcodec_status {
    // SAFETY: the caller gives a live handle, a place for the result, and one for an error, or null.
    unsafe {
        call(error, || {
            let out = given::place(out)?;
            handle::with(decoder, |decoder: &mut Decoder| {
                out.set(decoder.done()?.tensors.len());
                Ok(())
            })
        })
    }
}

/// Writes the number of the tensor `name` of the decoder's update to `out`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_decoder_find(
    decoder: *const gcodec_decoder,
    name: *const c_char,
    out: *mut usize,
    error: *mut gcodec_error,
) -> gcodec_status {
    // SAFETY: the caller gives a live handle, a text, a place for the result, and one for an error, or null.
    unsafe {
        call(error, || {
            let out = given::place(out)?;
            handle::with(decoder, |decoder: &mut Decoder| {
                let name = given::text(name, 0, "the name")?;
                let found = decoder.done()?.names.iter().position(|own| own.is(name));
                out.set(found.ok_or_else(|| Failure::input(format!("no tensor {name:?}")))?);
                Ok(())
            })
        })
    }
}

/// Writes the tensor `index` of the decoder's update to `out`. Name, shape and elements are lent: they belong
/// to the decoder, which overwrites them for the next event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_decoder_tensor(
    decoder: *const gcodec_decoder,
    index: usize,
    out: *mut gcodec_tensor,
    error: *mut gcodec_error,
) -> gcodec_status {
    // SAFETY: the caller gives a live handle, a place for the result, and one for an error, or null.
    unsafe {
        call(error, || {
            let out = given::place(out)?;
            handle::with(decoder, |decoder: &mut Decoder| {
                let (name, tensor) = decoder.tensor(index)?;
                out.set(gcodec_tensor {
                    name: name.as_ptr(),
                    name_len: name.len(),
                    data: tensor.data().as_ptr().cast(),
                    bytes: tensor.data().len(),
                    shape: tensor.shape().as_ptr(),
                    rank: tensor.shape().len(),
                    dtype: tensor.dtype().id().into(),
                });
                Ok(())
            })
        })
    }
}

/// Copies the elements of the tensor `index` into the caller's buffer. Returns `GCODEC_STATUS_SHORT` if
/// `capacity` is less than the tensor's bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_decoder_copy(
    decoder: *const gcodec_decoder,
    index: usize,
    buffer: *mut u8,
    capacity: usize,
    error: *mut gcodec_error,
) -> gcodec_status {
    // SAFETY: the caller gives a live handle, a buffer, and a place for an error, or null.
    unsafe {
        call(error, || {
            handle::with(decoder, |decoder: &mut Decoder| {
                let data = decoder.tensor(index)?.1.data();
                let place = given::buffer(buffer, capacity)?.get_mut(..data.len());
                place.ok_or_else(|| Failure::short(capacity, data.len()))?.copy_from_slice(data);
                Ok(())
            })
        })
    }
}

/// Writes the entry `index` of the decoder's metadata to `out`, and to `count` how many there are: 0 if the
/// last event was not metadata. Both texts are lent. `out` is not written if there is no such entry.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_decoder_entry(
    decoder: *const gcodec_decoder,
    index: usize,
    out: *mut gcodec_entry,
    count: *mut usize,
    error: *mut gcodec_error,
) -> gcodec_status {
    // SAFETY: the caller gives a live handle, places for the results, and one for an error, or null.
    unsafe {
        call(error, || {
            let (out, count) = (given::place(out)?, given::place(count)?);
            handle::with(decoder, |decoder: &mut Decoder| {
                count.set(decoder.metadata.len());
                if let Some((key, value)) = decoder.metadata.get(index) {
                    out.set(gcodec_entry { key: key.as_ptr(), value: value.as_ptr() });
                }
                Ok(())
            })
        })
    }
}

/// Frees a decoder and all that it was lending. Does nothing for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_decoder_free(decoder: *mut gcodec_decoder) {
    // SAFETY: the caller gives a live handle, or null.
    unsafe { handle::free::<Decoder>(decoder) };
}
