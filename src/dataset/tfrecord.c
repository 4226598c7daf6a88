/* SPDX-License-Identifier: MIT */
/*
 * Format tfrecord: TensorFlow's records (tensorflow/core/lib/io/record_writer.h) that hold tf.train.Example messages
 * (tensorflow/core/example/example.proto).
 *
 *   | length u64 | masked CRC-32C of it | data | masked CRC-32C of the data | length ...
 *
 * - The scan goes from length to length and checks their CRCs. Where one is wrong or the file ends inside of a record,
 *   what follows is lost and told; nothing can be found behind it.
 * - The CRC of the data is checked when a record is read (key verify-crc): a bad one is a bad sample.
 * - Fields are features by name: fields = image/encoded:image image/class/label:label. A list of bytes with one value
 *   is a picture where the first record's is one, else u8 of that length; a list of one int64 is a number; a list of
 *   floats is f32 of the first record's length. A record where a feature is missing, or has another kind or length, is
 *   a bad sample. Strings that the key bytes names are delivered as they are. image/object/bbox:boxes stands for the
 *   lists image/object/bbox/xmin and so on (boxes.c). Without fields: the picture, and a number called label.
 *
 * The index has two numbers a record: where its data begins, and its length. Opening is for one thread, the scan for
 * several; everything else for any.
 */
#include "base/crc32c.h"

#include <endian.h>
#include <stdio.h>
#include <string.h>

#include "dataset/format.h"

#define RULES "tfrecord scan 1" /* changes whenever the same shards would give other samples */
#define HEADER_BYTES 12u
#define FOOTER_BYTES 4u
#define PROBE_BYTES (UINT64_C(256) << 20) /* of the first record */

struct tfrecord {
    struct shards shards;
    struct wishes wishes;
    enum example_kind kind[LOADERD_MAX_FIELDS];
    char *text; /* that the wishes point into */
};

/* ---- framing: pure ----------------------------------------------------------------------------------------------- */

static uint32_t masked(uint32_t crc) {
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

bool tfrecord_parse_length(const uint8_t bytes[12], uint64_t *ret) {
    uint64_t length;
    uint32_t stored;
    memcpy(&length, bytes, 8);
    memcpy(&stored, bytes + 8, 4);
    *ret = le64toh(length);
    return le32toh(stored) == masked(crc32c(0, bytes, 8));
}

static bool tfrecord_detect(const uint8_t *head, size_t length) {
    uint64_t ignored;
    return length >= HEADER_BYTES && tfrecord_parse_length(head, &ignored);
}

/* ---- protocol buffers: pure -------------------------------------------------------------------------------------- */

struct cursor {
    const uint8_t *at, *end;
};

static bool take_varint(struct cursor *c, uint64_t *ret) {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && c->at < c->end; shift += 7) {
        uint8_t byte = *c->at++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *ret = value;
            return true;
        }
    }
    return false;
}

/* The next field of a message: its number, wire type, and the bytes of a length-delimited one. False at the end (then
 * c->at == c->end) and where the bytes are none. */
static bool take_field(struct cursor *c, uint64_t *ret_tag, struct cursor *ret_bytes, uint64_t *ret_value) {
    uint64_t length;
    *ret_bytes = (struct cursor){c->at, c->at};
    *ret_value = 0;
    if (c->at == c->end || !take_varint(c, ret_tag))
        return false;
    switch (*ret_tag & 7) {
    case 0:
        return take_varint(c, ret_value);
    case 1:
        length = 8;
        break;
    case 2:
        if (!take_varint(c, &length))
            return false;
        break;
    case 5:
        length = 4;
        break;
    default:
        return false;
    }
    if (length > (uint64_t)(c->end - c->at))
        return false;
    *ret_bytes = (struct cursor){c->at, c->at + length};
    c->at += length;
    return true;
}

#define FIELD(number, wire) ((number) << 3 | (wire))

static bool parse_bytes(struct cursor list, struct example_feature *ret) {
    uint64_t tag, value;
    struct cursor bytes;
    while (take_field(&list, &tag, &bytes, &value))
        if (tag == FIELD(1, 2) && ret->count++ == 0) {
            ret->bytes = bytes.at;
            ret->length = (size_t)(bytes.end - bytes.at);
        }
    return list.at == list.end;
}

