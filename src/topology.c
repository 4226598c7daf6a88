/* SPDX-License-Identifier: MIT */
/*
 * CPUs, memory nodes and limits of this process: see topology.h.
 *
 * Quotas are looked for in every hierarchy that is mounted (v2, v1, or both in a hybrid system) and on every level from
 * our own cgroup up to the mount point, because the kernel applies them all: the tightest counts. Inside a container
 * the mount point is usually the container's own cgroup, and the path in /proc/self/cgroup may not lie below it.
 *
 * libnuma is not used: all that it would add is a line of sysfs, and it writes to stderr where its calls are forbidden.
 * Nothing here is on the data path; it keeps no state but whether memory binding was refused.
 */
#include "topology.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "base/log.h"
#include "base/util.h"

#define MAX_FILE_BYTES (UINT64_C(4) << 20)  /* mountinfo of a node with thousands of containers */
#define MAX_NODES 1024u                     /* of a node mask: MAX_NUMNODES of the largest kernels */
#define MOST_CACHES 16u                     /* of a CPU: two of the first level, and one each above */
#define NO_MEMORY_LIMIT (UINT64_C(1) << 62) /* v1 writes LONG_MAX rounded down to a page for "none" */

static void set_add(struct topology_set *set, uint32_t id) {
    set->word[id / 64] |= UINT64_C(1) << (id % 64);
}

/* ---- parsers ---- */

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static void trim(const char **text, size_t *length) {
    while (*length > 0 && is_blank(**text)) {
        ++*text;
        --*length;
    }
    while (*length > 0 && is_blank((*text)[*length - 1]))
        --*length;
}

/* Digits at *at: false where there are none or the number does not fit. */
static bool take_number(const char **at, const char *end, uint64_t *ret) {
    const char *start = *at;
    uint64_t value = 0;
    for (; *at < end && **at >= '0' && **at <= '9'; ++*at)
        if (!mul_u64(value, 10, &value) || !add_u64(value, (uint64_t)(**at - '0'), &value))
            return false;
    if (*at == start)
        return false;
    *ret = value;
    return true;
}

int topology_parse_list(const char *text, size_t length, struct topology_set *ret) {
    struct topology_set set = {{0}};
    trim(&text, &length);
    const char *end = text + length;
    while (text < end) {
        uint64_t first, last;
        if (!take_number(&text, end, &first))
            return -EINVAL;
        last = first;
        if (text < end && *text == '-') {
            text++;
            if (!take_number(&text, end, &last) || last < first)
                return -EINVAL;
        }
        if (last >= TOPOLOGY_MAX_IDS)
            return -ERANGE;
        for (uint64_t id = first; id <= last; id++)
            set_add(&set, (uint32_t)id);
        if (text == end)
            break;
        if (*text++ != ',' || text == end)
            return -EINVAL;
    }
    *ret = set;
    return 0;
}

/* The next line of a text, without its line feed; false at the end. */
static bool next_line(const char **at, const char *end, const char **ret_line, size_t *ret_length) {
    if (*at >= end)
        return false;
    const char *feed = memchr(*at, '\n', (size_t)(end - *at));
    const char *stop = feed ? feed : end;
    *ret_line = *at;
    *ret_length = (size_t)(stop - *at);
    *at = stop + 1;
    return true;
}

int topology_parse_status(const char *text, size_t length, const char *field, struct topology_set *ret) {
    const char *end = text + length, *line;
    size_t name = strlen(field), n;
    while (next_line(&text, end, &line, &n))
        if (n > name && memcmp(line, field, name) == 0 && line[name] == ':')
            return topology_parse_list(line + name + 1, n - name - 1, ret);
    return -ENOENT;
}

int topology_parse_cpu_max(const char *text, size_t length, double *ret) {
    trim(&text, &length);
    const char *end = text + length;
    uint64_t quota = 0, period = 100000;
    bool none = length >= 3 && memcmp(text, "max", 3) == 0;
    if (none)
        text += 3;
    else if (!take_number(&text, end, &quota) || quota == 0)
        return -EINVAL;
    if (text < end && (*text++ != ' ' || !take_number(&text, end, &period) || period == 0))
        return -EINVAL;
    if (text != end)
        return -EINVAL;
    *ret = none ? 0 : (double)quota / (double)period;
    return 0;
}

