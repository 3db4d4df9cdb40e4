//! Tensors whose elements gcodec does not read: what their file says of them, and why they are not read.

use super::label::Form;
use super::values::Values;
use super::{Data, Dump, NamedTensor, quoted};
use crate::output::{counted, warn};
use gcodec::internal::stats_of_pieces;
use gcodec::reduce::stats::{Stats, StatsOptions};
use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;

/// A tensor whose elements are not read.
#[derive(Debug)]
pub(crate) struct Opaque {
    pub(crate) name: String,
    /// Element type, as the file's format calls it.
    pub(crate) dtype: Cow<'static, str>,
    /// `None` if the file does not say it.
    pub(crate) shape: Option<Vec<u64>>,
    /// Bytes of the elements.
    pub(crate) bytes: u64,
    /// Why the elements are not read.
    pub(crate) reason: Cow<'static, str>,
    /// Its bytes, if the format of the file tells where they are.
    data: Option<Data>,
    /// How a file that gcodec writes has it.
    form: Option<Form>,
}

impl Opaque {
    pub(crate) fn new(
        name: String,
        dtype: impl Into<Cow<'static, str>>,
        shape: Option<Vec<u64>>,
        bytes: u64,
        reason: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { name, dtype: dtype.into(), shape, bytes, reason: reason.into(), data: None, form: None }
    }

    /// Adds its bytes, which commands that copy tensors then carry.
    pub(super) fn with_data(self, data: Data) -> Self {
        Self { data: Some(data), ..self }
    }

    /// Says how a file that gcodec writes has its bytes.
    pub(super) fn with_form(self, form: Form) -> Self {
        Self { form: Some(form), ..self }
    }

    /// Says how a file has its bytes, if that is known.
    pub(super) fn with_form_of(self, form: Option<Form>) -> Self {
        Self { form, ..self }
    }

    /// Whether its values are known, although streams have no such type.
    pub(crate) fn has_values(&self) -> bool {
        self.known_values().is_some()
    }

    /// Returns the statistics of its values as f32: of complex numbers the magnitudes.
    pub(crate) fn stats(&self, options: &StatsOptions) -> Option<Stats> {
        let (values, shape, data) = self.known_values()?;
        if !data.is_elsewhere() {
            return Some(Stats::of(&values.read(shape, data)?.view(), options));
        }
        let piece = |elements: Range<u64>| {
            let bytes = data.part(values.place(elements.start)..values.place(elements.end));
            values.read(&[elements.end - elements.start], &bytes).ok_or(())
        };
        stats_of_pieces(shape, options, piece).ok()
    }

    fn known_values(&self) -> Option<(Values, &[u64], &Data)> {
        let (shape, data) = (self.shape.as_deref()?, self.data.as_ref()?);
        Values::of(&self.dtype)
            .filter(|values| values.fits(shape, data.len()))
            .map(|values| (values, shape, data))
    }

    /// Whether its bytes are known.
    pub(super) fn has_data(&self) -> bool {
        self.data.is_some()
    }

    /// Takes its bytes, if they are known, and how a file that gcodec writes has them.
    pub(super) fn take_data(&mut self) -> Option<(Data, Option<Form>)> {
        Some((self.data.take()?, self.form))
    }
}

impl Dump {
    /// Returns the names of all tensors, of the opaque ones last.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let opaque = self.opaque.iter().map(|tensor| tensor.name.as_str());
        self.tensors.iter().map(NamedTensor::name).chain(opaque)
    }

    /// Names the tensors that cannot be read, with the reason of the first, and what becomes of them.
    pub(crate) fn warn_of_opaque(&self, path: &Path, fate: &str) {
        let unread: Vec<&Opaque> = self.opaque.iter().filter(|tensor| !tensor.has_values()).collect();
        let Some(first) = unread.first() else { return };
        let more = match unread.len() - 1 {
            0 => String::new(),
            more => format!("; {} more {} opaque", counted(more as u64, "tensor"), are(more)),
        };
        let (path, name) = (path.display(), quoted(&first.name));
        warn(format_args!("{path}: {name} ({}) is opaque: {}{fate}{more}", first.dtype, first.reason));
    }
}

fn are(number: usize) -> &'static str {
    if number == 1 { "is" } else { "are" }
}
