/* SPDX-License-Identifier: MIT */
/*
 * topology.c: the parsers over samples of the kernel's files (cgroup v1, v2, hybrid, containers without a cgroup
 * namespace), whole trees of such files below a temporary root, and the calls on this very machine.
 */
#include "topology.h"

#include <check.h>
#include <errno.h>
#include <ftw.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/util.h"

/* ---- parsers ---- */

static unsigned count(const struct topology_set *set) {
    unsigned n = 0;
    for (uint32_t id = 0; id < TOPOLOGY_MAX_IDS; id++)
        n += topology_set_has(set, id);
    return n;
}

START_TEST(lists) {
    struct topology_set set;
    ck_assert_int_eq(topology_parse_list("0-3,8,10-11\n", 12, &set), 0);
    ck_assert_uint_eq(count(&set), 7);
    ck_assert(topology_set_has(&set, 0) && topology_set_has(&set, 3) && topology_set_has(&set, 8) &&
              topology_set_has(&set, 11));
    ck_assert(!topology_set_has(&set, 4) && !topology_set_has(&set, 9) && !topology_set_has(&set, 12));
    ck_assert(!topology_set_has(&set, TOPOLOGY_MAX_IDS) && !topology_set_has(&set, UINT32_MAX));
    ck_assert_int_eq(topology_parse_list("0-8191", 6, &set), 0);
    ck_assert_uint_eq(count(&set), 8192);
    ck_assert_int_eq(topology_parse_list("\n", 1, &set), 0); /* a node without CPUs */
    ck_assert_uint_eq(count(&set), 0);
    static const char *const bad[] = {"a", "1-", "-1", "3-1", "1,,2", "1,", "1 2", "1-2-3", "99999999999999999999"};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        ck_assert_int_eq(topology_parse_list(bad[i], strlen(bad[i]), &set), -EINVAL);
    ck_assert_int_eq(topology_parse_list("8192", 4, &set), -ERANGE);
    ck_assert_int_eq(topology_parse_list("0-99999999", 10, &set), -ERANGE);
}
END_TEST

START_TEST(status) {
    static const char text[] = "Name:\tcat\nCpus_allowed:\t14\nCpus_allowed_list:\t2,4\n"
                               "Mems_allowed:\t00000000,00000002\nMems_allowed_list:\t1\nvoluntary_ctxt_switches:\t0\n";
    struct topology_set set;
    ck_assert_int_eq(topology_parse_status(text, sizeof text - 1, "Cpus_allowed_list", &set), 0);
    ck_assert(count(&set) == 2 && topology_set_has(&set, 2) && topology_set_has(&set, 4));
    ck_assert_int_eq(topology_parse_status(text, sizeof text - 1, "Mems_allowed_list", &set), 0);
    ck_assert(count(&set) == 1 && topology_set_has(&set, 1));
    ck_assert_int_eq(topology_parse_status(text, sizeof text - 1, "Mems_allowed_lis", &set), -ENOENT);
    ck_assert_int_eq(topology_parse_status("", 0, "Name", &set), -ENOENT);
}
END_TEST

START_TEST(cpu_max) {
    static const struct {
        const char *text;
        double want; /* < 0: refused */
    } table[] = {
        {"max 100000\n", 0},
        {"200000 100000\n", 2},
        {"150000 100000\n", 1.5},
        {"5000 50000", 0.1},
        {"max\n", 0},
        {"100000\n", 1},
        {"", -1},
        {"0 100000", -1},
        {"1 0", -1},
        {"-1 100000", -1},
        {"max 100000 5\n", -1},
        {"maximum\n", -1},
        {"1000  100", -1},
        {"x", -1},
        {"99999999999999999999 1", -1},
    };
    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        double cpus = -1;
        int rc = topology_parse_cpu_max(table[i].text, strlen(table[i].text), &cpus);
        ck_assert_msg(rc == (table[i].want < 0 ? -EINVAL : 0), "%s", table[i].text);
        ck_assert_double_eq(cpus, table[i].want);
    }
}
END_TEST

START_TEST(numbers) {
    int64_t number;
    uint64_t bytes;
    ck_assert(topology_parse_number("-1\n", 3, &number) == 0 && number == -1);
    ck_assert(topology_parse_number("100000\n", 7, &number) == 0 && number == 100000);
    ck_assert_int_eq(topology_parse_number("", 0, &number), -EINVAL);
    ck_assert_int_eq(topology_parse_number("1x", 2, &number), -EINVAL);
    ck_assert_int_eq(topology_parse_number("9223372036854775808", 19, &number), -EINVAL);
    ck_assert(topology_parse_memory("max\n", 4, &bytes) == 0 && bytes == UINT64_MAX);
    ck_assert(topology_parse_memory("9223372036854771712\n", 20, &bytes) == 0 && bytes == UINT64_MAX); /* v1's "none" */
    ck_assert(topology_parse_memory("2147483648\n", 11, &bytes) == 0 && bytes == UINT64_C(2) << 30);
    ck_assert(topology_parse_memory("0\n", 2, &bytes) == 0 && bytes == 0);
    ck_assert_int_eq(topology_parse_memory("-1\n", 3, &bytes), -EINVAL);
    ck_assert_int_eq(topology_parse_memory("maxi\n", 5, &bytes), -EINVAL);
}
END_TEST

