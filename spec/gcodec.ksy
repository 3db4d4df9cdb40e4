meta:
  id: gcodec
  title: gcodec, compressed model updates, version 1
  file-extension: gcu
  license: MIT OR Apache-2.0
  ks-version: '0.11'
  endian: le
  bit-endian: le
doc: |
  The byte-aligned structure of a gcodec stream. gcodec.md defines the format; section numbers refer to it.

  A structure is raw bytes here if its length depends on another frame or on decoded integers: bit planes,
  entropy-coded integers, scales of more than one group (their number depends on the manifest), and the
  content of zstd frames. This description does not check checksums, hashes, limits or the order of frames;
  for untrusted input, use a reader.
doc-ref: gcodec.md
seq:
  - id: preamble
    type: preamble
  - id: segments
    type: segment
    repeat: until
    repeat-until: _io.eof
types:
  # ---------------------------------------------------------------------------------------- 1. Conventions
  varint:
    doc: 'Section 1: at most ten groups of seven bits, least significant group first.'
    seq:
      - id: groups
        type: varint_group
        repeat: until
        repeat-until: not _.more
        valid:
          expr: _index < 9 or not _.more
    instances:
      len:
        value: groups.size
      value:
        value: >-
          groups[0].bits.as<u8>
          + (len > 1 ? groups[1].bits.as<u8> << 7 : 0)
          + (len > 2 ? groups[2].bits.as<u8> << 14 : 0)
          + (len > 3 ? groups[3].bits.as<u8> << 21 : 0)
          + (len > 4 ? groups[4].bits.as<u8> << 28 : 0)
          + (len > 5 ? groups[5].bits.as<u8> << 35 : 0)
          + (len > 6 ? groups[6].bits.as<u8> << 42 : 0)
          + (len > 7 ? groups[7].bits.as<u8> << 49 : 0)
          + (len > 8 ? groups[8].bits.as<u8> << 56 : 0)
          + (len > 9 ? groups[9].bits.as<u8> << 63 : 0)
  varint_group:
    seq:
      - id: byte
        type: u1
    instances:
      bits:
        value: byte & 0x7f
      more:
        value: byte >= 0x80
  text:
    seq:
      - id: len
        type: varint
      - id: value
        type: str
        size: len.value
        encoding: UTF-8
  hash:
    doc: BLAKE3, 32 bytes.
    seq:
      - id: bytes
        size: 32
  # ---------------------------------------------------------------------------------------- 3. Stream
  preamble:
    seq:
      - id: magic
        contents: [0x89, GCU, 0x0d, 0x0a, 0x1a, 0x0a]
      - id: major
        type: u1
        valid: 1
      - id: minor
        type: u1
      - id: flags
        type: u2
        valid: 0
      - id: crc
        type: u4
        doc: CRC-32 of the previous twelve bytes.
  segment:
    doc: Frames up to and including an end frame.
    seq:
      - id: frames
        type: frame
        repeat: until
        repeat-until: _.header.kind == frame_kind::end
  # ---------------------------------------------------------------------------------------- 4. Frames
  frame:
    seq:
      - id: header
        type: frame_header
      - id: body
        size: header.len_body
        type:
          switch-on: header.kind
          cases:
            'frame_kind::manifest': manifest
            'frame_kind::update': update
            'frame_kind::index_set': index_set
            'frame_kind::model': model
            'frame_kind::end': end
            'frame_kind::metadata': metadata
            'frame_kind::index': index
            _: opaque
  frame_header:
    seq:
      - id: sync
        contents: [0xd3, gcf]
      - id: kind
        type: u2
        enum: frame_kind
        doc: |
          If bit 15 is set, the frame is ancillary and a reader that does not know the kind skips it.
          0x7000 to 0x7fff and 0xf000 to 0xffff are private.
      - id: flags
        type: u2
        doc: Bit 0 of an update is `last`.
      - id: len_body
        type: u8
      - id: body_crc
        type: u4
        doc: CRC-32 of the body.
      - id: header_crc
        type: u4
        doc: CRC-32 of the previous twenty bytes.
  opaque:
    seq:
      - id: bytes
        size-eos: true
  manifest:
    doc: Section 4.1. The id of the frame is the hash of its body.
    seq:
      - id: tensor_count
        type: varint
      - id: tensors
        type: tensor
        repeat: expr
        repeat-expr: tensor_count.value
  tensor:
    seq:
      - id: len_prefix
        type: varint
        doc: Number of bytes taken from the beginning of the previous tensor's name.
      - id: len_suffix
        type: varint
      - id: suffix
        size: len_suffix.value
        doc: The rest of the name; the split may fall inside a UTF-8 character.
      - id: dtype
        type: u1
        enum: dtype
      - id: rank
        type: varint
      - id: dims
        type: varint
        repeat: expr
        repeat-expr: rank.value
      - id: has_matrix
        type: b1
      - id: has_shard
        type: b1
      - id: reserved
        type: b6
        valid: 0
      - id: matrix
        type: matrix
        if: has_matrix
      - id: shard
        type: shard_dim
        repeat: expr
        repeat-expr: rank.value
        if: has_shard
  matrix:
    seq:
      - id: rows
        type: varint
      - id: cols
        type: varint
  shard_dim:
    seq:
      - id: global_dim
        type: varint
      - id: offset
        type: varint
  update:
    doc: Section 4.2.
    seq:
      - id: manifest_id
        type: hash
      - id: step
        type: varint
      - id: round
        type: varint
      - id: sender
        type: varint
      - id: world
        type: varint
      - id: contributors
        type: varint
      - id: inner_steps
        type: varint
      - id: reduction
        type: u1
        enum: reduction
      - id: part
        type: varint
      - id: attribute_count
        type: varint
      - id: attributes
        type: attribute
        repeat: expr
        repeat-expr: attribute_count.value
      - id: table_count
        type: varint
      - id: tables
        type: frequency_table
        repeat: expr
        repeat-expr: table_count.value
      - id: block_count
        type: varint
      - id: blocks
        type: block
        repeat: expr
        repeat-expr: block_count.value
  attribute:
    seq:
      - id: number
        type: varint
      - id: len
        type: varint
      - id: body
        size: len.value
        type:
          switch-on: kind
          cases:
            'attribute_kind::label': label
            'attribute_kind::delta': delta
            'attribute_kind::sum_delta': delta
            _: opaque
    instances:
      kind:
        value: number.value
        enum: attribute_kind
  label:
    seq:
      - id: value
        type: str
        size-eos: true
        encoding: UTF-8
  delta:
    doc: Sections 6 and 6.1. A sum delta has sums where a delta has hashes.
    seq:
      - id: count
        type: varint
      - id: runs
        type: delta_run
        repeat: expr
        repeat-expr: count.value
  delta_run:
    doc: For the tensors `first` to `first + more`. A sum is four numbers of 32 bits.
    seq:
      - id: first
        type: varint
      - id: more
        type: varint
      - id: base
        size: 16
      - id: result
        size: 16
  index_set:
    doc: Section 4.3. The id of the frame is the hash of its body.
    seq:
      - id: manifest_id
        type: hash
      - id: step
        type: varint
      - id: leader
        type: varint
      - id: world
        type: varint
      - id: scope
        type: scope
      - id: support_id
        type: varint
      - id: support
        type: support(support_id.value)
        size-eos: true
  model:
    doc: Section 4.4.
    seq:
      - id: model_id
        type: hash
      - id: format
        type: text
      - id: name
        type: text
      - id: len_weights
        type: varint
      - id: storage
        type: u1
        enum: model_storage
      - id: location
        type: text
        if: storage == model_storage::by_reference
      - id: weights
        size-eos: true
        if: storage != model_storage::by_reference
        doc: The weights, or the zstd frame that contains them.
  metadata:
    doc: Section 4.5.
    seq:
      - id: storage
        type: u1
        enum: metadata_storage
      - id: len_plain
        type: varint
        if: storage == metadata_storage::zstd
      - id: compressed
        size-eos: true
        if: storage == metadata_storage::zstd
        doc: A zstd frame; its content has the type `plain_metadata`.
      - id: plain
        type: plain_metadata
        if: storage == metadata_storage::plain
  plain_metadata:
    seq:
      - id: count
        type: varint
      - id: entries
        type: metadata_entry
        repeat: expr
        repeat-expr: count.value
  metadata_entry:
    seq:
      - id: key
        type: text
      - id: value
        type: text
  index:
    doc: Section 4.6. After the frames, each frame of kind update has an entry.
    seq:
      - id: frame_count
        type: varint
      - id: frames
        type: indexed_frame
        repeat: expr
        repeat-expr: frame_count.value
      - id: updates
        type: indexed_update
        repeat: eos
  indexed_frame:
    seq:
      - id: kind_id
        type: varint
      - id: len
        type: varint
    instances:
      kind:
        value: kind_id.value
        enum: frame_kind
  indexed_update:
    seq:
      - id: step
        type: varint
      - id: sender
        type: varint
      - id: len_head
        type: varint
      - id: head_crc
        type: u4
      - id: block_count
        type: varint
      - id: blocks
        type: indexed_block
        repeat: expr
        repeat-expr: block_count.value
  indexed_block:
    seq:
      - id: tensor
        type: varint
      - id: tensor_count
        type: varint
      - id: len
        type: varint
      - id: crc
        type: u4
  end:
    doc: Section 4.7.
    seq:
      - id: frame_count
        type: u8
      - id: ofs_index
        type: u8
        doc: In bytes from the start of the stream; 0 if the segment has no index.
      - id: chain
        type: u4
        doc: CRC-32 of the first twenty bytes of the headers of all previous frames.
      - id: tail
        contents: GCUE
  # ---------------------------------------------------------------------------------------- 5. Blocks
  block:
    seq:
      - id: len
        type: varint
      - id: body
        type: block_body
        size: len.value
  block_body:
    seq:
      - id: scope
        type: scope
      - id: support_id
        type: varint
      - id: values_id
        type: varint
      - id: len_support
        type: varint
      - id: support
        type: support(support_id.value)
        size: len_support.value
      - id: values
        type: values(values_id.value)
        size-eos: true
    instances:
      support_kind:
        value: support_id.value
        enum: support_kind
      values_kind:
        value: values_id.value
        enum: values_kind
  scope:
    seq:
      - id: form
        type: b2
        enum: scope_form
      - id: add
        type: b1
      - id: reserved
        type: b5
        valid: 0
      - id: tensor
        type: varint
      - id: count
        type: varint
        if: form == scope_form::several
      - id: start
        type: varint
        if: form == scope_form::range
      - id: len
        type: varint
        if: form == scope_form::range
  # ---------------------------------------------------------------------------------------- supports/
  support:
    params:
      - id: number
        type: u8
    seq:
      - id: body
        type:
          switch-on: kind
          cases:
            'support_kind::all': nothing
            'support_kind::gaps_rice': gaps_rice
            'support_kind::gaps_tokens': gaps_tokens
            'support_kind::bitmap': opaque
            'support_kind::chunked': chunked
            'support_kind::rows': rows
            'support_kind::seeded': seeded
            'support_kind::set': hash
            'support_kind::classed': classed
            _: opaque
    instances:
      kind:
        value: number
        enum: support_kind
  nothing:
    seq: []
  gaps_rice:
    seq:
      - id: m
        type: varint
      - id: chunk_log
        type: u1
        if: m.value > 0
      - id: k
        type: u1
        if: m.value > 0 and chunk_log == 0
      - id: planes
        type: opaque
        if: m.value > 0 and chunk_log == 0
        doc: Two bit planes, section 7.4.
      - id: chunks
        type: rice_chunk
        repeat: expr
        repeat-expr: chunk_count
        if: m.value > 0 and chunk_log > 0
      - id: runs
        type: >-
          rice_run(chunks[_index].k, chunks[_index].len_unary.value,
          _index + 1 == chunk_count ? gaps_of_last : 1 << chunk_log)
        repeat: expr
        repeat-expr: chunk_count
        if: m.value > 0 and chunk_log > 0
    instances:
      chunk_count:
        value: (m.value + (1 << chunk_log) - 1) / (1 << chunk_log)
      gaps_of_last:
        value: m.value - (chunk_count - 1) * (1 << chunk_log)
  rice_chunk:
    seq:
      - id: k
        type: u1
      - id: len_unary
        type: varint
      - id: span
        type: varint
  rice_run:
    params:
      - id: k
        type: u1
      - id: len_unary
        type: u8
      - id: gaps
        type: u8
    seq:
      - id: low
        size: (gaps * k + 7) / 8
      - id: unary
        size: len_unary
  gaps_tokens:
    seq:
      - id: m
        type: varint
      - id: gaps
        type: entropy(m.value)
        if: m.value > 0
  chunked:
    seq:
      - id: len_chunk
        type: varint
      - id: kept
        type: varint
      - id: plane
        type: opaque
  rows:
    seq:
      - id: len_row
        type: varint
      - id: inner
        type: varint
      - id: rows
        type: support(inner.value)
  seeded:
    seq:
      - id: m
        type: varint
      - id: seed
        type: u8
  classed:
    seq:
      - id: rule
        type: u1
        enum: class_rule
      - id: class_count
        type: u1
        valid:
          min: 1
          max: 64
      - id: by_base
        type: classed_by_base(class_count)
        if: rule == class_rule::base
      - id: rest
        type: opaque
        if: rule != class_rule::base
        doc: Views, levels, symbols and groups. Their lengths depend on the tensors of the scope.
  classed_by_base:
    params:
      - id: class_count
        type: u1
    seq:
      - id: bounds
        size: class_count - 1
      - id: group_count
        type: varint
      - id: groups
        type: class_group
        repeat: expr
        repeat-expr: group_count.value
      - id: gaps
        type: opaque
        doc: The quotients of each group that has positions, then the bit plane of low bits.
  class_group:
    seq:
      - id: class_count
        type: varint
      - id: m
        type: varint
      - id: shift
        type: b6
        if: m.value > 0
      - id: has_tokens
        type: b1
        if: m.value > 0
      - id: reserved
        type: b1
        valid: false
        if: m.value > 0
  # ---------------------------------------------------------------------------------------- values/
  values:
    params:
      - id: number
        type: u8
    seq:
      - id: body
        type:
          switch-on: kind
          cases:
            'values_kind::floats': floats
            'values_kind::constant': constant
            'values_kind::sign': sign
            'values_kind::pow2': pow2
            'values_kind::levels': levels
            'values_kind::affine': affine
            'values_kind::codebook': codebook
            'values_kind::minifloat': minifloat
            'values_kind::planes': planes
            'values_kind::ulp': maybe_ints
            'values_kind::latent': latent
            'values_kind::low_rank': low_rank
            'values_kind::dct': dct
            _: opaque
    instances:
      kind:
        value: number
        enum: values_kind
  scales:
    doc: |
      Section 5.1. If `groups` is 0, there is one group. Otherwise the number of groups depends on the
      manifest or on m, and the numbers are in the raw bytes that follow.
    seq:
      - id: groups
        type: varint
      - id: format
        type: u1
        enum: scale
      - id: number
        size: 'format == scale::f32 ? 4 : format == scale::e8m0 ? 1 : 2'
        if: groups.value == 0
  floats:
    seq:
      - id: stored
        type: u1
        doc: 0 for the element type of the tensor, else f32, f16 or bf16.
      - id: numbers
        size-eos: true
  constant:
    seq:
      - id: scales
        type: scales
      - id: rest
        type: opaque
        doc: The scales of several groups.
  sign:
    seq:
      - id: scales
        type: scales
      - id: signs
        type: signs
        if: scales.groups.value == 0
      - id: scales_and_signs
        type: opaque
        if: scales.groups.value != 0
  pow2:
    seq:
      - id: min_exponent
        type: s2
      - id: underflow
        type: u1
      - id: codes
        type: ints
        if: _io.size - _io.pos > 1
        doc: The codes and, after them, the signs.
      - id: signs
        type: signs
        if: not _io.eof
        doc: If there are no codes, the one byte of signs without a sign.
  levels:
    seq:
      - id: spacing
        type: u1
      - id: s
        type: varint
      - id: norm
        type: u1
      - id: scales
        type: scales
      - id: levels
        type: grouped_ints(scales.groups.value)
  affine:
    seq:
      - id: bits
        type: u1
      - id: zero
        type: u1
      - id: scales
        type: scales
      - id: codes
        type: 'grouped_ints(zero == 0 ? scales.groups.value : 1)'
        doc: Zero points or offsets come before the codes; if there are any, all of this is raw bytes.
  codebook:
    seq:
      - id: last
        type: u1
      - id: entries
        type: f4
        repeat: expr
        repeat-expr: last + 1
      - id: has_scales
        type: b1
      - id: has_shifts
        type: b1
      - id: reserved
        type: b6
        valid: 0
      - id: groups
        type: varint
      - id: rest
        type: opaque
        doc: Scales, shifts and coded integers.
  minifloat:
    seq:
      - id: format
        type: u1
        enum: minifloat_format
      - id: scales
        type: scales
      - id: codes
        type: grouped_ints(scales.groups.value)
  planes:
    seq:
      - id: coded
        type: u1
        doc: Coding of the lowest plane. The lengths of the planes depend on m.
      - id: rest
        type: opaque
  latent:
    seq:
      - id: model_id
        type: hash
      - id: rank
        type: varint
      - id: dims
        type: varint
        repeat: expr
        repeat-expr: rank.value
      - id: values_id
        type: varint
      - id: codes
        type: values(values_id.value)
  low_rank:
    seq:
      - id: rows
        type: varint
      - id: cols
        type: varint
      - id: rank
        type: varint
      - id: p_values_id
        type: varint
      - id: len_p
        type: varint
      - id: p
        type: values(p_values_id.value)
        size: len_p.value
      - id: q_values_id
        type: varint
      - id: q
        type: values(q_values_id.value)
  dct:
    seq:
      - id: rows
        type: varint
      - id: cols
        type: varint
      - id: chunk_rows
        type: varint
      - id: chunk_cols
        type: varint
      - id: support_id
        type: varint
      - id: len_support
        type: varint
      - id: support
        type: support(support_id.value)
        size: len_support.value
      - id: values_id
        type: varint
      - id: values
        type: values(values_id.value)
  # ---------------------------------------------------------------------------------------- 7. Integer codes
  maybe_ints:
    doc: Coded integers to the end; empty if there are none.
    seq:
      - id: ints
        type: ints
        if: not _io.eof
  grouped_ints:
    doc: Coded integers; raw bytes if scales come before them.
    params:
      - id: groups
        type: u8
    seq:
      - id: ints
        type: ints
        if: groups == 0 and not _io.eof
      - id: scales_and_ints
        type: opaque
        if: groups != 0
  ints:
    doc: Section 7.1, as far as it can be parsed without the number of integers.
    seq:
      - id: coding
        type: u1
        enum: coding
      - id: body
        type:
          switch-on: coding
          cases:
            'coding::packed': packed
            'coding::tokens': some_entropy
            'coding::symbols': some_entropy
            'coding::referenced': referenced
            'coding::joined': joined
            'coding::tree': tree
            _: opaque
  packed:
    seq:
      - id: width
        type: u1
        valid:
          max: 64
      - id: plane
        type: opaque
  referenced:
    doc: Section 7.5.
    seq:
      - id: len_row
        type: varint
      - id: has_columns
        type: b1
      - id: is_zero_apart
        type: b1
      - id: reserved
        type: b6
        valid: 0
      - id: rest
        type: opaque
  joined:
    seq:
      - id: per
        type: u1
        valid:
          any-of: [2, 4, 8]
      - id: symbols
        type: some_entropy
  tree:
    doc: Section 7.8.
    seq:
      - id: inner
        type: u1
        enum: coding
        valid:
          any-of: ['coding::symbols', 'coding::referenced']
      - id: rest
        type: opaque
  signs:
    doc: Section 7.7.
    seq:
      - id: coding
        type: u1
        enum: sign_coding
      - id: body
        type: opaque
        doc: |
          Coding `plane` is one bit for each sign. Coding `predicted` is views, the bits of rows and
          columns, a width and symbols; their lengths depend on the tensors of the scope.
  some_entropy:
    doc: Entropy-coded integers whose number is not known here.
    seq:
      - id: segment_log
        type: u1
      - id: segment
        type: entropy_segment
        if: segment_log == 0
      - id: segments
        type: opaque
        if: segment_log > 0
        doc: If segment_log is 1, the segments of the groups of a support that is classed by the base.
  entropy:
    doc: Entropy-coded integers to the end of their structure.
    params:
      - id: count
        type: u8
    seq:
      - id: segment_log
        type: u1
        valid:
          expr: _ == 0 or _ >= 10 and _ <= 24
      - id: segment
        type: entropy_segment
        if: segment_log == 0
      - id: segments
        type: sized_segment
        repeat: expr
        repeat-expr: (count + (1 << segment_log) - 1) / (1 << segment_log)
        if: segment_log > 0
  sized_segment:
    seq:
      - id: len
        type: varint
      - id: segment
        type: entropy_segment
        size: len.value
  entropy_segment:
    seq:
      - id: table
        type: varint
        doc: 0 if a table follows, j for the shared table j - 1 of the update.
      - id: own_table
        type: frequency_table
        if: table.value == 0
      - id: lanes_log
        type: u1
      - id: word_count
        type: varint
      - id: states
        type: u4
        repeat: expr
        repeat-expr: 1 << lanes_log
      - id: words
        size: 2 * word_count.value
        doc: Little-endian 16-bit numbers.
      - id: raw
        size-eos: true
        doc: The raw bits of tokens; if their length is not known, also the bytes that follow them.
  frequency_table:
    doc: Section 7.2. A bit plane.
    seq:
      - id: first
        type: u1
      - id: last_minus_first
        type: u1
      - id: rest_minus_first
        type: u1
      - id: frequencies
        type: frequency
        repeat: expr
        repeat-expr: last_minus_first
        doc: |
          The frequencies of all symbols from `first` to `last` except `rest`, which has the remainder of
          4096.
  frequency:
    seq:
      - id: x
        type: b4
        valid:
          max: 12
      - id: y1
        type: b1
        if: x == 2
      - id: y2
        type: b2
        if: x == 3
      - id: y3
        type: b3
        if: x > 3
    instances:
      value:
        value: 'x == 0 ? 0 : x == 1 ? 1 : x == 2 ? 2 + y1.to_i : x == 3 ? 4 + y2 : (1 << (x - 1)) + (y3 << (x - 4))'
