/* SPDX-License-Identifier: MIT */
/*
 * Decoder: every region of every kind of JPEG equals the same pixels of libjpeg's own full-frame decode with default
 * settings (and of djpeg, where it is installed); verdicts depend on the bytes and the rows consumed only; damage,
 * limits and hostile files. The environment variable CHECK_DECODE_BOXES sets the number of random regions.
 */
#include <check.h>
#include <malloc.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <jpeglib.h>

#include "base/util.h"
#include "decode/decode.h"

#define SIDE_MOST 300u
#define TEXT_OF_(x) #x
#define TEXT_OF(x) TEXT_OF_(x)

/* --- making files ---------------------------------------------------------------------------------------------- */

struct file {
    uint8_t *bytes;
    size_t length;
};

enum coding { BASELINE, OPTIMISED, RESTARTS, PROGRESSIVE, ARITHMETIC, ARITHMETIC_PROGRESSIVE, SEPARATE, UNFINISHED };

struct recipe {
    const char *name;
    J_COLOR_SPACE from, to; /* of the samples given, of the file */
    int h, v;               /* sampling factors of the first component */
    int chroma_h, chroma_v; /* of the others */
    enum coding coding;
};

static const struct recipe recipes[] = {
    {"4:4:4", JCS_RGB, JCS_YCbCr, 1, 1, 1, 1, BASELINE},
    {"4:2:2", JCS_RGB, JCS_YCbCr, 2, 1, 1, 1, BASELINE},
    {"4:2:0", JCS_RGB, JCS_YCbCr, 2, 2, 1, 1, BASELINE},
    {"4:4:0", JCS_RGB, JCS_YCbCr, 1, 2, 1, 1, BASELINE},
    {"4:1:1", JCS_RGB, JCS_YCbCr, 4, 1, 1, 1, BASELINE},
    {"4:1:0", JCS_RGB, JCS_YCbCr, 4, 2, 1, 1, BASELINE},
    {"luma below chroma", JCS_RGB, JCS_YCbCr, 1, 1, 2, 2, BASELINE},
    {"gray", JCS_GRAYSCALE, JCS_GRAYSCALE, 1, 1, 1, 1, BASELINE},
    {"gray with factors 2x2", JCS_GRAYSCALE, JCS_GRAYSCALE, 2, 2, 1, 1, BASELINE},
    {"RGB", JCS_RGB, JCS_RGB, 1, 1, 1, 1, BASELINE},
    {"CMYK", JCS_CMYK, JCS_CMYK, 1, 1, 1, 1, BASELINE},
    {"YCCK", JCS_CMYK, JCS_YCCK, 1, 1, 1, 1, BASELINE},
    {"YCCK 4:2:0 progressive", JCS_CMYK, JCS_YCCK, 2, 2, 1, 1, PROGRESSIVE},
    {"4:2:0 optimised", JCS_RGB, JCS_YCbCr, 2, 2, 1, 1, OPTIMISED},
    {"4:4:4 restarts", JCS_RGB, JCS_YCbCr, 1, 1, 1, 1, RESTARTS},
    {"4:2:0 restarts", JCS_RGB, JCS_YCbCr, 2, 2, 1, 1, RESTARTS},
    {"4:4:4 progressive", JCS_RGB, JCS_YCbCr, 1, 1, 1, 1, PROGRESSIVE},
    {"4:2:2 progressive", JCS_RGB, JCS_YCbCr, 2, 1, 1, 1, PROGRESSIVE},
    {"4:2:0 progressive", JCS_RGB, JCS_YCbCr, 2, 2, 1, 1, PROGRESSIVE},
    {"4:4:0 progressive", JCS_RGB, JCS_YCbCr, 1, 2, 1, 1, PROGRESSIVE},
    {"gray progressive", JCS_GRAYSCALE, JCS_GRAYSCALE, 1, 1, 1, 1, PROGRESSIVE},
    {"4:2:0 separate scans", JCS_RGB, JCS_YCbCr, 2, 2, 1, 1, SEPARATE},
    {"4:2:2 separate scans", JCS_RGB, JCS_YCbCr, 2, 1, 1, 1, SEPARATE},
    {"4:2:0 unfinished progressive", JCS_RGB, JCS_YCbCr, 2, 2, 1, 1, UNFINISHED},
    {"4:4:4 unfinished progressive", JCS_RGB, JCS_YCbCr, 1, 1, 1, 1, UNFINISHED},
#ifdef C_ARITH_CODING_SUPPORTED
    {"4:2:0 arithmetic", JCS_RGB, JCS_YCbCr, 2, 2, 1, 1, ARITHMETIC},
    {"4:4:4 arithmetic", JCS_RGB, JCS_YCbCr, 1, 1, 1, 1, ARITHMETIC},
    {"4:2:2 arithmetic progressive", JCS_RGB, JCS_YCbCr, 2, 1, 1, 1, ARITHMETIC_PROGRESSIVE},
#endif
};

static const jpeg_scan_info separate_scans[] = {{1, {0}, 0, 63, 0, 0}, {1, {1}, 0, 63, 0, 0}, {1, {2}, 0, 63, 0, 0}};
static const jpeg_scan_info unfinished_scans[] = {{3, {0, 1, 2}, 0, 0, 0, 1}, {1, {0}, 1, 5, 0, 2}};

static uint64_t random_state = 88172645463325252u;

static uint32_t random_below_n(uint32_t n) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)((random_state >> 20) % n);
}

/* A picture with smooth parts, edges and noise. */
static void paint(uint8_t *row, uint32_t y, uint32_t width, int components, uint32_t salt) {
    for (uint32_t x = 0; x < width; x++) {
        for (int c = 0; c < components; c++) {
            uint32_t value = (x * (3 + (uint32_t)c) + y * (5 - (uint32_t)c) + salt) & 255;
            if ((x / 13 + y / 9 + salt) % 3 == 0)
                value = 40u + 60u * (uint32_t)c;
            if ((x + y + salt) % 5 == 0)
                value = random_below_n(256);
            *row++ = (uint8_t)value;
        }
    }
}

static void set_coding(struct jpeg_compress_struct *c, enum coding coding, uint32_t salt) {
    c->optimize_coding = coding == OPTIMISED;
    c->arith_code = coding == ARITHMETIC || coding == ARITHMETIC_PROGRESSIVE;
    if (coding == RESTARTS)
        c->restart_interval = 1 + salt % 7;
    if (coding == PROGRESSIVE || coding == ARITHMETIC_PROGRESSIVE)
        jpeg_simple_progression(c);
    if (coding == SEPARATE) {
        c->scan_info = separate_scans;
        c->num_scans = ARRAY_SIZE(separate_scans);
    }
    if (coding == UNFINISHED) {
        c->scan_info = unfinished_scans;
        c->num_scans = ARRAY_SIZE(unfinished_scans);
    }
}

static struct file make_file(const struct recipe *recipe, uint32_t width, uint32_t height, int quality, uint32_t salt) {
    struct jpeg_compress_struct c;
    struct jpeg_error_mgr errors;
    uint8_t row[SIDE_MOST * 4];
    struct file file;
    unsigned char *bytes = NULL;
    unsigned long length = 0;
    ck_assert_uint_le(width, SIDE_MOST);
    c.err = jpeg_std_error(&errors);
    jpeg_create_compress(&c);
    jpeg_mem_dest(&c, &bytes, &length);
    c.image_width = width;
    c.image_height = height;
    c.in_color_space = recipe->from;
    c.input_components = recipe->from == JCS_GRAYSCALE ? 1 : recipe->from == JCS_RGB ? 3 : 4;
    jpeg_set_defaults(&c);
    jpeg_set_colorspace(&c, recipe->to);
    jpeg_set_quality(&c, quality, TRUE);
    for (int i = 0; i < c.num_components; i++) {
        bool full = i == 0 || i == 3; /* K goes with Y */
        c.comp_info[i].h_samp_factor = full ? recipe->h : recipe->chroma_h;
        c.comp_info[i].v_samp_factor = full ? recipe->v : recipe->chroma_v;
    }
    set_coding(&c, recipe->coding, salt);
    jpeg_start_compress(&c, TRUE);
    while (c.next_scanline < height) {
        JSAMPROW at = row;
        paint(row, c.next_scanline, width, c.input_components, salt);
        jpeg_write_scanlines(&c, &at, 1);
    }
    jpeg_finish_compress(&c);
    jpeg_destroy_compress(&c);
    file.bytes = bytes;
    file.length = length;
    return file;
}

