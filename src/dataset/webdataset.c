/* SPDX-License-Identifier: MIT */
/*
 * Format webdataset: samples in tar archives, as WebDataset groups them (webdataset/tariterators.py): a member's name
 * up to the first dot of its last component is the sample's key, what follows, in lower case, its suffix; the members
 * of one key are a sample. Names that begin with a dot or with __, and names without one, are no part of a sample.
 *
 *   fields = jpg;png:image mask.png:mask cls:label       (the default takes the first picture suffix, and cls)
 *
 * - The field label, and any suffix cls, id or index, is a number in text, read once, at the scan. The field boxes is
 *   JSON, suffixes of text and the fields that the key bytes names are delivered as they are; other fields are
 *   pictures. Of all these there are four at most, read when they are needed.
 * - Members of a sample need not be neighbours. A suffix that comes twice is told; the last one counts, as in any tar.
 * - Samples come in the order of their first members. One that lacks a field is left out, and told.
 * - A shard that is cut or damaged is served up to there, and what is lost is told.
 *
 * The index has one number a field: of a member the block where its data begins (low 32 bits) and its length, of a
 * number the number itself. Opening is for one thread, the scan for several; everything else for any.
 */
#include <stdio.h>
#include <string.h>

#include "dataset/format.h"
#include "dataset/tar.h"

#define RULES "webdataset scan 2"   /* changes whenever the same shards would give other samples */
#define PROBE_MEMBERS 256u          /* of the first shard, to see which suffixes there are */
#define NUMBER_BYTES 64u            /* text of a number at most */
#define MISSING (UINT64_C(1) << 63) /* no label, and no picture at block 0 */

#define PICTURE_SUFFIXES "jpg;jpeg;png;webp;jpe;ppm;pgm;bmp;gif;tif;tiff"

enum kind { KIND_MEMBER, KIND_NUMBER };

struct webdataset {
    struct shards shards;
    struct wishes wishes;
    enum kind kind[LOADERD_MAX_FIELDS];
    char *text; /* that the wishes point into */
};

/* ---- names: pure ------------------------------------------------------------------------------------------------- */

bool webdataset_split(const char *name, size_t *ret_key, char *suffix, size_t size) {
    if (name[0] == '_' && name[1] == '_') {
        const char *end = strstr(name + 2, "__"); /* __name__ up to a slash or the end is about the set */
        const char *slash = strchr(name, '/');
        while (end && (!slash || end < slash)) {
            if (end[2] == '/' || end[2] == '\0')
                return false;
            end = strstr(end + 1, "__");
        }
    }
    const char *slash = strrchr(name, '/'), *last = slash ? slash + 1 : name, *dot = strchr(last, '.');
    if (!dot || dot == last)
        return false;
    size_t length = strlen(dot + 1);
    if (length >= size)
        return false;
    for (size_t i = 0; i <= length; i++) {
        char c = dot[1 + i];
        suffix[i] = c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
    }
    *ret_key = (size_t)(dot - name);
    return true;
}

/* ---- samples of a shard ------------------------------------------------------------------------------------------ */

/* Keys of a shard's samples in the order of their first members, and a table from key to sample. */
struct grouping {
    struct buffer names, key; /* u64 offsets of NUL-ended keys */
    struct buffer word;       /* `words` u64 a sample, MISSING where nothing came */
    struct buffer rank;       /* as many bytes: which of the wish's sources it was */
    uint64_t *table;          /* sample + 1, by hash; 0: free */
    uint64_t slots;
    uint32_t words;
    uint64_t other_suffix, twice, sparse;
    char example[256], twice_example[256];
};

static uint64_t samples_of(const struct grouping *g) {
    return g->key.length / sizeof(uint64_t);
}

static const char *key_of(const struct grouping *g, uint64_t sample) {
    return g->names.data + ((const uint64_t *)(const void *)g->key.data)[sample];
}

/* FNV-1a (Fowler, Noll, Vo), 64 bits. */
static uint64_t hash_key(const char *key, size_t length) {
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < length; i++)
        h = (h ^ (uint8_t)key[i]) * UINT64_C(0x100000001b3);
    return h;
}

