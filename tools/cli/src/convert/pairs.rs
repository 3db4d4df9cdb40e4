//! Indices and values of sparse tensors, as hooks of PyTorch and of many projects save them.

use super::{Foreign, of_model};
use crate::fail::{Failure, Result};
use crate::origin::Origin;
use crate::tensors::{Dump, NamedTensor, Opaque};
use gcodec::internal::element::bits_at;
use gcodec::tensor::Dtype;
use gcodec::{TensorBuf, TensorView};
use std::collections::BTreeMap;

/// Endings of the names of indices and of values.
const INDICES: [&str; 5] = [".indices", ".indexes", ".idxs", ".idx", "idxs"];
const VALUES: [&str; 5] = [".values", ".vals", ".value", ".val", "vals"];

/// The two parts of a tensor, as far as they were found.
#[derive(Default)]
pub(super) struct Pair<'a> {
    pub(super) indices: Option<&'a NamedTensor>,
    pub(super) values: Option<&'a NamedTensor>,
}

/// Finds the parts of each tensor: by their endings, or as the two members of a tuple, of which the integers
/// are the indices.
pub(super) fn find(dump: &Dump) -> Result<Vec<(&str, Pair<'_>)>> {
    let is_part = |name: &str| INDICES.iter().chain(&VALUES).any(|ending| name.ends_with(ending));
    if let Some(Opaque { name, dtype, reason, .. }) = dump.opaque.iter().find(|t| is_part(&t.name)) {
        return Err(Failure::invalid(format_args!("tensor {name:?} ({dtype}) is opaque: {reason}")));
    }
    let mut order = Vec::new();
    let mut pairs: BTreeMap<&str, Pair<'_>> = BTreeMap::new();
    for tensor in &dump.tensors {
        let name = tensor.name();
        let ending = |endings: &[&str]| endings.iter().find_map(|ending| name.strip_suffix(ending));
        let member = name.strip_suffix(".0").or(name.strip_suffix(".1"));
        let is_float = tensor.view().dtype().is_float();
        let found = match (ending(&INDICES), ending(&VALUES), member) {
            (Some(of), ..) => Some((of, true)),
            (None, Some(of), _) => Some((of, false)),
            (None, None, Some(of)) if !of.ends_with("quant_params") => Some((of, !is_float)),
            _ => None,
        };
        let Some((of, is_indices)) = found else { continue };
        let pair = pairs.entry(of).or_insert_with(|| {
            order.push(of);
            Pair::default()
        });
        let slot = if is_indices { &mut pair.indices } else { &mut pair.values };
        if slot.replace(tensor).is_some() {
            let what = if is_indices { "indices" } else { "values" };
            return Err(Failure::invalid(format_args!("tensor {of:?} has {what} twice")));
        }
    }
    if order.is_empty() {
        return Err(Failure::invalid("it has no indices and values; `gcodec inspect` lists its tensors"));
    }
    Ok(order.into_iter().filter_map(|name| Some((name, pairs.remove(name)?))).collect())
}

impl<'a> Pair<'a> {
    /// Returns both parts.
    pub(super) fn both(&self, name: &str) -> Result<(&'a NamedTensor, &'a NamedTensor)> {
        match (self.indices, self.values) {
            (Some(indices), Some(values)) => Ok((indices, values)),
            (None, _) => Err(Failure::invalid(format_args!("tensor {name:?} has no indices"))),
            (_, None) => Err(Failure::invalid(format_args!("tensor {name:?} has no values"))),
        }
    }
}

/// Reads an update of flat indices and values.
pub(super) fn read(dump: &Dump, like: &Dump) -> Result<Foreign> {
    let mut tensors = Vec::new();
    for (name, pair) in find(dump)? {
        let (indices, values) = pair.both(name)?;
        let model = of_model(like, name)?;
        let about = |e: Failure| e.about(format_args!("tensor {:?}", model.name()));
        let places = integers(&indices.view()).map_err(about)?;
        let dense = scatter(model.view().shape(), &places, &values.view()).map_err(about)?;
        tensors.push(NamedTensor::new(model.name().to_owned(), dense));
    }
    let metadata = dump.metadata.clone();
    Ok(Foreign {
        tensors,
        label: "converted from indices and values".to_owned(),
        metadata,
        said: Origin::said(dump, None),
    })
}

/// Reads flat indices and the values that replace the elements of the base there.
pub(super) fn replace(dump: &Dump, base: &Dump) -> Result<Foreign> {
    let mut tensors: Vec<NamedTensor> = base.tensors.iter().map(NamedTensor::copied).collect();
    for (name, pair) in find(dump)? {
        let (indices, values) = pair.both(name)?;
        let old = of_model(base, name)?;
        let about = |e: Failure| e.about(format_args!("tensor {:?}", old.name()));
        let (view, values) = (old.view(), values.view());
        if values.dtype() != view.dtype() {
            let (new, old) = (values.dtype(), view.dtype());
            return Err(about(Failure::usage(format_args!("its values are {new}, those of --base {old}"))));
        }
        let places = integers(&indices.view()).map_err(about)?;
        let new = place(view.shape(), &places, &values, view.data().to_vec()).map_err(about)?;
        if let Some(tensor) = tensors.iter_mut().find(|tensor| tensor.name() == old.name()) {
            *tensor = NamedTensor::new(old.name().to_owned(), new);
        }
    }
    Ok(Foreign {
        tensors,
        label: "converted from indices and values".to_owned(),
        metadata: dump.metadata.clone(),
        said: Origin::said(dump, None),
    })
}

