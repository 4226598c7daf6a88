/* SPDX-License-Identifier: MIT */
/*
 * loaderctl bench: pops and releases batches as fast as they come and tells how fast that was, where the workers' time
 * went, and what binds. In-process: no socket, no trainer. It also says what storage had to do, because a figure from
 * the page cache is not one of the disk. One thread beside the workers.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "cache/cache.h"
#include "ceilings.h"
#include "compare.h"
#include "dataset/dataset.h"
#include "decode/decode.h"
#include "histogram.h"
#include "loaderctl.h"
#include "topology.h"

#define SECOND UINT64_C(1000000000)

struct bench {
    struct engine engine;
    const struct options *options;
    struct worker_statistics *before, *after; /* one a worker */
    uint32_t workers;
    /* of the measured part */
    uint64_t begin_ns, end_ns;
    uint64_t batches, samples, bytes_out;
    uint64_t device_before, device_after; /* bytes read from storage by this process */
    bool device_known;
    struct histogram interval, latency;    /* pop to pop; first row claimed to published */
    uint64_t gaps, gap_sum_ns, gap_max_ns; /* from the last batch of an epoch to the first of the next */
    /* of the warm-up */
    uint64_t warm_batches, warm_samples, warm_ns, first_ns;
    uint64_t last_pop_ns;
    uint64_t wait_before_ns, wait_after_ns; /* of the consumer */
    bool last_of_epoch, ended;
    struct session_statistics session_before, session_after;
    struct ceilings ceilings; /* all zero: not measured */
};

/* A number behind "NAME" in a file of /proc. False where there is none. */
static bool read_proc(const char *path, const char *name, uint64_t *ret) {
    char line[256];
    bool found = false;
    FILE *file = fopen(path, "re");
    while (file && !found && fgets(line, sizeof line, file))
        if (strncmp(line, name, strlen(name)) == 0)
            found = sscanf(line + strlen(name), "%" SCNu64, ret) == 1;
    if (file)
        fclose(file);
    return found;
}

static void snapshot(const struct bench *bench, struct worker_statistics *ret) {
    for (uint32_t i = 0; i < bench->workers; i++)
        pool_statistics(bench->engine.pool, i, &ret[i]);
}

static void begin_measuring(struct bench *bench, uint64_t now) {
    snapshot(bench, bench->before);
    session_statistics(bench->engine.session, &bench->session_before);
    bench->begin_ns = now;
    bench->warm_ns = now - bench->engine.started_ns;
    bench->wait_before_ns = bench->engine.consumer.wait_ns;
    bench->device_known = read_proc("/proc/self/io", "read_bytes:", &bench->device_before);
}

static void end_measuring(struct bench *bench) {
    if (!bench->begin_ns)
        begin_measuring(bench, now_ns());
    bench->end_ns = now_ns();
    bench->wait_after_ns = bench->engine.consumer.wait_ns;
    snapshot(bench, bench->after);
    session_statistics(bench->engine.session, &bench->session_after);
    if (!read_proc("/proc/self/io", "read_bytes:", &bench->device_after))
        bench->device_known = false;
}

static void print_progress(const struct bench *bench, uint64_t now, uint64_t *shown_ns, bool tty) {
    if (!tty || now - *shown_ns < SECOND / 2)
        return;
    *shown_ns = now;
    if (!bench->begin_ns) {
        fprintf(stderr, "\r\033[Kwarming up: %" PRIu64 " samples", bench->warm_samples);
        return;
    }
    double seconds = (double)(now - bench->begin_ns) / 1e9;
    fprintf(stderr, "\r\033[K%.1f of %.0f s: %.0f samples/s", seconds, bench->options->seconds,
            seconds > 0 ? (double)bench->samples / seconds : 0);
}

