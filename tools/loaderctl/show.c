/* SPDX-License-Identifier: MIT */
/*
 * loaderctl show: a batch as a contact sheet, so that a person sees what the trainer will see: each row's picture with
 * its class, sample id, what happened to it and where the crop lies in the stored picture. Normalisation is undone.
 * One thread beside the workers.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/util.h"
#include "dataset/dataset.h"
#include "loaderctl.h"

#define GAP 8 /* pixels between tiles */
#define CAPTION_LINES 3
#define SMALLEST_TILE 112 /* smaller pictures are enlarged by a whole factor */
#define LARGEST_TILE 256  /* larger ones are reduced by one */
#define MOST_TILES 1024
#define BACKGROUND 0x202428u
#define TEXT 0xe8e8e8u
#define DIM 0x909498u
#define ALERT 0xff6060u

/* How to read pixels out of a field. */
struct pixels {
    const struct loaderd_field *field;
    uint32_t width, height, channels;
    uint64_t row_step, y_step, x_step, channel_step; /* elements */
    double gain[3], offset[3];                       /* 0..255 value = element x gain + offset */
};

static bool is_channels(int64_t n) {
    return n == 1 || n == 3;
}

/* A field of rows x H x W x C, rows x C x H x W or rows x H x W. `nchw` decides where both fit. */
static bool understand(const struct loaderd_field *field, bool nchw, struct pixels *ret) {
    const int64_t *d = field->dims;
    *ret = (struct pixels){.field = field};
    if (field->ndim == 3) {
        ret->height = (uint32_t)d[1], ret->width = (uint32_t)d[2], ret->channels = 1;
        ret->y_step = ret->width, ret->x_step = 1, ret->channel_step = 0;
    } else if (field->ndim == 4 && is_channels(d[1]) && (nchw || !is_channels(d[3]))) {
        ret->channels = (uint32_t)d[1], ret->height = (uint32_t)d[2], ret->width = (uint32_t)d[3];
        ret->y_step = ret->width, ret->x_step = 1, ret->channel_step = (uint64_t)ret->width * ret->height;
    } else if (field->ndim == 4 && is_channels(d[3])) {
        ret->height = (uint32_t)d[1], ret->width = (uint32_t)d[2], ret->channels = (uint32_t)d[3];
        ret->y_step = (uint64_t)ret->width * ret->channels, ret->x_step = ret->channels, ret->channel_step = 1;
    } else {
        return false;
    }
    ret->row_step = (uint64_t)ret->width * ret->height * ret->channels;
    return ret->width >= 2 && ret->height >= 2;
}

static double from_half(uint16_t bits) {
    int exponent = bits >> 10 & 31;
    double fraction = bits & 1023;
    double value = exponent == 31 ? (fraction != 0 ? (double)NAN : (double)INFINITY)
                   : exponent     ? ldexp(1024 + fraction, exponent - 25)
                                  : ldexp(fraction, -24);
    return bits & 0x8000 ? -value : value;
}

static double element(const struct loaderd_field *field, uint64_t i) {
    union {
        uint32_t bits;
        float value;
    } wide;
    switch (field->dtype) {
    case LOADERD_U8:
        return ((const uint8_t *)field->data)[i];
    case LOADERD_I8:
        return ((const int8_t *)field->data)[i];
    case LOADERD_U16:
        return ((const uint16_t *)field->data)[i];
    case LOADERD_I16:
        return ((const int16_t *)field->data)[i];
    case LOADERD_U32:
        return ((const uint32_t *)field->data)[i];
    case LOADERD_I32:
        return ((const int32_t *)field->data)[i];
    case LOADERD_U64:
        return (double)((const uint64_t *)field->data)[i];
    case LOADERD_I64:
        return (double)((const int64_t *)field->data)[i];
    case LOADERD_F16:
        return from_half(((const uint16_t *)field->data)[i]);
    case LOADERD_BF16:
        wide.bits = (uint32_t)((const uint16_t *)field->data)[i] << 16;
        return (double)wide.value;
    case LOADERD_F32:
        return (double)((const float *)field->data)[i];
    default:
        return ((const double *)field->data)[i];
    }
}

