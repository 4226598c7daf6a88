/* SPDX-License-Identifier: MIT */
/*
 * config.c: every key with good and bad values, the file's grammar and its messages, the command line, what clients may
 * set. The expected sentences are what a person should read; expected numbers are torchvision's and DESIGN's defaults.
 */
#include "config.h"

#include <check.h>
#include <math.h>
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/near.h"
#include "base/util.h"

#include <loaderd/loaderd.h>

static struct pipeline_config pipeline;
static struct config config;
static struct diag diag;

static void set_up(void) {
    memset(&diag, 0, sizeof diag);
    ck_assert_int_eq(pipeline_config_init(&pipeline, "x"), 0);
    ck_assert_int_eq(config_init(&config), 0);
}

static void tear_down(void) {
    pipeline_config_deinit(&pipeline);
    pipeline_config_deinit(&pipeline); /* legal twice */
    config_deinit(&config);
    config_deinit(&config);
}

static void good(const char *key, const char *value) {
    int rc = config_is_pipeline_key(key) ? pipeline_config_set(&pipeline, key, value, &diag)
                                         : daemon_config_set(&config.daemon, key, value, &diag);
    ck_assert_msg(rc == 0, "%s = %s: %s", key, value, diag.text);
}

/* Refused, with a sentence that begins with the key and holds `part`; the configuration stays as it was. */
static void bad(const char *key, const char *value, const char *part) {
    char before[8192], after[8192];
    struct daemon_config daemon = config.daemon;
    int length = pipeline_config_describe(&pipeline, before, sizeof before);
    ck_assert_int_gt(length, 0);
    int rc = config_is_pipeline_key(key) ? pipeline_config_set(&pipeline, key, value, &diag)
                                         : daemon_config_set(&config.daemon, key, value, &diag);
    ck_assert_msg(rc == -EINVAL, "%s = %s was taken", key, value);
    ck_assert_msg(strncmp(diag.text, key, strlen(key)) == 0 && strstr(diag.text, part), "%s", diag.text);
    ck_assert_int_eq(pipeline_config_describe(&pipeline, after, sizeof after), length);
    ck_assert_str_eq(before, after);
    ck_assert_mem_eq(&daemon, &config.daemon, sizeof daemon);
}

START_TEST(defaults) {
    ck_assert_str_eq(pipeline.name, "x");
    ck_assert_str_eq(pipeline.dataset, "");
    ck_assert_str_eq(pipeline.format, "auto");
    ck_assert_str_eq(pipeline.index, "auto");
    ck_assert_str_eq(pipeline.client_keys, "all");
    ck_assert_uint_eq(pipeline.batch, 64);
    ck_assert_uint_eq(pipeline.slots, 0); /* auto */
    ck_assert_int_eq(pipeline.shuffle, CONFIG_SHUFFLE_NONE);
    ck_assert_int_eq(pipeline.last, CONFIG_LAST_AUTO);
    ck_assert_int_eq(pipeline.on_error, CONFIG_ON_ERROR_AUTO);
    ck_assert_int_eq(pipeline.filter, CONFIG_FILTER_BILINEAR);
    ck_assert_int_eq(pipeline.layout, CONFIG_LAYOUT_NHWC);
    ck_assert_int_eq(pipeline.record_layout, CONFIG_LAYOUT_NCHW);
    ck_assert_uint_eq(pipeline.dtype, LOADERD_U8);
    ck_assert_uint_eq(pipeline.label_dtype, LOADERD_I32);
    ck_assert(pipeline.scale[0] == 0.08 && pipeline.scale[1] == 1.0); /* torchvision: scale=(0.08, 1.0) */
    ck_assert(pipeline.ratio[0] == 3.0 / 4.0 && pipeline.ratio[1] == 4.0 / 3.0);
    ck_assert(pipeline.flip_probability == 0.5 && pipeline.error_limit == 0.001);
    ck_assert(!pipeline.normalize && pipeline.std[2] == 1.0f);
    ck_assert_str_eq(config.daemon.socket, "");
    ck_assert_uint_eq(config.daemon.socket_mode, 0660);
    ck_assert_uint_eq(config.daemon.workers, 0);
    ck_assert(config.daemon.pin);
    ck_assert_uint_eq(config.daemon.depth, 16);
    ck_assert_uint_eq(config.daemon.max_pixels, 100000000);
    ck_assert_uint_eq(config.daemon.max_sample_bytes, UINT64_C(64) << 20);
    ck_assert_uint_eq(config.daemon.max_ring_bytes, UINT64_C(512) << 20);
    ck_assert_uint_eq(config.daemon.max_scans, 500);
    ck_assert_uint_eq(config.daemon.max_sessions, 256);
    ck_assert_uint_eq(config.daemon.max_sessions_per_user, 64);
    ck_assert_uint_eq(config.daemon.log_level, LOG_INFO);
}
END_TEST

START_TEST(numbers) {
    good("batch", "1");
    good("batch", " 1048576\t");
    ck_assert_uint_eq(pipeline.batch, 1048576);
    bad("batch", "0", "from 1 to 1048576");
    bad("batch", "1048577", "from 1 to 1048576");
    bad("batch", "", "from 1 to");
    bad("batch", "-1", "from 1 to");
    bad("batch", "+1", "from 1 to");
    bad("batch", "6 4", "from 1 to");
    bad("batch", "0x10", "from 1 to");
    bad("batch", "64K", "from 1 to");
    bad("batch", "18446744073709551617", "from 1 to"); /* 2^64 + 1 must not become 1 */
    good("seed", "18446744073709551615");
    ck_assert_uint_eq(pipeline.seed, UINT64_MAX);
    bad("seed", "18446744073709551616", "from 0 to 18446744073709551615");
    bad("slots", "2", "auto or a number from 3 to 4096");
    good("node", "1");
    ck_assert_uint_eq(pipeline.node, 1);
    good("node", "auto");
    ck_assert_uint_eq(pipeline.node, CONFIG_NODE_AUTO);
    good("node", "0");
    ck_assert_uint_eq(pipeline.node, 0);
    bad("node", "1024", "auto or a number from 0 to 1023");
    bad("node", "near", "auto or a number from 0 to 1023");
    good("slots", "3");
    ck_assert_uint_eq(pipeline.slots, 3);
    good("slots", "auto");
    ck_assert_uint_eq(pipeline.slots, 0);
    good("workers", "3");
    ck_assert_uint_eq(config.daemon.workers, 3);
    good("workers", "auto");
    ck_assert_uint_eq(config.daemon.workers, 0);
    good("workers", "0");
    bad("workers", "many", "auto or a number from 1 to 4096");
    good("socket-mode", "600");
    ck_assert_uint_eq(config.daemon.socket_mode, 0600);
    good("socket-mode", "0666");
    ck_assert_uint_eq(config.daemon.socket_mode, 0666);
    bad("socket-mode", "0680", "octal number from 0 to 777");
    bad("socket-mode", "1777", "octal");
}
END_TEST

