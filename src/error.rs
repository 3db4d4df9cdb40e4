//! The public error types: what is wrong, where, and who is at fault.
//!
//! [`Error`] has one variant per party: the system ([`Error::Io`]), the bytes ([`Error::Format`]), a newer
//! writer ([`Error::Unsupported`]), the reader's policy ([`Error::Limit`]) and the caller ([`Error::Input`]).

use std::fmt;

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Every error of this crate, one variant per party at fault.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system: reading or writing failed.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The bytes: the format does not allow them.
    #[error(transparent)]
    Format(FormatError),
    /// The bytes may be well formed, but this reader does not know a feature that they use.
    #[error(transparent)]
    Unsupported(Unsupported),
    /// The bytes ask for more than the reader's [`Limits`](crate::Limits) allow.
    #[error(transparent)]
    Limit(LimitError),
    /// The caller: an argument, an input tensor or a missing companion (base, index set, model).
    #[error(transparent)]
    Input(InputError),
}

impl From<std::convert::Infallible> for Error {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

/// Place of an error in a stream.
///
/// `offset` counts bytes from the first byte given to the failing call: from the start of the stream for the
/// stream and file layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Location {
    /// Byte offset.
    pub offset: u64,
    /// Number of the frame, the first is 0.
    pub frame: Option<u64>,
    /// Number of the block inside its update, the first is 0.
    pub block: Option<u64>,
    /// Number of the tensor in the manifest, the first is 0.
    pub tensor: Option<u64>,
}

impl Location {
    /// Returns a location that is only an offset in bytes.
    pub(crate) fn at(offset: u64) -> Self {
        Self { offset, ..Self::default() }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at byte {:#x}", self.offset)?;
        for (name, number) in [("frame", self.frame), ("block", self.block), ("tensor", self.tensor)] {
            if let Some(number) = number {
                write!(f, ", {name} {number}")?;
            }
        }
        Ok(())
    }
}

/// Bytes that the format does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {at}")]
#[non_exhaustive]
pub struct FormatError {
    /// Rule that the bytes violate.
    pub kind: FormatErrorKind,
    /// Place of the violation.
    pub at: Location,
}

/// Kind of a format error, as in the spec's vectors ([`FormatErrorKind::name`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatErrorKind {
    /// The stream ends inside a structure, or without its end frame.
    #[error("the stream is truncated")]
    Truncated,
    /// The first eight bytes are not the magic.
    #[error("not a gcodec stream: wrong magic")]
    BadMagic,
    /// A frame does not begin with the sync word.
    #[error("no frame begins here: wrong sync word")]
    BadSync,
    /// A stored checksum differs from the computed one.
    #[error("checksum mismatch: stored {stored:08x}, computed {computed:08x}")]
    ChecksumMismatch {
        /// Checksum in the stream.
        stored: u32,
        /// Checksum of the bytes it covers.
        computed: u32,
    },
    /// A reserved bit or byte is not zero.
    #[error("reserved bits of {field} are not zero")]
    ReservedBits {
        /// Field with the reserved bits.
        field: &'static str,
    },
    /// A varint is longer than its value needs, or exceeds 64 bits.
    #[error("varint is longer than its value needs or exceeds 64 bits")]
    BadVarint,
    /// A padding bit is not zero.
    #[error("padding bits are not zero")]
    NonzeroPadding,
    /// A structure declares more bytes than it has, or leaves some unused.
    #[error("length of {field} does not match its bytes")]
    LengthMismatch {
        /// Name of the structure.
        field: &'static str,
    },
    /// A field has a value outside its range.
    #[error("{field} is out of range: {value}")]
    OutOfRange {
        /// Name of the field.
        field: &'static str,
        /// Value of the field.
        value: u64,
    },
    /// Text is not UTF-8.
    #[error("text is not UTF-8")]
    InvalidUtf8,
    /// Two tensors have the same name.
    #[error("two tensors have the same name")]
    DuplicateName,
    /// Blocks or positions are not in ascending order, or overlap.
    #[error("not in ascending order")]
    NotAscending,
    /// A position lies outside the index space.
    #[error("position {position} is outside the index space of {len} elements")]
    PositionOutOfRange {
        /// Position found.
        position: u64,
        /// Length of the index space in elements.
        len: u64,
    },
    /// A count differs from the number of items it counts.
    #[error("{field} does not match the items it counts")]
    CountMismatch {
        /// Name of the count.
        field: &'static str,
    },
    /// A frequency table is malformed.
    #[error("malformed frequency table")]
    BadTable,
    /// An entropy-coded section does not end in its initial state.
    #[error("corrupt entropy-coded data: it does not end in its initial state")]
    BadCode,
    /// The stream refers to an item that it has not defined.
    #[error("{field} is not defined before its first use")]
    UnknownReference {
        /// Kind of the item: manifest, table, index set.
        field: &'static str,
    },
    /// A frame stands where it is not allowed.
    #[error("{field} is misplaced")]
    Misplaced {
        /// Kind of the frame.
        field: &'static str,
    },
    /// A field has a valid value that is not its canonical one.
    #[error("{field} is not in canonical form")]
    NotCanonical {
        /// Name of the field.
        field: &'static str,
    },
}

