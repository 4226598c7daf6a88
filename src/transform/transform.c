/* SPDX-License-Identifier: MIT */
/*
 * Runs a sample through the transform stage: weights, horizontal pass, vertical pass, output. A `struct transform` is
 * one worker's scratch, used by one thread at a time; it grows to what the largest picture needs and never shrinks.
 *
 * The two passes are interleaved: the horizontal pass fills a short band of rows just ahead of the vertical pass, which
 * writes its row to the final place (u8 interleaved) or into one scratch row for the output stage. So a source pixel is
 * read once, an output element written once, and everything between stays in the first-level cache:
 *
 *     pixels --horizontal--> band of rows --vertical--> slot, or one row --output--> slot
 *
 * Rows may come in pieces (transform_rows()); a whole picture is one piece.
 */
#include "transform/internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

#define CACHED 4     /* axes kept of each direction */
#define BATCH_ROWS 8 /* rows that the horizontal pass makes at once, where there are as many */

struct axis_cache {
    struct axis axis[CACHED];
    uint32_t next; /* to be replaced */
};

/* What of the output window lies inside `full` on one side: outputs [before, before + inside). */
struct window {
    uint32_t first;  /* in full */
    uint32_t inside; /* 0: the window is all padding */
    uint32_t before; /* padding in front of it */
};

struct plan {
    struct window across, down;
    struct axis_key across_key, down_key;
};

/* Rows to their place. */
struct sink {
    const struct transform_spec *spec;
    const struct output_table *table;
    output_row *convert; /* NULL: u8 rows are made in their final place */
    uint8_t *out;
    uint8_t *row;                 /* scratch for one u8 row where convert is set */
    size_t pitch, plane;          /* bytes from row to row, from channel plane to plane */
    size_t before, inside, after; /* bytes of a u8 row: padding, picture, padding */
    bool upside_down;
};

/* Horizontally finished rows [first, done) of the source interval. */
struct band {
    uint8_t *data; /* row `first` */
    size_t stride;
    uint32_t capacity; /* rows */
    uint32_t first, done;
};

/* Both passes over one picture. */
struct passes {
    struct plan plan;
    const struct axis *across, *down;
    struct band band;
    struct sink sink;
    uint32_t y; /* output rows before it are finished */
};

/* The row of the batch in hand. */
struct job {
    const struct transform_spec *spec;
    struct transform_spec plain; /* what the passes make where colours are changed behind them */
    struct transform_geometry geometry;
    void *out;
};

struct transform {
    uint64_t max_pixels;
    const struct twin *twin;
    struct buffer pixels; /* transform_pixels() */
    struct buffer band;   /* rows between the passes */
    struct buffer row;    /* one finished u8 row before the output stage */
    struct buffer whole;  /* a finished u8 picture, where colours are changed before the output stage */
    struct axis_cache across, down;
    struct transform_spec spec; /* that `table` was made for */
    bool table_valid;
    struct output_table table;
    struct passes passes;
    struct job job;
};

/* Twins. ----------------------------------------------------------------------------------------------------------- */

size_t twins_supported(const struct twin *ret[TWINS_MAX]) {
    size_t n = 0;
    ret[n++] = &twin_scalar;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2"))
        return n;
    ret[n++] = &twin_avx2;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni"))
        ret[n++] = &twin_avx512;
#endif
    return n;
}

/* The fastest that the CPU runs, not above $LOADERD_SIMD where that names a twin. */
static const struct twin *choose_twin(void) {
    const struct twin *list[TWINS_MAX];
    size_t n = twins_supported(list);
    const char *limit = getenv("LOADERD_SIMD");
    static const char *const names[] = {"scalar", "avx2", "avx512"};
    for (size_t level = 0; limit && level < ARRAY_SIZE(names); level++)
        if (!strcmp(limit, names[level]))
            n = MIN(n, level + 1);
    return list[n - 1];
}

const char *transform_simd(void) {
    return choose_twin()->name;
}

/* Scratch. --------------------------------------------------------------------------------------------------------- */

int transform_new_twin(uint64_t max_pixels, const struct twin *twin, struct transform **ret) {
    struct transform *t = calloc(1, sizeof *t);
    if (!t)
        return -ENOMEM;
    t->max_pixels = max_pixels;
    t->twin = twin;
    *ret = t;
    return 0;
}

