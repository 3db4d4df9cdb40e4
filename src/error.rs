//! The public error types: what went wrong, where, and whose fault it is.
//!
//! [`Error`] has one variant per party: the world ([`Error::Io`]), the bytes ([`Error::Format`]), a newer
//! writer ([`Error::Unsupported`]), the reader's policy ([`Error::Limit`]) and the caller ([`Error::Input`]).

use std::fmt;

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong, one variant per party at fault.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The world: reading or writing failed.
    Io(std::io::Error),
    /// The bytes: they are not what the format allows.
    Format(FormatError),
    /// The bytes may be well formed, but need a reader that knows more than this one.
    Unsupported(Unsupported),
    /// The bytes ask for more than the reader's [`Limits`](crate::Limits) allow.
    Limit(LimitError),
    /// The caller: an argument, an input tensor or a missing companion (base, index set, model).
    Input(InputError),
}

/// Where in a stream something was found.
///
/// `offset` counts bytes from the first byte that the failing call was given: from the start of the stream for the
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
    /// A location that is only an offset.
    pub fn at(offset: u64) -> Self {
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct FormatError {
    /// What is wrong.
    pub kind: FormatErrorKind,
    /// Where it is wrong.
    pub at: Location,
}

/// What is wrong with the bytes. The names are those of the spec's vectors ([`FormatErrorKind::name`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FormatErrorKind {
    /// The stream ends inside a structure, or without its end frame.
    Truncated,
    /// The first eight bytes are not the magic.
    BadMagic,
    /// A frame does not begin with the sync word.
    BadSync,
    /// A stored checksum differs from the computed one.
    ChecksumMismatch {
        /// The checksum in the bytes.
        stored: u32,
        /// The checksum of the bytes.
        computed: u32,
    },
    /// A reserved bit or byte is not zero.
    ReservedBits {
        /// The field that holds it.
        field: &'static str,
    },
    /// A varint is longer than its value needs, or exceeds 64 bits.
    BadVarint,
    /// A padding bit is not zero.
    NonzeroPadding,
    /// A structure declares more bytes than are there, or leaves some over.
    LengthMismatch {
        /// The structure.
        field: &'static str,
    },
    /// A field has a value outside its range.
    OutOfRange {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// Text is not UTF-8.
    InvalidUtf8,
    /// Two tensors have one name.
    DuplicateName,
    /// Blocks or positions are not in ascending order, or overlap.
    NotAscending,
    /// A position lies outside the index space.
    PositionOutOfRange {
        /// The position.
        position: u64,
        /// The number of elements of the index space.
        len: u64,
    },
    /// A count does not agree with the structure it counts.
    CountMismatch {
        /// The count.
        field: &'static str,
    },
    /// A frequency table is malformed.
    BadTable,
    /// An entropy-coded section does not end in its initial state.
    BadCode,
    /// Something is referred to that the stream has not defined.
    UnknownReference {
        /// What: manifest, table, index set.
        field: &'static str,
    },
    /// A frame stands where it may not.
    Misplaced {
        /// The frame.
        field: &'static str,
    },
    /// A field has a valid value that is not its canonical one.
    NotCanonical {
        /// The field.
        field: &'static str,
    },
}

impl FormatErrorKind {
    /// The kind's name, as the spec's vectors write it.
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

impl fmt::Display for FormatErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("the stream ends too early"),
            Self::BadMagic => f.write_str("not a gcodec stream: wrong magic"),
            Self::BadSync => f.write_str("no frame begins here: wrong sync word"),
            Self::ChecksumMismatch { stored, computed } => {
                write!(f, "checksum mismatch: stored {stored:08x}, computed {computed:08x}")
            }
            Self::ReservedBits { field } => write!(f, "reserved bits set in {field}"),
            Self::BadVarint => f.write_str("varint is not minimal or exceeds 64 bits"),
            Self::NonzeroPadding => f.write_str("padding bits are not zero"),
            Self::LengthMismatch { field } => write!(f, "length of {field} does not fit its bytes"),
            Self::OutOfRange { field, value } => write!(f, "{field} is out of range: {value}"),
            Self::InvalidUtf8 => f.write_str("text is not UTF-8"),
            Self::DuplicateName => f.write_str("two tensors have one name"),
            Self::NotAscending => f.write_str("not in ascending order"),
            Self::PositionOutOfRange { position, len } => {
                write!(f, "position {position} is outside an index space of {len} elements")
            }
            Self::CountMismatch { field } => write!(f, "{field} does not agree with what it counts"),
            Self::BadTable => f.write_str("malformed frequency table"),
            Self::BadCode => f.write_str("entropy-coded data does not end in its initial state"),
            Self::UnknownReference { field } => write!(f, "{field} is not defined before it is used"),
            Self::Misplaced { field } => write!(f, "{field} is misplaced"),
            Self::NotCanonical { field } => write!(f, "{field} is not in canonical form"),
        }
    }
}

