//! Rates and durations, as people write them.

/// Parses a rate in bits per second: `1Gbit`, `100 Mbit/s`, `25Gbps`, `12.5Gb/s`.
pub(super) fn parse_rate(text: &str) -> Result<f64, String> {
    let units = [("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12)];
    let ends = ["bit/s", "bit", "bps", "b/s"];
    let rest = text.trim();
    let number = ends.iter().find_map(|end| rest.strip_suffix(end));
    let (number, factor) = number
        .and_then(|number| units.iter().find_map(|(unit, f)| Some((number.strip_suffix(unit)?, *f))))
        .ok_or_else(|| format!("not a rate such as 100Mbit, 1Gbit or 2.5Gbit/s: {text:?}"))?;
    positive(number, factor).ok_or_else(|| format!("not a rate above 0: {text:?}"))
}

/// Parses a duration: `20ms`, `1.5s`, `50us`; `0` needs no unit.
pub(super) fn parse_duration(text: &str) -> Result<f64, String> {
    let text = text.trim();
    if text == "0" {
        return Ok(0.0);
    }
    // `s` is the end of the others.
    let units = [("ms", 1e-3), ("us", 1e-6), ("µs", 1e-6), ("ns", 1e-9), ("min", 60.0), ("s", 1.0)];
    let found = units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)));
    let wrong = || format!("not a duration such as 20ms, 1.5s or 50us: {text:?}");
    let (number, factor) = found.ok_or_else(wrong)?;
    match number.trim().parse::<f64>() {
        Ok(0.0) => Ok(0.0),
        _ => positive(number, factor).ok_or_else(wrong),
    }
}

/// Returns a positive finite number of a unit.
fn positive(number: &str, factor: f64) -> Option<f64> {
    number.trim().parse::<f64>().ok().map(|n| n * factor).filter(|n| n.is_finite() && *n > 0.0)
}

/// Formats a rate: `1 Gbit/s`.
pub(super) fn show_rate(bits: f64) -> String {
    let units = [(1e12, "T"), (1e9, "G"), (1e6, "M")];
    let (factor, unit) = units.into_iter().find(|(factor, _)| bits >= *factor).unwrap_or((1e3, "k"));
    format!("{} {unit}bit/s", short(bits / factor))
}

/// Formats a duration with three digits: `1.23 s`, `45.6 ms`, `0 s`.
pub(super) fn show_seconds(seconds: f64) -> String {
    let units = [(1.0, "s"), (1e-3, "ms"), (1e-6, "us")];
    let fits = |(factor, _): &(f64, &str)| seconds >= 0.9995 * factor;
    let (factor, unit) =
        units.into_iter().find(fits).unwrap_or(if seconds == 0.0 { units[0] } else { (1e-9, "ns") });
    format!("{} {unit}", short(seconds / factor))
}

/// Formats a number with three digits, and no zeros at its end.
fn short(value: f64) -> String {
    let decimals = (2.0 - value.abs().max(1e-9).log10().floor()).clamp(0.0, 6.0) as usize;
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_durations_are_read_as_people_write_them() {
        for (text, rate) in [("1Gbit", 1e9), ("100 Mbit/s", 1e8), ("2.5Gbps", 2.5e9), ("56kbit", 56e3)] {
            assert_eq!(parse_rate(text), Ok(rate), "{text}");
        }
        for wrong in
            ["", "1", "1G", "0Gbit", "-1Gbit", "1GB", "1GB/s", "nanGbit", "infGbit", "1e999Gbit", "Gbit"]
        {
            assert!(parse_rate(wrong).is_err(), "{wrong}");
        }
        for (text, seconds) in
            [("0", 0.0), ("0ms", 0.0), ("20ms", 0.02), ("1.5 s", 1.5), ("50us", 50e-6), ("2min", 120.0)]
        {
            let parsed = parse_duration(text).unwrap();
            assert!((parsed - seconds).abs() < 1e-12, "{text}: {parsed}");
        }
        for wrong in ["", "20", "-1ms", "ms", "1h", "nanms", "infs"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rates_and_durations_are_shown_with_three_digits() {
        assert_eq!(
            [1e9, 2.5e9, 1e8, 56e3, 4e11].map(show_rate),
            ["1 Gbit/s", "2.5 Gbit/s", "100 Mbit/s", "56 kbit/s", "400 Gbit/s"]
        );
        let cases = [0.0, 1.234, 0.0456, 7.8e-5, 0.9999, 123.4, 3e-9];
        assert_eq!(cases.map(show_seconds), ["0 s", "1.23 s", "45.6 ms", "78 us", "1 s", "123 s", "3 ns"]);
    }
}
