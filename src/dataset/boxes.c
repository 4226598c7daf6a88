/* SPDX-License-Identifier: MIT */
/*
 * Rectangles beside a picture, in the three ways in which people keep them:
 *
 *   YOLO text      lines "class cx cy width height" in shares of the picture's sides
 *   JSON           numbers behind keys: "annotations.bbox" and "annotations.category_id"
 *   tf.train.Example   four lists of floats PREFIX/xmin, ymin, xmax, ymax and a list of classes
 *
 * and as a pack keeps what was read: five 64-bit floats a rectangle. All become left, top, right, bottom and class. They
 * are computed in the unit in which they are stored, in binary64, and then multiplied by the picture's sides, so that a
 * pack gives the same numbers as its source.
 *
 * Pure functions over (pointer, length): any thread; nothing is allocated.
 */
#include <endian.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "dataset/format.h"

#define SLACK 0.01            /* of a share: labels are rounded by those who write them */
#define NUMBER_MOST 63        /* characters of a number */
#define MOST_NESTED 64        /* arrays and objects in each other */
#define CLASS_MOST 16777216.0 /* 2^24: whole numbers up to there are exact in a row's f32 */

/* Where rectangles go. */
struct collector {
    const struct box_source *source;
    double across, down; /* what the unit of storage is multiplied by */
    struct dataset_box *box;
    uint32_t boxes, classes;
    bool without_class, with_class; /* seen: rectangles without, and with a class of their own */
    struct diag *diag;
};

static int bad(struct collector *c, const char *why) {
    return diag_set(c->diag, -EBADMSG, "box %u: %s", c->boxes, why);
}

/* Four numbers as they are stored, and a class. */
static int add_box(struct collector *c, const double n[4], double class) {
    const struct box_source *source = c->source;
    double side[4] = {n[0], n[1], n[2], n[3]};
    if (c->boxes == DATASET_MAX_BOXES)
        return diag_set(c->diag, -EBADMSG, "more than %u boxes", DATASET_MAX_BOXES);
    for (int i = 0; i < 4; i++)
        if (!isfinite(n[i]))
            return bad(c, "a coordinate is no finite number");
    /* corners that a pack keeps were made of such numbers, and may lie further out */
    if (source->relative && source->kind != BOXES_PACKED &&
        (n[0] < -SLACK || n[1] < -SLACK || n[2] < -SLACK || n[3] < -SLACK || n[0] > 1 + SLACK || n[1] > 1 + SLACK ||
         n[2] > 1 + SLACK || n[3] > 1 + SLACK))
        return bad(c, "a coordinate outside of 0 to 1, though they are shares of the picture (key box-form)");
    if (source->form == BOX_CXCYWH) {
        side[0] = n[0] - n[2] / 2;
        side[1] = n[1] - n[3] / 2;
        side[2] = n[0] + n[2] / 2;
        side[3] = n[1] + n[3] / 2;
    } else if (source->form == BOX_XYWH) {
        side[2] = n[0] + n[2];
        side[3] = n[1] + n[3];
    }
    if (!isfinite(side[2]) || !isfinite(side[3]))
        return bad(c, "a coordinate is too large a number");
    if (side[2] < side[0] || side[3] < side[1])
        return bad(c, source->form == BOX_XYXY ? "its right edge is left of its left one, or its lower one above its "
                                                 "upper one (key box-form)"
                                               : "a negative width or height");
    if (!(class >= 0 && class <= CLASS_MOST) || class != floor(class))
        return bad(c, "its class is no whole number from 0 to 16777216");
    struct dataset_box *box = &c->box[c->boxes++];
    *box =
        (struct dataset_box){{side[0] * c->across, side[1] * c->down, side[2] * c->across, side[3] * c->down}, class};
    return 0;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

/* A decimal number that fills [p, end) exactly; the nearest binary64. Needs the locale "C", which programs start in. */
static bool parse_number(const char *p, const char *end, double *ret) {
    char copy[NUMBER_MOST + 1], *stop;
    size_t length = (size_t)(end - p);
    if (length == 0 || length > NUMBER_MOST)
        return false;
    for (size_t i = 0; i < length; i++)
        if (!strchr("0123456789+-.eE", p[i]) || !p[i])
            return false;
    memcpy(copy, p, length);
    copy[length] = '\0';
    *ret = strtod(copy, &stop);
    return stop == copy + length && isfinite(*ret);
}

/* ---- YOLO text --------------------------------------------------------------------------------------------------- */

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r';
}

