/* SPDX-License-Identifier: MIT */
/* Explicit order: the trainer says which samples come, over daemons that die, from any state on, to the end it says. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

#define SAMPLES 500
#define BATCH 16
#define IDS 3000

static pid_t start_service(void) {
    return start_daemon("--name", "records", "--dataset", "records.bin", "--record", "id:u32 data:u8[60]", "--workers",
                        "2", NULL);
}

static struct loaderd_options options_of(void) {
    static const char *keys[] = {"batch=16", "shuffle=explicit", NULL};
    struct loaderd_options o = LOADERD_OPTIONS_INIT;
    o.keys = keys;
    o.reconnect_timeout_ms = 20000;
    return o;
}

static uint64_t id_of(uint64_t i) {
    return (i * 7919 + i / SAMPLES) % SAMPLES; /* repeats are allowed */
}

/* Sends ids from number `sent` on, `most` at a time, until the library wants no more. */
static uint64_t supply_all(struct loaderd *loader, uint64_t sent, size_t most) {
    uint64_t ids[IDS];
    while (sent < IDS) {
        size_t count = most < IDS - sent ? most : IDS - sent;
        for (size_t i = 0; i < count; i++)
            ids[i] = id_of(sent + i);
        int64_t taken = loaderd_supply(loader, ids, count);
        if (taken == -EAGAIN)
            return sent;
        ck_assert_msg(taken > 0, "%s", loaderd_error(loader));
        sent += (uint64_t)taken;
    }
    return sent;
}

static void check_ids(const struct loaderd_batch *b, uint64_t n) {
    ck_assert_uint_eq(b->step, n);
    ck_assert_uint_eq(b->rows, n < IDS / BATCH ? BATCH : IDS % BATCH);
    for (uint32_t i = 0; i < b->rows; i++) {
        ck_assert_uint_eq(b->row[i].sample, id_of(n * BATCH + i));
        ck_assert_uint_eq(b->row[i].position, n * BATCH + i);
    }
    check_records(b);
}

START_TEST(ids_become_batches) {
    harness_begin();
    make_records("records.bin", SAMPLES, 60);
    pid_t daemon = start_service();
    struct loaderd_options o = options_of();
    struct loaderd *loader = open_loader("records", &o);
    struct loaderd_batch b;
    ck_assert_int_eq(loaderd_next(loader, &b), -EDEADLK);
    ck_assert_ptr_nonnull(strstr(loaderd_error(loader), "16 more ids"));
    uint64_t first = id_of(0), sent = 1, n = 0;
    ck_assert_int_eq((int)loaderd_supply(loader, &first, 1), 1);
    ck_assert_int_eq(loaderd_try_next(loader, &b), -EDEADLK);
    while (n <= IDS / BATCH) {
        sent = supply_all(loader, sent, 1 + n % 40 * 5);
        if (n == IDS / BATCH) { /* the short one: not begun before its end is said */
            ck_assert_int_eq(loaderd_try_next(loader, &b), -EDEADLK);
            ck_assert_int_eq(loaderd_supply_end(loader), 0);
        }
        must_next(loader, &b);
        check_ids(&b, n++);
        loaderd_release(loader, &b);
    }
    ck_assert(b.flags & LOADERD_BATCH_LAST);
    ck_assert_int_eq(loaderd_next(loader, &b), 0);
    ck_assert_int_eq(loaderd_next(loader, &b), 0);
    ck_assert_int_eq((int)loaderd_supply(loader, &first, 1), -EINVAL);
    struct loaderd_statistics statistics;
    loaderd_statistics(loader, &statistics);
    ck_assert_uint_eq(statistics.rescues, 0);
    loaderd_close(loader);
    end_process(daemon, SIGTERM);
    harness_end();
}
END_TEST

/* Daemons die with ids in their queue, ids in batches under way, and after the end was said. */
START_TEST(ids_survive_daemons) {
    static const uint64_t at[] = {0, 1, 14, 15, 100, IDS / BATCH - 2, IDS / BATCH};
    harness_begin();
    make_records("records.bin", SAMPLES, 60);
    pid_t daemon = start_service();
    struct loaderd_options o = options_of();
    struct loaderd *loader = open_loader("records", &o);
    struct loaderd_batch b, held = {0};
    uint64_t sent = supply_all(loader, 0, 100), n = 0;
    size_t deaths = 0;
    bool ended = false;
    while (n <= IDS / BATCH) {
        if (deaths < sizeof at / sizeof at[0] && n == at[deaths]) {
            end_process(daemon, deaths++ % 2 ? SIGTERM : SIGKILL);
            daemon = start_service();
        }
        sent = supply_all(loader, sent, 64);
        if (sent == IDS && !ended) {
            ended = true;
            ck_assert_int_eq(loaderd_supply_end(loader), 0);
        }
        must_next(loader, &b);
        check_ids(&b, n);
        if (n++ == 10)
            held = b;
        else
            loaderd_release(loader, &b);
        if (n > 10 && n < 40) /* it lies in the memory of a daemon that died */
            check_ids(&held, 10);
        if (n == 40)
            ck_assert_int_eq(loaderd_release(loader, &held), 0);
    }
    ck_assert_uint_eq(deaths, sizeof at / sizeof at[0]);
    ck_assert_int_eq(loaderd_next(loader, &b), 0);
    loaderd_close(loader);
    end_process(daemon, SIGTERM);
    harness_end();
}
END_TEST

START_TEST(ids_go_on_from_a_state) {
    harness_begin();
    make_records("records.bin", SAMPLES, 60);
    pid_t daemon = start_service();
    struct loaderd_options o = options_of();
    struct loaderd *loader = open_loader("records", &o);
    struct loaderd_batch b;
    struct loaderd_state state;
    supply_all(loader, 0, IDS);
    for (uint64_t n = 0; n < 5; n++) {
        must_next(loader, &b);
        loaderd_release(loader, &b);
    }
    loaderd_state(loader, &state);
    ck_assert_uint_eq(state.step, 5);
    loaderd_close(loader);
    o.state = &state;
    loader = open_loader("records", &o);
    supply_all(loader, 5 * BATCH, 33);
    for (uint64_t n = 5; n < 20; n++) {
        must_next(loader, &b);
        check_ids(&b, n);
        loaderd_release(loader, &b);
    }
    loaderd_close(loader);
    o = options_of();
    static const char *other[] = {"batch=16", "shuffle=full", NULL};
    o.keys = other;
    loader = open_loader("records", &o);
    uint64_t id = 0;
    ck_assert_int_eq((int)loaderd_supply(loader, &id, 1), -EINVAL);
    ck_assert_int_eq(loaderd_supply_end(loader), -EINVAL);
    loaderd_close(loader);
    end_process(daemon, SIGTERM);
    harness_end();
}
END_TEST

int main(void) {
    Suite *suite = suite_create("supply");
    TCase *all = tcase_create("all");
    tcase_set_timeout(all, HARNESS_TIMEOUT);
    tcase_add_test(all, ids_become_batches);
    tcase_add_test(all, ids_survive_daemons);
    tcase_add_test(all, ids_go_on_from_a_state);
    suite_add_tcase(suite, all);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
