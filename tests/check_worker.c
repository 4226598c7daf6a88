/* SPDX-License-Identifier: MIT */
/*
 * The engine without a socket: pool, pipeline, session and consumer in one process, over small data sets made here.
 * Laws: every sample once an epoch; a batch is the same for every number of workers and every engine, over clean and
 * damaged data; the policies for bad samples; sessions that come and go.
 */
#include <check.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jpeglib.h>
#include <zlib.h>

#include "../client/consumer.h"
#include "../client/supply.h"
#include "autoconfig.h"
#include "base/log.h"
#include "base/util.h"
#include "dataset/dataset.h"
#include "pictures-reference.h"
#include "pipeline.h"
#include "pool.h"
#include "worker.h"

static char root[] = "/tmp/loaderd-check-worker-XXXXXX";

/* ---- data ------------------------------------------------------------------------------------------------------- */

static const char *path_of(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    return path;
}

static void write_file(const char *path, const void *bytes, size_t length) {
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(bytes, 1, length, f), length);
    fclose(f);
}

/* A picture whose pixels depend on `number`, as JPEG bytes. */
static size_t make_jpeg(uint32_t number, uint32_t width, uint32_t height, bool gray, uint8_t **ret) {
    struct jpeg_compress_struct c;
    struct jpeg_error_mgr error;
    unsigned long length = 0;
    *ret = NULL;
    c.err = jpeg_std_error(&error);
    jpeg_create_compress(&c);
    jpeg_mem_dest(&c, ret, &length);
    c.image_width = width;
    c.image_height = height;
    c.input_components = gray ? 1 : 3;
    c.in_color_space = gray ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_set_defaults(&c);
    jpeg_start_compress(&c, TRUE);
    uint8_t row[3 * 256];
    for (uint32_t y = 0; y < height; y++) {
        for (uint32_t i = 0; i < width * 3; i++)
            row[i] = (uint8_t)(number * 37 + i * (1 + number % 5) + y * (2 + number % 3));
        uint8_t *rows[1] = {row};
        jpeg_write_scanlines(&c, rows, 1);
    }
    jpeg_finish_compress(&c);
    jpeg_destroy_compress(&c);
    return length;
}

#define PICTURES 60u

/* PICTURES files in 3 classes; where `bad`: an empty file, a text, a cut one, a dangling link and a PNG among them. */
static void make_pictures(const char *name, bool bad) {
    char path[600];
    ck_assert_int_eq(mkdir(path_of(name), 0755), 0);
    for (uint32_t i = 0; i < PICTURES; i++) {
        snprintf(path, sizeof path, "%s/%s/class%u", root, name, i % 3);
        mkdir(path, 0755);
        snprintf(path, sizeof path, "%s/%s/class%u/%03u.jpg", root, name, i % 3, i);
        uint8_t *bytes;
        size_t length = make_jpeg(i, 40 + i, 90 - i, i % 7 == 0, &bytes);
        if (bad && i == 10)
            write_file(path, "", 0);
        else if (bad && i == 20)
            write_file(path, "this is no picture\n", 19);
        else if (bad && i == 30)
            write_file(path, bytes, length / 2);
        else if (bad && i == 40)
            ck_assert_int_eq(symlink("nowhere.jpg", path), 0);
        else if (bad && i == 50)
            write_file(path, "\x89PNG\r\n\x1a\n", 8);
        else
            write_file(path, bytes, length);
        free(bytes);
    }
}

#define RECORDS 103u
#define RECORD_BYTES (1u + 3 * 8 * 8)

static void make_records(void) {
    uint8_t *all = malloc(RECORDS * RECORD_BYTES);
    for (uint32_t i = 0; i < RECORDS; i++) {
        all[i * RECORD_BYTES] = (uint8_t)(i % 10);
        for (uint32_t k = 1; k < RECORD_BYTES; k++)
            all[i * RECORD_BYTES + k] = (uint8_t)(i * 31 + k);
    }
    write_file(path_of("records.bin"), all, RECORDS * RECORD_BYTES);
    free(all);
}

#define SHARDS 6u

/* Shards of the records above: 20, 0, 31, 1, 40 and 11 of them, which is all. */
static void make_shards(void) {
    static const uint32_t first[SHARDS + 1] = {0, 20, 20, 51, 52, 92, RECORDS};
    char path[600];
    ck_assert_int_eq(mkdir(path_of("shards"), 0755), 0);
    for (uint32_t s = 0; s < SHARDS; s++) {
        uint8_t *bytes = malloc(RECORDS * RECORD_BYTES);
        for (uint32_t i = first[s]; i < first[s + 1]; i++)
            for (uint32_t k = 0; k < RECORD_BYTES; k++)
                bytes[(i - first[s]) * RECORD_BYTES + k] = (uint8_t)(k ? i * 31 + k : i % 10);
        snprintf(path, sizeof path, "%s/shards/%u.bin", root, s);
        write_file(path, bytes, (first[s + 1] - first[s]) * RECORD_BYTES);
        free(bytes);
    }
}

static void setup(void) {
    log_init("check_worker", LOG_ERROR);
    ck_assert_ptr_nonnull(mkdtemp(root));
    make_pictures("clean", false);
    make_pictures("bad", true);
    make_records();
    make_shards();
}

static void teardown(void) {
    char command[600];
    snprintf(command, sizeof command, "rm -rf %s", root);
    ck_assert_int_eq(system(command), 0);
}

/* ---- one engine -------------------------------------------------------------------------------------------------- */

struct engine {
    struct pool *pool;
    struct pipeline *pipeline;
    struct session *session;
    struct consumer consumer;
    int fd; /* our end of the wake channel */
};

struct setup_of {
    const char *dataset;
    const char *const *keys; /* pairs, NULL-terminated */
    uint32_t workers;
    const char *engine;
    uint32_t rank, world;
    uint64_t epoch, step, epochs;
};

static void open_session(struct engine *e, const struct setup_of *u, struct pipeline_config *config) {
    int pair[2];
    struct diag diag = DIAG_INIT;
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    struct session_request request = {.config = *config,
                                      .rank = u->rank,
                                      .world = MAX(u->world, 1u),
                                      .held = 1,
                                      .epoch = u->epoch,
                                      .step = u->step,
                                      .epochs = u->epochs,
                                      .wake_fd = pair[1]};
    int r = session_new(e->pool, e->pipeline, &request, &e->session, &diag);
    ck_assert_msg(r == 0, "%s", diag.text);
    e->fd = pair[0];
    struct session_info info;
    char error[200];
    session_info(e->session, 0, &info);
    r = consumer_attach(&e->consumer, info.data_fd, info.control_fd, error, sizeof error);
    ck_assert_msg(r == 0, "%s", error);
}