static int parse_line(struct collector *c, const char *p, const char *end, uint32_t line) {
    double number[5];
    int numbers = 0;
    for (;;) {
        while (p < end && is_blank(*p))
            p++;
        if (p == end)
            break;
        const char *start = p;
        while (p < end && !is_blank(*p))
            p++;
        if (numbers == 5)
            return diag_set(c->diag, -EBADMSG,
                            "line %u has more than 5 numbers (a polygon?): wanted is class cx cy width height", line);
        if (!parse_number(start, p, &number[numbers++]))
            return diag_set(c->diag, -EBADMSG, "line %u: '%.*s' is no number", line, (int)MIN(p - start, 20), start);
    }
    if (numbers == 0)
        return 0;
    if (numbers < 5)
        return diag_set(c->diag, -EBADMSG, "line %u has %d numbers: wanted is class cx cy width height", line, numbers);
    int r = add_box(c, number + 1, number[0]);
    if (r < 0)
        diag_prefix(c->diag, "line %u", line);
    return r;
}

static int parse_yolo(struct collector *c, const char *p, size_t length) {
    const char *end = p + length;
    int r = 0;
    for (uint32_t line = 1; p < end && r == 0; line++) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        r = parse_line(c, p, stop ? stop : end, line);
        p = stop ? stop + 1 : end;
    }
    return r;
}

/* ---- JSON: a walk to what stands behind a path ------------------------------------------------------------------- */

struct json {
    const char *at, *end;
};

static void skip_space(struct json *j) {
    while (j->at < j->end && (*j->at == ' ' || *j->at == '\t' || *j->at == '\n' || *j->at == '\r'))
        j->at++;
}

static bool take(struct json *j, char c) {
    skip_space(j);
    if (j->at == j->end || *j->at != c)
        return false;
    j->at++;
    return true;
}

/* A string's characters between the quotes, escapes as they stand. */
static bool take_string(struct json *j, struct json *ret) {
    if (!take(j, '"'))
        return false;
    ret->at = j->at;
    for (; j->at < j->end && *j->at != '"'; j->at++)
        if (*j->at == '\\' && ++j->at == j->end)
            return false;
    ret->end = j->at;
    return j->at < j->end && *j->at++ == '"';
}

/* A number or a word: what stands up to the next character that divides. */
static bool take_plain(struct json *j, struct json *ret) {
    skip_space(j);
    ret->at = j->at;
    while (j->at < j->end && !strchr(",]}: \t\r\n\"[{", *j->at) && *j->at)
        j->at++;
    ret->end = j->at;
    return ret->end > ret->at;
}

static bool skip_value(struct json *j, unsigned depth) {
    struct json unused;
    skip_space(j);
    if (j->at == j->end || depth > MOST_NESTED)
        return false;
    if (*j->at == '"')
        return take_string(j, &unused);
    if (*j->at != '[' && *j->at != '{')
        return take_plain(j, &unused);
    char close = *j->at++ == '[' ? ']' : '}';
    if (take(j, close))
        return true;
    do {
        if (close == '}' && (!take_string(j, &unused) || !take(j, ':')))
            return false;
        if (!skip_value(j, depth + 1))
            return false;
    } while (take(j, ','));
    return take(j, close);
}

/* What is done with a value behind the path: reads it from *j. 0, or -EBADMSG and a sentence. */
typedef int json_each(struct collector *c, struct json *j, unsigned depth);

static int no_json(struct collector *c) {
    return diag_set(c->diag, -EBADMSG, "the boxes are no JSON");
}

/* Goes to what `path`, keys divided by dots, leads to; a key applied to an array is applied to each of its elements. */
static int walk(struct collector *c, struct json *j, const char *path, json_each *each, bool *found, unsigned depth) {
    skip_space(j);
    if (j->at == j->end || depth > MOST_NESTED)
        return no_json(c);
    if (*path == '\0')
        return each(c, j, depth);
    size_t key = strcspn(path, ".");
    const char *rest = path + key + (path[key] == '.');
    bool object = *j->at == '{';
    if (!object && *j->at != '[')
        return skip_value(j, depth) ? 0 : no_json(c);
    char close = *j->at++ == '[' ? ']' : '}';
    if (take(j, close))
        return 0;
    do {
        struct json name = {NULL, NULL};
        if (object && (!take_string(j, &name) || !take(j, ':')))
            return no_json(c);
        bool mine = object && (size_t)(name.end - name.at) == key && memcmp(name.at, path, key) == 0;
        int r = 0;
        if (mine)
            *found = true;
        if (!object || mine)
            r = walk(c, j, mine ? rest : path, each, found, depth + 1);
        else if (!skip_value(j, depth + 1))
            r = no_json(c);
        if (r < 0)
            return r;
    } while (take(j, ','));
    return take(j, close) ? 0 : no_json(c);
}

