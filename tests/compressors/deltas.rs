//! Deltas through a stream, and onto what receivers hold.

use std::sync::Arc;

use gcodec::block::{Scope, Support, Target, Values};
use gcodec::compress::random::word;
use gcodec::compress::{Input, Options, compress, deltas};
use gcodec::digest::{SumChange, SumDigest};
use gcodec::error::InputErrorKind;
use gcodec::frame::{Manifest, TensorInfo, UpdateHeader};
use gcodec::internal::element::{bits_at, set_bits_at};
use gcodec::stream::{Assembler, Body, EncodeOptions, Encoder, Event, SliceReader};
use gcodec::{Codec, Dtype, Error, Limits, TensorBuf};

const NAMES: [&str; 2] = ["a", "b"];

/// Elements of a type with every bit pattern in it: infinities, and NaN with payloads. In rows of 37, if they
/// fill whole ones.
fn arbitrary(dtype: Dtype, n: u64) -> TensorBuf {
    let mut data = vec![0; dtype.bytes_for(n).unwrap() as usize];
    for at in 0..n {
        let bits = u64::from(word(1, 1, at)) << 32 | u64::from(word(1, 2, at));
        set_bits_at(dtype, &mut data, at, bits & u64::MAX >> (64 - dtype.bits())).unwrap();
    }
    let shape = if n.is_multiple_of(37) { vec![n / 37, 37] } else { vec![n] };
    TensorBuf::new(dtype, shape, data).unwrap()
}

/// Returns a tensor in which one of `every` elements has another bit pattern.
fn changed(old: &TensorBuf, every: usize) -> TensorBuf {
    let (dtype, mut data) = (old.dtype(), old.data().to_vec());
    for at in (0..old.view().elements()).step_by(every) {
        let old = bits_at(dtype, &data, at).unwrap();
        let flip = 1 + u64::from(word(2, 2, at)) % (u64::MAX >> (64 - dtype.bits()).max(1)).min(0xffff);
        let flip = flip & u64::MAX >> (64 - dtype.bits());
        set_bits_at(dtype, &mut data, at, old ^ flip.max(1)).unwrap();
    }
    TensorBuf::new(dtype, old.shape().to_vec(), data).unwrap()
}

fn inputs<'a>(old: &'a [TensorBuf], new: &'a [TensorBuf]) -> Vec<Input<'a>> {
    let pairs = new.iter().zip(old).zip(NAMES).zip(0..);
    pairs
        .map(|(((new, old), name), tensor)| Input { tensor, name, view: new.view(), base: Some(old.view()) })
        .collect()
}

fn encode(old: &[TensorBuf], new: &[TensorBuf], codec: &str) -> Vec<u8> {
    let inputs = inputs(old, new);
    let codec: Codec = codec.parse().unwrap();
    let codecs = vec![codec; new.len()];
    let blocks = compress(&inputs, &codecs, &Options::default(), None).unwrap();
    let infos = inputs.iter().map(|i| TensorInfo::new(i.name, i.view.dtype(), i.view.shape()));
    let manifest = Arc::new(Manifest::new(infos.collect()).unwrap());
    let header = UpdateHeader::default().with_runs(deltas(&manifest, &inputs, &codecs, &blocks).unwrap());
    let (mut encoder, mut out) = (Encoder::new(EncodeOptions::default()), Vec::new());
    encoder.update(&mut out, &header, &manifest, &blocks).unwrap();
    encoder.finish(&mut out);
    out
}

/// Assembles a delta, with its digests.
fn assembled(stream: &[u8], old: &[TensorBuf]) -> gcodec::Result<Vec<TensorBuf>> {
    let mut assembler = None;
    for event in SliceReader::new(stream, Limits::default()) {
        let Event::Frame(_, Body::Update(part)) = event? else { continue };
        if assembler.is_none() {
            let mut made = Assembler::new(&part.manifest, &Limits::default(), |_| true)?;
            for (name, tensor) in NAMES.iter().zip(old) {
                made.base(name, tensor.view())?;
            }
            assembler = Some(made);
        }
        assembler.as_mut().unwrap().apply(&part)?;
    }
    Ok(assembler.unwrap().finish()?.into_iter().map(|(_, tensor)| tensor).collect())
}

