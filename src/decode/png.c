/* SPDX-License-Identifier: MIT */
/*
 * PNG by libpng, one codec of decode.c. Whole rows are decoded from the top to the last one that the region needs, an
 * interlaced picture as a whole; the region's columns are copied out.
 *
 * Pixels are those of Pillow's convert("RGB") and convert("L"): palettes are looked up, samples of 1, 2 and 4 bits are
 * scaled to 0..255, of 16 bits the high byte stays, alpha and tRNS are dropped (never composited), gamma and profiles
 * are not applied. (Of 16-bit gray Pillow clips to 255 in some versions; the high byte is what it gives for 16-bit
 * colour, and what is taken here.) DECODE_VALUES gives palette indices and gray samples as they are stored.
 *
 * Ancillary chunks are skipped unread, but for their CRC: they cannot harm pixels and cannot cost memory. All of
 * libpng's and zlib's memory comes from the arena, so errors leave by longjmp with nothing to release. Never prints.
 * One thread per decoder. The only file of the stages that includes png.h.
 */
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "decode/codec.h"

#include <png.h>

#define TEXT_SIZE 128u
#define READ_SIZE 512u /* the library asks for pieces of this; of a cut file the last, partial one is lost */

enum phase { PHASE_HEADER, PHASE_ROWS, PHASE_END };

struct png {
    struct arena *arena;
    const struct decode_limits *limits;
    png_structp codec; /* in the arena; NULL: the header is to be read again */
    png_infop header;
    const uint8_t *bytes;
    size_t length, at;
    uint32_t width, height;
    int color, depth;
    jmp_buf escape;
    enum phase phase;
    bool short_of_memory;

    uint32_t warnings;
    char text[TEXT_SIZE]; /* the first warning or the error */
    size_t offset;
    bool lost; /* pixels are missing or may be wrong */

    /* the read in hand */
    uint32_t channels, components; /* asked for; of a decoded row */
    struct box region;
    const struct picture *picture;
    uint8_t *rows; /* one, or all of an interlaced picture */
    uint32_t done; /* rows */
};

/* --- callbacks --------------------------------------------------------------------------------------------------- */

static void note(struct png *d, const char *text) {
    if (d->warnings++ == 0) {
        snprintf(d->text, sizeof d->text, "%s", text);
        d->offset = d->at;
    }
}

static _Noreturn void on_error(png_structp codec, png_const_charp text) {
    struct png *d = png_get_error_ptr(codec);
    note(d, text);
    d->lost |= d->phase != PHASE_END;
    longjmp(d->escape, 1);
}

/* libpng begins the sentences about a chunk with its name. */
static bool is_about_pixels(const char *text) {
    return strncmp(text, "IHDR", 4) == 0 || strncmp(text, "PLTE", 4) == 0 || strncmp(text, "IDAT", 4) == 0;
}

static void on_warning(png_structp codec, png_const_charp text) {
    struct png *d = png_get_error_ptr(codec);
    d->lost |= d->phase == PHASE_ROWS || is_about_pixels(text);
    note(d, text);
}

static void on_read(png_structp codec, png_bytep to, size_t count) {
    struct png *d = png_get_io_ptr(codec);
    if (count > d->length - d->at) {
        d->at = d->length;
        png_error(codec, "the file ends too early");
    }
    memcpy(to, d->bytes + d->at, count);
    d->at += count;
}

static png_voidp on_take(png_structp codec, png_alloc_size_t bytes) {
    struct png *d = png_get_mem_ptr(codec);
    void *piece = arena_take(d->arena, bytes);
    d->short_of_memory |= !piece;
    return piece;
}

static void on_give(png_structp codec, png_voidp piece) {
    (void)codec, (void)piece; /* the arena is taken back as a whole */
}

static bool guarded(struct png *d, void (*step)(struct png *)) {
    if (setjmp(d->escape) != 0)
        return false;
    step(d);
    return true;
}

/* --- steps under guarded() --------------------------------------------------------------------------------------- */