static const char cgroup_v2[] = "0::/user.slice/user-1000.slice/session-2.scope\n";
static const char cgroup_v1[] = "11:memory:/docker/0123\n10:cpuset:/docker/0123\n9:net_cls,net_prio:/docker/0123\n"
                                "4:cpu,cpuacct:/docker/0123\n1:name=systemd:/docker/0123\n";
static const char cgroup_hybrid[] = "9:name=systemd:/\n4:memory:/jobs/7\n2:cpuacct:/\n1:cpu:/jobs/7\n0::/init.scope\n";

START_TEST(cgroup_paths) {
    char path[TOPOLOGY_PATH] = "untouched";
    ck_assert_int_eq(topology_parse_cgroup(cgroup_v1, sizeof cgroup_v1 - 1, NULL, path), -ENOENT);
    ck_assert_str_eq(path, "untouched");
    ck_assert_int_eq(topology_parse_cgroup(cgroup_v2, sizeof cgroup_v2 - 1, NULL, path), 0);
    ck_assert_str_eq(path, "/user.slice/user-1000.slice/session-2.scope");
    ck_assert_int_eq(topology_parse_cgroup(cgroup_v2, sizeof cgroup_v2 - 1, "cpu", path), -ENOENT);
    ck_assert_int_eq(topology_parse_cgroup(cgroup_v1, sizeof cgroup_v1 - 1, "cpu", path), 0);
    ck_assert_str_eq(path, "/docker/0123");
    ck_assert_int_eq(topology_parse_cgroup(cgroup_hybrid, sizeof cgroup_hybrid - 1, "cpu", path), 0);
    ck_assert_str_eq(path, "/jobs/7");
    ck_assert_int_eq(topology_parse_cgroup(cgroup_hybrid, sizeof cgroup_hybrid - 1, NULL, path), 0);
    ck_assert_str_eq(path, "/init.scope");
    static const char colon[] = "0::/a:b/c\n"; /* the path is all that follows the second colon */
    ck_assert_int_eq(topology_parse_cgroup(colon, sizeof colon - 1, NULL, path), 0);
    ck_assert_str_eq(path, "/a:b/c");
    static const char *const bad[] = {"", "0", "0:", "0::", "0::relative", "10::/x", ":::"};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        ck_assert_int_eq(topology_parse_cgroup(bad[i], strlen(bad[i]), NULL, path), -ENOENT);
    char *huge = malloc(2 * TOPOLOGY_PATH);
    memset(huge, 'x', 2 * TOPOLOGY_PATH);
    memcpy(huge, "0::/", 4);
    ck_assert_int_eq(topology_parse_cgroup(huge, 2 * TOPOLOGY_PATH, NULL, path), -ENOENT);
    free(huge);
}
END_TEST

static const char mounts_v2[] = "22 27 0:21 / /proc rw,relatime shared:5 - proc proc rw\n"
                                "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
static const char mounts_v1[] =
    "741 738 0:28 /docker/0123 /sys/fs/cgroup/memory ro,nosuid master:15 - cgroup cgroup rw,memory\n"
    "744 738 0:31 /docker/0123 /sys/fs/cgroup/cpu,cpuacct ro,nosuid master:18 - cgroup cgroup rw,cpu,cpuacct\n";
static const char mounts_hybrid[] = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
                                    "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
                                    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
                                    "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

