/* SPDX-License-Identifier: MIT */
/*
 * order.c by laws: the shuffle is a bijection for every N, looks uniform (chi-square with fixed seeds, so that a run
 * either always passes or never), depends on epoch and seed; batches of all ranks and steps cover each position once;
 * windows hold whole chunks; a mixture's periods are exact.
 * The table of the last batch is worked out by hand. random.h, from which all keys come, is
 * checked against the published Philox vectors first.
 */
#include "order.h"

#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "base/util.h"
#include "plan.h"

/* ck_assert writes to a pipe each time that it passes: too slow for inner loops. */
#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            ck_abort_msg("line %d: %s", __LINE__, #condition);                                                         \
    } while (0)

static struct order order_of(uint64_t samples, uint64_t seed) {
    return (struct order){
        .samples = samples, .seed = seed, .batch = 1, .world = 1, .shuffle = SHUFFLE_FULL, .last = LAST_PAD};
}

static struct order_epoch epoch_of(uint64_t samples, uint64_t seed, uint64_t epoch) {
    struct order order = order_of(samples, seed);
    struct order_epoch ret;
    order_epoch_init(&order, epoch, &ret);
    return ret;
}

/* Known answers of Random123's kat_vectors (philox4x32, 10 rounds). */
START_TEST(philox_vectors) {
    static const struct {
        uint32_t counter[4], key[2], word[4];
    } vector[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < ARRAY_SIZE(vector); i++) {
        struct random_block block = random_philox(vector[i].counter, vector[i].key);
        ck_assert_mem_eq(block.word, vector[i].word, sizeof block.word);
    }
}
END_TEST

static void assert_bijection(uint64_t samples, uint64_t seed, uint64_t epoch) {
    static uint8_t seen[1 << 20];
    struct order_epoch e = epoch_of(samples, seed, epoch);
    memset(seen, 0, samples);
    for (uint64_t p = 0; p < samples; p++) {
        uint64_t sample = order_sample(&e, p);
        EXPECT(sample < samples);
        EXPECT(seen[sample] == 0);
        seen[sample] = 1;
    }
}

START_TEST(bijection_of_every_small_size) {
    for (uint64_t n = 1; n <= 2000; n++) {
        assert_bijection(n, 0, 0);
        if (n < 400 || n % 16 == 0 || n > 1000)
            assert_bijection(n, n * UINT64_C(0x123456789abcdef), n % 7 + 1);
    }
}
END_TEST

START_TEST(bijection_of_larger_sizes) {
    static const uint64_t sizes[] = {4095, 4096, 4097, 50000, 65535, 65536, 65537, 100003, 262143, 262145, 1 << 20};
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++)
        assert_bijection(sizes[i], i, 3 * i);
}
END_TEST

