/* SPDX-License-Identifier: MIT */
/*
 * What changes colours and not geometry: ColorJitter, RandomGrayscale and RandomErasing, on finished u8 pixels, before
 * cast and normalisation. The formulas are torchvision's over PIL images, and Pillow's bytes: Image.blend() in binary32,
 * convert("L") by 16-bit fixed point, convert("HSV") and back in binary32 and binary64 as Pillow's C does.
 *
 * Which random number is which quantity is fixed for ever (words of random_draw):
 *   RANDOM_JITTER draw 0   words 0..3: order of the four operations (Fisher-Yates from the top; word 3 unused)
 *   RANDOM_JITTER draw 1   brightness, contrast, saturation, hue: uniform between their bounds
 *   RANDOM_JITTER draw 2   word 0: grayscale?
 *   RANDOM_ERASE draw 0    word 0: erase?
 *   RANDOM_ERASE draw 1+2k words 0, 1: share of the area, logarithm of height / width of attempt k; draw 2+2k: place
 *
 * Pure but for the pixels it is given; any thread.
 */
#include <string.h>

#include "base/util.h"
#include "transform/internal.h"

#define ERASE_ATTEMPTS 10u /* torchvision's */

/* ---- choice ------------------------------------------------------------------------------------------------------ */

static double uniform(double low, double high, uint32_t word) {
    return low + (high - low) * random_unit(word);
}

static void choose_jitter(const struct transform_spec *spec, const struct random_key *key, struct transform_color *c) {
    struct random_block order = random_draw(key, RANDOM_JITTER, 0), amount = random_draw(key, RANDOM_JITTER, 1);
    for (uint8_t i = 0; i < 4; i++)
        c->order[i] = i;
    for (uint32_t i = 3; i > 0; i--) {
        uint32_t j = (uint32_t)(((uint64_t)order.word[3 - i] * (i + 1)) >> 32);
        uint8_t t = c->order[i];
        c->order[i] = c->order[j];
        c->order[j] = t;
    }
    for (uint32_t i = 0; i < 3; i++)
        c->factor[i] = uniform(MAX(0.0, 1 - spec->jitter[i]), 1 + spec->jitter[i], amount.word[i]);
    c->factor[3] = uniform(-spec->jitter[3], spec->jitter[3], amount.word[3]);
}

/* torchvision's RandomErasing.get_params(): ten attempts, none fits: nothing is erased. */
static void choose_erase(const struct transform_spec *spec, const struct random_key *key, struct box *ret) {
    *ret = (struct box){0, 0, 0, 0};
    if (!(random_unit(random_draw(key, RANDOM_ERASE, 0).word[0]) < spec->erase))
        return;
    double area = (double)spec->width * spec->height, low = exact_log(0.3), high = exact_log(3.3);
    for (uint32_t k = 0; k < ERASE_ATTEMPTS; k++) {
        struct random_block shape = random_draw(key, RANDOM_ERASE, 1 + 2 * k);
        double wanted = area * uniform(0.02, 0.33, shape.word[0]);
        double ratio = exact_exp(uniform(low, high, shape.word[1]));
        uint64_t height = round_half_even(exact_sqrt(wanted * ratio));
        uint64_t width = round_half_even(exact_sqrt(wanted / ratio));
        if (height < 1 || width < 1 || height >= spec->height || width >= spec->width)
            continue;
        ret->height = (uint32_t)height;
        ret->width = (uint32_t)width;
        struct random_block place = random_draw(key, RANDOM_ERASE, 2 + 2 * k);
        ret->y = (uint32_t)random_below(place.word[0], place.word[1], spec->height - ret->height + 1);
        ret->x = (uint32_t)random_below(place.word[2], place.word[3], spec->width - ret->width + 1);
        return;
    }
}

void color_choose(const struct transform_spec *spec, const struct random_key *key, struct transform_color *ret) {
    *ret = (struct transform_color){0};
    for (uint32_t i = 0; i < 4; i++)
        ret->jitter |= spec->jitter[i] > 0;
    if (ret->jitter)
        choose_jitter(spec, key, ret);
    ret->gray = spec->grayscale > 0 && random_unit(random_draw(key, RANDOM_JITTER, 2).word[0]) < spec->grayscale;
    if (spec->erase > 0)
        choose_erase(spec, key, &ret->erase);
}

/* ---- Pillow's arithmetic ------------------------------------------------------------------------------------------- */

/* Image.blend(): binary32, truncated; clipped only where alpha extrapolates. */
static inline uint8_t blend(uint8_t from, uint8_t to, float alpha) {
    float value = (float)from + alpha * (float)((int)to - (int)from);
    return value <= 0.0f ? 0 : value >= 255.0f ? 255 : (uint8_t)value;
}

/* convert("L"): ITU-R 601-2 luma in 16-bit fixed point. */
static inline uint8_t luma(const uint8_t *p) {
    return (uint8_t)((p[0] * 19595u + p[1] * 38470u + p[2] * 7471u + 0x8000u) >> 16);
}

static void brightness(uint8_t *pixels, size_t bytes, float factor) {
    for (size_t i = 0; i < bytes; i++)
        pixels[i] = blend(0, pixels[i], factor);
}

