/* SPDX-License-Identifier: MIT */
/*
 * libloaderd: the calls of <loaderd/loaderd.h>. libc only.
 *
 * A loader is a link to a daemon and a list of rings. While batches are ready, loaderd_next() and loaderd_release() touch
 * the ring alone: no system call, no allocation. The link is a small state machine that never waits by itself, so that
 * the first open, a reconnect inside loaderd_next() and one inside loaderd_try_next() are the same code:
 *
 *     DOWN --connect, HELLO--> HELLO --HELLO_OK, OPEN--> OPENING --OPENED--> UP --end of file--> DOWN
 *
 * Batches are counted from the loader's start, over all rings: number n is sequence n - base of the ring that begins at
 * `base`. A ring whose daemon died stays mapped until its last batch is released.
 *
 * Threads: one a loader, as the header says. Nothing here is shared between loaders.
 */
#include <loaderd/loaderd.h>

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "connection.h"
#include "consumer.h"
#include "private.h"
#include "rank.h"
#include "ring_hooks.h"
#include "supply.h"

#define NEVER UINT64_MAX
#define MS UINT64_C(1000000)
#define DEFAULT_NEXT_TIMEOUT_MS 300000
#define DEFAULT_RECONNECT_TIMEOUT_MS 60000
#define OPEN_TIMEOUT_MS 30000  /* to reach a daemon, or to start one; opening its dataset may take longer */
#define HELLO_TIMEOUT_MS 10000 /* a daemon that listens answers at once */
#define ANSWER_TIMEOUT_MS 10000
#define RESCUE_MS 100   /* abi/ring.h: every sleeper looks again by itself that often */
#define LATE_BYTE_MS 20 /* how much later than its batch a wake-up byte may come */
#define FIRST_RETRY_MS 10
#define LAST_RETRY_MS 1000
#define MOST_RESETS 5

enum link { LINK_DOWN, LINK_HELLO, LINK_OPENING, LINK_UP };

/* What take() says beside 1, 0 and errors. */
#define TAKE_END 2

struct ring {
    struct ring *next; /* of the old ones, oldest first */
    struct consumer consumer;
    uint64_t base;       /* number of its sequence 0 */
    uint64_t generation; /* differs for every ring of this process's loader */
    bool told;           /* the hooks know of it */
};

struct loaderd {
    /* every call */
    const uint8_t *mine; /* a page that is 1 here and 0 in a forked child */
    pid_t pid;           /* the same, where the kernel cannot wipe pages; else 0 */
    struct ring *ring;   /* the one that batches come from */
    bool epoch_over;     /* the last batch of an epoch was leased: the next call says 0 */
    bool armed;          /* the flag is up: the daemon will send a byte */
    int said;            /* why the daemon ended the connection, 0: it did not say */
    bool frozen;         /* the daemon is gone: what its ring may still get is not looked at any more */
    int fatal;           /* every further call of next says so */
    struct loaderd_statistics statistics;

    /* explicit order */
    bool is_explicit;
    struct client_supply supply;

    struct ring *emptied; /* of a dead daemon, nothing of it held: freed by the next call */
    /* rings */
    struct ring *old;
    uint64_t generation;
    uint64_t total;                   /* batches in all, NEVER: without end */
    uint64_t first_epoch, first_step; /* of batch 0; after a seek a sum that wraps, right from the seek's batch on */
    uint64_t sought;                  /* the generation before the last seek: rings up to it count in no state */
    uint64_t steps;
    struct loaderd_state identity; /* seed, global batch, fingerprint */
    struct loaderd_info info;
    struct loaderd_field *fields;
    char *names; /* LOADERD_MAX_FIELDS of 32 bytes */
    char engine[16];
    const struct loaderd_ring_hooks *hooks; /* of another library, NULL: none */
    void *hook_context;

    /* the link */
    enum link link;
    int fd;
    bool first; /* not open yet */
    bool in_group;
    bool seeking;                  /* loaderd_seek() opens the session anew: no reconnect to count */
    uint64_t retry_ns, backoff_ns; /* DOWN: when to try */
    uint64_t give_up_ns;           /* when to stop trying */
    uint32_t resets;               /* a private daemon may end just when we come; not time and again */
    uint64_t answer_ns;            /* HELLO: when the answer is overdue */
    char socket[CONNECTION_PATH_MAX + 1];
    bool search; /* the socket is looked for at each connect */
    struct private_daemon *private_daemon;
    char **keys;
    struct loaderd_open_message *open; /* sent at each (re)open */
    size_t open_bytes;
    int32_t next_timeout_ms, reconnect_timeout_ms;

    /* loaderd_fd() */
    int epoll_fd, timer_fd;
    bool timer_on;

    char error[1024];
};

/* ---- small things ---------------------------------------------------------------------------------------------------- */

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static uint64_t after_ms(uint64_t now, int64_t ms) {
    return ms < 0 ? NEVER : now + (uint64_t)ms * MS;
}

/* For poll(): how long until `until`, at most `most` ms; a started millisecond is waited out. */
static int ms_until(uint64_t until, uint64_t now, int most) {
    if (until <= now)
        return 0;
    uint64_t ms = (until - now) / MS + 1;
    return ms < (uint64_t)most ? (int)ms : most;
}

