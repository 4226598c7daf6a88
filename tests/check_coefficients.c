/* SPDX-License-Identifier: MIT */
/*
 * Coefficient records: every region of every kind of JPEG that a record holds equals libjpeg's pixels, by every twin
 * that this CPU runs; files come back byte for byte; twins agree on random and worst bytes; damage is told and harms
 * nothing; what a record cannot hold is refused by name. With LOADERD_TEST_LONG=1 in the environment there are eight
 * times as many regions.
 */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>

#include "base/crc32c.h"
#include "base/util.h"
#include "decode/coefficients_internal.h"
#include "decode/decode.h"
#include "reseal.h"

#define SIDE_MOST 300u

struct file {
    uint8_t *bytes;
    size_t length;
};

static uint64_t random_state = 88172645463325252u;

static uint32_t random_below(uint32_t n) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)((random_state >> 20) % n);
}

/* --- making JPEGs ------------------------------------------------------------------------------------------------ */

enum coding { BASELINE, OPTIMISED, RESTARTS, PROGRESSIVE, ARITHMETIC, SEPARATE, UNFINISHED };

struct recipe {
    const char *name;
    J_COLOR_SPACE from, to; /* of the samples given, of the file */
    int h, v;               /* sampling factors of the first component */
    int chroma_h, chroma_v;
    enum coding coding;
    const char *refused; /* part of the sentence; NULL: a record can hold it */
};

static const struct recipe recipes[] = {
    {"gray", JCS_GRAYSCALE, JCS_GRAYSCALE, 1, 1, 1, 1, BASELINE, NULL},
    {"gray with factors 2x2", JCS_GRAYSCALE, JCS_GRAYSCALE, 2, 2, 1, 1, OPTIMISED, NULL},
    {"gray progressive", JCS_GRAYSCALE, JCS_GRAYSCALE, 1, 1, 1, 1, PROGRESSIVE, NULL},
    {"4:4:4", JCS_RGB, JCS_YCbCr, 1, 1, 1, 1, BASELINE, NULL},
    {"4:4:4 optimised", JCS_RGB, JCS_YCbCr, 1, 1, 1, 1, OPTIMISED, NULL},
    {"4:4:4 restarts", JCS_RGB, JCS_YCbCr, 1, 1, 1, 1, RESTARTS, NULL},
    {"4:4:4 progressive", JCS_RGB, JCS_YCbCr, 1, 1, 1, 1, PROGRESSIVE, NULL},
    {"4:2:2", JCS_RGB, JCS_YCbCr, 2, 1, 1, 1, BASELINE, NULL},
    {"4:2:2 restarts", JCS_RGB, JCS_YCbCr, 2, 1, 1, 1, RESTARTS, NULL},
    {"4:2:2 progressive", JCS_RGB, JCS_YCbCr, 2, 1, 1, 1, PROGRESSIVE, NULL},
    {"4:2:0", JCS_RGB, JCS_YCbCr, 2, 2, 1, 1, BASELINE, NULL},
    {"4:2:0 optimised", JCS_RGB, JCS_YCbCr, 2, 2, 1, 1, OPTIMISED, NULL},
    {"4:2:0 restarts", JCS_RGB, JCS_YCbCr, 2, 2, 1, 1, RESTARTS, NULL},
    {"4:2:0 progressive", JCS_RGB, JCS_YCbCr, 2, 2, 1, 1, PROGRESSIVE, NULL},
    {"4:2:0 separate scans", JCS_RGB, JCS_YCbCr, 2, 2, 1, 1, SEPARATE, NULL},
    {"4:4:0", JCS_RGB, JCS_YCbCr, 1, 2, 1, 1, BASELINE, NULL},
    {"4:4:0 progressive", JCS_RGB, JCS_YCbCr, 1, 2, 1, 1, PROGRESSIVE, NULL},
#ifdef C_ARITH_CODING_SUPPORTED
    {"4:2:0 arithmetic", JCS_RGB, JCS_YCbCr, 2, 2, 1, 1, ARITHMETIC, NULL},
#endif
    {"4:1:1", JCS_RGB, JCS_YCbCr, 4, 1, 1, 1, BASELINE, "unsupported: sampling factors of luma"},
    {"luma below chroma", JCS_RGB, JCS_YCbCr, 1, 1, 2, 2, BASELINE, "unsupported: sampling factors of chroma"},
    {"RGB", JCS_RGB, JCS_RGB, 1, 1, 1, 1, BASELINE, "unsupported: colour space"},
    {"CMYK", JCS_CMYK, JCS_CMYK, 1, 1, 1, 1, BASELINE, "unsupported: CMYK"},
    {"4:2:0 unfinished", JCS_RGB, JCS_YCbCr, 2, 2, 1, 1, UNFINISHED, "unsupported: progressive scans that leave"},
};

/* Tests of one loop run in children of their own: let each have other random numbers. */
static const struct recipe *choose_recipe(int number) {
    random_state += (uint64_t)number * UINT64_C(0x9E3779B97F4A7C15);
    return &recipes[number];
}

static const jpeg_scan_info separate_scans[] = {{1, {0}, 0, 63, 0, 0}, {1, {1}, 0, 63, 0, 0}, {1, {2}, 0, 63, 0, 0}};
static const jpeg_scan_info unfinished_scans[] = {{3, {0, 1, 2}, 0, 0, 0, 1}, {1, {0}, 1, 5, 0, 2}};

