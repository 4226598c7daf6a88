/* SPDX-License-Identifier: MIT */
/* loaderctl doctor: CPUs, memory, NUMA nodes, GPUs and CUDA. See doctor.h. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "autoconfig.h"
#include "base/util.h"
#include "doctor.h"
#include "topology.h"

/* ---- CPUs and memory ---- */

/* How much of its time the cgroup with the quota was held back, in percent of its periods; -1: not known. */
static int throttled(const char *root, const char *quota_file) {
    char path[TOPOLOGY_PATH + 16], text[4096];
    uint64_t periods, held;
    const char *slash = strrchr(quota_file, '/');
    if (!slash)
        return -1;
    snprintf(path, sizeof path, "%.*s/cpu.stat", (int)(slash - quota_file), quota_file);
    if (!doctor_read(root, path, text, sizeof text) || !doctor_number(text, "nr_periods ", &periods) ||
        !doctor_number(text, "nr_throttled ", &held) || periods < 100)
        return -1;
    return (int)(100 * MIN(held, periods) / periods);
}

void doctor_cpus(const char *root, struct findings *findings) {
    struct topology topology;
    struct diag diag = DIAG_INIT;
    if (topology_read(root, &topology, &diag) < 0) {
        finding_worse(finding_add(findings, "CPUs", "%s", diag.text), HEALTH_BROKEN, "no worker can start",
                      "look at the affinity of this process: taskset -p $$");
        return;
    }
    uint32_t workers = topology_workers(&topology);
    if (topology.quota > 0) {
        int held = throttled(root, topology.quota_file);
        struct finding *f =
            finding_add(findings, "CPUs", "%" PRIu32 " allowed, a quota of %.2f by %s: %" PRIu32 " worker%s",
                        topology.cpus, topology.quota, topology.quota_file, workers, workers == 1 ? "" : "s");
        if (held >= 10)
            finding_worse(
                f, HEALTH_DEGRADED,
                "the quota held this cgroup back in many of its periods: all threads stop together, trainers, too",
                "ask for more CPUs (docker --cpus, Kubernetes limits.cpu, CPUQuota=), or let loaderd take less: "
                "workers = %" PRIu32,
                MAX(workers / 2, 1u));
    } else {
        finding_add(findings, "CPUs", "%" PRIu32 " allowed, no quota: %" PRIu32 " worker%s", topology.cpus, workers,
                    workers == 1 ? "" : "s");
    }
    topology_deinit(&topology);
}

void doctor_memory(const char *root, struct findings *findings) {
    struct topology topology;
    char text[8192];
    uint64_t available = 0;
    doctor_read(root, "/proc/meminfo", text, sizeof text);
    doctor_number(text, "MemAvailable:", &available);
    if (topology_read(root, &topology, NULL) < 0)
        return;
    uint64_t limit = topology.memory_limit, room = MIN(limit, available << 10);
    struct finding *f =
        limit == UINT64_MAX
            ? finding_add(findings, "memory", "%" PRIu64 " MiB available, no cgroup limit", available >> 10)
            : finding_add(findings, "memory", "%" PRIu64 " MiB available, of %" PRIu64 " MiB that %s allows",
                          room >> 20, limit >> 20, topology.memory_file);
    if (room < 2 * DOCTOR_RING_BYTES && available)
        finding_worse(
            f, HEALTH_DEGRADED,
            "rings cannot be reclaimed, and a session may have a twentieth of a cgroup's limit: larger ones are "
            "refused; with the page cache small, files are read again and again",
            "raise the limit (docker --memory, Kubernetes limits.memory, MemoryMax=), or make rings smaller: "
            "lower batch and slots, u8 instead of f32");
    topology_deinit(&topology);
}

/* ---- the PCI bus ---- */

struct gpu {
    char name[32];
    int node;
    struct topology_set cpus; /* near it */
};

static bool is_gpu(const char *root, const char *name) {
    char path[320], class[32], vendor[32];
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/class", name);
    doctor_read(root, path, class, sizeof class);
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/vendor", name);
    doctor_read(root, path, vendor, sizeof vendor);
    return strcmp(vendor, "0x10de") == 0 && (strncmp(class, "0x0300", 6) == 0 || strncmp(class, "0x0302", 6) == 0);
}

