/* SPDX-License-Identifier: MIT */
/*
 * loaderctl top: a view of a running daemon that is made anew each second: where the workers' time goes, pipelines, sessions
 * with their rates, rings, waits, GPUs, and what binds each. It asks for the daemon's status (abi/protocol.h) and shows
 * that; as JSON it prints one object for each view.
 *
 *   terminal --open--> other screen, no echo --q, signals, any end--> as it was
 *
 * One thread. Plain ANSI escapes; NO_COLOR is honoured.
 */
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>

#include "base/util.h"
#include "json_read.h"
#include "loaderctl.h"
#include "nvml.h"

#define MOST_SESSIONS 256
#define MOST_CACHES 32

static const char *stage_name(int stage) {
    return worker_stage_name((enum worker_stage)stage);
}

/* ---- what is shown --------------------------------------------------------------------------------------------------- */

struct top_session {
    double number, rank, world, pid, slots, unreleased;
    double samples, bytes;                       /* a second */
    double wait, device_wait, stream_wait, full; /* shares; negative: not known */
    double stage[STAGES];
    double window;   /* seconds, 0: too early */
    int gpu_percent; /* -1: not known */
    char pipeline[64], job[64], gpu[48], bound[16], sentence[512];
};

struct top_cache {
    double hits, misses; /* since it was opened */
    double rate;         /* share of hits since the view before, or since it was opened; negative: nothing was asked */
    double entries;      /* records in it */
    double used, capacity; /* bytes */
    double gain, saved;    /* how many times as long its originals take to decode; worker seconds that it saved */
    char place[256], state[8];
};

struct top_view {
    double pid, workers, uptime;
    double stage[STAGES]; /* shares of the workers' time since the view before, or since the start */
    char version[24], socket[256], engine[16];
    struct top_session session[MOST_SESSIONS];
    uint32_t sessions, more; /* more: not shown */
    struct top_cache cache[MOST_CACHES];
    uint32_t caches;
    struct json_span pipelines;
};

struct top {
    const struct options *options;
    struct nvml *nvml;
    int fd;               /* of the daemon, -1: none */
    char *text;           /* the report that the view points into */
    double stage[STAGES]; /* sums at the view before */
    bool has_stage;
    struct top_cache cache[MOST_CACHES]; /* of the view before */
    uint32_t caches;
    struct top_view view;
    struct diag diag; /* why there is no view */
};

/* The workers' seconds, summed. */
static void sum_workers(const struct json_span *report, double ret[STAGES]) {
    struct json_span workers, worker, seconds;
    memset(ret, 0, STAGES * sizeof *ret);
    if (!json_member(report, "workers", &workers))
        return;
    struct json_cursor cursor = json_open(&workers);
    while (json_next_element(&cursor, &worker))
        for (int i = 0; i < STAGES; i++)
            if (json_member(&worker, "seconds", &seconds))
                ret[i] += json_number(&seconds, stage_name(i), 0);
}

static void read_stages(struct top *top, const struct json_span *report) {
    double sum[STAGES], all = 0;
    sum_workers(report, sum);
    for (int i = 0; i < STAGES; i++) {
        top->view.stage[i] = fmax(top->has_stage ? sum[i] - top->stage[i] : sum[i], 0);
        all += top->view.stage[i];
    }
    for (int i = 0; i < STAGES; i++)
        top->view.stage[i] /= all > 0 ? all : 1;
    memcpy(top->stage, sum, sizeof sum);
    top->has_stage = true;
}

static void read_session(struct top *top, const struct json_span *span) {
    struct top_view *v = &top->view;
    if (v->sessions == MOST_SESSIONS) {
        v->more++;
        return;
    }
    struct top_session *s = &v->session[v->sessions++];
    *s = (struct top_session){.number = json_number(span, "number", 0),
                              .rank = json_number(span, "rank", 0),
                              .world = json_number(span, "world", 1),
                              .pid = json_number(span, "pid", 0),
                              .slots = json_number(span, "slots", 0),
                              .unreleased = json_number(span, "unreleased", 0),
                              .wait = -1,
                              .device_wait = -1,
                              .stream_wait = -1,
                              .full = -1,
                              .gpu_percent = -1};
    json_text(span, "pipeline", s->pipeline, sizeof s->pipeline);
    json_text(span, "job", s->job, sizeof s->job);
}

