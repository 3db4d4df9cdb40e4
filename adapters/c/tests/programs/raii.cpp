// The C++ wrapper: round trips, exceptions, moves; handles free themselves (AddressSanitizer counts).
#include <gcodec.hpp>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition)) {                                                    \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            std::exit(1);                                                      \
        }                                                                      \
    } while (0)

template <typename Function>
static gcodec_status status_of(Function function) {
    try {
        function();
    } catch (const gcodec::Error &error) {
        CHECK(*error.what() != 0 && !error.kind().empty());
        return error.status();
    }
    return GCODEC_STATUS_OK;
}

int main() {
    gcodec::check_abi();
    const std::vector<float> weights{1, -2, 3, -4, 5, -6};
    const std::vector<int64_t> counts{1, 2, 3};
    const std::vector<gcodec::Tensor> tensors{{"w", {2, 3}, weights}, {"n", {3}, counts}};
    const std::vector<std::string> codecs{"topk:k=2,values=f32", "lossless"};

    gcodec::Feedback feedback;
    gcodec::UpdateOptions options;
    options.feedback = &feedback;
    gcodec::Encoder first;
    first.update(tensors, codecs, options);
    first.metadata({{"a", "b"}, {"c", ""}});
    gcodec::Encoder encoder = std::move(first);
    encoder.finish();
    const std::vector<uint8_t> bytes = encoder.take();
    CHECK(encoder.take().empty() && feedback.norm() > 5);

    gcodec::Decoder decoder;
    decoder.feed(bytes.data(), bytes.size());
    CHECK(decoder.next() == GCODEC_EVENT_UPDATE && decoder.size() == 2);
    CHECK(decoder["w"].to_vector<float>() == (std::vector<float>{0, 0, 0, 0, 5, -6}));
    CHECK(decoder[1].to_vector<int64_t>() == counts && decoder["n"].shape() == std::vector<uint64_t>{3});
    CHECK(decoder.next() == GCODEC_EVENT_METADATA && decoder.metadata().size() == 2);
    CHECK(decoder.metadata()[0].second == "b" && decoder.next() == GCODEC_EVENT_END);
    decoder.finish();

    const gcodec::Report report(bytes.data(), bytes.size());
    CHECK(!report.error() && report.summary().updates == 1 && report.tensor(0, 1).name() == "n");
    const gcodec::Report cut(bytes.data(), bytes.size() - 1);
    CHECK(cut.error() && cut.error()->kind() == "truncated" && cut.summary().updates == 1);

    // A delta against the decoded tensors.
    const std::vector<float> later{1, -2, 3, -4, 5, 7};
    gcodec::UpdateOptions against;
    against.base = {{"w", {2, 3}, weights}};
    const auto delta = gcodec::encode({{"w", {2, 3}, later}}, {"delta"}, against);
    CHECK(status_of([&] { gcodec::Decoder().decode(delta.data(), delta.size()); }) == GCODEC_STATUS_INPUT);
    gcodec::Decoder applied;
    applied.base(against.base);
    applied.decode(delta.data(), delta.size());
    CHECK(applied["w"].to_vector<float>() == later && applied.header().is_delta);

    // Part by part, and an exception on the way.
    gcodec::Encoder writer(16);
    std::vector<uint8_t> written;
    bool is_thrown = false;
    try {
        writer.write(tensors, {"raw"}, [](const uint8_t *, std::size_t) { throw std::out_of_range("full"); });
    } catch (const std::out_of_range &) {
        is_thrown = true;
    }
    CHECK(is_thrown && writer.take().empty());
    int puts = 0;
    const auto put = [&](const uint8_t *data, std::size_t len) {
        written.insert(written.end(), data, data + len);
        puts++;
    };
    writer.write(tensors, {"raw"}, put);
    CHECK(status_of([&] { writer.write(tensors, {"no codec"}, put); }) == GCODEC_STATUS_INPUT && puts == 2);
    writer.finish();
    const std::vector<uint8_t> end = writer.take();
    written.insert(written.end(), end.begin(), end.end());
    gcodec::Decoder again;
    again.decode(written.data(), written.size());
    CHECK(again["w"].to_vector<float>() == weights && again["n"].to_vector<int64_t>() == counts);

    // Errors, also in the middle of a constructor.
    CHECK(status_of([&] { gcodec::encode(tensors, {"no codec"}); }) == GCODEC_STATUS_INPUT);
    CHECK(status_of([&] { decoder[std::string("absent")]; }) == GCODEC_STATUS_INPUT);
    CHECK(status_of([&] { decoder.decode(bytes.data(), 20); }) == GCODEC_STATUS_FORMAT);
    gcodec_limits limits = gcodec::default_limits();
    limits.max_tensors = 1;
    gcodec::Decoder limited(&limits);
    CHECK(status_of([&] { limited.decode(bytes.data(), bytes.size()); }) == GCODEC_STATUS_LIMIT);

    // Handles of their own on several threads; one handle on several threads is busy or answers.
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++) {
        threads.emplace_back([&] {
            for (int j = 0; j < 50; j++) {
                gcodec::Decoder own;
                own.decode(bytes.data(), bytes.size());
                CHECK(own["n"].to_vector<int64_t>() == counts);
                const gcodec_status status =
                    status_of([&] { applied.decode(delta.data(), delta.size()); });
                CHECK(status == GCODEC_STATUS_OK || status == GCODEC_STATUS_BUSY);
            }
        });
    }
    for (std::thread &thread : threads) thread.join();
    std::puts("the C++ wrapper works");
}
