/* SPDX-License-Identifier: MIT */
/*
 * The server: see server.h. One epoll thread that never waits for a peer: what a peer does not read ends its
 * connection, what it sends too fast waits in its own socket. It believes nothing that a peer sends (protocol.c) and
 * allocates a bounded amount for each (quotas by user).
 *
 *     connection:  FRESH --HELLO--> READY --OPEN--> OPENING --(opener thread)--> OPEN
 *                    any state --end of file, death of the process, a wrong message--> closed
 *
 * Draining (DRAIN): the socket is given up at once, so that another daemon can take it; sessions begin no further batch,
 * and each is closed when what it had begun is published. Its client uses that up before it looks at the connection.
 */
#include "server.h"

#include <fcntl.h>
#include <inttypes.h>
#include <linux/sockios.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "access.h"
#include "base/log.h"
#include "base/util.h"
#include "dataset/dataset.h"
#include "exporter.h"
#include "metrics.h"
#include "opener.h"
#include "protocol.h"
#include "status.h"
#include "pool.h"
#include "recorder.h"
#include "ring.h"
#include "trace.h"
#include <loaderd/abi/ring.h>

#ifndef LOADERD_VERSION
#define LOADERD_VERSION "unknown"
#endif
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif

#define TICK_NS UINT64_C(100000000)
#define SECOND_NS UINT64_C(1000000000)
#define HELLO_SECONDS 10    /* a connection that says nothing for so long is closed */
#define GRACE_SECONDS 2     /* a private daemon waits so long for its first session */
#define PROGRESS_SECONDS 5  /* how often the start says that it is still opening datasets */
#define SNAPSHOT_SECONDS 2  /* the verdict of status looks back one to two of these */
#define MESSAGES_A_TURN 64  /* read from one connection before the others have their turn */
#define BUDGET_A_TICK 20000 /* what a connection's messages may cost in a tick; more wait in its socket */
#define WAKE_COST 1
#define MESSAGE_COST 100
#define STATUS_COST 500
#define STALLS_COST 10000
#define MOST_UNREAD 32768    /* bytes of answers (with the kernel's overhead) that a peer may leave unread */
#define REFUSALS_A_SECOND 10 /* log lines about clients that were sent away */
#define SPARE_CONNECTIONS 64 /* beside the sessions: status and the like */
#define DRAIN_MS 5           /* how often a draining daemon looks whether sessions have finished */

enum connection_state { FRESH, READY, OPENING, OPEN };

/* What an epoll event calls. */
struct watch {
    void (*f)(struct server *server, void *owner, uint32_t events);
    void *owner;
};

struct connection {
    struct connection *next, *previous;
    uint64_t number;
    int fd, pid_fd; /* pid_fd: -1 where the kernel gives none; end of file tells then */
    struct ucred peer;
    enum connection_state state;
    struct session *session;
    struct pipeline *pipeline;
    struct group *group;      /* NULL: none */
    struct open_job *waiting; /* for its group to begin */
    uint32_t member;          /* of its session */
    uint64_t session_number, ring_bytes;
    uint64_t accepted_ns;
    uint32_t budget; /* what its messages may still cost in this tick */
    bool muted;      /* not listened to until the next tick */
    struct watch socket_watch, pid_watch;
};

/*
 * Trainers that share one session's ring. While it gathers, members wait with their jobs; then the session is opened for
 * the one whose next batch is the smallest, and the others join. Late members join where the ring still holds their next
 * batch, and get a session of their own otherwise. The last one to leave ends session and group.
 */
struct group {
    struct group *next;
    char name[64];
    uid_t uid;
    char *keys;                 /* what all members must agree in */
    uint32_t expected, members; /* members: connections */
    uint64_t deadline_ns;       /* GATHERING: when it begins with those who are there */
    enum { GATHERING, BEGINNING, SHARING } state;
    uint64_t leader; /* BEGINNING: number of the connection that the session is opened for */
    struct session *session;
    struct pipeline *pipeline; /* a reference */
    uint32_t laggard_seconds;
    uint64_t stall_sequence, stall_ns; /* for whom the others wait: since when, at which batch */
};

/* A process that closed sessions and lives on: it may still map their rings, so they count against its user. */
struct ghost {
    struct ghost *next;
    pid_t pid;
    uid_t uid;
    int pid_fd;
    uint64_t bytes;
    struct watch watch;
};

struct server {
    const struct config *config;
    struct access **access; /* one a pipeline of `config`; NULL: not looked up */
    uint32_t access_count;
    struct pool *pool;
    struct opener *opener;
    struct recorder *recorder;
    struct exporter *exporter; /* NULL: no metrics page */
    bool is_private;
    const char *socket;
    void (*ready)(void *arg, uint32_t opening);
    void *ready_arg;
    void (*watched)(void *arg);
    void *watched_arg;

    int epoll_fd, listen_fd, stop_fd, spare_fd;
    struct watch listen_watch, opener_watch, stop_watch, extra_watch, exporter_watch;
    struct connection *connections, *dead;
    struct ghost *ghosts, *dead_ghosts;
    struct group *groups;
    uint32_t connection_count, session_count; /* sessions: OPENING and OPEN */
    uint64_t next_number, opened;             /* opened: sessions so far */
    uint64_t tracer;                          /* number of the connection that gets the trace; 0: nobody traces */
    uint64_t trace_from_ns, trace_until_ns;
    bool trace_over; /* the workers were told; to be written with the next tick */
    uint32_t preloads;
    bool told_ready, stopping, had_connection, reaping;
    uint64_t drain_until_ns; /* 0: it does not drain */
    struct diag *failure;    /* where a dataset's failure goes that ends the daemon, or NULL */
    bool kick;               /* somebody sent a wake-up: once for all of a turn */
    uint64_t started_ns, tick_ns, second_ns, progress_ns;
    void (*beat)(void *arg); /* NULL: nobody watches */
    uint64_t beat_ns, beaten_ns;
    bool told_stuck;
    uint32_t refusals;
    struct worker_statistics *snapshot[2]; /* [0] the older */
    uint64_t snapshot_ns;
    char packet[LOADERD_MESSAGE_MAX];
};

/* ---- talking ----------------------------------------------------------------------------------------------------- */

/* Log lines about refused clients are rationed: a client must not fill the disk. */
static bool may_log(struct server *server) {
    uint64_t now = now_ns();
    if (now - server->second_ns >= SECOND_NS) {
        if (server->refusals > REFUSALS_A_SECOND)
            log_notice("%u more refusals within a second", server->refusals - REFUSALS_A_SECOND);
        server->second_ns = now;
        server->refusals = 0;
    }
    return ++server->refusals <= REFUSALS_A_SECOND;
}

/* What a client wrote must not write control characters into a log. */
static void make_printable(char *text) {
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 127)
            *text = '?';
}

static int send_packet(int fd, const void *packet, size_t length, const int *fds, size_t count) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(2 * sizeof(int))];
    } control = {0};
    struct iovec vector = {.iov_base = (void *)(uintptr_t)packet, .iov_len = length};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    if (count) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(c), fds, count * sizeof(int));
    }
    ssize_t n = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    return n < 0 ? -errno : 0;
}

static int send_error(int fd, int code, const char *text) {
    char packet[DIAG_TEXT + sizeof(struct loaderd_error_message)];
    size_t length = protocol_make_error(packet, sizeof packet, code, text);
    return send_packet(fd, packet, length, NULL, 0);
}

/* ---- ends -------------------------------------------------------------------------------------------------------- */

static int watch_fd(struct server *server, int operation, int fd, uint32_t events, struct watch *watch) {
    struct epoll_event event = {.events = events, .data.ptr = watch};
    return epoll_ctl(server->epoll_fd, operation, fd, &event) < 0 ? -errno : 0;
}

static void ghost_died(struct server *server, void *owner, uint32_t events) {
    (void)events;
    struct ghost *ghost = owner, **at = &server->ghosts;
    while (*at != ghost)
        at = &(*at)->next;
    *at = ghost->next;
    watch_fd(server, EPOLL_CTL_DEL, ghost->pid_fd, 0, NULL);
    close(ghost->pid_fd);
    ghost->next = server->dead_ghosts;
    server->dead_ghosts = ghost;
}