START_TEST(sizes) {
    good("skip-bytes", "54");
    ck_assert_uint_eq(pipeline.skip_bytes, 54);
    good("max-ring-bytes", "2G");
    ck_assert_uint_eq(config.daemon.max_ring_bytes, UINT64_C(2) << 30);
    good("max-ring-bytes", "3m");
    ck_assert_uint_eq(config.daemon.max_ring_bytes, UINT64_C(3) << 20);
    good("max-ring-bytes", "8KiB");
    ck_assert_uint_eq(config.daemon.max_ring_bytes, 8192);
    bad("max-ring-bytes", "1T", "K, M or G");
    bad("max-ring-bytes", "1.5G", "K, M or G");
    bad("max-ring-bytes", "G", "K, M or G");
    bad("max-ring-bytes", "1 G", "K, M or G");
    bad("max-ring-bytes", "17179869184G", "K, M or G"); /* 2^64 */
    bad("max-ring-bytes", "100", "from 4096");
}
END_TEST

START_TEST(words) {
    static const struct {
        const char *key, *value;
        const void *field;
        uint32_t want;
    } word[] = {
        {"shuffle", "full", &pipeline.shuffle, CONFIG_SHUFFLE_FULL},
        {"shuffle", "none", &pipeline.shuffle, CONFIG_SHUFFLE_NONE},
        {"last", "drop", &pipeline.last, CONFIG_LAST_DROP},
        {"last", "keep", &pipeline.last, CONFIG_LAST_KEEP},
        {"last", "pad", &pipeline.last, CONFIG_LAST_PAD},
        {"last", "auto", &pipeline.last, CONFIG_LAST_AUTO},
        {"filter", "nearest", &pipeline.filter, CONFIG_FILTER_NEAREST},
        {"filter", "bicubic", &pipeline.filter, CONFIG_FILTER_BICUBIC},
        {"color", "gray", &pipeline.color, CONFIG_COLOR_GRAY},
        {"dtype", "f32", &pipeline.dtype, LOADERD_F32},
        {"dtype", "f16", &pipeline.dtype, LOADERD_F16},
        {"dtype", "bf16", &pipeline.dtype, LOADERD_BF16},
        {"dtype", "u8", &pipeline.dtype, LOADERD_U8},
        {"layout", "nchw", &pipeline.layout, CONFIG_LAYOUT_NCHW},
        {"record-layout", "nhwc", &pipeline.record_layout, CONFIG_LAYOUT_NHWC},
        {"label-dtype", "i64", &pipeline.label_dtype, LOADERD_I64},
        {"on-error", "fail", &pipeline.on_error, CONFIG_ON_ERROR_FAIL},
        {"on-error", "substitute", &pipeline.on_error, CONFIG_ON_ERROR_SUBSTITUTE},
        {"on-error", "blank", &pipeline.on_error, CONFIG_ON_ERROR_BLANK},
        {"on-damage", "accept", &pipeline.on_damage, CONFIG_ON_DAMAGE_ACCEPT},
        {"verify-crc", "no", &pipeline.verify_crc, CONFIG_VERIFY_NO},
        {"verify-crc", "yes", &pipeline.verify_crc, CONFIG_VERIFY_YES},
        {"engine", "uring", &config.daemon.engine, CONFIG_ENGINE_URING},
        {"engine", "mmap", &config.daemon.engine, CONFIG_ENGINE_MMAP},
        {"engine", "pread", &config.daemon.engine, CONFIG_ENGINE_PREAD},
        {"direct", "yes", &config.daemon.direct, CONFIG_DIRECT_YES},
        {"direct", "no", &config.daemon.direct, CONFIG_DIRECT_NO},
        {"direct", "auto", &config.daemon.direct, CONFIG_DIRECT_AUTO},
        {"log-level", "debug", &config.daemon.log_level, LOG_DEBUG},
        {"log-level", "error", &config.daemon.log_level, LOG_ERROR},
    };
    for (size_t i = 0; i < ARRAY_SIZE(word); i++) {
        good(word[i].key, word[i].value);
        ck_assert_msg(memcmp(word[i].field, &word[i].want, 4) == 0, "%s = %s", word[i].key, word[i].value);
        bad(word[i].key, "nonsense", word[i].value); /* the sentence lists what is allowed */
        bad(word[i].key, "", word[i].value);
    }
    good("pin", "no");
    ck_assert(!config.daemon.pin);
    good("pin", "on");
    ck_assert(config.daemon.pin);
    bad("pin", "2", "yes|no");
}
END_TEST

START_TEST(lists) {
    good("scale", "0.25 1");
    ck_assert(pipeline.scale[0] == 0.25 && pipeline.scale[1] == 1);
    good("scale", "0.08,1");
    good("scale", "0.5 , 0.5");
    ck_assert(pipeline.scale[0] == 0.5 && pipeline.scale[1] == 0.5);
    bad("scale", "0,1", "above 0 and at most 1");
    bad("scale", "0.5,1.5", "at most 1");
    bad("scale", "1,0.5", "lower first");
    bad("scale", "0.5", "LOW,HIGH");
    bad("scale", "0.1,0.2,0.3", "LOW,HIGH");
    bad("scale", "nan,1", "LOW,HIGH");
    bad("scale", "0x1p-1,1", "LOW,HIGH");
    good("ratio", "3/4 4/3");
    ck_assert(pipeline.ratio[0] == 0.75 && pipeline.ratio[1] == 4.0 / 3.0);
    bad("ratio", "1/0,2", "LOW,HIGH");
    good("color-jitter", "0.4");
    good("color-jitter", "0.4 0.4 0.4 0.5");
    bad("color-jitter", "0.4,0.4,0.4,0.6", "hue at most 0.5");
    bad("color-jitter", "-1", "B,C,S,H");
    bad("color-jitter", "1,2,3,0.1,5", "B,C,S,H");
    bad("grayscale-probability", "2", "from 0 to 1");
    good("flip-probability", "0");
    good("flip-probability", "1e-3");
    ck_assert(pipeline.flip_probability == 0.001);
    bad("flip-probability", "1.01", "from 0 to 1");
    bad("flip-probability", "-0.5", "from 0 to 1");
    bad("flip-probability", "inf", "from 0 to 1");
}
END_TEST

