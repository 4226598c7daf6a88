/* SPDX-License-Identifier: MIT */
/*
 * The decoder over all kinds of pictures: pixels of PNG and WebP (and of JPEG between them) are Pillow's; any region is
 * that part of the whole; truncated and changed files; limits; label pictures; kinds that are refused.
 */
#include <arpa/inet.h>
#include <check.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <zlib.h>

#include "autoconfig.h"
#include "base/util.h"
#include "decode/coefficients.h"
#include "decode/decode.h"
#include "decode/exif.h"
#include "pictures-reference.h"

#define MOST (45u * 37u * 3u)

static uint64_t random_state = 88172645463325252u;

static uint32_t random_below(uint32_t n) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 33) % n;
}

static struct decoder *new_decoder(uint64_t max_pixels, uint64_t max_memory) {
    struct decode_limits limits = {.max_pixels = max_pixels, .max_memory = max_memory};
    struct decoder *d;
    ck_assert_int_eq(decoder_new(&limits, &d), 0);
    return d;
}

static bool is_built(const struct reference *r) {
    (void)r;
    bool built = true;
#ifndef HAVE_LIBPNG
    built &= strncmp(r->name, "png", 3) != 0;
#endif
#ifndef HAVE_LIBWEBP
    built &= strncmp(r->name, "webp", 4) != 0;
#endif
    return built;
}

static enum decode_verdict read_box(struct decoder *d, uint32_t channels, const struct box *box, uint8_t *pixels,
                                    struct diag *diag) {
    uint32_t each = MAX(channels, 1u);
    struct picture p = {pixels, (size_t)box->width * each, box->width, box->height, each};
    return decoder_read(d, channels, box, &p, diag);
}

static size_t opened_pixels; /* of the last read_all() */

/* Opens and reads the whole. */
static enum decode_verdict read_all(struct decoder *d, const uint8_t *bytes, size_t length, uint32_t channels,
                                    uint8_t *pixels, struct diag *diag) {
    struct decode_info info;
    enum decode_verdict verdict = decoder_open(d, bytes, length, &info, diag);
    if (verdict != DECODE_OK)
        return verdict;
    opened_pixels = (size_t)info.width * info.height;
    if (opened_pixels * 3 > MOST) {
        diag_set(diag, -EFBIG, "larger than the test's memory");
        return DECODE_BAD;
    }
    return read_box(d, channels, &(struct box){0, 0, info.width, info.height}, pixels, diag);
}

static unsigned checksum(const uint8_t *pixels, size_t count) {
    return (unsigned)crc32(0, pixels, (uInt)count);
}

START_TEST(pixels_are_pillows) {
    struct decoder *d = new_decoder(0, 0);
    uint8_t pixels[MOST];
    for (size_t i = 0; i < ARRAY_SIZE(references); i++) {
        const struct reference *r = &references[i];
        struct diag diag = DIAG_INIT;
        struct decode_info info;
        size_t count = (size_t)r->width * r->height;
        if (!is_built(r))
            continue;
        ck_assert_msg(decoder_open(d, r->bytes, r->length, &info, &diag) == DECODE_OK, "%s: %s", r->name, diag.text);
        ck_assert_uint_eq(info.width, r->width);
        ck_assert_uint_eq(info.height, r->height);
        ck_assert_uint_eq(info.channels, r->channels);
        ck_assert_int_eq(strncasecmp(info.kind, r->name, strlen(info.kind)), 0);
        ck_assert_msg(read_all(d, r->bytes, r->length, 3, pixels, &diag) == DECODE_OK, "%s: %s", r->name, diag.text);
        ck_assert_msg(checksum(pixels, count * 3) == r->rgb, "%s: RGB", r->name);
        ck_assert_msg(read_all(d, r->bytes, r->length, 1, pixels, &diag) == DECODE_OK, "%s: %s", r->name, diag.text);
        ck_assert_msg(checksum(pixels, count) == r->gray || strcmp(r->name, "jpeg 4:2:0") == 0, "%s: gray", r->name);
        enum decode_verdict verdict = read_all(d, r->bytes, r->length, DECODE_VALUES, pixels, &diag);
        ck_assert_msg((verdict == DECODE_OK) == r->has_values, "%s: values", r->name);
        if (r->has_values)
            ck_assert_msg(checksum(pixels, count) == r->values, "%s: values", r->name);
        else
            ck_assert_ptr_nonnull(strstr(diag.text, "label picture is "));
    }
    decoder_free(d);
}
END_TEST

