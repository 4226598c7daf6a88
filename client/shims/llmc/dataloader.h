/* SPDX-License-Identifier: MIT */
/*
 * loaderd in place of llm.c's own loader: C99 or C++17, for llm.c of October 2024 and later, none of whose files is edited.
 * Compile the trainer with this header in front, and link libloaderd:
 *
 *     cc -include /usr/share/loaderd/shims/llmc/dataloader.h ... train_gpt2.c ... -lloaderd
 *
 * It defines the include guard of the loader that it replaces, DATALOADER_H, and the names that trainers use: DataLoader,
 * EvalLoader and their functions. docs/c-trainers.md is the guide, docs/TRAINERS.md what was measured.
 *
 * The same batches, bit for bit: shards are a pattern's matches in byte order; a sample of shard s are the tokens
 * [k G, k G + G], G = B T ranks, of which rank r has those from k G + r B T on; shuffled or not; epochs without end. What
 * the trainer writes into its checkpoint (the shard, the sample, both permutations, the generator) are the fields of the
 * same names and layouts, and describe the batch that was handed out last; those made ahead are known to the daemon alone.
 *
 *     trainer's fields --step--> id wanted now  ==  id of the batch that comes next
 *     ahead (a copy)   --step--> ids, sent early: loaderd_supply() --> daemon --> slots
 *
 * `inputs` and `targets` are one window of i32 in shared memory, targets one token further. They are read-only and valid
 * until the next call on the loader. Nothing is copied, no file is read by this process but the headers of the shards.
 *
 * Not as in the original: shards may have any size, and u32 tokens (magic 20240801); shard_num_samples is that of the
 * longest shard, and intra_shard_indices is so long (what is behind the current shard's samples has no meaning), so that
 * a checkpoint of shards of unequal length can be resumed. Errors are a sentence on stderr and exit(EXIT_FAILURE), as a
 * loader without return values must.
 *
 * LOADERD_LLMC_KEYS in the environment: further keys of loaderd.conf(5) for the daemon, as "workers=4 slots=16".
 * With -DLOADERD_LLMC_PIN (and -lloaderd-cuda) the ring is registered with CUDA, so that the trainer's copies are DMA.
 */
#ifndef DATALOADER_H
#define DATALOADER_H

#include <glob.h>
#include <limits.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#ifdef LOADERD_LLMC_PIN
#include <loaderd/cuda.h>
#endif
#include <loaderd/loaderd.h>

#define LOADERD_LLMC_HEADER 1024u /* bytes before the tokens, and of an evaluation file before the examples */
#define LOADERD_LLMC_IDS 64u      /* sent at once */

/* ---- errors ------------------------------------------------------------------------------------------------------ */

#ifdef __GNUC__
__attribute__((format(printf, 1, 2), noreturn, unused))
#endif
static void
loaderd_llmc_die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fflush(stdout);
    fputs("loaderd: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(EXIT_FAILURE);
}

static inline void *loaderd_llmc_new(size_t count, size_t size) {
    void *p = calloc(count ? count : 1, size);
    if (!p)
        loaderd_llmc_die("no memory left for %zu x %zu bytes", count, size);
    return p;
}

/* ---- MT19937, as the trainer draws (Matsumoto and Nishimura, 1998) --------------------------------------------------- */

/* The members are those of the trainer's mt19937_state, which it writes into checkpoints as bytes. */
struct loaderd_llmc_random {
    unsigned long long seed_;
    int left_;
    unsigned int next_;
    unsigned int state_[624];
    unsigned int MATRIX_A[2];
};

static inline void loaderd_llmc_seed(struct loaderd_llmc_random *r, uint32_t seed) {
    memset(r, 0, sizeof *r);
    r->MATRIX_A[1] = 0x9908b0dfu;
    r->state_[0] = seed;
    for (uint32_t i = 1; i < 624; i++)
        r->state_[i] = UINT32_C(1812433253) * (r->state_[i - 1] ^ r->state_[i - 1] >> 30) + i;
    r->left_ = 1;
}