static int compare_u64(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Windows at the start, in the middle and at the end of [0, n): in range and without repeats, also between windows. */
static void assert_injective(uint64_t n) {
    enum { WINDOW = 1500 };
    static uint64_t seen[3 * WINDOW];
    struct order_epoch e = epoch_of(n, n, 5);
    const uint64_t start[3] = {0, n / 2, n - WINDOW};
    for (size_t i = 0; i < ARRAY_SIZE(seen); i++) {
        seen[i] = order_sample(&e, start[i / WINDOW] + i % WINDOW);
        EXPECT(seen[i] < n);
    }
    qsort(seen, ARRAY_SIZE(seen), sizeof seen[0], compare_u64);
    for (size_t i = 1; i < ARRAY_SIZE(seen); i++)
        EXPECT(seen[i] != seen[i - 1]);
}

START_TEST(injective_around_powers_of_two) {
    for (unsigned k = 13; k <= 40; k++)
        for (int d = -1; d <= 1; d++)
            assert_injective((UINT64_C(1) << k) + (uint64_t)d);
    assert_injective(UINT64_C(1) << 62);
    assert_injective(UINT64_MAX - 7);
}
END_TEST

/*
 * Is `statistic` a likely value of chi-square with `freedom` degrees? Wilson and Hilferty: (statistic / freedom)^(1/3)
 * is nearly normal, with mean 1 - 2 / (9 freedom) and variance 2 / (9 freedom). 5 deviations: 1 in 1.7 million runs of
 * a good generator; seeds are fixed, so it holds always.
 */
static void assert_chi_square(double statistic, double freedom) {
    double deviation = sqrt(2 / (9 * freedom));
    double z = (cbrt(statistic / freedom) - (1 - 2 / (9 * freedom))) / deviation;
    ck_assert_msg(fabs(z) < 5, "chi-square %g of %g degrees is %g deviations off", statistic, freedom, z);
}

static double chi_square(const uint32_t *count, size_t cells, double expected) {
    double sum = 0;
    for (size_t i = 0; i < cells; i++)
        sum += (count[i] - expected) * (count[i] - expected) / expected;
    return sum;
}

static const uint64_t uniform_sizes[] = {2, 3, 5, 7, 16, 26, 31, 32, 33, 64, 100};

/* (position -> sample) over many epochs: an N x N table whose rows and columns all sum to `epochs`. */
START_TEST(uniform_over_positions) {
    uint64_t n = uniform_sizes[_i];
    const uint32_t epochs = 20000;
    uint32_t *count = calloc(n * n, sizeof *count);
    for (uint32_t epoch = 0; epoch < epochs; epoch++) {
        struct order_epoch e = epoch_of(n, 1234, epoch);
        for (uint64_t p = 0; p<n; p += n> 40 ? 7 : 1)
            count[p * n + order_sample(&e, p)]++;
    }
    if (n <= 40) {
        /* Sum over the table of permutations: sum ~ chi-square((n-1)^2) x n / (n - 1), as the margins are fixed. */
        double sum = chi_square(count, n * n, (double)epochs / (double)n);
        assert_chi_square(sum * (double)(n - 1) / (double)n, (double)((n - 1) * (n - 1)));
    }
    for (uint64_t p = 0; p<n; p += n> 40 ? 7 : 1)
        assert_chi_square(chi_square(count + p * n, n, (double)epochs / (double)n), (double)(n - 1));
    free(count);
}
END_TEST

/* Ordered pairs of the samples at two positions: n (n - 1) equally likely ones. */
static void assert_uniform_pairs(uint64_t n, uint64_t p, uint64_t q, uint32_t epochs, uint64_t by_seed) {
    uint32_t *count = calloc(n * n, sizeof *count), *cells = malloc(n * n * sizeof *cells);
    size_t used = 0;
    for (uint32_t i = 0; i < epochs; i++) {
        struct order_epoch e = by_seed ? epoch_of(n, by_seed + i, 0) : epoch_of(n, 99, i);
        count[order_sample(&e, p) * n + order_sample(&e, q)]++;
    }
    for (uint64_t i = 0; i < n * n; i++) {
        if (i / n != i % n)
            cells[used++] = count[i];
        else
            EXPECT(count[i] == 0);
    }
    EXPECT(used == n * (n - 1));
    if (used > 1)
        assert_chi_square(chi_square(cells, used, (double)epochs / (double)used), (double)(used - 1));
    free(count);
    free(cells);
}

START_TEST(uniform_over_pairs) {
    uint64_t n = uniform_sizes[_i];
    assert_uniform_pairs(n, 0, 1, 100000, 0);
    assert_uniform_pairs(n, 0, n - 1, 100000, 0);
    assert_uniform_pairs(n, n / 2, n / 2 ? n / 2 - 1 : 1, 100000, 1000);
}
END_TEST

/* All n! orders of small n are equally likely. */
START_TEST(uniform_over_permutations) {
    for (uint64_t n = 3; n <= 6; n++) {
        static uint32_t count[720];
        uint64_t factorial = 1;
        const uint32_t epochs = 200000;
        for (uint64_t i = 2; i <= n; i++)
            factorial *= i;
        memset(count, 0, sizeof count);
        for (uint32_t epoch = 0; epoch < epochs; epoch++) {
            struct order_epoch e = epoch_of(n, 5, epoch);
            uint64_t sample[6], rank = 0;
            for (uint64_t p = 0; p < n; p++) {
                uint64_t smaller = sample[p] = order_sample(&e, p);
                for (uint64_t q = 0; q < p; q++)
                    smaller -= sample[q] < sample[p];
                rank = rank * (n - p) + smaller;
            }
            EXPECT(rank < factorial);
            count[rank]++;
        }
        assert_chi_square(chi_square(count, factorial, epochs / (double)factorial), (double)(factorial - 1));
    }
}
END_TEST

/* The Feistel network, at its smallest and at common sizes, one pair of positions and many keys: samples, differences
 * of neighbours, and pairs, in 64 bins (or 64 x 64) of equal expectation. */
static void assert_uniform_feistel(uint64_t n) {
    enum { BINS = 64, KEYS = 60000 };
    uint32_t value[BINS] = {0}, difference[BINS] = {0}, pair[BINS * BINS] = {0};
    const uint64_t positions[3] = {0, n / 3, n - 2};
    for (uint32_t i = 0; i < KEYS; i++) {
        struct order_epoch e = epoch_of(n, 7, i);
        uint64_t p = positions[i % 3], a = order_sample(&e, p), b = order_sample(&e, p + 1);
        value[(unsigned __int128)a * BINS / n]++;
        difference[(unsigned __int128)((b + (n - a)) % n - 1) * BINS / (n - 1)]++;
        pair[(unsigned __int128)a * BINS / n * BINS + (unsigned __int128)b * BINS / n]++;
    }
    double cell = 1.0 / BINS;
    if (n % BINS == 0)
        assert_chi_square(chi_square(value, BINS, KEYS * cell), BINS - 1);
    if ((n - 1) % BINS == 0)
        assert_chi_square(chi_square(difference, BINS, KEYS * cell), BINS - 1);
    if (n % BINS == 0 && n >= 1 << 16) /* a pair on the diagonal is likelier by 1 / n: nothing at this size */
        assert_chi_square(chi_square(pair, BINS * BINS, KEYS * cell * cell), BINS * BINS - 1);
}

START_TEST(uniform_feistel) {
    static const uint64_t sizes[] = {1024, 1025, 1088, 1089, 4096, 4097, 1 << 16, 1 << 20, 1280000, UINT64_C(1) << 40};
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++)
        assert_uniform_feistel(sizes[i]);
}
END_TEST

/* Within one epoch: samples of consecutive positions in bins (a batch must not crowd in a part of the dataset). */
START_TEST(neighbours_spread) {
    static const uint64_t sizes[] = {1000, 1024, 1281167};
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        const uint64_t n = sizes[i], batch = 256, epochs = 400;
        double sum = 0, sum_square = 0;
        for (uint64_t epoch = 0; epoch < epochs; epoch++) {
            struct order_epoch e = epoch_of(n, 11, epoch);
            uint32_t bins[16] = {0};
            for (uint64_t p = 0; p < batch; p++)
                bins[order_sample(&e, p) * 16 / n]++;
            double chi = 0;
            for (unsigned b = 0; b < 16; b++) { /* bins are unequal where 16 does not divide n */
                uint64_t low = (n * b + 15) / 16, high = (n * (b + 1) + 15) / 16;
                double expected = (double)batch * (double)(high - low) / (double)n;
                chi += (bins[b] - expected) * (bins[b] - expected) / expected;
            }
            chi *= (double)(n - 1) / (double)(n - batch); /* drawing without replacement varies less */
            sum += chi;
            sum_square += chi * chi;
        }
        double mean = sum / (double)epochs, variance = sum_square / (double)epochs - mean * mean;
        ck_assert_double_eq_tol(mean, 15, 5 * sqrt(30.0 / (double)epochs)); /* chi-square(15): mean 15, variance 30 */
        ck_assert_double_eq_tol(variance, 30, 12);
    }
}
END_TEST

/* Two unrelated orders agree at a position with probability 1 / n: about one position in all (Poisson). */
static unsigned agreements(struct order_epoch *a, struct order_epoch *b) {
    unsigned same = 0;
    for (uint64_t p = 0; p < a->samples; p++)
        same += order_sample(a, p) == order_sample(b, p);
    return same;
}

