/* SPDX-License-Identifier: MIT */
/*
 * What this process may use: CPUs, memory nodes, the CPU and memory limits of its cgroups, locked memory; and the calls
 * that put a thread on a CPU and memory on a node. Read once at start; the result is constant and may be read by any
 * thread. The topology_parse_* functions are pure.
 */
#ifndef TOPOLOGY_H
#define TOPOLOGY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/diag.h"

#define TOPOLOGY_MAX_IDS 8192u /* CPUs: the largest NR_CPUS that x86-64 kernels are built with; nodes are fewer */
#define TOPOLOGY_PATH 4096

/* A set of CPU or node numbers; they may be sparse. All zero is empty. */
struct topology_set {
    uint64_t word[TOPOLOGY_MAX_IDS / 64];
};
static inline bool topology_set_has(const struct topology_set *set, uint32_t id) {
    return id < TOPOLOGY_MAX_IDS && (set->word[id / 64] >> (id % 64) & 1);
}

struct topology_cpu {
    uint32_t id;
    int32_t node; /* it belongs to, -1: unknown */
    int32_t
        memory_node; /* the nearest node with memory that we may use, -1: unknown. Differs on nodes without memory */
    uint64_t cache;  /* bytes of its last-level cache, at the first of our CPUs that share it; at the others 0 */
};

struct topology {
    uint32_t cpus;            /* that we may run on, >= 1 */
    struct topology_cpu *cpu; /* in ascending order, owned */
    uint32_t nodes;           /* with memory that we may use; 0: unknown */
    struct topology_set node;
    double quota;                   /* CPUs that the tightest cgroup grants, e.g. 1.5; 0: no quota */
    char quota_file[TOPOLOGY_PATH]; /* the file that says so, or "" */
    uint64_t memory_limit;          /* bytes of the tightest memory cgroup, UINT64_MAX: none */
    char memory_file[TOPOLOGY_PATH];
    uint64_t memlock_limit; /* bytes, UINT64_MAX: none */
};

/* Reads the kernel's files below `root`: "" is the real one; with another (a test's copy of /proc/self and /sys) the
 * allowed CPUs come from its status file. What is missing or unreadable is taken as "no limit"; only no allowed CPU at
 * all (-ENODATA) and -ENOMEM are errors. */
int topology_read(const char *root, struct topology *ret, struct diag *diag);
void topology_deinit(struct topology *topology); /* legal on all zero, and twice */

/* Default number of workers: min(allowed CPUs, quota rounded to the nearest whole number), at least 1. */
uint32_t topology_workers(const struct topology *topology);
/* The CPU for worker `worker` of `workers`: spread evenly over the allowed ones, each used once before any is twice. */
const struct topology_cpu *topology_worker_cpu(const struct topology *topology, uint32_t worker, uint32_t workers);
/* Bytes of the last-level caches of our CPUs near the memory of `node` (< 0: of all), 0: unknown. */
uint64_t topology_cache(const struct topology *topology, int node);
/* "2 CPUs allowed (quota 1.50 of /sys/...), 1 memory node, ..." for the start log. Returns the length, -ENOSPC. */
int topology_describe(const struct topology *topology, char *buffer, size_t size);

/* Pins the calling thread to one CPU. 0 or a negative errno (-EINVAL: not an allowed CPU). */
int topology_pin(uint32_t cpu);
/* SCHED_BATCH for the calling thread: long time slices, no wake-up preemption. 0 or a negative errno. */
int topology_batch(void);

/* Asks for the pages of [address, address + size) to come from `node` when first touched (MPOL_PREFERRED: others serve
 * where it is full). `address` is page aligned. Never fatal: 0 or a negative errno; the first -EPERM or -ENOSYS is
 * logged once in a process. node < 0 does nothing. */
int topology_bind_memory(void *address, size_t size, int node);
/* Tries that on a page of its own: 0, or the negative errno that memory binding will meet. */
int topology_probe_memory(const struct topology *topology);
/* 0 while memory binding works or was never asked for, else the negative errno that refused it: for `status`. */
int topology_memory_refused(void);
/* The node that holds the page at `address` (touched before), or a negative errno. */
int topology_node_of(const void *address);

/* The node with memory nearest to the CPU on which process `pid` ran last, -1: unknown, or there is one node only. */
int topology_process_node(const struct topology *topology, int pid);

/* ---- parsers of the kernel's files; text need not be terminated; on failure nothing is written ---- */

/* "0-3,8,10-11": -EINVAL for anything else, -ERANGE for ids beyond TOPOLOGY_MAX_IDS. An empty list is an empty set. */
int topology_parse_list(const char *text, size_t length, struct topology_set *ret);
/* Field 39 of /proc/PID/stat, "processor": -EINVAL. The name in field 2 may hold anything. */
int topology_parse_processor(const char *text, size_t length, uint32_t *ret);
/* The list behind "FIELD:" of /proc/self/status. -ENOENT: no such field. */
int topology_parse_status(const char *text, size_t length, const char *field, struct topology_set *ret);
/* cpu.max of cgroup v2: "max 100000" -> 0, "150000 100000" -> 1.5 CPUs. */
int topology_parse_cpu_max(const char *text, size_t length, double *ret);
/* A number with an optional line feed: cpu.cfs_quota_us (-1: none), cpu.cfs_period_us. */
int topology_parse_number(const char *text, size_t length, int64_t *ret);
/* memory.max, memory.limit_in_bytes: "max" and what v1 writes for "none" -> UINT64_MAX. */
int topology_parse_memory(const char *text, size_t length, uint64_t *ret);
/* /proc/self/cgroup: our path in the v1 hierarchy of `controller`, or, where NULL, in v2. -ENOENT: not there. */
int topology_parse_cgroup(const char *text, size_t length, const char *controller, char ret_path[TOPOLOGY_PATH]);
/* /proc/self/mountinfo: where that hierarchy is mounted, and which directory of it is ("/" without a namespace). */
int topology_parse_mounts(const char *text, size_t length, const char *controller, char ret_root[TOPOLOGY_PATH],
                          char ret_point[TOPOLOGY_PATH]);

#endif
