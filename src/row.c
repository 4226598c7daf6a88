/* SPDX-License-Identifier: MIT */
/*
 * One sample becomes one row of a batch: decode, transform, copy, each field written once, in its final place; and
 * what happens where the sample is bad (on-error, on-damage). Runs on a worker's thread, on that worker's decoder and
 * scratch; takes a lock and queues a log line only for bad samples.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/copy.h"
#include "decode/coefficients.h"
#include "worker.h"

#define CANDIDATES 16u    /* samples that may substitute a bad one */
#define FETCH_BYTES 4096u /* of the next row, asked for ahead; what follows the processor sees coming by itself */

void row_fail_slot(struct session *s, const struct task *t, uint32_t row, int error, const char *text) {
    struct slot_note *note = session_note(s, t->sequence);
    pthread_mutex_lock(&s->fault_lock);
    if (note->error == 0 || row < note->error_row) {
        note->error = error;
        note->error_row = row;
        snprintf(note->text, sizeof note->text, "%s", text);
    }
    pthread_mutex_unlock(&s->fault_lock);
}

/* Faults of the storage, not of the sample: no policy turns them into another batch. */
static bool is_storage_error(int error) {
    return error == -EIO || error == -ESTALE || error == -ENOMEM || error == -EAGAIN || error == -ETIMEDOUT ||
           error == -EMFILE || error == -ENFILE;
}

/* A sample on its way into a row. */
struct row_job {
    struct worker *worker;
    struct session *session;
    struct task *task;
    uint32_t row; /* of the batch */
    uint64_t position;
    uint64_t sample;
    const uint8_t *bytes[MAX_EXTENTS];
    size_t length[MAX_EXTENTS];
    uint32_t tag[MAX_EXTENTS];
    struct cached *cached[MAX_EXTENTS]; /* what a cache has; NULL: not looked up */
    const uint8_t *record;              /* where it was split: all of it */
    bool substitute;                    /* the sample is another one: not looked up */
    uint32_t spare;                     /* bits: extents that were read now, by their spare tags */
    struct location location;
    uint32_t status;
    struct diag diag;
    const struct recipe *recipe; /* of the picture, for decode_picture() */
    const uint8_t *encoded;      /* and its bytes */
    size_t encoded_length;
    struct decode_info info;
    struct transform_geometry geometry, lead; /* of the picture in hand; of the one that masks follow */
    struct box region;
    struct picture picture;
    enum decode_verdict verdict;
    void *out;             /* where the picture in hand goes */
    bool transformed;      /* it was made there while it was decoded */
    uint64_t transform_ns; /* of the decoding: what went into that */
    uint64_t decode_spent; /* ns of decoding that are charged already */
};

/* Draws the geometry of an open picture, or takes its leader's. */
static enum decode_verdict choose_geometry(struct row_job *j) {
    const struct random_key key = {j->session->order.seed, j->task->epoch, j->position};
    if (!j->recipe->follows) {
        transform_geometry(&j->recipe->spec, j->info.width, j->info.height, &key, &j->geometry);
        if (j->recipe->leads)
            j->lead = j->geometry;
        return DECODE_OK;
    }
    j->geometry = j->lead;
    j->geometry.color = (struct transform_color){0}; /* values are no colours */
    if (j->info.width == j->lead.source_width && j->info.height == j->lead.source_height)
        return DECODE_OK;
    diag_set(&j->diag, -EBADMSG, "%u x %u pixels, but its picture has %u x %u; both must be of one size", j->info.width,
             j->info.height, j->lead.source_width, j->lead.source_height);
    return DECODE_BAD;
}

static void take_rows(void *arg, const uint8_t *pixels, size_t stride, uint32_t rows) {
    struct row_job *j = arg;
    uint64_t began = now_ns();
    transform_rows(j->worker->transform, pixels, stride, rows);
    j->transform_ns += now_ns() - began;
}

/* Decodes a picture that comes in rows, and makes them the row of the batch on their way. False: the picture does not, or
 * there is no memory for that. */
static bool decode_rows(struct row_job *j, uint32_t channels) {
    struct worker *w = j->worker;
    const struct transform_spec *spec = &j->recipe->spec;
    struct diag diag = DIAG_INIT;
    if (!decoder_gives_rows(w->decoder) || !transform_takes_rows(spec, &j->geometry) ||
        transform_begin(w->transform, spec, &j->geometry, j->out, &diag) < 0)
        return false;
    j->transform_ns = 0;
    j->verdict = decoder_read_rows(w->decoder, channels, &j->region, take_rows, j, &j->diag);
    uint64_t now = now_ns();
    j->decode_spent += worker_lap_until(w, STAGE_DECODE, now - j->transform_ns);
    worker_lap_until(w, STAGE_TRANSFORM, now); /* as if one had come behind the other */
    if (j->verdict == DECODE_OK) {
        transform_end(w->transform);
        worker_lap(w, STAGE_TRANSFORM);
        j->transformed = true;
    }
    return true;
}

/* Decodes the picture of a job, into the worker's scratch or at once into the row: runs inside the reader's SIGBUS
 * guard. */
