/* SPDX-License-Identifier: MIT */
/*
 * A JPEG's quantised coefficients by libjpeg's jpeg_read_coefficients(), for the coefficient encoder; decides which
 * kinds of JPEG a record can hold. Beside jpeg.c the only file that includes jpeglib.h. Never prints, never exits:
 * errors leave the library by longjmp. One thread per reader.
 */
#include "decode/jpeg_coefficients.h"

#include <errno.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

#include <jpeglib.h>

#include <jerror.h>

#include "base/util.h"

#define SCANS_MOST 500
#define ROWS_MOST (65535u / 8 + 3) /* of blocks, with what an MCU of two adds */

struct jpeg_reader {
    struct jpeg_decompress_struct codec;
    struct jpeg_error_mgr errors;
    struct jpeg_source_mgr source;
    struct jpeg_progress_mgr progress;
    jmp_buf escape;
    const uint8_t *bytes;
    size_t length;
    uint64_t max_pixels;
    struct jpeg_coefficients *result;
    const int16_t (*rows[COMPONENTS_MOST][ROWS_MOST])[BLOCK];
    struct diag failure;
};

static struct jpeg_reader *reader_of(j_common_ptr codec) {
    return codec->client_data;
}

static size_t offset_of(const struct jpeg_reader *r) {
    uintptr_t at = (uintptr_t)r->source.next_input_byte, first = (uintptr_t)r->bytes;
    return at >= first && at <= first + r->length ? at - first : r->length;
}

static _Noreturn void give_up(struct jpeg_reader *r) {
    longjmp(r->escape, 1); /* r->failure was set */
}

static _Noreturn void refuse(struct jpeg_reader *r, const char *why) {
    diag_set(&r->failure, -ENOTSUP, "unsupported: %s", why);
    give_up(r);
}

static _Noreturn void on_error(j_common_ptr codec) {
    struct jpeg_reader *r = reader_of(codec);
    char text[JMSG_LENGTH_MAX];
    int code = codec->err->msg_code;
    codec->err->format_message(codec, text);
    if (code == JERR_BAD_PRECISION || code == JERR_SOF_UNSUPPORTED)
        refuse(r, text);
    diag_set(&r->failure, code == JERR_OUT_OF_MEMORY ? -ENOMEM : -EBADMSG, "%s, near byte %zu of %zu", text,
             offset_of(r), r->length);
    give_up(r);
}

/* Whatever the library warns of: the record must hold what any decoder makes of the file. */
static void on_message(j_common_ptr codec, int level) {
    struct jpeg_reader *r = reader_of(codec);
    char text[JMSG_LENGTH_MAX];
    if (level >= 0)
        return;
    codec->err->format_message(codec, text);
    diag_set(&r->failure, -EBADMSG, "%s, near byte %zu of %zu", text, offset_of(r), r->length);
    give_up(r);
}

static void on_output(j_common_ptr codec) {
    (void)codec;
}

static void on_progress(j_common_ptr codec) {
    struct jpeg_reader *r = reader_of(codec);
    if (r->codec.input_scan_number > SCANS_MOST)
        refuse(r, "too many scans");
}

static void source_init(j_decompress_ptr codec) {
    (void)codec;
}

static boolean source_fill(j_decompress_ptr codec) {
    struct jpeg_reader *r = reader_of((j_common_ptr)codec);
    diag_set(&r->failure, -EBADMSG, "the file ends too early, after %zu bytes", r->length);
    give_up(r);
}

static void source_skip(j_decompress_ptr codec, long count) {
    struct jpeg_source_mgr *source = codec->src;
    if (count <= 0)
        return;
    if ((size_t)count > source->bytes_in_buffer)
        source_fill(codec);
    source->next_input_byte += count;
    source->bytes_in_buffer -= (size_t)count;
}

static enum sampling sampling_of(struct jpeg_reader *r) {
    const struct jpeg_decompress_struct *codec = &r->codec;
    const jpeg_component_info *component = codec->comp_info;
    if (codec->data_precision != 8)
        refuse(r, "more than 8 bits a sample");
    if (codec->num_components == 1 && codec->jpeg_color_space == JCS_GRAYSCALE)
        return SAMPLING_GRAY;
    if (codec->num_components != 3)
        refuse(r, codec->num_components == 4 ? "CMYK" : "number of components");
    if (codec->jpeg_color_space != JCS_YCbCr)
        refuse(r, "colour space other than YCbCr");
    for (int c = 1; c < 3; c++) {
        if (component[c].h_samp_factor != 1 || component[c].v_samp_factor != 1)
            refuse(r, "sampling factors of chroma");
    }
    int h = component[0].h_samp_factor, v = component[0].v_samp_factor;
    if (h > 2 || v > 2)
        refuse(r, "sampling factors of luma");
    static const enum sampling samplings[2][2] = {{SAMPLING_444, SAMPLING_440}, {SAMPLING_422, SAMPLING_420}};
    return samplings[h - 1][v - 1];
}

