/* SPDX-License-Identifier: MIT */
/*
 * device.h over the CUDA runtime: the one file that includes its headers. Every failed call is turned into a negative
 * errno and a sentence, and taken out of the runtime's per-thread error, so that it does not surface in a launch of the
 * caller's. Any thread.
 */
#include "device.h"

#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <cuda_runtime_api.h>
#ifdef HAVE_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

#ifdef HAVE_FINISH_KERNELS
extern const unsigned char finish_fatbin[]; /* finish.cu, made by nvcc */
#endif

#define THREADS 256 /* of a block of the finishing kernels */
#define BLOCKS_PER_PROCESSOR 8

static _Thread_local char message[320];

const char *device_error(void) {
    return message;
}

static int errno_of(cudaError_t error) {
    switch (error) {
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInitializationError:
    case cudaErrorDevicesUnavailable:
    case cudaErrorSystemNotReady:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorNoKernelImageForDevice:
        return -ENODEV;
    case cudaErrorMemoryAllocation:
        return -ENOMEM;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidResourceHandle:
        return -EINVAL;
    case cudaErrorNotSupported:
        return -ENOTSUP;
    case cudaErrorHostMemoryAlreadyRegistered:
        return -EEXIST;
    case cudaErrorHostMemoryNotRegistered:
        return -ENOENT;
    case cudaErrorNotPermitted:
        return -EPERM;
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureImplicit:
        return -EBUSY;
    default:
        return -EIO;
    }
}

/* 0, or the code of a failed call with its sentence; the runtime forgets the error. */
static int check(cudaError_t error, const char *call) {
    if (error == cudaSuccess)
        return 0;
    cudaGetLastError();
    snprintf(message, sizeof message, "%s: %s (%s)", call, cudaGetErrorString(error), cudaGetErrorName(error));
    return errno_of(error);
}

/* ---- devices ----------------------------------------------------------------------------------------------------------- */

static int refuse_driver(cudaError_t error) {
    int driver = 0;
    cudaGetLastError();
    if (cudaDriverGetVersion(&driver) != cudaSuccess) {
        cudaGetLastError();
        driver = 0;
    }
    if (driver == 0)
        snprintf(message, sizeof message,
                 "no CUDA driver here (libcuda.so.1 cannot be used): install NVIDIA's driver, or "
                 "give the container the GPU");
    else if (driver / 1000 < CUDART_VERSION / 1000)
        snprintf(message, sizeof message,
                 "the driver is for CUDA %d.%d, this library needs %d.%d: update NVIDIA's driver", driver / 1000,
                 driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    else
        snprintf(message, sizeof message, "no CUDA device here: %s (%s)", cudaGetErrorString(error),
                 cudaGetErrorName(error));
    return -ENODEV;
}

int device_count(void) {
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && count > 0)
        return count;
    return refuse_driver(error == cudaSuccess ? cudaErrorNoDevice : error);
}

int device_switch(int device, int *ret_previous) {
    int current = -1;
    *ret_previous = -1;
    int r = check(cudaGetDevice(&current), "cudaGetDevice");
    if (r < 0 || current == device)
        return r;
    r = check(cudaSetDevice(device), "cudaSetDevice");
    if (r == 0)
        *ret_previous = current;
    return r;
}

int device_enter(int device, int *ret_previous) {
    int count = device_count(), r = 0;
    *ret_previous = -1;
    if (count < 0)
        return count;
    if (device < 0)
        r = check(cudaGetDevice(&device), "cudaGetDevice");
    if (r < 0)
        return r;
    if (device >= count) {
        snprintf(message, sizeof message, "no CUDA device %d: there %s %d (CUDA_VISIBLE_DEVICES counts)", device,
                 count == 1 ? "is" : "are", count);
        return -ENODEV;
    }
    r = device_switch(device, ret_previous);
    if (r == 0)
        r = check(cudaFree(NULL), "making the device's context"); /* the first call that needs one */
    return r < 0 ? r : device;
}

void device_leave(int previous) {
    if (previous >= 0)
        check(cudaSetDevice(previous), "cudaSetDevice");
}

int device_pci_address(int device, char *buffer, size_t size) {
    int r = check(cudaDeviceGetPCIBusId(buffer, (int)size, device), "cudaDeviceGetPCIBusId");
    for (char *c = buffer; r == 0 && *c; c++)
        *c = (char)tolower((unsigned char)*c);
    return r;
}

