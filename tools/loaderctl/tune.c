/* SPDX-License-Identifier: MIT */
/*
 * loaderctl tune: measures this machine, this dataset and this pipeline, and writes the configuration that it recommends.
 * Windows of all settings that are compared take turns, so that other load meets all alike; medians count. Standard
 * output is a configuration file whose comments tell what was measured. One thread, beside the engines' workers.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>
#include <sys/utsname.h>

#include "base/util.h"
#include "ceilings.h"
#include "dataset/dataset.h"
#include "doctor.h"
#include "loaderctl.h"
#include "read/read.h"
#include "topology.h"
#include "tune_measure.h"
#include "tune_report.h"

#define ROUNDS 5u
#define FEW_ROUNDS 3u /* where opening and closing alone take all the time */
#define SHORTEST 0.05 /* seconds of a window */
#define MOST_SETTINGS 6u
#define SIZES 4u
#define DEPTHS 4u
#define PROBE_SECONDS 0.15
#define DISTURBED 0.15 /* share of the time without a CPU above which a word is due */
#define NOISE 0.10     /* spread above which a word of warning is due */

static const uint32_t depths[DEPTHS] = {1, 4, 16, 64};
static const uint64_t sizes[SIZES] = {4 << 10, 64 << 10, 1 << 20, 0}; /* 0: whole samples */

struct tune {
    const struct options *options;
    struct tuner tuner;
    char machine[512];
    uint32_t cpus, budget, most; /* allowed by affinity and quota; by --cpu; measured up to */
    double room, bytes;          /* page cache; dataset, about */
    double sample_bytes;
    bool cold; /* the dataset does not fit */
    double target;
    struct tune_result first, final;
    struct tune_result worker[TUNE_MOST_POINTS], cached[MOST_SETTINGS], fresh[MOST_SETTINGS], slot[3], batch[2];
    uint32_t workers, settings, slots, batches;
    uint32_t chosen;             /* index into worker */
    bool fast_enough;            /* for the target */
    struct tune_setting setting; /* recommended */
    double disk[SIZES][DEPTHS];  /* bytes a second */
    double bus;                  /* bytes a second, 0: no device */
    struct ceilings ceilings;
    struct tune_cache cache; /* what one would change; all zero: nothing is known, or there is one */
    struct histogram times;
    uint64_t begun_ns;
    uint32_t rounds;
    uint32_t done, planned; /* windows */
    bool tty;
};

/* ---- progress ---------------------------------------------------------------------------------------------------- */

static void progress(struct tune *t, const char *what) {
    double spent = (double)(now_ns() - t->begun_ns) / 1e9, all = MAX(t->planned, t->done + 1);
    double left = t->done ? spent / t->done * (all - t->done) : t->options->seconds;
    if (t->tty)
        fprintf(stderr, "\r\033[K%3.0f %%  %-28s %.0f s left", 100 * t->done / all, what, left);
}