static uint64_t *find_slot(const struct grouping *g, const char *key, size_t length) {
    for (uint64_t i = hash_key(key, length);; i++) {
        uint64_t *slot = &g->table[i & (g->slots - 1)];
        if (*slot == 0)
            return slot;
        const char *other = key_of(g, *slot - 1);
        if (strncmp(other, key, length) == 0 && other[length] == '\0')
            return slot;
    }
}

static int grow_table(struct grouping *g) {
    if (samples_of(g) * 2 < g->slots)
        return 0;
    uint64_t slots = g->slots ? g->slots * 4 : 1024, *old = g->table;
    g->table = calloc(slots, sizeof *g->table);
    if (!g->table) {
        g->table = old;
        return -ENOMEM;
    }
    g->slots = slots;
    free(old);
    for (uint64_t i = 0; i < samples_of(g); i++) {
        const char *key = key_of(g, i);
        *find_slot(g, key, strlen(key)) = i + 1;
    }
    return 0;
}

/* The sample of this key, a new one where there is none. */
static int find_sample(struct grouping *g, const char *key, size_t length, uint64_t *ret) {
    if (grow_table(g) < 0)
        return -ENOMEM;
    uint64_t *slot = find_slot(g, key, length), at = g->names.length;
    if (*slot == 0) {
        if (buffer_append(&g->names, key, length) < 0 || buffer_append(&g->names, "", 1) < 0 ||
            buffer_append(&g->key, &at, sizeof at) < 0)
            return -ENOMEM;
        uint8_t *rank = buffer_reserve(&g->rank, g->words);
        uint64_t *word = buffer_reserve(&g->word, g->words * sizeof *word);
        if (!rank || !word)
            return -ENOMEM;
        memset(rank, UINT8_MAX, g->words);
        for (uint32_t i = 0; i < g->words; i++)
            word[i] = MISSING;
        *slot = samples_of(g);
    }
    *ret = *slot - 1;
    return 0;
}

static void grouping_deinit(struct grouping *g) {
    buffer_deinit(&g->names);
    buffer_deinit(&g->key);
    buffer_deinit(&g->word);
    buffer_deinit(&g->rank);
    free(g->table);
}

/* ---- one member -------------------------------------------------------------------------------------------------- */

/* The scan of one shard. */
struct shard_scan {
    const struct webdataset *set;
    const struct source_file *file;
    struct records_found *found;
    struct window window;
    struct tar tar;
    struct tar_member member;
    struct grouping group;
    struct diag *diag;
};

/* A decimal integer with blanks around it. */
static bool parse_integer(const char *p, const char *end, int64_t *ret) {
    while (p < end && strchr(" \t\r\n", *p))
        p++;
    while (end > p && (end[-1] == '\0' || strchr(" \t\r\n", end[-1])))
        end--;
    bool negative = p < end && *p == '-';
    p += negative;
    int64_t value = 0;
    if (p == end)
        return false;
    for (; p < end; p++)
        if (*p < '0' || *p > '9' || __builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, *p - '0', &value))
            return false;
    *ret = negative ? -value : value;
    return true;
}

static int read_number(struct shard_scan *s, uint64_t *ret) {
    char text[NUMBER_BYTES];
    int64_t value = 0;
    size_t length = (size_t)MIN(s->member.size, sizeof text);
    int rc = window_read(&s->window, text, length, s->member.offset, s->diag);
    if (rc < 0)
        return rc;
    if (s->member.size > sizeof text || !parse_integer(text, text + length, &value) || (uint64_t)value == MISSING)
        return records_add_remark(s->found, "%s: member %s is no integer but '%.*s': its sample is left out",
                                  s->file->path, s->member.name, (int)MIN(length, 20u), text) < 0
                   ? -ENOMEM
                   : 1;
    *ret = (uint64_t)value;
    return 0;
}