static int decode_picture(void *arg) {
    struct row_job *j = arg;
    struct worker *w = j->worker;
    const struct transform_spec *spec = &j->recipe->spec;
    uint32_t channels = j->recipe->follows ? DECODE_VALUES : spec->channels;
    j->transformed = false;
    j->verdict = decoder_open(w->decoder, j->encoded, j->encoded_length, &j->info, &j->diag);
    if (j->verdict == DECODE_BAD)
        return 0;
    if (j->session->orient)
        decoder_orient(w->decoder, &j->info);
    j->verdict = choose_geometry(j);
    if (j->verdict == DECODE_BAD)
        return 0;
    transform_region(spec, &j->geometry, &j->region);
    if (decode_rows(j, channels))
        return 0;
    j->picture = (struct picture){.width = j->region.width, .height = j->region.height, .channels = spec->channels};
    j->picture.pixels =
        transform_pixels(w->transform, j->region.width, j->region.height, spec->channels, &j->picture.stride);
    if (!j->picture.pixels) {
        j->verdict = DECODE_BAD;
        diag_set(&j->diag, -EFBIG, "%u x %u pixels are more than max-pixels allows; raise max-pixels", j->region.width,
                 j->region.height);
        return 0;
    }
    j->verdict = decoder_read(w->decoder, channels, &j->region, &j->picture, &j->diag);
    return 0;
}

/* ---- from a cache ------------------------------------------------------------------------------------------------ */

void row_look_up(const struct session *s, const struct extent *x, uint64_t offset, uint64_t length,
                 struct cached *ret) {
    struct file_identity identity;
    *ret = (struct cached){0};
    if (read_identify(x, &identity, &ret->ctime_ns) < 0)
        return; /* reading it will say why */
    if (x->file && memcmp(&identity, &x->file->identity, sizeof identity) != 0)
        return; /* likewise */
    if (length == EXTENT_WHOLE_FILE)
        length = identity.size - MIN(offset, identity.size);
    ret->known = true;
    ret->key = (struct cache_key){identity, offset, length, s->cache_variant};
    cache_find(s->cache, &ret->key, &ret->hit);
}

/* What a cache has of the picture in hand; NULL: it is not one to be cached. Where the bytes were read all the same, they
 * are looked up only now, as the piece of their file that they are. */
static struct cached *look_up(struct row_job *j, struct cached *late) {
    const struct session *s = j->session;
    uint32_t e = j->recipe->extent;
    if (!s->cache || j->substitute || j->recipe->follows || !(s->cache_extents >> e & 1))
        return NULL;
    if (s->cache_unread >> e & 1)
        return j->cached[e];
    if (!j->bytes[e])
        return NULL;
    const struct extent *x = &j->location.extent[s->splits ? 0 : e];
    if (!x->file) /* what it was when it was read is not known */
        return NULL;
    uint64_t within = s->splits ? (uint64_t)(j->bytes[e] - j->record) : 0;
    row_look_up(s, x, x->offset + within, j->length[e], late);
    return late;
}

struct cached_picture {
    struct row_job *job;
    const struct cached *cached;
};

/* Runs inside the guard, since others may truncate the cache's files. */
static int decode_record(void *arg) {
    struct cached_picture *p = arg;
    struct row_job *j = p->job;
    j->verdict = DECODE_BAD;
    j->encoded = cache_record(&p->cached->hit, &p->cached->key, &j->encoded_length);
    if (!j->encoded || j->encoded_length < 4 || memcmp(j->encoded, COEFFICIENTS_MAGIC, 4) != 0)
        return 0;
    return decode_picture(j);
}

/* False: the cache's record is of no use, and is forgotten; the original is to be decoded. */
static bool decode_cached(struct row_job *j, const struct cached *cached) {
    struct worker *w = j->worker;
    struct cached_picture p = {j, cached};
    const uint8_t *bytes;
    size_t length;
    cache_extent(&cached->hit, &bytes, &length);
    int r = reader_guard_bytes(w->reader, bytes, length, decode_record, &p);
    if (r < 0)
        decoder_reset(w->decoder);
    decoder_close(w->decoder);
    if (r == 0 && j->verdict == DECODE_OK) {
        cache_note(j->session->cache, true, j->encoded_length, j->decode_spent + worker_lap(w, STAGE_DECODE));
        atomic_fetch_add_explicit(&j->session->cache_hits, 1, memory_order_relaxed);
        return true;
    }
    cache_drop(j->session->cache, &cached->key, &cached->hit);
    j->diag = (struct diag)DIAG_INIT;
    return false;
}

struct copy {
    uint8_t *to;
    const uint8_t *from;
    size_t length;
};

static int copy_bytes(void *arg) {
    const struct copy *copy = arg;
    memcpy(copy->to, copy->from, copy->length);
    return 0;
}

/* A file that was written to so recently may be written to again without another modification time. */
static bool is_settled(const struct file_identity *file) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return file->mtime_ns / 1000000000 + 2 < now.tv_sec;
}

