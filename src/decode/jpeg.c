/* SPDX-License-Identifier: MIT */
/*
 * JPEG by libjpeg-turbo, one codec of decode.c: pixels of a region, bit-equal to the full-frame decode with the
 * library's default settings (accurate integer DCT, fancy upsampling). The only file that includes jpeglib.h.
 *
 * The short way to a region crops columns and skips rows inside the library; what that needs in order to stay exact is
 * said at rows_by_region(). Whatever warns or fails on it is decoded again from row 0 by the plain way, and only that
 * second outcome is reported, so that pixels and verdict never depend on the way.
 *
 * Memory: the library's own manager makes the few permanent objects when the codec is created and nothing more; then
 * our manager takes its place. Ours gives out zeroed pieces of one reserved range, front to back, and takes all of them
 * back at the next header: no malloc per picture, a hard bound, no bytes of an earlier picture (its Huffman and
 * quantisation tables included, which the library would otherwise lend to a picture without tables).
 *
 * Never prints, never exits: errors leave the library by longjmp, with nothing to release but the arena. One thread
 * per decoder.
 */
#include "decode/codec.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>

#include <jerror.h>

#include "base/util.h"
#include "decode/exif.h"

#define WARNING_TEXT JMSG_LENGTH_MAX
#define MARKER_SOS 0xDA

/* The library's opaque type: coefficients of a whole component, always all in memory. */
struct jvirt_barray_control {
    struct jvirt_barray_control *next;
    JDIMENSION blocks_per_row, rows;
    JBLOCKARRAY row; /* NULL until realised */
};

/* What was wrong with the picture so far. */
struct damage {
    long warnings;
    char text[WARNING_TEXT]; /* the first one */
    size_t offset;
    bool end;      /* the bytes ended too early */
    bool lost;     /* coefficients are missing or may be wrong */
    bool complete; /* the verdict: damaged, nothing lost */
};

struct jpeg {
    struct jpeg_decompress_struct codec;
    struct jpeg_error_mgr errors;
    struct jpeg_source_mgr source;
    struct jpeg_progress_mgr progress;
    struct jpeg_memory_mgr memory;          /* ours */
    struct jpeg_memory_mgr *library_memory; /* the library's own, NULL while there is no codec */
    struct jvirt_barray_control *coefficients;
    jmp_buf escape;
    struct arena *arena;
    const struct decode_limits *limits;

    const uint8_t *bytes; /* NULL: no picture is open */
    size_t length;
    uint32_t width, height;
    bool header_read; /* and nothing after it */
    bool in_header;
    struct damage damage;
    struct diag failure; /* of the last step that failed */

    /* the read in hand */
    uint32_t channels;
    struct box region;
    const struct picture *picture;
    uint8_t *row;  /* room for one full row of 4 components */
    bool shortcut; /* columns were cropped or rows skipped */
};

static const char *version(void);

/* --- failures and warnings ------------------------------------------------------------------------------------- */

static struct jpeg *jpeg_of(j_common_ptr codec) {
    return codec->client_data;
}

/* Where the library reads; the bytes that stand in for a missing end count as the end. */
static size_t input_offset(const struct jpeg *d) {
    const uint8_t *next = d->source.next_input_byte;
    uintptr_t at = (uintptr_t)next, first = (uintptr_t)d->bytes;
    return at >= first && at <= first + d->length ? at - first : d->length;
}

static const char *coding_name(int sof) {
    switch (sof) {
    case 3:
        return "lossless";
    case 11:
        return "lossless arithmetic";
    case 5:
    case 6:
    case 7:
    case 13:
    case 14:
    case 15:
        return "hierarchical";
    default:
        return "reserved";
    }
}