START_TEST(augment) {
    good("augment", "random-resized-crop,flip");
    ck_assert_uint_eq(pipeline.augment, CONFIG_AUGMENT_RANDOM_RESIZED_CROP | CONFIG_AUGMENT_FLIP);
    good("augment", "flip flip-vertical, center-crop");
    ck_assert_uint_eq(pipeline.augment,
                      CONFIG_AUGMENT_CENTER_CROP | CONFIG_AUGMENT_FLIP | CONFIG_AUGMENT_FLIP_VERTICAL);
    good("augment", "random-crop");
    ck_assert_uint_eq(pipeline.augment, CONFIG_AUGMENT_RANDOM_CROP);
    bad("augment", "center-crop,random-crop", "two crops");
    bad("augment", "random-resized-crop flip random-crop", "two crops");
    bad("augment", "stretch random-crop", "two crops");
    good("augment", "stretch,flip");
    ck_assert_uint_eq(pipeline.augment, CONFIG_AUGMENT_STRETCH | CONFIG_AUGMENT_FLIP);
    bad("augment", "none,flip", "none or a list");
    bad("augment", "flop", "center-crop|random-resized-crop|random-crop|flip|flip-vertical|stretch");
    bad("augment", "", "none or a list");
    good("augment", "none");
    ck_assert_uint_eq(pipeline.augment, 0);
}
END_TEST

START_TEST(image) {
    good("image", "224");
    ck_assert(pipeline.image_height == 224 && pipeline.image_width == 224);
    good("image", "480x640");
    ck_assert(pipeline.image_height == 480 && pipeline.image_width == 640);
    good("image", "65535x1");
    good("image", "0");
    ck_assert(pipeline.image_height == 0 && pipeline.image_width == 0);
    bad("image", "0x5", "HEIGHTxWIDTH");
    bad("image", "65536", "65535");
    bad("image", "x", "HEIGHTxWIDTH");
    bad("image", "1x2x3", "HEIGHTxWIDTH");
    bad("image", "10 x 20", "HEIGHTxWIDTH");
}
END_TEST

START_TEST(normalize) {
    good("normalize", "imagenet"); /* torchvision: mean 0.485 0.456 0.406, std 0.229 0.224 0.225 */
    ck_assert(pipeline.normalize && pipeline.mean[0] == 0.485f && pipeline.mean[1] == 0.456f &&
              pipeline.mean[2] == 0.406f && pipeline.std[0] == 0.229f && pipeline.std[1] == 0.224f &&
              pipeline.std[2] == 0.225f);
    good("normalize", "0.5,0.25,0/1 2 4");
    ck_assert(pipeline.mean[1] == 0.25f && pipeline.std[2] == 4.0f);
    good("normalize", "0.1307/0.3081");
    ck_assert(pipeline.mean[2] == 0.1307f && pipeline.std[1] == 0.3081f);
    bad("normalize", "0.5,0.5/1,1", "M,M,M/S,S,S");
    bad("normalize", "0.5,0.5,0.5/1,0,1", "S above 0");
    bad("normalize", "0.5,0.5,0.5/1,1e-99,1", "S above 0"); /* 0 as a float */
    bad("normalize", "1e99,0.5,0.5/1,1,1", "M,M,M");
    bad("normalize", "0.5,0.5,0.5", "M,M,M/S,S,S");
    bad("normalize", "cifar", "none, imagenet");
    good("normalize", "none");
    ck_assert(!pipeline.normalize && pipeline.mean[0] == 0 && pipeline.std[0] == 1);
}
END_TEST

START_TEST(texts) {
    good("record", "  label:u8 image:u8[3,32,32] ");
    ck_assert_str_eq(pipeline.record, "label:u8 image:u8[3,32,32]");
    good("dataset", "/data/with blank/x");
    bad("dataset", "a\nb", "control character (byte 0x0a)");
    good("socket-group", "users");
    ck_assert_str_eq(config.daemon.socket_group, "users");
}
END_TEST

START_TEST(decimals_ignore_the_locale) {
    if (!setlocale(LC_ALL, "de_DE.UTF-8") && !setlocale(LC_ALL, "fr_FR.UTF-8")) {
        fprintf(stderr,
                "check_config: no locale with a decimal comma is installed; decimals_ignore_the_locale skipped\n");
        return;
    }
    good("flip-probability", "0.25");
    ck_assert(pipeline.flip_probability == 0.25);
    setlocale(LC_ALL, "C");
}
END_TEST

