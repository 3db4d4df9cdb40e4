//! The central type: a [`Block`] says *which* elements it speaks of (its [`Support`]) and *what* it says of them (its
//! [`Values`]). A compressor makes blocks, the wire carries them without loss (spec, section 5).

mod dense;
mod part;
pub(crate) mod space;
pub(crate) mod support;
pub(crate) mod values;
mod wire;

pub use crate::codes::CODINGS;
pub use dense::Target;
pub(crate) use part::WrittenBlock;
pub use part::{Part, WireBlock};
pub use space::{IndexSpace, Lens, Sets, SharedSet};
pub use support::{Positions, SupportId};
pub use values::{Packed, ValuesId, WireValues};
pub use wire::{BlockOptions, RawBlock};

/// What one block of an update says.
///
/// `values` holds one value for each element of `support`, in the order of their positions in the block's index space:
/// the elements of the tensors that `scope` names, in row-major order, one tensor after the other.
#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    /// The tensors, or the part of one, that the block's index space covers.
    pub scope: Scope,
    /// Whether the values are added to what earlier blocks of the update said, instead of replacing it.
    pub add: bool,
    /// Which elements of the index space the block speaks of.
    pub support: Support,
    /// What it says of them.
    pub values: Values,
}

/// The index space of a block, in terms of the manifest's tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// One whole tensor, by its number in the manifest.
    Tensor(u64),
    /// `count` >= 2 consecutive whole tensors of one element type, the first by its number.
    Tensors {
        /// Number of the first tensor.
        first: u64,
        /// How many.
        count: u64,
    },
    /// The elements `start .. start + len` of one tensor; `len` >= 1.
    Range {
        /// Number of the tensor.
        tensor: u64,
        /// First element.
        start: u64,
        /// Number of elements.
        len: u64,
    },
}

/// Which elements of an index space of `n` elements a block speaks of (spec, supports/).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Support {
    /// All of them.
    All,
    /// The elements at these positions, strictly ascending, each < n. On the wire: gaps by Rice, gaps by tokens, or a
    /// bitmap, as [`Positions`] says.
    Sparse(Vec<u64>),
    /// In each chunk of `chunk_len` elements exactly `kept` of them (all of a last chunk that is shorter than `kept`).
    Chunked {
        /// Elements in a chunk: 1 to 2^32.
        chunk_len: u64,
        /// Kept elements of a chunk: 1 to `chunk_len`.
        kept: u64,
        /// Positions inside their chunks, strictly ascending in each, one chunk after the other.
        positions: Vec<u32>,
    },
    /// Whole rows of `row_len` elements; `row_len` divides n.
    Rows {
        /// Elements in a row, at least 1.
        row_len: u64,
        /// The rows, strictly ascending.
        rows: Vec<u64>,
    },
    /// `count` positions drawn without replacement by the generator of the spec, so that a seed stands for them.
    Seeded {
        /// How many, at most n.
        count: u64,
        /// The generator's key.
        seed: u64,
    },
    /// The positions of an index set that was sent as a frame of its own.
    Set(SetId),
}

/// The hash that names an index set: BLAKE3 of its frame's body.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SetId(pub [u8; 32]);

/// The hash that names a model: BLAKE3 of its weights.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelId(pub [u8; 32]);

macro_rules! debug_as_hex {
    ($($id:ident)*) => { $(
        impl std::fmt::Display for $id {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
            }
        }
        impl std::fmt::Debug for $id {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}({self})", stringify!($id))
            }
        }
    )* };
}
pub(crate) use debug_as_hex;
debug_as_hex!(SetId ModelId);

