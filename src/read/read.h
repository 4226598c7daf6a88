/* SPDX-License-Identifier: MIT */
/*
 * Reading extents: one `reader` per worker thread, used by that thread only. Three engines behind one interface:
 *   uring   io_uring of the worker's own; opens, reads and closes asynchronously; past the page cache where that pays
 *   mmap    files that stay open are mapped and read in place; others are mapped for the time of the sample
 *   pread   plain system calls, the engine that always works
 *
 * A request is submitted with a tag, reaped in any order, and its bytes belong to the reader until read_done(tag).
 * At most `depth` requests are between submit and done. Nothing is allocated after reader_new() except that a buffer
 * grows, up to `max_bytes`, for the largest sample seen.
 *
 * Errors of a request are in its result, never lost: -EIO, -ENOENT, -EACCES, -EISDIR, -ESTALE (the file changed since
 * the dataset was opened, or became shorter), -EFBIG (longer than max_bytes; the sentence names max-sample-bytes), with
 * a sentence naming path and offset. EINTR, EAGAIN and short reads are retried inside, with back-off and a bound; so is
 * EIO, a few times.
 *
 * Environment: LOADERD_URING_OFF is a list, separated by commas, of what uring is to do without, for comparisons and for
 * kernels with a bug: chain (open, read and close as one submission), single-issuer, coop-taskrun, registered-ring,
 * iowq-limit, resident (copies from a mapping what is cached).
 */
#ifndef READ_READ_H
#define READ_READ_H

#include "base/copy.h"
#include "base/diag.h"
#include "base/types.h"

enum read_engine { READ_AUTO, READ_URING, READ_MMAP, READ_PREAD };

/* Which extents of source files are read past the page cache (O_DIRECT): none; those of 32 KiB and more that are not
 * cached, once the source files in use are together larger than cache_room, so that caching them would only push others
 * out; or all, cached or not. Where a file cannot be read so it is read as usual. */
enum read_direct { READ_DIRECT_NO, READ_DIRECT_AUTO, READ_DIRECT_YES };

#define READ_MOST_DEPTH 2048u /* the key's most, and what a worker needs besides */

struct read_options {
    enum read_engine engine;
    unsigned depth;          /* requests in flight, 1..READ_MOST_DEPTH */
    uint64_t max_bytes;      /* of one extent */
    enum read_direct direct; /* of source files, by uring */
    uint64_t cache_room;     /* READ_DIRECT_AUTO: bytes that the page cache may be expected to keep */
};

struct reader; /* one engine instance */

struct read_request {
    uint32_t tag; /* 0..depth-1, chosen by the caller, not in use */
    struct extent extent;
    void *into; /* NULL: the reader's own memory. Otherwise extent.length bytes are put there (a ring slot) */
    enum copy_stores stores; /* by which copies get there */
};

struct read_result {
    uint32_t tag;
    int error;            /* 0 or a negative errno */
    const uint8_t *bytes; /* valid until read_done(tag); == request.into where that was given */
    size_t length;
    const struct diag *diag; /* the sentence where error != 0; valid until read_done(tag) */
};

/* Which engine `wanted` becomes on this machine, and in one sentence why (e.g. "io_uring is forbidden by
 * kernel.io_uring_disabled=2; using pread"). Never fails: pread always works. READ_AUTO probes; an engine asked for by name that
 * cannot work here becomes READ_PREAD with the reason. Logs nothing. */
enum read_engine read_choose(enum read_engine wanted, struct diag *why);
const char *read_engine_name(enum read_engine engine);

/* To be called on the worker's own thread. On failure a negative errno and a sentence. options->engine must be one
 * that read_choose() returned. */
int reader_new(const struct read_options *options, struct reader **ret, struct diag *diag);
void reader_free(struct reader *reader); /* waits for what is in flight; NULL allowed */

/* Starts a read. Never blocks for storage under uring; the others may do the work here or in reader_reap().
 * Returns 0; a failure is delivered by reader_reap(). */
void reader_submit(struct reader *reader, const struct read_request *request);
/* Hands what was submitted to the kernel. To be called once after a group of submits. */
void reader_flush(struct reader *reader);
/* Next finished request: 1 and *ret, or 0 where none is finished. wait_ns > 0 waits at most so long for one, as long
 * as any is in flight. */
int reader_reap(struct reader *reader, uint64_t wait_ns, struct read_result *ret);
/* The bytes of `tag` are no longer needed. For a mapped extent this is where a change of the file since open is
 * noticed: returns 0, or -ESTALE and the sentence in *diag where what was read cannot be trusted. */
int reader_done(struct reader *reader, uint32_t tag, struct diag *diag);
/* Requests between submit and reap. */
unsigned reader_in_flight(const struct reader *reader);

/* SIGBUS guard for bytes of a mapping: see mmap.c. Calls f(arg) with faults inside `bytes`[0, length) turned into a return
 * of -EFAULT; any other fault stays fatal. Without a mapping (bytes owned by the reader) it just calls f. */
int reader_guard(struct reader *reader, uint32_t tag, int (*f)(void *arg), void *arg);

/* Bytes in place: an extent of a source file whose pages are cached, as an address in its mapping; no read, no tag. NULL:
 * submit it. They are used inside reader_guard_view(), which calls f(arg), or returns -EFAULT where a page could not be
 * had; and what was made of them is believed once reader_unchanged() has said, afterwards, that the file is the one of the
 * dataset's opening. Where either fails, a read of the same extent has the verdict and its sentence. Views are good until
 * the reader is asked for one of another file. */
const uint8_t *reader_view(struct reader *reader, const struct extent *extent);
int reader_guard_view(const uint8_t *bytes, uint64_t length, int (*f)(void *arg), void *arg);
bool reader_unchanged(const struct source_file *file);
/* So many views of `bytes` bytes in all were used and are right: for the counters. */
void reader_viewed(struct reader *reader, uint64_t views, uint64_t bytes);

/* Whether the file at file->path is still the one that is open: 0, or -ESTALE (replaced, resized, written to) or another
 * negative errno, and a sentence. One system call; for the start of an epoch: a reader, which reads the open file, does
 * not see that another one took its name. Any thread. */
int read_check_file(const struct source_file *file, struct diag *diag);
/* Whether `fd` is on a network or FUSE file system, whose name then is in *ret_name (may be NULL). Any thread. */
bool read_is_remote(int fd, const char **ret_name);

/* The same for bytes of a mapping that is none of the reader's: -EFAULT where they could not be read. */
int reader_guard_bytes(struct reader *reader, const void *bytes, size_t length, int (*f)(void *arg), void *arg);

/* Which file an extent lies in, as it is now: one system call, which asks no file server where the file is open. The
 * change time besides, which nobody can set. 0, or a negative errno: -EINVAL: no regular file. Any thread. */
int read_identify(const struct extent *extent, struct file_identity *ret, int64_t *ret_ctime_ns);

/* What this reader did, for statistics. waits_ns: time blocked for storage (uring), or spent in the system calls that
 * read (pread, mmap), where waiting and copying cannot be told apart. */
struct read_counters {
    uint64_t requests, bytes, errors, retries, waits_ns;
    uint64_t copy_ns;          /* of waits and calls: spent copying what was there into the callers' memory */
    uint64_t direct, resident; /* uring: extents read past the page cache; copied from it without a read */
};
const struct read_counters *reader_counters(const struct reader *reader);

#endif
