/* SPDX-License-Identifier: MIT */
/*
 * Where a cache keeps its segments: files "segment-NUMBER.cache" of a directory of its own, or anonymous mappings. Makes,
 * finds, maps and removes them; knows nothing of who looks. A segment's space is allocated when it is made, so that a
 * full disk is met there and not by a write.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>

#include "base/log.h"
#include "base/util.h"
#include "cache/internal.h"

#define NAME_BYTES 40
#define LEAST_ROOM (64u << 10) /* of a segment that was begun: with less it is not taken up again */

static void segment_name(uint64_t number, char name[NAME_BYTES]) {
    snprintf(name, NAME_BYTES, "segment-%016" PRIx64 ".cache", number);
}

uint64_t store_segment_bytes(uint64_t capacity) {
    uint64_t bytes = SEGMENT_MOST;
    while (bytes > SEGMENT_LEAST && bytes > capacity / 16)
        bytes /= 2;
    return bytes;
}

/* ---- segments ------------------------------------------------------------------------------------------------------ */

/* A place in the list: a free one of old, or a new one. NULL: none or no memory. */
static struct segment *take_place(struct cache *cache) {
    for (uint32_t i = 0; i < cache->segments; i++) {
        struct segment *s = cache->segment[i];
        if (atomic_load(&s->retired) && s->forgotten && !s->map && s->writers == 0)
            return s;
    }
    if (cache->segments == SEGMENTS_MOST)
        return NULL;
    struct segment *s = aligned_alloc(64, align_up(sizeof *s, 64));
    if (!s)
        return NULL;
    memset(s, 0, sizeof *s);
    s->slot = cache->segments;
    s->fd = -1;
    s->forgotten = true;
    atomic_init(&s->retired, true);
    atomic_store_explicit(&cache->segment[cache->segments++], s, memory_order_release);
    return s;
}

/* From here on entries of it may be found. */
static void put_in_use(struct cache *cache, struct segment *s, const struct segment_header *header, uint8_t *map) {
    s->header = *header;
    s->map = map;
    s->unwanted = false;
    s->next = 0;
    s->end = header->data;
    s->entries = s->record_bytes = 0;
    s->forgotten = false;
    atomic_fetch_add_explicit(&cache->used, header->bytes, memory_order_relaxed);
    atomic_store(&s->retired, false);
}

void store_unmap(struct segment *s) {
    munmap(s->map, s->header.bytes);
    s->map = NULL;
    if (s->fd >= 0)
        close(s->fd);
    s->fd = -1;
}

void store_finish(struct segment *s) {
    if (s->fd >= 0 && s->writers == 0) {
        close(s->fd);
        s->fd = -1;
    }
}

void store_remove(struct cache *cache, struct segment *s) {
    char name[NAME_BYTES];
    segment_name(s->header.number, name);
    if (cache->directory >= 0)
        unlinkat(cache->directory, name, 0);
    atomic_fetch_sub_explicit(&cache->used, s->header.bytes, memory_order_relaxed);
}

int store_write(struct segment *s, uint64_t offset, const void *first, size_t first_bytes, const void *second,
                size_t second_bytes) {
    if (s->fd < 0) { /* memory */
        if (second_bytes)
            memcpy(s->map + offset + first_bytes, second, second_bytes);
        memcpy(s->map + offset, first, first_bytes);
        return 0;
    }
    const uint8_t *piece[] = {first, second};
    const size_t bytes[] = {first_bytes, second_bytes};
    for (size_t i = 0, done; i < ARRAY_SIZE(piece); i++) {
        for (done = 0; done < bytes[i];) {
            ssize_t n = pwrite(s->fd, piece[i] + done, bytes[i] - done, (off_t)(offset + done));
            if (n < 0 && errno == EINTR)
                continue;
            if (n <= 0)
                return n < 0 ? -errno : -EIO;
            done += (size_t)n;
        }
        offset += bytes[i];
    }
    return 0;
}

