/* SPDX-License-Identifier: MIT */
/* The metrics page over HTTP: see exporter.h. */
#include "exporter.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "autoconfig.h"
#include "base/log.h"
#include "base/util.h"

/* ---- the address --------------------------------------------------------------------------------------------------- */

static int parse_unix(const char *path, struct exporter_address *ret, struct diag *diag) {
    struct sockaddr_un *address = (struct sockaddr_un *)&ret->address;
    if (*path != '/')
        return diag_set(diag, -EINVAL, "metrics = unix:%.60s: write an absolute path behind unix:", path);
    if (strlen(path) >= sizeof address->sun_path)
        return diag_set(diag, -EINVAL, "metrics = unix:%.60s...: a socket's path has at most %zu bytes", path,
                        sizeof address->sun_path - 1);
    address->sun_family = AF_UNIX;
    strcpy(address->sun_path, path);
    ret->length = sizeof *address;
    snprintf(ret->text, sizeof ret->text, "unix:%s", path);
    return 0;
}

/* 0 to 65535, digits alone. */
static bool parse_port(const char *text, uint16_t *ret) {
    char *end;
    if (*text < '0' || *text > '9' || strlen(text) > 5)
        return false;
    unsigned long port = strtoul(text, &end, 10);
    *ret = (uint16_t)port;
    return *end == '\0' && port <= UINT16_MAX;
}

static bool parse_host(const char *host, uint16_t port, struct exporter_address *ret, bool *ret_loopback) {
    struct sockaddr_in *four = (struct sockaddr_in *)&ret->address;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)&ret->address;
    size_t n = strlen(host);
    char inner[64];
    if (strcmp(host, "localhost") == 0)
        host = "127.0.0.1";
    if (inet_pton(AF_INET, host, &four->sin_addr) == 1) {
        four->sin_family = AF_INET;
        four->sin_port = htons(port);
        ret->length = sizeof *four;
        *ret_loopback = ntohl(four->sin_addr.s_addr) >> 24 == 127;
        snprintf(ret->text, sizeof ret->text, "%s:%u", host, port);
        return true;
    }
    if (n < 3 || n - 2 >= sizeof inner || host[0] != '[' || host[n - 1] != ']')
        return false;
    memcpy(inner, host + 1, n - 2);
    inner[n - 2] = '\0';
    if (inet_pton(AF_INET6, inner, &six->sin6_addr) != 1)
        return false;
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(port);
    ret->length = sizeof *six;
    *ret_loopback = IN6_IS_ADDR_LOOPBACK(&six->sin6_addr);
    snprintf(ret->text, sizeof ret->text, "%s:%u", host, port);
    return true;
}

int exporter_parse(const char *text, bool everywhere, struct exporter_address *ret, struct diag *diag) {
    struct exporter_address address = {0};
    const char *colon = strrchr(text, ':');
    char host[64];
    uint16_t port;
    bool loopback = true;
    int r = 0;
    if (strncmp(text, "unix:", 5) == 0) {
        r = parse_unix(text + 5, &address, diag);
    } else if (!colon || (size_t)(colon - text) >= sizeof host || !parse_port(colon + 1, &port)) {
        r = -EINVAL;
    } else {
        snprintf(host, sizeof host, "%.*s", (int)(colon - text), text);
        r = parse_host(host, port, &address, &loopback) ? 0 : -EINVAL;
    }
    if (r < 0)
        return diag && diag->code
                   ? r
                   : diag_set(diag, r,
                              "metrics = %.60s: write 127.0.0.1:9100, [::1]:9100 or unix:/run/loaderd/metrics (an "
                              "address and a port, no name)",
                              text);
    if (!loopback && !everywhere)
        return diag_set(diag, -EACCES,
                        "metrics = %.60s is no loopback address: whoever reaches it could read names of jobs and "
                        "pipelines; set metrics-public = yes if that is meant",
                        text);
    *ret = address;
    return 0;
}

#ifdef HAVE_LIBMICROHTTPD
#include <microhttpd.h>

#define MOST_CONNECTIONS 16u
#define CONNECTION_SECONDS 10u
#define CONNECTION_BYTES 16384u
#define PAGE "/metrics"

struct exporter {
    struct MHD_Daemon *http;
    int fd; /* its epoll */
    void (*make)(void *arg, FILE *out);
    void *arg;
    char path[sizeof((struct sockaddr_un *)0)->sun_path]; /* of the unix socket, "": none */
};

