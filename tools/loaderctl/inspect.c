/* SPDX-License-Identifier: MIT */
/*
 * loaderctl inspect: what a dataset holds, by its index and by looking at samples (survey.c): format, fields, classes
 * with their numbers, sizes, remarks of the scan, the first sample that is not sound. Starts no workers of the daemon.
 */
#include <inttypes.h>
#include <string.h>

#include "base/util.h"
#include "dataset/dataset.h"
#include "loaderctl.h"

#define LOOK_AT 1000    /* samples, without --all */
#define SHOW_CLASSES 20 /* lines, without --all */

static const char *source_name(enum dataset_source source) {
    switch (source) {
    case SOURCE_VALUE:
        return "index";
    case SOURCE_BYTES:
        return "bytes";
    case SOURCE_PICTURE:
        return "picture";
    case SOURCE_RAGGED:
        return "ragged";
    case SOURCE_BOXES:
        return "boxes";
    default:
        return "synthetic";
    }
}

static const char *sample_name(const struct dataset *dataset, uint64_t sample, char *buffer, size_t size) {
    return dataset_name(dataset, sample, buffer, size) < 0 ? "?" : buffer;
}

static void print_fields_json(const struct dataset *dataset) {
    const struct dataset_field *fields;
    uint32_t n = dataset_fields(dataset, &fields);
    for (uint32_t i = 0; i < n; i++) {
        printf("%s{\"name\": ", i ? ", " : "");
        json_string(stdout, fields[i].spec.name);
        printf(", \"dtype\": \"%s\", \"shape\": [", loaderd_dtype_name(fields[i].spec.dtype));
        for (uint32_t d = 0; d < fields[i].spec.ndim; d++)
            if (fields[i].spec.dims[d] < 0)
                printf("%snull", d ? ", " : "");
            else
                printf("%s%" PRId64, d ? ", " : "", fields[i].spec.dims[d]);
        printf("], \"source\": \"%s\"}", source_name(fields[i].source));
    }
}

static void print_classes_json(const struct dataset *dataset) {
    const char *const *names = NULL;
    const uint64_t *samples = NULL;
    uint32_t n = dataset_classes(dataset, &names, &samples);
    for (uint32_t i = 0; i < n; i++) {
        printf("%s{\"number\": %" PRIu32 ", \"name\": ", i ? ", " : "", i);
        json_string(stdout, names[i]);
        if (samples)
            printf(", \"samples\": %" PRIu64, samples[i]);
        printf("}");
    }
}

static void print_survey_json(const struct dataset *dataset, const struct survey *survey) {
    char name[4096];
    printf(", \"checked\": %" PRIu64 ", \"unreadable\": %" PRIu64 ", \"bad\": %" PRIu64 ", \"damaged\": %" PRIu64,
           survey->samples, survey->unreadable, survey->bad, survey->damaged);
    printf(", \"bytes\": {\"min\": %" PRIu64 ", \"median\": %" PRIu64 ", \"max\": %" PRIu64 ", \"mean\": %" PRIu64 "}",
           survey->bytes_min, survey->bytes_median, survey->bytes_max, survey->bytes_mean);
    if (survey->pictures) {
        printf(", \"width\": {\"min\": %" PRIu32 ", \"median\": %" PRIu32 ", \"max\": %" PRIu32 "}", survey->width_min,
               survey->width_median, survey->width_max);
        printf(", \"height\": {\"min\": %" PRIu32 ", \"median\": %" PRIu32 ", \"max\": %" PRIu32 "}",
               survey->height_min, survey->height_median, survey->height_max);
        printf(", \"gray\": %" PRIu64 ", \"color\": %" PRIu64 ", \"cmyk\": %" PRIu64, survey->gray, survey->color,
               survey->cmyk);
    }
    if (survey->labels)
        printf(", \"labels\": {\"min\": %" PRId64 ", \"max\": %" PRId64 ", \"different\": %" PRIu64 "}",
               survey->label_min, survey->label_max, survey->labels);
    printf(", \"first_bad\": ");
    if (survey->first.found) {
        printf("{\"sample\": %" PRIu64 ", \"name\": ", survey->first.sample);
        json_string(stdout, sample_name(dataset, survey->first.sample, name, sizeof name));
        printf(", \"reason\": ");
        json_string(stdout, survey->first.text);
        printf("}");
    } else {
        printf("null");
    }
}

static void print_json(const struct dataset *dataset, const struct survey *survey) {
    printf("{\"dataset\": ");
    json_string(stdout, dataset_path(dataset));
    printf(", \"format\": ");
    json_string(stdout, dataset_format(dataset));
    printf(", \"samples\": %" PRIu64 ", \"index\": ", dataset_samples(dataset));
    json_string(stdout, dataset_index_note(dataset));
    printf(", \"fields\": [");
    print_fields_json(dataset);
    printf("], \"classes\": [");
    print_classes_json(dataset);
    printf("], \"remarks\": [");
    for (uint32_t i = 0; i < dataset_remarks(dataset); i++) {
        fputs(i ? ", " : "", stdout);
        json_string(stdout, dataset_remark(dataset, i));
    }
    printf("]");
    print_survey_json(dataset, survey);
    printf("}\n");
}