/// Something a newer or another writer may write and this reader cannot read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unsupported {
    /// What is unknown: "frame kind", "support", "values", "version", "element type", "attribute".
    pub what: &'static str,
    /// Its number.
    pub id: u64,
    /// Where it stands.
    pub at: Location,
}

/// A limit that the bytes exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitError {
    /// The field of [`Limits`](crate::Limits).
    pub limit: &'static str,
    /// How much was asked for.
    pub asked: u64,
    /// How much is allowed.
    pub allowed: u64,
    /// Where it was asked for.
    pub at: Location,
}

/// A mistake of the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct InputError {
    /// What is wrong.
    pub kind: InputErrorKind,
    /// The tensor concerned, by its number in the manifest.
    pub tensor: Option<u64>,
}

/// What is wrong with the caller's input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum InputErrorKind {
    /// A buffer's length does not fit its shape and element type.
    LengthMismatch {
        /// Bytes that shape and element type need.
        expected: u64,
        /// Bytes given.
        found: u64,
    },
    /// The element type does not fit the operation.
    WrongDtype {
        /// What needs another element type.
        what: &'static str,
    },
    /// A value is NaN or infinite and the compressor cannot express it.
    NonFinite {
        /// The element's index inside its tensor.
        index: u64,
    },
    /// An option is outside its range.
    BadOption {
        /// The option.
        what: &'static str,
    },
    /// A block does not hold together: counts, groups or positions disagree.
    InconsistentBlock {
        /// What disagrees.
        what: &'static str,
    },
    /// No tensor has this name or number.
    NoSuchTensor,
    /// The update needs a base tensor that was not given.
    MissingBase,
    /// The base given is not the one that the update was made against.
    BaseMismatch,
    /// The result of a delta differs from the one that its sender had.
    ResultMismatch,
    /// The update refers to an index set that is not known.
    MissingIndexSet {
        /// First eight bytes of its id.
        id: [u8; 8],
    },
    /// The update refers to a model that is not known.
    MissingModel {
        /// First eight bytes of its id.
        id: [u8; 8],
    },
    /// Two things that must be alike differ.
    Mismatch {
        /// What differs.
        what: &'static str,
    },
    /// A sum or mean would have no meaning.
    CannotReduce {
        /// Why not.
        why: &'static str,
        /// The sender whose update was refused, where there is one.
        sender: Option<u64>,
    },
    /// A step of a protocol between workers that is not the next one.
    OutOfTurn {
        /// What came, and what it is not.
        what: &'static str,
    },
}

impl fmt::Display for InputErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LengthMismatch { expected, found } => {
                write!(f, "buffer has {found} bytes where shape and element type need {expected}")
            }
            Self::WrongDtype { what } => write!(f, "{what} cannot take this element type"),
            Self::NonFinite { index } => write!(f, "element {index} is NaN or infinite"),
            Self::BadOption { what } => write!(f, "option out of range: {what}"),
            Self::InconsistentBlock { what } => write!(f, "inconsistent block: {what}"),
            Self::NoSuchTensor => f.write_str("no such tensor"),
            Self::MissingBase => {
                f.write_str("the update is a delta, and its base, or this tensor of it, was not given")
            }
            Self::BaseMismatch => f.write_str("the base is not the one that this delta was made against"),
            Self::ResultMismatch => f.write_str("the result of the delta is not the one that its sender had"),
            Self::MissingIndexSet { id } => write!(f, "missing index set {}", Hex(id)),
            Self::MissingModel { id } => write!(f, "missing model {}", Hex(id)),
            Self::Mismatch { what } => write!(f, "{what} differ"),
            Self::CannotReduce { why, sender: None } => write!(f, "cannot be summed: {why}"),
            Self::CannotReduce { why, sender: Some(sender) } => {
                write!(f, "the update of sender {sender} cannot be summed with the others: {why}")
            }
            Self::OutOfTurn { what } => write!(f, "out of turn: {what}"),
        }
    }
}

struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl Error {
    /// A format error at `offset`.
    pub(crate) fn format(kind: FormatErrorKind, offset: u64) -> Self {
        Self::Format(FormatError { kind, at: Location::at(offset) })
    }

    /// A field out of its range at `offset`.
    pub(crate) fn out_of_range(field: &'static str, value: u64, offset: u64) -> Self {
        Self::format(FormatErrorKind::OutOfRange { field, value }, offset)
    }

    /// Something unknown at `offset`.
    pub(crate) fn unsupported(what: &'static str, id: u64, offset: u64) -> Self {
        Self::Unsupported(Unsupported { what, id, at: Location::at(offset) })
    }

    /// A caller's mistake.
    pub(crate) fn input(kind: InputErrorKind) -> Self {
        Self::Input(InputError { kind, tensor: None })
    }

    /// An option of the caller out of its range.
    pub(crate) fn bad_option(what: &'static str) -> Self {
        Self::input(InputErrorKind::BadOption { what })
    }

    /// A caller's block that does not hold together.
    pub(crate) fn inconsistent(what: &'static str) -> Self {
        Self::input(InputErrorKind::InconsistentBlock { what })
    }

    /// A sum that would have no meaning.
    pub(crate) fn cannot_reduce(why: &'static str) -> Self {
        Self::input(InputErrorKind::CannotReduce { why, sender: None })
    }

    /// Says whose update cannot be summed, unless that is known already.
    pub(crate) fn of_sender(mut self, number: u64) -> Self {
        if let Self::Input(InputError { kind: InputErrorKind::CannotReduce { sender, .. }, .. }) = &mut self {
            sender.get_or_insert(number);
        }
        self
    }

    fn location_mut(&mut self) -> Option<&mut Location> {
        match self {
            Self::Format(e) => Some(&mut e.at),
            Self::Unsupported(e) => Some(&mut e.at),
            Self::Limit(e) => Some(&mut e.at),
            Self::Io(_) | Self::Input(_) => None,
        }
    }

    /// The place of the error, where it has one.
    pub fn location(&self) -> Option<Location> {
        match self {
            Self::Format(e) => Some(e.at),
            Self::Unsupported(e) => Some(e.at),
            Self::Limit(e) => Some(e.at),
            Self::Io(_) | Self::Input(_) => None,
        }
    }

    /// Says which frame the error is in, unless that is known already.
    pub(crate) fn in_frame(mut self, frame: u64) -> Self {
        if let Some(at) = self.location_mut() {
            at.frame.get_or_insert(frame);
        }
        self
    }

    /// Says where the thing begins that the error is about, for errors of code that has not seen its bytes.
    pub(crate) fn not_before(mut self, offset: u64) -> Self {
        if let Some(at) = self.location_mut() {
            at.offset = at.offset.max(offset);
        }
        self
    }

    /// Says which block the error is in, unless that is known already.
    pub(crate) fn in_block(mut self, block: u64) -> Self {
        if let Some(at) = self.location_mut() {
            at.block.get_or_insert(block);
        }
        self
    }

    /// Says which tensor the error is about, unless that is known already.
    pub(crate) fn in_tensor(mut self, tensor: u64) -> Self {
        if let Self::Input(e) = &mut self {
            e.tensor.get_or_insert(tensor);
        } else if let Some(at) = self.location_mut() {
            at.tensor.get_or_insert(tensor);
        }
        self
    }

    /// The error's name as the spec's vectors write it: a format error's kind, or `unsupported`, `limit`, `io`, `input`.
    /// What a stream needs and the caller did not give, or gave another, has the name that the spec gives it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Io(_) => "io",
            Self::Format(e) => e.kind.name(),
            Self::Unsupported(_) => "unsupported",
            Self::Limit(_) => "limit",
            Self::Input(e) => match e.kind {
                InputErrorKind::MissingBase
                | InputErrorKind::MissingIndexSet { .. }
                | InputErrorKind::MissingModel { .. } => "unknown_reference",
                InputErrorKind::BaseMismatch | InputErrorKind::ResultMismatch => "checksum_mismatch",
                _ => "input",
            },
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(e) => write!(f, "{e}"),
            Self::Format(e) => write!(f, "{} {}", e.kind, e.at),
            Self::Unsupported(e) => write!(f, "unknown {} {:#x} {}", e.what, e.id, e.at),
            Self::Limit(e) => {
                write!(f, "limit {} exceeded: {} asked, {} allowed, {}", e.limit, e.asked, e.allowed, e.at)
            }
            Self::Input(e) => match e.tensor {
                Some(tensor) => write!(f, "{} (tensor {tensor})", e.kind),
                None => write!(f, "{}", e.kind),
            },
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(e) => Some(e),
            _ => None,
        }
    }
}

impl From<std::io::Error> for Error {
    fn from(e: std::io::Error) -> Self {
        Self::Io(e)
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
