//! The learned codec on the command line: train, encode, decode, inspect.

use std::path::Path;
use std::process::{Command, Output};

fn gcodec(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gcodec"));
    command.current_dir(folder).args(args).output().unwrap()
}

/// Runs a command that succeeds, and returns its standard output and error.
fn well(folder: &Path, args: &[&str]) -> String {
    let output = gcodec(folder, args);
    let text = [output.stdout, output.stderr].map(|t| String::from_utf8_lossy(&t).into_owned()).concat();
    assert!(output.status.success(), "{args:?}: {text}");
    text
}

/// Runs a command that fails with this exit code, and returns its message.
fn fails(folder: &Path, code: i32, args: &[&str]) -> String {
    let output = gcodec(folder, args);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
    text
}

/// Writes gradients of 3 workers and 3 steps, which agree in part.
fn gradients(folder: &Path) {
    for step in 0..3u64 {
        for worker in 0..3u64 {
            let number = |seed, i| gcodec::compress::random::word(seed, 0, i) as i32 as f32 / 2f32.powi(31);
            let of = |start: u64, len: u64| -> Vec<u8> {
                let value = |i| number(step, i).powi(3) + 0.3 * number(100 + 10 * step + worker, i).powi(3);
                (start..start + len).flat_map(|i| value(i).to_le_bytes()).collect()
            };
            let (a, b) = (of(0, 4000), of(4000, 1000));
            let view =
                |shape, data| safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape, data);
            let tensors = [("a", view(vec![40, 100], &a).unwrap()), ("b", view(vec![1000], &b).unwrap())];
            let path = folder.join(format!("run_step{step}_worker{worker}.safetensors"));
            safetensors::serialize_to_file(tensors, None, &path).unwrap();
        }
    }
}

/// Returns the error and the bytes that a line with this end has.
fn figures(said: &str, end: &str) -> (f64, f64) {
    let line = said.lines().find(|line| line.ends_with(end)).unwrap_or_else(|| panic!("{end}: {said}"));
    let number = |before: &str| {
        let rest = line.split_once(before).unwrap().1;
        rest.split([',', ' ', ':']).next().unwrap().parse().unwrap()
    };
    (number("error "), number(", "))
}

#[test]
fn training_prints_what_needs_no_model() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    gradients(folder);
    let files: Vec<String> = (0..3).map(|w| format!("run_step2_worker{w}.safetensors")).collect();
    let train = |more: &[&str]| {
        let args = ["model", "train", "-o", "m.lgc", "--width=4", "--iterations=1", "--density=0.05"];
        let args: Vec<&str> =
            args.iter().chain(more).copied().chain(files.iter().map(String::as_str)).collect();
        let said = well(folder, &args);
        std::fs::remove_file(folder.join("m.lgc")).unwrap();
        said
    };
    let said = train(&[]);
    let (codes, codes_bytes) = figures(&said, ": innovation and codes");
    let (innovation, innovation_bytes) = figures(&said, ": innovation alone");
    let (set, set_bytes) = figures(&said, ": leader's set, powers of two");
    let (top_k, top_k_bytes) = figures(&said, ",values=pow2");
    // Powers of two lose at most a third of a value, the innovation the smallest nine tenths of the values.
    assert!(set > 0.0 && set < 0.34 && set < innovation && innovation < 1.0, "{said}");
    assert!(codes > 0.0 && codes_bytes > innovation_bytes, "{said}");
    assert!(top_k_bytes <= set_bytes && top_k_bytes > 0.9 * set_bytes && top_k > set, "{said}");
    assert!(said.contains("the best factor for each tensor"), "{said}");
    // The exact innovation of all values leaves nothing.
    assert_eq!(figures(&train(&["--innovation=1"]), ": innovation alone").0, 0.0);
    assert!(!train(&["--ring"]).contains("innovation"));
    assert!(!train(&["--accumulate"]).contains("of a worker"));
}

const TRAIN: [&str; 8] =
    ["model", "train", "-o", "model.lgc", "--width=4", "--iterations=600", "--density=0.05", "--accumulate"];

