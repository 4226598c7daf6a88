/* SPDX-License-Identifier: MIT */
/* What parts of a pipeline can do alone: see ceilings.h. Uses the stages themselves, without the worker around them. */
#include "ceilings.h"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/copy.h"
#include "bijection.h"
#include "base/random.h"
#include "base/util.h"
#include "dataset/dataset.h"
#include "decode/coefficients.h"
#include "decode/decode.h"
#include "read/read.h"
#include "ring.h"
#include "fill.h"
#include "session.h"
#include "topology.h"
#include "transform/transform.h"

#define PICTURES 256u /* that the decode loop goes round */
#define PICTURE_BYTES (64u << 20)
#define RECORDS 64u              /* of them, made as a cache would */
#define SCATTER 8191             /* a prime, so that its multiples take each of fewer places */
#define LEAST_COPIED (64u << 20) /* bytes that all copies take from: as many as the dataset gives, ... */
#define MOST_COPIED (1u << 30)   /* ... within these; processors have caches of several hundred MiB */
#define COPY_WINDOW 0.06         /* seconds of each of nine, at least: a large ring is written once or more */
#define FILES 256u               /* opened for device reads, of a folder */
#define FINISH_MOST_S 30         /* that workers get to finish what they do */

/* Runs where and as a worker does, so that other load meets both alike. */
static void be_worker(int cpu) {
    if (cpu >= 0)
        topology_pin((uint32_t)cpu);
    topology_batch();
}

static int cpu_of(const struct engine *engine, uint32_t worker) {
    const struct topology *topology = pool_topology(engine->pool);
    return engine->setup.config.daemon.pin ? (int)topology_worker_cpu(topology, worker, pool_workers(engine->pool))->id
                                           : -1;
}

static double seconds_since(uint64_t begun) {
    return (double)(now_ns() - begun) / 1e9;
}

/* ---- decode --------------------------------------------------------------------------------------------------- */

struct sample {
    uint8_t *bytes;
    size_t length;
    uint64_t position;
};

struct decode_loop {
    const struct session *session;
    const struct recipe *recipe;
    struct decoder *decoder;
    struct transform *transform;
    struct sample sample[PICTURES];
    uint32_t count;
    struct sample plain[RECORDS], record[RECORDS]; /* those that a cache can hold (borrowed), and what it would */
    uint32_t records;
    void *row;
};

/* The picture whose geometry the others follow. */
static const struct recipe *leading_picture(const struct session *s) {
    for (uint32_t i = 0; i < s->nfields; i++)
        if (s->recipe[i].kind == RECIPE_PICTURE && !s->recipe[i].follows)
            return &s->recipe[i];
    return NULL;
}

/* Reads pictures from all parts of the dataset, in a scattered order: the first of them are like all. Where in its part
 * each one lies varies, since datasets may have periods. */
static void load_samples(struct decode_loop *loop, uint64_t max_bytes) {
    const struct dataset *dataset = loop->session->dataset;
    const struct read_options options = {.engine = READ_PREAD, .depth = 1, .max_bytes = max_bytes};
    uint64_t samples = dataset_samples(dataset), wanted = MIN(samples, PICTURES), total = 0;
    struct reader *reader;
    if (reader_new(&options, &reader, NULL) < 0)
        return;
    for (uint64_t i = 0; i < wanted && total < PICTURE_BYTES; i++) {
        struct location location;
        struct read_result result;
        uint64_t part = samples / wanted, within = (i * UINT64_C(0x9E3779B97F4A7C15) >> 32) % part;
        uint64_t position = part * (i * SCATTER % wanted) + within;
        dataset_locate(dataset, position, &location);
        reader_submit(reader, &(struct read_request){.extent = location.extent[loop->recipe->extent]});
        if (reader_reap(reader, UINT64_C(1000000000), &result) == 1 && result.error == 0) {
            struct sample *sample = &loop->sample[loop->count];
            *sample = (struct sample){malloc(result.length + 1), result.length, position};
            if (sample->bytes) {
                memcpy(sample->bytes, result.bytes, result.length);
                loop->count++;
                total += result.length;
            }
        }
        reader_done(reader, 0, NULL);
    }
    reader_free(reader);
}

