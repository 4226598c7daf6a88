/* SPDX-License-Identifier: MIT */
/*
 * cache: laws of what is found after what was added, in memory and in a directory; what a crash at any moment, a flipped
 * bit, a cut file, another process and a full disk leave of it. A record here is a function of its key, so that whatever
 * is served can be told from what was never written.
 */
#include "cache/cache.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/util.h"
#include "cache/segment.h"
#include "read/read.h"

#define MIB (UINT64_C(1) << 20)
#define MEMORY (UINT64_C(1) << 34)

static char root[] = "/tmp/loaderd-check-cache-XXXXXX";
static struct diag diag;

static const char *path_of(const char *name) {
    static char path[4][512];
    static unsigned turn;
    char *to = path[turn++ % 4];
    snprintf(to, sizeof path[0], "%s/%s", root, name);
    return to;
}

static struct cache *open_size(const char *directory, uint64_t bytes) {
    struct cache *cache = NULL;
    const struct cache_options options = {directory, bytes, MEMORY};
    ck_assert_msg(cache_open(&options, &cache, &diag) == 0, "%s", diag.text);
    return cache;
}

static struct cache_key key_of(uint64_t n) {
    return (struct cache_key){{7, 1000 + n, 4096, (int64_t)(n * 3)}, 512 * n, 300 + n, 5};
}

static size_t record_length(uint64_t n) {
    return 900 + n * 977 % 5000;
}

static uint8_t record_byte(uint64_t n, size_t i) {
    return (uint8_t)((n * 131 + i * 7 + i / 256) >> (i % 3));
}

static int add(struct cache *cache, uint64_t n) {
    uint8_t record[6000];
    struct cache_key key = key_of(n);
    for (size_t i = 0; i < record_length(n); i++)
        record[i] = record_byte(n, i);
    return cache_add(cache, &key, record, record_length(n));
}

static bool is_record(uint64_t n, const uint8_t *bytes, size_t length) {
    bool same = length == record_length(n);
    for (size_t i = 0; same && i < length; i++)
        same = bytes[i] == record_byte(n, i);
    return same;
}

enum found { NONE, RIGHT, WRONG };

/* What is served for key n. */
static enum found look(struct cache *cache, uint64_t n) {
    struct cache_key key = key_of(n);
    struct cache_hit hit;
    size_t length = 0;
    if (!cache_find(cache, &key, &hit))
        return NONE;
    const uint8_t *bytes = cache_record(&hit, &key, &length);
    enum found found = !bytes ? NONE : is_record(n, bytes, length) ? RIGHT : WRONG;
    cache_done(&hit);
    return found;
}

static uint64_t count_found(struct cache *cache, uint64_t from, uint64_t to) {
    uint64_t count = 0;
    for (uint64_t n = from; n < to; n++) {
        enum found found = look(cache, n);
        ck_assert_int_ne(found, WRONG);
        count += found == RIGHT;
    }
    return count;
}

static struct cache_statistics statistics_of(struct cache *cache) {
    struct cache_statistics s;
    cache_statistics(cache, &s);
    return s;
}

/* Calls f for each segment file of a directory. */
static unsigned each_segment(const char *directory, void (*f)(const char *path, void *arg), void *arg) {
    DIR *d = opendir(directory);
    unsigned count = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[1024];
        if (strncmp(e->d_name, "segment-", 8) != 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", directory, e->d_name);
        count++;
        if (f)
            f(path, arg);
    }
    if (d)
        closedir(d);
    return count;
}

static uint64_t bytes_on_disk(const char *directory) {
    uint64_t bytes = 0;
    DIR *d = opendir(directory);
    for (struct dirent *e; d && (e = readdir(d));) {
        struct stat st;
        if (fstatat(dirfd(d), e->d_name, &st, 0) == 0 && S_ISREG(st.st_mode))
            bytes += (uint64_t)st.st_size;
    }
    if (d)
        closedir(d);
    return bytes;
}

/* ---- what was added is found ---------------------------------------------------------------------------------------- */

