/* SPDX-License-Identifier: MIT */
/*
 * Reading: one list of cases over every engine, and over uring with its shortcuts switched off. The bytes of the files
 * are a fixed function of their place, so that a byte from elsewhere is noticed. Faults come through the seam that
 * reader_new() reads from the environment; each case is a process of its own.
 */
#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/util.h"
#include "read/engine.h"
#include "read/read.h"

#define SECOND UINT64_C(1000000000)
#define MIB (1024u * 1024u)

static const struct variant {
    const char *name;
    enum read_engine engine;
    const char *off; /* LOADERD_URING_OFF */
    enum read_direct direct;
} variants[] = {
    {"pread", READ_PREAD, NULL, READ_DIRECT_NO},
    {"mmap", READ_MMAP, NULL, READ_DIRECT_NO},
    {"uring", READ_URING, NULL, READ_DIRECT_AUTO},
    {"uring without chains", READ_URING, "chain", READ_DIRECT_NO},
    {"uring past the page cache", READ_URING, NULL, READ_DIRECT_YES},
    {"uring without anything", READ_URING, "chain,single-issuer,coop-taskrun,registered-ring,iowq-limit,resident",
     READ_DIRECT_NO},
};
#define VARIANTS ((int)ARRAY_SIZE(variants))

static char directory[256];
static int directory_fd = -1;

/* ---- files ---- */

static uint8_t byte_at(uint64_t seed, uint64_t offset) {
    uint64_t x = (offset / 8 + 1) * UINT64_C(0x9E3779B97F4A7C15) + seed * UINT64_C(0xBF58476D1CE4E5B9);
    x ^= x >> 31;
    x *= UINT64_C(0x94D049BB133111EB);
    return (uint8_t)(x >> (8 * (offset % 8)));
}

static void write_file(const char *name, uint64_t seed, size_t length) {
    uint8_t *bytes = malloc(length + 1);
    ck_assert_ptr_nonnull(bytes);
    for (size_t i = 0; i < length; i++)
        bytes[i] = byte_at(seed, i);
    unlinkat(directory_fd, name, 0); /* ext4 writes a file to disk at once where it is truncated instead */
    int fd = openat(directory_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, bytes, length), (ssize_t)length);
    close(fd);
    free(bytes);
}

static void expect_bytes(const uint8_t *bytes, uint64_t seed, uint64_t offset, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (bytes[i] != byte_at(seed, offset + i))
            ck_abort_msg("byte %zu of %zu is wrong", i, length);
}

static void set_up(void) {
    const char *base = getenv("TMPDIR");
    snprintf(directory, sizeof directory, "%s/check_read.XXXXXX", base ? base : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    ck_assert_int_eq(chmod(directory, 0755), 0);
    directory_fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ck_assert_int_ge(directory_fd, 0);
}

static void tear_down(void) {
    DIR *d = fdopendir(directory_fd);
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.' && unlinkat(dirfd(d), e->d_name, 0) < 0)
            unlinkat(dirfd(d), e->d_name, AT_REMOVEDIR);
    closedir(d);
    rmdir(directory);
}

static struct source_file open_source(const char *name) {
    struct source_file file = {.fd = openat(directory_fd, name, O_RDONLY | O_CLOEXEC)};
    struct stat st;
    ck_assert_int_ge(file.fd, 0);
    ck_assert_int_eq(fstat(file.fd, &st), 0);
    ck_assert_int_ge(asprintf(&file.path, "%s/%s", directory, name), 0);
    file.identity = (struct file_identity){st.st_dev, st.st_ino, (uint64_t)st.st_size,
                                           st.st_mtim.tv_sec * INT64_C(1000000000) + st.st_mtim.tv_nsec};
    return file;
}

static void close_source(struct source_file *file) {
    close(file->fd);
    free(file->path);
}

static unsigned open_descriptors(void) {
    unsigned n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

/* Sanitizers keep freed memory, and their own handlers end a process in another way. */
static bool sanitized(void) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
    return true;
#else
    return false;
#endif
#else
    return false;
#endif
}

static uint64_t resident_bytes(void) {
    unsigned long size = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    ck_assert_int_eq(fscanf(f, "%lu %lu", &size, &resident), 2);
    fclose(f);
    return (uint64_t)resident * 4096;
}

/* ---- readers ---- */

/* NULL where this machine has no io_uring: said once on stderr. */
static struct reader *open_reader(int variant, unsigned depth, uint64_t max_bytes) {
    const struct variant *v = &variants[variant];
    struct reader *reader = NULL;
    struct diag diag = DIAG_INIT;
    if (v->off)
        setenv("LOADERD_URING_OFF", v->off, 1);
    else
        unsetenv("LOADERD_URING_OFF");
    if (read_choose(v->engine, &diag) != v->engine) {
        fprintf(stderr, "skipped: %s: %s\n", v->name, diag.text);
        return NULL;
    }
    struct read_options options = {v->engine, depth, max_bytes, v->direct, UINT64_MAX};
    ck_assert_msg(reader_new(&options, &reader, &diag) == 0, "%s: %s", v->name, diag.text);
    return reader;
}

#define OPEN_OR_SKIP(reader, depth, max_bytes)                                                                         \
    struct reader *reader = open_reader(_i, depth, max_bytes);                                                         \
    if (!reader)                                                                                                       \
    return

static struct read_request by_path(uint32_t tag, const char *name) {
    return (struct read_request){.tag = tag,
                                 .extent = {.path = name, .dirfd = directory_fd, .length = EXTENT_WHOLE_FILE}};
}

static struct read_request by_file(uint32_t tag, const struct source_file *file, uint64_t offset, uint64_t length) {
    return (struct read_request){.tag = tag, .extent = {.file = file, .dirfd = -1, .offset = offset, .length = length}};
}

static struct read_result read_one(struct reader *reader, struct read_request request) {
    struct read_result result = {0};
    reader_submit(reader, &request);
    reader_flush(reader);
    ck_assert_uint_eq(reader_in_flight(reader), 1);
    ck_assert_int_eq(reader_reap(reader, 20 * SECOND, &result), 1);
    ck_assert_uint_eq(reader_in_flight(reader), 0);
    ck_assert_uint_eq(result.tag, request.tag);
    return result;
}

static void expect_good(struct reader *reader, struct read_request request, uint64_t seed, size_t length) {
    struct read_result result = read_one(reader, request);
    ck_assert_msg(result.error == 0, "%s", result.diag->text);
    ck_assert_uint_eq(result.length, length);
    if (request.into)
        ck_assert_ptr_eq(result.bytes, request.into);
    expect_bytes(result.bytes, seed, request.extent.offset, length);
    ck_assert_int_eq(reader_done(reader, request.tag, NULL), 0);
}

/* The request fails with `error`, and its sentence holds the words. */
static void expect_error(struct reader *reader, struct read_request request, int error, const char *word,
                         const char *other) {
    struct read_result result = read_one(reader, request);
    ck_assert_msg(result.error == error, "error %d, wanted %d: %s", result.error, error, result.diag->text);
    ck_assert_int_eq(result.diag->code, error);
    ck_assert_msg(strstr(result.diag->text, word) && strstr(result.diag->text, other), "no \"%s\" and \"%s\" in: %s",
                  word, other, result.diag->text);
    ck_assert_int_eq(reader_done(reader, request.tag, NULL), 0);
}

/* ---- cases over all engines ---- */

START_TEST(test_sizes) {
    OPEN_OR_SKIP(reader, 4, 2 * MIB);
    static const size_t sizes[] = {0,    1,     2,      7,      63,     64,     65,     511,  512,
                                   513,  999,   1000,   1001,   4095,   4096,   4097,   8191, 8192,
                                   8193, 65535, 262079, 262080, 262081, 262144, 262145, MIB,  MIB + 1};
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        write_file("a", i, sizes[i]);
        expect_good(reader, by_path((uint32_t)(i % 4), "a"), i, sizes[i]);
        struct source_file file = open_source("a");
        expect_good(reader, by_file(1, &file, 0, sizes[i]), i, sizes[i]);
        close_source(&file);
    }
    reader_free(reader);
}
END_TEST

