/* SPDX-License-Identifier: MIT */
/*
 * A trainer on a GPU in a page or two: softmax regression on 64x64 pictures that loaderd crops, flips and batches, and
 * libloaderd-cuda copies into device memory ahead of use.
 *
 *     cuda_trainer FOLDER [EPOCHS]        a folder with one sub-folder a class
 *
 * Prints a line an epoch, samples a second, and how long the trainer waited for data.
 */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include <cuda_runtime.h>
#include <loaderd/cuda.h>

constexpr int IMAGE = 64, CELL = 4, GRID = IMAGE / CELL, FEATURES = GRID * GRID * 3, CLASSES = 256, BATCH = 64;
constexpr float RATE = 0.05f;

#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        cudaError_t error_ = (call);                                                                                   \
        if (error_ != cudaSuccess) {                                                                                   \
            fprintf(stderr, "cuda_trainer: %s: %s\n", #call, cudaGetErrorString(error_));                              \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

struct score {
    float loss;
    unsigned correct, samples;
};

/* A picture becomes the means of its cells, around zero. One block a picture. */
__global__ void shrink(const uint8_t *image, float *feature) {
    image += (size_t)blockIdx.x * IMAGE * IMAGE * 3;
    feature += (size_t)blockIdx.x * FEATURES;
    for (int f = threadIdx.x; f < FEATURES; f += blockDim.x) {
        int channel = f % 3, x = f / 3 % GRID * CELL, y = f / 3 / GRID * CELL, sum = 0;
        for (int i = 0; i < CELL * CELL; i++)
            sum += image[((y + i / CELL) * IMAGE + x + i % CELL) * 3 + channel];
        feature[f] = sum / (255.0f * CELL * CELL) - 0.5f;
    }
}

/* Probabilities minus truth, the loss and the hits. One block a picture, one thread a class. */
__global__ void forward(const float *feature, const int32_t *label, const float *weight, float *slope, score *score) {
    __shared__ float logit[CLASSES];
    __shared__ float top, sum;
    __shared__ int best;
    int k = threadIdx.x, truth = label[blockIdx.x];
    feature += (size_t)blockIdx.x * FEATURES;
    float mine = weight[FEATURES * CLASSES + k]; /* the bias */
    for (int f = 0; f < FEATURES; f++)
        mine += feature[f] * weight[f * CLASSES + k];
    logit[k] = mine;
    __syncthreads();
    if (k == 0) {
        best = 0;
        for (int i = 1; i < CLASSES; i++)
            best = logit[i] > logit[best] ? i : best;
        top = logit[best];
        sum = 0;
        for (int i = 0; i < CLASSES; i++)
            sum += expf(logit[i] - top);
        atomicAdd(&score->samples, 1u);
        atomicAdd(&score->correct, (unsigned)(best == truth));
        if (truth >= 0 && truth < CLASSES)
            atomicAdd(&score->loss, logf(sum) + top - logit[truth]);
    }
    __syncthreads();
    slope[(size_t)blockIdx.x * CLASSES + k] = expf(mine - top) / sum - (k == truth);
}

/* weight -= rate * gradient. One block a feature (the last is the bias), one thread a class. */
__global__ void learn(const float *feature, const float *slope, int rows, float *weight) {
    int f = blockIdx.x, k = threadIdx.x;
    float gradient = 0;
    for (int row = 0; row < rows; row++)
        gradient += (f < FEATURES ? feature[(size_t)row * FEATURES + f] : 1.0f) * slope[(size_t)row * CLASSES + k];
    weight[f * CLASSES + k] -= RATE * gradient / rows;
}

static double seconds(void) {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
    const char *keys[] = {"image=64", "augment=random-resized-crop,flip", "shuffle=full", "batch=64", "last=drop", NULL};
    int epochs = argc > 2 ? atoi(argv[2]) : 5;
    struct loaderd_options options = LOADERD_OPTIONS_INIT;
    options.keys = keys;
    options.epochs = (uint64_t)epochs;

    struct loaderd *loader;
    struct loaderd_cuda *lc;
    char error[512];
    if (loaderd_open(&loader, argc > 1 ? argv[1] : "./train", &options, error, sizeof error) < 0) {
        fprintf(stderr, "cuda_trainer: %s\n", error);
        return 1;
    }
    if (loaderd_cuda_open(&lc, loader, NULL, error, sizeof error) < 0) {
        fprintf(stderr, "cuda_trainer: %s\n", error);
        loaderd_close(loader);
        return 1;
    }

    float *feature, *slope, *weight;
    score *score, shown;
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaMalloc(&feature, sizeof(float) * BATCH * FEATURES));
    CHECK(cudaMalloc(&slope, sizeof(float) * BATCH * CLASSES));
    CHECK(cudaMalloc(&weight, sizeof(float) * (FEATURES + 1) * CLASSES));
    CHECK(cudaMalloc(&score, sizeof *score));
    CHECK(cudaMemset(weight, 0, sizeof(float) * (FEATURES + 1) * CLASSES));
    CHECK(cudaMemset(score, 0, sizeof *score));

    struct loaderd_batch batch;
    uint64_t samples = 0;
    int got = 0;
    double start = seconds();
    for (int epoch = 0; epoch < epochs && got >= 0; epoch++) {
        while ((got = loaderd_cuda_next(lc, stream, &batch)) == 1) {
            const uint8_t *image = (const uint8_t *)batch.fields[0].data; /* on the device */
            const int32_t *label = (const int32_t *)batch.fields[1].data;
            shrink<<<batch.rows, 256, 0, stream>>>(image, feature);
            forward<<<batch.rows, CLASSES, 0, stream>>>(feature, label, weight, slope, score);
            learn<<<FEATURES + 1, CLASSES, 0, stream>>>(feature, slope, (int)batch.rows, weight);
            loaderd_cuda_release(lc, stream, &batch); /* at once: its reuse waits for what was queued */
            samples += batch.rows;
        }
        CHECK(cudaMemcpyAsync(&shown, score, sizeof shown, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaMemsetAsync(score, 0, sizeof *score, stream));
        CHECK(cudaStreamSynchronize(stream));
        CHECK(cudaGetLastError());
        if (shown.samples)
            printf("epoch %d: loss %.3f, %.1f %% right\n", epoch, shown.loss / shown.samples,
                   100.0 * shown.correct / shown.samples);
    }
    double elapsed = seconds() - start;
    if (got < 0)
        fprintf(stderr, "cuda_trainer: %s\n", loaderd_cuda_error(lc));
    struct loaderd_cuda_statistics s;
    loaderd_cuda_statistics(lc, &s);
    printf("%.0f samples/s; the GPU waited %.1f %% of the time for a copy, the copies %.1f %% for data\n",
           (double)samples / elapsed, 100e-9 * (double)s.stream_wait_ns / elapsed, 100e-9 * (double)s.data_ns / elapsed);
    loaderd_cuda_close(lc);
    loaderd_close(loader);
    return got < 0;
}
