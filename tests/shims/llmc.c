/* SPDX-License-Identifier: MIT */
/*
 * The shim for llm.c, as a trainer uses it: compiled as C99 and, by llmc-c++.cc, as C++17. The values in tables were
 * computed by the loader that it replaces. Each test is a process; private daemons, in a directory of its own.
 */
#include "llmc/dataloader.h"

#include <sys/wait.h>
#include <unistd.h>

static const char *test = "";

__attribute__((noreturn)) static void failed(int line, const char *what) {
    fprintf(stderr, "%s: line %d: %s\n", test, line, what);
    exit(2);
}

#define CHECK(condition) ((condition) ? (void)0 : failed(__LINE__, #condition))

static uint32_t crc32_of(uint32_t crc, const void *data, size_t bytes) {
    const unsigned char *p = (const unsigned char *)data;
    crc = ~crc;
    while (bytes--) {
        crc ^= *p++;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return ~crc;
}

/* ---- shards ---------------------------------------------------------------------------------------------------------- */

static uint16_t token(uint32_t shard, uint32_t i) {
    return (uint16_t)(((shard * 1000003u + i) * 2654435761u >> 16) % 50257u);
}

static uint32_t write_shard(const char *path, uint32_t magic, uint32_t version, const void *tokens, uint32_t count,
                            uint32_t width) {
    uint32_t header[256] = {magic, version, count};
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(header, 1, sizeof header, f) == sizeof header && fwrite(tokens, width, count, f) == count);
    fclose(f);
    return crc32_of(crc32_of(0, header, sizeof header), tokens, (size_t)count * width);
}

static uint32_t make_shard(const char *path, uint32_t shard, uint32_t count) {
    uint16_t *tokens = (uint16_t *)loaderd_llmc_new(count, sizeof *tokens);
    for (uint32_t i = 0; i < count; i++)
        tokens[i] = token(shard, i);
    uint32_t crc = write_shard(path, 20240520, 1, tokens, count, 2);
    free(tokens);
    return crc;
}

static void make_set3(void) {
    CHECK(make_shard("tok_0000.bin", 0, 1000) == 0xaed0230fu);
    CHECK(make_shard("tok_0001.bin", 1, 777) == 0x7ce19b2cu);
    CHECK(make_shard("tok_0002.bin", 2, 1281) == 0xf3ec4819u);
    CHECK(token(0, 1) == 40503 && token(1, 2) == 5042 && token(2, 0) == 44678);
}

static uint32_t batch_crc(const DataLoader *l) {
    size_t bytes = l->B * l->T * sizeof(int);
    return crc32_of(crc32_of(0, l->inputs, bytes), l->targets, bytes);
}

static void next_is(DataLoader *l, size_t shard, size_t sample, uint32_t crc) {
    dataloader_next_batch(l);
    size_t k = l->current_sample_idx - 1, s = l->current_shard_idx;
    CHECK((l->should_shuffle ? (size_t)l->shard_indices[s] : s) == shard);
    CHECK((l->should_shuffle ? (size_t)l->intra_shard_indices[k] : k) == sample);
    CHECK(batch_crc(l) == crc);
}

/* CRC-32 over the crcs of the next n batches, each also kept in `each` if that is not NULL. */
static uint32_t rolling(DataLoader *l, int n, uint32_t crc, uint32_t *each) {
    for (int i = 0; i < n; i++) {
        dataloader_next_batch(l);
        uint32_t one = batch_crc(l);
        crc = crc32_of(crc, &one, 4);
        if (each)
            each[i] = one;
    }
    return crc;
}

/* ---- what the loader that is replaced gives -------------------------------------------------------------------------- */

struct golden {
    int rank, shuffled, shards[5], samples[5];
    uint32_t crc[5], rolling47, rolling94;
};