static const struct recipe *recipe_named(const char *name) {
    for (size_t i = 0; i < ARRAY_SIZE(recipes); i++) {
        if (strcmp(recipes[i].name, name) == 0)
            return &recipes[i];
    }
    return NULL;
}

/* `count` bytes at `at` replaced by `with`. */
static struct file splice(struct file file, size_t at, size_t count, const void *with, size_t with_length) {
    struct file r = {malloc(file.length - count + with_length), file.length - count + with_length};
    memcpy(r.bytes, file.bytes, at);
    memcpy(r.bytes + at, with, with_length);
    memcpy(r.bytes + at + with_length, file.bytes + at + count, file.length - at - count);
    return r;
}

static size_t find_marker(struct file file, uint8_t marker, size_t from) {
    for (size_t i = from; i + 1 < file.length; i++) {
        if (file.bytes[i] == 0xFF && file.bytes[i + 1] == marker)
            return i;
    }
    ck_abort_msg("no marker %02x", marker);
    return 0;
}

/* --- the reference --------------------------------------------------------------------------------------------- */

static void silent(j_common_ptr codec) {
    (void)codec;
}

static void cmyk_to(uint8_t *to, const uint8_t *from, uint32_t width, uint32_t channels) {
    for (uint32_t x = 0; x < width; x++, from += 4, to += channels) {
        uint32_t rgb[3];
        for (int i = 0; i < 3; i++)
            rgb[i] = (uint32_t)(from[i] * from[3] / 255.0 + 0.5);
        for (uint32_t i = 0; i < channels; i++)
            to[i] = (uint8_t)(channels == 3 ? rgb[i] : (19595 * rgb[0] + 38470 * rgb[1] + 7471 * rgb[2] + 32768) >> 16);
    }
}

/* The whole picture by libjpeg with its defaults. */
static uint8_t *reference(struct file file, uint32_t channels, long *ret_warnings) {
    struct jpeg_decompress_struct c;
    struct jpeg_error_mgr errors;
    c.err = jpeg_std_error(&errors);
    errors.output_message = silent;
    jpeg_create_decompress(&c);
    jpeg_mem_src(&c, file.bytes, file.length);
    jpeg_read_header(&c, TRUE);
    bool cmyk = c.num_components == 4;
    if (!cmyk)
        c.out_color_space = channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_start_decompress(&c);
    uint8_t *pixels = malloc((size_t)c.output_width * c.output_height * channels);
    uint8_t *wide = malloc((size_t)c.output_width * 4);
    while (c.output_scanline < c.output_height) {
        uint8_t *to = pixels + (size_t)c.output_scanline * c.output_width * channels;
        JSAMPROW row = cmyk ? wide : to;
        jpeg_read_scanlines(&c, &row, 1);
        if (cmyk)
            cmyk_to(to, wide, c.output_width, channels);
    }
    if (ret_warnings)
        *ret_warnings = errors.num_warnings;
    jpeg_abort_decompress(&c);
    jpeg_destroy_decompress(&c);
    free(wide);
    return pixels;
}

/* --- the decoder under test ------------------------------------------------------------------------------------ */

static struct decoder *decoder;
static uint8_t out_memory[2][SIDE_MOST * SIDE_MOST * 3];
static FILE *error_output; /* what went to stderr during the test */
static int stderr_saved;

static void setup(void) {
    ck_assert_int_eq(decoder_new(NULL, &decoder), 0);
    error_output = tmpfile();
    fflush(stderr);
    stderr_saved = dup(STDERR_FILENO);
    dup2(fileno(error_output), STDERR_FILENO);
}

static void teardown(void) {
    struct stat status;
    decoder_free(decoder);
    fflush(stderr);
    dup2(stderr_saved, STDERR_FILENO);
    close(stderr_saved);
    ck_assert_int_eq(fstat(fileno(error_output), &status), 0);
    ck_assert_msg(status.st_size == 0, "the codec printed %lld bytes to stderr", (long long)status.st_size);
    fclose(error_output);
}

struct outcome {
    enum decode_verdict verdict;
    bool complete;
    uint32_t width, height;
    uint8_t *pixels; /* of the region, packed */
    struct diag diag;
};

/* Opens and reads; a zero-sized box means the whole picture. Pixels go to one of two buffers full of 0xAA. */
static struct outcome decode(struct decoder *d, int which, struct file file, uint32_t channels, struct box box) {
    struct outcome o = {DECODE_BAD, false, 0, 0, out_memory[which], DIAG_INIT};
    struct decode_info info;
    o.verdict = decoder_open(d, file.bytes, file.length, &info, &o.diag);
    if (o.verdict != DECODE_OK)
        return o;
    if (box.width == 0)
        box = (struct box){0, 0, info.width, info.height};
    o.width = box.width;
    o.height = box.height;
    ck_assert_uint_le((uint64_t)box.width * box.height * channels, sizeof out_memory[0]);
    memset(o.pixels, 0xAA, (size_t)box.width * box.height * channels);
    struct picture picture = {o.pixels, (size_t)box.width * channels, box.width, box.height, channels};
    o.verdict = decoder_read(d, channels, &box, &picture, &o.diag);
    o.complete = decoder_damage_is_complete(d);
    ck_assert(o.verdict == DECODE_OK || o.diag.text[0]);
    return o;
}

static const struct box whole = {0, 0, 0, 0};

static void expect_pixels(const struct outcome *o, const uint8_t *full, uint32_t full_width, struct box box,
                          uint32_t channels, const char *name) {
    for (uint32_t y = 0; y < o->height; y++) {
        const uint8_t *wanted = full + ((size_t)(box.y + y) * full_width + box.x) * channels;
        if (memcmp(o->pixels + (size_t)y * o->width * channels, wanted, (size_t)o->width * channels) != 0)
            ck_abort_msg("%s: region %u,%u %ux%u channels %u differs in its row %u", name, box.x, box.y, box.width,
                         box.height, channels, y);
    }
}

static struct box random_box(uint32_t width, uint32_t height) {
    struct box box = {0, 0, 1 + random_below_n(width), 1 + random_below_n(height)};
    if (random_below_n(3) == 0)
        box.width = 1 + random_below_n(MIN(width, 20u));
    if (random_below_n(3) == 0)
        box.height = 1 + random_below_n(MIN(height, 20u));
    box.x = random_below_n(width - box.width + 1);
    box.y = random_below_n(height - box.height + 1);
    return box;
}

static int boxes_wanted(void) {
    const char *text = getenv("CHECK_DECODE_BOXES");
    return text ? atoi(text) : 6000;
}

/* --- what others computed --------------------------------------------------------------------------------------- */

/*
 * A 40x24 picture, pixel (x, y) = (x*255/39, y*255/23, x*y*7 mod 256), by `cjpeg -quality 60 -optimize -sample 2x2`
 * (libjpeg-turbo 2.1.5); zlib's CRC-32 of the pixels that `djpeg -ppm` and `djpeg -grayscale -pnm` make of it, and of
 * the 17x11 rectangle at (13, 9) cut out of the former.
 */
