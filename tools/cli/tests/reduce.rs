//! `gcodec reduce`, run as a user runs it.

mod common;

use std::sync::Arc;

use common::{Dir, step, worker};
use gcodec::block::{BlockOptions, Scope};
use gcodec::compress::senders::scalecom::{Choice, Role, ScaleComOptions, ScaleComWorker};
use gcodec::compress::{Amount, random};
use gcodec::frame::{Manifest, TensorInfo, UpdateHeader};
use gcodec::stream::{EncodeOptions, Encoder};
use gcodec::{Codec, Dtype, TensorBuf};

/// Writes streams of two senders, `name0.gcu` and `name1.gcu`.
fn senders(dir: &Dir, name: &str, codec: &str) {
    for number in [0, 1] {
        let input = worker(number);
        dir.well(&format!(
            "encode {input} -o {name}{number}.gcu --codec {codec} --sender {number} --world 2"
        ));
    }
}

fn bytes(dir: &Dir, name: &str) -> Vec<u8> {
    std::fs::read(dir.path(name)).unwrap()
}

#[test]
fn the_order_of_the_inputs_makes_no_difference_and_every_codec_has_a_sum() {
    let dir = Dir::new();
    for codec in ["raw", "topk:density=0.01", "natural", "sbc:density=0.01", "qsgd", "int8", "sign"] {
        senders(&dir, "s", codec);
        dir.well("reduce s0.gcu s1.gcu -o a.gcu");
        dir.well("reduce s1.gcu s0.gcu -o b.gcu");
        assert_eq!(bytes(&dir, "a.gcu"), bytes(&dir, "b.gcu"), "{codec}");
        dir.well("verify a.gcu");
        // As a stream and as tensors; the mean of two is half of their sum.
        dir.well("reduce s0.gcu s1.gcu -o a.safetensors");
        dir.well("diff a.gcu a.safetensors");
        dir.well("reduce s0.gcu s1.gcu -o mean.safetensors --mean");
        dir.well("reduce s0.gcu s1.gcu -o half.safetensors --weight 0.5 --weight 0.5");
        dir.well("diff mean.safetensors half.safetensors");
    }
    let report: serde_json::Value = serde_json::from_slice(&dir.well("inspect a.gcu --json").stdout).unwrap();
    let update = &report["updates"][0];
    assert_eq!((&update["contributors"], &update["world"]), (&2.into(), &2.into()), "{update}");
}

#[test]
fn a_sum_of_sparse_updates_stays_sparse() {
    let dir = Dir::new();
    senders(&dir, "s", "topk:density=0.01");
    dir.well("reduce s1.gcu s0.gcu -o sparse.gcu --method sparse");
    dir.well("reduce s0.gcu s1.gcu -o dense.gcu");
    dir.well("diff sparse.gcu dense.gcu");
    let (sparse, both) = (bytes(&dir, "sparse.gcu").len(), 2 * bytes(&dir, "s0.gcu").len());
    assert!(sparse < both, "{sparse} bytes, the two are about {both}");
    dir.well("reduce s0.gcu s1.gcu -o small.gcu --mean --codec topk:density=0.01,values=bf16");
    dir.well("verify small.gcu");
}

/// Writes steps of two ScaleCom workers who lead in turn, so each stream has only half of the index sets.
#[test]
fn values_on_shared_sets_are_added_as_they_are() {
    let dir = Dir::new();
    const STEPS: u64 = 4;
    let manifest = Arc::new(Manifest::new(vec![TensorInfo::new("w", Dtype::F32, [1000])]).unwrap());
    let settings = ScaleComOptions::new(Choice::TopK(Amount::Count(50)));
    let mut workers: Vec<_> = (0..2)
        .map(|rank| ScaleComWorker::new(&manifest, Scope::Tensor(0), rank, 2, settings).unwrap())
        .collect();
    let mut streams = [(); 2].map(|()| (Encoder::new(EncodeOptions::default()), Vec::new()));
    for step in 0..STEPS {
        let mut led = None;
        for (rank, worker) in workers.iter_mut().enumerate() {
            // Integers, so that any order of additions gives the same sum.
            let numbers: Vec<f32> =
                (0..1000).map(|i| (random::word(rank as u64, step, i) as i32 >> 20) as f32).collect();
            let gradient = TensorBuf::from_f32(vec![1000], &numbers).unwrap();
            if let Role::Leader(set) = worker.begin(step, &[gradient.view()]).unwrap() {
                let (encoder, out) = &mut streams[rank];
                let id = encoder.index_set(out, &set, &manifest, BlockOptions::default()).unwrap();
                led = Some((set, id));
            }
        }
        let (set, id) = led.unwrap();
        for (rank, worker) in workers.iter_mut().enumerate() {
            worker.take_set(&set, id).unwrap();
            let header = UpdateHeader::default().with_step(step).with_sender(rank as u64).with_world(2);
            let (encoder, out) = &mut streams[rank];
            encoder.add_index_set(id, &set, &manifest).unwrap();
            let block = worker.values().unwrap();
            encoder.update(out, &header, &manifest, &[(&block, BlockOptions::default())]).unwrap();
            worker.finish().unwrap();
        }
    }
    for (rank, (mut encoder, mut out)) in streams.into_iter().enumerate() {
        encoder.finish(&mut out);
        std::fs::write(dir.path(&format!("w{rank}.gcu")), out).unwrap();
    }
    dir.well("reduce w0.gcu w1.gcu -o added.gcu --method add");
    dir.well("reduce w1.gcu w0.gcu -o dense.gcu");
    for step in 0..STEPS {
        dir.well(&format!("decode dense.gcu -o dense.safetensors --step {step}"));
        dir.well(&format!("diff dense.safetensors added.gcu --step {step}"));
    }
    // As large as one worker's stream with all index sets.
    let (sum, one) = (bytes(&dir, "added.gcu").len(), bytes(&dir, "w0.gcu").len());
    assert!(sum < one + one / 2, "{sum} bytes for {one}");
}