/* Floats lie together only where they are packed, in one piece. */
static bool parse_floats(struct cursor list, struct example_feature *ret) {
    uint64_t tag, value;
    struct cursor bytes;
    while (take_field(&list, &tag, &bytes, &value)) {
        if (tag != FIELD(1, 2) && tag != FIELD(1, 5))
            continue;
        size_t length = (size_t)(bytes.end - bytes.at);
        if (length % 4)
            return false;
        ret->count += length / 4;
        ret->bytes = bytes.at;
        ret->scattered = ret->scattered || ret->length;
        ret->length += length;
    }
    return list.at == list.end;
}

static bool parse_integers(struct cursor list, struct example_feature *ret) {
    uint64_t tag, value;
    struct cursor bytes;
    while (take_field(&list, &tag, &bytes, &value)) {
        if (tag == FIELD(1, 0) && ret->count++ == 0)
            ret->value = (int64_t)value;
        while (tag == FIELD(1, 2) && bytes.at < bytes.end) {
            if (!take_varint(&bytes, &value))
                return false;
            if (ret->count++ == 0)
                ret->value = (int64_t)value;
        }
    }
    return list.at == list.end;
}

bool example_next_integer(struct example_integers *integers, int64_t *ret) {
    struct cursor list = {integers->list, integers->list + integers->left}, bytes;
    uint64_t tag, value = 0;
    bool found = false;
    while (!found) {
        if (integers->packed) {
            const uint8_t *begin = list.at;
            struct cursor piece = {begin, begin + integers->packed};
            if (!take_varint(&piece, &value))
                return false;
            list.at = piece.at;
            integers->packed -= (size_t)(piece.at - begin);
            found = true;
        } else if (!take_field(&list, &tag, &bytes, &value)) {
            return false;
        } else if (tag == FIELD(1, 2) && bytes.at < bytes.end) {
            list.at = bytes.at;
            integers->packed = (size_t)(bytes.end - bytes.at);
        } else {
            found = tag == FIELD(1, 0);
        }
    }
    integers->list = list.at;
    integers->left = (size_t)(list.end - list.at);
    *ret = (int64_t)value;
    return true;
}

static bool parse_feature(struct cursor message, struct example_feature *ret) {
    uint64_t tag, value;
    struct cursor list;
    while (take_field(&message, &tag, &list, &value)) {
        if (tag != FIELD(1, 2) && tag != FIELD(2, 2) && tag != FIELD(3, 2))
            continue;
        if (ret->kind != (enum example_kind)(tag >> 3)) /* one of three: the last one counts, with nothing of another */
            *ret = (struct example_feature){.name = ret->name, .name_length = ret->name_length};
        ret->kind = (enum example_kind)(tag >> 3);
        ret->list = list.at;
        ret->list_length = (size_t)(list.end - list.at);
        bool good = tag == FIELD(1, 2)   ? parse_bytes(list, ret)
                    : tag == FIELD(2, 2) ? parse_floats(list, ret)
                                         : parse_integers(list, ret);
        if (!good)
            return false;
    }
    return message.at == message.end;
}

/* An entry of the map: key and feature. */
static bool parse_entry(struct cursor entry, struct example_feature *ret) {
    uint64_t tag, value;
    struct cursor bytes, feature = {NULL, NULL};
    *ret = (struct example_feature){.name = ""};
    while (take_field(&entry, &tag, &bytes, &value))
        if (tag == FIELD(1, 2)) {
            ret->name = (const char *)bytes.at;
            ret->name_length = (size_t)(bytes.end - bytes.at);
        } else if (tag == FIELD(2, 2)) {
            feature = bytes;
        }
    return entry.at == entry.end && (!feature.at || parse_feature(feature, ret));
}

