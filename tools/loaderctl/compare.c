/* SPDX-License-Identifier: MIT */
/* Why one bench gives less than another: see compare.h. */
#include "compare.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/util.h"
#include "json_read.h"

int compare_read(const char *text, size_t length, const char *name, struct compare_side *ret, struct diag *diag) {
    struct compare_side s = {0};
    struct json_span whole, stages, ceilings;
    if (!json_parse(text, length, &whole))
        return diag_set(diag, -EINVAL, "%.200s is no JSON; make it by: loaderctl bench ... --json > FILE", name);
    s.samples_per_s = json_number(&whole, "samples_per_s", 0);
    if (!(s.samples_per_s > 0) || !json_member(&whole, "stages", &stages))
        return diag_set(
            diag, -EINVAL,
            "%.200s is no result of a bench (samples_per_s and stages are wanted); make it by: loaderctl bench "
            "... --json > FILE",
            name);
    s.samples = json_number(&whole, "samples", 0);
    s.workers = json_number(&whole, "workers", 0);
    if (!(s.samples > 0) || !(s.workers > 0))
        return diag_set(diag, -EINVAL, "%.200s measured no samples", name);
    s.batch = json_number(&whole, "batch", 0);
    s.slots = json_number(&whole, "slots", 0);
    s.depth = json_number(&whole, "depth", 0);
    s.bytes_in = json_number(&whole, "bytes_in_per_s", 0);
    s.bytes_out = json_number(&whole, "bytes_out_per_s", 0);
    s.step_ms = json_number(&whole, "step_ms", 0);
    for (int i = 0; i < STAGES; i++)
        s.stage[i] = fmax(json_number(&stages, worker_stage_name((enum worker_stage)i), 0), 0);
    if (json_member(&whole, "ceilings", &ceilings)) {
        s.decode = json_number(&ceilings, "decode_region_per_s", 0);
        s.copy = json_number(&ceilings, "copy_bytes_per_s", 0);
        s.device = json_number(&ceilings, "device_bytes_per_s", 0);
        s.claims = json_number(&ceilings, "empty_claims_per_s", 0);
    }
    json_text(&whole, "engine", s.engine, sizeof s.engine);
    json_text(&whole, "page_cache", s.page_cache, sizeof s.page_cache);
    json_text(&whole, "codec", s.codec, sizeof s.codec);
    json_text(&whole, "bound_by", s.bound_by, sizeof s.bound_by);
    *ret = s;
    return 0;
}

static double busy_of(const struct compare_side *s) {
    double busy = 0;
    for (int i = STAGE_READ; i < STAGES; i++)
        busy += s->stage[i];
    return busy;
}

static double busy_share(const struct compare_side *s) {
    double all = busy_of(s) + s->stage[STAGE_IDLE];
    return all > 0 ? busy_of(s) / all : 1;
}

/* Worker time of a sample, in milliseconds. */
static double cost_ms(const struct compare_side *s, int stage) {
    return 1e3 * s->stage[stage] / s->samples;
}

static double ratio(double part, double whole) {
    return whole > 0 ? part / whole : 0;
}

/* ---- the table ------------------------------------------------------------------------------------------------- */

static void line(FILE *out, const char *what, double a, double b) {
    if (!(a > 0) && !(b > 0))
        return;
    fprintf(out, "%-34s %14.3f %14.3f", what, a, b);
    if (a > 0 && b > 0)
        fprintf(out, " %8.2f", b / a);
    fputc('\n', out);
}

static void unlike_number(FILE *out, const char *what, double a, double b) {
    if (a != b)
        fprintf(out, "not alike: %s, %g against %g\n", what, a, b);
}

static void unlike_text(FILE *out, const char *what, const char *a, const char *b) {
    if (strcmp(a, b) != 0)
        fprintf(out, "not alike: %s, %s against %s\n", what, *a ? a : "-", *b ? b : "-");
}

static void print_table(const struct compare_side *a, const struct compare_side *b, FILE *out) {
    char text[48];
    fprintf(out, "%-34s %14s %14s %8s\n", "", "A", "B", "B/A");
    line(out, "samples/s", a->samples_per_s, b->samples_per_s);
    line(out, "workers", a->workers, b->workers);
    line(out, "busy share of workers' time", busy_share(a), busy_share(b));
    for (int i = STAGE_READ; i < STAGES; i++) {
        snprintf(text, sizeof text, "ms of a worker a sample: %s", worker_stage_name((enum worker_stage)i));
        line(out, text, cost_ms(a, i), cost_ms(b, i));
    }
    line(out, "alone: decode, samples/s a worker", a->decode, b->decode);
    line(out, "alone: copies, MB/s", a->copy / 1e6, b->copy / 1e6);
    line(out, "alone: device reads, MB/s", a->device / 1e6, b->device / 1e6);
    line(out, "alone: empty claims, 1000/s", a->claims / 1e3, b->claims / 1e3);
    unlike_number(out, "batch", a->batch, b->batch);
    unlike_number(out, "slots", a->slots, b->slots);
    unlike_number(out, "depth", a->depth, b->depth);
    unlike_number(out, "step-ms", a->step_ms, b->step_ms);
    unlike_text(out, "read engine", a->engine, b->engine);
    unlike_text(out, "page cache", a->page_cache, b->page_cache);
    unlike_text(out, "codec", a->codec, b->codec);
}

