//! Failures are errors that say what failed, and leave state unchanged.

mod common;

use std::path::Path;

use common::{MockDriver, encode, mock_driver, normal};
use gcodec::compress::{Feedback, Input as HostInput, Options, compress};
use gcodec::{Codec, Dtype, TensorView};
use gcodec_cuda::{Compressor, Device, DeviceTensor, Driver, Error, Input, Stream, TensorError, why_not};

#[test]
#[allow(unsafe_code)]
fn without_a_driver_it_says_so() {
    // SAFETY: the file does not exist.
    let error = unsafe { Driver::load(Path::new("/nonexistent/libcuda.so.1")) }.unwrap_err();
    assert!(matches!(error, Error::NoDriver { .. }), "{error}");
    assert!(error.to_string().starts_with("no CUDA driver: /nonexistent"), "{error}");
    // SAFETY: the file is not a library.
    let error = unsafe { Driver::load(Path::new(file!())) }.unwrap_err();
    assert!(matches!(error, Error::NoDriver { .. }), "{error}");
    // Holds with and without a driver on this machine.
    assert_eq!(why_not().is_some(), Driver::get().is_err());
    assert_eq!(why_not().is_some(), Device::open(0).is_err());
}

#[test]
#[allow(unsafe_code)]
fn unusable_machines_have_distinct_errors() {
    let Some(mock) = mock_driver() else { return };
    let path = mock.path();
    // SAFETY: the file is the mock driver.
    let load = || unsafe { Driver::load(&path) };
    mock.machine(0, 13000);
    assert!(matches!(load(), Err(Error::NoDevice)));
    mock.machine(2, 12080);
    let error = load().unwrap_err();
    assert_eq!(error.to_string(), "the driver supports CUDA 12.8, the kernels need 13.0");
    mock.machine(2, 13000);
    for ordinal in [-1, 2] {
        let error = Device::of(&mock.driver, ordinal).unwrap_err();
        assert!(matches!(error, Error::NoSuchDevice { count: 2, .. }), "{error}");
    }
    for call in ["cuInit", "cuDriverGetVersion", "cuDeviceGetCount"] {
        mock.fail(call, Some(0));
        assert!(load().is_err(), "{call}");
    }
    for call in [
        "cuDeviceGet",
        "cuDevicePrimaryCtxRetain",
        "cuCtxPushCurrent",
        "cuModuleLoadData",
        "cuModuleGetFunction",
    ] {
        mock.fail(call, Some(0));
        let error = Device::of(&mock.driver, 0).unwrap_err();
        assert!(error.to_string().starts_with(call), "{call}: {error}");
    }
    assert_eq!(Device::of(&mock.driver, 1).unwrap().name(), "emulator 1");
    mock.assert_sound();
}

