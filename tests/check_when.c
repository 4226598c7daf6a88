/* SPDX-License-Identifier: MIT */
/* Moments as people write them: the seconds are those that GNU date says; what is none is refused. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "../tools/loaderctl/loaderctl.h"

#define NOW UINT64_C(1796040000) /* 2026-11-30 12:00:00 UTC */
#define BERLIN "CET-1CEST,M3.5.0,M10.5.0/3"
#define NEW_YORK "EST5EDT,M3.2.0,M11.1.0"

static const struct {
    const char *zone, *text;
    uint64_t seconds;
} moments[] = {
    {"UTC0", "03:00", 1796007600},
    {"UTC0", "12:00", NOW},           /* right now */
    {"UTC0", "12:00:01", 1795953601}, /* yesterday */
    {BERLIN, "03:00", 1796004000},
    {BERLIN, "12:00:01", 1796036401},
    {BERLIN, "13:00:01", 1795953601},
    {NEW_YORK, "03:00:00", 1796025600},
    {NEW_YORK, "12:00:01", 1795971601},
    {NEW_YORK, "2026-07-01", 1782878400},
    {BERLIN, "2026-07-01", 1782856800},
    {BERLIN, "2026-11-30T12:00", 1796036400},
    {BERLIN, "2026-11-30 12:00:00", 1796036400},
    {BERLIN, "2026-11-30T12:00Z", NOW},
    {"UTC0", "90s", NOW - 90},
    {"UTC0", "30m", NOW - 1800},
    {"UTC0", "2h", NOW - 7200},
    {"UTC0", "1d", NOW - 86400},
    {"UTC0", "999999999d", 0},
};

START_TEST(moments_are_understood) {
    struct diag diag = DIAG_INIT;
    uint64_t ns;
    setenv("TZ", moments[_i].zone, 1);
    tzset();
    ck_assert_int_eq(when_parse(moments[_i].text, NOW * 1000000000, &ns, &diag), 0);
    ck_assert_msg(ns == moments[_i].seconds * 1000000000, "%s %s: %llu", moments[_i].zone, moments[_i].text,
                  (unsigned long long)(ns / 1000000000));
}
END_TEST

static const char *const wrong[] = {"",
                                    "yesterday",
                                    "24:00",
                                    "12:60",
                                    "12",
                                    "-2h",
                                    "2w",
                                    "2h30m",
                                    "2026-02-30",
                                    "2026-13-01",
                                    "2026-00-01",
                                    "12:00 ",
                                    "03:00Z",
                                    "h",
                                    "1796040000",
                                    "2026-11-30T",
                                    "2026-11-30T25:00",
                                    "1969-01-01"};

START_TEST(others_are_refused) {
    struct diag diag = DIAG_INIT;
    uint64_t ns = 42;
    setenv("TZ", "UTC0", 1);
    tzset();
    ck_assert_msg(when_parse(wrong[_i], NOW * 1000000000, &ns, &diag) == -EINVAL, "'%s'", wrong[_i]);
    ck_assert_uint_eq(ns, 42);
    ck_assert(diag.text[0]);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("when");
    TCase *tests = tcase_create("moments");
    tcase_add_loop_test(tests, moments_are_understood, 0, sizeof moments / sizeof *moments);
    tcase_add_loop_test(tests, others_are_refused, 0, sizeof wrong / sizeof *wrong);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
