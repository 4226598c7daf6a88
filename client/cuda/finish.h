/* SPDX-License-Identifier: MIT */
/*
 * Finishing u8 pictures on the device: what the host prepares and the kernels (finish.cu) read. C and C++.
 *
 * An element depends on its channel and its u8 value only, so the host evaluates the daemon's formula 256 times a channel
 * and the kernels look it up: they are exact by construction, whatever the device's arithmetic does. The table travels as
 * a kernel argument: no memory, no upload, and a launch may be captured in a graph.
 */
#ifndef CLIENT_CUDA_FINISH_H
#define CLIENT_CUDA_FINISH_H

#include <stdint.h>

#define FINISH_CHANNELS 3

struct finish_table {
    union {
        float f32[FINISH_CHANNELS][256];
        uint16_t u16[FINISH_CHANNELS][256]; /* f16, bf16 */
    } value;
};

/* One launch. Sizes are those of the source, rows x height x width x channels. */
struct finish_job {
    const uint8_t *source;
    void *destination;
    const uint8_t *flips; /* one byte a row, or NULL */
    uint64_t units;       /* threads' worth of work */
    uint32_t height, width, channels;
    uint32_t element; /* bytes of an element: 1, 2, 4 */
    uint32_t planar;  /* 1: NCHW */
    uint32_t wide;    /* 1: the kernels that take four elements or pixels at once */
};

struct loaderd_cuda_finish_spec;
struct loaderd_field;

/* The launch for a field; -EINVAL with a sentence where field or spec cannot be meant. Pure. */
int finish_prepare(const struct loaderd_cuda_finish_spec *spec, const struct loaderd_field *source,
                   const uint8_t *flips, void *destination, struct finish_job *ret, struct finish_table *ret_table,
                   char *error, uint64_t size);
/* The field as it is after finishing: dtype, dims, bytes; name and data as they were. */
void finish_field(const struct loaderd_cuda_finish_spec *spec, const struct loaderd_field *source,
                  struct loaderd_field *ret);

#endif