int example_parse(const uint8_t *bytes, size_t length, bool (*each)(void *arg, const struct example_feature *feature),
                  void *arg) {
    struct cursor example = {bytes, bytes + length}, features, entry;
    uint64_t tag, value;
    while (take_field(&example, &tag, &features, &value)) {
        if (tag != FIELD(1, 2))
            continue;
        while (take_field(&features, &tag, &entry, &value)) {
            struct example_feature feature;
            if (tag != FIELD(1, 2))
                continue;
            if (!parse_entry(entry, &feature))
                return -EINVAL;
            if (!each(arg, &feature))
                return 0;
        }
        if (features.at != features.end)
            return -EINVAL;
    }
    return example.at == example.end ? 0 : -EINVAL;
}

/* ---- the scan ---------------------------------------------------------------------------------------------------- */

static int scan_shard(void *arg, const struct source_file *file, struct records_found *found, struct diag *diag) {
    (void)arg;
    uint8_t head[HEADER_BYTES];
    uint64_t size = file->identity.size, at = 0;
    ssize_t got = source_file_head(file, head, sizeof head, diag);
    struct window window;
    int rc = got < 0 ? (int)got : window_init(&window, file);
    if (rc < 0)
        return rc;
    while (rc == 0 && at < size) {
        uint64_t length = 0, record = found->word.length / 16;
        bool whole = size - at >= HEADER_BYTES + FOOTER_BYTES;
        rc = whole ? window_read(&window, head, sizeof head, at, diag) : 0;
        if (rc < 0)
            break;
        if (whole && !tfrecord_parse_length(head, &length)) {
            rc = records_add_remark(found,
                                    "%s: record %llu at byte %llu: the CRC of its length is wrong: this record and "
                                    "what follows are lost",
                                    file->path, (unsigned long long)record, (unsigned long long)at);
            break;
        }
        if (!whole || length > size - at - HEADER_BYTES - FOOTER_BYTES) {
            rc = records_add_remark(found,
                                    "%s was cut: it ends at byte %llu inside of record %llu, which began at byte "
                                    "%llu and is lost",
                                    file->path, (unsigned long long)size, (unsigned long long)record,
                                    (unsigned long long)at);
            break;
        }
        const uint64_t word[2] = {at + HEADER_BYTES, length};
        rc = buffer_append(&found->word, word, sizeof word);
        at += HEADER_BYTES + length + FOOTER_BYTES;
    }
    window_deinit(&window);
    return rc;
}

/* ---- fields, as the first record has them ------------------------------------------------------------------------ */

struct probe {
    struct tfrecord *set;
    struct dataset *dataset;
    const struct dataset_options *options;
    struct diag *diag;
    struct buffer names; /* for messages */
    char image[128], label[128];
    uint32_t extents, found;
    const char *wrong;
};

static bool is_picture(const struct example_feature *f) {
    return f->kind == EXAMPLE_BYTES && f->count == 1 && is_picture_content(f->bytes, f->length);
}

/* Notes every feature; of several pictures the first in byte order, of numbers those that are called a label. */
static bool note_feature(void *arg, const struct example_feature *f) {
    struct probe *p = arg;
    char text[160];
    int n = snprintf(text, sizeof text, " %.*s", (int)MIN(f->name_length, 120u), f->name);
    if (p->names.length < 4096 && buffer_append(&p->names, text, (size_t)n) < 0)
        return false;
    if (f->name_length == 0 || f->name_length >= sizeof p->image || memchr(f->name, ' ', f->name_length) ||
        memchr(f->name, ';', f->name_length) || memchr(f->name, '\0', f->name_length))
        return true;
    if (is_picture(f) && (!p->image[0] || strcmp(text + 1, p->image) < 0))
        memcpy(p->image, text + 1, (size_t)n);
    if (f->kind == EXAMPLE_INTEGERS && f->count == 1 && !p->label[0] && is_label_name(f->name, f->name_length))
        memcpy(p->label, text + 1, (size_t)n);
    return true;
}

/* The field of a wish called boxes: the record as a whole, in which boxes.c finds them. */
static const char *set_boxes(struct probe *p, struct dataset_field *field, const struct wish *wish) {
    struct dataset *dataset = p->dataset;
    if (p->extents == MAX_EXTENTS)
        return "is one of more than four fields that are no numbers";
    if (boxes_source_init(&dataset->boxes, BOXES_EXAMPLE, p->options, p->diag) < 0)
        return "cannot be read: see box-form";
    if (wish->source_length >= sizeof dataset->boxes.path)
        return "has too long a name";
    memcpy(dataset->boxes.path, wish->source, wish->source_length);
    boxes_set_field(dataset, field, p->extents++);
    return NULL;
}

