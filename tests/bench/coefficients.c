/* SPDX-License-Identifier: MIT */
/*
 * Coefficient records against the JPEGs that they are made of: sizes, and CPU time of decode + resize to 224 x 224 for
 * random crops (torchvision's RandomResizedCrop), in one thread, all ways interleaved file by file.
 *
 *     coefficients [--boxes N] [--check] [--encode] [--only WAY] [--apart] FILE.jpg...
 *
 * Prints, by sampling: bytes; the time of each way relative to "full", which decodes the whole frame and resizes the
 * crop. --check compares the crops' pixels as well; --encode measures the encoder, headers kept; --only WAY
 * runs one way, for a profiler; --apart resizes behind the decoding instead of on its way. Ratios only: seconds are no
 * one's promise.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/util.h"
#include "decode/coefficients_internal.h"
#include "decode/decode.h"
#include "transform/transform.h"

enum { FULL, REGION, FIRST_TWIN, WAYS = FIRST_TWIN + COEFFICIENTS_TWINS };

struct way {
    const char *name;
    struct decoder *decoder;
    struct transform *transform;
};

struct totals {
    uint64_t files, jpeg_bytes, record_bytes, crops;
    uint64_t decode_ns[WAYS], resize_ns[WAYS];
};

static struct way ways[WAYS];
static size_t way_count;
static struct totals totals[SAMPLINGS];
static uint64_t encode_ns, encoded, refused;
static const struct transform_spec *spec;
static uint8_t *frame, *crop[2];
static bool check, fuse = true;
static const char *only;
#define FRAME_BYTES ((size_t)64 << 20)

static uint64_t cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static void die(const char *what, const struct diag *diag) {
    fprintf(stderr, "%s: %s\n", what, diag ? diag->text : "no memory");
    exit(1);
}

static void make_way(struct way *way, const char *name, const char *simd) {
    way->name = name;
    setenv("LOADERD_SIMD", simd, 1);
    if (decoder_new(NULL, &way->decoder) < 0 || transform_new(UINT64_C(100000000), &way->transform) < 0)
        die(name, NULL);
}

static uint8_t *read_file(const char *path, size_t *ret_length) {
    FILE *f = fopen(path, "rb");
    uint8_t *bytes = NULL;
    if (!f || fseek(f, 0, SEEK_END) != 0)
        return NULL;
    long length = ftell(f);
    rewind(f);
    if (length > 0 && (bytes = malloc((size_t)length)) && fread(bytes, 1, (size_t)length, f) != (size_t)length) {
        free(bytes);
        bytes = NULL;
    }
    fclose(f);
    *ret_length = (size_t)length;
    return bytes;
}

static void take_rows(void *transform, const uint8_t *pixels, size_t stride, uint32_t rows) {
    transform_rows(transform, pixels, stride, rows);
}

/* A crop that is resized while it is decoded, as the daemon does it. False: this one is not. */
static bool run_fused(const struct way *way, const struct transform_geometry *geometry, const struct box *region,
                      uint8_t *out) {
    struct diag diag = DIAG_INIT;
    if (!fuse || !decoder_gives_rows(way->decoder) || !transform_takes_rows(spec, geometry))
        return false;
    if (transform_begin(way->transform, spec, geometry, out, &diag) < 0 ||
        decoder_read_rows(way->decoder, 3, region, take_rows, way->transform, &diag) != DECODE_OK)
        die(way->name, &diag);
    transform_end(way->transform);
    return true;
}

/* One crop one way: the time of its two steps; all of it as that of the first where they are one. */
static void run(size_t w, const uint8_t *bytes, size_t length, const struct random_key *key, struct totals *t,
                uint8_t *out) {
    struct way *way = &ways[w];
    struct decode_info info;
    struct diag diag = DIAG_INIT;
    struct transform_geometry geometry;
    struct box region, box;
    struct picture picture;
    uint64_t begin = cpu_ns();
    if (decoder_open(way->decoder, bytes, length, &info, &diag) != DECODE_OK)
        die(way->name, &diag);
    transform_geometry(spec, info.width, info.height, key, &geometry);
    transform_region(spec, &geometry, &region);
    if (run_fused(way, &geometry, &region, out)) {
        t->decode_ns[w] += cpu_ns() - begin;
        return;
    }
    box = w == FULL ? (struct box){0, 0, info.width, info.height} : region;
    picture = (struct picture){frame, (size_t)box.width * 3, box.width, box.height, 3};
    if (picture.stride * box.height > FRAME_BYTES || decoder_read(way->decoder, 3, &box, &picture, &diag) != DECODE_OK)
        die(way->name, &diag);
    uint64_t between = cpu_ns();
    if (w == FULL) {
        picture.pixels += region.y * picture.stride + (size_t)region.x * 3;
        picture.width = region.width;
        picture.height = region.height;
    }
    if (transform_apply(way->transform, spec, &geometry, &region, &picture, out, &diag) < 0)
        die(way->name, &diag);
    uint64_t end = cpu_ns();
    t->decode_ns[w] += between - begin;
    t->resize_ns[w] += end - between;
}

