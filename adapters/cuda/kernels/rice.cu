// Positions as Rice-coded gaps (spec, supports/gaps-rice.md), bit for bit those of the library's encoder,
// from the places that `emit` left in device memory:
//
//   rows       counts the gaps of each row, and where each segment's gaps begin in it
//   measure    finds for each unit of 1024 gaps the best parameter of each chunk, for each chunk length, and
//              its cost
//   choose     chooses the chunk length of each row, and places everything by prefix sums over units
//   pack       writes both planes, the table and the header
//
// `measure` and `pack` read each place once, and every fourth place once more for the gap behind it. Each bit
// is written once: a block composes words in shared memory and stores them whole, except for the words at the
// ends of its range, which it joins with those of its neighbours by an atomic or. The result does not depend
// on an order.
#include "group.cuh"
#include "rice.cuh"

__device__ __forceinline__ u64 warp_sum_long(u64 x) {
    for (u32 step = 16; step > 0; step /= 2) {
        x += __shfl_xor_sync(ALL_LANES, x, step);
    }
    return x;
}

__device__ inline u64 varint_len(u64 x) {
    u64 len = 1;
    for (; x >= 128; x >>= 7) {
        len++;
    }
    return len;
}

// Returns the smallest parameter to try for `len` >= 1 gaps of this sum. The largest is 5 above it, or 63.
__device__ __forceinline__ u32 first_tried(u64 sum, u64 len, u32 &tried) {
    const u64 mean = sum / len;
    const u32 log = 63 - static_cast<u32>(__clzll(static_cast<long long>(mean + 1)));
    const u32 first = log < 3 ? 0 : log - 3, last = log + 2 < 63 ? log + 2 : 63;
    tried = last - first + 1;
    return first;
}

// Returns the parameter with the fewest bits among `tried` from `first` on, the smallest of equals, and the
// sum of its quotients.
__device__ inline u32 best(const u64 *sums, u64 len, u32 first, u32 tried, u64 &quotients) {
    u32 k = first;
    quotients = sums[0];
#pragma unroll
    for (u32 i = 1; i < TRIED_PARAMETERS; i++) {
        if (i < tried && sums[i] + len * (first + i) < quotients + len * k) {
            k = first + i;
            quotients = sums[i];
        }
    }
    return k;
}

struct Size {
    u64 table;
    u64 low;
    u64 unary;
};

// Returns the bytes of a chunk of `len` gaps whose quotients have this sum.
__device__ inline Size size_of(u64 len, u64 sum, u32 k, u64 quotients) {
    const u64 unary = (quotients + len + 7) / 8;
    return {1 + varint_len(unary) + varint_len(sum + len), (len * k + 7) / 8, unary};
}

// Random access to the gaps of a row.
struct Gaps {
    const Rice &r;
    const Row &row;
    u64 count;

    __device__ Gaps(const Rice &r, u32 row, u64 count) : r(r), row(r.rows[row]), count(count) {}

    __device__ u64 first_of(u32 segment) const {
        return segment < row.segments ? r.segment_first[row.first_segment + segment] : count;
    }
    __device__ u32 segment_of(u64 i) const {
        return last_at_most(row.segments, i, [&](u32 s) { return r.segment_first[row.first_segment + s]; });
    }
    __device__ u64 position_in(u32 segment, u64 i) const {
        const u32 s = row.first_segment + segment;
        return r.segments[s].start + r.places[r.segment_from[s] + (i - r.segment_first[s])];
    }
    // One more than the position before gap `i`; 0 for the first gap.
    __device__ u64 before(u64 i) const { return i == 0 ? 0 : position_in(segment_of(i - 1), i - 1) + 1; }

    // Reads the gaps from `i` on, zeros beyond the end, and returns their number.
    __device__ u32 read(u64 i, u64 (&gaps)[PER_THREAD]) const {
        u32 here = 0;
        u64 next = 0, end = 0;
        u32 segment = 0;
        if (i < count) {
            next = before(i);
            segment = segment_of(i);
            end = first_of(segment + 1);
        }
#pragma unroll
        for (u32 j = 0; j < PER_THREAD; j++) {
            gaps[j] = 0;
            if (i + j < count) {
                while (i + j >= end) {
                    segment++;
                    end = first_of(segment + 1);
                }
                const u64 position = position_in(segment, i + j);
                gaps[j] = position - next;
                next = position + 1;
                here++;
            }
        }
        return here;
    }
};