impl FormatErrorKind {
    /// Returns the kind's name, as the spec's vectors write it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::BadMagic => "bad_magic",
            Self::BadSync => "bad_sync",
            Self::ChecksumMismatch { .. } => "checksum_mismatch",
            Self::ReservedBits { .. } => "reserved_bits",
            Self::BadVarint => "bad_varint",
            Self::NonzeroPadding => "nonzero_padding",
            Self::LengthMismatch { .. } => "length_mismatch",
            Self::OutOfRange { .. } => "out_of_range",
            Self::InvalidUtf8 => "invalid_utf8",
            Self::DuplicateName => "duplicate_name",
            Self::NotAscending => "not_ascending",
            Self::PositionOutOfRange { .. } => "position_out_of_range",
            Self::CountMismatch { .. } => "count_mismatch",
            Self::BadTable => "bad_table",
            Self::BadCode => "bad_code",
            Self::UnknownReference { .. } => "unknown_reference",
            Self::Misplaced { .. } => "misplaced",
            Self::NotCanonical { .. } => "not_canonical",
        }
    }
}

/// A feature that this reader does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} {id:#x} {at}")]
#[non_exhaustive]
pub struct Unsupported {
    /// Kind of the feature: "frame kind", "support", "values", "version", "element type", "attribute".
    pub what: &'static str,
    /// Number of the feature.
    pub id: u64,
    /// Place of that number.
    pub at: Location,
}

/// A limit that the bytes exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("limit {limit} exceeded: {asked} asked, {allowed} allowed, {at}")]
#[non_exhaustive]
pub struct LimitError {
    /// Field of [`Limits`](crate::Limits).
    pub limit: &'static str,
    /// Amount that the bytes ask for, in the limit's unit.
    pub asked: u64,
    /// Amount that is allowed, in the same unit.
    pub allowed: u64,
    /// Place of the structure that asks for it.
    pub at: Location,
}

/// A mistake of the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{kind}{}", Suffix(" (tensor ", *tensor, ")"))]
#[non_exhaustive]
pub struct InputError {
    /// Kind of the mistake.
    pub kind: InputErrorKind,
    /// Number of the tensor in the manifest, if the mistake concerns one.
    pub tensor: Option<u64>,
}