int transform_new(uint64_t max_pixels, struct transform **ret) {
    return transform_new_twin(max_pixels, choose_twin(), ret);
}

void transform_free(struct transform *transform) {
    if (!transform)
        return;
    for (uint32_t i = 0; i < CACHED; i++) {
        axis_deinit(&transform->across.axis[i]);
        axis_deinit(&transform->down.axis[i]);
    }
    scratch_deinit(&transform->pixels);
    scratch_deinit(&transform->band);
    scratch_deinit(&transform->row);
    scratch_deinit(&transform->whole);
    free(transform);
}

uint8_t *transform_pixels(struct transform *transform, uint32_t width, uint32_t height, uint32_t channels,
                          size_t *ret_stride) {
    uint64_t stride, bytes;
    if (!width || !height || !channels || (uint64_t)width * height > transform->max_pixels)
        return NULL;
    if (!mul_u64(width, channels, &stride) || !mul_u64(stride, height, &bytes) ||
        scratch_reserve(&transform->pixels, bytes) < 0)
        return NULL;
    *ret_stride = (size_t)stride;
    return transform->pixels.data;
}

uint64_t transform_row_bytes(const struct transform_spec *spec) {
    return (uint64_t)spec->width * spec->height * spec->channels * output_element(spec);
}

static bool key_equal(const struct axis_key *a, const struct axis_key *b) {
    return a->in == b->in && a->full == b->full && a->first == b->first && a->count == b->count &&
           a->filter == b->filter && a->mirror == b->mirror && a->channels == b->channels;
}

/* The axis of a key, from the cache or computed in place of the oldest. */
static int find_axis(struct transform *transform, struct axis_cache *cache, const struct axis_key *key,
                     const struct axis **ret) {
    for (uint32_t i = 0; i < CACHED; i++)
        if (key_equal(&cache->axis[i].key, key)) {
            *ret = &cache->axis[i];
            return 0;
        }
    struct axis *axis = &cache->axis[cache->next];
    cache->next = (cache->next + 1) % CACHED;
    int r = axis_fill(axis, key);
    if (r == 0 && transform->twin->pack && !axis->identity && axis->weights)
        r = transform->twin->pack(axis);
    if (r < 0) {
        axis->key.count = 0; /* no key has it: not found again */
        return r;
    }
    *ret = axis;
    return 0;
}

/* Geometry to axes. ------------------------------------------------------------------------------------------------ */

static struct window clip_window(int32_t offset, uint32_t side, uint32_t full) {
    int64_t low = MAX((int64_t)offset, 0), high = MIN((int64_t)offset + side, (int64_t)full);
    if (high <= low)
        return (struct window){0, 0, 0};
    return (struct window){(uint32_t)low, (uint32_t)(high - low), (uint32_t)(low - offset)};
}

static struct plan make_plan(const struct transform_spec *spec, const struct transform_geometry *g) {
    struct plan p = {
        clip_window(g->x0, spec->width, g->full_width), clip_window(g->y0, spec->height, g->full_height), {0}, {0}};
    p.across_key = (struct axis_key){g->source.width,        g->full_width, p.across.first, p.across.inside,
                                     (uint32_t)spec->filter, g->flip,       spec->channels};
    p.down_key =
        (struct axis_key){g->source.height, g->full_height, p.down.first, p.down.inside, (uint32_t)spec->filter, 0, 0};
    if (g->flip)
        p.across.before = spec->width - p.across.inside - p.across.before;
    return p;
}

static bool plan_empty(const struct plan *plan) {
    return !plan->across.inside || !plan->down.inside;
}

void transform_region(const struct transform_spec *spec, const struct transform_geometry *geometry, struct box *ret) {
    struct plan plan = make_plan(spec, geometry);
    struct box box = {0, 0, 1, 1}; /* all padding: one pixel, not looked at */
    if (!plan_empty(&plan)) {
        axis_interval(&plan.across_key, &box.x, &box.width);
        axis_interval(&plan.down_key, &box.y, &box.height);
    }
    box.x += geometry->source.x;
    box.y += geometry->source.y;
    *ret = box;
}

/* Rows to their place. --------------------------------------------------------------------------------------------- */

