#![no_main]
//! What is recovered from any bytes reads well.

use gcodec::{Limits, SliceReader, file::recover};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let limits = Limits::default().with_max_alloc_bytes(1 << 22).with_max_elements(1 << 22);
    let saved = recover(bytes, &limits).expect("recovery does not fail");
    for event in SliceReader::new(&saved.stream, limits) {
        event.expect("what was recovered reads well");
    }
});
