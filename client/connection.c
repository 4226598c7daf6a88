/* SPDX-License-Identifier: MIT */
/* See connection.h. The daemon is trusted with its ring, but its packets are checked like any bytes from outside. */
#include "connection.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <loaderd/abi/ring.h>

/* ---- where ------------------------------------------------------------------------------------------------------- */

int connection_connect(const char *path, char *error, size_t size) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(path);
    if (length == 0 || length > CONNECTION_PATH_MAX) {
        snprintf(error, size, "socket path %.40s%s has %zu bytes; a unix socket's path may have %d", path,
                 length > 40 ? "..." : "", length, CONNECTION_PATH_MAX);
        return length ? -ENAMETOOLONG : -EINVAL;
    }
    memcpy(address.sun_path, path, length);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    int code = -errno;
    if (fd >= 0)
        close(fd);
    snprintf(error, size, "%s: %s%s", path, strerror(-code),
             code == -EACCES ? " (are you in the socket's group? see socket-group in loaderd.conf(5))" : "");
    return code;
}

/* Appends "path (reason), ". */
static void note_try(char *list, size_t size, const char *path, int code) {
    size_t at = strlen(list);
    snprintf(list + at, size - at, "%s%.200s (%s)", at ? ", " : "", path, strerror(-code));
}

int connection_search(char *chosen, char *error, size_t size) {
    const char *own = getenv("LOADERD_SOCKET"), *runtime = getenv("XDG_RUNTIME_DIR");
    char path[2][4096] = {"", "/run/loaderd/socket"}, tried[600] = "";
    bool denied = false;
    if (own && *own) {
        snprintf(path[0], sizeof path[0], "%s", own);
        path[1][0] = '\0';
    } else if (runtime && *runtime) {
        snprintf(path[0], sizeof path[0], "%s/loaderd/socket", runtime);
    }
    for (int i = 0; i < 2; i++) {
        if (!path[i][0])
            continue;
        int fd = connection_connect(path[i], NULL, 0);
        if (fd >= 0 || fd == -EAGAIN) {
            snprintf(chosen, CONNECTION_PATH_MAX + 1, "%.107s", path[i]);
            return fd;
        }
        denied = denied || fd == -EACCES;
        note_try(tried, sizeof tried, path[i], fd);
    }
    if (denied) {
        snprintf(error, size,
                 "not allowed to talk to loaderd; tried %s%s. Are you in its socket-group, see loaderd.conf(5)?",
                 own && *own ? "$LOADERD_SOCKET = " : "", tried);
        return -EACCES;
    }
    snprintf(error, size,
             "no loaderd answers; tried %s%s. Start one (loaderd(8)), set LOADERD_SOCKET, or name a dataset by "
             "a path with a '/'",
             own && *own ? "$LOADERD_SOCKET = " : "", tried);
    return -ECONNREFUSED;
}

/* ---- packets ----------------------------------------------------------------------------------------------------- */

int connection_send(int fd, const void *packet, size_t length) {
    ssize_t n = send(fd, packet, length, MSG_DONTWAIT | MSG_NOSIGNAL);
    return n < 0 ? -errno : 0;
}

int connection_hello(int fd) {
    struct loaderd_hello hello = {
        .message = {.type = LOADERD_HELLO, .length = sizeof hello},
        .magic = LOADERD_PROTOCOL_MAGIC,
        .protocol_min = LOADERD_PROTOCOL_VERSION_MIN,
        .protocol_max = LOADERD_PROTOCOL_VERSION,
        .ring_min = LOADERD_RING_VERSION_MIN,
        .ring_max = LOADERD_RING_VERSION,
    };
    snprintf(hello.version, sizeof hello.version, "%s", loaderd_version());
    return connection_send(fd, &hello, sizeof hello);
}

void connection_wake(int fd) {
    const char byte = LOADERD_WAKE_BYTE;
    (void)connection_send(fd, &byte, 1); /* full: it has enough to wake up by; broken: the next wait sees that */
}

static void take_descriptors(struct msghdr *message, int fds[2]) {
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            if (fds[0] < 0)
                fds[0] = fd;
            else if (fds[1] < 0)
                fds[1] = fd;
            else
                close(fd);
        }
    }
}

