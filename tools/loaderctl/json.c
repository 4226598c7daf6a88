/* SPDX-License-Identifier: MIT */
/*
 * JSON, as little as the tool needs: strings to write, and a printer that turns a JSON text into aligned lines and tables
 * for people, whatever its keys are. The text comes from another process: every byte is checked, nesting is bounded. Pure
 * functions; any thread.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "json_read.h"
#include "loaderctl.h"

#define MAX_COLUMNS 24

/* Length of the well-formed UTF-8 character at `text`, 0: none (RFC 3629: no surrogates, no overlong forms). */
static unsigned utf8_length(const unsigned char *text) {
    unsigned lead = text[0], low = 0x80, high = 0xbf, length;
    if (lead < 0x80)
        return 1;
    if (lead >= 0xc2 && lead <= 0xdf)
        length = 2;
    else if (lead >= 0xe0 && lead <= 0xef)
        length = 3, low = lead == 0xe0 ? 0xa0 : 0x80, high = lead == 0xed ? 0x9f : 0xbf;
    else if (lead >= 0xf0 && lead <= 0xf4)
        length = 4, low = lead == 0xf0 ? 0x90 : 0x80, high = lead == 0xf4 ? 0x8f : 0xbf;
    else
        return 0;
    if (text[1] < low || text[1] > high)
        return 0;
    for (unsigned i = 2; i < length; i++)
        if (text[i] < 0x80 || text[i] > 0xbf)
            return 0;
    return length;
}

void json_string(FILE *out, const char *text) {
    if (!text) {
        fputs("null", out);
        return;
    }
    fputc('"', out);
    for (const unsigned char *p = (const unsigned char *)text; *p;) {
        unsigned length = utf8_length(p);
        if (!length)
            fputs("\\ufffd", out), length = 1;
        else if (*p == '"' || *p == '\\')
            fprintf(out, "\\%c", *p);
        else if (*p < 0x20 || *p == 0x7f)
            fprintf(out, "\\u%04x", *p);
        else
            fwrite(p, 1, length, out);
        p += length;
    }
    fputc('"', out);
}

static bool span_is(const struct json_span *a, const struct json_span *b) {
    return a->length == b->length && memcmp(a->at, b->at, a->length) == 0;
}

/* Nothing that could steer a terminal. */
static void print_clean(FILE *out, const struct json_span *text) {
    for (size_t i = 0; i < text->length; i++)
        fputc((unsigned char)text->at[i] < 0x20 || text->at[i] == 0x7f ? '?' : text->at[i], out);
}

/* A scalar without its quotes. Returns the columns written. */
static size_t print_scalar(FILE *out, const struct json_span *value) {
    struct json_span inner = *value;
    if (inner.length >= 2 && *inner.at == '"')
        inner.at++, inner.length -= 2;
    if (out)
        print_clean(out, &inner);
    return inner.length;
}

static void print_padding(FILE *out, size_t have, size_t wanted) {
    for (; have < wanted; have++)
        fputc(' ', out);
}

struct column {
    struct json_span key;
    size_t width;
};

static struct json_cursor open_object(const struct json_span *object) {
    return (struct json_cursor){object->at + 1, object->at + object->length};
}

/* One column a key; the members of an object inside a row have columns of their own. */
static void find_columns(const struct json_span *row, unsigned depth, struct column *columns, unsigned *count) {
    struct json_span key, value;
    struct json_cursor cursor = open_object(row);
    while (json_next_member(&cursor, &key, &value)) {
        if (*value.at == '{' && depth == 0) {
            find_columns(&value, depth + 1, columns, count);
            continue;
        }
        unsigned i = 0;
        while (i < *count && !span_is(&columns[i].key, &key))
            i++;
        if (i == MAX_COLUMNS)
            continue;
        if (i == *count)
            columns[(*count)++] = (struct column){key, key.length};
        columns[i].width = MAX(columns[i].width, print_scalar(NULL, &value));
    }
}

static bool find_value(const struct json_span *row, unsigned depth, const struct json_span *wanted,
                       struct json_span *ret) {
    struct json_span key, value;
    struct json_cursor cursor = open_object(row);
    while (json_next_member(&cursor, &key, &value)) {
        if (*value.at == '{' && depth == 0) {
            if (find_value(&value, depth + 1, wanted, ret))
                return true;
        } else if (span_is(&key, wanted)) {
            *ret = value;
            return true;
        }
    }
    return false;
}

static void print_row(FILE *out, const struct json_span *row, const struct column *columns, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        struct json_span value;
        size_t written = find_value(row, 0, &columns[i].key, &value) ? print_scalar(out, &value) : 0;
        print_padding(out, written, i + 1 < count ? columns[i].width + 2 : 0);
    }
    fputc('\n', out);
}

/* An array of objects: a table, one column a key. */
static void print_table(FILE *out, const struct json_span *array) {
    struct column columns[MAX_COLUMNS];
    unsigned count = 0;
    struct json_span element;
    struct json_cursor cursor = {array->at + 1, array->at + array->length};
    while (json_next_element(&cursor, &element))
        if (*element.at == '{')
            find_columns(&element, 0, columns, &count);
    for (unsigned i = 0; i < count; i++) {
        print_clean(out, &columns[i].key);
        print_padding(out, columns[i].key.length, i + 1 < count ? columns[i].width + 2 : 0);
    }
    fputc('\n', out);
    cursor = (struct json_cursor){array->at + 1, array->at + array->length};
    while (json_next_element(&cursor, &element))
        if (*element.at == '{')
            print_row(out, &element, columns, count);
}

static bool is_table(const struct json_span *value) {
    struct json_cursor cursor = {value->at, value->at + value->length};
    return json_take(&cursor, '[') && json_peek(&cursor) == '{';
}

static bool is_plain(const struct json_span *value) {
    return *value->at != '{' && !is_table(value);
}

static void print_heading(FILE *out, const struct json_span *key) {
    fputc('\n', out);
    print_clean(out, key);
    fputc('\n', out);
}

/* Plain members as "key  value"; then each inner object and each array of objects under a heading. */
static void print_object(FILE *out, const struct json_span *object, unsigned depth) {
    struct json_span key, value;
    struct json_cursor cursor = open_object(object);
    size_t width = 0;
    while (json_next_member(&cursor, &key, &value))
        width = is_plain(&value) ? MAX(width, key.length) : width;
    cursor = open_object(object);
    while (json_next_member(&cursor, &key, &value))
        if (is_plain(&value)) {
            print_clean(out, &key);
            print_padding(out, key.length, width + 2);
            if (value.length == 2 && *value.at == '[')
                fputs("none", out);
            else
                print_scalar(out, &value);
            fputc('\n', out);
        }
    cursor = open_object(object);
    while (json_next_member(&cursor, &key, &value)) {
        if (is_plain(&value))
            continue;
        print_heading(out, &key);
        if (is_table(&value))
            print_table(out, &value);
        else if (depth < JSON_MAX_DEPTH)
            print_object(out, &value, depth + 1);
    }
}

bool json_print_table(FILE *out, const char *text, size_t length) {
    struct json_cursor cursor = {text, text + length};
    struct json_span whole;
    if (length > INT32_MAX || !json_take_value(&cursor, 0, &whole))
        return false;
    json_peek(&cursor);
    if (cursor.at != cursor.end || *whole.at != '{')
        return false;
    print_object(out, &whole, 0);
    return true;
}
