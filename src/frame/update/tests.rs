use super::*;
use crate::block::{
    Based, BlockOptions, Constant, Entropy, Groups, ScaleFormat, Scales, Sparse, Support, Ulp, Values,
};
use crate::codes::Coder;
use crate::frame::TensorInfo;
use crate::tensor::Dtype;

/// Tensors of four elements.
fn manifest(tensors: u64) -> Arc<Manifest> {
    let infos = (0..tensors).map(|i| TensorInfo::new(i.to_string(), Dtype::F32, [4]));
    Arc::new(Manifest::new(infos.collect()).unwrap())
}

fn constant(scope: Scope) -> Block {
    let scales = Scales::from_f32s(ScaleFormat::F32, &[1.0]);
    let values = Values::Constant(Constant { groups: Groups::Block, scales });
    Block { scope, add: false, support: Support::All, values }
}

fn ulp(scope: Scope, support: Support) -> Block {
    Block { scope, add: false, support, values: Values::Ulp(Ulp { diffs: vec![1] }) }
}

fn delta(runs: &[(u64, u64)]) -> UpdateHeader {
    let run = |&(first, more): &(u64, u64)| Delta { first, more, base: [1; 16], result: [2; 16] };
    UpdateHeader::default().with_delta(Some(runs.iter().map(run).collect()))
}

/// The body of a part, whatever rules it breaks.
fn body(manifest: &Manifest, header: &UpdateHeader, blocks: &[Block]) -> Vec<u8> {
    let (mut out, sets) = (Vec::new(), Sets::new());
    let runs = DeltaRuns { hashed: header.delta.clone(), summed: header.sums.clone() };
    write_head(&mut out, header, manifest.id(), 0, &runs);
    put_varint(&mut out, 0);
    put_varint(&mut out, blocks.len() as u64);
    for block in blocks {
        let (scope, space) = (block.scope, manifest.space(block.scope, 0).unwrap());
        let around = Surroundings { space: &space, manifest: manifest.id().0, scope, sets: &sets };
        let mut coder = Coder::new(Entropy::Auto, &[], None);
        let block = WireBlock::from(block);
        let written = block.write(&mut coder, BlockOptions::default(), &around, Vec::new());
        written.unwrap().append_to(&mut out);
    }
    out
}

/// Reads a part whose body begins at byte 100.
fn read<'a>(manifest: &Arc<Manifest>, body: &'a [u8], most_blocks: u64) -> Result<UpdatePart<'a>> {
    let limits = Limits::default().with_max_blocks(most_blocks);
    UpdatePart::read(body, 100, true, &limits, &Arc::default(), |_| Some(Arc::clone(manifest)))
}

fn place<T>(result: Result<T>) -> Result<(), (&'static str, u64)> {
    result.map(drop).map_err(|e| (e.name(), e.location().unwrap().offset))
}

#[test]
fn the_head_of_a_part_ends_where_its_blocks_begin() {
    let manifest = manifest(1);
    let body = body(&manifest, &UpdateHeader::default(), &[constant(Scope::Tensor(0))]);
    let part = read(&manifest, &body, 9).unwrap();
    assert_eq!(100 + part.head_len, part.blocks[0].offset);
    assert_eq!(part.head_len + part.blocks[0].len, body.len() as u64);
}

#[test]
fn the_tensors_in_the_runs_of_a_delta_are_limited() {
    let manifest = manifest(3);
    let no_blocks = |runs: &[(u64, u64)]| body(&manifest, &delta(runs), &[]);
    for runs in [&[(0, 2)][..], &[(0, 0), (1, 0), (2, 0)]] {
        assert_eq!(place(read(&manifest, &no_blocks(runs), 3)), Ok(()));
        assert_eq!(place(read(&manifest, &no_blocks(runs), 2)), Err(("limit", 100)));
    }
    // A run that leaves the manifest is wrong, whatever the limit.
    assert_eq!(place(read(&manifest, &no_blocks(&[(0, u64::MAX)]), 3)), Err(("out_of_range", 100)));
    // A tensor in a run and the same tensor in a block count twice.
    let block = body(&manifest, &delta(&[(0, 0)]), &[constant(Scope::Tensor(0))]);
    assert_eq!(place(read(&manifest, &block, 2)), Ok(()));
    assert_eq!(place(read(&manifest, &block, 1)).unwrap_err().0, "limit");
}

