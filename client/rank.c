/* SPDX-License-Identifier: MIT */
/* See rank.h. */
#include "rank.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

/* Step ids from here on name no step of tasks: interactive, batch, extern, pending (slurm.h: SLURM_INTERACTIVE_STEP is
 * 0xfffffffa); inside those SLURM_NTASKS counts tasks that were not started. */
#define SLURM_SPECIAL_STEP 0xfffffff0u

static const struct launcher {
    const char *rank, *world;
} launchers[] = {
    {"RANK", "WORLD_SIZE"},           {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"PMI_RANK", "PMI_SIZE"},         {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
    {"SLURM_PROCID", "SLURM_NTASKS"},
};

static bool number(const char *text, uint32_t *ret) {
    char *end;
    errno = 0;
    if (!text || *text < '0' || *text > '9')
        return false;
    unsigned long value = strtoul(text, &end, 10);
    if (errno || *end || value > UINT32_MAX)
        return false;
    *ret = (uint32_t)value;
    return true;
}

/* Launched by srun as one task of a step. */
static bool in_slurm_step(void) {
    uint32_t step;
    return number(getenv("SLURM_STEP_ID"), &step) && step < SLURM_SPECIAL_STEP;
}

static bool is_slurm(const struct launcher *launcher) {
    return launcher->rank[0] == 'S';
}

static int check(const struct rank *r, char *error, size_t size) {
    if (r->world > 0 && r->rank < r->world)
        return 0;
    snprintf(error, size, "rank %u of %u (from %s): ranks count from 0 and lie below the world size", r->rank, r->world,
             r->source);
    return -EINVAL;
}

static int from_environment(struct rank *ret, char *error, size_t size) {
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
        const struct launcher *l = &launchers[i];
        const char *rank = getenv(l->rank), *world = getenv(l->world);
        if (!rank || !world || (is_slurm(l) && !in_slurm_step()))
            continue;
        struct rank found = {.source = l->rank};
        if (!number(rank, &found.rank) || !number(world, &found.world)) {
            snprintf(error, size, "%s=%.40s and %s=%.40s in the environment: both must be whole numbers", l->rank, rank,
                     l->world, world);
            return -EINVAL;
        }
        int r = check(&found, error, size);
        if (r == 0)
            *ret = found;
        return r;
    }
    *ret = (struct rank){.rank = 0, .world = 1, .source = "default"};
    return 0;
}

int rank_find(int64_t rank, int64_t world, struct rank *ret, char *error, size_t error_size) {
    char none[1];
    if (!error || !error_size) {
        error = none;
        error_size = sizeof none;
    }
    if (world <= 0 && rank <= 0)
        return from_environment(ret, error, error_size);
    if (rank < 0 || world <= 0 || rank > UINT32_MAX || world > UINT32_MAX) {
        snprintf(error, error_size, "options.rank %lld and options.world %lld: give both, or neither (-1)",
                 (long long)rank, (long long)world);
        return -EINVAL;
    }
    struct rank given = {.rank = (uint32_t)rank, .world = (uint32_t)world, .source = "options"};
    int r = check(&given, error, error_size);
    if (r == 0)
        *ret = given;
    return r;
}
