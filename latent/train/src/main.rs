//! Trains the autoencoders of `gcodec-latent`.

fn main() {}
