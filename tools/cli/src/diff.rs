//! `gcodec diff`: compares two sets of tensors.

use crate::compare::{Errors, Sums};
use crate::fail::{Outcome, Result};
use crate::fit::{self, Prefixes};
use crate::learned::ModelArgs;
use crate::options::{LimitArgs, check_one_stdin};
use crate::output::{Align, Table, print, printable, real, thousands};
use crate::pairs::{self, Side};
use crate::tensors::{Any, Dump, Format, Label, Outline};
use gcodec::tensor::TensorView;
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::path::PathBuf;

/// Compare two files of tensors, tensor by tensor
///
/// Exits with 0 if they are equal, with 1 if they differ. Each is a file of tensors, a gcodec stream, an
/// index of shards, or the folder of a checkpoint.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  gcodec diff grad.safetensors decoded.safetensors
  gcodec diff grad.safetensors grad.gcu --rtol 0.01
  gcodec diff new.safetensors sync.gcu --base old.safetensors
  gcodec diff grad.safetensors grad.gcu --model model.lgc
  gcodec diff a.npz b.npz --all --json")]
pub(crate) struct Args {
    /// Reference: errors are relative to it. `-` is standard input
    a: PathBuf,
    /// File to compare with the reference. `-` is standard input
    b: PathBuf,
    /// Relative L2 error up to which tensors count as equal; without it, types and all bits must be equal
    #[arg(long, value_name = "ERROR", value_parser = parse_tolerance)]
    rtol: Option<f64>,
    /// Also print equal tensors, and all names of one side alone
    #[arg(long)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Step of the update, for a stream [default: the last update]
    #[arg(long, value_name = "N")]
    step: Option<u64>,
    /// Tensors that the stream's update applies to, if it is a delta
    #[arg(long, value_name = "FILE")]
    base: Option<PathBuf>,
    #[command(flatten)]
    prefixes: Prefixes,
    #[command(flatten)]
    models: ModelArgs,
    #[command(flatten)]
    limits: LimitArgs,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    check_one_stdin([&args.a, &args.b].into_iter().chain(&args.base))?;
    let base = args.base.as_deref().map(Dump::open_carrying).transpose()?;
    let base = args.prefixes.base(base.iter().flat_map(|dump| &dump.tensors));
    let limits = args.limits.limits();
    let models = args.models.models()?;
    let (a, b) = (Any::open_carrying(&args.a)?, Any::open_carrying(&args.b)?);
    let side = |any, path| Side::of(any, path, args.step, &base, &limits, &models);
    let faults = [(&a, &args.a), (&b, &args.b)].map(|(any, path)| match any {
        Any::Tensors(dump) => dump.fault().map(|failure| failure.in_file(path)),
        Any::Stream(_) => None,
    });
    let (a, b) = (side(&a, &args.a)?, side(&b, &args.b)?);
    // An .npy's tensor has no name but that of its file.
    let is_nameless = [&args.a, &args.b].iter().any(|path| Format::of_path(path) == Some(Format::Npy));
    let report = Report::new(&a, &b, &args.prefixes, args.rtol, is_nameless)?;
    if args.json {
        let json = serde_json::to_string_pretty(&report).map_err(std::io::Error::from)?;
        print(format_args!("{json}\n"))?;
    } else {
        print(report.text(args.all))?;
    }
    // Of what is missing, nobody knows whether it is equal.
    match faults.into_iter().flatten().next() {
        Some(failure) => Err(failure),
        None => Ok(if report.equal { Outcome::Well } else { Outcome::Differs }),
    }
}

/// Most names of one side alone that are listed without --all.
const ALONE: usize = 20;

/// Report of `diff`.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    equal: bool,
    /// Tensors in the order of A.
    tensors: Vec<TensorReport>,
    only_in_a: Vec<String>,
    only_in_b: Vec<String>,
    /// Tensors of both whose bytes a file does not tell.
    not_compared: Vec<String>,
    total: Total,
    /// Without which prefix more names match.
    advice: Option<String>,
}