static void explain_error(struct jpeg *d) {
    struct jpeg_error_mgr *e = &d->errors;
    char text[WARNING_TEXT];
    switch (e->msg_code) {
    case JERR_BAD_PRECISION:
        diag_set(&d->failure, -ENOTSUP, "JPEG of %d bits a sample; only 8 bits are supported", e->msg_parm.i[0]);
        return;
    case JERR_SOF_UNSUPPORTED: {
        int sof = e->msg_parm.i[0] - 0xC0;
        diag_set(&d->failure, -ENOTSUP, "%s JPEG coding (SOF%d) is not supported by %s", coding_name(sof), sof,
                 version());
        return;
    }
#if JPEG_LIB_VERSION < 70
    case JERR_ARITH_NOTIMPL:
        diag_set(&d->failure, -ENOTSUP, "arithmetic JPEG coding is not supported by this build of %s", version());
        return;
#endif
    default:
        e->format_message((j_common_ptr)&d->codec, text);
        diag_set(&d->failure, -EBADMSG, "%s, near byte %zu of %zu", text, input_offset(d), d->length);
    }
}

static _Noreturn void on_error(j_common_ptr codec) {
    struct jpeg *d = jpeg_of(codec);
    explain_error(d);
    longjmp(d->escape, 1);
}

static _Noreturn void fail(struct jpeg *d) {
    longjmp(d->escape, 1); /* d->failure was set */
}

static void note_damage(struct jpeg *d, int code, const char *text) {
    struct damage *damage = &d->damage;
    if (damage->warnings++ == 0) {
        snprintf(damage->text, sizeof damage->text, "%s", text);
        damage->offset = input_offset(d);
    }
    if (code == JWRN_JPEG_EOF)
        damage->end = true;
    if (d->in_header ? code == JWRN_JPEG_EOF : code != JWRN_JPEG_EOF && code != JWRN_NOT_SEQUENTIAL)
        damage->lost = true;
}

static void on_message(j_common_ptr codec, int level) {
    struct jpeg *d = jpeg_of(codec);
    char text[WARNING_TEXT] = "";
    if (level >= 0)
        return; /* a trace */
    if (d->damage.warnings == 0)
        d->errors.format_message(codec, text);
    note_damage(d, d->errors.msg_code, text);
}

static void on_output(j_common_ptr codec) {
    (void)codec;
}

static void on_error_reset(j_common_ptr codec) {
    (void)codec; /* damage is forgotten in rewind_input(), before the header */
}

/* Runs a step that calls the library. False: it failed, and d->failure says why. */
static bool guarded(struct jpeg *d, void (*step)(struct jpeg *)) {
    if (setjmp(d->escape) != 0)
        return false;
    step(d);
    return true;
}

/* --- memory ---------------------------------------------------------------------------------------------------- */

static void *take(struct jpeg *d, uint64_t bytes) {
    void *piece = arena_take(d->arena, bytes);
    if (!piece) {
        arena_is_short(d->arena, d->codec.image_width, d->codec.image_height, bytes, &d->failure);
        fail(d);
    }
    return piece;
}

static void *memory_take(j_common_ptr codec, int pool, size_t bytes) {
    (void)pool; /* both pools live until the next header */
    return take(jpeg_of(codec), bytes);
}

/* `rows` pointers to rows of `row_bytes` each. */
static void **memory_rows(struct jpeg *d, uint64_t row_bytes, JDIMENSION rows) {
    row_bytes = align_up(row_bytes, ARENA_ALIGN);
    uint64_t bytes = UINT64_MAX;
    mul_u64(row_bytes, rows, &bytes);
    void **row = take(d, (uint64_t)rows * sizeof *row);
    uint8_t *data = take(d, bytes);
    for (JDIMENSION i = 0; i < rows; i++)
        row[i] = data + (size_t)row_bytes * i;
    return row;
}

static JSAMPARRAY memory_samples(j_common_ptr codec, int pool, JDIMENSION samples, JDIMENSION rows) {
    (void)pool;
    return (JSAMPARRAY)memory_rows(jpeg_of(codec), samples, rows);
}

