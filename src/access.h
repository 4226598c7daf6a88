/* SPDX-License-Identifier: MIT */
/*
 * Who may open sessions of a pipeline: the key `allow`, its names looked up once (a directory of users may be slow, and
 * the server's thread never waits). Credentials are what the kernel says of the peer of a socket, never what it sends.
 */
#ifndef ACCESS_H
#define ACCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/diag.h"

struct access;

/* Looks up a value of `allow` that config.c has accepted. Names that nobody has are left out, so that they allow
 * nobody; the first goes into `unknown`, which stays empty otherwise. -ENOMEM. */
int access_new(const char *allow, struct access **ret, struct diag *unknown);
struct access *access_free(struct access *access); /* NULL */

/* Is the list "all"? Then nothing need be asked of the peer. */
bool access_is_open(const struct access *access);
/* Pure: may somebody with this user, main group and further groups? Root and `owner` always may. */
bool access_allows(const struct access *access, uid_t owner, uid_t uid, gid_t gid, const gid_t *groups, size_t count);
/* The same for the process that connected `fd` (SO_PEERCRED, SO_PEERGROUPS of when it did so). */
bool access_allows_peer(const struct access *access, uid_t owner, int fd);

#endif
