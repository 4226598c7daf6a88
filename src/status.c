/* SPDX-License-Identifier: MIT */
/* The status object: see status.h. */
#include "status.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/json.h"
#include "base/util.h"
#include "cache/cache.h"
#include "dataset/dataset.h"
#include "topology.h"

#ifndef LOADERD_VERSION
#define LOADERD_VERSION "unknown"
#endif

static void put_string(FILE *out, const char *text) {
    json_put_string(out, text);
}

static void put_text(FILE *out, const char *name, const char *text) {
    fprintf(out, "\"%s\": ", name);
    put_string(out, text);
    fputs(", ", out);
}

static void put_number(FILE *out, const char *name, uint64_t value) {
    fprintf(out, "\"%s\": %llu, ", name, (unsigned long long)value);
}

static void put_daemon(FILE *out, const struct status_source *s) {
    uint32_t workers = pool_workers(s->pool), pinned = 0;
    for (uint32_t i = 0; i < workers; i++) {
        struct worker_statistics statistics;
        pool_statistics(s->pool, i, &statistics);
        pinned += statistics.cpu >= 0;
    }
    fputs("{\"daemon\": {", out);
    put_number(out, "pid", (uint64_t)getpid());
    put_text(out, "version", LOADERD_VERSION);
    fprintf(out, "\"private\": %s, ", s->is_private ? "true" : "false");
    put_text(out, "socket", s->socket);
    put_number(out, "workers", workers);
    put_number(out, "pinned", pinned);
    put_number(out, "depth", pool_depth(s->pool));
    put_text(out, "engine", pool_engine(s->pool));
    put_text(out, "engine_reason", pool_engine_reason(s->pool));
    int refused = topology_memory_refused();
    put_text(out, "memory_binding", refused ? strerrordesc_np(-refused) : "");
    put_text(out, "note", s->note);
    fprintf(out, "\"uptime_s\": %.3f},\n", (double)(now_ns() - s->started_ns) / 1e9);
}

static void put_worker(FILE *out, const struct worker_statistics *w) {
    fprintf(out, "{\"cpu\": %d, ", w->cpu);
    put_number(out, "samples", w->samples);
    put_number(out, "bytes_in", w->bytes_in);
    put_number(out, "bytes_out", w->bytes_out);
    put_number(out, "bad", w->bad);
    put_number(out, "damaged", w->damaged);
    put_number(out, "claims", w->claims);
    put_number(out, "rescues", w->rescues);
    fputs("\"seconds\": {", out);
    for (int i = 0; i < STAGES; i++)
        fprintf(out, "%s\"%s\": %.6f", i ? ", " : "", worker_stage_name((enum worker_stage)i),
                (double)w->stage_ns[i] / 1e9);
    fputs("}}", out);
}

static void put_workers(FILE *out, const struct status_source *s) {
    fputs("\"workers\": [", out);
    for (uint32_t i = 0; i < pool_workers(s->pool); i++) {
        struct worker_statistics statistics;
        pool_statistics(s->pool, i, &statistics);
        fputs(i ? ",\n  " : "\n  ", out);
        put_worker(out, &statistics);
    }
    fputs("],\n", out);
}

/* A list's elements come one call each. */
struct list {
    FILE *out;
    uint32_t count;
};

static void put_pipeline(void *arg, const struct opener_pipeline *known) {
    struct list *list = arg;
    fputs(list->count++ ? ",\n  {" : "\n  {", list->out);
    put_text(list->out, "name", known->config->name);
    put_text(list->out, "dataset", known->config->dataset);
    if (known->pipeline) {
        const struct dataset *dataset = pipeline_dataset(known->pipeline);
        put_text(list->out, "format", dataset_format(dataset));
        put_text(list->out, "index", dataset_index_note(dataset));
        put_number(list->out, "samples", dataset_samples(dataset));
    }
    fprintf(list->out, "\"open\": %s, \"error\": ", known->pipeline ? "true" : "false");
    put_string(list->out, known->error);
    fputc('}', list->out);
}

