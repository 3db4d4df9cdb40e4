//! Named tensors from Python.

use std::borrow::Cow;

use gcodec::{Dtype, TensorView};
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;

use crate::dlpack::Borrowed;
use crate::errors;

/// For each tensor: the name, an object with `__dlpack__`, and the element type if its library has no name
/// for it.
pub(crate) type Given<'py> = Vec<(String, Bound<'py, PyAny>, Option<String>)>;

/// A borrowed tensor and its name.
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) tensor: Borrowed,
}

/// Returns a name without a prefix, if it has it; modules of wrappers are left out within the name, too.
#[pyfunction]
pub(crate) fn without_prefix<'n>(name: &'n str, prefix: &str) -> Cow<'n, str> {
    gcodec::internal::without_prefix(name, prefix)
}

/// Borrows tensors.
pub(crate) fn borrow(given: Given<'_>) -> PyResult<Vec<Named>> {
    let named = given.into_iter().map(|(name, object, dtype)| {
        let declared = match dtype.as_deref().map(|d| (d, Dtype::from_name(d))) {
            None => None,
            Some((_, Some(dtype))) => Some(dtype),
            Some((text, None)) => {
                return Err(errors::input(object.py(), &format!("gcodec has no element type {text:?}")));
            }
        };
        let tensor = Borrowed::new(&object, declared).map_err(|e| in_tensor(object.py(), &name, e))?;
        Ok(Named { name, tensor })
    });
    named.collect()
}

/// Adds the name of a tensor to an error about its kind or its memory. Other exceptions stay what they are.
fn in_tensor(py: Python<'_>, name: &str, error: PyErr) -> PyErr {
    let message = format!("tensor {name:?}: {}", error.value(py));
    let kind = error.get_type(py);
    let new = match () {
        () if kind.is(py.get_type::<PyTypeError>()) => PyTypeError::new_err(message),
        () if kind.is(py.get_type::<PyBufferError>()) => PyBufferError::new_err(message),
        () => return error,
    };
    new.set_cause(py, Some(error));
    new
}

/// Returns row-major views of all tensors.
pub(crate) fn views(named: &mut [Named]) -> gcodec::Result<Vec<(&str, TensorView<'_>)>> {
    named.iter_mut().for_each(|n| n.tensor.gather());
    named.iter().map(|n| Ok((n.name.as_str(), n.tensor.view()?))).collect()
}
