// A mock of NVIDIA's driver library, for tests on machines without one. It has the functions that
// `adapters/cuda/src/driver.rs` loads, uses host memory as device memory, and runs the kernels in the CPU
// emulator. It also checks what a driver does not: that copies and kernels stay inside of allocations (guard
// zones), that memory is freed once and does not leak, and that a context is current. It counts calls, and
// lets calls fail on request. It is not a GPU.
//
// Work in a stream is done as late as possible: when the host waits for the stream or for an event on it. A
// host that reads results too early, or overwrites pinned memory too early, gets wrong bytes.
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes)
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes)
#endif

#include "../cpu_emulator/emulator.h"

#include "../kernels/gcodec.cu"

namespace {

constexpr int SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_IMAGE = 200;
constexpr int INVALID_CONTEXT = 201, NOT_FOUND = 500, LAUNCH_FAILED = 719, INVALID_HANDLE = 400;
constexpr size_t GUARD = 4096;
constexpr unsigned char GUARD_BYTE = 0xcd;

struct Allocation {
    size_t bytes;
    int device;
    bool pinned;
    void *mapping;
    size_t mapped;
};

struct Stream {
    int device = -1;
    std::deque<std::function<void()>> pending;
    // The number of items ever put into it, and how many of them are done.
    uint64_t put = 0, done = 0;

    void push_back(std::function<void()> work) {
        pending.push_back(std::move(work));
        put++;
    }
};

// The last item of a stream when the event was recorded.
struct Event {
    void *stream = nullptr;
    uint64_t put = 0;
};

struct State {
    std::mutex lock;
    std::map<uintptr_t, Allocation> allocations;
    std::map<std::string, uint64_t> counts;
    std::map<std::string, int64_t> fail_after;
    std::map<void *, Stream> streams;
    std::map<int, int> retained;
    int devices = 2;
    int version = 13000;
    std::string fault;
};

State &state() {
    static State state;
    return state;
}

thread_local std::vector<int> contexts;

// Counts a call, and returns whether it has to fail.
bool fails(const char *name) {
    State &s = state();
    s.counts[name]++;
    auto found = s.fail_after.find(name);
    return found != s.fail_after.end() && found->second-- == 0;
}

void fault(const std::string &what) {
    if (state().fault.empty()) {
        state().fault = what;
    }
}

const Allocation *find(uintptr_t at, size_t bytes) {
    auto &all = state().allocations;
    auto next = all.upper_bound(at);
    if (next == all.begin()) {
        return nullptr;
    }
    --next;
    const bool inside = at - next->first <= next->second.bytes && bytes <= next->second.bytes - (at - next->first);
    return inside ? &next->second : nullptr;
}

// Under AddressSanitizer the guards are poisoned, so that reads are found too, at the access.
void poison(uintptr_t base, const Allocation &a) {
    ASAN_POISON_MEMORY_REGION(reinterpret_cast<char *>(base) - GUARD, GUARD);
    ASAN_POISON_MEMORY_REGION(reinterpret_cast<char *>(base) + a.bytes, a.mapped - GUARD - a.bytes);
    (void)base, (void)a;
}

bool guard_holds(uintptr_t base, const Allocation &a) {
    ASAN_UNPOISON_MEMORY_REGION(a.mapping, a.mapped);
    const unsigned char *before = reinterpret_cast<unsigned char *>(base) - GUARD;
    const unsigned char *after = reinterpret_cast<unsigned char *>(base) + a.bytes;
    static const std::vector<unsigned char> guard(GUARD, GUARD_BYTE);
    const bool holds = memcmp(before, guard.data(), GUARD) == 0 && memcmp(after, guard.data(), GUARD) == 0;
    poison(base, a);
    return holds;
}

void check_guards(const char *when) {
    for (auto &[base, a] : state().allocations) {
        if (!guard_holds(base, a)) {
            fault(std::string("a write outside of an allocation, found ") + when);
        }
    }
}

int allocate(uint64_t *out, size_t bytes, bool pinned) {
    if (bytes == 0 || out == nullptr) {
        return INVALID_VALUE;
    }
    if (contexts.empty()) {
        return INVALID_CONTEXT;
    }
    const size_t page = 4096, mapped = (bytes + page - 1) / page * page + 2 * GUARD;
    // Untouched pages take no memory, so a tensor of zeros can be larger than this machine's memory.
    void *mapping = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) {
        return OUT_OF_MEMORY;
    }
    unsigned char *base = static_cast<unsigned char *>(mapping) + GUARD;
    memset(mapping, GUARD_BYTE, GUARD);
    memset(base + bytes, GUARD_BYTE, GUARD);
    // New memory has arbitrary content. Large allocations are not filled, because that would touch all pages.
    if (bytes <= 64 << 20) {
        memset(base, 0xa5, bytes);
    }
    state().allocations[reinterpret_cast<uintptr_t>(base)] = {bytes, contexts.back(), pinned, mapping, mapped};
    *out = reinterpret_cast<uintptr_t>(base);
    poison(*out, state().allocations[*out]);
    return SUCCESS;
}

