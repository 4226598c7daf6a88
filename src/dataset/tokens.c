/* SPDX-License-Identifier: MIT */
/*
 * Format tokens: text as token ids, for language models. A sample is a window of T + 1 ids (key tokens = T): T inputs,
 * and the target of the last. Windows begin T ids apart and so share one; none crosses from one file into the next: a
 * file of N ids has floor((N - 1) / T) of them. Rows are i32, zero-extended from what is stored.
 *
 *   llm.c      1024 bytes of header: 256 x i32, magic 20240520 version 1 (u16) or 20240801 version 7 (u32), count; ids
 *   Megatron   FILE.idx beside FILE.bin: MMIDIDX, version 1, dtype, documents; FILE.bin holds the ids alone
 *   bare       ids alone (nanoGPT): token-dtype = u16|u32 says which, nothing is guessed
 *
 * A file whose size is not what its header says is refused. Opening is for one thread; everything else for any.
 */
#include <endian.h>
#include <stdio.h>
#include <string.h>

#include "dataset/format.h"

#define LLMC_HEADER 1024u
#define MEGATRON_HEADER 34u
#define CHUNK 4096u /* documents of an .idx file that are checked at once */

struct shard {
    uint64_t offset, ids;
    uint32_t dtype;
};

struct tokens {
    struct shards shards;
    struct shard *shard;
    uint64_t window, vocabulary;
    uint32_t width;
};

static uint32_t load32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return le32toh(v);
}

static uint64_t load64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return le64toh(v);
}

/* ---- headers: pure --------------------------------------------------------------------------------------------- */

int tokens_parse_llmc(const uint8_t *bytes, size_t length, struct tokens_header *ret, struct diag *diag) {
    static const struct {
        uint32_t magic, version, dtype;
    } kinds[] = {{20240520, 1, LOADERD_U16}, {20240801, 7, LOADERD_U32}};
    uint32_t magic = length >= 12 ? load32(bytes) : 0, version = length >= 12 ? load32(bytes + 4) : 0;
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        if (magic != kinds[i].magic)
            continue;
        if (version != kinds[i].version)
            return diag_set(diag, -EINVAL, "token file of magic %u has version %u, wanted %u", magic, version,
                            kinds[i].version);
        if (length < LLMC_HEADER)
            return diag_set(diag, -EINVAL, "token file ends in its header of %u bytes, at byte %zu", LLMC_HEADER,
                            length);
        *ret = (struct tokens_header){.dtype = kinds[i].dtype, .offset = LLMC_HEADER, .ids = load32(bytes + 8)};
        return 0;
    }
    return diag_set(diag, -ENOENT, "no token file of llm.c: magic %u at offset 0, wanted 20240520 or 20240801", magic);
}

int tokens_parse_megatron(const uint8_t *bytes, size_t length, uint64_t file_bytes, struct tokens_header *ret,
                          struct diag *diag) {
    static const uint32_t dtypes[] = {0,           LOADERD_U8,  LOADERD_I8,  LOADERD_I16, LOADERD_I32,
                                      LOADERD_I64, LOADERD_F64, LOADERD_F32, LOADERD_U16};
    if (length < MEGATRON_HEADER || memcmp(bytes, "MMIDIDX\0\0", 9) != 0)
        return diag_set(diag, -ENOENT, "no index of Megatron: it does not begin with MMIDIDX");
    uint64_t version = load64(bytes + 9), sequences = load64(bytes + 18), documents = load64(bytes + 26), total;
    uint8_t code = bytes[17];
    if (version != 1)
        return diag_set(diag, -EINVAL, "Megatron index of version %llu, wanted 1", (unsigned long long)version);
    if (code == 0 || code >= ARRAY_SIZE(dtypes))
        return diag_set(diag, -EINVAL, "Megatron index with the unknown dtype code %u", code);
    if (code == 6 || code == 7)
        return diag_set(diag, -EINVAL, "Megatron index of floats (dtype code %u): wanted token ids", code);
    uint64_t more;
    bool fits = mul_u64(sequences, 12, &total) && mul_u64(documents, 8, &more) && add_u64(total, more, &total) &&
                add_u64(total, MEGATRON_HEADER, &total);
    if (!fits || total > file_bytes)
        return diag_set(diag, -EINVAL,
                        "Megatron index of %llu sequences and %llu documents is longer than its file of "
                        "%llu bytes",
                        (unsigned long long)sequences, (unsigned long long)documents, (unsigned long long)file_bytes);
    *ret = (struct tokens_header){.dtype = dtypes[code], .sequences = sequences};
    return 0;
}

