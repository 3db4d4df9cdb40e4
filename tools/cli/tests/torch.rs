//! Files of PyTorch, as every command sees them.

#[path = "common/torch.rs"]
#[allow(dead_code, missing_docs, unreachable_pub)]
mod torch;

mod common;

use common::{Dir, f32s, write_tensors};
use torch::{Value, archive, call, dict, ints, legacy, module, object, tensor, text, typed, zipped};

/// Two storages: six elements from 0 to 5, and two.
fn storages() -> (Vec<u8>, Vec<u8>) {
    (f32s(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]), f32s(&[8.0, 9.0]))
}

/// Writes an archive of an object with both storages.
fn write(dir: &Dir, name: &str, root: &Value) {
    let (six, two) = storages();
    std::fs::write(dir.path(name), archive(root, &[("0", &six), ("1", &two)])).unwrap();
}

fn six() -> Value {
    tensor("0", 6, 0, &[2, 3], &[3, 1])
}

fn two() -> Value {
    tensor("1", 2, 0, &[2], &[1])
}

/// Writes the tensors that `w` and `b` are in most cases.
fn write_expected(dir: &Dir, names: [&str; 2]) {
    let (six, two) = storages();
    let tensors: [(&str, &str, &[u64], &[u8]); 2] =
        [(names[0], "F32", &[2, 3], &six), (names[1], "F32", &[2], &two)];
    write_tensors(&dir.path("expected.safetensors"), &tensors);
}

const STATE: &[u8] = include_bytes!("../fixtures/state.pt");
const ODD: &[u8] = include_bytes!("../fixtures/odd.pt");
const ARRAYS: &[u8] = include_bytes!("../fixtures/stored.npz");

#[test]
fn archives_one_after_another_are_refused_by_every_command() {
    let dir = Dir::new();
    for (name, parts) in
        [("a.pt", &[STATE, ODD][..]), ("b.pt", &[ODD, STATE, STATE]), ("c.npz", &[ARRAYS, ARRAYS])]
    {
        std::fs::write(dir.path(name), parts.concat()).unwrap();
        let what = format!("{name}: {} archives one after another", parts.len());
        for command in ["inspect", "diff a.pt", "encode -o x.gcu --codec lossless", "audit"] {
            let run = dir.run(&format!("{command} {name}"));
            assert!(
                run.code == 3 && run.err.contains("archives one after another"),
                "{command}: {}",
                run.err
            );
            assert!(command.starts_with("diff") || run.err.contains(&what), "{command}: {}", run.err);
        }
    }
    // A part of a distributed checkpoint may be one archive.
    std::fs::write(dir.path("__0_0.distcp"), STATE).unwrap();
    for command in ["inspect __0_0.distcp", "diff __0_0.distcp __0_0.distcp"] {
        let run = dir.run(command);
        assert!(
            run.code == 3 && run.err.contains("a part of a PyTorch distributed checkpoint"),
            "{}",
            run.err
        );
    }
}

#[test]
fn names_are_never_empty() {
    let dir = Dir::new();
    write(&dir, "grad_step5_rank2.pt", &six());
    assert!(dir.well("inspect grad_step5_rank2.pt --csv --tensors").out().contains(",5,2,tensor,f32"));
    write(&dir, "keys.pt", &dict(vec![("", six()), ("a", dict(vec![("b", two()), ("", two())]))]));
    write(&dir, "same.pt", &dict(vec![("a.b", six()), ("a", dict(vec![("b", two())]))]));
    for (file, names) in [("keys.pt", &["0", "a.b", "a.1"][..]), ("same.pt", &["a.b", "a.b#2"])] {
        let json = dir.well(&format!("inspect {file} --json --tensors")).out();
        names.iter().for_each(|name| assert!(json.contains(&format!("\"{name}\"")), "{name}: {json}"));
    }
    dir.well("encode keys.pt -o x.gcu --codec lossless");
}

