/* SPDX-License-Identifier: MIT */
/*
 * Where the control socket is, and who owns it: server_listen() of server.h. Never deletes what is not a dead daemon's
 * socket. Called before threads exist (it sets the umask for a moment); one socket a process.
 */
#include "server.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "base/util.h"

#define SOCKET_PATH_MAX (sizeof((struct sockaddr_un *)0)->sun_path - 1) /* 107: unix(7) */
#define BACKLOG 512

/* What server_unlisten() undoes. */
static struct {
    int lock_fd;
    bool listening;
    char path[SOCKET_PATH_MAX + 1];
} owned = {.lock_fd = -1};

const char *server_default_socket(char *buffer, size_t size) {
    const char *socket = getenv("LOADERD_SOCKET"), *runtime = getenv("XDG_RUNTIME_DIR");
    if (socket && *socket)
        snprintf(buffer, size, "%s", socket);
    else if (runtime && *runtime)
        snprintf(buffer, size, "%s/loaderd/socket", runtime);
    else
        snprintf(buffer, size, "/run/loaderd/socket");
    return buffer;
}

static int make_address(const char *path, struct sockaddr_un *ret, struct diag *diag) {
    size_t length = strlen(path);
    if (length == 0)
        return diag_set(diag, -EINVAL, "the socket path is empty");
    if (length > SOCKET_PATH_MAX)
        return diag_set(diag, -ENAMETOOLONG,
                        "socket path %.60s... has %zu bytes and a unix socket's path at most %zu: choose a shorter one",
                        path, length, SOCKET_PATH_MAX);
    *ret = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(ret->sun_path, path, length + 1);
    return 0;
}

/* The default directories are ours to make; a deeper path is the caller's. */
static int make_directory(const char *path, struct diag *diag) {
    char directory[SOCKET_PATH_MAX + 1];
    snprintf(directory, sizeof directory, "%s", path);
    char *slash = strrchr(directory, '/');
    if (!slash || slash == directory)
        return 0;
    *slash = '\0';
    if (mkdir(directory, 0755) == 0 || errno == EEXIST)
        return 0;
    int code = -errno;
    return diag_set(diag, code, "cannot make the socket's directory %s: %s", directory, strerror(-code));
}

/* Whose pid the lock file says; 0: nobody's. */
static int read_pid(int fd) {
    char text[16] = "";
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    return n > 0 ? atoi(text) : 0;
}

static void write_pid(int fd) {
    char text[16];
    int n = snprintf(text, sizeof text, "%d\n", (int)getpid());
    if (ftruncate(fd, 0) < 0 || pwrite(fd, text, (size_t)n, 0) != n)
        return; /* advice for messages only */
}

/* Also false where `path` is gone. */
static bool same_file(int fd, const char *path) {
    struct stat a, b;
    return fstat(fd, &a) == 0 && lstat(path, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* Takes PATH.lock. A lock on a file that its owner removed meanwhile is none: begin again. */
static int take_lock(const char *path, int *ret_fd, struct diag *diag) {
    char lock[SOCKET_PATH_MAX + sizeof ".lock"];
    snprintf(lock, sizeof lock, "%s.lock", path);
    for (int attempt = 0; attempt < 100; attempt++) {
        cleanup_close int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
        if (fd < 0) {
            int code = -errno;
            return diag_set(diag, code, "cannot open the lock file %s: %s%s", lock, strerror(-code),
                            code == -EACCES || code == -EPERM ? " (is another user's daemon using this socket?)" : "");
        }
        struct stat st;
        if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > 15)
            return diag_set(diag, -EEXIST,
                            "%s is no lock file of loaderd: it is left alone; choose another socket path", lock);
        if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
            int code = errno == EWOULDBLOCK ? -EADDRINUSE : -errno, pid = read_pid(fd);
            if (code != -EADDRINUSE)
                return diag_set(diag, code, "cannot lock %s: %s", lock, strerror(-code));
            if (pid > 0)
                return diag_set(diag, code, "socket %s is in use by a running loaderd, pid %d", path, pid);
            return diag_set(diag, code, "socket %s is in use by a loaderd that is starting", path);
        }
        if (same_file(fd, lock)) {
            write_pid(fd);
            *ret_fd = steal_fd(&fd);
            return 0;
        }
    }
    return diag_set(diag, -EADDRINUSE, "the lock file %s changes all the time", lock);
}