static void golden_batches(void) {
    static const struct golden table[] = {
        {0,
         0,
         {0, 0, 0, 0, 0},
         {0, 1, 2, 3, 4},
         {0x0c5f5fed, 0xc9dea9fa, 0xed89c8f5, 0x1538be2e, 0xc6268fc0},
         0x398a9abe,
         0x3aba31f6},
        {1,
         0,
         {0, 0, 0, 0, 0},
         {0, 1, 2, 3, 4},
         {0x318f0ae7, 0xb1a8f03d, 0x6cf8b45f, 0x1355a85e, 0xa78b53fc},
         0x6f8f774e,
         0xa23cc698},
        {0,
         1,
         {2, 2, 2, 2, 2},
         {4, 19, 1, 3, 8},
         {0x86927c45, 0xdc5a222a, 0x6744cf88, 0x52c9ce48, 0x3da0fc44},
         0xc27a8bed,
         0x4489deb2},
    };
    make_set3();
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        const struct golden *g = &table[i];
        DataLoader l;
        dataloader_init(&l, "tok_*.bin", 2, 16, g->rank, 2, g->shuffled);
        CHECK(l.num_tokens == 1000 + 777 + 1281 && l.glob_result.gl_pathc == 3);
        for (int b = 0; b < 5; b++)
            next_is(&l, (size_t)g->shards[b], (size_t)g->samples[b], g->crc[b]);
        dataloader_free(&l);
        dataloader_init(&l, "tok_*.bin", 2, 16, g->rank, 2, g->shuffled);
        uint32_t crc = rolling(&l, 47, 0, NULL);
        CHECK(crc == g->rolling47);
        CHECK(rolling(&l, 47, crc, NULL) == g->rolling94);
        dataloader_free(&l);
    }
}

static void one_rank_and_switch(void) {
    static const uint32_t crcs[] = {0x0c5f5fed, 0x318f0ae7, 0xc9dea9fa, 0xb1a8f03d, 0xed89c8f5};
    DataLoader l;
    make_set3();
    dataloader_init(&l, "./tok_000[0-2].bin", 2, 16, 0, 1, 0);
    for (size_t b = 0; b < 5; b++)
        next_is(&l, 0, b, crcs[b]);
    rolling(&l, 31 + 24 + 40 - 5, 0, NULL);
    CHECK(l.current_shard_idx == 2 && l.current_sample_idx == 40);
    next_is(&l, 0, 0, crcs[0]); /* the next epoch, silently */
    dataloader_free(&l);
    dataloader_init(&l, "tok_*.bin", 2, 16, 0, 2, 0);
    rolling(&l, 14, 0, NULL);
    next_is(&l, 0, 14, 0x5638a48f);
    next_is(&l, 1, 0, 0xdd2b3f83);
    next_is(&l, 1, 1, 0x777540b6);
    dataloader_free(&l);
}

static void generator(void) {
    static const uint32_t drawn[] = {1608637542u, 3421126067u, 4083286876u, 787846414u, 3143890026u};
    static const int three[2][3] = {{2, 1, 0}, {0, 2, 1}};
    static const int ten[2][10] = {{1, 3, 9, 7, 6, 0, 8, 4, 5, 2}, {2, 5, 9, 0, 3, 1, 4, 8, 6, 7}};
    struct loaderd_llmc_random r;
    int a[3] = {0, 1, 2}, b[10] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    loaderd_llmc_seed(&r, 42);
    for (int i = 0; i < 5; i++)
        CHECK(loaderd_llmc_draw(&r) == drawn[i]);
    loaderd_llmc_seed(&r, 42);
    for (int i = 0; i < 2; i++) {
        loaderd_llmc_permute(a, 3, &r);
        CHECK(memcmp(a, three[i], sizeof a) == 0);
    }
    loaderd_llmc_seed(&r, 42);
    for (int i = 0; i < 2; i++) {
        loaderd_llmc_permute(b, 10, &r);
        CHECK(memcmp(b, ten[i], sizeof b) == 0);
    }
}

/* ---- laws ------------------------------------------------------------------------------------------------------------ */