// Does the work in a stream, up to its item number `end`.
void flush(Stream &stream, uint64_t end = UINT64_MAX) {
    while (!stream.pending.empty() && stream.done < end) {
        auto work = std::move(stream.pending.front());
        stream.pending.pop_front();
        stream.done++;
        work();
    }
}

Stream &stream_of(void *handle) { return state().streams[handle]; }

int release(uintptr_t at, bool pinned) {
    auto found = state().allocations.find(at);
    if (found == state().allocations.end() || found->second.pinned != pinned) {
        fault("memory was freed that was not allocated");
        return INVALID_VALUE;
    }
    if (!guard_holds(at, found->second)) {
        fault("a write outside of an allocation, found when it was freed");
    }
    // Like the driver, waits for all work first.
    for (auto &[_, stream] : state().streams) {
        flush(stream);
    }
    ASAN_UNPOISON_MEMORY_REGION(found->second.mapping, found->second.mapped);
    munmap(found->second.mapping, found->second.mapped);
    state().allocations.erase(found);
    return SUCCESS;
}

struct Kernel {
    void (*call)(const void *arguments, emulator::Index grid, emulator::Index threads);
    size_t bytes;
};

template <auto Function, typename Arguments>
Kernel kernel() {
    auto call = [](const void *arguments, emulator::Index grid, emulator::Index threads) {
        emulator::launch<const Arguments>(Function, arguments, grid, threads);
    };
    return {call, sizeof(Arguments)};
}

