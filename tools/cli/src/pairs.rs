//! Two files of tensors side by side: the elements that both have, some at a time.

use crate::fail::{InFile, Result};
use crate::origin::Origin;
use crate::stream::{Base, Updates};
use crate::tensors::{Any, Dump, Labels, NamedTensor, Outline};
use gcodec::frame::TensorInfo;
use gcodec::tensor::{Dtype, TensorView};
use gcodec::{Limits, TensorBuf};
use gcodec_latent::Models;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::Path;

/// The tensors of one file, or of an update of a stream, which is decoded while it is read.
pub(crate) enum Side<'s> {
    Tensors(&'s Dump),
    Update { updates: Box<Updates<'s>>, number: usize, base: &'s Base<'s>, path: &'s Path },
}

impl<'s> Side<'s> {
    /// Returns a side. Of a stream, it is the last update of `step`, or the last of all.
    pub(crate) fn of(
        any: &'s Any,
        path: &'s Path,
        step: Option<u64>,
        base: &'s Base<'s>,
        limits: &Limits,
        models: &Models,
    ) -> Result<Self> {
        let input = match any {
            Any::Tensors(dump) => return Ok(Self::Tensors(dump)),
            Any::Stream(input) => input,
        };
        let updates = Box::new(Updates::open(input, limits).in_file(path)?.with_models(models.clone()));
        let number = updates.choose(step).in_file(path)?;
        Ok(Self::Update { updates, number, base, path })
    }

    /// Returns the step and the sender of a file of tensors, or of the update.
    pub(crate) fn origin(&self, path: &Path) -> Origin {
        match self {
            Self::Tensors(dump) => Origin::of(dump, path),
            Self::Update { updates, number, .. } => Origin::of_update(updates.header(*number)),
        }
    }

    /// Returns what the opaque tensors among the outlines are.
    pub(crate) fn labels(&self) -> Result<Labels> {
        match self {
            Self::Tensors(dump) => Ok(Labels::of(&dump.metadata)),
            Self::Update { updates, number, path, .. } => {
                Ok(Labels::of(&updates.metadata(*number).in_file(path)?))
            }
        }
    }

    /// Returns the names of tensors that the file does not tell the bytes of.
    pub(crate) fn without_bytes(&self) -> HashSet<&str> {
        match self {
            Self::Tensors(dump) => dump.opaque.iter().map(|tensor| tensor.name.as_str()).collect(),
            Self::Update { .. } => HashSet::new(),
        }
    }

    /// Returns the tensors without their elements.
    pub(crate) fn outlines(&self) -> Vec<Outline<'_>> {
        match self {
            Self::Tensors(dump) => dump.tensors.iter().map(Outline::from).collect(),
            Self::Update { updates, number, .. } => {
                updates.manifest(*number).tensors().iter().map(Outline::from).collect()
            }
        }
    }
}

/// Takes the number of a pair, and the same elements of both of its tensors.
pub(crate) type Take<'t> = dyn FnMut(usize, &TensorView<'_>, &TensorView<'_>) + 't;

/// Calls `take` with the elements of each pair of tensors, in one or several pieces.
///
/// `pairs`: places in the outlines of `a` and `b`; both have the same shape.
///
/// # Memory
/// The pieces of [`Updates::decode_to`]. Of two updates, one is decoded to a temporary file.
pub(crate) fn walk(a: &Side<'_>, b: &Side<'_>, pairs: &[(usize, usize)], take: &mut Take<'_>) -> Result<()> {
    match (a, b) {
        (Side::Tensors(a), Side::Tensors(b)) => {
            pairs.iter().enumerate().try_for_each(|(number, &(of_a, of_b))| {
                let (a, b) = (&a.tensors[of_a], &b.tensors[of_b]);
                match a.is_elsewhere() || b.is_elsewhere() {
                    true => in_pieces(a, b, &mut |a, b| take(number, a, b)),
                    false => {
                        take(number, &a.view(), &b.view());
                        Ok(())
                    }
                }
            })
        }
        (Side::Tensors(a), update) => read(update, a, pairs.iter().map(|&(a, b)| (b, a)), &mut |n, b, a| {
            take(n, a, b);
        }),
        (update, Side::Tensors(b)) => read(update, b, pairs.iter().copied(), take),
        (Side::Update { updates, number, base, path }, _) => {
            if !base.is_empty() {
                updates.check_base(*number, base).in_file(path)?;
            }
            let tensors = updates.decode(*number, |_| true, base).in_file(path)?;
            let a = Dump { tensors, ..Dump::default() };
            walk(&Side::Tensors(&a), b, pairs, take)
        }
    }
}

/// Calls `take` with the same elements of two tensors of one shape, some at a time.
fn in_pieces(
    a: &NamedTensor,
    b: &NamedTensor,
    take: &mut dyn FnMut(&TensorView<'_>, &TensorView<'_>),
) -> Result<()> {
    // What has to be put together is put together once, and not kept.
    let whole = |tensor: &'_ NamedTensor| (!tensor.is_elsewhere()).then(|| tensor.bytes().into_owned());
    let (whole_a, whole_b) = (whole(a), whole(b));
    let piece = |tensor: &NamedTensor, whole: &Option<Vec<u8>>, elements: Range<u64>| match whole {
        None => tensor.piece(elements),
        Some(bytes) => {
            let place = tensor.place(&elements);
            let bytes = bytes[place.start as usize..place.end as usize].to_vec();
            TensorBuf::new(Outline::from(tensor).dtype, vec![elements.end - elements.start], bytes)
        }
    };
    let (elements, mut start) = (a.elements(), 0);
    // The type of an empty tensor is compared, too.
    loop {
        let end = elements.min(start + PIECE);
        take(&piece(a, &whole_a, start..end)?.view(), &piece(b, &whole_b, start..end)?.view());
        start = end;
        if start == elements {
            return Ok(());
        }
    }
}

