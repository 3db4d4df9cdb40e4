//! Errors of the library as the exceptions of `gcodec/errors.py`.

use gcodec::Error;
use gcodec::error::{InputErrorKind, Location};
use gcodec::frame::{Manifest, TensorInfo};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Returns the class of the exception, and its `fault`.
fn party(error: &Error) -> (&'static str, &'static str) {
    match error {
        Error::Io(_) => ("IoError", "world"),
        Error::Format(_) => ("FormatError", "bytes"),
        Error::Unsupported(_) => ("UnsupportedError", "newer writer"),
        Error::Limit(_) => ("LimitError", "limits"),
        _ => ("InputError", "caller"),
    }
}

/// Returns the `kind` of the exception.
fn kind(error: &Error) -> &'static str {
    match error {
        // A trainer skips the step for both: a gradient beyond f32 is as lost as an infinite one.
        Error::Input(e)
            if matches!(e.kind, InputErrorKind::NonFinite { .. } | InputErrorKind::BeyondF32 { .. }) =>
        {
            "non_finite"
        }
        _ => error.name(),
    }
}

/// Returns the exception for an error. `manifest` has the names of the tensors.
pub(crate) fn raise(py: Python<'_>, error: Error, manifest: Option<&Manifest>) -> PyErr {
    raise_with(py, error, manifest, "")
}

fn raise_with(py: Python<'_>, error: Error, manifest: Option<&Manifest>, prefix: &str) -> PyErr {
    let (class, fault) = party(&error);
    let location = error.location();
    let tensor = match &error {
        Error::Input(e) => e.tensor,
        _ => location.and_then(|l| l.tensor),
    };
    let named = tensor.and_then(|t| Some(&manifest?.tensors().get(usize::try_from(t).ok()?)?.name));
    let hint = match (&error, manifest) {
        (Error::Input(e), Some(manifest))
            if matches!(e.kind, InputErrorKind::WrongDtype { what: "a lossy codec" }) =>
        {
            format!("; keep integers and booleans as they are, by rules={}", lossless_rules(manifest))
        }
        _ => String::new(),
    };
    let message = match named {
        Some(name) => format!("{prefix}tensor {name:?}: {error}{hint}"),
        None => format!("{prefix}{error}{hint}"),
    };
    let number = |of: fn(Location) -> Option<u64>| location.and_then(of);
    let exception = || -> PyResult<PyErr> {
        let keys = PyDict::new(py);
        keys.set_item("kind", kind(&error))?;
        keys.set_item("fault", fault)?;
        keys.set_item("offset", number(|l| Some(l.offset)))?;
        keys.set_item("frame", number(|l| l.frame))?;
        keys.set_item("block", number(|l| l.block))?;
        keys.set_item("tensor", tensor)?;
        if let Error::Io(e) = &error {
            keys.set_item("errno", e.raw_os_error())?;
        }
        let class = py.import("gcodec.errors")?.getattr(class)?;
        Ok(PyErr::from_value(class.call((message,), Some(&keys))?))
    };
    exception().unwrap_or_else(|e| e)
}

/// Returns rules that match the tensors which no lossy codec takes, and no other: one for all tensors with
/// the same last part of their names, where that matches no floats.
fn lossless_rules(manifest: &Manifest) -> String {
    let (floats, others): (Vec<_>, Vec<_>) = manifest.tensors().iter().partition(|t| t.dtype.is_float());
    let rule = |name: &str| match name.rsplit_once('.') {
        Some((_, last)) => {
            let of_float = |t: &&TensorInfo| t.name.rsplit_once('.').is_some_and(|(_, other)| other == last);
            match floats.iter().any(of_float) {
                true => escaped(name),
                false => format!("*.{}", escaped(last)),
            }
        }
        None => escaped(name),
    };
    let mut rules: Vec<String> = others.iter().map(|t| rule(&t.name)).collect();
    rules.sort();
    rules.dedup();
    let shown = rules.iter().take(RULES).map(|rule| format!("{rule:?}: \"lossless\""));
    let mut text = format!("{{{}}}", shown.collect::<Vec<_>>().join(", "));
    if rules.len() > RULES {
        text.push_str(&format!(" and {} more", rules.len() - RULES));
    }
    text
}

/// Rules that a message has, at most.
const RULES: usize = 16;

