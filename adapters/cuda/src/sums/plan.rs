//! Boxes of the units of tensors, as the kernel takes them.

use crate::abi::THREADS;
use crate::abi::sums::{Axis, COLUMNS, HIGH, LOW, Summed};
use crate::device::Device;
use crate::error::{Result, TensorError};
use crate::sums::SumInput;
use crate::tensor::DeviceView;

/// Independent numbers in a digest.
pub(super) const LANES: usize = 4;
/// Columns of a box at most. An index has one factor for its low 16 bits, and one for the others, so that
/// this many neighbours can share the second.
const MOST_COLUMNS: u64 = 1 << 16;
/// Rows that a thread reads: at least so many that its keys cost little, and at most so many that its sums do
/// not overflow.
const ROWS: [u64; 2] = [128, 4096];

/// The boxes of some tensors.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) summed: Vec<Summed>,
    pub(super) axes: Vec<Axis>,
    /// Blocks of threads.
    pub(super) works: u32,
    /// Rows that a thread reads.
    rows: u64,
}

impl Plan {
    pub(super) fn new(inputs: &[SumInput<'_>], device: &Device) -> Result<Self> {
        let units: u64 = inputs.iter().map(|input| input.data.elements() * input.data.units()).sum();
        let blocks = u64::from(16 * device.multiprocessors());
        let rows = units / (u64::from(COLUMNS * THREADS) * blocks);
        let mut plan = Self { rows: rows.clamp(ROWS[0], ROWS[1]), ..Self::default() };
        for (input, out) in inputs.iter().zip(0..) {
            input.data.check_device(device)?;
            if input.offsets.len() != input.data.shape().len() {
                return Err(TensorError::Offsets.into());
            }
            if input.data.elements() > 0 {
                plan.add_tensor(input, out)?;
            }
        }
        Ok(plan)
    }

    /// Turns offsets into addresses. `sums`: those of the first tensor.
    pub(super) fn place(&mut self, axes: u64, sums: u64) {
        for summed in &mut self.summed {
            summed.axes = axes + size_of::<Axis>() as u64 * summed.axes;
            summed.out = sums + (8 * LANES) as u64 * summed.out;
        }
    }

    fn add_tensor(&mut self, input: &SumInput<'_>, out: u64) -> Result<()> {
        let (view, mut axes) = (input.data, axes_of(&input.data, input.offsets));
        let (units, width) = (view.units(), view.unit_bytes());
        let last = &mut axes[0];
        if units == 1 {
            return self.add_ordered(view.address(), width, axes, out);
        }
        if last.len == 1 || last.stride == (units * width) as i64 {
            // The units of an element follow each other, as elements do.
            (last.len, last.first, last.stride) = (last.len * units, last.first * units, width as i64);
            return self.add_ordered(view.address(), width, axes, out);
        }
        for part in 0..units {
            let mut axes = axes.clone();
            (axes[0].first, axes[0].step) = (axes[0].first * units + part, units as u32);
            self.add_ordered(view.address() + part * width, width, axes, out)?;
        }
        Ok(())
    }

    /// Adds the boxes of units whose axes are in the order of the indices.
    fn add_ordered(&mut self, data: u64, width: u64, mut axes: Vec<Axis>, out: u64) -> Result<()> {
        // Neighbouring threads read neighbouring units. An axis of one index has no neighbours.
        axes.sort_by_key(|axis| (axis.len == 1, axis.stride.unsigned_abs()));
        if axes[0].len <= MOST_COLUMNS {
            return self.add_box(data, width, &axes, out);
        }
        let (long, others) = (axes[0], &axes[1..]);
        let whole = MOST_COLUMNS / u64::from(long.step);
        let before = (whole - long.first / u64::from(long.step) % whole) % whole;
        let after = (long.len - before) % whole;
        let pieces = (long.len - before) / whole;
        let mut add = |at: u64, mut own: Vec<Axis>| {
            own.extend_from_slice(others);
            self.add_box(data.wrapping_add_signed(at as i64 * long.stride), width, &own, out)
        };
        let part = |at: u64, len| Axis { len, first: long.first + at * u64::from(long.step), ..long };
        if before > 0 {
            add(0, vec![part(0, before)])?;
        }
        if pieces > 0 {
            // Columns have the factors of the low bits, rows those of the others.
            let first = part(before, whole);
            let columns = Axis { first: first.first % MOST_COLUMNS, factors: LOW, ..first };
            let stride = whole as i64 * long.stride;
            let number = first.first - columns.first;
            let step = MOST_COLUMNS as u32;
            let rows = Axis { len: pieces, stride, first: number, step, factors: HIGH, ..long };
            add(before, vec![columns, rows])?;
        }
        if after > 0 {
            let at = long.len - after;
            add(at, vec![part(at, after)])?;
        }
        Ok(())
    }

    /// Adds a box. The first axis is that of the columns, together with the next ones as long as each follows
    /// the one before without a gap.
    fn add_box(&mut self, data: u64, width: u64, axes: &[Axis], out: u64) -> Result<()> {
        let (mut columns, stride) = (axes[0].len, axes[0].stride);
        let mut n_column_axes = 1;
        for axis in &axes[1..] {
            if axis.stride != columns as i64 * stride || columns * axis.len > MOST_COLUMNS {
                break;
            }
            columns *= axis.len;
            n_column_axes += 1;
        }
        let rows: u64 = axes[n_column_axes..].iter().map(|axis| axis.len).product();
        let threads = columns.div_ceil(COLUMNS.into()).next_power_of_two().min(THREADS.into()) as u32;
        let tiles = columns.div_ceil(u64::from(COLUMNS * threads)) as u32;
        let chunk = self.rows as u32 * (THREADS / threads);
        let word = u64::from(COLUMNS) * width;
        let aligned = |bytes: i64| bytes.unsigned_abs().is_multiple_of(word);
        let together = stride == width as i64
            && columns.is_multiple_of(COLUMNS.into())
            && data.is_multiple_of(word)
            && axes[n_column_axes..].iter().all(|axis| axis.len == 1 || aligned(axis.stride));
        let works = rows.div_ceil(chunk.into()) * u64::from(tiles);
        let end = i32::try_from(works.saturating_add(self.works.into()));
        let summed = Summed {
            data,
            rows,
            stride,
            axes: self.axes.len() as u64,
            out,
            columns: columns as u32,
            n_column_axes: n_column_axes as u32,
            n_axes: axes.len() as u32,
            width: width as u32,
            threads,
            chunk,
            tiles,
            first_work: self.works,
            together: together.into(),
            reserved: 0,
        };
        self.works = end.map_err(|_| TensorError::TooMany { most: i32::MAX as usize })?.unsigned_abs();
        self.summed.push(summed);
        self.axes.extend_from_slice(axes);
        Ok(())
    }
}

/// Returns the axes of a tensor, the last one first, in elements.
fn axes_of(view: &DeviceView<'_>, offsets: &[u64]) -> Vec<Axis> {
    let axis = |number, len, stride, first| Axis {
        len,
        stride: stride * (view.units() * view.unit_bytes()) as i64,
        first,
        step: 1,
        number,
        factors: LOW | HIGH,
        reserved: 0,
    };
    let dims = view.shape().iter().zip(view.strides()).zip(offsets).rev().zip(0..);
    let axes: Vec<Axis> = dims.map(|(((&len, &stride), &first), n)| axis(n, len, stride, first)).collect();
    if axes.is_empty() { vec![axis(0, 1, 1, 0)] } else { axes }
}
