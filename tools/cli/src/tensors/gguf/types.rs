//! The element types of llama.cpp (`ggml_type`).

use gcodec::tensor::Dtype;

/// An element type: elements of one block, and bytes of one block.
pub(super) struct Type {
    pub(super) name: &'static str,
    /// The same type in streams.
    pub(super) dtype: Option<Dtype>,
    pub(super) block: u64,
    pub(super) bytes: u64,
}

/// Returns the element type with this number; `None` for a later one, and for one of which different
/// programs make blocks of different sizes.
pub(super) fn of(number: u32) -> Option<Type> {
    let plain =
        |name, dtype: Dtype| Type { name, dtype: Some(dtype), block: 1, bytes: u64::from(dtype.bits() / 8) };
    let blocks = |name, block, bytes| Type { name, dtype: None, block, bytes };
    Some(match number {
        0 => plain("f32", Dtype::F32),
        1 => plain("f16", Dtype::F16),
        2 => blocks("q4_0", 32, 18),
        3 => blocks("q4_1", 32, 20),
        6 => blocks("q5_0", 32, 22),
        7 => blocks("q5_1", 32, 24),
        8 => blocks("q8_0", 32, 34),
        9 => blocks("q8_1", 32, 36),
        10 => blocks("q2_K", 256, 84),
        11 => blocks("q3_K", 256, 110),
        12 => blocks("q4_K", 256, 144),
        13 => blocks("q5_K", 256, 176),
        14 => blocks("q6_K", 256, 210),
        15 => blocks("q8_K", 256, 292),
        16 => blocks("iq2_xxs", 256, 66),
        17 => blocks("iq2_xs", 256, 74),
        18 => blocks("iq3_xxs", 256, 98),
        19 => blocks("iq1_s", 256, 50),
        20 => blocks("iq4_nl", 32, 18),
        21 => blocks("iq3_s", 256, 110),
        22 => blocks("iq2_s", 256, 82),
        23 => blocks("iq4_xs", 256, 136),
        24 => plain("i8", Dtype::I8),
        25 => plain("i16", Dtype::I16),
        26 => plain("i32", Dtype::I32),
        27 => plain("i64", Dtype::I64),
        28 => plain("f64", Dtype::F64),
        29 => blocks("iq1_m", 256, 56),
        30 => plain("bf16", Dtype::Bf16),
        // Elements of several rows in turn; llama.cpp no longer reads them.
        31 => blocks("q4_0_4_4", 32, 18),
        32 => blocks("q4_0_4_8", 32, 18),
        33 => blocks("q4_0_8_8", 32, 18),
        34 => blocks("tq1_0", 256, 54),
        35 => blocks("tq2_0", 256, 66),
        36 => blocks("iq4_nl_4_4", 32, 18),
        37 => blocks("iq4_nl_4_8", 32, 18),
        38 => blocks("iq4_nl_8_8", 32, 18),
        39 => blocks("mxfp4", 32, 17),
        40 => blocks("nvfp4", 64, 36),
        41 => blocks("q1_0", 128, 18),
        _ => return None,
    })
}

/// Returns what an element type is called whose blocks are not known.
pub(super) fn name(number: u32) -> String {
    match number {
        42 => "q2_0".to_owned(),
        number => format!("type {number}"),
    }
}