static void step_header(struct png *d) {
    static const png_byte transparency[] = "tRNS";
    arena_rewind(d->arena);
    d->at = 0;
    d->warnings = 0;
    d->lost = d->short_of_memory = false;
    d->phase = PHASE_HEADER;
    d->codec = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, d, on_error, on_warning, d, on_take, on_give);
    d->header = d->codec ? png_create_info_struct(d->codec) : NULL;
    if (!d->header) {
        d->short_of_memory = true;
        longjmp(d->escape, 1);
    }
    png_set_read_fn(d->codec, d, on_read);
    png_set_benign_errors(d->codec, 1);
    png_set_user_limits(d->codec, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
    png_set_compression_buffer_size(d->codec, READ_SIZE);
    png_set_keep_unknown_chunks(d->codec, PNG_HANDLE_CHUNK_NEVER, NULL, -1); /* all that it knows to be ancillary */
    png_set_keep_unknown_chunks(d->codec, PNG_HANDLE_CHUNK_NEVER, transparency, 1);
    png_set_check_for_invalid_index(d->codec, 0);
    png_read_info(d->codec, d->header);
    d->width = png_get_image_width(d->codec, d->header);
    d->height = png_get_image_height(d->codec, d->header);
    d->color = png_get_color_type(d->codec, d->header);
    d->depth = png_get_bit_depth(d->codec, d->header);
}

/* Rows of 8-bit samples, one or three a pixel. */
static void choose_transforms(struct png *d) {
    png_structp codec = d->codec;
    d->components = d->color & PNG_COLOR_MASK_COLOR ? 3 : 1;
    if (d->channels == DECODE_VALUES) {
        d->components = 1;
        png_set_packing(codec);
    } else if (d->color == PNG_COLOR_TYPE_PALETTE) {
        png_set_palette_to_rgb(codec);
    } else if (d->depth < 8) {
        png_set_expand_gray_1_2_4_to_8(codec);
    }
    if (d->depth == 16)
        png_set_strip_16(codec);
    if (d->color & PNG_COLOR_MASK_ALPHA)
        png_set_strip_alpha(codec);
}

static void copy_row(struct png *d, const uint8_t *from, uint32_t y) {
    if (y < d->region.y)
        return;
    decode_convert_row(from + (size_t)d->region.x * d->components, d->components,
                       d->picture->pixels + (y - d->region.y) * d->picture->stride, d->channels, d->region.width);
}

static void read_interlaced(struct png *d, int passes, size_t row_bytes) {
    for (int pass = 0; pass < passes; pass++) {
        for (uint32_t y = 0; y < d->height; y++) {
            png_read_row(d->codec, d->rows + y * row_bytes, NULL);
            d->done = pass == 0 ? y + 1 : d->done;
        }
    }
}

static void step_rows(struct png *d) {
    uint32_t bottom = d->region.y + d->region.height;
    choose_transforms(d);
    int passes = png_set_interlace_handling(d->codec);
    png_read_update_info(d->codec, d->header);
    size_t row_bytes = (size_t)d->width * d->components;
    if (png_get_rowbytes(d->codec, d->header) != row_bytes)
        png_error(d->codec, "rows of an unexpected size");
    d->rows = on_take(d->codec, passes > 1 ? (uint64_t)row_bytes * d->height : row_bytes);
    if (!d->rows)
        png_error(d->codec, "out of memory");
    d->phase = PHASE_ROWS;
    png_set_crc_action(d->codec, PNG_CRC_WARN_USE, PNG_CRC_WARN_DISCARD); /* in the header it is fatal */
    if (passes > 1)
        read_interlaced(d, passes, row_bytes);
    for (uint32_t y = 0; passes == 1 && y < bottom; y++) {
        png_read_row(d->codec, d->rows, NULL);
        copy_row(d, d->rows, y);
        d->done = y + 1;
    }
    d->phase = PHASE_END;
    if (bottom == d->height || passes > 1)
        png_read_end(d->codec, NULL);
}

/* --- the codec --------------------------------------------------------------------------------------------------- */