static int fail(struct loaderd *l, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
static int fail(struct loaderd *l, int code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(l->error, sizeof l->error, format, args);
    va_end(args);
    return code;
}

static bool is_mine(const struct loaderd *l) {
    return *l->mine == 1 && (l->pid == 0 || l->pid == getpid());
}

static int not_mine(const struct loaderd *l) {
    fail((struct loaderd *)(uintptr_t)l, -ECHILD, "this loader was opened by another process; open one after the fork");
    return -ECHILD;
}

static void close_fd(int *fd) {
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* (epoch, step) of batch number n. */
static void position(const struct loaderd *l, uint64_t n, uint64_t *ret_epoch, uint64_t *ret_step) {
    uint64_t absolute = l->first_step + n;
    *ret_epoch = l->first_epoch + absolute / l->steps;
    *ret_step = absolute % l->steps;
}

/* Number of the batch that comes next. */
static uint64_t cursor(const struct loaderd *l) {
    return l->ring ? l->ring->base + l->ring->consumer.next : 0;
}

/* Shown by `loaderctl status`; advice only. */
static void publish_statistics(const struct loaderd *l) {
    struct loaderd_control *c = l->ring->consumer.control;
    atomic_store_explicit(&c->waits, l->statistics.waits, memory_order_relaxed);
    atomic_store_explicit(&c->wait_ns, l->statistics.wait_ns, memory_order_relaxed);
    atomic_store_explicit(&c->rescues, l->statistics.rescues, memory_order_relaxed);
    atomic_store_explicit(&c->wakes_sent, l->statistics.wakes_sent, memory_order_relaxed);
}

static void wake_daemon(struct loaderd *l) {
    if (l->link == LINK_UP)
        connection_wake(l->fd);
    l->statistics.wakes_sent++;
}

/* Explicit order: ids for which the ring had no room before. */
static void send_ids(struct loaderd *l) {
    if (l->link == LINK_UP && client_supply_send(&l->supply, &l->ring->consumer))
        wake_daemon(l);
}

/* ---- loaderd_fd(): an epoll of the link and a timer, so that the number stays the same over reconnects ----------------- */

static void set_timer(struct loaderd *l, uint64_t at_ns) {
    if (l->timer_fd < 0 || (at_ns == 0 && !l->timer_on))
        return;
    struct itimerspec t = {.it_value = {.tv_sec = (time_t)(at_ns / 1000000000), .tv_nsec = (long)(at_ns % 1000000000)}};
    timerfd_settime(l->timer_fd, TFD_TIMER_ABSTIME, &t, NULL);
    l->timer_on = at_ns != 0;
}

static void watch_link(struct loaderd *l) {
    struct epoll_event event = {.events = EPOLLIN};
    if (l->epoll_fd >= 0 && l->fd >= 0)
        epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, l->fd, &event);
}

static void unwatch_link(struct loaderd *l) {
    if (l->epoll_fd >= 0 && l->fd >= 0) /* a forked child may hold a copy: closing alone would not remove it */
        epoll_ctl(l->epoll_fd, EPOLL_CTL_DEL, l->fd, NULL);
}

static void end_connection(int *fd) {
    if (*fd >= 0)
        shutdown(*fd, SHUT_RDWR); /* likewise: the daemon is to see the end now */
    close_fd(fd);
}

static void drop_link(struct loaderd *l) {
    unwatch_link(l);
    end_connection(&l->fd);
}

/* ---- rings ------------------------------------------------------------------------------------------------------- */

static void tell_mapped(const struct loaderd *l, struct ring *ring) {
    const struct consumer *c = &ring->consumer;
    const struct loaderd_mapped_ring mapped = {.base = c->header,
                                               .bytes = c->data_bytes,
                                               .slot_offset = c->header->slot_offset,
                                               .slot_stride = c->slot_stride,
                                               .payload_bytes = c->payload_bytes,
                                               .slots = c->slots};
    if (!l->hooks)
        return;
    ring->told = true;
    l->hooks->mapped(l->hook_context, &mapped);
}

static void tell_unmapped(const struct loaderd *l, struct ring *ring) {
    if (ring->told && is_mine(l))
        l->hooks->unmapped(l->hook_context, ring->consumer.header);
    ring->told = false;
}

static struct ring *free_ring(struct loaderd *l, struct ring *ring) {
    if (ring) {
        tell_unmapped(l, ring);
        consumer_detach(&ring->consumer);
        free(ring);
    }
    return NULL;
}

/* The ring of a dead daemon: kept while the caller holds batches of it; otherwise until the next call, since giving a
 * large one back to the kernel takes time that the first batch of the new one need not wait for. */
static void retire_ring(struct loaderd *l) {
    struct ring *ring = l->ring;
    l->ring = NULL;
    if (!ring)
        return;
    if (consumer_held(&ring->consumer) == 0) {
        free_ring(l, l->emptied);
        l->emptied = ring;
        return;
    }
    struct ring **at = &l->old;
    while (*at)
        at = &(*at)->next;
    *at = ring;
}

static void free_old_ring(struct loaderd *l, struct ring *ring) {
    struct ring **at = &l->old;
    while (*at != ring)
        at = &(*at)->next;
    *at = ring->next;
    free_ring(l, ring);
}

/* Field names live as long as the loader, not as the ring. */
static int keep_shapes(struct loaderd *l, const struct consumer *c) {
    l->fields = calloc(c->nfields, sizeof *l->fields);
    l->names = calloc(c->nfields, sizeof c->header->fields[0].name);
    if (!l->fields || !l->names)
        return fail(l, -ENOMEM, "no memory left for the loader");
    for (uint32_t i = 0; i < c->nfields; i++) {
        const size_t room = sizeof c->header->fields[0].name;
        l->fields[i] = c->fields[i];
        l->fields[i].name = memcpy(l->names + i * room, c->fields[i].name, strlen(c->fields[i].name) + 1);
    }
    return 0;
}

static bool same_shapes(const struct loaderd *l, const struct consumer *c) {
    if (c->nfields != l->info.nfields || c->batch != l->info.batch || c->header->steps_per_epoch != l->steps ||
        c->header->samples != l->info.samples)
        return false;
    for (uint32_t i = 0; i < c->nfields; i++)
        if (c->fields[i].dtype != l->fields[i].dtype || c->fields[i].bytes != l->fields[i].bytes ||
            strcmp(c->fields[i].name, l->fields[i].name) != 0)
            return false;
    return true;
}

/* The first ring says what the session is. */
static int learn_session(struct loaderd *l, const struct consumer *c, const struct loaderd_opened *opened) {
    const struct loaderd_ring_header *h = c->header;
    int r = keep_shapes(l, c);
    if (r < 0)
        return r;
    l->steps = h->steps_per_epoch;
    uint64_t first = h->first_step + opened->start;
    l->first_epoch = h->first_epoch + first / l->steps;
    l->first_step = first % l->steps;
    l->total = h->sequences == NEVER ? NEVER : h->sequences - opened->start;
    l->is_explicit = c->ids_capacity != 0;
    if (l->is_explicit && client_supply_new(&l->supply, c) < 0)
        return fail(l, -ENOMEM, "no memory left for the loader's ids");
    l->identity.seed = h->seed;
    l->identity.global_batch = opened->global_batch;
    memcpy(l->identity.fingerprint, opened->fingerprint, sizeof opened->fingerprint);
    snprintf(l->engine, sizeof l->engine, "%s", opened->engine);
    l->info = (struct loaderd_info){.samples = h->samples,
                                    .steps_per_epoch = l->steps,
                                    .batch = h->batch,
                                    .rank = h->rank,
                                    .world = h->world,
                                    .slots = h->slots,
                                    .seed = h->seed,
                                    .daemon_pid = l->info.daemon_pid,
                                    .nfields = h->nfields,
                                    .fields = l->fields,
                                    .engine = l->engine,
                                    .socket = l->socket};
    return 0;
}

/* A later one must go on where the last one ended. */
static int check_session(struct loaderd *l, const struct consumer *c, uint64_t base) {
    uint64_t epoch, step;
    const struct loaderd_ring_header *h = c->header;
    position(l, base, &epoch, &step);
    if (!same_shapes(l, c))
        return fail(l, -EPROTO,
                    "the new daemon at %s serves other batches than the old one did: were its keys changed?",
                    l->socket);
    if (!c->ids_capacity != !l->is_explicit)
        return fail(l, -EPROTO, "the new daemon at %s has another order: were its keys changed?", l->socket);
    uint64_t first = h->first_step + c->next;
    if (h->first_epoch + first / l->steps != epoch || first % l->steps != step ||
        (l->total != NEVER && h->sequences - c->next != l->total - base))
        return fail(l, -EPROTO, "the new daemon at %s begins at epoch %llu step %llu, wanted were epoch %llu step %llu",
                    l->socket, (unsigned long long)h->first_epoch, (unsigned long long)h->first_step,
                    (unsigned long long)epoch, (unsigned long long)step);
    return 0;
}

static int attach_ring(struct loaderd *l, const struct loaderd_opened *opened, const int fds[2]) {
    struct ring *ring = calloc(1, sizeof *ring);
    if (!ring)
        return fail(l, -ENOMEM, "no memory left for the loader");
    int r = consumer_attach(&ring->consumer, fds[0], fds[1], l->error, sizeof l->error);
    if (r < 0) {
        free(ring);
        return r;
    }
    consumer_start(&ring->consumer, opened->start);
    ring->base = cursor(l) - opened->start; /* wraps where a member of a group begins behind its ring */
    ring->generation = ++l->generation;
    r = l->first ? learn_session(l, &ring->consumer, opened) : check_session(l, &ring->consumer, cursor(l));
    if (r < 0) {
        free_ring(l, ring);
        return r;
    }
    for (uint32_t s = 0; s < ring->consumer.slots; s++)
        for (uint32_t i = 0; i < ring->consumer.nfields; i++)
            ring->consumer.views[(size_t)s * ring->consumer.nfields + i].name = l->fields[i].name;
    l->info.slots = ring->consumer.slots;
    retire_ring(l);
    l->ring = ring;
    l->frozen = false;
    if (l->is_explicit)
        client_supply_restart(&l->supply, cursor(l));
    tell_mapped(l, ring);
    publish_statistics(l);
    return 0;
}

/* ---- the link -------------------------------------------------------------------------------------------------------- */

static void retry_later(struct loaderd *l, uint64_t now) {
    drop_link(l);
    l->link = LINK_DOWN;
    l->retry_ns = now + l->backoff_ns;
    /* by a quarter: a new daemon is found within a fifth of the time that the old one has been away */
    uint64_t longer = l->backoff_ns + l->backoff_ns / 4;
    l->backoff_ns = longer < LAST_RETRY_MS * MS ? longer : LAST_RETRY_MS * MS;
}

/* The daemon is gone. What it published can still be leased; the caller has done that. */
static int lose_link(struct loaderd *l) {
    uint64_t now = now_ns();
    drop_link(l);
    if (l->said == -ECANCELED || l->said == -ESTALE) /* this session was detached: coming back is not what was wanted */
        return l->fatal = l->said;
    l->link = LINK_DOWN;
    l->armed = false;
    l->frozen = true;
    l->backoff_ns = FIRST_RETRY_MS * MS;
    l->retry_ns = now;
    l->give_up_ns = after_ms(now, l->reconnect_timeout_ms);
    if (l->reconnect_timeout_ms < 0)
        return l->fatal = fail(l, -ECONNRESET, "the daemon (pid %d) at %s went away, and reconnecting is switched off",
                               l->info.daemon_pid, l->socket);
    return 0;
}

/* A daemon that is not there, or not yet: later again, or the end of it. `code` and l->error say what was wrong. */
static int try_again(struct loaderd *l, int code) {
    uint64_t now = now_ns();
    bool patient =
        !l->first || code == -EAGAIN || (l->private_daemon && code == -ECONNRESET && ++l->resets <= MOST_RESETS);
    if (patient && now < l->give_up_ns) {
        retry_later(l, now);
        return 0;
    }
    drop_link(l);
    l->link = LINK_DOWN;
    if (l->first)
        return code == -EAGAIN ? -ETIMEDOUT : code;
    char why[sizeof l->error];
    snprintf(why, sizeof why, "%s", l->error);
    l->retry_ns = now;
    l->give_up_ns = after_ms(now, l->reconnect_timeout_ms); /* the caller may ask again */
    return fail(l, -ECONNRESET, "the daemon (pid %d) went away and none came back within %d s: %.700s",
                l->info.daemon_pid, l->reconnect_timeout_ms / 1000, why);
}

static int connect_link(struct loaderd *l) {
    int fd;
    if (l->private_daemon)
        fd = private_connect(l->private_daemon, (const char *const *)l->keys, l->error, sizeof l->error);
    else if (l->search)
        fd = connection_search(l->socket, l->error, sizeof l->error);
    else
        fd = connection_connect(l->socket, l->error, sizeof l->error);
    if (fd < 0)
        return try_again(l, fd);
    l->fd = fd;
    int r = connection_hello(fd);
    if (r < 0 && r != -EPIPE && r != -ECONNRESET) { /* broken: its last words may still be there to read */
        fail(l, r, "cannot send to the daemon at %s: %s", l->socket, strerror(-r));
        return try_again(l, r);
    }
    l->said = 0;
    l->answer_ns = after_ms(now_ns(), HELLO_TIMEOUT_MS);
    l->link = LINK_HELLO;
    watch_link(l);
    return 0;
}

/* OPEN for the batch that comes next. */
static int send_open(struct loaderd *l) {
    struct loaderd_open_message *m = l->open;
    if (!l->first) {
        position(l, cursor(l), &m->epoch, &m->step);
        if (l->total != NEVER) /* the run ends with an epoch */
            m->epochs = l->first_epoch + (l->first_step + l->total) / l->steps - m->epoch;
        m->flags = LOADERD_OPEN_HAS_STATE;
        m->seed = l->identity.seed;
        m->global_batch = l->identity.global_batch;
        memcpy(m->fingerprint, l->identity.fingerprint, sizeof m->fingerprint);
    }
    return connection_send(l->fd, m, l->open_bytes);
}

static int on_hello_ok(struct loaderd *l, const void *packet, size_t length) {
    struct loaderd_hello_ok ok;
    int r = connection_parse_hello_ok(packet, length, &ok, l->error, sizeof l->error);
    if (r < 0)
        return r;
    if (l->private_daemon && !ok.is_private)
        return fail(l, -EPROTO, "the daemon at %s is no private one", l->socket);
    l->info.daemon_pid = ok.daemon_pid;
    l->link = LINK_OPENING;
    r = send_open(l);
    if (r == -EMSGSIZE || r == -EAGAIN)
        return fail(l, -EINVAL, "the keys are too long: %zu bytes", l->open_bytes);
    return 0; /* broken: the next receive says how */
}

static int on_opened(struct loaderd *l, const void *packet, size_t length, const int fds[2]) {
    struct loaderd_opened opened;
    int r = connection_parse_opened(packet, length, &opened, l->error, sizeof l->error);
    if (r < 0)
        return r;
    if (fds[0] < 0 || fds[1] < 0)
        return fail(l, -EPROTO, "the daemon at %s sent no descriptors of its ring: is the limit of open files reached?",
                    l->socket);
    r = attach_ring(l, &opened, fds);
    if (r < 0)
        return r;
    if (!l->first && !l->seeking)
        l->statistics.reconnects++;
    l->first = l->seeking = false;
    l->link = LINK_UP;
    if (l->is_explicit)
        send_ids(l);
    set_timer(l, 0);
    return 0;
}

/* Refusals that pass by themselves. */
static bool is_passing(int code) {
    return code == -EUSERS || code == -ESHUTDOWN || code == -EMFILE;
}

/* One answer of the daemon, if it is there. */
static int read_answer(struct loaderd *l) {
    int fds[2];
    char packet[4096];
    int n = connection_receive(l->fd, packet, sizeof packet, fds), r = 0;
    if (n == -EAGAIN) {
        if (l->link != LINK_HELLO || now_ns() < l->answer_ns)
            return 0;
        fail(l, -ETIMEDOUT, "the daemon at %s took the connection and says nothing for %d s: is it stopped?", l->socket,
             HELLO_TIMEOUT_MS / 1000);
        return try_again(l, -ETIMEDOUT);
    }
    if (n <= 0) {
        fail(l, -ECONNRESET, "the daemon at %s ended the connection while the session was being opened", l->socket);
        return try_again(l, -ECONNRESET);
    }
    if (n > 1) /* one byte: an early wake-up */
        r = l->link == LINK_HELLO ? on_hello_ok(l, packet, (size_t)n) : on_opened(l, packet, (size_t)n, fds);
    close_fd(&fds[0]);
    close_fd(&fds[1]);
    if (r == 0)
        return 0;
    if (!l->first && is_passing(r))
        return try_again(l, r);
    drop_link(l);
    l->link = LINK_DOWN;
    return l->fatal = r;
}

/* One step of the machine: 0, or the error that ends it. Waits for nothing. */
static int step_link(struct loaderd *l) {
    if (l->fatal)
        return l->fatal;
    if (l->link == LINK_DOWN)
        return now_ns() < l->retry_ns ? 0 : connect_link(l);
    return read_answer(l);
}

/* Waits until a further step makes sense, at most until `until`. */
static void wait_link(const struct loaderd *l, uint64_t until) {
    uint64_t now = now_ns();
    struct pollfd p = {.fd = l->fd, .events = POLLIN}; /* fd -1 is ignored: a plain sleep */
    if (l->link == LINK_DOWN && l->retry_ns < until)
        until = l->retry_ns;
    poll(&p, 1, ms_until(until, now, 1000));
}

/* ---- leasing --------------------------------------------------------------------------------------------------------- */

/* 1: leased. 0: not ready. TAKE_END: none will come. Or an error. No system call. */
static int take(struct loaderd *l, struct loaderd_batch *batch) {
    struct ring *ring = l->ring;
    const char *message = "";
    const uint64_t number = ring->base + ring->consumer.next;
    if (number >= l->total)
        return TAKE_END;
    if (l->is_explicit) {
        if (number >= client_supply_batches(&l->supply))
            return TAKE_END;
        send_ids(l);
        uint64_t missing = client_supply_missing(&l->supply, number);
        if (missing)
            return fail(l, -EDEADLK, "the next batch needs %llu more ids: send them, or say that there are no more",
                        (unsigned long long)missing);
    }
    if (l->frozen || consumer_detached(&ring->consumer))
        return 0;
    int r = consumer_try(&ring->consumer, batch, &message);
    if (r < 0 && consumer_detached(&ring->consumer))
        return 0; /* what the slot says is not ours any more; the connection says what is */
    if (r == 1) {
        batch->sequence += ring->base;
        batch->generation = ring->generation;
        batch->ring = ring;
        if (l->is_explicit && number + 1 == client_supply_batches(&l->supply))
            batch->flags |= LOADERD_BATCH_LAST;
        l->epoch_over = (batch->flags & LOADERD_BATCH_LAST) != 0;
        l->statistics.batches++;
        if (l->armed) {
            consumer_awake(&ring->consumer);
            l->armed = false;
        }
    } else if (r < 0) {
        if (*message)
            return fail(l, r, "%s", message);
        return fail(l, r,
                    r == -EBUSY ? "the slot of the next batch is still held (%u of %u slots are): release batches, or "
                                  "open with a larger `held`"
                                : "the ring is over (%u of %u slots held)",
                    consumer_held(&ring->consumer), ring->consumer.slots);
    }
    return r;
}

/* Reads what lies in the socket. `byte`: a wake-up came. Returns false at the end of the connection. */
static bool drain(struct loaderd *l, bool *byte) {
    char packet[1024];
    int fds[2], n, code;
    while ((n = connection_receive(l->fd, packet, sizeof packet, fds)) > 0) {
        close_fd(&fds[0]);
        close_fd(&fds[1]);
        if (n == 1)
            *byte = true;
        else if (connection_parse_error(packet, (size_t)n, &code, l->error, sizeof l->error))
            l->said = code; /* why the connection ends; the end comes next */
    }
    return n == -EAGAIN;
}

/* Sleeps until a batch is there, the connection ends, or 100 ms are over. */
static int sleep_for_batch(struct loaderd *l, struct loaderd_batch *batch, uint64_t until) {
    struct consumer *c = &l->ring->consumer;
    struct pollfd p = {.fd = l->fd, .events = POLLIN};
    bool kick, byte = false, by_timer = false;
    int r = consumer_spin(c) ? take(l, batch) : 0;
    if (r != 0)
        return r; /* 0 also where the ring was taken away: the socket says why */
    bool ready = consumer_announce(c, &kick);
    if (kick)
        wake_daemon(l);
    if (!ready)
        by_timer = poll(&p, 1, ms_until(until, now_ns(), RESCUE_MS)) == 0;
    bool alive = drain(l, &byte);
    r = take(l, batch);
    if (r == 1 && by_timer && !byte && alive) {
        /* The flag is still up, so the byte of this batch must be on its way. */
        if (poll(&p, 1, LATE_BYTE_MS) == 0)
            l->statistics.rescues++;
        alive = drain(l, &byte);
    }
    consumer_awake(c);
    l->armed = false;
    return r == 0 && !alive ? lose_link(l) : r;
}

/* What /proc says of the daemon: it may be stopped, or gone. */
static const char *daemon_condition(const struct loaderd *l) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)l->info.daemon_pid);
    FILE *f = fopen(path, "re");
    if (!f)
        return "cannot be seen from here: it runs in another pid namespace or is gone";
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = '\0';
    if (!strstr(text, "(loaderd)"))
        return "cannot be seen from here: it runs in another pid namespace or is gone";
    const char *end = strrchr(text, ')');
    char state = end && end[1] == ' ' ? end[2] : '?';
    return state == 'T' || state == 't'   ? "is stopped (SIGSTOP or a debugger); continue it with kill -CONT"
           : state == 'Z' || state == 'X' ? "is dead"
           : state == 'D'                 ? "waits for storage that does not answer"
                                          : "is alive: look at `loaderctl status` and its log";
}

