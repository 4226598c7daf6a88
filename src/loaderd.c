/* SPDX-License-Identifier: MIT */
/*
 * loaderd(8): argv, configuration, signals, service manager; nothing else. One process in the foreground; the pool's
 * threads, the opener's, and this one, which runs the server's loop.
 */
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include "base/log.h"
#include "base/util.h"
#include "config.h"
#include "exporter.h"
#include "pool.h"
#include "server.h"
#include "topology.h"

#ifndef LOADERD_VERSION
#define LOADERD_VERSION "unknown"
#endif
#ifndef LOADERD_SYSCONFDIR
#define LOADERD_SYSCONFDIR "/etc"
#endif

#define DEFAULT_CONFIG LOADERD_SYSCONFDIR "/loaderd.conf"
#define READY_FD 3 /* a private daemon says there that it listens, or why not (client/private.c) */

/* What the command line said. */
struct arguments {
    const char *config_file, *name;
    bool check_config, is_private;
    uint32_t pipeline_keys; /* given on the command line */
    struct pipeline_config pipeline;
    int argc;
    char **argv; /* read a second time after the file: options win over it */
};

struct daemon {
    struct arguments arguments;
    struct config *config;
    struct pool *pool;
    struct server *server;
    int signal_fd;
    bool told_starter;
    char socket[4096];
};

/* ---- service manager --------------------------------------------------------------------------------------------- */

/* sd_notify(3)'s protocol: one datagram. Does nothing without a service manager. */
static void notify(const char *text) {
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (!path || (path[0] != '/' && path[0] != '@') || strlen(path) >= sizeof address.sun_path)
        return;
    memcpy(address.sun_path, path, strlen(path));
    if (path[0] == '@')
        address.sun_path[0] = '\0';
    cleanup_close int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
    if (fd >= 0 && sendto(fd, text, strlen(text), MSG_NOSIGNAL, (struct sockaddr *)&address, size) < 0)
        log_debug("cannot notify the service manager at %s: %s", path, strerror(errno));
}

static void tell_alive(void *arg) {
    (void)arg;
    notify("WATCHDOG=1\n");
}

/* sd_watchdog_enabled(3)'s protocol: how often to say so, a quarter of what is asked for; 0: nobody asks. */
static uint64_t watchdog_ns(void) {
    const char *text = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    char *end = NULL;
    errno = 0;
    unsigned long long usec = text ? strtoull(text, &end, 10) : 0;
    if (!text || errno || *end || usec == 0 || usec > UINT64_MAX / 1000 ||
        (pid && strtol(pid, NULL, 10) != (long)getpid()))
        return 0;
    return MAX(usec * 1000 / 4, UINT64_C(1000000));
}

/* sd_listen_fds(3)'s protocol: the socket that a service manager made for us; -1: none, -EINVAL: not what we need. */
static int inherited_socket(struct diag *diag) {
    const char *pid = getenv("LISTEN_PID"), *count = getenv("LISTEN_FDS");
    if (!pid || !count || strtol(pid, NULL, 10) != (long)getpid())
        return -1;
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    int fds = atoi(count), type = 0, listening = 0, domain = 0;
    socklen_t size = sizeof type;
    if (fds != 1)
        return diag_set(diag, -EINVAL, "the service manager passed %d sockets; loaderd takes one", fds);
    if (getsockopt(3, SOL_SOCKET, SO_TYPE, &type, &size) < 0 ||
        getsockopt(3, SOL_SOCKET, SO_DOMAIN, &domain, &size) < 0 ||
        getsockopt(3, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) < 0 || type != SOCK_SEQPACKET ||
        domain != AF_UNIX || !listening)
        return diag_set(diag, -EINVAL, "the service manager's socket must be ListenSequentialPacket= of a path");
    fcntl(3, F_SETFD, FD_CLOEXEC);
    fcntl(3, F_SETFL, fcntl(3, F_GETFL) | O_NONBLOCK);
    return 3;
}

/* Its path, for messages. */
static void name_of_socket(int fd, char *buffer, size_t size) {
    struct sockaddr_un address = {0};
    socklen_t length = sizeof address - 1;
    if (getsockname(fd, (struct sockaddr *)&address, &length) == 0 && address.sun_path[0])
        snprintf(buffer, size, "%s", address.sun_path);
    else
        snprintf(buffer, size, "(inherited)");
}

