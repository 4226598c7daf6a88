/* SPDX-License-Identifier: MIT */
/*
 * Configuration: loaderd.conf (INI) and the same keys as command-line options and as "key=value" strings of a client.
 * One table (config.c) generates the parser, --help and the key lists of the man pages (`loaderctl version --keys`
 * prints it for the documentation test). Pure functions over text except config_read_file().
 */
#ifndef CONFIG_H
#define CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/diag.h"

/* Values of the enumerated keys; the words are in config.c's table. The numbers equal those of order.h, read.h and
 * transform.h where a key maps onto them (config.c asserts nothing of them: pipeline.c maps by switch). */
enum config_shuffle { CONFIG_SHUFFLE_NONE, CONFIG_SHUFFLE_FULL, CONFIG_SHUFFLE_CHUNKED, CONFIG_SHUFFLE_EXPLICIT };
enum config_last { CONFIG_LAST_AUTO, CONFIG_LAST_DROP, CONFIG_LAST_KEEP, CONFIG_LAST_PAD };
enum config_on_error { CONFIG_ON_ERROR_AUTO, CONFIG_ON_ERROR_FAIL, CONFIG_ON_ERROR_SUBSTITUTE, CONFIG_ON_ERROR_BLANK };
enum config_verify { CONFIG_VERIFY_AUTO, CONFIG_VERIFY_YES, CONFIG_VERIFY_NO };
enum config_nan { CONFIG_NAN_KEEP, CONFIG_NAN_ERROR, CONFIG_NAN_ZERO };
enum config_overflow { CONFIG_OVERFLOW_ERROR, CONFIG_OVERFLOW_TRUNCATE };
enum config_on_damage { CONFIG_ON_DAMAGE_ERROR, CONFIG_ON_DAMAGE_ACCEPT };
#define CONFIG_NODE_AUTO UINT32_MAX
enum config_stores { CONFIG_STORES_AUTO, CONFIG_STORES_STREAMING, CONFIG_STORES_ORDINARY };
enum config_direct { CONFIG_DIRECT_AUTO, CONFIG_DIRECT_NO, CONFIG_DIRECT_YES };
enum config_engine { CONFIG_ENGINE_AUTO, CONFIG_ENGINE_URING, CONFIG_ENGINE_MMAP, CONFIG_ENGINE_PREAD };
enum config_layout { CONFIG_LAYOUT_NHWC, CONFIG_LAYOUT_NCHW };
enum config_color { CONFIG_COLOR_RGB, CONFIG_COLOR_GRAY };
enum config_orientation { CONFIG_ORIENTATION_IGNORE, CONFIG_ORIENTATION_APPLY };
enum config_cache_fill { CONFIG_CACHE_IDLE, CONFIG_CACHE_FULL };
enum config_filter { CONFIG_FILTER_NEAREST = 0, CONFIG_FILTER_BILINEAR = 2, CONFIG_FILTER_BICUBIC = 3 };

/* Bits of `augment` (a comma-separated list). */
#define CONFIG_AUGMENT_CENTER_CROP 0x1u
#define CONFIG_AUGMENT_RANDOM_RESIZED_CROP 0x2u
#define CONFIG_AUGMENT_RANDOM_CROP 0x4u
#define CONFIG_AUGMENT_FLIP 0x8u
#define CONFIG_AUGMENT_FLIP_VERTICAL 0x10u
#define CONFIG_AUGMENT_STRETCH 0x20u /* the whole picture, its aspect not kept */

