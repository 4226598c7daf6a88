/* SPDX-License-Identifier: MIT */
/*
 * Makes the demo's data set: procedural, photograph-like JPEGs in six classes that differ in colour and in the direction
 * and fineness of their texture, so that a wrong label or a mixed-up batch shows as failed learning. Sizes, colour
 * samplings, gray, progressive and restart markers are mixed as in pictures from many cameras. The same seed gives the
 * same pictures on every machine with the same libjpeg.
 *
 *     DIR/train/CLASS/NNNN.jpg    DIR/val/CLASS/NNNN.jpg
 *
 * --shuffle-labels files every picture under a class drawn at random: nothing can be learned from these, and a trainer
 * that learns anyway is broken. One thread a CPU; each picture is a function of (seed, number) alone.
 */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jpeglib.h>

#define CLASSES 6
#define PI 3.14159265358979f
#define SMALLEST 120
#define LARGEST 500
#define OBJECTS 4

/* What makes a class: base hue in degrees, direction of its waves (NAN: none, blobs), waves a picture side. */
static const struct look {
    const char *name;
    float hue, saturation, direction, waves;
} looks[CLASSES] = {
    {"bark", 28, 0.55f, 0.0f, 13},   {"brick", 6, 0.65f, PI / 2, 10},  {"dune", 46, 0.60f, PI / 4, 6},
    {"grass", 105, 0.55f, 0.0f, 26}, {"heather", 295, 0.45f, NAN, 11}, {"water", 212, 0.60f, PI / 2, 22},
};

static struct {
    const char *directory;
    unsigned train, validation; /* pictures a class */
    uint64_t seed;
    bool shuffle_labels;
} job = {NULL, 240, 40, 1, false};
static atomic_uint next_picture, failures;

/* --- randomness: splitmix64, one state a picture -------------------------------------------------------------------- */

