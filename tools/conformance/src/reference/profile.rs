//! The core profile: the reference decoder, as a reader of this profile alone, decodes what the command line
//! writes for it.

use std::path::Path;
use std::process::Command;

use super::cases::FAMILIES;
use super::compare;
use super::dump::Dump;
use crate::readers::run;
use crate::{Result, root};

/// Codecs without a form in the profile.
const REFUSED: [&str; 2] = ["demo", "powersgd"];

/// Encodes a gradient by each family of codecs in the profile. Returns the number of streams.
pub(super) fn check(gcodec: &Path, python: &Path, decoder: &Path, place: &Path) -> Result<usize> {
    let gradient = root().join("tools/cli/gradients/resnet_head_step0015_worker0.safetensors");
    let (stream, decoded) = (place.join("core.gcu"), place.join("core.safetensors"));
    let mut streams = 0;
    for codec in FAMILIES {
        let name = codec.split(':').next().unwrap_or_default();
        let mut encode = Command::new(gcodec);
        encode.args(["--quiet", "encode"]).arg(&gradient).arg("-o").arg(&stream);
        encode.args(["--profile", "core", "--codec", codec]);
        if REFUSED.contains(&name) {
            if encode.output()?.status.success() {
                return Err(format!("{codec} is not in the core profile, and was written").into());
            }
            continue;
        }
        run(&mut encode)?;
        run(Command::new(gcodec).args(["--quiet", "verify", "--profile", "core"]).arg(&stream))?;
        run(Command::new(gcodec).args(["--quiet", "decode"]).arg(&stream).arg("-o").arg(&decoded))?;
        let mut reference = Command::new(python);
        reference.arg(decoder).args(["--profile", "core", "--tensors"]).arg(&stream);
        let got = serde_json::from_slice(&run(&mut reference)?)?;
        compare(&got, &Dump::read(&decoded)?.as_json()).map_err(|e| format!("{codec}, core profile: {e}"))?;
        streams += 1;
    }
    Ok(streams)
}