/* The connection's process lives on without its session. Takes its pid_fd over. */
static void add_ghost(struct server *server, struct connection *c) {
    for (struct ghost *g = server->ghosts; g; g = g->next)
        if (g->pid == c->peer.pid && g->uid == c->peer.uid) {
            g->bytes += c->ring_bytes;
            return;
        }
    struct ghost *ghost = calloc(1, sizeof *ghost);
    if (!ghost)
        return; /* counted too little rather than refused */
    *ghost = (struct ghost){.pid = c->peer.pid, .uid = c->peer.uid, .pid_fd = c->pid_fd, .bytes = c->ring_bytes};
    ghost->watch = (struct watch){ghost_died, ghost};
    if (watch_fd(server, EPOLL_CTL_ADD, ghost->pid_fd, EPOLLIN, &ghost->watch) < 0) {
        free(ghost);
        return;
    }
    c->pid_fd = -1;
    ghost->next = server->ghosts;
    server->ghosts = ghost;
}

/* What the peer sent and nobody will read: left in the socket it would turn our last message into a reset. */
static void drain(int fd) {
    char byte;
    while (recv(fd, &byte, 1, MSG_DONTWAIT | MSG_TRUNC) > 0)
        ;
}

static struct log_about about_session(const struct session_statistics *s) {
    return (struct log_about){
        .pipeline = s->pipeline, .job = s->job, .session = s->number, .rank = s->rank, .pid = s->pid, .uid = s->uid};
}

static void close_session(struct server *server, struct session *session, const char *why) {
    struct session_statistics s;
    session_statistics(session, &s);
    const struct log_about about = about_session(&s);
    log_about(LOG_INFO, &about, "session %" PRIu64 ": ended (%s) after %" PRIu64 " batches, %.1f s", s.number, why,
              s.published, (double)(now_ns() - s.opened_ns) / 1e9);
    recorder_end(server->recorder, session);
    session_close(session);
    server->reaping = true;
}

static void free_group(struct server *server, struct group *group) {
    struct group **at = &server->groups;
    while (*at != group)
        at = &(*at)->next;
    *at = group->next;
    if (group->pipeline)
        pipeline_unref(group->pipeline);
    free(group->keys);
    free(group);
}

/* A member goes: the others do not wait for it from here on. */
static void leave_group(struct server *server, struct connection *c, const char *why) {
    struct group *group = c->group;
    c->group = NULL;
    c->waiting = open_job_free(c->waiting);
    group->members--;
    if (c->session) {
        log_info("group %s: pid %d left (%s), %u members go on", group->name, (int)c->peer.pid, why, group->members);
        if (!server->drain_until_ns && !server->stopping) /* else nothing it may hold is overwritten */
            session_leave(c->session, c->member);
        server->reaping = true;
    }
    if (group->members || group->state == BEGINNING)
        return;
    if (group->session)
        close_session(server, group->session, why);
    free_group(server, group);
}

/* The struct itself lives until the events in hand are done. */
static void close_connection(struct server *server, struct connection *c, const char *why) {
    watch_fd(server, EPOLL_CTL_DEL, c->fd, 0, NULL);
    if (c->pid_fd >= 0)
        watch_fd(server, EPOLL_CTL_DEL, c->pid_fd, 0, NULL);
    shutdown(c->fd, SHUT_RDWR); /* the session's copy of the descriptor may live a little longer */
    drain(c->fd);
    close(c->fd);
    if (c->state == OPENING || c->state == OPEN)
        server->session_count--;
    if (c->group)
        leave_group(server, c, why);
    else if (c->session)
        close_session(server, c->session, why);
    if (c->session) {
        c->session = NULL;
        if (!server->is_private && c->pid_fd >= 0)
            add_ghost(server, c);
    }
    if (c->pid_fd >= 0)
        close(c->pid_fd);
    if (c->pipeline)
        pipeline_unref(c->pipeline);
    if (c->next)
        c->next->previous = c->previous;
    if (c->previous)
        c->previous->next = c->next;
    else
        server->connections = c->next;
    server->connection_count--;
    c->next = server->dead;
    c->fd = -1;
    server->dead = c;
}

static void bury(struct server *server) {
    while (server->dead) {
        struct connection *c = server->dead;
        server->dead = c->next;
        free(c);
    }
    while (server->dead_ghosts) {
        struct ghost *g = server->dead_ghosts;
        server->dead_ghosts = g->next;
        free(g);
    }
}

/* Says why, and ends the connection. */
static void refuse(struct server *server, struct connection *c, int code, const char *text) {
    char line[DIAG_TEXT];
    snprintf(line, sizeof line, "%s", text);
    make_printable(line);
    const struct log_about about = {.pid = c->peer.pid, .uid = c->peer.uid, .session = c->session_number};
    if (may_log(server))
        log_about(LOG_NOTICE, &about, "client pid %d uid %u: %s", (int)c->peer.pid, (unsigned)c->peer.uid, line);
    send_error(c->fd, code, text);
    close_connection(server, c, line);
}

/* Answers; a peer that lets its socket fill up is not waited for. */
static bool answer(struct server *server, struct connection *c, const void *packet, size_t length, const int *fds,
                   size_t count) {
    int r = send_packet(c->fd, packet, length, fds, count);
    if (r == 0)
        return true;
    close_connection(server, c, r == -EAGAIN ? "it does not read its answers" : strerror(-r));
    return false;
}

/* ---- who may --------------------------------------------------------------------------------------------------- */

static void free_access(struct server *server) {
    for (uint32_t i = 0; i < server->access_count; i++)
        access_free(server->access[i]);
    free(server->access);
    server->access = NULL;
    server->access_count = 0;
}

/* Looks up the names of all pipelines' `allow`. A list that is not there allows nobody but root. */
static void read_access(struct server *server) {
    free_access(server);
    uint32_t pipelines = server->config->pipelines;
    server->access = calloc(MAX(pipelines, 1u), sizeof *server->access);
    if (!server->access)
        return;
    server->access_count = pipelines;
    for (uint32_t i = 0; i < pipelines; i++) {
        struct diag unknown = DIAG_INIT;
        const struct pipeline_config *pipeline = &server->config->pipeline[i];
        if (access_new(pipeline->allow, &server->access[i], &unknown) == 0 && unknown.code)
            log_warning("pipeline %s: %s: nobody is let in by it; once there is one, reload", pipeline->name,
                        unknown.text);
    }
}

/* May the peer open sessions of the pipeline that it names? Unknown names are make_base()'s to tell. */
static int check_access(const struct server *server, const struct connection *c, const char *name, struct diag *diag) {
    const struct pipeline_config *found = server->is_private ? NULL : config_pipeline(server->config, name);
    if (!found)
        return 0;
    size_t i = (size_t)(found - server->config->pipeline);
    if (i < server->access_count && server->access[i] && access_allows_peer(server->access[i], geteuid(), c->fd))
        return 0;
    if (c->peer.uid == 0 || c->peer.uid == geteuid())
        return 0;
    return diag_set(
        diag, -EACCES,
        "pipeline '%s' does not let user %u in: it allows %.200s (key allow of loaderd.conf; groups are those "
        "that the process has)",
        found->name, (unsigned)c->peer.uid, found->allow);
}

/* ---- quotas ------------------------------------------------------------------------------------------------------ */

struct usage {
    uint32_t connections, sessions;
    uint64_t bytes;
};

static struct usage usage_of(const struct server *server, uid_t uid) {
    struct usage u = {0};
    for (const struct connection *c = server->connections; c; c = c->next)
        if (c->peer.uid == uid) {
            u.connections++;
            u.sessions += c->state == OPENING || c->state == OPEN;
            u.bytes += c->ring_bytes;
        }
    for (const struct ghost *g = server->ghosts; g; g = g->next)
        if (g->uid == uid)
            u.bytes += g->bytes;
    return u;
}

