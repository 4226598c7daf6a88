/* SPDX-License-Identifier: MIT */
/* See private.h. Changes nothing in this process but what it opens and closes again. */
#include "private.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef LOADERD_SBINDIR
#define LOADERD_SBINDIR "/usr/local/sbin"
#endif

#define READY_FD 3 /* where the daemon says that it listens (src/loaderd.c) */
#define READY_TIMEOUT_MS 30000
#define JOB_NAME_MAX 40
#define LITTER_SECONDS 60 /* what a killed daemon left is removed when it is older */
#define MAX_KEYS 64
#define PLUS " + " /* joins the paths of several datasets */

extern char **environ;

/* ---- names ------------------------------------------------------------------------------------------------------- */

bool private_is_path(const char *name) {
    return name[0] == '.' || strpbrk(name, "/*?[{") || strncmp(name, "synthetic:", 10) == 0;
}

/* `key` ends at '=' or NUL; '_' is as good as '-'. */
static bool is_key(const char *key, const char *name) {
    size_t i = 0;
    for (; name[i]; i++)
        if (key[i] != name[i] && !(key[i] == '_' && name[i] == '-'))
            return false;
    return key[i] == '\0' || key[i] == '=';
}

static bool is_one_of(const char *key, const char *const *names) {
    while (*names && !is_key(key, *names))
        names++;
    return *names != NULL;
}

bool private_is_daemon_key(const char *key) {
    static const char *const names[] = {"workers",
                                        "pin",
                                        "engine",
                                        "depth",
                                        "direct",
                                        "max-pixels",
                                        "max-scans",
                                        "max-ring-bytes",
                                        "max-ring-bytes-per-user",
                                        "max-sample-bytes",
                                        "max-sessions",
                                        "socket",
                                        "socket-mode",
                                        "socket-group",
                                        "log-level",
                                        "max-sessions-per-user",
                                        "metrics",
                                        "metrics-public",
                                        NULL};
    return is_one_of(key, names);
}

bool private_is_path_key(const char *key) {
    static const char *const names[] = {"dataset", "labels", "classes", "masks", "boxes",
                                        "index",   "subset", "cache",   NULL};
    const char *value = strchr(key, '=');
    if (!value || !is_one_of(key, names) || !value[1] || (value[1] == '/' && !strstr(value, PLUS)))
        return false;
    if (is_key(key, "subset") && value[1 + strspn(value + 1, "0123456789-, \t")] == '\0')
        return false; /* ranges */
    if (is_key(key, "boxes") && strcmp(value, "=beside") == 0)
        return false;
    if (is_key(key, "cache") && strncmp(value, "=ram:", 5) == 0)
        return false;
    return !(is_key(key, "index") && (strcmp(value, "=auto") == 0 || strcmp(value, "=none") == 0));
}

/* Bytes of "NAME=" in front of a path, as several arrays that are fields have it; 0 where there is none. */
static size_t name_length(const char *from, size_t length) {
    const char *equals = memchr(from, '=', length), *slash = memchr(from, '/', length);
    return equals && equals > from && (!slash || equals < slash) ? (size_t)(equals - from) + 1 : 0;
}

/* One dataset's path. "a/b,c*" is a list of patterns, "x=a,y=b" one of named files: each part gets the directory, unless
 * that is the name of one file. Writes at `to`; returns the end. */
static char *put_absolute(char *to, const char *name, const char *here) {
    if (strncmp(name, "synthetic:", 10) == 0)
        return stpcpy(to, name);
    const char *separators = access(name, F_OK) == 0 ? "" : ",";
    for (const char *from = name;;) {
        size_t length = strcspn(from, separators);
        size_t named = *separators ? name_length(from, length) : 0;
        memcpy(to, from, named);
        to += named;
        from += named;
        length -= named;
        if (length && *from != '/') {
            size_t skip = from[0] == '.' && from[1] == '/' ? 2 : 0;
            to += sprintf(to, "%s/", here);
            from += skip;
            length -= skip;
        }
        memcpy(to, from, length);
        to += length;
        if (from[length] == '\0')
            break;
        *to++ = ',';
        from += length + 1;
    }
    *to = '\0';
    return to;
}

char *private_absolute(const char *name) {
    char here[4096];
    if (!getcwd(here, sizeof here))
        return strdup(name);
    size_t parts = 1;
    for (const char *c = name; *c; c++)
        parts += *c == ',' || *c == '+';
    char *result = malloc(strlen(name) + parts * (strlen(here) + 1) + 1), *to = result, *copy = strdup(name);
    for (char *piece = copy; piece && result;) {
        char *plus = strstr(piece, PLUS), *next = plus ? plus + strlen(PLUS) : NULL;
        if (plus)
            *plus = '\0';
        to = put_absolute(to, piece + strspn(piece, " "), here);
        to = next ? stpcpy(to, PLUS) : to;
        piece = next;
    }
    if (!copy) {
        free(result);
        result = NULL;
    }
    free(copy);
    return result;
}

