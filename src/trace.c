/* SPDX-License-Identifier: MIT */
/* A trace of the workers: see trace.h. */
#include "trace.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/json.h"
#include "base/util.h"
#include "worker.h"

static uint64_t get(const _Atomic uint64_t *word) {
    return atomic_load_explicit(word, memory_order_relaxed);
}

static void put(_Atomic uint64_t *word, uint64_t value) {
    atomic_store_explicit(word, value, memory_order_relaxed);
}

void trace_lap(struct trace_circle *circle, enum worker_stage stage, uint64_t begin_ns, uint64_t end_ns,
               uint64_t session, uint64_t sequence) {
    uint64_t count = get(&circle->count);
    struct trace_event *last = &circle->event[(count - 1) % TRACE_EVENTS];
    if (count && get(&last->end_ns) == begin_ns && atomic_load_explicit(&last->stage, memory_order_relaxed) == stage &&
        get(&last->session) == session && get(&last->sequence) == sequence) {
        put(&last->end_ns, end_ns);
        return;
    }
    struct trace_event *event = &circle->event[count % TRACE_EVENTS];
    put(&event->begin_ns, begin_ns);
    put(&event->end_ns, end_ns);
    put(&event->session, session);
    put(&event->sequence, sequence);
    atomic_store_explicit(&event->stage, (uint32_t)stage, memory_order_relaxed);
    atomic_store_explicit(&circle->count, count + 1, memory_order_release);
}

int trace_begin(struct pool *pool) {
    for (uint32_t i = 0; i < pool->workers; i++) {
        struct worker *w = &pool->worker[i];
        if (!w->circle)
            w->circle = calloc(1, sizeof *w->circle);
        if (!w->circle)
            return -ENOMEM;
        put(&w->circle->count, 0);
    }
    for (uint32_t i = 0; i < pool->workers; i++) /* pairs with the acquire in worker_lap() */
        atomic_store_explicit(&pool->worker[i].trace, pool->worker[i].circle, memory_order_release);
    return 0;
}

void trace_end(struct pool *pool) {
    for (uint32_t i = 0; i < pool->workers; i++)
        atomic_store_explicit(&pool->worker[i].trace, NULL, memory_order_relaxed);
}

/* ---- as JSON --------------------------------------------------------------------------------------------------- */

struct writer {
    FILE *out;
    uint64_t from_ns, to_ns;
    uint64_t events;
};

/* The beginning of an event, up to its `args` and the brace that closes it. Microseconds with their thousandths. */
static void begin_event(struct writer *w, const char *name, const char *phase, int pid, uint32_t tid, uint64_t at_ns) {
    fprintf(w->out,
            "%s{\"name\": \"%s\", \"cat\": \"loaderd\", \"ph\": \"%s\", \"pid\": %d, \"tid\": %u, \"ts\": %" PRIu64
            ".%03u",
            w->events++ ? ",\n" : "\n", name, phase, pid, tid, at_ns / 1000, (unsigned)(at_ns % 1000));
}

static void put_duration(struct writer *w, uint64_t ns) {
    fprintf(w->out, ", \"dur\": %" PRIu64 ".%03u", ns / 1000, (unsigned)(ns % 1000));
}

static void name_row(struct writer *w, const char *what, int pid, uint32_t tid, const char *text) {
    begin_event(w, what, "M", pid, tid, 0);
    fputs(", \"args\": {\"name\": ", w->out);
    json_put_string(w->out, text);
    fputs("}}", w->out);
}

static void write_worker(struct writer *w, const struct worker *worker) {
    const struct trace_circle *circle = worker->circle;
    char text[64];
    uint32_t tid = worker->number + 1;
    if (worker->cpu >= 0)
        snprintf(text, sizeof text, "worker %u on CPU %d", worker->number, worker->cpu);
    else
        snprintf(text, sizeof text, "worker %u", worker->number);
    name_row(w, "thread_name", (int)getpid(), tid, text);
    uint64_t count = atomic_load_explicit(&circle->count, memory_order_acquire);
    uint64_t lost = count > TRACE_EVENTS ? count - TRACE_EVENTS : 0, before = 0;
    for (uint64_t i = lost; i < count; i++) {
        const struct trace_event *e = &circle->event[i % TRACE_EVENTS];
        uint64_t begun = get(&e->begin_ns), ended = get(&e->end_ns);
        uint64_t begin = MAX(begun, w->from_ns), end = MIN(ended, w->to_ns);
        uint32_t stage = atomic_load_explicit(&e->stage, memory_order_relaxed);
        if (begin >= end || begin < before || stage >= STAGES)
            continue;
        before = end;
        begin_event(w, worker_stage_name((enum worker_stage)stage), "X", (int)getpid(), tid, begin);
        put_duration(w, end - begin);
        if (get(&e->session))
            fprintf(w->out, ", \"args\": {\"session\": %" PRIu64 ", \"batch\": %" PRIu64 "}", get(&e->session),
                    get(&e->sequence));
        fputc('}', w->out);
    }
    if (lost) {
        begin_event(w, "earlier events were lost", "i", (int)getpid(), tid, w->from_ns);
        fprintf(w->out, ", \"s\": \"t\", \"args\": {\"events\": %" PRIu64 "}}", lost);
    }
}

