-- A Wireshark dissector for gcodec streams over TCP. Section numbers refer to spec/gcodec.md, which defines
-- the format. README.md in this folder describes the installation. Needs Wireshark 4.0 or later.

local gcodec = Proto("gcodec", "gcodec stream of model updates")

-- ---------------------------------------------------------------------------------------------- the registry

local FRAMES = { [1] = "manifest", [2] = "update", [3] = "index set", [4] = "model", [5] = "end",
  [0x8001] = "metadata", [0x8002] = "index" }
local SUPPORTS = { "all", "gaps-rice", "gaps-tokens", "bitmap", "chunked", "rows", "seeded", "set", "classed" }
local RULES = { "base", "rows and columns" }
local VALUES = { "floats", "constant", "sign", "pow2", "levels", "affine", "codebook", "minifloat", "planes", "ulp",
  "latent", "low-rank", "dct" }
local DTYPES = { [1] = "f64", [2] = "f32", [3] = "f16", [4] = "bf16", [5] = "f8e4m3fn", [6] = "f8e5m2", [7] = "f8e4m3fnuz",
  [8] = "f8e5m2fnuz", [9] = "f4e2m1", [16] = "i8", [17] = "i16", [18] = "i32", [19] = "i64", [24] = "u8", [25] = "u16",
  [26] = "u32", [27] = "u64", [32] = "bool" }
local ATTRIBUTES = { "label", "delta", [4] = "sum_delta" }
local REDUCTIONS = { [0] = "none", [1] = "sum", [2] = "mean" }
local MODEL_STORAGE = { [0] = "by reference", [1] = "inline", [2] = "inline, zstd" }
local METADATA_STORAGE = { [0] = "plain", [1] = "zstd" }
local CHECKED = { [0] = "wrong", [1] = "correct" }

-- ---------------------------------------------------------------------------------------------------- fields

