/* SPDX-License-Identifier: MIT */
/*
 * The flight recorder's pure parts: what is believed of a trainer's word, the histogram against a count made here, and that
 * of many stalls the last ones and the worst of every five minutes are kept.
 */
#include <check.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "recorder.h"

#define MS UINT64_C(1000000)
#define S UINT64_C(1000000000)
#define START (UINT64_C(1790000000) * S) /* some moment, the beginning of no five minutes */

START_TEST(a_wait_is_bounded_by_what_the_daemon_saw) {
    ck_assert_uint_eq(recorder_believe(5 * MS, 100 * S, 101 * S), 5 * MS);
    ck_assert_uint_eq(recorder_believe(3600 * S, 100 * S, 101 * S), S + RECORDER_SLACK_NS);
    ck_assert_uint_eq(recorder_believe(UINT64_MAX, 100 * S, 100 * S), RECORDER_SLACK_NS);
    ck_assert_uint_eq(recorder_believe(UINT64_MAX, 101 * S, 100 * S),
                      RECORDER_SLACK_NS); /* ready before the one before */
    ck_assert_uint_eq(recorder_believe(0, 0, UINT64_MAX - RECORDER_SLACK_NS), 0);
}
END_TEST

/* Step n, published at START + at, waited for so long. */
static void add(struct recording *recording, uint64_t n, uint64_t at, uint64_t waited) {
    struct session_batch batch = {.sequence = n,
                                  .epoch = n / 1000,
                                  .step = n % 1000,
                                  .claimed_ns = 7 * S,
                                  .published_ns = 7 * S + 30 * MS,
                                  .slowest_us = 1 + n,
                                  .slowest_sample = 10 * n};
    batch.stage_ns[STAGE_READ] = n;
    recording_add(recording, &batch, waited, START + at, "class/picture.jpg");
}

START_TEST(the_histogram_counts_every_batch) {
    static const uint64_t waits[] = {0,       50000,    100000, 100001,    999999, MS,         2 * MS,
                                     60 * MS, 260 * MS, S,      4999 * MS, 30 * S, 30 * S + 1, 9999 * S};
    struct recording *r = recording_new();
    uint64_t total = 0, below = 0;
    for (size_t i = 0; i < sizeof waits / sizeof *waits; i++) {
        add(r, i, i * S, waits[i]);
        total += waits[i];
    }
    ck_assert_uint_eq(r->waits.batches, sizeof waits / sizeof *waits);
    ck_assert_uint_eq(r->waits.total_ns, total);
    for (unsigned b = 0; b < RECORDER_BUCKETS; b++) { /* as Prometheus counts: at most the bound */
        uint64_t wanted = 0;
        below += r->waits.count[b];
        for (size_t i = 0; i < sizeof waits / sizeof *waits; i++)
            wanted += (double)waits[i] <= recorder_bounds[b] * 1e9;
        ck_assert_msg(below == wanted, "at most %g s: %" PRIu64 ", wanted %" PRIu64, recorder_bounds[b], below, wanted);
        ck_assert(b == 0 || recorder_bounds[b] > recorder_bounds[b - 1]);
    }
    ck_assert_uint_eq(r->waits.count[RECORDER_BUCKETS], 2);
    ck_assert_uint_eq(r->stalls, 9); /* 1 ms and longer */
    recording_free(r);
}
END_TEST

struct seen {
    uint64_t count, last_at, steps[4096], of[4096];
};

static void see(void *arg, const struct stall *stall, uint64_t worst_of) {
    struct seen *seen = arg;
    uint64_t n = stall->epoch * 1000 + stall->step;
    ck_assert_uint_ge(stall->at_ns, seen->last_at);
    ck_assert_uint_eq(stall->fill_ns, 30 * MS);
    ck_assert_uint_eq(stall->stage_ns[STAGE_READ], n);
    ck_assert_uint_eq(stall->slowest_us, 1 + n);
    ck_assert_uint_eq(stall->slowest_sample, 10 * n);
    ck_assert_str_eq(stall->path, "class/picture.jpg");
    seen->last_at = stall->at_ns;
    seen->steps[seen->count] = n;
    seen->of[seen->count++] = worst_of;
}

