/* SPDX-License-Identifier: MIT */
/*
 * Pipelines and sessions: from keys to an open dataset, and from a trainer's wishes to a ring and the recipe of its rows.
 * Sets the stages up; runs none of them. Not on the data path. Threads: see pipeline.h.
 */
#include "pipeline.h"

#include <inttypes.h>
#include <fcntl.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/util.h"
#include "cache/cache.h"
#include "read/read.h"
#include "session.h"
#include "subset.h"
#include "topology.h"
#include "pool.h"

#define UNIT_BYTES 32768u  /* small records are claimed together up to about this much */
#define DEFAULT_IMAGE 224u /* pixels, where pictures of any size must become a batch and no key says how */
#define DEFAULT_RESIZE(image) (((image)*256u + 112u) / 224u) /* short side before the centre crop */
#define ORDINARY_WORKERS 8u /* fewer do not keep memory busy: they copy faster past the caches */
#define ROWS_A_WORKER 32u   /* that a ring has room for, ... */
#define MOST_SLOTS 64u      /* ... up to so many slots */
#define MIN_BAD_LIMIT 10u   /* bad rows an epoch that on-error=auto always lets pass */

struct pipeline {
    _Atomic uint32_t references;
    struct pipeline_config config;
    struct daemon_config daemon; /* numbers only: its strings are not ours and not used */
    struct dataset *dataset;
    struct cache *cache; /* NULL: none */
    bool cache_busy;     /* another process had it: to be asked for again */
};

static void scan_progress(void *arg, uint64_t samples, double seconds) {
    const struct pipeline_config *config = arg;
    log_notice("scanning %s: %" PRIu64 " samples after %.0f s", config->dataset, samples, seconds);
}

static const char *text_or_null(const char *text) {
    return text && *text ? text : NULL;
}

/* ---- cache ------------------------------------------------------------------------------------------------------- */

/* Bytes that this process may have. */
static uint64_t memory_limit(void) {
    struct topology topology;
    uint64_t all = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    if (topology_read("", &topology, NULL) < 0)
        return all;
    all = MIN(all, topology.memory_limit);
    topology_deinit(&topology);
    return all;
}

/* A page that a file server does not send would hang a worker. */
static int check_local(const char *directory, struct diag *diag) {
    const char *name;
    cleanup_close int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0 && read_is_remote(fd, &name))
        return diag_set(diag, -EOPNOTSUPP, "%s is on %s; a cache belongs on a disk of this machine", directory, name);
    return 0;
}

/* A cache that cannot be had is a line on the log, never a failure. What another process has is asked for again when a
 * session opens: it may be a daemon that drains. Only the thread that opens. */
static void open_cache(struct pipeline *p) {
    const struct pipeline_config *c = &p->config;
    struct diag diag = DIAG_INIT;
    if (!*c->cache)
        return;
    struct cache_options options = {.directory = c->cache, .bytes = c->cache_size, .memory = memory_limit()};
    int r = 0;
    if (config_cache_ram(c->cache, &options.bytes)) {
        options.directory = NULL;
        if (c->cache_size)
            r = diag_set(&diag, -EINVAL, "cache = ram:SIZE says its size; take cache-size away");
    }
    if (r == 0)
        r = cache_open(&options, &p->cache, &diag);
    if (r == 0 && options.directory)
        r = check_local(options.directory, &diag);
    bool again = p->cache_busy;
    p->cache_busy = r == -EBUSY;
    if (r < 0) {
        p->cache = cache_unref(p->cache);
        if (again && p->cache_busy)
            return; /* said already */
        log_warning("pipeline %s runs without a cache: %s", c->name, diag.text);
    }
}

int pipeline_new(const struct pipeline_config *config, const struct daemon_config *daemon, struct pipeline **ret,
                 struct diag *diag) {
    if (!text_or_null(config->dataset))
        return diag_set(diag, -EINVAL, "pipeline %s has no dataset; set dataset = PATH", config->name);
    struct pipeline *p = calloc(1, sizeof *p);
    if (!p)
        return diag_set(diag, -ENOMEM, "out of memory for pipeline %s", config->name);
    atomic_init(&p->references, 1);
    p->daemon = *daemon;
    int r = pipeline_config_copy(config, &p->config);
    if (r < 0) {
        free(p);
        return diag_set(diag, r, "out of memory for pipeline %s", config->name);
    }
    const struct dataset_options options = {.path = config->dataset,
                                            .format = text_or_null(config->format),
                                            .record = text_or_null(config->record),
                                            .skip_bytes = config->skip_bytes,
                                            .labels = text_or_null(config->labels),
                                            .classes = text_or_null(config->classes),
                                            .masks = text_or_null(config->masks),
                                            .boxes = text_or_null(config->boxes),
                                            .box_form = text_or_null(config->box_form),
                                            .box_json = text_or_null(config->box_json),
                                            .bytes = text_or_null(config->bytes),
                                            .tokens = config->tokens,
                                            .token_dtype = config->token_dtype,
                                            .vocabulary = config->vocabulary,
                                            .wanted_fields = text_or_null(config->fields),
                                            .index = text_or_null(config->index),
                                            .progress = scan_progress,
                                            .progress_arg = &p->config};
    r = dataset_open(&options, &p->dataset, diag);
    if (r < 0) {
        pipeline_unref(p);
        return r;
    }
    for (uint32_t i = 0; i < dataset_remarks(p->dataset); i++)
        log_notice("%s: %s", config->dataset, dataset_remark(p->dataset, i));
    log_info("pipeline %s: %" PRIu64 " samples, format %s, %s", config->name, dataset_samples(p->dataset),
             dataset_format(p->dataset), dataset_index_note(p->dataset));
    open_cache(p);
    *ret = p;
    return 0;
}

struct pipeline *pipeline_ref(struct pipeline *pipeline) {
    atomic_fetch_add_explicit(&pipeline->references, 1, memory_order_relaxed);
    return pipeline;
}

struct pipeline *pipeline_unref(struct pipeline *pipeline) {
    if (pipeline && atomic_fetch_sub_explicit(&pipeline->references, 1, memory_order_acq_rel) == 1) {
        cache_unref(pipeline->cache);
        dataset_free(pipeline->dataset);
        pipeline_config_deinit(&pipeline->config);
        free(pipeline);
    }
    return NULL;
}

