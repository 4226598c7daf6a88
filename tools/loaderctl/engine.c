/* SPDX-License-Identifier: MIT */
/*
 * The daemon's engine inside this process: the pool of workers, one pipeline, one session, and the consumer side of its
 * ring. The wake channel is a socketpair: workers send their byte as they would to a client; in the other direction
 * pool_kick() is called directly. Never opens a listening socket. One thread owns an engine.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/log.h"
#include "base/util.h"
#include "loaderctl.h"
#include "topology.h"

#define SLEEP_MS 100 /* abi/ring.h: every sleeper looks again by itself that often */
#define LATE_MS 20   /* so much later than its batch a byte may come */

volatile sig_atomic_t engine_interrupted;

static void on_interrupt(int number) {
    (void)number;
    engine_interrupted = 1;
}

void engine_catch_interrupt(void) {
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

uint32_t threads_wanted(const struct daemon_config *daemon) {
    struct topology topology;
    if (daemon->workers)
        return daemon->workers;
    if (topology_read("", &topology, NULL) < 0)
        return 1;
    uint32_t n = topology_workers(&topology);
    topology_deinit(&topology);
    return n;
}

bool target_is_pattern(const char *target) {
    return strpbrk(target, "*?[{") != NULL; /* no pipeline's name has these */
}

static bool is_path(const char *target) {
    return strchr(target, '/') || target[0] == '.' || strncmp(target, "synthetic:", 10) == 0 ||
           target_is_pattern(target);
}

static int set_key(struct setup *setup, const struct key_value *key, struct diag *diag) {
    if (config_is_pipeline_key(key->key))
        return pipeline_config_set(&setup->pipeline, key->key, key->value, diag);
    return daemon_config_set(&setup->config.daemon, key->key, key->value, diag);
}

static int set_keys(struct setup *setup, const struct options *options, struct diag *diag) {
    for (uint32_t i = 0; i < options->nkeys; i++) {
        int r = set_key(setup, &options->keys[i], diag);
        if (r < 0)
            return r;
    }
    return 0;
}

int setup_check_keys(const struct options *options, struct diag *diag) {
    struct setup setup = {0};
    int r = config_init(&setup.config);
    if (r == 0)
        r = pipeline_config_init(&setup.pipeline, "command-line");
    if (r < 0)
        diag_set(diag, r, "out of memory");
    else
        r = set_keys(&setup, options, diag);
    setup_deinit(&setup);
    return r;
}

/* A dataset without a configuration file: its name is what was typed. */
static int setup_dataset(struct setup *setup, const char *target, struct diag *diag) {
    int r = pipeline_config_init(&setup->pipeline, target);
    if (r < 0)
        return diag_set(diag, r, "out of memory");
    return pipeline_config_set(&setup->pipeline, "dataset", target, diag);
}

static int read_config(struct setup *setup, const char *path, struct diag *diag) {
    config_deinit(&setup->config);
    setup->config = (struct config){0};
    int r = config_read_file(path, &setup->config, diag);
    if (r < 0)
        setup->config = (struct config){0};
    return r;
}

/* Names of the pipelines that there are, for the message. */
static int complain_pipeline(const struct setup *setup, const char *target, const char *file, struct diag *diag) {
    char names[256] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < setup->config.pipelines && used < sizeof names; i++)
        used +=
            (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", setup->config.pipeline[i].name);
    return diag_set(diag, -ENOENT, "'%s' is no file or folder here, and no pipeline of %s (it has: %s)", target, file,
                    *names ? names : "none");
}

static int setup_target(struct setup *setup, const struct options *options, struct diag *diag) {
    const char *target = options->target, *file = options->config ? options->config : DEFAULT_CONFIG;
    struct stat status;
    bool exists = stat(target, &status) == 0;
    if (options->config || (!is_path(target) && !exists)) {
        if (!options->config && access(file, F_OK) < 0)
            return diag_set(diag, -ENOENT,
                            "'%s' is no file or folder here, and there is no %s to look a pipeline up in "
                            "(name one with --config)",
                            target, file);
        int r = read_config(setup, file, diag);
        if (r < 0)
            return r;
    }
    if (is_path(target))
        return setup_dataset(setup, target, diag);
    const struct pipeline_config *pipeline = config_pipeline(&setup->config, target);
    if (pipeline) {
        int r = pipeline_config_copy(pipeline, &setup->pipeline);
        return r < 0 ? diag_set(diag, r, "out of memory") : 0;
    }
    if (exists)
        return setup_dataset(setup, target, diag);
    return complain_pipeline(setup, target, file, diag);
}

int setup_init(struct setup *ret, const struct options *options, struct diag *diag) {
    struct setup setup = {0};
    int r = config_init(&setup.config);
    if (r < 0)
        diag_set(diag, r, "out of memory");
    else
        r = setup_target(&setup, options, diag);
    if (r == 0)
        r = set_keys(&setup, options, diag);
    if (r < 0) {
        setup_deinit(&setup);
        return r;
    }
    log_init("loaderctl", options->quiet ? LOG_ERROR : (enum log_level)setup.config.daemon.log_level);
    *ret = setup;
    return 0;
}

void setup_deinit(struct setup *setup) {
    pipeline_config_deinit(&setup->pipeline);
    config_deinit(&setup->config);
}

/* Workers must not be the ones that Ctrl-C interrupts. */
static int start_pool(struct engine *engine, struct diag *diag) {
    sigset_t blocked, before;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGINT);
    sigaddset(&blocked, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &blocked, &before);
    int r = pool_new(&engine->setup.config.daemon, &engine->pool, diag);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return r;
}