static int take_number(struct collector *c, struct json *j, double *ret) {
    struct json word = {NULL, NULL};
    if (!take_plain(j, &word))
        return diag_set(c->diag, -EBADMSG, "box %u: something else than a number", c->boxes);
    if (parse_number(word.at, word.end, ret))
        return 0;
    return diag_set(c->diag, -EBADMSG, "box %u: '%.*s' is no number", c->boxes, (int)MIN(word.end - word.at, 20),
                    word.at);
}

/* [a, b, c, d] or [a, b, c, d, class], or an array of such. */
static int take_boxes(struct collector *c, struct json *j, unsigned depth) {
    double number[5];
    int numbers = 0, r = 0;
    if (!take(j, '['))
        return diag_set(c->diag, -EBADMSG, "box %u is no array of numbers", c->boxes);
    if (take(j, ']'))
        return 0;
    skip_space(j);
    bool nested = j->at < j->end && *j->at == '[';
    if (depth > MOST_NESTED)
        return no_json(c);
    do {
        if (nested)
            r = take_boxes(c, j, depth + 1);
        else if (numbers == 5)
            r = diag_set(c->diag, -EBADMSG, "box %u has more than 5 numbers", c->boxes);
        else
            r = take_number(c, j, &number[numbers++]);
        if (r < 0)
            return r;
    } while (take(j, ','));
    if (!take(j, ']'))
        return no_json(c);
    if (nested)
        return 0;
    if (numbers < 4)
        return diag_set(c->diag, -EBADMSG, "box %u has %d numbers: wanted are 4, or 5 with a class", c->boxes, numbers);
    c->with_class |= numbers == 5;
    c->without_class |= numbers == 4;
    return add_box(c, number, numbers == 5 ? number[4] : 0);
}

/* A class, or an array of them: the next boxes' ones. */
static int take_classes(struct collector *c, struct json *j, unsigned depth) {
    double class;
    if (depth > MOST_NESTED)
        return no_json(c);
    if (take(j, '[')) {
        if (take(j, ']'))
            return 0;
        do {
            int r = take_classes(c, j, depth + 1);
            if (r < 0)
                return r;
        } while (take(j, ','));
        return take(j, ']') ? 0 : no_json(c);
    }
    int r = take_number(c, j, &class);
    if (r < 0)
        return r;
    if (!(class >= 0 && class <= CLASS_MOST) || class != floor(class))
        return diag_set(c->diag, -EBADMSG, "class %u is no whole number from 0 to 16777216", c->classes);
    if (c->classes < c->boxes)
        c->box[c->classes].class = class;
    c->classes++;
    return 0;
}

/* The whole text is one value. */
static int walk_all(struct collector *c, const char *p, size_t length, const char *path, json_each *each) {
    struct json j = {p, p + length};
    bool found = *path == '\0';
    int r = walk(c, &j, path, each, &found, 0);
    skip_space(&j);
    if (r == 0 && j.at != j.end)
        return no_json(c);
    if (r == 0 && !found)
        return diag_set(c->diag, -EBADMSG, "the JSON has no %s (key box-json)", path);
    return r;
}

static int parse_json(struct collector *c, const char *p, size_t length) {
    const struct box_source *source = c->source;
    int r = walk_all(c, p, length, source->path, take_boxes);
    if (r == 0 && c->boxes && *source->class_path) {
        r = walk_all(c, p, length, source->class_path, take_classes);
        if (r == 0 && c->classes != c->boxes)
            r = diag_set(c->diag, -EBADMSG, "%u boxes and %u classes (%s)", c->boxes, c->classes, source->class_path);
    }
    if (r == 0 && c->with_class && c->without_class)
        r = diag_set(c->diag, -EBADMSG, "boxes of 4 numbers and of 5");
    return r;
}

/* ---- tf.train.Example -------------------------------------------------------------------------------------------- */

static const char *const edge_names[4] = {"xmin", "ymin", "xmax", "ymax"};

struct example_boxes {
    struct collector *collector;
    struct example_feature edge[4], class;
};