/* Two environment variables to "prefix-a-b". */
static bool job_of(const char *prefix, const char *a, const char *b, char *buffer, size_t size) {
    const char *first = getenv(a), *second = b ? getenv(b) : NULL;
    if (!first || !*first || (b && (!second || !*second)))
        return false;
    snprintf(buffer, size, "%s-%s%s%s", prefix, first, b ? "-" : "", b ? second : "");
    return true;
}

const char *private_job(const char *job, char *buffer, size_t size) {
    static _Atomic unsigned counter;
    if (job && *job)
        snprintf(buffer, size, "%s", job);
    else if (!job_of("master", "MASTER_ADDR", "MASTER_PORT", buffer, size) &&
             !job_of("slurm", "SLURM_JOB_ID", "SLURM_STEP_ID", buffer, size) &&
             !job_of("slurm", "SLURM_JOB_ID", NULL, buffer, size) &&
             !job_of("ompi", "OMPI_MCA_ess_base_jobid", NULL, buffer, size) &&
             !job_of("pmix", "PMIX_NAMESPACE", NULL, buffer, size))
        snprintf(buffer, size, "pid-%d-%u", (int)getpid(), atomic_fetch_add(&counter, 1));
    return buffer;
}

/* FNV-1a, 64 bits. */
static uint64_t hash(const char *text) {
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    return h;
}

/* A job's name as a part of a file name: what is odd or long is told apart by a hash. */
static void file_name(const char *job, char name[JOB_NAME_MAX + 1]) {
    size_t i = 0;
    bool odd = strlen(job) > JOB_NAME_MAX;
    for (; job[i] && i < JOB_NAME_MAX; i++) {
        char c = job[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.';
        odd = odd || !plain;
        name[i] = plain ? c : '_';
    }
    name[i] = '\0';
    if (odd)
        snprintf(name + (i > JOB_NAME_MAX - 17 ? JOB_NAME_MAX - 17 : i), 18, "-%016llx", (unsigned long long)hash(job));
}

/* ---- the directory ----------------------------------------------------------------------------------------------- */

/* Made if need be; nobody else may be able to put a socket into it. */
static int use_directory(const char *directory, char *error, size_t size) {
    struct stat st;
    if (mkdir(directory, 0700) < 0 && errno != EEXIST) {
        int code = -errno;
        snprintf(error, size, "cannot make %s for the private daemon's socket: %s", directory, strerror(-code));
        return code;
    }
    if (lstat(directory, &st) < 0 || !S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 022)) {
        snprintf(error, size,
                 "%s must be a directory of user %u that nobody else may write to: it is to hold the private "
                 "daemon's socket; remove it, or set XDG_RUNTIME_DIR",
                 directory, (unsigned)geteuid());
        return -EACCES;
    }
    return 0;
}

static int find_directory(char *buffer, size_t size, char *error, size_t error_size) {
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    if (runtime && *runtime == '/' && strlen(runtime) < 40 && access(runtime, W_OK) == 0) {
        snprintf(buffer, size, "%s/loaderd", runtime);
        if (use_directory(buffer, error, error_size) == 0)
            return 0;
    }
    snprintf(buffer, size, "/tmp/loaderd-%u", (unsigned)geteuid());
    return use_directory(buffer, error, error_size);
}

/* ---- the program ------------------------------------------------------------------------------------------------- */

static bool try_program(char *buffer, size_t size, const char *directory, size_t length, const char *name) {
    int n = snprintf(buffer, size, "%.*s/%s", (int)length, directory, name);
    return n > 0 && (size_t)n < size && access(buffer, X_OK) == 0;
}

/* Beside the library: PREFIX/lib[/TRIPLET]/libloaderd.so finds PREFIX/sbin/loaderd. */
static bool beside_library(char *buffer, size_t size) {
    Dl_info info;
    if (!dladdr((void *)(uintptr_t)private_connect, &info) || !info.dli_fname)
        return false;
    const char *slash = strrchr(info.dli_fname, '/');
    size_t length = slash ? (size_t)(slash - info.dli_fname) : 0;
    return slash && (try_program(buffer, size, info.dli_fname, length, "../sbin/loaderd") ||
                     try_program(buffer, size, info.dli_fname, length, "../../sbin/loaderd"));
}

static bool in_path(char *buffer, size_t size) {
    for (const char *path = getenv("PATH"); path && *path;) {
        size_t length = strcspn(path, ":");
        if (length && try_program(buffer, size, path, length, "loaderd"))
            return true;
        path += length + (path[length] == ':');
    }
    return false;
}

