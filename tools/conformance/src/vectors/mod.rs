//! Conformance vectors: made by code, one module for each area of the spec, and written to
//! `spec/vectors/index.json`.

#[path = "../../../../tests/properties/arbitrary/mod.rs"]
mod arbitrary;
pub(crate) mod build;
pub(crate) mod classed;
mod coverage;
mod delta;
#[path = "../../../../tests/wire/describe/mod.rs"]
mod describe;
mod frames;
mod fuzz;
mod ints;
mod limits;
mod manifest;
mod profile;
mod stream;
mod sums;
mod supports;
mod transforms;
mod update;
mod values;

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::{Result, root};

/// Action on the vectors; `--check` if none is given.
#[derive(clap::Args)]
#[group(multiple = false)]
pub(crate) struct Arguments {
    /// Writes spec/vectors/index.json.
    #[arg(long)]
    write: bool,
    /// Fails if spec/vectors/index.json is out of date.
    #[arg(long)]
    check: bool,
    /// Lists the requirements of the spec without a vector, and fails if there are any.
    #[arg(long)]
    uncovered: bool,
    /// Decodes N random and N corrupt streams with the library and the reference decoder, and fails if they
    /// disagree.
    #[arg(long, value_name = "N")]
    fuzz: Option<u64>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if let Some(count) = arguments.fuzz {
        return fuzz::run(count);
    }
    if arguments.uncovered {
        return coverage::run(&all()?);
    }
    let text = index(&all()?)?;
    let path = root().join("spec/vectors/index.json");
    if arguments.write {
        return Ok(std::fs::write(path, text)?);
    }
    match std::fs::read_to_string(&path) {
        Ok(found) if found == text => Ok(()),
        _ => Err("spec/vectors/index.json is out of date: cargo xtask vectors --write".into()),
    }
}

/// A stream and a reader's expected result.
pub(crate) struct Vector {
    id: String,
    requirements: Vec<&'static str>,
    bytes: Vec<u8>,
    /// Name of the error, and whether only decoding the tensors raises it.
    error: Option<(&'static str, bool)>,
    limits: Map<String, Value>,
    base: Option<Value>,
    tensors: bool,
    /// Whether the library's encoder must reproduce the bytes; otherwise it is tried.
    encoded: bool,
    notes: String,
}

impl Vector {
    /// Sets the notes.
    pub(crate) fn notes(&mut self, notes: &str) -> &mut Self {
        notes.clone_into(&mut self.notes);
        self
    }

    /// Includes the dense tensors.
    pub(crate) fn tensors(&mut self) -> &mut Self {
        self.tensors = true;
        self
    }

    /// Sets a limit that differs from the reader's default.
    pub(crate) fn limit(&mut self, name: &str, value: u64) -> &mut Self {
        self.limits.insert(name.to_owned(), json!(value));
        self
    }

    /// Sets the base of a delta: `{"name": {"dtype", "shape", "data"}}`.
    pub(crate) fn base(&mut self, base: Value) -> &mut Self {
        self.base = Some(base);
        self
    }

    /// Marks the error as raised only when the tensors are decoded.
    pub(crate) fn late(&mut self) -> &mut Self {
        self.error = self.error.map(|(kind, _)| (kind, true));
        self
    }

    /// Marks the bytes as the output of the library's encoder with default choices.
    pub(crate) fn encoded(&mut self) -> &mut Self {
        self.encoded = true;
        self
    }

