//! Selection from tensors that are not in the host's memory, for example on a device.
//!
//! [`searches`] lists the sets of elements to find. [`blocks`] turns the elements that were found into the
//! same blocks that [`compress`](super::compress()) would have made.
//!
//! The result of a search is defined to the bit. The *key* of an element is the bit pattern of its magnitude.
//! Elements with key 0 are never kept. Larger keys come first. Equal keys are ordered by index, lowest first
//! (in the order of the tensors, then of their elements). Elements are 32-bit floats. Elements of f16 and
//! bf16 are first widened exactly. The residual of error feedback is added in 32 bits. A finite sum that
//! exceeds the range of the element type is limited to that range.
//!
//! Codecs that send every element are in [`dense`], changes of a base in [`delta`].
//!
//! SIDCo's thresholds, the means of `sbc` and `sign` and the norms of quantisers depend on sums of 64-bit
//! floats in one fixed order, which `src/compress/sums.rs` defines.

pub mod delta;
pub mod dense;
mod fitting;

pub use super::options::Outline;
pub use super::state::SIDCO as SIDCO_STATE;
pub use fitting::{FitResult, Fitting, Least, MomentQuery, Moments, Step};

use std::ops::Range;

use super::codec::{Codec, runs};
use super::codecs::{PowerSgd, Sbc, Sidco, Threshold, TopK, sbc, sparse};
use super::select::{self, Chosen};
use super::settings::Selection;
use super::state::POWERSGD;
use crate::block::{Block, CodedBlock, Part, PendingBlock, SupportId, WireBlock};
use crate::error::{Error, InputErrorKind, Result};
use crate::tensor::element::round_f32s;

/// Splits the name of a codec's state in a checkpoint into the name of its tensor and the codec. Returns
/// `None` for any other name.
pub fn split_state_name(name: &str) -> Option<(&str, Codec)> {
    let sidco = name.strip_suffix(SIDCO_STATE).map(|tensor| (tensor, Codec::Sidco(Sidco::default())));
    sidco.or_else(|| Some((name.strip_suffix(POWERSGD)?, Codec::PowerSgd(PowerSgd::default()))))
}

/// A set of elements to find. Tensors are given by their index in the list passed to [`searches`].
#[derive(Debug, Clone, PartialEq)]
pub enum Search {
    /// The `k` elements with the largest keys of several tensors together. If fewer than `k` keys are above
    /// 0, all elements with a key above 0.
    Largest {
        /// Indices of the tensors, ascending.
        among: Vec<usize>,
        /// Number of elements to find.
        k: u64,
    },
    /// The `k` largest positive and the `k` smallest negative elements of one tensor, by magnitude. If a sign
    /// has fewer than `k` elements, all of them.
    BothSides {
        /// Index of the tensor.
        of: usize,
        /// Number of elements of each sign.
        k: u64,
    },
    /// All elements of one tensor whose key is at least that of `at`, including NaN.
    AtLeast {
        /// Index of the tensor.
        of: usize,
        /// Threshold, positive and finite.
        at: f32,
    },
    /// The elements that [`Codec::Sidco`] keeps of one tensor.
    Fitted {
        /// Index of the tensor.
        of: usize,
        /// Steps of the search.
        fitting: Fitting,
    },
}

/// Returns the initial searches of these codecs.
///
/// # Errors
/// Returns [`Error::Input`] if tensors are not in ascending order or not of floats, if options are out of
/// range, or if a codec is not [`Codec::TopK`], [`Codec::Threshold`], [`Codec::Sbc`] or [`Codec::Sidco`].
pub fn searches(tensors: &[Outline], codecs: &[Codec]) -> Result<Vec<Search>> {
    check(tensors, codecs)?;
    let mut searches = Vec::new();
    for (i, (tensor, codec)) in tensors.iter().zip(codecs).enumerate() {
        match *codec {
            Codec::TopK(TopK { amount, selection: Selection::Tensor, .. }) => {
                searches.push(Search::Largest { among: vec![i], k: amount.of(tensor.len) });
            }
            Codec::TopK(TopK { amount, selection: Selection::Global, .. })
                if !codecs[..i].contains(codec) =>
            {
                let among: Vec<usize> = (i..codecs.len()).filter(|&j| codecs[j] == *codec).collect();
                let n = among.iter().try_fold(0u64, |n, &j| n.checked_add(tensors[j].len));
                let n = n.ok_or(Error::too_large("length of all tensors together"))?;
                searches.push(Search::Largest { among, k: amount.of(n) });
            }
            Codec::Sbc(Sbc { amount, .. }) => {
                searches.push(Search::BothSides { of: i, k: amount.of(tensor.len) })
            }
            Codec::Threshold(Threshold { at, .. }) => searches.push(Search::AtLeast { of: i, at }),
            Codec::Sidco(Sidco { amount, fit, stages, .. }) => {
                let fitting = Fitting::new(fit, stages, tensor.len, amount.of(tensor.len));
                searches.push(Search::Fitted { of: i, fitting });
            }
            _ => {}
        }
    }
    Ok(searches)
}

