//! Every mistake has its own kind of error: bytes give format errors, callers give input errors, and only an
//! option is reported as an option.

use std::collections::BTreeMap;

use gcodec::error::InputErrorKind;
use gcodec::file::File;
use gcodec::frame::{Delta, Digest, Manifest, TensorInfo, UpdateHeader};
use gcodec::stream::{Assembler, Body, Decoder, EncodeOptions, Encoder, Event, SliceReader, Writer};
use gcodec::{Dtype, Error, Limits, Reader, TensorView};

fn kind<T>(result: Result<T, Error>) -> InputErrorKind {
    match result.err() {
        Some(Error::Input(e)) => e.kind,
        other => panic!("{other:?}"),
    }
}

/// A reader that is called again after an error returns the same error, with the same place.
#[test]
fn a_corrupt_stream_gives_the_same_error_again() {
    let stream = crate::streams::sample();
    for at in (0..stream.len()).step_by(5) {
        let mut corrupt = stream.clone();
        corrupt[at] ^= 4;
        let mut decoder = Decoder::new(Limits::default());
        decoder.feed(&corrupt);
        let error = loop {
            match decoder.next_event() {
                Ok(Some(_)) => {}
                Ok(None) => break decoder.finish().unwrap_err(),
                Err(e) => break e,
            }
        };
        assert!(!matches!(error, Error::Input(_)), "byte {at}: {error}");
        let again = match decoder.next_event() {
            Ok(event) => {
                assert!(event.is_none());
                decoder.finish().unwrap_err()
            }
            Err(e) => {
                assert_eq!(decoder.finish().unwrap_err().to_string(), e.to_string());
                e
            }
        };
        assert_eq!(again.to_string(), error.to_string(), "byte {at}");
        assert_eq!(again.location(), error.location(), "byte {at}");

        let mut slice = SliceReader::new(&corrupt, Limits::default());
        let mut reader = Reader::new(corrupt.as_slice(), Limits::default());
        while slice.next_event().is_ok_and(|event| event.is_some()) {}
        while reader.next_event().is_ok_and(|event| event.is_some()) {}
        for _ in 0..2 {
            assert_eq!(slice.next_event().unwrap_err().to_string(), error.to_string(), "byte {at}");
            assert_eq!(reader.next_event().unwrap_err().to_string(), error.to_string(), "byte {at}");
        }
    }
}

#[test]
fn tensor_descriptions_that_no_manifest_allows() {
    let named = |name: &str| TensorInfo::new(name, Dtype::F32, [2]);
    let refused = |info: TensorInfo| match Manifest::new(vec![named("first"), info]).unwrap_err() {
        Error::Input(e) => {
            assert_eq!(e.tensor, Some(1));
            e.kind
        }
        e => panic!("{e}"),
    };
    assert_eq!(refused(named("first")), InputErrorKind::DuplicateName);
    assert_eq!(refused(named("")), InputErrorKind::BadTensor { what: "name length" });
    let huge = TensorInfo::new("huge", Dtype::F64, [1 << 60]);
    assert_eq!(refused(huge), InputErrorKind::BadTensor { what: "number of elements" });
    let mut matrix = named("matrix");
    matrix.matrix = Some((3, 1));
    assert_eq!(refused(matrix), InputErrorKind::BadTensor { what: "matrix view" });
}

#[test]
fn shapes_that_are_too_large() {
    let kind = kind(TensorView::new(Dtype::F32, &[1 << 40, 1 << 40], &[]));
    assert!(matches!(kind, InputErrorKind::TooLarge { .. }), "{kind:?}");
}

#[test]
fn numbers_that_select_nothing() {
    let stream = crate::streams::sample();
    let file = File::open(&stream, Limits::default()).unwrap();
    let missing = InputErrorKind::OutOfBounds { what: "update", index: 7, count: 2 };
    assert_eq!(kind(file.tensors(7, |_| true, &BTreeMap::new())), missing);
    for event in SliceReader::new(&stream, Limits::default()) {
        if let Event::Frame(_, Body::Update(part)) = event.unwrap() {
            let count = part.blocks.len();
            let missing = InputErrorKind::OutOfBounds { what: "block", index: 99, count: count as u64 };
            assert_eq!(kind(part.decode(99, &part.budget())), missing);
            assert_eq!(kind(part.wire_block(99)), missing);
        }
    }
}

#[test]
fn updates_that_are_missing_or_incomplete() {
    let empty = Writer::new(Vec::new(), EncodeOptions::default()).finish().unwrap();
    assert_eq!(kind(gcodec::decode(&empty)), InputErrorKind::NoUpdate);
    let assembler = Assembler::new(&crate::streams::manifest(), &Limits::default(), |_| true).unwrap();
    assert_eq!(kind(assembler.finish()), InputErrorKind::IncompleteUpdate);
}

#[test]
fn digests_of_a_delta_out_of_order() {
    let digest = Digest::default();
    for tensors in [[2, 1], [1, 1]] {
        let delta = tensors.map(|tensor| Delta { first: tensor, more: 0, base: digest, result: digest });
        let header = UpdateHeader::default().with_delta(Some(delta.to_vec()));
        let mut out = Vec::new();
        let mut encoder = Encoder::new(EncodeOptions::default());
        let refused =
            encoder.update(&mut out, &header, &crate::streams::manifest(), &[] as &[gcodec::block::Block]);
        assert_eq!(kind(refused), InputErrorKind::NotAscending { what: "tensors of a delta" });
        assert!(out.is_empty());
    }
}

/// A part that failed is not passed over: later parts are refused, and there are no tensors.
#[test]
fn an_assembler_ends_with_its_first_failed_part() {
    use gcodec::block::{Block, Scope, Values};
    let manifest = crate::streams::manifest();
    let blocks = crate::streams::blocks();
    let latent = blocks.iter().find(|b| matches!(b.values, Values::Latent(_))).unwrap();
    let whole = |b: &&Block| b.scope == Scope::Tensor(3);
    let after = blocks.iter().find(whole).unwrap();
    let (mut encoder, mut out) = (Encoder::new(EncodeOptions::default().with_part_bytes(1)), Vec::new());
    encoder.update(&mut out, &UpdateHeader::default(), &manifest, [latent, after]).unwrap();
    encoder.finish(&mut out);
    let mut assembler = Assembler::new(&manifest, &Limits::default(), |_| true).unwrap();
    let (mut reader, mut results) = (SliceReader::new(&out, Limits::default()), Vec::new());
    while let Some(event) = reader.next_event().unwrap() {
        if let Event::Frame(_, Body::Update(part)) = event {
            results.push((part.last, assembler.apply(&part)));
        }
    }
    let [(false, Err(_)), (true, refused)] = <[_; 2]>::try_from(results).unwrap() else {
        panic!("the first of two parts needs a model")
    };
    assert_eq!(kind(refused), InputErrorKind::Mismatch { what: "part and update" });
    assert!(!assembler.is_complete());
    assert_eq!(kind(assembler.finish()), InputErrorKind::IncompleteUpdate);
}
