/* SPDX-License-Identifier: MIT */
/*
 * A worker: the thread that runs samples through all stages; the only place where the stages meet (with row.c, its
 * second half). Reads in the order of a sample's life:
 *
 *   choose a session -> claim a unit -> order: which samples -> dataset: where -> reader: bytes (in flight)
 *                    -> row.c: decode, transform, row in the slot -> complete -> publish
 *
 * Records that are in memory already and need no decoder are made at once, when they are claimed.
 *
 * Between claim and publish nothing is allocated, logged or locked (bad samples excepted).
 */
#include "worker.h"

#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#define GRACE_NS UINT64_C(20000000)  /* a wake-up may be this late before its absence counts as a rescue */
#define CREDIT_NS UINT64_C(50000000) /* how far behind in worker time a session may be and still catch up */

const struct order_epoch *worker_epoch(struct worker *w, const struct session *s, uint64_t epoch) {
    struct epoch_keys *e = &w->epoch[(s->number * 3 + epoch) % EPOCH_CACHE];
    if (e->session != s->number || e->keys.epoch != epoch) {
        order_epoch_init(&s->order, epoch, &e->keys);
        e->session = s->number;
    }
    return &e->keys;
}

static uint32_t units_in_flight(const struct worker *w, const struct session *s) {
    uint32_t n = 0;
    for (uint32_t i = 0; w->tasks && i < w->pool->depth; i++)
        n += w->task[i].session == s;
    return n;
}

/* May `x` be read together with the rows of `q`, which end with the one at q's stride? All lie in one open file, have
 * one length and one distance, and leave no gap; where rows go straight into the slot they do not overlap either. */
static bool joins(const struct extent *open, const struct request *q, const struct extent *x, bool direct) {
    uint64_t last = open->offset + (q->rows - 1) * q->stride;
    if (!x->file || x->file != open->file || x->length != q->row_length || x->offset <= last)
        return false;
    uint64_t distance = x->offset - last;
    return distance <= q->row_length && (q->rows == 1 || distance == q->stride) &&
           (!direct || distance == q->row_length);
}

/* What this worker did since the last call was for this task's batch. */
static void charge(struct worker *w, const struct task *t) {
    struct slot_note *note = session_note(t->session, t->sequence);
    for (int i = STAGE_READ; i < STAGES; i++)
        if (w->lap_ns[i]) {
            atomic_fetch_add_explicit(&note->stage_ns[i], w->lap_ns[i], memory_order_relaxed);
            w->lap_ns[i] = 0;
        }
}

/* A row of a task took so long; the slowest one of its batch is remembered. */
static void note_row(const struct task *t, uint32_t row, uint64_t ns) {
    _Atomic uint64_t *slowest = &session_note(t->session, t->sequence)->slowest;
    uint64_t mine = SLOWEST(ns / 1000, t->first_row + row), most = atomic_load_explicit(slowest, memory_order_relaxed);
    while (mine > most &&
           !atomic_compare_exchange_weak_explicit(slowest, &most, mine, memory_order_relaxed, memory_order_relaxed))
        ;
}

static void take_in_hand(struct worker *w, const struct task *t) {
    w->doing_session = t->session->number;
    w->doing_sequence = t->sequence;
}

/* Does a cache have the extent? Then it need not be read. */
static bool is_cached(const struct session *s, uint32_t e, const struct extent *x, struct request *q) {
    if (!(s->cache_unread >> e & 1))
        return false;
    row_look_up(s, x, x->offset, x->length, &q->cached);
    q->unread = q->cached.hit.segment != NULL;
    return q->unread;
}

static void submit(struct worker *w, const struct session *s, uint32_t tag, const struct extent *extent, void *into) {
    reader_submit(w->reader,
                  &(struct read_request){.tag = tag, .extent = *extent, .into = into, .stores = session_stores(s)});
}

