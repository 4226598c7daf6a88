/* SPDX-License-Identifier: MIT */
/*
 * A trainer in plain C: softmax regression on pictures, learned by stochastic gradient descent from the batches that
 * loaderd makes. It trains on random crops and flips of one dataset and measures accuracy on the centre crops of another.
 *
 *     softmax data/train data/val [--epochs N] [--batch N] [--rate R] [KEY=VALUE ...]
 *
 * KEY=VALUE are loaderd.conf(5) keys for both datasets. A picture becomes a few hundred numbers (small_picture, colours
 * and the strength of edges in four directions at three distances); the regression is linear in these.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <loaderd/loaderd.h>

#define IMAGE 64     /* pixels a side, as asked of loaderd */
#define GRID 8       /* side of the small picture */
#define DISTANCES 3  /* of edges: 1, 2, 4 pixels */
#define DIRECTIONS 4 /* right, down, both diagonals */
#define FEATURES (3 * GRID * GRID + 6 + DIRECTIONS * DISTANCES)
#define MAX_CLASSES 256
#define MAX_KEYS 32

struct model {
    double weight[MAX_CLASSES][FEATURES + 1]; /* the last one is the bias */
    double velocity[MAX_CLASSES][FEATURES + 1];
    double mean[FEATURES], square[FEATURES], seen; /* running, to bring all features to one scale */
    unsigned classes;                              /* largest label seen, plus one */
};

struct score {
    double loss;
    uint64_t samples, correct;
};

static struct {
    const char *train, *validation;
    unsigned epochs;
    double rate;
    const char *batch_key;
    const char *keys[MAX_KEYS]; /* of both datasets */
    unsigned key_count;
} arguments = {NULL, NULL, 8, 0.02, "batch=32", {"image=64", "dtype=u8", "layout=nhwc"}, 3};

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* --- features ------------------------------------------------------------------------------------------------------- */

static double edge_strength(const float luma[IMAGE][IMAGE], int dx, int dy) {
    double sum = 0;
    int x0 = dx < 0 ? -dx : 0, x1 = dx > 0 ? IMAGE - dx : IMAGE;
    for (int y = 0; y < IMAGE - dy; y++)
        for (int x = x0; x < x1; x++) {
            float d = luma[y + dy][x + dx] - luma[y][x];
            sum += d * d;
        }
    return log(sum / ((double)(x1 - x0) * (IMAGE - dy)) + 1e-4);
}

static void compute_features(const uint8_t *image, double feature[FEATURES]) {
    static const int direction[DIRECTIONS][2] = {{1, 0}, {0, 1}, {1, 1}, {-1, 1}};
    float luma[IMAGE][IMAGE];
    double sum[3] = {0}, square[3] = {0};
    const int cell = IMAGE / GRID;
    memset(feature, 0, FEATURES * sizeof *feature);
    for (int y = 0; y < IMAGE; y++)
        for (int x = 0; x < IMAGE; x++) {
            const uint8_t *pixel = image + 3 * (y * IMAGE + x);
            luma[y][x] = (0.299f * pixel[0] + 0.587f * pixel[1] + 0.114f * pixel[2]) / 255;
            for (int c = 0; c < 3; c++) {
                double v = pixel[c] / 255.0;
                sum[c] += v;
                square[c] += v * v;
                feature[3 * (y / cell * GRID + x / cell) + c] += v / (cell * cell);
            }
        }
    double *next = feature + 3 * GRID * GRID;
    for (int c = 0; c < 3; c++) {
        double mean = sum[c] / (IMAGE * IMAGE);
        *next++ = mean;
        *next++ = sqrt(fmax(0, square[c] / (IMAGE * IMAGE) - mean * mean));
    }
    for (int distance = 1; distance < 1 << DISTANCES; distance *= 2)
        for (int d = 0; d < DIRECTIONS; d++)
            *next++ = edge_strength(luma, direction[d][0] * distance, direction[d][1] * distance);
}

static void scale_features(struct model *model, double feature[FEATURES], bool learn) {
    if (learn)
        model->seen++;
    for (int i = 0; i < FEATURES; i++) {
        if (learn) {
            model->mean[i] += (feature[i] - model->mean[i]) / model->seen;
            model->square[i] += (feature[i] * feature[i] - model->square[i]) / model->seen;
        }
        double deviation = sqrt(fmax(1e-6, model->square[i] - model->mean[i] * model->mean[i]));
        feature[i] = fmax(-4, fmin(4, (feature[i] - model->mean[i]) / deviation));
    }
}

