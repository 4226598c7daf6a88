/* SPDX-License-Identifier: MIT */
/*
 * A connection of loaderctl's to a running daemon (abi/protocol.h), and the commands that tell it something: drain and
 * detach. Opens no session. One thread; waits at most 5 s for an answer, and for a draining daemon's end.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>

#include "../../client/connection.h"
#include "base/util.h"
#include "loaderctl.h"

#define PATIENCE_MS 5000

int daemon_await(int fd, void *packet, size_t size, size_t *ret_length, int *ret_fd, struct diag *diag) {
    return daemon_await_for(fd, 0, packet, size, ret_length, ret_fd, diag);
}

int daemon_await_for(int fd, uint32_t ms, void *packet, size_t size, size_t *ret_length, int *ret_fd,
                     struct diag *diag) {
    struct pollfd item = {.fd = fd, .events = POLLIN};
    int patience = PATIENCE_MS + (int)MIN(ms, (uint32_t)INT32_MAX / 2);
    int fds[2] = {-1, -1}, n = poll(&item, 1, patience);
    if (n == 0)
        return diag_set(diag, -ETIMEDOUT, "the daemon did not answer within %d s", patience / 1000);
    n = n < 0 ? -errno : connection_receive(fd, packet, size, fds);
    if (fds[1] >= 0)
        close(fds[1]);
    if (ret_fd && n > 0)
        *ret_fd = fds[0];
    else if (fds[0] >= 0)
        close(fds[0]);
    if (n < 0)
        return diag_set(diag, n, "cannot receive from the daemon: %s", strerror(-n));
    if (n == 0)
        return diag_set(diag, -ECONNRESET, "the daemon closed the connection");
    *ret_length = (size_t)n;
    return 0;
}

static int greet(int fd, struct diag *diag) {
    char packet[LOADERD_MESSAGE_MAX], error[DIAG_TEXT] = "";
    struct loaderd_hello_ok answer;
    size_t length;
    int r = connection_hello(fd);
    if (r < 0)
        return diag_set(diag, r, "cannot send to the daemon: %s", strerror(-r));
    r = daemon_await(fd, packet, sizeof packet, &length, NULL, diag);
    if (r < 0)
        return r;
    r = connection_parse_hello_ok(packet, length, &answer, error, sizeof error);
    return r < 0 ? diag_set(diag, r, "%s", error) : 0;
}

/* Says HELLO over a new connection. The descriptor is closed where that fails. */
static int begin(int fd, int *ret_fd, struct diag *diag) {
    int r = greet(fd, diag);
    if (r < 0)
        close(fd);
    else
        *ret_fd = fd;
    return r;
}

int daemon_connect(const char *path, int *ret_fd, struct diag *diag) {
    char error[DIAG_TEXT] = "";
    int fd = connection_connect(path, error, sizeof error);
    return fd < 0 ? diag_set(diag, fd, "%s", error) : begin(fd, ret_fd, diag);
}

int daemon_find(const struct options *options, int *ret_fd, struct diag *diag) {
    char chosen[CONNECTION_PATH_MAX + 1], error[DIAG_TEXT] = "";
    struct config config = {0};
    const char *path = NULL;
    int fd = 0;
    for (uint32_t i = 0; i < options->nkeys; i++) /* --socket is the only key that such a command takes */
        path = options->keys[i].value;
    if (!path && options->config) {
        fd = config_read_file(options->config, &config, diag);
        if (fd < 0)
            return fd;
        path = *config.daemon.socket ? config.daemon.socket : NULL;
    }
    fd = path ? connection_connect(path, error, sizeof error) : connection_search(chosen, error, sizeof error);
    config_deinit(&config);
    if (fd < 0)
        return diag_set(diag, fd, "%s%s", path ? "no daemon answers at " : "", error);
    return begin(fd, ret_fd, diag);
}

/* Sends a request whose answer is a sentence, and prints that. */
static int tell(int fd, const void *request, size_t bytes, struct diag *diag) {
    char packet[LOADERD_MESSAGE_MAX], error[DIAG_TEXT] = "";
    const char *text;
    uint64_t number;
    size_t length;
    int r = connection_send(fd, request, bytes);
    if (r < 0)
        return diag_set(diag, r, "cannot send to the daemon: %s", strerror(-r));
    r = daemon_await(fd, packet, sizeof packet, &length, NULL, diag);
    if (r < 0)
        return r;
    r = connection_parse_text(packet, length, &text, &number, error, sizeof error);
    if (r < 0)
        return diag_set(diag, r, "%s", error);
    puts(text);
    return 0;
}

int command_drain(const struct options *options) {
    struct diag diag = DIAG_INIT;
    cleanup_close int fd = -1;
    double ms = options->seconds * 1e3;
    const struct loaderd_drain request = {.message = {LOADERD_DRAIN, sizeof request},
                                          .timeout_ms = ms < UINT32_MAX ? (uint32_t)ms : UINT32_MAX};
    if (daemon_find(options, &fd, &diag) < 0 || tell(fd, &request, sizeof request, &diag) < 0)
        return complain_diag(&diag);
    int status = finish_stdout();
    struct pollfd item = {.fd = fd};
    while (poll(&item, 1, -1) < 0 && errno == EINTR) /* until the daemon ends: a hang-up */
        ;
    return status;
}

int command_detach(const struct options *options) {
    struct diag diag = DIAG_INIT;
    cleanup_close int fd = -1;
    struct loaderd_detach request = {.message = {LOADERD_DETACH, sizeof request}};
    char *end;
    errno = 0;
    request.session = strtoull(options->target, &end, 10);
    if (errno || *end || *options->target < '0' || *options->target > '9')
        return complain("%s is no number of a session; `loaderctl status` lists them", options->target);
    snprintf(request.reason, sizeof request.reason, "%s", options->reason ? options->reason : "");
    if (daemon_find(options, &fd, &diag) < 0 || tell(fd, &request, sizeof request, &diag) < 0)
        return complain_diag(&diag);
    return finish_stdout();
}
