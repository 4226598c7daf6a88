/* SPDX-License-Identifier: MIT */
/*
 * ColorJitter, RandomGrayscale and RandomErasing: bytes against Pillow's (color-reference.h), choices against their laws.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "base/util.h"
#include "color-reference.h"
#include "transform/internal.h"

#define WIDTH 61
#define HEIGHT 47
#define CUBE 512

static uint8_t picture[HEIGHT * WIDTH * 3], cube[CUBE * CUBE * 3];

static void make_pictures(void) {
    uint8_t *p = picture;
    for (uint32_t y = 0; y < HEIGHT; y++)
        for (uint32_t x = 0; x < WIDTH; x++)
            for (uint32_t c = 0; c < 3; c++)
                *p++ = (uint8_t)(x * 7 + y * 13 + c * 50 + (x * y) % 31 * 8);
    p = cube;
    for (uint32_t r = 3; r < 256; r += 4)
        for (uint32_t g = 3; g < 256; g += 4)
            for (uint32_t b = 3; b < 256; b += 4, p += 3) {
                p[0] = (uint8_t)r;
                p[1] = (uint8_t)g;
                p[2] = (uint8_t)b;
            }
}

static uint32_t changed(const uint8_t *from, uint32_t width, uint32_t height, int operation, double factor) {
    struct transform_spec spec = {.width = width, .height = height, .channels = 3};
    struct transform_color color = {.order = {0, 1, 2, 3}, .gray = operation == 4, .jitter = operation < 4};
    size_t bytes = (size_t)width * height * 3;
    uint8_t *copy = malloc(bytes);
    memcpy(copy, from, bytes);
    if (operation < 4) {
        spec.jitter[operation] = 0.5;
        color.factor[operation] = factor;
    }
    color_apply(&spec, &color, copy);
    uint32_t crc = (uint32_t)crc32(0, copy, (uInt)bytes);
    free(copy);
    return crc;
}

START_TEST(colors_equal_pillow) {
    make_pictures();
    for (size_t i = 0; i < ARRAY_SIZE(color_reference); i++) {
        int operation = color_reference[i].operation;
        double factor = color_reference[i].factor;
        ck_assert_msg(changed(picture, WIDTH, HEIGHT, operation, factor) == color_reference[i].picture,
                      "operation %d factor %g, picture", operation, factor);
        ck_assert_msg(changed(cube, CUBE, CUBE, operation, factor) == color_reference[i].cube,
                      "operation %d factor %g, cube", operation, factor);
    }
}
END_TEST

/* Factors lie between their bounds, all 24 orders occur about equally often, probabilities hold. */
START_TEST(choices_obey_their_laws) {
    struct transform_spec spec = {
        .width = 64, .height = 48, .channels = 3, .jitter = {0.4, 1.5, 0.2, 0.1}, .grayscale = 0.2, .erase = 0.5};
    struct diag diag = DIAG_INIT;
    ck_assert_int_eq(transform_check(&spec, &diag), 0);
    const uint32_t draws = 24000;
    uint32_t orders[4][4] = {{0}}, gray = 0, erased = 0;
    double low[4] = {9, 9, 9, 9}, high[4] = {-9, -9, -9, -9};
    for (uint32_t n = 0; n < draws; n++) {
        const struct random_key key = {3, 1, n};
        struct transform_geometry g;
        transform_geometry(&spec, 100, 100, &key, &g);
        const struct transform_color *c = &g.color;
        uint32_t seen = 0;
        for (int i = 0; i < 4; i++) {
            seen |= 1u << c->order[i];
            orders[i][c->order[i]]++;
            low[i] = MIN(low[i], c->factor[i]);
            high[i] = MAX(high[i], c->factor[i]);
        }
        ck_assert_uint_eq(seen, 15);
        gray += c->gray;
        if (!c->erase.width)
            continue;
        erased++;
        double share = (double)c->erase.width * c->erase.height / (64 * 48);
        ck_assert(share > 0.015 && share < 0.36);
        ck_assert_uint_le(c->erase.x + c->erase.width, 64);
        ck_assert_uint_le(c->erase.y + c->erase.height, 48);
    }
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 4; k++) /* 6000 expected, standard deviation 67 */
            ck_assert(orders[i][k] > 5600 && orders[i][k] < 6400);
    ck_assert(gray > draws / 5 - 350 && gray < draws / 5 + 350);
    ck_assert(erased > draws / 2 - 600 && erased < draws / 2 + 600);
    const double want_low[4] = {0.6, 0, 0.8, -0.1}, want_high[4] = {1.4, 2.5, 1.2, 0.1};
    for (int i = 0; i < 4; i++) {
        double range = want_high[i] - want_low[i];
        ck_assert(low[i] >= want_low[i] && low[i] < want_low[i] + range / 100);
        ck_assert(high[i] <= want_high[i] && high[i] > want_high[i] - range / 100);
    }
}
END_TEST

