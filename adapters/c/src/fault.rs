//! Panics on request, at each place where a call of the ABI begins its work.

use std::cell::Cell;

thread_local! {
    static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Lets the place after `calls` more places panic, on this thread; `None`: none.
pub(crate) fn arm(calls: Option<u32>) {
    LEFT.set(calls);
}

/// A place that panics if it is its turn.
pub(crate) fn point() {
    match LEFT.get() {
        Some(0) => {
            LEFT.set(None);
            panic!("injected");
        }
        left => LEFT.set(left.map(|n| n - 1)),
    }
}

mod tests {
    use std::panic;
    use std::ptr::null_mut;

    use super::arm;
    use crate::*;

    /// Calls every function that has a handle, on good arguments. Returns the statuses.
    fn everything() -> Vec<gcodec_status> {
        let (mut encoder, mut decoder, mut feedback, mut report) =
            (null_mut(), null_mut(), null_mut(), null_mut());
        let (data, shape) = ([0u8; 16], [4u64]);
        let tensor = gcodec_tensor {
            name: c"w".as_ptr(),
            name_len: 0,
            data: data.as_ptr().cast(),
            bytes: 16,
            shape: shape.as_ptr(),
            rank: 1,
            dtype: gcodec_dtype::F32 as u32,
        };
        let codec = c"topk:k=1".as_ptr();
        let (mut bytes, mut len, mut event, mut norm) = (std::ptr::null(), 0, gcodec_event::End, 0.0);
        let none = null_mut();
        // SAFETY: all pointers are those of local variables. A handle that was not made is null, and the
        // bytes are lent until the encoder is freed.
        unsafe {
            let mut statuses = vec![
                gcodec_encoder_new(0, 1, &raw mut encoder, none),
                gcodec_feedback_new(&raw mut feedback, none),
                gcodec_decoder_new(std::ptr::null(), &raw mut decoder, none),
            ];
            let update = gcodec_update {
                tensors: &raw const tensor,
                tensor_count: 1,
                codecs: &raw const codec,
                codec_count: 1,
                base: std::ptr::null(),
                base_count: 0,
                feedback,
                header: std::ptr::null(),
                zero_non_finite: 0,
            };
            statuses.extend([
                gcodec_feedback_begin(feedback, none),
                gcodec_encoder_update(encoder, &raw const update, none),
                gcodec_feedback_commit(feedback, none),
                gcodec_feedback_norm(feedback, &raw mut norm, none),
                gcodec_feedback_save(feedback, encoder, none),
                gcodec_encoder_finish(encoder, none),
                gcodec_encoder_output(encoder, &raw mut bytes, &raw mut len, none),
                gcodec_decoder_base(decoder, &raw const tensor, 1, none),
                gcodec_decoder_feed(decoder, bytes, len, none),
                gcodec_decoder_next(decoder, &raw mut event, none),
                gcodec_decoder_decode(decoder, bytes, len, none),
                gcodec_feedback_load(feedback, decoder, none),
                gcodec_decoder_finish(decoder, none),
                gcodec_report_new(bytes, len, std::ptr::null(), &raw mut report, none),
                gcodec_encoder_take(encoder, len, none),
            ]);
            gcodec_report_free(report);
            gcodec_decoder_free(decoder);
            gcodec_feedback_free(feedback);
            gcodec_encoder_free(encoder);
            statuses
        }
    }

    #[test]
    fn each_call_may_panic() {
        let all = everything();
        // `finish` of the decoder: the bytes behind the first event are still there.
        let fails = |status: &&gcodec_status| **status != gcodec_status::Ok;
        assert_eq!(all.iter().filter(fails).count(), 1, "{all:?}");
        panic::set_hook(Box::new(|_| {}));
        let mut places = 0;
        loop {
            arm(Some(places));
            let statuses = everything();
            let panicked = statuses.iter().filter(|status| **status == gcodec_status::Panic).count();
            if panicked == 0 {
                assert_eq!(statuses, all);
                break;
            }
            let first = statuses.iter().position(|status| *status == gcodec_status::Panic);
            let before = first.unwrap_or_default();
            assert_eq!(statuses[..before], all[..before], "before place {places}");
            places += 1;
        }
        arm(None);
        let _ = panic::take_hook();
        // Two in each call with a handle, three in those with two.
        assert!(places >= 30, "{places} places");
    }
}
