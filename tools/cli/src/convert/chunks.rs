//! Updates of DeMo, SparseLoCo and templar: the largest elements of each chunk of a tensor.
//!
//! ```text
//! NAMEidxs          positions in the chunk: integers, or 12-bit numbers, two in three bytes
//! NAMEvals          values, shape (chunks, kept) or (rows of chunks, columns of chunks, kept); or bytes
//! NAMEquant_params  of bytes: (shift, scale, offset, lookup table, type); value = lookup[byte] + shift
//! ```
//! The side of a chunk is the largest divisor of the tensor's side that is at most `longest`.

use super::pairs::{find, integers, scatter};
use super::{Foreign, of_model};
use crate::fail::{Failure, Result};
use crate::origin::Origin;
use crate::tensors::{Dump, NamedTensor};
use gcodec::tensor::Dtype;
use gcodec::{TensorBuf, TensorView};
use rayon::prelude::*;
use std::f64::consts::PI;

/// How tensors are cut.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grid {
    /// Longest side of a chunk.
    pub(super) longest: u64,
    /// Whether values are coefficients of the cosine transform of their chunk.
    pub(super) dct: bool,
}

/// Reads an update of chunks.
pub(super) fn read(dump: &Dump, like: &Dump, grid: Grid) -> Result<Foreign> {
    let mut tensors = Vec::new();
    for (name, pair) in find(dump)? {
        let (indices, values) = pair.both(name)?;
        let model = of_model(like, name)?;
        let about = |e: Failure| e.about(format_args!("tensor {:?}", model.name()));
        let decoded = dequantised(dump, name, &values.view()).map_err(about)?;
        let view = decoded.as_ref().map_or_else(|| values.view(), TensorBuf::view);
        let dense = one(model.view().shape(), &indices.view(), &view, grid).map_err(about)?;
        tensors.push(NamedTensor::new(model.name().to_owned(), dense));
    }
    let transformed = if grid.dct { ", cosine transform undone" } else { "" };
    let label = format!("converted from chunks of {}{transformed}", grid.longest);
    Ok(Foreign { tensors, label, metadata: dump.metadata.clone(), said: Origin::said(dump, None) })
}

/// Returns the values that bytes stand for; `None` if the values are no bytes.
fn dequantised(dump: &Dump, name: &str, values: &TensorView<'_>) -> Result<Option<TensorBuf>> {
    if values.dtype() != Dtype::U8 {
        return Ok(None);
    }
    let part = |number: usize| {
        let wanted = format!("{name}quant_params.{number}");
        let found = dump.tensors.iter().find(|t| t.name() == wanted);
        found.ok_or_else(|| Failure::invalid(format_args!("its values are bytes, and {wanted:?} is missing")))
    };
    let (shift, lookup) = (part(0)?.view().to_f32()?, part(3)?.view().to_f32()?);
    let [shift] = shift[..] else { return Err(Failure::invalid("its shift is not one number")) };
    let value = |byte: &u8| lookup.get(usize::from(*byte)).map(|value| value + shift);
    let found: Option<Vec<f32>> = values.data().iter().map(value).collect();
    let found = found.ok_or_else(|| Failure::invalid("its lookup table is too short"))?;
    Ok(Some(TensorBuf::from_f32(values.shape().to_vec(), &found)?))
}

/// Returns the positions in chunks; bytes are 12-bit numbers.
fn positions(indices: &TensorView<'_>, values: u64) -> Result<Vec<u64>> {
    if indices.dtype() != Dtype::U8 {
        return integers(indices);
    }
    let (triples, rest) = indices.data().as_chunks::<3>();
    if !rest.is_empty() || triples.len() as u64 * 2 != values {
        let bytes = indices.data().len();
        return Err(Failure::invalid(format_args!("{bytes} bytes of 12-bit indices for {values} values")));
    }
    let two = |&[a, b, c]: &[u8; 3]| {
        let (a, b, c) = (u64::from(a), u64::from(b), u64::from(c));
        [a | (b & 15) << 8, b >> 4 | c << 4]
    };
    Ok(triples.iter().flat_map(two).collect())
}

/// Makes a tensor of this shape of the values in its chunks.
fn one(shape: &[u64], indices: &TensorView<'_>, values: &TensorView<'_>, grid: Grid) -> Result<TensorBuf> {
    let (rows, columns) = match shape {
        [columns] => (1, *columns),
        [rows, columns] => (*rows, *columns),
        other => {
            let what =
                format!("a tensor of {} dimensions; this layout has matrices and vectors", other.len());
            return Err(Failure::usage(what));
        }
    };
    let height = if shape.len() == 1 { 1 } else { side(rows, grid.longest) };
    let width = side(columns, grid.longest);
    let chunks = [rows / height.max(1), columns / width.max(1)];
    let expected = &chunks[2 - shape.len()..];
    let Some((kept, found)) = values.shape().split_last().filter(|(_, found)| *found == expected) else {
        return Err(Failure::invalid(format_args!(
            "values of shape {:?} for {expected:?} chunks of {height} x {width}; --chunk is the longest side",
            values.shape()
        )));
    };
    debug_assert_eq!(found.len(), shape.len());
    let local = positions(indices, values.elements())?;
    if let Some(outside) = local.iter().find(|place| **place >= height * width) {
        return Err(Failure::invalid(format_args!("position {outside} in a chunk of {height} x {width}")));
    }
    let place = |(number, &place): (usize, &u64)| {
        let chunk = number as u64 / kept.max(&1);
        let row = chunk / chunks[1].max(1) * height + place / width;
        row * columns + chunk % chunks[1].max(1) * width + place % width
    };
    let places: Vec<u64> = local.iter().enumerate().map(place).collect();
    let dense = scatter(shape, &places, values)?;
    match grid.dct {
        true => inverse(&dense, [height as usize, width as usize], columns as usize),
        false => Ok(dense),
    }
}

