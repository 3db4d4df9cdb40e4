//! The wire format: the vectors, pinned bytes, the registry, files, and what corrupt or hostile input leads to.

mod blocks;
mod buffers;
mod chunking;
mod damage;
mod describe;
mod file;
mod hostile;
mod output;
mod pinned;
mod registry;
mod streams;
mod vectors;
