/* SPDX-License-Identifier: MIT */
/* Kernels of the device tests: slow work, and the checksum of gpu.h. */
#include <stdint.h>

extern "C" __global__ void test_slow(uint64_t nanoseconds) {
    uint64_t start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - start < nanoseconds);
}

extern "C" __global__ void test_sum(const uint8_t *bytes, uint64_t count, unsigned long long *sum) {
    unsigned long long mine = 0;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (uint64_t)gridDim.x * blockDim.x)
        mine += (uint64_t)(bytes[i] + 1) * (2 * i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    atomicAdd(sum, mine);
}
