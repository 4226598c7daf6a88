/* SPDX-License-Identifier: MIT */
/*
 * Chaos, bounded and reproducible by seed: jobs of several trainers over a service and over private daemons, on raw
 * records and on JPEG, while trainers are killed, stopped and started again from their last state, daemons are killed,
 * stopped and replaced, data files are truncated, replaced and restored, and jobs go on with another world size.
 *
 *     tests/chaos --rounds N --seed S            100 rounds of seed 1 in make check
 *
 * Every batch is compared, when it is received, with what `loaderctl digest` says of its (epoch, step, rank, world): the
 * CRC-32 of each field, the sample ids and their marks. A trainer keeps a log in memory that survives it; what its saved
 * state says is done counts as done. At the end the logs must be the wanted sequence: nothing lost, nothing doubled.
 *
 * The plan of a round (who, what, after how many batches) is a function of seed and round alone; the interleaving is
 * the machine's. A failure names its round: run it alone with --only.
 */
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <jpeglib.h>
#include <zlib.h>

#include "../../client/connection.h"
#include "harness.h"

#define GLOBAL_BATCH 12
#define MOST_WORLD 4
#define MOST_JOBS 3
#define MOST_LEGS 3
#define MOST_EVENTS 6
#define MOST_STEPS 128 /* of a job */
#define EPOCHS 3       /* predicted ones */
#define MOST_FIELDS 3
#define ROUND_MS 60000
#define LONGEST_HELD 6 /* of 8 slots */
#define RAW_SAMPLES 500
#define RAW_BYTES 60

static struct {
    unsigned rounds;
    uint64_t seed;
    long only; /* round to run alone, -1: all */
    bool verbose;
} arguments = {100, 1, -1, false};

/* ---- what is served ---------------------------------------------------------------------------------------------- */

struct entry {
    uint64_t epoch, step;
    uint32_t crc[MOST_FIELDS], ids;
};

/* One rank's epoch, as `loaderctl digest` printed it. */
struct prediction {
    struct entry *entry;
    uint64_t steps;
    char **ids;
};

struct recipe {
    const char *name, *path;
    const char *keys[12]; /* of a private daemon: all of the pipeline's */
    uint64_t seed, steps;
    bool predictable_damage; /* its data may be damaged for a while: a failed batch fails its trainer */
    uint8_t fingerprint[16];
    struct prediction prediction[EPOCHS][MOST_WORLD + 1][MOST_WORLD];
};

static struct recipe recipes[] = {
    {.name = "raw",
     .path = "./raw.bin",
     .keys = {"record=id:u32 data:u8[60]", "shuffle=full", "last=drop", "seed=7"},
     .seed = 7,
     .predictable_damage = true},
    {.name = "sequence",
     .path = "./sequence.bin",
     .keys = {"record=id:u32 data:u8[60]", "shuffle=none", "last=pad"},
     .seed = 0},
    {.name = "jpeg",
     .path = "./jpeg",
     .keys = {"index=none", "image=16", "augment=random-resized-crop,flip", "shuffle=full", "last=pad", "seed=3",
              "on-error=fail"},
     .seed = 3,
     .predictable_damage = true},
    {.name = "bad",
     .path = "./bad",
     .keys = {"index=none", "image=16", "augment=center-crop", "shuffle=chunked", "chunk=8", "window=2", "last=drop",
              "seed=5", "on-error=substitute"},
     .seed = 5},
};
#define RECIPES (sizeof recipes / sizeof recipes[0])

static void write_picture(const char *path, uint32_t number) {
    struct jpeg_compress_struct c;
    struct jpeg_error_mgr errors;
    JSAMPLE row[64 * 3], *rows[1] = {row};
    FILE *f = fopen(path, "wbe");
    ck_assert_ptr_nonnull(f);
    c.err = jpeg_std_error(&errors);
    jpeg_create_compress(&c);
    jpeg_stdio_dest(&c, f);
    c.image_width = 20 + number % 41;
    c.image_height = 20 + number % 31;
    c.input_components = 3;
    c.in_color_space = JCS_RGB;
    jpeg_set_defaults(&c);
    jpeg_start_compress(&c, TRUE);
    while (c.next_scanline < c.image_height) {
        for (uint32_t i = 0; i < c.image_width * 3; i++)
            row[i] = (JSAMPLE)(record_byte(number, i / 6 + c.next_scanline / 3 * 50) / 2 + i + c.next_scanline);
        jpeg_write_scanlines(&c, rows, 1);
    }
    jpeg_finish_compress(&c);
    jpeg_destroy_compress(&c);
    fclose(f);
}

static void write_garbage(const char *path) {
    FILE *f = fopen(path, "we");
    ck_assert_ptr_nonnull(f);
    fputs("this is no picture", f);
    fclose(f);
}

