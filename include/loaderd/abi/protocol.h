/* SPDX-License-Identifier: MIT */
/*
 * Control-socket messages between a client and loaderd: SOCK_SEQPACKET on a unix socket, one message a packet, native
 * byte order (both ends are on one machine). Every message but a wake-up begins with struct loaderd_message.
 *
 *   client                         daemon
 *   HELLO  ----------------------> HELLO_OK | ERROR (and the connection ends)
 *   OPEN   ----------------------> OPENED with two descriptors (data memfd, control memfd) | ERROR
 *   'w'    <---------------------> 'w'            one byte, any time after OPENED: see abi/ring.h
 *   SAMPLE_PATH -----------------> TEXT | ERROR
 *   STATUS ----------------------> TEXT with one descriptor: a memfd of `bytes` bytes of JSON
 *   DRAIN  ----------------------> TEXT | ERROR   no further session; each ends (see below), then the daemon
 *   DETACH ----------------------> TEXT | ERROR   one session ends
 *   STALLS ----------------------> TEXT with one descriptor: a memfd of `bytes` bytes of JSON lines
 *   TRACE -----------------------> TEXT with one descriptor, after the time asked for: a memfd of JSON
 *   (end of file)                  the session is over
 *
 * An ERROR that nobody asked for comes before the end of a connection and says why: -ESHUTDOWN where the daemon drains
 * (look for the next one, as after any end), -ECANCELED where somebody detached the session (do not come back).
 * DRAIN is for root and the daemon's own user, DETACH for these and the user whose session it is.
 *
 * A connection serves at most one session. Unknown types and wrong lengths are answered with ERROR -EPROTO and the
 * connection ends. Strings are NUL-terminated; no message is longer than LOADERD_MESSAGE_MAX.
 */
#ifndef LOADERD_ABI_PROTOCOL_H
#define LOADERD_ABI_PROTOCOL_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define LOADERD_PROTOCOL_MAGIC UINT64_C(0x31305944414f4c) /* "LOADY01" */
#define LOADERD_PROTOCOL_VERSION 1u                       /* the newest that is spoken */
#define LOADERD_PROTOCOL_VERSION_MIN 1u                   /* the oldest */
#define LOADERD_MESSAGE_MAX 65536u

enum loaderd_message_type {
    LOADERD_HELLO = 1,
    LOADERD_HELLO_OK = 2,
    LOADERD_ERROR = 3,
    LOADERD_OPEN = 4,
    LOADERD_OPENED = 5,
    LOADERD_SAMPLE_PATH = 6,
    LOADERD_TEXT = 7,
    LOADERD_STATUS = 8,
    LOADERD_DRAIN = 9,
    LOADERD_DETACH = 10,
    LOADERD_STALLS = 11,
    LOADERD_TRACE = 12
};

struct loaderd_message {
    uint32_t type;   /* enum loaderd_message_type */
    uint32_t length; /* of the whole message, this header included */
};

/* Each side says the versions it speaks; the highest common one is used. */
struct loaderd_hello {
    struct loaderd_message message;
    uint64_t magic;
    uint16_t protocol_min, protocol_max;
    uint16_t ring_min, ring_max;
    char version[24]; /* of the program, for messages */
};
static_assert(sizeof(struct loaderd_hello) == 48, "hello");

struct loaderd_hello_ok {
    struct loaderd_message message;
    uint16_t protocol, ring; /* chosen */
    int32_t daemon_pid;
    char version[24];
    uint32_t is_private; /* 1: a private daemon, names are dataset paths */
    uint32_t reserved;
};
static_assert(sizeof(struct loaderd_hello_ok) == 48, "hello_ok");

struct loaderd_error_message {
    struct loaderd_message message;
    int32_t code; /* negative errno */
    uint32_t reserved;
    char text[1]; /* NUL-terminated, to the end of the message */
};

#define LOADERD_OPEN_HAS_STATE 0x1u /* seed, global_batch and fingerprint are a state to continue */

struct loaderd_open_message {
    struct loaderd_message message;
    uint32_t flags;
    uint32_t rank, world;
    uint32_t held;        /* batches that the client will hold at once, >= 1 */
    uint64_t epoch, step; /* the first batch wanted */
    uint64_t epochs;      /* counted from `epoch`; 0: without end */
    uint64_t seed, global_batch;
    uint8_t fingerprint[16];
    uint64_t reserved[2];
    /* name NUL job NUL then key=value NUL ...; the last byte of the message is NUL. job is for status */
    char strings[1];
};
static_assert(offsetof(struct loaderd_open_message, epoch) == 24, "open");
static_assert(offsetof(struct loaderd_open_message, strings) == 96, "open");

/* Descriptors: [0] data memfd, [1] control memfd. */
struct loaderd_opened {
    struct loaderd_message message;
    uint64_t session; /* number of the session in this daemon */
    uint64_t data_bytes, control_bytes;
    uint8_t fingerprint[16];
    char engine[16]; /* read engine */
    uint64_t global_batch;
    uint64_t start; /* sequence of the ring at which this trainer begins: not 0 for some members of a group */
    uint64_t reserved[2];
};
static_assert(sizeof(struct loaderd_opened) == 96, "opened");

struct loaderd_sample_path {
    struct loaderd_message message;
    uint64_t sample;
};

struct loaderd_drain {
    struct loaderd_message message;
    uint32_t timeout_ms; /* sessions that have not ended by then are closed as they are */
    uint32_t reserved;
};
static_assert(sizeof(struct loaderd_drain) == 16, "drain");

struct loaderd_detach {
    struct loaderd_message message;
    uint64_t session;
    char reason[128]; /* NUL-terminated: its client is told so */
};
static_assert(sizeof(struct loaderd_detach) == 144, "detach");

/* Steps for which trainers waited, of the caller's sessions; root and the daemon's user see all. */
struct loaderd_stalls {
    struct loaderd_message message;
    uint64_t since_ns; /* CLOCK_REALTIME */
    uint64_t over_ns;  /* waited at least so long */
};
static_assert(sizeof(struct loaderd_stalls) == 24, "stalls");

/* What all workers do from now on, for so long. -EBUSY where another trace is under way. */
struct loaderd_trace {
    struct loaderd_message message;
    uint32_t ms; /* 1 to 60000 */
    uint32_t reserved;
};
static_assert(sizeof(struct loaderd_trace) == 16, "trace");

struct loaderd_text {
    struct loaderd_message message;
    uint64_t bytes; /* with a descriptor: size of the memfd that comes along; otherwise strlen(text) */
    char text[8];   /* NUL-terminated, to the end of the message; not with a descriptor */
};

#endif