/* Smooth parts, edges and noise. */
static void paint(uint8_t *row, uint32_t y, uint32_t width, int components, uint32_t salt) {
    for (uint32_t x = 0; x < width; x++) {
        for (int c = 0; c < components; c++) {
            uint32_t value = (x * (3 + (uint32_t)c) + y * (5 - (uint32_t)c) + salt) & 255;
            if ((x / 13 + y / 9 + salt) % 3 == 0)
                value = 40u + 60u * (uint32_t)c;
            if ((x + y + salt) % 5 == 0 || salt % 7 == 6)
                value = random_below(256);
            *row++ = (uint8_t)value;
        }
    }
}

static void keep_quiet(j_common_ptr codec, int level) {
    (void)codec, (void)level; /* coarse tables are meant */
}

static struct file make_file(const struct recipe *recipe, uint32_t width, uint32_t height, int quality, uint32_t salt) {
    struct jpeg_compress_struct c;
    struct jpeg_error_mgr errors;
    unsigned char *bytes = NULL;
    unsigned long length = 0;
    uint8_t row[SIDE_MOST * 4];
    JSAMPROW rows = row;
    c.err = jpeg_std_error(&errors);
    errors.emit_message = keep_quiet;
    jpeg_create_compress(&c);
    jpeg_mem_dest(&c, &bytes, &length);
    c.image_width = width;
    c.image_height = height;
    c.input_components = recipe->from == JCS_GRAYSCALE ? 1 : recipe->from == JCS_CMYK ? 4 : 3;
    c.in_color_space = recipe->from;
    jpeg_set_defaults(&c);
    jpeg_set_colorspace(&c, recipe->to);
    jpeg_set_quality(&c, quality, salt % 3 != 0);
    for (int i = 0; i < c.num_components; i++) {
        c.comp_info[i].h_samp_factor = i ? recipe->chroma_h : recipe->h;
        c.comp_info[i].v_samp_factor = i ? recipe->chroma_v : recipe->v;
    }
    c.optimize_coding = recipe->coding == OPTIMISED;
    c.arith_code = recipe->coding == ARITHMETIC;
    if (recipe->coding == RESTARTS)
        c.restart_interval = 1 + salt % 7;
    if (recipe->coding == PROGRESSIVE)
        jpeg_simple_progression(&c);
    if (recipe->coding == SEPARATE || recipe->coding == UNFINISHED) {
        c.scan_info = recipe->coding == SEPARATE ? separate_scans : unfinished_scans;
        c.num_scans = recipe->coding == SEPARATE ? ARRAY_SIZE(separate_scans) : ARRAY_SIZE(unfinished_scans);
    }
    jpeg_start_compress(&c, TRUE);
    for (uint32_t y = 0; y < height; y++) {
        paint(row, y, width, c.input_components, salt);
        jpeg_write_scanlines(&c, &rows, 1);
    }
    jpeg_finish_compress(&c);
    jpeg_destroy_compress(&c);
    return (struct file){bytes, length};
}

/* A 4:4:4 file of given coefficients: fill() makes those of each block. */
typedef void fill_block(int component, uint32_t x, uint32_t y, int16_t *block);

static struct file make_coefficients(uint32_t blocks_across, uint32_t blocks_down, uint32_t quantiser,
                                     fill_block *fill) {
    struct jpeg_compress_struct c;
    struct jpeg_error_mgr errors;
    jvirt_barray_ptr arrays[3];
    unsigned char *bytes = NULL;
    unsigned long length = 0;
    c.err = jpeg_std_error(&errors);
    errors.emit_message = keep_quiet;
    jpeg_create_compress(&c);
    jpeg_mem_dest(&c, &bytes, &length);
    c.image_width = blocks_across * 8;
    c.image_height = blocks_down * 8;
#if JPEG_LIB_VERSION >= 70 /* as Ubuntu builds it: the frame's size, which coefficients alone do not tell it */
    c.jpeg_width = c.image_width;
    c.jpeg_height = c.image_height;
#endif
    c.input_components = 3;
    c.in_color_space = JCS_RGB;
    jpeg_set_defaults(&c);
    for (int i = 0; i < 3; i++)
        c.comp_info[i].h_samp_factor = c.comp_info[i].v_samp_factor = 1;
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < DCTSIZE2; k++)
            c.quant_tbl_ptrs[i]->quantval[k] = (UINT16)quantiser;
    }
    c.optimize_coding = TRUE;
    for (int i = 0; i < 3; i++)
        arrays[i] = c.mem->request_virt_barray((j_common_ptr)&c, JPOOL_IMAGE, TRUE, blocks_across, blocks_down, 1);
    jpeg_write_coefficients(&c, arrays);
    for (int i = 0; i < 3; i++) {
        for (uint32_t y = 0; y < blocks_down; y++) {
            JBLOCKARRAY row = c.mem->access_virt_barray((j_common_ptr)&c, arrays[i], y, 1, TRUE);
            for (uint32_t x = 0; x < blocks_across; x++)
                fill(i, x, y, row[0][x]);
        }
    }
    jpeg_finish_compress(&c);
    jpeg_destroy_compress(&c);
    return (struct file){bytes, length};
}

/* --- decoders ---------------------------------------------------------------------------------------------------- */

static struct coefficients_encoder *encoder;
static struct decoder *reference; /* of JPEGs */
static struct decoder *twin[COEFFICIENTS_TWINS];
static const struct coefficients_twin *twins[COEFFICIENTS_TWINS];
static size_t twin_count;
static uint8_t *pixels[2]; /* wanted, found */

static void setup(void) {
    twin_count = coefficients_twins(twins);
    ck_assert_int_eq(coefficients_encoder_new(&encoder), 0);
    ck_assert_int_eq(decoder_new(NULL, &reference), 0);
    for (size_t i = 0; i < twin_count; i++) {
        setenv("LOADERD_SIMD", twins[i]->name, 1);
        ck_assert_str_eq(coefficients_simd(), twins[i]->name);
        ck_assert_int_eq(decoder_new(NULL, &twin[i]), 0);
    }
    unsetenv("LOADERD_SIMD");
    for (int i = 0; i < 2; i++)
        pixels[i] = malloc((size_t)2048 * 2048 * 3);
}

