/* SPDX-License-Identifier: MIT */
/* Clients that send garbage, flood, vanish, do not read, and abuse what they were given: nobody else notices. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../client/connection.h"
#include "harness.h"
#include <loaderd/abi/ring.h>

#define SAMPLES 600

/* An honest trainer, which works before, during and after the attack. */
static int consume(void *arg) {
    uint32_t *progress = arg;
    static const char *keys[] = {"batch=16", "shuffle=full", NULL};
    struct loaderd_options o = LOADERD_OPTIONS_INIT;
    o.keys = keys;
    o.next_timeout_ms = 20000;
    struct loaderd *loader = open_loader("records", &o);
    struct loaderd_batch b;
    for (uint64_t sequence = 0; progress[1] == 0;) {
        int r = loaderd_next(loader, &b);
        ck_assert_msg(r >= 0, "%d %s", r, loaderd_error(loader));
        if (r == 0)
            continue;
        ck_assert_uint_eq(b.sequence, sequence++);
        check_records(&b);
        loaderd_release(loader, &b);
        __atomic_fetch_add(&progress[0], 1, __ATOMIC_SEQ_CST);
    }
    struct loaderd_statistics statistics;
    loaderd_statistics(loader, &statistics);
    ck_assert_uint_eq(statistics.reconnects, 0);
    loaderd_close(loader);
    return 0;
}

static pid_t daemon_pid, honest_pid;
static uint32_t *progress, descriptors;

static void begin(void) {
    harness_begin();
    make_records("records.bin", SAMPLES, 100);
    daemon_pid = start_daemon("--name", "records", "--dataset", "records.bin", "--record", "id:u32 data:u8[100]",
                              "--workers", "2", NULL);
    progress = shared_memory(4096);
    honest_pid = start_client(consume, progress);
    expect_sessions(harness_socket(), 1, 5000);
    while (__atomic_load_n(&progress[0], __ATOMIC_SEQ_CST) < 20)
        sleep_ms(2);
    sleep_ms(50);                                    /* the connections of the questions above are closed */
    descriptors = count_descriptors(daemon_pid) + 1; /* one for us, if our sessions are closed while we live */
}

/* The daemon lives, the honest trainer went on, and nothing of the attackers is left. */
static void end(void) {
    uint32_t before = __atomic_load_n(&progress[0], __ATOMIC_SEQ_CST);
    uint64_t until = clock_ms() + 10000;
    while (__atomic_load_n(&progress[0], __ATOMIC_SEQ_CST) < before + 20) {
        ck_assert_msg(clock_ms() < until, "the honest trainer gets nothing any more");
        sleep_ms(2);
    }
    expect_sessions(harness_socket(), 1, 3000);
    until = clock_ms() + 3000;
    while (count_descriptors(daemon_pid) > descriptors && clock_ms() < until)
        sleep_ms(10);
    ck_assert_uint_le(count_descriptors(daemon_pid), descriptors);
    progress[1] = 1;
    expect_client(honest_pid);
    ck_assert_int_eq(end_process(daemon_pid, SIGTERM), 0);
    harness_end();
}

/* The daemon must answer with ERROR -EPROTO and end the connection. */
static void expect_protocol_error(int fd, const char *what) {
    char packet[4096], text[256];
    int fds[2], code = 0, n;
    while ((n = raw_receive(fd, packet, sizeof packet, fds)) == 1)
        ;
    ck_assert_msg(n > 1 && connection_parse_error(packet, (size_t)n, &code, text, sizeof text), "%s: %d bytes", what,
                  n);
    ck_assert_msg(code == -EPROTO, "%s: %d %s", what, code, text);
    ck_assert_msg(raw_receive(fd, packet, sizeof packet, fds) == 0, "%s: the connection goes on", what);
    close(fd);
}

static void send_header(int fd, uint32_t type, uint32_t says, size_t length) {
    static char packet[LOADERD_MESSAGE_MAX];
    memcpy(packet, &type, 4);
    memcpy(packet + 4, &says, 4);
    ck_assert_int_eq(connection_send(fd, packet, length), 0);
}

