//! Opaque tensors in streams and stores: their bytes are tensors of u8, and a label in the metadata has their
//! type and shape, so that a file that is decoded has them as its source had.

use super::{Dump, NamedTensor, Opaque, Outline, quoted};
use super::{npy, safetensors};
use crate::fail::{Failure, InFile, Result};
use crate::options::NameGlob;
use crate::output::warn;
use gcodec::tensor::Dtype;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Key of the metadata with the labels, as JSON.
const KEY: &str = "gcodec-opaque";

/// Type and shape of an opaque tensor, of which a stream has the bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Label {
    /// Element type, as the source calls it.
    pub(crate) dtype: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) shape: Option<Vec<u64>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    form: Option<Form>,
}

/// How a file has an opaque tensor, where gcodec writes such files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Form {
    /// The element type is a name of safetensors.
    Safetensors,
    /// The element type is the `descr` of a .npy file.
    Npy,
    /// The bytes are a whole file in an archive.
    File,
}

impl Label {
    /// Whether two opaque tensors are of one type and shape, whatever their formats call the type.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        common(&self.dtype) == common(&other.dtype) && self.shape == other.shape
    }

    fn new(dtype: String, shape: Option<Vec<u64>>, form: Option<Form>) -> Self {
        Self { dtype, shape, form }
    }

    /// Returns the element type and shape under which a safetensors file has `bytes` bytes of it.
    pub(super) fn in_safetensors(&self, bytes: u64) -> Option<(&str, &[u64])> {
        let (dtype, shape) = (self.dtype.as_str(), self.shape.as_deref()?);
        let dtype = match (self.form, common(dtype)) {
            (Some(Form::Safetensors), _) => dtype,
            (_, "complex64") => "C64",
            _ => return None,
        };
        safetensors::can_hold(dtype, shape, bytes).then_some((dtype, shape))
    }

    /// Returns the header of a .npy file with `bytes` bytes of it.
    pub(super) fn in_npy(&self, bytes: u64) -> Option<Vec<u8>> {
        let shape = self.shape.as_deref()?;
        let descr = match (self.form, common(&self.dtype)) {
            (Some(Form::Npy), _) => &self.dtype,
            (Some(Form::File), _) => return None,
            (_, "complex64") => "<c8",
            (_, "complex128") => "<c16",
            _ => return None,
        };
        // A structure is a list of fields, another type a string.
        let descr = if descr.starts_with('[') { descr.to_owned() } else { format!("'{descr}'") };
        npy::opaque_header(&descr, shape, bytes)
    }

    /// Whether it is a whole file of an archive.
    pub(super) fn is_file(&self) -> bool {
        self.form == Some(Form::File)
    }
}

/// Returns the one name of types that formats call by several.
fn common(dtype: &str) -> &str {
    match dtype {
        "C64" | "<c8" => "complex64",
        "<c16" => "complex128",
        dtype => dtype,
    }
}

/// The labels in some metadata, by the names of the tensors.
#[derive(Debug, Default)]
pub(crate) struct Labels(BTreeMap<String, Label>);