static void read_window(struct top *top, const struct json_span *span) {
    struct top_session *s = top->view.session, *end = s + top->view.sessions;
    double number = json_number(span, "session", -1);
    struct json_span stages;
    while (s < end && s->number != number)
        s++;
    if (s == end)
        return;
    s->window = json_number(span, "window_s", 0);
    s->samples = json_number(span, "samples_per_s", 0);
    s->bytes = json_number(span, "bytes_out_per_s", 0);
    s->wait = json_number(span, "wait", -1);
    s->device_wait = json_number(span, "device_wait", -1);
    s->stream_wait = json_number(span, "stream_wait", -1);
    s->full = json_number(span, "full", -1);
    if (json_member(span, "stage_seconds", &stages))
        for (int i = STAGE_READ; i <= STAGE_OTHER; i++)
            s->stage[i] = json_number(&stages, stage_name(i), 0);
    json_text(span, "gpu", s->gpu, sizeof s->gpu);
    json_text(span, "bound_by", s->bound, sizeof s->bound);
    json_text(span, "sentence", s->sentence, sizeof s->sentence);
}

static void read_cache(struct top *top, const struct json_span *span) {
    struct top_view *v = &top->view;
    if (v->caches == MOST_CACHES)
        return;
    struct top_cache *c = &v->cache[v->caches++];
    *c = (struct top_cache){.hits = json_number(span, "hits", 0),
                            .misses = json_number(span, "misses", 0),
                            .entries = json_number(span, "entries", 0),
                            .used = json_number(span, "used_bytes", 0),
                            .capacity = json_number(span, "capacity_bytes", 0),
                            .gain = json_number(span, "gain", 0),
                            .saved = json_number(span, "saved_s", 0)};
    json_text(span, "place", c->place, sizeof c->place);
    json_text(span, "state", c->state, sizeof c->state);
    double hits = c->hits, misses = c->misses;
    for (uint32_t i = 0; i < top->caches; i++) {
        const struct top_cache *before = &top->cache[i];
        /* counters that fell are those of a cache that was closed and opened meanwhile */
        if (strcmp(before->place, c->place) == 0 && before->hits <= hits && before->misses <= misses) {
            hits -= before->hits;
            misses -= before->misses;
            break;
        }
    }
    c->rate = hits + misses > 0 ? hits / (hits + misses) : -1;
}

static void each(struct top *top, const struct json_span *report, const char *name,
                 void (*f)(struct top *top, const struct json_span *span)) {
    struct json_span array, element;
    if (!json_member(report, name, &array) || *array.at != '[')
        return;
    struct json_cursor cursor = json_open(&array);
    while (json_next_element(&cursor, &element))
        f(top, &element);
}

static int read_report(struct top *top, const char *text, size_t length) {
    struct json_span report, daemon;
    struct top_view *v = &top->view;
    if (!json_parse(text, length, &report) || !json_member(&report, "daemon", &daemon))
        return diag_set(&top->diag, -EPROTO,
                        "the daemon's report cannot be read; loaderctl and loaderd are of different versions?");
    *v = (struct top_view){.pid = json_number(&daemon, "pid", 0),
                           .workers = json_number(&daemon, "workers", 0),
                           .uptime = json_number(&daemon, "uptime_s", 0)};
    json_text(&daemon, "version", v->version, sizeof v->version);
    json_text(&daemon, "socket", v->socket, sizeof v->socket);
    json_text(&daemon, "engine", v->engine, sizeof v->engine);
    read_stages(top, &report);
    each(top, &report, "sessions", read_session);
    each(top, &report, "windows", read_window);
    each(top, &report, "caches", read_cache);
    memcpy(top->cache, v->cache, sizeof top->cache);
    top->caches = v->caches;
    if (!json_member(&report, "pipelines", &v->pipelines))
        v->pipelines = (struct json_span){0};
    for (uint32_t i = 0; i < v->sessions; i++)
        v->session[i].gpu_percent = nvml_utilisation(top->nvml, v->session[i].gpu, (int)v->session[i].pid);
    return 0;
}