/* A JPEG was decoded that the cache has not: it may have a copy, if that is of the file that the key names. */
static void offer(struct row_job *j, const struct cached *cached) {
    struct session *s = j->session;
    uint32_t e = j->recipe->extent;
    const struct extent *x = &j->location.extent[s->splits ? 0 : e];
    struct copy copy = {NULL, j->bytes[e], j->length[e]};
    struct file_identity identity;
    int64_t ctime_ns;
    if (!cached->known || cached->key.length != copy.length || !cache_wants(s->cache, &cached->key) ||
        !is_settled(&cached->key.file))
        return;
    copy.to = fill_offer(j->worker->fill, s->cache, &cached->key, copy.length);
    if (!copy.to || reader_guard(j->worker->reader, j->tag[e], copy_bytes, &copy) < 0)
        return;
    if (read_identify(x, &identity, &ctime_ns) < 0 || ctime_ns != cached->ctime_ns ||
        memcmp(&identity, &cached->key.file, sizeof identity) != 0)
        return;
    fill_accept(j->worker->fill, s->cache_full);
}

static int read_now(struct row_job *j, uint32_t extents);
static int check_bytes(struct row_job *j);

/* Decodes the original; reads it first where that was left out because the cache had it. */
static int decode_original(struct row_job *j, const struct cached *cached) {
    struct worker *w = j->worker;
    uint32_t e = j->recipe->extent;
    int r = 0;
    if (!j->bytes[e] && cached && cached->hit.segment) {
        j->spare |= 1u << e;
        r = read_now(j, 1u << e);
        if (r == 0 && j->session->verify)
            r = check_bytes(j);
        if (r < 0)
            return r;
    }
    j->encoded = j->bytes[e];
    j->encoded_length = j->length[e];
    r = reader_guard(w->reader, j->tag[e], decode_picture, j);
    if (r < 0) {
        decoder_reset(w->decoder);
        return diag_set(&j->diag, -ESTALE, "the file became shorter while it was read");
    }
    return 0;
}

static int picture_row(struct row_job *j, const struct recipe *recipe, void *out) {
    struct worker *w = j->worker;
    struct cached late = {0};
    bool complete = false;
    int r = 0;
    worker_lap(w, STAGE_OTHER);
    j->recipe = recipe;
    j->out = out;
    j->decode_spent = 0;
    struct cached *cached = look_up(j, &late);
    if (!cached || !cached->hit.segment || !decode_cached(j, cached)) {
        r = decode_original(j, cached);
        if (r == 0) {
            complete = j->verdict == DECODE_DAMAGED && decoder_damage_is_complete(w->decoder);
            decoder_close(w->decoder);
            uint64_t spent = j->decode_spent + worker_lap(w, STAGE_DECODE);
            if (cached && j->verdict == DECODE_OK && strcmp(j->info.kind, "JPEG") == 0) {
                cache_note(j->session->cache, false, 0, spent);
                atomic_fetch_add_explicit(&j->session->cache_misses, 1, memory_order_relaxed);
                offer(j, cached);
            }
        }
    }
    if (late.hit.segment)
        cache_done(&late.hit);
    if (r < 0)
        return r;
    if (j->verdict == DECODE_BAD)
        return -EBADMSG;
    if (j->verdict == DECODE_DAMAGED) {
        if (!j->session->accept_damage && !complete)
            return -EBADMSG;
        j->status |= LOADERD_ROW_DAMAGED;
    }
    struct diag diag = DIAG_INIT;
    if (!j->transformed)
        r = transform_apply(w->transform, &recipe->spec, &j->geometry, &j->region, &j->picture, out, &diag);
    if (r < 0)
        j->diag = diag;
    else if (recipe->leads)
        transform_row(&recipe->spec, &j->geometry, &ring_rows(j->session->ring, j->task->sequence)[j->row]);
    worker_lap(w, STAGE_TRANSFORM);
    return r;
}

/* Channels-first bytes of a record become interleaved pixels. */
static void interleave(const uint8_t *from, uint32_t width, uint32_t height, uint32_t channels,
                       const struct box *region, const struct picture *picture) {
    size_t plane = (size_t)width * height;
    for (uint32_t y = 0; y < region->height; y++) {
        const uint8_t *row = from + (size_t)(region->y + y) * width + region->x;
        uint8_t *out = picture->pixels + y * picture->stride;
        for (uint32_t x = 0; x < region->width; x++)
            for (uint32_t c = 0; c < channels; c++)
                *out++ = row[c * plane + x];
    }
}