/// A tensor that both sides have.
#[derive(Debug, Serialize)]
struct TensorReport {
    name: String,
    equal: bool,
    dtype_a: String,
    dtype_b: String,
    shape_a: Vec<u64>,
    shape_b: Vec<u64>,
    /// Number of elements that differ; of bytes for opaque tensors. `None` if the shapes differ, or if the
    /// element types differ and the values are not comparable.
    differing: Option<u64>,
    /// `None` if the shapes differ, or if an element type has no comparable values.
    errors: Option<Errors>,
}

/// Distance over all tensors with known errors, as one vector.
#[derive(Debug, Serialize)]
struct Total {
    tensors: u64,
    elements: u64,
    differing: u64,
    #[serde(flatten)]
    errors: Errors,
}

impl Report {
    /// Compares two files. Where a file has no names, one tensor on each side form a pair.
    pub(crate) fn new(
        a: &Side<'_>,
        b: &Side<'_>,
        prefixes: &Prefixes,
        rtol: Option<f64>,
        is_nameless: bool,
    ) -> Result<Self> {
        let (of_a, of_b) = (a.outlines(), b.outlines());
        let bare = |name: &str| prefixes.strip(name).into_owned();
        let (labels_a, labels_b) = (a.labels()?.renamed(bare), b.labels()?.renamed(bare));
        let (no_bytes_a, no_bytes_b) = (a.without_bytes(), b.without_bytes());
        let (names_a, names_b) = (prefixes.names(&of_a)?, prefixes.names(&of_b)?);
        let (of_a, of_b) = (fit::named(of_a, &names_a), fit::named(of_b, &names_b));
        let in_b: HashMap<&str, usize> = of_b.iter().enumerate().map(|(i, t)| (t.name, i)).collect();
        let is_one_pair = is_nameless && (of_a.len(), of_b.len()) == (1, 1);
        let place = |name: &str| if is_one_pair { Some(0) } else { in_b.get(name).copied() };
        let pairs: Vec<(usize, usize)> =
            of_a.iter().enumerate().filter_map(|(i, t)| Some((i, place(t.name)?))).collect();
        let found: HashSet<usize> = pairs.iter().map(|pair| pair.1).collect();
        let lone_a = of_a.iter().filter(|t| place(t.name).is_none()).map(|t| t.name);
        let lone_a: Vec<&str> = lone_a.chain(no_bytes_a.iter().copied()).collect();
        let lone_b = (0..of_b.len()).filter(|i| !found.contains(i)).map(|i| of_b[i].name);
        let lone_b: Vec<&str> = lone_b.chain(no_bytes_b.iter().copied()).collect();
        // A name on both sides of which one or both have no bytes.
        let is_in_b: HashSet<&str> = lone_b.iter().copied().collect();
        let both: HashSet<&str> = lone_a.iter().copied().filter(|name| is_in_b.contains(name)).collect();
        let only = |names: &[&str]| {
            let names = names.iter().filter(|name| !both.contains(**name));
            names.map(|name| (*name).to_owned()).collect::<Vec<_>>()
        };
        let (only_in_a, only_in_b) = (only(&lone_a), only(&lone_b));
        let mut not_compared: Vec<String> = both.iter().map(|name| (*name).to_owned()).collect();
        not_compared.sort_unstable();
        let tally = |&(a, b): &(usize, usize)| {
            let (a, b) = (&of_a[a], &of_b[b]);
            Tally::of(a, b, labels_a.find(a), labels_b.find(b))
        };
        let mut tallies: Vec<Tally> = pairs.iter().map(tally).collect();
        let comparable: Vec<usize> = (0..pairs.len()).filter(|&i| tallies[i].is_of_one_shape).collect();
        let walked: Vec<(usize, usize)> = comparable.iter().map(|&i| pairs[i]).collect();
        pairs::walk(a, b, &walked, &mut |number, a, b| tallies[comparable[number]].add(a, b))?;
        let mut sums = Sums::default();
        tallies.iter().filter_map(|tally| tally.values).for_each(|values| sums.add(&values));
        let reports = pairs.iter().zip(&tallies);
        let tensors: Vec<_> =
            reports.map(|(&(a, b), tally)| tally.report(&of_a[a], &of_b[b], rtol)).collect();
        let total = Total {
            tensors: tensors.len() as u64,
            elements: tensors.iter().map(|t| elements(&t.shape_a)).sum(),
            differing: tensors.iter().filter_map(|t| t.differing).sum(),
            errors: sums.errors(),
        };
        let equal = only_in_a.is_empty() && only_in_b.is_empty() && tensors.iter().all(|t| t.equal);
        let advice = fit::advice(only_in_a.iter().map(String::as_str), only_in_b.iter().map(String::as_str));
        Ok(Self { equal, tensors, only_in_a, only_in_b, not_compared, total, advice })
    }