const struct dataset *pipeline_dataset(const struct pipeline *pipeline) {
    return pipeline->dataset;
}

const struct pipeline_config *pipeline_config(const struct pipeline *pipeline) {
    return &pipeline->config;
}

/* What a session's ring may take: the key, and a twentieth of the memory that this cgroup may have. */
static uint64_t ring_limit(const struct session *s, const struct session_request *request) {
    uint64_t limit = request->max_ring_bytes ? request->max_ring_bytes : s->pipeline->daemon.max_ring_bytes;
    uint64_t memory = pool_topology(s->pool)->memory_limit;
    return memory == UINT64_MAX ? limit : MIN(limit, memory / 20);
}

/* ---- order ------------------------------------------------------------------------------------------------------ */

static enum order_shuffle map_shuffle(enum config_shuffle shuffle) {
    switch (shuffle) {
    case CONFIG_SHUFFLE_NONE:
        return SHUFFLE_NONE;
    case CONFIG_SHUFFLE_FULL:
        return SHUFFLE_FULL;
    case CONFIG_SHUFFLE_CHUNKED:
        return SHUFFLE_CHUNKED;
    case CONFIG_SHUFFLE_EXPLICIT:
        return SHUFFLE_EXPLICIT;
    }
    return SHUFFLE_NONE;
}

static void map_order(const struct session_request *request, uint64_t samples, struct order *ret) {
    const struct pipeline_config *c = &request->config;
    *ret = (struct order){.samples = samples,
                          .seed = request->has_state ? request->state_seed : c->seed,
                          .batch = c->batch,
                          .rank = request->rank,
                          .world = request->world,
                          .shuffle = map_shuffle(c->shuffle)};
    switch (c->last) {
    case CONFIG_LAST_DROP:
        ret->last = LAST_DROP;
        break;
    case CONFIG_LAST_KEEP:
        ret->last = LAST_KEEP;
        break;
    case CONFIG_LAST_PAD:
        ret->last = LAST_PAD;
        break;
    case CONFIG_LAST_AUTO:
        ret->last = ret->shuffle == SHUFFLE_NONE ? LAST_PAD : LAST_DROP;
        break;
    }
}

/* The ids that subset and fraction choose; none where they choose all. */
static int choose_subset(const struct session *s, const struct pipeline_config *c, struct subset *ret,
                         struct diag *diag) {
    const uint64_t samples = dataset_samples(s->dataset), most = s->ring_limit / sizeof(uint64_t);
    int r = 0;
    if (*c->subset)
        r = subset_load(c->subset, samples, most, ret, diag);
    if (r == 0)
        r = subset_thin(ret, c->fraction, samples, most, diag);
    return r;
}

/* An explicit order is one epoch without end. */
static int make_explicit(struct session *s, const struct pipeline_config *c, struct diag *diag) {
    const char *key = *c->subset         ? "subset"
                      : c->fraction < 1  ? "fraction"
                      : *c->weights      ? "weights"
                      : c->epoch_samples ? "epoch-samples"
                                         : NULL;
    if (key)
        return diag_set(diag, -EINVAL, "shuffle = explicit: the trainer says which samples come, so %s has no meaning",
                        key);
    s->order.samples = UINT64_C(1) << 62;
    s->order.last = LAST_DROP;
    return 0;
}

/* Orders that need tables: of chunks, subsets, mixtures. */
static int make_plan(struct session *s, const struct pipeline_config *c, struct diag *diag) {
    if (c->shuffle == CONFIG_SHUFFLE_EXPLICIT)
        return make_explicit(s, c, diag);
    uint32_t weight[CONFIG_MAX_WEIGHTS], weights = config_weights(c->weights, weight, CONFIG_MAX_WEIGHTS);
    struct order_plan_spec spec = {.shuffle = s->order.shuffle,
                                   .seed = s->order.seed,
                                   .samples = dataset_samples(s->dataset),
                                   .chunk = c->chunk,
                                   .window = c->window,
                                   .weights = weights ? weight : NULL,
                                   .epoch_samples = c->epoch_samples};
    spec.source_count = dataset_sources(s->dataset, &spec.sources);
    spec.shard_count = dataset_shards(s->dataset, &spec.shards);
    if (weights && weights != spec.source_count)
        return diag_set(diag, -EINVAL, "weights = %s: %u of them for %u dataset%s; datasets are joined by ' + '",
                        c->weights, weights, spec.source_count, spec.source_count == 1 ? "" : "s");
    if (c->shuffle != CONFIG_SHUFFLE_CHUNKED && !*c->subset && c->fraction >= 1 && !weights && !c->epoch_samples)
        return 0;
    struct subset subset = {0};
    int r = choose_subset(s, c, &subset, diag);
    spec.ids = subset.ids;
    spec.id_count = subset.count;
    if (r == 0)
        r = order_plan_new(&spec, &s->order.plan, diag);
    subset_deinit(&subset);
    if (r < 0)
        return r;
    char text[256];
    order_plan_describe(s->order.plan, text, sizeof text);
    log_info("session %" PRIu64 " of pipeline %s: %s", s->number, c->name, text);
    s->order.samples = order_plan_samples(s->order.plan);
    return 0;
}

/* Where the session starts and how many batches it will ever give. */
static int set_range(struct session *s, const struct session_request *request, uint64_t *ret_sequences,
                     struct diag *diag) {
    s->first_epoch = request->epoch + request->step / s->steps;
    s->first_step = request->step % s->steps;
    *ret_sequences = UINT64_MAX;
    if (request->epochs == 0)
        return 0;
    uint64_t all;
    if (!mul_u64(request->epochs, s->steps, &all))
        return 0; /* more than anybody will ever pop */
    if (request->step >= all)
        return diag_set(diag, -EINVAL,
                        "step %" PRIu64 " is past the end: %" PRIu64 " epochs of %" PRIu64 " steps were asked for",
                        request->step, request->epochs, s->steps);
    *ret_sequences = all - request->step;
    return 0;
}

/* ---- recipe ----------------------------------------------------------------------------------------------------- */

static bool wants_crop(const struct pipeline_config *c) {
    return c->augment & (CONFIG_AUGMENT_CENTER_CROP | CONFIG_AUGMENT_RANDOM_RESIZED_CROP | CONFIG_AUGMENT_RANDOM_CROP |
                         CONFIG_AUGMENT_STRETCH);
}