enums:
  frame_kind:
    1: manifest
    2: update
    3: index_set
    4: model
    5: end
    0x8001: metadata
    0x8002: index
  attribute_kind:
    1: label
    2: delta
    4: sum_delta
  reduction:
    0: none
    1: sum
    2: mean
  model_storage:
    0: by_reference
    1: inline
    2: zstd
  metadata_storage:
    0: plain
    1: zstd
  scope_form:
    0: whole
    1: several
    2: range
  support_kind:
    1: all
    2: gaps_rice
    3: gaps_tokens
    4: bitmap
    5: chunked
    6: rows
    7: seeded
    8: set
    9: classed
  class_rule:
    1: base
    2: rows_and_columns
  values_kind:
    1: floats
    2: constant
    3: sign
    4: pow2
    5: levels
    6: affine
    7: codebook
    8: minifloat
    9: planes
    10: ulp
    11: latent
    12: low_rank
    13: dct
  coding:
    0: packed
    1: tokens
    2: symbols
    3: referenced
    4: joined
    5: tree
  sign_coding:
    0: plane
    1: predicted
  dtype:
    1: f64
    2: f32
    3: f16
    4: bf16
    5: f8e4m3fn
    6: f8e5m2
    7: f8e4m3fnuz
    8: f8e5m2fnuz
    9: f4e2m1
    16: i8
    17: i16
    18: i32
    19: i64
    24: u8
    25: u16
    26: u32
    27: u64
    32: bool
  scale:
    2: f32
    3: f16
    4: bf16
    64: e8m0
  minifloat_format:
    5: f8e4m3fn
    6: f8e5m2
    7: f8e4m3fnuz
    8: f8e5m2fnuz
    9: f4e2m1
    65: f6e3m2
    66: f6e2m3
    67: f4e3m0
    68: int8