/* May a user who holds rings of `held` bytes have `more`? */
static int check_ring_quota(const struct server *server, const struct connection *c, uint64_t held, uint64_t more,
                            struct diag *diag) {
    const struct daemon_config *d = &server->config->daemon;
    uint64_t limit = d->max_ring_bytes_per_user;
    if (limit == 0 && !mul_u64(d->max_ring_bytes, d->max_sessions_per_user, &limit))
        limit = UINT64_MAX;
    if (server->is_private || (held <= limit && more <= limit - held))
        return 0;
    char wanted[48] = "another one";
    if (more > 1)
        snprintf(wanted, sizeof wanted, "one of %.1f MiB more", (double)more / 1048576.0);
    return diag_set(
        diag, -EUSERS,
        "user %u holds rings of %.1f MiB and wants %s; %s one user have %.1f MiB. Rings of closed sessions count until "
        "their process ends; lower slots or batch, or raise the key",
        (unsigned)c->peer.uid, (double)held / 1048576.0, wanted,
        d->max_ring_bytes_per_user ? "max-ring-bytes-per-user lets" : "max-ring-bytes x max-sessions-per-user let",
        (double)limit / 1048576.0);
}

static int check_session_quota(const struct server *server, const struct connection *c, struct diag *diag) {
    const struct daemon_config *d = &server->config->daemon;
    struct usage u = usage_of(server, c->peer.uid);
    if (server->session_count >= d->max_sessions)
        return diag_set(diag, -EUSERS, "the daemon has %u sessions, as many as max-sessions allows", d->max_sessions);
    if (u.sessions >= d->max_sessions_per_user)
        return diag_set(diag, -EUSERS, "user %u has %u sessions, as many as max-sessions-per-user allows",
                        (unsigned)c->peer.uid, u.sessions);
    return check_ring_quota(server, c, u.bytes, 1, diag);
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static void on_hello(struct server *server, struct connection *c, size_t length) {
    struct diag diag = DIAG_INIT;
    struct protocol_versions versions;
    if (c->state != FRESH) {
        refuse(server, c, -EPROTO, "second HELLO on one connection");
        return;
    }
    int r = protocol_parse_hello(server->packet, length, &versions, &diag);
    if (r < 0) {
        refuse(server, c, r, diag.text);
        return;
    }
    struct loaderd_hello_ok ok = {
        .message = {.type = LOADERD_HELLO_OK, .length = sizeof ok},
        .protocol = versions.protocol,
        .ring = versions.ring,
        .daemon_pid = getpid(),
        .is_private = server->is_private,
    };
    snprintf(ok.version, sizeof ok.version, "%s", LOADERD_VERSION);
    if (answer(server, c, &ok, sizeof ok, NULL, 0))
        c->state = READY;
}

static int unknown_pipeline(const struct server *server, const char *name, struct diag *diag) {
    char names[256] = "";
    size_t at = 0;
    for (uint32_t i = 0; i < server->config->pipelines && at < sizeof names; i++)
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", i ? ", " : "", server->config->pipeline[i].name);
    return diag_set(diag, -ENOENT, "no pipeline '%.60s' here; there %s %s. A dataset's path needs a '/' in it", name,
                    server->config->pipelines == 1 ? "is" : "are", *names ? names : "none");
}

/* The pipeline as configured; in a private daemon the name is the dataset. */
static int make_base(const struct server *server, const struct protocol_open *open, struct pipeline_config *ret,
                     struct diag *diag) {
    if (!server->is_private) {
        const struct pipeline_config *found = config_pipeline(server->config, open->name);
        return found ? pipeline_config_copy(found, ret) : unknown_pipeline(server, open->name, diag);
    }
    const char *slash = strrchr(open->name, '/');
    int r = pipeline_config_init(ret, slash && slash[1] ? slash + 1 : open->name);
    return r < 0 ? r : pipeline_config_set(ret, "dataset", open->name, diag);
}

static int apply_key(const struct server *server, const char *text, struct pipeline_config *config, struct diag *diag) {
    char key[64];
    size_t length = strcspn(text, "=");
    if (length >= sizeof key)
        return diag_set(diag, -ENOENT, "no such key: '%.60s...'", text);
    memcpy(key, text, length);
    key[length] = '\0';
    if (!config_is_pipeline_key(key) && config_is_daemon_key(key))
        return server->is_private ? 0 /* given when it was started */
                                  : diag_set(diag, -EACCES, "key '%s' is the daemon's; its configuration sets it", key);
    int r = server->is_private ? 0 : pipeline_config_let(config, key, diag);
    return r < 0 ? r : pipeline_config_set(config, key, text + length + 1, diag);
}

/* "NAME:MEMBERS", as options.group has it. */
static int parse_group(const char *text, struct open_job *job, struct diag *diag) {
    const char *colon = strrchr(text, ':');
    char *end = NULL;
    unsigned long members = colon ? strtoul(colon + 1, &end, 10) : 0;
    if (!colon || colon == text || (size_t)(colon - text) >= sizeof job->group || *end || members < 1 ||
        members > RING_MOST_MEMBERS || colon[1] < '0' || colon[1] > '9')
        return diag_set(diag, -EINVAL, "group '%.60s': it must be NAME:MEMBERS, of 1 to %u members", text,
                        RING_MOST_MEMBERS);
    memcpy(job->group, text, (size_t)(colon - text));
    make_printable(job->group);
    job->expected = (uint32_t)members;
    return 0;
}

/* Fills a job from a parsed OPEN. */
static int make_job(const struct server *server, const struct connection *c, const struct protocol_open *open,
                    struct open_job *job, struct diag *diag) {
    int r = make_base(server, open, &job->base, diag);
    if (r == 0)
        r = pipeline_config_copy(&job->base, &job->request.config);
    for (const char *key = protocol_first_key(open); key && r == 0; key = protocol_next_key(open, key))
        r = strncmp(key, "group=", 6) == 0 ? parse_group(key + 6, job, diag)
                                           : apply_key(server, key, &job->request.config, diag);
    if (r == 0 && server->is_private) { /* dataset keys among the client's belong to the base */
        pipeline_config_deinit(&job->base);
        r = pipeline_config_copy(&job->request.config, &job->base);
    }
    if (r < 0)
        return r;
    job->connection = c->number;
    job->job = strdup(open->job);
    if (!job->job)
        return -ENOMEM;
    make_printable(job->job);
    const struct loaderd_open_message *m = &open->fixed;
    struct session_request *request = &job->request;
    request->rank = m->rank;
    request->world = m->world;
    request->held = MAX(m->held, 1u);
    request->epoch = m->epoch;
    request->step = m->step;
    request->epochs = m->epochs ? m->epochs : request->config.epochs;
    request->has_state = (m->flags & LOADERD_OPEN_HAS_STATE) != 0;
    request->state_seed = m->seed;
    request->state_global_batch = m->global_batch;
    memcpy(request->state_fingerprint, m->fingerprint, sizeof m->fingerprint);
    request->pid = c->peer.pid;
    request->uid = c->peer.uid;
    request->max_ring_bytes = server->config->daemon.max_ring_bytes;
    if (m->held > LOADERD_RING_MAX_SLOTS - 2)
        return diag_set(diag, -EINVAL, "%u batches cannot be held at once: a ring has at most %u slots", m->held,
                        LOADERD_RING_MAX_SLOTS);
    request->wake_fd = fcntl(c->fd, F_DUPFD_CLOEXEC, 3);
    if (request->wake_fd < 0)
        return diag_set(diag, -errno, "no descriptor left for the session (%s); raise LimitNOFILE", strerror(errno));
    return 0;
}

static void enter_group(struct server *server, struct connection *c, struct open_job *job);

static void on_open(struct server *server, struct connection *c, size_t length) {
    struct diag diag = DIAG_INIT;
    struct protocol_open open;
    if (c->state != READY) {
        refuse(server, c, -EPROTO, c->state == FRESH ? "OPEN before HELLO" : "second OPEN on one connection");
        return;
    }
    struct open_job *job = open_job_new();
    int r = job ? protocol_parse_open(server->packet, length, &open, &diag) : -ENOMEM;
    if (r == 0 && server->drain_until_ns)
        r = diag_set(&diag, -ESHUTDOWN, "the daemon drains: it opens no session any more");
    if (r == 0)
        r = check_access(server, c, open.name, &diag);
    if (r == 0)
        r = check_session_quota(server, c, &diag);
    if (r == 0)
        r = make_job(server, c, &open, job, &diag);
    if (r < 0) {
        open_job_free(job);
        refuse(server, c, r, diag.code ? diag.text : strerror(-r));
        return;
    }
    c->state = OPENING;
    server->session_count++;
    if (*job->group)
        enter_group(server, c, job);
    else
        opener_submit(server->opener, job);
}

static void on_sample_path(struct server *server, struct connection *c, size_t length) {
    struct diag diag = DIAG_INIT;
    uint64_t sample;
    if (c->state != OPEN) {
        refuse(server, c, -EPROTO, "SAMPLE_PATH without a session");
        return;
    }
    int r = protocol_parse_sample_path(server->packet, length, &sample, &diag);
    if (r < 0) {
        refuse(server, c, r, diag.text);
        return;
    }
    const struct dataset *dataset = pipeline_dataset(c->pipeline);
    char packet[sizeof(struct loaderd_text) + 8192], *text = packet + offsetof(struct loaderd_text, text);
    const size_t room = sizeof packet - offsetof(struct loaderd_text, text);
    if (sample >= dataset_samples(dataset)) {
        diag_set(&diag, -ERANGE, "no sample %" PRIu64 ": the dataset has %" PRIu64, sample, dataset_samples(dataset));
        if (send_error(c->fd, -ERANGE, diag.text) < 0)
            close_connection(server, c, "it does not read its answers");
        return;
    }
    r = dataset_name(dataset, sample, text, room);
    if (r < 0)
        text[r = 0] = '\0';
    struct loaderd_text head = {.bytes = strlen(text)};
    size_t total = offsetof(struct loaderd_text, text) + strlen(text) + 1;
    head.message = (struct loaderd_message){.type = LOADERD_TEXT, .length = (uint32_t)total};
    memcpy(packet, &head, offsetof(struct loaderd_text, text));
    answer(server, c, packet, total, NULL, 0);
}

/* May it have another report? Each holds a descriptor in flight. False where the connection is closed. */
static bool may_report(struct server *server, struct connection *c, const char *what) {
    if (c->state == FRESH) {
        char text[64];
        snprintf(text, sizeof text, "%s before HELLO", what);
        refuse(server, c, -EPROTO, text);
        return false;
    }
    int unread = 0;
    if (ioctl(c->fd, SIOCOUTQ, &unread) == 0 && unread > MOST_UNREAD) {
        close_connection(server, c, "it does not read its answers");
        return false;
    }
    return true;
}

/* Answers with a report, or says that there is no memory for it (r < 0). Closes the descriptor. */
static void answer_report(struct server *server, struct connection *c, int r, int fd, uint64_t bytes) {
    const struct loaderd_text text = {.message = {.type = LOADERD_TEXT, .length = sizeof text}, .bytes = bytes};
    if (r < 0) {
        refuse(server, c, r, "no memory left for the report");
        return;
    }
    answer(server, c, &text, sizeof text, &fd, 1);
    close(fd);
}

static void on_status(struct server *server, struct connection *c) {
    if (!may_report(server, c, "STATUS"))
        return;
    char note[80];
    snprintf(note, sizeof note, "%u connections, %u sessions", server->connection_count, server->session_count);
    struct status_source source = {
        .pool = server->pool,
        .opener = server->opener,
        .recorder = server->recorder,
        .socket = server->socket,
        .is_private = server->is_private,
        .started_ns = server->started_ns,
        .before = server->snapshot_ns ? server->snapshot[0] : NULL,
        .note = note,
    };
    int fd = -1;
    uint64_t bytes = 0;
    int r = status_make(&source, &fd, &bytes);
    answer_report(server, c, r, fd, bytes);
}

static bool is_owner(const struct connection *c) {
    return c->peer.uid == 0 || c->peer.uid == geteuid();
}

static void on_trace(struct server *server, struct connection *c, size_t length) {
    struct diag diag = DIAG_INIT;
    uint32_t ms = 0;
    if (!may_report(server, c, "TRACE"))
        return;
    int r = protocol_parse_trace(server->packet, length, &ms, &diag);
    if (r == 0 && (ms < 1 || ms > TRACE_MOST_MS))
        r = diag_set(&diag, -EINVAL, "a trace of %u ms: from 1 to %u are possible", ms, TRACE_MOST_MS);
    if (r == 0 && server->tracer)
        r = diag_set(&diag, -EBUSY, "another trace is under way; it takes at most %u s", TRACE_MOST_MS / 1000);
    if (r == 0 && (r = trace_begin(server->pool)) < 0)
        diag_set(&diag, r, "no memory left for a trace");
    if (r < 0) {
        refuse(server, c, r, diag.text);
        return;
    }
    server->tracer = c->number;
    server->trace_over = false;
    server->trace_from_ns = now_ns();
    server->trace_until_ns = server->trace_from_ns + ms * UINT64_C(1000000);
}

/* Ends a trace whose time is over; writes it with the tick after that. */
static void step_trace(struct server *server, uint64_t now) {
    struct connection *c = server->connections;
    if (!server->tracer || now < server->trace_until_ns)
        return;
    if (!server->trace_over) {
        trace_end(server->pool);
        server->trace_over = true;
        server->trace_until_ns = now_ns();
        return;
    }
    if (now - server->trace_until_ns < TRACE_SETTLE_NS)
        return;
    while (c && c->number != server->tracer)
        c = c->next;
    server->tracer = 0;
    if (!c)
        return;
    cleanup_free char *text = NULL;
    size_t bytes = 0;
    int fd = -1;
    FILE *out = open_memstream(&text, &bytes);
    if (out)
        trace_write(server->pool, server->trace_from_ns, server->trace_until_ns, out);
    int r = out && fclose(out) == 0 ? status_to_memfd(text, bytes, &fd) : -ENOMEM;
    answer_report(server, c, r, fd, bytes);
}

static void make_metrics(void *arg, FILE *out) {
    const struct server *server = arg;
    metrics_write(&(struct metrics_source){.pool = server->pool,
                                           .recorder = server->recorder,
                                           .started_ns = server->started_ns,
                                           .opened = server->opened,
                                           .connections = server->connection_count},
                  out);
}

static void on_exporter(struct server *server, void *owner, uint32_t events) {
    (void)owner, (void)events;
    if (server->exporter) /* draining: it was given up meanwhile */
        exporter_run(server->exporter);
}

/* The metrics page, where the configuration asks for one. */
static int open_exporter(struct server *server, struct diag *diag) {
    const struct daemon_config *config = &server->config->daemon;
    if (!*config->metrics || server->is_private)
        return 0;
    int r = exporter_new(config, make_metrics, server, &server->exporter, diag);
    if (r < 0)
        return r;
    server->exporter_watch = (struct watch){on_exporter, NULL};
    return watch_fd(server, EPOLL_CTL_ADD, exporter_fd(server->exporter), EPOLLIN, &server->exporter_watch);
}

static void close_exporter(struct server *server) {
    if (!server->exporter)
        return;
    if (exporter_fd(server->exporter) >= 0)
        watch_fd(server, EPOLL_CTL_DEL, exporter_fd(server->exporter), 0, NULL);
    exporter_free(server->exporter);
    server->exporter = NULL;
}

static void on_stalls(struct server *server, struct connection *c, size_t length) {
    struct diag diag = DIAG_INIT;
    struct loaderd_stalls stalls;
    if (!may_report(server, c, "STALLS"))
        return;
    int r = protocol_parse_stalls(server->packet, length, &stalls, &diag), fd = -1;
    if (r < 0) {
        refuse(server, c, r, diag.text);
        return;
    }
    const struct recorder_filter filter = {
        .since_ns = stalls.since_ns, .over_ns = stalls.over_ns, .all = is_owner(c), .uid = c->peer.uid};
    cleanup_free char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (out)
        recorder_write_stalls(server->recorder, &filter, out);
    r = out && fclose(out) == 0 ? status_to_memfd(text, bytes, &fd) : -ENOMEM;
    answer_report(server, c, r, fd, bytes);
}

/* Answers with a sentence. */
static void answer_text(struct server *server, struct connection *c, const char *sentence) {
    char packet[sizeof(struct loaderd_text) + DIAG_TEXT];
    size_t head = offsetof(struct loaderd_text, text), bytes = strlen(sentence);
    struct loaderd_text text = {.bytes = bytes};
    text.message = (struct loaderd_message){.type = LOADERD_TEXT, .length = (uint32_t)(head + bytes + 1)};
    memcpy(packet, &text, head);
    memcpy(packet + head, sentence, bytes + 1);
    answer(server, c, packet, head + bytes + 1, NULL, 0);
}

/* Others can have the socket from here on. */
static void begin_drain(struct server *server, uint64_t ms) {
    server->drain_until_ns = now_ns() + ms * 1000000;
    server_unlisten();
    close_exporter(server);
    watch_fd(server, EPOLL_CTL_DEL, server->listen_fd, 0, NULL);
    close(server->listen_fd);
    server->listen_fd = -1;
    for (struct connection *c = server->connections; c; c = c->next)
        if (c->session)
            session_finish(c->session);
    log_notice("draining: %u sessions go to the next daemon at %s", server->session_count, server->socket);
}

static void on_drain(struct server *server, struct connection *c, size_t length) {
    struct diag diag = DIAG_INIT;
    uint32_t ms;
    char text[160];
    int r = c->state == FRESH ? diag_set(&diag, -EPROTO, "DRAIN before HELLO")
                              : protocol_parse_drain(server->packet, length, &ms, &diag);
    if (r == 0 && !is_owner(c))
        r = diag_set(&diag, -EACCES, "only root and user %u, whose daemon this is, may drain it", (unsigned)geteuid());
    if (r < 0) {
        refuse(server, c, r, diag.text);
        return;
    }
    if (!server->drain_until_ns)
        begin_drain(server, ms);
    snprintf(text, sizeof text, "the daemon, pid %d, drains; it has %u sessions", (int)getpid(), server->session_count);
    answer_text(server, c, text);
}

/* Sessions that have finished end; the last one ends the daemon. */
static void step_drain(struct server *server, uint64_t now) {
    static const char why[] = "the daemon drains: the next one goes on";
    for (struct connection *c = server->connections, *next; c; c = next) {
        next = c->next;
        if (c->waiting && c->group->state == GATHERING) {
            refuse(server, c, -ESHUTDOWN, why);
            continue;
        }
        if (c->state != OPEN || (now < server->drain_until_ns && !session_finished(c->session)))
            continue;
        send_error(c->fd, -ESHUTDOWN, why); /* full: the end of the connection tells as much */
        close_connection(server, c, "drained");
    }
    if (server->session_count == 0 || now >= server->drain_until_ns)
        server->stopping = true;
}

static void on_detach(struct server *server, struct connection *c, size_t length) {
    struct diag diag = DIAG_INIT;
    struct loaderd_detach detach;
    int r = c->state == FRESH ? diag_set(&diag, -EPROTO, "DETACH before HELLO")
                              : protocol_parse_detach(server->packet, length, &detach, &diag);
    if (r < 0) {
        refuse(server, c, r, diag.text);
        return;
    }
    struct connection *found = server->connections;
    while (found && (found->state != OPEN || found->session_number != detach.session))
        found = found->next;
    if (!found)
        r = diag_set(&diag, -ENOENT, "no session %" PRIu64 " here; `loaderctl status` lists them", detach.session);
    else if (!is_owner(c) && c->peer.uid != found->peer.uid)
        r = diag_set(&diag, -EACCES, "session %" PRIu64 " is user %u's", detach.session, (unsigned)found->peer.uid);
    if (r < 0) {
        refuse(server, c, r, diag.text);
        return;
    }
    char text[DIAG_TEXT];
    make_printable(detach.reason);
    snprintf(text, sizeof text, "session %" PRIu64 " was detached by user %u%s%s", detach.session,
             (unsigned)c->peer.uid, *detach.reason ? ": " : "", detach.reason);
    for (struct connection *next; found; found = next) { /* all members, where it is a group's */
        next = found->next;
        if (found != c && found->state == OPEN && found->session_number == detach.session)
            refuse(server, found, -ECANCELED, text);
    }
    answer_text(server, c, text);
}

static void spend(struct connection *c, uint32_t cost) {
    c->budget -= MIN(c->budget, cost);
}

static uint32_t cost_of(uint32_t type) {
    switch (type) {
    case PROTOCOL_WAKE:
        return WAKE_COST;
    case LOADERD_STATUS:
        return STATUS_COST;
    case LOADERD_STALLS:
        return STALLS_COST;
    default:
        return MESSAGE_COST;
    }
}

/* One packet. False where the connection is closed. */
static bool on_packet(struct server *server, struct connection *c, size_t length) {
    struct diag diag = DIAG_INIT;
    uint32_t type;
    int r = length > sizeof server->packet
                ? diag_set(&diag, -EPROTO, "message of %zu bytes: at most %u are allowed", length, LOADERD_MESSAGE_MAX)
                : protocol_type(server->packet, length, &type, &diag);
    if (r < 0) {
        refuse(server, c, r, diag.text);
        return false;
    }
    spend(c, cost_of(type));
    switch (type) {
    case PROTOCOL_WAKE:
        server->kick = true;
        break;
    case LOADERD_HELLO:
        on_hello(server, c, length);
        break;
    case LOADERD_OPEN:
        on_open(server, c, length);
        break;
    case LOADERD_SAMPLE_PATH:
        on_sample_path(server, c, length);
        break;
    case LOADERD_DRAIN:
        on_drain(server, c, length);
        break;
    case LOADERD_DETACH:
        on_detach(server, c, length);
        break;
    case LOADERD_STALLS:
        on_stalls(server, c, length);
        break;
    case LOADERD_TRACE:
        on_trace(server, c, length);
        break;
    default:
        on_status(server, c);
        break;
    }
    return c->fd >= 0; /* a closed one lives until bury() */
}

static void mute(struct server *server, struct connection *c) {
    if (c->muted || watch_fd(server, EPOLL_CTL_MOD, c->fd, 0, &c->socket_watch) < 0)
        return;
    c->muted = true; /* a hang-up is still told */
}

static void on_socket(struct server *server, void *owner, uint32_t events) {
    struct connection *c = owner;
    bool open = c->fd >= 0;
    for (int i = 0; open && i < MESSAGES_A_TURN; i++) {
        if (c->budget == 0) {
            mute(server, c);
            break;
        }
        ssize_t n = recv(c->fd, server->packet, sizeof server->packet, MSG_DONTWAIT | MSG_TRUNC);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            break;
        if (n <= 0) {
            close_connection(server, c, n == 0 ? "end of its connection" : strerror(errno));
            open = false;
            break;
        }
        open = on_packet(server, c, (size_t)n);
    }
    if (open && (events & (EPOLLHUP | EPOLLERR)) && c->muted)
        close_connection(server, c, "end of its connection");
}

static void on_death(struct server *server, void *owner, uint32_t events) {
    (void)events;
    struct connection *c = owner;
    if (c->fd >= 0)
        close_connection(server, c, "its process ended");
}

/* ---- sessions that the opener made ------------------------------------------------------------------------------- */

static struct connection *find_connection(const struct server *server, uint64_t number) {
    struct connection *c = server->connections;
    while (c && c->number != number)
        c = c->next;
    return c;
}

static void send_opened(struct server *server, struct connection *c) {
    struct session_info info;
    session_info(c->session, c->member, &info);
    struct loaderd_opened opened = {
        .message = {.type = LOADERD_OPENED, .length = sizeof opened},
        .session = c->session_number,
        .start = info.start,
        .data_bytes = info.data_bytes,
        .control_bytes = info.control_bytes,
        .global_batch = info.global_batch,
    };
    memcpy(opened.fingerprint, info.fingerprint, sizeof opened.fingerprint);
    snprintf(opened.engine, sizeof opened.engine, "%s", pool_engine(server->pool));
    const int fds[2] = {info.data_fd, info.control_fd};
    answer(server, c, &opened, sizeof opened, fds, 2);
}

static void adopt_session(struct server *server, struct connection *c, struct open_job *job) {
    struct session_statistics s;
    c->session = job->session;
    c->pipeline = steal_pointer(&job->pipeline);
    c->state = OPEN;
    session_statistics(c->session, &s);
    c->session_number = s.number;
    c->ring_bytes = s.ring_bytes;
    const struct log_about about = about_session(&s);
    log_about(LOG_INFO, &about,
              "session %" PRIu64 ": pipeline %s for pid %d uid %u%s%s, rank %u of %u, batch %u, ring of %u batches "
              "(%.1f MiB%s), from epoch %" PRIu64 " step %" PRIu64,
              s.number, s.pipeline, s.pid, s.uid, *s.job ? " job " : "", s.job, s.rank, s.world, s.batch, s.slots,
              (double)s.ring_bytes / 1048576.0, s.locked ? ", locked" : "", job->request.epoch, job->request.step);
    server->opened++;
    recorder_begin(server->recorder, c->session);
    send_opened(server, c);
    server->kick = true;
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

/* A member's session is the group's. */
static void adopt_member(struct server *server, struct connection *c, uint32_t member, const struct open_job *job) {
    struct group *group = c->group;
    struct session_statistics s;
    c->session = group->session;
    c->member = member;
    c->pipeline = pipeline_ref(group->pipeline);
    c->state = OPEN;
    session_statistics(c->session, &s);
    c->session_number = s.number;
    c->ring_bytes = member == 0 ? s.ring_bytes : 0;
    log_info("group %s: pid %d is member %u of session %" PRIu64 ", from epoch %" PRIu64 " step %" PRIu64, group->name,
             (int)c->peer.pid, member, s.number, job->request.epoch, job->request.step);
    send_opened(server, c);
}

/* A member that waits, of a group that shares: it joins, or gets a session of its own where the ring is past it. */
static void admit(struct server *server, struct connection *c) {
    struct diag diag = DIAG_INIT;
    struct open_job *job = steal_pointer(&c->waiting);
    uint32_t member;
    int r = session_join(c->group->session, &job->request, &member, &diag);
    if (r == 0) {
        job->request.wake_fd = -1; /* the session's now */
        adopt_member(server, c, member, job);
    } else if (r == -ESTALE && diag.code == 0) {
        log_info("group %s: pid %d comes back to epoch %" PRIu64 " step %" PRIu64
                 ", which the others are past: it catches up by itself",
                 c->group->name, (int)c->peer.pid, job->request.epoch, job->request.step);
        leave_group(server, c, "catches up");
        job->group[0] = '\0';
        opener_submit(server->opener, job);
        return;
    } else {
        refuse(server, c, r, diag.text);
    }
    open_job_free(job);
}

/* The session is opened for the member whose next batch is the first of all. */
static void begin_group(struct server *server, struct group *group) {
    struct connection *first = NULL;
    uint32_t held = 1;
    for (struct connection *c = server->connections; c; c = c->next) {
        if (c->group != group)
            continue;
        const struct session_request *a = &c->waiting->request, *b = first ? &first->waiting->request : NULL;
        if (!b || a->epoch < b->epoch || (a->epoch == b->epoch && a->step < b->step))
            first = c;
        held = MAX(held, a->held);
    }
    struct open_job *job = steal_pointer(&first->waiting);
    job->request.held = held;
    group->state = BEGINNING;
    group->leader = first->number;
    opener_submit(server->opener, job);
}

static struct group *find_group(const struct server *server, const struct connection *c, const char *name) {
    struct group *group = server->groups;
    while (group && (group->uid != c->peer.uid || strcmp(group->name, name) != 0))
        group = group->next;
    return group;
}

/* What members must agree in, but for the dataset's own fingerprint, which is one and the same pipeline's. */
static char *agreement(const struct open_job *job) {
    char text[4096], *all;
    const struct session_request *r = &job->request;
    if (pipeline_config_describe(&r->config, text, sizeof text) < 0)
        return NULL;
    uint64_t end = r->epochs ? r->epoch + r->epochs : 0;
    if (asprintf(&all, "%s %s %u members, batch %u, seed %" PRIu64 ", rank %u of %u, until epoch %" PRIu64 "\n%s",
                 r->config.name, r->config.dataset, job->expected, r->config.batch,
                 r->has_state ? r->state_seed : r->config.seed, r->rank, r->world, end, text) < 0)
        return NULL;
    return all;
}

static struct group *new_group(struct server *server, const struct connection *c, const struct open_job *job,
                               char *keys) {
    struct group *group = calloc(1, sizeof *group);
    if (!group)
        return NULL;
    const struct pipeline_config *config = &job->request.config;
    *group = (struct group){.uid = c->peer.uid,
                            .keys = keys,
                            .expected = job->expected,
                            .deadline_ns = now_ns() + config->group_wait * SECOND_NS,
                            .laggard_seconds = config->group_laggard};
    memcpy(group->name, job->group, sizeof group->name);
    group->next = server->groups;
    server->groups = group;
    return group;
}

static void enter_group(struct server *server, struct connection *c, struct open_job *job) {
    cleanup_free char *keys = agreement(job);
    struct group *group = find_group(server, c, job->group);
    if (!group && keys) {
        group = new_group(server, c, job, keys);
        if (group)
            keys = NULL;
    } else if (group && keys && strcmp(group->keys, keys) != 0) {
        char text[DIAG_TEXT];
        snprintf(text, sizeof text,
                 "group %s is another one's: %.*s; this member asks for %.*s; all keys must agree, too", group->name,
                 (int)strcspn(group->keys, "\n"), group->keys, (int)strcspn(keys, "\n"), keys);
        open_job_free(job);
        refuse(server, c, -EINVAL, text);
        return;
    }
    if (!group) {
        open_job_free(job);
        refuse(server, c, -ENOMEM, "no memory left for a group");
        return;
    }
    c->group = group;
    c->waiting = job;
    group->members++;
    if (group->state == SHARING)
        admit(server, c);
    else if (group->state == GATHERING && group->members == group->expected)
        begin_group(server, group);
}

/* The ring of a group counts against its user once. */
static void check_group_quota(const struct server *server, const struct group *group, struct diag *diag) {
    struct session_statistics s;
    const struct connection *member = server->connections;
    while (member && member->group != group)
        member = member->next;
    session_statistics(group->session, &s);
    if (member)
        check_ring_quota(server, member, usage_of(server, group->uid).bytes, s.ring_bytes, diag);
}

/* The session of a group was opened, or could not be. */
static void on_group(struct server *server, struct open_job *job) {
    struct connection *c, *next, *leader = NULL;
    struct group *group = server->groups;
    while (group && (group->state != BEGINNING || group->leader != job->connection))
        group = group->next;
    if (!group) { /* the server stops */
        session_close(job->session);
        return;
    }
    group->state = SHARING;
    group->session = job->session;
    group->pipeline = steal_pointer(&job->pipeline);
    if (group->session) {
        server->opened++;
        recorder_begin(server->recorder, group->session);
    }
    group->members++; /* ours, so that it lives until the end of this */
    struct diag over = DIAG_INIT;
    if (job->code == 0)
        check_group_quota(server, group, &over);
    for (c = server->connections; c; c = next) {
        next = c->next;
        if (c->group != group)
            continue;
        if (server->drain_until_ns)
            refuse(server, c, -ESHUTDOWN, "the daemon drains: it opens no session any more");
        else if (job->code < 0)
            refuse(server, c, job->code, job->diag.code ? job->diag.text : strerror(-job->code));
        else if (over.code)
            refuse(server, c, over.code, over.text);
        else if (c->number == job->connection)
            leader = c;
        else
            admit(server, c);
    }
    if (leader)
        adopt_member(server, leader, 0, job);
    else if (group->session)
        session_leave(group->session, 0);
    if (group->session)
        session_start(group->session);
    server->kick = server->reaping = true;
    if (--group->members == 0) {
        if (group->session)
            close_session(server, group->session, "nobody is left");
        free_group(server, group);
    }
}

/* The others wait for these members too long: they go on without them. */
static void drop_laggards(struct server *server, struct group *group, uint64_t now) {
    uint64_t sequence;
    uint32_t laggards = session_laggards(group->session, &sequence);
    if (!laggards || sequence != group->stall_sequence || !group->stall_ns) {
        group->stall_sequence = sequence;
        group->stall_ns = laggards ? now : 0;
        return;
    }
    if (now - group->stall_ns < group->laggard_seconds * SECOND_NS)
        return;
    group->stall_ns = 0;
    group->members++;
    for (struct connection *c = server->connections, *next; c; c = next) {
        char text[DIAG_TEXT];
        next = c->next;
        if (c->group != group || c->state != OPEN || !(laggards >> c->member & 1))
            continue;
        snprintf(text, sizeof text,
                 "group %s waited %u s for this trainer (group-laggard) and went on without it; what it holds may be "
                 "overwritten",
                 group->name, group->laggard_seconds);
        refuse(server, c, -ESTALE, text);
    }
    group->members--; /* somebody waited, so somebody is left */
}

static void tick_groups(struct server *server, uint64_t now) {
    for (struct group *group = server->groups, *next; group; group = next) {
        next = group->next;
        if (group->state == GATHERING && now >= group->deadline_ns)
            begin_group(server, group);
        else if (group->state == SHARING && group->laggard_seconds)
            drop_laggards(server, group, now);
    }
}

static void on_preload(struct server *server, const struct open_job *job) {
    server->preloads--;
    if (job->code < 0 && server->failure) { /* the only thing to serve */
        *server->failure = job->diag;
        server->stopping = true;
    } else if (job->code < 0) {
        log_warning("pipeline %s cannot be served: %s", job->base.name, job->diag.text);
    }
}

/* Now that the ring's size is known: what is too much is closed again, and its trainer told. */
static bool fits_quota(struct server *server, struct connection *c, struct session *session) {
    struct diag diag = DIAG_INIT;
    struct session_statistics s;
    session_statistics(session, &s);
    int r = check_ring_quota(server, c, usage_of(server, c->peer.uid).bytes, s.ring_bytes, &diag);
    if (r == 0)
        return true;
    session_close(session);
    refuse(server, c, r, diag.text);
    return false;
}

static void on_opener(struct server *server, void *owner, uint32_t events) {
    (void)owner;
    (void)events;
    for (struct open_job *job; (job = opener_finished(server->opener)) != NULL; open_job_free(job)) {
        if (job->preload) {
            on_preload(server, job);
            continue;
        }
        if (*job->group) {
            on_group(server, job);
            continue;
        }
        struct connection *c = find_connection(server, job->connection);
        if (!c || c->state != OPENING || server->drain_until_ns) { /* it left meanwhile, or is to go elsewhere */
            session_close(job->session);
            server->reaping = server->reaping || job->session;
            if (c && c->state == OPENING)
                refuse(server, c, -ESHUTDOWN, "the daemon drains: it opens no session any more");
        } else if (job->code < 0) {
            refuse(server, c, job->code, job->diag.code ? job->diag.text : strerror(-job->code));
        } else if (!fits_quota(server, c, job->session)) {
            server->reaping = true;
        } else {
            adopt_session(server, c, job);
        }
    }
}

/* ---- newcomers --------------------------------------------------------------------------------------------------- */

static int peer_pidfd(int fd, pid_t pid) {
    int pid_fd = -1;
    socklen_t size = sizeof pid_fd;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pid_fd, &size) == 0)
        return pid_fd;
    if (errno != ENOPROTOOPT) /* it is gone already: its pid may be somebody else's */
        return -1;
    return pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1; /* 0: it lives in a pid namespace that we cannot see */
}