/* Starts the reads of a task: one an extent, neighbours in one file as one where the sample has a single extent. */
static void start_reads(struct worker *w, struct task *t) {
    struct session *s = t->session;
    const struct order_epoch *keys = worker_epoch(w, s, t->epoch);
    struct extent open = {0};
    void *into = NULL;
    struct request *q = NULL;
    for (uint32_t i = 0; i < t->wanted; i++) {
        struct location location;
        dataset_locate(s->dataset, task_sample(t, keys, i), &location);
        for (uint32_t e = 0; e < s->extents; e++) {
            const struct extent *x = &location.extent[e];
            if (q && s->extents == 1 && joins(&open, q, x, s->direct) &&
                open.length + x->length <= w->pool->daemon.max_sample_bytes) {
                if (q->rows++ == 1)
                    q->stride = x->offset - open.offset;
                open.length += q->stride;
                continue;
            }
            if (q)
                submit(w, s, t->request[t->request_count - 1], &open, into);
            uint32_t tag = w->free_tag[--w->free_tags];
            t->request[t->request_count++] = tag;
            q = &w->request[tag];
            *q = (struct request){.task = (uint32_t)(t - w->task), .first_row = i, .rows = 1, .row_length = x->length};
            if (is_cached(s, e, x, q)) {
                q = NULL;
                continue;
            }
            t->pending++;
            open = *x;
            into = s->direct ? ring_row_field(s->ring, t->sequence, s->direct_field, t->first_row + i) : NULL;
        }
    }
    if (q)
        submit(w, s, t->request[t->request_count - 1], &open, into);
    worker_lap(w, STAGE_READ);
    charge(w, t);
}

/* ---- finish and publish -------------------------------------------------------------------------------------------- */

/* A batch one of whose ids is no sample. */
static void fail_ids(struct session *s, const struct task *t) {
    char text[LOADERD_SLOT_MESSAGE];
    supply_rows(s->supply, t->sequence, text, sizeof text);
    row_fail_slot(s, t, 0, -EINVAL, text);
}

/* A word of a note whose units are all complete: nobody else writes it. */
static uint64_t take(_Atomic uint64_t *word) {
    uint64_t value = atomic_load_explicit(word, memory_order_relaxed);
    atomic_store_explicit(word, 0, memory_order_relaxed);
    return value;
}

/* For whoever looks back: see session_look_back(). All units are complete, so the slot's note stands still. */
static void remember(struct session *s, struct slot_note *note, const struct loaderd_slot_header *h,
                     uint64_t sequence) {
    struct batch_note *n = &s->history[sequence % ring_lookback(s->ring)];
    uint64_t slowest = take(&note->slowest);
    uint32_t row = slowest & (SLOWEST(1, 0) - 1);
    atomic_store_explicit(&n->sequence, 0, memory_order_relaxed);
    atomic_thread_fence(
        memory_order_release); /* a reader of what follows sees that, or a later number, when it looks again */
    atomic_store_explicit(&n->claimed_ns, h->claimed_ns, memory_order_relaxed);
    atomic_store_explicit(&n->published_ns, h->published_ns, memory_order_relaxed);
    for (int i = 0; i < STAGES; i++) {
        uint64_t ns = take(&note->stage_ns[i]);
        atomic_store_explicit(&n->stage_ns[i], ns, memory_order_relaxed);
        if (ns)
            atomic_fetch_add_explicit(&s->stage_ns[i], ns, memory_order_relaxed);
    }
    atomic_store_explicit(&n->slowest_us, slowest >> SLOWEST_ROW_BITS, memory_order_relaxed);
    atomic_store_explicit(&n->slowest_sample, ring_rows(s->ring, sequence)[row].sample, memory_order_relaxed);
    atomic_store_explicit(&n->rows, h->rows, memory_order_relaxed);
    atomic_store_explicit(&n->sequence, sequence + 1, memory_order_release);
}