/* ---- command line ------------------------------------------------------------------------------------------------ */

static void print_help(void) {
    printf("Usage: loaderd [--config FILE] [OPTION]...\n"
           "       loaderd --dataset PATH [--name NAME] [OPTION]...\n"
           "Turns datasets into ready training batches in shared memory, for all trainers of this machine.\n\n"
           "  --config FILE          pipelines and daemon keys, see loaderd.conf(5) (%s)\n"
           "  --name NAME            of the pipeline that the options below define (default)\n"
           "  --check-config         read the configuration, say whether it is right, and end\n"
           "  --foreground           run in the foreground: always so, accepted for scripts\n"
           "  --help, --version\n\n"
           "Keys of the daemon (they win over the file's):\n",
           DEFAULT_CONFIG);
    config_print_daemon_help(stdout);
    printf("\nKeys of one pipeline, for a daemon without a file:\n");
    config_print_pipeline_help(stdout);
    printf("\nSIGHUP reads the file again; sessions that run keep what they have. SIGTERM ends the daemon.\n");
}

/* The value of option number *i where it is `--name VALUE` or `--name=VALUE`; NULL where it is another option. */
static const char *option_value(int argc, char **argv, int *i, const char *name) {
    size_t length = strlen(name);
    if (strncmp(argv[*i], name, length) != 0)
        return NULL;
    if (argv[*i][length] == '=')
        return argv[*i] + length + 1;
    return argv[*i][length] == '\0' && *i + 1 < argc ? argv[++*i] : NULL; /* the caller steps over it */
}

/* One key, to where it belongs. Daemon keys are set a second time after the file has been read. */
static int take_key(struct arguments *a, struct daemon_config *daemon, const char *key, const char *value,
                    struct diag *diag) {
    if (config_is_daemon_key(key))
        return daemon_config_set(daemon, key, value, diag);
    a->pipeline_keys++;
    return pipeline_config_set(&a->pipeline, key, value, diag);
}

static int unknown_option(const char *word, struct diag *diag) {
    const char *near = strncmp(word, "--", 2) == 0 ? config_nearest_key(word + 2) : NULL;
    if (near)
        return diag_set(diag, -EINVAL, "unknown option '%.60s'; did you mean --%s?", word, near);
    return diag_set(diag, -EINVAL, "unknown option '%.60s'; see loaderd --help", word);
}

/* One option that is no key, at argv[*i]; moves *i behind it. */
static int take_option(struct arguments *a, int *i, struct diag *diag) {
    const char *word = a->argv[*i], *value;
    if ((value = option_value(a->argc, a->argv, i, "--config")))
        a->config_file = value;
    else if ((value = option_value(a->argc, a->argv, i, "--name")))
        a->name = value;
    else if (strcmp(word, "--check-config") == 0)
        a->check_config = true;
    else if (strcmp(word, "--private") == 0)
        a->is_private = true;
    else if (strcmp(word, "--config") == 0 || strcmp(word, "--name") == 0)
        return diag_set(diag, -EINVAL, "option %s needs a value", word);
    else if (strcmp(word, "--foreground") != 0)
        return unknown_option(word, diag);
    ++*i;
    return 0;
}

static int parse_arguments(struct arguments *a, struct daemon_config *daemon, struct diag *diag) {
    for (int i = 1; i < a->argc;) {
        const char *word = a->argv[i], *value = NULL, *key = NULL;
        int r = config_match_option(a->argc, a->argv, &i, &key, &value);
        if (r == 1)
            r = take_key(a, daemon, key, value, diag);
        else if (r < 0)
            r = diag_set(diag, -EINVAL, "option %s needs a value (write --%s=VALUE for one that begins with --)", word,
                         key);
        else
            r = take_option(a, &i, diag);
        if (r < 0)
            return r;
    }
    return 0;
}

/* Options alone make a configuration of one pipeline. */
static int config_from_arguments(struct arguments *a, struct config *config, struct diag *diag) {
    int r = config_init(config);
    if (r < 0)
        return diag_set(diag, r, "no memory left");
    if (a->is_private)
        return 0;
    config->pipeline = calloc(1, sizeof *config->pipeline);
    if (!config->pipeline)
        return diag_set(diag, -ENOMEM, "no memory left");
    config->pipelines = 1;
    r = pipeline_config_copy(&a->pipeline, config->pipeline);
    if (r < 0)
        return diag_set(diag, r, "no memory left");
    if (!*config->pipeline->dataset)
        return diag_set(diag, -EINVAL, "no dataset: give --dataset PATH, or --config FILE");
    return 0;
}