int topology_parse_number(const char *text, size_t length, int64_t *ret) {
    trim(&text, &length);
    const char *end = text + length;
    uint64_t value;
    bool minus = length > 0 && *text == '-';
    text += minus;
    if (!take_number(&text, end, &value) || text != end || value > INT64_MAX)
        return -EINVAL;
    *ret = minus ? -(int64_t)value : (int64_t)value;
    return 0;
}

int topology_parse_memory(const char *text, size_t length, uint64_t *ret) {
    trim(&text, &length);
    const char *end = text + length;
    uint64_t value = UINT64_MAX;
    bool none = length == 3 && memcmp(text, "max", 3) == 0;
    if (!none && (!take_number(&text, end, &value) || text != end))
        return -EINVAL;
    *ret = value >= NO_MEMORY_LIMIT ? UINT64_MAX : value;
    return 0;
}

/* Is `word` one of the comma-separated words? */
static bool has_word(const char *list, size_t length, const char *word) {
    size_t wanted = strlen(word);
    for (const char *end = list + length; list <= end;) {
        const char *comma = memchr(list, ',', (size_t)(end - list));
        const char *stop = comma ? comma : end;
        if ((size_t)(stop - list) == wanted && memcmp(list, word, wanted) == 0)
            return true;
        list = stop + 1;
    }
    return false;
}

int topology_parse_cgroup(const char *text, size_t length, const char *controller, char ret_path[TOPOLOGY_PATH]) {
    const char *end = text + length, *line;
    size_t n;
    while (next_line(&text, end, &line, &n)) { /* HIERARCHY:CONTROLLERS:PATH */
        const char *first = memchr(line, ':', n);
        const char *second = first ? memchr(first + 1, ':', n - (size_t)(first + 1 - line)) : NULL;
        if (!second)
            continue;
        size_t words = (size_t)(second - first - 1), path = n - (size_t)(second + 1 - line);
        bool ours =
            controller ? has_word(first + 1, words, controller) : words == 0 && first == line + 1 && *line == '0';
        if (!ours || path == 0 || path >= TOPOLOGY_PATH || second[1] != '/' || memchr(second, '\0', path + 1))
            continue;
        memcpy(ret_path, second + 1, path);
        ret_path[path] = '\0';
        return 0;
    }
    return -ENOENT;
}

struct word {
    const char *text;
    size_t length;
};

static bool word_is(struct word word, const char *text) {
    return strlen(text) == word.length && memcmp(word.text, text, word.length) == 0;
}

/* Splits a line at single blanks; the count, at most `most`. */
static unsigned split(const char *line, size_t length, struct word *ret, unsigned most) {
    unsigned count = 0;
    const char *end = line + length;
    while (line < end && count < most) {
        const char *blank = memchr(line, ' ', (size_t)(end - line));
        const char *stop = blank ? blank : end;
        ret[count++] = (struct word){line, (size_t)(stop - line)};
        line = stop + 1;
    }
    return count;
}

static bool is_octal(char c) {
    return c >= '0' && c <= '7';
}

/* A path of mountinfo: blank, tab, line feed and backslash are written as \ooo. */
static bool unescape(struct word from, char ret[TOPOLOGY_PATH]) {
    size_t n = 0;
    for (size_t i = 0; i < from.length; n++) {
        const char *c = from.text + i;
        bool escaped = *c == '\\' && from.length - i >= 4 && is_octal(c[1]) && is_octal(c[2]) && is_octal(c[3]);
        char plain = escaped ? (char)((c[1] - '0') << 6 | (c[2] - '0') << 3 | (c[3] - '0')) : *c;
        if (n == TOPOLOGY_PATH - 1 || plain == '\0')
            return false;
        ret[n] = plain;
        i += escaped ? 4 : 1;
    }
    ret[n] = '\0';
    return n > 0 && ret[0] == '/';
}