/* Keys to the picture's spec. `width` x `height`: of the stored picture, 0 where pictures differ. */
static int map_spec(const struct pipeline_config *c, uint32_t width, uint32_t height, struct transform_spec *ret,
                    struct diag *diag) {
    struct transform_spec spec = {.width = c->image_width ? c->image_width
                                           : width        ? width
                                                          : DEFAULT_IMAGE,
                                  .height = c->image_height ? c->image_height
                                            : height        ? height
                                                            : DEFAULT_IMAGE,
                                  .channels = c->color == CONFIG_COLOR_GRAY ? 1 : 3,
                                  .padding = c->padding,
                                  .scale = {c->scale[0], c->scale[1]},
                                  .ratio = {c->ratio[0], c->ratio[1]},
                                  .normalize = c->normalize,
                                  .dtype = c->dtype,
                                  .layout = c->layout == CONFIG_LAYOUT_NCHW ? LAYOUT_NCHW : LAYOUT_NHWC};
    memcpy(spec.mean, c->mean, sizeof spec.mean);
    memcpy(spec.std, c->std, sizeof spec.std);
    spec.filter = c->filter == CONFIG_FILTER_NEAREST   ? FILTER_NEAREST
                  : c->filter == CONFIG_FILTER_BICUBIC ? FILTER_BICUBIC
                                                       : FILTER_BILINEAR;
    if (c->augment & CONFIG_AUGMENT_RANDOM_RESIZED_CROP)
        spec.crop = CROP_RANDOM_RESIZED;
    else if (c->augment & CONFIG_AUGMENT_RANDOM_CROP)
        spec.crop = CROP_RANDOM_PADDED;
    else if (c->augment & CONFIG_AUGMENT_STRETCH)
        spec.crop = CROP_NONE;
    else if (c->augment & CONFIG_AUGMENT_CENTER_CROP || !(width == spec.width && height == spec.height))
        spec.crop = CROP_CENTER;
    else
        spec.crop = CROP_NONE;
    if (spec.crop == CROP_CENTER)
        spec.resize = c->resize ? c->resize : DEFAULT_RESIZE(MIN(spec.width, spec.height));
    else if (c->resize)
        return diag_set(diag, -EINVAL,
                        "resize = %u goes with the centre crop; random-resized-crop, random-crop and "
                        "stretch take their size from image",
                        c->resize);
    memcpy(spec.jitter, c->color_jitter, sizeof spec.jitter);
    spec.grayscale = c->grayscale_probability;
    spec.erase = c->erase_probability;
    spec.flip = c->augment & CONFIG_AUGMENT_FLIP ? c->flip_probability : 0;
    spec.flip_vertical = c->augment & CONFIG_AUGMENT_FLIP_VERTICAL ? c->flip_probability : 0;
    int r = transform_check(&spec, diag);
    if (r == 0)
        *ret = spec;
    return r;
}

static void picture_field(const struct transform_spec *spec, struct field_spec *ret) {
    bool planar = spec->layout == LAYOUT_NCHW;
    ret->dtype = spec->dtype;
    ret->ndim = 3;
    ret->dims[0] = planar ? spec->channels : spec->height;
    ret->dims[1] = planar ? spec->height : spec->width;
    ret->dims[2] = planar ? spec->width : spec->channels;
}

/* A mask keeps its values: nearest resampling, one byte a pixel, whatever the keys say of pictures. */
static void mask_field(struct recipe *recipe, struct field_spec *ret) {
    struct transform_spec *spec = &recipe->spec;
    recipe->follows = true;
    spec->filter = FILTER_NEAREST;
    spec->channels = 1;
    spec->dtype = LOADERD_U8;
    spec->normalize = false;
    spec->layout = LAYOUT_NHWC;
    ret->dtype = LOADERD_U8;
    ret->ndim = 2;
    ret->dims[0] = spec->height;
    ret->dims[1] = spec->width;
}

/* The picture whose geometry a row tells and masks follow: the first one named image, else the first. */
static int choose_leader(struct session *s, const struct dataset_field *field, uint32_t fields, struct diag *diag) {
    struct recipe *leader = NULL;
    bool named = false, mask = false, boxes = false;
    for (uint32_t i = 0; i < fields; i++) {
        bool image = strcmp(field[i].spec.name, "image") == 0;
        mask |= s->recipe[i].follows;
        boxes |= s->recipe[i].kind == RECIPE_BOXES;
        if (s->recipe[i].kind != RECIPE_PICTURE || s->recipe[i].follows || (leader && (named || !image)))
            continue;
        leader = &s->recipe[i];
        named = image;
    }
    if (leader)
        leader->leads = true;
    else if (mask || boxes)
        return diag_set(diag, -EINVAL, "field %s has no encoded picture to follow; one is wanted beside it",
                        mask ? "mask" : "boxes");
    return 0;
}

static uint64_t spec_elements(const struct field_spec *spec) {
    uint64_t n = 1;
    for (uint32_t i = 0; i < spec->ndim; i++)
        n *= (uint64_t)spec->dims[i];
    return n;
}

static bool is_integer(uint32_t dtype) {
    return dtype >= LOADERD_U8 && dtype <= LOADERD_I64;
}

/* A u8 picture inside a raw record: the field "image" of three dimensions, or of two, which is gray. */
static bool is_stored_picture(const struct dataset_field *field) {
    return field->source == SOURCE_BYTES && field->spec.dtype == LOADERD_U8 &&
           (field->spec.ndim == 3 || field->spec.ndim == 2) && strcmp(field->spec.name, "image") == 0;
}

static bool changes_colors(const struct pipeline_config *c) {
    bool jitter = c->color_jitter[0] > 0 || c->color_jitter[1] > 0 || c->color_jitter[2] > 0 || c->color_jitter[3] > 0;
    return jitter || c->grayscale_probability > 0 || c->erase_probability > 0;
}

