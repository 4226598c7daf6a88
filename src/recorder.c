/* SPDX-License-Identifier: MIT */
/* The flight recorder: see recorder.h. */
#include "recorder.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/util.h"
#include "dataset/dataset.h"

#define SECOND_NS UINT64_C(1000000000)
#define KEEP_NS (RECORDER_SPANS * RECORDER_SPAN_NS)
#define NAMES_A_TICK 64u /* of slowest samples that are looked up, a session */
#define MARKS (RECORDER_WINDOW + 1u)

const double recorder_bounds[RECORDER_BUCKETS] = {0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1,
                                                  0.25,   0.5,    1,     2.5,   5,    10,    30};

/* Sums at a moment; a window is the difference of two. */
struct mark {
    uint64_t at_ns;
    uint64_t batches, samples, bytes_in, bytes_out, wait_ns, device_wait_ns, stream_wait_ns;
    uint64_t looks, full_looks, ready; /* how often the ring was looked at; was full; batches ready, summed */
    uint64_t stage_ns[STAGES];
    uint64_t pool_idle_ns, pool_ns;
};

/* Five minutes: the worst of its stalls, which is kept when that one itself is not. */
struct span {
    uint64_t number; /* of five minutes since 1970 */
    uint64_t stalls;
    struct stall worst;
};

struct recording_private {
    struct recording public; /* first */
    struct recording_private *next;
    const struct session *live; /* NULL: it ended */
    uint64_t ended_ns;          /* CLOCK_MONOTONIC */
    uint64_t next_sequence;     /* to be looked at */
    uint64_t taken;             /* at the last tick: their waits are there by now */
    uint64_t ready_ns;          /* when all batches before next_sequence could be had */
    uint64_t waiting_ns;        /* since when the trainer has been seen to wait; 0: it does not */
    struct mark mark[MARKS], now;
    uint32_t marks;
    struct stall stall[RECORDER_STALLS]; /* a circle: number n at n mod RECORDER_STALLS */
    struct span span[RECORDER_SPANS];
};
static_assert(sizeof(struct recording_private) < RECORDING_BYTES, "RECORDING_BYTES");

struct recorder {
    struct pool *pool;
    struct recording_private *recordings; /* the oldest first, ended and open ones */
    uint64_t realtime_ns;                 /* to be added to CLOCK_MONOTONIC */
    uint64_t pool_idle_ns, pool_ns;
};

/* ---- one recording ------------------------------------------------------------------------------------------------ */

static struct recording_private *private_of(const struct recording *recording) {
    return (struct recording_private *)(uintptr_t)recording;
}

struct recording *recording_new(void) {
    struct recording_private *p = calloc(1, sizeof *p);
    return p ? &p->public : NULL;
}

void recording_free(struct recording *recording) {
    free(recording);
}

uint64_t recorder_believe(uint64_t told_ns, uint64_t ready_before_ns, uint64_t ready_ns) {
    uint64_t most = (ready_ns > ready_before_ns ? ready_ns - ready_before_ns : 0) + RECORDER_SLACK_NS;
    return MIN(told_ns, most);
}

static void count_wait(struct recorder_waits *waits, uint64_t ns) {
    unsigned i = 0;
    while (i < RECORDER_BUCKETS && (double)ns / 1e9 > recorder_bounds[i])
        i++;
    waits->count[i]++;
    waits->batches++;
    waits->total_ns += ns;
}

static void keep_worst(struct recording_private *p, const struct stall *stall) {
    uint64_t number = stall->at_ns / RECORDER_SPAN_NS;
    struct span *span = &p->span[number % RECORDER_SPANS];
    if (span->number != number)
        *span = (struct span){.number = number};
    if (span->stalls++ == 0 || stall->waited_ns > span->worst.waited_ns)
        span->worst = *stall;
}