static void count_batch(struct bench *bench, const struct loaderd_batch *batch, uint64_t now) {
    if (bench->last_of_epoch) {
        uint64_t gap = now - bench->last_pop_ns;
        bench->gaps++;
        bench->gap_sum_ns += gap;
        bench->gap_max_ns = MAX(bench->gap_max_ns, gap);
    }
    bench->last_of_epoch = batch->flags & LOADERD_BATCH_LAST;
    if (!bench->begin_ns) {
        if (!bench->warm_batches)
            bench->first_ns = now - bench->engine.started_ns;
        bench->warm_batches++;
        bench->warm_samples += batch->rows;
    } else {
        const struct loaderd_slot_header *slot = engine_slot(&bench->engine, batch);
        bench->batches++;
        bench->samples += batch->rows;
        bench->bytes_out += batch->slot_bytes;
        histogram_add(&bench->interval, now - bench->last_pop_ns);
        histogram_add(&bench->latency, slot->published_ns - slot->claimed_ns);
    }
    bench->last_pop_ns = now;
}

/* The warm-up ends when the ring has been round once and a moment has passed. */
static bool is_warm(const struct bench *bench, uint64_t now) {
    double seconds = (double)(now - bench->engine.started_ns) / 1e9;
    return bench->warm_batches >= bench->engine.consumer.slots && seconds >= MIN(0.5, bench->options->seconds / 10);
}

/* A trainer's step, on some device: this thread has nothing to do meanwhile. */
static void compute(double ms) {
    uint64_t ns = (uint64_t)(ms * 1e6);
    struct timespec t = {.tv_sec = (time_t)(ns / SECOND), .tv_nsec = (long)(ns % SECOND)};
    if (ns)
        nanosleep(&t, NULL);
}

static int measure(struct bench *bench, struct diag *diag) {
    uint64_t length = (uint64_t)(bench->options->seconds * 1e9), shown_ns = 0;
    bool tty = isatty(STDERR_FILENO);
    struct loaderd_batch batch;
    int r;
    while ((r = engine_next(&bench->engine, &batch, diag)) == 1) {
        uint64_t now = now_ns();
        count_batch(bench, &batch, now);
        compute(bench->options->step_ms);
        engine_release(&bench->engine, &batch);
        print_progress(bench, now, &shown_ns, tty);
        if (!bench->begin_ns && is_warm(bench, now))
            begin_measuring(bench, now);
        if ((bench->begin_ns && now - bench->begin_ns >= length) || engine_interrupted)
            break;
    }
    if (tty)
        fputs("\r\033[K", stderr);
    end_measuring(bench);
    bench->ended = r == 0;
    return r == -EINTR ? 0 : MIN(r, 0);
}

/* The figures that both outputs print. */
struct figures {
    double seconds, samples_per_s, batches_per_s, bytes_in_per_s, bytes_out_per_s;
    double stage_s[STAGES], total_s, outside;
    uint64_t bytes_in, bad, damaged, rescues, device, claims;
    uint64_t anonymous, ring_bytes;
    uint64_t cache_hits, cache_misses;
    double quota;
    double starved; /* share of its time that the trainer waited, percent */
    const char *cache;
    struct verdict verdict;
};

static void sum_workers(const struct bench *bench, struct figures *f) {
    for (uint32_t i = 0; i < bench->workers; i++) {
        const struct worker_statistics *a = &bench->after[i], *b = &bench->before[i];
        for (int stage = 0; stage < STAGES; stage++)
            f->stage_s[stage] += (double)(a->stage_ns[stage] - b->stage_ns[stage]) / 1e9;
        f->bytes_in += a->bytes_in - b->bytes_in;
        f->bad += a->bad - b->bad;
        f->damaged += a->damaged - b->damaged;
        f->rescues += a->rescues;
        f->claims += a->claims - b->claims;
    }
    for (int stage = 0; stage < STAGES; stage++)
        f->total_s += f->stage_s[stage];
    double busy = f->total_s - f->stage_s[STAGE_IDLE];
    if (busy > 0)
        f->outside = 100 * (busy - f->stage_s[STAGE_DECODE] - f->stage_s[STAGE_TRANSFORM]) / busy;
}

