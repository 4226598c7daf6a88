/* SPDX-License-Identifier: MIT */
/*
 * The entropy-coded data of a sequential Huffman JPEG, made from its coefficients with its own tables (ITU-T T.81,
 * annexes B, C and F): what a file holds beyond its coefficients and its headers is nothing, for every encoder that
 * pads with ones. Pure functions; no state, any thread. The header parser takes any bytes.
 */
#include "decode/jpeg_coefficients.h"

#include <errno.h>
#include <stdlib.h>

#include "base/util.h"

/* --- headers ----------------------------------------------------------------------------------------------------- */

struct segment {
    const uint8_t *bytes;
    size_t length;
};

static int unlike(struct diag *diag, const char *why) {
    return diag_set(diag, -ENOTSUP, "unsupported: %s", why);
}

/* Canonical codes from the numbers of codes of each size (T.81, C.2). */
static int parse_tables(struct segment s, struct entropy_header *h, struct diag *diag) {
    while (s.length >= 17) {
        uint32_t which = s.bytes[0], count = 0, code = 0;
        const uint8_t *sizes = s.bytes + 1, *symbols = s.bytes + 17;
        for (uint32_t i = 0; i < 16; i++)
            count += sizes[i];
        if ((which & ~0x13u) || count > 256 || s.length - 17 < count)
            return unlike(diag, "a Huffman table that is none");
        struct entropy_code *table = which & 0x10 ? &h->ac[which & 3] : &h->dc[which & 3];
        *table = (struct entropy_code){.defined = true};
        for (uint32_t size = 1; size <= 16; size++, code <<= 1) {
            for (uint32_t i = 0; i < sizes[size - 1]; i++, code++, symbols++) {
                if (code >> size)
                    return unlike(diag, "a Huffman table of too many codes");
                if (table->size[*symbols])
                    return unlike(diag, "a Huffman table that names a symbol twice");
                table->code[*symbols] = code;
                table->size[*symbols] = (uint8_t)size;
            }
        }
        s.bytes += 17 + count;
        s.length -= 17 + count;
    }
    return s.length ? unlike(diag, "a Huffman table that is none") : 0;
}

static int parse_frame(struct segment s, struct entropy_header *h, struct diag *diag) {
    if (s.length < 6 || s.bytes[0] != 8 || h->components)
        return unlike(diag, "an odd frame header");
    h->height = (uint32_t)s.bytes[1] << 8 | s.bytes[2];
    h->width = (uint32_t)s.bytes[3] << 8 | s.bytes[4];
    h->components = s.bytes[5];
    if ((h->components != 1 && h->components != 3) || s.length < 6 + 3 * h->components)
        return unlike(diag, "an odd frame header");
    for (uint32_t c = 0; c < h->components; c++) {
        const uint8_t *entry = s.bytes + 6 + 3 * c;
        h->component[c] = (struct entropy_component){.identifier = entry[0], .h = entry[1] >> 4, .v = entry[1] & 15};
    }
    return 0;
}

/* All components in the frame's order, in one scan. */
static int parse_scan(struct segment s, struct entropy_header *h, struct diag *diag) {
    if (!h->components || s.length < 4 + 2 * h->components || s.bytes[0] != h->components)
        return unlike(diag, "components in several scans");
    for (uint32_t c = 0; c < h->components; c++) {
        const uint8_t *entry = s.bytes + 1 + 2 * c;
        struct entropy_component *component = &h->component[c];
        component->dc_table = entry[1] >> 4;
        component->ac_table = entry[1] & 15;
        if (entry[0] != component->identifier || component->dc_table > 3 || component->ac_table > 3 ||
            !h->dc[component->dc_table].defined || !h->ac[component->ac_table].defined)
            return unlike(diag, "an odd scan header");
    }
    return 0;
}

static int parse_segment(uint8_t marker, struct segment s, struct entropy_header *h, struct diag *diag) {
    switch (marker) {
    case 0xC0:
    case 0xC1:
        return parse_frame(s, h, diag);
    case 0xC4:
        return parse_tables(s, h, diag);
    case 0xDA:
        return parse_scan(s, h, diag);
    case 0xDD:
        if (s.length < 2)
            return unlike(diag, "an odd restart interval");
        h->restart_interval = (uint32_t)s.bytes[0] << 8 | s.bytes[1];
        return 0;
    default: /* other frames: SOF2 ... SOF15 but JPG and DAC, which no file has */
        return marker > 0xC1 && marker <= 0xCF ? unlike(diag, "headers are kept of sequential Huffman files only") : 0;
    }
}

