//! Sizes of deltas of quantised weights: casts of each version of the chain of weight syncs.

use std::path::Path;

use gcodec::internal::element::encode_f32s;
use gcodec::{Dtype, TensorBuf};

use super::dumps::{Dump, load_chain};
use super::report::{Must, Report};
use super::sizes::measure_delta;
use crate::Result;

/// A way to store a matrix in fewer bits.
struct Scheme {
    name: &'static str,
    dtype: Dtype,
    /// Largest magnitude of the type.
    largest: f32,
    /// Rows and columns of the blocks that share a scale; 0 for all.
    block: [usize; 2],
    scale: Scale,
}

/// How scales are stored.
#[derive(Clone, Copy)]
enum Scale {
    F32,
    Bf16,
    /// In f8e4m3fn, relative to a scale of the tensor in f32.
    F8,
}

const SCHEMES: [Scheme; 7] = [
    Scheme::new("fp8 e4m3, a scale per tensor", Dtype::F8E4M3Fn, 448.0, [0, 0], Scale::F32),
    Scheme::new("fp8 e4m3, a scale per 128 x 128", Dtype::F8E4M3Fn, 448.0, [128, 128], Scale::F32),
    Scheme::new("fp8 e5m2, a scale per tensor", Dtype::F8E5M2, 57344.0, [0, 0], Scale::F32),
    Scheme::new("fp8 e5m2, a scale per 128 x 128", Dtype::F8E5M2, 57344.0, [128, 128], Scale::F32),
    Scheme::new("int8, a scale per row", Dtype::I8, 127.0, [1, 0], Scale::F32),
    Scheme::new("int4, packed, a bf16 scale per 128", Dtype::U8, 7.0, [1, 128], Scale::Bf16),
    Scheme::new("nvfp4, packed, an e4m3 scale per 16", Dtype::F4E2M1, 6.0, [1, 16], Scale::F8),
];

impl Scheme {
    const fn new(name: &'static str, dtype: Dtype, largest: f32, block: [usize; 2], scale: Scale) -> Self {
        Self { name, dtype, largest, block, scale }
    }

    /// Casts all matrices; other tensors stay as they are.
    fn cast(&self, dump: &Dump) -> Result<Dump> {
        let mut named = Vec::new();
        for (info, tensor) in dump.manifest.tensors().iter().zip(&dump.tensors) {
            match info.shape[..] {
                [rows, columns] if columns % 2 == 0 => {
                    self.cast_matrix(&info.name, tensor, [rows as usize, columns as usize], &mut named)?;
                }
                _ => named.push((info.name.clone(), tensor.clone())),
            }
        }
        Dump::new(&dump.name, named)
    }

    fn cast_matrix(
        &self,
        name: &str,
        tensor: &TensorBuf,
        [rows, columns]: [usize; 2],
        out: &mut Vec<(String, TensorBuf)>,
    ) -> Result<()> {
        let values = tensor.view().to_f32()?;
        let [high, wide] = [(self.block[0], rows), (self.block[1], columns)]
            .map(|(block, all)| if block == 0 { all } else { block.min(all) }.max(1));
        let across = columns.div_ceil(wide);
        let mut scales = vec![0f32; rows.div_ceil(high) * across];
        for (at, value) in values.iter().enumerate() {
            let block = at / columns / high * across + at % columns / wide;
            scales[block] = scales[block].max(value.abs() / self.largest);
        }
        let shape = vec![rows.div_ceil(high) as u64, across as u64];
        let scales = self.store_scales(name, scales, shape, out)?;
        let divided = values.iter().enumerate().map(|(at, value)| {
            let scale = scales[at / columns / high * across + at % columns / wide];
            if scale == 0.0 { 0.0 } else { value / scale }
        });
        let shape = [rows as u64, columns as u64];
        let bytes = self.store(&divided.collect::<Vec<_>>())?;
        let shape = if self.dtype == Dtype::U8 { vec![shape[0], shape[1] / 2] } else { shape.to_vec() };
        out.push((name.to_owned(), TensorBuf::new(self.dtype, shape, bytes)?));
        Ok(())
    }

