/* SPDX-License-Identifier: MIT */
/* Metrics as text: see metrics.h. */
#include "metrics.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "base/json.h"
#include "base/util.h"
#include "cache/cache.h"

#ifndef LOADERD_VERSION
#define LOADERD_VERSION "unknown"
#endif

void metrics_put_label(FILE *out, const char *value) {
    for (const unsigned char *s = (const unsigned char *)value; *s;) {
        size_t n = utf8_length(s);
        if (n == 0)
            fputs("\xef\xbf\xbd", out);
        else if (*s == '\\' || *s == '"')
            fprintf(out, "\\%c", *s);
        else if (*s == '\n')
            fputs("\\n", out);
        else
            fwrite(s, 1, n, out);
        s += n ? n : 1;
    }
}

/* ---- of the daemon ------------------------------------------------------------------------------------------------- */

static void put_head(FILE *out, const char *name, const char *type, const char *help) {
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void put_daemon(FILE *out, const struct metrics_source *s, const struct worker_statistics *all) {
    put_head(out, "loaderd_build_info", "gauge", "Always 1; the version and the read engine are labels.");
    fputs("loaderd_build_info{version=\"", out);
    metrics_put_label(out, LOADERD_VERSION);
    fputs("\",engine=\"", out);
    metrics_put_label(out, pool_engine(s->pool));
    fputs("\"} 1\n", out);
    put_head(out, "loaderd_uptime_seconds", "gauge", "Seconds since the daemon was started.");
    fprintf(out, "loaderd_uptime_seconds %.3f\n", (double)(now_ns() - s->started_ns) / 1e9);
    put_head(out, "loaderd_workers", "gauge", "Threads that read and decode.");
    fprintf(out, "loaderd_workers %u\n", pool_workers(s->pool));
    put_head(out, "loaderd_connections", "gauge", "Connections of the control socket.");
    fprintf(out, "loaderd_connections %u\n", s->connections);
    put_head(out, "loaderd_sessions_opened_total", "counter", "Sessions opened since the start.");
    fprintf(out, "loaderd_sessions_opened_total %" PRIu64 "\n", s->opened);
    put_head(out, "loaderd_worker_seconds_total", "counter", "Time of all workers, by what they did.");
    for (int i = 0; i < STAGES; i++)
        fprintf(out, "loaderd_worker_seconds_total{stage=\"%s\"} %.6f\n", worker_stage_name((enum worker_stage)i),
                (double)all->stage_ns[i] / 1e9);
    const struct {
        const char *name, *help;
        uint64_t value;
    } counters[] = {
        {"loaderd_samples_total", "Samples that became rows of batches.", all->samples},
        {"loaderd_read_bytes_total", "Bytes of samples that were read.", all->bytes_in},
        {"loaderd_written_bytes_total", "Bytes that were written into batches.", all->bytes_out},
        {"loaderd_bad_samples_total", "Samples that were substituted, blanked, or failed their batch.", all->bad},
        {"loaderd_damaged_samples_total", "Samples that were delivered although damaged.", all->damaged},
        {"loaderd_rescues_total", "Times that a worker found work which no wake-up announced.", all->rescues},
    };
    for (size_t i = 0; i < ARRAY_SIZE(counters); i++) {
        put_head(out, counters[i].name, "counter", counters[i].help);
        fprintf(out, "%s %" PRIu64 "\n", counters[i].name, counters[i].value);
    }
}

/* ---- of sessions --------------------------------------------------------------------------------------------------- */

struct family {
    const char *name, *type, *help;
    /* The value of one sample, for `name` with the session's labels; or NULL and all of its lines by `put`. */
    double (*value)(const struct recording *r);
    void (*put)(FILE *out, const struct family *family, const struct recording *r);
};

/* The labels that tell sessions apart, with the brace open for more. */
static void put_labels(FILE *out, const char *name, const char *suffix, const struct recording *r) {
    const struct session_statistics *s = &r->session;
    fprintf(out, "%s%s{pipeline=\"", name, suffix);
    metrics_put_label(out, s->pipeline);
    fputs("\",job=\"", out);
    metrics_put_label(out, s->job);
    fprintf(out, "\",rank=\"%u\",gpu=\"", s->rank);
    metrics_put_label(out, s->gpu);
    fprintf(out, "\",session=\"%" PRIu64 "\"", s->number);
}

static double batches(const struct recording *r) {
    return (double)r->session.published;
}
static double samples(const struct recording *r) {
    return (double)r->session.samples;
}
static double bytes_in(const struct recording *r) {
    return (double)r->session.bytes_in;
}
static double bytes_out(const struct recording *r) {
    return (double)r->session.bytes_out;
}
static double bad(const struct recording *r) {
    return (double)r->session.bad;
}
static double damaged(const struct recording *r) {
    return (double)r->session.damaged;
}
static double cache_hits(const struct recording *r) {
    return (double)r->session.cache_hits;
}
static double cache_misses(const struct recording *r) {
    return (double)r->session.cache_misses;
}
static double stalls(const struct recording *r) {
    return (double)r->stalls;
}
static double stream_wait(const struct recording *r) {
    return (double)r->session.stream_wait_ns / 1e9;
}
static double slots(const struct recording *r) {
    return r->session.slots;
}
static double ready(const struct recording *r) {
    return (double)r->session.unreleased;
}
static double ring_bytes(const struct recording *r) {
    return (double)r->session.ring_bytes;
}
static double wait_ratio(const struct recording *r) {
    return r->window.wait;
}
static double full_ratio(const struct recording *r) {
    return r->window.full;
}

static void put_stages(FILE *out, const struct family *family, const struct recording *r) {
    for (int i = STAGE_READ; i <= STAGE_OTHER; i++) {
        put_labels(out, family->name, "", r);
        fprintf(out, ",stage=\"%s\"} %.6f\n", worker_stage_name((enum worker_stage)i),
                (double)r->session.stage_ns[i] / 1e9);
    }
}

static void put_bounds(FILE *out, const struct family *family, const struct recording *r) {
    for (int i = VERDICT_STORAGE; i < VERDICTS; i++) {
        put_labels(out, family->name, "", r);
        fprintf(out, ",by=\"%s\"} %d\n", verdict_name((enum verdict_bound)i),
                r->verdict.bound == (enum verdict_bound)i);
    }
}

static void put_histogram(FILE *out, const struct family *family, const struct recording *r) {
    uint64_t below = 0;
    for (unsigned i = 0; i <= RECORDER_BUCKETS; i++) {
        below += r->waits.count[i];
        put_labels(out, family->name, "_bucket", r);
        if (i < RECORDER_BUCKETS)
            fprintf(out, ",le=\"%g\"} %" PRIu64 "\n", recorder_bounds[i], below);
        else
            fprintf(out, ",le=\"+Inf\"} %" PRIu64 "\n", below);
    }
    put_labels(out, family->name, "_sum", r);
    fprintf(out, "} %.9f\n", (double)r->waits.total_ns / 1e9);
    put_labels(out, family->name, "_count", r);
    fprintf(out, "} %" PRIu64 "\n", r->waits.batches);
}

static const struct family families[] = {
    {"loaderd_session_batches_total", "counter", "Batches published.", batches, NULL},
    {"loaderd_session_samples_total", "counter", "Samples that became rows.", samples, NULL},
    {"loaderd_session_read_bytes_total", "counter", "Bytes of samples that were read.", bytes_in, NULL},
    {"loaderd_session_written_bytes_total", "counter", "Bytes that were written into batches.", bytes_out, NULL},
    {"loaderd_session_bad_samples_total", "counter", "Samples substituted, blanked, or failing their batch.", bad,
     NULL},
    {"loaderd_session_damaged_samples_total", "counter", "Samples delivered although damaged.", damaged, NULL},
    {"loaderd_session_cache_hits_total", "counter", "JPEGs decoded from the pipeline's cache.", cache_hits, NULL},
    {"loaderd_session_cache_misses_total", "counter", "Sound JPEGs that the pipeline's cache did not have.",
     cache_misses, NULL},
    {"loaderd_session_stalls_total", "counter", "Steps for which the trainer waited a millisecond or longer.", stalls,
     NULL},
    {"loaderd_session_stage_seconds_total", "counter", "Workers' time for this session, by stage.", NULL, put_stages},
    {"loaderd_session_wait_seconds", "histogram", "How long loaderd_next() waited for a batch.", NULL, put_histogram},
    {"loaderd_session_stream_wait_seconds_total", "counter",
     "How long the trainer's CUDA stream stood still for copies.", stream_wait, NULL},
    {"loaderd_session_ring_slots", "gauge", "Batches that the ring holds.", slots, NULL},
    {"loaderd_session_ring_ready", "gauge", "Batches published and not yet released.", ready, NULL},
    {"loaderd_session_ring_bytes", "gauge", "Shared memory of the ring.", ring_bytes, NULL},
    {"loaderd_session_wait_ratio", "gauge", "Share of the last ten seconds that the trainer waited for data.",
     wait_ratio, NULL},
    {"loaderd_session_full_ratio", "gauge", "Share of the last ten seconds in which the ring was full.", full_ratio,
     NULL},
    {"loaderd_session_bound", "gauge", "1 for what binds the session, 0 for the others.", NULL, put_bounds},
};

struct put {
    FILE *out;
    const struct family *family;
};

static void put_session(void *arg, const struct recording *r) {
    const struct put *put = arg;
    if (put->family->put) {
        put->family->put(put->out, put->family, r);
        return;
    }
    put_labels(put->out, put->family->name, "", r);
    fprintf(put->out, "} %.15g\n", put->family->value(r));
}

/* ---- of caches ----------------------------------------------------------------------------------------------------- */

static const struct cache_family {
    const char *name, *type, *help;
    size_t member; /* of struct cache_statistics, a uint64_t */
    double unit;   /* what one of it is */
} cache_families[] = {
#define MEMBER(name) offsetof(struct cache_statistics, name)
    {"loaderd_cache_hits_total", "counter", "JPEGs decoded from the cache.", MEMBER(hits), 1},
    {"loaderd_cache_misses_total", "counter", "Sound JPEGs that the cache did not have.", MEMBER(misses), 1},
    {"loaderd_cache_hit_bytes_total", "counter", "Bytes of the records that were used.", MEMBER(hit_bytes), 1},
    {"loaderd_cache_hit_seconds_total", "counter", "Workers' time for decoding hits.", MEMBER(hit_ns), 1e-9},
    {"loaderd_cache_miss_seconds_total", "counter", "Workers' time for decoding misses.", MEMBER(miss_ns), 1e-9},
    {"loaderd_cache_filled_total", "counter", "Records that were made and kept.", MEMBER(filled), 1},
    {"loaderd_cache_fill_seconds_total", "counter", "Workers' time for making records.", MEMBER(fill_ns), 1e-9},
    {"loaderd_cache_refused_total", "counter", "JPEGs that no record can hold.", MEMBER(refused), 1},
    {"loaderd_cache_dropped_total", "counter", "Records found damaged, gone or torn.", MEMBER(dropped), 1},
    {"loaderd_cache_reclaimed_segments_total", "counter", "Segments given up for what is wanted now.",
     MEMBER(reclaimed), 1},
    {"loaderd_cache_entries", "gauge", "Records in the cache.", MEMBER(entries), 1},
    {"loaderd_cache_used_bytes", "gauge", "What the cache takes.", MEMBER(used), 1},
    {"loaderd_cache_record_bytes", "gauge", "What the records in it take.", MEMBER(record_bytes), 1},
    {"loaderd_cache_capacity_bytes", "gauge", "What the cache may take.", MEMBER(capacity), 1},
    {"loaderd_cache_index_bytes", "gauge", "Memory of the cache's index.", MEMBER(index_bytes), 1},
#undef MEMBER
};

static void put_cache_labels(FILE *out, const char *name, const struct cache_statistics *c) {
    fprintf(out, "%s{place=\"", name);
    metrics_put_label(out, c->place);
    fputc('"', out);
}

struct put_cache {
    FILE *out;
    const struct cache_family *family;
};

static void put_cache(void *arg, const struct cache_statistics *c) {
    const struct put_cache *put = arg;
    uint64_t value;
    memcpy(&value, (const char *)c + put->family->member, sizeof value);
    put_cache_labels(put->out, put->family->name, c);
    fprintf(put->out, "} %.15g\n", (double)value * put->family->unit);
}

static void put_cache_state(void *arg, const struct cache_statistics *c) {
    static const char *const states[] = CACHE_STATES;
    for (size_t i = 0; i < ARRAY_SIZE(states); i++) {
        put_cache_labels(arg, "loaderd_cache_state", c);
        fprintf(arg, ",state=\"%s\"} %d\n", states[i], strcmp(cache_state_name(c), states[i]) == 0);
    }
}

static void put_caches(FILE *out) {
    for (size_t i = 0; i < ARRAY_SIZE(cache_families); i++) {
        const struct cache_family *family = &cache_families[i];
        put_head(out, family->name, family->type, family->help);
        cache_each(put_cache, &(struct put_cache){out, family});
    }
    put_head(out, "loaderd_cache_state", "gauge", "1 for the state of the cache, 0 for the others.");
    cache_each(put_cache_state, out);
}

void metrics_write(const struct metrics_source *s, FILE *out) {
    struct worker_statistics all = {0};
    for (uint32_t i = 0; i < pool_workers(s->pool); i++) {
        struct worker_statistics w;
        pool_statistics(s->pool, i, &w);
        for (int stage = 0; stage < STAGES; stage++)
            all.stage_ns[stage] += w.stage_ns[stage];
        all.samples += w.samples;
        all.bytes_in += w.bytes_in;
        all.bytes_out += w.bytes_out;
        all.bad += w.bad;
        all.damaged += w.damaged;
        all.rescues += w.rescues;
    }
    put_daemon(out, s, &all);
    for (size_t i = 0; i < ARRAY_SIZE(families); i++) {
        put_head(out, families[i].name, families[i].type, families[i].help);
        recorder_each(s->recorder, false, put_session, &(struct put){out, &families[i]});
    }
    put_caches(out);
}