static void make_pictures(const char *folder, uint32_t count, bool bad) {
    char path[128];
    for (uint32_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%u", folder, i);
        if (i == 0)
            ck_assert_int_eq(mkdir(folder, 0700), 0);
        ck_assert_int_eq(mkdir(path, 0700), 0);
    }
    for (uint32_t i = 0; i < count; i++) {
        snprintf(path, sizeof path, "%s/%u/%03u.jpg", folder, i % 3, i);
        write_picture(path, i);
        if (bad && i % 20 == 7)
            write_garbage(path);
        if (bad && i % 30 == 11)
            ck_assert_int_eq(truncate(path, 500), 0);
    }
}

static void write_config(const char *engine) {
    FILE *f = fopen("chaos.conf", "we");
    ck_assert_ptr_nonnull(f);
    fprintf(f, "[daemon]\nworkers = 2\nengine = %s\n", engine);
    for (size_t i = 0; i < RECIPES; i++) {
        fprintf(f, "[pipeline %s]\ndataset = %s\nbatch = %d\n", recipes[i].name, recipes[i].path, GLOBAL_BATCH);
        for (const char **key = recipes[i].keys; *key; key++) {
            const char *equals = strchr(*key, '=');
            fprintf(f, "%.*s = %s\n", (int)(equals - *key), *key, equals + 1);
        }
    }
    fclose(f);
}

/* ---- what must come ---------------------------------------------------------------------------------------------- */

static void parse_heading(struct recipe *recipe, const char *line) {
    const char *of = strstr(line, " of "), *hex = strstr(line, "fingerprint ");
    ck_assert(of && hex);
    recipe->steps = strtoull(of + 4, NULL, 10);
    ck_assert_uint_gt(recipe->steps, 0);
    for (int i = 0; i < 16; i++) {
        unsigned byte;
        ck_assert_int_eq(sscanf(hex + 12 + 2 * i, "%2x", &byte), 1);
        recipe->fingerprint[i] = (uint8_t)byte;
    }
}

static uint32_t crc_of(const void *bytes, size_t length) {
    return (uint32_t)crc32_z(crc32_z(0, NULL, 0), bytes, length);
}

static void parse_step(struct prediction *p, uint64_t epoch, char *line) {
    struct entry *e = &p->entry[p->steps];
    char *save, *word = strtok_r(line, " \n", &save);
    e->epoch = epoch;
    e->step = strtoull(word, NULL, 10);
    ck_assert_uint_eq(e->step, p->steps);
    for (int field = 0; (word = strtok_r(NULL, " \n", &save));) {
        char *equals = strchr(word, '=');
        ck_assert_ptr_nonnull(equals);
        if (strncmp(word, "ids=", 4) == 0) {
            e->ids = crc_of(equals + 1, strlen(equals + 1));
            p->ids[p->steps] = strdup(equals + 1);
        } else if (field < MOST_FIELDS) {
            e->crc[field++] = (uint32_t)strtoul(equals + 1, NULL, 16);
        }
    }
    ck_assert_ptr_nonnull(p->ids[p->steps]);
    p->steps++;
}

static void run_digest(struct recipe *recipe, uint64_t epoch, uint32_t world, uint32_t rank) {
    struct prediction *p = &recipe->prediction[epoch][world][rank];
    const char *program = getenv("LOADERCTL");
    char command[512], line[8192];
    snprintf(
        command, sizeof command,
        "%s digest %s --config chaos.conf --workers 1 --batch %u --epoch %u --rank %u --world %u --ids 2>digest.log",
        program ? program : "./loaderctl", recipe->name, GLOBAL_BATCH / world, (unsigned)epoch, rank, world);
    FILE *f = popen(command, "re");
    ck_assert_ptr_nonnull(f);
    p->entry = calloc(MOST_STEPS, sizeof *p->entry);
    p->ids = calloc(MOST_STEPS, sizeof *p->ids);
    ck_assert(p->entry && p->ids);
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, "# ", 2) == 0 && strstr(line, "fingerprint"))
            parse_heading(recipe, line);
        else if (line[0] != '#') {
            ck_assert_uint_lt(p->steps, MOST_STEPS);
            parse_step(p, epoch, line);
        }
    }
    ck_assert_msg(pclose(f) == 0 && p->steps == recipe->steps, "%s: %lu steps of %lu", command, p->steps,
                  recipe->steps);
}

static const struct prediction *predict(struct recipe *recipe, uint64_t epoch, uint32_t world, uint32_t rank) {
    if (!recipe->prediction[epoch][world][rank].entry)
        run_digest(recipe, epoch, world, rank);
    return &recipe->prediction[epoch][world][rank];
}

