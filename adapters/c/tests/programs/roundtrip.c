/* What a trainer does: updates with residuals, metadata and deltas, written and read in pieces. */
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { ROWS = 40, COLUMNS = 25, COUNT = ROWS * COLUMNS };

static gcodec_error error;

static gcodec_tensor tensor(const char *name, const uint64_t *shape, const float *data) {
    const gcodec_tensor out = {.name = name,
                               .data = data,
                               .bytes = shape[0] * shape[1] * sizeof(float),
                               .shape = shape,
                               .rank = 2,
                               .dtype = GCODEC_DTYPE_F32};
    return out;
}

/* Takes all bytes of an encoder, a few at a time. The caller frees them. */
static uint8_t *take(gcodec_encoder *encoder, size_t *len) {
    size_t capacity = 16, got = 0;
    uint8_t *bytes = malloc(capacity);
    *len = 0;
    do {
        if (capacity - *len < 7) bytes = realloc(bytes, capacity *= 2);
        OK(gcodec_encoder_read(encoder, bytes + *len, 7, &got, &error));
        *len += got;
    } while (got > 0);
    return bytes;
}

static void updates(void) {
    const uint64_t shape[2] = {ROWS, COLUMNS};
    float gradient[COUNT], sum[COUNT] = {0}, sent[COUNT] = {0};
    for (int i = 0; i < COUNT; i++) gradient[i] = (float)((i * 37) % 101 - 50) / 64;
    const gcodec_tensor tensors[] = {tensor("w", shape, gradient)};
    const char *codec = "topk:density=0.1,values=f32";
    gcodec_feedback *feedback;
    gcodec_encoder *encoder;
    gcodec_header header = {.sender = 3, .world = 4, .label = "a label"};
    gcodec_update update = {.tensors = tensors, .tensor_count = 1, .codecs = &codec, .codec_count = 1};
    update.header = &header;
    OK(gcodec_feedback_new(&feedback, &error));
    /* Small parts: an update is several frames. */
    OK(gcodec_encoder_new(64, 1, &encoder, &error));
    const gcodec_entry entry = {"model", "conv"};
    OK(gcodec_encoder_metadata(encoder, &entry, 1, &error));
    update.feedback = feedback;
    for (header.step = 0; header.step < 5; header.step++) {
        OK(gcodec_encoder_update(encoder, &update, &error));
        for (int i = 0; i < COUNT; i++) sum[i] += gradient[i];
    }
    OK(gcodec_encoder_finish(encoder, &error));
    size_t len;
    uint8_t *bytes = take(encoder, &len);

    gcodec_decoder *decoder;
    OK(gcodec_decoder_new(NULL, &decoder, &error));
    uint64_t seen = 0, ends = 0, entries = 0;
    for (size_t at = 0; at < len; at++) {
        OK(gcodec_decoder_feed(decoder, bytes + at, 1, &error));
        gcodec_event event = GCODEC_EVENT_NEED_MORE;
        for (;;) {
            OK(gcodec_decoder_next(decoder, &event, &error));
            if (event == GCODEC_EVENT_NEED_MORE) break;
            if (event == GCODEC_EVENT_END) ends++;
            if (event == GCODEC_EVENT_METADATA) {
                gcodec_entry found;
                size_t count;
                OK(gcodec_decoder_entry(decoder, 0, &found, &count, &error));
                CHECK(count == 1 && !strcmp(found.key, "model") && !strcmp(found.value, "conv"));
                entries++;
            }
            if (event != GCODEC_EVENT_UPDATE) continue;
            gcodec_header got;
            gcodec_tensor w;
            size_t count, index = 7;
            OK(gcodec_decoder_header(decoder, &got, &error));
            CHECK(got.step == seen && got.sender == 3 && got.world == 4 && !got.is_delta);
            CHECK(!strcmp(got.label, "a label"));
            OK(gcodec_decoder_count(decoder, &count, &error));
            OK(gcodec_decoder_find(decoder, "w", &index, &error));
            OK(gcodec_decoder_tensor(decoder, 0, &w, &error));
            CHECK(count == 1 && index == 0 && w.rank == 2 && w.shape[0] == ROWS && w.shape[1] == COLUMNS);
            CHECK(w.dtype == GCODEC_DTYPE_F32 && w.bytes == sizeof gradient && !strcmp(w.name, "w"));
            float copy[COUNT];
            OK(gcodec_decoder_copy(decoder, 0, (uint8_t *)copy, sizeof copy, &error));
            CHECK(!memcmp(copy, w.data, sizeof copy));
            for (int i = 0; i < COUNT; i++) sent[i] += copy[i];
            seen++;
        }
    }
    OK(gcodec_decoder_finish(decoder, &error));
    CHECK(seen == 5 && ends == 1 && entries == 1);

    /* What was not sent is in the residuals. */
    double missing = 0, norm;
    for (int i = 0; i < COUNT; i++) missing += (double)(sum[i] - sent[i]) * (sum[i] - sent[i]);
    OK(gcodec_feedback_norm(feedback, &norm, &error));
    CHECK(norm > 1 && norm * norm - missing < 1e-3 && missing - norm * norm < 1e-3);

    /* Residuals survive a checkpoint, and an update that did not arrive. */
    gcodec_encoder *saved;
    gcodec_feedback *loaded;
    gcodec_decoder *reader;
    double again;
    const uint8_t *lent;
    OK(gcodec_encoder_new(0, 0, &saved, &error));
    OK(gcodec_feedback_save(feedback, saved, &error));
    OK(gcodec_encoder_finish(saved, &error));
    size_t saved_len;
    OK(gcodec_encoder_output(saved, &lent, &saved_len, &error));
    OK(gcodec_decoder_new(NULL, &reader, &error));
    OK(gcodec_decoder_decode(reader, lent, saved_len, &error));
    OK(gcodec_encoder_take(saved, saved_len, &error));
    OK(gcodec_feedback_new(&loaded, &error));
    OK(gcodec_feedback_load(loaded, reader, &error));
    OK(gcodec_feedback_norm(loaded, &again, &error));
    CHECK(again == norm);
    OK(gcodec_feedback_begin(loaded, &error));
    update.feedback = loaded;
    OK(gcodec_encoder_update(encoder, &update, &error));
    OK(gcodec_feedback_norm(loaded, &again, &error));
    CHECK(again != norm);
    OK(gcodec_feedback_undo(loaded, &error));
    OK(gcodec_feedback_norm(loaded, &again, &error));
    CHECK(again == norm);
    OK(gcodec_feedback_commit(loaded, &error));
    OK(gcodec_feedback_reset(loaded, &error));
    OK(gcodec_feedback_norm(loaded, &again, &error));
    CHECK(again == 0);

    /* The report adds up. */
    gcodec_report *report;
    gcodec_summary summary;
    OK(gcodec_report_new(bytes, len, NULL, &report, &error));
    OK(gcodec_report_summary(report, &summary, &error));
    CHECK(summary.bytes == len && summary.updates == 5 && summary.segments == 1);
    uint64_t total = 16, kept = 0;
    for (size_t i = 0; i < summary.frames; i++) {
        gcodec_frame frame;
        OK(gcodec_report_frame(report, i, &frame, &error));
        CHECK(frame.offset == total && frame.number == i && frame.kind_name != NULL);
        total += frame.bytes;
    }
    CHECK(total == len);
    for (size_t i = 0; i < summary.blocks; i++) {
        gcodec_block block;
        OK(gcodec_report_block(report, i, &block, &error));
        CHECK(block.elements == COUNT && block.support_bytes + block.values_bytes < block.bytes);
        kept += block.kept;
    }
    CHECK(kept == 5 * COUNT / 10);
    gcodec_tensor described;
    size_t count;
    OK(gcodec_report_update(report, 4, &header, &count, &error));
    OK(gcodec_report_tensor(report, 4, 0, &described, &error));
    CHECK(header.step == 4 && count == 1 && described.data == NULL && described.bytes == sizeof gradient);

    gcodec_report_free(report);
    gcodec_decoder_free(reader);
    gcodec_feedback_free(loaded);
    gcodec_encoder_free(saved);
    gcodec_decoder_free(decoder);
    gcodec_encoder_free(encoder);
    gcodec_feedback_free(feedback);
    free(bytes);
}