#[test]
fn steps_are_summed_one_by_one_and_who_is_absent_is_not_counted() {
    let dir = Dir::new();
    dir.well(&format!("encode {} {} -o a.gcu --codec raw --sender 0 --step 0", step(15), step(200)));
    dir.well(&format!("encode {} -o b.gcu --codec raw --sender 1 --step 1", step(600)));
    dir.well("reduce a.gcu b.gcu -o sum.gcu");
    dir.well(&format!("diff {} sum.gcu --step 0", step(15)));
    let report: serde_json::Value =
        serde_json::from_slice(&dir.well("inspect sum.gcu --json").stdout).unwrap();
    let contributors: Vec<_> =
        report["updates"].as_array().unwrap().iter().map(|u| u["contributors"].as_u64().unwrap()).collect();
    assert_eq!(contributors, [1, 2]);
    dir.fails(2, "--step", "reduce a.gcu b.gcu -o x.npz");
    dir.well("reduce a.gcu b.gcu -o x.npz --step 0");
    dir.well(&format!("diff {} x.npz", step(15)));
    dir.fails(2, "no update has step 7", "reduce a.gcu b.gcu -o y.gcu --step 7");
}

#[test]
fn what_has_no_sum_is_refused_and_leaves_nothing() {
    let dir = Dir::new();
    senders(&dir, "s", "raw");
    dir.well(&format!("encode {} -o other.gcu --codec raw --sender 5 --step 30", step(15)));
    dir.well(&format!("encode {} -o delta.gcu --codec delta --base {} --sender 1", worker(1), worker(0)));
    dir.well("reduce s0.gcu s1.gcu -o mean.gcu --mean");
    let one = TensorBuf::from_f32(vec![1], &[1.0]).unwrap();
    for names in [["a", "b"], ["b", "a"]] {
        let tensors = names.map(|name| (name, one.view()));
        let stream = gcodec::encode(&tensors, &Codec::Raw).unwrap();
        std::fs::write(dir.path(&format!("{}.gcu", names.concat())), stream).unwrap();
    }
    let before = dir.files();
    let refused = [
        (2, "--by-input", "reduce s0.gcu s0.gcu -o x.gcu"),
        (2, "--by-input", "reduce s0.gcu s0.gcu -o x.gcu --method add"),
        (2, "other.gcu: it has another manifest than s0.gcu: s0.gcu", "reduce s0.gcu other.gcu -o x.gcu"),
        (2, "delta", "reduce s0.gcu delta.gcu -o x.gcu"),
        (2, "not sparse", "reduce s0.gcu s1.gcu -o x.gcu --method sparse"),
        (2, "--weight once for each", "reduce s0.gcu s1.gcu -o x.gcu --weight 1"),
        (2, "positive", "reduce s0.gcu s1.gcu -o x.gcu --weight 1 --weight=-1"),
        (2, "delta", "reduce s0.gcu delta.gcu -o x.gcu --method add"),
        (2, "other.gcu: it has another manifest", "reduce s0.gcu other.gcu -o x.gcu --method add"),
        (2, "the same tensors in another order", "reduce ab.gcu ba.gcu -o x.gcu"),
        (2, "is a mean", "reduce s0.gcu mean.gcu -o x.gcu --method add"),
        (2, "method dense", "reduce s0.gcu s1.gcu -o x.gcu --method add --mean"),
        (2, "s0.gcu", "reduce s0.gcu s1.gcu -o s0.gcu"),
        (2, "base", "reduce s0.gcu s1.gcu -o x.gcu --codec delta"),
        (74, "nothing.gcu", "reduce s0.gcu nothing.gcu -o x.gcu"),
    ];
    for (code, text, line) in refused {
        dir.fails(code, text, line);
        assert_eq!(dir.files(), before, "{line}");
    }
    let mut damaged = bytes(&dir, "s1.gcu");
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    std::fs::write(dir.path("bad.gcu"), damaged).unwrap();
    dir.fails(3, "bad.gcu", "reduce s0.gcu bad.gcu -o x.gcu");
    assert!(!dir.path("x.gcu").exists());
}