static uint8_t *sink_place(const struct sink *sink, uint32_t y) {
    return sink->out + (sink->upside_down ? sink->spec->height - 1 - y : y) * sink->pitch;
}

/* Where the picture part of u8 row y is to be written. */
static uint8_t *sink_row(const struct sink *sink, uint32_t y) {
    return (sink->convert ? sink->row : sink_place(sink, y)) + sink->before;
}

static void sink_finish(const struct sink *sink, uint32_t y) {
    uint8_t *picture = sink_row(sink, y);
    memset(picture - sink->before, 0, sink->before);
    memset(picture + sink->inside, 0, sink->after);
    if (sink->convert)
        sink->convert(sink->table, sink->row, sink->spec->width, sink_place(sink, y), sink->plane);
}

static void sink_blank(const struct sink *sink, uint32_t y) {
    uint8_t *picture = sink_row(sink, y);
    memset(picture, 0, sink->inside);
    sink_finish(sink, y);
}

static bool changes_colors(const struct transform_geometry *geometry) {
    return geometry->color.jitter || geometry->color.gray;
}

static bool table_fits(const struct transform *transform, const struct transform_spec *spec) {
    const struct transform_spec *old = &transform->spec;
    return transform->table_valid && old->dtype == spec->dtype && old->channels == spec->channels &&
           old->layout == spec->layout && old->normalize == spec->normalize &&
           (!spec->normalize ||
            (!memcmp(old->mean, spec->mean, sizeof spec->mean) && !memcmp(old->std, spec->std, sizeof spec->std)));
}

static void output_table_for(struct transform *transform, const struct transform_spec *spec) {
    if (table_fits(transform, spec))
        return;
    output_table_fill(&transform->table, spec);
    transform->spec = *spec;
    transform->table_valid = true;
}

static int make_sink(struct transform *transform, const struct transform_spec *spec, const struct plan *plan,
                     const struct transform_geometry *geometry, void *out, struct sink *ret) {
    size_t channels = spec->channels, row = spec->width * channels, element = output_element(spec);
    bool planar = spec->layout == LAYOUT_NCHW && channels > 1, empty = plan_empty(plan);
    bool convert = planar || element > 1;
    if (convert)
        output_table_for(transform, spec);
    int r = scratch_reserve(&transform->row, row);
    if (r < 0)
        return r;
    *ret = (struct sink){.spec = spec,
                         .table = &transform->table,
                         .out = out,
                         .row = transform->row.data,
                         .convert = convert ? transform->twin->output : NULL,
                         .pitch = planar ? spec->width * element : row * element,
                         .plane = (size_t)spec->width * spec->height * element,
                         .before = empty ? 0 : plan->across.before * channels,
                         .inside = empty ? row : plan->across.inside * channels,
                         .upside_down = geometry->flip_vertical};
    ret->after = row - ret->before - ret->inside;
    return 0;
}

/* The passes. ------------------------------------------------------------------------------------------------------ */

static int make_band(struct transform *transform, const struct axis *across, const struct axis *down,
                     struct band *ret) {
    *ret = (struct band){0};
    if (across->identity)
        return 0;
    uint64_t stride = align_up((uint64_t)across->key.count * across->key.channels, 64), bytes;
    uint64_t capacity = MIN(2 * (uint64_t)down->taps + 4 * BATCH_ROWS, (uint64_t)down->length);
    if (!mul_u64(stride, capacity, &bytes))
        return -EOVERFLOW;
    int r = scratch_reserve(&transform->band, bytes);
    ret->data = transform->band.data;
    ret->stride = (size_t)stride;
    ret->capacity = (uint32_t)capacity;
    return r;
}

/* The next rows of the source interval through the horizontal pass. Those before `begin` may go. */
static void band_add(struct band *band, const struct twin *twin, const struct axis *across, const uint8_t *source,
                     size_t stride, uint32_t rows, uint32_t begin) {
    if (band->done + rows - band->first > band->capacity) { /* the rows still wanted move to the front */
        uint32_t from = MIN(begin, band->done);
        memmove(band->data, band->data + (size_t)(from - band->first) * band->stride,
                (size_t)(band->done - from) * band->stride);
        band->first = from;
    }
    assert(band->done + rows - band->first <= band->capacity);
    twin->horizontal(across, source, stride, rows, band->data + (size_t)(band->done - band->first) * band->stride,
                     band->stride);
    band->done += rows;
}

