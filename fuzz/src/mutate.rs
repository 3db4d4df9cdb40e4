//! A mutator that knows the structure of streams: it changes bodies, blocks, supports and values, moves
//! frames and blocks, and corrects the checksums that would otherwise stop every reader at the first changed
//! byte.

use libfuzzer_sys::fuzzer_mutate;

use crate::frames::{self, Block, Frame, INDEX, INDEX_SET, KINDS, MANIFEST, Repair, UPDATE, Update};

/// Random choices (splitmix64).
struct Choices(u64);

impl Choices {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// Changes the first `size` bytes of `data`, a stream or not, up to `max_size` bytes, and returns the new
/// size.
pub fn mutate(data: &mut [u8], size: usize, max_size: usize, seed: u32) -> usize {
    let mut choices = Choices(seed.into());
    let mut frames = frames::parse(&data[..size]);
    if frames.is_empty() && choices.one_in(4) {
        // Bytes that are no stream become the body of one.
        frames.push(Frame { kind: KINDS[choices.below(KINDS.len())], flags: 1, body: data[..size].to_vec() });
    }
    if frames.is_empty() || choices.one_in(10) {
        return fuzzer_mutate(data, size, max_size);
    }
    let mut repair = Repair::ALL;
    for _ in 0..1 + choices.below(3) {
        let at = choices.below(frames.len());
        match choices.below(16) {
            0 if frames.len() > 1 => drop(frames.remove(at)),
            1 => frames.insert(at, frames[at].clone()),
            2 => {
                let other = choices.below(frames.len());
                frames.swap(at, other);
            }
            3 => frames[at].kind = KINDS[choices.below(KINDS.len())],
            4 => frames[at].flags ^= 1 << (if choices.one_in(4) { choices.below(16) } else { 0 }),
            5 => {
                // A wrong index or end, which is not corrected in this case.
                repair = Repair { indexes: false, ends: choices.one_in(2), ..repair };
                let index = frames.iter().position(|f| f.kind == INDEX).unwrap_or(at);
                bytes(&mut frames[index].body, 64);
            }
            6 => {
                repair.names = choices.one_in(2);
                bytes(&mut frames[at].body, 64);
            }
            7 => {
                let definition = frames.iter().position(|f| [MANIFEST, INDEX_SET].contains(&f.kind));
                bytes(&mut frames[definition.unwrap_or(at)].body, 256);
            }
            _ => {
                let updates: Vec<_> = (0..frames.len()).filter(|i| frames[*i].kind == UPDATE).collect();
                let at = if updates.is_empty() { at } else { updates[choices.below(updates.len())] };
                let body = &mut frames[at].body;
                match Update::parse(body) {
                    Some(mut update) if !update.blocks.is_empty() => {
                        blocks(&mut update, &mut choices);
                        *body = update.write();
                    }
                    _ => bytes(body, 256),
                }
            }
        }
    }
    let mut stream = frames::write(&frames, repair);
    if choices.one_in(20) {
        stream.truncate(choices.below(stream.len()));
    }
    if stream.len() > max_size.min(data.len()) {
        return fuzzer_mutate(data, size, max_size);
    }
    data[..stream.len()].copy_from_slice(&stream);
    stream.len()
}

/// Changes bytes, and grows them by at most `more`.
fn bytes(of: &mut Vec<u8>, more: usize) {
    let (size, most) = (of.len(), of.len() + more);
    of.resize(most, 0);
    let size = fuzzer_mutate(of, size, most);
    of.truncate(size);
}

/// Changes one block of an update, or the order of the blocks; lengths stay correct.
fn blocks(update: &mut Update, choices: &mut Choices) {
    let at = choices.below(update.blocks.len());
    let other = choices.below(update.blocks.len());
    match choices.below(16) {
        0 if update.blocks.len() > 1 => drop(update.blocks.remove(at)),
        1 => update.blocks.insert(at, update.blocks[at].clone()),
        2 => update.blocks.swap(at, other),
        3 => {
            let Block { support, support_id, .. } = update.blocks[other].clone();
            update.blocks[at] = Block { support, support_id, ..update.blocks[at].clone() };
        }
        4 => {
            let Block { values, values_id, .. } = update.blocks[other].clone();
            update.blocks[at] = Block { values, values_id, ..update.blocks[at].clone() };
        }
        5 => bytes(&mut update.blocks[at].scope, 8),
        6 => update.blocks[at].support_id = 1 + choices.below(10) as u64,
        7 => update.blocks[at].values_id = 1 + choices.below(16) as u64,
        8..11 => bytes(&mut update.blocks[at].support, 64),
        11 => bytes(&mut update.head, 64),
        _ => bytes(&mut update.blocks[at].values, 128),
    }
}