static void publish(struct session *s, const struct task *t) {
    struct loaderd_slot_header *h = ring_slot(s->ring, t->sequence);
    struct slot_note *note = session_note(s, t->sequence);
    struct order_batch batch;
    uint64_t epoch, step;
    session_step(s, t->sequence, &epoch, &step);
    session_batch(s, t->sequence, step, &batch);
    h->epoch = epoch;
    h->step = step;
    h->rows = batch.rows;
    h->valid = batch.valid;
    h->flags = step + 1 == s->steps ? LOADERD_BATCH_LAST : 0;
    if (s->supply && batch.rows == 0)
        fail_ids(s, t);
    h->bad = atomic_load_explicit(&note->bad, memory_order_relaxed);
    h->damaged = atomic_load_explicit(&note->damaged, memory_order_relaxed);
    atomic_store_explicit(&note->bad, 0, memory_order_relaxed);
    atomic_store_explicit(&note->damaged, 0, memory_order_relaxed);
    h->error = 0;
    h->message[0] = '\0';
    if (h->bad && h->bad >= batch.rows && t->sequence == 0 && s->bad_limit != UINT64_MAX && note->error == 0)
        row_fail_slot(s, t, 0, -EBADMSG,
                      "every sample of the first batch is bad: is this the right dataset and format?");
    if (note->error) { /* whoever set it completed its unit before us: the countdown orders the two */
        h->error = note->error;
        memcpy(h->message, note->text, sizeof h->message);
        note->error = 0;
        ring_stop_after(s->ring, t->sequence);
    }
    h->published_ns = now_ns();
    remember(s, note, h, t->sequence);
    uint32_t wake = ring_publish(s->ring, t->sequence);
    for (; wake; wake &= wake - 1) {
        const char byte = LOADERD_WAKE_BYTE;
        ssize_t sent =
            send(ring_wake_fd(s->ring, (uint32_t)__builtin_ctz(wake)), &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        (void)sent; /* full or gone: the trainer looks again by itself */
    }
}

/* All rows of a task are made: since `began`, until the last lap. */
static void end_task(struct worker *w, struct task *t, uint64_t began) {
    struct session *s = t->session;
    uint64_t out = 0, spent = w->mark - began;
    for (uint32_t f = 0; f < s->nfields; f++)
        out += ring_row_bytes(s->ring, f) * t->wanted;
    counter_add(&w->bytes_out, out);
    atomic_fetch_add_explicit(&s->bytes_out, out, memory_order_relaxed);
    for (uint32_t row = t->first_row + t->wanted; row < t->first_row + t->rows; row++) {
        row_clear(s, t->sequence, row);
        ring_rows(s->ring, t->sequence)[row] = (struct loaderd_row){0};
    }
    atomic_fetch_add_explicit(&s->samples, t->wanted, memory_order_relaxed);
    if (w->node >= 0 && w->node == ring_node(s->ring))
        atomic_fetch_add_explicit(&s->near_samples, t->wanted, memory_order_relaxed);
    counter_add(&w->samples, t->wanted);
    charge(w, t);
    atomic_fetch_add_explicit(&s->served_ns, spent - t->charged_ns, memory_order_relaxed);
    uint64_t mean = atomic_load_explicit(&s->unit_ns, memory_order_relaxed);
    atomic_store_explicit(&s->unit_ns, mean - mean / 8 + spent / 8, memory_order_relaxed);
    uint32_t units = --t->claim->left == 0 ? t->claim->units : 0;
    if (units && ring_complete(s->ring, t->sequence, units))
        publish(s, t);
    t->session = NULL;
    w->tasks--;
    if (units)
        atomic_fetch_sub(&s->inflight, units); /* the session may be freed from here on */
}

/* Rows that need no read: true where all of the task was made. A unit is one large row or some small ones, which pass for
 * its first here. */
static bool make_at_once(struct worker *w, struct task *t) {
    uint64_t began = w->mark;
    bool made = rows_in_place(w, t);
    uint64_t spent = worker_lap(w, STAGE_COPY);
    if (made) {
        note_row(t, 0, spent);
        end_task(w, t, began);
    }
    return made;
}

/* ---- claim ----------------------------------------------------------------------------------------------------------- */

static struct task *free_task(struct worker *w) {
    for (uint32_t i = 0; i < w->pool->depth; i++)
        if (!w->task[i].session)
            return &w->task[i];
    return NULL;
}

/* There are no more claims than tasks; the oldest places are free first. */
static struct claim *new_claim(struct worker *w, uint32_t units) {
    do
        w->last_claim = (w->last_claim + 1) % w->pool->depth;
    while (w->claim[w->last_claim].left);
    w->claim[w->last_claim] = (struct claim){units, units};
    return &w->claim[w->last_claim];
}

static void start_task(struct worker *w, struct session *s, struct claim *claim, uint64_t sequence, uint32_t unit) {
    struct task *t = free_task(w);
    uint32_t *request = t->request;
    uint64_t step;
    *t = (struct task){
        .session = s, .claim = claim, .sequence = sequence, .unit = unit, .request = request, .order = w->claimed++};
    session_step(s, sequence, &t->epoch, &step);
    struct order_batch batch;
    session_batch(s, sequence, step, &batch);
    t->first_row = unit * s->rows_per_unit;
    t->rows = MIN(s->rows_per_unit, s->order.batch - t->first_row);
    t->wanted = t->first_row < batch.rows ? MIN(t->rows, batch.rows - t->first_row) : 0;
    t->valid = batch.valid;
    t->position = batch.position + t->first_row;
    t->charged_ns = atomic_load_explicit(&s->unit_ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&s->served_ns, t->charged_ns, memory_order_relaxed);
    worker_lap(w, STAGE_OTHER);
    if (unit == 0)
        ring_slot(s->ring, sequence)->claimed_ns = w->mark;
    w->tasks++;
    counter_add(&w->claims, 1);
    take_in_hand(w, t);
    if (s->cache)
        cache_epoch(s->cache, &s->cache_user, t->epoch);
    if (!s->in_place || !make_at_once(w, t))
        start_reads(w, t);
}

static bool claimable(const struct session *s) {
    if (ring_claimable(s->ring))
        return true;
    if (!s->supply)
        return false;
    supply_take(s->supply);
    return ring_claimable(s->ring);
}

/* The session with the least worker time so far among those that have something to claim and room for this worker. One
 * whose ring is on another NUMA node than the worker has to be behind by WORKER_FAR_NS before it is preferred: with all else
 * equal each node's workers fill the rings of their node, and no session waits longer than that for it. */
static struct session *choose(struct worker *w, const struct session_list *list) {
    struct session *best = NULL;
    uint64_t least = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        struct session *s = list->session[i];
        uint64_t served =
            session_cost(atomic_load_explicit(&s->served_ns, memory_order_relaxed), ring_node(s->ring), w->node);
        if (best && served >= least)
            continue;
        if (w->free_tags < s->rows_per_unit * MAX(s->extents, 1u) && w->tasks > 0)
            continue;
        if (units_in_flight(w, s) >= s->ahead || !claimable(s))
            continue;
        best = s;
        least = served;
    }
    return best;
}