static int read_word(struct shard_scan *s, uint32_t wish, uint64_t *ret) {
    const struct tar_member *m = &s->member;
    if (s->set->kind[wish] == KIND_NUMBER)
        return read_number(s, ret);
    if (m->size >= UINT32_MAX || m->offset / TAR_BLOCK > UINT32_MAX)
        return records_add_remark(s->found,
                                  "%s: member %s has %llu bytes at byte %llu, at most 4 GiB in the first 2 TiB "
                                  "are read: its sample is left out",
                                  s->file->path, m->name, (unsigned long long)m->size,
                                  (unsigned long long)m->offset) < 0
                   ? -ENOMEM
                   : 1;
    *ret = m->offset / TAR_BLOCK | m->size << 32;
    return 0;
}

static int take_wish(struct shard_scan *s, uint32_t wish, int rank, uint64_t sample) {
    uint64_t *word = (uint64_t *)(void *)s->group.word.data + sample * s->group.words + wish, value = MISSING;
    uint8_t *before = (uint8_t *)s->group.rank.data + sample * s->group.words + wish;
    if (*before < rank) /* an earlier source of the wish is there */
        return 0;
    if (*before == rank && s->group.twice++ == 0)
        snprintf(s->group.twice_example, sizeof s->group.twice_example, "%s", s->member.name);
    int rc = read_word(s, wish, &value);
    if (rc < 0)
        return rc;
    *before = (uint8_t)rank;
    *word = value;
    return 0;
}

static int take_member(struct shard_scan *s) {
    char suffix[256];
    size_t key;
    uint64_t sample;
    bool wanted = false;
    int rank = 0;
    const struct wishes *wishes = &s->set->wishes;
    if (!s->member.regular || !webdataset_split(s->member.name, &key, suffix, sizeof suffix))
        return 0;
    for (uint32_t i = 0; (i = wishes_find(wishes, i, suffix, strlen(suffix), &rank)) < wishes->count; i++) {
        if (s->member.sparse)
            return diag_set(s->diag, -EINVAL,
                            "%s: member %s is sparse, so that its bytes do not lie in one piece: not "
                            "supported; make the archive again without --sparse",
                            s->file->path, s->member.name);
        int rc = find_sample(&s->group, s->member.name, key, &sample);
        if (rc == 0)
            rc = take_wish(s, i, MIN(rank, 254), sample);
        if (rc < 0)
            return rc;
        wanted = true;
    }
    return wanted ? 0 : find_sample(&s->group, s->member.name, key, &sample);
}

/* ---- one shard --------------------------------------------------------------------------------------------------- */

/* Says how the shard ended, where it did not end well. */
static int remark_end(struct shard_scan *s, int rc, const char *why) {
    const struct tar *tar = &s->tar;
    unsigned long long samples = samples_of(&s->group), size = s->file->identity.size, at = tar->at;
    if (rc == -EBADMSG)
        return records_add_remark(s->found, "%s: %s: what follows is lost; served are the %llu samples before it",
                                  s->file->path, why, samples);
    if (tar->unfinished && tar->lost[0])
        return records_add_remark(s->found,
                                  "%s was cut: it ends at byte %llu inside of member %s, which is lost; served "
                                  "is what is whole before it",
                                  s->file->path, size, tar->lost);
    if (tar->unfinished)
        return records_add_remark(s->found,
                                  "%s was cut: it ends at byte %llu inside of a header; served are the %llu "
                                  "samples before it",
                                  s->file->path, size, samples);
    if (!tar->ended)
        return records_add_remark(s->found,
                                  "%s ends without the blocks of zeros that end an archive: it may have been "
                                  "cut between two members",
                                  s->file->path);
    if (size - at > 65536)
        return records_add_remark(s->found,
                                  "%s: %llu bytes behind the end of the archive, at byte %llu, are not read "
                                  "(several archives in one file?)",
                                  s->file->path, size - at, at);
    return 0;
}

