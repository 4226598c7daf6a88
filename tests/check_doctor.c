/* SPDX-License-Identifier: MIT */
/*
 * The probes of loaderctl doctor over trees of the kernel's files below a temporary root, the table and the JSON, and the
 * program itself in a child whose seccomp filter refuses io_uring. What the files look like was taken from real machines.
 */
#include "tools/loaderctl/doctor.h"

#include <check.h>
#include <errno.h>
#include <ftw.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/util.h"

static char tree[64];
static struct findings findings;

static void set_up(void) {
    snprintf(tree, sizeof tree, "/tmp/check_doctor.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(tree));
    findings.count = 0;
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *walk) {
    (void)info, (void)type, (void)walk;
    return remove(path);
}

static void tear_down(void) {
    nftw(tree, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void put(const char *path, const char *text) {
    char full[512];
    snprintf(full, sizeof full, "%s%s", tree, path);
    for (char *slash = full + strlen(tree) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = '\0';
        ck_assert(mkdir(full, 0755) == 0 || errno == EEXIST);
    }
    FILE *file = fopen(full, "w");
    ck_assert_msg(file != NULL, "%s", full);
    fputs(text, file);
    fclose(file);
}

/* The finding number `n` about `check`; it must be there. */
static const struct finding *about(const char *check, unsigned n) {
    for (uint32_t i = 0; i < findings.count; i++)
        if (strcmp(findings.finding[i].check, check) == 0 && n-- == 0)
            return &findings.finding[i];
    ck_abort_msg("no finding about %s", check);
    return NULL;
}

static void assert_ok(const char *check, const char *found) {
    const struct finding *f = about(check, 0);
    ck_assert_msg(f->health == HEALTH_OK, "%s: %s", f->found, f->cost);
    ck_assert_msg(strstr(f->found, found) != NULL, "%s", f->found);
    ck_assert_str_eq(f->cost, "");
    ck_assert_str_eq(f->remedy, "");
    findings.count = 0;
}

static void assert_bad(const char *check, enum health health, const char *found, const char *remedy) {
    const struct finding *f = about(check, 0);
    ck_assert_msg(f->health == health, "%s", f->found);
    ck_assert_msg(strstr(f->found, found) != NULL, "%s", f->found);
    ck_assert_msg(strstr(f->remedy, remedy) != NULL, "%s", f->remedy);
    ck_assert_str_ne(f->cost, "");
    findings.count = 0;
}

/* ---- parsers ---- */

static const char limits[] = "Limit                     Soft Limit           Hard Limit           Units     \n"
                             "Max cpu time              unlimited            unlimited            seconds   \n"
                             "Max open files            1024                 524288               files     \n"
                             "Max locked memory         8388608              unlimited            bytes     \n";

START_TEST(limits_of_the_kernel) {
    uint64_t soft = 7, hard = 7;
    ck_assert(doctor_parse_limit(limits, "Max open files", &soft, &hard) && soft == 1024 && hard == 524288);
    ck_assert(doctor_parse_limit(limits, "Max locked memory", &soft, &hard) && soft == 8388608 && hard == UINT64_MAX);
    ck_assert(doctor_parse_limit(limits, "Max cpu time", &soft, &hard) && soft == UINT64_MAX && hard == UINT64_MAX);
    soft = hard = 7;
    static const char *const bad[] = {
        "", "Max open files", "Max open files  x y", "Max open files 5", "Max open files 5 -1", "x Max open files 1 2"};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        ck_assert_msg(!doctor_parse_limit(bad[i], "Max open files", &soft, &hard) && soft == 7 && hard == 7, "%s",
                      bad[i]);
}
END_TEST

START_TEST(small_files) {
    char text[8];
    uint64_t number = 7;
    put("/proc/x", "a b \n\n");
    ck_assert(doctor_read(tree, "/proc/x", text, sizeof text));
    ck_assert_str_eq(text, "a b");
    put("/proc/x", "0123456789");
    ck_assert(doctor_read(tree, "/proc/x", text, sizeof text));
    ck_assert_str_eq(text, "0123456");
    ck_assert(!doctor_read(tree, "/proc/none", text, sizeof text));
    ck_assert_str_eq(text, "");
    ck_assert(!doctor_read(tree, "/proc", text, sizeof text)); /* a directory */
    ck_assert(doctor_number("a: 1\nMemAvailable:   52 kB\n", "MemAvailable:", &number) && number == 52);
    ck_assert(!doctor_number("xMemAvailable: 1\n", "MemAvailable:", &number) && number == 52);
    ck_assert(!doctor_number("", "MemAvailable:", &number));
}
END_TEST

/* ---- io_uring ---- */

START_TEST(uring) {
    struct uring_probe probe = {
        .code = 0, .features = IORING_FEAT_NODROP, .setup = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN};
    put("/proc/sys/kernel/osrelease", "6.1.0-18-amd64\n");
    put("/proc/self/status", "Name:\tx\nSeccomp:\t0\n");
    doctor_uring(tree, &probe, &findings);
    assert_ok("io_uring", "present, single issuer");
    probe.off = "chain,resident";
    doctor_uring(tree, &probe, &findings);
    assert_bad("io_uring", HEALTH_DEGRADED, "present", "unset LOADERD_URING_OFF");
    probe = (struct uring_probe){.code = 0};
    doctor_uring(tree, &probe, &findings);
    assert_bad("io_uring", HEALTH_DEGRADED, "present", "Linux 6.1");

    probe.code = -EPERM;
    put("/proc/sys/kernel/io_uring_disabled", "2\n");
    doctor_uring(tree, &probe, &findings);
    assert_bad("io_uring", HEALTH_DEGRADED, "io_uring_disabled=2", "sysctl -w kernel.io_uring_disabled=0");
    put("/proc/sys/kernel/io_uring_disabled", "1\n");
    doctor_uring(tree, &probe, &findings);
    assert_bad("io_uring", HEALTH_DEGRADED, "io_uring_disabled=1", "io_uring_group");
    put("/proc/sys/kernel/io_uring_disabled", "0\n");
    put("/proc/self/status", "Name:\tx\nSeccomp:\t2\n");
    doctor_uring(tree, &probe, &findings);
    assert_bad("io_uring", HEALTH_DEGRADED, "seccomp", "--security-opt seccomp=");
    put("/proc/self/status", "Name:\tx\nSeccomp:\t0\n");
    doctor_uring(tree, &probe, &findings);
    assert_bad("io_uring", HEALTH_DEGRADED, "security policy", "allow io_uring_setup");
    probe.code = -ENOSYS;
    doctor_uring(tree, &probe, &findings);
    assert_bad("io_uring", HEALTH_DEGRADED, "built without io_uring", "Linux 6.1");
    probe.code = -ENOMEM;
    put("/proc/self/limits", "Max locked memory         65536                65536                bytes     \n");
    doctor_uring(tree, &probe, &findings);
    assert_bad("io_uring", HEALTH_DEGRADED, "64 KiB", "ulimit -l");
}
END_TEST

START_TEST(kernels) {
    static const struct {
        const char *release;
        enum health health;
    } table[] = {{"6.1.0-18-amd64\n", HEALTH_OK},  {"6.18.5\n", HEALTH_OK},       {"7.0-rc1\n", HEALTH_OK},
                 {"5.15.0-91\n", HEALTH_DEGRADED}, {"6.0.19\n", HEALTH_DEGRADED}, {"4.18.0-553.el8\n", HEALTH_BROKEN}};
    doctor_kernel(tree, &findings);
    ck_assert_uint_eq(findings.count, 0); /* not known */
    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        findings.count = 0;
        put("/proc/sys/kernel/osrelease", table[i].release);
        doctor_kernel(tree, &findings);
        ck_assert_msg(about("kernel", 0)->health == table[i].health, "%s", table[i].release);
    }
}
END_TEST

/* ---- limits ---- */

static void put_limits(const char *locked, const char *files) {
    char text[512];
    snprintf(text, sizeof text, "Max open files  %s files\nMax locked memory  %s bytes\n", files, locked);
    put("/proc/self/limits", text);
}

START_TEST(locked_memory) {
    put("/proc/self/status", "Name:\tx\nCapEff:\t0000000000000000\n");
    put_limits("unlimited unlimited", "1024 524288");
    doctor_locked_memory(tree, &findings);
    assert_ok("locked memory", "unlimited");
    put_limits("536870912 536870912", "1024 524288");
    doctor_locked_memory(tree, &findings);
    assert_ok("locked memory", "512 MiB");
    put_limits("65536 unlimited", "1024 524288");
    doctor_locked_memory(tree, &findings);
    assert_bad("locked memory", HEALTH_DEGRADED, "64 KiB", "ulimit -l unlimited");
    put_limits("65536 1073741824", "1024 524288");
    doctor_locked_memory(tree, &findings);
    assert_bad("locked memory", HEALTH_DEGRADED, "64 KiB", "ulimit -l 1048576,");
    put_limits("65536 8388608", "1024 524288");
    doctor_locked_memory(tree, &findings);
    assert_bad("locked memory", HEALTH_DEGRADED, "64 KiB, at most 8192 KiB", "LimitMEMLOCK=infinity");
    put("/proc/self/status", "Name:\tx\nCapEff:\t0000000000004000\n"); /* CAP_IPC_LOCK */
    doctor_locked_memory(tree, &findings);
    assert_ok("locked memory", "CAP_IPC_LOCK");
}
END_TEST

START_TEST(open_files) {
    put_limits("65536 65536", "1024 524288");
    doctor_open_files(tree, 0, &findings);
    assert_ok("open files", "1024, at most 524288");
    doctor_open_files(tree, 900, &findings);
    assert_ok("open files", "1024");
    doctor_open_files(tree, 2000, &findings);
    assert_bad("open files", HEALTH_DEGRADED, "1024", "ulimit -n 4096");
    put_limits("65536 65536", "64 64");
    doctor_open_files(tree, 0, &findings);
    assert_bad("open files", HEALTH_DEGRADED, "64, at most 64", "LimitNOFILE=4096");
    doctor_open_files(tree, 5000, &findings);
    assert_bad("open files", HEALTH_BROKEN, "64, at most 64", "--ulimit nofile=5064");
}
END_TEST

/* ---- the machine ---- */

START_TEST(clocks_and_huge_pages) {
    put("/sys/devices/system/clocksource/clocksource0/available_clocksource", "tsc hpet acpi_pm \n");
    put("/sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n");
    doctor_clock(tree, &findings);
    assert_ok("clock source", "tsc");
    put("/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n");
    doctor_clock(tree, &findings);
    assert_bad("clock source", HEALTH_DEGRADED, "hpet", "echo tsc | sudo tee /sys/devices");
    put("/sys/devices/system/clocksource/clocksource0/available_clocksource", "hpet acpi_pm \n");
    doctor_clock(tree, &findings);
    assert_bad("clock source", HEALTH_DEGRADED, "hpet", "no better one (hpet acpi_pm)");

    doctor_huge_pages(tree, &findings);
    assert_bad("huge pages", HEALTH_DEGRADED, "none", "CONFIG_TRANSPARENT_HUGEPAGE");
    put("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size advise [never] deny force\n");
    doctor_huge_pages(tree, &findings);
    assert_bad("huge pages", HEALTH_DEGRADED, "never", "echo advise | sudo tee /sys/kernel/mm");
    put("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size [advise] never deny force\n");
    doctor_huge_pages(tree, &findings);
    assert_ok("huge pages", "advise");
}
END_TEST

START_TEST(containers) {
    static const struct {
        const char *cgroup, *want;
    } table[] = {{"0::/user.slice/user-1000.slice/session-2.scope\n", "none"},
                 {"12:cpu:/docker/0123\n0::/\n", "Docker, without"},
                 {"0::/kubepods.slice/kubepods-burstable.slice/cri-containerd-1.scope\n", "Kubernetes"},
                 {"0::/machine.slice/libpod-0123.scope\n", "Podman"},
                 {"0::/system.slice/slurmstepd.scope/job_7\n", "a Slurm job"}};
    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        put("/proc/self/cgroup", table[i].cgroup);
        doctor_container(tree, &findings);
        assert_ok("container", table[i].want);
    }
    put("/proc/self/cgroup", "0::/\n");
    put("/proc/self/status", "Seccomp:\t2\n");
    doctor_container(tree, &findings);
    assert_ok("container", "none, but a seccomp filter");
    put("/.dockerenv", "");
    doctor_container(tree, &findings);
    assert_ok("container", "Docker");
    put("/run/systemd/container", "systemd-nspawn\n");
    doctor_container(tree, &findings);
    assert_ok("container", "systemd-nspawn, with a seccomp filter");
}
END_TEST

START_TEST(cpus_and_memory) {
    doctor_cpus(tree, &findings);
    assert_bad("CPUs", HEALTH_BROKEN, "which CPUs", "taskset");
    put("/proc/self/status", "Cpus_allowed_list:\t0-15\n");
    put("/proc/meminfo", "MemTotal: 33554432 kB\nMemAvailable:   16777216 kB\n");
    doctor_cpus(tree, &findings);
    assert_ok("CPUs", "16 allowed, no quota: 16 workers");
    doctor_memory(tree, &findings);
    assert_ok("memory", "16384 MiB available, no cgroup limit");
    put("/proc/self/cgroup", "0::/\n");
    put("/proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    put("/sys/fs/cgroup/cpu.max", "200000 100000\n");
    put("/sys/fs/cgroup/cpu.stat", "usage_usec 5\nnr_periods 1000\nnr_throttled 20\n");
    doctor_cpus(tree, &findings);
    assert_ok("CPUs", "a quota of 2.00 by /sys/fs/cgroup/cpu.max: 2 workers");
    put("/sys/fs/cgroup/cpu.stat", "usage_usec 5\nnr_periods 1000\nnr_throttled 400\n");
    doctor_cpus(tree, &findings);
    assert_bad("CPUs", HEALTH_DEGRADED, "a quota of 2.00", "workers = 1");
    put("/sys/fs/cgroup/memory.max", "536870912\n");
    doctor_memory(tree, &findings);
    assert_bad("memory", HEALTH_DEGRADED, "512 MiB that /sys/fs/cgroup/memory.max allows", "MemoryMax=");
}
END_TEST

static void put_gpu(const char *name, const char *class, const char *vendor, const char *node, const char *cpus) {
    char path[128];
    const char *const file[] = {"class", "vendor", "numa_node", "local_cpulist"}, *const text[] = {class, vendor, node,
                                                                                                   cpus};
    for (size_t i = 0; i < ARRAY_SIZE(file); i++) {
        snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/%s", name, file[i]);
        put(path, text[i]);
    }
}

START_TEST(gpus_and_nodes) {
    put("/proc/self/status", "Cpus_allowed_list:\t0-3\nMems_allowed_list:\t0-1\n");
    put("/sys/devices/system/node/online", "0-1\n");
    put("/sys/devices/system/node/has_memory", "0-1\n");
    put("/sys/devices/system/node/node0/cpulist", "0-3\n");
    put("/sys/devices/system/node/node1/cpulist", "4-7\n");
    put_gpu("0000:0a:00.0", "0x030200\n", "0x10de\n", "0\n", "0-3\n");
    put_gpu("0000:0b:00.0", "0x020000\n", "0x15b3\n", "0\n", "0-3\n"); /* a network card */
    put_gpu("0000:0c:00.0", "0x030000\n", "0x1a03\n", "0\n", "0-3\n"); /* a board's own graphics */
    ck_assert_uint_eq(doctor_gpus(tree), 1);
    doctor_numa(tree, 0, &findings);
    ck_assert_uint_eq(findings.count, 2);
    ck_assert_int_eq(about("GPU", 0)->health, HEALTH_OK);
    assert_ok("NUMA", "2 nodes with memory");
    doctor_numa(tree, -EPERM, &findings);
    assert_bad("NUMA", HEALTH_DEGRADED, "2 nodes", "SYS_NICE");
    put_gpu("0000:0a:00.0", "0x030200\n", "0x10de\n", "1\n", "4-7\n");
    doctor_numa(tree, 0, &findings);
    assert_bad("GPU", HEALTH_DEGRADED, "0000:0a:00.0 on NUMA node 1", "--cpunodebind=1");
    put("/proc/self/status", "Cpus_allowed_list:\t0-7\nMems_allowed_list:\t0\n");
    doctor_numa(tree, 0, &findings);
    assert_bad("GPU", HEALTH_DEGRADED, "node 1", "--cpuset-mems");
    put("/proc/self/status", "Cpus_allowed_list:\t0-7\nMems_allowed_list:\t0-1\n");
    put_gpu("0000:0a:00.0", "0x030200\n", "0x10de\n", "-1\n", "0-7\n");
    doctor_numa(tree, 0, &findings);
    assert_bad("GPU", HEALTH_DEGRADED, "no NUMA node told", "node = N");
    put("/sys/devices/system/node/has_memory", "0\n"); /* one node: nothing can be far */
    doctor_numa(tree, -EPERM, &findings);
    ck_assert_int_eq(about("GPU", 0)->health, HEALTH_OK);
    assert_ok("NUMA", "1 node with memory");
}
END_TEST

START_TEST(cuda) {
    struct cuda_probe probe = {.built = 12040};
    doctor_cuda(tree, &probe, &findings);
    assert_ok("CUDA", "no NVIDIA device");
    put_gpu("0000:0a:00.0", "0x030200\n", "0x10de\n", "0\n", "0-3\n");
    doctor_cuda(tree, &probe, &findings);
    assert_bad("CUDA", HEALTH_BROKEN, "1 NVIDIA device, but no libcuda.so.1", "--gpus all");
    probe = (struct cuda_probe){.library = true, .version = 12080, .devices = 8, .built = 12040, .driver = "570.86.15"};
    doctor_cuda(tree, &probe, &findings);
    assert_ok("CUDA", "driver 570.86.15 for CUDA 12.8, 8 devices; libloaderd-cuda is built with CUDA 12.4");
    probe.built = 13000;
    doctor_cuda(tree, &probe, &findings);
    assert_bad("CUDA", HEALTH_BROKEN, "CUDA 12.8", "driver for CUDA 13");
    probe.built = 0;
    doctor_cuda(tree, &probe, &findings);
    assert_bad("CUDA", HEALTH_DEGRADED, "libloaderd-cuda is not built", "--with-cuda=");
    probe.init = 802;
    doctor_cuda(tree, &probe, &findings);
    assert_bad("CUDA", HEALTH_BROKEN, "driver", "nvidia-fabricmanager, and wait for it (cuInit: 802)");
    probe.init = 999;
    doctor_cuda(tree, &probe, &findings);
    assert_bad("CUDA", HEALTH_BROKEN, "driver", "nvidia-smi");
}
END_TEST

START_TEST(simd) {
    static const char turbo[] = "libjpeg-turbo 2.1.5 (SIMD)";
    put("/proc/cpuinfo", "flags\t\t: fpu sse2 avx avx2 bmi2\n");
    doctor_simd(tree, "avx2", turbo, NULL, NULL, &findings);
    assert_ok("SIMD", "avx2");
    doctor_simd(tree, "avx2", turbo, "avx2", "", &findings); /* it takes nothing away here */
    assert_ok("SIMD", "avx2");
    doctor_simd(tree, "scalar", turbo, "scalar", NULL, &findings);
    assert_bad("SIMD", HEALTH_DEGRADED, "scalar", "unset LOADERD_SIMD");
    doctor_simd(tree, "scalar", turbo, NULL, NULL, &findings);
    assert_bad("SIMD", HEALTH_DEGRADED, "scalar", "rebuild");
    doctor_simd(tree, "avx2", turbo, NULL, "1", &findings);
    assert_bad("JPEG codec", HEALTH_DEGRADED, "libjpeg", "unset JSIMD_FORCENONE");
    doctor_simd(tree, "avx2", "libjpeg-turbo 2.1.5", NULL, NULL, &findings);
    assert_bad("JPEG codec", HEALTH_DEGRADED, "libjpeg", "libjpeg62-turbo-dev");
    put("/proc/cpuinfo", "flags\t\t: fpu sse2 avx avx2 avx512f avx512bw\n");
    doctor_simd(tree, "avx2", turbo, "avx2", NULL, &findings);
    assert_bad("SIMD", HEALTH_DEGRADED, "avx2", "unset LOADERD_SIMD");
    put("/proc/cpuinfo", "flags\t\t: fpu sse2\n");
    doctor_simd(tree, "scalar", turbo, NULL, NULL, &findings);
    assert_ok("SIMD", "scalar");
}
END_TEST

/* ---- storage ---- */

START_TEST(storage) {
    struct storage_probe probe = {.path = "/data/train", .major = 259, .minor = 2, .samples = 10, .bytes = 1000};
    put("/proc/self/mountinfo", "22 27 0:21 / /proc rw - proc proc rw\n"
                                "30 1 259:2 / /data rw,relatime shared:5 - ext4 /dev/nvme0n1p2 rw\n"
                                "31 1 0:50 / /btrfs rw - btrfs /dev/sda rw\n"
                                "32 1 0:51 / / rw - overlay overlay rw\n");
    put("/sys/dev/block/259:2/queue/rotational", "0\n");
    put("/sys/dev/block/259:2/queue/scheduler", "[none] mq-deadline bfq\n");
    put("/sys/dev/block/259:2/uevent", "MAJOR=259\nMINOR=2\nDEVNAME=nvme0n1\nDEVTYPE=disk\n");
    doctor_storage(tree, &probe, &findings);
    ck_assert_str_eq(about("file system", 0)->found, "ext4 of /data/train");
    assert_ok("disk", "nvme0n1, solid state, scheduler none");
    put("/sys/dev/block/259:2/queue/scheduler", "none mq-deadline [bfq]\n");
    doctor_storage(tree, &probe, &findings);
    assert_bad("disk", HEALTH_DEGRADED, "scheduler bfq", "echo none | sudo tee /sys/block/nvme0n1/queue/scheduler");
    put("/sys/class/block/sda/queue/rotational", "1\n"); /* found by the mount's source: btrfs has devices of its own */
    put("/sys/class/block/sda/queue/scheduler", "[mq-deadline] none\n");
    put("/sys/dev/block/254:0/queue/rotational", "1\n");
    put("/sys/dev/block/254:0/uevent", "DEVNAME=vda\n");
    probe.major = 254, probe.minor = 0;
    doctor_storage(tree, &probe, &findings);
    assert_ok("disk", "vda, virtual, scheduler not told");
    probe.major = 0, probe.minor = 50;
    doctor_storage(tree, &probe, &findings);
    assert_bad("disk", HEALTH_DEGRADED, "rotating", "shuffle = chunked");
    probe.minor = 51;
    doctor_storage(tree, &probe, &findings);
    ck_assert_uint_eq(findings.count, 1);
    assert_bad("file system", HEALTH_DEGRADED, "overlay", "docker run -v");
    probe.minor = 77; /* not in mountinfo */
    doctor_storage(tree, &probe, &findings);
    assert_ok("file system", "unknown");
    probe.remote = "NFS";
    doctor_storage(tree, &probe, &findings);
    assert_ok("file system", "NFS");
    probe.whole_files = true;
    doctor_storage(tree, &probe, &findings);
    assert_bad("file system", HEALTH_DEGRADED, "NFS", "loaderctl pack /data/train");

    put("/proc/self/status", "Cpus_allowed_list:\t0-3\n");
    put("/proc/meminfo", "MemAvailable: 1000000 kB\n");
    probe.bytes = UINT64_C(1024000000);
    doctor_page_cache(tree, &probe, &findings);
    assert_ok("page cache", "1.02 GB of data, room for 1.02 GB");
    probe.bytes++;
    doctor_page_cache(tree, &probe, &findings);
    assert_bad("page cache", HEALTH_DEGRADED, "1.02 GB", "loaderctl pack --resize");
}
END_TEST

/* ---- daemons ---- */

START_TEST(daemons) {
    put("/proc/1/comm", "systemd\n");
    doctor_processes(tree, &findings);
    assert_ok("daemons", "none is running");
    put("/proc/4711/comm", "loaderd\n");
    put("/proc/self/comm", "loaderd\n"); /* no number */
    doctor_processes(tree, &findings);
    assert_ok("daemons", "1 running: pid 4711");
    struct socket_probe probe = {.path = "/run/loaderd/socket", .text = "why", .pid = 4711, .uid = 990};
    doctor_socket(&probe, &findings);
    assert_ok("socket", "/run/loaderd/socket: pid 4711 of user 990 answers");
    static const struct {
        int code;
        enum health health;
        const char *remedy;
    } table[] = {{-ECONNREFUSED, HEALTH_DEGRADED, "systemctl start loaderd"},
                 {-EACCES, HEALTH_BROKEN, "usermod -aG loaderd"},
                 {-EPROTO, HEALTH_BROKEN, "the same version"},
                 {-ETIMEDOUT, HEALTH_BROKEN, "journalctl -u loaderd"}};
    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        probe.code = table[i].code;
        doctor_socket(&probe, &findings);
        assert_bad("socket", table[i].health, "why", table[i].remedy);
    }
}
END_TEST

/* ---- output ---- */

START_TEST(report) {
    char *text = NULL;
    size_t size = 0;
    finding_add(&findings, "one", "fine \"here\"");
    ck_assert_int_eq(findings_health(&findings), HEALTH_OK);
    struct finding *f = finding_add(&findings, "two", "%d", 2);
    finding_worse(f, HEALTH_BROKEN, "much", "do %d", 3);
    finding_worse(f, HEALTH_DEGRADED, "little", "nothing"); /* the worse one stays */
    ck_assert_int_eq(findings_health(&findings), HEALTH_BROKEN);
    FILE *out = open_memstream(&text, &size);
    findings_print_json(out, &findings, "1");
    fclose(out);
    ck_assert_str_eq(text,
                     "{\"version\": \"1\", \"health\": \"broken\", \"checks\": [\n"
                     "  {\"check\": \"one\", \"health\": \"ok\", \"found\": \"fine \\\"here\\\"\", \"cost\": \"\", "
                     "\"remedy\": \"\"},\n"
                     "  {\"check\": \"two\", \"health\": \"broken\", \"found\": \"2\", \"cost\": \"much\", "
                     "\"remedy\": \"do 3\"}\n]}\n");
    free(text);
    out = open_memstream(&text, &size);
    char longest[FINDING_TEXT];
    memset(longest, 'x', sizeof longest); /* no blank to fold at */
    longest[sizeof longest - 1] = '\0';
    finding_worse(finding_add(&findings, "three", "%s", longest), HEALTH_DEGRADED, longest, "%s", longest);
    findings_print_table(out, &findings);
    fclose(out);
    ck_assert_ptr_nonnull(strstr(text, "broken    two                 2\n"
                                       "            costs             much\n"
                                       "            remedy            do 3\n"));
    ck_assert_ptr_nonnull(strstr(text, "\n1 ok, 1 degraded, 1 broken\n"));
    free(text);
    for (unsigned i = 0; i < 2 * FINDINGS_MAX; i++)
        ck_assert_ptr_nonnull(finding_add(&findings, "many", "x"));
    ck_assert_uint_eq(findings.count, FINDINGS_MAX);
}
END_TEST

/* ---- the program, where io_uring is refused ---- */

static void refuse_uring(uint32_t action) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, action),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {ARRAY_SIZE(code), code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
        _exit(77);
}