/// Elements of a piece: those that are added up at once, so that pieces have the sums of the whole.
const PIECE: u64 = crate::compare::GROUP_LEN;

/// Decodes an update, and calls `take` with its elements and those of the other side.
fn read(
    update: &Side<'_>,
    other: &Dump,
    pairs: impl Iterator<Item = (usize, usize)>,
    take: &mut Take<'_>,
) -> Result<()> {
    let Side::Update { updates, number, base, path } = update else { return Ok(()) };
    let infos = updates.manifest(*number).tensors();
    let pairs: HashMap<&str, (usize, usize)> =
        pairs.enumerate().map(|(pair, (mine, other))| (infos[mine].name.as_str(), (pair, other))).collect();
    if !base.is_empty() {
        updates.check_base(*number, base).in_file(path)?;
    }
    let mut waiting = Waiting::default();
    let wanted = |name: &str| pairs.contains_key(name);
    let read = updates.decode_to(*number, wanted, base, &mut |info, bytes| {
        let Some(&(pair, place)) = pairs.get(info.name.as_str()) else { return Ok(()) };
        let other = other.tensors[place].view();
        waiting.add(info, bytes, other.dtype(), &mut |start, bytes| {
            let bits = u64::from(info.dtype.bits());
            let elements = match bytes.len() as u64 {
                all if all == info.bytes() => info.elements(),
                some => some * 8 / bits,
            };
            let (shape, same) = ([elements], elements_of(&other, start * 8 / bits, elements));
            take(
                pair,
                &TensorView::new(info.dtype, &shape, bytes)?,
                &TensorView::new(other.dtype(), &shape, same)?,
            );
            Ok(())
        })
    });
    read.in_file(path)
}

/// Bytes of a tensor that wait for the rest.
#[derive(Default)]
pub(crate) struct Waiting {
    bytes: Vec<u8>,
    /// Bytes of the tensor before this piece.
    start: u64,
}

impl Waiting {
    /// Calls `take` with the offset of a piece in its tensor and its bytes. Where elements of the other side
    /// are no whole bytes, it waits for the whole tensor.
    pub(crate) fn add(
        &mut self,
        info: &TensorInfo,
        bytes: &[u8],
        other: Dtype,
        take: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let start = self.start;
        self.start += bytes.len() as u64;
        let is_last = self.start == info.bytes();
        if is_last {
            self.start = 0;
        }
        if other.bits() >= 8 {
            return take(start, bytes);
        }
        self.bytes.extend_from_slice(bytes);
        if !is_last {
            return Ok(());
        }
        let whole = std::mem::take(&mut self.bytes);
        take(0, &whole)
    }
}

/// Returns the bytes of some elements of a tensor, from `first` on.
fn elements_of<'t>(tensor: &TensorView<'t>, first: u64, elements: u64) -> &'t [u8] {
    let byte = |element: u64| (element * u64::from(tensor.dtype().bits())).div_ceil(8) as usize;
    tensor.data().get(byte(first)..byte(first + elements)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::Sums;
    use gcodec::encode;

    #[test]
    fn pieces_of_an_update_meet_the_same_elements() {
        // More than is decoded at a time.
        let len = 7_000_001 * rayon::current_num_threads().max(2) as u64 / 2;
        let values: Vec<f32> = (0..len).map(|i| (i % 1009) as f32 - 500.0).collect();
        let large = TensorBuf::from_f32(vec![len], &values).unwrap();
        let small = TensorBuf::from_f32(vec![2, 1], &[1.0, -1.0]).unwrap();
        let stream = encode(&[("s", small.view()), ("l", large.view())], &gcodec::Codec::LOSSLESS).unwrap();
        let (base, path) = (Base::new(), Path::new("x.gcu"));
        let updates = Box::new(Updates::open(&stream, &Limits::default()).unwrap());
        let update = Side::Update { updates, number: 0, base: &base, path };
        for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F4E2M1] {
            let bytes = dtype.bytes_for(len).unwrap() as usize;
            let data = (0..bytes).map(|i| (i * 7 % 251) as u8).collect();
            let other = TensorBuf::new(dtype, vec![len], data).unwrap();
            let expected = Sums::of(&other.view(), &large.view()).unwrap().errors();
            let dump = Dump { tensors: vec![NamedTensor::new("l".into(), other)], ..Dump::default() };
            let side = Side::Tensors(&dump);
            for turned in [false, true] {
                let (mut sums, mut pieces) = (Sums::default(), 0);
                let mut take = |number: usize, a: &TensorView<'_>, b: &TensorView<'_>| {
                    assert_eq!(number, 0);
                    let (a, b) = if turned { (b, a) } else { (a, b) };
                    sums.add(&Sums::of(a, b).unwrap());
                    pieces += 1;
                };
                match turned {
                    false => walk(&side, &update, &[(0, 1)], &mut take).unwrap(),
                    true => walk(&update, &side, &[(1, 0)], &mut take).unwrap(),
                }
                assert_eq!((sums.elements, pieces > 1), (len, dtype.bits() >= 8), "{dtype}");
                let found = sums.errors();
                assert!((found.relative_l2 - expected.relative_l2).abs() < 1e-9 * expected.relative_l2);
                assert_eq!(found.max_abs, expected.max_abs);
            }
        }
    }
}
