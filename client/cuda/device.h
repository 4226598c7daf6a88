/* SPDX-License-Identifier: MIT */
/*
 * What libloaderd-cuda asks of a device: streams, events, memory, copies, registration, the finishing kernels. The only
 * user of the CUDA runtime is device.c; tests/cuda/fake.c has the same functions over threads and host memory.
 *
 * Every function that returns an int returns 0 (or what is said) or a negative errno; device_error() then has the
 * sentence, for the calling thread. No failed call leaves an error behind in the CUDA runtime. Any thread; all but
 * device_count() and device_enter() work on the calling thread's current device.
 */
#ifndef CLIENT_CUDA_DEVICE_H
#define CLIENT_CUDA_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "finish.h"

struct CUstream_st;
struct CUevent_st;

const char *device_error(void);

/* Number of devices; -ENODEV without a driver, with one that is too old, or without a device. */
int device_count(void);
/* Makes `device` (-1: the current one) current and wakes it up: its number. *ret_previous is for device_leave(). */
int device_enter(int device, int *ret_previous);
/* The same for a device that has been entered before: cheap. */
int device_switch(int device, int *ret_previous);
void device_leave(int previous);                               /* negative: nothing to do */
int device_pci_address(int device, char *buffer, size_t size); /* "0000:17:00.0", lower case */
void device_uuid(int device, uint8_t ret[16]);                 /* all zero where it is not known */

int device_alloc(void **ret, size_t bytes);
void device_free(void *memory);
int device_alloc_host(void **ret, size_t bytes); /* pinned */
void device_free_host(void *memory);

/* Read-only host memory that device copies may be made from by DMA; whole pages. */
int device_register(const void *base, size_t bytes);
int device_unregister(const void *base);

int device_stream_new(struct CUstream_st **ret); /* never waits for the default stream */
void device_stream_free(struct CUstream_st *stream);
int device_stream_sync(struct CUstream_st *stream);
/* 1: being captured (or the default stream, while another one is), 0: not. */
int device_stream_captured(struct CUstream_st *stream);
/* The calling thread may use every call even while other threads capture. *mode: for restore. */
void device_relax_capture(int *mode);
void device_restore_capture(int mode);

int device_event_new(struct CUevent_st **ret, bool timed); /* waiting for it sleeps */
void device_event_free(struct CUevent_st *event);
int device_event_record(struct CUevent_st *event, struct CUstream_st *stream);
int device_event_done(struct CUevent_st *event); /* 1: yes, 0: not yet */
int device_event_sync(struct CUevent_st *event);
int device_event_elapsed_ns(struct CUevent_st *from, struct CUevent_st *to, uint64_t *ret);
int device_stream_wait(struct CUstream_st *stream, struct CUevent_st *event);

int device_copy_in(void *destination, const void *host, size_t bytes, struct CUstream_st *stream);
int device_copy_within(void *destination, const void *source, size_t bytes, struct CUstream_st *stream);
int device_zero(void *destination, size_t bytes, struct CUstream_st *stream);
/* finish.h; `table` is read during the call. -ENOTSUP where the kernels were not built. */
int device_finish(const struct finish_job *job, const struct finish_table *table, struct CUstream_st *stream);

int device_busy(uint64_t nanoseconds, struct CUstream_st *stream); /* a kernel of that length */

/* Ranges that a profiler shows. */
void device_range_push(const char *name);
void device_range_pop(void);

#endif