static void put_session(void *arg, const struct session *session) {
    struct list *list = arg;
    struct session_statistics s;
    session_statistics(session, &s);
    fputs(list->count++ ? ",\n  {" : "\n  {", list->out);
    put_number(list->out, "number", s.number);
    put_text(list->out, "pipeline", s.pipeline);
    put_text(list->out, "job", s.job);
    fprintf(list->out, "\"pid\": %d, ", s.pid);
    put_number(list->out, "uid", s.uid);
    put_number(list->out, "rank", s.rank);
    put_number(list->out, "world", s.world);
    put_number(list->out, "batch", s.batch);
    put_number(list->out, "slots", s.slots);
    put_number(list->out, "published", s.published);
    put_number(list->out, "unreleased", s.unreleased);
    put_number(list->out, "samples", s.samples);
    put_number(list->out, "near_samples", s.near_samples);
    put_number(list->out, "bytes_in", s.bytes_in);
    put_number(list->out, "bytes_out", s.bytes_out);
    put_number(list->out, "bad", s.bad);
    put_number(list->out, "damaged", s.damaged);
    put_number(list->out, "cache_hits", s.cache_hits);
    put_number(list->out, "cache_misses", s.cache_misses);
    put_number(list->out, "trainer_waits", s.trainer_waits);
    fprintf(list->out, "\"trainer_wait_s\": %.6f, ", (double)s.trainer_wait_ns / 1e9);
    put_number(list->out, "trainer_rescues", s.trainer_rescues);
    put_number(list->out, "ring_bytes", s.ring_bytes);
    fprintf(list->out, "\"node\": %d, ", s.node);
    put_text(list->out, "huge_pages", s.huge_pages);
    if (*s.group) {
        put_text(list->out, "group", s.group);
        fputs("\"members\": [", list->out);
        for (uint32_t i = 0; i < s.members; i++) {
            fprintf(list->out, "%s{\"member_pid\": %d, ", i ? ", " : "", s.member[i].pid);
            put_number(list->out, "popped", s.member[i].popped);
            put_number(list->out, "waits", s.member[i].waits);
            fprintf(list->out, "\"wait_s\": %.6f, \"rescues_told\": %llu}", (double)s.member[i].wait_ns / 1e9,
                    (unsigned long long)s.member[i].rescues);
        }
        fputs("], ", list->out);
    }
    fprintf(list->out, "\"locked\": %s, \"seconds\": %.3f}", s.locked ? "true" : "false",
            (double)(now_ns() - s.opened_ns) / 1e9);
}

static void put_share(FILE *out, const char *name, double share) {
    if (share >= 0)
        fprintf(out, "\"%s\": %.4f, ", name, share);
}

/* The last seconds of a session, and what binds it. */
static void put_window(void *arg, const struct recording *r) {
    struct list *list = arg;
    FILE *out = list->out;
    const struct recorder_window *w = &r->window;
    fputs(list->count++ ? ",\n  {" : "\n  {", out);
    put_number(out, "session", r->session.number);
    put_text(out, "job", r->session.job);
    put_number(out, "rank", r->session.rank);
    if (*r->session.gpu)
        put_text(out, "gpu", r->session.gpu);
    fprintf(out, "\"window_s\": %.3f, \"samples_per_s\": %.3f, \"bytes_out_per_s\": %.0f, ", w->seconds, w->samples,
            w->bytes_out);
    put_share(out, "wait", w->wait);
    put_share(out, "device_wait", w->device_wait);
    put_share(out, "stream_wait", w->stream_wait);
    put_share(out, "full", w->full);
    fprintf(out, "\"ready\": %.2f, \"stage_seconds\": {", w->ready);
    for (int i = STAGE_READ; i <= STAGE_OTHER; i++)
        fprintf(out, "%s\"%s\": %.6f", i > STAGE_READ ? ", " : "", worker_stage_name((enum worker_stage)i),
                w->stage[i]);
    fputs("}, ", out);
    put_number(out, "stalls", r->stalls);
    put_text(out, "bound_by", verdict_name(r->verdict.bound));
    fprintf(out, "\"by\": %.4f, \"sentence\": ", r->verdict.by);
    put_string(out, r->verdict.sentence);
    fputc('}', out);
}

