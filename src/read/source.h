/* SPDX-License-Identifier: MIT */
/*
 * Source files as all readers of the process share them: one mapping, one descriptor for direct reads, what alignment
 * those want, and which of its bytes are in the page cache. Keyed by identity: a file opened by two datasets is one.
 *
 * Each reader keeps a table of those that it used, so that the lock is taken once a reader and file. Never reads a byte
 * of a file into memory of its own. Threading: a table belongs to its reader's thread; the shared part has a lock.
 */
#ifndef READ_SOURCE_H
#define READ_SOURCE_H

#include "base/types.h"

#define SOURCE_ALIGN_MOST 4096u /* files that want more for direct reads are not read so */

struct source; /* shared, referenced by tables */

/* How a file is read past the page cache. */
struct source_direct {
    int fd;                              /* -1: not */
    uint32_t offset_align, memory_align; /* powers of two, at most SOURCE_ALIGN_MOST */
};

/* A reader's entry for a file. */
struct source_entry {
    const struct source_file *file; /* NULL: free */
    struct file_identity identity;  /* a later file may be at the same address as an earlier one */
    int fd;
    struct source *source;
    unsigned users;           /* requests between submit and done */
    uint64_t used;            /* when last */
    unsigned cached;          /* looks in a row that found all bytes cached */
    bool mapped, direct_open; /* asked for, and this came: */
    uint8_t *address;
    struct source_direct direct;
};
struct source_table; /* 2,048 files at most at a time */

struct source_table *source_table_new(void); /* NULL: no memory */
void source_table_free(struct source_table *table);
/* The entry, made now if need be; NULL where none is to be had. */
struct source_entry *source_find(struct source_table *table, const struct source_file *file);

/* The file as it was when opened, mapped shared and read-only, made by the first caller: entry->address. False where it
 * is not to be mapped: on a file server, so that no fault hangs or kills. */
bool source_map(struct source_entry *entry);

/* A descriptor for direct reads, likewise: entry->direct. False where the file or its file system cannot, or too few
 * descriptors are left. */
bool source_direct(struct source_entry *entry);
/* It said that it could, and refused: not again. */
void source_not_direct(struct source_entry *entry);

/* Bytes of all files that some table holds. */
uint64_t source_bytes(void);

/* Are all of these bytes in the page cache? Unknown: the kernel does not tell (before 6.5, or the file is another
 * user's). Starts no reading. */
enum source_residency { SOURCE_ABSENT, SOURCE_RESIDENT, SOURCE_UNKNOWN };
enum source_residency source_residency(int fd, uint64_t offset, uint64_t length);
/* The same by looking at a page here and there, which makes those resident that were not: only before a buffered read of
 * all of them. */
bool source_probe(int fd, uint64_t offset, uint64_t length);
/* The same question for a file in use. One of which all was there for a while is looked at now and then only: a look costs
 * a tenth of a copy. What is not there after all is read when it is touched. */
enum source_residency source_look(struct source_entry *entry, uint64_t offset, uint64_t length);

#endif