static bool decode_one(struct decode_loop *loop, const struct sample *sample, bool whole) {
    const struct transform_spec *spec = &loop->recipe->spec;
    const struct random_key key = {loop->session->order.seed, 0, sample->position};
    struct transform_geometry geometry;
    struct decode_info info;
    struct diag diag = DIAG_INIT;
    struct box region;
    if (decoder_open(loop->decoder, sample->bytes, sample->length, &info, &diag) == DECODE_BAD)
        return false;
    if (loop->session->orient)
        decoder_orient(loop->decoder, &info);
    transform_geometry(spec, info.width, info.height, &key, &geometry);
    transform_region(spec, &geometry, &region);
    if (whole)
        region = (struct box){0, 0, info.width, info.height};
    struct picture picture = {.width = region.width, .height = region.height, .channels = spec->channels};
    picture.pixels = transform_pixels(loop->transform, region.width, region.height, spec->channels, &picture.stride);
    bool good = picture.pixels && decoder_read(loop->decoder, spec->channels, &region, &picture, &diag) != DECODE_BAD &&
                transform_apply(loop->transform, spec, &geometry, &region, &picture, loop->row, &diag) == 0;
    decoder_close(loop->decoder);
    return good;
}

/* One of two ways to decode the same pictures. */
struct way {
    const struct sample *sample;
    bool whole;
    double *rate; /* samples a second; stays 0 where a picture is bad */
};

/* Picture after picture by both ways, so that other load meets them alike, for so long. */
static void compare_ways(struct decode_loop *loop, const struct way way[2], uint32_t count, double seconds) {
    uint64_t spent[2] = {0}, done[2] = {0}, tried = 0;
    for (uint32_t i = 0; count && (double)(spent[0] + spent[1]) < seconds * 1e9; i = (i + 1) % count) {
        uint64_t mark = now_ns();
        for (int k = 0; k < 2; k++) {
            done[k] += decode_one(loop, &way[k].sample[i], way[k].whole);
            uint64_t now = now_ns();
            spent[k] += now - mark;
            mark = now;
        }
        if (done[0] + done[1] < 2 * ++tried)
            return;
    }
    for (int k = 0; k < 2 && tried; k++)
        *way[k].rate = (double)tried * 1e9 / (double)spent[k];
}

/* Makes the records that a cache would hold. */
static void make_records(struct decode_loop *loop, struct ceilings *ret) {
    const struct coefficients_options options = {.max_pixels = FILL_MOST_PIXELS};
    struct coefficients_encoder *encoder;
    double plain = 0, records = 0;
    if (coefficients_encoder_new(&encoder) < 0)
        return;
    uint64_t begun = now_ns();
    uint32_t tried = MIN(loop->count, RECORDS);
    for (uint32_t i = 0; i < tried; i++) {
        const struct sample *sample = &loop->sample[i];
        struct sample *record = &loop->record[loop->records];
        const uint8_t *bytes;
        if (sample->length > FILL_QUEUE_BYTES || strcmp(decode_sniff(sample->bytes, sample->length), "JPEG") != 0 ||
            coefficients_encode(encoder, sample->bytes, sample->length, &options, &bytes, &record->length, NULL) < 0)
            continue;
        record->position = sample->position;
        record->bytes = malloc(record->length);
        if (!record->bytes)
            break;
        memcpy(record->bytes, bytes, record->length);
        plain += (double)sample->length;
        records += (double)record->length;
        loop->plain[loop->records++] = *sample;
    }
    coefficients_encoder_free(encoder);
    if (!loop->records)
        return;
    ret->cache_of = tried;
    ret->cache_pictures = loop->records;
    ret->cache_encode_s = seconds_since(begun) / loop->records;
    ret->cache_bytes = records / plain;
    ret->cache_set = records / tried * (double)dataset_samples(loop->session->dataset);
}

