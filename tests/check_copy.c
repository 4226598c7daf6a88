/* SPDX-License-Identifier: MIT */
/* Copies of large pieces: every twin against memcpy(), all alignments and lengths, with guard bytes around. */
#include <check.h>
#include <string.h>

#include "base/copy.h"
#include "base/util.h"

#define ROOM (50u << 10)
#define GUARD 0xa5

static uint8_t source[ROOM] __attribute__((aligned(64))), target[ROOM] __attribute__((aligned(64)));

static void fill_source(void) {
    uint64_t x = 88172645463325252u; /* xorshift64 (Marsaglia 2003) */
    for (size_t i = 0; i < ROOM; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        source[i] = (uint8_t)(x >> 24);
    }
}

static void check_one(const struct copy_twin *twin, size_t to, size_t from, size_t bytes) {
    memset(target + to - 64, GUARD, bytes + 128);
    twin->copy(target + to, source + from, bytes);
    bool whole = memcmp(target + to, source + from, bytes) == 0;
    for (size_t i = 0; i < 64; i++)
        whole &= target[to - 64 + i] == GUARD && target[to + bytes + i] == GUARD;
    ck_assert_msg(whole, "%s: %zu bytes from %zu to %zu", twin->name, bytes, from, to);
}

START_TEST(test_lengths) {
    const struct copy_twin *twin;
    fill_source();
    for (size_t n = copy_twins(&twin); n > 0; n--, twin++)
        for (size_t bytes = 0; bytes <= 8192; bytes++)
            check_one(twin, 64 + bytes % 67, bytes * 5 % 71, bytes);
}
END_TEST

START_TEST(test_alignments) {
    static const size_t lengths[] = {0, 1, 63, 64, 65, 127, 128, 129, 255, 256, 257, 319, 320, 511, 4095, 4096, 8192};
    const struct copy_twin *twin;
    fill_source();
    for (size_t n = copy_twins(&twin); n > 0; n--, twin++)
        for (size_t i = 0; i < ARRAY_SIZE(lengths); i++)
            for (size_t to = 64; to < 128; to++)
                for (size_t from = 0; from<64; from += lengths[i]> 600 ? 7 : 1)
                    check_one(twin, to, from, lengths[i]);
}
END_TEST

/* Around so many times four pages, which one loop takes at once. */
START_TEST(test_pages) {
    const struct copy_twin *twin;
    fill_source();
    for (size_t n = copy_twins(&twin); n > 0; n--, twin++)
        for (size_t groups = 1; groups <= 3; groups++)
            for (size_t bytes = groups * 16384 - 320; bytes < groups * 16384 + 320; bytes++)
                check_one(twin, 64 + bytes % 64, bytes * 5 % 71, bytes);
}
END_TEST

START_TEST(test_choice) {
    const struct copy_twin *twin;
    setenv("LOADERD_SIMD", "scalar", 1); /* each case is a process of its own */
    ck_assert_uint_eq(copy_twins(&twin), 1);
    ck_assert_str_eq(twin->name, "memcpy");
    copy_piece(target, source, 100, COPY_STREAMING);
    ck_assert_mem_eq(target, source, 100);
}
END_TEST

START_TEST(test_pieces) {
    enum { MOST = 2 * COPY_LEAST };
    static uint8_t from[MOST], to[MOST + 2];
    for (size_t i = 0; i < MOST; i++)
        from[i] = (uint8_t)(i * 2654435761u >> 13);
    for (int stores = COPY_STREAMING; stores <= COPY_ORDINARY; stores++)
        for (size_t bytes = COPY_LEAST - 1; bytes <= MOST; bytes += COPY_LEAST / 2 + 1) {
            memset(to, GUARD, sizeof to);
            copy_piece(to + 1, from, bytes, (enum copy_stores)stores);
            ck_assert_mem_eq(to + 1, from, bytes);
            ck_assert(to[0] == GUARD && to[bytes + 1] == GUARD);
        }
}
END_TEST

int main(void) {
    Suite *suite = suite_create("copy");
    TCase *cases = tcase_create("copy");
    tcase_set_timeout(cases, 60);
    tcase_add_test(cases, test_lengths);
    tcase_add_test(cases, test_alignments);
    tcase_add_test(cases, test_pages);
    tcase_add_test(cases, test_choice);
    tcase_add_test(cases, test_pieces);
    suite_add_tcase(suite, cases);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