START_TEST(test_every_size) {
    OPEN_OR_SKIP(reader, 16, 16384);
    char names[16][16];
    for (unsigned base = 0; base <= 8193; base += 16) {
        for (unsigned i = 0; i < 16 && base + i <= 8193; i++) {
            snprintf(names[i], sizeof names[i], "f%u", i);
            write_file(names[i], base + i, base + i);
            struct read_request request = by_path(i, names[i]);
            reader_submit(reader, &request);
        }
        reader_flush(reader);
        struct read_result result;
        while (reader_in_flight(reader)) {
            ck_assert_int_eq(reader_reap(reader, 20 * SECOND, &result), 1);
            ck_assert_msg(result.error == 0, "%s", result.diag->text);
            ck_assert_uint_eq(result.length, base + result.tag);
            expect_bytes(result.bytes, base + result.tag, 0, result.length);
            ck_assert_int_eq(reader_done(reader, result.tag, NULL), 0);
        }
    }
    reader_free(reader);
}
END_TEST

START_TEST(test_extents) {
    OPEN_OR_SKIP(reader, 4, MIB);
    write_file("shard", 5, 3 * MIB + 17);
    struct source_file file = open_source("shard");
    static const uint64_t extents[][2] = {{0, 1},       {1, 1},         {3, 4095},         {4095, 2},
                                          {4096, 4096}, {12345, 54321}, {MIB - 1, 2},      {2 * MIB + 1, MIB},
                                          {7, MIB},     {3 * MIB, 17},  {3 * MIB + 16, 1}, {3 * MIB + 17, 0}};
    uint8_t *into = malloc(MIB + 2);
    for (size_t i = 0; i < ARRAY_SIZE(extents); i++) {
        struct read_request request = by_file(i % 4, &file, extents[i][0], extents[i][1]);
        expect_good(reader, request, 5, extents[i][1]);
        struct read_request named = by_path(i % 4, "shard");
        named.extent.offset = extents[i][0];
        named.extent.length = extents[i][1];
        expect_good(reader, named, 5, extents[i][1]);
        memset(into, 0xee, MIB + 2);
        request.into = named.into = into + 1;
        expect_good(reader, request, 5, extents[i][1]);
        ck_assert_int_eq(into[0], 0xee);
        ck_assert_int_eq(into[extents[i][1] + 1], 0xee);
        memset(into, 0xee, MIB + 2);
        expect_good(reader, named, 5, extents[i][1]);
        ck_assert_int_eq(into[0], 0xee);
        ck_assert_int_eq(into[extents[i][1] + 1], 0xee);
    }
    struct read_request rest = by_path(0, "shard");
    rest.extent.offset = 2 * MIB + 5;
    struct read_result result = read_one(reader, rest);
    ck_assert_int_eq(result.error, -EFBIG);
    reader_done(reader, 0, NULL);
    rest.extent.offset = 2 * MIB + 17;
    expect_good(reader, rest, 5, MIB);
    free(into);
    close_source(&file);
    reader_free(reader);
}
END_TEST

/* Every size, at offsets aligned and not, into memory aligned and not; the last ones end with the file. */
START_TEST(test_every_extent) {
    enum { SHARD = 70000, MOST = 8193 };
    static const uint64_t offsets[] = {0, 1, 511, 512, 513, 4095, 4096, 4097, 12288, 61440};
    OPEN_OR_SKIP(reader, 4, MIB);
    write_file("shard", 6, SHARD);
    struct source_file file = open_source("shard");
    uint8_t *into = aligned_alloc(4096, 4 * 4096);
    ck_assert_ptr_nonnull(into);
    for (uint64_t size = 0; size <= MOST; size++) {
        uint64_t offset = size % 11 == 10 ? SHARD - size : offsets[size % 11];
        struct read_request request = by_file(size % 4, &file, offset, size);
        expect_good(reader, request, 6, size);
        uint8_t *at = into + (size % 3 == 0 ? 4096 : size % 3 == 1 ? 512 : 77);
        at[-1] = at[size] = 0xee;
        request.into = at;
        expect_good(reader, request, 6, size);
        ck_assert(at[-1] == 0xee && at[size] == 0xee);
    }
    for (uint64_t size = 512; size <= 8192; size += 512) {
        struct read_request request = by_file(0, &file, size, size);
        request.into = into;
        into[size] = 0xee;
        expect_good(reader, request, 6, size);
        ck_assert_int_eq(into[size], 0xee);
    }
    free(into);
    close_source(&file);
    reader_free(reader);
}
END_TEST

START_TEST(test_large_mapped_file) {
    OPEN_OR_SKIP(reader, 2, 8 * MIB);
    write_file("large", 9, 5 * MIB + 3);
    expect_good(reader, by_path(0, "large"), 9, 5 * MIB + 3);
    struct read_request odd = by_path(1, "large");
    odd.extent.offset = 4099;
    odd.extent.length = 5 * MIB - 4099;
    expect_good(reader, odd, 9, 5 * MIB - 4099);
    expect_good(reader, by_path(0, "large"), 9, 5 * MIB + 3);
    reader_free(reader);
}
END_TEST