const std::map<std::string, Kernel> KERNELS = {
    {"gcodec_sample", kernel<gcodec_sample, Select>()},
    {"gcodec_collect", kernel<gcodec_collect, Select>()},
    {"gcodec_digits", kernel<gcodec_digits, Select>()},
    {"gcodec_count", kernel<gcodec_count, Select>()},
    {"gcodec_place", kernel<gcodec_place, Select>()},
    {"gcodec_emit", kernel<gcodec_emit, Select>()},
    {"gcodec_measure", kernel<gcodec_measure, Select>()},
    {"gcodec_measure_logs", kernel<gcodec_measure_logs, Select>()},
    {"gcodec_decide", kernel<gcodec_decide, Select>()},
    {"gcodec_choose", kernel<gcodec_choose, Pack>()},
    {"gcodec_pack", kernel<gcodec_pack, Pack>()},
    {"gcodec_non_finite", kernel<gcodec_non_finite, NonFinite>()},
    {"gcodec_subtract", kernel<gcodec_subtract, Subtract>()},
    {"gcodec_scatter", kernel<gcodec_scatter, Scatter>()},
    {"gcodec_rice_rows", kernel<gcodec_rice_rows, Rice>()},
    {"gcodec_rice_measure", kernel<gcodec_rice_measure, Rice>()},
    {"gcodec_rice_choose", kernel<gcodec_rice_choose, Rice>()},
    {"gcodec_rice_pack", kernel<gcodec_rice_pack, Rice>()},
    {"gcodec_dense_round", kernel<dense::gcodec_dense_round, dense::Work>()},
    {"gcodec_dense_ranges", kernel<dense::gcodec_dense_ranges, dense::Work>()},
    {"gcodec_dense_measure", kernel<dense::gcodec_dense_measure, dense::Work>()},
    {"gcodec_dense_scale", kernel<dense::gcodec_dense_scale, dense::Work>()},
    {"gcodec_dense_quantise", kernel<dense::gcodec_dense_quantise, dense::Work>()},
    {"gcodec_dense_pack", kernel<dense::gcodec_dense_pack, dense::Work>()},
    {"gcodec_delta_keys", kernel<delta::gcodec_delta_keys, delta::Delta>()},
    {"gcodec_delta_count", kernel<delta::gcodec_delta_count, delta::Delta>()},
    {"gcodec_delta_place", kernel<delta::gcodec_delta_place, delta::Delta>()},
    {"gcodec_delta_emit", kernel<delta::gcodec_delta_emit, delta::Delta>()},
    {"gcodec_digest_chunks", kernel<blake3::gcodec_digest_chunks, blake3::Digests>()},
    {"gcodec_digest_roots", kernel<blake3::gcodec_digest_roots, blake3::Digests>()},
    {"gcodec_sums", kernel<sums::gcodec_sums, sums::Sums>()},
};

}  // namespace

#define LOCK std::lock_guard<std::mutex> guard(state().lock)
#define CALL(name, error)       \
    LOCK;                       \
    if (fails(name)) {          \
        return error;           \
    }

