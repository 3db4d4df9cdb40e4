//! Deltas (gcodec.md, section 6) and differences in units of the last place (values/ulp.md).

use gcodec::internal::element;
use gcodec::{Dtype, TensorView, frame};
use serde_json::{Value, json};

use super::Area;
use super::build::*;
use super::describe::hex;

/// A tensor: number of its element type, shape, and bytes.
pub(super) struct Tensor<'a>(pub(super) u8, pub(super) &'a [u64], pub(super) Vec<u8>);

impl Tensor<'_> {
    pub(super) fn dtype(&self) -> Dtype {
        Dtype::from_id(self.0).expect("an element type")
    }

    pub(super) fn digest(&self) -> [u8; 16] {
        frame::tensor_digest(TensorView::new(self.dtype(), self.1, &self.2).expect("a tensor"))
    }

    pub(super) fn json(&self) -> Value {
        json!({ "dtype": self.dtype().name(), "shape": self.1, "data": hex(&self.2) })
    }

    /// Returns the tensor with elements moved by these distances in units of the last place.
    fn moved(&self, diffs: &[i64]) -> Self {
        let mut data = self.2.clone();
        for (i, &diff) in (0..).zip(diffs) {
            let bits = element::bits_at(self.dtype(), &data, i).expect("an element");
            element::set_bits_at(self.dtype(), &mut data, i, element::ulp_step(self.dtype(), bits, diff));
        }
        Tensor(self.0, self.1, data)
    }
}

fn zigzag(d: i64) -> u64 {
    ((d << 1) ^ (d >> 63)) as u64
}

fn attribute(entries: &[(u64, [u8; 16], [u8; 16])]) -> Bytes {
    entries
        .iter()
        .fold(bytes().v(entries.len() as u64), |out, (t, base, result)| out.v(*t).v(0).raw(base).raw(result))
}

/// Returns a delta over one tensor with an `ulp` block of these `ints`; its digests match no tensor.
pub(crate) fn ulps(dtype: u8, ints: Bytes, count: u64) -> Vec<u8> {
    let man = manifest(&[("w", dtype, &[count])]);
    let update = update(&man, [block(whole(0), ALL(), (10, ints))]);
    stream().manifest(&man).update(&update.attribute(2, attribute(&[(0, [1; 16], [2; 16])]))).done()
}

pub(crate) fn add(area: &mut Area) {
    every_type(area);
    attributes(area);
    applied(area);
}

fn every_type(area: &mut Area) {
    for dtype in Dtype::ALL {
        let width = dtype.bits();
        let sign = 1u64 << (width - 1);
        let patterns = [0, sign, 1, sign | 1, sign - 1, sign | (sign - 1), 5 & (sign - 1)];
        let least = i64::MIN >> (64 - width);
        let diffs = [-1, 1, -2, 2, 1, !least, least];
        let mut data = vec![0; dtype.bytes_for(7).expect("seven elements") as usize];
        for (i, &bits) in (0..).zip(&patterns) {
            element::set_bits_at(dtype, &mut data, i, bits);
        }
        let base = Tensor(dtype.id(), &[7], data);
        let result = base.moved(&diffs);
        let man = manifest(&[("w", dtype.id(), &[7])]);
        let ints = bytes().packed(width as u8, &diffs.map(zigzag));
        let update = update(&man, [block(whole(0), ALL(), (10, ints))])
            .attribute(2, attribute(&[(0, base.digest(), result.digest())]));
        area.valid(
            &format!("ulp-{dtype}"),
            "ULP-1 DEL-1 DEL-4",
            stream().manifest(&man).update(&update).done(),
        )
        .base(json!({ "w": base.json() }))
        .tensors()
        .notes("from minus zero to zero is one place; the greatest steps wrap");
        if width < 64 {
            let ints = bytes().packed(width as u8 + 1, &[1 << width]);
            area.invalid(
                &format!("ulp-{dtype}-beyond"),
                "ULP-1 INT-4",
                "out_of_range",
                ulps(dtype.id(), ints, 1),
            );
            let ints = bytes().packed(width as u8 + 1, &[(1 << width) + 1]);
            area.invalid(&format!("ulp-{dtype}-below"), "ULP-1", "out_of_range", ulps(dtype.id(), ints, 1));
        }
    }
}

