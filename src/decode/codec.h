/* SPDX-License-Identifier: MIT */
/*
 * Private to src/decode: what decode.c, which tells contents apart and checks arguments, asks of one codec, and the
 * memory that the codecs of one decoder share. A codec is one file that fills in one `struct codec`, a line in decode.c's
 * list, and, where its content has a magic of its own, a line in decode_sniff().
 *
 * Calls come in the order new, (open, read..., close)..., free; reset may come at any point after new, since a SIGBUS
 * leaves any call by siglongjmp. So a codec holds no resource in open and read but arena pieces and what its state says.
 * The verdict's rules are those of decode.h. Nothing is printed, nothing is global.
 */
#ifndef DECODE_CODEC_H
#define DECODE_CODEC_H

#include "decode/decode.h"

/* A bump allocator over a reserved range whose pages appear on first touch. Taken back as a whole. */
struct arena {
    uint8_t *base;
    size_t size, used;
    size_t touched; /* high-water since pages were last given back */
    size_t peak;    /* high-water since the beginning */
};

#define ARENA_ALIGN 64u /* libjpeg-turbo wants 32 for AVX2 and rows of a multiple of 64 */

/* Zeroed bytes, aligned to ARENA_ALIGN; NULL where they do not fit. */
void *arena_take(struct arena *arena, uint64_t bytes);
void arena_rewind(struct arena *arena);

/* The sentence for a NULL from arena_take(). Returns DECODE_BAD. */
enum decode_verdict arena_is_short(const struct arena *arena, uint32_t width, uint32_t height, uint64_t bytes,
                                   struct diag *diag);

struct codec {
    const char *kind; /* what decode_sniff() calls its content */
    /* `limits` are resolved (no zero) and, like the arena, outlive the state. 0, -ENOMEM. */
    int (*new)(const struct decode_limits *limits, struct arena *arena, void **ret);
    void (*free)(void *state); /* NULL allowed */
    /* The header. The codec fills all of *ret_info (orientation: 1 where the format has none), checks the size with
     * decode_check_pixels(), and rewinds the arena whenever it begins anew. */
    enum decode_verdict (*open)(void *state, const uint8_t *bytes, size_t length, struct decode_info *ret_info,
                                struct diag *diag);
    /* Arguments were checked: a picture is open, the region lies in it and picture->pixels holds it. After
     * DECODE_DAMAGED *ret_complete is what decoder_damage_is_complete() will say. */
    enum decode_verdict (*read)(void *state, uint32_t channels, const struct box *region, const struct picture *picture,
                                bool *ret_complete, struct diag *diag);
    /* The same in pieces; NULL: the codec does not. It knows no DECODE_DAMAGED. */
    enum decode_verdict (*read_rows)(void *state, uint32_t channels, const struct box *region, decode_take_rows *take,
                                     void *take_state, struct diag *diag);
    void (*close)(void *state); /* forgets the open picture; idempotent */
    void (*reset)(void *state); /* see decoder_reset() */
    const char *(*version)(void);
};

extern const struct codec codec_jpeg, codec_coefficients;
extern const struct codec codec_png, codec_webp; /* where their libraries are */

/* DECODE_OK, or DECODE_BAD with the sentence that names max-pixels. */
enum decode_verdict decode_check_pixels(const struct decode_limits *limits, uint32_t width, uint32_t height,
                                        struct diag *diag);

/* Pillow's luma of an RGB pixel (ITU-R 601, 16-bit fixed point). */
static inline uint8_t decode_luma(uint32_t r, uint32_t g, uint32_t b) {
    return (uint8_t)((19595u * r + 38470u * g + 7471u * b + 32768u) >> 16);
}

/* `count` pixels of `components` (1 or 3) to `channels` (DECODE_VALUES, 1 or 3). */
void decode_convert_row(const uint8_t *from, uint32_t components, uint8_t *to, uint32_t channels, size_t count);

#endif