/* The degenerate picture is the mean luma, rounded. */
static void contrast(uint8_t *pixels, size_t count, uint32_t channels, float factor) {
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += channels == 3 ? luma(pixels + 3 * i) : pixels[i];
    uint8_t mean = (uint8_t)((double)sum / (double)count + 0.5);
    for (size_t i = 0; i < count * channels; i++)
        pixels[i] = blend(mean, pixels[i], factor);
}

static void saturation(uint8_t *pixels, size_t count, float factor) {
    for (size_t i = 0; i < count; i++) {
        uint8_t *p = pixels + 3 * i, gray = luma(p);
        for (int c = 0; c < 3; c++)
            p[c] = blend(gray, p[c], factor);
    }
}

static inline int clip8(int x) {
    return CLAMP(x, 0, 255);
}

static void to_hsv(const uint8_t *rgb, uint8_t hsv[3]) {
    uint8_t r = rgb[0], g = rgb[1], b = rgb[2], most = MAX(r, MAX(g, b)), least = MIN(r, MIN(g, b));
    hsv[2] = most;
    if (least == most) {
        hsv[0] = hsv[1] = 0;
        return;
    }
    float range = (float)(most - least), s = range / (float)most, h;
    float red = (float)(most - r) / range, green = (float)(most - g) / range, blue = (float)(most - b) / range;
    if (r == most)
        h = blue - green;
    else if (g == most)
        h = (float)(2.0 + (double)red - (double)blue);
    else
        h = (float)(4.0 + (double)green - (double)red);
    double turn = (double)h / 6.0 + 1.0; /* > 0: its whole part is 0 or 1 */
    h = (float)(turn >= 1.0 ? turn - 1.0 : turn);
    hsv[0] = (uint8_t)clip8((int)((double)h * 255.0));
    hsv[1] = (uint8_t)clip8((int)((double)s * 255.0));
}

/* Rounds a value >= 0 half away from zero. */
static int round_up_half(double x) {
    int whole = (int)x;
    return whole + (x - whole >= 0.5);
}

static void from_hsv(const uint8_t hsv[3], uint8_t *rgb) {
    uint8_t v = hsv[2];
    if (hsv[1] == 0) {
        rgb[0] = rgb[1] = rgb[2] = v;
        return;
    }
    double sixth = (double)(float)hsv[0] * 6.0 / 255.0;
    int i = (int)sixth;
    float f = (float)(sixth - (double)(float)i), s = (float)((double)(float)hsv[1] / 255.0);
    uint8_t p = (uint8_t)clip8(round_up_half((double)v * (1.0 - (double)s)));
    uint8_t q = (uint8_t)clip8(round_up_half((double)v * (1.0 - (double)(s * f))));
    uint8_t t = (uint8_t)clip8(round_up_half((double)v * (1.0 - (double)s * (1.0 - (double)f))));
    const uint8_t sector[6][3] = {{v, t, p}, {q, v, p}, {p, v, t}, {p, q, v}, {t, p, v}, {v, p, q}};
    memcpy(rgb, sector[i % 6], 3);
}

/* adjust_hue(): the hue byte turns by trunc(factor x 255), modulo 256. */
static void hue(uint8_t *pixels, size_t count, double factor) {
    uint8_t turn = (uint8_t)(int32_t)(factor * 255);
    for (size_t i = 0; i < count; i++) {
        uint8_t hsv[3];
        to_hsv(pixels + 3 * i, hsv);
        hsv[0] = (uint8_t)(hsv[0] + turn);
        from_hsv(hsv, pixels + 3 * i);
    }
}

/* ---- the picture ---------------------------------------------------------------------------------------------------- */

void color_apply(const struct transform_spec *spec, const struct transform_color *color, uint8_t *pixels) {
    size_t count = (size_t)spec->width * spec->height;
    uint32_t channels = spec->channels;
    for (int i = 0; color->jitter && i < 4; i++) {
        uint8_t operation = color->order[i];
        if (!(spec->jitter[operation] > 0))
            continue;
        float factor = (float)color->factor[operation];
        if (operation == 0)
            brightness(pixels, count * channels, factor);
        else if (operation == 1)
            contrast(pixels, count, channels, factor);
        else if (operation == 2 && channels == 3)
            saturation(pixels, count, factor);
        else if (operation == 3 && channels == 3)
            hue(pixels, count, color->factor[3]);
    }
    if (color->gray && channels == 3)
        for (size_t i = 0; i < count; i++)
            memset(pixels + 3 * i, luma(pixels + 3 * i), 3);
}

/* Zero elements of the finished row, as RandomErasing(value=0) after Normalize gives. */
void color_erase(const struct transform_spec *spec, const struct box *box, void *out) {
    size_t element = output_element(spec);
    bool planar = spec->layout == LAYOUT_NCHW;
    uint32_t planes = planar ? spec->channels : 1;
    size_t pixel = planar ? element : element * spec->channels, pitch = pixel * spec->width;
    for (uint32_t c = 0; c < planes; c++)
        for (uint32_t y = box->y; y < box->y + box->height; y++)
            memset((uint8_t *)out + (c * spec->height + y) * pitch + box->x * pixel, 0, box->width * pixel);
}