/* A session that had nothing to do for a while does not get that time back: it starts near where the others are. */
static void level(struct pool *pool, struct session *s) {
    uint64_t now = atomic_load_explicit(&pool->virtual_ns, memory_order_relaxed);
    uint64_t served = atomic_load_explicit(&s->served_ns, memory_order_relaxed);
    if (served + CREDIT_NS < now)
        atomic_fetch_add_explicit(&s->served_ns, now - CREDIT_NS - served, memory_order_relaxed);
    else if (served > now)
        atomic_store_explicit(&pool->virtual_ns, served, memory_order_relaxed);
}

/* How many units of a session this worker has room for; choose() has seen that it is at least one. */
static uint32_t room_for(const struct worker *w, const struct session *s) {
    uint32_t tags = w->free_tags / (s->rows_per_unit * MAX(s->extents, 1u));
    uint32_t ahead = s->ahead - units_in_flight(w, s);
    return MAX(1u, MIN(MIN(tags, ahead), w->pool->depth - w->tasks));
}

/* Claims until the worker's reads are full or nothing is left, and not for ever where nothing is read: the list may change,
 * and reads want to be reaped. True where something was claimed. */
static bool refill(struct worker *w, const struct session_list *list) {
    bool any = false, reads = false;
    for (uint32_t turn = 0; w->tasks < w->pool->depth && turn < w->pool->depth; turn++) {
        struct session *s = choose(w, list);
        uint64_t sequence;
        uint32_t unit;
        if (!s)
            break;
        /* before the claim, so that pool_reap() never sees a claimed unit uncounted; pairs with its seq_cst load */
        atomic_fetch_add(&s->inflight, 1);
        uint32_t count = ring_claim(s->ring, room_for(w, s), &sequence, &unit);
        if (!count) {
            atomic_fetch_sub(&s->inflight, 1);
            break;
        }
        atomic_fetch_add(&s->inflight, count - 1);
        level(w->pool, s);
        struct claim *claim = new_claim(w, count);
        for (uint32_t i = 0; i < count; i++)
            start_task(w, s, claim, sequence, unit + i);
        any = true;
        reads |= w->tasks > 0;
    }
    if (reads) {
        worker_lap(w, STAGE_OTHER);
        reader_flush(w->reader);
        worker_lap(w, STAGE_READ);
    }
    return any;
}

void worker_note_result(struct worker *w, const struct read_result *result) {
    struct request *q = &w->request[result->tag];
    q->error = result->error;
    q->bytes = result->bytes;
    q->length = result->length;
    q->diag = result->diag;
    w->task[q->task].pending--;
}