void recording_add(struct recording *recording, const struct session_batch *b, uint64_t waited_ns, uint64_t at_ns,
                   const char *path) {
    struct recording_private *p = private_of(recording);
    count_wait(&recording->waits, waited_ns);
    if (waited_ns < RECORDER_LEAST_NS)
        return;
    struct stall *stall = &p->stall[recording->stalls++ % RECORDER_STALLS];
    *stall = (struct stall){.at_ns = at_ns,
                            .epoch = b->epoch,
                            .step = b->step,
                            .waited_ns = waited_ns,
                            .fill_ns = b->published_ns > b->claimed_ns ? b->published_ns - b->claimed_ns : 0,
                            .slowest_us = b->slowest_us,
                            .slowest_sample = b->slowest_sample,
                            .waiter = b->waiter};
    memcpy(stall->stage_ns, b->stage_ns, sizeof stall->stage_ns);
    size_t length = strlen(path), room = sizeof stall->path - 1;
    if (length <= room)
        memcpy(stall->path, path, length);
    else /* what distinguishes paths is at their end */
        snprintf(stall->path, sizeof stall->path, "...%s", path + length - (room - 3));
    keep_worst(p, stall);
}

void recording_each_stall(const struct recording *recording, uint64_t since_ns, uint64_t over_ns,
                          void (*f)(void *arg, const struct stall *stall, uint64_t worst_of), void *arg) {
    const struct recording_private *p = private_of(recording);
    uint64_t first = recording->stalls > RECORDER_STALLS ? recording->stalls - RECORDER_STALLS : 0;
    /* what is older than the oldest that is kept one by one: the worst of its five minutes */
    uint64_t before = first ? p->stall[first % RECORDER_STALLS].at_ns : 0;
    uint64_t last = before / RECORDER_SPAN_NS;
    for (uint64_t n = last > RECORDER_SPANS ? last - RECORDER_SPANS + 1 : 1; first && n <= last; n++) {
        const struct span *span = &p->span[n % RECORDER_SPANS];
        if (span->number == n && span->worst.at_ns < before && span->worst.at_ns >= since_ns &&
            span->worst.waited_ns >= over_ns)
            f(arg, &span->worst, span->stalls);
    }
    for (uint64_t n = first; n < recording->stalls; n++) {
        const struct stall *stall = &p->stall[n % RECORDER_STALLS];
        if (stall->at_ns >= since_ns && stall->waited_ns >= over_ns)
            f(arg, stall, 1);
    }
}

/* ---- looking at a session ----------------------------------------------------------------------------------------- */

static uint64_t realtime(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * SECOND_NS + (uint64_t)t.tv_nsec;
}

static void take_step(struct recorder *recorder, struct recording_private *p, const struct session_batch *b,
                      uint32_t *names) {
    uint64_t ready = MAX(p->ready_ns, b->published_ns); /* batches may be published out of order */
    uint64_t waited = recorder_believe(b->waited_ns, p->ready_ns, ready);
    char path[4096] = "";
    if (waited >= RECORDER_LEAST_NS && *names && b->slowest_us) {
        --*names;
        if (dataset_name(session_dataset(p->live), b->slowest_sample, path, sizeof path) < 0)
            path[0] = '\0';
    }
    p->ready_ns = ready;
    p->now.wait_ns += waited;
    recording_add(&p->public, b, waited, b->published_ns + recorder->realtime_ns, path);
}

/* Looks at the batches below `end`, which their trainers have taken. */
static void take_steps(struct recorder *recorder, struct recording_private *p, uint64_t end, uint64_t lookback) {
    uint32_t names = NAMES_A_TICK;
    if (end > lookback && p->next_sequence < end - lookback) {
        p->public.waits.lost += end - lookback - p->next_sequence;
        p->next_sequence = end - lookback;
    }
    for (; p->next_sequence < end; p->next_sequence++) {
        struct session_batch batch;
        int r = session_look_back(p->live, p->next_sequence, &batch);
        if (r == -EAGAIN)
            break;
        if (r < 0)
            p->public.waits.lost++;
        else
            take_step(recorder, p, &batch, &names);
    }
}

