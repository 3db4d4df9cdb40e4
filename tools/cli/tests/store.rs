//! The commands of stores: `publish`, `pull`, `log`, `fold` and `gc`.

mod common;

use common::{Dir, f32s, write_tensors};

fn step(dir: &Dir, step: u32) {
    let values: Vec<f32> = (0..2000).map(|i| (i + (step * 37 + i) / 700) as f32).collect();
    let name = dir.path(&format!("{step}.safetensors"));
    write_tensors(&name, &[("w", "F32", &[2, 1000], &f32s(&values)), ("b", "F32", &[1], &f32s(&[1.0]))]);
}

#[test]
fn versions_go_in_and_come_out() {
    let dir = Dir::new();
    for version in 1..=6 {
        step(&dir, version);
        let run = dir.well(&format!("publish st {version}.safetensors --meta step={version} --json"));
        assert!(run.out().contains(&format!("\"version\":{version}")), "{}", run.out());
    }
    dir.well("pull st -o two.safetensors --version 2");
    assert_eq!(dir.run("diff 2.safetensors two.safetensors").code, 0);
    dir.well("fold st 2 5");
    let run = dir.well("pull st -o five.safetensors --version 5 --base two.safetensors --cache cache");
    assert!(run.err.contains("in 1 step, 1 of 2 tensors changed"), "{}", run.err);
    assert_eq!(dir.run("diff 5.safetensors five.safetensors").code, 0);
    dir.well("pull st -o b.npy --tensor b");
    let run = dir.well("publish st 5.safetensors --base five.safetensors");
    assert!(run.err.contains("version 7: 1 of 2 tensors changed"), "{}", run.err);
    let log = dir.well("log st -n 3 --json").out();
    assert_eq!(log.lines().count(), 3);
    assert!(dir.well("log st").out().lines().count() >= 7);
    let run = dir.well("gc st --dry-run --json");
    assert!(run.out().contains("\"deleted\":0"), "{}", run.out());
    assert!(dir.files().iter().all(|name| !name.starts_with("cache") && !name.contains("tmp")));
}

#[test]
fn opaque_tensors_come_back_whole() {
    let dir = Dir::new();
    for version in 1..=3u8 {
        let (path, w) = (dir.path(&format!("{version}.safetensors")), f32s(&[1.0, 2.0]));
        let tensors = [("s", "F8_E8M0", &[3][..], &[127, 126, version][..]), ("w", "F32", &[2], &w)];
        write_tensors(&path, &[tensors[0], tensors[1], ("q", "U4X2", &[2], &[version, 7])]);
        let run = dir.well(&format!("publish st {version}.safetensors"));
        assert!(run.err.contains("is opaque"), "{}", run.err);
    }
    dir.well("pull st -o one.safetensors --version 1");
    dir.well("diff 1.safetensors one.safetensors");
    dir.well("pull st -o three.safetensors --base one.safetensors");
    let run = dir.well("diff 3.safetensors three.safetensors --all");
    assert!(run.out().contains("F8_E8M0") && run.out().contains("U4X2"), "{}", run.out());
    dir.well("pull st -o s.safetensors --tensor s --version 2");
    let run = dir.well("inspect s.safetensors --tensors");
    assert!(run.out().contains("F8_E8M0"), "{}", run.out());
    dir.well("publish st 3.safetensors --base three.safetensors --without q");
}

#[test]
fn a_prefix_of_the_store_or_of_the_base_is_left_out() {
    let dir = Dir::new();
    for (version, prefix) in [(1u8, ""), (2, "module."), (3, "")] {
        let w = f32s(&[1.0, f32::from(version)]);
        let names = ["a.w", "s"].map(|name| format!("{prefix}{name}"));
        let tensors = [(&*names[0], "F32", &[2][..], &w[..]), (&names[1], "F8_E8M0", &[1], &[version])];
        write_tensors(&dir.path(&format!("{version}.safetensors")), &tensors);
        // The store has the prefix, the files of some versions have none.
        dir.well(&format!("publish plain {version}.safetensors --strip-prefix module."));
        if version == 2 {
            dir.well("publish wrapped 2.safetensors");
        }
    }
    dir.well("pull wrapped -o bare.safetensors --strip-prefix module.");
    dir.well("diff bare.safetensors 2.safetensors --strip-prefix module.");
    let out = dir.well("inspect bare.safetensors --tensors").out();
    assert!(out.contains("F8_E8M0") && out.contains("a.w") && !out.contains("module"), "{out}");
    // As a base of the next pull.
    dir.fails(
        2,
        "all names match without `module.`",
        "pull wrapped -o x.safetensors --base bare.safetensors",
    );
    dir.well("pull wrapped -o x.safetensors --base bare.safetensors --strip-prefix module.");
    dir.well("diff x.safetensors bare.safetensors");
    for name in ["a.w", "module.a.w"] {
        dir.well(&format!("pull wrapped -o one.npy --tensor {name} --strip-prefix module."));
    }
    let out = dir.well("pull plain -o three.safetensors --version 3").err;
    dir.well("diff three.safetensors 3.safetensors");
    assert!(out.contains("version 3"), "{out}");
}