/* True where the keys ask for nothing that changes a stored picture; `channels` is 0 for one of two dimensions. */
static bool stays_as_stored(const struct pipeline_config *c, uint32_t width, uint32_t height, uint32_t channels) {
    bool planar = c->record_layout == CONFIG_LAYOUT_NCHW;
    return !wants_crop(c) && !(c->augment & (CONFIG_AUGMENT_FLIP | CONFIG_AUGMENT_FLIP_VERTICAL)) && !c->normalize &&
           !changes_colors(c) && c->dtype == LOADERD_U8 &&
           (channels == 0 || (c->color == CONFIG_COLOR_GRAY) == (channels == 1)) && !c->resize &&
           (c->image_width == 0 || c->image_width == width) && (c->image_height == 0 || c->image_height == height) &&
           (planar == (c->layout == CONFIG_LAYOUT_NCHW) || channels <= 1);
}

static int stored_picture(const struct pipeline_config *c, const struct dataset_field *field, struct recipe *recipe,
                          struct field_spec *out, struct diag *diag) {
    bool plane = field->spec.ndim == 2, planar = !plane && c->record_layout == CONFIG_LAYOUT_NCHW;
    int64_t channels = plane ? 0 : field->spec.dims[planar ? 0 : 2];
    int64_t height = field->spec.dims[planar ? 1 : 0], width = field->spec.dims[planar ? 2 : 1];
    if (!plane && channels != 1 && channels != 3)
        return diag_set(diag, -EINVAL,
                        "field image has %" PRId64
                        " channels by record-layout = %s; wanted 1 or 3 (record-layout = %s?)",
                        channels, planar ? "nchw" : "nhwc", planar ? "nhwc" : "nchw");
    if (stays_as_stored(c, (uint32_t)width, (uint32_t)height, (uint32_t)channels)) {
        recipe->kind = RECIPE_COPY;
        return 0;
    }
    struct pipeline_config copy = *c;
    copy.color = channels <= 1 ? CONFIG_COLOR_GRAY : CONFIG_COLOR_RGB;
    if (c->color == CONFIG_COLOR_GRAY && channels == 3)
        return diag_set(diag, -EINVAL, "color = gray is not offered for pictures in raw records; they have 3 channels");
    recipe->kind = RECIPE_STORED_PICTURE;
    recipe->planar = planar;
    recipe->width = (uint32_t)width;
    recipe->height = (uint32_t)height;
    int r = map_spec(&copy, recipe->width, recipe->height, &recipe->spec, diag);
    if (r == 0)
        picture_field(&recipe->spec, out);
    return r;
}

static bool cleans(const struct pipeline_config *c) {
    return c->nan != CONFIG_NAN_KEEP || isfinite(c->clamp[0]);
}

static struct transform_clean map_clean(const struct pipeline_config *c) {
    return (struct transform_clean){c->clamp[0], c->clamp[1],
                                    c->nan == CONFIG_NAN_ERROR  ? NAN_ERROR
                                    : c->nan == CONFIG_NAN_ZERO ? NAN_ZERO
                                                                : NAN_KEEP};
}

static int field_recipe(const struct pipeline_config *c, const struct dataset_field *field, struct recipe *recipe,
                        struct field_spec *out, struct diag *diag) {
    *out = field->spec;
    *recipe = (struct recipe){.extent = field->extent,
                              .offset = field->offset,
                              .bytes = field->bytes,
                              .from = field->spec.dtype,
                              .to = field->spec.dtype,
                              .kind = RECIPE_COPY};
    bool label = strcmp(field->spec.name, "label") == 0 && is_integer(field->spec.dtype);
    switch (field->source) {
    case SOURCE_PICTURE: {
        recipe->kind = RECIPE_PICTURE;
        int r = map_spec(c, 0, 0, &recipe->spec, diag);
        if (r == 0 && strcmp(field->spec.name, "mask") == 0)
            mask_field(recipe, out);
        else if (r == 0)
            picture_field(&recipe->spec, out);
        return r;
    }
    case SOURCE_SYNTHETIC:
        recipe->kind = RECIPE_SYNTHETIC;
        return 0;
    case SOURCE_RAGGED:
        recipe->kind = RECIPE_RAGGED;
        out->dims[0] = recipe->most = (uint32_t)c->bytes_cap;
        return 0;
    case SOURCE_BOXES:
        recipe->kind = RECIPE_BOXES;
        out->dims[0] = recipe->most = c->box_max;
        return 0;
    case SOURCE_VALUE:
        recipe->kind = RECIPE_VALUE;
        recipe->from = LOADERD_I64;
        recipe->to = out->dtype = c->label_dtype;
        return 0;
    case SOURCE_BYTES:
        if (is_stored_picture(field))
            return stored_picture(c, field, recipe, out, diag);
        recipe->count = (size_t)spec_elements(&field->spec);
        recipe->swap = field->swap;
        recipe->to = out->dtype = label ? c->label_dtype : field->deliver ? field->deliver : field->spec.dtype;
        if (recipe->to != recipe->from)
            recipe->kind = RECIPE_CAST;
        recipe->clean = map_clean(c);
        recipe->cleans = recipe->kind == RECIPE_COPY && field->spec.dtype >= LOADERD_F16 && cleans(c);
        return 0;
    }
    return diag_set(diag, -EINVAL, "field %s has no known source", field->spec.name);
}

/* Does the second sample begin inside of the first? */
static bool overlap(const struct dataset *dataset) {
    struct location a, b;
    if (dataset_samples(dataset) < 2)
        return false;
    dataset_locate(dataset, 0, &a);
    dataset_locate(dataset, 1, &b);
    return a.extents == 1 && b.extents == 1 && a.extent[0].file && a.extent[0].file == b.extent[0].file &&
           b.extent[0].offset - a.extent[0].offset < a.extent[0].length;
}

static bool is_stored(const struct dataset_field *field) {
    return field->source != SOURCE_VALUE && field->source != SOURCE_SYNTHETIC;
}

static bool is_counted(const struct recipe *recipe) {
    return recipe->kind == RECIPE_RAGGED || recipe->kind == RECIPE_BOXES;
}

/* Its bytes, where it has any, are at a place of a record that is known beforehand, and need no decoder. */
static bool is_at_hand(const struct recipe *recipe) {
    return recipe->kind == RECIPE_STORED_PICTURE || recipe->kind == RECIPE_COPY || recipe->kind == RECIPE_CAST ||
           recipe->kind == RECIPE_VALUE || recipe->kind == RECIPE_SYNTHETIC;
}