static bool is_float(uint32_t dtype) {
    return dtype >= LOADERD_F16;
}

static void stretch(struct pixels *pixels, double low, double high) {
    for (int c = 0; c < 3; c++) {
        pixels->gain[c] = high > low ? 255 / (high - low) : 0;
        pixels->offset[c] = high > low ? -low * pixels->gain[c] : 128;
    }
}

static void find_range(const struct pixels *pixels, uint64_t elements, double *ret_low, double *ret_high) {
    *ret_low = INFINITY, *ret_high = -INFINITY;
    for (uint64_t i = 0; i < elements; i++) {
        double value = element(pixels->field, i);
        *ret_low = value < *ret_low ? value : *ret_low;
        *ret_high = value > *ret_high ? value : *ret_high;
    }
}

/* Undoes the normalisation, else guesses: bytes as they are, floats in 0..1, anything else from least to most. */
static void choose_scale(struct pixels *pixels, const struct pipeline_config *config, uint64_t rows) {
    double low, high;
    if (is_float(pixels->field->dtype) && config->normalize && strcmp(pixels->field->name, "image") == 0) {
        for (int c = 0; c < 3; c++) {
            pixels->gain[c] = 255 * (double)config->std[c];
            pixels->offset[c] = 255 * (double)config->mean[c];
        }
        return;
    }
    stretch(pixels, 0, is_float(pixels->field->dtype) ? 1 : 255);
    if (pixels->field->dtype == LOADERD_U8)
        return;
    find_range(pixels, rows * pixels->row_step, &low, &high);
    double limit = is_float(pixels->field->dtype) ? 1 : 255;
    if (low >= 0 && high <= limit)
        return;
    stretch(pixels, low, high);
    remark("field %s holds values from %g to %g: shown from black to white", pixels->field->name, low, high);
}

static int find_pixels(const struct loaderd_batch *batch, const struct pipeline_config *config, struct pixels *ret,
                       struct diag *diag) {
    char list[300] = "";
    size_t used = 0;
    bool nchw = config->layout == CONFIG_LAYOUT_NCHW;
    for (int by_name = 1; by_name >= 0; by_name--)
        for (uint32_t i = 0; i < batch->nfields; i++)
            if ((!by_name || strcmp(batch->fields[i].name, "image") == 0) && understand(&batch->fields[i], nchw, ret)) {
                choose_scale(ret, config, batch->rows);
                return 0;
            }
    for (uint32_t i = 0; i < batch->nfields && used < sizeof list; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s of %u dimensions", i ? ", " : "",
                                 batch->fields[i].name, batch->fields[i].ndim);
    return diag_set(diag, -EINVAL,
                    "no field looks like pictures (rows x height x width x 1 or 3, or rows x 1 or 3 x height "
                    "x width); there are: %s",
                    list);
}

static uint8_t pixel(const struct pixels *p, uint64_t row, uint32_t x, uint32_t y, uint32_t channel) {
    uint32_t c = channel < p->channels ? channel : 0;
    double value = element(p->field, row * p->row_step + y * p->y_step + x * p->x_step + c * p->channel_step);
    value = value * p->gain[c] + p->offset[c];
    return value > 0 ? (uint8_t)(MIN(value, 255) + 0.5) : 0;
}

/* The sheet: columns x rows of tiles, each a picture over its caption. */
struct sheet {
    struct canvas canvas;
    uint32_t columns, lines, tiles;
    uint32_t enlarge, reduce; /* one of them is 1 */
    uint32_t tile_width, tile_height;
};