/* ---- the sentence ---------------------------------------------------------------------------------------------- */

struct part {
    const char *doing, *alone; /* "decoding", "a core alone decodes" */
    double a, b;               /* ceilings */
};

static struct part part_of(int stage, const struct compare_side *fast, const struct compare_side *slow) {
    switch (stage) {
    case STAGE_READ:
        return (struct part){"waiting for reads of", "its storage alone reads", fast->device, slow->device};
    case STAGE_DECODE:
        return (struct part){"decoding", "a core of it alone decodes and resizes", fast->decode, slow->decode};
    case STAGE_TRANSFORM:
        return (struct part){"resampling", "a core of it alone decodes and resizes", fast->decode, slow->decode};
    case STAGE_COPY:
        return (struct part){"copying", "its memory alone copies", fast->copy, slow->copy};
    default:
        return (struct part){"finding and publishing", "its empty pipeline claims", fast->claims, slow->claims};
    }
}

/* Where the time of a sample grew the most. */
static int grown_stage(const struct compare_side *fast, const struct compare_side *slow) {
    int most = STAGE_READ;
    for (int i = STAGE_READ; i < STAGES; i++)
        if (cost_ms(slow, i) - cost_ms(fast, i) > cost_ms(slow, most) - cost_ms(fast, most))
            most = i;
    return most;
}

static void say_cost(const struct compare_side *fast, const struct compare_side *slow, FILE *out) {
    int stage = grown_stage(fast, slow);
    struct part p = part_of(stage, fast, slow);
    double f = cost_ms(fast, stage), s = cost_ms(slow, stage), grew = ratio(s, f);
    fprintf(out, "mostly because %s a sample takes %.3g ms of a worker instead of %.3g", p.doing, s, f);
    if (grew > 0)
        fprintf(out, " (%.1f times as long)", grew);
    if (stage == STAGE_READ && strcmp(fast->page_cache, slow->page_cache) != 0)
        fprintf(out, "; its page cache was %s, that of the other %s: the two are no comparison of storage",
                slow->page_cache, fast->page_cache);
    else if (p.a > 0 && p.b > 0 && ratio(p.b, p.a) < 0.9)
        fprintf(out, "; %s %.2f times as much, so that part itself is slower", p.alone, ratio(p.b, p.a));
    else if (p.a > 0 && p.b > 0)
        fprintf(out,
                "; %s %.2f times as much, so its workers are in each other's way (hyper-threads, memory bandwidth) "
                "or something else uses that machine",
                p.alone, ratio(p.b, p.a));
}

static void say_why(const struct compare_side *fast, const struct compare_side *slow, FILE *out) {
    double workers = ratio(slow->workers, fast->workers), busy = ratio(busy_share(slow), busy_share(fast));
    double cost = ratio(busy_of(fast) / fast->samples, busy_of(slow) / slow->samples);
    if (workers <= busy && workers <= cost) {
        fprintf(out, "mostly because it has %g worker%s instead of %g", slow->workers, slow->workers == 1 ? "" : "s",
                fast->workers);
        if (cost < 0.9)
            fprintf(out, "; besides, a sample takes %.1f times as much time of a worker, most of it for %s", 1 / cost,
                    part_of(grown_stage(fast, slow), fast, slow).doing);
    } else if (busy <= cost) {
        fprintf(out,
                "mostly because its workers were busy %.0f %% of their time instead of %.0f %%: what took the batches "
                "was the "
                "limit (step-ms, slots, the one thread that pops)",
                100 * busy_share(slow), 100 * busy_share(fast));
    } else {
        say_cost(fast, slow, out);
    }
}

void compare_print(const struct compare_side *a, const struct compare_side *b, const char *a_name, const char *b_name,
                   FILE *out) {
    bool b_slower = b->samples_per_s < a->samples_per_s;
    const struct compare_side *fast = b_slower ? a : b, *slow = b_slower ? b : a;
    fprintf(out, "A  %s\nB  %s\n\n", a_name, b_name);
    print_table(a, b, out);
    double r = slow->samples_per_s / fast->samples_per_s;
    fputc('\n', out);
    if (r > 0.95) {
        fprintf(out, "A and B are about as fast as each other: %.1f and %.1f samples/s\n", a->samples_per_s,
                b->samples_per_s);
        return;
    }
    fprintf(out, "%s gives %.2f times the samples/s of %s (%.1f, not %.1f), ", b_slower ? "B" : "A", r,
            b_slower ? "A" : "B", slow->samples_per_s, fast->samples_per_s);
    say_why(fast, slow, out);
    fputc('\n', out);
}