static int timed_out(struct loaderd *l) {
    uint64_t epoch, step;
    position(l, cursor(l), &epoch, &step);
    if (l->link == LINK_UP)
        return fail(l, -ETIMEDOUT, "no batch (epoch %llu step %llu) within %.1f s; the daemon (pid %d) at %s %s",
                    (unsigned long long)epoch, (unsigned long long)step, l->next_timeout_ms / 1e3, l->info.daemon_pid,
                    l->socket, daemon_condition(l));
    char why[sizeof l->error];
    snprintf(why, sizeof why, "%s", l->error);
    return fail(l, -ETIMEDOUT, "no batch (epoch %llu step %llu) within %.1f s: %s a daemon at %s%s%.500s",
                (unsigned long long)epoch, (unsigned long long)step, l->next_timeout_ms / 1e3,
                l->link == LINK_OPENING ? "the session is being opened again by" : "still looking for", l->socket,
                *why ? ": " : "", why);
}

/* No batch is ready. */
static int wait_next(struct loaderd *l, struct loaderd_batch *batch) {
    uint64_t start = now_ns(), until = after_ms(start, l->next_timeout_ms), now = start;
    int r;
    l->error[0] = '\0';
    l->statistics.waits++;
    for (;;) {
        if (l->link == LINK_UP) {
            r = sleep_for_batch(l, batch, until);
        } else if ((r = step_link(l)) == 0 && l->link != LINK_UP) {
            wait_link(l, until);
        }
        now = now_ns();
        if (r == 0 && now >= until)
            r = timed_out(l);
        if (r != 0)
            break;
    }
    l->statistics.wait_ns += now - start;
    if (r == 1)
        consumer_waited(&l->ring->consumer, now - start);
    publish_statistics(l);
    return r;
}