/* Asks for a report; a daemon that went away is looked for again with the next view. */
static int look(struct top *top) {
    size_t length = 0;
    free(steal_pointer(&top->text));
    top->diag = (struct diag)DIAG_INIT;
    int r = top->fd >= 0 ? 0 : daemon_find(top->options, &top->fd, &top->diag);
    if (r == 0)
        r = status_fetch(top->fd, &top->text, &length, &top->diag);
    if (r == 0)
        r = read_report(top, top->text, length);
    if (r < 0 && top->fd >= 0) {
        close(steal_fd(&top->fd));
        top->has_stage = false;
        top->caches = 0;
    }
    return r;
}

/* ---- as JSON --------------------------------------------------------------------------------------------------------- */

static void put_share(const char *name, double share) {
    if (share >= 0)
        printf("\"%s\": %.4f, ", name, share);
    else
        printf("\"%s\": null, ", name);
}

static void print_json_session(const struct top_session *s) {
    double all = 0;
    printf("{\"session\": %.0f, \"pipeline\": ", s->number);
    json_string(stdout, s->pipeline);
    printf(", \"job\": ");
    json_string(stdout, s->job);
    printf(", \"rank\": %.0f, \"world\": %.0f, \"pid\": %.0f, \"samples_per_s\": %.3f, \"bytes_out_per_s\": %.0f, ",
           s->rank, s->world, s->pid, s->samples, s->bytes);
    printf("\"ready\": %.0f, \"slots\": %.0f, ", s->unreleased, s->slots);
    put_share("wait", s->wait);
    put_share("device_wait", s->device_wait);
    put_share("stream_wait", s->stream_wait);
    put_share("full", s->full);
    printf("\"stages\": {");
    for (int i = STAGE_READ; i <= STAGE_OTHER; i++)
        all += s->stage[i];
    for (int i = STAGE_READ; i <= STAGE_OTHER; i++)
        printf("%s\"%s\": %.4f", i > STAGE_READ ? ", " : "", stage_name(i), all > 0 ? s->stage[i] / all : 0);
    printf("}, \"gpu\": ");
    json_string(stdout, s->gpu);
    if (s->gpu_percent >= 0)
        printf(", \"gpu_utilisation\": %.2f", s->gpu_percent / 100.0);
    else
        printf(", \"gpu_utilisation\": null");
    printf(", \"bound_by\": ");
    json_string(stdout, s->bound);
    printf(", \"sentence\": ");
    json_string(stdout, s->sentence);
    printf("}");
}

static void print_json_cache(const struct top_cache *c) {
    printf("{\"place\": ");
    json_string(stdout, c->place);
    printf(", \"state\": ");
    json_string(stdout, c->state);
    printf(", ");
    put_share("hit_rate", c->rate);
    printf("\"hits\": %.0f, \"misses\": %.0f, \"entries\": %.0f, \"used_bytes\": %.0f, \"capacity_bytes\": %.0f, ",
           c->hits, c->misses, c->entries, c->used, c->capacity);
    printf("\"gain\": %.3f, \"saved_s\": %.3f}", c->gain, c->saved);
}

static void print_json(const struct top_view *v) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    printf("{\"time\": %lld.%03ld, \"pid\": %.0f, \"version\": ", (long long)now.tv_sec, now.tv_nsec / 1000000, v->pid);
    json_string(stdout, v->version);
    printf(", \"workers\": %.0f, \"stages\": {", v->workers);
    for (int i = 0; i < STAGES; i++)
        printf("%s\"%s\": %.4f", i ? ", " : "", stage_name(i), v->stage[i]);
    printf("}, \"caches\": [");
    for (uint32_t i = 0; i < v->caches; i++) {
        printf("%s", i ? ", " : "");
        print_json_cache(&v->cache[i]);
    }
    printf("], \"sessions\": [");
    for (uint32_t i = 0; i < v->sessions; i++) {
        printf("%s", i ? ", " : "");
        print_json_session(&v->session[i]);
    }
    printf("]}\n");
}

