/* SPDX-License-Identifier: MIT */
/* Reading JSON: see json_read.h. */
#include "json_read.h"

#include <ctype.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

char json_peek(struct json_cursor *cursor) {
    while (cursor->at < cursor->end && strchr(" \t\r\n", *cursor->at) && *cursor->at)
        cursor->at++;
    return cursor->at < cursor->end ? *cursor->at : 0;
}

bool json_take(struct json_cursor *cursor, char wanted) {
    if (json_peek(cursor) != wanted)
        return false;
    cursor->at++;
    return true;
}

/* The raw text between the quotes. */
static bool take_string(struct json_cursor *cursor, struct json_span *ret) {
    if (!json_take(cursor, '"'))
        return false;
    ret->at = cursor->at;
    for (; cursor->at < cursor->end && *cursor->at != '"'; cursor->at++)
        if ((unsigned char)*cursor->at < 0x20 || (*cursor->at == '\\' && ++cursor->at == cursor->end))
            return false;
    if (cursor->at == cursor->end)
        return false;
    ret->length = (size_t)(cursor->at++ - ret->at);
    return true;
}

static bool take_word(struct json_cursor *cursor, struct json_span *ret) {
    json_peek(cursor);
    ret->at = cursor->at;
    while (cursor->at < cursor->end && (isalnum((unsigned char)*cursor->at) || strchr("+-.", *cursor->at)) &&
           *cursor->at)
        cursor->at++;
    ret->length = (size_t)(cursor->at - ret->at);
    return ret->length > 0;
}

/* Members of an object or array, values only looked at for their form. */
static bool take_members(struct json_cursor *cursor, unsigned depth, char open, char close) {
    struct json_span ignored;
    if (depth >= JSON_MAX_DEPTH || !json_take(cursor, open))
        return false;
    if (json_take(cursor, close))
        return true;
    do {
        if (open == '{' && (!take_string(cursor, &ignored) || !json_take(cursor, ':')))
            return false;
        if (!json_take_value(cursor, depth + 1, &ignored))
            return false;
    } while (json_take(cursor, ','));
    return json_take(cursor, close);
}

bool json_take_value(struct json_cursor *cursor, unsigned depth, struct json_span *ret) {
    char first = json_peek(cursor);
    bool good;
    struct json_span word;
    ret->at = cursor->at;
    if (first == '{')
        good = take_members(cursor, depth, '{', '}');
    else if (first == '[')
        good = take_members(cursor, depth, '[', ']');
    else if (first == '"')
        good = take_string(cursor, &word);
    else
        good = take_word(cursor, &word);
    ret->length = (size_t)(cursor->at - ret->at);
    return good;
}

/* Next "key": value of an object whose '{' has been taken. False at its end. */
bool json_next_member(struct json_cursor *cursor, struct json_span *ret_key, struct json_span *ret_value) {
    json_take(cursor, ',');
    return take_string(cursor, ret_key) && json_take(cursor, ':') && json_take_value(cursor, 0, ret_value);
}

bool json_next_element(struct json_cursor *cursor, struct json_span *ret) {
    json_take(cursor, ',');
    return json_peek(cursor) != ']' && json_take_value(cursor, 0, ret);
}

bool json_parse(const char *text, size_t length, struct json_span *ret) {
    struct json_cursor cursor = {text, text + length};
    struct json_span whole;
    if (length > INT32_MAX || !json_take_value(&cursor, 0, &whole))
        return false;
    json_peek(&cursor);
    if (cursor.at != cursor.end)
        return false;
    *ret = whole;
    return true;
}

struct json_cursor json_open(const struct json_span *value) {
    if (value->length < 2 || (*value->at != '{' && *value->at != '['))
        return (struct json_cursor){value->at, value->at};
    return (struct json_cursor){value->at + 1, value->at + value->length};
}

bool json_is(const struct json_span *span, const char *text) {
    return span->length == strlen(text) && memcmp(span->at, text, span->length) == 0;
}

bool json_member(const struct json_span *value, const char *name, struct json_span *ret) {
    if (value->length == 0 || *value->at != '{')
        return false;
    struct json_cursor cursor = json_open(value);
    struct json_span key, found;
    while (json_next_member(&cursor, &key, &found))
        if (json_is(&key, name)) {
            *ret = found;
            return true;
        }
    return false;
}

double json_number(const struct json_span *value, const char *name, double otherwise) {
    struct json_span found;
    char text[64], *end;
    if (!json_member(value, name, &found) || found.length >= sizeof text)
        return otherwise;
    memcpy(text, found.at, found.length);
    text[found.length] = '\0';
    double number = strtod(text, &end);
    return end == text || *end || !isfinite(number) ? otherwise : number;
}

/* What an escape stands for; moves *at past it. */
static char unescape(const char **at, const char *end) {
    char c = *(*at)++, digits[5] = "";
    switch (c) {
    case 'n':
    case 'r':
    case 't':
    case 'b':
    case 'f':
        return ' ';
    case 'u':
        if (end - *at < 4)
            return '?';
        memcpy(digits, *at, 4);
        *at += 4;
        unsigned long code = strtoul(digits, NULL, 16);
        return code >= 0x20 && code < 0x7f ? (char)code : '?';
    default:
        return c;
    }
}

const char *json_text(const struct json_span *value, const char *name, char *ret, size_t size) {
    struct json_span found;
    size_t n = 0;
    if (json_member(value, name, &found) && found.length >= 2 && *found.at == '"') {
        const char *at = found.at + 1, *end = found.at + found.length - 1;
        while (at < end && n + 1 < size) {
            char c = *at++;
            ret[n++] = c == '\\' && at < end ? unescape(&at, end) : c;
        }
    }
    ret[n] = '\0';
    return ret;
}