static int stored_picture_row(struct row_job *j, const struct recipe *recipe, void *out) {
    struct worker *w = j->worker;
    const struct transform_spec *spec = &recipe->spec;
    const uint8_t *from = j->bytes[recipe->extent] + recipe->offset;
    const struct random_key key = {j->session->order.seed, j->task->epoch, j->position};
    worker_lap(w, STAGE_OTHER);
    transform_geometry(spec, recipe->width, recipe->height, &key, &j->geometry);
    transform_region(spec, &j->geometry, &j->region);
    struct picture p = {.width = j->region.width, .height = j->region.height, .channels = spec->channels};
    if (recipe->planar && spec->channels > 1) {
        p.pixels = transform_pixels(w->transform, p.width, p.height, p.channels, &p.stride);
        if (!p.pixels)
            return diag_set(&j->diag, -EFBIG, "%u x %u pixels are more than max-pixels allows", p.width, p.height);
        interleave(from, recipe->width, recipe->height, spec->channels, &j->region, &p);
    } else {
        p.stride = (size_t)recipe->width * spec->channels;
        p.pixels = (uint8_t *)(uintptr_t)from + j->region.y * p.stride + (size_t)j->region.x * spec->channels;
    }
    int r = transform_apply(w->transform, spec, &j->geometry, &j->region, &p, out, &j->diag);
    if (r == 0)
        transform_row(spec, &j->geometry, &ring_rows(j->session->ring, j->task->sequence)[j->row]);
    worker_lap(w, STAGE_TRANSFORM);
    return r;
}

static int value_too_large(struct row_job *j, uint32_t i) {
    const struct dataset_field *field;
    dataset_fields(j->session->dataset, &field);
    return diag_set(&j->diag, -EBADMSG, "a value of field %s does not fit %s%s", field[i].spec.name,
                    loaderd_dtype_name(j->session->recipe[i].to),
                    strcmp(field[i].spec.name, "label") == 0 ? "; set label-dtype = i64" : "");
}

/* Elements stored big-endian, cast block by block. */
static int cast_swapped(const struct recipe *recipe, const uint8_t *from, uint8_t *out) {
    size_t size = loaderd_dtype_size(recipe->from), to_size = loaderd_dtype_size(recipe->to);
    uint64_t block[64];
    for (size_t n, left = recipe->count; left; left -= n, from += n * size, out += n * to_size) {
        n = MIN(left, ARRAY_SIZE(block));
        transform_swap(from, block, size, n);
        int r = transform_cast(recipe->from, block, recipe->to, out, n);
        if (r < 0)
            return r;
    }
    return 0;
}

#define CLEAN_BLOCK 2048u /* elements copied, then cleaned while they are in the nearest cache */

/* Copies floats and cleans them; `from` may be `out`. */
static int clean_field(struct row_job *j, uint32_t i, const uint8_t *from, uint8_t *out) {
    const struct recipe *recipe = &j->session->recipe[i];
    const struct dataset_field *field;
    size_t size = loaderd_dtype_size(recipe->to);
    for (size_t n, at = 0; at < recipe->count; at += n) {
        n = MIN(recipe->count - at, CLEAN_BLOCK);
        if (recipe->swap)
            transform_swap(from + at * size, out + at * size, size, n);
        else if (from != out)
            memcpy(out + at * size, from + at * size, n * size);
        if (transform_clean(&recipe->clean, recipe->to, out + at * size, n))
            continue;
        dataset_fields(j->session->dataset, &field);
        return diag_set(&j->diag, -EBADMSG, "a value of field %s is no number (NaN), and nan = error",
                        field[i].spec.name);
    }
    return 0;
}

/* Bytes of a field as they are stored, where nothing is to be done about them. */
static int copy_field(struct row_job *j, uint32_t i, const uint8_t *from, uint8_t *out) {
    const struct recipe *recipe = &j->session->recipe[i];
    if (recipe->cleans)
        return clean_field(j, i, from, out);
    if (recipe->swap)
        transform_swap(from, out, loaderd_dtype_size(recipe->from), recipe->count);
    else if (from != out)
        copy_piece(out, from, recipe->bytes, session_stores(j->session));
    return 0;
}

/* The fields that are no encoded picture: inside the guard, since their bytes may be a mapping. */
static int stored_fields(void *arg) {
    struct row_job *j = arg;
    struct session *s = j->session;
    for (uint32_t i = 0; i < s->nfields; i++) {
        const struct recipe *recipe = &s->recipe[i];
        void *out = ring_row_field(s->ring, j->task->sequence, i, j->row);
        const uint8_t *bytes = j->bytes[recipe->extent]; /* NULL where the sample has no extent */
        const uint8_t *from = bytes ? bytes + recipe->offset : NULL;
        int r = 0;
        switch (recipe->kind) {
        case RECIPE_PICTURE:
        case RECIPE_RAGGED:
        case RECIPE_BOXES:
        case RECIPE_COUNT:
            break;
        case RECIPE_STORED_PICTURE:
            r = stored_picture_row(j, recipe, out);
            break;
        case RECIPE_COPY:
            r = copy_field(j, i, from, out);
            break;
        case RECIPE_CAST:
            r = recipe->swap ? cast_swapped(recipe, from, out)
                             : transform_cast(recipe->from, from, recipe->to, out, recipe->count);
            break;
        case RECIPE_VALUE:
            r = transform_cast(LOADERD_I64, &j->location.value[i], recipe->to, out, 1);
            break;
        case RECIPE_SYNTHETIC:
            dataset_synthesize(s->dataset, j->sample, i, out);
            break;
        }
        if (r == -ERANGE)
            return value_too_large(j, i);
        if (r < 0)
            return r;
    }
    return 0;
}