void device_uuid(int device, uint8_t ret[16]) {
    struct cudaDeviceProp properties;
    memset(ret, 0, 16);
    if (cudaGetDeviceProperties(&properties, device) == cudaSuccess)
        memcpy(ret, properties.uuid.bytes, 16);
    else
        cudaGetLastError(); /* advice only: nobody else shall find it */
}

/* ---- memory ------------------------------------------------------------------------------------------------------------ */

int device_alloc(void **ret, size_t bytes) {
    void *memory = NULL;
    int r = check(cudaMalloc(&memory, bytes), "cudaMalloc");
    if (r == 0)
        *ret = memory;
    return r;
}

void device_free(void *memory) {
    if (memory)
        check(cudaFree(memory), "cudaFree");
}

int device_alloc_host(void **ret, size_t bytes) {
    void *memory = NULL;
    int r = check(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable), "cudaHostAlloc");
    if (r == 0)
        *ret = memory;
    return r;
}

void device_free_host(void *memory) {
    if (memory)
        check(cudaFreeHost(memory), "cudaFreeHost");
}

/* Without the read-only flag a mapping without PROT_WRITE is refused. */
int device_register(const void *base, size_t bytes) {
    return check(cudaHostRegister((void *)(uintptr_t)base, bytes, cudaHostRegisterReadOnly | cudaHostRegisterPortable),
                 "cudaHostRegister");
}

int device_unregister(const void *base) {
    return check(cudaHostUnregister((void *)(uintptr_t)base), "cudaHostUnregister");
}

/* ---- streams ----------------------------------------------------------------------------------------------------------- */

int device_stream_new(struct CUstream_st **ret) {
    cudaStream_t stream = NULL;
    int r = check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    if (r == 0)
        *ret = stream;
    return r;
}

