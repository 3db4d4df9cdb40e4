//! Sum digests of device tensors equal those of the host.

mod common;

use common::mock_driver;
use gcodec::digest::SumDigest;
use gcodec::{Dtype, TensorBuf};
use gcodec_cuda::{DeviceBuf, Error, Stream, SumDigester, SumInput, TensorError};

/// A tensor of `len` elements of arbitrary bits.
fn noise(dtype: Dtype, len: u64, seed: u64) -> TensorBuf {
    let bytes = dtype.bytes_for(len).unwrap() as usize;
    let mut words = vec![0; bytes.div_ceil(4)];
    gcodec::compress::random::words(seed, 0, 0, &mut words);
    let bytes = words.iter().flat_map(|word| word.to_le_bytes()).take(bytes).collect();
    TensorBuf::new(dtype, vec![len], bytes).unwrap()
}

/// A part of a tensor of noise, by element.
struct Part {
    dtype: Dtype,
    len: u64,
    first: u64,
    shape: Vec<u64>,
    strides: Vec<i64>,
    offsets: Vec<u64>,
}

impl Part {
    /// A whole row-major tensor.
    fn whole(dtype: Dtype, shape: &[u64]) -> Self {
        let mut strides = vec![1; shape.len()];
        for dim in (1..shape.len()).rev() {
            strides[dim - 1] = strides[dim] * shape[dim] as i64;
        }
        let len = shape.iter().product();
        Self { dtype, len, first: 0, shape: shape.to_vec(), strides, offsets: vec![0; shape.len()] }
    }

    /// The same elements with their dimensions in another order.
    fn permuted(mut self, order: &[usize]) -> Self {
        self.shape = order.iter().map(|&dim| self.shape[dim]).collect();
        self.strides = order.iter().map(|&dim| self.strides[dim]).collect();
        self
    }

    /// Without the first `rows` rows and `columns` columns of a matrix.
    fn after(mut self, rows: u64, columns: u64) -> Self {
        self.first += rows * self.strides[0] as u64 + columns * self.strides[1] as u64;
        self.shape = vec![self.shape[0] - rows, self.shape[1] - columns];
        self
    }

    /// As a shard whose first element has these indices.
    fn at(mut self, offsets: &[u64]) -> Self {
        self.offsets = offsets.to_vec();
        self
    }

    /// The digest by the host, of the elements in their order.
    fn expected(&self, noise: &TensorBuf) -> SumDigest {
        let (width, mut data) = ((self.dtype.bits() / 8) as usize, Vec::new());
        for number in 0..self.shape.iter().product::<u64>() {
            let (mut rest, mut at) = (number, self.first as i64);
            for (&len, &stride) in self.shape.iter().zip(&self.strides).rev() {
                at += (rest % len) as i64 * stride;
                rest /= len;
            }
            data.extend_from_slice(&noise.view().data()[at as usize * width..][..width]);
        }
        let tensor = TensorBuf::new(self.dtype, self.shape.clone(), data).unwrap();
        SumDigest::of_shard(tensor.view(), &self.offsets).unwrap()
    }
}

fn parts() -> Vec<Part> {
    let mut parts = Vec::new();
    for dtype in [Dtype::Bf16, Dtype::F32, Dtype::F64, Dtype::I8] {
        let whole = |shape: &[u64]| Part::whole(dtype, shape);
        parts.extend([
            whole(&[]),
            whole(&[0]),
            whole(&[7]),
            whole(&[3, 0, 5]),
            whole(&[33, 64]),
            whole(&[5, 1028]).at(&[2, 70_000]),
            whole(&[2, 1, 3, 5]),
            whole(&[300, 3]),
            whole(&[40, 96]).permuted(&[1, 0]),
            whole(&[6, 10, 20]).permuted(&[2, 0, 1]).at(&[1, 2, 3]),
            whole(&[40, 96]).after(3, 8),
            whole(&[40, 96]).after(1, 5).at(&[9, 65_530]),
            whole(&[40, 96]).after(1, 5).permuted(&[1, 0]),
            // Longer than 2^16 units: with and without whole pieces of 2^16 indices.
            whole(&[140_001]),
            whole(&[140_001]).at(&[65_537]),
            whole(&[2, 70_000]).at(&[1 << 40, 60_001]),
            whole(&[70_000, 2]).permuted(&[1, 0]).at(&[0, 5]),
        ]);
        let mut expanded = whole(&[9]);
        (expanded.shape, expanded.strides, expanded.offsets) = (vec![4, 9], vec![0, 1], vec![0, 0]);
        let mut backwards = whole(&[9]);
        (backwards.first, backwards.strides) = (8, vec![-1]);
        parts.extend([expanded, backwards]);
    }
    parts
}