/* ---- listening ----------------------------------------------------------------------------------------------------- */

/* A dead daemon's socket goes; anything else at the path stays. */
static int clear_stale(const struct sockaddr_un *address, struct diag *diag) {
    struct stat st;
    const char *path = address->sun_path;
    if (lstat(path, &st) < 0)
        return 0;
    if (!S_ISSOCK(st.st_mode))
        return diag_set(diag, -EEXIST, "metrics: %s exists and is no socket: it is left alone", path);
    cleanup_close int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)address, sizeof *address) == 0 || errno != ECONNREFUSED)
        return diag_set(diag, -EADDRINUSE, "metrics: socket %s is in use", path);
    return unlink(path) < 0
               ? diag_set(diag, -errno, "metrics: cannot remove the dead socket %s: %s", path, strerror(errno))
               : 0;
}

/* As the control socket's: nobody else gets in before they are right. */
static int set_access(const char *path, const struct daemon_config *config, struct diag *diag) {
    if (*config->socket_group) {
        const struct group *group = getgrnam(config->socket_group);
        if (!group || chown(path, (uid_t)-1, group->gr_gid) < 0)
            return diag_set(diag, group ? -errno : -EINVAL, "metrics: cannot give socket %s to group %s", path,
                            config->socket_group);
    }
    if (chmod(path, config->socket_mode) < 0)
        return diag_set(diag, -errno, "metrics: cannot set mode %03o on socket %s: %s", config->socket_mode, path,
                        strerror(errno));
    return 0;
}

