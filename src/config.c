/* SPDX-License-Identifier: MIT */
/*
 * Configuration keys: one table a section (pipeline_keys, daemon_keys) makes the defaults, the parser, --help, the key
 * list of the man pages and the lines of the fingerprint.
 *
 *   loaderd.conf --lines--> inih (KEY = VALUE) --+
 *   --KEY VALUE ---------------------------------+--> key_set(): table row -> kind -> field of the struct
 *   "key=value" of a client ---------------------+
 *
 * inih is asked for one line at a time: so its line is ours in messages, and what it would do in silence (cut long
 * lines, join indented ones, drop what follows a section header, skip empty sections) cannot happen.
 * It reads nothing but the one file of config_read_file(), never touches the environment, and changes no field when
 * it refuses a value. No state: any thread on its own structs.
 */
#include "config.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <ini.h>

#include <loaderd/loaderd.h>

#include "base/log.h"
#include "base/near.h"
#include "base/util.h"
#include "subset.h"

#define MAX_FILE_BYTES (UINT64_C(1) << 20)
#define MAX_PIPELINES 4096u
#define MAX_NAME 63u /* characters of a pipeline's name: it stands in log lines and messages */
#define MAX_BATCH 1048576u
#define MAX_PIXELS_SIDE 65535u /* JPEG's own limit */
#define MAX_KEYS 96u           /* rows of the longer table, at most */
#define BYTES_CAP 262144u      /* presets of bytes-cap and box-max */
#define BOX_MAX 100u
#define CACHE_LEAST (UINT64_C(4) << 20)
#define QUOTE 80 /* bytes of a bad value that a message repeats */

/* How a value is written and where it goes. */
enum kind {
    KIND_TEXT,    /* char *, owned */
    KIND_PATH,    /* the same; relative to the file that names it */
    KIND_INDEX,   /* auto | none | a path */
    KIND_SUBSET,  /* empty, ranges, or a path */
    KIND_BESIDE,  /* empty, beside, or a path */
    KIND_WEIGHTS, /* empty, or whole numbers from 1 on */
    KIND_ALLOW,   /* all | none | users and @groups */
    KIND_CACHE,   /* empty, ram:SIZE, or a path */
    KIND_KEYS,    /* all | none | names of pipeline keys */
    KIND_U32,     /* decimal */
    KIND_U64,
    KIND_SIZE,      /* uint64_t with K, M or G: times 1024, 1024^2, 1024^3 */
    KIND_COUNT,     /* uint32_t: N | auto (or the first of `words`), which is 0 and may be written so */
    KIND_NODE,      /* uint32_t: N | auto, which is CONFIG_NODE_AUTO */
    KIND_MODE,      /* uint32_t, octal */
    KIND_WORD,      /* uint32_t or enum: one of `words` */
    KIND_SWITCH,    /* bool: one of `words` */
    KIND_SET,       /* uint32_t: bits of the named words, "none" or a list */
    KIND_REAL,      /* double */
    KIND_PAIR,      /* double[2], low and high */
    KIND_CLAMP,     /* double[2], low and high; none: infinite */
    KIND_FOUR,      /* double[4]; those left out are 0 */
    KIND_IMAGE,     /* uint32_t height, width */
    KIND_NORMALIZE, /* the whole struct pipeline_config: normalize, mean, std */
};

struct word {
    const char *text;
    uint32_t value; /* the first word of a value is the one that is printed */
};

#define STRUCTURAL 0x1u /* says which bytes are served: never a client's of a service */
#define SHAPES 0x2u     /* changes samples: part of the fingerprint */
#define OPENING 0x4u    /* used when the dataset is opened: another value needs another opening */
#define RESTART 0x8u    /* used when the daemon starts: a reload cannot change it */
#define DATASET (STRUCTURAL | OPENING)

struct key {
    const char *name;
    enum kind kind;
    size_t offset;
    uint64_t least, most;     /* of numbers */
    const struct word *words; /* of words */
    const char *argument;     /* in --help; NULL: the words */
    const char *preset;       /* default, as one would write it */
    unsigned flags;
    const char *help;
};

static const struct word laggard_words[] = {{"wait", 0}, {NULL, 0}};
static const struct word cache_words[] = {{"idle", CONFIG_CACHE_IDLE}, {"full", CONFIG_CACHE_FULL}, {NULL, 0}};
static const struct word shuffle_words[] = {{"none", CONFIG_SHUFFLE_NONE},
                                            {"full", CONFIG_SHUFFLE_FULL},
                                            {"chunked", CONFIG_SHUFFLE_CHUNKED},
                                            {"explicit", CONFIG_SHUFFLE_EXPLICIT},
                                            {NULL, 0}};
static const struct word last_words[] = {{"auto", CONFIG_LAST_AUTO},
                                         {"drop", CONFIG_LAST_DROP},
                                         {"keep", CONFIG_LAST_KEEP},
                                         {"pad", CONFIG_LAST_PAD},
                                         {NULL, 0}};
static const struct word augment_words[] = {{"center-crop", CONFIG_AUGMENT_CENTER_CROP},
                                            {"random-resized-crop", CONFIG_AUGMENT_RANDOM_RESIZED_CROP},
                                            {"random-crop", CONFIG_AUGMENT_RANDOM_CROP},
                                            {"flip", CONFIG_AUGMENT_FLIP},
                                            {"flip-vertical", CONFIG_AUGMENT_FLIP_VERTICAL},
                                            {"stretch", CONFIG_AUGMENT_STRETCH},
                                            {NULL, 0}};
static const struct word filter_words[] = {{"nearest", CONFIG_FILTER_NEAREST},
                                           {"bilinear", CONFIG_FILTER_BILINEAR},
                                           {"bicubic", CONFIG_FILTER_BICUBIC},
                                           {NULL, 0}};
static const struct word color_words[] = {{"rgb", CONFIG_COLOR_RGB}, {"gray", CONFIG_COLOR_GRAY}, {NULL, 0}};
static const struct word orientation_words[] = {
    {"ignore", CONFIG_ORIENTATION_IGNORE}, {"apply", CONFIG_ORIENTATION_APPLY}, {NULL, 0}};
static const struct word dtype_words[] = {
    {"u8", LOADERD_U8}, {"f32", LOADERD_F32}, {"f16", LOADERD_F16}, {"bf16", LOADERD_BF16}, {NULL, 0}};
static const struct word layout_words[] = {{"nhwc", CONFIG_LAYOUT_NHWC}, {"nchw", CONFIG_LAYOUT_NCHW}, {NULL, 0}};
static const struct word token_words[] = {{"header", 0}, {"u16", LOADERD_U16}, {"u32", LOADERD_U32}, {NULL, 0}};
static const struct word label_words[] = {{"i32", LOADERD_I32}, {"i64", LOADERD_I64}, {NULL, 0}};
static const struct word on_error_words[] = {{"auto", CONFIG_ON_ERROR_AUTO},
                                             {"fail", CONFIG_ON_ERROR_FAIL},
                                             {"substitute", CONFIG_ON_ERROR_SUBSTITUTE},
                                             {"blank", CONFIG_ON_ERROR_BLANK},
                                             {NULL, 0}};
static const struct word on_damage_words[] = {
    {"error", CONFIG_ON_DAMAGE_ERROR}, {"accept", CONFIG_ON_DAMAGE_ACCEPT}, {NULL, 0}};
static const struct word nan_words[] = {
    {"keep", CONFIG_NAN_KEEP}, {"error", CONFIG_NAN_ERROR}, {"zero", CONFIG_NAN_ZERO}, {NULL, 0}};
static const struct word overflow_words[] = {
    {"error", CONFIG_OVERFLOW_ERROR}, {"truncate", CONFIG_OVERFLOW_TRUNCATE}, {NULL, 0}};
static const struct word verify_words[] = {
    {"auto", CONFIG_VERIFY_AUTO}, {"yes", CONFIG_VERIFY_YES}, {"no", CONFIG_VERIFY_NO}, {NULL, 0}};
static const struct word engine_words[] = {{"auto", CONFIG_ENGINE_AUTO},
                                           {"uring", CONFIG_ENGINE_URING},
                                           {"mmap", CONFIG_ENGINE_MMAP},
                                           {"pread", CONFIG_ENGINE_PREAD},
                                           {NULL, 0}};
static const struct word direct_words[] = {
    {"auto", CONFIG_DIRECT_AUTO}, {"no", CONFIG_DIRECT_NO}, {"yes", CONFIG_DIRECT_YES}, {NULL, 0}};
static const struct word stores_words[] = {{"auto", CONFIG_STORES_AUTO},
                                           {"streaming", CONFIG_STORES_STREAMING},
                                           {"ordinary", CONFIG_STORES_ORDINARY},
                                           {NULL, 0}};
static const struct word switch_words[] = {{"yes", 1}, {"no", 0},  {"true", 1}, {"false", 0},
                                           {"on", 1},  {"off", 0}, {NULL, 0}};
static const struct word log_words[] = {{"error", LOG_ERROR}, {"warning", LOG_WARNING}, {"notice", LOG_NOTICE},
                                        {"info", LOG_INFO},   {"debug", LOG_DEBUG},     {NULL, 0}};

#define P(field) offsetof(struct pipeline_config, field)
#define D(field) offsetof(struct daemon_config, field)