static JBLOCKARRAY memory_blocks(j_common_ptr codec, int pool, JDIMENSION blocks, JDIMENSION rows) {
    (void)pool;
    return (JBLOCKARRAY)memory_rows(jpeg_of(codec), (uint64_t)blocks * sizeof(JBLOCK), rows);
}

/* Only colour quantisation asks for these. */
static jvirt_sarray_ptr memory_want_samples(j_common_ptr codec, int pool, boolean zero, JDIMENSION samples,
                                            JDIMENSION rows, JDIMENSION most) {
    (void)pool, (void)zero, (void)samples, (void)rows, (void)most;
    ERREXIT(codec, JERR_NOT_COMPILED);
    return NULL;
}

static JSAMPARRAY memory_get_samples(j_common_ptr codec, jvirt_sarray_ptr array, JDIMENSION first, JDIMENSION rows,
                                     boolean writable) {
    (void)array, (void)first, (void)rows, (void)writable;
    ERREXIT(codec, JERR_BAD_VIRTUAL_ACCESS);
    return NULL;
}

static jvirt_barray_ptr memory_want_blocks(j_common_ptr codec, int pool, boolean zero, JDIMENSION blocks,
                                           JDIMENSION rows, JDIMENSION most) {
    struct jpeg *d = jpeg_of(codec);
    struct jvirt_barray_control *array = take(d, sizeof *array);
    (void)pool, (void)zero, (void)most; /* always zeroed */
    *array = (struct jvirt_barray_control){d->coefficients, blocks, rows, NULL};
    d->coefficients = array;
    return array;
}

static void memory_realise(j_common_ptr codec) {
    struct jpeg *d = jpeg_of(codec);
    for (struct jvirt_barray_control *array = d->coefficients; array; array = array->next) {
        if (!array->row)
            array->row = memory_blocks(codec, JPOOL_IMAGE, array->blocks_per_row, array->rows);
    }
}

static JBLOCKARRAY memory_get_blocks(j_common_ptr codec, jvirt_barray_ptr array, JDIMENSION first, JDIMENSION rows,
                                     boolean writable) {
    (void)writable;
    if (!array->row || first > array->rows || rows > array->rows - first)
        ERREXIT(codec, JERR_BAD_VIRTUAL_ACCESS);
    return array->row + first;
}

static void memory_free_pool(j_common_ptr codec, int pool) {
    (void)codec, (void)pool; /* rewind_input() takes everything back */
}

static void memory_destroy(j_common_ptr codec) {
    (void)codec; /* the library's own manager is put back before the codec is destroyed */
}

static const struct jpeg_memory_mgr memory_methods = {
    .alloc_small = memory_take,
    .alloc_large = memory_take,
    .alloc_sarray = memory_samples,
    .alloc_barray = memory_blocks,
    .request_virt_sarray = memory_want_samples,
    .request_virt_barray = memory_want_blocks,
    .realize_virt_arrays = memory_realise,
    .access_virt_sarray = memory_get_samples,
    .access_virt_barray = memory_get_blocks,
    .free_pool = memory_free_pool,
    .self_destruct = memory_destroy,
    .max_memory_to_use = 0,
    .max_alloc_chunk = 1000000000,
};

/* --- input ----------------------------------------------------------------------------------------------------- */

static void source_init(j_decompress_ptr codec) {
    (void)codec;
}

/* Past the last byte: say so and go on with an end-of-image marker. */
static boolean source_fill(j_decompress_ptr codec) {
    static const JOCTET end[2] = {0xFF, JPEG_EOI};
    struct jpeg *d = jpeg_of((j_common_ptr)codec);
    d->source.next_input_byte = d->bytes + d->length;
    WARNMS(codec, JWRN_JPEG_EOF);
    d->source.next_input_byte = end;
    d->source.bytes_in_buffer = sizeof end;
    return TRUE;
}

