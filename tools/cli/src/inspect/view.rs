//! Numbers and places as `inspect` prints them.

use super::tensor::Tensor;
use super::update::Update;
use crate::output::human_bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Formats a number of bytes without a space.
pub(crate) fn bytes(bytes: u64) -> String {
    human_bytes(bytes).replace(' ', "")
}

/// Formats a ratio in five columns.
pub(crate) fn ratio(ratio: f64) -> String {
    match ratio {
        r if !r.is_finite() => "-".to_owned(),
        r if r < 10.0 => format!("{r:.2}"),
        r if r < 1000.0 => format!("{r:.1}"),
        r => format!("{r:.0}"),
    }
}

/// Formats a share with a percent sign, in at most seven columns.
pub(crate) fn percent(share: f64) -> String {
    match share * 100.0 {
        p if p == 0.0 || p >= 99.95 => format!("{p:.0}%"),
        p if p >= 9.995 => format!("{p:.1}%"),
        p if p >= 0.01 => format!("{p:.2}%"),
        p => format!("{p:.0e}%"),
    }
}

/// Formats bits of an element, or `-` if there is none.
pub(crate) fn bits(bits: Option<f64>) -> String {
    bits.map_or_else(|| "-".to_owned(), |bits| format!("{bits:.3}"))
}

/// Formats the share of elements that are not zero; `-` if nobody reads them.
pub(crate) fn density(tensor: &Tensor) -> String {
    if tensor.opaque.is_some() { "-".to_owned() } else { share(tensor.nonzero()) }
}

/// Formats a share, or `?` if only the base of a delta tells.
pub(crate) fn share(share: Option<f64>) -> String {
    share.map_or_else(|| "?".to_owned(), percent)
}

/// Formats a number with four digits, or `-` for none.
pub(crate) fn number(number: Option<f64>) -> String {
    match number {
        None => "-".to_owned(),
        Some(0.0) => "0".to_owned(),
        Some(x) if (1e-3..1e4).contains(&x.abs()) => crate::output::real(x),
        Some(x) => format!("{x:.2e}"),
    }
}

/// Says where an element is: its index in each dimension.
pub(crate) fn place(index: u64, shape: &[u64]) -> String {
    if shape.len() < 2 || shape.contains(&0) {
        return format!("[{index}]");
    }
    let (mut rest, mut indices) = (index, Vec::new());
    for dim in shape.iter().rev() {
        indices.push((rest % dim).to_string());
        rest /= dim;
    }
    indices.reverse();
    format!("[{}]", indices.join(", "))
}

/// Says which update it is, as far as that is known.
pub(crate) fn origin(update: &Update) -> String {
    match update.numbered {
        (true, true) => format!(" in step {}, sender {}", update.step, update.sender),
        (true, false) => format!(" in step {}", update.step),
        (false, true) => format!(" from sender {}", update.sender),
        (false, false) => String::new(),
    }
}

/// Names files by what tells them apart: their names without extensions, or the folders in which they differ.
pub(crate) fn file_names<'f>(files: &BTreeSet<&'f str>) -> BTreeMap<&'f str, String> {
    let stem = |file: &str| {
        let path = Path::new(file);
        path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
    };
    let stems: BTreeMap<&str, String> = files.iter().map(|file| (*file, stem(file))).collect();
    if stems.values().collect::<BTreeSet<_>>().len() == files.len() {
        return stems;
    }
    let parts: Vec<Vec<&str>> = files.iter().map(|file| file.split(['/', '\\']).collect()).collect();
    let shortest = parts.iter().map(Vec::len).min().unwrap_or(0);
    let same =
        |part: &dyn Fn(&[&'f str]) -> &'f str| parts.windows(2).all(|pair| part(&pair[0]) == part(&pair[1]));
    let front = (0..shortest).take_while(|&n| same(&|parts| parts[n])).count();
    let back = (1..shortest - front).take_while(|&n| same(&|parts| parts[parts.len() - n])).count();
    let name = |parts: &Vec<&str>| parts[front..parts.len() - back].join("/");
    files.iter().copied().zip(parts.iter().map(name)).collect()
}

/// Formats a shape: `3x4`, or `scalar`.
pub(crate) fn shape(shape: &[u64]) -> String {
    match shape {
        [] => "scalar".to_owned(),
        dims => dims.iter().map(u64::to_string).collect::<Vec<_>>().join("x"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_by_what_differs() {
        let names = |files: &[&str]| {
            let names = file_names(&files.iter().copied().collect());
            files.iter().map(|file| names[file].clone()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names(&["a/x.npz", "a/y.npz"]), "x y");
        assert_eq!(names(&["r/c-1/m.npz", "r/c-2/m.npz", "r/c-10/m.npz"]), "c-1 c-2 c-10");
        assert_eq!(names(&["r/c-1/a.npz", "r/c-1/b.npz", "r/c-2/a.npz"]), "c-1/a.npz c-1/b.npz c-2/a.npz");
        assert_eq!(names(&["m.npz", "c/m.npz"]), "m.npz c/m.npz");
        assert_eq!(names(&["c/m.npz", "c/d/m.npz"]), "m.npz d/m.npz");
        assert_eq!(names(&["m.npz", "m.npz"]), "m m");
        assert_eq!(names(&[]), "");
    }

    #[test]
    fn numbers_fit_their_columns() {
        assert_eq!([0.09997, 0.0, 1.0, 0.0000123].map(percent), ["10.0%", "0%", "100%", "1e-3%"]);
        assert_eq!([Some(0.0), None, Some(-0.5), Some(1.5e-7)].map(number), ["0", "-", "-0.5000", "1.50e-7"]);
        assert_eq!([1.0, 15.41, 2000.4, f64::INFINITY].map(ratio), ["1.00", "15.4", "2000", "-"]);
        assert_eq!(
            (place(7, &[2, 4]), place(7, &[9]), place(0, &[])),
            ("[1, 3]".into(), "[7]".into(), "[0]".into())
        );
    }
}
