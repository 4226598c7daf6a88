/* SPDX-License-Identifier: MIT */
/*
 * One packet at a time between libloaderd and a daemon (abi/protocol.h): connect, send, receive with descriptors, and
 * pure checks of the daemon's answers. Never waits; keeps no state. Sentences go into (error, size); size may be 0.
 */
#ifndef CLIENT_CONNECTION_H
#define CLIENT_CONNECTION_H

#include <stdbool.h>
#include <stddef.h>

#include <loaderd/abi/protocol.h>

#define CONNECTION_PATH_MAX 107 /* unix(7) */

/* A connected descriptor or a negative errno (-EAGAIN: the daemon's backlog is full, try again). */
int connection_connect(const char *path, char *error, size_t size);
/* The same, at the first of $LOADERD_SOCKET (alone, if set), $XDG_RUNTIME_DIR/loaderd/socket, /run/loaderd/socket where
 * somebody answers. `chosen` has CONNECTION_PATH_MAX + 1 bytes. The sentence lists what was tried. */
int connection_search(char *chosen, char *error, size_t size);

int connection_send(int fd, const void *packet, size_t length); /* 0 or a negative errno */
int connection_hello(int fd);
void connection_wake(int fd); /* one byte; a full socket is as good */

/* Length of the packet, 0 at the end of the connection, or a negative errno (-EAGAIN: nothing there). Descriptors
 * beyond two are closed; fds[] is -1 where none came. */
int connection_receive(int fd, void *packet, size_t size, int fds[2]);

/* What an answer is: 0 and its fixed part copied to *ret, the code of an ERROR with its text, or -EPROTO. */
int connection_parse_hello_ok(const void *packet, size_t length, struct loaderd_hello_ok *ret, char *error,
                              size_t size);
int connection_parse_opened(const void *packet, size_t length, struct loaderd_opened *ret, char *error, size_t size);
int connection_parse_text(const void *packet, size_t length, const char **ret_text, uint64_t *ret_bytes, char *error,
                          size_t size);
/* True where it is an ERROR: its code and text. */
bool connection_parse_error(const void *packet, size_t length, int *ret_code, char *error, size_t size);

#endif
