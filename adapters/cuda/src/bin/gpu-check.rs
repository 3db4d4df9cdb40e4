//! Compares a device's results with the host's, byte for byte, and measures the device. Prints one line for
//! each result: a name, a number and a unit, or `ok`/`FAILED` for a comparison. `tools/gpu-check` runs it and
//! makes a table.
//!
//! `gpu-check [--elements N] [--small]`

use std::time::Instant;

use gcodec::block::{Block, Floats, IndexSpace, PendingBlock, Scope, Sets, Sparse, Stored, Support, Values};
use gcodec::compress::{Digests, Feedback, Input as HostInput, Options, compress, deltas};
use gcodec::digest::SumDigest;
use gcodec::frame::{Budget, Manifest, TensorInfo, UpdateHeader};
use gcodec::stream::{EncodeOptions, Encoder};
use gcodec::{Codec, Dtype, Limits, TensorBuf, TensorView};
use gcodec_cuda::{
    Compressor, DeltaCompressor, DeltaInput, Device, DeviceBuf, Error, Input, Scatter, Stream, SumDigester,
    SumInput, Target,
};

type AnyResult<T> = Result<T, Box<dyn std::error::Error>>;

/// Returns reproducible numbers with a distribution like a gradient's.
fn gradient(dtype: Dtype, n: usize, seed: u64) -> AnyResult<TensorBuf> {
    let mut words = vec![0; n];
    gcodec::compress::random::words(seed, 0, 0, &mut words);
    // The difference of two uniform numbers, cubed: a peak at zero and long tails.
    let value = |w: &u32| {
        let x = ((w & 0xffff) as f32 - (w >> 16) as f32) / 65536.0;
        x * x * x
    };
    let values: Vec<f32> = words.iter().map(value).collect();
    let mut data = vec![0; dtype.bytes_for(n as u64).unwrap_or(0) as usize];
    gcodec::internal::element::encode_f32s(dtype, &values, 0, &mut data)?;
    Ok(TensorBuf::new(dtype, vec![n as u64], data)?)
}

fn stream<'a, B: Into<PendingBlock<'a>>>(
    infos: &[TensorInfo],
    blocks: impl IntoIterator<Item = B>,
) -> AnyResult<Vec<u8>> {
    let manifest = std::sync::Arc::new(Manifest::new(infos.to_vec())?);
    let (mut encoder, mut out) = (Encoder::new(EncodeOptions::default()), Vec::new());
    encoder.update(&mut out, &UpdateHeader::default(), &manifest, blocks.into_iter().map(Into::into))?;
    encoder.finish(&mut out);
    Ok(out)
}