/// What a block says of the elements of its support (spec, values/). `m` below is the number of those elements.
///
/// Kinds other than [`Values::Floats`] of [`Stored::Source`], [`Values::Planes`] and [`Values::Ulp`] give a 32-bit float
/// for each element, which is converted to the tensor's element type by rounding to nearest, ties to even.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Values {
    /// Numbers as they are.
    Floats {
        /// How they are stored.
        stored: Stored,
        /// `m` numbers in little-endian bytes.
        bytes: Vec<u8>,
    },
    /// Each element has its group's scale: Sparse Binary Compression.
    Constant {
        /// Which values share a scale.
        groups: Groups,
        /// The scales, with their signs.
        scales: Scales,
    },
    /// Each element is plus or minus its group's scale.
    Sign {
        /// Which values share a scale.
        groups: Groups,
        /// The scales.
        scales: Scales,
        /// A bit for each value: 1 for minus.
        negative: Bits,
    },
    /// Each element is zero or a power of two: code 0 is zero, code c is 2^(min_exponent + c - 1).
    Pow2 {
        /// Exponent of code 1: -1074 to 1023.
        min_exponent: i16,
        /// What the sender did with magnitudes below the smallest power.
        underflow: Underflow,
        /// A code for each value.
        codes: Vec<u8>,
        /// A bit for each value: 1 for minus; 0 for those that are zero, which have no sign.
        negative: Bits,
    },
    /// Each element is its group's norm times a level between -1 and 1.
    Levels {
        /// How levels are spaced.
        spacing: Spacing,
        /// Number of the largest level, s: 1 to 65,535 for uniform spacing, 1 to 255 for natural.
        max_level: u32,
        /// Which norm the sender took.
        norm: Norm,
        /// Which values share a norm.
        groups: Groups,
        /// The norms.
        norms: Scales,
        /// A level for each value: -s to s.
        levels: Vec<i32>,
    },
    /// Each element is an integer code of 1 to 8 bits times its group's scale, minus a zero point or plus an offset.
    Affine {
        /// Bits of a code: 1 to 8.
        bits: u8,
        /// Which values share a scale.
        groups: Groups,
        /// The scales.
        scales: Scales,
        /// Where zero lies.
        zero: Zero,
        /// A code for each value, each < 2^bits.
        codes: Vec<u8>,
    },
    /// Each element is an entry of a table, times its group's scale, plus its group's shift.
    Codebook {
        /// The table: 2 to 256 entries.
        table: Vec<f32>,
        /// Which values share a scale and a shift.
        groups: Groups,
        /// The scales, if any.
        scales: Option<Scales>,
        /// The shifts, if any.
        shifts: Option<Scales>,
        /// A table index for each value.
        codes: Vec<u8>,
    },
    /// Each element is a small float times its group's scale: FP8, FP4, MX.
    Minifloat {
        /// The element format.
        format: Minifloat,
        /// Which values share a scale.
        groups: Groups,
        /// The scales.
        scales: Scales,
        /// A bit pattern for each value, each < 2^bits of the format.
        codes: Vec<u8>,
    },
    /// The elements' own bits, byte plane by byte plane, entropy coded.
    Planes {
        /// `m` elements of the tensor's type in little-endian bytes.
        bytes: Vec<u8>,
    },
    /// The difference to a base tensor in units of the last place.
    Ulp {
        /// A difference for each value.
        diffs: Vec<i64>,
    },
    /// Codes from which a learned decoder makes the values.
    Latent {
        /// The model that decodes them.
        model: ModelId,
        /// The shape of the codes.
        shape: Vec<u64>,
        /// The codes: any kind that gives floats and is not itself latent or low-rank.
        codes: Box<Values>,
    },
    /// A matrix as the product `left * right^T`; the support is all, rows * cols = n.
    LowRank {
        /// Rows of the matrix.
        rows: u64,
        /// Columns of the matrix.
        cols: u64,
        /// The rank, at least 1.
        rank: u64,
        /// rows x rank numbers, row-major: any kind that gives floats and is not itself latent or low-rank.
        left: Box<Values>,
        /// cols x rank numbers, row-major.
        right: Box<Values>,
    },
    /// A matrix by the coefficients of a blockwise orthonormal DCT-II; the support is all, rows * cols = n (DeMo, arXiv
    /// 2411.19870).
    Dct {
        /// Rows of the matrix.
        rows: u64,
        /// Columns of the matrix.
        cols: u64,
        /// Rows of a chunk: 1 to 128, a divisor of `rows`.
        chunk_rows: u64,
        /// Columns of a chunk: 1 to 128, a divisor of `cols`.
        chunk_cols: u64,
        /// Which of the n coefficients are not zero, chunk after chunk, row-major in each; no set.
        support: Support,
        /// A number for each of them: any kind that gives floats and is not latent, low-rank or a transform itself.
        coefficients: Box<Values>,
    },
}