static void delta(void) {
    const uint64_t shape[2] = {ROWS, COLUMNS};
    float old[COUNT], new[COUNT];
    for (int i = 0; i < COUNT; i++) {
        old[i] = (float)i / 8;
        new[i] = i % 9 ? old[i] : old[i] * 1.0001f;
    }
    const gcodec_tensor base[] = {tensor("w", shape, old), tensor("b", shape, old)};
    const gcodec_tensor tensors[] = {tensor("w", shape, new), tensor("b", shape, old)};
    const char *codec = "delta";
    gcodec_update update = {.tensors = tensors, .tensor_count = 2, .codecs = &codec, .codec_count = 1};
    gcodec_encoder *encoder;
    OK(gcodec_encoder_new(0, 1, &encoder, &error));
    REFUSED(gcodec_encoder_update(encoder, &update, &error)); /* no base */
    CHECK(error.tensor == 0 && strstr(error.message, "\"w\""));
    update.base = base;
    update.base_count = 2;
    gcodec_encoder *core;
    OK(gcodec_encoder_new_core(0, 1, &core, &error));
    REFUSED(gcodec_encoder_update(core, &update, &error)); /* no deltas */
    CHECK(strstr(error.message, "core profile"));
    gcodec_encoder_free(core);
    OK(gcodec_encoder_update(encoder, &update, &error));
    OK(gcodec_encoder_finish(encoder, &error));
    const uint8_t *bytes;
    size_t len;
    OK(gcodec_encoder_output(encoder, &bytes, &len, &error));
    CHECK(len < sizeof new / 4);

    gcodec_decoder *decoder;
    gcodec_tensor got;
    OK(gcodec_decoder_new(NULL, &decoder, &error));
    REFUSED(gcodec_decoder_decode(decoder, bytes, len, &error)); /* no base */
    CHECK(!strcmp(error.kind, "unknown_reference"));
    OK(gcodec_decoder_base(decoder, tensors, 2, &error));
    REFUSED(gcodec_decoder_decode(decoder, bytes, len, &error)); /* a wrong base */
    CHECK(!strcmp(error.kind, "checksum_mismatch"));
    OK(gcodec_decoder_base(decoder, base, 2, &error));
    for (int pushed = 0; pushed < 2; pushed++) {
        if (pushed) {
            gcodec_event event;
            OK(gcodec_decoder_feed(decoder, bytes, len, &error));
            OK(gcodec_decoder_next(decoder, &event, &error));
            CHECK(event == GCODEC_EVENT_UPDATE);
        } else {
            OK(gcodec_decoder_decode(decoder, bytes, len, &error));
        }
        OK(gcodec_decoder_tensor(decoder, 0, &got, &error));
        CHECK(!memcmp(got.data, new, sizeof new));
        OK(gcodec_decoder_tensor(decoder, 1, &got, &error));
        CHECK(!memcmp(got.data, old, sizeof old));
    }
    const char *names[] = {"b", "absent"};
    size_t count;
    OK(gcodec_decoder_select(decoder, names, 2, &error));
    OK(gcodec_decoder_decode(decoder, bytes, len, &error));
    OK(gcodec_decoder_count(decoder, &count, &error));
    OK(gcodec_decoder_tensor(decoder, 0, &got, &error));
    CHECK(count == 1 && !strcmp(got.name, "b"));
    /* Another choice, while the decoder has the memory of the last one. */
    OK(gcodec_decoder_select(decoder, NULL, 0, &error));
    OK(gcodec_decoder_decode(decoder, bytes, len, &error));
    OK(gcodec_decoder_count(decoder, &count, &error));
    OK(gcodec_decoder_tensor(decoder, 0, &got, &error));
    CHECK(count == 2 && !memcmp(got.data, new, sizeof new));
    gcodec_decoder_free(decoder);
    gcodec_encoder_free(encoder);
}

