/* SPDX-License-Identifier: MIT */
/*
 * The decoder's front: tells contents apart, hands each to its codec, checks what the caller asks for, and owns the
 * memory that the codecs draw on. Knows no format beyond its first bytes. Never prints. One thread per decoder.
 */
#include "decode/decode.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>

#include "autoconfig.h"
#include "base/util.h"
#include "decode/codec.h"
#include "decode/coefficients.h"

#define DEFAULT_MAX_PIXELS UINT64_C(100000000)
#define DEFAULT_MAX_SCANS 500u
#define BYTES_PER_PIXEL 8u            /* coefficients of a progressive CMYK picture: 4 components of 16 bits */
#define BYTES_BESIDE (32u << 20)      /* tables, strips and padding of the widest picture (65,500 pixels) */
#define ARENA_KEEP ((size_t)16 << 20) /* pages beyond are given back after a picture that needed them */

static const struct codec *const codecs[] = {
    &codec_jpeg,
    &codec_coefficients,
#ifdef HAVE_LIBPNG
    &codec_png,
#endif
#ifdef HAVE_LIBWEBP
    &codec_webp,
#endif
};

/* What could be decoded if its library had been there at configure. */
static const struct {
    const char *kind, *library, *package;
} optional[] = {{"PNG", "libpng", "libpng-dev"}, {"WebP", "libwebp", "libwebp-dev"}};

struct decoder {
    struct decode_limits limits;
    struct arena arena;  /* the codecs' */
    struct arena turned; /* pixels on their way through an orientation */
    void *state[ARRAY_SIZE(codecs)];
    const struct codec *codec; /* of the open picture; NULL: none is open */
    void *open_state;
    struct decode_info info;
    uint32_t orientation; /* applied: 1 until decoder_orient() */
    bool complete;        /* the last damage */
};

/* --- memory ---------------------------------------------------------------------------------------------------- */

void *arena_take(struct arena *a, uint64_t bytes) {
    if (bytes > a->size - a->used || align_up(bytes, ARENA_ALIGN) > a->size - a->used)
        return NULL;
    uint8_t *piece = a->base + a->used;
    a->used += align_up(bytes, ARENA_ALIGN);
    a->touched = MAX(a->touched, a->used);
    a->peak = MAX(a->peak, a->used);
    return memset(piece, 0, bytes);
}

void arena_rewind(struct arena *a) {
    if (a->touched > ARENA_KEEP) {
        madvise(a->base + ARENA_KEEP, a->size - ARENA_KEEP, MADV_DONTNEED);
        a->touched = ARENA_KEEP;
    }
    a->used = 0;
}

enum decode_verdict arena_is_short(const struct arena *a, uint32_t width, uint32_t height, uint64_t bytes,
                                   struct diag *diag) {
    diag_set(diag, -ENOMEM,
             "the picture of %ux%u pixels needs %llu bytes of decoder memory beside %zu, more than the limit of %zu "
             "(raise max-pixels)",
             width, height, (unsigned long long)bytes, a->used, a->size);
    return DECODE_BAD;
}

static int arena_reserve(struct arena *a, uint64_t size) {
    size = align_up(MIN(size, UINT64_C(1) << 40), 4096); /* no JPEG needs more: 65,500 squared x 8 bytes */
    void *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return -ENOMEM;
    *a = (struct arena){.base = base, .size = size};
    return 0;
}

/* Room for `each` bytes a pixel and `beside`. */
static uint64_t room(const struct decode_limits *limits, uint64_t each, uint64_t beside) {
    uint64_t size;
    return mul_u64(limits->max_pixels, each, &size) && add_u64(size, beside, &size) ? size : UINT64_MAX;
}

static void arena_release(struct arena *a) {
    if (a->base)
        munmap(a->base, a->size);
}

/* --- lives ----------------------------------------------------------------------------------------------------- */

