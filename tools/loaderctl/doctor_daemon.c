/* SPDX-License-Identifier: MIT */
/* loaderctl doctor: daemons that run, and their sockets. See doctor.h. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/util.h"
#include "doctor.h"

void doctor_processes(const char *root, struct findings *findings) {
    char path[4096 + 300], name[64], text[256] = "";
    uint32_t count = 0;
    struct dirent *entry;
    snprintf(path, sizeof path, "%s/proc", root);
    DIR *directory = opendir(path);
    while (directory && (entry = readdir(directory))) {
        if (entry->d_name[strspn(entry->d_name, "0123456789")])
            continue;
        snprintf(path, sizeof path, "/proc/%s/comm", entry->d_name);
        if (!doctor_read(root, path, name, sizeof name) || strcmp(name, "loaderd") != 0)
            continue;
        size_t used = strlen(text);
        if (count++ < 16)
            snprintf(text + used, sizeof text - used, "%s%.10s", used ? ", " : "", entry->d_name);
    }
    if (directory)
        closedir(directory);
    if (count)
        finding_add(findings, "daemons", "%" PRIu32 " running: pid %s%s", count, text, count > 16 ? " ..." : "");
    else
        finding_add(findings, "daemons", "none is running: a path given to a trainer starts a private one");
}

void doctor_socket(const struct socket_probe *probe, struct findings *findings) {
    struct finding *f;
    if (probe->code == 0) {
        finding_add(findings, "socket", "%s: pid %d of user %u answers", probe->path, probe->pid, probe->uid);
        return;
    }
    f = finding_add(findings, "socket", "%s: %s", probe->path, probe->text);
    switch (-probe->code) {
    case ECONNREFUSED:
        finding_worse(f, HEALTH_DEGRADED, "left behind by a daemon that was killed; trainers find nobody there",
                      "start it: systemctl start loaderd, or loaderd --config FILE (it replaces the file by itself)");
        break;
    case EACCES:
    case EPERM:
        finding_worse(
            f, HEALTH_BROKEN, "this user's trainers cannot use the service",
            "sudo usermod -aG loaderd $USER, then log in again; or socket-mode and socket-group in loaderd.conf");
        break;
    case EPROTO:
    case EPROTONOSUPPORT:
        finding_worse(f, HEALTH_BROKEN, "client and daemon are of versions that do not understand each other",
                      "install the same version of both, then loaderctl drain, and start the new one");
        break;
    default:
        finding_worse(f, HEALTH_BROKEN, "trainers that open a pipeline by its name get this error",
                      "look at the daemon's log: journalctl -u loaderd");
    }
}