/* Behind the dataset's fields one for each that is filled in part: NAME-length of bytes, NAME-count of boxes. */
static int add_count(struct session *s, struct ring_spec *ring, uint32_t i, struct diag *diag) {
    const char *suffix = s->recipe[i].kind == RECIPE_RAGGED ? "-length" : "-count";
    if (s->nfields == LOADERD_MAX_FIELDS)
        return diag_set(diag, -EINVAL, "more than %d fields, with those for the lengths of bytes and boxes",
                        LOADERD_MAX_FIELDS);
    struct field_spec *spec = &ring->field[s->nfields];
    *spec = (struct field_spec){.dtype = LOADERD_I32};
    if (strlen(ring->field[i].name) + strlen(suffix) >= sizeof spec->name)
        return diag_set(diag, -EINVAL, "field %s: its name with %s behind it is longer than %zu characters",
                        ring->field[i].name, suffix, sizeof spec->name - 1);
    strcpy(stpcpy(spec->name, ring->field[i].name), suffix);
    for (uint32_t k = 0; k < s->nfields; k++)
        if (strcmp(ring->field[k].name, spec->name) == 0)
            return diag_set(diag, -EINVAL, "field %s: the field %s, which would hold its lengths, is there already",
                            ring->field[i].name, spec->name);
    s->recipe[s->nfields] = (struct recipe){.kind = RECIPE_COUNT};
    s->recipe[i].counted = s->nfields++;
    ring->nfields = s->nfields;
    return 0;
}

static int make_recipes(struct session *s, const struct pipeline_config *c, struct ring_spec *ring, struct diag *diag) {
    const struct dataset_field *field;
    const uint32_t fields = dataset_fields(s->dataset, &field);
    s->nfields = ring->nfields = fields;
    uint32_t stored = 0;
    for (uint32_t i = 0; i < fields; i++) {
        int r = field_recipe(c, &field[i], &s->recipe[i], &ring->field[i], diag);
        if (r == 0 && is_counted(&s->recipe[i]))
            r = add_count(s, ring, i, diag);
        if (r < 0)
            return r;
        stored += is_stored(&field[i]);
    }
    for (uint32_t i = 0; cleans(c) && i < fields; i++)
        if (s->recipe[i].cleans)
            break;
        else if (i + 1 == fields)
            return diag_set(
                diag, -EINVAL,
                "clamp and nan are for fields of floats in records, and this dataset has none; pictures have "
                "normalize");
    int led = choose_leader(s, field, fields, diag);
    if (led < 0)
        return led;
    struct location location;
    dataset_locate(s->dataset, 0, &location);
    s->extents = location.extents;
    s->windows = overlap(s->dataset);
    s->splits = dataset_splits(s->dataset);
    s->direct = s->extents == 1 && stored == 1 && !s->splits;
    s->in_place = !s->splits && (s->extents == 0 || (s->extents == 1 && location.extent[0].file));
    for (uint32_t i = 0; i < fields; i++) {
        s->in_place &= is_at_hand(&s->recipe[i]);
        if (!is_stored(&field[i]))
            continue;
        s->direct_field = i;
        s->direct &=
            s->recipe[i].kind == RECIPE_COPY && !s->recipe[i].swap && s->recipe[i].bytes == location.extent[0].length;
    }
    return 0;
}

/* How many rows one claim takes: pictures singly, small records by the dozen, windows all that there are; never more than
 * a worker has reads. */
static uint32_t unit_rows(const struct session *s, const struct ring_spec *ring, uint32_t depth) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->nfields; i++) {
        if (s->recipe[i].kind == RECIPE_PICTURE || is_counted(&s->recipe[i]))
            return 1;
        bytes += spec_elements(&ring->field[i]) * loaderd_dtype_size(ring->field[i].dtype);
    }
    uint64_t rows = s->windows ? UINT32_MAX : UNIT_BYTES / MAX(bytes, 1u);
    return (uint32_t)CLAMP(rows, 1u, MIN(s->order.batch, MAX(depth / MAX(s->extents, 1u), 1u)));
}

/* ---- fingerprint ------------------------------------------------------------------------------------------------- */

static void hash_table(void *hash, const void *bytes, size_t length) {
    hash_bytes(hash, bytes, length);
}

static int make_fingerprint(struct session *s, const struct pipeline_config *c, struct diag *diag) {
    char text[4096];
    int r = pipeline_config_describe(c, text, sizeof text);
    if (r < 0)
        return diag_set(diag, r, "cannot describe the keys of pipeline %s: %s", c->name, strerror(-r));
    const struct daemon_config *d = &s->pipeline->daemon;
    char limits[128];
    snprintf(limits, sizeof limits, "max-pixels=%" PRIu64 " max-sample-bytes=%" PRIu64 " max-scans=%u", d->max_pixels,
             d->max_sample_bytes, d->max_scans);
    struct hash hash;
    dataset_fingerprint(s->dataset, s->fingerprint);
    hash_begin(&hash, "session");
    hash_bytes(&hash, s->fingerprint, sizeof s->fingerprint);
    hash_string(&hash, text);
    hash_string(&hash, limits);
    if (s->order.plan)
        order_plan_hash(s->order.plan, hash_table, &hash);
    hash_end(&hash, s->fingerprint);
    return 0;
}

static int check_state(const struct session *s, const struct session_request *request, struct diag *diag) {
    if (!request->has_state)
        return 0;
    if (memcmp(request->state_fingerprint, s->fingerprint, sizeof s->fingerprint) != 0)
        return diag_set(diag, -EINVAL,
                        "the state belongs to another dataset or pipeline than %s (%s): sample count, names, order and "
                        "transform keys must be those of the run that saved it",
                        request->config.name, dataset_path(s->dataset));
    if (request->state_global_batch != s->global_batch)
        return diag_set(diag, -EINVAL,
                        "the state has a global batch of %" PRIu64 ", here it is batch %u x world %u = %" PRIu64
                        "; set batch so that the product is the same",
                        request->state_global_batch, s->order.batch, s->order.world, s->global_batch);
    return 0;
}

/* ---- session ----------------------------------------------------------------------------------------------------- */

static bool is_shuffled(const struct session *s) {
    return s->order.shuffle == SHUFFLE_FULL || s->order.shuffle == SHUFFLE_CHUNKED;
}