static const struct key pipeline_keys[] = {
    {"dataset", KIND_PATH, P(dataset), 0, 0, NULL, "PATH", "", DATASET,
     "folder, list or record file, or synthetic:NxDIMS:DTYPE; several are joined by ' + '"},
    {"format", KIND_TEXT, P(format), 0, 0, NULL, "auto|NAME", "auto", DATASET,
     "how it is stored: cifar10 cifar100 folder idx list mds npy pack raw tfrecord tokens webdataset; auto: by what is "
     "there"},
    {"record", KIND_TEXT, P(record), 0, 0, NULL, "LAYOUT", "", DATASET | SHAPES,
     "layout of raw records, e.g. label:u8 image:u8[3,32,32]"},
    {"skip-bytes", KIND_SIZE, P(skip_bytes), 0, INT64_MAX, NULL, "SIZE", "0", DATASET | SHAPES,
     "header bytes of each raw file"},
    {"labels", KIND_PATH, P(labels), 0, 0, NULL, "FILE", "", DATASET, ".npy with one label a raw record"},
    {"fields", KIND_TEXT, P(fields), 0, 0, NULL, "SOURCE:NAME...", "", DATASET,
     "what of a stored sample becomes which field, e.g. jpg;png:image cls:label"},
    {"tokens", KIND_U64, P(tokens), 1, UINT64_C(1) << 28, NULL, "N", "1024", DATASET,
     "ids of a window of tokens, whose rows hold one more: the last target"},
    {"token-dtype", KIND_WORD, P(token_dtype), 0, 0, token_words, NULL, "header", DATASET,
     "of token files without a header; never guessed"},
    {"vocabulary", KIND_U64, P(vocabulary), 0, UINT32_MAX, NULL, "N", "0", DATASET | SHAPES,
     "a window with an id that is not below it is a bad sample, 0: not looked at"},
    {"classes", KIND_PATH, P(classes), 0, 0, NULL, "FILE", "", DATASET, "class names, one a line, numbered from 0"},
    {"masks", KIND_PATH, P(masks), 0, 0, NULL, "FOLDER", "", DATASET,
     "label pictures under the names of the pictures: field mask, cut and mirrored like them"},
    {"boxes", KIND_BESIDE, P(boxes), 0, 0, NULL, "beside|FOLDER", "", DATASET,
     "YOLO labels of the pictures: field boxes, moved as they are; beside: images/x.jpg has labels/x.txt"},
    {"box-form", KIND_TEXT, P(box_form), 0, 0, NULL, "auto|FORM", "auto", DATASET | SHAPES,
     "xyxy, xywh or cxcywh in pixels, or relative-xyxy and so on; auto: as the format has them"},
    {"box-json", KIND_TEXT, P(box_json), 0, 0, NULL, "PATH[,PATH]", "", DATASET | SHAPES,
     "keys to boxes and classes in JSON; empty: annotations.bbox,annotations.category_id"},
    {"bytes", KIND_TEXT, P(bytes), 0, 0, NULL, "NAME,...", "", DATASET | SHAPES,
     "fields that are delivered as the bytes that are stored, undecoded"},
    {"index", KIND_INDEX, P(index), 0, 0, NULL, "auto|none|FILE", "auto", DATASET,
     "where the scan of the dataset is kept"},
    {"cache", KIND_CACHE, P(cache), 0, 0, NULL, "DIRECTORY|ram:SIZE", "", DATASET,
     "where JPEGs are kept in a form that decodes several times as fast; empty: nowhere"},
    {"cache-size", KIND_SIZE, P(cache_size), 0, UINT64_C(1) << 44, NULL, "SIZE", "0", DATASET,
     "of a cache in a directory, 0: half of what is free there"},
    {"cache-fill", KIND_WORD, P(cache_fill), 0, 0, cache_words, NULL, "idle", DATASET,
     "idle: by workers that have nothing else to do, and 5 % of their time; full: as soon as a JPEG was read"},
    {"batch", KIND_U32, P(batch), 1, MAX_BATCH, NULL, "N", "64", 0, "rows a batch"},
    {"shuffle", KIND_WORD, P(shuffle), 0, 0, shuffle_words, NULL, "none", SHAPES, "order of an epoch"},
    {"chunk", KIND_COUNT, P(chunk), 1, UINT32_MAX, NULL, "auto|N", "auto", SHAPES,
     "neighbours that shuffle=chunked keeps together; auto: a shard, or 1024 samples"},
    {"window", KIND_U32, P(window), 1, UINT32_MAX, NULL, "N", "16", SHAPES,
     "chunks whose samples shuffle=chunked mixes with each other"},
    {"subset", KIND_SUBSET, P(subset), 0, 0, NULL, "FILE|RANGES", "", STRUCTURAL,
     "which samples, in which order: 0-999,2000-2999, or a file of such"},
    {"fraction", KIND_REAL, P(fraction), 0, 1, NULL, "SHARE", "1", 0,
     "of the samples that is used, the same ones whatever the seed"},
    {"weights", KIND_WEIGHTS, P(weights), 0, 0, NULL, "N,N,...", "", SHAPES,
     "one a dataset: how they are mixed, each going round; empty: one behind the other"},
    {"epoch-samples", KIND_U64, P(epoch_samples), 0, UINT64_C(1) << 62, NULL, "N", "0", SHAPES,
     "samples of an epoch, 0: all; where it is set, the next epoch goes on where this one ended"},
    {"seed", KIND_U64, P(seed), 0, UINT64_MAX, NULL, "N", "0", 0, "what order and augmentation are drawn from"},
    {"last", KIND_WORD, P(last), 0, 0, last_words, NULL, "auto", SHAPES,
     "samples that fill no batch; auto: drop when shuffled, else pad"},
    {"epochs", KIND_U64, P(epochs), 0, UINT64_MAX, NULL, "N", "0", 0, "how many to serve, 0: without end"},
    {"image", KIND_IMAGE, P(image_height), 0, MAX_PIXELS_SIDE, NULL, "N|HEIGHTxWIDTH", "0", SHAPES,
     "size of the pictures in a batch, 0: as stored"},
    {"resize", KIND_U32, P(resize), 0, MAX_PIXELS_SIDE, NULL, "N", "0", SHAPES,
     "short side before the centre crop, 0: image x 256/224"},
    {"augment", KIND_SET, P(augment), 0, 0, augment_words, NULL, "none", SHAPES,
     "list: at most one crop (stretch: all of it, aspect not kept), and mirrors by chance"},
    {"scale", KIND_PAIR, P(scale), 0, 1, NULL, "LOW,HIGH", "0.08,1", SHAPES,
     "share of the area that random-resized-crop takes"},
    {"ratio", KIND_PAIR, P(ratio), 0, 1000, NULL, "LOW,HIGH", "3/4,4/3", SHAPES,
     "width / height of what random-resized-crop takes"},
    {"flip-probability", KIND_REAL, P(flip_probability), 0, 1, NULL, "P", "0.5", SHAPES, "of each mirror"},
    {"color-jitter", KIND_FOUR, P(color_jitter), 0, 1000, NULL, "B,C,S,H", "0,0,0,0", SHAPES,
     "how far brightness, contrast, saturation and hue may change"},
    {"grayscale-probability", KIND_REAL, P(grayscale_probability), 0, 1, NULL, "P", "0", SHAPES,
     "of a picture whose colours become their luma"},
    {"erase-probability", KIND_REAL, P(erase_probability), 0, 1, NULL, "P", "0", SHAPES,
     "of a rectangle of zeros in the finished picture"},
    {"padding", KIND_U32, P(padding), 0, MAX_PIXELS_SIDE, NULL, "N", "0", SHAPES,
     "black pixels added on each side before random-crop"},
    {"filter", KIND_WORD, P(filter), 0, 0, filter_words, NULL, "bilinear", SHAPES,
     "resampling, antialiased as Pillow's"},
    {"color", KIND_WORD, P(color), 0, 0, color_words, NULL, "rgb", SHAPES, "channels of decoded pictures"},
    {"orientation", KIND_WORD, P(orientation), 0, 0, orientation_words, NULL, "ignore", SHAPES,
     "the Exif tag of JPEG files: pixels as stored, or turned as it says"},
    {"dtype", KIND_WORD, P(dtype), 0, 0, dtype_words, NULL, "u8", SHAPES, "elements of pictures"},
    {"layout", KIND_WORD, P(layout), 0, 0, layout_words, NULL, "nhwc", SHAPES, "order of a picture's dimensions"},
    {"record-layout", KIND_WORD, P(record_layout), 0, 0, layout_words, NULL, "nchw", SHAPES,
     "the same, of u8 pictures inside raw records"},
    {"normalize", KIND_NORMALIZE, 0, 0, 0, NULL, "none|imagenet|M,M,M/S,S,S", "none", SHAPES,
     "(value / 255 - M) / S a channel"},
    {"label-dtype", KIND_WORD, P(label_dtype), 0, 0, label_words, NULL, "i32", SHAPES, "elements of labels"},
    {"clamp", KIND_CLAMP, P(clamp), 0, 0, NULL, "none|LOW,HIGH", "none", SHAPES,
     "cut values of floats in records to this range"},
    {"nan", KIND_WORD, P(nan), 0, 0, nan_words, NULL, "keep", SHAPES,
     "values of floats in records that are no number: as they are, a bad sample, or 0"},
    {"bytes-cap", KIND_SIZE, P(bytes_cap), 1, INT32_MAX, NULL, "SIZE", "256K", SHAPES,
     "room for such a field in a row"},
    {"box-max", KIND_U32, P(box_max), 1, 4096, NULL, "N", "100", SHAPES, "room for boxes in a row"},
    {"box-visible", KIND_REAL, P(box_visible), 0, 1, NULL, "SHARE", "0", SHAPES,
     "of a box's area that must be left, else it is dropped; 0: anything"},
    {"on-overflow", KIND_WORD, P(on_overflow), 0, 0, overflow_words, NULL, "error", SHAPES,
     "more bytes or boxes than a row has room for: a bad sample, or cut"},
    {"on-error", KIND_WORD, P(on_error), 0, 0, on_error_words, NULL, "auto", SHAPES,
     "bad samples; auto: substitute when shuffled, else fail"},
    {"on-damage", KIND_WORD, P(on_damage), 0, 0, on_damage_words, NULL, "error", SHAPES,
     "pictures that decode with warnings: bad, or delivered and flagged"},
    {"verify-crc", KIND_WORD, P(verify_crc), 0, 0, verify_words, NULL, "auto", 0,
     "compare checksums of records; auto: but those that are copied as they are"},
    {"error-limit", KIND_REAL, P(error_limit), 0, 1, NULL, "SHARE", "0.001", 0,
     "of an epoch's samples that on-error=auto lets be bad"},
    {"slots", KIND_COUNT, P(slots), 3, 4096, NULL, "auto|N", "auto", 0,
     "batches a ring holds; auto: 8, of small ones more, fewer where they would be too large"},
    {"stores", KIND_WORD, P(stores), 0, 0, stores_words, NULL, "auto", 0,
     "how records that are copied as they are get into a ring; auto: ordinary where the last-level cache has room for "
     "it"},
    {"group-wait", KIND_U32, P(group_wait), 0, 86400, NULL, "SECONDS", "10", 0,
     "how long a group of trainers gathers before it begins with those who are there"},
    {"group-laggard", KIND_COUNT, P(group_laggard), 1, 86400, laggard_words, "wait|SECONDS", "wait", 0,
     "how long a group waits for its slowest member before it goes on without it"},
    {"node", KIND_NODE, P(node), 0, 1023, NULL, "auto|N", "auto", 0,
     "NUMA node that the ring's memory is taken from; auto: where the trainer runs at open"},
    {"client-keys", KIND_KEYS, P(client_keys), 0, 0, NULL, "all|none|KEYS", "all", STRUCTURAL,
     "keys that a client may set at open"},
    {"allow", KIND_ALLOW, P(allow), 0, 0, NULL, "all|none|USER,@GROUP...", "all", STRUCTURAL,
     "who may open sessions, by name or number; root and the daemon's own user always may"},
};