static void figure(const struct bench *bench, struct figures *f) {
    *f = (struct figures){.seconds = (double)(bench->end_ns - bench->begin_ns) / 1e9, .cache = "unknown"};
    sum_workers(bench, f);
    double seconds = f->seconds > 0 ? f->seconds : 1;
    f->samples_per_s = (double)bench->samples / seconds;
    f->batches_per_s = (double)bench->batches / seconds;
    f->bytes_in_per_s = (double)f->bytes_in / seconds;
    f->bytes_out_per_s = (double)bench->bytes_out / seconds;
    f->device = bench->device_known ? bench->device_after - bench->device_before : 0;
    if (f->bytes_in == 0)
        f->cache = "none";
    else if (bench->device_known)
        f->cache = f->device < f->bytes_in / 20 ? "warm" : f->device < f->bytes_in / 2 ? "mixed" : "cold";
    f->quota = pool_topology(bench->engine.pool)->quota;
    if (read_proc("/proc/self/status", "RssAnon:", &f->anonymous))
        f->anonymous *= 1024;
    f->ring_bytes = bench->engine.consumer.data_bytes;
    f->cache_hits = bench->session_after.cache_hits - bench->session_before.cache_hits;
    f->cache_misses = bench->session_after.cache_misses - bench->session_before.cache_misses;
    f->starved = 100 * (double)(bench->wait_after_ns - bench->wait_before_ns) / 1e9 / seconds;
    /* without a step of its own the trainer waits all the time: that says nothing */
    double wait = bench->options->step_ms > 0 ? f->starved / 100 : -1;
    pool_verdict(bench->before, bench->after, bench->workers, wait, &f->verdict);
}

static struct reached reached_of(const struct figures *f) {
    return (struct reached){.samples_per_s = f->samples_per_s,
                            .bytes_in_per_s = f->bytes_in_per_s,
                            .bytes_out_per_s = f->bytes_out_per_s,
                            .claims_per_s = f->seconds > 0 ? (double)f->claims / f->seconds : 0,
                            .cold = strcmp(f->cache, "cold") == 0};
}

static void print_worker_json(const struct bench *bench, uint32_t worker) {
    const struct worker_statistics *a = &bench->after[worker], *b = &bench->before[worker];
    printf("%s{\"cpu\": %d, \"samples\": %" PRIu64 ", \"stages\": {", worker ? ", " : "", a->cpu,
           a->samples - b->samples);
    for (int stage = 0; stage < STAGES; stage++)
        printf("%s\"%s\": %.6f", stage ? ", " : "", worker_stage_name((enum worker_stage)stage),
               (double)(a->stage_ns[stage] - b->stage_ns[stage]) / 1e9);
    printf("}}");
}

/* Of the caches that this process has, one or none: since it was opened. */
static void print_cache_json(void *arg, const struct cache_statistics *c) {
    (void)arg;
    printf("\"cache\": {\"place\": ");
    json_string(stdout, c->place);
    printf(", \"hits\": %" PRIu64 ", \"misses\": %" PRIu64 ", \"entries\": %" PRIu64 ", \"filled\": %" PRIu64
           ", \"refused\": %" PRIu64 ", \"dropped\": %" PRIu64 ", ",
           c->hits, c->misses, c->entries, c->filled, c->refused, c->dropped);
    printf("\"used_bytes\": %" PRIu64 ", \"capacity_bytes\": %" PRIu64 ", \"record_bytes\": %" PRIu64
           ", \"index_bytes\": %" PRIu64 ", \"fill_s\": %.6f}, ",
           c->used, c->capacity, c->record_bytes, c->index_bytes, (double)c->fill_ns / 1e9);
}

static void print_cache_text(void *arg, const struct cache_statistics *c) {
    const struct figures *f = arg;
    uint64_t all = f->cache_hits + f->cache_misses;
    printf("cache          %.1f %% of %" PRIu64 " JPEGs came from %s; it has %" PRIu64 " entries of %.1f MB%s\n",
           all ? 100 * (double)f->cache_hits / (double)all : 0, all, c->place, c->entries,
           (double)c->record_bytes / 1e6,
           c->failed ? ", and takes no more: it cannot be written"
           : c->full ? ", and is full"
                     : "");
    printf("               %" PRIu64 " were made in %.2f s, %" PRIu64 " cannot be, %" PRIu64
           " were damaged; its index takes %.1f MB\n",
           c->filled, (double)c->fill_ns / 1e9, c->refused, c->dropped, (double)c->index_bytes / 1e6);
}