/* Keeps the samples that have all fields. */
static int keep_whole(struct shard_scan *s) {
    const struct grouping *g = &s->group;
    uint64_t left_out = 0, first = 0;
    uint32_t first_field = 0;
    for (uint64_t i = 0; i < samples_of(g); i++) {
        const uint64_t *word = (const uint64_t *)(const void *)g->word.data + i * g->words;
        uint32_t k = 0;
        while (k < g->words && word[k] != MISSING)
            k++;
        if (k == g->words) {
            if (buffer_append(&s->found->word, word, g->words * sizeof *word) < 0)
                return -ENOMEM;
        } else if (left_out++ == 0) {
            first = i;
            first_field = k;
        }
    }
    if (!left_out)
        return 0;
    return records_add_remark(s->found, "%s: %llu of %llu samples left out that lack a field, e.g. %s has no %.*s (%s)",
                              s->file->path, (unsigned long long)left_out, (unsigned long long)samples_of(g),
                              key_of(g, first), (int)s->set->wishes.wish[first_field].source_length,
                              s->set->wishes.wish[first_field].source, s->set->wishes.wish[first_field].name);
}

static int walk(struct shard_scan *s) {
    struct diag why = DIAG_INIT;
    int rc;
    while ((rc = tar_next(&s->tar, &s->member, &why)) == 1) {
        rc = take_member(s);
        if (rc < 0)
            return rc;
    }
    if (rc < 0 && rc != -EBADMSG)
        return diag_set(s->diag, rc, "%s", why.text);
    rc = remark_end(s, rc, why.text);
    if (rc == 0 && s->group.twice)
        rc = records_add_remark(s->found, "%s: %llu member%s there twice, e.g. %s: the last one counts", s->file->path,
                                (unsigned long long)s->group.twice, s->group.twice == 1 ? " is" : "s are",
                                s->group.twice_example);
    return rc < 0 ? rc : keep_whole(s);
}

static int scan_init(struct shard_scan *s, const struct source_file *file) {
    uint8_t head[TAR_BLOCK];
    ssize_t got = source_file_head(file, head, sizeof head, s->diag);
    if (got < 0)
        return (int)got;
    s->file = file;
    s->tar.read = window_read;
    s->tar.arg = &s->window;
    s->tar.size = file->identity.size;
    return window_init(&s->window, file);
}

static void scan_deinit(struct shard_scan *s) {
    tar_deinit(&s->tar);
    grouping_deinit(&s->group);
    window_deinit(&s->window);
    free(s);
}

static int scan_shard(void *arg, const struct source_file *file, struct records_found *found, struct diag *diag) {
    const struct webdataset *set = arg;
    struct shard_scan *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->set = set;
    s->found = found;
    s->diag = diag;
    s->group.words = set->wishes.count;
    int rc = scan_init(s, file);
    if (rc == 0)
        rc = walk(s);
    scan_deinit(s);
    return rc;
}

/* ---- which fields ------------------------------------------------------------------------------------------------ */

/* Suffixes of the first members, in the order of their coming, blanks between them. */
static int probe_suffixes(const struct source_file *file, struct buffer *ret, struct diag *diag) {
    struct shard_scan *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->diag = diag;
    int rc = scan_init(s, file);
    for (unsigned i = 0; rc == 0 && i < PROBE_MEMBERS && tar_next(&s->tar, &s->member, NULL) == 1; i++) {
        char suffix[256];
        size_t key;
        if (!s->member.regular || !webdataset_split(s->member.name, &key, suffix, sizeof suffix) ||
            strchr(suffix, ' ') || ret->length > 4096)
            continue;
        char word[260];
        int n = snprintf(word, sizeof word, " %s ", suffix);
        if (ret->length && memmem(ret->data, ret->length, word, (size_t)n))
            continue;
        rc = buffer_append(ret, word + (ret->length ? 1 : 0), (size_t)n - (ret->length ? 1 : 0));
    }
    scan_deinit(s);
    return rc < 0 ? rc : buffer_append(ret, "", 1);
}

static bool has_suffix(const char *suffixes, const char *text, size_t length) {
    char word[260];
    int n = snprintf(word, sizeof word, " %.*s ", (int)MIN(length, 256u), text);
    return n > 2 && strstr(suffixes, word);
}