/* Something is at `path`: 0 where it was a dead daemon's socket and is gone now. */
static int clear_stale(const char *path, const struct sockaddr_un *address, struct diag *diag) {
    struct stat st;
    if (lstat(path, &st) < 0) {
        int code = -errno;
        return code == -ENOENT ? 0 : diag_set(diag, code, "cannot look at socket path %s: %s", path, strerror(-code));
    }
    if (!S_ISSOCK(st.st_mode))
        return diag_set(diag, -EEXIST, "%s exists and is no socket: it is left alone; choose another socket path",
                        path);
    cleanup_close int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return diag_set(diag, -errno, "cannot make a unix socket: %s", strerror(errno));
    if (connect(fd, (const struct sockaddr *)address, sizeof *address) == 0) {
        struct ucred peer = {0};
        socklen_t size = sizeof peer;
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size);
        return diag_set(diag, -EADDRINUSE, "socket %s is in use by process %d", path, (int)peer.pid);
    }
    if (errno == ENOENT)
        return 0;
    if (errno != ECONNREFUSED) {
        int code = errno == EAGAIN || errno == EPROTOTYPE ? -EADDRINUSE : -errno;
        return diag_set(diag, code, "socket %s is in use by another program: %s", path, strerror(errno));
    }
    if (unlink(path) < 0 && errno != ENOENT)
        return diag_set(diag, -errno, "cannot remove the dead socket %s: %s", path, strerror(errno));
    return 0;
}

static int set_access(const char *path, const struct daemon_config *daemon, struct diag *diag) {
    if (daemon->socket_group && *daemon->socket_group) {
        const struct group *group = getgrnam(daemon->socket_group);
        if (!group)
            return diag_set(diag, -EINVAL, "socket-group %s: there is no such group (groupadd --system %s)",
                            daemon->socket_group, daemon->socket_group);
        if (chown(path, (uid_t)-1, group->gr_gid) < 0)
            return diag_set(diag, -errno, "cannot give socket %s to group %s: %s", path, daemon->socket_group,
                            strerror(errno));
    }
    if (chmod(path, daemon->socket_mode) < 0)
        return diag_set(diag, -errno, "cannot set mode %03o on socket %s: %s", daemon->socket_mode, path,
                        strerror(errno));
    return 0;
}

static int bind_and_listen(const char *path, const struct sockaddr_un *address, const struct daemon_config *daemon,
                           int *ret_fd, struct diag *diag) {
    cleanup_close int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return diag_set(diag, -errno, "cannot make a unix socket: %s", strerror(errno));
    mode_t before = umask(0177); /* nobody else gets in before its group and mode are right */
    int r = bind(fd, (const struct sockaddr *)address, sizeof *address) < 0 ? -errno : 0;
    umask(before);
    if (r < 0)
        return diag_set(diag, r, "cannot bind socket %s: %s", path, strerror(-r));
    r = set_access(path, daemon, diag);
    if (r == 0 && listen(fd, BACKLOG) < 0)
        r = diag_set(diag, -errno, "cannot listen at %s: %s", path, strerror(errno));
    if (r < 0) {
        unlink(path);
        return r;
    }
    *ret_fd = steal_fd(&fd);
    return 0;
}

int server_listen(const char *path, const struct daemon_config *daemon, int *ret_fd, struct diag *diag) {
    struct sockaddr_un address;
    cleanup_close int lock_fd = -1;
    int r = make_address(path, &address, diag);
    if (r == 0)
        r = make_directory(path, diag);
    if (r == 0)
        r = take_lock(path, &lock_fd, diag);
    if (r < 0)
        return r;
    r = clear_stale(path, &address, diag);
    if (r == 0)
        r = bind_and_listen(path, &address, daemon, ret_fd, diag);
    if (r < 0) {
        char lock[SOCKET_PATH_MAX + sizeof ".lock"];
        snprintf(lock, sizeof lock, "%s.lock", path);
        unlink(lock); /* ours: we hold it */
        return r;
    }
    owned.lock_fd = steal_fd(&lock_fd);
    owned.listening = true;
    snprintf(owned.path, sizeof owned.path, "%s", path);
    return 0;
}

void server_unlisten(void) {
    if (!owned.listening)
        return;
    char lock[SOCKET_PATH_MAX + sizeof ".lock"];
    snprintf(lock, sizeof lock, "%s.lock", owned.path);
    unlink(owned.path);
    unlink(lock);
    close(owned.lock_fd);
    owned.lock_fd = -1;
    owned.listening = false;
}