/* A scan that never came leaves coefficients for the library to estimate. */
static void check_complete(struct jpeg_reader *r) {
    const struct jpeg_decompress_struct *codec = &r->codec;
    for (int c = 0; c < codec->num_components; c++) {
        if (!codec->comp_info[c].quant_table) {
            diag_set(&r->failure, -EBADMSG, "component %d of %d has no scan", c + 1, codec->num_components);
            give_up(r);
        }
        for (int i = 0; codec->progressive_mode && i < DCTSIZE2; i++) {
            if (codec->coef_bits[c][i] != 0)
                refuse(r, "progressive scans that leave coefficients out");
        }
    }
}

static void take_component(struct jpeg_reader *r, int number, jvirt_barray_ptr array) {
    struct jpeg_decompress_struct *codec = &r->codec;
    const jpeg_component_info *component = &codec->comp_info[number];
    uint32_t step = (uint32_t)component->v_samp_factor; /* the most that may be asked for at once */
    uint32_t most = number ? 1 : step;
    uint32_t rows = component->height_in_blocks;
    if (codec->num_components > 1)
        rows = (uint32_t)align_up(rows, most);
    for (uint32_t y = 0; y < rows; y++) {
        JBLOCKARRAY row = codec->mem->access_virt_barray((j_common_ptr)codec, array, y, 1, FALSE);
        r->rows[number][y] = (const int16_t(*)[BLOCK])row[0];
    }
    r->result->rows[number] = r->rows[number];
    for (uint32_t i = 0; i < BLOCK; i++)
        r->result->quantiser[number][i] = component->quant_table->quantval[coefficients_natural[i]];
}

static void read_all(struct jpeg_reader *r) {
    struct jpeg_decompress_struct *codec = &r->codec;
    jpeg_read_header(codec, TRUE);
    if ((uint64_t)codec->image_width * codec->image_height > r->max_pixels) {
        diag_set(&r->failure, -EFBIG, "picture of %ux%u pixels exceeds max-pixels = %llu", codec->image_width,
                 codec->image_height, (unsigned long long)r->max_pixels);
        give_up(r);
    }
    r->result->width = codec->image_width;
    r->result->height = codec->image_height;
    r->result->sampling = sampling_of(r);
    jvirt_barray_ptr *arrays = jpeg_read_coefficients(codec);
    check_complete(r);
    for (int c = 0; c < codec->num_components; c++)
        take_component(r, c, arrays[c]);
}

int jpeg_reader_new(struct jpeg_reader **ret) {
    struct jpeg_reader *r = calloc(1, sizeof *r);
    if (!r)
        return -ENOMEM;
    jpeg_std_error(&r->errors);
    r->errors.error_exit = on_error;
    r->errors.emit_message = on_message;
    r->errors.output_message = on_output;
    r->codec.err = &r->errors;
    r->codec.client_data = r;
    if (setjmp(r->escape) != 0) {
        jpeg_reader_free(r);
        return -ENOMEM;
    }
    jpeg_create_decompress(&r->codec);
    r->source = (struct jpeg_source_mgr){.init_source = source_init,
                                         .fill_input_buffer = source_fill,
                                         .skip_input_data = source_skip,
                                         .resync_to_restart = jpeg_resync_to_restart,
                                         .term_source = source_init};
    r->codec.src = &r->source;
    r->progress.progress_monitor = on_progress;
    r->codec.progress = &r->progress;
    *ret = r;
    return 0;
}

void jpeg_reader_free(struct jpeg_reader *reader) {
    if (!reader)
        return;
    jpeg_destroy_decompress(&reader->codec);
    free(reader);
}

int jpeg_reader_read(struct jpeg_reader *reader, const uint8_t *bytes, size_t length, uint64_t max_pixels,
                     struct jpeg_coefficients *ret, struct diag *diag) {
    struct jpeg_reader *r = reader;
    jpeg_abort_decompress(&r->codec); /* the file before */
    for (int i = 0; i < NUM_QUANT_TBLS; i++)
        r->codec.quant_tbl_ptrs[i] = NULL;
    for (int i = 0; i < NUM_HUFF_TBLS; i++)
        r->codec.dc_huff_tbl_ptrs[i] = r->codec.ac_huff_tbl_ptrs[i] = NULL;
    r->bytes = bytes;
    r->length = length;
    r->max_pixels = max_pixels;
    r->result = ret;
    r->source.next_input_byte = bytes;
    r->source.bytes_in_buffer = length;
    if (setjmp(r->escape) != 0)
        return diag_set(diag, r->failure.code, "%s", r->failure.text);
    read_all(r);
    return 0;
}