int tokens_check_sequences(const uint8_t *sizes, const uint8_t *pointers, size_t count, uint32_t width, uint64_t *bytes,
                           struct diag *diag) {
    for (size_t i = 0; i < count; i++) {
        uint32_t size = load32(sizes + 4 * i);
        uint64_t pointer = load64(pointers + 8 * i), length = (uint64_t)size * width;
        if (size > INT32_MAX || pointer != *bytes || !add_u64(*bytes, length, bytes))
            return diag_set(diag, -EINVAL,
                            "Megatron index: a sequence of %u ids is at byte %llu, wanted %llu: sequences "
                            "that do not lie back to back are not supported",
                            size, (unsigned long long)pointer, (unsigned long long)*bytes);
    }
    return 0;
}

/* ---- opening --------------------------------------------------------------------------------------------------- */

static bool ends_with(const char *text, const char *ending) {
    size_t n = strlen(text), m = strlen(ending);
    return n > m && strcmp(text + n - m, ending) == 0;
}

/* Reads all sequences of an .idx file; the bytes of ids that they describe. */
static int check_index(const struct source_file *index, const struct tokens_header *header, uint64_t *ret_bytes,
                       struct diag *diag) {
    cleanup_free uint8_t *chunk = malloc(CHUNK * 12u);
    uint32_t width = dataset_dtype_bytes(header->dtype);
    *ret_bytes = 0;
    if (!chunk)
        return -ENOMEM;
    for (uint64_t done = 0; done < header->sequences;) {
        size_t count = (size_t)MIN(CHUNK, header->sequences - done);
        int rc = source_file_read(index, chunk, count * 4, MEGATRON_HEADER + done * 4, diag);
        if (rc == 0)
            rc = source_file_read(index, chunk + CHUNK * 4, count * 8,
                                  MEGATRON_HEADER + header->sequences * 4 + done * 8, diag);
        if (rc < 0)
            return rc;
        rc = tokens_check_sequences(chunk, chunk + CHUNK * 4, count, width, ret_bytes, diag);
        if (rc < 0)
            return diag_prefix(diag, "%s", index->path);
        done += count;
    }
    return 0;
}

/* `path` is FILE.idx: opens FILE.bin as the next shard. */
static int open_megatron(struct tokens *tokens, const char *path, struct shard *shard, struct diag *diag) {
    struct source_file index;
    uint8_t head[MEGATRON_HEADER];
    struct tokens_header header = {0};
    uint64_t bytes = 0;
    cleanup_free char *data = NULL;
    if (asprintf(&data, "%.*s.bin", (int)strlen(path) - 4, path) < 0) {
        data = NULL;
        return -ENOMEM;
    }
    int rc = source_file_open(&index, path, diag);
    if (rc == 0) {
        ssize_t got = source_file_head(&index, head, sizeof head, diag);
        rc = got < 0 ? (int)got : tokens_parse_megatron(head, (size_t)got, index.identity.size, &header, diag);
        if (got >= 0 && rc < 0)
            rc = diag ? (diag_prefix(diag, "%s", path), diag->code = -EINVAL) : -EINVAL;
    }
    if (rc == 0)
        rc = check_index(&index, &header, &bytes, diag);
    source_file_close(&index);
    if (rc == 0)
        rc = shards_open(&tokens->shards, data, diag);
    if (rc < 0)
        return rc;
    const struct source_file *file = &tokens->shards.file[tokens->shards.count - 1];
    if (file->identity.size != bytes)
        return diag_set(diag, -EINVAL, "%s describes %llu bytes of ids, %s holds %llu", path, (unsigned long long)bytes,
                        data, (unsigned long long)file->identity.size);
    *shard = (struct shard){.ids = bytes / dataset_dtype_bytes(header.dtype), .dtype = header.dtype};
    return 0;
}

