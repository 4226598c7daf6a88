/* SPDX-License-Identifier: MIT */
/* One sample becomes one record of a pack; see pack_record.h. */
#include "pack_record.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "decode/coefficients.h"
#include "decode/decode.h"
#include "decode/jpeg_markers.h"
#include "decode/jpeg_rewrite.h"
#include "read/read.h"
#include "transform/transform.h"

struct pixels {
    uint8_t *bytes;
    size_t room;
    struct picture picture;
};

struct pack_maker {
    const struct pack_recipe *recipe;
    const struct dataset_field *source;
    struct reader *reader;
    struct decoder *decoder;
    struct transform *transform;
    struct coefficients_encoder *encoder;
    struct pixels stored, again;
    uint8_t *scratch;
    size_t scratch_room;
    const uint8_t *bytes[MAX_EXTENTS];
    size_t length[MAX_EXTENTS];
    struct dataset_box *box; /* DATASET_MAX_BOXES of them */
    struct pack_made *made;
    struct pack_picture *about; /* of the picture in hand */
};

/* ---- fields ---------------------------------------------------------------------------------------------------- */

static bool is_named(const char *names, const char *name) {
    for (size_t length; *names; names += length + (names[length] != 0)) {
        length = strcspn(names, ",");
        if (strlen(name) == length && strncmp(names, name, length) == 0)
            return true;
    }
    return false;
}

static int check_names(const struct dataset_field *field, uint32_t fields, const char *names, struct diag *diag) {
    for (size_t length; *names; names += length + (names[length] != 0)) {
        bool found = false;
        length = strcspn(names, ",");
        for (uint32_t i = 0; i < fields; i++)
            found |= strlen(field[i].spec.name) == length && strncmp(names, field[i].spec.name, length) == 0;
        if (!found)
            return diag_set(diag, -EINVAL, "--field: the dataset has no field '%.*s'; `loaderctl inspect` lists them",
                            (int)MIN(length, 64u), names);
    }
    return 0;
}

static void set_field(struct pack_field *to, const struct dataset_field *from) {
    *to = (struct pack_field){.dtype = from->spec.dtype, .ndim = from->spec.ndim, .deliver = from->deliver};
    memcpy(to->name, from->spec.name, sizeof to->name);
    memcpy(to->dims, from->spec.dims, sizeof to->dims);
    to->storage = from->source == SOURCE_VALUE     ? PACK_VALUE
                  : from->source == SOURCE_PICTURE ? PACK_PICTURE
                  : from->source == SOURCE_RAGGED  ? PACK_BYTES
                  : from->source == SOURCE_BOXES   ? PACK_BOXES
                                                   : PACK_FIXED;
    if (from->source == SOURCE_BOXES)
        to->encoding = from->boxes->relative ? PACK_BOXES_RELATIVE : PACK_BOXES_PIXELS;
}

int pack_recipe_fields(struct pack_recipe *recipe, const char *names, struct diag *diag) {
    const struct dataset_field *field;
    uint32_t fields = dataset_fields(recipe->dataset, &field);
    bool image = false, pixels = false;
    int r = names ? check_names(field, fields, names, diag) : 0;
    if (r < 0)
        return r;
    recipe->fields = 0;
    for (uint32_t i = 0; i < fields; i++) {
        if (names && !is_named(names, field[i].spec.name))
            continue;
        image |= field[i].source == SOURCE_PICTURE && strcmp(field[i].spec.name, "image") == 0;
        pixels |= field[i].source == SOURCE_BOXES && !field[i].boxes->relative;
        recipe->from[recipe->fields] = i;
        set_field(&recipe->field[recipe->fields++], &field[i]);
    }
    if (recipe->fields == 0)
        return diag_set(diag, -EINVAL, "--field names no field");
    if (recipe->resize && !image)
        return diag_set(diag, -EINVAL, "--resize is for an encoded picture in a field 'image'; this dataset has none");
    if (recipe->resize && pixels)
        return diag_set(
            diag, -EINVAL,
            "--resize would leave the boxes, which are in pixels, where they are; leave it out, or the field "
            "boxes by --field");
    return 0;
}