/* ---- as text --------------------------------------------------------------------------------------------------------- */

struct canvas_text {
    FILE *out;
    unsigned width, lines, most; /* most: of lines; 0: without end */
    bool color;
};

#define BOLD "1"
#define DIM "2"
#define RED "31"
#define GREEN "32"
#define YELLOW "33"

/* One line, cut at the width by characters, with nothing in it that could steer the terminal. `style`: NULL or one of the
 * above. */
static void put_line(struct canvas_text *c, const char *style, const char *text) {
    if (c->most && c->lines >= c->most)
        return;
    if (c->lines++)
        fputc('\n', c->out);
    if (style && c->color)
        fprintf(c->out, "\033[%sm", style);
    unsigned column = 0;
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        bool begins = (*p & 0xc0) != 0x80;
        if (begins && c->width && column == c->width)
            break;
        column += begins;
        fputc(*p < 0x20 || *p == 0x7f ? '?' : *p, c->out);
    }
    if (style && c->color)
        fputs("\033[0m", c->out);
    if (c->color)
        fputs("\033[K", c->out);
}

static void __attribute__((format(printf, 3, 4)))
put(struct canvas_text *c, const char *style, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    put_line(c, style, text);
}

/* A sentence, over as many lines as it takes. */
static void put_wrapped(struct canvas_text *c, const char *style, const char *indent, const char *text) {
    size_t room = c->width > strlen(indent) + 20 ? c->width - strlen(indent) : 1000;
    while (*text) {
        size_t n = strlen(text);
        if (n > room) {
            for (n = room; n > room / 2 && text[n] != ' '; n--)
                ;
            if (text[n] != ' ')
                n = room;
        }
        put(c, style, "%s%.*s", indent, (int)n, text);
        text += n;
        text += strspn(text, " ");
    }
}

static void make_bar(char *ret, unsigned width, double share, char full) {
    unsigned n = (unsigned)(CLAMP(share, 0, 1) * width + 0.5);
    memset(ret, full, n);
    memset(ret + n, '.', width - n);
    ret[width] = '\0';
}

/* One letter a stage, so long as its share: "rrdddddddddtt......". */
static void make_stage_bar(char *ret, unsigned width, const double share[STAGES]) {
    static const char letters[STAGES] = {
        [STAGE_IDLE] = '.', [STAGE_READ] = 'r',  [STAGE_DECODE] = 'd', [STAGE_TRANSFORM] = 't',
        [STAGE_COPY] = 'c', [STAGE_OTHER] = 'o', [STAGE_FILL] = 'f'};
    unsigned at = 0;
    double sum = 0;
    for (int k = 1; k <= STAGES; k++) { /* idle last */
        int i = k % STAGES;
        sum += share[i];
        unsigned end = (unsigned)(CLAMP(sum, 0, 1) * width + 0.5);
        while (at < end)
            ret[at++] = letters[i];
    }
    while (at < width)
        ret[at++] = '.';
    ret[width] = '\0';
}

static const char *short_count(double x, char text[16]) {
    static const char units[] = " kMGT";
    unsigned unit = 0;
    while (x >= 9999.5 && unit < 4) {
        x /= 1000;
        unit++;
    }
    snprintf(text, 16, x < 100 ? "%.1f%.1s" : "%.0f%.1s", x, unit ? &units[unit] : "");
    return text;
}

static const char *percent_of(double share, char text[8]) {
    if (share < 0)
        snprintf(text, 8, "-");
    else
        snprintf(text, 8, share < 0.0995 ? "%.1f%%" : "%.0f%%", 100 * MIN(share, 1.0));
    return text;
}

