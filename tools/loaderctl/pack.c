/* SPDX-License-Identifier: MIT */
/*
 * loaderctl pack: any dataset becomes a pack (loaderd-pack(5)). Threads make records (pack_record.c), this one writes them
 * in the dataset's order (pack_writer.c), so that the bytes are the same whatever the number of threads, and whether or not
 * the job was interrupted. Never changes the source.
 *
 *   claimed ─► slot[sample % window] ─► written        a thread waits where it would be a window ahead
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/util.h"
#include "dataset/dataset.h"
#include "loaderctl.h"
#include "pack_record.h"

#define WINDOW_PER_THREAD 4u
#define ORIGIN_BYTES 4096u

struct slot {
    bool ready;
    int error;
    struct diag diag;
    struct pack_made made;
};

struct job {
    const struct options *options;
    const struct pack_recipe *recipe;
    struct pack_maker **maker;
    uint32_t threads;
    struct slot *slot;
    uint64_t window;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t next, end, written; /* samples: claimed next, behind the last, written; under lock */
    bool stop;
    struct pack_writer *writer;
    uint64_t first, samples; /* of all that this command packs, for the progress line */
    uint64_t started_ns, told_ns;
    uint64_t bytes, finished, made; /* of shards: bytes written, samples dealt with, those in this run */
    struct pack_counts counts;
    char kept[160];
};

/* ---- threads --------------------------------------------------------------------------------------------------- */

static bool claim(struct job *job, uint64_t *ret) {
    pthread_mutex_lock(&job->lock);
    while (!job->stop && job->next < job->end && job->next >= job->written + job->window)
        pthread_cond_wait(&job->changed, &job->lock);
    bool got = !job->stop && job->next < job->end;
    if (got)
        *ret = job->next++;
    pthread_mutex_unlock(&job->lock);
    return got;
}

struct thread {
    pthread_t thread;
    struct job *job;
    struct pack_maker *maker;
};

static void *make_records(void *arg) {
    const struct thread *thread = arg;
    struct job *job = thread->job;
    uint64_t sample;
    while (claim(job, &sample)) {
        struct slot *slot = &job->slot[sample % job->window];
        slot->diag = (struct diag)DIAG_INIT;
        slot->error = pack_make(thread->maker, sample, &slot->made, &slot->diag);
        pthread_mutex_lock(&job->lock);
        slot->ready = true;
        pthread_cond_broadcast(&job->changed);
        pthread_mutex_unlock(&job->lock);
    }
    return NULL;
}

/* Waits for the record of a sample; false where Ctrl-C came first. */
static bool wait_for(struct job *job, struct slot *slot) {
    pthread_mutex_lock(&job->lock);
    while (!slot->ready && !engine_interrupted) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec++;
        pthread_cond_timedwait(&job->changed, &job->lock, &until);
    }
    pthread_mutex_unlock(&job->lock);
    return !engine_interrupted;
}

static void release(struct job *job, struct slot *slot) {
    pthread_mutex_lock(&job->lock);
    slot->ready = false;
    job->written++;
    pthread_cond_broadcast(&job->changed);
    pthread_mutex_unlock(&job->lock);
}

/* ---- writing --------------------------------------------------------------------------------------------------- */

static void tell(struct job *job) {
    bool terminal = isatty(STDERR_FILENO);
    uint64_t now = now_ns(), done = job->finished + pack_writer_done(job->writer);
    if (now - job->told_ns < (terminal ? UINT64_C(500000000) : UINT64_C(60000000000)))
        return;
    job->told_ns = now;
    double seconds = (double)(now - job->started_ns) * 1e-9, rate = (double)job->made / seconds;
    fprintf(stderr, "%s%" PRIu64 " of %" PRIu64 " samples, %.1f GB, %.0f samples/s, %.0f s left%s",
            terminal ? "\r\033[K" : "# ", done, job->samples,
            (double)(job->bytes + pack_writer_bytes(job->writer)) * 1e-9, rate,
            rate > 0 ? (double)(job->samples - done) / rate : 0, terminal ? "" : "\n");
}

static void say_bad(const struct job *job, uint64_t sample, const char *what, const char *why) {
    char name[4096];
    if (dataset_name(job->recipe->dataset, sample, name, sizeof name) < 0)
        snprintf(name, sizeof name, "sample %" PRIu64, sample);
    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
    remark("%s: sample %" PRIu64 ", %s: %s", what, sample, name, why);
}

