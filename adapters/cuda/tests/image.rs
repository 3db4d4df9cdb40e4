//! The committed image belongs to the committed sources. This needs no CUDA compiler.

use std::path::Path;

#[test]
fn the_image_is_of_these_sources() {
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let sums = std::fs::read_to_string(kernels.join("gcodec.sum")).unwrap();
    let mut named = 0;
    for line in sums.lines() {
        let (hash, name) = line.split_once(' ').unwrap();
        let found = blake3::hash(&std::fs::read(kernels.join(name)).unwrap());
        assert_eq!(found.to_hex().as_str(), hash, "{name} changed: run `cargo xtask cuda --write`");
        named += 1;
    }
    let sources = std::fs::read_dir(&kernels).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let sources = sources.filter(|n| n.ends_with(".cu") || n.ends_with(".cuh")).count();
    assert_eq!(named, sources + 1, "a source without a hash: run `cargo xtask cuda --write`");
}