/* All kinds by turns on one decoder, so that each finds the arena as another left it. */
START_TEST(regions_are_parts_of_the_whole) {
    struct decoder *d = new_decoder(0, 0);
    static uint8_t whole[MOST], part[MOST];
    for (size_t n = 0; n < ARRAY_SIZE(references) * 40; n++) {
        const struct reference *r = &references[n % ARRAY_SIZE(references)];
        struct diag diag = DIAG_INIT;
        uint32_t channels = random_below(2) ? 3 : 1;
        if (!is_built(r))
            continue;
        ck_assert_int_eq(read_all(d, r->bytes, r->length, channels, whole, &diag), DECODE_OK);
        for (int again = 0; again < 2; again++) {
            struct box b = {random_below(r->width), random_below(r->height), 0, 0};
            b.width = 1 + random_below(r->width - b.x);
            b.height = 1 + random_below(r->height - b.y);
            memset(part, 0xA5, sizeof part);
            ck_assert_int_eq(read_box(d, channels, &b, part, &diag), DECODE_OK);
            for (uint32_t y = 0; y < b.height; y++)
                ck_assert_msg(memcmp(part + (size_t)y * b.width * channels,
                                     whole + ((size_t)(b.y + y) * r->width + b.x) * channels,
                                     (size_t)b.width * channels) == 0,
                              "%s: row %u of %ux%u+%u+%u", r->name, y, b.width, b.height, b.x, b.y);
            ck_assert_uint_eq(part[(size_t)b.width * b.height * channels], 0xA5);
        }
    }
    decoder_free(d);
}
END_TEST

/* What holds for any damaged file: a sentence; complete means that no pixel differs; the same again. */
static enum decode_verdict check_damaged(struct decoder *d, const struct reference *r, const uint8_t *bytes,
                                         size_t length) {
    static uint8_t first[MOST], second[MOST];
    struct diag diag = DIAG_INIT, again = DIAG_INIT;
    memset(first, 0xA5, sizeof first);
    memset(second, 0x5A, sizeof second);
    enum decode_verdict verdict = read_all(d, bytes, length, 3, first, &diag);
    bool complete = decoder_damage_is_complete(d);
    size_t count = (size_t)r->width * r->height * 3;
    if (verdict != DECODE_OK) {
        ck_assert_int_lt(diag.code, 0);
        ck_assert_uint_gt(strlen(diag.text), 5);
    }
    ck_assert_int_eq(read_all(d, bytes, length, 3, second, &again), verdict);
    ck_assert_str_eq(diag.text, again.text);
    if (verdict == DECODE_DAMAGED && complete)
        ck_assert_msg(checksum(first, count) == r->rgb, "%s: %s", r->name, diag.text);
    if (verdict != DECODE_BAD)
        ck_assert_msg(memcmp(first, second, opened_pixels * 3) == 0, "%s: pixels from before: %s", r->name, diag.text);
    return verdict;
}

START_TEST(truncated_files) {
    struct decoder *d = new_decoder(0, 0);
    for (size_t i = 0; i < ARRAY_SIZE(references); i++) {
        const struct reference *r = &references[i];
        unsigned seen[3] = {0};
        if (!is_built(r))
            continue;
        for (size_t length = 0; length < r->length; length += 1 + length / 200) {
            uint8_t *copy = malloc(length + 1);
            memcpy(copy, r->bytes, length);
            uint8_t *exact = realloc(copy, MAX(length, (size_t)1));
            seen[check_damaged(d, r, exact, length)]++;
            free(exact);
        }
        ck_assert_msg(seen[DECODE_OK] == 0, "%s: %u cut files pass", r->name, seen[DECODE_OK]);
        ck_assert_uint_gt(seen[DECODE_DAMAGED], 0);
        ck_assert_uint_gt(seen[DECODE_BAD], 0);
    }
    decoder_free(d);
}
END_TEST

