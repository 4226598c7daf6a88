/* SPDX-License-Identifier: MIT */
/* The opener thread: see opener.h. The mutex guards the three lists, never a dataset being opened. */
#include "opener.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>

#include "base/util.h"

struct entry {
    struct entry *next;
    struct pipeline_config config;
    struct pipeline *pipeline; /* NULL: opening it failed */
    char error[DIAG_TEXT];
    bool forgotten; /* not in the configuration any more: dropped by the thread */
};

struct opener {
    struct pool *pool;
    struct daemon_config daemon;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t more, over;
    struct open_job *todo, **todo_tail, *done, **done_tail;
    struct entry *entries; /* members are added and removed by the thread alone */
    uint32_t pending;
    bool stop, ended;
    int event_fd; /* between the thread and the loop of this process */
};

struct open_job *open_job_new(void) {
    struct open_job *job = calloc(1, sizeof *job);
    if (job)
        job->request.wake_fd = -1;
    return job;
}

struct open_job *open_job_free(struct open_job *job) {
    if (!job)
        return NULL;
    pipeline_config_deinit(&job->base);
    pipeline_config_deinit(&job->request.config);
    if (job->request.wake_fd >= 0)
        close(job->request.wake_fd);
    if (job->pipeline)
        pipeline_unref(job->pipeline);
    free(job->job);
    free(job);
    return NULL;
}

static struct entry *find_entry(struct opener *opener, const struct pipeline_config *config) {
    pthread_mutex_lock(&opener->mutex);
    struct entry *e = opener->entries;
    while (e && (e->forgotten || !pipeline_config_same_dataset(&e->config, config)))
        e = e->next;
    pthread_mutex_unlock(&opener->mutex);
    return e;
}

/* Adds an entry for status before the long work begins. */
static struct entry *add_entry(struct opener *opener, const struct pipeline_config *config) {
    struct entry *entry = calloc(1, sizeof *entry);
    if (!entry)
        return NULL;
    if (pipeline_config_copy(config, &entry->config) < 0) {
        free(entry);
        return NULL;
    }
    snprintf(entry->error, sizeof entry->error, "being opened");
    pthread_mutex_lock(&opener->mutex);
    entry->next = opener->entries;
    opener->entries = entry;
    pthread_mutex_unlock(&opener->mutex);
    return entry;
}

/* The shared pipeline of a dataset: opened here if it is not yet, or if it could not be opened the last time. */
static int find_or_open(struct opener *opener, const struct pipeline_config *config, struct pipeline **ret,
                        struct diag *diag) {
    struct entry *entry = find_entry(opener, config);
    if (!entry)
        entry = add_entry(opener, config);
    if (!entry)
        return diag_set(diag, -ENOMEM, "no memory left to open pipeline %s", config->name);
    if (!entry->pipeline) {
        struct pipeline *pipeline = NULL;
        int r = pipeline_new(config, &opener->daemon, &pipeline, diag);
        pthread_mutex_lock(&opener->mutex);
        entry->pipeline = pipeline;
        snprintf(entry->error, sizeof entry->error, "%s", r < 0 ? diag->text : "");
        pthread_mutex_unlock(&opener->mutex);
        if (r < 0)
            return r;
    }
    *ret = pipeline_ref(entry->pipeline);
    return 0;
}

static void do_job(struct opener *opener, struct open_job *job) {
    job->code = find_or_open(opener, &job->base, &job->pipeline, &job->diag);
    if (job->code < 0 || job->preload)
        return;
    job->request.job = job->job;
    job->request.group = *job->group ? job->group : NULL;
    job->code = session_new(opener->pool, job->pipeline, &job->request, &job->session, &job->diag);
    if (job->code == 0)
        job->request.wake_fd = -1; /* the session's now */
}

/* With the mutex held. */
static void drop_forgotten(struct opener *opener) {
    for (struct entry **at = &opener->entries; *at;) {
        struct entry *entry = *at;
        if (!entry->forgotten) {
            at = &entry->next;
            continue;
        }
        *at = entry->next;
        if (entry->pipeline)
            pipeline_unref(entry->pipeline);
        pipeline_config_deinit(&entry->config);
        free(entry);
    }
}

static void signal_loop(const struct opener *opener) {
    uint64_t one = 1;
    if (write(opener->event_fd, &one, sizeof one) < 0)
        return; /* full: the loop is awake anyway */
}

static void *opener_main(void *arg) {
    struct opener *opener = arg;
    pthread_setname_np(pthread_self(), "opener");
    pthread_mutex_lock(&opener->mutex);
    while (!opener->stop) {
        drop_forgotten(opener);
        struct open_job *job = opener->todo;
        if (!job) {
            pthread_cond_wait(&opener->more, &opener->mutex);
            continue;
        }
        opener->todo = job->next;
        if (!opener->todo)
            opener->todo_tail = &opener->todo;
        job->next = NULL;
        pthread_mutex_unlock(&opener->mutex);
        do_job(opener, job);
        pthread_mutex_lock(&opener->mutex);
        *opener->done_tail = job;
        opener->done_tail = &job->next;
        signal_loop(opener);
    }
    opener->ended = true;
    pthread_cond_signal(&opener->over);
    pthread_mutex_unlock(&opener->mutex);
    return NULL;
}

