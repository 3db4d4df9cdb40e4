// gcodec for C++17: handles that free themselves, and errors as exceptions. Header only, over gcodec.h,
// whose contract holds: one object is in one call at a time, and the data that a decoder lends is valid until
// its next event. Objects can be moved, not copied.
#ifndef GCODEC_HPP
#define GCODEC_HPP

#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gcodec.h"

namespace gcodec {

// A failed call. `what()` is its message.
class Error : public std::runtime_error {
public:
    explicit Error(const gcodec_error &error) : std::runtime_error(error.message), error_(error) {}
    gcodec_status status() const noexcept { return error_.status; }
    std::string_view kind() const noexcept { return error_.kind; }
    std::optional<uint64_t> offset() const noexcept { return known(error_.offset); }
    std::optional<uint64_t> frame() const noexcept { return known(error_.frame); }
    std::optional<uint64_t> block() const noexcept { return known(error_.block); }
    std::optional<uint64_t> tensor() const noexcept { return known(error_.tensor); }

private:
    static std::optional<uint64_t> known(uint64_t number) noexcept {
        if (number == GCODEC_UNKNOWN) return std::nullopt;
        return number;
    }
    gcodec_error error_;
};

namespace detail {

// Calls a function of gcodec.h with a place for its error as the last argument, and throws the error.
template <typename Function, typename... Arguments>
void call(Function function, Arguments... arguments) {
    gcodec_error error;
    if (function(arguments..., &error) != GCODEC_STATUS_OK) throw Error(error);
}

template <typename T, void (*Free)(T *)>
struct Deleter {
    void operator()(T *handle) const noexcept { Free(handle); }
};

template <typename T, void (*Free)(T *)>
using Handle = std::unique_ptr<T, Deleter<T, Free>>;

}  // namespace detail

// Throws if the library in memory does not fit the header that the program was compiled with.
inline void check_abi() {
    const uint32_t found = gcodec_abi_version(), wanted = GCODEC_ABI_VERSION;
    if (found >> 16 != wanted >> 16 || found < wanted) {
        throw std::runtime_error("the gcodec library does not fit the header of this program");
    }
}

// The element type of T.
template <typename T> struct Dtype;
template <> struct Dtype<float> { static constexpr uint32_t value = GCODEC_DTYPE_F32; };
template <> struct Dtype<double> { static constexpr uint32_t value = GCODEC_DTYPE_F64; };
template <> struct Dtype<int8_t> { static constexpr uint32_t value = GCODEC_DTYPE_I8; };
template <> struct Dtype<int16_t> { static constexpr uint32_t value = GCODEC_DTYPE_I16; };
template <> struct Dtype<int32_t> { static constexpr uint32_t value = GCODEC_DTYPE_I32; };
template <> struct Dtype<int64_t> { static constexpr uint32_t value = GCODEC_DTYPE_I64; };
template <> struct Dtype<uint8_t> { static constexpr uint32_t value = GCODEC_DTYPE_U8; };
template <> struct Dtype<uint16_t> { static constexpr uint32_t value = GCODEC_DTYPE_U16; };
template <> struct Dtype<uint32_t> { static constexpr uint32_t value = GCODEC_DTYPE_U32; };
template <> struct Dtype<uint64_t> { static constexpr uint32_t value = GCODEC_DTYPE_U64; };

// A named tensor: its own name and shape, and elements that it borrows.
class Tensor {
public:
    Tensor(std::string name, uint32_t dtype, std::vector<uint64_t> shape, const void *data, std::size_t bytes)
        : name_(std::move(name)), shape_(std::move(shape)), data_(data), bytes_(bytes), dtype_(dtype) {}

    template <typename T>
    Tensor(std::string name, std::vector<uint64_t> shape, const std::vector<T> &data)
        : Tensor(std::move(name), Dtype<T>::value, std::move(shape), data.data(), data.size() * sizeof(T)) {}

    // A copy of the name and shape that `tensor` lends, and its elements.
    explicit Tensor(const gcodec_tensor &tensor)
        : Tensor(std::string(tensor.name, tensor.name_len), tensor.dtype,
                 std::vector<uint64_t>(tensor.shape, tensor.shape + tensor.rank), tensor.data, tensor.bytes) {}

    const std::string &name() const noexcept { return name_; }
    const std::vector<uint64_t> &shape() const noexcept { return shape_; }
    uint32_t dtype() const noexcept { return dtype_; }
    const void *data() const noexcept { return data_; }
    std::size_t bytes() const noexcept { return bytes_; }

    // The elements, copied.
    template <typename T>
    std::vector<T> to_vector() const {
        if (dtype_ != Dtype<T>::value) throw std::invalid_argument("tensor " + name_ + " has another type");
        std::vector<T> out(bytes_ / sizeof(T));
        if (bytes_ != 0) std::memcpy(out.data(), data_, bytes_);
        return out;
    }