/// Returns the pattern that matches a name only.
fn escaped(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        match c {
            '*' | '?' | '[' => out.extend(['[', c, ']']),
            c => out.push(c),
        }
    }
    out
}

/// An error of a call whose tensors may be on devices.
#[derive(Debug)]
pub(crate) enum Failure {
    Codec(Error),
    /// A mistake of the caller that the library does not know.
    Input(String),
    /// An error of a device, and the number of the tensor concerned.
    Cuda(gcodec_cuda::Error, Option<u64>),
    /// An exception of Python code that the call called.
    Raised(PyErr),
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Self::Codec(e)
    }
}

impl From<PyErr> for Failure {
    fn from(e: PyErr) -> Self {
        Self::Raised(e)
    }
}

impl From<gcodec_cuda::Error> for Failure {
    fn from(e: gcodec_cuda::Error) -> Self {
        match e {
            gcodec_cuda::Error::Codec(e) => Self::Codec(e),
            e => Self::Cuda(e, None),
        }
    }
}

/// Returns the exception for a failure. `manifest` has the names of the tensors.
pub(crate) fn raise_failure(py: Python<'_>, failure: Failure, manifest: Option<&Manifest>) -> PyErr {
    match failure {
        Failure::Codec(e) => raise(py, e, manifest),
        Failure::Input(message) => input(py, &message),
        Failure::Raised(e) => e,
        Failure::Cuda(e, tensor) => {
            let at = tensor.and_then(|t| Some((t, &manifest?.tensors().get(usize::try_from(t).ok()?)?.name)));
            raise_cuda(py, e, at.map(|(t, name)| (t, name.as_str())))
        }
    }
}

/// Returns the exception for an error of a device. `at`: number and name of the tensor concerned.
pub(crate) fn raise_cuda(py: Python<'_>, error: gcodec_cuda::Error, at: Option<(u64, &str)>) -> PyErr {
    use gcodec_cuda::{Error as Cuda, TensorError as Tensor};
    let (class, fault, kind) = match &error {
        Cuda::NoDriver { .. } => ("DeviceError", "world", "no-driver"),
        Cuda::OldDriver { .. } => ("DeviceError", "world", "old-driver"),
        Cuda::NoDevice | Cuda::NoSuchDevice { .. } => ("DeviceError", "world", "no-device"),
        Cuda::OldDevice { .. } => ("DeviceError", "world", "old-device"),
        Cuda::OutOfMemory { .. } => ("DeviceError", "world", "out-of-memory"),
        Cuda::Tensor(e) => {
            let kind = match e {
                Tensor::Dtype(_) => "device-dtype",
                Tensor::Alignment { .. } => "misaligned",
                Tensor::Bounds { .. } => "not-device-memory",
                Tensor::Device { .. } => "wrong-device",
                _ => "input",
            };
            ("InputError", "caller", kind)
        }
        _ => ("DeviceError", "world", "cuda"),
    };
    if let Cuda::Codec(e) = error {
        return raise(py, e, None);
    }
    let message = match at {
        Some((_, name)) => format!("tensor {name:?}: {error}"),
        None => error.to_string(),
    };
    let exception = || -> PyResult<PyErr> {
        let keys = PyDict::new(py);
        keys.set_item("kind", kind)?;
        keys.set_item("fault", fault)?;
        keys.set_item("tensor", at.map(|(number, _)| number))?;
        let class = py.import("gcodec.errors")?.getattr(class)?;
        Ok(PyErr::from_value(class.call((message,), Some(&keys))?))
    };
    exception().unwrap_or_else(|e| e)
}

/// Returns the exception for an error in one of several streams, with the number of the stream.
pub(crate) fn raise_in(py: Python<'_>, error: Error, stream: Option<usize>) -> PyErr {
    raise_with(py, error, None, &stream.map(|number| format!("stream {number}: ")).unwrap_or_default())
}

/// Returns the exception for a mistake of the caller that the library does not know.
pub(crate) fn input(py: Python<'_>, message: &str) -> PyErr {
    let exception = || -> PyResult<PyErr> {
        let keys = PyDict::new(py);
        keys.set_item("kind", "input")?;
        keys.set_item("fault", "caller")?;
        let class = py.import("gcodec.errors")?.getattr("InputError")?;
        Ok(PyErr::from_value(class.call((message,), Some(&keys))?))
    };
    exception().unwrap_or_else(|e| e)
}