/* The default: the picture suffixes that are there, and cls. */
static int default_wishes(struct webdataset *set, const char *suffixes, struct diag *diag) {
    struct buffer text = BUFFER_INIT;
    int rc = 0;
    for (const char *p = PICTURE_SUFFIXES; *p && rc == 0;) {
        size_t length = strcspn(p, ";");
        if (has_suffix(suffixes, p, length))
            rc = buffer_append(&text, text.length ? ";" : "", text.length ? 1 : 0) < 0 ||
                         buffer_append(&text, p, length) < 0
                     ? -ENOMEM
                     : 0;
        p += length + (p[length] == ';');
    }
    if (rc == 0 && text.length == 0) {
        buffer_deinit(&text);
        return diag_set(diag, -EINVAL,
                        "%s: no member is a picture by its suffix; its suffixes are%s: set fields, e.g. "
                        "fields = \"SUFFIX:image cls:label\"",
                        set->shards.file[0].path, *suffixes ? suffixes : " none");
    }
    if (rc == 0)
        rc = buffer_append(&text, ":image", 6);
    if (rc == 0 && has_suffix(suffixes, "cls", 3))
        rc = buffer_append(&text, " cls:label", 10);
    if (rc == 0)
        rc = buffer_append(&text, "", 1);
    set->text = text.data;
    return rc;
}

/* Every source that is asked for must have been seen, where all suffixes have been. */
static int check_wishes(const struct webdataset *set, const char *suffixes, struct diag *diag) {
    for (uint32_t i = 0; i < set->wishes.count; i++) {
        const struct wish *wish = &set->wishes.wish[i];
        bool any = false;
        for (const char *p = wish->source, *end = p + wish->source_length; p < end && !any;) {
            const char *stop = memchr(p, ';', (size_t)(end - p));
            size_t length = (size_t)((stop ? stop : end) - p);
            any = has_suffix(suffixes, p, length);
            p += length + 1;
        }
        if (!any)
            return diag_set(diag, -EINVAL, "%s: no member has the suffix %.*s (field %s); its suffixes are%s",
                            set->shards.file[0].path, (int)wish->source_length, wish->source, wish->name,
                            *suffixes ? suffixes : " none");
    }
    return 0;
}

static bool is_number(const struct wish *wish) {
    return strcmp(wish->name, "label") == 0 || wish_rank(wish, "cls", 3) >= 0 || wish_rank(wish, "id", 2) >= 0 ||
           wish_rank(wish, "index", 5) >= 0;
}

/* Suffixes that hold text, as WebDataset's own decoders have them. */
static bool is_text(const struct wish *wish) {
    static const char *const suffixes[] = {"txt", "text", "transcript", "json", "jsn"};
    for (size_t i = 0; i < ARRAY_SIZE(suffixes); i++)
        if (wish_rank(wish, suffixes[i], strlen(suffixes[i])) >= 0)
            return true;
    return false;
}

static int set_fields(struct dataset *dataset, struct webdataset *set, const struct dataset_options *options,
                      struct diag *diag) {
    uint32_t extents = 0;
    int rc = 0;
    dataset->fields = set->wishes.count;
    for (uint32_t i = 0; i < set->wishes.count; i++) {
        struct dataset_field *field = &dataset->field[i];
        const struct wish *wish = &set->wishes.wish[i];
        bool bytes = dataset_wants_bytes(options, wish->name);
        set->kind[i] = is_number(wish) && !bytes ? KIND_NUMBER : KIND_MEMBER;
        if (set->kind[i] == KIND_NUMBER) {
            dataset_set_label_field(field);
        } else if (strcmp(wish->name, "boxes") == 0 && !bytes) {
            boxes_set_field(dataset, field, extents++);
            rc = boxes_source_init(&dataset->boxes, BOXES_JSON, options, diag);
        } else if (bytes || is_text(wish)) {
            dataset_set_ragged_field(field, extents++);
        } else {
            *field = (struct dataset_field){
                .spec = {.dtype = LOADERD_U8, .ndim = 3, .dims = {-1, -1, -1}},
                .source = SOURCE_PICTURE,
                .extent = extents++,
            };
        }
        memcpy(field->spec.name, wish->name, sizeof field->spec.name);
    }
    if (rc == 0 && extents > MAX_EXTENTS)
        rc = diag_set(diag, -EINVAL, "fields = %s: more than %d fields that are no numbers", set->text, MAX_EXTENTS);
    return rc;
}