START_TEST(test_bad_files) {
    OPEN_OR_SKIP(reader, 4, MIB);
    ck_assert_int_eq(mkdirat(directory_fd, "sub", 0755), 0);
    ck_assert_int_eq(symlinkat("nowhere", directory_fd, "dangling"), 0);
    ck_assert_int_eq(symlinkat("loop", directory_fd, "loop"), 0);
    ck_assert_int_eq(mkfifoat(directory_fd, "fifo", 0644), 0);
    write_file("good", 1, 5000);
    write_file("long", 1, MIB + 1);
    write_file("longer", 1, 2 * MIB);
    for (uint32_t tag = 0; tag < 3; tag++) {
        expect_error(reader, by_path(tag, "missing"), -ENOENT, directory, "/missing: no such file");
        expect_error(reader, by_path(tag, "sub"), -EISDIR, "/sub", "is a directory");
        expect_error(reader, by_path(tag, "dangling"), -ENOENT, "/dangling", "symbolic link to nowhere");
        expect_error(reader, by_path(tag, "loop"), -ELOOP, "/loop", "cannot open");
        expect_error(reader, by_path(tag, "fifo"), -EINVAL, "/fifo", "not a regular file");
        expect_error(reader, by_path(tag, "long"), -EFBIG, "1048577 bytes", "max-sample-bytes=1048576");
        expect_error(reader, by_path(tag, "longer"), -EFBIG, "2097152 bytes", "raise max-sample-bytes");
        expect_error(reader, by_path(tag, "good/x"), -ENOTDIR, "good/x", "Not a directory");
        expect_good(reader, by_path(tag, "good"), 1, 5000);
    }
    struct source_file file = open_source("longer");
    expect_error(reader, by_file(0, &file, 0, MIB + 1), -EFBIG, "1048577 bytes", "max-sample-bytes=1048576");
    expect_error(reader, by_file(0, &file, INT64_MAX, 2), -EINVAL, "no file is as long", "9223372036854775807");
    expect_error(reader, by_file(0, &file, 8, EXTENT_WHOLE_FILE), -EINVAL, "longer", "as a whole");
    expect_error(reader, by_file(0, &file, UINT64_MAX - 1, 7), -EINVAL, "no file is as long", "longer");
    close_source(&file);
    const struct read_counters *counters = reader_counters(reader);
    ck_assert_uint_eq(counters->requests, 3 * 9 + 4);
    ck_assert_uint_eq(counters->errors, 3 * 8 + 4);
    ck_assert_uint_eq(counters->bytes, 3 * 5000);
    reader_free(reader);
}
END_TEST

START_TEST(test_unreadable) {
    write_file("secret", 1, 100);
    ck_assert_int_eq(fchmodat(directory_fd, "secret", 0, 0), 0);
    if (geteuid() == 0)
        ck_assert_int_eq(setresuid(65534, 65534, 0), 0);
    OPEN_OR_SKIP(reader, 1, MIB);
    expect_error(reader, by_path(0, "secret"), -EACCES, "/secret", "may not read it");
    reader_free(reader);
    if (getuid() == 65534)
        ck_assert_int_eq(setresuid(0, 0, 0), 0);
}
END_TEST

START_TEST(test_short_file) {
    OPEN_OR_SKIP(reader, 2, MIB);
    write_file("short", 2, 10000);
    struct source_file file = open_source("short");
    uint8_t into[20000];
    expect_error(reader, by_file(0, &file, 9000, 1001), -ESTALE, "/short at offset 9000 (1001 bytes)",
                 "file shrank: wanted 1001 bytes, found 1000");
    expect_error(reader, by_file(0, &file, 20000, 5), -ESTALE, "offset 20000", "wanted 5 bytes, found 0");
    struct read_request request = by_file(0, &file, 0, 20000);
    request.into = into;
    expect_error(reader, request, -ESTALE, "/short", "file shrank: wanted 20000 bytes, found 10000");
    request = by_path(0, "short");
    request.extent.offset = 100;
    request.extent.length = 10000;
    expect_error(reader, request, -ESTALE, "/short at offset 100", "file shrank: wanted 10000 bytes, found 9900");
    request.into = into;
    expect_error(reader, request, -ESTALE, "/short at offset 100", "file shrank: wanted 10000 bytes, found 9900");
    expect_good(reader, by_file(0, &file, 1, 9999), 2, 9999);
    close_source(&file);
    reader_free(reader);
}
END_TEST

START_TEST(test_shrunk_while_open) {
    OPEN_OR_SKIP(reader, 2, MIB);
    write_file("shard", 2, 300000);
    struct source_file file = open_source("shard");
    expect_good(reader, by_file(0, &file, 5, 299995), 2, 299995);
    ck_assert_int_eq(truncate(file.path, 100000), 0);
    expect_error(reader, by_file(0, &file, 50000, 200000), -ESTALE, "/shard at offset 50000",
                 "file shrank: wanted 200000 bytes, found 50000");
    uint8_t *into = malloc(200000);
    struct read_request request = by_file(1, &file, 50000, 200000);
    request.into = into;
    expect_error(reader, request, -ESTALE, "/shard at offset 50000", "file shrank: wanted 200000 bytes, found 50000");
    expect_error(reader, by_file(0, &file, 0, 1000), -ESTALE, "size wanted 300000 bytes, found 100000",
                 "open the dataset again");
    free(into);
    close_source(&file);
    reader_free(reader);
}
END_TEST

START_TEST(test_replaced) {
    OPEN_OR_SKIP(reader, 2, MIB);
    write_file("shard", 2, 5000);
    write_file("other", 3, 5000);
    struct source_file file = open_source("shard"), wrong = open_source("shard");
    struct diag diag = DIAG_INIT;
    ck_assert_int_eq(read_check_file(&file, &diag), 0);
    wrong.identity.inode++;
    expect_error(reader, by_file(0, &wrong, 0, 10), -ESTALE, "/shard", "replaced by another one");

    /* another file takes the name: what is open stays readable, and the check by name tells */
    ck_assert_int_eq(renameat(directory_fd, "other", directory_fd, "shard"), 0);
    expect_good(reader, by_file(0, &file, 10, 4990), 2, 4990);
    ck_assert_int_eq(read_check_file(&file, &diag), -ESTALE);
    ck_assert_ptr_nonnull(strstr(diag.text, "replaced by another one"));
    ck_assert_int_eq(unlinkat(directory_fd, "shard", 0), 0);
    ck_assert_int_eq(read_check_file(&file, &diag), -ENOENT);
    close_source(&file);
    close_source(&wrong);

    /* the same length, written to in place */
    write_file("third", 2, 5000);
    file = open_source("third");
    expect_good(reader, by_file(0, &file, 10, 4990), 2, 4990);
    struct timespec times[2] = {{1, 0}, {1, 0}};
    ck_assert_int_eq(utimensat(directory_fd, "third", times, 0), 0);
    expect_error(reader, by_file(0, &file, 10, 4990), -ESTALE, "/third at offset 10", "modification time");
    ck_assert_int_eq(read_check_file(&file, &diag), -ESTALE);
    close_source(&file);
    reader_free(reader);
}
END_TEST

/* A source file's structure at the address of an earlier one: its bytes, not the old mapping's. */
START_TEST(test_address_used_again) {
    OPEN_OR_SKIP(reader, 1, MIB);
    for (uint64_t i = 0; i < 20; i++) {
        write_file("new", i, 5000);
        struct source_file file = open_source("new");
        ck_assert_int_eq(unlinkat(directory_fd, "new", 0), 0);
        expect_good(reader, by_file(0, &file, 3, 4000), i, 4000);
        close_source(&file);
    }
    reader_free(reader);
}
END_TEST