// Returns the row of a unit: the last that begins at or before it, because rows without units begin where the
// next one does.
__device__ __forceinline__ u32 row_of_unit(const Rice &r, u64 unit) {
    return last_at_most(r.n_rows, unit, [&](u32 row) { return r.states[row].first_unit; });
}

__device__ __forceinline__ u64 units_of(u64 count) { return (count + UNIT_LEN - 1) / UNIT_LEN; }

__device__ __forceinline__ u64 all_units(const Rice &r) {
    return r.states[r.n_rows - 1].first_unit + units_of(r.states[r.n_rows - 1].count);
}

// Whether this block is the last of its grid to arrive. It then sees everything that the others wrote before.
__device__ __forceinline__ bool comes_last(u32 *ticket, u32 &shared) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        shared = atomicAdd(ticket, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    __threadfence();
    return shared != 0;
}

// One block for each row.
extern "C" __global__ void __launch_bounds__(THREADS) gcodec_rice_rows(const Rice r) {
    __shared__ u64 scratch[WARPS];
    __shared__ u32 last;
    const Row row = r.rows[blockIdx.x];
    u64 count = 0;
    for (u32 i = 0; i < row.segments; i += THREADS) {
        const u32 s = row.first_segment + i + threadIdx.x;
        const bool here = i + threadIdx.x < row.segments;
        u64 kept = 0, from = 0;
        if (here) {
            const u32 piece = r.segments[s].piece, number = r.pieces[piece].search;
            const Search &search = r.searches[number];
            const u32 side = r.segments[s].side == CHOSEN_SIDE ? side_of(r.choices[number]) : r.segments[s].side;
            const u64 first = r.piece_kept[2 * piece + side];
            const bool more = piece + 1 < search.first_piece + search.pieces;
            kept = (more ? r.piece_kept[2 * (piece + 1) + side] : r.totals[2 * number + side]) - first;
            from = r.bases[2 * number + side] + first;
        }
        u64 total;
        const u64 before = count + block_exclusive(kept, scratch, total);
        count += total;
        if (here) {
            r.segment_first[s] = before;
            r.segment_from[s] = from;
        }
    }
    if (threadIdx.x == 0) {
        r.states[blockIdx.x].count = count;
    }
    if (!comes_last(&r.tickets[0], last)) {
        return;
    }
    u64 base = 0;
    for (u32 i = 0; i < r.n_rows; i += THREADS) {
        const bool here = i + threadIdx.x < r.n_rows;
        u64 total;
        const u64 units = here ? units_of(*static_cast<volatile u64 *>(&r.states[i + threadIdx.x].count)) : 0;
        const u64 before = base + block_exclusive(units, scratch, total);
        base += total;
        if (here) {
            r.states[i + threadIdx.x].first_unit = before;
        }
    }
}