static void add_counts(struct pack_counts *to, const struct pack_counts *from) {
    to->skipped += from->skipped;
    to->stripped += from->stripped;
    to->rewritten += from->rewritten;
    to->resized += from->resized;
    to->coefficients += from->coefficients;
    to->kept += from->kept;
}

static int write_sample(struct job *job, uint64_t sample, struct slot *slot, struct diag *diag) {
    if (slot->error == -EBADMSG && job->options->pack.skip_bad) {
        say_bad(job, sample, "left out", slot->diag.text);
        return pack_writer_skip(job->writer, diag);
    }
    if (slot->error < 0) {
        char name[4096];
        if (dataset_name(job->recipe->dataset, sample, name, sizeof name) < 0)
            snprintf(name, sizeof name, "sample %" PRIu64, sample);
        return diag_set(
            diag, slot->error, "sample %" PRIu64 ", %.250s: %s%s", sample, name, slot->diag.text,
            slot->error == -EBADMSG ? "; --on-error skip leaves bad samples out, keep takes them as they are" : "");
    }
    if (slot->made.bad[0])
        say_bad(job, sample, "kept as it is", slot->made.bad);
    if (slot->made.kept[0] && !job->kept[0])
        snprintf(job->kept, sizeof job->kept, "%s", slot->made.kept);
    add_counts(pack_writer_counts(job->writer), &slot->made.counts);
    return pack_writer_add(job->writer, &slot->made.item, diag);
}

static int write_all(struct job *job, uint64_t first, struct diag *diag) {
    for (uint64_t sample = first + pack_writer_done(job->writer); sample < job->end; sample++) {
        struct slot *slot = &job->slot[sample % job->window];
        if (!wait_for(job, slot))
            return diag_set(diag, -EINTR, "interrupted; the same command goes on from here");
        int r = write_sample(job, sample, slot, diag);
        if (r < 0)
            return r;
        job->made++;
        release(job, slot);
        tell(job);
    }
    return 0;
}

static int name_sample(void *arg, uint64_t i, char *buffer, size_t size) {
    const struct job *job = arg;
    return dataset_short_name(job->recipe->dataset, job->first + i, buffer, size);
}

/* The samples of one shard, by threads of their own. */
static int run_threads(struct job *job, uint64_t first, uint64_t samples, struct diag *diag) {
    cleanup_free struct thread *threads = calloc(job->threads, sizeof *threads);
    uint32_t started = 0;
    if (!threads)
        return diag_set(diag, -ENOMEM, "out of memory");
    job->next = job->written = first + pack_writer_done(job->writer);
    job->end = first + samples;
    job->stop = false;
    for (uint64_t i = 0; i < job->window; i++)
        job->slot[i].ready = false;
    for (; started < job->threads; started++) {
        threads[started] = (struct thread){.job = job, .maker = job->maker[started]};
        if (pthread_create(&threads[started].thread, NULL, make_records, &threads[started]) != 0)
            break;
    }
    int r = started ? write_all(job, first, diag) : diag_set(diag, -EAGAIN, "cannot start a thread");
    pthread_mutex_lock(&job->lock);
    job->stop = true;
    pthread_cond_broadcast(&job->changed);
    pthread_mutex_unlock(&job->lock);
    for (uint32_t i = 0; i < started; i++)
        pthread_join(threads[i].thread, NULL);
    return r;
}

static int pack_shard(struct job *job, const char *path, const struct pack_spec *spec, struct diag *diag) {
    int r = pack_writer_new(path, spec, &job->writer, diag);
    if (r < 0)
        return r;
    if (pack_writer_done(job->writer))
        remark("%s: going on behind sample %" PRIu64, path, spec->source_first + pack_writer_done(job->writer));
    r = run_threads(job, spec->source_first, spec->source_samples, diag);
    if (r < 0)
        pack_writer_checkpoint(job->writer, NULL);
    job->first = spec->source_first;
    if (r == 0)
        r = pack_writer_finish(job->writer, name_sample, job, diag);
    job->bytes += pack_writer_bytes(job->writer);
    job->finished += pack_writer_done(job->writer);
    add_counts(&job->counts, pack_writer_counts(job->writer));
    pack_writer_free(job->writer);
    return r;
}

/* ---- shards ---------------------------------------------------------------------------------------------------- */

