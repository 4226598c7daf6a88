/* SPDX-License-Identifier: MIT */
/* Windows of loaderctl tune: see tune_measure.h. */
#include "tune_measure.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>

#include "base/util.h"
#include "ceilings.h"
#include "dataset/dataset.h"
#include "session.h"

#define OWN_KEYS 8u
#define WARM 5u                       /* before a window begins: a share of it ... */
#define WARM_LEAST UINT64_C(20000000) /* ... but not less ns, and two samples of each worker */
#define MOST_EVICTED 65536u

/* The command line with a setting laid over it. */
struct overlay {
    struct options options;
    struct key_value *keys;
    char number[4][16];
};

static void add_key(struct overlay *o, const char *key, const char *value) {
    o->keys[o->options.nkeys++] = (struct key_value){key, value};
}

static void add_number(struct overlay *o, unsigned place, const char *key, uint32_t value) {
    snprintf(o->number[place], sizeof o->number[place], "%" PRIu32, value);
    if (value)
        add_key(o, key, o->number[place]);
}

static int overlay_init(struct overlay *o, const struct options *options, const struct tune_setting *setting) {
    o->options = *options;
    o->options.quiet = true;
    o->keys = calloc(options->nkeys + OWN_KEYS, sizeof *o->keys);
    if (!o->keys)
        return -ENOMEM;
    if (options->nkeys)
        memcpy(o->keys, options->keys, options->nkeys * sizeof *o->keys);
    o->options.keys = o->keys;
    add_number(o, 0, "workers", setting->workers);
    add_number(o, 1, "depth", setting->depth);
    add_number(o, 2, "slots", setting->slots);
    add_number(o, 3, "batch", setting->batch);
    add_key(o, "engine", setting->engine);
    return 0;
}

static int open_setting(const struct tuner *tuner, const struct tune_setting *setting, struct engine *ret,
                        struct diag *diag) {
    struct overlay overlay;
    const struct engine_range range = {.epoch = tuner->options->epoch};
    if (overlay_init(&overlay, tuner->options, setting) < 0)
        return diag_set(diag, -ENOMEM, "out of memory");
    int r = engine_open(ret, &overlay.options, &range, diag);
    free(overlay.keys);
    return r;
}

int tuner_open(struct tuner *ret, const struct options *options, struct diag *diag) {
    const struct tune_setting scout = {.engine = "pread", .workers = 1, .depth = 1};
    *ret = (struct tuner){.options = options};
    return open_setting(ret, &scout, &ret->scout, diag);
}

void tuner_close(struct tuner *tuner) {
    engine_close(&tuner->scout);
}

/* ---- the page cache ---------------------------------------------------------------------------------------------- */

static void evict_extent(const struct extent *extent) {
    if (extent->file) {
        posix_fadvise(extent->file->fd, (off_t)extent->offset, (off_t)extent->length, POSIX_FADV_DONTNEED);
        return;
    }
    cleanup_close int fd = openat(extent->dirfd, extent->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0)
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
}

/* The samples of the first batches, as many as a window can come to need. What is not written yet stays in memory. */
static void evict(const struct tuner *tuner, const struct tune_setting *setting) {
    const struct session *session = tuner->scout.session;
    uint32_t rows = MAX(tuner->scout.consumer.batch, setting->batch);
    uint64_t wanted = (uint64_t)(tuner->speed * tuner->window * 2) + 40ull * rows, done = 0;
    struct order_epoch epoch;
    order_epoch_init(&session->order, tuner->options->epoch, &epoch);
    for (uint64_t step = 0; step < session->steps && done < MIN(wanted, MOST_EVICTED); step++) {
        struct order_batch batch;
        order_batch(&session->order, step, &batch);
        for (uint32_t i = 0; i < batch.rows; i++, done++) {
            struct location location;
            dataset_locate(session->dataset, order_sample(&epoch, batch.position + i), &location);
            for (uint32_t e = 0; e < location.extents; e++)
                evict_extent(&location.extent[e]);
        }
    }
}

/* ---- a window ---------------------------------------------------------------------------------------------------- */

static bool device_bytes(uint64_t *ret) {
    char line[128];
    bool found = false;
    FILE *file = fopen("/proc/self/io", "re");
    while (file && !found && fgets(line, sizeof line, file))
        found = sscanf(line, "read_bytes: %" SCNu64, ret) == 1;
    if (file)
        fclose(file);
    return found;
}

/* Nanoseconds that threads of this process were ready and had no CPU: /proc/PID/task/TID/schedstat, the second number. */
static uint64_t time_in_line(void) {
    char path[64];
    uint64_t sum = 0, ran, waited;
    struct dirent *entry;
    DIR *directory = opendir("/proc/self/task");
    while (directory && (entry = readdir(directory))) {
        snprintf(path, sizeof path, "/proc/self/task/%.20s/schedstat", entry->d_name);
        FILE *file = fopen(path, "re");
        if (file && fscanf(file, "%" SCNu64 " %" SCNu64, &ran, &waited) == 2)
            sum += waited;
        if (file)
            fclose(file);
    }
    if (directory)
        closedir(directory);
    return sum;
}