static void progress_end(const struct tune *t) {
    if (t->tty)
        fputs("\r\033[K", stderr);
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */

/* One window more of a setting. A setting that cannot be opened is left out, and says so. */
static int window(struct tune *t, struct tune_result *result, const char *what, struct histogram *times,
                  struct diag *diag) {
    if (*result->failed)
        return 0;
    progress(t, what);
    int r = tuner_window(&t->tuner, result, times, diag);
    t->done++;
    return *result->failed ? 0 : r;
}

/* Rounds over all of them, every other one backwards. */
static int rounds(struct tune *t, struct tune_result *result, uint32_t count, const char *what, struct diag *diag) {
    for (uint32_t round = 0; round < t->rounds; round++)
        for (uint32_t i = 0; i < count; i++) {
            int r = window(t, &result[round % 2 ? count - 1 - i : i], what, NULL, diag);
            if (r < 0)
                return r;
        }
    return 0;
}

static bool works(enum read_engine engine) {
    return read_choose(engine, NULL) == engine;
}

/* The value of a key on the command line, NULL: it is not there. */
static const char *given(const struct options *options, const char *key) {
    const char *value = NULL;
    for (uint32_t i = 0; i < options->nkeys; i++)
        if (strcmp(options->keys[i].key, key) == 0)
            value = options->keys[i].value;
    return value;
}

/* Is an engine to be measured? One that works here, and the one that was asked for if any was. */
static bool is_wanted(const struct tune *t, enum read_engine engine) {
    const char *only = given(t->options, "engine");
    return works(engine) && (!only || strcmp(only, "auto") == 0 || strcmp(only, read_engine_name(engine)) == 0);
}

static const char *first_engine(const struct tune *t) {
    static const enum read_engine order[] = {READ_URING, READ_PREAD, READ_MMAP};
    for (size_t i = 0; i < ARRAY_SIZE(order); i++)
        if (is_wanted(t, order[i]))
            return read_engine_name(order[i]);
    return "pread";
}

/* The first window brings the data into the page cache, where it fits, and tells how large samples are. */
static int look_first(struct tune *t, struct diag *diag) {
    char text[8192];
    uint64_t available = 0;
    struct topology topology;
    t->first.setting = (struct tune_setting){.engine = first_engine(t), .workers = t->most};
    for (uint32_t i = 0; i < 2; i++) {
        progress(t, "first look");
        int r = tuner_window(&t->tuner, &t->first, NULL, diag);
        if (r < 0)
            return r;
        t->done++;
    }
    if (t->first.samples_in)
        t->sample_bytes = (double)t->first.bytes_in / (double)t->first.samples_in;
    t->bytes = t->sample_bytes * (double)dataset_samples(pipeline_dataset(t->tuner.scout.pipeline));
    if (doctor_read("", "/proc/meminfo", text, sizeof text) && doctor_number(text, "MemAvailable:", &available))
        t->room = (double)available * 1024;
    if (topology_read("", &topology, NULL) == 0) {
        if (topology.memory_limit != UINT64_MAX)
            t->room = MIN(t->room, (double)topology.memory_limit);
        topology_deinit(&topology);
    }
    t->cold = t->bytes > 0.8 * t->room;
    return 0;
}

/* The better of two looks, one before all else and one at the end: other load comes and goes. */
static int measure_ceilings(struct tune *t, struct diag *diag) {
    struct ceilings once;
    progress(t, "decoder, memory");
    int r = tuner_ceilings(&t->tuner, t->most, &once, diag);
    if (r < 0)
        return r;
    t->ceilings.decode_region = MAX(t->ceilings.decode_region, once.decode_region);
    t->ceilings.copy = MAX(t->ceilings.copy, once.copy);
    t->ceilings.device = MAX(t->ceilings.device, once.device);
    if (once.cache_decode > t->ceilings.cache_decode) { /* all of one look: ratios count */
        t->ceilings.cache_plain = once.cache_plain;
        t->ceilings.cache_decode = once.cache_decode;
        t->ceilings.cache_pictures = once.cache_pictures;
        t->ceilings.cache_of = once.cache_of;
        t->ceilings.cache_bytes = once.cache_bytes;
        t->ceilings.cache_set = once.cache_set;
        t->ceilings.cache_encode_s = once.cache_encode_s;
    }
    return 0;
}

/* What a cache would change of the recommended setting. Windows of a pipeline that has one were served with it. */
static void judge_cache(struct tune *t) {
    const struct ceilings *c = &t->ceilings;
    double busy = 0, decode = t->final.stage[STAGE_DECODE] + t->final.stage[STAGE_TRANSFORM];
    for (int i = STAGE_READ; i <= STAGE_OTHER; i++)
        busy += t->final.stage[i];
    const struct tune_cost cost = {.rate = tune_median(&t->final.rates),
                                   .decode = busy > 0 ? decode / busy : 0,
                                   .samples = (double)dataset_samples(pipeline_dataset(t->tuner.scout.pipeline)),
                                   .cacheable = c->cache_of ? (double)c->cache_pictures / c->cache_of : 0,
                                   .plain = c->cache_plain,
                                   .record = c->cache_decode,
                                   .encode = c->cache_encode_s};
    if (!*t->tuner.scout.setup.pipeline.cache)
        tune_cache(&cost, &t->cache);
}

static int measure_parts(struct tune *t, struct diag *diag) {
    struct cuda_probe cuda;
    int r = measure_ceilings(t, diag);
    for (uint32_t s = 0; r == 0 && t->sample_bytes > 0 && s < SIZES; s++)
        for (uint32_t d = 0; d < DEPTHS && !engine_interrupted; d++) {
            uint64_t bytes;
            progress(t, "disk");
            t->disk[s][d] = ceilings_device(&t->tuner.scout, 1, depths[d], sizes[s], PROBE_SECONDS, &bytes);
        }
    doctor_probe_cuda(&cuda);
    if (cuda.library && cuda.devices > 0)
        t->bus = device_bandwidth(0);
    return r < 0 ? r : engine_interrupted ? -EINTR : 0;
}

static int sweep_workers(struct tune *t, struct diag *diag) {
    uint32_t count[TUNE_MOST_POINTS + 1], n = tune_candidates(t->most, count), at = 0;
    while (at < n && count[at] < t->budget)
        at++;
    if (n < TUNE_MOST_POINTS && at < n && count[at] != t->budget) { /* the budget itself is measured, too */
        memmove(&count[at + 1], &count[at], (n - at) * sizeof *count);
        count[at] = t->budget;
        n++;
    }
    t->workers = n;
    for (uint32_t i = 0; i < n; i++)
        t->worker[i].setting =
            (struct tune_setting){.engine = t->first.setting.engine, .workers = count[i], .cold = t->cold};
    return rounds(t, t->worker, n, "workers", diag);
}

static void choose_workers(struct tune *t) {
    struct tune_point point[TUNE_MOST_POINTS];
    uint32_t count = 0;
    for (; count < t->workers && t->worker[count].setting.workers <= t->budget; count++)
        point[count] = (struct tune_point){t->worker[count].setting.workers, tune_median(&t->worker[count].rates)};
    t->chosen = tune_knee(point, count);
    if (t->target > 0) {
        uint32_t cheapest = tune_cheapest(point, count, t->target);
        t->fast_enough = cheapest < count;
        t->chosen = t->fast_enough ? cheapest : t->chosen;
    }
    t->setting = t->worker[t->chosen].setting;
}

/* Engines and depths, in order of preference, from the page cache and from the device. */
static int sweep_reading(struct tune *t, struct diag *diag) {
    static const struct {
        enum read_engine engine;
        uint32_t depth;
    } table[] = {{READ_URING, 16}, {READ_URING, 64}, {READ_URING, 4}, {READ_PREAD, 16}, {READ_MMAP, 16}};
    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        if (!is_wanted(t, table[i].engine))
            continue;
        t->cached[t->settings].setting = (struct tune_setting){
            .engine = read_engine_name(table[i].engine), .workers = t->setting.workers, .depth = table[i].depth};
        t->fresh[t->settings] = t->cached[t->settings];
        t->fresh[t->settings++].setting.cold = true;
    }
    if (!(t->sample_bytes > 0)) { /* nothing is read */
        t->settings = 0;
        t->setting.depth = 16;
        return 0;
    }
    int r = rounds(t, t->cached, t->settings, "engines, from the cache", diag);
    return r < 0 ? r : rounds(t, t->fresh, t->settings, "engines, from the disk", diag);
}