static inline uint32_t loaderd_llmc_draw(struct loaderd_llmc_random *r) {
    if (--r->left_ <= 0) { /* the next 624 words, each of its successor and of the one 397 further, in a circle */
        for (unsigned i = 0; i < 624; i++) {
            uint32_t y = (r->state_[i] & 0x80000000u) | (r->state_[(i + 1) % 624] & 0x7fffffffu);
            r->state_[i] = r->state_[(i + 397) % 624] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
        }
        r->left_ = 624;
        r->next_ = 0;
    }
    uint32_t y = r->state_[r->next_++ % 624];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

/* Fisher and Yates from the top, in place. */
static inline void loaderd_llmc_permute(int *data, size_t count, struct loaderd_llmc_random *r) {
    for (size_t i = count; i-- > 1;) {
        size_t j = loaderd_llmc_draw(r) % (uint32_t)(i + 1);
        int swap = data[i];
        data[i] = data[j];
        data[j] = swap;
    }
}

/* ---- where a loader stands: pure ------------------------------------------------------------------------------------- */

struct loaderd_llmc_shard {
    uint64_t first; /* id of its first window in the daemon's dataset */
    size_t samples; /* of all ranks together */
};

/* The trainer's own place, or the one ahead of it. */
struct loaderd_llmc_place {
    size_t shard, sample; /* the sample that comes next */
    int shuffled;
    int *shards, *samples; /* permutations, NULL unless shuffled */
    struct loaderd_llmc_random *random;
};

static inline const struct loaderd_llmc_shard *loaderd_llmc_current(const struct loaderd_llmc_place *p,
                                                                    const struct loaderd_llmc_shard *shards) {
    return &shards[p->shuffled ? (size_t)p->shards[p->shard] : p->shard];
}

/* A shard is opened: the order of its samples is drawn from identity. */
static inline void loaderd_llmc_enter(struct loaderd_llmc_place *p, const struct loaderd_llmc_shard *shards,
                                      size_t shard) {
    p->shard = shard;
    p->sample = 0;
    if (!p->shuffled)
        return;
    size_t count = loaderd_llmc_current(p, shards)->samples;
    for (size_t i = 0; i < count; i++)
        p->samples[i] = (int)i;
    loaderd_llmc_permute(p->samples, count, p->random);
}

/* The beginning of an epoch. */
static inline void loaderd_llmc_begin(struct loaderd_llmc_place *p, const struct loaderd_llmc_shard *shards,
                                      size_t count) {
    if (p->shuffled)
        loaderd_llmc_permute(p->shards, count, p->random);
    loaderd_llmc_enter(p, shards, 0);
}

/* One batch further: the id of its window. A shard's order is drawn when its first batch is asked for. */
static inline uint64_t loaderd_llmc_step(struct loaderd_llmc_place *p, const struct loaderd_llmc_shard *shards,
                                         size_t count, uint64_t ranks, uint64_t rank) {
    if (p->sample >= loaderd_llmc_current(p, shards)->samples) {
        if (p->shard + 1 >= count)
            loaderd_llmc_begin(p, shards, count);
        else
            loaderd_llmc_enter(p, shards, p->shard + 1);
    }
    uint64_t sample = p->shuffled ? (uint64_t)p->samples[p->sample] : p->sample;
    p->sample++;
    return loaderd_llmc_current(p, shards)->first + sample * ranks + rank;
}

/* ---- DataLoader ------------------------------------------------------------------------------------------------------ */

struct loaderd_llmc {
    struct loaderd *loader;
    struct loaderd_batch batch; /* the one whose window the trainer looks at */
    int held;
    struct loaderd_llmc_shard *shards;
    struct loaderd_llmc_place ahead;
    struct loaderd_llmc_random random;
    uint64_t ids[LOADERD_LLMC_IDS]; /* not yet taken by the library: from `next` on */
    size_t next;
    uint64_t served; /* batches in all */
    uint64_t fresh;  /* batches since the session began or went elsewhere */
};

typedef struct {
    int process_rank;
    int num_processes;
    size_t B;
    size_t T;
    size_t num_tokens;         /* of all shards */
    size_t shard_num_samples;  /* of the longest shard */
    glob_t glob_result;        /* the shards, in byte order */
    size_t current_shard_idx;  /* the shard of the batch that was handed out last */
    size_t current_sample_idx; /* how many of its samples were */
    int *inputs;               /* B x T, read-only, until the next call */
    int *targets;              /* the same, one token further */
    struct loaderd_llmc_random shuffle_rng;
    int should_shuffle;
    int *shard_indices;       /* NULL unless shuffled; glob_result.gl_pathc of them */
    int *intra_shard_indices; /* likewise; shard_num_samples of them */
    struct loaderd_llmc *loaderd;
} DataLoader;

static inline int loaderd_llmc_by_bytes(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Tokens of a shard, by its header; a file that is not what the header says ends the program. */
static inline uint64_t loaderd_llmc_shard_tokens(const char *path) {
    uint32_t header[3] = {0, 0, 0};
    struct stat status;
    FILE *file = fopen(path, "rb");
    if (!file || stat(path, &status) != 0)
        loaderd_llmc_die("%s: cannot open this shard", path);
    size_t got = fread(header, sizeof header[0], 3, file);
    fclose(file);
    unsigned width = header[0] == 20240520 && header[1] == 1 ? 2u : header[0] == 20240801 && header[1] == 7 ? 4u : 0u;
    if (got < 3 || width == 0)
        loaderd_llmc_die(
            "%s: magic %u version %u at offset 0, wanted 20240520 version 1 (u16 tokens) or 20240801 version "
            "7 (u32): this is no shard of llm.c, or an old one",
            path, (unsigned)header[0], (unsigned)header[1]);
    uint64_t wanted = LOADERD_LLMC_HEADER + (uint64_t)header[2] * width;
    if ((uint64_t)status.st_size != wanted)
        loaderd_llmc_die(
            "%s: the header says %u tokens, which are %llu bytes, the file has %llu: it was cut, or its header "
            "is wrong",
            path, (unsigned)header[2], (unsigned long long)wanted, (unsigned long long)status.st_size);
    return header[2];
}

static inline void loaderd_llmc_find_shards(DataLoader *loader, const char *pattern) {
    struct loaderd_llmc *l = loader->loaderd;
    const uint64_t window = (uint64_t)loader->B * loader->T, sample = window * (uint64_t)loader->num_processes;
    struct stat status;
    if (glob(pattern, 0, NULL, &loader->glob_result) != 0 || loader->glob_result.gl_pathc == 0)
        loaderd_llmc_die("%s: no file matches this pattern of shards", pattern);
    if (strstr(pattern, " + ") || (strpbrk(pattern, ",{") && stat(pattern, &status) != 0))
        loaderd_llmc_die(
            "%s: commas, braces and ' + ' in a pattern of shards are not supported: loaderd would take them for "
            "lists",
            pattern);
    size_t count = loader->glob_result.gl_pathc;
    qsort(loader->glob_result.gl_pathv, count, sizeof(char *), loaderd_llmc_by_bytes); /* not by locale */
    l->shards = (struct loaderd_llmc_shard *)loaderd_llmc_new(count + 1, sizeof *l->shards);
    for (size_t i = 0; i < count; i++) {
        const char *path = loader->glob_result.gl_pathv[i];
        uint64_t tokens = loaderd_llmc_shard_tokens(path);
        if (tokens < sample + 1)
            loaderd_llmc_die(
                "%s: %llu tokens are too few: B %zu x T %zu x %d ranks and the target behind them need %llu", path,
                (unsigned long long)tokens, loader->B, loader->T, loader->num_processes,
                (unsigned long long)sample + 1);
        if ((tokens - 1) / sample > INT_MAX)
            loaderd_llmc_die("%s: more samples than an int can count", path);
        loader->num_tokens += (size_t)tokens;
        l->shards[i].samples = (size_t)((tokens - 1) / sample);
        l->shards[i + 1].first = l->shards[i].first + (tokens - 1) / window;
        if (l->shards[i].samples > loader->shard_num_samples)
            loader->shard_num_samples = l->shards[i].samples;
    }
}

/* The daemon must have found the same shards in the same order. */
static inline void loaderd_llmc_compare_shards(const DataLoader *loader, const char *pattern) {
    struct loaderd_llmc *l = loader->loaderd;
    struct loaderd_info info;
    size_t count = loader->glob_result.gl_pathc;
    loaderd_info(l->loader, &info);
    if (info.samples != l->shards[count].first)
        loaderd_llmc_die("%s: the daemon finds %llu windows, the headers of %zu shards say %llu: did a file change?",
                         pattern, (unsigned long long)info.samples, count, (unsigned long long)l->shards[count].first);
    for (size_t i = 0; i < count; i++) {
        char text[8192];
        const char *wanted = loader->glob_result.gl_pathv[i];
        if (strncmp(wanted, "./", 2) == 0)
            wanted += 2;
        if (loaderd_sample_path(l->loader, l->shards[i].first, text, sizeof text) < 0)
            loaderd_llmc_die("%s: %s", wanted, loaderd_error(l->loader));
        char *record = strrchr(text, '#');
        size_t length = record ? (size_t)(record - text) : strlen(text), tail = strlen(wanted);
        if (length < tail || strncmp(text + length - tail, wanted, tail) != 0)
            loaderd_llmc_die("%s: shard %zu is %s here, for the daemon it is %.*s", pattern, i, wanted, (int)length,
                             text);
    }
}

/* Adds "key=value" unless the user's own keys have it. */
static inline size_t loaderd_llmc_add_key(const char **keys, size_t count, size_t own, const char *key) {
    size_t length = strcspn(key, "=") + 1;
    for (size_t i = 0; i < own; i++)
        if (strncmp(keys[i], key, length) == 0)
            return count;
    keys[count] = key;
    return count + 1;
}

static inline void loaderd_llmc_open(DataLoader *loader, const char *pattern) {
    struct loaderd_llmc *l = loader->loaderd;
    struct loaderd_options options = LOADERD_OPTIONS_INIT;
    const char *keys[40] = {NULL}, *given = getenv("LOADERD_LLMC_KEYS");
    char tokens[48], error[1024], *own = (char *)loaderd_llmc_new(given ? strlen(given) + 1 : 1, 1);
    char *name = (char *)loaderd_llmc_new(strlen(pattern) + 3, 1);
    size_t count = 0;
    for (char *at = given ? strcpy(own, given) : own; *(at += strspn(at, " ")) && count < 32;) {
        keys[count++] = at;
        at += strcspn(at, " ");
        if (*at)
            *at++ = '\0';
    }
    size_t owned = count;
    snprintf(tokens, sizeof tokens, "tokens=%zu", loader->B * loader->T);
    keys[count++] = tokens;
    keys[count++] = "format=tokens";
    keys[count++] = "batch=1";
    keys[count++] = "shuffle=explicit";
    count = loaderd_llmc_add_key(keys, count, owned, "on-error=fail");
    count = loaderd_llmc_add_key(keys, count, owned, "workers=2");
    if (loader->B * loader->T <= 1u << 18) /* up to 32 MiB: the daemon is woken once in many batches */
        count = loaderd_llmc_add_key(keys, count, owned, "slots=32");
    sprintf(name, "%s%s", strchr(pattern, '/') ? "" : "./", pattern);
    options.keys = keys;
    options.rank = 0; /* each rank sends ids of its own */
    options.world = 1;
    if (loaderd_open(&l->loader, name, &options, error, sizeof error) < 0)
        loaderd_llmc_die("%s: %s", pattern, error);
    free(name);
    free(own);
#ifdef LOADERD_LLMC_PIN
    if (loaderd_cuda_pin(l->loader, -1, error, sizeof error) < 0)
        fprintf(stderr, "loaderd: %s: not pinned, copies are slower: %s\n", pattern, error);
#endif
    loaderd_llmc_compare_shards(loader, pattern);
}

static inline struct loaderd_llmc_place loaderd_llmc_place_of(DataLoader *loader) {
    struct loaderd_llmc_place p;
    p.shard = loader->current_shard_idx;
    p.sample = loader->current_sample_idx;
    p.shuffled = loader->should_shuffle;
    p.shards = loader->shard_indices;
    p.samples = loader->intra_shard_indices;
    p.random = &loader->shuffle_rng;
    return p;
}

/* Sends ids until the library wants no more. */
static inline void loaderd_llmc_supply(DataLoader *loader) {
    struct loaderd_llmc *l = loader->loaderd;
    for (;;) {
        if (l->next == LOADERD_LLMC_IDS) {
            for (size_t i = 0; i < LOADERD_LLMC_IDS; i++)
                l->ids[i] = loaderd_llmc_step(&l->ahead, l->shards, loader->glob_result.gl_pathc,
                                              (uint64_t)loader->num_processes, (uint64_t)loader->process_rank);
            l->next = 0;
        }
        int64_t taken = loaderd_supply(l->loader, l->ids + l->next, LOADERD_LLMC_IDS - l->next);
        if (taken <= 0)
            break;
        l->next += (size_t)taken;
        if (l->next < LOADERD_LLMC_IDS)
            break;
    }
}

/* The ids ahead begin anew where the trainer's fields stand. */
static inline void loaderd_llmc_follow(DataLoader *loader) {
    struct loaderd_llmc *l = loader->loaderd;
    int *shards = l->ahead.shards, *samples = l->ahead.samples;
    if (loader->should_shuffle) {
        if (!shards) {
            shards = (int *)loaderd_llmc_new(loader->glob_result.gl_pathc, sizeof *shards);
            samples = (int *)loaderd_llmc_new(loader->shard_num_samples, sizeof *samples);
        }
        memcpy(shards, loader->shard_indices, loader->glob_result.gl_pathc * sizeof *shards);
        memcpy(samples, loader->intra_shard_indices, loader->shard_num_samples * sizeof *samples);
    }
    l->random = loader->shuffle_rng;
    l->ahead = loaderd_llmc_place_of(loader);
    l->ahead.shards = shards;
    l->ahead.samples = samples;
    l->ahead.random = &l->random;
    l->next = LOADERD_LLMC_IDS;
    l->fresh = 0;
    loaderd_llmc_supply(loader);
}

static inline void loaderd_llmc_release(DataLoader *loader) {
    struct loaderd_llmc *l = loader->loaderd;
    if (l->held)
        loaderd_release(l->loader, &l->batch);
    l->held = 0;
}

static inline void loaderd_llmc_go(DataLoader *loader) {
    struct loaderd_llmc *l = loader->loaderd;
    if (loaderd_seek(l->loader, 0, l->served) < 0)
        loaderd_llmc_die("%s", loaderd_error(l->loader));
    loaderd_llmc_follow(loader);
}

static inline void dataloader_reset(DataLoader *loader) {
    struct loaderd_llmc *l = loader->loaderd;
    struct loaderd_llmc_place p = loaderd_llmc_place_of(loader);
    loaderd_llmc_begin(&p, l->shards, loader->glob_result.gl_pathc);
    int there = !p.shuffled && l->fresh == 0 && loader->current_shard_idx == 0 && loader->current_sample_idx == 0;
    loader->current_shard_idx = p.shard;
    loader->current_sample_idx = p.sample;
    if (!there)
        loaderd_llmc_go(loader);
}

static inline void dataloader_init(DataLoader *loader, const char *filename_pattern, size_t B, size_t T,
                                   int process_rank, int num_processes, int should_shuffle) {
    memset(loader, 0, sizeof *loader);
    if (B == 0 || T == 0 || B > UINT32_MAX || T > UINT32_MAX || (uint64_t)B * T > (UINT64_C(1) << 28) ||
        num_processes < 1 || process_rank < 0 || process_rank >= num_processes)
        loaderd_llmc_die(
            "B %zu x T %zu, rank %d of %d: wanted 1 to 2^28 tokens of a batch, and a rank below the number of "
            "ranks",
            B, T, process_rank, num_processes);
    loader->B = B;
    loader->T = T;
    loader->process_rank = process_rank;
    loader->num_processes = num_processes;
    loader->should_shuffle = should_shuffle;
    loader->loaderd = (struct loaderd_llmc *)loaderd_llmc_new(1, sizeof *loader->loaderd);
    loaderd_llmc_find_shards(loader, filename_pattern);
    size_t count = loader->glob_result.gl_pathc;
    if (should_shuffle) {
        loaderd_llmc_seed(&loader->shuffle_rng, 42u + (uint32_t)process_rank);
        loader->shard_indices = (int *)loaderd_llmc_new(count, sizeof(int));
        loader->intra_shard_indices = (int *)loaderd_llmc_new(loader->shard_num_samples, sizeof(int));
        for (size_t i = 0; i < count; i++)
            loader->shard_indices[i] = (int)i;
        for (size_t i = 0; i < loader->shard_num_samples; i++)
            loader->intra_shard_indices[i] = (int)i;
    }
    loaderd_llmc_open(loader, filename_pattern);
    struct loaderd_llmc_place p = loaderd_llmc_place_of(loader);
    loaderd_llmc_begin(&p, loader->loaderd->shards, count);
    loaderd_llmc_follow(loader);
}

/* The next batch: sets inputs and targets. What they were before is gone. */
static inline void dataloader_next_batch(DataLoader *loader) {
    struct loaderd_llmc *l = loader->loaderd;
    struct loaderd_llmc_place p = loaderd_llmc_place_of(loader);
    loaderd_llmc_release(loader);
    loaderd_llmc_supply(loader);
    uint64_t wanted = loaderd_llmc_step(&p, l->shards, loader->glob_result.gl_pathc, (uint64_t)loader->num_processes,
                                        (uint64_t)loader->process_rank);
    if (loaderd_next(l->loader, &l->batch) != 1)
        loaderd_llmc_die("%s", loaderd_error(l->loader));
    l->held = 1;
    l->served++;
    l->fresh++;
    if (l->batch.row[0].sample != wanted)
        loaderd_llmc_die("window %llu comes next, the loader's fields ask for %llu: after changing them call "
                         "dataloader_resume()",
                         (unsigned long long)l->batch.row[0].sample, (unsigned long long)wanted);
    loader->current_shard_idx = p.shard;
    loader->current_sample_idx = p.sample;
    loader->inputs = (int *)(uintptr_t)l->batch.fields[0].data;
    loader->targets = loader->inputs + 1;
}

/* A checkpoint's permutations may be of other data. */
static inline void loaderd_llmc_check_resume(const DataLoader *loader) {
    const size_t count = loader->glob_result.gl_pathc;
    if (loader->should_shuffle && (!loader->shard_indices || !loader->intra_shard_indices))
        loaderd_llmc_die("cannot resume a shuffled loader without its permutations");
    for (size_t i = 0; loader->should_shuffle && i < count; i++)
        if (loader->shard_indices[i] < 0 || (size_t)loader->shard_indices[i] >= count)
            loaderd_llmc_die(
                "the checkpoint's shard_indices[%zu] is %d, there are %zu shards: it belongs to other data", i,
                loader->shard_indices[i], count);
    size_t shard = loader->current_shard_idx;
    if (shard >= count)
        loaderd_llmc_die("the checkpoint stands at shard %zu, there are %zu: it belongs to other data", shard, count);
    size_t samples =
        loader->loaderd->shards[loader->should_shuffle ? (size_t)loader->shard_indices[shard] : shard].samples;
    if (loader->current_sample_idx > samples)
        loaderd_llmc_die("the checkpoint stands at sample %zu of a shard that has %zu: it belongs to other data",
                         loader->current_sample_idx, samples);
    for (size_t i = 0; loader->should_shuffle && i < samples; i++)
        if (loader->intra_shard_indices[i] < 0 || (size_t)loader->intra_shard_indices[i] >= samples)
            loaderd_llmc_die(
                "the checkpoint's intra_shard_indices[%zu] is %d, the shard has %zu samples: it belongs to other "
                "data",
                i, loader->intra_shard_indices[i], samples);
}

/* Goes on at this sample of this shard; what else the order needs the trainer has put into the fields before. */
static inline void dataloader_resume(DataLoader *loader, size_t current_shard_idx, size_t current_sample_idx) {
    loader->current_shard_idx = current_shard_idx;
    loader->current_sample_idx = current_sample_idx;
    loaderd_llmc_check_resume(loader);
    loaderd_llmc_go(loader);
}

static inline void dataloader_free(DataLoader *loader) {
    struct loaderd_llmc *l = loader->loaderd;
    loaderd_close(l->loader);
    free(l->shards);
    free(l->ahead.shards);
    free(l->ahead.samples);
    free(l);
    free(loader->shard_indices);
    free(loader->intra_shard_indices);
    globfree(&loader->glob_result);
    memset(loader, 0, sizeof *loader);
}

/* ---- EvalLoader: multiple choice (HellaSwag, MMLU) ---------------------------------------------------------------------
 * A small file that is read whole: 1024 bytes of header (magic 20240522, version 1, examples), then for each example u16:
 * 65535, its bytes, its number, the right completion, completions (4), tokens of the context and these, and for each
 * completion its tokens' number and these. A row is context and completion; mask is 1 where a completion is predicted. */

#define LOADERD_LLMC_CHOICES 4

typedef struct {
    int process_rank;
    int num_processes;
    size_t B;
    size_t T;
    int num_examples;
    int num_batches;
    int start_example_index;
    int end_example_index;
    int current_example_index;
    int *inputs;
    int *targets;
    char *mask;
    int *label;
    int num_completions;
    uint16_t *loaderd_words; /* the file behind its header */
    size_t *loaderd_starts;  /* of each example, in words */
} EvalLoader;

/* Checks one example; the word behind it. */
static inline size_t loaderd_llmc_check_example(const EvalLoader *loader, const char *path, size_t at, size_t words,
                                                int number) {
    const uint16_t *w = loader->loaderd_words + at;
    size_t length = words - at >= 6 ? w[1] / 2u : 0, used = 6;
    if (length < 6 || length > words - at || w[0] != 65535 || w[2] != (uint16_t)number ||
        w[3] >= LOADERD_LLMC_CHOICES || w[4] != LOADERD_LLMC_CHOICES)
        loaderd_llmc_die("%s: no example %d of %d completions at byte %zu", path, number, LOADERD_LLMC_CHOICES,
                         LOADERD_LLMC_HEADER + 2 * at);
    used += w[5];
    for (int c = 0; c < LOADERD_LLMC_CHOICES; c++) {
        size_t completion = used < length ? w[used] : 0;
        used += 1 + completion;
        if (w[5] == 0 || completion == 0 || used > length || w[5] + completion >= loader->T)
            loaderd_llmc_die(
                "%s: example %d has a completion of %zu tokens behind a context of %u: it is cut, or longer than "
                "T = %zu",
                path, number, completion, (unsigned)w[5], loader->T);
    }
    return at + length;
}

static inline void loaderd_llmc_read_examples(EvalLoader *loader, const char *path) {
    int32_t header[4] = {0, 0, 0, 0};
    struct stat status;
    FILE *file = fopen(path, "rb");
    if (!file || stat(path, &status) != 0)
        loaderd_llmc_die("%s: cannot open this evaluation file", path);
    if (fread(header, sizeof header[0], 4, file) < 4 || header[0] != 20240522 || header[1] != 1)
        loaderd_llmc_die("%s: magic %d version %d at offset 0, wanted 20240522 version 1", path, (int)header[0],
                         (int)header[1]);
    size_t bytes = (size_t)status.st_size, words = bytes > LOADERD_LLMC_HEADER ? (bytes - LOADERD_LLMC_HEADER) / 2 : 0;
    loader->num_examples = header[2];
    if (header[2] < loader->num_processes || (size_t)header[2] > words / 6)
        loaderd_llmc_die("%s: the header says %d examples; the file has %zu bytes, and there are %d ranks", path,
                         (int)header[2], (size_t)status.st_size, loader->num_processes);
    loader->loaderd_words = (uint16_t *)loaderd_llmc_new(words, sizeof(uint16_t));
    loader->loaderd_starts = (size_t *)loaderd_llmc_new((size_t)header[2], sizeof(size_t));
    if (fseek(file, (long)LOADERD_LLMC_HEADER, SEEK_SET) != 0 ||
        fread(loader->loaderd_words, sizeof(uint16_t), words, file) < words)
        loaderd_llmc_die("%s: cannot read this evaluation file", path);
    fclose(file);
    size_t at = 0;
    for (int i = 0; i < loader->num_examples; i++) {
        loader->loaderd_starts[i] = at;
        at = loaderd_llmc_check_example(loader, path, at, words, i);
    }
}

static inline void evalloader_reset(EvalLoader *loader) {
    int share = (loader->num_examples + loader->num_processes - 1) / loader->num_processes;
    int fit = (int)(loader->B / LOADERD_LLMC_CHOICES);
    loader->num_batches = (share + fit - 1) / fit;
    loader->start_example_index = share * loader->process_rank;
    loader->end_example_index = share * (loader->process_rank + 1);
    if (loader->end_example_index > loader->num_examples)
        loader->end_example_index = loader->num_examples;
    loader->current_example_index = loader->start_example_index;
}

static inline void evalloader_init(EvalLoader *loader, const char *filename, size_t B, size_t T, int process_rank,
                                   int num_processes) {
    memset(loader, 0, sizeof *loader);
    if (B < LOADERD_LLMC_CHOICES)
        loaderd_llmc_die(
            "%s: a batch of %zu rows is too small for the %d completions of an example: raise it, or evaluate "
            "without this file",
            filename, B, LOADERD_LLMC_CHOICES);
    loader->B = B;
    loader->T = T;
    loader->process_rank = process_rank;
    loader->num_processes = num_processes;
    loaderd_llmc_read_examples(loader, filename);
    loader->inputs = (int *)loaderd_llmc_new(B * T, sizeof(int));
    loader->targets = (int *)loaderd_llmc_new(B * T, sizeof(int));
    loader->mask = (char *)loaderd_llmc_new(B * T, 1);
    loader->label = (int *)loaderd_llmc_new(B / LOADERD_LLMC_CHOICES, sizeof(int));
    evalloader_reset(loader);
}

/* Puts an example into LOADERD_LLMC_CHOICES rows. What lies behind its tokens is left as it was: the mask is 0 there. */
static inline void loaderd_llmc_put_example(EvalLoader *loader, int example, size_t place) {
    const uint16_t *w = loader->loaderd_words + loader->loaderd_starts[example], *completion = w + 6 + w[5];
    loader->label[place] = w[3];
    loader->num_completions = LOADERD_LLMC_CHOICES;
    for (size_t c = 0; c < LOADERD_LLMC_CHOICES; c++) {
        size_t row = (place * LOADERD_LLMC_CHOICES + c) * loader->T, context = w[5], length = completion[0];
        for (size_t i = 0; i < context; i++)
            loader->inputs[row + i] = w[6 + i];
        for (size_t i = 0; i < length; i++) {
            loader->inputs[row + context + i] = completion[1 + i];
            loader->targets[row + context + i - 1] = completion[1 + i];
            loader->mask[row + context + i - 1] = 1;
        }
        completion += 1 + length;
    }
}

static inline void evalloader_next_batch(EvalLoader *loader) {
    memset(loader->mask, 0, loader->B * loader->T);
    for (size_t i = 0; i < loader->B / LOADERD_LLMC_CHOICES; i++)
        if (loader->current_example_index < loader->end_example_index)
            loaderd_llmc_put_example(loader, loader->current_example_index++, i);
}

/* Of B x T losses of this batch: how many examples have the smallest mean loss at their right completion. */
static inline int evalloader_stat_losses(EvalLoader *loader, float *losses) {
    int right = 0;
    for (size_t i = 0; i < loader->B / LOADERD_LLMC_CHOICES; i++) {
        int best = -1, there = 0;
        float least = 0;
        for (int c = 0; c < LOADERD_LLMC_CHOICES; c++) {
            size_t row = (i * LOADERD_LLMC_CHOICES + (size_t)c) * loader->T;
            float sum = 0;
            int count = 0;
            for (size_t t = 0; t < loader->T; t++)
                if (loader->mask[row + t]) {
                    sum += losses[row + t];
                    count++;
                }
            there |= count > 0;
            if (count > 0)
                sum /= (float)count;
            if (c == 0 || sum < least) {
                least = sum;
                best = c;
            }
        }
        right += there && best == loader->label[i];
    }
    return right;
}

static inline void evalloader_free(EvalLoader *loader) {
    free(loader->loaderd_words);
    free(loader->loaderd_starts);
    free(loader->inputs);
    free(loader->targets);
    free(loader->mask);
    free(loader->label);
    memset(loader, 0, sizeof *loader);
}

#endif