static const struct key daemon_keys[] = {
    {"socket", KIND_PATH, D(socket), 0, 0, NULL, "PATH", "", RESTART,
     "where clients connect; empty: $LOADERD_SOCKET, $XDG_RUNTIME_DIR/loaderd/socket, /run/loaderd/socket"},
    {"socket-mode", KIND_MODE, D(socket_mode), 0, 0777, NULL, "OCTAL", "0660", RESTART, "permissions of the socket"},
    {"socket-group", KIND_TEXT, D(socket_group), 0, 0, NULL, "GROUP", "", RESTART,
     "group of the socket; empty: unchanged"},
    {"workers", KIND_COUNT, D(workers), 1, 4096, NULL, "auto|N", "auto", RESTART,
     "threads that read and decode; auto: allowed CPUs (affinity and quota)"},
    {"pin", KIND_SWITCH, D(pin), 0, 0, switch_words, NULL, "yes", RESTART, "each worker stays on a CPU of its own"},
    {"engine", KIND_WORD, D(engine), 0, 0, engine_words, NULL, "auto", RESTART, "how files are read"},
    {"depth", KIND_U32, D(depth), 1, 1024, NULL, "N", "16", RESTART, "reads in flight a worker"},
    {"direct", KIND_WORD, D(direct), 0, 0, direct_words, NULL, "auto", RESTART,
     "shards and record files past the page cache; auto: what is not cached, of files larger than half of memory"},
    {"max-pixels", KIND_SIZE, D(max_pixels), 1, UINT64_C(65535) * 65535, NULL, "N", "100000000", RESTART,
     "of a picture; larger ones are bad samples"},
    {"max-sample-bytes", KIND_SIZE, D(max_sample_bytes), 1, UINT64_C(1) << 40, NULL, "SIZE", "64M", RESTART,
     "of a stored sample; larger ones are bad samples"},
    {"max-scans", KIND_U32, D(max_scans), 1, 1000000, NULL, "N", "500", RESTART, "of a progressive JPEG"},
    {"max-ring-bytes", KIND_SIZE, D(max_ring_bytes), 4096, UINT64_C(1) << 50, NULL, "SIZE", "512M", 0,
     "of a session's shared memory"},
    {"max-ring-bytes-per-user", KIND_SIZE, D(max_ring_bytes_per_user), 0, UINT64_C(1) << 56, NULL, "SIZE", "0", 0,
     "of all rings of one user; 0: max-ring-bytes x max-sessions-per-user"},
    {"max-sessions", KIND_U32, D(max_sessions), 1, 65536, NULL, "N", "256", 0, "at the same time"},
    {"max-sessions-per-user", KIND_U32, D(max_sessions_per_user), 1, 65536, NULL, "N", "64", 0,
     "of one user at the same time"},
    {"metrics", KIND_TEXT, D(metrics), 0, 0, NULL, "ADDRESS:PORT|unix:PATH", "", RESTART,
     "where Prometheus finds the metrics page, e.g. 127.0.0.1:9100; empty: nowhere"},
    {"metrics-public", KIND_SWITCH, D(metrics_public), 0, 0, switch_words, NULL, "no", RESTART,
     "metrics may be at an address that other machines reach"},
    {"log-level", KIND_WORD, D(log_level), 0, 0, log_words, NULL, "info", RESTART,
     "least important lines that are logged"},
};

struct table {
    const char *section;
    const struct key *keys;
    size_t count;
};
static const struct table pipeline_table = {"pipeline", pipeline_keys, ARRAY_SIZE(pipeline_keys)};
static const struct table daemon_table = {"daemon", daemon_keys, ARRAY_SIZE(daemon_keys)};

static_assert(ARRAY_SIZE(pipeline_keys) <= MAX_KEYS && ARRAY_SIZE(daemon_keys) <= MAX_KEYS, "MAX_KEYS");
static_assert(sizeof(enum config_shuffle) == sizeof(uint32_t), "KIND_WORD writes 32 bits");
static_assert(P(image_width) == P(image_height) + sizeof(uint32_t), "KIND_IMAGE writes both");

/* ---- words and names ---- */

static const struct key *find_key(const struct table *table, const char *name) {
    for (size_t i = 0; i < table->count; i++)
        if (strcmp(table->keys[i].name, name) == 0)
            return &table->keys[i];
    return NULL;
}

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == '\f' || c == '\v';
}

static bool separates(char c) {
    return c == ',' || is_space(c);
}

/* The next word of a list: its length, 0 at the end. Words are separated by commas or blanks. */
static size_t next_word(const char **at, const char **ret_word) {
    while (separates(**at))
        ++*at;
    const char *start = *at;
    while (**at != '\0' && !separates(**at))
        ++*at;
    *ret_word = start;
    return (size_t)(*at - start);
}

static bool word_is(const char *word, size_t length, const char *text) {
    return strlen(text) == length && memcmp(word, text, length) == 0;
}

static void try_keys(const struct table *table, struct near *near) {
    for (size_t i = 0; i < table->count; i++)
        near_try(near, table->keys[i].name);
}

const char *config_nearest_key(const char *word) {
    struct near near = near_to(word, strlen(word));
    try_keys(&pipeline_table, &near);
    try_keys(&daemon_table, &near);
    return near.found;
}

/* ---- text that grows in a fixed buffer ---- */

struct text {
    char *buffer;
    size_t size, length; /* length counts on where the buffer is too small */
};

static void __attribute__((format(printf, 2, 3))) append(struct text *text, const char *format, ...) {
    va_list args;
    va_start(args, format);
    size_t left = text->length < text->size ? text->size - text->length : 0;
    int n = vsnprintf(left ? text->buffer + text->length : NULL, left, format, args);
    va_end(args);
    text->length += n > 0 ? (size_t)n : 0;
}

/* "none|full": each value once. */
static void append_words(const struct word *words, struct text *text) {
    for (size_t i = 0; words[i].text; i++) {
        bool again = false;
        for (size_t j = 0; j < i; j++)
            again |= words[j].value == words[i].value;
        if (!again)
            append(text, "%s%s", i ? "|" : "", words[i].text);
    }
}

static const char *key_argument(const struct key *key, char *buffer, size_t size) {
    if (key->argument)
        return key->argument;
    struct text text = {buffer, size, 0};
    buffer[0] = '\0';
    if (key->kind == KIND_SET)
        append(&text, "none|");
    append_words(key->words, &text);
    return buffer;
}

/* ---- values ---- */

/* How 0 is written. */
static const char *zero_word(const struct key *key) {
    return key->words ? key->words->text : "auto";
}

/* The word of the key that `item`, a part of its value, probably means; NULL: none. */
static const char *meant(const struct key *key, const char *item, size_t length) {
    struct near near = near_to(item, length);
    for (const struct word *word = key->words; word && word->text; word++)
        near_try(&near, word->text);
    if (key->kind == KIND_COUNT || key->kind == KIND_NODE)
        near_try(&near, key->kind == KIND_NODE ? "auto" : zero_word(key));
    if (key->kind == KIND_SET || key->kind == KIND_CLAMP || key->kind == KIND_NORMALIZE)
        near_try(&near, "none");
    if (key->kind == KIND_NORMALIZE)
        near_try(&near, "imagenet");
    return near.found;
}

static int bad_item(const struct key *key, const char *value, const char *item, size_t length, const char *allowed,
                    struct diag *diag) {
    const char *near = meant(key, item, length);
    if (!near)
        return diag_set(diag, -EINVAL, "%s: '%.*s' is not allowed; write %s", key->name, QUOTE, value, allowed);
    return diag_set(diag, -EINVAL, "%s: '%.*s' is not allowed; did you mean '%s'? Write %s", key->name, QUOTE, value,
                    near, allowed);
}