static void source_skip(j_decompress_ptr codec, long count) {
    struct jpeg_source_mgr *source = codec->src;
    if (count <= 0)
        return;
    if ((size_t)count > source->bytes_in_buffer) {
        source_fill(codec);
        return;
    }
    source->next_input_byte += count;
    source->bytes_in_buffer -= (size_t)count;
}

/* --- steps under guarded() ------------------------------------------------------------------------------------- */

/* Called once per strip of every scan. */
static void on_progress(j_common_ptr codec) {
    struct jpeg *d = jpeg_of(codec);
    if (d->codec.input_scan_number >= 0 && (uint32_t)d->codec.input_scan_number > d->limits->max_scans) {
        diag_set(&d->failure, -EFBIG, "scan limit %u exceeded (raise max-scans)", d->limits->max_scans);
        fail(d);
    }
}

static void step_create(struct jpeg *d) {
    jpeg_std_error(&d->errors);
    d->errors.error_exit = on_error;
    d->errors.emit_message = on_message;
    d->errors.output_message = on_output;
    d->errors.reset_error_mgr = on_error_reset;
    d->codec.err = &d->errors;
    d->codec.client_data = d;
    jpeg_create_decompress(&d->codec);
    d->library_memory = d->codec.mem;
    d->memory = memory_methods;
    d->codec.mem = &d->memory;
    d->source.init_source = source_init;
    d->source.fill_input_buffer = source_fill;
    d->source.skip_input_data = source_skip;
    d->source.resync_to_restart = jpeg_resync_to_restart;
    d->source.term_source = source_init;
    d->codec.src = &d->source;
    d->progress.progress_monitor = on_progress;
    d->codec.progress = &d->progress;
}

/* Back to the first byte, with nothing kept of what came before. */
static void rewind_input(struct jpeg *d) {
    jpeg_abort_decompress(&d->codec);
    for (int i = 0; i < NUM_QUANT_TBLS; i++)
        d->codec.quant_tbl_ptrs[i] = NULL;
    for (int i = 0; i < NUM_HUFF_TBLS; i++)
        d->codec.dc_huff_tbl_ptrs[i] = d->codec.ac_huff_tbl_ptrs[i] = NULL;
    d->coefficients = NULL;
    arena_rewind(d->arena);
    d->damage = (struct damage){0};
    d->source.next_input_byte = d->bytes;
    d->source.bytes_in_buffer = d->length;
}

static void step_header(struct jpeg *d) {
    rewind_input(d);
    d->codec.image_width = d->codec.image_height = 0;
    d->in_header = true;
    jpeg_read_header(&d->codec, TRUE);
    d->in_header = false;
    if (d->codec.data_precision != 8) {
        d->errors.msg_parm.i[0] = d->codec.data_precision;
        d->errors.msg_code = JERR_BAD_PRECISION;
        on_error((j_common_ptr)&d->codec);
    }
    d->header_read = true;
}

static J_COLOR_SPACE output_space(const struct jpeg *d) {
    if (d->codec.num_components == 4)
        return JCS_CMYK;
    return d->channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
}

/* From the header to the first row. A file of several scans is decoded to coefficients here. */
static void step_start(struct jpeg *d) {
    d->header_read = false;
    if (d->codec.image_width != d->width || d->codec.image_height != d->height) {
        diag_set(&d->failure, -ESTALE, "the bytes changed while they were read");
        fail(d);
    }
    d->codec.out_color_space = output_space(d);
    d->codec.dct_method = JDCT_ISLOW;
    d->codec.do_fancy_upsampling = TRUE;
    jpeg_start_decompress(&d->codec);
    d->row = take(d, (uint64_t)d->codec.output_width * 4);
}

static uint8_t divide_by_255(uint32_t product) {
    return (uint8_t)((product * 2 + 255) / 510);
}