static const char *set_field(struct probe *p, struct dataset_field *field, const struct wish *wish,
                             const struct example_feature *f) {
    if (f->kind == EXAMPLE_INTEGERS) {
        if (f->count != 1)
            return "is no single number (lists of integers are not supported)";
        dataset_set_label_field(field);
        return NULL;
    }
    if (p->extents == MAX_EXTENTS)
        return "is one of more than four fields that are no numbers";
    if (f->kind == EXAMPLE_BYTES && f->count == 1 && dataset_wants_bytes(p->options, wish->name)) {
        dataset_set_ragged_field(field, p->extents++);
        return NULL;
    }
    *field = (struct dataset_field){.source = SOURCE_BYTES, .bytes = f->length, .extent = p->extents++};
    field->spec = (struct field_spec){.dtype = LOADERD_U8, .ndim = 1, .dims = {(int64_t)f->length}};
    if (f->kind == EXAMPLE_FLOATS && (f->scattered || f->count == 0))
        return "is an empty list of floats, or not packed";
    if (f->kind == EXAMPLE_BYTES && (f->count != 1 || f->length == 0))
        return "is no single string of bytes";
    if (f->kind == EXAMPLE_FLOATS) {
        field->spec.dtype = LOADERD_F32;
        field->spec.ndim = f->count > 1;
        field->spec.dims[0] = (int64_t)f->count;
    } else if (is_picture(f)) {
        field->source = SOURCE_PICTURE;
        field->spec = (struct field_spec){.dtype = LOADERD_U8, .ndim = 3, .dims = {-1, -1, -1}};
    }
    return f->kind == EXAMPLE_NONE ? "is empty" : NULL;
}

/* Does the wish for boxes mean the lists beside this one? */
static bool is_boxes_of(const struct wish *wish, const struct example_feature *f) {
    return strcmp(wish->name, "boxes") == 0 && example_is_box_edge(f, wish->source, wish->source_length);
}

static bool match_feature(void *arg, const struct example_feature *f) {
    struct probe *p = arg;
    const struct wishes *wishes = &p->set->wishes;
    for (uint32_t i = 0; i < wishes->count; i++) {
        const struct wish *wish = &wishes->wish[i];
        bool boxes = is_boxes_of(wish, f);
        if (p->found & 1u << i || (!boxes && wish_rank(wish, f->name, f->name_length) < 0))
            continue;
        struct dataset_field *field = &p->dataset->field[i];
        const char *wrong = boxes ? set_boxes(p, field, wish) : set_field(p, field, wish, f);
        if (wrong && !p->wrong) {
            p->wrong = wrong;
            snprintf(p->image, sizeof p->image, "%.*s", (int)MIN(f->name_length, 120u), f->name);
        }
        memcpy(p->dataset->field[i].spec.name, wish->name, sizeof wish->name);
        p->set->kind[i] = f->kind;
        p->found |= 1u << i;
    }
    return true;
}

static int match_wishes(struct probe *p, const uint8_t *bytes, size_t length, const char *path, struct diag *diag) {
    struct tfrecord *set = p->set;
    int rc = wishes_parse(set->text, strlen(set->text), &set->wishes, diag);
    if (rc < 0)
        return rc;
    p->dataset->fields = set->wishes.count;
    example_parse(bytes, length, match_feature, p);
    if (p->wrong)
        return diag_set(diag, -EINVAL, "%s: the feature %s of the first record %s", path, p->image, p->wrong);
    for (uint32_t i = 0; i < set->wishes.count; i++)
        if (!(p->found & 1u << i))
            return diag_set(diag, -EINVAL, "%s: the first record has no feature %.*s (field %s); it has%.*s", path,
                            (int)set->wishes.wish[i].source_length, set->wishes.wish[i].source,
                            set->wishes.wish[i].name, (int)MIN(p->names.length, 300u), p->names.data);
    return 0;
}

