/* SPDX-License-Identifier: MIT */
/*
 * subset.c: which ids a text names, by hand; refusals with their sentences; thinning by law: as many as were asked for,
 * in order, the smaller among the larger, spread over all.
 */
#include "subset.h"

#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"

static struct subset subset;
static struct diag diag;

static int parse(const char *text, uint64_t samples) {
    subset_deinit(&subset);
    diag = (struct diag)DIAG_INIT;
    return subset_parse(text, strlen(text), "s", samples, 1000, &subset, &diag);
}

static void names(const char *text, const uint64_t *want, uint64_t count) {
    ck_assert_msg(parse(text, 100) == 0, "%s", diag.text);
    ck_assert_uint_eq(subset.count, count);
    for (uint64_t i = 0; i < count; i++)
        ck_assert_uint_eq(subset.ids[i], want[i]);
}
#define NAMES(text, ...)                                                                                               \
    names(text, (const uint64_t[]){__VA_ARGS__}, sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t))

START_TEST(texts) {
    NAMES("7", 7);
    NAMES("3-5,0", 3, 4, 5, 0);
    NAMES("  9 8\n7,,6\r\n\t5-5 ", 9, 8, 7, 6, 5);
    NAMES("# all of it\n1 # one\n#\n2", 1, 2);
    NAMES("99#x", 99);
    NAMES("5,1-3,4", 5, 1, 2, 3, 4);
    subset_deinit(&subset);
    subset_deinit(&subset);
}
END_TEST

static void refuses(const char *text, int code, const char *sentence) {
    ck_assert_int_eq(parse(text, 100), code);
    ck_assert_str_eq(diag.text, sentence);
    ck_assert_ptr_null(subset.ids);
}

START_TEST(refusals) {
    refuses("", -EINVAL, "subset s is empty: 0 of 100 samples");
    refuses("# 1\n", -EINVAL, "subset s is empty: 0 of 100 samples");
    refuses("1\n100", -EINVAL, "subset s, line 2: there is no sample 100; the dataset has 100, 0 to 99");
    refuses("1\n# 2\n90-100", -EINVAL, "subset s, line 3: there is no sample 100; the dataset has 100, 0 to 99");
    refuses("5-3", -EINVAL, "subset s, line 1: the range 5-3 ends before it begins");
    refuses("1,2,1", -EINVAL,
            "subset s names sample 1 twice; a subset has each sample once (to see some more often, mix datasets by "
            "weights)");
    refuses("50-60,20-50", -EINVAL,
            "subset s names sample 50 twice; a subset has each sample once (to see some more often, mix datasets by "
            "weights)");
    static const char *const bad[] = {"x", "1-", "-1", "1-2-3", "1.5", "0x10", "18446744073709551616", "1;2", "1 - 2"};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        ck_assert_int_eq(parse(bad[i], 100), -EINVAL);
        ck_assert_msg(strstr(diag.text, "is no sample id; write numbers and ranges"), "%s", diag.text);
    }
    ck_assert_int_eq(parse("0-1000", 5000), -ENOMEM);
    ck_assert_str_eq(diag.text, "the subset has 1001 ids x 8 bytes = 1 MiB, a session may have 0 MiB for them; raise "
                                "max-ring-bytes or choose fewer");
    ck_assert_int_eq(parse("0-999", 5000), 0);
    ck_assert_int_eq(parse("0-9223372036854775806,0-9223372036854775806,0-9223372036854775806", INT64_MAX), -ENOMEM);
    subset_deinit(&subset);
}
END_TEST