// Each block takes units in turn.
extern "C" __global__ void __launch_bounds__(THREADS) gcodec_rice_measure(const Rice r) {
    // For each warp: the sum of its gaps, and of their quotients for each chunk length and parameter tried;
    // the last length is a single chunk.
    __shared__ u64 sums[WARPS];
    __shared__ u64 quotients[LEVELS + 1][WARPS][TRIED_PARAMETERS];
    __shared__ u64 outer[2];
    __shared__ Size sizes[UNIT_CHUNKS];
    const u64 units = all_units(r);
    for (u64 number = blockIdx.x; number < units; number += gridDim.x) {
        const u32 row = row_of_unit(r, number);
        const RowState &state = r.states[row];
        const Gaps all(r, row, state.count);
        Unit &unit = r.units[number];
        const u64 begin = (number - state.first_unit) * UNIT_LEN;
        const u64 left = state.count - begin;
        const u32 len = left < UNIT_LEN ? static_cast<u32>(left) : UNIT_LEN;
        u64 gaps[PER_THREAD];
        all.read(begin + PER_THREAD * threadIdx.x, gaps);
        u64 mine = 0;
#pragma unroll
        for (u32 j = 0; j < PER_THREAD; j++) {
            mine += gaps[j];
        }
        mine = warp_sum_long(mine);
        __syncthreads();
        if (lane() == 0) {
            sums[warp()] = mine;
        }
        if (threadIdx.x < 2) {
            // The sum of a chunk that is longer than a unit follows from its positions.
            const u64 log = threadIdx.x == 0 ? OUTER_LOG : 63;
            const u64 first = begin >> log << log;
            const u64 end = log < 63 && first + (1ull << log) < state.count ? first + (1ull << log) : state.count;
            outer[threadIdx.x] = all.before(end) - all.before(first) - (end - first);
        }
        __syncthreads();
#pragma unroll 1
        for (u32 level = 0; level <= LEVELS; level++) {
            u64 sum, chunk_len;
            if (level < INNER_LEVELS) {
                // The warps of this warp's chunk.
                const u32 warps = (1u << log_of(level)) / (32 * PER_THREAD), from = warp() / warps * warps;
                sum = 0;
                for (u32 w = from; w < from + warps; w++) {
                    sum += sums[w];
                }
                const u32 at = from * 32 * PER_THREAD, most = warps * 32 * PER_THREAD;
                chunk_len = len <= at ? 0 : len - at < most ? len - at : most;
            } else {
                sum = outer[level - INNER_LEVELS];
                const u64 first = begin >> OUTER_LOG << OUTER_LOG;
                const u64 rest = state.count - first, most = 1ull << OUTER_LOG;
                chunk_len = level == LEVELS ? state.count : rest < most ? rest : most;
            }
            u32 tried = 0;
            const u32 first = chunk_len == 0 ? 0 : first_tried(sum, chunk_len, tried);
#pragma unroll 1
            for (u32 i = 0; i < TRIED_PARAMETERS; i++) {
                u64 total = 0;
#pragma unroll
                for (u32 j = 0; j < PER_THREAD; j++) {
                    total += first + i < 64 ? gaps[j] >> (first + i) : 0;
                }
                total = warp_sum_long(total);
                if (lane() == 0) {
                    quotients[level][warp()][i] = total;
                }
            }
        }
        __syncthreads();
        if (threadIdx.x < UNIT_CHUNKS) {
            const u32 level = threadIdx.x < first_chunk(1) ? 0 : threadIdx.x < first_chunk(2) ? 1 : 2;
            const u32 chunk = threadIdx.x - first_chunk(level);
            const u32 warps = (1u << log_of(level)) / (32 * PER_THREAD), at = chunk << log_of(level);
            Size size = {0, 0, 0};
            u32 k = 0;
            if (at < len) {
                const u64 chunk_len = len - at < 1u << log_of(level) ? len - at : 1u << log_of(level);
                u64 sum = 0, by[TRIED_PARAMETERS] = {0, 0, 0, 0, 0, 0}, found;
                for (u32 w = chunk * warps; w < (chunk + 1) * warps; w++) {
                    sum += sums[w];
#pragma unroll
                    for (u32 i = 0; i < TRIED_PARAMETERS; i++) {
                        by[i] += quotients[level][w][i];
                    }
                }
                u32 tried;
                const u32 first = first_tried(sum, chunk_len, tried);
                k = best(by, chunk_len, first, tried, found);
                size = size_of(chunk_len, sum, k, found);
            }
            sizes[threadIdx.x] = size;
            unit.ks[threadIdx.x] = static_cast<u8>(k);
        } else if (threadIdx.x >= 32 && threadIdx.x < 32 + 2 * TRIED_PARAMETERS) {
            const u32 longer = (threadIdx.x - 32) / TRIED_PARAMETERS, i = (threadIdx.x - 32) % TRIED_PARAMETERS;
            u64 total = 0;
            for (u32 w = 0; w < WARPS; w++) {
                total += quotients[INNER_LEVELS + longer][w][i];
            }
            unit.sums[longer][i] = total;
        } else if (threadIdx.x == 64) {
            u64 total = 0;
            for (u32 w = 0; w < WARPS; w++) {
                total += sums[w];
            }
            unit.sum = total;
        }
        __syncthreads();
        if (threadIdx.x < INNER_LEVELS) {
            const u32 end = threadIdx.x + 1 < INNER_LEVELS ? first_chunk(threadIdx.x + 1) : UNIT_CHUNKS;
            u64 table = 0, planes = 0;
            for (u32 chunk = first_chunk(threadIdx.x); chunk < end; chunk++) {
                table += sizes[chunk].table;
                planes += sizes[chunk].low + sizes[chunk].unary;
            }
            unit.table[threadIdx.x] = table;
            unit.planes[threadIdx.x] = planes;
        }
    }
}