static void measure_file(struct coefficients_encoder *encoder, const char *path, uint32_t boxes, bool encode,
                         uint64_t number) {
    struct coefficients_options options = {.keep_headers = encode};
    struct diag diag = DIAG_INIT;
    const uint8_t *record;
    size_t length, record_length;
    uint8_t *bytes = read_file(path, &length);
    if (!bytes)
        die(path, NULL);
    uint64_t begin = cpu_ns();
    int r = coefficients_encode(encoder, bytes, length, &options, &record, &record_length, &diag);
    encode_ns += cpu_ns() - begin;
    if (r < 0) {
        printf("%s: %s\n", path, diag.text);
        refused++;
        free(bytes);
        return;
    }
    encoded++;
    struct totals *t = &totals[record[RECORD_SAMPLING]];
    t->files++;
    t->jpeg_bytes += length;
    t->record_bytes += record_length;
    for (uint32_t b = 0; b < boxes; b++) {
        struct random_key key = {.seed = 1, .epoch = b, .position = number};
        for (size_t w = 0; w < way_count; w++) {
            bool jpeg = w < FIRST_TWIN;
            if (only && strcmp(only, ways[w].name) != 0)
                continue;
            run(w, jpeg ? bytes : record, jpeg ? length : record_length, &key, t, crop[w != FULL]);
            if (check && w != FULL && memcmp(crop[0], crop[1], transform_row_bytes(spec)) != 0)
                die(path, &(struct diag){-1, "other pixels"});
        }
        t->crops++;
    }
    free(bytes);
}

static void print_row(const char *name, const struct totals *t) {
    uint64_t full = t->decode_ns[FULL] + t->resize_ns[FULL];
    if (t->files == 0)
        return;
    printf("%-6s %6llu files  %6.2f %% bytes |", name, (unsigned long long)t->files,
           100.0 * (double)t->record_bytes / (double)t->jpeg_bytes);
    for (size_t w = 0; w < way_count && t->crops; w++) {
        uint64_t sum = t->decode_ns[w] + t->resize_ns[w];
        printf(" %s %.2f (%.0f + %.0f us)", ways[w].name, (double)full / (double)sum,
               (double)t->decode_ns[w] / (double)t->crops / 1e3, (double)t->resize_ns[w] / (double)t->crops / 1e3);
    }
    printf("\n");
}

static void add(struct totals *sum, const struct totals *t) {
    sum->files += t->files;
    sum->jpeg_bytes += t->jpeg_bytes;
    sum->record_bytes += t->record_bytes;
    sum->crops += t->crops;
    for (size_t w = 0; w < WAYS; w++) {
        sum->decode_ns[w] += t->decode_ns[w];
        sum->resize_ns[w] += t->resize_ns[w];
    }
}

static void print_all(bool encode) {
    static const char *const names[SAMPLINGS] = {"gray", "4:4:4", "4:2:2", "4:2:0", "4:4:0"};
    struct totals sum = {0};
    for (size_t i = 0; i < SAMPLINGS; i++) {
        print_row(names[i], &totals[i]);
        add(&sum, &totals[i]);
    }
    print_row("all", &sum);
    if (refused)
        printf("%llu files refused\n", (unsigned long long)refused);
    if (encode && encoded)
        printf("encoder, headers kept: %.2f ms a file\n", (double)encode_ns / (double)encoded / 1e6);
}

int main(int argc, char **argv) {
    struct transform_spec own = {.crop = CROP_RANDOM_RESIZED,
                                 .width = 224,
                                 .height = 224,
                                 .channels = 3,
                                 .flip = 0.5,
                                 .filter = FILTER_BILINEAR,
                                 .dtype = LOADERD_U8,
                                 .layout = LAYOUT_NHWC};
    const struct coefficients_twin *twins[COEFFICIENTS_TWINS];
    struct coefficients_encoder *encoder;
    struct diag diag = DIAG_INIT;
    uint32_t boxes = 1;
    bool encode = false;
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++) {
        if (strcmp(argv[i], "--check") == 0)
            check = true;
        else if (strcmp(argv[i], "--encode") == 0)
            encode = true;
        else if (strcmp(argv[i], "--apart") == 0)
            fuse = false;
        else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc)
            only = argv[++i];
        else if (strcmp(argv[i], "--boxes") == 0 && i + 1 < argc)
            boxes = (uint32_t)strtoul(argv[++i], NULL, 10);
    }
    if (i == argc) {
        fprintf(stderr, "usage: coefficients [--boxes N] [--check] [--encode] [--only WAY] [--apart] FILE.jpg...\n");
        return 2;
    }
    if (transform_check(&own, &diag) < 0)
        die("spec", &diag);
    spec = &own;
    size_t twin_count = coefficients_twins(twins);
    make_way(&ways[FULL], "full", "avx512");
    make_way(&ways[REGION], "region", "avx512");
    for (size_t t = 0; t < twin_count; t++)
        make_way(&ways[FIRST_TWIN + t], twins[t]->name, twins[t]->name);
    way_count = FIRST_TWIN + twin_count;
    unsetenv("LOADERD_SIMD");
    frame = malloc(FRAME_BYTES);
    crop[0] = malloc(transform_row_bytes(spec));
    crop[1] = malloc(transform_row_bytes(spec));
    if (!frame || !crop[0] || !crop[1] || coefficients_encoder_new(&encoder) < 0)
        die("coefficients", NULL);
    for (uint64_t number = 0; i < argc; i++, number++)
        measure_file(encoder, argv[i], boxes, encode, number);
    print_all(encode);
    coefficients_encoder_free(encoder);
    for (size_t w = 0; w < way_count; w++) {
        decoder_free(ways[w].decoder);
        transform_free(ways[w].transform);
    }
    free(frame);
    free(crop[0]);
    free(crop[1]);
    return 0;
}