static void decode_loop_free(struct decode_loop *loop) {
    if (!loop)
        return;
    decoder_free(loop->decoder);
    transform_free(loop->transform);
    free(loop->row);
    free(loop);
}

/* Without samples; NULL: no memory, or the pipeline has no pictures. */
static struct decode_loop *decode_loop_new(const struct engine *engine) {
    const struct daemon_config *d = &engine->setup.config.daemon;
    const struct decode_limits limits = {.max_pixels = d->max_pixels, .max_scans = d->max_scans};
    struct decode_loop *loop = calloc(1, sizeof *loop);
    if (!loop)
        return NULL;
    loop->session = engine->session;
    loop->recipe = leading_picture(engine->session);
    if (loop->recipe && decoder_new(&limits, &loop->decoder) == 0 &&
        transform_new(d->max_pixels, &loop->transform) == 0 &&
        (loop->row = malloc(transform_row_bytes(&loop->recipe->spec))))
        return loop;
    decode_loop_free(loop);
    return NULL;
}

struct decode_job {
    const struct engine *engine;
    double seconds;
    struct ceilings *ret;
    struct decode_loop *loop;
};

static void *measure_decode(void *arg) {
    const struct decode_job *job = arg;
    struct decode_loop *loop = job->loop;
    struct ceilings *ret = job->ret;
    be_worker(cpu_of(job->engine, 0));
    load_samples(loop, job->engine->setup.config.daemon.max_sample_bytes);
    compare_ways(loop,
                 (struct way[2]){{loop->sample, true, &ret->decode_full}, {loop->sample, false, &ret->decode_region}},
                 loop->count, job->seconds);
    make_records(loop, ret);
    compare_ways(loop,
                 (struct way[2]){{loop->plain, false, &ret->cache_plain}, {loop->record, false, &ret->cache_decode}},
                 loop->records, job->seconds);
    return NULL;
}

/* ---- threads that do one thing -------------------------------------------------------------------------------- */

struct runner {
    _Alignas(64) uint64_t done; /* bytes, or crops */
    double seconds;
    struct decode_loop *decode;
    const struct copy_twin *twin;
    uint8_t *memory; /* the copies' destination */
    const uint8_t *source;
    size_t memory_bytes, source_bytes, piece;
    uint32_t *place, places; /* of the sources, those that no other thread takes: once each in a pass */
    uint32_t number;
    pthread_t thread;
    int cpu;
    /* device reads */
    struct reader *reader;
    struct source_file *file;
    const struct extent *extent;
    uint32_t extents, depth;
};

/* Runs f on all; what they have done a second, summed. */
static double run_all(struct runner *runner, uint32_t count, void *(*f)(void *)) {
    uint32_t started = 0;
    double sum = 0;
    for (; started < count; started++)
        if (pthread_create(&runner[started].thread, NULL, f, &runner[started]) != 0)
            break;
    for (uint32_t i = 0; i < started; i++) {
        pthread_join(runner[i].thread, NULL);
        if (runner[i].seconds > 0)
            sum += (double)runner[i].done / runner[i].seconds;
    }
    return started == count ? sum : 0;
}

/* ---- decoders together ------------------------------------------------------------------------------------------ */

static void *decode_crops(void *arg) {
    struct runner *r = arg;
    struct decode_loop *loop = r->decode;
    double limit = r->seconds;
    be_worker(r->cpu);
    uint64_t begun = now_ns(), n = 0;
    while (seconds_since(begun) < limit && decode_one(loop, &loop->sample[(n + r->number) % loop->count], false))
        n++;
    r->done = n;
    r->seconds = seconds_since(begun);
    return NULL;
}

