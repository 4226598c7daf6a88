/* SPDX-License-Identifier: MIT */
/*
 * The finishing kernels: u8 NHWC to f32, 16-bit floats or u8, NHWC or NCHW, mirrored where a row's flag says so. One pass;
 * every value is looked up in a table that the host made (finish.h) and each block keeps in shared memory.
 *
 * Wide kernels (three channels, width a multiple of four) move four pixels (NCHW) or four elements (NHWC) a thread, so
 * that every load and store of a warp is one run of whole sectors. The others take one element a thread and any shape.
 * Launched by device.c under the names at the end. No kernel writes beyond rows x height x width x channels elements.
 */
#include "finish.h"

/* Arguments lie in the constant bank, which serves one address at a time: a lane-wise copy goes by a generic address. The
 * compiler must not see where it points to. */
static __device__ void copy_argument(uint32_t *to, const void *argument, uint32_t words) {
    const uint32_t *from = (const uint32_t *)argument;
    asm volatile("" : "+l"(from));
    for (uint32_t i = threadIdx.x; i < words; i += blockDim.x)
        to[i] = from[i];
}

template <class E> struct values;
template <> struct values<float> {
    typedef float4 four;
    float at[FINISH_CHANNELS][256];
    __device__ void load(const finish_table &table) { copy_argument((uint32_t *)at, &table, sizeof at / 4); }
    __device__ float operator()(uint32_t channel, uint32_t value) const { return at[channel][value]; }
};
template <> struct values<uint16_t> {
    typedef ushort4 four;
    __align__(4) uint16_t at[FINISH_CHANNELS][256];
    __device__ void load(const finish_table &table) { copy_argument((uint32_t *)at, &table, sizeof at / 4); }
    __device__ uint16_t operator()(uint32_t channel, uint32_t value) const { return at[channel][value]; }
};
template <> struct values<uint8_t> {
    typedef uchar4 four;
    __device__ void load(const finish_table &) {}
    __device__ uint8_t operator()(uint32_t, uint32_t value) const { return (uint8_t)value; }
};

static __device__ uint32_t byte_of(uint32_t word, uint32_t n) {
    return (word >> (8 * n)) & 0xff;
}

/* Channels-last, four elements a thread; an image has a multiple of three of them, so the channel follows the index. */
template <class E> static __device__ void wide_nhwc(const finish_job &job, const values<E> &value) {
    const uint32_t *source = (const uint32_t *)job.source;
    typename values<E>::four *destination = (typename values<E>::four *)job.destination;
    uint32_t units = (uint32_t)job.units, step = gridDim.x * blockDim.x;
    for (uint32_t u = blockIdx.x * blockDim.x + threadIdx.x; u < units; u += step) {
        uint32_t word = source[u], c0 = u % 3, c1 = c0 == 2 ? 0 : c0 + 1, c2 = c1 == 2 ? 0 : c1 + 1;
        typename values<E>::four out;
        out.x = value(c0, byte_of(word, 0));
        out.y = value(c1, byte_of(word, 1));
        out.z = value(c2, byte_of(word, 2));
        out.w = value(c0, byte_of(word, 3));
        destination[u] = out;
    }
}

/* NCHW, four pixels of one line a thread: twelve bytes in, four elements into each of three planes. */
template <class E> static __device__ void wide_nchw(const finish_job &job, const values<E> &value) {
    typedef typename values<E>::four four;
    const uint32_t *source = (const uint32_t *)job.source;
    four *destination = (four *)job.destination;
    uint32_t units = (uint32_t)job.units, step = gridDim.x * blockDim.x;
    uint32_t line = job.width / 4, plane = line * job.height; /* in units */
    for (uint32_t u = blockIdx.x * blockDim.x + threadIdx.x; u < units; u += step) {
        uint32_t row = u / plane, at = u % plane, from = at;
        uint32_t flip = job.flips ? job.flips[row] : 0;
        if (flip & 3) {
            uint32_t y = at / line, x = at % line;
            from = (flip & 2 ? job.height - 1 - y : y) * line + (flip & 1 ? line - 1 - x : x);
        }
        const uint32_t *in = source + ((uint64_t)row * plane + from) * 3;
        uint32_t a = in[0], b = in[1], c = in[2]; /* RGBR GBRG BRGB */
        uint32_t p[3][4] = {{byte_of(a, 0), byte_of(a, 3), byte_of(b, 2), byte_of(c, 1)},
                            {byte_of(a, 1), byte_of(b, 0), byte_of(b, 3), byte_of(c, 2)},
                            {byte_of(a, 2), byte_of(b, 1), byte_of(c, 0), byte_of(c, 3)}};
#pragma unroll
        for (uint32_t channel = 0; channel < 3; channel++) {
            four out;
            out.x = value(channel, flip & 1 ? p[channel][3] : p[channel][0]);
            out.y = value(channel, flip & 1 ? p[channel][2] : p[channel][1]);
            out.z = value(channel, flip & 1 ? p[channel][1] : p[channel][2]);
            out.w = value(channel, flip & 1 ? p[channel][0] : p[channel][3]);
            destination[((uint64_t)row * 3 + channel) * plane + at] = out;
        }
    }
}

/* Any shape, one element a thread, in the order of the destination. */
template <class E> static __device__ void narrow(const finish_job &job, const values<E> &value) {
    E *destination = (E *)job.destination;
    const uint32_t width = job.width, height = job.height, channels = job.channels;
    const uint64_t image = (uint64_t)height * width * channels, step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t u = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; u < job.units; u += step) {
        uint64_t row = u / image, rest = u % image;
        uint32_t c, y, x;
        if (job.planar) {
            c = (uint32_t)(rest / ((uint64_t)height * width));
            rest %= (uint64_t)height * width;
            y = (uint32_t)(rest / width);
            x = (uint32_t)(rest % width);
        } else {
            c = (uint32_t)(rest % channels);
            rest /= channels;
            y = (uint32_t)(rest / width);
            x = (uint32_t)(rest % width);
        }
        uint32_t flip = job.flips ? job.flips[row] : 0;
        if (flip & 1)
            x = width - 1 - x;
        if (flip & 2)
            y = height - 1 - y;
        destination[u] = value(c, job.source[((row * height + y) * width + x) * channels + c]);
    }
}

#define KERNEL(name, E, body)                                                                                          \
    extern "C" __global__ void name(const __grid_constant__ finish_job job, const __grid_constant__ finish_table table) { \
        __shared__ values<E> value;                                                                                    \
        value.load(table);                                                                                             \
        __syncthreads();                                                                                               \
        body<E>(job, value);                                                                                           \
    }
KERNEL(finish_f32_nhwc, float, wide_nhwc)
KERNEL(finish_f32_nchw, float, wide_nchw)
KERNEL(finish_f32, float, narrow)
KERNEL(finish_u16_nhwc, uint16_t, wide_nhwc)
KERNEL(finish_u16_nchw, uint16_t, wide_nchw)
KERNEL(finish_u16, uint16_t, narrow)
KERNEL(finish_u8_nhwc, uint8_t, wide_nhwc)
KERNEL(finish_u8_nchw, uint8_t, wide_nchw)
KERNEL(finish_u8, uint8_t, narrow)

/* Keeps one thread of the device busy: a trainer's step, for `loaderctl bench`. */
extern "C" __global__ void finish_busy(uint64_t nanoseconds) {
    uint64_t start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - start < nanoseconds);
}
