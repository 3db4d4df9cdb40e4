/*
 * gcodec: a wire format for compressed model updates. `docs/c.md` is the guide.
 *
 * Results. A function that can fail returns a status and takes a place for an error as its last argument,
 * which may be NULL. Results are written to their places only if the status is GCODEC_STATUS_OK, except
 * where a comment says otherwise. A panic of the library becomes GCODEC_STATUS_PANIC; none crosses into the
 * caller. If the system has no memory left, the process is aborted, as by a failed allocation in Rust;
 * `gcodec_limits` bound what a stream can ask for.
 *
 * Ownership. A `.._new` function makes a handle that the caller owns and frees with `.._free`, once. Memory
 * that a function lends belongs to its handle; the comment says until when it is valid. Arguments are read
 * during the call only, except the elements of `gcodec_decoder_base`. Texts are UTF-8 and end with a zero
 * byte. NULL is allowed for a pointer whose count is 0.
 *
 * Threads. Different handles may be used on different threads at the same time. One handle may move between
 * threads, and is inside of one call at a time: a second call returns GCODEC_STATUS_BUSY and does nothing.
 * Memory that is lent may be read by any thread while it is valid. Encoding and decoding use a pool of
 * threads of this process (`gcodec_set_threads`). A process that was forked has a pool of its own; it must
 * not use handles that were inside of a call at the time of the fork.
 *
 * Checks. Each handle, pointer, count and number is checked as far as an address allows: a NULL, an address
 * that is not aligned, a handle of another type, a number out of its range give GCODEC_STATUS_INPUT. What
 * cannot be checked is the caller's promise: that addresses and counts are true, that memory which is read
 * does not change during the call, that no handle is used after it was freed.
 */

#ifndef GCODEC_H
#define GCODEC_H

/* Made by cbindgen from adapters/c/src: `cargo xtask c --header`. Do not edit. */

#include <stddef.h>
#include <stdint.h>


/*
 Version of this ABI: the major number in the upper 16 bits, the minor number in the lower 16. A program
 that was compiled with one major number works with every library of the same major number and an equal or
 greater minor number.
 */
#define GCODEC_ABI_VERSION 65536

/*
 Value of a field of `gcodec_error` or `gcodec_block` that is not known.
 */
#define GCODEC_UNKNOWN UINT64_MAX

/*
 Result of a call: zero, or the party at fault.
 */
enum gcodec_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /*
     The call did what it should.
     */
    GCODEC_STATUS_OK = 0,
    /*
     The bytes: the format does not allow them.
     */
    GCODEC_STATUS_FORMAT = 1,
    /*
     The bytes may be well formed, but this library does not know a feature that they use.
     */
    GCODEC_STATUS_UNSUPPORTED = 2,
    /*
     The bytes ask for more than `gcodec_limits` allow.
     */
    GCODEC_STATUS_LIMIT = 3,
    /*
     The caller: an argument, a tensor, or a base that is missing or differs.
     */
    GCODEC_STATUS_INPUT = 4,
    /*
     The caller's buffer is too short; nothing was written to it.
     */
    GCODEC_STATUS_SHORT = 5,
    /*
     Another thread is inside of a call with the same handle.
     */
    GCODEC_STATUS_BUSY = 6,
    /*
     A defect of the library. Every later call with the same handle returns this again; it can be freed.
     */
    GCODEC_STATUS_PANIC = 7,
    /*
     The system: reading or writing failed.
     */
    GCODEC_STATUS_IO = 8,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum gcodec_status gcodec_status;
#else
typedef int32_t gcodec_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 Result of `gcodec_decoder_next`: the event it found.
 */
enum gcodec_event
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /*
     Nothing: more bytes are needed.
     */
    GCODEC_EVENT_NEED_MORE = 0,
    /*
     A whole update: its header and tensors can be read.
     */
    GCODEC_EVENT_UPDATE = 1,
    /*
     Metadata: its entries can be read.
     */
    GCODEC_EVENT_METADATA = 2,
    /*
     The end of a segment. The stream may end here.
     */
    GCODEC_EVENT_END = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum gcodec_event gcodec_event;
#else
typedef uint32_t gcodec_event;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 Element types, by their numbers on the wire.
 */
