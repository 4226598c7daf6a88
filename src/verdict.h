/* SPDX-License-Identifier: MIT */
/*
 * The verdict: what binds a session, by how much, and what would help, from the figures of a window of time. One pure
 * function; nothing here knows where the figures come from. Shares are of the window, 0 to 1, and are clamped: some come
 * from a trainer, who is not believed.
 *
 * Rules, the first that holds. "Starves": wait is known and at least VERDICT_STARVING; where it is not known (a trainer
 * that takes batches as fast as they come), the workers are idle for at most VERDICT_IDLE of their time.
 *
 *   1  no sample was made, and it does not starve                    TRAINER: it asks for nothing
 *   2  no sample was made, and it starves                            STORAGE: nothing answers
 *   3  it starves, has a device, and the data was there for more     COPY: the bus
 *      than half of that time (data < wait / 2)
 *   4  it starves                                                    the largest of the workers' time for it:
 *        read                                                          STORAGE
 *        decode + transform                                            DECODE
 *        copy + other                                                  MEMORY   (of equals the first)
 *   5  another rank of its job starves here                          RANK: all ranks go at the pace of the slowest
 *   6  else                                                          TRAINER
 *
 * By how much (`by`): the share that the trainer waits (2, 3, 4); that the other rank waits (5); that the ring was full,
 * or where that is not known the workers were idle (1, 6).
 */
#ifndef VERDICT_H
#define VERDICT_H

#include <stddef.h>
#include <stdint.h>

#include "pipeline.h"

#define VERDICT_STARVING 0.02 /* share of its time that a trainer waits before it is worth a word */
#define VERDICT_IDLE 0.3      /* share of workers' time without work that tells that they are not the limit */
#define VERDICT_SENTENCE 512

enum verdict_bound {
    VERDICT_NONE, /* too early to tell: seconds is 0 */
    VERDICT_STORAGE,
    VERDICT_DECODE,
    VERDICT_MEMORY,
    VERDICT_COPY,
    VERDICT_TRAINER,
    VERDICT_RANK,
    VERDICTS
};
/* "", "storage", "decode", "memory", "copy", "trainer", "rank" */
const char *verdict_name(enum verdict_bound bound);

struct verdict_input {
    double seconds; /* the window; 0: nothing is known yet */
    double samples; /* made in it */
    uint32_t workers;
    double busy[STAGES]; /* seconds of all workers for this session, by stage; idle is not looked at */
    double idle;         /* share of all workers' time in which nothing could be claimed */
    double others;       /* share of all workers' time that other sessions had */
    double wait;         /* the trainer stood still for data or for its copy; negative: not known */
    double data;         /* with a device: in which no batch was ready for its copies */
    bool device;         /* batches go to a device, over libloaderd-cuda */
    double full;         /* its ring was full: workers had nothing to do for it; negative: not known */
    uint32_t world;      /* ranks of its job */
    int64_t slow_rank;   /* the rank that waits the most of those of its job that are seen here; -1: none */
    double slow_wait;    /* that one's wait */
};

struct verdict {
    enum verdict_bound bound;
    double by; /* 0 to 1 */
    char sentence[VERDICT_SENTENCE];
};

/* Any thread. */
void verdict_judge(const struct verdict_input *input, struct verdict *ret);

#endif