static int choose_fields(struct probe *p, const uint8_t *bytes, size_t length, struct diag *diag) {
    const char *fields = p->options->wanted_fields, *path = p->set->shards.file[0].path;
    if (example_parse(bytes, length, note_feature, p) < 0 || p->names.length == 0)
        return diag_set(diag, -EINVAL, "%s: its first record is no tf.train.Example", path);
    bool given = fields && *fields;
    if (!given && !p->image[0])
        return diag_set(diag, -EINVAL,
                        "%s: no feature of the first record is a picture; it has%.*s: set fields, e.g. "
                        "fields = \"FEATURE:image FEATURE:label\"",
                        path, (int)MIN(p->names.length, 300u), p->names.data);
    if (asprintf(&p->set->text, "%s%s%s%s", given ? fields : p->image, given ? "" : ":image ", given ? "" : p->label,
                 !given && p->label[0] ? ":label" : "") < 0) {
        p->set->text = NULL;
        return -ENOMEM;
    }
    return match_wishes(p, bytes, length, path, diag);
}

static int probe_first(struct dataset *dataset, struct tfrecord *set, const struct dataset_options *options,
                       struct diag *diag) {
    const struct source_file *file = &set->shards.file[0];
    uint8_t head[HEADER_BYTES];
    uint64_t length;
    ssize_t got = source_file_head(file, head, sizeof head, diag);
    if (got < 0)
        return (int)got;
    if ((size_t)got < sizeof head || !tfrecord_parse_length(head, &length))
        return diag_set(diag, -EINVAL, "%s is no TFRecord file: the CRC of the first length is wrong", file->path);
    if (length > PROBE_BYTES || length > file->identity.size - sizeof head)
        return diag_set(diag, -EINVAL, "%s: its first record of %llu bytes is not whole", file->path,
                        (unsigned long long)length);
    cleanup_free uint8_t *bytes = malloc((size_t)length + 1);
    struct probe probe = {.set = set, .dataset = dataset, .options = options, .diag = diag};
    int rc = bytes ? source_file_read(file, bytes, (size_t)length, sizeof head, diag) : -ENOMEM;
    if (rc == 0)
        rc = choose_fields(&probe, bytes, (size_t)length, diag);
    buffer_deinit(&probe.names);
    return rc;
}

/* ---- the format -------------------------------------------------------------------------------------------------- */

static int tfrecord_open(struct dataset *dataset, const struct dataset_options *options, struct diag *diag) {
    struct tfrecord *set = calloc(1, sizeof *set);
    if (!set)
        return -ENOMEM;
    dataset->state = set;
    int rc = shards_open_path(&set->shards, dataset->path, diag);
    if (rc == 0)
        rc = probe_first(dataset, set, options, diag);
    if (rc < 0)
        return rc;
    struct records_scan scan = {.words = 2, .scan = scan_shard};
    struct hash hash;
    hash_begin(&hash, RULES);
    dataset_hash_fields(dataset, &hash);
    hash_string(&hash, set->text);
    hash_u64(&hash, dataset->boxes.form);
    hash_u64(&hash, dataset->boxes.relative);
    hash_end(&hash, scan.key);
    return records_open(dataset, options, &set->shards, &scan, diag);
}

static void tfrecord_close(struct dataset *dataset) {
    struct tfrecord *set = dataset->state;
    index_release(dataset);
    if (set) {
        shards_close(&set->shards);
        free(set->text);
    }
    free(set);
    dataset->state = NULL;
}

static void tfrecord_locate(const struct dataset *dataset, uint64_t sample, struct location *ret) {
    const struct tfrecord *set = dataset->state;
    const uint64_t *word = dataset->index.word + sample * 2;
    ret->extents = 1;
    ret->extent[0] = (struct extent){
        .file = &set->shards.file[shards_find(&set->shards, sample)],
        .dirfd = -1,
        .offset = word[0],
        .length = word[1] + FOOTER_BYTES,
    };
}

static int tfrecord_name(const struct dataset *dataset, uint64_t sample, char *buffer, size_t size) {
    const struct tfrecord *set = dataset->state;
    return shards_name(&set->shards, sample, buffer, size);
}

