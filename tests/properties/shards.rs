//! Deltas for receivers that hold shards of tensors: each applies and verifies its own part only.

use std::sync::Arc;

use gcodec::compress::random::word;
use gcodec::compress::{Input, Options, compress, deltas};
use gcodec::frame::{DeltaRuns, Manifest, Shard, TensorInfo, UpdateHeader};
use gcodec::stream::{Assembler, Body, EncodeOptions, Encoder, Event, SliceReader};
use gcodec::{Codec, Dtype, Error, Limits, TensorBuf, TensorView};

const SHAPE: [u64; 2] = [16, 24];

fn weights(dtype: Dtype, changed: bool) -> TensorBuf {
    let len = dtype.bytes_for(SHAPE.iter().product()).unwrap();
    let byte = |at: u64| word(1, 0, at) as u8 ^ u8::from(changed && word(2, 0, at).is_multiple_of(9));
    TensorBuf::new(dtype, SHAPE.to_vec(), (0..len).map(byte).collect()).unwrap()
}

/// Cuts a tensor into `parts` along `dim`.
fn cut(tensor: &TensorBuf, dim: usize, parts: u64) -> Vec<(TensorInfo, TensorBuf)> {
    let infos = TensorInfo::new("w", tensor.dtype(), tensor.shape()).shards(dim, parts).unwrap();
    let part = |info: TensorInfo| {
        let data = info.shard.as_ref().unwrap().cut(&info.shape, tensor.view()).unwrap().into_owned();
        let part = TensorBuf::new(info.dtype, info.shape.clone(), data).unwrap();
        (info, part)
    };
    infos.into_iter().map(part).collect()
}

fn encode(old: &[(TensorInfo, TensorBuf)], new: &[(TensorInfo, TensorBuf)], codec: &str) -> Vec<u8> {
    let pairs = (0..).zip(old.iter().zip(new));
    let inputs: Vec<Input<'_>> = pairs
        .map(|(tensor, ((info, old), (_, new)))| Input {
            tensor,
            name: &info.name,
            view: new.view(),
            base: Some(old.view()),
        })
        .collect();
    let codec: Codec = codec.parse().unwrap();
    // Each shard has blocks and a digest of its own, so that no rank needs the base of another.
    let mut blocks = Vec::new();
    let mut runs = DeltaRuns::default();
    let manifest = Arc::new(Manifest::new(new.iter().map(|(info, _)| info.clone()).collect()).unwrap());
    for input in &inputs {
        let own = compress(std::slice::from_ref(input), &[codec], &Options::default(), None).unwrap();
        runs = runs.with(deltas(&manifest, std::slice::from_ref(input), &[codec], &own).unwrap());
        blocks.extend(own);
    }
    let (mut encoder, mut out) = (Encoder::new(EncodeOptions::default()), Vec::new());
    encoder.update(&mut out, &UpdateHeader::default().with_runs(runs), &manifest, &blocks).unwrap();
    encoder.finish(&mut out);
    out
}

/// Applies what falls into a rank's own shard, of this place and shape, to a copy of it.
fn apply(stream: &[u8], place: &Shard, shape: &[u64], held: &TensorBuf) -> gcodec::Result<TensorBuf> {
    let mut result = held.clone();
    for event in SliceReader::new(stream, Limits::default()) {
        let Event::Frame(_, Body::Update(part)) = event? else { continue };
        let inside = |info: &TensorInfo| info.shard.as_ref()?.within(&info.shape, place, shape);
        let own: Vec<(&TensorInfo, Shard)> =
            part.manifest.tensors().iter().filter_map(|info| Some((info, inside(info)?))).collect();
        let bases = own.iter().map(|(info, shard)| shard.cut(&info.shape, held.view()));
        let bases = bases.collect::<gcodec::Result<Vec<_>>>()?;
        let wanted = |name: &str| own.iter().any(|(info, _)| info.name == name);
        let mut assembler = Assembler::new(&part.manifest, &Limits::default(), wanted)?;
        for ((info, _), base) in own.iter().zip(&bases) {
            assembler.base(&info.name, TensorView::new(info.dtype, &info.shape, base)?)?;
        }
        assembler.apply(&part)?;
        let tensors = assembler.finish()?;
        assert_eq!(tensors.len(), own.len());
        for ((_, tensor), (_, shard)) in tensors.iter().zip(&own) {
            shard.paste(tensor.view(), result.data_mut())?;
        }
    }
    Ok(result)
}