/* Is the feature called PREFIX/NAME? */
static bool is_below(const struct example_feature *f, const char *prefix, size_t prefix_length, const char *name) {
    size_t length = strlen(name);
    return f->name_length == prefix_length + 1 + length && memcmp(f->name, prefix, prefix_length) == 0 &&
           f->name[prefix_length] == '/' && memcmp(f->name + prefix_length + 1, name, length) == 0;
}

/* "image/object/bbox" has its classes in image/object/bbox/label or image/object/class/label. */
static bool is_class(const struct example_feature *f, const char *prefix, size_t length) {
    const char *slash = memrchr(prefix, '/', length);
    return is_below(f, prefix, length, "label") || is_below(f, prefix, length, "class") ||
           (slash && (is_below(f, prefix, (size_t)(slash - prefix), "class/label") ||
                      is_below(f, prefix, (size_t)(slash - prefix), "label")));
}

static bool note_list(void *arg, const struct example_feature *f) {
    struct example_boxes *e = arg;
    const char *prefix = e->collector->source->path;
    size_t length = strlen(prefix);
    for (int i = 0; i < 4; i++)
        if (is_below(f, prefix, length, edge_names[i]))
            e->edge[i] = *f;
    if (f->kind == EXAMPLE_INTEGERS && !e->class.name && is_class(f, prefix, length))
        e->class = *f;
    return true;
}

bool example_is_box_edge(const struct example_feature *f, const char *prefix, size_t prefix_length) {
    return f->kind == EXAMPLE_FLOATS && is_below(f, prefix, prefix_length, edge_names[0]);
}