static void configure(const struct setup_of *u, struct pipeline_config *config) {
    struct diag diag = DIAG_INIT;
    ck_assert_int_eq(pipeline_config_init(config, "test"), 0);
    ck_assert_int_eq(pipeline_config_set(config, "dataset", path_of(u->dataset), &diag), 0);
    for (const char *const *k = u->keys; k && *k; k += 2)
        ck_assert_msg(pipeline_config_set(config, k[0], k[1], &diag) == 0, "%s", diag.text);
}

static void engine_start(struct engine *e, const struct setup_of *u) {
    struct config daemon;
    struct pipeline_config config;
    struct diag diag = DIAG_INIT;
    *e = (struct engine){.fd = -1};
    ck_assert_int_eq(config_init(&daemon), 0);
    daemon.daemon.workers = u->workers;
    if (u->engine)
        ck_assert_int_eq(daemon_config_set(&daemon.daemon, "engine", u->engine, &diag), 0);
    configure(u, &config);
    ck_assert_msg(pool_new(&daemon.daemon, &e->pool, &diag) == 0, "%s", diag.text);
    ck_assert_msg(pipeline_new(&config, &daemon.daemon, &e->pipeline, &diag) == 0, "%s", diag.text);
    open_session(e, u, &config);
    pipeline_config_deinit(&config);
    config_deinit(&daemon);
}

static void close_session(struct engine *e) {
    consumer_detach(&e->consumer);
    session_close(e->session);
    for (int i = 0; pool_reap(e->pool) > 0 && i < 5000; i++)
        usleep(1000);
    ck_assert_uint_eq(pool_reap(e->pool), 0);
    close(e->fd);
}

static void engine_stop(struct engine *e) {
    close_session(e);
    uint64_t rescues = 0;
    for (uint32_t i = 0; i < pool_workers(e->pool); i++) {
        struct worker_statistics s;
        pool_statistics(e->pool, i, &s);
        rescues += s.rescues;
    }
    ck_assert_uint_eq(rescues + e->consumer.rescues, 0);
    pipeline_unref(e->pipeline);
    pool_free(e->pool);
}

/* As libloaderd's next: 1 leased, 0 nothing more, or the batch's error. */
static int next(struct engine *e, struct loaderd_batch *batch, const char **message) {
    for (int i = 0; i < 600; i++) {
        int r = consumer_try(&e->consumer, batch, message);
        if (r == -ENODATA)
            return 0;
        if (r != 0)
            return r;
        bool kick;
        if (!consumer_announce(&e->consumer, &kick)) {
            if (kick)
                pool_kick(e->pool);
            struct pollfd p = {.fd = e->fd, .events = POLLIN};
            char byte;
            if (poll(&p, 1, 100) > 0)
                ck_assert_int_eq((int)recv(e->fd, &byte, 1, MSG_DONTWAIT), 1);
        }
        consumer_awake(&e->consumer);
    }
    ck_abort_msg("no batch within a minute");
    return -ETIMEDOUT;
}

static void release(struct engine *e, const struct loaderd_batch *batch) {
    bool kick;
    ck_assert_int_eq(consumer_release(&e->consumer, batch->sequence, &kick), 0);
    if (kick)
        pool_kick(e->pool);
}

/* CRC-32 over fields and rows of all batches until the end; the number of batches in *ret_batches. */
static uLong digest(const struct setup_of *u, uint32_t *ret_batches) {
    struct engine e;
    struct loaderd_batch batch;
    const char *message = "";
    uLong crc = 0;
    engine_start(&e, u);
    *ret_batches = 0;
    int r;
    while ((r = next(&e, &batch, &message)) == 1) {
        for (uint32_t i = 0; i < batch.nfields; i++)
            crc = crc32(crc, batch.fields[i].data, (uInt)batch.fields[i].bytes);
        crc = crc32(crc, (const Bytef *)batch.row, (uInt)(batch.rows * sizeof *batch.row));
        release(&e, &batch);
        ++*ret_batches;
    }
    if (r < 0)
        crc = crc32(crc, (const Bytef *)message, (uInt)strlen(message));
    engine_stop(&e);
    return crc;
}

/* ---- tests -------------------------------------------------------------------------------------------------------- */

static const char *const record_keys[] = {"record",  "label:u8 image:u8[3,8,8]",
                                          "batch",   "8",
                                          "shuffle", "full",
                                          "last",    "keep",
                                          "seed",    "5",
                                          "layout",  "nchw",
                                          NULL};

START_TEST(every_record_once_an_epoch) {
    const uint32_t world = (uint32_t)_i;
    for (uint64_t epoch = 0; epoch < 2; epoch++) {
        uint32_t seen[RECORDS] = {0};
        for (uint32_t rank = 0; rank < world; rank++) {
            struct engine e;
            struct loaderd_batch batch;
            const char *message;
            struct setup_of u = {.dataset = "records.bin",
                                 .keys = record_keys,
                                 .workers = 2,
                                 .rank = rank,
                                 .world = world,
                                 .epoch = epoch,
                                 .epochs = 1};
            engine_start(&e, &u);
            while (next(&e, &batch, &message) == 1) {
                const int32_t *label = batch.fields[0].data;
                const uint8_t *image = batch.fields[1].data;
                ck_assert_str_eq(batch.fields[0].name, "label");
                ck_assert_uint_eq(batch.fields[0].dtype, LOADERD_I32);
                ck_assert_uint_eq(batch.epoch, epoch);
                for (uint32_t i = 0; i < batch.rows; i++) {
                    uint64_t id = batch.row[i].sample;
                    ck_assert_uint_lt(id, RECORDS);
                    ck_assert_int_eq(label[i], (int)(id % 10));
                    for (uint32_t k = 1; k < RECORD_BYTES; k++)
                        ck_assert_uint_eq(image[i * (RECORD_BYTES - 1) + k - 1], (uint8_t)(id * 31 + k));
                    if (i < batch.valid)
                        seen[id]++;
                    else
                        ck_assert_uint_ne(batch.row[i].status & LOADERD_ROW_PADDING, 0);
                }
                for (size_t k = batch.rows * (RECORD_BYTES - 1); k < batch.fields[1].bytes; k++)
                    ck_assert_uint_eq(image[k], 0);
                release(&e, &batch);
            }
            engine_stop(&e);
        }
        for (uint32_t i = 0; i < RECORDS; i++)
            ck_assert_uint_eq(seen[i], 1);
    }
}
END_TEST

/* ---- orders ---- */

#define RECORD_KEYS "record", "label:u8 image:u8[3,8,8]", "batch", "8", "seed", "5"