START_TEST(test_depth_and_order) {
    const unsigned depth = 64;
    OPEN_OR_SKIP(reader, depth, MIB);
    char names[64][16];
    write_file("shard", 1000, 640000);
    struct source_file file = open_source("shard");
    for (unsigned i = 0; i < depth; i++) {
        snprintf(names[i], sizeof names[i], "d%u", i);
        write_file(names[i], i, 1000 + 777 * i);
    }
    struct read_result results[64];
    for (int round = 0; round < 10; round++) {
        for (unsigned i = 0; i < depth; i++) {
            unsigned tag = (i * 37 + 11) % depth;
            struct read_request request = by_path(tag, names[tag]);
            if (tag % 3 == 0)
                request = by_file(tag, &file, tag * 10000, 10000);
            reader_submit(reader, &request);
        }
        ck_assert_uint_eq(reader_in_flight(reader), depth);
        reader_flush(reader);
        bool seen[64] = {false};
        for (unsigned i = 0; i < depth; i++) {
            ck_assert_int_eq(reader_reap(reader, 20 * SECOND, &results[i]), 1);
            ck_assert(!seen[results[i].tag]);
            seen[results[i].tag] = true;
        }
        ck_assert_int_eq(reader_reap(reader, 20 * SECOND, &results[0]), 0);
        for (unsigned i = 0; i < depth; i++) { /* all of them stay valid until done, in an order of ours */
            const struct read_result *r = &results[(i * 29 + 5) % depth];
            bool source = r->tag % 3 == 0;
            ck_assert_msg(r->error == 0, "%s", r->diag->text);
            ck_assert_uint_eq(r->length, source ? 10000 : 1000 + 777 * r->tag);
            expect_bytes(r->bytes, source ? 1000 : r->tag, source ? r->tag * 10000 : 0, r->length);
            ck_assert_int_eq(reader_done(reader, r->tag, NULL), 0);
        }
    }
    close_source(&file);
    reader_free(reader);
}
END_TEST

/* Freed with reads in flight, finished and reaped: waits, leaks nothing. */
START_TEST(test_free_in_flight) {
    unsigned before = open_descriptors();
    for (int n = 0; n < 20; n++) {
        OPEN_OR_SKIP(reader, 32, MIB);
        write_file("a", 1, 100000);
        for (uint32_t i = 0; i < 32; i++) {
            struct read_request request = by_path(i, i % 5 ? "a" : "missing");
            reader_submit(reader, &request);
        }
        struct read_result result;
        reader_flush(reader);
        for (int i = 0; i < n; i++)
            ck_assert_int_eq(reader_reap(reader, 20 * SECOND, &result), 1);
        reader_free(reader);
    }
    ck_assert_uint_eq(open_descriptors(), before);
    reader_free(NULL);
}
END_TEST

START_TEST(test_no_leak) {
    const unsigned depth = 32;
    unsigned without = open_descriptors();
    OPEN_OR_SKIP(reader, depth, MIB);
    write_file("a", 1, 3000);
    write_file("shard", 2, 100000);
    struct source_file file = open_source("shard");
    unsigned before = 0;
    uint64_t resident = 0;
    struct read_result result;
    for (unsigned n = 0; n < 100000; n++) {
        struct read_request request = by_path(n % depth, n % 64 == 63 ? "missing" : "a");
        if (n % 2)
            request = by_file(n % depth, &file, n % 90000, 9000);
        reader_submit(reader, &request);
        if (n % depth != depth - 1)
            continue;
        reader_flush(reader);
        while (reader_in_flight(reader)) {
            ck_assert_int_eq(reader_reap(reader, 20 * SECOND, &result), 1);
            ck_assert_int_eq(reader_done(reader, result.tag, NULL), 0);
        }
        if (n < 10000) {
            before = open_descriptors();
            resident = resident_bytes();
        }
    }
    usleep(10000); /* closes that the kernel does aside */
    ck_assert_uint_le(open_descriptors(), before + 1);
    if (!sanitized())
        ck_assert_uint_le(resident_bytes(), resident + 4 * MIB);
    ck_assert_uint_eq(reader_counters(reader)->requests, 100000);
    close_source(&file);
    reader_free(reader);
    ck_assert_uint_eq(open_descriptors(), without);
}
END_TEST

/* A write lease is granted only while nobody else has the file open: also a direct descriptor counts. */
START_TEST(test_nothing_left_open) {
    OPEN_OR_SKIP(reader, 4, MIB);
    for (uint32_t i = 0; i < 4; i++) {
        write_file("a", i, i ? i * 100000 : 3000);
        expect_good(reader, by_path(i, "a"), i, i ? i * 100000 : 3000);
        int fd = openat(directory_fd, "a", O_RDWR | O_CLOEXEC), tries = 0;
        while (fcntl(fd, F_SETLEASE, F_WRLCK) < 0 && errno != EINVAL && ++tries < 1000)
            usleep(1000);
        ck_assert_msg(tries < 1000, "the file is still open: %s", strerror(errno));
        close(fd);
    }
    reader_free(reader);
}
END_TEST

START_TEST(test_reap_without_waiting) {
    OPEN_OR_SKIP(reader, 1, MIB);
    struct read_result result;
    ck_assert_int_eq(reader_reap(reader, 0, &result), 0);
    ck_assert_int_eq(reader_reap(reader, SECOND, &result), 0); /* nothing in flight: at once */
    write_file("a", 1, 3000);
    struct read_request request = by_path(0, "a");
    reader_submit(reader, &request);
    reader_flush(reader);
    unsigned tries = 0;
    while (!reader_reap(reader, 0, &result) && ++tries < 20000)
        usleep(100);
    ck_assert_uint_lt(tries, 20000);
    ck_assert_int_eq(result.error, 0);
    expect_bytes(result.bytes, 1, 0, 3000);
    reader_free(reader);
}
END_TEST

/* Far fewer descriptors than requests. */
START_TEST(test_few_descriptors) {
    OPEN_OR_SKIP(reader, 64, MIB);
    write_file("a", 1, 30000);
    struct rlimit limit;
    struct read_result result;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    rlim_t soft = limit.rlim_cur;
    limit.rlim_cur = open_descriptors() + 3;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    for (int round = 0; round < 5; round++) {
        for (uint32_t i = 0; i < 64; i++) {
            struct read_request request = by_path(i, "a");
            reader_submit(reader, &request);
        }
        reader_flush(reader);
        while (reader_in_flight(reader)) {
            ck_assert_int_eq(reader_reap(reader, 20 * SECOND, &result), 1);
            ck_assert_msg(result.error == 0, "%s", result.diag->text);
            expect_bytes(result.bytes, 1, 0, 30000);
            ck_assert_int_eq(reader_done(reader, result.tag, NULL), 0);
        }
    }
    int taken[16];
    unsigned n = 0;
    while (n < 16 && (taken[n] = dup(directory_fd)) >= 0)
        n++;
    result = read_one(reader, by_path(0, "a"));
    if (result.error) /* a chain needs no descriptor of the process */
        ck_assert_ptr_nonnull(strstr(result.diag->text, "ulimit -n"));
    while (n)
        close(taken[--n]);
    limit.rlim_cur = soft;
    setrlimit(RLIMIT_NOFILE, &limit);
    reader_free(reader);
}
END_TEST

/* Each thread with a reader of its own, all over the same files; under mmap they also run into a shrunk file. */
struct thread_case {
    int variant;
    const struct source_file *file, *shrunk;
    unsigned good, bad;
};

