//! Sum digests (gcodec.md, section 6.1).

use std::sync::Arc;

use gcodec::digest::SumDigest;
use gcodec::frame::{Manifest, Shard, TensorInfo};
use gcodec::internal::element;
use gcodec::stream::{EncodeOptions, Encoder};
use gcodec::{Dtype, TensorView};
use serde_json::{Map, Value};

use super::Area;
use super::build::*;
use super::delta::Tensor;

/// A sum delta: first tensor, further tensors, base sum, result sum.
type Entry = (u64, u64, [u8; 16], [u8; 16]);

fn attribute(entries: &[Entry]) -> Bytes {
    let head = bytes().v(entries.len() as u64);
    entries.iter().fold(head, |out, (first, more, base, result)| out.v(*first).v(*more).raw(base).raw(result))
}

/// A tensor of a manifest, and its elements before and after the update.
struct Case<'a> {
    info: TensorInfo,
    before: Tensor<'a>,
    after: Tensor<'a>,
}

impl<'a> Case<'a> {
    /// A tensor whose elements have many patterns; the update sets every third one to zero.
    fn new(name: &str, dtype: Dtype, shape: &'a [u64]) -> Self {
        let count = shape.iter().product::<u64>();
        let mut data = vec![0; dtype.bytes_for(count).expect("a few elements") as usize];
        for i in 0..count {
            let bits = (i + 3).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - dtype.bits());
            element::set_bits_at(dtype, &mut data, i, bits);
        }
        let before = Tensor(dtype.id(), shape, data.clone());
        (0..count).step_by(3).for_each(|i| _ = element::set_bits_at(dtype, &mut data, i, 0));
        let after = Tensor(dtype.id(), shape, data);
        Self { info: TensorInfo::new(name, dtype, shape), before, after }
    }

    fn sums(&self) -> [SumDigest; 2] {
        [&self.before, &self.after].map(|tensor| {
            let view = TensorView::new(tensor.dtype(), tensor.1, &tensor.2).expect("a tensor");
            self.info.sum_digest(view).expect("its type and shape")
        })
    }

    /// The block that sets every third element to zero.
    fn block(&self, tensor: u64) -> Bytes {
        let count = self.before.1.iter().product::<u64>();
        let places = bytes().fields(1, &(0..count).map(|i| u64::from(i % 3 == 0)).collect::<Vec<_>>());
        let zeros = self.info.dtype.bytes_for(count.div_ceil(3)).expect("a few elements") as usize;
        block(whole(tensor), (4, places), (1, bytes().u8(0).raw(vec![0; zeros])))
    }
}