START_TEST(stalls_come_in_order_and_by_choice) {
    struct recording *r = recording_new();
    struct seen seen = {0};
    for (uint64_t i = 0; i < 10; i++)
        add(r, i, i * S, i * 10 * MS);
    recording_each_stall(r, 0, 0, see, &seen);
    ck_assert_uint_eq(seen.count, 9);
    memset(&seen, 0, sizeof seen);
    recording_each_stall(r, START + 5 * S, 70 * MS, see, &seen);
    ck_assert_uint_eq(seen.count, 3);
    ck_assert_uint_eq(seen.steps[0], 7);
    ck_assert_uint_eq(seen.of[0], 1);
    recording_free(r);
}
END_TEST

/* A stall every three seconds for 30 hours: 36,000 of them. */
START_TEST(a_night_keeps_the_worst_of_each_five_minutes) {
    struct recording *r = recording_new();
    struct seen *seen = calloc(1, sizeof *seen);
    const uint64_t all = 36000, first_kept = all - RECORDER_STALLS;
    for (uint64_t i = 0; i < all; i++)
        add(r, i, i * 3 * S, i % 70 == 33 ? 5 * S : 2 * MS);
    recording_each_stall(r, 0, 0, see, seen);
    uint64_t spans = 0;
    while (seen->of[spans] > 1)
        spans++;
    ck_assert_uint_eq(seen->count - spans, RECORDER_STALLS);
    ck_assert_uint_eq(seen->steps[spans], first_kept);
    /* 24 hours of spans, less what the last ones cover: 1024 stalls are 51 minutes */
    ck_assert_uint_ge(spans, RECORDER_SPANS - 12);
    ck_assert_uint_le(spans, RECORDER_SPANS - 9);
    for (uint64_t i = 0; i < spans; i++) {
        ck_assert_uint_eq(seen->steps[i] % 70, 33); /* of 100 stalls in five minutes a long one */
        ck_assert_uint_le(seen->of[i], 100);
        ck_assert_uint_lt(seen->steps[i], first_kept);
    }
    /* and nothing twice */
    for (uint64_t i = 1; i < seen->count; i++)
        ck_assert_uint_gt(seen->steps[i], seen->steps[i - 1]);
    free(seen);
    recording_free(r);
}
END_TEST

static void take(void *arg, const struct stall *stall, uint64_t worst_of) {
    ck_assert_uint_eq(worst_of, 1);
    *(const struct stall **)arg = stall;
}

START_TEST(of_long_paths_the_end_is_kept) {
    struct recording *r = recording_new();
    const struct stall *found = NULL;
    char path[400];
    memset(path, 'x', sizeof path);
    strcpy(path + 380, "/the-end.jpg");
    recording_add(r, &(struct session_batch){.slowest_us = 1}, S, START, path);
    recording_each_stall(r, 0, 0, take, &found);
    ck_assert_ptr_nonnull(found);
    ck_assert_uint_eq(strlen(found->path), sizeof found->path - 1);
    ck_assert_int_eq(strncmp(found->path, "...xx", 5), 0);
    ck_assert_str_eq(found->path + strlen(found->path) - 12, "/the-end.jpg");
    recording_free(r);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("recorder");
    TCase *tests = tcase_create("pure");
    tcase_add_test(tests, a_wait_is_bounded_by_what_the_daemon_saw);
    tcase_add_test(tests, the_histogram_counts_every_batch);
    tcase_add_test(tests, stalls_come_in_order_and_by_choice);
    tcase_add_test(tests, a_night_keeps_the_worst_of_each_five_minutes);
    tcase_add_test(tests, of_long_paths_the_end_is_kept);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