/* Every chunk of a PNG has a CRC: no changed byte passes, and what passes as complete is. */
START_TEST(changed_bytes) {
    struct decoder *d = new_decoder(1u << 20, 0);
    for (size_t i = 0; i < ARRAY_SIZE(references); i++) {
        const struct reference *r = &references[i];
        bool png = strncmp(r->name, "png", 3) == 0;
        if (!is_built(r))
            continue;
        uint8_t *copy = malloc(r->length);
        for (size_t at = 0; at < r->length; at += 1 + r->length / 300) {
            memcpy(copy, r->bytes, r->length);
            copy[at] ^= (uint8_t)(1 + random_below(255));
            enum decode_verdict verdict = check_damaged(d, r, copy, r->length);
            if (png)
                ck_assert_msg(verdict != DECODE_OK, "%s: byte %zu", r->name, at);
        }
        free(copy);
    }
    decoder_free(d);
}
END_TEST

#ifdef HAVE_LIBPNG
static const struct reference *named(const char *name) {
    for (size_t i = 0; i < ARRAY_SIZE(references); i++) {
        if (strcmp(references[i].name, name) == 0)
            return &references[i];
    }
    ck_abort_msg("no reference %s", name);
}

/* Damage below the last row that is asked for is not seen; rows above damage are right. */
START_TEST(png_damage_by_rows) {
    const struct reference *r = named("png RGB 16 bits");
    struct decoder *d = new_decoder(0, 0);
    static uint8_t whole[MOST], part[MOST];
    struct diag diag = DIAG_INIT;
    struct decode_info info;
    ck_assert_int_eq(read_all(d, r->bytes, r->length, 3, whole, &diag), DECODE_OK);
    ck_assert_int_eq(decoder_open(d, r->bytes, r->length / 2, &info, &diag), DECODE_OK);
    unsigned good = 0;
    for (uint32_t rows = 1; rows <= r->height; rows++) {
        struct box b = {0, 0, r->width, rows};
        enum decode_verdict verdict = read_box(d, 3, &b, part, &diag);
        if (verdict == DECODE_OK) {
            ck_assert_uint_eq(good, rows - 1); /* none good below a bad one */
            good = rows;
        } else {
            ck_assert_int_eq(verdict, DECODE_DAMAGED);
            ck_assert(!decoder_damage_is_complete(d));
            ck_assert_ptr_nonnull(strstr(diag.text, "ends too early"));
            ck_assert_uint_eq(part[(size_t)r->width * 3 * rows - 1], 0);
        }
        ck_assert_int_eq(memcmp(part, whole, (size_t)r->width * 3 * good), 0);
    }
    ck_assert(good > 0 && good < r->height);
    decoder_free(d);
}
END_TEST

START_TEST(png_harmless_damage) {
    const struct reference *r = named("png RGB with text and gamma");
    struct decoder *d = new_decoder(0, 0);
    uint8_t copy[4096], pixels[MOST];
    struct diag diag = DIAG_INIT;
    memcpy(copy, r->bytes, r->length);
    uint8_t *text = memmem(copy, r->length, "tEXt", 4);
    text[5] ^= 1;
    ck_assert_int_eq(read_all(d, copy, r->length, 3, pixels, &diag), DECODE_DAMAGED);
    ck_assert(decoder_damage_is_complete(d));
    ck_assert_msg(strstr(diag.text, "tEXt") && strstr(diag.text, "all pixels are there"), "%s", diag.text);
    ck_assert_uint_eq(checksum(pixels, (size_t)r->width * r->height * 3), r->rgb);
    ck_assert_int_eq(read_all(d, r->bytes, r->length - 12, 3, pixels, &diag), DECODE_DAMAGED); /* no IEND */
    ck_assert(decoder_damage_is_complete(d));
    decoder_reset(d);
    ck_assert_int_eq(read_all(d, r->bytes, r->length, 3, pixels, &diag), DECODE_OK);
    decoder_free(d);
}
END_TEST