#define DJPEG_CRC 0x47F7B23Fu
#define DJPEG_CROP_CRC 0x28ECC7E1u
#define DJPEG_GRAY_CRC 0x2D132DB6u
static const uint8_t djpeg_420[] = {
    0xFF, 0xD8, 0xFF, 0xE0, 0x00, 0x10, 0x4A, 0x46, 0x49, 0x46, 0x00, 0x01, 0x01, 0x00, 0x00, 0x01, 0x00, 0x01, 0x00,
    0x00, 0xFF, 0xDB, 0x00, 0x43, 0x00, 0x0D, 0x09, 0x0A, 0x0B, 0x0A, 0x08, 0x0D, 0x0B, 0x0A, 0x0B, 0x0E, 0x0E, 0x0D,
    0x0F, 0x13, 0x20, 0x15, 0x13, 0x12, 0x12, 0x13, 0x27, 0x1C, 0x1E, 0x17, 0x20, 0x2E, 0x29, 0x31, 0x30, 0x2E, 0x29,
    0x2D, 0x2C, 0x33, 0x3A, 0x4A, 0x3E, 0x33, 0x36, 0x46, 0x37, 0x2C, 0x2D, 0x40, 0x57, 0x41, 0x46, 0x4C, 0x4E, 0x52,
    0x53, 0x52, 0x32, 0x3E, 0x5A, 0x61, 0x5A, 0x50, 0x60, 0x4A, 0x51, 0x52, 0x4F, 0xFF, 0xDB, 0x00, 0x43, 0x01, 0x0E,
    0x0E, 0x0E, 0x13, 0x11, 0x13, 0x26, 0x15, 0x15, 0x26, 0x4F, 0x35, 0x2D, 0x35, 0x4F, 0x4F, 0x4F, 0x4F, 0x4F, 0x4F,
    0x4F, 0x4F, 0x4F, 0x4F, 0x4F, 0x4F, 0x4F, 0x4F, 0x4F, 0x4F, 0x4F, 0x4F, 0x4F, 0x4F, 0x4F, 0x4F, 0x4F, 0x4F, 0x4F,
    0x4F, 0x4F, 0x4F, 0x4F, 0x4F, 0x4F, 0x4F, 0x4F, 0x4F, 0x4F, 0x4F, 0x4F, 0x4F, 0x4F, 0x4F, 0x4F, 0x4F, 0x4F, 0x4F,
    0x4F, 0x4F, 0x4F, 0x4F, 0x4F, 0x4F, 0xFF, 0xC0, 0x00, 0x11, 0x08, 0x00, 0x18, 0x00, 0x28, 0x03, 0x01, 0x22, 0x00,
    0x02, 0x11, 0x01, 0x03, 0x11, 0x01, 0xFF, 0xC4, 0x00, 0x17, 0x00, 0x01, 0x01, 0x01, 0x01, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0x05, 0x06, 0xFF, 0xC4, 0x00, 0x25, 0x10, 0x00, 0x01,
    0x03, 0x03, 0x03, 0x04, 0x03, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x02, 0x11, 0x03,
    0x04, 0x21, 0x31, 0x41, 0x61, 0x12, 0x22, 0x51, 0x91, 0x14, 0x71, 0x81, 0xE1, 0xFF, 0xC4, 0x00, 0x17, 0x01, 0x01,
    0x01, 0x01, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0x05, 0x03, 0x07,
    0xFF, 0xC4, 0x00, 0x24, 0x11, 0x00, 0x01, 0x03, 0x02, 0x05, 0x05, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x01, 0x00, 0x02, 0x03, 0x04, 0xF0, 0x11, 0x12, 0x21, 0x31, 0x51, 0x13, 0x14, 0x61, 0x71, 0x81, 0xD1,
    0xFF, 0xDA, 0x00, 0x0C, 0x03, 0x01, 0x00, 0x02, 0x11, 0x03, 0x11, 0x00, 0x3F, 0x00, 0xE1, 0xED, 0xEC, 0x01, 0x12,
    0xE1, 0x85, 0x6D, 0x3B, 0x16, 0xE2, 0x29, 0xFB, 0xD4, 0xFE, 0x2D, 0x6A, 0x16, 0x7D, 0x8D, 0x11, 0xCF, 0xD9, 0x55,
    0xD3, 0xB3, 0x99, 0x27, 0x4F, 0xA4, 0xB6, 0x48, 0xC0, 0xC0, 0x00, 0xD5, 0x12, 0x9E, 0xB4, 0xE3, 0xBA, 0xC7, 0x65,
    0x93, 0x70, 0x43, 0x04, 0x71, 0x0A, 0xBA, 0x76, 0x31, 0xA3, 0x1A, 0x78, 0x2D, 0xCA, 0xD6, 0x65, 0x9E, 0x92, 0x35,
    0x55, 0x32, 0xCF, 0xC0, 0xCE, 0xDC, 0x2C, 0x1D, 0x3B, 0x71, 0x37, 0x77, 0xED, 0x5D, 0xA7, 0xAC, 0xF2, 0xB2, 0x3E,
    0x13, 0x5D, 0x4D, 0xA5, 0xAC, 0x03, 0x3B, 0x04, 0x5D, 0x0D, 0x2B, 0x29, 0x20, 0x06, 0xE3, 0xA8, 0x11, 0xE9, 0x11,
    0xCB, 0x3B, 0x97, 0x67, 0xF8, 0xAD, 0x47, 0x5D, 0x95, 0xBB, 0xA9, 0xE8, 0xDA, 0x76, 0x00, 0x5B, 0x88, 0xF1, 0xC7,
    0xF4, 0xAA, 0xE9, 0xDA, 0x6F, 0xD3, 0x28, 0x88, 0x66, 0x57, 0xE5, 0xBE, 0x17, 0x24, 0xA7, 0x95, 0xCA, 0xAA, 0x76,
    0x62, 0x07, 0x6A, 0xA6, 0x9D, 0x9C, 0xC1, 0x8C, 0x7B, 0x44, 0x58, 0xBE, 0x47, 0x13, 0xAD, 0xED, 0xFA, 0xAE, 0xD3,
    0x4A, 0xE5, 0x4D, 0x3B, 0x39, 0xC4, 0x6D, 0xB7, 0xEA, 0x22, 0x20, 0xB8, 0x75, 0x06, 0x2E, 0xE4, 0xAB, 0x71, 0xCC,
    0xF0, 0x17, 0xFF, 0xD9,
};

/* An 8x8 CMYK picture, pixel (6x, 5y, 20+x+y, 3*(x/2)), saved by Pillow 13.0.0 as JPEG (quality=95, optimize=True), and
 * what Image.open(...).convert("RGB") makes of it. Pillow rounds the product otherwise: equal within 1. */
