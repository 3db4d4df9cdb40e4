//! The efforts of the codecs `lossless` and `natural`, in turns, on each file of the public set.

use std::hint::black_box;

use gcodec::block::Effort;
use gcodec::compress::codecs::{Lossless, Natural};
use gcodec::{Codec, Limits};

use crate::data::{self, Tensors};
use crate::{Assembler, decode, encode, once};

/// Bytes of tensors that are coded for one reading of the clock, at least.
const LEAST: usize = 48 << 20;

/// An effort, and what was measured of it.
struct Measured {
    codec: Codec,
    bytes: Vec<u8>,
    /// Seconds to encode the tensors, and to decode them.
    seconds: [f64; 2],
}

/// Prints the sizes and the speeds of both efforts: of several repetitions, which take turns, the fastest.
pub(crate) fn run(repeats: usize) {
    let lossless = |effort| Codec::Lossless(Lossless { effort });
    let natural = |effort| Codec::Natural(Natural { effort, ..Default::default() });
    print("lossless", lossless, repeats);
    print("natural", natural, repeats);
}

fn print(name: &str, codec: impl Fn(Effort) -> Codec, repeats: usize) {
    println!("{name}:");
    println!("| file | default, % | fast, % | encode, GB/s | fast | decode, GB/s | fast |");
    println!("|---|---|---|---|---|---|---|");
    for (name, tensors) in data::files() {
        let [fast, usual] = measured(Effort::ALL.map(|(effort, _)| codec(effort)), &tensors, repeats);
        let share = |m: &Measured| format!("{:.2}", m.bytes.len() as f64 / tensors.bytes() as f64 * 100.0);
        let speed =
            |m: &Measured, way: usize| format!("{:.2}", tensors.bytes() as f64 / m.seconds[way] / 1e9);
        let cells = [
            share(&usual),
            share(&fast),
            speed(&usual, 0),
            speed(&fast, 0),
            speed(&usual, 1),
            speed(&fast, 1),
        ];
        println!("| {name} | {} |", cells.join(" | "));
    }
}

fn measured(codecs: [Codec; 2], tensors: &Tensors, repeats: usize) -> [Measured; 2] {
    let mut all =
        codecs.map(|codec| Measured { codec, bytes: encode(&codec, tensors), seconds: [f64::INFINITY; 2] });
    let times = LEAST.div_ceil(tensors.bytes());
    for _ in 0..repeats {
        for Measured { codec, bytes, seconds } in &mut all {
            let encoding = once(|| (0..times).for_each(|_| drop(black_box(encode(codec, tensors)))));
            let decoding = once(|| {
                for _ in 0..times {
                    let assembler = Assembler::new(&tensors.manifest, &Limits::default(), |_| true);
                    black_box(decode(bytes, assembler.expect("within limits")));
                }
            });
            for (least, seconds) in seconds.iter_mut().zip([encoding, decoding]) {
                *least = least.min(seconds / times as f64);
            }
        }
    }
    all
}