enum gcodec_dtype
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    GCODEC_DTYPE_F64 = 1,
    GCODEC_DTYPE_F32 = 2,
    GCODEC_DTYPE_F16 = 3,
    GCODEC_DTYPE_BF16 = 4,
    GCODEC_DTYPE_F8E4M3FN = 5,
    GCODEC_DTYPE_F8E5M2 = 6,
    GCODEC_DTYPE_F8E4M3FNUZ = 7,
    GCODEC_DTYPE_F8E5M2FNUZ = 8,
    /*
     Two elements per byte, the first in the low half.
     */
    GCODEC_DTYPE_F4E2M1 = 9,
    GCODEC_DTYPE_I8 = 16,
    GCODEC_DTYPE_I16 = 17,
    GCODEC_DTYPE_I32 = 18,
    GCODEC_DTYPE_I64 = 19,
    GCODEC_DTYPE_U8 = 24,
    GCODEC_DTYPE_U16 = 25,
    GCODEC_DTYPE_U32 = 26,
    GCODEC_DTYPE_U64 = 27,
    GCODEC_DTYPE_BOOL = 32,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum gcodec_dtype gcodec_dtype;
#else
typedef uint32_t gcodec_dtype;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 A decoder of one stream, which may arrive in pieces. It lends the content of the last event.
 */
typedef struct gcodec_decoder gcodec_decoder;

/*
 An encoder of one stream. It keeps the bytes that it made until the caller has taken them.
 */
typedef struct gcodec_encoder gcodec_encoder;

/*
 The residuals of one sender, by tensor name.
 */
typedef struct gcodec_feedback gcodec_feedback;

/*
 A report on a stream. It does not change after it was made.
 */
typedef struct gcodec_report gcodec_report;

/*
 Limits of a reader on memory and time. `gcodec_limits_default` fills it in.
 */
typedef struct {
    /*
     Bytes in the body of one frame.
     */
    uint64_t max_frame_bytes;
    /*
     Tensors in one manifest.
     */
    uint64_t max_tensors;
    /*
     Dimensions of one tensor.
     */
    uint64_t max_rank;
    /*
     Bytes in one tensor name.
     */
    uint64_t max_name_bytes;
    /*
     Elements spanned by all blocks of one update part together, or by one index set.
     */
    uint64_t max_elements;
    /*
     Bytes of memory for decoding one frame, beyond the bytes that have arrived.
     */
    uint64_t max_alloc_bytes;
    /*
     Blocks in one update part.
     */
    uint64_t max_blocks;
    /*
     Bytes of a decompressed metadata or model payload.
     */
    uint64_t max_inflated_bytes;
    /*
     Manifests, index sets and models kept per stream, each.
     */
    uint64_t max_definitions;
} gcodec_limits;

/*
 Error of a call, in memory of the caller. A call that succeeds does not write to it.
 */
typedef struct {
    /*
     The status that the call returned.
     */
    gcodec_status status;
    /*
     Kind of the error, as the spec's vectors write it ("truncated", "limit", ..); ends with a zero byte.
     */
    char kind[32];
    /*
     Offset in the stream, in bytes, or `GCODEC_UNKNOWN`.
     */
    uint64_t offset;
    /*
     Number of the frame in the stream, or `GCODEC_UNKNOWN`.
     */
    uint64_t frame;
    /*
     Number of the block in its update, or `GCODEC_UNKNOWN`.
     */
    uint64_t block;
    /*
     Number of the tensor, or `GCODEC_UNKNOWN`.
     */
    uint64_t tensor;
    /*
     Text for people, UTF-8; ends with a zero byte, and is cut where it is longer.
     */
    char message[512];
} gcodec_error;

/*
 A named tensor in memory that somebody else owns.
 */
typedef struct {
    /*
     Name, UTF-8. The library's names end with a zero byte.
     */
    const char *name;
    /*
     Bytes of the name without a zero byte at its end; 0: the name ends with a zero byte.
     */
    uintptr_t name_len;
    /*
     Elements: row-major, little-endian.
     */
    const void *data;
    /*
     Bytes of the elements.
     */
    uintptr_t bytes;
    /*
     Dimensions.
     */
    const uint64_t *shape;
    /*
     Number of dimensions.
     */
    uintptr_t rank;
    /*
     A `gcodec_dtype`.
     */
    uint32_t dtype;
} gcodec_tensor;

/*
 Sender, step and kind of an update. All zeros say that nothing is known.
 */