static int sheet_init(struct sheet *sheet, const struct pixels *pixels, uint32_t tiles) {
    uint32_t longer = MAX(pixels->width, pixels->height);
    *sheet = (struct sheet){.enlarge = 1, .reduce = 1, .tiles = MIN(tiles, MOST_TILES)};
    if (longer < SMALLEST_TILE)
        sheet->enlarge = (SMALLEST_TILE + longer - 1) / longer;
    else if (longer > LARGEST_TILE)
        sheet->reduce = (longer + LARGEST_TILE - 1) / LARGEST_TILE;
    sheet->tile_width = MAX(pixels->width / sheet->reduce * sheet->enlarge, 1u);
    sheet->tile_height = MAX(pixels->height / sheet->reduce * sheet->enlarge, 1u);
    while (sheet->columns * sheet->columns < sheet->tiles)
        sheet->columns++;
    sheet->lines = (sheet->tiles + sheet->columns - 1) / sheet->columns;
    sheet->canvas.width = GAP + sheet->columns * (sheet->tile_width + GAP);
    sheet->canvas.height = GAP + sheet->lines * (sheet->tile_height + CAPTION_LINES * (FONT_HEIGHT + 1) + GAP);
    sheet->canvas.rgb = malloc((size_t)sheet->canvas.width * sheet->canvas.height * 3);
    if (!sheet->canvas.rgb)
        return -ENOMEM;
    for (size_t i = 0; i < (size_t)sheet->canvas.width * sheet->canvas.height * 3; i++)
        sheet->canvas.rgb[i] = (uint8_t)(BACKGROUND >> (16 - i % 3 * 8));
    return 0;
}

/* Mean of the reduce x reduce block that a pixel of the sheet stands for. */
static uint8_t sheet_pixel(const struct sheet *sheet, const struct pixels *p, uint64_t row, uint32_t x, uint32_t y,
                           uint32_t channel) {
    uint32_t sum = 0, n = sheet->reduce;
    if (n == 1)
        return pixel(p, row, x / sheet->enlarge, y / sheet->enlarge, channel);
    for (uint32_t j = 0; j < n; j++)
        for (uint32_t i = 0; i < n; i++)
            sum += pixel(p, row, x * n + i, y * n + j, channel);
    return (uint8_t)((sum + n * n / 2) / (n * n));
}

static void draw_picture(const struct sheet *sheet, const struct pixels *p, uint64_t row, uint32_t left, uint32_t top) {
    for (uint32_t y = 0; y < sheet->tile_height; y++)
        for (uint32_t x = 0; x < sheet->tile_width; x++)
            for (uint32_t c = 0; c < 3; c++)
                sheet->canvas.rgb[((size_t)(top + y) * sheet->canvas.width + left + x) * 3 + c] =
                    sheet_pixel(sheet, p, row, x, y, c);
}

/* "tabby cat" for a label, "weight 0.5 ..." for another scalar field. */
static void describe_label(const struct loaderd_batch *batch, const struct dataset *dataset, uint32_t row, char *text,
                           size_t size) {
    const char *const *names = NULL;
    const uint64_t *samples = NULL;
    uint32_t classes = dataset_classes(dataset, &names, &samples);
    size_t used = 0;
    *text = 0;
    for (uint32_t i = 0; i < batch->nfields && used < size; i++) {
        const struct loaderd_field *field = &batch->fields[i];
        if (field->ndim != 1)
            continue;
        double value = element(field, row);
        const char *space = used ? " " : "";
        if (strcmp(field->name, "label") == 0 && value >= 0 && value < classes)
            used += (size_t)snprintf(text + used, size - used, "%s%s (%.0f)", space, names[(uint32_t)value], value);
        else
            used += (size_t)snprintf(text + used, size - used, "%s%s %.6g", space, field->name, value);
    }
}

static uint32_t describe_status(const struct loaderd_row *row, char *text, size_t size) {
    snprintf(text, size, "#%" PRIu64 "%s%s%s%s", row->sample, row->status & LOADERD_ROW_PADDING ? " padding" : "",
             row->status & LOADERD_ROW_SUBSTITUTED ? " substituted" : "",
             row->status & LOADERD_ROW_BLANK ? " blank" : "", row->status & LOADERD_ROW_DAMAGED ? " damaged" : "");
    return row->status & ~LOADERD_ROW_PADDING ? ALERT : DIM;
}

static void describe_crop(const struct loaderd_row *row, char *text, size_t size) {
    *text = 0;
    if (row->source_width)
        snprintf(text, size, "%.0fx%.0f+%.0f+%.0f of %" PRIu32 "x%" PRIu32 "%s%s", (double)row->crop_width,
                 (double)row->crop_height, (double)row->crop_x, (double)row->crop_y, row->source_width,
                 row->source_height, row->flip & 1 ? " flip" : "", row->flip & 2 ? " vflip" : "");
}