START_TEST(mounts) {
    char root[TOPOLOGY_PATH] = "untouched", point[TOPOLOGY_PATH];
    ck_assert_int_eq(topology_parse_mounts(mounts_v2, sizeof mounts_v2 - 1, "cpu", root, point), -ENOENT);
    ck_assert_str_eq(root, "untouched");
    ck_assert_int_eq(topology_parse_mounts(mounts_v2, sizeof mounts_v2 - 1, NULL, root, point), 0);
    ck_assert_str_eq(root, "/");
    ck_assert_str_eq(point, "/sys/fs/cgroup");
    ck_assert_int_eq(topology_parse_mounts(mounts_v1, sizeof mounts_v1 - 1, "cpu", root, point), 0);
    ck_assert_str_eq(root, "/docker/0123");
    ck_assert_str_eq(point, "/sys/fs/cgroup/cpu,cpuacct");
    ck_assert_int_eq(topology_parse_mounts(mounts_hybrid, sizeof mounts_hybrid - 1, "memory", root, point), 0);
    ck_assert_str_eq(point, "/sys/fs/cgroup/memory");
    static const char escaped[] = "1 2 0:3 /a\\134b /mnt/my\\040groups rw - cgroup2 c rw\n";
    ck_assert_int_eq(topology_parse_mounts(escaped, sizeof escaped - 1, NULL, root, point), 0);
    ck_assert_str_eq(root, "/a\\b");
    ck_assert_str_eq(point, "/mnt/my groups");
    static const char *const bad[] = {"",
                                      "1 2 0:3 / /m rw",
                                      "1 2 0:3 / /m rw -",
                                      "1 2 0:3 / m rw - cgroup2 c rw",
                                      "1 2 0:3 / /m\\000 rw - cgroup2 c rw",
                                      "- cgroup2"};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        ck_assert_int_eq(topology_parse_mounts(bad[i], strlen(bad[i]), NULL, root, point), -ENOENT);
    for (size_t cut = 0; cut < sizeof mounts_v1; cut++) /* no cut makes it read beyond: run under ASan */
        (void)topology_parse_mounts(mounts_v1, cut, "cpu", root, point);
}
END_TEST

/* ---- whole trees ---- */

static char tree[64];
static struct topology topology;