typedef struct {
    /*
     Number of optimizer updates before this one.
     */
    uint64_t step;
    /*
     Number of communication rounds before this one.
     */
    uint64_t round;
    /*
     Number of the sender.
     */
    uint64_t sender;
    /*
     Number of senders, 0 if unknown.
     */
    uint64_t world;
    /*
     Number of senders whose updates are in this one, 0 if unknown.
     */
    uint64_t contributors;
    /*
     Number of local steps that the update covers, 0 if unknown.
     */
    uint64_t inner_steps;
    /*
     0: one sender's own update; 1: a sum of several; 2: a mean of several.
     */
    uint32_t reduction;
    /*
     1 if the update is a delta. An encoder ignores it.
     */
    uint32_t is_delta;
    /*
     Compression method, for people; ends with a zero byte. To an encoder, NULL means the codecs.
     */
    const char *label;
} gcodec_header;

/*
 A key and its value in metadata, UTF-8.
 */
typedef struct {
    /*
     The key; ends with a zero byte.
     */
    const char *key;
    /*
     The value; ends with a zero byte.
     */
    const char *value;
} gcodec_entry;

/*
 An update to encode. Zeros and NULLs are allowed where a field's comment says so.
 */
typedef struct {
    /*
     The tensors, each name once. They are read during the call only.
     */
    const gcodec_tensor *tensors;
    /*
     Number of tensors.
     */
    uintptr_t tensor_count;
    /*
     Codecs, such as "topk:density=0.01", each ending with a zero byte (docs/codecs.md).
     */
    const char *const *codecs;
    /*
     Number of codecs: 1 for all tensors, or one for each tensor.
     */
    uintptr_t codec_count;
    /*
     For the codec "delta": the tensors that the update replaces, found by their names. They are read
     during the call only. NULL: none.
     */
    const gcodec_tensor *base;
    /*
     Number of bases.
     */
    uintptr_t base_count;
    /*
     Residuals of this sender, which lossy codecs read and change. NULL: no error feedback.
     */
    gcodec_feedback *feedback;
    /*
     Sender, step and label. NULL: a header of zeros, with the codecs as its label.
     */
    const gcodec_header *header;
    /*
     0: a lossy codec refuses NaN and infinity; 1: it takes them for zero.
     */
    uint32_t zero_non_finite;
} gcodec_update;

/*
 Takes bytes of a stream in order: `len` bytes at `data`, valid during the call. Returns 0, or another
 number to stop. It must return: no exception and no `longjmp` may leave it, and it must not call with the
 handles of the call that calls it.
 */
typedef int32_t (*gcodec_put)(void *context,
                              const uint8_t *data,
                              uintptr_t len);

/*
 How much a report contains.
 */
typedef struct {
    /*
     Bytes of the stream.
     */
    uint64_t bytes;
    /*
     Segments that end.
     */
    uint64_t segments;
    /*
     Number of frames.
     */
    uintptr_t frames;
    /*
     Number of updates.
     */
    uintptr_t updates;
    /*
     Number of blocks of all updates together.
     */
    uintptr_t blocks;
} gcodec_summary;

/*
 A frame of a stream.
 */
typedef struct {
    /*
     Number of the frame.
     */
    uint64_t number;
    /*
     Offset of its header in the stream.
     */
    uint64_t offset;
    /*
     Bytes of header and body.
     */
    uint64_t bytes;
    /*
     Number of its kind in the registry.
     */
    uint32_t kind;
    /*
     Name of its kind in the registry, lent, or NULL if the kind is not known.
     */
    const char *kind_name;
} gcodec_frame;

/*
 A block of an update.
 */
typedef struct {
    /*
     Number of the block's update in the report.
     */
    uintptr_t update;
    /*
     Number of its frame in the stream.
     */
    uint64_t frame;
    /*
     Number of its first tensor in the update.
     */
    uint64_t tensor;
    /*
     Number of tensors that it spans.
     */
    uint64_t tensors;
    /*
     First element that it spans, inside of the first tensor.
     */
    uint64_t start;
    /*
     Number of elements that it spans.
     */
    uint64_t elements;
    /*
     Number of elements that it has values for.
     */
    uint64_t kept;
    /*
     Bytes of the block.
     */
    uint64_t bytes;
    /*
     Bytes of its positions.
     */
    uint64_t support_bytes;
    /*
     Bytes of its values.
     */
    uint64_t values_bytes;
    /*
     Kind of its positions, by its name in the registry, lent.
     */
    const char *support;
    /*
     Kind of its values, by its name in the registry, lent.
     */
    const char *values;
} gcodec_block;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Returns the `GCODEC_ABI_VERSION` of the library. Any thread may call it at any time.
 */