/* The caller holds the slot that it needs. In a dead daemon's ring that does not matter: the next ring is empty. */
static int check_busy(struct loaderd *l) {
    bool byte = false;
    if (l->link != LINK_UP || drain(l, &byte))
        return -EBUSY;
    return lose_link(l);
}

int loaderd_next(struct loaderd *l, struct loaderd_batch *batch) {
    if (!is_mine(l))
        return not_mine(l);
    if (l->emptied)
        l->emptied = free_ring(l, l->emptied);
    if (l->epoch_over) {
        l->epoch_over = false;
        return 0;
    }
    int r = take(l, batch);
    if (r == -EBUSY)
        r = check_busy(l);
    if (r == 0)
        r = l->fatal ? l->fatal : wait_next(l, batch);
    return r == TAKE_END ? 0 : r;
}

/* The link in loaderd_try_next(): as many steps as can be made at once. */
static int try_link(struct loaderd *l) {
    for (;;) {
        enum link before = l->link;
        int r = step_link(l);
        if (r < 0)
            return r;
        if (l->link == before || l->link == LINK_UP)
            break;
    }
    if (l->link == LINK_DOWN)
        set_timer(l, l->retry_ns);
    else if (l->link == LINK_HELLO)
        set_timer(l, l->answer_ns);
    else
        set_timer(l, 0);
    return 0;
}