START_TEST(garbage_ends_a_connection) {
    begin();
    unsigned seed = 1;
    for (uint32_t type = 0; type < 12; type++) {
        int fd = raw_connect(harness_socket());
        send_header(fd, type, 20, 20); /* a length that no message has */
        expect_protocol_error(fd, "20 bytes");
        fd = raw_connect(harness_socket());
        send_header(fd, type, 8, 64);
        expect_protocol_error(fd, "a length that is not the packet's");
        fd = raw_hello(harness_socket());
        send_header(fd, type ? type : 77, 4096, 4096);
        expect_protocol_error(fd, "after HELLO");
    }
    for (int i = 0; i < 200; i++) {
        uint8_t packet[300];
        size_t length = 2 + (size_t)rand_r(&seed) % 298;
        for (size_t j = 0; j < length; j++)
            packet[j] = (uint8_t)rand_r(&seed);
        int fd = i % 2 ? raw_hello(harness_socket()) : raw_connect(harness_socket());
        ck_assert_int_eq(connection_send(fd, packet, length), 0);
        expect_protocol_error(fd, "random bytes");
    }
    int fd = raw_hello(harness_socket());
    ck_assert_int_eq(connection_hello(fd), 0);
    expect_protocol_error(fd, "second HELLO");
    fd = raw_hello(harness_socket());
    send_header(fd, LOADERD_SAMPLE_PATH, 16, 16);
    expect_protocol_error(fd, "SAMPLE_PATH without a session");
    fd = raw_connect(harness_socket());
    send_header(fd, LOADERD_STATUS, 8, 8);
    expect_protocol_error(fd, "STATUS before HELLO");
    fd = raw_connect(harness_socket());
    ck_assert_int_eq(send(fd, "", 0, MSG_NOSIGNAL), 0); /* as good as an end of file */
    char byte;
    int fds[2];
    ck_assert_int_eq(raw_receive(fd, &byte, 1, fds), 0);
    close(fd);
    end();
}
END_TEST

static size_t make_open(char *packet, const char *strings, size_t length) {
    const size_t head = offsetof(struct loaderd_open_message, strings);
    struct loaderd_open_message m = {.message = {LOADERD_OPEN, (uint32_t)(head + length)}, .world = 1, .held = 1};
    memcpy(packet, &m, head);
    memcpy(packet + head, strings, length);
    return head + length;
}

START_TEST(clients_that_leave_in_the_middle) {
    begin();
    char packet[512];
    size_t length = make_open(packet, "records\0job\0batch=8", sizeof "records\0job\0batch=8");
    for (int i = 0; i < 60; i++) {
        int fd = i % 3 ? raw_hello(harness_socket()) : raw_connect(harness_socket());
        if (i % 3 == 2)
            ck_assert_int_eq(connection_send(fd, packet, length), 0);
        if (i % 5 == 0)
            sleep_ms(3);
        close(fd); /* with OPEN under way, or its answer unread */
    }
    end();
}
END_TEST

START_TEST(floods_wait_in_their_own_socket) {
    begin();
    char packet[512];
    int fds[2], fd = raw_hello(harness_socket());
    size_t length = make_open(packet, "records\0job\0", sizeof "records\0job\0" - 1);
    ck_assert_int_eq(connection_send(fd, packet, length), 0);
    ck_assert_int_gt(raw_receive(fd, packet, sizeof packet, fds), 0);
    uint64_t until = clock_ms() + 700, sent = 0;
    while (clock_ms() < until) {
        connection_wake(fd);
        sent++;
    }
    ck_assert_uint_gt(sent, 1000);
    close(fds[0]);
    close(fds[1]);
    close(fd);
    /* one that asks and asks, and reads nothing: it is cut off */
    fd = raw_hello(harness_socket());
    const struct loaderd_message ask = {.type = LOADERD_STATUS, .length = sizeof ask};
    int r = 0;
    until = clock_ms() + 20000;
    while ((r == 0 || r == -EAGAIN) && clock_ms() < until)
        r = connection_send(fd, &ask, sizeof ask);
    ck_assert_msg(r == -EPIPE || r == -ECONNRESET, "%d", r);
    close(fd);
    end();
}
END_TEST