/* The crops of the same pictures by all workers at once: what they share (clocks, caches, memory) is theirs then. */
static void measure_together(const struct engine *engine, const struct decode_loop *first, double seconds,
                             struct ceilings *ret) {
    struct runner *runner = aligned_alloc(64, ret->workers * sizeof *runner);
    uint32_t made = 0;
    for (; runner && first->count && made < ret->workers; made++) {
        struct decode_loop *loop = decode_loop_new(engine);
        if (!loop)
            break;
        memcpy(loop->sample, first->sample, sizeof loop->sample);
        loop->count = first->count;
        runner[made] = (struct runner){.decode = loop,
                                       .number = made * first->count / ret->workers,
                                       .seconds = seconds,
                                       .cpu = cpu_of(engine, made)};
    }
    if (made == ret->workers && ret->decode_region > 0)
        ret->decode_together = run_all(runner, made, decode_crops);
    while (made > 0)
        decode_loop_free(runner[--made].decode);
    free(runner);
}

static void measure_pictures(const struct engine *engine, double seconds, struct ceilings *ret) {
    struct decode_job job = {engine, seconds, ret, decode_loop_new(engine)};
    pthread_t thread;
    if (!job.loop)
        return;
    if (pthread_create(&thread, NULL, measure_decode, &job) == 0) {
        pthread_join(thread, NULL);
        measure_together(engine, job.loop, seconds / 2, ret);
    }
    for (uint32_t i = 0; i < job.loop->count; i++)
        free(job.loop->sample[i].bytes);
    for (uint32_t i = 0; i < job.loop->records; i++)
        free(job.loop->record[i].bytes);
    decode_loop_free(job.loop);
}

/* ---- copies ---------------------------------------------------------------------------------------------------- */

/* Fisher and Yates: cheaper than a bijection, which would count as copying. */
static void shuffle_places(struct runner *r, uint64_t *random) {
    for (uint32_t i = r->places; i > 1; i--) {
        uint32_t other = (uint32_t)bijection_below(bijection_mix(++*random), i), place = r->place[i - 1];
        r->place[i - 1] = r->place[other];
        r->place[other] = place;
    }
}

/* Copies for so long, the next piece being number n; returns that after the last. Every source once and in another order in
 * each pass, as an epoch takes records, so that caches keep as much of them; destinations in a row, as slots are. */
static uint64_t copy_for(struct runner *r, double seconds, uint64_t n, uint64_t *random) {
    uint64_t targets = r->memory_bytes / r->piece, begun = now_ns();
    do {
        if (n % r->places == 0)
            shuffle_places(r, random);
        r->twin->copy(r->memory + n % targets * r->piece, r->source + r->place[n % r->places] * r->piece, r->piece);
        n++;
    } while (n % 8 || seconds_since(begun) < seconds);
    return n;
}

static void *copy_pieces(void *arg) {
    struct runner *r = arg;
    uint64_t random = (uint64_t)r->number << 32;
    be_worker(r->cpu);
    /* not counted: what another twin left in the caches, dirty lines of the destination above all, is written back now */
    uint64_t first = copy_for(r, r->seconds / 2, 0, &random), begun = now_ns();
    uint64_t end = copy_for(r, r->seconds, first, &random);
    r->done = (end - first) * r->piece;
    r->seconds = seconds_since(begun);
    return NULL;
}

/* Shared memory, whose pages are as large as those of files and rings; NULL: none to be had. */
static uint8_t *copy_memory(size_t bytes) {
    int fd = memfd_create("loaderctl-copy", MFD_CLOEXEC);
    void *memory = fd >= 0 && ftruncate(fd, (off_t)bytes) == 0
                       ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0)
                       : MAP_FAILED;
    if (fd >= 0)
        close(fd);
    return memory == MAP_FAILED ? NULL : memory;
}