static void found_again(const char *directory) {
    struct cache *cache = open_size(directory, 16 * MIB);
    for (uint64_t n = 0; n < 500; n++) {
        struct cache_key key = key_of(n);
        ck_assert_int_eq(look(cache, n), NONE);
        ck_assert(cache_wants(cache, &key));
        ck_assert_int_eq(add(cache, n), 0);
        ck_assert(!cache_wants(cache, &key));
        ck_assert_int_eq(add(cache, n), 1);
    }
    ck_assert_uint_eq(count_found(cache, 0, 500), 500);
    ck_assert_uint_eq(count_found(cache, 500, 600), 0);
    struct cache_statistics s = statistics_of(cache);
    ck_assert_uint_eq(s.entries, 500);
    ck_assert_uint_eq(s.filled, 500);
    ck_assert_uint_le(s.used, s.capacity);
    /* one object for a place */
    struct cache *twin = open_size(directory, 4 * MIB);
    ck_assert_ptr_eq(twin, cache);
    ck_assert_uint_eq(statistics_of(twin).capacity, 16 * MIB);
    cache_unref(twin);
    ck_assert_uint_eq(count_found(cache, 0, 500), 500);
    cache_unref(cache);
}

START_TEST(in_memory) {
    found_again(NULL);
    struct cache *cache = open_size(NULL, 8 * MIB); /* nothing is left of it */
    ck_assert_uint_eq(count_found(cache, 0, 500), 0);
    ck_assert_uint_eq(statistics_of(cache).entries, 0);
    cache_unref(cache);
}
END_TEST

START_TEST(in_directory) {
    const char *directory = path_of("directory");
    found_again(directory);
    for (int round = 0; round < 3; round++) {
        struct cache *cache = open_size(directory, 16 * MIB);
        ck_assert_uint_eq(count_found(cache, 0, 500), 500);
        ck_assert_uint_eq(statistics_of(cache).entries, 500 + 10u * (unsigned)round);
        for (uint64_t n = 0; n < 10; n++)
            ck_assert_int_eq(add(cache, 10000 + 10 * (unsigned)round + n), 0);
        cache_unref(cache);
    }
    struct stat st;
    ck_assert_int_eq(stat(directory, &st), 0);
    ck_assert_uint_eq(st.st_mode & 077, 0);
}
END_TEST

/* Every part of the key counts. */
START_TEST(keys) {
    struct cache *cache = open_size(NULL, 8 * MIB);
    const struct cache_key key = key_of(1);
    struct cache_key other[] = {key, key, key, key, key, key, key};
    other[0].file.device++;
    other[1].file.inode++;
    other[2].file.size++;
    other[3].file.mtime_ns++;
    other[4].offset++;
    other[5].length++;
    other[6].variant++;
    ck_assert_int_eq(add(cache, 1), 0);
    struct cache_hit hit, wrong;
    size_t length;
    ck_assert(cache_find(cache, &key, &hit));
    for (size_t i = 0; i < ARRAY_SIZE(other); i++) {
        ck_assert(!cache_find(cache, &other[i], &wrong));
        ck_assert_ptr_null(cache_record(&hit, &other[i], &length)); /* whatever the index says */
    }
    const uint8_t *begin, *bytes = cache_record(&hit, &key, &length);
    size_t extent;
    cache_extent(&hit, &begin, &extent);
    ck_assert(bytes >= begin && bytes + length <= begin + extent);
    cache_done(&hit);
    cache_done(&hit);
    cache_unref(cache);
}
END_TEST