// A chunk of several units: its first unit, their number, and the number of its gaps.
struct Long {
    u64 first;
    u64 units;
    u64 len;

    __device__ Long(const RowState &state, u64 number) {
        const u64 units_each = (1ull << OUTER_LOG) / UNIT_LEN, all = units_of(state.count);
        first = number * units_each;
        units = all - first < units_each ? all - first : units_each;
        const u64 left = state.count - first * UNIT_LEN;
        len = left < 1ull << OUTER_LOG ? left : 1ull << OUTER_LOG;
    }
};

// Returns the size of a long chunk with its best parameter.
__device__ Size long_size(const Unit *units, const Long &chunk, u32 &k, u32 &first, u64 &sum) {
    u64 by[TRIED_PARAMETERS] = {0, 0, 0, 0, 0, 0}, quotients;
    sum = 0;
    for (u64 u = chunk.first; u < chunk.first + chunk.units; u++) {
        sum += units[u].sum;
#pragma unroll
        for (u32 i = 0; i < TRIED_PARAMETERS; i++) {
            by[i] += units[u].sums[0][i];
        }
    }
    u32 tried;
    first = first_tried(sum, chunk.len, tried);
    k = best(by, chunk.len, first, tried, quotients);
    return size_of(chunk.len, sum, k, quotients);
}

