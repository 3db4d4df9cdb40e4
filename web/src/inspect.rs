//! The modules of `gcodec inspect`, without its command line.

#[path = "../../tools/cli/src/inspect/against.rs"]
pub(crate) mod against;
#[path = "../../tools/cli/src/inspect/html/mod.rs"]
pub(crate) mod html;
#[path = "../../tools/cli/src/inspect/listing.rs"]
pub(crate) mod listing;
#[path = "../../tools/cli/src/inspect/opaque.rs"]
mod opaque;
#[path = "../../tools/cli/src/inspect/overview.rs"]
pub(crate) mod overview;
#[path = "../../tools/cli/src/inspect/placement.rs"]
mod placement;
#[path = "../../tools/cli/src/inspect/report.rs"]
pub(crate) mod report;
#[path = "../../tools/cli/src/inspect/source.rs"]
pub(crate) mod source;
#[path = "../../tools/cli/src/inspect/tensor.rs"]
pub(crate) mod tensor;
#[path = "../../tools/cli/src/inspect/update.rs"]
pub(crate) mod update;
#[path = "../../tools/cli/src/inspect/view.rs"]
pub(crate) mod view;

pub(crate) use report::{Report, Wanted};
pub(crate) use tensor::Tensor;