static int check_llmc(const struct source_file *file, const struct tokens_header *header, uint32_t wanted,
                      struct shard *shard, struct diag *diag) {
    uint32_t width = dataset_dtype_bytes(header->dtype);
    uint64_t size = file->identity.size, body = size - LLMC_HEADER;
    if (body != header->ids * width)
        return diag_set(diag, -EINVAL,
                        "%s: the header says %llu tokens of %u bytes, the file holds %llu (%llu bytes "
                        "behind the header): it was cut, or its header is wrong",
                        file->path, (unsigned long long)header->ids, width, (unsigned long long)(body / width),
                        (unsigned long long)body);
    if (wanted && wanted != header->dtype)
        return diag_set(diag, -EINVAL,
                        "%s: the header says ids of %u bytes, token-dtype says %u: take token-dtype away", file->path,
                        width, dataset_dtype_bytes(wanted));
    *shard = (struct shard){.offset = LLMC_HEADER, .ids = header->ids, .dtype = header->dtype};
    return 0;
}

static int open_plain(struct tokens *tokens, const char *path, uint32_t wanted, struct shard *shard,
                      struct diag *diag) {
    uint8_t head[LLMC_HEADER];
    struct tokens_header header;
    struct diag why = DIAG_INIT;
    int rc = shards_open(&tokens->shards, path, diag);
    if (rc < 0)
        return rc;
    const struct source_file *file = &tokens->shards.file[tokens->shards.count - 1];
    ssize_t got = source_file_head(file, head, sizeof head, diag);
    if (got < 0)
        return (int)got;
    rc = tokens_parse_llmc(head, (size_t)got, &header, &why);
    if (rc == 0)
        return check_llmc(file, &header, wanted, shard, diag);
    if (rc != -ENOENT)
        return diag_set(diag, rc, "%s: %s", path, why.text);
    if (!wanted)
        return diag_set(diag, -EINVAL,
                        "%s has no header of llm.c (magic 20240520 or 20240801), so that nothing says how "
                        "wide its ids are: set token-dtype = u16 (nanoGPT, vocabularies up to 65536) or "
                        "u32; for Megatron name the .idx file",
                        path);
    uint32_t width = dataset_dtype_bytes(wanted);
    if (file->identity.size % width)
        return diag_set(diag, -EINVAL,
                        "%s has %llu bytes, no whole number of ids of %u bytes: it was cut, or "
                        "token-dtype is wrong",
                        path, (unsigned long long)file->identity.size, width);
    *shard = (struct shard){.ids = file->identity.size / width, .dtype = wanted};
    return 0;
}

static int open_shard(struct dataset *dataset, struct tokens *tokens, const char *path, uint32_t wanted,
                      struct diag *diag) {
    size_t i = tokens->shards.count;
    struct shard *shard = &tokens->shard[i];
    int rc = ends_with(path, ".idx") ? open_megatron(tokens, path, shard, diag)
                                     : open_plain(tokens, path, wanted, shard, diag);
    if (rc < 0)
        return rc;
    if (shard->dtype != tokens->shard[0].dtype)
        return diag_set(diag, -EINVAL, "%s holds ids of %u bytes, %s of %u: shards of one set must agree", path,
                        dataset_dtype_bytes(shard->dtype), tokens->shards.file[0].path,
                        dataset_dtype_bytes(tokens->shard[0].dtype));
    uint64_t windows = shard->ids ? (shard->ids - 1) / tokens->window : 0;
    rc = shards_set_samples(&tokens->shards, i, windows, diag);
    if (rc < 0 || windows)
        return rc;
    return dataset_add_remark(dataset,
                              "%s holds %llu tokens: a window of tokens = %llu and the target behind it need "
                              "%llu",
                              path, (unsigned long long)shard->ids, (unsigned long long)tokens->window,
                              (unsigned long long)tokens->window + 1);
}

static int open_shards(struct dataset *dataset, struct tokens *tokens, const char *path, uint32_t wanted,
                       struct diag *diag) {
    struct paths paths;
    int rc = paths_collect(&paths, path, diag);
    if (rc == 0)
        rc = shards_reserve(&tokens->shards, paths_count(&paths), diag);
    if (rc == 0) {
        tokens->shard = calloc(paths_count(&paths), sizeof *tokens->shard);
        rc = tokens->shard ? 0 : -ENOMEM;
    }
    for (size_t i = 0; i < paths_count(&paths) && rc == 0; i++)
        rc = open_shard(dataset, tokens, paths_get(&paths, i), wanted, diag);
    paths_deinit(&paths);
    if (rc < 0)
        return rc;
    rc = shards_publish(&tokens->shards, dataset, "window", diag);
    if (rc == -ENODATA)
        diag_set(diag, rc, "%s; lower tokens", dataset->remark[0]);
    return rc;
}