/* Everything that one could try with the two descriptors; what succeeds harms only the one who tries. */
static void abuse_data(int fd, size_t bytes) {
    ck_assert_int_eq(ftruncate(fd, 0), -1);
    ck_assert_int_eq(errno, EPERM);
    ck_assert_int_eq(ftruncate(fd, (off_t)bytes * 2), -1);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
    ck_assert_int_eq(errno, EPERM);
    ck_assert_int_eq(pwrite(fd, "x", 1, 5000), -1);
    ck_assert_ptr_eq(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    ck_assert_int_eq(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
    void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(map, MAP_FAILED);
    ck_assert_int_eq(mprotect(map, bytes, PROT_READ | PROT_WRITE), -1);
    ck_assert_int_ne(madvise(map, bytes, MADV_REMOVE), 0);
    munmap(map, bytes);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int again = open(path, O_RDWR | O_CLOEXEC);
    if (again >= 0) {
        ck_assert_int_eq(pwrite(again, "x", 1, 5000), -1);
        close(again);
    }
    fcntl(fd, F_SETFL, O_NONBLOCK | O_APPEND);
}

static void abuse_control(int fd, size_t bytes) {
    ck_assert_int_eq(ftruncate(fd, 0), -1);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
    uint8_t *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(map, MAP_FAILED);
    unsigned seed = 7;
    uint64_t until = clock_ms() + 300;
    while (clock_ms() < until)
        for (size_t i = 0; i < bytes; i++) /* release words, flags, statistics, magic: all of it */
            map[i] = (uint8_t)(rand_r(&seed) >> 3);
    for (uint64_t word = 0; word < 4096; word++)
        for (size_t i = 0; i + 8 <= bytes; i += 8) /* among these is every exact value */
            memcpy(map + i, &word, 8);
    memset(map, 0xff, bytes);
    fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes);
    munmap(map, bytes);
}

START_TEST(descriptors_are_worth_nothing) {
    begin();
    char packet[512], text[256];
    for (int round = 0; round < 3; round++) {
        struct loaderd_opened opened;
        int fds[2], fd = raw_hello(harness_socket());
        size_t length = make_open(packet, "records\0job\0", sizeof "records\0job\0" - 1);
        ck_assert_int_eq(connection_send(fd, packet, length), 0);
        int n = raw_receive(fd, packet, sizeof packet, fds);
        ck_assert_int_eq(connection_parse_opened(packet, (size_t)n, &opened, text, sizeof text), 0);
        abuse_data(fds[0], opened.data_bytes);
        abuse_control(fds[1], opened.control_bytes);
        connection_wake(fd);
        sleep_ms(50);
        ck_assert_uint_eq(count_sessions(harness_socket()), 2);
        close(fds[0]);
        close(fds[1]);
        close(fd);
    }
    end();
}
END_TEST

START_TEST(descriptors_sent_to_the_daemon_are_dropped) {
    begin();
    int fd = raw_hello(harness_socket());
    for (int i = 0; i < 50; i++) {
        union {
            struct cmsghdr align;
            char bytes[CMSG_SPACE(8 * sizeof(int))];
        } control = {0};
        struct iovec vector = {.iov_base = "w", .iov_len = 1};
        struct msghdr message = {
            .msg_iov = &vector, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(8 * sizeof(int));
        for (size_t j = 0; j < 8; j++)
            memcpy(CMSG_DATA(c) + j * sizeof(int), &fd, sizeof(int));
        ck_assert_int_eq(sendmsg(fd, &message, MSG_NOSIGNAL), 1);
    }
    sleep_ms(200);
    ck_assert_uint_le(count_descriptors(daemon_pid), descriptors + 3);
    close(fd);
    end();
}
END_TEST

/* More connections than one user may have: the rest is told so, and the first keep working. */
START_TEST(connections_are_counted) {
    begin();
    int fds[2], connections[400], refused = 0;
    char packet[512], text[256];
    for (int i = 0; i < 400; i++) {
        int code = 0;
        connections[i] = raw_connect(harness_socket());
        connection_hello(connections[i]);
        int n = raw_receive(connections[i], packet, sizeof packet, fds);
        if (n > 1 && connection_parse_error(packet, (size_t)n, &code, text, sizeof text)) {
            ck_assert_int_eq(code, -EUSERS);
            refused++;
        }
    }
    ck_assert_int_gt(refused, 200);
    ck_assert_int_lt(refused, 399);
    for (int i = 0; i < 400; i++)
        close(connections[i]);
    sleep_ms(100);
    end();
}
END_TEST

int main(void) {
    const struct harness_test tests[] = {
        {"garbage", garbage_ends_a_connection},
        {"leaving", clients_that_leave_in_the_middle},
        {"floods", floods_wait_in_their_own_socket},
        {"descriptors", descriptors_are_worth_nothing},
        {"sent", descriptors_sent_to_the_daemon_are_dropped},
        {"connections", connections_are_counted},
        {NULL, NULL},
    };
    return harness_main("hostile", tests);
}