/// Applies the blocks of a delta, without digests. Returns whether any needs the base to find positions.
fn apply(stream: &[u8], data: &mut [Vec<u8>]) -> bool {
    let mut based = false;
    for event in SliceReader::new(stream, Limits::default()) {
        let Event::Frame(_, Body::Update(part)) = event.unwrap() else { continue };
        for (i, raw) in part.blocks.iter().enumerate() {
            let budget = part.budget();
            let block = part.decode(i, &budget).unwrap();
            based |= matches!(block.support, Support::Based(_));
            let start = if let Scope::Range { start, .. } = raw.scope { start } else { 0 };
            let data = data[raw.scope.first() as usize..].iter_mut().zip(&raw.space.lens);
            let mut targets: Vec<_> = data.map(|(data, &len)| Target { data, start, len }).collect();
            block.apply(&raw.space, part.sets(), &budget, &mut targets).unwrap();
        }
    }
    based
}

/// A changed element: its tensor, its number, and its bits before.
type Noted = (usize, u64, u64);

/// Applies the blocks of a delta, and returns its changes, and what they add to the sums of the tensors.
fn apply_noting(stream: &[u8], data: &mut [Vec<u8>]) -> (Vec<Noted>, Vec<SumDigest>) {
    let (mut noted, mut changes) = (Vec::new(), Vec::<Option<SumChange>>::new());
    for event in SliceReader::new(stream, Limits::default()) {
        let Event::Frame(_, Body::Update(part)) = event.unwrap() else { continue };
        changes.resize_with(part.manifest.tensors().len(), || None::<SumChange>);
        for (i, raw) in part.blocks.iter().enumerate() {
            let (budget, first) = (part.budget(), raw.scope.first() as usize);
            let block = part.decode(i, &budget).unwrap();
            let start = if let Scope::Range { start, .. } = raw.scope { start } else { 0 };
            let data = data[first..].iter_mut().zip(&raw.space.lens);
            let mut targets: Vec<_> = data.map(|(data, &len)| Target { data, start, len }).collect();
            let note = |target: usize, element, old, new| {
                let info = &part.manifest.tensors()[first + target];
                let change = changes[first + target].get_or_insert_with(|| info.sum_change().unwrap());
                change.add(element, old, new).unwrap();
                assert_ne!(old, new);
                noted.push((first + target, element, old));
            };
            block.apply_noting(&raw.space, part.sets(), &budget, &mut targets, note).unwrap();
        }
    }
    (noted, changes.into_iter().map(|change| change.map_or(SumDigest::ZERO, SumChange::finish)).collect())
}

#[test]
fn deltas_lead_from_base_to_tensor() {
    for dtype in Dtype::ALL {
        let old = [arbitrary(dtype, 3001), arbitrary(dtype, 999)];
        for every in [1, 2, 97, 4000] {
            let new = [changed(&old[0], every), changed(&old[1], every)];
            for codec in ["delta", "delta:positions=classed", "delta:values=overwrite"] {
                let stream = encode(&old, &new, codec);
                assert_eq!(assembled(&stream, &old).unwrap(), new, "{dtype} {every} {codec}");
                let mut data = old.each_ref().map(|t| t.data().to_vec());
                apply(&stream, &mut data);
                assert!(data.iter().zip(&new).all(|(data, new)| data == new.data()), "{dtype} {codec}");
                let mut data = old.each_ref().map(|t| t.data().to_vec());
                let (noted, sums) = apply_noting(&stream, &mut data);
                assert!(data.iter().zip(&new).all(|(data, new)| data == new.data()), "{dtype} {codec}");
                for ((old, new), sum) in old.iter().zip(&new).zip(sums) {
                    let [old, new] = [old, new].map(|tensor| SumDigest::of(tensor.view()));
                    assert_eq!(old + sum, new, "{dtype} {every} {codec}");
                }
                for (tensor, element, bits) in noted {
                    set_bits_at(dtype, &mut data[tensor], element, bits).unwrap();
                }
                assert!(data.iter().zip(&old).all(|(data, old)| data == old.data()), "{dtype} {codec}");
            }
        }
    }
}