START_TEST(unknown_keys) {
    static const struct {
        const char *key, *sentence;
    } table[] = {
        {"bacth", "unknown key 'bacth'; did you mean 'batch'?"},
        {"btach", "unknown key 'btach'; did you mean 'batch'?"},
        {"skip_bytes", "unknown key 'skip_bytes'; did you mean 'skip-bytes'?"},
        {"Seed", "unknown key 'Seed'; did you mean 'seed'?"},
        {"colour", "unknown key 'colour'; did you mean 'color'?"},
        {"normalise", "unknown key 'normalise'; did you mean 'normalize'?"},
        {"zzzzzz", "unknown key 'zzzzzz'; loaderd.conf(5) lists the keys"},
        {"workers", "unknown key 'workers'; it belongs into [daemon]"},
        {"", "unknown key ''; loaderd.conf(5) lists the keys"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        ck_assert_int_eq(pipeline_config_set(&pipeline, table[i].key, "1", &diag), -ENOENT);
        ck_assert_str_eq(diag.text, table[i].sentence);
    }
    ck_assert_int_eq(daemon_config_set(&config.daemon, "batch", "1", &diag), -ENOENT);
    ck_assert_str_eq(diag.text, "unknown key 'batch'; it belongs into [pipeline NAME]");
    ck_assert_int_eq(daemon_config_set(&config.daemon, "worker", "1", NULL), -ENOENT);
    ck_assert(config_is_daemon_key("workers") && !config_is_daemon_key("batch"));
    ck_assert(config_is_pipeline_key("batch") && !config_is_pipeline_key("workers"));
    ck_assert_str_eq(config_nearest_key("max-ring-byte"), "max-ring-bytes");
    ck_assert_ptr_null(config_nearest_key("completely-different"));
}
END_TEST

START_TEST(client_keys) {
    good("client-keys", "batch, seed image");
    ck_assert_int_eq(pipeline_config_let(&pipeline, "batch", &diag), 0);
    ck_assert_int_eq(pipeline_config_let(&pipeline, "image", &diag), 0);
    ck_assert_int_eq(pipeline_config_let(&pipeline, "dtype", &diag), -EACCES);
    ck_assert_str_eq(diag.text,
                     "pipeline 'x' does not let clients set 'dtype', only batch, seed image; see client-keys "
                     "in loaderd.conf(5)");
    ck_assert_int_eq(pipeline_config_let(&pipeline, "see", &diag), -ENOENT);
    good("client-keys", "none");
    ck_assert_int_eq(pipeline_config_let(&pipeline, "batch", &diag), -EACCES);
    ck_assert_str_eq(diag.text, "pipeline 'x' lets clients set no key, not even 'batch'; see client-keys in "
                                "loaderd.conf(5)");
    good("client-keys", "all");
    ck_assert_int_eq(pipeline_config_let(&pipeline, "dtype", &diag), 0);
    static const char *const never[] = {"dataset", "format",      "record", "skip-bytes", "labels",    "classes",
                                        "index",   "client-keys", "cache",  "cache-size", "cache-fill"};
    for (size_t i = 0; i < ARRAY_SIZE(never); i++) {
        ck_assert_int_eq(pipeline_config_let(&pipeline, never[i], &diag), -EACCES);
        ck_assert_ptr_nonnull(strstr(diag.text, never[i]));
        bad("client-keys", never[i], "no client may set it");
    }
    bad("client-keys", "batch,sead", "did you mean 'seed'?");
    bad("client-keys", "workers", "'workers' is no pipeline key");
    bad("client-keys", "all,batch", "all, none, or a list");
    bad("client-keys", "", "all, none, or a list");
    uint64_t bytes = 1;
    good("cache", "ram:5G");
    ck_assert(config_cache_ram(pipeline.cache, &bytes));
    ck_assert_uint_eq(bytes, UINT64_C(5) << 30);
    ck_assert(!config_cache_ram("./ram:5G", &bytes));
    ck_assert(config_cache_ram("ram:many", &bytes));
    ck_assert_uint_eq(bytes, 0);
    bad("cache", "ram:", "wanted ram:SIZE");
    bad("cache", "ram:2M", "at least ram:4M");
    bad("cache", "ram:9x", "wanted ram:SIZE");
    bad("cache-fill", "often", "idle");
    ck_assert_str_eq(pipeline.cache, "ram:5G");
}
END_TEST

START_TEST(ranges_of_floats) {
    char text[4096];
    good("dataset", "/d");
    ck_assert(pipeline.clamp[0] == -INFINITY && pipeline.clamp[1] == INFINITY && pipeline.nan == CONFIG_NAN_KEEP);
    good("clamp", "-1.5, 2");
    ck_assert(pipeline.clamp[0] == -1.5 && pipeline.clamp[1] == 2);
    good("nan", "zero");
    ck_assert_int_gt(pipeline_config_describe(&pipeline, text, sizeof text), 0);
    ck_assert_ptr_nonnull(strstr(text, "\nclamp=-1.5,2\nnan=zero\n"));
    good("clamp", "none");
    good("nan", "keep");
    ck_assert_int_gt(pipeline_config_describe(&pipeline, text, sizeof text), 0);
    ck_assert_ptr_null(strstr(text, "clamp")); /* states of those who do not use it stay as they are */
    ck_assert_ptr_null(strstr(text, "nan="));
    bad("clamp", "2,1", "the lower first");
    bad("clamp", "1", "LOW,HIGH");
    bad("clamp", "nan,1", "LOW,HIGH");
    bad("clamp", "0,inf", "LOW,HIGH");
    bad("nan", "maybe", "keep");
}
END_TEST

START_TEST(copy_and_describe) {
    char text[4096], again[4096];
    struct pipeline_config copy;
    good("dataset", "/d");
    good("image", "224x192");
    good("augment", "flip,random-resized-crop");
    good("normalize", "imagenet");
    ck_assert_int_eq(pipeline_config_copy(&pipeline, &copy), 0);
    ck_assert_ptr_ne(copy.dataset, pipeline.dataset);
    ck_assert_str_eq(copy.dataset, "/d");
    int length = pipeline_config_describe(&pipeline, text, sizeof text);
    ck_assert_int_eq(length, (int)strlen(text));
    ck_assert_str_eq(
        text,
        "record=\nskip-bytes=0\nvocabulary=0\nshuffle=none\nlast=pad\nimage=224x192\nresize=0\n"
        "augment=random-resized-crop,flip\nscale=0.080000000000000002,1\n"
        "ratio=0.75,1.3333333333333333\nflip-probability=0.5\ncolor-jitter=0,0,0,0\n"
        "grayscale-probability=0\nerase-probability=0\npadding=0\nfilter=bilinear\ncolor=rgb\norientation=ignore\n"
        "dtype=u8\nlayout=nhwc\nrecord-layout=nchw\n"
        "normalize=0.485000014,0.456,0.405999988/0.229000002,0.224000007,0.224999994\n"
        "label-dtype=i32\non-error=fail\non-damage=error\n");
    /* not: paths, batch, seed, slots */
    ck_assert_int_eq(pipeline_config_set(&copy, "dataset", "/e", NULL), 0);
    ck_assert_int_eq(pipeline_config_set(&copy, "batch", "7", NULL), 0);
    ck_assert_int_eq(pipeline_config_set(&copy, "seed", "7", NULL), 0);
    ck_assert_int_eq(pipeline_config_set(&copy, "slots", "7", NULL), 0);
    ck_assert_int_eq(pipeline_config_describe(&copy, again, sizeof again), length);
    ck_assert_str_eq(text, again);
    ck_assert_int_eq(pipeline_config_set(&copy, "shuffle", "full", NULL), 0);
    ck_assert_int_gt(pipeline_config_describe(&copy, again, sizeof again), 0);
    ck_assert_ptr_nonnull(strstr(again, "\nlast=drop\n"));
    ck_assert_ptr_nonnull(strstr(again, "\non-error=substitute\n"));
    ck_assert_int_eq(pipeline_config_describe(&pipeline, text, (size_t)length), -ENOSPC);
    ck_assert_int_eq(pipeline_config_describe(&pipeline, text, (size_t)length + 1), length);
    ck_assert_int_eq(pipeline_config_describe(&pipeline, NULL, 0), -ENOSPC);
    pipeline_config_deinit(&copy);
}
END_TEST

/* Each key that dataset_open() or a cache is given tells datasets apart, and no other. */
START_TEST(same_dataset) {
    static const struct {
        const char *key, *value;
        bool same;
    } cases[] = {
        {"dataset", "/e", false},      {"format", "raw", false},      {"record", "id:u32", false},
        {"skip-bytes", "7", false},    {"labels", "/l.npy", false},   {"fields", "jpg:image", false},
        {"tokens", "512", false},      {"token-dtype", "u16", false}, {"vocabulary", "5", false},
        {"classes", "/c", false},      {"masks", "/m", false},        {"boxes", "/b", false},
        {"box-form", "xyxy", false},   {"box-json", "a,b", false},    {"bytes", "x", false},
        {"index", "none", false},      {"cache", "ram:8M", false},    {"cache-size", "1M", false},
        {"cache-fill", "full", false}, {"batch", "3", true},          {"shuffle", "full", true},
        {"subset", "0-3", true},       {"fraction", "0.5", true},     {"weights", "1,2", true},
        {"seed", "3", true},           {"image", "32", true},         {"bytes-cap", "1K", true},
        {"box-max", "3", true},        {"verify-crc", "yes", true},   {"slots", "5", true},
        {"client-keys", "none", true}, {"allow", "none", true},       {"tokens", "1024", true},
    };
    good("dataset", "/d");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pipeline_config copy;
        struct diag why = DIAG_INIT;
        ck_assert_int_eq(pipeline_config_copy(&pipeline, &copy), 0);
        ck_assert(pipeline_config_same_dataset(&pipeline, &copy));
        ck_assert_msg(pipeline_config_set(&copy, cases[i].key, cases[i].value, &why) == 0, "%s", why.text);
        ck_assert_msg(pipeline_config_same_dataset(&pipeline, &copy) == cases[i].same, "%s", cases[i].key);
        ck_assert_msg(pipeline_config_same_dataset(&copy, &pipeline) == cases[i].same, "%s", cases[i].key);
        pipeline_config_deinit(&copy);
    }
    struct pipeline_config other;
    ck_assert_int_eq(pipeline_config_init(&other, "another name"), 0);
    ck_assert_int_eq(pipeline_config_set(&other, "dataset", "/d", NULL), 0);
    ck_assert(!pipeline_config_same_dataset(&pipeline, &other));
    pipeline_config_deinit(&other);
}
END_TEST