/* A file of that many bytes, all of them allocated where the file system can. */
static int create_file(struct cache *cache, const struct segment_header *header, int *ret_fd) {
    char name[NAME_BYTES];
    segment_name(header->number, name);
    cleanup_close int fd =
        openat(cache->directory, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
    if (fd < 0)
        return -errno;
    int r = fallocate(fd, 0, 0, (off_t)header->bytes) < 0 ? -errno : 0;
    if (r == -EOPNOTSUPP || r == -EINTR)
        r = ftruncate(fd, (off_t)header->bytes) < 0 ? -errno : 0;
    if (r == 0) {
        ssize_t n = pwrite(fd, header, sizeof *header, 0);
        r = n < 0 ? -errno : n == (ssize_t)sizeof *header ? 0 : -EIO;
    }
    if (r < 0) {
        unlinkat(cache->directory, name, 0);
        return r;
    }
    *ret_fd = steal_fd(&fd);
    return 0;
}

int store_create(struct cache *cache, uint64_t bytes, struct segment **ret) {
    struct segment_header header;
    uint64_t number;
    if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number)
        return -EAGAIN;
    segment_header_make(bytes, number, &header);
    struct segment *s = take_place(cache);
    if (!s)
        return -ENOMEM;
    int fd = -1, r = cache->directory >= 0 ? create_file(cache, &header, &fd) : 0;
    if (r < 0)
        return r;
    void *map = fd >= 0 ? mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0)
                        : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) {
        r = -errno;
        char name[NAME_BYTES];
        segment_name(number, name);
        if (fd >= 0) {
            unlinkat(cache->directory, name, 0);
            close(fd);
        }
        return r;
    }
    s->fd = fd;
    put_in_use(cache, s, &header, map);
    *ret = s;
    return 0;
}

int store_resume(struct cache *cache, uint64_t bytes, struct segment **ret) {
    *ret = NULL;
    for (uint32_t i = 0; i < cache->segments; i++) {
        struct segment *s = cache->segment[i];
        uint64_t left = s->header.bytes - s->end;
        if (atomic_load(&s->retired) || s->unwanted || s->next >= s->header.entries || left < MAX(bytes, LEAST_ROOM))
            continue;
        if (cache->directory >= 0 && s->fd < 0) {
            char name[NAME_BYTES];
            segment_name(s->header.number, name);
            s->fd = openat(cache->directory, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
            struct stat status;
            if (s->fd < 0 || fstat(s->fd, &status) < 0 || (uint64_t)status.st_size != s->header.bytes) {
                store_finish(s); /* somebody removed it, or put something else there */
                s->next = s->header.entries;
                continue;
            }
        }
        *ret = s;
        return 0;
    }
    return 0;
}

/* ---- what a directory has --------------------------------------------------------------------------------------------*/

/* A file that was found. */
struct found {
    uint64_t number, bytes;
    int64_t mtime;
};
struct founds {
    struct found *found;
    size_t count;
};

/* Indexes the entries of a segment; its table is in memory. */
static int load_entries(struct cache *cache, struct segment *s, const uint8_t *table) {
    for (uint32_t i = 0; i < s->header.entries; i++) {
        const uint8_t *at = table + (size_t)i * sizeof(struct segment_entry);
        struct segment_entry entry;
        static const uint8_t nothing[sizeof entry];
        if (memcmp(at, nothing, sizeof nothing) == 0)
            continue;
        s->next = i + 1;
        if (!segment_entry_check(at, &s->header, &entry))
            continue; /* torn: its place stays lost */
        s->end = MAX(s->end, (uint64_t)entry.place * SEGMENT_UNIT + segment_blob_bytes(entry.bytes));
        if (cache_index(cache, s->slot, &entry) < 0)
            return -ENOMEM;
    }
    s->end = MIN(s->end, s->header.bytes);
    return 0;
}

static int read_all(int fd, void *into, size_t bytes, uint64_t offset) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pread(fd, (uint8_t *)into + done, bytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EBADMSG;
        done += (size_t)n;
    }
    return 0;
}