/// Whether device and host make the same bytes and residuals in three consecutive updates.
fn same(device: &Device, dtype: Dtype, lens: &[usize], spec: &str) -> AnyResult<bool> {
    let codecs = vec![spec.parse::<Codec>()?; lens.len()];
    let hosts: Vec<TensorBuf> =
        lens.iter().zip(0..).map(|(&n, seed)| gradient(dtype, n, seed)).collect::<AnyResult<_>>()?;
    let names: Vec<String> = (0..lens.len()).map(|i| format!("t{i}")).collect();
    let infos: Vec<TensorInfo> =
        names.iter().zip(&hosts).map(|(n, t)| TensorInfo::new(n.as_str(), dtype, t.view().shape())).collect();
    let buffers =
        hosts.iter().map(|t| DeviceBuf::from_host(device, t.view())).collect::<Result<Vec<_>, _>>()?;
    let (mut compressor, mut feedback) = (Compressor::new(device)?, Feedback::new());
    let mut writing = Compressor::new(device)?;
    let options = Options::default();
    for _ in 0..3 {
        let mut inputs = Vec::new();
        for ((buffer, name), tensor) in buffers.iter().zip(&names).zip(0..) {
            inputs.push(Input { tensor, name, data: buffer.tensor()? });
        }
        let host: Vec<HostInput<'_>> = hosts
            .iter()
            .zip(&names)
            .zip(0..)
            .map(|((t, name), tensor)| HostInput { tensor, name, view: t.view(), base: None })
            .collect();
        let got = compressor.compress_with_feedback(&inputs, &codecs, &options, Stream::DEFAULT)?;
        let expected = compress(&host, &codecs, &options, Some(&mut feedback))?;
        let expected = stream(&infos, &expected)?;
        if stream(&infos, &got)? != expected {
            return Ok(false);
        }
        // With positions in wire form from the device.
        let got = writing.compress_wire_with_feedback(&inputs, &codecs, &options, Stream::DEFAULT)?;
        if stream(&infos, got)? != expected {
            return Ok(false);
        }
        if compressor.residuals()?.save() != feedback.save() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns a tensor of which about one element in `every` has another last place.
fn next_version(base: &TensorBuf, every: u32) -> AnyResult<TensorBuf> {
    let (dtype, shape, mut data) = (base.view().dtype(), base.view().shape(), base.view().data().to_vec());
    for (element, i) in data.chunks_exact_mut((dtype.bits() / 8) as usize).zip(0..) {
        element[0] ^= u8::from(gcodec::compress::random::word(9, 0, i).is_multiple_of(every));
    }
    Ok(TensorBuf::new(dtype, shape.to_vec(), data)?)
}

/// Whether device and host make the same blocks and digests of changes.
fn same_changes(device: &Device, dtype: Dtype, lens: &[usize], spec: &str) -> AnyResult<bool> {
    let codecs = vec![spec.parse::<Codec>()?; lens.len()];
    let bases: Vec<TensorBuf> =
        lens.iter().zip(0..).map(|(&n, seed)| gradient(dtype, n, seed)).collect::<AnyResult<_>>()?;
    let news: Vec<TensorBuf> = bases.iter().map(|base| next_version(base, 50)).collect::<AnyResult<_>>()?;
    let upload = |tensors: &[TensorBuf]| {
        tensors.iter().map(|t| DeviceBuf::from_host(device, t.view())).collect::<Result<Vec<_>, _>>()
    };
    let buffers = (upload(&bases)?, upload(&news)?);
    let mut inputs = Vec::new();
    for ((base, new), tensor) in buffers.0.iter().zip(&buffers.1).zip(0..) {
        inputs.push(DeltaInput { tensor, new: new.tensor()?, base: base.tensor()? });
    }
    let pairs = bases.iter().zip(&news).zip(0..);
    let host: Vec<HostInput<'_>> = pairs
        .map(|((base, new), tensor)| HostInput {
            tensor,
            name: "",
            view: new.view(),
            base: Some(base.view()),
        })
        .collect();
    let infos =
        news.iter().zip(0..).map(|(new, t)| TensorInfo::new(format!("t{t}"), dtype, new.view().shape()));
    let manifest = Manifest::new(infos.collect())?;
    let (mut compressor, mut digests) = (DeltaCompressor::new(device)?, Digests::default());
    let (blocks, runs) =
        compressor.compress_with_digests(&manifest, &inputs, &codecs, &mut digests, Stream::DEFAULT)?;
    let expected = compress(&host, &codecs, &Options::default(), None)?;
    Ok(blocks == expected && runs == deltas(&manifest, &host, &codecs, &expected)?)
}

/// Whether device and host compute the same sum of a matrix, of its transpose, and of a box of it.
fn same_sums(device: &Device, dtype: Dtype, [rows, columns]: [u64; 2]) -> AnyResult<bool> {
    let host = gradient(dtype, (rows * columns) as usize, 5)?;
    let buffer = DeviceBuf::from_host(device, host.view())?;
    let (shape, turned) = ([rows, columns], [columns, rows]);
    let matrix = TensorView::new(dtype, &shape, host.view().data())?;
    let (strides, steps) = ([columns as i64, 1], [1, columns as i64]);
    let part = [rows / 2, columns / 2];
    let inputs = [
        SumInput { data: buffer.part(0, &shape, &strides)?, offsets: &[3, 65_530] },
        SumInput { data: buffer.part(0, &turned, &steps)?, offsets: &[0, 0] },
        SumInput { data: buffer.part(columns + 1, &part, &strides)?, offsets: &[1, 1] },
    ];
    let width = (dtype.bits() / 8) as usize;
    let elements: Vec<&[u8]> = host.view().data().chunks_exact(width).collect();
    let index = |row: u64, column: u64| (row * columns + column) as usize;
    let transposed = (0..columns).flat_map(|c| (0..rows).map(move |r| index(r, c))).map(|i| elements[i]);
    let transposed = TensorBuf::new(dtype, turned.to_vec(), transposed.collect::<Vec<_>>().concat())?;
    let expected = [
        SumDigest::of_shard(matrix, &[3, 65_530])?,
        SumDigest::of(transposed.view()),
        SumDigest::of_part(matrix, &part, &[1, 1])?,
    ];
    Ok(SumDigester::new(device)?.digests(&inputs, Stream::DEFAULT)? == expected)
}

/// Measures the sums of bf16 tensors of `n` elements.
fn measure_sums(device: &Device, n: usize) -> AnyResult<()> {
    let host = gradient(Dtype::Bf16, n, 1)?;
    let buffer = DeviceBuf::from_host(device, host.view())?;
    let mut digester = SumDigester::new(device)?;
    let columns = 4096.min(n) as u64;
    let rows = n as u64 / columns;
    for (what, shape, strides) in [
        ("one row", vec![n as u64], vec![1]),
        ("rows of 4096", vec![rows, columns], vec![columns as i64, 1]),
        ("rows of 4096, transposed", vec![columns, rows], vec![1, columns as i64]),
        ("rows of 64", vec![n as u64 / 64, 64], vec![64, 1]),
        ("rows of 4096, the first half of each", vec![rows, columns / 2], vec![columns as i64, 1]),
    ] {
        let zeros = vec![0; shape.len()];
        let bytes = 2.0 * shape.iter().product::<u64>() as f64;
        let seconds = median(|| {
            let data = buffer.part(0, &shape, &strides)?;
            digester.digests(&[SumInput { data, offsets: &zeros }], Stream::DEFAULT)?;
            Ok(())
        })?;
        println!("sum of {n} bf16, {what}: {:.3} ms", seconds * 1e3);
        println!("sum of {n} bf16, {what}: {:.1} GB/s of input", bytes / seconds / 1e9);
    }
    Ok(())
}

/// Measures the changes of `n` elements, of which 1 % differ from the base.
fn measure_changes(device: &Device, n: usize) -> AnyResult<()> {
    let base = gradient(Dtype::Bf16, n, 1)?;
    let new = next_version(&base, 100)?;
    let manifest = Manifest::new(vec![TensorInfo::new("w", Dtype::Bf16, base.view().shape())])?;
    let (base, new) = (DeviceBuf::from_host(device, base.view())?, DeviceBuf::from_host(device, new.view())?);
    let mut compressor = DeltaCompressor::new(device)?;
    let inputs = [DeltaInput { tensor: 0, new: new.tensor()?, base: base.tensor()? }];
    for kind in [None, Some("sum"), Some("blake3")] {
        let codecs = [format!("delta:digest={}", kind.unwrap_or("sum")).parse::<Codec>()?];
        // The digests of the base are those that the last update kept.
        let kept = &mut Digests::default();
        let seconds = median(|| {
            match kind {
                Some(_) => {
                    compressor.compress_with_digests(&manifest, &inputs, &codecs, kept, Stream::DEFAULT)?;
                }
                None => _ = compressor.compress(&inputs, &codecs, Stream::DEFAULT)?,
            }
            Ok(())
        })?;
        let with = kind.map_or(String::new(), |kind| format!(", digest={kind}"));
        println!("delta, {n} bf16, 1 % changed{with}: {:.3} ms", seconds * 1e3);
        println!(
            "delta, {n} bf16, 1 % changed{with}: {:.1} GB/s of new elements",
            2.0 * n as f64 / seconds / 1e9
        );
    }
    Ok(())
}

/// Whether values in a tensor of 2^32 + 5 elements, 8.6 GB of zeros otherwise, are found at their positions.
#[allow(unsafe_code)]
fn beyond_32_bits(device: &Device) -> AnyResult<bool> {
    let (n, dtype) = ((1u64 << 32) + 5, Dtype::Bf16);
    let what = format!("positions in {n} {dtype}");
    let buffer = match DeviceBuf::zeros(device, dtype, &[n]) {
        Ok(buffer) => buffer,
        Err(e @ Error::OutOfMemory { .. }) => {
            println!("{what}: SKIPPED, {e}");
            return Ok(true);
        }
        Err(e) => return Err(e.into()),
    };
    let planted = vec![0, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, n - 1];
    let values: Vec<f32> = (1u8..7).map(f32::from).collect();
    let mut bytes = vec![0; 2 * values.len()];
    gcodec::internal::element::encode_f32s(dtype, &values, 0, &mut bytes)?;
    let block = Block {
        scope: Scope::Tensor(0),
        add: false,
        support: Support::Sparse(Sparse { positions: planted.clone() }),
        values: Values::Floats(Floats { stored: Stored::Source, bytes }),
    };
    let space = IndexSpace { dtype, lens: vec![n].into(), row_lens: vec![], shapes: Default::default() };
    let target = Target { tensor: buffer.tensor()?, start: 0, len: n };
    let (sets, budget) = (Sets::new(), Budget::new(&Limits::default()));
    let mut scatter = Scatter::new(device)?;
    // SAFETY: the buffer stays allocated, and only later work of the same stream reads it.
    unsafe { scatter.put(&block, &space, &sets, &budget, &[target], false, Stream::DEFAULT) }?;
    let mut right = true;
    for spec in ["topk:k=6", "sbc:k=6", "threshold:at=0.5", "sidco:k=6", "sidco:k=6,stages=2"] {
        let inputs = [Input { tensor: 0, name: "w", data: buffer.tensor()? }];
        let codecs = [spec.parse::<Codec>()?];
        let mut compressor = Compressor::new(device)?;
        let blocks = compressor.compress(&inputs, &codecs, &Options::default(), Stream::DEFAULT)?;
        let fits =
            blocks.len() == 1 && blocks[0].support == Support::Sparse(Sparse { positions: planted.clone() });
        println!("{what}, {spec}: {}", if fits { "ok" } else { "FAILED" });
        right &= fits;
    }
    Ok(right)
}

/// Returns the median of seven runs in seconds, after one warm-up.
fn median(mut f: impl FnMut() -> AnyResult<()>) -> AnyResult<f64> {
    f()?;
    let mut times = Vec::new();
    for _ in 0..7 {
        let start = Instant::now();
        f()?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times[3])
}

fn main() -> AnyResult<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let small = arguments.iter().any(|a| a == "--small");
    let named = arguments.iter().position(|a| a == "--elements").and_then(|i| arguments.get(i + 1));
    let n: usize = named.map_or(Ok(1 << 28), |n| n.parse())?;
    let device = match Device::open(0) {
        Ok(device) => device,
        Err(e) => {
            println!("SKIPPED: {e}");
            return Ok(());
        }
    };
    println!("device {}", device.name());
    let mut failed = false;
    let lens: &[usize] = if small { &[40_000, 7] } else { &[5_000_000, 0, 100_000, 4096, 7] };
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        let matrix = if small { [37, 72] } else { [2_000, 2_501] };
        let fits = same_sums(&device, dtype, matrix)?;
        failed |= !fits;
        println!(
            "sums of a matrix, its transpose and a box, {dtype}: {}",
            if fits { "ok" } else { "FAILED" }
        );
        for spec in ["delta:digest=both", "delta:values=overwrite,digest=both"] {
            let fits = same_changes(&device, dtype, lens, spec)?;
            failed |= !fits;
            println!("blocks and digests of {spec}, {dtype}: {}", if fits { "ok" } else { "FAILED" });
        }
        for spec in [
            "topk:density=0.001",
            "topk:density=0.01,scope=global",
            "topk:density=0.9",
            "topk:density=0.01,values=pow2",
            "stc:density=0.01",
            "sbc:density=0.001",
            "threshold:at=0.1",
            "threshold:at=0.0001",
            "topk:density=0.001,positions=rice",
            "topk:density=0.9,scope=global,positions=rice",
            "topk:density=0.01,positions=rice-one",
            "stc:density=0.01,positions=rice",
            "sbc:density=0.001,positions=rice",
            "sbc:density=0.01,positions=rice-one",
            "threshold:at=0.0001,positions=rice",
            "sidco:density=0.001",
            "sidco:density=0.01,fit=gamma-gp",
            "sidco:density=0.01,fit=gamma-gp,stages=3",
            "sidco:density=0.01,stages=authors",
            "natural",
            "qsgd:bits=4,bucket=512",
            "dither:levels=8,bucket=4096",
            "terngrad:bucket=1024,clip=2.5",
            "int8:group=256",
            "int8:group=100000",
            "sign",
            "sign:group=2048",
        ] {
            let fits = same(&device, dtype, lens, spec)?;
            failed |= !fits;
            println!("bytes and residuals of {spec}, {dtype}: {}", if fits { "ok" } else { "FAILED" });
        }
    }
    if !small {
        failed |= !beyond_32_bits(&device)?;
        let host = gradient(Dtype::F32, n, 1)?;
        let buffer = DeviceBuf::from_host(&device, host.view())?;
        let infos = [TensorInfo::new("w", Dtype::F32, host.view().shape())];
        for spec in [
            "topk:density=0.001",
            "sbc:density=0.001",
            "sidco:density=0.001",
            "sidco:density=0.001,fit=gamma-gp",
            "sidco:density=0.001,stages=3",
        ] {
            let codecs = [spec.parse::<Codec>()?];
            let mut compressor = Compressor::new(&device)?;
            let options = Options::default();
            for feedback in [false, true] {
                let mut blocks = Vec::new();
                let seconds = median(|| {
                    let inputs = [Input { tensor: 0, name: "w", data: buffer.tensor()? }];
                    blocks = match feedback {
                        true => {
                            compressor.compress_with_feedback(&inputs, &codecs, &options, Stream::DEFAULT)?
                        }
                        false => compressor.compress(&inputs, &codecs, &options, Stream::DEFAULT)?,
                    };
                    Ok(())
                })?;
                let with = if feedback { ", error feedback" } else { "" };
                println!("select {spec}, {n} f32{with}: {:.3} ms", seconds * 1e3);
                println!("select {spec}, {n} f32{with}: {:.1} GB/s of input", 4.0 * n as f64 / seconds / 1e9);
                let seconds = median(|| stream(&infos, &blocks).map(|_| ()))?;
                println!("code {spec}, {n} f32{with}, on the host: {:.3} ms", seconds * 1e3);
            }
        }
        // To a finished frame, with positions coded by the device, and by the host.
        for spec in ["topk:density=0.001,positions=rice", "sbc:density=0.001,positions=rice"] {
            let codecs = [spec.parse::<Codec>()?];
            let mut compressor = Compressor::new(&device)?;
            let options = Options::default();
            for by_device in [true, false] {
                let seconds = median(|| {
                    let inputs = [Input { tensor: 0, name: "w", data: buffer.tensor()? }];
                    let frame = match by_device {
                        true => {
                            let blocks =
                                compressor.compress_wire(&inputs, &codecs, &options, Stream::DEFAULT)?;
                            stream(&infos, blocks)?
                        }
                        false => {
                            let blocks = compressor.compress(&inputs, &codecs, &options, Stream::DEFAULT)?;
                            stream(&infos, &blocks)?
                        }
                    };
                    std::hint::black_box(frame);
                    Ok(())
                })?;
                let by = if by_device { "device" } else { "host" };
                println!("{spec}, {n} f32, to a frame, positions by the {by}: {:.3} ms", seconds * 1e3);
            }
        }
        for spec in [
            "natural",
            "qsgd:bits=4,bucket=512",
            "qsgd:bits=8,bucket=2048",
            "dither:levels=8,bucket=1024",
            "terngrad:bucket=1024",
            "int8:group=256",
            "sign",
            "sign:group=1024",
        ] {
            let codecs = [spec.parse::<Codec>()?];
            let mut compressor = Compressor::new(&device)?;
            let options = Options::default();
            let inputs =
                || Ok::<_, gcodec_cuda::Error>([Input { tensor: 0, name: "w", data: buffer.tensor()? }]);
            // On the device alone, to compare with its memory bandwidth; then with the copies and the work of
            // the host.
            let seconds = median(|| {
                compressor.quantise_only(&inputs()?, &codecs, &options, Stream::DEFAULT)?;
                Ok(())
            })?;
            println!("quantise {spec}, {n} f32, on the device: {:.3} ms", seconds * 1e3);
            println!(
                "quantise {spec}, {n} f32, on the device: {:.1} GB/s of input",
                4.0 * n as f64 / seconds / 1e9
            );
            let seconds = median(|| {
                compressor.compress(&inputs()?, &codecs, &options, Stream::DEFAULT)?;
                Ok(())
            })?;
            println!("quantise {spec}, {n} f32, as blocks on the host: {:.3} ms", seconds * 1e3);
        }
        measure_changes(&device, n)?;
        measure_sums(&device, n)?;
        // 161 small tensors, as many as ResNet50 has: in one update, and in an update each.
        let hosts: Vec<TensorBuf> =
            (0..161).map(|t| gradient(Dtype::F32, 4096, t)).collect::<AnyResult<_>>()?;
        let buffers =
            hosts.iter().map(|t| DeviceBuf::from_host(&device, t.view())).collect::<Result<Vec<_>, _>>()?;
        let names: Vec<String> = (0..161).map(|t| format!("t{t}")).collect();
        let codecs = vec!["topk:density=0.01".parse::<Codec>()?; 161];
        let mut compressor = Compressor::new(&device)?;
        for (what, step) in [("one update", 161), ("an update each", 1)] {
            let seconds = median(|| {
                for first in (0..161).step_by(step) {
                    let mut inputs = Vec::new();
                    for t in first..first + step {
                        inputs.push(Input { tensor: t as u64, name: &names[t], data: buffers[t].tensor()? });
                    }
                    compressor.compress(&inputs, &codecs[..step], &Options::default(), Stream::DEFAULT)?;
                }
                Ok(())
            })?;
            println!("161 tensors of 4096 f32, {what}: {:.3} ms", seconds * 1e3);
        }
    }
    if failed { Err("a device and the host differ".into()) } else { Ok(()) }
}