fn base(cases: &[Case<'_>]) -> Value {
    Value::Object(
        cases.iter().map(|case| (case.info.name.clone(), case.before.json())).collect::<Map<_, _>>(),
    )
}

fn run(first: u64, cases: &[Case<'_>]) -> Entry {
    let [before, after] = [0, 1].map(|which| cases.iter().map(|case| case.sums()[which]).sum::<SumDigest>());
    (first, cases.len() as u64 - 1, before.to_bytes(), after.to_bytes())
}

fn manifest_of(cases: &[Case<'_>]) -> Bytes {
    let infos = cases.iter().map(|case| case.info.clone()).collect();
    let manifest = Arc::new(Manifest::new(infos).expect("a manifest"));
    let (mut encoder, mut out) = (Encoder::new(EncodeOptions::default()), Vec::new());
    encoder.manifest(&mut out, &manifest);
    // After the preamble and the frame's header.
    bytes().raw(&out[16 + 24..])
}

fn stream_of(cases: &[Case<'_>], blocks: Vec<Bytes>, entries: &[Entry]) -> Vec<u8> {
    let man = manifest_of(cases);
    stream().manifest(&man).update(&update(&man, blocks).attribute(4, attribute(entries))).done()
}

pub(crate) fn add(area: &mut Area) {
    applied(area);
    shards(area);
    refused(area);
    with_hashes(area);
}

fn applied(area: &mut Area) {
    let mut good = |id: &str, cases: &[Case<'_>], notes: &str| {
        let blocks = (0..).zip(cases).map(|(number, case)| case.block(number)).collect();
        area.valid(id, "SUM-1 SUM-2 SUM-4", stream_of(cases, blocks, &[run(0, cases)]))
            .base(base(cases))
            .tensors()
            .notes(notes);
    };
    for dtype in Dtype::ALL {
        good(&format!("matrix-{dtype}"), &[Case::new("w", dtype, &[3, 5])], "");
    }
    good("rank-0", &[Case::new("w", Dtype::F32, &[])], "counts as one of rank 1, but its weight has rank 0");
    good("rank-1", &[Case::new("w", Dtype::F32, &[1])], "");
    good("rank-3", &[Case::new("w", Dtype::Bf16, &[2, 3, 5])], "");
    good("rank-32", &[Case::new("w", Dtype::U8, &[1; 32])], "");
    good("several", &["a", "b", "c"].map(|name| Case::new(name, Dtype::F16, &[2, 2])), "one run of tensors");
    good("no-elements", &[Case::new("w", Dtype::Bf16, &[3, 0])], "its sum is zero");
    let values: &[u64] = &[70_000];
    let long = Case::new("w", Dtype::U8, values);
    let blocks = vec![block(range(0, 65_535, 2), ALL(), (1, bytes().u8(0).raw([7, 9])))];
    let mut after = long.before.2.clone();
    after[65_535..65_537].copy_from_slice(&[7, 9]);
    let long = Case { after: Tensor(long.before.0, values, after), ..long };
    let entry = run(0, std::slice::from_ref(&long));
    area.valid("beyond-65536", "SUM-4", stream_of(std::slice::from_ref(&long), blocks, &[entry]))
        .base(base(std::slice::from_ref(&long)))
        .tensors()
        .notes("indices with another factor of level 1");
    let cases = ["a", "b"].map(|name| Case::new(name, Dtype::Bf16, &[4]));
    let own = [run(0, &cases[..1]), run(1, &cases[1..])];
    area.valid("more-than-touched", "SUM-3 SUM-4", {
        let still = Case {
            after: Tensor(cases[1].before.0, &[4], cases[1].before.2.clone()),
            ..Case::new("b", Dtype::Bf16, &[4])
        };
        stream_of(&cases, vec![cases[0].block(0)], &[own[0], run(1, &[still])])
    })
    .base(base(&cases))
    .tensors()
    .notes("a tensor that no block touches may be listed");
    area.valid("two-parts", "SUM-3 SUM-5 UPD-3", {
        let man = manifest_of(&cases);
        let first = update(&man, [cases[0].block(0)]).attribute(4, attribute(&own));
        let second = update(&man, [cases[1].block(1)]).part(1).attribute(4, attribute(&own[1..]));
        stream().manifest(&man).part(&first, 0).part(&second, LAST).done()
    })
    .base(base(&cases))
    .tensors();
    area.valid("no-runs", "SUM-1", stream_of(&cases, vec![], &[])).base(base(&cases)).tensors();
    area.valid("ulp", "SUM-4 DEL-3", {
        let case = Case::new("w", Dtype::I16, &[1]);
        let old = i16::from_le_bytes(case.before.2[..].try_into().expect("one element"));
        let zigzag = u64::from(((i32::from(-old) << 1) ^ (i32::from(-old) >> 31)) as u32);
        let block = block(whole(0), ALL(), (10, bytes().packed(16, &[zigzag])));
        stream_of(std::slice::from_ref(&case), vec![block], &[run(0, std::slice::from_ref(&case))])
    })
    .base(base(&[Case::new("w", Dtype::I16, &[1])]))
    .tensors()
    .notes("differences need a delta of either kind");
}

fn shards(area: &mut Area) {
    let shard = |name: &str, shape: &'static [u64], global: &[u64], offsets: &[u64]| {
        let mut case = Case::new(name, Dtype::Bf16, shape);
        case.info.shard = Some(Shard { global_shape: global.to_vec(), offsets: offsets.to_vec() });
        case
    };
    let mut good = |id: &str, case: Case<'_>, notes: &str| {
        let cases = [case];
        area.valid(id, "SUM-4", stream_of(&cases, vec![cases[0].block(0)], &[run(0, &cases)]))
            .base(base(&cases))
            .tensors()
            .notes(notes);
    };
    good("shard", shard("w", &[2, 3], &[8, 6], &[4, 2]), "indices and shape of the larger tensor");
    good("shard-named", shard("w[:,2:5]", &[8, 3], &[8, 6], &[0, 2]), "the name counts as w");
    good("shard-named-in-full", shard("w[4:6,2:5]", &[2, 3], &[8, 6], &[4, 2]), "the name counts as w");
    good(
        "shard-other-name",
        shard("w[0:2]", &[2, 3], &[8, 6], &[4, 2]),
        "not its place: the name counts whole",
    );
    good("shard-leading-zero", shard("w[04:6]", &[2, 3], &[8, 6], &[4, 2]), "not its place as digits say it");
    good(
        "shard-only-place",
        shard("[4:6]", &[2, 3], &[8, 6], &[4, 2]),
        "nothing before it: the name counts whole",
    );
    good("shard-rank-0", shard("w", &[], &[], &[]), "");
    good(
        "shard-far",
        shard("w", &[2, 3], &[u64::MAX, u64::MAX], &[1 << 63, (1 << 63) - 1]),
        "factors of indices of 64 bits",
    );
    let mut far = Case::new("w", Dtype::F64, &[2]);
    far.info.shard = Some(Shard { global_shape: vec![u64::MAX], offsets: vec![(1 << 62) - 1] });
    good("shard-wraps", far, "indices of units are modulo 2^64");
}

fn refused(area: &mut Area) {
    let cases = ["a", "b"].map(|name| Case::new(name, Dtype::Bf16, &[2, 3]));
    let (man, [a, b]) = (manifest_of(&cases), &cases);
    let good = [run(0, &cases[..1]), run(1, &cases[1..])];
    let blocks = || vec![a.block(0), b.block(1)];
    let of = |blocks: Vec<Bytes>, entries: &[Entry]| stream_of(&cases, blocks, entries);
    let with = |change: &dyn Fn(&mut [Entry; 2])| {
        let mut entries = good;
        change(&mut entries);
        entries
    };
    let mut late = |id: &str, entries: &[Entry]| {
        area.invalid(id, "SUM-4", "checksum_mismatch", of(blocks(), entries)).late().base(base(&cases));
    };
    late("wrong-base", &with(&|entries| entries[1].2[5] ^= 1));
    late("wrong-result", &with(&|entries| entries[1].3[5] ^= 1));
    late("result-is-base", &with(&|entries| entries[0].3 = entries[0].2));
    late(
        "sums-of-other-tensors",
        &with(&|entries| {
            let first = entries[0];
            (entries[0].2, entries[0].3) = (entries[1].2, entries[1].3);
            (entries[1].2, entries[1].3) = (first.2, first.3);
        }),
    );
    area.invalid("wrong-run", "SUM-4", "checksum_mismatch", of(blocks(), &[(0, 1, good[0].2, good[0].3)]))
        .late()
        .base(base(&cases))
        .notes("the sum of one tensor of two");
    area.invalid("no-base", "DEL-4", "unknown_reference", of(blocks(), &good)).late().base(base(&[]));
    for (lane, place) in [(0, 2), (3, 3)] {
        let entries = with(&|entries| {
            let sum = if place == 2 { &mut entries[1].2 } else { &mut entries[1].3 };
            sum[4 * lane..][..4].copy_from_slice(&0x7fff_ffffu32.to_le_bytes());
        });
        let id = format!("lane-{lane}-of-{}", if place == 2 { "base" } else { "result" });
        area.invalid(&id, "SUM-2", "out_of_range", of(blocks(), &entries));
    }
    area.invalid("lane-with-top-bit", "SUM-2", "out_of_range", {
        of(blocks(), &with(&|entries| entries[0].2[3] = 0x80))
    });
    area.invalid("runs-descend", "SUM-1", "not_ascending", of(vec![], &[good[1], good[0]]));
    area.invalid("runs-overlap", "SUM-1", "not_ascending", {
        of(blocks(), &[(0, 1, good[0].2, good[0].3), good[1]])
    });
    area.invalid("run-beyond", "SUM-1", "out_of_range", of(vec![], &[(1, 1, good[0].2, good[0].3)]));
    area.invalid(
        "run-of-65-bits",
        "SUM-1",
        "out_of_range",
        of(vec![], &[(1, u64::MAX, good[0].2, good[0].3)]),
    );
    area.invalid("not-listed", "SUM-3", "unknown_reference", of(blocks(), &good[..1]));
    area.invalid("scope-not-listed", "SUM-3", "unknown_reference", {
        of(vec![block(several(0, 2), (4, bytes().u16(0)), ones())], &good[1..])
    });
    area.invalid("left-over", "CNV-6", "length_mismatch", {
        stream().manifest(&man).update(&update(&man, []).attribute(4, attribute(&good).u8(0))).done()
    });
    area.invalid("empty", "CNV-6", "length_mismatch", {
        stream().manifest(&man).update(&update(&man, []).attribute(4, bytes())).done()
    });
    area.invalid("short", "CNV-6", "length_mismatch", {
        stream().manifest(&man).update(&update(&man, []).attribute(4, bytes().v(1).v(0).raw([0; 31]))).done()
    });
    let two = |first: Update, second: Update| {
        stream().manifest(&man).part(&first, 0).part(&second.part(1), LAST).done()
    };
    let part = |blocks: Vec<Bytes>, entries: &[Entry]| update(&man, blocks).attribute(4, attribute(entries));
    for (id, entries) in [
        ("parts-differ", vec![with(&|entries| entries[0].3[0] ^= 1)[0]]),
        ("parts-overlap", vec![(0, 1, good[0].2, good[0].3)]),
    ] {
        area.invalid(
            id,
            "SUM-5",
            "checksum_mismatch",
            two(part(vec![a.block(0)], &good), part(vec![], &entries)),
        )
        .late()
        .base(base(&cases));
    }
    area.invalid("only-the-first-part", "UPD-3", "misplaced", two(part(vec![], &good), update(&man, [])));
    area.invalid("only-the-last-part", "UPD-3", "misplaced", two(update(&man, []), part(vec![], &good)));
}

fn with_hashes(area: &mut Area) {
    let cases = ["a", "b"].map(|name| Case::new(name, Dtype::Bf16, &[2, 3]));
    let (man, sums) = (manifest_of(&cases), [run(0, &cases)]);
    let hashes: Vec<Entry> =
        (0..).zip(&cases).map(|(t, case)| (t, 0, case.before.digest(), case.after.digest())).collect();
    let of = |hashes: &[Entry], sums: &[Entry]| {
        let update = update(&man, [cases[0].block(0), cases[1].block(1)]);
        let update = update.attribute(2, attribute(hashes)).attribute(4, attribute(sums));
        stream().manifest(&man).update(&update).done()
    };
    area.valid("both", "SUM-4 DEL-4 UPD-4", of(&hashes, &sums))
        .base(base(&cases))
        .tensors()
        .notes("each kind has runs of its own");
    let mut wrong = |id: &str, requirement, hash: bool, of_base: bool| {
        let (mut hashes, mut sums) = (hashes.clone(), sums);
        let entry = if hash { &mut hashes[1] } else { &mut sums[0] };
        let digest = if of_base { &mut entry.2 } else { &mut entry.3 };
        digest[0] ^= 1;
        area.invalid(id, requirement, "checksum_mismatch", of(&hashes, &sums)).late().base(base(&cases));
    };
    wrong("both-wrong-base-digest", "DEL-4", true, true);
    wrong("both-wrong-result-digest", "DEL-4", true, false);
    wrong("both-wrong-base-sum", "SUM-4", false, true);
    wrong("both-wrong-result-sum", "SUM-4", false, false);
    area.invalid("both-not-listed-by-hash", "DEL-2", "unknown_reference", of(&hashes[..1], &sums));
    area.invalid(
        "both-not-listed-by-sum",
        "SUM-3",
        "unknown_reference",
        of(&hashes, &[(0, 0, sums[0].2, sums[0].3)]),
    );
    let part = |number: u64, both: bool| {
        let part = update(&man, []).part(number).attribute(2, attribute(&[]));
        if both { part.attribute(4, attribute(&[])) } else { part }
    };
    for (id, first) in [("sums-in-the-first-part-only", true), ("sums-in-the-last-part-only", false)] {
        let bytes = stream().manifest(&man).part(&part(0, first), 0).part(&part(1, !first), LAST).done();
        area.invalid(id, "UPD-3", "misplaced", bytes);
    }
}
