//! Statistics of blocks, without expanding them to dense tensors.

use crate::block::{Block, Run, Scope, Support, Values, for_each_run_in};
use crate::error::{Error, Result};
use crate::frame::UpdatePart;
use crate::limits::{Budget, in_memory};
use crate::reduce::stats::chunk::{CHUNK, Collector};
use crate::reduce::stats::{Grid, Stats, StatsOptions};
use crate::tensor::Dtype;
use crate::tensor::element::{decode_f64s, round_f32s};

impl Stats {
    /// Returns the statistics of the values of `block`, which is block `number` of `part`, for each tensor of
    /// its scope. Elements without a value are not counted: see [`Stats::with_elements`].
    ///
    /// # Errors
    /// The errors of [`Block::numbers`]; [`Error::Input`] if the block does not exist.
    pub fn of_block(
        part: &UpdatePart<'_>,
        number: usize,
        block: &Block,
        budget: &Budget,
        options: &StatsOptions,
    ) -> Result<Vec<Self>> {
        let raw = part.blocks.get(number).ok_or(Error::out_of_bounds("block", number, part.blocks.len()))?;
        let space = &raw.space;
        // Only a base tells which elements are those of such a block.
        let is_based = matches!(block.support, Support::Based(_));
        let has_grid = options.grid && !is_based;
        let infos = part.manifest.tensors().iter().skip(in_memory(raw.scope.first()));
        let mut collectors: Vec<Collector> = infos
            .take(space.lens.len())
            .map(|info| Collector::new(has_grid.then(|| Grid::new(&info.shape))))
            .collect();
        let Some(counts) = block.tensor_counts(space, part.sets())? else {
            collectors
                .iter_mut()
                .zip(&space.lens[..])
                .for_each(|(collector, &len)| collector.add_unplaced(len));
            return Ok(collectors.into_iter().map(Collector::finish).collect());
        };
        let numbers;
        let values = match (&block.values, block.values.elements()) {
            (_, Some(bytes)) => Numbers::Elements(space.dtype, bytes),
            (Values::Latent(_), None) => Numbers::Unread,
            (values, None) if values.gives_bits() => Numbers::Unread,
            _ => {
                let mut rounded = block.numbers(space, part.sets(), budget)?;
                round_f32s(space.dtype, &mut rounded)?;
                numbers = rounded;
                Numbers::Floats(&numbers)
            }
        };
        let mut first = 0;
        for (collector, &count) in collectors.iter_mut().zip(&counts) {
            values.collect(first, count, collector)?;
            first += count;
        }
        let specials = collectors.iter_mut().map(Collector::take_specials).collect::<Vec<_>>();
        if has_grid || (!is_based && specials.contains(&true)) {
            let start = if let Scope::Range { start, .. } = raw.scope { start } else { 0 };
            let mut buffer = [0.0; CHUNK];
            for_each_run_in(&block.support, space, part.sets(), &vec![start; counts.len()], |run| {
                values.place(&run, &mut buffer, &mut collectors[run.target])
            })?;
        }
        Ok(collectors.into_iter().map(Collector::finish).collect())
    }
}