/* Nothing is ready: raises the flag, so that the descriptor becomes readable when something is. */
static int arm(struct loaderd *l, struct loaderd_batch *batch) {
    bool kick, byte = false;
    bool alive = drain(l, &byte);
    bool ready = consumer_announce(&l->ring->consumer, &kick);
    l->armed = true;
    if (kick)
        wake_daemon(l);
    int r = ready || !alive ? take(l, batch) : 0;
    if (r == 0 && !alive)
        r = lose_link(l);
    set_timer(l, 0);
    return r;
}

int loaderd_try_next(struct loaderd *l, struct loaderd_batch *batch) {
    if (!is_mine(l))
        return not_mine(l);
    if (l->emptied)
        l->emptied = free_ring(l, l->emptied);
    if (l->epoch_over) {
        l->epoch_over = false;
        return 0;
    }
    int r = take(l, batch);
    if (r == -EBUSY)
        r = check_busy(l);
    if (r == 0 && l->fatal)
        return l->fatal;
    for (int attempt = 0; r == 0 && attempt < 2; attempt++) {
        if (l->link == LINK_UP)
            r = arm(l, batch);
        if (r == 0 && l->link == LINK_UP)
            break;
        if (r == 0)
            r = try_link(l);
        if (r == 0 && l->link != LINK_UP)
            break;
    }
    return r == 0 ? -EAGAIN : r == TAKE_END ? 0 : r;
}

static struct ring *find_ring(const struct loaderd *l, const struct loaderd_batch *batch) {
    struct ring *ring = l->ring;
    if (batch->ring != ring)
        for (ring = l->old; ring && batch->ring != ring; ring = ring->next)
            ;
    return ring && ring->generation == batch->generation ? ring : NULL;
}