int topology_parse_mounts(const char *text, size_t length, const char *controller, char ret_root[TOPOLOGY_PATH],
                          char ret_point[TOPOLOGY_PATH]) {
    const char *end = text + length, *line;
    size_t n;
    while (next_line(&text, end, &line, &n)) { /* ID PARENT DEVICE ROOT POINT OPTIONS [TAGS] - TYPE SOURCE SUPER */
        struct word word[32];
        char root[TOPOLOGY_PATH], point[TOPOLOGY_PATH];
        unsigned words = split(line, n, word, ARRAY_SIZE(word)), dash = 6;
        while (dash < words && !word_is(word[dash], "-"))
            dash++;
        if (dash + 1 >= words || !word_is(word[dash + 1], controller ? "cgroup" : "cgroup2"))
            continue;
        if (controller && (dash + 3 >= words || !has_word(word[dash + 3].text, word[dash + 3].length, controller)))
            continue;
        if (!unescape(word[3], root) || !unescape(word[4], point))
            continue;
        memcpy(ret_root, root, sizeof root);
        memcpy(ret_point, point, sizeof point);
        return 0;
    }
    return -ENOENT;
}

/* ---- reading ---- */

struct file {
    char *text;
    size_t length;
};

static void file_deinit(struct file *file) {
    free(file->text);
}
#define cleanup_file __attribute__((cleanup(file_deinit)))

/* A whole file below root. A missing one is -ENOENT, a huge one -EFBIG. */
static int __attribute__((format(printf, 3, 4)))
file_read(struct file *ret, const char *root, const char *format, ...) {
    char path[2 * TOPOLOGY_PATH], relative[TOPOLOGY_PATH + 64];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(relative, sizeof relative, format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= sizeof relative ||
        snprintf(path, sizeof path, "%s%s", root, relative) >= (int)sizeof path)
        return -ENAMETOOLONG;
    cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    cleanup_free char *text = NULL;
    size_t length = 0, size = 0;
    for (;;) {
        if (length == size) {
            char *grown = size >= MAX_FILE_BYTES ? NULL : realloc(text, size ? 2 * size : 4096);
            if (!grown)
                return size >= MAX_FILE_BYTES ? -EFBIG : -ENOMEM;
            text = grown;
            size = size ? 2 * size : 4096;
        }
        ssize_t got = read(fd, text + length, size - length);
        if (got < 0 && errno != EINTR)
            return -errno;
        if (got == 0)
            break;
        length += got > 0 ? (size_t)got : 0;
    }
    *ret = (struct file){steal_pointer(&text), length};
    return 0;
}

/* CPUs that one cgroup directory grants, 0: no quota. *ret_file is the name of the file that says so. */
static double quota_of(const char *root, const char *directory, bool v2, const char **ret_file) {
    cleanup_file struct file quota = {NULL, 0}, period = {NULL, 0};
    int64_t runtime, interval;
    double cpus;
    if (v2) {
        *ret_file = "cpu.max";
        if (file_read(&quota, root, "%s/cpu.max", directory) < 0)
            return 0;
        return topology_parse_cpu_max(quota.text, quota.length, &cpus) < 0 ? 0 : cpus;
    }
    *ret_file = "cpu.cfs_quota_us";
    if (file_read(&quota, root, "%s/cpu.cfs_quota_us", directory) < 0 ||
        file_read(&period, root, "%s/cpu.cfs_period_us", directory) < 0 ||
        topology_parse_number(quota.text, quota.length, &runtime) < 0 ||
        topology_parse_number(period.text, period.length, &interval) < 0 || runtime <= 0 || interval <= 0)
        return 0;
    return (double)runtime / (double)interval;
}

/* The tighter of what kills and, in v2, what slows down: a ring larger than memory.high would be swapped in and out. */
static uint64_t memory_of(const char *root, const char *directory, bool v2, const char **ret_file) {
    static const char *const names[2][2] = {{"memory.limit_in_bytes", NULL}, {"memory.max", "memory.high"}};
    uint64_t least = UINT64_MAX;
    *ret_file = names[v2][0];
    for (int i = 0; i < 2 && names[v2][i]; i++) {
        cleanup_file struct file limit = {NULL, 0};
        uint64_t bytes;
        if (file_read(&limit, root, "%s/%s", directory, names[v2][i]) < 0 ||
            topology_parse_memory(limit.text, limit.length, &bytes) < 0 || bytes >= least)
            continue;
        least = bytes;
        *ret_file = names[v2][i];
    }
    return least;
}