static int bad_value(const struct key *key, const char *value, const char *allowed, struct diag *diag) {
    return bad_item(key, value, value, strlen(value), allowed, diag);
}

/* Digits of a base up to `end`, nothing else. */
static bool parse_digits(const char *text, const char *end, unsigned base, uint64_t *ret) {
    uint64_t value = 0;
    if (text == end)
        return false;
    for (; text < end; text++) {
        unsigned digit = (unsigned)(unsigned char)*text - '0';
        if (digit >= base || !mul_u64(value, base, &value) || !add_u64(value, digit, &value))
            return false;
    }
    *ret = value;
    return true;
}

static bool parse_whole(const char *text, uint64_t *ret) {
    return parse_digits(text, text + strlen(text), 10, ret);
}

/* "64M" and the like: K, M, G with an optional "iB" or "B". */
static bool parse_size(const char *text, uint64_t *ret) {
    const char *end = text;
    uint64_t value, unit = 1;
    while (*end >= '0' && *end <= '9')
        end++;
    if (!parse_digits(text, end, 10, &value))
        return false;
    if (*end != '\0') {
        const char *units = "KMG", *found = strchr(units, toupper((unsigned char)*end));
        if (!found || (end[1] != '\0' && strcmp(end + 1, "iB") != 0 && strcmp(end + 1, "B") != 0))
            return false;
        unit = UINT64_C(1) << (10 * (found - units + 1));
    }
    return mul_u64(value, unit, ret);
}

/* A decimal number without hexadecimal, infinity or NaN, read with a '.' whatever the locale. */
static bool parse_decimal(const char *text, size_t length, double *ret) {
    char copy[64], *end;
    if (length == 0 || length >= sizeof copy || strspn(text, "0123456789.eE+-") < length)
        return false;
    memcpy(copy, text, length);
    copy[length] = '\0';
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (c == (locale_t)0)
        return false;
    double value = strtod_l(copy, &end, c);
    freelocale(c);
    if (end == copy || *end != '\0' || !isfinite(value))
        return false;
    *ret = value;
    return true;
}

/* The same, or a fraction such as 3/4. */
static bool parse_real(const char *text, size_t length, double *ret) {
    const char *slash = memchr(text, '/', length);
    double over, under = 1;
    size_t first = slash ? (size_t)(slash - text) : length;
    if (!parse_decimal(text, first, &over))
        return false;
    if (slash && (!parse_decimal(slash + 1, length - first - 1, &under) || under == 0))
        return false;
    *ret = over / under;
    return isfinite(*ret);
}

/* Up to `most` numbers of a list that ends at `end`; the count, or -1. */
static int parse_reals(const char *text, const char *end, double *ret, int most) {
    int count = 0;
    while (text < end) {
        const char *word = text;
        while (text < end && !separates(*text))
            text++;
        if (text > word && (count == most || !parse_real(word, (size_t)(text - word), &ret[count++])))
            return -1;
        while (text < end && separates(*text))
            text++;
    }
    return count;
}

static int set_text(const struct key *key, void *field, const char *value, struct diag *diag) {
    for (const char *c = value; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            return diag_set(diag, -EINVAL, "%s: the value holds a control character (byte 0x%02x)", key->name,
                            (unsigned)(unsigned char)*c);
    char *copy = strdup(value);
    if (!copy)
        return diag_set(diag, -ENOMEM, "%s: out of memory", key->name);
    free(*(char **)field);
    *(char **)field = copy;
    return 0;
}

/* all, none, or names of keys that a client may be allowed to set. */
static int set_keys(const struct key *key, void *field, const char *value, struct diag *diag) {
    const char *at = value, *word;
    size_t length, words = 0;
    bool whole = false;
    while ((length = next_word(&at, &word)) > 0) {
        words++;
        if (word_is(word, length, "all") || word_is(word, length, "none")) {
            whole = true;
            continue;
        }
        char name[QUOTE + 1];
        snprintf(name, sizeof name, "%.*s", (int)MIN(length, sizeof name - 1), word);
        const struct key *named = length < sizeof name ? find_key(&pipeline_table, name) : NULL;
        if (!named) {
            struct near near = near_to(word, length);
            try_keys(&pipeline_table, &near);
            return diag_set(diag, -EINVAL, "%s: '%s' is no pipeline key%s%s%s", key->name, name,
                            near.found ? "; did you mean '" : "", near.found ? near.found : "", near.found ? "'?" : "");
        }
        if (named->flags & STRUCTURAL)
            return diag_set(diag, -EINVAL, "%s: '%s' decides which bytes are served; no client may set it", key->name,
                            name);
    }
    if (words == 0 || (whole && words > 1))
        return bad_value(key, value, "all, none, or a list of pipeline keys", diag);
    return set_text(key, field, value, diag);
}

bool config_next_allowed(const char **at, struct config_allowed *ret) {
    const char *word;
    size_t length = next_word(at, &word);
    if (length == 0)
        return false;
    *ret = (struct config_allowed){.is_group = *word == '@'};
    length = MIN(length - ret->is_group, sizeof ret->name - 1);
    memcpy(ret->name, word + ret->is_group, length);
    return true;
}

/* Names are looked up when the daemon starts (access.h): a file may be written on another machine. */
static int set_allow(const struct key *key, void *field, const char *value, struct diag *diag) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    const char *at = value, *word;
    size_t length, words = 0;
    bool whole = false;
    while ((length = next_word(&at, &word)) > 0) {
        words++;
        whole |= word_is(word, length, "all") || word_is(word, length, "none");
        size_t at_sign = *word == '@', good = strspn(word + at_sign, letters);
        if (good == 0 || good != length - at_sign || length >= sizeof((struct config_allowed *)0)->name)
            return diag_set(diag, -EINVAL, "%s: '%.*s' is no name of a user, nor a group's as in @trainers", key->name,
                            QUOTE, word);
    }
    if (words == 0 || (whole && words > 1))
        return bad_value(key, value, "all, none, or a list of users and @groups", diag);
    return set_text(key, field, value, diag);
}

uint32_t config_weights(const char *value, uint32_t *ret, uint32_t most) {
    const char *at = value, *word;
    uint32_t count = 0;
    uint64_t number;
    for (size_t length; (length = next_word(&at, &word)) > 0; count++)
        if (count < most)
            ret[count] = parse_digits(word, word + length, 10, &number) ? (uint32_t)MIN(number, UINT32_MAX) : 0;
    return count;
}

bool config_cache_ram(const char *value, uint64_t *ret_bytes) {
    if (strncmp(value, "ram:", 4) != 0)
        return false;
    if (!parse_size(value + 4, ret_bytes))
        *ret_bytes = 0;
    return true;
}

static int set_cache(const struct key *key, void *field, const char *value, struct diag *diag) {
    uint64_t bytes;
    if (config_cache_ram(value, &bytes) && bytes < CACHE_LEAST)
        return diag_set(diag, -EINVAL, "%s = %.*s: wanted ram:SIZE, at least ram:4M, or a directory", key->name, QUOTE,
                        value);
    return set_text(key, field, value, diag);
}

static int set_weights(const struct key *key, void *field, const char *value, struct diag *diag) {
    uint32_t weight[CONFIG_MAX_WEIGHTS], count = config_weights(value, weight, CONFIG_MAX_WEIGHTS);
    uint64_t sum = 0;
    char canonical[CONFIG_MAX_WEIGHTS * 6] = "";
    struct text text = {canonical, sizeof canonical, 0};
    if (count > CONFIG_MAX_WEIGHTS)
        return diag_set(diag, -EINVAL, "%s: %" PRIu32 " numbers, at most %u are possible", key->name, count,
                        CONFIG_MAX_WEIGHTS);
    for (uint32_t i = 0; i < count; i++) {
        if (weight[i] < 1)
            return bad_value(key, value, "whole numbers from 1 on, divided by commas, one a dataset", diag);
        sum += weight[i];
        if (sum > CONFIG_MAX_WEIGHTS_SUM)
            return diag_set(diag, -EINVAL, "%s: the sum of '%.*s' is more than %u, the longest period", key->name,
                            QUOTE, value, CONFIG_MAX_WEIGHTS_SUM);
        append(&text, "%s%" PRIu32, i ? "," : "", weight[i]);
    }
    return set_text(key, field, canonical, diag);
}

static int set_number(const struct key *key, void *field, const char *value, struct diag *diag) {
    uint64_t number;
    bool good, octal = key->kind == KIND_MODE, size = key->kind == KIND_SIZE;
    if (octal)
        good = parse_digits(value, value + strlen(value), 8, &number);
    else
        good = size ? parse_size(value, &number) : parse_whole(value, &number);
    bool automatic = key->kind == KIND_COUNT && (strcmp(value, zero_word(key)) == 0 || (good && number == 0));
    bool any_node = key->kind == KIND_NODE && strcmp(value, "auto") == 0;
    if (automatic || any_node)
        number = any_node ? CONFIG_NODE_AUTO : 0;
    else if (!good || number < key->least || number > key->most) {
        char allowed[128];
        if (octal)
            snprintf(allowed, sizeof allowed, "an octal number from 0 to %" PRIo64, key->most);
        else
            snprintf(allowed, sizeof allowed, "%sa number from %" PRIu64 " to %" PRIu64 "%s",
                     key->kind == KIND_COUNT || key->kind == KIND_NODE ? "auto or " : "", key->least, key->most,
                     size ? ", K, M or G for times 1024, 1024^2, 1024^3" : "");
        return bad_value(key, value, allowed, diag);
    }
    uint32_t narrow = (uint32_t)number;
    if (size || key->kind == KIND_U64)
        memcpy(field, &number, sizeof number);
    else
        memcpy(field, &narrow, sizeof narrow);
    return 0;
}

