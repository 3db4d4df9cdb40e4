//! `docs/compressors.md`: every compressor, its paper, and what it costs on real gradients.

use std::fmt::Write;

use gcodec::{Codec, Dtype, Positions, TensorBuf};

use super::dumps::Dump;
use super::sizes::{kept, measure_codec};
use crate::Result;

/// A row of the table: one setting of one codec.
struct Row {
    spec: &'static str,
    paper: &'static str,
    block: &'static str,
    /// What the paper, or the code of its authors, counts.
    published: &'static str,
    /// Where its claims are tested.
    tests: &'static str,
}

const fn row(
    spec: &'static str,
    paper: &'static str,
    block: &'static str,
    published: &'static str,
    tests: &'static str,
) -> Row {
    Row { spec, paper, block, published, tests }
}

const ROWS: &[Row] = &[
    row("raw", "", "all x floats", "32 bits each", "`--test roundtrip`"),
    row(
        "lossless",
        "",
        "all x planes",
        "ZipNN: 83 % of f32, 66 % of bf16",
        "`--lib lossless`, `cargo xtask measure`",
    ),
    row(
        "topk:density=0.01,values=f32",
        "Deep Gradient Compression, 1712.01887",
        "gaps x floats",
        "64 bits kept (32 position, 32 value)",
        "`--lib top_k`",
    ),
    row("topk:density=0.01,values=bf16", "", "gaps x floats", "48 bits kept", "`--lib top_k`"),
    row(
        "topk:density=0.0039,values=pow2",
        "Natural Compression, 1905.10988, with top-k",
        "gaps x pow2",
        "40 bits kept",
        "`--test natural`",
    ),
    row(
        "stc:density=0.01",
        "Sparse Ternary Compression, 1903.02891",
        "gaps x sign",
        "9.11 bits kept, 351x",
        "`--test compressors ternary`",
    ),
    row(
        "sbc:density=0.01",
        "Sparse Binary Compression, 1805.08768",
        "gaps x constant",
        "8.38 bits kept (8.11 by its formula)",
        "`--test senders`, `--lib sbc`",
    ),
    row(
        "sbc:density=0.001",
        "",
        "gaps x constant",
        "11.49 bits kept, 2569x",
        "`--test senders`, `--lib sbc`",
    ),
    row(
        "sidco:density=0.001",
        "SIDCo, 2101.10761",
        "gaps x floats",
        "64 bits kept; k'/k within 20 %",
        "`--lib sidco`",
    ),
    row(
        "randk:density=0.01",
        "random-k, 1809.07599",
        "seed x floats",
        "32 bits kept",
        "`--test compressors random_elements`",
    ),
    row(
        "chunked:chunk=4096,kept=64,values=code2",
        "SparseLoCo, 2508.15706",
        "gaps or chunked x codebook",
        "14 bits kept (20 stored)",
        "`--test compressors chunks`",
    ),
    row(
        "demo:chunk=64,kept=32",
        "DeMo, 2411.19870",
        "all x dct of (gaps x sign)",
        "96 bits kept",
        "`--test demo`",
    ),
    row(
        "natural",
        "Natural Compression, 1905.10988",
        "all x pow2",
        "9 bits each, 3.56x",
        "`--test natural`, `--lib natural`, `cargo xtask measure`",
    ),
    row(
        "dither:levels=8,bucket=512",
        "natural dithering, 1905.10988",
        "all x levels",
        "5 bits each",
        "`--test compressors natural_dithering`",
    ),
    row("qsgd:bits=4,bucket=512", "QSGD, 1610.02132", "all x levels", "4.06 bits each", "`--lib qsgd`"),
    row(
        "terngrad",
        "TernGrad, 1705.07878",
        "all x levels",
        "1.58 bits each (8 stored)",
        "`--test compressors terngrad`",
    ),
    row(
        "sign",
        "signSGD with error feedback, 1901.09847",
        "all x sign",
        "1 bit each",
        "`--test compressors signs`",
    ),
    row("int8:group=256", "8-bit approximations, 1511.04561", "all x affine", "8 bits each", "`--lib int8`"),
    row(
        "powersgd:rank=4",
        "PowerSGD, 1905.13727",
        "all x low-rank",
        "32 r (n + m) / (n m) bits each",
        "`--test powersgd`",
    ),
];

/// The dumps that every codec is measured on.
const DUMPS: [&str; 2] = ["gpt_step0300_worker0", "resnet_step0200_worker0"];