/* What an order delivers: how often each record, over all ranks and `epochs`; every row is the record that it says. */
static void count_records(const char *dataset, const char *const *keys, uint32_t world, uint64_t epochs,
                          uint32_t *count) {
    for (uint32_t rank = 0; rank < world; rank++) {
        struct setup_of u = {
            .dataset = dataset, .keys = keys, .workers = 2, .rank = rank, .world = world, .epochs = epochs};
        struct engine e;
        struct loaderd_batch batch;
        const char *message;
        engine_start(&e, &u);
        while (next(&e, &batch, &message) == 1) {
            const uint8_t *image = batch.fields[1].data;
            for (uint32_t i = 0; i < batch.rows; i++) {
                uint64_t id = batch.row[i].sample;
                ck_assert(image[i * (RECORD_BYTES - 1)] == (uint8_t)(id % RECORDS * 31 + 1));
                count[id] += i < batch.valid;
            }
            release(&e, &batch);
        }
        engine_stop(&e);
    }
}

/* The promise again, for the orders that have tables: one batch after the other, whoever makes it. Few steps an epoch,
 * so that a ring holds batches of several epochs. */
START_TEST(same_bytes_for_all_workers_in_every_order) {
    static const char *const modes[][10] = {
        {"shuffle", "chunked", "chunk", "7", "window", "3"},
        {"shuffle", "chunked", "window", "2"},
        {"shuffle", "chunked", "subset", "90-102,0-40", "window", "1"},
        {"shuffle", "none", "subset", "50-59,3,1,2"},
        {"shuffle", "full", "fraction", "0.2"},
        {"shuffle", "full", "epoch-samples", "20"},
        {"shuffle", "chunked", "epoch-samples", "300", "window", "2"},
    };
    const char *keys[24] = {RECORD_KEYS, "last", "pad"};
    memcpy(keys + 8, modes[_i], sizeof modes[_i]);
    uLong want = 0;
    for (uint32_t workers = 1; workers <= 5; workers += workers == 1 ? 1 : 3) {
        struct setup_of u = {.dataset = "shards", .keys = keys, .workers = workers, .epochs = 7};
        uint32_t batches;
        uLong found = digest(&u, &batches);
        ck_assert_uint_ge(batches, 7);
        ck_assert_msg(workers == 1 || found == want, "%s %s, %u workers", keys[9], keys[10], workers);
        want = found;
    }
}
END_TEST

START_TEST(orders_deliver_what_they_promise) {
    uint32_t count[3 * RECORDS] = {0};
    const char *by_shards[] = {RECORD_KEYS, "shuffle", "chunked", "window", "2", "last", "keep", NULL};
    count_records("shards", by_shards, 3, 2, count);
    for (uint32_t i = 0; i < RECORDS; i++)
        ck_assert_uint_eq(count[i], 2);
    memset(count, 0, sizeof count);
    const char *some[] = {RECORD_KEYS, "shuffle", "full", "subset", "30-69", "fraction", "0.5", "last", "keep", NULL};
    count_records("shards", some, 2, 3, count);
    uint32_t chosen = 0;
    for (uint32_t i = 0; i < RECORDS; i++) {
        ck_assert(count[i] == 0 || (count[i] == 3 && i >= 30 && i < 70));
        chosen += count[i] == 3;
    }
    ck_assert_uint_eq(chosen, 20);
    /* an epoch of 20 samples: 6 of them see 120, each of the 103 once before any is seen twice */
    memset(count, 0, sizeof count);
    const char *stretch[] = {RECORD_KEYS, "shuffle", "full", "epoch-samples", "20", "last", "keep", NULL};
    count_records("shards", stretch, 1, 6, count);
    uint32_t twice = 0;
    for (uint32_t i = 0; i < RECORDS; i++) {
        ck_assert(count[i] == 1 || count[i] == 2);
        twice += count[i] == 2;
    }
    ck_assert_uint_eq(twice, 120 - RECORDS);
}
END_TEST

/* Three datasets of which one is named twice: ids are numbered through; each period has 3 + 1 + 4 samples. */
START_TEST(mixtures_have_exact_shares) {
    char path[2000];
    const char *keys[] = {RECORD_KEYS, "weights", "3,1,4", "shuffle", "full", "dataset", path, NULL};
    snprintf(path, sizeof path, "%s/records.bin + %s/shards + %s/records.bin", root, root, root);
    struct setup_of u = {.dataset = "records.bin", .keys = keys, .workers = 2, .epochs = 3};
    struct engine e;
    struct loaderd_batch batch;
    const char *message;
    uint32_t batches = 0;
    char name[300], want[300];
    engine_start(&e, &u);
    while (next(&e, &batch, &message) == 1) {
        uint32_t share[3] = {0};
        const uint8_t *image = batch.fields[1].data;
        ck_assert_uint_eq(batch.valid, 8);
        for (uint32_t i = 0; i < 8; i++) {
            uint64_t id = batch.row[i].sample;
            ck_assert_uint_lt(id, 3 * RECORDS);
            share[id / RECORDS]++;
            ck_assert(image[i * (RECORD_BYTES - 1)] == (uint8_t)(id % RECORDS * 31 + 1));
        }
        ck_assert(share[0] == 3 && share[1] == 1 && share[2] == 4);
        release(&e, &batch);
        batches++;
    }
    ck_assert_uint_eq(batches, 3 * 39); /* 309 rounded up to 312 */
    ck_assert_int_gt(dataset_name(pipeline_dataset(e.pipeline), RECORDS + 51, name, sizeof name), 0);
    snprintf(want, sizeof want, "%s/shards/3.bin#0", root);
    ck_assert_str_eq(name, want);
    engine_stop(&e);
}
END_TEST

/* Opening in the middle of an epoch far away gives what running there gives; another subset or window is another state. */
START_TEST(orders_are_reached_at_once) {
    const char *keys[] = {RECORD_KEYS, "shuffle", "chunked", "window", "2", "subset", "0-99", NULL};
    const char *other[] = {RECORD_KEYS, "shuffle", "chunked", "window", "2", "subset", "0-98,100", NULL};
    struct engine e;
    struct loaderd_batch batch;
    const char *message;
    uint64_t sample[3];
    struct setup_of u = {.dataset = "shards", .keys = keys, .workers = 3, .epoch = 1000};
    struct session_info info, different;
    for (uint64_t step = 0; step < 3; step++) {
        u.step = step;
        engine_start(&e, &u);
        ck_assert_int_eq(next(&e, &batch, &message), 1);
        sample[step] = batch.row[0].sample;
        release(&e, &batch);
        session_info(e.session, 0, &info);
        engine_stop(&e);
    }
    u.step = 0;
    engine_start(&e, &u);
    for (uint64_t step = 0; step < 3; step++) {
        ck_assert_int_eq(next(&e, &batch, &message), 1);
        ck_assert_uint_eq(batch.row[0].sample, sample[step]);
        release(&e, &batch);
    }
    engine_stop(&e);
    u.keys = other;
    engine_start(&e, &u);
    session_info(e.session, 0, &different);
    ck_assert_int_ne(memcmp(info.fingerprint, different.fingerprint, sizeof info.fingerprint), 0);
    engine_stop(&e);
}
END_TEST

/* ---- explicit order ---- */

static uint64_t id_of(uint64_t i) { /* 100 ids, all different */
    return (i * 37 + 11) % RECORDS;
}