/* At most `most` of them; the number that there are. */
static uint32_t list_gpus(const char *root, struct gpu *ret, uint32_t most) {
    char path[4096 + 32], text[1024];
    uint32_t count = 0;
    struct dirent *entry;
    snprintf(path, sizeof path, "%s/sys/bus/pci/devices", root);
    DIR *directory = opendir(path);
    while (directory && (entry = readdir(directory))) {
        if (entry->d_name[0] == '.' || strlen(entry->d_name) >= sizeof ret->name || !is_gpu(root, entry->d_name))
            continue;
        if (count < most) {
            struct gpu *gpu = &ret[count];
            *gpu = (struct gpu){.node = -1};
            snprintf(gpu->name, sizeof gpu->name, "%s", entry->d_name);
            snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/numa_node", gpu->name);
            if (doctor_read(root, path, text, sizeof text) && *text)
                gpu->node = atoi(text);
            snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/local_cpulist", gpu->name);
            if (doctor_read(root, path, text, sizeof text))
                (void)topology_parse_list(text, strlen(text), &gpu->cpus);
        }
        count++;
    }
    if (directory)
        closedir(directory);
    return count;
}

uint32_t doctor_gpus(const char *root) {
    return list_gpus(root, NULL, 0);
}

static bool any_near(const struct topology *topology, const struct gpu *gpu) {
    bool known = false;
    for (uint32_t i = 0; i < topology->cpus; i++)
        if (topology_set_has(&gpu->cpus, topology->cpu[i].id) || (gpu->node >= 0 && topology->cpu[i].node == gpu->node))
            return true;
    for (size_t i = 0; i < ARRAY_SIZE(gpu->cpus.word); i++)
        known |= gpu->cpus.word[i] != 0;
    return !known && gpu->node < 0; /* nobody says where it is */
}

static void judge_gpu(const struct topology *topology, const struct gpu *gpu, struct findings *findings) {
    struct finding *f = gpu->node >= 0 ? finding_add(findings, "GPU", "%s on NUMA node %d", gpu->name, gpu->node)
                                       : finding_add(findings, "GPU", "%s, no NUMA node told", gpu->name);
    if (topology->nodes > 1 && gpu->node < 0)
        finding_worse(f, HEALTH_DEGRADED, "its batches may lie on the far node: copies to it cross the sockets' link",
                      "set the firmware's NUMA options; meanwhile name the node in the pipeline: node = N");
    else if (!any_near(topology, gpu))
        finding_worse(f, HEALTH_DEGRADED,
                      "no CPU near it may be used here: batches are written on, and copied from, the far side",
                      "let this process run near it: numactl --cpunodebind=%d --membind=%d, or the CPUs of "
                      "/sys/bus/pci/devices/%s/local_cpulist in --cpuset-cpus, CPUAffinity= or the job's request",
                      gpu->node, gpu->node, gpu->name);
    else if (gpu->node >= 0 && topology->nodes && !topology_set_has(&topology->node, (uint32_t)gpu->node))
        finding_worse(f, HEALTH_DEGRADED, "memory near it may not be used here: copies to it cross the sockets' link",
                      "allow node %d: --cpuset-mems, AllowedMemoryNodes= or numactl --membind=%d", gpu->node,
                      gpu->node);
}

void doctor_numa(const char *root, int binding, struct findings *findings) {
    struct topology topology;
    struct gpu *gpu = calloc(16, sizeof *gpu);
    if (gpu && topology_read(root, &topology, NULL) == 0) {
        struct finding *f = topology.nodes ? finding_add(findings, "NUMA", "%" PRIu32 " node%s with memory",
                                                         topology.nodes, topology.nodes == 1 ? "" : "s")
                                           : finding_add(findings, "NUMA", "this kernel tells no nodes");
        if (binding < 0 && topology.nodes > 1)
            finding_worse(f, HEALTH_DEGRADED,
                          "memory binding is refused: batches may lie on a far node; CPU pinning is not affected",
                          "docker run --cap-add SYS_NICE, or a seccomp profile that allows mbind and get_mempolicy");
        uint32_t gpus = list_gpus(root, gpu, 16);
        for (uint32_t i = 0; i < MIN(gpus, 16u); i++)
            judge_gpu(&topology, &gpu[i], findings);
        topology_deinit(&topology);
    }
    free(gpu);
}