// One block for each row.
extern "C" __global__ void __launch_bounds__(THREADS) gcodec_rice_choose(const Rice r) {
    __shared__ u64 scratch[WARPS];
    __shared__ u32 last;
    RowState &state = r.states[blockIdx.x];
    const u64 count = state.count, n = units_of(count);
    Unit *units = r.units + state.first_unit;
    const u64 longs = (count + (1ull << OUTER_LOG) - 1) >> OUTER_LOG;
    if (count > 0) {
        // The bytes that each chunk length takes.
        u64 bytes[LEVELS] = {0, 0, 0, 0}, sum = 0, by[TRIED_PARAMETERS] = {0, 0, 0, 0, 0, 0};
        for (u64 u = threadIdx.x; u < n; u += THREADS) {
#pragma unroll
            for (u32 level = 0; level < INNER_LEVELS; level++) {
                bytes[level] += units[u].table[level] + units[u].planes[level];
            }
            sum += units[u].sum;
#pragma unroll
            for (u32 i = 0; i < TRIED_PARAMETERS; i++) {
                by[i] += units[u].sums[1][i];
            }
        }
        for (u64 c = threadIdx.x; c < longs; c += THREADS) {
            u32 k, first;
            u64 of_chunk;
            const Size size = long_size(units, Long(state, c), k, first, of_chunk);
            bytes[INNER_LEVELS] += size.table + size.low + size.unary;
        }
#pragma unroll 1
        for (u32 level = 0; level < LEVELS; level++) {
            block_exclusive(bytes[level], scratch, bytes[level]);
        }
        block_exclusive(sum, scratch, sum);
#pragma unroll 1
        for (u32 i = 0; i < TRIED_PARAMETERS; i++) {
            block_exclusive(by[i], scratch, by[i]);
        }
        u32 tried;
        u64 quotients;
        const u32 first = first_tried(sum, count, tried), k = best(by, count, first, tried, quotients);
        const Size one = size_of(count, sum, k, quotients);
        // A single chunk has a parameter in place of a table.
        u64 fewest = 1 + one.low + one.unary;
        u32 log = 0;
#pragma unroll
        for (u32 level = 0; level < LEVELS; level++) {
            const bool several = r.rows[blockIdx.x].one == 0 && count > 1ull << log_of(level);
            if (several && bytes[level] < fewest) {
                fewest = bytes[level];
                log = log_of(level);
            }
        }
        // The places of units.
        const u64 header = varint_len(count) + 1;
        u64 table = header, planes = 0, unary = 0;
        if (log == 0) {
            table = header + 1;
            for (u64 i = 0; i < n; i += THREADS) {
                const u64 u = i + threadIdx.x;
                const u64 len = u >= n ? 0 : count - u * UNIT_LEN < UNIT_LEN ? count - u * UNIT_LEN : UNIT_LEN;
                u64 total;
                const u64 bits = u < n ? units[u].sums[1][k - first] + len : 0;
                const u64 before = unary + block_exclusive(bits, scratch, total);
                unary += total;
                if (u < n) {
                    units[u].planes_at = table;
                    units[u].unary_before = before;
                    units[u].ks[0] = static_cast<u8>(k);
                }
            }
        } else if (log == OUTER_LOG) {
            for (u64 i = 0; i < longs; i += THREADS) {
                const u64 c = i + threadIdx.x;
                const bool here = c < longs;
                u32 k_of = 0, first_of = 0;
                u64 sum_of = 0;
                Size size = {0, 0, 0};
                if (here) {
                    size = long_size(units, Long(state, c), k_of, first_of, sum_of);
                }
                u64 total;
                const u64 table_before = table + block_exclusive(size.table, scratch, total);
                table += total;
                const u64 planes_before = planes + block_exclusive(size.low + size.unary, scratch, total);
                planes += total;
                if (here) {
                    const Long chunk(state, c);
                    u64 bits = 0;
                    for (u64 u = chunk.first; u < chunk.first + chunk.units; u++) {
                        units[u].table_at = table_before;
                        units[u].planes_at = planes_before;
                        units[u].unary_before = bits;
                        units[u].unary_bytes = size.unary;
                        units[u].span = sum_of + chunk.len;
                        units[u].ks[0] = static_cast<u8>(k_of);
                        const u64 len = count - u * UNIT_LEN < UNIT_LEN ? count - u * UNIT_LEN : UNIT_LEN;
                        bits += units[u].sums[0][k_of - first_of] + len;
                    }
                }
            }
        } else {
            const u32 level = level_of(log);
            for (u64 i = 0; i < n; i += THREADS) {
                const u64 u = i + threadIdx.x;
                u64 total;
                const u64 table_before = table + block_exclusive(u < n ? units[u].table[level] : 0, scratch, total);
                table += total;
                const u64 planes_before = planes + block_exclusive(u < n ? units[u].planes[level] : 0, scratch, total);
                planes += total;
                if (u < n) {
                    units[u].table_at = table_before;
                    units[u].planes_at = planes_before;
                }
            }
        }
        if (threadIdx.x == 0) {
            state.bytes = header + fewest;
            // The units of a single chunk have their places already.
            state.planes = log == 0 ? 0 : table;
            state.log = log;
            state.k = k;
        }
    } else if (threadIdx.x == 0) {
        state.bytes = 1;
        state.planes = 0;
        state.log = 0;
        state.k = 0;
    }
    if (!comes_last(&r.tickets[1], last)) {
        return;
    }
    u64 base = 0;
    for (u32 i = 0; i < r.n_rows; i += THREADS) {
        const bool here = i + threadIdx.x < r.n_rows;
        const u64 bytes = here ? *static_cast<volatile u64 *>(&r.states[i + threadIdx.x].bytes) : 0;
        u64 total;
        const u64 before = base + block_exclusive(bytes, scratch, total);
        base += total;
        if (here) {
            r.states[i + threadIdx.x].at = before;
            r.written[i + threadIdx.x] = {before, bytes, r.states[i + threadIdx.x].count, 0};
        }
    }
}