static void set_up(void) {
    snprintf(tree, sizeof tree, "/tmp/check_topology.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(tree));
    memset(&topology, 0, sizeof topology);
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *walk) {
    (void)info;
    (void)type;
    (void)walk;
    return remove(path);
}

static void tear_down(void) {
    topology_deinit(&topology);
    topology_deinit(&topology);
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

static void read_tree(void) {
    struct diag diag = DIAG_INIT;
    topology_deinit(&topology);
    ck_assert_msg(topology_read(tree, &topology, &diag) == 0, "%s", diag.text);
}

static void assert_file(const char *file, const char *want) {
    ck_assert_str_eq(file, want);
}

START_TEST(no_cgroup_at_all) {
    put("/proc/self/status", "Cpus_allowed_list:\t0-3\nMems_allowed_list:\t0\n");
    read_tree();
    ck_assert_uint_eq(topology.cpus, 4);
    ck_assert_uint_eq(topology.nodes, 0); /* no sysfs: unknown */
    ck_assert_int_eq(topology.cpu[0].node, -1);
    ck_assert_double_eq(topology.quota, 0);
    ck_assert_uint_eq(topology.memory_limit, UINT64_MAX);
    ck_assert_uint_eq(topology_workers(&topology), 4);
    char text[256];
    ck_assert_int_gt(topology_describe(&topology, text, sizeof text), 0);
    ck_assert(strncmp(text, "4 CPUs allowed, no CPU quota, 0 memory nodes, cgroup memory unlimited, ", 71) == 0);
    ck_assert_int_eq(topology_describe(&topology, text, 20), -ENOSPC);
    put("/proc/self/status", "Name:\tx\n");
    struct diag diag = DIAG_INIT;
    struct topology other;
    ck_assert_int_eq(topology_read(tree, &other, &diag), -ENODATA);
    ck_assert_ptr_nonnull(strstr(diag.text, "which CPUs"));
}
END_TEST

START_TEST(nested_v2) {
    put("/proc/self/status", "Cpus_allowed_list:\t0-15\nMems_allowed_list:\t0\n");
    put("/proc/self/cgroup", cgroup_v2);
    put("/proc/self/mountinfo", mounts_v2);
    put("/sys/fs/cgroup/user.slice/cpu.max", "250000 100000\n"); /* the tightest is in the middle */
    put("/sys/fs/cgroup/user.slice/user-1000.slice/cpu.max", "max 100000\n");
    put("/sys/fs/cgroup/user.slice/user-1000.slice/session-2.scope/cpu.max", "400000 100000\n");
    put("/sys/fs/cgroup/user.slice/memory.max", "max\n");
    put("/sys/fs/cgroup/user.slice/user-1000.slice/memory.max", "1073741824\n");
    put("/sys/fs/cgroup/user.slice/user-1000.slice/session-2.scope/memory.max", "2147483648\n");
    read_tree();
    ck_assert_double_eq(topology.quota, 2.5);
    assert_file(topology.quota_file, "/sys/fs/cgroup/user.slice/cpu.max");
    ck_assert_uint_eq(topology.memory_limit, UINT64_C(1) << 30);
    assert_file(topology.memory_file, "/sys/fs/cgroup/user.slice/user-1000.slice/memory.max");
    ck_assert_uint_eq(topology_workers(&topology), 3); /* 2.5 rounds up */
    put("/sys/fs/cgroup/cpu.max", "50000 100000\n");   /* the mount point itself counts: a container's own cgroup */
    read_tree();
    ck_assert_double_eq(topology.quota, 0.5);
    assert_file(topology.quota_file, "/sys/fs/cgroup/cpu.max");
    ck_assert_uint_eq(topology_workers(&topology), 1);
    put("/sys/fs/cgroup/cpu.max", "rubbish\n");
    read_tree();
    ck_assert_double_eq(topology.quota, 2.5);
}
END_TEST

/* A container: mounted is its own cgroup; /proc/self/cgroup shows the host's path, "/" or one outside. */
START_TEST(containers) {
    static const char *const v2_paths[] = {"0::/\n", "0::/../../x\n", "0::/docker/0123\n", "0::/elsewhere\n", ""};
    put("/proc/self/status", "Cpus_allowed_list:\t0-15\n");
    put("/proc/self/mountinfo", "30 23 0:26 /docker/0123 /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
    put("/sys/fs/cgroup/cpu.max", "200000 100000\n");
    for (size_t i = 0; i < ARRAY_SIZE(v2_paths); i++) {
        put("/proc/self/cgroup", v2_paths[i]);
        read_tree();
        ck_assert_double_eq(topology.quota, 2);
        ck_assert_uint_eq(topology_workers(&topology), 2);
    }
    put("/proc/self/cgroup", "0::/docker/0123/inner\n");
    put("/sys/fs/cgroup/inner/cpu.max", "100000 100000\n");
    read_tree();
    ck_assert_double_eq(topology.quota, 1);
    put("/proc/self/cgroup", "0::/docker/01234\n"); /* a prefix of the name only: not below */
    read_tree();
    ck_assert_double_eq(topology.quota, 2);
}
END_TEST

START_TEST(v1) {
    put("/proc/self/status", "Cpus_allowed_list:\t0-15\n");
    put("/proc/self/cgroup", cgroup_v1);
    put("/proc/self/mountinfo", mounts_v1);
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "150000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n");
    read_tree();
    ck_assert_double_eq(topology.quota, 1.5);
    assert_file(topology.quota_file, "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us");
    ck_assert_uint_eq(topology_workers(&topology), 2);
    ck_assert_uint_eq(topology.memory_limit, UINT64_C(512) << 20);
    char text[512];
    ck_assert_int_gt(topology_describe(&topology, text, sizeof text), 0);
    ck_assert_ptr_nonnull(
        strstr(text, "16 CPUs allowed, CPU quota 1.50 (/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us)"));
    ck_assert_ptr_nonnull(strstr(text, "cgroup memory 512 MiB (/sys/fs/cgroup/memory/memory.limit_in_bytes)"));
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    read_tree();
    ck_assert_double_eq(topology.quota, 0);
    ck_assert_uint_eq(topology.memory_limit, UINT64_MAX);
}
END_TEST

START_TEST(hybrid_takes_the_tightest) {
    put("/proc/self/status", "Cpus_allowed_list:\t0-15\n");
    put("/proc/self/cgroup", cgroup_hybrid);
    put("/proc/self/mountinfo", mounts_hybrid);
    put("/sys/fs/cgroup/cpu/jobs/cpu.cfs_quota_us", "800000\n");
    put("/sys/fs/cgroup/cpu/jobs/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/cpu/jobs/7/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu/jobs/7/cpu.cfs_period_us", "100000\n");
    read_tree();
    ck_assert_double_eq(topology.quota, 8);
    assert_file(topology.quota_file, "/sys/fs/cgroup/cpu/jobs/cpu.cfs_quota_us");
    put("/sys/fs/cgroup/unified/init.scope/cpu.max", "300000 100000\n");
    read_tree();
    ck_assert_double_eq(topology.quota, 3);
    assert_file(topology.quota_file, "/sys/fs/cgroup/unified/init.scope/cpu.max");
}
END_TEST

/* memory.high slows a cgroup down before memory.max kills: the tighter of both, on whatever level. */
START_TEST(memory_high) {
    put("/proc/self/status", "Cpus_allowed_list:\t0-15\n");
    put("/proc/self/cgroup", "0::/a/b\n");
    put("/proc/self/mountinfo", mounts_v2);
    put("/sys/fs/cgroup/a/memory.max", "4294967296\n");
    put("/sys/fs/cgroup/a/memory.high", "max\n");
    put("/sys/fs/cgroup/a/b/memory.max", "8589934592\n");
    put("/sys/fs/cgroup/a/b/memory.high", "1073741824\n");
    read_tree();
    ck_assert_uint_eq(topology.memory_limit, UINT64_C(1) << 30);
    assert_file(topology.memory_file, "/sys/fs/cgroup/a/b/memory.high");
    put("/sys/fs/cgroup/a/b/memory.high", "max\n");
    read_tree();
    ck_assert_uint_eq(topology.memory_limit, UINT64_C(4) << 30);
    assert_file(topology.memory_file, "/sys/fs/cgroup/a/memory.max");
}
END_TEST

/* Files that say nothing sensible limit nothing, and one bad level does not hide the others. */
START_TEST(broken_files) {
    put("/proc/self/status", "Cpus_allowed_list:\t0-7\nMems_allowed_list:\tx\n");
    put("/proc/self/cgroup", "0::/a/b\n3:cpu:/a\n2:memory:/a\nrubbish\n");
    put("/proc/self/mountinfo",
        "rubbish\n31 23 0:26 / /cg rw - cgroup2 cgroup2 rw\n"
        "32 23 0:27 / /cpu rw - cgroup cgroup rw,cpu\n33 23 0:28 / /mem rw - cgroup c rw,memory\n");
    put("/cg/a/b/cpu.max", "\n");
    put("/cg/a/b/memory.max", "-5\n");
    put("/cg/a/cpu.max", "0 100000\n");
    put("/cg/a/memory.max", "99999999999999999999999\n");
    put("/cpu/a/cpu.cfs_quota_us", "200000\n"); /* no period beside it */
    put("/mem/a/memory.limit_in_bytes", "a lot\n");
    put("/sys/devices/system/node/online", "0-1\n");
    put("/sys/devices/system/node/has_memory", "0\n");
    put("/sys/devices/system/node/node0/cpulist", "0-3,\n"); /* not a list: nothing is known of these CPUs */
    put("/sys/devices/system/node/node1/cpulist", "4-7\n");
    read_tree();
    ck_assert_double_eq(topology.quota, 0);
    ck_assert_uint_eq(topology.memory_limit, UINT64_MAX);
    ck_assert_uint_eq(topology_workers(&topology), 8);
    ck_assert_uint_eq(topology.nodes, 1);
    ck_assert_int_eq(topology.cpu[0].node, -1);
    ck_assert(topology.cpu[4].node == 1 && topology.cpu[4].memory_node == 0);
    put("/cpu/a/cpu.cfs_period_us", "0\n");
    read_tree();
    ck_assert_double_eq(topology.quota, 0);
    put("/cpu/a/cpu.cfs_period_us", "100000\n");
    read_tree();
    ck_assert_double_eq(topology.quota, 2);
}
END_TEST

/* A CPU that was taken offline is allowed still, as the kernel's list has it, but no node's; a node may be offline, too. */
START_TEST(offline) {
    put("/proc/self/status", "Cpus_allowed_list:\t0-3\nMems_allowed_list:\t0-1\n");
    put("/sys/devices/system/node/online", "0\n");
    put("/sys/devices/system/node/has_memory", "0\n");
    put("/sys/devices/system/node/node0/cpulist", "0,2\n");
    put("/sys/devices/system/node/node1/cpulist", "1,3\n"); /* what an offline node left behind */
    read_tree();
    ck_assert_uint_eq(topology.nodes, 1);
    ck_assert(topology.cpu[0].node == 0 && topology.cpu[1].node == -1 && topology.cpu[2].node == 0);
    ck_assert_int_eq(topology.cpu[3].memory_node, -1);
}
END_TEST

static void put_cache(unsigned cpu, unsigned index, const char *type, unsigned level, const char *size,
                      const char *cpus) {
    char path[120], line[64];
    const char *const name[] = {"type", "level", "size", "shared_cpu_list"};
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%u/cache/index%u/%s", cpu, index, name[i]);
        if (i == 1)
            snprintf(line, sizeof line, "%u\n", level);
        else
            snprintf(line, sizeof line, "%s\n", i == 0 ? type : i == 2 ? size : cpus);
        put(path, line);
    }
}

/* Two sockets whose CPUs share 32 MiB each, of which we may use three CPUs; one more that tells nothing of its caches. */
START_TEST(caches) {
    static const char *const own[] = {"0", "1", "2", "3"};
    put("/proc/self/status", "Cpus_allowed_list:\t1-3,9\nMems_allowed_list:\t0-1\n");
    put("/sys/devices/system/node/online", "0-1\n");
    put("/sys/devices/system/node/has_memory", "0-1\n");
    put("/sys/devices/system/node/node0/cpulist", "0-1\n");
    put("/sys/devices/system/node/node1/cpulist", "2-3,9\n");
    for (unsigned cpu = 1; cpu <= 3; cpu++) {
        put_cache(cpu, 0, "Data", 1, "32K", own[cpu]);
        put_cache(cpu, 1, "Instruction", 1, "64K", own[cpu]);
        put_cache(cpu, 2, "Unified", 2, "1024K", own[cpu]);
        put_cache(cpu, 3, "Unified", 3, "32768K", cpu < 2 ? "0-1" : "2-3");
    }
    read_tree();
    ck_assert_uint_eq(topology_cache(&topology, 0), 32u << 20);
    ck_assert_uint_eq(topology_cache(&topology, 1), 32u << 20);
    ck_assert_uint_eq(topology_cache(&topology, -1), 64u << 20);
    ck_assert_uint_eq(topology.cpu[2].cache, 0);
    put_cache(3, 3, "Unified", 3, "many", "2-3"); /* not a size: the level below counts */
    put_cache(2, 3, "Unified", 3, "many", "2-3");
    read_tree();
    ck_assert_uint_eq(topology_cache(&topology, 1), 2u << 20);
}
END_TEST

START_TEST(processor) {
    static const char stat[] = "4242 (a ) b (c) S 1 4242 4242 0 -1 4194304 96 0 0 0 0 0 0 0 20 0 1 0 3370 3055616 224 "
                               "18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 37 0 0 0 0 0 0\n";
    uint32_t cpu = 0;
    ck_assert_int_eq(topology_parse_processor(stat, sizeof stat - 1, &cpu), 0);
    ck_assert_uint_eq(cpu, 37);
    ck_assert_int_eq(topology_parse_processor(stat, strstr(stat, " 37 ") - stat + 3, &cpu), 0);
    for (size_t n = 0; n <= (size_t)(strstr(stat, " 37 ") - stat); n++)
        ck_assert_int_eq(topology_parse_processor(stat, n, &cpu), -EINVAL);
    ck_assert_int_eq(topology_parse_processor("no name", 7, &cpu), -EINVAL);

    struct topology_cpu cpus[64];
    struct topology two = {.cpus = 64, .cpu = cpus, .nodes = 2};
    for (uint32_t i = 0; i < 64; i++)
        cpus[i] = (struct topology_cpu){i, 5, 5, 0};
    if (sysconf(_SC_NPROCESSORS_CONF) <= 64)
        ck_assert_int_eq(topology_process_node(&two, getpid()), 5);
    ck_assert_int_eq(topology_process_node(&two, 0), -1); /* a process of another namespace */
    two.nodes = 1;
    ck_assert_int_eq(topology_process_node(&two, getpid()), -1);
}
END_TEST

/* taskset -c 2,4; nodes 0 (CPUs 0-2), 2 (no memory, CPUs 3-4), 5 and 8 (memory only); Mems_allowed 5,8. */
START_TEST(sparse_nodes) {
    put("/proc/self/status", "Cpus_allowed_list:\t2,4\nMems_allowed_list:\t5,8\n");
    put("/sys/devices/system/node/online", "0,2,5,8\n");
    put("/sys/devices/system/node/has_memory", "0,5,8\n");
    put("/sys/devices/system/node/node0/cpulist", "0-2\n");
    put("/sys/devices/system/node/node0/distance", "10 20 17 28\n");
    put("/sys/devices/system/node/node2/cpulist", "3-4\n");
    put("/sys/devices/system/node/node2/distance", "20 10 28 17\n");
    put("/sys/devices/system/node/node5/cpulist", "\n");
    put("/sys/devices/system/node/node5/distance", "17 28 10 28\n");
    put("/sys/devices/system/node/node8/cpulist", "\n");
    read_tree();
    ck_assert_uint_eq(topology.cpus, 2);
    ck_assert_uint_eq(topology.nodes, 2);
    ck_assert(topology_set_has(&topology.node, 5) && topology_set_has(&topology.node, 8));
    ck_assert(topology.cpu[0].id == 2 && topology.cpu[0].node == 0 && topology.cpu[0].memory_node == 5);
    ck_assert(topology.cpu[1].id == 4 && topology.cpu[1].node == 2 && topology.cpu[1].memory_node == 8);
    put("/proc/self/status", "Cpus_allowed_list:\t2,4\nMems_allowed_list:\t0,5,8\n");
    read_tree();
    ck_assert_uint_eq(topology.nodes, 3);
    ck_assert_int_eq(topology.cpu[0].memory_node, 0); /* its own */
    ck_assert_int_eq(topology.cpu[1].memory_node, 8);
    put("/sys/devices/system/node/node2/distance", "rubbish\n"); /* unknown distances: still a node that has memory */
    read_tree();
    ck_assert(topology_set_has(&topology.node, (uint32_t)topology.cpu[1].memory_node));
}
END_TEST

START_TEST(worker_counts) {
    static const struct {
        double quota;
        uint32_t cpus, want;
    } table[] = {{0, 8, 8},    {16, 8, 8},    {8, 8, 8},    {7.6, 8, 8}, {2, 16, 2},
                 {1.5, 16, 2}, {1.49, 16, 1}, {0.1, 16, 1}, {2.5, 2, 2}, {0, 1, 1}};
    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        struct topology some = {.cpus = table[i].cpus, .quota = table[i].quota};
        ck_assert_uint_eq(topology_workers(&some), table[i].want);
    }
}
END_TEST

