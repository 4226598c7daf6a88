/* SPDX-License-Identifier: MIT */
/*
 * The key fields: which parts of a stored sample become fields, and under which name: "jpg;jpeg;png:image cls:label"
 * for suffixes of a tar's members, "image/encoded:image image/class/label:label" for features of a TFRecord or columns
 * of an MDS shard. Pure.
 */
#include <string.h>

#include "dataset/format.h"

static int refuse(const char *text, size_t length, const char *why, struct diag *diag) {
    return diag_set(diag, -EINVAL,
                    "fields = %.*s: %s; the form is SOURCE[;SOURCE...]:NAME, divided by blanks, e.g. "
                    "jpg;png:image cls:label",
                    (int)MIN(length, 160u), text, why);
}

static bool is_plain(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

/* One wish of `length` bytes. Returns what is wrong, NULL if it is right. */
static const char *parse_wish(const char *text, size_t length, struct wishes *wishes) {
    const char *colon = memrchr(text, ':', length);
    if (!colon)
        return "a ':' and a name are missing";
    struct wish wish = {.source = text, .source_length = (size_t)(colon - text)};
    size_t name = length - wish.source_length - 1;
    if (name == 0 || name >= sizeof wish.name)
        return "a name has 1 to 31 characters";
    for (size_t i = 0; i < name; i++)
        if (!is_plain(colon[1 + i]))
            return "a name is letters, digits, _ and -";
    memcpy(wish.name, colon + 1, name);
    bool empty = wish.source_length == 0 || *text == ';' || colon[-1] == ';';
    if (empty || memmem(text, wish.source_length, ";;", 2) || memchr(text, '\0', length))
        return "an empty source";
    for (uint32_t i = 0; i < wishes->count; i++)
        if (strcmp(wishes->wish[i].name, wish.name) == 0)
            return "two fields have the same name";
    if (wishes->count == LOADERD_MAX_FIELDS)
        return "more than 16 fields";
    wishes->wish[wishes->count++] = wish;
    return NULL;
}

int wishes_parse(const char *text, size_t length, struct wishes *ret, struct diag *diag) {
    struct wishes wishes = {0};
    const char *p = text, *end = text + length;
    for (;;) {
        while (p < end && (*p == ' ' || *p == '\t'))
            p++;
        if (p == end)
            break;
        const char *start = p;
        while (p < end && *p != ' ' && *p != '\t')
            p++;
        const char *wrong = parse_wish(start, (size_t)(p - start), &wishes);
        if (wrong)
            return refuse(text, length, wrong, diag);
    }
    if (wishes.count == 0)
        return refuse(text, length, "no field", diag);
    *ret = wishes;
    return 0;
}

int wish_rank(const struct wish *wish, const char *word, size_t length) {
    const char *p = wish->source, *end = p + wish->source_length;
    for (int rank = 0; p < end; rank++) {
        const char *stop = memchr(p, ';', (size_t)(end - p));
        size_t size = (size_t)((stop ? stop : end) - p);
        if (size == length && memcmp(p, word, length) == 0)
            return rank;
        if (!stop)
            break;
        p = stop + 1;
    }
    return -1;
}

uint32_t wishes_find(const struct wishes *wishes, uint32_t from, const char *word, size_t length, int *ret_rank) {
    for (; from < wishes->count; from++) {
        int rank = wish_rank(&wishes->wish[from], word, length);
        if (rank < 0)
            continue;
        if (ret_rank)
            *ret_rank = rank;
        break;
    }
    return from;
}

bool is_picture_content(const uint8_t *bytes, size_t length) {
    return length >= 12 && (memcmp(bytes, "\xff\xd8\xff", 3) == 0 || memcmp(bytes, "\x89PNG", 4) == 0 ||
                            (memcmp(bytes, "RIFF", 4) == 0 && memcmp(bytes + 8, "WEBP", 4) == 0));
}

bool is_label_name(const char *name, size_t length) {
    static const char *const names[] = {"label", "class", "cls", "y", "target", "image/class/label"};
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (strlen(names[i]) == length && memcmp(names[i], name, length) == 0)
            return true;
    return false;
}
