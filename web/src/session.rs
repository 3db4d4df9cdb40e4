//! Requests and their answers: what the page and the package ask of the readers.
//!
//! A request is JSON, `{"do": NAME, ..}`; so is the text of an answer, `{"warnings": [..], "value": ..}` or
//! `{"warnings": [..], "error": {"code", "message"}}`.

use crate::fail::{Code, Failure, InFile, Result};
use crate::fit::Prefixes;
use crate::input::{Input, Section};
use crate::inspect::listing::{self, Sort};
use crate::inspect::report::Totals;
use crate::inspect::{Report, Tensor, Wanted, against, html, overview, source, view};
use crate::options::NameGlob;
use crate::output::printable;
use crate::pairs::Side;
use crate::stream::{Base, Updates};
use crate::tensors::kind::{self, Kind};
use crate::tensors::{Any, Dump, Format, Outline, folder};
use crate::{console, diff, files};
use gcodec::Limits;
use gcodec_latent::Models;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Most bytes of memory that a stream may claim: a page has 4 GB in all.
const MAX_ALLOC: u64 = 1 << 30;
/// Largest stream, in bytes, of which updates are decoded: it is read whole.
const MAX_WHOLE: u64 = 1 << 30;

/// The answer to a request.
#[derive(Debug, Default)]
pub struct Answer {
    /// JSON.
    pub text: Vec<u8>,
    /// Elements of a tensor, if they were asked for.
    pub bytes: Vec<u8>,
}

impl Answer {
    /// Returns an answer without bytes.
    #[cfg(target_family = "wasm")]
    pub(crate) const fn empty() -> Self {
        Self { text: Vec::new(), bytes: Vec::new() }
    }
}

#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
enum Request {
    /// Which files stand for the files and folders that were given, as `inspect` takes them.
    Inputs,
    /// The report of `inspect --json`, which later requests look into.
    Report {
        paths: Vec<PathBuf>,
        /// Whether headers suffice.
        #[serde(default)]
        quick: bool,
        /// Only this tensor.
        tensor: Option<String>,
    },
    /// Exponents and places of the elements of a tensor of the last report.
    Tensor { name: String },
    /// The page of `inspect --html` for the last report.
    Html { paths: Vec<PathBuf>, against: Option<PathBuf> },
    /// The losses of `inspect --against`.
    Against { paths: Vec<PathBuf>, original: PathBuf },
    /// The differences of `diff`.
    Diff { a: PathBuf, b: PathBuf },
    /// Headers: names, types and shapes, and the updates of a stream with their manifests.
    Headers { path: PathBuf },
    /// The elements of a tensor; of a stream, of one of its updates.
    Data { path: PathBuf, name: String, update: Option<usize> },
}

thread_local! {
    static REPORTS: RefCell<Vec<Report>> = const { RefCell::new(Vec::new()) };
}

/// Answers a request.
pub fn answer(request: &[u8]) -> Answer {
    let mut bytes = Vec::new();
    let value = serde_json::from_slice(request)
        .map_err(|e| Failure::usage(format_args!("the request: {e}")))
        .and_then(|request| value_of(request, &mut bytes));
    let warnings = console::take();
    let text = match value {
        Ok(value) => json!({"warnings": warnings, "value": value}),
        Err(failure) => json!({"warnings": warnings, "error": error(&failure)}),
    };
    Answer { text: text.to_string().into_bytes(), bytes }
}

fn error(failure: &Failure) -> Value {
    let code = match failure.code {
        Code::Usage => "usage",
        Code::Invalid => "invalid",
        Code::Limit => "limit",
        Code::Io => "io",
    };
    json!({"code": code, "message": printable(&failure.message)})
}

fn json_of(value: &impl Serialize) -> Result<Value> {
    serde_json::to_value(value).map_err(|e| Failure::from(std::io::Error::from(e)))
}

fn value_of(request: Request, bytes: &mut Vec<u8>) -> Result<Value> {
    match request {
        Request::Inputs => Ok(json!(inputs()?)),
        Request::Report { paths, quick, tensor } => report(&paths, quick, tensor.as_deref()),
        Request::Tensor { name } => tensor(&name),
        Request::Html { paths, against } => {
            let of = |original: PathBuf| losses(&paths, &original);
            let losses = against.map(of).transpose()?;
            REPORTS.with_borrow(|reports| Ok(json!(html::render(reports, &totals(reports), losses.as_ref()))))
        }
        Request::Against { paths, original } => json_of(&losses(&paths, &original)?),
        Request::Diff { a, b } => differences(&a, &b),
        Request::Headers { path } => headers(&path),
        Request::Data { path, name, update } => data(&path, &name, update, bytes),
    }
}

fn limits() -> Limits {
    Limits::default().with_max_alloc_bytes(MAX_ALLOC)
}