#[test]
fn a_model_is_trained_and_used() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    gradients(folder);
    let files: Vec<String> =
        (0..9).map(|i| format!("run_step{}_worker{}.safetensors", i / 3, i % 3)).collect();
    let with = |options: &[&str]| -> String {
        let args: Vec<&str> = options.iter().copied().chain(files.iter().map(String::as_str)).collect();
        well(folder, &args)
    };
    let said = with(&TRAIN);
    assert!(said.contains("3 workers, 3 steps; error on the set 0."), "{said}");
    let again = with(&[
        "model",
        "train",
        "-o",
        "again.lgc",
        "--width=4",
        "--iterations=600",
        "--density=0.05",
        "--accumulate",
    ]);
    assert_eq!(id(&said), id(&again), "one machine trains the same model twice");
    let shown = well(folder, &["inspect", "model.lgc"]);
    assert!(shown.contains(id(&said)) && shown.contains("codes       4 for 16 values"), "{shown}");
    assert!(well(folder, &["inspect", "--json", "model.lgc"]).contains("\"decoders\": 3"));

    let codec = "lgc:model=model.lgc,density=0.05";
    well(folder, &["encode", &files[8], "-o", "u.gcu", "--codec", codec, "--sender=2"]);
    well(folder, &["decode", "u.gcu", "-o", "decoded.safetensors", "--model", "model.lgc"]);
    // The model can travel in the stream.
    let inline = "lgc:model=model.lgc,density=0.05,inline=yes";
    well(folder, &["encode", &files[8], "-o", "inline.gcu", "--codec", inline, "--sender=2"]);
    well(folder, &["decode", "inline.gcu", "-o", "inline.safetensors"]);
    let bytes = |name: &str| std::fs::read(folder.join(name)).unwrap();
    assert_eq!(bytes("decoded.safetensors"), bytes("inline.safetensors"));
    // Closer to the kept elements than without training, nothing elsewhere, and smaller than floats.
    let top_k = "topk:density=0.05";
    well(folder, &["encode", &files[8], "-o", "topk.gcu", "--codec", top_k, "--sender=2"]);
    well(folder, &["decode", "topk.gcu", "-o", "kept.safetensors"]);
    with(&["model", "train", "-o", "other.lgc", "--width=4", "--iterations=1", "--density=0.05"]);
    let untrained = "lgc:model=other.lgc,density=0.05,inline=yes";
    well(folder, &["encode", &files[8], "-o", "other.gcu", "--codec", untrained, "--sender=2"]);
    well(folder, &["decode", "other.gcu", "-o", "other.safetensors"]);
    let values = |name: &str| -> Vec<f32> {
        let file = bytes(name);
        let file = safetensors::SafeTensors::deserialize(&file).unwrap();
        let rows = ["a", "b"].map(|t| file.tensor(t).unwrap().data().to_vec());
        rows.concat().chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    };
    let kept = values("kept.safetensors");
    let error = |name: &str| -> f64 {
        let pairs = kept.iter().zip(values(name));
        pairs.map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt()
    };
    let (trained, untrained) = (error("decoded.safetensors"), error("other.safetensors"));
    assert!(trained < untrained, "{trained} {untrained}");
    let decoded = values("decoded.safetensors");
    assert!(
        kept.iter().zip(&decoded).all(|(a, b)| *a != 0.0 || *b == 0.0),
        "nothing off the chosen elements"
    );
    assert!(bytes("u.gcu").len() < bytes("topk.gcu").len());

    // Missing, other and damaged models.
    let out = ["decode", "u.gcu", "-o", "x.safetensors"];
    let missing = fails(folder, 2, &out);
    assert!(
        missing.contains(id(&said)) && missing.contains("--model") && missing.contains("u.gcu"),
        "{missing}"
    );
    let other = fails(folder, 2, &[&out[..], &["--model", "other.lgc"]].concat());
    assert!(other.contains(id(&said)), "{other}");
    let mut damaged = bytes("model.lgc");
    damaged.truncate(1000);
    std::fs::write(folder.join("damaged.lgc"), damaged).unwrap();
    for args in [&[&out[..], &["--model", "damaged.lgc"]].concat()[..], &["inspect", "damaged.lgc"]] {
        let message = fails(folder, 3, args);
        assert!(message.contains("damaged.lgc: not a model: it ends too early at byte 0x"), "{message}");
    }
    assert!(!folder.join("x.safetensors").exists());
}

/// Returns the id in a message.
fn id(text: &str) -> &str {
    text.split(&[' ', ','][..]).find(|word| word.len() == 64).unwrap()
}