#[test]
#[allow(unsafe_code)]
fn tensors_are_checked_before_they_are_used() {
    let Some(mock) = mock_driver() else { return };
    let device = mock.device();
    let (memory, other) = (mock.memory(0, 4096), mock.memory(1, 4096));
    let at = memory.address;
    let tensor = |address, dtype, shape: &[u64]| {
        // SAFETY: the tensor is not read.
        match unsafe { DeviceTensor::from_raw(&device, address, dtype, shape) } {
            Ok(_) => None,
            Err(Error::Tensor(e)) => Some(e),
            Err(e) => panic!("{e}"),
        }
    };
    assert_eq!(tensor(at, Dtype::F32, &[32, 32]), None);
    assert_eq!(tensor(at + 2, Dtype::Bf16, &[2047]), None);
    assert_eq!(tensor(0, Dtype::F16, &[0, 7]), None);
    assert_eq!(tensor(at, Dtype::F64, &[1]), Some(TensorError::Dtype(Dtype::F64)));
    assert_eq!(tensor(at + 2, Dtype::F32, &[1]), Some(TensorError::Alignment { address: at + 2 }));
    assert_eq!(tensor(at, Dtype::F32, &[1025]), Some(TensorError::Bounds { address: at + 4099 }));
    assert_eq!(tensor(0, Dtype::F32, &[1]), Some(TensorError::Bounds { address: 0 }));
    assert_eq!(tensor(u64::MAX - 3, Dtype::F32, &[2]), Some(TensorError::Bounds { address: u64::MAX - 3 }));
    assert_eq!(tensor(at, Dtype::F32, &[1 << 33, 1 << 33]), Some(TensorError::Shape));
    assert_eq!(tensor(at, Dtype::F32, &[1 << 62]), Some(TensorError::Shape));
    let elsewhere = TensorError::Device { found: 1, expected: 0 };
    assert_eq!(tensor(other.address, Dtype::F32, &[4]), Some(elsewhere));
    // Host memory is not device memory.
    let host = [0u32; 4];
    let address = host.as_ptr().expose_provenance() as u64;
    assert_eq!(tensor(address, Dtype::F32, &[4]), Some(TensorError::Bounds { address }));
    // A tensor of one device, a compressor of another.
    let shape = [4];
    let second = Device::of(&mock.driver, 1).unwrap();
    let data = other.tensor(&second, 0, Dtype::F32, &shape);
    let mut compressor = Compressor::new(&device).unwrap();
    let codec: Codec = "topk:k=1".parse().unwrap();
    let inputs = [Input { tensor: 0, name: "w", data }];
    let error = compressor.compress(&inputs, &[codec], &Options::default(), Stream::DEFAULT).unwrap_err();
    assert_eq!(error.to_string(), "the tensor is on device 1, not 0");
}

/// Each driver call of an update fails once. Residuals are then unchanged, and the next update is right.
#[test]
fn any_call_may_fail() {
    let Some(mock) = mock_driver() else { return };
    let device = mock.device();
    let before = mock.allocations();
    // All parts of an update: fits, means, rounded values.
    let shapes: [[u64; 1]; 3] = [[10_000], [300], [900]];
    let codecs = ["topk:k=20,values=bf16", "sbc:k=5", "sidco:k=20,fit=gamma-gp,stages=authors"];
    let codecs: [Codec; 3] = codecs.map(|s| s.parse().unwrap());
    let bytes: Vec<_> = shapes.iter().map(|[n]| encode(Dtype::F32, &normal(*n as usize, *n))).collect();
    let memories: Vec<_> = bytes.iter().map(|b| mock.upload(b, 0)).collect();
    let names = ["v", "w", "x"];
    let inputs: Vec<_> = (0..3)
        .map(|t| Input {
            tensor: t as u64,
            name: names[t],
            data: memories[t].tensor(&device, 0, Dtype::F32, &shapes[t]),
        })
        .collect();
    let host: Vec<_> = (0..3)
        .map(|t| {
            let view = TensorView::new(Dtype::F32, &shapes[t], &bytes[t]).unwrap();
            HostInput { tensor: t as u64, name: names[t], view, base: None }
        })
        .collect();
    let options = Options::default();
    let mut feedback = Feedback::new();
    compress(&host, &codecs, &options, Some(&mut feedback)).unwrap();
    let mut after = feedback.clone();
    let expected = compress(&host, &codecs, &options, Some(&mut after)).unwrap();
    for (call, least) in [
        ("cuMemAlloc", 4),
        ("cuMemHostAlloc", 2),
        ("cuLaunchKernel", 14),
        ("cuMemcpyHtoD", 3),
        ("cuMemcpyDtoH", 3),
        ("cuMemsetD8", 1),
        ("cuStreamSynchronize", 3),
        ("cuEventRecord", 1),
        ("cuCtxPushCurrent", 1),
    ] {
        let mut failures = 0;
        loop {
            let mut compressor = Compressor::new(&device).unwrap();
            compressor.set_residuals(&feedback).unwrap();
            let mut update = |mock: &MockDriver| {
                compressor.compress_with_feedback(&inputs, &codecs, &options, mock.stream())
            };
            mock.fail(call, Some(failures));
            let result = update(&mock);
            mock.fail(call, None);
            match result {
                Err(Error::OutOfMemory { pinned, bytes }) => {
                    assert_eq!(pinned, call == "cuMemHostAlloc");
                    assert!(call.starts_with("cuMem") && bytes > 0);
                }
                Err(Error::Call { call: said, .. }) => assert!(said.starts_with(call), "{said}"),
                Err(other) => panic!("{call}: {other}"),
                Ok(blocks) => {
                    assert_eq!(blocks, expected);
                    break;
                }
            }
            assert_eq!(compressor.residuals().unwrap(), feedback, "{call} {failures}");
            let blocks = compressor.compress_with_feedback(&inputs, &codecs, &options, mock.stream());
            assert_eq!(blocks.unwrap(), expected, "{call} {failures}");
            assert_eq!(compressor.residuals().unwrap(), after, "{call} {failures}");
            failures += 1;
        }
        assert!(failures >= least, "{call}: {failures}");
    }
    // Invalid updates leave residuals unchanged too: a shape that changed, two tensors of one name.
    let mut compressor = Compressor::new(&device).unwrap();
    compressor.set_residuals(&feedback).unwrap();
    let shape = [100, 100];
    let reshaped = Input { data: memories[0].tensor(&device, 0, Dtype::F32, &shape), ..inputs[0] };
    let twice = Input { name: "v", ..inputs[1] };
    for wrong in [[reshaped, inputs[1], inputs[2]], [inputs[0], twice, inputs[2]]] {
        let got = compressor.compress_with_feedback(&wrong, &codecs, &options, Stream::DEFAULT);
        assert!(matches!(got, Err(Error::Codec(_))));
        assert_eq!(compressor.residuals().unwrap(), feedback);
    }
    drop(compressor);
    drop(memories);
    assert_eq!(mock.allocations(), before, "memory leaks");
    mock.assert_sound();
}

