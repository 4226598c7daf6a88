/* SPDX-License-Identifier: MIT */
/* Findings of loaderctl doctor: gathering, reading of small files, the table and the JSON. See doctor.h. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "base/util.h"
#include "doctor.h"
#include "loaderctl.h"

const char *health_name(enum health health) {
    static const char *const names[] = {"ok", "degraded", "broken"};
    return (unsigned)health < ARRAY_SIZE(names) ? names[health] : "unknown";
}

struct finding *finding_add(struct findings *findings, const char *check, const char *found, ...) {
    struct finding *finding = &findings->finding[MIN(findings->count, FINDINGS_MAX - 1)];
    va_list arguments;
    findings->count = MIN(findings->count + 1, FINDINGS_MAX);
    *finding = (struct finding){.check = check};
    va_start(arguments, found);
    vsnprintf(finding->found, sizeof finding->found, found, arguments);
    va_end(arguments);
    return finding;
}

void finding_worse(struct finding *finding, enum health health, const char *cost, const char *remedy, ...) {
    va_list arguments;
    if (health <= finding->health)
        return;
    finding->health = health;
    snprintf(finding->cost, sizeof finding->cost, "%s", cost);
    va_start(arguments, remedy);
    vsnprintf(finding->remedy, sizeof finding->remedy, remedy, arguments);
    va_end(arguments);
}

enum health findings_health(const struct findings *findings) {
    enum health worst = HEALTH_OK;
    for (uint32_t i = 0; i < findings->count; i++)
        worst = MAX(worst, findings->finding[i].health);
    return worst;
}

bool doctor_read(const char *root, const char *path, char *ret, size_t size) {
    char full[4096 + 256];
    ret[0] = '\0';
    if (snprintf(full, sizeof full, "%s%s", root, path) >= (int)sizeof full)
        return false;
    cleanup_close int fd = open(full, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    size_t used = 0;
    ssize_t n = -1;
    while (fd >= 0 && used < size - 1 && (n = read(fd, ret + used, size - 1 - used)) > 0)
        used += (size_t)n;
    ret[used] = '\0';
    while (used > 0 && strchr(" \t\n\r", ret[used - 1]))
        ret[--used] = '\0';
    return fd >= 0 && n >= 0;
}

/* Where the line that begins with `name` goes on, NULL: there is none. */
static const char *line_of(const char *text, const char *name) {
    size_t length = strlen(name);
    for (const char *at = text; at; at = strchr(at, '\n'), at = at ? at + 1 : NULL)
        if (strncmp(at, name, length) == 0)
            return at + length;
    return NULL;
}

bool doctor_number(const char *text, const char *name, uint64_t *ret) {
    const char *at = line_of(text, name);
    return at && sscanf(at, "%" SCNu64, ret) == 1;
}

static const char *take_limit(const char *at, uint64_t *ret) {
    int taken = 0;
    at += strspn(at, " \t");
    if (strncmp(at, "unlimited", 9) == 0) {
        *ret = UINT64_MAX;
        return at + 9;
    }
    return *at >= '0' && *at <= '9' && sscanf(at, "%" SCNu64 "%n", ret, &taken) == 1 ? at + taken : NULL;
}

bool doctor_parse_limit(const char *text, const char *name, uint64_t *ret_soft, uint64_t *ret_hard) {
    uint64_t soft, hard;
    const char *at = line_of(text, name);
    at = at ? take_limit(at, &soft) : NULL;
    at = at ? take_limit(at, &hard) : NULL;
    if (!at)
        return false;
    *ret_soft = soft;
    *ret_hard = hard;
    return true;
}

#define COLUMN 30 /* where texts begin */
#define WIDTH 118

/* Text in lines of at most WIDTH, those after the first indented. */
static void print_folded(FILE *out, const char *text) {
    size_t room = WIDTH - COLUMN;
    for (bool first = true; *text; first = false) {
        size_t length = strlen(text), take = length;
        if (length > room) {
            for (take = room; take > 0 && text[take] != ' '; take--)
                ;
            take = take ? take : strcspn(text, " ");
        }
        fprintf(out, "%*s%.*s\n", first ? 0 : COLUMN, "", (int)take, text);
        text += take;
        text += strspn(text, " ");
    }
}

void findings_print_table(FILE *out, const struct findings *findings) {
    uint32_t count[3] = {0};
    for (uint32_t i = 0; i < findings->count; i++) {
        const struct finding *f = &findings->finding[i];
        count[f->health]++;
        fprintf(out, "%-10s%-*s", health_name(f->health), COLUMN - 10, f->check);
        print_folded(out, f->found);
        if (*f->cost) {
            fprintf(out, "%*s%-*s", 10, "", COLUMN - 10, "  costs");
            print_folded(out, f->cost);
        }
        if (*f->remedy) {
            fprintf(out, "%*s%-*s", 10, "", COLUMN - 10, "  remedy");
            print_folded(out, f->remedy);
        }
    }
    fprintf(out, "\n%" PRIu32 " ok, %" PRIu32 " degraded, %" PRIu32 " broken\n", count[HEALTH_OK],
            count[HEALTH_DEGRADED], count[HEALTH_BROKEN]);
}

void findings_print_json(FILE *out, const struct findings *findings, const char *version) {
    fprintf(out, "{\"version\": ");
    json_string(out, version);
    fprintf(out, ", \"health\": \"%s\", \"checks\": [", health_name(findings_health(findings)));
    for (uint32_t i = 0; i < findings->count; i++) {
        const struct finding *f = &findings->finding[i];
        fprintf(out, "%s\n  {\"check\": ", i ? "," : "");
        json_string(out, f->check);
        fprintf(out, ", \"health\": \"%s\", \"found\": ", health_name(f->health));
        json_string(out, f->found);
        fprintf(out, ", \"cost\": ");
        json_string(out, f->cost);
        fprintf(out, ", \"remedy\": ");
        json_string(out, f->remedy);
        fprintf(out, "}");
    }
    fprintf(out, "\n]}\n");
}