/* A trainer's sums only grow, and no faster than time: what it says otherwise is not counted. */
static uint64_t grown(uint64_t before, uint64_t after, uint64_t most) {
    return after > before ? MIN(after - before, most) : 0;
}

static void look(struct recorder *recorder, struct recording_private *p, uint64_t now) {
    struct session_statistics before = p->public.session, *s = &p->public.session;
    uint64_t spent = p->now.at_ns && now > p->now.at_ns ? now - p->now.at_ns : 0;
    session_statistics(p->live, s);
    take_steps(recorder, p, p->taken, session_lookback(p->live));
    p->taken = session_taken(p->live);
    bool waits = s->waiting && s->unreleased == 0;
    p->waiting_ns = !waits ? 0 : p->waiting_ns && before.published == s->published ? p->waiting_ns : now;
    struct mark *m = &p->now;
    m->at_ns = now;
    m->batches = s->published;
    m->samples = s->samples;
    m->bytes_in = s->bytes_in;
    m->bytes_out = s->bytes_out;
    m->device_wait_ns += grown(before.device_wait_ns, s->device_wait_ns, spent);
    m->stream_wait_ns += grown(before.stream_wait_ns, s->stream_wait_ns, spent);
    m->looks++;
    m->full_looks += s->unreleased > s->slots / 2;
    m->ready += s->unreleased;
    memcpy(m->stage_ns, s->stage_ns, sizeof m->stage_ns);
    m->pool_idle_ns = recorder->pool_idle_ns;
    m->pool_ns = recorder->pool_ns;
}

static double share(uint64_t part, uint64_t whole) {
    return whole ? MIN((double)part / (double)whole, 1.0) : 0;
}

/* The window, from the oldest mark to now. */
static void make_window(struct recording_private *p) {
    const struct mark *b = &p->now, *a = &p->mark[p->marks < MARKS ? 0 : p->marks % MARKS];
    struct recorder_window *w = &p->public.window;
    uint64_t ns = p->marks ? b->at_ns - a->at_ns : 0;
    *w = (struct recorder_window){.seconds = (double)ns / 1e9, .device_wait = -1, .stream_wait = -1};
    if (ns < SECOND_NS) {
        w->seconds = 0;
        return;
    }
    w->samples = (double)(b->samples - a->samples) / w->seconds;
    w->batches = (double)(b->batches - a->batches) / w->seconds;
    w->bytes_in = (double)(b->bytes_in - a->bytes_in) / w->seconds;
    w->bytes_out = (double)(b->bytes_out - a->bytes_out) / w->seconds;
    uint64_t waiting = p->waiting_ns ? b->at_ns - p->waiting_ns : 0; /* that batch has not come yet */
    w->wait = share(b->wait_ns - a->wait_ns + waiting, ns);
    if (p->public.session.has_device) {
        w->device_wait = share(b->device_wait_ns - a->device_wait_ns, ns);
        w->stream_wait = share(b->stream_wait_ns - a->stream_wait_ns, ns);
    }
    w->full = share(b->full_looks - a->full_looks, b->looks - a->looks);
    w->ready = (double)(b->ready - a->ready) / (double)MAX(b->looks - a->looks, 1u);
    for (int i = 0; i < STAGES; i++)
        w->stage[i] = (double)(b->stage_ns[i] - a->stage_ns[i]) / 1e9;
}

/* Once a second. */
static void set_mark(struct recording_private *p) {
    const struct mark *last = p->marks ? &p->mark[(p->marks - 1) % MARKS] : NULL;
    if (last && p->now.at_ns - last->at_ns < SECOND_NS)
        return;
    p->mark[p->marks++ % MARKS] = p->now;
}

