//! Files as PyTorch writes them: pickles, archives, and distributed checkpoints.

use std::io::Write;
use std::path::Path;

/// A value of Python that a pickle holds.
#[derive(Clone)]
pub enum Value {
    None,
    Bool(bool),
    Int(u32),
    Text(String),
    Tuple(Vec<Self>),
    List(Vec<Self>),
    Dict(Vec<(Self, Self)>),
    /// Module and name.
    Global(&'static str, &'static str),
    /// A function and its arguments.
    Call(Box<Self>, Vec<Self>),
    /// An object and its state.
    Build(Box<Self>, Box<Self>),
    Persistent(Box<Self>),
    /// A value with a number.
    Put(u8, Box<Self>),
    /// The value of a number.
    Get(u8),
    /// An empty dict or object that holds itself: its number, then what is put into it.
    Fill(Box<Self>, Box<Self>),
}

pub fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

pub fn call(module: &'static str, name: &'static str, arguments: Vec<Value>) -> Value {
    Value::Call(Box::new(Value::Global(module, name)), arguments)
}

/// An object of a class, with its attributes.
pub fn object(module: &'static str, name: &'static str, attributes: Vec<(&str, Value)>) -> Value {
    Value::Build(Box::new(call(module, name, vec![])), Box::new(dict(attributes)))
}

pub fn dict(items: Vec<(&str, Value)>) -> Value {
    Value::Dict(items.into_iter().map(|(key, value)| (text(key), value)).collect())
}

pub fn ints(numbers: &[u64]) -> Value {
    Value::Tuple(numbers.iter().map(|n| Value::Int(*n as u32)).collect())
}

/// A tensor of f32 in a storage of `len` elements.
pub fn tensor(key: &str, len: u32, offset: u32, shape: &[u64], strides: &[u64]) -> Value {
    typed("FloatStorage", key, len, offset, shape, strides)
}

pub fn typed(
    storage: &'static str,
    key: &str,
    len: u32,
    offset: u32,
    shape: &[u64],
    strides: &[u64],
) -> Value {
    let storage = Value::Persistent(Box::new(Value::Tuple(vec![
        text("storage"),
        Value::Global("torch", storage),
        text(key),
        text("cpu"),
        Value::Int(len),
    ])));
    let hooks = call("collections", "OrderedDict", vec![]);
    let arguments = vec![storage, Value::Int(offset), ints(shape), ints(strides), Value::Bool(false), hooks];
    call("torch._utils", "_rebuild_tensor_v2", arguments)
}

impl Value {
    pub fn pickle(&self) -> Vec<u8> {
        let mut out = vec![0x80, 2];
        self.write(&mut out);
        out.push(b'.');
        out
    }

    fn write(&self, out: &mut Vec<u8>) {
        let all = |items: &[Self], out: &mut Vec<u8>| items.iter().for_each(|item| item.write(out));
        match self {
            Self::None => out.push(b'N'),
            Self::Bool(value) => out.push(if *value { 0x88 } else { 0x89 }),
            Self::Int(number) => {
                out.push(b'J');
                out.extend(number.to_le_bytes());
            }
            Self::Text(text) => {
                out.push(b'X');
                out.extend((text.len() as u32).to_le_bytes());
                out.extend(text.as_bytes());
            }
            Self::Tuple(items) => {
                out.push(b'(');
                all(items, out);
                out.push(b't');
            }
            Self::List(items) => {
                out.extend(b"](");
                all(items, out);
                out.push(b'e');
            }
            Self::Dict(items) => {
                out.extend(b"}(");
                for (key, value) in items {
                    key.write(out);
                    value.write(out);
                }
                out.push(b'u');
            }
            Self::Global(module, name) => out.extend(format!("c{module}\n{name}\n").bytes()),
            Self::Call(callable, arguments) => {
                callable.write(out);
                out.push(b'(');
                all(arguments, out);
                out.extend(b"tR");
            }
            Self::Build(object, state) => {
                object.write(out);
                state.write(out);
                out.push(b'b');
            }
            Self::Persistent(id) => {
                id.write(out);
                out.push(b'Q');
            }
            Self::Put(number, value) => {
                value.write(out);
                out.extend([b'q', *number]);
            }
            Self::Get(number) => out.extend([b'h', *number]),
            Self::Fill(container, items) => {
                container.write(out);
                let Self::Dict(items) = &**items else { panic!("items of a dict") };
                out.push(b'(');
                for (key, value) in items {
                    key.write(out);
                    value.write(out);
                }
                out.push(b'u');
            }
        }
    }
}

/// Returns an archive of `torch.save` with this object and these storages.
pub fn archive(root: &Value, storages: &[(&str, &[u8])]) -> Vec<u8> {
    let options = zip::write::SimpleFileOptions::default();
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let mut entry = |name: &str, bytes: &[u8]| {
        zip.start_file(format!("archive/{name}"), options.compression_method(zip::CompressionMethod::Stored))
            .unwrap();
        zip.write_all(bytes).unwrap();
    };
    entry("data.pkl", &root.pickle());
    entry("byteorder", b"little");
    for (key, bytes) in storages {
        entry(&format!("data/{key}"), bytes);
    }
    entry("version", b"3\n");
    zip.finish().unwrap().into_inner()
}