static void print_fields(const struct dataset *dataset) {
    const struct dataset_field *fields;
    uint32_t n = dataset_fields(dataset, &fields);
    for (uint32_t i = 0; i < n; i++) {
        const struct field_spec *spec = &fields[i].spec;
        printf("%-10s%s %s", i ? "" : "fields", spec->name, loaderd_dtype_name(spec->dtype));
        for (uint32_t d = 0; d < spec->ndim; d++) {
            fputs(d ? "," : "[", stdout);
            if (spec->dims[d] < 0)
                putchar('?');
            else
                printf("%" PRId64, spec->dims[d]);
        }
        printf("%s, from %s\n", spec->ndim ? "]" : "", source_name(fields[i].source));
    }
}

static void print_classes(const struct dataset *dataset, bool all) {
    const char *const *names = NULL;
    const uint64_t *samples = NULL;
    uint32_t n = dataset_classes(dataset, &names, &samples), shown = all || n <= SHOW_CLASSES + 1 ? n : SHOW_CLASSES;
    printf("classes   %" PRIu32 "\n", n);
    for (uint32_t i = 0; i < shown; i++)
        if (samples)
            printf("  %6" PRIu32 "  %10" PRIu64 " samples  %s\n", i, samples[i], names[i]);
        else
            printf("  %6" PRIu32 "  %s\n", i, names[i]);
    if (shown < n)
        printf("          and %" PRIu32 " more: --all lists them\n", n - shown);
}

static void print_survey(const struct dataset *dataset, const struct survey *survey) {
    char name[4096];
    printf("looked at %" PRIu64 " of %" PRIu64 " samples%s\n", survey->samples, dataset_samples(dataset),
           survey->samples < dataset_samples(dataset) ? ", spread evenly: --all looks at every one" : "");
    printf("bytes     %" PRIu64 " to %" PRIu64 " a sample, median %" PRIu64 ", mean %" PRIu64 "\n", survey->bytes_min,
           survey->bytes_max, survey->bytes_median, survey->bytes_mean);
    if (survey->pictures) {
        printf("width     %" PRIu32 " to %" PRIu32 " pixels, median %" PRIu32 "\n", survey->width_min,
               survey->width_max, survey->width_median);
        printf("height    %" PRIu32 " to %" PRIu32 " pixels, median %" PRIu32 "\n", survey->height_min,
               survey->height_max, survey->height_median);
        printf("kinds     %" PRIu64 " colour, %" PRIu64 " gray, %" PRIu64 " CMYK\n", survey->color, survey->gray,
               survey->cmyk);
    }
    if (survey->labels)
        printf("labels    %" PRId64 " to %" PRId64 ", %" PRIu64 " different\n", survey->label_min, survey->label_max,
               survey->labels);
    if (!survey->first.found) {
        printf("bad       none\n");
        return;
    }
    printf("bad       %" PRIu64 " bad, %" PRIu64 " damaged, %" PRIu64 " unreadable\n", survey->bad, survey->damaged,
           survey->unreadable);
    printf("first bad sample %" PRIu64 ", %s: %s\n", survey->first.sample,
           sample_name(dataset, survey->first.sample, name, sizeof name), survey->first.text);
}

static void print_text(const struct dataset *dataset, const struct survey *survey, bool all) {
    printf("dataset   %s\n", dataset_path(dataset));
    printf("format    %s\n", dataset_format(dataset));
    printf("samples   %" PRIu64 "\n", dataset_samples(dataset));
    printf("index     %s\n", dataset_index_note(dataset));
    print_fields(dataset);
    print_classes(dataset, all);
    for (uint32_t i = 0; i < dataset_remarks(dataset); i++)
        printf("remark    %s\n", dataset_remark(dataset, i));
    print_survey(dataset, survey);
}

static int inspect(struct setup *setup, const struct options *options) {
    struct diag diag = DIAG_INIT;
    struct pipeline *pipeline;
    struct survey survey;
    if (pipeline_new(&setup->pipeline, &setup->config.daemon, &pipeline, &diag) < 0)
        return complain_diag(&diag);
    const struct dataset *dataset = pipeline_dataset(pipeline);
    const struct survey_options survey_options = {
        .threads = threads_wanted(&setup->config.daemon),
        .samples = options->all ? UINT64_MAX : LOOK_AT,
        .limits = &setup->config.daemon,
    };
    int r = survey_run(dataset, &survey_options, &survey, &diag);
    if (r == 0 && options->json)
        print_json(dataset, &survey);
    else if (r == 0)
        print_text(dataset, &survey, options->all);
    pipeline_unref(pipeline);
    return r < 0 ? complain_diag(&diag) : finish_stdout();
}

int command_inspect(const struct options *options) {
    struct diag diag = DIAG_INIT;
    struct setup setup;
    if (setup_init(&setup, options, &diag) < 0)
        return complain_diag(&diag);
    int status = inspect(&setup, options);
    setup_deinit(&setup);
    return status;
}
