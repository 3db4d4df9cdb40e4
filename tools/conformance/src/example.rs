//! The worked example of the spec: one small stream, encoded and annotated by `gcodec`, so that it stays up
//! to date.

use std::process::Command;

use gcodec::compress::{Input, Options, compress};
use gcodec::frame::{Manifest, Metadata, TensorInfo, UpdateHeader};
use gcodec::stream::{EncodeOptions, Encoder};
use gcodec::{Codec, Dtype, TensorBuf};

use crate::Result;
use crate::page::paragraph;
use crate::programs::gcodec;

#[derive(clap::Args)]
#[group(required = true)]
pub(crate) struct Args {
    /// Writes spec/examples.md.
    #[arg(long)]
    write: bool,
    /// Fails if spec/examples.md is out of date.
    #[arg(long)]
    check: bool,
}

const PAGE: &str = "spec/examples.md";

pub(crate) fn run(args: &Args) -> Result<()> {
    let root = crate::root();
    let text = page()?;
    let path = root.join(PAGE);
    if args.write {
        std::fs::write(&path, &text)?;
    }
    if args.check && std::fs::read_to_string(&path).unwrap_or_default() != text {
        return Err(format!("{PAGE} is not what `cargo xtask example --write` writes").into());
    }
    Ok(())
}

fn page() -> Result<String> {
    let stream = stream()?;
    let file = tempfile::Builder::new().suffix(".gcu").tempfile()?.into_temp_path();
    std::fs::write(&file, &stream)?;
    let output = Command::new(gcodec()?).args(["inspect", "--annotate"]).arg(&file).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    let annotated = String::from_utf8(output.stdout)?.replace(&file.display().to_string(), "example.gcu");
    let about = format!(
        "This page is informative. `cargo xtask example --write` makes it. It shows one stream of {} bytes: metadata, a \
         manifest of three tensors, and an update. In the update, Sparse Binary Compression sends 3 of the 32 elements \
         of `w`, `b` is sent as powers of two, and the counter `n` losslessly. The update also has a label, and the \
         segment ends in an index.",
        stream.len()
    );
    Ok(format!("# A worked example\n\n{}\n```text\n{}\n```\n", paragraph(&about), annotated.trim_end()))
}

/// Returns the example's bytes.
fn stream() -> Result<Vec<u8>> {
    let mut w = [0.01f32; 32];
    (w[3], w[4], w[20]) = (-0.5, -0.75, -0.25);
    let b = [0.5f32, -0.25, 0.0, 3.0];
    let tensors = [
        ("layer.w", TensorBuf::from_f32(vec![8, 4], &w)?, "sbc:k=3,positions=rice"),
        ("layer.b", TensorBuf::from_f32(vec![4], &b)?, "natural:seed=1"),
        ("n", TensorBuf::new(Dtype::U16, vec![], vec![0x39, 0x05])?, "raw"),
    ];
    let infos = tensors.iter().map(|(name, t, _)| TensorInfo::new(*name, t.dtype(), t.shape()));
    let manifest = std::sync::Arc::new(Manifest::new(infos.collect())?);
    let inputs: Vec<Input<'_>> = tensors
        .iter()
        .enumerate()
        .map(|(i, (name, t, _))| Input { tensor: i as u64, name, view: t.view(), base: None })
        .collect();
    let codecs =
        tensors.iter().map(|(_, _, codec)| Ok(codec.parse::<Codec>()?)).collect::<Result<Vec<_>>>()?;
    let blocks = compress(&inputs, &codecs, &Options::default(), None)?;
    let mut out = Vec::new();
    let mut encoder = Encoder::new(EncodeOptions::default());
    let mut metadata = Metadata::default();
    metadata.entries.insert("run".into(), "example".into());
    encoder.metadata(&mut out, &metadata);
    let header =
        UpdateHeader::default().with_step(300).with_sender(2).with_world(4).with_label("example".into());
    encoder.update(&mut out, &header, &manifest, &blocks)?;
    encoder.finish(&mut out);
    Ok(out)
}
