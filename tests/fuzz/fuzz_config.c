/* SPDX-License-Identifier: MIT */
/*
 * libFuzzer target: the configuration file, and the values of keys. A file that is accepted must be one that can be
 * copied, described, and described again from its own lines to the same.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool good) {
    if (!good)
        abort();
}

/* Every described line sets its key to what it was. */
static void describe_twice(const struct pipeline_config *config) {
    static char first[65536], second[65536];
    struct pipeline_config copy;
    int length = pipeline_config_describe(config, first, sizeof first);
    if (length < 0)
        return;
    check(pipeline_config_init(&copy, config->name) == 0);
    for (char *line = first, *end; (end = strchr(line, '\n')); line = end + 1) {
        char *equals = strchr(line, '=');
        check(equals && equals < end);
        *equals = *end = '\0';
        check(pipeline_config_set(&copy, line, equals + 1, NULL) == 0);
        *equals = '=';
        *end = '\n';
    }
    check(pipeline_config_describe(&copy, second, sizeof second) == length &&
          memcmp(first, second, (size_t)length) == 0);
    pipeline_config_deinit(&copy);
}

static void fuzz_file(const char *text, size_t size) {
    struct config config;
    struct diag diag = DIAG_INIT;
    int rc = config_parse(text, size, "dir/fuzz.conf", &config, &diag);
    check((rc < 0) == (diag.code < 0) && (rc == 0 || diag.text[0] != '\0'));
    if (rc < 0)
        return;
    for (uint32_t i = 0; i < config.pipelines; i++) {
        struct pipeline_config copy;
        check(config_pipeline(&config, config.pipeline[i].name) == &config.pipeline[i]);
        check(pipeline_config_copy(&config.pipeline[i], &copy) == 0);
        describe_twice(&copy);
        (void)pipeline_config_let(&copy, "batch", &diag);
        pipeline_config_deinit(&copy);
    }
    config_deinit(&config);
}

/* "KEY=VALUE" as a client sends it. */
static void fuzz_pair(char *text) {
    struct pipeline_config pipeline;
    struct config config;
    struct diag diag = DIAG_INIT;
    char *equals = strchr(text, '=');
    if (!equals)
        return;
    *equals = '\0';
    check(pipeline_config_init(&pipeline, "x") == 0 && config_init(&config) == 0);
    if (pipeline_config_set(&pipeline, text, equals + 1, &diag) == 0)
        describe_twice(&pipeline);
    (void)daemon_config_set(&config.daemon, text, equals + 1, &diag);
    (void)pipeline_config_let(&pipeline, text, &diag);
    pipeline_config_deinit(&pipeline);
    config_deinit(&config);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_file((const char *)data, size);
    char *text = malloc(size + 1);
    if (!text)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    fuzz_pair(text);
    free(text);
    return 0;
}
