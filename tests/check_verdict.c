/* SPDX-License-Identifier: MIT */
/* The verdict's rules, one by one, with figures made up here; and that no figure, however wrong, gives a wrong share. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "verdict.h"

/* A window of 10 s with 4 workers: nothing binds yet. */
static struct verdict_input quiet(void) {
    return (struct verdict_input){
        .seconds = 10, .samples = 5000, .workers = 4, .wait = 0, .full = -1, .world = 1, .slow_rank = -1};
}

static void expect(const struct verdict_input *in, enum verdict_bound bound, double by, const char *says) {
    struct verdict v;
    verdict_judge(in, &v);
    ck_assert_msg(v.bound == bound, "%s, wanted %s: %s", verdict_name(v.bound), verdict_name(bound), v.sentence);
    ck_assert_msg(fabs(v.by - by) < 1e-9, "by %f, wanted %f: %s", v.by, by, v.sentence);
    ck_assert_msg(strstr(v.sentence, says) != NULL, "no '%s' in: %s", says, v.sentence);
}

START_TEST(starving_trainers_are_bound_by_the_largest_cost) {
    struct verdict_input in = quiet();
    in.wait = 0.25;
    in.busy[STAGE_READ] = 30;
    in.busy[STAGE_DECODE] = 5;
    in.busy[STAGE_TRANSFORM] = 5;
    expect(&in, VERDICT_STORAGE, 0.25,
           "bound by storage: the trainer waits 25 % of its time for data; workers wait 75 %");
    expect(&in, VERDICT_STORAGE, 0.25, "34 % more samples/s would keep it fed"); /* 1 / (1 - 0.25) = 1.333 */
    in.busy[STAGE_READ] = 10;
    in.busy[STAGE_DECODE] = 20;
    in.busy[STAGE_TRANSFORM] = 10;
    expect(&in, VERDICT_DECODE, 0.25, "4 workers spend 75 % of the busy time decoding");
    expect(&in, VERDICT_DECODE, 0.25, "about 125 samples/s more"); /* 5000 / 10 s / 4 */
    in.busy[STAGE_DECODE] = in.busy[STAGE_TRANSFORM] = 6;
    in.busy[STAGE_COPY] = 8;
    in.busy[STAGE_OTHER] = 8;
    expect(&in, VERDICT_MEMORY, 0.25, "moving records");
    in.busy[STAGE_READ] = 16; /* of equals the first */
    expect(&in, VERDICT_STORAGE, 0.25, "reads");
}
END_TEST

START_TEST(what_else_a_starving_trainer_should_know) {
    struct verdict_input in = quiet();
    in.wait = 0.1;
    in.busy[STAGE_DECODE] = 8;
    in.idle = 0.6;
    in.others = 0.2;
    expect(&in, VERDICT_DECODE, 0.1, "workers are idle 60 % of their time all the same");
    expect(&in, VERDICT_DECODE, 0.1, "other sessions have 20 % of the workers' time");
    in.idle = 0;
    in.others = 0.8; /* 8 s of 40 are its own */
    expect(&in, VERDICT_DECODE, 0.1,
           "the workers spend 80 % of their time on other sessions: this one needs more workers");
    in.samples = 0;
    expect(&in, VERDICT_STORAGE, 0.1, "no sample was finished in 10 s");
}
END_TEST

START_TEST(a_trainer_that_is_fed_binds_itself) {
    struct verdict_input in = quiet();
    in.wait = 0.019; /* below the threshold */
    in.full = 0.9;
    in.idle = 0.75;
    in.busy[STAGE_DECODE] = 10; /* a quarter of 4 workers in 10 s */
    expect(&in, VERDICT_TRAINER, 0.9,
           "bound by the trainer: it waits 1.9 % of its time for data, and its ring is full 90 %");
    expect(&in, VERDICT_TRAINER, 0.9, "about 4.0 times as much");
    in.world = 8;
    expect(&in, VERDICT_TRAINER, 0.9, "a rank on another node");
    in.wait = 0.02; /* at it */
    expect(&in, VERDICT_DECODE, 0.02, "bound by decode");
    in = quiet();
    in.samples = 0;
    in.full = 1;
    expect(&in, VERDICT_TRAINER, 1, "nothing was asked for");
}
END_TEST