static enum decode_verdict bad(const struct png *d, struct diag *diag) {
    if (d->short_of_memory)
        return arena_is_short(d->arena, d->width, d->height, d->length, diag);
    diag_set(diag, -EBADMSG, "%s, near byte %zu of %zu", d->text, d->offset, d->length);
    return DECODE_BAD;
}

static int codec_new(const struct decode_limits *limits, struct arena *arena, void **ret) {
    struct png *d = calloc(1, sizeof *d);
    if (!d)
        return -ENOMEM;
    d->limits = limits;
    d->arena = arena;
    *ret = d;
    return 0;
}

static void codec_close(void *state) {
    struct png *d = state;
    d->codec = NULL;
    d->bytes = NULL;
    d->length = 0;
}

static enum decode_verdict codec_open(void *state, const uint8_t *bytes, size_t length, struct decode_info *ret_info,
                                      struct diag *diag) {
    struct png *d = state;
    d->bytes = bytes;
    d->length = length;
    d->width = d->height = 0;
    if (!guarded(d, step_header))
        return bad(d, diag);
    if (decode_check_pixels(d->limits, d->width, d->height, diag) != DECODE_OK)
        return DECODE_BAD;
    *ret_info = (struct decode_info){.width = d->width,
                                     .height = d->height,
                                     .channels = d->color & PNG_COLOR_MASK_COLOR ? 3 : 1,
                                     .orientation = 1,
                                     .kind = codec_png.kind};
    return DECODE_OK;
}

static enum decode_verdict check_values(const struct png *d, struct diag *diag) {
    if (d->color != PNG_COLOR_TYPE_PALETTE && d->color & PNG_COLOR_MASK_COLOR)
        diag_set(diag, -EINVAL, "label picture is a PNG in colour; wanted a palette or gray");
    else if (d->depth == 16)
        diag_set(diag, -ENOTSUP, "label picture is a PNG of 16 bits a sample; at most 8 are supported");
    else
        return DECODE_OK;
    return DECODE_BAD;
}

/* Rows that never came are black, whatever the caller's memory held. */
static void finish_rows(struct png *d, bool interlaced) {
    size_t row_bytes = (size_t)d->width * d->components;
    for (uint32_t y = 0; y < d->region.height; y++) {
        uint32_t row = d->region.y + y;
        if (interlaced)
            copy_row(d, d->rows + row * row_bytes, row);
        else if (row >= d->done)
            memset(d->picture->pixels + y * d->picture->stride, 0, (size_t)d->region.width * MAX(d->channels, 1u));
    }
}

static enum decode_verdict codec_read(void *state, uint32_t channels, const struct box *region,
                                      const struct picture *picture, bool *ret_complete, struct diag *diag) {
    struct png *d = state;
    uint32_t width = d->width, height = d->height;
    if (channels == DECODE_VALUES && check_values(d, diag) != DECODE_OK)
        return DECODE_BAD;
    if (!d->codec && !guarded(d, step_header))
        return bad(d, diag);
    if (d->width != width || d->height != height) {
        diag_set(diag, -ESTALE, "the bytes changed while they were read");
        return DECODE_BAD;
    }
    bool interlaced = png_get_interlace_type(d->codec, d->header) != PNG_INTERLACE_NONE;
    d->channels = channels;
    d->region = *region;
    d->picture = picture;
    d->done = 0;
    guarded(d, step_rows);
    d->codec = NULL;
    if (d->done == 0)
        return bad(d, diag);
    finish_rows(d, interlaced);
    if (d->warnings == 0)
        return DECODE_OK;
    *ret_complete = !d->lost;
    diag_set(diag, -EBADMSG, "%s, near byte %zu of %zu%s", d->text, d->offset, d->length,
             d->lost ? "" : "; all pixels are there");
    return DECODE_DAMAGED;
}

static const char *version(void) {
    return "libpng " PNG_LIBPNG_VER_STRING;
}

const struct codec codec_png = {
    .kind = "PNG",
    .new = codec_new,
    .free = free,
    .open = codec_open,
    .read = codec_read,
    .close = codec_close,
    .reset = codec_close,
    .version = version,
};
