/* Every function with every argument wrong in turn, handles in the wrong order and of the wrong type, short
 * buffers, and a stream damaged at every byte. */
#include "check.h"

static gcodec_error error;

static const float DATA[6] = {1, -2, 3, -4, 5, -6};
static const uint64_t SHAPE[2] = {2, 3};
static const char *const CODEC = "topk:k=2,values=f32";

static gcodec_tensor tensor(void) {
    const gcodec_tensor out = {"w", 0, DATA, sizeof DATA, SHAPE, 2, GCODEC_DTYPE_F32};
    return out;
}

static gcodec_update update_of(const gcodec_tensor *tensor) {
    const gcodec_update out = {
        .tensors = tensor, .tensor_count = 1, .codecs = &CODEC, .codec_count = 1};
    return out;
}

static void updates(gcodec_encoder *encoder) {
    gcodec_tensor good = tensor(), bad;
    gcodec_update update = update_of(&good);
    REFUSED(gcodec_encoder_update(NULL, &update, &error));
    REFUSED(gcodec_encoder_update(encoder, NULL, &error));
    /* Each field wrong in turn. */
#define FIELD(field, value)                                                                  \
    do {                                                                                     \
        bad = tensor();                                                                      \
        bad.field = value;                                                                   \
        update = update_of(&bad);                                                            \
        REFUSED(gcodec_encoder_update(encoder, &update, &error));                            \
        CHECK(error.tensor == 0);                                                            \
    } while (0)
    FIELD(name, NULL);
    FIELD(name, "\xff");
    FIELD(data, NULL);
    FIELD(bytes, 23);
    FIELD(bytes, SIZE_MAX);
    FIELD(shape, NULL);
    FIELD(shape, (const uint64_t *)((const char *)SHAPE + 1));
    FIELD(rank, 1);
    FIELD(rank, SIZE_MAX);
    FIELD(dtype, 0);
    FIELD(dtype, 3);
    FIELD(dtype, 256 + GCODEC_DTYPE_F32);
#define UPDATE(field, value)                                                                 \
    do {                                                                                     \
        update = update_of(&good);                                                           \
        update.field = value;                                                                \
        REFUSED(gcodec_encoder_update(encoder, &update, &error));                            \
    } while (0)
    UPDATE(tensors, NULL);
    UPDATE(tensors, (const gcodec_tensor *)((const char *)&good + 1));
    UPDATE(tensor_count, SIZE_MAX);
    UPDATE(codecs, NULL);
    UPDATE(codec_count, 0);
    UPDATE(codec_count, 2);
    const char *wrong[] = {"topk:density=2", "nonsense", "topk:density", "", "\xff", NULL};
    for (int i = 0; i < 6; i++) UPDATE(codecs, &wrong[i]);
    UPDATE(base, NULL; update.base_count = 1);
    /* An encoder where residuals are expected: another type, and the same handle twice in one call. */
    UPDATE(feedback, (gcodec_feedback *)encoder);
    gcodec_header header = {.reduction = 3};
    UPDATE(header, &header);
    header.reduction = 0;
    header.label = "\xff";
    UPDATE(header, &header);
    const gcodec_tensor twice[] = {good, good};
    update = update_of(twice);
    update.tensor_count = 2;
    REFUSED(gcodec_encoder_update(encoder, &update, &error));
    const float nan[6] = {1, -2, 0.0f / 0.0f};
    bad = tensor();
    bad.data = nan;
    update = update_of(&bad);
    REFUSED(gcodec_encoder_update(encoder, &update, &error));
    CHECK(!strcmp(error.kind, "non_finite") && error.tensor == 0);
    update.zero_non_finite = 1;
    OK(gcodec_encoder_update(encoder, &update, &error));
}