int decoder_new(const struct decode_limits *limits, struct decoder **ret) {
    struct decoder *d = calloc(1, sizeof *d);
    if (!d)
        return -ENOMEM;
    if (limits)
        d->limits = *limits;
    if (d->limits.max_pixels == 0)
        d->limits.max_pixels = DEFAULT_MAX_PIXELS;
    if (d->limits.max_scans == 0)
        d->limits.max_scans = DEFAULT_MAX_SCANS;
    uint64_t memory = d->limits.max_memory ? d->limits.max_memory : room(&d->limits, BYTES_PER_PIXEL, BYTES_BESIDE);
    int r = arena_reserve(&d->arena, memory);
    if (r == 0)
        r = arena_reserve(&d->turned, room(&d->limits, 3, 4096));
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(codecs); i++)
        r = codecs[i]->new (&d->limits, &d->arena, &d->state[i]);
    if (r < 0) {
        decoder_free(d);
        return r;
    }
    *ret = d;
    return 0;
}

void decoder_free(struct decoder *decoder) {
    if (!decoder)
        return;
    for (size_t i = 0; i < ARRAY_SIZE(codecs); i++)
        codecs[i]->free(decoder->state[i]);
    arena_release(&decoder->arena);
    arena_release(&decoder->turned);
    free(decoder);
}

void decoder_close(struct decoder *decoder) {
    if (decoder->codec)
        decoder->codec->close(decoder->open_state);
    decoder->codec = NULL;
}

void decoder_reset(struct decoder *decoder) {
    decoder->codec = NULL;
    decoder->complete = false;
    for (size_t i = 0; i < ARRAY_SIZE(codecs); i++)
        codecs[i]->reset(decoder->state[i]);
}

bool decoder_damage_is_complete(const struct decoder *decoder) {
    return decoder->complete;
}

size_t decoder_memory_peak(const struct decoder *decoder) {
    return decoder->arena.peak + decoder->turned.peak;
}

const char *decode_version(size_t index) {
    return index < ARRAY_SIZE(codecs) ? codecs[index]->version() : NULL;
}

/* --- what it is ------------------------------------------------------------------------------------------------- */

/* No byte that ASCII text or UTF-8 cannot hold. */
static bool looks_like_text(const uint8_t *bytes, size_t length) {
    for (size_t i = 0; i < MIN(length, (size_t)256); i++) {
        if ((bytes[i] < 0x20 && !memchr("\t\n\r\f", bytes[i], 4)) || bytes[i] == 0x7F || bytes[i] >= 0xF5)
            return false;
    }
    return true;
}

static bool looks_like_html(const uint8_t *bytes, size_t length) {
    static const char *const begins[] = {"<!doctype html", "<html", "<head"};
    size_t i = length >= 3 && memcmp(bytes, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
    while (i < length && memchr(" \t\r\n", bytes[i], 4))
        i++;
    for (size_t k = 0; k < ARRAY_SIZE(begins); k++) {
        size_t n = strlen(begins[k]);
        if (length - i >= n && strncasecmp((const char *)bytes + i, begins[k], n) == 0)
            return true;
    }
    return false;
}

const char *decode_sniff(const uint8_t *bytes, size_t length) {
    static const struct {
        const char *magic;
        size_t size;
        const char *name;
    } kinds[] = {
        {"\xFF\xD8", 2, "JPEG"},
        {"\x89PNG", 4, "PNG"},
        {"GIF8", 4, "GIF"},
        {"BM", 2, "BMP"},
        {COEFFICIENTS_MAGIC, 4, COEFFICIENTS_KIND},
        {"II*\0", 4, "TIFF"},
        {"MM\0*", 4, "TIFF"},
        {"\x1F\x8B", 2, "gzip data"},
    };
    if (length == 0)
        return "empty";
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        if (length >= kinds[i].size && memcmp(bytes, kinds[i].magic, kinds[i].size) == 0)
            return kinds[i].name;
    }
    if (length >= 12 && memcmp(bytes, "RIFF", 4) == 0 && memcmp(bytes + 8, "WEBP", 4) == 0)
        return "WebP";
    if (looks_like_html(bytes, length))
        return "HTML";
    return looks_like_text(bytes, length) ? "text" : "unknown data";
}