int loaderd_release(struct loaderd *l, const struct loaderd_batch *batch) {
    bool kick = false;
    if (!is_mine(l))
        return not_mine(l);
    struct ring *ring = find_ring(l, batch);
    if (!ring || consumer_release(&ring->consumer, batch->sequence - ring->base, &kick) < 0)
        return fail(l, -EINVAL, "batch %llu is not held: it was released before, or belongs to another loader",
                    (unsigned long long)batch->sequence);
    bool stale = consumer_detached(&ring->consumer);
    if (ring != l->ring) {
        if (consumer_held(&ring->consumer) == 0)
            free_old_ring(l, ring);
    } else if (kick) {
        wake_daemon(l);
    }
    if (stale)
        return fail(l, -ESTALE,
                    "the group went on without this trainer: batch %llu may have been overwritten while it was held",
                    (unsigned long long)batch->sequence);
    return 0;
}

/* ---- seeking: the session is opened anew at another place, beside the old one, as for another daemon ----------------- */

static int check_seek(struct loaderd *l, uint64_t epoch, uint64_t step, uint64_t *ret_left) {
    uint64_t end_epoch, end_step;
    *ret_left = NEVER;
    if (l->fatal)
        return l->fatal;
    if (l->in_group)
        return fail(l, -EINVAL, "a member of a group cannot seek: the ring is everybody's");
    if (step >= l->steps)
        return fail(l, -EINVAL, "step %llu: an epoch has %llu of them", (unsigned long long)step,
                    (unsigned long long)l->steps);
    if (l->total == NEVER)
        return 0;
    position(l, l->total, &end_epoch, &end_step); /* the run ends with an epoch */
    if (epoch >= end_epoch)
        return fail(l, -EINVAL, "epoch %llu: this session ends before epoch %llu", (unsigned long long)epoch,
                    (unsigned long long)end_epoch);
    *ret_left = (end_epoch - epoch) * l->steps - step;
    return 0;
}

/* Until the new session is there, or the daemon is known to be away; the old one ends after that, so that a private
 * daemon sees no last session in between. */
static int open_sought(struct loaderd *l, int before) {
    uint64_t until = after_ms(now_ns(), l->next_timeout_ms);
    int r = 0;
    while (r == 0 && l->link != LINK_UP && now_ns() < until) {
        r = step_link(l);
        if (r == 0 && l->link == LINK_DOWN) /* perhaps there is no room for two */
            end_connection(&before);
        if (r == 0 && l->link != LINK_UP)
            wait_link(l, until);
    }
    end_connection(&before);
    return r < 0 ? r : l->link == LINK_UP ? 0 : timed_out(l);
}

int loaderd_seek(struct loaderd *l, uint64_t epoch, uint64_t step) {
    if (!is_mine(l))
        return not_mine(l);
    uint64_t left, from = cursor(l);
    int r = check_seek(l, epoch, step, &left);
    if (r < 0)
        return r;
    l->first_epoch = epoch;
    l->first_step = step - from;
    l->total = left == NEVER ? NEVER : from + left;
    l->sought = l->generation;
    l->epoch_over = false;
    if (l->is_explicit)
        client_supply_forget(&l->supply, from);
    unwatch_link(l);
    int before = l->fd;
    l->fd = -1;
    l->link = LINK_DOWN;
    l->armed = false;
    l->frozen = true; /* nothing more of the old ring */
    l->seeking = true;
    l->error[0] = '\0';
    l->backoff_ns = FIRST_RETRY_MS * MS;
    l->retry_ns = now_ns();
    l->give_up_ns = l->reconnect_timeout_ms < 0 ? l->retry_ns : after_ms(l->retry_ns, l->reconnect_timeout_ms);
    return open_sought(l, before);
}

/* ---- explicit order ---------------------------------------------------------------------------------------------- */

static int refuse_ids(struct loaderd *l) {
    if (!l->is_explicit)
        return fail(l, -EINVAL, "ids are taken with shuffle=explicit only");
    return l->supply.ended ? fail(l, -EINVAL, "the ids were ended before") : 0;
}

int64_t loaderd_supply(struct loaderd *l, const uint64_t *ids, size_t count) {
    if (!is_mine(l))
        return not_mine(l);
    int r = refuse_ids(l);
    if (r < 0)
        return r;
    size_t taken = client_supply_add(&l->supply, cursor(l), ids, count < INT64_MAX ? count : INT64_MAX);
    send_ids(l);
    if (taken == 0 && count > 0)
        return fail(l, -EAGAIN, "%llu ids wait for their batches: lease some first",
                    (unsigned long long)l->supply.capacity);
    return (int64_t)taken;
}

int loaderd_supply_end(struct loaderd *l) {
    if (!is_mine(l))
        return not_mine(l);
    int r = refuse_ids(l);
    if (r < 0)
        return r;
    l->supply.ended = true;
    send_ids(l);
    return 0;
}

/* ---- for libloaderd-cuda ----------------------------------------------------------------------------------------- */

int loaderd_internal_set_ring_hooks(struct loaderd *l, const struct loaderd_ring_hooks *hooks, void *context) {
    if (hooks && l->hooks)
        return -EBUSY;
    for (struct ring *ring = l->old; ring; ring = ring->next)
        tell_unmapped(l, ring);
    tell_unmapped(l, l->ring);
    l->hooks = hooks;
    l->hook_context = context;
    for (struct ring *ring = l->old; ring; ring = ring->next)
        tell_mapped(l, ring);
    tell_mapped(l, l->ring);
    return 0;
}

void *loaderd_internal_ring_context(const struct loaderd *l, const struct loaderd_ring_hooks *hooks) {
    return hooks && l->hooks == hooks ? l->hook_context : NULL;
}

bool loaderd_internal_is_mine(const struct loaderd *l) {
    return is_mine(l);
}

void loaderd_internal_tell_device(struct loaderd *l, const struct loaderd_device_words *words) {
    if (!l->ring)
        return;
    struct loaderd_control *c = l->ring->consumer.control;
    uint64_t uuid[2];
    memcpy(uuid, words->uuid, sizeof uuid);
    consumer_waited(&l->ring->consumer, words->waited_ns);
    for (int i = 0; i < 2; i++)
        atomic_store_explicit(&c->device_uuid[i], uuid[i], memory_order_relaxed);
    atomic_store_explicit(&c->stream_wait_ns, words->stream_wait_ns + 1, memory_order_relaxed);
    atomic_store_explicit(&c->device_wait_ns, words->call_wait_ns + 1, memory_order_relaxed);
}

/* ---- what a loader knows ----------------------------------------------------------------------------------------- */