    /// Returns the vector as JSON, with the library's result, which must match the expectation.
    fn to_json(&self) -> Result<Value> {
        let mut out = json!({
            "id": self.id, "requirements": self.requirements, "hex": describe::hex(&self.bytes),
            "result": if self.error.is_some() { "invalid" } else { "valid" },
        });
        if !self.limits.is_empty() {
            out["limits"] = json!(self.limits);
        }
        if let Some(base) = &self.base {
            out["base"] = base.clone();
        }
        if !self.notes.is_empty() {
            out["notes"] = json!(self.notes);
        }
        if let Some((kind, late)) = self.error {
            out["error"] = json!({ "kind": kind, "stage": if late { "tensors" } else { "decode" } });
        }
        if self.tensors {
            out["tensors"] = json!({});
        }
        let kind = self.error.map(|(kind, _)| kind);
        if profile::is_core(&self.bytes, &describe::limits(&out), kind, &self.requirements) {
            out["core"] = json!(true);
        }
        match (describe::outcome(&out, &self.bytes), self.error) {
            (Ok((expected, tensors)), None) => {
                out["expected"] = expected;
                if let Some(tensors) = tensors {
                    out["tensors"] = tensors;
                }
                let limits = describe::limits(&out);
                let again = describe::reencode(&self.bytes, &limits).is_some_and(|b| b == self.bytes);
                if again {
                    out["roundtrip"] = json!(true);
                } else if self.encoded {
                    return Err(format!("{}: encoding it again gives other bytes", self.id).into());
                }
            }
            (Err(e), Some((kind, _))) if e.name() == kind => {}
            (Err(e), Some((kind, _))) => {
                return Err(format!("{}: {kind} wanted, {}: {e}", self.id, e.name()).into());
            }
            (Ok(_), Some((kind, _))) => return Err(format!("{}: {kind} wanted, accepted", self.id).into()),
            (Err(e), None) => return Err(format!("{}: refused: {}: {e}", self.id, e.name()).into()),
        }
        Ok(out)
    }
}

/// The vectors of one area.
pub(crate) struct Area {
    name: &'static str,
    vectors: Vec<Vector>,
}

impl Area {
    fn push(&mut self, id: &str, requirements: &'static str, bytes: Vec<u8>) -> &mut Vector {
        self.vectors.push(Vector {
            id: format!("{}/{id}", self.name),
            requirements: requirements.split_whitespace().collect(),
            bytes,
            error: None,
            limits: Map::new(),
            base: None,
            tensors: false,
            encoded: false,
            notes: String::new(),
        });
        let last = self.vectors.len() - 1;
        &mut self.vectors[last]
    }

    /// Adds a stream that a reader must accept.
    pub(crate) fn valid(&mut self, id: &str, requirements: &'static str, bytes: Vec<u8>) -> &mut Vector {
        self.push(id, requirements, bytes)
    }

    /// Adds a stream that a reader must refuse with an error of this name.
    pub(crate) fn invalid(
        &mut self,
        id: &str,
        requirements: &'static str,
        kind: &'static str,
        bytes: Vec<u8>,
    ) -> &mut Vector {
        let vector = self.push(id, requirements, bytes);
        vector.error = Some((kind, false));
        vector
    }
}

/// Returns all vectors, in the order of the spec.
fn all() -> Result<Vec<Vector>> {
    let mut vectors = Vec::new();
    let mut area = |name, add: fn(&mut Area)| {
        let mut area = Area { name, vectors: Vec::new() };
        add(&mut area);
        vectors.append(&mut area.vectors);
    };
    area("stream", stream::add);
    area("frames", frames::add);
    area("manifest", manifest::add);
    area("update", update::add);
    area("classed", classed::add);
    area("supports", supports::add);
    area("values", values::add);
    area("ints", ints::add);
    area("core", profile::add);
    area("delta", delta::add);
    area("sums", sums::add);
    area("limits", limits::add);
    let mut ids = BTreeSet::new();
    if let Some(twice) = vectors.iter().find(|v| !ids.insert(&v.id)) {
        return Err(format!("two vectors have the name {}", twice.id).into());
    }
    Ok(vectors)
}

/// Returns the file's text: one vector per line, for readable diffs.
fn index(vectors: &[Vector]) -> Result<String> {
    let (made, wrong): (Vec<_>, Vec<_>) = vectors.iter().map(Vector::to_json).partition(Result::is_ok);
    if !wrong.is_empty() {
        let lines: Vec<_> = wrong.into_iter().filter_map(Result::err).map(|e| e.to_string()).collect();
        return Err(lines.join("\n").into());
    }
    let lines: Vec<String> = made.into_iter().flatten().map(|v| v.to_string()).collect();
    Ok(format!("{{\"format\":\"1.0\",\"vectors\":[\n{}\n]}}\n", lines.join(",\n")))
}
