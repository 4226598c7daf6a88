/* SPDX-License-Identifier: MIT */
/* The index in memory: see table.h. */
#include "cache/table.h"

#include <stdlib.h>

#define LEAST_SLOTS UINT64_C(1024)

uint64_t table_bytes(const struct table *table) {
    uint64_t bytes = 0;
    for (; table; table = table->older)
        bytes += sizeof *table + table->slots * sizeof table->slot[0];
    return bytes;
}

struct table *table_new(uint64_t keys, struct table *older) {
    uint64_t slots = LEAST_SLOTS;
    while (slots / 16 * 11 <= keys)
        slots *= 2;
    struct table *table = calloc(1, sizeof *table + slots * sizeof table->slot[0]);
    if (!table)
        return NULL;
    table->older = older;
    table->slots = slots;
    return table;
}

void table_free(struct table *table) {
    while (table) {
        struct table *older = table->older;
        free(table);
        table = older;
    }
}

struct table_slot *table_find(struct table *table, uint64_t hash) {
    for (uint64_t i = hash;; i++) {
        struct table_slot *slot = &table->slot[i & (table->slots - 1)];
        uint64_t found = atomic_load_explicit(&slot->hash, memory_order_acquire); /* the release in table_take() */
        if (found == hash)
            return slot;
        if (found == 0)
            return NULL;
    }
}

struct table_slot *table_take(struct table *table, uint64_t hash, uint64_t word) {
    for (uint64_t i = hash;; i++) {
        struct table_slot *slot = &table->slot[i & (table->slots - 1)];
        uint64_t found = atomic_load_explicit(&slot->hash, memory_order_relaxed);
        if (found != hash && found != 0)
            continue;
        atomic_store_explicit(&slot->word, word, memory_order_release);
        if (found == 0) {
            atomic_store_explicit(&slot->hash, hash, memory_order_release);
            table->used++;
        }
        return slot;
    }
}

struct table *table_grow(struct table *table) {
    uint64_t keys = 0;
    for (uint64_t i = 0; i < table->slots; i++)
        keys += atomic_load_explicit(&table->slot[i].word, memory_order_relaxed) != 0;
    struct table *grown = table_new(keys + keys / 2, table);
    if (!grown)
        return NULL;
    for (uint64_t i = 0; i < table->slots; i++) {
        uint64_t word = atomic_load_explicit(&table->slot[i].word, memory_order_relaxed);
        if (word)
            table_take(grown, atomic_load_explicit(&table->slot[i].hash, memory_order_relaxed), word);
    }
    return grown;
}
