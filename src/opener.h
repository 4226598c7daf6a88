/* SPDX-License-Identifier: MIT */
/*
 * The server's opener: one thread that opens datasets and makes rings, because both may take long. Jobs go in from the
 * server's loop and come back to it. It also keeps the opened pipelines: equal ones (same name, same dataset keys) are
 * opened once and shared. Nothing here knows connections.
 *
 * Threads: all functions are the loop's, except that the thread itself runs pipeline_new() and session_new().
 */
#ifndef OPENER_H
#define OPENER_H

#include "pipeline.h"

struct opener;

/* A session to be opened, or (preload) only its pipeline. The loop owns it before opener_submit() and after
 * opener_finished(). */
struct open_job {
    struct open_job *next;
    bool preload;
    uint64_t connection;         /* the server's number of it */
    struct pipeline_config base; /* which dataset */
    struct session_request
        request; /* config, job: owned by the struct open_job; wake_fd: owned until session_new() takes it */
    char *job;
    char group[64];    /* "": none; the name of the group that the session is for */
    uint32_t expected; /* members */
    /* the outcome */
    int code;
    struct diag diag;
    struct pipeline *pipeline; /* a reference */
    struct session *session;
};
struct open_job *open_job_new(void);
struct open_job *open_job_free(struct open_job *job); /* with whatever it still owns; not the session. NULL */

int opener_new(struct pool *pool, const struct daemon_config *daemon, struct opener **ret, struct diag *diag);
/* Stops after the job in hand. False where that takes longer than a second: then nothing is freed. */
bool opener_free(struct opener *opener);

void opener_submit(struct opener *opener, struct open_job *job);
struct open_job *opener_finished(struct opener *opener); /* the next one done, or NULL */
int opener_fd(const struct opener *opener);              /* readable while jobs are done; opener_finished() drains it */
uint32_t opener_pending(struct opener *opener);          /* jobs not yet returned */

/* Forgets pipelines that equal none of these (running sessions keep theirs). */
void opener_retain(struct opener *opener, const struct pipeline_config *pipelines, uint32_t count);

/* What is known of each pipeline, for status. Strings live until the call returns. */
struct opener_pipeline {
    const struct pipeline_config *config;
    const struct pipeline *pipeline; /* NULL: not open */
    const char *error;               /* of the last attempt, "" */
};
void opener_each(struct opener *opener, void (*f)(void *arg, const struct opener_pipeline *known), void *arg);

#endif