local fields, f = {}, {}
local function field(name, make, title, ...)
  local made = ProtoField[make]("gcodec." .. name, title, ...)
  f[name] = made
  fields[#fields + 1] = made
end

field("magic", "bytes", "Magic")
field("major", "uint8", "Major version")
field("minor", "uint8", "Minor version")
field("flags", "uint16", "Flags", base.HEX)
field("crc", "uint32", "CRC-32", base.HEX)
field("crc.status", "uint8", "CRC-32 is", base.DEC, CHECKED)
field("skipped", "bytes", "Bytes outside a frame")
field("frame.number", "uint64", "Number in the stream")
field("frame.offset", "uint64", "Offset in the stream")
field("frame.sync", "bytes", "Sync word")
field("frame.kind", "uint16", "Kind", base.HEX, FRAMES)
field("frame.flags", "uint16", "Flags", base.HEX)
field("frame.last", "bool", "Last part of its update", 16, nil, 1)
field("frame.body_len", "uint64", "Body length")
field("frame.body_crc", "uint32", "CRC-32 of the body", base.HEX)
field("frame.body_crc.status", "uint8", "CRC-32 of the body is", base.DEC, CHECKED)
field("frame.header_crc", "uint32", "CRC-32 of the header", base.HEX)
field("frame.header_crc.status", "uint8", "CRC-32 of the header is", base.DEC, CHECKED)
field("frame.body", "bytes", "Body")
field("manifest.id", "bytes", "Manifest id")
field("manifest.tensor_count", "uint64", "Tensors")
field("tensor.name", "string", "Name")
field("tensor.dtype", "uint8", "Element type", base.DEC, DTYPES)
field("tensor.shape", "string", "Shape")
field("tensor.rows", "uint64", "Matrix rows")
field("tensor.cols", "uint64", "Matrix columns")
field("tensor.shard", "string", "Shard")
field("update.step", "uint64", "Step")
field("update.round", "uint64", "Round")
field("update.sender", "uint64", "Sender")
field("update.world", "uint64", "Number of senders")
field("update.contributors", "uint64", "Contributors")
field("update.inner_steps", "uint64", "Inner steps")
field("update.reduction", "uint8", "Reduction", base.DEC, REDUCTIONS)
field("update.part", "uint64", "Part")
field("update.attribute", "uint64", "Attribute")
field("update.label", "string", "Label")
field("update.delta_runs", "uint64", "Runs in the delta")
field("update.table_count", "uint64", "Shared tables")
field("update.table", "bytes", "Shared table")
field("update.block_count", "uint64", "Blocks")
field("delta.first", "uint64", "First tensor")
field("delta.more", "uint64", "Tensors after the first")
field("delta.base", "bytes", "Base digest")
field("delta.result", "bytes", "Result digest")
field("block.len", "uint64", "Length")
field("block.add", "bool", "Add", 8, nil, 4)
field("block.tensor", "uint64", "Tensor")
field("block.tensor_count", "uint64", "Tensors")
field("block.start", "uint64", "First element")
field("block.elements", "uint64", "Elements")
field("block.name", "string", "Name")
field("block.support", "uint32", "Support", base.DEC, SUPPORTS)
field("block.values", "uint32", "Values", base.DEC, VALUES)
field("block.rule", "uint8", "Classed by", base.DEC, RULES)
field("block.classes", "uint8", "Classes")
field("block.group", "string", "Group")
field("block.positions", "uint64", "Positions")
field("block.support_bytes", "bytes", "Bytes of the support")
field("block.values_bytes", "bytes", "Bytes of the values")
field("set.leader", "uint64", "Leader")
field("model.id", "bytes", "Model id")
field("model.format", "string", "Format")
field("model.name", "string", "Name")
field("model.weights_len", "uint64", "Bytes of weights")
field("model.storage", "uint8", "Storage", base.DEC, MODEL_STORAGE)
field("model.location", "string", "Location")
field("model.weights", "bytes", "Weights")
field("metadata.storage", "uint8", "Storage", base.DEC, METADATA_STORAGE)
field("metadata.plain_len", "uint64", "Decompressed length")
field("metadata.compressed", "bytes", "zstd frame")
field("metadata.count", "uint64", "Entries")
field("metadata.key", "string", "Key")
field("metadata.value", "string", "Value")
field("index.frame_count", "uint64", "Frames")
field("index.frame", "string", "Frame")
field("index.update", "string", "Update")
field("end.frame_count", "uint64", "Frames before this one")
field("end.index_offset", "uint64", "Offset of the index")
field("end.chain", "uint32", "Chain of headers", base.HEX)
field("end.chain.status", "uint8", "Chain of headers is", base.DEC, CHECKED)
field("end.tail", "bytes", "Tail")
gcodec.fields = fields

local ERROR, WARN, NOTE = expert.severity.ERROR, expert.severity.WARN, expert.severity.NOTE
local MALFORMED, CHECKSUM, UNDECODED, REASSEMBLE =
  expert.group.MALFORMED, expert.group.CHECKSUM, expert.group.UNDECODED, expert.group.REASSEMBLE
local e = {
  preamble_crc = ProtoExpert.new("gcodec.expert.preamble_crc", "The CRC-32 of the preamble is wrong", CHECKSUM, ERROR),
  body_crc = ProtoExpert.new("gcodec.expert.body_crc", "The CRC-32 of the body is wrong: the frame is corrupt", CHECKSUM,
    ERROR),
  no_frame = ProtoExpert.new("gcodec.expert.no_frame",
    "No frame begins here: the data is corrupt, or the capture began in the middle of a frame", MALFORMED, ERROR),
  version = ProtoExpert.new("gcodec.expert.version", "Unsupported major version", UNDECODED, WARN),
  reserved = ProtoExpert.new("gcodec.expert.reserved", "Reserved bits are set", MALFORMED, WARN),
  unknown = ProtoExpert.new("gcodec.expert.unknown", "A critical frame of an unknown kind", UNDECODED, WARN),
  malformed = ProtoExpert.new("gcodec.expert.malformed", "The body violates the format", MALFORMED, ERROR),
  truncated = ProtoExpert.new("gcodec.expert.truncated", "The rest of a frame is missing: TCP streams are not reassembled",
    REASSEMBLE, WARN),
  too_large = ProtoExpert.new("gcodec.expert.too_large", "The body is larger than the preference allows",
    REASSEMBLE, NOTE),
  lost = ProtoExpert.new("gcodec.expert.lost", "The number of frames differs from the end frame's count", MALFORMED, ERROR),
  chain = ProtoExpert.new("gcodec.expert.chain", "The chain of headers is wrong: a frame was lost, repeated or exchanged",
    CHECKSUM, ERROR),
}
gcodec.experts = { e.preamble_crc, e.body_crc, e.no_frame, e.version, e.reserved, e.unknown, e.malformed, e.truncated,
  e.too_large, e.lost, e.chain }

gcodec.prefs.port = Pref.uint("TCP port", 0,
  "Dissect this port as gcodec, even if the beginning of a stream was not captured; 0 for none")
gcodec.prefs.max_body = Pref.uint("Largest body, in MiB", 256, "Frames with larger bodies are not reassembled")
gcodec.prefs.check_bodies = Pref.bool("Check the CRC-32 of bodies", true, "Takes about 0.1 s per MiB in Lua")

-- -------------------------------------------------------------------------------------- checksums and hashes

local band, bxor, rshift, bor, lshift, tobit = bit.band, bit.bxor, bit.rshift, bit.bor, bit.lshift, bit.tobit
local WORD = 2 ^ 32

local CRC_TABLE = {}
for i = 0, 255 do
  local crc = i
  for _ = 1, 8 do
    crc = bxor(rshift(crc, 1), band(crc, 1) == 1 and 0xedb88320 or 0)
  end
  CRC_TABLE[i] = crc
end

-- Returns the CRC-32 of a string. `before` is the CRC-32 of the preceding bytes, nil if there are none.
local function crc32(data, before)
  local crc = bxor(before or 0, 0xffffffff)
  for i = 1, #data do
    crc = bxor(rshift(crc, 8), CRC_TABLE[band(bxor(crc, data:byte(i)), 0xff)])
  end
  return bxor(crc, 0xffffffff) % WORD
end

-- BLAKE3, unkeyed, 32 bytes: the id of a manifest is the hash of its body (section 4.1).
local IV = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19 }
local PERMUTED = { 3, 7, 4, 11, 8, 1, 5, 14, 2, 12, 13, 6, 10, 15, 16, 9 }
local CHUNK_START, CHUNK_END, PARENT, ROOT = 1, 2, 4, 8

