//! Streams by hand, which the library would never write, with correct checksums and counts.

/// A growing buffer.
#[derive(Clone, Default)]
pub(crate) struct Bytes(pub(crate) Vec<u8>);

pub(crate) fn bytes() -> Bytes {
    Bytes::default()
}

impl Bytes {
    pub(crate) fn raw(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.0.extend_from_slice(bytes.as_ref());
        self
    }

    pub(crate) fn u8(self, value: u8) -> Self {
        self.raw([value])
    }

    pub(crate) fn u16(self, value: u16) -> Self {
        self.raw(value.to_le_bytes())
    }

    pub(crate) fn u32(self, value: u32) -> Self {
        self.raw(value.to_le_bytes())
    }

    pub(crate) fn u64(self, value: u64) -> Self {
        self.raw(value.to_le_bytes())
    }

    pub(crate) fn f32(self, value: f32) -> Self {
        self.u32(value.to_bits())
    }

    pub(crate) fn v(mut self, mut value: u64) -> Self {
        while value > 0x7f {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.u8(value as u8)
    }

    pub(crate) fn text(self, text: impl AsRef<[u8]>) -> Self {
        self.v(text.as_ref().len() as u64).raw(text)
    }

    /// Returns a bit plane of fields, each a value and its width.
    pub(crate) fn plane(self, fields: impl IntoIterator<Item = (u64, u32)>) -> Self {
        let (mut out, mut bit) = (Vec::new(), 0usize);
        for (value, width) in fields {
            for i in 0..width {
                if bit.is_multiple_of(8) {
                    out.push(0);
                }
                out[bit / 8] |= ((value >> i & 1) as u8) << (bit % 8);
                bit += 1;
            }
        }
        self.raw(out)
    }

    /// Returns a bit plane of fields of one width.
    pub(crate) fn fields(self, width: u32, values: &[u64]) -> Self {
        self.plane(values.iter().map(|&v| (v, width)))
    }

    /// Returns `ints` in the coding `packed`.
    pub(crate) fn packed(self, width: u8, values: &[u64]) -> Self {
        self.u8(0).u8(width).fields(width.into(), values)
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

pub(crate) fn hash(bytes: impl AsRef<[u8]>) -> [u8; 32] {
    *blake3::hash(bytes.as_ref()).as_bytes()
}

fn crc(bytes: impl AsRef<[u8]>) -> u32 {
    crc32fast::hash(bytes.as_ref())
}

// Streams and frames.

pub(crate) const MANIFEST: u16 = 1;
pub(crate) const UPDATE: u16 = 2;
pub(crate) const SET: u16 = 3;
pub(crate) const MODEL: u16 = 4;
pub(crate) const END: u16 = 5;
pub(crate) const METADATA: u16 = 0x8001;
pub(crate) const INDEX: u16 = 0x8002;
pub(crate) const LAST: u16 = 1;

/// A stream that counts its contents for the end frames.
#[derive(Clone)]
pub(crate) struct Stream {
    out: Vec<u8>,
    frames: u64,
    chain: crc32fast::Hasher,
    listed: Bytes,
    updates: Bytes,
    index_at: u64,
}

pub(crate) fn preamble(major: u8, minor: u8, flags: u16) -> Bytes {
    let head = bytes().raw(b"\x89GCU\r\n\x1a\n").u8(major).u8(minor).u16(flags);
    let crc = crc(&head);
    head.u32(crc)
}

pub(crate) fn stream() -> Stream {
    Stream::after(preamble(1, 0, 0))
}

impl Stream {
    pub(crate) fn after(preamble: Bytes) -> Self {
        Self {
            out: preamble.0,
            frames: 0,
            chain: crc32fast::Hasher::new(),
            listed: bytes(),
            updates: bytes(),
            index_at: 0,
        }
    }

    /// Adds a frame; `edit` changes its header before the header's checksum.
    pub(crate) fn frame_with(
        mut self,
        kind: u16,
        flags: u16,
        body: impl AsRef<[u8]>,
        edit: impl FnOnce(&mut Vec<u8>),
    ) -> Self {
        let body = body.as_ref();
        let mut head = bytes().raw(b"\xd3gcf").u16(kind).u16(flags).u64(body.len() as u64).u32(crc(body)).0;
        edit(&mut head);
        let head = Bytes(head.clone()).u32(crc(&head));
        self.chain.update(&head.0[..20]);
        self.frames += 1;
        self.listed = self.listed.v(kind.into()).v(24 + body.len() as u64);
        self.out.extend_from_slice(&head.0);
        self.out.extend_from_slice(body);
        self
    }

    pub(crate) fn frame(self, kind: u16, flags: u16, body: impl AsRef<[u8]>) -> Self {
        self.frame_with(kind, flags, body, |_| {})
    }

    /// Adds a manifest frame.
    pub(crate) fn manifest(self, body: impl AsRef<[u8]>) -> Self {
        self.frame(MANIFEST, 0, body)
    }

    /// Adds an update frame of one part.
    pub(crate) fn update(self, update: &Update) -> Self {
        self.part(update, LAST)
    }

    /// Adds an update frame with flags, and notes it for the index.
    pub(crate) fn part(mut self, update: &Update, flags: u16) -> Self {
        let (head, body) = (update.head(), update.body());
        self.updates = self.updates.v(update.step).v(update.sender).v(head.0.len() as u64).u32(crc(&head));
        self.updates = self.updates.v(update.blocks.len() as u64);
        for block in &update.blocks {
            let mut at = block.0.iter();
            // Length, flags of the scope, first tensor, and count if present; all are short here.
            let length = at.by_ref().take_while(|b| **b >= 0x80).count();
            let scope = &block.0[length + 1..];
            let tensors = if scope[0] & 3 == 1 { scope[2].into() } else { 1 };
            self.updates = self.updates.v(scope[1].into()).v(tensors).v(block.0.len() as u64).u32(crc(block));
        }
        self.frame(UPDATE, flags, body)
    }

    /// Returns the entries of an index at this position.
    pub(crate) fn listing(&self) -> Bytes {
        bytes().v(self.frames).raw(&self.listed).raw(&self.updates)
    }

    pub(crate) fn index(self) -> Self {
        let listing = self.listing();
        self.index_of(listing)
    }

    /// Adds an index with this body.
    pub(crate) fn index_of(mut self, body: Bytes) -> Self {
        self.index_at = self.out.len() as u64;
        self.frame(INDEX, 0, body)
    }

    /// Adds an end frame; `edit` changes its body.
    pub(crate) fn end_with(mut self, edit: impl FnOnce(&mut Vec<u8>)) -> Self {
        let mut body =
            bytes().u64(self.frames).u64(self.index_at).u32(self.chain.clone().finalize()).raw(b"GCUE").0;
        edit(&mut body);
        self.index_at = 0;
        self.frame(END, 0, body)
    }

    pub(crate) fn end(self) -> Self {
        self.end_with(|_| {})
    }

    /// Adds bytes that are no frame.
    pub(crate) fn raw(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.out.extend_from_slice(bytes.as_ref());
        self
    }

    /// Returns the finished stream.
    pub(crate) fn done(self) -> Vec<u8> {
        self.end().out
    }

    /// Returns the unfinished stream.
    pub(crate) fn open(self) -> Vec<u8> {
        self.out
    }
}

// Bodies.

/// Returns a manifest of tensors: name, dtype, shape.
pub(crate) fn manifest(tensors: &[(&str, u8, &[u64])]) -> Bytes {
    let mut out = bytes().v(tensors.len() as u64);
    let mut previous = "";
    for (name, dtype, shape) in tensors {
        let prefix = previous.bytes().zip(name.bytes()).take_while(|(a, b)| a == b).count();
        out = out.v(prefix as u64).text(&name.as_bytes()[prefix..]).raw(tensor(*dtype, shape)).u8(0);
        previous = name;
    }
    out
}

/// Returns the element type and shape of a manifest's tensor.
pub(crate) fn tensor(dtype: u8, shape: &[u64]) -> Bytes {
    shape.iter().fold(bytes().u8(dtype).v(shape.len() as u64), |out, &d| out.v(d))
}

/// Fields of an update.
#[derive(Clone, Default)]
pub(crate) struct Update {
    pub(crate) manifest: [u8; 32],
    pub(crate) step: u64,
    pub(crate) sender: u64,
    pub(crate) reduction: u8,
    pub(crate) part: u64,
    pub(crate) attributes: Vec<(u64, Bytes)>,
    pub(crate) tables: Vec<Bytes>,
    pub(crate) blocks: Vec<Bytes>,
}

/// Returns an update of one part with these blocks.
pub(crate) fn update(manifest: &Bytes, blocks: impl IntoIterator<Item = Bytes>) -> Update {
    Update { manifest: hash(manifest), blocks: blocks.into_iter().collect(), ..Update::default() }
}

impl Update {
    pub(crate) fn part(self, part: u64) -> Self {
        Self { part, ..self }
    }

    pub(crate) fn attribute(mut self, id: u64, bytes: Bytes) -> Self {
        self.attributes.push((id, bytes));
        self
    }

    pub(crate) fn table(mut self, table: Bytes) -> Self {
        self.tables.push(table);
        self
    }

    fn head(&self) -> Bytes {
        let mut out = bytes().raw(self.manifest).v(self.step).v(0).v(self.sender).v(0).v(0).v(0);
        out = out.u8(self.reduction).v(self.part).v(self.attributes.len() as u64);
        for (id, attribute) in &self.attributes {
            out = out.v(*id).text(attribute);
        }
        out = out.v(self.tables.len() as u64);
        self.tables.iter().fold(out, |out, t| out.raw(t)).v(self.blocks.len() as u64)
    }

    pub(crate) fn body(&self) -> Bytes {
        self.blocks.iter().fold(self.head(), |out, block| out.raw(block))
    }
}

/// Returns the scope of a whole tensor.
pub(crate) fn whole(tensor: u64) -> Bytes {
    bytes().u8(0).v(tensor)
}

pub(crate) fn several(first: u64, count: u64) -> Bytes {
    bytes().u8(1).v(first).v(count)
}

pub(crate) fn range(tensor: u64, start: u64, len: u64) -> Bytes {
    bytes().u8(2).v(tensor).v(start).v(len)
}

/// Sets `add` in a scope.
pub(crate) fn adding(mut scope: Bytes) -> Bytes {
    scope.0[0] |= 4;
    scope
}

pub(crate) fn block(scope: Bytes, support: (u64, Bytes), values: (u64, Bytes)) -> Bytes {
    let body = scope.v(support.0).v(values.0).text(&support.1).raw(&values.1);
    bytes().text(body)
}

/// Returns a stream of one tensor `w` and an update with one block over all of it.
pub(crate) fn one(dtype: u8, shape: &[u64], support: (u64, Bytes), values: (u64, Bytes)) -> Vec<u8> {
    let man = manifest(&[("w", dtype, shape)]);
    let update = update(&man, [block(whole(0), support, values)]);
    stream().manifest(&man).update(&update).done()
}

/// Returns the same with the support `all`.
pub(crate) fn dense(dtype: u8, shape: &[u64], values: (u64, Bytes)) -> Vec<u8> {
    one(dtype, shape, ALL(), values)
}

/// Returns the same with f32 elements and the constant 1, to test the support.
pub(crate) fn placed(n: u64, support: (u64, Bytes)) -> Vec<u8> {
    one(F32, &[n], support, ones())
}

pub(crate) const F64: u8 = 1;
pub(crate) const F32: u8 = 2;
pub(crate) const F16: u8 = 3;
pub(crate) const BF16: u8 = 4;
pub(crate) const I16: u8 = 17;

#[allow(non_snake_case)]
pub(crate) fn ALL() -> (u64, Bytes) {
    (1, bytes())
}

/// Returns one group with one binary32 scale.
pub(crate) fn scale(value: f32) -> Bytes {
    bytes().v(0).u8(2).f32(value)
}

/// Returns values that are all 1.
pub(crate) fn ones() -> (u64, Bytes) {
    (2, scale(1.0))
}

// Entropy codes: a separate writer, which can choose lanes, tables and segments.

/// Symbols and their frequencies, with the sum 4096; all except that of `rest` have the form 2^e + y * 2^(e
/// - min(e, 3)).
#[derive(Clone)]
pub(crate) struct Freqs {
    pub(crate) freqs: Vec<(u8, u32)>,
    pub(crate) rest: u8,
}

/// Returns frequencies of 64 for all `symbols`, and the remainder for the first one.
pub(crate) fn freqs_of(symbols: &[u8]) -> Freqs {
    let mut kinds = symbols.to_vec();
    kinds.sort_unstable();
    kinds.dedup();
    let each = if kinds.len() > 32 { 8 } else { 64 };
    let rest = kinds[0];
    let freq = |&s: &u8| (s, if s == rest { 4096 - each * (kinds.len() as u32 - 1) } else { each });
    Freqs { freqs: kinds.iter().map(freq).collect(), rest }
}

impl Freqs {
    fn freq(&self, symbol: u8) -> (u32, u32) {
        let mut start = 0;
        for &(s, freq) in &self.freqs {
            if s == symbol {
                return (freq, start);
            }
            start += freq;
        }
        panic!("symbol {symbol} has no frequency");
    }

    pub(crate) fn table(&self) -> Bytes {
        let (first, last) = (self.freqs[0].0, self.freqs[self.freqs.len() - 1].0);
        let mut fields = vec![(first.into(), 8), ((last - first).into(), 8), ((self.rest - first).into(), 8)];
        for symbol in (first..=last).filter(|&s| s != self.rest) {
            match self.freqs.iter().find(|(s, _)| *s == symbol) {
                None => fields.push((0, 4)),
                Some((_, freq)) => {
                    let e = freq.ilog2();
                    let spare = e - e.min(3);
                    assert_eq!(freq >> spare << spare, *freq, "a frequency that a table cannot say");
                    fields.extend([(u64::from(e) + 1, 4), (u64::from((freq - (1 << e)) >> spare), e.min(3))]);
                }
            }
        }
        bytes().plane(fields)
    }

    /// States and words (7.3).
    pub(crate) fn rans(&self, symbols: &[u8], lanes_log: u8) -> (Vec<u32>, Vec<u16>) {
        let mut states = vec![1u32 << 16; 1 << lanes_log];
        let mut words = Vec::new();
        for (i, &symbol) in symbols.iter().enumerate().rev() {
            let (freq, start) = self.freq(symbol);
            let state = &mut states[i % (1 << lanes_log)];
            if u64::from(*state) >= u64::from(freq) << 20 {
                words.push(*state as u16);
                *state >>= 16;
            }
            *state = (*state / freq) * 4096 + start + *state % freq;
        }
        words.reverse();
        (states, words)
    }

    /// Lanes, words and states.
    pub(crate) fn code(&self, symbols: &[u8], lanes_log: u8) -> Bytes {
        let (states, words) = self.rans(symbols, lanes_log);
        let out = bytes().u8(lanes_log).v(words.len() as u64);
        let out = states.into_iter().fold(out, Bytes::u32);
        words.into_iter().fold(out, Bytes::u16)
    }

    /// Returns a segment with its own table.
    pub(crate) fn segment(&self, symbols: &[u8], lanes_log: u8) -> Bytes {
        bytes().v(0).raw(self.table()).raw(self.code(symbols, lanes_log))
    }
}

/// A node of a Huffman tree (7.8): the symbols below it, and its two children; none of a leaf.
#[derive(Clone)]
struct Node {
    symbols: Vec<u8>,
    children: Vec<Node>,
}

impl Node {
    /// Planes of this node and of those below it, which `symbols` pass.
    fn planes(&self, symbols: &[u8]) -> Bytes {
        let [left, right] = self.children.as_slice() else { return bytes() };
        let (ones, zeros): (Vec<u8>, Vec<u8>) = symbols.iter().partition(|s| right.symbols.contains(s));
        let plane = bytes().plane(symbols.iter().map(|s| (right.symbols.contains(s).into(), 1)));
        plane.raw(left.planes(&zeros)).raw(right.planes(&ones))
    }
}

impl Freqs {
    /// The planes of these symbols in a tree.
    pub(crate) fn planes(&self, symbols: &[u8]) -> Bytes {
        let leaf =
            |&(s, freq): &(u8, u32)| (freq, usize::from(s), Node { symbols: vec![s], children: vec![] });
        let mut nodes: Vec<_> = self.freqs.iter().map(leaf).collect();
        for number in 256.. {
            nodes.sort_by_key(|(weight, number, _)| (*weight, *number));
            if nodes.len() == 1 {
                break;
            }
            let ((a, _, left), (b, _, right)) = (nodes.remove(0), nodes.remove(0));
            let symbols = [left.symbols.as_slice(), &right.symbols].concat();
            nodes.push((a + b, number, Node { symbols, children: vec![left, right] }));
        }
        symbols.chunks(1 << 15).fold(bytes(), |out, stretch| out.raw(nodes[0].2.planes(stretch)))
    }

    /// Returns a tree with its own table.
    pub(crate) fn tree(&self, symbols: &[u8]) -> Bytes {
        let planes = self.planes(symbols);
        bytes().v(0).raw(self.table()).v(planes.0.len() as u64).raw(planes)
    }
}

/// Returns `entropy` of one segment with its own table.
pub(crate) fn entropy(symbols: &[u8], lanes_log: u8) -> Bytes {
    bytes().u8(0).raw(freqs_of(symbols).segment(symbols, lanes_log))
}

/// Returns an integer's token, and its raw bits with their width.
pub(crate) fn token(value: u64) -> (u8, (u64, u32)) {
    match value {
        0 | 1 => (value as u8, (0, 0)),
        _ => {
            let e = value.ilog2();
            ((2 * e) as u8 + (value >> (e - 1) & 1) as u8, (value & ((1 << (e - 1)) - 1), e - 1))
        }
    }
}

pub(crate) fn tokens(values: &[u64]) -> Vec<u8> {
    values.iter().map(|&v| token(v).0).collect()
}

/// Returns the raw bits of integers.
pub(crate) fn raw_bits(values: &[u64]) -> Bytes {
    bytes().plane(values.iter().map(|&v| token(v).1))
}

/// Returns `entropy` over tokens, in one segment.
pub(crate) fn token_entropy(values: &[u64], lanes_log: u8) -> Bytes {
    entropy(&tokens(values), lanes_log).raw(raw_bits(values))
}

/// Converts positions to gaps.
pub(crate) fn gaps(positions: &[u64]) -> Vec<u64> {
    positions.iter().scan(0, |next, &p| Some(p - std::mem::replace(next, p + 1))).collect()
}

/// Returns both planes of a Rice run.
pub(crate) fn rice_run(gaps: &[u64], k: u32) -> (Bytes, Bytes) {
    let low = if k == 0 { bytes() } else { bytes().plane(gaps.iter().map(|g| (g & ((1 << k) - 1), k))) };
    let high = bytes()
        .plane(gaps.iter().flat_map(|g| std::iter::repeat_n((0, 1), (g >> k) as usize).chain([(1, 1)])));
    (low, high)
}

/// Returns a Rice support of one chunk.
pub(crate) fn rice(positions: &[u64], k: u8) -> (u64, Bytes) {
    let (low, high) = rice_run(&gaps(positions), k.into());
    (2, bytes().v(positions.len() as u64).u8(0).u8(k).raw(low).raw(high))
}

/// Returns a Rice support of several chunks; `edit` gets each chunk's parameter, length of the second plane
/// and span.
pub(crate) fn rice_chunks(
    positions: &[u64],
    chunk_log: u8,
    k: u8,
    edit: impl Fn(usize, &mut (u8, u64, u64)),
) -> (u64, Bytes) {
    let gaps = gaps(positions);
    let (mut heads, mut planes) = (bytes(), bytes());
    for (i, chunk) in gaps.chunks(1 << chunk_log).enumerate() {
        let (low, high) = rice_run(chunk, k.into());
        let mut head = (k, high.0.len() as u64, chunk.iter().sum::<u64>() + chunk.len() as u64);
        edit(i, &mut head);
        heads = heads.u8(head.0).v(head.1).v(head.2);
        planes = planes.raw(low).raw(high);
    }
    (2, bytes().v(positions.len() as u64).u8(chunk_log).raw(heads).raw(planes))
}
