/* SPDX-License-Identifier: MIT */
/*
 * Formats read as they are: small datasets that their own writers made (tests/formats-reference.py) go through the whole
 * engine, and every field of every sample has the bytes that were written. Then, format by format, what is refused and
 * with which words, and what is served of damaged files.
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <zlib.h>

#include "../client/consumer.h"
#include "autoconfig.h"
#include "base/log.h"
#include "base/util.h"
#include "dataset/format.h"
#include "pipeline.h"
#include "pool.h"

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            ck_abort_msg("line %d: %s", __LINE__, #condition);                                                         \
    } while (0)

/* What a dataset must give: keys in pairs, samples, and of each field the CRC-32 of all its rows in order. */
struct reference {
    const char *what;
    const char *keys[24];
    uint64_t samples;
    uint32_t fields;
    struct {
        const char *name;
        uint32_t dtype, ndim;
        int64_t dims[7];
        uint32_t crc;
    } field[8];
};
#include "boxes-reference.h"
#include "formats-reference.h"

static char data_folder[PATH_MAX], home[PATH_MAX];
static struct diag why;

static void set_up(void) {
    const char *srcdir = getenv("srcdir"), *temporary = getenv("TMPDIR");
    char relative[PATH_MAX];
    snprintf(relative, sizeof relative, "%s/tests/data/formats", srcdir ? srcdir : ".");
    if (!realpath(relative, data_folder))
        ck_abort_msg("no %s: set srcdir to the source's top", relative);
    snprintf(home, sizeof home, "%s/loaderd-formats-XXXXXX", temporary ? temporary : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(home));
    ck_assert_int_eq(chdir(home), 0);
    setenv("XDG_CACHE_HOME", home, 1);
    log_init("check_formats", LOG_ERROR);
    why = (struct diag)DIAG_INIT;
}

static int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *ftw) {
    (void)status, (void)kind, (void)ftw;
    return remove(path);
}

static void tear_down(void) {
    ck_assert_int_eq(chdir("/"), 0);
    ck_assert_int_eq(nftw(home, remove_entry, 16, FTW_DEPTH | FTW_PHYS), 0);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static void make_file(const char *path, const void *bytes, size_t length) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    EXPECT(fd >= 0);
    EXPECT(write(fd, bytes, length) == (ssize_t)length);
    close(fd);
}

/* A file of tests/data/formats, NUL behind it; the caller frees. */
static uint8_t *load(const char *name, size_t *ret_length) {
    char path[2 * PATH_MAX];
    struct stat status;
    snprintf(path, sizeof path, "%s/%s", data_folder, name);
    int fd = open(path, O_RDONLY);
    if (fd < 0 || fstat(fd, &status) < 0)
        ck_abort_msg("no %s", path);
    uint8_t *bytes = malloc((size_t)status.st_size + 1);
    EXPECT(bytes && read(fd, bytes, (size_t)status.st_size) == status.st_size);
    bytes[status.st_size] = '\0';
    close(fd);
    *ret_length = (size_t)status.st_size;
    return bytes;
}

/* Copies a file of tests/data/formats to `to`, its last `cut` bytes left out. */
static void copy_cut(const char *name, const char *to, size_t cut) {
    size_t length;
    uint8_t *bytes = load(name, &length);
    EXPECT(cut <= length);
    make_file(to, bytes, length - cut);
    free(bytes);
}

/* ---- the engine over a dataset ----------------------------------------------------------------------------------- */

/* All rows of an epoch in order: field i is `samples` x `bytes[i]`. */
struct served {
    uint64_t samples;
    uint32_t fields, bad;
    struct loaderd_field spec[LOADERD_MAX_FIELDS];
    char name[LOADERD_MAX_FIELDS][32];
    uint8_t *rows[LOADERD_MAX_FIELDS];
    size_t bytes[LOADERD_MAX_FIELDS];
    uint64_t bytes_in;
    int error;
    char message[LOADERD_SLOT_MESSAGE];
};

static void served_free(struct served *served) {
    for (uint32_t i = 0; i < served->fields; i++)
        free(served->rows[i]);
}

static void take_batch(struct served *served, const struct loaderd_batch *batch, uint64_t total) {
    served->fields = batch->nfields;
    for (uint32_t i = 0; i < batch->nfields; i++) {
        const struct loaderd_field *field = &batch->fields[i];
        size_t bytes = loaderd_dtype_size(field->dtype);
        for (uint32_t k = 1; k < field->ndim; k++)
            bytes *= (size_t)field->dims[k];
        if (!served->rows[i])
            served->rows[i] = calloc(total, bytes);
        served->spec[i] = *field;
        snprintf(served->name[i], sizeof served->name[i], "%s", field->name);
        served->bytes[i] = bytes;
        memcpy(served->rows[i] + served->samples * bytes, field->data, batch->rows * bytes);
    }
    served->samples += batch->rows;
    for (uint32_t i = 0; i < batch->rows; i++)
        served->bad += batch->row[i].status != 0;
}

static int next(struct pool *pool, struct consumer *consumer, int fd, struct loaderd_batch *batch,
                const char **message) {
    for (int i = 0; i < 600; i++) {
        bool kick;
        int r = consumer_try(consumer, batch, message);
        if (r != 0)
            return r;
        if (!consumer_announce(consumer, &kick)) {
            if (kick)
                pool_kick(pool);
            struct pollfd p = {.fd = fd, .events = POLLIN};
            char byte;
            if (poll(&p, 1, 100) > 0)
                EXPECT(recv(fd, &byte, 1, MSG_DONTWAIT) == 1);
        }
        consumer_awake(consumer);
    }
    return -ETIMEDOUT;
}