local function mix(s, a, b, c, d, x, y)
  s[a] = tobit(s[a] + s[b] + x)
  local t = bxor(s[d], s[a])
  s[d] = bor(rshift(t, 16), lshift(t, 16))
  s[c] = tobit(s[c] + s[d])
  t = bxor(s[b], s[c])
  s[b] = bor(rshift(t, 12), lshift(t, 20))
  s[a] = tobit(s[a] + s[b] + y)
  t = bxor(s[d], s[a])
  s[d] = bor(rshift(t, 8), lshift(t, 24))
  s[c] = tobit(s[c] + s[d])
  t = bxor(s[b], s[c])
  s[b] = bor(rshift(t, 7), lshift(t, 25))
end

local function compress(cv, words, counter, length, flags)
  local s = { cv[1], cv[2], cv[3], cv[4], cv[5], cv[6], cv[7], cv[8], IV[1], IV[2], IV[3], IV[4],
    counter % WORD, math.floor(counter / WORD), length, flags }
  local m = words
  for round = 1, 7 do
    mix(s, 1, 5, 9, 13, m[1], m[2])
    mix(s, 2, 6, 10, 14, m[3], m[4])
    mix(s, 3, 7, 11, 15, m[5], m[6])
    mix(s, 4, 8, 12, 16, m[7], m[8])
    mix(s, 1, 6, 11, 16, m[9], m[10])
    mix(s, 2, 7, 12, 13, m[11], m[12])
    mix(s, 3, 8, 9, 14, m[13], m[14])
    mix(s, 4, 5, 10, 15, m[15], m[16])
    if round < 7 then
      local next = {}
      for i = 1, 16 do next[i] = m[PERMUTED[i]] end
      m = next
    end
  end
  local out = {}
  for i = 1, 8 do out[i] = bxor(s[i], s[i + 8]) end
  return out
end

