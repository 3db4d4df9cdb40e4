//! Tests of the wire format: vectors, pinned bytes, the registry, files, and corrupt or hostile input.

mod blocks;
mod buffers;
mod chunking;
mod classed;
mod corruption;
mod describe;
mod errors;
mod file;
mod frozen;
mod hostile;
mod output;
mod pinned;
mod profile;
mod registry;
mod report;
mod salvage;
mod streams;
mod vectors;
