//! Names with the prefixes of wrappers, and sets of tensors that are not those of one model.

mod common;

use common::{Dir, f32s, write_tensors};
use serde_json::Value;

/// Writes tensors of these names; `seed` chooses their elements.
fn write(dir: &Dir, file: &str, names: &[&str], seed: f32) {
    let data = f32s(&[seed, 2.0, 3.0, 4.0]);
    let tensors: Vec<_> = names.iter().map(|name| (*name, "F32", &[4u64][..], &data[..])).collect();
    write_tensors(&dir.path(file), &tensors);
}

const NAMES: [&str; 3] = ["layers.0.w", "layers.1.w", "head"];
const PREFIXES: [&str; 5] = ["module.", "_orig_mod.", "model.", "base_model.model.", "module._orig_mod."];

fn prefixed(prefix: &str) -> Vec<String> {
    NAMES.iter().map(|name| format!("{prefix}{name}")).collect()
}

#[test]
fn diff_says_without_which_prefix_names_match() {
    let dir = Dir::new();
    write(&dir, "plain.safetensors", &NAMES, 1.0);
    for prefix in PREFIXES {
        let names = prefixed(prefix);
        write(&dir, "wrapped.safetensors", &names.iter().map(String::as_str).collect::<Vec<_>>(), 1.0);
        let advice = format!("all names match without {prefix}: --strip-prefix {prefix}");
        for files in ["plain.safetensors wrapped.safetensors", "wrapped.safetensors plain.safetensors"] {
            let run = dir.run(&format!("diff {files}"));
            assert!(run.code == 1 && run.out().contains(&advice), "{}", run.out());
            let run = dir.well(&format!("diff {files} --strip-prefix {prefix}"));
            assert_eq!(run.out(), "equal: 3 tensors, 12 elements\n");
        }
        let json = dir.run("diff plain.safetensors wrapped.safetensors --json").stdout;
        let json: Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(json["advice"], Value::from(advice));
    }
    // torch.compile of inner modules, FSDP, and a name that has no prefix.
    let inner = ["layers._fsdp_wrapped_module.0._fsdp_wrapped_module.w", "layers.1.w", "head"];
    write(&dir, "inner.safetensors", &inner, 1.0);
    let run = dir.run("diff plain.safetensors inner.safetensors");
    assert!(
        run.out().contains("all names match without _fsdp_wrapped_module.: --strip-prefix"),
        "{}",
        run.out()
    );
    dir.well("diff plain.safetensors inner.safetensors --strip-prefix _fsdp_wrapped_module.");
    write(&dir, "some.safetensors", &["model.layers.0.w", "model.layers.1.w", "head"], 1.0);
    let run = dir.run("diff some.safetensors plain.safetensors");
    assert!(run.out().contains("all names match without model."), "{}", run.out());
    dir.well("diff some.safetensors plain.safetensors --strip-prefix model.");
    // Other names have no advice, and of many the first are listed.
    let many: Vec<String> = (0..30).map(|i| format!("other{i}")).collect();
    write(&dir, "many.safetensors", &many.iter().map(String::as_str).collect::<Vec<_>>(), 1.0);
    let run = dir.run("diff plain.safetensors many.safetensors");
    assert!(run.out().contains("only in B: 10 more; --all lists them"), "{}", run.out());
    assert!(!run.out().contains("without"), "{}", run.out());
    assert!(dir.run("diff plain.safetensors many.safetensors --all").out().contains("only in B: other29"));
    // Two names must not become one.
    write(&dir, "both.safetensors", &["head", "module.head"], 1.0);
    dir.fails(
        2,
        "tensor \"head\" is there twice",
        "diff both.safetensors both.safetensors --strip-prefix module.",
    );
}