/* The whole of it is the loop's until here: no thread yet. */
static int start_thread(struct opener *opener) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int r = pthread_create(&opener->thread, NULL, opener_main, opener);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -r;
}

int opener_new(struct pool *pool, const struct daemon_config *daemon, struct opener **ret, struct diag *diag) {
    struct opener *opener = calloc(1, sizeof *opener);
    if (!opener)
        return diag_set(diag, -ENOMEM, "no memory left for the server");
    opener->pool = pool;
    opener->daemon = *daemon;
    opener->daemon.socket = strdup(daemon->socket ? daemon->socket : "");
    opener->daemon.socket_group = strdup(daemon->socket_group ? daemon->socket_group : "");
    opener->todo_tail = &opener->todo;
    opener->done_tail = &opener->done;
    pthread_mutex_init(&opener->mutex, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&opener->more, NULL);
    pthread_cond_init(&opener->over, &monotonic);
    pthread_condattr_destroy(&monotonic);
    opener->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int r = opener->event_fd < 0 ? -errno : 0;
    if (r == 0 && (!opener->daemon.socket || !opener->daemon.socket_group))
        r = -ENOMEM;
    if (r == 0)
        r = start_thread(opener);
    if (r < 0) {
        opener->ended = true;
        opener_free(opener);
        return diag_set(diag, r, "cannot start the opener thread: %s", strerror(-r));
    }
    *ret = opener;
    return 0;
}

static void free_jobs(struct open_job *job) {
    while (job) {
        struct open_job *next = job->next;
        session_close(job->session);
        open_job_free(job);
        job = next;
    }
}

/* True where the thread has ended. */
static bool stop_thread(struct opener *opener) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec++;
    pthread_mutex_lock(&opener->mutex);
    opener->stop = true;
    pthread_cond_signal(&opener->more);
    while (!opener->ended && pthread_cond_timedwait(&opener->over, &opener->mutex, &until) == 0)
        ;
    bool ended = opener->ended;
    pthread_mutex_unlock(&opener->mutex);
    return ended && pthread_join(opener->thread, NULL) == 0;
}

bool opener_free(struct opener *opener) {
    if (!opener)
        return true;
    if (!opener->ended || opener->thread) {
        if (!stop_thread(opener))
            return false;
    }
    free_jobs(opener->todo);
    free_jobs(opener->done);
    for (struct entry *e = opener->entries; e; e = e->next)
        e->forgotten = true;
    drop_forgotten(opener);
    pthread_mutex_destroy(&opener->mutex);
    pthread_cond_destroy(&opener->more);
    pthread_cond_destroy(&opener->over);
    if (opener->event_fd >= 0)
        close(opener->event_fd);
    free(opener->daemon.socket);
    free(opener->daemon.socket_group);
    free(opener);
    return true;
}

void opener_submit(struct opener *opener, struct open_job *job) {
    pthread_mutex_lock(&opener->mutex);
    opener->pending++;
    if (!job->preload) { /* before the preloads that nobody waits for, behind the other clients */
        struct open_job **at = &opener->todo;
        while (*at && !(*at)->preload)
            at = &(*at)->next;
        job->next = *at;
        *at = job;
        if (!job->next)
            opener->todo_tail = &job->next;
    } else {
        *opener->todo_tail = job;
        opener->todo_tail = &job->next;
    }
    pthread_cond_signal(&opener->more);
    pthread_mutex_unlock(&opener->mutex);
}

struct open_job *opener_finished(struct opener *opener) {
    pthread_mutex_lock(&opener->mutex);
    struct open_job *job = opener->done;
    if (job) {
        opener->done = job->next;
        if (!opener->done)
            opener->done_tail = &opener->done;
        job->next = NULL;
        opener->pending--;
    } else {
        uint64_t count;
        if (read(opener->event_fd, &count, sizeof count) < 0)
            count = 0; /* was not set */
    }
    pthread_mutex_unlock(&opener->mutex);
    return job;
}

int opener_fd(const struct opener *opener) {
    return opener->event_fd;
}

uint32_t opener_pending(struct opener *opener) {
    pthread_mutex_lock(&opener->mutex);
    uint32_t pending = opener->pending;
    pthread_mutex_unlock(&opener->mutex);
    return pending;
}

void opener_retain(struct opener *opener, const struct pipeline_config *pipelines, uint32_t count) {
    pthread_mutex_lock(&opener->mutex);
    for (struct entry *e = opener->entries; e; e = e->next) {
        bool wanted = false;
        for (uint32_t i = 0; i < count && !wanted; i++)
            wanted = pipeline_config_same_dataset(&e->config, &pipelines[i]);
        e->forgotten = e->forgotten || !wanted;
    }
    pthread_cond_signal(&opener->more);
    pthread_mutex_unlock(&opener->mutex);
}

void opener_each(struct opener *opener, void (*f)(void *arg, const struct opener_pipeline *known), void *arg) {
    pthread_mutex_lock(&opener->mutex);
    for (struct entry *e = opener->entries; e; e = e->next)
        if (!e->forgotten)
            f(arg, &(struct opener_pipeline){.config = &e->config, .pipeline = e->pipeline, .error = e->error});
    pthread_mutex_unlock(&opener->mutex);
}