/// Returns the elements of a tensor of integers.
pub(super) fn integers(view: &TensorView<'_>) -> Result<Vec<u64>> {
    use Dtype::{I8, I16, I32, I64, U8, U16, U32, U64};
    let dtype = view.dtype();
    if !matches!(dtype, I8 | I16 | I32 | I64 | U8 | U16 | U32 | U64) {
        return Err(Failure::invalid(format_args!("its indices are {dtype}, not integers")));
    }
    let sign = match dtype {
        I8 | I16 | I32 | I64 => 1u64 << (dtype.bits() - 1),
        _ => 0,
    };
    let element = |i: u64| bits_at(dtype, view.data(), i).filter(|bits| bits & sign == 0);
    (0..view.elements())
        .map(|i| element(i).ok_or_else(|| Failure::invalid(format_args!("index {i} is negative"))))
        .collect()
}

/// Puts values at their places in a tensor of zeros of this shape.
pub(super) fn scatter(shape: &[u64], places: &[u64], values: &TensorView<'_>) -> Result<TensorBuf> {
    let size = values.dtype().bits() as usize / 8;
    // The size is that of a tensor of the model, whose own bytes are there.
    let elements = gcodec::internal::elements(shape).unwrap_or(0);
    place(shape, places, values, vec![0; elements as usize * size])
}

/// Puts values at their places among the bytes of a tensor.
fn place(shape: &[u64], places: &[u64], values: &TensorView<'_>, mut data: Vec<u8>) -> Result<TensorBuf> {
    let dtype = values.dtype();
    let elements = gcodec::internal::elements(shape).unwrap_or(0);
    if places.len() as u64 != values.elements() {
        let (indices, values) = (places.len(), values.elements());
        return Err(Failure::invalid(format_args!("{indices} indices for {values} values")));
    }
    if let Some(place) = places.iter().find(|place| **place >= elements) {
        return Err(Failure::invalid(format_args!("index {place} in a tensor of {elements} elements")));
    }
    let size = dtype.bits() as usize / 8;
    if size == 0 {
        return Err(Failure::invalid(format_args!("its values are {dtype}, which takes less than a byte")));
    }
    let mut seen = vec![0u64; (elements as usize).div_ceil(64)];
    for (value, &place) in values.data().chunks_exact(size).zip(places) {
        let (word, bit) = (place as usize / 64, 1 << (place % 64));
        if seen[word] & bit != 0 {
            return Err(Failure::invalid(format_args!("index {place} occurs twice")));
        }
        seen[word] |= bit;
        data[place as usize * size..][..size].copy_from_slice(value);
    }
    Ok(TensorBuf::new(dtype, shape.to_vec(), data)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str, dtype: Dtype, values: &[u8]) -> NamedTensor {
        let elements = values.len() as u64 * 8 / u64::from(dtype.bits());
        NamedTensor::new(name.into(), TensorBuf::new(dtype, vec![elements], values.to_vec()).unwrap())
    }

    #[test]
    fn parts_are_found_by_name_or_by_type() {
        let dump = |tensors| Dump { tensors, ..Dump::default() };
        let list = dump(vec![
            named("0.0", Dtype::F16, &[0; 2]),
            named("0.1", Dtype::I16, &[0; 2]),
            named("w.indices", Dtype::I16, &[0; 2]),
            named("w.values", Dtype::F16, &[0; 2]),
            named("epoch", Dtype::I16, &[0; 2]),
        ]);
        let found = find(&list).unwrap();
        assert_eq!(found.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["0", "w"]);
        assert_eq!(found[0].1.both("0").unwrap().0.name(), "0.1");
        assert!(find(&dump(vec![named("w", Dtype::F16, &[0; 2])])).is_err());
        let half = dump(vec![named("w.values", Dtype::F16, &[0; 2])]);
        assert!(find(&half).unwrap()[0].1.both("w").is_err());
    }

    #[test]
    fn wrong_indices_are_refused() {
        let values = TensorBuf::from_f32(vec![2], &[1.0, 2.0]).unwrap();
        let message = |places: &[u64]| scatter(&[2, 2], places, &values.view()).unwrap_err().message;
        assert_eq!(message(&[0, 4]), "index 4 in a tensor of 4 elements");
        assert_eq!(message(&[3, 3]), "index 3 occurs twice");
        assert_eq!(message(&[3]), "1 indices for 2 values");
        let negative = TensorBuf::new(Dtype::I16, vec![1], vec![0xff; 2]).unwrap();
        assert_eq!(integers(&negative.view()).unwrap_err().message, "index 0 is negative");
        assert!(integers(&values.view()).is_err());
    }
}