/* --- the regression ------------------------------------------------------------------------------------------------- */

/* Probabilities of all classes; returns the likeliest. */
static unsigned predict(const struct model *model, const double feature[FEATURES], double probability[MAX_CLASSES]) {
    unsigned best = 0;
    double sum = 0;
    for (unsigned k = 0; k < model->classes; k++) {
        double logit = model->weight[k][FEATURES];
        for (int i = 0; i < FEATURES; i++)
            logit += model->weight[k][i] * feature[i];
        probability[k] = logit;
        if (logit > probability[best])
            best = k;
    }
    double top = probability[best];
    for (unsigned k = 0; k < model->classes; k++)
        sum += probability[k] = exp(probability[k] - top);
    for (unsigned k = 0; k < model->classes; k++)
        probability[k] /= sum;
    return best;
}

/* Adds the batch to *score; with rate > 0 also learns from it. Padding rows (from batch.valid on) do not count. */
static void use_batch(struct model *model, const struct loaderd_batch *batch, double rate, struct score *score) {
    static double gradient[MAX_CLASSES][FEATURES + 1];
    const uint8_t *image = batch->fields[0].data;
    const int32_t *label = batch->fields[1].data;
    memset(gradient, 0, sizeof gradient);
    for (uint32_t row = 0; row < batch->valid; row++) {
        double feature[FEATURES], probability[MAX_CLASSES];
        unsigned truth = (unsigned)label[row];
        if (truth >= MAX_CLASSES)
            continue;
        if (truth >= model->classes)
            model->classes = truth + 1;
        compute_features(image + (size_t)row * IMAGE * IMAGE * 3, feature);
        scale_features(model, feature, rate > 0);
        score->correct += predict(model, feature, probability) == truth;
        score->loss -= log(fmax(1e-12, probability[truth]));
        score->samples++;
        for (unsigned k = 0; rate > 0 && k < model->classes; k++) {
            double error = probability[k] - (k == truth);
            for (int i = 0; i < FEATURES; i++)
                gradient[k][i] += error * feature[i];
            gradient[k][FEATURES] += error;
        }
    }
    for (unsigned k = 0; rate > 0 && k < model->classes; k++)
        for (int i = 0; i <= FEATURES; i++) {
            double slope = gradient[k][i] / batch->valid + 1e-3 * model->weight[k][i];
            model->velocity[k][i] = 0.9 * model->velocity[k][i] - rate * slope;
            model->weight[k][i] += model->velocity[k][i];
        }
}

/* --- loaders -------------------------------------------------------------------------------------------------------- */

static struct loaderd *open_dataset(const char *name, const char *const *extra, uint64_t epochs) {
    const char *keys[MAX_KEYS + 8] = {NULL};
    unsigned n = 0;
    keys[n++] = arguments.batch_key;
    for (; *extra; extra++)
        keys[n++] = *extra;
    memcpy(keys + n, arguments.keys, arguments.key_count * sizeof *keys);
    struct loaderd_options options = LOADERD_OPTIONS_INIT;
    options.keys = keys;
    options.epochs = epochs;
    struct loaderd *loader;
    char error[512];
    if (loaderd_open(&loader, name, &options, error, sizeof error) < 0) {
        fprintf(stderr, "softmax: %s\n", error);
        return NULL;
    }
    struct loaderd_info info;
    loaderd_info(loader, &info);
    const struct loaderd_field *field = info.fields;
    if (info.nfields < 2 || field[0].dtype != LOADERD_U8 || field[0].ndim != 4 || field[0].dims[1] != IMAGE ||
        field[0].dims[2] != IMAGE || field[0].dims[3] != 3 || field[1].dtype != LOADERD_I32 || field[1].ndim != 1) {
        fprintf(stderr, "softmax: %s: wanted a field of %dx%dx3 u8 pictures and one of i32 labels\n", name, IMAGE,
                IMAGE);
        loaderd_close(loader);
        return NULL;
    }
    return loader;
}

/* Until the end of the epoch. */
static int run_epoch(struct model *model, struct loaderd *loader, double rate, struct score *score) {
    struct loaderd_batch batch;
    int got;
    while ((got = loaderd_next(loader, &batch)) == 1) {
        use_batch(model, &batch, rate, score);
        loaderd_release(loader, &batch);
    }
    if (got < 0)
        fprintf(stderr, "softmax: %s\n", loaderd_error(loader));
    return got;
}