START_TEST(epochs_and_seeds_are_unrelated) {
    static const uint64_t sizes[] = {500, 1023, 1024, 10000};
    static const uint64_t other[][2] = {{0, 1}, {1, 0}, {UINT64_C(1) << 32, 0}, {0, UINT64_C(1) << 32}, {1, 1}, {0, 7}};
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        unsigned total = 0;
        struct order_epoch first = epoch_of(sizes[i], 0, 0), again = epoch_of(sizes[i], 0, 0);
        ck_assert_uint_eq(agreements(&first, &again), sizes[i]);
        for (size_t j = 0; j < ARRAY_SIZE(other); j++) {
            struct order_epoch e = epoch_of(sizes[i], other[j][0], other[j][1]);
            unsigned same = agreements(&first, &e);
            ck_assert_uint_le(same, 10);
            total += same;
        }
        ck_assert_uint_le(total, 20); /* expected 6 */
    }
}
END_TEST

/* Not the identity, no fixed stride: consecutive differences of an epoch repeat no more than by chance. */
START_TEST(no_shuffle_is_the_identity) {
    struct order order = order_of(1000, 3);
    order.shuffle = SHUFFLE_NONE;
    struct order_epoch e;
    order_epoch_init(&order, 9, &e);
    for (uint64_t p = 0; p < 1000; p++)
        ck_assert_uint_eq(order_sample(&e, p), p);
    ck_assert_uint_eq(order_sample(&e, 1000), 0);
    ck_assert_uint_eq(order_sample(&e, 2999), 999);
}
END_TEST

START_TEST(padding_repeats_position_mod_n) {
    static const uint64_t sizes[] = {1, 2, 26, 1024, 5000};
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        struct order_epoch e = epoch_of(sizes[i], 3, 4);
        for (uint64_t p = 0; p < 3 * sizes[i]; p++)
            EXPECT(order_sample(&e, p) == order_sample(&e, p % sizes[i]));
    }
}
END_TEST

START_TEST(substitutes_are_others_and_distinct) {
    static const uint64_t sizes[] = {2, 3, 16, 17, 18, 100, 1024, 1025, 50000, UINT64_C(1) << 40};
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        uint64_t n = sizes[i], distinct = MIN(16, n - 1);
        for (unsigned shuffle = 0; shuffle < 2; shuffle++) {
            struct order order = order_of(n, 21);
            order.shuffle = shuffle ? SHUFFLE_FULL : SHUFFLE_NONE;
            struct order_epoch e;
            order_epoch_init(&order, 2, &e);
            for (uint64_t p = 0; p < MIN(n + 3, 50); p++) {
                uint64_t own = order_sample(&e, p), seen[16];
                for (uint32_t k = 0; k < 16; k++) {
                    seen[k] = order_substitute(&order, 2, p, k);
                    EXPECT(seen[k] < n);
                    EXPECT(seen[k] != own);
                    for (uint32_t j = 0; j < k && k < distinct; j++)
                        EXPECT(seen[k] != seen[j]);
                }
            }
        }
    }
    struct order one = order_of(1, 0);
    EXPECT(order_substitute(&one, 0, 0, 5) == 0);
}
END_TEST

/* Each of the others equally likely, also at a padding position, whose choice is its own. */
START_TEST(substitutes_are_uniform) {
    const uint64_t n = 20;
    const uint32_t draws = 40000;
    uint32_t count[20] = {0}, same = 0;
    struct order order = order_of(n, 8);
    order.shuffle = SHUFFLE_NONE;
    for (uint32_t epoch = 0; epoch < draws; epoch++) {
        uint64_t candidate = order_substitute(&order, epoch, 4, epoch % 16);
        count[candidate]++;
        same += candidate == order_substitute(&order, epoch, 24, epoch % 16);
    }
    ck_assert_uint_eq(count[4], 0);
    count[4] = count[19];
    assert_chi_square(chi_square(count, 19, draws / 19.0), 18);
    ck_assert_double_eq_tol(same, draws / 19.0, 5 * sqrt(draws / 19.0));
}
END_TEST

/* Case SMP-03, by hand: {position, rows, valid} of each (step, rank). */
START_TEST(table_of_the_last_batch) {
    struct {
        uint64_t samples;
        uint32_t batch, world;
        enum order_last last;
        uint64_t steps;
        struct order_batch batches[12];
    } table[] = {
        {26, 6, 4, LAST_DROP, 1, {{0, 6, 6}, {6, 6, 6}, {12, 6, 6}, {18, 6, 6}}},
        {26,
         6,
         4,
         LAST_KEEP,
         2,
         {{0, 6, 6}, {6, 6, 6}, {12, 6, 6}, {18, 6, 6}, {26, 1, 0}, {24, 1, 1}, {28, 1, 0}, {25, 1, 1}}},
        {26,
         6,
         4,
         LAST_PAD,
         2,
         {{0, 6, 6}, {6, 6, 6}, {12, 6, 6}, {18, 6, 6}, {24, 6, 2}, {30, 6, 0}, {36, 6, 0}, {42, 6, 0}}},
        {5, 8, 1, LAST_DROP, 0, {{0, 0, 0}}},
        {5, 8, 1, LAST_KEEP, 1, {{0, 5, 5}}},
        {5, 8, 1, LAST_PAD, 1, {{0, 8, 5}}},
        {65, 64, 1, LAST_DROP, 1, {{0, 64, 64}}},
        {65, 64, 1, LAST_KEEP, 2, {{0, 64, 64}, {64, 1, 1}}},
        {65, 64, 1, LAST_PAD, 2, {{0, 64, 64}, {64, 64, 1}}},
    };
    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        struct order order = {table[i].samples, 0,   table[i].batch, 0, table[i].world, SHUFFLE_NONE,
                              table[i].last,    NULL};
        struct diag diag = DIAG_INIT;
        ck_assert_uint_eq(order_steps(&order), table[i].steps);
        ck_assert_int_eq(order_check(&order, &diag), table[i].steps ? 0 : -EINVAL);
        for (uint64_t step = 0; step < table[i].steps; step++) {
            for (order.rank = 0; order.rank < order.world; order.rank++) {
                struct order_batch batch, *want = &table[i].batches[step * order.world + order.rank];
                order_batch(&order, step, &batch);
                ck_assert_uint_eq(batch.position, want->position);
                ck_assert_uint_eq(batch.rows, want->rows);
                ck_assert_uint_eq(batch.valid, want->valid);
            }
        }
    }
}
END_TEST