#[test]
fn conjugates_are_carried_with_their_signs() {
    let dir = Dir::new();
    let bits = |set: &[&str]| {
        let Value::Call(function, mut arguments) = typed("ComplexFloatStorage", "1", 1, 0, &[1], &[1]) else {
            unreachable!()
        };
        arguments.push(dict(set.iter().map(|bit| (*bit, Value::Bool(true))).collect()));
        Value::Call(function, arguments)
    };
    let cases = [
        ("plain", bits(&[]), [8.0, 9.0]),
        ("conjugate", bits(&["conj"]), [8.0, -9.0]),
        ("negative", bits(&["neg"]), [-8.0, -9.0]),
        ("both", bits(&["conj", "neg"]), [-8.0, 9.0]),
    ];
    for (name, value, expected) in cases {
        write(&dir, "c.pt", &dict(vec![("c", value), ("w", six())]));
        dir.well("encode c.pt -o c.gcu --codec lossless");
        dir.well("decode c.gcu -o c.safetensors");
        let bytes = std::fs::read(dir.path("c.safetensors")).unwrap();
        let expected = f32s(&expected);
        assert!(bytes.windows(8).any(|window| window == expected), "{name}");
    }
}

/// `_rebuild_from_type_v2` of a class that wraps tensors.
fn wrapper(module: &'static str, class: &'static str, shape: &[u64], state: Vec<(&str, Value)>) -> Value {
    let class = Value::Global(module, class);
    let inner =
        vec![class.clone(), Value::Global("torch", "float32"), ints(shape), ints(&[3, 1]), Value::Int(0)];
    call(
        "torch._tensor",
        "_rebuild_from_type_v2",
        vec![
            Value::Global("torch._utils", "_rebuild_wrapper_subclass"),
            class,
            Value::Tuple(inner),
            Value::Tuple(vec![Value::None, dict(state)]),
        ],
    )
}

fn distributed(shape: &[u64], placement: Value) -> Value {
    let mesh = object("torch.distributed.device_mesh", "DeviceMesh", vec![("_rank_map", two())]);
    let spec = object(
        "torch.distributed.tensor._dtensor_spec",
        "DTensorSpec",
        vec![("mesh", mesh), ("placements", Value::Tuple(vec![placement]))],
    );
    let state = vec![("_local_tensor", six()), ("_spec", spec)];
    wrapper("torch.distributed.tensor", "DTensor", shape, state)
}

