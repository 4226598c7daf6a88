/* SPDX-License-Identifier: MIT */
/*
 * What the tests of libloaderd-cuda do on a device: slow work, checksums, graphs. Two makings: fake.c (threads and host
 * memory, together with client/cuda/device.h) and real.c (the CUDA runtime). Failures abort the test.
 */
#ifndef TESTS_CUDA_GPU_H
#define TESTS_CUDA_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct CUstream_st;

bool gpu_is_fake(void);
int gpu_devices(void); /* 0: none, or no driver */
void gpu_use(int device);

struct CUstream_st *gpu_stream_new(void);
void gpu_stream_free(struct CUstream_st *stream);
void gpu_sync(struct CUstream_st *stream);
void *gpu_alloc(size_t bytes);
void gpu_free(void *memory);
/* Queues. */
void gpu_slow(struct CUstream_st *stream, uint64_t microseconds);
void gpu_sum(struct CUstream_st *stream, const void *bytes, size_t count,
             uint64_t *ret_on_device);                         /* += gpu_sum_of() */
void gpu_upload(void *device, const void *host, size_t bytes); /* waits */
void gpu_download(void *host, const void *device, size_t bytes,
                  struct CUstream_st *stream); /* behind the stream's work */
void gpu_zero(void *device, size_t bytes);
/* Capturing of a graph, in the strictest mode; the graph is thrown away. */
void gpu_capture_begin(struct CUstream_st *stream);
void gpu_capture_end(struct CUstream_st *stream);
/* Launches a trivial kernel: 0, or the error that surfaced there. */
int gpu_trivial(void);

/* The checksum: every byte and its place count. */
static inline uint64_t gpu_sum_of(const uint8_t *bytes, size_t count) {
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += (uint64_t)(bytes[i] + 1) * (2 * (uint64_t)i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    return sum;
}

/* fake.c only: what it shall refuse, and what is still there. Any thread, also while helpers run. */
struct gpu_faults {
    _Atomic int devices;        /* how many there are */
    _Atomic int registers_left; /* so many registrations work, then all are refused; negative: all work */
    _Atomic int copies_left;    /* the same for copies from the host */
    _Atomic uint64_t copy_us;   /* how long each copy takes at least */
};
struct gpu_faults *gpu_faults(void);
struct gpu_leaks {
    int allocations, streams, events, registrations;
};
struct gpu_leaks gpu_leaks(void);

#endif
