#![no_main]
//! Any bytes, in every mode: slices, pieces and short reads give the same events. One or several threads,
//! plain and wide kernels, and new and used buffers give the same blocks and tensors. Sums are the same whole
//! and in pieces, and those of one sender are its tensors.
use std::io::{ErrorKind, Read};

use gcodec::block::BlockOptions;
use gcodec::frame::UpdateHeader;
use gcodec::reduce::{Sum, SumOptions};
use gcodec::stream::{Assembler, Body, Decoder, EncodeOptions, Encoder, Event, SliceReader};
use gcodec::{Reader, TensorBuf};
use gcodec_fuzz::{POOLS, Seen, allowance, begin, fingerprint, limits, memory, widest};
use libfuzzer_sys::fuzz_target;

#[path = "../../tests/properties/arbitrary/mod.rs"]
mod arbitrary;
use arbitrary::Random;

gcodec_fuzz::mutate_streams!();

fuzz_target!(|bytes: &[u8]| {
    begin(false);
    // Memory: stored definitions, the blocks of a part, and their printed text.
    let allowed = allowance(bytes.len(), 3);
    let by_slice = memory::within(allowed, "reading a slice", || by_slice(bytes));
    // The sizes of the pieces follow from the bytes, so that an input is reproducible.
    let mut cuts = Random::of_seed(crc32fast::hash(bytes).into());
    let by_pieces = memory::within(allowed, "reading pieces", || by_pieces(bytes, &mut cuts));
    assert_eq!(by_slice, by_pieces, "slice and pieces");
    let by_reader = memory::within(allowed, "short reads", || by_reader(bytes, &mut cuts));
    assert_eq!(by_slice, by_reader, "slice and short reads");
    let other = cuts.below(2) as u8;
    widest(other);
    let by_other = self::by_slice(bytes);
    assert_eq!(by_slice, by_other, "kernels of width {other}");
    widest(2);
    tensors(bytes);
    threads(bytes);
    sums(bytes, 1);
    sums(bytes, 2);
    handed_on(bytes);
});

fn by_slice(bytes: &[u8]) -> Seen {
    let mut reader = SliceReader::new(bytes, limits());
    let mut seen = Seen::default();
    while seen.note(reader.next_event()) {}
    seen
}

fn by_pieces(bytes: &[u8], cuts: &mut Random<'_>) -> Seen {
    let mut decoder = Decoder::new(limits());
    let (mut seen, mut rest) = (Seen::default(), bytes);
    let longest = 1 << cuts.below(10);
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(rest.len().min(1 + cuts.below(longest) as usize));
        decoder.feed(piece);
        while seen.note(decoder.next_event()) {}
        if seen.end.is_some() {
            return seen;
        }
        assert!(decoder.needed() > 0, "nothing is needed and nothing comes");
        rest = after;
    }
    seen.note(decoder.finish().map(|()| None));
    seen
}

/// Returns few bytes at a time, with interruptions between them.
struct Trickle<'a, 'r>(&'a [u8], &'r mut Random<'a>);

impl Read for Trickle<'_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.1.below(4) == 0 {
            return Err(ErrorKind::Interrupted.into());
        }
        let len = (1 + self.1.below(300) as usize).min(self.0.len()).min(buffer.len());
        buffer[..len].copy_from_slice(&self.0[..len]);
        self.0 = &self.0[len..];
        Ok(len)
    }
}

fn by_reader(bytes: &[u8], cuts: &mut Random<'_>) -> Seen {
    let mut cuts = Random::of_seed(cuts.next().into());
    let mut reader = Reader::new(Trickle(bytes, &mut cuts), limits());
    let mut seen = Seen::default();
    while seen.note(reader.next_event()) {}
    seen
}

