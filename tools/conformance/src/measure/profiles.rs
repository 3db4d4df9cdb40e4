//! The table of `docs/sizes.md` with the sizes of both profiles of the format.

use std::fmt::Write;

use gcodec::Codec;
use gcodec::block::Profile;
use gcodec::compress::{Options, compress};
use gcodec::error::{Error, InputError, InputErrorKind};
use gcodec::frame::UpdateHeader;
use gcodec::stream::{EncodeOptions, Encoder};

use super::dumps::Dump;
use super::picture::thousands;
use crate::{Result, root};

const PAGE: &str = "docs/sizes.md";
const BEGIN: &str = "<!-- profiles -->\n";
const END: &str = "<!-- end of profiles -->\n";

/// Gradients of the repository: a small network, and a layer of a transformer in bf16.
const GRADIENTS: [&str; 2] = ["digits_convnet_step0030_worker0", "gpt_attention_bf16_sync020"];

const CODECS: [&str; 12] = [
    "raw",
    "lossless",
    "int8",
    "natural",
    "qsgd",
    "terngrad",
    "sign",
    "topk:density=0.1,values=bf16",
    "stc:density=0.1",
    "sbc:density=0.01",
    "randk:density=0.1",
    "chunked:chunk=256,kept=16",
];

/// Returns the page as it is, and as it should be.
pub(super) fn page() -> Result<(String, String)> {
    let found = std::fs::read_to_string(root().join(PAGE))?;
    let parts = found.split_once(BEGIN).and_then(|(head, rest)| Some((head, rest.split_once(END)?.1)));
    let (head, tail) = parts.ok_or_else(|| format!("{PAGE} has no place for the table of profiles"))?;
    let text = format!("{head}{BEGIN}\n{}\n{END}{tail}", table()?);
    Ok((found, text))
}

pub(super) fn write(text: &str) -> Result<()> {
    Ok(std::fs::write(root().join(PAGE), text)?)
}

fn table() -> Result<String> {
    let folder = root().join("tools/cli/gradients");
    let dumps = GRADIENTS.map(|name| Dump::load(&folder.join(format!("{name}.safetensors"))));
    let dumps = dumps.into_iter().collect::<Result<Vec<_>>>()?;
    let mut out = "| codec |".to_owned();
    for dump in &dumps {
        let _ = write!(out, " {}, {} bytes: full | core |", dump.name, thousands(dump.bytes() as usize));
    }
    let _ = writeln!(out, "\n|---|{}", "---|".repeat(2 * dumps.len()));
    for codec in CODECS {
        let _ = write!(out, "| `{codec}` |");
        for dump in &dumps {
            let [full, core] = [Profile::Full, Profile::Core].map(|profile| bytes(dump, codec, profile));
            let (full, core) = (full?, core?);
            let more = 100.0 * (core as f64 / full as f64 - 1.0);
            let _ = write!(out, " {} | {} ({more:+.0} %) |", thousands(full), thousands(core));
        }
        out.push('\n');
    }
    // What the page says of these is checked, too.
    for codec in ["demo", "powersgd"] {
        let refused = bytes(&dumps[0], codec, Profile::Core).err().and_then(|e| e.downcast::<Error>().ok());
        let kind = refused
            .and_then(|e| if let Error::Input(InputError { kind, .. }) = *e { Some(kind) } else { None });
        if !matches!(kind, Some(InputErrorKind::BeyondCore { .. })) {
            return Err(
                format!("{codec} has a form in the core profile: {PAGE} says that it has none").into()
            );
        }
    }
    Ok(out)
}

/// Returns the bytes of an update frame, with headers and checksums. The manifest before it is sent once for
/// each stream.
fn bytes(dump: &Dump, codec: &str, profile: Profile) -> Result<usize> {
    let inputs = dump.inputs();
    let codecs = vec![codec.parse::<Codec>()?; inputs.len()];
    let blocks = compress(&inputs, &codecs, &Options::default(), None)?;
    let options = EncodeOptions::default().with_profile(profile);
    let (mut bytes, mut encoder) = (Vec::new(), Encoder::new(options));
    encoder.manifest(&mut bytes, &dump.manifest);
    let first = bytes.len();
    encoder.update(&mut bytes, &UpdateHeader::default(), &dump.manifest, &blocks)?;
    Ok(bytes.len() - first)
}