/* Of the daemon's keys, those that a running one cannot change are named. */
START_TEST(needs_restart) {
    static const struct {
        const char *key, *value;
    } cases[] = {{"socket", "/s"},
                 {"socket-mode", "0600"},
                 {"socket-group", "g"},
                 {"workers", "3"},
                 {"pin", "no"},
                 {"engine", "pread"},
                 {"depth", "4"},
                 {"direct", "no"},
                 {"max-pixels", "4"},
                 {"max-sample-bytes", "4K"},
                 {"max-scans", "4"},
                 {"metrics", "unix:/m"},
                 {"metrics-public", "yes"},
                 {"log-level", "debug"}};
    static const char *const at_once[] = {"max-ring-bytes", "max-ring-bytes-per-user", "max-sessions",
                                          "max-sessions-per-user"};
    char keys[256];
    struct config before, after;
    ck_assert_int_eq(config_init(&before), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ck_assert_int_eq(config_init(&after), 0);
        ck_assert_int_eq(daemon_config_set(&after.daemon, cases[i].key, cases[i].value, NULL), 0);
        ck_assert(daemon_config_needs_restart(&before.daemon, &after.daemon, keys, sizeof keys));
        ck_assert_str_eq(keys, cases[i].key);
        config_deinit(&after);
    }
    ck_assert_int_eq(config_init(&after), 0);
    for (size_t i = 0; i < sizeof at_once / sizeof *at_once; i++)
        ck_assert_int_eq(daemon_config_set(&after.daemon, at_once[i], "7777", NULL), 0);
    ck_assert(!daemon_config_needs_restart(&before.daemon, &after.daemon, keys, sizeof keys));
    ck_assert_str_eq(keys, "");
    ck_assert_int_eq(daemon_config_set(&after.daemon, "workers", "3", NULL), 0);
    ck_assert_int_eq(daemon_config_set(&after.daemon, "pin", "no", NULL), 0);
    ck_assert(daemon_config_needs_restart(&before.daemon, &after.daemon, keys, sizeof keys));
    ck_assert_str_eq(keys, "workers, pin");
    config_deinit(&after);
    config_deinit(&before);
}
END_TEST

/* Keys of an order count only where it is asked for. */
START_TEST(describe_orders) {
    char text[4096], again[4096];
    good("dataset", "/d");
    ck_assert_int_gt(pipeline_config_describe(&pipeline, text, sizeof text), 0);
    good("chunk", "100");
    good("window", "3");
    good("subset", "0-99");
    good("fraction", "0.5");
    ck_assert_int_gt(pipeline_config_describe(&pipeline, again, sizeof again), 0);
    ck_assert_str_eq(text, again);
    good("shuffle", "chunked");
    good("weights", " 3, 1 ,65532 ");
    good("epoch-samples", "1000");
    ck_assert_int_gt(pipeline_config_describe(&pipeline, again, sizeof again), 0);
    ck_assert_ptr_nonnull(strstr(again, "\nshuffle=chunked\nchunk=100\nwindow=3\nweights=3,1,65532\n"
                                        "epoch-samples=1000\nlast=drop\n"));
    ck_assert_ptr_nonnull(strstr(again, "\non-error=substitute\n"));
    ck_assert_ptr_null(strstr(again, "subset"));
}
END_TEST

START_TEST(weights) {
    uint32_t weight[4] = {0};
    ck_assert_uint_eq(config_weights("", weight, 4), 0);
    ck_assert_uint_eq(config_weights("3,1, 65532", weight, 4), 3);
    ck_assert(weight[0] == 3 && weight[1] == 1 && weight[2] == 65532);
    ck_assert_uint_eq(config_weights("1 2 3 4 5 6", weight, 4), 6);
    good("weights", "");
    ck_assert_str_eq(pipeline.weights, "");
    static const char *const bad[] = {"0", "1,0", "1,-1", "x", "1.5", "1;2", "99999999999999999999999"};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        ck_assert_int_eq(pipeline_config_set(&pipeline, "weights", bad[i], &diag), -EINVAL);
    ck_assert_int_eq(pipeline_config_set(&pipeline, "weights", "65536,1", &diag), -EINVAL);
    ck_assert_str_eq(diag.text, "weights: the sum of '65536,1' is more than 65536, the longest period");
}
END_TEST

/* ---- files ---- */

static int parse(const char *text, const char *origin) {
    config_deinit(&config);
    return config_parse(text, strlen(text), origin, &config, &diag);
}