/// Decodes the tensors of each update into new and into used memory: old contents never show.
fn tensors(bytes: &[u8]) {
    let mut open: Option<[Assembler<'_>; 2]> = None;
    for event in SliceReader::new(bytes, limits()) {
        let Ok(Event::Frame(_, Body::Update(part))) = event else { continue };
        if part.part == 0 {
            let Ok(fresh) = Assembler::new(&part.manifest, &limits(), |_| true) else { continue };
            let buffers = part.manifest.tensors().iter().zip(0..).map(|(info, number)| {
                let data = (0..info.bytes()).map(|i| (i % 251) as u8 | 1).collect();
                (number, TensorBuf::new(info.dtype, info.shape.clone(), data).expect("a buffer for a tensor"))
            });
            let used = Assembler::with_buffers(&part.manifest, buffers).expect("buffers that fit");
            open = Some([fresh, used]);
        }
        let Some(assemblers) = &mut open else { continue };
        // Memory: the assembler's tensors, the blocks that are decoded at once, and dropped buffers.
        let applied = assemblers.each_mut().map(|assembler| {
            memory::within(allowance(bytes.len(), 3), "applying a part", || assembler.apply(&part))
        });
        assert_eq!(format!("{:?}", applied[0]), format!("{:?}", applied[1]), "fresh and used buffers");
        if applied[0].is_err() {
            open = None;
        } else if part.last {
            let tensors = open.take().into_iter().flatten().map(Assembler::finish).collect::<Vec<_>>();
            assert_eq!(fingerprint(&tensors[0]), fingerprint(&tensors[1]), "fresh and used buffers");
        }
    }
}

/// Decodes the blocks of each part with one thread and with several.
fn threads(bytes: &[u8]) {
    for event in SliceReader::new(bytes, limits()) {
        let Ok(Event::Frame(_, Body::Update(part))) = event else { continue };
        if part.blocks.len() < 2 {
            continue;
        }
        let [one, many] = [0, 1].map(|i| POOLS[i].install(|| part.decode_all()));
        assert_eq!(fingerprint(&one), fingerprint(&many), "one thread and several");
    }
}

/// Sums the first update, as that of each of so many senders.
fn sums(bytes: &[u8], senders: u64) {
    let sum = |is_later: bool| {
        let mut sum = None;
        for sender in 0..senders {
            for event in SliceReader::new(bytes, limits()) {
                let Event::Frame(_, Body::Update(mut part)) = event.ok()? else { continue };
                part.header.sender = sender;
                let options = SumOptions::default().with_limits(limits());
                let sum = sum.get_or_insert_with(|| Sum::new(&part.manifest, options));
                let is_last = part.last;
                match is_later {
                    true => sum.add_later(*part, 1.0).ok()?,
                    false => sum.add(&part, 1.0).ok()?,
                }
                if is_last {
                    break;
                }
            }
        }
        sum
    };
    let Some(whole) = sum(false).and_then(|sum| sum.finish(false).ok()) else { return };
    let Ok(whole) = whole.into_tensors() else { return };
    let pieces = sum(true).expect("parts that were added before").into_pieces(false);
    let mut joined = vec![Vec::new(); whole.len()];
    for piece in pieces.expect("the sum was finished before") {
        // Less memory at a time, but not less of each block.
        let Ok(piece) = piece else { return };
        let number = piece.tensor as usize;
        joined[number].extend(piece.into_elements().expect("the elements fitted before"));
    }
    assert!(whole.iter().map(TensorBuf::data).eq(joined.iter().map(Vec::as_slice)), "whole and in pieces");
    if senders == 1 {
        is_of_update(bytes, &whole);
    }
}

/// Compares the sum of one update with its tensors: a sum has no negative zero, and one NaN.
fn is_of_update(bytes: &[u8], sum: &[TensorBuf]) {
    let mut assembler = None;
    for event in SliceReader::new(bytes, limits()) {
        let Ok(Event::Frame(_, Body::Update(part))) = event else { continue };
        if part.part == 0 {
            assembler = Assembler::new(&part.manifest, &limits(), |_| true).ok();
        }
        let Some(assembler) = &mut assembler else { return };
        if assembler.apply(&part).is_err() {
            return;
        }
        if part.last {
            break;
        }
    }
    let Some(Ok(tensors)) = assembler.map(Assembler::finish) else { return };
    for (sum, (_, tensor)) in sum.iter().zip(&tensors) {
        let same = |a: &f32, b: &f32| a == b || a.is_nan() && b.is_nan();
        match (sum.view().to_f32(), tensor.view().to_f32()) {
            (Ok(a), Ok(b)) => assert!(a.iter().zip(&b).all(|(a, b)| same(a, b)), "the sum of one update"),
            _ => assert!(sum.data() == tensor.data(), "the sum of one update"),
        }
    }
}

/// Blocks that are copied undecoded are refused without output, or have the same bytes in another stream.
fn handed_on(bytes: &[u8]) {
    for event in SliceReader::new(bytes, limits()) {
        let Ok(Event::Frame(_, Body::Update(part))) = event else { continue };
        for (number, raw) in part.blocks.iter().enumerate() {
            let Ok(block) = part.wire_block(number) else { continue };
            let (mut encoder, mut out) = (Encoder::new(EncodeOptions::default()), Vec::new());
            let blocks = [(block, BlockOptions::default())];
            if encoder.update(&mut out, &UpdateHeader::default(), &part.manifest, &blocks).is_err() {
                assert!(out.is_empty(), "bytes of what was refused");
                continue;
            }
            encoder.finish(&mut out);
            let mut seen = 0;
            for event in SliceReader::new(&out, limits()) {
                if let Event::Frame(_, Body::Update(other)) = event.expect("a stream that an encoder wrote") {
                    let again = &other.blocks[0];
                    let same = (again.support, again.values) == (raw.support, raw.values);
                    assert!(same && other.blocks.len() == 1, "a block handed on");
                    let (before, after) =
                        (part.decode(number, &part.budget()), other.decode(0, &other.budget()));
                    assert_eq!(fingerprint(&before.ok()), fingerprint(&after.ok()), "a block handed on");
                    seen += 1;
                }
            }
            assert_eq!(seen, 1);
        }
    }
}