/* Why a newcomer may not stay; 0: it may. */
static int check_newcomer(const struct server *server, const struct ucred *peer, struct diag *diag) {
    const struct daemon_config *d = &server->config->daemon;
    if (server->is_private && peer->uid != geteuid() && peer->uid != 0)
        return diag_set(diag, -EACCES, "this private daemon is user %u's", (unsigned)geteuid());
    if (server->connection_count >= d->max_sessions + SPARE_CONNECTIONS)
        return diag_set(diag, -EUSERS, "the daemon has %u connections: no more than max-sessions + %u",
                        server->connection_count, SPARE_CONNECTIONS);
    struct usage u = usage_of(server, peer->uid);
    if (u.connections >= d->max_sessions_per_user + SPARE_CONNECTIONS / 4)
        return diag_set(diag, -EUSERS, "user %u has %u connections: no more than max-sessions-per-user + %u",
                        (unsigned)peer->uid, u.connections, SPARE_CONNECTIONS / 4);
    return 0;
}

static int add_connection(struct server *server, int fd, const struct ucred *peer) {
    struct connection *c = calloc(1, sizeof *c);
    if (!c)
        return -ENOMEM;
    *c = (struct connection){.number = server->next_number++,
                             .fd = fd,
                             .pid_fd = peer_pidfd(fd, peer->pid),
                             .peer = *peer,
                             .accepted_ns = now_ns(),
                             .budget = BUDGET_A_TICK};
    c->socket_watch = (struct watch){on_socket, c};
    c->pid_watch = (struct watch){on_death, c};
    int r = watch_fd(server, EPOLL_CTL_ADD, fd, EPOLLIN, &c->socket_watch);
    if (r == 0 && c->pid_fd >= 0)
        r = watch_fd(server, EPOLL_CTL_ADD, c->pid_fd, EPOLLIN, &c->pid_watch);
    if (r < 0) {
        if (c->pid_fd >= 0)
            close(c->pid_fd);
        free(c);
        return r;
    }
    c->next = server->connections;
    if (c->next)
        c->next->previous = c;
    server->connections = c;
    server->connection_count++;
    server->had_connection = true;
    return 0;
}

