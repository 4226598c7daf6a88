/* SPDX-License-Identifier: MIT */
/* Which rank of how many this process is, from the environment that launchers set. Reads the environment only. */
#ifndef CLIENT_RANK_H
#define CLIENT_RANK_H

#include <stddef.h>
#include <stdint.h>

struct rank {
    uint32_t rank, world;
    const char *source; /* "options", "RANK", ..., "default" */
};

/* `rank` and `world` as in struct loaderd_options: an explicit pair wins, -1 (or world 0 with rank 0) asks the
 * environment: RANK/WORLD_SIZE (torchrun), OMPI_COMM_WORLD_RANK/SIZE (Open MPI), PMI_RANK/PMI_SIZE (MPICH, Intel MPI),
 * SLURM_PROCID inside a job step only, else 0 of 1. 0, or -EINVAL with a sentence. */
int rank_find(int64_t rank, int64_t world, struct rank *ret, char *error, size_t error_size);

#endif
