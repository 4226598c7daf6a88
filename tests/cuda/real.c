/* SPDX-License-Identifier: MIT */
/* gpu.h over the CUDA runtime. */
#include "gpu.h"

#include <check.h>
#include <stdlib.h>

#include <cuda_runtime_api.h>

extern const unsigned char test_fatbin[]; /* kernels.cu */
static cudaKernel_t slow, sum;

#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        cudaError_t error_ = (call);                                                                                   \
        ck_assert_msg(error_ == cudaSuccess, "%s: %s", #call, cudaGetErrorString(error_));                             \
    } while (0)

static void load(void) {
    static cudaLibrary_t library;
    if (slow)
        return;
    MUST(cudaLibraryLoadData(&library, test_fatbin, NULL, NULL, 0, NULL, NULL, 0));
    MUST(cudaLibraryGetKernel(&slow, library, "test_slow"));
    MUST(cudaLibraryGetKernel(&sum, library, "test_sum"));
}

bool gpu_is_fake(void) {
    return false;
}

int gpu_devices(void) {
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    cudaGetLastError();
    return error == cudaSuccess ? count : 0;
}

void gpu_use(int device) {
    MUST(cudaSetDevice(device));
}

struct CUstream_st *gpu_stream_new(void) {
    cudaStream_t stream;
    load();
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

void gpu_stream_free(struct CUstream_st *stream) {
    MUST(cudaStreamDestroy(stream));
}

void gpu_sync(struct CUstream_st *stream) {
    MUST(cudaStreamSynchronize(stream));
}

void *gpu_alloc(size_t bytes) {
    void *p;
    MUST(cudaMalloc(&p, bytes));
    return p;
}

void gpu_free(void *memory) {
    MUST(cudaFree(memory));
}

static int launch(cudaKernel_t kernel, unsigned blocks, unsigned threads, void **arguments,
                  struct CUstream_st *stream) {
    cudaLaunchKernel((const void *)kernel, (dim3){blocks, 1, 1}, (dim3){threads, 1, 1}, arguments, 0, stream);
    return (int)cudaGetLastError();
}

void gpu_slow(struct CUstream_st *stream, uint64_t microseconds) {
    uint64_t ns = microseconds * 1000;
    load();
    ck_assert_int_eq(launch(slow, 1, 1, (void *[]){&ns}, stream), 0);
}

void gpu_sum(struct CUstream_st *stream, const void *bytes, size_t count, uint64_t *ret_on_device) {
    uint64_t n = count;
    load();
    ck_assert_int_eq(launch(sum, 64, 256, (void *[]){&bytes, &n, &ret_on_device}, stream), 0);
}

void gpu_upload(void *device, const void *host, size_t bytes) {
    MUST(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
}

void gpu_download(void *host, const void *device, size_t bytes, struct CUstream_st *stream) {
    MUST(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream));
    MUST(cudaStreamSynchronize(stream));
}

void gpu_zero(void *device, size_t bytes) {
    MUST(cudaMemset(device, 0, bytes));
    MUST(cudaDeviceSynchronize());
}

void gpu_capture_begin(struct CUstream_st *stream) {
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
}

void gpu_capture_end(struct CUstream_st *stream) {
    cudaGraph_t graph = NULL;
    MUST(cudaStreamEndCapture(stream, &graph));
    MUST(cudaGraphDestroy(graph));
}

int gpu_trivial(void) {
    uint64_t ns = 0;
    load();
    int error = launch(slow, 1, 1, (void *[]){&ns}, NULL);
    cudaError_t late = cudaDeviceSynchronize();
    return error ? error : (int)late;
}

struct gpu_faults *gpu_faults(void) {
    ck_abort_msg("a real device does not fail on demand");
}

struct gpu_leaks gpu_leaks(void) {
    return (struct gpu_leaks){0};
}
