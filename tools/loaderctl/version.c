/* SPDX-License-Identifier: MIT */
/* loaderctl version: what this build can do on this machine; --keys: the configuration keys, for the documentation test. */
#include "base/util.h"
#include "decode/decode.h"
#include "loaderctl.h"
#include "read/read.h"
#include "transform/transform.h"

static const enum read_engine engines[] = {READ_URING, READ_MMAP, READ_PREAD};

/* "libjpeg-turbo 2.1.5 (SIMD), libpng 1.6.39" */
static void list_codecs(char *text, size_t size) {
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; decode_version(i); i++) {
        int n = snprintf(text + used, size - used, "%s%s", i ? ", " : "", decode_version(i));
        used = MIN(used + (size_t)n, size - 1);
    }
}

static void print_json(void) {
    char codecs[512];
    list_codecs(codecs, sizeof codecs);
    printf("{\"version\": ");
    json_string(stdout, LOADERD_VERSION);
    printf(", \"codec\": ");
    json_string(stdout, codecs);
    printf(", \"simd\": ");
    json_string(stdout, transform_simd());
    printf(", \"engines\": [");
    for (size_t i = 0; i < ARRAY_SIZE(engines); i++) {
        struct diag why = DIAG_INIT;
        bool available = read_choose(engines[i], &why) == engines[i];
        printf("%s{\"engine\": \"%s\", \"available\": %s, \"reason\": ", i ? ", " : "", read_engine_name(engines[i]),
               available ? "true" : "false");
        json_string(stdout, why.text);
        printf("}");
    }
    printf("], \"engine\": \"%s\", \"cuda\": null, \"ring\": %u}\n", read_engine_name(read_choose(READ_AUTO, NULL)),
           LOADERD_RING_VERSION);
}

static void print_text(void) {
    struct diag why = DIAG_INIT;
    char codecs[512];
    list_codecs(codecs, sizeof codecs);
    printf("loaderctl %s\n", LOADERD_VERSION);
    printf("codec     %s\n", codecs);
    printf("simd      %s\n", transform_simd());
    printf("engines  ");
    for (size_t i = 0; i < ARRAY_SIZE(engines); i++) {
        why = (struct diag)DIAG_INIT;
        if (read_choose(engines[i], &why) == engines[i])
            printf(" %s", read_engine_name(engines[i]));
        else
            printf(" (no %s: %s)", read_engine_name(engines[i]), why.text);
    }
    printf("\nengine    %s when auto\n", read_engine_name(read_choose(READ_AUTO, NULL)));
    printf("cuda      not built\n");
    printf("ring      version %u\n", LOADERD_RING_VERSION);
}

int command_version(const struct options *options) {
    if (options->list_keys)
        config_print_keys(stdout);
    else if (options->json)
        print_json();
    else
        print_text();
    return finish_stdout();
}