/* Elastic: the ranks' ids, one behind the other, are those of a world of one. */
static void predict_world(struct recipe *recipe, uint32_t world) {
    for (uint64_t epoch = 0; epoch < EPOCHS; epoch++) {
        bool fresh = !recipe->prediction[epoch][world][world - 1].entry;
        for (uint32_t rank = 0; rank < world; rank++)
            predict(recipe, epoch, world, rank);
        for (uint64_t step = 0; fresh && step < recipe->steps; step++) {
            char all[8192] = "";
            size_t at = 0;
            for (uint32_t rank = 0; rank < world; rank++)
                at += (size_t)snprintf(all + at, sizeof all - at, "%s%s", rank ? "," : "",
                                       recipe->prediction[epoch][world][rank].ids[step]);
            ck_assert_str_eq(all, predict(recipe, epoch, 1, 0)->ids[step]);
        }
    }
}

/* ---- a trainer --------------------------------------------------------------------------------------------------- */

/* A rank of a job: shared with its process, outlives it. */
struct rank {
    struct checkpoint {
        struct loaderd_state state;
        uint64_t done; /* batches of the job that are behind it */
    } checkpoint[2];
    _Atomic uint32_t which; /* of the two is whole */
    struct entry log[MOST_STEPS];
    _Atomic uint64_t received, checked;
    _Atomic uint64_t rescues, reconnects, reopens;
    _Atomic int32_t daemon_pid;
    char message[900];
};

struct job {
    struct recipe *recipe;
    bool is_private;
    uint32_t number, era; /* of its private daemons */
    uint64_t first_epoch;
    uint32_t legs, leg, world[MOST_LEGS];
    uint64_t end[MOST_LEGS]; /* steps of the job at which a leg ends */
    struct rank *rank;       /* MOST_WORLD of them, shared */
    /* the parent's */
    pid_t pid[MOST_WORLD];
    bool finished[MOST_WORLD], may_fail[MOST_WORLD], stopped[MOST_WORLD];
    uint32_t starts;
};

struct trainer {
    struct job *job;
    uint32_t number; /* rank */
    uint64_t random;
    bool calm;
    struct rank *rank;
    struct loaderd *loader;
    struct loaderd_batch held[3];
    uint64_t held_number[3];
    uint32_t holds, hold;
    uint64_t next, prefix; /* batches of the job: received, released without a gap */
    bool released[MOST_STEPS];
};

static uint64_t random_next(uint64_t *state) {
    uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static uint32_t below(uint64_t *state, uint32_t n) {
    return (uint32_t)(random_next(state) % n);
}

#define EXIT_WRONG 2 /* a wrong batch or state: the test fails */
#define EXIT_ERROR 3 /* the loader said an error: fine while the data is damaged */

static void leave(struct trainer *t, int code, const char *format, ...) __attribute__((format(printf, 3, 4), noreturn));
static void leave(struct trainer *t, int code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(t->rank->message, sizeof t->rank->message, format, args);
    va_end(args);
    _exit(code);
}

static bool is_passing(int code) {
    return code == -ECONNREFUSED || code == -ECONNRESET || code == -ENOENT || code == -ESHUTDOWN || code == -EAGAIN ||
           code == -ETIMEDOUT;
}

static void open_trainer(struct trainer *t) {
    const struct job *job = t->job;
    const struct checkpoint *from = &t->rank->checkpoint[atomic_load(&t->rank->which)];
    const char *keys[16];
    char batch[32], name[64], error[512];
    int n = 0, r;
    uint32_t world = job->world[job->leg];
    struct loaderd_options o = LOADERD_OPTIONS_INIT;
    snprintf(batch, sizeof batch, "batch=%u", GLOBAL_BATCH / world);
    snprintf(name, sizeof name, "chaos-%d-%u-%u", (int)getppid(), job->number, job->era);
    for (; job->is_private && job->recipe->keys[n]; n++)
        keys[n] = job->recipe->keys[n];
    keys[n++] = batch;
    if (job->is_private)
        keys[n++] = "workers=1";
    keys[n] = NULL;
    o.keys = keys;
    o.rank = t->number;
    o.world = world;
    o.state = &from->state;
    o.held = t->hold;
    o.job = name;
    o.next_timeout_ms = 40000;
    o.reconnect_timeout_ms = 40000;
    t->next = t->prefix = from->done;
    t->holds = 0;
    memset(t->released, 0, sizeof t->released);
    uint64_t until = clock_ms() + 20000;
    while ((r = loaderd_open(&t->loader, job->is_private ? job->recipe->path : job->recipe->name, &o, error,
                             sizeof error)) < 0 &&
           is_passing(r) && clock_ms() < until)
        sleep_ms(3);
    if (r < 0)
        leave(t, EXIT_ERROR, "open: %d %s", r, error);
}

static void note_statistics(struct trainer *t) {
    struct loaderd_statistics s;
    struct loaderd_info info;
    loaderd_statistics(t->loader, &s);
    loaderd_info(t->loader, &info);
    atomic_store(&t->rank->rescues, s.rescues);
    atomic_store(&t->rank->reconnects, s.reconnects);
    atomic_store(&t->rank->daemon_pid, info.daemon_pid);
}

static uint32_t crc_of_ids(const struct loaderd_batch *b) {
    char text[512];
    size_t at = 0;
    for (uint32_t i = 0; i < b->rows; i++) {
        uint32_t s = b->row[i].status;
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%lu%s%s%s%s%s", i ? "," : "", b->row[i].sample,
                               s ? "*" : "", s & LOADERD_ROW_PADDING ? "p" : "", s & LOADERD_ROW_SUBSTITUTED ? "s" : "",
                               s & LOADERD_ROW_BLANK ? "b" : "", s & LOADERD_ROW_DAMAGED ? "d" : "");
    }
    return crc_of(text, at);
}

