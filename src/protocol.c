/* SPDX-License-Identifier: MIT */
/* Parsers of client messages: see protocol.h. Pure; every length is checked before a byte behind it is looked at. */
#include "protocol.h"

#include <errno.h>
#include <string.h>

#include "base/util.h"
#include <loaderd/abi/ring.h>

#ifndef LOADERD_VERSION
#define LOADERD_VERSION "unknown"
#endif

/* The smallest length of each message that a client may send; 0: it may not. */
static size_t shortest(uint32_t type) {
    switch (type) {
    case LOADERD_HELLO:
        return sizeof(struct loaderd_hello);
    case LOADERD_OPEN:
        return offsetof(struct loaderd_open_message, strings) + 2; /* two empty strings */
    case LOADERD_SAMPLE_PATH:
        return sizeof(struct loaderd_sample_path);
    case LOADERD_STATUS:
        return sizeof(struct loaderd_message);
    case LOADERD_DRAIN:
        return sizeof(struct loaderd_drain);
    case LOADERD_DETACH:
        return sizeof(struct loaderd_detach);
    case LOADERD_STALLS:
        return sizeof(struct loaderd_stalls);
    case LOADERD_TRACE:
        return sizeof(struct loaderd_trace);
    default:
        return 0;
    }
}

int protocol_type(const void *packet, size_t length, uint32_t *ret_type, struct diag *diag) {
    if (length == 1) {
        *ret_type = PROTOCOL_WAKE;
        return 0;
    }
    struct loaderd_message message;
    if (length < sizeof message)
        return diag_set(diag, -EPROTO, "message of %zu bytes: the shortest has %zu", length, sizeof message);
    memcpy(&message, packet, sizeof message);
    if (message.length != length)
        return diag_set(diag, -EPROTO, "message of %zu bytes says that it has %u", length, message.length);
    if (length > LOADERD_MESSAGE_MAX)
        return diag_set(diag, -EPROTO, "message of %zu bytes: at most %u are allowed", length, LOADERD_MESSAGE_MAX);
    size_t want = shortest(message.type);
    if (want == 0)
        return diag_set(diag, -EPROTO, "unknown message type %u", message.type);
    if (length < want || (length > want && message.type != LOADERD_OPEN))
        return diag_set(diag, -EPROTO, "message type %u has %zu bytes: it must have %zu", message.type, length, want);
    *ret_type = message.type;
    return 0;
}

/* Copies what is printable: it goes into log lines. */
static void copy_version(char to[24], const char from[24]) {
    size_t i = 0;
    for (; i < 23 && from[i] > ' ' && from[i] < 127; i++)
        to[i] = from[i];
    to[i] = '\0';
}

int protocol_parse_hello(const void *packet, size_t length, struct protocol_versions *ret, struct diag *diag) {
    struct loaderd_hello hello;
    if (length != sizeof hello)
        return diag_set(diag, -EPROTO, "HELLO of %zu bytes: it must have %zu", length, sizeof hello);
    memcpy(&hello, packet, sizeof hello);
    if (hello.magic != LOADERD_PROTOCOL_MAGIC)
        return diag_set(diag, -EPROTO, "HELLO without loaderd's magic: this is no loaderd client");
    struct protocol_versions v = {0};
    copy_version(v.client, hello.version);
    int protocol =
        protocol_common(hello.protocol_min, hello.protocol_max, LOADERD_PROTOCOL_VERSION_MIN, LOADERD_PROTOCOL_VERSION);
    int ring = protocol_common(hello.ring_min, hello.ring_max, LOADERD_RING_VERSION_MIN, LOADERD_RING_VERSION);
    if (protocol < 0)
        return diag_set(
            diag, -EPROTO,
            "client library %s speaks protocol %u to %u, daemon %s speaks %u to %u: install the same version of both",
            v.client, hello.protocol_min, hello.protocol_max, LOADERD_VERSION, LOADERD_PROTOCOL_VERSION_MIN,
            LOADERD_PROTOCOL_VERSION);
    if (ring < 0)
        return diag_set(
            diag, -EPROTO,
            "client library %s reads rings %u to %u, daemon %s makes %u to %u: install the same version of both",
            v.client, hello.ring_min, hello.ring_max, LOADERD_VERSION, LOADERD_RING_VERSION_MIN, LOADERD_RING_VERSION);
    v.protocol = (uint16_t)protocol;
    v.ring = (uint16_t)ring;
    *ret = v;
    return 0;
}

