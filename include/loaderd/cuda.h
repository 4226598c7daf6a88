/* SPDX-License-Identifier: MIT */
/*
 * libloaderd-cuda: batches in the memory of a GPU, copied ahead of use from the ring that libloaderd maps.
 *
 *     struct loaderd *l;                                   // as ever: loaderd_open(&l, ...)
 *     struct loaderd_cuda *lc;
 *     if (loaderd_cuda_open(&lc, l, NULL, error, sizeof error) < 0)
 *         errx(1, "%s", error);
 *     struct loaderd_batch batch;
 *     while (loaderd_cuda_next(lc, stream, &batch) == 1) {
 *         train<<<..., stream>>>(batch.fields[0].data, batch.fields[1].data);   // device memory
 *         loaderd_cuda_release(lc, stream, &batch);        // at once: reuse waits for what was queued on `stream`
 *     }
 *     loaderd_cuda_close(lc);
 *     loaderd_close(l);
 *
 * The CUDA runtime is linked statically and needs no header here: a stream is a cudaStream_t (`struct CUstream_st *`);
 * NULL is the default stream of the loader's device. Without a driver or a device loaderd_cuda_open() says -ENODEV.
 *
 * Errors are negative errno values; loaderd_cuda_error() has the sentence. A failed CUDA call leaves no error behind for
 * the caller's next one. Apart from one line on stderr when a ring cannot be pinned (options.notify), nothing prints.
 *
 * Threads: loaderd_cuda_open() hands the loader to a helper thread; until loaderd_cuda_close() no call of libloaderd may
 * be made on it (but see LOADERD_CUDA_MANUAL). Calls on one loaderd_cuda must not overlap, except those marked "any
 * thread". Different ones are independent, on the same device or on several.
 * Graphs: while a stream is being captured next, release and copy on it say -EBUSY and change nothing; fill a fixed buffer
 * by loaderd_cuda_copy() before each launch of the graph.
 * Fork: in a child every call says -ECHILD; loaderd_cuda_close() there frees nothing of the parent's.
 */
#ifndef LOADERD_CUDA_H
#define LOADERD_CUDA_H

#include <loaderd/loaderd.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;  /* cudaStream_t, CUstream */
struct loaderd_cuda; /* a loader's way into one device */

/* Where the channels of a finished picture lie. */
enum loaderd_cuda_layout {
    LOADERD_CUDA_NHWC = 0, /* channels-last, as in the ring */
    LOADERD_CUDA_NCHW = 1
};

/* What u8 pictures become on the device, by the daemon's own formula and bit for bit what it would have delivered:
 * value / 255, with `normalize` (value / 255 - mean) / std a channel, in binary32, f16 and bf16 rounded to nearest even;
 * u8 keeps the values and changes the layout only. */
struct loaderd_cuda_finish_spec {
    uint32_t dtype;     /* LOADERD_F32, LOADERD_F16, LOADERD_BF16, LOADERD_U8; 0: no finishing */
    uint32_t layout;    /* enum loaderd_cuda_layout */
    uint32_t normalize; /* 1: use mean and std */
    uint32_t reserved;  /* 0 */
    float mean[3], std[3];
};

/* Bits of loaderd_cuda_options.flags. */
#define LOADERD_CUDA_REQUIRE_PINNED 0x1u /* fail where the ring cannot be registered, instead of copying more slowly */
#define LOADERD_CUDA_UNPINNED 0x2u       /* do not even try */

#define LOADERD_CUDA_MANUAL UINT32_MAX /* as depth: no helper thread, no device buffers: loaderd_cuda_copy() only */