/* All descriptors are taken: the reserve lets the newcomer be told so, instead of being rung up for ever. */
static void turn_away(struct server *server) {
    close(server->spare_fd);
    int fd = accept4(server->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
        send_error(fd, -EMFILE, "the daemon has no descriptor left; raise LimitNOFILE of its unit");
        shutdown(fd, SHUT_RDWR);
        drain(fd);
        close(fd);
    }
    server->spare_fd = eventfd(0, EFD_CLOEXEC);
    if (may_log(server))
        log_warning("no descriptor left for another client; raise LimitNOFILE");
}

static void on_listen(struct server *server, void *owner, uint32_t events) {
    (void)owner;
    (void)events;
    for (int i = 0; i < MESSAGES_A_TURN; i++) {
        int fd = accept4(server->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE)
                turn_away(server);
            return;
        }
        struct ucred peer = {0};
        struct diag diag = DIAG_INIT;
        socklen_t size = sizeof peer;
        int r = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0 ? -errno : 0;
        if (r == 0)
            r = check_newcomer(server, &peer, &diag);
        if (r == 0)
            r = add_connection(server, fd, &peer);
        if (r == 0)
            continue;
        const struct log_about about = {.pid = peer.pid, .uid = peer.uid};
        if (may_log(server))
            log_about(LOG_NOTICE, &about, "client pid %d uid %u: %s", (int)peer.pid, (unsigned)peer.uid,
                      diag.code ? diag.text : strerror(-r));
        send_error(fd, r, diag.code ? diag.text : strerror(-r));
        shutdown(fd, SHUT_RDWR);
        drain(fd);
        close(fd);
    }
}