#[test]
fn overwriting_twice_is_once_and_needs_no_base() {
    for dtype in Dtype::ALL {
        let old = [arbitrary(dtype, 3001), arbitrary(dtype, 999)];
        for every in [1, 2, 97] {
            let new = [changed(&old[0], every), changed(&old[1], every)];
            for codec in ["delta:values=overwrite", "delta:values=overwrite,positions=classed"] {
                let stream = encode(&old, &new, codec);
                let mut data = old.each_ref().map(|t| t.data().to_vec());
                for times in 1..3 {
                    assert!(!apply(&stream, &mut data), "{codec} finds positions by the base");
                    let same = data.iter().zip(&new).all(|(data, new)| data == new.data());
                    assert!(same, "{dtype} {every} {codec} {times}");
                }
                // Elements that the sender knows nothing of keep their bits, and the others get the new ones.
                let mut other = old.each_ref().map(|t| vec![0; t.data().len()]);
                apply(&stream, &mut other);
                for ((other, old), new) in other.iter().zip(&old).zip(&new) {
                    for at in 0..old.view().elements() {
                        let [was, is] = [old, new].map(|t| bits_at(dtype, t.data(), at).unwrap());
                        let found = bits_at(dtype, other, at).unwrap();
                        assert!(found == is || was == is && found == 0, "{dtype} {every} {at}");
                    }
                }
                // An assembler checks the base, so that it applies no update twice.
                let twice = assembled(&stream, &new).unwrap_err();
                assert!(matches!(twice, Error::Input(e) if e.kind == InputErrorKind::BaseMismatch));
            }
        }
    }
}

#[test]
fn the_values_of_a_delta_are_those_that_were_asked_for() {
    let old = [arbitrary(Dtype::Bf16, 5000)];
    let new = [changed(&old[0], 50)];
    for (codec, overwrites) in [("delta", false), ("delta:values=overwrite", true)] {
        let codec: Codec = codec.parse().unwrap();
        let blocks = compress(&inputs(&old, &new), &[codec], &Options::default(), None).unwrap();
        let found = matches!(blocks[0].block.values, Values::Planes(_));
        assert_eq!(found, overwrites, "{codec}");
        let wire = encode(&old, &new, &codec.to_string());
        assert_eq!(assembled(&wire, &old).unwrap(), new);
    }
}

/// Half of the elements change by one: any of them, or those of a small exponent.
#[test]
fn differences_of_all_elements_replace_positions_that_cost_as_much() {
    for dtype in [Dtype::Bf16, Dtype::F32] {
        let old = arbitrary(dtype, 50_000);
        for predicted in [false, true] {
            let mut data = old.data().to_vec();
            for at in 0..50_000 {
                let bits = bits_at(dtype, &data, at).unwrap();
                let is_small = bits >> (dtype.bits() - 2) & 1 == 0;
                if if predicted { is_small } else { word(3, 3, at).is_multiple_of(2) } {
                    set_bits_at(dtype, &mut data, at, bits ^ 1).unwrap();
                }
            }
            let new = [TensorBuf::new(dtype, vec![50_000], data).unwrap()];
            let inputs = inputs(std::slice::from_ref(&old), &new);
            let codec: Codec = "delta".parse().unwrap();
            let blocks = compress(&inputs, &[codec], &Options::default(), None).unwrap();
            let block = &blocks[0].block;
            assert!(matches!(block.values, Values::Ulp(_)));
            assert_eq!(matches!(block.support, Support::All), !predicted, "{dtype}");
            assert_eq!(matches!(block.support, Support::Based(_)), predicted, "{dtype}");
            let wire = encode(std::slice::from_ref(&old), &new, "delta");
            assert_eq!(assembled(&wire, std::slice::from_ref(&old)).unwrap(), new);
            // A bit for each element says whether it changes, another one the direction.
            assert!(predicted || wire.len() < 50_000 * 3 / 2 / 8 * 104 / 100, "{}", wire.len());
        }
    }
}

#[test]
fn a_delta_needs_a_base_of_its_shape_and_type() {
    let codec = ["delta".parse().unwrap()];
    let new = TensorBuf::from_f32(vec![1], &[1.0]).unwrap();
    let other = TensorBuf::new(Dtype::Bf16, vec![1], vec![0, 0]).unwrap();
    for base in [None, Some(other.view())] {
        let input = Input { tensor: 4, name: "a", view: new.view(), base };
        assert!(compress(&[input], &codec, &Options::default(), None).is_err());
    }
}
