//! Writes a step of each phase of LGC, with four workers, as one stream for `gcodec inspect`:
//!
//!     cargo run --release -p gcodec-latent --example stream -- lgc.gcu

use std::error::Error;
use std::sync::Arc;

use gcodec::compress::{Amount, random};
use gcodec::frame::{Manifest, TensorInfo};
use gcodec::stream::{EncodeOptions, Encoder};
use gcodec::{Dtype, TensorBuf};
use gcodec_latent::protocol::{Begun, ProtocolOptions, Variant, Worker, classes};
use gcodec_latent::{Architecture, CodeFormat, Innovation};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("where to?")?;
    let shapes = [("first.weight", 64), ("body.weight", 20_000), ("body.bias", 200), ("last.weight", 500)];
    let infos = shapes.iter().map(|&(name, len)| TensorInfo::new(name, Dtype::F32, [len]));
    let manifest = Arc::new(Manifest::new(infos.collect())?);
    let settings = ProtocolOptions::new(Variant::Server, classes(&manifest)?)
        .with_amount(Amount::Density(0.01))
        .with_codes(CodeFormat::Int8)
        .with_full_steps(1)
        .with_top_k_steps(1);
    // Random weights: `gcodec model train` makes trained models.
    let model = Arc::new(Architecture::new(4, Innovation::Channel).with_width(8).init(1)?);
    let mut workers = (0..4)
        .map(|rank| Worker::new(&manifest, settings.clone(), rank, 4))
        .collect::<Result<Vec<_>, _>>()?;
    let (mut encoder, mut out) = (Encoder::new(EncodeOptions::default()), Vec::new());
    for step in 0..3 {
        if step == 2 {
            encoder.model(&mut out, &model.frame("not trained"))?;
            workers.iter_mut().try_for_each(|w| w.set_model(Arc::clone(&model)))?;
        }
        let mut set = None;
        for (rank, worker) in (0..).zip(&mut workers) {
            let number = |t, i| random::word(rank, 10 * step + t, i) as i32 as f32 / 2e9;
            let tensors = (0..)
                .zip(shapes)
                .map(|(t, (_, len))| {
                    TensorBuf::from_f32(
                        vec![len],
                        &(0..len).map(|i| number(t, i).powi(3)).collect::<Vec<_>>(),
                    )
                })
                .collect::<Result<Vec<_>, _>>()?;
            let views: Vec<_> = tensors.iter().map(TensorBuf::view).collect();
            if let Begun::Leader(own) = worker.begin(step, &views)? {
                set = Some(own);
            }
        }
        if let Some(set) = &set {
            let id = encoder.index_set(&mut out, set, &manifest, Default::default())?;
            workers.iter_mut().try_for_each(|w| w.take_set(set, id))?;
        }
        for worker in &mut workers {
            worker.send(&mut encoder, &mut out)?;
            worker.finish()?;
        }
    }
    encoder.finish(&mut out);
    std::fs::write(path, out)?;
    Ok(())
}
