//! State of the viewer, and the effect of each key.

use super::tree::{self, Node};
use crate::annotate::{self, Field, Line};
use crate::fail::{Failure, Result};
use crate::input::{DEFAULT_MAX_BYTES, Input};
use crate::inspect::update::Update;
use crate::inspect::{self, Report, Tensor, Wanted, source};
use gcodec::Limits;
use gcodec_latent::Models;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Names of the tabs.
pub(super) const TABS: [&str; 5] = ["Stats", "Where", "Trend", "Bytes", "Damage"];

/// Order of the rows of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Bytes,
    Norm,
    Density,
    Name,
}

impl Order {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Norm => "norm",
            Self::Density => "density",
            Self::Name => "name",
        }
    }

    fn next(self) -> Self {
        match self {
            Self::Bytes => Self::Norm,
            Self::Norm => Self::Density,
            Self::Density => Self::Name,
            Self::Name => Self::Bytes,
        }
    }
}

/// The fields of one frame.
pub(super) struct Bytes {
    pub(super) frame: u64,
    pub(super) lines: Vec<Line>,
    pub(super) data: Vec<u8>,
    /// Offset of `data` in the stream.
    pub(super) start: usize,
}

/// State of the program.
pub(super) struct App {
    limits: Limits,
    models: Models,
    pub(super) reports: Vec<Report>,
    paths: Vec<PathBuf>,
    pub(super) failures: Vec<Failure>,
    /// Relative errors of updates, by step and sender, where originals are given.
    pub(super) errors: BTreeMap<(u64, u64), f64>,
    /// Report and update, by step and sender.
    pub(super) updates: Vec<(usize, usize)>,
    pub(super) current: usize,
    pub(super) tab: usize,
    pub(super) order: Order,
    pub(super) filter: String,
    pub(super) is_typing: bool,
    pub(super) help: bool,
    open: BTreeSet<String>,
    pub(super) rows: Vec<Node>,
    pub(super) selected: usize,
    /// First line of the right side that is shown; in the tab Bytes the selected line.
    pub(super) line: usize,
    /// The selected tensor with its grid, and for which update and tensor it was read.
    detail: Option<(usize, String, Tensor)>,
    bytes: Option<(usize, Bytes)>,
    done: bool,
}

impl App {
    /// Reads the inputs: large ones by their headers alone.
    pub(super) fn open(inputs: &[PathBuf], models: &Models, limits: &Limits) -> Result<Self> {
        let quick = source::bytes(inputs) > inspect::SMALL_INPUT;
        let wanted = Wanted { each: true, quick, models: models.clone(), ..Wanted::default() };
        let paths = source::files(inputs)?;
        let (mut reports, mut failures) = (Vec::new(), Vec::new());
        for path in &paths {
            let (report, failure) = match source::read(path, &wanted, limits) {
                Ok(read) => read,
                Err(failure) if paths.len() == 1 => return Err(failure),
                // A fault in one file does not hide the others.
                Err(failure) => {
                    let file = path.display().to_string();
                    (Report { file, ..Report::default() }, Some(failure).filter(|f| !f.has_nothing()))
                }
            };
            reports.push(report);
            failures.extend(failure);
        }
        let mut updates: Vec<(usize, usize)> = Vec::new();
        for (number, report) in reports.iter().enumerate() {
            updates.extend((0..report.updates.len()).map(|update| (number, update)));
        }
        updates.sort_by_key(|&(r, u)| (reports[r].updates[u].step, reports[r].updates[u].sender));
        if updates.is_empty() {
            let failure = failures.into_iter().next();
            return Err(failure.unwrap_or_else(|| Failure::invalid("there is no update")));
        }
        let mut app = Self {
            limits: limits.clone(),
            models: models.clone(),
            reports,
            paths,
            failures,
            errors: BTreeMap::new(),
            updates,
            current: 0,
            tab: 0,
            order: Order::Bytes,
            filter: String::new(),
            is_typing: false,
            help: false,
            open: BTreeSet::new(),
            rows: Vec::new(),
            selected: 0,
            line: 0,
            detail: None,
            bytes: None,
            done: false,
        };
        app.arrange();
        Ok(app)
    }

    pub(super) fn is_done(&self) -> bool {
        self.done
    }

    pub(super) fn report(&self) -> &Report {
        &self.reports[self.updates[self.current].0]
    }

    pub(super) fn update(&self) -> &Update {
        &self.report().updates[self.updates[self.current].1]
    }

    /// Returns the selected tensor as the overview has it.
    pub(super) fn tensor(&self) -> Option<&Tensor> {
        self.update().tensors.get(self.rows.get(self.selected)?.tensor?)
    }

