/* SPDX-License-Identifier: MIT */
/*
 * Reading in place: a source file is mapped whole, once for all readers, and its extents are handed out as addresses. Large files opened by path are mapped for the time of their request; small ones are copied by pread.c,
 * which costs less than mapping them. Files of a file server are always copied, so that no fault hangs or kills.
 *
 * Never writes to a mapping. Threading: the reader's thread.
 */
#include <sys/mman.h>

#include "read/engine.h"

#define MAP_LEAST (4u << 20) /* a file opened by path is mapped from here on */

struct mmap_state {
    struct source_table *table;
    uint64_t page;
};

static void will_need(const struct mmap_state *state, uint8_t *bytes, uint64_t length) {
    uintptr_t begin = (uintptr_t)bytes & ~(uintptr_t)(state->page - 1);
    madvise((void *)begin, (uintptr_t)bytes + length - begin, MADV_WILLNEED);
}

static void mmap_submit(struct reader *reader, struct slot *slot) {
    struct mmap_state *state = reader->state;
    const struct extent *extent = &slot->request.extent;
    uint64_t begun = now_ns();
    enum step step = slot_start(reader, slot);
    if (step == STEP_READ && slot_map_source(state->table, slot)) {
        will_need(state, slot->source->address + extent->offset, extent->length);
        queue_push(&reader->pending, slot->request.tag);
    } else {
        pread_begin(reader, slot, step);
    }
    reader->counters.waits_ns += now_ns() - begun;
}

/* ---- finishing ---- */

static void finish(struct reader *reader, struct slot *slot, const uint8_t *bytes) {
    if (mapped_finish(reader, slot, bytes) == STEP_OPEN)
        pread_finish(reader, slot, STEP_OPEN);
}

/* Maps a file that was opened for this request. False: read it. */
static bool map_own(struct reader *reader, struct slot *slot) {
    const struct mmap_state *state = reader->state;
    if (slot->fd < 0 || slot->request.into || slot->wanted < MAP_LEAST || read_is_remote(slot->fd, NULL))
        return false;
    uint64_t skipped = slot->request.extent.offset & (state->page - 1);
    uint64_t offset = slot->request.extent.offset - skipped;
    void *address = mmap(NULL, slot->wanted + skipped, PROT_READ, MAP_SHARED | MAP_POPULATE, slot->fd, (off_t)offset);
    if (address == MAP_FAILED)
        return false;
    slot->map = address;
    slot->map_length = slot->wanted + skipped;
    finish(reader, slot, slot->map + skipped);
    return true;
}

static void mmap_advance(struct reader *reader, uint64_t wait_ns) {
    (void)wait_ns;
    if (!reader->pending.count)
        return;
    uint64_t begun = now_ns();
    struct slot *slot = &reader->slots[queue_pop(&reader->pending)];
    if (slot->source)
        finish(reader, slot, slot->source->address + slot->request.extent.offset);
    else if (!map_own(reader, slot))
        pread_finish(reader, slot, STEP_READ);
    reader->counters.waits_ns += now_ns() - begun;
}

static void mmap_release(struct reader *reader, struct slot *slot) {
    (void)reader;
    slot_leave_source(slot);
    if (slot->map)
        munmap(slot->map, slot->map_length);
    slot->map = NULL;
    if (slot->fd >= 0)
        close(steal_fd(&slot->fd));
}

static void mmap_close(struct reader *reader) {
    struct mmap_state *state = reader->state;
    if (!state)
        return;
    source_table_free(state->table);
    mapped_leave(reader);
    free(state);
}

static int mmap_open(struct reader *reader, struct diag *diag) {
    struct mmap_state *state = calloc(1, sizeof *state);
    reader->state = state;
    if (!state || !(state->table = source_table_new()))
        return diag_set(diag, -ENOMEM, "no memory for the table of mappings");
    state->page = (uint64_t)sysconf(_SC_PAGESIZE);
    return mapped_prepare(reader, diag);
}

static struct source_table *mmap_table(struct reader *reader) {
    const struct mmap_state *state = reader->state;
    return state->table;
}

const struct engine engine_mmap = {
    .open = mmap_open,
    .close = mmap_close,
    .submit = mmap_submit,
    .flush = pread_flush,
    .advance = mmap_advance,
    .release = mmap_release,
    .table = mmap_table,
};
