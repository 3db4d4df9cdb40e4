//! Every vector of the spec has the same verdict through the C ABI as with the Rust reader: status, kind,
//! offset and message.

#![allow(unsafe_code, reason = "calls the C ABI")]

use std::ffi::{CStr, CString, c_char};
use std::mem::MaybeUninit;
use std::ptr::null_mut;

use gcodec::stream::{Assembler, Body, Event, SliceReader};
use gcodec::{Dtype, Limits, TensorBuf};
use gcodec_c::*;
use serde_json::Value;

type Verdict = Result<Vec<(String, Vec<u8>)>, (String, Option<u64>, String)>;

fn vectors() -> Vec<Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../spec/vectors/index.json");
    let index: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    index["vectors"].as_array().unwrap().clone()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect()
}

fn bases(vector: &Value) -> Vec<(CString, TensorBuf)> {
    let base = vector["base"].as_object().into_iter().flatten();
    let tensor = |json: &Value| {
        let shape = json["shape"].as_array().unwrap().iter().map(|d| d.as_u64().unwrap()).collect();
        let dtype = Dtype::from_name(json["dtype"].as_str().unwrap()).unwrap();
        TensorBuf::new(dtype, shape, unhex(json["data"].as_str().unwrap())).unwrap()
    };
    base.map(|(name, json)| (CString::new(name.as_str()).unwrap(), tensor(json))).collect()
}

/// Returns the verdict of the Rust reader on the last update.
fn with_rust(bytes: &[u8], limits: &Limits, bases: &[(CString, TensorBuf)]) -> Verdict {
    let read = || -> gcodec::Result<Vec<(String, Vec<u8>)>> {
        let mut parts = Vec::new();
        let mut reader = SliceReader::new(bytes, limits.clone());
        while let Some(event) = reader.next_event()? {
            if let Event::Frame(_, Body::Update(part)) = event {
                if part.part == 0 {
                    parts.clear();
                }
                parts.push(part);
            }
        }
        let Some(first) = parts.first() else {
            return gcodec::decode_with(bytes, limits).map(|_| Vec::new());
        };
        let manifest = first.manifest.clone();
        let mut assembler = Assembler::new(&manifest, limits, |_| true)?;
        for (name, tensor) in bases {
            assembler.base(name.to_str().unwrap(), tensor.view())?;
        }
        parts.iter().try_for_each(|part| assembler.apply(part))?;
        let name = |number: u64| manifest.tensors()[number as usize].name.clone();
        Ok(assembler.finish()?.into_iter().map(|(number, t)| (name(number), t.into_data())).collect())
    };
    read().map_err(|e| {
        let at = e.location().map(|at| at.offset);
        (e.name().to_owned(), at, e.to_string())
    })
}

fn text(chars: &[c_char]) -> String {
    let bytes: Vec<u8> = chars.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
    String::from_utf8(bytes).unwrap()
}

/// Returns the verdict of the C ABI.
fn with_c(bytes: &[u8], limits: &gcodec_limits, bases: &[(CString, TensorBuf)]) -> Verdict {
    let mut error = MaybeUninit::<gcodec_error>::uninit();
    let mut decoder = null_mut();
    let given: Vec<gcodec_tensor> = bases
        .iter()
        .map(|(name, tensor)| gcodec_tensor {
            name: name.as_ptr(),
            name_len: 0,
            data: tensor.data().as_ptr().cast(),
            bytes: tensor.data().len(),
            shape: tensor.shape().as_ptr(),
            rank: tensor.shape().len(),
            dtype: tensor.dtype().id().into(),
        })
        .collect();
    // SAFETY: all pointers are those of local variables, which live until the decoder is freed.
    unsafe {
        let ok = gcodec_status::Ok;
        assert_eq!(gcodec_decoder_new(limits, &raw mut decoder, error.as_mut_ptr()), ok);
        assert_eq!(gcodec_decoder_base(decoder, given.as_ptr(), given.len(), error.as_mut_ptr()), ok);
        let status = gcodec_decoder_decode(decoder, bytes.as_ptr(), bytes.len(), error.as_mut_ptr());
        let verdict = if status == ok {
            let (mut count, mut tensor) = (0, MaybeUninit::<gcodec_tensor>::uninit());
            assert_eq!(gcodec_decoder_count(decoder, &raw mut count, null_mut()), ok);
            let tensors = (0..count).map(|index| {
                assert_eq!(gcodec_decoder_tensor(decoder, index, tensor.as_mut_ptr(), null_mut()), ok);
                let tensor = tensor.assume_init();
                let mut data = vec![0; tensor.bytes];
                let copied = gcodec_decoder_copy(decoder, index, data.as_mut_ptr(), data.len(), null_mut());
                assert_eq!(copied, ok);
                (CStr::from_ptr(tensor.name).to_str().unwrap().to_owned(), data)
            });
            Ok(tensors.collect())
        } else {
            let error = error.assume_init();
            assert_eq!(error.status, status);
            let offset = (error.offset != GCODEC_UNKNOWN).then_some(error.offset);
            Err((text(&error.kind), offset, text(&error.message)))
        };
        gcodec_decoder_free(decoder);
        verdict
    }
}

