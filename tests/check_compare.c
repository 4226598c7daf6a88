/* SPDX-License-Identifier: MIT */
/* bench --compare: results made up here, of machines whose difference is known; what is no result is refused. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../tools/loaderctl/compare.h"

/* What `bench --json` prints, as far as it matters: workers that were busy for 10 s; milliseconds of one a sample. */
struct machine {
    double workers, idle, read, decode, copy; /* idle: share; the others ms */
    double alone_decode, alone_copy, alone_device;
    const char *cache;
};

static struct compare_side side_of(const struct machine *m) {
    char text[2000];
    struct compare_side side;
    struct diag diag = DIAG_INIT;
    double ms = m->read + m->decode + m->copy, seconds = 10 * m->workers, busy = seconds * (1 - m->idle);
    double samples = busy * 1e3 / ms;
    snprintf(text, sizeof text,
             "{\"samples_per_s\": %.3f, \"samples\": %.0f, \"workers\": %g, \"batch\": 64, \"engine\": \"uring\", "
             "\"page_cache\": \"%s\", \"stages\": {\"idle\": %.6f, \"read\": %.6f, \"decode\": %.6f, \"transform\": 0, "
             "\"copy\": %.6f, \"other\": 0}, \"ceilings\": {\"decode_region_per_s\": %.3f, \"copy_bytes_per_s\": %.0f, "
             "\"device_bytes_per_s\": %.0f}}",
             samples / 10, samples, m->workers, m->cache, seconds - busy, samples * m->read / 1e3,
             samples * m->decode / 1e3, samples * m->copy / 1e3, m->alone_decode, m->alone_copy * 1e6,
             m->alone_device * 1e6);
    ck_assert_msg(compare_read(text, strlen(text), "made up", &side, &diag) == 0, "%s", diag.text);
    return side;
}

/* The last line of a comparison must hold all of these. */
static void expect(const struct machine *a, const struct machine *b, const char *const *says) {
    struct compare_side sa = side_of(a), sb = side_of(b);
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    compare_print(&sa, &sb, "a.json", "b.json", out);
    ck_assert_int_eq(fclose(out), 0);
    ck_assert(length > 2 && text[length - 1] == '\n');
    text[length - 1] = '\0';
    const char *last = strrchr(text, '\n') + 1;
    for (; *says; says++)
        ck_assert_msg(strstr(last, *says) != NULL, "no '%s' in: %s", *says, last);
    free(text);
}
#define SAYS(...) ((const char *const[]){__VA_ARGS__, NULL})

static const struct machine plain = {4, 0, 0.2, 4, 0.1, 250, 8000, 3000, "warm"};

START_TEST(a_slower_core) {
    struct machine b = plain;
    b.decode = 8;
    b.alone_decode = 125;
    expect(&plain, &b,
           SAYS("B gives 0.52 times the samples/s of A", "decoding a sample takes 8 ms of a worker instead of 4",
                "2.0 times", "0.50 times as much, so that part itself is slower"));
    expect(&b, &plain, SAYS("A gives 0.52 times the samples/s of B", "0.50 times as much"));
}
END_TEST

START_TEST(cores_in_each_others_way) {
    struct machine b = plain;
    b.decode = 8;
    expect(&plain, &b, SAYS("decoding", "1.00 times as much, so its workers are in each other's way"));
}
END_TEST

START_TEST(fewer_workers) {
    struct machine b = plain;
    b.workers = 1;
    expect(&plain, &b, SAYS("B gives 0.25 times", "because it has 1 worker instead of 4"));
    b.decode = 8; /* the smaller part of the reason */
    expect(&plain, &b, SAYS("because it has 1 worker instead of 4", "besides, a sample takes 1.9 times", "decoding"));
}
END_TEST

START_TEST(idle_workers) {
    struct machine b = plain;
    b.idle = 0.6;
    expect(&plain, &b, SAYS("B gives 0.40 times", "busy 40 % of their time instead of 100 %"));
}
END_TEST

START_TEST(slower_storage) {
    struct machine b = plain;
    b.read = 9;
    b.alone_device = 300;
    expect(&plain, &b, SAYS("waiting for reads of a sample takes 9 ms", "its storage alone reads 0.10 times"));
    b.cache = "cold";
    expect(&plain, &b, SAYS("its page cache was cold, that of the other warm"));
}
END_TEST

START_TEST(equals) {
    struct machine b = plain;
    b.decode = 4.1;
    expect(&plain, &b, SAYS("about as fast as each other"));
}
END_TEST

static const char *const wrong[] = {
    "",
    "{",
    "[]",
    "7",
    "{}",
    "{\"samples_per_s\": 5}",
    "{\"samples_per_s\": 5, \"stages\": {}}",
    "{\"samples_per_s\": 5, \"stages\": {}, \"workers\": 2, \"samples\": 0}",
    "{\"samples_per_s\": -5, \"stages\": {}, \"workers\": 2, \"samples\": 1}",
    "{\"samples_per_s\": 1e999, \"stages\": {}, \"workers\": 2, \"samples\": 1}",
};

START_TEST(what_is_no_result_is_refused) {
    struct compare_side side;
    struct diag diag = DIAG_INIT;
    ck_assert_int_eq(compare_read(wrong[_i], strlen(wrong[_i]), "some.json", &side, &diag), -EINVAL);
    ck_assert_msg(strncmp(diag.text, "some.json ", 10) == 0, "%s", diag.text);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("compare");
    TCase *tests = tcase_create("pure");
    tcase_add_test(tests, a_slower_core);
    tcase_add_test(tests, cores_in_each_others_way);
    tcase_add_test(tests, fewer_workers);
    tcase_add_test(tests, idle_workers);
    tcase_add_test(tests, slower_storage);
    tcase_add_test(tests, equals);
    tcase_add_loop_test(tests, what_is_no_result_is_refused, 0, sizeof wrong / sizeof *wrong);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
