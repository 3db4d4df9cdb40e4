//! Limits, and the library's defaults.

use gcodec::Limits;
use gcodec::compress::senders::DgcOptions;
use pyo3::prelude::*;
use pyo3::types::PyDict;

macro_rules! limits {
    ($($field:ident $with:ident)*) => {
        /// The attributes of a `gcodec.Limits`.
        #[derive(FromPyObject)]
        pub(crate) struct PyLimits { $($field: u64,)* }

        impl PyLimits {
            pub(crate) fn get(&self) -> Limits {
                Limits::default()$(.$with(self.$field))*
            }
        }

        /// Returns the library's default limits, by name.
        #[pyfunction]
        pub(crate) fn default_limits(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
            let (limits, out) = (Limits::default(), PyDict::new(py));
            $(out.set_item(stringify!($field), limits.$field)?;)*
            Ok(out)
        }
    };
}

limits! {
    max_frame_bytes with_max_frame_bytes
    max_tensors with_max_tensors
    max_rank with_max_rank
    max_name_bytes with_max_name_bytes
    max_elements with_max_elements
    max_alloc_bytes with_max_alloc_bytes
    max_blocks with_max_blocks
    max_inflated_bytes with_max_inflated_bytes
    max_definitions with_max_definitions
}

/// Returns the library's default options of Deep Gradient Compression, by name, without `values` and
/// `positions`.
#[pyfunction]
pub(crate) fn default_dgc(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let (options, out) = (DgcOptions::default(), PyDict::new(py));
    out.set_item("density", options.density)?;
    out.set_item("warm_up", options.warm_up)?;
    out.set_item("warm_up_steps", options.warm_up_steps)?;
    // The f64 of the shortest decimal, 0.9, instead of the f64 that equals the f32.
    out.set_item("momentum", options.momentum.to_string().parse::<f64>().unwrap_or(f64::NAN))?;
    out.set_item("clip", options.clip)?;
    out.set_item("workers", options.workers)?;
    Ok(out)
}
