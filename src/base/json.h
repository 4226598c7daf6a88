/* SPDX-License-Identifier: MIT */
/* Writing JSON: the one thing that is easily done wrong. Any thread. */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include <stddef.h>
#include <stdio.h>

/* Length of the UTF-8 character at `text`, which ends with a NUL; 0 where it is none (RFC 3629). */
size_t utf8_length(const unsigned char *text);
/* A string with its quotes (RFC 8259); bytes that are no UTF-8 (file names may hold anything) become U+FFFD; NULL is "". */
void json_put_string(FILE *out, const char *text);

#endif