/* The file if there is one, else the options; daemon options win over the file. On failure *config is of no use. */
static int load_config(struct arguments *a, struct config *config, struct diag *diag) {
    int r;
    const char *file = a->config_file;
    if (!file && !a->pipeline_keys && !a->is_private) {
        if (access(DEFAULT_CONFIG, F_OK) < 0)
            return diag_set(diag, -EINVAL,
                            "nothing to serve: give --config FILE or --dataset PATH (and there is no %s)",
                            DEFAULT_CONFIG);
        file = DEFAULT_CONFIG;
    }
    if (file && (a->pipeline_keys || a->name))
        return diag_set(diag, -EINVAL,
                        "pipelines come from %s or from options, not both: drop --config, or move the "
                        "pipeline's keys into the file",
                        file);
    r = file ? config_read_file(file, config, diag) : config_from_arguments(a, config, diag);
    if (r < 0)
        return r;
    struct arguments again = {.argc = a->argc, .argv = a->argv};
    r = pipeline_config_init(&again.pipeline, "options");
    if (r == 0)
        r = parse_arguments(&again, &config->daemon, diag);
    pipeline_config_deinit(&again.pipeline);
    struct exporter_address ignored;
    if (r == 0 && *config->daemon.metrics)
        r = exporter_parse(config->daemon.metrics, config->daemon.metrics_public, &ignored, diag);
    if (r < 0)
        config_deinit(config);
    return r;
}

/* ---- signals ----------------------------------------------------------------------------------------------------- */

/* Blocked before any thread starts, so that all threads inherit that. */
static int open_signals(struct diag *diag) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    signal(SIGPIPE, SIG_IGN);
    if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
        return diag_set(diag, -errno, "cannot block signals: %s", strerror(errno));
    int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return fd < 0 ? diag_set(diag, -errno, "cannot make a signalfd: %s", strerror(errno)) : fd;
}

static void tell_ready(struct daemon *d) {
    char text[256];
    snprintf(text, sizeof text, "READY=1\nSTATUS=Serving %u pipelines with %u workers (%s)\n", d->config->pipelines,
             pool_workers(d->pool), pool_engine(d->pool));
    notify(text);
}

static void reload(struct daemon *d) {
    struct diag diag = DIAG_INIT;
    if (!d->arguments.config_file && d->arguments.pipeline_keys) {
        log_notice("SIGHUP: nothing to read again, this daemon was given its pipeline by options");
        return;
    }
    if (d->arguments.is_private)
        return;
    char text[96];
    snprintf(text, sizeof text, "RELOADING=1\nMONOTONIC_USEC=%llu\n", (unsigned long long)(now_ns() / 1000));
    notify(text);
    struct config *fresh = calloc(1, sizeof *fresh);
    if (!fresh || load_config(&d->arguments, fresh, &diag) < 0) {
        log_error("the configuration is not changed: %s", fresh ? diag.text : "no memory left");
        free(fresh);
    } else {
        char keys[256];
        if (daemon_config_needs_restart(&d->config->daemon, &fresh->daemon, keys, sizeof keys))
            log_warning(
                "[daemon] %s: changed in the file, but not in this daemon, as it is used when one starts: restart it",
                keys);
        server_reload(d->server, fresh);
        config_deinit(d->config);
        free(d->config);
        d->config = fresh;
        log_info("configuration read again: %u pipelines; running sessions keep theirs", d->config->pipelines);
    }
    tell_ready(d);
}

static void on_signal(void *arg) {
    struct daemon *d = arg;
    struct signalfd_siginfo info;
    while (read(d->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGHUP) {
            reload(d);
            continue;
        }
        log_info("%s from pid %u: stopping", info.ssi_signo == SIGTERM ? "SIGTERM" : "SIGINT", info.ssi_pid);
        notify("STOPPING=1\n");
        server_stop(d->server);
    }
}

/* ---- start ------------------------------------------------------------------------------------------------------- */