/// The page; `dumps` must have those of [`DUMPS`].
pub(super) fn page(dumps: &[Dump]) -> Result<String> {
    let mut out = String::from(INTRODUCTION);
    let dumps = DUMPS.map(|name| dumps.iter().find(|dump| dump.name == name));
    let [Some(gpt), Some(resnet)] = dumps else { return Err("the dumps of the table are not there".into()) };
    for row in ROWS {
        let [a, b] = [measured(gpt, row.spec)?, measured(resnet, row.spec)?];
        let paper = if row.paper.is_empty() { String::new() } else { row.paper.to_owned() };
        writeln!(
            out,
            "| `{}` | {paper} | {} | {} | {a} | {b} | {} |",
            row.spec, row.block, row.published, row.tests
        )?;
    }
    out.push_str(PROTOCOLS);
    Ok(out)
}

/// Bits per parameter, per kept element where that says something, ratio to f32, and relative error.
fn measured(dump: &Dump, spec: &str) -> Result<String> {
    let codec: Codec = spec.parse()?;
    let (cost, tensors) = measure_codec(dump, spec, Positions::Auto)?;
    let (n, bits) = (dump.elements() as f64, cost.frames as f64 * 8.0);
    let k = kept(&tensors) as f64;
    // Of what is dense, or drawn without a look, zeros say nothing of what was kept.
    let sparse = k < n / 8.0 && !matches!(codec, Codec::RandK { .. });
    let each = if sparse { format!(" ({:.2} kept)", bits / k) } else { String::new() };
    let error = match codec.is_lossy() {
        true => format!(", error {:.3}", relative_error(&dump.tensors, &tensors)?),
        false => String::new(),
    };
    Ok(format!("{:.4}{each}, {:.1}x{error}", bits / n, dump.bytes() as f64 / cost.frames as f64))
}

/// Norm of the difference over norm of the original, all tensors as one vector.
fn relative_error(before: &[TensorBuf], after: &[TensorBuf]) -> Result<f64> {
    let (mut difference, mut whole) = (0.0, 0.0);
    for (a, b) in before.iter().zip(after) {
        debug_assert_eq!(a.dtype(), Dtype::F32);
        for (x, y) in a.view().to_f32()?.into_iter().zip(b.view().to_f32()?) {
            difference += f64::from(x - y).powi(2);
            whole += f64::from(x).powi(2);
        }
    }
    Ok((difference / whole).sqrt())
}

const INTRODUCTION: &str = "\
# The compressors

Made by `cargo xtask measure --write`. Each row is one setting of one codec, by the name that `gcodec encode --codec`, `gcodec bench` and
`str::parse::<Codec>` take; arXiv numbers stand for the papers. *Support x values* is what the update says (`spec/README.md`). The two measured columns
are of one update of a transformer's gradient (`gpt_step0300_worker0`) and a ResNet18's (`resnet_step0200_worker0`) from the public set, all bytes of
its frames counted: bits per parameter, bits per element that was kept where most are not, ratio to 32-bit floats, and the norm of what one
update loses over the norm of the gradient: error feedback sends it later, and what that does to training is in [study.md](study.md). The column
*tests* is what `cargo test` takes to run the tests of the row's claims.

| codec | paper | support x values | published | transformer | ResNet18 | tests |
|---|---|---|---|---|---|---|
";

const PROTOCOLS: &str = "
## Senders with a state, and protocols between workers

A codec compresses one update. What a sender keeps between updates is in `gcodec::compress`; all of it can be saved and loaded.

| type | paper | what it keeps, and does | tests |
|---|---|---|---|
| `Feedback` | error feedback, arXiv 1901.09847 and before | residuals, by tensor, for every lossy codec | `--lib residual`, `--test compressors` |
| `Dgc` | Deep Gradient Compression, arXiv 1712.01887 | momentum correction, momentum masking, clipping, warm-up | `--test compressors momentum` |
| `Sbc` | Sparse Binary Compression, arXiv 1805.08768 | communication delay, residual; `mask_momenta` for the optimiser's momentum | `--test senders` |
| `scalecom::Worker` | ScaleCom, arXiv 2104.11125 | CLT-k: rotating leader, one index set, values that add; low-pass memory | `--test scalecom` |
| `onebit::{Worker, Server}` | 1-bit Adam, arXiv 2102.02888 | warm-up, frozen variance, signs of the momentum in both directions | `--test onebit` |
| `powersgd::Worker` | PowerSGD, arXiv 1905.13727 | warm start, two rounds of factors that add | `--test powersgd` |
| `DeMo` | DeMo, arXiv 2411.19870 | decoupled momentum: what was sent of its cosine transform leaves it | `--test demo` |
| `gcodec-latent` | Learned Gradient Compression, arXiv 2103.08870 | three phases, parameter server and ring; [latent.md](latent.md) | `-p gcodec-latent` |

How many workers' updates become one: `gcodec reduce` and `gcodec::reduce` (`--test reduce`).
";