/* ---- CUDA ---- */

void doctor_probe_cuda(struct cuda_probe *ret) {
    *ret = (struct cuda_probe){.built = CUDA_RUNTIME_BUILT};
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL),
         *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    union {
        void *symbol;
        int (*init)(unsigned);
        int (*number)(int *);
        int (*plain)(void);
        int (*text)(char *, unsigned);
    } f;
    ret->library = cuda != NULL;
    if (cuda && (f.symbol = dlsym(cuda, "cuInit")))
        ret->init = f.init(0);
    if (cuda && (f.symbol = dlsym(cuda, "cuDriverGetVersion")))
        f.number(&ret->version);
    if (cuda && ret->init == 0 && (f.symbol = dlsym(cuda, "cuDeviceGetCount")))
        f.number(&ret->devices);
    if (nvml && (f.symbol = dlsym(nvml, "nvmlInit_v2")) && f.plain() == 0 &&
        (f.symbol = dlsym(nvml, "nvmlSystemGetDriverVersion")) && f.text(ret->driver, sizeof ret->driver) != 0)
        ret->driver[0] = '\0';
    /* Neither is closed: they may have threads of their own by now. */
}

/* Results of cuInit() that have a remedy of their own: cuda.h, enum cudaError_enum. */
static const char *init_remedy(int code) {
    switch (code) {
    case 100:
        return "unset CUDA_VISIBLE_DEVICES, or start the container with --gpus all";
    case 802:
        return "systemctl start nvidia-fabricmanager, and wait for it";
    case 803:
    case 804:
        return "the driver's library and its kernel module differ: reboot, or reload the nvidia modules";
    default:
        return "look at nvidia-smi and at the kernel's log (dmesg | grep -i nvrm)";
    }
}

void doctor_cuda(const char *root, const struct cuda_probe *probe, struct findings *findings) {
    uint32_t gpus = doctor_gpus(root);
    int built = probe->built / 1000, has = probe->version / 1000;
    if (!probe->library) {
        if (!gpus)
            finding_add(findings, "CUDA", "no NVIDIA device and no driver here: batches stay in host memory");
        else
            finding_worse(finding_add(findings, "CUDA", "%" PRIu32 " NVIDIA device%s, but no libcuda.so.1", gpus,
                                      gpus == 1 ? "" : "s"),
                          HEALTH_BROKEN, "libloaderd-cuda and every trainer on the GPU cannot work",
                          "install the driver (apt install nvidia-driver); in a container --gpus all with "
                          "NVIDIA_DRIVER_CAPABILITIES=compute,utility");
        return;
    }
    char runtime[64] = "libloaderd-cuda is not built";
    if (probe->built)
        snprintf(runtime, sizeof runtime, "libloaderd-cuda is built with CUDA %d.%d", built, probe->built % 1000 / 10);
    struct finding *f = finding_add(findings, "CUDA", "driver%s%s for CUDA %d.%d, %d device%s; %s",
                                    *probe->driver ? " " : "", probe->driver, has, probe->version % 1000 / 10,
                                    probe->devices, probe->devices == 1 ? "" : "s", runtime);
    if (probe->init)
        finding_worse(f, HEALTH_BROKEN, "no program can use a GPU here (cuInit failed)", "%s (cuInit: %d)",
                      init_remedy(probe->init), probe->init);
    else if (probe->built && built > has)
        finding_worse(f, HEALTH_BROKEN, "libloaderd-cuda needs a newer driver: its first call fails",
                      "install a driver for CUDA %d, or build with an older toolkit: configure --with-cuda=DIR", built);
    else if (!probe->built && gpus)
        finding_worse(f, HEALTH_DEGRADED, "trainers copy batches to the GPU by themselves",
                      "install the CUDA toolkit and build again: configure --with-cuda=/usr/local/cuda");
}