static void teardown(void) {
    coefficients_encoder_free(encoder);
    decoder_free(reference);
    for (size_t i = 0; i < twin_count; i++)
        decoder_free(twin[i]);
    free(pixels[0]);
    free(pixels[1]);
}

/* The record in memory of exactly its size, so that a sanitizer sees what is read beyond. */
static struct file make_record(struct file jpeg, bool keep, const char *what) {
    struct coefficients_options options = {.keep_headers = keep};
    struct diag diag = DIAG_INIT;
    const uint8_t *record;
    struct file copy = {NULL, 0};
    int r = coefficients_encode(encoder, jpeg.bytes, jpeg.length, &options, &record, &copy.length, &diag);
    ck_assert_msg(r == 0, "%s: %s", what, diag.text);
    copy.bytes = malloc(copy.length);
    memcpy(copy.bytes, record, copy.length);
    ck_assert_msg(coefficients_verify(copy.bytes, copy.length, &diag) == 0, "%s: %s", what, diag.text);
    return copy;
}

static void open_both(struct file jpeg, struct file record, size_t t, struct decode_info *info) {
    struct decode_info found;
    struct diag diag = DIAG_INIT;
    ck_assert_msg(decoder_open(reference, jpeg.bytes, jpeg.length, info, &diag) == DECODE_OK, "%s", diag.text);
    ck_assert_msg(decoder_open(twin[t], record.bytes, record.length, &found, &diag) == DECODE_OK, "%s", diag.text);
    ck_assert_uint_eq(found.width, info->width);
    ck_assert_uint_eq(found.height, info->height);
    ck_assert_uint_eq(found.channels, info->channels);
    ck_assert_uint_eq(found.orientation, info->orientation);
    ck_assert_str_eq(found.kind, COEFFICIENTS_KIND);
}

/* Of the whole picture by libjpeg, at the stride of its width. */
static void read_reference(const struct decode_info *info, uint32_t channels) {
    struct diag diag = DIAG_INIT;
    struct picture wanted = {pixels[0], (size_t)info->width * channels, info->width, info->height, channels};
    struct box all = {0, 0, info->width, info->height};
    ck_assert_int_eq(decoder_read(reference, channels, &all, &wanted, &diag), DECODE_OK);
}

/* Rows of a region that came in pieces. */
struct pieces {
    const uint8_t *wanted; /* the region's first pixel in the whole picture */
    size_t stride, bytes;  /* of its rows; of the region's */
    uint32_t rows;
    bool equal;
};

static void compare_piece(void *arg, const uint8_t *found, size_t stride, uint32_t rows) {
    struct pieces *p = arg;
    ck_assert_uint_gt(rows, 0);
    ck_assert_uint_le(rows, 17); /* an MCU row, and one that waited for it */
    for (uint32_t y = 0; y < rows; y++, p->rows++)
        p->equal &= memcmp(p->wanted + p->rows * p->stride, found + y * stride, p->bytes) == 0;
}

/* decoder_read_rows() against read_reference(). */
static void compare_rows(const char *what, size_t t, const struct decode_info *info, const struct box *box,
                         uint32_t channels) {
    struct diag diag = DIAG_INIT;
    size_t stride = (size_t)info->width * channels;
    struct pieces pieces = {pixels[0] + box->y * stride + (size_t)box->x * channels, stride,
                            (size_t)box->width * channels, 0, true};
    ck_assert(decoder_gives_rows(twin[t]));
    ck_assert_msg(decoder_read_rows(twin[t], channels, box, compare_piece, &pieces, &diag) == DECODE_OK, "%s: %s", what,
                  diag.text);
    ck_assert_uint_eq(pieces.rows, box->height);
    ck_assert_msg(pieces.equal, "%s, %s, box %u,%u %ux%u, %u channels: other rows", what, twins[t]->name, box->x,
                  box->y, box->width, box->height, channels);
}

/* Against read_reference(). */
static void compare_box(const char *what, size_t t, const struct decode_info *info, const struct box *box,
                        uint32_t channels) {
    struct diag diag = DIAG_INIT;
    size_t stride = (size_t)box->width * channels;
    struct picture found = {malloc(stride * box->height), stride, box->width, box->height, channels};
    ck_assert_msg(decoder_read(twin[t], channels, box, &found, &diag) == DECODE_OK, "%s: %s", what, diag.text);
    for (uint32_t y = 0; y < box->height; y++) {
        const uint8_t *wanted = pixels[0] + ((size_t)(box->y + y) * info->width + box->x) * channels;
        for (size_t i = 0; i < stride; i++) {
            if (wanted[i] != found.pixels[y * stride + i])
                ck_abort_msg("%s, %s, box %u,%u %ux%u, %u channels: byte %zu of row %u is %u, not %u", what,
                             twins[t]->name, box->x, box->y, box->width, box->height, channels, i, y,
                             found.pixels[y * stride + i], wanted[i]);
        }
    }
    free(found.pixels);
}

static struct box random_box(uint32_t width, uint32_t height) {
    struct box box = {random_below(width), random_below(height), 0, 0};
    box.width = 1 + random_below(width - box.x);
    box.height = 1 + random_below(height - box.y);
    return box;
}

/* --- pixels ------------------------------------------------------------------------------------------------------ */

#define BOXES_A_FILE 12u
#define GRAY_BOXES 4u /* the first of them; the others in colour */