void device_stream_free(struct CUstream_st *stream) {
    if (stream)
        check(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

int device_stream_sync(struct CUstream_st *stream) {
    return check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

int device_stream_captured(struct CUstream_st *stream) {
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaError_t error = cudaStreamIsCapturing(stream, &status);
    if (error == cudaErrorStreamCaptureImplicit) {
        cudaGetLastError();
        return 1;
    }
    int r = check(error, "cudaStreamIsCapturing");
    return r < 0 ? r : status != cudaStreamCaptureStatusNone;
}

void device_relax_capture(int *mode) {
    enum cudaStreamCaptureMode relaxed = cudaStreamCaptureModeRelaxed;
    *mode = check(cudaThreadExchangeStreamCaptureMode(&relaxed), "cudaThreadExchangeStreamCaptureMode") < 0
                ? -1
                : (int)relaxed;
}

void device_restore_capture(int mode) {
    enum cudaStreamCaptureMode before = (enum cudaStreamCaptureMode)mode;
    if (mode >= 0)
        check(cudaThreadExchangeStreamCaptureMode(&before), "cudaThreadExchangeStreamCaptureMode");
}

/* ---- events ------------------------------------------------------------------------------------------------------------ */

int device_event_new(struct CUevent_st **ret, bool timed) {
    cudaEvent_t event = NULL;
    unsigned flags = cudaEventBlockingSync | (timed ? 0u : (unsigned)cudaEventDisableTiming);
    int r = check(cudaEventCreateWithFlags(&event, flags), "cudaEventCreate");
    if (r == 0)
        *ret = event;
    return r;
}

void device_event_free(struct CUevent_st *event) {
    if (event)
        check(cudaEventDestroy(event), "cudaEventDestroy");
}

int device_event_record(struct CUevent_st *event, struct CUstream_st *stream) {
    return check(cudaEventRecord(event, stream), "cudaEventRecord");
}

int device_event_done(struct CUevent_st *event) {
    cudaError_t error = cudaEventQuery(event);
    if (error == cudaErrorNotReady) {
        cudaGetLastError();
        return 0;
    }
    int r = check(error, "cudaEventQuery");
    return r < 0 ? r : 1;
}

int device_event_sync(struct CUevent_st *event) {
    return check(cudaEventSynchronize(event), "cudaEventSynchronize");
}

int device_event_elapsed_ns(struct CUevent_st *from, struct CUevent_st *to, uint64_t *ret) {
    float ms = 0;
    int r = check(cudaEventElapsedTime(&ms, from, to), "cudaEventElapsedTime");
    if (r == 0)
        *ret = ms > 0 ? (uint64_t)((double)ms * 1e6) : 0;
    return r;
}

int device_stream_wait(struct CUstream_st *stream, struct CUevent_st *event) {
    return check(cudaStreamWaitEvent(stream, event, 0), "cudaStreamWaitEvent");
}

/* ---- work -------------------------------------------------------------------------------------------------------------- */

int device_copy_in(void *destination, const void *host, size_t bytes, struct CUstream_st *stream) {
    return check(cudaMemcpyAsync(destination, host, bytes, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
}

int device_copy_within(void *destination, const void *source, size_t bytes, struct CUstream_st *stream) {
    return check(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync");
}

int device_zero(void *destination, size_t bytes, struct CUstream_st *stream) {
    return check(cudaMemsetAsync(destination, 0, bytes, stream), "cudaMemsetAsync");
}

#ifdef HAVE_FINISH_KERNELS
/* Kernels by bytes of an element (1, 2, 4) and shape (nhwc, nchw, any). */
static struct {
    pthread_mutex_t lock;
    bool tried;
    int code;
    char why[sizeof message];
    cudaKernel_t kernel[3][3], busy;
} module = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int load_module(void) {
    static const char *const names[3][3] = {{"finish_u8_nhwc", "finish_u8_nchw", "finish_u8"},
                                            {"finish_u16_nhwc", "finish_u16_nchw", "finish_u16"},
                                            {"finish_f32_nhwc", "finish_f32_nchw", "finish_f32"}};
    cudaLibrary_t library; /* as long as the process: its kernels may be in the caller's graphs */
    int r = check(cudaLibraryLoadData(&library, finish_fatbin, NULL, NULL, 0, NULL, NULL, 0), "loading the kernels");
    for (int i = 0; r == 0 && i < 9; i++)
        r = check(cudaLibraryGetKernel(&module.kernel[i / 3][i % 3], library, names[i / 3][i % 3]),
                  names[i / 3][i % 3]);
    if (r == 0)
        r = check(cudaLibraryGetKernel(&module.busy, library, "finish_busy"), "finish_busy");
    return r;
}

/* Once a process, whoever comes first. */
static int need_module(void) {
    pthread_mutex_lock(&module.lock);
    if (!module.tried) {
        int mode;
        device_relax_capture(&mode);
        module.code = load_module();
        device_restore_capture(mode);
        module.tried = true;
        memcpy(module.why, message, sizeof module.why);
    }
    if (module.code < 0)
        memcpy(message, module.why, sizeof message);
    int r = module.code;
    pthread_mutex_unlock(&module.lock);
    return r;
}

static int processors(uint64_t *ret) {
    int device = 0, count = 0;
    int r = check(cudaGetDevice(&device), "cudaGetDevice");
    if (r == 0)
        r = check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
    *ret = count > 0 ? (uint64_t)count : 1;
    return r;
}

int device_finish(const struct finish_job *job, const struct finish_table *table, struct CUstream_st *stream) {
    uint64_t most = 1;
    int r = need_module();
    if (r == 0)
        r = processors(&most);
    if (r < 0 || job->units == 0)
        return r;
    uint64_t blocks = (job->units + THREADS - 1) / THREADS;
    most *= BLOCKS_PER_PROCESSOR;
    const cudaKernel_t kernel = module.kernel[job->element == 4 ? 2 : job->element - 1][!job->wide ? 2 : job->planar];
    void *arguments[] = {(void *)(uintptr_t)job, (void *)(uintptr_t)table};
    const dim3 grid = {(unsigned)(blocks < most ? blocks : most), 1, 1}, block = {THREADS, 1, 1};
    return check(cudaLaunchKernel((const void *)kernel, grid, block, arguments, 0, stream), "cudaLaunchKernel");
}

int device_busy(uint64_t nanoseconds, struct CUstream_st *stream) {
    int r = need_module();
    void *arguments[] = {&nanoseconds};
    const dim3 one = {1, 1, 1};
    return r < 0
               ? r
               : check(cudaLaunchKernel((const void *)module.busy, one, one, arguments, 0, stream), "cudaLaunchKernel");
}
#else
int device_busy(uint64_t nanoseconds, struct CUstream_st *stream) {
    (void)nanoseconds, (void)stream;
    snprintf(message, sizeof message, "this libloaderd-cuda was built without nvcc, and so without kernels");
    return -ENOTSUP;
}

int device_finish(const struct finish_job *job, const struct finish_table *table, struct CUstream_st *stream) {
    (void)job, (void)table, (void)stream;
    snprintf(message, sizeof message,
             "this libloaderd-cuda was built without nvcc, and so without the finishing kernels");
    return -ENOTSUP;
}
#endif

#ifdef HAVE_NVTX
void device_range_push(const char *name) {
    nvtxRangePushA(name);
}

void device_range_pop(void) {
    nvtxRangePop();
}
#else
void device_range_push(const char *name) {
    (void)name;
}

void device_range_pop(void) {
}
#endif