#[test]
fn a_rank_applies_and_verifies_its_own_rows_or_columns() {
    for dtype in [Dtype::Bf16, Dtype::F32, Dtype::F8E4M3Fn, Dtype::F4E2M1] {
        let (old, new) = (weights(dtype, false), weights(dtype, true));
        for (dim, codec) in [(0, "delta"), (1, "delta"), (1, "delta:values=overwrite")] {
            let stream = encode(&cut(&old, dim, 4), &cut(&new, dim, 4), codec);
            for ranks in [1, 2, 4] {
                let shards = cut(&old, dim, ranks).into_iter().zip(cut(&new, dim, ranks));
                for ((info, held), (_, expected)) in shards {
                    let place = info.shard.unwrap();
                    let found = apply(&stream, &place, &info.shape, &held).unwrap();
                    assert_eq!(found, expected, "{dtype} {dim} of {ranks} ranks, {codec}");
                    // A damaged part of its own is refused; it knows nothing of the others.
                    let mut damaged = held.clone();
                    damaged.data_mut()[3] ^= 1;
                    let error = apply(&stream, &place, &info.shape, &damaged).unwrap_err();
                    assert_eq!(error.name(), "checksum_mismatch", "{error}");
                }
            }
        }
    }
}

#[test]
fn shards_are_parts_of_their_tensor() {
    let whole = weights(Dtype::Bf16, false);
    for (dim, parts) in [(0, 1), (0, 16), (1, 3), (1, 24)] {
        let mut pasted = vec![0; whole.data().len()];
        for (info, part) in cut(&whole, dim, parts) {
            let shard = info.shard.unwrap();
            shard.paste(part.view(), &mut pasted).unwrap();
            let place = shard.within(&info.shape, &shard, &info.shape).unwrap();
            assert_eq!(place.cut(&info.shape, part.view()).unwrap(), part.data());
        }
        assert_eq!(pasted, whole.data());
    }
    let names: Vec<String> = cut(&whole, 1, 3).into_iter().map(|(info, _)| info.name).collect();
    assert_eq!(names, ["w[:,0:8]", "w[:,8:16]", "w[:,16:24]"]);
    let row = cut(&whole, 0, 4).remove(1).0;
    let columns = cut(&whole, 1, 4).remove(1).0;
    let (row_place, column_place) = (row.shard.unwrap(), columns.shard.unwrap());
    assert_eq!(row_place.within(&row.shape, &column_place, &columns.shape), None);
    let info = TensorInfo::new("w", Dtype::Bf16, SHAPE);
    for (dim, parts) in [(0, 3), (0, 0), (2, 1)] {
        assert!(matches!(info.shards(dim, parts), Err(Error::Input(_))));
    }
    // Half of a byte cannot be cut.
    let halves = TensorBuf::new(Dtype::F4E2M1, vec![2, 3], vec![0; 3]).unwrap();
    let half = TensorInfo::new("w", Dtype::F4E2M1, [2, 3]).shards(0, 2).unwrap().remove(0);
    assert!(half.shard.unwrap().cut(&half.shape, halves.view()).is_err());
    // Empty shards have no bytes.
    let empty = TensorInfo::new("w", Dtype::Bf16, [0, 3]).shards(0, 2).unwrap().remove(1);
    let none = TensorBuf::new(Dtype::Bf16, vec![0, 3], Vec::new()).unwrap();
    assert!(empty.shard.unwrap().cut(&empty.shape, none.view()).unwrap().is_empty());
}