#define ROW_WAIT 1000001u /* beside threads' numbers: a trainer's own profiler may use these */
#define ROW_BATCH 1000002u

static void write_batch(struct writer *w, const struct session_statistics *s, const struct session_batch *b) {
    static const char *const phase[] = {"b", "e"};
    for (int i = 0; i < 2; i++) {
        begin_event(w, "batch", phase[i], s->pid, ROW_BATCH, i ? b->published_ns : b->claimed_ns);
        fprintf(w->out,
                ", \"id\": \"%" PRIu64 ".%" PRIu64 "\", \"args\": {\"epoch\": %" PRIu64 ", \"step\": %" PRIu64 "}}",
                s->number, b->sequence, b->epoch, b->step);
    }
}

/* The first batch that was published in the trace's time, of the thousand or so that a session keeps. */
static uint64_t find_first(const struct writer *w, const struct session *session, uint64_t published) {
    uint64_t lookback = session_lookback(session), first = published;
    struct session_batch b;
    while (first && published - first < lookback) {
        int r = session_look_back(session, first - 1, &b);
        if (r == -ESTALE || (r == 0 && b.published_ns < w->from_ns))
            break;
        first--;
    }
    return first;
}

/* The batches that were made and waited for. */
static void write_session(void *arg, const struct session *session) {
    struct writer *w = arg;
    struct session_statistics s;
    struct session_batch b;
    char text[200];
    session_statistics(session, &s);
    snprintf(text, sizeof text, "trainer: session %" PRIu64 ", rank %u of %u, pipeline %s", s.number, s.rank, s.world,
             s.pipeline);
    name_row(w, "process_name", s.pid, ROW_WAIT, text);
    name_row(w, "thread_name", s.pid, ROW_WAIT, "waits for data");
    name_row(w, "thread_name", s.pid, ROW_BATCH, "batches of its ring");
    uint64_t first = find_first(w, session, s.published), ready = s.opened_ns;
    if (first && session_look_back(session, first - 1, &b) == 0)
        ready = b.published_ns;
    for (uint64_t n = first; n < s.published; n++) {
        if (session_look_back(session, n, &b) < 0 || b.published_ns > w->to_ns)
            continue;
        write_batch(w, &s, &b);
        uint64_t before = MAX(ready, w->from_ns);
        ready = MAX(ready, b.published_ns); /* batches may be published out of order */
        if (ready <= before)
            continue;
        uint64_t waited = MIN(b.waited_ns, ready - before);
        if (waited < 1000)
            continue;
        begin_event(w, "waits", "X", s.pid, ROW_WAIT, ready - waited);
        put_duration(w, waited);
        fprintf(w->out, ", \"args\": {\"epoch\": %" PRIu64 ", \"step\": %" PRIu64 "}}", b.epoch, b.step);
    }
}

static uint64_t read_clock(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

void trace_write(struct pool *pool, uint64_t from_ns, uint64_t to_ns, FILE *out) {
    struct writer w = {.out = out, .from_ns = from_ns, .to_ns = to_ns};
    /* the same moment on the clocks that other profilers use */
    fprintf(out,
            "{\"displayTimeUnit\": \"ms\", \"otherData\": {\"clock\": \"CLOCK_MONOTONIC\", \"monotonic_ns\": \"%" PRIu64
            "\", \"monotonic_raw_ns\": \"%" PRIu64 "\", \"boottime_ns\": \"%" PRIu64 "\", \"realtime_ns\": \"%" PRIu64
            "\"},\n\"traceEvents\": [",
            read_clock(CLOCK_MONOTONIC), read_clock(CLOCK_MONOTONIC_RAW), read_clock(CLOCK_BOOTTIME),
            read_clock(CLOCK_REALTIME));
    name_row(&w, "process_name", (int)getpid(), 0, "loaderd");
    for (uint32_t i = 0; i < pool->workers; i++)
        if (pool->worker[i].circle)
            write_worker(&w, &pool->worker[i]);
    pool_each_session(pool, write_session, &w);
    fputs("\n]}\n", out);
}