START_TEST(png_limits) {
    const struct reference *r = named("png RGBA 8 bits");
    struct diag diag = DIAG_INIT;
    uint8_t pixels[MOST], copy[4096];
    struct decoder *d = new_decoder(r->width * r->height - 1, 0);
    ck_assert_int_eq(read_all(d, r->bytes, r->length, 3, pixels, &diag), DECODE_BAD);
    ck_assert_str_eq(diag.text, "picture of 13x11 = 143 pixels exceeds max-pixels = 142");
    decoder_free(d);

    d = new_decoder(0, 8192);
    ck_assert_int_eq(read_all(d, r->bytes, r->length, 3, pixels, &diag), DECODE_BAD);
    ck_assert_ptr_nonnull(strstr(diag.text, "raise max-pixels"));
    ck_assert_uint_le(decoder_memory_peak(d), 8192);
    decoder_free(d);

    d = new_decoder(0, 0); /* a lying header takes no memory */
    memcpy(copy, r->bytes, r->length);
    memset(copy + 16, 0x7F, 8);
    uint32_t crc = htonl((uint32_t)crc32(0, copy + 12, 17));
    memcpy(copy + 29, &crc, sizeof crc);
    ck_assert_int_eq(read_all(d, copy, r->length, 3, pixels, &diag), DECODE_BAD);
    ck_assert_ptr_nonnull(strstr(diag.text, "exceeds max-pixels"));
    ck_assert_uint_lt(decoder_memory_peak(d), 1u << 16);
    decoder_free(d);
}
END_TEST
#endif

/* The i-th turned picture, as its file or as a record of it: Pillow's pixels, and any region is that part of them. */
static void check_turned(struct decoder *d, size_t i, const uint8_t *bytes, size_t length) {
    static uint8_t whole[MOST], part[MOST];
    struct diag diag = DIAG_INIT;
    struct decode_info info;
    ck_assert_int_eq(decoder_open(d, bytes, length, &info, &diag), DECODE_OK);
    uint32_t tag = turned[i].orientation;
    ck_assert_uint_eq(info.orientation, tag >= 1 && tag <= 8 ? tag : 1);
    ck_assert(info.width == 29 && info.height == 19);
    decoder_orient(d, &info);
    decoder_orient(d, &info); /* once only */
    ck_assert_uint_eq(info.width, turned[i].width);
    ck_assert_uint_eq(info.height, turned[i].height);
    ck_assert_int_eq(read_box(d, 3, &(struct box){0, 0, info.width, info.height}, whole, &diag), DECODE_OK);
    ck_assert_msg(checksum(whole, 29 * 19 * 3) == turned[i].rgb, "%s, orientation %u", info.kind, tag);
    for (int n = 0; n < 30; n++) {
        struct box b = {random_below(info.width), random_below(info.height), 0, 0};
        b.width = 1 + random_below(info.width - b.x);
        b.height = 1 + random_below(info.height - b.y);
        ck_assert_int_eq(read_box(d, 3, &b, part, &diag), DECODE_OK);
        for (uint32_t y = 0; y < b.height; y++)
            ck_assert_int_eq(memcmp(part + (size_t)y * b.width * 3, whole + ((size_t)(b.y + y) * info.width + b.x) * 3,
                                    (size_t)b.width * 3),
                             0);
    }
    decoder_close(d);
}

/* DEC-13 */
START_TEST(orientations) {
    struct decoder *d = new_decoder(0, 0);
    struct coefficients_encoder *encoder;
    uint32_t seen = 0;
    ck_assert_int_eq(coefficients_encoder_new(&encoder), 0);
    for (size_t i = 0; i < ARRAY_SIZE(turned); i++) {
        struct diag diag = DIAG_INIT;
        const uint8_t *record;
        size_t length;
        check_turned(d, i, turned[i].bytes, turned[i].length);
        ck_assert_msg(coefficients_encode(encoder, turned[i].bytes, turned[i].length, NULL, &record, &length, &diag) ==
                          0,
                      "%s", diag.text);
        check_turned(d, i, record, length);
        seen |= 1u << turned[i].orientation;
    }
    ck_assert_uint_eq(seen & 0x1fe, 0x1fe); /* 1 to 8 */
    coefficients_encoder_free(encoder);
    decoder_free(d);
}
END_TEST