static int set_word(const struct key *key, void *field, const char *value, struct diag *diag) {
    for (const struct word *word = key->words; word->text; word++) {
        if (strcmp(word->text, value) != 0)
            continue;
        if (key->kind == KIND_SWITCH)
            *(bool *)field = word->value;
        else
            memcpy(field, &word->value, sizeof word->value);
        return 0;
    }
    char allowed[160];
    struct text text = {allowed, sizeof allowed, 0};
    append_words(key->words, &text);
    return bad_value(key, value, allowed, diag);
}

#define CROPS                                                                                                          \
    (CONFIG_AUGMENT_CENTER_CROP | CONFIG_AUGMENT_RANDOM_RESIZED_CROP | CONFIG_AUGMENT_RANDOM_CROP |                    \
     CONFIG_AUGMENT_STRETCH)

static int set_set(const struct key *key, void *field, const char *value, struct diag *diag) {
    char allowed[160];
    struct text text = {allowed, sizeof allowed, 0};
    const char *at = value, *item;
    size_t length, items = 0;
    uint32_t bits = 0;
    bool none = false;
    append(&text, "none or a list of ");
    append_words(key->words, &text);
    while ((length = next_word(&at, &item)) > 0) {
        const struct word *word = key->words;
        items++;
        if (word_is(item, length, "none")) {
            none = true;
            continue;
        }
        while (word->text && !word_is(item, length, word->text))
            word++;
        if (!word->text)
            return bad_item(key, value, item, length, allowed, diag);
        bits |= word->value;
    }
    if (items == 0 || (none && items > 1))
        return bad_value(key, value, allowed, diag);
    if (__builtin_popcount(bits & CROPS) > 1)
        return diag_set(diag, -EINVAL, "%s: '%.*s' names two crops; a picture has one", key->name, QUOTE, value);
    memcpy(field, &bits, sizeof bits);
    return 0;
}

static int set_four(const struct key *key, void *field, const char *value, struct diag *diag) {
    double four[4] = {0, 0, 0, 0};
    bool good = parse_reals(value, value + strlen(value), four, 4) >= 1;
    for (int i = 0; i < 4; i++)
        good &= four[i] >= 0 && four[i] <= (i == 3 ? 0.5 : (double)key->most);
    if (!good)
        return bad_value(key, value, "up to four numbers B,C,S,H from 0 (hue at most 0.5), such as 0.4,0.4,0.4,0.1",
                         diag);
    memcpy(field, four, sizeof four);
    return 0;
}

static int set_real(const struct key *key, void *field, const char *value, struct diag *diag) {
    double number;
    if (!parse_real(value, strlen(value), &number) || number < (double)key->least || number > (double)key->most) {
        char allowed[64];
        snprintf(allowed, sizeof allowed, "a number from %" PRIu64 " to %" PRIu64, key->least, key->most);
        return bad_value(key, value, allowed, diag);
    }
    *(double *)field = number;
    return 0;
}

static int set_pair(const struct key *key, void *field, const char *value, struct diag *diag) {
    double pair[2];
    if (parse_reals(value, value + strlen(value), pair, 2) != 2 || !(pair[0] > (double)key->least) ||
        pair[1] > (double)key->most || pair[0] > pair[1]) {
        char allowed[96];
        snprintf(allowed, sizeof allowed, "LOW,HIGH, above %" PRIu64 " and at most %" PRIu64 ", the lower first",
                 key->least, key->most);
        return bad_value(key, value, allowed, diag);
    }
    memcpy(field, pair, sizeof pair);
    return 0;
}

static int set_clamp(const struct key *key, void *field, const char *value, struct diag *diag) {
    double pair[2] = {-INFINITY, INFINITY};
    if (strcmp(value, "none") != 0 && (parse_reals(value, value + strlen(value), pair, 2) != 2 || !isfinite(pair[0]) ||
                                       !isfinite(pair[1]) || pair[0] > pair[1]))
        return bad_value(key, value, "none, or LOW,HIGH: two numbers, the lower first", diag);
    memcpy(field, pair, sizeof pair);
    return 0;
}

static int set_image(const struct key *key, void *field, const char *value, struct diag *diag) {
    const char *x = strchr(value, 'x'), *end = value + strlen(value);
    uint64_t height, width;
    bool good = parse_digits(value, x ? x : end, 10, &height);
    if (good && x)
        good = parse_digits(x + 1, end, 10, &width) && height > 0 && width > 0;
    else if (good)
        width = height;
    if (!good || height > key->most || width > key->most)
        return bad_value(key, value, "N or HEIGHTxWIDTH, each from 1 to 65535, or 0 for pictures as stored", diag);
    const uint32_t size[2] = {(uint32_t)height, (uint32_t)width};
    memcpy(field, size, sizeof size);
    return 0;
}

/* Mean and deviation of ImageNet's training pictures, as torchvision's documentation prints them. */
static const float imagenet_mean[3] = {0.485f, 0.456f, 0.406f}, imagenet_std[3] = {0.229f, 0.224f, 0.225f};

/* Three numbers, or one for all three channels. */
static bool parse_channels(const char *text, const char *end, float ret[3]) {
    double number[3];
    int count = parse_reals(text, end, number, 3);
    if (count != 1 && count != 3)
        return false;
    for (int i = 0; i < 3; i++)
        ret[i] = (float)number[count == 1 ? 0 : i];
    return isfinite(ret[0]) && isfinite(ret[1]) && isfinite(ret[2]);
}

static int set_normalize(const struct key *key, void *field, const char *value, struct diag *diag) {
    struct pipeline_config *config = field;
    float mean[3] = {0, 0, 0}, std[3] = {1, 1, 1};
    bool none = strcmp(value, "none") == 0;
    if (strcmp(value, "imagenet") == 0) {
        memcpy(mean, imagenet_mean, sizeof mean);
        memcpy(std, imagenet_std, sizeof std);
    } else if (!none) {
        const char *slash = strchr(value, '/');
        if (!slash || !parse_channels(value, slash, mean) || !parse_channels(slash + 1, value + strlen(value), std) ||
            !(std[0] > 0 && std[1] > 0 && std[2] > 0))
            return bad_value(key, value, "none, imagenet, or M,M,M/S,S,S (means and deviations of 0..1, S above 0)",
                             diag);
    }
    config->normalize = !none;
    memcpy(config->mean, mean, sizeof mean);
    memcpy(config->std, std, sizeof std);
    return 0;
}

typedef int (*set_function)(const struct key *key, void *field, const char *value, struct diag *diag);

static const set_function setters[] = {
    [KIND_TEXT] = set_text,   [KIND_PATH] = set_text,   [KIND_INDEX] = set_text,      [KIND_KEYS] = set_keys,
    [KIND_ALLOW] = set_allow, [KIND_SUBSET] = set_text, [KIND_WEIGHTS] = set_weights, [KIND_U32] = set_number,
    [KIND_U64] = set_number,  [KIND_SIZE] = set_number, [KIND_COUNT] = set_number,    [KIND_MODE] = set_number,
    [KIND_WORD] = set_word,   [KIND_SWITCH] = set_word, [KIND_SET] = set_set,         [KIND_REAL] = set_real,
    [KIND_FOUR] = set_four,   [KIND_PAIR] = set_pair,   [KIND_IMAGE] = set_image,     [KIND_NORMALIZE] = set_normalize,
    [KIND_NODE] = set_number, [KIND_BESIDE] = set_text, [KIND_CACHE] = set_cache,     [KIND_CLAMP] = set_clamp,
};

/* Sets the field of one key; blanks around the value do not count. */
static int key_set(const struct key *key, void *config, const char *value, struct diag *diag) {
    while (is_space(*value))
        value++;
    size_t length = strlen(value);
    while (length > 0 && is_space(value[length - 1]))
        length--;
    cleanup_free char *trimmed = strndup(value, length);
    if (!trimmed)
        return diag_set(diag, -ENOMEM, "%s: out of memory", key->name);
    return setters[key->kind](key, (char *)config + key->offset, trimmed, diag);
}

static bool owns_text(const struct key *key) {
    return key->kind <= KIND_KEYS;
}

static void table_deinit(const struct table *table, void *config) {
    for (size_t i = 0; i < table->count; i++) {
        char **text = (char **)((char *)config + table->keys[i].offset);
        if (owns_text(&table->keys[i])) {
            free(*text);
            *text = NULL;
        }
    }
}

/* `config` is all zero. */
static int table_init(const struct table *table, void *config) {
    for (size_t i = 0; i < table->count; i++) {
        int rc = key_set(&table->keys[i], config, table->keys[i].preset, NULL);
        assert(rc == 0 || rc == -ENOMEM);
        if (rc < 0) {
            table_deinit(table, config);
            return rc;
        }
    }
    return 0;
}

/* `section` is "[pipeline x]", or "" for the command line. */
static int unknown_key(const struct table *table, const char *name, const char *section, struct diag *diag) {
    const struct table *other = table == &pipeline_table ? &daemon_table : &pipeline_table;
    const char *in = *section ? " in " : "";
    if (find_key(other, name))
        return diag_set(diag, -ENOENT, "unknown key '%s'%s%s; it belongs into [%s%s]", name, in, section,
                        other->section, other == &pipeline_table ? " NAME" : "");
    struct near near = near_to(name, strlen(name));
    try_keys(table, &near);
    if (near.found)
        return diag_set(diag, -ENOENT, "unknown key '%.*s'%s%s; did you mean '%s'?", QUOTE, name, in, section,
                        near.found);
    return diag_set(diag, -ENOENT, "unknown key '%.*s'%s%s; loaderd.conf(5) lists the keys", QUOTE, name, in, section);
}