/// Returns the archive of one tensor of f32.
pub fn one(shape: &[u64], values: &[f32]) -> Vec<u8> {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let mut strides = vec![1; shape.len()];
    for d in (1..shape.len()).rev() {
        strides[d - 1] = strides[d] * shape[d];
    }
    archive(&tensor("0", values.len() as u32, 0, shape, &strides), &[("0", &bytes)])
}

/// A chunk of a tensor: file, offsets and sizes, elements.
pub struct Chunk<'a> {
    pub file: &'a str,
    pub offsets: &'a [u64],
    pub sizes: &'a [u64],
    pub values: &'a [f32],
}

/// Writes a distributed checkpoint of these tensors: name, shape and chunks. Those in files `.gcu` are
/// described as tensors of the first update of a stream, which is not written: `NAME[OFFSETS]`.
pub fn checkpoint(folder: &Path, tensors: &[(&str, &[u64], Vec<Chunk<'_>>)]) {
    const METADATA: &str = "torch.distributed.checkpoint.metadata";
    std::fs::create_dir_all(folder).unwrap();
    let size = |numbers: &[u64]| call("torch", "Size", vec![ints(numbers)]);
    let mut files: std::collections::BTreeMap<&str, Vec<u8>> = Default::default();
    let (mut entries, mut places) = (Vec::new(), Vec::new());
    for (name, shape, chunks) in tensors {
        let mut described = Vec::new();
        for chunk in chunks {
            let index =
                object(METADATA, "MetadataIndex", vec![("fqn", text(name)), ("offset", size(chunk.offsets))]);
            let place = if chunk.file.ends_with(".gcu") {
                let attributes = vec![
                    ("relative_path", text(chunk.file)),
                    ("update", Value::Int(0)),
                    ("name", text(&format!("{name}{:?}", chunk.offsets))),
                    ("code", text("F32")),
                    ("shape", ints(chunk.sizes)),
                    ("as_bytes", Value::Bool(false)),
                ];
                object("gcodec.torch.checkpoint", "Stored", attributes)
            } else {
                let file = files.entry(chunk.file).or_default();
                let piece = one(chunk.sizes, chunk.values);
                let attributes = vec![
                    ("relative_path", text(chunk.file)),
                    ("offset", Value::Int(file.len() as u32)),
                    ("length", Value::Int(piece.len() as u32)),
                ];
                file.extend(piece);
                object("torch.distributed.checkpoint.filesystem", "_StorageInfo", attributes)
            };
            places.push((index, place));
            let both = vec![("offsets", size(chunk.offsets)), ("sizes", size(chunk.sizes))];
            described.push(object(METADATA, "ChunkStorageMetadata", both));
        }
        let state = vec![Value::Global("torch", "float32"), Value::None, Value::Bool(false)];
        let properties =
            Value::Build(Box::new(call(METADATA, "TensorProperties", vec![])), Box::new(Value::Tuple(state)));
        let attributes =
            vec![("properties", properties), ("size", size(shape)), ("chunks", Value::List(described))];
        entries.push((text(name), object(METADATA, "TensorStorageMetadata", attributes)));
    }
    entries.push((text("step"), object(METADATA, "BytesStorageMetadata", vec![])));
    let metadata = object(
        METADATA,
        "Metadata",
        vec![("state_dict_metadata", Value::Dict(entries)), ("storage_data", Value::Dict(places))],
    );
    for (name, bytes) in files {
        std::fs::write(folder.join(name), bytes).unwrap();
    }
    std::fs::write(folder.join(".metadata"), metadata.pickle()).unwrap();
}

/// Returns a file of `torch.save` from before PyTorch 1.6: the object, and each storage with the bytes of its
/// elements.
pub fn legacy(root: &Value, storages: &[(&str, usize, &[u8])]) -> Vec<u8> {
    let mut out = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.".to_vec();
    out.extend(Value::Int(1001).pickle());
    out.extend(
        dict(vec![("protocol_version", Value::Int(1001)), ("little_endian", Value::Bool(true))]).pickle(),
    );
    out.extend(root.pickle());
    out.extend(Value::List(storages.iter().map(|(key, ..)| text(key)).collect()).pickle());
    for (_, width, bytes) in storages {
        out.extend((bytes.len() as u64 / *width as u64).to_le_bytes());
        out.extend(*bytes);
    }
    out
}

/// A module with these parameters, buffers and children, and further attributes.
pub fn module(
    parameters: Vec<(&str, Value)>,
    buffers: Vec<(&str, Value)>,
    children: Vec<(&str, Value)>,
    more: Vec<(&str, Value)>,
) -> Value {
    let mut attributes = vec![
        ("training", Value::Bool(true)),
        ("_parameters", dict(parameters)),
        ("_buffers", dict(buffers)),
        ("_modules", dict(children)),
    ];
    attributes.extend(more);
    object("model", "Module", attributes)
}

/// Returns a zip archive of these entries.
pub fn zipped(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, bytes) in entries {
        zip.start_file(*name, options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}