/// The values of a block as numbers.
enum Numbers<'a> {
    Floats(&'a [f32]),
    Elements(Dtype, &'a [u8]),
    /// Values that are no numbers without another tensor or a model.
    Unread,
}

impl Numbers<'_> {
    fn decode(&self, start: u64, out: &mut [f64]) -> Result<()> {
        match self {
            Self::Floats(values) => {
                let values = values.get(in_memory(start)..).unwrap_or_default();
                out.iter_mut().zip(values).for_each(|(out, value)| *out = (*value).into());
                Ok(())
            }
            Self::Elements(dtype, bytes) => decode_f64s(*dtype, bytes, start, out),
            // Any number that is not zero: an unread value takes its place in the grid.
            Self::Unread => {
                out.fill(1.0);
                Ok(())
            }
        }
    }

    /// Adds the values from number `first` on. The indices of special ones are numbers of values until
    /// [`Self::place`] finds their elements.
    fn collect(&self, first: u64, count: u64, collector: &mut Collector) -> Result<()> {
        if let Self::Unread = self {
            collector.add_unread(count);
            return Ok(());
        }
        let mut values = [0.0; CHUNK];
        for start in (first..first + count).step_by(CHUNK) {
            let values = &mut values[..in_memory(first + count - start).min(CHUNK)];
            self.decode(start, values)?;
            collector.add(start, values);
        }
        Ok(())
    }

    /// Counts the values of a run in the grid, and translates numbers of special values to indices of
    /// elements.
    fn place(&self, run: &Run, buffer: &mut [f64; CHUNK], collector: &mut Collector) -> Result<()> {
        collector.place_specials(run.value as u64, run.len as u64, run.element);
        if !collector.has_grid() {
            return Ok(());
        }
        for at in (0..run.len).step_by(CHUNK) {
            let values = &mut buffer[..(run.len - at).min(CHUNK)];
            self.decode((run.value + at) as u64, values)?;
            collector.place(run.element + at as u64, values);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{Based, Constant, Floats, Groups, ScaleFormat, Scales, Sparse, Stored, Support, Ulp};
    use crate::frame::{Delta, Manifest, TensorInfo, UpdateHeader};
    use crate::limits::Limits;
    use crate::stream::{Body, EncodeOptions, Encoder, Event, SliceReader};
    use std::sync::Arc;

    /// Writes blocks as an update, reads it, and returns the statistics of each block's tensors, with grids.
    fn of(infos: &[TensorInfo], header: &UpdateHeader, blocks: &[Block]) -> Vec<Vec<Stats>> {
        with(&StatsOptions::default().with_grid(true), infos, header, blocks)
    }

    fn with(
        options: &StatsOptions,
        infos: &[TensorInfo],
        header: &UpdateHeader,
        blocks: &[Block],
    ) -> Vec<Vec<Stats>> {
        let manifest = Arc::new(Manifest::new(infos.to_vec()).unwrap());
        let mut encoder = Encoder::new(EncodeOptions::default());
        let mut bytes = Vec::new();
        encoder.update(&mut bytes, header, &manifest, blocks).unwrap();
        encoder.finish(&mut bytes);
        let mut found = Vec::new();
        for event in SliceReader::new(&bytes, Limits::default()) {
            let Event::Frame(_, Body::Update(part)) = event.unwrap() else { continue };
            for number in 0..part.blocks.len() {
                let budget = part.budget();
                let block = part.decode(number, &budget).unwrap();
                found.push(Stats::of_block(&part, number, &block, &budget, options).unwrap());
            }
        }
        found
    }

    #[test]
    fn special_values_have_the_places_of_their_elements() {
        let values = [f32::NAN, 1.0, 2.0, f32::INFINITY, f32::NAN];
        let block = Block {
            scope: Scope::Tensors { first: 0, count: 2 },
            add: false,
            support: Support::Sparse(Sparse { positions: vec![3, 5, 6, 8, 14] }),
            values: Values::Floats(Floats {
                stored: Stored::F32,
                bytes: values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            }),
        };
        let infos =
            [("a", [2u64, 3]), ("b", [3, 3])].map(|(name, shape)| TensorInfo::new(name, Dtype::F32, shape));
        let found = of(&infos, &UpdateHeader::default(), &[block]);
        let [a, b] = &found[0][..] else { panic!("two tensors") };
        assert_eq!((a.kept, a.nan, a.first_nan, a.first_infinite), (2, 1, Some(3), None));
        assert_eq!((b.kept, b.nan, b.first_nan, b.first_infinite), (3, 1, Some(8), Some(2)));
        let whole = b.clone().with_elements(9);
        assert_eq!((whole.zeros, whole.min, whole.max, whole.norm()), (6, Some(0.0), Some(2.0), 2.0));
        assert_eq!(a.grid.as_ref().unwrap().cell(1, 0), Some((1, 1)));
    }

    #[test]
    fn values_are_rounded_as_in_the_tensor() {
        let block = Block {
            scope: Scope::Range { tensor: 0, start: 2, len: 3 },
            add: false,
            support: Support::All,
            values: Values::Constant(Constant {
                groups: Groups::Tensor,
                scales: Scales::from_f32s(ScaleFormat::F32, &[1.001]),
            }),
        };
        let found = of(&[TensorInfo::new("w", Dtype::Bf16, [8])], &UpdateHeader::default(), &[block]);
        assert_eq!((found[0][0].max, found[0][0].kept), (Some(1.0), 3));
        let grid = found[0][0].grid.as_ref().unwrap();
        assert_eq!((0..8).map(|c| grid.cell(0, c).unwrap().0).collect::<Vec<_>>(), [0, 0, 1, 1, 1, 0, 0, 0]);
    }

    #[test]
    fn differences_to_a_base_are_no_numbers() {
        let block = Block {
            scope: Scope::Tensor(0),
            add: false,
            support: Support::Sparse(Sparse { positions: vec![1, 2] }),
            values: Values::Ulp(Ulp { diffs: vec![5, -3] }),
        };
        let delta = vec![Delta { first: 0, more: 0, base: [0; 16], result: [1; 16] }];
        let header = UpdateHeader::default().with_delta(Some(delta));
        let found = of(&[TensorInfo::new("w", Dtype::F32, [4])], &header, &[block]);
        let stats = &found[0][0];
        assert_eq!((stats.kept, stats.unread, stats.finite(), stats.nonzero()), (2, 2, 0, 0));
        assert_eq!(stats.grid.as_ref().unwrap().cell(0, 2), Some((1, 1)));
    }

    fn elements(values: &[f32]) -> Values {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Values::Floats(Floats { stored: Stored::Source, bytes })
    }

    #[test]
    fn special_values_have_their_places_without_a_grid_too() {
        let block = Block {
            scope: Scope::Range { tensor: 0, start: 2, len: 5 },
            add: false,
            support: Support::All,
            values: elements(&[1.0, f32::NAN, 2.0, f32::INFINITY, f32::NAN]),
        };
        let infos = [TensorInfo::new("w", Dtype::F32, [8])];
        let found = with(&StatsOptions::default(), &infos, &UpdateHeader::default(), &[block]);
        let stats = &found[0][0];
        assert_eq!((stats.nan, stats.first_nan, stats.first_infinite), (2, Some(3), Some(5)));
        assert_eq!(stats.grid, None);
    }

    #[test]
    fn places_that_only_a_base_tells_are_unknown() {
        let block = |scope| Block {
            scope,
            add: false,
            support: Support::Based(Based { bounds: vec![], ranks: vec![vec![0, 3]] }),
            values: elements(&[f32::NAN, 1.0]),
        };
        let infos = [("a", 4), ("b", 3)].map(|(name, n)| TensorInfo::new(name, Dtype::F32, [n]));
        let delta = vec![Delta { first: 0, more: 1, base: [0; 16], result: [1; 16] }];
        let header = UpdateHeader::default().with_delta(Some(delta));
        for grid in [false, true] {
            let of = |scope| with(&StatsOptions::default().with_grid(grid), &infos, &header, &[block(scope)]);
            let one = &of(Scope::Tensor(0))[0][0];
            assert_eq!((one.elements, one.kept, one.unplaced, one.unread), (2, 2, 0, 0));
            assert_eq!((one.nan, one.first_nan, one.max), (1, None, Some(1.0)));
            assert_eq!(one.grid, None);
            // Not even the number of values in each tensor is known.
            let both = of(Scope::Tensors { first: 0, count: 2 }).remove(0);
            let counts = |s: &Stats| (s.elements, s.kept, s.unplaced, s.unread, s.nonzero());
            assert_eq!(both.iter().map(counts).collect::<Vec<_>>(), [(4, 0, 4, 4, 0), (3, 0, 3, 3, 0)]);
        }
    }
}
