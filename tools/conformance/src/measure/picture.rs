//! Draws `docs/sizes.svg`: the bytes of one committed gradient, uncompressed and with gcodec. Writes the
//! table of profiles in `docs/sizes.md`.

use std::fmt::Write;

use gcodec::Codec;
use gcodec::compress::{Options, compress};
use gcodec::frame::UpdateHeader;
use gcodec::stream::{EncodeOptions, Encoder};

use super::dumps::Dump;
use super::profiles;
use crate::{Result, root};

#[derive(clap::Args)]
#[group(required = true)]
pub(crate) struct Args {
    /// Writes docs/sizes.svg, and the table of profiles in docs/sizes.md.
    #[arg(long)]
    write: bool,
    /// Fails unless both are what would be written.
    #[arg(long)]
    check: bool,
}

const PICTURE: &str = "docs/sizes.svg";
const GRADIENT: &str = "tools/cli/gradients/digits_convnet_step0030_worker0.safetensors";

pub(crate) fn run(args: &Args) -> Result<()> {
    let dump = Dump::load(&root().join(GRADIENT))?;
    let drawn = draw(&dump, &groups(&dump)?);
    let (found, page) = profiles::page()?;
    if args.write {
        std::fs::write(root().join(PICTURE), &drawn)?;
        profiles::write(&page)?;
    }
    if args.check && found != page {
        return Err("docs/sizes.md is not what `cargo xtask picture --write` writes".into());
    }
    if args.check && std::fs::read_to_string(root().join(PICTURE)).unwrap_or_default() != drawn {
        return Err(format!("{PICTURE} is not what `cargo xtask picture --write` writes").into());
    }
    Ok(())
}

/// Three ways to send the same values.
struct Group {
    title: &'static str,
    /// Name and bytes: as sent today, the same after zstd, gcodec.
    bars: [(String, usize); 3],
}

fn groups(dump: &Dump) -> Result<Vec<Group>> {
    let original = floats(dump, None)?;
    let group = |title, layout: &str, codec: &str, plain: &dyn Fn(&[f32]) -> Vec<u8>| {
        let plain = plain(&floats(dump, Some(codec))?);
        let packed = zstd::bulk::compress(&plain, 3)?.len();
        let bars = [
            (layout.to_owned(), plain.len()),
            (format!("{layout}, zstd -3"), packed),
            (format!("gcodec {codec}"), update_bytes(dump, codec)?),
        ];
        Ok::<_, Box<dyn std::error::Error>>(Group { title, bars })
    };
    let f32s = |x: &[f32]| x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>();
    Ok(vec![
        group("All elements, bit for bit", "f32", "lossless", &f32s)?,
        group("All elements, 8 bits", "int8, one f32 scale per 256", "int8", &|_| int8(&original))?,
        group("All elements, rounded to powers of two", "8-bit exponents, sign bits", "natural", &powers)?,
        group("Largest 10 %, f32", "int32 positions, f32", "topk:density=0.1", &|x| sparse(x, &f32s))?,
        group("Largest 10 %, bf16", "int32 positions, bf16", "topk:density=0.1,values=bf16", &|x| {
            sparse(x, &|kept| kept.iter().flat_map(|x| x.to_le_bytes()[2..].to_vec()).collect())
        })?,
        group(
            "Largest 10 %, signs and one mean",
            "int32 positions, sign bits, f32 mean",
            "stc:density=0.1",
            &|x| sparse(x, &|kept| [sign_bits(kept), kept[0].abs().to_le_bytes().to_vec()].concat()),
        )?,
    ])
}

/// All elements in the order of the tensors: the gradient itself, or what a receiver has after `codec`.
fn floats(dump: &Dump, codec: Option<&str>) -> Result<Vec<f32>> {
    let named = dump.manifest.tensors().iter().zip(&dump.tensors);
    let views: Vec<_> = named.map(|(info, t)| (info.name.as_str(), t.view())).collect();
    let Some(codec) = codec else {
        let tensors = views.iter().map(|(_, view)| Ok(view.to_f32()?)).collect::<Result<Vec<_>>>()?;
        return Ok(tensors.concat());
    };
    let decoded = gcodec::decode(&gcodec::encode(&views, &codec.parse()?)?)?;
    let tensors = decoded.iter().map(|(_, t)| Ok(t.view().to_f32()?)).collect::<Result<Vec<_>>>()?;
    Ok(tensors.concat())
}