/* [pipeline NAME] */
struct pipeline_config {
    char *name;
    /* dataset */
    char *dataset;        /* path, or several joined by " + "; relative ones are relative to the configuration file */
    char *format;         /* "auto" */
    char *record;         /* layout line of raw records, or "" */
    uint64_t skip_bytes;  /* header bytes of raw files */
    char *labels;         /* .npy of labels, or "" */
    uint64_t tokens;      /* 1024: ids of a window, less the last target */
    uint32_t token_dtype; /* LOADERD_U16, LOADERD_U32; 0: the file's header says it */
    char *fields;         /* which parts of a stored sample become fields, or "" */
    uint64_t vocabulary;  /* ids must be below it; 0: not looked at */
    char *classes;        /* class list file, or "" */
    char *masks;          /* folder of label pictures, or "" */
    char *boxes;          /* "beside", a folder of YOLO labels, or "" */
    char *box_form;       /* "auto", xyxy ... relative-cxcywh */
    char *box_json;       /* "" or keys to boxes and classes */
    char *bytes;          /* fields that are delivered as they are, or "" */
    char *index;          /* "auto" | "none" | path */
    char *cache;          /* "", "ram:SIZE" or a directory: where what is slow to decode is kept in a faster form */
    uint64_t cache_size;  /* of a directory's cache; 0: by what is free */
    enum config_cache_fill cache_fill;
    /* order */
    uint32_t batch; /* 64 */
    enum config_shuffle shuffle;
    uint32_t chunk;         /* samples a chunk under shuffle=chunked, 0: by shards */
    uint32_t window;        /* chunks a window under shuffle=chunked */
    char *subset;           /* "", ranges of ids, or a file of them (subset.h) */
    double fraction;        /* of the samples, or of the subset */
    char *weights;          /* "", or one a dataset, as in "3,1,1": config_weights() */
    uint64_t epoch_samples; /* 0: all, of a mixture rounded up to whole periods */
    uint64_t seed;
    enum config_last last;
    uint64_t epochs; /* 0: without end */
    /* picture */
    uint32_t image_height, image_width; /* key image = N | HEIGHTxWIDTH; 0: as stored (all must agree) */
    uint32_t resize;                    /* short side before the centre crop; 0: image x 256/224 for center-crop */
    uint32_t augment;                   /* CONFIG_AUGMENT_* */
    double scale[2], ratio[2];
    double flip_probability;
    double color_jitter[4]; /* brightness, contrast, saturation, hue */
    double grayscale_probability;
    double erase_probability;
    uint32_t padding;
    enum config_filter filter;
    enum config_color color;
    enum config_orientation orientation; /* the Exif tag of JPEG files */
    uint32_t dtype;                      /* enum loaderd_dtype: of the image field: u8, f32 */
    enum config_layout layout;
    enum config_layout record_layout; /* of u8 pictures inside raw records: nchw default */
    bool normalize; /* key normalize = none | imagenet | mean,mean,mean/std,std,std (in units of 0..1) */
    float mean[3], std[3];
    uint32_t label_dtype; /* i32 or i64 */
    /* values of floats in records */
    double clamp[2]; /* infinite: not */
    enum config_nan nan;
    /* fields that are filled in part */
    uint64_t bytes_cap; /* 256K: of a row */
    uint32_t box_max;   /* 100: of a row */
    double box_visible; /* share of a box that must be left */
    enum config_overflow on_overflow;
    /* bad samples */
    enum config_on_error on_error;
    enum config_on_damage on_damage;
    enum config_verify verify_crc; /* of formats with checksums */
    double error_limit; /* share of an epoch's samples that may be bad under on-error=auto and shuffle, 0.001 */
    /* memory */
    enum config_stores stores; /* of rows that are copied as they are */
    uint32_t group_wait;       /* seconds for the members of a group to come */
    uint32_t group_laggard;    /* seconds that a group waits for its slowest member, 0: without end */
    uint32_t slots;            /* 0: 8, of small batches more, fewer where they would not fit max_ring_bytes */
    uint32_t node;             /* NUMA node of the ring, CONFIG_NODE_AUTO: the trainer's */
    /* access */
    char *client_keys; /* "all", "none" or a list of keys that a client may set */
    char *allow;       /* "all", "none" or a list of users and @groups: config_next_allowed() */
};

/* [daemon] */
struct daemon_config {
    char *socket;         /* "": the default of DESIGN: $LOADERD_SOCKET, $XDG_RUNTIME_DIR/loaderd/socket, /run/... */
    uint32_t socket_mode; /* 0660 */
    char *socket_group;   /* "": unchanged */
    uint32_t workers;     /* 0: allowed CPUs (affinity and quota), at least 1 */
    bool pin;             /* workers pinned one a CPU */
    enum config_engine engine;
    uint32_t depth;                   /* reads in flight a worker, 16 */
    enum config_direct direct;        /* reads of files that stay open past the page cache */
    uint64_t max_pixels;              /* 100,000,000 */
    uint64_t max_sample_bytes;        /* 64 MiB */
    uint32_t max_scans;               /* 500 */
    uint64_t max_ring_bytes;          /* a session, 512 MiB */
    uint64_t max_ring_bytes_per_user; /* 0: max_ring_bytes x max_sessions_per_user */
    uint32_t max_sessions;            /* 256 */
    uint32_t max_sessions_per_user;   /* 64 */
    char *metrics;                    /* "": no metrics page; see exporter_parse() */
    bool metrics_public;              /* its address need not be a loopback one */
    uint32_t log_level;               /* enum log_level; key words error warning notice info debug */
};

struct config {
    struct daemon_config daemon;
    struct pipeline_config *pipeline; /* pipelines of them */
    uint32_t pipelines;
};