static void set_policy(struct session *s, const struct pipeline_config *c) {
    bool automatic = c->on_error == CONFIG_ON_ERROR_AUTO;
    s->on_bad = c->on_error == CONFIG_ON_ERROR_SUBSTITUTE ? BAD_SUBSTITUTE
                : c->on_error == CONFIG_ON_ERROR_BLANK    ? BAD_BLANK
                : automatic && is_shuffled(s)             ? BAD_SUBSTITUTE
                                                          : BAD_FAIL;
    s->accept_damage = c->on_damage == CONFIG_ON_DAMAGE_ACCEPT;
    s->verify = dataset_has_check(s->dataset) &&
                (c->verify_crc == CONFIG_VERIFY_YES || (c->verify_crc == CONFIG_VERIFY_AUTO && !s->direct));
    s->orient = c->orientation == CONFIG_ORIENTATION_APPLY;
    s->cut = c->on_overflow == CONFIG_OVERFLOW_TRUNCATE;
    s->box_visible = c->box_visible;
    s->bad_limit = UINT64_MAX;
    if (automatic && s->on_bad == BAD_SUBSTITUTE)
        s->bad_limit = MAX(MIN_BAD_LIMIT, (uint64_t)(c->error_limit * (double)s->order.samples));
}

/* Which limits decide whether a JPEG is good: records of one set of them are not found under another. */
static uint32_t cache_variant(const struct session *s) {
    const struct daemon_config *d = &s->pipeline->daemon;
    const uint64_t words[] = {d->max_pixels, d->max_sample_bytes, d->max_scans, s->verify};
    uint8_t digest[16];
    uint32_t variant;
    struct hash hash;
    hash_begin(&hash, "cache");
    hash_bytes(&hash, words, sizeof words);
    hash_end(&hash, digest);
    memcpy(&variant, digest, sizeof variant);
    return variant;
}

/* What the session does with the pipeline's cache. */
static void set_cache(struct session *s) {
    struct location location;
    uint32_t needed = 0; /* extents that other fields than leading pictures are made from */
    if (s->pipeline->cache_busy)
        open_cache(s->pipeline);
    if (!s->pipeline->cache)
        return;
    dataset_locate(s->dataset, 0, &location);
    for (uint32_t i = 0; i < s->nfields; i++) {
        const struct recipe *recipe = &s->recipe[i];
        if (recipe->kind == RECIPE_PICTURE && !recipe->follows)
            s->cache_extents |= 1u << recipe->extent;
        else if (recipe->kind != RECIPE_VALUE && recipe->kind != RECIPE_SYNTHETIC && recipe->kind != RECIPE_COUNT)
            needed |= 1u << recipe->extent;
    }
    for (uint32_t e = 0; e < s->extents; e++) {
        const char *name;
        const struct extent *x = &location.extent[e];
        if (!(s->cache_extents >> e & 1) || x->file || !read_is_remote(x->dirfd, &name))
            continue;
        log_notice("session %" PRIu64
                   " of pipeline %s runs without a cache: to look a single file on %s up by its path can ask the "
                   "server, and a worker would hang as long as that does not answer; shards (tar, pack, TFRecord) are "
                   "cached, since they are open",
                   s->number, s->pipeline->config.name, name);
        return;
    }
    if (!s->cache_extents)
        return;
    s->cache = s->pipeline->cache;
    if (!s->splits && (!s->verify || s->extents == 1)) /* checksums are those of all extents of a sample */
        s->cache_unread = s->cache_extents & ~needed;
    s->cache_full = s->pipeline->config.cache_fill == CONFIG_CACHE_FULL;
    s->cache_variant = cache_variant(s);
    s->cache_user.begun = s->first_step ? -1 : 0;
    cache_join(s->cache, &s->cache_user);
}

/* Slots by key, or 8; more of small batches whose samples are claimed one by one, so that workers do not stand idle behind
 * the slowest of them; as many as fit. */
static uint32_t choose_slots(const struct session *s, const struct pipeline_config *c, struct ring_spec *ring) {
    uint32_t wanted = 8;
    if (c->slots)
        return c->slots;
    if (s->rows_per_unit == 1)
        wanted = CLAMP(pool_workers(s->pool) * ROWS_A_WORKER / ring->batch, wanted, MOST_SLOTS);
    for (ring->slots = MAX(wanted, ring->held + 2); ring->slots > MAX(3u, ring->held + 2); ring->slots--) {
        uint64_t bytes = ring_bytes(ring);
        if (bytes && bytes <= ring->max_bytes)
            break;
    }
    return ring->slots;
}

/* The node of the ring: by key, else where the trainer runs; -1: any. */
static int choose_node(const struct session *s, const struct session_request *request, int *ret, struct diag *diag) {
    const struct topology *topology = pool_topology(s->pool);
    uint32_t node = request->config.node;
    if (node != CONFIG_NODE_AUTO && topology->nodes && !topology_set_has(&topology->node, node))
        return diag_set(diag, -EINVAL,
                        "node = %u: the daemon may use no memory of such a node; write auto, or one that "
                        "/sys/devices/system/node/has_memory lists",
                        node);
    *ret = node == CONFIG_NODE_AUTO ? topology_process_node(topology, request->pid) : (int)node;
    return 0;
}

