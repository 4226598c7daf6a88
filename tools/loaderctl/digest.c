/* SPDX-License-Identifier: MIT */
/*
 * loaderctl digest: one line a batch with the CRC-32 (zlib's) of every field's bytes, so that two runs can be compared
 * with diff(1). Nothing on stdout depends on workers, read engine or time. The line format is in loaderctl(1).
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <zlib.h>

#include "base/util.h"
#include "loaderctl.h"

static void print_heading(const struct engine *engine, const struct options *options, uint64_t end) {
    const struct loaderd_ring_header *header = engine->consumer.header;
    printf("# %s: epoch %" PRIu64 ", steps %" PRIu64 "..%" PRIu64 " of %" PRIu64 ", rank %" PRIu32 " of %" PRIu32
           ", batch %" PRIu32 ", seed %" PRIu64 ", %" PRIu64 " samples, fingerprint ",
           options->target, options->epoch, options->steps_first, end, header->steps_per_epoch, header->rank,
           header->world, header->batch, header->seed, header->samples);
    for (size_t i = 0; i < sizeof engine->fingerprint; i++)
        printf("%02x", engine->fingerprint[i]);
    printf("\n# STEP FIELD=CRC-32 ...%s\n",
           options->ids ? " ids=ID[*MARKS],... (p padding, s substituted, b blank, d damaged)" : "");
}

/* "17" or "17*ps". */
static void print_id(const struct loaderd_row *row) {
    printf("%" PRIu64, row->sample);
    if (row->status)
        printf("*%s%s%s%s", row->status & LOADERD_ROW_PADDING ? "p" : "",
               row->status & LOADERD_ROW_SUBSTITUTED ? "s" : "", row->status & LOADERD_ROW_BLANK ? "b" : "",
               row->status & LOADERD_ROW_DAMAGED ? "d" : "");
}

static void print_batch(const struct loaderd_batch *batch, bool ids) {
    printf("%" PRIu64, batch->step);
    for (uint32_t i = 0; i < batch->nfields; i++) {
        const struct loaderd_field *field = &batch->fields[i];
        printf(" %s=%08lx", field->name, (unsigned long)crc32_z(crc32_z(0, NULL, 0), field->data, field->bytes));
    }
    for (uint32_t i = 0; ids && i < batch->rows; i++) {
        fputs(i ? "," : " ids=", stdout);
        print_id(&batch->row[i]);
    }
    putchar('\n');
}

static int digest_steps(struct engine *engine, uint64_t count, bool ids, struct diag *diag) {
    struct loaderd_batch batch;
    for (uint64_t i = 0; i < count; i++) {
        int r = engine_next(engine, &batch, diag);
        if (r <= 0)
            return r;
        print_batch(&batch, ids);
        engine_release(engine, &batch);
    }
    return 0;
}

int command_digest(const struct options *options) {
    struct engine engine;
    struct diag diag = DIAG_INIT;
    const struct engine_range range = {.epoch = options->epoch, .step = options->steps_first, .epochs = 1};
    if (engine_open(&engine, options, &range, &diag) < 0)
        return complain_diag(&diag);
    uint64_t steps = engine_steps(&engine), end = MIN(options->steps_end, steps);
    if (options->steps_end != STEPS_TO_END && options->steps_end > steps)
        remark("the epoch has %" PRIu64 " steps: --steps ends there", steps);
    print_heading(&engine, options, end);
    int r = digest_steps(&engine, end - options->steps_first, options->ids, &diag);
    int status = finish_stdout();
    if (r < 0)
        status = complain_diag(&diag);
    engine_close(&engine);
    return status;
}
