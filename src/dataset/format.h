/* SPDX-License-Identifier: MIT */
/*
 * Private to src/dataset/: what a format is to dataset.c, and what the formats share: a growing buffer, the hash of
 * fingerprints, the index of samples that lie in files of their own (folder, list), the header of .npy files.
 *
 *   dataset.c ── struct dataset_format ──► folder.c ─┐
 *                                          list.c  ──┴► index.c   names and labels in memory or in a mapped file
 *                                          raw.c   ───► npy.c     labels
 *                                          synthetic.c
 *                                          concat.c ──► dataset.c, once for each part
 *
 * Threading: opening is done by one thread; afterwards nothing changes and any thread may read.
 */
#ifndef DATASET_FORMAT_H
#define DATASET_FORMAT_H

#include <sys/types.h>

#include "base/hash.h"
#include "base/util.h"
#include "dataset/dataset.h"

/* ---- a growing buffer ------------------------------------------------------------------------------------------ */

struct buffer {
    char *data;
    size_t length, capacity;
};
#define BUFFER_INIT                                                                                                    \
    { NULL, 0, 0 }

/* Appends; 0 or -ENOMEM. buffer_reserve() gives `bytes` uninitialised bytes, NULL without memory. */
int buffer_append(struct buffer *buffer, const void *bytes, size_t length);
void *buffer_reserve(struct buffer *buffer, size_t bytes);
void buffer_deinit(struct buffer *buffer);

/* ---- the index ------------------------------------------------------------------------------------------------- */

/*
 * File form, all numbers in the writer's byte order (another order is refused, the folder scanned again):
 *
 *   +--------+-----------------+----------------+----------------+-------------+---------------+----------------------+
 *   | header | base[blocks]    | class[classes] | directory[...] | remark[...] | shard[shards] | word[samples x words] |
 *   | 256 B  | u64, of 65,536  | text, count    | text, mtime    | text        | 32 B          | u64: what the format  |
 *   |        | samples each    | 16 B           | 16 B           | u64         |               | keeps of a sample     |
 *   +--------+-----------------+----------------+----------------+-------------+---------------+----------------------+
 *            | label[samples]  | offset[samples]                 | text          | names                              |
 *            | i32, i64 or     | u32                             | NUL-ended     | of the samples, NUL-ended          |
 *            | absent          |                                 |               |                                    |
 *            +-----------------+---------------------------------+---------------+------------------------------------+
 *
 * Samples in files of their own (folder, list) have names and no words; samples in shards have words and no names. The
 * same arrays, not in one block, are the memory form. The name of sample i begins at names[base[i / 65536] + offset[i]]:
 * names stand in the order of the samples, and two paths are shorter than 8 KiB together, so that 32 bits reach through a
 * block. Labels have 64 bits where one of them needs more than 32. Other names are offsets into text. Names are relative
 * to the folder or to the list's directory, those of shards without any folder. Nothing depends on absolute paths or on
 * inode numbers of directories, so that an index travels between the nodes that see the same files.
 */
#define INDEX_MAGIC "LOADIDX1"
#define INDEX_VERSION 3u
#define INDEX_BYTE_ORDER 0x01020304u
#define INDEX_LABELS 0x1u  /* flags: label[] is there */
#define INDEX_OUTSIDE 0x2u /* flags: names may be absolute or lead upwards (lists) */
#define INDEX_MASKS 0x4u   /* flags: behind a sample's name, and its NUL, stands that of its mask (lists) */
#define INDEX_WIDE 0x8u    /* flags: labels have 64 bits */
#define INDEX_BLOCK 65536u /* samples that share a base */

