/* SPDX-License-Identifier: MIT */
/*
 * The pure parts of loaderctl tune: medians, budget, candidates, knee, choice, names, the configuration (read back by the
 * parser that the daemon has), the histogram and the report. Laws over random inputs beside cases worked out by hand.
 */
#include "tools/loaderctl/tune_choice.h"
#include "tools/loaderctl/tune_report.h"

#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "config.h"
#include "tools/loaderctl/histogram.h"

static uint64_t state = 1;
static double uniform(void) {
    state = state * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (double)(state >> 11) / 9007199254740992.0;
}

START_TEST(medians) {
    struct tune_rates r = {.rounds = 0};
    ck_assert_double_eq(tune_median(&r), 0);
    ck_assert_double_eq(tune_spread(&r), 0);
    r = (struct tune_rates){{7}, 1};
    ck_assert_double_eq(tune_median(&r), 7);
    ck_assert_double_eq(tune_spread(&r), 0);
    r = (struct tune_rates){{30, 10, 20}, 3};
    ck_assert_double_eq(tune_median(&r), 20);
    ck_assert_double_eq(tune_spread(&r), 0.25); /* quartiles 15 and 25 */
    r = (struct tune_rates){{4, 1, 3, 2}, 4};
    ck_assert_double_eq(tune_median(&r), 2.5);
    r = (struct tune_rates){{100, 100, 100, 100, 5000}, 5}; /* one outlier moves nothing */
    ck_assert_double_eq(tune_median(&r), 100);
    ck_assert_double_eq(tune_spread(&r), 0);
}
END_TEST

START_TEST(budgets) {
    static const struct {
        const char *text;
        uint32_t cpus, want; /* 0: refused */
    } table[] = {{"40%", 16, 6}, {"40%", 2, 1},   {"100%", 7, 7}, {"1%", 64, 1},   {"2", 16, 2},   {"1.5", 16, 1},
                 {"99", 16, 16}, {"0.2", 16, 1},  {"50%", 3, 1},  {"10%", 10, 1},  {"30%", 10, 3}, {"70%", 10, 7},
                 {"", 16, 0},    {"0", 16, 0},    {"0%", 16, 0},  {"101%", 16, 0}, {"-1", 16, 0},  {"x", 16, 0},
                 {"4 %", 16, 0}, {"40%%", 16, 0}, {"nan", 16, 0}, {"inf", 16, 0},  {"%", 16, 0}};
    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        struct diag diag = DIAG_INIT;
        uint32_t budget = 0;
        int r = tune_budget(table[i].text, table[i].cpus, &budget, &diag);
        ck_assert_msg(r == (table[i].want ? 0 : -EINVAL) && budget == table[i].want, "%s of %u: %u", table[i].text,
                      table[i].cpus, budget);
        ck_assert_msg((r == 0) == (diag.text[0] == '\0'), "%s", table[i].text);
    }
    for (uint32_t cpus = 1; cpus <= 256; cpus++) { /* never more than there are, never none, monotone */
        uint32_t before = 0, budget = 0;
        for (int percent = 1; percent <= 100; percent++) {
            char text[8];
            snprintf(text, sizeof text, "%d%%", percent);
            ck_assert_int_eq(tune_budget(text, cpus, &budget, NULL), 0);
            ck_assert(budget >= 1 && budget <= cpus && budget >= before);
            before = budget;
        }
        ck_assert_uint_eq(budget, cpus);
    }
}
END_TEST

START_TEST(candidates) {
    uint32_t c[TUNE_MOST_POINTS];
    ck_assert_uint_eq(tune_candidates(1, c), 1);
    ck_assert_uint_eq(c[0], 1);
    ck_assert_uint_eq(tune_candidates(16, c), 8);
    static const uint32_t sixteen[] = {1, 2, 3, 4, 6, 8, 12, 16};
    ck_assert_mem_eq(c, sixteen, sizeof sixteen);
    for (uint32_t most = 1; most < 5000; most++) {
        uint32_t n = tune_candidates(most, c);
        ck_assert(n >= 1 && n <= TUNE_MOST_POINTS && c[0] == 1 && c[n - 1] == most);
        for (uint32_t i = 1; i < n; i++)
            ck_assert(c[i] > c[i - 1]);
    }
    ck_assert_uint_eq(tune_candidates(0, c), 1); /* nobody has none */
    ck_assert(tune_candidates(UINT32_MAX, c) <= TUNE_MOST_POINTS);
}
END_TEST