/* Each CPU once before any is twice, evenly spread; only allowed ones. */
START_TEST(worker_cpus) {
    struct topology_cpu cpu[12];
    for (uint32_t n = 1; n <= ARRAY_SIZE(cpu); n++) {
        struct topology some = {.cpus = n, .cpu = cpu};
        for (uint32_t workers = 1; workers <= 30; workers++) {
            unsigned used[12] = {0};
            for (uint32_t i = 0; i < workers; i++) {
                const struct topology_cpu *one = topology_worker_cpu(&some, i, workers);
                ck_assert(one >= cpu && one < cpu + n);
                used[one - cpu]++;
            }
            for (uint32_t i = 0; i < n; i++) {
                ck_assert_uint_le(used[i], (workers + n - 1) / n);
                ck_assert_uint_ge(used[i], workers / n);
            }
        }
    }
    struct topology two_nodes = {.cpus = 12, .cpu = cpu};
    ck_assert_ptr_eq(topology_worker_cpu(&two_nodes, 0, 2), cpu);
    ck_assert_ptr_eq(topology_worker_cpu(&two_nodes, 1, 2), cpu + 6);
}
END_TEST

/* ---- this machine ---- */

/* What /proc/thread-self says, read by hand. */
static void assert_status_line(const char *field, const char *want) {
    char line[256], name[64], value[128];
    FILE *file = fopen("/proc/thread-self/status", "r");
    ck_assert_ptr_nonnull(file);
    bool found = false;
    while (!found && fgets(line, sizeof line, file))
        found = sscanf(line, "%63[^:]:\t%127[^\n]", name, value) == 2 && strcmp(name, field) == 0;
    fclose(file);
    ck_assert(found);
    ck_assert_str_eq(value, want);
}