/* ---- the loop ---------------------------------------------------------------------------------------------------- */

static void take_snapshot(struct server *server) {
    struct worker_statistics *older = server->snapshot[0];
    server->snapshot[0] = server->snapshot[1];
    server->snapshot[1] = older;
    for (uint32_t i = 0; i < pool_workers(server->pool); i++)
        pool_statistics(server->pool, i, &server->snapshot[1][i]);
    if (server->snapshot_ns == 0)
        memcpy(server->snapshot[0], server->snapshot[1], pool_workers(server->pool) * sizeof *older);
    server->snapshot_ns = now_ns();
}

static void refill(struct server *server, uint64_t now) {
    for (struct connection *c = server->connections, *next; c; c = next) {
        next = c->next;
        c->budget = BUDGET_A_TICK;
        if (c->muted && watch_fd(server, EPOLL_CTL_MOD, c->fd, EPOLLIN, &c->socket_watch) == 0)
            c->muted = false;
        if (c->state == FRESH && now - c->accepted_ns > HELLO_SECONDS * SECOND_NS)
            refuse(server, c, -ETIMEDOUT, "no HELLO within 10 s");
    }
}

static void tick(struct server *server, uint64_t now) {
    server->tick_ns = now;
    refill(server, now);
    tick_groups(server, now);
    pool_report(server->pool);
    if (server->session_count)
        recorder_tick(server->recorder, now);
    step_trace(server, now);
    if (server->exporter)
        exporter_run(server->exporter); /* its connections' time may be over */
    if (server->reaping)
        server->reaping = pool_reap(server->pool) > 0;
    if (server->session_count && now - server->snapshot_ns >= SNAPSHOT_SECONDS * SECOND_NS)
        take_snapshot(server);
    if (!server->told_ready && (server->preloads == 0 || now - server->progress_ns >= PROGRESS_SECONDS * SECOND_NS)) {
        server->told_ready = server->preloads == 0;
        server->progress_ns = now;
        if (server->ready)
            server->ready(server->ready_arg, server->preloads);
    }
}