/* One epoch of one (N, B, W, last): each position once, no position twice (padding included), nothing empty. */
static void assert_covers(uint64_t n, uint32_t b, uint32_t w, enum order_last last) {
    struct order order = {n, 0, b, 0, w, SHUFFLE_NONE, last, NULL};
    uint64_t steps = order_steps(&order), global = (uint64_t)b * w, covered = 0;
    uint8_t *seen = calloc(n + 2 * global, 1);
    EXPECT(steps == (last == LAST_DROP ? n / global : (n + global - 1) / global));
    for (uint64_t step = 0; step < steps; step++) {
        for (order.rank = 0; order.rank < w; order.rank++) {
            struct order_batch batch;
            order_batch(&order, step, &batch);
            EXPECT(batch.rows >= 1);
            EXPECT(batch.rows <= b);
            EXPECT(batch.valid <= batch.rows);
            if (last == LAST_PAD || step + 1 < steps)
                EXPECT(batch.rows == b);
            for (uint32_t row = 0; row < batch.rows; row++) {
                uint64_t position = batch.position + row;
                EXPECT(position < n + 2 * global);
                EXPECT((position < n) == (row < batch.valid));
                EXPECT(seen[position] == 0);
                seen[position] = 1;
                covered += position < n;
            }
        }
    }
    EXPECT(covered == (last == LAST_DROP ? n / global * global : n));
    free(seen);
}

START_TEST(ranks_cover_each_position_once) {
    for (uint64_t n = 1; n <= 130; n++)
        for (uint32_t b = 1; b <= 9; b++)
            for (uint32_t w = 1; w <= 9; w++)
                for (int last = LAST_DROP; last <= LAST_PAD; last++)
                    assert_covers(n, b, w, last);
    static const uint64_t sizes[] = {1000, 1023, 4097};
    static const uint32_t batches[] = {32, 64, 100}, worlds[] = {1, 3, 8, 64, 200};
    for (size_t i = 0; i < 3; i++)
        for (size_t j = 0; j < 3; j++)
            for (size_t k = 0; k < 5; k++)
                for (int last = LAST_DROP; last <= LAST_PAD; last++)
                    assert_covers(sizes[i], batches[j], worlds[k], last);
}
END_TEST

/* The same global batch, another world size that divides it: step by step the same positions. */
START_TEST(another_world_size_sees_the_same_sequence) {
    const uint64_t n = 1000;
    for (uint32_t w = 1; w <= 24; w++) {
        if (24 % w)
            continue;
        struct order order = {n, 0, 24 / w, 0, w, SHUFFLE_NONE, LAST_PAD, NULL};
        EXPECT(order_steps(&order) == 42);
        for (uint64_t step = 0; step < 42; step++) {
            uint64_t next = step * 24;
            for (order.rank = 0; order.rank < w; order.rank++) {
                struct order_batch batch;
                order_batch(&order, step, &batch);
                EXPECT(batch.position == next);
                next += batch.rows;
            }
        }
    }
}
END_TEST

/* Numbers near the end of 32 and 64 bits. */
START_TEST(large_numbers) {
    struct order order = {UINT64_C(3) << 61, 0, UINT32_C(1) << 31, 6, 7, SHUFFLE_NONE, LAST_KEEP, NULL};
    ck_assert_int_eq(order_check(&order, NULL), 0);
    uint64_t global = UINT64_C(7) << 31, last = order_steps(&order) - 1, left = order.samples - last * global;
    ck_assert_uint_eq(order_steps(&order), (order.samples + global - 1) / global);
    struct order_batch batch;
    order_batch(&order, last, &batch);
    uint64_t from = (uint64_t)((unsigned __int128)left * 6 / 7);
    ck_assert_uint_eq(batch.position, last * global + from);
    ck_assert_uint_eq(batch.rows, left - from);
    order.samples = UINT64_MAX - 3;
    ck_assert_int_eq(order_check(&order, NULL), -EOVERFLOW);
    order = (struct order){1, 0, UINT32_MAX, UINT32_MAX - 1, UINT32_MAX, SHUFFLE_NONE, LAST_KEEP, NULL};
    ck_assert_int_eq(order_check(&order, NULL), 0);
    order_batch(&order, 0, &batch);
    ck_assert(batch.position == 0 && batch.rows == 1 && batch.valid == 1); /* the last rank has the only sample */
    order.rank = 5;
    order_batch(&order, 0, &batch);
    ck_assert(batch.position == 6 && batch.rows == 1 && batch.valid == 0);
}
END_TEST

static void assert_refused(struct order order, int code, const char *sentence) {
    struct diag diag = DIAG_INIT;
    ck_assert_int_eq(order_check(&order, &diag), code);
    ck_assert_int_eq(diag.code, code);
    ck_assert_str_eq(diag.text, sentence);
    ck_assert_int_eq(order_check(&order, NULL), code);
}

START_TEST(refusals_have_the_arithmetic) {
    assert_refused((struct order){26, 0, 6, 0, 8, SHUFFLE_NONE, LAST_DROP, NULL}, -EINVAL,
                   "26 samples, batch 6 x world 8 = 48: last=drop leaves no step; use last=pad or a smaller batch");
    assert_refused((struct order){0, 0, 6, 0, 8, SHUFFLE_NONE, LAST_PAD, NULL}, -EINVAL,
                   "no samples: the dataset is empty");
    assert_refused((struct order){26, 0, 0, 0, 8, SHUFFLE_NONE, LAST_PAD, NULL}, -EINVAL,
                   "batch is 0: at least 1 row is needed");
    assert_refused((struct order){26, 0, 6, 8, 8, SHUFFLE_NONE, LAST_PAD, NULL}, -EINVAL,
                   "rank 8 of world size 8: ranks are 0 to world size - 1");
    assert_refused((struct order){26, 0, 6, 0, 0, SHUFFLE_NONE, LAST_PAD, NULL}, -EINVAL,
                   "rank 0 of world size 0: ranks are 0 to world size - 1");
    assert_refused((struct order){UINT64_MAX, 0, 6, 0, 8, SHUFFLE_NONE, LAST_PAD, NULL}, -EOVERFLOW,
                   "18446744073709551615 samples, batch 6 x world 8 = 48: positions do not fit 64 bits");
}
END_TEST