/// Writes gradients, a model of them, updates of two senders with its codes, and what they decode to. Returns
/// the id of the model.
fn coded(folder: &Path) -> String {
    gradients(folder);
    let files = [0, 1, 2].map(|worker| format!("run_step0_worker{worker}.safetensors"));
    let train = ["model", "train", "-o", "model.lgc", "--width=4", "--iterations=20", "--density=0.05"];
    let said = well(folder, &[&train[..], &[&files[0], &files[1], &files[2]]].concat());
    for sender in [1, 2] {
        let (file, number) = (&files[sender], format!("--sender={sender}"));
        let (update, codec) = (format!("u{sender}.gcu"), "lgc:model=model.lgc,density=0.05");
        well(folder, &["encode", file, "-o", &update, "--codec", codec, &number]);
        let decoded = format!("decoded{sender}.safetensors");
        well(folder, &["decode", &update, "-o", &decoded, "--model", "model.lgc"]);
    }
    let codec = "lgc:model=model.lgc,density=0.05,inline=yes";
    well(folder, &["encode", &files[2], "-o", "inline.gcu", "--codec", codec, "--sender=2"]);
    id(&said).to_owned()
}

/// Fails with the model's id and the advice without `--model`, and returns what the command prints with it.
fn with_model(folder: &Path, id: &str, args: &[&str]) -> String {
    let missing = fails(folder, 2, args);
    assert!(missing.contains(id) && missing.contains("give it with --model"), "{args:?}: {missing}");
    assert!(missing.contains("u2.gcu"), "{args:?}: {missing}");
    well(folder, &[args, &["--model", "model.lgc"]].concat())
}

#[test]
fn commands_that_read_values_take_models() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let id = coded(folder);
    let equal = with_model(folder, &id, &["diff", "decoded2.safetensors", "u2.gcu"]);
    assert!(equal.contains("equal: 2 tensors"), "{equal}");
    well(folder, &["diff", "u2.gcu", "inline.gcu", "--model", "model.lgc"]);

    let audit = ["audit", "decoded1.safetensors", "u2.gcu", "--json"];
    let whole = well(folder, &["audit", "decoded1.safetensors", "decoded2.safetensors", "--json"]);
    let changed = |text: &str| -> serde_json::Value {
        serde_json::from_str::<serde_json::Value>(text).unwrap()["ever"].clone()
    };
    let through_codes = with_model(folder, &id, &audit);
    assert_eq!(changed(&through_codes), changed(&whole));
    assert_ne!(changed(&whole), 0);

    let lost = with_model(folder, &id, &["inspect", "u2.gcu", "--against", "decoded2.safetensors", "--json"]);
    let lost: serde_json::Value = serde_json::from_str(&lost).unwrap();
    assert_eq!(lost["all"]["relative_l2"], 0.0);
}

#[test]
fn sums_decode_codes_by_the_models_of_their_senders() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let id = coded(folder);
    for sender in [1, 2] {
        let (from, to) = (format!("decoded{sender}.safetensors"), format!("plain{sender}.gcu"));
        well(folder, &["encode", &from, "-o", &to, "--codec", "raw", &format!("--sender={sender}")]);
    }
    // Each sender has a decoder of its own, also where --by-input gives it another number.
    for option in ["--mean", "--by-input"] {
        let reduce = ["reduce", "u1.gcu", "u2.gcu", option, "-q", "-o", "sum.safetensors"];
        let missing = fails(folder, 2, &reduce);
        assert!(missing.contains(&id) && missing.contains("u1.gcu"), "{missing}");
        assert!(!folder.join("sum.safetensors").exists());
        well(folder, &[&reduce[..], &["--model", "model.lgc"]].concat());
        well(folder, &["reduce", "plain1.gcu", "plain2.gcu", option, "-q", "-o", "plain.safetensors"]);
        well(folder, &["diff", "sum.safetensors", "plain.safetensors"]);
        std::fs::remove_file(folder.join("sum.safetensors")).unwrap();
    }
    // A model in one stream serves the others too.
    well(folder, &["reduce", "u1.gcu", "inline.gcu", "-o", "sum.gcu"]);
    well(folder, &["reduce", "plain1.gcu", "plain2.gcu", "-o", "plain.gcu"]);
    well(folder, &["diff", "sum.gcu", "plain.gcu"]);
}

