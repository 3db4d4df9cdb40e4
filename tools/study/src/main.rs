//! Trains small networks by several workers that exchange gcodec updates.

fn main() {}
