//! Strides: the test for row-major order, and the copy into it.

/// Whether elements with these strides, in elements, lie in row-major order without gaps.
pub(crate) fn is_row_major(shape: &[u64], strides: &[i64]) -> bool {
    if shape.contains(&0) {
        return true;
    }
    let mut expected = 1i64;
    for (&n, &stride) in shape.iter().zip(strides).rev() {
        // The stride of a dimension of one element is never used.
        if n != 1 && stride != expected {
            return false;
        }
        expected = expected.saturating_mul(n as i64);
    }
    true
}

/// Returns the strides, in elements, of a row-major tensor.
pub(crate) fn row_major(shape: &[u64]) -> Vec<i64> {
    let mut strides = vec![1i64; shape.len()];
    for d in (1..shape.len()).rev() {
        strides[d - 1] = strides[d].saturating_mul(i64::try_from(shape[d]).unwrap_or(i64::MAX).max(1));
    }
    strides
}

/// Appends the elements to `out` in row-major order, contiguous runs at once.
///
/// `strides`: in elements. `width`: bytes of an element.
///
/// # Safety
/// Every element that `shape` and `strides` lead to from `data` can be read; no dimension is 0.
#[expect(unsafe_code, reason = "strided memory of another library is read through pointers")]
pub(super) unsafe fn copy_in_order(
    data: *const u8,
    shape: &[u64],
    strides: &[i64],
    width: usize,
    out: &mut Vec<u8>,
) {
    // The innermost dimensions that are row-major form one run.
    let mut inner = shape.len();
    while inner > 0 && is_row_major(&shape[inner - 1..], &strides[inner - 1..]) {
        inner -= 1;
    }
    let run = shape[inner..].iter().product::<u64>() as usize * width;
    let (shape, strides) = (&shape[..inner], &strides[..inner]);
    let (Some((&rows, outer)), Some((&step, outer_strides))) = (shape.split_last(), strides.split_last())
    else {
        // SAFETY: the whole tensor is one run, which the caller says can be read.
        out.extend_from_slice(unsafe { std::slice::from_raw_parts(data, run) });
        return;
    };
    let mut at = vec![0u64; outer.len()];
    let step = step as isize * width as isize;
    loop {
        let offsets = at.iter().zip(outer_strides).map(|(&i, &s)| i as isize * s as isize);
        let mut from = data.wrapping_offset(offsets.sum::<isize>() * width as isize);
        // Constant widths let the compiler move an element as one word.
        // SAFETY: the `rows` runs, `step` bytes apart, are elements of the tensor, which can be read.
        unsafe {
            match run {
                1 => copy_runs::<1>(&mut from, rows, step, out),
                2 => copy_runs::<2>(&mut from, rows, step, out),
                4 => copy_runs::<4>(&mut from, rows, step, out),
                8 => copy_runs::<8>(&mut from, rows, step, out),
                _ => {
                    for _ in 0..rows {
                        out.extend_from_slice(std::slice::from_raw_parts(from, run));
                        from = from.wrapping_offset(step);
                    }
                }
            }
        }
        // Advance the index of the outer dimensions, the last one fastest.
        let Some(d) = (0..outer.len()).rev().find(|&d| at[d] + 1 < outer[d]) else { return };
        at[d] += 1;
        at[d + 1..].fill(0);
    }
}

/// Appends `rows` runs of `N` bytes, `step` bytes apart, and advances `from` past them.
///
/// # Safety
/// `rows` runs of `N` bytes, `step` bytes apart from `from` on, can be read.
#[expect(unsafe_code, reason = "strided memory of another library is read through pointers")]
unsafe fn copy_runs<const N: usize>(from: &mut *const u8, rows: u64, step: isize, out: &mut Vec<u8>) {
    for _ in 0..rows {
        // SAFETY: the caller says that `N` bytes can be read here; an array of bytes has alignment 1.
        out.extend_from_slice(unsafe { &*from.cast::<[u8; N]>() });
        *from = from.wrapping_offset(step);
    }
}