/* Our cgroup's directory, absolute below root, and how many of its characters are the mount point. */
static int cgroup_directory(const struct file *cgroup, const struct file *mounts, const char *controller,
                            char ret[2 * TOPOLOGY_PATH], size_t *ret_point) {
    char path[TOPOLOGY_PATH], mounted[TOPOLOGY_PATH], point[TOPOLOGY_PATH];
    int rc = topology_parse_mounts(mounts->text, mounts->length, controller, mounted, point);
    if (rc < 0)
        return rc;
    if (topology_parse_cgroup(cgroup->text, cgroup->length, controller, path) < 0)
        path[0] = '\0';
    size_t prefix = strcmp(mounted, "/") == 0 ? 0 : strlen(mounted);
    bool below = strncmp(path, mounted, prefix) == 0 && (path[prefix] == '/' || path[prefix] == '\0');
    if (!below || strstr(path, "/.."))
        path[prefix = 0] = '\0';
    while (point[0] && point[1] && point[strlen(point) - 1] == '/')
        point[strlen(point) - 1] = '\0';
    const char *rest = strcmp(path + prefix, "/") == 0 ? "" : path + prefix;
    snprintf(ret, 2 * TOPOLOGY_PATH, "%s%s", point, rest);
    *ret_point = strlen(point);
    return 0;
}

/* Notes what one directory limits, where it is tighter than what is known. */
static void take_limits(struct topology *topology, const char *root, const char *directory, bool v2, bool cpu,
                        bool memory) {
    const char *file;
    double quota = cpu ? quota_of(root, directory, v2, &file) : 0;
    if (quota > 0 && (topology->quota == 0 || quota < topology->quota)) {
        topology->quota = quota;
        snprintf(topology->quota_file, sizeof topology->quota_file, "%.*s/%s", TOPOLOGY_PATH - 64, directory, file);
    }
    uint64_t bytes = memory ? memory_of(root, directory, v2, &file) : UINT64_MAX;
    if (bytes < topology->memory_limit) {
        topology->memory_limit = bytes;
        snprintf(topology->memory_file, sizeof topology->memory_file, "%.*s/%s", TOPOLOGY_PATH - 64, directory, file);
    }
}

/* One hierarchy (`controller` of v1, NULL: v2), from our cgroup up to the mount point. */
static void read_hierarchy(struct topology *topology, const char *root, const struct file *cgroup,
                           const struct file *mounts, const char *controller) {
    char directory[2 * TOPOLOGY_PATH];
    size_t point;
    if (cgroup_directory(cgroup, mounts, controller, directory, &point) < 0)
        return;
    bool cpu = !controller || strcmp(controller, "cpu") == 0, memory = !controller || !cpu;
    for (;;) {
        take_limits(topology, root, directory, !controller, cpu, memory);
        char *slash = strrchr(directory + point, '/');
        if (!slash)
            return;
        *slash = '\0';
    }
}

static void read_limits(struct topology *topology, const char *root) {
    cleanup_file struct file cgroup = {NULL, 0}, mounts = {NULL, 0};
    struct rlimit limit;
    topology->memory_limit = UINT64_MAX;
    topology->memlock_limit = UINT64_MAX;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        topology->memlock_limit = limit.rlim_cur;
    if (file_read(&cgroup, root, "/proc/self/cgroup") < 0 || file_read(&mounts, root, "/proc/self/mountinfo") < 0)
        return;
    read_hierarchy(topology, root, &cgroup, &mounts, NULL);
    read_hierarchy(topology, root, &cgroup, &mounts, "cpu");
    read_hierarchy(topology, root, &cgroup, &mounts, "memory");
}

/* A list file of sysfs; an unreadable one is an empty set. */
static struct topology_set read_list(const char *root, const char *path) {
    cleanup_file struct file file = {NULL, 0};
    struct topology_set set = {{0}};
    if (file_read(&file, root, "%s", path) == 0)
        (void)topology_parse_list(file.text, file.length, &set);
    return set;
}