/// Kind of a caller's mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InputErrorKind {
    /// A buffer's length does not match its shape and element type.
    #[error("buffer has {found} bytes, but shape and element type need {expected}")]
    LengthMismatch {
        /// Bytes that shape and element type need.
        expected: u64,
        /// Bytes given.
        found: u64,
    },
    /// A shape or length exceeds what the format or this machine can hold.
    #[error("{what} is too large")]
    TooLarge {
        /// Name of the quantity.
        what: &'static str,
    },
    /// The element type does not suit the operation.
    #[error("{what} cannot take this element type")]
    WrongDtype {
        /// Operation that needs another element type.
        what: &'static str,
    },
    /// A value is NaN or infinite and the compressor cannot express it.
    #[error("element {index} is NaN or infinite")]
    NonFinite {
        /// Index of the element inside its tensor.
        index: u64,
    },
    /// A finite value is beyond the range of f32, in which lossy compressors compute.
    #[error(
        "element {index} is {:e}, beyond the range of f32, in which lossy codecs compute: scale the tensor, or \
         encode it with lossless",
        f64::from_bits(*bits)
    )]
    BeyondF32 {
        /// Index of the element inside its tensor.
        index: u64,
        /// Bits of the value, in binary64.
        bits: u64,
    },
    /// An option, or another argument that is a setting, is outside its range.
    #[error("option out of range: {what}")]
    BadOption {
        /// Name of the option.
        what: &'static str,
    },
    /// A tensor's description (name, shape, matrix view or shard) is not allowed in a manifest.
    #[error("invalid tensor description: {what}")]
    BadTensor {
        /// Part of the description that is wrong.
        what: &'static str,
    },
    /// Two tensors have the same name.
    #[error("two tensors have the same name")]
    DuplicateName,
    /// Arguments are not in ascending order, or repeat.
    #[error("{what} are not in ascending order")]
    NotAscending {
        /// Name of the arguments.
        what: &'static str,
    },
    /// A number exceeds the number of items it selects from.
    #[error("no {what} {index}: the count is {count}")]
    OutOfBounds {
        /// Kind of the item.
        what: &'static str,
        /// Number given, the first is 0.
        index: u64,
        /// Number of items.
        count: u64,
    },
    /// A block is inconsistent: its fields, counts, groups or positions are out of range or disagree.
    #[error("inconsistent block: {what}")]
    InconsistentBlock {
        /// Field that is wrong.
        what: &'static str,
    },
    /// The core profile of the format does not have this.
    #[error("not in the core profile of the format: {what}")]
    BeyondCore {
        /// Name of a kind, a coding or an attribute that the profile leaves out.
        what: &'static str,
    },
    /// A saved state cannot be loaded.
    #[error("invalid saved state: {what}")]
    BadState {
        /// Part of the state that is wrong.
        what: &'static str,
    },
    /// No tensor has this name or number.
    #[error("no such tensor")]
    NoSuchTensor,
    /// The stream contains no update.
    #[error("the stream contains no update")]
    NoUpdate,
    /// The last part of the update is missing.
    #[error("incomplete update: its last part is missing")]
    IncompleteUpdate,
    /// The update needs a base tensor that was not given.
    #[error("the update is a delta, and its base, or this tensor of it, was not given")]
    MissingBase,
    /// A base tensor has another element type or shape than the delta says.
    #[error("the base has this tensor with another type or shape than the delta")]
    BaseOfAnotherKind,
    /// The base differs from the one that the delta was made against.
    #[error("the base is not the one that this delta was made against")]
    BaseMismatch,
    /// The result of a delta differs from the one that its sender had.
    #[error("the result of the delta is not the one that its sender had")]
    ResultMismatch,
    /// The update refers to an index set that is not known.
    #[error("missing index set {}", Hex(id))]
    MissingIndexSet {
        /// First eight bytes of its id.
        id: [u8; 8],
    },
    /// The update refers to a model that is not known.
    #[error("missing model {}", Hex(id))]
    MissingModel {
        /// First eight bytes of its id.
        id: [u8; 8],
    },
    /// Two things that must be equal differ.
    #[error("{what} differ")]
    Mismatch {
        /// Names of both.
        what: &'static str,
    },
    /// A sum or mean would have no meaning.
    #[error("cannot be summed{}: {why}", Suffix(" (sender ", *sender, ")"))]
    CannotReduce {
        /// Reason.
        why: &'static str,
        /// Sender of the refused update, where one is known.
        sender: Option<u64>,
    },
    /// A message that a protocol between workers does not expect at this step.
    #[error("out of turn: {what}")]
    OutOfTurn {
        /// Message that came, and the one that was expected.
        what: &'static str,
    },
}

/// A number between two texts, or nothing.
struct Suffix(&'static str, Option<u64>, &'static str);

impl fmt::Display for Suffix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(before, number, after) = self;
        number.map_or(Ok(()), |number| write!(f, "{before}{number}{after}"))
    }
}