#[test]
fn wrapped_tensors_have_their_own_names() {
    let dir = Dir::new();
    write_expected(&dir, ["w", "b"]);
    let kind = |name, attributes| object("torch.distributed.tensor.placement_types", name, attributes);
    let (shard, whole) = (kind("Shard", vec![("dim", Value::Int(0))]), kind("Replicate", vec![]));
    let hooks = call("collections", "OrderedDict", vec![]);
    let parameter = |state| {
        let arguments = vec![six(), Value::Bool(true), hooks.clone(), state];
        call("torch._utils", "_rebuild_parameter_with_state", arguments)
    };
    let waiting = wrapper(
        "torch.distributed._functional_collectives",
        "AsyncCollectiveTensor",
        &[2, 3],
        vec![("elem", six()), ("completed", Value::Bool(false))],
    );
    let slots =
        |tensor| Value::Tuple(vec![Value::None, dict(vec![("tensor", tensor), ("metadata", Value::None)])]);
    let part = |tensor| Value::Build(Box::new(call("shard", "Shard", vec![])), Box::new(slots(tensor)));
    let sharded = |shards| {
        let class = Value::Global("torch.distributed._shard.sharded_tensor.api", "ShardedTensor");
        let state = Value::Tuple(vec![Value::List(shards), Value::None, Value::None]);
        (class, state)
    };
    let (class, state) = sharded(vec![part(six())]);
    let inner = vec![class.clone(), Value::Global("torch", "float32"), ints(&[4, 3])];
    let function = Value::Global("torch._utils", "_rebuild_wrapper_subclass");
    let new = call(
        "torch._tensor",
        "_rebuild_from_type_v2",
        vec![function, class.clone(), Value::Tuple(inner), state],
    );
    let old =
        Value::Build(Box::new(Value::Call(Box::new(class), vec![])), Box::new(sharded(vec![part(six())]).1));
    for (name, w, placement) in [
        ("sharded.pt", new, "w: one rank's part of a ShardedTensor"),
        ("sharded_old.pt", old, "w: one rank's part of a ShardedTensor"),
        ("shard.pt", distributed(&[4, 3], shard), "w: Shard(0): one rank's part of 4x3"),
        ("whole.pt", distributed(&[2, 3], whole), "w: Replicate"),
        ("hooks.pt", parameter(dict(vec![("tag", text("x"))])), ""),
        ("waiting.pt", waiting, ""),
    ] {
        write(&dir, name, &dict(vec![("w", w), ("b", two())]));
        assert!(dir.well(&format!("diff {name} expected.safetensors")).out().contains("equal: 2 tensors"));
        let text = dir.well(&format!("inspect {name} --tensors")).out();
        assert!(text.contains(placement) && !text.contains("_rank_map"), "{text}");
    }
    // What only the class computes is opaque, whatever it consists of.
    let masked =
        wrapper("maskedtensor", "MaskedTensor", &[2], vec![("_masked_data", two()), ("_mask", two())]);
    let scaled = wrapper("mine", "Scaled", &[2, 3], vec![("elem", six()), ("scale", Value::Int(2))]);
    for (name, w, reason) in [
        ("masked.pt", masked, "MaskedTensor, which computes it from _masked_data, _mask"),
        ("scaled.pt", scaled, "Scaled, which computes it from elem"),
    ] {
        write(&dir, name, &dict(vec![("w", w), ("b", two())]));
        let run = dir.well(&format!("inspect {name} --tensors --json"));
        assert!(
            run.out().contains(reason) && run.err.contains("tensor \"w\" (f32) is opaque"),
            "{}",
            run.out()
        );
        assert!(run.out().contains("\"b\"") && !run.out().contains("w.1"), "{}", run.out());
    }
    let jagged = call(
        "torch.nested._internal.ops",
        "_rebuild_njt",
        vec![dict(vec![("values", six()), ("offsets", two()), ("lengths", Value::None)])],
    );
    write(&dir, "jagged.pt", &dict(vec![("w", jagged)]));
    write_expected(&dir, ["w.values", "w.offsets"]);
    assert!(dir.well("diff jagged.pt expected.safetensors").out().contains("equal: 2 tensors"));
}

#[test]
fn modules_are_their_state_dicts() {
    let dir = Dir::new();
    let linear = |number: u8, more| {
        let layer =
            module(vec![("weight", six()), ("bias", two()), ("none", Value::None)], vec![], vec![], more);
        Value::Put(number, Box::new(layer))
    };
    let state = |names: &[&str]| {
        let items = names.iter().map(|name| (*name, if name.ends_with("weight") { six() } else { two() }));
        dict(items.collect())
    };
    let of = |prefixes: &[&str]| -> Vec<String> {
        prefixes.iter().flat_map(|p| [format!("{p}.weight"), format!("{p}.bias")]).collect()
    };
    let config = Value::Put(9, Box::new(object("model", "Config", vec![("width", Value::Int(3))])));
    // A model that is filled after its children, as a pointer to the parent has it.
    let parent = Value::Build(
        Box::new(Value::Put(1, Box::new(call("model", "Net", vec![])))),
        Box::new(dict(vec![
            ("_parameters", dict(vec![])),
            ("_buffers", dict(vec![])),
            (
                "_modules",
                dict(vec![(
                    "a",
                    linear(2, vec![("parent", Value::Get(1)), ("all", Value::List(vec![Value::Get(1)]))]),
                )]),
            ),
        ])),
    );
    let siblings = module(
        vec![],
        vec![],
        vec![
            ("a", linear(1, vec![("config", config)])),
            ("b", linear(2, vec![("before", Value::Get(1)), ("config", Value::Get(9))])),
            (
                "c",
                linear(
                    3,
                    vec![("before", Value::Get(2)), ("first", Value::Get(1)), ("config", Value::Get(9))],
                ),
            ),
        ],
        vec![("config", Value::Get(9)), ("last", Value::Get(3))],
    );
    let shared = module(vec![], vec![], vec![("a", linear(1, vec![])), ("b", Value::Get(1))], vec![]);
    let buffers = call("builtins", "set", vec![Value::List(vec![text("scratch")])]);
    let transient = module(
        vec![("a.weight", six())],
        vec![("a.bias", two()), ("scratch", two())],
        vec![],
        vec![("_non_persistent_buffers_set", buffers)],
    );
    for (name, model, prefixes) in [
        ("parent", parent, &["a"][..]),
        ("siblings", siblings, &["a", "b", "c"]),
        ("shared", shared, &["a", "b"]),
        ("transient", transient, &["a"]),
    ] {
        write(&dir, "model.pt", &model);
        let names = of(prefixes);
        write(&dir, "state.pt", &state(&names.iter().map(String::as_str).collect::<Vec<_>>()));
        let text = dir.well("diff model.pt state.pt").out();
        assert!(text.contains(&format!("equal: {} tensors", names.len())), "{name}: {text}");
    }
    // Other attributes of a module that are tensors, and dicts that hold one another.
    write(&dir, "more.pt", &module(vec![("w", six())], vec![], vec![], vec![("mask", two())]));
    assert!(dir.well("inspect more.pt --tensors").out().contains("mask"));
    let cycle = Value::Fill(
        Box::new(Value::Put(1, Box::new(Value::Dict(vec![])))),
        Box::new(dict(vec![
            ("w", six()),
            ("self", Value::Get(1)),
            ("list", Value::List(vec![Value::Get(1), two()])),
        ])),
    );
    write(&dir, "cycle.pt", &cycle);
    write_expected(&dir, ["w", "list.1"]);
    assert!(dir.well("diff cycle.pt expected.safetensors").out().contains("equal: 2 tensors"));
}