/* Tells whoever watches this daemon that it is alive, while that is so. */
static void beat(struct server *server, uint64_t now) {
    uint32_t stuck = 0;
    if (!server->beat || now - server->beaten_ns < server->beat_ns)
        return;
    server->beaten_ns = now;
    if (pool_moves(server->pool, now, 2 * server->beat_ns, &stuck)) {
        server->told_stuck = false;
        server->beat(server->ready_arg);
    } else if (!server->told_stuck) {
        server->told_stuck = true;
        log_error("worker %u has not moved for %.0f s: the watchdog is not told any more that all is well", stuck,
                  2 * (double)server->beat_ns / 1e9);
    }
}

/* A private daemon serves while it has a session, and a little longer for somebody who is just coming. */
static bool is_over(const struct server *server, uint64_t now) {
    if (!server->is_private || server->session_count)
        return false;
    for (const struct connection *c = server->connections; c; c = c->next)
        if (now - c->accepted_ns < GRACE_SECONDS * SECOND_NS)
            return false;
    return server->had_connection || now - server->started_ns >= GRACE_SECONDS * SECOND_NS;
}

/* Nothing moves by itself in a daemon without connections and without sessions on their way out. */
static int wait_ms(const struct server *server) {
    if (server->drain_until_ns)
        return DRAIN_MS;
    bool quiet = server->connection_count == 0 && !server->reaping && !server->is_private && server->told_ready &&
                 !(server->exporter && exporter_busy(server->exporter));
    return !quiet ? 100 : server->beat ? (int)MAX(server->beat_ns / 1000000, UINT64_C(1)) : -1;
}