#[test]
fn each_tensor_of_a_block_has_a_digest_in_the_delta() {
    let manifest = manifest(5);
    let several = |first, count| Scope::Tensors { first, count };
    let based = Support::Based(Based { bounds: vec![], ranks: vec![vec![0]] });
    for (runs, scope, plain, classed) in [
        (&[(0, 0)][..], Scope::Tensor(0), true, true),
        (&[(0, 0)], Scope::Tensor(1), false, false),
        (&[(2, 0)], Scope::Tensor(1), false, false),
        (&[(1, 1)], several(1, 2), true, true),
        (&[(1, 1)], several(1, 3), false, false),
        (&[(1, 1)], several(0, 2), false, false),
        (&[(1, 1), (4, 0)], several(1, 3), false, false),
        // Runs without a gap between them: one digest must cover a block that is classed by the base.
        (&[(1, 0), (2, 0)], several(1, 2), true, false),
        (&[(1, 0), (2, 1), (4, 0)], several(2, 3), true, false),
    ] {
        for (block, is_fine) in [(constant(scope), plain), (ulp(scope, based.clone()), classed)] {
            let body = body(&manifest, &delta(runs), &[block]);
            let found = read(&manifest, &body, 99).map(drop).map_err(|e| e.name());
            let expected = if is_fine { Ok(()) } else { Err("unknown_reference") };
            assert_eq!(found, expected, "{runs:?} {scope:?}");
        }
    }
}

/// The head and the blocks of a part, each given alone, have no other bytes, and the rules of a delta
/// hold for them too.
#[test]
fn blocks_that_are_read_alone_are_checked() {
    let manifest = manifest(1);
    let read = |header: &UpdateHeader, block: Block, behind: [&[u8]; 2]| {
        let whole = body(&manifest, header, &[block]);
        let (head, block) = whole.split_at(body(&manifest, header, &[]).len());
        let [head, block] = [[head, behind[0]].concat(), [block, behind[1]].concat()];
        let read = UpdatePart::read_blocks(
            &head,
            100,
            &[(&block, 500)],
            true,
            &Limits::default(),
            &Arc::default(),
            |_| Some(Arc::clone(&manifest)),
        );
        (place(read), head.len() as u64, block.len() as u64)
    };
    let (header, block) = (UpdateHeader::default(), constant(Scope::Tensor(0)));
    assert_eq!(read(&header, block.clone(), [&[], &[]]).0, Ok(()));
    let (found, head, _) = read(&header, block.clone(), [&[0], &[]]);
    assert_eq!(found, Err(("length_mismatch", 100 + head - 1)));
    let (found, _, block) = read(&header, block, [&[], &[0]]);
    assert_eq!(found, Err(("length_mismatch", 500 + block - 1)));
    let ulp = || ulp(Scope::Tensor(0), Support::Sparse(Sparse { positions: vec![3] }));
    assert_eq!(read(&header, ulp(), [&[], &[]]).0, Err(("unknown_reference", 500)));
    assert_eq!(read(&delta(&[(0, 0)]), ulp(), [&[], &[]]).0, Ok(()));
}

#[test]
fn runs_with_digests_of_either_kind_are_written_in_order() {
    fn runs<D: Copy>(digest: D, firsts: [u64; 2]) -> Option<Vec<Delta<D>>> {
        Some(firsts.map(|first| Delta { first, more: 0, base: digest, result: digest }).into())
    }
    let manifest = manifest(2);
    for (hashed, summed, in_order) in
        [([0, 1], [0, 1], true), ([1, 0], [0, 1], false), ([0, 1], [1, 0], false), ([0, 1], [1, 1], false)]
    {
        let header = UpdateHeader::default()
            .with_delta(runs([1; 16], hashed))
            .with_sums(runs(crate::digest::SumDigest::ZERO, summed));
        let mut encoder = crate::stream::Encoder::new(crate::stream::EncodeOptions::default());
        let written = encoder.update(&mut Vec::new(), &header, &manifest, [] as [Block; 0]);
        let is_order = |e: &Error| e.to_string().contains("tensors of a delta");
        assert_eq!(
            written.as_ref().err().is_some_and(is_order),
            !in_order,
            "{hashed:?} {summed:?} {written:?}"
        );
    }
}

#[test]
fn blocks_that_replace_elements_ascend_and_do_not_overlap() {
    let tensor = Scope::Tensor;
    let several = |first, count| Scope::Tensors { first, count };
    let range = |tensor, start, len| Scope::Range { tensor, start, len };
    let accepted = |scopes: &[Scope]| {
        let mut order = BlockOrder::default();
        scopes.iter().all(|&scope| order.accept(scope, false))
    };
    for scopes in [
        &[tensor(0), tensor(1), tensor(7)][..],
        &[tensor(0), several(1, 2), tensor(3), several(4, 2)],
        &[range(0, 0, 1), range(0, 1, 2), tensor(1)],
        &[range(0, 2, 2), range(1, 0, 1), several(2, 2), range(4, 0, 1)],
    ] {
        assert!(accepted(scopes), "{scopes:?}");
    }
    for scopes in [
        [tensor(0), tensor(0)],
        [tensor(1), tensor(0)],
        [tensor(0), range(0, 3, 1)],
        [range(0, 0, 1), tensor(0)],
        [range(0, 0, 1), several(0, 2)],
        [range(0, 0, 2), range(0, 1, 1)],
        [several(0, 2), tensor(1)],
        [several(0, 2), range(1, 0, 1)],
    ] {
        assert!(!accepted(&scopes), "{scopes:?}");
    }
}
