/* SPDX-License-Identifier: MIT */
/* What binds a session: see verdict.h. Pure. */
#include "verdict.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"

const char *verdict_name(enum verdict_bound bound) {
    static const char *const names[VERDICTS] = {"", "storage", "decode", "memory", "copy", "trainer", "rank"};
    return bound < VERDICTS ? names[bound] : "";
}

/* A share as it can be; NaN becomes 0. */
static double share_of(double x) {
    return x > 0 ? fmin(x, 1) : 0;
}

static double percent(double x) {
    return 100 * share_of(x);
}

static void __attribute__((format(printf, 2, 3))) say(struct verdict *v, const char *format, ...) {
    size_t at = strlen(v->sentence);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(v->sentence + at, sizeof v->sentence - at, format, arguments);
    va_end(arguments);
}

/* The workers' time for this session, in the three kinds that something else helps against. */
struct costs {
    double read, decode, move, all; /* seconds */
    double own;                     /* share of all workers' time */
};

static struct costs costs_of(const struct verdict_input *in) {
    const double *busy = in->busy;
    struct costs c = {.read = busy[STAGE_READ],
                      .decode = busy[STAGE_DECODE] + busy[STAGE_TRANSFORM],
                      .move = busy[STAGE_COPY] + busy[STAGE_OTHER]};
    c.all = c.read + c.decode + c.move;
    c.own = share_of(c.all / (in->seconds * MAX(in->workers, 1u)));
    return c;
}

static bool starves(const struct verdict_input *in) {
    return in->wait < 0 ? in->idle <= VERDICT_IDLE : share_of(in->wait) >= VERDICT_STARVING;
}

static void set(struct verdict *v, enum verdict_bound bound, double by) {
    v->bound = bound;
    v->by = share_of(by);
    say(v, bound == VERDICT_RANK      ? "bound by another rank: "
           : bound == VERDICT_TRAINER ? "bound by the trainer: "
                                      : "");
    if (bound != VERDICT_RANK && bound != VERDICT_TRAINER)
        say(v, "bound by %s: ", verdict_name(bound));
}

/* How the wait is told, and by how much the pipeline would have to be faster. */
static void say_wait(struct verdict *v, const struct verdict_input *in) {
    if (in->wait >= 0)
        say(v, "the trainer waits %.0f %% of its time for data; ", percent(in->wait));
}

static void say_needed(struct verdict *v, const struct verdict_input *in) {
    double wait = share_of(in->wait);
    if (in->wait < 0 || wait > 0.95 || share_of(in->others) > costs_of(in).own)
        return;
    if (wait > 0.5)
        say(v, "; %.1f times as many samples/s would keep it fed", 1 / (1 - wait));
    else
        say(v, "; %.0f %% more samples/s would keep it fed", ceil(100 * wait / (1 - wait)));
}

static void say_around(struct verdict *v, const struct verdict_input *in) {
    if (in->wait >= 0 && share_of(in->idle) > VERDICT_IDLE)
        say(v,
            "; workers are idle %.0f %% of their time all the same: batches are taken in bursts, and more slots would "
            "help",
            percent(in->idle));
    if (share_of(in->others) > costs_of(in).own && share_of(in->idle) <= VERDICT_IDLE)
        say(v,
            "; the workers spend %.0f %% of their time on other sessions: this one needs more workers, or fewer beside "
            "it",
            percent(in->others));
    else if (share_of(in->others) >= 0.1)
        say(v, "; other sessions have %.0f %% of the workers' time", percent(in->others));
}