START_TEST(a_file) {
    ck_assert_int_eq(parse("\xef\xbb\xbf# a comment\r\n"
                           "[daemon]\r\n"
                           "  socket = run/socket ; behind a value\r\n"
                           "workers=2\r\n"
                           "\r\n"
                           "[ pipeline  a ] # one\n"
                           "\tdataset: sub/data\n"
                           "batch = 3\n"
                           "; another comment [pipeline z]\n"
                           "[pipeline b-2.x_Y]\n"
                           "dataset = /abs ;\n"
                           "labels = l.npy\n"
                           "index = none\n"
                           "cache = fast/cache\n"
                           "[pipeline c]\n"
                           "cache = ram:64M\n"
                           "dataset = synthetic:10x3x4x4:u8\n"
                           "index = cache/i\n"
                           "record = a;b", /* no blank before it: no comment */
                           "/etc/loaderd/l.conf"),
                     0);
    ck_assert_uint_eq(config.pipelines, 3);
    ck_assert_str_eq(config.daemon.socket, "/etc/loaderd/run/socket");
    ck_assert_uint_eq(config.daemon.workers, 2);
    const struct pipeline_config *a = config_pipeline(&config, "a"), *b = config_pipeline(&config, "b-2.x_Y"),
                                 *c = config_pipeline(&config, "c");
    ck_assert_ptr_null(config_pipeline(&config, "d"));
    ck_assert_str_eq(a->dataset, "/etc/loaderd/sub/data");
    ck_assert_uint_eq(a->batch, 3);
    ck_assert_str_eq(a->labels, "");
    ck_assert_str_eq(b->dataset, "/abs");
    ck_assert_str_eq(b->labels, "/etc/loaderd/l.npy");
    ck_assert_str_eq(b->index, "none");
    ck_assert_str_eq(a->cache, "");
    ck_assert_str_eq(b->cache, "/etc/loaderd/fast/cache");
    ck_assert_str_eq(c->cache, "ram:64M");
    ck_assert_uint_eq(b->batch, 64);
    ck_assert_str_eq(c->dataset, "synthetic:10x3x4x4:u8");
    ck_assert_str_eq(c->index, "/etc/loaderd/cache/i");
    ck_assert_str_eq(c->record, "a;b");
    ck_assert_int_eq(parse("[pipeline m]\n"
                           "dataset = a/b +  synthetic:10x3:u8 + /c\n"
                           "weights = 1 2,3\n"
                           "subset = ids.txt\n"
                           "[pipeline n]\n"
                           "dataset = /d\n"
                           "subset = 0-9, 20\n",
                           "/etc/l.conf"),
                     0);
    ck_assert_str_eq(config.pipeline[0].dataset, "/etc/a/b + synthetic:10x3:u8 + /c");
    ck_assert_str_eq(config.pipeline[0].weights, "1,2,3");
    ck_assert_str_eq(config.pipeline[0].subset, "/etc/ids.txt");
    ck_assert_str_eq(config.pipeline[1].subset, "0-9, 20");
    ck_assert_int_eq(parse("[pipeline a]\ndataset = a.npy,b.npy\n"
                           "[pipeline b]\ndataset = image=x/a.npy,label=/b.npy\n"
                           "[pipeline c]\ndataset = s-{a,b}.tar,t.tar + /d,e\n"
                           "[pipeline d]\ndataset = dir/x=y\n",
                           "/etc/l.conf"),
                     0);
    ck_assert_str_eq(config.pipeline[0].dataset, "/etc/a.npy,/etc/b.npy");
    ck_assert_str_eq(config.pipeline[1].dataset, "image=/etc/x/a.npy,label=/b.npy");
    ck_assert_str_eq(config.pipeline[2].dataset, "/etc/s-{a,b}.tar,/etc/t.tar + /d,e");
    ck_assert_str_eq(config.pipeline[3].dataset, "/etc/dir/x=y");
    ck_assert_int_eq(parse("[pipeline a]\ndataset = d\n", "l.conf"), 0);
    ck_assert_str_eq(config.pipeline[0].dataset, "d");
    ck_assert_int_eq(parse("", "l.conf"), 0);
    ck_assert_uint_eq(config.pipelines, 0);
}
END_TEST

START_TEST(bad_files) {
    static const struct {
        const char *text, *sentence;
    } table[] = {
        {"[pipeline x]\nbacth = 1\n", "f:2: unknown key 'bacth' in [pipeline x]; did you mean 'batch'?"},
        {"[pipeline x]\nworkers = 1\n", "f:2: unknown key 'workers' in [pipeline x]; it belongs into [daemon]"},
        {"[daemon]\nbatch = 1\n", "f:2: unknown key 'batch' in [daemon]; it belongs into [pipeline NAME]"},
        {"\n[deamon]\n", "f:2: [deamon]: did you mean [daemon]?"},
        {"[pipline x]\n", "f:1: [pipline x]: did you mean [pipeline NAME]?"},
        {"[daemon x]\n", "f:1: [daemon x]: did you mean [daemon]?"},
        {"[trainer]\n", "f:1: [trainer]: unknown section; there are [daemon] and [pipeline NAME]"},
        {"[]\n", "f:1: []: unknown section; there are [daemon] and [pipeline NAME]"},
        {"[pipeline]\n", "f:1: [pipeline] has no name; write [pipeline NAME]"},
        {"[pipeline a b]\n", "f:1: [pipeline a b]: a name has 1 to 63 characters out of A-Z a-z 0-9 . _ -"},
        {"[pipeline a/b]\n", "f:1: [pipeline a/b]: a name has 1 to 63 characters out of A-Z a-z 0-9 . _ -"},
        {"[daemon\n", "f:1: '[daemon': a section header ends with ']'"},
        {"[daemon] workers = 3\n", "f:1: '[daemon] workers = 3': a section header stands alone on its line"},
        {"[daemon]\n\n[daemon]\n", "f:3: [daemon] stands twice, first in line 1; join the two"},
        {"[pipeline a]\ndataset=d\n[daemon]\n[pipeline a]\n",
         "f:4: [pipeline a] stands twice, first in line 1; join the two or rename one"},
        {"[pipeline a]\nbatch=1\nseed=1\nbatch=1\n", "f:4: 'batch' stands twice in [pipeline a], first in line 2"},
        {"[pipeline a]\ndataset=d\n[pipeline b]\nbatch=2\n[daemon]\n",
         "f:3: [pipeline b] has no dataset; write dataset = PATH into it"},
        {"[pipeline a]\n", "f:1: [pipeline a] has no dataset; write dataset = PATH into it"},
        {"[pipeline a]\ndataset =\n", "f:1: [pipeline a] has no dataset; write dataset = PATH into it"},
        {"batch = 1\n", "f:1: 'batch' stands before any section; write [daemon] or [pipeline NAME] above it"},
        {"[daemon]\nworkers\n", "f:2: 'workers' is neither KEY = VALUE nor a [section]"},
        {"[daemon]\n  workers = x\n", "f:2: workers: 'x' is not allowed; write auto or a number from 1 to 4096"},
        {"[daemon]\n= 3\n", "f:2: unknown key '' in [daemon]; loaderd.conf(5) lists the keys"},
        {"[pipeline a]\ndataset=d\naugment=center-crop random-crop\n",
         "f:3: augment: 'center-crop random-crop' names two crops; a picture has one"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        ck_assert_int_eq(parse(table[i].text, "f"), -EINVAL);
        ck_assert_str_eq(diag.text, table[i].sentence);
        ck_assert_int_eq(diag.code, -EINVAL);
        ck_assert_ptr_null(config.pipeline);
        ck_assert_int_eq(config_parse(table[i].text, strlen(table[i].text), "f", &config, NULL), -EINVAL);
    }
    ck_assert_int_eq(config_parse("[daemon]\nsocket=a\0b\n", 20, "f", &config, &diag), -EINVAL);
    ck_assert_str_eq(diag.text, "f:2: a NUL byte; is this a text file?");
}
END_TEST

/* A wrong value: file, line, key, the value, what was probably meant, and what is allowed. */
START_TEST(wrong_values) {
    static const struct {
        const char *line, *sentence;
    } table[] = {
        {"shuffle = ful", "shuffle: 'ful' is not allowed; did you mean 'full'? Write none|full|chunked|explicit"},
        {"shuffle = yes", "shuffle: 'yes' is not allowed; write none|full|chunked|explicit"},
        {"dtype = fp16", "dtype: 'fp16' is not allowed; did you mean 'f16'? Write u8|f32|f16|bf16"},
        {"dtype = F32", "dtype: 'F32' is not allowed; did you mean 'f32'? Write u8|f32|f16|bf16"},
        {"on-error = substitue",
         "on-error: 'substitue' is not allowed; did you mean 'substitute'? Write auto|fail|substitute|blank"},
        {"slots = atuo", "slots: 'atuo' is not allowed; did you mean 'auto'? Write auto or a number from 3 to 4096"},
        {"slots = 2", "slots: '2' is not allowed; write auto or a number from 3 to 4096"},
        {"augment = center-crop,flp",
         "augment: 'center-crop,flp' is not allowed; did you mean 'flip'? Write none or a list of "
         "center-crop|random-resized-crop|random-crop|flip|flip-vertical|stretch"},
        {"augment = nome", "augment: 'nome' is not allowed; did you mean 'none'? Write none or a list of "
                           "center-crop|random-resized-crop|random-crop|flip|flip-vertical|stretch"},
        {"clamp = non", "clamp: 'non' is not allowed; did you mean 'none'? Write none, or LOW,HIGH: two numbers, the "
                        "lower first"},
        {"normalize = imagnet", "normalize: 'imagnet' is not allowed; did you mean 'imagenet'? Write none, imagenet, "
                                "or M,M,M/S,S,S (means and "
                                "deviations of 0..1, S above 0)"},
        {"client-keys = bacth", "client-keys: 'bacth' is no pipeline key; did you mean 'batch'?"},
    };
    char text[300], sentence[400];
    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        snprintf(text, sizeof text, "[pipeline a]\ndataset = d\n%s\n", table[i].line);
        snprintf(sentence, sizeof sentence, "/etc/x.conf:3: %s", table[i].sentence);
        ck_assert_int_eq(parse(text, "/etc/x.conf"), -EINVAL);
        ck_assert_str_eq(diag.text, sentence);
    }
    ck_assert_int_eq(parse("[daemon]\nengine = urin\n", "c"), -EINVAL);
    ck_assert_str_eq(diag.text,
                     "c:2: engine: 'urin' is not allowed; did you mean 'uring'? Write auto|uring|mmap|pread");
    ck_assert_int_eq(parse("[daemon]\nengine = io_uring\n", "c"), -EINVAL);
    ck_assert_ptr_nonnull(strstr(diag.text, "did you mean 'uring'?"));
    ck_assert_int_eq(parse("[daemon]\npin = n\n", "c"), -EINVAL);
    ck_assert_ptr_nonnull(strstr(diag.text, "did you mean 'no'?"));
    ck_assert_int_eq(parse("[daemon]\nlog-level = warn\n", "c"), -EINVAL);
    ck_assert_ptr_null(strstr(diag.text, "did you mean"));
    ck_assert_ptr_nonnull(strstr(diag.text, "error|warning|notice|info|debug"));
}
END_TEST