static void windows_overlap(void) {
    DataLoader l[2];
    int last[2] = {-1, -1};
    make_set3();
    for (int r = 0; r < 2; r++)
        dataloader_init(&l[r], "tok_*.bin", 2, 16, r, 2, 0);
    for (uint32_t k = 0; k < 15; k++)
        for (uint32_t r = 0; r < 2; r++) {
            dataloader_next_batch(&l[r]);
            for (uint32_t i = 0; i < 32; i++) {
                CHECK(l[r].inputs[i] == token(0, k * 64 + r * 32 + i));
                CHECK(l[r].targets[i] == token(0, k * 64 + r * 32 + i + 1));
            }
            CHECK(k + r == 0 ||
                  l[r].inputs[0] == last[r ^ 1]); /* one rank's last target is the next one's first token */
            last[r] = l[r].targets[31];
        }
    for (int r = 0; r < 2; r++)
        dataloader_free(&l[r]);
}

/* A shuffled epoch has every sample once, each shard's together. */
static void every_sample_once(void) {
    DataLoader l;
    make_set3();
    dataloader_init(&l, "tok_*.bin", 2, 16, 1, 2, 1);
    for (int epoch = 0; epoch < 3; epoch++) {
        int seen[3][20] = {{0}}, total = 0;
        for (size_t place = 0; place < 3; place++) {
            int shard = -1;
            do {
                dataloader_next_batch(&l);
                shard = l.shard_indices[l.current_shard_idx];
                CHECK(l.current_shard_idx == place);
                CHECK(seen[shard][l.intra_shard_indices[l.current_sample_idx - 1]]++ == 0);
                total++;
            } while (l.current_sample_idx < l.loaderd->shards[shard].samples);
        }
        CHECK(total == 47);
    }
    dataloader_free(&l);
}

static void resets(void) {
    DataLoader l;
    uint32_t plain[50], shuffled[150];
    make_set3();
    dataloader_init(&l, "tok_*.bin", 2, 16, 0, 2, 0);
    rolling(&l, 50, 0, plain);
    for (int n = 0; n < 20; n += 3) { /* as validation does; nothing that was made ahead appears */
        dataloader_reset(&l);
        dataloader_reset(&l);
        for (int i = 0; i < n; i++) {
            dataloader_next_batch(&l);
            CHECK(batch_crc(&l) == plain[i]);
        }
    }
    dataloader_free(&l);
    /* shuffled: a reset in the middle of a shard draws the next epoch's order, as running to the end would not */
    dataloader_init(&l, "tok_*.bin", 2, 16, 0, 2, 1);
    rolling(&l, 47, 0, NULL);
    dataloader_reset(&l);
    rolling(&l, 47, 0, shuffled);
    dataloader_free(&l);
    dataloader_init(&l, "tok_*.bin", 2, 16, 0, 2, 1);
    rolling(&l, 47, 0, NULL);
    for (int i = 0; i < 47; i++) {
        dataloader_next_batch(&l);
        CHECK(batch_crc(&l) == shuffled[i]);
    }
    dataloader_free(&l);
}

/* A checkpoint as the trainer writes and reads it, by the struct's fields. */
struct checkpoint {
    int shuffled;
    size_t shard, sample, shards, samples;
    int *shard_indices, *intra;
    struct loaderd_llmc_random random;
};

static int *copy_ints(const int *from, size_t count) {
    int *to = (int *)malloc(count * sizeof *to);
    memcpy(to, from, count * sizeof *to);
    return to;
}

static struct checkpoint save(const DataLoader *l) {
    struct checkpoint c;
    memset(&c, 0, sizeof c);
    c.shuffled = l->should_shuffle;
    c.shard = l->current_shard_idx;
    c.sample = l->current_sample_idx;
    if (c.shuffled) {
        c.shards = l->glob_result.gl_pathc;
        c.samples = l->shard_num_samples;
        c.shard_indices = copy_ints(l->shard_indices, c.shards);
        c.intra = copy_ints(l->intra_shard_indices, c.samples);
        c.random = l->shuffle_rng;
    }
    return c;
}