/* How much the trainer stands still: for data, or with a device for data or a copy. */
static double standstill(const struct recording *r) {
    const struct recorder_window *w = &r->window;
    return w->device_wait < 0 ? w->wait : MIN(w->device_wait + w->stream_wait, 1.0);
}

/* The rank of the same job that waits the most, of those in this daemon. */
static void find_slow_rank(const struct recorder *recorder, const struct recording *of, struct verdict_input *input) {
    input->slow_rank = -1;
    for (const struct recording_private *p = recorder->recordings; p && *of->session.job; p = p->next) {
        const struct session_statistics *s = &p->public.session;
        if (!p->live || s->uid != of->session.uid || s->rank == of->session.rank ||
            strcmp(s->job, of->session.job) != 0)
            continue;
        double wait = standstill(&p->public);
        if (wait > input->slow_wait) {
            input->slow_rank = s->rank;
            input->slow_wait = wait;
        }
    }
}

static void judge(const struct recorder *recorder, struct recording_private *p) {
    const struct recorder_window *w = &p->public.window;
    const struct mark *b = &p->now, *a = &p->mark[p->marks < MARKS ? 0 : p->marks % MARKS];
    uint64_t pool = b->pool_ns - a->pool_ns, idle = b->pool_idle_ns - a->pool_idle_ns, own = 0;
    struct verdict_input input = {.seconds = w->seconds,
                                  .samples = w->samples * w->seconds,
                                  .workers = pool_workers(recorder->pool),
                                  .wait = standstill(&p->public),
                                  .data = w->wait,
                                  .device = w->device_wait >= 0,
                                  .full = w->full,
                                  .world = p->public.session.world};
    for (int i = 0; i < STAGES; i++) {
        input.busy[i] = w->stage[i];
        own += b->stage_ns[i] - a->stage_ns[i];
    }
    input.idle = share(idle, pool);
    input.others = pool > idle + own ? share(pool - idle - own, pool) : 0;
    find_slow_rank(recorder, &p->public, &input);
    verdict_judge(&input, &p->public.verdict);
}

/* ---- all of them -------------------------------------------------------------------------------------------------- */

int recorder_new(struct pool *pool, struct recorder **ret) {
    struct recorder *recorder = calloc(1, sizeof *recorder);
    if (!recorder)
        return -ENOMEM;
    recorder->pool = pool;
    recorder->realtime_ns = realtime() - now_ns();
    *ret = recorder;
    return 0;
}

void recorder_free(struct recorder *recorder) {
    while (recorder && recorder->recordings) {
        struct recording_private *p = recorder->recordings;
        recorder->recordings = p->next;
        recording_free(&p->public);
    }
    free(recorder);
}

void recorder_begin(struct recorder *recorder, const struct session *session) {
    struct recording *recording = recording_new();
    if (!recording)
        return;
    struct recording_private *p = private_of(recording), **at = &recorder->recordings;
    while (*at)
        at = &(*at)->next;
    *at = p;
    p->live = session;
    session_statistics(session, &recording->session);
    p->ready_ns = recording->session.opened_ns;
}

/* Forgets ended recordings that are old, or more than there may be. */
static void forget(struct recorder *recorder, uint64_t now) {
    uint32_t ended = 0;
    for (const struct recording_private *p = recorder->recordings; p; p = p->next)
        ended += p->public.ended;
    struct recording_private **at = &recorder->recordings;
    while (*at) {
        struct recording_private *p = *at;
        if (!p->public.ended || (ended <= RECORDER_ENDED && now - p->ended_ns < KEEP_NS)) {
            at = &p->next;
            continue;
        }
        ended--;
        *at = p->next;
        recording_free(&p->public);
    }
}

void recorder_end(struct recorder *recorder, const struct session *session) {
    struct recording_private *p = recorder->recordings;
    while (p && p->live != session)
        p = p->next;
    if (!p)
        return;
    p->taken = session_taken(session);
    look(recorder, p, now_ns());
    p->live = NULL;
    p->public.ended = true;
    p->ended_ns = now_ns();
    forget(recorder, p->ended_ns);
}

