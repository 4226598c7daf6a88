/* SPDX-License-Identifier: MIT */
/*
 * System tests: the real daemon and real clients in processes of their own, in a directory of their own, within bounded
 * time.
 * Everything here fails the running test by ck_abort_msg() instead of returning an error.
 *
 * The test process adopts orphans (PR_SET_CHILD_SUBREAPER), so that harness_end() sees and fails on every process that
 * was left behind, private daemons included.
 */
#ifndef TESTS_SYSTEM_HARNESS_H
#define TESTS_SYSTEM_HARNESS_H

#include <check.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <loaderd/loaderd.h>

#define HARNESS_TIMEOUT 120 /* seconds, of one test: valgrind and sanitizers are slow */

/* Temporary directory (also the working directory), clean environment. To be called first in each test, and last. */
void harness_begin(void);
void harness_end(void);
const char *harness_directory(void);
const char *harness_socket(void); /* DIR/socket, exported as LOADERD_SOCKET */
const char *harness_daemon(void); /* path of the program loaderd */

/* A raw dataset DIR/name of `count` records "id:u32 data:u8[bytes]": data[i] is record_byte(id, i). */
void make_records(const char *name, uint32_t count, uint32_t bytes);
uint8_t record_byte(uint32_t id, uint32_t i);
/* Fails where a batch of such records is not what its rows say: ids, contents, padding. */
void check_records(const struct loaderd_batch *batch);

/* Starts `loaderd ARGUMENTS... --socket DIR/socket`, its log in DIR/log, and waits until it listens. */
pid_t start_daemon(const char *first, ...) __attribute__((sentinel));
/* Starts a daemon without waiting. */
pid_t spawn_daemon(const char *const *arguments, const char *log);
/* Sends the signal (0: none), waits for the end, returns the wait status. */
int end_process(pid_t pid, int signal);
bool process_lives(pid_t pid);
char *read_text(const char *path); /* the file's text; free it */

/* Runs f(arg) in a child; it is killed after a minute. Its result is the exit status. */
pid_t start_client(int (*f)(void *arg), void *arg);
void expect_client(pid_t pid); /* waits; fails unless it ended with 0 */

/* Shared memory of all processes of a test, zeroed. */
void *shared_memory(size_t bytes);

/* The service's status as JSON (free it), and numbers in it. */
char *read_status(const char *socket);
uint32_t count_sessions(const char *socket);
uint64_t status_sum(const char *json, const char *name); /* of all "name": N */
/* Waits until so many sessions are open, at most `ms`. */
void expect_sessions(const char *socket, uint32_t sessions, int ms);
uint32_t count_descriptors(pid_t pid);

uint64_t clock_ms(void);
void sleep_ms(int ms);

/* Opens or fails with the sentence. keys: NULL-terminated, or NULL. */
struct loaderd *open_loader(const char *name, const struct loaderd_options *options);
/* next() that must give a batch. */
void must_next(struct loaderd *loader, struct loaderd_batch *batch);

/* A raw connection that has said HELLO and heard HELLO_OK. */
int raw_connect(const char *socket);
int raw_hello(const char *socket);
/* Receives one packet within two seconds: its length, 0 at the end of the connection, -1 otherwise. */
int raw_receive(int fd, void *packet, size_t size, int fds[2]);

/* Runs a suite of these tests; main() of each program. */
struct harness_test {
    const char *name;
    const TTest *test;
};
int harness_main(const char *suite, const struct harness_test *tests);

#endif
