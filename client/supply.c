/* SPDX-License-Identifier: MIT */
/* Explicit order, the trainer's side: see supply.h. */
#include "supply.h"

#include <errno.h>
#include <stdlib.h>

#include "consumer.h"

int client_supply_new(struct client_supply *ret, const struct consumer *c) {
    uint64_t capacity = c->ids_capacity + (uint64_t)c->slots * c->batch;
    uint64_t *ids = capacity <= SIZE_MAX / sizeof *ids ? malloc(capacity * sizeof *ids) : NULL;
    if (!ids)
        return -ENOMEM;
    *ret = (struct client_supply){.ids = ids, .capacity = capacity, .batch = c->batch};
    return 0;
}

void client_supply_free(struct client_supply *s) {
    free(s->ids);
    s->ids = NULL;
}

void client_supply_restart(struct client_supply *s, uint64_t base) {
    s->first = s->sent = base * s->batch;
    if (s->sent > s->total) /* the last batch was a short one */
        s->first = s->sent = s->total;
}

void client_supply_forget(struct client_supply *s, uint64_t next) {
    s->total = next * s->batch;
    s->ended = false;
    client_supply_restart(s, next);
}

size_t client_supply_add(struct client_supply *s, uint64_t next, const uint64_t *ids, size_t count) {
    uint64_t kept = s->total - (next * s->batch < s->total ? next * s->batch : s->total);
    uint64_t room = s->capacity - kept;
    size_t taken = count < room ? count : (size_t)room;
    for (size_t i = 0; i < taken; i++)
        s->ids[s->total++ % s->capacity] = ids[i];
    return taken;
}

bool client_supply_send(struct client_supply *s, struct consumer *c) {
    uint64_t room = consumer_ids_room(c);
    bool kick = false;
    if (s->sent < s->total && room) {
        uint64_t count = s->total - s->sent < room ? s->total - s->sent : room;
        for (uint64_t i = 0; i < count; i++)
            consumer_put_id(c, i, s->ids[(s->sent + i) % s->capacity]);
        s->sent += count;
        kick = consumer_supplied(c, count);
    }
    if (s->ended && s->sent == s->total && !c->ids_over)
        kick |= consumer_ids_end(c);
    return kick;
}

uint64_t client_supply_missing(const struct client_supply *s, uint64_t number) {
    uint64_t needed = (number + 1) * s->batch;
    return s->ended || s->total >= needed ? 0 : needed - s->total;
}

uint64_t client_supply_batches(const struct client_supply *s) {
    return s->ended ? (s->total + s->batch - 1) / s->batch : UINT64_MAX;
}
