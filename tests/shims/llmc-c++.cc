/* SPDX-License-Identifier: MIT */
/* The same tests of the same header, as C++17. */
#include "llmc.c"