static int make_ring(struct session *s, const struct session_request *request, struct ring_spec *spec,
                     struct diag *diag) {
    spec->batch = s->order.batch;
    spec->held = MAX(request->held, 1u);
    spec->rows_per_unit = s->rows_per_unit;
    spec->first_epoch = s->first_epoch;
    spec->first_step = s->first_step;
    spec->steps_per_epoch = s->steps;
    spec->samples = dataset_samples(s->dataset);
    spec->seed = s->order.seed;
    spec->rank = s->order.rank;
    spec->world = s->order.world;
    spec->max_bytes = s->ring_limit;
    memcpy(spec->fingerprint, s->fingerprint, sizeof spec->fingerprint);
    spec->slots = choose_slots(s, &request->config, spec);
    if (s->order.shuffle == SHUFFLE_EXPLICIT && request->group)
        return diag_set(diag, -EINVAL,
                        "shuffle = explicit cannot be shared by a group: each trainer sends its own ids");
    if (s->order.shuffle == SHUFFLE_EXPLICIT)
        spec->ids = supply_capacity(spec->slots, spec->batch);
    int r = choose_node(s, request, &spec->node, diag);
    if (r == 0)
        r = ring_new(spec, &s->ring, diag);
    if (r < 0)
        return r;
    s->note = calloc(spec->slots, sizeof *s->note);
    s->history = calloc(ring_lookback(s->ring), sizeof *s->history);
    /* batches in flight lie within a ring: so many epochs at most */
    if (s->note && s->order.plan)
        r = order_plan_reserve(s->order.plan, spec->slots / s->steps + 2);
    if (r == 0 && spec->ids)
        r = supply_new(s->ring, spec->batch, dataset_samples(s->dataset), &s->supply, diag);
    if (!s->note || !s->history || r < 0)
        return diag_set(diag, -ENOMEM, "out of memory for a session");
    s->ring_bytes = ring_data_bytes(s->ring);
    pool_add_ring_bytes(s->pool, s->ring_bytes);
    s->stores = request->config.stores;
    if (pool_workers(s->pool) >= ORDINARY_WORKERS)
        s->cache_room = topology_cache(pool_topology(s->pool), spec->node) / 8 * 5;
    /* read-ahead is cut so that slots x batch >= workers x depth + 2 batches */
    uint64_t room = (uint64_t)(spec->slots - 2) * s->units / pool_workers(s->pool);
    s->ahead = (uint32_t)CLAMP(room, 1u, pool_depth(s->pool));
    if (s->ahead < pool_depth(s->pool))
        log_debug("session %" PRIu64 ": read-ahead cut from %u to %u units a worker by %u slots", s->number,
                  pool_depth(s->pool), s->ahead, spec->slots);
    return 0;
}

static int prepare(struct session *s, const struct session_request *request, struct diag *diag) {
    const struct pipeline_config *c = &request->config;
    map_order(request, dataset_samples(s->dataset), &s->order);
    int r = make_plan(s, c, diag);
    if (r == 0)
        r = order_check(&s->order, diag);
    if (r < 0)
        return diag_prefix(diag, "%s", dataset_path(s->dataset));
    s->steps = order_steps(&s->order);
    s->global_batch = (uint64_t)s->order.batch * s->order.world;
    struct ring_spec spec = {0};
    r = set_range(s, request, &spec.sequences, diag);
    if (r == 0)
        r = make_recipes(s, c, &spec, diag);
    if (r == 0)
        r = make_fingerprint(s, c, diag);
    if (r == 0)
        r = check_state(s, request, diag);
    if (r < 0)
        return r;
    set_policy(s, c);
    s->rows_per_unit = unit_rows(s, &spec, pool_depth(s->pool));
    s->units = (s->order.batch + s->rows_per_unit - 1) / s->rows_per_unit;
    set_cache(s);
    if (s->order.shuffle != SHUFFLE_NONE)
        dataset_expect_scattered(s->dataset);
    return make_ring(s, request, &spec, diag);
}

int session_new(struct pool *pool, struct pipeline *pipeline, const struct session_request *request,
                struct session **ret, struct diag *diag) {
    static _Atomic uint64_t count;
    struct session *s = aligned_alloc(64, align_up(sizeof *s, 64));
    if (!s)
        return diag_set(diag, -ENOMEM, "out of memory for a session");
    memset(s, 0, sizeof *s);
    pthread_mutex_init(&s->fault_lock, NULL);
    s->pipeline = pipeline_ref(pipeline);
    s->dataset = pipeline->dataset;
    s->pool = pool;
    s->number = atomic_fetch_add(&count, 1) + 1;
    s->opened_ns = now_ns();
    s->pid = request->pid;
    s->uid = request->uid;
    s->ring_limit = ring_limit(s, request);
    snprintf(s->job, sizeof s->job, "%s", request->job ? request->job : "");
    int r = prepare(s, request, diag);
    if (r < 0) {
        session_free(s);
        return r;
    }
    ring_set_wake(s->ring, 0, request->wake_fd); /* workers use it as soon as the pool has the session */
    s->member_pid[0] = request->pid;
    if (request->group) {
        snprintf(s->group, sizeof s->group, "%s", request->group);
        ring_let(s->ring, 0);
    }
    r = pool_add(pool, s);
    if (r < 0) {
        ring_set_wake(s->ring, 0, -1);
        session_free(s);
        return diag_set(diag, r, "out of memory for a session");
    }
    *ret = s;
    return 0;
}

void session_free(struct session *session) {
    if (!session)
        return;
    pool_add_ring_bytes(session->pool, -session->ring_bytes);
    if (session->cache)
        cache_leave(session->cache, &session->cache_user);
    ring_free(session->ring);
    free(session->note);
    free(session->history);
    order_plan_free(session->order.plan);
    supply_free(session->supply);
    pipeline_unref(session->pipeline);
    pthread_mutex_destroy(&session->fault_lock);
    free(session);
}

void session_finish(struct session *session) {
    ring_finish(session->ring);
}

bool session_finished(const struct session *session) {
    return atomic_load(&session->inflight) == 0 && ring_finished(session->ring);
}

/* The member's batch 0 as a sequence of the ring; -ESTALE where that is before the ring's first. */
static int start_of(const struct session *s, const struct session_request *request, uint64_t *ret) {
    uint64_t wanted, first = s->first_epoch * s->steps + s->first_step;
    if (!mul_u64(request->epoch, s->steps, &wanted) || !add_u64(wanted, request->step, &wanted) || wanted < first)
        return -ESTALE;
    *ret = wanted - first;
    return 0;
}

int session_join(struct session *s, const struct session_request *request, uint32_t *ret_member, struct diag *diag) {
    uint64_t start = 0;
    int r = check_state(s, request, diag);
    if (r == 0 && request->held + 2 > ring_slots(s->ring))
        r = diag_set(diag, -EINVAL, "the ring of group %s has %u slots: too few for a member that holds %u batches",
                     s->group, ring_slots(s->ring), request->held);
    if (r == 0)
        r = start_of(s, request, &start);
    if (r == 0)
        r = ring_join(s->ring, start, request->wake_fd, ret_member, diag);
    if (r == -ESTALE)
        pool_kick(s->pool);
    if (r < 0)
        return r;
    s->member_pid[*ret_member] = request->pid;
    s->member_start[*ret_member] = start;
    return 0;
}

void session_start(struct session *session) {
    ring_let(session->ring, UINT64_MAX);
    pool_kick(session->pool);
}

void session_leave(struct session *session, uint32_t member) {
    ring_leave(session->ring, member);
    pool_kick(session->pool);
}

