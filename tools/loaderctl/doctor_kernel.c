/* SPDX-License-Identifier: MIT */
/* loaderctl doctor: what the kernel lets this process do. See doctor.h. */
#include <errno.h>
#include <inttypes.h>
#include <linux/io_uring.h>
#include <string.h>
#include <sys/syscall.h>

#include "base/util.h"
#include "doctor.h"
#include "read/engine.h"

#define CAP_IPC_LOCK_BIT 14 /* linux/capability.h */
#define FILES_ENOUGH 4096u

void doctor_kernel(const char *root, struct findings *findings) {
    char release[128];
    unsigned major = 0, minor = 0;
    if (!doctor_read(root, "/proc/sys/kernel/osrelease", release, sizeof release) ||
        sscanf(release, "%u.%u", &major, &minor) != 2)
        return;
    struct finding *f = finding_add(findings, "kernel", "Linux %s", release);
    if (major < 5 || (major == 5 && minor < 11))
        finding_worse(f, HEALTH_BROKEN, "loaderd needs memory and process calls that this kernel lacks",
                      "run Linux 6.1 or newer (Debian 12, Ubuntu 22.04 with linux-generic-hwe, RHEL 9.4)");
    else if (major < 6 || (major == 6 && minor < 1))
        finding_worse(f, HEALTH_DEGRADED, "it was not tested on kernels before 6.1; io_uring costs more there",
                      "run Linux 6.1 or newer");
}

void doctor_probe_uring(struct uring_probe *ret) {
    static const uint32_t flags[] = {
        IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
        IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
        0,
    };
    *ret = (struct uring_probe){.off = getenv("LOADERD_URING_OFF")};
    for (size_t i = 0; i < ARRAY_SIZE(flags); i++) {
        struct io_uring_params params = {.flags = flags[i]};
        long fd = syscall(SYS_io_uring_setup, 8u, &params);
        ret->code = fd < 0 ? -errno : 0;
        if (fd >= 0) {
            ret->features = params.features;
            ret->setup = flags[i];
            close((int)fd);
            return;
        }
        if (ret->code != -EINVAL)
            return;
    }
}

static void read_facts(const char *root, int code, struct uring_facts *ret) {
    char text[8192];
    uint64_t number, hard;
    *ret = (struct uring_facts){.code = code, .disabled = -1};
    if (doctor_read(root, "/proc/sys/kernel/io_uring_disabled", text, sizeof text))
        ret->disabled = atoi(text);
    if (doctor_read(root, "/proc/self/status", text, sizeof text) && doctor_number(text, "Seccomp:", &number))
        ret->seccomp = number == 2;
    if (doctor_read(root, "/proc/sys/kernel/osrelease", text, sizeof text))
        sscanf(text, "%u.%u", &ret->major, &ret->minor);
    if (doctor_read(root, "/proc/self/limits", text, sizeof text))
        (void)doctor_parse_limit(text, "Max locked memory", &ret->memlock, &hard);
}

/* The sentence of uring_explain() is "what; remedy". */
static void uring_refused(const char *root, int code, struct findings *findings) {
    struct uring_facts facts;
    struct diag why = DIAG_INIT;
    read_facts(root, code, &facts);
    uring_explain(&facts, &why);
    char *semicolon = strchr(why.text, ';');
    if (semicolon)
        *semicolon = '\0';
    const char *remedy = semicolon ? semicolon + 1 + strspn(semicolon + 1, " ") : NULL;
    bool profile = facts.seccomp && (code == -EPERM || code == -ENOSYS) && facts.disabled <= 0;
    if (code == -EPERM && facts.disabled == 1)
        remedy =
            "sysctl -w kernel.io_uring_disabled=0, or put the user into the group that kernel.io_uring_group names";
    if (code == -EOPNOTSUPP || (code == -ENOSYS && !facts.seccomp))
        remedy = "run a kernel with io_uring, Linux 6.1 or newer";
    finding_worse(finding_add(findings, "io_uring", "%s", why.text), HEALTH_DEGRADED,
                  "reads are made by pread: a worker waits for storage instead of decoding; on cold data that can cost "
                  "most of the throughput, on cached data little",
                  "%s%s", remedy ? remedy : "look at the kernel's log",
                  profile ? " (docker run --security-opt seccomp=PROFILE.json; Kubernetes: "
                            "securityContext.seccompProfile)"
                          : "");
}