/// How [`Values::Floats`] are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Stored {
    /// As the tensor's own element type: lossless.
    Source = 0,
    F32 = 2,
    F16 = 3,
    Bf16 = 4,
}

/// Which values share a scale, a norm or a zero point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Groups {
    /// All values of the block: one group.
    Block,
    /// The values of each tensor of the scope: as many groups as tensors, even where one has no values.
    Tensor,
    /// Each run of this many consecutive values, at least 2; the last may be shorter.
    Len(u64),
}

/// One number per group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scales {
    /// How they are stored.
    pub format: ScaleFormat,
    /// The numbers in little-endian bytes.
    pub bytes: Vec<u8>,
}

/// How scales are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum ScaleFormat {
    F32 = 2,
    F16 = 3,
    Bf16 = 4,
    /// A power of two by its biased exponent, 2^(x - 127); 255 is NaN (OCP MX).
    E8M0 = 64,
}

/// What the sender did with magnitudes between zero and the smallest power of two. For the reader's information.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Underflow {
    /// Zero or the smallest power at random, without bias.
    Unbiased = 0,
    /// Zero.
    Zero = 1,
    /// The smallest power.
    Smallest = 2,
}

/// How the levels of [`Values::Levels`] are spaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Spacing {
    /// Level l is l / s: QSGD, TernGrad (s = 1).
    Uniform = 0,
    /// Level 0 is 0, level l is 2^(l - s): natural dithering.
    Natural = 1,
}

/// Which norm scales the levels. For the reader's information.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Norm {
    /// Sum of magnitudes.
    L1 = 1,
    /// Square root of the sum of squares.
    L2 = 2,
    /// Largest magnitude.
    Max = 255,
}

/// Where the zero of an affine code lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Zero {
    /// At 2^(bits-1) for all groups.
    Centre,
    /// At this code, one for each group.
    Point(Vec<u8>),
    /// The value is `scale * code + offset`, one offset for each group.
    Offset(Scales),
}

/// A small float format (OCP FP8 and MX; e3m0 as in Streaming DiLoCo).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Minifloat {
    F8E4M3Fn = 5,
    F8E5M2 = 6,
    F8E4M3Fnuz = 7,
    F8E5M2Fnuz = 8,
    F4E2M1 = 9,
    F6E3M2 = 65,
    F6E2M3 = 66,
    F4E3M0 = 67,
    /// Two's complement with an implied 2^-6 (OCP MXINT8).
    Int8 = 68,
}

/// A row of bits, least significant bit of each byte first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bits {
    len: u64,
    bytes: Vec<u8>,
}

impl Bits {
    /// Takes `bytes` as `len` bits; `None` unless there are exactly `len` bits' worth of bytes and the padding is zero.
    pub fn from_bytes(len: u64, bytes: Vec<u8>) -> Option<Self> {
        let padding = if len.is_multiple_of(8) { 0 } else { bytes.last()? >> (len % 8) };
        (bytes.len() as u64 == len.div_ceil(8) && padding == 0).then_some(Self { len, bytes })
    }

    /// The number of bits.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bits, eight to a byte.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Bit `index`; false beyond the end.
    pub fn get(&self, index: usize) -> bool {
        self.bytes.get(index / 8).is_some_and(|b| b >> (index % 8) & 1 == 1)
    }
}

impl FromIterator<bool> for Bits {
    fn from_iter<I: IntoIterator<Item = bool>>(iter: I) -> Self {
        let (mut iter, mut bits) = (iter.into_iter(), Self::default());
        bits.bytes.reserve(iter.size_hint().0 / 8);
        loop {
            let (mut byte, mut here) = (0, 0u32);
            for bit in iter.by_ref().take(8) {
                byte |= u8::from(bit) << here;
                here += 1;
            }
            if here > 0 {
                bits.bytes.push(byte);
                bits.len += u64::from(here);
            }
            if here < 8 {
                break;
            }
        }
        bits
    }
}
