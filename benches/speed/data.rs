//! What is measured: real gradients and weights, repeated to any length, and noise.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gcodec::compress::{Input, random};
use gcodec::frame::{Manifest, TensorInfo};
use gcodec::{Dtype, TensorBuf};

/// Named tensors of one update.
pub(crate) struct Tensors {
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) tensors: Vec<TensorBuf>,
}

impl Tensors {
    fn new(named: Vec<(String, TensorBuf)>) -> Self {
        let infos = named.iter().map(|(name, t)| TensorInfo::new(name, t.dtype(), t.shape().to_vec()));
        let manifest = Arc::new(Manifest::new(infos.collect()).expect("distinct names"));
        Self { manifest, tensors: named.into_iter().map(|(_, tensor)| tensor).collect() }
    }

    /// Makes one tensor, `w`.
    pub(crate) fn one(tensor: TensorBuf) -> Self {
        Self::new(vec![("w".to_owned(), tensor)])
    }

    /// The tensors with their names, to compress.
    pub(crate) fn inputs(&self) -> Vec<Input<'_>> {
        let each = self.tensors.iter().zip(self.manifest.tensors()).zip(0..);
        each.map(|((t, info), tensor)| Input { tensor, name: &info.name, view: t.view(), base: None })
            .collect()
    }

    pub(crate) fn elements(&self) -> u64 {
        self.tensors.iter().map(|t| t.view().elements()).sum()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.tensors.iter().map(|t| t.data().len()).sum()
    }

    /// Returns the elements of all tensors as one tensor of one dimension.
    pub(crate) fn flat(&self) -> Self {
        let data = self.tensors.iter().flat_map(|t| t.data()).copied().collect();
        let flat = TensorBuf::new(self.tensors[0].dtype(), vec![self.elements()], data);
        Self::one(flat.expect("all elements"))
    }

    /// Returns f32 tensors as bf16, rounded to the nearest.
    pub(crate) fn to_bf16(&self) -> Self {
        let rounded = |t: &TensorBuf| {
            let words = t.data().as_chunks().0.iter().map(|b| half::bf16::from_f32(f32::from_le_bytes(*b)));
            TensorBuf::new(Dtype::Bf16, t.shape().to_vec(), words.flat_map(half::bf16::to_le_bytes).collect())
        };
        let tensors = self.tensors.iter().map(|t| rounded(t).expect("the same shape"));
        Self::new(self.names().zip(tensors).collect())
    }

    /// Returns f32 tensors whose elements are turned, each by so many elements.
    pub(crate) fn turned(&self, by: usize) -> Self {
        let turned = |t: &TensorBuf| {
            let mut data = t.data().to_vec();
            let len = data.len().max(1);
            data.rotate_left(4 * by % len);
            TensorBuf::new(t.dtype(), t.shape().to_vec(), data)
        };
        let tensors = self.tensors.iter().map(|t| turned(t).expect("the same shape"));
        Self::new(self.names().zip(tensors).collect())
    }

    fn names(&self) -> impl Iterator<Item = String> {
        self.manifest.tensors().iter().map(|info| info.name.clone())
    }

    /// Repeats each tensor along its rows, to about so many elements in all. Each copy has a sign and a scale
    /// of its own, which `scale` gives by its number, so that nothing repeats.
    fn repeated(&self, elements: usize, scale: fn(usize) -> f32) -> Self {
        let copies = elements.div_ceil(self.elements() as usize);
        let repeat = |t: &TensorBuf| {
            let scales = (0..copies).map(|i| if i.is_multiple_of(3) { -scale(i) } else { scale(i) });
            let data = scales.flat_map(|scale| scaled(t, scale)).collect();
            let mut shape = t.shape().to_vec();
            shape[0] *= copies as u64;
            TensorBuf::new(t.dtype(), shape, data).expect("whole copies")
        };
        Self::new(self.names().zip(self.tensors.iter().map(repeat)).collect())
    }
}

fn scaled(tensor: &TensorBuf, scale: f32) -> Vec<u8> {
    let data = tensor.data();
    match tensor.dtype() {
        Dtype::Bf16 => {
            let scaled = |b: &[u8; 2]| half::bf16::from_le_bytes(*b) * half::bf16::from_f32(scale);
            data.as_chunks().0.iter().flat_map(|b| scaled(b).to_le_bytes()).collect()
        }
        _ => data.as_chunks().0.iter().flat_map(|b| (f32::from_le_bytes(*b) * scale).to_le_bytes()).collect(),
    }
}