/* ---- memory ---------------------------------------------------------------------------------------------------- */

static int out_of_memory(uint64_t bytes, struct diag *diag) {
    return diag_set(diag, -ENOMEM, "out of memory for %" PRIu64 " bytes", bytes);
}

static bool grow(uint8_t **buffer, size_t *room, uint64_t wanted) {
    if (wanted <= *room)
        return true;
    uint8_t *grown = realloc(*buffer, wanted + wanted / 4);
    if (!grown)
        return false;
    *buffer = grown;
    *room = wanted + wanted / 4;
    return true;
}

/* Appends to the record. NULL bytes: room for them, to be filled in. */
static uint8_t *put(struct pack_made *made, const void *bytes, uint64_t length) {
    if (!grow(&made->bytes, &made->room, made->item.length + length))
        return NULL;
    uint8_t *at = made->bytes + made->item.length;
    if (bytes)
        memcpy(at, bytes, length);
    made->item.length += length;
    return at;
}

/* ---- pictures -------------------------------------------------------------------------------------------------- */

static int put_picture(struct pack_maker *m, const uint8_t *bytes, size_t length, enum pack_encoding encoding,
                       struct diag *diag) {
    if (length > UINT32_MAX)
        return diag_set(diag, -EBADMSG, "a picture of %zu bytes; a pack holds up to 4 GiB", length);
    m->about->length = (uint32_t)length;
    m->about->encoding = (uint8_t)encoding;
    return put(m->made, bytes, length) ? 0 : out_of_memory(length, diag);
}

/* Decodes all of a picture. -EBADMSG: it has no pixels, or not all. */
static int decode_whole(struct pack_maker *m, const uint8_t *bytes, size_t length, bool values, struct pixels *ret,
                        struct decode_info *ret_info, struct diag *diag) {
    enum decode_verdict verdict = decoder_open(m->decoder, bytes, length, ret_info, diag);
    if (verdict == DECODE_BAD)
        return -EBADMSG;
    const struct box whole = {0, 0, ret_info->width, ret_info->height};
    uint32_t channels = values || ret_info->channels == 1 ? 1 : 3;
    ret->picture = (struct picture){NULL, (size_t)whole.width * channels, whole.width, whole.height, channels};
    if (!grow(&ret->bytes, &ret->room, (uint64_t)ret->picture.stride * whole.height)) {
        decoder_close(m->decoder);
        return out_of_memory((uint64_t)ret->picture.stride * whole.height, diag);
    }
    ret->picture.pixels = ret->bytes;
    verdict = decoder_read(m->decoder, values ? DECODE_VALUES : channels, &whole, &ret->picture, diag);
    bool good = verdict == DECODE_OK || (verdict == DECODE_DAMAGED && decoder_damage_is_complete(m->decoder));
    decoder_close(m->decoder);
    return good ? 0 : -EBADMSG;
}

/* Puts a JPEG's bytes, without its metadata where that is wanted. */
static int put_jpeg(struct pack_maker *m, const uint8_t *bytes, size_t length, uint32_t orientation, bool strip,
                    struct diag *diag) {
    size_t stripped = 0;
    if (strip) {
        if (!grow(&m->scratch, &m->scratch_room, length + JPEG_STRIP_ROOM))
            return out_of_memory(length, diag);
        stripped = jpeg_strip(bytes, length, orientation, m->scratch);
    }
    return stripped ? put_picture(m, m->scratch, stripped, PACK_JPEG, diag)
                    : put_picture(m, bytes, length, PACK_JPEG, diag);
}

