/* SPDX-License-Identifier: MIT */
/*
 * Samples that must be looked for in shards (webdataset, tfrecord): the shards are scanned in parallel, each by one
 * thread, into `words` numbers a sample; the numbers of all shards, in the shards' order, are the index, which index.c
 * keeps and checks. What a number means is the format's matter.
 *
 * Opening is for one thread, which starts the others and joins them.
 */
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "dataset/format.h"

#define THREADS 16u
#define JUMP_BYTES 4096u     /* of a window behind a gap */
#define REMARKS_BYTES 65536u /* of one shard, then no more */

struct job {
    const struct shards *shards;
    const struct records_scan *scan;
    struct index_builder *builder;
    struct records_found *found; /* one a shard */
    _Atomic size_t next;
    _Atomic uint64_t samples;
    _Atomic bool failed;
    pthread_mutex_t lock; /* the first error */
    int error;
    size_t error_shard;
    struct diag diag;
};

int records_add_remark(struct records_found *found, const char *format, ...) {
    char *text;
    va_list args;
    va_start(args, format);
    int n = vasprintf(&text, format, args);
    va_end(args);
    if (n < 0)
        return -ENOMEM;
    int rc = found->remark.length < REMARKS_BYTES ? buffer_append(&found->remark, text, (size_t)n + 1) : 0;
    free(text);
    return rc;
}

int window_init(struct window *window, const struct source_file *file) {
    *window = (struct window){.file = file, .bytes = malloc(WINDOW_BYTES)};
    return window->bytes ? 0 : -ENOMEM;
}

void window_deinit(struct window *window) {
    free(window->bytes);
    window->bytes = NULL;
}

int window_read(void *arg, void *into, size_t length, uint64_t offset, struct diag *diag) {
    struct window *w = arg;
    uint64_t end = w->begin + w->length;
    if (length > WINDOW_BYTES)
        return source_file_read(w->file, into, length, offset, diag);
    if (offset < w->begin || offset + length > end) {
        uint64_t left = w->file->identity.size - offset, jump = offset > end ? offset - end : 0;
        size_t wanted = (size_t)MIN(jump ? MAX(JUMP_BYTES, length) : WINDOW_BYTES, left);
        w->length = 0;
        int rc = source_file_read(w->file, w->bytes, wanted, offset, diag);
        if (rc < 0)
            return rc;
        w->begin = offset;
        w->length = wanted;
    }
    memcpy(into, w->bytes + (offset - w->begin), length);
    return 0;
}

/* The error of the first shard that has one is told, whichever thread was first. */
static void note_error(struct job *job, size_t shard, int error, const struct diag *diag) {
    pthread_mutex_lock(&job->lock);
    if (!job->error || shard < job->error_shard) {
        job->error = error;
        job->error_shard = shard;
        job->diag = *diag;
    }
    pthread_mutex_unlock(&job->lock);
    atomic_store(&job->failed, true);
}

static void scan_shards(struct job *job, bool tick) {
    for (size_t i; !atomic_load(&job->failed) && (i = atomic_fetch_add(&job->next, 1)) < job->shards->count;) {
        struct diag diag = DIAG_INIT;
        int rc = job->scan->scan(job->scan->arg, &job->shards->file[i], &job->found[i], &diag);
        if (rc < 0)
            note_error(job, i, rc, &diag);
        uint64_t samples = job->found[i].word.length / sizeof(uint64_t) / job->scan->words;
        samples += atomic_fetch_add(&job->samples, samples);
        if (tick)
            index_tick(job->builder, samples);
    }
}

static void *scan_thread(void *arg) {
    scan_shards(arg, false);
    return NULL;
}

static unsigned threads_wanted(size_t shards) {
    cpu_set_t set;
    int cpus = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return (unsigned)MIN(MIN((size_t)MAX(cpus, 1), THREADS), shards);
}

static int scan_all(struct job *job, struct diag *diag) {
    pthread_t thread[THREADS];
    unsigned wanted = threads_wanted(job->shards->count), started = 1;
    pthread_mutex_init(&job->lock, NULL);
    while (started < wanted && pthread_create(&thread[started], NULL, scan_thread, job) == 0)
        started++;
    scan_shards(job, true);
    for (unsigned i = 1; i < started; i++)
        pthread_join(thread[i], NULL);
    pthread_mutex_destroy(&job->lock);
    if (job->error && diag)
        *diag = job->diag;
    return job->error;
}

/* Adds one shard's findings to the index. */
static int take_found(struct index_builder *builder, const struct source_file *file, const struct records_found *found,
                      uint32_t words) {
    int rc = index_add_shard(builder, file, found->word.length / sizeof(uint64_t) / words);
    if (rc == 0)
        rc = buffer_append(&builder->word, found->word.data, found->word.length);
    for (size_t at = 0; rc == 0 && at < found->remark.length; at += strlen(found->remark.data + at) + 1)
        rc = index_add_remark(builder, "%s", found->remark.data + at);
    return rc;
}

struct scan_arg {
    const struct shards *shards;
    const struct records_scan *scan;
};

static int scan(void *arg, struct index_builder *builder, struct diag *diag) {
    const struct scan_arg *a = arg;
    struct job job = {.shards = a->shards, .scan = a->scan, .builder = builder};
    job.found = calloc(a->shards->count, sizeof *job.found);
    if (!job.found)
        return -ENOMEM;
    int rc = scan_all(&job, diag);
    for (size_t i = 0; i < a->shards->count; i++) {
        if (rc == 0)
            rc = take_found(builder, &a->shards->file[i], &job.found[i], a->scan->words);
        buffer_deinit(&job.found[i].word);
        buffer_deinit(&job.found[i].remark);
    }
    free(job.found);
    return rc;
}

/* The options and the shards' names: an index file of its own for each set of them. */
static void make_key(const struct shards *shards, const struct records_scan *scan, uint8_t ret[16]) {
    struct hash hash;
    hash_begin(&hash, "shards");
    hash_bytes(&hash, scan->key, sizeof scan->key);
    hash_u64(&hash, scan->words);
    for (size_t i = 0; i < shards->count; i++) {
        const char *slash = strrchr(shards->file[i].path, '/');
        hash_string(&hash, slash ? slash + 1 : shards->file[i].path);
    }
    hash_end(&hash, ret);
}

int records_open(struct dataset *dataset, const struct dataset_options *options, struct shards *shards,
                 const struct records_scan *records, struct diag *diag) {
    struct scan_arg arg = {shards, records};
    struct stat status;
    cleanup_free char *place = realpath(shards->file[0].path, NULL);
    if (fstat(shards->file[0].fd, &status) < 0)
        return diag_set(diag, -errno, "%s: %s", shards->file[0].path, strerror(errno));
    struct index_source source = {
        .place = place,
        .own_name = true,
        .owner = status.st_uid,
        .shards = shards,
        .words = records->words,
        .scan = scan,
        .arg = &arg,
    };
    make_key(shards, records, source.key);
    int rc = index_obtain(dataset, options, &source, diag);
    for (size_t i = 0; i < shards->count && rc == 0; i++)
        rc = shards_set_samples(shards, i, dataset->index.shard[i].samples, diag);
    return rc < 0 ? rc : shards_publish(shards, dataset, "sample", diag);
}