START_TEST(refusals_and_drops) {
    struct cache *cache = open_size(path_of("drops"), 8 * MIB);
    struct cache_key key = key_of(3);
    cache_refuse(cache, &key);
    cache_refuse(cache, &key);
    ck_assert(!cache_wants(cache, &key));
    ck_assert_int_eq(look(cache, 3), NONE);
    ck_assert_int_eq(add(cache, 3), 1);
    ck_assert_uint_eq(statistics_of(cache).refused, 1);
    key = key_of(4);
    ck_assert_int_eq(add(cache, 4), 0);
    struct cache_hit hit;
    ck_assert(cache_find(cache, &key, &hit));
    cache_drop(cache, &key, &hit);
    cache_drop(cache, &key, &hit);
    cache_done(&hit);
    ck_assert_int_eq(look(cache, 4), NONE);
    ck_assert_uint_eq(statistics_of(cache).entries, 0);
    ck_assert(cache_wants(cache, &key));
    ck_assert_int_eq(add(cache, 4), 0);
    ck_assert_int_eq(look(cache, 4), RIGHT);
    /* too large for a segment */
    void *large = calloc(1, 4 * MIB);
    key = key_of(5);
    ck_assert_int_eq(cache_add(cache, &key, large, 4 * MIB), 1);
    ck_assert(!cache_wants(cache, &key));
    free(large);
    cache_unref(cache);
    cache = open_size(path_of("drops"), 8 * MIB); /* a refusal is of one life */
    key = key_of(3);
    ck_assert(cache_wants(cache, &key));
    cache_unref(cache);
}
END_TEST

/* ---- bounds -------------------------------------------------------------------------------------------------------- */

static uint64_t fill_up(struct cache *cache, uint64_t from) {
    for (uint64_t n = from;; n++)
        if (add(cache, n) != 0)
            return n - from;
}

static void bounded(const char *directory) {
    struct cache *cache = open_size(directory, 4 * MIB);
    uint64_t count = fill_up(cache, 0);
    struct cache_statistics s = statistics_of(cache);
    struct cache_key next = key_of(count);
    ck_assert_uint_gt(count, 700);
    ck_assert_uint_le(s.used, 4 * MIB);
    ck_assert(s.full && !s.failed);
    ck_assert(!cache_wants(cache, &next));
    ck_assert_uint_eq(count_found(cache, 0, count), count); /* nothing was pushed out */
    cache_unref(cache);
    if (!directory)
        return;
    ck_assert_uint_le(bytes_on_disk(directory), 4 * MIB + 4096);
    /* with more room it goes on; with less, whole segments go */
    cache = open_size(directory, 6 * MIB);
    ck_assert_uint_eq(count_found(cache, 0, count), count);
    ck_assert_int_eq(add(cache, count), 0);
    cache_unref(cache);
    cache = open_size(directory, 4 * MIB);
    ck_assert_uint_le(statistics_of(cache).used, 4 * MIB);
    ck_assert_uint_gt(count_found(cache, 0, count + 1), 0);
    ck_assert_uint_le(bytes_on_disk(directory), 4 * MIB + 4096);
    cache_unref(cache);
}

START_TEST(bounds) {
    bounded(NULL);
    bounded(path_of("bounds"));
}
END_TEST

/* Another dataset's entries make room, once a whole epoch of every session went by without them; those that are wanted
 * stay. */
static void reclaimed(const char *directory) {
    struct cache *cache = open_size(directory, 4 * MIB);
    struct cache_user one = {0}, two = {0};
    uint64_t old = fill_up(cache, 0), wanted = 20, added = 0;
    cache_join(cache, &one);
    cache_join(cache, &two);
    for (uint64_t epoch = 0; epoch < 9; epoch++) {
        cache_epoch(cache, &one, epoch);
        if (epoch < 3)
            ck_assert_int_eq(add(cache, 100000 + epoch), 1); /* the other session has not said that it does without */
        else
            cache_epoch(cache, &two, epoch);
        for (uint64_t n = 0; n < wanted; n++) /* of the set in hand */
            look(cache, n);
        for (uint64_t n = 50000; n < 50100; n++)
            if (look(cache, n) != RIGHT)
                added += add(cache, n) == 0;
    }
    ck_assert_uint_ge(added, 100);
    ck_assert_uint_eq(count_found(cache, 50000, 50100), 100);
    struct cache_statistics s = statistics_of(cache);
    ck_assert_uint_gt(s.reclaimed, 0);
    ck_assert_uint_le(s.used, 4 * MIB);
    ck_assert_uint_lt(count_found(cache, 0, old), old);
    cache_leave(cache, &one);
    cache_leave(cache, &two);
    cache_leave(cache, &two);
    cache_unref(cache);
    if (directory) {
        cache = open_size(directory, 4 * MIB);
        ck_assert_uint_eq(count_found(cache, 50000, 50100), 100);
        cache_unref(cache);
    }
}