START_TEST(orientation_parser) {
    static const struct {
        const char *bytes;
        size_t length;
        uint32_t orientation;
    } rows[] = {
        {"II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\6\0\0\0", 22, 6},
        {"MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\x08\0\0", 22, 8},
        {"MM\0*\0\0\0\x08\0\1\1\x12\0\4\0\0\0\1\0\0\0\3", 22, 3},
        {"II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\6\0\0", 21, 1},         /* the entry is cut */
        {"II*\0\x08\0\0\0\xFF\xFF\x12\1\3\0\2\0\0\0\6\0\0\0", 22, 1},   /* two values */
        {"II*\0\x08\0\0\0\xFF\xFF\x13\1\3\0\1\0\0\0\6\0\0\0", 22, 1},   /* another tag, then nothing */
        {"II*\0\xFF\xFF\xFF\xFF\1\0\x12\1\3\0\1\0\0\0\6\0\0\0", 22, 1}, /* a directory far away */
        {"II*\0\x15\0\0\0\1\0\x12\1\3\0\1\0\0\0\6\0\0\0", 22, 1},
        {"II+\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\6\0\0\0", 22, 1}, /* BigTIFF */
        {"", 0, 1},
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        uint8_t *exact = malloc(rows[i].length + !rows[i].length);
        memcpy(exact, rows[i].bytes, rows[i].length);
        ck_assert_msg(exif_tiff_orientation(exact, rows[i].length) == rows[i].orientation, "row %zu", i);
        free(exact);
    }
    for (size_t length = 0; length < 120; length++) { /* of a file with the tag: found once all of it is there */
        uint32_t o = exif_jpeg_orientation(turned[6].bytes, length);
        ck_assert(o == 1 || (o == 6 && length > 50));
    }
}
END_TEST

START_TEST(refused_by_name) {
    static const struct {
        const char *bytes, *words;
        size_t length;
    } rows[] = {
        {"", "content is empty (0 bytes), no picture", 0},
        {"GIF89a..", "content is GIF (47 49 46 38), not JPEG, PNG or WebP", 8},
        {"hello", "content is text", 5},
#ifndef HAVE_LIBPNG
        {"\x89PNG\r\n\x1a\n", "content is PNG; this build has no libpng: install libpng-dev and configure again", 8},
#else
        {"\x89PNG\r\n\x1a\n", "ends too early", 8},
        {"\x89PNG\r\n\n\n", "near byte", 8},
#endif
#ifndef HAVE_LIBWEBP
        {"RIFF....WEBPVP8 ", "content is WebP; this build has no libwebp: install libwebp-dev and configure again", 16},
#else
        {"RIFF\x20\0\0\0WEBPVP8 ", "ends too early", 16},
        {(const char *)webp_animated, "animated WebP is not supported", sizeof webp_animated},
#endif
    };
    struct decoder *d = new_decoder(0, 0);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct diag diag = DIAG_INIT;
        struct decode_info info;
        ck_assert_int_eq(decoder_open(d, (const uint8_t *)rows[i].bytes, rows[i].length, &info, &diag), DECODE_BAD);
        ck_assert_msg(strstr(diag.text, rows[i].words), "%s", diag.text);
    }
    decoder_free(d);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("pictures");
    TCase *tests = tcase_create("decode");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, pixels_are_pillows);
    tcase_add_test(tests, regions_are_parts_of_the_whole);
    tcase_add_test(tests, truncated_files);
    tcase_add_test(tests, changed_bytes);
#ifdef HAVE_LIBPNG
    tcase_add_test(tests, png_damage_by_rows);
    tcase_add_test(tests, png_harmless_damage);
    tcase_add_test(tests, png_limits);
#endif
    tcase_add_test(tests, orientations);
    tcase_add_test(tests, orientation_parser);
    tcase_add_test(tests, refused_by_name);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