static enum decode_verdict refuse_content(const uint8_t *bytes, size_t length, const char *kind, struct diag *diag) {
    char hex[3 * 4 + 1] = "";
    if (length == 0) {
        diag_set(diag, -EBADMSG, "content is empty (0 bytes), no picture");
        return DECODE_BAD;
    }
    for (size_t i = 0; i < ARRAY_SIZE(optional); i++) {
        if (strcmp(kind, optional[i].kind) == 0) {
            diag_set(diag, -ENOTSUP, "content is %s; this build has no %s: install %s and configure again", kind,
                     optional[i].library, optional[i].package);
            return DECODE_BAD;
        }
    }
    for (size_t i = 0; i < MIN(length, (size_t)4); i++)
        snprintf(hex + 3 * i, 4, "%02X ", bytes[i]);
    hex[3 * MIN(length, (size_t)4) - 1] = '\0';
    diag_set(diag, -EBADMSG, "content is %s (%s), not JPEG, PNG or WebP", kind, hex);
    return DECODE_BAD;
}

enum decode_verdict decode_check_pixels(const struct decode_limits *limits, uint32_t width, uint32_t height,
                                        struct diag *diag) {
    uint64_t pixels = (uint64_t)width * height;
    if (pixels <= limits->max_pixels)
        return DECODE_OK;
    diag_set(diag, -EFBIG, "picture of %ux%u = %llu pixels exceeds max-pixels = %llu", width, height,
             (unsigned long long)pixels, (unsigned long long)limits->max_pixels);
    return DECODE_BAD;
}

void decode_convert_row(const uint8_t *from, uint32_t components, uint8_t *to, uint32_t channels, size_t count) {
    if (components == MAX(channels, 1u)) {
        memcpy(to, from, count * components);
    } else if (components == 3) {
        for (size_t i = 0; i < count; i++)
            to[i] = decode_luma(from[3 * i], from[3 * i + 1], from[3 * i + 2]);
    } else {
        for (size_t i = 0; i < count; i++)
            to[3 * i] = to[3 * i + 1] = to[3 * i + 2] = from[i];
    }
}

/* --- pictures --------------------------------------------------------------------------------------------------- */

enum decode_verdict decoder_open(struct decoder *decoder, const uint8_t *bytes, size_t length,
                                 struct decode_info *ret_info, struct diag *diag) {
    decoder_close(decoder);
    const char *kind = decode_sniff(bytes, length);
    size_t i = 0;
    while (i < ARRAY_SIZE(codecs) && strcmp(kind, codecs[i]->kind) != 0)
        i++;
    if (i == ARRAY_SIZE(codecs))
        return refuse_content(bytes, length, kind, diag);
    decoder->codec = codecs[i];
    decoder->open_state = decoder->state[i];
    decoder->orientation = 1;
    enum decode_verdict verdict = codecs[i]->open(decoder->open_state, bytes, length, &decoder->info, diag);
    if (verdict == DECODE_OK)
        *ret_info = decoder->info;
    else
        decoder_close(decoder);
    return verdict;
}

/* --- orientation ------------------------------------------------------------------------------------------------ */

/* What makes the stored picture of the turned one: axes exchanged, then columns and rows counted from the far end. */
struct turn {
    bool exchange, from_right, from_bottom;
};

static struct turn turn_of(uint32_t orientation) {
    static const struct turn turns[9] = {
        [2] = {false, true, false}, [3] = {false, true, true}, [4] = {false, false, true}, [5] = {true, false, false},
        [6] = {true, false, true},  [7] = {true, true, true},  [8] = {true, true, false},
    };
    return turns[orientation];
}

void decoder_orient(struct decoder *decoder, struct decode_info *info) {
    struct decode_info *own = &decoder->info;
    if (!decoder->codec || decoder->orientation != 1 || own->orientation < 2 || own->orientation > 8)
        return;
    decoder->orientation = own->orientation;
    if (turn_of(own->orientation).exchange) {
        uint32_t width = own->width;
        own->width = own->height;
        own->height = width;
    }
    *info = *own;
}