int server_run(struct server *server) {
    struct epoll_event events[64];
    tick(server, now_ns());
    while (!server->stopping) {
        int n = epoll_wait(server->epoll_fd, events, ARRAY_SIZE(events), wait_ms(server));
        if (n < 0 && errno != EINTR)
            return -errno;
        for (int i = 0; i < n && !server->stopping; i++) {
            struct watch *watch = events[i].data.ptr;
            watch->f(server, watch->owner, events[i].events);
        }
        if (server->kick)
            pool_kick(server->pool);
        server->kick = false;
        bury(server);
        uint64_t now = now_ns();
        if (now - server->tick_ns >= TICK_NS || (n > 0 && server->preloads == 0 && !server->told_ready))
            tick(server, now);
        beat(server, now);
        if (server->drain_until_ns)
            step_drain(server, now);
        if (is_over(server, now))
            break;
    }
    return server->failure ? server->failure->code : 0;
}

static void on_stop(struct server *server, void *owner, uint32_t events) {
    (void)owner;
    (void)events;
    server->stopping = true;
}

void server_stop(struct server *server) {
    uint64_t one = 1;
    int saved = errno;
    if (write(server->stop_fd, &one, sizeof one) < 0)
        errno = saved; /* it was told before */
}

static void on_watched(struct server *server, void *owner, uint32_t events) {
    (void)owner;
    (void)events;
    server->watched(server->watched_arg);
}

int server_watch(struct server *server, int fd, void (*f)(void *arg), void *arg) {
    server->watched = f;
    server->watched_arg = arg;
    server->extra_watch = (struct watch){on_watched, NULL};
    return watch_fd(server, EPOLL_CTL_ADD, fd, EPOLLIN, &server->extra_watch);
}

/* Opens the configured pipelines in the background, so that the first client waits less. */
static void preload(struct server *server) {
    for (uint32_t i = 0; i < server->config->pipelines; i++) {
        struct open_job *job = open_job_new();
        if (!job)
            return;
        job->preload = true;
        if (pipeline_config_copy(&server->config->pipeline[i], &job->base) < 0) {
            open_job_free(job);
            return;
        }
        server->preloads++;
        opener_submit(server->opener, job);
    }
}

void server_reload(struct server *server, const struct config *config) {
    server->config = config;
    read_access(server);
    opener_retain(server->opener, config->pipeline, config->pipelines);
    preload(server);
}

static int init_server(struct server *server, struct diag *diag) {
    uint32_t workers = MAX(pool_workers(server->pool), 1u);
    for (int i = 0; i < 2; i++)
        if (!(server->snapshot[i] = calloc(workers, sizeof *server->snapshot[i])))
            return -ENOMEM;
    server->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    server->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    server->spare_fd = eventfd(0, EFD_CLOEXEC);
    if (server->epoll_fd < 0 || server->stop_fd < 0 || server->spare_fd < 0)
        return diag_set(diag, -errno, "no descriptor left for the server: %s", strerror(errno));
    int r = recorder_new(server->pool, &server->recorder);
    if (r < 0)
        return r;
    r = opener_new(server->pool, &server->config->daemon, &server->opener, diag);
    if (r < 0)
        return r;
    server->listen_watch = (struct watch){on_listen, NULL};
    server->opener_watch = (struct watch){on_opener, NULL};
    server->stop_watch = (struct watch){on_stop, NULL};
    r = watch_fd(server, EPOLL_CTL_ADD, server->listen_fd, EPOLLIN, &server->listen_watch);
    if (r == 0)
        r = watch_fd(server, EPOLL_CTL_ADD, opener_fd(server->opener), EPOLLIN, &server->opener_watch);
    if (r == 0)
        r = watch_fd(server, EPOLL_CTL_ADD, server->stop_fd, EPOLLIN, &server->stop_watch);
    return r < 0 ? r : open_exporter(server, diag);
}

int server_new(const struct server_options *options, struct server **ret, struct diag *diag) {
    struct server *server = calloc(1, sizeof *server);
    if (!server)
        return diag_set(diag, -ENOMEM, "no memory left for the server");
    server->config = options->config;
    server->pool = options->pool;
    server->is_private = options->is_private;
    server->socket = options->socket ? options->socket : "";
    server->ready = options->ready;
    server->ready_arg = options->ready_arg;
    server->failure = options->failure;
    server->beat = options->beat_ns ? options->beat : NULL;
    server->beat_ns = options->beat_ns;
    server->listen_fd = options->listen_fd;
    server->epoll_fd = server->stop_fd = server->spare_fd = -1;
    server->started_ns = server->progress_ns = now_ns();
    int r = init_server(server, diag);
    if (r < 0) {
        server->listen_fd = -1; /* the caller's still */
        server_free(server);
        return diag && diag->code ? r : diag_set(diag, r, "cannot start the server: %s", strerror(-r));
    }
    read_access(server);
    if (!server->is_private)
        preload(server);
    *ret = server;
    return 0;
}

bool server_free(struct server *server) {
    if (!server)
        return true;
    server->stopping = true;
    while (server->connections)
        close_connection(server, server->connections, "the daemon stops");
    while (server->ghosts)
        ghost_died(server, server->ghosts, 0);
    bury(server);
    while (server->groups) /* whose session the opener still has */
        free_group(server, server->groups);
    if (server->listen_fd >= 0)
        close(server->listen_fd);
    bool ended = opener_free(server->opener);
    if (!ended)
        return false;
    for (int i = 0; i < 100 && pool_reap(server->pool) > 0; i++)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    pool_report(server->pool);
    const int fds[] = {server->epoll_fd, server->stop_fd, server->spare_fd};
    for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
        if (fds[i] >= 0)
            close(fds[i]);
    close_exporter(server);
    recorder_free(server->recorder);
    free_access(server);
    free(server->snapshot[0]);
    free(server->snapshot[1]);
    free(server);
    return true;
}