/* 0; -EBADMSG and a sentence: it is none of ours; or another negative errno. */
static int load_segment(struct cache *cache, const struct found *found, struct diag *diag) {
    char name[NAME_BYTES];
    struct segment_header header;
    uint8_t bytes[sizeof header];
    segment_name(found->number, name);
    cleanup_close int fd = openat(cache->directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return diag_set(diag, -errno, "cannot open: %s", strerror(errno));
    int r = read_all(fd, bytes, sizeof bytes, 0);
    if (r < 0)
        return diag_set(diag, r, "cannot read its header");
    r = segment_header_check(bytes, sizeof bytes, found->bytes, &header, diag);
    if (r == 0 && header.number != found->number)
        r = diag_set(diag, -EBADMSG, "its header says another number");
    if (r < 0)
        return r;
    cleanup_free uint8_t *table = malloc(header.data - SEGMENT_TABLE);
    struct segment *s = table ? take_place(cache) : NULL;
    if (!s)
        return diag_set(diag, -ENOMEM, "out of memory");
    r = read_all(fd, table, header.data - SEGMENT_TABLE, SEGMENT_TABLE);
    if (r < 0)
        return diag_set(diag, r, "cannot read its entries");
    void *map = mmap(NULL, header.bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return diag_set(diag, -errno, "cannot map it: %s", strerror(errno));
    put_in_use(cache, s, &header, map);
    r = load_entries(cache, s, table);
    return r < 0 ? diag_set(diag, r, "out of memory for the index") : 0;
}

static int newest_first(const void *a, const void *b) {
    const struct found *x = a, *y = b;
    return (x->mtime < y->mtime) - (x->mtime > y->mtime);
}

/* The names of our form. */
static int list_segments(struct cache *cache, struct founds *ret) {
    int fd = openat(cache->directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *directory = fd >= 0 ? fdopendir(fd) : NULL;
    int r = directory ? 0 : -errno;
    if (!directory && fd >= 0)
        close(fd);
    for (struct dirent *e; r == 0 && (e = readdir(directory));) {
        struct stat status;
        uint64_t number;
        char name[NAME_BYTES];
        if (sscanf(e->d_name, "segment-%16" SCNx64 ".cache", &number) != 1)
            continue;
        segment_name(number, name);
        if (strcmp(name, e->d_name) != 0 || fstatat(cache->directory, name, &status, AT_SYMLINK_NOFOLLOW) < 0 ||
            !S_ISREG(status.st_mode) || status.st_uid != geteuid() || status.st_size < 0)
            continue;
        if (ret->count % 64 == 0) {
            struct found *grown = reallocarray(ret->found, ret->count + 64, sizeof *grown);
            if (!grown) {
                r = -ENOMEM;
                break;
            }
            ret->found = grown;
        }
        ret->found[ret->count++] = (struct found){number, (uint64_t)status.st_size,
                                                  (int64_t)status.st_mtim.tv_sec * 1000000000 + status.st_mtim.tv_nsec};
    }
    if (directory)
        closedir(directory);
    return r;
}

/* Takes what is there, the newest first; what is damaged or beyond the capacity is removed. */
static int load(struct cache *cache, const struct founds *founds, struct diag *diag) {
    uint64_t capacity = atomic_load_explicit(&cache->capacity, memory_order_relaxed);
    uint32_t removed = 0;
    if (founds->count)
        qsort(founds->found, founds->count, sizeof *founds->found, newest_first);
    for (size_t i = 0; i < founds->count; i++) {
        const struct found *found = &founds->found[i];
        char name[NAME_BYTES];
        struct diag why = DIAG_INIT;
        segment_name(found->number, name);
        bool fits = atomic_load_explicit(&cache->used, memory_order_relaxed) + found->bytes <= capacity;
        int r = fits ? load_segment(cache, found, &why) : -EBADMSG;
        if (r == -ENOMEM)
            return diag_set(diag, r, "%s/%s: %s", cache->place, name, why.text);
        if (r == 0)
            continue;
        if (fits)
            log_notice("cache %s: %s: %s; removed", cache->place, name, why.text);
        removed += !fits;
        unlinkat(cache->directory, name, 0);
    }
    if (removed)
        log_notice("cache %s: %" PRIu32 " segments beyond cache-size removed", cache->place, removed);
    return 0;
}

/* ---- the directory ----------------------------------------------------------------------------------------------------*/

/* One process at a time. */
static int take_lock(struct cache *cache, struct diag *diag) {
    char text[32] = "";
    cache->lock = openat(cache->directory, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
    if (cache->lock < 0)
        return diag_set(diag, -errno, "%s cannot be written to: %s", cache->place, strerror(errno));
    if (flock(cache->lock, LOCK_EX | LOCK_NB) < 0) {
        int code = errno == EWOULDBLOCK ? EBUSY : errno;
        ssize_t n = pread(cache->lock, text, sizeof text - 1, 0);
        text[n > 0 ? (size_t)n : 0] = '\0';
        text[strcspn(text, "\n")] = '\0';
        return diag_set(diag, -code, "%s is in use by process %s; one process at a time has a cache directory",
                        cache->place, *text ? text : "?");
    }
    int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
    if (pwrite(cache->lock, text, (size_t)n, 0) != n || ftruncate(cache->lock, n) < 0)
        return diag_set(diag, -(errno ? errno : EIO), "%s cannot be written to: %s", cache->place, strerror(errno));
    return 0;
}

static int open_directory(struct cache *cache, const char *path, struct diag *diag) {
    struct stat status;
    if (mkdir(path, S_IRWXU) < 0 && errno != EEXIST)
        return diag_set(diag, -errno, "%s cannot be made: %s", path, strerror(errno));
    cache->directory = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (cache->directory < 0 || fstat(cache->directory, &status) < 0)
        return diag_set(diag, -errno, "%s cannot be opened: %s", path, strerror(errno));
    cache->device = status.st_dev;
    cache->inode = status.st_ino;
    return take_lock(cache, diag);
}

/* Half of what is free, with what the cache has already. */
static uint64_t default_capacity(const struct cache *cache, const struct founds *founds) {
    struct statvfs v;
    uint64_t bytes = 0;
    for (size_t i = 0; i < founds->count; i++)
        bytes += founds->found[i].bytes;
    if (fstatvfs(cache->lock, &v) == 0)
        bytes += (uint64_t)v.f_bavail * v.f_frsize;
    return MAX(bytes / 2, CACHE_LEAST);
}

int store_open(struct cache *cache, const struct cache_options *options, struct diag *diag) {
    struct founds founds = {0};
    cache->place = strdup(options->directory ? options->directory : "ram");
    if (!cache->place)
        return diag_set(diag, -ENOMEM, "out of memory for a cache");
    atomic_store_explicit(&cache->capacity, options->bytes, memory_order_relaxed);
    if (!options->directory)
        return 0;
    int r = open_directory(cache, options->directory, diag);
    if (r < 0)
        return r;
    r = list_segments(cache, &founds);
    if (r < 0)
        diag_set(diag, r, "%s cannot be read: %s", cache->place, strerror(-r));
    if (r == 0 && options->bytes == 0)
        atomic_store_explicit(&cache->capacity, default_capacity(cache, &founds), memory_order_relaxed);
    if (r == 0)
        r = load(cache, &founds, diag);
    free(founds.found);
    return r;
}

void store_close(struct cache *cache) {
    if (cache->lock >= 0)
        close(cache->lock);
    if (cache->directory >= 0)
        close(cache->directory);
}

bool store_is(const struct cache *cache, const char *directory) {
    struct stat status;
    if (!directory || cache->directory < 0)
        return !directory && cache->directory < 0;
    return stat(directory, &status) == 0 && status.st_dev == cache->device && status.st_ino == cache->inode;
}