#[test]
fn work_is_bounded() {
    let dir = Dir::new();
    // Each dict holds the one before twice: 2^60 names.
    let mut value = Value::Put(0, Box::new(dict(vec![("w", two())])));
    for level in 1..60 {
        value = Value::Put(level, Box::new(dict(vec![("a", value), ("b", Value::Get(level - 1))])));
    }
    write(&dir, "bomb.pt", &value);
    dir.fails(4, "hold one another so often", "inspect bomb.pt");
    // The same without a tensor, beside one.
    let mut value = Value::Put(0, Box::new(dict(vec![("n", Value::Int(1))])));
    for level in 1..60 {
        value = Value::Put(level, Box::new(dict(vec![("a", value), ("b", Value::Get(level - 1))])));
    }
    write(&dir, "config.pt", &dict(vec![("config", value), ("w", two())]));
    assert!(dir.well("inspect config.pt --csv --tensors").out().contains(",w,f32"));
}

#[test]
fn views_are_read_with_their_elements() {
    let dir = Dir::new();
    let negative = |storage, shape: &[u64]| {
        let Value::Call(function, mut arguments) = tensor(storage, 6, 0, shape, &[1]) else { unreachable!() };
        arguments.push(dict(vec![("neg", Value::Bool(true))]));
        Value::Call(function, arguments)
    };
    let views = [
        ("expanded", tensor("0", 6, 1, &[2, 3], &[0, 1]), &[2, 3][..], vec![1.0, 2.0, 3.0, 1.0, 2.0, 3.0]),
        ("scalar", tensor("1", 2, 1, &[3, 2], &[0, 0]), &[3, 2], vec![9.0; 6]),
        (
            "overlapping",
            tensor("0", 6, 0, &[4, 3], &[1, 1]),
            &[4, 3],
            vec![0., 1., 2., 1., 2., 3., 2., 3., 4., 3., 4., 5.],
        ),
        ("few", tensor("0", 6, 4, &[1], &[1]), &[1], vec![4.0]),
        ("negative", negative("1", &[2]), &[2], vec![-8.0, -9.0]),
        ("steps", tensor("0", 6, 1, &[2], &[3]), &[2], vec![1.0, 4.0]),
    ];
    let mut items: Vec<(&str, Value)> = views.iter().map(|(name, view, ..)| (*name, view.clone())).collect();
    write(&dir, "views.pt", &dict(items.clone()));
    let data: Vec<Vec<u8>> = views.iter().map(|(.., values)| f32s(values)).collect();
    let tensors: Vec<_> = views
        .iter()
        .zip(&data)
        .map(|((name, _, shape, _), data)| (*name, "F32", *shape, &data[..]))
        .collect();
    write_tensors(&dir.path("expected.safetensors"), &tensors);
    assert!(dir.well("diff views.pt expected.safetensors").out().contains("equal: 6 tensors"));
    // What no memory holds, what lies outside, and a storage that is not there.
    items.extend([
        ("bomb", tensor("0", 6, 0, &[1 << 20, 1 << 20], &[0, 0])),
        ("outside", tensor("0", 6, 4, &[3], &[1])),
        ("missing", tensor("7", 6, 0, &[6], &[1])),
        ("complex", typed("ComplexFloatStorage", "1", 1, 0, &[1], &[1])),
    ]);
    write(&dir, "odd.pt", &dict(items.clone()));
    let run = dir.fails(3, "and 1 more fault", "inspect odd.pt --json");
    dir.fails(3, "tensor \"outside\": its elements lie outside", "encode odd.pt -o x.gcu --codec raw");
    for part in
        ["bytes on a storage of 24: save a contiguous copy", "lie outside", "storage 7 is not in the file"]
    {
        assert!(run.out().contains(part), "{part}: {}", run.out());
    }
    for name in ["expanded", "bomb", "outside", "missing", "complex64"] {
        assert!(run.out().contains(&format!("\"{name}\"")), "{name}: {}", run.out());
    }
    items.retain(|(name, _)| !["outside", "missing"].contains(name));
    write(&dir, "odd.pt", &dict(items));
    let run = dir.well("inspect odd.pt");
    assert!(run.err.contains("tensor \"bomb\" (f32) is opaque"), "{}", run.err);
}