static void format_limit(rlim_t limit, char text[32]) {
    if (limit == RLIM_INFINITY)
        snprintf(text, 32, "unlimited");
    else
        snprintf(text, 32, "%llu", (unsigned long long)limit);
}

/* Descriptors up to the hard limit are ours to take; what is locked in memory is the administrator's choice. */
static void set_limits(void) {
    struct rlimit files, memory;
    char soft[32] = "?", locked[32] = "?";
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        rlim_t before = files.rlim_cur;
        files.rlim_cur = files.rlim_max;
        if (before < files.rlim_max && setrlimit(RLIMIT_NOFILE, &files) < 0)
            files.rlim_cur = before;
        format_limit(files.rlim_cur, soft);
    }
    if (getrlimit(RLIMIT_MEMLOCK, &memory) == 0)
        format_limit(memory.rlim_cur, locked);
    log_info("limits: %s open files (LimitNOFILE=), %s bytes of locked memory (LimitMEMLOCK=)", soft, locked);
}

/* What this process may use, and what it made of that: pinning and memory binding are told apart. */
static void describe_place(struct pool *pool) {
    char text[2 * TOPOLOGY_PATH];
    uint32_t pinned = 0, workers = pool_workers(pool);
    for (uint32_t i = 0; i < workers; i++) {
        struct worker_statistics statistics;
        pool_statistics(pool, i, &statistics);
        pinned += statistics.cpu >= 0;
    }
    if (topology_describe(pool_topology(pool), text, sizeof text) < 0)
        return;
    bool choice = pool_topology(pool)->nodes > 1;
    int refused = choice ? topology_probe_memory(pool_topology(pool)) : 0;
    log_info("%s; %u of %u workers pinned; memory binding %s", text, pinned, workers,
             pool_topology(pool)->nodes < 2 ? "has no choice"
             : refused                      ? "refused"
                                            : "on");
}

/* A private daemon is nobody's child and keeps none of its starter's descriptors. 0 in the daemon; the starter's child
 * ends here. */
static int detach(struct diag *diag) {
    syscall(SYS_close_range, READY_FD + 1, ~0U, 0); /* Linux 5.9; before that they stay open, which harms little */
    pid_t pid = fork();
    if (pid < 0)
        return diag_set(diag, -errno, "cannot fork the private daemon: %s", strerror(errno));
    if (pid > 0)
        _exit(0);
    unsetenv("NOTIFY_SOCKET"); /* the trainer's */
    if (chdir("/") < 0)
        return diag_set(diag, -errno, "cannot change to /: %s", strerror(errno));
    fcntl(READY_FD, F_SETFD, FD_CLOEXEC);
    return 0;
}

/* The starter waits for this: "" or the sentence of what went wrong. */
static void tell_starter(const char *sentence) {
    if (write(READY_FD, sentence, strlen(sentence) + 1) < 0)
        log_debug("nobody waits for this private daemon");
    close(READY_FD);
}

static int open_socket(struct daemon *d, int *ret_fd, struct diag *diag) {
    int fd = d->arguments.is_private ? -1 : inherited_socket(diag);
    if (fd >= 0) {
        name_of_socket(fd, d->socket, sizeof d->socket);
        *ret_fd = fd;
        return 0;
    }
    if (fd != -1)
        return fd;
    if (*d->config->daemon.socket)
        snprintf(d->socket, sizeof d->socket, "%s", d->config->daemon.socket);
    else
        server_default_socket(d->socket, sizeof d->socket);
    return server_listen(d->socket, &d->config->daemon, ret_fd, diag);
}

/* The service manager waits for all datasets: the first scan of one may take minutes. */
static void on_ready(void *arg, uint32_t opening) {
    struct daemon *d = arg;
    if (opening) {
        char text[128];
        snprintf(text, sizeof text, "EXTEND_TIMEOUT_USEC=60000000\nSTATUS=Opening datasets, %u to go\n", opening);
        notify(text);
        return;
    }
    if (d->arguments.is_private) {
        tell_starter("");
        d->told_starter = true;
    }
    tell_ready(d);
}

