//! Features of the processor and the operating system: wide vectors and memory-mapped files. The only module
//! with unsafe code. It knows nothing about the format.
//!
//! Most of the speed needs no intrinsics: a [`Kernel`] is a safe loop that [`run`] compiles for several
//! instruction sets and selects at run time. Intrinsics are used where a compiler finds no vector form, and
//! are tested against a safe implementation.

#![allow(unsafe_code)]

pub(crate) mod map;
pub(crate) mod rans;

/// A loop worth compiling for several instruction sets.
pub(crate) trait Kernel {
    type Output;

    /// Runs the loop. Implementations and everything they call must be `#[inline(always)]`: code that is not
    /// inlined is compiled for the baseline instruction set.
    fn call(self) -> Self::Output;
}

/// Runs a kernel in the widest form that this processor supports. The result is the same in every form.
#[inline]
pub(crate) fn run<K: Kernel>(kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    {
        if x86::has_avx512() {
            // SAFETY: all features that `with_avx512` enables were detected.
            return unsafe { x86::with_avx512(kernel) };
        }
        if x86::has_avx2() {
            // SAFETY: all features that `with_avx2` enables were detected.
            return unsafe { x86::with_avx2(kernel) };
        }
    }
    kernel.call()
}

/// Widest form that a fuzzer allows [`run`]: 0 the plain loop, 1 AVX2, 2 AVX-512.
#[cfg(fuzzing)]
pub static WIDEST: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(2);

/// Whether a form of this width may be used.
#[cfg(target_arch = "x86_64")]
#[inline]
fn allowed(_width: u8) -> bool {
    #[cfg(fuzzing)]
    return _width <= WIDEST.load(std::sync::atomic::Ordering::Relaxed);
    #[cfg(not(fuzzing))]
    true
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Kernel;

    /// Whether the processor has the features of [`with_avx512`]; the standard library caches the answer.
    #[inline]
    pub(super) fn has_avx512() -> bool {
        super::allowed(2)
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vbmi")
            && is_x86_feature_detected!("avx512vbmi2")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("popcnt")
    }

    /// Whether the processor has the features of [`with_avx2`].
    #[inline]
    pub(super) fn has_avx2() -> bool {
        super::allowed(1) && is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi2")
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi2,popcnt")]
    pub(super) fn with_avx512<K: Kernel>(kernel: K) -> K::Output {
        kernel.call()
    }

    #[target_feature(enable = "avx2,bmi2")]
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
        #[cfg(target_arch = "x86_64")]
        if x86::has_avx2() {
            // SAFETY: the features were detected.
            assert_eq!(unsafe { x86::with_avx2(Sum(&numbers)) }, expected);
        }
    }
}