impl Search {
    /// Returns the largest number of elements that the search keeps of each side. Returns `None` if that
    /// number depends on the elements.
    pub fn most(&self) -> Option<u64> {
        match *self {
            Self::Largest { k, .. } | Self::BothSides { k, .. } => Some(k),
            Self::AtLeast { .. } | Self::Fitted { .. } => None,
        }
    }
}

/// The elements found in one tensor.
#[derive(Debug, Clone, PartialEq)]
pub enum Found {
    /// The elements that are kept.
    Elements(Chosen),
    /// The elements of one side, for [`Codec::Sbc`]. Each of them becomes the mean. [`larger_side`] returns
    /// the side and the mean.
    Side {
        /// Positions of the elements, strictly ascending.
        positions: Vec<u64>,
        /// Mean of the elements, with its sign.
        mean: f32,
    },
}

impl Found {
    /// Returns the positions of the elements.
    pub fn positions(&self) -> &[u64] {
        match self {
            Self::Elements(chosen) => &chosen.positions,
            Self::Side { positions, .. } => positions,
        }
    }
}

/// Returns the rank in the 2^15-element sample whose key is, with high probability, below the k-th largest of
/// all `n`. The rank counts from 0 at the largest key and is less than the sample size. The sample is spread
/// over all `n` elements. Returns `None` where a sample would not help.
pub fn sample_rank(k: u64, n: u64) -> Option<u64> {
    select::rank(k, n)
}

/// Returns the side of [`Search::BothSides`] that is sent, and the mean of its elements.
///
/// `sums` has for each side the sum of the magnitudes of the kept elements. Each sum is a [`Moments::sum`] in
/// the order of the elements. `counts` has the number of kept elements of each side.
pub fn larger_side(sums: [f64; 2], counts: [u64; 2]) -> (usize, f32) {
    sbc::larger_side_of(sums, counts)
}

/// The values that a receiver decodes for the kept elements of one tensor, in the tensor's type. Error
/// feedback subtracts them from the sum.
#[derive(Debug, Clone, PartialEq)]
pub enum Sent {
    /// One value for each element.
    Each(Vec<f32>),
    /// One value for all elements.
    All(f32),
}

/// Returns the blocks of one update, and the values that they send of each tensor.
///
/// `found` has for each tensor the elements found in it: `Found::Side` for [`Codec::Sbc`], `Found::Elements`
/// for other codecs.
///
/// # Errors
/// Returns the errors of [`searches`]. Returns [`Error::Input`] if `found` does not fit the tensors, or if a
/// value is NaN or infinite.
pub fn blocks(
    tensors: &[Outline],
    codecs: &[Codec],
    found: &[Found],
) -> Result<(Vec<CodedBlock>, Vec<Sent>)> {
    check(tensors, codecs)?;
    blocks_of(tensors, codecs, found, |_| false)
}

/// Returns the tensors that share a block: for each block of [`blocks`] the range of its tensors.
///
/// # Errors
/// Returns the errors of [`searches`].
pub fn joined(tensors: &[Outline], codecs: &[Codec]) -> Result<Vec<Range<usize>>> {
    check(tensors, codecs)?;
    Ok(runs(codecs, |i| tensors[i]))
}