/* Does every stored field lie inside the bytes that came? */
static int check_lengths(struct row_job *j) {
    const struct session *s = j->session;
    for (uint32_t i = 0; i < s->nfields; i++) {
        const struct recipe *recipe = &s->recipe[i];
        if (recipe->kind != RECIPE_STORED_PICTURE && recipe->kind != RECIPE_COPY && recipe->kind != RECIPE_CAST)
            continue;
        if (recipe->offset + recipe->bytes > j->length[recipe->extent])
            return diag_set(&j->diag, -EBADMSG, "record has %zu bytes, field %u wants %" PRIu64 " at offset %" PRIu64,
                            j->length[recipe->extent], i, recipe->bytes, recipe->offset);
    }
    return 0;
}

struct checksum {
    struct row_job *job;
    uint32_t extent, state;
};

static int check_extent(void *arg) {
    struct checksum *c = arg;
    struct row_job *j = c->job;
    return dataset_check(j->session->dataset, j->sample, c->extent, j->bytes[c->extent], j->length[c->extent],
                         &c->state, &j->diag);
}

/* Are the bytes those that were written? Only formats with checksums can tell. */
static int check_bytes(struct row_job *j) {
    struct checksum c = {.job = j};
    int r = 0;
    for (; c.extent < j->session->extents && r == 0; c.extent++)
        r = reader_guard(j->worker->reader, j->tag[c.extent], check_extent, &c);
    worker_lap(j->worker, STAGE_OTHER);
    return r == -EFAULT ? diag_set(&j->diag, -ESTALE, "the file became shorter while it was read") : r;
}

/* The pictures of a row that draw their geometry, or those that follow one. */
static int picture_rows(struct row_job *j, bool follow) {
    struct session *s = j->session;
    for (uint32_t i = 0; i < s->nfields; i++) {
        if (s->recipe[i].kind != RECIPE_PICTURE || s->recipe[i].follows != follow)
            continue;
        int r = picture_row(j, &s->recipe[i], ring_row_field(s->ring, j->task->sequence, i, j->row));
        if (r < 0) {
            if (follow)
                diag_prefix(&j->diag, "mask");
            return r;
        }
    }
    return 0;
}

/* ---- fields that are filled in part ------------------------------------------------------------------------------ */

/* One of them on its way into a row: for the guard. */
struct part_job {
    struct row_job *job;
    uint32_t field;
};

/* How many items a row has, as the trainer will read it; those that the slot's last batch had in it until then. What is
 * behind them is zero, so that only what they have left behind is cleared. */
static uint32_t set_count(struct row_job *j, const struct recipe *recipe, uint8_t *out, uint32_t count, size_t bytes) {
    int32_t *counted = ring_row_field(j->session->ring, j->task->sequence, recipe->counted, j->row);
    uint32_t before = MIN((uint32_t)*counted, recipe->most);
    count = MIN(count, recipe->most);
    if (before > count)
        memset(out + count * bytes, 0, (before - count) * bytes);
    *counted = (int32_t)count;
    return count;
}

static int too_much(struct row_job *j, const struct recipe *recipe, uint64_t there, const char *what, const char *key) {
    return diag_set(&j->diag, -EBADMSG, "%" PRIu64 " %s, %s = %u; raise it, or set on-overflow = truncate", there, what,
                    key, recipe->most);
}

static int ragged_field(void *arg) {
    const struct part_job *p = arg;
    struct row_job *j = p->job;
    const struct recipe *recipe = &j->session->recipe[p->field];
    const uint8_t *bytes = j->bytes[recipe->extent];
    size_t length = j->length[recipe->extent];
    uint8_t *out = ring_row_field(j->session->ring, j->task->sequence, p->field, j->row);
    if (length && strcmp(decode_sniff(bytes, length), COEFFICIENTS_KIND) == 0)
        return diag_set(&j->diag, -EBADMSG,
                        "the picture is stored as coefficients, which are no file that others decode; pack it without "
                        "--jpeg coefficients");
    if (length > recipe->most && !j->session->cut)
        return too_much(j, recipe, length, "bytes", "bytes-cap");
    length = set_count(j, recipe, out, (uint32_t)MIN(length, recipe->most), 1);
    if (length)
        memcpy(out, bytes, length);
    return 0;
}

