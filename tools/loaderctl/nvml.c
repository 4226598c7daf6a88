/* SPDX-License-Identifier: MIT */
/* How busy GPUs are: see nvml.h. The types are those of the library's stable interface (nvml.h of the driver's toolkit). */
#include "nvml.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#define LIBRARY "libnvidia-ml.so.1"
#define MOST_PROCESSES 64

typedef void *device_handle;

struct utilisation {
    unsigned int gpu, memory; /* percent */
};

struct process {
    unsigned int pid;
    unsigned long long memory;
    unsigned int instance, compute_instance;
};

struct nvml {
    void *library;
    int (*init)(void);
    int (*shutdown)(void);
    int (*by_uuid)(const char *uuid, device_handle *ret);
    int (*by_index)(unsigned int index, device_handle *ret);
    int (*count)(unsigned int *ret);
    int (*rates)(device_handle device, struct utilisation *ret);
    int (*processes)(device_handle device, unsigned int *count, struct process *ret); /* NULL: an older driver */
};

static bool find(void *library, const char *name, void *ret) {
    *(void **)ret = dlsym(library, name);
    return *(void **)ret != NULL;
}

struct nvml *nvml_open(void) {
    struct nvml *n = calloc(1, sizeof *n);
    if (!n)
        return NULL;
    n->library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (n->library && find(n->library, "nvmlInit_v2", &n->init) && find(n->library, "nvmlShutdown", &n->shutdown) &&
        find(n->library, "nvmlDeviceGetHandleByUUID", &n->by_uuid) &&
        find(n->library, "nvmlDeviceGetHandleByIndex_v2", &n->by_index) &&
        find(n->library, "nvmlDeviceGetCount_v2", &n->count) &&
        find(n->library, "nvmlDeviceGetUtilizationRates", &n->rates) && n->init() == 0) {
        find(n->library, "nvmlDeviceGetComputeRunningProcesses_v3", &n->processes);
        return n;
    }
    if (n->library)
        dlclose(n->library);
    free(n);
    return NULL;
}

void nvml_close(struct nvml *nvml) {
    if (!nvml)
        return;
    nvml->shutdown();
    dlclose(nvml->library);
    free(nvml);
}

static bool runs_on(const struct nvml *n, device_handle device, int pid) {
    struct process process[MOST_PROCESSES];
    unsigned int count = MOST_PROCESSES;
    if (n->processes(device, &count, process) != 0)
        return false;
    for (unsigned int i = 0; i < count && i < MOST_PROCESSES; i++)
        if (process[i].pid == (unsigned int)pid)
            return true;
    return false;
}

static bool find_device(const struct nvml *n, const char *uuid, int pid, device_handle *ret) {
    unsigned int count = 0;
    if (*uuid)
        return n->by_uuid(uuid, ret) == 0;
    if (!n->processes || n->count(&count) != 0)
        return false;
    for (unsigned int i = 0; i < count; i++)
        if (n->by_index(i, ret) == 0 && runs_on(n, *ret, pid))
            return true;
    return false;
}

int nvml_utilisation(struct nvml *nvml, const char *uuid, int pid) {
    device_handle device;
    struct utilisation rates;
    if (!nvml || !find_device(nvml, uuid, pid, &device) || nvml->rates(device, &rates) != 0 || rates.gpu > 100)
        return -1;
    return (int)rates.gpu;
}
