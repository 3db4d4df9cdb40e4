//! The method `dense`: expands the updates of one turn and adds them, a few tensors at a time.

use super::turns::{self, Update, explained};
use super::{Args, Width};
use crate::assign::{self, Plan, fitting};
use crate::fail::{Failure, InFile, Result};
use crate::spool::Spool;
use crate::stream::{check_bytes, explain};
use crate::tensors::{self, Outline};
use gcodec::compress::{self, Options};
use gcodec::frame::{Manifest, TensorInfo};
use gcodec::reduce::{Precision, Sum, SumOptions, SumPieces};
use gcodec::{Codec, TensorView, Writer};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

/// The sum or mean of one turn.
pub(super) struct Dense<'a> {
    args: &'a Args,
    manifest: Arc<Manifest>,
    pieces: SumPieces<'a>,
    /// The input of each sender, for errors that a block gives when it is added.
    paths: BTreeMap<u64, PathBuf>,
}

impl<'a> Dense<'a> {
    pub(super) fn new(args: &'a Args, updates: Vec<Update<'a>>) -> Result<Self> {
        let precision = match args.precision {
            Width::F32 => Precision::F32,
            Width::F64 => Precision::F64,
        };
        let limits = args.limits.limits();
        let manifest = Arc::clone(turns::check_manifests(args, &updates)?);
        check_bytes(manifest.tensors().iter(), &limits)?;
        let options = SumOptions::default().with_limits(limits).with_precision(precision);
        let (mut sum, mut paths) = (Sum::new(&manifest, options), BTreeMap::new());
        for update in updates {
            let path = update.path(args);
            paths.insert(update.header().sender, path.to_owned());
            for part in update.parts {
                let added = sum.add_later(part, update.weight);
                added.map_err(|e| explained(args, e, &manifest).in_file(path))?;
            }
        }
        let pieces = sum.into_pieces(args.mean).map_err(|e| explain(e, Some(&manifest)))?;
        Ok(Self { args, manifest, pieces, paths })
    }

    /// Writes the sum as an update.
    pub(super) fn write<W: Write>(mut self, writer: &mut Writer<W>, codec: Option<Codec>) -> Result<()> {
        let header = self.pieces.header().clone();
        let Some(codec) = codec else {
            let written = writer.update(&header, &self.manifest, self.pieces.blocks());
            return written.map_err(|e| self.explained(e));
        };
        let manifest = Arc::clone(&self.manifest);
        // A codec takes whole tensors, which need not fit in memory.
        let mut spool = Spool::beside(&self.args.output);
        self.each(|_, bytes| spool.add(bytes))?;
        let elements = spool.finish()?;
        let plan = Plan::new(codec, &[]);
        let inputs: Vec<_> = (0u64..)
            .zip(tensors(&manifest, &elements)?)
            .map(|(tensor, (name, view))| compress::Input { tensor, name, view, base: None })
            .collect();
        let codecs: Vec<Codec> =
            inputs.iter().map(|input| fitting(plan.codec(input.name), &input.view)).collect();
        let explained = |e| assign::explain(e, &manifest);
        let blocks = compress::pending(&inputs, &codecs, &Options::default()).map_err(explained)?;
        writer.update(&header.with_label(codec.to_string()), &manifest, blocks).map_err(explained)
    }

    /// Writes the sum as a file of tensors. Returns its length.
    pub(super) fn write_tensors(mut self) -> Result<u64> {
        let (args, manifest) = (self.args, Arc::clone(&self.manifest));
        let outlines: Vec<_> = manifest.tensors().iter().map(Outline::from).collect();
        tensors::write_from(&args.output, &outlines, &BTreeMap::new(), None, &mut |sink| {
            self.each(|info, bytes| sink(&info.name, bytes))
        })?;
        Ok(std::fs::metadata(&args.output).in_file(&args.output)?.len())
    }

    /// Calls `take` with the elements of each tensor, in one or several pieces, in the order of the manifest.
    fn each(&mut self, mut take: impl FnMut(&TensorInfo, &[u8]) -> Result<()>) -> Result<()> {
        let manifest = Arc::clone(&self.manifest);
        while let Some(piece) = self.pieces.next() {
            let number = piece.as_ref().map_or(0, |piece| piece.tensor);
            let bytes = piece.and_then(|piece| piece.into_elements()).map_err(|e| self.explained(e))?;
            let info = usize::try_from(number).ok().and_then(|number| manifest.tensors().get(number));
            info.map_or(Ok(()), |info| take(info, &bytes))?;
            self.pieces.reuse(bytes);
        }
        Ok(())
    }

    /// Adds the input and the tensor's name to a failure.
    fn explained(&self, error: gcodec::Error) -> Failure {
        let failure = explain(error, Some(&self.manifest));
        match self.pieces.sender().and_then(|sender| self.paths.get(&sender)) {
            Some(path) => failure.in_file(path),
            None => failure,
        }
    }
}

/// Returns the tensors of a manifest with their names, whose elements lie one after another.
fn tensors<'t>(manifest: &'t Manifest, mut elements: &'t [u8]) -> Result<Vec<(&'t str, TensorView<'t>)>> {
    let tensor = |info: &'t TensorInfo| {
        let len = usize::try_from(info.bytes()).unwrap_or(usize::MAX);
        let (data, after) = elements.split_at_checked(len).unwrap_or((elements, &[]));
        elements = after;
        Ok((info.name.as_str(), TensorView::new(info.dtype, &info.shape, data)?))
    };
    manifest.tensors().iter().map(tensor).collect()
}
