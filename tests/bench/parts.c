/* SPDX-License-Identifier: MIT */
/*
 * Loops to compare with, one a call, each printed as "WHAT VALUE":
 *
 *     parts resample   microseconds a picture of 343 x 257 (about the mean crop of RandomResizedCrop on ImageNet) to
 *                      224 x 224: ours ($LOADERD_SIMD chooses the twin), and a plain separable loop
 *     parts widen      batches a second of 4 x 1025 ids of 16 bits widened to 32 bits, by a bare loop on one core
 *     parts copy       GB/s of memcpy and of streaming copies of 602,112 bytes out of 256 MiB, one thread
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/copy.h"
#include "base/util.h"
#include "transform/transform.h"

#define WIDTH 343u
#define HEIGHT 257u
#define SIDE 224u
#define SECONDS 0.5

static double since(uint64_t begun) {
    return (double)(now_ns() - begun) / 1e9;
}

/* ---- resample --------------------------------------------------------------------------------------------------- */

#define TAPS 8u
struct plain {
    uint32_t first[SIDE], count[SIDE];
    float weight[SIDE][TAPS];
};

/* Pillow's bilinear coefficients (ImagingResample, precompute_coeffs), as floats. */
static void plain_prepare(struct plain *p, uint32_t in) {
    double scale = (double)in / SIDE, support = MAX(scale, 1.0);
    for (uint32_t i = 0; i < SIDE; i++) {
        double center = (i + 0.5) * scale, sum = 0;
        double low = MAX(center - support + 0.5, 0), high = MIN(center + support + 0.5, (double)in);
        p->first[i] = (uint32_t)low;
        p->count[i] = MIN((uint32_t)high - p->first[i], TAPS);
        for (uint32_t k = 0; k < p->count[i]; k++) {
            double x = fabs((p->first[i] + k - center + 0.5) / support);
            p->weight[i][k] = (float)MAX(1 - x, 0);
            sum += p->weight[i][k];
        }
        for (uint32_t k = 0; k < p->count[i]; k++)
            p->weight[i][k] = (float)(p->weight[i][k] / sum);
    }
}

__attribute__((noinline)) static void plain_resample(const struct plain *h, const struct plain *v, const uint8_t *in,
                                                     float *between, uint8_t *out) {
    for (uint32_t y = 0; y < HEIGHT; y++)
        for (uint32_t x = 0; x < SIDE; x++)
            for (uint32_t c = 0; c < 3; c++) {
                float sum = 0;
                for (uint32_t k = 0; k < h->count[x]; k++)
                    sum += h->weight[x][k] * (float)in[(y * WIDTH + h->first[x] + k) * 3 + c];
                between[(y * SIDE + x) * 3 + c] = sum;
            }
    for (uint32_t y = 0; y < SIDE; y++)
        for (uint32_t x = 0; x < SIDE * 3; x++) {
            float sum = 0.5f;
            for (uint32_t k = 0; k < v->count[y]; k++)
                sum += v->weight[y][k] * between[(v->first[y] + k) * SIDE * 3 + x];
            out[y * SIDE * 3 + x] = (uint8_t)CLAMP(sum, 0.0f, 255.0f);
        }
}

