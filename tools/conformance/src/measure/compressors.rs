//! Writes `docs/compressors.md`: every compressor, its paper, and its size on real gradients.

use std::fmt::Write;

use gcodec::block::Positions;
use gcodec::{Codec, Dtype, TensorBuf};

use super::dumps::Dump;
use super::sizes::{kept, measure_codec};
use crate::Result;

/// A row of the table: one setting of one codec.
struct Row {
    spec: &'static str,
    paper: &'static str,
    block: &'static str,
    /// Size that the paper, or its authors' code, states.
    published: &'static str,
    /// Tests of its claims.
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
    row("raw", "", "all x floats", "32 bits each", "`--test properties roundtrip`"),
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
        "`--test compressors natural`",
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
        "`--test compressors senders`, `--lib sbc`",
    ),
    row(
        "sbc:density=0.001",
        "",
        "gaps x constant",
        "11.49 bits kept, 2569x",
        "`--test compressors senders`, `--lib sbc`",
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
        "seeded x floats",
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
        "`--test compressors demo`",
    ),
    row(
        "natural",
        "Natural Compression, 1905.10988",
        "all x pow2",
        "9 bits each, 3.56x",
        "`--test compressors natural`, `--lib natural`, `cargo xtask measure`",
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
        "`--test compressors powersgd`",
    ),
];

/// Dumps that every codec is measured on.
const DUMPS: [&str; 2] = ["gpt_step0300_worker0", "resnet_step0200_worker0"];

/// Returns the page; `dumps` must have those of [`DUMPS`].
pub(super) fn page(dumps: &[Dump]) -> Result<String> {
    let mut out = String::from(INTRODUCTION);
    let dumps = DUMPS.map(|name| dumps.iter().find(|dump| dump.name == name));
    let [Some(gpt), Some(resnet)] = dumps else { return Err("the dumps of the table are missing".into()) };
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

/// Formats bits per parameter, bits per kept element for sparse codecs, ratio to f32, and relative error.
fn measured(dump: &Dump, spec: &str) -> Result<String> {
    let codec: Codec = spec.parse()?;
    let (cost, tensors) = measure_codec(dump, spec, Positions::Auto)?;
    let (n, bits) = (dump.elements() as f64, cost.frames as f64 * 8.0);
    let k = kept(&tensors) as f64;
    // Zeros do not show the kept elements of a dense codec, or of random positions.
    let sparse = k < n / 8.0 && !matches!(codec, Codec::RandK { .. });
    let each = if sparse { format!(" ({:.2} kept)", bits / k) } else { String::new() };
    let error = match codec.is_lossy() {
        true => format!(", error {:.3}", relative_error(&dump.tensors, &tensors)?),
        false => String::new(),
    };
    Ok(format!("{:.4}{each}, {:.1}x{error}", bits / n, dump.bytes() as f64 / cost.frames as f64))
}

/// Returns the norm of the difference over the norm of the original, with all tensors as one vector.
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

Which compressors are there, and how small are their updates? `cargo xtask measure --write` makes this page.
Each row is one setting of one codec, with its name in `gcodec encode --codec`, `gcodec bench` and
`str::parse::<Codec>`. arXiv numbers refer to the papers. *Support x values* is the form of a block
(`spec/README.md`). The two measured columns are one update of a transformer's gradient
(`gpt_step0300_worker0`) and of a ResNet18's (`resnet_step0200_worker0`) from the public set. They count all
bytes of the update's frames: bits per parameter, bits per kept element for sparse codecs, the ratio to 32-bit
floats, and the relative error of one update in the L2 norm. Error feedback sends the lost part later;
[study.md](study.md) shows the effect on training. The column *tests* has arguments of `cargo test` that run
the tests of the row's claims.

| codec | paper | support x values | published | transformer | ResNet18 | tests |
|---|---|---|---|---|---|---|
";

const PROTOCOLS: &str = "
## Senders with a state, and protocols between workers

A codec compresses one update. The senders in `gcodec::compress::senders` keep a state between
updates, which can be saved and loaded.

| type | paper | state and method | tests |
|---|---|---|---|
| `Feedback` | error feedback, arXiv 1901.09847 and before | residuals, by tensor, for every lossy codec | `--lib residual`, `--test compressors` |
| `Dgc` | Deep Gradient Compression, arXiv 1712.01887 | momentum correction, momentum masking, clipping, warm-up | `--test compressors momentum` |
| `SbcSender` | Sparse Binary Compression, arXiv 1805.08768 | communication delay, residual; `mask_momenta` for the optimiser's momentum | `--test compressors senders` |
| `scalecom::ScaleComWorker` | ScaleCom, arXiv 2104.11125 | CLT-k: rotating leader, one index set, values that add; low-pass memory | `--test compressors scalecom` |
| `shared_set::SharedSetWorker` | sets of arXiv 2104.11125 and 2103.08870 | rotating leader, one index set, every worker's values in any form; momentum correction | `--test compressors shared_set` |
| `onebit::{OneBitWorker, OneBitServer}` | 1-bit Adam, arXiv 2102.02888 | warm-up, frozen variance, signs of the momentum in both directions | `--test compressors onebit` |
| `powersgd::PowerSgdWorker` | PowerSGD, arXiv 1905.13727 | warm start, two rounds of factors that add | `--test compressors powersgd` |
| `DeMo` | DeMo, arXiv 2411.19870 | decoupled momentum: sent cosine coefficients are subtracted from it | `--test compressors demo` |
| `gcodec-latent` | Learned Gradient Compression, arXiv 2103.08870 | three phases, parameter server and ring; [latent.md](latent.md) | `-p gcodec-latent` |

`gcodec reduce` and `gcodec::reduce` sum the updates of many workers (`--test properties reduce`).
";