START_TEST(reclaim) {
    reclaimed(NULL);
    reclaimed(path_of("reclaim"));
}
END_TEST

/* A hit keeps its bytes where they are, whatever becomes of the segment. */
START_TEST(pins) {
    struct cache *cache = open_size(path_of("pins"), 4 * MIB);
    struct cache_user user = {0};
    struct cache_key key = key_of(0);
    struct cache_hit hit;
    size_t length;
    fill_up(cache, 0);
    ck_assert(cache_find(cache, &key, &hit));
    cache_join(cache, &user);
    for (uint64_t epoch = 0; epoch < 4; epoch++)
        cache_epoch(cache, &user, epoch);
    ck_assert_uint_gt(fill_up(cache, 50000), 100);
    ck_assert_uint_gt(statistics_of(cache).reclaimed, 1);
    ck_assert_int_eq(look(cache, 0), NONE);
    const uint8_t *bytes = cache_record(&hit, &key, &length);
    ck_assert_ptr_nonnull(bytes);
    ck_assert(is_record(0, bytes, length));
    cache_done(&hit);
    cache_leave(cache, &user);
    cache_unref(cache);
}
END_TEST

/* ---- what a directory may hold -------------------------------------------------------------------------------------- */

struct damage {
    unsigned seed;
    uint64_t at, bytes;
};

static void flip(const char *path, void *arg) {
    struct damage *damage = arg;
    int fd = open(path, O_RDWR);
    struct stat st;
    ck_assert(fd >= 0 && fstat(fd, &st) == 0);
    for (int i = 0; i < 40; i++) {
        /* the header, the table's beginning, and records in turn */
        uint64_t span = i % 4 == 0 ? 64 : i % 4 == 1 ? SEGMENT_TABLE + 64 * 200 : (uint64_t)st.st_size;
        off_t at = (off_t)((uint64_t)rand_r(&damage->seed) * 31 % span);
        uint8_t byte;
        if (i % 4 == 0 && (i || damage->seed % 4))
            continue; /* a header that is damaged hides the rest: seldom */
        ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
        byte ^= (uint8_t)(1u << (unsigned)rand_r(&damage->seed) % 8);
        ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
    }
    close(fd);
}

/* Is it the record, but for a bit here and there? The record's own checksums tell those; this cache has none for it. */
static bool is_nearly(uint64_t n, const uint8_t *bytes, size_t length) {
    size_t differ = 0;
    for (size_t i = 0; i < length; i++)
        differ += bytes[i] != record_byte(n, i);
    return length == record_length(n) && differ <= 40;
}

START_TEST(flipped_bits) {
    const char *directory = path_of("flipped");
    uint64_t seen = 0;
    for (unsigned seed = 1; seed <= 40; seed++) {
        struct cache *cache = open_size(directory, 4 * MIB);
        for (uint64_t n = 0; n < 300; n++)
            add(cache, n);
        cache_unref(cache);
        struct damage damage = {.seed = seed};
        each_segment(directory, flip, &damage);
        cache = open_size(directory, 4 * MIB);
        for (uint64_t n = 0; n < 300; n++) {
            struct cache_key key = key_of(n);
            struct cache_hit hit;
            size_t length = 0;
            if (!cache_find(cache, &key, &hit))
                continue;
            const uint8_t *bytes = cache_record(&hit, &key, &length);
            ck_assert(!bytes || is_nearly(n, bytes, length)); /* never another's record, never another length */
            seen += bytes != NULL;
            cache_drop(cache, &key, &hit);
            cache_done(&hit);
        }
        cache_unref(cache);
    }
    ck_assert_uint_gt(seen, 1000);
}
END_TEST

static void cut(const char *path, void *arg) {
    struct damage *damage = arg;
    ck_assert_int_eq(truncate(path, (off_t)damage->bytes), 0);
}

