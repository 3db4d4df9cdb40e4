//! Distributions fitted to magnitudes, and the thresholds that a given part of them exceeds (SIDCo, arXiv
//! 2101.10761, section 2: "sparsity-inducing distributions").
//!
//! | family | fitted by | threshold that a part `d` exceeds |
//! |---|---|---|
//! | exponential | mean `m` | `m ln(1/d)` |
//! | gamma | mean and mean logarithm: shape `a`, scale `m / a` | `(m / a) Q^-1(a, d)` |
//! | generalised Pareto | mean and variance `v`: shape `x = (1 - m^2/v) / 2`, scale `c = m (1 + m^2/v) / 2` | `(c / x) (d^-x - 1)` |
//!
//! `Q` is the regularised upper incomplete gamma function. At `x = 0` the Pareto threshold is its limit, the
//! exponential threshold. If all magnitudes are equal (variance below 1e-12 of the squared mean), no tail can
//! be fitted, and gamma and Pareto return the mean.

use std::f64::consts::{LN_2, PI};

use crate::compress::moments::Moments;

/// Distributions fitted to the magnitudes of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fit {
    /// The exponential distribution in every stage; the tensor's elements are then modelled as Laplacian.
    Exp,
    /// The gamma distribution in the first stage, the generalised Pareto distribution of the exceedances in
    /// later stages.
    GammaGp,
    /// The generalised Pareto distribution in every stage.
    Gp,
}

/// A family of distributions on the positive numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    Exp,
    Gamma,
    Pareto,
}

impl Fit {
    /// Returns the family fitted in stage `stage`, counted from 0.
    pub(super) fn family(self, stage: u32) -> Family {
        match (self, stage) {
            (Self::Exp, _) => Family::Exp,
            (Self::GammaGp, 0) => Family::Gamma,
            _ => Family::Pareto,
        }
    }
}

impl Moments {
    /// Returns the threshold, relative to the location, that the part `part` of the fitted distribution
    /// exceeds. `part` is more than 0 and at most 1. The result is at least 0, and it is finite if the sums
    /// are finite.
    pub(super) fn threshold(&self, family: Family, part: f64) -> f64 {
        if self.count == 0 || part >= 1.0 {
            return 0.0;
        }
        let n = self.count as f64;
        let mean = self.sum / n;
        let variance = (self.squares / n - mean * mean).max(0.0);
        let tail = -part.ln();
        match family {
            Family::Exp => mean * tail,
            _ if variance <= 1e-12 * mean * mean => mean,
            Family::Gamma => {
                let logs = self.product.ln() + self.exponent as f64 * LN_2;
                let shape = gamma_shape(mean.ln() - logs / n);
                mean / shape * inverse_upper_gamma(shape, part)
            }
            Family::Pareto => pareto(mean, variance, tail),
        }
    }
}

/// Returns the threshold of a generalised Pareto distribution of this mean and variance; `tail` is
/// `ln(1/part)`.
fn pareto(mean: f64, variance: f64, tail: f64) -> f64 {
    let ratio = mean * mean / variance;
    let (shape, scale) = (0.5 * (1.0 - ratio), 0.5 * mean * (1.0 + ratio));
    let power = shape * tail;
    if power.abs() < 1e-12 { scale * tail } else { scale * power.exp_m1() / shape }
}

/// Returns the approximate maximum-likelihood shape, clamped to 1e-3 to 1e4 (Minka, 2002, as used by SIDCo).
/// `s` is the logarithm of the mean minus the mean of logarithms.
fn gamma_shape(s: f64) -> f64 {
    let s = s.max(1e-9);
    ((3.0 - s + ((s - 3.0) * (s - 3.0) + 24.0 * s).sqrt()) / (12.0 * s)).clamp(1e-3, 1e4)
}

/// Computes the logarithm of the gamma function by Stirling's series (Abramowitz and Stegun 6.1.41). The
/// argument is positive and is first raised to at least 10.
fn ln_gamma(x: f64) -> f64 {
    let (mut x, mut shift) = (x, 0.0);
    while x < 10.0 {
        shift += x.ln();
        x += 1.0;
    }
    let r = 1.0 / (x * x);
    let series = (1.0 / 12.0 - r * (1.0 / 360.0 - r * (1.0 / 1260.0 - r / 1680.0))) / x;
    (x - 0.5) * x.ln() - x + 0.5 * (2.0 * PI).ln() + series - shift
}