START_TEST(knees) {
    const struct tune_point linear[] = {{1, 100}, {2, 200}, {4, 400}, {8, 800}};
    ck_assert_uint_eq(tune_knee(linear, 4), 3);
    const struct tune_point flat[] = {{1, 100}, {2, 200}, {4, 390}, {8, 400}, {16, 401}};
    ck_assert_uint_eq(tune_knee(flat, 5), 2);
    const struct tune_point falling[] = {{1, 100}, {2, 150}, {4, 120}, {8, 90}};
    ck_assert_uint_eq(tune_knee(falling, 4), 1);
    const struct tune_point one[] = {{1, 0}};
    ck_assert_uint_eq(tune_knee(one, 1), 0);
    ck_assert_uint_eq(tune_cheapest(flat, 5, 100), 1); /* 10 % above */
    ck_assert_uint_eq(tune_cheapest(flat, 5, 90), 0);
    ck_assert_uint_eq(tune_cheapest(flat, 5, 370), 5); /* 401 is not 10 % above */
    ck_assert_double_eq(tune_gain(flat, 0), 100);
    ck_assert_double_eq(tune_gain(flat, 2), 95);
    ck_assert_double_eq(tune_gain(flat, 3), 2.5);
    ck_assert_double_eq(tune_gain(falling, 2), -15);
    for (int round = 0; round < 20000; round++) {
        struct tune_point p[TUNE_MOST_POINTS], more[TUNE_MOST_POINTS + 1], scaled[TUNE_MOST_POINTS];
        uint32_t n = 1 + (uint32_t)(uniform() * 10), workers = 0;
        double rate = 0, best = 0;
        for (uint32_t i = 0; i < n; i++) {
            workers += 1 + (uint32_t)(uniform() * 4);
            rate = round % 2 ? rate + 1 + uniform() * 100 : 1 + uniform() * 1000; /* monotone, or not */
            p[i] = more[i] = scaled[i] = (struct tune_point){workers, rate};
            scaled[i].rate *= 1024;
            best = MAX(best, rate);
        }
        uint32_t knee = tune_knee(p, n);
        ck_assert(knee < n && p[knee].rate >= best * (1 - TUNE_NEAR));
        for (uint32_t i = 0; i < knee; i++) /* fewer would be too few */
            ck_assert(p[i].rate < best * (1 - TUNE_NEAR));
        ck_assert_uint_eq(tune_knee(scaled, n), knee);
        more[n] = (struct tune_point){workers + 8, best}; /* a plateau behind moves nothing */
        ck_assert_uint_eq(tune_knee(more, n + 1), knee);
        double a = uniform() * best, b = a + uniform() * best;
        ck_assert(tune_cheapest(p, n, a) <= tune_cheapest(p, n, b)); /* who wants more needs more */
        uint32_t cheapest = tune_cheapest(p, n, a);
        ck_assert(cheapest == n || p[cheapest].rate >= a * (1 + TUNE_HEADROOM));
    }
}
END_TEST

START_TEST(preferences) {
    const struct tune_rates alike[] = {{{100, 101, 99}, 3}, {{104, 105, 103}, 3}};
    ck_assert_uint_eq(tune_preferred(alike, 2), 0); /* not by enough */
    const struct tune_rates better[] = {{{100, 101, 99}, 3}, {{110, 111, 112}, 3}, {{111, 113, 115}, 3}};
    ck_assert_uint_eq(tune_preferred(better, 3), 1);
    const struct tune_rates noisy[] = {{{100, 200, 100}, 3}, {{150, 190, 150}, 3}};
    ck_assert_uint_eq(tune_preferred(noisy, 2), 0); /* it lost a round */
    const struct tune_rates missing[] = {{{0}, 0}, {{5, 5, 5}, 3}};
    ck_assert_uint_eq(tune_preferred(missing, 2), 1);
    ck_assert_uint_eq(tune_preferred(missing, 1), 0);
    for (int round = 0; round < 5000; round++) { /* nobody beats the one that is taken */
        struct tune_rates r[4];
        for (int i = 0; i < 4; i++) {
            r[i] = (struct tune_rates){.rounds = 5};
            for (int k = 0; k < 5; k++)
                r[i].rate[k] = (1 + i % 2) * (1 + uniform());
        }
        uint32_t taken = tune_preferred(r, 4);
        for (int i = 0; i < 4; i++) {
            bool every = tune_median(&r[i]) * (1 - TUNE_NEAR) > tune_median(&r[taken]);
            for (int k = 0; k < 5; k++)
                every &= r[i].rate[k] > r[taken].rate[k];
            ck_assert(!every);
        }
    }
}
END_TEST