static void print_json(const struct bench *bench, const struct figures *f) {
    const struct pool *pool = bench->engine.pool;
    const struct consumer *consumer = &bench->engine.consumer;
    printf("{\"samples_per_s\": %.3f, \"batches_per_s\": %.3f, \"bytes_per_s\": %.0f, ", f->samples_per_s,
           f->batches_per_s, f->bytes_out_per_s);
    printf("\"bytes_in_per_s\": %.0f, \"bytes_out_per_s\": %.0f, ", f->bytes_in_per_s, f->bytes_out_per_s);
    printf("\"seconds\": %.6f, \"samples\": %" PRIu64 ", \"batches\": %" PRIu64 ", ", f->seconds, bench->samples,
           bench->batches);
    printf("\"batch\": %" PRIu32 ", \"slots\": %" PRIu32 ", \"workers\": %" PRIu32 ", \"depth\": %" PRIu32
           ", \"engine\": ",
           consumer->batch, consumer->slots, bench->workers, pool_depth(pool));
    json_string(stdout, pool_engine(pool));
    printf(", \"bound_by\": ");
    json_string(stdout, verdict_name(f->verdict.bound));
    printf(", \"verdict\": ");
    json_string(stdout, f->verdict.sentence);
    printf(", \"stages\": {");
    for (int stage = 0; stage < STAGES; stage++)
        printf("%s\"%s\": %.6f", stage ? ", " : "", worker_stage_name((enum worker_stage)stage), f->stage_s[stage]);
    printf("}, \"outside_decode_transform_percent\": %.3f, ", f->outside);
    printf("\"ms_per_batch\": {\"mean\": %.6f, \"p50\": %.6f, \"p99\": %.6f, \"max\": %.6f}, ",
           histogram_mean_ms(&bench->interval), histogram_percentile_ms(&bench->interval, 0.5),
           histogram_percentile_ms(&bench->interval, 0.99), (double)bench->interval.maximum / 1e6);
    printf("\"fill_ms\": {\"mean\": %.6f, \"p50\": %.6f, \"p99\": %.6f}, ", histogram_mean_ms(&bench->latency),
           histogram_percentile_ms(&bench->latency, 0.5), histogram_percentile_ms(&bench->latency, 0.99));
    if (bench->options->step_ms > 0)
        printf("\"step_ms\": %g, \"starved_percent\": %.3f, ", bench->options->step_ms, f->starved);
    printf("\"open_ms\": %.3f, \"ring_ms\": %.3f, \"first_batch_ms\": %.3f, ", (double)bench->engine.open_ns / 1e6,
           (double)bench->engine.session_ns / 1e6, (double)bench->first_ns / 1e6);
    printf("\"epoch_gap_ms\": {\"gaps\": %" PRIu64 ", \"mean\": %.6f, \"max\": %.6f}, ", bench->gaps,
           bench->gaps ? (double)bench->gap_sum_ns / (double)bench->gaps / 1e6 : 0, (double)bench->gap_max_ns / 1e6);
    printf("\"warmup\": {\"seconds\": %.6f, \"samples\": %" PRIu64 "}, ", (double)bench->warm_ns / 1e9,
           bench->warm_samples);
    printf("\"page_cache\": \"%s\", \"device_bytes\": %" PRIu64 ", \"bytes_in\": %" PRIu64 ", ", f->cache, f->device,
           f->bytes_in);
    printf("\"bad\": %" PRIu64 ", \"damaged\": %" PRIu64 ", \"rescues\": %" PRIu64 ", ", f->bad, f->damaged,
           f->rescues + consumer->rescues);
    printf("\"cpu_quota\": %.3f, \"anonymous_bytes\": %" PRIu64 ", \"ring_bytes\": %" PRIu64 ", \"interrupted\": %s, ",
           f->quota, f->anonymous, f->ring_bytes, engine_interrupted ? "true" : "false");
    cache_each(print_cache_json, NULL);
    const struct reached reached = reached_of(f);
    printf("\"codec\": ");
    json_string(stdout, decode_version(0));
    printf(", \"ceilings\": ");
    ceilings_print_json(&bench->ceilings, &reached);
    printf(", \"per_worker\": [");
    for (uint32_t i = 0; i < bench->workers; i++)
        print_worker_json(bench, i);
    printf("]}\n");
}

