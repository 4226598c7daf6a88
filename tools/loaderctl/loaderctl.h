/* SPDX-License-Identifier: MIT */
/*
 * What the sub-commands of loaderctl share: the parsed command line, the in-process engine (pool, pipeline, session and
 * consumer of a ring, without a socket server), and small writers of JSON and PNG.
 *
 * Output for programs goes to stdout, progress and remarks to stderr. A command returns the exit status: 0, 1 for a
 * failure (its sentence is on stderr), 2 for a command line that cannot be meant. One thread, but for the workers that
 * the engine starts and the checkers of `inspect`.
 */
#ifndef LOADERCTL_H
#define LOADERCTL_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "../../client/consumer.h"
#include "base/diag.h"
#include "config.h"
#include "pipeline.h"
#include "pool.h"

#define EXIT_FAILED 1
#define EXIT_USAGE 2
#ifndef LOADERD_VERSION
#define LOADERD_VERSION "unknown"
#endif
#ifndef LOADERD_SYSCONFDIR
#define LOADERD_SYSCONFDIR "/etc"
#endif
#define DEFAULT_CONFIG LOADERD_SYSCONFDIR "/loaderd.conf" /* the daemon's, too */
#define STEPS_TO_END UINT64_MAX

/* One configuration key given as an option. Both borrowed from argv (the key from a copy that lives as long). */
struct key_value {
    const char *key, *value;
};

/* Options of `pack`. */
struct pack_options {
    const char *destination;
    const char *field;    /* --field, NULL: all */
    uint32_t resize;      /* --resize, 0: as they are */
    uint32_t quality;     /* --quality */
    uint32_t shards;      /* --shards, 0: one file */
    uint32_t part, parts; /* --part, 0 of 0: all */
    bool metadata;        /* --metadata keep */
    bool coefficients;    /* --jpeg coefficients */
    bool keep_headers, merge;
    bool skip_bad, keep_bad; /* --on-error */
};

/* Options of `tune`. */
struct tune_options {
    const char *cpu;            /* --cpu, NULL: all that are allowed */
    const char *write, *report; /* --write, --report, NULL: not given */
    double target;              /* --target, 0: not given */
};

/* The command line, parsed. Strings are borrowed from argv. */
struct options {
    const char *command;    /* "bench" */
    const char *target;     /* DATASET-OR-PIPELINE, NULL where the command takes none */
    const char *config;     /* --config, NULL: not given */
    const char *output;     /* --output, NULL: not given */
    struct key_value *keys; /* in the order given */
    uint32_t nkeys;
    uint64_t epoch;
    uint64_t steps_first, steps_end; /* half open; steps_end may be STEPS_TO_END */
    bool has_steps;
    uint32_t rank, world;
    double seconds;
    double step_ms;     /* --step-ms, 0: not given */
    int32_t device;     /* --device, -1: not given */
    uint32_t buffers;   /* --buffers, 0: not given */
    const char *finish; /* --finish, NULL: not given */
    const char *reason; /* --reason, NULL: not given */
    const char *since;  /* --since, NULL: not given */
    double over_ms;     /* --over, negative: not given */
    bool json, ids, all, list_keys, ceilings;
    bool quiet;         /* engines that it opens say nothing but errors */
    bool once;          /* --once */
    bool compare;       /* --compare: target and second are results of bench */
    const char *second; /* the word behind target, NULL: none */
    struct pack_options pack;
    struct tune_options tune;
};

/* The commands, one file each. */
int command_bench(const struct options *options);
int bench_device(const struct options *options); /* bench --device: device.c */
double device_bandwidth(int device); /* bytes a second over the bus to a CUDA device, 0: there is none. device.c */
int command_tune(const struct options *options);
int command_doctor(const struct options *options);
int command_digest(const struct options *options);
int command_show(const struct options *options);
int command_inspect(const struct options *options);
int command_status(const struct options *options);
int command_pack(const struct options *options);
int command_verify(const struct options *options);
int command_unpack(const struct options *options);
int command_version(const struct options *options);
int command_drain(const struct options *options);
int command_detach(const struct options *options);
int command_stalls(const struct options *options);
int command_top(const struct options *options);
int command_trace(const struct options *options);