static void compare_file(const struct recipe *recipe, uint32_t width, uint32_t height, int quality, uint32_t salt) {
    char what[100];
    struct decode_info info;
    snprintf(what, sizeof what, "%s %ux%u quality %d salt %u", recipe->name, width, height, quality, salt);
    struct file jpeg = make_file(recipe, width, height, quality, salt), record = make_record(jpeg, false, what);
    size_t t = salt % twin_count;
    open_both(jpeg, record, t, &info);
    for (uint32_t i = 0; i < BOXES_A_FILE; i++) {
        struct box box = i % GRAY_BOXES ? random_box(width, height) : (struct box){0, 0, width, height};
        uint32_t channels = i < GRAY_BOXES ? 1 : 3;
        if (i == 0 || i == GRAY_BOXES)
            read_reference(&info, channels);
        compare_box(what, t, &info, &box, channels);
        compare_rows(what, t, &info, &box, channels);
    }
    free(jpeg.bytes);
    free(record.bytes);
}

START_TEST(test_regions) {
    const struct recipe *recipe = choose_recipe(_i);
    uint32_t files = getenv("LOADERD_TEST_LONG") ? 400 : 48;
    if (recipe->refused)
        return;
    for (uint32_t n = 0; n < files; n++) {
        uint32_t most = n % 4 == 0 ? 20 : n % 4 == 1 ? 70 : SIDE_MOST;
        compare_file(recipe, 1 + random_below(most), 1 + random_below(most), 1 + (int)random_below(100), n);
    }
}
END_TEST

/* Every size of the edge cases, whole and each pixel alone. */
START_TEST(test_small) {
    const struct recipe *recipe = choose_recipe(_i);
    struct decode_info info;
    if (recipe->refused)
        return;
    for (uint32_t width = 1; width <= 18; width += 1 + (width > 6)) {
        for (uint32_t height = 1; height <= 18; height += 1 + (height > 6)) {
            size_t t = (width + height) % twin_count;
            struct file jpeg = make_file(recipe, width, height, 60, width), record = make_record(jpeg, false, "small");
            open_both(jpeg, record, t, &info);
            read_reference(&info, 3);
            compare_box(recipe->name, t, &info, &(struct box){0, 0, width, height}, 3);
            for (uint32_t n = 0; n < width * height; n++)
                compare_box(recipe->name, t, &info, &(struct box){n % width, n / width, 1, 1}, 3);
            free(jpeg.bytes);
            free(record.bytes);
        }
    }
}
END_TEST

static uint32_t luma;

static void one_color(int component, uint32_t x, uint32_t y, int16_t *block) {
    uint32_t value = component == 0 ? luma : component == 1 ? x : y;
    block[0] = (int16_t)(8 * ((int32_t)value - 128)); /* a block of that value */
}

/* A color is Y + f(Cb, Cr), clamped: with Y = 0 and Y = 255 every f shows. */
START_TEST(test_colors) {
    struct decode_info info;
    for (luma = 0; luma <= 255; luma += luma ? 127 : 128) {
        struct file jpeg = make_coefficients(256, 256, 1, one_color), record = make_record(jpeg, false, "colors");
        for (size_t t = 0; t < twin_count; t++) {
            open_both(jpeg, record, t, &info);
            read_reference(&info, 3);
            compare_box("colors", t, &info, &(struct box){0, 0, 2048, 2048}, 3);
        }
        free(jpeg.bytes);
        free(record.bytes);
    }
}
END_TEST

/* ... and Y + f of all 2^24 by every twin equals the scalar one. */
START_TEST(test_all_colors) {
    static uint8_t y[256 + ROW_SLACK], cb[256 + ROW_SLACK], cr[256 + ROW_SLACK], wanted[768], found[768];
    uint32_t step = getenv("LOADERD_TEST_LONG") ? 1 : 3;
    for (uint32_t i = 0; i < 256; i++)
        y[i] = (uint8_t)i;
    for (uint32_t color = 0; color < 65536; color += step) {
        memset(cb, (int)(color & 255), sizeof cb);
        memset(cr, (int)(color >> 8), sizeof cr);
        rgb_scalar(y, cb, cr, 256, wanted);
        for (size_t t = 1; t < twin_count; t++) {
            twins[t]->rgb(y, cb, cr, 256, found);
            ck_assert_msg(memcmp(wanted, found, sizeof wanted) == 0, "%s: Cb %u Cr %u", twins[t]->name, color & 255,
                          color >> 8);
        }
    }
}
END_TEST

/* --- files ------------------------------------------------------------------------------------------------------- */

START_TEST(test_restore) {
    const struct recipe *recipe = choose_recipe(_i);
    bool sequential = recipe->coding == BASELINE || recipe->coding == OPTIMISED || recipe->coding == RESTARTS;
    for (uint32_t n = 0; n < 20 && !recipe->refused; n++) {
        struct coefficients_options options = {.keep_headers = true};
        struct diag diag = DIAG_INIT;
        struct file jpeg = make_file(recipe, 1 + random_below(200), 1 + random_below(200), 1 + (int)(5 * n), n), back;
        const uint8_t *record;
        size_t length;
        int r = coefficients_encode(encoder, jpeg.bytes, jpeg.length, &options, &record, &length, &diag);
        if (sequential) {
            ck_assert_msg(r == 0, "%s", diag.text);
            ck_assert_int_eq(coefficients_restore(record, length, &back.bytes, &back.length, &diag), 0);
            ck_assert_uint_eq(back.length, jpeg.length);
            ck_assert_mem_eq(back.bytes, jpeg.bytes, jpeg.length);
            free(back.bytes);
        } else {
            ck_assert_int_eq(r, -ENOTSUP);
            ck_assert_msg(strncmp(diag.text, "unsupported: ", 13) == 0, "%s", diag.text);
        }
        free(jpeg.bytes);
    }
}
END_TEST