static void check_batch(struct trainer *t, const struct loaderd_batch *b) {
    const struct job *job = t->job;
    const struct recipe *recipe = job->recipe;
    uint64_t epoch = job->first_epoch + t->next / recipe->steps, step = t->next % recipe->steps;
    const struct entry *want = &recipe->prediction[epoch][job->world[job->leg]][t->number].entry[step];
    struct entry *e = &t->rank->log[t->next];
    *e = (struct entry){.epoch = b->epoch, .step = b->step, .ids = crc_of_ids(b)};
    for (uint32_t i = 0; i < b->nfields && i < MOST_FIELDS; i++)
        e->crc[i] = crc_of(b->fields[i].data, b->fields[i].bytes);
    if (memcmp(e, want, sizeof *e) != 0)
        leave(t, EXIT_WRONG,
              "batch %lu: epoch %lu step %lu crc %08x %08x ids %08x, wanted epoch %lu step %lu crc %08x %08x ids %08x",
              t->next, e->epoch, e->step, e->crc[0], e->crc[1], e->ids, want->epoch, want->step, want->crc[0],
              want->crc[1], want->ids);
    atomic_fetch_add(&t->rank->checked, 1);
}

/* Waits for the next batch: by next, or by try_next and poll. False at the end of an epoch. */
static bool receive(struct trainer *t, struct loaderd_batch *b) {
    bool by_poll = below(&t->random, 3) == 0;
    int r;
    do {
        r = by_poll ? loaderd_try_next(t->loader, b) : loaderd_next(t->loader, b);
        if (r == -EAGAIN) {
            struct pollfd p = {.fd = loaderd_fd(t->loader), .events = POLLIN};
            poll(&p, 1, 20000);
        }
    } while (r == -EAGAIN);
    note_statistics(t);
    if (r < 0)
        leave(t, EXIT_ERROR, "next, batch %lu: %d %s", t->next, r, loaderd_error(t->loader));
    return r == 1;
}

/* The state goes where it survives us; a kill between the two stores leaves the older one. */
static void save(struct trainer *t) {
    const struct job *job = t->job;
    uint32_t other = !atomic_load(&t->rank->which);
    struct checkpoint *c = &t->rank->checkpoint[other];
    int r = loaderd_state(t->loader, &c->state);
    uint64_t place = job->first_epoch * job->recipe->steps + t->prefix;
    if (r < 0 || c->state.epoch * job->recipe->steps + c->state.step != place)
        leave(t, EXIT_WRONG, "state says epoch %lu step %lu after %lu batches", c->state.epoch, c->state.step,
              t->prefix);
    c->done = t->prefix;
    atomic_store(&t->rank->which, other);
}

/* In any order, but a batch's slot must be free when the ring comes round to it. */
static void release_one(struct trainer *t) {
    uint32_t i = below(&t->random, t->holds);
    for (uint32_t k = 0; k < t->holds; k++)
        if (t->next - t->held_number[k] >= LONGEST_HELD)
            i = k;
    if (loaderd_release(t->loader, &t->held[i]) < 0)
        leave(t, EXIT_WRONG, "release: %s", loaderd_error(t->loader));
    t->released[t->held_number[i]] = true;
    t->held[i] = t->held[--t->holds];
    t->held_number[i] = t->held_number[t->holds];
    while (t->released[t->prefix])
        t->prefix++;
    save(t);
}

static bool must_release(const struct trainer *t) {
    for (uint32_t k = 0; k < t->holds; k++)
        if (t->next - t->held_number[k] >= LONGEST_HELD)
            return true;
    return false;
}