/* The leading picture has been made: its geometry is known. */
static int boxes_field(void *arg) {
    const struct part_job *p = arg;
    struct row_job *j = p->job;
    const struct session *s = j->session;
    const struct recipe *recipe = &s->recipe[p->field], *leader = s->recipe;
    const struct dataset_field *field;
    const struct transform_geometry *g = &j->lead;
    uint8_t *out = ring_row_field(s->ring, j->task->sequence, p->field, j->row);
    struct dataset_box *box = j->worker->box;
    uint32_t boxes, kept = 0;
    float row[5];
    while (!leader->leads)
        leader++;
    dataset_fields(s->dataset, &field);
    int r = dataset_boxes(&field[p->field], j->bytes[recipe->extent], j->length[recipe->extent], g->source_width,
                          g->source_height, box, &boxes, &j->diag);
    if (r < 0)
        return r;
    for (uint32_t i = 0; i < boxes; i++) {
        double share = transform_box(&leader->spec, g, box[i].side, row);
        if (share > 0 && share >= s->box_visible)
            box[kept++] = box[i];
    }
    if (kept > recipe->most && !s->cut)
        return too_much(j, recipe, kept, "boxes are left", "box-max");
    kept = set_count(j, recipe, out, kept, sizeof row);
    for (uint32_t i = 0; i < kept; i++) {
        transform_box(&leader->spec, g, box[i].side, row);
        row[4] = (float)box[i].class;
        memcpy(out + i * sizeof row, row, sizeof row);
    }
    return 0;
}

static int part_fields(struct row_job *j) {
    struct session *s = j->session;
    for (uint32_t i = 0; i < s->nfields; i++) {
        const struct recipe *recipe = &s->recipe[i];
        struct part_job part = {j, i};
        if (recipe->kind != RECIPE_RAGGED && recipe->kind != RECIPE_BOXES)
            continue;
        int r = reader_guard(j->worker->reader, j->tag[recipe->extent],
                             recipe->kind == RECIPE_RAGGED ? ragged_field : boxes_field, &part);
        if (r == -EFAULT)
            return diag_set(&j->diag, -ESTALE, "the file became shorter while it was read");
        if (r < 0) {
            const struct dataset_field *field;
            dataset_fields(s->dataset, &field);
            diag_prefix(&j->diag, "%s", field[i].spec.name);
            return r;
        }
    }
    return 0;
}

/* Finds the fields of a record that holds them at places of its own: they then stand as extents of their own. */
static int split_record(void *arg) {
    struct row_job *j = arg;
    j->record = j->bytes[0];
    struct dataset_piece piece[MAX_EXTENTS];
    int r =
        dataset_split(j->session->dataset, j->sample, j->bytes[0], j->length[0], piece, j->location.value, &j->diag);
    for (uint32_t i = 0; i < MAX_EXTENTS && r == 0; i++) {
        j->bytes[i] = piece[i].bytes;
        j->length[i] = piece[i].length;
        j->tag[i] = j->tag[0];
    }
    return MIN(r, 0);
}

/* Writes all fields of one row. 0, or a negative errno with the sentence in j->diag. */
static int make_row(struct row_job *j) {
    struct session *s = j->session;
    bool unread = s->extents && !j->bytes[0] && j->cached[0] && j->cached[0]->hit.segment;
    int r = s->verify && !unread ? check_bytes(j) : 0; /* it was checked before it was cached */
    if (r == 0 && s->splits)
        r = reader_guard(j->worker->reader, j->tag[0], split_record, j);
    if (r == -EFAULT)
        r = diag_set(&j->diag, -ESTALE, "the file became shorter while it was read");
    if (r == 0)
        r = check_lengths(j);
    if (r < 0)
        return r;
    r = picture_rows(j, false);
    if (r == 0)
        r = picture_rows(j, true);
    if (r == 0)
        r = part_fields(j);
    if (r < 0)
        return r;
    /* pictures alone have the first extent where it is not read: nothing is stored there */
    if (s->extents == 0 || (unread && !(j->spare & 1)))
        r = stored_fields(j);
    else
        r = reader_guard(j->worker->reader, j->tag[0], stored_fields, j);
    worker_lap(j->worker, STAGE_COPY);
    if (r == -EFAULT)
        return diag_set(&j->diag, -ESTALE, "the file became shorter while it was read");
    return r;
}

void row_clear(struct session *s, uint64_t sequence, uint32_t row) {
    for (uint32_t i = 0; i < s->nfields; i++)
        memset(ring_row_field(s->ring, sequence, i, row), 0, ring_row_bytes(s->ring, i));
}

/* Reads extents of the sample (bits of a set) at once, by the spare tags; MAX_EXTENTS of them lie behind `depth`. */
static int read_now(struct row_job *j, uint32_t extents) {
    struct worker *w = j->worker;
    int error = 0;
    for (uint32_t e = 0; e < MAX_EXTENTS; e++) {
        if (!(extents >> e & 1))
            continue;
        struct read_request request = {.tag = w->pool->depth + e, .extent = j->location.extent[e]};
        reader_submit(w->reader, &request);
    }
    reader_flush(w->reader);
    for (int left = __builtin_popcount(extents); left;) {
        struct read_result result;
        if (reader_reap(w->reader, WORKER_SLEEP_NS, &result) == 0)
            continue;
        if (result.tag < w->pool->depth) { /* one of the ordinary reads: it waits for its turn */
            worker_note_result(w, &result);
            continue;
        }
        uint32_t which = result.tag - w->pool->depth;
        j->tag[which] = result.tag;
        j->bytes[which] = result.bytes;
        j->length[which] = result.length;
        if (result.error) {
            error = result.error;
            if (result.diag)
                j->diag = *result.diag;
        }
        left--;
    }
    worker_lap(w, STAGE_READ);
    return error;
}

