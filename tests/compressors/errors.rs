//! Errors of a compressor's caller that do not concern an option.

use gcodec::compress::senders::{mask_momenta, onebit};
use gcodec::compress::{Feedback, Input, Options, compress};
use gcodec::error::InputErrorKind;
use gcodec::{Codec, Dtype, Error, TensorBuf};

fn kind<T>(result: Result<T, Error>) -> InputErrorKind {
    match result.err() {
        Some(Error::Input(e)) => e.kind,
        other => panic!("{other:?}"),
    }
}

#[test]
fn inputs_out_of_order_or_with_the_same_name() {
    let tensor = TensorBuf::from_f32(vec![4], &[1.0, 2.0, 3.0, 4.0]).unwrap();
    let input = |tensor_number, name| Input { tensor: tensor_number, name, view: tensor.view(), base: None };
    let codec: Codec = "topk:k=1".parse().unwrap();
    let run = |inputs: &[Input<'_>], feedback: Option<&mut Feedback>| {
        kind(compress(inputs, &[codec, codec], &Options::default(), feedback))
    };
    let order = InputErrorKind::NotAscending { what: "tensors of the inputs" };
    assert_eq!(run(&[input(1, "a"), input(0, "b")], None), order);
    assert_eq!(run(&[input(1, "a"), input(1, "b")], None), order);
    let same = [input(0, "a"), input(1, "a")];
    assert_eq!(run(&same, Some(&mut Feedback::new())), InputErrorKind::DuplicateName);
}

#[test]
fn momenta_out_of_order() {
    let refused = mask_momenta::<gcodec::block::Block>(&[], &mut [(2, &mut []), (1, &mut [])]);
    assert_eq!(kind(refused), InputErrorKind::NotAscending { what: "tensors of the momenta" });
}

#[test]
fn saved_states_that_no_codec_wrote() {
    let state = TensorBuf::new(Dtype::I64, vec![3], vec![0xff; 24]).unwrap();
    let kind = kind(Feedback::load([("w#sidco".to_owned(), state)]));
    assert!(matches!(kind, InputErrorKind::BadState { .. }), "{kind:?}");
}

#[test]
fn a_step_of_one_bit_adam_that_was_not_begun() {
    let mut worker = onebit::OneBitWorker::new(onebit::OneBitOptions::default()).unwrap();
    let kind = kind(worker.apply(&[]));
    assert!(matches!(kind, InputErrorKind::OutOfTurn { .. }), "{kind:?}");
}
