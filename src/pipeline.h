/* SPDX-License-Identifier: MIT */
/*
 * A pipeline: one configured dataset with its keys. A session: one trainer's ring over it, with its own keys (those the
 * pipeline lets go), order and row recipe. Workers of the pool (worker.h) fill the rings of all sessions.
 *
 * Lives: pipeline is reference counted (sessions hold one). A session is made, added to the pool, closed by its owner
 * and freed by pool_reap() once no worker touches it. Opening and creating may take long (scan, memory): never on a
 * thread that must answer.
 */
#ifndef PIPELINE_H
#define PIPELINE_H

#include "base/diag.h"
#include "base/types.h"
#include "config.h"

struct dataset;
struct pipeline;
struct session;
struct pool;

/* Opens the dataset. The pipeline keeps copies of both configurations. */
int pipeline_new(const struct pipeline_config *config, const struct daemon_config *daemon, struct pipeline **ret,
                 struct diag *diag);
struct pipeline *pipeline_ref(struct pipeline *pipeline);
struct pipeline *pipeline_unref(struct pipeline *pipeline); /* NULL */
const struct dataset *pipeline_dataset(const struct pipeline *pipeline);
const struct pipeline_config *pipeline_config(const struct pipeline *pipeline);

/* What a client asks for at open. */
struct session_request {
    struct pipeline_config config; /* the pipeline's with the client's keys applied; borrowed */
    uint32_t rank, world, held;
    uint64_t epoch, step, epochs;
    bool has_state; /* refuse unless seed, global batch and fingerprint agree */
    uint64_t state_seed, state_global_batch;
    uint8_t state_fingerprint[16];
    const char *job; /* for status; copied */
    int32_t pid;
    uint32_t uid;
    uint64_t max_ring_bytes; /* 0: as when the pipeline was opened */
    const char *group;       /* NULL, or the name of a group: then nothing is begun before session_start(); copied */
    int wake_fd;             /* a connected SOCK_SEQPACKET descriptor: owned by the session on success (dup it) */
};

int session_new(struct pool *pool, struct pipeline *pipeline, const struct session_request *request,
                struct session **ret, struct diag *diag);
/* No further claims; the owner forgets it. Freed by pool_reap(). NULL allowed. */
void session_close(struct session *session);

/* The daemon drains: no batch is begun any more. True where all that were begun are published. */
void session_finish(struct session *session);
bool session_finished(const struct session *session);

/*
 * Groups: several trainers, each a member of one session's ring; member 0 is whom session_new() was asked for. All on
 * the thread that closes sessions. A late member begins where it asks to if the ring still holds that batch, else
 * -ESTALE without a sentence. wake_fd becomes the session's on success.
 */
int session_join(struct session *session, const struct session_request *request, uint32_t *ret_member,
                 struct diag *diag);
void session_start(struct session *session);
void session_leave(struct session *session, uint32_t member);
/* Bits of the members for whom the others wait, with the batch for which they do. */
uint32_t session_laggards(const struct session *session, uint64_t *ret_sequence);

/* What OPENED tells a member (0 of a session of one). */
struct session_info {
    uint64_t number;
    int data_fd, control_fd; /* borrowed */
    uint64_t data_bytes, control_bytes, global_batch, start;
    uint8_t fingerprint[16];
};
void session_info(const struct session *session, uint32_t member, struct session_info *ret);

/* Where a worker's time went. */
enum worker_stage {
    STAGE_IDLE, /* nothing to claim: rings full, or no session */
    STAGE_READ, /* waiting for storage, submitting and reaping */
    STAGE_DECODE,
    STAGE_TRANSFORM, /* resample, flip, cast, write the row */
    STAGE_COPY,      /* raw records into the slot */
    STAGE_OTHER,     /* order, locate, claims, publish */
    STAGE_FILL,      /* made records for a cache */
    STAGES
};

/* Statistics, a consistent-enough snapshot; any thread. */
struct session_statistics {
    uint64_t number;
    char pipeline[64], job[64];
    int32_t pid;
    uint32_t uid, rank, world, batch, slots;
    uint64_t published, unreleased;        /* batches */
    uint64_t samples, bytes_in, bytes_out; /* done so far */
    uint64_t near_samples; /* of them, by workers of the node that holds the ring; 0 where there is one node */
    uint64_t bad, damaged; /* rows */
    uint64_t cache_hits, cache_misses;                        /* JPEGs that came from the cache; that did not */
    uint64_t trainer_waits, trainer_wait_ns, trainer_rescues; /* as the trainer says */
    bool waiting;                                             /* right now, as one of its trainers says */
    uint64_t stage_ns[STAGES];                                /* workers' time for what is published; idle: 0 */
    bool has_device;                                          /* the following are of libloaderd-cuda */
    uint64_t device_wait_ns, stream_wait_ns;                  /* its calls waited; the trainer's stream, for copies */
    char gpu[48];                                             /* "GPU-..." as NVML writes it, "": not known */
    uint64_t ring_bytes;
    bool locked;            /* its memory is */
    int node;               /* that holds the ring, -1: several or unknown */
    const char *huge_pages; /* the kernel's word for shared memory; lives as long as the session */
    uint64_t opened_ns;     /* CLOCK_MONOTONIC */
    char group[64];         /* "": none */
    uint32_t members;
    struct session_member {
        int32_t pid;
        uint64_t popped, waits, wait_ns, rescues; /* as the trainer says */
    } member[32];
};
void session_statistics(const struct session *session, struct session_statistics *ret);

/* What became of one batch. */
struct session_batch {
    uint64_t sequence, epoch, step;
    uint64_t claimed_ns, published_ns;   /* CLOCK_MONOTONIC: first row claimed, published */
    uint64_t stage_ns[STAGES];           /* workers' time; idle: 0 */
    uint64_t slowest_us, slowest_sample; /* the row that held a worker the longest, 0 us: not known */
    uint32_t rows;
    uint64_t waited_ns; /* as its trainer says: not to be believed */
    int32_t waiter;     /* whose word that is: a pid; of a group the member that waited the longest */
};
/* Of the last 1024 batches or so: 0; -EAGAIN: not published yet; -ESTALE: newer ones came over it. The thread that opens
 * and closes sessions. Batches that every trainer of the session says to have taken, at most those published. */
int session_look_back(const struct session *session, uint64_t sequence, struct session_batch *ret);
uint64_t session_taken(const struct session *session);
uint64_t session_lookback(const struct session *session); /* how many of the last batches are kept */
const struct dataset *session_dataset(const struct session *session);

#endif