/// Returns the folder of the public set.
fn folder() -> PathBuf {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/gradients");
    std::env::var_os("GCODEC_GRADIENTS").map_or_else(default, Into::into)
}

/// Returns the files of floats of the public set, or the project's own, by their names.
pub(crate) fn files() -> Vec<(String, Tensors)> {
    let of = |folder: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).into_iter().flatten();
        let paths = entries.map(|entry| entry.expect("an entry").path());
        paths.filter(|path| path.extension().is_some_and(|extension| extension == "safetensors")).collect()
    };
    let public = [of(&folder()), of(&folder().join("weight_sync"))].concat();
    let own = || of(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/cli/gradients"));
    let mut paths = if public.is_empty() { own() } else { public };
    paths.sort();
    let read = |path: &PathBuf| (name(path), read(path));
    paths.iter().map(read).filter(|(_, tensors)| tensors.bytes() > 0).collect()
}

/// Reads a file of the public set of gradients, or the project's own small one where that is not there.
/// `GCODEC_GRADIENTS` names the folder of the set.
fn file(public: &str, own: &str) -> (PathBuf, Tensors) {
    let public = folder().join(public);
    let own = || Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/cli/gradients").join(own);
    let path = if public.exists() { public } else { own() };
    let tensors = read(&path);
    (path, tensors)
}

/// Reads the tensors of a safetensors file of the repository or of the public set.
fn read(path: &Path) -> Tensors {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
    let json: serde_json::Value = serde_json::from_slice(&bytes[8..header]).expect("a header");
    let entries = json.as_object().expect("a table").iter().filter(|(name, _)| *name != "__metadata__");
    let tensor = |(name, entry): (&String, &serde_json::Value)| {
        let number = |v: &serde_json::Value| v.as_u64().expect("a number");
        let list = |key: &str| entry[key].as_array().expect("a list").iter().map(number).collect::<Vec<_>>();
        let ends = list("data_offsets").into_iter().map(|at| header + at as usize).collect::<Vec<_>>();
        let dtype = Dtype::from_name(&entry["dtype"].as_str().expect("a name").to_lowercase());
        let data = bytes[ends[0]..ends[1]].to_vec();
        (name.clone(), TensorBuf::new(dtype.expect("a type"), list("shape"), data).expect("whole elements"))
    };
    Tensors::new(entries.map(tensor).collect())
}

/// Returns a transformer's gradient (f32), and the name of its file.
pub(crate) fn gradient(elements: usize) -> (String, Tensors) {
    let (path, tensors) =
        file("gpt_step0300_worker0.safetensors", "digits_convnet_step0030_worker0.safetensors");
    (name(&path), tensors.repeated(elements, |i| 1.0 + (37 * i % 97) as f32 / 97.0))
}

/// Returns the weights (bf16) of two versions that follow each other, and the name of the file of the first.
pub(crate) fn weights(elements: usize) -> (String, [Tensors; 2]) {
    // Powers of two: the differences of the versions stay what they are.
    let version = |number: u8| {
        let (path, tensors) = file(
            &format!("weight_sync/gpt_bf16_sync0{number}.safetensors"),
            &format!("gpt_attention_bf16_sync0{number}.safetensors"),
        );
        (name(&path), tensors.repeated(elements, |i| 2f32.powi((i / 4 % 3) as i32 - 1)))
    };
    let ((name, old), (_, new)) = (version(20), version(21));
    (name, [old, new])
}

fn name(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns approximately normal numbers, each times its scale: sums of four uniform numbers.
pub(crate) fn noise(elements: usize, scale: impl Fn(usize) -> f32) -> Vec<f32> {
    let mut words = vec![0; 2 << 16];
    let mut out = Vec::with_capacity(elements);
    for start in (0..elements).step_by(1 << 16) {
        random::words(7, 0, 2 * start as u64, &mut words);
        for (i, pair) in words.chunks(2).enumerate().take(elements - start) {
            let uniforms = [pair[0] & 0xffff, pair[0] >> 16, pair[1] & 0xffff, pair[1] >> 16];
            let sum = uniforms.iter().sum::<u32>() as f32 - 131_070.0;
            // A fraction of the sum's step, so that no number is zero.
            let fine = ((pair[0] ^ pair[1]) & 0xff) as f32 / 256.0 + 1.0 / 512.0;
            out.push((sum + fine) * 1e-6 * scale(start + i));
        }
    }
    out
}