#[test]
fn digests_equal_those_of_the_host() {
    let Some(mock) = mock_driver() else { return };
    let device = mock.device();
    let mut digester = SumDigester::new(&device).unwrap();
    let parts = parts();
    let noises: Vec<TensorBuf> = parts.iter().zip(1..).map(|(p, seed)| noise(p.dtype, p.len, seed)).collect();
    let upload = |noise: &TensorBuf| DeviceBuf::from_host(&device, noise.view()).unwrap();
    let buffers: Vec<DeviceBuf> = noises.iter().map(upload).collect();
    let views: Vec<_> = parts
        .iter()
        .zip(&buffers)
        .map(|(part, buffer)| buffer.part(part.first, &part.shape, &part.strides).unwrap())
        .collect();
    let inputs: Vec<SumInput<'_>> =
        parts.iter().zip(&views).map(|(part, &data)| SumInput { data, offsets: &part.offsets }).collect();
    let found = digester.digests(&inputs, Stream::DEFAULT).unwrap();
    for ((part, noise), found) in parts.iter().zip(&noises).zip(&found) {
        let Part { dtype, shape, strides, offsets, .. } = part;
        assert_eq!(*found, part.expected(noise), "{dtype} {shape:?} {strides:?} {offsets:?}");
    }
    // Each alone, in a call of its own, which uses the memory of the call before.
    for (input, found) in inputs.iter().zip(&found) {
        assert_eq!(digester.digests(&[*input], Stream::DEFAULT).unwrap(), [*found]);
    }
    assert_eq!(digester.digests(&[], Stream::DEFAULT).unwrap(), []);
    mock.assert_sound();
}

#[test]
fn the_digests_of_bits_under_sanitizers() {
    common::under_sanitizers("digests_equal_those_of_the_host");
}

#[test]
fn unaligned_elements_are_read_one_by_one() {
    let Some(mock) = mock_driver() else { return };
    let device = mock.device();
    let noise = noise(Dtype::Bf16, 5000, 9);
    let buffer = DeviceBuf::from_host(&device, noise.view()).unwrap();
    let mut digester = SumDigester::new(&device).unwrap();
    for first in 1..5 {
        let part = Part { first, ..Part::whole(Dtype::Bf16, &[4, 1024]) };
        let data = buffer.part(first, &part.shape, &part.strides).unwrap();
        let found = digester.digests(&[SumInput { data, offsets: &[0, 0] }], Stream::DEFAULT).unwrap();
        assert_eq!(found, [part.expected(&noise)], "{first}");
    }
}

#[test]
fn calls_do_not_depend_on_the_number_of_tensors() {
    let Some(mock) = mock_driver() else { return };
    let device = mock.device();
    let buffer = DeviceBuf::from_host(&device, noise(Dtype::F32, 640, 3).view()).unwrap();
    let mut digester = SumDigester::new(&device).unwrap();
    for tensors in [1, 10] {
        let data = buffer.part(0, &[8, 8], &[8, 1]).unwrap();
        let inputs = vec![SumInput { data, offsets: &[0, 0] }; tensors];
        mock.reset_counts();
        digester.digests(&inputs, Stream::DEFAULT).unwrap();
        for (call, expected) in [
            ("cuLaunchKernel", 1),
            ("cuMemcpyHtoD", 1),
            ("cuMemcpyDtoH", 1),
            ("cuStreamSynchronize", 1),
            ("bytes to the host", 32 * tensors as u64),
        ] {
            assert_eq!(mock.count(call), expected, "{call}, {tensors} tensors");
        }
    }
}

#[test]
fn views_that_are_not_in_memory_are_refused() {
    let Some(mock) = mock_driver() else { return };
    let device = mock.device();
    let buffer = DeviceBuf::from_host(&device, noise(Dtype::F32, 64, 3).view()).unwrap();
    let refused = |first, shape: &[u64], strides: &[i64]| match buffer.part(first, shape, strides) {
        Err(Error::Tensor(error)) => error,
        other => panic!("{other:?}"),
    };
    for (first, shape, strides) in
        [(1, [8, 8], [8, 1]), (0, [8, 8], [8, 2]), (0, [8, 8], [-8, 1]), (u64::MAX / 8, [8, 8], [8, 1])]
    {
        let error = refused(first, &shape, &strides);
        assert!(matches!(error, TensorError::Bounds { .. } | TensorError::Shape), "{error}");
    }
    assert_eq!(refused(0, &[8, 8], &[i64::MAX, 1]), TensorError::Shape);
    assert_eq!(refused(0, &[8, 8], &[1]), TensorError::Offsets);
    assert_eq!(refused(0, &[1; 33], &[1; 33]), TensorError::Rank { rank: 33 });
    let data = buffer.part(0, &[8, 8], &[8, 1]).unwrap();
    let error =
        SumDigester::new(&device).unwrap().digests(&[SumInput { data, offsets: &[0] }], Stream::DEFAULT);
    assert!(matches!(error, Err(Error::Tensor(TensorError::Offsets))), "{error:?}");
    let packed = DeviceBuf::zeros(&device, Dtype::F4E2M1, &[8]).unwrap();
    assert!(matches!(packed.part(0, &[8], &[1]), Err(Error::Tensor(TensorError::Packed(_)))));
}
