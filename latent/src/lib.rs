//! Learned gradient compression (LGC, arXiv 2103.08870) for gcodec.
//!
//! The workers of a step agree on a set of positions, the leader's largest elements. An autoencoder turns
//! the values on this set into codes, a quarter as many numbers. Its decoders, one for each worker, restore
//! the values.
//!
//! - [`Model`]: encoder and decoders, as bytes with a hash (spec, `models/lgc-conv1d.md`), and their
//!   computation, which has the same bits on every machine. [`Architecture`] makes the paper's networks, and
//!   [`training`] trains them.
//! - [`encode_latent`], [`decode_latent`]: conversion of a block's values to latent codes and back;
//!   [`encode_blocks`], [`replace_codes`], [`without_latent`]: the same for blocks and whole updates.
//! - [`protocol`]: the three phases, with a parameter server or a ring, over gcodec's frames.
//!
//! ```
//! use gcodec_latent::{Architecture, CodeFormat, Innovation, Models, decode_latent, encode_latent};
//!
//! # fn main() -> gcodec_latent::Result<()> {
//! let model = Architecture::new(1, Innovation::None).with_width(4).init(7)?; // not trained
//! let values = [0.5, -0.25, 1.0];
//! let latent = encode_latent(&model, &values, CodeFormat::Bf16)?;
//! let mut models = Models::new();
//! models.add(model.into());
//! assert_eq!(decode_latent(&models, &latent, values.len(), 0)?.len(), 3);
//! # Ok(())
//! # }
//! ```

mod architecture;
mod codes;
mod error;
mod layer;
mod model;
mod network;
pub mod protocol;
pub mod training;
mod update;

pub use architecture::Architecture;
pub use codes::{CodeFormat, codes, decode_latent, encode_latent};
pub use error::{Error, Result};
pub use layer::{Conv, Layer};
pub use model::{FORMAT, Innovation, Limits, Model, Models};
pub use network::Network;
pub use update::{Encoding, encode_blocks, has_latent, replace_codes, without_latent};