void doctor_uring(const char *root, const struct uring_probe *probe, struct findings *findings) {
    static const struct {
        uint32_t bit;
        const char *name;
    } setup[] = {{IORING_SETUP_SINGLE_ISSUER, "single issuer"}, {IORING_SETUP_COOP_TASKRUN, "cooperative task run"}},
      feature[] = {{IORING_FEAT_NODROP, "no dropped completions"},
                   {IORING_FEAT_EXT_ARG, "timeouts"},
                   {IORING_FEAT_CQE_SKIP, "skipped completions"}};
    char text[256] = "";
    if (probe->code < 0) {
        uring_refused(root, probe->code, findings);
        return;
    }
    for (size_t i = 0; i < ARRAY_SIZE(setup); i++)
        if (probe->setup & setup[i].bit)
            snprintf(text + strlen(text), sizeof text - strlen(text), ", %s", setup[i].name);
    for (size_t i = 0; i < ARRAY_SIZE(feature); i++)
        if (probe->features & feature[i].bit)
            snprintf(text + strlen(text), sizeof text - strlen(text), ", %s", feature[i].name);
    struct finding *f = finding_add(findings, "io_uring", "present%s", text);
    if (probe->off && *probe->off)
        finding_worse(f, HEALTH_DEGRADED, "parts of the read engine are switched off by LOADERD_URING_OFF",
                      "unset LOADERD_URING_OFF (it is %s)", probe->off);
    else if (!(probe->setup & IORING_SETUP_COOP_TASKRUN))
        finding_worse(f, HEALTH_DEGRADED, "each completion interrupts a worker", "run Linux 6.1 or newer");
}

static const char *bytes_text(uint64_t bytes, char text[32]) {
    if (bytes == UINT64_MAX)
        snprintf(text, 32, "unlimited");
    else if (bytes >= UINT64_C(10) << 30)
        snprintf(text, 32, "%" PRIu64 " GiB", bytes >> 30);
    else if (bytes >= UINT64_C(10) << 20)
        snprintf(text, 32, "%" PRIu64 " MiB", bytes >> 20);
    else
        snprintf(text, 32, "%" PRIu64 " KiB", bytes >> 10);
    return text;
}

void doctor_locked_memory(const char *root, struct findings *findings) {
    char text[8192], status[8192], soft_text[32], hard_text[32];
    uint64_t soft, hard, capabilities = 0;
    if (!doctor_read(root, "/proc/self/limits", text, sizeof text) ||
        !doctor_parse_limit(text, "Max locked memory", &soft, &hard))
        return;
    doctor_read(root, "/proc/self/status", status, sizeof status);
    const char *effective = strstr(status, "\nCapEff:");
    if (effective)
        sscanf(effective + 8, "%" SCNx64, &capabilities);
    if (capabilities >> CAP_IPC_LOCK_BIT & 1) {
        finding_add(findings, "locked memory", "any amount: this process has CAP_IPC_LOCK");
        return;
    }
    struct finding *f = finding_add(findings, "locked memory", "%s, at most %s (RLIMIT_MEMLOCK)",
                                    bytes_text(soft, soft_text), bytes_text(hard, hard_text));
    static const char cost[] =
        "rings that are larger are not locked: under memory pressure batches are swapped out, and "
        "a trainer waits for a disk. `loaderctl status` says locked: false";
    if (soft >= DOCTOR_RING_BYTES)
        return;
    if (hard == UINT64_MAX)
        finding_worse(f, HEALTH_DEGRADED, cost, "ulimit -l unlimited, in the shell that starts it");
    else if (hard >= DOCTOR_RING_BYTES)
        finding_worse(f, HEALTH_DEGRADED, cost, "ulimit -l %" PRIu64 ", in the shell that starts it", hard >> 10);
    else
        finding_worse(
            f, HEALTH_DEGRADED, cost,
            "for a service LimitMEMLOCK=infinity in its unit (limits.conf does not hold for services); for a "
            "container --ulimit memlock=-1; for a login the line `%s - memlock unlimited` in "
            "/etc/security/limits.conf; for a running process, as root: prlimit --memlock=unlimited --pid PID",
            "*");
}