START_TEST(files) {
    char path[] = "/tmp/loaderd-subset-XXXXXX", sentence[200];
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert(subset_is_ranges("0-9, 20") && !subset_is_ranges(path) && !subset_is_ranges("") &&
              !subset_is_ranges("./0-9"));
    ck_assert_int_eq((int)write(fd, "4\n2-3\n", 6), 6);
    ck_assert_int_eq(subset_load(path, 10, 1000, &subset, &diag), 0);
    ck_assert(subset.count == 3 && subset.ids[0] == 4 && subset.ids[1] == 2 && subset.ids[2] == 3);
    ck_assert_int_eq(subset_load(path, 4, 1000, &subset, &diag), -EINVAL);
    snprintf(sentence, sizeof sentence, "subset %s, line 1: there is no sample 4; the dataset has 4, 0 to 3", path);
    ck_assert_str_eq(diag.text, sentence);
    ck_assert_int_eq((int)pwrite(fd, "\x93NUMPY", 6, 0), 6);
    ck_assert_int_eq(subset_load(path, 10, 1000, &subset, &diag), -EINVAL);
    ck_assert_ptr_nonnull(strstr(diag.text, "numpy.savetxt(FILE, ids, fmt='%d')"));
    close(fd);
    unlink(path);
    ck_assert_int_eq(subset_load(path, 10, 1000, &subset, &diag), -ENOENT);
    ck_assert_int_eq(subset_load("/tmp", 10, 1000, &subset, &diag), -EINVAL);
    subset_deinit(&subset);
}
END_TEST

static void thin(double fraction, uint64_t samples) {
    subset_deinit(&subset);
    diag = (struct diag)DIAG_INIT;
    ck_assert_msg(subset_thin(&subset, fraction, samples, 1000000, &diag) == 0, "%s", diag.text);
}

/* The numbers of want are what this version chose when it was new: a fraction must never become another one. */
START_TEST(fractions) {
    static uint8_t tenth[100000];
    static const uint64_t want[] = {3, 19, 20, 37, 43};
    thin(0.1, 50);
    ck_assert_uint_eq(subset.count, ARRAY_SIZE(want));
    for (uint64_t i = 0; i < subset.count; i++)
        ck_assert_uint_eq(subset.ids[i], want[i]);
    thin(0.1, sizeof tenth);
    ck_assert_uint_eq(subset.count, sizeof tenth / 10);
    uint32_t part[10] = {0};
    for (uint64_t i = 0; i < subset.count; i++) {
        ck_assert_uint_lt(subset.ids[i], sizeof tenth);
        if (i)
            ck_assert_uint_lt(subset.ids[i - 1], subset.ids[i]);
        tenth[subset.ids[i]] = 1;
        part[subset.ids[i] / 10000]++;
    }
    for (int i = 0; i < 10; i++)
        ck_assert(part[i] > 1000 - 150 && part[i] < 1000 + 150); /* a deviation is 30 */
    thin(0.25, sizeof tenth);
    uint32_t both = 0;
    for (uint64_t i = 0; i < subset.count; i++)
        both += tenth[subset.ids[i]];
    ck_assert_uint_eq(both, sizeof tenth / 10);
    thin(1, 10);
    ck_assert_ptr_null(subset.ids);
    thin(0.29, 100);
    ck_assert_uint_eq(subset.count, 29);
    subset_deinit(&subset);
    ck_assert_int_eq(subset_thin(&subset, 0.04, 10, 1000, &diag), -EINVAL);
    ck_assert_str_eq(diag.text, "fraction 0.04 of 10 samples is none: 0.4 rounds to 0");
    ck_assert_int_eq(subset_thin(&subset, 0.5, 10000, 1000, &diag), -ENOMEM);
    ck_assert_ptr_null(subset.ids);
}
END_TEST

START_TEST(fraction_of_a_subset) {
    ck_assert_int_eq(parse("90-99,0-9", 100), 0);
    ck_assert_int_eq(subset_thin(&subset, 0.5, 100, 1000, &diag), 0);
    ck_assert_uint_eq(subset.count, 10);
    bool low = false;
    for (uint64_t i = 0; i < 10; i++) {
        ck_assert(subset.ids[i] < 10 || subset.ids[i] >= 90);
        ck_assert(!(low && subset.ids[i] >= 90)); /* the order stays */
        low = subset.ids[i] < 10;
    }
    subset_deinit(&subset);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("subset");
    TCase *all = tcase_create("all");
    tcase_add_test(all, texts);
    tcase_add_test(all, refusals);
    tcase_add_test(all, files);
    tcase_add_test(all, fractions);
    tcase_add_test(all, fraction_of_a_subset);
    suite_add_tcase(suite, all);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