/* ---- one pipeline, the daemon ---- */

int pipeline_config_init(struct pipeline_config *config, const char *name) {
    memset(config, 0, sizeof *config);
    config->name = strdup(name);
    if (!config->name)
        return -ENOMEM;
    int rc = table_init(&pipeline_table, config);
    if (rc < 0)
        pipeline_config_deinit(config);
    return rc;
}

void pipeline_config_deinit(struct pipeline_config *config) {
    free(config->name);
    config->name = NULL;
    table_deinit(&pipeline_table, config);
}

int pipeline_config_copy(const struct pipeline_config *from, struct pipeline_config *ret) {
    struct pipeline_config copy = *from;
    bool good = (copy.name = strdup(from->name)) != NULL;
    for (size_t i = 0; i < pipeline_table.count; i++) {
        char **text = (char **)((char *)&copy + pipeline_keys[i].offset);
        if (owns_text(&pipeline_keys[i]))
            good = (*text = strdup(*text)) != NULL && good;
    }
    if (!good) {
        pipeline_config_deinit(&copy);
        return -ENOMEM;
    }
    *ret = copy;
    return 0;
}

int pipeline_config_set(struct pipeline_config *config, const char *key, const char *value, struct diag *diag) {
    const struct key *found = find_key(&pipeline_table, key);
    return found ? key_set(found, config, value, diag) : unknown_key(&pipeline_table, key, "", diag);
}

int daemon_config_set(struct daemon_config *config, const char *key, const char *value, struct diag *diag) {
    const struct key *found = find_key(&daemon_table, key);
    return found ? key_set(found, config, value, diag) : unknown_key(&daemon_table, key, "", diag);
}

bool config_is_pipeline_key(const char *key) {
    return find_key(&pipeline_table, key) != NULL;
}

bool config_is_daemon_key(const char *key) {
    return find_key(&daemon_table, key) != NULL;
}

static bool list_has(const char *list, const char *name) {
    const char *word;
    for (size_t length; (length = next_word(&list, &word)) > 0;)
        if (word_is(word, length, name))
            return true;
    return false;
}

int pipeline_config_let(const struct pipeline_config *config, const char *key, struct diag *diag) {
    const struct key *found = find_key(&pipeline_table, key);
    if (!found)
        return unknown_key(&pipeline_table, key, "", diag);
    if (found->flags & STRUCTURAL)
        return diag_set(diag, -EACCES, "key '%s' of pipeline '%s' decides which bytes are served; no client may set it",
                        key, config->name);
    if (list_has(config->client_keys, "all") || list_has(config->client_keys, key))
        return 0;
    if (list_has(config->client_keys, "none"))
        return diag_set(diag, -EACCES,
                        "pipeline '%s' lets clients set no key, not even '%s'; see client-keys in "
                        "loaderd.conf(5)",
                        config->name, key);
    return diag_set(diag, -EACCES,
                    "pipeline '%s' does not let clients set '%s', only %s; see client-keys in "
                    "loaderd.conf(5)",
                    config->name, key, config->client_keys);
}

/* ---- printing ---- */

static const char *word_text(const struct word *words, uint32_t value) {
    while (words->text && words->value != value)
        words++;
    return words->text ? words->text : "?";
}

static void print_set(const struct word *words, uint32_t bits, struct text *text) {
    const char *comma = "";
    for (; words->text; words++) {
        if (bits & words->value) {
            append(text, "%s%s", comma, words->text);
            comma = ",";
        }
    }
    if (!bits)
        append(text, "none");
}

static void print_normalize(const struct pipeline_config *config, struct text *text) {
    if (!config->normalize) {
        append(text, "none");
        return;
    }
    for (int i = 0; i < 3; i++)
        append(text, "%s%.9g", i ? "," : "", (double)config->mean[i]);
    for (int i = 0; i < 3; i++)
        append(text, "%s%.9g", i ? "," : "/", (double)config->std[i]);
}

static void print_number(const struct key *key, const void *field, struct text *text) {
    uint32_t number;
    memcpy(&number, field, sizeof number);
    if (key->kind == KIND_MODE)
        append(text, "%04" PRIo32, number);
    else if ((key->kind == KIND_COUNT && number == 0) || (key->kind == KIND_NODE && number == CONFIG_NODE_AUTO))
        append(text, "%s", zero_word(key));
    else
        append(text, "%" PRIu32, number);
}

/* As many as the kind has, so that each is read back as the same double. */
static void print_reals(const void *field, int count, struct text *text) {
    double real[4];
    memcpy(real, field, (size_t)count * sizeof *real);
    for (int i = 0; i < count; i++)
        append(text, "%s%.17g", i ? "," : "", real[i]);
}

static void print_clamp(const void *field, struct text *text) {
    double low;
    memcpy(&low, field, sizeof low);
    if (isfinite(low))
        print_reals(field, 2, text);
    else
        append(text, "none");
}

static void print_image(const void *field, struct text *text) {
    uint32_t size[2];
    memcpy(size, field, sizeof size);
    append(text, "%" PRIu32, size[0]);
    if (size[0] != size[1])
        append(text, "x%" PRIu32, size[1]);
}

/* The value in words that key_set() reads back to the same. */
static void key_print(const struct key *key, const void *config, struct text *text) {
    const void *field = (const char *)config + key->offset;
    uint32_t word;
    uint64_t wide;
    switch (key->kind) {
    case KIND_TEXT:
    case KIND_PATH:
    case KIND_INDEX:
    case KIND_SUBSET:
    case KIND_BESIDE:
    case KIND_WEIGHTS:
    case KIND_ALLOW:
    case KIND_CACHE:
    case KIND_KEYS:
        append(text, "%s", *(char *const *)field);
        break;
    case KIND_U64:
    case KIND_SIZE:
        memcpy(&wide, field, sizeof wide);
        append(text, "%" PRIu64, wide);
        break;
    case KIND_U32:
    case KIND_COUNT:
    case KIND_NODE:
    case KIND_MODE:
        print_number(key, field, text);
        break;
    case KIND_WORD:
        memcpy(&word, field, sizeof word);
        append(text, "%s", word_text(key->words, word));
        break;
    case KIND_SET:
        memcpy(&word, field, sizeof word);
        print_set(key->words, word, text);
        break;
    case KIND_SWITCH:
        append(text, "%s", word_text(key->words, *(const bool *)field));
        break;
    case KIND_REAL:
    case KIND_PAIR:
    case KIND_FOUR:
        print_reals(field, key->kind == KIND_REAL ? 1 : key->kind == KIND_PAIR ? 2 : 4, text);
        break;
    case KIND_CLAMP:
        print_clamp(field, text);
        break;
    case KIND_IMAGE:
        print_image(field, text);
        break;
    case KIND_NORMALIZE:
        print_normalize(config, text);
        break;
    }
}

/* Keys of an order that is not asked for change nothing. */
static bool has_effect(const struct key *key, const struct pipeline_config *config) {
    if (key->offset == P(chunk) || key->offset == P(window))
        return config->shuffle == CONFIG_SHUFFLE_CHUNKED;
    if (key->offset == P(weights))
        return *config->weights != '\0';
    /* those of fields that few have: the states of others do not depend on them */
    if (key->offset == P(bytes))
        return *config->bytes != '\0';
    if (key->offset == P(box_json))
        return *config->box_json != '\0';
    if (key->offset == P(box_form))
        return strcmp(config->box_form, "auto") != 0;
    if (key->offset == P(clamp))
        return isfinite(config->clamp[0]);
    if (key->offset == P(nan))
        return config->nan != CONFIG_NAN_KEEP;
    if (key->offset == P(bytes_cap))
        return config->bytes_cap != BYTES_CAP;
    if (key->offset == P(box_max))
        return config->box_max != BOX_MAX;
    if (key->offset == P(box_visible))
        return config->box_visible > 0;
    if (key->offset == P(on_overflow))
        return config->on_overflow != CONFIG_OVERFLOW_ERROR;
    return key->offset != P(epoch_samples) || config->epoch_samples != 0;
}

int pipeline_config_describe(const struct pipeline_config *config, char *buffer, size_t size) {
    struct pipeline_config shown = *config; /* borrowed strings; "auto" becomes what it stands for */
    struct text text = {buffer, size, 0};
    bool shuffled = config->shuffle == CONFIG_SHUFFLE_FULL || config->shuffle == CONFIG_SHUFFLE_CHUNKED;
    if (shown.last == CONFIG_LAST_AUTO)
        shown.last = shuffled ? CONFIG_LAST_DROP : CONFIG_LAST_PAD;
    if (shown.on_error == CONFIG_ON_ERROR_AUTO)
        shown.on_error = shuffled ? CONFIG_ON_ERROR_SUBSTITUTE : CONFIG_ON_ERROR_FAIL;
    for (size_t i = 0; i < pipeline_table.count; i++) {
        if (!(pipeline_keys[i].flags & SHAPES) || !has_effect(&pipeline_keys[i], config))
            continue;
        append(&text, "%s=", pipeline_keys[i].name);
        key_print(&pipeline_keys[i], &shown, &text);
        append(&text, "\n");
    }
    return text.length < size ? (int)text.length : -ENOSPC;
}

