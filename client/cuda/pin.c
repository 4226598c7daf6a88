/* SPDX-License-Identifier: MIT */
/*
 * Registering rings, and loaderd_cuda_pin() for trainers that copy by themselves.
 *
 * A ring is registered in pieces of at most 1 GiB that end between slots, because one giant registration fails on some
 * machines and a copy must not span two. If a piece is refused, those before it are given back and the ring is used
 * unpinned. Registration is by address range and process, so each ring counts for itself, also where two loaders map the
 * same memory. Never called in a forked child, but for closing, which then calls nothing of CUDA.
 */
#include "pin.h"

#include <errno.h>
#include <inttypes.h>
#include <loaderd/cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../ring_hooks.h"
#include "device.h"

struct pin_region {
    struct pin_region *next;
    struct loaderd_mapped_ring ring;
    uint64_t registered; /* bytes, from the base on */
};

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static void notify(const struct pinning *p, const char *line) {
    if (p->notify)
        p->notify(p->notify_arg, line);
    else
        fprintf(stderr, "loaderd-cuda: %s\n", line);
}

uint64_t pin_piece(const struct loaderd_mapped_ring *ring, uint64_t done) {
    uint64_t end = done + PIN_PIECE, slot;
    if (end >= ring->bytes || ring->slot_stride == 0)
        return ring->bytes;
    slot = end > ring->slot_offset ? (end - ring->slot_offset) / ring->slot_stride : 0; /* whole slots before `end` */
    end = ring->slot_offset + slot * ring->slot_stride;
    if (end <= done) /* a slot larger than a piece */
        end = (done < ring->slot_offset ? ring->slot_offset : done) + ring->slot_stride;
    /* behind the last slot there may be padding of a huge page: it goes with it */
    return end >= ring->slot_offset + ring->slots * ring->slot_stride ? ring->bytes : end;
}

static void unregister(struct pin_region *region) {
    const uint8_t *base = region->ring.base;
    for (uint64_t done = 0; done < region->registered; done = pin_piece(&region->ring, done))
        device_unregister(base + done);
    region->registered = 0;
}

static int register_pieces(struct pin_region *region, char *why, size_t size) {
    const uint8_t *base = region->ring.base;
    while (region->registered < region->ring.bytes) {
        uint64_t end = pin_piece(&region->ring, region->registered);
        int r = device_register(base + region->registered, end - region->registered);
        if (r < 0) {
            snprintf(why, size, "%s", device_error());
            unregister(region);
            return r;
        }
        region->registered = end;
    }
    return 0;
}

static void pin_region(struct pinning *p, struct pin_region *region) {
    int previous, mode;
    uint64_t start = now_ns();
    char why[256] = "";
    device_relax_capture(&mode);
    int r = device_switch(p->device, &previous);
    if (r < 0)
        snprintf(why, sizeof why, "%s", device_error());
    else
        r = register_pieces(region, why, sizeof why);
    p->code = r;
    p->pinned = r == 0;
    p->ns += now_ns() - start;
    p->rings += r == 0;
    p->bytes += region->registered;
    p->note[0] = '\0';
    if (r < 0) {
        snprintf(p->note, sizeof p->note,
                 "the ring of %.1f MiB is not pinned, copies are slower: %s (look at ulimit -l, and "
                 "at the memory that is left)",
                 (double)region->ring.bytes / 0x1p20, why);
        notify(p, p->note);
    }
    device_leave(previous);
    device_restore_capture(mode);
}

static void on_mapped(void *context, const struct loaderd_mapped_ring *ring) {
    struct pinning *p = context;
    struct pin_region *region = calloc(1, sizeof *region);
    p->pinned = false;
    p->payload_bytes = ring->payload_bytes;
    p->slots = ring->slots;
    if (!region) {
        p->code = -ENOMEM;
        return;
    }
    region->ring = *ring;
    region->next = p->region;
    p->region = region;
    if (p->wanted)
        pin_region(p, region);
}