impl Labels {
    /// Returns the labels of metadata; none if they are not what gcodec writes.
    pub(crate) fn of(metadata: &BTreeMap<String, String>) -> Self {
        Self(metadata.get(KEY).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the labels under other names.
    pub(crate) fn renamed(self, name: impl Fn(&str) -> String) -> Self {
        Self(self.0.into_iter().map(|(of, label)| (name(&of), label)).collect())
    }

    /// Returns the label of a tensor. One of a tensor that is no row of bytes is out of date.
    pub(crate) fn find(&self, tensor: &Outline<'_>) -> Option<&Label> {
        let is_bytes = tensor.dtype == Dtype::U8 && tensor.shape.len() == 1;
        self.0.get(tensor.name).filter(|_| is_bytes)
    }

    /// As [`Self::find`], of the parts of a tensor.
    pub(crate) fn of_row(&self, name: &str, dtype: &str, shape: &[u64]) -> Option<&Label> {
        Dtype::from_name(dtype).and_then(|dtype| self.find(&Outline { name, dtype, shape }))
    }

    /// Returns the element type of a tensor, as its source calls it.
    pub(crate) fn dtype<'l>(&'l self, tensor: &Outline<'_>) -> &'l str {
        self.find(tensor).map_or(tensor.dtype.name(), |label| &label.dtype)
    }

    /// Returns metadata with these labels in place of those it has.
    pub(super) fn put(&self, metadata: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let mut metadata = metadata.clone();
        metadata.remove(KEY);
        metadata.extend(self.entry());
        metadata
    }

    /// Returns the entry of the metadata, if there are labels.
    pub(crate) fn entry(&self) -> Option<(String, String)> {
        let text = serde_json::to_string(&self.0).ok().filter(|_| !self.0.is_empty())?;
        Some((KEY.to_owned(), text))
    }

    /// Returns the label of one tensor.
    #[cfg(feature = "store")]
    pub(crate) fn only(mut self, name: &str) -> Self {
        self.0.retain(|of, _| of == name);
        self
    }

    /// Removes a label.
    pub(super) fn take(&mut self, name: &str) {
        self.0.remove(name);
    }
}

impl Dump {
    /// Turns opaque tensors into tensors of their bytes, with labels in the metadata. Those whose bytes are
    /// not known stay opaque.
    pub(crate) fn carry(&mut self) {
        let mut labels = Labels::of(&self.metadata);
        for mut opaque in std::mem::take(&mut self.opaque) {
            match opaque.take_data() {
                None => self.opaque.push(opaque),
                Some((data, form)) => {
                    let label = Label::new(opaque.dtype.into_owned(), opaque.shape, form);
                    labels.0.insert(opaque.name.clone(), label);
                    let (name, shape) = (opaque.name, vec![data.len()]);
                    self.tensors.push(NamedTensor { name, dtype: Dtype::U8, shape, data, stored: None });
                }
            }
        }
        self.metadata = labels.put(&self.metadata);
    }

    /// Turns tensors of bytes that the metadata has labels of back into opaque ones.
    pub(super) fn uncarry(&mut self) {
        let labels = Labels::of(&self.metadata);
        if labels.is_empty() {
            return;
        }
        self.metadata.remove(KEY);
        for tensor in std::mem::take(&mut self.tensors) {
            match labels.find(&Outline::from(&tensor)) {
                None => self.tensors.push(tensor),
                Some(Label { dtype, shape, form }) => {
                    let (bytes, reason) = (tensor.data.len(), "its bytes are from a file of another format");
                    let opaque = Opaque::new(tensor.name, dtype.clone(), shape.clone(), bytes, reason);
                    self.opaque.push(opaque.with_data(tensor.data).with_form_of(*form));
                }
            }
        }
    }

    /// Reads the file at `path` for a copy that has all of its tensors, except those whose names match
    /// `without`: opaque ones become tensors of their bytes, with a warning.
    ///
    /// # Errors
    /// A failure that names an opaque tensor whose bytes are not known.
    pub(crate) fn open_whole(path: &Path, without: &[NameGlob], quiet: bool) -> Result<Self> {
        let mut dump = Self::open_quietly(path)?;
        if let Some(glob) = without.iter().find(|glob| !dump.names().any(|name| glob.matches(name))) {
            warn(format_args!("{}: no tensor matches --without {}", path.display(), glob.text()));
        }
        let is_kept = |name: &str| !without.iter().any(|glob| glob.matches(name));
        dump.tensors.retain(|tensor| is_kept(tensor.name()));
        dump.opaque.retain(|tensor| is_kept(&tensor.name));
        if let Some(opaque) = dump.opaque.iter().find(|opaque| !opaque.has_data()) {
            let what = format!(
                "{} ({}) is opaque, and its bytes cannot be kept: {}; --without '{}' leaves it out",
                quoted(&opaque.name),
                opaque.dtype,
                opaque.reason,
                glob::Pattern::escape(&opaque.name)
            );
            return Err(Failure::usage(what)).in_file(path);
        }
        if !quiet {
            dump.warn_of_opaque(path, "; its bytes are kept as they are");
        }
        dump.carry();
        Ok(dump)
    }
}