/* The output of the vertical pass that row y is; false where that is padding. */
static bool passes_output(const struct passes *p, uint32_t y, uint32_t *ret_i) {
    *ret_i = y - p->plan.down.before; /* wraps in the padding above */
    return *ret_i < p->plan.down.inside;
}

/* Finishes the output rows whose source rows are all there. */
static void passes_finish(struct passes *p, const struct twin *twin) {
    const struct axis *down = p->down;
    const struct band *band = &p->band;
    for (uint32_t i; p->y < p->sink.spec->height; p->y++) {
        if (!passes_output(p, p->y, &i)) {
            sink_blank(&p->sink, p->y);
            continue;
        }
        if (down->begin[i] + down->number[i] > band->done)
            return;
        const uint8_t *rows = band->data + (size_t)(down->begin[i] - band->first) * band->stride;
        if (down->identity)
            memcpy(sink_row(&p->sink, p->y), rows, p->sink.inside);
        else
            twin->vertical(down, i, rows, band->stride, sink_row(&p->sink, p->y), p->sink.inside);
        sink_finish(&p->sink, p->y);
    }
}

/* The next rows of the source interval. */
static void passes_add(struct passes *p, const struct twin *twin, const uint8_t *source, size_t stride, uint32_t rows) {
    for (uint32_t n, i; rows > 0; rows -= n, source += n * stride) {
        n = MIN(rows, BATCH_ROWS);
        bool wanted = p->y < p->sink.spec->height && passes_output(p, p->y, &i);
        band_add(&p->band, twin, p->across, source, stride, n, wanted ? p->down->begin[i] : p->band.done);
        passes_finish(p, twin);
    }
}

/* No horizontal pass: the source's rows are the band. */
static void passes_in_place(struct passes *p, const struct twin *twin, uint8_t *source, size_t stride) {
    p->band = (struct band){.data = source, .stride = stride, .done = p->down->length};
    passes_finish(p, twin);
}

/* No pass between: rows that no output takes are not touched. */
static void passes_nearest(struct passes *p, const uint8_t *source, size_t stride) {
    for (uint32_t i; p->y < p->sink.spec->height; p->y++) {
        if (!passes_output(p, p->y, &i)) {
            sink_blank(&p->sink, p->y);
            continue;
        }
        const uint8_t *row = source + (size_t)p->down->begin[i] * stride;
        if (p->across->identity)
            memcpy(sink_row(&p->sink, p->y), row, p->sink.inside);
        else
            horizontal_scalar(p->across, row, 0, 1, sink_row(&p->sink, p->y), 0);
        sink_finish(&p->sink, p->y);
    }
}

/* Makes ready for rows: axes, band, sink. */
static int passes_begin(struct transform *transform, const struct transform_spec *spec,
                        const struct transform_geometry *geometry, void *out) {
    struct passes *p = &transform->passes;
    p->plan = make_plan(spec, geometry);
    p->y = 0;
    int r = make_sink(transform, spec, &p->plan, geometry, out, &p->sink);
    if (r < 0 || plan_empty(&p->plan))
        return r;
    r = find_axis(transform, &transform->across, &p->plan.across_key, &p->across);
    r = r < 0 ? r : find_axis(transform, &transform->down, &p->plan.down_key, &p->down);
    return r < 0 ? r : make_band(transform, p->across, p->down, &p->band);
}

/* All rows at once. */
static void passes_run(struct passes *p, const struct twin *twin, uint8_t *source, size_t stride) {
    if (plan_empty(&p->plan)) {
        for (; p->y < p->sink.spec->height; p->y++)
            sink_blank(&p->sink, p->y);
    } else if (p->sink.spec->filter == FILTER_NEAREST) {
        passes_nearest(p, source, stride);
    } else if (p->across->identity) {
        passes_in_place(p, twin, source, stride);
    } else {
        passes_add(p, twin, source, stride, p->down->length);
    }
}