START_TEST(test_restore_needs_headers) {
    struct diag diag = DIAG_INIT;
    struct file jpeg = make_file(&recipes[3], 40, 30, 80, 1), record = make_record(jpeg, false, "4:4:4"), back;
    ck_assert_int_eq(coefficients_restore(record.bytes, record.length, &back.bytes, &back.length, &diag), -ENODATA);
    free(record.bytes);
    /* zeros where ones should fill the last byte, and bytes behind the end */
    struct file longer = {malloc(jpeg.length + 5), jpeg.length + 5};
    memcpy(longer.bytes, jpeg.bytes, jpeg.length);
    memcpy(longer.bytes + jpeg.length, "after", 5);
    record = make_record(longer, true, "bytes behind");
    ck_assert_int_eq(coefficients_restore(record.bytes, record.length, &back.bytes, &back.length, &diag), 0);
    ck_assert_uint_eq(back.length, longer.length);
    ck_assert_mem_eq(back.bytes, longer.bytes, longer.length);
    free(back.bytes);
    free(record.bytes);
    free(longer.bytes);
    free(jpeg.bytes);
}
END_TEST

START_TEST(test_refused) {
    const struct recipe *recipe = &recipes[_i];
    struct diag diag = DIAG_INIT;
    const uint8_t *record;
    size_t length;
    if (!recipe->refused)
        return;
    struct file jpeg = make_file(recipe, 50, 40, 80, 1);
    ck_assert_int_eq(coefficients_encode(encoder, jpeg.bytes, jpeg.length, NULL, &record, &length, &diag), -ENOTSUP);
    ck_assert_msg(strncmp(diag.text, recipe->refused, strlen(recipe->refused)) == 0, "%s", diag.text);
    free(jpeg.bytes);
}
END_TEST

static int16_t extreme;

static void one_extreme(int component, uint32_t x, uint32_t y, int16_t *block) {
    if (component == 0 && x == 1 && y == 1)
        block[random_below(2) ? 0 : 10] = extreme;
}

static void checkered(int component, uint32_t x, uint32_t y, int16_t *block) {
    (void)component;
    for (int i = 0; i < DCTSIZE2; i++)
        block[i] = (int16_t)((i + (int)(x + y)) & 1 ? 7 : -7);
}

START_TEST(test_extremes) {
    static const struct {
        int16_t value;
        uint32_t quantiser;
        const char *refused;
    } cases[] = {{1023, 8, NULL}, {-1023, 8, NULL},          {1023, 9, "beyond 8191"},
                 {32, 255, NULL}, {-33, 255, "beyond 8191"}, {900, 5, NULL}};
    struct diag diag = DIAG_INIT;
    struct decode_info info;
    const uint8_t *record;
    size_t length;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        extreme = cases[i].value;
        struct file jpeg = make_coefficients(3, 3, cases[i].quantiser, one_extreme);
        int r = coefficients_encode(encoder, jpeg.bytes, jpeg.length, NULL, &record, &length, &diag);
        if (r == 0) { /* whatever was let in is exact */
            struct file copy = make_record(jpeg, false, "extreme");
            for (size_t t = 0; t < twin_count; t++) {
                open_both(jpeg, copy, t, &info);
                read_reference(&info, 3);
                compare_box("extreme", t, &info, &(struct box){0, 0, 24, 24}, 3);
            }
            free(copy.bytes);
        }
        if (cases[i].refused)
            ck_assert(r == -ENOTSUP && strstr(diag.text, cases[i].refused));
        free(jpeg.bytes);
    }
    struct file jpeg = make_coefficients(9, 2, 255, checkered);
    ck_assert_int_eq(coefficients_encode(encoder, jpeg.bytes, jpeg.length, NULL, &record, &length, &diag), -ENOTSUP);
    ck_assert_msg(strstr(diag.text, "every inverse DCT"), "%s", diag.text);
    free(jpeg.bytes);
}
END_TEST

START_TEST(test_damaged_files) {
    struct diag diag = DIAG_INIT;
    const uint8_t *record;
    size_t length;
    struct file jpeg = make_file(&recipes[10], 60, 60, 80, 1);
    ck_assert_int_eq(coefficients_encode(encoder, jpeg.bytes, 0, NULL, &record, &length, &diag), -EBADMSG);
    ck_assert_int_eq(coefficients_encode(encoder, (const uint8_t *)"GIF89a", 6, NULL, &record, &length, &diag),
                     -EBADMSG);
    for (size_t cut = 2; cut < jpeg.length; cut += 37)
        ck_assert_int_eq(coefficients_encode(encoder, jpeg.bytes, cut, NULL, &record, &length, &diag), -EBADMSG);
    ck_assert_int_eq(coefficients_encode(encoder, jpeg.bytes, jpeg.length,
                                         &(struct coefficients_options){.max_pixels = 3599}, &record, &length, &diag),
                     -EFBIG);
    ck_assert_int_eq(coefficients_encode(encoder, jpeg.bytes, jpeg.length, NULL, &record, &length, &diag), 0);
    free(jpeg.bytes);
}
END_TEST