static int sum_bytes(void *arg) {
    const struct read_result *result = arg;
    for (size_t i = 0; i < result->length; i++)
        if (result->bytes[i] != byte_at(1, (uint64_t)(result->tag * 1000) + i))
            return -1;
    return 0;
}

static void *run_reader(void *arg) {
    struct thread_case *c = arg;
    const struct read_options options = {variants[c->variant].engine, 8, MIB, variants[c->variant].direct, UINT64_MAX};
    struct reader *reader = NULL;
    struct read_result result;
    if (reader_new(&options, &reader, NULL) < 0)
        return NULL;
    for (int round = 0; round < 50; round++) {
        for (uint32_t i = 0; i < 8; i++) {
            struct read_request request = by_path(i, "a");
            if (i)
                request = by_file(i, i == 7 ? c->shrunk : c->file, i * 1000, 20000);
            reader_submit(reader, &request);
        }
        reader_flush(reader);
        while (reader_reap(reader, 20 * SECOND, &result)) {
            bool right = !result.error && reader_guard(reader, result.tag, sum_bytes, &result) == 0;
            *(reader_done(reader, result.tag, NULL) == 0 && right ? &c->good : &c->bad) += 1;
        }
    }
    reader_free(reader);
    return NULL;
}

START_TEST(test_threads) {
    write_file("a", 1, 20000);
    write_file("shard", 1, 100000);
    write_file("shrunk", 1, 100000);
    struct source_file file = open_source("shard"), shrunk = open_source("shrunk");
    ck_assert_int_eq(truncate(shrunk.path, 8000), 0);
    struct reader *reader = open_reader(_i, 1, 1);
    if (!reader)
        return;
    reader_free(reader);
    pthread_t threads[4];
    struct thread_case cases[4];
    for (int i = 0; i < 4; i++) {
        cases[i] = (struct thread_case){_i, &file, &shrunk, 0, 0};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, run_reader, &cases[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
        ck_assert_uint_eq(cases[i].good, 350);
        ck_assert_uint_eq(cases[i].bad, 50);
    }
    close_source(&file);
    close_source(&shrunk);
}
END_TEST

/* ---- faults, over all engines ---- */

START_TEST(test_short_reads) {
    setenv("LOADERD_TEST_READ_MAX", "1000", 1);
    OPEN_OR_SKIP(reader, 4, MIB);
    static const size_t sizes[] = {0, 1, 999, 1000, 1001, 1064, 1999, 2000, 2001, 100001};
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        write_file("a", i, sizes[i]);
        expect_good(reader, by_path(1, "a"), i, sizes[i]);
        struct source_file file = open_source("a");
        expect_good(reader, by_file(0, &file, 0, sizes[i]), i, sizes[i]);
        expect_error(reader, by_file(0, &file, 0, sizes[i] + 1), -ESTALE, "/a", "file shrank");
        close_source(&file);
    }
    reader_free(reader);
}
END_TEST

START_TEST(test_eagain_and_eintr) {
    setenv("LOADERD_TEST_READ_EAGAIN", "7", 1);
    setenv("LOADERD_TEST_READ_EINTR", "11", 1);
    setenv("LOADERD_TEST_READ_MAX", "4000", 1);
    OPEN_OR_SKIP(reader, 16, MIB);
    write_file("a", 1, 50000);
    struct source_file file = open_source("a");
    struct read_result result;
    for (int round = 0; round < 30; round++) {
        for (uint32_t i = 0; i < 16; i++) {
            struct read_request request = i % 2 ? by_path(i, "a") : by_file(i, &file, i, 30000);
            reader_submit(reader, &request);
        }
        reader_flush(reader);
        while (reader_in_flight(reader)) {
            ck_assert_int_eq(reader_reap(reader, 20 * SECOND, &result), 1);
            ck_assert_msg(result.error == 0, "%s", result.diag->text);
            expect_bytes(result.bytes, 1, result.tag % 2 ? 0 : result.tag, result.length);
            ck_assert_int_eq(reader_done(reader, result.tag, NULL), 0);
        }
    }
    ck_assert_uint_gt(reader_counters(reader)->retries, 100);
    close_source(&file);
    reader_free(reader);
}
END_TEST

START_TEST(test_eagain_forever) {
    setenv("LOADERD_TEST_READ_EAGAIN_FOREVER", "1", 1);
    OPEN_OR_SKIP(reader, 2, MIB);
    write_file("a", 1, 5000);
    struct source_file file = open_source("a");
    struct timespec before, after;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    expect_error(reader, by_path(0, "a"), -EAGAIN, "/a", "16 tries");
    expect_error(reader, by_file(0, &file, 100, 50), -EAGAIN, "/a at offset 100", "16 tries");
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    double cpu = (double)(after.tv_sec - before.tv_sec) + 1e-9 * (double)(after.tv_nsec - before.tv_nsec);
    ck_assert_msg(cpu < 0.05, "%.3f s of CPU for waiting", cpu);
    close_source(&file);
    reader_free(reader);
}
END_TEST

START_TEST(test_eio) {
    setenv("LOADERD_TEST_READ_EIO", "broken", 1);
    OPEN_OR_SKIP(reader, 2, MIB);
    write_file("broken", 1, 5000);
    write_file("whole", 1, 5000);
    struct source_file file = open_source("broken");
    uint8_t into[50];
    struct read_request request = by_file(0, &file, 100, 50);
    expect_error(reader, by_path(0, "broken"), -EIO, "/broken", "3 tries");
    expect_error(reader, request, -EIO, "/broken at offset 100 (50 bytes)", "3 tries");
    request.into = into;
    expect_error(reader, request, -EIO, "/broken at offset 100 (50 bytes)", "3 tries");
    expect_good(reader, by_path(0, "whole"), 1, 5000);
    close_source(&file);
    reader_free(reader);
}
END_TEST

START_TEST(test_estale_once) {
    setenv("LOADERD_TEST_READ_ESTALE", "1", 1);
    write_file("a", 1, 5000);
    struct source_file file = open_source("a");
    struct reader *reader = open_reader(_i, 2, MIB);
    if (!reader)
        return;
    expect_good(reader, by_file(0, &file, 7, 4000), 1, 4000);
    reader_free(reader);
    reader = open_reader(_i, 2, MIB);
    expect_good(reader, by_path(0, "a"), 1, 5000);
    reader_free(reader);

    setenv("LOADERD_TEST_READ_ESTALE", "100", 1);
    reader = open_reader(_i, 2, MIB);
    unsigned before = open_descriptors();
    expect_error(reader, by_file(0, &file, 7, 4000), -ESTALE, "/a at offset 7", "Stale file handle");
    expect_error(reader, by_path(0, "a"), -ESTALE, "/a", "Stale file handle");
    usleep(10000);
    /* one more for direct reads, kept as long as the reader */
    ck_assert_uint_eq(open_descriptors(), before + (variants[_i].direct == READ_DIRECT_YES));
    reader_free(reader);
    close_source(&file);
}
END_TEST

/* ---- mappings ---- */