// Words that a block composes before it stores them: room for 1024 gaps of 63 bits, and unary bits.
constexpr u32 WINDOW_WORDS = 2560;

// A range of bits of the payload that a block writes: composed in its window if they fit, else one by one,
// which happens only with long runs of zeros.
struct Bits {
    u32 *payload;
    u32 *window;
    u64 first;
    u64 words;

    __device__ bool composes() const { return words <= WINDOW_WORDS; }

    // Writes the `width` low bits of `value`; its other bits are zero.
    __device__ void put(u64 at, u64 value, u32 width) const {
        u64 word = at / 32;
        u32 shift = static_cast<u32>(at % 32);
        while (width > 0) {
            const u32 here = width < 32 - shift ? width : 32 - shift;
            const u32 bits = static_cast<u32>(value) << shift;
            if (bits != 0) {
                atomicOr(composes() ? &window[word - first] : &payload[word], bits);
            }
            value >>= here;
            width -= here;
            word++;
            shift = 0;
        }
    }

    // All threads call these, before the first and after the last `put`.
    __device__ void clear() const {
        __syncthreads();
        for (u32 w = threadIdx.x; composes() && w < words; w += THREADS) {
            window[w] = 0;
        }
        __syncthreads();
    }
    __device__ void store() const {
        __syncthreads();
        for (u32 w = threadIdx.x; composes() && w < words; w += THREADS) {
            if (w == 0 || w + 1 == words) {
                atomicOr(&payload[first + w], window[w]);
            } else {
                payload[first + w] = window[w];
            }
        }
    }
};

// Returns the bits from `begin` to `end` >= `begin`.
__device__ __forceinline__ Bits bits_between(const Rice &r, u32 *window, u64 begin, u64 end) {
    return {r.payload, window, begin / 32, begin == end ? 0 : (end - 1) / 32 - begin / 32 + 1};
}

// Writes a varint of the header or the table, and returns the place after it.
__device__ u64 put_varint(const Rice &r, u64 at, u64 value) {
    do {
        const u32 byte = static_cast<u32>(value & 127) | (value >= 128 ? 128 : 0);
        atomicOr(&r.payload[at / 4], byte << at % 4 * 8);
        value >>= 7;
        at++;
    } while (value > 0);
    return at;
}
__device__ __forceinline__ u64 put_byte(const Rice &r, u64 at, u32 byte) {
    atomicOr(&r.payload[at / 4], byte << at % 4 * 8);
    return at + 1;
}
__device__ void put_entry(const Rice &r, u64 at, u32 k, u64 unary_bytes, u64 span) {
    put_varint(r, put_varint(r, put_byte(r, at, k), unary_bytes), span);
}