/* main.c: prints "loaderctl: SENTENCE" on stderr; returns EXIT_FAILED. */
int complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
int complain_diag(const struct diag *diag);
/* "# text" on stderr: a remark that is no failure. */
void remark(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Flushes stdout; EXIT_FAILED with a sentence where what was printed did not arrive (disk full, closed pipe). */
int finish_stdout(void);

/* status.c: a report (JSON text; free() it) of the daemon at the other end of `fd`, for a request that is answered with
 * one, about `ms` milliseconds later; its status. */
int daemon_report(int fd, const void *request, size_t request_bytes, uint32_t ms, char **ret, size_t *ret_length,
                  struct diag *diag);
int status_fetch(int fd, char **ret, size_t *ret_length, struct diag *diag);
/* The report of the daemon that answers at `socket`, as JSON text; free() it. */
int status_report(const char *socket, char **ret, size_t *ret_length, struct diag *diag);

/* engine.c ------------------------------------------------------------------------------------------------------- */

/* Which pipeline is meant, with the keys of the command line laid over it. */
struct setup {
    struct config config;            /* [daemon] and, from a file, the pipelines */
    struct pipeline_config pipeline; /* the one meant; its strings are its own */
};
int setup_init(struct setup *ret, const struct options *options, struct diag *diag);
/* Does it stand for files ("w-*.tar", "w-{0..3}.tar"), so that it is no pipeline's name? */
bool target_is_pattern(const char *target);
void setup_deinit(struct setup *setup); /* legal on a zeroed struct */

/* Tries every key of the command line on scratch configurations: -EINVAL, -ENOENT and the sentence. */
int setup_check_keys(const struct options *options, struct diag *diag);

struct engine {
    struct setup setup;
    struct pool *pool;
    struct pipeline *pipeline;
    struct session *session;
    struct consumer consumer;
    int wake; /* our end of the pair that the daemon would call the session's connection */
    uint64_t global_batch;
    uint8_t fingerprint[16];
    uint64_t open_ns, session_ns; /* time to open the dataset; to make the ring */
    uint64_t started_ns;          /* CLOCK_MONOTONIC when the session was asked for */
    uint64_t reported_ns;         /* of the last pool_report() */
};

/* What to serve: from (epoch, step) on, `epochs` epochs (0: without end). */
struct engine_range {
    uint64_t epoch, step, epochs;
};

/* Starts workers and opens the session. On failure nothing is left to close. */
int engine_open(struct engine *ret, const struct options *options, const struct engine_range *range, struct diag *diag);
void engine_close(struct engine *engine);

/* 1: leased into *ret. 0: no further batch. -EINTR: Ctrl-C. Otherwise the error of the batch with its sentence. */
int engine_next(struct engine *engine, struct loaderd_batch *ret, struct diag *diag);
/* The same, but -ETIMEDOUT, without a sentence, where none came by `deadline_ns` of CLOCK_MONOTONIC. */
int engine_next_until(struct engine *engine, uint64_t deadline_ns, struct loaderd_batch *ret, struct diag *diag);
void engine_release(struct engine *engine, const struct loaderd_batch *batch);
const struct loaderd_slot_header *engine_slot(const struct engine *engine, const struct loaderd_batch *batch);
uint64_t engine_steps(const struct engine *engine); /* steps of an epoch */

/* From now on Ctrl-C sets engine_interrupted instead of ending the process; a second one ends it. */
void engine_catch_interrupt(void);
extern volatile sig_atomic_t engine_interrupted;

/* Threads for work on samples: --workers, else one a CPU that we may use. */
uint32_t threads_wanted(const struct daemon_config *daemon);

/* daemon.c: connects to --socket, else to the configuration file's socket, else where a daemon answers, and says HELLO. */
int daemon_find(const struct options *options, int *ret_fd, struct diag *diag);
int daemon_connect(const char *path, int *ret_fd, struct diag *diag); /* the same, at this socket */
/* The next packet, of `*ret_length` bytes; a descriptor that came along goes to *ret_fd, or is closed. */
int daemon_await(int fd, void *packet, size_t size, size_t *ret_length, int *ret_fd, struct diag *diag);
/* The same, where the answer takes so long by itself. */
int daemon_await_for(int fd, uint32_t ms, void *packet, size_t size, size_t *ret_length, int *ret_fd,
                     struct diag *diag);

/* when.c: "03:00" (the last time that it was that), "2h" (ago), "2026-11-30T03:00" (local; with Z: UTC) as
 * CLOCK_REALTIME. -EINVAL with a sentence. */
int when_parse(const char *text, uint64_t now_ns, uint64_t *ret_ns, struct diag *diag);

/* merge.c: `pack --merge PATH`. Returns the exit status. */
int pack_merge(const char *path);

/* json.c --------------------------------------------------------------------------------------------------------- */

/* A JSON string with its quotes; bytes that are no UTF-8 become U+FFFD. NULL gives null. */
void json_string(FILE *out, const char *text);
/* Prints a JSON text as aligned lines and tables for people. Pure but for `out`; false where it is no JSON. */
bool json_print_table(FILE *out, const char *text, size_t length);

/* png.c ---------------------------------------------------------------------------------------------------------- */

/* An 8-bit RGB picture as PNG. 0 or a negative errno. */
int png_write(FILE *out, const uint8_t *rgb, uint32_t width, uint32_t height);

/* font.c: a 5 x 7 bitmap font. Draws text from (x, y) on, cut at `max_x` and at the edges. */
#define FONT_WIDTH 6  /* advance */
#define FONT_HEIGHT 8 /* line */
struct canvas {
    uint8_t *rgb;
    uint32_t width, height;
};
void font_draw(const struct canvas *canvas, uint32_t x, uint32_t y, uint32_t max_x, uint32_t color, const char *text);

/* survey.c: reads and decodes samples to find out how large and how sound they are ------------------------------- */

struct survey_options {
    uint32_t threads;
    uint64_t samples;             /* how many to look at, spread evenly; at most those of the dataset */
    struct daemon_config *limits; /* max-pixels and the like */
    bool checksums;               /* where records have some, they are enough: nothing is decoded */
    void (*each_bad)(void *arg, uint64_t sample, const char *text); /* or NULL; never two at a time, in any order */
    void *arg;
};

struct survey_bad {
    bool found;
    uint64_t sample;
    char text[DIAG_TEXT];
};

struct survey {
    uint64_t samples;                                        /* looked at */
    uint64_t unreadable, bad, damaged;                       /* of them */
    uint64_t bytes_min, bytes_median, bytes_max, bytes_mean; /* of a stored sample */
    bool pictures;                                           /* the following are of decodable pictures */
    uint32_t width_min, width_median, width_max, height_min, height_median, height_max;
    uint64_t gray, color, cmyk;
    uint64_t labels; /* different ones of field "label", 0: it is not there */
    int64_t label_min, label_max;
    struct survey_bad first; /* the lowest sample that is not sound */
};
int survey_run(const struct dataset *dataset, const struct survey_options *options, struct survey *ret,
               struct diag *diag);

#endif