/* As many bytes as the pipeline takes from, so that processors' caches help both alike; at most an eighth of the memory. */
static size_t bytes_copied(const struct engine *engine, uint64_t row) {
    uint64_t all, memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    if (!mul_u64(row, dataset_samples(engine->session->dataset), &all))
        all = MOST_COPIED;
    memory = MIN(memory, pool_topology(engine->pool)->memory_limit);
    return (size_t)CLAMP(MIN(all, memory / 8), LEAST_COPIED, MOST_COPIED);
}

/* Deals the sources out to `count` threads, of which this is one. */
static bool take_places(struct runner *r, uint32_t count) {
    uint32_t sources = (uint32_t)(r->source_bytes / r->piece);
    r->places = MAX(sources / count, 1u);
    r->place = calloc(r->places, sizeof *r->place);
    for (uint32_t i = 0; r->place && i < r->places; i++)
        r->place[i] = (i * count + r->number) % sources;
    return r->place != NULL;
}

static double middle(double a, double b, double c) {
    return MAX(MIN(a, b), MIN(MAX(a, b), c));
}

static void measure_copy(const struct engine *engine, double seconds, struct ceilings *ret) {
    uint64_t row = engine->consumer.header->payload_bytes / MAX(engine->consumer.batch, 1u);
    size_t piece = CLAMP(row / 64 * 64, 4096u, 8u << 20), source_bytes = bytes_copied(engine, row);
    uint64_t slots = engine->consumer.slots * engine->consumer.slot_stride;
    size_t memory_bytes = (size_t)CLAMP(slots / ret->workers, 2u * piece, MOST_COPIED);
    const struct copy_twin *twin;
    size_t twins = copy_twins(&twin);
    struct runner *runner = aligned_alloc(64, ret->workers * sizeof *runner);
    uint8_t *source = runner ? copy_memory(source_bytes) : NULL;
    uint32_t made = 0;
    for (; source && made < ret->workers; made++) {
        runner[made] = (struct runner){.piece = piece,
                                       .number = made,
                                       .cpu = cpu_of(engine, made),
                                       .source = source,
                                       .source_bytes = source_bytes,
                                       .memory_bytes = memory_bytes};
        if (!take_places(&runner[made], ret->workers))
            break;
        if (!(runner[made].memory = copy_memory(memory_bytes))) {
            free(runner[made].place);
            break;
        }
    }
    double rate[3][COPY_TWINS];
    for (size_t k = 0; made == ret->workers && k < 3 * twins; k++) { /* in turns */
        for (uint32_t i = 0; i < ret->workers; i++) {
            runner[i].twin = &twin[k % twins];
            runner[i].seconds = MAX(seconds / (double)(3 * twins), COPY_WINDOW);
        }
        rate[k / twins][k % twins] = run_all(runner, ret->workers, copy_pieces);
    }
    for (size_t t = 0; made == ret->workers && t < twins; t++) {
        double typical = middle(rate[0][t], rate[1][t], rate[2][t]);
        if (typical > ret->copy) {
            ret->copy = typical;
            ret->copy_name = twin[t].name;
        }
    }
    while (made > 0) {
        munmap(runner[--made].memory, memory_bytes);
        free(runner[made].place);
    }
    if (source)
        munmap(source, source_bytes);
    free(runner);
}

/* ---- device ---------------------------------------------------------------------------------------------------- */

/* The extents to read: of source files as they are; files of a folder are opened and read in whole. */
struct device_reads {
    struct source_file file[FILES];
    uint32_t files;
    struct extent extent[4096];
    uint32_t extents;
};

static void add_path(struct device_reads *reads, const struct extent *extent) {
    struct source_file *file = &reads->file[reads->files];
    struct stat st;
    int fd = reads->files < FILES ? openat(extent->dirfd, extent->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size == 0) {
        if (fd >= 0)
            close(fd);
        return;
    }
    *file = (struct source_file){
        .path = (char *)(uintptr_t)extent->path,
        .fd = fd,
        .identity = {st.st_dev, st.st_ino, (uint64_t)st.st_size,
                     st.st_mtim.tv_sec * INT64_C(1000000000) + st.st_mtim.tv_nsec},
    };
    reads->files++;
    reads->extent[reads->extents++] = (struct extent){.file = file, .dirfd = -1, .length = file->identity.size};
}

