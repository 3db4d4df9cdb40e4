//! `gcodec inspect`: shows the contents of streams and of files of tensors.

pub(crate) mod against;
mod detail;
mod html;
mod listing;
mod opaque;
mod overview;
mod placement;
mod report;
pub(crate) mod source;
mod tensor;
pub(crate) mod text;
pub(crate) mod update;
pub(crate) mod view;

use crate::annotate;
use crate::fail::{Failure, InFile, InOutput, Outcome, Result};
use crate::fit::Prefixes;
use crate::input::{DEFAULT_MAX_BYTES, Input, is_standard};
use crate::learned::ModelArgs;
use crate::model;
use crate::naming::did_you_mean;
use crate::options::{LimitArgs, NameGlob, check_one_stdin, check_output_is_new};
use crate::output::{Output, counted, human_bytes, note, print, warn};
use crate::terminal::Terminal;
use gcodec::Limits;
use listing::Sort;
pub(crate) use report::{Report, Wanted};
use std::io::Write;
use std::path::{Path, PathBuf};
pub(crate) use tensor::Tensor;

/// Show what is in streams and files of tensors: norms, sparsity, NaN, cost, damage
///
/// Reads streams, .safetensors (also in shards), .npz, .npy, PyTorch's .pt and .bin (without running their
/// pickles) and GGUF. As its only input, it also takes a model of the learned codec. The bytes of
/// a file tell its kind. A corrupt stream is read to its end.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The overview has a line for each update (a file of tensors counts as one; its step and sender come
from its metadata or name): bytes, ratio to the dense tensors, share of nonzero elements, L2 norm,
and how many elements have which exponent, on a logarithmic scale.

--coding shows how each tensor is coded. Its columns: kept values and their density; bits per
parameter, split into positions, values and overhead (headers of blocks); and the ratio to the
tensor's own bytes. The bits of a block that spans several tensors are divided among them by kept
values, and the rows are marked with ~. Where only the base of a delta tells how many are kept, the
row has ?, and the bits are divided by elements. The row `headers` counts the frame's header and the
fields before the blocks. The row `all` counts the whole update.

docs/inspect.schema.json describes the output of --json without --tensors.

--annotate prints for each field: offset, bytes, name, value and meaning. A field longer than
32 bytes is shortened. With --step, --sender or --tensor, it prints only updates: their headers and
the blocks of these tensors. With --json, it prints an array with an object for each field.

Examples:
  gcodec inspect run.gcu
  gcodec inspect dumps/ --tensors --sort norm --top 10
  gcodec inspect dumps/ --sender 3 --group 2
  gcodec inspect run.gcu --step 200 --tensor fc.weight
  gcodec inspect run.gcu --against grad.safetensors
  gcodec inspect run.gcu --csv > norms.csv
  gcodec inspect dumps/ --tensors --parquet tensors.parquet
  gcodec inspect dumps/ --html report.html
  gcodec inspect run.gcu --json | jq '.updates[].bits_per_parameter'
  gcodec inspect run.gcu --coding
  gcodec inspect run.gcu --annotate --frame 1
  gcodec inspect run.gcu --annotate --step 200 --tensor fc.weight --json")]