uint32_t gcodec_abi_version(void);

/*
 Returns the library's version, for people. The text is constant. Any thread may call it at any time.
 */
const char *gcodec_version(void);

/*
 Makes a decoder at the beginning of a stream, which the caller frees with `gcodec_decoder_free`. `limits`:
 NULL means the defaults.
 */
gcodec_status gcodec_decoder_new(const gcodec_limits *limits,
                                 gcodec_decoder **out,
                                 gcodec_error *error);

/*
 Sets the bases of the deltas that begin after this call, by their names. Names, shapes and the array are
 copied. The elements are borrowed: they stay in place and unchanged until the decoder is freed, or until
 it has other bases and a later update has begun.
 */
gcodec_status gcodec_decoder_base(gcodec_decoder *decoder,
                                  const gcodec_tensor *base,
                                  uintptr_t count,
                                  gcodec_error *error);

/*
 Lets the updates that begin after this call contain only the tensors of these names, which are copied.
 Names that an update lacks are ignored. A count of 0 means all tensors.
 */
gcodec_status gcodec_decoder_select(gcodec_decoder *decoder,
                                    const char *const *names,
                                    uintptr_t count,
                                    gcodec_error *error);

/*
 Gives the next bytes of the stream, which are copied. What the decoder was lending is still valid. Call
 `gcodec_decoder_next` until it needs more before giving more: the decoder then keeps at most one frame.
 */
gcodec_status gcodec_decoder_feed(gcodec_decoder *decoder,
                                  const uint8_t *bytes,
                                  uintptr_t count,
                                  gcodec_error *error);

/*
 Writes to `out` how many bytes are missing for the next frame: 0 if `gcodec_decoder_next` has something
 to say.
 */
gcodec_status gcodec_decoder_needed(const gcodec_decoder *decoder,
                                    uint64_t *out,
                                    gcodec_error *error);

/*
 Reads up to the next event. What the decoder was lending is no longer valid. After an error of the bytes
 or of a limit, every later call returns the same error. After `GCODEC_STATUS_INPUT` (a base that is
 missing or differs) the update is given up, and later updates can be read.
 */
gcodec_status gcodec_decoder_next(gcodec_decoder *decoder,
                                  gcodec_event *event,
                                  gcodec_error *error);

/*
 Checks that the stream is complete: the last byte given was the last byte of a segment.
 */
gcodec_status gcodec_decoder_finish(gcodec_decoder *decoder,
                                    gcodec_error *error);

/*
 Decodes the last update of a whole stream in memory, which is read during the call only, without a copy.
 Every frame is checked. The decoder then lends the update as after `GCODEC_EVENT_UPDATE`. Bytes that
 `gcodec_decoder_feed` was given have no part in it.
 */
gcodec_status gcodec_decoder_decode(gcodec_decoder *decoder,
                                    const uint8_t *bytes,
                                    uintptr_t count,
                                    gcodec_error *error);

/*
 Writes the header of the decoder's update to `out`. Its label is lent.
 */
gcodec_status gcodec_decoder_header(const gcodec_decoder *decoder,
                                    gcodec_header *out,
                                    gcodec_error *error);

/*
 Writes the number of tensors of the decoder's update to `out`.
 */
gcodec_status gcodec_decoder_count(const gcodec_decoder *decoder,
                                   uintptr_t *out,
                                   gcodec_error *error);

/*
 Writes the number of the tensor `name` of the decoder's update to `out`.
 */
gcodec_status gcodec_decoder_find(const gcodec_decoder *decoder,
                                  const char *name,
                                  uintptr_t *out,
                                  gcodec_error *error);

/*
 Writes the tensor `index` of the decoder's update to `out`. Name, shape and elements are lent: they belong
 to the decoder, which overwrites them for the next event.
 */
gcodec_status gcodec_decoder_tensor(const gcodec_decoder *decoder,
                                    uintptr_t index,
                                    gcodec_tensor *out,
                                    gcodec_error *error);

/*
 Copies the elements of the tensor `index` into the caller's buffer. Returns `GCODEC_STATUS_SHORT` if
 `capacity` is less than the tensor's bytes.
 */