// Each block takes units in turn.
extern "C" __global__ void __launch_bounds__(THREADS) gcodec_rice_pack(const Rice r) {
    __shared__ u64 scratch[WARPS];
    __shared__ u32 window[WINDOW_WORDS];
    // [chunk]: bits of second planes, and the sum of gaps, before it in the unit; the last entry is of the
    // whole unit.
    __shared__ u64 bits_before[9];
    __shared__ u64 sum_before[9];
    // [chunk]: the first bits of its planes.
    __shared__ u64 low_at[8];
    __shared__ u64 unary_at[8];
    __shared__ u64 end_at;
    const u64 units = all_units(r);
    for (u64 number = blockIdx.x; number < units; number += gridDim.x) {
        const u32 row = row_of_unit(r, number);
        const RowState &state = r.states[row];
        const Unit &unit = r.units[number];
        const u64 begin = (number - state.first_unit) * UNIT_LEN, left = state.count - begin;
        const u32 len = left < UNIT_LEN ? static_cast<u32>(left) : UNIT_LEN, mine = PER_THREAD * threadIdx.x;
        const u32 log = state.log, level = level_of(log);
        const bool inner = log != 0 && log < OUTER_LOG;
        // A longer chunk contains the whole unit.
        const u32 chunk_log = inner ? log : 10, chunk = mine >> chunk_log;
        const u32 k = inner ? unit.ks[first_chunk(level) + chunk] : unit.ks[0];
        u64 gaps[PER_THREAD];
        const u32 here = Gaps(r, row, state.count).read(begin + mine, gaps);
        u64 bits = here, sum = 0, all_bits, all_sum;
#pragma unroll
        for (u32 j = 0; j < PER_THREAD; j++) {
            bits += gaps[j] >> k;
            sum += gaps[j];
        }
        const u64 before = block_exclusive(bits, scratch, all_bits);
        const u64 sum_to_here = block_exclusive(sum, scratch, all_sum);
        __syncthreads();
        const u32 chunks = inner ? (len + (1u << log) - 1) >> log : 1;
        if (mine % (1u << chunk_log) == 0 && chunk < chunks) {
            bits_before[chunk] = before;
            sum_before[chunk] = sum_to_here;
        }
        if (threadIdx.x == 0) {
            bits_before[chunks] = all_bits;
            sum_before[chunks] = all_sum;
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            const u64 planes = state.at + state.planes + unit.planes_at;
            if (inner) {
                u64 at = planes, entry = state.at + unit.table_at;
                for (u32 c = 0; c < chunks; c++) {
                    const u64 chunk_len = len - (c << log) < 1u << log ? len - (c << log) : 1u << log;
                    const u64 quotients = bits_before[c + 1] - bits_before[c] - chunk_len;
                    const u32 k_of = unit.ks[first_chunk(level) + c];
                    const u64 sum_of = sum_before[c + 1] - sum_before[c];
                    const Size size = size_of(chunk_len, sum_of, k_of, quotients);
                    put_entry(r, entry, k_of, size.unary, sum_of + chunk_len);
                    low_at[c] = 8 * at;
                    unary_at[c] = 8 * (at + size.low);
                    entry += size.table;
                    at += size.low + size.unary;
                }
                end_at = 8 * at;
            } else {
                const u64 chunk_begin = log == 0 ? 0 : begin >> log << log;
                const u64 rest = state.count - chunk_begin;
                const u64 chunk_len = log != 0 && rest > 1ull << log ? 1ull << log : rest;
                low_at[0] = 8 * planes + (begin - chunk_begin) * k;
                unary_at[0] = 8 * (planes + (chunk_len * k + 7) / 8) + unit.unary_before;
                end_at = unary_at[0] + all_bits;
                if (log != 0 && begin == chunk_begin) {
                    put_entry(r, state.at + unit.table_at, k, unit.unary_bytes, unit.span);
                }
            }
            if (begin == 0) {
                const u64 at = put_byte(r, put_varint(r, state.at, state.count), log);
                if (log == 0) {
                    put_byte(r, at, k);
                }
            }
        }
        __syncthreads();
        // Both planes of an inner chunk are adjacent; of a longer chunk the unit has a part of each plane.
        const u64 low = low_at[chunk] + static_cast<u64>(mine % (1u << chunk_log)) * k;
        u64 one = unary_at[chunk] + before - bits_before[chunk];
        const Bits first = inner ? bits_between(r, window, low_at[0], end_at)
                                 : bits_between(r, window, low_at[0], low_at[0] + static_cast<u64>(len) * k);
        first.clear();
#pragma unroll
        for (u32 j = 0; j < PER_THREAD; j++) {
            if (j < here) {
                first.put(low + static_cast<u64>(j) * k, gaps[j] & ((1ull << k) - 1), k);
            }
        }
        const Bits second = inner ? first : bits_between(r, window, unary_at[0], end_at);
        if (!inner) {
            first.store();
            second.clear();
        }
#pragma unroll
        for (u32 j = 0; j < PER_THREAD; j++) {
            if (j < here) {
                one += gaps[j] >> k;
                second.put(one, 1, 1);
                one++;
            }
        }
        second.store();
        __syncthreads();
    }
}