static int finish_reads(struct row_job *j, uint32_t extents) {
    int r = 0;
    for (uint32_t e = 0; e < MAX_EXTENTS; e++) {
        if (!(extents >> e & 1))
            continue;
        int done = reader_done(j->worker->reader, j->tag[e], &j->diag);
        if (done < 0)
            r = done;
    }
    return r;
}

static uint64_t substitute_of(const struct row_job *j, uint64_t bad, uint32_t k) {
    const struct session *s = j->session;
    if (s->supply)
        return order_substitute_for(&s->order, j->task->epoch, j->position, k, bad, dataset_samples(s->dataset));
    return order_substitute(&s->order, j->task->epoch, j->position, k);
}

/* Puts the first good candidate into the row of a bad sample. */
static int substitute(struct row_job *j) {
    struct diag first = j->diag;
    const uint64_t bad = j->sample;
    j->substitute = true;
    memset(j->cached, 0, sizeof j->cached);
    for (uint32_t k = 0; k < CANDIDATES; k++) {
        j->sample = substitute_of(j, bad, k);
        j->status &= ~LOADERD_ROW_DAMAGED;
        dataset_locate(j->session->dataset, j->sample, &j->location);
        const uint32_t extents = (1u << j->location.extents) - 1;
        int r = read_now(j, extents);
        if (r == 0)
            r = make_row(j);
        int done = finish_reads(j, extents);
        if (r == 0)
            r = done;
        if (r == 0) {
            j->status |= LOADERD_ROW_SUBSTITUTED;
            return 0;
        }
        if (is_storage_error(r))
            return r;
    }
    j->diag = first;
    diag_prefix(&j->diag, "none of %u substitutes was good either", CANDIDATES);
    return -EBADMSG;
}

/* More bad rows in this epoch than on-error=auto lets pass? */
static bool over_limit(struct session *s, uint64_t epoch) {
    if (s->bad_limit == UINT64_MAX)
        return false;
    pthread_mutex_lock(&s->fault_lock);
    if (s->fault_epoch != epoch) {
        s->fault_epoch = epoch;
        s->fault_bad = 0;
    }
    bool over = ++s->fault_bad > s->bad_limit;
    pthread_mutex_unlock(&s->fault_lock);
    return over;
}

static void fail_row(struct row_job *j, int error, uint64_t sample) {
    char name[300], text[LOADERD_SLOT_MESSAGE];
    if (dataset_name(j->session->dataset, sample, name, sizeof name) < 0)
        snprintf(name, sizeof name, "sample %" PRIu64, sample);
    snprintf(text, sizeof text, "epoch %" PRIu64 " position %" PRIu64 ", %.180s: %.150s", j->task->epoch, j->position,
             name, j->diag.text);
    row_fail_slot(j->session, j->task, j->row, error, text);
    row_clear(j->session, j->task->sequence, j->row);
    j->status |= LOADERD_ROW_BLANK;
}

/* The policy for a row whose sample is bad. */
static void bad_row(struct row_job *j, int error) {
    struct session *s = j->session;
    struct worker *w = j->worker;
    uint64_t bad_sample = j->sample;
    if (is_storage_error(error)) {
        pool_note_bad(w->pool, s, bad_sample, j->task->epoch, j->position, false, j->diag.text);
        fail_row(j, error == -ESTALE ? -EIO : error, bad_sample);
        return;
    }
    counter_add(&w->bad, 1);
    atomic_fetch_add_explicit(&s->bad, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&session_note(s, j->task->sequence)->bad, 1, memory_order_relaxed);
    pool_note_bad(w->pool, s, bad_sample, j->task->epoch, j->position, false, j->diag.text);
    if (s->on_bad == BAD_FAIL) {
        fail_row(j, -EBADMSG, bad_sample);
    } else if (s->on_bad == BAD_BLANK) {
        row_clear(s, j->task->sequence, j->row);
        j->status |= LOADERD_ROW_BLANK;
    } else if (over_limit(s, j->task->epoch)) {
        diag_prefix(&j->diag, "more than %" PRIu64 " bad samples in this epoch (error-limit); the last one",
                    s->bad_limit);
        fail_row(j, -EBADMSG, bad_sample);
    } else {
        int r = substitute(j);
        if (r < 0)
            fail_row(j, is_storage_error(r) ? -EIO : -EBADMSG, bad_sample);
    }
}

static void finish_row(struct row_job *j, int error) {
    struct session *s = j->session;
    struct loaderd_row *row = &ring_rows(s->ring, j->task->sequence)[j->row];
    *row = (struct loaderd_row){.position = j->position};
    if (j->row >= j->task->valid)
        j->status |= LOADERD_ROW_PADDING;
    int r = error ? error : make_row(j);
    if (j->spare) {
        int done = finish_reads(j, j->spare);
        j->spare = 0;
        if (r == 0)
            r = done < 0 ? -EIO : 0;
    }
    if (r < 0)
        bad_row(j, r);
    if (j->status & LOADERD_ROW_BLANK)
        *row = (struct loaderd_row){.position = j->position};
    if (j->status & LOADERD_ROW_DAMAGED) {
        counter_add(&j->worker->damaged, 1);
        atomic_fetch_add_explicit(&s->damaged, 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&session_note(s, j->task->sequence)->damaged, 1, memory_order_relaxed);
        pool_note_bad(j->worker->pool, s, j->sample, j->task->epoch, j->position, true, j->diag.text);
    }
    row->sample = j->sample;
    row->status = j->status;
}