/* A dear JPEG as a baseline one, if that gives the same pixels. 1: done. */
static int put_rewritten(struct pack_maker *m, const uint8_t *bytes, size_t length, uint32_t orientation,
                         struct diag *diag) {
    const struct pack_recipe *recipe = m->recipe;
    struct decode_info info;
    cleanup_free uint8_t *baseline = NULL;
    size_t baseline_length;
    if (jpeg_to_baseline(bytes, length, recipe->metadata, &baseline, &baseline_length, NULL) < 0 ||
        decode_whole(m, baseline, baseline_length, false, &m->again, &info, NULL) < 0)
        return 0;
    const struct picture *a = &m->stored.picture, *b = &m->again.picture;
    if (a->width != b->width || a->height != b->height || a->channels != b->channels ||
        memcmp(a->pixels, b->pixels, a->stride * a->height) != 0)
        return 0;
    m->made->counts.rewritten++;
    m->about->flags &= (uint8_t)~PACK_PICTURE_PROGRESSIVE;
    int r = put_jpeg(m, baseline, baseline_length, orientation, !recipe->metadata && orientation > 1, diag);
    return r < 0 ? r : 1;
}

/* 1: done; 0: this JPEG stays a JPEG. */
static int put_coefficients(struct pack_maker *m, const uint8_t *bytes, size_t length, struct diag *diag) {
    const struct coefficients_options options = {.keep_headers = m->recipe->keep_headers,
                                                 .max_pixels = m->recipe->limits->max_pixels};
    struct diag why = DIAG_INIT;
    const uint8_t *record;
    size_t record_length;
    int r = coefficients_encode(m->encoder, bytes, length, &options, &record, &record_length, &why);
    if (r == -ENOMEM)
        return diag_set(diag, r, "%s", why.text);
    if (r < 0) {
        m->made->counts.kept++;
        snprintf(m->made->kept, sizeof m->made->kept, "%.150s", why.text);
        return 0;
    }
    m->made->counts.coefficients++;
    r = put_picture(m, record, record_length, PACK_COEFFICIENTS, diag);
    return r < 0 ? r : 1;
}

/* A JPEG that stays one. */
static int make_jpeg(struct pack_maker *m, const uint8_t *bytes, size_t length, uint32_t orientation,
                     struct diag *diag) {
    const struct pack_recipe *recipe = m->recipe;
    struct jpeg_summary summary = {0};
    bool understood = !recipe->keep_headers && jpeg_summarize(bytes, length, &summary);
    if (understood && (summary.progressive || summary.arithmetic)) {
        int r = put_rewritten(m, bytes, length, orientation, diag);
        if (r != 0)
            return MIN(r, 0);
    }
    bool strip = understood && summary.metadata && !recipe->metadata;
    m->made->counts.stripped += strip;
    return put_jpeg(m, bytes, length, orientation, strip, diag);
}

/* Puts a JPEG of our own making, which is not turned yet: it says the same of its orientation as the file did. */
static int put_encoded(struct pack_maker *m, const uint8_t *bytes, size_t length, uint32_t orientation,
                       struct diag *diag) {
    if (orientation > 1) {
        if (!grow(&m->scratch, &m->scratch_room, length + JPEG_STRIP_ROOM))
            return out_of_memory(length, diag);
        length = jpeg_strip(bytes, length, orientation, m->scratch);
        assert(length);
        bytes = m->scratch;
    }
    int r = m->recipe->coefficients ? put_coefficients(m, bytes, length, diag) : 0;
    return r < 0 ? r : r ? 0 : put_picture(m, bytes, length, PACK_JPEG, diag);
}