static int train(void *arg) {
    struct trainer *t = arg;
    uint64_t end = t->job->end[t->job->leg];
    if (!freopen("log", "ae", stderr)) /* also that of a private daemon which it starts */
        leave(t, EXIT_WRONG, "log: %s", strerror(errno));
    open_trainer(t);
    while (t->prefix < end) {
        bool full = t->holds == t->hold || t->next == end || must_release(t);
        if (full || (t->holds && below(&t->random, 2))) {
            release_one(t);
            continue;
        }
        if (!receive(t, &t->held[t->holds]))
            continue;
        check_batch(t, &t->held[t->holds]);
        t->held_number[t->holds++] = t->next++;
        atomic_fetch_add(&t->rank->received, 1);
        if (!t->calm && below(&t->random, 60) == 0) { /* as a restarted script would */
            loaderd_close(t->loader);
            atomic_fetch_add(&t->rank->reopens, 1);
            open_trainer(t);
        }
        usleep(below(&t->random, 600));
    }
    note_statistics(t);
    loaderd_close(t->loader);
    return 0;
}

/* ---- a round ----------------------------------------------------------------------------------------------------- */

enum event_kind {
    KILL_TRAINER,
    STOP_TRAINER,
    KILL_DAEMON,
    TERM_DAEMON,
    STOP_DAEMON,
    KILL_PRIVATE,
    DRAIN_DAEMON,
    DAMAGE,
    EVENTS
};

struct event {
    enum event_kind kind;
    uint64_t after; /* batches received by all */
    uint64_t random;
};

static struct {
    uint64_t happened[EVENTS];
    uint64_t checked, committed, lost, doubled, rescues, reconnects, reopens, elastic, errors, calm_rounds;
    uint64_t calm_rescues;
} total;

static const char *const engines[] = {"uring", "mmap", "pread"};
static pid_t service;
static uint64_t service_cont_ms, trainer_cont_ms;

static void start_service(uint64_t *random) {
    write_config(engines[below(random, 3)]);
    service = start_daemon("--config", "chaos.conf", NULL);
    service_cont_ms = 0;
}

static void replace_service(uint64_t *random, int signal_number) {
    kill(service, SIGCONT);
    end_process(service, signal_number);
    start_service(random);
}

/* The old one goes on with what it has begun while the new one has the socket. */
static void drain_service(uint64_t *random) {
    const struct loaderd_drain drain = {{LOADERD_DRAIN, sizeof drain}, 20000, 0};
    char packet[512];
    int fds[2];
    pid_t old = service;
    kill(service, SIGCONT);
    int fd = raw_hello(harness_socket());
    ck_assert_int_eq(connection_send(fd, &drain, sizeof drain), 0);
    ck_assert_int_gt(raw_receive(fd, packet, sizeof packet, fds), 0);
    start_service(random);
    close(fd);
    ck_assert_int_eq(end_process(old, 0), 0);
}

static void start_trainer(struct job *job, uint32_t number, uint64_t *random, bool calm) {
    static struct trainer t;
    memset(&t, 0, sizeof t);
    t = (struct trainer){.job = job, .number = number, .random = random_next(random), .calm = calm};
    t.rank = &job->rank[number];
    t.hold = 1 + below(&t.random, 3);
    job->pid[number] = start_client(train, &t);
    job->may_fail[number] = job->stopped[number] = false;
    job->starts++;
}

/* The next leg goes on where the last one ended, with as many ranks as it has; tend_job() starts them. */
static void prepare_leg(struct job *job) {
    uint32_t world = job->world[job->leg];
    struct checkpoint from = job->rank[0].checkpoint[atomic_load(&job->rank[0].which)];
    for (uint32_t i = 0; i < world; i++) {
        job->finished[i] = false;
        job->rank[i].checkpoint[0] = from;
        atomic_store(&job->rank[i].which, 0);
    }
}

static void plan_job(struct job *job, uint32_t number, struct rank *ranks, uint64_t *random) {
    *job = (struct job){.number = number, .recipe = &recipes[below(random, RECIPES)], .rank = ranks};
    job->is_private = below(random, 4) == 0;
    job->first_epoch = below(random, 2);
    job->legs = 1 + below(random, MOST_LEGS);
    uint64_t at = 0, most = (EPOCHS - job->first_epoch) * 9; /* the shortest epoch of all recipes has no fewer */
    for (uint32_t i = 0; i < job->legs; i++) {
        job->world[i] = 1 + below(random, MOST_WORLD);
        at += 1 + below(random, (uint32_t)(most / job->legs));
        job->end[i] = at;
        predict_world(job->recipe, job->world[i]);
    }
    ck_assert_uint_le(at, (EPOCHS - job->first_epoch) * job->recipe->steps);
    memset(ranks, 0, MOST_WORLD * sizeof *ranks);
    struct loaderd_state *state = &ranks[0].checkpoint[0].state;
    *state = (struct loaderd_state){.seed = job->recipe->seed, .epoch = job->first_epoch, .global_batch = GLOBAL_BATCH};
    memcpy(state->fingerprint, job->recipe->fingerprint, sizeof state->fingerprint);
}