static int find_program(const char *wanted, char *buffer, size_t size, char *error, size_t error_size) {
    const char *from = "options.daemon";
    if (!wanted || !*wanted) {
        wanted = getenv("LOADERD_DAEMON");
        from = "LOADERD_DAEMON";
    }
    if (wanted && *wanted) {
        snprintf(buffer, size, "%s", wanted);
        if (access(buffer, X_OK) == 0)
            return 0;
        int code = -errno;
        snprintf(error, error_size, "cannot run the daemon %.200s (%s): %s", wanted, from, strerror(-code));
        return code;
    }
    if (try_program(buffer, size, LOADERD_SBINDIR, strlen(LOADERD_SBINDIR), "loaderd") ||
        beside_library(buffer, size) || in_path(buffer, size))
        return 0;
    snprintf(error, error_size,
             "no loaderd program: neither in %s nor beside the library nor in $PATH; install it, or set "
             "LOADERD_DAEMON",
             LOADERD_SBINDIR);
    return -ENOENT;
}

int private_init(struct private_daemon *ret, const char *job, const char *program, char *error, size_t size) {
    struct private_daemon d;
    char directory[64], name[JOB_NAME_MAX + 1], text[512];
    int r = find_directory(directory, sizeof directory, error, size);
    if (r == 0)
        r = find_program(program, d.program, sizeof d.program, error, size);
    if (r < 0)
        return r;
    file_name(private_job(job, text, sizeof text), name);
    snprintf(d.socket, sizeof d.socket, "%.47s/private-%s.sock", directory, name);
    snprintf(d.election, sizeof d.election, "%.47s/private-%s.election", directory, name);
    *ret = d;
    return 0;
}

/* ---- the election ------------------------------------------------------------------------------------------------ */

/* Locks `path`. -EAGAIN where somebody else holds it, or its holder has just removed it. */
static int lock_file(const char *path, int flags) {
    struct stat a, b;
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0600);
    if (fd < 0)
        return -errno;
    int code = flock(fd, LOCK_EX | LOCK_NB) < 0 ? (errno == EWOULDBLOCK ? -EAGAIN : -errno) : 0;
    if (code == 0 && (fstat(fd, &a) < 0 || lstat(path, &b) < 0 || a.st_ino != b.st_ino || a.st_dev != b.st_dev))
        code = -EAGAIN;
    if (code == 0)
        return fd;
    close(fd);
    return code;
}

static bool ends_with(const char *text, const char *end) {
    size_t length = strlen(text), part = strlen(end);
    return length > part && strcmp(text + length - part, end) == 0;
}

/* "DIR/private-X.sock.lock" or "DIR/private-X.election" that nobody holds: its process was killed. */
static void remove_litter(const char *directory, const char *name) {
    char path[CONNECTION_PATH_MAX + 300];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    if (lstat(path, &st) < 0 || time(NULL) - st.st_mtime < LITTER_SECONDS)
        return;
    int fd = lock_file(path, 0);
    if (fd < 0)
        return;
    if (ends_with(path, ".lock")) { /* the socket beside it */
        size_t length = strlen(path) - strlen(".lock");
        path[length] = '\0';
        unlink(path);
        path[length] = '.';
    }
    unlink(path);
    close(fd);
}

static void sweep(const struct private_daemon *daemon) {
    char directory[CONNECTION_PATH_MAX + 1];
    snprintf(directory, sizeof directory, "%s", daemon->socket);
    *strrchr(directory, '/') = '\0';
    DIR *d = opendir(directory);
    if (!d)
        return;
    for (struct dirent *entry; (entry = readdir(d)) != NULL;)
        if (strncmp(entry->d_name, "private-", 8) == 0 &&
            (ends_with(entry->d_name, ".sock.lock") || ends_with(entry->d_name, ".election")))
            remove_litter(directory, entry->d_name);
    closedir(d);
}

/* ---- the start --------------------------------------------------------------------------------------------------- */

/* "--key=value" of the keys that are the daemon's; the strings are malloc'ed. Its own keys win: they come last. */
static bool add_argument(char **argv, int *n, const char *format, const char *text) {
    if (asprintf(&argv[*n], format, text) < 0) {
        argv[*n] = NULL;
        return false;
    }
    ++*n;
    return true;
}

static int make_arguments(const struct private_daemon *daemon, const char *const *keys, char *argv[MAX_KEYS + 8]) {
    int n = 0;
    bool fine = add_argument(argv, &n, "%s", "loaderd") && add_argument(argv, &n, "%s", "--private") &&
                add_argument(argv, &n, "%s", "--log-level=notice");
    for (; fine && keys && *keys && n < MAX_KEYS; keys++)
        if (private_is_daemon_key(*keys))
            fine = add_argument(argv, &n, "--%s", *keys);
    fine = fine && add_argument(argv, &n, "--socket=%s", daemon->socket) &&
           add_argument(argv, &n, "%s", "--socket-mode=0600");
    return fine ? 0 : -ENOMEM;
}