static void send_ids(struct engine *e, struct client_supply *supply) {
    if (client_supply_send(supply, &e->consumer))
        pool_kick(e->pool);
}

static uint64_t same_id(uint64_t i) {
    return i;
}

/* The first `total` ids of `id`, sent `piece` at a time while batches are taken; where `scribble`, what was consumed is
 * written over at once. */
static uLong explicit_digest(const struct setup_of *u, uint64_t total, uint64_t (*id)(uint64_t), size_t piece,
                             bool scribble) {
    struct engine e;
    struct client_supply supply;
    struct loaderd_batch batch;
    const char *message = "";
    uLong crc = 0;
    uint64_t sent = 0, batches = 0;
    engine_start(&e, u);
    ck_assert_int_eq(client_supply_new(&supply, &e.consumer), 0);
    while (batches < client_supply_batches(&supply)) {
        uint64_t ids[100];
        size_t count = MIN(piece, total - sent);
        for (size_t i = 0; i < count; i++)
            ids[i] = id(sent + i);
        sent += client_supply_add(&supply, e.consumer.next, ids, count);
        supply.ended = sent == total;
        send_ids(&e, &supply);
        if (client_supply_missing(&supply, e.consumer.next))
            continue;
        ck_assert_int_eq(next(&e, &batch, &message), 1);
        for (uint64_t i = 0; scribble && i < e.consumer.header->consumed; i++)
            e.consumer.ids[i] = UINT64_MAX - i;
        for (uint32_t i = 0; i < batch.nfields; i++)
            crc = crc32(crc, batch.fields[i].data, (uInt)batch.fields[i].bytes);
        crc = crc32(crc, (const Bytef *)batch.row, (uInt)(batch.rows * sizeof *batch.row));
        release(&e, &batch);
        batches++;
    }
    client_supply_free(&supply);
    engine_stop(&e);
    return crc;
}

/* What the ids give is what a subset of them gives, unshuffled: a function of ids, seed and step alone. */
START_TEST(explicit_ids_are_a_subset_in_order) {
    char list[600] = "";
    for (uint64_t i = 0; i < 100; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%llu ", (unsigned long long)id_of(i));
    const char *by_subset[] = {RECORD_KEYS, "augment", "flip", "subset", list, "last", "keep", NULL};
    const char *by_ids[] = {RECORD_KEYS, "augment", "flip", "shuffle", "explicit", NULL};
    struct setup_of u = {.dataset = "records.bin", .keys = by_subset, .workers = 2, .epochs = 1};
    uint32_t batches;
    uLong want = digest(&u, &batches);
    ck_assert_uint_eq(batches, 13);
    u.keys = by_ids;
    u.epochs = 0;
    for (u.workers = 1; u.workers <= 5; u.workers += u.workers == 1 ? 1 : 3)
        for (size_t piece = 1; piece <= 100; piece = piece * 3 + 4) {
            ck_assert_uint_eq(explicit_digest(&u, 100, id_of, piece, false), want);
            ck_assert_uint_eq(explicit_digest(&u, 100, id_of, piece, true), want);
        }
}
END_TEST

/* So it is with bad samples, whatever their policy. */
START_TEST(explicit_ids_of_bad_samples) {
    static const char *const policies[] = {"substitute", "blank"};
    for (size_t i = 0; i < ARRAY_SIZE(policies); i++) {
        const char *in_order[] = {"image", "16", "batch", "7", "on-error", policies[i], "last", "keep", NULL};
        const char *by_ids[] = {"image", "16", "batch", "7", "on-error", policies[i], "shuffle", "explicit", NULL};
        struct setup_of u = {.dataset = "bad", .keys = in_order, .workers = 2, .epochs = 1};
        uint32_t batches;
        uLong want = digest(&u, &batches);
        u.keys = by_ids;
        u.epochs = 0;
        ck_assert_uint_eq(explicit_digest(&u, PICTURES, same_id, 9, false), want);
    }
}
END_TEST

START_TEST(an_id_that_is_no_sample_fails_its_batch) {
    const char *keys[] = {RECORD_KEYS, "shuffle", "explicit", NULL};
    struct setup_of u = {.dataset = "records.bin", .keys = keys, .workers = 2};
    struct engine e;
    struct client_supply supply;
    struct loaderd_batch batch;
    const char *message = "";
    uint64_t ids[40];
    engine_start(&e, &u);
    ck_assert_int_eq(client_supply_new(&supply, &e.consumer), 0);
    for (uint64_t i = 0; i < 40; i++)
        ids[i] = i == 19 ? RECORDS : i;
    ck_assert_uint_eq(client_supply_add(&supply, 0, ids, 40), 40);
    send_ids(&e, &supply);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(next(&e, &batch, &message), 1);
        release(&e, &batch);
    }
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(next(&e, &batch, &message), -EINVAL);
        ck_assert_str_eq(message, "id 103 at row 3 of this batch is no sample: the dataset has 103, 0 to 102");
    }
    client_supply_free(&supply);
    engine_stop(&e);
}
END_TEST

/* Counts that cannot be stall the trainer that wrote them and nobody else. */
START_TEST(lies_about_ids) {
    const char *keys[] = {RECORD_KEYS, "shuffle", "explicit", NULL};
    static const uint64_t lies[] = {UINT64_MAX, 1000000, UINT64_C(1) << 63, 7, 0, 300, 64};
    struct setup_of u = {.dataset = "records.bin", .keys = record_keys, .workers = 2};
    struct setup_of v = {.dataset = "records.bin", .keys = keys, .workers = 2};
    struct pipeline_config config;
    struct engine honest, liar;
    struct loaderd_batch batch;
    const char *message;
    engine_start(&honest, &u);
    configure(&v, &config);
    for (size_t i = 0; i < ARRAY_SIZE(lies); i++) {
        liar = honest;
        open_session(&liar, &v, &config);
        for (int k = 0; k < 40; k++) {
            atomic_store(&liar.consumer.control->ids_supplied, lies[(i + (size_t)k) % ARRAY_SIZE(lies)]);
            atomic_store(&liar.consumer.control->ids_end, lies[(i + 3 * (size_t)k) % ARRAY_SIZE(lies)]);
            pool_kick(honest.pool);
            ck_assert_int_eq(next(&honest, &batch, &message), 1);
            release(&honest, &batch);
        }
        close_session(&liar);
    }
    pipeline_config_deinit(&config);
    engine_stop(&honest);
}
END_TEST

static const char *const engines[] = {"uring", "mmap", "pread"};