int loaderd_state(const struct loaderd *l, struct loaderd_state *ret) {
    if (!is_mine(l))
        return not_mine(l);
    const struct ring *ring = l->old ? l->old : l->ring;
    while (ring != l->ring && (ring->generation <= l->sought || ring->consumer.prefix == ring->consumer.next))
        ring = ring->next ? ring->next : l->ring;
    *ret = l->identity;
    /* behind a seek that found no daemon yet the ring is still the old one, and nothing of the new place was leased */
    bool before = ring->generation <= l->sought;
    position(l, before ? cursor(l) : ring->base + ring->consumer.prefix, &ret->epoch, &ret->step);
    return 0;
}

int loaderd_info(const struct loaderd *l, struct loaderd_info *ret) {
    if (!is_mine(l))
        return not_mine(l);
    *ret = l->info;
    return 0;
}

int loaderd_statistics(const struct loaderd *l, struct loaderd_statistics *ret) {
    if (!is_mine(l))
        return not_mine(l);
    *ret = l->statistics;
    return 0;
}

const char *loaderd_error(const struct loaderd *l) {
    return l->error;
}

int loaderd_fd(struct loaderd *l) {
    if (!is_mine(l))
        return not_mine(l);
    if (l->epoll_fd >= 0)
        return l->epoll_fd;
    struct epoll_event event = {.events = EPOLLIN};
    l->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    l->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (l->timer_fd < 0 || l->epoll_fd < 0 || epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, l->timer_fd, &event) < 0) {
        int code = -errno;
        close_fd(&l->timer_fd);
        close_fd(&l->epoll_fd);
        return fail(l, code, "no descriptor left for loaderd_fd: %s", strerror(-code));
    }
    watch_link(l);
    if (l->link != LINK_UP)
        set_timer(l, 1); /* at once: try_next has to look after the link */
    return l->epoll_fd;
}

/* Waits for the answer to SAMPLE_PATH; wake-ups on the way are remembered. */
static int receive_text(struct loaderd *l, char *packet, size_t size, bool *byte) {
    uint64_t until = after_ms(now_ns(), ANSWER_TIMEOUT_MS);
    struct pollfd p = {.fd = l->fd, .events = POLLIN};
    for (;;) {
        int fds[2], n = connection_receive(l->fd, packet, size, fds);
        close_fd(&fds[0]);
        close_fd(&fds[1]);
        if (n > 1)
            return n;
        if (n == 1)
            *byte = true;
        else if (n != -EAGAIN)
            return fail(l, -ECONNRESET, "the daemon (pid %d) at %s went away", l->info.daemon_pid, l->socket);
        else if (now_ns() >= until)
            return fail(l, -ETIMEDOUT, "the daemon (pid %d) at %s %s", l->info.daemon_pid, l->socket,
                        daemon_condition(l));
        else
            poll(&p, 1, ms_until(until, now_ns(), 1000));
    }
}

int loaderd_sample_path(struct loaderd *l, uint64_t sample, char *buffer, size_t size) {
    if (!is_mine(l))
        return not_mine(l);
    if (l->link != LINK_UP)
        return fail(l, -ECONNRESET, "no daemon to ask: it went away, the next loaderd_next() looks for one");
    struct loaderd_sample_path ask = {.message = {.type = LOADERD_SAMPLE_PATH, .length = sizeof ask}, .sample = sample};
    char packet[16384];
    const char *text;
    uint64_t bytes;
    bool byte = false;
    connection_send(l->fd, &ask, sizeof ask); /* broken: the answer says so */
    int n = receive_text(l, packet, sizeof packet, &byte);
    if (byte && l->armed)
        set_timer(l, 1); /* the caller may be about to poll for that byte */
    if (n < 0)
        return n;
    int r = connection_parse_text(packet, (size_t)n, &text, &bytes, l->error, sizeof l->error);
    if (r < 0)
        return r;
    size_t length = strlen(text);
    if (length >= size)
        return fail(l, -ENOSPC, "the path has %zu bytes, the buffer %zu", length, size);
    memcpy(buffer, text, length + 1);
    return (int)length;
}

/* ---- open and close ---------------------------------------------------------------------------------------------------- */

void loaderd_close(struct loaderd *l) {
    if (!l)
        return;
    if (is_mine(l)) {
        drop_link(l);
    } else {
        close_fd(&l->fd); /* the parent's connection goes on */
    }
    close_fd(&l->epoll_fd);
    close_fd(&l->timer_fd);
    free_ring(l, l->ring);
    free_ring(l, l->emptied);
    while (l->old)
        free_old_ring(l, l->old);
    if (l->hooks)
        l->hooks->closed(l->hook_context);
    for (char **key = l->keys; key && *key; key++)
        free(*key);
    free(l->keys);
    free(l->open);
    free(l->fields);
    free(l->names);
    client_supply_free(&l->supply);
    free(l->private_daemon);
    if (l->mine)
        munmap((void *)(uintptr_t)l->mine, 1);
    free(l);
}

/* The caller's struct may be an older one, or a newer one that asks for nothing new. */
static int read_options(const struct loaderd_options *from, struct loaderd_options *ret, char *error, size_t size) {
    *ret = (struct loaderd_options)LOADERD_OPTIONS_INIT;
    if (!from)
        return 0;
    if (from->size < offsetof(struct loaderd_options, keys)) {
        snprintf(error, size, "options.size is %zu: begin with LOADERD_OPTIONS_INIT", from->size);
        return -EINVAL;
    }
    const unsigned char *bytes = (const unsigned char *)from;
    for (size_t i = sizeof *ret; i < from->size; i++)
        if (bytes[i]) {
            snprintf(error, size,
                     "the options are of a newer libloaderd than this one (%s) and use what it does not know",
                     loaderd_version());
            return -EINVAL;
        }
    memcpy(ret, from, from->size < sizeof *ret ? from->size : sizeof *ret);
    return 0;
}

/* Copies the keys; in a private daemon's, paths become absolute. */
static int copy_keys(struct loaderd *l, const char *const *keys, bool is_path) {
    size_t count = 0;
    while (keys && keys[count])
        count++;
    l->keys = calloc(count + 1, sizeof *l->keys);
    for (size_t i = 0; l->keys && i < count; i++) {
        const char *equals = strchr(keys[i], '=');
        if (!equals || equals == keys[i])
            return fail(l, -EINVAL, "options.keys has '%.60s': each must be \"key=value\"", keys[i]);
        if (is_path && private_is_path_key(keys[i])) {
            char *value = private_absolute(equals + 1);
            if (!value || asprintf(&l->keys[i], "%.*s=%s", (int)(equals - keys[i]), keys[i], value) < 0)
                l->keys[i] = NULL;
            free(value);
        } else {
            l->keys[i] = strdup(keys[i]);
        }
        if (!l->keys[i])
            return fail(l, -ENOMEM, "no memory left for the loader");
    }
    return l->keys ? 0 : fail(l, -ENOMEM, "no memory left for the loader");
}

