/* SPDX-License-Identifier: MIT */
/* See harness.h. */
#include "harness.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../client/connection.h"

static char directory[64], socket_path[80], daemon_path[4096];
static pid_t owner;

/* ---- time -------------------------------------------------------------------------------------------------------- */

uint64_t clock_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

void sleep_ms(int ms) {
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
}

/* ---- the directory ----------------------------------------------------------------------------------------------- */

static void find_daemon(void) {
    const char *given = getenv("LOADERD_DAEMON"), *build = getenv("LOADERD_BUILD");
    char name[4200];
    snprintf(name, sizeof name, "%s", given ? given : "./loaderd");
    if (!given && build)
        snprintf(name, sizeof name, "%s/loaderd", build);
    if (!realpath(name, daemon_path) || access(daemon_path, X_OK) < 0)
        ck_abort_msg("no daemon at %s: run from the build directory, or set LOADERD_DAEMON", name);
    setenv("LOADERD_DAEMON", daemon_path, 1);
}

void harness_begin(void) {
    static const char *const launchers[] = {"RANK",
                                            "WORLD_SIZE",
                                            "MASTER_ADDR",
                                            "MASTER_PORT",
                                            "OMPI_COMM_WORLD_RANK",
                                            "OMPI_COMM_WORLD_SIZE",
                                            "OMPI_MCA_ess_base_jobid",
                                            "PMI_RANK",
                                            "PMI_SIZE",
                                            "PMIX_NAMESPACE",
                                            "SLURM_PROCID",
                                            "SLURM_JOB_ID",
                                            "SLURM_STEP_ID",
                                            "SLURM_NTASKS",
                                            "NOTIFY_SOCKET",
                                            "LISTEN_FDS",
                                            "WATCHDOG_USEC",
                                            "WATCHDOG_PID",
                                            "LISTEN_PID"};
    char runtime[80];
    find_daemon();
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++)
        unsetenv(launchers[i]);
    owner = getpid();
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    snprintf(directory, sizeof directory, "/tmp/loaderd-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    ck_assert_int_eq(chdir(directory), 0);
    snprintf(socket_path, sizeof socket_path, "%s/socket", directory);
    snprintf(runtime, sizeof runtime, "%s/run", directory);
    ck_assert_int_eq(mkdir(runtime, 0700), 0);
    setenv("XDG_RUNTIME_DIR", runtime, 1);
    setenv("LOADERD_SOCKET", socket_path, 1);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

/* Children that end by themselves within three seconds are fine; others are killed and fail the test. */
void harness_end(void) {
    uint64_t until = clock_ms() + 3000;
    int left = 0;
    for (;;) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid < 0)
            break;
        if (pid > 0)
            continue;
        if (clock_ms() > until) {
            siginfo_t info = {0};
            char name[64], text[128];
            snprintf(name, sizeof name, "/proc/self/task/%d/children", (int)getpid());
            FILE *f = fopen(name, "r");
            while (f && fscanf(f, "%100s", text) == 1) {
                kill(atoi(text), SIGKILL);
                left++;
            }
            if (f)
                fclose(f);
            waitid(P_ALL, 0, &info, WEXITED);
            until = clock_ms() + 3000;
        }
        sleep_ms(10);
    }
    ck_assert_int_eq(chdir("/"), 0);
    if (!getenv("LOADERD_TEST_KEEP"))
        nftw(directory, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    ck_assert_msg(left == 0, "%d processes were left behind", left);
}

const char *harness_directory(void) {
    return directory;
}

const char *harness_socket(void) {
    return socket_path;
}

const char *harness_daemon(void) {
    return daemon_path;
}

char *read_text(const char *path) {
    FILE *f = fopen(path, "re");
    char *text = calloc(1, 1 << 20);
    ck_assert_msg(f && text, "%s: %s", path, strerror(errno));
    size_t n = fread(text, 1, (1 << 20) - 1, f);
    text[n] = '\0';
    fclose(f);
    return text;
}

/* ---- records ----------------------------------------------------------------------------------------------------- */

uint8_t record_byte(uint32_t id, uint32_t i) {
    return (uint8_t)((id * 2654435761u + i * 40503u) >> 13);
}

