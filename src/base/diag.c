/* SPDX-License-Identifier: MIT */
/* Sentences beside error codes: see diag.h. Allocates nothing; any thread, on its own diag. */
#include "base/diag.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Drops a UTF-8 sequence that the cut at the buffer's end left incomplete. */
static void trim_utf8(char *text) {
    size_t n = strlen(text), back = 0;
    while (back < n && back < 4 && ((unsigned char)text[n - 1 - back] & 0xc0) == 0x80)
        back++;
    if (back == n)
        return;
    unsigned char lead = (unsigned char)text[n - 1 - back];
    size_t want = lead < 0x80 ? 0 : lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3;
    if (want > back)
        text[n - 1 - back] = '\0';
}

int diag_set(struct diag *diag, int code, const char *format, ...) {
    if (!diag)
        return code;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(diag->text, sizeof diag->text, format, args);
    va_end(args);
    if (n >= (int)sizeof diag->text)
        trim_utf8(diag->text);
    diag->code = code;
    return code;
}

int diag_prefix(struct diag *diag, const char *format, ...) {
    if (!diag)
        return 0;
    char old[DIAG_TEXT];
    memcpy(old, diag->text, sizeof old);
    va_list args;
    va_start(args, format);
    int n = vsnprintf(diag->text, sizeof diag->text, format, args);
    va_end(args);
    if (n < 0 || n >= (int)sizeof diag->text)
        n = (int)strlen(diag->text);
    int m = snprintf(diag->text + n, sizeof diag->text - (size_t)n, ": %s", old);
    if (m >= (int)(sizeof diag->text - (size_t)n))
        trim_utf8(diag->text);
    return diag->code;
}