/* The short side becomes recipe->resize, the long side in proportion, rounded down: torchvision's Resize. */
static int make_resized(struct pack_maker *m, uint32_t orientation, struct diag *diag) {
    const struct picture *from = &m->stored.picture;
    uint32_t side = m->recipe->resize;
    bool wide = from->width > from->height;
    uint64_t longest = (uint64_t)side * MAX(from->width, from->height) / MIN(from->width, from->height);
    struct transform_spec spec = {.crop = CROP_NONE,
                                  .width = wide ? (uint32_t)longest : side,
                                  .height = wide ? side : (uint32_t)longest,
                                  .channels = from->channels,
                                  .filter = FILTER_BILINEAR,
                                  .dtype = LOADERD_U8,
                                  .layout = LAYOUT_NHWC};
    struct transform_geometry geometry;
    struct random_key key = {0, 0, 0};
    struct box region;
    int r = transform_check(&spec, diag);
    if (r < 0)
        return -EBADMSG;
    transform_geometry(&spec, from->width, from->height, &key, &geometry);
    transform_region(&spec, &geometry, &region);
    struct picture pixels = *from;
    pixels.pixels += region.y * from->stride + (size_t)region.x * from->channels;
    pixels.width = region.width;
    pixels.height = region.height;
    struct picture to = {NULL, (size_t)spec.width * spec.channels, spec.width, spec.height, spec.channels};
    if (!grow(&m->again.bytes, &m->again.room, to.stride * to.height))
        return out_of_memory(to.stride * to.height, diag);
    to.pixels = m->again.bytes;
    r = transform_apply(m->transform, &spec, &geometry, &region, &pixels, to.pixels, diag);
    cleanup_free uint8_t *jpeg = NULL;
    size_t length = 0;
    if (r == 0)
        r = jpeg_encode(&to, m->recipe->quality, &jpeg, &length, diag);
    if (r < 0)
        return r;
    m->made->counts.resized++;
    m->about->width = (uint16_t)to.width;
    m->about->height = (uint16_t)to.height;
    m->about->channels = (uint8_t)to.channels;
    m->about->flags &= (uint8_t)~PACK_PICTURE_PROGRESSIVE;
    struct jpeg_summary summary;
    if (jpeg_summarize(jpeg, length, &summary))
        m->about->sampling = (uint8_t)summary.sampling;
    return put_encoded(m, jpeg, length, orientation, diag);
}

static enum pack_encoding encoding_of(const char *kind) {
    return strcmp(kind, "JPEG") == 0              ? PACK_JPEG
           : strcmp(kind, COEFFICIENTS_KIND) == 0 ? PACK_COEFFICIENTS
           : strcmp(kind, "PNG") == 0             ? PACK_PNG
           : strcmp(kind, "WebP") == 0            ? PACK_WEBP
                                                  : PACK_OTHER;
}

/* What the index will say of the picture. */
static void describe(struct pack_maker *m, const uint8_t *bytes, size_t length, const struct decode_info *info) {
    struct pack_picture *about = m->about;
    struct jpeg_summary summary;
    if (info->width <= UINT16_MAX && info->height <= UINT16_MAX) {
        about->width = (uint16_t)info->width;
        about->height = (uint16_t)info->height;
    }
    about->channels = (uint8_t)info->channels;
    about->flags = (uint8_t)(info->orientation << 4);
    if (encoding_of(info->kind) != PACK_JPEG || !jpeg_summarize(bytes, length, &summary))
        return;
    about->sampling = (uint8_t)(summary.sampling <= 0x44 ? summary.sampling : 0);
    if (summary.progressive || summary.arithmetic)
        about->flags |= PACK_PICTURE_PROGRESSIVE;
}

/* A picture that does not decode. */
static int make_bad(struct pack_maker *m, const uint8_t *bytes, size_t length, const char *why, struct diag *diag) {
    if (!m->recipe->keep_bad)
        return diag_set(diag, -EBADMSG, "%s", why);
    snprintf(m->made->bad, sizeof m->made->bad, "%s", why);
    return put_picture(m, bytes, length, encoding_of(decode_sniff(bytes, length)), diag);
}

static int make_picture(struct pack_maker *m, uint32_t i, struct diag *diag) {
    const struct dataset_field *source = &m->source[m->recipe->from[i]];
    const uint8_t *bytes = m->bytes[source->extent];
    size_t length = m->length[source->extent];
    struct decode_info info = {0};
    struct diag why = DIAG_INIT;
    m->about = &m->made->item.picture[i];
    *m->about = (struct pack_picture){0};
    if (decoder_open(m->decoder, bytes, length, &info, &why) == DECODE_BAD)
        return make_bad(m, bytes, length, why.text, diag);
    decoder_close(m->decoder);
    describe(m, bytes, length, &info);
    enum pack_encoding encoding = encoding_of(info.kind);
    bool resize = m->recipe->resize && MIN(info.width, info.height) > m->recipe->resize &&
                  strcmp(source->spec.name, "image") == 0;
    int r = 0;
    if (encoding == PACK_JPEG && m->recipe->coefficients && !resize) /* the encoder reads all of it, and is strict */
        r = put_coefficients(m, bytes, length, diag);
    if (r != 0)
        return MIN(r, 0);
    r = decode_whole(m, bytes, length, strcmp(source->spec.name, "mask") == 0, &m->stored, &info, &why);
    if (r < 0)
        return r == -EBADMSG ? make_bad(m, bytes, length, why.text, diag) : diag_set(diag, r, "%s", why.text);
    if (resize)
        return make_resized(m, info.orientation, diag);
    return encoding == PACK_JPEG ? make_jpeg(m, bytes, length, info.orientation, diag)
                                 : put_picture(m, bytes, length, encoding, diag);
}