static void look_at_pool(struct recorder *recorder) {
    recorder->pool_idle_ns = recorder->pool_ns = 0;
    for (uint32_t i = 0; i < pool_workers(recorder->pool); i++) {
        struct worker_statistics s;
        pool_statistics(recorder->pool, i, &s);
        recorder->pool_idle_ns += s.stage_ns[STAGE_IDLE] + s.stage_ns[STAGE_FILL]; /* a cache gets what is left */
        for (int stage = 0; stage < STAGES; stage++)
            recorder->pool_ns += s.stage_ns[stage];
    }
}

void recorder_tick(struct recorder *recorder, uint64_t now) {
    recorder->realtime_ns = realtime() - now_ns();
    look_at_pool(recorder);
    for (struct recording_private *p = recorder->recordings; p; p = p->next)
        if (p->live) {
            look(recorder, p, now);
            make_window(p);
        }
    for (struct recording_private *p = recorder->recordings; p; p = p->next)
        if (p->live) {
            judge(recorder, p);
            set_mark(p);
        }
    forget(recorder, now);
}

void recorder_each(const struct recorder *recorder, bool ended, void (*f)(void *arg, const struct recording *recording),
                   void *arg) {
    for (const struct recording_private *p = recorder->recordings; p; p = p->next)
        if (!p->public.ended || ended)
            f(arg, &p->public);
}

/* ---- stalls as text ----------------------------------------------------------------------------------------------- */

struct writer {
    FILE *out;
    const struct recording *recording;
};

static void write_stall(void *arg, const struct stall *stall, uint64_t worst_of) {
    const struct writer *w = arg;
    const struct session_statistics *s = &w->recording->session;
    fprintf(w->out, "{\"time\": %" PRIu64 ".%03u, \"session\": %" PRIu64 ", \"pipeline\": ", stall->at_ns / SECOND_NS,
            (unsigned)(stall->at_ns / 1000000 % 1000), s->number);
    json_put_string(w->out, s->pipeline);
    fputs(", \"job\": ", w->out);
    json_put_string(w->out, s->job);
    fprintf(w->out,
            ", \"rank\": %u, \"pid\": %d, \"ended\": %s, \"epoch\": %" PRIu64 ", \"step\": %" PRIu64
            ", \"wait_ms\": %.3f, \"fill_ms\": %.3f, \"stages_ms\": {",
            s->rank, stall->waiter, w->recording->ended ? "true" : "false", stall->epoch, stall->step,
            (double)stall->waited_ns / 1e6, (double)stall->fill_ns / 1e6);
    for (int i = STAGE_READ; i <= STAGE_OTHER; i++)
        fprintf(w->out, "%s\"%s\": %.3f", i > STAGE_READ ? ", " : "", worker_stage_name((enum worker_stage)i),
                (double)stall->stage_ns[i] / 1e6);
    fputs("}, \"slowest\": ", w->out);
    if (stall->slowest_us) {
        fprintf(w->out, "{\"sample\": %" PRIu64 ", \"path\": ", stall->slowest_sample);
        json_put_string(w->out, stall->path);
        fprintf(w->out, ", \"ms\": %.3f}", (double)stall->slowest_us / 1e3);
    } else {
        fputs("null", w->out);
    }
    fprintf(w->out, ", \"worst_of\": %" PRIu64 "}\n", worst_of);
}

void recorder_write_stalls(const struct recorder *recorder, const struct recorder_filter *filter, FILE *out) {
    for (const struct recording_private *p = recorder->recordings; p; p = p->next)
        if (filter->all || p->public.session.uid == filter->uid)
            recording_each_stall(&p->public, filter->since_ns, filter->over_ns, write_stall,
                                 &(struct writer){out, &p->public});
}