/// Returns the same as [`blocks`], where the supports of some blocks are already in wire form.
///
/// `supports` has one entry for each range of [`joined`]: the bytes of a support of kind
/// [`SupportId::GAPS_RICE`], or `None`. For tensors of a block in wire form, `found` has no positions.
///
/// # Errors
/// Returns the errors of [`blocks`]. The bytes are checked when they are written ([`WireBlock`]).
pub fn wire_blocks(
    tensors: &[Outline],
    codecs: &[Codec],
    found: &[Found],
    supports: Vec<Option<Vec<u8>>>,
) -> Result<(Vec<PendingBlock<'static>>, Vec<Sent>)> {
    let joined = joined(tensors, codecs)?;
    if supports.len() != joined.len() {
        return Err(Error::input(InputErrorKind::Mismatch { what: "numbers of blocks and of supports" }));
    }
    let mut written = vec![false; tensors.len()];
    for (run, _) in joined.into_iter().zip(&supports).filter(|(_, support)| support.is_some()) {
        written[run].fill(true);
    }
    // If `found` is longer than `tensors`, `blocks_of` returns the error.
    let (blocks, sent) = blocks_of(tensors, codecs, found, |i| written.get(i).copied().unwrap_or_default())?;
    let with = |(CodedBlock { block, options }, support): (CodedBlock, Option<Vec<u8>>)| {
        let mut block = WireBlock::from(block);
        if let Some(bytes) = support {
            block.support = Part::Written { id: SupportId::GAPS_RICE, bytes: bytes.into() };
        }
        PendingBlock::from((block, options))
    };
    Ok((blocks.into_iter().zip(supports).map(with).collect(), sent))
}

/// `written` returns whether the positions of a tensor are elsewhere.
fn blocks_of(
    tensors: &[Outline],
    codecs: &[Codec],
    found: &[Found],
    written: impl Fn(usize) -> bool,
) -> Result<(Vec<CodedBlock>, Vec<Sent>)> {
    if found.len() != tensors.len() {
        return Err(Error::input(InputErrorKind::Mismatch {
            what: "numbers of tensors and of what was found",
        }));
    }
    for (i, ((tensor, found), codec)) in tensors.iter().zip(found).zip(codecs).enumerate() {
        check_found(tensor, found, codec, written(i)).map_err(|e| e.in_tensor(tensor.tensor))?;
    }
    let (mut blocks, mut sent) = (Vec::new(), Vec::with_capacity(tensors.len()));
    for run in runs(codecs, |i| tensors[i]) {
        let (tensors, found) = (&tensors[run.clone()], &found[run.clone()]);
        let chosen = found.iter().map(|found| match found {
            Found::Elements(chosen) => chosen.clone(),
            Found::Side { positions, .. } => Chosen { positions: positions.clone(), values: Vec::new() },
        });
        let chosen: Vec<Chosen> = chosen.collect();
        let options = codecs[run.start].block_options();
        match codecs[run.start] {
            Codec::TopK(TopK { values, seed, .. })
            | Codec::Threshold(Threshold { values, seed, .. })
            | Codec::Sidco(Sidco { values, seed, .. }) => {
                let (values, decoded) = sparse::values(tensors, &chosen, values, seed)?;
                let (scope, support) = sparse::join(tensors, &chosen);
                blocks.push(CodedBlock { block: Block { scope, add: false, support, values }, options });
                let mut decoded = decoded.iter().copied();
                for (tensor, chosen) in tensors.iter().zip(&chosen) {
                    let mut values: Vec<f32> = decoded.by_ref().take(chosen.values.len()).collect();
                    round_f32s(tensor.dtype, &mut values)?;
                    sent.push(Sent::Each(values));
                }
            }
            Codec::Sbc { .. } => {
                let mean = |found: &Found| if let Found::Side { mean, .. } = found { *mean } else { 0.0 };
                let means: Vec<f32> = found.iter().map(mean).collect();
                blocks.push(CodedBlock { block: sbc::constant(tensors, &chosen, &means), options });
                for (tensor, mean) in tensors.iter().zip(means) {
                    let mut value = [mean];
                    round_f32s(tensor.dtype, &mut value)?;
                    sent.push(Sent::All(value[0]));
                }
            }
            _ => return Err(Error::bad_option(UNKNOWN)),
        }
    }
    Ok((blocks, sent))
}

/// Returns the error for an element that is NaN or infinite, where such an element is an error. The error
/// names the first tensor for which a non-finite value was kept, and the first non-finite element of that
/// tensor.
pub fn non_finite(tensor: u64, index: u64) -> Error {
    Error::input(InputErrorKind::NonFinite { index }).in_tensor(tensor)
}

