/* SPDX-License-Identifier: MIT */
/*
 * loaderctl bench --device: the whole way of a batch, through a daemon, its ring and the bus into the memory of a CUDA
 * device, beside what the bus can do, measured in the same run. With --step-ms a kernel of that length stands for the
 * trainer's step.
 *
 * Never links CUDA: libloaderd-cuda, and through it libloaderd, are loaded at run time. A dataset is served by a private
 * daemon, a name by the running service. One thread, beside the helper of libloaderd-cuda.
 */
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <loaderd/cuda.h>
#include <string.h>
#include <sys/stat.h>

#include "base/util.h"
#include "loaderctl.h"

#define LIBRARY "libloaderd-cuda.so.0"
#define STARVING 2 /* percent of its time that a trainer waits before it is worth a word */

/* What is taken from the libraries, under the names there. */
#define FUNCTIONS(X)                                                                                                   \
    X(loaderd_open)                                                                                                    \
    X(loaderd_close)                                                                                                   \
    X(loaderd_info)                                                                                                    \
    X(loaderd_cuda_open)                                                                                               \
    X(loaderd_cuda_close)                                                                                              \
    X(loaderd_cuda_next)                                                                                               \
    X(loaderd_cuda_release)                                                                                            \
    X(loaderd_cuda_info) X(loaderd_cuda_statistics) X(loaderd_cuda_error) X(loaderd_cuda_bandwidth) X(loaderd_cuda_node)
int loaderd_internal_cuda_busy(struct loaderd_cuda *lc, struct CUstream_st *stream, uint64_t nanoseconds);
int loaderd_internal_cuda_sync(struct loaderd_cuda *lc, struct CUstream_st *stream);

#define MEMBER(name) __typeof__(&name) name;
struct library {
    void *handle;
    FUNCTIONS(MEMBER)
    MEMBER(loaderd_internal_cuda_busy) MEMBER(loaderd_internal_cuda_sync)
};

struct device_bench {
    const struct options *options;
    struct library library;
    struct loaderd *loader;
    struct loaderd_cuda *lc;
    struct loaderd_info info;
    struct loaderd_cuda_info cuda;
    char **keys;
    double bus; /* bytes a second */
    /* of the measured part */
    uint64_t begin_ns, end_ns, batches, samples, values, bytes;
    struct loaderd_cuda_statistics before, after;
};

static int load_library(struct library *ret) {
    ret->handle = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!ret->handle)
        return complain("CUDA: not installed: %s", dlerror());