static int allowed_cpus(const char *root, const struct file *status, struct topology_set *ret) {
    if (*root != '\0')
        return topology_parse_status(status->text, status->length, "Cpus_allowed_list", ret);
    cpu_set_t set[TOPOLOGY_MAX_IDS / CPU_SETSIZE];
    memset(set, 0, sizeof set);
    if (sched_getaffinity(0, sizeof set, set) < 0)
        return -errno;
    for (uint32_t id = 0; id < TOPOLOGY_MAX_IDS; id++)
        if (CPU_ISSET_S(id, sizeof set, set))
            set_add(ret, id);
    return 0;
}

/* Of the nodes with memory that we may use the nearest to `node`: the file has a distance for each node online. */
static int32_t nearest_memory(const char *root, int32_t node, const struct topology_set *online,
                              const struct topology_set *usable) {
    cleanup_file struct file file = {NULL, 0};
    if (topology_set_has(usable, (uint32_t)node))
        return node;
    (void)file_read(&file, root, "/sys/devices/system/node/node%" PRId32 "/distance", node);
    const char *at = file.text, *end = file.text + file.length;
    uint64_t best = UINT64_MAX;
    int32_t found = -1;
    for (uint32_t id = 0; id < TOPOLOGY_MAX_IDS; id++) {
        uint64_t distance = UINT64_MAX - 1; /* unknown, but better than none */
        if (!topology_set_has(online, id))
            continue;
        while (at && at < end && is_blank(*at))
            at++;
        if (at && at < end && !take_number(&at, end, &distance))
            at = NULL;
        if (topology_set_has(usable, id) && distance < best) {
            best = distance;
            found = (int32_t)id;
        }
    }
    return found;
}

/* Node by node: which of our CPUs belong to it. */
static void read_nodes(struct topology *topology, const char *root, const struct file *status) {
    struct topology_set online = read_list(root, "/sys/devices/system/node/online");
    struct topology_set usable = read_list(root, "/sys/devices/system/node/has_memory"), allowed;
    bool limited = topology_parse_status(status->text, status->length, "Mems_allowed_list", &allowed) == 0;
    for (uint32_t i = 0; i < ARRAY_SIZE(usable.word); i++) {
        usable.word[i] &= limited ? allowed.word[i] : UINT64_MAX;
        topology->nodes += (uint32_t)__builtin_popcountll(usable.word[i]);
    }
    topology->node = usable;
    for (uint32_t id = 0; id < TOPOLOGY_MAX_IDS; id++) {
        if (!topology_set_has(&online, id))
            continue;
        char path[96];
        snprintf(path, sizeof path, "/sys/devices/system/node/node%" PRIu32 "/cpulist", id);
        struct topology_set cpus = read_list(root, path);
        int32_t memory = nearest_memory(root, (int32_t)id, &online, &usable);
        for (uint32_t i = 0; i < topology->cpus; i++) {
            if (topology_set_has(&cpus, topology->cpu[i].id)) {
                topology->cpu[i].node = (int32_t)id;
                topology->cpu[i].memory_node = memory;
            }
        }
    }
}

#define CACHE_OF_CPU "/sys/devices/system/cpu/cpu%" PRIu32 "/cache/index%u/"

/* The last-level cache of a CPU and who shares it: 0 where the kernel tells none. */
static uint64_t last_cache(const char *root, uint32_t cpu, struct topology_set *ret_shared) {
    uint64_t best = 0, last = 0;
    for (unsigned i = 0; i < MOST_CACHES; i++) {
        cleanup_file struct file type = {NULL, 0}, level = {NULL, 0}, size = {NULL, 0}, shared = {NULL, 0};
        uint64_t rank, kib;
        if (file_read(&type, root, CACHE_OF_CPU "type", cpu, i) < 0)
            break;
        if (file_read(&level, root, CACHE_OF_CPU "level", cpu, i) < 0 ||
            file_read(&size, root, CACHE_OF_CPU "size", cpu, i) < 0 ||
            file_read(&shared, root, CACHE_OF_CPU "shared_cpu_list", cpu, i) < 0)
            continue;
        const char *at = level.text, *from = size.text;
        if ((type.length && *type.text == 'I') || !take_number(&at, level.text + level.length, &rank) || rank < last ||
            !take_number(&from, size.text + size.length, &kib) || from == size.text + size.length || *from != 'K' ||
            kib > UINT32_MAX || topology_parse_list(shared.text, shared.length, ret_shared) < 0)
            continue;
        last = rank;
        best = kib << 10;
    }
    return best;
}