static double float_at(const uint8_t *bytes, uint64_t i) {
    uint32_t bits;
    float value;
    memcpy(&bits, bytes + 4 * i, sizeof bits);
    bits = le32toh(bits);
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

static int parse_example(struct collector *c, const uint8_t *bytes, size_t length) {
    struct example_boxes e = {.collector = c};
    if (example_parse(bytes, length, note_list, &e) < 0)
        return diag_set(c->diag, -EBADMSG, "the record is no tf.train.Example");
    uint64_t count = e.edge[0].count;
    for (int i = 0; i < 4; i++) { /* no boxes: the feature may be missing, or an empty list of any kind */
        if (e.edge[i].count != count || (count && e.edge[i].kind != EXAMPLE_FLOATS))
            return diag_set(c->diag, -EBADMSG, "the feature %s/%s has %llu floats, %s/xmin %llu", c->source->path,
                            edge_names[i], (unsigned long long)e.edge[i].count, c->source->path,
                            (unsigned long long)count);
        if (e.edge[i].scattered)
            return diag_set(c->diag, -EBADMSG, "the feature %s/%s is not packed", c->source->path, edge_names[i]);
    }
    if (count > DATASET_MAX_BOXES)
        return diag_set(c->diag, -EBADMSG, "more than %u boxes", DATASET_MAX_BOXES);
    if (count && e.class.name && e.class.count != count)
        return diag_set(c->diag, -EBADMSG, "%llu boxes and %llu classes (%.*s)", (unsigned long long)count,
                        (unsigned long long)e.class.count, (int)MIN(e.class.name_length, 80u), e.class.name);
    int r = 0;
    int64_t class = 0;
    struct example_integers classes = {e.class.list, e.class.list_length, 0};
    for (uint64_t i = 0; i < count && r == 0; i++) {
        double n[4];
        for (int k = 0; k < 4; k++)
            n[k] = float_at(e.edge[k].bytes, i);
        if (e.class.name && !example_next_integer(&classes, &class))
            r = diag_set(c->diag, -EBADMSG, "the classes of the boxes lie in several lists");
        else
            r = add_box(c, n, (double)class);
    }
    return r;
}

/* ---- a pack's ---------------------------------------------------------------------------------------------------- */

static int parse_packed(struct collector *c, const uint8_t *bytes, size_t length) {
    int r = 0;
    if (length % DATASET_BOX_BYTES)
        return diag_set(c->diag, -EBADMSG, "%zu bytes of boxes: no multiple of %u", length, DATASET_BOX_BYTES);
    for (size_t at = 0; at < length && r == 0; at += DATASET_BOX_BYTES) {
        double n[5];
        for (int k = 0; k < 5; k++) {
            uint64_t bits;
            memcpy(&bits, bytes + at + 8 * (size_t)k, sizeof bits);
            bits = le64toh(bits);
            memcpy(&n[k], &bits, sizeof bits);
        }
        r = add_box(c, n, n[4]);
    }
    return r;
}

void dataset_pack_box(const struct dataset_box *box, uint8_t ret[DATASET_BOX_BYTES]) {
    const double n[5] = {box->side[0], box->side[1], box->side[2], box->side[3], box->class};
    for (int k = 0; k < 5; k++) {
        uint64_t bits;
        memcpy(&bits, &n[k], sizeof bits);
        bits = htole64(bits);
        memcpy(ret + 8 * k, &bits, sizeof bits);
    }
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

int boxes_parse(const struct box_source *source, const void *bytes, size_t length, double width, double height,
                struct dataset_box *ret, uint32_t *ret_count, struct diag *diag) {
    struct collector c = {.source = source, .across = 1, .down = 1, .box = ret, .diag = diag};
    int r = 0;
    if (source->relative) {
        c.across = width;
        c.down = height;
    }
    switch (source->kind) {
    case BOXES_YOLO:
        r = parse_yolo(&c, bytes, length);
        break;
    case BOXES_JSON:
        r = parse_json(&c, bytes, length);
        break;
    case BOXES_EXAMPLE:
        r = parse_example(&c, bytes, length);
        break;
    case BOXES_PACKED:
        r = parse_packed(&c, bytes, length);
        break;
    }
    if (r == 0)
        *ret_count = c.boxes;
    return r;
}

int dataset_boxes(const struct dataset_field *field, const void *bytes, size_t length, double width, double height,
                  struct dataset_box *ret, uint32_t *ret_count, struct diag *diag) {
    return boxes_parse(field->boxes, bytes, length, width, height, ret, ret_count, diag);
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

static const struct {
    const char *word;
    enum box_form form;
    bool relative;
} forms[] = {
    {"xyxy", BOX_XYXY, false},         {"xywh", BOX_XYWH, false},         {"cxcywh", BOX_CXCYWH, false},
    {"relative-xyxy", BOX_XYXY, true}, {"relative-xywh", BOX_XYWH, true}, {"relative-cxcywh", BOX_CXCYWH, true},
};
static const char *const usual_forms[] = {[BOXES_YOLO] = "relative-cxcywh",
                                          [BOXES_JSON] = "xywh",
                                          [BOXES_EXAMPLE] = "relative-xyxy",
                                          [BOXES_PACKED] = "xyxy"};

#define USUAL_JSON "annotations.bbox,annotations.category_id"

int boxes_source_init(struct box_source *source, enum box_kind kind, const struct dataset_options *options,
                      struct diag *diag) {
    const char *form = options->box_form && *options->box_form ? options->box_form : "auto";
    if (strcmp(form, "auto") == 0)
        form = usual_forms[kind];
    *source = (struct box_source){.kind = kind};
    bool known = false;
    for (size_t i = 0; i < ARRAY_SIZE(forms); i++)
        if (strcmp(forms[i].word, form) == 0) {
            source->form = forms[i].form;
            source->relative = forms[i].relative;
            known = true;
        }
    if (!known)
        return diag_set(diag, -EINVAL,
                        "box-form = %s: wanted is auto, xyxy, xywh or cxcywh, the last three also behind relative-",
                        form);
    if (kind == BOXES_EXAMPLE && source->form != BOX_XYXY)
        return diag_set(diag, -EINVAL, "box-form = %s: xmin, ymin, xmax and ymax are xyxy or relative-xyxy", form);
    if (kind != BOXES_JSON)
        return 0;
    const char *json = options->box_json && *options->box_json ? options->box_json : USUAL_JSON;
    size_t first = strcspn(json, ",");
    const char *second = json[first] ? json + first + 1 : "";
    if (first >= sizeof source->path || strlen(second) >= sizeof source->class_path || strchr(second, ','))
        return diag_set(
            diag, -EINVAL,
            "box-json = %.100s: wanted is a path to the boxes, and behind a comma one to their classes: keys "
            "of up to 127 characters in all, divided by dots, e.g. " USUAL_JSON,
            json);
    memcpy(source->path, json, first);
    strcpy(source->class_path, second);
    return 0;
}

void boxes_set_field(struct dataset *dataset, struct dataset_field *field, uint32_t extent) {
    *field = (struct dataset_field){
        .spec = {.name = "boxes", .dtype = LOADERD_F32, .ndim = 2, .dims = {-1, 5}},
        .source = SOURCE_BOXES,
        .extent = extent,
        .boxes = &dataset->boxes,
    };
}