static void run_session(struct pool *pool, struct pipeline *pipeline, const struct pipeline_config *config,
                        struct served *served) {
    int pair[2], r;
    struct session *session;
    struct consumer consumer = {0};
    EXPECT(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    struct session_request request = {.config = *config, .world = 1, .held = 1, .epochs = 1, .wake_fd = pair[1]};
    r = session_new(pool, pipeline, &request, &session, &why);
    if (r < 0)
        ck_abort_msg("session: %s", why.text);
    struct session_info info;
    char error[200];
    session_info(session, 0, &info);
    EXPECT(consumer_attach(&consumer, info.data_fd, info.control_fd, error, sizeof error) == 0);
    struct loaderd_batch batch;
    const char *message = "";
    bool kick;
    while ((r = next(pool, &consumer, pair[0], &batch, &message)) == 1) {
        take_batch(served, &batch, dataset_samples(pipeline_dataset(pipeline)) + batch.rows);
        EXPECT(consumer_release(&consumer, batch.sequence, &kick) == 0);
        if (kick)
            pool_kick(pool);
    }
    if (r != -ENODATA) {
        served->error = r;
        snprintf(served->message, sizeof served->message, "%s", message);
    }
    struct session_statistics statistics;
    session_statistics(session, &statistics);
    served->bytes_in = statistics.bytes_in;
    consumer_detach(&consumer);
    session_close(session);
    for (int i = 0; pool_reap(pool) > 0 && i < 5000; i++)
        usleep(1000);
    close(pair[0]);
}

/* One epoch in order, batches of 3 unless the keys say otherwise, one worker. */
static void serve(const char *const *keys, const char *engine, struct served *ret) {
    struct config daemon;
    struct pipeline_config config;
    struct pool *pool;
    struct pipeline *pipeline;
    *ret = (struct served){0};
    EXPECT(config_init(&daemon) == 0 && pipeline_config_init(&config, "test") == 0);
    daemon.daemon.workers = 1;
    EXPECT(daemon_config_set(&daemon.daemon, "engine", engine, &why) == 0);
    EXPECT(pipeline_config_set(&config, "batch", "3", &why) == 0 &&
           pipeline_config_set(&config, "last", "keep", &why) == 0);
    for (; *keys; keys += 2)
        if (pipeline_config_set(&config, keys[0], keys[1], &why) < 0)
            ck_abort_msg("%s = %s: %s", keys[0], keys[1], why.text);
    if (pool_new(&daemon.daemon, &pool, &why) < 0 || pipeline_new(&config, &daemon.daemon, &pipeline, &why) < 0)
        ck_abort_msg("%s", why.text);
    run_session(pool, pipeline, &config, ret);
    pipeline_unref(pipeline);
    pool_free(pool);
    pipeline_config_deinit(&config);
    config_deinit(&daemon);
}

/* ---- what the writers wrote -------------------------------------------------------------------------------------- */

static void compare(const struct reference *want, const struct served *have) {
    if (have->error)
        ck_abort_msg("%s: %d %s", want->what, have->error, have->message);
    if (have->samples != want->samples || have->fields != want->fields || have->bad)
        ck_abort_msg("%s: %llu samples, %u fields, %u bad", want->what, (unsigned long long)have->samples, have->fields,
                     have->bad);
    for (uint32_t i = 0; i < want->fields; i++) {
        const struct loaderd_field *spec = &have->spec[i];
        bool same = strcmp(have->name[i], want->field[i].name) == 0 && spec->dtype == want->field[i].dtype &&
                    spec->ndim == want->field[i].ndim + 1;
        for (uint32_t k = 0; same && k < want->field[i].ndim; k++)
            same = spec->dims[k + 1] == want->field[i].dims[k];
        if (!same)
            ck_abort_msg("%s: field %u is %s %s, %u dims", want->what, i, have->name[i],
                         loaderd_dtype_name(spec->dtype), spec->ndim);
        if (crc32(0, have->rows[i], (uInt)(have->samples * have->bytes[i])) != want->field[i].crc)
            ck_abort_msg("%s: other bytes in %s", want->what, have->name[i]);
    }
}

/* Is this a dataset that this build leaves out? */
static bool is_left_out(const struct reference *reference) {
    bool json = true, zstd = true;
#ifndef HAVE_LIBJANSSON
    json = false;
#endif
#ifndef HAVE_LIBZSTD
    zstd = false;
#endif
    return (!json && strncmp(reference->what, "mds", 3) == 0) || (!zstd && strcmp(reference->what, "mds zstd") == 0);
}

static void serve_references(const struct reference *reference, size_t count, const char *engine) {
    EXPECT(chdir(data_folder) == 0);
    for (size_t i = 0; i < count; i++) {
        if (is_left_out(&reference[i]))
            continue;
        struct served served;
        serve(reference[i].keys, engine, &served);
        compare(&reference[i], &served);
        served_free(&served);
    }
    EXPECT(chdir(home) == 0);
}

START_TEST(bytes_as_written) {
    static const char *const engines[] = {"pread", "mmap", "uring"};
    serve_references(references, ARRAY_SIZE(references), engines[_i]);
    serve_references(box_references, ARRAY_SIZE(box_references), engines[_i]);
}
END_TEST

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* Opening must fail with `code` and a sentence that holds each of the words (divided by '|'). */
static void refuse_with(const struct dataset_options *options, int code, const char *words) {
    struct dataset *dataset = NULL;
    why = (struct diag)DIAG_INIT;
    int rc = dataset_open(options, &dataset, &why);
    if (rc != code || why.code != code || dataset)
        ck_abort_msg("%s: %d (%d), wanted %d: %s", options->path, rc, why.code, code, why.text);
    char copy[512], *state, *word;
    snprintf(copy, sizeof copy, "%s", words);
    for (word = strtok_r(copy, "|", &state); word; word = strtok_r(NULL, "|", &state))
        if (!strstr(why.text, word))
            ck_abort_msg("'%s' is not in: %s", word, why.text);
}

static void refuse(const char *path, int code, const char *words) {
    refuse_with(&(struct dataset_options){.path = path}, code, words);
}

static const char *data_path(const char *name) {
    static char path[4][2 * PATH_MAX];
    static unsigned turn;
    char *p = path[turn++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", data_folder, name);
    return p;
}

/* ---- rectangles and bytes ---------------------------------------------------------------------------------------- */

START_TEST(boxes_as_they_are_written) {
    static const struct {
        enum box_kind kind;
        const char *form, *json, *text;
        int code;
        uint32_t count;
        const char *words;
        double first[5];
    } row[] = {
        {BOXES_YOLO, NULL, NULL, "", 0, 0, "", {0}},
        {BOXES_YOLO, NULL, NULL, "\r\n  \n", 0, 0, "", {0}},
        {BOXES_YOLO, NULL, NULL, "7 0.5 0.5 0.5 0.25\r\n1\t5e-1 .5 1 1", 0, 2, "", {25, 75, 75, 125, 7}},
        {BOXES_YOLO, NULL, NULL, "7 0.5 0.5 0.5", -EBADMSG, 0, "line 1 has 4 numbers", {0}},
        {BOXES_YOLO,
         NULL,
         NULL,
         "\n7 .5 .5 .5 .5 .5 .5",
         -EBADMSG,
         0,
         "line 2 has more than 5 numbers (a polygon?)",
         {0}},
        {BOXES_YOLO, NULL, NULL, "7 0.5 0.5 0.5 nan", -EBADMSG, 0, "'nan' is no number", {0}},
        {BOXES_YOLO, NULL, NULL, "7 0.5 0.5 0.5 0x1", -EBADMSG, 0, "'0x1' is no number", {0}},
        {BOXES_YOLO, NULL, NULL, ".5 .5 .5 .5 .5", -EBADMSG, 0, "line 1: box 0: its class is no whole number", {0}},
        {BOXES_YOLO, NULL, NULL, "1 50 50 20 20", -EBADMSG, 0, "outside of 0 to 1", {0}},
        {BOXES_YOLO, "cxcywh", NULL, "1 50 60 20 40", 0, 1, "", {40, 40, 60, 80, 1}},
        {BOXES_JSON, NULL, NULL, "{'annotations':[{'bbox':[1,2,3.5,4],'category_id':9}]}", 0, 1, "", {1, 2, 4.5, 6, 9}},
        {BOXES_JSON, NULL, NULL, "{'annotations':[]}", 0, 0, "", {0}},
        {BOXES_JSON, NULL, NULL, "{'annotation':[]}", -EBADMSG, 0, "the JSON has no annotations.bbox", {0}},
        {BOXES_JSON, NULL, NULL, "{'annotations':[{'bbox':[1,2,3,4]}]}", -EBADMSG, 0, "1 boxes and 0 classes", {0}},
        {BOXES_JSON,
         NULL,
         NULL,
         "{'annotations':[{'bbox':[1,2,-3,4],'category_id':9}]}",
         -EBADMSG,
         0,
         "negative width",
         {0}},
        {BOXES_JSON, NULL, NULL, "", -EBADMSG, 0, "no JSON", {0}},
        {BOXES_JSON, NULL, NULL, "{'annotations':[{'bbox':[1,2,3,4],", -EBADMSG, 0, "no JSON", {0}},
        {BOXES_JSON, "xyxy", "b", "{'b':[[1,2,3,4,5],[6,7,8,9,0]]}", 0, 2, "", {1, 2, 3, 4, 5}},
        {BOXES_JSON, "xyxy", "b", "{'b':[[1,2,3,4,5],[6,7,8,9]]}", -EBADMSG, 0, "boxes of 4 numbers and of 5", {0}},
        {BOXES_JSON, "xyxy", "b", "{'b':[3,2,1,4]}", -EBADMSG, 0, "its right edge is left of its left one", {0}},
        {BOXES_JSON, "xyxy", "b", "{'b':[3,2,1,'4']}", -EBADMSG, 0, "something else than a number", {0}},
        {BOXES_JSON, "xyxy", "b,c", "{'c':[1,2],'b':[[1,2,3,4]]}", -EBADMSG, 0, "1 boxes and 2 classes (c)", {0}},
        {BOXES_JSON, "xyxy", "b", "{'b':[1,2,3,4]} x", -EBADMSG, 0, "no JSON", {0}},
        {BOXES_PACKED, NULL, NULL, "12345", -EBADMSG, 0, "5 bytes of boxes", {0}},
    };
    static struct dataset_box box[DATASET_MAX_BOXES];
    for (size_t i = 0; i < ARRAY_SIZE(row); i++) {
        const struct dataset_options options = {.box_form = row[i].form, .box_json = row[i].json};
        struct box_source source;
        uint32_t count = 0;
        char text[200];
        snprintf(text, sizeof text, "%s", row[i].text);
        for (char *c = text; *c && row[i].kind == BOXES_JSON; c++)
            if (*c == '\'')
                *c = '"';
        why = (struct diag)DIAG_INIT;
        EXPECT(boxes_source_init(&source, row[i].kind, &options, &why) == 0);
        int rc = boxes_parse(&source, text, strlen(text), 100, 200, box, &count, &why);
        if (rc != row[i].code || count != row[i].count || !strstr(why.text, row[i].words))
            ck_abort_msg("row %zu, %s: %d, %u boxes: %s", i, text, rc, count, why.text);
        for (int k = 0; count && k < 5; k++) {
            double have = k < 4 ? box[0].side[k] : box[0].class;
            if (have < row[i].first[k] || have > row[i].first[k])
                ck_abort_msg("row %zu: number %d is %g", i, k, have);
        }
    }
}
END_TEST

START_TEST(boxes_refusals) {
    const char *folder = data_path("boxes/yolo/images/val"), *tar = data_path("boxes/coco.tar");
    refuse_with(&(struct dataset_options){.path = folder, .boxes = "beside", .box_form = "xyx"}, -EINVAL,
                "box-form = xyx: wanted is auto, xyxy");
    refuse_with(&(struct dataset_options){.path = folder, .boxes = "/nonexistent"}, -ENOENT, "/nonexistent");
    refuse_with(&(struct dataset_options){.path = folder, .boxes = home}, -ENOENT, "no picture of|has labels|/0.txt");
    refuse_with(&(struct dataset_options){.path = tar, .boxes = "beside"}, -EINVAL,
                "goes with a folder or a list of pictures, this is format webdataset");
    refuse_with(&(struct dataset_options){.path = tar, .wanted_fields = "jpg:image json:boxes", .box_json = "a,b,c"},
                -EINVAL, "box-json = a,b,c: wanted is a path");
    refuse_with(&(struct dataset_options){.path = folder, .bytes = "picture"}, -EINVAL,
                "bytes = picture: there is no such field");
    refuse_with(&(struct dataset_options){.path = data_path("npy/x-u1.npy"), .bytes = "x-u1"}, -EINVAL,
                "bytes = x-u1: this field has a shape");
}
END_TEST

START_TEST(names_of_labels) {
    static const struct {
        const char *path, *beside, *below;
    } row[] = {
        {"images/val/x.jpg", "labels/val/x.txt", "images/val/x.txt"},
        {"a/images/b/images/x.y.png", "a/images/b/labels/x.y.txt", "a/images/b/images/x.y.txt"},
        {"myimages/images2/x", "myimages/images2/x.txt", "myimages/images2/x.txt"},
        {"images", "images.txt", "images.txt"},
        {"/images/.x", "/labels/.x.txt", "/images/.x.txt"},
    };
    char label[64];
    for (size_t i = 0; i < ARRAY_SIZE(row); i++) {
        EXPECT(yolo_label_path(row[i].path, true, label, sizeof label));
        ck_assert_str_eq(label, row[i].beside);
        EXPECT(yolo_label_path(row[i].path, false, label, sizeof label));
        ck_assert_str_eq(label, row[i].below);
        EXPECT(!yolo_label_path(row[i].path, true, label, strlen(row[i].beside)));
    }
}
END_TEST

/* More than a row has room for is a bad sample that says what to do. */
START_TEST(overflow_of_rows) {
    struct served served;
    const char *bytes[] = {"dataset", data_path("boxes/yolo/images/val"), "bytes", "image", "bytes-cap", "100", NULL};
    serve(bytes, "pread", &served);
    EXPECT(served.error == -EBADMSG && strstr(served.message, "bytes-cap = 100; raise it, or set on-overflow"));
    served_free(&served);
    const char *boxes[] = {"dataset", data_path("boxes/yolo/images/val"),
                           "boxes",   "beside",
                           "box-max", "7",
                           "augment", "stretch",
                           "image",   "16",
                           NULL};
    serve(boxes, "pread", &served);
    EXPECT(served.error == -EBADMSG && strstr(served.message, "8 boxes are left, box-max = 7"));
    served_free(&served);
}
END_TEST

/* ---- patterns ---------------------------------------------------------------------------------------------------- */

/* Python: braceexpand.braceexpand(pattern). */
START_TEST(braces_in_paths) {
    static const struct {
        const char *pattern, *want;
    } row[] = {
        {"s-{000..003}.tar", "s-000.tar s-001.tar s-002.tar s-003.tar"},
        {"s-{8..11}", "s-8 s-9 s-10 s-11"},
        {"s-{3..1}", "s-3 s-2 s-1"},
        {"{a,b}-{0..1}", "a-0 a-1 b-0 b-1"},
        {"x{a,b{1..2}}y", "xay xb1y xb2y"},
        {"{a,}x,tail", "ax x tail"},
        {"no{brace}", "no{brace}"},
        {"{0..1}{00..01}", "000 001 100 101"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(row); i++) {
        struct paths paths;
        char have[256] = "";
        EXPECT(paths_collect(&paths, row[i].pattern, &why) == 0);
        for (size_t k = 0; k < paths_count(&paths); k++)
            strcat(strcat(have, k ? " " : ""), paths_get(&paths, k));
        ck_assert_str_eq(have, row[i].want);
        paths_deinit(&paths);
    }
    struct paths paths;
    ck_assert_int_eq(paths_collect(&paths, "{0..9999}{0..9999}", &why), -EINVAL);
    EXPECT(strstr(why.text, "more than 1000000 files"));
    paths_deinit(&paths);
}
END_TEST

/* ---- npy --------------------------------------------------------------------------------------------------------- */

START_TEST(npy_refusals) {
    char path[3 * PATH_MAX];
    refuse(data_path("npy/objects.npy"), -EINVAL, "objects.npy|Python objects|'|O'|nothing is unpickled");
    refuse(data_path("npy/scalar.npy"), -EINVAL, "scalar.npy|shape ()");
    refuse(data_path("npy/complex.npy"), -EINVAL, "complex.npy|'<c8' is not supported");
    copy_cut("npy/v1.npy", "cut.npy", 1);
    refuse("cut.npy", -EINVAL, "cut.npy|describes 48 bytes|holds 47");
    snprintf(path, sizeof path, "%s/npy/v1.npy,%s/npy/labels.npy", data_folder, data_folder);
    refuse(path, -EINVAL, "v1.npy holds 4 samples|labels.npy holds 9");
    snprintf(path, sizeof path, "%s/npy/v1.npy,%s/npy/v1.npy", data_folder, data_folder);
    refuse(path, -EINVAL, "both named v1|NAME=");
    snprintf(path, sizeof path, "a=%s/npy/v1.npy,b=nowhere.npy", data_folder);
    refuse(path, -ENOENT, "nowhere.npy");
    snprintf(path, sizeof path, "a b=%s/npy/v1.npy", data_folder);
    refuse(path, -EINVAL, "letters, digits");
    refuse_with(&(struct dataset_options){.path = data_path("npy/v1.npy"), .format = "npy", .flat = true}, -EINVAL,
                "'flat' has no meaning for format npy");
    make_file("gz.npy", "\x1f\x8b\x08\0\0\0\0\0\0\3abc", 13);
    refuse_with(&(struct dataset_options){.path = "gz.npy", .format = "npy"}, -EINVAL, "gz.npy is gzip data");
}
END_TEST

/* An array in Fortran order that is too large to be put in order says so before it is read. */
START_TEST(npy_large_fortran) {
    char header[129];
    snprintf(header, sizeof header, "\223NUMPY\1%cv%c%-118s", 0, 0,
             "{'descr': '<f4', 'fortran_order': True, 'shape': (1000000, 1000), }");
    make_file("big.npy", header, 128);
    EXPECT(truncate("big.npy", 128 + 4000000000) == 0);
    refuse("big.npy", -EFBIG, "big.npy|Fortran order|4000000000 bytes|ascontiguousarray");
}
END_TEST

/* ---- idx --------------------------------------------------------------------------------------------------------- */

START_TEST(idx_refusals) {
    char path[3 * PATH_MAX];
    make_file("html.gz", "<!DOCTYPE html>\n<title>404</title>", 34);
    refuse_with(&(struct dataset_options){.path = "html.gz", .format = "idx"}, -EINVAL,
                "html.gz|0x3c21444f|0x00000803|0x00000801");
    make_file("train-images-idx3-ubyte", "\x1f\x8b\x08\0\0\0\0\0\0\3abc", 13); /* FMT-06 */
    refuse("train-images-idx3-ubyte", -EINVAL, "train-images-idx3-ubyte is gzip data; decompress it first");
    refuse_with(&(struct dataset_options){.path = "train-images-idx3-ubyte", .format = "idx"}, -EINVAL, "is gzip data");
    copy_cut("idx/images-idx3-ubyte", "cut", 100);
    refuse("cut", -EINVAL, "cut: the header describes 6272 bytes|holds 6172");
    copy_cut("idx/images-idx3-ubyte", "header", 6272 + 3);
    refuse("header", -EINVAL, "header: IDX file of 3 dimensions ends in its header, at byte 13");
    snprintf(path, sizeof path, "%s/idx/images-idx3-ubyte,%s/idx/x08", data_folder, data_folder);
    refuse(path, -EINVAL, "holds 8 samples|holds 4");
}
END_TEST

/* ---- CIFAR ------------------------------------------------------------------------------------------------------- */

START_TEST(cifar_classes) {
    struct dataset *dataset = NULL;
    const char *const *name;
    const uint64_t *samples;
    EXPECT(dataset_open(&(struct dataset_options){.path = data_path("cifar10")}, &dataset, &why) == 0);
    ck_assert_str_eq(dataset_format(dataset), "cifar10");
    ck_assert_uint_eq(dataset_classes(dataset, &name, &samples), 10);
    ck_assert_str_eq(name[0], "airplane");
    ck_assert_str_eq(name[9], "truck");
    EXPECT(samples[1] == 2 && samples[3] == 1 && samples[9] == 0);
    ck_assert_uint_eq(dataset_remarks(dataset), 0);
    char text[PATH_MAX];
    EXPECT(dataset_name(dataset, 3, text, sizeof text) > 0 && strstr(text, "data_batch_2.bin#1"));
    dataset_free(dataset);
    EXPECT(dataset_open(&(struct dataset_options){.path = data_path("cifar100")}, &dataset, &why) == 0);
    ck_assert_uint_eq(dataset_classes(dataset, &name, &samples), 100);
    EXPECT(strcmp(name[93], "c93") == 0 && samples[93] == 1);
    dataset_free(dataset);
}
END_TEST

START_TEST(cifar_refusals) {
    const struct dataset_options options = {.path = "x.bin", .format = "cifar10"};
    copy_cut("cifar10/test_batch.bin", "x.bin", 1);
    refuse_with(&options, -EINVAL, "x.bin|3072 bytes|no multiple of the record of 3073 bytes");
    copy_cut("cifar10/test_batch.bin", "x.bin", 0);
    EXPECT(truncate("x.bin", 0) == 0 && truncate("x.bin", 3073) == 0);
    struct dataset *dataset = NULL;
    EXPECT(dataset_open(&options, &dataset, &why) == 0);
    const char *const *name;
    EXPECT(dataset_classes(dataset, &name, NULL) == 10 && strcmp(name[7], "7") == 0);
    EXPECT(dataset_remarks(dataset) == 1 && strstr(dataset_remark(dataset, 0), "no batches.meta.txt"));
    dataset_free(dataset);
    uint8_t *record = calloc(1, 3073);
    record[0] = 10;
    make_file("x.bin", record, 3073);
    free(record);
    refuse_with(&options, -EINVAL, "x.bin: label 10 of record 0 is none of the 10 classes");
    refuse_with(&(struct dataset_options){.path = ".", .format = "cifar100"}, -ENOENT, "train.bin");
}
END_TEST

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

static uint64_t tok(uint64_t s, uint64_t i) {
    return ((((s * 1000003 + i) * UINT64_C(2654435761)) & UINT32_MAX) >> 16) % 50257;
}

/* A token file of llm.c whose header says `says`, and that holds `count` ids. */
static void make_tokens(const char *path, uint64_t s, uint32_t says, size_t count) {
    uint8_t *bytes = calloc(1, 1024 + 2 * count);
    const uint32_t header[3] = {20240520, 1, says};
    EXPECT(bytes != NULL);
    memcpy(bytes, header, sizeof header);
    for (size_t i = 0; i < count; i++) {
        uint16_t id = (uint16_t)tok(s, i);
        memcpy(bytes + 1024 + 2 * i, &id, 2);
    }
    make_file(path, bytes, 1024 + 2 * count);
    free(bytes);
}

/* CRC-32 of a batch as llm.c's trainer gets it: B x T inputs, then the targets, of windows first, first + 1, ... */
static uLong trainer_crc(const struct served *served, uint64_t first, uint32_t b, uint32_t t) {
    uLong crc = 0;
    for (int target = 0; target < 2; target++)
        for (uint32_t row = 0; row < b; row++)
            crc = crc32(crc, served->rows[0] + (first + row) * served->bytes[0] + 4 * target, 4 * t);
    return crc;
}

/* Values that karpathy/llm.c's own loader gives for these three shards, B = 2, T = 16; a global sample of W ranks is 2 W
 * windows of a shard. */
START_TEST(tokens_as_llmc_reads_them) {
    static const struct {
        uint64_t window; /* of the set: shard 0 has 62, shard 1 48 */
        uint32_t crc;
    } row[] = {
        {0, 0x0c5f5fed},
        {4, 0xc9dea9fa},
        {8, 0xed89c8f5},
        {12, 0x1538be2e},
        {16, 0xc6268fc0},
        {2, 0x318f0ae7},
        {6, 0xb1a8f03d},
        {10, 0x6cf8b45f},
        {14, 0x1355a85e},
        {18, 0xa78b53fc},
        {14 * 4, 0x5638a48f},
        {62, 0xdd2b3f83},
        {62 + 4, 0x777540b6},
        {62 + 48 + 16, 0x86927c45},
        {62 + 48 + 76, 0xdc5a222a},
        {62 + 48 + 4, 0x6744cf88},
    };
    static const uint32_t count[] = {1000, 777, 1281}, crc_of_file[] = {0xaed0230f, 0x7ce19b2c, 0xf3ec4819};
    struct served served;
    for (uint32_t s = 0; s < 3; s++) {
        char name[32];
        size_t length;
        snprintf(name, sizeof name, "tokens/tok_%04u.bin", s);
        uint8_t *bytes = load(name, &length);
        ck_assert_uint_eq(length, 1024 + 2 * count[s]);
        ck_assert_uint_eq(crc32(0, bytes, (uInt)length), crc_of_file[s]);
        free(bytes);
    }
    const char *keys[] = {"dataset", data_path("tokens/tok_{0000..0002}.bin"), "tokens", "16", "batch", "8", NULL};
    serve(keys, "pread", &served);
    ck_assert_uint_eq(served.samples, 62 + 48 + 80);
    for (size_t i = 0; i < ARRAY_SIZE(row); i++)
        ck_assert_uint_eq(trainer_crc(&served, row[i].window, 2, 16), row[i].crc);
    served_free(&served);
}
END_TEST

/* FMT-13: floor((N - 1) / T) windows, targets complete; too short is an error. */
START_TEST(windows_of_tokens) {
    static const struct {
        uint32_t ids, windows;
    } row[] = {{9, 1}, {16, 1}, {17, 2}, {18, 2}, {1280, 159}, {1281, 160}};
    for (size_t i = 0; i < ARRAY_SIZE(row); i++) {
        struct served served;
        make_tokens("x.bin", 0, row[i].ids, row[i].ids);
        serve((const char *const[]){"dataset", "x.bin", "tokens", "8", NULL}, "pread", &served);
        ck_assert_uint_eq(served.samples, row[i].windows);
        for (uint64_t k = 0; k < served.samples; k++)
            for (uint64_t n = 0; n < 9; n++) {
                int32_t id;
                memcpy(&id, served.rows[0] + k * served.bytes[0] + 4 * n, 4);
                ck_assert_uint_eq((uint64_t)id, tok(0, 8 * k + n));
            }
        served_free(&served);
    }
    struct dataset_options options = {.path = "x.bin", .tokens = 8};
    make_tokens("x.bin", 0, 8, 8);
    refuse_with(&options, -ENODATA, "x.bin holds 8 tokens|tokens = 8|need 9; lower tokens");
    make_tokens("x.bin", 0, 1000, 900);
    refuse_with(&options, -EINVAL, "x.bin: the header says 1000 tokens of 2 bytes, the file holds 900");
    make_tokens("x.bin", 0, 64, 64); /* a global sample of B = 2, T = 16, two ranks needs 65 */
    options.tokens = 64;
    refuse_with(&options, -ENODATA, "holds 64 tokens|need 65");
    make_tokens("x.bin", 9, 65, 65);
    struct served served;
    serve((const char *const[]){"dataset", "x.bin", "tokens", "16", "batch", "4", NULL}, "pread", &served);
    ck_assert_uint_eq(served.samples, 4);
    ck_assert_uint_eq(trainer_crc(&served, 2, 2, 16), 0x736c8089); /* rank 1 of 2: ends on the file's last id */
    served_free(&served);
}
END_TEST

/* FMT-12: the width comes from a header or a key. */
START_TEST(tokens_refusals) {
    uint32_t ids[1001];
    for (uint32_t i = 0; i < ARRAY_SIZE(ids); i++)
        ids[i] = i * 70;
    struct dataset_options options = {.path = "x.bin", .format = "tokens", .tokens = 8};
    make_file("x.bin", ids, sizeof ids);
    refuse_with(&options, -EINVAL, "x.bin has no header|token-dtype = u16");
    options.token_dtype = LOADERD_U32;
    EXPECT(truncate("x.bin", sizeof ids - 1) == 0);
    refuse_with(&options, -EINVAL, "x.bin has 4003 bytes, no whole number of ids of 4 bytes");
    options.token_dtype = LOADERD_U16;
    refuse_with(&options, -EINVAL, "ids of 2 bytes");
    make_tokens("x.bin", 0, 100, 100);
    options.token_dtype = LOADERD_U32;
    refuse_with(&options, -EINVAL, "header says ids of 2 bytes, token-dtype says 4");
    const uint32_t other[3] = {20240520, 2, 100};
    make_file("x.bin", other, sizeof other);
    refuse("x.bin", -EINVAL, "magic 20240520 has version 2, wanted 1");
    make_file("gz.bin", "\x1f\x8b\x08\0\0\0\0\0\0\3abc", 13);
    refuse_with(&(struct dataset_options){.path = "gz.bin", .token_dtype = LOADERD_U16}, -EINVAL,
                "gz.bin is gzip data");
    copy_cut("tokens/meg-i32.idx", "m.idx", 0);
    copy_cut("tokens/meg-i32.bin", "m.bin", 1);
    refuse("m", -EINVAL, "m.idx describes 144 bytes of ids, m.bin holds 143");
    size_t length;
    uint8_t *index = load("tokens/meg-i32.idx", &length);
    index[34 + 12 + 8]++; /* the second pointer */
    make_file("m.idx", index, length);
    refuse("m.idx", -EINVAL, "m.idx|at byte 41, wanted 40|back to back");
    index[17] = 6;
    make_file("m.idx", index, length);
    refuse("m.idx", -EINVAL, "m.idx|floats");
    make_file("m.idx", index, 60);
    index[17] = 4;
    make_file("m.idx", index, 60);
    refuse("m.idx", -EINVAL, "m.idx|3 sequences and 4 documents is longer than its file of 60 bytes");
    free(index);
    char path[3 * PATH_MAX];
    snprintf(path, sizeof path, "%s/tokens/tok_0000.bin,%s/tokens/wide.bin", data_folder, data_folder);
    refuse_with(&(struct dataset_options){.path = path, .tokens = 3}, -EINVAL, "wide.bin holds ids of 4 bytes|of 2");
}
END_TEST

START_TEST(vocabulary_of_tokens) {
    struct served served;
    const char *keys[] = {
        "dataset", data_path("tokens/wide.bin"), "tokens", "3", "vocabulary", "65536", "on-error", "blank", NULL};
    serve(keys, "pread", &served);
    EXPECT(served.samples == 2 && served.bad == 1);
    served_free(&served);
    keys[7] = "fail";
    serve(keys, "pread", &served);
    ck_assert_int_eq(served.error, -EBADMSG);
    EXPECT(strstr(served.message, "wide.bin#1") && strstr(served.message, "token 5 of the file is 65536, vocabulary"));
    served_free(&served);
}
END_TEST

/* Windows far behind 4 GiB; neighbours are read together, their common ids once. */
START_TEST(tokens_far_out) {
    const uint64_t ids = 2600000000u, window = 8, at = 2500000000u; /* byte 5,000,000,000 */
    struct dataset *dataset = NULL;
    struct location location;
    uint16_t id[9];
    for (uint16_t i = 0; i < 9; i++)
        id[i] = (uint16_t)(60000 + i);
    make_file("big", "", 0);
    int fd = open("big", O_RDWR);
    EXPECT(fd >= 0 && ftruncate(fd, (off_t)(2 * ids)) == 0);
    EXPECT(pwrite(fd, id, sizeof id, (off_t)(2 * at)) == sizeof id);
    close(fd);
    const struct dataset_options options = {.path = "big", .token_dtype = LOADERD_U16, .tokens = window};
    EXPECT(dataset_open(&options, &dataset, &why) == 0);
    ck_assert_uint_eq(dataset_samples(dataset), (ids - 1) / window);
    dataset_locate(dataset, at / window, &location);
    ck_assert_uint_eq(location.extent[0].offset, UINT64_C(5000000000));
    dataset_free(dataset);
    const char *keys[] = {"dataset", "big",    "token-dtype",         "u16", "tokens", "8", "batch",
                          "16",      "subset", "312500000-312500015", NULL};
    struct served served;
    serve(keys, "uring", &served);
    ck_assert_uint_eq(served.samples, 16);
    ck_assert_uint_eq(served.bytes_in, (16 * window + 1) * 2);
    for (uint32_t i = 0; i < 9; i++)
        EXPECT(((const int32_t *)(const void *)served.rows[0])[i] == (int32_t)(60000 + i));
    served_free(&served);
}
END_TEST

/* ---- webdataset -------------------------------------------------------------------------------------------------- */

static struct dataset *open_with(const struct dataset_options *options) {
    struct dataset *dataset = NULL;
    why = (struct diag)DIAG_INIT;
    if (dataset_open(options, &dataset, &why) < 0)
        ck_abort_msg("%s: %s", options->path, why.text);
    return dataset;
}

static bool has_remark(const struct dataset *dataset, const char *text) {
    for (uint32_t i = 0; i < dataset_remarks(dataset); i++)
        if (strstr(dataset_remark(dataset, i), text))
            return true;
    return false;
}

/* Opens a path without an index: so many samples, and remarks that hold the words (divided by '|'). */
static void expect_remarks(const char *path, uint64_t samples, const char *words) {
    struct dataset *dataset = open_with(&(struct dataset_options){.path = path, .index = "none"});
    char copy[512], *state, *word;
    ck_assert_uint_eq(dataset_samples(dataset), samples);
    snprintf(copy, sizeof copy, "%s", words);
    for (word = strtok_r(copy, "|", &state); word; word = strtok_r(NULL, "|", &state))
        if (!has_remark(dataset, word))
            ck_abort_msg("%s: no '%s' in %u remarks: %s", path, word, dataset_remarks(dataset),
                         dataset_remark(dataset, 0));
    EXPECT(*words || dataset_remarks(dataset) == 0);
    dataset_free(dataset);
}

/* webdataset.tariterators: base_plus_ext(), skip_meta, suffixes in lower case. */
START_TEST(webdataset_names) {
    static const struct {
        const char *name, *key, *suffix;
    } row[] = {
        {"a.jpg", "a", "jpg"},           {"v1.0/a.b.SEG.jpg", "v1.0/a", "b.seg.jpg"},
        {"a/b.c/d", NULL, NULL},         {".hidden.jpg", NULL, NULL},
        {"d/.hidden.jpg", NULL, NULL},   {"nodot", NULL, NULL},
        {"__x__", NULL, NULL},           {"__x__/a.jpg", NULL, NULL},
        {"__x.jpg", "__x", "jpg"},       {"a/__x__/b.jpg", "a/__x__/b", "jpg"},
        {"__x__y.jpg", "__x__y", "jpg"}, {"a.", "a", ""},
    };
    for (size_t i = 0; i < ARRAY_SIZE(row); i++) {
        char suffix[32] = "";
        size_t key = 0;
        bool have = webdataset_split(row[i].name, &key, suffix, sizeof suffix);
        if (have != (row[i].key != NULL) || (have && (strlen(row[i].key) != key || strcmp(suffix, row[i].suffix))))
            ck_abort_msg("%s: %d %zu %s", row[i].name, have, key, suffix);
    }
}
END_TEST

START_TEST(webdataset_refusals) {
    const char *path = data_path("wds/dots.tar");
    refuse(path, -EINVAL,
           "dots.tar: no member is a picture by its suffix; its suffixes are b.seg.jpg b.cls|set fields");
    refuse_with(&(struct dataset_options){.path = path, .wanted_fields = "seg.jpg:image"}, -EINVAL,
                "no member has the suffix seg.jpg (field image); its suffixes are b.seg.jpg b.cls");
    refuse_with(&(struct dataset_options){.path = path, .wanted_fields = "b.cls"}, -EINVAL, "a ':' and a name");
    refuse_with(&(struct dataset_options){.path = path, .wanted_fields = "a:x b:x"}, -EINVAL, "the same name");
    refuse_with(&(struct dataset_options){.path = path, .wanted_fields = "a;;b:x"}, -EINVAL, "an empty source");
    refuse_with(&(struct dataset_options){.path = data_path("npy/v1.npy"), .wanted_fields = "a:x"}, -EINVAL,
                "'fields' has no meaning for format npy");
    refuse(data_path("wds/gzip.tar"), -EINVAL, "gzip.tar is gzip data; decompress it first"); /* FMT-06 */
    refuse_with(&(struct dataset_options){.path = data_path("wds/gzip.tar"), .format = "webdataset"}, -EINVAL,
                "gzip.tar is gzip data");
    refuse(data_path("wds/sparse.tar"), -EINVAL, "sparse.tar: member a.jpg is sparse");
    refuse("nowhere-{000..003}.tar", -ENOENT, "nowhere-000.tar");
    make_file("text.tar", "hello", 5);
    refuse_with(&(struct dataset_options){.path = "text.tar", .format = "webdataset"}, -EINVAL,
                "text.tar: no member is a picture|suffixes are none");
}
END_TEST

/* FMT-04, and shards that were cut or damaged at any byte: what is whole is served, what is not is told. */
START_TEST(webdataset_remarks) {
    expect_remarks(data_path("wds/ustar.tar"), 4, "");
    expect_remarks(data_path("wds/apart.tar"), 2, "");
    expect_remarks(data_path("wds/twice.tar"), 2,
                   "1 member is there twice, e.g. 0.jpg: the last one counts|"
                   "1 of 3 samples left out that lack a field, e.g. 2 has no cls (label)");
    size_t length;
    uint8_t *bytes = load("wds/apart.tar", &length);
    memcpy(bytes + 512 * 7, "x", 1); /* the text of 0.cls; each JPEG has two blocks */
    make_file("x.tar", bytes, length);
    expect_remarks("x.tar", 1, "member 0.cls is no integer but 'x'|1 of 2 samples left out");
    free(bytes);
    bytes = load("wds/ustar.tar", &length);
    bytes[2560 + 30] ^= 1; /* in the second sample's first header */
    make_file("x.tar", bytes, length);
    expect_remarks("x.tar", 1,
                   "x.tar: no tar header (its checksum is wrong) at byte 2560: what follows is lost|1 samples");
    free(bytes);
    copy_cut("wds/ustar.tar", "x.tar", 1024 + 512); /* the last cls is cut */
    expect_remarks("x.tar", 3, "x.tar was cut: it ends at byte|000003.cls, which is lost|1 of 4 samples left out");
    for (size_t cut = 1; cut < length; cut += 97) {
        struct dataset *dataset = NULL;
        copy_cut("wds/ustar.tar", "x.tar", cut);
        if (dataset_open(&(struct dataset_options){.path = "x.tar", .index = "none", .format = "webdataset"}, &dataset,
                         &why) == 0) {
            EXPECT(dataset_samples(dataset) >= 1 && dataset_samples(dataset) <= 4);
            EXPECT(dataset_samples(dataset) == 4 || dataset_remarks(dataset) > 0);
        }
        dataset_free(dataset);
    }
}
END_TEST

static void make_old(const char *path, time_t seconds) {
    const struct timespec times[2] = {{seconds, 5}, {seconds, 5}};
    EXPECT(utimensat(AT_FDCWD, path, times, 0) == 0);
}

/* The index of shards: read again, forgotten when a shard, or what is asked of it, changes. */
START_TEST(index_of_shards) {
    const struct dataset_options options = {.path = "{a,b}.tar", .index = "the.index"};
    struct dataset_options other = options;
    struct location location[2];
    uint8_t print[2][16];
    other.wanted_fields = "jpg:image";
    copy_cut("wds/ustar.tar", "a.tar", 0);
    copy_cut("wds/pax.tar", "b.tar", 0);
    for (int round = 0; round < 6; round++) {
        make_old("a.tar", 1600000000 + (round >= 4));
        make_old("b.tar", 1600000000);
        struct dataset *dataset = open_with(round == 2 ? &other : &options);
        bool read = strncmp(dataset_index_note(dataset), "read from", 9) == 0;
        if (read != (round == 1 || round == 5))
            ck_abort_msg("round %d: %s", round, dataset_index_note(dataset));
        ck_assert_uint_eq(dataset_samples(dataset), 8);
        dataset_locate(dataset, 6, &location[round & 1]);
        if (round < 2)
            dataset_fingerprint(dataset, print[round]);
        const uint64_t *first;
        EXPECT(dataset_shards(dataset, &first) == 2 && first[1] == 4);
        char name[PATH_MAX];
        EXPECT(dataset_name(dataset, 6, name, sizeof name) > 0 && strncmp(name, "b.tar#2 (ddd", 12) == 0);
        dataset_free(dataset);
        EXPECT(location[round & 1].extents == 1 && (round == 2 || location[round & 1].value[1] == 8));
    }
    EXPECT(location[0].extent[0].offset == location[1].extent[0].offset);
    EXPECT(memcmp(print[0], print[1], 16) == 0);
    struct stat status;
    EXPECT(stat("the.index", &status) == 0 && status.st_size <= 256 + 8 * 16 + 2 * 32 + 64);
}
END_TEST

/* ---- tfrecord ---------------------------------------------------------------------------------------------------- */

START_TEST(tfrecord_refusals) {
    const char *path = data_path("tfrecord/a.tfrecord");
    refuse_with(
        &(struct dataset_options){.path = path, .wanted_fields = "image/encodet:image"}, -EINVAL,
        "a.tfrecord: the first record has no feature image/encodet (field image); it has|image/encoded|filename");
    refuse(data_path("tfrecord/plain.tfrecord"), -EINVAL, "no feature of the first record is a picture; it has|score");
    refuse(data_path("tfrecord/gzip.tfrecord"), -EINVAL,
           "gzip.tfrecord is gzip data; decompress it first"); /* FMT-06 */
    refuse_with(&(struct dataset_options){.path = data_path("tfrecord/gzip.tfrecord"), .format = "tfrecord"}, -EINVAL,
                "gzip.tfrecord is gzip data");
    make_file("text", "hello, this is text", 19);
    refuse_with(&(struct dataset_options){.path = "text", .format = "tfrecord"}, -EINVAL,
                "text is no TFRecord file: the CRC of the first length is wrong");
    copy_cut("tfrecord/b.tfrecord", "cut", 100);
    refuse("cut", -EINVAL, "cut: its first record of|is not whole");
    /* as files of two others whose features differ */
    char both[3 * PATH_MAX];
    snprintf(both, sizeof both, "%s/tfrecord/plain.tfrecord,%s", data_folder, path);
    struct served served;
    const char *keys[] = {"dataset", both, "fields", "n:label", "on-error", "blank", "label-dtype", "i64", NULL};
    serve(keys, "pread", &served);
    EXPECT(served.samples == 7 && served.bad == 4);
    served_free(&served);
    keys[5] = "fail";
    serve(keys, "pread", &served);
    EXPECT(served.error == -EBADMSG && strstr(served.message, "a.tfrecord#0: the feature n (field label) is missing"));
    served_free(&served);
}
END_TEST

/* FMT-08: 100 records of 1 kB; a byte of record 41's data is flipped: 99 are delivered, and the one is named. */
static void make_hundred(uint8_t **ret, size_t *ret_length) {
    size_t length;
    uint8_t *one = load("tfrecord/b.tfrecord", &length), *all = malloc(100 * length);
    EXPECT(all != NULL);
    for (int i = 0; i < 100; i++)
        memcpy(all + (size_t)i * length, one, length);
    free(one);
    *ret = all;
    *ret_length = length;
}

START_TEST(tfrecord_flipped_byte) {
    size_t length;
    uint8_t *all;
    char want[200];
    struct served served;
    make_hundred(&all, &length);
    all[41 * length + 12 + length / 2] ^= 4;
    make_file("x.tfrecord", all, 100 * length);
    const char *keys[] = {"dataset", "x.tfrecord", "on-error", "blank", "image", "8", "verify-crc", "yes", NULL};
    for (int mapped = 0; mapped < 2; mapped++) {
        keys[3] = "blank";
        serve(keys, mapped ? "mmap" : "pread", &served);
        EXPECT(served.samples == 100 && served.bad == 1);
        served_free(&served);
        keys[3] = "fail";
        serve(keys, mapped ? "mmap" : "pread", &served);
        snprintf(want, sizeof want, "x.tfrecord#41: record 41 at byte %zu: data CRC is", 41 * length);
        if (served.error != -EBADMSG || !strstr(served.message, want))
            ck_abort_msg("%d %s, wanted %s", served.error, served.message, want);
        served_free(&served);
    }
    keys[7] = "no"; /* the picture may decode, or not; no CRC is spoken of */
    serve(keys, "pread", &served);
    EXPECT(!strstr(served.message, "CRC"));
    served_free(&served);
    /* a length: what follows is lost */
    all[41 * length + 12 + length / 2] ^= 4;
    all[41 * length + 1] ^= 1;
    make_file("x.tfrecord", all, 100 * length);
    snprintf(want, sizeof want,
             "record 41 at byte %zu: the CRC of its length is wrong: this record and what follows are lost",
             41 * length);
    expect_remarks("x.tfrecord", 41, want);
    all[41 * length + 1] ^= 1;
    for (size_t cut = 1; cut < 2 * length; cut += 53) {
        make_file("x.tfrecord", all, 100 * length - cut);
        expect_remarks("x.tfrecord", cut <= length ? 99 : 98,
                       cut % length == 0 ? ""
                       : cut < length    ? "was cut|inside of record 99"
                                         : "inside of record 98");
    }
    free(all);
}
END_TEST

/* ---- mds --------------------------------------------------------------------------------------------------------- */

#ifdef HAVE_LIBJANSSON

static void make_mds(const char *index, const void *shard, size_t length) {
    mkdir("mds", 0755);
    make_file("mds/index.json", index, strlen(index));
    make_file("mds/shard.00000.mds", shard, length);
}

START_TEST(mds_refusals) {
    const char *path = data_path("mds/numbers");
    refuse_with(&(struct dataset_options){.path = path, .wanted_fields = "p:x"}, -EINVAL,
                "column p has the encoding pkl|nothing is unpickled");
    refuse_with(&(struct dataset_options){.path = path, .wanted_fields = "q:x"}, -EINVAL,
                "has no column q (field x); its columns are a b c h p raw t u");
    expect_remarks(data_path("mds/pickled"), 3, "column p is pickled: it is not read");
    refuse(path, -EINVAL, "more than 4 fields that are no labels: choose by fields");
    size_t length, index_length;
    uint8_t *shard = load("mds/photos/shard.00000.mds", &length);
    char *index = (char *)load("mds/photos/index.json", &index_length);
    make_mds(index, shard, length);
    expect_remarks("mds", 4, "");
    make_mds(index, shard, length - 100);
    expect_remarks("mds", 3,
                   "shard.00000.mds was cut or is damaged: sample 3 ends at byte|served are the 3 samples before "
                   "it, 1 are lost");
    make_mds(index, shard, 20);
    refuse("mds", -EINVAL, "shard.00000.mds has 20 bytes: it ends in the table of its 4 samples");
    shard[0] = 5;
    make_mds(index, shard, length);
    refuse("mds", -EINVAL, "holds 5 samples|index.json says 4");
    char *encoding = strstr(index, "\"str\"");
    memcpy(encoding, "\"pil\"", 5);
    shard[0] = 4;
    make_mds(index, shard, length);
    refuse_with(&(struct dataset_options){.path = "mds", .wanted_fields = "note:x"}, -EINVAL,
                "column note has the encoding pil|raw pixels of a Pillow mode; write it as png or jpeg");
    make_mds("{\"shards\": [{\"format\": \"mds\"}", shard, length);
    refuse("mds", -EINVAL, "index.json, line 1");
    char *name = strstr(index, "shard.00000.mds");
    memcpy(name, "../../../aa.mds", 15);
    make_mds(index, shard, length);
    refuse("mds", -EINVAL, "basename is no name below the folder");
    free(shard);
    free(index);
}
END_TEST

/* A record whose columns do not fit is a bad sample. */
START_TEST(mds_bad_record) {
    size_t length, index_length;
    uint8_t *shard = load("mds/photos/shard.00000.mds", &length);
    char *index = (char *)load("mds/photos/index.json", &index_length);
    uint32_t offset;
    memcpy(&offset, shard + 4 + 4 * 2, 4);
    shard[offset + 2] = 1; /* the length of its first column becomes larger by 65536 */
    make_mds(index, shard, length);
    struct served served;
    const char *keys[] = {"dataset", "mds", "image", "8", "on-error", "fail", NULL};
    serve(keys, "mmap", &served);
    EXPECT(served.error == -EBADMSG && strstr(served.message, "shard.00000.mds#2: column note has 65538"));
    served_free(&served);
    keys[5] = "blank";
    serve(keys, "pread", &served);
    EXPECT(served.samples == 4 && served.bad == 1);
    served_free(&served);
    free(shard);
    free(index);
}
END_TEST

#endif

int main(void) {
    Suite *suite = suite_create("formats");
    TCase *common = tcase_create("all");
    /* clang-format off */
const TTest *const tests[] = {
        boxes_as_they_are_written,
        boxes_refusals,
        names_of_labels,
        overflow_of_rows,
        braces_in_paths,
        npy_refusals,
        npy_large_fortran,
        idx_refusals,
        cifar_classes,
        cifar_refusals,
        tokens_as_llmc_reads_them,
        windows_of_tokens,
        tokens_refusals,
        vocabulary_of_tokens,
        tokens_far_out,
        webdataset_names,
        webdataset_refusals,
        webdataset_remarks,
        index_of_shards,
        tfrecord_refusals,
        tfrecord_flipped_byte,
#ifdef HAVE_LIBJANSSON
        mds_refusals,
        mds_bad_record,
#endif
    };
    /* clang-format on */
    tcase_add_checked_fixture(common, set_up, tear_down);
    tcase_set_timeout(common, 120);
    tcase_add_loop_test(common, bytes_as_written, 0, 3);
    for (size_t i = 0; i < ARRAY_SIZE(tests); i++)
        tcase_add_test(common, tests[i]);
    suite_add_tcase(suite, common);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