static const char *nearest(const char *word, const char *a, const char *b) {
    struct near near = near_to(word, strlen(word));
    near_try(&near, a);
    near_try(&near, b);
    return near.found ? near.found : "";
}

START_TEST(near_words) {
    char huge[100];
    ck_assert_str_eq(nearest("abcd", "abcd", "abce"), "abcd");
    ck_assert_str_eq(nearest("abcd", "abce", "abcd"), "abcd"); /* the nearer one */
    ck_assert_str_eq(nearest("abcf", "abcd", "abce"), "abcd"); /* the first of equals */
    ck_assert_str_eq(nearest("abdc", "abcd", ""), "abcd");     /* neighbours swapped: one edit */
    ck_assert_str_eq(nearest("a_B", "a-b", ""), "a-b");
    ck_assert_str_eq(nearest("abc", "axy", ""), "");       /* two of three are too many */
    ck_assert_str_eq(nearest("abcd", "axyd", ""), "axyd"); /* two of four are not */
    ck_assert_str_eq(nearest("x", "x", ""), "x");
    memset(huge, 'h', sizeof huge - 1);
    huge[sizeof huge - 1] = '\0';
    ck_assert_str_eq(nearest(huge, huge, "h"), ""); /* not compared */
    ck_assert_str_eq(nearest("h", huge, "h"), "h");
}
END_TEST

/* inih cuts lines that do not fit its buffer: the longest that fits is taken whole, a longer one is refused. */
START_TEST(long_lines) {
    char text[32000], path[15000];
    size_t taken = 0;
    for (size_t n = 100; n < 10000; n += n < 300 ? 1 : 97) {
        memset(path, 'd', n);
        path[0] = '/';
        path[n] = '\0';
        snprintf(text, sizeof text, "[pipeline a]\nbatch = 2\ndataset = %s\n", path);
        if (parse(text, "f") == 0) {
            ck_assert_str_eq(config.pipeline[0].dataset, path);
            ck_assert_msg(taken == 0 || taken < n, "%zu", n);
            taken = n;
        } else {
            ck_assert_ptr_nonnull(strstr(diag.text, "f:3: 'dataset = /ddddddddd...': the line has"));
        }
    }
    ck_assert_uint_ge(taken, 180);
    snprintf(text, sizeof text, "#%s\n[daemon]\n;%s\n", path, path); /* comments may be as long as they like */
    ck_assert_int_eq(parse(text, "f"), 0);
    snprintf(text, sizeof text, "[pipeline %.63s]\ndataset=d\n", path + 1);
    ck_assert_int_eq(parse(text, "f"), 0); /* longer than inih's 50 bytes for a section */
    ck_assert_uint_eq(strlen(config.pipeline[0].name), 63);
    snprintf(text, sizeof text, "[pipeline %.64s]\ndataset=d\n", path + 1);
    ck_assert_int_eq(parse(text, "f"), -EINVAL);
}
END_TEST

START_TEST(reading_a_file) {
    char path[] = "/tmp/check_config.XXXXXX", long_path[64];
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    static const char text[] = "[pipeline a]\ndataset = d\nbatch = 0\n";
    ck_assert_int_eq(write(fd, text, sizeof text - 1), (int)sizeof text - 1);
    config_deinit(&config);
    ck_assert_int_eq(config_read_file(path, &config, &diag), -EINVAL);
    ck_assert(strncmp(diag.text, path, strlen(path)) == 0 && strstr(diag.text, ":3: batch: '0'"));
    ck_assert_int_eq(ftruncate(fd, 25), 0);
    ck_assert_int_eq(config_read_file(path, &config, &diag), 0);
    ck_assert_str_eq(config.pipeline[0].dataset, "/tmp/d");
    config_deinit(&config);
    ck_assert_int_eq(ftruncate(fd, (1 << 20) + 1), 0);
    ck_assert_int_eq(config_read_file(path, &config, &diag), -EFBIG);
    close(fd);
    unlink(path);
    ck_assert_int_eq(config_read_file(path, &config, &diag), -ENOENT);
    snprintf(long_path, sizeof long_path, "cannot open the configuration %s: ", path);
    ck_assert_ptr_nonnull(strstr(diag.text, long_path));
    ck_assert_int_eq(config_read_file("/tmp", &config, &diag), -EISDIR);
    ck_assert_str_eq(diag.text, "cannot read the configuration /tmp: Is a directory");
    config_deinit(&config); /* legal after a failure */
}
END_TEST