START_TEST(cut_files) {
    static const uint64_t sizes[] = {0, 1, 63, 64, 4096, 5000, 300000, MIB - 1, MIB + 1, 64 * MIB + 4096};
    const char *directory = path_of("cut");
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        struct cache *cache = open_size(directory, 4 * MIB);
        for (uint64_t n = 0; n < 200; n++)
            ck_assert_int_eq(add(cache, n), 0);
        cache_unref(cache);
        struct damage damage = {.bytes = sizes[i]};
        ck_assert_uint_gt(each_segment(directory, cut, &damage), 0);
        cache = open_size(directory, 4 * MIB);
        ck_assert_uint_eq(count_found(cache, 0, 200), 0);
        ck_assert_uint_eq(each_segment(directory, NULL, NULL), 0); /* and they are gone */
        cache_unref(cache);
    }
}
END_TEST

struct reading {
    const struct cache_hit *hit;
    const struct cache_key *key;
    const uint8_t *bytes;
    size_t length;
};

static int read_record(void *arg) {
    struct reading *reading = arg;
    reading->bytes = cache_record(reading->hit, reading->key, &reading->length);
    return 0;
}

/* Somebody truncates a file that is mapped: the guard turns that into a failure. */
START_TEST(cut_while_open) {
    static const enum read_engine engines[] = {READ_PREAD, READ_MMAP};
    for (size_t i = 0; i < ARRAY_SIZE(engines); i++) {
        const char *directory = path_of(i ? "shrunk-1" : "shrunk-0");
        const struct read_options options = {.engine = engines[i], .depth = 1, .max_bytes = 4096};
        struct reader *reader;
        ck_assert_int_eq(reader_new(&options, &reader, &diag), 0);
        struct cache *cache = open_size(directory, 4 * MIB);
        ck_assert_int_eq(add(cache, 1), 0);
        struct cache_key key = key_of(1);
        struct cache_hit hit;
        ck_assert(cache_find(cache, &key, &hit));
        struct reading reading = {&hit, &key, NULL, 0};
        const uint8_t *bytes;
        size_t length;
        cache_extent(&hit, &bytes, &length);
        ck_assert_int_eq(reader_guard_bytes(reader, bytes, length, read_record, &reading), 0);
        ck_assert(is_record(1, reading.bytes, reading.length));
        struct damage damage = {.bytes = 0};
        each_segment(directory, cut, &damage);
        ck_assert_int_eq(reader_guard_bytes(reader, bytes, length, read_record, &reading), -EFAULT);
        cache_drop(cache, &key, &hit);
        cache_done(&hit);
        add(cache, 2); /* whatever it does, it lives */
        cache_unref(cache);
        reader_free(reader);
    }
}
END_TEST

/* Names that are not ours, and ours that are no segments. */
START_TEST(foreign_files) {
    const char *directory = path_of("foreign");
    struct cache *cache = open_size(directory, 4 * MIB);
    ck_assert_int_eq(add(cache, 1), 0);
    cache_unref(cache);
    char path[1024];
    static const char *const names[] = {"segment-0123456789abcdef.cache", "segment-1.cache", "notes.txt",
                                        "segment-0123456789abcdef.cache.bak"};
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        snprintf(path, sizeof path, "%s/%s", directory, names[i]);
        FILE *f = fopen(path, "w");
        fputs("not a segment", f);
        fclose(f);
    }
    snprintf(path, sizeof path, "%s/segment-00000000000000aa.cache", directory);
    ck_assert_int_eq(symlink("/dev/zero", path), 0);
    cache = open_size(directory, 4 * MIB);
    ck_assert_int_eq(look(cache, 1), RIGHT);
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        snprintf(path, sizeof path, "%s/%s", directory, names[i]);
        ck_assert_int_eq(access(path, F_OK), i == 0 ? -1 : 0);
    }
    cache_unref(cache);
}
END_TEST

/* ---- crashes ------------------------------------------------------------------------------------------------------- */

/* A process that adds is killed at some moment, again and again: what is found is always whole, and nothing that was
 * there before is lost. */