struct window {
    struct engine engine;
    struct worker_statistics *before, *after;
    uint32_t workers;
    uint64_t begun, ended;
    uint64_t line_before, line_after;
};

static uint64_t snapshot(struct window *w, struct worker_statistics *ret) {
    uint64_t samples = 0;
    for (uint32_t i = 0; i < w->workers; i++) {
        pool_statistics(w->engine.pool, i, &ret[i]);
        samples += ret[i].samples;
    }
    return samples;
}

/* Pops until the time is over. The rate is that of the workers, sample by sample, so that a window need not be long
 * beside the time of a batch: nothing waits here for the ring. */
static int pop(const struct tuner *tuner, struct window *w, struct histogram *times, struct diag *diag) {
    uint64_t length = (uint64_t)(tuner->window * 1e9), opened = now_ns(), last = 0;
    uint64_t deadline = opened + MAX(length / WARM, WARM_LEAST);
    struct loaderd_batch batch;
    for (;;) {
        int r = engine_next_until(&w->engine, deadline, &batch, diag);
        uint64_t now = now_ns();
        if (r < 0 && r != -ETIMEDOUT)
            return r;
        if (r == 0)
            return diag_set(diag, -ENODATA, "the dataset ended before a window did");
        if (r == 1) {
            engine_release(&w->engine, &batch);
            if (times && last && w->begun)
                histogram_add(times, now - last);
            last = now;
        }
        if (engine_interrupted)
            return -EINTR;
        if (now < deadline)
            continue;
        if (w->begun && snapshot(w, w->after) > 0) {
            w->ended = now;
            w->line_after = time_in_line();
            return 0;
        }
        deadline = now + WARM_LEAST;
        if (!w->begun && snapshot(w, w->before) >= 2u * w->workers) {
            w->line_before = time_in_line();
            w->begun = now_ns();
            deadline = w->begun + length;
        }
    }
}

static void add_window(struct tuner *tuner, const struct window *w, struct tune_result *result) {
    double seconds = (double)(w->ended - w->begun) / 1e9;
    uint64_t samples = 0;
    for (uint32_t i = 0; i < w->workers; i++) {
        for (int stage = 0; stage < STAGES; stage++)
            result->stage[stage] += (double)(w->after[i].stage_ns[stage] - w->before[i].stage_ns[stage]) / 1e9;
        result->bytes_in += w->after[i].bytes_in;
        result->samples_in += w->after[i].samples;
        samples += w->after[i].samples - w->before[i].samples;
    }
    double rate = seconds > 0 ? (double)samples / seconds : 0;
    result->busy += seconds * w->workers;
    result->in_line += (double)(w->line_after - MIN(w->line_before, w->line_after)) / 1e9;
    result->batch = w->engine.consumer.batch;
    result->slots = w->engine.consumer.slots;
    if (result->rates.rounds < TUNE_MOST_ROUNDS)
        result->rates.rate[result->rates.rounds++] = rate;
    tuner->speed = MAX(tuner->speed, rate);
    pool_verdict(w->before, w->after, w->workers, -1, &result->verdict);
}

int tuner_window(struct tuner *tuner, struct tune_result *result, struct histogram *times, struct diag *diag) {
    struct window w = {.workers = 0};
    uint64_t device_before = 0, device_after = 0;
    if (result->setting.cold)
        evict(tuner, &result->setting);
    bool known = device_bytes(&device_before);
    int r = open_setting(tuner, &result->setting, &w.engine, diag);
    if (r < 0) {
        snprintf(result->failed, sizeof result->failed, "%s", diag->text);
        return r;
    }
    w.workers = pool_workers(w.engine.pool);
    w.before = calloc(w.workers, sizeof *w.before);
    w.after = calloc(w.workers, sizeof *w.after);
    r = w.before && w.after ? pop(tuner, &w, times, diag) : diag_set(diag, -ENOMEM, "out of memory");
    if (r == 0)
        add_window(tuner, &w, result);
    engine_close(&w.engine);
    if (known && device_bytes(&device_after))
        result->device += device_after - device_before;
    free(w.before);
    free(w.after);
    return r;
}

int tuner_ceilings(struct tuner *tuner, uint32_t workers, struct ceilings *ret, struct diag *diag) {
    const struct tune_setting setting = {.engine = "pread", .workers = workers};
    const struct timespec fill = {0, 200000000};
    struct engine engine;
    int r = open_setting(tuner, &setting, &engine, diag);
    if (r < 0)
        return r;
    nanosleep(&fill, NULL); /* the workers fill the ring first */
    ceilings_measure(&engine, CLAMP(tuner->window, 0.1, 0.5), ret);
    engine_close(&engine);
    return 0;
}