/* What a seed means must never change: the first samples of three orders, as this version made them when it was new. */
START_TEST(orders_stay_what_they_are) {
    static const uint64_t sizes[3] = {26, 1281167, UINT64_C(1) << 40};
    static const uint64_t want[3][8] = {{11, 19, 25, 7, 13, 23, 10, 4},
                                        {795789, 156126, 855117, 709302, 200985, 1241315, 1147109, 1156679},
                                        {650263140717, 196079292900, 536086859394, 1095705635350, 429257484882,
                                         448655535459, 466579718848, 74511141783}};
    for (size_t i = 0; i < 3; i++) {
        struct order_epoch e = epoch_of(sizes[i], 42, 1);
        for (uint64_t p = 0; p < 8; p++)
            ck_assert_uint_eq(order_sample(&e, p), want[i][p]);
    }
}
END_TEST

/* ---- plans: chunks, subsets, mixtures ---- */

START_TEST(inverse_of_every_bijection) {
    static const uint64_t sizes[] = {1, 2, 3, 26, 1000, 1023, 1024, 1025, 4097, UINT64_C(1) << 40, UINT64_MAX - 7};
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        const struct random_key key = {i, 3, 0};
        struct bijection b, derived;
        bijection_init(&b, sizes[i], &key, RANDOM_CHUNK);
        bijection_derive(&b, 5, sizes[i], &derived);
        for (uint64_t k = 0; k < MIN(sizes[i], 2000); k++) {
            uint64_t x = k % 2 ? sizes[i] - 1 - k / 2 : k / 2;
            EXPECT(bijection_inverse(&b, bijection_map(&b, x)) == x);
            EXPECT(bijection_map(&derived, bijection_inverse(&derived, x)) == x);
        }
    }
}
END_TEST

static struct order_plan *plan_of(const struct order_plan_spec *spec) {
    struct order_plan *plan = NULL;
    struct diag diag = DIAG_INIT;
    ck_assert_msg(order_plan_new(spec, &plan, &diag) == 0, "%s", diag.text);
    ck_assert_int_eq(order_plan_reserve(plan, 3), 0);
    return plan;
}

static struct order order_by(struct order_plan *plan, const struct order_plan_spec *spec) {
    return (struct order){.samples = order_plan_samples(plan),
                          .seed = spec->seed,
                          .batch = 1,
                          .world = 1,
                          .shuffle = spec->shuffle,
                          .last = LAST_PAD,
                          .plan = plan};
}

/*
 * One epoch of chunks that begin at bound[0..chunks]: every index once; positions fall into windows, of which each holds
 * all samples of `window` chunks (the last: of those that are left) and none of another. `ids`: what indices stand for.
 */
static void assert_chunked(const struct order_plan_spec *spec, const uint64_t *bound, uint64_t chunks, uint64_t epoch) {
    struct order_plan *plan = plan_of(spec);
    struct order order = order_by(plan, spec);
    struct order_epoch e;
    static uint8_t seen[4096];
    static uint64_t chunk_seen[4096];
    uint64_t n = bound[chunks], distinct = 0, whole = 0, taken = 0, left = chunks;
    EXPECT(order.samples == n && n <= sizeof seen);
    order_epoch_init(&order, epoch, &e);
    memset(seen, 0, n);
    memset(chunk_seen, 0, chunks * sizeof *chunk_seen);
    for (uint64_t p = 0; p < n; p++) {
        uint64_t sample = order_sample(&e, p), low = 0;
        EXPECT(sample < n && seen[sample] == 0);
        seen[sample] = 1;
        while (bound[low + 1] <= sample)
            low++;
        if (chunk_seen[low]++ == 0) {
            distinct++;
            whole += bound[low + 1] - bound[low];
        }
        taken++;
        EXPECT(distinct <= spec->window);
        if (distinct == MIN(spec->window, left) && taken == whole) {
            left -= distinct;
            distinct = whole = taken = 0;
        }
    }
    EXPECT(left == 0 && taken == 0);
    order_plan_free(plan);
}

START_TEST(chunks_of_equal_size) {
    static uint64_t bound[64];
    for (uint64_t n = 1; n <= 40; n++)
        for (uint64_t chunk = 1; chunk <= n + 1; chunk++) {
            uint64_t chunks = (n - 1) / chunk + 1;
            for (uint64_t i = 0; i <= chunks; i++)
                bound[i] = MIN(i * chunk, n);
            for (uint32_t window = 1; window <= chunks + 1; window++) {
                const struct order_plan_spec spec = {
                    .shuffle = SHUFFLE_CHUNKED, .seed = n * chunk, .samples = n, .chunk = chunk, .window = window};
                assert_chunked(&spec, bound, chunks, 0);
                assert_chunked(&spec, bound, chunks, 7);
            }
        }
}
END_TEST

START_TEST(larger_chunks) {
    static const uint64_t cases[][3] = {{4096, 64, 8}, {4095, 64, 8}, {4000, 3, 500}, {3999, 1300, 2}, {4001, 1, 1}};
    static uint64_t bound[4097];
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        const struct order_plan_spec spec = {.shuffle = SHUFFLE_CHUNKED,
                                             .seed = i,
                                             .samples = cases[i][0],
                                             .chunk = cases[i][1],
                                             .window = (uint32_t)cases[i][2]};
        uint64_t chunks = (spec.samples - 1) / spec.chunk + 1;
        for (uint64_t k = 0; k <= chunks; k++)
            bound[k] = MIN(k * spec.chunk, spec.samples);
        for (uint64_t epoch = 0; epoch < 5; epoch++)
            assert_chunked(&spec, bound, chunks, epoch);
    }
}
END_TEST