/* ---- tasks whose bytes were read ------------------------------------------------------------------------------------ */

/* Gives the bytes of a request back. That its file changed meanwhile is a fault of the storage. */
static void end_request(struct worker *w, struct task *t, uint32_t tag) {
    struct request *q = &w->request[tag];
    struct diag diag = DIAG_INIT;
    if (!q->error && !q->unread) {
        counter_add(&w->bytes_in, q->length);
        atomic_fetch_add_explicit(&t->session->bytes_in, q->length, memory_order_relaxed);
    }
    if (q->cached.hit.segment)
        cache_done(&q->cached.hit);
    int r = q->unread ? 0 : reader_done(w->reader, tag, &diag);
    if (r < 0 && !q->error)
        row_fail_slot(t->session, t, t->first_row + q->first_row, -EIO, diag.text);
    w->free_tag[w->free_tags++] = tag;
}

/* Rows of one request: a sample, or several neighbours of equal length. */
static void run_request(struct worker *w, struct task *t, uint32_t tag) {
    struct request *q = &w->request[tag];
    size_t length = q->rows == 1 ? q->length : (size_t)q->row_length;
    uint64_t began = w->mark - q->waited_ns, most = 0;
    uint32_t slowest = q->first_row;
    for (uint32_t k = 0; k < q->rows; k++) {
        row_make(w, t, q->first_row + k,
                 &(struct row_input){.cached = {t->session->cache_unread & 1 ? &q->cached : NULL},
                                     .bytes = {q->bytes ? q->bytes + k * q->stride : NULL},
                                     .length = {length},
                                     .tag = {tag},
                                     .error = q->error,
                                     .diag = q->diag});
        if (w->mark - began > most) {
            most = w->mark - began;
            slowest = q->first_row + k;
        }
        began = w->mark;
    }
    note_row(t, slowest, most);
    end_request(w, t, tag);
}

/* One row whose sample has several extents, a request each, or none. */
static void run_row(struct worker *w, struct task *t, uint32_t i) {
    uint32_t extents = t->session->extents;
    struct row_input input = {0};
    uint64_t began = w->mark;
    for (uint32_t e = 0; e < extents; e++) {
        uint32_t tag = t->request[i * extents + e];
        struct request *q = &w->request[tag];
        began -= q->waited_ns;
        input.cached[e] = t->session->cache_unread >> e & 1 ? &q->cached : NULL;
        input.bytes[e] = q->bytes;
        input.length[e] = q->length;
        input.tag[e] = tag;
        if (q->error && !input.error) {
            input.error = q->error;
            input.diag = q->diag;
        }
    }
    row_make(w, t, i, &input);
    note_row(t, i, w->mark - began);
    for (uint32_t e = 0; e < extents; e++)
        end_request(w, t, t->request[i * extents + e]);
}

static void run_task(struct worker *w, struct task *t) {
    struct session *s = t->session;
    uint64_t began = now_ns();
    take_in_hand(w, t);
    if (s->extents == 1)
        for (uint32_t i = 0; i < t->request_count; i++)
            run_request(w, t, t->request[i]);
    else
        for (uint32_t i = 0; i < t->wanted; i++)
            run_row(w, t, i);
    worker_lap(w, STAGE_OTHER);
    end_task(w, t, began);
    worker_lap(w, STAGE_OTHER);
}

/* The task claimed first among those whose bytes are all here. */
static struct task *ready_task(struct worker *w) {
    struct task *oldest = NULL;
    for (uint32_t i = 0; w->tasks && i < w->pool->depth; i++) {
        struct task *t = &w->task[i];
        if (t->session && t->pending == 0 && (!oldest || t->order < oldest->order))
            oldest = t;
    }
    return oldest;
}

/* The time since the last lap was the reader's, which copied in some of it. */
static void lap_read(struct worker *w) {
    uint64_t copied = reader_counters(w->reader)->copy_ns, now = now_ns(), spent = now - w->mark;
    uint64_t share = MIN(copied - w->copied_ns, spent);
    counter_add(&w->stage_ns[STAGE_COPY], share);
    counter_add(&w->stage_ns[STAGE_READ], spent - share);
    w->lap_ns[STAGE_COPY] += share;
    w->lap_ns[STAGE_READ] += spent - share;
    struct trace_circle *circle = atomic_load_explicit(&w->trace, memory_order_acquire);
    if (__builtin_expect(circle != NULL, 0)) {
        trace_lap(circle, STAGE_COPY, w->mark, w->mark + share, 0, 0);
        trace_lap(circle, STAGE_READ, w->mark + share, now, 0, 0);
    }
    w->copied_ns = copied;
    w->mark = now;
}