static void judge_starving(struct verdict *v, const struct verdict_input *in) {
    const struct costs c = costs_of(in);
    double of = c.all > 0 ? c.all : 1;
    if (c.read >= c.decode && c.read >= c.move) {
        set(v, VERDICT_STORAGE, in->wait < 0 ? c.read / of : in->wait);
        say_wait(v, in);
        say(v,
            "workers wait %.0f %% of their busy time for reads; a larger depth, more workers or faster storage would "
            "help, more "
            "decoding power would not",
            100 * c.read / of);
    } else if (c.decode >= c.move) {
        set(v, VERDICT_DECODE, in->wait < 0 ? c.decode / of : in->wait);
        say_wait(v, in);
        say(v,
            "%u worker%s spend%s %.0f %% of the busy time decoding and resampling; each further core gives about %.0f "
            "samples/s more",
            in->workers, in->workers == 1 ? "" : "s", in->workers == 1 ? "s" : "", 100 * c.decode / of,
            in->samples / in->seconds / MAX(in->workers, 1u));
    } else {
        set(v, VERDICT_MEMORY, in->wait < 0 ? c.move / of : in->wait);
        say_wait(v, in);
        say(v,
            "%u worker%s spend%s %.0f %% of the busy time moving records; more workers help until memory bandwidth "
            "ends",
            in->workers, in->workers == 1 ? "" : "s", in->workers == 1 ? "s" : "", 100 * c.move / of);
    }
    say_needed(v, in);
    say_around(v, in);
}

/* The trainer is not kept waiting: what else the pipeline could do. */
static void say_spare(struct verdict *v, const struct verdict_input *in) {
    const struct costs c = costs_of(in);
    double times = c.own > 0 ? (c.own + share_of(in->idle)) / c.own : 0;
    if (times >= 1.1)
        say(v, "; this pipeline could give about %.1f times as much", fmin(times, 100));
}

static void judge_fed(struct verdict *v, const struct verdict_input *in) {
    set(v, VERDICT_TRAINER, in->full < 0 ? in->idle : in->full);
    if (in->wait < 0)
        say(v, "workers wait %.0f %% of their time for free slots", percent(in->idle));
    else
        say(v, "it waits %.1f %% of its time for data", percent(in->wait));
    if (in->full >= 0)
        say(v, ", and its ring is full %.0f %% of the time", percent(in->full));
    say_spare(v, in);
    if (in->wait >= 0 && in->world > 1)
        say(v, "; if its steps are slow, look at the trainer, or at a rank on another node");
}

/* A figure as it can be: no NaN, nothing that has no end. */
static double figure_of(double x) {
    return x > 0 ? fmin(x, 1e15) : 0;
}

void verdict_judge(const struct verdict_input *given, struct verdict *ret) {
    struct verdict v = {.bound = VERDICT_NONE};
    struct verdict_input figures = *given;
    const struct verdict_input *in = &figures;
    figures.seconds = given->seconds > 1e-6 ? figure_of(given->seconds) : 0;
    figures.samples = figure_of(given->samples);
    for (int i = 0; i < STAGES; i++)
        figures.busy[i] = figure_of(given->busy[i]);
    bool hungry = starves(in);
    if (!(in->seconds > 0)) {
        say(&v, "too early to tell");
    } else if (!(in->samples > 0) && !(hungry && in->wait >= 0)) {
        v.bound = VERDICT_TRAINER;
        v.by = share_of(in->full < 0 ? in->idle : in->full);
        say(&v, "nothing was asked for: no samples in the last %.0f s", ceil(in->seconds));
    } else if (!(in->samples > 0)) {
        set(&v, VERDICT_STORAGE, in->wait);
        say(&v, "the trainer waits, and no sample was finished in %.0f s; is the storage there, and does it answer?",
            ceil(in->seconds));
    } else if (hungry && in->device && share_of(in->data) < share_of(in->wait) / 2) {
        set(&v, VERDICT_COPY, in->wait);
        say(&v,
            "the trainer's stream waits %.0f %% of its time for copies whose batches are ready; u8 pictures finished "
            "on the "
            "device (finish) need a quarter of the bus, more device buffers (depth) hide it",
            percent(in->wait));
    } else if (hungry) {
        judge_starving(&v, in);
    } else if (in->slow_rank >= 0 && share_of(in->slow_wait) >= VERDICT_STARVING) {
        set(&v, VERDICT_RANK, in->slow_wait);
        say(&v,
            "rank %lld of its job waits %.0f %% of its time for data, this one %.1f %%, and all go at the pace of the "
            "slowest; see that rank's verdict",
            (long long)in->slow_rank, percent(in->slow_wait), percent(in->wait));
    } else {
        judge_fed(&v, in);
    }
    *ret = v;
}
