/* SPDX-License-Identifier: MIT */
/*
 * What loaderctl doctor finds out. Each probe is a function of the kernel's files below `root` ("" is the real machine, a
 * test has a tree of its own) and of facts that only a system call can tell, which its caller has gathered; it adds one
 * finding or several. A finding that is not ok says what that costs and the exact remedy. Nothing is changed anywhere.
 * One thread.
 */
#ifndef DOCTOR_H
#define DOCTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum health {
    HEALTH_OK,
    HEALTH_DEGRADED, /* it works, slower or less safely than it could */
    HEALTH_BROKEN,   /* something that was asked for cannot work */
};
const char *health_name(enum health health); /* "ok", "degraded", "broken" */

#define FINDING_TEXT 512
#define FINDINGS_MAX 64u /* more are dropped; there are about 25 probes and a few daemons */

struct finding {
    const char *check; /* what was looked at, "io_uring"; static */
    enum health health;
    char found[FINDING_TEXT];
    char cost[FINDING_TEXT], remedy[FINDING_TEXT]; /* "" where it is ok */
};

struct findings {
    struct finding finding[FINDINGS_MAX];
    uint32_t count;
};

/* A new finding that is ok, so far. Never NULL: beyond FINDINGS_MAX the last one is used again. */
struct finding *finding_add(struct findings *findings, const char *check, const char *found, ...)
    __attribute__((format(printf, 3, 4)));
/* It is not: what that costs, and the remedy. The worse of two verdicts stays. */
void finding_worse(struct finding *finding, enum health health, const char *cost, const char *remedy, ...)
    __attribute__((format(printf, 4, 5)));
enum health findings_health(const struct findings *findings); /* of the worst */

void findings_print_table(FILE *out, const struct findings *findings);
void findings_print_json(FILE *out, const struct findings *findings, const char *version);

/* A file below root, without the white space at its end. False, and "", where it cannot be read. */
bool doctor_read(const char *root, const char *path, char *ret, size_t size);
/* The number behind "NAME" (its colon included) at the start of a line of `text`. */
bool doctor_number(const char *text, const char *name, uint64_t *ret);
/* A line of /proc/PID/limits ("Max open files"): both limits, UINT64_MAX for unlimited. Pure. */
bool doctor_parse_limit(const char *text, const char *name, uint64_t *ret_soft, uint64_t *ret_hard);

/* ---- doctor_kernel.c ---- */

#define DOCTOR_RING_BYTES (UINT64_C(512) << 20) /* the largest ring of a session by default, max-ring-bytes */

void doctor_kernel(const char *root, struct findings *findings);
/* `code`: what io_uring_setup() returned, 0 or a negative errno; `features`: its IORING_FEAT_ bits, `setup` the
 * IORING_SETUP_ flags that it took; `off`: LOADERD_URING_OFF or NULL. */
struct uring_probe {
    int code;
    uint32_t features, setup;
    const char *off;
};
void doctor_uring(const char *root, const struct uring_probe *probe, struct findings *findings);
void doctor_locked_memory(const char *root, struct findings *findings);
void doctor_open_files(const char *root, uint64_t wanted, struct findings *findings); /* wanted: 0, or of a dataset */
void doctor_clock(const char *root, struct findings *findings);
void doctor_huge_pages(const char *root, struct findings *findings);
void doctor_container(const char *root, struct findings *findings);
/* `simd`: the twin that runs; `codec`: the JPEG library's version; `limit`, `force`: LOADERD_SIMD and JSIMD_FORCENONE. */
void doctor_simd(const char *root, const char *simd, const char *codec, const char *limit, const char *force,
                 struct findings *findings);
/* Asks this machine's kernel. */
void doctor_probe_uring(struct uring_probe *ret);

/* ---- doctor_machine.c ---- */

void doctor_cpus(const char *root, struct findings *findings);
void doctor_memory(const char *root, struct findings *findings);
/* `binding`: 0, or the negative errno that refuses mbind(). */
void doctor_numa(const char *root, int binding, struct findings *findings);

struct cuda_probe {
    bool library;    /* there is a libcuda.so.1 */
    int init;        /* what cuInit() said, 0: fine */
    int version;     /* of the driver, 12040 is 12.4 */
    int devices;     /* that this process may use */
    int built;       /* the runtime inside libloaderd-cuda, 0: built without CUDA */
    char driver[80]; /* "550.54.15", "" where NVML is not there */
};
void doctor_cuda(const char *root, const struct cuda_probe *probe, struct findings *findings);
void doctor_probe_cuda(struct cuda_probe *ret); /* asks libcuda and NVML, where they are */
uint32_t doctor_gpus(const char *root);         /* NVIDIA devices on the PCI bus */

/* ---- doctor_storage.c ---- */

struct storage_probe {
    const char *path;        /* as the user wrote it */
    unsigned major, minor;   /* of the device that a file of it is on */
    const char *remote;      /* "NFS", NULL: a local file system */
    uint64_t samples, bytes; /* of the dataset, about */
    bool whole_files;        /* a file a sample */
    uint32_t shards;         /* files of a dataset that is read from few, 0: not known */
};
void doctor_storage(const char *root, const struct storage_probe *probe, struct findings *findings);
void doctor_page_cache(const char *root, const struct storage_probe *probe, struct findings *findings);

/* ---- doctor_daemon.c ---- */

void doctor_processes(const char *root, struct findings *findings);
/* What connecting to `path` came to: 0 and the daemon's pid and uid, or a negative errno and its sentence. */
struct socket_probe {
    const char *path;
    int code;
    const char *text;
    int pid;
    unsigned uid;
};
void doctor_socket(const struct socket_probe *probe, struct findings *findings);

#endif