pub(crate) struct Args {
    /// Streams, files of tensors, and folders of them; `-` is standard input
    #[arg(required = true, value_name = "IN")]
    inputs: Vec<PathBuf>,
    /// List the tensors, added up over the updates
    #[arg(long)]
    tensors: bool,
    /// Order of the tensors [default: bytes]
    #[arg(long, value_name = "KEY")]
    sort: Option<Sort>,
    /// Only the first N tensors
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// Add up the tensors of each module: names that agree in their first DEPTH parts
    #[arg(long, value_name = "DEPTH", value_parser = clap::value_parser!(u8).range(1..))]
    group: Option<u8>,
    /// Only updates of this step
    #[arg(long, value_name = "N")]
    step: Option<u64>,
    /// Only updates of this sender
    #[arg(long, value_name = "N")]
    sender: Option<u64>,
    /// Only tensors whose names match; one tensor is shown with its exponents and a map of its elements
    #[arg(long, value_name = "GLOB")]
    tensor: Option<NameGlob>,
    /// Read every element, also of large inputs: norms, NaN, exponents, damage
    #[arg(long)]
    stats: bool,
    /// Show what compression lost: the tensors that the updates were made from. A folder holds the originals
    /// of several updates, each with its step and sender
    #[arg(long, value_name = "ORIGINAL", conflicts_with_all = ["annotate", "coding", "csv"])]
    against: Option<PathBuf>,
    /// Write a page of HTML that needs no network: treemap, histograms, maps, norms, trends, loss, damage
    #[arg(long, value_name = "FILE", conflicts_with_all = ["annotate", "coding", "csv", "json", "frame"])]
    html: Option<PathBuf>,
    /// Print JSON
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print CSV: a line for each update, or with --tensors for each tensor of each update
    #[arg(long, conflicts_with = "annotate")]
    csv: bool,
    /// Write the rows that --csv prints to a Parquet file; `-` is standard output
    #[arg(long, value_name = "FILE")]
    #[arg(conflicts_with_all = ["annotate", "against", "coding", "csv", "json", "html", "frame"])]
    parquet: Option<PathBuf>,
    /// Show how each tensor of each update is coded: support, values, bits
    #[arg(long, conflicts_with_all = ["annotate", "csv", "tensors"])]
    coding: bool,
    /// Only this frame of a stream, counted from 0; implies --coding
    #[arg(long, value_name = "N")]
    frame: Option<u64>,
    /// Print the bytes of a stream with the fields that they encode
    #[arg(long)]
    annotate: bool,
    #[command(flatten)]
    prefixes: Prefixes,
    #[command(flatten)]
    models: ModelArgs,
    #[command(flatten)]
    limits: LimitArgs,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    check_one_stdin(args.inputs.iter().chain(&args.against))?;
    let limits = args.limits.limits();
    let wanted = args.wanted()?;
    if args.annotate {
        let path = args.one_input("--annotate")?;
        return annotated(args, &wanted, &Input::open(path, DEFAULT_MAX_BYTES)?).in_file(path);
    }
    if let Some(page) = &args.html {
        return args.write_html(page, &wanted, &limits);
    }
    if let Some(original) = &args.against {
        let losses = against::losses(&args.inputs, original, &wanted, &limits)?;
        let text = match args.json {
            true => serde_json::to_string_pretty(&losses).map_err(std::io::Error::from)? + "\n",
            false => against::text(&losses, args.top),
        };
        return print(text).map(|()| Outcome::Well);
    }
    if let [path] = args.inputs.as_slice()
        && let Some(text) = model::described(path, args.json)?
    {
        return print(text).map(|()| Outcome::Well);
    }
    let (mut reports, failures) = read(args, &wanted, &limits)?;
    if failures.is_empty() {
        args.check_found(&reports)?;
    }
    // Shows everything before an error. An input that is no stream has nothing to show.
    match &args.parquet {
        Some(table) => args.write_parquet(table, &mut reports)?,
        None => print(args.text(&mut reports)?)?,
    }
    ended(failures)
}

/// Warns of all failures but the first, which ends the command.
fn ended(failures: Vec<Failure>) -> Result<Outcome> {
    let mut failures = failures.into_iter();
    let first = failures.next();
    failures.for_each(warn);
    first.map_or(Ok(Outcome::Well), Err)
}

/// Reads all inputs; a fault in one does not hide the others.
fn read(args: &Args, wanted: &Wanted, limits: &Limits) -> Result<(Vec<Report>, Vec<Failure>)> {
    let (mut reports, mut failures) = (Vec::new(), Vec::new());
    let files = source::files(&args.inputs)?;
    for path in &files {
        match source::read(path, wanted, limits) {
            Ok((report, failure)) => {
                // Bytes that are no stream give no report.
                let is_read = report.version.is_some() || !report.frames.is_empty();
                let has_rows = !report.updates.is_empty();
                reports.extend((failure.is_none() || is_read || has_rows).then_some(report));
                failures.extend(failure);
            }
            Err(failure) if files.len() == 1 => return Err(failure),
            Err(failure) if failure.has_nothing() => warn(format_args!("{failure}; left out")),
            Err(failure) => failures.push(failure),
        }
    }
    Ok((reports, failures))
}

impl Args {
    fn wanted(&self) -> Result<Wanted> {
        let text = !self.is_for_programs() && !self.tensors && self.html.is_none();
        Ok(Wanted {
            frame: self.frame,
            step: self.step,
            sender: self.sender,
            tensor: self.tensor.clone(),
            grid: (self.tensor.is_some() && text) || self.html.is_some(),
            quick: self.is_quick(text),
            each: self.coding
                || self.frame.is_some()
                || (self.json && !self.tensors)
                || ((self.csv || self.parquet.is_some()) && self.tensors),
            models: self.models.models()?,
            prefixes: self.prefixes.clone(),
        })
    }

