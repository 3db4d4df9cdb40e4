/* Reads every vector of spec/vectors/index.json, which has one on each line, and compares the verdict. A
 * valid vector may need a base, an index set or a model that this program does not have: `input` and
 * `unknown_reference` of its tensors are then the verdict of the Rust reader too (tests/vectors.rs). */
#include "check.h"

static gcodec_error error;

/* Returns the text behind `key` of a line, or NULL. */
static char *after(char *line, const char *key) {
    char *found = strstr(line, key);
    return found ? found + strlen(key) : NULL;
}

static int digit(char c) { return c <= '9' ? c - '0' : c - 'a' + 10; }

/* Replaces hexadecimal digits by their bytes. Returns the number of bytes. */
static size_t unhex(char *text) {
    size_t len = 0;
    while (text[2 * len] != '"') {
        text[len] = (char)(digit(text[2 * len]) << 4 | digit(text[2 * len + 1]));
        len++;
    }
    return len;
}

static void limit(char *line, const char *name, uint64_t *field) {
    char key[64];
    snprintf(key, sizeof key, "\"%s\":", name);
    char *found = after(line, key);
    if (found) *field = strtoull(found, NULL, 10);
}

static gcodec_limits limits_of(char *line) {
    gcodec_limits limits;
    OK(gcodec_limits_default(&limits, &error));
    char *found = after(line, "\"limits\":{");
    if (!found) return limits;
    char text[512] = {0};
    memcpy(text, found, strcspn(found, "}") < sizeof text ? strcspn(found, "}") : sizeof text - 1);
    limit(text, "max_frame_bytes", &limits.max_frame_bytes);
    limit(text, "max_tensors", &limits.max_tensors);
    limit(text, "max_rank", &limits.max_rank);
    limit(text, "max_name_bytes", &limits.max_name_bytes);
    limit(text, "max_elements", &limits.max_elements);
    limit(text, "max_alloc_bytes", &limits.max_alloc_bytes);
    limit(text, "max_blocks", &limits.max_blocks);
    limit(text, "max_inflated_bytes", &limits.max_inflated_bytes);
    limit(text, "max_definitions", &limits.max_definitions);
    return limits;
}

/* Decodes a stream in pieces. Returns the status of the call that ended it. */
static gcodec_status push(const uint8_t *bytes, size_t len, size_t piece, const gcodec_limits *limits) {
    gcodec_decoder *decoder;
    OK(gcodec_decoder_new(limits, &decoder, &error));
    gcodec_status status = GCODEC_STATUS_OK;
    for (size_t at = 0; at < len && status == GCODEC_STATUS_OK; at += piece) {
        gcodec_event event = GCODEC_EVENT_END;
        OK(gcodec_decoder_feed(decoder, bytes + at, len - at < piece ? len - at : piece, &error));
        while (status == GCODEC_STATUS_OK && event != GCODEC_EVENT_NEED_MORE) {
            status = gcodec_decoder_next(decoder, &event, &error);
        }
    }
    if (status == GCODEC_STATUS_OK) status = gcodec_decoder_finish(decoder, &error);
    gcodec_decoder_free(decoder);
    return status;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    FILE *file = fopen(argv[1], "rb");
    CHECK(file != NULL);
    size_t capacity = 1 << 24;
    char *line = malloc(capacity);
    unsigned valid = 0, invalid = 0, wrong = 0;
    while (fgets(line, (int)capacity, file)) {
        char *hex = after(line, "\"hex\":\"");
        if (!hex) continue;
        const int is_valid = strstr(line, "\"result\":\"valid\"") != NULL;
        const int in_tensors = strstr(line, "\"stage\":\"tensors\"") != NULL;
        const gcodec_limits limits = limits_of(line);
        char id[80] = {0}, kind[40] = {0};
        sscanf(strstr(line, "\"id\":\""), "\"id\":\"%79[^\"]", id);
        if (!is_valid) sscanf(strstr(line, "\"error\":{"), "\"error\":{\"kind\":\"%39[^\"]", kind);
        /* A copy of exactly these bytes: a read behind them is an error of the sanitizer. */
        const size_t len = unhex(hex);
        uint8_t *bytes = malloc(len ? len : 1);
        memcpy(bytes, hex, len);
        gcodec_report *report;
        gcodec_decoder *decoder;
        const gcodec_status inspected = gcodec_report_new(bytes, len, &limits, &report, &error);
        const gcodec_error found = error;
        gcodec_report_free(report);
        if (is_valid || in_tensors ? inspected != 0 : inspected == 0 || strcmp(found.kind, kind)) {
            fprintf(stderr, "%s: %s\n", id, inspected ? found.message : "accepted");
            wrong++;
        }
        OK(gcodec_decoder_new(&limits, &decoder, &error));
        const gcodec_status whole = gcodec_decoder_decode(decoder, bytes, len, &error);
        if (is_valid ? whole != 0 && whole != GCODEC_STATUS_INPUT && whole != GCODEC_STATUS_LIMIT : whole == 0) {
            fprintf(stderr, "%s: as a whole: %s\n", id, whole ? error.message : "accepted");
            wrong++;
        }
        gcodec_decoder_free(decoder);
        const size_t pieces[] = {1, 7, len ? len : 1};
        for (int i = 0; i < 3; i++) {
            const gcodec_status status = push(bytes, len, pieces[i], &limits);
            const int refused = status != GCODEC_STATUS_INPUT && status != GCODEC_STATUS_LIMIT;
            if (is_valid ? status != 0 && refused : status == 0) {
                fprintf(stderr, "%s: in pieces: %s\n", id, status ? error.message : "accepted");
                wrong++;
            }
        }
        free(bytes);
        is_valid ? valid++ : invalid++;
    }
    free(line);
    fclose(file);
    CHECK(valid > 100 && invalid > 100 && wrong == 0);
    printf("%u valid and %u invalid vectors have the expected verdict\n", valid, invalid);
    return 0;
}
