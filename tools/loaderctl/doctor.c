/* SPDX-License-Identifier: MIT */
/*
 * loaderctl doctor: whether this machine lets loaderd do its work, as a table of ok, degraded and broken, with what each
 * finding costs and its remedy; with a dataset also where that lies. Only looks. One thread.
 */
#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "base/util.h"
#include "dataset/dataset.h"
#include "decode/decode.h"
#include "doctor.h"
#include "loaderctl.h"
#include "read/read.h"
#include "topology.h"
#include "transform/transform.h"

#define SIZES 1000u /* samples whose size is looked at */

static int try_binding(void) {
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int code = page == MAP_FAILED ? 0 : topology_bind_memory(page, 4096, 0);
    if (page != MAP_FAILED)
        munmap(page, 4096);
    return code == -EPERM || code == -ENOSYS ? code : 0; /* another node than 0 may be the one that is allowed */
}

/* The length of an extent and, of a first one, the device that it is on. */
static uint64_t look_at_extent(const struct extent *extent, struct storage_probe *probe, bool first) {
    cleanup_close int opened = -1;
    struct stat st;
    int fd = extent->file ? extent->file->fd : -1;
    if (extent->file && !first)
        return extent->length;
    if (!extent->file && first)
        fd = opened = openat(extent->dirfd, extent->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (first && fd >= 0 && fstat(fd, &st) == 0) {
        probe->major = major(st.st_dev);
        probe->minor = minor(st.st_dev);
        if (!read_is_remote(fd, &probe->remote))
            probe->remote = NULL;
    }
    if (extent->file)
        return extent->length;
    probe->whole_files = true;
    return fstatat(extent->dirfd, extent->path, &st, 0) == 0 ? (uint64_t)st.st_size : 0;
}

static void look_at_dataset(const struct dataset *dataset, const char *target, struct findings *findings) {
    struct storage_probe probe = {.path = target, .samples = dataset_samples(dataset)};
    uint64_t looks = MIN(probe.samples, SIZES), bytes = 0;
    bool any = false;
    const uint64_t *first;
    probe.shards = (uint32_t)MIN(dataset_shards(dataset, &first), UINT32_MAX);
    for (uint64_t i = 0; i < looks; i++) {
        struct location location;
        dataset_locate(dataset, probe.samples / looks * i, &location);
        for (uint32_t e = 0; e < location.extents; e++) {
            bytes += look_at_extent(&location.extent[e], &probe, !any);
            any = true;
        }
    }
    probe.bytes = (uint64_t)((double)bytes / (double)looks * (double)probe.samples);
    finding_add(findings, "dataset", "%s: %s, %llu samples", target, dataset_format(dataset),
                (unsigned long long)probe.samples);
    doctor_open_files("", probe.shards, findings);
    if (any) {
        doctor_storage("", &probe, findings);
        doctor_page_cache("", &probe, findings);
    }
}

static void look_at_target(const struct options *options, struct findings *findings) {
    struct diag diag = DIAG_INIT;
    struct setup setup = {0};
    struct pipeline *pipeline = NULL;
    int r = setup_init(&setup, options, &diag);
    if (r == 0)
        r = pipeline_new(&setup.pipeline, &setup.config.daemon, &pipeline, &diag);
    if (r == 0)
        look_at_dataset(pipeline_dataset(pipeline), options->target, findings);
    else
        finding_worse(finding_add(findings, "dataset", "%s", diag.text), HEALTH_BROKEN, "it cannot be served",
                      "the line above names it; `loaderctl inspect %s` tells more", options->target);
    pipeline_unref(pipeline);
    setup_deinit(&setup);
}

static void look_at(const char *path, struct findings *findings) {
    struct socket_probe probe = {.path = path};
    struct diag diag = DIAG_INIT;
    struct ucred peer = {0};
    socklen_t size = sizeof peer;
    cleanup_close int fd = -1;
    probe.code = daemon_connect(path, &fd, &diag);
    probe.text = diag.text;
    if (probe.code >= 0 && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0) {
        probe.code = 0;
        probe.pid = peer.pid;
        probe.uid = peer.uid;
    }
    doctor_socket(&probe, findings);
}

/* Sockets in a directory of loaderd's. */
static void look_into(const char *path, struct findings *findings) {
    char name[512];
    struct dirent *entry;
    struct stat st;
    DIR *directory = opendir(path);
    while (directory && (entry = readdir(directory))) {
        if (snprintf(name, sizeof name, "%s/%s", path, entry->d_name) < (int)sizeof name && lstat(name, &st) == 0 &&
            S_ISSOCK(st.st_mode))
            look_at(name, findings);
    }
    if (directory)
        closedir(directory);
}

/* What --socket says, else the file of --config. */
static void look_at_named(const struct options *options, struct findings *findings) {
    struct config config = {0};
    const char *path = NULL;
    for (uint32_t i = 0; i < options->nkeys; i++)
        if (strcmp(options->keys[i].key, "socket") == 0)
            path = options->keys[i].value;
    if (!path && options->config && config_read_file(options->config, &config, NULL) == 0)
        path = config.daemon.socket;
    if (path && *path)
        look_at(path, findings);
    config_deinit(&config);
}

/* Where daemons of this user and of the machine have their sockets. */
static void look_for_sockets(const struct options *options, struct findings *findings) {
    const char *named = getenv("LOADERD_SOCKET"), *runtime = getenv("XDG_RUNTIME_DIR");
    char path[300];
    look_at_named(options, findings);
    if (named && *named) /* nothing else is tried by a trainer */
        look_at(named, findings);
    look_into("/run/loaderd", findings);
    if (runtime && *runtime) /* where private daemons are, too */
        snprintf(path, sizeof path, "%.280s/loaderd", runtime);
    else
        snprintf(path, sizeof path, "/tmp/loaderd-%u", (unsigned)geteuid());
    look_into(path, findings);
}

int command_doctor(const struct options *options) {
    struct findings *findings = calloc(1, sizeof *findings);
    struct uring_probe uring;
    struct cuda_probe cuda;
    if (!findings)
        return complain("out of memory");
    doctor_probe_uring(&uring);
    doctor_probe_cuda(&cuda);
    doctor_kernel("", findings);
    doctor_container("", findings);
    doctor_uring("", &uring, findings);
    doctor_locked_memory("", findings);
    if (!options->target)
        doctor_open_files("", 0, findings);
    doctor_cpus("", findings);
    doctor_memory("", findings);
    doctor_huge_pages("", findings);
    doctor_numa("", try_binding(), findings);
    doctor_cuda("", &cuda, findings);
    doctor_clock("", findings);
    doctor_simd("", transform_simd(), decode_version(0), getenv("LOADERD_SIMD"), getenv("JSIMD_FORCENONE"), findings);
    if (options->target)
        look_at_target(options, findings);
    doctor_processes("", findings);
    look_for_sockets(options, findings);
    if (options->json)
        findings_print_json(stdout, findings, LOADERD_VERSION);
    else
        findings_print_table(stdout, findings);
    bool broken = findings_health(findings) == HEALTH_BROKEN;
    free(findings);
    int status = finish_stdout();
    return status ? status : broken ? EXIT_FAILED : 0;
}