int entropy_parse(const uint8_t *bytes, size_t length, struct entropy_header *ret, struct diag *diag) {
    size_t at = 2;
    *ret = (struct entropy_header){0};
    if (length < 2 || bytes[0] != 0xFF || bytes[1] != 0xD8)
        return unlike(diag, "no JPEG");
    for (;;) {
        if (at >= length || bytes[at] != 0xFF)
            return unlike(diag, "bytes between its segments");
        while (at < length && bytes[at] == 0xFF)
            at++;
        if (length - at < 3)
            return unlike(diag, "no scan");
        uint8_t marker = bytes[at++];
        size_t size = (size_t)bytes[at] << 8 | bytes[at + 1];
        if (marker == 0 || marker == 1 || (marker >= 0xD0 && marker <= 0xD9) || size < 2 || size > length - at)
            return unlike(diag, "odd segments");
        int error = parse_segment(marker, (struct segment){bytes + at + 2, size - 2}, ret, diag);
        if (error < 0)
            return error;
        at += size;
        if (marker == 0xDA)
            break;
    }
    ret->data = at;
    return 0;
}

/* --- coding ------------------------------------------------------------------------------------------------------ */

struct bytes {
    uint8_t *start;
    size_t used, capacity;
};

/* Where bits go. Copied to and fro, so that the compiler, which must think that a byte at `at` may be one of these, can
 * keep them in registers for the length of a block. */
struct bit_writer {
    uint8_t *at;      /* whole bytes are before it */
    uint64_t bits;    /* the lowest `count` are pending; those above were written */
    uint32_t count;   /* below 8 */
    uint32_t missing; /* bit 31: a symbol had no code */
};

/* Bits are first put down as they are; the zero byte behind every FF is added interval by interval. */
struct coder {
    struct bytes plain, coded;
    struct bit_writer writer; /* into plain */
    int32_t dc[COMPONENTS_MOST];
};

#define BLOCK_BYTES_MOST 256u /* 64 coefficients of at most 16 + 16 bits */

static int reserve(struct bytes *b, size_t more) {
    if (b->capacity - b->used >= more)
        return 0;
    size_t capacity = (b->used + more) * 2;
    uint8_t *start = realloc(b->start, capacity);
    if (!start)
        return -ENOMEM;
    b->start = start;
    b->capacity = capacity;
    return 0;
}

/* At most 32 bits; `at` has room for 8 bytes. No branch: when a word is full, nobody could foresee. */
static inline __attribute__((always_inline)) void put_bits(struct bit_writer *w, uint32_t bits, uint32_t count) {
    w->bits = w->bits << count | bits;
    w->count += count;
    store64(w->at, __builtin_bswap64(w->bits << 1 << (63 - w->count))); /* the first bit is the highest of its byte */
    w->at += w->count >> 3;
    w->count &= 7;
}

/* A value's size category, and behind it its bits: negative ones as value - 1. */
#define CATEGORY_SHIFT 16
#define VALUE_MOST 2047 /* beyond: a difference of DC at most */
static uint32_t categories[2 * VALUE_MOST + 1];

static uint32_t make_category(int32_t value) {
    uint32_t size = value ? 32 - (uint32_t)__builtin_clz((uint32_t)abs(value)) : 0;
    return size << CATEGORY_SHIFT | ((uint32_t)(value < 0 ? value - 1 : value) & ((1u << size) - 1));
}

__attribute__((constructor)) static void make_categories(void) {
    for (int32_t value = -VALUE_MOST; value <= VALUE_MOST; value++)
        categories[value + VALUE_MOST] = make_category(value);
}

static inline uint32_t category(int32_t value) {
    uint32_t index = (uint32_t)(value + VALUE_MOST);
    return __builtin_expect(index <= 2 * VALUE_MOST, 1) ? categories[index] : make_category(value);
}

/* The code of a symbol that names `run` and the category, and behind it the value. */
static inline __attribute__((always_inline)) void put_symbol(struct bit_writer *w, const struct entropy_code *table,
                                                             uint32_t run, uint32_t categorised) {
    uint32_t size = categorised >> CATEGORY_SHIFT, bits = categorised & ((1u << CATEGORY_SHIFT) - 1);
    uint32_t symbol = (run << 4 | size) & 255;
    w->missing |= table->size[symbol] - 1u;
    put_bits(w, table->code[symbol] << size | bits, table->size[symbol] + size);
}

#define ZEROS_16 0xFu