/* How to open. Start from LOADERD_CUDA_OPTIONS_INIT; zero or NULL means the default. */
struct loaderd_cuda_options {
    size_t size;             /* sizeof(struct loaderd_cuda_options) of the caller's header */
    int32_t device;          /* -1: the calling thread's current one */
    uint32_t depth;          /* device buffers, each of a batch; 0: 3; at least 2; or LOADERD_CUDA_MANUAL */
    uint32_t flags;          /* LOADERD_CUDA_* */
    int32_t next_timeout_ms; /* longest wait of loaderd_cuda_next, 0: 300 s, negative: without end */
    struct loaderd_cuda_finish_spec finish;      /* of one field, as a part of the copy */
    const char *finish_field;                    /* which one, NULL: the first u8 field of four dimensions */
    void (*notify)(void *arg, const char *line); /* a remark for people; NULL: a line on stderr */
    void *notify_arg;
};
#define LOADERD_CUDA_OPTIONS_INIT                                                                                      \
    { sizeof(struct loaderd_cuda_options), -1, 0, 0, 0, {0, 0, 0, 0, {0, 0, 0}, {0, 0, 0}}, NULL, NULL, NULL }

/*
 * Takes over an open loader: registers its ring, makes the device buffers and begins to fetch. The caller keeps the
 * loader, but may only close it after loaderd_cuda_close(). Batches fetched ahead count nowhere: see loaderd_cuda_state().
 * With LOADERD_SYNTHETIC=1 in the environment the first batch is copied for ever: the trainer's own ceiling.
 * Returns 0 or a negative errno, *ret untouched and a sentence in `error`: -ENODEV no driver, no such device, or a driver
 * older than this library; -ENOMEM device memory; -EPERM not pinned although required; -EINVAL; -EBUSY the loader is
 * already on a device or pinned. Any thread, with different loaders.
 */
int loaderd_cuda_open(struct loaderd_cuda **ret, struct loaderd *loader, const struct loaderd_cuda_options *options,
                      char *error, size_t error_size);

/* Ends the helper, waits for the copies in flight, frees the device buffers (also those still held) and gives the ring's
 * registration back. The loader is the caller's again; it stands behind what was fetched ahead. NULL is allowed. */
void loaderd_cuda_close(struct loaderd_cuda *lc);

/*
 * The next batch, in device memory: 1 and *batch as loaderd_next() fills it, but fields[].data and slot are addresses on
 * the device (row and fields themselves are on the host); work queued on `stream` from now on sees the whole batch. The
 * call itself waits only while no copy has been started. 0: end of an epoch. Otherwise what loaderd_next() may say, and
 * -EBUSY while the stream is being captured, or where all buffers are held.
 */
int loaderd_cuda_next(struct loaderd_cuda *lc, struct CUstream_st *stream, struct loaderd_batch *batch);

/* Gives a batch back. Its buffer is filled anew only after the work that `stream` has been given so far. Counts in
 * loaderd_cuda_state(). In any order. 0, -EINVAL for a batch that is not held, -EBUSY during a capture. */
int loaderd_cuda_release(struct loaderd_cuda *lc, struct CUstream_st *stream, const struct loaderd_batch *batch);

/*
 * Queues a copy of the first `bytes` bytes of a batch's slot to `destination` (device memory) on `stream`: of a batch of
 * loaderd_cuda_next(), or, with LOADERD_CUDA_MANUAL, of one of loaderd_next(). The batch is still to be released, by
 * loaderd_cuda_release(), at once if wanted: for a host batch it gives the slot back when the copy is done (looked at by
 * the next call on lc). 0, -EINVAL, -EBUSY during a capture.
 */
int loaderd_cuda_copy(struct loaderd_cuda *lc, struct CUstream_st *stream, const struct loaderd_batch *batch,
                      void *destination, uint64_t bytes);

/*
 * Queues the finishing of u8 pictures on `stream`: `source` has dims {rows, height, width, channels 1 or 3} and its data
 * on the device; `destination` gets rows x channels x height x width elements. flips: NULL, or one byte a row on the
 * device, bit 0: mirror left-right, bit 1: top-bottom. May be captured. 0, -EINVAL, -ENOTSUP built without the kernels.
 */