local function words_of(block)
  local out = {}
  for i = 1, 64, 4 do
    local a, b, c, d = block:byte(i, i + 3)
    out[#out + 1] = (a or 0) + (b or 0) * 256 + (c or 0) * 65536 + (d or 0) * 16777216
  end
  return out
end

local function tree_hash(data, counter, root)
  if #data <= 1024 then
    local cv, count = IV, math.max(1, math.ceil(#data / 64))
    for i = 1, count do
      local block = data:sub(64 * i - 63, 64 * i)
      local flags = (i == 1 and CHUNK_START or 0) + (i == count and CHUNK_END + root or 0)
      cv = compress(cv, words_of(block), counter, #block, flags)
    end
    return cv
  end
  local left = 1024
  while 2 * left < #data do left = 2 * left end
  local words = tree_hash(data:sub(1, left), counter, 0)
  for _, word in ipairs(tree_hash(data:sub(left + 1), counter + left / 1024, 0)) do words[#words + 1] = word end
  return compress(IV, words, 0, 64, PARENT + root)
end

local function blake3(data)
  local out = {}
  for _, word in ipairs(tree_hash(data, 0, ROOT)) do
    for shift = 0, 24, 8 do out[#out + 1] = string.char(band(rshift(word, shift), 0xff)) end
  end
  return table.concat(out)
end

-- -------------------------------------------------------------------------------------------- reading bodies

-- Formats an integer as text. Integers above 2^53 are rounded.
local function dec(number)
  return string.format("%.0f", number)
end

local function human(bytes)
  if bytes < 1000 then return dec(bytes) .. " B" end
  if bytes < 1e6 then return string.format("%.1f KB", bytes / 1e3) end
  if bytes < 1e9 then return string.format("%.1f MB", bytes / 1e6) end
  return string.format("%.1f GB", bytes / 1e9)
end

local function counted(count, noun, plural)
  return dec(count) .. " " .. noun .. (count == 1 and "" or plural or "s")
end

-- Returns text for the tree from any bytes: bytes that are not UTF-8 and control characters become U+FFFD.
local UTF8 = { "^[\32-\126]+", "^[\xc2-\xdf][\x80-\xbf]", "^\xe0[\xa0-\xbf][\x80-\xbf]", "^\xed[\x80-\x9f][\x80-\xbf]",
  "^[\xe1-\xec\xee\xef][\x80-\xbf][\x80-\xbf]", "^\xf0[\x90-\xbf][\x80-\xbf][\x80-\xbf]",
  "^[\xf1-\xf3][\x80-\xbf][\x80-\xbf][\x80-\xbf]", "^\xf4[\x80-\x8f][\x80-\xbf][\x80-\xbf]" }
local function readable(raw)
  local out, at = {}, 1
  while at <= #raw do
    local piece
    for _, pattern in ipairs(UTF8) do piece = piece or raw:match(pattern, at) end
    out[#out + 1] = piece or "\xef\xbf\xbd"
    at = at + (piece and #piece or 1)
  end
  return table.concat(out)
end

-- Raises the error for a body that violates the format.
local function malformed(what)
  error({ malformed = what }, 0)
end

local Cursor = {}
Cursor.__index = Cursor

local function cursor(tvb, first, last)
  return setmetatable({ tvb = tvb, at = first, last = last }, Cursor)
end

function Cursor:left()
  return self.last - self.at
end

-- Returns the next `count` bytes as a range, or nil if `count` is 0.
function Cursor:take(count, what)
  if count > self:left() then malformed(what .. " extends beyond its structure") end
  self.at = self.at + count
  return count > 0 and self.tvb:range(self.at - count, count) or nil
end

-- Returns a cursor over the next `count` bytes.
function Cursor:part(count, what)
  if count > self:left() then malformed(what .. " extends beyond its structure") end
  self.at = self.at + count
  return cursor(self.tvb, self.at - count, self.at)
end

function Cursor:finish(what)
  if self:left() > 0 then malformed(dec(self:left()) .. " bytes are left over in " .. what) end
end

function Cursor:u8(what)
  local range = self:take(1, what)
  return range:uint(), range
end

-- Reads a varint (section 1). Returns its value as a number and as a UInt64, and its range.
function Cursor:varint(what)
  local first, low, high = self.at, 0, 0
  for i = 0, 9 do
    local byte = self:take(1, what):uint()
    local bits = byte % 128
    if i < 4 then
      low = low + bits * 2 ^ (7 * i)
    elseif i == 4 then
      low, high = low + bits % 16 * 2 ^ 28, math.floor(bits / 16)
    elseif i < 9 then
      high = high + bits * 2 ^ (7 * i - 32)
    elseif bits > 1 then
      malformed(what .. " is 2^64 or more")
    else
      high = high + bits * 2 ^ 31
    end
    if byte < 128 then
      if byte == 0 and i > 0 then malformed(what .. " has more bytes than its value needs") end
      return low + high * WORD, UInt64(low, high), self.tvb:range(first, self.at - first)
    end
  end
  malformed(what .. " has more than ten bytes")
end

-- Reads a varint and shows it as a field.
function Cursor:show(tree, name, what)
  local value, exact, range = self:varint(what or name)
  tree:add(f[name], range, exact)
  return value, exact
end

function Cursor:text(what)
  local length = self:varint("the length of " .. what)
  local range = self:take(length, what)
  return range and readable(range:raw()) or "", range
end

-- Adds a string field. An empty text has no range, because a range has at least one byte.
local function add_text(tree, name, range, text)
  if range then tree:add(f[name], range, text) else tree:add(f[name], text) end
end

-- Reads a frequency table (section 7.2), a bit plane whose length depends on its content.
local function frequency_table(c)
  local first = c.at
  c:take(1, "a table")
  local others = c:u8("a table")
  c:take(1, "a table")
  local have, bits = 0, 0
  local function next_bits(width)
    while bits < width do
      have, bits = have + c:u8("a table") * 2 ^ bits, bits + 8
    end
    local value = have % 2 ^ width
    have, bits = math.floor(have / 2 ^ width), bits - width
    return value
  end
  for _ = 1, others do
    local x = next_bits(4)
    if x > 12 then malformed("an exponent code of a table is " .. dec(x)) end
    if x > 1 then next_bits(math.min(x - 1, 3)) end
  end
  return c.tvb:range(first, c.at - first)
end

-- Shows a scope (section 5) and returns its text.
local function scope(c, tree, tensors)
  local flags, range = c:u8("the scope")
  local form = flags % 4
  if flags > 7 or form == 3 then malformed("the scope has flags " .. dec(flags)) end
  tree:add(f["block.add"], range)
  local tensor, exact = c:show(tree, "block.tensor")
  local info = tensors and tensors[tensor + 1]
  local name = info and info.name or "tensor " .. tostring(exact)
  if info then tree:add(f["block.name"], c.tvb:range(c.at - 1, 1), info.name) end
  if form == 1 then
    local count = c:show(tree, "block.tensor_count")
    name = name .. " and " .. dec(count - 1) .. " more"
  elseif form == 2 then
    local start = c:show(tree, "block.start")
    local elements = c:show(tree, "block.elements")
    name = string.format("%s[%s .. %s]", name, dec(start), dec(start + elements))
  end
  return name
end

-- Shows the fields of a classed support (supports/classed.md), as far as their places do not depend on coded
-- integers.
local function classed(c, tree)
  local rule, rule_range = c:u8("the rule")
  local classes, classes_range = c:u8("the number of classes")
  if not RULES[rule] then malformed("a support is classed by rule " .. dec(rule)) end
  if classes < 1 or classes > 64 then malformed("a support has " .. counted(classes, "class", "es")) end
  tree:add(f["block.rule"], rule_range)
  tree:add(f["block.classes"], classes_range)
  if rule == 2 then return end
  c:take(classes - 1, "the bounds")
  local first, m = c.at, UInt64(0)
  for _ = 1, c:varint("group_count") do
    local at = c.at
    local size = c:varint("the classes of a group")
    local count, exact = c:varint("the positions of a group")
    if count > 0 then c:take(1, "the code of a group") end
    m = m + exact
    tree:add(f["block.group"], c.tvb:range(at, c.at - at), counted(size, "class", "es") .. ", " .. counted(count, "position"))
  end
  tree:add(f["block.positions"], c.tvb:range(first, c.at - first), m):set_generated()
end

-- Shows the number of positions, for the support kinds that store it.
local function positions(c, tree, support_id)
  if support_id == 2 or support_id == 3 or support_id == 7 then c:show(tree, "block.positions") end
  if support_id == 9 then classed(c, tree) end
end

-- Shows a block (section 5).
local function block(c, tree, number, tensors)
  local first = c.at
  local length, exact, length_range = c:varint("a block's length")
  local inner = c:part(length, "block " .. dec(number))
  local sub = tree:add(gcodec, c.tvb:range(first, c.at - first), "Block " .. dec(number))
  sub:add(f["block.len"], length_range, exact)
  local name = scope(inner, sub, tensors)
  local support_id, _, support_range = inner:varint("support_id")
  local values_id, _, values_range = inner:varint("values_id")
  sub:add(f["block.support"], support_range, math.min(support_id, WORD - 1))
  sub:add(f["block.values"], values_range, math.min(values_id, WORD - 1))
  local support = inner:part(inner:varint("support_len"), "the support")
  local support_bytes = support:left()
  if support_bytes > 0 then
    local at = support.at
    positions(support, sub, support_id)
    sub:add(f["block.support_bytes"], c.tvb:range(at, support_bytes))
  end
  local values_bytes = inner:left()
  if values_bytes > 0 then sub:add(f["block.values_bytes"], inner:take(values_bytes, "the values")) end
  sub:append_text(string.format(": %s, %s, %s, %s", name, SUPPORTS[support_id] or dec(support_id),
    VALUES[values_id] or dec(values_id), human(length)))
end

-- ---------------------------------------------------------------------------------------------------- bodies
--
-- Each function takes the cursor of the body, the tree and the state of the stream, and returns the text for
-- the info column.

local bodies = {}

bodies[1] = function(c, tree, stream)
  local range = c.tvb:range(c.at, c:left())
  local id = blake3(range:raw())
  tree:add(f["manifest.id"], ByteArray.new(id, true):tvb("manifest id"):range()):set_generated()
  local count = c:show(tree, "manifest.tensor_count")
  local tensors, previous = {}, ""
  for i = 1, count do
    local first = c.at
    local prefix = c:varint("prefix_len")
    if prefix > #previous then malformed("prefix_len exceeds the previous name") end
    local suffix = c:take(c:varint("suffix_len"), "a name")
    previous = previous:sub(1, prefix) .. (suffix and suffix:raw() or "")
    local name = readable(previous)
    local dtype, dtype_range = c:u8("dtype")
    local rank, shape_first = c:varint("rank"), c.at
    if rank > 32 then malformed("a rank of " .. dec(rank)) end
    local dims = {}
    for d = 1, rank do
      local _, exact = c:varint("dim")
      dims[d] = tostring(exact)
    end
    local shape = "[" .. table.concat(dims, ", ") .. "]"
    local extras = c:u8("extras")
    local sub = tree:add(gcodec, c.tvb:range(first, c.at - first),
      "Tensor " .. dec(i - 1) .. ": " .. name .. ", " .. (DTYPES[dtype] or dec(dtype)) .. " " .. shape)
    sub:add(f["tensor.name"], suffix or c.tvb:range(first, 1), name)
    sub:add(f["tensor.dtype"], dtype_range)
    sub:add(f["tensor.shape"], c.tvb:range(shape_first - 1, c.at - shape_first), shape)
    if extras > 3 then malformed("extras " .. dec(extras)) end
    if extras % 2 == 1 then
      c:show(sub, "tensor.rows")
      c:show(sub, "tensor.cols")
    end
    if extras > 1 then
      for _ = 1, rank do
        local at = c.at
        local _, global = c:varint("global_dim")
        local _, offset = c:varint("offset")
        sub:add(f["tensor.shard"], c.tvb:range(at, c.at - at), tostring(global) .. " from " .. tostring(offset))
      end
    end
    sub:set_len(c.at - first)
    tensors[i] = { name = name }
  end
  stream.manifests[id] = tensors
  return "manifest of " .. counted(count, "tensor")
end

local function delta(c, tree)
  local count = c:show(tree, "update.delta_runs")
  for _ = 1, count do
    local at = c.at
    local _, first, first_range = c:varint("the first tensor of a run")
    local more, exact, more_range = c:varint("the length of a run")
    local base, result = c:take(16, "a digest"), c:take(16, "a digest")
    local text = "Delta of tensor " .. tostring(first) .. (more > 0 and " and " .. tostring(exact) .. " more" or "")
    local sub = tree:add(gcodec, c.tvb:range(at, c.at - at), text)
    sub:add(f["delta.first"], first_range, first)
    sub:add(f["delta.more"], more_range, exact)
    sub:add(f["delta.base"], base)
    sub:add(f["delta.result"], result)
  end
end

bodies[2] = function(c, tree, stream)
  local size = c:left()
  local id = c:take(32, "the manifest id")
  tree:add(f["manifest.id"], id)
  local tensors = stream.manifests[id:raw()]
  local _, step = c:show(tree, "update.step")
  for _, name in ipairs({ "round", "sender", "world", "contributors", "inner_steps" }) do c:show(tree, "update." .. name) end
  local reduction, range = c:u8("reduction")
  if reduction > 2 then malformed("reduction " .. dec(reduction)) end
  tree:add(f["update.reduction"], range)
  local part = c:show(tree, "update.part")
  local text = "update step " .. tostring(step)
  if part > 0 or not stream.last then text = text .. " part " .. dec(part) end
  local changes = false
  for _ = 1, c:varint("attribute_count") do
    local first = c.at
    local number, exact, number_range = c:varint("an attribute's id")
    local inner = c:part(c:varint("an attribute's length"), "an attribute")
    local sub = tree:add(gcodec, c.tvb:range(first, c.at - first),
      "Attribute " .. (ATTRIBUTES[number] or tostring(exact)))
    sub:add(f["update.attribute"], number_range, exact)
    if number == 1 then
      local label = inner:take(inner:left(), "the label")
      add_text(sub, "update.label", label, label and readable(label:raw()) or "")
    elseif number == 2 or number == 4 then
      delta(inner, sub)
      inner:finish("the delta")
      if not changes then text = text .. ", delta" end
      changes = true
    end
  end
  for _ = 1, c:show(tree, "update.table_count") do tree:add(f["update.table"], frequency_table(c)) end
  local blocks = c:show(tree, "update.block_count")
  for number = 0, blocks - 1 do block(c, tree, number, tensors) end
  return string.format("%s, %s, %s", text, counted(blocks, "block"), human(size))
end

bodies[3] = function(c, tree, stream)
  local id = c:take(32, "the manifest id")
  tree:add(f["manifest.id"], id)
  c:show(tree, "update.step")
  c:show(tree, "set.leader")
  c:show(tree, "update.world")
  local name = scope(c, tree, stream.manifests[id:raw()])
  local support_id, _, range = c:varint("support_id")
  tree:add(f["block.support"], range, math.min(support_id, WORD - 1))
  if c:left() > 0 then
    local at, bytes = c.at, c:left()
    positions(c, tree, support_id)
    tree:add(f["block.support_bytes"], c.tvb:range(at, bytes))
    c.at = at + bytes
  end
  return "index set of " .. name
end

bodies[4] = function(c, tree)
  tree:add(f["model.id"], c:take(32, "the model id"))
  local format, format_range = c:text("the format")
  add_text(tree, "model.format", format_range, format)
  local name, name_range = c:text("the name")
  add_text(tree, "model.name", name_range, name)
  c:show(tree, "model.weights_len")
  local storage, range = c:u8("storage")
  if storage > 2 then malformed("storage " .. dec(storage)) end
  tree:add(f["model.storage"], range)
  if storage == 0 then
    local location, location_range = c:text("the location")
    add_text(tree, "model.location", location_range, location)
  elseif c:left() > 0 then
    tree:add(f["model.weights"], c:take(c:left(), "the weights"))
  end
  return "model " .. name
end

bodies[0x8001] = function(c, tree)
  local storage, range = c:u8("storage")
  if storage > 1 then malformed("storage " .. dec(storage)) end
  tree:add(f["metadata.storage"], range)
  if storage == 1 then
    c:show(tree, "metadata.plain_len")
    if c:left() > 0 then tree:add(f["metadata.compressed"], c:take(c:left(), "the zstd frame")) end
    return "metadata, compressed"
  end
  local count = c:show(tree, "metadata.count")
  for _ = 1, count do
    local first = c.at
    local key, key_range = c:text("a key")
    local value, value_range = c:text("a value")
    local sub = tree:add(gcodec, c.tvb:range(first, c.at - first), key .. ": " .. value)
    add_text(sub, "metadata.key", key_range, key)
    add_text(sub, "metadata.value", value_range, value)
  end
  return "metadata of " .. counted(count, "entry"):gsub("entrys", "entries")
end

bodies[0x8002] = function(c, tree)
  local count, updates = c:show(tree, "index.frame_count"), 0
  for i = 0, count - 1 do
    local first = c.at
    local kind, length = c:varint("kind"), c:varint("length")
    if kind == 2 then updates = updates + 1 end
    tree:add(f["index.frame"], c.tvb:range(first, c.at - first),
      dec(i) .. ": " .. (FRAMES[kind] or "kind " .. dec(kind)) .. ", " .. human(length))
  end
  for _ = 1, updates do
    local first = c.at
    local _, step = c:varint("step")
    local _, sender = c:varint("sender")
    c:varint("head_len")
    c:take(4, "head_crc")
    local blocks = c:varint("block_count")
    for _ = 1, blocks do
      for _, what in ipairs({ "tensor", "tensor count", "length" }) do c:varint(what) end
      c:take(4, "a block's CRC")
    end
    tree:add(f["index.update"], c.tvb:range(first, c.at - first),
      string.format("step %s of sender %s, %s", tostring(step), tostring(sender), counted(blocks, "block")))
  end
  return "index of " .. counted(count, "frame")
end

bodies[5] = function(c, tree, stream, memo)
  local count = c:take(8, "frame_count")
  local item = tree:add_le(f["end.frame_count"], count)
  tree:add_le(f["end.index_offset"], c:take(8, "index_offset"))
  local chain = c:take(4, "the chain")
  local chain_item = tree:add_le(f["end.chain"], chain)
  local tail = c:take(4, "the tail")
  tree:add(f["end.tail"], tail)
  if tail:raw() ~= "GCUE" then malformed("the tail is not GCUE") end
  count = count:le_uint64():tonumber()
  if memo.number then
    if count ~= memo.number then
      item:add_proto_expert_info(e.lost, "The stream has " .. counted(memo.number, "frame") .. " before this one")
    end
    local correct = chain:le_uint() == memo.chain
    tree:add(f["end.chain.status"], chain, correct and 1 or 0):set_generated()
    if not correct then
      chain_item:add_proto_expert_info(e.chain, string.format("The chain of the headers is 0x%08x", memo.chain))
    end
  end
  return "end of " .. counted(count, "frame")
end

-- ---------------------------------------------------------------------------------------------------- frames

local MAGIC, SYNC = "\x89GCU\r\n\x1a\n", "\xd3gcf"
local PREAMBLE_LEN, HEADER_LEN = 16, 24

-- Streams by TCP stream and direction, and the results of the first pass, in which units come in order.
-- Wireshark may show a packet again later, in any order.
local streams, memos = {}, {}
local tcp_stream, tcp_srcport = Field.new("tcp.stream"), Field.new("tcp.srcport")

function gcodec.init()
  streams, memos = {}, {}
end

local function little(data, first, count)
  local value = 0
  for i = count - 1, 0, -1 do value = value * 256 + data:byte(first + i) end
  return value
end

local function header_is_correct(data, first)
  return data:sub(first, first + 3) == SYNC and #data >= first + HEADER_LEN - 1
    and crc32(data:sub(first, first + 19)) == little(data, first + 20, 4)
end

-- Finds the unit that begins at byte `first` (from 1). Returns its kind ("preamble", "header", "frame" or
-- "corrupt") and its length. If more bytes are needed, returns nil, their number and, if it is known, the
-- length of the whole unit.
local function unit(data, first)
  local left = #data - first + 1
  local head = data:sub(first, first + 7)
  if head == MAGIC:sub(1, #head) and head ~= "" then
    if left < PREAMBLE_LEN then return nil, PREAMBLE_LEN - left end
    return "preamble", PREAMBLE_LEN
  end
  if head:sub(1, 4) == SYNC:sub(1, math.min(4, #head)) then
    if left < HEADER_LEN then return nil, HEADER_LEN - left end
    if header_is_correct(data, first) then
      local body = little(data, first + 8, 8)
      if body > gcodec.prefs.max_body * 2 ^ 20 then return "header", HEADER_LEN end
      if left < HEADER_LEN + body then return nil, HEADER_LEN + body - left, HEADER_LEN + body end
      return "frame", HEADER_LEN + body
    end
  end
  -- Section 4: the next frame begins at the next sync word with a correct header. A header that is cut at the
  -- end may turn out to be correct when more bytes have come.
  local at = first
  while true do
    local sync, magic = data:find("\xd3", at + 1, true), data:find("\x89", at + 1, true)
    at = math.min(sync or math.huge, magic or math.huge)
    if at == math.huge then return "corrupt", left end
    local rest = data:sub(at, at + 7)
    local may_be = #rest < 8 and (rest:sub(1, 4) == SYNC:sub(1, #rest) or rest == MAGIC:sub(1, #rest))
      or rest:sub(1, 4) == SYNC and #data - at + 1 < HEADER_LEN
    if may_be or rest == MAGIC or header_is_correct(data, at) then return "corrupt", at - first end
  end
end

local function check_crc(tree, range, name, data, expert_info)
  local correct = crc32(data) == range:le_uint()
  local item = tree:add_le(f[name], range)
  tree:add(f[name .. ".status"], range, correct and 1 or 0):set_generated()
  if not correct then item:add_proto_expert_info(expert_info) end
end

local function show_preamble(tvb, first, root)
  local tree = root:add(gcodec, tvb:range(first, PREAMBLE_LEN), "gcodec preamble")
  tree:add(f["magic"], tvb:range(first, 8))
  local major = tree:add(f["major"], tvb:range(first + 8, 1))
  local version = tvb:range(first + 8, 1):uint() .. "." .. tvb:range(first + 9, 1):uint()
  if tvb:range(first + 8, 1):uint() ~= 1 then major:add_proto_expert_info(e.version) end
  tree:add(f["minor"], tvb:range(first + 9, 1))
  local flags = tree:add_le(f["flags"], tvb:range(first + 10, 2))
  if tvb:range(first + 10, 2):uint() ~= 0 then flags:add_proto_expert_info(e.reserved) end
  check_crc(tree, tvb:range(first + 12, 4), "crc", tvb:range(first, 12):raw(), e.preamble_crc)
  tree:append_text(", version " .. version)
  return "gcodec " .. version
end

-- Shows the header of a frame, and its body if it is present. Returns the text for the info column.
local function show_frame(tvb, first, length, root, stream, memo)
  local function at(offset, count) return tvb:range(first + offset, count) end
  local kind, flags = at(4, 2):le_uint(), at(6, 2):le_uint()
  local name = FRAMES[kind] or string.format("kind 0x%04x", kind)
  local tree = root:add(gcodec, tvb:range(first, length), "gcodec frame: " .. name)
  if memo.number then
    tree:add(f["frame.number"], UInt64(memo.number)):set_generated()
    tree:add(f["frame.offset"], UInt64(memo.offset % WORD, math.floor(memo.offset / WORD))):set_generated()
  end
  tree:add(f["frame.sync"], at(0, 4))
  local kind_item = tree:add_le(f["frame.kind"], at(4, 2))
  if not FRAMES[kind] and kind < 0x8000 then kind_item:add_proto_expert_info(e.unknown) end
  local flags_item = tree:add_le(f["frame.flags"], at(6, 2))
  if kind == 2 then flags_item:add_le(f["frame.last"], at(6, 2)) end
  if FRAMES[kind] and flags > (kind == 2 and 1 or 0) then flags_item:add_proto_expert_info(e.reserved) end
  tree:add_le(f["frame.body_len"], at(8, 8))
  tree:add_le(f["frame.body_crc"], at(16, 4))
  tree:add_le(f["frame.header_crc"], at(20, 4))
  tree:add(f["frame.header_crc.status"], at(20, 4), 1):set_generated()
  local size = at(8, 8):le_uint64():tonumber()
  if length == HEADER_LEN and size > 0 then
    tree:add_proto_expert_info(e.too_large, string.format("A body of %s is not reassembled", human(size)))
    return name .. ", " .. human(size)
  end
  if gcodec.prefs.check_bodies then
    local body = size > 0 and at(HEADER_LEN, size):raw() or ""
    local correct = crc32(body) == at(16, 4):le_uint()
    tree:add(f["frame.body_crc.status"], at(16, 4), correct and 1 or 0):set_generated()
    if not correct then
      tree:add_proto_expert_info(e.body_crc)
      if size > 0 then tree:add(f["frame.body"], at(HEADER_LEN, size)) end
      return name .. ", corrupt"
    end
  end
  local read = bodies[kind]
  if not read then
    if size > 0 then tree:add(f["frame.body"], at(HEADER_LEN, size)) end
    return name .. ", " .. human(size)
  end
  if size == 0 then
    tree:add_proto_expert_info(e.malformed, "The body is empty")
    return name .. ", malformed"
  end
  local c = cursor(tvb, first + HEADER_LEN, first + HEADER_LEN + size)
  stream.last = flags % 2 == 1
  local ok, text = pcall(function()
    local text = read(c, tree, stream, memo)
    c:finish("the body")
    return text
  end)
  if not ok then
    -- An error that is not a table is a bug in this file; it is shown too.
    local message = type(text) == "table" and "The body violates the format: " .. text.malformed or tostring(text)
    tree:add_proto_expert_info(e.malformed, message)
    return name .. ", malformed"
  end
  tree:set_text("gcodec " .. text)
  return text
end

-- Returns the results of the first pass for a unit: its number and offset in the stream, and the chain of the
-- headers before it.
local function remember(pinfo, stream, what, data, first, length)
  local count = tonumber(pinfo.private["gcodec_units"] or "0") + 1
  pinfo.private["gcodec_units"] = tostring(count)
  local key = pinfo.number .. ":" .. count
  local memo = memos[key]
  if memo then return memo end
  memo = {}
  if what == "preamble" then
    stream.number, stream.offset, stream.chain = 0, length, 0
  elseif stream.number then
    memo.offset = stream.offset
    stream.offset = stream.offset + length
    if what == "frame" then
      memo.number, memo.chain = stream.number, stream.chain
      stream.number = stream.number + 1
      stream.chain = crc32(data:sub(first, first + 19), stream.chain)
    else
      -- After lost frames, the numbers of later frames are unknown.
      stream.number = nil
    end
  end
  memos[key] = memo
  return memo
end

-- `may_wait`: whether Wireshark can deliver the rest of a frame later, with the bytes that were not consumed.
local function dissect(tvb, pinfo, root, may_wait)
  if tvb:captured_len() < tvb:reported_len() then return 0 end
  local data = tvb:range():raw()
  local key = tostring(tcp_stream() and tcp_stream().value or 0) .. ":" .. tostring(tcp_srcport() and tcp_srcport().value or 0)
  local stream = streams[key] or { manifests = {} }
  streams[key] = stream
  local texts, at = {}, 0
  while at < #data do
    local what, length, whole = unit(data, at + 1)
    if not what then
      if may_wait then
        pinfo.desegment_offset = at
        pinfo.desegment_len = whole and length or DESEGMENT_ONE_MORE_SEGMENT
        break
      end
      local rest = tvb:range(at)
      local tree = root:add(gcodec, rest, "gcodec: the beginning of a frame")
      tree:add(f["skipped"], rest)
      tree:add_proto_expert_info(e.truncated, "The rest of a frame is missing: at least " .. counted(length, "byte"))
      texts[#texts + 1] = "truncated"
      break
    end
    local memo = remember(pinfo, stream, what, data, at + 1, length)
    if what == "preamble" then
      texts[#texts + 1] = show_preamble(tvb, at, root)
    elseif what == "corrupt" then
      local text = counted(length, "byte") .. " outside a frame"
      local tree = root:add(gcodec, tvb:range(at, length), "gcodec: " .. text)
      tree:add(f["skipped"], tvb:range(at, length))
      tree:add_proto_expert_info(e.no_frame)
      texts[#texts + 1] = text
    else
      texts[#texts + 1] = show_frame(tvb, at, length, root, stream, memo)
    end
    at = at + length
  end
  if #texts > 0 then
    pinfo.cols.protocol = "gcodec"
    -- A packet that ends one reassembled frame and contains others is dissected more than once.
    local more = pinfo.private["gcodec_info"] and "; " or ""
    pinfo.private["gcodec_info"] = "1"
    pinfo.cols.info:set(more .. table.concat(texts, "; "))
    pinfo.cols.info:fence()
  end
  return #data
end

function gcodec.dissector(tvb, pinfo, root)
  return dissect(tvb, pinfo, root, pinfo.can_desegment > 0)
end

-- Accepts a TCP connection whose first bytes are the magic, or at least the first half of it.
local function by_magic(tvb, pinfo, root)
  local count = math.min(tvb:captured_len(), #MAGIC)
  if count < 4 or tvb:range(0, count):raw() ~= MAGIC:sub(1, count) then return false end
  pinfo.conversation = gcodec
  -- Wireshark tells a heuristic that it cannot wait for more bytes, but waiting works.
  dissect(tvb, pinfo, root, true)
  return true
end

gcodec:register_heuristic("tcp", by_magic)
local ports = DissectorTable.get("tcp.port")
ports:add_for_decode_as(gcodec)

local port = 0
function gcodec.prefs_changed()
  if port == gcodec.prefs.port then return end
  if port ~= 0 then ports:remove(port, gcodec) end
  port = gcodec.prefs.port
  if port ~= 0 then ports:add(port, gcodec) end
end