/* By hand: of 10 ms a sample 8 are decoding; half of the samples can be kept, at a quarter of the time, and to make a
 * record takes twice a decoding. Later epochs: 10 - 4 + 1 = 7 ms; the first: 10 + 8 = 18. */
START_TEST(caches) {
    struct tune_cost cost = {
        .rate = 100, .decode = 0.8, .samples = 5000, .cacheable = 0.5, .plain = 200, .record = 800, .encode = 0.01};
    struct tune_cache c;
    ck_assert(tune_cache(&cost, &c));
    ck_assert(fabs(c.rate - 1000 / 7.0) < 1e-9 && fabs(c.first_rate - 1000 / 18.0) < 1e-9);
    ck_assert(fabs(c.epoch - 50) < 1e-9 && fabs(c.first - 90) < 1e-9);
    ck_assert(fabs(c.pays_after - 8.0 / 3) < 1e-9); /* 40 s more, then 15 s less each */
    cost.record = 150;                              /* records that are slower never pay */
    ck_assert(tune_cache(&cost, &c) && c.rate < 100);
    ck_assert_double_eq(c.pays_after, 0);
    cost = (struct tune_cost){
        .rate = 100, .decode = 0, .samples = 1, .cacheable = 1, .plain = 1, .record = 9, .encode = 1};
    ck_assert(tune_cache(&cost, &c)); /* nothing is decoded: nothing changes */
    ck_assert_double_eq(c.rate, 100);
    ck_assert_double_eq(c.first_rate, 100);
    ck_assert_double_eq(c.pays_after, 0);
    for (int i = 0; i < 5; i++) {
        double *const member[] = {&cost.rate, &cost.samples, &cost.cacheable, &cost.plain, &cost.record};
        const double kept = *member[i];
        *member[i] = 0;
        ck_assert(!tune_cache(&cost, &c));
        ck_assert_double_eq(c.rate + c.first, 0);
        *member[i] = kept;
    }
}
END_TEST

START_TEST(names) {
    static const char *const table[][2] = {{"/data/train", "train"},
                                           {"/data/train/", "train"},
                                           {"./cifar.bin", "cifar"},
                                           {"synthetic:10x3:u8", "synthetic"},
                                           {"/", "tuned"},
                                           {"", "tuned"},
                                           {"/d/a b", "a"},
                                           {"./x y/n01,n02", "n01"},
                                           {"/data/\xc3\xa4pfel", "pfel"},
                                           {"/a/..", "tuned"}};
    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        char name[64];
        tune_name(table[i][0], name, sizeof name);
        ck_assert_str_eq(name, table[i][1]);
    }
    char name[8];
    tune_name("/data/imagenet-train", name, sizeof name);
    ck_assert_str_eq(name, "imagene");
}
END_TEST

