/* SPDX-License-Identifier: MIT */
/*
 * Source files, shared by all readers: see source.h.
 *
 *     reader's table ──► entry ──► source (registry, by identity) ──► mapping, direct descriptor
 *
 * A source lives as long as some entry refers to it; its mapping and descriptor are made once, when first asked for.
 * What pages are cached is asked of cachestat(2), which refuses to tell other users than the owner; mincore(2) tells
 * them "resident" whatever is the case. preadv2(RWF_NOWAIT) starts to read the page that it does not find.
 */
#include "read/source.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "base/util.h"
#include "read/read.h"

#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

#define SETS 256u /* of a table: SETS x WAYS files */
#define WAYS 8u
#define CHAINS 1024u
#define PROBE_DISTANCE (128u << 10) /* as far as the kernel reads ahead by default */
#define LOOKS 64u                   /* after so many extents that were cached, ... */
#define LOOKS_EVERY 16u             /* ... one in so many is looked at */

struct source {
    struct source *next; /* of its chain */
    struct file_identity identity;
    unsigned references;
    bool remote;

    bool map_tried, direct_tried;
    _Atomic bool direct_refused;
    uint8_t *address;
    struct source_direct direct; /* fd -1: none */
};

struct source_table {
    struct source_entry entry[SETS][WAYS];
    uint64_t clock;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all below, and of each source's tried, address, direct */
static struct source *chains[CHAINS];
static unsigned direct_descriptors;
static _Atomic uint64_t total_bytes;

/* ---- the registry ---- */

static bool same(const struct file_identity *a, const struct file_identity *b) {
    return a->inode == b->inode && a->device == b->device && a->size == b->size && a->mtime_ns == b->mtime_ns;
}

static struct source **chain_of(const struct file_identity *identity) {
    uint64_t hash = (identity->inode ^ identity->device << 32) * UINT64_C(0x9E3779B97F4A7C15);
    return &chains[hash >> 54];
}

static struct source *source_ref(const struct source_file *file) {
    bool remote = read_is_remote(file->fd, NULL);
    pthread_mutex_lock(&lock);
    struct source **chain = chain_of(&file->identity), *source = *chain;
    while (source && !same(&source->identity, &file->identity))
        source = source->next;
    if (!source && (source = calloc(1, sizeof *source))) {
        source->identity = file->identity;
        source->remote = remote;
        source->direct.fd = -1;
        source->next = *chain;
        *chain = source;
        atomic_fetch_add_explicit(&total_bytes, file->identity.size, memory_order_relaxed);
    }
    if (source)
        source->references++;
    pthread_mutex_unlock(&lock);
    return source;
}

static void source_unref(struct source *source) {
    if (!source)
        return;
    pthread_mutex_lock(&lock);
    if (--source->references == 0) {
        struct source **link = chain_of(&source->identity);
        while (*link != source)
            link = &(*link)->next;
        *link = source->next;
        atomic_fetch_sub_explicit(&total_bytes, source->identity.size, memory_order_relaxed);
        if (source->address)
            munmap(source->address, source->identity.size);
        if (source->direct.fd >= 0) {
            close(source->direct.fd);
            direct_descriptors--;
        }
        free(source);
    }
    pthread_mutex_unlock(&lock);
}

uint64_t source_bytes(void) {
    return atomic_load_explicit(&total_bytes, memory_order_relaxed);
}

/* ---- a reader's table ---- */

struct source_table *source_table_new(void) {
    return calloc(1, sizeof(struct source_table));
}

static void forget(struct source_entry *entry) {
    source_unref(entry->source);
    *entry = (struct source_entry){0};
}

void source_table_free(struct source_table *table) {
    for (unsigned i = 0; table && i < SETS * WAYS; i++)
        forget(&table->entry[i / WAYS][i % WAYS]);
    free(table);
}

struct source_entry *source_find(struct source_table *table, const struct source_file *file) {
    struct source_entry *set = table->entry[((uintptr_t)file * UINT64_C(0x9E3779B97F4A7C15)) >> 56];
    struct source_entry *oldest = NULL;
    for (unsigned i = 0; i < WAYS; i++) {
        if (set[i].file == file && set[i].fd == file->fd && same(&set[i].identity, &file->identity)) {
            set[i].used = ++table->clock;
            return &set[i];
        }
        if (!set[i].users && (!oldest || set[i].used < oldest->used))
            oldest = &set[i];
    }
    if (!oldest)
        return NULL;
    forget(oldest);
    struct source *source = source_ref(file);
    if (!source)
        return NULL;
    *oldest = (struct source_entry){
        .file = file, .identity = file->identity, .fd = file->fd, .source = source, .used = ++table->clock};
    return oldest;
}

/* ---- mapping ---- */

static void map(struct source *source, int fd) {
    source->map_tried = true;
    if (source->remote || source->identity.size == 0 || source->identity.size > SIZE_MAX)
        return;
    void *address = mmap(NULL, source->identity.size, PROT_READ, MAP_SHARED, fd, 0);
    if (address != MAP_FAILED)
        source->address = address;
}

bool source_map(struct source_entry *entry) {
    if (!entry->mapped) {
        pthread_mutex_lock(&lock);
        if (!entry->source->map_tried)
            map(entry->source, entry->fd);
        entry->address = entry->source->address;
        entry->mapped = true;
        pthread_mutex_unlock(&lock);
    }
    return entry->address != NULL;
}

/* ---- direct reads ---- */

static bool usable(uint32_t align) {
    return align && align <= SOURCE_ALIGN_MOST && (align & (align - 1)) == 0;
}

/* What the file says that it wants; where it does not say (before Linux 6.1), a block of its file system. */
static bool find_alignment(int fd, struct source_direct *direct) {
#ifdef STATX_DIOALIGN
    struct statx st;
    if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_DIOALIGN, &st) == 0 && st.stx_mask & STATX_DIOALIGN) {
        direct->offset_align = st.stx_dio_offset_align;
        direct->memory_align = st.stx_dio_mem_align;
        return usable(direct->offset_align) && usable(direct->memory_align);
    }