    /// Stores scales as tensors, and returns the numbers that a receiver reads.
    fn store_scales(
        &self,
        name: &str,
        scales: Vec<f32>,
        shape: Vec<u64>,
        out: &mut Vec<(String, TensorBuf)>,
    ) -> Result<Vec<f32>> {
        let (dtype, whole) = match self.scale {
            Scale::F32 => (Dtype::F32, 1.0),
            Scale::Bf16 => (Dtype::Bf16, 1.0),
            Scale::F8 => (Dtype::F8E4M3Fn, scales.iter().fold(0f32, |max, s| max.max(*s)) / 448.0),
        };
        let relative: Vec<f32> = scales.iter().map(|s| if whole == 0.0 { 0.0 } else { s / whole }).collect();
        let mut bytes = vec![0; dtype.bytes_for(scales.len() as u64).unwrap_or(0) as usize];
        encode_f32s(dtype, &relative, 0, &mut bytes)?;
        let stored = TensorBuf::new(dtype, shape, bytes)?;
        let read = stored.view().to_f32()?.into_iter().map(|s| s * whole).collect();
        out.push((format!("{name}.scale"), stored));
        if matches!(self.scale, Scale::F8) {
            out.push((format!("{name}.scale_2"), TensorBuf::from_f32(vec![1], &[whole])?));
        }
        Ok(read)
    }

    /// Stores elements in the type of the scheme.
    fn store(&self, values: &[f32]) -> Result<Vec<u8>> {
        let code = |value: &f32| value.round_ties_even().clamp(-self.largest, self.largest) as i8;
        Ok(match self.dtype {
            Dtype::I8 => values.iter().map(|value| code(value).cast_unsigned()).collect(),
            // Two codes of 4 bits in a byte, as engines pack them; 8 stands for zero.
            Dtype::U8 => {
                let nibble = |value: &f32| (code(value) + 8).cast_unsigned();
                values.as_chunks().0.iter().map(|[low, high]| nibble(low) | nibble(high) << 4).collect()
            }
            dtype => {
                let mut bytes = vec![0; dtype.bytes_for(values.len() as u64).unwrap_or(0) as usize];
                encode_f32s(dtype, values, 0, &mut bytes)?;
                bytes
            }
        })
    }
}

/// Measures the deltas of each cast of the chain; an error if a result is not bit for bit the new weights.
pub(crate) fn casts(report: &mut Report, gradients: &Path) -> Result<()> {
    let chain = load_chain(&gradients.join("weight_sync/chain"))?;
    report.section(
        "Deltas of quantised weights",
        "Each version of the chain of 12 weight syncs, its matrices cast to a narrow type with new scales. An \
         update's bytes, the mean of 12, as a share of the cast weights and their scales; in packed int4, an \
         element is a byte. All updates come back bit for bit, scales included. `overwrite` is \
         `delta:values=overwrite`.",
    );
    for scheme in SCHEMES {
        let casts = chain.iter().map(|dump| scheme.cast(dump)).collect::<Result<Vec<_>>>()?;
        let whole = casts[0].bytes() as f64;
        let (mut changed, mut ulp, mut overwrite) = (0, 0, 0);
        for pair in casts.windows(2) {
            let delta = measure_delta(&pair[0], &pair[1], "delta")?;
            changed += delta.changed;
            ulp += delta.cost.frames;
            overwrite += measure_delta(&pair[0], &pair[1], "delta:values=overwrite")?.cost.frames;
        }
        let syncs = (casts.len() - 1) as f64;
        let share = |bytes: u64| 100.0 * bytes as f64 / syncs / whole;
        let elements = casts[0].elements() as f64;
        let row = |report: &mut Report, what: &str, value, unit| {
            report.row(format!("{}: {what}", scheme.name), value, unit, Must::Be);
        };
        row(report, "changed elements", 100.0 * changed as f64 / syncs / elements, "%");
        row(report, "update", share(ulp), "%");
        row(report, "update, overwrite", share(overwrite), "%");
        row(report, "update", 8.0 * ulp as f64 / changed.max(1) as f64, "bits/changed");
    }
    Ok(())
}