/* The promise: workers and engine change no byte, on clean, damaged and mixed-kind data, under every policy. */
START_TEST(same_bytes_for_all_workers_and_engines) {
    static const char *const policies[] = {"substitute", "blank", "fail"};
    const char *keys[] = {"image",       "24x32",
                          "augment",     "random-resized-crop,flip",
                          "batch",       "7",
                          "shuffle",     "full",
                          "seed",        "11",
                          "on-error",    policies[_i % 3],
                          "last",        "pad",
                          "label-dtype", "i64",
                          "dtype",       _i < 3 ? "u8" : "f32",
                          "normalize",   _i < 3 ? "none" : "imagenet",
                          NULL};
    for (int bad = 0; bad < 2; bad++) {
        struct setup_of u = {
            .dataset = bad ? "bad" : "clean", .keys = keys, .workers = 1, .engine = "pread", .epochs = 2};
        uint32_t batches, want_batches;
        uLong want = digest(&u, &want_batches);
        if (!bad)
            ck_assert_uint_eq(want_batches, 2 * ((PICTURES + 6) / 7));
        for (size_t engine = 0; engine < ARRAY_SIZE(engines); engine++)
            for (uint32_t workers = 1; workers <= 5; workers += workers == 1 ? 1 : 3) {
                u.engine = engines[engine];
                u.workers = workers;
                ck_assert_msg(digest(&u, &batches) == want && batches == want_batches, "%s, %u workers, %s", u.engine,
                              workers, u.dataset);
            }
    }
}
END_TEST

/* Counts what a policy did over one epoch of the bad set. */
struct outcome {
    uint32_t rows, ok, substituted, blank;
    int error;
    uint64_t error_batch;
    char message[LOADERD_SLOT_MESSAGE];
};

static void run_policy(const char *policy, const char *shuffle, struct outcome *ret) {
    const char *keys[] = {"image", "16", "batch", "10", "on-error", policy, "shuffle", shuffle, NULL};
    struct setup_of u = {.dataset = "bad", .keys = keys, .workers = 2, .epochs = 1};
    struct engine e;
    struct loaderd_batch batch;
    const char *message = "";
    int r;
    *ret = (struct outcome){0};
    engine_start(&e, &u);
    while ((r = next(&e, &batch, &message)) == 1) {
        const int32_t *label = batch.fields[1].data;
        const uint8_t *image = batch.fields[0].data;
        for (uint32_t i = 0; i < batch.rows; i++) {
            ret->rows++;
            ret->ok += batch.row[i].status == 0;
            ret->substituted += batch.row[i].status == LOADERD_ROW_SUBSTITUTED;
            ret->blank += batch.row[i].status == LOADERD_ROW_BLANK;
            uint32_t sum = 0;
            for (uint32_t k = 0; k < 16 * 16 * 3; k++)
                sum += image[i * 16 * 16 * 3 + k];
            if (batch.row[i].status == LOADERD_ROW_BLANK)
                ck_assert_uint_eq(sum + (uint32_t)label[i], 0);
            else
                ck_assert_int_eq(label[i], (int)(batch.row[i].sample / (PICTURES / 3))); /* classes in byte order */
        }
        release(&e, &batch);
    }
    if (r < 0) {
        ret->error = r;
        ret->error_batch = e.consumer.next;
        snprintf(ret->message, sizeof ret->message, "%s", message);
        ck_assert_int_eq(next(&e, &batch, &message), r); /* and again */
    }
    struct session_statistics statistics;
    session_statistics(e.session, &statistics);
    if (r == 0)
        ck_assert_uint_eq(statistics.bad, 5);
    engine_stop(&e);
}

START_TEST(policies_for_bad_samples) {
    struct outcome o;
    run_policy("substitute", "full", &o);
    ck_assert_int_eq(o.error, 0);
    ck_assert_uint_eq(o.rows, PICTURES);
    ck_assert_uint_eq(o.substituted, 5);
    ck_assert_uint_eq(o.ok, PICTURES - 5);
    run_policy("blank", "none", &o);
    ck_assert_uint_eq(o.blank, 5);
    ck_assert_uint_eq(o.ok, PICTURES - 5);
    run_policy("auto", "full", &o); /* shuffled: substitute, and 5 are within the limit */
    ck_assert_uint_eq(o.substituted, 5);
}
END_TEST

/* Unshuffled, files 000, 003, ... come first: number 30 (cut in half) is sample 10, in batch 1. */
START_TEST(fail_fires_at_its_step) {
    struct outcome o;
    run_policy("fail", "none", &o);
    ck_assert_int_eq(o.error, -EBADMSG);
    ck_assert_uint_eq(o.error_batch, 1);
    ck_assert_uint_eq(o.ok, 10);
    ck_assert_ptr_nonnull(strstr(o.message, "class0/030.jpg"));
    ck_assert_ptr_nonnull(strstr(o.message, "position 10"));
}
END_TEST

/* Channels first in the record, last in the batch, mirrored or not: every value is where it should be. */
START_TEST(stored_pictures_are_transformed) {
    const char *keys[] = {"record", "label:u8 image:u8[3,8,8]", "batch", "8", "last", "keep", "augment", "flip", NULL};
    struct setup_of u = {.dataset = "records.bin", .keys = keys, .workers = 2, .epochs = 1};
    struct engine e;
    struct loaderd_batch batch;
    const char *message;
    uint32_t mirrored = 0;
    engine_start(&e, &u);
    while (next(&e, &batch, &message) == 1) {
        const uint8_t *image = batch.fields[1].data;
        for (uint32_t i = 0; i < batch.rows; i++)
            for (uint32_t at = 0; at < 192; at++) {
                uint32_t y = at / 24, x = at / 3 % 8, c = at % 3;
                uint32_t from = 1 + c * 64 + y * 8 + (batch.row[i].flip & 1 ? 7 - x : x);
                mirrored += batch.row[i].flip & 1;
                ck_assert_uint_eq(image[i * 192 + at], (uint8_t)(batch.row[i].sample * 31 + from));
            }
        release(&e, &batch);
    }
    ck_assert_uint_gt(mirrored / 192, RECORDS / 4);
    ck_assert_uint_lt(mirrored / 192, RECORDS * 3 / 4);
    engine_stop(&e);
}
END_TEST

START_TEST(opens_at_any_epoch_and_step) {
    struct engine e;
    struct loaderd_batch batch;
    const char *message;
    struct setup_of u = {
        .dataset = "records.bin", .keys = record_keys, .workers = 1, .epoch = 1000, .step = 5, .epochs = 1};
    engine_start(&e, &u);
    ck_assert_int_eq(next(&e, &batch, &message), 1);
    ck_assert_uint_eq(batch.epoch, 1000);
    ck_assert_uint_eq(batch.step, 5);
    uint64_t first = batch.row[0].sample;
    release(&e, &batch);
    engine_stop(&e);
    u.step = 0;
    engine_start(&e, &u);
    for (int i = 0; i <= 5; i++) {
        ck_assert_int_eq(next(&e, &batch, &message), 1);
        if (i == 5)
            ck_assert_uint_eq(batch.row[0].sample, first);
        release(&e, &batch);
    }
    engine_stop(&e);
}
END_TEST