static void print_workers(const struct bench *bench, const struct figures *f) {
    printf("worker   cpu  samples/s");
    for (int stage = 0; stage < STAGES; stage++)
        printf(" %10s", worker_stage_name((enum worker_stage)stage));
    printf("   %% of its time\n");
    for (uint32_t i = 0; i < bench->workers; i++) {
        const struct worker_statistics *a = &bench->after[i], *b = &bench->before[i];
        double total = 0;
        for (int stage = 0; stage < STAGES; stage++)
            total += (double)(a->stage_ns[stage] - b->stage_ns[stage]);
        printf("%6" PRIu32 " %5d %10.1f", i, a->cpu,
               (double)(a->samples - b->samples) / (f->seconds > 0 ? f->seconds : 1));
        for (int stage = 0; stage < STAGES; stage++)
            printf(" %10.1f", total > 0 ? 100 * (double)(a->stage_ns[stage] - b->stage_ns[stage]) / total : 0);
        printf("\n");
    }
    printf("   all       %10.1f", f->samples_per_s);
    for (int stage = 0; stage < STAGES; stage++)
        printf(" %10.1f", f->total_s > 0 ? 100 * f->stage_s[stage] / f->total_s : 0);
    printf("\n\n");
}

static void print_storage(const struct figures *f) {
    if (f->bytes_in == 0)
        printf("storage        nothing was read\n");
    else if (strcmp(f->cache, "unknown") == 0)
        printf("storage        what the device read is not known here: the page cache may have served this\n");
    else
        printf("storage        %.1f MB read, of that %.1f MB from the device: the page cache was %s\n",
               (double)f->bytes_in / 1e6, (double)f->device / 1e6, f->cache);
}

#define STARVING 2 /* percent of its time that a trainer waits before it is worth a word */

static void print_trainer(const struct bench *bench, const struct figures *f) {
    double step_ms = bench->options->step_ms, batch = bench->engine.consumer.batch;
    if (!(step_ms > 0))
        return;
    if (f->starved >= STARVING)
        printf("a trainer of %g ms a step would starve %.1f %% of its time, on %s: %.1f of %.1f samples/s\n", step_ms,
               f->starved, verdict_name(f->verdict.bound), f->samples_per_s, 1e3 * batch / step_ms);
    else
        printf("a trainer of %g ms a step would not starve: it waited %.1f %% of its time for data\n", step_ms,
               f->starved);
}

static void print_text(const struct bench *bench, const struct figures *f) {
    const struct consumer *consumer = &bench->engine.consumer;
    printf("samples/s      %.1f\n", f->samples_per_s);
    printf("batches/s      %.2f of %" PRIu32 "\n", f->batches_per_s, consumer->batch);
    printf("bytes/s        %.1f MB in, %.1f MB out\n", f->bytes_in_per_s / 1e6, f->bytes_out_per_s / 1e6);
    printf("ms a batch     %.3f mean, %.3f p50, %.3f p99\n", histogram_mean_ms(&bench->interval),
           histogram_percentile_ms(&bench->interval, 0.5), histogram_percentile_ms(&bench->interval, 0.99));
    printf("ms to fill one %.3f mean, %.3f p50, %.3f p99\n", histogram_mean_ms(&bench->latency),
           histogram_percentile_ms(&bench->latency, 0.5), histogram_percentile_ms(&bench->latency, 0.99));
    printf("first batch    %.1f ms after %.1f ms to open the dataset (%s)\n", (double)bench->first_ns / 1e6,
           (double)bench->engine.open_ns / 1e6, dataset_index_note(pipeline_dataset(bench->engine.pipeline)));
    if (bench->gaps)
        printf("epoch change   %.3f ms mean, %.3f ms max from last to first batch, %" PRIu64 " times\n",
               (double)bench->gap_sum_ns / (double)bench->gaps / 1e6, (double)bench->gap_max_ns / 1e6, bench->gaps);
    printf("measured       %.2f s, %" PRIu64 " samples, after %.2f s and %" PRIu64 " samples of warm-up%s\n",
           f->seconds, bench->samples, (double)bench->warm_ns / 1e9, bench->warm_samples,
           engine_interrupted ? "; interrupted" : "");
    print_storage(f);
    cache_each(print_cache_text, (void *)(uintptr_t)f);
    printf("engine         %s, %" PRIu32 " reads in flight a worker\n", pool_engine(bench->engine.pool),
           pool_depth(bench->engine.pool));
    if (f->quota > 0)
        printf("CPU quota      %.2f CPUs\n", f->quota);
    printf("memory         %.1f MB anonymous, ring of %" PRIu32 " slots %.1f MB\n", (double)f->anonymous / 1e6,
           consumer->slots, (double)f->ring_bytes / 1e6);
    if (f->bad || f->damaged)
        printf("bad samples    %" PRIu64 " bad, %" PRIu64 " damaged\n", f->bad, f->damaged);
    if (f->rescues + consumer->rescues)
        printf("rescues        %" PRIu64 ": wake-ups were lost\n", f->rescues + consumer->rescues);
    printf("\n");
    print_workers(bench, f);
    const struct reached reached = reached_of(f);
    ceilings_print_text(&bench->ceilings, &reached);
    printf("codec %s\n", decode_version(0));
    printf("outside decode and transform: %.1f %% of the workers' busy time\n", f->outside);
    print_trainer(bench, f);
    printf("%s\n", f->verdict.sentence);
}