/* Takes finished reads; waits for one where no task could run otherwise. That time is the first one's that comes, and of
 * an engine that reads when it is asked for results, each one's own. */
static void reap(struct worker *w) {
    struct read_result result;
    if (!reader_in_flight(w->reader))
        return;
    bool waits = !ready_task(w) && !fill_pending(w->fill);
    uint64_t wait = waits ? WORKER_SLEEP_NS : 0, mark = w->mark;
    while (reader_reap(w->reader, wait, &result) == 1) {
        worker_note_result(w, &result);
        wait = 0;
        if (!waits)
            continue;
        lap_read(w);
        struct request *q = &w->request[result.tag];
        q->waited_ns = w->stalled_ns + w->mark - mark;
        charge(w, &w->task[q->task]);
        w->stalled_ns = 0;
        mark = w->mark;
    }
    lap_read(w);
    if (waits)
        w->stalled_ns += w->mark - mark;
}

/* ---- filling a cache ---------------------------------------------------------------------------------------------- */

#define FILL_SHARE 20u                      /* one part in so many of a worker's time, besides what it has no use for */
#define FILL_MOST_EARNED UINT64_C(20000000) /* ns that a worker may be ahead with it */

static void fill_next(struct worker *w) {
    worker_lap(w, STAGE_OTHER);
    uint64_t spent = fill_one(w->fill);
    w->fill_mean_ns = w->fill_mean_ns ? w->fill_mean_ns - w->fill_mean_ns / 8 + spent / 8 : spent;
    worker_lap(w, STAGE_FILL);
    w->lap_ns[STAGE_FILL] = 0; /* no batch waited for it */
}

/* Between two samples: what cannot wait, and what the budget allows. */
static void fill_some(struct worker *w) {
    while (fill_urgent(w->fill))
        fill_next(w);
    uint64_t now = now_ns();
    w->fill_earned_ns = MIN(w->fill_earned_ns + (now - w->fill_earned_at) / FILL_SHARE, FILL_MOST_EARNED);
    w->fill_earned_at = now;
    if (!fill_pending(w->fill) || w->fill_earned_ns < w->fill_mean_ns)
        return;
    fill_next(w);
    uint64_t spent = now_ns() - now;
    w->fill_earned_ns -= MIN(spent, w->fill_earned_ns);
}

/* ---- sleep and wake ------------------------------------------------------------------------------------------------ */

static void futex_sleep(_Atomic uint32_t *word, uint32_t value, uint64_t ns) {
    const struct timespec timeout = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, &timeout, NULL, 0);
}

/* True where some ring has work although its trainer's wake-up is overdue. */
static bool any_overdue(const struct session_list *list) {
    for (uint32_t i = 0; i < list->count; i++)
        if (ring_wake_overdue(list->session[i]->ring) && ring_claimable(list->session[i]->ring))
            return true;
    return false;
}

static bool ask_all(const struct session_list *list) {
    bool work = false;
    for (uint32_t i = 0; i < list->count; i++) {
        if (list->session[i]->supply)
            supply_ask(list->session[i]->supply);
        work |= ring_ask_wake(list->session[i]->ring);
    }
    return work;
}

/* Nothing to do: asks every trainer for a wake-up and sleeps, at most 100 ms. */
static void idle(struct worker *w, const struct session_list *list) {
    struct pool *pool = w->pool;
    uint32_t kicks = atomic_load(&pool->kicks);
    atomic_fetch_add(&pool->sleepers, 1);
    if (!ask_all(list) && !atomic_load(&pool->stop)) {
        futex_sleep(&pool->kicks, kicks, WORKER_SLEEP_NS);
        if (atomic_load(&pool->kicks) == kicks && any_overdue(list)) {
            /* the byte may be on its way through the server's thread: give it time before calling it lost */
            futex_sleep(&pool->kicks, kicks, GRACE_NS);
            if (atomic_load(&pool->kicks) == kicks && any_overdue(list))
                counter_add(&w->rescues, 1);
        }
    }
    atomic_fetch_sub(&pool->sleepers, 1);
    w->doing_session = 0;
    worker_lap(w, STAGE_IDLE);
}