START_TEST(a_strange_state_is_refused) {
    struct engine e;
    struct setup_of u = {.dataset = "records.bin", .keys = record_keys, .workers = 1};
    struct pipeline_config config;
    struct session_info info;
    struct session *session;
    struct diag diag = DIAG_INIT;
    engine_start(&e, &u);
    session_info(e.session, 0, &info);
    configure(&u, &config);
    struct session_request request = {
        .config = config, .world = 1, .held = 1, .has_state = true, .state_seed = 5, .state_global_batch = 8};
    memcpy(request.state_fingerprint, info.fingerprint, 16);
    request.state_fingerprint[3] ^= 1;
    ck_assert_int_eq(session_new(e.pool, e.pipeline, &request, &session, &diag), -EINVAL);
    ck_assert_ptr_nonnull(strstr(diag.text, "another dataset or pipeline"));
    request.state_fingerprint[3] ^= 1;
    request.state_global_batch = 16;
    ck_assert_int_eq(session_new(e.pool, e.pipeline, &request, &session, &diag), -EINVAL);
    ck_assert_ptr_nonnull(strstr(diag.text, "global batch of 16"));
    pipeline_config_deinit(&config);
    engine_stop(&e);
}
END_TEST

/* A trainer that stops popping stalls only its own ring; sessions may leave with batches unread. */
START_TEST(sessions_come_and_go) {
    struct engine e, stopped, other;
    struct loaderd_batch batch;
    const char *message;
    struct setup_of u = {.dataset = "records.bin", .keys = record_keys, .workers = 2};
    struct pipeline_config config;
    engine_start(&e, &u);
    configure(&u, &config);
    stopped = e;
    open_session(&stopped, &u, &config); /* never pops */
    for (int i = 0; i < 500; i++) {
        ck_assert_int_eq(next(&e, &batch, &message), 1);
        release(&e, &batch);
        if (i % 50 == 0) {
            other = e;
            open_session(&other, &u, &config);
            ck_assert_int_eq(next(&other, &batch, &message), 1);
            close_session(&other);
        }
    }
    close_session(&stopped);
    pipeline_config_deinit(&config);
    engine_stop(&e);
}
END_TEST

START_TEST(refuses_what_memory_does_not_allow) {
    const char *keys[] = {"image", "4000", "batch", "64", NULL};
    struct setup_of u = {.dataset = "clean", .keys = keys, .workers = 1};
    struct engine e;
    struct setup_of small = {.dataset = "records.bin", .keys = record_keys, .workers = 1};
    struct pipeline_config config;
    struct pipeline *pipeline;
    struct config daemon;
    struct session *session;
    struct diag diag = DIAG_INIT;
    engine_start(&e, &small);
    config_init(&daemon);
    configure(&u, &config);
    ck_assert_int_eq(pipeline_new(&config, &daemon.daemon, &pipeline, &diag), 0);
    struct session_request request = {.config = config, .world = 1, .held = 1};
    ck_assert_int_eq(session_new(e.pool, pipeline, &request, &session, &diag), -ENOMEM);
    ck_assert_ptr_nonnull(strstr(diag.text, "lower slots or batch"));
    pipeline_unref(pipeline);
    pipeline_config_deinit(&config);
    config_deinit(&daemon);
    engine_stop(&e);
}
END_TEST

/* ---- kinds of pictures, orientation, masks ------------------------------------------------------------------------ */

static bool is_built(const struct reference *r) {
#ifndef HAVE_LIBPNG
    if (strncmp(r->name, "png", 3) == 0)
        return false;
#endif
#ifndef HAVE_LIBWEBP
    if (strncmp(r->name, "webp", 4) == 0)
        return false;
#endif
    return strcmp(r->name, "") != 0;
}

/* Files of the reference table with that size, under names of which the ending is wrong more often than not (DEC-04);
 * their numbers in `ret`. */
static uint32_t make_mix(const char *name, uint32_t width, uint32_t first, size_t *ret) {
    static const char *const endings[] = {"JPEG", "png", "webp"};
    char path[600];
    uint32_t count = 0;
    mkdir(path_of(name), 0755);
    for (size_t i = 0; i < ARRAY_SIZE(references); i++) {
        if ((width && references[i].width != width) || !is_built(&references[i]))
            continue;
        snprintf(path, sizeof path, "%s/%s/%03u.%s", root, name, first + count, endings[(i + 1) % 3]);
        write_file(path, references[i].bytes, references[i].length);
        if (ret)
            ret[count] = i;
        count++;
    }
    return count;
}

START_TEST(content_decides_and_pixels_are_pillows) {
    static const struct {
        const char *name, *image;
        uint32_t width;
    } sizes[] = {{"mix13", "11x13", 13}, {"mix45", "37x45", 45}};
    for (size_t k = 0; k < ARRAY_SIZE(sizes); k++) {
        size_t which[ARRAY_SIZE(references)];
        uint32_t count = make_mix(sizes[k].name, sizes[k].width, 0, which), seen = 0;
        const char *keys[] = {"image", sizes[k].image, "augment", "stretch", "batch", "4", "last", "keep", NULL};
        struct setup_of u = {.dataset = sizes[k].name, .keys = keys, .workers = 3, .epochs = 1};
        struct engine e;
        struct loaderd_batch batch;
        const char *message = "";
        int r = 0;
        if (count == 0)
            continue;
        engine_start(&e, &u);
        while ((r = next(&e, &batch, &message)) == 1) {
            size_t bytes = (size_t)references[which[0]].width * references[which[0]].height * 3;
            for (uint32_t i = 0; i < batch.valid; i++, seen++) {
                const struct reference *want = &references[which[batch.row[i].sample]];
                uLong crc = crc32(0, (const Bytef *)batch.fields[0].data + i * bytes, (uInt)bytes);
                ck_assert_msg(crc == want->rgb, "%s", want->name);
            }
            release(&e, &batch);
        }
        ck_assert_msg(r == 0, "%s", message);
        ck_assert_uint_eq(seen, count);
        engine_stop(&e);
    }
}
END_TEST

START_TEST(mixed_kinds_give_the_same_bytes) {
    const char *keys[] = {
        "image",    "9x8",  "augment", "random-resized-crop,flip", "batch", "2", "shuffle", "full", "epochs", "2",
        "on-error", "fail", NULL};
    make_mix("mix", 0, 0, NULL);
    struct setup_of u = {.dataset = "mix", .keys = keys, .workers = 1, .engine = "pread", .epochs = 2};
    uint32_t batches, want_batches;
    uLong want = digest(&u, &want_batches);
    for (size_t engine = 0; engine < ARRAY_SIZE(engines); engine++) {
        u.engine = engines[engine];
        u.workers = 3;
        ck_assert_msg(digest(&u, &batches) == want && batches == want_batches, "%s", u.engine);
    }
}
END_TEST