static void choose_reads(struct device_reads *reads, const struct dataset *dataset) {
    uint64_t samples = dataset_samples(dataset), state = 1;
    for (uint32_t i = 0; i < 2048 && reads->extents + MAX_EXTENTS <= ARRAY_SIZE(reads->extent); i++) {
        struct location location;
        state = state * UINT64_C(6364136223846793005) + 1442695040888963407;
        dataset_locate(dataset, (state >> 20) % samples, &location);
        for (uint32_t e = 0; e < location.extents; e++) {
            if (!location.extent[e].file)
                add_path(reads, &location.extent[e]);
            else if (location.extent[e].length)
                reads->extent[reads->extents++] = location.extent[e];
        }
    }
}

static void *read_extents(void *arg) {
    struct runner *r = arg;
    const struct read_options options = {
        .engine = READ_URING, .depth = r->depth, .max_bytes = r->piece, .direct = READ_DIRECT_YES};
    double limit = r->seconds;
    uint64_t next = r->number * UINT64_C(977);
    struct reader *reader;
    struct read_result result;
    be_worker(r->cpu);
    r->seconds = 0;
    if (reader_new(&options, &reader, NULL) < 0)
        return NULL;
    uint64_t begun = now_ns();
    for (uint32_t tag = 0; tag < r->depth; tag++)
        reader_submit(reader, &(struct read_request){.tag = tag, .extent = r->extent[next++ % r->extents]});
    while (seconds_since(begun) < limit) {
        reader_flush(reader);
        if (reader_reap(reader, UINT64_C(100000000), &result) != 1)
            continue;
        r->done += result.length;
        reader_done(reader, result.tag, NULL);
        reader_submit(reader, &(struct read_request){.tag = result.tag, .extent = r->extent[next++ % r->extents]});
    }
    r->seconds = seconds_since(begun);
    const struct read_counters *counters = reader_counters(reader);
    if (counters->errors || counters->direct < counters->requests / 2)
        r->done = 0; /* the page cache served it */
    reader_free(reader);
    return NULL;
}

/* Instead of whole extents: aligned pieces of them, at scattered places. Extents that are too short go. */
static void cut_reads(struct device_reads *reads, uint64_t piece) {
    uint64_t state = 7;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < reads->extents; i++) {
        struct extent *extent = &reads->extent[i];
        uint64_t places = extent->file->identity.size / piece;
        state = state * UINT64_C(6364136223846793005) + 1442695040888963407;
        if (places < 4)
            continue;
        extent->offset = (state >> 20) % places * piece;
        extent->length = piece;
        reads->extent[kept++] = *extent;
    }
    reads->extents = kept;
}

double ceilings_device(const struct engine *engine, uint32_t threads, uint32_t depth, uint64_t piece, double seconds,
                       uint64_t *ret_bytes) {
    struct device_reads *reads = calloc(1, sizeof *reads);
    struct runner *runner = aligned_alloc(64, threads * sizeof *runner);
    uint64_t total = 0;
    double rate = 0;
    if (reads && read_choose(READ_URING, NULL) == READ_URING)
        choose_reads(reads, engine->session->dataset);
    if (reads && piece)
        cut_reads(reads, piece);
    for (uint32_t i = 0; reads && i < reads->extents; i++)
        total += reads->extent[i].length;
    if (runner && total) {
        for (uint32_t i = 0; i < threads; i++)
            runner[i] = (struct runner){.seconds = seconds,
                                        .number = i,
                                        .cpu = cpu_of(engine, i % pool_workers(engine->pool)),
                                        .piece = engine->setup.config.daemon.max_sample_bytes,
                                        .extent = reads->extent,
                                        .extents = reads->extents,
                                        .depth = depth};
        rate = run_all(runner, threads, read_extents);
        *ret_bytes = total / reads->extents;
    }
    for (uint32_t i = 0; reads && i < reads->files; i++)
        close(reads->file[i].fd);
    free(reads);
    free(runner);
    return rate;
}