/* Pointers in each place, and functions in the wrong order. */
static void handles(void) {
    gcodec_encoder *encoder;
    gcodec_decoder *decoder;
    gcodec_feedback *feedback;
    gcodec_report *report = (gcodec_report *)&error;
    gcodec_limits limits;
    gcodec_event event;
    gcodec_header header;
    gcodec_tensor lent;
    gcodec_entry entry;
    gcodec_summary summary;
    gcodec_frame frame;
    gcodec_block block;
    const uint8_t *data;
    uint8_t buffer[8];
    uint64_t number;
    size_t size;
    double norm;

    REFUSED(gcodec_limits_default(NULL, &error));
    OK(gcodec_limits_default(&limits, &error));
    CHECK(gcodec_limits_default(NULL, NULL) == GCODEC_STATUS_INPUT);
    REFUSED(gcodec_encoder_new(0, 1, NULL, &error));
    REFUSED(gcodec_encoder_new_core(0, 1, NULL, &error));
    REFUSED(gcodec_decoder_new(NULL, NULL, &error));
    REFUSED(gcodec_decoder_new((const gcodec_limits *)((char *)&limits + 1), &decoder, &error));
    REFUSED(gcodec_feedback_new(NULL, &error));
    OK(gcodec_encoder_new(0, 1, &encoder, &error));
    OK(gcodec_decoder_new(&limits, &decoder, &error));
    OK(gcodec_feedback_new(&feedback, &error));
    gcodec_encoder_free(NULL);
    gcodec_decoder_free(NULL);
    gcodec_feedback_free(NULL);
    gcodec_report_free(NULL);
    /* A handle of another type is not freed. */
    gcodec_encoder_free((gcodec_encoder *)decoder);
    gcodec_report_free((gcodec_report *)encoder);

    REFUSED(gcodec_encoder_metadata(NULL, NULL, 0, &error));
    REFUSED(gcodec_encoder_metadata(encoder, NULL, 1, &error));
    entry.key = NULL;
    entry.value = "v";
    REFUSED(gcodec_encoder_metadata(encoder, &entry, 1, &error));
    REFUSED(gcodec_encoder_finish(NULL, &error));
    REFUSED(gcodec_encoder_finish((gcodec_encoder *)decoder, &error));
    CHECK(strstr(error.message, "no encoder"));
    REFUSED(gcodec_encoder_output(NULL, &data, &size, &error));
    REFUSED(gcodec_encoder_output(encoder, NULL, &size, &error));
    REFUSED(gcodec_encoder_output(encoder, &data, NULL, &error));
    REFUSED(gcodec_encoder_take(encoder, 1, &error));
    REFUSED(gcodec_encoder_take(NULL, 0, &error));
    REFUSED(gcodec_encoder_read(encoder, NULL, 8, &size, &error));
    REFUSED(gcodec_encoder_read(encoder, buffer, 8, NULL, &error));
    REFUSED(gcodec_encoder_read(encoder, buffer, SIZE_MAX, &size, &error));
    OK(gcodec_encoder_read(encoder, NULL, 0, &size, &error));
    CHECK(size == 0);

    REFUSED(gcodec_feedback_norm(NULL, &norm, &error));
    REFUSED(gcodec_feedback_norm(feedback, NULL, &error));
    REFUSED(gcodec_feedback_reset(NULL, &error));
    REFUSED(gcodec_feedback_begin(NULL, &error));
    REFUSED(gcodec_feedback_commit(NULL, &error));
    REFUSED(gcodec_feedback_undo((gcodec_feedback *)decoder, &error));
    REFUSED(gcodec_feedback_save(feedback, NULL, &error));
    REFUSED(gcodec_feedback_save(NULL, encoder, &error));
    REFUSED(gcodec_feedback_load(feedback, NULL, &error));
    REFUSED(gcodec_feedback_load(feedback, decoder, &error)); /* no update yet */

    REFUSED(gcodec_decoder_base(NULL, NULL, 0, &error));
    REFUSED(gcodec_decoder_base(decoder, NULL, 1, &error));
    REFUSED(gcodec_decoder_select(decoder, NULL, 1, &error));
    REFUSED(gcodec_decoder_feed(decoder, NULL, 1, &error));
    REFUSED(gcodec_decoder_feed(NULL, buffer, 1, &error));
    REFUSED(gcodec_decoder_needed(decoder, NULL, &error));
    REFUSED(gcodec_decoder_next(decoder, NULL, &error));
    REFUSED(gcodec_decoder_next(NULL, &event, &error));
    REFUSED(gcodec_decoder_decode(decoder, NULL, 1, &error));
    FAILS(GCODEC_STATUS_FORMAT, gcodec_decoder_decode(decoder, NULL, 0, &error));
    CHECK(!strcmp(error.kind, "truncated"));
    FAILS(GCODEC_STATUS_FORMAT, gcodec_decoder_finish(decoder, &error));
    OK(gcodec_decoder_needed(decoder, &number, &error));
    CHECK(number == 16);
    OK(gcodec_decoder_next(decoder, &event, &error));
    CHECK(event == GCODEC_EVENT_NEED_MORE);
    /* No update, no metadata. */
    REFUSED(gcodec_decoder_header(decoder, &header, &error));
    REFUSED(gcodec_decoder_count(decoder, &size, &error));
    REFUSED(gcodec_decoder_find(decoder, "w", &size, &error));
    REFUSED(gcodec_decoder_find(decoder, NULL, &size, &error));
    REFUSED(gcodec_decoder_tensor(decoder, 0, &lent, &error));
    REFUSED(gcodec_decoder_copy(decoder, 0, buffer, 8, &error));
    OK(gcodec_decoder_entry(decoder, 0, &entry, &size, &error));
    CHECK(size == 0);
    REFUSED(gcodec_decoder_entry(decoder, 0, NULL, &size, &error));

    updates(encoder);
    OK(gcodec_encoder_finish(encoder, &error));
    OK(gcodec_encoder_output(encoder, &data, &size, &error));
    OK(gcodec_decoder_decode(decoder, data, size, &error));
    FAILS(GCODEC_STATUS_SHORT, gcodec_decoder_copy(decoder, 0, buffer, 8, &error));
    FAILS(GCODEC_STATUS_SHORT, gcodec_decoder_copy(decoder, 0, NULL, 0, &error));
    REFUSED(gcodec_decoder_tensor(decoder, 1, &lent, &error));
    REFUSED(gcodec_decoder_tensor(decoder, SIZE_MAX, &lent, &error));
    REFUSED(gcodec_decoder_tensor(decoder, 0, NULL, &error));
    REFUSED(gcodec_decoder_header(decoder, NULL, &error));
    REFUSED(gcodec_decoder_count(decoder, NULL, &error));
    REFUSED(gcodec_decoder_find(decoder, "v", &size, &error));

    REFUSED(gcodec_report_new(NULL, 1, NULL, &report, &error));
    CHECK(report == NULL);
    REFUSED(gcodec_report_new(NULL, 0, NULL, NULL, &error));
    OK(gcodec_encoder_output(encoder, &data, &size, &error));
    OK(gcodec_report_new(data, size, NULL, &report, &error));
    REFUSED(gcodec_report_summary(report, NULL, &error));
    REFUSED(gcodec_report_summary(NULL, &summary, &error));
    REFUSED(gcodec_report_frame(report, 99, &frame, &error));
    REFUSED(gcodec_report_block(report, 99, &block, &error));
    REFUSED(gcodec_report_update(report, 1, &header, &size, &error));
    REFUSED(gcodec_report_update(report, 0, NULL, &size, &error));
    REFUSED(gcodec_report_tensor(report, 0, 1, &lent, &error));
    REFUSED(gcodec_report_tensor(report, 1, 0, &lent, &error));
    gcodec_report_free(report);

    /* Limits. */
    limits.max_frame_bytes = 1;
    gcodec_decoder *limited;
    OK(gcodec_decoder_new(&limits, &limited, &error));
    OK(gcodec_decoder_feed(limited, data, size, &error));
    FAILS(GCODEC_STATUS_LIMIT, gcodec_decoder_next(limited, &event, &error));
    CHECK(error.offset == 24 && error.frame == 0 && !strcmp(error.kind, "limit"));
    FAILS(GCODEC_STATUS_LIMIT, gcodec_decoder_next(limited, &event, &error)); /* it stays so */
    FAILS(GCODEC_STATUS_LIMIT, gcodec_decoder_finish(limited, &error));
    gcodec_decoder_free(limited);
    gcodec_feedback_free(feedback);
    gcodec_decoder_free(decoder);
    gcodec_encoder_free(encoder);
}