    fn text(&self, all: bool) -> String {
        let mut out = String::new();
        let columns =
            ["elements", "differing", "max abs", "rel L2", "cosine", "signs"].map(|c| (c, Align::Right));
        let mut table =
            Table::new(&[&[("tensor", Align::Left), ("dtype", Align::Left)], &columns[..]].concat());
        let mut rows = 0;
        for tensor in self.tensors.iter().filter(|t| all || !t.equal) {
            let [max_abs, relative_l2, cosine, signs] = error_cells(tensor.errors.as_ref());
            table.row([
                tensor.name.clone(),
                either(&tensor.dtype_a, &tensor.dtype_b),
                match tensor.shape_a == tensor.shape_b {
                    true => thousands(elements(&tensor.shape_a)),
                    false => format!("{:?} / {:?}", tensor.shape_a, tensor.shape_b),
                },
                tensor.differing.map_or("-".into(), thousands),
                max_abs,
                relative_l2,
                cosine,
                signs,
            ]);
            rows += 1;
        }
        if rows > 1 {
            let [max_abs, relative_l2, cosine, signs] = error_cells(Some(&self.total.errors));
            let (elements, differing) = (thousands(self.total.elements), thousands(self.total.differing));
            table.row([
                format!("all {}", self.tensors.len()),
                String::new(),
                elements,
                differing,
                max_abs,
                relative_l2,
                cosine,
                signs,
            ]);
        }
        let lines = [
            ("only in A", &self.only_in_a),
            ("only in B", &self.only_in_b),
            ("opaque, not compared", &self.not_compared),
        ];
        if rows > 0 {
            push(&mut out, format_args!("{table}"));
        }
        for (side, names) in lines {
            let shown = if all { names.len() } else { names.len().min(ALONE) };
            for name in &names[..shown] {
                push(&mut out, format_args!("{side}: {}\n", printable(name)));
            }
            if shown < names.len() {
                let more = thousands((names.len() - shown) as u64);
                push(&mut out, format_args!("{side}: {more} more; --all lists them\n"));
            }
        }
        if let Some(advice) = &self.advice {
            push(&mut out, format_args!("{}\n", printable(advice)));
        }
        if self.equal {
            let exactly = self.tensors.iter().all(|t| t.dtype_a == t.dtype_b && t.differing == Some(0));
            let how = if exactly { "equal" } else { "equal within the tolerance" };
            let (tensors, elements) = (thousands(self.total.tensors), thousands(self.total.elements));
            push(&mut out, format_args!("{how}: {tensors} tensors, {elements} elements\n"));
        } else {
            let unequal = self.tensors.iter().filter(|t| !t.equal).count();
            push(&mut out, format_args!("{unequal} of {} common tensors differ\n", self.tensors.len()));
        }
        out
    }
}

/// Differences of a pair of tensors, as far as they were compared.
struct Tally<'l> {
    /// Type and shape that each side's file gave the tensor, if it is opaque there.
    labels: [Option<&'l Label>; 2],
    is_of_one_shape: bool,
    is_of_one_type: bool,
    /// `None` if the elements are not comparable.
    values: Option<Sums>,
    differing_bits: u64,
}

impl<'l> Tally<'l> {
    fn of(a: &Outline<'_>, b: &Outline<'_>, of_a: Option<&'l Label>, of_b: Option<&'l Label>) -> Self {
        let is_of_one_shape = a.shape == b.shape;
        // Bytes have no values to compare.
        let values = (is_of_one_shape && of_a.or(of_b).is_none()).then(Sums::default);
        let is_of_one_type = a.dtype == b.dtype && is_same(of_a, of_b);
        Self { labels: [of_a, of_b], is_of_one_shape, is_of_one_type, values, differing_bits: 0 }
    }

