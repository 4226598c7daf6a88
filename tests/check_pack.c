/* SPDX-License-Identifier: MIT */
/*
 * Packs: one that another program wrote by the specification (tests/pack-reference.py) is read to the last word; every
 * damaged byte in front of its data is refused, every damaged byte of a record is found, a file cut anywhere serves what
 * is whole. The writer: what it writes is read back; interrupted at any point it goes on to the same bytes. Markers of
 * JPEG files: what they say, and copies without metadata.
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../tools/loaderctl/pack_writer.h"
#include "base/crc32c.h"
#include "base/util.h"
#include "dataset/dataset.h"
#include "decode/jpeg_markers.h"

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            ck_abort_msg("line %d: %s", __LINE__, #condition);                                                         \
    } while (0)

static char home[PATH_MAX], source[PATH_MAX];
static uint8_t tiny[16384];
static size_t tiny_length;

static size_t load(const char *path, uint8_t *bytes, size_t room) {
    FILE *file = fopen(path, "re");
    if (!file)
        ck_abort_msg("no %s: set srcdir to the source's top", path);
    size_t n = fread(bytes, 1, room, file);
    fclose(file);
    return n;
}

static void store(const char *path, const uint8_t *bytes, size_t length) {
    unlink(path); /* to cut a file and write it anew costs a flush */
    FILE *file = fopen(path, "we");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, length, file), length);
    ck_assert_int_eq(fclose(file), 0);
}

static void set_up(void) {
    const char *srcdir = getenv("srcdir"), *temporary = getenv("TMPDIR");
    char path[PATH_MAX];
    ck_assert_ptr_nonnull(realpath(srcdir ? srcdir : ".", source));
    snprintf(path, sizeof path, "%.4000s/tests/data/pack/tiny.pack", source);
    tiny_length = load(path, tiny, sizeof tiny);
    snprintf(home, sizeof home, "%s/loaderd-pack-XXXXXX", temporary ? temporary : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(home));
    ck_assert_int_eq(chdir(home), 0);
}

static void tear_down(void) {
    char command[PATH_MAX + 16];
    ck_assert_int_eq(chdir("/"), 0);
    snprintf(command, sizeof command, "rm -rf '%s'", home);
    ck_assert_int_eq(system(command), 0);
}

static int open_pack(const char *path, struct dataset **ret, struct diag *diag) {
    return dataset_open(&(struct dataset_options){.path = path}, ret, diag);
}

static void refuse(const char *path, const char *words) {
    struct dataset *dataset = NULL;
    struct diag diag = DIAG_INIT;
    EXPECT(open_pack(path, &dataset, &diag) < 0);
    if (!strstr(diag.text, words))
        ck_abort_msg("'%s' is not in: %s", words, diag.text);
}

