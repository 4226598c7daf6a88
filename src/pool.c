/* SPDX-License-Identifier: MIT */
/*
 * The pool: starts and stops the workers, keeps the list of sessions, queues what the log shall say of bad samples.
 *
 * Sessions are added and removed under workers' feet by replacing an immutable list. A worker announces the version of
 * the list that it uses; what left the list is freed once no worker announces an older version and no unit of it is in
 * flight (pool_reap).
 */
#include "pool.h"

#include <fcntl.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

#include "base/log.h"
#include "worker.h"

static enum read_engine map_engine(enum config_engine engine) {
    switch (engine) {
    case CONFIG_ENGINE_URING:
        return READ_URING;
    case CONFIG_ENGINE_MMAP:
        return READ_MMAP;
    case CONFIG_ENGINE_PREAD:
        return READ_PREAD;
    case CONFIG_ENGINE_AUTO:
        break;
    }
    return READ_AUTO;
}

/* Half of what memory there is: the rest is for rings, decoders and programs. */
static uint64_t cache_room(const struct topology *topology) {
    uint64_t pages = (uint64_t)sysconf(_SC_PHYS_PAGES), page = (uint64_t)sysconf(_SC_PAGESIZE);
    return MIN(topology->memory_limit, pages * page) / 2;
}

static enum read_direct map_direct(enum config_direct direct) {
    switch (direct) {
    case CONFIG_DIRECT_NO:
        return READ_DIRECT_NO;
    case CONFIG_DIRECT_YES:
        return READ_DIRECT_YES;
    case CONFIG_DIRECT_AUTO:
        break;
    }
    return READ_DIRECT_AUTO;
}

/* Where worker `number` is to run: *ret_node is the nearest memory, -1: unknown, or there is one node only. */
static int worker_cpu(const struct pool *pool, uint32_t number, int *ret_node) {
    const struct topology_cpu *cpu = topology_worker_cpu(&pool->topology, number, pool->workers);
    *ret_node = pool->daemon.pin && pool->topology.nodes > 1 ? cpu->memory_node : -1;
    return pool->daemon.pin ? (int)cpu->id : -1;
}

static int start_workers(struct pool *pool, struct diag *diag) {
    for (uint32_t i = 0; i < pool->workers; i++) {
        struct worker *w = &pool->worker[i];
        *w = (struct worker){.pool = pool, .number = i};
        w->cpu = worker_cpu(pool, i, &w->node);
        atomic_init(&w->version, VERSION_ASLEEP);
        int r = pthread_create(&w->thread, NULL, worker_main, w);
        if (r)
            return diag_set(diag, -r, "cannot start worker %u of %u: %s; check the limit of tasks", i, pool->workers,
                            strerror(r));
        pool->started++;
        char name[16];
        snprintf(name, sizeof name, "worker/%u", i % 100000);
        pthread_setname_np(w->thread, name);
    }
    pthread_mutex_lock(&pool->start_lock);
    while (pool->ready < pool->started)
        pthread_cond_wait(&pool->start_signal, &pool->start_lock);
    pthread_mutex_unlock(&pool->start_lock);
    for (uint32_t i = 0; i < pool->workers; i++)
        if (pool->worker[i].start_error)
            return diag_set(diag, pool->worker[i].start_error, "%s", pool->worker[i].start_diag.text);
    return 0;
}

int pool_new(const struct daemon_config *daemon, struct pool **ret, struct diag *diag) {
    struct pool *pool = aligned_alloc(64, align_up(sizeof *pool, 64));
    if (!pool)
        return diag_set(diag, -ENOMEM, "out of memory for the workers");
    memset(pool, 0, sizeof *pool);
    pthread_mutex_init(&pool->start_lock, NULL);
    pthread_cond_init(&pool->start_signal, NULL);
    pthread_mutex_init(&pool->list_lock, NULL);
    pthread_mutex_init(&pool->report_lock, NULL);
    pool->daemon = *daemon;
    int r = topology_read("", &pool->topology, diag);
    if (r < 0) {
        free(pool);
        return r;
    }
    pool->depth = daemon->depth;
    pool->workers = daemon->workers ? daemon->workers : topology_workers(&pool->topology);
    pool->direct = map_direct(daemon->direct);
    pool->cache_room = cache_room(&pool->topology);
    struct diag why = DIAG_INIT;
    pool->engine = read_choose(map_engine(daemon->engine), &why);
    memcpy(pool->engine_reason, why.text, sizeof pool->engine_reason);
    struct session_list *empty = calloc(1, sizeof *empty);
    atomic_init(&pool->list, empty);
    pool->worker = aligned_alloc(64, pool->workers * sizeof *pool->worker);
    pool->report = calloc(POOL_REPORTS, sizeof *pool->report);
    if (!empty || !pool->worker || !pool->report)
        r = diag_set(diag, -ENOMEM, "out of memory for the workers");
    else
        r = start_workers(pool, diag);
    if (r < 0) {
        pool_free(pool);
        return r;
    }
    *ret = pool;
    return 0;
}

