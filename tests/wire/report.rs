//! Reports on streams: which rows, and whose bits, values and errors they have.

use std::sync::Arc;

use gcodec::block::{Block, Floats, Scope, Sparse, Stored, Support, Values, ValuesId};
use gcodec::digest::SumDigest;
use gcodec::file::report::{Detail, Report};
use gcodec::frame::{Delta, Manifest, TensorInfo, UpdateHeader, UpdatePart};
use gcodec::internal::HEADER_LEN;
use gcodec::reduce::stats::StatsOptions;
use gcodec::stream::{Body, EncodeOptions, Encoder, Event, FrameInfo, SliceReader};
use gcodec::{Dtype, Error, Limits};

fn block(scope: Scope, support: Support, values: &[f32]) -> Block {
    let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let values = Values::Floats(Floats { stored: Stored::F32, bytes });
    Block { scope, add: false, support, values }
}

/// Two updates of two tensors. A block of both, and one that is added to the first; then one for each.
fn stream() -> Vec<u8> {
    let infos = ["a", "b"].map(|name| TensorInfo::new(name, Dtype::F32, [4]));
    let manifest = Arc::new(Manifest::new(infos.to_vec()).unwrap());
    let both = Support::Sparse(Sparse { positions: vec![0, 1, 2, 5] });
    let both = block(Scope::Tensors { first: 0, count: 2 }, both, &[1.0, 2.0, 3.0, 4.0]);
    let more = block(Scope::Tensor(0), Support::All, &[1.0; 4]);
    let each = [0, 1].map(|tensor| block(Scope::Tensor(tensor), Support::All, &[0.5; 4]));
    let (mut encoder, mut out) = (Encoder::new(EncodeOptions::default()), Vec::new());
    for (step, blocks) in [(0, [both, Block { add: true, ..more }]), (1, each)] {
        encoder.update(&mut out, &UpdateHeader::default().with_step(step), &manifest, &blocks).unwrap();
    }
    encoder.finish(&mut out);
    out
}

#[test]
fn the_bits_of_a_block_are_divided_by_kept_values_and_sums_are_decoded() {
    let bytes = stream();
    let (report, error) = Report::of(&bytes, Limits::default(), &());
    assert!(error.is_none());
    assert_eq!((report.minor, report.bytes, report.segments), (Some(0), bytes.len() as u64, 1));
    assert_eq!((report.has_index, report.frames.len()), (true, 5));
    assert_eq!((report.manifests[0].tensors, report.manifests[0].elements), (2, 8));
    let [update, next] = &report.updates[..] else { panic!("two updates") };
    assert_eq!((&update.frames[..], update.blocks, update.kept), (&[1][..], 2, 8));
    assert!(update.is_complete && next.is_complete && update.block_rows.is_empty());
    // The added block stands behind one of both tensors, and has no row of its own.
    let [a, b] = &update.tensors[..] else { panic!("two tensors") };
    assert_eq!((a.number, a.blocks, a.kept, a.is_shared), (0, 2, Some(7), true));
    assert_eq!((b.number, b.blocks, b.kept, b.is_shared), (1, 1, Some(1), true));
    assert_eq!((a.kind, a.values.as_deref()), (Some(ValuesId::FLOATS), Some("f32")));
    assert!(a.support.is_none() && b.support.is_some() && !a.is_delta);
    let frame = report.frames[1];
    let header = 8.0 * update.header_bytes as f64;
    let bits = [a, b].map(|row| row.position_bits + row.value_bits + row.overhead_bits);
    assert!((bits[0] + bits[1] + header - 8.0 * frame.len() as f64).abs() < 1e-6);
    let (_, rows) = blocks(&bytes);
    let shared = 8.0 * rows[0].values_bytes as f64;
    assert_eq!(b.value_bits, shared / 4.0);
    assert_eq!(a.value_bits, shared * 3.0 / 4.0 + 8.0 * rows[1].values_bytes as f64);
    // 2, 3, 4, 1, and 0, 4, 0, 0.
    assert_eq!((a.stats.norm(), a.stats.nonzero(), a.stats.unread), (30f64.sqrt(), 4, 0));
    let stats = b.stats.clone().with_elements(4);
    assert_eq!((stats.norm(), stats.zeros, stats.kept), (4.0, 3, 1));
}

struct Blocks;

impl Detail for Blocks {
    type Error = Error;

    fn stats(&self, _: &UpdatePart<'_>) -> Option<StatsOptions> {
        None
    }
}

fn blocks(bytes: &[u8]) -> (Option<Error>, Vec<gcodec::file::report::BlockReport>) {
    let (report, error) = Report::of(bytes, Limits::default(), &Blocks);
    assert!(report.updates.iter().all(|update| update.tensors.is_empty()));
    (error, report.updates.into_iter().flat_map(|update| update.block_rows).collect())
}