/* name NUL job NUL key=value NUL ... */
static int make_strings(struct loaderd *l, const char *name, const char *job, const char *group) {
    const size_t head = offsetof(struct loaderd_open_message, strings);
    size_t bytes = head + strlen(name) + 1 + strlen(job) + 1;
    for (char **key = l->keys; *key; key++)
        bytes += l->private_daemon && private_is_daemon_key(*key) ? 0 : strlen(*key) + 1;
    bytes += group ? sizeof "group=" + strlen(group) : 0;
    if (bytes > LOADERD_MESSAGE_MAX)
        return fail(l, -EINVAL, "name and keys are too long: %zu bytes, at most %u", bytes, LOADERD_MESSAGE_MAX);
    l->open = calloc(1, bytes < sizeof *l->open ? sizeof *l->open : bytes);
    if (!l->open)
        return fail(l, -ENOMEM, "no memory left for the loader");
    char *to = (char *)l->open + head;
    to = stpcpy(to, name) + 1;
    to = stpcpy(to, job) + 1;
    for (char **key = l->keys; *key; key++)
        if (!l->private_daemon || !private_is_daemon_key(*key))
            to = stpcpy(to, *key) + 1;
    if (group)
        stpcpy(stpcpy(to, "group="), group);
    l->open_bytes = bytes;
    l->open->message = (struct loaderd_message){.type = LOADERD_OPEN, .length = (uint32_t)bytes};
    return 0;
}

static int make_open(struct loaderd *l, const char *name, const struct loaderd_options *o) {
    struct rank rank;
    char job[512] = "";
    int r = rank_find(o->rank, o->world, &rank, l->error, sizeof l->error);
    if (r < 0)
        return r;
    if (o->job || l->private_daemon)
        private_job(o->job, job, sizeof job);
    l->in_group = o->group != NULL;
    r = make_strings(l, name, job, o->group);
    if (r < 0)
        return r;
    struct loaderd_open_message *m = l->open;
    m->rank = rank.rank;
    m->world = rank.world;
    m->held = o->held ? o->held : 1;
    m->epoch = o->state ? o->state->epoch : o->epoch;
    m->step = o->state ? o->state->step : o->step;
    m->epochs = o->epochs;
    if (o->state) {
        m->flags = LOADERD_OPEN_HAS_STATE;
        m->seed = o->state->seed;
        m->global_batch = o->state->global_batch;
        memcpy(m->fingerprint, o->state->fingerprint, sizeof m->fingerprint);
    }
    return 0;
}

/* Which daemon: the options' socket, the service, or a private one. */
static int choose_daemon(struct loaderd *l, const struct loaderd_options *o, bool is_path) {
    if (o->socket && *o->socket) {
        if (strlen(o->socket) > CONNECTION_PATH_MAX)
            return fail(l, -ENAMETOOLONG, "options.socket has %zu bytes; a unix socket's path may have %d",
                        strlen(o->socket), CONNECTION_PATH_MAX);
        snprintf(l->socket, sizeof l->socket, "%.107s", o->socket);
        return 0;
    }
    if (!is_path) {
        l->search = true;
        return 0;
    }
    struct private_daemon daemon;
    int r = private_init(&daemon, o->job, o->daemon, l->error, sizeof l->error);
    if (r < 0)
        return r;
    l->private_daemon = malloc(sizeof daemon);
    if (!l->private_daemon)
        return fail(l, -ENOMEM, "no memory left for the loader");
    *l->private_daemon = daemon;
    snprintf(l->socket, sizeof l->socket, "%s", daemon.socket);
    return 0;
}

static int make_mine(struct loaderd *l) {
    void *page = mmap(NULL, 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return -ENOMEM;
    *(uint8_t *)page = 1;
    if (madvise(page, 1, MADV_WIPEONFORK) < 0) /* before Linux 4.14 */
        l->pid = getpid();
    l->mine = page;
    return 0;
}

static int64_t timeout_or(int32_t ms, int32_t preset) {
    return ms == 0 ? preset : ms;
}

static int prepare(struct loaderd *l, const char *name, const struct loaderd_options *options) {
    struct loaderd_options o;
    bool is_path = private_is_path(name);
    int r = read_options(options, &o, l->error, sizeof l->error);
    if (r == 0 && !*name)
        r = fail(l, -EINVAL, "the name is empty: give a pipeline's name or a dataset's path");
    if (r == 0)
        r = choose_daemon(l, &o, is_path);
    if (r == 0)
        r = copy_keys(l, o.keys, is_path);
    if (r < 0)
        return r;
    char *absolute = is_path ? private_absolute(name) : strdup(name);
    r = absolute ? make_open(l, absolute, &o) : fail(l, -ENOMEM, "no memory left for the loader");
    free(absolute);
    l->next_timeout_ms = (int32_t)timeout_or(o.next_timeout_ms, DEFAULT_NEXT_TIMEOUT_MS);
    l->reconnect_timeout_ms = (int32_t)timeout_or(o.reconnect_timeout_ms, DEFAULT_RECONNECT_TIMEOUT_MS);
    return r;
}

/* Runs the link to its first UP. A dataset's scan may take its time; reaching the daemon may not. */
static int open_link(struct loaderd *l) {
    l->first = true;
    l->link = LINK_DOWN;
    l->backoff_ns = FIRST_RETRY_MS * MS;
    l->give_up_ns = after_ms(now_ns(), OPEN_TIMEOUT_MS);
    for (;;) {
        int r = step_link(l);
        if (r < 0 || l->link == LINK_UP)
            return r;
        wait_link(l, l->link == LINK_HELLO ? l->answer_ns : NEVER);
    }
}

int loaderd_open(struct loaderd **ret, const char *name, const struct loaderd_options *options, char *error,
                 size_t error_size) {
    struct loaderd *l = calloc(1, sizeof *l);
    if (l)
        l->fd = l->epoll_fd = l->timer_fd = -1;
    int r = l ? make_mine(l) : -ENOMEM;
    if (r < 0) {
        free(l);
        if (error && error_size)
            snprintf(error, error_size, "no memory left for the loader");
        return r;
    }
    r = prepare(l, name, options);
    if (r == 0)
        r = open_link(l);
    if (r == 0) {
        l->error[0] = '\0';
        *ret = l;
        return 0;
    }
    if (error && error_size)
        snprintf(error, error_size, "%s", *l->error ? l->error : strerror(-r));
    loaderd_close(l);
    return r;
}