gcodec_status gcodec_decoder_copy(const gcodec_decoder *decoder,
                                  uintptr_t index,
                                  uint8_t *buffer,
                                  uintptr_t capacity,
                                  gcodec_error *error);

/*
 Writes the entry `index` of the decoder's metadata to `out`, and to `count` how many there are: 0 if the
 last event was not metadata. Both texts are lent. `out` is not written if there is no such entry.
 */
gcodec_status gcodec_decoder_entry(const gcodec_decoder *decoder,
                                   uintptr_t index,
                                   gcodec_entry *out,
                                   uintptr_t *count,
                                   gcodec_error *error);

/*
 Frees a decoder and all that it was lending. Does nothing for NULL.
 */
void gcodec_decoder_free(gcodec_decoder *decoder);

/*
 Makes an encoder at the beginning of a stream, which the caller frees with `gcodec_encoder_free`.
 `part_bytes`: approximate bytes of values in one frame of an update; 0 means 64 MiB. `with_index`: 1 if
 each segment ends in an index, for random access; 0 for a stream that never ends.
 */
gcodec_status gcodec_encoder_new(uint64_t part_bytes,
                                 uint32_t with_index,
                                 gcodec_encoder **out,
                                 gcodec_error *error);

/*
 Makes an encoder as `gcodec_encoder_new` does, which writes only what readers of the core profile of the
 format know: the same elements, in other kinds where it must. It refuses updates that have no such form:
 deltas, and the codecs `demo` and `powersgd`.
 */
gcodec_status gcodec_encoder_new_core(uint64_t part_bytes,
                                      uint32_t with_index,
                                      gcodec_encoder **out,
                                      gcodec_error *error);

/*
 Encodes an update, which is then ready to be taken. An encoder or residuals whose call fails do not
 change.
 */
gcodec_status gcodec_encoder_update(gcodec_encoder *encoder,
                                    const gcodec_update *update,
                                    gcodec_error *error);

/*
 Encodes an update and gives its bytes to `put`: first those that are ready to be taken, then part by part,
 each before the next is made (`part_bytes` of `gcodec_encoder_new`). Without residuals, this takes the
 memory of one part, however large the update. `context` is the first argument of `put`.

 A call that fails leaves the encoder as it was before the update, without bytes that are ready if `put`
 took them; the parts of the update that `put` has taken are not of the stream: a file ends before them, a
 connection ends. `GCODEC_STATUS_IO` says that `put` stopped; the residuals have then changed, and
 `gcodec_feedback_begin` before and `gcodec_feedback_undo` after the call restore them.
 */
gcodec_status gcodec_encoder_write(gcodec_encoder *encoder,
                                   const gcodec_update *update,
                                   gcodec_put put,
                                   void *context,
                                   gcodec_error *error);

/*
 Encodes metadata, which is then ready to be taken. `entries` are read during the call only.
 */
gcodec_status gcodec_encoder_metadata(gcodec_encoder *encoder,
                                      const gcodec_entry *entries,
                                      uintptr_t count,
                                      gcodec_error *error);

/*
 Ends the stream's segment: its index, if enabled, and its end are then ready to be taken. Another segment
 may follow.
 */
gcodec_status gcodec_encoder_finish(gcodec_encoder *encoder,
                                    gcodec_error *error);

/*
 Lends the bytes that are ready: `data` and `len` say where they are. They belong to the encoder and are
 valid until its next call other than this one. `gcodec_encoder_take` takes them.
 */
gcodec_status gcodec_encoder_output(gcodec_encoder *encoder,
                                    const uint8_t **data,
                                    uintptr_t *len,
                                    gcodec_error *error);

/*
 Forgets the first `bytes` of the bytes that are ready.
 */
gcodec_status gcodec_encoder_take(gcodec_encoder *encoder,
                                  uintptr_t bytes,
                                  gcodec_error *error);

/*
 Copies bytes that are ready into the caller's buffer and forgets them: `written` are the smaller of
 `capacity` and of those that are ready. Zero says that all have been taken.
 */
gcodec_status gcodec_encoder_read(gcodec_encoder *encoder,
                                  uint8_t *buffer,
                                  uintptr_t capacity,
                                  uintptr_t *written,
                                  gcodec_error *error);

/*
 Frees an encoder, with bytes that were not taken. Does nothing for NULL.
 */
void gcodec_encoder_free(gcodec_encoder *encoder);

/*
 Makes an empty memory, which the caller frees with `gcodec_feedback_free`.
 */