    /// Adds some elements of both tensors.
    fn add(&mut self, a: &TensorView<'_>, b: &TensorView<'_>) {
        self.values = self.values.zip(Sums::of(a, b)).map(|(mut all, more)| {
            all.add(&more);
            all
        });
        if self.is_of_one_type {
            self.differing_bits += differing_bits(a, b);
        }
    }

    fn report(&self, a: &Outline<'_>, b: &Outline<'_>, rtol: Option<f64>) -> TensorReport {
        let errors = self.values.as_ref().map(Sums::errors);
        let differing = match self.is_of_one_shape && self.is_of_one_type {
            true => Some(self.differing_bits),
            false => self.values.map(|values| values.unequal_values),
        };
        let equal = match (rtol, &errors) {
            (Some(rtol), Some(errors)) => errors.relative_l2 <= rtol,
            _ => self.is_of_one_type && differing == Some(0),
        };
        let dtype = |label: Option<&Label>, tensor: &Outline<'_>| {
            label.map_or_else(|| tensor.dtype.name().to_owned(), |label| label.dtype.clone())
        };
        let shape = |label: Option<&Label>, tensor: &Outline<'_>| {
            label.and_then(|label| label.shape.clone()).unwrap_or_else(|| tensor.shape.to_vec())
        };
        let [of_a, of_b] = self.labels;
        TensorReport {
            name: a.name.to_owned(),
            equal,
            dtype_a: dtype(of_a, a),
            dtype_b: dtype(of_b, b),
            shape_a: shape(of_a, a),
            shape_b: shape(of_b, b),
            differing,
            errors,
        }
    }
}

/// Whether a tensor is opaque on both sides, with one type and shape, or on none.
fn is_same(a: Option<&Label>, b: Option<&Label>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a.is_same(b),
        (None, None) => true,
        _ => false,
    }
}

/// Returns the number of elements with different bits. Both tensors have the same type and shape.
fn differing_bits(a: &TensorView<'_>, b: &TensorView<'_>) -> u64 {
    fn count<const N: usize>(a: &[u8], b: &[u8]) -> u64 {
        let (a, b) = (a.as_chunks::<N>().0, b.as_chunks::<N>().0);
        a.iter().zip(b).filter(|(a, b)| a != b).count() as u64
    }

    let bits = a.dtype().bits();
    let (a, b) = (a.data(), b.data());
    match bits {
        4 => {
            a.iter().zip(b).map(|(a, b)| a ^ b).map(|x| u64::from(x & 15 != 0) + u64::from(x >> 4 != 0)).sum()
        }
        8 => count::<1>(a, b),
        16 => count::<2>(a, b),
        32 => count::<4>(a, b),
        _ => count::<8>(a, b),
    }
}

fn elements(shape: &[u64]) -> u64 {
    gcodec::internal::elements(shape).unwrap_or(u64::MAX)
}

fn parse_tolerance(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value >= 0.0 => Ok(value),
        _ => Err("not a number of at least 0".into()),
    }
}

fn either(a: &str, b: &str) -> String {
    if a == b { a.to_owned() } else { format!("{a} / {b}") }
}

fn error_cells(errors: Option<&Errors>) -> [String; 4] {
    let Some(errors) = errors else { return std::array::from_fn(|_| "-".into()) };
    let cosine = format!("{:.6}", errors.cosine);
    [real(errors.max_abs), real(errors.relative_l2), cosine, format!("{:.2}%", errors.sign_agreement * 100.0)]
}

fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    let written = out.write_fmt(text);
    debug_assert!(written.is_ok(), "writing to a String does not fail");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::NamedTensor;
    use crate::testing::TempDir;
    use gcodec::internal::element::decode_f64s;
    use gcodec::tensor::{Dtype, TensorBuf};
    use half::{bf16, f16};
    use std::collections::BTreeMap;
    use std::path::Path;

    fn dump(tensors: &[(&str, &TensorBuf)]) -> Dump {
        let tensors =
            tensors.iter().map(|(name, t)| NamedTensor::new((*name).into(), (*t).clone())).collect();
        Dump { tensors, ..Dump::default() }
    }

    fn f32s(values: &[f32]) -> TensorBuf {
        TensorBuf::from_f32(vec![values.len() as u64], values).unwrap()
    }

    fn report(a: &Dump, b: &Dump, rtol: Option<f64>) -> Report {
        Report::new(&Side::Tensors(a), &Side::Tensors(b), &Prefixes::default(), rtol, false).unwrap()
    }

    fn one(a: &TensorBuf, b: &TensorBuf, rtol: Option<f64>) -> TensorReport {
        report(&dump(&[("t", a)]), &dump(&[("t", b)]), rtol).tensors.remove(0)
    }

    #[test]
    fn measures_by_hand() {
        let report = one(&f32s(&[3.0, 4.0, 0.0, -1.0]), &f32s(&[3.0, 3.0, 1.0, -1.0]), None);
        let errors = report.errors.unwrap();
        assert_eq!((report.equal, report.differing, errors.max_abs), (false, Some(2), 1.0));
        assert_eq!(errors.sign_agreement, 0.75);
        assert!((errors.relative_l2 - (2f64 / 26.0).sqrt()).abs() < 1e-15);
        assert!((errors.cosine - 22.0 / (26f64 * 20.0).sqrt()).abs() < 1e-15);
    }

    #[test]
    fn chunks_add_up() {
        let a: Vec<f32> = (0..10_000).map(|i| (i % 7) as f32 - 3.0).collect();
        let mut b = a.clone();
        b[4095] += 1.0;
        b[4096] += 2.0;
        b[9999] += 0.5;
        let report = one(&f32s(&a), &f32s(&b), None);
        let squares: f64 = a.iter().map(|&x| f64::from(x).powi(2)).sum();
        let errors = report.errors.unwrap();
        assert_eq!((report.differing, errors.max_abs), (Some(3), 2.0));
        assert!((errors.relative_l2 - (5.25 / squares).sqrt()).abs() < 1e-12);
    }

    #[test]
    fn bits_decide_without_a_tolerance() {
        let report = one(&f32s(&[0.0, f32::NAN]), &f32s(&[-0.0, f32::NAN]), None);
        assert_eq!((report.equal, report.differing), (false, Some(1)));
        assert_eq!(report.errors.unwrap().max_abs, 0.0);
        assert!(one(&f32s(&[0.0, f32::NAN]), &f32s(&[-0.0, f32::NAN]), Some(0.0)).equal);
        assert!(one(&f32s(&[f32::NAN]), &f32s(&[f32::NAN]), None).equal);
    }

    #[test]
    fn tolerance_is_of_the_l2_norm() {
        let (a, b) = (f32s(&[3.0, 4.0]), f32s(&[3.0, 4.5]));
        assert!(one(&a, &b, Some(0.1)).equal);
        assert!(!one(&a, &b, Some(0.0999)).equal);
        // NaN and infinity are only near to themselves.
        for (a, b) in [(f32::NAN, 1.0), (1.0, f32::NAN), (f32::INFINITY, 1.0), (1.0, f32::NEG_INFINITY)] {
            let report = one(&f32s(&[a, 1.0]), &f32s(&[b, 1.0]), Some(1e9));
            assert!(!report.equal, "{a} {b}");
            assert_eq!(report.errors.unwrap().max_abs, f64::INFINITY);
        }
        assert!(!one(&f32s(&[0.0]), &f32s(&[1e-30]), Some(1.0)).equal);
    }

    #[test]
    fn zeros_and_nothing() {
        for values in [&[0.0, 0.0][..], &[]] {
            let errors = one(&f32s(values), &f32s(values), None).errors.unwrap();
            assert_eq!(errors, Errors { max_abs: 0.0, relative_l2: 0.0, cosine: 1.0, sign_agreement: 1.0 });
        }
        let errors = one(&f32s(&[0.0]), &f32s(&[1.0]), None).errors.unwrap();
        assert_eq!((errors.relative_l2, errors.cosine), (f64::INFINITY, 0.0));
    }

    #[test]
    fn element_types_are_compared_by_value() {
        let values = [1.0f32, -2.0, 0.5];
        let to_bf16 = values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect();
        let b = TensorBuf::new(Dtype::Bf16, vec![3], to_bf16).unwrap();
        let report = one(&f32s(&values), &b, None);
        assert_eq!((report.equal, report.differing), (false, Some(0)));
        assert!(one(&f32s(&values), &b, Some(0.0)).equal);
    }

    #[test]
    fn every_type_is_decoded_and_compared_by_bits() {
        for dtype in Dtype::ALL {
            // The bytes of 1 in each type with comparable values.
            let bytes: Vec<u8> = match dtype {
                Dtype::F64 => 1f64.to_le_bytes().into(),
                Dtype::F32 => 1f32.to_le_bytes().into(),
                Dtype::F16 => f16::ONE.to_le_bytes().into(),
                Dtype::Bf16 => bf16::ONE.to_le_bytes().into(),
                Dtype::F8E4M3Fn => vec![0x38],
                Dtype::F8E5M2 => vec![0x3c],
                Dtype::F8E4M3Fnuz | Dtype::F8E5M2Fnuz => vec![0x40],
                Dtype::F4E2M1 => vec![0x22],
                _ => 1u64.to_le_bytes()[..dtype.bits() as usize / 8].into(),
            };
            let per_byte = if dtype.bits() == 4 { 2 } else { 1 };
            let data = bytes.repeat(3);
            let a = TensorBuf::new(dtype, vec![3 * per_byte], data.clone()).unwrap();
            let mut b = a.clone();
            assert!(one(&a, &b, None).equal);
            let last = data.len() - 1;
            b.data_mut()[last] ^= 0x30;
            let report = one(&a, &b, Some(0.0));
            assert_eq!((report.equal, report.differing), (false, Some(1)), "{dtype}");
            let mut out = [0.0; 2];
            decode_f64s(dtype, &data, 1, &mut out).unwrap();
            assert_eq!(out, [1.0; 2], "{dtype}");
            assert!(report.errors.is_some());
        }
    }

    #[test]
    fn shapes_and_missing_tensors() {
        let (x, y) = (f32s(&[1.0, 2.0]), TensorBuf::from_f32(vec![1, 2], &[1.0, 2.0]).unwrap());
        let report = report(&dump(&[("a", &x), ("s", &x)]), &dump(&[("s", &y), ("b\x1b", &x)]), Some(1.0));
        assert!(!report.equal);
        assert_eq!(
            (&report.only_in_a[..], &report.only_in_b[..]),
            (&["a".into()][..], &["b\x1b".into()][..])
        );
        assert!(report.tensors[0].errors.is_none());
        let text = report.text(false);
        assert!(text.contains("[2] / [1, 2]") && text.contains("only in B: b\\u{1b}\n"), "{text}");
        assert!(text.ends_with("1 of 1 common tensors differ\n"), "{text}");
    }

    #[test]
    fn equal_files_take_one_line() {
        let x = f32s(&[1.0; 1500]);
        let report = report(&dump(&[("x", &x)]), &dump(&[("x", &x)]), None);
        assert_eq!(report.text(false), "equal: 1 tensors, 1,500 elements\n");
        assert!(report.text(true).contains("100.00%"));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["total"]["cosine"], 1.0);
        assert_eq!(json["tensors"][0]["errors"]["max_abs"], 0.0);
    }

    #[test]
    fn the_command_opens_files() {
        let dir = TempDir::new();
        let (a, b) = (dir.path("a.npy"), dir.path("b.npy"));
        for (path, values) in [(&a, [1.0, 2.0]), (&b, [1.0, 2.5])] {
            crate::tensors::write(path, &[("x", f32s(&values).view())], &BTreeMap::new()).unwrap();
        }
        let args = |a: &Path, b: &Path, rtol: &str| Args::try_parse(a, b, rtol);
        assert_eq!(run(&args(&a, &a, "0")).unwrap(), Outcome::Well);
        assert_eq!(run(&args(&a, &b, "0")).unwrap(), Outcome::Differs);
        assert_eq!(run(&args(&a, &b, "0.3")).unwrap(), Outcome::Well);
        let stdin = Path::new("-");
        assert_eq!(run(&args(stdin, stdin, "0")).unwrap_err().code, crate::fail::Code::Usage);
    }

    impl Args {
        fn try_parse(a: &Path, b: &Path, rtol: &str) -> Self {
            #[derive(clap::Parser)]
            struct Line {
                #[command(flatten)]
                args: Args,
            }
            let words = [Path::new("diff"), a, b, Path::new("--json"), Path::new("--rtol"), Path::new(rtol)];
            <Line as clap::Parser>::parse_from(words).args
        }
    }
}