void row_make(struct worker *w, struct task *t, uint32_t index, const struct row_input *input) {
    struct session *s = t->session;
    struct row_job j = {
        .worker = w, .session = s, .task = t, .row = t->first_row + index, .position = t->position + index};
    j.sample = task_sample(t, worker_epoch(w, s, t->epoch), index);
    dataset_locate(s->dataset, j.sample, &j.location);
    memcpy(j.bytes, input->bytes, sizeof j.bytes);
    memcpy(j.length, input->length, sizeof j.length);
    memcpy(j.tag, input->tag, sizeof j.tag);
    memcpy(j.cached, input->cached, sizeof j.cached);
    if (input->error && input->diag)
        j.diag = *input->diag;
    finish_row(&j, input->error);
}

/* ---- rows whose bytes need no read ------------------------------------------------------------------------------- */

/* The fields of a row from bytes in place: inside the guard. */
static int make_in_place(void *arg) {
    struct row_job *j = arg;
    const struct session *s = j->session;
    uint32_t state = 0;
    int r = s->verify ? dataset_check(s->dataset, j->sample, 0, j->bytes[0], j->length[0], &state, &j->diag) : 0;
    return r < 0 ? r : stored_fields(j);
}

/* Which sample a row gets, and where that is. */
static void find_row(struct row_job *j, const struct order_epoch *keys, uint32_t index) {
    j->row = j->task->first_row + index;
    j->position = j->task->position + index;
    j->sample = task_sample(j->task, keys, index);
    dataset_locate(j->session->dataset, j->sample, &j->location);
}

/* The next row's bytes travel from memory while this one's are worked on, where they are in the same mapping. */
static void fetch_ahead(const struct row_job *j, const struct row_job *next) {
    const struct extent *here = &j->location.extent[0], *there = &next->location.extent[0];
    if (j->session->extents == 0 || here->file != there->file)
        return;
    const uint8_t *bytes = (const uint8_t *)((uintptr_t)j->bytes[0] + (uintptr_t)(there->offset - here->offset));
    for (uint64_t at = 0; at < MIN(there->length, FETCH_BYTES); at += 64)
        __builtin_prefetch(bytes + at); /* never faults */
}

/* Has the bytes of a row, or needs none. False: they are to be read. */
static bool view_row(struct row_job *j) {
    const struct extent *extent = &j->location.extent[0];
    if (j->session->extents == 0)
        return true;
    j->bytes[0] = reader_view(j->worker->reader, extent);
    j->length[0] = extent->length;
    return j->bytes[0] && check_lengths(j) == 0;
}

static bool write_row(struct row_job *j) {
    const struct session *s = j->session;
    struct loaderd_row *row = &ring_rows(s->ring, j->task->sequence)[j->row];
    *row = (struct loaderd_row){.position = j->position};
    int r = s->extents ? reader_guard_view(j->bytes[0], j->length[0], make_in_place, j) : stored_fields(j);
    row->sample = j->sample;
    row->status = j->row >= j->task->valid ? LOADERD_ROW_PADDING : 0;
    return r == 0;
}

bool rows_in_place(struct worker *w, struct task *t) {
    struct session *s = t->session;
    const struct order_epoch *keys = worker_epoch(w, s, t->epoch);
    const struct source_file *file = NULL;
    struct row_job job[2] = {{.worker = w, .session = s, .task = t}, {.worker = w, .session = s, .task = t}};
    uint64_t bytes = 0, end = 0;
    for (uint32_t i = 0; i < t->wanted; i++) {
        struct row_job *j = &job[i % 2], *next = &job[(i + 1) % 2];
        if (i == 0)
            find_row(j, keys, i);
        if (file && j->location.extent[0].file != file && !reader_unchanged(file))
            return false;
        if (!view_row(j))
            return false;
        if (i + 1 < t->wanted) {
            find_row(next, keys, i + 1);
            fetch_ahead(j, next);
        }
        if (!write_row(j))
            return false;
        if (s->extents) {
            const struct extent *x = &j->location.extent[0];
            uint64_t twice = file == x->file && x->offset < end && x->offset + x->length > end ? end - x->offset : 0;
            bytes += x->length - twice; /* windows overlap: what two neighbours share counts once */
            end = x->offset + x->length;
            file = x->file;
        }
    }
    if (file && !reader_unchanged(file))
        return false;
    reader_viewed(w->reader, s->extents ? t->wanted : 0, bytes);
    counter_add(&w->bytes_in, bytes);
    atomic_fetch_add_explicit(&s->bytes_in, bytes, memory_order_relaxed);
    return true;
}