/// Work of another stream is done first, without a wait of the host.
#[test]
fn one_stream_waits_for_another() {
    let Some(mock) = mock_driver() else { return };
    let device = mock.device();
    let (theirs, ours) = (mock.stream(), mock.stream());
    let bytes = encode(Dtype::F32, &normal(500, 1));
    let (from, to) = (mock.pinned(&bytes), mock.memory(0, bytes.len()));
    mock.copy_late(&to, from, bytes.len(), theirs);
    mock.reset_counts();
    device.order(theirs, theirs).unwrap();
    assert_eq!(mock.count("cuEventRecord"), 0);
    device.order(theirs, ours).unwrap();
    assert_eq!(mock.count("cuStreamSynchronize") + mock.count("cuEventSynchronize"), 0);
    assert_ne!(to.read(), bytes);
    mock.finish(ours);
    assert_eq!(to.read(), bytes);
    mock.fail("cuStreamWaitEvent", Some(0));
    assert!(matches!(device.order(ours, theirs), Err(Error::Call { call: "cuStreamWaitEvent", .. })));
    assert_eq!(mock.driver.device_of(to.address + 3), Some(0));
    assert_eq!(mock.driver.device_of(from), None);
    mock.unpin(from);
    mock.assert_sound();
}

/// Undoing an update restores the residuals from before it, also if there were none.
#[test]
fn an_update_can_be_undone() {
    let Some(mock) = mock_driver() else { return };
    let device = mock.device();
    let (shape, codec): (_, Codec) = ([900], "topk:k=9,values=bf16".parse().unwrap());
    let memory = mock.upload(&encode(Dtype::F32, &normal(900, 1)), 0);
    let inputs = [Input { tensor: 0, name: "w", data: memory.tensor(&device, 0, Dtype::F32, &shape) }];
    let mut compressor = Compressor::new(&device).unwrap();
    let mut before = Feedback::new();
    for _ in 0..3 {
        let options = Options::default();
        let mut update = || compressor.compress_with_feedback(&inputs, &[codec], &options, Stream::DEFAULT);
        let blocks = update().unwrap();
        compressor.undo();
        assert_eq!(compressor.residuals().unwrap(), before);
        compressor.undo();
        assert_eq!(compressor.residuals().unwrap(), before);
        let again = compressor.compress_with_feedback(&inputs, &[codec], &options, Stream::DEFAULT);
        assert_eq!(again.unwrap(), blocks);
        let after = compressor.residuals().unwrap();
        assert_ne!(after, before);
        before = after;
    }
    mock.assert_sound();
}
