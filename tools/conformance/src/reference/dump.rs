//! Dumps that are given to both decoders.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::Result;

/// A safetensors file, read and written here so that the test does not trust the library's reader.
#[derive(Default)]
pub(super) struct Dump {
    pub(super) tensors: BTreeMap<String, Tensor>,
}

pub(super) struct Tensor {
    pub(super) dtype: String,
    pub(super) shape: Vec<u64>,
    pub(super) data: Vec<u8>,
}

impl Dump {
    pub(super) fn read(path: &Path) -> Result<Self> {
        let wrong = || format!("{} is no safetensors file", path.display());
        let bytes = fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let (len, rest) = bytes.split_first_chunk::<8>().ok_or_else(wrong)?;
        let (header, data) =
            rest.split_at_checked(usize::try_from(u64::from_le_bytes(*len))?).ok_or_else(wrong)?;
        let header: serde_json::Map<String, Value> = serde_json::from_slice(header)?;
        let mut tensors = BTreeMap::new();
        for (name, entry) in header.into_iter().filter(|(name, _)| name != "__metadata__") {
            let numbers = |v: &Value| v.as_array()?.iter().map(Value::as_u64).collect::<Option<Vec<_>>>();
            let shape = numbers(&entry["shape"]).ok_or_else(wrong)?;
            let range = numbers(&entry["data_offsets"]).ok_or_else(wrong)?;
            let &[from, to] = &range[..] else { return Err(wrong().into()) };
            let data = data.get(usize::try_from(from)?..usize::try_from(to)?).ok_or_else(wrong)?.to_vec();
            let dtype = entry["dtype"].as_str().ok_or_else(wrong)?.to_owned();
            tensors.insert(name, Tensor { dtype, shape, data });
        }
        Ok(Self { tensors })
    }

    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
        for (name, tensor) in &self.tensors {
            let from = data.len();
            data.extend_from_slice(&tensor.data);
            header.insert(
                name.clone(),
                json!({"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [from, data.len()]}),
            );
        }
        let header = serde_json::to_vec(&header)?;
        let parts = [&(header.len() as u64).to_le_bytes()[..], &header, &data];
        Ok(fs::write(path, parts.concat())?)
    }

    /// Returns the first rows of each tensor, with a maximum number of elements per tensor and in total.
    pub(super) fn cut(mut self, (of_tensor, of_file): (usize, usize)) -> Self {
        let mut left = of_file;
        self.tensors.retain(|_, tensor| {
            let elements = tensor.shape.iter().product::<u64>() as usize;
            let most = of_tensor.min(left);
            if elements > most {
                let row = elements / tensor.shape.first().map_or(1, |&d| d as usize);
                let size = tensor.data.len() / elements;
                // A row that is too long is shortened too, to a tensor of one row.
                let (rows, row) = if row > most { (1, most) } else { (most / row, row) };
                tensor.data.truncate(rows * row * size);
                tensor.shape = vec![rows as u64, row as u64];
            }
            let kept = tensor.shape.iter().product::<u64>() as usize;
            left -= kept;
            kept > 0
        });
        self
    }

    /// Returns the same bytes as elements of every type.
    pub(super) fn as_all_types(&self) -> Self {
        const TYPES: [(&str, u64); 18] = [
            ("F64", 64),
            ("F32", 32),
            ("F16", 16),
            ("BF16", 16),
            ("F8_E4M3", 8),
            ("F8_E5M2", 8),
            ("F8_E4M3FNUZ", 8),
            ("F8_E5M2FNUZ", 8),
            ("F4", 4),
            ("I8", 8),
            ("I16", 16),
            ("I32", 32),
            ("I64", 64),
            ("U8", 8),
            ("U16", 16),
            ("U32", 32),
            ("U64", 64),
            ("BOOL", 8),
        ];
        let Some(source) = self.tensors.values().max_by_key(|t| t.data.len()) else { return Self::default() };
        let mut tensors = BTreeMap::new();
        for (dtype, bits) in TYPES {
            let mut data = source.data[..source.data.len().min(1200) / 8 * 8].to_vec();
            if dtype == "BOOL" {
                data.iter_mut().for_each(|b| *b &= 1);
            }
            let elements = data.len() as u64 * 8 / bits;
            tensors.insert(
                format!("as.{}", dtype.to_lowercase()),
                Tensor { dtype: dtype.into(), shape: vec![2, elements / 2], data },
            );
        }
        tensors.insert("empty".into(), Tensor { dtype: "F32".into(), shape: vec![0, 3], data: vec![] });
        tensors
            .insert("läpi".into(), Tensor { dtype: "F32".into(), shape: vec![], data: vec![0, 0, 128, 63] });
        Self { tensors }
    }

    /// Returns the tensors in the reference decoder's form.
    pub(super) fn as_json(&self) -> Value {
        let hex = |data: &[u8]| data.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let tensors = self.tensors.iter().map(|(name, t)| {
            let dtype = match t.dtype.as_str() {
                "F8_E4M3" => "f8e4m3fn".into(),
                "F4" => "f4e2m1".into(),
                other => other.replace('_', "").to_lowercase(),
            };
            (name.clone(), json!({"dtype": dtype, "shape": t.shape, "data": hex(&t.data)}))
        });
        Value::Object(tensors.collect())
    }
}
