/* SPDX-License-Identifier: MIT */
/*
 * Datasets: order, labels and places of samples against expectations that others computed (Python's sorted(os.walk()),
 * numpy's .npy files, OpenSSL's SipHash, a TFRecord made with Python and zlib), or by law: an index gives what the scan
 * gave, a damaged one never anything else. Works in a folder of its own below $TMPDIR.
 */
#include "dataset/format.h"

#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            ck_abort_msg("line %d: %s", __LINE__, #condition);                                                         \
    } while (0)

/* The C library's, counted. */
static unsigned stats, directory_reads, scattered;

int fstatat(int fd, const char *restrict path, struct stat *restrict status, int flags) {
    stats++;
    return (int)syscall(SYS_newfstatat, fd, path, status, flags);
}

ssize_t getdents64(int fd, void *buffer, size_t length) {
    directory_reads++;
    return syscall(SYS_getdents64, fd, buffer, length);
}

int posix_fadvise(int fd, off_t offset, off_t length, int advice) {
    scattered += advice == POSIX_FADV_RANDOM && offset == 0 && length == 0;
    return syscall(SYS_fadvise64, fd, offset, length, advice) < 0 ? errno : 0;
}

/* ---- a folder for each test ------------------------------------------------------------------------------------ */

static char home[PATH_MAX];
static struct diag why;