/* Shards of all sizes, empty ones among them. */
START_TEST(chunks_by_shards) {
    for (uint64_t round = 0; round < 300; round++) {
        static uint64_t shard[64], bound[64];
        const struct random_key key = {round, 0, 0};
        uint64_t shards = 2 + random_draw(&key, RANDOM_CHUNK, 99).word[0] % 40, chunks = 0;
        for (uint64_t i = 0; i < shards; i++) {
            uint32_t size = random_draw(&key, RANDOM_CHUNK, 100 + (uint32_t)i).word[0] % (round % 3 ? 90 : 4);
            shard[i + 1] = shard[i] + size;
            if (size)
                bound[++chunks] = shard[i + 1];
        }
        if (chunks == 0)
            continue;
        for (uint32_t window = 1; window <= 9; window += 4) {
            const struct order_plan_spec spec = {.shuffle = SHUFFLE_CHUNKED,
                                                 .seed = round,
                                                 .samples = shard[shards],
                                                 .window = window,
                                                 .shards = shard,
                                                 .shard_count = shards};
            assert_chunked(&spec, bound, chunks, round);
        }
    }
}
END_TEST

/* Every chunk, the short one too, stands in every slot equally often; so does a sample at the ends of an epoch. */
START_TEST(chunks_are_uniform) {
    const uint32_t epochs = 20000;
    const struct order_plan_spec spec = {.shuffle = SHUFFLE_CHUNKED, .seed = 4, .samples = 23, .chunk = 4, .window = 2};
    struct order_plan *plan = plan_of(&spec);
    struct order order = order_by(plan, &spec);
    uint32_t first[6] = {0}, last[6] = {0}, place[6] = {0};
    for (uint32_t epoch = 0; epoch < epochs; epoch++) {
        struct order_epoch e;
        order_epoch_init(&order, epoch, &e);
        uint64_t windows[3] = {0};
        first[order_sample(&e, 0) / 4]++;
        last[order_sample(&e, 22) / 4]++;
        for (uint64_t p = 0; p < 23; p++)
            if (order_sample(&e, p) / 4 == 5)
                windows[p >= 15 ? 2 : p >= 8 ? 1 : 0]++; /* position 7 is behind the window where that is short */
        EXPECT(windows[0] + windows[1] + windows[2] == 3);
        place[windows[0] ? 0 : windows[1] == 3 ? 1 : 2]++;
    }
    /* a chunk is in the first window by 2/6, with the short one there by 1/5 of that: it has 4 of 8 or 4 of 7 samples */
    double share[6] = {0};
    for (int i = 0; i < 5; i++)
        share[i] = 2.0 / 6 * (0.8 * 4 / 8 + 0.2 * 4 / 7);
    share[5] = 2.0 / 6 * 3 / 7;
    for (int i = 0; i < 6; i++) {
        double expected = share[i] * epochs, deviation = sqrt(expected);
        ck_assert_double_eq_tol(first[i], expected, 5 * deviation);
        ck_assert_double_eq_tol(last[i], expected, 5 * deviation);
    }
    for (int i = 0; i < 3; i++)
        ck_assert_double_eq_tol(place[i], epochs / 3.0, 5 * sqrt(epochs / 3.0));
    order_plan_free(plan);
}
END_TEST

/* Few chunks of equal size have a table of places, many have none: that must not be seen in the order. */
START_TEST(tables_change_nothing) {
    for (uint64_t n = 1; n <= 3000; n += n < 60 ? 1 : 97)
        for (uint64_t chunk = 1; chunk <= 40; chunk += 3) {
            const struct order_plan_spec spec = {
                .shuffle = SHUFFLE_CHUNKED, .seed = n, .samples = n, .chunk = chunk, .window = 3};
            struct order_plan *plan = plan_of(&spec);
            struct order order = order_by(plan, &spec);
            struct order_epoch e, without;
            order_epoch_init(&order, n % 5, &e);
            uint64_t *shard = plan->shard;
            plan->shard = NULL;
            order_epoch_init(&order, n % 5, &without);
            for (uint64_t p = 0; p < n; p += 1 + n / 50) {
                uint64_t want = order_sample(&without, p);
                plan->shard = shard;
                EXPECT(order_sample(&e, p) == want);
                plan->shard = NULL;
            }
            plan->shard = shard;
            order_plan_free(plan);
        }
}
END_TEST

/* Seek: positions asked for in any order, at any epoch, of a set that no table could hold. */
START_TEST(chunks_without_a_table) {
    const struct order_plan_spec spec = {
        .shuffle = SHUFFLE_CHUNKED, .seed = 9, .samples = UINT64_C(10000000007), .chunk = 1000, .window = 64};
    enum { COUNT = 3000 };
    static uint64_t seen[COUNT];
    struct order_plan *plan = plan_of(&spec);
    struct order order = order_by(plan, &spec);
    struct order_epoch e;
    ck_assert_uint_eq(order_plan_bytes(plan), 0);
    order_epoch_init(&order, 1000, &e);
    for (size_t i = 0; i < COUNT; i++)
        seen[i] = order_sample(&e, i < COUNT / 2 ? i : spec.samples - 1 - i);
    for (size_t i = 0; i < COUNT; i += 7)
        EXPECT(order_sample(&e, i < COUNT / 2 ? i : spec.samples - 1 - i) == seen[i]);
    qsort(seen, COUNT, sizeof seen[0], compare_u64);
    uint64_t chunks = 1;
    for (size_t i = 1; i < COUNT; i++) {
        EXPECT(seen[i] != seen[i - 1] && seen[i] < spec.samples);
        chunks += seen[i] / 1000 != seen[i - 1] / 1000;
    }
    EXPECT(chunks <= 3 * 64);
    order_plan_free(plan);
}
END_TEST

/* A subset is its table: the order of indices is that of a dataset of as many samples. */
START_TEST(a_subset_is_a_table) {
    static uint64_t ids[500];
    for (uint64_t i = 0; i < 500; i++)
        ids[i] = 9000 - 17 * i;
    for (int shuffle = SHUFFLE_NONE; shuffle <= SHUFFLE_CHUNKED; shuffle++) {
        struct order_plan_spec spec = {
            .shuffle = (enum order_shuffle)shuffle, .seed = 6, .samples = 10000, .chunk = 7, .window = 3};
        struct order_plan_spec small = spec;
        spec.ids = ids;
        spec.id_count = small.samples = 500;
        struct order_plan *plan = plan_of(&spec), *other = plan_of(&small);
        struct order order = order_by(plan, &spec), plain = order_by(other, &small);
        struct order_epoch e, want;
        EXPECT(order.samples == 500 && order_plan_bytes(plan) >= 4000);
        if (shuffle != SHUFFLE_CHUNKED)
            plain.plan = NULL; /* the same as without any plan */
        order_epoch_init(&order, 3, &e);
        order_epoch_init(&plain, 3, &want);
        for (uint64_t p = 0; p < 1200; p++)
            EXPECT(order_sample(&e, p) == ids[order_sample(&want, p)]);
        for (uint64_t p = 0; p < 30; p++) {
            uint64_t substitute = order_substitute(&order, 3, p, 1);
            EXPECT(substitute != order_sample(&e, p) && substitute <= 9000 && (9000 - substitute) % 17 == 0);
        }
        order_plan_free(plan);
        order_plan_free(other);
    }
}
END_TEST