#[test]
fn statistics_and_checks_read_codes_where_there_is_a_model() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let id = coded(folder);
    let norm = |args: &[&str]| -> Option<f64> {
        let text = well(folder, &[&["inspect", "--json"], args].concat());
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["updates"][0]["norm"].as_f64()
    };
    assert_eq!(norm(&["u2.gcu"]), None, "codes are no values");
    for part in [&[][..], &["--tensor=b"]] {
        let of = |args: &[&str]| norm(&[args, part].concat()).unwrap();
        let values = of(&["decoded2.safetensors"]);
        for coded in [of(&["u2.gcu", "--model=model.lgc"]), of(&["inline.gcu", "--model=inline.gcu"])] {
            assert!((coded - values).abs() <= 1e-6 * values, "{part:?}: {coded} {values}");
        }
    }

    let said = well(folder, &["verify", "u2.gcu"]);
    assert!(said.contains("ok: ") && said.contains("codes of 1 block not decoded"), "{said}");
    for args in [["u2.gcu", "--model=model.lgc"], ["inline.gcu", "--model=inline.gcu"]] {
        let said = well(folder, &[&["verify"], &args[..]].concat());
        assert!(said.contains("ok: ") && !said.contains("not decoded"), "{said}");
    }
    let files = [0, 1, 2].map(|worker| format!("run_step0_worker{worker}.safetensors"));
    let train = ["model", "train", "-o", "other.lgc", "--width=1", "--iterations=1", "--density=0.05"];
    well(folder, &[&train[..], &[&files[0], &files[1], &files[2]]].concat());
    let other = fails(folder, 2, &["verify", "u2.gcu", "--model=other.lgc"]);
    assert!(other.contains(&id) && other.contains("u2.gcu: missing model"), "{other}");
    // The model of another stream is as good; some stream has none.
    well(folder, &["verify", "u2.gcu", "--model=inline.gcu"]);
    let none = fails(folder, 2, &["verify", "u2.gcu", "--model=u2.gcu"]);
    assert!(none.contains("u2.gcu: the stream carries no model"), "{none}");
}

#[test]
fn codes_that_their_model_cannot_decode_are_faults() {
    use gcodec::frame::{Manifest, TensorInfo, UpdateHeader};
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    coded(folder);
    let model = std::fs::read(folder.join("model.lgc")).unwrap();
    let model = gcodec_latent::Model::from_bytes(&model, &Default::default()).unwrap();
    let values = gcodec_latent::encode_latent(&model, &[1.0; 8], gcodec_latent::CodeFormat::F32).unwrap();
    let info = TensorInfo::new("w", gcodec::Dtype::F32, vec![8]);
    let manifest = std::sync::Arc::new(Manifest::new(vec![info]).unwrap());
    let (scope, support) = (gcodec::block::Scope::Tensor(0), gcodec::block::Support::All);
    let block = gcodec::block::Block { scope, add: false, support, values };
    let mut writer = gcodec::Writer::new(Vec::new(), Default::default());
    // The model has decoders for the senders 0 to 2.
    let header = UpdateHeader::default().with_sender(9);
    writer.update(&header, &manifest, std::slice::from_ref(&block)).unwrap();
    std::fs::write(folder.join("wrong.gcu"), writer.finish().unwrap()).unwrap();
    for command in ["verify", "inspect"] {
        well(folder, &[command, "wrong.gcu"]);
        let fault = fails(folder, 3, &[command, "wrong.gcu", "--model=model.lgc"]);
        assert!(fault.contains("block 0, tensor \"w\": ") && fault.contains("decoder"), "{command}: {fault}");
    }
}

#[test]
fn what_cannot_be_used_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    gradients(folder);
    let file = "run_step0_worker0.safetensors";
    for (codec, what) in [
        ("lgc", "lgc needs model=FILE"),
        ("lgc:modl=x", "did you mean \"model\""),
        ("lgc:model=x,codes=f8", "use f32, f16, bf16 or int8"),
        ("lgc:model=x,innovation=2", "use a number from 0 to 1"),
        ("lgc:model=x,density=2", "density"),
        ("lgc:model=none.lgc", "none.lgc"),
    ] {
        let output = gcodec(folder, &["encode", file, "-o", "x.gcu", "--codec", codec]);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && message.contains(what), "{codec}: {message}");
    }
    assert!(!folder.join("x.gcu").exists());
    std::fs::copy(folder.join(file), folder.join("grad.safetensors")).unwrap();
    let nameless = fails(folder, 2, &["model", "train", "grad.safetensors", "-o", "m.lgc"]);
    assert!(nameless.contains("grad.safetensors: neither its metadata nor its name"), "{nameless}");
    let gap = ["model", "train", file, "run_step0_worker2.safetensors", "-o", "m.lgc"];
    assert!(fails(folder, 2, &gap).contains("step 0 has the workers [0, 2]"));
    assert!(!folder.join("m.lgc").exists());
}