static uint32_t preferred(const struct tune_result *result, uint32_t count) {
    struct tune_rates rates[MOST_SETTINGS];
    for (uint32_t i = 0; i < count; i++)
        rates[i] = result[i].rates;
    return tune_preferred(rates, count);
}

static int sweep_slots(struct tune *t, struct diag *diag) {
    static const uint32_t table[] = {8, 16, 4};
    if (given(t->options, "slots") || t->tuner.scout.setup.pipeline.slots)
        return 0;
    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        t->slot[t->slots].setting = t->setting;
        t->slot[t->slots++].setting.slots = table[i];
    }
    return rounds(t, t->slot, t->slots, "slots", diag);
}

/* Only told: the size of a batch is the training's. */
static int sweep_batches(struct tune *t, struct diag *diag) {
    uint32_t batch = t->first.batch, other[] = {batch / 2, batch * 2};
    for (size_t i = 0; i < ARRAY_SIZE(other); i++) {
        if (!other[i] || other[i] > dataset_samples(pipeline_dataset(t->tuner.scout.pipeline)))
            continue;
        t->batch[t->batches].setting = t->setting;
        t->batch[t->batches++].setting.batch = other[i];
    }
    return rounds(t, t->batch, t->batches, "batch sizes", diag);
}

/* Of the time asked for each window has its share, less what opening and closing one was seen to take. */
static void plan(struct tune *t) {
    uint32_t points[TUNE_MOST_POINTS], settings = tune_candidates(t->most, points) + 1 + 5 + 5 + 3 + 2 + 1;
    double spent = (double)(now_ns() - t->begun_ns) / 1e9;
    double around = t->done ? MAX(spent / t->done - t->tuner.window, 0.0) : 0;
    t->rounds = around * settings * ROUNDS > t->options->seconds ? FEW_ROUNDS : ROUNDS;
    t->planned = settings * t->rounds + t->done;
    t->tuner.window = MAX((t->options->seconds - spent) / (settings * t->rounds) - around, SHORTEST);
}