static int check_region(const struct transform_spec *spec, const struct box *need, const struct box *region,
                        const struct picture *pixels, struct diag *diag) {
    bool inside = need->x >= region->x && need->y >= region->y && need->width <= region->width &&
                  need->height <= region->height && need->x - region->x <= region->width - need->width &&
                  need->y - region->y <= region->height - need->height;
    if (!inside || pixels->width != region->width || pixels->height != region->height ||
        pixels->channels != spec->channels)
        return diag_set(diag, -EINVAL,
                        "transform got %ux%u pixels of %u channels for a region of %ux%u at (%u, %u), and needs %ux%u "
                        "at (%u, %u) of %u channels",
                        pixels->width, pixels->height, pixels->channels, region->width, region->height, region->x,
                        region->y, need->width, need->height, need->x, need->y, spec->channels);
    return 0;
}

/* Makes ready for the rows of a picture; with colours to be changed the passes make a u8 picture beside. */
static int begin(struct transform *transform, const struct transform_spec *spec,
                 const struct transform_geometry *geometry, void *out, struct diag *diag) {
    struct job *job = &transform->job;
    *job = (struct job){.spec = spec, .geometry = *geometry, .out = out};
    int r = 0;
    if (changes_colors(geometry)) {
        job->plain = *spec;
        job->plain.dtype = LOADERD_U8;
        job->plain.layout = LAYOUT_NHWC;
        job->plain.normalize = false;
        r = scratch_reserve(&transform->whole, (uint64_t)spec->width * spec->channels * spec->height);
        r = r < 0 ? r : passes_begin(transform, &job->plain, geometry, transform->whole.data);
    } else {
        r = passes_begin(transform, spec, geometry, out);
    }
    if (r < 0)
        return diag_set(diag, r, "no memory to resize %ux%u pixels to %ux%u: lower max-pixels or the image size",
                        geometry->source.width, geometry->source.height, geometry->full_width, geometry->full_height);
    return 0;
}

/* Colours are changed on the whole u8 picture, since contrast needs its mean; then the output stage runs. */
static void change_colors(struct transform *transform) {
    const struct job *job = &transform->job;
    const struct transform_spec *spec = job->spec;
    size_t pitch = (size_t)spec->width * spec->channels;
    color_apply(spec, &job->geometry.color, transform->whole.data);
    output_table_for(transform, spec);
    size_t element = transform->table.element;
    bool planar = spec->layout == LAYOUT_NCHW && spec->channels > 1;
    for (uint32_t y = 0; y < spec->height; y++)
        transform->twin->output(&transform->table, transform->whole.data + y * pitch, spec->width,
                                (uint8_t *)job->out + y * (planar ? spec->width : pitch) * element,
                                (size_t)spec->width * spec->height * element);
}

bool transform_takes_rows(const struct transform_spec *spec, const struct transform_geometry *geometry) {
    struct plan plan = make_plan(spec, geometry);
    return spec->filter != FILTER_NEAREST && !plan_empty(&plan) &&
           (geometry->flip || plan.across_key.in != plan.across_key.full);
}

int transform_begin(struct transform *transform, const struct transform_spec *spec,
                    const struct transform_geometry *geometry, void *out, struct diag *diag) {
    assert(transform_takes_rows(spec, geometry));
    return begin(transform, spec, geometry, out, diag);
}

void transform_rows(struct transform *transform, const uint8_t *pixels, size_t stride, uint32_t rows) {
    passes_add(&transform->passes, transform->twin, pixels, stride, rows);
}

void transform_end(struct transform *transform) {
    const struct job *job = &transform->job;
    assert(transform->passes.y == job->spec->height);
    if (changes_colors(&job->geometry))
        change_colors(transform);
    if (job->geometry.color.erase.width)
        color_erase(job->spec, &job->geometry.color.erase, job->out);
}

int transform_apply(struct transform *transform, const struct transform_spec *spec,
                    const struct transform_geometry *geometry, const struct box *region, const struct picture *pixels,
                    void *out, struct diag *diag) {
    struct box need;
    transform_region(spec, geometry, &need);
    int r = check_region(spec, &need, region, pixels, diag);
    r = r < 0 ? r : begin(transform, spec, geometry, out, diag);
    if (r < 0)
        return r;
    passes_run(&transform->passes, transform->twin,
               pixels->pixels + (size_t)(need.y - region->y) * pixels->stride +
                   (size_t)(need.x - region->x) * pixels->channels,
               pixels->stride);
    transform_end(transform);
    return 0;
}