static void draw_caption(const struct sheet *sheet, const struct loaderd_batch *batch, const struct dataset *dataset,
                         uint32_t row, uint32_t left, uint32_t top) {
    char text[256];
    uint32_t max_x = left + sheet->tile_width + GAP - 2, y = top + 2;
    describe_label(batch, dataset, row, text, sizeof text);
    if (*text) {
        font_draw(&sheet->canvas, left, y, max_x, TEXT, text);
        y += FONT_HEIGHT + 1;
    }
    uint32_t color = describe_status(&batch->row[row], text, sizeof text);
    font_draw(&sheet->canvas, left, y, max_x, color, text);
    describe_crop(&batch->row[row], text, sizeof text);
    font_draw(&sheet->canvas, left, y + FONT_HEIGHT + 1, max_x, DIM, text);
}

static int write_sheet(const struct sheet *sheet, const char *path, struct diag *diag) {
    bool to_stdout = strcmp(path, "-") == 0;
    if (to_stdout && isatty(STDOUT_FILENO))
        return diag_set(diag, -EINVAL, "a picture is not written to a terminal: give --output FILE, or redirect");
    FILE *out = to_stdout ? stdout : fopen(path, "wbe");
    if (!out)
        return diag_set(diag, -errno, "cannot create %s: %s", path, strerror(errno));
    errno = 0;
    int r = png_write(out, sheet->canvas.rgb, sheet->canvas.width, sheet->canvas.height);
    if (to_stdout ? fflush(out) : fclose(out))
        r = r < 0 ? r : -errno;
    return r < 0 ? diag_set(diag, r, "cannot write %s: %s", to_stdout ? "standard output" : path, strerror(-r)) : 0;
}

static int draw_batch(const struct engine *engine, const struct loaderd_batch *batch, const char *path,
                      struct diag *diag) {
    struct pixels pixels = {0};
    struct sheet sheet = {0};
    int r = find_pixels(batch, &engine->setup.pipeline, &pixels, diag);
    if (r < 0)
        return r;
    if (sheet_init(&sheet, &pixels, batch->rows) < 0)
        return diag_set(diag, -ENOMEM, "out of memory for the picture; a smaller --batch needs less");
    for (uint32_t i = 0; i < sheet.tiles; i++) {
        uint32_t left = GAP + i % sheet.columns * (sheet.tile_width + GAP);
        uint32_t top = GAP + i / sheet.columns * (sheet.tile_height + CAPTION_LINES * (FONT_HEIGHT + 1) + GAP);
        draw_picture(&sheet, &pixels, i, left, top);
        draw_caption(&sheet, batch, pipeline_dataset(engine->pipeline), i, left, top + sheet.tile_height);
    }
    r = write_sheet(&sheet, path, diag);
    free(sheet.canvas.rgb);
    if (r == 0)
        remark("%s: epoch %" PRIu64 ", step %" PRIu64 ", %" PRIu32 " samples of %ux%ux%u %s", path, batch->epoch,
               batch->step, sheet.tiles, pixels.width, pixels.height, pixels.channels,
               loaderd_dtype_name(pixels.field->dtype));
    return r;
}

int command_show(const struct options *options) {
    struct engine engine;
    struct loaderd_batch batch;
    struct diag diag = DIAG_INIT;
    const struct engine_range range = {.epoch = options->epoch, .step = options->steps_first, .epochs = 1};
    if (options->has_steps && options->steps_end != options->steps_first + 1 && options->steps_end != STEPS_TO_END) {
        complain("show draws one batch: give one step, as in --steps %" PRIu64, options->steps_first);
        return EXIT_USAGE;
    }
    if (engine_open(&engine, options, &range, &diag) < 0)
        return complain_diag(&diag);
    int r = engine_next(&engine, &batch, &diag);
    if (r == 0)
        r = diag_set(&diag, -ENODATA, "epoch %" PRIu64 " has no step %" PRIu64, options->epoch, options->steps_first);
    if (r > 0) {
        r = draw_batch(&engine, &batch, options->output ? options->output : "batch.png", &diag);
        engine_release(&engine, &batch);
    }
    engine_close(&engine);
    return r < 0 ? complain_diag(&diag) : 0;
}