    // The same tensor for gcodec.h, valid as long as this object.
    gcodec_tensor view() const noexcept {
        gcodec_tensor out{};
        out.name = name_.c_str();
        out.name_len = name_.size();
        out.data = data_;
        out.bytes = bytes_;
        out.shape = shape_.data();
        out.rank = shape_.size();
        out.dtype = dtype_;
        return out;
    }

private:
    std::string name_;
    std::vector<uint64_t> shape_;
    const void *data_;
    std::size_t bytes_;
    uint32_t dtype_;
};

namespace detail {

inline std::vector<gcodec_tensor> views(const std::vector<Tensor> &tensors) {
    std::vector<gcodec_tensor> out;
    out.reserve(tensors.size());
    for (const Tensor &tensor : tensors) out.push_back(tensor.view());
    return out;
}

}  // namespace detail

inline gcodec_limits default_limits() {
    gcodec_limits limits;
    detail::call(gcodec_limits_default, &limits);
    return limits;
}

class Decoder;
class Encoder;

// Residuals of a sender.
class Feedback {
public:
    Feedback() {
        gcodec_feedback *handle = nullptr;
        detail::call(gcodec_feedback_new, &handle);
        handle_.reset(handle);
    }
    double norm() const {
        double out = 0;
        detail::call(gcodec_feedback_norm, get(), &out);
        return out;
    }
    void reset() { detail::call(gcodec_feedback_reset, get()); }
    void begin() { detail::call(gcodec_feedback_begin, get()); }
    void commit() { detail::call(gcodec_feedback_commit, get()); }
    void undo() { detail::call(gcodec_feedback_undo, get()); }
    inline void save(Encoder &encoder) const;
    inline void load(const Decoder &decoder);
    gcodec_feedback *get() const noexcept { return handle_.get(); }

private:
    detail::Handle<gcodec_feedback, gcodec_feedback_free> handle_;
};

// What an update needs beside its tensors.
struct UpdateOptions {
    std::vector<Tensor> base;
    Feedback *feedback = nullptr;
    const gcodec_header *header = nullptr;
    bool zero_non_finite = false;
};

class Encoder {
public:
    // `core`: whether to write only what readers of the core profile know.
    explicit Encoder(uint64_t part_bytes = 0, bool with_index = true, bool core = false) {
        gcodec_encoder *handle = nullptr;
        detail::call(core ? gcodec_encoder_new_core : gcodec_encoder_new, part_bytes, uint32_t{with_index}, &handle);
        handle_.reset(handle);
    }

    // Encodes an update. `codecs`: one for all tensors, or one for each.
    void update(const std::vector<Tensor> &tensors, const std::vector<std::string> &codecs,
                const UpdateOptions &options = {}) {
        with_update(tensors, codecs, options, [this](const gcodec_update &update) {
            detail::call(gcodec_encoder_update, get(), &update);
        });
    }

    // Encodes an update and calls `put(data, len)` with its bytes, after those that are ready: part by part,
    // each before the next is made. An exception of `put` ends the update; the encoder is as before it.
    template <typename Put>
    void write(const std::vector<Tensor> &tensors, const std::vector<std::string> &codecs, Put &&put,
               const UpdateOptions &options = {}) {
        struct Context {
            Put &put;
            std::exception_ptr thrown;
        } context{put, nullptr};
        const gcodec_put caught = [](void *given, const uint8_t *data, std::size_t len) -> int32_t {
            Context &context = *static_cast<Context *>(given);
            try {
                context.put(data, len);
                return 0;
            } catch (...) {
                context.thrown = std::current_exception();
                return 1;
            }
        };
        with_update(tensors, codecs, options, [&](const gcodec_update &update) {
            try {
                detail::call(gcodec_encoder_write, get(), &update, caught, static_cast<void *>(&context));
            } catch (const Error &) {
                if (context.thrown) std::rethrow_exception(context.thrown);
                throw;
            }
        });
    }

    void metadata(const std::vector<std::pair<std::string, std::string>> &entries) {
        std::vector<gcodec_entry> texts;
        for (const auto &entry : entries) texts.push_back({entry.first.c_str(), entry.second.c_str()});
        detail::call(gcodec_encoder_metadata, get(), texts.data(), texts.size());
    }

    void finish() { detail::call(gcodec_encoder_finish, get()); }

    // Takes the bytes that are ready.
    std::vector<uint8_t> take() {
        const uint8_t *data = nullptr;
        std::size_t len = 0;
        detail::call(gcodec_encoder_output, get(), &data, &len);
        std::vector<uint8_t> out(data, data + len);
        detail::call(gcodec_encoder_take, get(), len);
        return out;
    }

    gcodec_encoder *get() const noexcept { return handle_.get(); }

private:
    template <typename Function>
    static void with_update(const std::vector<Tensor> &tensors, const std::vector<std::string> &codecs,
                            const UpdateOptions &options, Function function) {
        const std::vector<gcodec_tensor> views = detail::views(tensors), base = detail::views(options.base);
        std::vector<const char *> texts;
        for (const std::string &codec : codecs) texts.push_back(codec.c_str());
        gcodec_update update{};
        update.tensors = views.data();
        update.tensor_count = views.size();
        update.codecs = texts.data();
        update.codec_count = texts.size();
        update.base = base.data();
        update.base_count = base.size();
        update.feedback = options.feedback ? options.feedback->get() : nullptr;
        update.header = options.header;
        update.zero_non_finite = options.zero_non_finite;
        function(update);
    }

