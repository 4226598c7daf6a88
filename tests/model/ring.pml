/* SPDX-License-Identifier: MIT */
/*
 * The ring's protocol (include/loaderd/abi/ring.h, src/ring.c, client/consumer.c) as a model for spin, on a machine
 * with store buffers: plain Promela is sequentially consistent, x86 is not.
 *
 * WORKERS workers claim, fill and publish BATCHES batches in SLOTS slots; each of TRAINERS trainers (one, or the members
 * of a group) pops each and releases it. There is no 100 ms timer here: a lost wake-up is a state in which nobody can move (an invalid end state).
 *
 *   store(a, v)     goes into the process's own buffer, in order
 *   flush           any time, the oldest buffered store reaches memory (process `drain`)
 *   load(a, x)      the own buffer's newest store to `a`, else memory
 *   exchange(a, v)  waits until the own buffer is empty, then writes memory: a locked instruction, seq_cst
 *
 * Checked: no invalid end state; a held slot is never written; the trainer reads what was published. Mutants, each of
 * which spin must find wrong: -DMUTANT_PUBLISH, _WAIT, _RELEASE, _SLEEP make one of the four exchanges a plain store;
 * -DMUTANT_STALE lets a worker that was held up take a younger request for a wake-up back, and sleep; -DMUTANT_TRUST makes the daemon take any release word for "released"; -DMUTANT_FIRST makes it look at the first trainer
 * alone.
 */
#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef BATCHES
#define BATCHES 4
#endif
#ifndef WORKERS
#define WORKERS 2
#endif
#ifndef TRAINERS
#define TRAINERS 1
#endif
#define DEPTH 3              /* entries of a store buffer */
#define PROCESSES 4          /* the trainers are numbers 2 and 3 */
#define TRAINER 2

/* addresses */
#define PUBLISHED 0          /* + slot: shared */
#define PRIVATE 2            /* + slot: the daemon's own copy */
#define CONTENT 4            /* + slot: the payload, as one word */
#define RELEASE 6            /* + 2 x trainer + slot */
#define WAITING 10           /* + trainer */
#define WAKE_AT 12
#define WORDS 13

byte memory[WORDS];
byte where_[PROCESSES * DEPTH], what[PROCESSES * DEPTH], used[PROCESSES];
byte cursor;                 /* next sequence to claim: one compare-and-swap, always a locked instruction */
byte kicks;                  /* times that the workers were woken */
byte bytes[TRAINERS];        /* wake bytes on their way to the trainer */
byte holding[SLOTS * TRAINERS];         /* seq + 1 of the batch that the trainer has in hand: for the assertion only */
byte finished;

inline store(me, address, value) {
    atomic {
        used[me] < DEPTH ->
        where_[me * DEPTH + used[me]] = address;
        what[me * DEPTH + used[me]] = value;
        used[me]++
    }
}

inline load(me, address, result) {
    atomic {
        if
        :: used[me] > 2 && where_[me * DEPTH + 2] == address -> result = what[me * DEPTH + 2]
        :: !(used[me] > 2 && where_[me * DEPTH + 2] == address) && used[me] > 1 && where_[me * DEPTH + 1] == address ->
            result = what[me * DEPTH + 1]
        :: !(used[me] > 2 && where_[me * DEPTH + 2] == address) &&
           !(used[me] > 1 && where_[me * DEPTH + 1] == address) && used[me] > 0 && where_[me * DEPTH] == address ->
            result = what[me * DEPTH]
        :: else -> result = memory[address]
        fi
    }
}

inline exchange(me, address, value) {
    atomic { used[me] == 0 -> memory[address] = value }
}
#ifdef MUTANT_PUBLISH
#define exchange_published store
#else
#define exchange_published exchange
#endif
#ifdef MUTANT_WAIT
#define exchange_waiting store
#else
#define exchange_waiting exchange
#endif
#ifdef MUTANT_RELEASE
#define exchange_release store
#else
#define exchange_release exchange
#endif
/* a request is raised, never lowered: a compare-and-swap that a younger request makes fail */
inline raise(me, address, value) {
    atomic {
        used[me] == 0 ->
        if
        :: memory[address] < value -> memory[address] = value
        :: else
        fi
    }
}
#if defined(MUTANT_SLEEP)
#define ask_wake_at store
#elif defined(MUTANT_STALE)
#define ask_wake_at exchange
#else
#define ask_wake_at raise
#endif

