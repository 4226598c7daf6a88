/* SPDX-License-Identifier: MIT */
/*
 * What the ring alone can do: claims (claim + complete, the last one publishes) a second of N threads that write nothing,
 * with one trainer that pops and releases as fast as it can, over one ring. Usage: claims [THREADS [SECONDS [BATCH]]]
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "../../client/consumer.h"
#include "base/util.h"
#include "ring.h"
#include "topology.h"

struct producer {
    _Alignas(64) uint64_t claims;
    struct ring *ring;
    pthread_t thread;
    uint32_t cpu;
};

static _Atomic bool over;

static void *produce(void *arg) {
    struct producer *p = arg;
    topology_pin(p->cpu);
    while (!atomic_load_explicit(&over, memory_order_relaxed)) {
        uint64_t sequence;
        uint32_t unit;
        uint32_t count = ring_claim(p->ring, 16, &sequence, &unit);
        p->claims += count;
        if (count > 0 && ring_complete(p->ring, sequence, count))
            ring_publish(p->ring, sequence);
    }
    return NULL;
}

int main(int argc, char **argv) {
    uint32_t threads = argc > 1 ? (uint32_t)atoi(argv[1]) : 1, batch = argc > 3 ? (uint32_t)atoi(argv[3]) : 256;
    double seconds = argc > 2 ? atof(argv[2]) : 2;
    const struct ring_spec spec = {.slots = 64,
                                   .batch = batch,
                                   .rows_per_unit = 1,
                                   .nfields = 1,
                                   .field = {{.name = "label", .dtype = LOADERD_I32, .ndim = 0}},
                                   .sequences = UINT64_MAX,
                                   .steps_per_epoch = 1000,
                                   .samples = 1000,
                                   .world = 1,
                                   .held = 1,
                                   .node = -1};
    struct ring *ring;
    struct topology topology;
    struct diag diag = DIAG_INIT;
    struct consumer consumer;
    char error[200];
    if (topology_read("", &topology, &diag) < 0 || ring_new(&spec, &ring, &diag) < 0) {
        fprintf(stderr, "claims: %s\n", diag.text);
        return 1;
    }
    if (consumer_attach(&consumer, ring_data_fd(ring), ring_control_fd(ring, 0), error, sizeof error) < 0) {
        fprintf(stderr, "claims: %s\n", error);
        return 1;
    }
    struct producer *producer = aligned_alloc(64, threads * sizeof *producer);
    for (uint32_t i = 0; producer && i < threads; i++) {
        producer[i] = (struct producer){.ring = ring, .cpu = topology_worker_cpu(&topology, i, threads)->id};
        pthread_create(&producer[i].thread, NULL, produce, &producer[i]);
    }
    uint64_t began = now_ns(), end = began + (uint64_t)(seconds * 1e9), batches = 0;
    while (producer && now_ns() < end) {
        struct loaderd_batch b;
        const char *message;
        bool kick;
        if (consumer_try(&consumer, &b, &message) != 1)
            continue;
        consumer_release(&consumer, b.sequence, &kick);
        batches++;
    }
    atomic_store(&over, true);
    uint64_t claims = 0;
    double spent = (double)(now_ns() - began) / 1e9;
    for (uint32_t i = 0; producer && i < threads; i++) {
        pthread_join(producer[i].thread, NULL);
        claims += producer[i].claims;
    }
    printf("%2u threads, batch %u: %.2f million claims/s, %.3f million batches/s\n", threads, batch,
           (double)claims / spent / 1e6, (double)batches / spent / 1e6);
    consumer_detach(&consumer);
    ring_free(ring);
    free(producer);
    topology_deinit(&topology);
    return 0;
}
