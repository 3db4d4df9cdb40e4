//! Error feedback: the part of an update that a lossy codec left out is added to the next update.

use gcodec::Codec;
use gcodec::compress::Options;
use gcodec::frame::UpdateHeader;

use crate::decoder::{Decoder, gcodec_decoder};
use crate::encoder::{Encoder, gcodec_encoder};
use crate::error::{call, gcodec_error, gcodec_status};
use crate::given;
use crate::handle::{self, Content};

/// The residuals of one sender, by tensor name.
pub struct gcodec_feedback {
    _opaque: [u8; 0],
}

#[derive(Default)]
pub(crate) struct Feedback {
    pub(crate) inner: gcodec::compress::Feedback,
}

impl Content for Feedback {
    type Opaque = gcodec_feedback;
    const TAG: u32 = u32::from_le_bytes(*b"GCfb");
    const NAME: &'static str = "feedback";
}

/// Makes an empty memory, which the caller frees with `gcodec_feedback_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_feedback_new(
    out: *mut *mut gcodec_feedback,
    error: *mut gcodec_error,
) -> gcodec_status {
    // SAFETY: the caller gives places for a handle and for an error, or null for the latter.
    unsafe {
        call(error, || {
            given::place(out)?.set(handle::new(Feedback::default()));
            Ok(())
        })
    }
}

/// Writes the Euclidean norm of all residuals together to `out`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_feedback_norm(
    feedback: *const gcodec_feedback,
    out: *mut f64,
    error: *mut gcodec_error,
) -> gcodec_status {
    // SAFETY: the caller gives a live handle, a place for the result, and one for an error, or null.
    unsafe {
        call(error, || {
            let out = given::place(out)?;
            handle::with(feedback, |feedback: &mut Feedback| {
                out.set(feedback.inner.norm());
                Ok(())
            })
        })
    }
}

/// Removes all residuals and all state of codecs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_feedback_reset(
    feedback: *mut gcodec_feedback,
    error: *mut gcodec_error,
) -> gcodec_status {
    // SAFETY: the caller gives a live handle, and a place for an error, or null.
    unsafe {
        call(error, || {
            handle::with(feedback, |feedback: &mut Feedback| {
                feedback.inner.reset();
                Ok(())
            })
        })
    }
}

/// Keeps what later updates replace, until `gcodec_feedback_commit` or `gcodec_feedback_undo`: for a sender
/// that learns only later whether its update arrived. Further calls before those two do nothing, so that
/// several updates form a whole.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_feedback_begin(
    feedback: *mut gcodec_feedback,
    error: *mut gcodec_error,
) -> gcodec_status {
    // SAFETY: the caller gives a live handle, and a place for an error, or null.
    unsafe {
        call(error, || {
            handle::with(feedback, |feedback: &mut Feedback| {
                feedback.inner.begin();
                Ok(())
            })
        })
    }
}

/// Accepts the updates since `gcodec_feedback_begin`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_feedback_commit(
    feedback: *mut gcodec_feedback,
    error: *mut gcodec_error,
) -> gcodec_status {
    // SAFETY: the caller gives a live handle, and a place for an error, or null.
    unsafe {
        call(error, || {
            handle::with(feedback, |feedback: &mut Feedback| {
                feedback.inner.commit();
                Ok(())
            })
        })
    }
}

/// Restores the residuals from before the updates since `gcodec_feedback_begin`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_feedback_undo(
    feedback: *mut gcodec_feedback,
    error: *mut gcodec_error,
) -> gcodec_status {
    // SAFETY: the caller gives a live handle, and a place for an error, or null.
    unsafe {
        call(error, || {
            handle::with(feedback, |feedback: &mut Feedback| {
                feedback.inner.undo();
                Ok(())
            })
        })
    }
}

/// Encodes the residuals and the state of codecs as an update of `encoder`, without loss, for a checkpoint.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_feedback_save(
    feedback: *const gcodec_feedback,
    encoder: *mut gcodec_encoder,
    error: *mut gcodec_error,
) -> gcodec_status {
    // SAFETY: the caller gives live handles, and a place for an error, or null.
    unsafe {
        call(error, || {
            let saved = handle::with(feedback, |feedback: &mut Feedback| Ok(feedback.inner.save()))?;
            let views: Vec<_> = saved.iter().map(|(name, tensor)| (name.as_str(), tensor.view())).collect();
            let header = UpdateHeader::default().with_label("residuals".to_owned());
            handle::with(encoder, |encoder: &mut Encoder| {
                encoder.update(&views, &[], &[Codec::LOSSLESS], header, &Options::default(), None, None)
            })
        })
    }
}

/// Replaces the residuals by those in the decoder's update, which `gcodec_feedback_save` made.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_feedback_load(
    feedback: *mut gcodec_feedback,
    decoder: *const gcodec_decoder,
    error: *mut gcodec_error,
) -> gcodec_status {
    // SAFETY: the caller gives live handles, and a place for an error, or null.
    unsafe {
        call(error, || {
            let tensors = handle::with(decoder, |decoder: &mut Decoder| decoder.copies())?;
            let loaded = gcodec::compress::Feedback::load(tensors)?;
            handle::with(feedback, |feedback: &mut Feedback| {
                feedback.inner = loaded;
                Ok(())
            })
        })
    }
}

/// Frees the residuals. Does nothing for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcodec_feedback_free(feedback: *mut gcodec_feedback) {
    // SAFETY: the caller gives a live handle, or null.
    unsafe { handle::free::<Feedback>(feedback) };
}