static void put_block(struct coder *c, const struct entropy_header *h, uint32_t component, const int16_t *block) {
    const struct entropy_code *dc = &h->dc[h->component[component].dc_table];
    const struct entropy_code *ac = &h->ac[h->component[component].ac_table];
    struct bit_writer w = c->writer;
    uint32_t before = 0;
    put_symbol(&w, dc, 0, category(block[0] - c->dc[component]));
    c->dc[component] = block[0];
    for (uint64_t left = block_nonzero_zigzag(block) & ~UINT64_C(1); left; left &= left - 1) {
        uint32_t i = (uint32_t)__builtin_ctzll(left), run = i - before - 1;
        for (; run > 15; run -= 16)
            put_symbol(&w, ac, ZEROS_16, 0);
        put_symbol(&w, ac, run, category(block[coefficients_natural[i]]));
        before = i;
    }
    if (before < BLOCK - 1)
        put_symbol(&w, ac, 0, 0);
    c->writer = w;
}

/* Ends an interval: ones up to a whole byte, then all of it, stuffed, to c->coded. */
static int end_interval(struct coder *c) {
    struct bit_writer *w = &c->writer;
    uint32_t rest = -w->count & 7;
    put_bits(w, (1u << rest) - 1, rest);
    const uint8_t *from = c->plain.start, *end = w->at;
    if (reserve(&c->coded, 2 * (size_t)(end - from) + 2) < 0)
        return -ENOMEM;
    uint8_t *to = c->coded.start + c->coded.used;
    while (from < end) {
        const uint8_t *mark = memchr(from, 0xFF, (size_t)(end - from));
        size_t length = (size_t)(mark ? mark + 1 - from : end - from);
        memcpy(to, from, length);
        to += length;
        from += length;
        if (mark)
            *to++ = 0;
    }
    c->coded.used = (size_t)(to - c->coded.start);
    w->at = c->plain.start;
    memset(c->dc, 0, sizeof c->dc);
    return 0;
}

/* Room for one MCU more. */
static int reserve_mcu(struct coder *c) {
    c->plain.used = (size_t)(c->writer.at - c->plain.start);
    int error = reserve(&c->plain, 6 * BLOCK_BYTES_MOST + 16);
    c->writer.at = c->plain.start + c->plain.used;
    return error;
}

static void put_mcu(struct coder *c, const struct entropy_header *h, const struct geometry *g, uint32_t mcu,
                    const int16_t (*const rows[COMPONENTS_MOST][2])[BLOCK]) {
    for (uint32_t i = 0; i < g->components; i++) {
        uint32_t across = i ? 1 : g->h, down = i ? 1 : g->v;
        for (uint32_t y = 0; y < down; y++) {
            for (uint32_t x = 0; x < across; x++)
                put_block(c, h, i, rows[i][y][mcu * across + x]);
        }
    }
}

static int put_all(struct coder *c, const struct entropy_header *h, const struct geometry *g, entropy_blocks *blocks,
                   void *source, struct diag *diag) {
    const int16_t(*rows[COMPONENTS_MOST][2])[BLOCK] = {{0}};
    uint32_t left = h->restart_interval, restarts = 0;
    for (uint32_t row = 0; row < g->mcus_down; row++) {
        int error = blocks(source, row, rows, diag);
        if (error < 0)
            return error;
        for (uint32_t mcu = 0; mcu < g->mcus_across; mcu++, left--) {
            if (h->restart_interval && left == 0) {
                if (end_interval(c) < 0)
                    return -ENOMEM;
                c->coded.start[c->coded.used++] = 0xFF;
                c->coded.start[c->coded.used++] = (uint8_t)(0xD0 + (restarts++ & 7));
                left = h->restart_interval;
            }
            if (reserve_mcu(c) < 0)
                return -ENOMEM;
            put_mcu(c, h, g, mcu, (const int16_t(*const(*)[2])[BLOCK])rows);
        }
        if (c->writer.missing >> 31)
            return unlike(diag, "a coefficient for which the file's Huffman tables have no code");
    }
    return end_interval(c);
}

static bool geometry_fits(const struct entropy_header *h, const struct geometry *g) {
    if (h->width != g->width || h->height != g->height || h->components != g->components)
        return false;
    for (uint32_t c = 0; c < g->components && g->components > 1; c++) {
        if (h->component[c].h != (c ? 1 : g->h) || h->component[c].v != (c ? 1 : g->v))
            return false;
    }
    return true;
}

int entropy_encode(const struct entropy_header *header, const struct geometry *geometry, entropy_blocks *blocks,
                   void *source, uint8_t **ret_bytes, size_t *ret_length, struct diag *diag) {
    struct coder c = {0};
    if (!geometry_fits(header, geometry))
        return unlike(diag, "the kept headers are of another picture");
    int error = reserve(&c.plain, 64 * 1024);
    c.writer.at = c.plain.start;
    if (error == 0)
        error = put_all(&c, header, geometry, blocks, source, diag);
    free(c.plain.start);
    if (error < 0) {
        free(c.coded.start);
        return error;
    }
    *ret_bytes = c.coded.start;
    *ret_length = c.coded.used;
    return 0;
}
