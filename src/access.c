/* SPDX-License-Identifier: MIT */
/* Who may open sessions of a pipeline: see access.h. */
#include "access.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/util.h"
#include "config.h"

#ifndef SO_PEERGROUPS
#define SO_PEERGROUPS 59 /* Linux 4.13 */
#endif

struct entry {
    bool is_group;
    uint32_t id;
};

struct access {
    bool all;
    size_t count;
    struct entry entry[];
};

/* A number is itself; 2^32 - 1 is nobody's. */
static bool parse_id(const char *name, uint32_t *ret) {
    uint64_t id = 0;
    for (; *name >= '0' && *name <= '9' && id < UINT32_MAX; name++)
        id = id * 10 + (uint64_t)(*name - '0');
    *ret = (uint32_t)id;
    return *name == '\0' && id < UINT32_MAX;
}

static bool look_up(const struct config_allowed *allowed, uint32_t *ret) {
    if (allowed->name[0] >= '0' && allowed->name[0] <= '9' && parse_id(allowed->name, ret))
        return true;
    if (allowed->is_group) {
        const struct group *group = getgrnam(allowed->name);
        *ret = group ? group->gr_gid : 0;
        return group != NULL;
    }
    const struct passwd *user = getpwnam(allowed->name);
    *ret = user ? user->pw_uid : 0;
    return user != NULL;
}

int access_new(const char *allow, struct access **ret, struct diag *unknown) {
    size_t names = 0;
    struct config_allowed allowed;
    for (const char *at = allow; config_next_allowed(&at, &allowed);)
        names++;
    struct access *access = calloc(1, sizeof *access + names * sizeof access->entry[0]);
    if (!access)
        return -ENOMEM;
    for (const char *at = allow; config_next_allowed(&at, &allowed);) {
        uint32_t id;
        if (!allowed.is_group && (strcmp(allowed.name, "all") == 0 || strcmp(allowed.name, "none") == 0))
            access->all |= strcmp(allowed.name, "all") == 0;
        else if (look_up(&allowed, &id))
            access->entry[access->count++] = (struct entry){allowed.is_group, id};
        else if (unknown && unknown->code == 0)
            diag_set(unknown, -ENOENT, "allow: there is no %s '%s' on this machine",
                     allowed.is_group ? "group" : "user", allowed.name);
    }
    *ret = access;
    return 0;
}

struct access *access_free(struct access *access) {
    free(access);
    return NULL;
}

bool access_is_open(const struct access *access) {
    return access->all;
}

bool access_allows(const struct access *access, uid_t owner, uid_t uid, gid_t gid, const gid_t *groups, size_t count) {
    if (access->all || uid == 0 || uid == owner)
        return true;
    for (size_t i = 0; i < access->count; i++) {
        const struct entry *e = &access->entry[i];
        if (e->id == (e->is_group ? gid : uid))
            return true;
        for (size_t k = 0; e->is_group && k < count; k++)
            if (groups[k] == e->id)
                return true;
    }
    return false;
}

bool access_allows_peer(const struct access *access, uid_t owner, int fd) {
    struct ucred peer = {0};
    socklen_t size = sizeof peer;
    if (access->all)
        return true;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0)
        return false;
    size = 64 * sizeof(gid_t);
    cleanup_free gid_t *groups = malloc(size);
    while (groups && getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &size) < 0) {
        gid_t *more = errno == ERANGE ? realloc(groups, size) : NULL; /* size: what the kernel needs */
        if (!more) {
            size = 0;
            break;
        }
        groups = more;
    }
    return access_allows(access, owner, peer.uid, peer.gid, groups, groups ? size / sizeof *groups : 0);
}
