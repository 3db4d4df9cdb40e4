//! The public gradient set.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use gcodec::compress::Input;
use gcodec::frame::{Manifest, TensorInfo};
use gcodec::{Dtype, TensorBuf};

use crate::Result;

/// The tensors of a file, in the order of their data.
pub(crate) struct Dump {
    pub(crate) name: String,
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) tensors: Vec<TensorBuf>,
}

impl Dump {
    pub(crate) fn new(name: impl Into<String>, named: Vec<(String, TensorBuf)>) -> Result<Self> {
        let infos = named.iter().map(|(name, t)| TensorInfo::new(name, t.dtype(), t.shape()));
        let manifest = Arc::new(Manifest::new(infos.collect())?);
        Ok(Self { name: name.into(), manifest, tensors: named.into_iter().map(|(_, t)| t).collect() })
    }

    pub(crate) fn load(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path)?;
        let file = safetensors::SafeTensors::deserialize(&bytes)?;
        let mut tensors = file.tensors();
        tensors.sort_by_key(|(_, view)| view.data().as_ptr() as usize);
        let mut named = Vec::new();
        for (name, view) in tensors {
            let dtype = match view.dtype() {
                safetensors::Dtype::F32 => Dtype::F32,
                safetensors::Dtype::F16 => Dtype::F16,
                safetensors::Dtype::BF16 => Dtype::Bf16,
                other => return Err(format!("{}: element type {other:?}", path.display()).into()),
            };
            let shape = view.shape().iter().map(|&d| d as u64).collect();
            named.push((name, TensorBuf::new(dtype, shape, view.data().to_vec())?));
        }
        Self::new(path.file_stem().unwrap_or_default().to_string_lossy(), named)
    }

    pub(crate) fn inputs(&self) -> Vec<Input<'_>> {
        let named = self.manifest.tensors().iter().zip(&self.tensors).enumerate();
        named
            .map(|(i, (info, t))| Input { tensor: i as u64, name: &info.name, view: t.view(), base: None })
            .collect()
    }

    pub(crate) fn elements(&self) -> u64 {
        self.manifest.elements()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.data().len() as u64).sum()
    }

    /// Whether every tensor has this element type.
    pub(crate) fn is(&self, dtype: Dtype) -> bool {
        self.tensors.iter().all(|t| t.dtype() == dtype)
    }
}

/// Loads every dump of the set, including the tiny ones, by name.
pub(crate) fn load_all(folder: &Path) -> Result<Vec<Dump>> {
    let mut paths = Vec::new();
    for folder in [folder.to_owned(), folder.join("tiny")] {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == "safetensors") {
                paths.push(path);
            }
        }
    }
    paths.sort();
    paths.iter().map(|p| Dump::load(p)).collect()
}

/// Loads the chain of weight syncs in a folder: its base, and the weights after each sync.
///
/// `chain.npz` has for each sync the changed positions, over all tensors one after the other (`idx1`, ..),
/// and their new elements (`new1`, ..).
pub(crate) fn load_chain(folder: &Path) -> Result<Vec<Dump>> {
    let mut chain = vec![Dump::load(&folder.join("base.safetensors"))?];
    let mut archive = zip::ZipArchive::new(std::fs::File::open(folder.join("chain.npz"))?)?;
    let mut array = |name: String| -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        archive.by_name(&name)?.read_to_end(&mut bytes)?;
        // NumPy's format, version 1.0: the header's length stands in bytes 8 and 9.
        let header = bytes.get(8..10).map_or(0, |len| usize::from(len[0]) | usize::from(len[1]) << 8);
        bytes.drain(..(10 + header).min(bytes.len()));
        Ok(bytes)
    };
    for sync in 1..=12 {
        let (positions, elements) = (array(format!("idx{sync}.npy"))?, array(format!("new{sync}.npy"))?);
        let last = &chain[chain.len() - 1];
        let lens: Vec<usize> = last.tensors.iter().map(|t| t.data().len()).collect();
        let mut data: Vec<u8> = last.tensors.iter().flat_map(|t| t.data()).copied().collect();
        for (position, element) in positions.as_chunks().0.iter().zip(elements.as_chunks::<2>().0) {
            let at = 2 * u32::from_le_bytes(*position) as usize;
            data.get_mut(at..at + 2).ok_or("a position outside of the tensors")?.copy_from_slice(element);
        }
        let mut rest = data.as_slice();
        let mut tensors = Vec::with_capacity(lens.len());
        for (tensor, len) in last.tensors.iter().zip(lens) {
            let (own, after) = rest.split_at(len);
            tensors.push(TensorBuf::new(tensor.dtype(), tensor.shape().to_vec(), own.to_vec())?);
            rest = after;
        }
        chain.push(Dump { name: format!("sync {sync}"), manifest: last.manifest.clone(), tensors });
    }
    Ok(chain)
}