/* `count` CMYK samples, 255: no ink, to gray or RGB. The gray weights are the library's own for RGB. */
static void convert_cmyk(const uint8_t *from, uint8_t *to, uint32_t count, uint32_t channels) {
    for (uint32_t i = 0; i < count; i++, from += 4, to += channels) {
        uint8_t r = divide_by_255((uint32_t)from[0] * from[3]);
        uint8_t g = divide_by_255((uint32_t)from[1] * from[3]);
        uint8_t b = divide_by_255((uint32_t)from[2] * from[3]);
        if (channels == 1) {
            to[0] = decode_luma(r, g, b);
        } else {
            to[0] = r;
            to[1] = g;
            to[2] = b;
        }
    }
}

/* Reads the region's rows; the library's rows begin at column `left` of the picture. */
static void read_rows(struct jpeg *d, uint32_t left) {
    struct jpeg_decompress_struct *codec = &d->codec;
    const struct box *region = &d->region;
    bool cmyk = codec->out_color_space == JCS_CMYK;
    bool in_place = !cmyk && left == region->x && codec->output_width == region->width;
    const uint8_t *wanted = d->row + (size_t)(region->x - left) * (size_t)codec->output_components;

    for (uint32_t y = 0; y < region->height; y++) {
        uint8_t *to = d->picture->pixels + y * d->picture->stride;
        JSAMPROW row = in_place ? to : d->row;
        jpeg_read_scanlines(codec, &row, 1);
        if (cmyk)
            convert_cmyk(wanted, to, region->width, d->channels);
        else if (!in_place)
            memcpy(to, wanted, (size_t)region->width * d->channels);
    }
}

/* Whether any marker stands in what is left: behind the last rows of a whole file there is one. */
static bool marker_follows(const struct jpeg *d) {
    const uint8_t *at = d->source.next_input_byte, *end = at + d->source.bytes_in_buffer;
    while ((at = memchr(at, 0xFF, (size_t)(end - at)))) {
        while (at < end && *at == 0xFF)
            at++;
        if (at == end)
            return false;
        if (*at != 0)
            return true;
    }
    return false;
}

/* A file without its end may still have satisfied the entropy decoder: do not leave that unsaid. */
static void check_end(struct jpeg *d) {
    const struct jpeg_decompress_struct *codec = &d->codec;
    if (codec->input_iMCU_row < codec->total_iMCU_rows || codec->unread_marker != 0 || d->damage.end ||
        jpeg_has_multiple_scans(&d->codec) || marker_follows(d))
        return;
    d->source.next_input_byte = d->bytes + d->length;
    note_damage(d, JWRN_JPEG_EOF, d->errors.jpeg_message_table[JWRN_JPEG_EOF]);
}

static void step_rows_plain(struct jpeg *d) {
    d->shortcut = false;
    for (uint32_t y = 0; y < d->region.y; y++) {
        JSAMPROW row = d->row;
        jpeg_read_scanlines(&d->codec, &row, 1);
    }
    read_rows(d, 0);
    check_end(d);
}

/*
 * Only the columns and rows that the region needs. Exact under these conditions, each of which matters: columns are
 * cropped first, before any row; at most one skip, from row 0; rows in order after it; and where chroma is subsampled
 * across, one pixel more on the left and two on the right, for the interpolation's sake, where the picture has them, and
 * three in all: the library does not interpolate a single column of chroma.
 */
static void step_rows_by_region(struct jpeg *d) {
    const struct box *region = &d->region;
    uint32_t left = region->x, right = region->x + region->width;
    if (d->codec.max_h_samp_factor > 1) {
        left -= MIN(left, 1u);
        right = MIN(right + 2, d->codec.output_width);
        left = MIN(left, right - MIN(right, 3u));
    }
    JDIMENSION first = left, columns = right - left;
    bool crop = columns < d->codec.output_width;
    d->shortcut = crop || region->y > 0;
    if (crop)
        jpeg_crop_scanline(&d->codec, &first, &columns); /* moves `first` left to a block's edge */
    if (region->y > 0)
        jpeg_skip_scanlines(&d->codec, region->y);
    read_rows(d, first);
    check_end(d);
}