void doctor_open_files(const char *root, uint64_t wanted, struct findings *findings) {
    char text[8192], soft_text[32], hard_text[32];
    uint64_t soft, hard, need = MAX(wanted + 64, (uint64_t)FILES_ENOUGH);
    if (!doctor_read(root, "/proc/self/limits", text, sizeof text) ||
        !doctor_parse_limit(text, "Max open files", &soft, &hard))
        return;
    snprintf(soft_text, sizeof soft_text, soft == UINT64_MAX ? "unlimited" : "%" PRIu64, soft);
    snprintf(hard_text, sizeof hard_text, hard == UINT64_MAX ? "unlimited" : "%" PRIu64, hard);
    struct finding *f = finding_add(findings, "open files", "%s, at most %s (RLIMIT_NOFILE)", soft_text, hard_text);
    static const char remedy[] = "for a service LimitNOFILE=%" PRIu64 " in its unit; for a container --ulimit "
                                 "nofile=%" PRIu64 "; for a running process, as root: prlimit --nofile=%" PRIu64
                                 " --pid PID; or pack the dataset into fewer files (loaderctl pack)";
    if (wanted && hard < wanted + 64)
        finding_worse(f, HEALTH_BROKEN, "the dataset's files do not fit: opening it fails with \"Too many open files\"",
                      remedy, need, need, need);
    else if (wanted && soft < wanted + 64)
        finding_worse(f, HEALTH_DEGRADED,
                      "loaderd raises its own limit to the hard one, but other programs that open the dataset fail",
                      "ulimit -n %" PRIu64 ", in the shell that starts them", need);
    else if (hard < 1024)
        finding_worse(f, HEALTH_DEGRADED, "datasets of many shards, and many trainers, do not fit", remedy, need, need,
                      need);
}

void doctor_clock(const char *root, struct findings *findings) {
    static const char place[] = "/sys/devices/system/clocksource/clocksource0";
    char current[64], available[256], path[128];
    snprintf(path, sizeof path, "%s/current_clocksource", place);
    if (!doctor_read(root, path, current, sizeof current))
        return;
    snprintf(path, sizeof path, "%s/available_clocksource", place);
    doctor_read(root, path, available, sizeof available);
    struct finding *f = finding_add(findings, "clock source", "%s", current);
    if (strcmp(current, "tsc") == 0 || strcmp(current, "kvm-clock") == 0 || strcmp(current, "arch_sys_counter") == 0 ||
        strcmp(current, "hyperv_clocksource_tsc_page") == 0)
        return;
    if (strstr(available, "tsc"))
        finding_worse(f, HEALTH_DEGRADED, "each look at the clock is a system call: small samples come slower",
                      "echo tsc | sudo tee %s/current_clocksource", place);
    else
        finding_worse(f, HEALTH_DEGRADED, "each look at the clock is a system call: small samples come slower",
                      "the kernel offers no better one (%s): see \"clocksource\" in its log", available);
}

/* The word in brackets. */
static void chosen_word(const char *text, char ret[32]) {
    const char *open = strchr(text, '[');
    size_t length = open ? strcspn(open + 1, "]") : strlen(text);
    snprintf(ret, 32, "%.*s", (int)MIN(length, 31u), open ? open + 1 : text);
}