#define LOAD(name)                                                                                                     \
    *(void **)&ret->name = dlsym(ret->handle, #name);                                                                  \
    if (!ret->name)                                                                                                    \
        return complain(LIBRARY " has no " #name ": it is of another version");
    FUNCTIONS(LOAD)
    LOAD(loaderd_internal_cuda_busy)
    LOAD(loaderd_internal_cuda_sync)
    return 0;
}

/* ---- what is asked for ------------------------------------------------------------------------------------------- */

/* "bf16,nchw,imagenet" */
static int parse_finish(const char *text, struct loaderd_cuda_finish_spec *spec) {
    static const struct {
        const char *word;
        uint32_t dtype;
    } dtypes[] = {{"f32", LOADERD_F32}, {"f16", LOADERD_F16}, {"bf16", LOADERD_BF16}, {"u8", LOADERD_U8}};
    static const float mean[3] = {0.485f, 0.456f, 0.406f}, deviation[3] = {0.229f, 0.224f, 0.225f};
    char copy[64], *rest = copy;
    if (strlen(text) >= sizeof copy)
        return -EINVAL;
    strcpy(copy, text);
    for (char *word; (word = strsep(&rest, ",")) != NULL;) {
        bool known = false;
        for (size_t i = 0; i < ARRAY_SIZE(dtypes); i++)
            if (strcmp(word, dtypes[i].word) == 0) {
                spec->dtype = dtypes[i].dtype;
                known = true;
            }
        if (strcmp(word, "nchw") == 0) {
            spec->layout = LOADERD_CUDA_NCHW;
        } else if (strcmp(word, "imagenet") == 0) {
            spec->normalize = 1;
            memcpy(spec->mean, mean, sizeof mean);
            memcpy(spec->std, deviation, sizeof deviation);
        } else if (!known) {
            return -EINVAL;
        }
    }
    return spec->dtype ? 0 : -EINVAL;
}

/* The keys of the command line as libloaderd wants them; a private daemon's ring is to lie on the device's node. */
static int make_keys(struct device_bench *b) {
    const struct options *o = b->options;
    bool placed = !strchr(o->target, '/') || b->library.loaderd_cuda_node(o->device) < 0;
    uint32_t n = 0;
    b->keys = calloc(o->nkeys + 2, sizeof *b->keys);
    for (; b->keys && n < o->nkeys; n++) {
        placed = placed || strcmp(o->keys[n].key, "node") == 0;
        if (asprintf(&b->keys[n], "%s=%s", o->keys[n].key, o->keys[n].value) < 0)
            return b->keys[n] = NULL, complain("out of memory");
    }
    if (b->keys && !placed && asprintf(&b->keys[n], "node=%d", b->library.loaderd_cuda_node(o->device)) < 0)
        return b->keys[n] = NULL, complain("out of memory");
    return b->keys ? 0 : complain("out of memory");
}

/* The program loaderd beside this one, if it is there: a build directory, a copied folder. */
static const char *daemon_beside(char *buffer, size_t size) {
    ssize_t length = readlink("/proc/self/exe", buffer, size - 1);
    if (length <= 0 || getenv("LOADERD_DAEMON"))
        return NULL;
    buffer[length] = '\0';
    char *slash = strrchr(buffer, '/');
    if (!slash || (size_t)(slash - buffer) + sizeof "/loaderd" > size)
        return NULL;
    strcpy(slash, "/loaderd");
    return access(buffer, X_OK) == 0 ? buffer : NULL;
}

static int open_loader(struct device_bench *b) {
    const struct options *o = b->options;
    struct loaderd_options options = LOADERD_OPTIONS_INIT;
    char error[DIAG_TEXT] = "", program[4096], name[4096];
    struct stat status;
    bool is_file = !strchr(o->target, '/') && strncmp(o->target, "synthetic:", 10) != 0 &&
                   (target_is_pattern(o->target) || stat(o->target, &status) == 0);
    snprintf(name, sizeof name, "%s%s", is_file ? "./" : "", o->target);
    options.keys = (const char *const *)b->keys;
    options.rank = o->rank;
    options.world = o->world;
    options.epoch = o->epoch;
    options.daemon = daemon_beside(program, sizeof program);
    if (b->library.loaderd_open(&b->loader, name, &options, error, sizeof error) < 0)
        return complain("%s", error);
    b->library.loaderd_info(b->loader, &b->info);
    return 0;
}

static int open_device(struct device_bench *b) {
    struct loaderd_cuda_options options = LOADERD_CUDA_OPTIONS_INIT;
    char error[DIAG_TEXT] = "";
    options.device = b->options->device;
    options.depth = b->options->buffers;
    if (b->options->finish && parse_finish(b->options->finish, &options.finish) < 0) {
        complain("--finish %s: f32, f16, bf16 or u8, then ,nchw and ,imagenet as wanted", b->options->finish);
        return EXIT_USAGE;
    }
    if (b->library.loaderd_cuda_open(&b->lc, b->loader, &options, error, sizeof error) < 0)
        return complain("CUDA: %s", error);
    b->library.loaderd_cuda_info(b->lc, &b->cuda);
    return 0;
}

/* ---- the run ----------------------------------------------------------------------------------------------------- */

static int complain_cuda(struct device_bench *b) {
    return complain("%s", b->library.loaderd_cuda_error(b->lc));
}

static void count(struct device_bench *b, const struct loaderd_batch *batch) {
    b->batches++;
    b->samples += batch->rows;
    b->bytes += batch->slot_bytes;
    for (uint32_t i = 0; i < batch->nfields; i++)
        b->values += batch->fields[i].bytes / MAX(loaderd_dtype_size(batch->fields[i].dtype), 1u);
}

/* One batch through the trainer: 1, 0 at the end of an epoch, 2 at the end of everything. */
static int step(struct device_bench *b, struct loaderd_batch *batch) {
    int r = b->library.loaderd_cuda_next(b->lc, NULL, batch);
    if (r < 1)
        return r;
    if (b->options->step_ms > 0)
        r = b->library.loaderd_internal_cuda_busy(b->lc, NULL, (uint64_t)(b->options->step_ms * 1e6));
    return r < 0 ? r : b->library.loaderd_cuda_release(b->lc, NULL, batch) < 0 ? -EIO : 1;
}

/* Runs for `seconds`, counting where `counted`. The stream is empty afterwards. */
static int run_for(struct device_bench *b, double seconds, bool counted) {
    struct loaderd_batch batch;
    uint64_t until = now_ns() + (uint64_t)(seconds * 1e9);
    int r;
    while (now_ns() < until && !engine_interrupted) {
        r = step(b, &batch);
        if (r < 0)
            return complain_cuda(b);
        if (r == 1 && counted)
            count(b, &batch);
    }
    return b->library.loaderd_internal_cuda_sync(b->lc, NULL) < 0 ? complain_cuda(b) : 0;
}

static int measure(struct device_bench *b) {
    double seconds = b->options->seconds;
    int status = run_for(b, MAX(MIN(seconds / 5, 2.0), 0.2), false);
    if (status)
        return status;
    b->library.loaderd_cuda_statistics(b->lc, &b->before);
    b->begin_ns = now_ns();
    status = run_for(b, seconds, true);
    b->end_ns = now_ns();
    b->library.loaderd_cuda_statistics(b->lc, &b->after);
    return status;
}

/* ---- the report -------------------------------------------------------------------------------------------------- */

struct device_figures {
    double seconds, samples_per_s, bytes_per_s, values_per_s, bus_share;
    double data, copy, trainer; /* of the helper's time, percent */
    double starved;             /* of the trainer's, percent */
    const char *bound_by;
    char daemon[DIAG_TEXT]; /* what the daemon says of itself */
};

/* The sentence of the daemon's verdict. */
static void ask_daemon(const struct device_bench *b, char *ret, size_t size) {
    struct diag diag = DIAG_INIT;
    cleanup_free char *text = NULL;
    size_t length;
    ret[0] = '\0';
    if (status_report(b->info.socket, &text, &length, &diag) < 0)
        return;
    const char *from = strstr(text, "\"sentence\": \"");
    if (from)
        snprintf(ret, size, "%.*s", (int)strcspn(from + 13, "\"\n"), from + 13);
}

static double percent(uint64_t after, uint64_t before, double seconds) {
    return 100 * (double)(after - before) / 1e9 / seconds;
}

static void figure(const struct device_bench *b, struct device_figures *f) {
    const struct loaderd_cuda_statistics *x = &b->before, *y = &b->after;
    *f = (struct device_figures){.seconds = MAX((double)(b->end_ns - b->begin_ns) / 1e9, 1e-9)};
    f->samples_per_s = (double)b->samples / f->seconds;
    f->bytes_per_s = (double)b->bytes / f->seconds;
    f->values_per_s = (double)b->values / f->seconds;
    f->bus_share = b->bus > 0 ? 100 * f->bytes_per_s / b->bus : 0;
    f->data = percent(y->data_ns, x->data_ns, f->seconds);
    f->copy = percent(y->copy_ns, x->copy_ns, f->seconds);
    f->trainer = percent(y->trainer_ns, x->trainer_ns, f->seconds);
    if (b->options->step_ms > 0) {
        double busy = 100 * (double)b->batches * b->options->step_ms / 1e3 / f->seconds;
        f->starved = MAX(100 - busy, 0.0);
    }
    f->bound_by = f->trainer > MAX(f->data, f->copy) ? "trainer" : f->copy > f->data ? "copy" : "data";
    ask_daemon(b, f->daemon, sizeof f->daemon);
}

static void print_json(const struct device_bench *b, const struct device_figures *f) {
    printf("{\"samples_per_s\": %.3f, \"batches_per_s\": %.3f, \"bytes_per_s\": %.0f, \"values_per_s\": %.0f, ",
           f->samples_per_s, (double)b->batches / f->seconds, f->bytes_per_s, f->values_per_s);
    printf("\"seconds\": %.6f, \"samples\": %" PRIu64 ", \"batches\": %" PRIu64 ", \"batch\": %" PRIu32
           ", \"slots\": %" PRIu32 ", ",
           f->seconds, b->samples, b->batches, b->info.batch, b->info.slots);
    printf("\"device\": %d, \"node\": %d, \"buffers\": %" PRIu32 ", \"pinned\": %s, \"pin_ms\": %.3f, ", b->cuda.device,
           b->cuda.node, b->cuda.depth, b->cuda.pinned ? "true" : "false", (double)b->cuda.pin_ns / 1e6);
    printf("\"bus_bytes_per_s\": %.0f, \"bus_percent\": %.3f, ", b->bus, f->bus_share);
    printf("\"helper_percent\": {\"data\": %.3f, \"copy\": %.3f, \"trainer\": %.3f}, ", f->data, f->copy, f->trainer);
    printf("\"stream_wait_s\": %.6f, \"next_wait_s\": %.6f, ",
           (double)(b->after.stream_wait_ns - b->before.stream_wait_ns) / 1e9,
           (double)(b->after.wait_ns - b->before.wait_ns) / 1e9);
    if (b->options->step_ms > 0)
        printf("\"step_ms\": %g, \"starved_percent\": %.3f, ", b->options->step_ms, f->starved);
    printf("\"bound_by\": \"%s\", \"daemon\": ", f->bound_by);
    json_string(stdout, f->daemon);
    printf("}\n");
}

static void print_verdict(const struct device_bench *b, const struct device_figures *f) {
    double step_ms = b->options->step_ms;
    bool starving = step_ms > 0 && f->starved >= STARVING;
    if (starving)
        printf("a GPU of %g ms a step would starve %.1f %% of its time, on %s: %.1f of %.1f samples/s\n", step_ms,
               f->starved, f->data >= f->copy ? "data" : "the copies", f->samples_per_s, 1e3 * b->info.batch / step_ms);
    else if (step_ms > 0)
        printf("a GPU of %g ms a step would not starve: it was idle %.1f %% of its time\n", step_ms, f->starved);
    if (strcmp(f->bound_by, "copy") == 0)
        printf("bound by copy: the bus is the limit (%.0f %% of what it can); u8 with --finish makes less of it\n",
               f->bus_share);
    else if (strcmp(f->bound_by, "data") == 0)
        printf("bound by the loader%s%s\n", *f->daemon ? "; the daemon says: " : "", f->daemon);
    else if (!starving)
        printf("bound by trainer: batches lay ready on the device\n");
}

static void print_text(const struct device_bench *b, const struct device_figures *f) {
    printf("device         %d", b->cuda.device);
    if (b->cuda.node >= 0)
        printf(" on NUMA node %d", b->cuda.node);
    printf(", %" PRIu32 " buffers of %.1f MB\n", b->cuda.depth,
           (double)b->cuda.device_bytes / MAX(b->cuda.depth, 1u) / 1e6);
    if (b->cuda.pinned)
        printf("ring           %" PRIu32 " slots, %.1f MB pinned in %.1f ms\n", b->info.slots,
               (double)b->cuda.pinned_bytes / 1e6, (double)b->cuda.pin_ns / 1e6);
    else
        printf("ring           not pinned: %s\n", b->cuda.note);
    printf("samples/s      %.1f\n", f->samples_per_s);
    printf("batches/s      %.2f of %" PRIu32 "\n", (double)b->batches / f->seconds, b->info.batch);
    printf("over the bus   %.2f GB/s, %.1f %% of the %.2f GB/s that it does from pinned memory\n", f->bytes_per_s / 1e9,
           f->bus_share, b->bus / 1e9);
    printf("delivered      %.3f G values/s%s\n", f->values_per_s / 1e9,
           b->cuda.finished < b->cuda.nfields ? ", finished on the device" : "");
    printf("copies waited  %.1f %% for data, %.1f %% for the bus, %.1f %% for the trainer\n", f->data, f->copy,
           f->trainer);
    printf("measured       %.2f s, %" PRIu64 " samples%s\n", f->seconds, b->samples,
           engine_interrupted ? "; interrupted" : "");
    print_verdict(b, f);
}

static int run(struct device_bench *b) {
    char error[DIAG_TEXT] = "";
    struct device_figures figures;
    int status = load_library(&b->library);
    if (status == 0 &&
        b->library.loaderd_cuda_bandwidth(b->options->device, UINT64_C(64) << 20, &b->bus, error, sizeof error) < 0)
        status = complain("CUDA: %s", error);
    if (status == 0)
        status = make_keys(b);
    if (status == 0)
        status = open_loader(b);
    if (status == 0)
        status = open_device(b);
    if (status)
        return status;
    engine_catch_interrupt();
    status = measure(b);
    if (status)
        return status;
    figure(b, &figures);
    if (b->options->json)
        print_json(b, &figures);
    else
        print_text(b, &figures);
    return finish_stdout();
}

int bench_device(const struct options *options) {
    struct device_bench b = {.options = options};
    int status = run(&b);
    if (b.lc)
        b.library.loaderd_cuda_close(b.lc);
    if (b.loader)
        b.library.loaderd_close(b.loader);
    for (char **key = b.keys; key && *key; key++)
        free(*key);
    free(b.keys);
    return status;
}

double device_bandwidth(int device) {
    struct library library = {0};
    char error[DIAG_TEXT] = "";
    double bus = 0;
    library.handle = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library.handle)
        return 0;
    *(void **)&library.loaderd_cuda_bandwidth = dlsym(library.handle, "loaderd_cuda_bandwidth");
    if (!library.loaderd_cuda_bandwidth ||
        library.loaderd_cuda_bandwidth(device, UINT64_C(64) << 20, &bus, error, sizeof error) < 0)
        bus = 0;
    return bus; /* the library stays: CUDA does not like to go */
}