#[test]
fn files_from_before_1_6_are_read() {
    let dir = Dir::new();
    let (six_bytes, two_bytes) = storages();
    let stored: [(&str, usize, &[u8]); 2] = [("1", 4, &two_bytes), ("0", 4, &six_bytes)];
    let file = legacy(&dict(vec![("w", six()), ("b", two())]), &stored);
    std::fs::write(dir.path("old.pt"), &file).unwrap();
    write_expected(&dir, ["w", "b"]);
    assert!(dir.well("diff old.pt expected.safetensors").out().contains("equal: 2 tensors"));
    dir.well("encode old.pt -o x.gcu --codec lossless");
    // Python 2 wrote an ordered dict as a list of pairs, and the first version of tensors.
    let pair = |key, value| Value::List(vec![text(key), value]);
    let Value::Call(_, mut arguments) = six() else { unreachable!() };
    arguments.truncate(4);
    let first = call("torch._utils", "_rebuild_tensor", arguments);
    let root =
        call("collections", "OrderedDict", vec![Value::List(vec![pair("w", first), pair("b", two())])]);
    std::fs::write(dir.path("older.pt"), legacy(&root, &stored)).unwrap();
    assert!(dir.well("diff older.pt expected.safetensors").out().contains("equal: 2 tensors"));
    // Cut, with bytes behind, and one after another.
    for (bytes, part) in [
        (&file[..file.len() - 1], "is cut"),
        (&file[..200], "pickle"),
        (&[&file[..], b"\0"].concat(), "1 bytes behind the last storage"),
        (&file.repeat(2), "several files one after another"),
    ] {
        std::fs::write(dir.path("wrong.pt"), bytes).unwrap();
        for command in ["inspect wrong.pt", "diff wrong.pt old.pt"] {
            dir.fails(3, part, command);
        }
    }
    let mut tar = vec![0; 512];
    tar[..8].copy_from_slice(b"sys_info");
    tar[257..262].copy_from_slice(b"ustar");
    std::fs::write(dir.path("tar.pt"), &tar).unwrap();
    dir.fails(3, "before version 0.4", "inspect tar.pt");
}