fn attributes(area: &mut Area) {
    let man = manifest(&[("a", F32, &[2]), ("b", F32, &[2])]);
    let over = |scope: Bytes| block(scope, ALL(), ones());
    let entry = |t: u64| (t, [1; 16], [2; 16]);
    let of = |blocks: Vec<Bytes>, attribute: Bytes| {
        stream().manifest(&man).update(&update(&man, blocks).attribute(2, attribute)).done()
    };
    area.valid(
        "attribute",
        "DEL-1 DEL-2",
        of(vec![over(whole(0)), over(whole(1))], attribute(&[entry(0), entry(1)])),
    );
    area.valid("attribute-of-more", "DEL-2", of(vec![over(whole(1))], attribute(&[entry(0), entry(1)])))
        .notes("tensors that no block touches may be listed");
    area.valid("attribute-of-none", "DEL-2", of(vec![], attribute(&[])));
    area.invalid("tensors-descend", "DEL-1", "not_ascending", of(vec![], attribute(&[entry(1), entry(0)])));
    area.invalid("tensor-twice", "DEL-1", "not_ascending", of(vec![], attribute(&[entry(0), entry(0)])));
    area.invalid(
        "tensor-not-listed",
        "DEL-2",
        "unknown_reference",
        of(vec![over(whole(0))], attribute(&[entry(1)])),
    );
    area.invalid(
        "tensor-of-several-not-listed",
        "DEL-2",
        "unknown_reference",
        of(vec![over(several(0, 2))], attribute(&[entry(0)])),
    );
    area.invalid("scope-without-positions", "DEL-2", "unknown_reference", {
        of(vec![block(several(0, 2), (4, bytes().u8(0)), ones())], attribute(&[entry(0)]))
    })
    .notes("a tensor counts if it is in the scope, also without any values");
    area.invalid("attribute-left-over", "CNV-6", "length_mismatch", of(vec![], attribute(&[entry(0)]).u8(0)));
    area.invalid("attribute-short", "CNV-6", "length_mismatch", of(vec![], bytes().v(1).v(0).raw([0; 31])));
    area.invalid("ulp-without-attribute", "DEL-3", "unknown_reference", {
        dense(F32, &[2], (10, bytes().packed(1, &[0, 1])))
    });
    area.invalid("ulp-with-add", "BLK-5", "out_of_range", {
        of(vec![block(adding(whole(0)), ALL(), (10, bytes().packed(1, &[0, 1])))], attribute(&[entry(0)]))
    });
}

