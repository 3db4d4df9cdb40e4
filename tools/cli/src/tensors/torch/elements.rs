//! Element types of storages and of tensors, by their names in PyTorch.

use gcodec::tensor::Dtype;

/// Type of the elements of a storage or of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Element {
    Known(Dtype),
    /// Bytes whose type stands elsewhere.
    Untyped,
    /// A type that is not read: its name, and the bytes of an element.
    Other(&'static str, u64),
}

impl Element {
    /// Whether the bytes of an element are not known.
    pub(super) fn is_unknown(self) -> bool {
        matches!(self, Self::Other("unknown", _))
    }

    /// Whether an element has a real and an imaginary part.
    pub(super) fn is_complex(self) -> bool {
        matches!(self, Self::Other("complex32" | "complex64" | "complex128", _))
    }

    /// Returns the name of the type.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Known(dtype) => dtype.name(),
            Self::Untyped => "bytes",
            Self::Other(name, _) => name,
        }
    }

    /// Returns the bytes of an element.
    pub(super) fn width(self) -> u64 {
        match self {
            Self::Known(dtype) => u64::from(dtype.bits()) / 8,
            Self::Untyped => 1,
            Self::Other(_, width) => width,
        }
    }

    /// Returns the type of a class of storages: `torch.FloatStorage`.
    pub(super) fn of_storage(class: &str) -> Self {
        let class = class.rsplit('.').next().unwrap_or_default();
        let name = match class.strip_suffix("Storage").unwrap_or_default() {
            "Untyped" => return Self::Untyped,
            "Double" => "float64",
            "Float" => "float32",
            "Half" => "float16",
            "BFloat16" => "bfloat16",
            "Long" => "int64",
            "Int" => "int32",
            "Short" => "int16",
            "Char" => "int8",
            "Byte" => "uint8",
            "Bool" => "bool",
            "ComplexHalf" => "complex32",
            "ComplexFloat" => "complex64",
            "ComplexDouble" => "complex128",
            "QInt8" => "qint8",
            "QUInt8" => "quint8",
            "QInt32" => "qint32",
            "QUInt4x2" => "quint4x2",
            "QUInt2x4" => "quint2x4",
            _ => "",
        };
        Self::of_type(name)
    }

    /// Returns the type that PyTorch calls by this name: `torch.float32`.
    pub(super) fn of_type(name: &str) -> Self {
        let name = name.strip_prefix("torch.").unwrap_or(name);
        let known = KNOWN.iter().find(|(known, _)| *known == name).map(|(_, dtype)| Self::Known(*dtype));
        let other = || OTHERS.iter().find(|(other, _)| *other == name);
        known.unwrap_or_else(|| {
            other().map_or(Self::Other("unknown", 1), |(name, len)| Self::Other(name, *len))
        })
    }
}

const KNOWN: [(&str, Dtype); 17] = [
    ("float64", Dtype::F64),
    ("float32", Dtype::F32),
    ("float16", Dtype::F16),
    ("bfloat16", Dtype::Bf16),
    ("float8_e4m3fn", Dtype::F8E4M3Fn),
    ("float8_e5m2", Dtype::F8E5M2),
    ("float8_e4m3fnuz", Dtype::F8E4M3Fnuz),
    ("float8_e5m2fnuz", Dtype::F8E5M2Fnuz),
    ("int64", Dtype::I64),
    ("int32", Dtype::I32),
    ("int16", Dtype::I16),
    ("int8", Dtype::I8),
    ("uint64", Dtype::U64),
    ("uint32", Dtype::U32),
    ("uint16", Dtype::U16),
    ("uint8", Dtype::U8),
    ("bool", Dtype::Bool),
];

/// Types that are named only, with the bytes of an element.
const OTHERS: [(&str, u64); 15] = [
    ("complex32", 4),
    ("complex64", 8),
    ("complex128", 16),
    ("qint8", 1),
    ("quint8", 1),
    ("qint32", 4),
    ("quint4x2", 1),
    ("quint2x4", 1),
    ("float8_e8m0fnu", 1),
    ("float4_e2m1fn_x2", 1),
    ("bits8", 1),
    ("bits16", 2),
    ("bits1x8", 1),
    ("bits2x4", 1),
    ("bits4x2", 1),
];