#[test]
fn a_block_that_does_not_decode_hides_no_other() {
    let mut bytes = stream();
    let (error, rows) = blocks(&bytes);
    assert!(error.is_none());
    let found: Vec<_> = rows.iter().map(|b| (b.frame, b.scope.first(), b.elements, b.kept)).collect();
    assert_eq!(found, [(1, 0, 8, Some(4)), (1, 0, 4, Some(4)), (2, 0, 4, Some(4)), (2, 1, 4, Some(4))]);
    // Numbers in a form that does not exist, with right checksums, in the first block of the second update.
    let mut place = None;
    for event in SliceReader::new(&bytes, Limits::default()) {
        if let Event::Frame(info, Body::Update(part)) = event.unwrap() {
            let block = &part.blocks[0];
            place = Some((info, block.offset + block.len - block.values.len() as u64));
        }
    }
    let (info, values) = place.unwrap();
    let (start, end) = (info.offset as usize, (info.offset + info.len()) as usize);
    bytes[values as usize] = 9;
    let crc = crc32fast::hash(&bytes[start + HEADER_LEN..end]);
    bytes[start + 16..start + 20].copy_from_slice(&crc.to_le_bytes());
    let crc = crc32fast::hash(&bytes[start..start + 20]);
    bytes[start + 20..start + 24].copy_from_slice(&crc.to_le_bytes());

    let (error, rows) = blocks(&bytes);
    assert_eq!(error.unwrap().location().unwrap().block, Some(0));
    assert_eq!(rows.iter().map(|b| b.kept).collect::<Vec<_>>(), [Some(4), Some(4), None, Some(4)]);
    let (report, error) = Report::of(&bytes, Limits::default(), &());
    let error = error.unwrap().to_string();
    let [first, second] = &report.updates[..] else { panic!("two updates") };
    assert!(first.is_complete && !second.is_complete && !second.is_sound);
    assert_eq!((second.kept, second.tensors[0].kept, second.tensors[0].stats.elements), (4, Some(0), 0));
    assert_eq!((&second.tensors[0].error, &second.tensors[1].error), (&Some(error), &None));
}

/// Only the second update, and of it the second tensor.
struct Second;

impl Detail for Second {
    type Error = Error;

    fn shows_frame(&self, info: &FrameInfo) -> bool {
        info.number > 0
    }

    fn shows_update(&self, header: &UpdateHeader) -> bool {
        header.step == 1
    }

    fn shows_tensor(&self, info: &TensorInfo) -> bool {
        info.name == "b"
    }

    fn note(&self, _: &UpdatePart<'_>, number: usize) -> String {
        format!("block {number}")
    }
}

#[test]
fn what_is_not_shown_is_counted() {
    let bytes = stream();
    let (report, error) = Report::of(&bytes, Limits::default(), &Second);
    assert!(error.is_none() && report.manifests.is_empty() && report.has_index);
    assert_eq!(report.frames.iter().map(|frame| frame.number).collect::<Vec<_>>(), [1, 2, 3, 4]);
    let [update] = &report.updates[..] else { panic!("one update") };
    assert_eq!((update.header.step, update.kept), (1, 8));
    let [row] = &update.tensors[..] else { panic!("one tensor") };
    assert_eq!((row.number, row.note.as_str(), row.kept), (1, "block 1", Some(4)));
}

#[test]
fn a_delta_is_marked_as_one_even_without_blocks() {
    let infos = ["a", "b"].map(|name| TensorInfo::new(name, Dtype::F32, [4]));
    let manifest = Arc::new(Manifest::new(infos.to_vec()).unwrap());
    let report = |runs: Vec<Delta<SumDigest>>, blocks: &[Block]| {
        let (mut encoder, mut out) = (Encoder::new(EncodeOptions::default()), Vec::new());
        let header = UpdateHeader::default().with_sums(Some(runs));
        encoder.update(&mut out, &header, &manifest, blocks).unwrap();
        encoder.finish(&mut out);
        let (report, error) = Report::of(&out, Limits::default(), &());
        assert!(error.is_none());
        (report.beyond_core, report.updates[0].tensors.iter().map(|row| row.is_delta).collect::<Vec<_>>())
    };
    assert_eq!(report(vec![], &[]), (Some("a delta"), vec![]));
    let run = Delta { first: 1, more: 0, base: SumDigest::ZERO, result: SumDigest::ZERO };
    let one = block(Scope::Tensor(1), Support::All, &[1.0; 4]);
    assert_eq!(report(vec![run], &[one]), (Some("a delta"), vec![true]));
}