/* DEC-13 */
START_TEST(orientation_is_ignored_or_applied) {
    static const char *const sizes[] = {"19x29", "29x19"};
    char path[600];
    uint32_t served = 0;
    mkdir(path_of("turned"), 0755);
    for (size_t i = 0; i < ARRAY_SIZE(turned); i++) {
        snprintf(path, sizeof path, "%s/turned/%zu.jpg", root, i);
        write_file(path, turned[i].bytes, turned[i].length);
    }
    for (uint32_t k = 0; k < 4; k++) {
        bool apply = k >= 2;
        const char *keys[] = {"image", sizes[k % 2], "augment", "stretch", "orientation", apply ? "apply" : "ignore",
                              "batch", "10",         "last",    "keep",    NULL};
        struct setup_of u = {.dataset = "turned", .keys = keys, .workers = 2, .epochs = 1};
        struct engine e;
        struct loaderd_batch batch;
        const char *message = "";
        engine_start(&e, &u);
        ck_assert_msg(next(&e, &batch, &message) == 1, "%s", message);
        for (uint32_t i = 0; i < batch.valid; i++) {
            uint32_t width = apply ? turned[i].width : 29, height = apply ? turned[i].height : 19;
            ck_assert_uint_eq(batch.row[i].source_width, width);
            ck_assert_uint_eq(batch.row[i].source_height, height);
            if ((width == 29) != (k % 2 == 0))
                continue;
            uLong crc = crc32(0, (const Bytef *)batch.fields[0].data + i * 19 * 29 * 3, 19 * 29 * 3);
            if (apply)
                ck_assert_msg(crc == turned[i].rgb, "orientation %zu", (size_t)i);
            served++;
        }
        release(&e, &batch);
        engine_stop(&e);
    }
    ck_assert_uint_eq(served, 20);
}
END_TEST

#ifdef HAVE_LIBPNG
static const struct reference *reference_named(const char *name) {
    for (size_t i = 0; i < ARRAY_SIZE(references); i++)
        if (strcmp(references[i].name, name) == 0)
            return &references[i];
    ck_abort_msg("no reference %s", name);
}

static void write_reference(const char *folder, const char *file, const char *name) {
    const struct reference *r = reference_named(name);
    char path[600];
    mkdir(path_of(folder), 0755);
    snprintf(path, sizeof path, "%s/%s/%s", root, folder, file);
    write_file(path, r->bytes, r->length);
}

START_TEST(masks_keep_their_values) {
    static const char *const masks[] = {"png palette 1 bits", "png palette 2 bits interlaced",
                                        "png palette 4 bits", "png palette 8 bits",
                                        "png gray 1 bits",    "png gray 2 bits",
                                        "png gray 8 bits",    "png gray+alpha 8 bits"};
    char name[32], labels[64];
    for (uint32_t i = 0; i < ARRAY_SIZE(masks); i++) {
        snprintf(name, sizeof name, "%u.jpg", i);
        write_reference("photos", name, "png RGB 8 bits");
        snprintf(name, sizeof name, "%u.png", i);
        write_reference("labels", name, masks[i]);
    }
    snprintf(labels, sizeof labels, "%s/labels", root);
    const char *keys[] = {"image",     "11x13",    "augment", "stretch", "batch",  "8",    "masks", labels,
                          "normalize", "imagenet", "dtype",   "f32",     "layout", "nchw", NULL};
    struct setup_of u = {.dataset = "photos", .keys = keys, .workers = 2, .epochs = 1};
    struct engine e;
    struct loaderd_batch batch;
    const char *message = "";
    engine_start(&e, &u);
    ck_assert_msg(next(&e, &batch, &message) == 1, "%s", message);
    ck_assert_uint_eq(batch.nfields, 2);
    const struct loaderd_field *mask = &batch.fields[1];
    ck_assert_str_eq(mask->name, "mask");
    ck_assert_uint_eq(mask->dtype, LOADERD_U8);
    ck_assert_uint_eq(mask->ndim, 3);
    ck_assert(mask->dims[1] == 11 && mask->dims[2] == 13);
    for (uint32_t i = 0; i < batch.valid; i++)
        ck_assert_msg(crc32(0, (const Bytef *)mask->data + i * 143, 143) == reference_named(masks[i])->values, "%s",
                      masks[i]);
    release(&e, &batch);
    engine_stop(&e);
}
END_TEST

/* A list names masks in its second column. */
START_TEST(masks_of_a_list) {
    write_reference("photos", "a.jpg", "png RGB 8 bits");
    write_reference("labels", "x.png", "png palette 4 bits");
    write_reference("labels", "y.png", "png gray 8 bits");
    write_file(path_of("list"), "photos/a.jpg\tlabels/y.png\t7\nphotos/a.jpg\tlabels/x.png\t-1\n", 57);
    const char *keys[] = {"image", "11x13", "augment", "stretch", "batch", "2", NULL};
    struct setup_of u = {.dataset = "list", .keys = keys, .workers = 1, .epochs = 1};
    struct engine e;
    struct loaderd_batch batch;
    const char *message = "";
    engine_start(&e, &u);
    ck_assert_msg(next(&e, &batch, &message) == 1, "%s", message);
    ck_assert_uint_eq(batch.nfields, 3);
    ck_assert_str_eq(batch.fields[2].name, "mask");
    const Bytef *mask = batch.fields[2].data;
    ck_assert(crc32(0, mask, 143) == reference_named("png gray 8 bits")->values);
    ck_assert(crc32(0, mask + 143, 143) == reference_named("png palette 4 bits")->values);
    const int32_t *label = batch.fields[1].data;
    ck_assert(label[0] == 7 && label[1] == -1);
    release(&e, &batch);
    engine_stop(&e);
}
END_TEST

/* Picture and mask are one file: so whatever is drawn, both fields hold the same pixels. */
START_TEST(masks_follow_their_picture) {
    static const char *const crops[] = {"random-resized-crop,flip,flip-vertical", "random-crop,flip", "center-crop"};
    char labels[64];
    for (uint32_t i = 0; i < 20; i++) {
        char file[16];
        snprintf(file, sizeof file, "%02u.png", i);
        write_reference("same", file, i % 2 ? "png gray 8 bits" : "png gray 8 bits interlaced");
    }
    snprintf(labels, sizeof labels, "%s/same", root);
    for (size_t k = 0; k < ARRAY_SIZE(crops); k++) {
        const char *keys[] = {"image",
                              "8x7",
                              "augment",
                              crops[k],
                              "batch",
                              "5",
                              "masks",
                              labels,
                              "color",
                              "gray",
                              "filter",
                              "nearest",
                              "shuffle",
                              "full",
                              "seed",
                              "3",
                              k == 1 ? "padding" : "resize",
                              k == 1 ? "2" : "0",
                              NULL};
        struct setup_of u = {.dataset = "same", .keys = keys, .workers = 3, .epochs = 2};
        struct engine e;
        struct loaderd_batch batch;
        const char *message = "";
        uint32_t rows = 0;
        int r;
        engine_start(&e, &u);
        while ((r = next(&e, &batch, &message)) == 1) {
            ck_assert_uint_eq(batch.nfields, 2);
            ck_assert_int_eq(memcmp(batch.fields[0].data, batch.fields[1].data, batch.valid * 56), 0);
            for (uint32_t i = 0; i < batch.valid; i++, rows++)
                ck_assert(batch.row[i].source_width == 13 && batch.row[i].source_height == 11);
            release(&e, &batch);
        }
        ck_assert_msg(r == 0, "%s", message);
        ck_assert_uint_eq(rows, 40);
        engine_stop(&e);
    }
}
END_TEST