START_TEST(test_orientation) {
    static const uint8_t exif[] = {0xFF, 0xE1, 0,    34,   'E', 'x', 'i', 'f', 0, 0, 'M', 'M', 0, 42, 0, 0, 0, 8,
                                   0,    1,    0x01, 0x12, 0,   3,   0,   0,   0, 1, 0,   6,   0, 0,  0, 0, 0, 0};
    struct decode_info info;
    struct diag diag = DIAG_INIT;
    struct file jpeg = make_file(&recipes[10], 60, 40, 80, 1);
    struct file turned = {malloc(jpeg.length + sizeof exif), jpeg.length + sizeof exif};
    memcpy(turned.bytes, jpeg.bytes, 2);
    memcpy(turned.bytes + 2, exif, sizeof exif);
    memcpy(turned.bytes + 2 + sizeof exif, jpeg.bytes + 2, jpeg.length - 2);
    struct file record = make_record(turned, true, "orientation");
    open_both(turned, record, 0, &info);
    ck_assert_uint_eq(info.orientation, 6);
    decoder_orient(reference, &info);
    decoder_orient(twin[0], &info);
    read_reference(&info, 3);
    compare_box("turned", 0, &info, &(struct box){3, 5, 30, 40}, 3);

    uint8_t value;
    struct picture one = {&value, 1, 1, 1, 1};
    ck_assert_int_eq(decoder_read(twin[0], DECODE_VALUES, &(struct box){0, 0, 1, 1}, &one, &diag), DECODE_BAD);
    ck_assert_msg(strstr(diag.text, "JPEG in colour"), "%s", diag.text);
    free(record.bytes);
    free(turned.bytes);
    free(jpeg.bytes);
}
END_TEST

/* --- damage ------------------------------------------------------------------------------------------------------ */

/* Pixels of the whole picture, or the verdict. */
static void take_any(void *arg, const uint8_t *found, size_t stride, uint32_t rows) {
    (void)found;
    (void)stride;
    *(uint32_t *)arg += rows;
}

static enum decode_verdict read_whole(size_t t, struct file record, uint8_t *out, size_t room) {
    struct decode_info info;
    struct diag diag = DIAG_INIT;
    if (decoder_open(twin[t], record.bytes, record.length, &info, &diag) != DECODE_OK ||
        (size_t)info.width * info.height * 3 > room) {
        ck_assert(diag.text[0] || (size_t)info.width * info.height * 3 > room);
        return DECODE_BAD;
    }
    struct picture picture = {out, (size_t)info.width * 3, info.width, info.height, 3};
    enum decode_verdict v = decoder_read(twin[t], 3, &(struct box){0, 0, info.width, info.height}, &picture, &diag);
    ck_assert(v == DECODE_OK || (v == DECODE_BAD && diag.code < 0 && diag.text[0]));

    struct diag again = DIAG_INIT; /* in pieces: the same verdict and sentence */
    uint32_t rows = 0;
    ck_assert_int_eq(
        decoder_read_rows(twin[t], 3, &(struct box){0, 0, info.width, info.height}, take_any, &rows, &again), v);
    ck_assert_int_eq(again.code, diag.code);
    ck_assert_str_eq(again.text, diag.text);
    ck_assert(v == DECODE_OK ? rows == info.height : rows < info.height);
    return v;
}

/* Every checksum tells a flipped bit; every cut is told. */
START_TEST(test_flips) {
    struct diag diag = DIAG_INIT;
    struct file jpeg = make_file(&recipes[10], 75, 41, 70, 4), record = make_record(jpeg, true, "flips");
    for (size_t i = 0; i < record.length; i++) {
        uint8_t bit = (uint8_t)(1u << random_below(8));
        record.bytes[i] ^= bit;
        size_t kept = record.length - load32(record.bytes + RECORD_KEPT);
        ck_assert_msg(coefficients_verify(record.bytes, record.length, &diag) < 0, "byte %zu", i);
        if (i < kept)
            ck_assert_msg(read_whole(i % twin_count, record, pixels[0], 75 * 41 * 3) == DECODE_BAD, "byte %zu", i);
        record.bytes[i] ^= bit;
    }
    for (size_t cut = 0; cut < record.length; cut++) {
        struct file shorter = {malloc(MAX(cut, (size_t)1)), cut};
        memcpy(shorter.bytes, record.bytes, cut);
        ck_assert_int_lt(coefficients_verify(shorter.bytes, shorter.length, &diag), 0);
        ck_assert_int_eq(read_whole(cut % twin_count, shorter, pixels[0], 75 * 41 * 3), DECODE_BAD);
        free(shorter.bytes);
    }
    free(record.bytes);
    free(jpeg.bytes);
}
END_TEST

/* Lies with right checksums: the twins agree on verdict and pixels. */
START_TEST(test_lies) {
    uint32_t rounds = getenv("LOADERD_TEST_LONG") ? 3000 : 300, right = 0;
    const struct recipe *recipe = choose_recipe(_i);
    if (recipe->refused)
        return;
    struct file jpeg = make_file(recipe, 83, 45, 75, 5), record = make_record(jpeg, false, recipe->name);
    struct file lie = {malloc(record.length), record.length};
    for (uint32_t n = 0; n < rounds; n++) {
        memcpy(lie.bytes, record.bytes, record.length);
        for (uint32_t flips = 1 + random_below(3); flips-- > 0;)
            lie.bytes[n % 3 ? random_below((uint32_t)record.length) : random_below(400)] ^=
                (uint8_t)(1u << random_below(8));
        reseal(lie.bytes, lie.length);
        enum decode_verdict wanted = read_whole(0, lie, pixels[0], SIDE_MOST * SIDE_MOST * 3);
        right += wanted == DECODE_OK;
        for (size_t t = 1; t < twin_count; t++) {
            ck_assert_int_eq(read_whole(t, lie, pixels[1], SIDE_MOST * SIDE_MOST * 3), wanted);
            if (wanted == DECODE_OK)
                ck_assert_msg(memcmp(pixels[0], pixels[1], 83 * 45 * 3) == 0, "%s: other pixels", twins[t]->name);
        }
    }
    ck_assert_uint_gt(right, 0); /* some lies go through: signs, orders, quantisers */
    free(lie.bytes);
    free(record.bytes);
    free(jpeg.bytes);
}
END_TEST

