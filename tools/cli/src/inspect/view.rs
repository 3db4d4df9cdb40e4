//! Numbers and places as `inspect` prints them.

use super::update::Update;
use crate::output::human_bytes;

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