struct index_header {
    char magic[8];
    uint32_t version, byte_order;
    uint32_t header_crc;  /* CRC-32C of the header, this word taken as 0 */
    uint32_t content_crc; /* of everything behind the header */
    uint64_t file_bytes;
    uint64_t samples, classes, directories, remarks, name_bytes;
    uint32_t flags, reserved0;
    uint8_t key[16];                 /* hash of the options and rules that shaped the scan */
    uint8_t fingerprint[16];         /* dataset_fingerprint() */
    uint64_t list_bytes, list_inode; /* of a list file, else 0 */
    int64_t list_mtime_ns;
    uint64_t shards;
    uint32_t words; /* of a sample; 0: it has a name instead */
    uint32_t reserved1;
    uint64_t text_bytes;
    uint8_t reserved2[96];
};
_Static_assert(sizeof(struct index_header) == 256, "index header");
_Static_assert(offsetof(struct index_header, key) == 80, "index header");

struct index_class {
    uint64_t name, samples; /* name: offset in text, here and below */
};
struct index_directory {
    uint64_t name; /* "" is the root */
    int64_t mtime_ns;
};
struct index_shard {
    uint64_t name, bytes;
    int64_t mtime_ns;
    uint64_t samples;
};

/* A checked view of an index, in memory or mapped. */
struct index {
    struct index_header header;
    const uint64_t *base;
    const struct index_class *class;
    const struct index_directory *directory;
    const uint64_t *remark;
    const struct index_shard *shard;
    const uint64_t *word; /* sample i has word[i * words] and those behind it */
    const void *label;    /* NULL without labels: index_label() */
    const uint32_t *offset;
    const char *text, *names;
};

/* Of samples that have names, and labels. */
static inline const char *index_sample_name(const struct index *index, uint64_t sample) {
    return index->names + index->base[sample / INDEX_BLOCK] + index->offset[sample];
}
static inline int64_t index_label(const struct index *index, uint64_t sample) {
    return index->header.flags & INDEX_WIDE ? ((const int64_t *)index->label)[sample]
                                            : ((const int32_t *)index->label)[sample];
}

/* Collects a scan. Names are copied. */
struct index_builder {
    struct buffer base, offset, class, directory, remark, shard, word, text, names;
    struct buffer label; /* i64 while the scan goes on */
    bool labels;         /* every sample has one */
    bool outside;
    bool masks;             /* behind each sample's name stands another: index_add_second_name() */
    bool racy;              /* something changed so shortly before the scan that its mtime proves nothing */
    uint64_t started, told; /* CLOCK_MONOTONIC: the scan's start, the last progress call */
    void (*progress)(void *arg, uint64_t samples, double seconds);
    void *progress_arg;
};