int pipeline_config_print(const struct pipeline_config *config, char *buffer, size_t size) {
    struct pipeline_config plain;
    struct text text = {buffer, size, 0};
    int rc = pipeline_config_init(&plain, config->name);
    for (size_t i = 0; rc == 0 && i < pipeline_table.count; i++) {
        const struct key *key = &pipeline_keys[i];
        char preset[2 * QUOTE], *value = NULL;
        struct text before = {preset, sizeof preset, 0};
        size_t begun = text.length;
        preset[0] = '\0';
        key_print(key, &plain, &before);
        append(&text, "%s = ", key->name);
        if (text.length < size)
            value = buffer + text.length;
        key_print(key, config, &text);
        append(&text, "\n");
        if (text.length < size && value && strncmp(value, preset, before.length) == 0 && value[before.length] == '\n')
            buffer[text.length = begun] = '\0';
    }
    pipeline_config_deinit(&plain);
    return rc < 0 ? rc : text.length < size ? (int)text.length : -ENOSPC;
}

static bool same_value(const struct key *key, const void *a, const void *b) {
    char values[2][256];
    if (owns_text(key))
        return strcmp(*(char *const *)((const char *)a + key->offset),
                      *(char *const *)((const char *)b + key->offset)) == 0;
    for (int i = 0; i < 2; i++) {
        struct text text = {values[i], sizeof values[i], 0};
        key_print(key, i ? b : a, &text);
    }
    return strcmp(values[0], values[1]) == 0;
}

bool pipeline_config_same_dataset(const struct pipeline_config *a, const struct pipeline_config *b) {
    bool same = strcmp(a->name, b->name) == 0;
    for (size_t i = 0; same && i < pipeline_table.count; i++)
        same = !(pipeline_keys[i].flags & OPENING) || same_value(&pipeline_keys[i], a, b);
    return same;
}

bool daemon_config_needs_restart(const struct daemon_config *before, const struct daemon_config *after, char *buffer,
                                 size_t size) {
    struct text text = {buffer, size, 0};
    buffer[0] = '\0';
    for (size_t i = 0; i < daemon_table.count; i++)
        if ((daemon_keys[i].flags & RESTART) && !same_value(&daemon_keys[i], before, after))
            append(&text, "%s%s", text.length ? ", " : "", daemon_keys[i].name);
    return text.length > 0;
}

#define HELP_COLUMN 34

static void print_help(const struct table *table, FILE *out) {
    for (size_t i = 0; i < table->count; i++) {
        const struct key *key = &table->keys[i];
        char words[160];
        int n = fprintf(out, "  --%s %s", key->name, key_argument(key, words, sizeof words));
        if (n > HELP_COLUMN - 2) {
            fputc('\n', out);
            n = 0;
        }
        fprintf(out, "%*s%s", HELP_COLUMN - n, "", key->help);
        if (*key->preset)
            fprintf(out, " (%s)", key->preset);
        fputc('\n', out);
    }
}

void config_print_pipeline_help(FILE *out) {
    print_help(&pipeline_table, out);
}

void config_print_daemon_help(FILE *out) {
    print_help(&daemon_table, out);
}

static void print_keys(const struct table *table, FILE *out) {
    for (size_t i = 0; i < table->count; i++) {
        const struct key *key = &table->keys[i];
        char words[160];
        fprintf(out, "%s\t%s\t%s\t%s\t%s\n", table->section, key->name, key_argument(key, words, sizeof words),
                key->preset, key->help);
    }
}

void config_print_keys(FILE *out) {
    print_keys(&pipeline_table, out);
    print_keys(&daemon_table, out);
}

/* ---- the command line ---- */

int config_match_option(int argc, char **argv, int *index, const char **ret_key, const char **ret_value) {
    const char *word = argv[*index];
    char name[QUOTE + 1];
    if (word[0] != '-' || word[1] != '-')
        return 0;
    size_t length = strcspn(word + 2, "=");
    if (length >= sizeof name)
        return 0;
    memcpy(name, word + 2, length);
    name[length] = '\0';
    const struct key *key = find_key(&pipeline_table, name);
    key = key ? key : find_key(&daemon_table, name);
    if (!key)
        return 0;
    bool joined = word[2 + length] == '=';
    if (!joined && (*index + 1 >= argc || strncmp(argv[*index + 1], "--", 2) == 0)) {
        *ret_key = key->name;
        return -EINVAL;
    }
    *ret_key = key->name;
    *ret_value = joined ? word + 2 + length + 1 : argv[*index + 1];
    *index += joined ? 1 : 2;
    return 1;
}

/* ---- the file ---- */

int config_init(struct config *config) {
    memset(config, 0, sizeof *config);
    return table_init(&daemon_table, &config->daemon);
}

void config_deinit(struct config *config) {
    for (uint32_t i = 0; i < config->pipelines; i++)
        pipeline_config_deinit(&config->pipeline[i]);
    free(config->pipeline);
    config->pipeline = NULL;
    config->pipelines = 0;
    table_deinit(&daemon_table, &config->daemon);
}

const struct pipeline_config *config_pipeline(const struct config *config, const char *name) {
    for (uint32_t i = 0; i < config->pipelines; i++)
        if (strcmp(config->pipeline[i].name, name) == 0)
            return &config->pipeline[i];
    return NULL;
}

/* One reading of a file. */
struct reading {
    struct config *config;
    const char *origin;
    struct diag *diag;
    unsigned line;
    const struct table *table;   /* of the section that we are in; NULL before the first */
    void *target;                /* its struct */
    char section[MAX_NAME + 16]; /* "[pipeline x]" */
    unsigned key_line[MAX_KEYS]; /* where each key of the section was set, 0: not yet */
    unsigned daemon_line;        /* of [daemon], 0: not yet */
    unsigned pipeline_line[MAX_PIPELINES];
    /* the line that inih is reading */
    const char *text;
    size_t length;
    bool taken, too_long;
    int most, result;
};

static int fail_at(struct reading *reading, unsigned line) {
    diag_prefix(reading->diag, "%s:%u", reading->origin, line);
    return reading->diag->code;
}

#define FAIL(reading, ...) (diag_set((reading)->diag, -EINVAL, __VA_ARGS__), fail_at(reading, (reading)->line))

static int enter_daemon(struct reading *reading) {
    if (reading->daemon_line)
        return FAIL(reading, "[daemon] stands twice, first in line %u; join the two", reading->daemon_line);
    reading->daemon_line = reading->line;
    reading->table = &daemon_table;
    reading->target = &reading->config->daemon;
    snprintf(reading->section, sizeof reading->section, "[daemon]");
    return 0;
}

static bool is_name(const char *name) {
    size_t length = strlen(name);
    return length > 0 && length <= MAX_NAME &&
           strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == length;
}

static int enter_pipeline(struct reading *reading, const char *name) {
    struct config *config = reading->config;
    if (*name == '\0')
        return FAIL(reading, "[pipeline] has no name; write [pipeline NAME]");
    if (!is_name(name))
        return FAIL(reading, "[pipeline %.*s]: a name has 1 to %u characters out of A-Z a-z 0-9 . _ -", QUOTE, name,
                    MAX_NAME);
    const struct pipeline_config *twin = config_pipeline(config, name);
    if (twin)
        return FAIL(reading, "[pipeline %s] stands twice, first in line %u; join the two or rename one", name,
                    reading->pipeline_line[twin - config->pipeline]);
    if (config->pipelines == MAX_PIPELINES)
        return FAIL(reading, "more than %u pipelines", MAX_PIPELINES);
    struct pipeline_config *grown = reallocarray(config->pipeline, config->pipelines + UINT32_C(1), sizeof *grown);
    if (grown)
        config->pipeline = grown;
    if (!grown || pipeline_config_init(&grown[config->pipelines], name) < 0)
        return diag_set(reading->diag, -ENOMEM, "%s:%u: out of memory", reading->origin, reading->line);
    reading->pipeline_line[config->pipelines] = reading->line;
    reading->table = &pipeline_table;
    reading->target = &grown[config->pipelines++];
    snprintf(reading->section, sizeof reading->section, "[pipeline %s]", name);
    return 0;
}

static int unknown_section(struct reading *reading, const char *header) {
    struct near near = near_to(header, strcspn(header, " \t"));
    near_try(&near, "daemon");
    near_try(&near, "pipeline");
    if (!near.found)
        return FAIL(reading, "[%.*s]: unknown section; there are [daemon] and [pipeline NAME]", QUOTE, header);
    bool pipeline = strcmp(near.found, "pipeline") == 0;
    return FAIL(reading, "[%.*s]: did you mean [%s%s]?", QUOTE, header, near.found, pipeline ? " NAME" : "");
}

/* A line that begins with '['. inih says nothing about empty or repeated sections and cuts long ones: done here. */
static int enter_section(struct reading *reading, const char *line) {
    const char *close = strchr(line, ']');
    if (!close)
        return FAIL(reading, "'%.*s': a section header ends with ']'", QUOTE, line);
    const char *rest = close + 1;
    while (is_space(*rest))
        rest++;
    if (*rest != '\0' && *rest != ';' && *rest != '#')
        return FAIL(reading, "'%.*s': a section header stands alone on its line", QUOTE, line);
    const char *start = line + 1;
    while (start < close && is_space(*start))
        start++;
    while (close > start && is_space(close[-1]))
        close--;
    cleanup_free char *header = strndup(start, (size_t)(close - start));
    if (!header)
        return diag_set(reading->diag, -ENOMEM, "%s:%u: out of memory", reading->origin, reading->line);
    memset(reading->key_line, 0, sizeof reading->key_line);
    size_t word = strcspn(header, " \t");
    if (word_is(header, word, "daemon") && header[word] == '\0')
        return enter_daemon(reading);
    if (word_is(header, word, "pipeline"))
        return enter_pipeline(reading, header + word + strspn(header + word, " \t"));
    return unknown_section(reading, header);
}