static void load(DataLoader *l, const struct checkpoint *c) {
    l->should_shuffle = c->shuffled;
    if (c->shuffled) {
        CHECK(c->shards == l->glob_result.gl_pathc);
        CHECK(c->samples == l->shard_num_samples); /* the trainer ends itself otherwise */
        free(l->shard_indices);
        free(l->intra_shard_indices);
        l->shard_indices = copy_ints(c->shard_indices, c->shards);
        l->intra_shard_indices = copy_ints(c->intra, c->samples);
        l->shuffle_rng = c->random;
    }
    dataloader_resume(l, c->shard, c->sample);
}

static void checkpoints(void) {
    static const int at[] = {0, 1, 14, 15, 19, 20, 21, 34, 35, 46, 47, 48, 60, 93};
    uint32_t whole[130];
    make_set3();
    for (int shuffled = 0; shuffled < 2; shuffled++) {
        DataLoader l, later;
        dataloader_init(&l, "tok_*.bin", 2, 16, 1, 2, shuffled);
        rolling(&l, 130, 0, whole);
        dataloader_free(&l);
        dataloader_init(&l, "tok_*.bin", 2, 16, 1, 2, shuffled);
        for (int n = 0; n < (int)(sizeof at / sizeof at[0]); n++) {
            rolling(&l, at[n] - (n ? at[n - 1] : 0), 0, NULL);
            struct checkpoint c = save(&l);
            dataloader_init(&later, "tok_*.bin", 2, 16, 1, 2, n % 2 ? 0 : shuffled);
            rolling(&later, n, 0, NULL);
            load(&later, &c);
            for (int i = at[n]; i < at[n] + 30; i++) {
                dataloader_next_batch(&later);
                CHECK(batch_crc(&later) == whole[i]);
            }
            load(&later, &c); /* and back, on the same loader */
            dataloader_next_batch(&later);
            CHECK(batch_crc(&later) == whole[at[n]]);
            free(c.shard_indices);
            free(c.intra);
            dataloader_free(&later);
        }
        dataloader_free(&l);
    }
}

/* ---- edges ----------------------------------------------------------------------------------------------------------- */

/* How many samples an epoch has. */
static int count_samples(const char *pattern, int ranks) {
    DataLoader l;
    int n = 0;
    dataloader_init(&l, pattern, 2, 16, 0, ranks, 0);
    do {
        dataloader_next_batch(&l);
        n++;
    } while (l.current_sample_idx != 1 || n == 1);
    dataloader_free(&l);
    return n - 1;
}

static void edges(void) {
    static const uint16_t values[] = {0, 32767, 32768, 50256, 65535};
    static const char *const names[] = {"Tok_2.bin", "tok_1.bin", "tok_10.bin", "tok_2a.bin", "tok_9.bin"};
    DataLoader l;
    uint16_t tokens[33];
    make_shard("a.bin", 7, 1280);
    CHECK(count_samples("a.bin", 1) == 39);
    make_shard("a.bin", 7, 1281);
    CHECK(count_samples("a.bin", 1) == 40);
    make_shard("b.bin", 9, 65);
    CHECK(count_samples("b.bin", 2) == 1);
    dataloader_init(&l, "b.bin", 2, 16, 1, 2, 0);
    dataloader_next_batch(&l);
    CHECK(batch_crc(&l) == 0x736c8089u);
    CHECK(l.targets[31] == token(9, 64));
    dataloader_free(&l);
    for (int i = 0; i < 33; i++)
        tokens[i] = values[i % 5];
    write_shard("c.bin", 20240520, 1, tokens, 33, 2);
    dataloader_init(&l, "c.bin", 2, 16, 0, 1, 0);
    dataloader_next_batch(&l);
    for (int i = 0; i < 32; i++)
        CHECK(l.inputs[i] == values[i % 5] && l.targets[i] == values[(i + 1) % 5]);
    dataloader_free(&l);
    for (uint32_t i = 0; i < 5; i++)
        make_shard(names[i], i, 40);
    dataloader_init(&l, "[Tt]ok_*.bin", 2, 16, 0, 1, 0);
    for (uint32_t i = 0; i < 5; i++) {
        CHECK(strcmp(l.glob_result.gl_pathv[i], names[i]) == 0);
        dataloader_next_batch(&l);
        CHECK(l.inputs[0] == token(i, 0) && l.inputs[1] == token(i, 1));
    }
    dataloader_free(&l);
}