void make_records(const char *name, uint32_t count, uint32_t bytes) {
    FILE *f = fopen(name, "wbe");
    ck_assert_ptr_nonnull(f);
    for (uint32_t id = 0; id < count; id++) {
        fwrite(&id, sizeof id, 1, f);
        for (uint32_t i = 0; i < bytes; i++)
            fputc(record_byte(id, i), f);
    }
    ck_assert_int_eq(fclose(f), 0);
}

void check_records(const struct loaderd_batch *b) {
    ck_assert_uint_eq(b->nfields, 2);
    const struct loaderd_field *id = &b->fields[0], *data = &b->fields[1];
    ck_assert_str_eq(id->name, "id");
    ck_assert_str_eq(data->name, "data");
    ck_assert_uint_le(b->valid, b->rows);
    ck_assert_int_le(b->rows, id->dims[0]);
    for (uint32_t row = 0; row < b->rows; row++) {
        uint32_t value;
        memcpy(&value, (const uint8_t *)id->data + row * sizeof value, sizeof value);
        ck_assert_uint_eq(value, b->row[row].sample);
        ck_assert_int_eq((b->row[row].status & LOADERD_ROW_PADDING) != 0, row >= b->valid);
        const uint8_t *bytes = (const uint8_t *)data->data + (uint64_t)row * (uint64_t)data->dims[1];
        for (uint32_t i = 0; i < data->dims[1]; i++)
            if (bytes[i] != record_byte(value, i))
                ck_abort_msg("batch %lu row %u: byte %u of record %u is %u", b->sequence, row, i, value, bytes[i]);
    }
}

/* ---- processes --------------------------------------------------------------------------------------------------- */

pid_t spawn_daemon(const char *const *arguments, const char *log) {
    const char *argv[64] = {daemon_path};
    int n = 1;
    while (*arguments && n < 63)
        argv[n++] = *arguments++;
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid > 0)
        return pid;
    int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (fd < 0 || dup2(fd, STDERR_FILENO) < 0)
        _exit(126);
    for (int other = 3; other < 100; other++)
        close(other); /* Check's own file among them */
    execv(daemon_path, (char **)(uintptr_t)argv);
    _exit(127);
}

pid_t start_daemon(const char *first, ...) {
    const char *arguments[64] = {"--socket", socket_path, first};
    int n = first ? 3 : 2;
    va_list args;
    va_start(args, first);
    while (first && n < 63 && (arguments[n] = va_arg(args, const char *)))
        n++;
    va_end(args);
    pid_t pid = spawn_daemon(arguments, "log");
    uint64_t until = clock_ms() + 20000;
    for (int fd; (fd = connection_connect(socket_path, NULL, 0)) != -EAGAIN; sleep_ms(5)) {
        if (fd >= 0) {
            struct ucred peer;
            socklen_t size = sizeof peer;
            ck_assert_int_eq(getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size), 0);
            close(fd);
            ck_assert_int_eq(peer.pid, pid);
            return pid;
        }
        if (!process_lives(pid) || clock_ms() > until)
            ck_abort_msg("the daemon did not start: %s", read_text("log"));
    }
    return pid;
}

bool process_lives(pid_t pid) {
    siginfo_t info = {0};
    if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0)
        return info.si_pid == 0;
    return kill(pid, 0) == 0;
}

int end_process(pid_t pid, int signal_number) {
    int status;
    uint64_t until = clock_ms() + 30000;
    if (signal_number)
        kill(pid, signal_number);
    for (;;) {
        pid_t r = waitpid(pid, &status, WNOHANG);
        if (r == pid)
            return status;
        if (r < 0)
            ck_abort_msg("process %d: %s", (int)pid, strerror(errno));
        if (clock_ms() > until) {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            ck_abort_msg("process %d did not end within 30 s", (int)pid);
        }
        sleep_ms(2);
    }
}

pid_t start_client(int (*f)(void *arg), void *arg) {
    fflush(NULL);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid > 0)
        return pid;
    alarm(60);
    int r = f(arg);
    fflush(NULL);
    _exit(r);
}

void expect_client(pid_t pid) {
    int status = end_process(pid, 0);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "client %d ended with status 0x%x", (int)pid, status);
}

void *shared_memory(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(p, MAP_FAILED);
    return p;
}