/* ---- other fields ---------------------------------------------------------------------------------------------- */

static int make_fixed(struct pack_maker *m, uint32_t i, uint64_t sample, struct diag *diag) {
    const struct dataset_field *source = &m->source[m->recipe->from[i]];
    uint64_t bytes = pack_field_bytes(&m->recipe->field[i]);
    uint8_t *to = put(m->made, NULL, bytes);
    if (!to)
        return out_of_memory(bytes, diag);
    if (source->source == SOURCE_SYNTHETIC) {
        dataset_synthesize(m->recipe->dataset, sample, m->recipe->from[i], to);
        return 0;
    }
    if (source->bytes != bytes || source->offset + bytes > m->length[source->extent])
        return diag_set(diag, -EBADMSG, "the record has %zu bytes, field '%s' wants %" PRIu64 " at byte %" PRIu64,
                        m->length[source->extent], source->spec.name, bytes, source->offset);
    const uint8_t *from = m->bytes[source->extent] + source->offset;
    size_t size = loaderd_dtype_size(source->spec.dtype);
    if (source->swap)
        transform_swap(from, to, size, bytes / size);
    else
        memcpy(to, from, bytes);
    return 0;
}

static int make_bytes(struct pack_maker *m, uint32_t i, struct diag *diag) {
    uint32_t extent = m->source[m->recipe->from[i]].extent;
    size_t length = m->length[extent];
    if (length > UINT32_MAX)
        return diag_set(diag, -EBADMSG, "a field of %zu bytes; a pack holds up to 4 GiB", length);
    m->made->item.picture[i].length = (uint32_t)length;
    return length == 0 || put(m->made, m->bytes[extent], length) ? 0 : out_of_memory(length, diag);
}

static int make_boxes(struct pack_maker *m, uint32_t i, struct diag *diag) {
    const struct dataset_field *field = &m->source[m->recipe->from[i]];
    uint32_t count;
    int r = dataset_boxes(field, m->bytes[field->extent], m->length[field->extent], 1, 1, m->box, &count, diag);
    if (r < 0)
        return r;
    m->made->item.picture[i].length = count * DATASET_BOX_BYTES;
    for (uint32_t k = 0; k < count; k++) {
        uint8_t *to = put(m->made, NULL, DATASET_BOX_BYTES);
        if (!to)
            return out_of_memory(DATASET_BOX_BYTES, diag);
        dataset_pack_box(&m->box[k], to);
    }
    return 0;
}

static int make_fields(struct pack_maker *m, uint64_t sample, const struct location *location, struct diag *diag) {
    const struct pack_recipe *recipe = m->recipe;
    int r = 0;
    for (uint32_t i = 0; i < recipe->fields && r == 0; i++) {
        if (recipe->field[i].storage == PACK_VALUE)
            m->made->item.value[i] = location->value[recipe->from[i]];
        else if (recipe->field[i].storage == PACK_FIXED)
            r = make_fixed(m, i, sample, diag);
    }
    for (uint32_t i = 0; i < recipe->fields && r == 0; i++)
        switch (recipe->field[i].storage) {
        case PACK_PICTURE:
            r = make_picture(m, i, diag);
            break;
        case PACK_BYTES:
            r = make_bytes(m, i, diag);
            break;
        case PACK_BOXES:
            r = make_boxes(m, i, diag);
            break;
        default:
            break;
        }
    return r;
}

/* ---- a sample -------------------------------------------------------------------------------------------------- */