/* A tile of no bytes is refused, also where what happens to lie behind it, or was left by another record, is no tile. */
START_TEST(test_empty_tile) {
    struct diag diag = DIAG_INIT;
    struct file jpeg = make_file(&recipes[0], 8, 8, 75, 5), record = make_record(jpeg, false, "empty tile");
    struct record parsed;
    ck_assert_int_eq(record_parse(&parsed, record.bytes, record.length, &diag), 0);
    uint8_t *data = record.bytes + (parsed.data - record.bytes);
    for (uint32_t header = 253; header < 256; header++) { /* 253 is the last valid one */
        *data = (uint8_t)header;
        reseal(record.bytes, record.length);
        struct file empty = {malloc(record.length), (size_t)(parsed.data - record.bytes)};
        memcpy(empty.bytes, record.bytes, empty.length);
        memset(empty.bytes + (parsed.lengths - record.bytes), 0, 2);
        reseal(empty.bytes, empty.length);
        for (size_t t = 0; t < twin_count; t++) {
            ck_assert_int_eq(read_whole(t, record, pixels[0], 8 * 8 * 3), DECODE_BAD);
            ck_assert_int_eq(read_whole(t, empty, pixels[0], 8 * 8 * 3), DECODE_BAD);
        }
        ck_assert_int_lt(coefficients_verify(empty.bytes, empty.length, &diag), 0);
        ck_assert_ptr_nonnull(strstr(diag.text, "do not fill"));
        free(empty.bytes);
    }
    free(record.bytes);
    free(jpeg.bytes);
}
END_TEST

/* --- twins ------------------------------------------------------------------------------------------------------- */

static void random_components(struct record *record, uint32_t sampling, bool wild) {
    geometry_set(&record->geometry, sampling, 640, 480);
    for (uint32_t c = 0; c < record->geometry.components; c++) {
        struct component *component = &record->component[c];
        component->h = c ? 1 : record->geometry.h;
        component->v = c ? 1 : record->geometry.v;
        for (uint32_t i = 0; i < BLOCK; i++) {
            component->quantiser[i] = (uint16_t)random_below(wild ? 65536 : 64);
            component->order[i] = (uint8_t)(i ? random_below(4) : 0);
        }
    }
}

static struct tile tile[COEFFICIENTS_TWINS];

/* Runs of a component's blocks, from each block on. */
static void compare_blocks(size_t t, const struct record *record, const struct tile_layout *layout, uint32_t c) {
    static _Alignas(64) int16_t blocks[2][RUN_MOST * BLOCK];
    static struct scale scale;
    uint8_t samples[2][8][8 * RUN_MOST];
    uint32_t end = layout->first[c] + layout->mcus * record->component[c].h * record->component[c].v;
    record_scale(&record->component[c], false, &scale);
    for (uint32_t b = layout->first[c]; b < end; b++) {
        uint32_t count = 1 + random_below(MIN(RUN_MOST, end - b));
        twins[0]->expand(&tile[0], &scale, b, count, blocks[0]);
        twins[t]->expand(&tile[t], &scale, b, count, blocks[1]);
        ck_assert_mem_eq(blocks[0], blocks[1], count * BLOCK * sizeof(int16_t));
        twins[0]->idct(blocks[0], tile[0].nonzero + b, count, samples[0][0], 8 * RUN_MOST);
        twins[t]->idct(blocks[1], tile[t].nonzero + b, count, samples[1][0], 8 * RUN_MOST);
        for (uint32_t y = 0; y < 8; y++)
            ck_assert_mem_eq(samples[0][y], samples[1][y], count * 8);
    }
}

/* Random bytes, all ones and all zeros as tiles; sparse and dense headers. */
START_TEST(test_tiles) {
    uint32_t rounds = getenv("LOADERD_TEST_LONG") ? 20000 : 2000;
    uint8_t *bytes = malloc(TILE_REACH); /* exactly */
    for (uint32_t n = 0; n < rounds; n++) {
        struct record record = {0};
        struct tile_layout layout;
        random_components(&record, n % SAMPLINGS, n % 3 == 0);
        record_layout(&record, 1 + random_below(record.geometry.tile_mcus), &layout);
        uint32_t most = n % 4 == 0 ? 254 : n % 4 == 1 ? 60 : 120;
        for (uint32_t i = 0; i < TILE_REACH; i++) {
            uint32_t header = n % 4 == 3 ? (uint32_t)(i % 3 ? 0 : 253) : random_below(most);
            bytes[i] = (uint8_t)(i < layout.blocks ? header : n % 16 == 0 ? 0xFF : n % 16 == 1 ? 0 : random_below(256));
        }
        if (n % 100 == 99)
            bytes[random_below(layout.blocks)] = (uint8_t)(254 + random_below(2));
        uint32_t length = twins[0]->unpack(&layout, bytes, &tile[0]);
        ck_assert((length == TILE_INVALID) == (n % 100 == 99));
        ck_assert(length == TILE_INVALID || length <= TILE_REACH - 32);
        for (size_t t = 1; t < twin_count; t++) {
            ck_assert_uint_eq(twins[t]->unpack(&layout, bytes, &tile[t]), length);
            for (uint32_t c = 0; c < record.geometry.components && length != TILE_INVALID; c++)
                compare_blocks(t, &record, &layout, c);
        }
    }
    free(bytes);
}
END_TEST