uint32_t count_descriptors(pid_t pid) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *d = opendir(path);
    uint32_t n = 0;
    ck_assert_ptr_nonnull(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n - 2;
}

/* ---- raw connections --------------------------------------------------------------------------------------------- */

int raw_connect(const char *path) {
    char error[256];
    int fd;
    for (int i = 0; (fd = connection_connect(path, error, sizeof error)) == -EAGAIN && i < 400; i++)
        sleep_ms(5);
    ck_assert_msg(fd >= 0, "%s", error);
    return fd;
}

int raw_receive(int fd, void *packet, size_t size, int fds[2]) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (poll(&p, 1, 2000) <= 0)
        return -1;
    int n = connection_receive(fd, packet, size, fds);
    return n == -ECONNRESET ? 0 : n < 0 ? -1 : n;
}

int raw_hello(const char *path) {
    struct loaderd_hello_ok ok;
    char packet[512], error[256];
    int fds[2], fd = raw_connect(path);
    ck_assert_int_eq(connection_hello(fd), 0);
    int n = raw_receive(fd, packet, sizeof packet, fds);
    ck_assert_int_gt(n, 0);
    ck_assert_msg(connection_parse_hello_ok(packet, (size_t)n, &ok, error, sizeof error) == 0, "%s", error);
    return fd;
}

char *read_status(const char *path) {
    const struct loaderd_message ask = {.type = LOADERD_STATUS, .length = sizeof ask};
    char packet[512], error[256];
    const char *text;
    uint64_t bytes;
    int fds[2], fd = raw_hello(path);
    ck_assert_int_eq(connection_send(fd, &ask, sizeof ask), 0);
    int n = raw_receive(fd, packet, sizeof packet, fds);
    ck_assert_int_gt(n, 0);
    ck_assert_msg(connection_parse_text(packet, (size_t)n, &text, &bytes, error, sizeof error) == 0, "%s", error);
    ck_assert_int_ge(fds[0], 0);
    char *json = calloc(1, bytes + 1);
    ck_assert_int_eq(pread(fds[0], json, bytes, 0), (ssize_t)bytes);
    close(fds[0]);
    close(fd);
    return json;
}

uint64_t status_sum(const char *json, const char *name) {
    char key[64];
    uint64_t sum = 0;
    snprintf(key, sizeof key, "\"%s\": ", name);
    for (const char *at = json; (at = strstr(at, key)); at++)
        sum += strtoull(at + strlen(key), NULL, 10);
    return sum;
}

uint32_t count_sessions(const char *path) {
    char *json = read_status(path);
    const char *at = strstr(json, "\"sessions\": [");
    uint32_t n = 0;
    ck_assert_ptr_nonnull(at);
    while ((at = strstr(at, "\"number\": "))) {
        n++;
        at++;
    }
    free(json);
    return n;
}

void expect_sessions(const char *path, uint32_t sessions, int ms) {
    uint64_t until = clock_ms() + (uint64_t)ms;
    uint32_t n;
    while ((n = count_sessions(path)) != sessions && clock_ms() < until)
        sleep_ms(10);
    ck_assert_uint_eq(n, sessions);
}

/* ---- loaders ----------------------------------------------------------------------------------------------------- */

struct loaderd *open_loader(const char *name, const struct loaderd_options *options) {
    struct loaderd *loader = NULL;
    char error[512] = "";
    int r = loaderd_open(&loader, name, options, error, sizeof error);
    ck_assert_msg(r == 0, "loaderd_open(%s): %d %s", name, r, error);
    return loader;
}

void must_next(struct loaderd *loader, struct loaderd_batch *batch) {
    int r = loaderd_next(loader, batch);
    ck_assert_msg(r == 1, "loaderd_next: %d %s", r, r < 0 ? loaderd_error(loader) : "");
}

/* ---- main -------------------------------------------------------------------------------------------------------- */

int harness_main(const char *name, const struct harness_test *tests) {
    Suite *suite = suite_create(name);
    for (; tests->name; tests++) {
        TCase *tcase = tcase_create(tests->name);
        tcase_set_timeout(tcase, HARNESS_TIMEOUT);
        tcase_add_test(tcase, tests->test);
        suite_add_tcase(suite, tcase);
    }
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