static int measure_all(struct tune *t, struct diag *diag) {
    plan(t);
    int r = look_first(t, diag);
    plan(t);
    if (r == 0)
        r = measure_parts(t, diag);
    if (r == 0)
        r = sweep_workers(t, diag);
    if (r < 0)
        return r;
    if (*t->worker[0].failed)
        return diag_set(diag, -EINVAL, "%s", t->worker[0].failed);
    choose_workers(t);
    r = sweep_reading(t, diag);
    if (r == 0 && t->settings) {
        const struct tune_result *result = t->cold ? t->fresh : t->cached;
        t->setting = result[preferred(result, t->settings)].setting;
    }
    if (r == 0)
        r = sweep_slots(t, diag);
    if (r == 0 && t->slots)
        t->setting = t->slot[preferred(t->slot, t->slots)].setting;
    if (r == 0)
        r = sweep_batches(t, diag);
    t->final.setting = t->setting;
    t->planned = t->done + t->rounds;
    for (uint32_t round = 0; r == 0 && round < t->rounds; round++)
        r = window(t, &t->final, "once more", &t->times, diag);
    if (r == 0)
        r = measure_ceilings(t, diag);
    if (r == 0)
        judge_cache(t);
    progress_end(t);
    return r;
}

/* ---- what it says ------------------------------------------------------------------------------------------------ */

static double rate_of(const struct tune *t) {
    return tune_median(&t->final.rates);
}

/* Sentences for people. */
static void explain(const struct tune *t, char *text, size_t size) {
    double rate = rate_of(t), all = tune_median(&t->worker[t->workers - 1].rates), noise = tune_spread(&t->final.rates);
    const struct tune_result *chosen = &t->worker[t->chosen];
    FILE *out = fmemopen(text, size, "w");
    if (!out)
        return;
    fprintf(out, "%.1f samples/s (+- %.1f %%) with %" PRIu32 " worker%s of at most %" PRIu32 ", data %s.", rate,
            100 * noise, chosen->setting.workers, chosen->setting.workers == 1 ? "" : "s", t->budget,
            !(t->sample_bytes > 0) ? "made up"
            : t->cold              ? "from the disk, since it does not fit the page cache"
                                   : "from the page cache, where all of it fits");
    if (t->target > 0 && t->fast_enough)
        fprintf(out, " A trainer that takes %.1f samples/s is fed, with at least %.0f %% to spare.", t->target,
                100 * TUNE_HEADROOM);
    else if (t->target > 0)
        fprintf(out, " A trainer that takes %.1f samples/s starves: it gets %.0f %% of that at best.", t->target,
                MIN(100 * rate / t->target, 999.0));
    if (t->budget < t->most && all > rate * (1 + TUNE_NEAR))
        fprintf(out, " All %" PRIu32 " workers would bring %.1f samples/s.", t->most, all);
    if (t->cache.rate > 0)
        fprintf(out,
                " A cache that holds the %.0f %% of the pictures that can be kept would bring %.2f times as many, %.1f "
                "samples/s, for %.1f MB.",
                100.0 * t->ceilings.cache_pictures / t->ceilings.cache_of, t->cache.rate / rate, t->cache.rate,
                t->ceilings.cache_set / 1e6);
    if (t->final.in_line > DISTURBED * t->final.busy)
        fprintf(out,
                " Workers stood in line for a CPU for %.0f %% of the time: other programs run here. Stop them, and "
                "measure again.",
                MIN(100 * t->final.in_line / t->final.busy, 100.0));
    else if (noise > NOISE)
        fprintf(out, " The windows scatter; a longer --seconds makes it surer.");
    fputc('\0', out);
    fclose(out);
    text[size - 1] = '\0';
}

static void print_workers(FILE *out, const struct tune *t) {
    struct tune_point point[TUNE_MOST_POINTS];
    fprintf(out, "#\n# workers   samples/s   spread   each core more brings\n");
    for (uint32_t i = 0; i < t->workers; i++) {
        const struct tune_rates *rates = &t->worker[i].rates;
        point[i] = (struct tune_point){t->worker[i].setting.workers, tune_median(rates)};
        fprintf(out, "# %s%6" PRIu32 " %11.1f %7.1f %% %+10.1f\n", i == t->chosen ? "*" : " ", point[i].workers,
                point[i].rate, 100 * tune_spread(rates), tune_gain(point, i));
    }
}

static void print_rates(FILE *out, const char *name, const struct tune_result *result) {
    if (*result->failed)
        fprintf(out, "#   %-24s not possible: %s\n", name, result->failed);
    else
        fprintf(out, "#   %-24s %11.1f samples/s %5.1f %%\n", name, tune_median(&result->rates),
                100 * tune_spread(&result->rates));
}

