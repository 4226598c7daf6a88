/* SPDX-License-Identifier: MIT */
/*
 * A sentence for people beside an error code. It is written where the fact is known and says what, where (path,
 * record, offset), wanted, found, remedy. Functions take a `struct diag *` last; NULL is allowed everywhere.
 */
#ifndef BASE_DIAG_H
#define BASE_DIAG_H

#define DIAG_TEXT 512

struct diag {
    int code; /* negative errno of the failure, 0: none */
    char text[DIAG_TEXT];
};
/* clang-format off */
#define DIAG_INIT {0, ""}
/* clang-format on */

/* Stores the sentence and returns `code` (a negative errno), so that one can `return diag_set(d, -EINVAL, ...)`.
 * A longer sentence is cut, never split inside a UTF-8 character. */
int diag_set(struct diag *diag, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Puts "context: " before what is there. Returns the stored code. */
int diag_prefix(struct diag *diag, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