/* Chunks by shards of a subset: a run of neighbours in one shard is a chunk. */
START_TEST(a_subset_of_shards) {
    static const uint64_t shards[] = {0, 100, 200, 300}, ids[] = {5, 7, 99, 250, 251, 110, 111, 112, 20};
    static const uint64_t run[] = {0, 0, 0, 1, 1, 2, 2, 2, 3};
    const struct order_plan_spec spec = {.shuffle = SHUFFLE_CHUNKED,
                                         .samples = 300,
                                         .window = 1,
                                         .shards = shards,
                                         .shard_count = 3,
                                         .ids = ids,
                                         .id_count = ARRAY_SIZE(ids)};
    struct order_plan *plan = plan_of(&spec);
    struct order order = order_by(plan, &spec);
    for (uint64_t epoch = 0; epoch < 20; epoch++) {
        struct order_epoch e;
        uint32_t changes = 0, seen = 0;
        uint64_t last = UINT64_MAX;
        order_epoch_init(&order, epoch, &e);
        for (uint64_t p = 0; p < ARRAY_SIZE(ids); p++) {
            uint64_t sample = order_sample(&e, p), at = 0;
            while (ids[at] != sample)
                at++;
            seen |= 1u << at;
            changes += run[at] != last;
            last = run[at];
        }
        EXPECT(seen == 0x1ff && changes == 4);
    }
    order_plan_free(plan);
}
END_TEST

struct mixture {
    uint64_t source[5];
    uint32_t weight[4], sources;
};

/* Every period has exactly the weights; every source is gone through pass by pass, over the ends of epochs; passes
 * differ. */
static void assert_mixture(const struct mixture *m, enum order_shuffle shuffle, uint64_t epoch_samples) {
    const struct order_plan_spec spec = {.shuffle = shuffle,
                                         .seed = 3,
                                         .samples = m->source[m->sources],
                                         .chunk = 3,
                                         .window = 2,
                                         .sources = m->source,
                                         .source_count = m->sources,
                                         .weights = m->weight,
                                         .epoch_samples = epoch_samples};
    struct order_plan *plan = plan_of(&spec);
    struct order order = order_by(plan, &spec);
    uint64_t period = 0, count[4] = {0}, turns[4] = {0}, at = 0;
    static uint64_t pass_of[256];
    memset(pass_of, 0, sizeof pass_of);
    for (uint32_t i = 0; i < m->sources; i++)
        period += m->weight[i];
    EXPECT(epoch_samples ? order.samples == epoch_samples
                         : order.samples == (spec.samples + period - 1) / period * period);
    for (uint64_t epoch = 0; epoch < 6; epoch++) {
        struct order_epoch e;
        order_epoch_init(&order, epoch, &e);
        for (uint64_t p = 0; p < order.samples; p++, at++) {
            uint64_t sample = order_sample(&e, p);
            uint32_t i = 0;
            EXPECT(sample < spec.samples);
            while (m->source[i + 1] <= sample)
                i++;
            uint64_t n = m->source[i + 1] - m->source[i];
            if (shuffle == SHUFFLE_NONE)
                EXPECT(sample == m->source[i] + count[i] % n);
            else if (n >= period) /* a period's turns come rotated: a pass ends within a period of where it should */
                EXPECT(pass_of[sample] + 1 >= count[i] / n && pass_of[sample] <= count[i] / n + 1);
            pass_of[sample]++;
            count[i]++;
            turns[i]++;
            if ((at + 1) % period == 0) {
                for (uint32_t k = 0; k < m->sources; k++) {
                    EXPECT(turns[k] == m->weight[k]);
                    turns[k] = 0;
                }
            }
            uint64_t other = order_substitute(&order, epoch, p, 2);
            EXPECT(other >= m->source[i] && other < m->source[i + 1] && (n == 1 || other != sample));
        }
    }
    for (uint32_t i = 0; i < m->sources && at % period == 0; i++) {
        uint64_t n = m->source[i + 1] - m->source[i];
        for (uint64_t sample = m->source[i]; sample < m->source[i + 1]; sample++)
            EXPECT(pass_of[sample] == count[i] / n || pass_of[sample] == count[i] / n + 1);
    }
    order_plan_free(plan);
}

START_TEST(mixtures_are_exact) {
    static const struct mixture mixtures[] = {
        {{0, 50, 70, 73}, {3, 1, 1}, 3},
        {{0, 1, 100}, {1, 6}, 2},
        {{0, 40, 41, 42, 200}, {5, 2, 1, 9}, 4},
        {{0, 30}, {1}, 1},
    };
    for (size_t i = 0; i < ARRAY_SIZE(mixtures); i++)
        for (int shuffle = SHUFFLE_NONE; shuffle <= SHUFFLE_CHUNKED; shuffle++) {
            assert_mixture(&mixtures[i], (enum order_shuffle)shuffle, 0);
            assert_mixture(&mixtures[i], (enum order_shuffle)shuffle, 37);
            assert_mixture(&mixtures[i], (enum order_shuffle)shuffle, 1000);
        }
}
END_TEST