static void read_caches(struct topology *topology, const char *root) {
    struct topology_set seen = {{0}};
    for (uint32_t i = 0; i < topology->cpus; i++) {
        struct topology_set shared = {{0}};
        if (topology_set_has(&seen, topology->cpu[i].id))
            continue;
        topology->cpu[i].cache = last_cache(root, topology->cpu[i].id, &shared);
        for (uint32_t word = 0; word < ARRAY_SIZE(seen.word); word++)
            seen.word[word] |= shared.word[word];
    }
}

int topology_read(const char *root, struct topology *ret, struct diag *diag) {
    cleanup_file struct file status = {NULL, 0};
    struct topology_set cpus = {{0}};
    struct topology topology = {.cpus = 0};
    (void)file_read(&status, root, "/proc/self/status");
    int rc = allowed_cpus(root, &status, &cpus);
    if (rc < 0)
        return diag_set(diag, -ENODATA, "cannot tell which CPUs this process may use: %s", strerror(-rc));
    for (uint32_t i = 0; i < ARRAY_SIZE(cpus.word); i++)
        topology.cpus += (uint32_t)__builtin_popcountll(cpus.word[i]);
    if (topology.cpus == 0)
        return diag_set(diag, -ENODATA, "this process may use no CPU");
    topology.cpu = calloc(topology.cpus, sizeof *topology.cpu);
    if (!topology.cpu)
        return diag_set(diag, -ENOMEM, "out of memory for %" PRIu32 " CPUs", topology.cpus);
    for (uint32_t id = 0, i = 0; id < TOPOLOGY_MAX_IDS; id++)
        if (topology_set_has(&cpus, id))
            topology.cpu[i++] = (struct topology_cpu){id, -1, -1, 0};
    read_nodes(&topology, root, &status);
    read_caches(&topology, root);
    read_limits(&topology, root);
    *ret = topology;
    return 0;
}

void topology_deinit(struct topology *topology) {
    free(topology->cpu);
    topology->cpu = NULL;
    topology->cpus = 0;
}

/* ---- answers ---- */

uint32_t topology_workers(const struct topology *topology) {
    if (topology->quota == 0 || topology->quota >= (double)topology->cpus)
        return MAX(topology->cpus, 1);
    return MAX((uint32_t)(topology->quota + 0.5), 1);
}

const struct topology_cpu *topology_worker_cpu(const struct topology *topology, uint32_t worker, uint32_t workers) {
    uint64_t round = MIN(workers, topology->cpus), i = worker % topology->cpus;
    return &topology->cpu[worker < round ? worker * (uint64_t)topology->cpus / round : i];
}

uint64_t topology_cache(const struct topology *topology, int node) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < topology->cpus; i++)
        if (node < 0 || topology->cpu[i].memory_node == node)
            sum += topology->cpu[i].cache;
    return sum;
}

static void describe_bytes(const char *name, uint64_t bytes, const char *file, char *buffer, size_t size) {
    if (bytes == UINT64_MAX)
        snprintf(buffer, size, "%s unlimited", name);
    else
        snprintf(buffer, size, "%s %" PRIu64 " MiB%s%s%s", name, bytes >> 20, *file ? " (" : "", file,
                 *file ? ")" : "");
}

int topology_describe(const struct topology *topology, char *buffer, size_t size) {
    char quota[TOPOLOGY_PATH + 64] = "no CPU quota", memory[TOPOLOGY_PATH + 64], locked[64];
    if (topology->quota > 0)
        snprintf(quota, sizeof quota, "CPU quota %.2f (%s)", topology->quota, topology->quota_file);
    describe_bytes("cgroup memory", topology->memory_limit, topology->memory_file, memory, sizeof memory);
    describe_bytes("locked memory", topology->memlock_limit, "", locked, sizeof locked);
    int n = snprintf(buffer, size, "%" PRIu32 " CPU%s allowed, %s, %" PRIu32 " memory node%s, %s, %s", topology->cpus,
                     topology->cpus == 1 ? "" : "s", quota, topology->nodes, topology->nodes == 1 ? "" : "s", memory,
                     locked);
    return n >= 0 && (size_t)n < size ? n : -ENOSPC;
}

/* ---- putting threads and memory in their place ---- */