#endif
    struct statvfs fs;
    if (fstatvfs(fd, &fs) < 0)
        return false;
    direct->offset_align = direct->memory_align = (uint32_t)CLAMP(fs.f_bsize, 512u, SOURCE_ALIGN_MOST);
    return usable(direct->offset_align);
}

/* A quarter of the descriptors at most: datasets and path files need theirs. */
static bool descriptor_left(void) {
    struct rlimit limit;
    return getrlimit(RLIMIT_NOFILE, &limit) == 0 && direct_descriptors < limit.rlim_cur / 4;
}

static void open_direct(struct source *source, int fd) {
    char path[40];
    source->direct_tried = true;
    if (source->remote || !descriptor_left() || !find_alignment(fd, &source->direct))
        return;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    source->direct.fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC | O_NOCTTY);
    direct_descriptors += source->direct.fd >= 0;
}

bool source_direct(struct source_entry *entry) {
    struct source *source = entry->source;
    if (!entry->direct_open) {
        pthread_mutex_lock(&lock);
        if (!source->direct_tried)
            open_direct(source, entry->fd);
        entry->direct = source->direct;
        entry->direct_open = true;
        pthread_mutex_unlock(&lock);
    }
    return entry->direct.fd >= 0 && !atomic_load_explicit(&source->direct_refused, memory_order_relaxed);
}

void source_not_direct(struct source_entry *entry) {
    atomic_store_explicit(&entry->source->direct_refused, true, memory_order_relaxed);
}

/* ---- what is cached ---- */

enum source_residency source_residency(int fd, uint64_t offset, uint64_t length) {
    struct {
        uint64_t offset, length;
    } range = {offset, length};
    struct {
        uint64_t cached, dirty, written_back, evicted, recently_evicted; /* pages */
    } found = {0};
    if (syscall(SYS_cachestat, fd, &range, &found, 0) < 0)
        return SOURCE_UNKNOWN;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    return found.cached >= (offset + length - 1) / page - offset / page + 1 ? SOURCE_RESIDENT : SOURCE_ABSENT;
}

enum source_residency source_look(struct source_entry *entry, uint64_t offset, uint64_t length) {
    enum source_residency found = SOURCE_RESIDENT;
    if (entry->cached < LOOKS || entry->cached % LOOKS_EVERY == 0)
        found = source_residency(entry->fd, offset, length);
    entry->cached = found == SOURCE_RESIDENT ? entry->cached + 1 : 0;
    return found;
}

static bool page_resident(int fd, uint64_t offset) {
    char byte;
    const struct iovec piece = {&byte, 1};
    return preadv2(fd, &piece, 1, (off_t)offset, RWF_NOWAIT) == 1;
}

bool source_probe(int fd, uint64_t offset, uint64_t length) {
    for (uint64_t at = 0; at < length; at += PROBE_DISTANCE)
        if (!page_resident(fd, offset + at))
            return false;
    return page_resident(fd, offset + length - 1);
}