    /// Whether all rows are asked for, with all of their numbers.
    fn is_for_programs(&self) -> bool {
        self.json || self.csv || self.parquet.is_some()
    }

    /// Writes the rows of the reports to a Parquet file.
    fn write_parquet(&self, path: &Path, reports: &mut [Report]) -> Result<()> {
        check_output_is_new(path, &self.inputs)?;
        if reports.is_empty() {
            return Ok(());
        }
        let (tensors, _) = self.selected(reports);
        let table = self.table(reports, &tensors);
        let mut out = Output::create(path)?;
        table.parquet(&mut out).and_then(|()| Ok(out.finish()?)).in_output(path)?;
        if !is_standard(path) {
            note(format_args!("{}: {}", path.display(), counted(table.len() as u64, "row")));
        }
        Ok(())
    }

    /// Writes the page of HTML. A fault is on the page, and fails the command as it does without one.
    fn write_html(&self, path: &Path, wanted: &Wanted, limits: &Limits) -> Result<Outcome> {
        check_output_is_new(path, self.inputs.iter().chain(&self.against))?;
        let (mut reports, failures) = read(self, wanted, limits)?;
        if failures.is_empty() {
            self.check_found(&reports)?;
        }
        if !reports.is_empty() {
            let losses = match &self.against {
                Some(original) => Some(against::losses(&self.inputs, original, wanted, limits)?),
                None => None,
            };
            let (tensors, _) = self.selected(&mut reports);
            let page = html::render(&reports, &tensors, losses.as_ref());
            let mut out = Output::create(path)?;
            out.write_all(page.as_bytes()).and_then(|()| out.finish()).in_output(path)?;
            if !is_standard(path) {
                note(format_args!("{}: {}", path.display(), human_bytes(page.len() as u64)));
            }
        }
        ended(failures)
    }

    /// Whether headers and indices suffice: statistics of large inputs come when something asks for them.
    fn is_quick(&self, text: bool) -> bool {
        let asked = self.stats || self.tensor.is_some() || self.coding || self.frame.is_some();
        let by_elements = matches!(self.sort, Some(Sort::Norm | Sort::Density));
        let text = text || (self.tensors && !self.is_for_programs());
        text && self.html.is_none() && !asked && !by_elements && source::bytes(&self.inputs) > SMALL_INPUT
    }

    fn one_input(&self, option: &str) -> Result<&PathBuf> {
        match &self.inputs[..] {
            [one] => Ok(one),
            _ => Err(Failure::usage(format_args!("{option} takes one input"))),
        }
    }

    /// Refuses filters that leave nothing.
    fn check_found(&self, reports: &[Report]) -> Result<()> {
        let name = |failure: Failure| match &self.inputs[..] {
            [one] => failure.in_file(one),
            _ => failure,
        };
        if self.frame.is_some() && reports.iter().all(|r| r.frames.is_empty()) {
            return Err(name(no_frame(self)));
        }
        let updates = || reports.iter().flat_map(|r| &r.updates);
        if (self.step.is_some() || self.sender.is_some()) && updates().next().is_none() {
            return Err(name(Failure::usage("no update has this step and sender")));
        }
        let tensors =
            || updates().flat_map(|u| &u.tensors).chain(reports.iter().flat_map(|r| &r.totals.tensors));
        if let Some(glob) = &self.tensor
            && self.frame.is_none()
            && tensors().next().is_none()
        {
            let known = self.names();
            let hint = did_you_mean(glob.text(), known.iter().map(String::as_str));
            return Err(name(Failure::usage(format_args!("no tensor of an update matches --tensor{hint}"))));
        }
        Ok(())
    }

    /// Returns the names of all tensors, for a hint.
    fn names(&self) -> Vec<String> {
        let all = Wanted { step: self.step, sender: self.sender, ..Wanted::default() };
        let files = self.inputs.iter().filter(|path| path.is_file());
        let read = files.filter_map(|path| source::read(path, &all, &self.limits.limits()).ok());
        read.flat_map(|(report, _)| report.totals.tensors).map(|tensor| tensor.name).collect()
    }