void pool_free(struct pool *pool) {
    if (!pool)
        return;
    atomic_store(&pool->stop, true);
    pool_kick(pool);
    for (uint32_t i = 0; i < pool->started; i++)
        pthread_join(pool->worker[i].thread, NULL);
    while (pool->sessions) {
        struct session *s = pool->sessions;
        pool->sessions = s->next;
        session_free(s);
    }
    pool_report(pool);
    while (pool->old_lists) {
        struct session_list *l = pool->old_lists;
        pool->old_lists = l->older;
        free(l);
    }
    free(atomic_load(&pool->list));
    for (uint32_t i = 0; pool->worker && i < pool->started; i++)
        free(pool->worker[i].circle);
    free(pool->worker);
    free(pool->report);
    topology_deinit(&pool->topology);
    pthread_mutex_destroy(&pool->start_lock);
    pthread_cond_destroy(&pool->start_signal);
    pthread_mutex_destroy(&pool->list_lock);
    pthread_mutex_destroy(&pool->report_lock);
    free(pool);
}

/* Replaces the list by one of the sessions that are not closed; list_lock is held. -ENOMEM leaves the old one. */
static int relist(struct pool *pool) {
    uint32_t n = 0;
    for (struct session *s = pool->sessions; s; s = s->next)
        n += !s->closed;
    struct session_list *fresh = calloc(1, sizeof *fresh + n * sizeof fresh->session[0]);
    if (!fresh)
        return -ENOMEM;
    for (struct session *s = pool->sessions; s; s = s->next)
        if (!s->closed)
            fresh->session[fresh->count++] = s;
    struct session_list *old = atomic_exchange(&pool->list, fresh);
    old->version = atomic_fetch_add(&pool->version, 1) + 1;
    old->older = pool->old_lists;
    pool->old_lists = old;
    return 0;
}