/// Returns the largest divisor of `len` that is at most `longest`.
fn side(len: u64, longest: u64) -> u64 {
    (1..=longest.min(len)).rev().find(|side| len.is_multiple_of(*side)).unwrap_or(1)
}

/// Undoes the orthonormal cosine transform (DCT-II) of each chunk.
fn inverse(tensor: &TensorBuf, [height, width]: [usize; 2], columns: usize) -> Result<TensorBuf> {
    let mut values = tensor.view().to_f32()?;
    let (down, across) = (basis(height), basis(width));
    values.par_chunks_mut((height * columns).max(1)).for_each(|band| {
        for left in (0..columns).step_by(width.max(1)) {
            let mut half = vec![0.0; height * width];
            for row in 0..height {
                for (x, out) in half[row * width..][..width].iter_mut().enumerate() {
                    let of = |k: usize| f64::from(band[row * columns + left + k]) * across[k * width + x];
                    *out = (0..width).map(of).sum();
                }
            }
            for y in 0..height {
                for x in 0..width {
                    let of = |k: usize| half[k * width + x] * down[k * height + y];
                    band[y * columns + left + x] = (0..height).map(of).sum::<f64>() as f32;
                }
            }
        }
    });
    Ok(TensorBuf::from_f32(tensor.shape().to_vec(), &values)?)
}

/// Returns the cosines of the transform of `len` numbers, a row for each coefficient.
fn basis(len: usize) -> Vec<f64> {
    let scale = |k: usize| (if k == 0 { 1.0 } else { 2.0 } / len as f64).sqrt();
    let cosine = |k: usize, x: usize| (PI * (2 * x + 1) as f64 * k as f64 / (2 * len) as f64).cos();
    (0..len).flat_map(|k| (0..len).map(move |x| scale(k) * cosine(k, x))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_are_divisors() {
        let sides = [(768, 64), (10, 64), (130, 64), (127, 64), (1, 64), (0, 64)].map(|(n, at)| side(n, at));
        assert_eq!(sides, [64, 10, 26, 1, 1, 1]);
    }

    #[test]
    fn twelve_bits_are_two_in_three_bytes() {
        // 0xabc and 0x123.
        let packed = TensorBuf::new(Dtype::U8, vec![3], vec![0xbc, 0x3a, 0x12]).unwrap();
        assert_eq!(positions(&packed.view(), 2).unwrap(), [0xabc, 0x123]);
        assert!(positions(&packed.view(), 3).is_err());
    }

    #[test]
    fn chunks_come_back_to_their_places() {
        // A matrix of 4 x 6 in chunks of 2 x 3: one value in each.
        let grid = Grid { longest: 3, dct: false };
        let indices = TensorBuf::new(Dtype::I16, vec![2, 2, 1], vec![0, 0, 1, 0, 4, 0, 5, 0]).unwrap();
        let values = TensorBuf::from_f32(vec![2, 2, 1], &[1.0, 2.0, 3.0, 4.0]).unwrap();
        let found = one(&[4, 6], &indices.view(), &values.view(), grid).unwrap().view().to_f32().unwrap();
        let mut expected = [0.0; 24];
        for (row, column, value) in [(0, 0, 1.0), (0, 4, 2.0), (3, 1, 3.0), (3, 5, 4.0)] {
            expected[row * 6 + column] = value;
        }
        assert_eq!(found, expected);
        let wrong = one(&[4, 6], &indices.view(), &values.view(), Grid { longest: 6, dct: false });
        assert!(wrong.unwrap_err().message.contains("--chunk"));
        assert!(one(&[2, 2, 6], &indices.view(), &values.view(), grid).is_err());
    }

    #[test]
    fn the_first_coefficient_is_the_mean() {
        let grid = Grid { longest: 4, dct: true };
        let indices = TensorBuf::new(Dtype::I16, vec![2, 1], vec![0, 0, 0, 0]).unwrap();
        let values = TensorBuf::from_f32(vec![2, 1], &[4.0, -2.0]).unwrap();
        let found = one(&[8], &indices.view(), &values.view(), grid).unwrap().view().to_f32().unwrap();
        assert_eq!(found, [2.0, 2.0, 2.0, 2.0, -1.0, -1.0, -1.0, -1.0]);
        // The transform is orthonormal: rows of the basis have length 1 and are at right angles.
        let basis = basis(5);
        let dot = |a: usize, b: usize| (0..5).map(|x| basis[a * 5 + x] * basis[b * 5 + x]).sum::<f64>();
        assert!(
            (dot(0, 0) - 1.0).abs() < 1e-12 && dot(1, 3).abs() < 1e-12 && (dot(4, 4) - 1.0).abs() < 1e-12
        );
    }
}