/* ---- an empty pipeline ------------------------------------------------------------------------------------------ */

static uint64_t claims_of(const struct pool *pool) {
    uint64_t claims = 0;
    for (uint32_t i = 0; i < pool_workers(pool); i++) {
        struct worker_statistics statistics;
        pool_statistics(pool, i, &statistics);
        claims += statistics.claims;
    }
    return claims;
}

static void measure_empty(double seconds, struct ceilings *ret) {
    char workers[16];
    struct key_value keys[] = {{"batch", "1024"}, {"slots", "16"}, {"log-level", "error"}, {"workers", workers}};
    const struct options options = {.command = "bench",
                                    .target = "synthetic:1000000000x1:f32",
                                    .keys = keys,
                                    .nkeys = ARRAY_SIZE(keys),
                                    .quiet = true,
                                    .world = 1};
    const struct engine_range range = {0};
    struct engine engine;
    struct loaderd_batch batch;
    struct diag diag = DIAG_INIT;
    snprintf(workers, sizeof workers, "%u", ret->workers);
    if (engine_open(&engine, &options, &range, &diag) < 0)
        return;
    uint64_t begun = 0, claims = 0, samples = 0;
    for (uint32_t n = 0; engine_next(&engine, &batch, &diag) == 1; n++) {
        samples += batch.rows;
        engine_release(&engine, &batch);
        if (n == engine.consumer.slots) {
            begun = now_ns();
            claims = claims_of(engine.pool);
            samples = 0;
        } else if (begun && seconds_since(begun) >= seconds) {
            ret->claims = (double)(claims_of(engine.pool) - claims) / seconds_since(begun);
            ret->samples = (double)samples / seconds_since(begun);
            break;
        }
    }
    engine_close(&engine);
}

static uint64_t filling_ns(const struct pool *pool) {
    uint64_t ns = 0;
    for (uint32_t i = 0; i < pool_workers(pool); i++) {
        struct worker_statistics statistics;
        pool_statistics(pool, i, &statistics);
        ns += statistics.stage_ns[STAGE_FILL];
    }
    return ns;
}

/* Until the workers have filled the ring, and then a cache with what they read, so that they do not run beside what is
 * measured on their CPUs. */
static void let_workers_finish(const struct engine *engine) {
    const struct timespec moment = {0, 5000000}, look = {0, 50000000};
    struct ring *ring = engine->session->ring;
    uint64_t end = now_ns() + FINISH_MOST_S * UINT64_C(1000000000), before = UINT64_MAX;
    while ((ring_claimable(ring) || !ring_finished(ring)) && now_ns() < end)
        nanosleep(&moment, NULL);
    for (uint64_t ns = filling_ns(engine->pool); ns != before && now_ns() < end; ns = filling_ns(engine->pool)) {
        before = ns;
        nanosleep(&look, NULL);
    }
}

void ceilings_measure(const struct engine *engine, double seconds, struct ceilings *ret) {
    let_workers_finish(engine);
    *ret = (struct ceilings){.workers = pool_workers(engine->pool), .copy_name = ""};
    measure_pictures(engine, MAX(4 * seconds, 0.5), ret); /* pictures differ: it takes many of them */
    measure_copy(engine, seconds, ret);
    ret->device = ceilings_device(engine, ret->workers, pool_depth(engine->pool), 0, seconds, &ret->device_bytes);
    measure_empty(seconds, ret);
}

/* ---- output ----------------------------------------------------------------------------------------------------- */

