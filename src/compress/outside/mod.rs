//! Selection outside of this library, where the elements are not in the host's memory: [`searches`] says what is to be
//! found, [`blocks`] makes of what was found the blocks that [`compress`](super::compress()) would have made.
//!
//! What a search has to find is defined to the bit: an element's *key* is its magnitude's bit pattern, elements with key 0 are
//! never kept, larger keys come first, and of equal keys those with the lower index (in the order of the tensors, then of
//! their elements). Elements are 32-bit floats: those of f16 and bf16 are widened first, exactly; the residual of error
//! feedback is added in 32 bits, and a finite sum that exceeds what the type holds is limited to that.
//!
//! Codecs that send every element are in [`dense`].

pub mod dense;

use super::select::Chosen;
use super::{Codec, Selection, runs, sbc, sparse};
use crate::block::Block;
use crate::element::round_f32s;
use crate::error::{Error, InputErrorKind, Result};
use crate::tensor::Dtype;

/// A tensor whose elements are elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outline {
    /// Its number in the manifest.
    pub tensor: u64,
    /// Its element type.
    pub dtype: Dtype,
    /// Its number of elements.
    pub len: u64,
}

/// What a selector is to find. Tensors are named by their place in the list given to [`searches`].
#[derive(Debug, Clone, PartialEq)]
pub enum Search {
    /// The `k` elements with the largest keys of several tensors together; all with a key above 0 if there are fewer.
    Largest {
        /// The tensors, ascending.
        among: Vec<usize>,
        /// How many.
        k: u64,
    },
    /// Of one tensor the `k` largest positive and the `k` smallest negative elements, by magnitude; all if there are fewer.
    BothSides {
        /// The tensor.
        of: usize,
        /// How many of each sign.
        k: u64,
    },
    /// All elements of one tensor whose key is at least that of `at`, NaN included.
    AtLeast {
        /// The tensor.
        of: usize,
        /// Positive and finite.
        at: f32,
    },
}

/// The searches that these codecs begin with.
///
/// # Errors
/// [`Error::Input`] for tensors that are not in ascending order or not of floats, for options out of range, and for codecs
/// other than [`Codec::TopK`], [`Codec::Threshold`] and [`Codec::Sbc`].
pub fn searches(tensors: &[Outline], codecs: &[Codec]) -> Result<Vec<Search>> {
    check(tensors, codecs)?;
    let mut searches = Vec::new();
    for (i, (tensor, codec)) in tensors.iter().zip(codecs).enumerate() {
        match *codec {
            Codec::TopK { amount, selection: Selection::Tensor, .. } => {
                searches.push(Search::Largest { among: vec![i], k: amount.of(tensor.len) });
            }
            Codec::TopK { amount, selection: Selection::Global, .. } if !codecs[..i].contains(codec) => {
                let among: Vec<usize> = (i..codecs.len()).filter(|&j| codecs[j] == *codec).collect();
                let n = among.iter().try_fold(0u64, |n, &j| n.checked_add(tensors[j].len));
                let n = n.ok_or(Error::bad_option("length of all tensors together"))?;
                searches.push(Search::Largest { among, k: amount.of(n) });
            }
            Codec::Sbc { amount, .. } => searches.push(Search::BothSides { of: i, k: amount.of(tensor.len) }),
            Codec::Threshold { at, .. } => searches.push(Search::AtLeast { of: i, at }),
            _ => {}
        }
    }
    Ok(searches)
}

impl Search {
    /// The most elements that it keeps of each side, if that is known before the elements are.
    pub fn most(&self) -> Option<u64> {
        match *self {
            Self::Largest { k, .. } | Self::BothSides { k, .. } => Some(k),
            Self::AtLeast { .. } => None,
        }
    }
}

/// What a receiver gets of the elements that were kept of one tensor.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sent {
    /// Which of the two lists is sent: the first but for [`Codec::Sbc`], which chooses.
    pub side: usize,
    /// For each element of that list what the receiver gets, in the tensor's type: error feedback takes it from the sum.
    pub values: Vec<f32>,
}