    fn text(&self, reports: &mut [Report]) -> Result<String> {
        if reports.is_empty() {
            return Ok(String::new());
        }
        let (tensors, bits) = self.selected(reports);
        let reports = &*reports;
        if self.csv {
            return self.table(reports, &tensors).csv();
        }
        if self.json {
            return match (self.lists(), reports) {
                (true, _) => listing::Table::of_sums(&tensors).json(),
                (false, [one]) => pretty(one),
                (false, many) => pretty(&many),
            };
        }
        let terminal = Terminal::of_stdout();
        if self.coding || self.frame.is_some() {
            return Ok(reports.iter().map(|r| text::render(r, &r.file, self.frame.is_some())).collect());
        }
        if self.lists() {
            return Ok(listing::text(&tensors, bits, &terminal));
        }
        let overview = overview::render(reports, &tensors, &terminal);
        Ok(match (&self.tensor, &tensors[..]) {
            (Some(_), [one]) => overview + &detail::text(one, &terminal),
            _ => overview,
        })
    }

    /// Whether tensors are listed, not updates.
    fn lists(&self) -> bool {
        self.tensors || self.group.is_some() || self.sort.is_some() || self.top.is_some()
    }

    /// Returns the table for programs; `tensors` are those of [`selected`](Self::selected).
    fn table<'a>(&self, reports: &'a [Report], tensors: &'a [Tensor]) -> listing::Table<'a> {
        match (self.lists(), self.tensors && self.group.is_none()) {
            (false, _) => listing::Table::of_updates(reports),
            (true, true) => {
                let sort = self.sort.or(self.top.map(|_| Sort::Bytes));
                listing::Table::of_each(reports, sort, self.top.unwrap_or(usize::MAX))
            }
            (true, false) => listing::Table::of_sums(tensors),
        }
    }

    /// Takes the tensors of all files out of the reports: grouped, sorted and cut as asked for. Those of
    /// single updates stay there. The second result is the bits of all of them.
    fn selected(&self, reports: &mut [Report]) -> (Vec<Tensor>, f64) {
        let mut totals = report::Totals::default();
        for report in reports {
            report.updates.iter().for_each(|update| totals.add(update.tensors.clone()));
            totals.add(std::mem::take(&mut report.totals.tensors));
        }
        let mut tensors = totals.tensors;
        if let Some(depth) = self.group {
            tensors = listing::group(&tensors, depth.into());
        }
        let bits = tensors.iter().map(Tensor::bits).sum();
        let (by, top) = (self.sort.unwrap_or(Sort::Bytes), self.top.unwrap_or(usize::MAX));
        listing::sort(&mut tensors, by);
        tensors.truncate(top);
        (tensors, bits)
    }
}

fn pretty(value: &impl serde::Serialize) -> Result<String> {
    Ok(serde_json::to_string_pretty(value).map_err(std::io::Error::from)? + "\n")
}

fn annotated(args: &Args, wanted: &Wanted, bytes: &[u8]) -> Result<Outcome> {
    if bytes.len() > SMALL && args.frame.is_none() && !wanted.is_part() {
        note("a large stream: --frame N shows one frame of it, --step and --tensor a part");
    }
    let (pieces, error) = annotate::annotate(bytes, wanted, &args.limits.limits());
    print(match args.json {
        true => annotate::json(&pieces).map_err(std::io::Error::from)?,
        false => annotate::text(&pieces, bytes),
    })?;
    match error {
        Some(error) => Err(crate::stream::explain(error, None)),
        None if !pieces.is_empty() => Ok(Outcome::Well),
        None if wanted.is_part() => {
            let known = args.names();
            let hint = wanted
                .tensor
                .as_ref()
                .map_or(String::new(), |glob| did_you_mean(glob.text(), known.iter().map(String::as_str)));
            Err(Failure::usage(format_args!("no update has this step, sender and tensor{hint}")))
        }
        None => Err(no_frame(args)),
    }
}

fn no_frame(args: &Args) -> Failure {
    Failure::usage(format_args!("there is no frame {}", args.frame.unwrap_or_default()))
}

/// Most bytes of input whose elements are read without being asked for: they take less than a second.
pub(crate) const SMALL_INPUT: u64 = 256 << 20;
/// Largest stream, in bytes, that is annotated as a whole without a note.
const SMALL: usize = 1 << 20;
