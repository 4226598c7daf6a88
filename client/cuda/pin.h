/* SPDX-License-Identifier: MIT */
/*
 * Registration of a loader's rings with the device: each ring when it is mapped, until just before it is unmapped. One
 * `struct pinning` a loader, set as its ring hooks (client/ring_hooks.h); used on the thread that calls libloaderd, the
 * counters are for that thread.
 */
#ifndef CLIENT_CUDA_PIN_H
#define CLIENT_CUDA_PIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct loaderd;
struct loaderd_mapped_ring;

#define PIN_PIECE (UINT64_C(1) << 30) /* at most so much in one registration, but whole slots */

struct pin_region; /* one ring */

struct pinning {
    int device;
    bool wanted;               /* false: regions are only known, not registered */
    struct pin_region *region; /* newest first */
    uint64_t rings, ns, bytes; /* registered so far; bytes: now */
    uint64_t payload_bytes;    /* of a slot of the newest ring */
    uint32_t slots;            /* of it */
    bool pinned;               /* the newest ring is registered */
    int code;                  /* why not: negative errno */
    char note[400];            /* and the sentence; "" */
    void (*notify)(void *arg, const char *line);
    void *notify_arg;
};

/* Sets the hooks of a loader; registers what is mapped. 0, -EBUSY, -ENOMEM. A ring that cannot be registered is no error
 * here: see `pinned`. The struct must stay where it is. */
int pinning_start(struct pinning *pinning, struct loaderd *loader);
/* Unregisters everything and takes the hooks away. */
void pinning_stop(struct pinning *pinning, struct loaderd *loader);

bool pinning_is_set(const struct pinning *pinning, const struct loaderd *loader);

/* Where the next registration must end: a whole number of slots, `done` bytes are registered. Pure. */
uint64_t pin_piece(const struct loaderd_mapped_ring *ring, uint64_t done);

#endif
