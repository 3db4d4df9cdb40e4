//! Properties that hold for every input: round trips, equal bytes for any number of threads, sums,
//! statistics; and the layers of `src/`.

mod commands;
mod detection;
mod determinism;
mod layering;
mod reduce;
mod root;
mod roundtrip;
mod shards;
mod stats;
#[path = "../wire/streams/mod.rs"]
mod streams;
