/* SPDX-License-Identifier: MIT */
/*
 * Between libloaderd and libloaderd-cuda, of the same version: who else must know when a ring is mapped and before it is
 * unmapped. Exported under a private version node; nothing here is an interface for others.
 *
 * The hooks run inside the calls of libloaderd, on their thread, in the process that opened the loader only; `closed` runs
 * in a forked child, too. They must not call libloaderd.
 */
#ifndef CLIENT_RING_HOOKS_H
#define CLIENT_RING_HOOKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct loaderd;

/* One ring's read-only mapping. */
struct loaderd_mapped_ring {
    const void *base;
    size_t bytes;
    uint64_t slot_offset, slot_stride, payload_bytes;
    uint32_t slots;
};

struct loaderd_ring_hooks {
    void (*mapped)(void *context, const struct loaderd_mapped_ring *ring);
    void (*unmapped)(void *context, const void *base); /* it is still mapped */
    void (*closed)(void *context);                     /* the loader ends; after the last `unmapped` */
};

/* Sets the hooks and calls `mapped` for each ring that is there; 0, -EBUSY where others are set. NULL: calls `unmapped` for
 * each ring and takes them away. */
int loaderd_internal_set_ring_hooks(struct loaderd *loader, const struct loaderd_ring_hooks *hooks, void *context);
/* The context, where these hooks are set; else NULL. */
void *loaderd_internal_ring_context(const struct loaderd *loader, const struct loaderd_ring_hooks *hooks);
bool loaderd_internal_is_mine(const struct loaderd *loader); /* false in a forked child */

/* What the daemon shall tell of a device: how long no batch was ready for the one leased last; how long calls of
 * libloaderd-cuda, and the caller's stream, have waited so far; the device's UUID, all zero where it is not known. The thread
 * that leases. Advice only. */
struct loaderd_device_words {
    uint64_t waited_ns, call_wait_ns, stream_wait_ns;
    uint8_t uuid[16];
};
void loaderd_internal_tell_device(struct loaderd *loader, const struct loaderd_device_words *words);

#endif