/* Whether the library will estimate coefficients that the scans left out; at cropped edges it would do so otherwise. */
static bool smoothing_possible(const struct jpeg *d) {
    const struct jpeg_decompress_struct *codec = &d->codec;
    if (!codec->progressive_mode || !codec->coef_bits)
        return false;
    for (int c = 0; c < codec->num_components; c++) {
        for (int i = 0; i < DCTSIZE2; i++) {
            if (codec->coef_bits[c][i] != 0)
                return true;
        }
    }
    return false;
}

/* --- the codec -------------------------------------------------------------------------------------- */

static void codec_destroy(struct jpeg *d) {
    if (!d->library_memory)
        return;
    d->codec.mem = d->library_memory;
    d->library_memory = NULL;
    jpeg_destroy_decompress(&d->codec);
}

/* False: no memory for it; tried again at the next open. */
static bool codec_create(struct jpeg *d) {
    if (d->library_memory)
        return true;
    memset(&d->codec, 0, sizeof d->codec);
    if (guarded(d, step_create))
        return true;
    jpeg_destroy_decompress(&d->codec);
    return false;
}

static void jpeg_free(void *state) {
    if (state)
        codec_destroy(state);
    free(state);
}

static int jpeg_new(const struct decode_limits *limits, struct arena *arena, void **ret) {
    struct jpeg *d = calloc(1, sizeof *d);
    if (!d)
        return -ENOMEM;
    d->limits = limits;
    d->arena = arena;
    if (!codec_create(d)) {
        jpeg_free(d);
        return -ENOMEM;
    }
    *ret = d;
    return 0;
}

static void jpeg_close(void *state) {
    struct jpeg *d = state;
    d->bytes = NULL;
    d->length = 0;
    d->header_read = false;
}

static void jpeg_reset(void *state) {
    struct jpeg *d = state;
    jpeg_close(d);
    codec_destroy(d);
    d->damage = (struct damage){0};
    codec_create(d);
}

#define STRINGIFY_(x) #x
#define STRINGIFY(x) STRINGIFY_(x)

static const char *version(void) {
#ifdef WITH_SIMD
    return "libjpeg-turbo " STRINGIFY(LIBJPEG_TURBO_VERSION) " (SIMD)";
#else
    return "libjpeg-turbo " STRINGIFY(LIBJPEG_TURBO_VERSION);
#endif
}

/* Scans in what follows the first scan's header, counted by their markers; stops counting beyond `most`. A file with
 * more is refused before any of them is decoded: a scan of a few bytes can cost a pass over the whole picture. */
static uint32_t count_scans(const uint8_t *at, const uint8_t *end, uint32_t most) {
    uint32_t scans = 1;
    while (scans <= most && (at = memchr(at, 0xFF, (size_t)(end - at)))) {
        while (at < end && *at == 0xFF)
            at++;
        if (at == end || *at == JPEG_EOI)
            break;
        uint8_t marker = *at++;
        if (marker == 0 || marker == 0x01 || (marker >= JPEG_RST0 && marker < JPEG_EOI))
            continue; /* stuffing, or a marker without a segment */
        scans += marker == MARKER_SOS;
        if (end - at < 2)
            break;
        size_t segment = (size_t)at[0] << 8 | at[1];
        if (segment > (size_t)(end - at))
            break;
        at += MAX(segment, (size_t)2); /* the library forgives a length below 2 */
    }
    return scans;
}

static enum decode_verdict check_limits(struct jpeg *d, struct diag *diag) {
    const struct jpeg_decompress_struct *codec = &d->codec;
    if (codec->num_components == 2 || codec->num_components > 4) {
        diag_set(diag, -ENOTSUP, "JPEG of %d components; 1 (gray), 3 (colour) and 4 (CMYK) are supported",
                 codec->num_components);
        return DECODE_BAD;
    }
    if (decode_check_pixels(d->limits, codec->image_width, codec->image_height, diag) != DECODE_OK)
        return DECODE_BAD;
    if (jpeg_has_multiple_scans(&d->codec) && d->source.bytes_in_buffer > 0 &&
        count_scans(d->source.next_input_byte, d->source.next_input_byte + d->source.bytes_in_buffer,
                    d->limits->max_scans) > d->limits->max_scans) {
        diag_set(diag, -EFBIG, "scan limit %u exceeded (raise max-scans)", d->limits->max_scans);
        return DECODE_BAD;
    }
    return DECODE_OK;
}

