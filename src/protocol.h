/* SPDX-License-Identifier: MIT */
/*
 * What a client sent, checked: pure functions over (bytes, length) of one packet. A parsed message points into those
 * bytes. Nothing here allocates, blocks or keeps state; any thread.
 */
#ifndef PROTOCOL_H
#define PROTOCOL_H

#include <stddef.h>
#include <stdint.h>

#include <loaderd/abi/protocol.h>

#include "base/diag.h"

#define PROTOCOL_WAKE 0xffffffffu /* the type that protocol_type() gives a one-byte message */
#define PROTOCOL_MAX_KEYS 256u    /* more keys than there are names to set: nobody needs them */

/* Type of a packet: PROTOCOL_WAKE, an enum loaderd_message_type that a client may send, or -EPROTO with a sentence
 * (too short, the length word is not the packet's, unknown type). */
int protocol_type(const void *packet, size_t length, uint32_t *ret_type, struct diag *diag);

/* Both sides' versions met: what was chosen, or -EPROTO naming both. */
struct protocol_versions {
    uint16_t protocol, ring;
    char client[24]; /* the client's version, printable */
};
int protocol_parse_hello(const void *packet, size_t length, struct protocol_versions *ret, struct diag *diag);

/* The highest version that both ranges hold; -1: none. Pure. */
static inline int protocol_common(uint16_t least, uint16_t most, uint16_t own_least, uint16_t own_most) {
    uint16_t low = least > own_least ? least : own_least, high = most < own_most ? most : own_most;
    return low <= high ? high : -1;
}

/* OPEN: the fixed part, and its strings. */
struct protocol_open {
    struct loaderd_open_message fixed; /* copied out: the packet may lie anywhere */
    const char *name, *job;
    const char *keys; /* the first "key=value", or `end` */
    const char *end;  /* one past the last NUL */
};
int protocol_parse_open(const void *packet, size_t length, struct protocol_open *ret, struct diag *diag);

/* The key after `key`, or NULL after the last. Start with protocol_first_key(). Every one has a '='. */
const char *protocol_first_key(const struct protocol_open *open);
const char *protocol_next_key(const struct protocol_open *open, const char *key);

int protocol_parse_sample_path(const void *packet, size_t length, uint64_t *ret_sample, struct diag *diag);

int protocol_parse_drain(const void *packet, size_t length, uint32_t *ret_timeout_ms, struct diag *diag);
/* The reason is cut where it holds no NUL. */
int protocol_parse_detach(const void *packet, size_t length, struct loaderd_detach *ret, struct diag *diag);

int protocol_parse_stalls(const void *packet, size_t length, struct loaderd_stalls *ret, struct diag *diag);

int protocol_parse_trace(const void *packet, size_t length, uint32_t *ret_ms, struct diag *diag);

/* Writes an ERROR message of at most `size` bytes (the text is cut to fit); returns its length. size >= 24. */
size_t protocol_make_error(void *packet, size_t size, int code, const char *text);

#endif