static const uint8_t pillow_cmyk[] = {
    0xFF, 0xD8, 0xFF, 0xEE, 0x00, 0x0E, 0x41, 0x64, 0x6F, 0x62, 0x65, 0x00, 0x64, 0x00, 0x00, 0x00, 0x00, 0x00, 0xFF,
    0xDB, 0x00, 0x43, 0x00, 0x02, 0x01, 0x01, 0x01, 0x01, 0x01, 0x02, 0x01, 0x01, 0x01, 0x02, 0x02, 0x02, 0x02, 0x02,
    0x04, 0x03, 0x02, 0x02, 0x02, 0x02, 0x05, 0x04, 0x04, 0x03, 0x04, 0x06, 0x05, 0x06, 0x06, 0x06, 0x05, 0x06, 0x06,
    0x06, 0x07, 0x09, 0x08, 0x06, 0x07, 0x09, 0x07, 0x06, 0x06, 0x08, 0x0B, 0x08, 0x09, 0x0A, 0x0A, 0x0A, 0x0A, 0x0A,
    0x06, 0x08, 0x0B, 0x0C, 0x0B, 0x0A, 0x0C, 0x09, 0x0A, 0x0A, 0x0A, 0xFF, 0xC0, 0x00, 0x14, 0x08, 0x00, 0x08, 0x00,
    0x08, 0x04, 0x43, 0x11, 0x00, 0x4D, 0x11, 0x00, 0x59, 0x11, 0x00, 0x4B, 0x11, 0x00, 0xFF, 0xC4, 0x00, 0x14, 0x00,
    0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x09, 0xFF, 0xC4,
    0x00, 0x20, 0x10, 0x00, 0x01, 0x01, 0x08, 0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x05, 0x07, 0x17, 0x22, 0x31, 0x41, 0x43, 0x51, 0x64, 0x81, 0xA1, 0xF0, 0xFF, 0xDA, 0x00, 0x0E, 0x04, 0x43,
    0x00, 0x4D, 0x00, 0x59, 0x00, 0x4B, 0x00, 0x00, 0x3F, 0x00, 0x6A, 0x1B, 0x6D, 0xEE, 0x46, 0xD9, 0xED, 0xED, 0x76,
    0x32, 0x0A, 0x4A, 0x53, 0x88, 0x7A, 0x96, 0xAB, 0xEC, 0x1F, 0xFF, 0xD9,
};
static const uint8_t pillow_rgb[] = {
    0xFF, 0xFF, 0xEB, 0xF9, 0xFF, 0xEA, 0xF0, 0xFC, 0xE6, 0xEA, 0xFC, 0xE5, 0xE2, 0xF9, 0xE2, 0xDC, 0xF9, 0xE1,
    0xD3, 0xF6, 0xDD, 0xCD, 0xF6, 0xDC, 0xFF, 0xFA, 0xEA, 0xF9, 0xFA, 0xE9, 0xF0, 0xF7, 0xE5, 0xEA, 0xF7, 0xE4,
    0xE2, 0xF4, 0xE1, 0xDC, 0xF4, 0xE0, 0xD3, 0xF1, 0xDC, 0xCD, 0xF1, 0xDB, 0xFF, 0xF5, 0xE9, 0xF9, 0xF5, 0xE8,
    0xF0, 0xF2, 0xE4, 0xEA, 0xF2, 0xE3, 0xE2, 0xEF, 0xE0, 0xDC, 0xEF, 0xDF, 0xD3, 0xEC, 0xDB, 0xCD, 0xEC, 0xDA,
    0xFF, 0xF0, 0xE8, 0xF9, 0xF0, 0xE7, 0xF0, 0xED, 0xE3, 0xEA, 0xED, 0xE2, 0xE2, 0xEA, 0xDF, 0xDC, 0xEA, 0xDE,
    0xD3, 0xE8, 0xDA, 0xCD, 0xE8, 0xD9, 0xFF, 0xEB, 0xE7, 0xF9, 0xEB, 0xE6, 0xF0, 0xE8, 0xE2, 0xEA, 0xE8, 0xE1,
    0xE2, 0xE5, 0xDE, 0xDC, 0xE5, 0xDD, 0xD3, 0xE3, 0xD9, 0xCD, 0xE3, 0xD8, 0xFF, 0xE6, 0xE6, 0xF9, 0xE6, 0xE5,
    0xF0, 0xE3, 0xE1, 0xEA, 0xE3, 0xE0, 0xE2, 0xE1, 0xDD, 0xDC, 0xE1, 0xDC, 0xD3, 0xDE, 0xD8, 0xCD, 0xDE, 0xD7,
    0xFF, 0xE1, 0xE5, 0xF9, 0xE1, 0xE4, 0xF0, 0xDE, 0xE0, 0xEA, 0xDE, 0xDF, 0xE2, 0xDC, 0xDC, 0xDC, 0xDC, 0xDB,
    0xD3, 0xD9, 0xD7, 0xCD, 0xD9, 0xD6, 0xFF, 0xDC, 0xE4, 0xF9, 0xDC, 0xE3, 0xF0, 0xD9, 0xDF, 0xEA, 0xD9, 0xDE,
    0xE2, 0xD7, 0xDB, 0xDC, 0xD7, 0xDA, 0xD3, 0xD4, 0xD6, 0xCD, 0xD4, 0xD5,
};

/* --- tests ----------------------------------------------------------------------------------------------------- */