static void print_cache(FILE *out, const struct tune *t) {
    const struct tune_cache *c = &t->cache;
    const struct ceilings *alone = &t->ceilings;
    if (!(c->rate > 0))
        return;
    fprintf(out, "#\n# with a cache (cache = DIRECTORY or ram:SIZE), by what records and files were seen to cost\n");
    fprintf(out, "#   without                  %11.1f samples/s, %.3g s an epoch\n", rate_of(t), c->epoch);
    fprintf(out, "#   once it is filled        %11.1f samples/s, %.2f times as many\n", c->rate, c->rate / rate_of(t));
    fprintf(out,
            "#   it takes                 %11.1f MB, %.0f %% of its pictures' files; %" PRIu32 " of %" PRIu32
            " can be kept\n",
            alone->cache_set / 1e6, 100 * alone->cache_bytes, alone->cache_pictures, alone->cache_of);
    fprintf(out, "#   the first epoch, filled  %11.1f samples/s, %.3g s (cache-fill = full)", c->first_rate, c->first);
    if (c->pays_after > 0)
        fprintf(out, ", made up for by %.1f more", c->pays_after);
    fputc('\n', out);
}

/* Calls f for every other setting, under its name. */
static void each_setting(const struct tune *t, void (*f)(void *arg, const char *name, const struct tune_result *result),
                         void *arg) {
    char name[48];
    for (uint32_t i = 0; i < 2 * t->settings; i++) {
        const struct tune_result *r = i < t->settings ? &t->cached[i] : &t->fresh[i - t->settings];
        snprintf(name, sizeof name, "%s, depth %" PRIu32 ", %s", r->setting.engine, r->setting.depth,
                 r->setting.cold ? "disk" : "cache");
        f(arg, name, r);
    }
    for (uint32_t i = 0; i < t->slots; i++) {
        snprintf(name, sizeof name, "slots %" PRIu32, t->slot[i].setting.slots);
        f(arg, name, &t->slot[i]);
    }
    for (uint32_t i = 0; i < t->batches; i++) {
        snprintf(name, sizeof name, "batch %" PRIu32, t->batch[i].setting.batch);
        f(arg, name, &t->batch[i]);
    }
}

static void print_setting(void *arg, const char *name, const struct tune_result *result) {
    print_rates(arg, name, result);
}

static void print_parts(FILE *out, const struct tune *t) {
    const struct ceilings *c = &t->ceilings;
    fprintf(out, "#\n# alone\n");
    if (c->decode_region > 0)
        fprintf(out, "#   decoder, resize          %11.1f samples/s a worker\n", c->decode_region);
    if (c->copy > 0)
        fprintf(out, "#   copies                   %11.1f MB/s\n", c->copy / 1e6);
    if (t->bus > 0)
        fprintf(out, "#   bus to device 0          %11.1f MB/s\n", t->bus / 1e6);
    for (uint32_t s = 0; s < SIZES; s++) {
        char name[32] = "whole samples";
        double most = 0;
        for (uint32_t d = 0; d < DEPTHS; d++)
            most = MAX(most, t->disk[s][d]);
        if (!(most > 0))
            continue;
        if (sizes[s])
            snprintf(name, sizeof name, "of %" PRIu64 " KiB", sizes[s] >> 10);
        fprintf(out, "#   disk, reads %-13s", name);
        for (uint32_t d = 0; d < DEPTHS; d++)
            fprintf(out, " %9.1f", t->disk[s][d] / 1e6);
        fprintf(out, " MB/s with 1, 4, 16, 64 in flight\n");
    }
}

/* How much of what the cold windows read came from the device: without that they were none. */
static void print_coldness(FILE *out, const struct tune *t) {
    uint64_t in = 0, device = 0;
    for (uint32_t i = 0; i < t->settings; i++) {
        in += t->fresh[i].bytes_in;
        device += t->fresh[i].device;
    }
    if (in)
        fprintf(out, "#   \"disk\": put out of the page cache before; %.0f %% of the bytes then came from the device\n",
                MIN(100.0 * (double)device / (double)in, 100.0));
}

/* The pipeline's keys as lines of a file, with absolute paths. */
static int make_lines(const struct tune *t, const char *name, char *ret, size_t size, struct diag *diag) {
    char cwd[4096];
    cleanup_free char *text = malloc(size + 256);
    struct config config = {0};
    if (!text || !getcwd(cwd, sizeof cwd - 8))
        return diag_set(diag, -ENOMEM, "cannot write the configuration: out of memory, or no working directory");
    int head = snprintf(text, 256, "[pipeline %s]\n", name);
    int r = pipeline_config_print(&t->tuner.scout.setup.pipeline, text + head, size);
    strcat(cwd, "/tune");
    if (r >= 0)
        r = config_parse(text, strlen(text), cwd, &config, diag);
    if (r == 0) {
        r = pipeline_config_print(&config.pipeline[0], ret, size);
        config_deinit(&config);
    }
    for (char *dot; r >= 0 && (dot = strstr(ret, "/./"));) /* "./train" was typed */
        memmove(dot, dot + 2, strlen(dot + 2) + 1);
    return r < 0 ? diag_prefix(diag, "the keys cannot be written as a configuration") : 0;
}