    /// Returns the selected tensor with all of its statistics; reads them if they are not there yet.
    pub(super) fn detail(&mut self) -> Option<&Tensor> {
        let name = self.tensor()?.name.clone();
        let is_there = matches!(&self.detail, Some((at, found, _)) if *at == self.current && *found == name);
        if !is_there {
            let (step, sender) = (self.update().step, self.update().sender);
            let numbered = self.update().numbered;
            let wanted = Wanted {
                step: numbered.0.then_some(step),
                sender: numbered.1.then_some(sender),
                tensor: Some(glob::Pattern::escape(&name).parse().ok()?),
                grid: true,
                each: true,
                models: self.models.clone(),
                ..Wanted::default()
            };
            let (report, _) =
                source::read(&self.paths[self.updates[self.current].0], &wanted, &self.limits).ok()?;
            let mut tensors = report.updates.into_iter().flat_map(|update| update.tensors);
            self.detail = Some((self.current, name, tensors.next()?));
        }
        self.detail.as_ref().map(|(.., tensor)| tensor)
    }

    /// Returns the fields of the first frame of the update; `None` for a file of tensors.
    pub(super) fn bytes(&mut self) -> Option<&Bytes> {
        let &frame = self.update().frames.first()?;
        if self.bytes.as_ref().is_none_or(|(at, _)| *at != self.current) {
            let input = Input::open(&self.paths[self.updates[self.current].0], DEFAULT_MAX_BYTES).ok()?;
            let wanted = Wanted { frame: Some(frame), ..Wanted::default() };
            let (pieces, _) = annotate::annotate(&input, &wanted, &self.limits);
            let lines: Vec<Line> = pieces.into_iter().flat_map(|piece| piece.lines).collect();
            let fields =
                || lines.iter().filter_map(|line| if let Line::Field(f) = line { Some(f) } else { None });
            let start = fields().map(|field: &Field| field.offset).min()? as usize;
            let end = fields().map(|field| field.offset as usize + field.len).max()?;
            let data = input.get(start..end)?.to_vec();
            self.bytes = Some((self.current, Bytes { frame, lines, data, start }));
        }
        self.bytes.as_ref().map(|(_, bytes)| bytes)
    }

    /// Reacts to a key.
    pub(super) fn press(&mut self, key: KeyEvent) {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            self.done = true;
            return;
        }
        if self.is_typing {
            return self.type_filter(key.code);
        }
        if self.help {
            self.help = false;
            return;
        }
        match key.code {
            KeyCode::Char('q') => self.done = true,
            KeyCode::Esc if !self.filter.is_empty() => {
                self.filter.clear();
                self.arrange();
            }
            KeyCode::Char('?') => self.help = true,
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char('s') => {
                self.order = self.order.next();
                self.arrange();
            }
            KeyCode::Tab => self.turn((self.tab + 1) % TABS.len()),
            KeyCode::BackTab => self.turn((self.tab + TABS.len() - 1) % TABS.len()),
            KeyCode::Char(digit @ '1'..='5') => self.turn(usize::from(digit as u8 - b'1')),
            KeyCode::Right | KeyCode::Char(']') => self.go(self.current + 1),
            KeyCode::Left | KeyCode::Char('[') => self.go(self.current.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(self.selected + 1),
            KeyCode::Up | KeyCode::Char('k') => self.select(self.selected.saturating_sub(1)),
            KeyCode::Home => self.select(0),
            KeyCode::End => self.select(usize::MAX),
            KeyCode::PageDown => self.line = self.line.saturating_add(PAGE),
            KeyCode::PageUp => self.line = self.line.saturating_sub(PAGE),
            KeyCode::Char('n') => self.line = self.line.saturating_add(1),
            KeyCode::Char('p') => self.line = self.line.saturating_sub(1),
            KeyCode::Enter | KeyCode::Char(' ') => self.toggle(),
            _ => {}
        }
    }

    fn type_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => _ = self.filter.pop(),
            KeyCode::Char(c) => self.filter.push(c),
            _ => return,
        }
        self.arrange();
    }

    fn turn(&mut self, tab: usize) {
        (self.tab, self.line) = (tab, 0);
    }

    /// Goes to another update; the selection stays on the same module or tensor.
    fn go(&mut self, update: usize) {
        self.current = update.min(self.updates.len() - 1);
        self.arrange();
    }

    fn select(&mut self, row: usize) {
        self.selected = row.min(self.rows.len().saturating_sub(1));
        if self.tab != 3 {
            self.line = 0;
        }
    }

    fn toggle(&mut self) {
        let Some(node) = self.rows.get(self.selected).filter(|node| node.tensor.is_none()) else { return };
        let path = node.path.clone();
        if !self.open.remove(&path) {
            self.open.insert(path);
        }
        self.arrange();
    }

    /// Computes the rows again; the selected one stays selected if it is there.
    fn arrange(&mut self) {
        let before = self.rows.get(self.selected).map(|node| node.path.clone());
        self.rows = tree::rows(&self.update().tensors, &self.open, &self.filter, self.order);
        let same = self.rows.iter().position(|node| Some(&node.path) == before.as_ref());
        self.select(same.unwrap_or(0));
    }
}

/// Lines that the keys for pages move.
const PAGE: usize = 16;
