/* SPDX-License-Identifier: MIT */
/* Old and new peers: the highest common version of protocol and ring is used; where there is none, both are named. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "../../client/connection.h"
#include "harness.h"
#include <loaderd/abi/ring.h>

#define SERVED UINT16_MAX

static int fake_hello(const char *version, uint16_t least, uint16_t most, uint16_t ring_least, uint16_t ring_most) {
    struct loaderd_hello hello = {.message = {LOADERD_HELLO, sizeof hello},
                                  .magic = LOADERD_PROTOCOL_MAGIC,
                                  .protocol_min = least,
                                  .protocol_max = most,
                                  .ring_min = ring_least,
                                  .ring_max = ring_most};
    snprintf(hello.version, sizeof hello.version, "%s", version);
    int fd = raw_connect(harness_socket());
    ck_assert_int_eq(connection_send(fd, &hello, sizeof hello), 0);
    return fd;
}

/* A client of another version comes to this daemon. */
START_TEST(other_clients) {
    static const struct {
        uint16_t least, most;
        int common;
    } cases[] = {{1, 1, 1}, {0, 0, -1},    {2, 3, -1}, {0, 1, 1},
                 {1, 9, 1}, {0, 65535, 1}, {3, 1, -1}, {65535, 65535, -1}};
    harness_begin();
    make_records("records.bin", 50, 10);
    pid_t daemon = start_daemon("--dataset", "records.bin", "--record", "id:u32 data:u8[10]", NULL);
    for (int of_ring = 0; of_ring < 2; of_ring++)
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            char packet[1024], error[512] = "", want[64];
            int fds[2];
            struct loaderd_hello_ok ok;
            int fd = of_ring ? fake_hello("7.7-fake", 1, 1, cases[i].least, cases[i].most)
                             : fake_hello("7.7-fake", cases[i].least, cases[i].most, 1, 1);
            int n = raw_receive(fd, packet, sizeof packet, fds);
            ck_assert_int_gt(n, 0);
            int r = connection_parse_hello_ok(packet, (size_t)n, &ok, error, sizeof error);
            if (cases[i].common >= 0) {
                ck_assert_msg(r == 0, "%s", error);
                ck_assert_int_eq(of_ring ? ok.ring : ok.protocol, cases[i].common);
            } else {
                ck_assert_int_eq(r, -EPROTO);
                snprintf(want, sizeof want, "%u to %u", cases[i].least, cases[i].most);
                ck_assert_msg(strstr(error, want) && strstr(error, "7.7-fake") && strstr(error, "1 to 1") &&
                                  strstr(error, loaderd_version()) && strstr(error, of_ring ? "ring" : "protocol"),
                              "%s", error);
                ck_assert_int_eq(raw_receive(fd, packet, sizeof packet, fds), 0); /* and the end */
            }
            close(fd);
        }
    struct loaderd *loader = open_loader("default", NULL); /* unharmed */
    loaderd_close(loader);
    ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
    harness_end();
}
END_TEST

/* A daemon of another version, that speaks [least, most] of both. */
struct fake {
    int listen_fd;
    uint16_t least, most;
    bool rude; /* says a version that was not offered */
    bool opened;
};

static uint16_t choose(uint16_t least, uint16_t most, const struct fake *fake) {
    uint16_t low = least > fake->least ? least : fake->least, high = most < fake->most ? most : fake->most;
    return low <= high ? high : 0;
}

static void fake_error(int fd, int code, const char *text) {
    char packet[256] = "";
    const size_t head = offsetof(struct loaderd_error_message, text);
    struct loaderd_error_message message = {.message = {LOADERD_ERROR, (uint32_t)(head + strlen(text) + 1)},
                                            .code = code};
    memcpy(packet, &message, head);
    memcpy(packet + head, text, strlen(text) + 1);
    connection_send(fd, packet, message.message.length);
}

static void *serve(void *arg) {
    struct fake *fake = arg;
    struct loaderd_hello hello;
    char packet[4096];
    int fds[2], fd = accept(fake->listen_fd, NULL, NULL);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(raw_receive(fd, &hello, sizeof hello, fds), sizeof hello);
    struct loaderd_hello_ok ok = {.message = {LOADERD_HELLO_OK, sizeof ok},
                                  .protocol = choose(hello.protocol_min, hello.protocol_max, fake),
                                  .ring = choose(hello.ring_min, hello.ring_max, fake),
                                  .daemon_pid = getpid(),
                                  .version = "8.8-fake"};
    if (fake->rude)
        ok.protocol = ok.ring = fake->most;
    if (ok.protocol || fake->rude) {
        connection_send(fd, &ok, sizeof ok);
        fake->opened = raw_receive(fd, packet, sizeof packet, fds) > (int)sizeof(struct loaderd_message);
        fake_error(fd, -ENOENT, "no such pipeline in a fake");
    } else {
        char text[128];
        snprintf(text, sizeof text, "client library %s speaks protocol %u to %u, daemon 8.8-fake speaks %u to %u",
                 hello.version, hello.protocol_min, hello.protocol_max, fake->least, fake->most);
        fake_error(fd, -EPROTO, text);
    }
    sleep_ms(20);
    close(fd);
    return NULL;
}

START_TEST(other_daemons) {
    static const struct fake cases[] = {{-1, 1, 1, false, false}, {-1, 0, 1, false, false}, {-1, 1, 9, false, false},
                                        {-1, 2, 3, false, false}, {-1, 0, 0, false, false}, {-1, 2, 3, true, false},
                                        {-1, 0, 0, true, false}};
    harness_begin();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fake fake = cases[i];
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        char error[512] = "", want[64];
        struct loaderd *loader;
        pthread_t thread;
        bool common = fake.least <= 1 && fake.most >= 1;
        memcpy(address.sun_path, harness_socket(), strlen(harness_socket()));
        fake.listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        ck_assert_int_eq(bind(fake.listen_fd, (struct sockaddr *)&address, sizeof address), 0);
        ck_assert_int_eq(listen(fake.listen_fd, 4), 0);
        pthread_create(&thread, NULL, serve, &fake);
        int r = loaderd_open(&loader, "default", NULL, error, sizeof error);
        pthread_join(thread, NULL);
        ck_assert_int_eq(fake.opened, common);
        ck_assert_int_eq(r, common ? -ENOENT : -EPROTO);
        snprintf(want, sizeof want, fake.rude ? "protocol %u" : "speaks %u", fake.rude ? fake.most : fake.least);
        ck_assert_msg(common || (strstr(error, "8.8-fake") && strstr(error, want) && strstr(error, "1 to 1") &&
                                 strstr(error, loaderd_version())),
                      "%s", error);
        close(fake.listen_fd);
        unlink(harness_socket());
    }
    harness_end();
}
END_TEST

int main(void) {
    const struct harness_test tests[] = {
        {"clients", other_clients},
        {"daemons", other_daemons},
        {NULL, NULL},
    };
    return harness_main("versions", tests);
}