/// Returns the inputs among the given files: shards and distributed checkpoints stand as one.
fn inputs() -> Result<Vec<PathBuf>> {
    let all = files::all();
    if let [one] = &all[..] {
        return Ok(vec![one.clone()]);
    }
    let folders: BTreeSet<&Path> = all.iter().filter_map(|path| path.parent()).collect();
    let mut found = Vec::new();
    let mut failures = Vec::new();
    for folder in folders {
        match folder::files_in(folder) {
            Ok((known, others)) => {
                found.extend(known);
                if others > 0 {
                    let of = if folder == Path::new("") {
                        "the files".into()
                    } else {
                        folder.display().to_string()
                    };
                    console::warn(format_args!(
                        "{of}: {others} left out, which are no tensors and no streams"
                    ));
                }
            }
            Err(failure) => failures.push(failure),
        }
    }
    match found.is_empty() {
        true => Err(failures.into_iter().next().unwrap_or_else(|| Failure::usage("no file was given"))),
        false => Ok(found),
    }
}

/// Reads files as `inspect` does, and keeps the reports.
fn report(paths: &[PathBuf], quick: bool, tensor: Option<&str>) -> Result<Value> {
    let glob = tensor.map(|name| glob::Pattern::escape(name).parse::<NameGlob>());
    let tensor = glob.transpose().map_err(Failure::usage)?;
    let wanted = Wanted { quick, each: true, grid: !quick, tensor, ..Wanted::default() };
    let (mut reports, mut failures) = (Vec::new(), Vec::new());
    for path in paths {
        match source::read(path, &wanted, &limits()) {
            Ok((report, failure)) => {
                // Bytes that are no stream give no report.
                let is_read = report.version.is_some() || !report.frames.is_empty();
                let has_rows = !report.updates.is_empty();
                reports.extend((failure.is_none() || is_read || has_rows).then_some(report));
                failures.extend(failure);
            }
            Err(failure) if paths.len() > 1 && failure.has_nothing() => {
                console::warn(format_args!("{failure}; left out"));
            }
            Err(failure) => failures.push(failure),
        }
    }
    if reports.is_empty() && !failures.is_empty() {
        return Err(failures.remove(0));
    }
    let rows = overview::rows(&reports, false);
    let advice = overview::advice(&reports, &rows, &totals(&reports));
    let advice: Vec<String> = advice.into_iter().map(|(_, text)| printable(&text)).collect();
    let value = json!({
        "reports": json_of(&reports)?,
        "failures": failures.iter().map(error).collect::<Vec<_>>(),
        "advice": if quick { Vec::new() } else { advice },
        "json": pretty(&reports)?,
    });
    REPORTS.set(reports);
    Ok(value)
}

/// Returns what `inspect --json` prints.
fn pretty(reports: &[Report]) -> Result<String> {
    let text = match reports {
        [one] => serde_json::to_string_pretty(one),
        many => serde_json::to_string_pretty(many),
    };
    Ok(text.map_err(std::io::Error::from)? + "\n")
}

/// Returns the tensors of all reports, added up, as `inspect --tensors` lists them.
fn totals(reports: &[Report]) -> Vec<Tensor> {
    let mut totals = Totals::default();
    for update in reports.iter().flat_map(|report| &report.updates) {
        totals.add(update.tensors.clone());
    }
    let mut tensors = totals.tensors;
    listing::sort(&mut tensors, Sort::Bytes);
    tensors
}

/// Returns the exponents and the map of a tensor, added up over the updates.
fn tensor(name: &str) -> Result<Value> {
    let tensors = REPORTS.with_borrow(|reports| totals(reports));
    let found = tensors.into_iter().find(|tensor| tensor.name == name);
    let tensor = found.ok_or_else(|| Failure::usage(format_args!("no tensor {name:?}")))?;
    let stats = &tensor.stats;
    let (first, counts) = stats.exponents.range();
    let grid = stats.grid.as_ref().map(|grid| {
        let (height, width) = (grid.height(), grid.width());
        let cells = (0..height).flat_map(|row| (0..width).filter_map(move |column| grid.cell(row, column)));
        let shares: Vec<f64> = cells.map(|(some, all)| some as f64 / all.max(1) as f64).collect();
        json!({"rows": grid.rows(), "columns": grid.columns(), "height": height, "width": width, "shares": shares})
    });
    let place = |index: Option<u64>| index.map(|index| view::place(index, &tensor.shape));
    let negative: u64 = stats.exponents.iter().filter(|(negative, ..)| *negative).map(|(.., n)| n).sum();
    Ok(json!({
        "name": tensor.name, "updates": tensor.updates, "zeros": stats.zeros, "negative": negative,
        // The exponents of binary32: 2^(first - 127).
        "exponents": {"first": i64::from(first) - 127, "counts": counts},
        "grid": grid, "first_nan": place(stats.first_nan), "first_infinite": place(stats.first_infinite),
    }))
}