static uint64_t mix(uint64_t x) {
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static float uniform(uint64_t *state, float low, float high) {
    *state = mix(*state);
    return low + (high - low) * (float)(*state >> 40) * 0x1p-24f;
}

/* Value of the noise lattice at whole coordinates, in [-1, 1). */
static float lattice(uint32_t key, int x, int y) {
    uint32_t h = key ^ (uint32_t)x * 0x85ebca6bu ^ (uint32_t)y * 0xc2b2ae35u;
    h = (h ^ (h >> 15)) * 0x2c1b3c6du;
    h = (h ^ (h >> 12)) * 0x297a2d39u;
    return (float)((h ^ (h >> 15)) >> 8) * 0x1p-23f - 1;
}

/* Adds smooth noise with `cells` cells along the picture's width to a row: the lattice is interpolated by smoothstep. */
static void add_noise(float *row, unsigned width, float y, float cells, uint32_t key, float amplitude) {
    float step = cells / (float)width, v = y * step;
    int iy = (int)v;
    float fy = v - (float)iy, left = 0, right = 0;
    fy = fy * fy * (3 - 2 * fy);
    for (unsigned x = 0, cell = UINT32_MAX; x < width; x++) {
        float u = (float)x * step;
        int ix = (int)u;
        if ((unsigned)ix != cell) {
            cell = (unsigned)ix;
            left = lattice(key, ix, iy) * (1 - fy) + lattice(key, ix, iy + 1) * fy;
            right = lattice(key, ix + 1, iy) * (1 - fy) + lattice(key, ix + 1, iy + 1) * fy;
        }
        float fx = u - (float)ix;
        row[x] += amplitude * (left + (right - left) * fx * fx * (3 - 2 * fx));
    }
}

/* --- one picture ---------------------------------------------------------------------------------------------------- */

struct blob { /* a soft ellipse of another colour: what stands in front of the texture */
    float x, y, rx, ry, color[3];
};

struct scene {
    unsigned width, height;
    uint32_t key;
    float base[3];              /* RGB, 0..1 */
    float direction, frequency; /* of the waves; radians, radians a pixel */
    float waves;                /* a picture width */
    float contrast, light_x, light_y, grain;
    bool waved;
    struct blob blob[OBJECTS];
    unsigned blobs;
};

static void hue_to_rgb(float hue, float saturation, float value, float rgb[3]) {
    for (int i = 0; i < 3; i++) {
        float k = fmodf((float)(5 - 2 * i) + hue / 60 + 6, 6);
        rgb[i] = value - value * saturation * fmaxf(0, fminf(fminf(k, 4 - k), 1));
    }
}

static void draw_scene(const struct look *look, uint64_t *random, struct scene *scene) {
    scene->width = (unsigned)uniform(random, SMALLEST, LARGEST + 1);
    float ratio = uniform(random, 0.7f, 1.4f);
    scene->height = (unsigned)fminf(LARGEST, fmaxf(SMALLEST, (float)scene->width * ratio));
    scene->key = (uint32_t)mix(*random);
    hue_to_rgb(look->hue + uniform(random, -10, 10), look->saturation + uniform(random, -0.15f, 0.15f),
               uniform(random, 0.45f, 0.8f), scene->base);
    scene->waved = !isnan(look->direction);
    bool mirrored = uniform(random, 0, 1) < 0.5f;
    scene->direction = scene->waved ? look->direction + uniform(random, -0.15f, 0.15f) : 0;
    if (mirrored)
        scene->direction = -scene->direction;
    scene->waves = look->waves * uniform(random, 0.85f, 1.15f);
    scene->frequency = 2 * PI * scene->waves / (float)scene->width;
    scene->contrast = uniform(random, 0.14f, 0.24f);
    scene->light_x = uniform(random, -0.25f, 0.25f);
    scene->light_y = uniform(random, -0.25f, 0.25f);
    scene->grain = uniform(random, 0.005f, 0.03f);
    scene->blobs = (unsigned)uniform(random, 0, OBJECTS + 1);
    for (unsigned i = 0; i < scene->blobs; i++) {
        struct blob *blob = &scene->blob[i];
        *blob = (struct blob){uniform(random, 0, (float)scene->width),
                              uniform(random, 0, (float)scene->height),
                              uniform(random, 0.04f, 0.14f) * (float)scene->width,
                              uniform(random, 0.04f, 0.14f) * (float)scene->height,
                              {0, 0, 0}};
        hue_to_rgb(uniform(random, 0, 360), uniform(random, 0.1f, 0.8f), uniform(random, 0.2f, 0.9f), blob->color);
    }
}

/* The texture of one row: waves bent by slow noise, or blobs of noise; plus rough noise of all sizes. */
static void texture_row(const struct scene *scene, unsigned y, float *texture, float *bend) {
    unsigned width = scene->width;
    memset(texture, 0, width * sizeof *texture);
    memset(bend, 0, width * sizeof *bend);
    if (scene->waved) {
        float cosine = cosf(scene->direction) * scene->frequency, sine = sinf(scene->direction) * scene->frequency;
        add_noise(bend, width, (float)y, 3, scene->key, 1.6f);
        for (unsigned x = 0; x < width; x++)
            texture[x] = sinf((float)x * cosine + (float)y * sine + bend[x]);
    } else {
        add_noise(texture, width, (float)y, scene->waves * 2, scene->key + 1, 1.7f);
    }
    add_noise(texture, width, (float)y, 2.5f, scene->key + 2, 0.9f);
    add_noise(texture, width, (float)y, 9, scene->key + 3, 0.4f);
}

static void paint_row(const struct scene *scene, unsigned y, const float *texture, unsigned channels, uint8_t *out) {
    uint32_t noise = (uint32_t)mix(scene->key + y);
    for (unsigned x = 0; x < scene->width; x++) {
        float u = (float)x / (float)scene->width - 0.5f, v = (float)y / (float)scene->height - 0.5f;
        float light = 1 + scene->light_x * u * 2 + scene->light_y * v * 2 - 0.5f * (u * u + v * v);
        float color[3], alpha = 0;
        noise = noise * 1664525u + 1013904223u;
        float grain = scene->grain * ((float)(noise >> 8) * 0x1p-23f - 1);
        memcpy(color, scene->base, sizeof color);
        for (unsigned i = 0; i < scene->blobs; i++) {
            const struct blob *blob = &scene->blob[i];
            float dx = ((float)x - blob->x) / blob->rx, dy = ((float)y - blob->y) / blob->ry, d = dx * dx + dy * dy;
            if (d >= 1)
                continue;
            alpha = fminf(1, (1 - d) * 4);
            for (int c = 0; c < 3; c++)
                color[c] += alpha * (blob->color[c] - color[c]);
        }
        float shade = light * (1 + scene->contrast * 1.6f * texture[x] * (1 - alpha)) + grain, rgb[3];
        for (int c = 0; c < 3; c++)
            rgb[c] = fminf(1, fmaxf(0, color[c] * shade)) * 255 + 0.5f;
        if (channels == 1)
            out[x] = (uint8_t)(0.299f * rgb[0] + 0.587f * rgb[1] + 0.114f * rgb[2]);
        else
            for (int c = 0; c < 3; c++)
                out[3 * x + (unsigned)c] = (uint8_t)rgb[c];
    }
}

/* --- the file ------------------------------------------------------------------------------------------------------- */

static void choose_coding(struct jpeg_compress_struct *jpeg, uint64_t *random) {
    jpeg_set_quality(jpeg, (int)uniform(random, 72, 96), TRUE);
    float kind = uniform(random, 0, 1);
    if (jpeg->num_components == 3) { /* 4:2:0 six in ten, 4:4:4 three, 4:2:2 one */
        jpeg->comp_info[0].h_samp_factor = kind < 0.3f ? 1 : 2;
        jpeg->comp_info[0].v_samp_factor = kind < 0.4f ? 1 : 2;
    }
    float extra = uniform(random, 0, 1);
    if (extra < 0.05f)
        jpeg_simple_progression(jpeg);
    else if (extra < 0.10f)
        jpeg->restart_in_rows = 2;
    else if (extra < 0.4f)
        jpeg->optimize_coding = TRUE;
}

/* libjpeg's default error handler ends the program with a message: right for a tool that only writes. */
static bool write_picture(FILE *file, const struct look *look, uint64_t random) {
    struct scene scene = {0};
    draw_scene(look, &random, &scene);
    unsigned channels = uniform(&random, 0, 1) < 0.08f ? 1 : 3;
    float texture[LARGEST], bend[LARGEST];
    uint8_t pixels[3 * LARGEST];
    struct jpeg_error_mgr errors;
    struct jpeg_compress_struct jpeg = {.err = jpeg_std_error(&errors)};
    jpeg_create_compress(&jpeg);
    jpeg_stdio_dest(&jpeg, file);
    jpeg.image_width = scene.width;
    jpeg.image_height = scene.height;
    jpeg.input_components = (int)channels;
    jpeg.in_color_space = channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_set_defaults(&jpeg);
    choose_coding(&jpeg, &random);
    jpeg_start_compress(&jpeg, TRUE);
    for (unsigned y = 0; y < scene.height; y++) {
        JSAMPROW row = pixels;
        texture_row(&scene, y, texture, bend);
        paint_row(&scene, y, texture, channels, pixels);
        jpeg_write_scanlines(&jpeg, &row, 1);
    }
    jpeg_finish_compress(&jpeg);
    jpeg_destroy_compress(&jpeg);
    return !ferror(file);
}

/* Picture number n: of class n mod CLASSES; the first train * CLASSES are for training. */
static bool make_picture(unsigned number) {
    unsigned look = number % CLASSES, label = look, train = job.train * CLASSES;
    uint64_t random = mix(mix(job.seed) + number);
    if (job.shuffle_labels)
        label = (unsigned)(mix(random ^ UINT64_C(0x6c6162656c)) % CLASSES);
    char path[4096];
    if ((size_t)snprintf(path, sizeof path, "%s/%s/%s/%05u.jpg", job.directory, number < train ? "train" : "val",
                         looks[label].name, number) >= sizeof path) {
        fprintf(stderr, "demo-data: %s: too long a path\n", job.directory);
        return false;
    }
    FILE *file = fopen(path, "wb");
    bool good = file && write_picture(file, &looks[look], random);
    if (file && fclose(file) != 0)
        good = false;
    if (!good)
        fprintf(stderr, "demo-data: %s: %s\n", path, strerror(errno));
    return good;
}

static void *run(void *unused) {
    unsigned total = (job.train + job.validation) * CLASSES;
    for (unsigned n; !atomic_load(&failures) && (n = atomic_fetch_add(&next_picture, 1)) < total;)
        if (!make_picture(n))
            atomic_fetch_add(&failures, 1);
    return unused;
}

static bool make_directory(const char *path) {
    if (mkdir(path, 0777) == 0 || errno == EEXIST)
        return true;
    fprintf(stderr, "demo-data: %s: %s\n", path, strerror(errno));
    return false;
}

static bool make_directories(void) {
    static const char *const parts[] = {"train", "val"};
    char path[4096];
    if (!make_directory(job.directory))
        return false;
    for (int part = 0; part < 2; part++) {
        snprintf(path, sizeof path, "%s/%s", job.directory, parts[part]);
        if (!make_directory(path))
            return false;
        for (int i = 0; i < CLASSES; i++) {
            snprintf(path, sizeof path, "%s/%s/%s", job.directory, parts[part], looks[i].name);
            if (!make_directory(path))
                return false;
        }
    }
    return true;
}

static const char usage[] = "usage: demo-data [options] DIR\n"
                            "  --train N         pictures a class to train on (240)\n"
                            "  --validation N    pictures a class held out (40)\n"
                            "  --seed N          other pictures (1)\n"
                            "  --shuffle-labels  every picture under a class drawn at random: nothing to learn\n";

static bool parse(int argc, char **argv) {
    static const struct option options[] = {
        {"train", required_argument, NULL, 't'}, {"validation", required_argument, NULL, 'v'},
        {"seed", required_argument, NULL, 's'},  {"shuffle-labels", no_argument, NULL, 'x'},
        {"help", no_argument, NULL, 'h'},        {NULL, 0, NULL, 0}};
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        char *end = NULL;
        unsigned long long value = optarg ? strtoull(optarg, &end, 10) : 0;
        if (c == 'h') {
            fputs(usage, stdout);
            exit(0);
        }
        if (c == '?' || (optarg && (end == optarg || *end || (c != 's' && value > 100000)))) {
            fputs(usage, stderr);
            return false;
        }
        if (c == 't')
            job.train = (unsigned)value;
        else if (c == 'v')
            job.validation = (unsigned)value;
        else if (c == 's')
            job.seed = value;
        else
            job.shuffle_labels = true;
    }
    if (optind != argc - 1)
        fputs(usage, stderr);
    job.directory = optind == argc - 1 ? argv[optind] : NULL;
    return job.directory;
}

int main(int argc, char **argv) {
    if (!parse(argc, argv))
        return 2;
    if (!make_directories())
        return 1;
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    pthread_t thread[64];
    unsigned threads = 0;
    while (threads < 64 && (long)threads + 1 < cpus && pthread_create(&thread[threads], NULL, run, NULL) == 0)
        threads++;
    run(NULL);
    while (threads > 0)
        pthread_join(thread[--threads], NULL);
    return atomic_load(&failures) ? 1 : 0;
}