void pool_kick(struct pool *pool) {
    /* seq_cst, as is a sleeper's count of itself before it looks again: one of both sees the other */
    atomic_fetch_add(&pool->kicks, 1);
    if (atomic_load(&pool->sleepers))
        syscall(SYS_futex, &pool->kicks, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

int pool_add(struct pool *pool, struct session *session) {
    pthread_mutex_lock(&pool->list_lock);
    session->next = pool->sessions;
    pool->sessions = session;
    atomic_store(&session->served_ns, atomic_load(&pool->virtual_ns));
    int r = relist(pool);
    if (r < 0)
        pool->sessions = session->next;
    pthread_mutex_unlock(&pool->list_lock);
    if (r == 0)
        pool_kick(pool);
    return r;
}

void session_close(struct session *session) {
    if (!session)
        return;
    struct pool *pool = session->pool;
    pthread_mutex_lock(&pool->list_lock);
    session->closed = true;
    ring_stop_after(session->ring, 0); /* nothing more is claimed, also where the list cannot be replaced */
    pthread_mutex_unlock(&pool->list_lock);
    pool_kick(pool);
}

/* The oldest list version that a worker may still be using. */
static uint64_t oldest_version(const struct pool *pool) {
    uint64_t oldest = UINT64_MAX;
    for (uint32_t i = 0; i < pool->started; i++) {
        uint64_t version = atomic_load(&pool->worker[i].version);
        oldest = MIN(oldest, version);
    }
    return oldest;
}

static void free_old_lists(struct pool *pool, uint64_t oldest) {
    struct session_list **link = &pool->old_lists;
    while (*link) {
        struct session_list *l = *link;
        if (l->version <= oldest) {
            *link = l->older;
            free(l);
        } else {
            link = &l->older;
        }
    }
}

uint32_t pool_reap(struct pool *pool) {
    uint32_t closing = 0;
    struct session *dead = NULL;
    pthread_mutex_lock(&pool->list_lock);
    bool fresh = false;
    for (struct session *s = pool->sessions; s; s = s->next)
        fresh |= (s->closed && s->closed_version == 0) || ring_has_left(s->ring);
    if (fresh && relist(pool) == 0)
        for (struct session *s = pool->sessions; s; s = s->next) {
            if (s->closed && s->closed_version == 0)
                s->closed_version = atomic_load(&pool->version);
            ring_bury(s->ring, atomic_load(&pool->version), 0);
        }
    uint64_t oldest = oldest_version(pool);
    for (struct session *s = pool->sessions; s; s = s->next)
        closing += ring_bury(s->ring, 0, oldest);
    struct session **link = &pool->sessions;
    while (*link) {
        struct session *s = *link;
        if (s->closed && s->closed_version && s->closed_version <= oldest && atomic_load(&s->inflight) == 0) {
            *link = s->next;
            s->next = dead;
            dead = s;
        } else {
            closing += s->closed;
            link = &s->next;
        }
    }
    free_old_lists(pool, oldest);
    pthread_mutex_unlock(&pool->list_lock);
    while (dead) {
        struct session *s = dead;
        dead = s->next;
        session_free(s);
    }
    if (closing)
        pool_kick(pool); /* sleepers announce the newer list */
    return closing;
}

const struct topology *pool_topology(const struct pool *pool) {
    return &pool->topology;
}
void pool_add_ring_bytes(struct pool *pool, uint64_t bytes) {
    atomic_fetch_add_explicit(&pool->ring_bytes, bytes, memory_order_relaxed);
}
uint32_t pool_workers(const struct pool *pool) {
    return pool->workers;
}
uint32_t pool_depth(const struct pool *pool) {
    return pool->depth;
}
const char *pool_engine(const struct pool *pool) {
    return read_engine_name(pool->engine);
}
const char *pool_engine_reason(const struct pool *pool) {
    return pool->engine_reason;
}

/* Whether a thread of ours waits in the kernel for a device or a file server: state D of proc(5). */
static bool waits_for_storage(int tid) {
    char path[48], text[128];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
    cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (n <= 0)
        return false;
    text[n] = '\0';
    const char *name_ends = strrchr(text, ')');
    return name_ends && name_ends[1] == ' ' && name_ends[2] == 'D';
}

/* Changes whenever the worker finishes, claims, reads or wakes up; even an idle one wakes up every 100 ms. */
static uint64_t beat_of(const struct worker *w) {
    uint64_t sum = atomic_load_explicit(&w->claims, memory_order_relaxed);
    for (int i = 0; i < STAGES; i++)
        sum += atomic_load_explicit(&w->stage_ns[i], memory_order_relaxed);
    return sum;
}

bool pool_moves(struct pool *pool, uint64_t now, uint64_t patience_ns, uint32_t *ret_stuck) {
    bool all = true;
    for (uint32_t i = 0; i < pool->started; i++) {
        struct worker *w = &pool->worker[i];
        uint64_t beat = beat_of(w);
        if (w->beat_ns == 0 || beat != w->beat) {
            w->beat = beat;
            w->beat_ns = now;
        } else if (all && now - w->beat_ns >= patience_ns && !waits_for_storage(atomic_load(&w->tid))) {
            *ret_stuck = i;
            all = false;
        }
    }
    return all;
}

void pool_each_session(struct pool *pool, void (*f)(void *arg, const struct session *session), void *arg) {
    pthread_mutex_lock(&pool->list_lock);
    for (const struct session *s = pool->sessions; s; s = s->next)
        if (!s->closed)
            f(arg, s);
    pthread_mutex_unlock(&pool->list_lock);
}

/* ---- the log of bad samples --------------------------------------------------------------------------------- */

void pool_note_bad(struct pool *pool, struct session *s, uint64_t sample, uint64_t epoch, uint64_t position,
                   bool damaged, const char *text) {
    pthread_mutex_lock(&pool->report_lock);
    if (pool->reports < POOL_REPORTS) {
        struct report *r = &pool->report[pool->reports++];
        r->pipeline = pipeline_ref(s->pipeline);
        r->sample = sample;
        r->epoch = epoch;
        r->position = position;
        r->damaged = damaged;
        snprintf(r->text, sizeof r->text, "%s", text);
    } else {
        pool->reports_lost++;
    }
    pthread_mutex_unlock(&pool->report_lock);
}

uint32_t pool_report(struct pool *pool) {
    struct report *due = malloc(sizeof *due * POOL_REPORTS);
    if (!due)
        return 0;
    pthread_mutex_lock(&pool->report_lock);
    uint32_t n = pool->reports;
    uint64_t lost = pool->reports_lost;
    memcpy(due, pool->report, n * sizeof *due);
    pool->reports = 0;
    pool->reports_lost = 0;
    pthread_mutex_unlock(&pool->report_lock);
    for (uint32_t i = 0; i < n; i++) {
        char name[4096 + 32];
        if (dataset_name(pipeline_dataset(due[i].pipeline), due[i].sample, name, sizeof name) < 0)
            snprintf(name, sizeof name, "?");
        const struct log_about about = {.pipeline = pipeline_config(due[i].pipeline)->name,
                                        .path = name,
                                        .sample = due[i].sample,
                                        .epoch = due[i].epoch,
                                        .position = due[i].position};
        log_about(LOG_WARNING, &about,
                  "%s sample %" PRIu64 " (%.600s) at epoch %" PRIu64 " position %" PRIu64 ": %.300s",
                  due[i].damaged ? "damaged" : "bad", due[i].sample, name, due[i].epoch, due[i].position, due[i].text);
        pipeline_unref(due[i].pipeline);
    }
    if (lost)
        log_warning("%" PRIu64 " more bad samples, too fast to name each; loaderctl inspect --all names them", lost);
    free(due);
    return n;
}
