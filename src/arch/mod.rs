//! Features of the processor and the operating system: wide vectors, threads, memory-mapped files and large
//! pages. The only module with unsafe code. It knows nothing about the format.
//!
//! Most of the speed needs no intrinsics: a [`Kernel`] is a safe loop that [`run`] compiles for several
//! instruction sets and selects at run time. Intrinsics are used where a compiler finds no vector form, and
//! are tested against a safe implementation.

#![allow(unsafe_code)]

use std::sync::OnceLock;

pub(crate) mod floats;
pub(crate) mod lookup;
pub(crate) mod map;
pub(crate) mod masks;
pub(crate) mod pages;
pub(crate) mod planes;
pub(crate) mod pool;
pub(crate) mod prefetch;
pub(crate) mod ranges;
pub(crate) mod rans;
pub(crate) mod spare;
pub(crate) mod storage;
pub(crate) mod sums;
pub(crate) mod threads;
pub(crate) mod tree;

/// A loop worth compiling for several instruction sets.
pub(crate) trait Kernel {
    type Output;

    /// Runs the loop. Implementations and everything they call must be `#[inline(always)]`: code that is not
    /// inlined is compiled for the baseline instruction set.
    fn call(self) -> Self::Output;
}

/// A set of instructions that this processor has. Only [`forms`] makes one, so that code for it may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Form(Width);

/// The instruction sets that kernels are compiled for, narrowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "other processors have the plain form"))]
enum Width {
    Plain,
    Avx2,
    Avx512,
}

impl Form {
    /// Whether it has no wide instructions beyond those of all processors of its kind.
    pub(crate) fn is_plain(self) -> bool {
        self.0 == Width::Plain
    }
}

/// Returns the forms of a kernel that this processor can run, narrowest first.
pub(crate) fn forms() -> impl Iterator<Item = Form> {
    [Width::Plain, Width::Avx2, Width::Avx512].into_iter().filter(|width| has(*width)).map(Form)
}

#[cfg(target_arch = "x86_64")]
fn has(width: Width) -> bool {
    match width {
        Width::Plain => true,
        Width::Avx2 => x86::has_avx2(),
        Width::Avx512 => x86::has_avx512(),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn has(width: Width) -> bool {
    width == Width::Plain
}

/// Environment variable with the widest form that may be used: `plain`, `avx2` or `avx512`. Read once, at the
/// first use of a kernel. Every form gives the same results: only the speed differs.
const WIDEST_FORM: &str = "GCODEC_WIDEST_FORM";

/// Returns the widest form that this processor has and that [`WIDEST_FORM`] allows.
#[inline]
pub(crate) fn widest() -> Form {
    static WIDEST: OnceLock<Form> = OnceLock::new();
    let form = *WIDEST.get_or_init(|| {
        let allowed = match std::env::var(WIDEST_FORM).as_deref() {
            Ok("plain") => Width::Plain,
            Ok("avx2") => Width::Avx2,
            _ => Width::Avx512,
        };
        forms().filter(|form| form.0 <= allowed).last().unwrap_or(Form(Width::Plain))
    });
    #[cfg(fuzzing)]
    let form = narrowed(form);
    form
}

/// Runs a kernel in the widest form that this processor supports. The result is the same in every form.
#[inline]
pub(crate) fn run<K: Kernel>(kernel: K) -> K::Output {
    run_as(widest(), kernel)
}

/// Runs a kernel in this form.
#[inline]
pub(crate) fn run_as<K: Kernel>(form: Form, kernel: K) -> K::Output {
    match form.0 {
        // SAFETY: a form exists only if the processor has all features that its function enables.
        #[cfg(target_arch = "x86_64")]
        Width::Avx512 => unsafe { x86::with_avx512(kernel) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Width::Avx2 => unsafe { x86::with_avx2(kernel) },
        _ => kernel.call(),
    }
}

/// Widest form that a fuzzer allows: 0 the plain loop, 1 AVX2, 2 AVX-512.
#[cfg(fuzzing)]
pub static WIDEST: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(2);

/// Returns `form`, or the widest form that the fuzzer allows.
#[cfg(fuzzing)]
fn narrowed(form: Form) -> Form {
    let allowed = match WIDEST.load(std::sync::atomic::Ordering::Relaxed) {
        0 => Width::Plain,
        1 => Width::Avx2,
        _ => Width::Avx512,
    };
    forms().filter(|f| f.0 <= allowed.min(form.0)).last().unwrap_or(Form(Width::Plain))
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Kernel;

    /// Whether the processor has the features of [`with_avx512`].
    pub(super) fn has_avx512() -> bool {
        has_avx2()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512cd")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vbmi")
            && is_x86_feature_detected!("avx512vbmi2")
            && is_x86_feature_detected!("avx512vnni")
    }

    /// Whether the processor has the features of [`with_avx2`].
    pub(super) fn has_avx2() -> bool {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("popcnt")
    }

    #[target_feature(
        enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx512vnni,bmi2,popcnt"
    )]
    pub(super) fn with_avx512<K: Kernel>(kernel: K) -> K::Output {
        kernel.call()
    }

    #[target_feature(enable = "avx2,bmi2,popcnt")]
    pub(super) fn with_avx2<K: Kernel>(kernel: K) -> K::Output {
        kernel.call()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sum<'a>(&'a [u32]);

    impl Kernel for Sum<'_> {
        type Output = u32;

        #[inline(always)]
        fn call(self) -> u32 {
            self.0.iter().fold(0, |sum, x| sum.wrapping_mul(3).wrapping_add(*x))
        }
    }

    #[test]
    fn every_form_of_a_kernel_gives_the_same() {
        let numbers: Vec<u32> = (0..1000).collect();
        let expected = Sum(&numbers).call();
        assert_eq!(run(Sum(&numbers)), expected);
        for form in forms() {
            assert_eq!(run_as(form, Sum(&numbers)), expected, "{form:?}");
        }
    }
}