START_TEST(killed) {
    const char *directory = path_of("killed");
    uint64_t before = 0;
    for (unsigned round = 0; round < 25; round++) {
        int pipe_fd[2];
        ck_assert_int_eq(pipe(pipe_fd), 0);
        pid_t child = fork();
        ck_assert_int_ge(child, 0);
        if (child == 0) {
            struct cache *cache = open_size(directory, 64 * MIB);
            for (uint64_t n = before;; n++) {
                if (add(cache, n) != 0)
                    _exit(1);
                uint64_t told = n + 1;
                if (write(pipe_fd[1], &told, sizeof told) != (ssize_t)sizeof told)
                    _exit(1);
            }
        }
        close(pipe_fd[1]);
        uint64_t told = before, wanted = before + 1 + round * 5;
        while (told < wanted && read(pipe_fd[0], &told, sizeof told) == (ssize_t)sizeof told)
            ;
        if (round % 3)
            usleep(round * 37);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        while (read(pipe_fd[0], &told, sizeof told) == (ssize_t)sizeof told)
            ;
        close(pipe_fd[0]);
        struct cache *cache = open_size(directory, 64 * MIB);
        ck_assert_uint_eq(count_found(cache, 0, told), told);
        ck_assert_uint_le(statistics_of(cache).entries, told + 1);
        cache_unref(cache);
        before = told + 1;
        cache = open_size(directory, 64 * MIB); /* so that the next round's "all before" holds */
        add(cache, told);
        cache_unref(cache);
    }
}
END_TEST

START_TEST(one_process) {
    const char *directory = path_of("one");
    int ready[2];
    ck_assert_int_eq(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        struct cache *cache = open_size(directory, 4 * MIB);
        if (add(cache, 1) != 0 || write(ready[1], "x", 1) != 1)
            _exit(1);
        pause();
        _exit(0);
    }
    char byte, wanted[64];
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    struct cache *cache = NULL;
    const struct cache_options options = {directory, 4 * MIB, MEMORY};
    ck_assert_int_eq(cache_open(&options, &cache, &diag), -EBUSY);
    ck_assert_ptr_null(cache);
    snprintf(wanted, sizeof wanted, "is in use by process %ld;", (long)child);
    ck_assert_msg(strstr(diag.text, wanted) != NULL, "%s", diag.text);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    cache = open_size(directory, 4 * MIB);
    ck_assert_int_eq(look(cache, 1), RIGHT);
    cache_unref(cache);
    close(ready[0]);
    close(ready[1]);
}
END_TEST

/* ---- places that cannot be had -------------------------------------------------------------------------------------- */

static void refuses(const char *directory, uint64_t bytes, uint64_t memory, int code, const char *text) {
    struct cache *cache = NULL;
    const struct cache_options options = {directory, bytes, memory};
    ck_assert_int_eq(cache_open(&options, &cache, &diag), code);
    ck_assert_ptr_null(cache);
    ck_assert_msg(strstr(diag.text, text) != NULL, "%s", diag.text);
}

START_TEST(no_place) {
    refuses(path_of("no/such/parent"), 4 * MIB, MEMORY, -ENOENT, "no/such/parent cannot be made");
    refuses("/dev/null/cache", 4 * MIB, MEMORY, -ENOTDIR, "/dev/null/cache cannot be made");
    refuses("/dev/null", 4 * MIB, MEMORY, -ENOTDIR, "/dev/null cannot be opened");
    refuses(path_of("small"), 4096, MEMORY, -EINVAL, "too small");
    refuses(NULL, 8 * MIB, 8 * MIB, -ENOMEM, "more than half of the 8 MiB");
    if (geteuid() != 0) {
        ck_assert_int_eq(mkdir(path_of("closed"), 0500), 0);
        refuses(path_of("closed"), 4 * MIB, MEMORY, -EACCES, "cannot be written to");
    }
}
END_TEST

/* A limit of a file's size stands for a disk that is full: one refusal, and what is there goes on to be served. */
START_TEST(full_disk) {
    const char *directory = path_of("full");
    struct cache *cache = open_size(directory, 32 * MIB);
    for (uint64_t n = 0; n < 10; n++)
        ck_assert_int_eq(add(cache, n), 0);
    struct rlimit before, limit;
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    limit.rlim_cur = MIB / 2;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    uint64_t n = 10;
    while (add(cache, n) == 0)
        n++;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
    struct cache_statistics s = statistics_of(cache);
    ck_assert(s.failed && !s.full);
    struct cache_key next = key_of(n + 1);
    ck_assert(!cache_wants(cache, &next));
    ck_assert_uint_eq(count_found(cache, 0, n + 1), n);
    cache_unref(cache);
    cache = open_size(directory, 32 * MIB);
    ck_assert_uint_eq(count_found(cache, 0, n + 1), n);
    ck_assert_int_eq(add(cache, n + 1), 0);
    cache_unref(cache);
}
END_TEST