static int resample(void) {
    static uint8_t in[WIDTH * HEIGHT * 3], ours[SIDE * SIDE * 3], plain[SIDE * SIDE * 3];
    static float between[HEIGHT * SIDE * 3];
    static struct plain h, v;
    struct transform_spec spec = {.crop = CROP_NONE,
                                  .width = SIDE,
                                  .height = SIDE,
                                  .channels = 3,
                                  .filter = FILTER_BILINEAR,
                                  .dtype = LOADERD_U8};
    struct transform *transform;
    struct transform_geometry geometry;
    struct diag diag = DIAG_INIT;
    struct box region;
    for (size_t i = 0; i < sizeof in; i++)
        in[i] = (uint8_t)(i * UINT64_C(0x9E3779B97F4A7C15) >> 56);
    if (transform_check(&spec, &diag) < 0 || transform_new(WIDTH * HEIGHT, &transform) < 0)
        return 1;
    const struct random_key key = {0};
    transform_geometry(&spec, WIDTH, HEIGHT, &key, &geometry);
    transform_region(&spec, &geometry, &region);
    const struct picture picture = {in, WIDTH * 3, WIDTH, HEIGHT, 3};
    uint64_t n = 0, begun = now_ns();
    for (; since(begun) < SECONDS; n++)
        if (transform_apply(transform, &spec, &geometry, &region, &picture, ours, &diag) < 0)
            return 1;
    double us = since(begun) / (double)n * 1e6;
    plain_prepare(&h, WIDTH);
    plain_prepare(&v, HEIGHT);
    for (n = 0, begun = now_ns(); since(begun) < SECONDS; n++)
        plain_resample(&h, &v, in, between, plain);
    double plain_us = since(begun) / (double)n * 1e6;
    unsigned most = 0;
    for (size_t i = 0; i < sizeof ours; i++)
        most = MAX(most, (unsigned)abs(ours[i] - plain[i]));
    printf("%s %.1f\nplain %.1f\n", transform_simd(), us, plain_us);
    transform_free(transform);
    return most > 2; /* Pillow rounds between the passes */
}

/* ---- the others ------------------------------------------------------------------------------------------------- */

static int widen(void) {
    enum { ROWS = 4, IDS = 1025, STRIDE = IDS - 1, WINDOWS = 1 << 14, SLOTS = 64 }; /* run.sh's */
    uint16_t *ids = malloc((WINDOWS * STRIDE + 1) * sizeof *ids);
    int32_t *ring = malloc(SLOTS * ROWS * IDS * sizeof *ring);
    if (!ids || !ring)
        return 1;
    memset(ids, 1, (WINDOWS * STRIDE + 1) * sizeof *ids);
    memset(ring, 1, SLOTS * ROWS * IDS * sizeof *ring);
    uint64_t n = 0, begun = now_ns(), sum = 0;
    do {
        int32_t *out = ring + n % SLOTS * ROWS * IDS;
        for (unsigned row = 0; row < ROWS; row++) {
            const uint16_t *in = ids + (n * ROWS + row) * 40503 % WINDOWS * STRIDE; /* each once a pass */
            for (unsigned i = 0; i < IDS; i++)
                out[row * IDS + i] = in[i];
        }
        sum += (uint64_t)out[n % (ROWS * IDS)];
        n++;
    } while (n % 64 || since(begun) < SECONDS);
    printf("widen %.0f\n", (double)n / since(begun));
    free(ids);
    free(ring);
    return sum == 0;
}

static int copy(void) {
    enum { PIECE = 602112, SOURCE = 256 << 20, TARGET = 64 << 20 };
    uint8_t *from = malloc(SOURCE), *to = malloc(TARGET);
    const struct copy_twin *twin;
    if (!from || !to)
        return 1;
    memset(from, 1, SOURCE);
    memset(to, 1, TARGET);
    for (size_t twins = copy_twins(&twin); twins > 0; twins--, twin++) {
        uint64_t n = 0, begun = now_ns();
        for (; since(begun) < SECONDS; n++)
            twin->copy(to + n % (TARGET / PIECE) * PIECE, from + n * 7919 % (SOURCE / PIECE) * PIECE, PIECE);
        printf("%s %.2f\n", twin->name, (double)n * PIECE / since(begun) / 1e9);
    }
    free(from);
    free(to);
    return 0;
}

int main(int argc, char **argv) {
    const char *what = argc == 2 ? argv[1] : "";
    if (strcmp(what, "resample") == 0)
        return resample();
    if (strcmp(what, "widen") == 0)
        return widen();
    if (strcmp(what, "copy") == 0)
        return copy();
    fputs("usage: parts resample|widen|copy\n", stderr);
    return 2;
}