/// Returns the kind and the offset of the error that a report names.
fn report(bytes: &[u8], limits: &gcodec_limits) -> Option<(String, Option<u64>)> {
    let (mut error, mut report) = (MaybeUninit::<gcodec_error>::uninit(), null_mut());
    // SAFETY: all pointers are those of local variables.
    unsafe {
        let status =
            gcodec_report_new(bytes.as_ptr(), bytes.len(), limits, &raw mut report, error.as_mut_ptr());
        assert!(!report.is_null());
        gcodec_report_free(report);
        (status != gcodec_status::Ok).then(|| {
            let error = error.assume_init();
            (text(&error.kind), (error.offset != GCODEC_UNKNOWN).then_some(error.offset))
        })
    }
}

macro_rules! limits {
    ($vector:ident, $($field:ident $with:ident)*) => {{
        let given = &$vector["limits"];
        let rust = Limits::default();
        $(let rust = match given[stringify!($field)].as_u64() {
            Some(value) => rust.$with(value),
            None => rust,
        };)*
        let c = gcodec_limits { $($field: rust.$field),* };
        (rust, c)
    }};
}

#[test]
fn vectors_have_the_verdict_of_the_rust_reader() {
    let (mut accepted, mut refused) = (0, 0);
    for vector in vectors() {
        let bytes = unhex(vector["hex"].as_str().unwrap());
        let (rust, c) = limits!(vector,
            max_frame_bytes with_max_frame_bytes
            max_tensors with_max_tensors
            max_rank with_max_rank
            max_name_bytes with_max_name_bytes
            max_elements with_max_elements
            max_alloc_bytes with_max_alloc_bytes
            max_blocks with_max_blocks
            max_inflated_bytes with_max_inflated_bytes
            max_definitions with_max_definitions
        );
        let bases = bases(&vector);
        let id = &vector["id"];
        match (with_rust(&bytes, &rust, &bases), with_c(&bytes, &c, &bases)) {
            (Ok(expected), Ok(found)) => {
                assert_eq!(found, expected, "{id}");
                accepted += 1;
            }
            (Err((kind, offset, message)), Err(found)) => {
                assert_eq!((&found.0, found.1), (&kind, offset), "{id}: {} and {message}", found.2);
                // The ABI adds the tensor's name.
                assert!(found.2.ends_with(&message), "{id}: {} and {message}", found.2);
                refused += 1;
            }
            (rust, c) => panic!("{id}: {rust:?} and {c:?}"),
        }
        let described = report(&bytes, &c);
        match vector["error"]["stage"].as_str() {
            Some("decode") => {
                assert_eq!(described.map(|e| e.0).as_deref(), vector["error"]["kind"].as_str(), "{id}");
            }
            _ => assert_eq!(described, None, "{id}"),
        }
    }
    assert!(accepted > 100 && refused > 200, "{accepted} accepted, {refused} refused");
    // SAFETY: null is allowed.
    assert_eq!(unsafe { gcodec_limits_default(null_mut(), null_mut()) }, gcodec_status::Input);
}
