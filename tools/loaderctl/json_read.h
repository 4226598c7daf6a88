/* SPDX-License-Identifier: MIT */
/*
 * Reading JSON that another process wrote: every byte is checked, nesting is bounded, nothing is copied or allocated. A
 * span is a piece of the text. Pure; any thread.
 */
#ifndef JSON_READ_H
#define JSON_READ_H

#include <stdbool.h>
#include <stddef.h>

#define JSON_MAX_DEPTH 16

struct json_span {
    const char *at;
    size_t length;
};

/* What is left of a text. A parse function moves `at` past what it took and returns false where that is no JSON. */
struct json_cursor {
    const char *at, *end;
};

/* The whole text as one value; false where it is none, or something follows. */
bool json_parse(const char *text, size_t length, struct json_span *ret);
char json_peek(struct json_cursor *cursor); /* the next character that is no space, 0 at the end */
bool json_take(struct json_cursor *cursor, char wanted);
bool json_take_value(struct json_cursor *cursor, unsigned depth, struct json_span *ret);

/* The inside of an object or array; then member by member, element by element, until false. */
struct json_cursor json_open(const struct json_span *value);
bool json_next_member(struct json_cursor *cursor, struct json_span *ret_key, struct json_span *ret_value);
bool json_next_element(struct json_cursor *cursor, struct json_span *ret);

/* The member of that name; false where `value` is no object or has none. */
bool json_member(const struct json_span *value, const char *name, struct json_span *ret);
/* A number; `otherwise` where the member is not there or none. Never NaN or infinite. */
double json_number(const struct json_span *value, const char *name, double otherwise);
/* A string without escapes (\uXXXX beyond ASCII becomes '?'), cut to fit; "" where it is not there. Returns `ret`. */
const char *json_text(const struct json_span *value, const char *name, char *ret, size_t size);
bool json_is(const struct json_span *span, const char *text);

#endif
