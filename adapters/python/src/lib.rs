//! The native module of the Python package `gcodec`: the library, for tensors that come through DLPack.
//!
//! The Python files beside this crate are its only users. `gcodec/_native.pyi` documents the module.

mod align;
mod command;
mod cuda;
mod decode;
mod digests;
mod dlpack;
mod encode;
mod errors;
mod feedback;
mod file;
mod flat;
mod inspect;
mod lgc;
mod limits;
mod named;
mod patches;
mod reduce;
mod reserved;
mod scalecom;
mod sets;
mod store;
mod tensor;
mod threads;
mod update;
mod versions;

use pyo3::prelude::*;

/// Aligns buffers to 64 bytes, so that JAX takes them without a copy.
#[global_allocator]
static ALLOCATOR: align::Aligned = align::Aligned;

#[pymodule]
mod _native {
    use super::*;

    #[pymodule_export]
    use crate::command::command;
    #[pymodule_export]
    use crate::cuda::{
        Lent, cuda_apply, cuda_sum_shares, device_of, lend, lend_at, load_driver, open, release, takes,
    };
    #[pymodule_export]
    use crate::decode::{Decoder, decode, shards};
    #[pymodule_export]
    use crate::digests::{Digests, sum_share, sum_weight};
    #[pymodule_export]
    use crate::encode::{Encoded, Encoder, canonical, is_lossy, library_encode};
    #[pymodule_export]
    use crate::feedback::{Dgc, Feedback};
    #[pymodule_export]
    use crate::file::File;
    #[pymodule_export]
    use crate::flat::Layout;
    #[pymodule_export]
    use crate::inspect::{inspect, stats};
    #[pymodule_export]
    use crate::lgc::{Lgc, without_codes};
    #[pymodule_export]
    use crate::limits::{default_dgc, default_limits};
    #[pymodule_export]
    use crate::named::without_prefix;
    #[pymodule_export]
    use crate::patches::{patch_groups, patches};
    #[pymodule_export]
    use crate::reduce::{head_bytes, reduce};
    #[pymodule_export]
    use crate::scalecom::ScaleCom;
    #[pymodule_export]
    use crate::sets::SharedSet;
    #[pymodule_export]
    use crate::store::{Replica, Store, Version};
    #[pymodule_export]
    use crate::tensor::Tensor;
    #[pymodule_export]
    use crate::threads::{num_threads, set_num_threads};
    #[pymodule_export]
    use crate::versions::Versions;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("WRAPPERS", gcodec::internal::WRAPPERS)?;
        // As Python writes it: 1.0.0rc2, not 1.0.0-rc.2.
        module.add("__version__", env!("CARGO_PKG_VERSION").replace("-rc.", "rc"))
    }
}