static enum decode_verdict bad(struct jpeg *d, struct diag *diag) {
    diag_set(diag, d->failure.code, "%s", d->failure.text);
    return DECODE_BAD;
}

static enum decode_verdict jpeg_open(void *state, const uint8_t *bytes, size_t length, struct decode_info *ret_info,
                                     struct diag *diag) {
    struct jpeg *d = state;
    d->bytes = bytes;
    d->length = length;
    if (!codec_create(d) || !guarded(d, step_header))
        return bad(d, diag);
    if (check_limits(d, diag) != DECODE_OK)
        return DECODE_BAD;
    d->width = d->codec.image_width;
    d->height = d->codec.image_height;
    *ret_info = (struct decode_info){.width = d->width,
                                     .height = d->height,
                                     .channels = (uint32_t)d->codec.num_components,
                                     .orientation = exif_jpeg_orientation(bytes, length),
                                     .kind = codec_jpeg.kind};
    return DECODE_OK;
}

/* Complete means that nothing but the end may be missing, and that the scans said all there was to say. */
static bool anything_lost(const struct jpeg *d) {
    const struct jpeg_decompress_struct *codec = &d->codec;
    if (d->damage.lost)
        return true;
    if (!d->damage.end)
        return false;
    if (codec->arith_code || smoothing_possible(d))
        return true; /* the arithmetic decoder does not tell where its data ended */
    for (int c = 0; c < codec->num_components; c++) {
        if (!codec->comp_info[c].quant_table)
            return true; /* its scan never came */
    }
    return false;
}

static enum decode_verdict conclude(struct jpeg *d, struct diag *diag) {
    struct damage *damage = &d->damage;
    if (damage->warnings == 0)
        return DECODE_OK;
    damage->complete = !anything_lost(d);
    diag_set(diag, -EBADMSG, "%s, near byte %zu of %zu (%ld warning%s)%s", damage->text, damage->offset, d->length,
             damage->warnings, damage->warnings == 1 ? "" : "s", damage->complete ? "; all pixels are there" : "");
    return DECODE_DAMAGED;
}

static enum decode_verdict jpeg_read(void *state, uint32_t channels, const struct box *region,
                                     const struct picture *picture, bool *ret_complete, struct diag *diag) {
    struct jpeg *d = state;
    if (channels == DECODE_VALUES && d->codec.num_components != 1) {
        diag_set(diag, -EINVAL, "label picture is a JPEG in colour; wanted gray, or a PNG with a palette");
        return DECODE_BAD;
    }
    d->channels = MAX(channels, 1u);
    d->region = *region;
    d->picture = picture;
    if ((!d->header_read && !guarded(d, step_header)) || !guarded(d, step_start))
        return bad(d, diag);

    bool whole = d->damage.warnings > 0 || smoothing_possible(d);
    bool done = guarded(d, whole ? step_rows_plain : step_rows_by_region);
    if (d->shortcut && (!done || d->damage.warnings > 0))
        done = guarded(d, step_header) && guarded(d, step_start) && guarded(d, step_rows_plain);
    if (!done)
        return bad(d, diag);
    enum decode_verdict verdict = conclude(d, diag);
    *ret_complete = d->damage.complete;
    return verdict;
}

const struct codec codec_jpeg = {
    .kind = "JPEG",
    .new = jpeg_new,
    .free = jpeg_free,
    .open = jpeg_open,
    .read = jpeg_read,
    .close = jpeg_close,
    .reset = jpeg_reset,
    .version = version,
};
