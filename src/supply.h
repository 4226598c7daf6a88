/* SPDX-License-Identifier: MIT */
/*
 * Explicit order: the trainer says which samples come next. It writes ids into its control area (abi/ring.h); whichever
 * worker comes by first copies each id once into the daemon's own memory, checks the copy, and lets the ring claim the
 * batches whose ids are complete. What the trainer writes afterwards changes nothing any more.
 *
 *   trainer: queue[n mod capacity], ids_supplied --take--> ids[seq mod slots][row] --claim--> rows
 *                        consumed <-----------------'
 *
 * Threads: supply_take(), supply_ask(): any worker; one at a time is the owner. The others: workers, for a sequence that
 * they claimed. new and free: the session's owner. Never allocates but in new; no lock but the owner's flag.
 */
#ifndef SUPPLY_H
#define SUPPLY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/diag.h"

struct ring;
struct supply;

/* Ids that a trainer may send ahead: two rings full. Pure. */
uint64_t supply_capacity(uint32_t slots, uint32_t batch);
int supply_new(struct ring *ring, uint32_t batch, uint64_t samples, struct supply **ret, struct diag *diag);
struct supply *supply_free(struct supply *supply); /* NULL */

/* Takes what is there. Another worker that is at it is not waited for. */
void supply_take(struct supply *supply);
/* Before a worker sleeps: asks the trainer for a byte once the ids of the next batch are there, and looks again. */
void supply_ask(struct supply *supply);

/* Rows of a claimed batch: fewer than `batch` only where the trainer ended its ids; 0 where one of them is no sample,
 * and then the sentence is in *text. */
uint32_t supply_rows(const struct supply *supply, uint64_t sequence, char *text, size_t size);
uint64_t supply_id(const struct supply *supply, uint64_t sequence, uint32_t row);

#endif