static double share(double part, double whole) {
    return whole > 0 ? part / whole : 0;
}

void ceilings_print_json(const struct ceilings *c, const struct reached *r) {
    double all = (double)c->workers;
    printf("{\"workers\": %u, \"decode_full_per_s\": %.3f, \"decode_region_per_s\": %.3f, ", c->workers, c->decode_full,
           c->decode_region);
    printf("\"decode_together_per_s\": %.3f, ", c->decode_together);
    printf("\"copy_bytes_per_s\": %.0f, \"copy\": \"%s\", \"device_bytes_per_s\": %.0f, \"device_read_bytes\": %llu, ",
           c->copy, c->copy_name, c->device, (unsigned long long)c->device_bytes);
    printf("\"empty_claims_per_s\": %.0f, \"empty_samples_per_s\": %.0f, ", c->claims, c->samples);
    printf("\"of_decode_full\": %.4f, \"of_decode_region\": %.4f, \"of_copy\": %.4f, \"of_device\": %.4f, ",
           share(r->samples_per_s, c->decode_full * all), share(r->samples_per_s, c->decode_together),
           share(r->bytes_out_per_s, c->copy), share(r->bytes_in_per_s, c->device));
    printf("\"cache_pictures\": %u, \"cache_of\": %u, \"cache_plain_per_s\": %.3f, \"cache_decode_per_s\": %.3f, ",
           c->cache_pictures, c->cache_of, c->cache_plain, c->cache_decode);
    printf("\"cache_gain\": %.4f, \"cache_bytes_ratio\": %.4f, \"cache_set_bytes\": %.0f, \"cache_encode_ms\": %.4f, ",
           share(c->cache_decode, c->cache_plain), c->cache_bytes, c->cache_set, c->cache_encode_s * 1e3);
    printf("\"of_empty_claims\": %.6f}", share(r->claims_per_s, c->claims));
}

static void print_share(double part, double whole) {
    if (part > 0 && whole > 0)
        printf(", of which %.3f was reached\n", part / whole);
    else
        printf("\n");
}

void ceilings_print_text(const struct ceilings *c, const struct reached *r) {
    double all = (double)c->workers;
    if (!c->workers)
        return; /* interrupted */
    printf("alone, with %u worker%s:\n", c->workers, c->workers == 1 ? "" : "s");
    if (c->decode_full > 0) {
        printf("  whole pictures %.1f samples/s (%.1f a worker)", c->decode_full * all, c->decode_full);
        print_share(r->samples_per_s, c->decode_full * all);
        printf("  their crops    %.1f samples/s (%.1f by one worker)", c->decode_together, c->decode_region);
        print_share(r->samples_per_s, c->decode_together);
    }
    if (c->cache_decode > 0) {
        printf("  from a cache   %.1f samples/s (%.1f a worker): %.2f times what their JPEGs give\n",
               c->cache_decode * all, c->cache_decode, share(c->cache_decode, c->cache_plain));
        printf("                 %u of %u pictures can be cached, at %.0f %% of their bytes: %.1f MB for all; filling "
               "takes "
               "%.2f ms a picture\n",
               c->cache_pictures, c->cache_of, 100 * c->cache_bytes, c->cache_set / 1e6, c->cache_encode_s * 1e3);
    }
    if (c->copy > 0) {
        printf("  copies         %.1f MB/s (%s)", c->copy / 1e6, c->copy_name);
        print_share(r->bytes_out_per_s, c->copy);
    }
    if (c->device > 0) {
        printf("  device         %.1f MB/s, reads of %.1f KB on average", c->device / 1e6,
               (double)c->device_bytes / 1e3);
        print_share(r->cold ? r->bytes_in_per_s : 0, c->device);
    }
    if (c->claims > 0) {
        printf("  empty pipeline %.0f claims/s, %.0f samples/s", c->claims, c->samples);
        print_share(r->claims_per_s, c->claims);
    }
}