static void *pin_each(void *argument) {
    struct topology *here = argument;
    for (uint32_t i = 0; i < here->cpus; i++) {
        char want[16];
        ck_assert_int_eq(topology_pin(here->cpu[i].id), 0);
        snprintf(want, sizeof want, "%u", here->cpu[i].id);
        assert_status_line("Cpus_allowed_list", want);
        ck_assert_int_eq(sched_getcpu(), (int)here->cpu[i].id);
    }
    ck_assert_int_eq(topology_batch(), 0);
    ck_assert_int_eq(sched_getscheduler(0), SCHED_BATCH);
    return NULL;
}

START_TEST(this_machine) {
    struct diag diag = DIAG_INIT;
    ck_assert_msg(topology_read("", &topology, &diag) == 0, "%s", diag.text);
    cpu_set_t set;
    ck_assert_int_eq(sched_getaffinity(0, sizeof set, &set), 0);
    ck_assert_int_eq((int)topology.cpus, CPU_COUNT(&set));
    for (uint32_t i = 0; i < topology.cpus; i++)
        ck_assert(CPU_ISSET(topology.cpu[i].id, &set));
    ck_assert_uint_ge(topology_workers(&topology), 1);
    ck_assert_uint_le(topology_workers(&topology), topology.cpus);
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, pin_each, &topology), 0);
    pthread_join(thread, NULL);
    ck_assert_int_eq(topology_pin(TOPOLOGY_MAX_IDS), -EINVAL);
    ck_assert_int_eq(topology_pin(TOPOLOGY_MAX_IDS - 1), -EINVAL); /* surely absent */
    cpu_set_t after;
    ck_assert_int_eq(sched_getaffinity(0, sizeof after, &after), 0);
    ck_assert(CPU_EQUAL(&set, &after)); /* pinning touched its own thread only */
    cpu_set_t one;                      /* a thread that may use less sees less */
    CPU_ZERO(&one);
    CPU_SET(topology.cpu[topology.cpus - 1].id, &one);
    ck_assert_int_eq(sched_setaffinity(0, sizeof one, &one), 0);
    struct topology less;
    ck_assert_int_eq(topology_read("", &less, &diag), 0);
    ck_assert_uint_eq(less.cpus, 1);
    ck_assert_uint_eq(less.cpu[0].id, topology.cpu[topology.cpus - 1].id);
    topology_deinit(&less);
    ck_assert_int_eq(sched_setaffinity(0, sizeof set, &set), 0);
}
END_TEST