/* What `loaderctl doctor --json` prints below such a filter. */
static bool run_filtered(uint32_t action, char *ret, size_t size) {
    const char *program = getenv("LOADERCTL");
    int pipes[2], status;
    ck_assert_int_eq(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(pipes[1], STDOUT_FILENO);
        close(pipes[0]);
        close(pipes[1]);
        setenv("XDG_RUNTIME_DIR", tree, 1); /* no daemon of others there */
        refuse_uring(action);
        execl(program ? program : "./loaderctl", "loaderctl", "doctor", "--json", (char *)NULL);
        _exit(127);
    }
    close(pipes[1]);
    size_t used = 0;
    for (ssize_t n; used < size - 1 && (n = read(pipes[0], ret + used, size - 1 - used)) > 0;)
        used += (size_t)n;
    ret[used] = '\0';
    close(pipes[0]);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) != 127, "no loaderctl to run: status %d", status);
    return WEXITSTATUS(status) != 77;
}

START_TEST(program_in_a_container) {
    static char text[64 << 10];
    struct uring_probe here;
    if (!run_filtered(SECCOMP_RET_ERRNO | EPERM, text, sizeof text))
        return; /* no filters here */
    ck_assert_msg(strstr(text, "{\"check\": \"io_uring\", \"health\": \"degraded\"") != NULL, "%s", text);
    ck_assert_ptr_nonnull(strstr(text, "a seccomp filter, as containers have\""));
    ck_assert_ptr_nonnull(strstr(text, "allow io_uring_setup, io_uring_enter and io_uring_register in its profile"));
    ck_assert(run_filtered(SECCOMP_RET_ERRNO | ENOSYS, text, sizeof text));
    ck_assert_msg(strstr(text, "is refused (ENOSYS) by a seccomp filter") != NULL, "%s", text);
    /* the remedy: a filter that lets it through */
    doctor_probe_uring(&here);
    ck_assert(run_filtered(SECCOMP_RET_ALLOW, text, sizeof text));
    if (here.code == 0)
        ck_assert_msg(strstr(text, "\"io_uring\", \"health\": \"ok\", \"found\": \"present") != NULL, "%s", text);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("doctor");
    TCase *all = tcase_create("probes");
    tcase_add_checked_fixture(all, set_up, tear_down);
    tcase_set_timeout(all, 60);
    tcase_add_test(all, limits_of_the_kernel);
    tcase_add_test(all, small_files);
    tcase_add_test(all, uring);
    tcase_add_test(all, kernels);
    tcase_add_test(all, locked_memory);
    tcase_add_test(all, open_files);
    tcase_add_test(all, clocks_and_huge_pages);
    tcase_add_test(all, containers);
    tcase_add_test(all, cpus_and_memory);
    tcase_add_test(all, gpus_and_nodes);
    tcase_add_test(all, cuda);
    tcase_add_test(all, simd);
    tcase_add_test(all, storage);
    tcase_add_test(all, daemons);
    tcase_add_test(all, report);
    tcase_add_test(all, program_in_a_container);
    suite_add_tcase(suite, all);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