static void wide_tokens(void) {
    uint32_t tokens[33];
    DataLoader l;
    for (uint32_t i = 0; i < 33; i++)
        tokens[i] = 100000 + i * 997;
    write_shard("wide.bin", 20240801, 7, tokens, 33, 4);
    dataloader_init(&l, "wide.bin", 2, 16, 0, 1, 0);
    dataloader_next_batch(&l);
    for (uint32_t i = 0; i < 32; i++)
        CHECK(l.inputs[i] == (int)tokens[i] && l.targets[i] == (int)tokens[i + 1]);
    dataloader_free(&l);
}

/* A shard beyond 2 GiB: tokens are written around two samples only, the rest is a hole. */
static void large_shard(void) {
    static const uint64_t samples[] = {262144, 262145, 292967};
    const uint32_t count = 1200000000;
    uint32_t header[256] = {20240520, 1, count};
    FILE *f = fopen("large.bin", "wb");
    CHECK(f && fwrite(header, 1, sizeof header, f) == sizeof header);
    for (int i = 0; i < 3; i++)
        for (uint32_t t = 0; t < 4097; t++) {
            uint16_t v = token(5, (uint32_t)(samples[i] * 4096) + t);
            CHECK(t > 0 || fseeko(f, (off_t)(1024 + samples[i] * 4096 * 2), SEEK_SET) == 0);
            CHECK(fwrite(&v, 2, 1, f) == 1);
        }
    fflush(f);
    if (samples[2] * 4096 + 4097 > count || ftruncate(fileno(f), 1024 + (off_t)count * 2) != 0) {
        fprintf(stderr, "%s: no room for a sparse file of 2.4 GB here\n", test);
        exit(77);
    }
    fclose(f);
    DataLoader l;
    dataloader_init(&l, "large.bin", 4, 1024, 0, 1, 0);
    for (int i = 0; i < 3; i++) {
        dataloader_resume(&l, 0, (size_t)samples[i]);
        dataloader_next_batch(&l);
        for (uint32_t t = 0; t < 4096; t++) {
            CHECK(l.inputs[t] == token(5, (uint32_t)(samples[i] * 4096) + t));
            CHECK(l.targets[t] == token(5, (uint32_t)(samples[i] * 4096) + t + 1));
        }
    }
    dataloader_free(&l);
}

/* ---- refusals: in a child, whose sentence must hold a word ----------------------------------------------------------- */

static const char *refused_pattern;
static int refused_ranks;

static void try_init(void) {
    DataLoader l;
    dataloader_init(&l, refused_pattern, 2, 16, 0, refused_ranks, 0);
}

static void try_foreign_checkpoint(void) {
    DataLoader l;
    make_set3();
    dataloader_init(&l, "tok_*.bin", 2, 16, 0, 2, 1);
    l.intra_shard_indices[3] = 20;
    dataloader_resume(&l, 0, 1);
}

static void try_evaluation(void) {
    EvalLoader e;
    evalloader_init(&e, refused_pattern, 4, 8, 0, 1);
}

static void refuses(void (*f)(void), const char *pattern, int ranks, const char *word) {
    char text[2048];
    int fds[2], status;
    refused_pattern = pattern;
    refused_ranks = ranks;
    CHECK(pipe(fds) == 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(fds[1], 2);
        f();
        _exit(0);
    }
    close(fds[1]);
    size_t length = 0;
    for (ssize_t n; length < sizeof text - 1 && (n = read(fds[0], text + length, sizeof text - 1 - length)) > 0;)
        length += (size_t)n;
    text[length] = '\0';
    close(fds[0]);
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == EXIT_FAILURE);
    if (!strstr(text, word)) {
        fprintf(stderr, "%s: wanted \"%s\" in: %s\n", test, word, text);
        exit(2);
    }
}