/* ---- a worker's life ------------------------------------------------------------------------------------------------ */

static int allocate(struct worker *w) {
    uint32_t depth = w->pool->depth;
    w->task = calloc(depth, sizeof *w->task);
    w->claim = calloc(depth, sizeof *w->claim);
    w->request = calloc(depth, sizeof *w->request);
    w->free_tag = calloc(depth, sizeof *w->free_tag);
    if (!w->task || !w->claim || !w->request || !w->free_tag)
        return -ENOMEM;
    for (uint32_t i = 0; i < depth; i++) {
        w->task[i].request = calloc(depth, sizeof *w->task[i].request);
        if (!w->task[i].request)
            return -ENOMEM;
        w->free_tag[i] = i;
    }
    w->free_tags = depth;
    return 0;
}

/* On the worker's own thread, so that memory is touched first where it is used. */
static int worker_init(struct worker *w, struct diag *diag) {
    struct pool *pool = w->pool;
    const struct daemon_config *d = &pool->daemon;
    if (w->cpu >= 0 && topology_pin((uint32_t)w->cpu) < 0)
        w->cpu = w->node = -1;
    topology_batch();
    int r = allocate(w);
    if (r < 0)
        return diag_set(diag, r, "out of memory for worker %u", w->number);
    const struct read_options options = {
        .engine = pool->engine,
        .depth = pool->depth + MAX_EXTENTS, /* for substitutes */
        .max_bytes = d->max_sample_bytes,
        .direct = pool->direct,
        .cache_room = pool->cache_room,
    };
    r = reader_new(&options, &w->reader, diag);
    if (r < 0)
        return r;
    const struct decode_limits limits = {.max_pixels = d->max_pixels, .max_scans = d->max_scans};
    r = decoder_new(&limits, &w->decoder);
    if (r == 0)
        r = transform_new(d->max_pixels, &w->transform);
    w->box = malloc(DATASET_MAX_BOXES * sizeof *w->box);
    if (r == 0 && !w->box)
        r = -ENOMEM;
    w->fill = fill_new();
    w->fill_earned_at = now_ns();
    if (r == 0 && !w->fill)
        r = -ENOMEM;
    if (r < 0)
        diag_set(diag, r, "worker %u cannot start: %s", w->number, strerror(-r));
    return r;
}

static void worker_deinit(struct worker *w) {
    reader_free(w->reader);
    decoder_free(w->decoder);
    transform_free(w->transform);
    free(w->box);
    fill_free(w->fill);
    for (uint32_t i = 0; w->task && i < w->pool->depth; i++)
        free(w->task[i].request);
    free(w->task);
    free(w->claim);
    free(w->request);
    free(w->free_tag);
}

/* Announces the version that this worker works with, then takes the list: in this order, both seq_cst, so that
 * pool_reap() either sees the announcement or this sees the newer list. */
static const struct session_list *take_list(struct worker *w) {
    atomic_store(&w->version, atomic_load(&w->pool->version));
    return atomic_load(&w->pool->list);
}

void *worker_main(void *arg) {
    struct worker *w = arg;
    struct pool *pool = w->pool;
    atomic_store(&w->tid, (int)syscall(SYS_gettid));
    w->start_error = worker_init(w, &w->start_diag);
    pthread_mutex_lock(&pool->start_lock);
    pool->ready++;
    pthread_cond_signal(&pool->start_signal);
    pthread_mutex_unlock(&pool->start_lock);
    w->mark = now_ns();
    while (w->start_error == 0) {
        const struct session_list *list = take_list(w);
        bool claimed = !atomic_load_explicit(&pool->stop, memory_order_relaxed) && refill(w, list);
        reap(w);
        struct task *t = ready_task(w);
        if (t) {
            run_task(w, t);
            fill_some(w);
        } else if (fill_pending(w->fill) && !atomic_load_explicit(&pool->stop, memory_order_relaxed)) {
            fill_next(w); /* nothing else to do */
        } else if (w->tasks == 0 && !claimed) {
            if (atomic_load(&pool->stop))
                break;
            idle(w, list);
        }
    }
    atomic_store(&w->version, VERSION_ASLEEP);
    worker_deinit(w);
    return NULL;
}