START_TEST(sniff_tells_kinds) {
    static const struct {
        const char *bytes;
        size_t length;
        const char *kind;
    } cases[] = {
        {"", 0, "empty"},
        {"\xFF\xD8\xFF\xE0", 4, "JPEG"},
        {"\xAB"
         "JCR\x01",
         5, "JPEG coefficients"},
        {"\x89PNG\r\n\x1A\n", 8, "PNG"},
        {"GIF89a", 6, "GIF"},
        {"BM\x36\x24", 4, "BMP"},
        {"RIFF\x10\0\0\0WEBPVP8 ", 16, "WebP"},
        {"RIFF\x10\0\0\0WAVEfmt ", 16, "unknown data"},
        {"II*\0", 4, "TIFF"},
        {"MM\0*", 4, "TIFF"},
        {"\x1F\x8B\x08", 3, "gzip data"},
        {"<!DOCTYPE HTML>", 15, "HTML"},
        {"\xEF\xBB\xBF \n<html lang=", 16, "HTML"},
        {"404 not found\n", 14, "text"},
        {"version https://git-lfs", 23, "text"},
        {"\0\0\0\0", 4, "unknown data"},
        {"\xFF", 1, "unknown data"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        ck_assert_str_eq(decode_sniff((const uint8_t *)cases[i].bytes, cases[i].length), cases[i].kind);
}
END_TEST

/* DEC-01, 03, 11, 17 and the region decode: random kinds, sizes, qualities and boxes against the full frame. */
START_TEST(regions_equal_full_frame) {
    const int per_file = 25;
    for (int done = 0, n = 0; done < boxes_wanted(); n++) {
        const struct recipe *recipe = &recipes[(size_t)n % ARRAY_SIZE(recipes)];
        uint32_t most = random_below_n(3) == 0 ? 40 : SIDE_MOST;
        uint32_t width = 1 + random_below_n(most), height = 1 + random_below_n(most);
        uint32_t channels = random_below_n(4) == 0 ? 1 : 3;
        struct file file = make_file(recipe, width, height, 30 + (int)random_below_n(70), (uint32_t)n);
        uint8_t *full = reference(file, channels, NULL);
        for (int i = 0; i < per_file; i++, done++) {
            struct box box = i == 0 ? (struct box){0, 0, width, height} : random_box(width, height);
            struct outcome o = decode(decoder, 0, file, channels, box);
            ck_assert_msg(o.verdict == DECODE_OK, "%s: %s", recipe->name, o.diag.text);
            expect_pixels(&o, full, width, box, channels, recipe->name);
        }
        free(full);
        free(file.bytes);
    }
}
END_TEST

/* Every position and size near the block edges of small pictures. */
START_TEST(regions_at_block_edges) {
    static const uint32_t edges[] = {0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 34};
    for (size_t k = 0; k < ARRAY_SIZE(recipes); k++) {
        struct file file = make_file(&recipes[k], 35, 35, 80, (uint32_t)k);
        uint8_t *full = reference(file, 3, NULL);
        for (size_t a = 0; a < ARRAY_SIZE(edges); a++) {
            for (size_t b = a; b < ARRAY_SIZE(edges); b++) {
                struct box wide = {edges[a], edges[b], edges[b] - edges[a] + 1, 35 - edges[b]};
                struct box tall = {edges[b], edges[a], 35 - edges[b], edges[b] - edges[a] + 1};
                struct outcome o = decode(decoder, 0, file, 3, wide);
                expect_pixels(&o, full, 35, wide, 3, recipes[k].name);
                o = decode(decoder, 0, file, 3, tall);
                expect_pixels(&o, full, 35, tall, 3, recipes[k].name);
            }
        }
        free(full);
        free(file.bytes);
    }
}
END_TEST

/* The last columns of every width: what is left of the last MCU can be narrower than the filter. */
START_TEST(regions_at_the_right_edge) {
    for (size_t k = 0; k < ARRAY_SIZE(recipes); k++) {
        for (uint32_t width = 1; width <= 70; width++) {
            struct file file = make_file(&recipes[k], width, 9, 80, (uint32_t)k);
            uint8_t *full = reference(file, 3, NULL);
            for (uint32_t columns = 1; columns <= MIN(width, 3u); columns++) {
                struct box box = {width - columns, 2, columns, 6};
                struct outcome o = decode(decoder, 0, file, 3, box);
                expect_pixels(&o, full, width, box, 3, recipes[k].name);
            }
            free(full);
            free(file.bytes);
        }
    }
}
END_TEST

START_TEST(header_tells_size_and_kind) {
    struct decode_info info;
    struct file file = make_file(recipe_named("4:2:0"), 64, 48, 90, 1);
    ck_assert_int_eq(decoder_open(decoder, file.bytes, file.length, &info, NULL), DECODE_OK);
    ck_assert_uint_eq(info.width, 64);
    ck_assert_uint_eq(info.height, 48);
    ck_assert_uint_eq(info.channels, 3);
    ck_assert_str_eq(info.kind, "JPEG");
    decoder_close(decoder);
    decoder_close(decoder);
    struct picture picture = {out_memory[0], 64 * 3, 64, 48, 3};
    struct diag diag = DIAG_INIT;
    ck_assert_int_eq(decoder_read(decoder, 3, &(struct box){0, 0, 64, 48}, &picture, &diag), DECODE_BAD);
    ck_assert_int_eq(diag.code, -EINVAL);
    ck_assert_ptr_nonnull(strstr(decode_version(0), "libjpeg"));
    free(file.bytes);
}
END_TEST

START_TEST(reads_again_without_open) {
    struct file file = make_file(recipe_named("4:2:0 progressive"), 90, 70, 90, 1);
    uint8_t *full = reference(file, 3, NULL);
    struct decode_info info;
    ck_assert_int_eq(decoder_open(decoder, file.bytes, file.length, &info, NULL), DECODE_OK);
    for (int i = 0; i < 20; i++) {
        struct box box = random_box(90, 70);
        struct picture picture = {out_memory[0], (size_t)box.width * 3, box.width, box.height, 3};
        ck_assert_int_eq(decoder_read(decoder, 3, &box, &picture, NULL), DECODE_OK);
        struct outcome o = {DECODE_OK, false, box.width, box.height, out_memory[0], DIAG_INIT};
        expect_pixels(&o, full, 90, box, 3, "again");
    }
    free(full);
    free(file.bytes);
}
END_TEST

/* A stride wider than the rows: nothing is written between them. */
START_TEST(stride_is_respected) {
    static const struct box boxes[] = {{0, 0, 64, 48}, {5, 3, 20, 30}, {16, 0, 48, 20}};
    struct file file = make_file(recipe_named("4:4:4"), 64, 48, 90, 1);
    struct decode_info info;
    for (size_t i = 0; i < ARRAY_SIZE(boxes); i++) {
        struct picture picture = {out_memory[0], 256, boxes[i].width, boxes[i].height, 3};
        memset(out_memory[0], 0xAA, sizeof out_memory[0]);
        ck_assert_int_eq(decoder_open(decoder, file.bytes, file.length, &info, NULL), DECODE_OK);
        ck_assert_int_eq(decoder_read(decoder, 3, &boxes[i], &picture, NULL), DECODE_OK);
        for (uint32_t y = 0; y <= boxes[i].height; y++) {
            for (size_t x = y < boxes[i].height ? boxes[i].width * 3 : 0; x < 256; x++)
                ck_assert_uint_eq(out_memory[0][y * 256 + x], 0xAA);
        }
    }
    free(file.bytes);
}
END_TEST

static uint32_t crc32_of(const uint8_t *bytes, size_t length) {
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t i = 0; i < length; i++) {
        crc ^= bytes[i];
        for (int k = 0; k < 8; k++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    }
    return ~crc;
}

START_TEST(equals_committed_djpeg_values) {
    struct file file = {(uint8_t *)(uintptr_t)djpeg_420, sizeof djpeg_420};
    struct outcome o = decode(decoder, 0, file, 3, whole);
    ck_assert_int_eq(o.verdict, DECODE_OK);
    ck_assert_uint_eq(crc32_of(o.pixels, 40 * 24 * 3), DJPEG_CRC);
    o = decode(decoder, 0, file, 3, (struct box){13, 9, 17, 11});
    ck_assert_int_eq(o.verdict, DECODE_OK);
    ck_assert_uint_eq(crc32_of(o.pixels, 17 * 11 * 3), DJPEG_CROP_CRC);
    o = decode(decoder, 0, file, 1, whole);
    ck_assert_int_eq(o.verdict, DECODE_OK);
    ck_assert_uint_eq(crc32_of(o.pixels, 40 * 24), DJPEG_GRAY_CRC);
}
END_TEST

/* DEC-01: a light CMYK picture stays light: no ink (255, as Adobe stores it) is white. */
START_TEST(cmyk_as_pillow) {
    struct file file = {(uint8_t *)(uintptr_t)pillow_cmyk, sizeof pillow_cmyk};
    struct decode_info info;
    ck_assert_int_eq(decoder_open(decoder, file.bytes, file.length, &info, NULL), DECODE_OK);
    ck_assert_uint_eq(info.channels, 4);
    struct outcome o = decode(decoder, 0, file, 3, whole);
    ck_assert_int_eq(o.verdict, DECODE_OK);
    for (size_t i = 0; i < sizeof pillow_rgb; i++)
        ck_assert_int_le(abs(o.pixels[i] - pillow_rgb[i]), 1);
}
END_TEST

START_TEST(gray_gives_three_equal_channels) {
    struct file file = make_file(recipe_named("gray"), 64, 48, 90, 1);
    uint8_t *gray = reference(file, 1, NULL);
    struct outcome o = decode(decoder, 0, file, 3, whole);
    ck_assert_int_eq(o.verdict, DECODE_OK);
    for (size_t i = 0; i < 64 * 48; i++) {
        for (int c = 0; c < 3; c++)
            ck_assert_uint_eq(o.pixels[3 * i + (size_t)c], gray[i]);
    }
    free(gray);
    free(file.bytes);
}
END_TEST

START_TEST(other_kinds_are_named) {
    static const struct {
        const char *bytes;
        size_t length;
        const char *text;
    } cases[] = {
        {"BM\x36\x24\0\0", 6, "content is BMP (42 4D 36 24), not JPEG, PNG or WebP"},
        {"GIF89a", 6, "content is GIF (47 49 46 38), not JPEG, PNG or WebP"},
        {"", 0, "content is empty (0 bytes), no picture"},
        {"\0", 1, "content is unknown data (00), not JPEG, PNG or WebP"},
        {"<html>", 6, "content is HTML (3C 68 74 6D), not JPEG, PNG or WebP"},
    };
    struct decode_info info;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct diag diag = DIAG_INIT;
        ck_assert_int_eq(decoder_open(decoder, (const uint8_t *)cases[i].bytes, cases[i].length, &info, &diag),
                         DECODE_BAD);
        ck_assert_str_eq(diag.text, cases[i].text);
    }
}
END_TEST

/* DEC-06 */
START_TEST(harmless_junk) {
    struct file file = make_file(recipe_named("4:2:0"), 64, 48, 90, 1);
    uint8_t *full = reference(file, 3, NULL);
    struct file junk = splice(file, find_marker(file, 0xDB, 0), 0, "\x11\x22", 2);
    struct outcome o = decode(decoder, 0, junk, 3, whole);
    ck_assert_int_eq(o.verdict, DECODE_DAMAGED);
    ck_assert(o.complete);
    ck_assert_ptr_nonnull(strstr(o.diag.text, "2 extraneous bytes before marker 0xdb"));
    ck_assert_ptr_nonnull(strstr(o.diag.text, "near byte 2"));
    expect_pixels(&o, full, 64, (struct box){0, 0, 64, 48}, 3, "junk before DQT");
    struct box box = {20, 10, 30, 20};
    o = decode(decoder, 0, junk, 3, box);
    ck_assert_int_eq(o.verdict, DECODE_DAMAGED);
    ck_assert(o.complete);
    expect_pixels(&o, full, 64, box, 3, "junk before DQT");
    free(junk.bytes);

    junk = splice(file, file.length - 2, 0, "\x7F", 1);
    o = decode(decoder, 0, junk, 3, whole);
    ck_assert_int_eq(o.verdict, DECODE_OK);
    ck_assert(!o.complete);
    expect_pixels(&o, full, 64, (struct box){0, 0, 64, 48}, 3, "junk before EOI");
    free(junk.bytes);
    free(full);
    free(file.bytes);
}
END_TEST

/* DEC-07 */
START_TEST(cut_files) {
    struct file file = make_file(recipe_named("4:2:0"), 64, 48, 90, 1);
    uint8_t *full = reference(file, 3, NULL);
    struct file cut = {file.bytes, file.length * 7 / 10};
    char where[64];
    struct outcome o = decode(decoder, 0, cut, 3, whole);
    ck_assert_int_eq(o.verdict, DECODE_DAMAGED);
    ck_assert(!o.complete);
    snprintf(where, sizeof where, "near byte %zu of %zu", cut.length, cut.length);
    ck_assert_msg(strstr(o.diag.text, "Premature end") && strstr(o.diag.text, where), "%s", o.diag.text);
    o = decode(decoder, 0, cut, 3, (struct box){0, 0, 64, 8}); /* the damage is below */
    ck_assert_int_eq(o.verdict, DECODE_OK);

    cut.length = file.length - 2;
    o = decode(decoder, 0, cut, 3, whole);
    ck_assert_int_eq(o.verdict, DECODE_DAMAGED);
    ck_assert(o.complete);
    expect_pixels(&o, full, 64, (struct box){0, 0, 64, 48}, 3, "without EOI");
    free(full);
    free(file.bytes);
}
END_TEST

/* The same verdict, sentence and pixels for a region as for all columns and rows down to its last row. */
static void expect_same_as_plain(struct file file, uint32_t width, uint32_t height, const char *name, size_t at) {
    const struct box boxes[] = {
        {width / 3, height / 2, width / 4 + 1, height - height / 2}, /* to the last row */
        {width / 2, height / 3, width - width / 2, 3},
        {0, height / 4, 1, 1},
        {1, 0, width - 1, height / 2},
    };
    for (size_t i = 0; i < ARRAY_SIZE(boxes); i++) {
        const struct box *b = &boxes[i];
        struct outcome region = decode(decoder, 0, file, 3, *b);
        struct outcome plain = decode(decoder, 1, file, 3, (struct box){0, 0, width, b->y + b->height});
        ck_assert_msg(region.verdict == plain.verdict && region.complete == plain.complete &&
                          strcmp(region.diag.text, plain.diag.text) == 0,
                      "%s at %zu, box %zu: %d \"%s\" against %d \"%s\"", name, at, i, region.verdict, region.diag.text,
                      plain.verdict, plain.diag.text);
        if (region.verdict != DECODE_BAD)
            expect_pixels(&region, plain.pixels, width, *b, 3, name);
    }
}

static const char *const fragile[] = {
    "4:2:0",
    "4:4:4",
    "4:2:0 restarts",
    "4:2:0 progressive",
    "4:4:0",
    "4:2:0 separate scans",
    "YCCK",
    "gray",
#ifdef C_ARITH_CODING_SUPPORTED
    "4:2:0 arithmetic",
#endif
};

START_TEST(cut_at_every_byte) {
    const char *name = fragile[_i];
    struct file file = make_file(recipe_named(name), 40, 50, 70, 5);
    uint8_t *full = reference(file, 3, NULL);
    bool scans = strstr(name, "scans") || strstr(name, "progressive"); /* cut inside a later header: bad or damaged */
    size_t data = find_marker(file, 0xDA, 0);                          /* as for any file cut before its data */
    data += 2 + (size_t)(file.bytes[data + 2] << 8 | file.bytes[data + 3]);
    int complete = 0;
    char where[DIAG_TEXT + 80];
    for (size_t length = 0; length < file.length; length++) {
        struct file cut = {malloc(length + 1), length}; /* of its own, so that a sanitizer sees its end */
        memcpy(cut.bytes, file.bytes, length);
        cut.bytes = realloc(cut.bytes, MAX(length, (size_t)1));
        struct decode_info info;
        if (decoder_open(decoder, cut.bytes, cut.length, &info, NULL) == DECODE_OK) {
            expect_same_as_plain(cut, 40, 50, name, length);
            struct outcome o = decode(decoder, 0, cut, 3, whole);
            ck_assert_msg(o.verdict == DECODE_DAMAGED || (o.verdict == DECODE_BAD && (length < data || scans)),
                          "%s cut at %zu of %zu: verdict %d", name, length, file.length, o.verdict);
            if (o.complete) {
                snprintf(where, sizeof where, "%s cut at %zu of %zu (%s)", name, length, file.length, o.diag.text);
                expect_pixels(&o, full, 40, (struct box){0, 0, 40, 50}, 3, where);
                complete++;
            }
        }
        free(cut.bytes);
    }
    ck_assert_msg(complete <= 3, "%s: %d cuts are called complete", name, complete);
    free(full);
    free(file.bytes);
}
END_TEST

/* DEC-16: damaged bytes; every verdict as the plain way's, nothing left of another picture, memory flat. */
START_TEST(damaged_anywhere) {
    const char *name = fragile[_i];
    struct file file = make_file(recipe_named(name), 48, 40, 80, 7);
    struct decoder *fresh;
    for (int i = 0; i < 150; i++) {
        struct file bad = splice(file, 0, 0, "", 0);
        for (uint32_t k = 0; k <= random_below_n(3); k++)
            bad.bytes[2 + random_below_n((uint32_t)bad.length - 2)] = (uint8_t)random_below_n(256);
        struct decode_info info;
        bool opens = decoder_open(decoder, bad.bytes, bad.length, &info, NULL) == DECODE_OK;
        if (opens && info.width >= 4 && info.height >= 4 && info.width <= SIDE_MOST && info.height <= SIDE_MOST) {
            expect_same_as_plain(bad, info.width, info.height, name, (size_t)i);
            ck_assert_int_eq(decoder_new(NULL, &fresh), 0);
            struct outcome a = decode(decoder, 0, bad, 3, whole), b = decode(fresh, 1, bad, 3, whole);
            ck_assert_int_eq(a.verdict, b.verdict);
            ck_assert_str_eq(a.diag.text, b.diag.text);
            if (a.verdict != DECODE_BAD)
                ck_assert_mem_eq(a.pixels, b.pixels, (size_t)a.width * a.height * 3);
            decoder_free(fresh);
        }
        free(bad.bytes);
    }
    free(file.bytes);
}
END_TEST

#if defined(__SANITIZE_ADDRESS__)
#define RESIDENT_SLACK ((size_t)64 << 20) /* the sanitizer's quarantine grows */
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define RESIDENT_SLACK ((size_t)64 << 20)
#endif
#endif
#ifndef RESIDENT_SLACK
#define RESIDENT_SLACK ((size_t)2 << 20)
#endif

static size_t resident_bytes(void) {
    unsigned long size = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(fscanf(f, "%lu %lu", &size, &resident), 2);
    fclose(f);
    return resident * (size_t)sysconf(_SC_PAGESIZE);
}

START_TEST(ten_thousand_bad_files) {
    struct file good = make_file(recipe_named("4:2:0 restarts"), 64, 48, 90, 0);
    size_t restart = find_marker(good, 0xD1, 0);
    struct file wrong = splice(good, restart, 2, "\xFF\xD5", 2);
    struct file torn = splice(good, restart + 40, 4, "\xFF\xD5\0\0", 4);
    struct file fatal = splice(good, find_marker(good, 0xDA, 0), 2, "\xFF\xC3", 2);
    struct file progressive = make_file(recipe_named("4:2:0 progressive"), 64, 48, 90, 0);
    struct file cut = {progressive.bytes, find_marker(progressive, 0xDA, 0) + 40}; /* in the first scan's data */
    struct file *files[] = {&wrong, &torn, &fatal, &cut};
    static const enum decode_verdict wanted[] = {DECODE_DAMAGED, DECODE_DAMAGED, DECODE_BAD, DECODE_DAMAGED};
    size_t resident = 0, peak = 0, heap = 0;
    for (int i = 0; i < 10000; i++) {
        struct box box = i % 3 == 0 ? whole : (struct box){10, 20, 30, 28};
        struct outcome o = decode(decoder, 0, *files[i % 4], 3, box);
        ck_assert_msg(o.verdict == wanted[i % 4], "file %d: %d %s", i % 4, o.verdict, o.diag.text);
        ck_assert(!o.complete || o.verdict == DECODE_DAMAGED);
        if (i == 100) {
            resident = resident_bytes();
            peak = decoder_memory_peak(decoder);
            heap = mallinfo2().uordblks;
        }
    }
    ck_assert_uint_eq(decoder_memory_peak(decoder), peak);
    ck_assert_uint_le(resident_bytes(), resident + RESIDENT_SLACK);
    ck_assert_uint_eq(mallinfo2().uordblks, heap); /* not one byte of heap kept by 9,900 decodes */
    free(wrong.bytes);
    free(torn.bytes);
    free(fatal.bytes);
    free(progressive.bytes);
    free(good.bytes);
}
END_TEST

/* A picture without tables must not be decoded with those of the picture before. */
START_TEST(no_tables_of_another_picture) {
    struct file file = make_file(recipe_named("4:4:4"), 32, 32, 50, 0), other = make_file(&recipes[0], 32, 32, 99, 1);
    size_t dqt = find_marker(file, 0xDB, 0);
    struct file without = splice(file, dqt, 2 + (size_t)(file.bytes[dqt + 2] << 8 | file.bytes[dqt + 3]), "", 0);
    ck_assert_int_eq(decode(decoder, 0, other, 3, whole).verdict, DECODE_OK);
    struct outcome o = decode(decoder, 0, without, 3, whole);
    ck_assert_int_eq(o.verdict, DECODE_BAD);
    ck_assert_msg(strstr(o.diag.text, "Quantization table 0x00 was not defined"), "%s", o.diag.text);
    free(without.bytes);
    free(other.bytes);
    free(file.bytes);
}
END_TEST

/* DEC-08: the last scan of a big progressive file, 3,000 times. */
START_TEST(scan_limit) {
    enum { TIMES = 3000 };
    struct file file = make_file(recipe_named("gray progressive"), 64, 64, 10, 0);
    size_t sof = find_marker(file, 0xC2, 0);
    memcpy(file.bytes + sof + 5, "\x10\x00\x10\x00", 4); /* 4096x4096: as large as the case's, the rest is missing */
    size_t last = 0;
    for (size_t i = 0; i + 1 < file.length; i++)
        last = file.bytes[i] == 0xFF && file.bytes[i + 1] == 0xDA ? i : last;
    size_t piece = file.length - 2 - last;
    uint8_t *scans = malloc(piece * TIMES);
    for (size_t i = 0; i < TIMES; i++)
        memcpy(scans + i * piece, file.bytes + last, piece);
    struct file bomb = splice(file, file.length - 2, 0, scans, piece * TIMES);
    uint64_t start = now_ns();
    struct outcome o = decode(decoder, 0, bomb, 3, (struct box){0, 0, 100, 100});
    ck_assert_int_eq(o.verdict, DECODE_BAD);
    ck_assert_msg(strstr(o.diag.text, "scan limit 500 exceeded"), "%s", o.diag.text);
    ck_assert_uint_le(now_ns() - start, UINT64_C(1000000000));

    struct decoder *strict;
    ck_assert_int_eq(decoder_new(&(struct decode_limits){.max_scans = 3}, &strict), 0);
    struct file ordinary = make_file(recipe_named("4:2:0 progressive"), 64, 48, 90, 0);
    o = decode(strict, 0, ordinary, 3, whole);
    ck_assert_int_eq(o.verdict, DECODE_BAD);
    ck_assert_ptr_nonnull(strstr(o.diag.text, "scan limit 3 exceeded"));
    ck_assert_int_eq(decode(decoder, 0, ordinary, 3, whole).verdict, DECODE_OK);
    decoder_free(strict);
    free(ordinary.bytes);
    free(bomb.bytes);
    free(scans);
    free(file.bytes);
}
END_TEST

/* DEC-11 */
START_TEST(unsupported_kinds_are_named) {
    struct file file = make_file(recipe_named("4:4:4"), 32, 32, 80, 0);
    size_t sof = find_marker(file, 0xC0, 0);
    file.bytes[sof + 4] = 12;
    struct outcome o = decode(decoder, 0, file, 3, whole);
    ck_assert_int_eq(o.verdict, DECODE_BAD);
    ck_assert_str_eq(o.diag.text, "JPEG of 12 bits a sample; only 8 bits are supported");
#if LIBJPEG_TURBO_VERSION_NUMBER < 3000000 /* 3.0 learnt the lossless coding */
    file.bytes[sof + 4] = 8;
    file.bytes[sof + 1] = 0xC3;
    o = decode(decoder, 0, file, 3, whole);
    ck_assert_int_eq(o.verdict, DECODE_BAD);
    ck_assert_msg(!strstr(o.diag.text, "orrupt"), "%s", o.diag.text);
    ck_assert_msg(strstr(o.diag.text, "lossless"), "%s", o.diag.text);
#endif
    free(file.bytes);
}
END_TEST

/* DEC-14 */
START_TEST(only_the_first_picture) {
    struct file file = make_file(recipe_named("4:2:0"), 64, 48, 90, 1);
    struct file gray = make_file(recipe_named("gray"), 16, 12, 50, 2);
    uint8_t *full = reference(file, 3, NULL);
    static const uint8_t zeros[1000];
    uint8_t exif[2 + 2 + 6 + 65535] = {0xFF, 0xE1, 0, 0, 'E', 'x', 'i', 'f', 0, 0};
    memcpy(exif + 10, gray.bytes, gray.length);
    exif[2] = (uint8_t)((gray.length + 8) >> 8);
    exif[3] = (uint8_t)(gray.length + 8);
    struct file variants[] = {
        splice(file, file.length, 0, zeros, sizeof zeros),
        splice(file, file.length, 0, gray.bytes, gray.length),
        splice(file, 2, 0, exif, 10 + gray.length),
    };
    for (size_t i = 0; i < ARRAY_SIZE(variants); i++) {
        struct outcome o = decode(decoder, 0, variants[i], 3, whole);
        ck_assert_int_eq(o.verdict, DECODE_OK);
        ck_assert_uint_eq(o.width, 64);
        expect_pixels(&o, full, 64, (struct box){0, 0, 64, 48}, 3, "more than one picture");
        free(variants[i].bytes);
    }
    free(full);
    free(gray.bytes);
    free(file.bytes);
}
END_TEST

START_TEST(limits_name_the_key) {
    struct decoder *small;
    struct file file = make_file(recipe_named("4:2:0 progressive"), 200, 200, 80, 0);
    ck_assert_int_eq(decoder_new(&(struct decode_limits){.max_pixels = 39999}, &small), 0);
    struct outcome o = decode(small, 0, file, 3, whole);
    ck_assert_int_eq(o.verdict, DECODE_BAD);
    ck_assert_str_eq(o.diag.text, "picture of 200x200 = 40000 pixels exceeds max-pixels = 39999");
    decoder_free(small);
    ck_assert_int_eq(decoder_new(&(struct decode_limits){.max_pixels = 40000}, &small), 0);
    ck_assert_int_eq(decode(small, 0, file, 3, whole).verdict, DECODE_OK);
    decoder_free(small);
    ck_assert_int_eq(decoder_new(&(struct decode_limits){.max_memory = 100000}, &small), 0);
    for (int i = 0; i < 3; i++) {
        o = decode(small, 0, file, 3, whole);
        ck_assert_int_eq(o.verdict, DECODE_BAD);
        ck_assert_msg(strstr(o.diag.text, "raise max-pixels"), "%s", o.diag.text);
    }
    decoder_free(small);
    free(file.bytes);
}
END_TEST

/* A header that promises 65,500 x 65,500 costs nothing; thin pictures at the codec's limit decode. */
START_TEST(extreme_shapes) {
    struct file file = make_file(recipe_named("4:2:0 progressive"), 16, 16, 80, 0);
    size_t sof = find_marker(file, 0xC2, 0);
    memcpy(file.bytes + sof + 5, "\xFF\xDC\xFF\xDC", 4);
    struct outcome o = decode(decoder, 0, file, 3, (struct box){0, 0, 1, 1});
    ck_assert_int_eq(o.verdict, DECODE_BAD);
    ck_assert_ptr_nonnull(strstr(o.diag.text, "max-pixels"));
    memcpy(file.bytes + sof + 5, "\x00\x01\xFF\xDC", 4); /* 1 row of 65,500 */
    o = decode(decoder, 0, file, 3, (struct box){65000, 0, 500, 1});
    ck_assert_int_eq(o.verdict, DECODE_DAMAGED);
    memcpy(file.bytes + sof + 5, "\xFF\xDC\x00\x01", 4); /* 1 column */
    o = decode(decoder, 0, file, 3, (struct box){0, 60000, 1, 5500});
    ck_assert_int_eq(o.verdict, DECODE_DAMAGED);
    ck_assert_uint_le(decoder_memory_peak(decoder), 64u << 20);
    free(file.bytes);
}
END_TEST

static sigjmp_buf after_fault;

static void on_fault(int number) {
    (void)number;
    siglongjmp(after_fault, 1);
}

static bool faults(struct file file) {
    if (sigsetjmp(after_fault, 1) != 0)
        return true;
    decode(decoder, 0, file, 3, (struct box){100, 100, 100, 100});
    return false;
}

/* A mapped file shrinks under the decoder: SIGBUS, siglongjmp, decoder_reset, and on it goes. */
START_TEST(survives_a_shrinking_file) {
    static const char *const names[] = {"4:2:0", "4:2:0 progressive", "4:4:4 restarts"};
    struct sigaction action = {.sa_handler = on_fault}, old;
    sigaction(SIGBUS, &action, &old);
    for (size_t k = 0; k < ARRAY_SIZE(names); k++) {
        struct file file = make_file(recipe_named(names[k]), 300, 300, 95, 0);
        ck_assert_uint_gt(file.length, 20000);
        uint8_t *full = reference(file, 3, NULL);
        for (int round = 0; round < 50; round++) {
            int fd = memfd_create("shrinks", MFD_CLOEXEC);
            ck_assert_int_eq((int)write(fd, file.bytes, file.length), (int)file.length);
            uint8_t *map = mmap(NULL, file.length, PROT_READ, MAP_SHARED, fd, 0);
            ck_assert_ptr_ne(map, MAP_FAILED);
            ck_assert_int_eq(ftruncate(fd, 4096 * (round % 3)), 0);
            ck_assert(faults((struct file){map, file.length}));
            if (round % 2 == 0) {
                decoder_reset(decoder);
                struct outcome o = decode(decoder, 0, file, 3, whole);
                ck_assert_int_eq(o.verdict, DECODE_OK);
                expect_pixels(&o, full, 300, (struct box){0, 0, 300, 300}, 3, names[k]);
            } else {
                decoder_free(decoder);
                ck_assert_int_eq(decoder_new(NULL, &decoder), 0);
            }
            munmap(map, file.length);
            close(fd);
        }
        free(full);
        free(file.bytes);
    }
    sigaction(SIGBUS, &old, NULL);
}
END_TEST

/* DEC-17: djpeg of the linked library, where installed. */
START_TEST(equals_djpeg) {
    static const uint32_t sizes[][2] = {{64, 48}, {1, 1}, {1, 300}, {300, 1}, {33, 17}};
    if (system("{ djpeg -version 2>&1 | grep -q 'version " TEXT_OF(LIBJPEG_TURBO_VERSION) " '; } 2>/dev/null") != 0) {
        dprintf(stderr_saved, "check_decode: skipped the comparison with djpeg: none of the library's version here\n");
        return;
    }
    for (size_t k = 0; k < ARRAY_SIZE(recipes); k++) {
        if (recipes[k].from == JCS_CMYK)
            continue; /* djpeg has no RGB for these */
        for (size_t s = 0; s < ARRAY_SIZE(sizes); s++) {
            struct file file = make_file(&recipes[k], sizes[s][0], sizes[s][1], 85, (uint32_t)k);
            uint32_t channels = recipes[k].from == JCS_GRAYSCALE ? 1 : 3, size[2];
            char path[] = "/tmp/check_decode.XXXXXX", command[128];
            int fd = mkstemp(path);
            ck_assert_int_ge(fd, 0);
            ck_assert_int_eq((int)write(fd, file.bytes, file.length), (int)file.length);
            close(fd);
            snprintf(command, sizeof command, "djpeg -ppm %s", path);
            FILE *pipe = popen(command, "r");
            ck_assert_int_eq(fscanf(pipe, channels == 1 ? "P5 %u %u 255" : "P6 %u %u 255", &size[0], &size[1]), 2);
            fgetc(pipe);
            struct outcome o = decode(decoder, 0, file, channels, whole);
            size_t length = (size_t)o.width * o.height * channels;
            ck_assert_uint_eq(fread(out_memory[1], 1, length, pipe), length);
            ck_assert_int_eq(pclose(pipe), 0);
            unlink(path);
            ck_assert_msg(size[0] == o.width && size[1] == o.height && memcmp(out_memory[1], o.pixels, length) == 0,
                          "%s %ux%u differs from djpeg", recipes[k].name, sizes[s][0], sizes[s][1]);
            free(file.bytes);
        }
    }
}
END_TEST

int main(void) {
    Suite *suite = suite_create("decode");
    TCase *cases = tcase_create("decode");
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_set_timeout(cases, 600);
    tcase_add_test(cases, sniff_tells_kinds);
    tcase_add_test(cases, header_tells_size_and_kind);
    tcase_add_test(cases, regions_equal_full_frame);
    tcase_add_test(cases, regions_at_block_edges);
    tcase_add_test(cases, regions_at_the_right_edge);
    tcase_add_test(cases, reads_again_without_open);
    tcase_add_test(cases, stride_is_respected);
    tcase_add_test(cases, equals_committed_djpeg_values);
    tcase_add_test(cases, cmyk_as_pillow);
    tcase_add_test(cases, gray_gives_three_equal_channels);
    tcase_add_test(cases, other_kinds_are_named);
    tcase_add_test(cases, harmless_junk);
    tcase_add_test(cases, cut_files);
    tcase_add_loop_test(cases, cut_at_every_byte, 0, (int)ARRAY_SIZE(fragile));
    tcase_add_loop_test(cases, damaged_anywhere, 0, (int)ARRAY_SIZE(fragile));
    tcase_add_test(cases, ten_thousand_bad_files);
    tcase_add_test(cases, no_tables_of_another_picture);
    tcase_add_test(cases, scan_limit);
    tcase_add_test(cases, unsupported_kinds_are_named);
    tcase_add_test(cases, only_the_first_picture);
    tcase_add_test(cases, limits_name_the_key);
    tcase_add_test(cases, extreme_shapes);
    tcase_add_test(cases, survives_a_shrinking_file);
    tcase_add_test(cases, equals_djpeg);
    suite_add_tcase(suite, cases);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