/// Returns the bytes of an update frame, with headers and checksums. The manifest before it is sent once for
/// each stream.
fn update_bytes(dump: &Dump, codec: &str) -> Result<usize> {
    let inputs = dump.inputs();
    let codecs = vec![codec.parse::<Codec>()?; inputs.len()];
    let blocks = compress(&inputs, &codecs, &Options::default(), None)?;
    let (mut bytes, mut encoder) = (Vec::new(), Encoder::new(EncodeOptions::default()));
    let header = UpdateHeader::default();
    encoder.update(&mut bytes, &header, &dump.manifest, &blocks)?;
    let first = bytes.len();
    encoder.update(&mut bytes, &header.with_step(1), &dump.manifest, &blocks)?;
    Ok(bytes.len() - first)
}

/// A code from -127 to 127 for each element, and a scale for each 256.
fn int8(elements: &[f32]) -> Vec<u8> {
    let scale = |group: &[f32]| group.iter().fold(0.0f32, |max, x| max.max(x.abs())) / 127.0;
    let code = |x: &f32, scale: f32| if scale > 0.0 { (x / scale).round() as i8 as u8 } else { 0 };
    let groups = || elements.chunks(256).map(|group| (group, scale(group)));
    let codes = groups().flat_map(|(group, scale)| group.iter().map(move |x| code(x, scale)));
    codes.chain(groups().flat_map(|(_, scale)| scale.to_le_bytes())).collect()
}

/// The 9 bits for each element that the Natural Compression paper counts.
fn powers(elements: &[f32]) -> Vec<u8> {
    let mut bytes: Vec<u8> = elements.iter().map(|x| (x.to_bits() >> 23) as u8).collect();
    bytes.extend(sign_bits(elements));
    bytes
}

/// Positions of the elements that are not zero, and their values.
fn sparse(elements: &[f32], values: &dyn Fn(&[f32]) -> Vec<u8>) -> Vec<u8> {
    let kept = || elements.iter().zip(0u32..).filter(|(x, _)| **x != 0.0);
    let positions: Vec<u8> = kept().flat_map(|(_, position)| position.to_le_bytes()).collect();
    [positions, values(&kept().map(|(x, _)| *x).collect::<Vec<_>>())].concat()
}

fn sign_bits(elements: &[f32]) -> Vec<u8> {
    let byte =
        |eight: &[f32]| eight.iter().rev().fold(0, |byte, x| byte << 1 | u8::from(x.is_sign_negative()));
    elements.chunks(8).map(byte).collect()
}

/// The longest bar, in pixels.
const FULL: f64 = 330.0;
const STYLE: &str = "text{font:13px sans-serif;fill:#1f2328}.b{font-weight:bold}.s{font-size:12px}\
    .bg{fill:#fff}.a{fill:#818b98}.z{fill:#b7c0ca}.g{fill:#0969da}\
    @media(prefers-color-scheme:dark){text{fill:#e6edf3}.bg{fill:#0d1117}.a{fill:#818b98}.z{fill:#525964}.g{fill:#4493f8}}";

fn draw(dump: &Dump, groups: &[Group]) -> String {
    let title = "Bytes of one gradient: as sent today, after zstd, and with gcodec";
    let height = 80 + 92 * groups.len() + 32;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 760 {height}\" width=\"760\" height=\"{height}\" \
         role=\"img\">\n<title>{title}</title>\n<style>{STYLE}</style>\n\
         <rect class=\"bg\" width=\"760\" height=\"{height}\" rx=\"6\"/>\n\
         <text class=\"b\" x=\"20\" y=\"30\">{title}</text>\n\
         <text class=\"s\" x=\"20\" y=\"50\">{}, {} elements of f32. The bars of a group carry the same values.</text>\n",
        dump.name,
        thousands(dump.elements() as usize),
    );
    for (group, top) in groups.iter().zip((80..).step_by(92)) {
        let most = group.bars[0].1 as f64;
        let _ = writeln!(svg, "<text class=\"b\" x=\"20\" y=\"{top}\">{}</text>", group.title);
        for (((name, bytes), class), y) in group.bars.iter().zip(["a", "z", "g"]).zip((top + 8..).step_by(20))
        {
            let width = FULL * *bytes as f64 / most;
            let share = format!("{:.0} %", 100.0 * *bytes as f64 / most);
            let _ = writeln!(
                svg,
                "<rect class=\"{class}\" x=\"20\" y=\"{y}\" width=\"{width:.1}\" height=\"16\"/>\
                 <text class=\"s\" x=\"{:.1}\" y=\"{}\">{} bytes ({share}): {name}</text>",
                width + 26.0,
                y + 13,
                thousands(*bytes),
            );
        }
    }
    let _ = writeln!(
        svg,
        "<text class=\"s\" x=\"20\" y=\"{}\">gcodec: the whole update frame with headers and checksums; names and shapes are \
         sent once per stream.</text>\n</svg>",
        height - 18
    );
    svg
}

pub(super) fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let mut groups: Vec<&str> =
        digits.as_bytes().rchunks(3).filter_map(|g| std::str::from_utf8(g).ok()).collect();
    groups.reverse();
    groups.join(",")
}