/* A source that goes round: each pass a permutation, and another one. */
START_TEST(passes_differ) {
    for (int shuffle = SHUFFLE_FULL; shuffle <= SHUFFLE_CHUNKED; shuffle++) {
        const struct order_plan_spec spec = {.shuffle = (enum order_shuffle)shuffle,
                                             .seed = 1,
                                             .samples = 2000,
                                             .chunk = 30,
                                             .window = 4,
                                             .epoch_samples = 700};
        struct order_plan *plan = plan_of(&spec);
        struct order order = order_by(plan, &spec);
        static uint64_t pass[4][2000];
        for (uint64_t at = 0; at < 8000; at++) {
            struct order_epoch e;
            order_epoch_init(&order, at / 700, &e);
            pass[at / 2000][at % 2000] = order_sample(&e, at % 700);
        }
        for (int i = 0; i < 4; i++) {
            static uint8_t seen[2000];
            uint32_t same = 0;
            memset(seen, 0, sizeof seen);
            for (int k = 0; k < 2000; k++) {
                EXPECT(seen[pass[i][k]]++ == 0);
                same += pass[i][k] == pass[(i + 1) % 4][k];
            }
            EXPECT(same < 60);
        }
        order_plan_free(plan);
    }
}
END_TEST

static void assert_no_plan(const struct order_plan_spec *spec, const char *sentence) {
    struct order_plan *plan = NULL;
    struct diag diag = DIAG_INIT;
    ck_assert_int_eq(order_plan_new(spec, &plan, &diag), -EINVAL);
    ck_assert_str_eq(diag.text, sentence);
    ck_assert_ptr_null(plan);
}

START_TEST(plans_that_are_refused) {
    static const uint64_t sources[] = {0, 50, 100}, ids[] = {3, 4, 5};
    static const uint32_t zero[] = {1, 0}, much[] = {65535, 2}, good[] = {1, 1};
    struct order_plan_spec spec = {.samples = 100, .ids = ids};
    assert_no_plan(&spec, "the subset is empty: 0 of 100 samples");
    spec = (struct order_plan_spec){.samples = 100, .sources = sources, .source_count = 2, .weights = zero};
    assert_no_plan(&spec, "weight 2 is 0: leave that dataset out instead");
    spec.weights = much;
    assert_no_plan(&spec, "the weights' sum is 65537, at most 65536 is possible");
    spec.weights = good;
    spec.ids = ids;
    spec.id_count = 3;
    assert_no_plan(&spec, "dataset 2 of the 2 mixed ones has no sample of the subset's 3; take it and its weight away, "
                          "or choose another subset");
    spec = (struct order_plan_spec){.samples = 100, .shuffle = SHUFFLE_CHUNKED};
    assert_no_plan(&spec, "window is 0 chunks: at least 1 is needed");
}
END_TEST

/* As orders_stay_what_they_are, for what a plan adds. */
START_TEST(plans_stay_what_they_are) {
    static const uint64_t shards[] = {0, 10, 300, 1000}, sources[] = {0, 700, 1000};
    static const uint32_t weights[] = {2, 1};
    struct order_plan_spec spec[3] = {
        {.chunk = 64, .window = 4},
        {.window = 2, .shards = shards, .shard_count = 3},
        {.chunk = 50, .window = 3, .sources = sources, .source_count = 2, .weights = weights}};
    static const uint64_t want[3][8] = {{343, 358, 835, 483, 155, 356, 334, 373},
                                        {899, 376, 785, 784, 473, 929, 494, 889},
                                        {271, 743, 287, 732, 466, 482, 458, 282}};
    for (size_t i = 0; i < 3; i++) {
        spec[i].shuffle = SHUFFLE_CHUNKED;
        spec[i].seed = 42;
        spec[i].samples = 1000;
        struct order_plan *plan = plan_of(&spec[i]);
        struct order order = order_by(plan, &spec[i]);
        struct order_epoch e;
        order_epoch_init(&order, 1, &e);
        for (uint64_t p = 0; p < 8; p++)
            ck_assert_uint_eq(order_sample(&e, p), want[i][p]);
        order_plan_free(plan);
    }
}
END_TEST

int main(void) {
    Suite *suite = suite_create("order");
    TCase *shuffle = tcase_create("shuffle"), *batches = tcase_create("batches");
    tcase_set_timeout(shuffle, 300);
    tcase_set_timeout(batches, 300);
    tcase_add_test(shuffle, philox_vectors);
    tcase_add_test(shuffle, bijection_of_every_small_size);
    tcase_add_test(shuffle, bijection_of_larger_sizes);
    tcase_add_test(shuffle, injective_around_powers_of_two);
    tcase_add_loop_test(shuffle, uniform_over_positions, 0, (int)ARRAY_SIZE(uniform_sizes));
    tcase_add_loop_test(shuffle, uniform_over_pairs, 0, (int)ARRAY_SIZE(uniform_sizes));
    tcase_add_test(shuffle, uniform_over_permutations);
    tcase_add_test(shuffle, uniform_feistel);
    tcase_add_test(shuffle, neighbours_spread);
    tcase_add_test(shuffle, epochs_and_seeds_are_unrelated);
    tcase_add_test(shuffle, no_shuffle_is_the_identity);
    tcase_add_test(shuffle, padding_repeats_position_mod_n);
    tcase_add_test(shuffle, substitutes_are_others_and_distinct);
    tcase_add_test(shuffle, substitutes_are_uniform);
    tcase_add_test(shuffle, orders_stay_what_they_are);
    suite_add_tcase(suite, shuffle);
    tcase_add_test(batches, table_of_the_last_batch);
    tcase_add_test(batches, ranks_cover_each_position_once);
    tcase_add_test(batches, another_world_size_sees_the_same_sequence);
    tcase_add_test(batches, large_numbers);
    tcase_add_test(batches, refusals_have_the_arithmetic);
    suite_add_tcase(suite, batches);
    TCase *plans = tcase_create("plans");
    tcase_set_timeout(plans, 300);
    tcase_add_test(plans, inverse_of_every_bijection);
    tcase_add_test(plans, chunks_of_equal_size);
    tcase_add_test(plans, larger_chunks);
    tcase_add_test(plans, chunks_by_shards);
    tcase_add_test(plans, tables_change_nothing);
    tcase_add_test(plans, chunks_are_uniform);
    tcase_add_test(plans, chunks_without_a_table);
    tcase_add_test(plans, a_subset_is_a_table);
    tcase_add_test(plans, a_subset_of_shards);
    tcase_add_test(plans, mixtures_are_exact);
    tcase_add_test(plans, passes_differ);
    tcase_add_test(plans, plans_that_are_refused);
    tcase_add_test(plans, plans_stay_what_they_are);
    suite_add_tcase(suite, plans);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