/* 1: the shard is there already; 0: it is not; -EEXIST: something else is. */
static int is_there(const char *path, const struct pack_spec *spec, struct diag *diag) {
    uint8_t head[PACK_HEADER_BYTES];
    struct pack_view view;
    struct stat status;
    FILE *file = fopen(path, "re");
    if (!file)
        return errno == ENOENT ? 0 : diag_set(diag, -errno, "%s: %s", path, strerror(errno));
    size_t got = fread(head, 1, sizeof head, file);
    int r =
        fstat(fileno(file), &status) == 0 && pack_parse_header(head, got, (uint64_t)status.st_size, &view, NULL) == 0;
    fclose(file);
    if (r && memcmp(view.header.set, spec->set, sizeof spec->set) == 0 && view.header.shard == spec->shard &&
        view.header.shards == spec->shards && view.header.file_bytes == (uint64_t)status.st_size)
        return 1;
    return diag_set(diag, -EEXIST,
                    "%s exists and was not made of this dataset in this way: remove it, or name another "
                    "destination",
                    path);
}

static void shard_path(const struct pack_options *o, uint32_t shard, uint32_t shards, char *buffer, size_t size) {
    if (o->shards)
        snprintf(buffer, size, "%s/pack-%05" PRIu32 "-of-%05" PRIu32 PACK_SUFFIX, o->destination, shard, shards);
    else if (o->parts > 1)
        snprintf(buffer, size, "%s.part-%05" PRIu32 "-of-%05" PRIu32, o->destination, shard, shards);
    else
        snprintf(buffer, size, "%s", o->destination);
}

/* First sample of shard i of n. */
static uint64_t share(uint64_t samples, uint32_t i, uint32_t n) {
    return (uint64_t)((unsigned __int128)samples * i / n);
}

static int pack_shards(struct job *job, struct pack_spec *spec, struct diag *diag) {
    const struct pack_options *o = &job->options->pack;
    uint64_t all = dataset_samples(job->recipe->dataset);
    uint32_t shards = o->shards ? o->shards : MAX(o->parts, 1u), parts = MAX(o->parts, 1u);
    uint32_t first = (uint32_t)share(shards, o->part, parts), end = (uint32_t)share(shards, o->part + 1, parts);
    if (shards > all || parts > shards)
        return diag_set(diag, -EINVAL,
                        "%" PRIu32 " parts of %" PRIu32 " shards of %" PRIu64 " samples: each part needs a "
                        "shard, each shard a sample",
                        parts, shards, all);
    if (o->shards && mkdir(o->destination, 0777) < 0 && errno != EEXIST)
        return diag_set(diag, -errno, "cannot create the folder %s: %s", o->destination, strerror(errno));
    job->samples = share(all, end, shards) - share(all, first, shards);
    int r = 0;
    for (uint32_t i = first; i < end && r == 0; i++) {
        char path[4096];
        shard_path(o, i, shards, path, sizeof path);
        spec->shard = i;
        spec->shards = shards;
        spec->source_first = share(all, i, shards);
        spec->source_samples = share(all, i + 1, shards) - spec->source_first;
        r = is_there(path, spec, diag);
        if (r == 1)
            remark("%s is there already", path);
        if (r == 1)
            job->finished += spec->source_samples;
        r = r == 1 ? 0 : r == 0 ? pack_shard(job, path, spec, diag) : r;
    }
    return r;
}

/* ---- what is packed, and how ----------------------------------------------------------------------------------- */