int topology_pin(uint32_t cpu) {
    cpu_set_t set[TOPOLOGY_MAX_IDS / CPU_SETSIZE];
    if (cpu >= TOPOLOGY_MAX_IDS)
        return -EINVAL;
    memset(set, 0, sizeof set);
    CPU_SET_S(cpu, sizeof set, set);
    return sched_setaffinity(0, sizeof set, set) < 0 ? -errno : 0;
}

int topology_batch(void) {
    const struct sched_param none = {.sched_priority = 0};
    return sched_setscheduler(0, SCHED_BATCH, &none) < 0 ? -errno : 0;
}

static atomic_int memory_refused; /* negative errno of the first refusal, 0: none */

/* A container forbids the call or the kernel lacks it: said once, remembered for `status`. */
static void note_refusal(int code) {
    int none = 0;
    if ((code != -EPERM && code != -ENOSYS) ||
        !atomic_compare_exchange_strong_explicit(&memory_refused, &none, code, memory_order_relaxed,
                                                 memory_order_relaxed))
        return;
    log_warning(
        "memory binding unavailable (%s): batches may lie on a far NUMA node; CPU pinning is not affected. In a "
        "container, allow mbind (SYS_NICE or a seccomp profile that has it)",
        code == -EPERM ? "EPERM" : "ENOSYS");
}

int topology_bind_memory(void *address, size_t size, int node) {
    const unsigned bits = 8 * sizeof(unsigned long);
    unsigned long mask[MAX_NODES / (8 * sizeof(unsigned long))] = {0};
    if (node < 0 || size == 0)
        return 0;
    if ((unsigned)node >= MAX_NODES)
        return -EINVAL;
    mask[(unsigned)node / bits] |= 1ul << ((unsigned)node % bits);
    /* The kernel reads maxnode - 1 bits (get_nodes() in mm/mempolicy.c). */
    if (syscall(SYS_mbind, address, size, MPOL_PREFERRED, mask, (unsigned long)MAX_NODES + 1, 0u) == 0)
        return 0;
    int code = -errno;
    note_refusal(code);
    return code;
}

int topology_probe_memory(const struct topology *topology) {
    size_t size = (size_t)sysconf(_SC_PAGESIZE);
    int node = 0;
    while (node < (int)MAX_NODES && !topology_set_has(&topology->node, (uint32_t)node))
        node++;
    void *page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return -errno;
    int r = topology_bind_memory(page, size, topology->nodes ? node : -1);
    munmap(page, size);
    return r;
}

int topology_memory_refused(void) {
    return atomic_load_explicit(&memory_refused, memory_order_relaxed);
}

int topology_node_of(const void *address) {
    int node = -1;
    if (syscall(SYS_get_mempolicy, &node, NULL, 0ul, address, (unsigned long)(MPOL_F_NODE | MPOL_F_ADDR)) == 0)
        return node;
    int code = -errno;
    note_refusal(code);
    return code;
}

int topology_parse_processor(const char *text, size_t length, uint32_t *ret) {
    const char *end = text + length, *p = memrchr(text, ')', length); /* of the name */
    int64_t number;
    for (int field = 2; p && field < 39; field++) {
        p = memchr(p, ' ', (size_t)(end - p));
        p = p && p + 1 < end ? p + 1 : NULL;
    }
    if (!p)
        return -EINVAL;
    const char *stop = memchr(p, ' ', (size_t)(end - p));
    int r = topology_parse_number(p, (size_t)((stop ? stop : end) - p), &number);
    if (r < 0 || number < 0 || number >= TOPOLOGY_MAX_IDS)
        return -EINVAL;
    *ret = (uint32_t)number;
    return 0;
}

int topology_process_node(const struct topology *topology, int pid) {
    char path[40], text[2048];
    uint32_t cpu;
    if (topology->nodes < 2 || pid <= 0)
        return -1;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text);
    if (n <= 0 || topology_parse_processor(text, (size_t)n, &cpu) < 0)
        return -1;
    for (uint32_t i = 0; i < topology->cpus; i++)
        if (topology->cpu[i].id == cpu)
            return topology->cpu[i].memory_node;
    return -1; /* a CPU that the daemon may not run on: its node's memory may be refused as well */
}