static void print_comment(FILE *out, const char *text) {
    size_t column = 0;
    for (const char *word = text; *word;) {
        size_t length = strcspn(word, " ");
        if (column && column + 1 + length > 118) {
            fputc('\n', out);
            column = 0;
        }
        column += (size_t)fprintf(out, "%s%.*s", column ? " " : "# ", (int)length, word);
        word += length + strspn(word + length, " ");
    }
    fputc('\n', out);
}

static void print_configuration(FILE *out, const struct tune *t, const char *sentence, const char *section) {
    print_comment(out, t->machine);
    print_comment(out, sentence);
    print_comment(out, t->final.verdict.sentence);
    print_workers(out, t);
    fprintf(out, "#\n# with %" PRIu32 " worker%s\n", t->setting.workers, t->setting.workers == 1 ? "" : "s");
    each_setting(t, print_setting, out);
    print_coldness(out, t);
    print_cache(out, t);
    print_parts(out, t);
    fprintf(out, "\n%s", section);
}

static void add_bar(void *arg, const char *name, const struct tune_result *result) {
    struct tune_report *r = arg;
    struct tune_bar *bar = (struct tune_bar *)(uintptr_t)&r->bar[r->bars];
    if (*result->failed)
        return;
    snprintf(bar->name, sizeof bar->name, "%s", name);
    bar->rate = tune_median(&result->rates);
    bar->spread = tune_spread(&result->rates);
    r->bars++;
}

static int write_report(const struct tune *t, const char *sentence, const char *section) {
    struct tune_row row[TUNE_MOST_POINTS];
    struct tune_bar bar[2 * MOST_SETTINGS + 5];
    const char *stage[STAGES];
    char title[256];
    double row_bytes =
        t->final.batch ? (double)t->tuner.scout.consumer.header->payload_bytes / t->tuner.scout.consumer.batch : 0;
    double disk = MAX(t->ceilings.device, 0);
    for (uint32_t d = 0; d < DEPTHS; d++)
        disk = MAX(disk, t->disk[SIZES - 1][d]);
    const struct tune_ceiling ceiling[] = {
        {"decoder alone", t->ceilings.decode_region, 0},
        {"decoder alone, cache", t->cache.rate > 0 ? t->ceilings.cache_decode : 0, 0},
        {"disk alone", 0, t->sample_bytes > 0 ? disk / t->sample_bytes : 0},
        {"copies alone", 0, row_bytes > 0 ? t->ceilings.copy / row_bytes : 0},
        {"bus to the device", 0, row_bytes > 0 ? t->bus / row_bytes : 0},
    };
    static_assert(STAGES == TUNE_STAGES, "names of stages");
    snprintf(title, sizeof title, "loaderctl tune: %.200s", t->options->target);
    for (int i = 0; i < STAGES; i++)
        stage[i] = worker_stage_name((enum worker_stage)i);
    for (uint32_t i = 0; i < t->workers; i++) {
        const struct tune_result *w = &t->worker[i];
        double sum = 0;
        row[i] = (struct tune_row){w->setting.workers, tune_median(&w->rates), tune_spread(&w->rates), {0}};
        for (int s = 0; s < STAGES; s++)
            sum += w->stage[s];
        for (int s = 0; s < STAGES && sum > 0; s++)
            row[i].stage[s] = w->stage[s] / sum;
    }
    struct tune_report report = {.title = title,
                                 .machine = t->machine,
                                 .sentence = sentence,
                                 .row = row,
                                 .rows = t->workers,
                                 .chosen = t->chosen,
                                 .budget = t->budget,
                                 .target = t->target,
                                 .ceiling = ceiling,
                                 .ceilings = ARRAY_SIZE(ceiling),
                                 .bar = bar,
                                 .stage_name = stage,
                                 .section = section};
    if (t->cache.rate > 0)
        report.cache = (struct tune_report_cache){.rate = t->cache.rate,
                                                  .epoch = t->cache.epoch,
                                                  .first = t->cache.first,
                                                  .pays_after = t->cache.pays_after,
                                                  .bytes = t->ceilings.cache_set};
    each_setting(t, add_bar, &report);
    report.high_ms = tune_axis(histogram_percentile_ms(&t->times, 0.99));
    histogram_spread(&t->times, 0, report.high_ms, report.bin, TUNE_BINS);
    FILE *out = fopen(t->options->tune.report, "we");
    if (!out)
        return complain("cannot write the report %s: %s", t->options->tune.report, strerror(errno));
    tune_print_report(out, &report);
    bool failed = ferror(out);
    if (fclose(out) || failed)
        return complain("cannot write the report %s: %s", t->options->tune.report, strerror(errno));
    return 0;
}