const UNKNOWN: &str = "codec: neither one that selects outside of the library nor one that quantises there";

fn check(tensors: &[Outline], codecs: &[Codec]) -> Result<()> {
    check_order(tensors, codecs)?;
    let selects = |codec: &Codec| {
        matches!(
            codec,
            Codec::TopK { .. } | Codec::Threshold { .. } | Codec::Sbc { .. } | Codec::Sidco { .. }
        )
    };
    if codecs.iter().all(selects) { Ok(()) } else { Err(Error::bad_option(UNKNOWN)) }
}

/// Checks the conditions that hold for all codecs.
fn check_order(tensors: &[Outline], codecs: &[Codec]) -> Result<()> {
    if tensors.len() != codecs.len() {
        return Err(Error::input(InputErrorKind::Mismatch { what: "numbers of inputs and codecs" }));
    }
    if !tensors.is_sorted_by(|a, b| a.tensor < b.tensor) {
        return Err(Error::not_ascending("tensors of the inputs"));
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

/// `written`: whether the positions are elsewhere.
fn check_found(tensor: &Outline, found: &Found, codec: &Codec, written: bool) -> Result<()> {
    let positions = found.positions();
    if written && !positions.is_empty() {
        return Err(Error::inconsistent("positions beside those in wire form"));
    }
    if !positions.is_sorted_by(|a, b| a < b) || positions.last().is_some_and(|&p| p >= tensor.len) {
        return Err(Error::inconsistent("positions are not ascending inside the tensor"));
    }
    let non_finite = |index| Err(Error::input(InputErrorKind::NonFinite { index }));
    match (found, codec) {
        (Found::Side { mean, .. }, Codec::Sbc { .. }) if mean.is_finite() => Ok(()),
        (Found::Side { .. }, Codec::Sbc { .. }) => non_finite(positions.first().copied().unwrap_or(0)),
        (Found::Side { .. }, _) | (_, Codec::Sbc { .. }) => {
            Err(Error::inconsistent("elements and codec: one side for sbc, values for others"))
        }
        (Found::Elements(chosen), _) if !written && positions.len() != chosen.values.len() => {
            Err(Error::inconsistent("numbers of positions and values"))
        }
        (Found::Elements(chosen), _) => match chosen.values.iter().position(|x| !x.is_finite()) {
            Some(at) => non_finite(positions.get(at).copied().unwrap_or(0)),
            None => Ok(()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Feedback, Input, Options, compress};
    use super::*;
    use crate::tensor::Dtype;
    use crate::tensor::TensorBuf;

    /// Runs searches by sorting, and fits by their own steps.
    fn find(values: &[Vec<f32>], search: &Search, found: &mut [Found]) {
        if let Search::Fitted { of, fitting } = search {
            found[*of] = Found::Elements(fitted(&values[*of], fitting.clone()));
            return;
        }
        let sides: &[fn(f32) -> bool] = match search {
            Search::BothSides { .. } => &[|x| x > 0.0, |x| x < 0.0],
            _ => &[|x| x != 0.0],
        };
        let (among, k, at) = match search {
            Search::Largest { among, k } => (among.clone(), *k, 0.0),
            Search::BothSides { of, k } => (vec![*of], *k, 0.0),
            Search::AtLeast { of, at } => (vec![*of], u64::MAX, *at),
            Search::Fitted { .. } => unreachable!("above"),
        };
        let mut of_sides = vec![<[Chosen; 2]>::default(); values.len()];
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
                of_sides[t][side].positions.push(i as u64);
                of_sides[t][side].values.push(values[t][i]);
            }
        }
        for &t in &among {
            found[t] = match search {
                Search::BothSides { .. } => {
                    let sums = of_sides[t].each_ref().map(|c| Moments::of::<false>(&c.values, all()).sum);
                    let (side, mean) =
                        larger_side(sums, of_sides[t].each_ref().map(|c| c.values.len() as u64));
                    Found::Side { positions: of_sides[t][side].positions.clone(), mean }
                }
                _ => Found::Elements(std::mem::take(&mut of_sides[t][0])),
            };
        }
    }

    fn all() -> MomentQuery {
        MomentQuery { at: f32::from_bits(1), location: 0.0, logs: false }
    }

    /// Returns the elements that a fit keeps, after running all of its steps.
    fn fitted(values: &[f32], mut fitting: Fitting) -> Chosen {
        let n = values.len() as u64;
        let sample = || -> Vec<f32> {
            let place =
                |i: u64| i * n / 32_768 + (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % (n / 32_768);
            (0..32_768).map(|i| values[place(i) as usize]).collect()
        };
        let measure = |values: &[f32], question: MomentQuery| match question.logs {
            true => Moments::of::<true>(values, question),
            false => Moments::of::<false>(values, question),
        };
        let mut candidates = Vec::new();
        let kept = loop {
            match fitting.next() {
                Step::Sample(question) => fitting.answer(&measure(&sample(), question)),
                Step::Tensor(question) => fitting.answer(&measure(values, question)),
                Step::Candidates(question) => fitting.answer(&measure(&candidates, question)),
                Step::Collect { least, question } => {
                    let least = match least {
                        Least::At(at) => at,
                        Least::InSample(rank) => {
                            let mut sample = sample();
                            sample.sort_by(|a, b| b.abs().total_cmp(&a.abs()));
                            sample[rank as usize - 1].abs()
                        }
                    };
                    candidates = values.iter().copied().filter(|x| x.abs() >= least).collect();
                    let question =
                        question.unwrap_or(MomentQuery { at: least, location: least, logs: false });
                    let moments = measure(&candidates, question);
                    fitting.collected(candidates.len() as u64, least, &moments);
                }
                Step::Keep(kept) => break kept,
            }
        };
        let mut order: Vec<usize> = (0..values.len()).filter(|&i| values[i] != 0.0).collect();
        match kept {
            FitResult::Reached(at) => order.retain(|&i| values[i].abs() >= at),
            FitResult::Largest => {
                order.sort_by(|&i, &j| values[j].abs().total_cmp(&values[i].abs()).then(i.cmp(&j)));
                order.truncate(fitting.wanted() as usize);
                order.sort_unstable();
            }
        }
        Chosen {
            positions: order.iter().map(|&i| i as u64).collect(),
            values: order.iter().map(|&i| values[i]).collect(),
        }
    }

    #[test]
    fn blocks_are_those_that_compress_makes() {
        let values: Vec<Vec<f32>> = [50usize, 0, 90_000, 700]
            .iter()
            .zip(0..)
            .map(|(&n, t)| {
                let mut words = vec![0; n];
                crate::random::words(7, t, 0, &mut words);
                // Few different magnitudes, which gives ties within a tensor and across tensors.
                words.iter().map(|&w| (w % 201) as f32 / 8.0 - 12.5).collect()
            })
            .collect();
        let names = ["a", "b", "c", "d"];
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            let tensors: Vec<TensorBuf> = values
                .iter()
                .map(|v| {
                    let mut data = vec![0; dtype.bytes_for(v.len() as u64).unwrap() as usize];
                    crate::tensor::element::encode_f32s(dtype, v, 0, &mut data).unwrap();
                    TensorBuf::new(dtype, vec![v.len() as u64], data).unwrap()
                })
                .collect();
            let read: Vec<Vec<f32>> = tensors.iter().map(|t| t.view().to_f32().unwrap()).collect();
            // The last number is not consecutive, so there are two runs.
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
                ["sidco:density=0.01"; 4],
                ["sidco:density=0.002,fit=gamma-gp,values=bf16"; 4],
                ["sidco:density=0.05,fit=exp", "sidco:k=1", "sidco:density=0.3", "sidco:density=0.99"],
                ["sidco:density=0.01,stages=1"; 4],
                ["sidco:density=0.001,stages=4,fit=gamma-gp"; 4],
                ["sidco:density=0.01,stages=authors"; 4],
            ] {
                let codecs: Vec<Codec> = spec.iter().map(|s| s.parse().unwrap()).collect();
                let mut found = vec![Found::Elements(Chosen::default()); 4];
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
                    for (i, &p) in found[t].positions().iter().enumerate() {
                        left[p as usize] -= match sent {
                            Sent::Each(values) => values[i],
                            Sent::All(value) => *value,
                        };
                    }
                    assert_eq!(feedback.get(names[t]).unwrap(), left, "{spec:?} {t}");
                }
            }
        }
    }

    #[test]
    fn supports_in_wire_form_take_the_place_of_positions() {
        let outlines =
            [(0, 5), (1, 9), (2, 3)].map(|(tensor, len)| Outline { tensor, dtype: Dtype::F32, len });
        let codecs = ["topk:k=2,values=sign", "topk:k=2,values=sign", "sbc:k=1"].map(|c| c.parse().unwrap());
        assert_eq!(joined(&outlines, &codecs).unwrap(), [0..2, 2..3]);
        let of = |positions: &[u64], values: &[f32]| {
            Found::Elements(Chosen { positions: positions.to_vec(), values: values.to_vec() })
        };
        let found =
            [of(&[1, 4], &[2.0, -3.0]), of(&[8], &[1.0]), Found::Side { positions: vec![2], mean: -6.0 }];
        let (expected, sent) = blocks(&outlines, &codecs, &found).unwrap();
        let without = [of(&[], &[2.0, -3.0]), of(&[], &[1.0]), found[2].clone()];
        let supports = vec![Some(vec![3, 0, 1]), None];
        let (got, sent_too) = wire_blocks(&outlines, &codecs, &without, supports.clone()).unwrap();
        assert_eq!(sent_too, sent);
        let bytes = Part::Written { id: SupportId::GAPS_RICE, bytes: vec![3, 0, 1].into() };
        let got: Vec<_> = got.iter().map(|pending| (pending.block().unwrap(), pending.options())).collect();
        let expected = expected.iter().map(|coded| (WireBlock::from(&coded.block), coded.options));
        let [first, second] = expected.collect::<Vec<_>>().try_into().unwrap();
        let first = (WireBlock { support: bytes, ..first.0 }, first.1);
        assert_eq!(got, [(&first.0, first.1), (&second.0, second.1)]);
        // Errors: positions given for a block in wire form, positions missing for another, and too few
        // supports.
        assert!(wire_blocks(&outlines, &codecs, &found, supports.clone()).is_err());
        assert!(wire_blocks(&outlines, &codecs, &without, vec![None; 2]).is_err());
        assert!(wire_blocks(&outlines, &codecs, &without, supports[..1].to_vec()).is_err());
        let wrong = [without[0].clone(), of(&[], &[f32::NAN]), without[2].clone()];
        let error = wire_blocks(&outlines, &codecs, &wrong, supports).unwrap_err();
        assert_eq!(error.name(), "input");
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let outline = Outline { tensor: 3, dtype: Dtype::F32, len: 4 };
        let codec: Codec = "topk:k=2".parse().unwrap();
        let found = |positions: &[u64], values: &[f32]| {
            Found::Elements(Chosen { positions: positions.to_vec(), values: values.to_vec() })
        };
        assert!(blocks(&[outline], &[codec], &[found(&[1, 3], &[1.0, -2.0])]).is_ok());
        for wrong in [found(&[1, 4], &[1.0; 2]), found(&[2, 1], &[1.0; 2]), found(&[1, 1], &[1.0; 2])] {
            assert!(blocks(&[outline], &[codec], &[wrong]).is_err());
        }
        assert!(blocks(&[outline], &[codec], &[found(&[1], &[])]).is_err());
        let error = blocks(&[outline], &[codec], &[found(&[0, 2], &[1.0, f32::NAN])]).unwrap_err();
        assert_eq!(error.to_string(), "element 2 is NaN or infinite (tensor 3)");
        assert!(blocks(&[outline], &[codec], &[]).is_err());
        let side = |mean| Found::Side { positions: vec![1], mean };
        let sbc: Codec = "sbc:k=1".parse().unwrap();
        assert!(blocks(&[outline], &[sbc], &[side(2.0)]).is_ok());
        assert!(blocks(&[outline], &[sbc], &[side(f32::INFINITY)]).is_err());
        assert!(blocks(&[outline], &[codec], &[side(2.0)]).is_err());
        assert!(blocks(&[outline], &[sbc], &[found(&[1], &[2.0])]).is_err());
        assert!(searches(&[outline], &["natural".parse().unwrap()]).is_err());
        assert!(searches(&[outline, outline], &[codec, codec]).is_err());
        let integers = Outline { dtype: Dtype::I32, ..outline };
        assert!(searches(&[integers], &[codec]).is_err());
    }
}
