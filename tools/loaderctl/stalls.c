/* SPDX-License-Identifier: MIT */
/*
 * loaderctl stalls: what the daemon's flight recorder has: the steps for which trainers waited, what took so long, and the
 * sample that took the longest. Asks once (abi/protocol.h); prints a table, or the daemon's JSON lines as they are. One
 * thread.
 */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/util.h"
#include "json_read.h"
#include "loaderctl.h"
#include <loaderd/abi/protocol.h>

#define DEFAULT_OVER_MS 10.0

static uint64_t realtime_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void print_time(double seconds) {
    time_t whole = (time_t)seconds;
    struct tm t;
    char text[32] = "?";
    if (localtime_r(&whole, &t))
        strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &t);
    printf("%s.%03d", text, (int)((seconds - (double)whole) * 1000) % 1000);
}

/* Where the workers' time for the step went, mostly. */
static void print_mostly(const struct json_span *line) {
    static const char *const names[] = {"read", "decode", "transform", "copy", "other"};
    struct json_span stages;
    double all = 0, most = 0;
    const char *name = "-";
    if (json_member(line, "stages_ms", &stages))
        for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
            double ms = json_number(&stages, names[i], 0);
            all += MAX(ms, 0.0);
            if (ms > most) {
                most = ms;
                name = names[i];
            }
        }
    char text[32];
    snprintf(text, sizeof text, "%s %.0f %%", name, all > 0 ? 100 * most / all : 0);
    printf("%-15s", text);
}

/* What a daemon sent must not steer a terminal. */
static void print_clean(const char *text) {
    for (; *text; text++)
        putchar((unsigned char)*text < 0x20 || *text == 0x7f ? '?' : *text);
}

static void print_line(const struct json_span *line) {
    struct json_span slowest;
    char job[64], path[160];
    print_time(CLAMP(json_number(line, "time", 0), 0, 1e11));
    printf("  %7.0f %4.0f %5.0f %8.0f %9.1f %9.1f  ", json_number(line, "session", 0), json_number(line, "rank", 0),
           json_number(line, "epoch", 0), json_number(line, "step", 0), json_number(line, "wait_ms", 0),
           json_number(line, "fill_ms", 0));
    print_mostly(line);
    if (json_member(line, "slowest", &slowest) && *slowest.at == '{') {
        printf("  %8.1f  ", json_number(&slowest, "ms", 0));
        if (*json_text(&slowest, "path", path, sizeof path))
            print_clean(path);
        else
            printf("sample %.0f", json_number(&slowest, "sample", 0));
    }
    if (*json_text(line, "job", job, sizeof job)) {
        printf("  job ");
        print_clean(job);
    }
    double of = json_number(line, "worst_of", 1);
    if (of > 1)
        printf("  (the worst of %.0f in five minutes)", of);
    putchar('\n');
}

/* The lines of the report; 0: there was none, -1: one is no JSON. */
static long print_table(const char *text, size_t length) {
    long lines = 0;
    for (const char *end, *at = text; at < text + length; at = end + 1, lines++) {
        struct json_span line;
        end = memchr(at, '\n', (size_t)(text + length - at));
        if (!end)
            end = text + length;
        if (!json_parse(at, (size_t)(end - at), &line) || *line.at != '{')
            return -1;
        if (lines == 0)
            printf("%-23s  SESSION RANK EPOCH     STEP   WAIT ms   FILL ms  MOSTLY           SLOWEST SAMPLE, ms\n",
                   "TIME");
        print_line(&line);
    }
    return lines;
}

int command_stalls(const struct options *options) {
    struct diag diag = DIAG_INIT;
    cleanup_free char *text = NULL;
    cleanup_close int fd = -1;
    size_t length = 0;
    double over_ms = options->over_ms >= 0 ? options->over_ms : DEFAULT_OVER_MS;
    struct loaderd_stalls request = {.message = {LOADERD_STALLS, sizeof request}, .over_ns = (uint64_t)(over_ms * 1e6)};
    if (options->since && when_parse(options->since, realtime_ns(), &request.since_ns, &diag) < 0) {
        complain_diag(&diag);
        return EXIT_USAGE;
    }
    if (daemon_find(options, &fd, &diag) < 0 ||
        daemon_report(fd, &request, sizeof request, 0, &text, &length, &diag) < 0)
        return complain_diag(&diag);
    if (options->json) {
        fwrite(text, 1, length, stdout);
        return finish_stdout();
    }
    long lines = print_table(text, length);
    if (lines < 0)
        return complain("the daemon's report is no JSON; loaderctl and loaderd are of different versions?");
    if (lines == 0)
        remark("no trainer waited %g ms or longer for a step%s%s", over_ms, options->since ? " since " : "",
               options->since ? options->since : "");
    return finish_stdout();
}