/* NULL where nothing is mapped, because the tests' directory is on a file server. */
static struct reader *mmap_reader(void) {
    const char *name;
    if (read_is_remote(directory_fd, &name)) {
        fprintf(stderr, "skipped: files are not mapped on %s\n", name);
        return NULL;
    }
    return open_reader(1, 4, 8 * MIB);
}

static volatile unsigned sum_of_bytes;

static int touch(void *arg) {
    const struct read_result *result = arg;
    unsigned sum = 0;
    for (size_t i = 0; i < result->length; i += 512)
        sum += result->bytes[i];
    sum_of_bytes = sum;
    return 7;
}

static int touch_beyond(void *arg) {
    const uint8_t *const *byte = arg;
    sum_of_bytes = **byte;
    return 7;
}

START_TEST(test_guard_catches_shrink) {
    struct reader *reader = mmap_reader();
    if (!reader)
        return;
    write_file("shard", 1, 2 * MIB);
    struct source_file file = open_source("shard");
    struct diag diag = DIAG_INIT;
    for (int round = 0; round < 3; round++) { /* more than once: the signal is not left blocked */
        struct read_result result = read_one(reader, by_file(2, &file, 4096, MIB));
        ck_assert_int_eq(result.error, 0);
        ck_assert_int_eq(reader_guard(reader, 2, touch, &result), 7);
        ck_assert_int_eq(truncate(file.path, 8192), 0);
        ck_assert_int_eq(reader_guard(reader, 2, touch, &result), -EFAULT);
        ck_assert_int_eq(reader_done(reader, 2, &diag), -ESTALE);
        ck_assert_ptr_nonnull(strstr(diag.text, "file shrank: wanted 1048576 bytes, found 4096"));
        close_source(&file);
        write_file("shard", 1, 2 * MIB);
        file = open_source("shard");
    }
    close_source(&file);
    reader_free(reader);
}
END_TEST

/* A shrink inside the last page gives zeros and no signal: only the second look tells. */
START_TEST(test_silent_shrink) {
    struct reader *reader = mmap_reader();
    if (!reader)
        return;
    write_file("shard", 1, 4096 + 3000);
    struct source_file file = open_source("shard");
    struct diag diag = DIAG_INIT;
    struct read_result result = read_one(reader, by_file(0, &file, 4096, 3000));
    ck_assert_int_eq(result.error, 0);
    ck_assert_int_eq(truncate(file.path, 4096 + 100), 0);
    ck_assert_int_eq(reader_guard(reader, 0, touch, &result), 7);
    ck_assert_int_eq(result.bytes[2999], 0);
    ck_assert_int_eq(reader_done(reader, 0, &diag), -ESTALE);
    ck_assert_ptr_nonnull(strstr(diag.text, "wanted 3000 bytes, found 100"));
    close_source(&file);

    write_file("large", 1, 5 * MIB);
    struct read_request request = by_path(1, "large");
    result = read_one(reader, request);
    ck_assert_int_eq(result.error, 0);
    char path[300];
    snprintf(path, sizeof path, "%s/large", directory);
    ck_assert_int_eq(truncate(path, 5 * MIB - 1), 0);
    ck_assert_int_eq(reader_done(reader, 1, &diag), -ESTALE);
    reader_free(reader);
}
END_TEST

START_TEST(test_fault_elsewhere_is_fatal) {
    struct reader *reader = mmap_reader();
    if (!reader)
        raise(SIGBUS);
    write_file("shard", 1, 2 * MIB);
    struct source_file file = open_source("shard");
    struct read_result result = read_one(reader, by_file(0, &file, 0, 4096));
    ck_assert_int_eq(result.error, 0);
    ck_assert_int_eq(truncate(file.path, 4096), 0);
    const uint8_t *beyond = result.bytes + 8192;
    reader_guard(reader, 0, touch_beyond, &beyond);
}
END_TEST

START_TEST(test_sent_signal_is_fatal) {
    mmap_reader();
    raise(SIGBUS);
}
END_TEST

/* More source files than the table holds, some of them in use. */
START_TEST(test_many_mappings) {
    enum { FILES = 3000 };
    struct reader *reader = mmap_reader();
    if (!reader)
        return;
    write_file("shard", 1, 9000);
    struct source_file one = open_source("shard");
    struct source_file *files = calloc(FILES, sizeof *files);
    struct read_result held = read_one(reader, by_file(3, &one, 1, 8000));
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < FILES; i++) {
            files[i] = one;
            expect_good(reader, by_file(i % 3, &files[i], 100, 5000), 1, 5000);
        }
    expect_bytes(held.bytes, 1, 1, 8000);
    ck_assert_int_eq(reader_done(reader, 3, NULL), 0);
    reader_free(reader);
    free(files);
    close_source(&one);
}
END_TEST

/* ---- what is cached, and reads past it ---- */

static struct reader *uring_reader(enum read_direct direct, uint64_t room) {
    struct read_options options = {READ_URING, 4, 8 * MIB, direct, room};
    struct reader *reader = NULL;
    struct diag diag = DIAG_INIT;
    unsetenv("LOADERD_URING_OFF");
    if (read_choose(READ_URING, &diag) != READ_URING || read_is_remote(directory_fd, NULL)) {
        fprintf(stderr, "skipped: no io_uring, or a file server: %s\n", diag.text);
        return NULL;
    }
    ck_assert_msg(reader_new(&options, &reader, &diag) == 0, "%s", diag.text);
    return reader;
}

static bool drop_from_cache(const struct source_file *file) {
    if (fsync(file->fd) < 0 || posix_fadvise(file->fd, 0, 0, POSIX_FADV_DONTNEED) != 0)
        return false;
    return source_residency(file->fd, 0, file->identity.size) == SOURCE_ABSENT;
}

START_TEST(test_resident) {
    struct reader *reader = uring_reader(READ_DIRECT_AUTO, UINT64_MAX);
    if (!reader)
        return;
    write_file("shard", 3, 2 * MIB);
    struct source_file file = open_source("shard");
    uint8_t *into = malloc(2 * MIB);
    const struct read_counters *counters = reader_counters(reader);
    struct read_request request = by_file(0, &file, 4099, MIB);
    request.into = into;
    if (drop_from_cache(&file)) {
        expect_good(reader, request, 3, MIB);
        ck_assert_uint_eq(counters->resident, 0);
    } else {
        fprintf(stderr, "skipped: this file stays in the cache\n");
    }
    expect_good(reader, request, 3, MIB);
    ck_assert_uint_eq(counters->resident, 1);
    request.extent.length = 1000; /* not worth it */
    expect_good(reader, request, 3, 1000);
    ck_assert_uint_eq(counters->resident, 1);
    ck_assert_uint_eq(counters->direct, 0);

    /* it shrinks between the look and the copy: no signal, a sentence */
    write_file("short", 3, 2 * MIB);
    struct source_file shrunk = open_source("short");
    request = by_file(1, &shrunk, 0, 2 * MIB);
    request.into = into;
    reader_submit(reader, &request);
    ck_assert_int_eq(truncate(shrunk.path, 70000), 0);
    struct read_result result;
    ck_assert_int_eq(reader_reap(reader, 20 * SECOND, &result), 1);
    ck_assert_int_eq(result.error, -ESTALE);
    ck_assert_ptr_nonnull(strstr(result.diag->text, "file shrank: wanted 2097152 bytes, found 70000"));
    ck_assert_int_eq(reader_done(reader, 1, NULL), 0);
    free(into);
    close_source(&file);
    close_source(&shrunk);
    reader_free(reader);
}
END_TEST

