/* SPDX-License-Identifier: MIT */
/*
 * What a service manager and its journal are told: the watchdog, which a worker that stands still must starve, and the
 * fields of lines about sessions and samples, read by a parser of the journal's protocol.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

static int listen_at(const char *name, char path[100]) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(path, 100, "%s/%s", harness_directory(), name);
    memcpy(address.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

/* The next datagram within `ms`: its length, 0 where none came. */
static size_t receive(int fd, char *text, size_t size, int ms) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (poll(&p, 1, ms) != 1)
        return 0;
    ssize_t n = recv(fd, text, size - 1, 0);
    ck_assert_int_gt(n, 0);
    text[n] = '\0';
    return (size_t)n;
}

static void expect_beat(int fd) {
    char text[512];
    for (uint64_t until = clock_ms() + 60000; clock_ms() < until;)
        if (receive(fd, text, sizeof text, 1000) && strcmp(text, "WATCHDOG=1\n") == 0)
            return;
    ck_abort_msg("no WATCHDOG=1");
}

/* The thread "worker/0" of the daemon. */
static pid_t first_worker(pid_t daemon) {
    char path[64], name[32];
    snprintf(path, sizeof path, "/proc/%d/task", (int)daemon);
    DIR *tasks = opendir(path);
    pid_t found = 0;
    for (struct dirent *task; tasks && (task = readdir(tasks)) && !found;) {
        snprintf(path, sizeof path, "/proc/%d/task/%.16s/comm", (int)daemon, task->d_name);
        FILE *f = fopen(path, "r");
        if (f && fgets(name, sizeof name, f) && strcmp(name, "worker/0\n") == 0)
            found = atoi(task->d_name);
        if (f)
            fclose(f);
    }
    if (tasks)
        closedir(tasks);
    ck_assert_int_gt(found, 0);
    return found;
}

static void expect_log(const char *says) {
    for (uint64_t until = clock_ms() + 60000;; sleep_ms(20)) {
        char *log = read_text("log");
        bool found = strstr(log, says) != NULL;
        free(log);
        if (found)
            return;
        ck_assert_msg(clock_ms() < until, "the log never says: %s", says);
    }
}

START_TEST(the_watchdog_is_fed_while_workers_move) {
    harness_begin();
    char path[100], text[512];
    int fd = listen_at("notify", path);
    setenv("NOTIFY_SOCKET", path, 1);
    setenv("WATCHDOG_USEC", "4000000", 1);
    pid_t daemon = start_daemon("--dataset", "synthetic:4096x3x32x32:u8", "--workers", "2", NULL);
    unsetenv("WATCHDOG_USEC");
    expect_beat(fd); /* idle: nobody is connected */
    expect_beat(fd);
    struct loaderd *loader = open_loader("default", NULL);
    struct loaderd_batch batch;
    must_next(loader, &batch);
    loaderd_release(loader, &batch);
    expect_beat(fd); /* idle: the ring is full */
    pid_t worker = first_worker(daemon);
    if (ptrace(PTRACE_SEIZE, worker, NULL, NULL) < 0 || ptrace(PTRACE_INTERRUPT, worker, NULL, NULL) < 0) {
        fprintf(stderr, "watchdog: a thread cannot be stopped here (%s); that part skipped\n", strerror(errno));
    } else {
        ck_assert_int_eq(waitpid(worker, NULL, __WALL), worker);
        expect_log("worker 0 has not moved for 2 s");
        while (receive(fd, text, sizeof text, 0)) /* told before it was noticed */
            ;
        must_next(loader, &batch); /* the other worker serves all the same */
        loaderd_release(loader, &batch);
        ck_assert_uint_eq(receive(fd, text, sizeof text, 3000), 0);
        ck_assert_int_eq(ptrace(PTRACE_DETACH, worker, NULL, NULL), 0);
        expect_beat(fd);
    }
    loaderd_close(loader);
    ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
    unsetenv("NOTIFY_SOCKET");
    close(fd);
    harness_end();
}
END_TEST