static void on_unmapped(void *context, const void *base) {
    struct pinning *p = context;
    struct pin_region **at = &p->region;
    while (*at && (*at)->ring.base != base)
        at = &(*at)->next;
    struct pin_region *region = *at;
    if (!region)
        return;
    *at = region->next;
    if (region->registered) {
        int previous, mode;
        p->bytes -= region->registered;
        device_relax_capture(&mode);
        if (device_switch(p->device, &previous) >= 0)
            unregister(region);
        device_leave(previous);
        device_restore_capture(mode);
    }
    free(region);
}

static void forget_regions(struct pinning *p) {
    while (p->region) { /* a forked child's copies, or none */
        struct pin_region *next = p->region->next;
        free(p->region);
        p->region = next;
    }
}

static void on_closed(void *context) {
    forget_regions(context);
}

static const struct loaderd_ring_hooks hooks = {on_mapped, on_unmapped, on_closed};

int pinning_start(struct pinning *p, struct loaderd *loader) {
    return loaderd_internal_set_ring_hooks(loader, &hooks, p);
}

void pinning_stop(struct pinning *p, struct loaderd *loader) {
    loaderd_internal_set_ring_hooks(loader, NULL, NULL);
    forget_regions(p);
}

bool pinning_is_set(const struct pinning *p, const struct loaderd *loader) {
    return loaderd_internal_ring_context(loader, &hooks) == p;
}

/* ---- loaderd_cuda_pin ---------------------------------------------------------------------------------------------------- */

/* The same hooks, but the pinning is the loader's own: it goes with it. */
static void on_closed_alone(void *context) {
    forget_regions(context);
    free(context);
}

static void be_quiet(void *arg, const char *line) {
    (void)arg, (void)line;
}

static const struct loaderd_ring_hooks hooks_alone = {on_mapped, on_unmapped, on_closed_alone};

/* Sets the hooks, with the calling thread on the right device. */
static int pin_alone(struct loaderd *loader, int device, char *error, size_t size) {
    struct pinning *p = calloc(1, sizeof *p);
    if (!p)
        return snprintf(error, size, "no memory left"), -ENOMEM;
    *p = (struct pinning){.device = device, .wanted = true, .notify = be_quiet};
    int r = loaderd_internal_set_ring_hooks(loader, &hooks_alone, p);
    if (r < 0)
        snprintf(error, size, "the loader is pinned already, or on a device");
    if (r == 0 && p->pinned) {
        p->notify = NULL; /* a later ring that cannot be pinned is worth a line */
        return 0;
    }
    if (r == 0) {
        r = p->code == -ENOMEM ? -ENOMEM : -EPERM;
        snprintf(error, size, "%s", p->note);
        loaderd_internal_set_ring_hooks(loader, NULL, NULL);
        forget_regions(p);
    }
    free(p);
    return r;
}

int loaderd_cuda_pin(struct loaderd *loader, int32_t device, char *error, size_t error_size) {
    char text[sizeof((struct pinning *)0)->note] = "";
    int previous = -1, r = -ECHILD;
    if (!loaderd_internal_is_mine(loader))
        snprintf(text, sizeof text, "this loader was opened by another process; open one after the fork");
    else if ((r = device_enter(device, &previous)) < 0)
        snprintf(text, sizeof text, "%s", device_error());
    else
        r = pin_alone(loader, r, text, sizeof text);
    device_leave(previous);
    if (r < 0 && error && error_size)
        snprintf(error, error_size, "%s", text);
    return r;
}

int loaderd_cuda_unpin(struct loaderd *loader) {
    if (!loaderd_internal_is_mine(loader))
        return -ECHILD;
    struct pinning *p = loaderd_internal_ring_context(loader, &hooks_alone);
    if (!p)
        return -ENOENT;
    loaderd_internal_set_ring_hooks(loader, NULL, NULL);
    forget_regions(p);
    free(p);
    return 0;
}