struct round {
    struct job job[MOST_JOBS];
    uint32_t jobs;
    struct event event[MOST_EVENTS];
    uint32_t events, at;
    uint64_t random;
    bool calm;
    const struct recipe *damaged;
    uint64_t restore_ms;
};

static void plan_round(struct round *round, unsigned number, struct rank *ranks) {
    uint64_t random = arguments.seed * UINT64_C(1000003) + number, batches = 0;
    random_next(&random);
    *round = (struct round){.calm = number % 10 == 9};
    round->jobs = 1 + below(&random, MOST_JOBS);
    for (uint32_t i = 0; i < round->jobs; i++) {
        plan_job(&round->job[i], number * MOST_JOBS + i, ranks + i * MOST_WORLD, &random);
        for (uint32_t leg = 0; leg < round->job[i].legs; leg++)
            batches += round->job[i].world[leg] * (round->job[i].end[leg] - (leg ? round->job[i].end[leg - 1] : 0));
    }
    round->events = round->calm ? 0 : 1 + below(&random, MOST_EVENTS);
    for (uint32_t i = 0; i < round->events; i++) {
        uint64_t after = below(&random, (uint32_t)batches + 1);
        uint32_t at = i;
        for (; at > 0 && round->event[at - 1].after > after; at--)
            round->event[at] = round->event[at - 1];
        round->event[at] = (struct event){below(&random, EVENTS), after, random_next(&random)};
    }
    round->random = random_next(&random);
}

static bool any_trainer(struct round *round, uint64_t random, struct job **ret_job, uint32_t *ret_number) {
    for (uint32_t i = 0; i < round->jobs * MOST_WORLD; i++) {
        uint32_t at = (uint32_t)((random + i) % (round->jobs * MOST_WORLD));
        struct job *job = &round->job[at / MOST_WORLD];
        if (job->leg < job->legs && job->pid[at % MOST_WORLD] > 0) {
            *ret_job = job;
            *ret_number = at % MOST_WORLD;
            return true;
        }
    }
    return false;
}

static bool damage(struct round *round, uint64_t random) {
    struct recipe *recipe = NULL;
    for (uint32_t i = 0; i < round->jobs && !recipe; i++) /* what somebody reads */
        if (round->job[i].leg < round->job[i].legs && round->job[i].recipe->predictable_damage)
            recipe = round->job[i].recipe;
    if (!recipe || round->damaged)
        return false;
    round->damaged = recipe;
    for (uint32_t i = 0; i < round->jobs; i++)
        for (uint32_t k = 0; k < MOST_WORLD; k++)
            round->job[i].may_fail[k] |= round->job[i].recipe == recipe;
    if (recipe == &recipes[0]) {
        ck_assert_int_eq(truncate("raw.bin", (off_t)(random >> 8) % (RAW_SAMPLES * (RAW_BYTES + 4))), 0);
    } else {
        char path[64];
        for (uint32_t i = 0; i < 100; i += 1 + (uint32_t)(random >> 8) % 7) {
            snprintf(path, sizeof path, "jpeg/%u/%03u.jpg", i % 3, i);
            if (random & 2) {
                write_garbage("new");
                ck_assert_int_eq(rename("new", path), 0);
            } else {
                ck_assert_int_eq(truncate(path, i), 0);
            }
        }
    }
    round->restore_ms = clock_ms() + 1 + (random >> 16) % 40;
    return true;
}

/* The data is whole again, and daemons that saw it otherwise are replaced. */
static void restore(struct round *round) {
    const struct recipe *recipe = round->damaged;
    if (recipe == &recipes[0]) {
        make_records("raw.new", RAW_SAMPLES, RAW_BYTES);
        ck_assert_int_eq(rename("raw.new", "raw.bin"), 0);
    } else {
        char path[64];
        for (uint32_t i = 0; i < 100; i++) {
            snprintf(path, sizeof path, "jpeg/%u/%03u.jpg", i % 3, i);
            write_picture("new", i);
            ck_assert_int_eq(rename("new", path), 0);
        }
    }
    replace_service(&round->random, SIGKILL);
    for (uint32_t i = 0; i < round->jobs; i++) {
        struct job *job = &round->job[i];
        if (job->recipe != recipe || !job->is_private)
            continue;
        job->era++; /* the next ones start a daemon of their own */
        for (uint32_t k = 0; k < MOST_WORLD; k++)
            if (job->pid[k] > 0)
                kill(job->pid[k], SIGKILL);
    }
    round->damaged = NULL;
}