#[test]
fn a_base_with_a_prefix_is_taken_without_it() {
    let dir = Dir::new();
    for prefix in PREFIXES {
        let names = prefixed(prefix);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        write(&dir, "plain.safetensors", &NAMES, 1.0);
        write(&dir, "wrapped.safetensors", &names, 1.0);
        write(&dir, "new.safetensors", &NAMES, 9.0);
        write(&dir, "newer.safetensors", &names, 9.0);
        let advice = format!("all names match without {prefix}: --strip-prefix {prefix}");
        let strip = format!("--strip-prefix {prefix}");
        let encode = "encode new.safetensors -o d.gcu --codec delta --base wrapped.safetensors";
        dir.fails(2, &advice, encode);
        dir.well(&format!("{encode} {strip}"));
        // A follower has the other names: both ways.
        let decode = "decode d.gcu -o x.safetensors --base wrapped.safetensors";
        dir.fails(2, &advice, decode);
        dir.well(&format!("{decode} {strip}"));
        dir.well("diff x.safetensors new.safetensors");
        dir.well("encode newer.safetensors -o w.gcu --codec delta --base wrapped.safetensors");
        dir.fails(2, &advice, "decode w.gcu -o y.safetensors --base plain.safetensors");
        dir.well(&format!("decode w.gcu -o y.safetensors --base plain.safetensors {strip}"));
        dir.well(&format!("diff new.safetensors w.gcu --base plain.safetensors {strip}"));
        dir.fails(2, &advice, "diff new.safetensors w.gcu --base plain.safetensors");
        // An audit, and the loss against originals.
        dir.fails(2, &advice, "audit plain.safetensors newer.safetensors");
        let audit = dir.well(&format!("audit plain.safetensors newer.safetensors {strip}")).out();
        assert!(audit.contains("1 step, 12 elements; 25.0% of them changed"), "{audit}");
        let audit = dir.well(&format!("audit w.gcu --base plain.safetensors {strip} --json")).stdout;
        let audit: Value = serde_json::from_slice(&audit).unwrap();
        assert_eq!((&audit["ever"], &audit["tensors"][0]["changed"]), (&3.into(), &1.into()));
        dir.well("encode newer.safetensors -o g.gcu --codec topk:density=0.5");
        dir.fails(2, &advice, "inspect g.gcu --against new.safetensors");
        dir.well(&format!("inspect g.gcu --against new.safetensors {strip}"));
    }
}

#[test]
fn a_base_that_does_not_fit_says_what_differs() {
    let dir = Dir::new();
    write(&dir, "new.safetensors", &["a", "b", "c", "d", "e"], 1.0);
    let (x, y) = (f32s(&[1.0, 2.0, 3.0, 4.0]), [0u8; 8]);
    write_tensors(
        &dir.path("old.safetensors"),
        &[("a", "BF16", &[4], &y[..]), ("b", "F32", &[2, 2], &x[..]), ("old", "F32", &[4], &x[..])],
    );
    let what = "it lacks 3 tensors: \"c\", \"d\", \"e\"; it has another type of tensor \"a\" (f32, there bf16); \
                it has another shape of tensor \"b\" ([4], there [2, 2]); it alone has tensor \"old\"";
    dir.fails(2, what, "encode new.safetensors -o x.gcu --codec delta --base old.safetensors");
    dir.fails(2, what, "encode old.safetensors new.safetensors -o x.gcu --codec delta");
    dir.fails(2, what, "audit old.safetensors new.safetensors");
    write(&dir, "base.safetensors", &["a", "b", "c", "d", "e"], 2.0);
    dir.well("encode new.safetensors -o d.gcu --codec delta --base base.safetensors");
    dir.fails(2, what, "decode d.gcu -o y.safetensors --base old.safetensors");
    dir.fails(2, what, "diff new.safetensors d.gcu --base old.safetensors");
    // The right tensors with other values.
    let run = dir.fails(2, "tensor 0 \"a\"", "decode d.gcu -o y.safetensors --base new.safetensors");
    assert!(run.err.contains("base"), "{}", run.err);
    assert!(!dir.path("y.safetensors").exists());
}
