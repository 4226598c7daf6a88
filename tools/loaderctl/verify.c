/* SPDX-License-Identifier: MIT */
/*
 * loaderctl verify: is every sample of a dataset whole? Where records carry checksums these are compared, elsewhere every
 * picture is decoded to its last row (survey.c). One line a damaged sample on stdout, in order. Changes nothing.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/util.h"
#include "dataset/dataset.h"
#include "loaderctl.h"

struct bad {
    uint64_t sample;
    char *text;
};

struct verdicts {
    struct bad *bad;
    size_t count, room;
    bool lost; /* no memory for some */
};

static void note_bad(void *arg, uint64_t sample, const char *text) {
    struct verdicts *v = arg;
    if (v->count == v->room) {
        size_t room = v->room ? v->room * 2 : 64;
        struct bad *grown = realloc(v->bad, room * sizeof *grown);
        if (!grown) {
            v->lost = true;
            return;
        }
        v->bad = grown;
        v->room = room;
    }
    v->bad[v->count++] = (struct bad){sample, strdup(text)};
}

static int compare(const void *a, const void *b) {
    uint64_t x = ((const struct bad *)a)->sample, y = ((const struct bad *)b)->sample;
    return (x > y) - (x < y);
}

static void print_bad(const struct dataset *dataset, const struct verdicts *v) {
    char name[4096];
    if (v->count)
        qsort(v->bad, v->count, sizeof *v->bad, compare);
    for (size_t i = 0; i < v->count; i++) {
        const struct bad *bad = &v->bad[i];
        if (dataset_name(dataset, bad->sample, name, sizeof name) < 0)
            strcpy(name, "?");
        printf("damaged: sample %" PRIu64 ", %s: %s\n", bad->sample, name, bad->text ? bad->text : "out of memory");
    }
}

/* What belongs to no sample. Returns the number of things damaged. */
static uint64_t verify_shards(const struct dataset *dataset) {
    const uint64_t *first;
    uint64_t shards = dataset_shards(dataset, &first), damaged = 0;
    for (uint64_t i = 0; i < shards; i++) {
        struct diag diag = DIAG_INIT;
        if (dataset_verify(dataset, i, &diag) < 0) {
            printf("damaged: %s\n", diag.text);
            damaged++;
        }
    }
    return damaged;
}

static int verify(const struct setup *setup, const struct dataset *dataset, const struct options *options) {
    struct diag diag = DIAG_INIT;
    struct verdicts v = {0};
    struct survey survey;
    struct daemon_config limits = setup->config.daemon;
    const struct survey_options survey_options = {.threads = threads_wanted(&limits),
                                                  .samples = UINT64_MAX,
                                                  .limits = &limits,
                                                  .checksums = !options->all,
                                                  .each_bad = note_bad,
                                                  .arg = &v};
    uint64_t damaged = verify_shards(dataset);
    int r = survey_run(dataset, &survey_options, &survey, &diag);
    if (r == 0) {
        print_bad(dataset, &v);
        printf("%s: %" PRIu64 " samples, %" PRIu64 " damaged%s\n", dataset_path(dataset), survey.samples,
               survey.unreadable + survey.bad + survey.damaged, damaged ? ", and shards, see above" : "");
        damaged += survey.unreadable + survey.bad + survey.damaged;
    }
    for (size_t i = 0; i < v.count; i++)
        free(v.bad[i].text);
    free(v.bad);
    if (r < 0)
        return complain_diag(&diag);
    int status = finish_stdout();
    return damaged ? EXIT_FAILED : status;
}

int command_verify(const struct options *options) {
    struct diag diag = DIAG_INIT;
    struct setup setup;
    struct pipeline *pipeline;
    if (setup_init(&setup, options, &diag) < 0)
        return complain_diag(&diag);
    int status;
    if (pipeline_new(&setup.pipeline, &setup.config.daemon, &pipeline, &diag) < 0) {
        status = complain_diag(&diag);
    } else {
        status = verify(&setup, pipeline_dataset(pipeline), options);
        pipeline_unref(pipeline);
    }
    setup_deinit(&setup);
    return status;
}
