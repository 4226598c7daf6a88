/* SPDX-License-Identifier: MIT */
/*
 * Which word of several was meant: for "did you mean". Pure; candidates are not copied.
 *
 *     struct near near = near_to(word, strlen(word));
 *     near_try(&near, "uring"), near_try(&near, "mmap"), ...
 *     near.found: the nearest that is near enough, the first of equals; NULL: none
 */
#ifndef BASE_NEAR_H
#define BASE_NEAR_H

#include <stddef.h>
#include <stdint.h>

struct near {
    const char *word;
    size_t length, distance; /* distance: of what was found */
    const char *found;
};

static inline struct near near_to(const char *word, size_t length) {
    return (struct near){word, length, SIZE_MAX, NULL};
}
/* Near enough is: one edit, and one more for every four letters of the word. An edit inserts, deletes or changes a letter,
 * or swaps two neighbours; case and '_' for '-' cost nothing. Words of more than 40 letters are not compared. */
void near_try(struct near *near, const char *candidate);

#endif