int loaderd_cuda_finish(struct loaderd_cuda *lc, struct CUstream_st *stream,
                        const struct loaderd_cuda_finish_spec *spec, const struct loaderd_field *source,
                        const uint8_t *flips, void *destination);

/* What a checkpoint should hold: the position after the contiguous prefix of batches given to loaderd_cuda_release(). */
int loaderd_cuda_state(struct loaderd_cuda *lc, struct loaderd_state *ret);

/* loaderd_supply(), loaderd_supply_end() and loaderd_sample_path() of the loader that was handed over. Where an explicit
 * order lacks ids loaderd_cuda_next() says -EDEADLK behind the batches that it has; the next ids mend that. */
int64_t loaderd_cuda_supply(struct loaderd_cuda *lc, const uint64_t *ids, size_t count);
int loaderd_cuda_supply_end(struct loaderd_cuda *lc);
int loaderd_cuda_sample_path(struct loaderd_cuda *lc, uint64_t sample, char *buffer, size_t size);

/* What was set up. */
struct loaderd_cuda_info {
    int32_t device;
    int32_t node;    /* NUMA node of the device, -1: not known */
    uint32_t depth;  /* device buffers */
    uint32_t pinned; /* 1: the ring is registered, copies are DMA from it */
    uint64_t pinned_bytes;
    uint64_t pin_ns;       /* time that registering took, over all rings */
    uint64_t device_bytes; /* device memory taken */
    uint32_t nfields;
    uint32_t finished;                  /* index of the finished field, or nfields */
    const struct loaderd_field *fields; /* shapes as loaderd_cuda_next() gives them; data is NULL */
    const char *note;                   /* why the ring is not pinned; "" */
};
int loaderd_cuda_info(const struct loaderd_cuda *lc, struct loaderd_cuda_info *ret);

/* How it went so far; times in nanoseconds. The helper's three times say what binds: with none of them the copies run
 * one behind the other. */
struct loaderd_cuda_statistics {
    uint64_t batches;        /* given to the caller */
    uint64_t copies, bytes;  /* from the ring into device buffers */
    uint64_t waits, wait_ns; /* calls of loaderd_cuda_next that found no copy started; time spent in them */
    uint64_t stream_waits,
        stream_wait_ns;  /* how long the caller's stream stood still for a copy, where it was measured */
    uint64_t data_ns;    /* helper: nothing to copy, loaderd had no batch ready */
    uint64_t copy_ns;    /* helper: the copies themselves */
    uint64_t trainer_ns; /* helper: batches lay ready, or all buffers were in use */
    uint64_t rings;      /* registered so far: more than 1 after a reconnect */
};
int loaderd_cuda_statistics(struct loaderd_cuda *lc, struct loaderd_cuda_statistics *ret);

/* The sentence of the last failed call on this loaderd_cuda; "" if there was none. Valid until the next call. */
const char *loaderd_cuda_error(const struct loaderd_cuda *lc);

/*
 * For trainers that copy by themselves: registers the ring of a loader, and those that follow a reconnect, so that a plain
 * cudaMemcpyAsync() out of a batch is DMA. The loader stays the caller's in every way; loaderd_close() undoes it, too.
 * 0, or -ENODEV, -EPERM and a sentence: the loader works on as before.
 */
int loaderd_cuda_pin(struct loaderd *loader, int32_t device, char *error, size_t error_size);
int loaderd_cuda_unpin(struct loaderd *loader); /* 0, -ENOENT: it was not pinned */

/* NUMA node of a device, from its PCI address; -ENODATA where the machine does not say, -ENODEV. Any thread. */
int loaderd_cuda_node(int32_t device);

/* The bus: bytes a second of copies of `bytes` bytes from pinned memory to the device, over about a third of a second.
 * The ceiling of every loader. 0 or a negative errno. Any thread. */
int loaderd_cuda_bandwidth(int32_t device, uint64_t bytes, double *ret, char *error, size_t error_size);

#ifdef __cplusplus
}
#endif
#endif
