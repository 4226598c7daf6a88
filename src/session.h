/* SPDX-License-Identifier: MIT */
/*
 * Private to pipeline.c (which makes sessions) and worker.c (which fills their rings): one trainer's ring and the recipe
 * by which a sample becomes a row of it. All but the marked words is constant from session_new().
 */
#ifndef SESSION_H
#define SESSION_H

#include <pthread.h>
#include <stdatomic.h>

#include "cache/cache.h"
#include "dataset/dataset.h"
#include "order.h"
#include "pipeline.h"
#include "pool.h"
#include "ring.h"
#include "supply.h"
#include "transform/transform.h"

/* How one field of a row is made. */
enum recipe_kind {
    RECIPE_PICTURE,        /* encoded picture: decode, transform */
    RECIPE_STORED_PICTURE, /* u8 picture inside a raw record: transform */
    RECIPE_COPY,           /* bytes as stored */
    RECIPE_CAST,           /* stored elements to another dtype */
    RECIPE_VALUE,          /* integer of the index to a dtype */
    RECIPE_SYNTHETIC,      /* dataset_synthesize() */
    RECIPE_RAGGED,         /* bytes of any length up to a cap */
    RECIPE_BOXES,          /* rectangles, moved as the leading picture is */
    RECIPE_COUNT           /* how many of the field before are there: written with that */
};

struct recipe {
    enum recipe_kind kind;
    uint32_t extent;        /* of the location */
    uint64_t offset, bytes; /* in the extent: RECIPE_STORED_PICTURE, COPY, CAST */
    uint32_t counted;       /* RAGGED, BOXES: the field of the ring that holds the number */
    uint32_t most;          /* RAGGED: bytes of a row; BOXES: rectangles of one */
    uint32_t from, to;      /* dtypes: CAST, VALUE */
    size_t count;           /* elements: CAST, and COPY with swap */
    bool swap;              /* stored big-endian: CAST, COPY */
    bool cleans;            /* COPY: values are cut or looked at: */
    struct transform_clean clean;
    struct transform_spec spec; /* PICTURE, STORED_PICTURE */
    bool leads;                 /* PICTURE: the one whose geometry the row tells and masks follow */
    bool follows;               /* PICTURE: a mask: its values, with the leader's geometry */
    bool planar;                /* STORED_PICTURE: channels first */
    uint32_t width, height;     /* STORED_PICTURE */
};

/* Microseconds and a row in one word, so that the larger one is the slower one. */
#define SLOWEST_ROW_BITS 20
#define SLOWEST(us, row) (((uint64_t)(us) << SLOWEST_ROW_BITS) | (row))

/* What became of a published batch: written by its publisher, in a circle of ring_lookback() of them. */
struct batch_note {
    _Atomic uint64_t sequence; /* seq + 1 of the batch that the other words are of, 0: they are being written */
    _Atomic uint64_t claimed_ns, published_ns;
    _Atomic uint64_t stage_ns[STAGES];
    _Atomic uint64_t slowest_us, slowest_sample;
    _Atomic uint32_t rows;
};

enum bad_policy { BAD_FAIL, BAD_SUBSTITUTE, BAD_BLANK };