static double per(uint64_t a, uint64_t b) {
    return b ? (double)a / (double)b : 0;
}

static void put_cache(void *arg, const struct cache_statistics *c) {
    struct list *list = arg;
    double plain_ns = per(c->miss_ns, c->misses), cached_ns = per(c->hit_ns, c->hits);
    double saved = c->misses && c->hits ? (plain_ns - cached_ns) * (double)c->hits / 1e9 : 0;
    fputs(list->count++ ? ",\n  {" : "\n  {", list->out);
    put_text(list->out, "place", c->place);
    put_text(list->out, "state", cache_state_name(c));
    put_number(list->out, "entries", c->entries);
    put_number(list->out, "capacity_bytes", c->capacity);
    put_number(list->out, "used_bytes", c->used);
    put_number(list->out, "record_bytes", c->record_bytes);
    put_number(list->out, "index_bytes", c->index_bytes);
    put_number(list->out, "segments", c->segments);
    put_number(list->out, "hits", c->hits);
    put_number(list->out, "misses", c->misses);
    fprintf(list->out, "\"hit_percent\": %.3f, ", 100 * per(c->hits, c->hits + c->misses));
    put_number(list->out, "hit_bytes", c->hit_bytes);
    put_number(list->out, "filled", c->filled);
    put_number(list->out, "refused", c->refused);
    put_number(list->out, "dropped", c->dropped);
    put_number(list->out, "reclaimed", c->reclaimed);
    fprintf(list->out, "\"fill_s\": %.6f, \"decode_ms\": %.6f, \"decode_ms_cached\": %.6f, ", (double)c->fill_ns / 1e9,
            plain_ns / 1e6, cached_ns / 1e6);
    fprintf(list->out, "\"gain\": %.3f, \"saved_s\": %.6f}", cached_ns > 0 ? plain_ns / cached_ns : 0, saved);
}

static void put_verdict(FILE *out, const struct status_source *s) {
    uint32_t workers = pool_workers(s->pool);
    struct worker_statistics *now = calloc(workers ? workers : 1, sizeof *now);
    struct verdict verdict = {.bound = VERDICT_NONE};
    if (now && s->before) {
        for (uint32_t i = 0; i < workers; i++)
            pool_statistics(s->pool, i, &now[i]);
        pool_verdict(s->before, now, workers, -1, &verdict);
    }
    free(now);
    fputs("\"verdict\": {", out);
    put_text(out, "bound_by", verdict_name(verdict.bound));
    fputs("\"sentence\": ", out);
    put_string(out, verdict.sentence);
    fputs("}}\n", out);
}

int status_to_memfd(const char *text, size_t length, int *ret_fd) {
    cleanup_close int fd = memfd_create("loaderd-report", MFD_CLOEXEC);
    if (fd < 0)
        return -errno;
    for (size_t at = 0; at < length;) {
        ssize_t n = pwrite(fd, text + at, length - at, (off_t)at);
        if (n < 0)
            return -errno;
        at += (size_t)n;
    }
    *ret_fd = steal_fd(&fd);
    return 0;
}

int status_make(const struct status_source *source, int *ret_fd, uint64_t *ret_bytes) {
    cleanup_free char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    if (!out)
        return -ENOMEM;
    struct list list = {.out = out};
    put_daemon(out, source);
    put_workers(out, source);
    fputs("\"pipelines\": [", out);
    opener_each(source->opener, put_pipeline, &list);
    list.count = 0;
    fputs("],\n\"sessions\": [", out);
    pool_each_session(source->pool, put_session, &list);
    list.count = 0;
    fputs("],\n\"windows\": [", out);
    recorder_each(source->recorder, false, put_window, &list);
    list.count = 0;
    fputs("],\n\"caches\": [", out);
    cache_each(put_cache, &list);
    fputs("],\n", out);
    put_verdict(out, source);
    if (fclose(out) != 0)
        return -ENOMEM;
    int r = status_to_memfd(text, length, ret_fd);
    if (r == 0)
        *ret_bytes = length;
    return r;
}
