//! The learned codec: `lgc:model=..` of `encode`, models for commands that read values, and errors of both.

use crate::fail::{Code, Failure, InFile, Result};
use crate::input::{DEFAULT_MAX_BYTES, Input};
use crate::naming::{did_you_mean, parse_codec};
use crate::stream::only;
use crate::tensors::kind::is_stream;
use gcodec::Codec;
use gcodec::block::CodedBlock;
use gcodec::frame::{FrameKind, Manifest, UpdatePart};
use gcodec::stream::{Body, Event, SliceReader};
use gcodec_latent::{CodeFormat, Encoding, Error, Limits, Model, Models, encode_blocks, without_latent};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// `--codec` of `encode`.
#[derive(Debug, Clone)]
pub(crate) enum Chosen {
    /// A codec of the library.
    Codec(Codec),
    /// The learned codec.
    Learned(Learned),
}

/// `lgc:model=FILE[,density=D][,codes=F][,innovation=I][,inline=yes]`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Learned {
    model: PathBuf,
    /// Choice of the values that become codes.
    top_k: Codec,
    codes: CodeFormat,
    innovation: f64,
    /// Whether the stream carries the model.
    pub(crate) inline: bool,
}

const KEYS: [&str; 5] = ["model", "density", "codes", "innovation", "inline"];

impl FromStr for Chosen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("lgc").filter(|rest| rest.is_empty() || rest.starts_with(':')) {
            Some(rest) => parse(rest.trim_start_matches(':')).map(Self::Learned),
            None => parse_codec(text).map(Self::Codec),
        }
    }
}

impl Chosen {
    /// Returns the codec of the library that chooses the values.
    pub(crate) fn codec(&self) -> Codec {
        match self {
            Self::Codec(codec) => *codec,
            Self::Learned(learned) => learned.top_k,
        }
    }

    /// Returns the learned codec.
    pub(crate) fn learned(&self) -> Option<&Learned> {
        match self {
            Self::Codec(_) => None,
            Self::Learned(learned) => Some(learned),
        }
    }
}

fn parse(options: &str) -> Result<Learned, String> {
    let (mut model, mut density) = (None, "0.01");
    let (mut codes, mut innovation, mut inline) = (CodeFormat::Int8, 0.1, false);
    for option in options.split(',').filter(|option| !option.is_empty()) {
        let (key, value) = option.split_once('=').ok_or_else(|| format!("{option:?} is not KEY=VALUE"))?;
        match key {
            "model" => model = Some(PathBuf::from(value)),
            "density" => density = value,
            "codes" => {
                codes = match value {
                    "f32" => CodeFormat::F32,
                    "f16" => CodeFormat::F16,
                    "bf16" => CodeFormat::Bf16,
                    "int8" => CodeFormat::Int8,
                    _ => return Err(format!("codes={value}: use f32, f16, bf16 or int8")),
                }
            }
            "innovation" => {
                let part = value.parse().ok().filter(|part| (0.0..=1.0).contains(part));
                innovation = part.ok_or_else(|| format!("innovation={value}: use a number from 0 to 1"))?;
            }
            "inline" => {
                inline = match value {
                    "yes" => true,
                    "no" => false,
                    _ => return Err(format!("inline={value}: use yes or no")),
                }
            }
            _ => {
                return Err(format!(
                    "lgc has no option {key:?}: it has {}{}",
                    KEYS.join(", "),
                    did_you_mean(key, KEYS)
                ));
            }
        }
    }
    let model = model.ok_or("lgc needs model=FILE, which `gcodec model train` makes")?;
    let top_k = parse_codec(&format!("topk:density={density}"))?;
    Ok(Learned { model, top_k, codes, innovation, inline })
}

/// The learned codec with its model.
pub(crate) struct Encoder {
    encoding: Encoding,
    pub(crate) inline: bool,
}

impl Encoder {
    pub(crate) fn open(learned: &Learned) -> Result<Self> {
        let encoding = Encoding::new(open(&learned.model)?)
            .with_codes(learned.codes)
            .with_innovation(learned.innovation);
        Ok(Self { encoding, inline: learned.inline })
    }

    pub(crate) fn frame(&self) -> gcodec::frame::Model {
        self.encoding.model.frame("lgc")
    }

    /// Replaces the values of sparse blocks by codes.
    pub(crate) fn encode(
        &self,
        blocks: Vec<CodedBlock>,
        manifest: &Manifest,
        sender: u64,
    ) -> Result<Vec<CodedBlock>> {
        encode_blocks(blocks, manifest, &self.encoding.clone().with_sender(sender)).map_err(failure)
    }

    /// Label of the updates.
    pub(crate) fn label(&self) -> String {
        format!("lgc:model={}", self.encoding.model.id())
    }
}

/// Reads a model.
pub(crate) fn open(path: &Path) -> Result<Arc<Model>> {
    read(&Input::open(path, DEFAULT_MAX_BYTES)?).in_file(path)
}

fn read(bytes: &[u8]) -> Result<Arc<Model>> {
    Model::from_bytes(bytes, &Limits::default()).map(Arc::new).map_err(failure)
}

/// Models for commands that read values.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct ModelArgs {
    /// Model of latent codes, or a stream that carries it; may be repeated
    #[arg(long = "model", value_name = "FILE")]
    paths: Vec<PathBuf>,
}

impl ModelArgs {
    /// Reads the models.
    pub(crate) fn models(&self) -> Result<Models> {
        let mut models = Models::new();
        for path in &self.paths {
            let bytes = Input::open(path, DEFAULT_MAX_BYTES)?;
            if !is_stream(&bytes) {
                models.add(read(&bytes).in_file(path)?);
            } else if !add_inline(&mut models, &bytes, &gcodec::Limits::default()).in_file(path)? {
                return Err(Failure::usage("the stream carries no model")).in_file(path);
            }
        }
        Ok(models)
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }
}

/// Adds the models that a stream carries, up to an error of the stream; returns whether there is one.
pub(crate) fn add_inline(models: &mut Models, bytes: &[u8], limits: &gcodec::Limits) -> Result<bool> {
    let bytes = only(bytes, &[FrameKind::MODEL]);
    let (mut reader, mut found) = (SliceReader::new(&bytes, limits.clone()), false);
    // The frames of models alone have no end. A damaged one counts as missing.
    while let Ok(Some(event)) = reader.next_event() {
        let Event::Frame(_, Body::Model(frame)) = event else { continue };
        match Model::from_frame(&frame, &Limits::default()) {
            Ok(model) => models.add(model.into()),
            // Another format, or only a location: its codes are reported as those of a missing model.
            Err(Error::Input(_) | Error::MissingModel(_)) => continue,
            Err(e) => return Err(failure(e).about("a model in the stream")),
        }
        found = true;
    }
    Ok(found)
}

/// Returns an update without codes as a stream of its own; nothing if it has none.
pub(crate) fn decoded(parts: &[UpdatePart<'_>], models: &Models) -> Result<Option<Vec<u8>>> {
    without_latent(parts, models).map_err(failure)
}

/// Converts an error of the learned codec.
pub(crate) fn failure(error: Error) -> Failure {
    match error {
        Error::Gcodec(e) => e.into(),
        Error::Limit { .. } => Failure::limit(error),
        Error::MissingModel(_) => {
            Failure::usage(format_args!("{error}: the stream does not carry it; give it with --model"))
        }
        Error::Input(_) => Failure::usage(error),
        _ => Failure::new(Code::Invalid, error),
    }
}
