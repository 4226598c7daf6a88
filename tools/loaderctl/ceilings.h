/* SPDX-License-Identifier: MIT */
/*
 * What the parts of a pipeline can do alone, on this machine, with this dataset, in this run: the figures beside which
 * those of `bench` stand. Copies: of each loop the middle one of three short rounds, then the best loop. 0: not measured,
 * because the pipeline has no such part or the machine does not let it. One thread, and as many as the engine has workers
 * for crops, copies and device reads.
 */
#ifndef CEILINGS_H
#define CEILINGS_H

#include "loaderctl.h"

struct ceilings {
    uint32_t workers;
    double decode_full;     /* samples/s of one thread: the whole picture, then the same resize, from memory */
    double decode_region;   /* the same with only what the crop needs */
    double decode_together; /* samples/s of all threads at once: the crops again */
    /* what a cache would buy, over those of the pictures that it can hold: */
    double cache_plain;                /* samples/s of one thread: their crops, ... */
    double cache_decode;               /* ... and the same from records */
    uint32_t cache_pictures, cache_of; /* how many, of how many that were looked at */
    double cache_bytes;                /* of the records, a byte of the pictures */
    double cache_set;                  /* bytes of records for the whole dataset, by these */
    double cache_encode_s;             /* to make one */
    double copy;                       /* bytes/s of all threads: the best bare copy loop */
    const char *copy_name;
    double device; /* bytes/s of all threads: random direct reads of whole samples at the engine's depth */
    uint64_t device_bytes;
    double claims, samples; /* a second, of a pipeline of 4-byte records without storage */
};

/* Nothing pops; waits until the workers have filled the ring. Each part takes at most `seconds`, about; decoding more. */
void ceilings_measure(const struct engine *engine, double seconds, struct ceilings *ret);
/* Random direct reads of the dataset's files by `threads` threads with `depth` in flight each: of whole samples, or where
 * piece is not 0 of aligned pieces of so many bytes (a power of two, 4096 or more), out of files that hold four. Bytes a
 * second, and how long a read was; 0, and *ret_bytes untouched, where that cannot be. */
double ceilings_device(const struct engine *engine, uint32_t threads, uint32_t depth, uint64_t piece, double seconds,
                       uint64_t *ret_bytes);
/* {"workers": ..., ...}, without a line feed; lines for people, beside them what bench reached (0: nothing). */
struct reached {
    double samples_per_s, bytes_in_per_s, bytes_out_per_s, claims_per_s;
    bool cold;
};
void ceilings_print_json(const struct ceilings *ceilings, const struct reached *reached);
void ceilings_print_text(const struct ceilings *ceilings, const struct reached *reached);

#endif