static int open_session(struct engine *engine, const struct options *options, const struct engine_range *range,
                        struct diag *diag) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
        return diag_set(diag, -errno, "cannot make a socket pair: %s", strerror(errno));
    engine->wake = pair[0];
    struct session_request request = {
        .config = engine->setup.pipeline,
        .rank = options->rank,
        .world = options->world,
        .held = 1,
        .epoch = range->epoch,
        .step = range->step,
        .epochs = range->epochs,
        .job = "loaderctl",
        .pid = (int32_t)getpid(),
        .uid = (uint32_t)getuid(),
        .wake_fd = pair[1],
    };
    int r = session_new(engine->pool, engine->pipeline, &request, &engine->session, diag);
    if (r < 0) {
        close(pair[1]);
        return r;
    }
    struct session_info info;
    char error[DIAG_TEXT] = "";
    session_info(engine->session, 0, &info);
    engine->global_batch = info.global_batch;
    memcpy(engine->fingerprint, info.fingerprint, sizeof engine->fingerprint);
    r = consumer_attach(&engine->consumer, info.data_fd, info.control_fd, error, sizeof error);
    return r < 0 ? diag_set(diag, r, "%s", error) : 0;
}

int engine_open(struct engine *ret, const struct options *options, const struct engine_range *range,
                struct diag *diag) {
    *ret = (struct engine){.wake = -1};
    int r = setup_init(&ret->setup, options, diag);
    if (r < 0)
        return r;
    if (ret->setup.pipeline.shuffle == CONFIG_SHUFFLE_EXPLICIT) {
        engine_close(ret);
        return diag_set(diag, -EINVAL,
                        "shuffle = explicit needs a trainer that says which samples come; the batches of "
                        "its ids are those of --shuffle none --subset IDS");
    }
    uint64_t t0 = now_ns();
    r = pipeline_new(&ret->setup.pipeline, &ret->setup.config.daemon, &ret->pipeline, diag);
    ret->open_ns = now_ns() - t0;
    if (r == 0)
        r = start_pool(ret, diag);
    if (r == 0) {
        const char *reason = pool_engine_reason(ret->pool);
        if (reason && *reason && !options->quiet)
            remark("%s", reason);
        ret->started_ns = now_ns();
        r = open_session(ret, options, range, diag);
        ret->session_ns = now_ns() - ret->started_ns;
    }
    if (r < 0)
        engine_close(ret);
    return r;
}

void engine_close(struct engine *engine) {
    consumer_detach(&engine->consumer);
    if (engine->pool) {
        pool_report(engine->pool);
        session_close(engine->session);
        pool_free(engine->pool);
    }
    pipeline_unref(engine->pipeline);
    if (engine->wake >= 0)
        close(engine->wake);
    setup_deinit(&engine->setup);
    *engine = (struct engine){.wake = -1};
}

/* What the thread that owns a pool owes it. */
static void look_after(struct engine *engine) {
    uint64_t now = now_ns();
    if (now - engine->reported_ns < UINT64_C(100000000))
        return;
    engine->reported_ns = now;
    pool_report(engine->pool);
    pool_reap(engine->pool);
}

/* Waits for the workers' byte. True: it came. */
static bool sleep_for_byte(struct engine *engine, int milliseconds) {
    struct pollfd item = {.fd = engine->wake, .events = POLLIN};
    if (poll(&item, 1, milliseconds) <= 0)
        return false;
    char byte[16];
    while (recv(engine->wake, byte, sizeof byte, MSG_DONTWAIT) > 0)
        continue;
    return true;
}

/* Sleeps until a batch may be ready, at most `milliseconds`. A batch that is there although its byte has not come, and does not
 * come within a moment, is a lost wake-up. */
static void wait_for_batch(struct engine *engine, int milliseconds) {
    struct consumer *consumer = &engine->consumer;
    uint64_t t0 = now_ns();
    bool kick = false;
    if (!consumer_spin(consumer) && !consumer_announce(consumer, &kick)) {
        if (kick)
            pool_kick(engine->pool);
        if (!sleep_for_byte(engine, milliseconds) && consumer_announce(consumer, &kick) &&
            !sleep_for_byte(engine, LATE_MS))
            consumer->rescues++;
    }
    consumer_awake(consumer);
    consumer->waits++;
    consumer->wait_ns += now_ns() - t0;
}

int engine_next(struct engine *engine, struct loaderd_batch *ret, struct diag *diag) {
    return engine_next_until(engine, UINT64_MAX, ret, diag);
}

int engine_next_until(struct engine *engine, uint64_t deadline_ns, struct loaderd_batch *ret, struct diag *diag) {
    const char *message = NULL;
    for (;;) {
        look_after(engine);
        int r = consumer_try(&engine->consumer, ret, &message);
        if (r == 1)
            return 1;
        if (r == -ENODATA)
            return 0;
        if (r < 0)
            return diag_set(diag, r, "%s", message && *message ? message : strerror(-r));
        if (engine_interrupted)
            return -EINTR;
        uint64_t now = now_ns();
        if (now >= deadline_ns)
            return -ETIMEDOUT;
        wait_for_batch(engine, (int)MIN((deadline_ns - now) / 1000000 + 1, (uint64_t)SLEEP_MS));
    }
}

void engine_release(struct engine *engine, const struct loaderd_batch *batch) {
    bool kick = false;
    consumer_release(&engine->consumer, batch->sequence, &kick);
    if (kick)
        pool_kick(engine->pool);
}

const struct loaderd_slot_header *engine_slot(const struct engine *engine, const struct loaderd_batch *batch) {
    const struct consumer *consumer = &engine->consumer;
    return (const void *)(consumer->slots_base + batch->sequence % consumer->slots * consumer->slot_stride);
}

uint64_t engine_steps(const struct engine *engine) {
    return engine->consumer.header->steps_per_epoch;
}