/// Refuses streams that are too large to be held.
fn check_size(path: &Path) -> Result<()> {
    let Some(len) = files::len(path).filter(|len| *len > MAX_WHOLE) else { return Ok(()) };
    let files::Opened::Input(input) = files::open(path).in_file(path)? else { return Ok(()) };
    if kind::is_stream(&Section::from(&input).head(64)) {
        let what = "a page decodes streams of at most 1 GiB; the command line has no such limit";
        return Err(Failure::limit(format_args!("{len} bytes: {what}"))).in_file(path);
    }
    Ok(())
}

fn losses(paths: &[PathBuf], original: &Path) -> Result<against::Losses> {
    paths.iter().map(PathBuf::as_path).chain([original]).try_for_each(check_size)?;
    against::losses(paths, original, &Wanted::default(), &limits())
}

fn differences(a: &Path, b: &Path) -> Result<Value> {
    check_size(a)?;
    check_size(b)?;
    let (any_a, any_b) = (Any::open_carrying(a)?, Any::open_carrying(b)?);
    let (base, models, limits) = (Base::new(), Models::new(), limits());
    let is_nameless = [a, b].iter().any(|path| Format::of_path(path) == Some(Format::Npy));
    let side_a = Side::of(&any_a, a, None, &base, &limits, &models)?;
    let side_b = Side::of(&any_b, b, None, &base, &limits, &models)?;
    json_of(&diff::Report::new(&side_a, &side_b, &Prefixes::default(), None, is_nameless)?)
}

/// Opens a file of tensors or a stream.
fn open(path: &Path) -> Result<Any> {
    check_size(path)?;
    Any::open(path)
}

fn headers(path: &Path) -> Result<Value> {
    let outline = |of: Outline<'_>| json!({"name": of.name, "dtype": of.dtype.name(), "shape": of.shape, "bytes": of.bytes()});
    match open(path)? {
        Any::Tensors(dump) => {
            let opaque = dump.opaque.iter().map(|t| {
                json!({"name": t.name, "dtype": t.dtype, "shape": t.shape, "bytes": t.bytes, "opaque": t.reason})
            });
            let tensors = dump.tensors.iter().map(|t| outline(Outline::from(t))).chain(opaque);
            Ok(json!({
                "kind": kind_of(path)?,
                "metadata": dump.metadata,
                "tensors": tensors.collect::<Vec<_>>(),
                "faults": dump.faults.iter().map(error).collect::<Vec<_>>(),
            }))
        }
        Any::Stream(input) => {
            let updates = Updates::open(&input, &limits()).in_file(path)?;
            let update = |number: usize| {
                let (header, manifest) = (updates.header(number), updates.manifest(number));
                let tensors = manifest.tensors().iter().map(|t| outline(Outline::from(t)));
                json!({
                    "step": header.step, "round": header.round, "sender": header.sender, "world": header.world,
                    "label": header.label, "delta": header.is_delta(), "tensors": tensors.collect::<Vec<_>>(),
                })
            };
            let all: Vec<Value> = (0..updates.len()).map(update).collect();
            Ok(json!({"kind": Kind::Stream.name(), "updates": all}))
        }
    }
}

fn kind_of(path: &Path) -> Result<&'static str> {
    let opened = crate::input::Input::open(path, 0)?;
    Ok(kind::of_file(path, &opened).in_file(path)?.name())
}

fn data(path: &Path, name: &str, update: Option<usize>, bytes: &mut Vec<u8>) -> Result<Value> {
    let missing = || Failure::usage(format_args!("no tensor {name:?}")).in_file(path);
    let tensor = match open(path)? {
        Any::Tensors(Dump { tensors, .. }) => tensors.into_iter().find(|t| t.name() == name),
        Any::Stream(input) => decoded(&input, path, name, update)?,
    };
    let tensor = tensor.ok_or_else(missing)?;
    let outline = Outline::from(&tensor);
    let value = json!({"name": name, "dtype": outline.dtype.name(), "shape": outline.shape});
    *bytes = tensor.bytes().into_owned();
    Ok(value)
}

fn decoded(
    input: &Input,
    path: &Path,
    name: &str,
    update: Option<usize>,
) -> Result<Option<crate::tensors::NamedTensor>> {
    let updates = Updates::open(input, &limits()).in_file(path)?;
    let number = update.unwrap_or(updates.len().saturating_sub(1));
    if number >= updates.len() {
        return Err(Failure::usage(format_args!("no update {number}, of {}", updates.len()))).in_file(path);
    }
    Ok(updates.decode(number, |of| of == name, &Base::new()).in_file(path)?.pop())
}
