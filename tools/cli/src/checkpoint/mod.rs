//! `gcodec compress` and `gcodec decompress`: whole files of tensors, smaller, and back byte for byte.

mod around;
mod compress;
mod decompress;
mod files;

pub(crate) use compress::Args as CompressArgs;
pub(crate) use compress::run as compress;
pub(crate) use decompress::Args as DecompressArgs;
pub(crate) use decompress::run as decompress;