static void set_up(void) {
    const char *temporary = getenv("TMPDIR");
    snprintf(home, sizeof home, "%s/loaderd-dataset-XXXXXX", temporary ? temporary : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(home));
    ck_assert_int_eq(chdir(home), 0);
    ck_assert_int_eq(mkdir("cache", 0700), 0);
    char cache[PATH_MAX + 16];
    snprintf(cache, sizeof cache, "%s/cache", home);
    setenv("XDG_CACHE_HOME", cache, 1);
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

static void make_file(const char *path, const void *bytes, size_t length) {
    char parent[PATH_MAX];
    snprintf(parent, sizeof parent, "%s", path);
    for (char *p = parent + 1; *p; p++)
        if (*p == '/') {
            *p = '\0';
            mkdir(parent, 0755);
            *p = '/';
        }
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    EXPECT(fd >= 0);
    EXPECT(write(fd, bytes, length) == (ssize_t)length);
    close(fd);
}

static void touch(const char *path) {
    make_file(path, "", 0);
}

static time_t age_seconds = 1600000000;

static int make_old(const char *path, const struct stat *status, int kind, struct FTW *ftw) {
    (void)status, (void)kind, (void)ftw;
    const struct timespec times[2] = {{age_seconds, 123456789}, {age_seconds, 123456789}};
    return utimensat(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW);
}

/* An index is only kept of what has not changed within the last moments. Each call gives another time. */
static void age(const char *path) {
    age_seconds++;
    EXPECT(nftw(path, make_old, 16, FTW_PHYS) == 0);
}

static struct dataset *open_with(const struct dataset_options *options) {
    struct dataset *dataset = NULL;
    why = (struct diag)DIAG_INIT;
    int rc = dataset_open(options, &dataset, &why);
    if (rc < 0)
        ck_abort_msg("%s: %d %s", options->path, rc, why.text);
    return dataset;
}

static struct dataset *open_path(const char *path) {
    return open_with(&(struct dataset_options){.path = path});
}

/* Opening must fail with `code` and a sentence that holds each of the words (divided by '|'). */
static void refuse_with(const struct dataset_options *options, int code, const char *words) {
    struct dataset *dataset = NULL;
    why = (struct diag)DIAG_INIT;
    int rc = dataset_open(options, &dataset, &why);
    ck_assert_ptr_null(dataset);
    if (rc != code || why.code != code)
        ck_abort_msg("%s: %d (%d), wanted %d: %s", options->path, rc, why.code, code, why.text);
    char copy[512], *state, *word;
    snprintf(copy, sizeof copy, "%s", words);
    for (word = strtok_r(copy, "|", &state); word; word = strtok_r(NULL, "|", &state))
        if (!strstr(why.text, word))
            ck_abort_msg("'%s' is not in: %s", word, why.text);
}

static bool has_remark(const struct dataset *dataset, const char *text) {
    for (uint32_t i = 0; i < dataset_remarks(dataset); i++)
        if (strstr(dataset_remark(dataset, i), text))
            return true;
    return false;
}

static const char *path_of(const struct dataset *dataset, uint64_t sample) {
    struct location location;
    dataset_locate(dataset, sample, &location);
    EXPECT(location.extents == 1 && location.extent[0].file == NULL && location.extent[0].offset == 0);
    EXPECT(location.extent[0].length == EXTENT_WHOLE_FILE && location.extent[0].dirfd >= 0);
    return location.extent[0].path;
}

static int64_t label_of(const struct dataset *dataset, uint64_t sample) {
    struct location location;
    const struct dataset_field *field;
    uint32_t fields = dataset_fields(dataset, &field);
    dataset_locate(dataset, sample, &location);
    for (uint32_t i = 0; i < fields; i++)
        if (strcmp(field[i].spec.name, "label") == 0 && field[i].source == SOURCE_VALUE)
            return location.value[i];
    ck_abort_msg("no label");
    return 0;
}

/* The samples are exactly these paths, in this order. */
static void assert_paths(const struct dataset *dataset, const char *const *path, uint64_t count) {
    ck_assert_uint_eq(dataset_samples(dataset), count);
    for (uint64_t i = 0; i < count; i++)
        ck_assert_str_eq(path_of(dataset, i), path[i]);
}

static size_t descriptors(void) {
    size_t count = 0;
    DIR *directory = opendir("/proc/self/fd");
    while (directory && readdir(directory))
        count++;
    closedir(directory);
    return count;
}

/* ---- shared helpers -------------------------------------------------------------------------------------------- */

/* openssl mac -macopt hexkey:000102..0f -macopt size:16 SipHash, over the bytes 0, 1, 2, ... */
START_TEST(siphash_vectors) {
    static const struct {
        size_t length;
        const char *hex;
    } vector[] = {
        {0, "a3817f04ba25a8e66df67214c7550293"},  {1, "da87c1d86b99af44347659119b22fc45"},
        {7, "a1f1ebbed8dbc153c0b84aa61ff08239"},  {8, "3b62a9ba6258f5610f83e264f31497b4"},
        {15, "5493e99933b0a8117e08ec0f97cfc3d9"}, {16, "6ee2a4ca67b054bbfd3315bf85230577"},
        {63, "5150d1772f50834a503e069a973fbd7c"},
    };
    uint8_t bytes[64], out[16];
    for (int i = 0; i < 64; i++)
        bytes[i] = (uint8_t)i;
    for (size_t i = 0; i < ARRAY_SIZE(vector); i++)
        for (size_t split = 0; split <= vector[i].length; split++) {
            struct hash hash;
            char hex[33];
            hash_init(&hash, bytes);
            hash_bytes(&hash, bytes, split);
            hash_bytes(&hash, bytes + split, vector[i].length - split);
            hash_end(&hash, out);
            for (int k = 0; k < 16; k++)
                snprintf(hex + 2 * k, 3, "%02x", out[k]);
            EXPECT(strcmp(hex, vector[i].hex) == 0);
        }
}
END_TEST

START_TEST(sorting_is_byte_order) {
    struct buffer names = BUFFER_INIT;
    uint64_t offset[3000], sum = 0, state = 1;
    for (size_t i = 0; i < ARRAY_SIZE(offset); i++) {
        char name[64] = "common-prefix-";
        size_t n = 14;
        for (state = state * UINT64_C(6364136223846793005) + 1; n < 14 + (state >> 33) % 20; n++)
            name[n] = (char)(1 + (state >> (n % 40)) % 255);
        name[n] = '\0';
        offset[i] = names.length;
        sum += offset[i];
        EXPECT(buffer_append(&names, name, n + 1) == 0);
    }
    EXPECT(names_sort(names.data, offset, ARRAY_SIZE(offset)) == 0);
    for (size_t i = 0; i < ARRAY_SIZE(offset); i++) {
        sum -= offset[i];
        EXPECT(i == 0 || strcmp(names.data + offset[i - 1], names.data + offset[i]) <= 0);
    }
    EXPECT(sum == 0);
    buffer_deinit(&names);
}
END_TEST

/* ---- folder ---------------------------------------------------------------------------------------------------- */

/* FMT-14: twelve classes, a hidden one, an empty one; a validation tree without class 7 under the same class list. */
START_TEST(classes_in_byte_order) {
    static const char *const order[] = {"0", "1", "10", "11", "2", "3", "4", "5", "6", "7", "8", "9"};
    char list[128] = "", path[64];
    for (size_t i = 0; i < ARRAY_SIZE(order); i++) {
        snprintf(path, sizeof path, "train/%s/x.jpg", order[i]);
        touch(path);
        snprintf(path, sizeof path, "val/%s/x.jpg", order[i]);
        if (strcmp(order[i], "7") != 0)
            touch(path);
        strcat(strcat(list, order[i]), "\n");
    }
    touch("train/.ipynb_checkpoints/x.jpg");
    touch("train/1/.hidden.jpg");
    touch("train/.DS_Store");
    unlink("train/5/x.jpg");
    make_file("classes.txt", list, strlen(list));
    struct dataset *train = open_path("train");
    struct dataset *val = open_with(&(struct dataset_options){.path = "val", .classes = "classes.txt"});
    const char *const *name;
    const uint64_t *samples;
    ck_assert_uint_eq(dataset_classes(train, &name, &samples), 12);
    for (size_t i = 0; i < 12; i++) {
        ck_assert_str_eq(name[i], order[i]);
        ck_assert_uint_eq(samples[i], strcmp(order[i], "5") != 0);
    }
    ck_assert_uint_eq(dataset_samples(train), 11);
    ck_assert_str_eq(path_of(train, 2), "10/x.jpg");
    ck_assert_int_eq(label_of(train, 2), 2);
    ck_assert_str_eq(path_of(train, 7), "6/x.jpg");
    ck_assert_int_eq(label_of(train, 7), 8);
    EXPECT(has_remark(train, "class 7 (5) is empty"));
    ck_assert_uint_eq(dataset_remarks(train), 1);
    ck_assert_uint_eq(dataset_classes(val, &name, &samples), 12);
    ck_assert_uint_eq(dataset_samples(val), 11);
    ck_assert_str_eq(path_of(val, 10), "9/x.jpg");
    ck_assert_int_eq(label_of(val, 10), 11);
    EXPECT(has_remark(val, "class 9 (7) of the class list has no folder"));
    dataset_free(train);
    dataset_free(val);
}
END_TEST

/* Python: sorted(os.walk(...)), then sorted(files), as torchvision's ImageFolder does. */
START_TEST(nested_folders_in_the_order_of_torchvision) {
    static const char *const want[] = {"c/Z.JPG",    "c/_.jpg",   "c/a.jpg",   "c/b.jpg",     "c/\303\251.jpg",
                                       "c/a/10.png", "c/a/2.png", "c/a/x.jpg", "c/a-b/y.jpg", "c/a/b/z.jpg"};
    char path[64];
    for (size_t i = 0; i < ARRAY_SIZE(want); i++) {
        snprintf(path, sizeof path, "set/%s", want[i * 7 % ARRAY_SIZE(want)]);
        touch(path);
    }
    touch("set/d/one.jpg");
    struct dataset *dataset = open_path("set/");
    ck_assert_uint_eq(dataset_samples(dataset), 11);
    for (size_t i = 0; i < ARRAY_SIZE(want); i++) {
        ck_assert_str_eq(path_of(dataset, i), want[i]);
        ck_assert_int_eq(label_of(dataset, i), 0);
    }
    ck_assert_int_eq(label_of(dataset, 10), 1);
    char name[64];
    ck_assert_int_eq(dataset_name(dataset, 10, name, sizeof name), 13);
    ck_assert_str_eq(name, "set/d/one.jpg");
    ck_assert_int_eq(dataset_name(dataset, 10, name, 13), -ENOSPC);
    const struct dataset_field *field;
    ck_assert_uint_eq(dataset_fields(dataset, &field), 2);
    ck_assert_str_eq(field[0].spec.name, "image");
    ck_assert_int_eq(field[0].source, SOURCE_PICTURE);
    ck_assert_str_eq(field[1].spec.name, "label");
    ck_assert_int_eq(field[1].spec.dtype, LOADERD_I64);
    ck_assert_uint_eq(field[1].spec.ndim, 0);
    dataset_free(dataset);
}
END_TEST

/* PRC-05's folder: bad files are samples, a directory named x.jpg is none. */
START_TEST(what_counts_as_a_sample) {
    touch("set/b.jpg");
    touch("set/a.JPEG");
    touch("set/unreadable.png");
    chmod("set/unreadable.png", 0);
    EXPECT(symlink("nowhere", "set/dangling.jpg") == 0);
    EXPECT(symlink("b.jpg", "set/link.webp") == 0);
    EXPECT(symlink("b.jpg", "set/link-without-ending") == 0);
    EXPECT(mkfifo("set/fifo.jpg", 0644) == 0);
    EXPECT(mkdir("set/x.jpg", 0755) == 0);
    touch("set/README.txt");
    touch("set/notes");
    struct dataset *dataset = open_path("set");
    static const char *const want[] = {"a.JPEG", "b.jpg", "dangling.jpg", "link.webp", "unreadable.png"};
    assert_paths(dataset, want, ARRAY_SIZE(want));
    EXPECT(has_remark(dataset, "4 files with other endings ignored, e.g. README.txt"));
    EXPECT(has_remark(dataset, "1 folder is named like a picture and no sample, e.g. x.jpg"));
    EXPECT(has_remark(dataset, "1 sub-folder without pictures ignored, e.g. x.jpg"));
    const struct dataset_field *field;
    ck_assert_uint_eq(dataset_fields(dataset, &field), 1);
    ck_assert_uint_eq(dataset_classes(dataset, NULL, NULL), 0);
    dataset_free(dataset);
}
END_TEST

START_TEST(flat_and_mixed_folders) {
    touch("set/top.jpg");
    touch("set/class/x.jpg");
    struct dataset *classes = open_path("set");
    assert_paths(classes, (const char *const[]){"class/x.jpg"}, 1);
    EXPECT(has_remark(classes, "1 picture beside the class folders ignored, e.g. top.jpg"));
    struct dataset *flat = open_with(&(struct dataset_options){.path = "set", .flat = true});
    assert_paths(flat, (const char *const[]){"top.jpg"}, 1);
    EXPECT(has_remark(flat, "1 sub-folder ignored, e.g. class"));
    dataset_free(classes);
    dataset_free(flat);
}
END_TEST

START_TEST(links_to_folders) {
    touch("elsewhere/a.jpg");
    EXPECT(mkdir("set", 0755) == 0);
    EXPECT(symlink("../elsewhere", "set/linked") == 0);
    touch("set/own/b.jpg");
    EXPECT(symlink("..", "set/own/back") == 0);
    EXPECT(symlink(".", "set/own/self") == 0);
    struct dataset *dataset = open_path("set");
    static const char *const want[] = {"linked/a.jpg", "own/b.jpg"};
    assert_paths(dataset, want, 2);
    EXPECT(has_remark(dataset, "2 links to a folder above it skipped, e.g. back"));
    dataset_free(dataset);
}
END_TEST

START_TEST(class_list_refusals) {
    static const struct {
        const char *text, *words;
    } row[] = {
        {"b\n", "set/a: this folder is not in the class list classes.txt"},
        {"a\nb\na\n", "classes.txt: class 'a' is listed twice"},
        {"a\n\nb\n", "classes.txt:2: empty line"},
        {"\n\n", "classes.txt holds no class name"},
        {"a/b\n", "classes.txt:1: a class name holds no NUL and no '/'"},
        {"b\r\nc", "set/a: this folder is not in the class list"},
    };
    touch("set/a/x.jpg");
    const struct dataset_options options = {.path = "set", .classes = "classes.txt"};
    refuse_with(&options, -ENOENT, "classes.txt");
    for (size_t i = 0; i < ARRAY_SIZE(row); i++) {
        make_file("classes.txt", row[i].text, strlen(row[i].text));
        refuse_with(&options, -EINVAL, row[i].words);
    }
    make_file("classes.txt", "\xef\xbb\xbfz\r\na", 7);
    struct dataset *dataset = open_with(&options);
    ck_assert_int_eq(label_of(dataset, 0), 1);
    dataset_free(dataset);
    refuse_with(&(struct dataset_options){.path = "set", .classes = "classes.txt", .flat = true}, -EINVAL, "flat");
}
END_TEST

START_TEST(folder_refusals) {
    refuse_with(&(struct dataset_options){.path = "missing"}, -ENOENT, "missing");
    refuse_with(&(struct dataset_options){.path = ""}, -EINVAL, "no dataset");
    EXPECT(mkdir("empty", 0755) == 0);
    refuse_with(&(struct dataset_options){.path = "empty"}, -ENODATA, "empty holds no sample|.jpg");
    touch("text/a/readme.txt");
    refuse_with(&(struct dataset_options){.path = "text"}, -ENODATA, "text holds no sample|readme.txt|list");
    refuse_with(&(struct dataset_options){.path = "text/a/readme.txt", .format = "folder"}, -ENOTDIR, "not a folder");
    refuse_with(&(struct dataset_options){.path = "text", .format = "tar"}, -EINVAL,
                "'tar'|folder, idx, list, mds, npy, pack, raw");
    refuse_with(&(struct dataset_options){.path = "text", .format = "foldr"}, -EINVAL,
                "format 'foldr' is unknown; did you mean 'folder'? There are auto, ");
    refuse_with(&(struct dataset_options){.path = "text", .format = "folder", .record = "a:u8"}, -EINVAL, "'record'");
    refuse_with(&(struct dataset_options){.path = "text", .labels = "l.npy"}, -EINVAL, "'record'");
    if (geteuid() == 0)
        return;
    touch("locked/a/x.jpg");
    chmod("locked/a", 0);
    refuse_with(&(struct dataset_options){.path = "locked"}, -EACCES, "locked/a");
    chmod("locked/a", 0755);
}
END_TEST

/* ---- list ------------------------------------------------------------------------------------------------------ */

START_TEST(list_lines) {
    static const char text[] = "\xef\xbb\xbf# comment\r\n\r\nb.jpg\t7\r\nsub/a b.jpg\t-9223372036854775808\n"
                               "/abs/c.jpg\t9223372036854775807\n../up\tin.jpg\t+3";
    make_file("lists/train.txt", text, sizeof text - 1);
    struct dataset *dataset = open_path("lists/train.txt");
    static const char *const want[] = {"b.jpg", "sub/a b.jpg", "/abs/c.jpg", "../up\tin.jpg"};
    static const int64_t label[] = {7, INT64_MIN, INT64_MAX, 3};
    ck_assert_str_eq(dataset_format(dataset), "list");
    assert_paths(dataset, want, 4);
    for (uint64_t i = 0; i < 4; i++)
        ck_assert_int_eq(label_of(dataset, i), label[i]);
    EXPECT(has_remark(dataset, "'b.jpg', does not exist"));
    char name[64];
    EXPECT(dataset_name(dataset, 0, name, sizeof name) == 11 && strcmp(name, "lists/b.jpg") == 0);
    EXPECT(dataset_name(dataset, 2, name, sizeof name) == 10 && strcmp(name, "/abs/c.jpg") == 0);
    touch("lists/b.jpg");
    struct location location;
    dataset_locate(dataset, 0, &location);
    EXPECT(faccessat(location.extent[0].dirfd, location.extent[0].path, F_OK, 0) == 0);
    dataset_free(dataset);
    make_file("plain", "a.jpg 3\nb.jpg", 13);
    dataset = open_path("plain");
    assert_paths(dataset, (const char *const[]){"a.jpg 3", "b.jpg"}, 2);
    EXPECT(has_remark(dataset, "plain:1: 'a.jpg 3' has no TAB"));
    const struct dataset_field *field;
    ck_assert_uint_eq(dataset_fields(dataset, &field), 1);
    dataset_free(dataset);
}
END_TEST

START_TEST(list_refusals) {
    static const struct {
        const char *text, *words;
        int code;
    } row[] = {
        {"a.jpg\t1\nb.jpg\n", "x:2: no TAB", -EINVAL},
        {"a.jpg\n#\nb.jpg\t1\n", "x:3: this line has a TAB", -EINVAL},
        {"a.jpg\tcat\n", "x:1: label 'cat' is no integer", -EINVAL},
        {"a.jpg\t\n", "x:1: label ''", -EINVAL},
        {"a.jpg\t1.0\n", "x:1: label '1.0'", -EINVAL},
        {"a.jpg\t9223372036854775808\n", "x:1: label '9223372036854775808'", -EINVAL},
        {"\t1\n", "x:1: no path", -EINVAL},
        {"a.jpg\tb.png\nc.jpg\n", "x:2: no TAB and mask", -EINVAL},
        {"a.jpg\tb.png\t1\nc.jpg\t2\n", "x:2: no mask", -EINVAL},
        {"a.jpg\tb.png\nc.jpg\t2\n", "x:2: no mask", -EINVAL},
        {"a.jpg\tb.png\t1\nc.jpg\tc.png\n", "x:2: label 'c.png' is no integer", -EINVAL},
        {"# only\n\n", "x lists no sample: all of its 2 lines", -ENODATA},
    };
    const struct dataset_options options = {.path = "x", .format = "list"};
    for (size_t i = 0; i < ARRAY_SIZE(row); i++) {
        make_file("x", row[i].text, strlen(row[i].text));
        refuse_with(&options, row[i].code, row[i].words);
    }
    make_file("x", "a\nb\0c\n", 6);
    refuse_with(&options, -EINVAL, "x:2: a NUL byte");
    char path[PATH_MAX + 2];
    memset(path, 'a', sizeof path);
    path[PATH_MAX] = '\n';
    make_file("x", path, PATH_MAX + 1);
    refuse_with(&options, -EINVAL, "x:1: the path has 4096 bytes, the system's limit is 4095");
    path[PATH_MAX - 1] = '\n';
    make_file("x", path, PATH_MAX);
    dataset_free(open_with(&options));
    make_file("x", "", 0);
    refuse_with(&options, -ENODATA, "no sample");
}
END_TEST

/* However the text is cut into pieces, the same samples come out. */
START_TEST(list_in_pieces) {
    static const char text[] = "# c\na.jpg\t1\n\nbb.jpg\t22\r\nccc\tc.jpg\t-3\n";
    for (size_t piece = 1; piece < sizeof text; piece++) {
        struct index_builder builder = {0};
        struct list_parser parser = {.origin = "x", .builder = &builder, .labels = -1};
        for (size_t at = 0; at < sizeof text - 1; at += piece)
            EXPECT(list_feed(&parser, text + at, MIN(piece, sizeof text - 1 - at), NULL) == 0);
        EXPECT(list_end(&parser, NULL) == 0);
        EXPECT(builder.names.length == 23 && memcmp(builder.names.data, "a.jpg\0bb.jpg\0ccc\tc.jpg", 23) == 0);
        const int64_t *label = (const void *)builder.label.data;
        EXPECT(parser.samples == 3 && label[0] == 1 && label[1] == 22 && label[2] == -3);
        buffer_deinit(&builder.base);
        buffer_deinit(&builder.offset);
        buffer_deinit(&builder.label);
        buffer_deinit(&builder.names);
    }
}
END_TEST

/* ---- raw ------------------------------------------------------------------------------------------------------- */

START_TEST(layout_lines) {
    static const char text[] = "\tcoarse:u8 fine:i16[2]  _:u8[5] image:bf16[3,32,32] ";
    struct layout layout;
    ck_assert_int_eq(layout_parse(text, sizeof text - 1, &layout, &why), 0);
    ck_assert_uint_eq(layout.fields, 3);
    ck_assert_uint_eq(layout.record_bytes, 1 + 4 + 5 + 6144);
    ck_assert_str_eq(layout.field[2].spec.name, "image");
    ck_assert_uint_eq(layout.field[2].spec.ndim, 3);
    ck_assert_int_eq(layout.field[2].spec.dims[0], 3);
    ck_assert_uint_eq(layout.field[2].offset, 10);
    ck_assert_uint_eq(layout.field[2].bytes, 6144);
    static const char *const bad[] = {
        "",
        " ",
        "image",
        "image:",
        "image:u7",
        "image:u8[",
        "image:u8[]",
        "image:u8[0]",
        "image:u8[3,]",
        "image:u8[3",
        "image:u8[3]x:u8",
        "a:u8 a:u8",
        ":u8",
        "_:u8",
        "a:u8[1,1,1,1,1,1,1,1]",
        "a:f64[9223372036854775807]",
        "a:u8[9223372036854775807] b:u8",
        "a:u8[-1]",
        "a:u8[99999999999999999999]",
        "a23456789012345678901234567890123:u8",
        "a:u8,b:u8",
        "a:U8",
        "a:u8 b:u8 c:u8 d:u8 e:u8 f:u8 g:u8 h:u8 i:u8 j:u8 k:u8 l:u8 m:u8 n:u8 o:u8 p:u8 q:u8"};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        if (layout_parse(bad[i], strlen(bad[i]), &layout, &why) != -EINVAL)
            ck_abort_msg("'%s' was taken", bad[i]);
}
END_TEST

/* CIFAR's shape in small: five files of records "label, 2x2x3 pixels", named by folder, pattern and list. */
START_TEST(raw_files) {
    uint8_t bytes[13 * 4];
    char path[32];
    for (int file = 1; file <= 3; file++) {
        memset(bytes, file, sizeof bytes);
        snprintf(path, sizeof path, "bin/part_%d.bin", file);
        make_file(path, bytes, 13u * (unsigned)(file + 1));
    }
    touch("bin/.hidden");
    static const char *const way[] = {"bin", "bin/part_*.bin", "bin/part_1.bin,bin/part_2.bin,bin/part_3.bin",
                                      "bin/part_1.bin,bin/part_[23].bin"};
    uint8_t fingerprint[2][16];
    for (size_t i = 0; i < ARRAY_SIZE(way); i++) {
        struct dataset *d = open_with(&(struct dataset_options){.path = way[i], .record = "label:u8 image:u8[3,2,2]"});
        ck_assert_uint_eq(dataset_samples(d), 9);
        struct location location;
        dataset_locate(d, 4, &location); /* 2 in the first file, so number 2 of the second */
        ck_assert_str_eq(location.extent[0].file->path, "bin/part_2.bin");
        ck_assert_uint_eq(location.extent[0].offset, 26);
        ck_assert_uint_eq(location.extent[0].length, 13);
        EXPECT(pread(location.extent[0].file->fd, bytes, 1, 26) == 1 && bytes[0] == 2);
        ck_assert_int_eq(fcntl(location.extent[0].file->fd, F_GETFD), FD_CLOEXEC);
        ck_assert_int_eq(fcntl(location.extent[0].file->fd, F_GETFL) & O_NONBLOCK, 0);
        ck_assert_uint_eq(location.extent[0].file->identity.size, 39);
        char name[64];
        EXPECT(dataset_name(d, 8, name, sizeof name) > 0);
        ck_assert_str_eq(name, "bin/part_3.bin#3");
        dataset_fingerprint(d, fingerprint[i > 0]);
        EXPECT(memcmp(fingerprint[0], fingerprint[i > 0], 16) == 0);
        dataset_free(d);
    }
    const struct dataset_options header = {.path = "bin/part_1.bin", .record = "x:u8[6]", .skip_bytes = 2};
    struct dataset *d = open_with(&header);
    struct location location;
    dataset_locate(d, 3, &location);
    ck_assert_uint_eq(location.extent[0].offset, 20);
    dataset_fingerprint(d, fingerprint[1]);
    EXPECT(memcmp(fingerprint[0], fingerprint[1], 16) != 0);
    dataset_free(d);
}
END_TEST

START_TEST(raw_refusals) {
    static const char gzip[] = "\037\213\010\000\000\000\000\000\002\003" /* Python: gzip.compress(b"hello") */
                               "\313H\315\311\311\007\000\206\246\0206\005\000\000";
    char big[1000] = {1};
    make_file("data/a.bin", big, 1000);
    const struct dataset_options options = {.path = "data/a.bin", .record = "x:u8[300]"};
    refuse_with(&options, -EINVAL, "data/a.bin: 1000 bytes are no multiple|3 x 300 + 100|skip-bytes=100");
    refuse_with(&(struct dataset_options){.path = "data", .record = "x:u8[300]"}, -EINVAL, "FOLDER/*.bin");
    refuse_with(&(struct dataset_options){.path = "data/a.bin", .record = "x:u8", .skip_bytes = 1001}, -EINVAL,
                "1000 bytes, fewer than skip-bytes=1001");
    refuse_with(&(struct dataset_options){.path = "data/a.bin", .record = "x:u8", .skip_bytes = 1000}, -ENODATA,
                "no record");
    refuse_with(&(struct dataset_options){.path = "data/*.dat", .record = "x:u8"}, -ENOENT, "data/*.dat");
    refuse_with(&(struct dataset_options){.path = "data/a.bin,,", .record = "x:u8"}, -EINVAL, "empty name");
    refuse_with(&(struct dataset_options){.path = "data/b.bin", .record = "x:u8"}, -ENOENT, "data/b.bin");
    refuse_with(&(struct dataset_options){.path = "data/a.bin,data/b.bin", .record = "x:u8"}, -ENOENT, "data/b.bin");
    refuse_with(&(struct dataset_options){.path = "data/a.bin", .format = "raw"}, -EINVAL, "'record'");
    make_file("gz.bin", gzip, sizeof gzip - 1);
    refuse_with(&(struct dataset_options){.path = "gz.bin", .record = "x:u8"}, -EINVAL, "gz.bin is gzip data");
    refuse_with(&(struct dataset_options){.path = "gz.bin"}, -EINVAL, "gz.bin is gzip data");
    refuse_with(&(struct dataset_options){.path = "gz.bin", .format = "list"}, -EINVAL, "gz.bin is gzip data");
    EXPECT(mkfifo("fifo", 0644) == 0);
    refuse_with(&(struct dataset_options){.path = "fifo", .record = "x:u8"}, -EINVAL, "fifo is not a regular file");
    for (int i = 0; i < 200; i++) {
        char path[32];
        snprintf(path, sizeof path, "many/%03d.bin", i);
        make_file(path, big, 10);
    }
    struct rlimit limit = {.rlim_cur = 200, .rlim_max = 200};
    EXPECT(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    refuse_with(&(struct dataset_options){.path = "many", .record = "x:u8"}, -EMFILE, "need |200 data files, have 200");
}
END_TEST

/* ---- .npy ------------------------------------------------------------------------------------------------------ */

/* Written by numpy 2.4.6: numpy.save, and numpy.lib.format.write_array for versions 2.0 and 3.0. */
static const struct {
    const char *what;
    int64_t label[5];
    size_t length;
    const char *bytes;
} numpy_labels[] = {
    {"i64",
     {-2, -1, 0, 1, 1099511627776},
     168,
     "\223NUMPY\001\000v\000{'descr': '<i8', 'fortran_order': False, 'shape': (5,), }           "
     "                                                 \012\376\377\377\377\377\377\377\377\377"
     "\377\377\377\377\377\377\377\000\000\000\000\000\000\000\000\001\000\000\000\000\000\000"
     "\000\000\000\000\000\000\001\000\000"},
    {"big-endian i32",
     {-1, 0, 70000, 3, 4},
     148,
     "\223NUMPY\001\000v\000{'descr': '>i4', 'fortran_order': False, 'shape': (5,), }           "
     "                                                 \012\377\377\377\377\000\000\000\000\000"
     "\001\021p\000\000\000\003\000\000\000\004"},
    {"u8",
     {0, 255, 7, 8, 9},
     133,
     "\223NUMPY\001\000v\000{'descr': '|u1', 'fortran_order': False, 'shape': (5,), }           "
     "                                                 \012\000\377\007\010\011"},
    {"column i16",
     {-3, 2, 1, 0, 5},
     138,
     "\223NUMPY\001\000v\000{'descr': '<i2', 'fortran_order': False, 'shape': (5, 1), }         "
     "                                                 \012\375\377\002\000\001\000\000\000\005"
     "\000"},
    {"version 2 big-endian u16",
     {1, 65535, 3, 4, 256},
     138,
     "\223NUMPY\002\000t\000\000\000{'descr': '>u2', 'fortran_order': False, 'shape': (5,), }   "
     "                                                       \012\000\001\377\377\000\003\000"
     "\004\001\000"},
    {"version 3 i8",
     {-128, 127, 0, 1, 2},
     133,
     "\223NUMPY\003\000t\000\000\000{'descr': '|i1', 'fortran_order': False, 'shape': (5,), }   "
     "                                                       \012\200\177\000\001\002"},
};

START_TEST(labels_as_numpy_wrote_them) {
    make_file("data.bin", "abcdefghij", 10);
    for (size_t i = 0; i < ARRAY_SIZE(numpy_labels); i++) {
        make_file("labels.npy", numpy_labels[i].bytes, numpy_labels[i].length);
        struct dataset *d =
            open_with(&(struct dataset_options){.path = "data.bin", .record = "x:u8[2]", .labels = "labels.npy"});
        for (uint64_t k = 0; k < 5; k++)
            if (label_of(d, k) != numpy_labels[i].label[k])
                ck_abort_msg("%s: label %d", numpy_labels[i].what, (int)k);
        const struct dataset_field *field;
        ck_assert_uint_eq(dataset_fields(d, &field), 2);
        ck_assert_str_eq(field[1].spec.name, "label");
        dataset_free(d);
        for (size_t cut = 0; cut < numpy_labels[i].length; cut++) {
            struct npy_header header;
            make_file("labels.npy", numpy_labels[i].bytes, cut);
            struct npy_labels labels;
            ck_assert_int_eq(npy_labels_open("labels.npy", &labels, &why), -EINVAL);
            EXPECT(npy_parse(numpy_labels[i].bytes, cut, &header, NULL) == (cut >= 128 ? 0 : -EINVAL));
        }
    }
}
END_TEST

START_TEST(label_refusals) {
    struct dataset_options options = {.path = "dir", .record = "x:u8", .labels = "dir/labels.npy"};
    make_file("dir/labels.npy", numpy_labels[0].bytes, numpy_labels[0].length);
    make_file("dir/data.bin", "abcd", 4);
    refuse_with(&options, -EINVAL, "dir/labels.npy holds 5 labels, the data holds 4 records");
    make_file("dir/data.bin", "abcde", 5);
    struct dataset *d = open_with(&options); /* the labels' own file is no data */
    ck_assert_uint_eq(dataset_samples(d), 5);
    dataset_free(d);
    options.record = "label:u8";
    refuse_with(&options, -EINVAL, "'label'|'_'");
    options.record = "x:u8";
    options.path = "dir/labels.npy";
    refuse_with(&options, -EINVAL, "dtype '<i8'|skip-bytes=128");
    options.skip_bytes = 128;
    refuse_with(&options, -EINVAL, "5 labels, the data holds 40 records");
    options.labels = "dir/data.bin";
    refuse_with(&options, -EINVAL, "labels dir/data.bin: no .npy");
}
END_TEST

static const struct {
    const char *header; /* behind magic, version 1.0 and length */
    int code;
    const char *words; /* of the sentence, or the descr */
    uint32_t dtype, ndim;
    uint64_t count;
} npy_row[] = {
    {"{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }\n", 0, "<f4", LOADERD_F32, 2, 6},
    {"{'shape': (), 'fortran_order': False, 'descr': \"|b1\"}", 0, "|b1", 0, 0, 1},
    {"{'descr': '>f8', 'fortran_order': False, 'shape': (0L, 3L)}", 0, ">f8", LOADERD_F64, 2, 0},
    {"{'descr': '<U7', 'fortran_order': False, 'shape': (3,)}", 0, "<U7", 0, 1, 3},
    {"{'descr': '<M8[ns]', 'fortran_order': False, 'shape': (3,)}", 0, "<M8[ns]", 0, 1, 3},
    {"{'descr': '|V2', 'fortran_order': False, 'shape': (3,)}", 0, "|V2", 0, 1, 3},
    {"{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", -EINVAL, "Python objects", 0, 0, 0},
    {"{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (2,)}", -EINVAL, "structured", 0, 0, 0},
    {"{'descr': '<i4', 'fortran_order': False, 'shape': (3)}", -EINVAL, "no tuple", 0, 0, 0},
    {"{'descr': '<i4', 'fortran_order': False, 'shape': (-3,)}", -EINVAL, "shape", 0, 0, 0},
    {"{'descr': '<i4', 'fortran_order': False}", -EINVAL, "missing", 0, 0, 0},
    {"{'descr': '<i4', 'descr': '<i4', 'fortran_order': False, 'shape': ()}", -EINVAL, "twice", 0, 0, 0},
    {"{'descr': '<i4', 'fortran_order': 0, 'shape': ()}", -EINVAL, "fortran_order", 0, 0, 0},
    {"{'descr': '<i4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}", -EINVAL, "64 bits", 0, 0, 0},
    {"{'descr': '<i4', 'fortran_order': False, 'shape': ()} + 1", -EINVAL, "follows", 0, 0, 0},
    {"{'descr': '|i4', 'fortran_order': False, 'shape': ()}", -EINVAL, "byte order", 0, 0, 0},
    {"{'descr': '<i4x', 'fortran_order': False, 'shape': ()}", -EINVAL, "unknown dtype", 0, 0, 0},
    {"{'descr': '', 'fortran_order': False, 'shape': ()}", -EINVAL, "unknown dtype", 0, 0, 0},
    {"__import__('os')", -EINVAL, "no dictionary", 0, 0, 0},
};

START_TEST(npy_headers) {
    char bytes[256];
    for (size_t i = 0; i < ARRAY_SIZE(npy_row); i++) {
        size_t length = strlen(npy_row[i].header);
        memcpy(bytes, "\x93NUMPY\1\0", 8);
        bytes[8] = (char)length;
        bytes[9] = 0;
        memcpy(bytes + 10, npy_row[i].header, length);
        struct npy_header header;
        int rc = npy_parse(bytes, length + 10, &header, &why);
        if (rc != npy_row[i].code || (rc < 0 && !strstr(why.text, npy_row[i].words)))
            ck_abort_msg("%s: %d %s", npy_row[i].header, rc, why.text);
        if (rc < 0)
            continue;
        ck_assert_str_eq(header.descr, npy_row[i].words);
        ck_assert_uint_eq(header.dtype, npy_row[i].dtype);
        ck_assert_uint_eq(header.ndim, npy_row[i].ndim);
        ck_assert_uint_eq(header.count, npy_row[i].count);
        ck_assert_uint_eq(header.data_offset, length + 10);
        ck_assert_int_eq(header.fortran_order, i == 0);
        ck_assert_int_eq(header.big_endian, header.descr[0] == '>');
    }
}
END_TEST

/* ---- synthetic, detection -------------------------------------------------------------------------------------- */

START_TEST(synthetic_sets) {
    struct dataset *d = open_path("synthetic:1000000000000x3x224x224:f32");
    ck_assert_str_eq(dataset_format(d), "synthetic");
    ck_assert_uint_eq(dataset_samples(d), UINT64_C(1000000000000));
    ck_assert_int_eq(label_of(d, UINT64_C(999999999999)), 999);
    dataset_free(d);
    static const char *const bad[] = {"synthetic:",
                                      "synthetic:0x3",
                                      "synthetic:5x",
                                      "synthetic:5x0",
                                      "synthetic:5x3:f31",
                                      "synthetic:5y3",
                                      "synthetic:-1x3",
                                      "synthetic:1x9223372036854775807x4",
                                      "synthetic:1x1x1x1x1x1x1x1x1",
                                      "synthetic:5x3:",
                                      "synthetic:99999999999999999999"};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        refuse_with(&(struct dataset_options){.path = bad[i]}, -EINVAL, "synthetic:NxDIMS:DTYPE");
    refuse_with(&(struct dataset_options){.path = "synthetic:5x3", .skip_bytes = 1}, -EINVAL, "skip-bytes");
}
END_TEST

static double half(uint16_t bits, int mantissa_bits, int bias) {
    int exponent = (bits & 0x7fff) >> mantissa_bits;
    return ldexp(1 + (double)(bits & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits), exponent - bias);
}

START_TEST(synthetic_values) {
    static const char *const word[] = {"f16", "bf16", "f32", "f64", "u8"};
    for (size_t i = 0; i < ARRAY_SIZE(word); i++) {
        char path[64];
        uint8_t out[3][104], *at = out[0];
        snprintf(path, sizeof path, "synthetic:10x11:%s", word[i]);
        struct dataset *d = open_path(path);
        const struct dataset_field *field;
        dataset_fields(d, &field);
        memset(out, 0xAA, sizeof out);
        dataset_synthesize(d, 3, 0, out[0] + 1); /* not aligned */
        dataset_synthesize(d, 3, 0, out[1] + 1);
        dataset_synthesize(d, 4, 0, out[2] + 1);
        EXPECT(memcmp(out[0], out[1], sizeof out[0]) == 0);
        EXPECT(memcmp(out[0], out[2], sizeof out[0]) != 0);
        EXPECT(at[0] == 0xAA && at[1 + field[0].bytes] == 0xAA);
        for (int k = 0; k < 11; k++) {
            uint16_t bits;
            float f32;
            double value = 1;
            memcpy(&bits, at + 1 + 2 * k, 2);
            memcpy(&f32, at + 1 + 4 * k, 4);
            if (i == 0)
                value = half(bits, 10, 15);
            else if (i == 1)
                value = half(bits, 7, 127);
            else if (i == 2)
                value = (double)f32;
            else if (i == 3)
                memcpy(&value, at + 1 + 8 * k, 8);
            EXPECT(value >= 1 && value < 2);
        }
        dataset_free(d);
    }
}
END_TEST

START_TEST(foreign_files_are_named) {
    char tar[512] = "a.txt";
    memcpy(tar + 257, "ustar", 6);
    char beton[24] = {2, 0, 3, 0, 0, 0, (char)0x80, 0};
    char lmdb[64] = {0};
    memcpy(lmdb + 16, "\xde\xc0\xef\xbe", 4);
    const struct {
        const char *bytes;
        size_t length;
        const char *words;
    } row[] = {
        {tar, 512, "cannot tell"}, /* its checksum is wrong */
        {"\005\000\000\000\000\000\000\000\352\262\004>hello\273\037\034\031", 21,
         "first record is no tf.train.Example"},
        {beton, 24, "FFCV"},
        {lmdb, 64, "LMDB"},
        {"\0\0\10\3\0\0\0\1", 8, "file: IDX file of 3 dimensions ends in its header"},
        {"PAR1....", 8, "Parquet"},
        {"\x89HDF\r\n\x1a\n", 8, "HDF5"},
        {"PK\3\4....", 8, ".npz"},
        {"\xff\xd8\xff\xe0", 4, "a single JPEG picture|folder"},
        {"\xfd"
         "7zXZ\0..",
         8, "xz data"},
        {"(\xb5/\xfd....", 8, "zstd data"},
        {"\x80\4\x95x", 4, "pickle"},
        {"<!DOCTYPE html>\n<p>404", 22, "cannot tell|3c 21 44 4f"},
        {"{\"a\": 1}\n", 9, "cannot tell"},
        {"\1\2\3\4", 4, "cannot tell|'record'"},
        {"\x93NUMPY\1\0v\0{", 11, "bad .npy header"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(row); i++) {
        make_file("file", row[i].bytes, row[i].length);
        refuse_with(&(struct dataset_options){.path = "file"}, -EINVAL, row[i].words);
    }
    touch("file");
    refuse_with(&(struct dataset_options){.path = "file"}, -ENODATA, "empty");
}
END_TEST

/* ---- the index ------------------------------------------------------------------------------------------------- */

/* Three classes, one of them empty, a nested folder, a remark. */
static void make_set(void) {
    static const char *const path[] = {"data/set/a/1.jpg",    "data/set/a/2.jpg", "data/set/b/deep/3.jpg",
                                       "data/set/b/0.jpg",    "data/set/b/4.png", "data/set/c/readme",
                                       "data/set/a/notes.txt"};
    for (size_t i = 0; i < ARRAY_SIZE(path); i++)
        touch(path[i]);
    age("data/set");
}

static void assert_same(const struct dataset *a, const struct dataset *b) {
    const struct dataset_field *fields;
    uint8_t x[16], y[16];
    EXPECT(dataset_samples(a) == dataset_samples(b));
    EXPECT(dataset_fields(a, &fields) == dataset_fields(b, &fields));
    bool labels = dataset_fields(a, &fields) == 2;
    for (uint64_t i = 0; i < dataset_samples(a); i++) {
        EXPECT(strcmp(path_of(a, i), path_of(b, i)) == 0);
        EXPECT(!labels || label_of(a, i) == label_of(b, i));
    }
    const char *const *names[2];
    const uint64_t *samples[2];
    EXPECT(dataset_classes(a, &names[0], &samples[0]) == dataset_classes(b, &names[1], &samples[1]));
    for (uint32_t i = 0; i < dataset_classes(a, NULL, NULL); i++)
        EXPECT(strcmp(names[0][i], names[1][i]) == 0 && samples[0][i] == samples[1][i]);
    dataset_fingerprint(a, x);
    dataset_fingerprint(b, y);
    EXPECT(memcmp(x, y, 16) == 0);
}

static const struct dataset_options with_index = {.path = "data/set", .index = "the.index"};

static bool was_read(const struct dataset *dataset) {
    return strncmp(dataset_index_note(dataset), "read from ", 10) == 0;
}

/* Opens and says whether an index was used; the samples must be those of a fresh scan. */
static bool reopen(const struct dataset_options *options) {
    struct dataset_options fresh = *options;
    fresh.index = "none";
    struct dataset *want = open_with(&fresh), *have = open_with(options);
    EXPECT(!was_read(want));
    assert_same(want, have);
    bool read = was_read(have);
    dataset_free(want);
    dataset_free(have);
    return read;
}

START_TEST(index_gives_what_the_scan_gave) {
    make_set();
    struct dataset *scanned = open_with(&with_index), *read = open_with(&with_index);
    EXPECT(strstr(dataset_index_note(scanned), "kept in the.index"));
    ck_assert_str_eq(dataset_index_note(read), "read from the.index");
    ck_assert_uint_eq(dataset_samples(read), 5);
    assert_same(scanned, read);
    ck_assert_uint_eq(dataset_remarks(scanned), dataset_remarks(read));
    for (uint32_t i = 0; i < dataset_remarks(read); i++)
        ck_assert_str_eq(dataset_remark(scanned, i), dataset_remark(read, i));
    EXPECT(has_remark(read, "class 2 (c) is empty") && has_remark(read, "2 files with other endings"));
    dataset_free(scanned);
    dataset_free(read);
    struct stat status;
    EXPECT(stat("the.index", &status) == 0);
    EXPECT((size_t)status.st_size <= 256 + 5 * 64 + 512);
}
END_TEST

START_TEST(index_notices_changes) {
    make_set();
    EXPECT(!reopen(&with_index) && reopen(&with_index));
    touch("data/set/b/deep/new.jpg"); /* changes the mtime of a nested folder only */
    EXPECT(!reopen(&with_index));
    EXPECT(!reopen(&with_index)); /* too fresh: a second change would not show, so it was not kept */
    age("data/set");
    EXPECT(!reopen(&with_index) && reopen(&with_index));
    EXPECT(mkdir("data/set/d", 0755) == 0);
    age("data/set/a"), age("data/set/b");
    EXPECT(!reopen(&with_index));
    age("data/set");
    EXPECT(!reopen(&with_index) && reopen(&with_index));
    EXPECT(rename("data/set/a/1.jpg", "data/set/a/0.jpg") == 0);
    EXPECT(!reopen(&with_index));
    age("data/set");
    EXPECT(!reopen(&with_index));
    /* the same folder elsewhere, as another node mounts it */
    EXPECT(rename("data", "moved") == 0);
    EXPECT(reopen(&(struct dataset_options){.path = "moved/set", .index = "the.index"}));
    EXPECT(symlink("moved", "data") == 0);
    EXPECT(reopen(&with_index));
}
END_TEST

START_TEST(index_belongs_to_its_options) {
    make_set();
    make_file("classes.txt", "c\nb\na\n", 6);
    struct dataset_options listed = with_index;
    listed.classes = "classes.txt";
    EXPECT(!reopen(&with_index) && reopen(&with_index));
    EXPECT(!reopen(&listed) && reopen(&listed));
    make_file("classes.txt", "a\nb\nc\n", 6);
    EXPECT(!reopen(&listed) && reopen(&listed));
    touch("data/set/top.jpg");
    age("data/set");
    EXPECT(!reopen(&with_index));
    struct dataset_options flat = with_index;
    flat.flat = true;
    EXPECT(!reopen(&flat) && reopen(&flat) && !reopen(&with_index));
}
END_TEST

static size_t read_whole(const char *path, uint8_t *bytes, size_t size) {
    int fd = open(path, O_RDONLY);
    EXPECT(fd >= 0);
    ssize_t n = read(fd, bytes, size);
    close(fd);
    EXPECT(n > 0 && (size_t)n < size);
    return (size_t)n;
}

/* Every byte of a small index changed in two ways, and every length of it: scanned again, never other samples. */
START_TEST(damaged_index) {
    static uint8_t good[8192], bad[8192];
    make_set();
    struct dataset *want = open_with(&with_index);
    size_t length = read_whole("the.index", good, sizeof good);
    for (size_t i = 0; i < 3 * length; i++) {
        size_t at = i / 3, size = i % 3 == 2 ? at : length;
        memcpy(bad, good, length);
        if (i % 3 < 2)
            bad[at] ^= i % 3 ? 0xff : 1;
        make_file("the.index", bad, size);
        struct dataset *have = open_with(&with_index);
        assert_same(want, have);
        EXPECT(!was_read(have));
        EXPECT(has_remark(have, "index the.index: "));
        dataset_free(have);
    }
    dataset_free(want);
}
END_TEST

/* The same with right checksums: what is then still believed must lie inside of the file. */
START_TEST(forged_index) {
    static uint64_t aligned[1024];
    static uint8_t good[8192];
    make_set();
    dataset_free(open_with(&with_index));
    size_t length = read_whole("the.index", good, sizeof good), taken = 0;
    uint8_t *bad = malloc(length); /* exactly: a sanitizer sees the first byte too far */
    EXPECT(bad != NULL && length < sizeof aligned);
    for (size_t i = 0; i < 8 * length; i++) {
        memcpy(bad, good, length);
        bad[i / 8] ^= (uint8_t)(1u << i % 8);
        EXPECT(index_seal(bad, length) == 0);
        struct index index;
        if (index_parse(bad, length, &index, &why) < 0)
            continue;
        taken++;
        for (uint64_t k = 0; k < index.header.samples; k++) {
            const char *name = index_sample_name(&index, k);
            EXPECT(name + strlen(name) < (const char *)bad + length);
            EXPECT((index.header.flags & INDEX_OUTSIDE) || *name != '/');
            EXPECT(!index.header.classes || (uint64_t)index_label(&index, k) < index.header.classes);
        }
    }
    EXPECT(taken > 0);
    free(bad);
    /* a name that leads out of the folder */
    memcpy(aligned, good, length);
    uint8_t *names = memmem(aligned, length, "b/deep/3.jpg", 12);
    EXPECT(names != NULL);
    memcpy(names, "b/../../.jpg", 12);
    index_seal(aligned, length);
    struct index index;
    ck_assert_int_eq(index_parse(aligned, length, &index, &why), -EINVAL);
}
END_TEST

/* Labels that need 64 bits, and samples behind the first block of an index: the same from memory and from the file. */
START_TEST(large_list) {
    const struct dataset_options options = {.path = "x", .index = "x.index"};
    for (int wide = 0; wide < 2; wide++) {
        const int64_t least = wide ? INT64_C(-9223372036854775807) - 1 : INT32_MIN;
        const int64_t most = wide ? INT64_C(2147483648) : INT32_MAX;
        FILE *out = fopen("x", "w");
        EXPECT(out != NULL);
        fprintf(out, "first\t%lld\n", (long long)least);
        for (int i = 1; i < 70000; i++)
            fprintf(out, "%d\t%lld\n", i, (long long)(i == 69999 ? most : i));
        EXPECT(fclose(out) == 0);
        age("x");
        unlink("x.index");
        for (int again = 0; again < 2; again++) {
            struct dataset *d = open_with(&options);
            EXPECT(was_read(d) == again);
            EXPECT(dataset_samples(d) == 70000 && label_of(d, 0) == least && label_of(d, 69999) == most);
            EXPECT(label_of(d, 65535) == 65535 && label_of(d, 65536) == 65536);
            ck_assert_str_eq(path_of(d, 0), "first");
            ck_assert_str_eq(path_of(d, 65535), "65535");
            ck_assert_str_eq(path_of(d, 65536), "65536");
            ck_assert_str_eq(path_of(d, 69999), "69999");
            dataset_free(d);
        }
        struct stat status;
        EXPECT(stat("x.index", &status) == 0);
        ck_assert_int_eq(status.st_size,
                         256 + 2 * 8 + 70000 * (wide ? 12 : 8) + 6 + 9 * 2 + 90 * 3 + 900 * 4 + 9000 * 5 + 60000 * 6);
    }
}
END_TEST

static void make_many(const char *folder) {
    char path[128];
    snprintf(path, sizeof path, "%s/c", folder);
    for (int i = 0; i < 4096; i++) {
        snprintf(path, sizeof path, "%s/c/%d.jpg", folder, i);
        touch(path);
    }
    age(folder);
}

START_TEST(places_of_the_index) {
    make_many("data/many");
    make_set();
    const struct dataset_options many = {.path = "data/many"}, few = {.path = "data/set/"};
    EXPECT(!reopen(&few) && !reopen(&few)); /* a small folder needs none */
    EXPECT(!reopen(&many) && reopen(&many));
    EXPECT(access("data/.many.loaderd-index", F_OK) == 0);
    EXPECT(reopen(&(struct dataset_options){.path = "data/../data/many/"}));
    /* the place beside the data cannot be written (to root, too): the cache takes it */
    EXPECT(unlink("data/.many.loaderd-index") == 0);
    touch("data/.many.loaderd-index/in the way");
    struct dataset *d = open_with(&many);
    EXPECT(strstr(dataset_index_note(d), "/cache/loaderd/"));
    dataset_free(d);
    EXPECT(reopen(&many));
    /* no place at all: one remark */
    touch("cache-file");
    setenv("XDG_CACHE_HOME", "/proc/nowhere", 1);
    d = open_with(&many);
    EXPECT(has_remark(d, "the index could not be kept"));
    EXPECT(!was_read(d));
    dataset_free(d);
    /* a place in the folder itself */
    struct dataset_options inside = {.path = "data/set", .index = "data/set/my.index"};
    d = open_with(&inside);
    EXPECT(has_remark(d, "lies inside the folder"));
    dataset_free(d);
}
END_TEST

START_TEST(untrusted_index) {
    make_set();
    EXPECT(!reopen(&with_index) && reopen(&with_index));
    EXPECT(chmod("the.index", 0646) == 0);
    EXPECT(!reopen(&with_index) && reopen(&with_index)); /* replaced by our own */
    EXPECT(rename("the.index", "other.index") == 0);
    EXPECT(symlink("other.index", "the.index") == 0);
    EXPECT(!reopen(&with_index) && reopen(&with_index));
    if (geteuid() != 0)
        return;
    EXPECT(chown("the.index", 12345, 12345) == 0);
    EXPECT(!reopen(&with_index));
    EXPECT(chown("the.index", 12345, 12345) == 0 && chown("data/set", 12345, 12345) == 0);
    EXPECT(reopen(&with_index)); /* the data's owner may */
}
END_TEST

START_TEST(simultaneous_builders) {
    make_many("data/many");
    pid_t child[4];
    for (int i = 0; i < 4; i++) {
        child[i] = fork();
        if (child[i] == 0) {
            struct dataset *dataset = NULL;
            int rc = dataset_open(&(struct dataset_options){.path = "data/many"}, &dataset, NULL);
            _exit(rc == 0 && dataset_samples(dataset) == 4096 ? 0 : 1);
        }
    }
    for (int i = 0; i < 4; i++) {
        int status;
        EXPECT(waitpid(child[i], &status, 0) == child[i] && status == 0);
    }
    EXPECT(reopen(&(struct dataset_options){.path = "data/many"}));
    DIR *directory = opendir("data");
    int entries = 0;
    while (directory && readdir(directory))
        entries++;
    closedir(directory);
    ck_assert_int_eq(entries, 4); /* . .. many and the index: nothing is left over */
}
END_TEST

START_TEST(index_of_a_list) {
    make_file("data/list", "b.jpg\t1\n../x/a.jpg\t2\n/abs\t-3\n", 29);
    age("data/list");
    const struct dataset_options options = {.path = "data/list", .index = "the.index"};
    EXPECT(!reopen(&options) && reopen(&options));
    make_file("data/list", "b.jpg\t1\n../x/a.jpg\t2\n/abs\t-4\n", 29);
    age("data/list"); /* the size is as before */
    EXPECT(!reopen(&options) && reopen(&options));
    age_seconds--;
    make_file("data/list2", "b.jpg\t1\n../x/a.jpg\t2\n/abs\t-5\n", 29);
    age("data/list2");
    EXPECT(rename("data/list2", "data/list") == 0); /* size and mtime as before, another inode */
    EXPECT(!reopen(&options) && reopen(&options));
    make_file("data/list", "b.jpg\t1\n", 8);
    EXPECT(!reopen(&options));
}
END_TEST

START_TEST(fingerprints) {
    uint8_t before[16], after[16];
    make_set();
    struct dataset *d = open_with(&(struct dataset_options){.path = "data/set", .index = "none"});
    dataset_fingerprint(d, before);
    dataset_free(d);
    EXPECT(rename("data/set", "other") == 0);
    d = open_path("other");
    dataset_fingerprint(d, after);
    dataset_free(d);
    EXPECT(memcmp(before, after, 16) == 0); /* not the path */
    EXPECT(rename("other/a/1.jpg", "other/a/1a.jpg") == 0);
    d = open_path("other");
    dataset_fingerprint(d, after);
    dataset_free(d);
    EXPECT(memcmp(before, after, 16) != 0);
    EXPECT(rename("other/a/1a.jpg", "other/a/1.jpg") == 0);
    EXPECT(mkdir("other/0", 0755) == 0); /* the same files, other labels */
    d = open_path("other");
    dataset_fingerprint(d, after);
    dataset_free(d);
    EXPECT(memcmp(before, after, 16) != 0);
}
END_TEST

static void count_call(void *arg, uint64_t samples, double seconds) {
    EXPECT(samples == 77 && seconds >= 0);
    ++*(int *)arg;
}

START_TEST(progress_every_five_seconds) {
    int calls = 0;
    struct index_builder builder = {.progress = count_call, .progress_arg = &calls};
    builder.started = builder.told = now_ns();
    index_tick(&builder, 77);
    ck_assert_int_eq(calls, 0);
    builder.told -= UINT64_C(5000000000);
    builder.started = builder.told;
    index_tick(&builder, 77);
    index_tick(&builder, 77);
    ck_assert_int_eq(calls, 1);
}
END_TEST

/* A scan looks at no file, since directories tell kinds, and reads each directory once; an index spares that. */
START_TEST(calls_of_a_scan) {
    enum { CLASSES = 8, FILES = 250 };
    char path[64];
    for (int c = 0; c < CLASSES; c++)
        for (int f = 0; f < FILES; f++) {
            snprintf(path, sizeof path, "many/%02d/%04d.jpg", c, f);
            touch(path);
        }
    age("many"); /* folders that change are not left to an index */
    for (int start = 0; start < 2; start++) {
        stats = directory_reads = 0;
        struct dataset *dataset = open_with(&(struct dataset_options){.path = "many", .index = "many.index"});
        ck_assert_uint_eq(dataset_samples(dataset), CLASSES * FILES);
        ck_assert_uint_le(stats, 2 * (CLASSES + 1));
        /* one for what is in the root; a scan: for each folder its names, and that there are no more */
        ck_assert_uint_eq(directory_reads, start == 0 ? 1 + 2 * (CLASSES + 1) : 1);
        dataset_free(dataset);
    }
}
END_TEST

/* Large samples of shards are read as they are asked for, small ones with what the kernel finds worth reading beside. */
START_TEST(reading_ahead) {
    static char bytes[8 * 65536];
    make_file("raw/a.bin", bytes, sizeof bytes);
    make_file("raw/b.bin", bytes, sizeof bytes / 2);
    const struct {
        const char *record;
        unsigned files;
    } cases[] = {{"x:u8[65536]", 2}, {"x:u8[32768]", 2}, {"x:u8[16384]", 0}, {"x:u8", 0}};
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct dataset *dataset = open_with(&(struct dataset_options){.path = "raw", .record = cases[i].record});
        scattered = 0;
        dataset_expect_scattered(dataset);
        ck_assert_uint_eq(scattered, cases[i].files);
        dataset_free(dataset);
    }
    make_set();
    struct dataset *folder = open_with(&(struct dataset_options){.path = "data/set"});
    dataset_expect_scattered(folder);
    dataset_free(folder);
}
END_TEST

START_TEST(no_descriptor_is_lost) {
    make_set();
    make_file("raw/a.bin", "abc", 3);
    make_file("raw/b.bin", "abcd", 4);
    make_file("list", "a\tx\n", 4);
    size_t before = descriptors();
    const struct dataset_options ways[] = {{.path = "data/set"},
                                           {.path = "data/set", .index = "the.index"},
                                           {.path = "data/set", .index = "the.index"},
                                           {.path = "data/set", .classes = "list"},
                                           {.path = "raw", .record = "x:u8"},
                                           {.path = "raw", .record = "x:u8[3]"},
                                           {.path = "raw", .record = "x:u8", .labels = "list"},
                                           {.path = "list"},
                                           {.path = "raw/a.bin", .format = "list"},
                                           {.path = "synthetic:5x5"}};
    int opened = 0;
    for (size_t i = 0; i < ARRAY_SIZE(ways); i++) {
        struct dataset *dataset = NULL;
        opened += dataset_open(&ways[i], &dataset, NULL) == 0;
        dataset_free(dataset);
    }
    ck_assert_int_eq(opened, 6);
    ck_assert_uint_eq(descriptors(), before);
}
END_TEST

/* ---- several datasets as one ------------------------------------------------------------------------------------ */

static const char *name_of(const struct dataset *dataset, uint64_t sample) {
    static char name[256];
    EXPECT(dataset_name(dataset, sample, name, sizeof name) > 0);
    return name;
}

START_TEST(joined_datasets) {
    const uint8_t bytes[40] = {0};
    touch("a/x/1.jpg");
    touch("a/x/2.jpg");
    touch("a/y/3.jpg");
    touch("b/x/4.jpg");
    touch("b/y/5.jpg");
    make_file("c.txt", "z/6.jpg\t1\n", 10);
    struct dataset *d = open_path("a + b");
    const uint64_t *first;
    const char *const *class;
    const uint64_t *class_samples;
    ck_assert_str_eq(dataset_format(d), "concat");
    ck_assert_uint_eq(dataset_samples(d), 5);
    ck_assert_uint_eq(dataset_sources(d, &first), 2);
    EXPECT(first[0] == 0 && first[1] == 3 && first[2] == 5);
    ck_assert_uint_eq(dataset_shards(d, &first), 0);
    ck_assert_str_eq(path_of(d, 2), "y/3.jpg");
    ck_assert_str_eq(path_of(d, 3), "x/4.jpg");
    ck_assert_str_eq(name_of(d, 4), "b/y/5.jpg");
    EXPECT(label_of(d, 2) == 1 && label_of(d, 3) == 0 && label_of(d, 4) == 1);
    ck_assert_uint_eq(dataset_classes(d, &class, &class_samples), 2);
    EXPECT(strcmp(class[1], "y") == 0 && class_samples[0] == 3 && class_samples[1] == 2);
    struct dataset *other = open_path("b + a");
    uint8_t one[16], two[16];
    dataset_fingerprint(d, one);
    dataset_fingerprint(other, two);
    EXPECT(memcmp(one, two, sizeof one) != 0);
    dataset_free(d);
    dataset_free(other);
    /* shards are numbered through; every part has its labels */
    make_file("r1.bin", bytes, 40);
    make_file("r2.bin", bytes, 20);
    make_file("r3.bin", bytes, 30);
    d = open_with(&(struct dataset_options){.path = "r1.bin,r2.bin + r3.bin", .record = "v:u8[10]"});
    ck_assert_uint_eq(dataset_shards(d, &first), 3);
    EXPECT(first[0] == 0 && first[1] == 4 && first[2] == 6 && first[3] == 9);
    struct location at;
    dataset_locate(d, 7, &at);
    EXPECT(at.extent[0].offset == 10 && strcmp(at.extent[0].file->path, "r3.bin") == 0);
    ck_assert_str_eq(name_of(d, 5), "r2.bin#1");
    dataset_free(d);
    uint8_t value[3], again[3];
    d = open_path("synthetic:5x3:u8 + synthetic:7x3:u8");
    dataset_synthesize(d, 6, 0, value);
    dataset_synthesize(d, 1, 0, again);
    EXPECT(memcmp(value, again, 3) == 0 && label_of(d, 6) == 1);
    dataset_free(d);
}
END_TEST

START_TEST(joined_datasets_that_do_not_fit) {
    const uint8_t bytes[40] = {0};
    touch("a/x/1.jpg");
    touch("b/x/4.jpg");
    touch("b/y/5.jpg");
    touch("c/z/5.jpg");
    touch("flat/5.jpg");
    make_file("r1.bin", bytes, 40);
    refuse_with(&(struct dataset_options){.path = "a + b"}, -EINVAL, "a has 1 classes and b has 2|classes = FILE");
    refuse_with(&(struct dataset_options){.path = "a + c"}, -EINVAL, "class 0 is 'x' in a and 'z' in c|classes = FILE");
    refuse_with(&(struct dataset_options){.path = "a + flat"}, -EINVAL, "field 2 of a is label i64|of flat it is none");
    refuse_with(&(struct dataset_options){.path = "synthetic:5x3:u8 + synthetic:5x4:u8"}, -EINVAL,
                "image u8 3|image u8 4|same fields");
    refuse_with(&(struct dataset_options){.path = "a + nowhere"}, -ENOENT, "nowhere");
    refuse_with(&(struct dataset_options){.path = "a +  + b"}, -EINVAL, "one side of a '+'");
    refuse_with(&(struct dataset_options){.path = "a + a", .index = "own"}, -EINVAL, "index = own");
    refuse_with(&(struct dataset_options){.path = "r1.bin + r1.bin", .record = "v:u8[10]", .labels = "l.npy"}, -EINVAL,
                "labels = l.npy|as many files");
}
END_TEST

int main(void) {
    Suite *suite = suite_create("dataset");
    TCase *common = tcase_create("all");
    const TTest *const tests[] = {
        siphash_vectors,
        sorting_is_byte_order,
        classes_in_byte_order,
        nested_folders_in_the_order_of_torchvision,
        what_counts_as_a_sample,
        flat_and_mixed_folders,
        links_to_folders,
        class_list_refusals,
        folder_refusals,
        list_lines,
        list_refusals,
        list_in_pieces,
        layout_lines,
        raw_files,
        raw_refusals,
        labels_as_numpy_wrote_them,
        label_refusals,
        npy_headers,
        synthetic_sets,
        synthetic_values,
        foreign_files_are_named,
        index_gives_what_the_scan_gave,
        index_notices_changes,
        index_belongs_to_its_options,
        damaged_index,
        forged_index,
        large_list,
        places_of_the_index,
        untrusted_index,
        simultaneous_builders,
        index_of_a_list,
        fingerprints,
        progress_every_five_seconds,
        calls_of_a_scan,
        reading_ahead,
        no_descriptor_is_lost,
        joined_datasets,
        joined_datasets_that_do_not_fit,
    };
    tcase_add_checked_fixture(common, set_up, tear_down);
    tcase_set_timeout(common, 120);
    for (size_t i = 0; i < ARRAY_SIZE(tests); i++)
        tcase_add_test(common, tests[i]);
    suite_add_tcase(suite, common);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