static int check_keys(const struct protocol_open *open, struct diag *diag) {
    uint32_t keys = 0;
    for (const char *key = protocol_first_key(open); key; key = protocol_next_key(open, key)) {
        if (++keys > PROTOCOL_MAX_KEYS)
            return diag_set(diag, -EPROTO, "OPEN with more than %u keys", PROTOCOL_MAX_KEYS);
        const char *equals = strchr(key, '=');
        if (!equals || equals == key)
            return diag_set(diag, -EPROTO, "OPEN with the key '%.60s': it must be key=value", key);
    }
    return 0;
}

int protocol_parse_open(const void *packet, size_t length, struct protocol_open *ret, struct diag *diag) {
    const size_t head = offsetof(struct loaderd_open_message, strings);
    const char *bytes = packet;
    if (length < head + 2 || length > LOADERD_MESSAGE_MAX)
        return diag_set(diag, -EPROTO, "OPEN of %zu bytes: it must have %zu to %u", length, head + 2,
                        LOADERD_MESSAGE_MAX);
    if (bytes[length - 1] != '\0')
        return diag_set(diag, -EPROTO, "OPEN whose last byte is not NUL");
    struct protocol_open open = {.name = bytes + head, .end = bytes + length};
    memcpy(&open.fixed, packet, head);
    open.job = open.name + strlen(open.name) + 1;
    if (open.job >= open.end)
        return diag_set(diag, -EPROTO, "OPEN without a job string");
    open.keys = open.job + strlen(open.job) + 1;
    int r = check_keys(&open, diag);
    if (r < 0)
        return r;
    const struct loaderd_open_message *f = &open.fixed;
    if (f->flags & ~LOADERD_OPEN_HAS_STATE)
        return diag_set(diag, -EPROTO, "OPEN with unknown flags 0x%x", f->flags);
    if (f->world == 0 || f->rank >= f->world)
        return diag_set(diag, -EINVAL, "rank %u of %u: ranks count from 0 and lie below the world size", f->rank,
                        f->world);
    *ret = open;
    return 0;
}

const char *protocol_first_key(const struct protocol_open *open) {
    return open->keys < open->end ? open->keys : NULL;
}

const char *protocol_next_key(const struct protocol_open *open, const char *key) {
    key += strlen(key) + 1;
    return key < open->end ? key : NULL;
}

int protocol_parse_drain(const void *packet, size_t length, uint32_t *ret_timeout_ms, struct diag *diag) {
    struct loaderd_drain message;
    if (length != sizeof message)
        return diag_set(diag, -EPROTO, "DRAIN of %zu bytes: it must have %zu", length, sizeof message);
    memcpy(&message, packet, sizeof message);
    *ret_timeout_ms = message.timeout_ms;
    return 0;
}

int protocol_parse_detach(const void *packet, size_t length, struct loaderd_detach *ret, struct diag *diag) {
    if (length != sizeof *ret)
        return diag_set(diag, -EPROTO, "DETACH of %zu bytes: it must have %zu", length, sizeof *ret);
    memcpy(ret, packet, sizeof *ret);
    ret->reason[sizeof ret->reason - 1] = '\0';
    return 0;
}

int protocol_parse_stalls(const void *packet, size_t length, struct loaderd_stalls *ret, struct diag *diag) {
    if (length != sizeof *ret)
        return diag_set(diag, -EPROTO, "STALLS of %zu bytes: it must have %zu", length, sizeof *ret);
    memcpy(ret, packet, sizeof *ret);
    return 0;
}

int protocol_parse_trace(const void *packet, size_t length, uint32_t *ret_ms, struct diag *diag) {
    struct loaderd_trace message;
    if (length != sizeof message)
        return diag_set(diag, -EPROTO, "TRACE of %zu bytes: it must have %zu", length, sizeof message);
    memcpy(&message, packet, sizeof message);
    *ret_ms = message.ms;
    return 0;
}

int protocol_parse_sample_path(const void *packet, size_t length, uint64_t *ret_sample, struct diag *diag) {
    struct loaderd_sample_path message;
    if (length != sizeof message)
        return diag_set(diag, -EPROTO, "SAMPLE_PATH of %zu bytes: it must have %zu", length, sizeof message);
    memcpy(&message, packet, sizeof message);
    *ret_sample = message.sample;
    return 0;
}

size_t protocol_make_error(void *packet, size_t size, int code, const char *text) {
    const size_t head = offsetof(struct loaderd_error_message, text);
    size_t n = MIN(strlen(text), size - head - 1);
    struct loaderd_error_message message = {
        .message = {.type = LOADERD_ERROR, .length = (uint32_t)(head + n + 1)},
        .code = code,
    };
    memcpy(packet, &message, head);
    memcpy((char *)packet + head, text, n);
    ((char *)packet)[head + n] = '\0';
    return head + n + 1;
}