START_TEST(test_idct) {
    static _Alignas(64) int16_t blocks[RUN_MOST * BLOCK];
    uint64_t nonzero[RUN_MOST];
    uint8_t samples[2][8][8 * RUN_MOST];
    for (uint32_t n = 0; n < 20000; n++) {
        uint32_t count = 1 + n % RUN_MOST, range = n % 5 == 0 ? 65536 : n % 5 == 1 ? 16384 : 1u << (1 + n % 11);
        uint32_t last = n % 3 == 0 ? 1 + random_below(10) : BLOCK; /* zigzag positions */
        memset(blocks, 0, sizeof blocks);
        for (uint32_t b = 0; b < count; b++) {
            nonzero[b] = 0;
            for (uint32_t i = 0; i < last; i++) {
                int32_t value = (int32_t)random_below(range) - (int32_t)range / 2;
                blocks[b * BLOCK + coefficients_natural[i]] = (int16_t)value;
                nonzero[b] |= i && value ? UINT64_C(1) << (i - 1) : 0;
            }
        }
        idct_scalar(blocks, nonzero, count, samples[0][0], 8 * RUN_MOST);
        for (size_t t = 1; t < twin_count; t++) {
            twins[t]->idct(blocks, nonzero, count, samples[1][0], 8 * RUN_MOST);
            for (uint32_t y = 0; y < 8; y++)
                ck_assert_mem_eq(samples[0][y], samples[1][y], count * 8);
        }
    }
}
END_TEST

START_TEST(test_rows) {
    static uint8_t in[3][400 + 3 * ROW_SLACK], out[2][800 + 3 * ROW_SLACK];
    static uint16_t sums[400 + 3 * ROW_SLACK];
    for (uint32_t n = 0; n < 1000; n++) {
        uint32_t count = 1 + random_below(400);
        for (uint32_t i = 0; i < sizeof in; i++)
            in[i % 3][i / 3] = (uint8_t)(n % 3 ? random_below(256) : random_below(2) * 255);
        const uint8_t *a = in[0] + ROW_SLACK, *b = in[1] + ROW_SLACK, *c = in[2] + ROW_SLACK;
        for (size_t t = 1; t < twin_count; t++) {
            across_scalar(a, count, out[0]);
            twins[t]->across(a, count, out[1]);
            ck_assert_mem_eq(out[0], out[1], 2 * count);
            both_scalar(a, b, count, sums, out[0]);
            twins[t]->both(a, b, count, sums, out[1]);
            ck_assert_mem_eq(out[0], out[1], 2 * count);
            down_scalar(a, b, count, 1 + n % 2, out[0]);
            twins[t]->down(a, b, count, 1 + n % 2, out[1]);
            ck_assert_mem_eq(out[0], out[1], count);
            count = MIN(count, 250u);
            rgb_scalar(a, b, c, count, out[0]);
            memset(out[1], 0x5A, sizeof out[1]);
            twins[t]->rgb(a, b, c, count, out[1]);
            ck_assert_mem_eq(out[0], out[1], 3 * count);
            ck_assert_uint_eq(out[1][3 * count], 0x5A);
            gray_scalar(a, count, out[0]);
            memset(out[1], 0x5A, sizeof out[1]);
            twins[t]->gray(a, count, out[1]);
            ck_assert_mem_eq(out[0], out[1], 3 * count);
            ck_assert_uint_eq(out[1][3 * count], 0x5A);
        }
    }
}
END_TEST

/* RFC 3720, B.4; and any cut gives the same. */
START_TEST(test_crc32c) {
    static uint8_t bytes[10000];
    ck_assert_uint_eq(crc32c(0, "123456789", 9), 0xE3069283);
    ck_assert_uint_eq(crc32c(0, bytes, 32), 0x8A9136AA);
    memset(bytes, 0xFF, 32);
    ck_assert_uint_eq(crc32c(0, bytes, 32), 0x62A8AB43);
    for (uint32_t i = 0; i < 32; i++)
        bytes[i] = (uint8_t)i;
    ck_assert_uint_eq(crc32c(0, bytes, 32), 0x46DD794E);
    for (uint32_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)random_below(256);
    uint32_t whole = 0;
    for (uint32_t i = 0; i < sizeof bytes; i++)
        whole = crc32c(whole, bytes + i, 1);
    for (uint32_t cut = 0; cut <= sizeof bytes; cut += 499)
        ck_assert_uint_eq(crc32c(crc32c(0, bytes, cut), bytes + cut, sizeof bytes - cut), whole);
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("coefficients");
    TCase *t = tcase_create("coefficients");
    int kinds = (int)ARRAY_SIZE(recipes);
    tcase_set_timeout(t, 300);
    tcase_add_unchecked_fixture(t, setup, teardown);
    tcase_add_loop_test(t, test_regions, 0, kinds);
    tcase_add_loop_test(t, test_small, 0, kinds);
    tcase_add_test(t, test_colors);
    tcase_add_test(t, test_all_colors);
    tcase_add_loop_test(t, test_restore, 0, kinds);
    tcase_add_test(t, test_restore_needs_headers);
    tcase_add_loop_test(t, test_refused, 0, kinds);
    tcase_add_test(t, test_extremes);
    tcase_add_test(t, test_damaged_files);
    tcase_add_test(t, test_orientation);
    tcase_add_test(t, test_flips);
    tcase_add_loop_test(t, test_lies, 0, kinds);
    tcase_add_test(t, test_empty_tile);
    tcase_add_test(t, test_tiles);
    tcase_add_test(t, test_idct);
    tcase_add_test(t, test_rows);
    tcase_add_test(t, test_crc32c);
    suite_add_tcase(s, t);
    return s;
}

int main(void) {
    SRunner *runner = srunner_create(suite());
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