/* Reads a sample's extents and compares its checksum. */
static int check_sample(const struct dataset *dataset, uint64_t sample, struct diag *diag) {
    struct location location;
    uint32_t state = 0;
    int r = 0;
    dataset_locate(dataset, sample, &location);
    for (uint32_t e = 0; e < location.extents && r == 0; e++) {
        const struct extent *extent = &location.extent[e];
        uint8_t bytes[256];
        ck_assert_uint_le(extent->length, sizeof bytes);
        ck_assert_int_eq(pread(extent->file->fd, bytes, extent->length, (off_t)extent->offset),
                         (ssize_t)extent->length);
        r = dataset_check(dataset, sample, e, bytes, extent->length, &state, diag);
    }
    return r;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

START_TEST(crc_is_castagnoli) {
    /* RFC 3720, B.4 */
    uint8_t bytes[32] = {0};
    ck_assert_uint_eq(crc32c(0, bytes, 32), 0x8a9136aa);
    memset(bytes, 0xff, 32);
    ck_assert_uint_eq(crc32c(0, bytes, 32), 0x62a8ab43);
    for (uint8_t i = 0; i < 32; i++)
        bytes[i] = i;
    ck_assert_uint_eq(crc32c(0, bytes, 32), 0x46dd794e);
    ck_assert_uint_eq(crc32c(crc32c(0, bytes, 5), bytes + 5, 27), 0x46dd794e);
}
END_TEST

/* What pack-reference.py wrote. */
START_TEST(a_pack_from_elsewhere) {
    struct dataset *dataset;
    struct diag diag = DIAG_INIT;
    const struct dataset_field *field;
    const char *const *names;
    const uint64_t *samples;
    struct location at;
    char name[100];
    store("tiny", tiny, tiny_length);
    if (open_pack("tiny", &dataset, &diag) < 0)
        ck_abort_msg("%s", diag.text);
    ck_assert_str_eq(dataset_format(dataset), "pack");
    ck_assert_uint_eq(dataset_samples(dataset), 3);
    ck_assert_uint_eq(dataset_fields(dataset, &field), 3);
    EXPECT(strcmp(field[0].spec.name, "label") == 0 && field[0].source == SOURCE_VALUE);
    EXPECT(strcmp(field[1].spec.name, "x") == 0 && field[1].source == SOURCE_BYTES && field[1].bytes == 8);
    EXPECT(field[1].spec.dtype == LOADERD_F32 && field[1].spec.ndim == 1 && field[1].spec.dims[0] == 2);
    EXPECT(strcmp(field[2].spec.name, "image") == 0 && field[2].source == SOURCE_PICTURE && field[2].extent == 1);
    ck_assert_uint_eq(dataset_classes(dataset, &names, &samples), 2);
    EXPECT(strcmp(names[0], "apple") == 0 && strcmp(names[1], "pear") == 0 && samples[0] == 1 && samples[1] == 1);
    static const int64_t label[] = {1, 0, -7};
    static const uint64_t length[] = {13, 0, 5};
    static const char *const was[] = {"a/one.jpg", "a/two.jpg", "b/three.jpg"};
    for (uint64_t i = 0; i < 3; i++) {
        dataset_locate(dataset, i, &at);
        EXPECT(at.extents == 2 && at.value[0] == label[i] && at.extent[0].length == 8 &&
               at.extent[1].length == length[i]);
        EXPECT(at.extent[1].offset == at.extent[0].offset + 8);
        EXPECT(dataset_short_name(dataset, i, name, sizeof name) > 0 && strcmp(name, was[i]) == 0);
        EXPECT(check_sample(dataset, i, &diag) == 0);
    }
    EXPECT(memcmp(tiny + at.extent[1].offset, "third", 5) == 0);
    EXPECT(dataset_name(dataset, 2, name, sizeof name) > 0 && strcmp(name, "tiny#2 (b/three.jpg)") == 0);
    EXPECT(dataset_verify(dataset, 0, &diag) == 0 && dataset_remarks(dataset) == 0);
    dataset_free(dataset);
}
END_TEST

/* Each byte in front of the data, each of the data, each of the names. */
START_TEST(every_damaged_byte_is_found) {
    uint64_t data = 8192, names;
    memcpy(&names, tiny + 80, sizeof names);
    store("tiny.pack", tiny, tiny_length);
    int fd = open("tiny.pack", O_WRONLY | O_CLOEXEC);
    for (size_t i = 0; i < tiny_length; i++) {
        struct dataset *dataset = NULL;
        struct diag diag = DIAG_INIT;
        uint8_t byte = tiny[i] ^ (uint8_t)(1u << i % 8);
        ck_assert_int_eq(pwrite(fd, &byte, 1, (off_t)i), 1);
        int r = dataset_open(&(struct dataset_options){.path = "tiny.pack", .format = "pack"}, &dataset, &diag);
        if (i < data) {
            if (r == 0)
                ck_abort_msg("byte %zu is damaged and nobody minds", i);
            ck_assert_ptr_nonnull(strstr(diag.text, "tiny.pack"));
            ck_assert_int_eq(pwrite(fd, &tiny[i], 1, (off_t)i), 1);
            continue;
        }
        ck_assert_int_eq(r, 0);
        int bad = 0;
        for (uint64_t k = 0; k < 3; k++)
            bad += check_sample(dataset, k, &diag) == -EBADMSG;
        bool padding = (i >= data + 21 && i < data + 24) || (i >= data + 45 && i < names); /* between records */
        ck_assert_int_eq(bad, i < names && !padding);
        ck_assert_int_eq(dataset_verify(dataset, 0, &diag), i < names ? 0 : -EBADMSG);
        dataset_free(dataset);
        ck_assert_int_eq(pwrite(fd, &tiny[i], 1, (off_t)i), 1);
    }
    close(fd);
}
END_TEST

START_TEST(cut_anywhere) {
    for (size_t length = 0; length < tiny_length; length += length < 8000 ? 499 : 1) {
        struct dataset *dataset = NULL;
        struct diag diag = DIAG_INIT;
        store("tiny.pack", tiny, length);
        int r = dataset_open(&(struct dataset_options){.path = "tiny.pack", .format = "pack"}, &dataset, &diag);
        if (length < 8192) {
            EXPECT(r < 0 && strstr(diag.text, "tiny.pack"));
            continue;
        }
        ck_assert_int_eq(r, 0);
        ck_assert_uint_eq(dataset_samples(dataset), 3); /* numbers stay what they are */
        ck_assert_uint_eq(dataset_remarks(dataset), 1);
        EXPECT(strstr(dataset_remark(dataset, 0), "was cut"));
        static const size_t end[] = {8192 + 21, 8192 + 32, 8192 + 45};
        for (uint64_t i = 0; i < 3; i++) {
            struct location at;
            dataset_locate(dataset, i, &at);
            bool lost = length < end[i];
            EXPECT(at.extents == 2 && (at.extent[0].length == 0) == lost);
            ck_assert_int_eq(check_sample(dataset, i, &diag), lost ? -EBADMSG : 0);
        }
        ck_assert_int_eq(dataset_verify(dataset, 0, &diag), -EBADMSG);
        dataset_free(dataset);
    }
}
END_TEST

START_TEST(refusals) {
    uint8_t copy[sizeof tiny];
    memcpy(copy, tiny, tiny_length);
    copy[8] = 2;
    store("newer", copy, tiny_length);
    refuse("newer", "newer: pack version 2, this program reads version 1: it needs a newer loaderd");
    copy[8] = 1;
    copy[512 + 96] = 9; /* storage of field 0 */
    pack_seal(copy);
    store("storage", copy, tiny_length);
    refuse("storage", "field 'label' is stored in way 9");
    memcpy(copy, tiny, tiny_length);
    copy[513] = '/'; /* a name that would be a path */
    pack_seal(copy);
    store("name", copy, tiny_length);
    refuse("name", "a field has no sound name");
    memcpy(copy, tiny, tiny_length);
    copy[40] = 255; /* more records than the index has room for */
    pack_seal(copy);
    store("records", copy, tiny_length);
    refuse("records", "index does not fit");
    memcpy(copy, tiny, tiny_length);
    uint64_t index, far = UINT64_MAX - 3;
    memcpy(&index, copy + 56, sizeof index);
    memcpy(copy + index + 32, &far, sizeof far);
    pack_seal(copy);
    store("offset", copy, tiny_length);
    refuse("offset", "record 1 lies at byte 18446744073709551612, outside the data");
    store("longer", tiny, tiny_length + 100);
    struct dataset *dataset;
    struct diag diag = DIAG_INIT;
    ck_assert_int_eq(open_pack("longer", &dataset, &diag), 0);
    EXPECT(dataset_remarks(dataset) == 1 && strstr(dataset_remark(dataset, 0), "100 bytes behind its end"));
    dataset_free(dataset);
}
END_TEST

/* ---- writing ----------------------------------------------------------------------------------------------------- */

#define SAMPLES 100u

static const char *const class_names[] = {"one", "two"};

static void make_spec(struct pack_spec *ret, uint32_t shard, uint32_t shards) {
    *ret = (struct pack_spec){.fields = 2,
                              .classes = 2,
                              .class_name = class_names,
                              .origin = "source=test\n",
                              .shard = shard,
                              .shards = shards,
                              .alignment = 8,
                              .source_first = SAMPLES * shard / shards,
                              .source_samples = SAMPLES * (shard + 1) / shards - SAMPLES * shard / shards};
    ret->field[0] = (struct pack_field){
        .name = "image", .dtype = LOADERD_U8, .ndim = 3, .dims = {-1, -1, -1}, .storage = PACK_PICTURE};
    ret->field[1] = (struct pack_field){.name = "label", .dtype = LOADERD_I64, .storage = PACK_VALUE};
    memcpy(ret->set, "fifteen letters", 16);
}

static int name_of(void *arg, uint64_t i, char *buffer, size_t size) {
    (void)arg;
    return snprintf(buffer, size, "n%llu", (unsigned long long)i);
}

/* Adds samples up to `end`; every seventh is left out. */
static void add_samples(struct pack_writer *writer, uint64_t end) {
    uint8_t bytes[64];
    for (uint64_t i = pack_writer_done(writer); i < end; i++) {
        if (i % 7 == 3) {
            ck_assert_int_eq(pack_writer_skip(writer, NULL), 0);
            continue;
        }
        struct pack_item item = {.bytes = bytes, .length = i % 50, .value = {0, (int64_t)(i % 2)}};
        memset(bytes, (int)i, sizeof bytes);
        item.picture[0] = (struct pack_picture){.length = (uint32_t)item.length, .width = 4, .height = 5};
        ck_assert_int_eq(pack_writer_add(writer, &item, NULL), 0);
    }
}

static void write_pack(const char *path) {
    struct pack_spec spec;
    struct pack_writer *writer;
    struct diag diag = DIAG_INIT;
    make_spec(&spec, 0, 1);
    if (pack_writer_new(path, &spec, &writer, &diag) < 0)
        ck_abort_msg("%s", diag.text);
    add_samples(writer, SAMPLES);
    ck_assert_int_eq(pack_writer_finish(writer, name_of, NULL, &diag), 0);
    pack_writer_free(writer);
    char left[PATH_MAX];
    snprintf(left, sizeof left, "%s.partial", path);
    EXPECT(access(left, F_OK) != 0);
    snprintf(left, sizeof left, "%s.job", path);
    EXPECT(access(left, F_OK) != 0);
}

START_TEST(what_is_written_is_read) {
    struct dataset *dataset;
    struct diag diag = DIAG_INIT;
    char name[64], want[64];
    write_pack("a.pack");
    if (open_pack("a.pack", &dataset, &diag) < 0)
        ck_abort_msg("%s", diag.text);
    ck_assert_uint_eq(dataset_samples(dataset), SAMPLES - 14);
    uint64_t sample = 0;
    for (uint64_t i = 0; i < SAMPLES; i++) {
        struct location at;
        if (i % 7 == 3)
            continue;
        dataset_locate(dataset, sample, &at);
        EXPECT(at.extents == 1 && at.extent[0].length == i % 50 && at.value[1] == (int64_t)(i % 2));
        EXPECT(at.extent[0].offset % 8 == 0 && check_sample(dataset, sample, &diag) == 0);
        snprintf(want, sizeof want, "n%llu", (unsigned long long)i);
        EXPECT(dataset_short_name(dataset, sample, name, sizeof name) > 0 && strcmp(name, want) == 0);
        sample++;
    }
    ck_assert_int_eq(dataset_verify(dataset, 0, &diag), 0);
    dataset_free(dataset);
}
END_TEST

/* Left at every point, with and without what came behind its last checkpoint. */
START_TEST(interrupted_writers_go_on) {
    static uint8_t want[65536], got[65536];
    struct pack_spec spec;
    write_pack("whole.pack");
    size_t length = load("whole.pack", want, sizeof want);
    make_spec(&spec, 0, 1);
    for (uint64_t stop = 1; stop < SAMPLES; stop += 3) {
        struct pack_writer *writer;
        ck_assert_int_eq(pack_writer_new("b.pack", &spec, &writer, NULL), 0);
        add_samples(writer, stop);
        ck_assert_int_eq(pack_writer_checkpoint(writer, NULL), 0);
        if (stop % 2)
            add_samples(writer, MIN(stop + 5, SAMPLES));
        pack_writer_free(writer);
        if (stop % 4 == 3) { /* other bytes behind the data, as a killed writer leaves them */
            int fd = open("b.pack.partial", O_WRONLY | O_APPEND | O_CLOEXEC);
            ck_assert_int_eq(write(fd, want, 500), 500);
            close(fd);
        }
        ck_assert_int_eq(pack_writer_new("b.pack", &spec, &writer, NULL), 0);
        ck_assert_uint_eq(pack_writer_done(writer), stop);
        pack_writer_free(writer);
        write_pack("b.pack");
        ck_assert_uint_eq(load("b.pack", got, sizeof got), length);
        EXPECT(memcmp(want, got, length) == 0);
    }
}
END_TEST

/* A checkpoint that does not fit is none. */
START_TEST(damaged_checkpoints) {
    static uint8_t job[4096];
    struct pack_spec spec;
    struct pack_writer *writer, *other;
    struct diag diag = DIAG_INIT;
    make_spec(&spec, 0, 1);
    ck_assert_int_eq(pack_writer_new("c.pack", &spec, &writer, NULL), 0);
    add_samples(writer, 50);
    ck_assert_int_eq(pack_writer_checkpoint(writer, NULL), 0);
    ck_assert_int_eq(pack_writer_new("c.pack", &spec, &other, &diag), -EBUSY);
    pack_writer_free(writer);
    size_t length = load("c.pack.job", job, sizeof job);
    for (size_t i = 0; i <= length; i++) {
        if (i < length)
            job[i] ^= 0x10;
        store("c.pack.job", job, length - (i == length)); /* the last one: cut */
        if (i < length)
            job[i] ^= 0x10;
        int fd = open("c.pack.partial", O_RDONLY | O_CLOEXEC);
        uint8_t bytes[16384];
        ssize_t n = read(fd, bytes, sizeof bytes);
        close(fd);
        ck_assert_int_eq(pack_writer_new("c.pack", &spec, &other, NULL), 0);
        if (pack_writer_done(other) != 0)
            ck_abort_msg("byte %zu of a checkpoint is damaged and nobody minds", i);
        pack_writer_free(other);
        store("c.pack.partial", bytes, (size_t)n);
    }
    store("c.pack.job", job, length);
    ck_assert_int_eq(pack_writer_new("c.pack", &spec, &other, NULL), 0);
    ck_assert_uint_eq(pack_writer_done(other), 50);
    pack_writer_free(other);
}
END_TEST

/* ---- shards ------------------------------------------------------------------------------------------------------ */

static void write_shard(const char *path, uint32_t shard, uint32_t shards, char set) {
    struct pack_spec spec;
    struct pack_writer *writer;
    make_spec(&spec, shard, shards);
    spec.set[0] = (uint8_t)set;
    ck_assert_int_eq(pack_writer_new(path, &spec, &writer, NULL), 0);
    add_samples(writer, spec.source_samples);
    ck_assert_int_eq(pack_writer_finish(writer, NULL, NULL, NULL), 0);
    pack_writer_free(writer);
}

START_TEST(shards_by_number) {
    struct dataset *dataset;
    struct diag diag = DIAG_INIT;
    const uint64_t *first;
    char name[64];
    ck_assert_int_eq(mkdir("set", 0755), 0);
    write_shard("set/z.pack", 0, 3, 'a'); /* names say nothing */
    write_shard("set/y.pack", 1, 3, 'a');
    refuse("set", "shard 2 of the 3 of this pack is missing");
    write_shard("set/x.pack", 2, 3, 'a');
    store("set/README", (const uint8_t *)"words", 5);
    if (open_pack("set", &dataset, &diag) < 0)
        ck_abort_msg("%s", diag.text);
    ck_assert_uint_eq(dataset_shards(dataset, &first), 3);
    EXPECT(first[1] == 28 && first[2] == 56 && first[3] == 85 && first[3] == dataset_samples(dataset));
    EXPECT(dataset_short_name(dataset, 30, name, sizeof name) > 0 && strcmp(name, "000035") == 0);
    dataset_free(dataset);
    ck_assert_int_eq(open_pack("set/[yz].pack", &dataset, &diag), 0); /* named one by one: allowed */
    ck_assert_uint_eq(dataset_samples(dataset), 56);
    dataset_free(dataset);
    write_shard("set/w.pack", 2, 3, 'b');
    refuse("set", "are of different packs");
    unlink("set/w.pack");
    write_shard("set/w.pack", 2, 3, 'a');
    refuse("set", "are the same shard of a pack");
}
END_TEST

/* ---- markers ----------------------------------------------------------------------------------------------------- */

static const uint8_t with_metadata[] = {
    0xFF, 0xD8, 0xFF, 0xE0, 0, 7, 'J',  'F', 'I', 'F',  0,    0xFF, 0xE2, 0,    4,    'I', 'C', /* JFIF, a profile */
    0xFF, 0xFF, 0xFF, 0xFE, 0, 5, 'h',  'e', 'y', 0xFF, 0xEE, 0,    7,    'A',  'd',  'o', 'b',
    'e', /* comment, Adobe */
    0xFF, 0xC0, 0,    17,   8, 0, 4,    0,   6,   3,    1,    0x22, 0,    2,    0x11, 0,   3,
    0x11, 0, /* 6 x 4, 4:2:0 */
    0xFF, 0xDA, 0,    2,    1, 2, 0xFF, 0,   3,   0xFF, 0xD0, 4,    0xFF, 0xD9, 'e',  'n', 'd'};
static const uint8_t without[] = {0xFF, 0xD8, 0xFF, 0xE0, 0,   7,   'J',  'F',  'I', 'F',  0,   0xFF, 0xEE, 0,
                                  7,    'A',  'd',  'o',  'b', 'e', 0xFF, 0xC0, 0,   17,   8,   0,    4,    0,
                                  6,    3,    1,    0x22, 0,   2,   0x11, 0,    3,   0x11, 0,   0xFF, 0xDA, 0,
                                  2,    1,    2,    0xFF, 0,   3,   0xFF, 0xD0, 4,   0xFF, 0xD9};

START_TEST(markers) {
    struct jpeg_summary summary;
    uint8_t out[sizeof with_metadata + JPEG_STRIP_ROOM];
    EXPECT(jpeg_summarize(with_metadata, sizeof with_metadata, &summary));
    EXPECT(summary.width == 6 && summary.height == 4 && summary.components == 3 && summary.sampling == 0x22);
    EXPECT(summary.metadata && !summary.progressive && !summary.arithmetic && summary.orientation == 1);
    ck_assert_uint_eq(jpeg_strip(with_metadata, sizeof with_metadata, 1, out), sizeof without);
    EXPECT(memcmp(out, without, sizeof without) == 0);
    EXPECT(jpeg_summarize(without, sizeof without, &summary) && !summary.metadata);
    ck_assert_uint_eq(jpeg_strip(with_metadata, sizeof with_metadata, 6, out), sizeof without + 36);
    EXPECT(jpeg_summarize(out, sizeof without + 36, &summary) && summary.orientation == 6);
    for (size_t length = 0; length < sizeof with_metadata - 3; length++) /* without its end: nothing is understood */
        EXPECT(!jpeg_summarize(with_metadata, length, &summary) && !jpeg_strip(with_metadata, length, 1, out));
}
END_TEST

int main(void) {
    Suite *suite = suite_create("pack");
    TCase *reading = tcase_create("reading"), *writing = tcase_create("writing");
    tcase_add_checked_fixture(reading, set_up, tear_down);
    tcase_add_checked_fixture(writing, set_up, tear_down);
    tcase_set_timeout(reading, 60);
    tcase_set_timeout(writing, 60);
    tcase_add_test(reading, crc_is_castagnoli);
    tcase_add_test(reading, a_pack_from_elsewhere);
    tcase_add_test(reading, every_damaged_byte_is_found);
    tcase_add_test(reading, cut_anywhere);
    tcase_add_test(reading, refusals);
    tcase_add_test(writing, what_is_written_is_read);
    tcase_add_test(writing, interrupted_writers_go_on);
    tcase_add_test(writing, damaged_checkpoints);
    tcase_add_test(writing, shards_by_number);
    tcase_add_test(reading, markers);
    suite_add_tcase(suite, reading);
    suite_add_tcase(suite, writing);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