/// Computes `Q(a, x)`: by the power series of `P` below `a + 1` (Abramowitz and Stegun 6.5.29), by the
/// continued fraction above (6.5.31).
fn upper_gamma(a: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 1.0;
    }
    let front = (a * x.ln() - x - ln_gamma(a)).exp();
    if x < a + 1.0 {
        let (mut term, mut sum) = (1.0 / a, 1.0 / a);
        for i in 1..100_000 {
            term *= x / (a + f64::from(i));
            sum += term;
            if term < sum * 1e-16 {
                break;
            }
        }
        return (1.0 - front * sum).max(0.0);
    }
    // Convergents come from their ratios, from the left (Lentz). All denominators are positive for x > a - 1.
    let mut b = x + 1.0 - a;
    let (mut c, mut d) = (f64::MAX, 1.0 / b);
    let mut fraction = d;
    for i in 1..100_000 {
        let numerator = -f64::from(i) * (f64::from(i) - a);
        b += 2.0;
        d = 1.0 / (numerator * d + b);
        c = b + numerator / c;
        fraction *= c * d;
        if (c * d - 1.0).abs() < 1e-15 {
            break;
        }
    }
    front * fraction
}

/// Returns the `x` with `Q(a, x) = part`, 0 < part < 1, by bisection to a relative error of 1e-12.
fn inverse_upper_gamma(a: f64, part: f64) -> f64 {
    let (mut low, mut high) = (0.0, a.max(1.0));
    while upper_gamma(a, high) > part && high < 1e9 {
        low = high;
        high *= 2.0;
    }
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        if high - low <= 1e-12 * high {
            break;
        }
        if upper_gamma(a, middle) > part { low = middle } else { high = middle }
    }
    0.5 * (low + high)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::moments::MomentQuery;

    fn moments(values: &[f32]) -> Moments {
        Moments::of::<true>(values, MomentQuery::all(true))
    }

    #[test]
    fn incomplete_gamma_has_its_closed_forms() {
        for x in [0.01, 0.5, 1.0, 2.0, 7.5, 30.0f64] {
            let close = |a: f64, expected: f64| {
                let got = upper_gamma(a, x);
                assert!((got - expected).abs() <= 1e-12 + 1e-10 * expected, "Q({a}, {x}) = {got}");
            };
            close(1.0, (-x).exp());
            close(2.0, (-x).exp() * (1.0 + x));
            close(3.0, (-x).exp() * (1.0 + x + x * x / 2.0));
        }
        // erfc(1), Abramowitz and Stegun, table 7.1.
        assert!((upper_gamma(0.5, 1.0) - 0.157_299_207_050_28).abs() < 1e-10);
        for (x, expected) in
            [(0.5, PI.sqrt().ln()), (1.0, 0.0), (5.0, 24f64.ln()), (20.5, 40.831_500_974_530_8)]
        {
            assert!(
                (ln_gamma(x) - expected).abs() < 2e-9 * (1.0 + expected),
                "ln_gamma({x}) {}",
                ln_gamma(x)
            );
        }
        for a in [0.01, 0.5, 1.0, 40.0, 1e4] {
            for part in [0.5, 0.1, 0.001, 1e-9] {
                let back = upper_gamma(a, inverse_upper_gamma(a, part));
                assert!((back - part).abs() < 1e-6 * part, "{a} {part}: {back}");
            }
        }
    }

    #[test]
    fn limits_of_the_families_are_exponential() {
        for part in [0.25f64, 0.1, 0.001] {
            let tail = -part.ln();
            for shape in [0.0, 1e-15, 1e-9, -1e-9] {
                // Shape (1 - m^2/v) / 2, mean 1.
                let got = pareto(1.0, 1.0 / (1.0 - 2.0 * shape), tail);
                assert!((got - tail).abs() < 1e-6 * tail, "{shape} {part}");
            }
            assert!((inverse_upper_gamma(1.0, part) - tail).abs() < 1e-9 * tail);
        }
    }

    #[test]
    fn equal_magnitudes_and_none_have_thresholds() {
        let equal = moments(&[0.3; 1000]);
        for family in [Family::Gamma, Family::Pareto] {
            assert!((equal.threshold(family, 0.01) - 0.3).abs() < 1e-6);
        }
        for family in [Family::Exp, Family::Gamma, Family::Pareto] {
            assert_eq!(Moments::default().threshold(family, 0.01), 0.0);
            assert!(moments(&[1.0, 1e-30, 0.0]).threshold(family, 0.01).is_finite());
            assert!(moments(&[7.0]).threshold(family, 0.5).is_finite());
        }
    }
}