/// Writes two tensors whose names have a prefix; `version`: the version of the store that the file states.
fn prefixed(dir: &Dir, file: &str, prefix: &str, seed: f32, version: Option<u64>) {
    let (a, b) = (f32s(&[seed; 500]), f32s(&[1.0]));
    let path = dir.path(file);
    let names = [format!("{prefix}model.a"), format!("{prefix}b")];
    write_tensors(&path, &[(&names[0], "F32", &[500], &a), (&names[1], "F32", &[1], &b)]);
    let Some(version) = version else { return };
    let bytes = std::fs::read(&path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let (header, data) = bytes[8..].split_at(header);
    let metadata = format!("{{\"__metadata__\":{{\"gcodec-version\":\"{version}\"}},");
    let header = std::str::from_utf8(header).unwrap().replacen('{', &metadata, 1);
    std::fs::write(&path, [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()).unwrap();
}

#[test]
fn a_pull_keeps_the_names_of_its_base() {
    for prefix in ["module.", "_orig_mod.", "model.", "base_model.model."] {
        for (of_store, of_base) in [("", prefix), (prefix, "")] {
            let dir = Dir::new();
            for version in 1..=2u8 {
                prefixed(&dir, "x.safetensors", of_store, version.into(), None);
                dir.well("publish st x.safetensors");
            }
            prefixed(&dir, "base.safetensors", of_base, 1.0, Some(1));
            prefixed(&dir, "expected.safetensors", of_base, 2.0, None);
            let pull = "pull st -o new.safetensors --base base.safetensors";
            dir.fails(2, &format!("all names match without `{prefix}`"), pull);
            assert!(!dir.path("new.safetensors").exists());
            let run = dir.well(&format!("{pull} --strip-prefix {prefix}"));
            assert!(run.err.contains("in 1 step, 1 of 2 tensors changed"), "{}", run.err);
            dir.well("diff expected.safetensors new.safetensors");
            // The new file is a base itself, of pulls and of a publisher.
            prefixed(&dir, "x.safetensors", of_store, 3.0, None);
            // Of names that begin with the prefix, `publish` leaves it out.
            let is_inner = of_store.is_empty() && prefix == "model.";
            match of_store.is_empty() && !is_inner {
                true => dir.well(&format!(
                    "publish st x.safetensors --base new.safetensors --strip-prefix {prefix}"
                )),
                false => dir.well("publish st x.safetensors"),
            };
            dir.well(&format!("pull st -o 3.safetensors --base new.safetensors --strip-prefix {prefix}"));
            prefixed(&dir, "expected.safetensors", of_base, 3.0, None);
            dir.well("diff expected.safetensors 3.safetensors");
            // Without a base, names have no prefix.
            dir.well(&format!("pull st -o fresh.safetensors --strip-prefix {prefix}"));
            let plain = if is_inner { &["a", "b"] } else { &["model.a", "b"] };
            let listed = dir.well("inspect fresh.safetensors --csv --tensors").out();
            for name in plain {
                assert!(listed.contains(&format!(",{name},")), "{listed}");
            }
        }
    }
}

#[test]
fn streams_that_overwrite_are_applied_twice() {
    let dir = Dir::new();
    for version in 1..=2 {
        step(&dir, version);
        dir.well(&format!("publish st {version}.safetensors --codec delta:values=overwrite"));
    }
    let log = dir.well("log st").out();
    assert_eq!(log.matches("delta:values=overwrite").count(), 1, "{log}");
    assert!(dir.well("log st --json").out().contains("\"codec\":null"));
    let data = dir.path("st/data");
    let delta = std::fs::read_dir(data).unwrap().map(|entry| entry.unwrap().path());
    let delta = delta.filter(|path| path.to_string_lossy().contains("2-d")).collect::<Vec<_>>();
    std::fs::rename(&delta[0], dir.path("delta.gcu")).unwrap();
    let inspected = dir.well("inspect delta.gcu").out();
    assert!(inspected.contains("codec: delta:values=overwrite"), "{inspected}");
    dir.fails(2, "does not encode deltas", "publish st 1.safetensors --codec topk");
}

#[test]
fn mistakes_have_their_codes() {
    let dir = Dir::new();
    step(&dir, 1);
    dir.fails(2, "st: the store has no versions", "pull st -o x.safetensors");
    dir.well("publish st 1.safetensors -q");
    dir.fails(2, "error: st: the store has no version 9", "pull st -o x.safetensors --version 9");
    dir.fails(2, "does not state its version", "pull st -o x.safetensors --base 1.safetensors");
    dir.fails(2, "no tensor \"v\"", "pull st -o x.npy --tensor v");
    dir.fails(2, "ftp://", "log ftp://host/x");
    dir.fails(2, "forward", "fold st 1 1");
    let record = dir.path("st/versions/00000000000000000001.json");
    let mut bytes = std::fs::read(&record).unwrap();
    let last = bytes.len() - 4;
    bytes[last] ^= 1;
    std::fs::write(&record, bytes).unwrap();
    dir.fails(3, "error: st: ", "log st");
    assert!(!dir.path("x.safetensors").exists());
}