extern "C" {

// Functions for tests.
uint64_t mock_driver_count(const char *name) {
    LOCK;
    return state().counts[name];
}
void mock_driver_reset_counts() {
    LOCK;
    state().counts.clear();
}
// Lets the call of this name fail once, after `after` successful ones; negative: no call fails.
void mock_driver_fail(const char *name, int64_t after) {
    LOCK;
    state().fail_after[name] = after;
}
void mock_driver_machine(int devices, int version) {
    LOCK;
    state().devices = devices;
    state().version = version;
}
uint64_t mock_driver_allocations() {
    LOCK;
    return state().allocations.size();
}
// Returns the first fault that a driver would not report; null without one.
const char *mock_driver_fault() {
    LOCK;
    check_guards("at the end");
    return state().fault.empty() ? nullptr : state().fault.c_str();
}

int cuInit(unsigned) {
    CALL("cuInit", NO_DEVICE);
    return state().devices > 0 ? SUCCESS : NO_DEVICE;
}
int cuDriverGetVersion(int *version) {
    CALL("cuDriverGetVersion", INVALID_VALUE);
    *version = state().version;
    return SUCCESS;
}
int cuDeviceGetCount(int *count) {
    CALL("cuDeviceGetCount", NO_DEVICE);
    *count = state().devices;
    return SUCCESS;
}
int cuDeviceGet(int *device, int ordinal) {
    CALL("cuDeviceGet", INVALID_DEVICE);
    if (ordinal < 0 || ordinal >= state().devices) {
        return INVALID_DEVICE;
    }
    *device = ordinal;
    return SUCCESS;
}
int cuDeviceGetName(char *name, int len, int device) {
    CALL("cuDeviceGetName", INVALID_VALUE);
    snprintf(name, static_cast<size_t>(len), "emulator %d", device);
    return SUCCESS;
}
int cuDeviceGetAttribute(int *value, int attribute, int) {
    CALL("cuDeviceGetAttribute", INVALID_VALUE);
    // The number of multiprocessors; the compute capability, major and minor.
    *value = attribute == 16 ? 2 : attribute == 75 ? 9 : 0;
    return SUCCESS;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
    CALL("cuDevicePrimaryCtxRetain", OUT_OF_MEMORY);
    state().retained[device]++;
    *context = reinterpret_cast<void *>(static_cast<intptr_t>(device + 1));
    return SUCCESS;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
    CALL("cuDevicePrimaryCtxRelease", INVALID_CONTEXT);
    if (--state().retained[device] < 0) {
        fault("a context was released more often than retained");
    }
    return SUCCESS;
}
int cuCtxPushCurrent_v2(void *context) {
    CALL("cuCtxPushCurrent", INVALID_CONTEXT);
    contexts.push_back(static_cast<int>(reinterpret_cast<intptr_t>(context)) - 1);
    return SUCCESS;
}
int cuCtxPopCurrent_v2(void **context) {
    CALL("cuCtxPopCurrent", INVALID_CONTEXT);
    if (contexts.empty()) {
        fault("a context was popped that was not pushed");
        return INVALID_CONTEXT;
    }
    *context = reinterpret_cast<void *>(static_cast<intptr_t>(contexts.back() + 1));
    contexts.pop_back();
    return SUCCESS;
}
int cuModuleLoadData(void **module, const void *image) {
    CALL("cuModuleLoadData", INVALID_IMAGE);
    uint32_t magic;
    memcpy(&magic, image, sizeof magic);
    *module = const_cast<void *>(image);
    return magic == 0xba55ed50u ? SUCCESS : INVALID_IMAGE;
}
int cuModuleUnload(void *) {
    CALL("cuModuleUnload", INVALID_HANDLE);
    return SUCCESS;
}
int cuModuleGetFunction(void **function, void *, const char *name) {
    CALL("cuModuleGetFunction", NOT_FOUND);
    auto found = KERNELS.find(name);
    if (found == KERNELS.end()) {
        return NOT_FOUND;
    }
    *function = const_cast<Kernel *>(&found->second);
    return SUCCESS;
}
int cuMemAlloc_v2(uint64_t *out, size_t bytes) {
    CALL("cuMemAlloc", OUT_OF_MEMORY);
    return allocate(out, bytes, false);
}
int cuMemFree_v2(uint64_t at) {
    CALL("cuMemFree", INVALID_VALUE);
    return release(at, false);
}
int cuMemHostAlloc(void **out, size_t bytes, unsigned) {
    CALL("cuMemHostAlloc", OUT_OF_MEMORY);
    uint64_t at = 0;
    const int result = allocate(&at, bytes, true);
    *out = reinterpret_cast<void *>(at);
    return result;
}
int cuMemFreeHost(void *at) {
    CALL("cuMemFreeHost", INVALID_VALUE);
    return release(reinterpret_cast<uintptr_t>(at), true);
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
    CALL("cuMemcpyHtoD", LAUNCH_FAILED);
    const Allocation *target = find(to, bytes), *source = find(reinterpret_cast<uintptr_t>(from), bytes);
    if (contexts.empty() || target == nullptr || target->pinned || source == nullptr || !source->pinned) {
        fault("a copy to the device that is not from pinned memory into an allocation");
        return INVALID_VALUE;
    }
    stream_of(stream).push_back([=] { memcpy(reinterpret_cast<void *>(to), from, bytes); });
    return SUCCESS;
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) {
    CALL("cuMemcpyDtoH", LAUNCH_FAILED);
    const Allocation *source = find(from, bytes), *target = find(reinterpret_cast<uintptr_t>(to), bytes);
    if (contexts.empty() || source == nullptr || source->pinned || target == nullptr || !target->pinned) {
        fault("a copy to the host that is not from an allocation into pinned memory");
        return INVALID_VALUE;
    }
    state().counts["bytes to the host"] += bytes;
    stream_of(stream).push_back([=] { memcpy(to, reinterpret_cast<void *>(from), bytes); });
    return SUCCESS;
}
int cuMemsetD8Async(uint64_t at, unsigned char value, size_t bytes, void *stream) {
    CALL("cuMemsetD8", LAUNCH_FAILED);
    const Allocation *target = find(at, bytes);
    if (contexts.empty() || target == nullptr || target->pinned) {
        fault("a fill outside of an allocation");
        return INVALID_VALUE;
    }
    stream_of(stream).push_back([=] { memset(reinterpret_cast<void *>(at), value, bytes); });
    return SUCCESS;
}
int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned ty, unsigned tz, unsigned shared,
                   void *stream, void **arguments, void **extra) {
    CALL("cuLaunchKernel", LAUNCH_FAILED);
    if (contexts.empty() || x == 0 || y == 0 || z != 1 || y > 65535 || threads != THREADS || ty != 1 || tz != 1 || shared != 0 ||
        arguments == nullptr || extra != nullptr) {
        return INVALID_VALUE;
    }
    const Kernel kernel = *static_cast<const Kernel *>(function);
    const char *first = static_cast<const char *>(arguments[0]);
    stream_of(stream).push_back([=, copy = std::vector<char>(first, first + kernel.bytes)] {
        kernel.call(copy.data(), {x, y, 1}, {threads, 1, 1});
        check_guards("after a launch");
    });
    return SUCCESS;
}
int cuStreamSynchronize(void *stream) {
    CALL("cuStreamSynchronize", LAUNCH_FAILED);
    flush(stream_of(stream));
    return SUCCESS;
}
int cuStreamCreate(void **stream, unsigned) {
    CALL("cuStreamCreate", OUT_OF_MEMORY);
    static uintptr_t next = 0x1000;
    *stream = reinterpret_cast<void *>(next += 16);
    state().streams[*stream].device = contexts.empty() ? -1 : contexts.back();
    return SUCCESS;
}
int cuStreamDestroy_v2(void *stream) {
    CALL("cuStreamDestroy", INVALID_HANDLE);
    return state().streams.erase(stream) == 1 ? SUCCESS : INVALID_HANDLE;
}
int cuEventCreate(void **event, unsigned) {
    CALL("cuEventCreate", OUT_OF_MEMORY);
    *event = new Event();
    return SUCCESS;
}
int cuEventRecord(void *event, void *stream) {
    CALL("cuEventRecord", INVALID_HANDLE);
    *static_cast<Event *>(event) = {stream, stream_of(stream).put};
    return SUCCESS;
}
int cuEventSynchronize(void *event) {
    CALL("cuEventSynchronize", LAUNCH_FAILED);
    const Event recorded = *static_cast<Event *>(event);
    flush(stream_of(recorded.stream), recorded.put);
    return SUCCESS;
}
int cuStreamWaitEvent(void *stream, void *event, unsigned) {
    CALL("cuStreamWaitEvent", INVALID_HANDLE);
    const Event recorded = *static_cast<Event *>(event);
    stream_of(stream).push_back([=] { flush(stream_of(recorded.stream), recorded.put); });
    return SUCCESS;
}
int cuEventDestroy_v2(void *event) {
    CALL("cuEventDestroy", INVALID_HANDLE);
    delete static_cast<Event *>(event);
    return SUCCESS;
}
int cuPointerGetAttribute(void *data, int attribute, uint64_t at) {
    CALL("cuPointerGetAttribute", INVALID_VALUE);
    const Allocation *found = find(at, 1);
    if (found == nullptr) {
        return INVALID_VALUE;
    }
    // The type of the memory; the number of the device.
    switch (attribute) {
        case 2:
            *static_cast<unsigned *>(data) = found->pinned ? 1 : 2;
            return SUCCESS;
        case 9:
            *static_cast<int *>(data) = found->device;
            return SUCCESS;
        default:
            return INVALID_VALUE;
    }
}
int cuGetErrorName(int error, const char **name) {
    switch (error) {
        case INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; break;
        case OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
        case NO_DEVICE: *name = "CUDA_ERROR_NO_DEVICE"; break;
        case LAUNCH_FAILED: *name = "CUDA_ERROR_LAUNCH_FAILED"; break;
        default: *name = "CUDA_ERROR_UNKNOWN";
    }
    return SUCCESS;
}

}  // extern "C"