static void happen(struct round *round, const struct event *event) {
    struct job *job = NULL;
    uint32_t number = 0;
    bool found = any_trainer(round, event->random, &job, &number);
    switch (event->kind) {
    case KILL_TRAINER:
        if (!found)
            return;
        kill(job->pid[number], SIGKILL);
        break;
    case STOP_TRAINER:
        if (!found)
            return;
        kill(job->pid[number], SIGSTOP);
        job->stopped[number] = true;
        trainer_cont_ms = clock_ms() + 1 + (event->random >> 8) % 30;
        break;
    case KILL_DAEMON:
    case TERM_DAEMON:
        replace_service(&round->random, event->kind == KILL_DAEMON ? SIGKILL : SIGTERM);
        break;
    case DRAIN_DAEMON:
        drain_service(&round->random);
        break;
    case STOP_DAEMON:
        kill(service, SIGSTOP);
        service_cont_ms = clock_ms() + 1 + (event->random >> 8) % 30;
        break;
    case KILL_PRIVATE:
        for (uint64_t i = 0; i < 16 && found && !job->is_private; i++)
            found = any_trainer(round, event->random + i, &job, &number);
        if (!found || !job->is_private || atomic_load(&job->rank[number].daemon_pid) <= 0)
            return;
        if (kill(atomic_load(&job->rank[number].daemon_pid), SIGKILL) < 0)
            return;
        break;
    default:
        if (!damage(round, event->random))
            return;
        break;
    }
    total.happened[event->kind]++;
}

static void continue_stopped(struct round *round, uint64_t now) {
    if (service_cont_ms && now >= service_cont_ms) {
        kill(service, SIGCONT);
        service_cont_ms = 0;
    }
    if (!trainer_cont_ms || now < trainer_cont_ms)
        return;
    trainer_cont_ms = 0;
    for (uint32_t i = 0; i < round->jobs; i++)
        for (uint32_t k = 0; k < MOST_WORLD; k++)
            if (round->job[i].stopped[k] && round->job[i].pid[k] > 0) {
                kill(round->job[i].pid[k], SIGCONT);
                round->job[i].stopped[k] = false;
            }
}

static void fail_round(const struct round *round, const struct job *job, uint32_t number, const char *what) {
    char *log = read_text("log");
    size_t length = strlen(log);
    (void)round;
    fprintf(stderr, "%s\n", log + (length > 4000 ? length - 4000 : 0));
    ck_abort_msg("%s: pipeline %s%s leg %u rank %u of %u: %s", what, job->recipe->name,
                 job->is_private ? " (private)" : "", job->leg, number, job->world[job->leg],
                 job->rank[number].message);
}

/* A trainer's process is gone: was it to be? */
static void trainer_ended(struct round *round, struct job *job, uint32_t number, int status) {
    struct rank *rank = &job->rank[number];
    job->pid[number] = 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        job->finished[number] = true;
        total.reconnects += atomic_exchange(&rank->reconnects, 0);
        total.rescues += atomic_load(&rank->rescues);
        if (round->calm)
            total.calm_rescues += atomic_load(&rank->rescues);
        return;
    }
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        return;
    if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_ERROR && job->may_fail[number]) {
        total.errors++;
        return;
    }
    fail_round(round, job, number, WIFEXITED(status) && WEXITSTATUS(status) == EXIT_WRONG ? "wrong" : "failed");
}

/* Reaps, starts again, goes on to the next leg. True while the job goes on. */
static bool tend_job(struct round *round, struct job *job) {
    if (job->leg == job->legs)
        return false;
    uint32_t world = job->world[job->leg], finished = 0;
    for (uint32_t k = 0; k < world; k++) {
        int status;
        if (job->pid[k] > 0 && waitpid(job->pid[k], &status, WNOHANG) == job->pid[k])
            trainer_ended(round, job, k, status);
        if (job->pid[k] == 0 && !job->finished[k] && round->damaged != job->recipe)
            start_trainer(job, k, &round->random, round->calm);
        finished += job->finished[k];
    }
    if (finished < world)
        return true;
    for (uint32_t k = 0; k < world; k++) { /* what each rank has done is what it should have */
        const struct checkpoint *c = &job->rank[k].checkpoint[atomic_load(&job->rank[k].which)];
        uint64_t from = job->leg ? job->end[job->leg - 1] : 0, next = from;
        for (uint64_t n = from; n < c->done; n++) {
            const struct entry *e = &job->rank[k].log[n];
            uint64_t place = (e->epoch - job->first_epoch) * job->recipe->steps + e->step;
            total.lost += place > next ? place - next : 0;
            total.doubled += place < next;
            next = place + 1;
            total.committed++;
        }
        total.lost += next < job->end[job->leg] ? job->end[job->leg] - next : 0;
        if (total.lost || total.doubled || c->done != job->end[job->leg])
            fail_round(round, job, k, "sequence");
    }
    if (++job->leg == job->legs)
        return false;
    total.elastic += job->world[job->leg] != world;
    prepare_leg(job);
    return true;
}