/// Bytes as hexadecimal digits.
struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl Error {
    /// Returns a format error at `offset`.
    pub(crate) fn format(kind: FormatErrorKind, offset: u64) -> Self {
        Self::Format(FormatError { kind, at: Location::at(offset) })
    }

    /// Returns the error for a field out of its range at `offset`.
    pub(crate) fn out_of_range(field: &'static str, value: u64, offset: u64) -> Self {
        Self::format(FormatErrorKind::OutOfRange { field, value }, offset)
    }

    /// Returns the error for an unknown feature at `offset`.
    pub(crate) fn unsupported(what: &'static str, id: u64, offset: u64) -> Self {
        Self::Unsupported(Unsupported { what, id, at: Location::at(offset) })
    }

    /// Returns the error for a caller's mistake.
    pub(crate) fn input(kind: InputErrorKind) -> Self {
        Self::Input(InputError { kind, tensor: None })
    }

    /// Returns the error for arguments that are not in ascending order.
    pub(crate) fn not_ascending(what: &'static str) -> Self {
        Self::input(InputErrorKind::NotAscending { what })
    }

    /// Returns the error for a shape or length that is too large.
    pub(crate) fn too_large(what: &'static str) -> Self {
        Self::input(InputErrorKind::TooLarge { what })
    }

    /// Returns the error for the number `index` of an item among `count`.
    pub(crate) fn out_of_bounds(what: &'static str, index: usize, count: usize) -> Self {
        Self::input(InputErrorKind::OutOfBounds { what, index: index as u64, count: count as u64 })
    }

    /// Returns the error for an option out of its range. Not for data: bytes have format errors, blocks
    /// [`Self::inconsistent`].
    pub(crate) fn bad_option(what: &'static str) -> Self {
        Self::input(InputErrorKind::BadOption { what })
    }

    /// Returns the error for a caller's inconsistent block.
    pub(crate) fn inconsistent(what: &'static str) -> Self {
        Self::input(InputErrorKind::InconsistentBlock { what })
    }

    /// Returns the error for a sum without meaning.
    pub(crate) fn cannot_reduce(why: &'static str) -> Self {
        Self::input(InputErrorKind::CannotReduce { why, sender: None })
    }

    /// Adds the sender whose update cannot be summed, unless one is set.
    pub(crate) fn of_sender(mut self, number: u64) -> Self {
        if let Self::Input(InputError { kind: InputErrorKind::CannotReduce { sender, .. }, .. }) = &mut self {
            sender.get_or_insert(number);
        }
        self
    }

    /// Returns the error again, for a reader that is called after a failure. An IO error keeps only its kind.
    pub(crate) fn duplicate(&self) -> Self {
        match self {
            Self::Io(e) => Self::Io(e.kind().into()),
            Self::Format(e) => Self::Format(*e),
            Self::Unsupported(e) => Self::Unsupported(*e),
            Self::Limit(e) => Self::Limit(*e),
            Self::Input(e) => Self::Input(*e),
        }
    }

    fn location_mut(&mut self) -> Option<&mut Location> {
        match self {
            Self::Format(e) => Some(&mut e.at),
            Self::Unsupported(e) => Some(&mut e.at),
            Self::Limit(e) => Some(&mut e.at),
            Self::Io(_) | Self::Input(_) => None,
        }
    }

    /// Returns the place of the error, if it concerns bytes.
    pub fn location(&self) -> Option<Location> {
        match self {
            Self::Format(e) => Some(e.at),
            Self::Unsupported(e) => Some(e.at),
            Self::Limit(e) => Some(e.at),
            Self::Io(_) | Self::Input(_) => None,
        }
    }

    /// Adds the number of the frame, unless one is set.
    pub(crate) fn in_frame(mut self, frame: u64) -> Self {
        if let Some(at) = self.location_mut() {
            at.frame.get_or_insert(frame);
        }
        self
    }

    /// Moves the place to `offset` if it is before it, for code that does not know the offset of its bytes.
    pub(crate) fn not_before(mut self, offset: u64) -> Self {
        if let Some(at) = self.location_mut() {
            at.offset = at.offset.max(offset);
        }
        self
    }

    /// Adds the number of the block, unless one is set.
    pub(crate) fn in_block(mut self, block: u64) -> Self {
        if let Some(at) = self.location_mut() {
            at.block.get_or_insert(block);
        }
        self
    }

    /// Adds the number of the tensor, unless one is set.
    pub(crate) fn in_tensor(mut self, tensor: u64) -> Self {
        if let Self::Input(e) = &mut self {
            e.tensor.get_or_insert(tensor);
        } else if let Some(at) = self.location_mut() {
            at.tensor.get_or_insert(tensor);
        }
        self
    }

    /// Returns the error's name as the spec's vectors write it: a format error's kind, or `unsupported`,
    /// `limit`, `io`, `input`. A missing or wrong companion of the stream has the name that the spec gives
    /// it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Io(_) => "io",
            Self::Format(e) => e.kind.name(),
            Self::Unsupported(_) => "unsupported",
            Self::Limit(_) => "limit",
            Self::Input(e) => match e.kind {
                InputErrorKind::MissingBase
                | InputErrorKind::BaseOfAnotherKind
                | InputErrorKind::MissingIndexSet { .. }
                | InputErrorKind::MissingModel { .. } => "unknown_reference",
                InputErrorKind::BaseMismatch | InputErrorKind::ResultMismatch => "checksum_mismatch",
                _ => "input",
            },
        }
    }
}

/// For code on top of this crate that checks its callers' arguments.
impl From<InputErrorKind> for Error {
    fn from(kind: InputErrorKind) -> Self {
        Self::input(kind)
    }
}

impl From<Error> for std::io::Error {
    fn from(e: Error) -> Self {
        use std::io::ErrorKind;
        let kind = match &e {
            Error::Io(_) => {
                let Error::Io(e) = e else { unreachable!() };
                return e;
            }
            Error::Format(FormatError { kind: FormatErrorKind::Truncated, .. }) => ErrorKind::UnexpectedEof,
            Error::Format(_) | Error::Limit(_) => ErrorKind::InvalidData,
            Error::Unsupported(_) => ErrorKind::Unsupported,
            Error::Input(_) => ErrorKind::InvalidInput,
        };
        Self::new(kind, e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_where_and_stays_small() {
        let e = Error::format(FormatErrorKind::BadTable, 0x104).in_block(2).in_frame(1).in_block(9);
        assert_eq!(e.to_string(), "malformed frequency table at byte 0x104, frame 1, block 2");
        assert_eq!(e.name(), "bad_table");
        const { assert!(size_of::<Error>() <= 128) };
        let io: std::io::Error = Error::format(FormatErrorKind::Truncated, 0).into();
        assert_eq!(io.kind(), std::io::ErrorKind::UnexpectedEof);
    }
}