/* What is written is read back: by the daemon's own parser, to the same keys. */
START_TEST(configurations) {
    static const char text[] =
        "[pipeline x]\ndataset = /data/train\nformat = folder\nbatch = 32\nshuffle = chunked\nchunk = 512\n"
        "seed = 18446744073709551615\nimage = 224x160\naugment = random-resized-crop,flip\n"
        "scale = 0.25,1\nnormalize = imagenet\ndtype = f32\nsubset = 0..9\nslots = 5\n";
    struct config config, again;
    struct diag diag = DIAG_INIT;
    char lines[4096], second[4096], *file = NULL;
    size_t size = 0;
    ck_assert_msg(config_parse(text, sizeof text - 1, "/etc/x.conf", &config, &diag) == 0, "%s", diag.text);
    ck_assert_int_gt(pipeline_config_print(&config.pipeline[0], lines, sizeof lines), 0);
    ck_assert_ptr_nonnull(strstr(lines, "image = 224x160\n"));
    ck_assert_ptr_nonnull(strstr(lines, "seed = 18446744073709551615\n"));
    ck_assert_ptr_null(strstr(lines, "ratio")); /* as by default */
    ck_assert_int_eq(pipeline_config_print(&config.pipeline[0], second, 40), -ENOSPC);
    FILE *out = open_memstream(&file, &size);
    tune_print_section(out, &(struct tune_section){"x", 3, 16, 32, 8, "uring", lines});
    fclose(out);
    ck_assert_msg(strncmp(file,
                          "[daemon]\nworkers = 3\nengine = uring\ndepth = 16\n\n[pipeline x]\ndataset = /data/train\n",
                          80) == 0,
                  "%s", file);
    ck_assert_msg(config_parse(file, size, "/etc/y.conf", &again, &diag) == 0, "%s", diag.text);
    ck_assert_uint_eq(again.daemon.workers, 3);
    ck_assert_uint_eq(again.pipeline[0].slots, 8);
    ck_assert_uint_eq(again.pipeline[0].batch, 32);
    again.pipeline[0].slots = 5;
    ck_assert_int_gt(pipeline_config_print(&again.pipeline[0], second, sizeof second), 0);
    ck_assert_str_eq(second, lines);
    free(file);
    config_deinit(&config);
    config_deinit(&again);
    struct pipeline_config plain;
    ck_assert_int_eq(pipeline_config_init(&plain, "x"), 0);
    ck_assert_int_eq(pipeline_config_print(&plain, lines, sizeof lines), 0); /* nothing to say */
    pipeline_config_deinit(&plain);
}
END_TEST

START_TEST(histograms) {
    struct histogram *h = calloc(1, sizeof *h);
    uint64_t bin[10], sum = 0;
    ck_assert_double_eq(histogram_percentile_ms(h, 0.5), 0);
    for (uint64_t i = 1; i <= 1000; i++)
        histogram_add(h, i * 1000000); /* 1 to 1000 ms */
    ck_assert(fabs(histogram_mean_ms(h) - 500.5) < 1e-6);
    ck_assert(fabs(histogram_percentile_ms(h, 0.5) / 501 - 1) < 0.04);
    ck_assert(fabs(histogram_percentile_ms(h, 0.99) / 991 - 1) < 0.04);
    histogram_spread(h, 0, 1000, bin, 10);
    for (int i = 0; i < 10; i++) {
        ck_assert(bin[i] >= 70 && bin[i] <= 135);
        sum += bin[i];
    }
    ck_assert_uint_eq(sum, 1000); /* none is lost */
    histogram_spread(h, 100, 200, bin, 10);
    sum = 0;
    for (int i = 0; i < 10; i++)
        sum += bin[i];
    ck_assert_uint_eq(sum, 1000);
    ck_assert(bin[0] > 90 && bin[9] > 790);
    histogram_spread(h, 5, 5, bin, 10); /* no width */
    ck_assert_uint_eq(bin[0], 1000);
    free(h);
}
END_TEST

START_TEST(axes) {
    static const double table[][2] = {{0, 1}, {-5, 1}, {0.3, 0.5}, {1, 1},   {1.01, 2},
                                      {2, 2}, {3, 5},  {7, 10},    {10, 10}, {1234, 2000}};
    for (size_t i = 0; i < ARRAY_SIZE(table); i++)
        ck_assert_msg(fabs(tune_axis(table[i][0]) / table[i][1] - 1) < 1e-9, "%g: %g", table[i][0],
                      tune_axis(table[i][0]));
    ck_assert_double_eq(tune_axis(INFINITY), 1);
    ck_assert_double_eq(tune_axis(NAN), 1);
    for (int i = 0; i < 10000; i++) {
        double value = pow(10, uniform() * 18 - 6), end = tune_axis(value);
        ck_assert(end >= value * (1 - 1e-8) && end <= value * 2.5 * (1 + 1e-8));
    }
}
END_TEST