/// The blocks of one update, and what they send of each tensor.
///
/// `found`: for each tensor what was found of it: the positive and the negative elements for [`Codec::Sbc`], all of them and
/// nothing else for others.
///
/// # Errors
/// As [`searches`]; [`Error::Input`] if what was found does not fit the tensors, or if a value is NaN or infinite.
pub fn blocks(
    tensors: &[Outline],
    codecs: &[Codec],
    found: &[[Chosen; 2]],
) -> Result<(Vec<Block>, Vec<Sent>)> {
    check(tensors, codecs)?;
    if found.len() != tensors.len() {
        return Err(Error::input(InputErrorKind::Mismatch {
            what: "numbers of tensors and of what was found",
        }));
    }
    for (tensor, sides) in tensors.iter().zip(found) {
        sides
            .iter()
            .try_for_each(|side| check_chosen(tensor, side))
            .map_err(|e| e.in_tensor(tensor.tensor))?;
    }
    let (mut blocks, mut sent) = (Vec::new(), Vec::with_capacity(tensors.len()));
    for run in runs(codecs, |i| (tensors[i].tensor, tensors[i].dtype)) {
        let (tensors, found) = (&tensors[run.clone()], &found[run.clone()]);
        match codecs[run.start] {
            Codec::TopK { values, seed, .. } | Codec::Threshold { values, seed, .. } => {
                let chosen: Vec<Chosen> = found.iter().map(|[both, _]| both.clone()).collect();
                let (values, decoded) = sparse::values(tensors, &chosen, values, seed)?;
                let (scope, support) = sparse::join(tensors, &chosen);
                blocks.push(Block { scope, add: false, support, values });
                let mut decoded = decoded.into_iter();
                for (tensor, chosen) in tensors.iter().zip(&chosen) {
                    let mut values: Vec<f32> = decoded.by_ref().take(chosen.positions.len()).collect();
                    round_f32s(tensor.dtype, &mut values)?;
                    sent.push(Sent { side: 0, values });
                }
            }
            Codec::Sbc { .. } => {
                let (sides, means): (Vec<_>, Vec<_>) = found.iter().map(sbc::larger).unzip();
                let chosen: Vec<Chosen> = found.iter().zip(&sides).map(|(f, &s)| f[s].clone()).collect();
                blocks.push(sbc::constant(tensors, &chosen, &means));
                for ((tensor, chosen), (side, mean)) in
                    tensors.iter().zip(&chosen).zip(sides.into_iter().zip(means))
                {
                    let mut values = vec![mean; chosen.positions.len()];
                    round_f32s(tensor.dtype, &mut values)?;
                    sent.push(Sent { side, values });
                }
            }
            _ => return Err(Error::bad_option(UNKNOWN)),
        }
    }
    Ok((blocks, sent))
}

/// The error for an element of a tensor that is NaN or infinite, where that is an error: of the first tensor for which a value
/// that is not finite was kept, its first element that is not.
pub fn non_finite(tensor: u64, index: u64) -> Error {
    Error::input(InputErrorKind::NonFinite { index }).in_tensor(tensor)
}

/// The error for residuals or targets that do not fit the tensors; `what` says why.
pub fn misfit(what: &'static str) -> Error {
    Error::bad_option(what)
}

const UNKNOWN: &str = "codec: neither one that selects outside of the library nor one that quantises there";

fn check(tensors: &[Outline], codecs: &[Codec]) -> Result<()> {
    check_order(tensors, codecs)?;
    let selects =
        |codec: &Codec| matches!(codec, Codec::TopK { .. } | Codec::Threshold { .. } | Codec::Sbc { .. });
    if codecs.iter().all(selects) { Ok(()) } else { Err(Error::bad_option(UNKNOWN)) }
}

/// What holds for all codecs.
fn check_order(tensors: &[Outline], codecs: &[Codec]) -> Result<()> {
    if tensors.len() != codecs.len() {
        return Err(Error::input(InputErrorKind::Mismatch { what: "numbers of inputs and codecs" }));
    }
    if !tensors.is_sorted_by(|a, b| a.tensor < b.tensor) {
        return Err(Error::bad_option("inputs are not in ascending order"));
    }
    for (tensor, codec) in tensors.iter().zip(codecs) {
        codec.check()?;
        if !tensor.dtype.is_float() {
            let wrong = InputErrorKind::WrongDtype { what: "a lossy codec" };
            return Err(Error::input(wrong).in_tensor(tensor.tensor));
        }
    }
    Ok(())
}