static void json_setting(void *arg, const char *name, const struct tune_result *result) {
    bool *any = arg;
    if (*result->failed)
        return;
    printf("%s{\"setting\": ", *any ? ", " : "");
    json_string(stdout, name);
    printf(", \"samples_per_s\": %.3f, \"spread\": %.4f}", tune_median(&result->rates), tune_spread(&result->rates));
    *any = true;
}

static void json_cache(const struct tune *t) {
    const struct tune_cache *c = &t->cache;
    if (!(c->rate > 0)) {
        printf("\"cache\": null, ");
        return;
    }
    printf("\"cache\": {\"samples_per_s\": %.3f, \"gain\": %.4f, \"bytes\": %.0f, \"pictures\": %" PRIu32
           ", \"of\": %" PRIu32 ", ",
           c->rate, c->rate / rate_of(t), t->ceilings.cache_set, t->ceilings.cache_pictures, t->ceilings.cache_of);
    printf("\"epoch_s\": %.6f, \"first_samples_per_s\": %.3f, \"first_epoch_s\": %.6f, \"pays_after\": %.6f}, ",
           c->epoch, c->first_rate, c->first, c->pays_after);
}

static void print_json(const struct tune *t, const char *sentence, const char *section) {
    bool any = false;
    printf("{\"samples_per_s\": %.3f, \"spread\": %.4f, \"workers\": %" PRIu32
           ", \"engine\": \"%s\", \"depth\": %" PRIu32 ", \"slots\": %" PRIu32 ", \"batch\": %" PRIu32 ", ",
           rate_of(t), tune_spread(&t->final.rates), t->setting.workers, t->setting.engine, t->setting.depth,
           t->final.slots, t->final.batch);
    printf("\"in_line\": %.4f, ", t->final.busy > 0 ? MIN(t->final.in_line / t->final.busy, 1.0) : 0);
    printf("\"cpus\": %" PRIu32 ", \"budget\": %" PRIu32
           ", \"cold\": %s, \"dataset_bytes\": %.0f, \"cache_room_bytes\": %.0f, ",
           t->cpus, t->budget, t->cold ? "true" : "false", t->bytes, t->room);
    if (t->target > 0)
        printf("\"target\": %.3f, \"fast_enough\": %s, ", t->target, t->fast_enough ? "true" : "false");
    json_cache(t);
    printf("\"seconds\": %.1f, \"bound_by\": \"%s\", \"verdict\": ", (double)(now_ns() - t->begun_ns) / 1e9,
           verdict_name(t->final.verdict.bound));
    json_string(stdout, t->final.verdict.sentence);
    printf(", \"sweep\": [");
    for (uint32_t i = 0; i < t->workers; i++)
        printf("%s{\"workers\": %" PRIu32 ", \"samples_per_s\": %.3f, \"spread\": %.4f}", i ? ", " : "",
               t->worker[i].setting.workers, tune_median(&t->worker[i].rates), tune_spread(&t->worker[i].rates));
    printf("], \"settings\": [");
    each_setting(t, json_setting, &any);
    printf("], \"decode_region_per_s\": %.3f, \"copy_bytes_per_s\": %.0f, \"bus_bytes_per_s\": %.0f, \"disk\": [",
           t->ceilings.decode_region, t->ceilings.copy, t->bus);
    any = false;
    for (uint32_t s = 0; s < SIZES; s++)
        for (uint32_t d = 0; d < DEPTHS; d++)
            if (t->disk[s][d] > 0) {
                printf("%s{\"read_bytes\": %" PRIu64 ", \"in_flight\": %" PRIu32 ", \"bytes_per_s\": %.0f}",
                       any ? ", " : "", sizes[s] ? sizes[s] : (uint64_t)t->sample_bytes, depths[d], t->disk[s][d]);
                any = true;
            }
    printf("], \"sentence\": ");
    json_string(stdout, sentence);
    printf(", \"configuration\": ");
    json_string(stdout, section);
    printf("}\n");
}

/* ---- the command -------------------------------------------------------------------------------------------------- */