/* Every place that a plot draws at lies inside it. */
static void assert_inside(const char *text) {
    static const char *const attribute[] = {" x=\"",  " y=\"",  " x1=\"", " x2=\"",
                                            " y1=\"", " y2=\"", " cx=\"", " cy=\""};
    unsigned found = 0;
    for (size_t i = 0; i < ARRAY_SIZE(attribute); i++)
        for (const char *at = text; (at = strstr(at, attribute[i])); found++) {
            at += strlen(attribute[i]);
            double value = strtod(at, NULL), end = strchr(attribute[i], 'x') ? 860 : 320;
            ck_assert_msg(value >= 0 && value <= end, "%s%g", attribute[i], value);
        }
    ck_assert_uint_gt(found, 50);
    ck_assert_ptr_null(strstr(text, "nan"));
    ck_assert_ptr_null(strstr(text, "inf\""));
}

START_TEST(reports) {
    const struct tune_row row[] = {{1, 100, 0.01, {0, 0.1, 0.7, 0.1, 0, 0.1}},
                                   {2, 190, 0.02, {0.1, 0.1, 0.6, 0.1, 0, 0.1}},
                                   {4, 200, 0.5, {0.5, 0.5, 0.5, 0.5, 0.5, 0.5}}};
    const struct tune_bar bar[] = {{"mmap, depth 16, cache", 99, 0.1}};
    const struct tune_ceiling ceiling[] = {
        {"decoder alone", 110, 0}, {"disk alone", 0, 210}, {"copies alone", 0, 1e9}, {"bus", 0, 0}};
    const char *const stage[] = {"idle", "read", "decode", "transform", "copy", "other", "fill"};
    struct tune_report r = {.title = "a <b> & \"c\"",
                            .machine = "m",
                            .sentence = "s",
                            .row = row,
                            .rows = 3,
                            .chosen = 1,
                            .budget = 2,
                            .target = 150,
                            .ceiling = ceiling,
                            .ceilings = 4,
                            .bar = bar,
                            .bars = 1,
                            .cache = {300, 10, 25, 1.5, 1.25e8},
                            .stage_name = stage,
                            .high_ms = 5,
                            .section = "[daemon]\nx = <1>\n"};
    char *text = NULL;
    size_t size = 0;
    r.bin[3] = 7;
    FILE *out = open_memstream(&text, &size);
    tune_print_report(out, &r);
    fclose(out);
    assert_inside(text);
    ck_assert_ptr_nonnull(strstr(text, "<title>a &lt;b&gt; &amp; &quot;c&quot;</title>"));
    ck_assert_ptr_nonnull(strstr(text, "x = &lt;1&gt;"));
    ck_assert_ptr_nonnull(strstr(text, "id=\"throughput\""));
    ck_assert_ptr_nonnull(strstr(text, "id=\"latency\""));
    ck_assert_ptr_nonnull(strstr(text, "id=\"stages\""));
    ck_assert_ptr_nonnull(strstr(text, "<tr class=\"chosen\"><td>2</td><td>190.0</td><td>2.0 %</td><td>+90.0</td>"));
    ck_assert_ptr_nonnull(strstr(text, "decoder alone"));
    ck_assert_ptr_nonnull(strstr(text, "<td>300.0</td><td>125.0</td><td>10</td><td>25</td><td>1.5</td>"));
    ck_assert_ptr_null(strstr(text, "http")); /* nothing from elsewhere */
    ck_assert_ptr_null(strstr(text, "<script"));
    free(text);
    r = (struct tune_report){
        .title = "", .machine = "", .sentence = "", .stage_name = stage, .section = ""}; /* nothing was measured */
    out = open_memstream(&text, &size);
    tune_print_report(out, &r);
    fclose(out);
    assert_inside(text);
    free(text);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("tune");
    TCase *all = tcase_create("pure");
    tcase_set_timeout(all, 60);
    tcase_add_test(all, medians);
    tcase_add_test(all, budgets);
    tcase_add_test(all, candidates);
    tcase_add_test(all, knees);
    tcase_add_test(all, preferences);
    tcase_add_test(all, caches);
    tcase_add_test(all, names);
    tcase_add_test(all, configurations);
    tcase_add_test(all, histograms);
    tcase_add_test(all, axes);
    tcase_add_test(all, reports);
    suite_add_tcase(suite, all);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