fn applied(area: &mut Area) {
    let floats = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let a = Tensor(F32, &[4], floats(&[1.0, -0.0, 3.5, f32::NAN]));
    let b = Tensor(F32, &[2], floats(&[7.0, 8.0]));
    let man = manifest(&[("a", F32, &[4]), ("b", F32, &[2])]);
    let base = || json!({ "a": a.json(), "b": b.json() });
    let of = |blocks: Vec<Bytes>, entries: &[(u64, [u8; 16], [u8; 16])]| {
        stream().manifest(&man).update(&update(&man, blocks).attribute(2, attribute(entries))).done()
    };
    let overwrite = || block(whole(0), (4, bytes().u8(0b0101)), (1, bytes().u8(0).f32(9.0).f32(-9.0)));
    let written = Tensor(F32, &[4], floats(&[9.0, -0.0, -9.0, f32::NAN]));
    let good = [(0, a.digest(), written.digest())];
    area.valid("overwrite", "DEL-4", of(vec![overwrite()], &good))
        .base(base())
        .tensors()
        .notes("the elements, and the tensor, that no block speaks of keep the base's value");
    area.valid("overwrite-planes", "DEL-4", {
        let values = (0..4).fold(bytes(), |out, p| {
            let byte = |x: f32| (x.to_bits().rotate_left(1) >> (8 * p)) as u8;
            out.u8(0).u8(byte(9.0)).u8(byte(-9.0))
        });
        of(vec![block(whole(0), (4, bytes().u8(0b0101)), (9, values))], &good)
    })
    .base(base())
    .tensors();
    let sum = Tensor(F32, &[2], floats(&[8.0, 9.0]));
    area.valid("add-to-the-base", "DEL-4 UPD-6", {
        of(vec![block(adding(whole(1)), ALL(), ones())], &[(1, b.digest(), sum.digest())])
    })
    .base(base())
    .tensors();
    area.valid("ulp-after-add", "DEL-4 ULP-1", {
        let result = sum.moved(&[1, -1]);
        let blocks = vec![
            block(adding(whole(1)), ALL(), ones()),
            block(whole(1), ALL(), (10, bytes().packed(2, &[2, 1]))),
        ];
        of(blocks, &[(1, b.digest(), result.digest())])
    })
    .base(base())
    .tensors()
    .notes("the difference is to the element as it is before the block");
    area.valid("two-parts", "DEL-2 DEL-4", {
        let first = update(&man, [block(range(0, 0, 1), ALL(), (1, bytes().u8(0).f32(9.0)))]);
        let second = update(&man, [block(range(0, 2, 1), ALL(), (1, bytes().u8(0).f32(-9.0)))]).part(1);
        let (first, second) = (first.attribute(2, attribute(&good)), second.attribute(2, attribute(&good)));
        stream().manifest(&man).part(&first, 0).part(&second, LAST).done()
    })
    .base(base())
    .tensors()
    .notes("a tensor that two parts list with the same digests: those before and after the whole update");
    area.valid("no-blocks", "DEL-4", of(vec![], &[])).base(base()).tensors();

    let mut refuse = |id: &str, kind, base: Value, entries: &[(u64, [u8; 16], [u8; 16])]| {
        area.invalid(id, "DEL-4", kind, of(vec![overwrite()], entries)).late().base(base);
    };
    refuse("another-base", "checksum_mismatch", json!({ "a": written.json(), "b": b.json() }), &good);
    refuse("another-base-digest", "checksum_mismatch", base(), &[(0, [0; 16], written.digest())]);
    refuse("another-result", "checksum_mismatch", base(), &[(0, a.digest(), a.digest())]);
    refuse("another-tensors-base", "checksum_mismatch", base(), &[good[0], (1, [0; 16], b.digest())]);
    refuse("no-base", "unknown_reference", json!({}), &good);
    refuse("no-base-of-a-tensor-not-spoken-of", "unknown_reference", json!({ "a": a.json() }), &good);
    let mut other = |id: &str, of_a: Value| {
        refuse(id, "unknown_reference", json!({ "a": of_a, "b": b.json() }), &good);
    };
    other("base-of-another-shape", Tensor(F32, &[2, 2], a.2.clone()).json());
    other("base-of-another-type", Tensor(Dtype::I32.id(), &[4], a.2.clone()).json());
    area.invalid("two-parts-two-digests", "DEL-4", "checksum_mismatch", {
        let first = update(&man, [block(range(0, 0, 1), ALL(), (1, bytes().u8(0).f32(9.0)))]);
        let second = update(&man, [block(range(0, 2, 1), ALL(), (1, bytes().u8(0).f32(-9.0)))]).part(1);
        let half = Tensor(F32, &[4], floats(&[9.0, -0.0, 3.5, f32::NAN]));
        let first = first.attribute(2, attribute(&[(0, a.digest(), half.digest())]));
        let second = second.attribute(2, attribute(&[(0, half.digest(), written.digest())]));
        stream().manifest(&man).part(&first, 0).part(&second, LAST).done()
    })
    .late()
    .base(base())
    .notes("digests of each part, not of the whole update");
    let wrong = [("base", ([0; 16], written.digest())), ("result", (a.digest(), [0; 16]))];
    for (part, first) in [("first", true), ("second", false)] {
        for (digest, (before, after)) in wrong {
            let (good, wrong) = (attribute(&good), attribute(&[(0, before, after)]));
            let (one, two) = if first { (wrong, good) } else { (good, wrong) };
            let one = update(&man, [overwrite()]).attribute(2, one);
            let two = update(&man, []).part(1).attribute(2, two);
            let bytes = stream().manifest(&man).part(&one, 0).part(&two, LAST).done();
            area.invalid(&format!("{part}-part-other-{digest}"), "DEL-5", "checksum_mismatch", bytes)
                .late()
                .base(base())
                .notes("the tensor is listed in both parts, with one right pair of digests");
        }
    }
    area.valid("listed-again-without-blocks", "DEL-5 DEL-2", {
        let one = update(&man, [overwrite()]).attribute(2, attribute(&good));
        let two = update(&man, []).part(1).attribute(2, attribute(&good));
        stream().manifest(&man).part(&one, 0).part(&two, LAST).done()
    })
    .base(base())
    .tensors();
}