static void measure_ceilings(struct bench *bench) {
    ceilings_measure(&bench->engine, CLAMP(bench->options->seconds / 10, 0.05, 0.5), &bench->ceilings);
}

static int run_ceilings(struct bench *bench) {
    const struct reached nothing = {0};
    measure_ceilings(bench);
    if (bench->options->json) {
        printf("{\"codec\": ");
        json_string(stdout, decode_version(0));
        printf(", \"ceilings\": ");
        ceilings_print_json(&bench->ceilings, &nothing);
        printf("}\n");
    } else {
        ceilings_print_text(&bench->ceilings, &nothing);
        printf("codec %s\n", decode_version(0));
    }
    return finish_stdout();
}

static int run(struct bench *bench) {
    struct diag diag = DIAG_INIT;
    struct figures figures;
    bench->workers = pool_workers(bench->engine.pool);
    bench->before = calloc(bench->workers, sizeof *bench->before);
    bench->after = calloc(bench->workers, sizeof *bench->after);
    if (!bench->before || !bench->after)
        return complain("out of memory");
    engine_catch_interrupt();
    if (measure(bench, &diag) < 0)
        return complain_diag(&diag);
    if (bench->ended)
        remark("the last batch came after %" PRIu64 " batches", bench->warm_batches + bench->batches);
    if (!bench->batches)
        remark("no batch was measured: nothing but the warm-up of %" PRIu64 " samples came in that time",
               bench->warm_samples);
    figure(bench, &figures);
    if (!engine_interrupted)
        measure_ceilings(bench);
    if (bench->options->json)
        print_json(bench, &figures);
    else
        print_text(bench, &figures);
    return finish_stdout();
}

static int read_side(const char *path, struct compare_side *ret, struct diag *diag) {
    cleanup_free char *text = NULL;
    size_t length = 0, room = 0;
    FILE *file = fopen(path, "re");
    if (!file)
        return diag_set(diag, -errno, "cannot open %s: %s", path, strerror(errno));
    ssize_t n = getdelim(&text, &room, '\0', file);
    length = n > 0 ? (size_t)n : 0;
    fclose(file);
    return compare_read(text ? text : "", length, path, ret, diag);
}

static int compare(const struct options *options) {
    struct diag diag = DIAG_INIT;
    struct compare_side a, b;
    if (read_side(options->target, &a, &diag) < 0 || read_side(options->second, &b, &diag) < 0)
        return complain_diag(&diag);
    compare_print(&a, &b, options->target, options->second, stdout);
    return finish_stdout();
}

int command_bench(const struct options *options) {
    struct diag diag = DIAG_INIT;
    const struct engine_range range = {.epoch = options->epoch};
    if (options->compare)
        return compare(options);
    if (options->device >= 0)
        return bench_device(options);
    if (options->finish || options->buffers) {
        complain("--finish and --buffers are for --device");
        return EXIT_USAGE;
    }
    struct bench *bench = calloc(1, sizeof *bench);
    if (!bench)
        return complain("out of memory");
    bench->options = options;
    int status;
    if (engine_open(&bench->engine, options, &range, &diag) < 0) {
        status = complain_diag(&diag);
    } else {
        status = options->ceilings ? run_ceilings(bench) : run(bench);
        engine_close(&bench->engine);
    }
    free(bench->before);
    free(bench->after);
    free(bench);
    return status;
}