static int choose_fields(struct dataset *dataset, struct webdataset *set, const struct dataset_options *options,
                         struct diag *diag) {
    const char *fields = options->wanted_fields;
    struct buffer suffixes = BUFFER_INIT;
    int rc = probe_suffixes(&set->shards.file[0], &suffixes, diag);
    if (rc == 0 && fields && *fields)
        rc = (set->text = strdup(fields)) ? 0 : -ENOMEM;
    else if (rc == 0)
        rc = default_wishes(set, suffixes.data, diag);
    if (rc == 0)
        rc = wishes_parse(set->text, strlen(set->text), &set->wishes, diag);
    if (rc == 0)
        rc = check_wishes(set, suffixes.data, diag);
    if (rc == 0)
        rc = set_fields(dataset, set, options, diag);
    buffer_deinit(&suffixes);
    return rc;
}

/* ---- the format -------------------------------------------------------------------------------------------------- */

static int webdataset_open(struct dataset *dataset, const struct dataset_options *options, struct diag *diag) {
    struct webdataset *set = calloc(1, sizeof *set);
    if (!set)
        return -ENOMEM;
    dataset->state = set;
    int rc = shards_open_path(&set->shards, dataset->path, diag);
    if (rc == 0)
        rc = choose_fields(dataset, set, options, diag);
    if (rc < 0)
        return rc;
    struct records_scan scan = {.words = set->wishes.count, .scan = scan_shard, .arg = set};
    struct hash hash;
    hash_begin(&hash, RULES);
    hash_string(&hash, set->text);
    for (uint32_t i = 0; i < set->wishes.count; i++)
        hash_u64(&hash, set->kind[i]);
    hash_end(&hash, scan.key);
    return records_open(dataset, options, &set->shards, &scan, diag);
}

static void webdataset_close(struct dataset *dataset) {
    struct webdataset *set = dataset->state;
    index_release(dataset);
    if (set) {
        shards_close(&set->shards);
        free(set->text);
    }
    free(set);
    dataset->state = NULL;
}

static void webdataset_locate(const struct dataset *dataset, uint64_t sample, struct location *ret) {
    const struct webdataset *set = dataset->state;
    const uint64_t *word = dataset->index.word + sample * set->wishes.count;
    const struct source_file *file = &set->shards.file[shards_find(&set->shards, sample)];
    for (uint32_t i = 0; i < set->wishes.count; i++) {
        if (set->kind[i] == KIND_NUMBER)
            ret->value[i] = (int64_t)word[i];
        else
            ret->extent[ret->extents++] = (struct extent){
                .file = file,
                .dirfd = -1,
                .offset = (word[i] & UINT32_MAX) * TAR_BLOCK,
                .length = word[i] >> 32,
            };
    }
}

/* "shard.tar#7 (key)": the key is read from the header before the data, as far as it stands there. */
static int webdataset_name(const struct dataset *dataset, uint64_t sample, char *buffer, size_t size) {
    const struct webdataset *set = dataset->state;
    const struct source_file *file = &set->shards.file[shards_find(&set->shards, sample)];
    struct location location = {0};
    char name[101] = "", suffix[101];
    size_t key;
    int n = shards_name(&set->shards, sample, buffer, size);
    webdataset_locate(dataset, sample, &location);
    bool found = n > 0 && (size_t)n < size && location.extents && location.extent[0].offset >= TAR_BLOCK &&
                 source_file_read(file, name, 100, location.extent[0].offset - TAR_BLOCK, NULL) == 0 &&
                 webdataset_split(name, &key, suffix, sizeof suffix);
    if (!found)
        return n;
    int m = snprintf(buffer + n, size - (size_t)n, " (%.*s)", (int)key, name);
    if (n + m < (int)size)
        return n + m;
    buffer[n] = '\0';
    return n;
}

const struct dataset_format format_webdataset = {
    .name = "webdataset",
    .takes = TAKES_FIELDS,
    .detect = tar_detect,
    .open = webdataset_open,
    .close = webdataset_close,
    .locate = webdataset_locate,
    .name_sample = webdataset_name,
};