void doctor_huge_pages(const char *root, struct findings *findings) {
    static const char file[] = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    char text[256], word[32];
    if (!doctor_read(root, file, text, sizeof text)) {
        finding_worse(finding_add(findings, "huge pages", "this kernel has none for shared memory"), HEALTH_DEGRADED,
                      "rings are made of 4 KiB pages: they take longer to make and to register with a GPU",
                      "run a kernel with CONFIG_TRANSPARENT_HUGEPAGE");
        return;
    }
    chosen_word(text, word);
    struct finding *f = finding_add(findings, "huge pages", "for shared memory: %s", word);
    if (strcmp(word, "never") == 0 || strcmp(word, "deny") == 0)
        finding_worse(
            f, HEALTH_DEGRADED, "rings are made of 4 KiB pages: they take longer to make and to register with a GPU",
            "echo advise | sudo tee %s (at each boot: a line `w %s - - - - advise` in /etc/tmpfiles.d)", file, file);
}

void doctor_container(const char *root, struct findings *findings) {
    static const struct {
        const char *word, *name;
    } group[] = {{"kubepods", "Kubernetes"},   {"docker", "Docker"},    {"libpod", "Podman"}, {"lxc", "LXC"},
                 {"containerd", "containerd"}, {"slurm", "a Slurm job"}};
    char text[4096], manager[64], seccomp[8192];
    const char *kind = NULL;
    uint64_t filter = 0;
    doctor_read(root, "/proc/self/cgroup", text, sizeof text);
    for (size_t i = 0; i < ARRAY_SIZE(group) && !kind; i++)
        if (strstr(text, group[i].word))
            kind = group[i].name;
    if (doctor_read(root, "/run/systemd/container", manager, sizeof manager) && *manager)
        kind = kind ? kind : manager;
    if (!kind && doctor_read(root, "/run/.containerenv", text, sizeof text))
        kind = "Podman";
    if (!kind && doctor_read(root, "/.dockerenv", text, sizeof text))
        kind = "Docker, or a copy of such a container (/.dockerenv)";
    doctor_read(root, "/proc/self/status", seccomp, sizeof seccomp);
    bool filtered = doctor_number(seccomp, "Seccomp:", &filter) && filter == 2;
    if (kind)
        finding_add(findings, "container", "%s%s", kind,
                    filtered ? ", with a seccomp filter" : ", without a seccomp filter");
    else
        finding_add(findings, "container", "none%s", filtered ? ", but a seccomp filter" : "");
}

void doctor_simd(const char *root, const char *simd, const char *codec, const char *limit, const char *force,
                 struct findings *findings) {
    char text[64 << 10];
    struct finding *f = finding_add(findings, "SIMD", "%s", simd);
    doctor_read(root, "/proc/cpuinfo", text, sizeof text);
    bool avx2 = strstr(text, " avx2"), avx512 = avx2 && strstr(text, " avx512bw");
    bool lowered = limit && ((strcmp(limit, "scalar") == 0 && avx2) || (strcmp(limit, "avx2") == 0 && avx512));
    if (lowered)
        finding_worse(f, HEALTH_DEGRADED, "resizing, casts and copies are slower than this CPU can",
                      "unset LOADERD_SIMD (it is %s)", limit);
    else if (strcmp(simd, "scalar") == 0 && avx2)
        finding_worse(f, HEALTH_DEGRADED, "resizing and casts take several times longer",
                      "rebuild loaderd with a compiler that has AVX2 (gcc 9, clang 9 or newer)");
    f = finding_add(findings, "JPEG codec", "%s", codec);
    if (force && *force)
        finding_worse(f, HEALTH_DEGRADED, "decoding takes two to four times longer", "unset JSIMD_FORCENONE");
    else if (!strstr(codec, "SIMD"))
        finding_worse(f, HEALTH_DEGRADED, "decoding takes two to four times longer",
                      "build with libjpeg-turbo that has SIMD (apt install libjpeg62-turbo-dev or libjpeg-turbo8-dev)");
}