    detail::Handle<gcodec_encoder, gcodec_encoder_free> handle_;
};

class Decoder {
public:
    explicit Decoder(const gcodec_limits *limits = nullptr) {
        gcodec_decoder *handle = nullptr;
        detail::call(gcodec_decoder_new, limits, &handle);
        handle_.reset(handle);
    }

    // Sets the bases of later deltas. Their elements are borrowed, as `gcodec_decoder_base` says.
    void base(const std::vector<Tensor> &tensors) {
        const std::vector<gcodec_tensor> views = detail::views(tensors);
        detail::call(gcodec_decoder_base, get(), views.data(), views.size());
    }

    void select(const std::vector<std::string> &names) {
        std::vector<const char *> texts;
        for (const std::string &name : names) texts.push_back(name.c_str());
        detail::call(gcodec_decoder_select, get(), texts.data(), texts.size());
    }

    void feed(const void *bytes, std::size_t count) {
        detail::call(gcodec_decoder_feed, get(), static_cast<const uint8_t *>(bytes), count);
    }

    gcodec_event next() {
        gcodec_event event = GCODEC_EVENT_NEED_MORE;
        detail::call(gcodec_decoder_next, get(), &event);
        return event;
    }

    uint64_t needed() const {
        uint64_t out = 0;
        detail::call(gcodec_decoder_needed, get(), &out);
        return out;
    }

    void finish() { detail::call(gcodec_decoder_finish, get()); }

    // Decodes the last update of a whole stream.
    void decode(const void *bytes, std::size_t count) {
        detail::call(gcodec_decoder_decode, get(), static_cast<const uint8_t *>(bytes), count);
    }

    gcodec_header header() const {
        gcodec_header out;
        detail::call(gcodec_decoder_header, get(), &out);
        return out;
    }

    std::size_t size() const {
        std::size_t out = 0;
        detail::call(gcodec_decoder_count, get(), &out);
        return out;
    }

    // A tensor of the update, whose elements are lent until the next event.
    Tensor operator[](std::size_t index) const {
        gcodec_tensor out;
        detail::call(gcodec_decoder_tensor, get(), index, &out);
        return Tensor(out);
    }

    Tensor operator[](const std::string &name) const {
        std::size_t index = 0;
        detail::call(gcodec_decoder_find, get(), name.c_str(), &index);
        return (*this)[index];
    }

    std::vector<std::pair<std::string, std::string>> metadata() const {
        std::vector<std::pair<std::string, std::string>> out;
        gcodec_entry entry{};
        for (std::size_t index = 0, count = 1;; ++index) {
            detail::call(gcodec_decoder_entry, get(), index, &entry, &count);
            if (index >= count) return out;
            out.emplace_back(entry.key, entry.value);
        }
    }

    gcodec_decoder *get() const noexcept { return handle_.get(); }

private:
    detail::Handle<gcodec_decoder, gcodec_decoder_free> handle_;
};

inline void Feedback::save(Encoder &encoder) const { detail::call(gcodec_feedback_save, get(), encoder.get()); }
inline void Feedback::load(const Decoder &decoder) { detail::call(gcodec_feedback_load, get(), decoder.get()); }

// A report on a stream, as far as it can be read; `error()` is what ended it.
class Report {
public:
    Report(const void *bytes, std::size_t count, const gcodec_limits *limits = nullptr) {
        gcodec_report *handle = nullptr;
        gcodec_error error;
        const gcodec_status status =
            gcodec_report_new(static_cast<const uint8_t *>(bytes), count, limits, &handle, &error);
        handle_.reset(handle);
        if (status != GCODEC_STATUS_OK) error_.emplace(error);
        if (handle == nullptr) throw Error(error);
    }
    const std::optional<Error> &error() const noexcept { return error_; }
    gcodec_summary summary() const {
        gcodec_summary out;
        detail::call(gcodec_report_summary, get(), &out);
        return out;
    }
    gcodec_frame frame(std::size_t index) const {
        gcodec_frame out;
        detail::call(gcodec_report_frame, get(), index, &out);
        return out;
    }
    gcodec_block block(std::size_t index) const {
        gcodec_block out;
        detail::call(gcodec_report_block, get(), index, &out);
        return out;
    }
    Tensor tensor(std::size_t update, std::size_t index) const {
        gcodec_tensor out;
        detail::call(gcodec_report_tensor, get(), update, index, &out);
        return Tensor(out);
    }
    gcodec_report *get() const noexcept { return handle_.get(); }

private:
    detail::Handle<gcodec_report, gcodec_report_free> handle_;
    std::optional<Error> error_;
};

// Encodes one update as a whole stream.
inline std::vector<uint8_t> encode(const std::vector<Tensor> &tensors, const std::vector<std::string> &codecs,
                                   const UpdateOptions &options = {}) {
    Encoder encoder;
    encoder.update(tensors, codecs, options);
    encoder.finish();
    return encoder.take();
}

}  // namespace gcodec

#endif