static int listen_at(struct exporter_address *address, const struct daemon_config *config, int *ret_fd,
                     struct diag *diag) {
    const int on = 1;
    const struct sockaddr_un *un = (const struct sockaddr_un *)&address->address;
    bool is_unix = address->address.ss_family == AF_UNIX;
    cleanup_close int fd = socket(address->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return diag_set(diag, -errno, "metrics: cannot make a socket: %s", strerror(errno));
    int r = is_unix ? clear_stale(un, diag) : 0;
    if (r < 0)
        return r;
    if (!is_unix)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    mode_t before = umask(0177);
    r = bind(fd, (const struct sockaddr *)&address->address, address->length) < 0 ? -errno : 0;
    umask(before);
    if (r < 0)
        return diag_set(diag, r, "metrics: cannot bind %s: %s", address->text, strerror(-r));
    if (is_unix)
        r = set_access(un->sun_path, config, diag);
    if (r == 0 && listen(fd, (int)MOST_CONNECTIONS) < 0)
        r = diag_set(diag, -errno, "metrics: cannot listen at %s: %s", address->text, strerror(errno));
    if (r < 0) {
        if (is_unix)
            unlink(un->sun_path);
        return r;
    }
    *ret_fd = steal_fd(&fd);
    return 0;
}

/* The port that the kernel chose. */
static unsigned port_of(int fd) {
    struct sockaddr_storage address = {0};
    socklen_t size = sizeof address;
    if (getsockname(fd, (struct sockaddr *)&address, &size) < 0)
        return 0;
    return address.ss_family == AF_INET6 ? ntohs(((struct sockaddr_in6 *)&address)->sin6_port)
                                         : ntohs(((struct sockaddr_in *)&address)->sin_port);
}

/* ---- answers ------------------------------------------------------------------------------------------------------- */

/* `text` is the response's from here on. */
static enum MHD_Result answer(struct MHD_Connection *connection, unsigned status, const char *type, char *text,
                              size_t length, enum MHD_ResponseMemoryMode mode) {
    struct MHD_Response *response = MHD_create_response_from_buffer(length, text, mode);
    if (!response) {
        if (mode == MHD_RESPMEM_MUST_FREE)
            free(text);
        return MHD_NO;
    }
    MHD_add_response_header(response, "Content-Type", type);
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(response, "Allow", "GET, HEAD");
    enum MHD_Result r = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return r;
}

static enum MHD_Result refuse(struct MHD_Connection *connection, unsigned status, const char *sentence) {
    return answer(connection, status, "text/plain; charset=utf-8", (char *)(uintptr_t)sentence, strlen(sentence),
                  MHD_RESPMEM_PERSISTENT);
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *connection, const char *url, const char *method,
                                  const char *version, const char *upload, size_t *upload_size, void **state) {
    (void)version, (void)upload;
    const struct exporter *exporter = arg;
    static int seen;
    if (!*state) { /* the header only: the answer comes with the next call */
        *state = &seen;
        return MHD_YES;
    }
    if (*upload_size) {
        *upload_size = 0;
        return MHD_YES;
    }
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        return refuse(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD\n");
    if (strcmp(url, PAGE) != 0)
        return refuse(connection, MHD_HTTP_NOT_FOUND, "loaderd's metrics are at " PAGE "\n");
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    if (out)
        exporter->make(exporter->arg, out);
    if (!out || fclose(out) != 0) {
        free(text);
        return refuse(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "no memory left for the page\n");
    }
    return answer(connection, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8", text, length,
                  MHD_RESPMEM_MUST_FREE);
}

/* ---- life ---------------------------------------------------------------------------------------------------------- */

static int start(struct exporter *exporter, int *fd, struct diag *diag) {
    exporter->http = MHD_start_daemon(MHD_USE_EPOLL, 0, NULL, NULL, on_request, exporter, MHD_OPTION_LISTEN_SOCKET, *fd,
                                      MHD_OPTION_CONNECTION_LIMIT, MOST_CONNECTIONS, MHD_OPTION_CONNECTION_TIMEOUT,
                                      CONNECTION_SECONDS, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES,
                                      MHD_OPTION_END);
    if (!exporter->http)
        return diag_set(diag, -EIO, "metrics: libmicrohttpd does not start");
    *fd = -1; /* its own now */
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(exporter->http, MHD_DAEMON_INFO_EPOLL_FD);
    if (!info)
        return diag_set(diag, -EIO, "metrics: this libmicrohttpd has no epoll");
    exporter->fd = info->epoll_fd;
    return 0;
}

int exporter_new(const struct daemon_config *config, void (*make)(void *arg, FILE *out), void *arg,
                 struct exporter **ret, struct diag *diag) {
    struct exporter_address address;
    cleanup_close int fd = -1;
    int r = exporter_parse(config->metrics, config->metrics_public, &address, diag);
    if (r == 0)
        r = listen_at(&address, config, &fd, diag);
    if (r < 0)
        return r;
    struct exporter *exporter = calloc(1, sizeof *exporter);
    if (!exporter)
        return diag_set(diag, -ENOMEM, "no memory left for the metrics page");
    *exporter = (struct exporter){.fd = -1, .make = make, .arg = arg};
    unsigned port = 0;
    if (address.address.ss_family == AF_UNIX)
        strcpy(exporter->path, ((const struct sockaddr_un *)&address.address)->sun_path);
    else
        port = port_of(fd);
    r = start(exporter, &fd, diag);
    if (r < 0) {
        exporter_free(exporter);
        return r;
    }
    if (port)
        log_info("metrics: http://%.*s:%u" PAGE, (int)(strrchr(address.text, ':') - address.text), address.text, port);
    else
        log_info("metrics: " PAGE " at socket %s", exporter->path);
    *ret = exporter;
    return 0;
}

void exporter_free(struct exporter *exporter) {
    if (!exporter)
        return;
    if (exporter->http)
        MHD_stop_daemon(exporter->http);
    if (*exporter->path)
        unlink(exporter->path);
    free(exporter);
}

int exporter_fd(const struct exporter *exporter) {
    return exporter->fd;
}

void exporter_run(struct exporter *exporter) {
    MHD_UNSIGNED_LONG_LONG ms;
    for (int i = 0; i < 16; i++) { /* what is at hand, and no more of it than this in one turn */
        MHD_run(exporter->http);
        if (MHD_get_timeout(exporter->http, &ms) != MHD_YES || ms > 0)
            break;
    }
}

bool exporter_busy(const struct exporter *exporter) {
    MHD_UNSIGNED_LONG_LONG ms;
    return MHD_get_timeout(exporter->http, &ms) == MHD_YES;
}

#else

int exporter_new(const struct daemon_config *config, void (*make)(void *arg, FILE *out), void *arg,
                 struct exporter **ret, struct diag *diag) {
    (void)make, (void)arg, (void)ret;
    return diag_set(
        diag, -ENOTSUP,
        "metrics = %.60s: this loaderd was built without libmicrohttpd (apt install libmicrohttpd-dev, then "
        "configure and make again)",
        config->metrics);
}

void exporter_free(struct exporter *exporter) {
    (void)exporter;
}

int exporter_fd(const struct exporter *exporter) {
    (void)exporter;
    return -1;
}

void exporter_run(struct exporter *exporter) {
    (void)exporter;
}

bool exporter_busy(const struct exporter *exporter) {
    (void)exporter;
    return false;
}
#endif