#[test]
fn models_of_other_parts_of_pytorch_are_read() {
    let dir = Dir::new();
    let (six_bytes, two_bytes) = storages();
    write_expected(&dir, ["w", "constants.0"]);
    let script = zipped(&[
        ("net/data/0", &six_bytes),
        ("net/data.pkl", &object("__torch__", "Net", vec![("w", six())]).pickle()),
        ("net/code/__torch__.py", b"class Net(Module): ..."),
        ("net/constants/1", &two_bytes),
        ("net/constants.pkl", &Value::Tuple(vec![two()]).pickle()),
    ]);
    std::fs::write(dir.path("script.pt"), script).unwrap();
    assert!(dir.well("diff script.pt expected.safetensors").out().contains("equal: 2 tensors"));

    let meta = |entry: &str, sizes: &str, strides: &str| {
        format!(
            r#"{{"path_name": "{entry}", "is_param": true, "use_pickle": false, "tensor_meta": {{"dtype": 7,
            "sizes": [{sizes}], "strides": [{strides}], "storage_offset": {{"as_int": 0}}, "layout": 7}}}}"#
        )
    };
    let (two, three, one) = (r#"{"as_int": 2}"#, r#"{"as_int": 3}"#, r#"{"as_int": 1}"#);
    let weights = meta("weight_0", &format!("{two}, {three}"), &format!("{three}, {one}"));
    let weights = format!(r#"{{"config": {{"w": {weights}}}}}"#);
    let constants = format!(r#"{{"config": {{"0": {}}}}}"#, meta("tensor_0", two, one));
    let new = zipped(&[
        ("e/archive_format", b"pt2"),
        ("e/data/weights/weight_0", &six_bytes),
        ("e/data/weights/model_weights_config.json", weights.as_bytes()),
        ("e/data/constants/tensor_0", &two_bytes),
        ("e/data/constants/model_constants_config.json", constants.as_bytes()),
    ]);
    let state = |name, value, key: &str, bytes: &[u8]| archive(&dict(vec![(name, value)]), &[(key, bytes)]);
    let old = zipped(&[
        ("serialized_exported_program.json", b"{}"),
        ("serialized_state_dict.pt", &state("w", six(), "0", &six_bytes)),
        ("serialized_constants.pt", &state("0", self::two(), "1", &two_bytes)),
    ]);
    for (name, bytes) in [("new.pt2", new), ("old.pt2", old)] {
        std::fs::write(dir.path(name), bytes).unwrap();
        assert!(dir.well(&format!("diff {name} expected.safetensors")).out().contains("equal: 2 tensors"));
    }
    // An archive whose metadata.pkl comes first.
    let (pickle, empty) = (dict(vec![("w", six()), ("constants.0", self::two())]).pickle(), b"\x80\x02}.");
    let entries: [(&str, &[u8]); 4] = [
        ("s/metadata.pkl", empty),
        ("s/data.pkl", &pickle),
        ("s/data/0", &six_bytes),
        ("s/data/1", &two_bytes),
    ];
    std::fs::write(dir.path("metadata.pt"), zipped(&entries)).unwrap();
    assert!(dir.well("diff metadata.pt expected.safetensors").out().contains("equal: 2 tensors"));
    let mut program = b"\x1c\0\0\0ET12".to_vec();
    program.resize(100, 0);
    std::fs::write(dir.path("m.pte"), program).unwrap();
    dir.fails(3, "ExecuTorch", "inspect m.pte");
}

#[test]
fn a_storage_that_no_tensor_has_is_listed() {
    let dir = Dir::new();
    write(&dir, "w.pt", &dict(vec![("w", six())]));
    let run = dir.well("inspect w.pt --tensors");
    assert!(run.out().contains("storage 1") && run.err.contains("a storage of no tensor"), "{}", run.out());
}

#[test]
fn files_without_tensors_are_left_out_of_folders() {
    let dir = Dir::new();
    std::fs::create_dir(dir.path("run")).unwrap();
    write(&dir, "run/model.pt", &dict(vec![("w", six()), ("b", two())]));
    std::fs::write(dir.path("run/scheduler.pt"), archive(&dict(vec![("last_epoch", Value::Int(3))]), &[]))
        .unwrap();
    let arguments = object("transformers", "TrainingArguments", vec![("seed", Value::Int(1))]);
    std::fs::write(dir.path("run/training_args.bin"), legacy(&arguments, &[])).unwrap();
    let run = dir.well("inspect run --csv");
    assert!(run.out().lines().count() == 2 && run.err.contains("without tensors"), "{}", run.err);
    dir.well("audit run run");
    dir.fails(3, "a PyTorch file without tensors", "inspect run/scheduler.pt");
}