int index_add_sample(struct index_builder *builder, const char *directory, const char *name, int64_t label);
uint64_t index_builder_samples(const struct index_builder *builder);                       /* that have names */
int index_add_second_name(struct index_builder *builder, const char *name, size_t length); /* of the last sample */
const char *index_second_name(const struct index *index, uint64_t sample);                 /* with INDEX_MASKS */
int index_add_class(struct index_builder *builder, const char *name, uint64_t samples);
int index_add_directory(struct index_builder *builder, const char *path, int64_t mtime_ns);
int index_add_shard(struct index_builder *builder, const struct source_file *file, uint64_t samples);
int index_add_remark(struct index_builder *builder, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Notes that `mtime_ns` is what the index will be checked against. */
void index_note_mtime(struct index_builder *builder, int64_t mtime_ns);
/* Calls progress where 5 s have gone by; cheap enough for every directory and every thousand samples. */
void index_tick(struct index_builder *builder, uint64_t samples);

struct shards;

/* Where the index of a dataset may lie, what makes it valid, and how to scan instead. */
struct index_source {
    const char *place; /* real path of the folder or list file; NULL: no index */
    bool own_name;     /* options are not the defaults: an index file of its own */
    uint8_t key[16];
    uid_t owner;                      /* of the folder or list: may have written the index */
    const struct file_identity *list; /* of the list file, NULL for a folder and for shards */
    const struct shards *shards;      /* open, NULL for a folder and a list */
    uint32_t words;                   /* of a sample in them */
    int (*scan)(void *arg, struct index_builder *builder, struct diag *diag);
    void *arg;
};

/* Reads a valid index or scans and keeps one: fills dataset->index, samples, classes, remarks, note, fingerprint. The
 * caller has opened dataset->root. */
int index_obtain(struct dataset *dataset, const struct dataset_options *options, const struct index_source *source,
                 struct diag *diag);

/* Checks an index file's bytes (8-byte aligned) and points *ret into them. Pure. -EINVAL and a sentence. */
int index_parse(const void *bytes, size_t length, struct index *ret, struct diag *diag);
/* Writes both checksums of an index's bytes. For tests. -EINVAL where it is shorter than a header. */
int index_seal(void *bytes, size_t length);

/* dataset_format verbs of formats whose dataset is an index. */
void index_locate(const struct dataset *dataset, uint64_t sample, struct location *ret);
int index_name(const struct dataset *dataset, uint64_t sample, char *buffer, size_t size);
void index_release(struct dataset *dataset); /* close */

/* ---- .npy ------------------------------------------------------------------------------------------------------ */

#define NPY_MAX_DIMS 32

struct npy_header {
    uint32_t major, minor;
    uint64_t data_offset; /* where the elements begin */
    char descr[32];       /* as written: "<f4" */
    char kind;            /* numpy's: b i u f c S U V m M */
    bool big_endian;      /* elements of more than one byte are big-endian */
    uint32_t item_bytes;
    uint32_t dtype; /* enum loaderd_dtype, 0 where there is none */
    bool fortran_order;
    uint32_t ndim; /* 0: a scalar */
    uint64_t shape[NPY_MAX_DIMS];
    uint64_t count, data_bytes; /* elements, and their bytes */
};

/* Reads the header at the start of a .npy file (versions 1.0, 2.0, 3.0). Pure: nothing is evaluated or unpickled.
 * -EINVAL and a sentence; object arrays and structured ones are refused by name. */
int npy_parse(const void *bytes, size_t length, struct npy_header *ret, struct diag *diag);

/* The same of an IDX file. */
int idx_parse(const void *bytes, size_t length, struct npy_header *ret, struct diag *diag);
bool idx_detect(const uint8_t *head, size_t length);
typedef int array_parse(const void *bytes, size_t length, struct npy_header *ret, struct diag *diag);

/* A file of integer labels, copied or mapped, shape (N) or (N,1). */
struct npy_labels {
    void *map;
    size_t map_bytes;
    const uint8_t *data;
    struct npy_header header;
};
int array_labels_open(const char *path, array_parse *parse, struct npy_labels *ret, struct diag *diag);
int npy_labels_open(const char *path, struct npy_labels *ret, struct diag *diag); /* with npy_parse() */
void npy_labels_close(struct npy_labels *labels);
int64_t npy_labels_get(const struct npy_labels *labels, uint64_t i); /* i < header.count */

/* ---- paths and shards (files.c) --------------------------------------------------------------------------------- */

/* Files that a dataset's path stands for, in order. */
struct paths {
    struct buffer names, offset;
    bool from_folder;   /* the path is a folder, and these are its files */
    const char *folder; /* while it is read: put before each name, */
    int fd;             /* and its descriptor */
};
#define PATHS_INIT                                                                                                     \
    { .fd = -1 }
int paths_collect(struct paths *paths, const char *path, struct diag *diag); /* to be deinitialised in any case */
void paths_deinit(struct paths *paths);
size_t paths_count(const struct paths *paths);
const char *paths_get(const struct paths *paths, size_t i);
/* May a path that does not exist stand for others? */
bool path_is_pattern(const char *path);
/* Length of the piece before the next comma outside of braces, and what follows the comma: NULL at the end. */
const char *path_piece(const char *text, size_t *ret_length);
/* NAME of a piece NAME=PATH, and its length; NULL where there is none. */
const char *path_field_name(const char *piece, size_t length, size_t *ret_length);

int source_file_open(struct source_file *file, const char *path, struct diag *diag); /* close it in any case */
void source_file_close(struct source_file *file);
/* Exactly `length` bytes at `offset`: 0, or a negative errno and a sentence. */
int source_file_read(const struct source_file *file, void *into, size_t length, uint64_t offset, struct diag *diag);
/* First bytes of a file: their number, or a negative errno; compressed data is refused by name. */
ssize_t source_file_head(const struct source_file *file, void *head, size_t size, struct diag *diag);

/* Open files among which the samples are divided: file i has samples first[i] to first[i + 1]. */
struct shards {
    struct source_file *file;
    uint64_t *first;
    size_t count, room;
};
int shards_reserve(struct shards *shards, size_t files, struct diag *diag); /* -EMFILE: what is needed and there */
int shards_open(struct shards *shards, const char *path, struct diag *diag);
int shards_open_path(struct shards *shards, const char *path, struct diag *diag); /* all that a path stands for */
/* In order, for i = 0, 1, ... */
int shards_set_samples(struct shards *shards, size_t i, uint64_t samples, struct diag *diag);
/* Tells the dataset of them. -ENODATA where they hold no sample ("no record"). */
int shards_publish(const struct shards *shards, struct dataset *dataset, const char *what, struct diag *diag);
void shards_close(struct shards *shards);
size_t shards_find(const struct shards *shards, uint64_t sample);
int shards_name(const struct shards *shards, uint64_t sample, char *buffer, size_t size); /* "path#number" */
void shards_hash(const struct shards *shards, struct hash *hash); /* names without folders, samples of each */

/* ---- layout of raw records --------------------------------------------------------------------------------------*/

struct layout {
    uint32_t fields;
    struct dataset_field field[LOADERD_MAX_FIELDS];
    uint64_t record_bytes;
};

/* "label:u8 image:u8[3,32,32]": NAME:DTYPE or NAME:DTYPE[DIM,...], separated by blanks. A field named "_" is skipped
 * bytes. Pure. -EINVAL and a sentence. */
int layout_parse(const char *text, size_t length, struct layout *ret, struct diag *diag);

/* Opens raw records at `path`, and the verbs for them, for presets. *ret_shards is the format's. */
struct shards;
int raw_open_path(struct dataset *dataset, const char *path, const struct dataset_options *options,
                  const struct shards **ret_shards, struct diag *diag);
void raw_close(struct dataset *dataset);
void raw_locate(const struct dataset *dataset, uint64_t sample, struct location *ret);
int raw_name(const struct dataset *dataset, uint64_t sample, char *buffer, size_t size);

/* ---- headers of token files ------------------------------------------------------------------------------------ */

struct tokens_header {
    uint32_t dtype;
    uint64_t offset, ids; /* llm.c */
    uint64_t sequences;   /* Megatron */
};
/* Pure. -ENOENT: it is none; -EINVAL: it is one, but a bad one; and a sentence. Of llm.c's the first 1024 bytes are
 * wanted, of Megatron's the first 34. */
int tokens_parse_llmc(const uint8_t *bytes, size_t length, struct tokens_header *ret, struct diag *diag);
int tokens_parse_megatron(const uint8_t *bytes, size_t length, uint64_t file_bytes, struct tokens_header *ret,
                          struct diag *diag);
/* Is `path` FILE, which does not exist, of FILE.idx and FILE.bin? */
bool tokens_detect_path(const char *path);
/* The next `count` entries of an index of Megatron: 4 bytes of size and 8 of place each, the places from *bytes on,
 * which grows. -EINVAL and a sentence. */
int tokens_check_sequences(const uint8_t *sizes, const uint8_t *pointers, size_t count, uint32_t width, uint64_t *bytes,
                           struct diag *diag);

/* ---- samples in shards that must be looked for (records.c) ------------------------------------------------------- */

/* What was found in one shard. */
struct records_found {
    struct buffer word;   /* `words` u64 a sample */
    struct buffer remark; /* sentences, NUL-ended */
};
int records_add_remark(struct records_found *found, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Bytes of a shard for a scan that goes forward, read in windows; small ones where it jumps. */
#define WINDOW_BYTES 65536u
struct window {
    const struct source_file *file;
    uint8_t *bytes;
    uint64_t begin;
    size_t length;
};
int window_init(struct window *window, const struct source_file *file); /* -ENOMEM */
void window_deinit(struct window *window);
/* `arg` is the window. As source_file_read(). */
int window_read(void *arg, void *into, size_t length, uint64_t offset, struct diag *diag);

/* How to look. scan() runs on several threads, for different shards. */
struct records_scan {
    uint32_t words;
    uint8_t key[16]; /* hash of the rules and options that shape the result */
    int (*scan)(void *arg, const struct source_file *file, struct records_found *found, struct diag *diag);
    void *arg;
};
/* Scans all shards in parallel, or reads the index that was kept of that; tells the dataset of the shards' samples and
 * sets its fingerprint. Sample i then has dataset->index.word[i * words] and those behind it. */
int records_open(struct dataset *dataset, const struct dataset_options *options, struct shards *shards,
                 const struct records_scan *scan, struct diag *diag);

/* ---- tf.train.Example (tfrecord.c) ------------------------------------------------------------------------------- */

/* Is the CRC of a record's length right? */
bool tfrecord_parse_length(const uint8_t bytes[12], uint64_t *ret);

enum example_kind { EXAMPLE_NONE, EXAMPLE_BYTES, EXAMPLE_FLOATS, EXAMPLE_INTEGERS }; /* as Feature numbers its lists */
struct example_feature {
    const char *name; /* not NUL-ended */
    size_t name_length;
    enum example_kind kind;
    uint64_t count;       /* of the list */
    const uint8_t *bytes; /* the first string; the floats, little-endian */
    size_t length;
    bool scattered;      /* the floats do not lie together */
    int64_t value;       /* the first integer */
    const uint8_t *list; /* the list itself, for example_next_integer() */
    size_t list_length;
};
/* Calls each() for the features of a message until it returns false. 0, or -EINVAL where the bytes are none. Pure. */
int example_parse(const uint8_t *bytes, size_t length, bool (*each)(void *arg, const struct example_feature *feature),
                  void *arg);

/* Goes through the integers of a list: {feature.list, feature.list_length, 0} at first. False at the end. Pure. */
struct example_integers {
    const uint8_t *list;
    size_t left, packed; /* bytes; `packed` of them belong to a packed piece that was begun */
};
bool example_next_integer(struct example_integers *integers, int64_t *ret);
/* Is it the list PREFIX/xmin? */
bool example_is_box_edge(const struct example_feature *feature, const char *prefix, size_t prefix_length);

/* ---- rectangles (boxes.c) ----------------------------------------------------------------------------------------- */

/* From the keys box-form and box-json. -EINVAL and a sentence. */
int boxes_source_init(struct box_source *source, enum box_kind kind, const struct dataset_options *options,
                      struct diag *diag);
/* Makes `field` the dataset's boxes, dataset->boxes says how they are written. */
void boxes_set_field(struct dataset *dataset, struct dataset_field *field, uint32_t extent);
/* As dataset_boxes(). */
int boxes_parse(const struct box_source *source, const void *bytes, size_t length, double width, double height,
                struct dataset_box *ret, uint32_t *ret_count, struct diag *diag);
/* The name of the YOLO labels of a picture: its ending becomes .txt and, beside, its last folder `images` `labels`. False
 * where `size` is too small. Pure. */
bool yolo_label_path(const char *path, bool beside, char *ret, size_t size);
/* Is `name` one of those in options->bytes? */
bool dataset_wants_bytes(const struct dataset_options *options, const char *name);
/* A label picture that follows the picture `image`. */
void dataset_set_mask_field(struct dataset_field *field, uint32_t extent);
/* Makes a field whose extent is delivered as it is; the name stays. */
void dataset_set_ragged_field(struct dataset_field *field, uint32_t extent);

/* ---- which fields of a sample are wanted (fields.c) -------------------------------------------------------------- */

/* "jpg;jpeg;png:image cls:label": what is stored under the first of these that is there becomes the field of that
 * name. */
struct wish {
    const char *source; /* "jpg;jpeg;png", not NUL-ended; points into the text */
    size_t source_length;
    char name[32];
};
struct wishes {
    uint32_t count;
    struct wish wish[LOADERD_MAX_FIELDS];
};
/* Pure. -EINVAL and a sentence. */
int wishes_parse(const char *text, size_t length, struct wishes *ret, struct diag *diag);
/* Which of the wish's sources `word` is, from 0; -1: none. */
int wish_rank(const struct wish *wish, const char *word, size_t length);
/* The first wish from number `from` on that has the source `word`, and which of its sources that is (ret_rank may be
 * NULL); wishes->count: none. To be called with the last one plus 1 until then. */
uint32_t wishes_find(const struct wishes *wishes, uint32_t from, const char *word, size_t length, int *ret_rank);
/* What the default fields are made of: is it the beginning of a picture, the name of a label? */
bool is_picture_content(const uint8_t *bytes, size_t length);
bool is_label_name(const char *name, size_t length);

/* ---- list files -------------------------------------------------------------------------------------------------*/

struct list_parser {
    const char *origin; /* names the file in messages */
    struct index_builder *builder;
    uint64_t line; /* lines seen */
    uint64_t samples;
    int labels; /* -1: not known yet, */
    bool masks; /* nor this */
    bool hinted;
    struct buffer rest; /* a line that has not ended */
};
int list_feed(struct list_parser *parser, const char *bytes, size_t length, struct diag *diag);
int list_end(struct list_parser *parser, struct diag *diag);
/* Do the first bytes of a file read as lines of a list? Pure. */
bool list_detect(const char *bytes, size_t length);

/* ---- a format --------------------------------------------------------------------------------------------------*/

/* Keys that some formats have. */
#define TAKES_RECORD 0x1u  /* record, skip-bytes, labels */
#define TAKES_CLASSES 0x2u /* classes, flat */
#define TAKES_FIELDS 0x8u  /* fields */
#define TAKES_TOKENS 0x4u  /* token-dtype, vocabulary */
#define TAKES_ALL UINT32_MAX

struct dataset_format {
    const char *name;
    unsigned takes;
    bool (*detect)(const uint8_t *head, size_t length); /* by the first 64 KiB of its (first) file; or NULL */
    bool (*detect_folder)(int folder);                  /* by the entries of a folder (O_PATH); or NULL */
    int (*open)(struct dataset *dataset, const struct dataset_options *options, struct diag *diag);
    void (*close)(struct dataset *dataset); /* of a half-opened one, too */
    void (*locate)(const struct dataset *dataset, uint64_t sample, struct location *ret); /* *ret is zeroed */
    int (*name_sample)(const struct dataset *dataset, uint64_t sample, char *buffer, size_t size);
    void (*synthesize)(const struct dataset *dataset, uint64_t sample, uint32_t field, void *out); /* or NULL */
    /* dataset_check(), dataset_verify(), dataset_short_name(); each may be NULL */
    int (*check)(const struct dataset *dataset, uint64_t sample, uint32_t extent, const void *bytes, size_t length,
                 uint32_t *state, struct diag *diag);
    int (*verify)(const struct dataset *dataset, uint64_t shard, struct diag *diag);
    int (*split)(const struct dataset *dataset, uint64_t sample, const uint8_t *bytes, size_t length,
                 struct dataset_piece *ret, int64_t *ret_value, struct diag *diag); /* or NULL */
    int (*short_name)(const struct dataset *dataset, uint64_t sample, char *buffer, size_t size);
};

struct dataset {
    const struct dataset_format *format;
    char *path;
    uint64_t samples;
    uint32_t fields;
    struct dataset_field field[LOADERD_MAX_FIELDS];
    uint32_t classes;
    const char **class_name;
    char *class_text; /* may hold the names */
    bool unchecked;   /* the format's check has nothing to do here */
    bool unsplit;     /* nor has its split */
    uint64_t *class_samples;
    char **remark;
    uint32_t remarks;
    char *index_note;
    uint8_t fingerprint[16];
    uint64_t shards;             /* 0: not known */
    const uint64_t *shard_first; /* shards + 1; the format's */
    uint32_t sources;            /* concat: its parts; else 0 */
    const uint64_t *source_first;
    int root;                   /* folder, list: names are relative to it; -1 */
    char *root_path;            /* the same for messages; "" where names stand for themselves */
    struct index index;         /* folder, list */
    struct index_builder built; /* owns the index in memory, */
    void *index_map;            /* or the mapped file does */
    size_t index_map_bytes;
    struct box_source boxes; /* of the field boxes */
    void *state;             /* of the format */
};

extern const struct dataset_format format_cifar10, format_cifar100, format_idx, format_mds, format_tfrecord,
    format_tokens, format_webdataset;

/* Is this the path of several datasets, "A + B"? */
bool concat_detect(const char *path);
/* Does the folder hold shards of a pack? */
bool pack_detect_folder(const char *path);

extern const struct dataset_format format_concat, format_folder, format_list, format_masks, format_npy, format_pack,
    format_raw, format_synthetic, format_yolo;

int dataset_add_remark(struct dataset *dataset, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Samples, shards, classes, remarks, root's path and note of a dataset that this one stands on, which outlives it. */
int dataset_take_over(struct dataset *dataset, const struct dataset *from);
int dataset_set_note(struct dataset *dataset, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Fields of datasets of pictures: image and, with labels, label. */
void dataset_set_picture_fields(struct dataset *dataset, bool labels);
void dataset_set_label_field(struct dataset_field *field);
void dataset_hash_fields(const struct dataset *dataset, struct hash *hash);
/* Is this a compressed file's beginning? Its name ("gzip"), else NULL. Pure. */
const char *dataset_compression(const void *bytes, size_t length);
/* Has the name one of the picture endings that a folder's samples have? */
bool dataset_is_picture_name(const char *name);
/* Refuses an option that this format does not know: `name` is its key, `set` whether it was given. */
int dataset_refuse_option(const struct dataset *dataset, const char *name, bool set, struct diag *diag);
/* enum loaderd_dtype by its word, 0: none such. Bytes of one element. */
uint32_t dataset_dtype(const char *word, size_t length);
uint32_t dataset_dtype_bytes(uint32_t dtype);
/* Reads a dimension or count: decimal digits at *text before end, moved past them. False: none, 0 or too big. */
bool dataset_read_count(const char **text, const char *end, uint64_t *ret);
struct stat;
int64_t dataset_mtime(const struct stat *status);
int dataset_out_of_memory(struct diag *diag);

/* Reads one directory. `each` gets names and DT_* kinds (never DT_UNKNOWN); hidden entries are left out. */
int directory_read(int fd, struct buffer *scratch, int (*each)(void *arg, const char *name, unsigned char kind),
                   void *arg);
/* A member's name: the length of its key, and its suffix in lower case; false where it belongs to no sample. Pure. */
bool webdataset_split(const char *name, size_t *ret_key, char *suffix, size_t size);
/* Sorts offsets of NUL-ended names into `names` in byte order of the names. -ENOMEM. */
int names_sort(const char *names, uint64_t *offset, size_t count);

#endif
