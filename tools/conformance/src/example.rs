//! The worked examples of the spec: small streams, encoded and annotated by `gcodec`, so that they stay up to
//! date.

mod classed;
mod segment;

use std::process::Command;
use std::sync::Arc;

use gcodec::block::{Block, BlockOptions, Floats, Positions, Scope, Sparse, Stored, Support, Values};
use gcodec::compress::{Input, Options, compress};
use gcodec::frame::{Manifest, Metadata, TensorInfo, UpdateHeader};
use gcodec::stream::{Body, EncodeOptions, Encoder, Event, SliceReader};
use gcodec::{Codec, Dtype, Limits, TensorBuf};

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
    let annotated = annotated(&stream)?;
    let about = format!(
        "This page is informative. `cargo xtask example --write` makes it. The first example is a stream of {} bytes: \
         metadata, a manifest of three tensors, and an update. In the update, Sparse Binary Compression sends 3 of the \
         32 elements of `w`, `b` is sent as powers of two, and the counter `n` losslessly. The update also has a \
         label, and the segment ends in an index. The second example decodes entropy-coded positions step by step, the others positions in classes.",
        stream.len()
    );
    let (tokens, classed) = (tokens()?, classed::section(self::annotated)?);
    Ok(format!(
        "# Worked examples\n\n{}\n## A stream\n\n```text\n{}\n```\n\n{tokens}\n{classed}",
        paragraph(&about),
        annotated.trim_end()
    ))
}

/// Returns what `gcodec inspect --annotate` prints for a stream.
fn annotated(stream: &[u8]) -> Result<String> {
    let file = tempfile::Builder::new().suffix(".gcu").tempfile()?.into_temp_path();
    std::fs::write(&file, stream)?;
    let output = Command::new(gcodec()?).args(["inspect", "--annotate"]).arg(&file).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    Ok(String::from_utf8(output.stdout)?.replace(&file.display().to_string(), "example.gcu"))
}

/// Positions of the second example: they cluster, as those of gradients do.
const POSITIONS: [u64; 16] = [3, 4, 5, 9, 10, 11, 12, 30, 31, 32, 33, 36, 120, 121, 122, 125];
const ELEMENTS: u64 = 200;

/// Returns the second example: a support of kind `gaps-tokens`, decoded step by step.
fn tokens() -> Result<String> {
    let manifest = Arc::new(Manifest::new(vec![TensorInfo::new("w", Dtype::F32, [ELEMENTS])])?);
    let block = Block {
        scope: Scope::Tensor(0),
        add: false,
        support: Support::Sparse(Sparse { positions: POSITIONS.to_vec() }),
        values: Values::Floats(Floats { stored: Stored::Bf16, bytes: vec![0; 2 * POSITIONS.len()] }),
    };
    let mut out = Vec::new();
    let mut encoder = Encoder::new(EncodeOptions::default().with_index(false));
    let options = BlockOptions::default().with_positions(Positions::Tokens);
    encoder.update(&mut out, &UpdateHeader::default(), &manifest, &[(&block, options)])?;
    encoder.finish(&mut out);
    let mut decoded = None;
    for event in SliceReader::new(&out, Limits::default()) {
        if let Event::Frame(_, Body::Update(part)) = event? {
            decoded = Some(segment::decode(part.blocks[0].support)?);
        }
    }
    let decoded = decoded.ok_or("the example has no update")?;
    if decoded.positions != POSITIONS {
        return Err(format!("the example's positions are {:?}", decoded.positions).into());
    }
    let annotated = annotated(&out)?;
    let support = annotated.lines().skip_while(|line| !line.trim().starts_with("support gaps-tokens"));
    let support: Vec<&str> = support.take_while(|line| !line.trim().starts_with("values")).collect();
    Ok(format!(
        "## A segment of tokens\n\n{}\n```text\n{}\n```\n\n{}\n{}\n{}\n{}\n{}",
        paragraph(&format!(
            "A block keeps {} of {ELEMENTS} elements. Its support is of kind `gaps-tokens` \
             (`supports/gaps-tokens.md`):",
            POSITIONS.len()
        )),
        support.join("\n"),
        paragraph("The frequency table (section 7.2) distributes the 4096 slots:"),
        decoded.frequencies(),
        paragraph(
            "There is one lane, so all steps use one state x. Its first value is the stored state. Each step takes the \
             token that owns the slot x mod 4096, and computes the next x as section 7.3 says; an x below 2^16 = 65536 \
             takes a word. A token from 4 on takes raw bits, written here with the highest first. The gap follows from \
             the token and the raw bits (section 7.1), and the position from the gap: it is the gap plus the position \
             before plus 1."
        ),
        decoded.steps(),
        paragraph("At the end, all words are consumed and x is 65536, as ANS-2 requires."),
    ))
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
    let manifest = Arc::new(Manifest::new(infos.collect())?);
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