fn check_chosen(tensor: &Outline, chosen: &Chosen) -> Result<()> {
    let Chosen { positions, values } = chosen;
    if positions.len() != values.len() {
        return Err(Error::inconsistent("numbers of positions and values"));
    }
    if !positions.is_sorted_by(|a, b| a < b) || positions.last().is_some_and(|&p| p >= tensor.len) {
        return Err(Error::inconsistent("positions are not ascending inside the tensor"));
    }
    match values.iter().position(|x| !x.is_finite()) {
        Some(at) => Err(Error::input(InputErrorKind::NonFinite { index: positions[at] })),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Feedback, Input, Options, compress};
    use super::*;
    use crate::tensor::TensorBuf;

    /// The searches by sorting.
    fn find(values: &[Vec<f32>], search: &Search, found: &mut [[Chosen; 2]]) {
        let sides: &[fn(f32) -> bool] = match search {
            Search::BothSides { .. } => &[|x| x > 0.0, |x| x < 0.0],
            _ => &[|x| x != 0.0],
        };
        let (among, k, at) = match search {
            Search::Largest { among, k } => (among.clone(), *k, 0.0),
            Search::BothSides { of, k } => (vec![*of], *k, 0.0),
            Search::AtLeast { of, at } => (vec![*of], u64::MAX, *at),
        };
        for (side, of_side) in sides.iter().enumerate() {
            let all = among.iter().flat_map(|&t| (0..values[t].len()).map(move |i| (t, i)));
            let mut kept: Vec<(usize, usize)> =
                all.filter(|&(t, i)| of_side(values[t][i]) && values[t][i].abs() >= at).collect();
            kept.sort_by(|&(t, i), &(u, j)| {
                values[u][j].abs().total_cmp(&values[t][i].abs()).then((t, i).cmp(&(u, j)))
            });
            kept.truncate(usize::try_from(k).unwrap_or(usize::MAX));
            kept.sort_unstable();
            for (t, i) in kept {
                found[t][side].positions.push(i as u64);
                found[t][side].values.push(values[t][i]);
            }
        }
    }

    #[test]
    fn blocks_are_those_that_compress_makes() {
        let values: Vec<Vec<f32>> = [50usize, 0, 3000, 700]
            .iter()
            .zip(0..)
            .map(|(&n, t)| {
                let mut words = vec![0; n];
                crate::random::words(7, t, 0, &mut words);
                // Few different magnitudes: ties within a tensor and across tensors.
                words.iter().map(|&w| (w % 201) as f32 / 8.0 - 12.5).collect()
            })
            .collect();
        let names = ["a", "b", "c", "d"];
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            let tensors: Vec<TensorBuf> = values
                .iter()
                .map(|v| {
                    let mut data = vec![0; dtype.bytes_for(v.len() as u64).unwrap() as usize];
                    crate::element::encode_f32s(dtype, v, 0, &mut data).unwrap();
                    TensorBuf::new(dtype, vec![v.len() as u64], data).unwrap()
                })
                .collect();
            let read: Vec<Vec<f32>> = tensors.iter().map(|t| t.view().to_f32().unwrap()).collect();
            // The third stands apart from the second: two runs.
            let numbers = [0, 1, 2, 5];
            let outlines: Vec<Outline> = numbers
                .iter()
                .zip(&tensors)
                .map(|(&tensor, t)| Outline { tensor, dtype, len: t.view().elements() })
                .collect();
            let inputs: Vec<Input<'_>> = numbers
                .iter()
                .zip(names)
                .zip(&tensors)
                .map(|((&tensor, name), t)| Input { tensor, name, view: t.view(), base: None })
                .collect();
            for spec in [
                ["topk:k=20"; 4],
                ["topk:density=0.3,scope=global"; 4],
                ["topk:k=9,scope=global", "topk:k=3", "topk:k=9,scope=global", "topk:k=4,scope=global"],
                ["topk:k=40,values=pow2,seed=5"; 4],
                ["topk:k=300,values=q4"; 4],
                ["topk:k=30,values=bf16"; 4],
                ["stc:density=0.02", "sbc:k=2", "sbc:k=30", "threshold:at=11.5"],
                ["sbc:density=0.01"; 4],
                ["threshold:at=12"; 4],
            ] {
                let codecs: Vec<Codec> = spec.iter().map(|s| s.parse().unwrap()).collect();
                let mut found = vec![<[Chosen; 2]>::default(); 4];
                for search in searches(&outlines, &codecs).unwrap() {
                    find(&read, &search, &mut found);
                }
                let (got, sent) = blocks(&outlines, &codecs, &found).unwrap();
                let mut feedback = Feedback::new();
                let options = Options::default();
                assert_eq!(
                    got,
                    compress(&inputs, &codecs, &options, Some(&mut feedback)).unwrap(),
                    "{spec:?}"
                );
                for (t, sent) in sent.iter().enumerate() {
                    let mut left = read[t].clone();
                    for (&p, x) in found[t][sent.side].positions.iter().zip(&sent.values) {
                        left[p as usize] -= x;
                    }
                    assert_eq!(feedback.get(names[t]).unwrap(), left, "{spec:?} {t}");
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let outline = Outline { tensor: 3, dtype: Dtype::F32, len: 4 };
        let codec: Codec = "topk:k=2".parse().unwrap();
        let found = |positions: &[u64], values: &[f32]| {
            [Chosen { positions: positions.to_vec(), values: values.to_vec() }, Chosen::default()]
        };
        assert!(blocks(&[outline], &[codec], &[found(&[1, 3], &[1.0, -2.0])]).is_ok());
        for wrong in [found(&[1, 4], &[1.0; 2]), found(&[2, 1], &[1.0; 2]), found(&[1, 1], &[1.0; 2])] {
            assert!(blocks(&[outline], &[codec], &[wrong]).is_err());
        }
        assert!(blocks(&[outline], &[codec], &[found(&[1], &[])]).is_err());
        let error = blocks(&[outline], &[codec], &[found(&[0, 2], &[1.0, f32::NAN])]).unwrap_err();
        assert_eq!(error.to_string(), "element 2 is NaN or infinite (tensor 3)");
        assert!(blocks(&[outline], &[codec], &[]).is_err());
        assert!(searches(&[outline], &["natural".parse().unwrap()]).is_err());
        assert!(searches(&[outline, outline], &[codec, codec]).is_err());
        let integers = Outline { dtype: Dtype::I32, ..outline };
        assert!(searches(&[integers], &[codec]).is_err());
    }
}