static const char *duration(double s, char text[24]) {
    if (s >= 86400)
        snprintf(text, 24, "%.0f d %.0f h", floor(s / 86400), floor(fmod(s, 86400) / 3600));
    else if (s >= 3600)
        snprintf(text, 24, "%.0f h %.0f min", floor(s / 3600), floor(fmod(s, 3600) / 60));
    else if (s >= 60)
        snprintf(text, 24, "%.0f min %.0f s", floor(s / 60), floor(fmod(s, 60)));
    else
        snprintf(text, 24, "%.0f s", s);
    return text;
}

static void put_daemon(struct canvas_text *c, const struct top_view *v) {
    char up[24], bar[61], left[120], clock[16] = "";
    time_t now = time(NULL);
    struct tm t;
    if (localtime_r(&now, &t))
        strftime(clock, sizeof clock, "%H:%M:%S", &t);
    put(c, BOLD, "loaderd %s  pid %.0f  up %s  %s  %s", v->version, v->pid, duration(v->uptime, up), v->socket, clock);
    snprintf(left, sizeof left, "%.0f worker%s (%s)", v->workers, v->workers == 1 ? "" : "s", v->engine);
    make_stage_bar(bar, CLAMP(c->width ? c->width / 3 : 30, 10, 60), v->stage);
    put(c, NULL, "%-20s [%s] read %.0f %% decode %.0f %% transform %.0f %% copy %.0f %% other %.0f %% idle %.0f %%",
        left, bar, 100 * v->stage[STAGE_READ], 100 * v->stage[STAGE_DECODE], 100 * v->stage[STAGE_TRANSFORM],
        100 * v->stage[STAGE_COPY], 100 * v->stage[STAGE_OTHER], 100 * v->stage[STAGE_IDLE]);
}

static void put_pipelines(struct canvas_text *c, const struct top_view *v) {
    struct json_span pipeline;
    if (!v->pipelines.length)
        return;
    struct json_cursor cursor = json_open(&v->pipelines);
    put(c, NULL, "%s", "");
    put(c, DIM, "%-20s %12s  %-10s %s", "PIPELINE", "SAMPLES", "FORMAT", "DATASET");
    while (json_next_element(&cursor, &pipeline)) {
        char name[64], format[24], dataset[256], error[256];
        json_text(&pipeline, "name", name, sizeof name);
        json_text(&pipeline, "format", format, sizeof format);
        json_text(&pipeline, "dataset", dataset, sizeof dataset);
        bool bad = *json_text(&pipeline, "error", error, sizeof error) != '\0';
        put(c, bad ? RED : NULL, "%-20s %12.0f  %-10s %s%s%s", name, json_number(&pipeline, "samples", 0), format,
            dataset, bad ? ": " : "", error);
    }
}

static void put_caches(struct canvas_text *c, const struct top_view *v) {
    if (v->caches == 0)
        return;
    put(c, NULL, "%s", "");
    put(c, DIM, "%-7s %6s %9s %20s %6s %8s  %s", "CACHE", "HITS", "ENTRIES", "GB USED / LIMIT", "GAIN", "SAVED s",
        "PLACE");
    for (uint32_t i = 0; i < v->caches; i++) {
        const struct top_cache *cache = &v->cache[i];
        char hits[8], entries[16], bytes[48], gain[16] = "-", saved[16];
        snprintf(bytes, sizeof bytes, "%.3f / %.3f", cache->used / 1e9, cache->capacity / 1e9);
        if (cache->gain > 0)
            snprintf(gain, sizeof gain, "%.2f", cache->gain);
        put(c, strcmp(cache->state, "failed") == 0 ? RED : NULL, "%-7s %6s %9s %20s %6s %8s  %s", cache->state,
            percent_of(cache->rate, hits), short_count(cache->entries, entries), bytes, gain,
            short_count(cache->saved, saved), cache->place);
    }
}