/* The socket comes first: of two starts the loser ends before it has made threads. */
static int start(struct daemon *d, struct diag *diag) {
    int listen_fd = -1;
    d->signal_fd = open_signals(diag);
    int r = d->signal_fd < 0 ? d->signal_fd : open_socket(d, &listen_fd, diag);
    if (r < 0)
        return r;
    set_limits();
    r = pool_new(&d->config->daemon, &d->pool, diag);
    if (r < 0) {
        close(listen_fd);
        return r;
    }
    struct server_options options = {.config = d->config,
                                     .pool = d->pool,
                                     .listen_fd = listen_fd,
                                     .is_private = d->arguments.is_private,
                                     .socket = d->socket,
                                     .ready = on_ready,
                                     .ready_arg = d,
                                     .beat = tell_alive,
                                     .beat_ns = d->arguments.is_private ? 0 : watchdog_ns(),
                                     .failure = d->arguments.pipeline_keys ? diag : NULL};
    r = server_new(&options, &d->server, diag);
    if (r < 0) {
        close(listen_fd);
        return r;
    }
    describe_place(d->pool);
    const char *reason = pool_engine_reason(d->pool);
    log_info("loaderd %s, pid %d, listens at %s: %u workers, %u reads in flight each by %s%s%s%s", LOADERD_VERSION,
             (int)getpid(), d->socket, pool_workers(d->pool), pool_depth(d->pool), pool_engine(d->pool),
             *reason ? " (" : "", reason, *reason ? ")" : "");
    return server_watch(d->server, d->signal_fd, on_signal, d);
}

/* A dataset that is still being opened cannot be interrupted: then the process ends as it is. */
static void stop(struct daemon *d) {
    server_unlisten();
    if (d->server && !server_free(d->server)) {
        log_notice("a dataset was still being opened; its scan is given up");
        _exit(0);
    }
    pool_free(d->pool);
    if (d->signal_fd >= 0)
        close(d->signal_fd);
    config_deinit(d->config);
}

static int run(struct daemon *d, struct diag *diag) {
    int r = start(d, diag);
    if (r == 0) {
        r = server_run(d->server);
        if (r < 0 && diag->code == 0)
            diag_set(diag, r, "the server's loop: %s", strerror(-r));
        if (r == 0)
            log_info("%s", d->arguments.is_private ? "the last session is over" : "stopped");
    }
    stop(d);
    return r;
}

static int check_config(struct daemon *d) {
    printf("the configuration is right: %u pipeline%s\n", d->config->pipelines, d->config->pipelines == 1 ? "" : "s");
    for (uint32_t i = 0; i < d->config->pipelines; i++)
        printf("%s\t%s\n", d->config->pipeline[i].name, d->config->pipeline[i].dataset);
    config_deinit(d->config);
    return 0;
}

static int main_with(struct daemon *d, struct diag *diag) {
    struct arguments *a = &d->arguments;
    struct config scratch; /* the first reading only looks for the file and the pipeline's keys */
    int r = config_init(&scratch);
    if (r == 0)
        r = pipeline_config_init(&a->pipeline, "default");
    if (r == 0)
        r = parse_arguments(a, &scratch.daemon, diag);
    if (r == 0 && a->name) {
        free(a->pipeline.name);
        a->pipeline.name = strdup(a->name);
    }
    config_deinit(&scratch);
    if (r == 0)
        r = load_config(a, d->config, diag);
    if (r < 0)
        return r;
    log_init("loaderd", (enum log_level)d->config->daemon.log_level);
    if (a->check_config)
        return check_config(d);
    if (a->is_private && (r = detach(diag)) < 0)
        return r;
    return run(d, diag);
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            print_help();
            return 0;
        }
        if (strcmp(argv[i], "--version") == 0) {
            printf("loaderd %s\n", LOADERD_VERSION);
            return 0;
        }
    }
    struct diag diag = DIAG_INIT;
    struct daemon d = {.arguments = {.argc = argc, .argv = argv}, .signal_fd = -1};
    log_init("loaderd", LOG_INFO);
    d.config = calloc(1, sizeof *d.config);
    int r = d.config ? main_with(&d, &diag) : -ENOMEM;
    pipeline_config_deinit(&d.arguments.pipeline);
    free(d.config);
    if (r < 0) {
        const char *sentence = diag.code ? diag.text : strerror(-r);
        log_error("%s", sentence);
        if (d.arguments.is_private && !d.told_starter)
            tell_starter(sentence);
    }
    return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