int connection_receive(int fd, void *packet, size_t size, int fds[2]) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(8 * sizeof(int))];
    } control;
    struct iovec vector = {.iov_base = packet, .iov_len = size};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    fds[0] = fds[1] = -1;
    /* The kernel tells a reset once, and before what is still queued: ask again for what the daemon said last. */
    ssize_t n = -1;
    for (int attempt = 0; n < 0 && attempt < 3; attempt++) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        n = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n < 0 && errno != ECONNRESET && errno != EINTR)
            return -errno;
    }
    if (n < 0)
        return -errno;
    take_descriptors(&message, fds);
    return (int)n;
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

bool connection_parse_error(const void *packet, size_t length, int *ret_code, char *error, size_t size) {
    const size_t head = offsetof(struct loaderd_error_message, text);
    struct loaderd_error_message message;
    if (length <= head)
        return false;
    memcpy(&message, packet, head);
    if (message.message.type != LOADERD_ERROR || message.message.length != length)
        return false;
    snprintf(error, size, "%.*s", (int)(length - head - 1), (const char *)packet + head);
    *ret_code = message.code < 0 && message.code > -4096 ? message.code : -EPROTO;
    return true;
}

/* Copies an answer of exactly `want` bytes and of this type. */
static int parse_fixed(const void *packet, size_t length, uint32_t type, void *ret, size_t want, char *error,
                       size_t size) {
    struct loaderd_message message = {0};
    int code;
    if (connection_parse_error(packet, length, &code, error, size))
        return code;
    if (length >= sizeof message)
        memcpy(&message, packet, sizeof message);
    if (length != want || message.length != length || message.type != type) {
        snprintf(error, size, "the daemon's answer (type %u, %zu bytes) is not the one expected (type %u, %zu bytes)",
                 message.type, length, type, want);
        return -EPROTO;
    }
    memcpy(ret, packet, want);
    return 0;
}

int connection_parse_hello_ok(const void *packet, size_t length, struct loaderd_hello_ok *ret, char *error,
                              size_t size) {
    struct loaderd_hello_ok ok;
    int r = parse_fixed(packet, length, LOADERD_HELLO_OK, &ok, sizeof ok, error, size);
    if (r < 0)
        return r;
    ok.version[sizeof ok.version - 1] = '\0';
    if (ok.protocol < LOADERD_PROTOCOL_VERSION_MIN || ok.protocol > LOADERD_PROTOCOL_VERSION ||
        ok.ring < LOADERD_RING_VERSION_MIN || ok.ring > LOADERD_RING_VERSION) {
        snprintf(error, size,
                 "daemon %s chose protocol %u and ring %u; library %s knows %u to %u and %u to %u: install the same "
                 "version of both",
                 ok.version, ok.protocol, ok.ring, loaderd_version(), LOADERD_PROTOCOL_VERSION_MIN,
                 LOADERD_PROTOCOL_VERSION, LOADERD_RING_VERSION_MIN, LOADERD_RING_VERSION);
        return -EPROTO;
    }
    *ret = ok;
    return 0;
}

int connection_parse_opened(const void *packet, size_t length, struct loaderd_opened *ret, char *error, size_t size) {
    struct loaderd_opened opened;
    int r = parse_fixed(packet, length, LOADERD_OPENED, &opened, sizeof opened, error, size);
    if (r == 0) {
        opened.engine[sizeof opened.engine - 1] = '\0';
        *ret = opened;
    }
    return r;
}

int connection_parse_text(const void *packet, size_t length, const char **ret_text, uint64_t *ret_bytes, char *error,
                          size_t size) {
    const size_t head = offsetof(struct loaderd_text, text);
    struct loaderd_text message;
    const char *bytes = packet;
    int code;
    if (connection_parse_error(packet, length, &code, error, size))
        return code;
    if (length > head)
        memcpy(&message, packet, head);
    if (length <= head || message.message.type != LOADERD_TEXT || message.message.length != length ||
        !memchr(bytes + head, 0, length - head)) {
        snprintf(error, size, "the daemon's answer of %zu bytes is no text", length);
        return -EPROTO;
    }
    *ret_text = bytes + head;
    *ret_bytes = message.bytes;
    return 0;
}