uint32_t session_laggards(const struct session *session, uint64_t *ret_sequence) {
    uint32_t blockers = ring_blockers(session->ring, ret_sequence);
    return ring_waiters(session->ring) & ~blockers ? blockers : 0;
}

void session_info(const struct session *session, uint32_t member, struct session_info *ret) {
    *ret = (struct session_info){.number = session->number,
                                 .data_fd = ring_data_fd(session->ring),
                                 .control_fd = ring_control_fd(session->ring, member),
                                 .data_bytes = ring_data_bytes(session->ring),
                                 .control_bytes = ring_control_bytes(session->ring, member),
                                 .start = session->member_start[member],
                                 .global_batch = session->global_batch};
    memcpy(ret->fingerprint, session->fingerprint, sizeof ret->fingerprint);
}

/* What a trainer says of its CUDA device: words that nobody believes, of a form that harms nobody. */
static void read_device(const struct loaderd_control *c, struct session_statistics *ret) {
    uint64_t wait = atomic_load_explicit(&c->device_wait_ns, memory_order_relaxed);
    if (wait == 0)
        return;
    ret->has_device = true;
    ret->device_wait_ns += wait - 1;
    uint64_t stream = atomic_load_explicit(&c->stream_wait_ns, memory_order_relaxed);
    ret->stream_wait_ns += stream ? stream - 1 : 0;
    uint64_t word[2] = {atomic_load_explicit(&c->device_uuid[0], memory_order_relaxed),
                        atomic_load_explicit(&c->device_uuid[1], memory_order_relaxed)};
    uint8_t b[16];
    memcpy(b, word, sizeof b);
    if (!ret->gpu[0] && (word[0] || word[1]))
        snprintf(ret->gpu, sizeof ret->gpu, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
                 b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

void session_statistics(const struct session *s, struct session_statistics *ret) {
    *ret = (struct session_statistics){.number = s->number,
                                       .pid = s->pid,
                                       .uid = s->uid,
                                       .rank = s->order.rank,
                                       .world = s->order.world,
                                       .batch = s->order.batch,
                                       .slots = ring_slots(s->ring),
                                       .samples = atomic_load_explicit(&s->samples, memory_order_relaxed),
                                       .near_samples = atomic_load_explicit(&s->near_samples, memory_order_relaxed),
                                       .bytes_in = atomic_load_explicit(&s->bytes_in, memory_order_relaxed),
                                       .bytes_out = atomic_load_explicit(&s->bytes_out, memory_order_relaxed),
                                       .bad = atomic_load_explicit(&s->bad, memory_order_relaxed),
                                       .damaged = atomic_load_explicit(&s->damaged, memory_order_relaxed),
                                       .cache_hits = atomic_load_explicit(&s->cache_hits, memory_order_relaxed),
                                       .cache_misses = atomic_load_explicit(&s->cache_misses, memory_order_relaxed),
                                       .ring_bytes = s->ring_bytes,
                                       .locked = ring_locked(s->ring),
                                       .node = ring_node(s->ring),
                                       .huge_pages = ring_huge_pages(s->ring),
                                       .opened_ns = s->opened_ns};
    ring_fill(s->ring, &ret->published, &ret->unreleased);
    for (int i = 0; i < STAGES; i++)
        ret->stage_ns[i] = atomic_load_explicit(&s->stage_ns[i], memory_order_relaxed);
    snprintf(ret->pipeline, sizeof ret->pipeline, "%s", s->pipeline->config.name);
    memcpy(ret->job, s->job, sizeof ret->job);
    memcpy(ret->group, s->group, sizeof ret->group);
    for (uint32_t i = 0; i < RING_MOST_MEMBERS; i++) {
        const struct loaderd_control *c = ring_control(s->ring, i);
        if (!c)
            continue;
        struct session_member *m = &ret->member[ret->members++];
        *m = (struct session_member){.pid = s->member_pid[i],
                                     .popped = atomic_load_explicit(&c->popped, memory_order_relaxed),
                                     .waits = atomic_load_explicit(&c->waits, memory_order_relaxed),
                                     .wait_ns = atomic_load_explicit(&c->wait_ns, memory_order_relaxed),
                                     .rescues = atomic_load_explicit(&c->rescues, memory_order_relaxed)};
        read_device(c, ret);
        ret->waiting |= atomic_load_explicit(&c->waiting, memory_order_relaxed) != 0;
        ret->trainer_waits += m->waits;
        ret->trainer_wait_ns += m->wait_ns;
        ret->trainer_rescues += m->rescues;
    }
}

uint64_t session_taken(const struct session *session) {
    return ring_taken(session->ring);
}

uint64_t session_lookback(const struct session *session) {
    return ring_lookback(session->ring);
}

int session_look_back(const struct session *s, uint64_t sequence, struct session_batch *ret) {
    const struct batch_note *n = &s->history[sequence % ring_lookback(s->ring)];
    /* pairs with the release of who published it */
    uint64_t found = atomic_load_explicit(&n->sequence, memory_order_acquire);
    if (found != sequence + 1)
        return found > sequence + 1 ? -ESTALE : -EAGAIN;
    *ret = (struct session_batch){.sequence = sequence,
                                  .claimed_ns = atomic_load_explicit(&n->claimed_ns, memory_order_relaxed),
                                  .published_ns = atomic_load_explicit(&n->published_ns, memory_order_relaxed),
                                  .slowest_us = atomic_load_explicit(&n->slowest_us, memory_order_relaxed),
                                  .slowest_sample = atomic_load_explicit(&n->slowest_sample, memory_order_relaxed),
                                  .rows = atomic_load_explicit(&n->rows, memory_order_relaxed)};
    for (int i = 0; i < STAGES; i++)
        ret->stage_ns[i] = atomic_load_explicit(&n->stage_ns[i], memory_order_relaxed);
    session_step(s, sequence, &ret->epoch, &ret->step);
    uint32_t member = 0;
    ret->waited_ns = ring_waited(s->ring, sequence, &member);
    ret->waiter = s->member_pid[member];
    atomic_thread_fence(memory_order_acquire); /* a newer batch may have come over it meanwhile */
    return atomic_load_explicit(&n->sequence, memory_order_relaxed) == sequence + 1 ? 0 : -ESTALE;
}

const struct dataset *session_dataset(const struct session *session) {
    return session->dataset;
}
