/* SPDX-License-Identifier: MIT */
/* What a trainer has of its own, in an object file of its own: the linker replaces both for everybody else. */
#include "darknet.h"

#include <stdio.h>
#include <stdlib.h>

pthread_t load_data(load_args args);
void free_data(data d);
extern int freed_by_trainer;
int freed_by_trainer;

pthread_t load_data(load_args args) {
    (void)args;
    fputs("load_data() was not wrapped by the linker; was this built with -flto?\n", stderr);
    abort(); /* nobody must come here */
}

void free_data(data d) {
    freed_by_trainer++;
    free(d.X.vals);
    free(d.y.vals);
}