/* A watchdog that is meant for another process, and one that is nonsense, are nobody's. */
START_TEST(another_process_watchdog_is_not_fed) {
    harness_begin();
    char path[100], text[512];
    int fd = listen_at("notify", path);
    setenv("NOTIFY_SOCKET", path, 1);
    static const char *const cases[][2] = {{"2000000", "1"}, {"rubbish", NULL}, {"0", NULL}, {"-1", NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        setenv("WATCHDOG_USEC", cases[i][0], 1);
        if (cases[i][1])
            setenv("WATCHDOG_PID", cases[i][1], 1);
        pid_t daemon = start_daemon("--dataset", "synthetic:64x3x8x8:u8", "--workers", "1", NULL);
        unsetenv("WATCHDOG_PID");
        while (receive(fd, text, sizeof text, 1500))
            ck_assert_str_ne(text, "WATCHDOG=1\n");
        ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
        while (receive(fd, text, sizeof text, 0))
            ;
    }
    unsetenv("WATCHDOG_USEC");
    unsetenv("NOTIFY_SOCKET");
    close(fd);
    harness_end();
}
END_TEST

/* ---- the journal --------------------------------------------------------------------------------------------------- */

/* One field of a datagram as the journal reads it: NAME=VALUE, or NAME and a length of 8 bytes. False: not there. */
static bool field(const char *packet, size_t length, const char *name, char *value, size_t size) {
    const char *at = packet, *end = packet + length;
    while (at < end) {
        const char *feed = memchr(at, '\n', (size_t)(end - at));
        ck_assert_ptr_nonnull(feed);
        const char *equals = memchr(at, '=', (size_t)(feed - at)), *text = equals ? equals + 1 : feed + 9;
        size_t name_length = (size_t)((equals ? equals : feed) - at), bytes = (size_t)(feed - text);
        if (!equals) {
            ck_assert_int_ge(end - feed, 10);
            bytes = 0;
            for (int i = 7; i >= 0; i--)
                bytes = bytes << 8 | (unsigned char)feed[1 + i];
            ck_assert_uint_lt(bytes, (size_t)(end - text));
            ck_assert_int_eq(text[bytes], '\n');
        }
        for (size_t i = 0; i < name_length; i++)
            ck_assert((at[i] >= 'A' && at[i] <= 'Z') || (at[i] == '_' && i));
        if (strlen(name) == name_length && memcmp(at, name, name_length) == 0) {
            snprintf(value, size, "%.*s", (int)bytes, text);
            return true;
        }
        at = text + bytes + 1;
    }
    return false;
}

static void expect_field(const char *packet, size_t length, const char *name, const char *want) {
    char value[1024];
    ck_assert_msg(field(packet, length, name, value, sizeof value), "no field %s", name);
    ck_assert_str_eq(value, want);
}

/* The first datagram whose MESSAGE has `says`. */
static size_t message(int fd, const char *says, char *packet, size_t size) {
    char text[1024];
    for (uint64_t until = clock_ms() + 20000; clock_ms() < until;) {
        size_t n = receive(fd, packet, size, 1000);
        if (n && field(packet, n, "MESSAGE", text, sizeof text) && strstr(text, says))
            return n;
    }
    ck_abort_msg("the journal never got: %s", says);
}

/* Starts a daemon whose stderr is "the journal": a file that JOURNAL_STREAM names, as systemd does with its stream. */
static pid_t start_journalled(const char *config) {
    struct stat st;
    char stream[64];
    int fd = open("log", O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    ck_assert_int_eq(fstat(fd, &st), 0);
    close(fd);
    snprintf(stream, sizeof stream, "%llu:%llu", (unsigned long long)st.st_dev, (unsigned long long)st.st_ino);
    setenv("JOURNAL_STREAM", stream, 1);
    pid_t daemon = start_daemon("--config", config, NULL);
    unsetenv("JOURNAL_STREAM");
    return daemon;
}

START_TEST(the_journal_gets_fields) {
    harness_begin();
    char path[100], packet[8192], number[32];
    int fd = listen_at("journal", path);
    setenv("LOADERD_TEST_JOURNAL", path, 1);
    ck_assert_int_eq(mkdir("set", 0700), 0);
    ck_assert_int_eq(mkdir("set/class", 0700), 0);
    FILE *f = fopen("set/class/bad\nname.jpg", "w"); /* a name may hold anything, a field as well */
    fputs("no picture", f);
    fclose(f);
    f = fopen("a.conf", "w");
    fputs("[daemon]\nworkers = 1\n[pipeline pictures]\ndataset = set\nbatch = 1\non-error = blank\nimage = 8\n"
          "augment = center-crop\nlast = keep\n",
          f);
    fclose(f);
    pid_t daemon = start_journalled("a.conf");
    struct loaderd_options options = LOADERD_OPTIONS_INIT;
    options.job = "job\n7";
    options.epochs = 1;
    struct loaderd *loader = open_loader("pictures", &options);
    size_t n = message(fd, "session 1: pipeline pictures", packet, sizeof packet);
    snprintf(number, sizeof number, "%d", (int)getpid());
    expect_field(packet, n, "PRIORITY", "6");
    expect_field(packet, n, "SYSLOG_IDENTIFIER", "loaderd");
    expect_field(packet, n, "PIPELINE", "pictures");
    expect_field(packet, n, "JOB", "job?7");
    expect_field(packet, n, "SESSION", "1");
    expect_field(packet, n, "RANK", "0");
    expect_field(packet, n, "TRAINER_PID", number);
    snprintf(number, sizeof number, "%u", (unsigned)geteuid());
    expect_field(packet, n, "TRAINER_UID", number);
    struct loaderd_batch batch;
    must_next(loader, &batch);
    n = message(fd, "bad sample 0", packet, sizeof packet);
    char sample[1024];
    expect_field(packet, n, "PRIORITY", "4");
    expect_field(packet, n, "PIPELINE", "pictures");
    expect_field(packet, n, "SAMPLE", "0");
    expect_field(packet, n, "EPOCH", "0");
    expect_field(packet, n, "POSITION", "0");
    ck_assert(field(packet, n, "SAMPLE_PATH", sample, sizeof sample));
    ck_assert_msg(strstr(sample, "class/bad\nname.jpg") != NULL, "%s", sample);
    ck_assert(!field(packet, n, "SESSION", sample, sizeof sample));
    loaderd_close(loader);
    n = message(fd, "session 1: ended", packet, sizeof packet);
    expect_field(packet, n, "JOB", "job?7");
    /* without a journal that takes it, a line still has its priority */
    close(fd);
    unlink(path);
    loader = open_loader("pictures", &options);
    expect_log("<6>session 2: pipeline pictures");
    loaderd_close(loader);
    ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
    unsetenv("LOADERD_TEST_JOURNAL");
    harness_end();
}
END_TEST

int main(void) {
    const struct harness_test tests[] = {
        {"watchdog", the_watchdog_is_fed_while_workers_move},
        {"other_watchdog", another_process_watchdog_is_not_fed},
        {"journal", the_journal_gets_fields},
        {NULL, NULL},
    };
    return harness_main("manager", tests);
}