static void set_field(struct dataset *dataset, struct tokens *tokens) {
    uint32_t dtype = tokens->shard[0].dtype;
    tokens->width = dataset_dtype_bytes(dtype);
    dataset->fields = 1;
    dataset->field[0] = (struct dataset_field){
        .spec = {.name = "tokens", .dtype = dtype, .ndim = 1, .dims = {(int64_t)tokens->window + 1}},
        .source = SOURCE_BYTES,
        .bytes = (tokens->window + 1) * tokens->width,
        .deliver = LOADERD_I32,
    };
    dataset->unchecked = tokens->vocabulary == 0;
}

bool tokens_detect_path(const char *path) {
    cleanup_free char *index = NULL;
    if (asprintf(&index, "%s.idx", path) < 0)
        index = NULL;
    return index && access(path, F_OK) != 0 && access(index, F_OK) == 0;
}

static int tokens_open(struct dataset *dataset, const struct dataset_options *options, struct diag *diag) {
    struct tokens *tokens = calloc(1, sizeof *tokens);
    if (!tokens)
        return -ENOMEM;
    dataset->state = tokens;
    tokens->window = options->tokens ? options->tokens : 1024;
    tokens->vocabulary = options->vocabulary;
    cleanup_free char *path = NULL;
    if (asprintf(&path, "%s%s", dataset->path, tokens_detect_path(dataset->path) ? ".idx" : "") < 0) {
        path = NULL;
        return -ENOMEM;
    }
    int rc = open_shards(dataset, tokens, path, options->token_dtype, diag);
    if (rc < 0)
        return rc;
    set_field(dataset, tokens);
    struct hash hash;
    hash_begin(&hash, "tokens");
    dataset_hash_fields(dataset, &hash);
    shards_hash(&tokens->shards, &hash);
    hash_end(&hash, dataset->fingerprint);
    return 0;
}

/* ---- the format ------------------------------------------------------------------------------------------------ */

static void tokens_close(struct dataset *dataset) {
    struct tokens *tokens = dataset->state;
    if (tokens) {
        shards_close(&tokens->shards);
        free(tokens->shard);
    }
    free(tokens);
    dataset->state = NULL;
}

static void tokens_locate(const struct dataset *dataset, uint64_t sample, struct location *ret) {
    const struct tokens *tokens = dataset->state;
    size_t i = shards_find(&tokens->shards, sample);
    uint64_t first = (sample - tokens->shards.first[i]) * tokens->window;
    ret->extents = 1;
    ret->extent[0] = (struct extent){
        .file = &tokens->shards.file[i],
        .dirfd = -1,
        .offset = tokens->shard[i].offset + first * tokens->width,
        .length = (tokens->window + 1) * tokens->width,
    };
}

static int tokens_name(const struct dataset *dataset, uint64_t sample, char *buffer, size_t size) {
    const struct tokens *tokens = dataset->state;
    return shards_name(&tokens->shards, sample, buffer, size);
}

/* Ids at or above the vocabulary, where one is given. */
static int tokens_check(const struct dataset *dataset, uint64_t sample, uint32_t extent, const void *bytes,
                        size_t length, uint32_t *state, struct diag *diag) {
    const struct tokens *tokens = dataset->state;
    const uint8_t *p = bytes;
    (void)extent, (void)state;
    for (size_t i = 0; tokens->vocabulary && i < length / tokens->width; i++) {
        uint64_t id = 0;
        memcpy(&id, p + i * tokens->width, tokens->width);
        if (le64toh(id) >= tokens->vocabulary) {
            size_t shard = shards_find(&tokens->shards, sample);
            uint64_t at = (sample - tokens->shards.first[shard]) * tokens->window + i;
            return diag_set(diag, -EBADMSG, "token %llu of the file is %llu, vocabulary is %llu",
                            (unsigned long long)at, (unsigned long long)le64toh(id),
                            (unsigned long long)tokens->vocabulary);
        }
    }
    return 0;
}

static bool tokens_detect(const uint8_t *head, size_t length) {
    struct tokens_header header;
    return tokens_parse_llmc(head, length, &header, NULL) != -ENOENT ||
           tokens_parse_megatron(head, length, UINT64_MAX, &header, NULL) != -ENOENT;
}

const struct dataset_format format_tokens = {
    .name = "tokens",
    .takes = TAKES_TOKENS,
    .detect = tokens_detect,
    .open = tokens_open,
    .close = tokens_close,
    .locate = tokens_locate,
    .name_sample = tokens_name,
    .check = tokens_check,
};