static double percent(const struct score *score) {
    return score->samples ? 100.0 * (double)score->correct / (double)score->samples : 0;
}

static int validate(struct model *model, struct score *score) {
    static const char *const keys[] = {"augment=center-crop", "shuffle=none", "last=pad", NULL};
    struct loaderd *loader = open_dataset(arguments.validation, keys, 1);
    int result = loader ? run_epoch(model, loader, 0, score) : -EIO;
    loaderd_close(loader);
    return result;
}

/* The last line: what was learned, and who waited for whom. */
static void print_verdict(const struct score *held_out, uint64_t samples, double elapsed, double waited) {
    double share = elapsed > 0 ? waited / elapsed : 0;
    printf("verdict: %.1f %% of %" PRIu64 " held-out pictures right; trained on %.0f samples/s; ", percent(held_out),
           held_out->samples, elapsed > 0 ? (double)samples / elapsed : 0);
    if (share < 0.05)
        printf("bound by the trainer: batches were ready, it waited %.1f %% of the time\n", 100 * share);
    else
        printf("bound by loading: the trainer waited %.1f %% of the time for batches\n", 100 * share);
}

static int train(struct model *model) {
    static const char *const keys[] = {"augment=random-resized-crop,flip", "shuffle=full", "last=drop", NULL};
    struct loaderd *loader = open_dataset(arguments.train, keys, arguments.epochs);
    if (!loader)
        return 1;
    struct loaderd_info info;
    loaderd_info(loader, &info);
    printf("%" PRIu64 " pictures, batches of %u, %" PRIu64 " steps an epoch; daemon %d reads by %s\n", info.samples,
           info.batch, info.steps_per_epoch, info.daemon_pid, info.engine);
    struct score held_out = {0};
    double total = 0, total_waited = 0;
    uint64_t samples = 0;
    int result = 0;
    for (unsigned epoch = 0; epoch < arguments.epochs && result == 0; epoch++) {
        struct loaderd_statistics before, after;
        struct score score = {0};
        loaderd_statistics(loader, &before);
        double start = seconds();
        result = run_epoch(model, loader, arguments.rate / (1 + 0.3 * epoch), &score);
        double elapsed = seconds() - start;
        loaderd_statistics(loader, &after);
        double waited = (double)(after.wait_ns - before.wait_ns) * 1e-9;
        held_out = (struct score){0};
        if (result == 0)
            result = validate(model, &held_out);
        total += elapsed;
        total_waited += waited;
        samples += score.samples;
        printf("epoch %2u  loss %6.4f  train %5.1f %%  held out %5.1f %%  %6.0f samples/s  waited %.2f of %.2f s\n",
               epoch + 1, score.loss / (double)(score.samples ? score.samples : 1), percent(&score), percent(&held_out),
               (double)score.samples / elapsed, waited, elapsed);
        fflush(stdout);
    }
    loaderd_close(loader);
    if (result == 0)
        print_verdict(&held_out, samples, total, total_waited);
    return result ? 1 : 0;
}

static bool parse(int argc, char **argv) {
    static const struct option options[] = {{"epochs", required_argument, NULL, 'e'},
                                            {"batch", required_argument, NULL, 'b'},
                                            {"rate", required_argument, NULL, 'r'},
                                            {NULL, 0, NULL, 0}};
    static char batch_key[64];
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == 'e')
            arguments.epochs = (unsigned)strtoul(optarg, NULL, 10);
        else if (c == 'r')
            arguments.rate = strtod(optarg, NULL);
        else if (c == 'b')
            snprintf(batch_key, sizeof batch_key, "batch=%s", optarg), arguments.batch_key = batch_key;
        else
            return false;
    }
    if (argc - optind < 2 || arguments.epochs == 0 || argc - optind - 2 > MAX_KEYS - 4)
        return false;
    arguments.train = argv[optind];
    arguments.validation = argv[optind + 1];
    for (int i = optind + 2; i < argc; i++)
        arguments.keys[arguments.key_count++] = argv[i];
    return true;
}

int main(int argc, char **argv) {
    static struct model model;
    if (!parse(argc, argv)) {
        fprintf(stderr, "usage: softmax TRAIN VALIDATION [--epochs N] [--batch N] [--rate R] [KEY=VALUE ...]\n");
        return 2;
    }
    return train(&model);
}
