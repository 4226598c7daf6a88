/* SPDX-License-Identifier: MIT */
/*
 * loaderctl status: asks a running daemon for its report (abi/protocol.h) and prints it, for people or as JSON. Opens no
 * session. One thread; waits at most 5 s for an answer.
 */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "../../client/connection.h"
#include "base/util.h"
#include "loaderctl.h"

#define MOST_BYTES (64u << 20) /* of a report */

/* Asks for a report: its descriptor, the caller's, and its length. */
static int ask(int fd, const void *request, size_t request_bytes, uint32_t ms, int *ret_fd, uint64_t *ret_bytes,
               struct diag *diag) {
    char packet[LOADERD_MESSAGE_MAX], error[DIAG_TEXT] = "";
    const char *text;
    cleanup_close int report = -1;
    size_t length;
    int r = connection_send(fd, request, request_bytes);
    if (r < 0)
        return diag_set(diag, r, "cannot send to the daemon: %s", strerror(-r));
    r = daemon_await_for(fd, ms, packet, sizeof packet, &length, &report, diag);
    if (r < 0)
        return r;
    r = connection_parse_text(packet, length, &text, ret_bytes, error, sizeof error);
    if (r < 0)
        return diag_set(diag, r, "%s", error);
    if (report < 0)
        return diag_set(diag, -EPROTO, "the daemon sent no report with its answer");
    *ret_fd = steal_fd(&report);
    return 0;
}

static int read_report(int fd, uint64_t bytes, char **ret, struct diag *diag) {
    struct stat status;
    if (bytes > MOST_BYTES || fstat(fd, &status) < 0 || status.st_size < (off_t)bytes)
        return diag_set(diag, -EPROTO, "the daemon's report has not the %llu bytes that it said",
                        (unsigned long long)bytes);
    cleanup_free char *text = malloc(bytes + 1);
    if (!text)
        return diag_set(diag, -ENOMEM, "out of memory for a report of %llu bytes", (unsigned long long)bytes);
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pread(fd, text + done, bytes - done, (off_t)done);
        if (n <= 0)
            return diag_set(diag, n < 0 ? -errno : -EPROTO, "cannot read the daemon's report");
        done += (size_t)n;
    }
    text[bytes] = 0;
    *ret = steal_pointer(&text);
    return 0;
}

int daemon_report(int fd, const void *request, size_t request_bytes, uint32_t ms, char **ret, size_t *ret_length,
                  struct diag *diag) {
    cleanup_close int report = -1;
    uint64_t bytes = 0;
    int r = ask(fd, request, request_bytes, ms, &report, &bytes, diag);
    if (r == 0)
        r = read_report(report, bytes, ret, diag);
    if (r == 0)
        *ret_length = (size_t)bytes;
    return r;
}

int status_fetch(int fd, char **ret, size_t *ret_length, struct diag *diag) {
    const struct loaderd_message message = {LOADERD_STATUS, sizeof message};
    return daemon_report(fd, &message, sizeof message, 0, ret, ret_length, diag);
}

int status_report(const char *socket, char **ret, size_t *ret_length, struct diag *diag) {
    cleanup_close int fd = -1;
    int r = daemon_connect(socket, &fd, diag);
    return r < 0 ? r : status_fetch(fd, ret, ret_length, diag);
}

int command_status(const struct options *options) {
    struct diag diag = DIAG_INIT;
    cleanup_free char *text = NULL;
    cleanup_close int fd = -1;
    size_t length = 0;
    if (daemon_find(options, &fd, &diag) < 0 || status_fetch(fd, &text, &length, &diag) < 0)
        return complain_diag(&diag);
    if (options->json)
        printf("%s%s", text, length && text[length - 1] == '\n' ? "" : "\n");
    else if (!json_print_table(stdout, text, length))
        return complain("the daemon's report is no JSON; loaderctl and loaderd are of different versions?");
    return finish_stdout();
}