static void put_session(struct canvas_text *c, const struct top_session *s) {
    char bar[9], samples[16], bytes[16], wait[8], stream[8], rank[24], gpu[16] = "-", ring[32], stages[16];
    double share[STAGES] = {0}, all = 0;
    for (int i = STAGE_READ; i <= STAGE_OTHER; i++)
        all += s->stage[i];
    for (int i = STAGE_READ; i <= STAGE_OTHER; i++)
        share[i] = all > 0 ? s->stage[i] / all : 0;
    share[STAGE_IDLE] = 0;
    make_stage_bar(stages, 12, share);
    make_bar(bar, 8, s->slots > 0 ? s->unreleased / s->slots : 0, '#');
    snprintf(ring, sizeof ring, "[%s] %.0f/%.0f", bar, s->unreleased, s->slots);
    snprintf(rank, sizeof rank, "%.0f/%.0f", s->rank, s->world);
    if (s->gpu_percent >= 0)
        snprintf(gpu, sizeof gpu, "%d%%", s->gpu_percent);
    bool hungry =
        s->device_wait < 0 ? s->wait >= VERDICT_STARVING : s->device_wait + s->stream_wait >= VERDICT_STARVING;
    put(c, hungry ? YELLOW : NULL, "%7.0f %-14.14s %7s %-12.12s %9s %8s  %-16s %6s %6s %5s  %-12s  %s", s->number,
        *s->job ? s->job : "-", rank, s->pipeline, short_count(s->samples, samples), short_count(s->bytes / 1e6, bytes),
        ring, percent_of(s->device_wait < 0 ? s->wait : s->device_wait, wait), percent_of(s->stream_wait, stream), gpu,
        stages, s->bound);
    put_wrapped(c, hungry ? RED : GREEN, "        ", s->sentence);
}

static void put_view(struct canvas_text *c, const struct top *top) {
    const struct top_view *v = &top->view;
    put_daemon(c, v);
    put_pipelines(c, v);
    put_caches(c, v);
    put(c, NULL, "%s", "");
    put(c, DIM, "%7s %-14s %7s %-12s %9s %8s  %-16s %6s %6s %5s  %-12s  %s", "SESSION", "JOB", "RANK", "PIPELINE",
        "SAMPLES/s", "MB/s", "RING", "WAIT", "STREAM", "GPU", "STAGES", "BOUND BY");
    for (uint32_t i = 0; i < v->sessions; i++)
        put_session(c, &v->session[i]);
    if (v->sessions == 0)
        put(c, NULL, "%7s", "none");
    if (v->more)
        put(c, NULL, "%u more sessions are not shown", v->more);
}

/* ---- the terminal ---------------------------------------------------------------------------------------------------- */

static struct termios terminal_before;
static volatile sig_atomic_t terminal_taken, resized, ended, suspended;

/* Async-signal-safe. */
static void give_terminal_back(void) {
    static const char text[] = "\033[0m\033[?25h\033[?1049l";
    if (!terminal_taken)
        return;
    terminal_taken = 0;
    ssize_t n = write(STDOUT_FILENO, text, sizeof text - 1);
    (void)n;
    tcsetattr(STDIN_FILENO, TCSANOW, &terminal_before);
}

static void take_terminal(void) {
    struct termios raw;
    if (tcgetattr(STDIN_FILENO, &terminal_before) == 0) {
        raw = terminal_before;
        raw.c_lflag &= (tcflag_t) ~(ICANON | ECHO);
        raw.c_cc[VMIN] = 0;
        raw.c_cc[VTIME] = 0;
        tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    }
    terminal_taken = 1;
    fputs("\033[?1049h\033[?25l", stdout);
}

static void on_signal(int number) {
    if (number == SIGWINCH)
        resized = 1;
    else if (number == SIGTSTP)
        suspended = 1;
    else
        ended = number;
}

static void on_crash(int number) {
    give_terminal_back();
    signal(number, SIG_DFL);
    raise(number);
}

