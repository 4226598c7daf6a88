/* SPDX-License-Identifier: MIT */
/*
 * How busy GPUs are, by NVIDIA's management library where a driver brought it: loaded at run time, nothing is linked. One
 * thread.
 */
#ifndef NVML_H
#define NVML_H

struct nvml;

struct nvml *nvml_open(void);       /* NULL: no library, or it does not work */
void nvml_close(struct nvml *nvml); /* NULL allowed */
/* Percent of the last moment in which the GPU did something: of that UUID ("GPU-..."), or where that is "", of the one that
 * process `pid` computes on. -1: not known. */
int nvml_utilisation(struct nvml *nvml, const char *uuid, int pid);

#endif