/* What a pipeline says that cannot be opened. */
static void refuse_masks(const char *dataset, const char *masks, const char *words) {
    struct config daemon;
    struct pipeline_config config;
    struct pipeline *pipeline;
    struct diag diag = DIAG_INIT;
    char path[64];
    snprintf(path, sizeof path, "%s/%s", root, masks);
    const char *keys[] = {"masks", path, NULL};
    ck_assert_int_eq(config_init(&daemon), 0);
    configure(&(struct setup_of){.dataset = dataset, .keys = keys}, &config);
    ck_assert_int_lt(pipeline_new(&config, &daemon.daemon, &pipeline, &diag), 0);
    ck_assert_msg(strstr(diag.text, words), "%s", diag.text);
    pipeline_config_deinit(&config);
    config_deinit(&daemon);
}

START_TEST(masks_that_do_not_fit) {
    char labels[64];
    write_reference("odd", "a.jpg", "png RGB 8 bits");
    write_reference("odd", "b.jpg", "png RGB 8 bits");
    write_reference("odd", "c.jpg", "png RGB 8 bits");
    write_reference("odd-labels", "a.png", "png palette 8 bits");
    refuse_masks("odd", "odd-labels", "2 of 3 pictures have none, e.g. b.jpg: wanted ");
    write_reference("odd-labels", "b.png", "png RGB with tRNS"); /* 9 x 7 */
    write_reference("odd-labels", "c.png", "png RGB 16 bits");   /* no labels */
    snprintf(labels, sizeof labels, "%s/odd-labels", root);
    for (uint32_t k = 0; k < 2; k++) {
        const char *keys[] = {"image", "8x8",  "augment",  "stretch", "batch", "1",
                              "masks", labels, "on-error", "fail",    NULL};
        struct setup_of u = {.dataset = "odd", .keys = keys, .workers = 1, .epochs = 1, .step = k + 1};
        struct engine e;
        struct loaderd_batch batch;
        const char *message = "";
        engine_start(&e, &u);
        ck_assert_int_eq(next(&e, &batch, &message), -EBADMSG);
        ck_assert_msg(strstr(message, k ? "mask: label picture is a PNG in colour"
                                        : "mask: 9 x 7 pixels, but its picture has 13 x 11"),
                      "%s", message);
        engine_stop(&e);
    }
    write_reference("odd-labels", "b.PNG", "png gray 8 bits");
    refuse_masks("odd", "odd-labels", "b.PNG and b.png are both masks of one picture");
    refuse_masks("odd", "none", "masks: ");
    refuse_masks("records.bin", "odd-labels", "");
}
END_TEST
#endif

/* A ring on another node costs WORKER_FAR_NS, no more: whoever is further behind than that comes first all the same. */
START_TEST(near_sessions_first) {
    ck_assert_uint_lt(session_cost(100, 1, 1), session_cost(100, 0, 1));
    ck_assert_uint_lt(session_cost(100 + WORKER_FAR_NS - 1, 1, 1), session_cost(100, 0, 1));
    ck_assert_uint_gt(session_cost(100 + WORKER_FAR_NS + 1, 1, 1), session_cost(100, 0, 1));
    ck_assert_uint_eq(session_cost(100, -1, 1), 100); /* unknown is not far */
    ck_assert_uint_eq(session_cost(100, 1, -1), 100);
    ck_assert_uint_eq(session_cost(100, 3, 3), 100);
}
END_TEST

/* All rings count, against the room near this one; the key has the last word. */
START_TEST(stores_by_what_all_rings_take) {
    static struct pool pool;
    static struct session s = {.pool = &pool, .cache_room = 1000};
    pool_add_ring_bytes(&pool, 600);
    ck_assert_int_eq(session_stores(&s), COPY_ORDINARY);
    pool_add_ring_bytes(&pool, 401);
    ck_assert_int_eq(session_stores(&s), COPY_STREAMING);
    s.stores = CONFIG_STORES_ORDINARY;
    ck_assert_int_eq(session_stores(&s), COPY_ORDINARY);
    s.stores = CONFIG_STORES_AUTO;
    pool_add_ring_bytes(&pool, (uint64_t)-401);
    ck_assert_int_eq(session_stores(&s), COPY_ORDINARY);
    s.stores = CONFIG_STORES_STREAMING;
    ck_assert_int_eq(session_stores(&s), COPY_STREAMING);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("worker");
    TCase *tc = tcase_create("worker");
    tcase_set_timeout(tc, 240);
    tcase_add_unchecked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, every_record_once_an_epoch, 1, 4);
    tcase_add_loop_test(tc, same_bytes_for_all_workers_and_engines, 0, 6);
    tcase_add_loop_test(tc, same_bytes_for_all_workers_in_every_order, 0, 7);
    tcase_add_test(tc, orders_deliver_what_they_promise);
    tcase_add_test(tc, mixtures_have_exact_shares);
    tcase_add_test(tc, orders_are_reached_at_once);
    tcase_add_test(tc, explicit_ids_are_a_subset_in_order);
    tcase_add_test(tc, explicit_ids_of_bad_samples);
    tcase_add_test(tc, an_id_that_is_no_sample_fails_its_batch);
    tcase_add_test(tc, lies_about_ids);
    tcase_add_test(tc, policies_for_bad_samples);
    tcase_add_test(tc, fail_fires_at_its_step);
    tcase_add_test(tc, stored_pictures_are_transformed);
    tcase_add_test(tc, opens_at_any_epoch_and_step);
    tcase_add_test(tc, a_strange_state_is_refused);
    tcase_add_test(tc, sessions_come_and_go);
    tcase_add_test(tc, refuses_what_memory_does_not_allow);
    tcase_add_test(tc, content_decides_and_pixels_are_pillows);
    tcase_add_test(tc, mixed_kinds_give_the_same_bytes);
    tcase_add_test(tc, orientation_is_ignored_or_applied);
#ifdef HAVE_LIBPNG
    tcase_add_test(tc, masks_keep_their_values);
    tcase_add_test(tc, masks_of_a_list);
    tcase_add_test(tc, masks_follow_their_picture);
    tcase_add_test(tc, masks_that_do_not_fit);
    tcase_add_test(tc, near_sessions_first);
    tcase_add_test(tc, stores_by_what_all_rings_take);
#endif
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
