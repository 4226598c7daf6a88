/* SPDX-License-Identifier: MIT */
/*
 * Reading by plain system calls: the engine that always works. A submit opens the file and asks the kernel for
 * read-ahead, so that a deep queue keeps a disk busy; the bytes are copied when the request is reaped, in the order of
 * submission. It never keeps a descriptor beyond its request. Threading: the reader's thread.
 */
#include <fcntl.h>

#include "read/engine.h"

static int open_result(const struct slot *slot) {
    int fd = openat(slot_dirfd(slot), slot_path(slot), READ_OPEN_FLAGS);
    return fd < 0 ? -errno : fd;
}

static int64_t read_result_of(struct reader *reader, const struct slot *slot) {
    ssize_t n = pread(slot_fd(slot), slot->target + slot->done, slot_piece(reader, slot), (off_t)slot_offset(slot));
    return n < 0 ? -errno : n;
}

static void close_own(struct slot *slot) {
    if (slot->fd >= 0)
        close(steal_fd(&slot->fd));
}

/* Opens until that succeeds or is given up. */
static enum step open_now(struct reader *reader, struct slot *slot) {
    enum step step = STEP_OPEN;
    while (step == STEP_OPEN) {
        close_own(slot);
        step = slot_after_open(reader, slot, open_result(slot));
        if (step == STEP_OPEN)
            read_sleep(slot->delay_ns);
    }
    return step;
}

/* No descriptor is left, but earlier requests hold some: this one is opened when its turn has come. */
static bool open_later(const struct reader *reader, int result) {
    return (result == -EMFILE || result == -ENFILE) && reader->pending.count > 0;
}

void pread_begin(struct reader *reader, struct slot *slot, enum step step) {
    if (step == STEP_OPEN) {
        int result = open_result(slot);
        if (open_later(reader, result)) {
            queue_push(&reader->pending, slot->request.tag);
            return;
        }
        step = slot_after_open(reader, slot, result);
    }
    if (step == STEP_OPEN) {
        read_sleep(slot->delay_ns);
        step = open_now(reader, slot);
    }
    if (step == STEP_OVER) {
        close_own(slot);
        return;
    }
    posix_fadvise(slot_fd(slot), (off_t)slot->request.extent.offset, (off_t)slot->wanted, POSIX_FADV_WILLNEED);
    queue_push(&reader->pending, slot->request.tag);
}

void pread_finish(struct reader *reader, struct slot *slot, enum step step) {
    if (slot->fd < 0 && !slot->request.extent.file)
        step = STEP_OPEN;
    while (step != STEP_OVER) {
        if (step == STEP_OPEN)
            step = open_now(reader, slot);
        else
            step = slot_after_read(reader, slot, read_result_of(reader, slot));
        if (step == STEP_READ)
            read_sleep(slot->delay_ns);
    }
    close_own(slot);
}

static int pread_open(struct reader *reader, struct diag *diag) {
    (void)reader;
    (void)diag;
    return 0;
}

static void pread_close(struct reader *reader) {
    (void)reader;
}

static void pread_submit(struct reader *reader, struct slot *slot) {
    uint64_t begun = now_ns();
    pread_begin(reader, slot, slot_start(reader, slot));
    reader->counters.waits_ns += now_ns() - begun;
}

void pread_flush(struct reader *reader) {
    (void)reader;
}

static void pread_advance(struct reader *reader, uint64_t wait_ns) {
    (void)wait_ns;
    uint64_t begun = now_ns();
    if (reader->pending.count)
        pread_finish(reader, &reader->slots[queue_pop(&reader->pending)], STEP_READ);
    reader->counters.waits_ns += now_ns() - begun;
}

const struct engine engine_pread = {
    .open = pread_open,
    .close = pread_close,
    .submit = pread_submit,
    .flush = pread_flush,
    .advance = pread_advance,
};