/* Bytes that a call of gcodec_encoder_write gave, and the call that refuses them. */
struct sink {
    uint8_t bytes[65536];
    size_t len;
    int calls, fails_at;
};

static int32_t put(void *context, const uint8_t *data, size_t len) {
    struct sink *sink = context;
        if (++sink->calls == sink->fails_at) return 28;
    CHECK(len > 0 && sink->len + len <= sizeof sink->bytes);
    memcpy(sink->bytes + sink->len, data, len);
    sink->len += len;
    return 0;
}

/* An update written part by part has the bytes of a whole one, whichever of its parts is refused before. */
static void parts(void) {
    const uint64_t shape[2] = {ROWS, COLUMNS};
    static float data[2][COUNT];
    for (int i = 0; i < 2 * COUNT; i++) data[i / COUNT][i % COUNT] = (float)((i * 37) % 101 - 50) / 64;
    const gcodec_tensor tensors[] = {tensor("a", shape, data[0]), tensor("b", shape, data[1])};
    const char *codecs[] = {"raw", "lossless"};
    const gcodec_update update = {.tensors = tensors, .tensor_count = 2, .codecs = codecs, .codec_count = 2};
    const gcodec_entry entry = {"model", "conv"};
    gcodec_encoder *encoder;
    OK(gcodec_encoder_new(64, 1, &encoder, &error));
    OK(gcodec_encoder_metadata(encoder, &entry, 1, &error));
    OK(gcodec_encoder_update(encoder, &update, &error));
    OK(gcodec_encoder_finish(encoder, &error));
    size_t len;
    uint8_t *whole = take(encoder, &len);
    gcodec_encoder_free(encoder);

    static struct sink sink, ignored;
    OK(gcodec_encoder_new(64, 1, &encoder, &error));
    OK(gcodec_encoder_metadata(encoder, &entry, 1, &error));
    REFUSED(gcodec_encoder_write(encoder, &update, NULL, &sink, &error));
    sink = (struct sink){.fails_at = 1}; /* the metadata, which stay ready */
    FAILS(GCODEC_STATUS_IO, gcodec_encoder_write(encoder, &update, put, &sink, &error));
    CHECK(sink.calls == 1 && strstr(error.message, "28"));
    sink = (struct sink){0};
    uint8_t *ready = take(encoder, &sink.len);
    memcpy(sink.bytes, ready, sink.len);
    free(ready);
    for (int at = 1; at <= 2; at++) { /* the first part, the last */
        ignored = (struct sink){.fails_at = at};
                FAILS(GCODEC_STATUS_IO, gcodec_encoder_write(encoder, &update, put, &ignored, &error));
        CHECK(ignored.calls == at);
    }
    OK(gcodec_encoder_write(encoder, &update, put, &sink, &error));
    CHECK(sink.calls == 2); /* a part for each tensor */
    OK(gcodec_encoder_finish(encoder, &error));
    size_t end;
    uint8_t *rest = take(encoder, &end);
    CHECK(sink.len + end == len && !memcmp(whole, sink.bytes, sink.len));
    CHECK(!memcmp(whole + sink.len, rest, end));
    gcodec_encoder_free(encoder);
    free(rest);
    free(whole);
}

int main(void) {
    CHECK(gcodec_abi_version() == GCODEC_ABI_VERSION && strlen(gcodec_version()) > 0);
    gcodec_set_threads(2);
    updates();
    parts();
    delta();
    /* A child has only the thread that forked: the library starts threads for it. */
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        delta();
        _exit(0);
    }
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    puts("updates, residuals, metadata, deltas and reports are as expected");
    return 0;
}