static int sum_view(void *arg) {
    const struct read_result *view = arg;
    return touch(&(struct read_result){.bytes = view->bytes, .length = view->length});
}

/* Bytes in place: only of what is cached, whole inside its file and may be shown; a fault and a change are noticed. */
static void check_views(struct reader *reader, const char *name) {
    write_file(name, 5, 2 * MIB);
    struct source_file file = open_source(name);
    struct read_request request = by_file(0, &file, 4099, 70001);
    if (drop_from_cache(&file))
        ck_assert_ptr_null(reader_view(reader, &request.extent));
    expect_good(reader, by_file(1, &file, 0, 2 * MIB), 5, 2 * MIB);
    struct read_result view = {.bytes = reader_view(reader, &request.extent), .length = request.extent.length};
    ck_assert_ptr_nonnull(view.bytes);
    expect_bytes(view.bytes, 5, 4099, 70001);
    ck_assert_int_eq(reader_guard_view(view.bytes, view.length, sum_view, &view), 7);
    ck_assert(reader_unchanged(&file));
    request.extent.offset = 2 * MIB - 70000; /* one byte beyond */
    ck_assert_ptr_null(reader_view(reader, &request.extent));
    request.extent.offset = UINT64_MAX;
    ck_assert_ptr_null(reader_view(reader, &request.extent));
    request.extent.offset = 4099;
    ck_assert_int_eq(truncate(file.path, 4100), 0);
    ck_assert_int_eq(reader_guard_view(view.bytes, view.length, sum_view, &view), -EFAULT);
    ck_assert(!reader_unchanged(&file));
    expect_error(reader, by_file(2, &file, 4099, 70001), -ESTALE, "file shrank", name);
    close_source(&file);
}

START_TEST(test_views) {
    struct reader *reader = uring_reader(READ_DIRECT_AUTO, UINT64_MAX), *mapping = mmap_reader();
    if (reader)
        check_views(reader, "shard");
    if (mapping)
        check_views(mapping, "other");
    reader_free(reader);
    reader_free(mapping);

    /* none where the test seam is on, by engines that map nothing, past the page cache, with the shortcut off */
    write_file("third", 5, MIB);
    struct source_file file = open_source("third");
    const struct extent extent = by_file(0, &file, 0, 4096).extent;
    for (int variant = 0; variant < VARIANTS; variant++) {
        setenv("LOADERD_TEST_READ_EAGAIN", "1000000", 1);
        reader = open_reader(variant, 2, MIB);
        ck_assert(!reader || !reader_view(reader, &extent));
        reader_free(reader);
        unsetenv("LOADERD_TEST_READ_EAGAIN");
        const struct variant *v = &variants[variant];
        if (v->engine == READ_PREAD || v->direct == READ_DIRECT_YES || (v->off && strstr(v->off, "resident"))) {
            reader = open_reader(variant, 2, MIB);
            ck_assert(!reader || !reader_view(reader, &extent));
            reader_free(reader);
        }
    }
    close_source(&file);
}
END_TEST

/* cachestat tells only owners; others look at pages. */
START_TEST(test_resident_of_others) {
    write_file("shard", 3, 2 * MIB);
    struct source_file file = open_source("shard");
    if (geteuid() != 0 || setresuid(65534, 65534, 0) < 0) {
        fprintf(stderr, "skipped: not root\n");
        return;
    }
    struct reader *reader = uring_reader(READ_DIRECT_AUTO, UINT64_MAX);
    if (reader) {
        uint8_t *into = malloc(2 * MIB);
        struct read_request request = by_file(0, &file, 4099, MIB);
        request.into = into;
        ck_assert_int_eq(source_residency(file.fd, 0, 2 * MIB), SOURCE_UNKNOWN);
        expect_good(reader, request, 3, MIB);
        ck_assert_uint_eq(reader_counters(reader)->resident, 1);
        free(into);
    }
    reader_free(reader);
    close_source(&file);
    ck_assert_int_eq(setresuid(0, 0, 0), 0);
}
END_TEST

START_TEST(test_direct) {
    write_file("shard", 4, 2 * MIB);
    struct source_file file = open_source("shard");
    struct reader *reader = uring_reader(READ_DIRECT_YES, 0);
    if (!reader)
        return;
    expect_good(reader, by_file(0, &file, 5, MIB), 4, MIB);
    if (reader_counters(reader)->direct == 0) {
        fprintf(stderr, "skipped: this file system reads nothing past the page cache\n");
        reader_free(reader);
        close_source(&file);
        return;
    }
    expect_good(reader, by_file(0, &file, 2 * MIB - 1, 1), 4, 1); /* with the end of the file inside the block */
    ck_assert_uint_eq(reader_counters(reader)->direct, 2);
    reader_free(reader);

    reader = uring_reader(READ_DIRECT_AUTO, 2 * MIB); /* there is room for the file */
    bool dropped = drop_from_cache(&file);
    expect_good(reader, by_file(0, &file, 5, MIB), 4, MIB);
    ck_assert_uint_eq(reader_counters(reader)->direct, 0);
    reader_free(reader);

    reader = uring_reader(READ_DIRECT_AUTO, 2 * MIB - 1);
    expect_good(reader, by_file(0, &file, 5, MIB), 4, MIB); /* cached by the read before */
    ck_assert_uint_eq(reader_counters(reader)->direct, 0);
    if (dropped && drop_from_cache(&file)) {
        expect_good(reader, by_file(0, &file, 5, 4096), 4, 4096); /* too small */
        ck_assert_uint_eq(reader_counters(reader)->direct, 0);
        expect_good(reader, by_file(0, &file, MIB, MIB), 4, MIB);
        ck_assert_uint_eq(reader_counters(reader)->direct, 1);
        ck_assert_int_eq(source_residency(file.fd, MIB, MIB), SOURCE_ABSENT);
    }
    reader_free(reader);
    ck_assert_uint_eq(source_bytes(), 0);
    close_source(&file);
}
END_TEST

/* ---- choosing ---- */

static void filter_io_uring(uint32_t answer) {
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | answer),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {ARRAY_SIZE(program), program};
    ck_assert_int_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    ck_assert_int_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
}