/* The whole row: every dtype and layout is the output stage of the same u8 picture, zero where it was erased. */
START_TEST(rows_agree_in_every_dtype_and_layout) {
    make_pictures();
    struct transform_spec spec = {.width = 33,
                                  .height = 29,
                                  .channels = 3,
                                  .jitter = {0.4, 0.4, 0.4, 0.2},
                                  .erase = 1,
                                  .crop = CROP_RANDOM_RESIZED};
    struct diag diag = DIAG_INIT;
    struct transform *transform;
    ck_assert_int_eq(transform_check(&spec, &diag), 0);
    ck_assert_int_eq(transform_new(1 << 20, &transform), 0);
    uint8_t u8[33 * 29 * 3], planar[33 * 29 * 3];
    float f32[33 * 29 * 3];
    for (uint32_t n = 0; n < 50; n++) {
        const struct random_key key = {1, 2, n};
        const struct picture source = {picture, WIDTH * 3, WIDTH, HEIGHT, 3};
        const struct box all = {0, 0, WIDTH, HEIGHT};
        struct transform_geometry g;
        transform_geometry(&spec, WIDTH, HEIGHT, &key, &g);
        ck_assert_int_eq(transform_apply(transform, &spec, &g, &all, &source, u8, &diag), 0);
        struct transform_spec other = spec;
        other.layout = LAYOUT_NCHW;
        ck_assert_int_eq(transform_apply(transform, &other, &g, &all, &source, planar, &diag), 0);
        other = spec;
        other.dtype = LOADERD_F32;
        ck_assert_int_eq(transform_apply(transform, &other, &g, &all, &source, f32, &diag), 0);
        const struct box *e = &g.color.erase;
        for (uint32_t i = 0; i < 33 * 29; i++)
            for (uint32_t c = 0; c < 3; c++) {
                uint32_t x = i % 33, y = i / 33;
                bool inside = x >= e->x && x < e->x + e->width && y >= e->y && y < e->y + e->height;
                ck_assert_uint_eq(planar[c * 33 * 29 + i], u8[i * 3 + c]);
                ck_assert(f32[i * 3 + c] == (float)u8[i * 3 + c] / 255.0f);
                if (inside)
                    ck_assert_uint_eq(u8[i * 3 + c], 0);
            }
    }
    transform_free(transform);
}
END_TEST

START_TEST(contradictions_are_refused) {
    struct diag diag = DIAG_INIT;
    struct transform_spec spec = {.width = 8, .jitter = {0, 0, 0, 0.6}};
    ck_assert_int_eq(transform_check(&spec, &diag), -EINVAL);
    ck_assert_ptr_nonnull(strstr(diag.text, "hue"));
    spec = (struct transform_spec){.width = 8, .erase = 1.5};
    ck_assert_int_eq(transform_check(&spec, &diag), -EINVAL);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("color");
    TCase *tc = tcase_create("color");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, colors_equal_pillow);
    tcase_add_test(tc, choices_obey_their_laws);
    tcase_add_test(tc, rows_agree_in_every_dtype_and_layout);
    tcase_add_test(tc, contradictions_are_refused);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