gcodec_status gcodec_feedback_new(gcodec_feedback **out,
                                  gcodec_error *error);

/*
 Writes the Euclidean norm of all residuals together to `out`.
 */
gcodec_status gcodec_feedback_norm(const gcodec_feedback *feedback,
                                   double *out,
                                   gcodec_error *error);

/*
 Removes all residuals and all state of codecs.
 */
gcodec_status gcodec_feedback_reset(gcodec_feedback *feedback,
                                    gcodec_error *error);

/*
 Keeps what later updates replace, until `gcodec_feedback_commit` or `gcodec_feedback_undo`: for a sender
 that learns only later whether its update arrived. Further calls before those two do nothing, so that
 several updates form a whole.
 */
gcodec_status gcodec_feedback_begin(gcodec_feedback *feedback,
                                    gcodec_error *error);

/*
 Accepts the updates since `gcodec_feedback_begin`.
 */
gcodec_status gcodec_feedback_commit(gcodec_feedback *feedback,
                                     gcodec_error *error);

/*
 Restores the residuals from before the updates since `gcodec_feedback_begin`.
 */
gcodec_status gcodec_feedback_undo(gcodec_feedback *feedback,
                                   gcodec_error *error);

/*
 Encodes the residuals and the state of codecs as an update of `encoder`, without loss, for a checkpoint.
 */
gcodec_status gcodec_feedback_save(const gcodec_feedback *feedback,
                                   gcodec_encoder *encoder,
                                   gcodec_error *error);

/*
 Replaces the residuals by those in the decoder's update, which `gcodec_feedback_save` made.
 */
gcodec_status gcodec_feedback_load(gcodec_feedback *feedback,
                                   const gcodec_decoder *decoder,
                                   gcodec_error *error);

/*
 Frees the residuals. Does nothing for NULL.
 */
void gcodec_feedback_free(gcodec_feedback *feedback);

/*
 Writes the default limits to `out`. Any thread may call it at any time.
 */
gcodec_status gcodec_limits_default(gcodec_limits *out,
                                    gcodec_error *error);

/*
 Reads a whole stream, during the call only, and decodes every block. The caller frees the report with
 `gcodec_report_free`. If the stream is damaged, the call returns the first error, and the report has all
 that could be read; `out` is NULL only after `GCODEC_STATUS_INPUT` or `GCODEC_STATUS_PANIC` about the
 arguments. `limits`: NULL means the defaults. A report takes a few hundred bytes for each frame and block.
 */
gcodec_status gcodec_report_new(const uint8_t *bytes,
                                uintptr_t count,
                                const gcodec_limits *limits,
                                gcodec_report **out,
                                gcodec_error *error);

/*
 Writes how much the report contains to `out`.
 */
gcodec_status gcodec_report_summary(const gcodec_report *report,
                                    gcodec_summary *out,
                                    gcodec_error *error);

/*
 Writes a frame to `out`.
 */
gcodec_status gcodec_report_frame(const gcodec_report *report,
                                  uintptr_t index,
                                  gcodec_frame *out,
                                  gcodec_error *error);

/*
 Writes the header of an update to `header`, and the number of its tensors to `tensors`. The label is lent.
 */
gcodec_status gcodec_report_update(const gcodec_report *report,
                                   uintptr_t index,
                                   gcodec_header *header,
                                   uintptr_t *tensors,
                                   gcodec_error *error);

/*
 Writes a tensor of an update to `out`. Name and shape are lent; `data` is NULL, and `bytes` is what its
 elements would take.
 */
gcodec_status gcodec_report_tensor(const gcodec_report *report,
                                   uintptr_t update,
                                   uintptr_t index,
                                   gcodec_tensor *out,
                                   gcodec_error *error);

/*
 Writes a block to `out`. Its texts are lent. `kept` is `GCODEC_UNKNOWN` if the block is damaged.
 */
gcodec_status gcodec_report_block(const gcodec_report *report,
                                  uintptr_t index,
                                  gcodec_block *out,
                                  gcodec_error *error);

/*
 Frees a report and all that it was lending. Does nothing for NULL.
 */
void gcodec_report_free(gcodec_report *report);

/*
 Sets the number of threads that all later calls of this process use together; 0: one for each core. Any
 thread may call it at any time. Threads of an earlier number are never freed: call it once, at the start.
 */
void gcodec_set_threads(uint32_t threads);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* GCODEC_H */