struct session {
    struct pipeline *pipeline;
    struct pool *pool;
    const struct dataset *dataset; /* the pipeline's */
    struct ring *ring;
    struct order order;               /* its plan, where it has one, is the session's */
    struct supply *supply;            /* of an explicit order, else NULL */
    uint64_t steps;                   /* of an epoch */
    uint64_t first_epoch, first_step; /* of sequence 0; first_step < steps */
    struct recipe recipe[LOADERD_MAX_FIELDS];
    uint32_t nfields;
    uint32_t rows_per_unit, units; /* a unit is what one claim takes */
    uint32_t extents;              /* of a sample */
    bool splits;                   /* records hold their fields at places of their own */
    bool windows;                  /* samples overlap: neighbours are read together */
    bool direct;                   /* the only extent is the only stored field, as it is: read into the slot */
    uint32_t direct_field;
    enum config_stores stores; /* the key */
    uint64_t cache_room;       /* bytes of all rings up to which stores are ordinary, where the key leaves it open */
    bool in_place;             /* rows need no decoder, and at most one extent of a source file: see rows_in_place() */
    enum bad_policy on_bad;
    bool accept_damage;
    bool cut;                     /* what is longer than `most` is cut; else the sample is bad */
    double box_visible;           /* rectangles of which less is left are dropped */
    bool verify;                  /* records carry checksums, which are checked (verify-crc) */
    bool orient;                  /* pictures are turned as their Exif orientation says */
    struct cache *cache;          /* of JPEGs as coefficient records, the pipeline's; NULL: none */
    struct cache_user cache_user; /* guarded by the cache */
    uint32_t cache_extents;       /* bits: extents that are encoded pictures which may be cached */
    uint32_t cache_variant;       /* hash of what else decides which JPEG is good */
    bool cache_full;              /* cache-fill = full */
    uint32_t cache_unread; /* of these those that need not be read where the cache has them: no other field does */
    uint64_t bad_limit;    /* rows of an epoch that may be bad before the session fails */
    uint32_t ahead;        /* units that one worker may have in flight */
    char group[64];        /* "": none */
    int32_t member_pid[RING_MOST_MEMBERS];
    uint64_t member_start[RING_MOST_MEMBERS];
    uint64_t number, ring_limit, opened_ns, global_batch;
    uint64_t ring_bytes; /* counted among the pool's */
    char job[64];
    int32_t pid;
    uint32_t uid;
    uint8_t fingerprint[16];
    struct session *next; /* of the pool's list: the owner's thread only */
    bool closed;          /* the owner's thread only */
    uint64_t closed_version;

    /* written by workers */
    _Alignas(64) _Atomic uint64_t inflight; /* claimed units not finished */
    _Atomic uint64_t served_ns;             /* worker time charged: the fair share's measure */
    _Atomic uint64_t unit_ns;               /* running mean of one unit's time */
    _Alignas(64) _Atomic uint64_t samples;
    _Atomic uint64_t near_samples; /* of them, by workers of the ring's own NUMA node; 0 where there is one node */
    _Atomic uint64_t bytes_in, bytes_out, bad, damaged;
    _Atomic uint64_t cache_hits, cache_misses; /* JPEGs that came from the cache; that did not */
    _Atomic uint64_t stage_ns[STAGES];         /* workers' time for what is published */
    struct slot_note *note;                    /* one a slot */
    struct batch_note *history;                /* ring_lookback() of them */

    pthread_mutex_t fault_lock;      /* bad samples only: never taken on the path of good ones */
    uint64_t fault_epoch, fault_bad; /* rows bad so far in that epoch */
};

/* What happened in a slot while it is filled; cleared when it is published. */
struct slot_note {
    _Atomic uint64_t stage_ns[STAGES]; /* workers' time */
    _Atomic uint64_t slowest;          /* SLOWEST(): the row that took the longest */
    _Atomic uint32_t bad, damaged;
    uint32_t error_row; /* fault_lock: the lowest failing row, whose sentence the slot carries */
    int error;          /* fault_lock */
    char text[LOADERD_SLOT_MESSAGE];
};

/* worker.c: workers begin to fill its ring. -ENOMEM. */
int pool_add(struct pool *pool, struct session *session);
/* pipeline.c: frees what a session owns, once nobody uses it. */
void session_free(struct session *session);

/* (epoch, step) of a sequence. Pure. */
static inline void session_step(const struct session *session, uint64_t sequence, uint64_t *ret_epoch,
                                uint64_t *ret_step) {
    uint64_t absolute = session->first_step + sequence;
    *ret_epoch = session->first_epoch + absolute / session->steps;
    *ret_step = absolute % session->steps;
}

/* Which rows a claimed batch has: those of its step; of an explicit order, those whose ids came. Pure. */
static inline void session_batch(const struct session *session, uint64_t sequence, uint64_t step,
                                 struct order_batch *ret) {
    order_batch(&session->order, step, ret);
    if (session->supply)
        ret->rows = ret->valid = supply_rows(session->supply, sequence, NULL, 0);
}

#endif