static const char *last_component(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

/* "key=value" lines: the same on every machine that packs the same samples in the same way. */
static void describe(const struct pack_recipe *recipe, char *text, size_t size) {
    const struct dataset *dataset = recipe->dataset;
    uint8_t fingerprint[16];
    char hex[33];
    dataset_fingerprint(dataset, fingerprint);
    for (size_t i = 0; i < sizeof fingerprint; i++)
        snprintf(hex + 2 * i, 3, "%02x", fingerprint[i]);
    snprintf(text, size,
             "source=%.255s\nsource-format=%s\nsource-samples=%" PRIu64 "\nsource-fingerprint=%s\nresize=%" PRIu32
             "\nquality=%d\nmetadata=%s\njpeg=%s\nkeep-headers=%s\ntool=loaderctl " LOADERD_VERSION "\n",
             last_component(dataset_path(dataset)), dataset_format(dataset), dataset_samples(dataset), hex,
             recipe->resize, recipe->resize ? recipe->quality : 0, recipe->metadata ? "keep" : "drop",
             recipe->coefficients ? "coefficients" : "bytes", recipe->keep_headers ? "yes" : "no");
}

/* Large records of one size begin where direct reads can take them. */
static uint32_t choose_alignment(const struct pack_recipe *recipe) {
    uint64_t fixed = 0;
    for (uint32_t i = 0; i < recipe->fields; i++) {
        if (pack_is_ragged(&recipe->field[i]))
            return 8;
        if (recipe->field[i].storage == PACK_FIXED)
            fixed += pack_field_bytes(&recipe->field[i]);
    }
    return fixed >= 65536 || (fixed && fixed % 4096 == 0) ? 4096 : 1;
}

static int open_makers(struct job *job, struct diag *diag) {
    job->window = (uint64_t)job->threads * WINDOW_PER_THREAD;
    job->maker = calloc(job->threads, sizeof *job->maker);
    job->slot = calloc(job->window, sizeof *job->slot);
    if (!job->maker || !job->slot)
        return diag_set(diag, -ENOMEM, "out of memory");
    for (uint32_t i = 0; i < job->threads; i++) {
        int r = pack_maker_new(job->recipe, &job->maker[i], diag);
        if (r < 0)
            return r;
    }
    return 0;
}

static void close_makers(struct job *job) {
    for (uint32_t i = 0; job->maker && i < job->threads; i++)
        pack_maker_free(job->maker[i]);
    for (uint64_t i = 0; job->slot && i < job->window; i++)
        free(job->slot[i].made.bytes);
    free(job->maker);
    free(job->slot);
}

static void print_count(uint64_t n, const char *what) {
    if (n)
        printf(", %" PRIu64 " %s", n, what);
}

static void print_result(const struct job *job) {
    const struct pack_counts *c = &job->counts;
    double seconds = (double)(now_ns() - job->started_ns) * 1e-9;
    printf("%s: %" PRIu64 " samples, %.3f GB, %.1f s, %.0f samples/s", job->options->pack.destination, job->finished,
           (double)job->bytes * 1e-9, seconds, (double)job->made / seconds);
    print_count(c->skipped, "bad ones left out");
    print_count(c->resized, "resized");
    print_count(c->rewritten, "made baseline");
    print_count(c->stripped, "without their metadata");
    print_count(c->coefficients, "stored as coefficients");
    print_count(c->kept, "kept as JPEG");
    if (job->kept[0])
        printf(" (the first: %s)", job->kept);
    putchar('\n');
}

static int pack_dataset(const struct setup *setup, const struct dataset *dataset, const struct options *options,
                        struct diag *diag) {
    const struct pack_options *o = &options->pack;
    struct pack_recipe recipe = {.dataset = dataset,
                                 .limits = &setup->config.daemon,
                                 .resize = o->resize,
                                 .quality = (int)o->quality,
                                 .metadata = o->metadata,
                                 .coefficients = o->coefficients,
                                 .keep_headers = o->keep_headers,
                                 .keep_bad = o->keep_bad};
    char origin[ORIGIN_BYTES];
    int r = pack_recipe_fields(&recipe, o->field, diag);
    if (r < 0)
        return r;
    describe(&recipe, origin, sizeof origin);
    uint8_t fingerprint[16];
    dataset_fingerprint(dataset, fingerprint);
    struct pack_spec spec = {.fields = recipe.fields, .origin = origin, .alignment = choose_alignment(&recipe)};
    memcpy(spec.field, recipe.field, sizeof spec.field);
    spec.classes = dataset_classes(dataset, &spec.class_name, NULL);
    pack_set_name(fingerprint, origin, recipe.field, recipe.fields, spec.set);
    struct job job = {.options = options, .recipe = &recipe, .threads = threads_wanted(&setup->config.daemon)};
    job.started_ns = job.told_ns = now_ns();
    pthread_mutex_init(&job.lock, NULL);
    pthread_cond_init(&job.changed, NULL);
    r = open_makers(&job, diag);
    if (r == 0)
        r = pack_shards(&job, &spec, diag);
    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
    if (r == 0)
        print_result(&job);
    close_makers(&job);
    pthread_cond_destroy(&job.changed);
    pthread_mutex_destroy(&job.lock);
    return r;
}

int command_pack(const struct options *options) {
    struct diag diag = DIAG_INIT;
    struct setup setup;
    struct pipeline *pipeline;
    if (options->pack.merge)
        return pack_merge(options->target);
    if (setup_init(&setup, options, &diag) < 0)
        return complain_diag(&diag);
    int r = pipeline_new(&setup.pipeline, &setup.config.daemon, &pipeline, &diag);
    if (r == 0) {
        engine_catch_interrupt();
        r = pack_dataset(&setup, pipeline_dataset(pipeline), options, &diag);
        pipeline_unref(pipeline);
    }
    setup_deinit(&setup);
    return r < 0 ? complain_diag(&diag) : finish_stdout();
}
