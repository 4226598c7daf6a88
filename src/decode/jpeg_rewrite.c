/* SPDX-License-Identifier: MIT */
/*
 * Writes JPEG files by libjpeg-turbo; see jpeg_rewrite.h. For tools: memory is the library's own, taken by malloc. Never
 * prints, never exits: errors and warnings leave the library by longjmp.
 */
#include "decode/jpeg_rewrite.h"

#include <errno.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

struct rewrite {
    struct jpeg_error_mgr errors;
    jmp_buf escape;
    struct diag *diag;
    struct jpeg_decompress_struct in;
    struct jpeg_compress_struct out;
    struct jpeg_destination_mgr destination;
    uint8_t *bytes; /* room for `room` */
    size_t room;
};

static void on_begin(j_compress_ptr codec) {
    struct rewrite *r = codec->client_data;
    r->destination.next_output_byte = r->bytes;
    r->destination.free_in_buffer = r->room;
}

static boolean on_full(j_compress_ptr codec) {
    struct rewrite *r = codec->client_data;
    uint8_t *grown = realloc(r->bytes, r->room * 2);
    if (!grown) {
        diag_set(r->diag, -ENOMEM, "out of memory");
        longjmp(r->escape, 1);
    }
    r->bytes = grown;
    r->destination.next_output_byte = grown + r->room;
    r->destination.free_in_buffer = r->room;
    r->room *= 2;
    return TRUE;
}

static void on_end(j_compress_ptr codec) {
    (void)codec;
}

static _Noreturn void on_error(j_common_ptr codec) {
    struct rewrite *r = codec->client_data;
    char text[JMSG_LENGTH_MAX];
    codec->err->format_message(codec, text);
    diag_set(r->diag, -EBADMSG, "%s", text);
    longjmp(r->escape, 1);
}

static void on_message(j_common_ptr codec, int level) {
    if (level < 0)
        on_error(codec); /* a warning: the file is damaged */
}

static void on_output(j_common_ptr codec) {
    (void)codec;
}

/* NULL: no memory. */
static struct rewrite *begin(struct diag *diag) {
    struct rewrite *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->room = 65536;
    r->bytes = malloc(r->room);
    if (!r->bytes) {
        free(r);
        return NULL;
    }
    r->destination = (struct jpeg_destination_mgr){
        .init_destination = on_begin, .empty_output_buffer = on_full, .term_destination = on_end};
    jpeg_std_error(&r->errors);
    r->errors.error_exit = on_error;
    r->errors.emit_message = on_message;
    r->errors.output_message = on_output;
    r->diag = diag;
    r->in.err = r->out.err = &r->errors;
    r->in.client_data = r->out.client_data = r;
    return r;
}

static int end(struct rewrite *r, int code, uint8_t **ret, size_t *ret_length) {
    jpeg_destroy_compress(&r->out);
    jpeg_destroy_decompress(&r->in);
    if (code < 0) {
        free(r->bytes);
    } else {
        *ret = r->bytes;
        *ret_length = r->room - r->destination.free_in_buffer;
    }
    free(r);
    return code;
}

/* JFIF's and Adobe's segments are written by the library itself. */
static bool is_written(const struct rewrite *r, const struct jpeg_marker_struct *marker) {
    return (r->out.write_JFIF_header && marker->marker == JPEG_APP0 && marker->data_length >= 5 &&
            memcmp(marker->data, "JFIF", 5) == 0) ||
           (r->out.write_Adobe_marker && marker->marker == JPEG_APP0 + 14 && marker->data_length >= 5 &&
            memcmp(marker->data, "Adobe", 5) == 0);
}

static void to_baseline(struct rewrite *r, const uint8_t *bytes, size_t length, bool metadata) {
    jpeg_create_decompress(&r->in);
    jpeg_create_compress(&r->out);
    jpeg_mem_src(&r->in, bytes, length);
    for (int i = 0; metadata && i < 16; i++)
        jpeg_save_markers(&r->in, JPEG_APP0 + i, 0xFFFF);
    if (metadata)
        jpeg_save_markers(&r->in, JPEG_COM, 0xFFFF);
    jpeg_read_header(&r->in, TRUE);
    jvirt_barray_ptr *coefficients = jpeg_read_coefficients(&r->in);
    jpeg_copy_critical_parameters(&r->in, &r->out);
    r->out.optimize_coding = TRUE;
    r->out.arith_code = FALSE;
    r->out.restart_interval = 0;
    r->out.dest = &r->destination;
    jpeg_write_coefficients(&r->out, coefficients);
    for (const struct jpeg_marker_struct *m = r->in.marker_list; m; m = m->next)
        if (!is_written(r, m))
            jpeg_write_marker(&r->out, m->marker, m->data, m->data_length);
    jpeg_finish_compress(&r->out);
    jpeg_finish_decompress(&r->in);
}

int jpeg_to_baseline(const uint8_t *bytes, size_t length, bool metadata, uint8_t **ret, size_t *ret_length,
                     struct diag *diag) {
    struct rewrite *r = begin(diag);
    if (!r)
        return diag_set(diag, -ENOMEM, "out of memory");
    if (setjmp(r->escape))
        return end(r, -EBADMSG, ret, ret_length);
    to_baseline(r, bytes, length, metadata);
    return end(r, 0, ret, ret_length);
}

static void encode(struct rewrite *r, const struct picture *picture, int quality) {
    jpeg_create_compress(&r->out);
    r->out.dest = &r->destination;
    r->out.image_width = picture->width;
    r->out.image_height = picture->height;
    r->out.input_components = (int)picture->channels;
    r->out.in_color_space = picture->channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_set_defaults(&r->out);
    jpeg_set_quality(&r->out, quality, TRUE);
    r->out.optimize_coding = TRUE;
    jpeg_start_compress(&r->out, TRUE);
    for (uint32_t y = 0; y < picture->height; y++) {
        JSAMPROW row = picture->pixels + y * picture->stride;
        jpeg_write_scanlines(&r->out, &row, 1);
    }
    jpeg_finish_compress(&r->out);
}

int jpeg_encode(const struct picture *picture, int quality, uint8_t **ret, size_t *ret_length, struct diag *diag) {
    struct rewrite *r = begin(diag);
    if (!r)
        return diag_set(diag, -ENOMEM, "out of memory");
    if (setjmp(r->escape))
        return end(r, -EBADMSG, ret, ret_length);
    encode(r, picture, quality);
    return end(r, 0, ret, ret_length);
}