/* Cuts a stream at every byte, and changes every bit of it. */
static void damage(void) {
    const gcodec_tensor given = tensor();
    const gcodec_update update = update_of(&given);
    gcodec_encoder *encoder;
    const uint8_t *data;
    size_t size;
    OK(gcodec_encoder_new(0, 1, &encoder, &error));
    OK(gcodec_encoder_update(encoder, &update, &error));
    OK(gcodec_encoder_finish(encoder, &error));
    OK(gcodec_encoder_output(encoder, &data, &size, &error));
    unsigned accepted = 0;
    for (size_t i = 0; i < 9 * size; i++) {
        const size_t len = i < size ? i : size;
        uint8_t *bytes = malloc(len ? len : 1);
        memcpy(bytes, data, len);
        if (i >= size) bytes[(i - size) / 8] ^= 1 << (i - size) % 8;
        gcodec_decoder *decoder;
        gcodec_report *report;
        OK(gcodec_decoder_new(NULL, &decoder, &error));
        const gcodec_status status = gcodec_decoder_decode(decoder, bytes, len, &error);
        CHECK(status <= GCODEC_STATUS_LIMIT);
        CHECK(status == 0 || (error.offset <= len && error.message[0] != 0));
        /* The minor version may grow. */
        accepted += status == 0;
        CHECK(gcodec_report_new(bytes, len, NULL, &report, &error) == status);
        CHECK(report != NULL);
        gcodec_report_free(report);
        gcodec_decoder_free(decoder);
        free(bytes);
    }
    CHECK(accepted == 0);
    gcodec_encoder_free(encoder);
}

int main(void) {
    handles();
    damage();
    puts("every misuse and every damage has its status");
    return 0;
}
