/* SPDX-License-Identifier: MIT */
/* Which word was meant: see near.h. */
#include "base/near.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

#include "base/util.h"

#define MOST_LETTERS 40

static char plain(char c) {
    return c == '_' ? '-' : (char)tolower((unsigned char)c);
}

/* Edits from a to b (optimal string alignment). */
static size_t edit_distance(const char *a, size_t a_length, const char *b) {
    size_t b_length = strlen(b), row[3][MOST_LETTERS + 1];
    if (a_length > MOST_LETTERS || b_length > MOST_LETTERS)
        return SIZE_MAX;
    for (size_t j = 0; j <= b_length; j++)
        row[0][j] = j;
    for (size_t i = 1; i <= a_length; i++) {
        size_t *now = row[i % 3], *before = row[(i + 2) % 3], *earlier = row[(i + 1) % 3];
        now[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            bool same = plain(a[i - 1]) == plain(b[j - 1]);
            now[j] = MIN(MIN(before[j], now[j - 1]) + 1, before[j - 1] + !same);
            if (i > 1 && j > 1 && plain(a[i - 1]) == plain(b[j - 2]) && plain(a[i - 2]) == plain(b[j - 1]))
                now[j] = MIN(now[j], earlier[j - 2] + 1);
        }
    }
    return row[a_length % 3][b_length];
}

void near_try(struct near *near, const char *candidate) {
    size_t distance = edit_distance(near->word, near->length, candidate);
    if (distance < near->distance && distance <= 1 + near->length / 4) {
        near->distance = distance;
        near->found = candidate;
    }
}