static uint64_t received(const struct round *round) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < round->jobs; i++)
        for (uint32_t k = 0; k < MOST_WORLD; k++)
            n += atomic_load(&round->job[i].rank[k].received);
    return n;
}

static void run_round(unsigned number, struct rank *ranks) {
    static struct round round;
    plan_round(&round, number, ranks);
    uint64_t until = clock_ms() + ROUND_MS;
    for (uint32_t i = 0; i < round.jobs; i++)
        prepare_leg(&round.job[i]);
    for (bool going = true; going || round.damaged;) {
        uint64_t now = clock_ms();
        going = false;
        for (uint32_t i = 0; i < round.jobs; i++)
            going |= tend_job(&round, &round.job[i]);
        while (round.at < round.events && received(&round) >= round.event[round.at].after)
            happen(&round, &round.event[round.at++]);
        continue_stopped(&round, now);
        if (round.damaged && (now >= round.restore_ms || !going))
            restore(&round);
        for (uint32_t i = 0; now > until && i < round.jobs; i++)
            if (round.job[i].leg < round.job[i].legs)
                fail_round(&round, &round.job[i], 0, "no end in time");
        if (going)
            sleep_ms(1);
    }
    continue_stopped(&round, UINT64_MAX);
    for (uint32_t i = 0; i < MOST_JOBS * MOST_WORLD; i++) {
        total.checked += atomic_load(&ranks[i].checked);
        total.reopens += atomic_load(&ranks[i].reopens);
    }
    total.calm_rounds += round.calm;
}

static void print_summary(unsigned rounds, uint64_t ms) {
    const uint64_t *h = total.happened;
    printf("chaos: seed %lu, %u rounds in %.1f s\n", arguments.seed, rounds, (double)ms / 1e3);
    printf("  trainers killed %lu, stopped %lu; daemons killed %lu, ended %lu, stopped %lu, drained %lu; private ones "
           "killed %lu\n",
           h[KILL_TRAINER], h[STOP_TRAINER], h[KILL_DAEMON], h[TERM_DAEMON], h[STOP_DAEMON], h[DRAIN_DAEMON],
           h[KILL_PRIVATE]);
    printf("  data damaged and restored %lu, trainers that were told so %lu; reconnects %lu, reopened %lu, worlds "
           "changed %lu\n",
           h[DAMAGE], total.errors, total.reconnects, total.reopens, total.elastic);
    printf("  batches checked %lu, of which done %lu; lost %lu, doubled %lu; rescues in %lu undisturbed rounds %lu\n",
           total.checked, total.committed, total.lost, total.doubled, total.calm_rounds, total.calm_rescues);
    fflush(stdout);
}

START_TEST(chaos) {
    harness_begin();
    make_records("raw.bin", RAW_SAMPLES, RAW_BYTES);
    make_records("sequence.bin", 301, RAW_BYTES);
    make_pictures("jpeg", 100, false);
    make_pictures("bad", 120, true);
    uint64_t random = arguments.seed, began = clock_ms();
    struct rank *ranks = shared_memory(MOST_JOBS * MOST_WORLD * sizeof *ranks);
    unsigned rounds = 0;
    start_service(&random);
    for (unsigned number = 0; number < arguments.rounds; number++) {
        if (arguments.only >= 0 && number != (unsigned)arguments.only)
            continue;
        if (arguments.verbose)
            fprintf(stderr, "round %u\n", number);
        ck_assert_msg(truncate("log", 0) == 0 || errno == ENOENT, "log");
        mark_point();
        run_round(number, ranks);
        rounds++;
    }
    end_process(service, SIGTERM);
    print_summary(rounds, clock_ms() - began);
    ck_assert_uint_eq(total.calm_rescues, 0);
    harness_end();
}
END_TEST

static void usage(void) {
    fprintf(stderr, "usage: chaos [--rounds N] [--seed S] [--only ROUND] [--verbose]\n");
    exit(2);
}

int main(int argc, char **argv) {
    static const struct option options[] = {{"rounds", required_argument, NULL, 'r'},
                                            {"seed", required_argument, NULL, 's'},
                                            {"only", required_argument, NULL, 'o'},
                                            {"verbose", no_argument, NULL, 'v'},
                                            {NULL, 0, NULL, 0}};
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == 'r')
            arguments.rounds = (unsigned)strtoul(optarg, NULL, 10);
        else if (c == 's')
            arguments.seed = strtoull(optarg, NULL, 10);
        else if (c == 'o')
            arguments.only = strtol(optarg, NULL, 10);
        else if (c == 'v')
            arguments.verbose = true;
        else
            usage();
    }
    Suite *suite = suite_create("chaos");
    TCase *all = tcase_create("all");
    tcase_set_timeout(all, arguments.rounds <= 100 ? 240 : 0); /* a round has its own limit */
    tcase_add_test(all, chaos);
    suite_add_tcase(suite, all);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