START_TEST(another_rank_binds_one_that_is_fed) {
    struct verdict_input in = quiet();
    in.world = 4;
    in.slow_rank = 3;
    in.slow_wait = 0.31;
    in.full = 0.95;
    expect(&in, VERDICT_RANK, 0.31, "bound by another rank: rank 3 of its job waits 31 % of its time");
    in.slow_wait = 0.01;
    expect(&in, VERDICT_TRAINER, 0.95, "bound by the trainer");
    in.slow_wait = 0.31;
    in.wait = 0.4; /* it starves itself: its own reason comes first */
    in.busy[STAGE_COPY] = 1;
    expect(&in, VERDICT_MEMORY, 0.4, "bound by memory");
}
END_TEST

START_TEST(copies_bind_where_the_data_was_there) {
    struct verdict_input in = quiet();
    in.device = true;
    in.wait = 0.2;
    in.data = 0.05;
    in.busy[STAGE_DECODE] = 10;
    expect(&in, VERDICT_COPY, 0.2, "bound by copy: the trainer's stream waits 20 %");
    in.data = 0.1; /* half of it: the data was late */
    expect(&in, VERDICT_DECODE, 0.2, "bound by decode");
    in.device = false;
    in.data = 0;
    expect(&in, VERDICT_DECODE, 0.2, "bound by decode");
}
END_TEST

START_TEST(where_the_wait_is_not_known_idle_workers_tell) {
    struct verdict_input in = quiet();
    in.wait = -1;
    in.idle = 0.5;
    in.busy[STAGE_DECODE] = 20;
    expect(&in, VERDICT_TRAINER, 0.5,
           "workers wait 50 % of their time for free slots; this pipeline could give about 2.0");
    in.idle = 0.1;
    in.busy[STAGE_DECODE] = 18;
    in.busy[STAGE_READ] = 18.5;
    expect(&in, VERDICT_STORAGE, 18.5 / 36.5, "bound by storage: workers wait 51 % of their busy time for reads");
    in.samples = 0;
    expect(&in, VERDICT_TRAINER, 0.1, "nothing was asked for");
    in.seconds = 0;
    expect(&in, VERDICT_NONE, 0, "too early");
}
END_TEST

/* Figures of a trainer are not believed: whatever they are, shares stay shares and the sentence has its end. */
START_TEST(hostile_figures_are_bounded) {
    static const double odd[] = {0, -1, 1e308, -1e308, 0.5, 2, INFINITY, -INFINITY, NAN, 1e-308};
    const size_t n = sizeof odd / sizeof *odd;
    srand(1);
    for (int round = 0; round < 20000; round++) {
        struct verdict_input in = {.seconds = odd[rand() % (int)n],
                                   .samples = odd[rand() % (int)n],
                                   .workers = (uint32_t)rand() % 3,
                                   .idle = odd[rand() % (int)n],
                                   .others = odd[rand() % (int)n],
                                   .wait = odd[rand() % (int)n],
                                   .data = odd[rand() % (int)n],
                                   .device = rand() % 2,
                                   .full = odd[rand() % (int)n],
                                   .world = (uint32_t)rand() % 3,
                                   .slow_rank = rand() % 3 - 1,
                                   .slow_wait = odd[rand() % (int)n]};
        for (int i = 0; i < STAGES; i++)
            in.busy[i] = odd[rand() % (int)n];
        struct verdict v;
        verdict_judge(&in, &v);
        ck_assert(v.by >= 0 && v.by <= 1);
        ck_assert(v.bound < VERDICTS);
        ck_assert(strlen(v.sentence) > 5 && strlen(v.sentence) < sizeof v.sentence - 1);
        ck_assert_msg(!strstr(v.sentence, "nan") && !strstr(v.sentence, "inf "), "%s", v.sentence);
    }
}
END_TEST

int main(void) {
    Suite *suite = suite_create("verdict");
    TCase *tests = tcase_create("rules");
    tcase_add_test(tests, starving_trainers_are_bound_by_the_largest_cost);
    tcase_add_test(tests, what_else_a_starving_trainer_should_know);
    tcase_add_test(tests, a_trainer_that_is_fed_binds_itself);
    tcase_add_test(tests, another_rank_binds_one_that_is_fed);
    tcase_add_test(tests, copies_bind_where_the_data_was_there);
    tcase_add_test(tests, where_the_wait_is_not_known_idle_workers_tell);
    tcase_add_test(tests, hostile_figures_are_bounded);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