START_TEST(test_choose_under_seccomp) {
    static const int answers[] = {EPERM, ENOSYS};
    struct diag why = DIAG_INIT;
    filter_io_uring((uint32_t)answers[_i]);
    ck_assert_int_eq(read_choose(READ_AUTO, &why), READ_PREAD);
    ck_assert_msg(strstr(why.text, "seccomp filter") && strstr(why.text, "using pread") &&
                      strstr(why.text, _i ? "ENOSYS" : "EPERM"),
                  "%s", why.text);
    ck_assert_int_eq(read_choose(READ_URING, &why), READ_PREAD);
    ck_assert_int_eq(read_choose(READ_MMAP, &why), READ_MMAP);
    ck_assert_int_eq(read_choose(READ_PREAD, &why), READ_PREAD);
    ck_assert_int_eq(read_choose(READ_AUTO, NULL), READ_PREAD);
    struct reader *reader = NULL;
    struct read_options options = {READ_URING, 4, MIB, READ_DIRECT_NO, 0};
    ck_assert_int_eq(reader_new(&options, &reader, &why), -answers[_i]);
    ck_assert_ptr_null(reader);
}
END_TEST

START_TEST(test_explanations) {
    static const struct {
        struct uring_facts facts;
        const char *words;
    } cases[] = {
        {{-EPERM, 2, false, 6, 18, 0}, "kernel.io_uring_disabled=2"},
        {{-EPERM, 1, false, 6, 18, 0}, "kernel.io_uring_group"},
        {{-EPERM, 0, true, 6, 18, 0}, "(EPERM) by a seccomp filter"},
        {{-EPERM, -1, false, 5, 14, 0}, "(EPERM) by a security policy"},
        {{-ENOSYS, -1, false, 5, 14, 0}, "kernel (5.14) was built without io_uring"},
        {{-ENOSYS, -1, true, 6, 1, 0}, "(ENOSYS) by a seccomp filter"},
        {{-ENOSYS, -1, true, 4, 18, 0}, "kernel (4.18) was built without io_uring"},
        {{-ENOMEM, 0, false, 5, 10, 65536}, "may lock 64 KiB; raise it by ulimit -l"},
        {{-EOPNOTSUPP, 0, false, 5, 4, 0}, "(5.4) is too old"},
        {{-EMFILE, 0, false, 6, 1, 0}, "Too many open files"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct diag why = DIAG_INIT;
        ck_assert_int_eq(uring_explain(&cases[i].facts, &why), cases[i].facts.code);
        ck_assert_msg(strstr(why.text, cases[i].words), "%s", why.text);
    }
}
END_TEST

START_TEST(test_bad_options) {
    static const struct read_options bad[] = {
        {READ_AUTO, 1, 1, READ_DIRECT_NO, 0},
        {READ_PREAD, 0, 1, READ_DIRECT_NO, 0},
        {READ_PREAD, READ_MOST_DEPTH + 1, 1, READ_DIRECT_NO, 0},
        {READ_PREAD, 1, 0, READ_DIRECT_NO, 0},
        {READ_PREAD, 1, UINT64_MAX, READ_DIRECT_NO, 0},
        {READ_PREAD, 1024, UINT64_C(1) << 40, READ_DIRECT_NO, 0},
    };
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct reader *reader = NULL;
        struct diag diag = DIAG_INIT;
        ck_assert_int_lt(reader_new(&bad[i], &reader, &diag), 0);
        ck_assert_ptr_null(reader);
        ck_assert_int_ne(diag.text[0], '\0');
    }
    ck_assert_str_eq(read_engine_name(READ_URING), "uring");
    ck_assert_str_eq(read_engine_name(READ_AUTO), "auto");
}
END_TEST

/* 100 bytes are the smallest limit tried: a buffer must not be smaller than the chain's tail. */
START_TEST(test_small_limit) {
    OPEN_OR_SKIP(reader, 1, 100);
    write_file("a", 1, 100);
    write_file("b", 1, 101);
    expect_good(reader, by_path(0, "a"), 1, 100);
    expect_error(reader, by_path(0, "b"), -EFBIG, "/b", "max-sample-bytes=100 ");
    reader_free(reader);
}
END_TEST

START_TEST(test_remote) {
    const char *name = "untouched";
    int fd = open("/proc/self", O_RDONLY | O_CLOEXEC);
    ck_assert(!read_is_remote(fd, &name));
    ck_assert_str_eq(name, "untouched");
    close(fd);
    ck_assert(!read_is_remote(-1, &name));
}
END_TEST

int main(void) {
    Suite *suite = suite_create("read");
    TCase *all = tcase_create("every engine"), *once = tcase_create("once");
    tcase_set_timeout(all, 60);
    tcase_set_timeout(once, 60);
    tcase_add_checked_fixture(all, set_up, tear_down);
    tcase_add_checked_fixture(once, set_up, tear_down);
    tcase_add_loop_test(all, test_sizes, 0, VARIANTS);
    tcase_add_loop_test(all, test_every_size, 0, VARIANTS);
    tcase_add_loop_test(all, test_extents, 0, VARIANTS);
    tcase_add_loop_test(all, test_every_extent, 0, VARIANTS);
    tcase_add_loop_test(all, test_large_mapped_file, 0, VARIANTS);
    tcase_add_loop_test(all, test_bad_files, 0, VARIANTS);
    tcase_add_loop_test(all, test_unreadable, 0, VARIANTS);
    tcase_add_loop_test(all, test_short_file, 0, VARIANTS);
    tcase_add_loop_test(all, test_shrunk_while_open, 0, VARIANTS);
    tcase_add_loop_test(all, test_replaced, 0, VARIANTS);
    tcase_add_loop_test(all, test_address_used_again, 0, VARIANTS);
    tcase_add_loop_test(all, test_depth_and_order, 0, VARIANTS);
    tcase_add_loop_test(all, test_free_in_flight, 0, VARIANTS);
    tcase_add_loop_test(all, test_no_leak, 0, VARIANTS);
    tcase_add_loop_test(all, test_reap_without_waiting, 0, VARIANTS);
    tcase_add_loop_test(all, test_nothing_left_open, 0, VARIANTS);
    tcase_add_loop_test(all, test_few_descriptors, 0, VARIANTS);
    tcase_add_loop_test(all, test_threads, 0, VARIANTS);
    tcase_add_loop_test(all, test_short_reads, 0, VARIANTS);
    tcase_add_loop_test(all, test_eagain_and_eintr, 0, VARIANTS);
    tcase_add_loop_test(all, test_eagain_forever, 0, VARIANTS);
    tcase_add_loop_test(all, test_eio, 0, VARIANTS);
    tcase_add_loop_test(all, test_estale_once, 0, VARIANTS);
    tcase_add_loop_test(all, test_small_limit, 0, VARIANTS);
    tcase_add_test(once, test_guard_catches_shrink);
    tcase_add_test(once, test_silent_shrink);
    if (!sanitized()) {
        tcase_add_test_raise_signal(once, test_fault_elsewhere_is_fatal, SIGBUS);
        tcase_add_test_raise_signal(once, test_sent_signal_is_fatal, SIGBUS);
    }
    tcase_add_test(once, test_many_mappings);
    tcase_add_test(once, test_resident);
    tcase_add_test(once, test_views);
    tcase_add_test(once, test_resident_of_others);
    tcase_add_test(once, test_direct);
    tcase_add_loop_test(once, test_choose_under_seccomp, 0, 2);
    tcase_add_test(once, test_explanations);
    tcase_add_test(once, test_bad_options);
    tcase_add_test(once, test_remote);
    suite_add_tcase(suite, all);
    suite_add_tcase(suite, once);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
