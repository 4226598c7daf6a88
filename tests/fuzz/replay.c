/* SPDX-License-Identifier: MIT */
/*
 * A main() for the fuzz targets where libFuzzer is not wanted: runs LLVMFuzzerTestOneInput over every file of the
 * target's seed corpus ($srcdir/tests/fuzz/corpus/NAME for the program fuzz_NAME) or over the files and folders named
 * on the command line. Also runs each input cut at every quarter, and the empty input: the cheapest of lies about length.
 * Each input is handed over in a buffer of exactly its size, so that a sanitizer sees the first byte read too far.
 */
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static unsigned long files, inputs;

static void run_one(const uint8_t *bytes, size_t size) {
    uint8_t *copy = malloc(size ? size : 1);
    if (!copy)
        exit(99);
    memcpy(copy, bytes, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
    inputs++;
}

static int run_file(const char *path) {
    FILE *file = fopen(path, "rb");
    struct stat st;
    if (!file || fstat(fileno(file), &st) < 0) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return -1;
    }
    size_t size = (size_t)st.st_size;
    uint8_t *bytes = malloc(size ? size : 1);
    if (!bytes || fread(bytes, 1, size, file) != size) {
        fprintf(stderr, "%s: cannot be read\n", path);
        exit(99);
    }
    fclose(file);
    files++;
    for (size_t quarter = 0; quarter <= 4; quarter++)
        run_one(bytes, size * quarter / 4);
    free(bytes);
    return 0;
}

static int run_path(const char *path) {
    DIR *directory = opendir(path);
    if (!directory)
        return errno == ENOTDIR ? run_file(path) : (fprintf(stderr, "%s: %s\n", path, strerror(errno)), -1);
    int result = 0;
    for (struct dirent *entry; (entry = readdir(directory));) {
        char name[4096];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        result |= run_path(name);
    }
    closedir(directory);
    return result;
}

int main(int argc, char **argv) {
    int result = 0;
    for (int i = 1; i < argc; i++)
        result |= run_path(argv[i]);
    if (argc < 2) {
        const char *source = getenv("srcdir"), *target = strstr(argv[0], "fuzz_");
        char path[4096];
        for (const char *next; target && (next = strstr(target + 1, "fuzz_"));)
            target = next;
        snprintf(path, sizeof path, "%s/tests/fuzz/corpus/%s", source ? source : ".", target ? target + 5 : "");
        result = run_path(path);
    }
    if (!files) {
        fprintf(stderr, "no input was found: a seed corpus must not be empty\n");
        return 1;
    }
    printf("%lu files, %lu inputs\n", files, inputs);
    return result ? 1 : 0;
}