/* A configuration ends a value at its line, and at a blank before a semicolon. */
static int check_text(const char *name, const char *value, struct diag *diag) {
    if (strpbrk(value, "\n\r") || strstr(value, " ;") || strstr(value, "\t;"))
        return diag_set(diag, -EINVAL, "%s: this value cannot be written in a configuration file: %s", name, value);
    return 0;
}

static int check_texts(const struct options *options, struct diag *diag) {
    int r = check_text("the dataset", options->target, diag);
    for (uint32_t i = 0; r == 0 && i < options->nkeys; i++)
        r = check_text(options->keys[i].key, options->keys[i].value, diag);
    return r;
}

static int prepare(struct tune *t, struct diag *diag) {
    struct topology topology;
    struct utsname name;
    char cpus[256] = "";
    int r = check_texts(t->options, diag);
    if (r == 0)
        r = topology_read("", &topology, diag);
    if (r < 0)
        return r;
    t->cpus = topology_workers(&topology);
    topology_describe(&topology, cpus, sizeof cpus);
    topology_deinit(&topology);
    if (uname(&name) == 0)
        snprintf(t->machine, sizeof t->machine, "loaderctl tune %.200s on %.64s, Linux %.64s: %s.", t->options->target,
                 name.nodename, name.release, cpus);
    t->budget = t->most = t->cpus;
    r = t->options->tune.cpu ? tune_budget(t->options->tune.cpu, t->cpus, &t->budget, diag) : 0;
    if (r == 0)
        r = tuner_open(&t->tuner, t->options, diag);
    if (r < 0)
        return r;
    const char *workers = given(t->options, "workers"); /* not more than these */
    if (workers && atoi(workers) > 0)
        t->most = (uint32_t)atoi(workers);
    t->budget = MIN(t->budget, t->most);
    t->target = t->options->tune.target;
    if (t->options->step_ms > 0)
        t->target = 1e3 * t->tuner.scout.consumer.batch / t->options->step_ms;
    return 0;
}

static int write_configuration(const struct tune *t, const char *sentence, const char *section) {
    const char *path = t->options->tune.write;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    FILE *out = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!out) {
        int code = errno;
        if (fd >= 0)
            close(fd);
        return complain("cannot write the configuration %s: %s", path, strerror(code));
    }
    print_configuration(out, t, sentence, section);
    bool failed = ferror(out);
    return fclose(out) || failed ? complain("cannot write the configuration %s: %s", path, strerror(errno)) : 0;
}

static int conclude(const struct tune *t, struct diag *diag) {
    static char lines[64 << 10], section[80 << 10], sentence[2048];
    char name[64];
    const char *given = t->tuner.scout.setup.pipeline.name;
    if (strchr(given, '/') || given[0] == '.' || strchr(given, ':') || target_is_pattern(given))
        tune_name(given, name, sizeof name);
    else
        snprintf(name, sizeof name, "%s", given);
    if (make_lines(t, name, lines, sizeof lines, diag) < 0)
        return complain_diag(diag);
    const struct tune_section values = {.pipeline = name,
                                        .workers = t->setting.workers,
                                        .depth = t->setting.depth ? t->setting.depth : 16,
                                        .batch = t->final.batch,
                                        .slots = t->final.slots,
                                        .engine = t->setting.engine,
                                        .lines = lines};
    FILE *out = fmemopen(section, sizeof section - 1, "w");
    if (!out)
        return complain("out of memory");
    tune_print_section(out, &values);
    fclose(out);
    explain(t, sentence, sizeof sentence);
    int status = 0;
    if (t->options->json)
        print_json(t, sentence, section);
    else
        print_configuration(stdout, t, sentence, section);
    if (t->options->tune.report)
        status = write_report(t, sentence, section);
    if (t->options->tune.write && !status)
        status = write_configuration(t, sentence, section);
    return status ? status : finish_stdout();
}

int command_tune(const struct options *options) {
    struct diag diag = DIAG_INIT;
    struct tune *t = calloc(1, sizeof *t);
    int status = EXIT_FAILED;
    if (!t)
        return complain("out of memory");
    if (options->tune.write && access(options->tune.write, F_OK) == 0) {
        free(t);
        return complain("%s is there already: give --write another name, and compare the two", options->tune.write);
    }
    t->options = options;
    t->tty = isatty(STDERR_FILENO);
    t->begun_ns = now_ns();
    if (prepare(t, &diag) < 0) {
        status = complain_diag(&diag);
    } else {
        engine_catch_interrupt();
        int r = measure_all(t, &diag);
        progress_end(t);
        status = r == -EINTR ? complain("interrupted: nothing is recommended")
                 : r < 0     ? complain_diag(&diag)
                             : conclude(t, &diag);
        tuner_close(&t->tuner);
    }
    free(t);
    return status;
}