/* A session of its own, no blocked or ignored signals, nothing of ours but stderr and the pipe (the daemon closes the
 * rest: what it inherited may be GPUs and sockets of the trainer). */
static int spawn(const char *program, char *const *argv, int ready, pid_t *ret_pid) {
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGCHLD, SIGUSR1, SIGUSR2, SIGALRM};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, defaults;
    sigemptyset(&none);
    sigemptyset(&defaults);
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        sigaddset(&defaults, signals[i]);
    if (posix_spawn_file_actions_init(&actions))
        return -ENOMEM;
    if (posix_spawnattr_init(&attributes)) {
        posix_spawn_file_actions_destroy(&actions);
        return -ENOMEM;
    }
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    int r = posix_spawn_file_actions_adddup2(&actions, ready, READY_FD);
    if (r == 0)
        r = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (r == 0)
        r = posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    if (r == 0)
        r = posix_spawn(ret_pid, program, &actions, &attributes, argv, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return -r;
}

/* The daemon's first words: "" when it listens, else a sentence. */
static int wait_ready(int fd, const char *program, char *error, size_t size) {
    char text[600];
    size_t length = 0;
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    while (length == 0 || (text[length - 1] != '\0' && length < sizeof text)) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        int left = READY_TIMEOUT_MS - (int)((now.tv_sec - start.tv_sec) * 1000);
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int n = left > 0 ? poll(&p, 1, left) : 0;
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            snprintf(error, size, "the private daemon %.300s did not get ready within %d s", program,
                     READY_TIMEOUT_MS / 1000);
            return -ETIMEDOUT;
        }
        ssize_t got = read(fd, text + length, sizeof text - length);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            snprintf(error, size,
                     "the private daemon %.300s ended while it started; run it with --version to see whether it "
                     "works",
                     program);
            return -ECONNREFUSED;
        }
        length += (size_t)got;
    }
    text[sizeof text - 1] = '\0';
    if (text[0] == '\0')
        return 0;
    snprintf(error, size, "the private daemon could not start: %s", text);
    return -ECONNREFUSED;
}

static int start(const struct private_daemon *daemon, const char *const *keys, char *error, size_t size) {
    char *argv[MAX_KEYS + 8] = {NULL};
    int ready[2] = {-1, -1}, status;
    pid_t pid = -1;
    int r = make_arguments(daemon, keys, argv);
    if (r == 0 && pipe2(ready, O_CLOEXEC) < 0)
        r = -errno;
    if (r == 0)
        r = spawn(daemon->program, argv, ready[1], &pid);
    if (ready[1] >= 0)
        close(ready[1]);
    if (r < 0)
        snprintf(error, size, "cannot start the private daemon %.300s: %s", daemon->program, strerror(-r));
    else
        r = wait_ready(ready[0], daemon->program, error, size);
    if (pid > 0) /* it has put itself into the background; only its first process is our child */
        while (waitpid(pid, &status, r == -ETIMEDOUT ? WNOHANG : 0) < 0 && errno == EINTR)
            ;
    if (ready[0] >= 0)
        close(ready[0]);
    for (size_t i = 0; i < sizeof argv / sizeof argv[0]; i++)
        free(argv[i]);
    return r;
}

static bool nobody_there(int code) {
    return code == -ENOENT || code == -ECONNREFUSED;
}

int private_connect(const struct private_daemon *daemon, const char *const *keys, char *error, size_t size) {
    int fd = connection_connect(daemon->socket, error, size);
    if (fd >= 0 || !nobody_there(fd))
        return fd;
    int lock = lock_file(daemon->election, O_CREAT);
    if (lock == -EAGAIN)
        snprintf(error, size, "another process of the job is starting the private daemon (it holds %s)",
                 daemon->election);
    else if (lock < 0)
        snprintf(error, size, "cannot lock %s: %s", daemon->election, strerror(-lock));
    if (lock < 0)
        return lock;
    fd = connection_connect(daemon->socket, error, size); /* the one before us may have been faster */
    if (fd < 0 && nobody_there(fd)) {
        sweep(daemon);
        fd = start(daemon, keys, error, size);
        if (fd == 0 && nobody_there(fd = connection_connect(daemon->socket, error, size)))
            fd = -EAGAIN; /* over again: somebody came and went before us */
    }
    unlink(daemon->election); /* ours: we hold it */
    close(lock);
    return fd;
}