START_TEST(binding_memory) {
    struct diag diag = DIAG_INIT;
    const size_t size = 64 * 4096;
    ck_assert_msg(topology_read("", &topology, &diag) == 0, "%s", diag.text);
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(memory, MAP_FAILED);
    int node = topology.cpu[0].memory_node, rc = topology_bind_memory(memory, size, node);
    ck_assert_int_eq(topology_bind_memory(memory, size, -1), 0);
    ck_assert_int_eq(topology_bind_memory(memory, 0, 0), 0);
    ck_assert_int_eq(topology_bind_memory(memory, size, 1 << 20), -EINVAL);
    if (rc == -EPERM || rc == -ENOSYS || node < 0) {
        fprintf(stderr, "check_topology: memory binding is not possible here (%s); placement not checked\n",
                node < 0 ? "no node known" : strerror(-rc));
        ck_assert_int_eq(topology_memory_refused(), node < 0 ? 0 : rc);
    } else {
        ck_assert_int_eq(rc, 0);
        ck_assert_int_eq(topology_probe_memory(&topology), 0);
        memset(memory, 1, size);
        int got = topology_node_of(memory);
        if (got >= 0)
            ck_assert_int_eq(got, node);
        ck_assert_int_lt(topology_bind_memory(memory, size, 1023),
                         0); /* a node that is not there: an error, no crash */
    }
    munmap(memory, size);
}
END_TEST