static char *read_example(size_t *ret_length) {
    const char *source = getenv("srcdir");
    char path[4096];
    snprintf(path, sizeof path, "%s/docs/loaderd.conf.example", source ? source : ".");
    FILE *file = fopen(path, "r");
    ck_assert_msg(file != NULL, "cannot open %s", path);
    char *text = calloc(1, 65536);
    *ret_length = fread(text, 1, 65535, file);
    fclose(file);
    return text;
}

/* The example parses as it is, and also with every commented-out key switched on, which changes nothing. */
START_TEST(the_example) {
    size_t length;
    char *text = read_example(&length), before[4096], after[4096];
    config_deinit(&config);
    ck_assert_msg(config_parse(text, length, "/etc/loaderd/loaderd.conf", &config, &diag) == 0, "%s", diag.text);
    ck_assert_uint_eq(config.pipelines, 4);
    const struct pipeline_config *train = config_pipeline(&config, "imagenet-train");
    ck_assert_str_eq(train->dataset, "/data/imagenet/train");
    ck_assert_uint_eq(train->augment, CONFIG_AUGMENT_RANDOM_RESIZED_CROP | CONFIG_AUGMENT_FLIP);
    ck_assert_str_eq(config_pipeline(&config, "cifar10")->dataset, "/etc/loaderd/cifar-10-batches-bin");
    ck_assert_int_gt(pipeline_config_describe(train, before, sizeof before), 0);
    unsigned switched = 0;
    for (char *line = text; (line = strstr(line, "\n#")); line += 2) {
        if (line[2] >= 'a' && line[2] <= 'z') {
            line[1] = ' ';
            switched++;
        }
    }
    ck_assert_uint_ge(switched, 27);
    struct config other;
    ck_assert_msg(config_parse(text, length, "/etc/loaderd/loaderd.conf", &other, &diag) == 0, "%s", diag.text);
    ck_assert_int_gt(pipeline_config_describe(config_pipeline(&other, "imagenet-train"), after, sizeof after), 0);
    ck_assert_str_eq(before, after);
    struct daemon_config a = config.daemon, b = other.daemon;
    a.socket = a.socket_group = a.metrics = b.socket = b.socket_group = b.metrics = NULL;
    ck_assert_mem_eq(&a, &b, sizeof a);
    config_deinit(&other);
    free(text);
}
END_TEST

/* ---- the command line and printing ---- */

START_TEST(options) {
    char *argv[] = {"loaderd", "--batch", "8",       "--seed=4", "--engine=", "--nothing",      "x",     "-b",
                    "--",      "--image", "--slots", "--=x",     "--batch8",  "--socket=--odd", "--last"};
    static const struct {
        int index, rc, next;
        const char *key, *value;
    } table[] = {
        {0, 0, 0, NULL, NULL},           {1, 1, 3, "batch", "8"}, {2, 0, 2, NULL, NULL},
        {3, 1, 4, "seed", "4"},          {4, 1, 5, "engine", ""}, {5, 0, 5, NULL, NULL},
        {7, 0, 7, NULL, NULL},           {8, 0, 8, NULL, NULL},   {9, -EINVAL, 9, "image", NULL},
        {11, 0, 11, NULL, NULL},         {12, 0, 12, NULL, NULL}, {13, 1, 14, "socket", "--odd"},
        {14, -EINVAL, 14, "last", NULL},
    };
    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        int index = table[i].index;
        const char *key = NULL, *value = NULL;
        ck_assert_int_eq(config_match_option((int)ARRAY_SIZE(argv), argv, &index, &key, &value), table[i].rc);
        ck_assert_int_eq(index, table[i].next);
        ck_assert_pstr_eq(key, table[i].key);
        ck_assert_pstr_eq(value, table[i].value);
    }
}
END_TEST

static char *printed(void (*print)(FILE *)) {
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    print(out);
    fclose(out);
    return text;
}

START_TEST(help_and_keys) {
    char *help = printed(config_print_pipeline_help), *daemon = printed(config_print_daemon_help);
    char *keys = printed(config_print_keys), *save = NULL;
    ck_assert_ptr_nonnull(strstr(help, "  --batch N                       rows a batch (64)\n"));
    ck_assert_ptr_nonnull(strstr(help, "  --shuffle none|full|chunked|explicit"));
    ck_assert_ptr_nonnull(strstr(daemon, "  --engine auto|uring|mmap|pread  how files are read (auto)\n"));
    ck_assert_ptr_nonnull(strstr(keys, "pipeline\tbatch\tN\t64\trows a batch\n"));
    unsigned count = 0;
    for (char *line = strtok_r(keys, "\n", &save); line; line = strtok_r(NULL, "\n", &save), count++) {
        char section[16], key[32], rest[300];
        ck_assert_int_eq(sscanf(line, "%15[^\t]\t%31[^\t]\t%299[^\n]", section, key, rest), 3);
        bool of_pipeline = strcmp(section, "pipeline") == 0;
        ck_assert(of_pipeline ? config_is_pipeline_key(key) : config_is_daemon_key(key));
        char option[40];
        snprintf(option, sizeof option, "  --%s ", key);
        ck_assert_ptr_nonnull(strstr(of_pipeline ? help : daemon, option));
    }
    ck_assert_uint_eq(count, 83);
    free(help);
    free(daemon);
    free(keys);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("config");
    TCase *keys = tcase_create("keys"), *files = tcase_create("files");
    tcase_add_checked_fixture(keys, set_up, tear_down);
    tcase_add_test(keys, defaults);
    tcase_add_test(keys, numbers);
    tcase_add_test(keys, sizes);
    tcase_add_test(keys, words);
    tcase_add_test(keys, lists);
    tcase_add_test(keys, augment);
    tcase_add_test(keys, image);
    tcase_add_test(keys, normalize);
    tcase_add_test(keys, texts);
    tcase_add_test(keys, decimals_ignore_the_locale);
    tcase_add_test(keys, unknown_keys);
    tcase_add_test(keys, client_keys);
    tcase_add_test(keys, ranges_of_floats);
    tcase_add_test(keys, copy_and_describe);
    tcase_add_test(keys, same_dataset);
    tcase_add_test(keys, needs_restart);
    tcase_add_test(keys, describe_orders);
    tcase_add_test(keys, weights);
    suite_add_tcase(suite, keys);
    tcase_add_checked_fixture(files, set_up, tear_down);
    tcase_set_timeout(files, 60);
    tcase_add_test(files, a_file);
    tcase_add_test(files, bad_files);
    tcase_add_test(files, wrong_values);
    tcase_add_test(files, near_words);
    tcase_add_test(files, long_lines);
    tcase_add_test(files, reading_a_file);
    tcase_add_test(files, the_example);
    tcase_add_test(files, options);
    tcase_add_test(files, help_and_keys);
    suite_add_tcase(suite, files);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