static void refusals(void) {
    make_shard("short.bin", 1, 64);
    refuses(try_init, "short.bin", 2, "need 65");
    refuses(try_init, "nothing_*.bin", 1, "no file matches");
    write_shard("old.bin", 20240519, 1, "", 0, 2);
    refuses(try_init, "old.bin", 1, "magic 20240519");
    make_shard("cut.bin", 1, 200);
    CHECK(truncate("cut.bin", 1024 + 398) == 0);
    refuses(try_init, "cut.bin", 1, "it was cut");
    refuses(try_init, "cut.bin", 0, "wanted 1 to 2^28");
    make_shard("x{1,2}.bin", 1, 200);
    refuses(try_init, "x{1,2}*.bin", 1, "braces");
    refuses(try_foreign_checkpoint, "", 1, "belongs to other data");
    uint16_t example[] = {65535, 2 * 15, 0, 1, 4, 1, 5, 1, 6, 1, 6, 1, 6, 9, 6};
    write_shard("eval.bin", 20240522, 1, example, 1, sizeof example);
    refuses(try_evaluation, "eval.bin", 1, "completion of 9 tokens");
    write_shard("eval.bin", 20240522, 1, example, 1, 4);
    refuses(try_evaluation, "eval.bin", 1, "says 1 examples; the file has 1028 bytes");
}

/* ---- ranks ----------------------------------------------------------------------------------------------------------- */