/* What a container without SYS_NICE does: mbind and get_mempolicy answer EPERM. False where seccomp is lacking. */
static bool forbid_memory_policy(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mbind, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_get_mempolicy, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = ARRAY_SIZE(code), .filter = code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* Case NUM-01: it goes on, says so in one line, and `status` can tell; pinning is not affected. */
static int under_seccomp(int error) {
    static char memory[4096] __attribute__((aligned(4096)));
    if (dup2(error, STDERR_FILENO) < 0 || !forbid_memory_policy())
        return 77;
    struct topology two = {.nodes = 2, .node = {{3}}};
    bool good = topology_memory_refused() == 0 && topology_probe_memory(&two) == -EPERM;
    good = good && topology_memory_refused() == -EPERM;
    for (int i = 0; i < 3; i++)
        good = good && topology_bind_memory(memory, sizeof memory, 0) == -EPERM && topology_node_of(memory) == -EPERM;
    return good && topology_memory_refused() == -EPERM && topology_pin((uint32_t)sched_getcpu()) == 0 ? 0 : 1;
}

START_TEST(binding_forbidden) {
    int ends[2], state;
    char text[1024] = "";
    ck_assert_int_eq(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        log_init("check_topology", LOG_WARNING);
        _exit(under_seccomp(ends[1]));
    }
    close(ends[1]);
    ck_assert_int_eq(waitpid(child, &state, 0), child);
    ssize_t n = read(ends[0], text, sizeof text - 1);
    close(ends[0]);
    ck_assert(WIFEXITED(state));
    if (WEXITSTATUS(state) == 77) {
        fprintf(stderr, "check_topology: seccomp filters are not possible here; binding_forbidden skipped\n");
        return;
    }
    ck_assert_int_eq(WEXITSTATUS(state), 0);
    ck_assert_int_gt(n, 0);
    ck_assert_ptr_nonnull(strstr(text, "memory binding unavailable (EPERM)"));
    ck_assert_ptr_eq(strchr(text, '\n'), text + n - 1); /* one line */
}
END_TEST

int main(void) {
    log_init("check_topology", LOG_ERROR);
    Suite *suite = suite_create("topology");
    TCase *parsers = tcase_create("parsers"), *trees = tcase_create("trees"), *machine = tcase_create("machine");
    tcase_add_test(parsers, lists);
    tcase_add_test(parsers, status);
    tcase_add_test(parsers, cpu_max);
    tcase_add_test(parsers, numbers);
    tcase_add_test(parsers, cgroup_paths);
    tcase_add_test(parsers, mounts);
    tcase_add_test(parsers, worker_counts);
    tcase_add_test(parsers, worker_cpus);
    suite_add_tcase(suite, parsers);
    tcase_add_checked_fixture(trees, set_up, tear_down);
    tcase_add_test(trees, no_cgroup_at_all);
    tcase_add_test(trees, nested_v2);
    tcase_add_test(trees, containers);
    tcase_add_test(trees, v1);
    tcase_add_test(trees, hybrid_takes_the_tightest);
    tcase_add_test(trees, memory_high);
    tcase_add_test(trees, broken_files);
    tcase_add_test(trees, offline);
    tcase_add_test(trees, caches);
    tcase_add_test(trees, processor);
    tcase_add_test(trees, sparse_nodes);
    suite_add_tcase(suite, trees);
    tcase_add_checked_fixture(machine, set_up, tear_down);
    tcase_add_test(machine, this_machine);
    tcase_add_test(machine, binding_memory);
    tcase_add_test(machine, binding_forbidden);
    suite_add_tcase(suite, machine);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