/* Defaults; strings are owned. deinit is legal after init, and twice. */
int pipeline_config_init(struct pipeline_config *config, const char *name);
void pipeline_config_deinit(struct pipeline_config *config);
int pipeline_config_copy(const struct pipeline_config *from, struct pipeline_config *ret);
int config_init(struct config *config);
void config_deinit(struct config *config);

/* Reads a file / parses text of one (`origin` names it in messages: "FILE:LINE: unknown key 'bacth' in [pipeline x];
 * did you mean 'batch'?"). Both begin with config_init() themselves, so *config must hold nothing yet; on failure it is
 * deinitialised. Relative paths (dataset, labels, classes, index, subset, socket) become relative to the directory of
 * `origin`.
 *
 *     line    = comment | section | key "=" value
 *     comment = "#" or ";" first in the line, or " ;" behind a value: so no value contains a blank before a semicolon
 *     section = "[daemon]" | "[pipeline NAME]", each at most once; NAME of A-Z a-z 0-9 . _ -
 *
 * Blanks around lines, keys and values do not count. Errors are -EINVAL, -ENOMEM, or of open() and read(). */
int config_read_file(const char *path, struct config *config, struct diag *diag);
int config_parse(const char *text, size_t length, const char *origin, struct config *config, struct diag *diag);
const struct pipeline_config *config_pipeline(const struct config *config, const char *name);

/* The next name of a value of `allow` that is neither "all" nor "none"; false at the end. Pure. */
struct config_allowed {
    bool is_group;
    char name[64]; /* or a number */
};
bool config_next_allowed(const char **at, struct config_allowed *ret);

/* The numbers of a value of `weights`, at most `most`: how many there are. 0 where the key is empty. Pure. */
#define CONFIG_MAX_WEIGHTS 256u
#define CONFIG_MAX_WEIGHTS_SUM 65536u
uint32_t config_weights(const char *value, uint32_t *ret, uint32_t most);

/* Is a value of `cache` one of memory, "ram:SIZE"? Pure. *ret_bytes is 0 where SIZE is none. */
bool config_cache_ram(const char *value, uint64_t *ret_bytes);

/* Sets one key by name; on failure the field keeps its value. -ENOENT: no such key (the sentence suggests the nearest);
 * -EINVAL: value (the sentence says what is allowed). */
int pipeline_config_set(struct pipeline_config *config, const char *key, const char *value, struct diag *diag);
int daemon_config_set(struct daemon_config *config, const char *key, const char *value, struct diag *diag);
bool config_is_pipeline_key(const char *key);
bool config_is_daemon_key(const char *key);
/* May a client set `key` on this pipeline? (-EACCES and a sentence naming the keys it lets go) */
int pipeline_config_let(const struct pipeline_config *config, const char *key, struct diag *diag);

/* "key=value" lines of everything that shapes samples (for the fingerprint): not batch, seed, slots, index, paths, and
 * not subset and fraction, whose ids the session adds; keys of an order that is not asked for are left out.
 * on-error=auto and last=auto are written as what they stand for. Returns the length, -ENOSPC where it does not fit. */
int pipeline_config_describe(const struct pipeline_config *config, char *buffer, size_t size);

/* "key = value" lines of all keys that are not as by default, as a file has them below [pipeline NAME]. What a value cannot
 * have in a file is not looked at. Returns the length, -ENOSPC where it does not fit, -ENOMEM. */
int pipeline_config_print(const struct pipeline_config *config, char *buffer, size_t size);

/* Is it the same opened dataset: the same name, and the same value of each key that is used when a dataset is opened? */
bool pipeline_config_same_dataset(const struct pipeline_config *a, const struct pipeline_config *b);
/* Whether keys differ that are used when a daemon starts, so that a reload cannot change them; their names. */
bool daemon_config_needs_restart(const struct daemon_config *before, const struct daemon_config *after, char *buffer,
                                 size_t size);

/* Is argv[*index] an option `--KEY VALUE` or `--KEY=VALUE` of either section? 1: yes, *index moves behind it; 0: no;
 * -EINVAL: yes, but the value is missing or begins with "--" (write --KEY=VALUE for such a one); *ret_key is set.
 * Pure; the key is the table's string, the value points into argv. */
int config_match_option(int argc, char **argv, int *index, const char **ret_key, const char **ret_value);
/* The key that `word` (without dashes) probably means, NULL if none is near: for "did you mean". */
const char *config_nearest_key(const char *word);

/* One aligned help line a key, as in --help: "--batch N   rows a batch (64)". */
void config_print_pipeline_help(FILE *out);
void config_print_daemon_help(FILE *out);
/* Machine-readable: "pipeline<TAB>batch<TAB>N<TAB>64<TAB>rows a batch" a line. */
void config_print_keys(FILE *out);

#endif