/* The oldest store of each buffer reaches memory at any time. */
proctype drain(byte me) {
    byte address;
end:
    do
    :: atomic {
        used[me] > 0 ->
        address = where_[me * DEPTH];
        if
        :: address >= CONTENT && address < CONTENT + SLOTS ->
            assert(holding[address - CONTENT] == 0);
#if TRAINERS > 1
            assert(holding[SLOTS + address - CONTENT] == 0)
#endif
        :: else
        fi;
        memory[address] = what[me * DEPTH];
        where_[me * DEPTH] = where_[me * DEPTH + 1];
        what[me * DEPTH] = what[me * DEPTH + 1];
        where_[me * DEPTH + 1] = where_[me * DEPTH + 2];
        what[me * DEPTH + 1] = what[me * DEPTH + 2];
        used[me]--
    }
    od
}

/* may = the daemon published the slot's last batch itself, and the release word says exactly that one */
inline may_claim(me, sequence) {
    may = 0;
    if
    :: sequence < BATCHES ->
        previous = (sequence < SLOTS -> 0 : sequence - SLOTS + 1);
        load(me, PRIVATE + sequence % SLOTS, word);
        if
        :: word == previous ->
            load(me, RELEASE + sequence % SLOTS, word);
#ifdef MUTANT_TRUST
            may = 1
#else
            may = (word == previous)
#endif
#if TRAINERS > 1 && !defined(MUTANT_FIRST)
            ;
            load(me, RELEASE + 2 + sequence % SLOTS, word);
            may = may && (word == previous)
#endif
        :: else
        fi
    :: else
    fi
}

proctype worker(byte me) {
    byte sequence, previous, word, may, seen;
    do
    :: sequence = cursor;
        if
        :: sequence >= BATCHES -> break
        :: else
        fi;
        may_claim(me, sequence);
        if
        :: may ->
            atomic { /* compare-and-swap */
                used[me] == 0 ->
                if
                :: cursor == sequence -> cursor++
                :: else -> may = 0
                fi
            };
            if
            :: may ->
                store(me, CONTENT + sequence % SLOTS, sequence + 1);
                store(me, PRIVATE + sequence % SLOTS, sequence + 1);
                exchange_published(me, PUBLISHED + sequence % SLOTS, sequence + 1);
                load(me, WAITING, word);
                if
                :: word == sequence + 1 -> bytes[0]++
                :: else
                fi
#if TRAINERS > 1
                ;
                load(me, WAITING + 1, word);
                if
                :: word == sequence + 1 -> bytes[1]++
                :: else
                fi
#endif
            :: else
            fi
        :: else ->
            seen = kicks; /* idle(): the futex word first */
            sequence = cursor;
            if
            :: sequence >= BATCHES -> break
            :: else
            fi;
            if
            :: sequence >= SLOTS -> ask_wake_at(me, WAKE_AT, sequence - SLOTS + 1)
            :: else
            fi;
            may_claim(me, sequence);
            if
            :: may
#ifndef MUTANT_STALE
            :: !may && cursor != sequence
            :: else ->
#else
            :: !may ->
#endif
                (kicks != seen || cursor >= BATCHES) /* asleep until kicked, or at the end */
            fi
        fi
    od;
    finished++
}

proctype trainer(byte id) {
    byte next, word, answered, prefix, slot, self = TRAINER + id; /* inlines take names: they are textual */
    do
    :: next < BATCHES ->
        slot = next % SLOTS;
        load(self, PUBLISHED + slot, word);
        do
        :: word == next + 1 -> break
        :: else ->
            exchange_waiting(self, WAITING + id, next + 1);
            load(self, PUBLISHED + slot, word);
            if
            :: word == next + 1
            :: else ->
                bytes[id] > 0 -> bytes[id]-- /* asleep until the byte comes */
            fi;
            store(self, WAITING + id, 0);
            load(self, PUBLISHED + slot, word)
        od;
        holding[id * SLOTS + slot] = next + 1;
        load(self, CONTENT + slot, word);
        assert(word == next + 1);
        holding[id * SLOTS + slot] = 0;
        exchange_release(self, RELEASE + 2 * id + slot, next + 1);
        prefix = next + 1;
        load(self, WAKE_AT, word);
        if
        :: word != 0 && prefix >= word && word != answered -> answered = word; kicks++
        :: else
        fi;
        next++
    :: else -> break
    od;
    finished++
}

init {
    atomic {
        run drain(0);
#if WORKERS > 1
        run drain(1);
#endif
        run drain(TRAINER);
#if TRAINERS > 1
        run drain(TRAINER + 1);
        run trainer(1);
#endif
        run worker(0);
#if WORKERS > 1
        run worker(1);
#endif
        run trainer(0)
    };
    finished == WORKERS + TRAINERS
}