/* Ranks as mpirun starts them share one daemon; each gets its own rows. */
static void ranks_share_a_daemon(void) {
    int pids[2], status, daemon[4];
    make_set3();
    CHECK(pipe(pids) == 0);
    setenv("MASTER_ADDR", "localhost", 1);
    setenv("MASTER_PORT", "29511", 1);
    for (int rank = 0; rank < 4; rank++) {
        fflush(NULL);
        if (fork() != 0)
            continue;
        DataLoader l, v;
        struct loaderd_info info, other;
        char number[16];
        snprintf(number, sizeof number, "%d", rank);
        setenv("RANK", number, 1);
        setenv("WORLD_SIZE", "4", 1);
        dataloader_init(&l, "tok_*.bin", 1, 16, rank, 4, 0);
        dataloader_init(&v, "tok_0001.bin", 1, 16, rank, 4, 0);
        loaderd_info(l.loaderd->loader, &info);
        loaderd_info(v.loaderd->loader, &other);
        CHECK(info.daemon_pid == other.daemon_pid);
        for (uint32_t k = 0; k < 12; k++) {
            dataloader_next_batch(&l);
            CHECK(l.inputs[0] == token(0, k * 64 + (uint32_t)rank * 16));
            dataloader_next_batch(&v);
            CHECK(v.inputs[0] == token(1, k * 64 + (uint32_t)rank * 16));
        }
        int pid = info.daemon_pid;
        CHECK(write(pids[1], &pid, sizeof pid) == (ssize_t)sizeof pid);
        for (int waited = 0; waited < 600 && access("told", F_OK) != 0; waited++) /* the daemon lives */
            usleep(50000);
        dataloader_free(&l);
        dataloader_free(&v);
        _exit(0);
    }
    for (int i = 0; i < 4; i++)
        CHECK(read(pids[0], &daemon[i], sizeof daemon[i]) == (ssize_t)sizeof daemon[i] && daemon[i] == daemon[0]);
    fclose(fopen("told", "w"));
    for (int i = 0; i < 4; i++)
        CHECK(wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* ---- evaluation ------------------------------------------------------------------------------------------------------ */

static void evaluation(void) {
    /* three examples: context 10+e 11; completions of 1, 2, 3 and 1 tokens */
    uint16_t words[3 * 19];
    for (uint16_t e = 0; e < 3; e++) {
        const uint16_t one[19] = {
            65535, 38, e, (uint16_t)(e + 1), 4, 2, (uint16_t)(10 + e), 11, 1, 20, 2, 30, 31, 3, 40, 41, 42, 1, 50};
        memcpy(words + e * 19, one, sizeof one);
    }
    uint32_t header[256] = {20240522, 1, 3, 38};
    FILE *f = fopen("eval.bin", "wb");
    CHECK(f && fwrite(header, 1, sizeof header, f) == sizeof header && fwrite(words, 2, 57, f) == 57);
    fclose(f);
    EvalLoader e;
    float losses[9 * 8];
    evalloader_init(&e, "eval.bin", 9, 8, 0, 1); /* two examples in a batch of nine rows */
    CHECK(e.num_examples == 3 && e.num_batches == 2);
    evalloader_next_batch(&e);
    static const int inputs[4][5] = {{10, 11, 20}, {10, 11, 30, 31}, {10, 11, 40, 41, 42}, {10, 11, 50}};
    static const int lengths[4] = {1, 2, 3, 1};
    for (int example = 0; example < 2; example++)
        for (int c = 0; c < 4; c++) {
            int row = (example * 4 + c) * 8;
            CHECK(e.inputs[row] == 10 + example);
            for (int i = 1; i < 2 + lengths[c]; i++)
                CHECK(e.inputs[row + i] == inputs[c][i]);
            for (int i = 0; i < 8; i++) {
                int predicted = i >= 1 && i < 1 + lengths[c];
                CHECK(e.mask[row + i] == predicted);
                CHECK(!predicted || e.targets[row + i] == inputs[c][i + 1]);
            }
        }
    CHECK(e.label[0] == 1 && e.label[1] == 2 && e.num_completions == 4);
    for (int i = 0; i < 72; i++)
        losses[i] = 5;
    losses[1 * 8 + 1] = losses[1 * 8 + 2] = 1; /* example 0: its completion 1 is the likeliest, rightly */
    losses[4 * 8 + 1] = 1;                     /* example 1: completion 0, wrongly */
    CHECK(evalloader_stat_losses(&e, losses) == 1);
    evalloader_next_batch(&e);
    CHECK(e.inputs[0] == 12 && e.label[0] == 3);
    for (int i = 32; i < 72; i++)
        CHECK(e.mask[i] == 0); /* nothing is left for the other rows */
    losses[3 * 8 + 1] = 0.5f;
    CHECK(evalloader_stat_losses(&e, losses) == 1);
    evalloader_reset(&e);
    evalloader_next_batch(&e);
    CHECK(e.inputs[0] == 10);
    evalloader_free(&e);
    evalloader_init(&e, "eval.bin", 4, 8, 1, 2); /* the second of two ranks: one example of three */
    CHECK(e.num_batches == 2 && e.start_example_index == 2 && e.end_example_index == 3);
    evalloader_next_batch(&e);
    CHECK(e.inputs[0] == 12);
    evalloader_free(&e);
}

/* ---------------------------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    void (*run)(void);
} tests[] = {
    {"generator", generator},
    {"golden batches", golden_batches},
    {"one rank, shard switch", one_rank_and_switch},
    {"windows overlap", windows_overlap},
    {"every sample once", every_sample_once},
    {"resets", resets},
    {"checkpoints", checkpoints},
    {"edges", edges},
    {"wide tokens", wide_tokens},
    {"large shard", large_shard},
    {"refusals", refusals},
    {"ranks share a daemon", ranks_share_a_daemon},
    {"evaluation", evaluation},
};

int main(void) {
    int failures = 0;
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        char directory[] = "/tmp/loaderd-llmc-XXXXXX", command[128];
        int status;
        test = tests[i].name;
        CHECK(mkdtemp(directory) && chdir(directory) == 0);
        setenv("XDG_RUNTIME_DIR", directory, 1);
        unsetenv("LOADERD_LLMC_KEYS");
        pid_t pid = fork();
        if (pid == 0) {
            tests[i].run();
            exit(0);
        }
        CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
        int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
        printf("%s: %s\n", code == 0 ? "ok" : code == 77 ? "left out" : "FAILED", test);
        fflush(stdout);
        failures += code != 0 && code != 77;
        CHECK(chdir("/") == 0);
        snprintf(command, sizeof command, "rm -rf %s", directory);
        CHECK(system(command) == 0);
    }
    return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
