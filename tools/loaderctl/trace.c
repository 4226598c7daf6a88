/* SPDX-License-Identifier: MIT */
/*
 * loaderctl trace: what every worker of a running daemon does, for a few seconds, as Chrome's trace events. The daemon writes
 * it (src/trace.c); here it is asked for, waited for, and put into a file. One thread.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/util.h"
#include "loaderctl.h"
#include <loaderd/abi/protocol.h>

/* A file that is there whole or not at all. */
static int write_file(const char *path, const char *text, size_t length) {
    char new_path[4096];
    if ((size_t)snprintf(new_path, sizeof new_path, "%s.new", path) >= sizeof new_path)
        return complain("the name %.60s... is too long", path);
    FILE *file = fopen(new_path, "we");
    bool good = file && fwrite(text, 1, length, file) == length;
    if (file && fclose(file) != 0)
        good = false;
    if (!good || rename(new_path, path) < 0) {
        int code = errno;
        unlink(new_path);
        return complain("cannot write %s: %s", path, strerror(code));
    }
    remark("%s: %.1f MB; chrome://tracing and ui.perfetto.dev open it", path, (double)length / 1e6);
    return 0;
}

int command_trace(const struct options *options) {
    struct diag diag = DIAG_INIT;
    cleanup_free char *text = NULL;
    cleanup_close int fd = -1;
    size_t length = 0;
    const char *path = options->output ? options->output : "trace.json";
    uint32_t ms = (uint32_t)CLAMP(options->seconds * 1e3, 1, 1e9);
    const struct loaderd_trace request = {.message = {LOADERD_TRACE, sizeof request}, .ms = ms};
    if (daemon_find(options, &fd, &diag) < 0 ||
        daemon_report(fd, &request, sizeof request, ms, &text, &length, &diag) < 0)
        return complain_diag(&diag);
    if (strcmp(path, "-") != 0)
        return write_file(path, text, length);
    fwrite(text, 1, length, stdout);
    return finish_stdout();
}