static struct box stored_box(const struct decoder *d, struct turn turn, const struct box *region) {
    struct box b = *region;
    uint32_t width = d->info.width, height = d->info.height;
    if (turn.exchange) {
        b = (struct box){region->y, region->x, region->height, region->width};
        width = d->info.height;
        height = d->info.width;
    }
    if (turn.from_right)
        b.x = width - b.x - b.width;
    if (turn.from_bottom)
        b.y = height - b.y - b.height;
    return b;
}

/* Decodes the stored region beside, then copies it pixel by pixel into its turned place. */
static enum decode_verdict read_turned(struct decoder *d, uint32_t channels, const struct box *region,
                                       const struct picture *picture, struct diag *diag) {
    struct turn turn = turn_of(d->orientation);
    struct box box = stored_box(d, turn, region);
    uint32_t each = MAX(channels, 1u);
    size_t stride = (size_t)box.width * each;
    arena_rewind(&d->turned);
    struct picture stored = {arena_take(&d->turned, (uint64_t)stride * box.height), stride, box.width, box.height,
                             each};
    if (!stored.pixels)
        return arena_is_short(&d->turned, box.width, box.height, (uint64_t)stride * box.height, diag);
    enum decode_verdict verdict = d->codec->read(d->open_state, channels, &box, &stored, &d->complete, diag);
    ptrdiff_t right = turn.from_right ? -(ptrdiff_t)each : (ptrdiff_t)each;
    ptrdiff_t down = turn.from_bottom ? -(ptrdiff_t)stride : (ptrdiff_t)stride;
    ptrdiff_t along = turn.exchange ? down : right, across = turn.exchange ? right : down;
    size_t origin = (turn.from_right ? stride - each : 0) + (turn.from_bottom ? stride * (box.height - 1) : 0);
    for (uint32_t y = 0; y < region->height; y++) {
        uint8_t *to = picture->pixels + y * picture->stride;
        ptrdiff_t from = (ptrdiff_t)origin + (ptrdiff_t)y * across;
        for (uint32_t x = 0; x < region->width; x++, from += along, to += each)
            memcpy(to, stored.pixels + from, each);
    }
    return verdict;
}

static bool region_is_sane(const struct decoder *d, uint32_t channels, const struct box *region) {
    return d->codec && (channels <= 1 || channels == 3) && region->width > 0 && region->height > 0 &&
           region->x < d->info.width && region->width <= d->info.width - region->x && region->y < d->info.height &&
           region->height <= d->info.height - region->y;
}

static enum decode_verdict refuse_region(struct diag *diag) {
    diag_set(diag, -EINVAL, "no picture is open, or the region does not fit the picture or its memory");
    return DECODE_BAD;
}

enum decode_verdict decoder_read(struct decoder *decoder, uint32_t channels, const struct box *region,
                                 const struct picture *picture, struct diag *diag) {
    decoder->complete = false;
    if (!region_is_sane(decoder, channels, region) || picture->width != region->width ||
        picture->height != region->height || picture->stride < (size_t)region->width * MAX(channels, 1u))
        return refuse_region(diag);
    if (decoder->orientation != 1)
        return read_turned(decoder, channels, region, picture, diag);
    return decoder->codec->read(decoder->open_state, channels, region, picture, &decoder->complete, diag);
}

bool decoder_gives_rows(const struct decoder *decoder) {
    return decoder->codec && decoder->codec->read_rows && decoder->orientation == 1;
}

enum decode_verdict decoder_read_rows(struct decoder *decoder, uint32_t channels, const struct box *region,
                                      decode_take_rows *take, void *state, struct diag *diag) {
    decoder->complete = false;
    if (!decoder_gives_rows(decoder) || !region_is_sane(decoder, channels, region))
        return refuse_region(diag);
    return decoder->codec->read_rows(decoder->open_state, channels, region, take, state, diag);
}
