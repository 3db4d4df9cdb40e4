//! Tests of the compressors against the definitions of their papers and small models of them.

mod codecs;
mod deltas;
mod demo;
mod effort;
mod errors;
mod natural;
mod onebit;
mod pending;
mod powersgd;
mod range;
mod scalecom;
mod senders;
mod shared_set;
mod table;
