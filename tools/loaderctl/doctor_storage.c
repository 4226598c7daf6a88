/* SPDX-License-Identifier: MIT */
/* loaderctl doctor: where a dataset lies, on what, and whether memory can hold it. See doctor.h. */
#include <inttypes.h>
#include <string.h>

#include "base/util.h"
#include "doctor.h"
#include "topology.h"

#define DIRECTORY_SIZE 320

/* File system and source of the mount that has device major:minor. False where mountinfo has no such line. */
static bool find_mount(const char *root, unsigned major, unsigned minor, char type[64], char source[256]) {
    static char text[1 << 20];
    char wanted[32];
    doctor_read(root, "/proc/self/mountinfo", text, sizeof text);
    snprintf(wanted, sizeof wanted, "%u:%u", major, minor);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        char device[32];
        const char *dash = strstr(line, " - ");
        if (dash && sscanf(line, "%*d %*d %31s", device) == 1 && strcmp(device, wanted) == 0 &&
            sscanf(dash, " - %63s %255s", type, source) == 2)
            return true;
    }
    return false;
}

/* The sysfs directory that has the disk's queue: of the device, of what it is a partition of, of the mount's source. */
static bool find_disk(const char *root, const struct storage_probe *probe, const char *source,
                      char ret[DIRECTORY_SIZE]) {
    char path[DIRECTORY_SIZE + 32], text[256];
    const char *name = strrchr(source, '/');
    const char *const form[] = {"/sys/dev/block/%u:%u", "/sys/dev/block/%u:%u/.."};
    for (size_t i = 0; i < ARRAY_SIZE(form) * 2; i++) {
        if (i < ARRAY_SIZE(form))
            snprintf(ret, DIRECTORY_SIZE, i ? "/sys/dev/block/%u:%u/.." : "/sys/dev/block/%u:%u", probe->major,
                     probe->minor);
        else if (strncmp(source, "/dev/", 5) == 0 && name)
            snprintf(ret, DIRECTORY_SIZE, i == 2 ? "/sys/class/block/%s" : "/sys/class/block/%s/..", name + 1);
        else
            continue;
        snprintf(path, sizeof path, "%s/queue/rotational", ret);
        if (doctor_read(root, path, text, sizeof text))
            return true;
    }
    return false;
}

static void judge_disk(const char *root, const char *directory, struct findings *findings) {
    char path[DIRECTORY_SIZE + 32], scheduler[128], rotational[16], event[1024], name[64] = "DISK", chosen[32];
    snprintf(path, sizeof path, "%s/queue/rotational", directory);
    doctor_read(root, path, rotational, sizeof rotational);
    snprintf(path, sizeof path, "%s/queue/scheduler", directory);
    doctor_read(root, path, scheduler, sizeof scheduler);
    snprintf(path, sizeof path, "%s/uevent", directory);
    doctor_read(root, path, event, sizeof event);
    const char *at = strstr(event, "DEVNAME=");
    if (at)
        snprintf(name, sizeof name, "%.*s", (int)MIN(strcspn(at + 8, "\n"), 63u), at + 8);
    const char *open = strchr(scheduler, '[');
    snprintf(chosen, sizeof chosen, "%.*s", open ? (int)MIN(strcspn(open + 1, "]"), 31u) : 31,
             open ? open + 1 : scheduler);
    bool spins = strcmp(rotational, "1") == 0, is_virtual = strncmp(name, "vd", 2) == 0 || strncmp(name, "xvd", 3) == 0;
    struct finding *f = finding_add(findings, "disk", "%s, %s, scheduler %s", name,
                                    is_virtual ? "virtual"
                                    : spins    ? "rotating"
                                               : "solid state",
                                    *chosen ? chosen : "not told");
    if (spins && !is_virtual) /* virtual ones say so whatever they are */
        finding_worse(f, HEALTH_DEGRADED, "a disk that rotates makes one to two hundred random reads a second",
                      "make reads long: shuffle = chunked, over a pack (loaderctl pack DATASET train.pack)");
    else if (strcmp(chosen, "bfq") == 0 || strcmp(chosen, "cfq") == 0)
        finding_worse(f, HEALTH_DEGRADED, "this scheduler holds reads in flight back; solid state disks need none",
                      "echo none | sudo tee /sys/block/%s/queue/scheduler", name);
}

void doctor_storage(const char *root, const struct storage_probe *probe, struct findings *findings) {
    char type[64] = "", source[256] = "", directory[DIRECTORY_SIZE];
    bool known = find_mount(root, probe->major, probe->minor, type, source);
    struct finding *f = finding_add(findings, "file system", "%s of %s",
                                    probe->remote ? probe->remote
                                    : known       ? type
                                                  : "unknown",
                                    probe->path);
    if (probe->remote && probe->whole_files)
        finding_worse(f, HEALTH_DEGRADED, "each sample is a file, and each open asks the server",
                      "pack it, and copy the pack to a local disk: loaderctl pack %s LOCAL/train.pack", probe->path);
    else if (strcmp(type, "overlay") == 0)
        finding_worse(f, HEALTH_DEGRADED,
                      "the dataset lies in the container's layers: opens are slower, and it goes with it",
                      "mount the data into the container: docker run -v %s:%s:ro", "/data", "/data");
    if (!probe->remote && strcmp(type, "tmpfs") != 0 && strcmp(type, "overlay") != 0 &&
        find_disk(root, probe, source, directory))
        judge_disk(root, directory, findings);
}

void doctor_page_cache(const char *root, const struct storage_probe *probe, struct findings *findings) {
    struct topology topology;
    char text[8192];
    uint64_t available = 0;
    doctor_read(root, "/proc/meminfo", text, sizeof text);
    if (!doctor_number(text, "MemAvailable:", &available) || topology_read(root, &topology, NULL) < 0)
        return;
    uint64_t room = MIN(topology.memory_limit, available << 10);
    topology_deinit(&topology);
    struct finding *f = finding_add(findings, "page cache", "%.2f GB of data, room for %.2f GB",
                                    (double)probe->bytes / 1e9, (double)room / 1e9);
    if (probe->bytes > room)
        finding_worse(
            f, HEALTH_DEGRADED,
            "every epoch reads the dataset from the device again: its speed is the disk's (loaderctl tune)",
            "more memory, fewer bytes (loaderctl pack --resize 256), or a faster disk; shuffle = chunked where "
            "it rotates");
}