static void catch_signals(void) {
    static const int told[] = {SIGWINCH, SIGTSTP, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE};
    static const int crashes[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL};
    struct sigaction action = {.sa_handler = on_signal};
    for (size_t i = 0; i < ARRAY_SIZE(told); i++)
        sigaction(told[i], &action, NULL);
    action.sa_handler = on_crash;
    for (size_t i = 0; i < ARRAY_SIZE(crashes); i++)
        sigaction(crashes[i], &action, NULL);
}

static void suspend(void) {
    suspended = 0;
    give_terminal_back();
    raise(SIGSTOP); /* until SIGCONT */
    take_terminal();
}

static void draw(const struct top *top, int r) {
    cleanup_free char *text = NULL;
    size_t length = 0;
    struct winsize size = {.ws_row = 24, .ws_col = 80};
    ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
    const char *no_color = getenv("NO_COLOR");
    struct canvas_text c = {.out = open_memstream(&text, &length),
                            .width = size.ws_col ? size.ws_col : 80,
                            .most = size.ws_row > 2 ? size.ws_row - 1u : 23,
                            .color = !no_color || !*no_color};
    if (!c.out)
        return;
    if (r == 0)
        put_view(&c, top);
    else
        put_wrapped(&c, RED, "", top->diag.text);
    fclose(c.out);
    printf("\033[H\033[2J%s\n\033[%sm q quits\033[0m", text, DIM);
    fflush(stdout);
}

/* Until the next view is due. False where it is to end. */
static bool wait_next(uint64_t until) {
    for (;;) {
        uint64_t now = now_ns();
        struct pollfd item = {.fd = STDIN_FILENO, .events = POLLIN};
        if (ended)
            return false;
        if (suspended)
            suspend();
        if (now >= until || resized)
            return true;
        int n = poll(&item, 1, (int)MIN((until - now) / 1000000 + 1, UINT64_C(1000)));
        char key;
        if (n <= 0)
            continue;
        ssize_t got = read(STDIN_FILENO, &key, 1);
        if ((got == 1 && (key == 'q' || key == 'Q')) || (got == 0 && item.revents & POLLHUP))
            return false;
        if (got <= 0) /* nobody types there: wait all the same */
            nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    }
}

static int watch(struct top *top) {
    uint64_t step = (uint64_t)(top->options->seconds * 1e9);
    catch_signals();
    atexit(give_terminal_back);
    take_terminal();
    int r = look(top);
    for (uint64_t next = now_ns() + step;;) {
        resized = 0;
        draw(top, r);
        if (ferror(stdout) || !wait_next(next))
            break;
        if (now_ns() >= next) {
            r = look(top);
            next = now_ns() + step;
        }
    }
    give_terminal_back();
    return 0;
}

/* ---- the command ----------------------------------------------------------------------------------------------------- */

static int print_lines(struct top *top) {
    uint64_t ns = (uint64_t)(top->options->seconds * 1e9);
    do {
        if (look(top) < 0)
            return complain_diag(&top->diag);
        print_json(&top->view);
        int status = finish_stdout();
        if (status || top->options->once)
            return status;
        nanosleep(&(struct timespec){(time_t)(ns / 1000000000), (long)(ns % 1000000000)}, NULL);
    } while (true);
}

static int print_once(struct top *top) {
    struct winsize size = {0};
    if (look(top) < 0)
        return complain_diag(&top->diag);
    if (isatty(STDOUT_FILENO))
        ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
    struct canvas_text c = {.out = stdout, .width = size.ws_col};
    put_view(&c, top);
    putchar('\n');
    return finish_stdout();
}

int command_top(const struct options *options) {
    if (!options->once && !options->json && !isatty(STDOUT_FILENO))
        return complain("standard output is no terminal: use --once for one view, --json for one object a line");
    struct top *top = calloc(1, sizeof *top);
    if (!top)
        return complain("out of memory");
    top->options = options;
    top->fd = -1;
    top->nvml = nvml_open();
    int status = options->json ? print_lines(top) : options->once ? print_once(top) : watch(top);
    nvml_close(top->nvml);
    if (top->fd >= 0)
        close(top->fd);
    free(top->text);
    free(top);
    return status;
}