static int tfrecord_check(const struct dataset *dataset, uint64_t sample, uint32_t extent, const void *bytes,
                          size_t length, uint32_t *state, struct diag *diag) {
    const struct tfrecord *set = dataset->state;
    (void)extent, (void)state;
    uint32_t stored, crc;
    if (length < FOOTER_BYTES)
        return diag_set(diag, -EBADMSG, "record of %zu bytes", length);
    memcpy(&stored, (const uint8_t *)bytes + length - FOOTER_BYTES, sizeof stored);
    crc = masked(crc32c(0, bytes, length - FOOTER_BYTES));
    if (crc == le32toh(stored))
        return 0;
    return diag_set(diag, -EBADMSG, "record %llu at byte %llu: data CRC is %08x, stored is %08x",
                    (unsigned long long)(sample - set->shards.first[shards_find(&set->shards, sample)]),
                    (unsigned long long)(dataset->index.word[sample * 2] - HEADER_BYTES), crc, le32toh(stored));
}

struct split {
    const struct dataset *dataset;
    struct dataset_piece *piece;
    int64_t *value;
    uint32_t found;
    const char *wrong;
    uint32_t wrong_field;
};

static bool split_feature(void *arg, const struct example_feature *f) {
    struct split *s = arg;
    const struct tfrecord *set = s->dataset->state;
    const struct wishes *wishes = &set->wishes;
    for (uint32_t i = 0; !s->wrong && (i = wishes_find(wishes, i, f->name, f->name_length, NULL)) < wishes->count;
         i++) {
        const struct dataset_field *field = &s->dataset->field[i];
        if (s->found & 1u << i || field->source == SOURCE_BOXES)
            continue;
        s->found |= 1u << i;
        s->wrong_field = i;
        bool fixed = field->source == SOURCE_BYTES;
        if (f->kind != set->kind[i])
            s->wrong = "is of another kind than in the first record";
        else if (f->kind != EXAMPLE_FLOATS && f->count != 1)
            s->wrong = "is a list of other than one value";
        else if (f->scattered || (fixed && f->length != field->bytes))
            s->wrong = "has another length than in the first record";
        else if (f->kind == EXAMPLE_INTEGERS)
            s->value[i] = f->value;
        else
            s->piece[field->extent] = (struct dataset_piece){f->bytes, f->length};
    }
    return !s->wrong;
}

static int tfrecord_split(const struct dataset *dataset, uint64_t sample, const uint8_t *bytes, size_t length,
                          struct dataset_piece *ret, int64_t *ret_value, struct diag *diag) {
    const struct tfrecord *set = dataset->state;
    struct split split = {.dataset = dataset, .piece = ret, .value = ret_value};
    (void)sample;
    if (length < FOOTER_BYTES || example_parse(bytes, length - FOOTER_BYTES, split_feature, &split) < 0)
        return diag_set(diag, -EBADMSG, "the record is no tf.train.Example");
    for (uint32_t i = 0; i < set->wishes.count; i++)
        if (dataset->field[i].source == SOURCE_BOXES) { /* boxes.c will look for them */
            ret[dataset->field[i].extent] = (struct dataset_piece){bytes, length - FOOTER_BYTES};
            split.found |= 1u << i;
        }
    for (uint32_t i = 0; i < set->wishes.count && !split.wrong; i++)
        if (!(split.found & 1u << i)) {
            split.wrong = "is missing";
            split.wrong_field = i;
        }
    const struct wish *wish = &set->wishes.wish[split.wrong_field];
    return split.wrong ? diag_set(diag, -EBADMSG, "the feature %.*s (field %s) %s", (int)wish->source_length,
                                  wish->source, wish->name, split.wrong)
                       : 0;
}

const struct dataset_format format_tfrecord = {
    .name = "tfrecord",
    .takes = TAKES_FIELDS,
    .detect = tfrecord_detect,
    .open = tfrecord_open,
    .close = tfrecord_close,
    .locate = tfrecord_locate,
    .name_sample = tfrecord_name,
    .check = tfrecord_check,
    .split = tfrecord_split,
};
