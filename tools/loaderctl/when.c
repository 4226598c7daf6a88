/* SPDX-License-Identifier: MIT */
/* Moments as people write them, to CLOCK_REALTIME. Pure but for the time zone (TZ); any thread. */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/util.h"
#include "loaderctl.h"

#define SECOND UINT64_C(1000000000)
#define DAY 86400

static bool take_number(const char **at, unsigned digits, int *ret) {
    int value = 0;
    unsigned n = 0;
    for (; n < digits && (*at)[n] >= '0' && (*at)[n] <= '9'; n++)
        value = 10 * value + ((*at)[n] - '0');
    *at += n;
    *ret = value;
    return n > 0;
}

static bool take(const char **at, char c) {
    if (**at != c)
        return false;
    ++*at;
    return true;
}

/* HH:MM[:SS] */
static bool take_clock(const char **at, struct tm *ret) {
    if (!take_number(at, 2, &ret->tm_hour) || !take(at, ':') || !take_number(at, 2, &ret->tm_min))
        return false;
    ret->tm_sec = 0;
    if (take(at, ':') && !take_number(at, 2, &ret->tm_sec))
        return false;
    return ret->tm_hour < 24 && ret->tm_min < 60 && ret->tm_sec < 61;
}

/* 90s, 30m, 2h, 1d: so long ago. */
static bool parse_duration(const char *at, uint64_t now_ns, uint64_t *ret) {
    static const char units[] = "smhd";
    static const uint64_t seconds[] = {1, 60, 3600, DAY};
    int n;
    if (!take_number(&at, 9, &n) || !*at || at[1])
        return false;
    const char *unit = strchr(units, *at);
    if (!unit)
        return false;
    uint64_t ago = (uint64_t)n * seconds[unit - units];
    *ret = ago < now_ns / SECOND ? now_ns - ago * SECOND : 0;
    return true;
}

/* The last time that a clock on the wall showed this. */
static bool parse_clock(const char *at, uint64_t now_ns, uint64_t *ret) {
    time_t now = (time_t)(now_ns / SECOND);
    struct tm local, wanted = {0};
    if (!localtime_r(&now, &local) || !take_clock(&at, &wanted) || *at)
        return false;
    for (int days = 0; days < 3; days++) {
        struct tm t = local;
        t.tm_mday -= days;
        t.tm_hour = wanted.tm_hour;
        t.tm_min = wanted.tm_min;
        t.tm_sec = wanted.tm_sec;
        t.tm_isdst = -1;
        time_t then = mktime(&t);
        if (then != (time_t)-1 && then <= now) {
            *ret = (uint64_t)then * SECOND;
            return true;
        }
    }
    return false;
}

/* YYYY-MM-DD, then nothing or "T" or a blank and HH:MM[:SS]; "Z" behind it: UTC. */
static bool parse_date(const char *at, uint64_t *ret) {
    struct tm t = {.tm_isdst = -1};
    if (!take_number(&at, 4, &t.tm_year) || !take(&at, '-') || !take_number(&at, 2, &t.tm_mon) || !take(&at, '-') ||
        !take_number(&at, 2, &t.tm_mday))
        return false;
    if ((take(&at, 'T') || take(&at, ' ')) && !take_clock(&at, &t))
        return false;
    bool utc = take(&at, 'Z');
    if (*at || t.tm_year < 1970 || t.tm_mon < 1 || t.tm_mon > 12 || t.tm_mday < 1)
        return false;
    t.tm_year -= 1900;
    t.tm_mon--;
    int day = t.tm_mday;
    time_t then = utc ? timegm(&t) : mktime(&t);
    if (then < 0 || t.tm_mday != day) /* February 30 */
        return false;
    *ret = (uint64_t)then * SECOND;
    return true;
}

int when_parse(const char *text, uint64_t now_ns, uint64_t *ret_ns, struct diag *diag) {
    if (parse_duration(text, now_ns, ret_ns) || parse_clock(text, now_ns, ret_ns) || parse_date(text, ret_ns))
        return 0;
    return diag_set(diag, -EINVAL,
                    "'%.40s' is no moment: write how long ago (90s, 30m, 2h, 1d), a time of day (03:00), or a date "
                    "(2026-11-30, 2026-11-30T03:00)",
                    text);
}