/* Faults of the storage are no fault of the sample. */
static bool is_storage_error(int error) {
    return error == -EIO || error == -ESTALE || error == -ENOMEM || error == -EMFILE || error == -ENFILE;
}

static int read_extents(struct pack_maker *m, uint64_t sample, const struct location *location, struct diag *diag) {
    int error = 0;
    for (uint32_t e = 0; e < location->extents; e++)
        reader_submit(m->reader, &(struct read_request){.tag = e, .extent = location->extent[e]});
    reader_flush(m->reader);
    for (uint32_t e = 0; e < location->extents;) {
        struct read_result result;
        if (reader_reap(m->reader, UINT64_C(100000000), &result) == 0)
            continue;
        m->bytes[result.tag] = result.bytes;
        m->length[result.tag] = result.length;
        if (result.error && !error) {
            error = is_storage_error(result.error) ? result.error : -EBADMSG;
            diag_set(diag, error, "%s", result.diag ? result.diag->text : strerror(-result.error));
        }
        e++;
    }
    uint32_t state = 0;
    for (uint32_t e = 0; e < location->extents && error == 0; e++)
        error = dataset_check(m->recipe->dataset, sample, e, m->bytes[e], m->length[e], &state, diag);
    return error;
}

int pack_make(struct pack_maker *m, uint64_t sample, struct pack_made *made, struct diag *diag) {
    struct location location;
    m->made = made;
    made->item = (struct pack_item){0};
    made->counts = (struct pack_counts){0};
    made->kept[0] = made->bad[0] = '\0';
    dataset_locate(m->recipe->dataset, sample, &location);
    int r = read_extents(m, sample, &location, diag);
    if (r == 0 && location.extents == 1) {
        struct dataset_piece piece[MAX_EXTENTS];
        r = dataset_split(m->recipe->dataset, sample, m->bytes[0], m->length[0], piece, location.value, diag);
        for (uint32_t e = 0; e < MAX_EXTENTS && r == 0; e++) {
            m->bytes[e] = piece[e].bytes;
            m->length[e] = piece[e].length;
        }
        r = MIN(r, 0);
    }
    if (r == 0)
        r = make_fields(m, sample, &location, diag);
    for (uint32_t e = 0; e < location.extents; e++) {
        struct diag changed = DIAG_INIT;
        int done = reader_done(m->reader, e, &changed);
        if (done < 0 && r == 0)
            r = diag_set(diag, done, "%s", changed.text);
    }
    made->item.bytes = made->bytes;
    return r == 0 || is_storage_error(r) ? r : -EBADMSG;
}

void pack_maker_free(struct pack_maker *m) {
    if (!m)
        return;
    reader_free(m->reader);
    decoder_free(m->decoder);
    transform_free(m->transform);
    coefficients_encoder_free(m->encoder);
    free(m->stored.bytes);
    free(m->again.bytes);
    free(m->scratch);
    free(m->box);
    free(m);
}

int pack_maker_new(const struct pack_recipe *recipe, struct pack_maker **ret, struct diag *diag) {
    const struct read_options read = {
        .engine = READ_PREAD, .depth = MAX_EXTENTS, .max_bytes = recipe->limits->max_sample_bytes};
    const struct decode_limits limits = {.max_pixels = recipe->limits->max_pixels,
                                         .max_scans = recipe->limits->max_scans};
    struct pack_maker *m = calloc(1, sizeof *m);
    if (!m)
        return out_of_memory(sizeof *m, diag);
    m->recipe = recipe;
    m->box = malloc(DATASET_MAX_BOXES * sizeof *m->box);
    dataset_fields(recipe->dataset, &m->source);
    int r = m->box ? reader_new(&read, &m->reader, diag) : out_of_memory(sizeof *m->box, diag);
    if (r == 0 &&
        (decoder_new(&limits, &m->decoder) < 0 || transform_new(recipe->limits->max_pixels, &m->transform) < 0 ||
         coefficients_encoder_new(&m->encoder) < 0))
        r = diag_set(diag, -ENOMEM, "out of memory for a decoder");
    if (r < 0)
        pack_maker_free(m);
    else
        *ret = m;
    return r;
}