/* ---- threads ------------------------------------------------------------------------------------------------------- */

#define THREADS 4
#define KEYS 1500u

struct crowd {
    struct cache *cache;
    _Atomic uint64_t wrong, added;
};

static void *add_and_look(void *arg) {
    static _Atomic unsigned number;
    struct crowd *crowd = arg;
    struct cache_user user = {0};
    unsigned seed = ++number;
    cache_join(crowd->cache, &user);
    for (uint64_t i = 0; i < 4 * KEYS; i++) {
        uint64_t n = (uint64_t)rand_r(&seed) % KEYS + i / KEYS * KEYS / 2;
        enum found found = look(crowd->cache, n);
        crowd->wrong += found == WRONG;
        if (found == NONE)
            crowd->added += add(crowd->cache, n) == 0;
        if (i % 500 == 0)
            cache_epoch(crowd->cache, &user, i / 500);
    }
    cache_leave(crowd->cache, &user);
    return NULL;
}

START_TEST(threads) {
    struct crowd crowd = {.cache = open_size(path_of("threads"), 6 * MIB)};
    pthread_t thread[THREADS];
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&thread[i], NULL, add_and_look, &crowd), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    struct cache_statistics s = statistics_of(crowd.cache);
    ck_assert_uint_eq(crowd.wrong, 0);
    ck_assert_uint_gt(crowd.added, 500);
    ck_assert_uint_eq(s.filled, crowd.added);
    ck_assert_uint_le(s.used, 6 * MIB);
    cache_unref(crowd.cache);
    crowd.cache = open_size(path_of("threads"), 6 * MIB);
    ck_assert_uint_eq(count_found(crowd.cache, 0, 4 * KEYS), statistics_of(crowd.cache).entries);
    cache_unref(crowd.cache);
}
END_TEST

/* The index grows with what it holds, and stays within what the documentation says of it. */
START_TEST(index_memory) {
    struct cache *cache = open_size(NULL, 512 * MIB);
    const uint64_t count = 100000;
    uint8_t record[100] = {1};
    for (uint64_t n = 0; n < count; n++) {
        struct cache_key key = key_of(n);
        ck_assert_int_eq(cache_add(cache, &key, record, sizeof record), 0);
    }
    struct cache_statistics s = statistics_of(cache);
    ck_assert_uint_eq(s.entries, count);
    ck_assert_uint_le(s.index_bytes, count * 96);
    for (uint64_t n = 0; n < count; n++) {
        struct cache_key key = key_of(n);
        struct cache_hit hit;
        ck_assert(cache_find(cache, &key, &hit));
        cache_done(&hit);
    }
    cache_unref(cache);
}
END_TEST

int main(void) {
    if (!mkdtemp(root))
        return 1;
    log_init("check_cache", LOG_ERROR);
    Suite *suite = suite_create("cache");
    TCase *tc = tcase_create("cache");
    tcase_set_timeout(tc, 240);
    tcase_add_test(tc, in_memory);
    tcase_add_test(tc, in_directory);
    tcase_add_test(tc, keys);
    tcase_add_test(tc, refusals_and_drops);
    tcase_add_test(tc, bounds);
    tcase_add_test(tc, reclaim);
    tcase_add_test(tc, pins);
    tcase_add_test(tc, flipped_bits);
    tcase_add_test(tc, cut_files);
    tcase_add_test(tc, cut_while_open);
    tcase_add_test(tc, foreign_files);
    tcase_add_test(tc, killed);
    tcase_add_test(tc, one_process);
    tcase_add_test(tc, no_place);
    tcase_add_test(tc, full_disk);
    tcase_add_test(tc, threads);
    tcase_add_test(tc, index_memory);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    char command[600];
    snprintf(command, sizeof command, "rm -rf %s", root);
    if (system(command) != 0)
        return 1;
    return failed ? 1 : 0;
}