/* Is the value a path that counts from the file's own directory? */
static bool is_relative_path(const struct key *key, const char *value) {
    uint64_t ram;
    if (key->kind != KIND_PATH && key->kind != KIND_INDEX && key->kind != KIND_SUBSET && key->kind != KIND_BESIDE &&
        key->kind != KIND_CACHE)
        return false;
    if (key->kind == KIND_CACHE && config_cache_ram(value, &ram))
        return false;
    if (key->kind == KIND_SUBSET && subset_is_ranges(value))
        return false;
    if (key->kind == KIND_BESIDE && strcmp(value, "beside") == 0)
        return false;
    if (key->kind == KIND_INDEX && (strcmp(value, "auto") == 0 || strcmp(value, "none") == 0))
        return false;
    return *value != '\0' && *value != '/' && strncmp(value, "synthetic:", 10) != 0;
}

/* End of the first of the files that commas divide (not those in braces), and where NAME= before its path ends. */
static const char *dataset_piece(const char *text, size_t length, size_t *ret_name) {
    const char *p = text, *end = text + length, *slash = memchr(text, '/', length);
    unsigned depth = 0;
    for (; p < end && (*p != ',' || depth); p++)
        depth = *p == '{' ? depth + 1 : *p == '}' && depth ? depth - 1 : depth;
    const char *equals = memchr(text, '=', (size_t)(p - text));
    *ret_name = equals && (!slash || equals < slash) ? (size_t)(equals + 1 - text) : 0;
    return p;
}

/* A dataset of several files: "a.npy,b.npy" or "image=a.npy,label=b.npy". Each counts from the directory where the first
 * one is relative. Owned by the caller. */
static char *join_dataset(const char *directory, size_t directory_length, const char *value) {
    size_t length = strlen(value), name;
    dataset_piece(value, length, &name);
    bool relative = value[name] != '/' && value[name] != '\0' && strncmp(value, "synthetic:", 10) != 0;
    char *joined = strdup("");
    for (const char *at = value, *end = value + length; joined && at < end;) {
        const char *stop = dataset_piece(at, (size_t)(end - at), &name);
        bool prefix = relative && at[name] != '/' && at + name < stop;
        char *longer;
        if (asprintf(&longer, "%s%.*s%.*s%s%.*s%s", joined, (int)name, at, prefix ? (int)directory_length : 0,
                     directory, prefix ? "/" : "", (int)(stop - at) - (int)name, at + name, stop < end ? "," : "") < 0)
            longer = NULL;
        free(joined);
        joined = longer;
        at = stop + (stop < end);
    }
    return joined;
}

/* Puts the directory before each of the paths that " + " joins, where it is relative. Owned by the caller. */
static char *join_paths(const struct key *key, const char *directory, size_t length, const char *value) {
    char *joined = strdup("");
    while (value && joined) {
        const char *plus = strstr(value, " + "), *end = plus ? plus : value + strlen(value);
        while (is_space(*value))
            value++;
        cleanup_free char *piece = strndup(value, (size_t)(MAX(end, value) - value));
        char *longer = NULL;
        bool relative = piece && is_relative_path(key, piece);
        if (piece && strcmp(key->name, "dataset") == 0) {
            char *whole = join_dataset(directory, length, piece);
            free(piece);
            piece = whole;
            relative = false;
        }
        if (!piece || asprintf(&longer, "%s%.*s%s%s%s", joined, relative ? (int)length : 0, directory,
                               relative ? "/" : "", piece, plus ? " + " : "") < 0)
            longer = NULL;
        free(joined);
        joined = longer;
        value = plus ? plus + 3 : NULL;
    }
    return joined;
}

static int set_from_file(struct reading *reading, const struct key *key, const char *value) {
    const char *slash = strrchr(reading->origin, '/');
    bool paths = key->kind == KIND_PATH || key->kind == KIND_INDEX || key->kind == KIND_SUBSET ||
                 key->kind == KIND_BESIDE || key->kind == KIND_CACHE;
    if (!slash || !paths)
        return key_set(key, reading->target, value, reading->diag);
    cleanup_free char *joined = join_paths(key, reading->origin, (size_t)(slash - reading->origin), value);
    if (!joined)
        return diag_set(reading->diag, -ENOMEM, "%s: out of memory", key->name);
    return key_set(key, reading->target, joined, reading->diag);
}

static int on_pair(struct reading *reading, const char *name, const char *value) {
    if (!reading->table)
        return FAIL(reading, "'%.*s' stands before any section; write [daemon] or [pipeline NAME] above it", QUOTE,
                    name);
    const struct key *key = find_key(reading->table, name);
    if (!key) {
        unknown_key(reading->table, name, reading->section, reading->diag);
        return fail_at(reading, reading->line);
    }
    unsigned *before = &reading->key_line[key - reading->table->keys];
    if (*before)
        return FAIL(reading, "'%s' stands twice in %s, first in line %u", name, reading->section, *before);
    *before = reading->line;
    return set_from_file(reading, key, value) < 0 ? fail_at(reading, reading->line) : 0;
}

/* inih's handler: non-zero goes on. */
static int on_ini_pair(void *user, const char *section, const char *name, const char *value) {
    struct reading *reading = user;
    (void)section;
    reading->result = on_pair(reading, name, value);
    return reading->result == 0;
}

/* inih's reader: hands out the one line, where it fits into inih's buffer. */
static char *read_ini_line(char *buffer, int size, void *stream) {
    struct reading *reading = stream;
    if (reading->taken)
        return NULL;
    reading->taken = true;
    if (size < 2 || reading->length > (size_t)size - 2) {
        reading->too_long = true;
        reading->most = size - 2;
        return NULL;
    }
    memcpy(buffer, reading->text, reading->length);
    memcpy(buffer + reading->length, "\n", 2);
    return buffer;
}

static int parse_pair(struct reading *reading, const char *line) {
    reading->text = line;
    reading->length = strlen(line);
    reading->taken = reading->too_long = false;
    reading->result = 0;
    int rc = ini_parse_stream(read_ini_line, reading, on_ini_pair, reading);
    if (reading->too_long)
        return FAIL(reading,
                    "'%.20s...': the line has %zu bytes, at most %d can be read; shorten it (a path: by a symbolic "
                    "link)",
                    line, reading->length, reading->most);
    if (reading->result < 0)
        return reading->result;
    if (rc != 0)
        return FAIL(reading, "'%.*s' is neither KEY = VALUE nor a [section]", QUOTE, line);
    return 0;
}

/* One line without its line feed, not terminated. */
static int parse_line(struct reading *reading, const char *text, size_t length) {
    while (length > 0 && is_space(*text)) {
        text++;
        length--;
    }
    while (length > 0 && is_space(text[length - 1]))
        length--;
    if (memchr(text, '\0', length))
        return FAIL(reading, "a NUL byte; is this a text file?");
    if (length == 0 || *text == '#' || *text == ';')
        return 0;
    cleanup_free char *line = strndup(text, length);
    if (!line)
        return diag_set(reading->diag, -ENOMEM, "%s:%u: out of memory", reading->origin, reading->line);
    return *line == '[' ? enter_section(reading, line) : parse_pair(reading, line);
}

static int parse_text(struct reading *reading, const char *text, size_t length) {
    const char *end = text + length;
    if (length >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        text += 3; /* a byte order mark */
    while (text < end) {
        const char *feed = memchr(text, '\n', (size_t)(end - text));
        const char *stop = feed ? feed : end;
        reading->line++;
        int rc = parse_line(reading, text, (size_t)(stop - text));
        if (rc < 0)
            return rc;
        text = stop + 1;
    }
    for (uint32_t i = 0; i < reading->config->pipelines; i++) {
        reading->line = reading->pipeline_line[i];
        if (*reading->config->pipeline[i].dataset == '\0')
            return FAIL(reading, "[pipeline %s] has no dataset; write dataset = PATH into it",
                        reading->config->pipeline[i].name);
    }
    return 0;
}

int config_parse(const char *text, size_t length, const char *origin, struct config *config, struct diag *diag) {
    struct diag unwanted = DIAG_INIT;
    struct reading reading = {.config = config, .origin = origin, .diag = diag ? diag : &unwanted};
    if (config_init(config) < 0)
        return diag_set(diag, -ENOMEM, "%s: out of memory", origin);
    int rc = parse_text(&reading, text, length);
    if (rc == -ENOENT) /* an unknown key: not to be taken for a missing file */
        rc = reading.diag->code = -EINVAL;
    if (rc < 0)
        config_deinit(config);
    return rc;
}

/* The whole file, at most MAX_FILE_BYTES, owned by the caller. */
static int read_whole(int fd, char **ret_text, size_t *ret_length) {
    cleanup_free char *text = malloc(MAX_FILE_BYTES + 1);
    size_t length = 0;
    if (!text)
        return -ENOMEM;
    while (length <= MAX_FILE_BYTES) {
        ssize_t n = read(fd, text + length, MAX_FILE_BYTES + 1 - length);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0) {
            *ret_text = steal_pointer(&text);
            *ret_length = length;
            return 0;
        }
        length += (size_t)n;
    }
    return -EFBIG;
}

int config_read_file(const char *path, struct config *config, struct diag *diag) {
    memset(config, 0, sizeof *config);
    cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        int rc = -errno;
        return diag_set(diag, rc, "cannot open the configuration %s: %s", path, strerror(-rc));
    }
    cleanup_free char *text = NULL;
    size_t length = 0;
    int rc = read_whole(fd, &text, &length);
    if (rc == -EFBIG)
        return diag_set(diag, rc, "%s has more than %" PRIu64 " bytes; is this a configuration?", path, MAX_FILE_BYTES);
    if (rc < 0)
        return diag_set(diag, rc, "cannot read the configuration %s: %s", path, strerror(-rc));
    return config_parse(text, length, path, config, diag);
}
