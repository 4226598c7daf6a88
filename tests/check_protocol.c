/* SPDX-License-Identifier: MIT */
/*
 * Control-socket messages: the daemon's parsers (src/protocol.h) and the library's (client/connection.h). The packets
 * are bytes made by Python's struct module from abi/protocol.h's comments, e.g. HELLO:
 *     struct.pack('<IIQHHHH24s', 1, 48, 0x31305944414f4c, 1, 1, 1, 1, b'0.1.0').hex()
 */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../client/connection.h"
#include "protocol.h"

static const uint8_t hello[48] = {1, 0, 0, 0, 48, 0, 0, 0, 'L', 'O', 'A', 'D', 'Y', '0', '1',
                                  0, 1, 0, 1, 0,  1, 0, 1, 0,   '0', '.', '1', '.', '0'};

/* struct.pack('<IIIIIIQQQQQ16sQQ', 4, 130, 0, 1, 4, 2, 3, 5, 10, 42, 256, bytes(range(16)), 0, 0)
 *     + b'train\0job-7\0batch=64\0shuffle=full\0' */
static const uint8_t open_head[96] = {4,  0, 0, 0, 130, 0, 0, 0, 0,  0, 0, 0, 1, 0, 0,  0,  4,  0,  0,  0,
                                      2,  0, 0, 0, 3,   0, 0, 0, 0,  0, 0, 0, 5, 0, 0,  0,  0,  0,  0,  0,
                                      10, 0, 0, 0, 0,   0, 0, 0, 42, 0, 0, 0, 0, 0, 0,  0,  0,  1,  0,  0,
                                      0,  0, 0, 0, 0,   1, 2, 3, 4,  5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
static const char open_strings[] = "train\0job-7\0batch=64\0shuffle=full"; /* and the literal's own NUL */

static struct diag diag;

/* An OPEN with these strings; its length word is right. */
static size_t make_open(uint8_t *packet, const char *strings, size_t length) {
    memcpy(packet, open_head, sizeof open_head);
    memcpy(packet + sizeof open_head, strings, length);
    uint32_t total = (uint32_t)(sizeof open_head + length);
    memcpy(packet + 4, &total, sizeof total);
    return total;
}

START_TEST(type_needs_the_right_length) {
    uint32_t type;
    uint8_t packet[64] = {0};
    memcpy(packet, hello, sizeof hello);
    ck_assert_int_eq(protocol_type(packet, 48, &type, &diag), 0);
    ck_assert_uint_eq(type, LOADERD_HELLO);
    ck_assert_int_eq(protocol_type(packet, 47, &type, &diag), -EPROTO);
    ck_assert_str_eq(diag.text, "message of 47 bytes says that it has 48");
    ck_assert_int_eq(protocol_type(packet, 0, &type, &diag), -EPROTO);
    ck_assert_int_eq(protocol_type(packet, 7, &type, &diag), -EPROTO);
    packet[4] = 49;
    ck_assert_int_eq(protocol_type(packet, 49, &type, &diag), -EPROTO);
    ck_assert_str_eq(diag.text, "message type 1 has 49 bytes: it must have 48");
}
END_TEST

START_TEST(one_byte_wakes) {
    uint32_t type = 0;
    ck_assert_int_eq(protocol_type("w", 1, &type, &diag), 0);
    ck_assert_uint_eq(type, PROTOCOL_WAKE);
}
END_TEST

START_TEST(daemon_messages_are_not_the_clients) {
    static const uint32_t daemons[] = {0,  LOADERD_HELLO_OK, LOADERD_ERROR, LOADERD_OPENED, LOADERD_TEXT,
                                       99, UINT32_MAX};
    for (size_t i = 0; i < sizeof daemons / sizeof daemons[0]; i++) {
        uint32_t type, packet[2] = {daemons[i], 8};
        ck_assert_int_eq(protocol_type(packet, 8, &type, &diag), -EPROTO);
        ck_assert_msg(strstr(diag.text, "unknown message type") != NULL, "%s", diag.text);
    }
}
END_TEST

START_TEST(hello_negotiates) {
    struct protocol_versions v;
    uint8_t packet[48];
    ck_assert_int_eq(protocol_parse_hello(hello, 48, &v, &diag), 0);
    ck_assert_uint_eq(v.protocol, 1);
    ck_assert_uint_eq(v.ring, 1);
    ck_assert_str_eq(v.client, "0.1.0");
    memcpy(packet, hello, 48);
    packet[16] = 2; /* protocol 2 to 3 */
    packet[18] = 3;
    ck_assert_int_eq(protocol_parse_hello(packet, 48, &v, &diag), -EPROTO);
    ck_assert_msg(strstr(diag.text, "speaks protocol 2 to 3") && strstr(diag.text, "0.1.0"), "%s", diag.text);
    memcpy(packet, hello, 48);
    packet[20] = packet[22] = 7; /* rings 7 to 7 */
    ck_assert_int_eq(protocol_parse_hello(packet, 48, &v, &diag), -EPROTO);
    ck_assert_msg(strstr(diag.text, "reads rings 7 to 7") != NULL, "%s", diag.text);
    memcpy(packet, hello, 48);
    packet[16] = 0; /* 0 to 9 holds 1 */
    packet[18] = 9;
    ck_assert_int_eq(protocol_parse_hello(packet, 48, &v, &diag), 0);
    ck_assert_uint_eq(v.protocol, 1);
    packet[8] ^= 1;
    ck_assert_int_eq(protocol_parse_hello(packet, 48, &v, &diag), -EPROTO);
    ck_assert_msg(strstr(diag.text, "magic") != NULL, "%s", diag.text);
}
END_TEST

START_TEST(the_highest_common_version) {
    static const struct {
        uint16_t least, most, own_least, own_most;
        int common;
    } cases[] = {{1, 1, 1, 1, 1},
                 {0, 0, 1, 1, -1},
                 {2, 3, 1, 1, -1},
                 {1, 9, 2, 3, 3},
                 {3, 9, 2, 3, 3},
                 {4, 9, 2, 3, -1},
                 {1, 2, 2, 3, 2},
                 {0, 1, 2, 3, -1},
                 {3, 1, 1, 3, -1},
                 {2, 2, 1, 3, 2},
                 {1, 3, 2, 2, 2},
                 {0, 65535, 1, 1, 1},
                 {65535, 65535, 1, 65535, 65535},
                 {1, 0, 0, 1, -1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        ck_assert_int_eq(protocol_common(cases[i].least, cases[i].most, cases[i].own_least, cases[i].own_most),
                         cases[i].common);
}
END_TEST

START_TEST(drain_and_detach) {
    const struct loaderd_drain drain = {{LOADERD_DRAIN, sizeof drain}, 1500, 0};
    struct loaderd_detach detach = {{LOADERD_DETACH, sizeof detach}, 7, ""}, got;
    uint32_t type, ms;
    ck_assert_int_eq(protocol_type(&drain, sizeof drain, &type, &diag), 0);
    ck_assert_uint_eq(type, LOADERD_DRAIN);
    ck_assert_int_eq(protocol_parse_drain(&drain, sizeof drain, &ms, &diag), 0);
    ck_assert_uint_eq(ms, 1500);
    ck_assert_int_eq(protocol_parse_drain(&drain, sizeof drain - 1, &ms, &diag), -EPROTO);
    memset(detach.reason, 'a', sizeof detach.reason);
    ck_assert_int_eq(protocol_type(&detach, sizeof detach, &type, &diag), 0);
    ck_assert_int_eq(protocol_parse_detach(&detach, sizeof detach, &got, &diag), 0);
    ck_assert_uint_eq(got.session, 7);
    ck_assert_uint_eq(strlen(got.reason), sizeof got.reason - 1);
    ck_assert_int_eq(protocol_parse_detach(&detach, sizeof detach - 8, &got, &diag), -EPROTO);
}
END_TEST

START_TEST(hello_version_is_made_printable) {
    struct protocol_versions v;
    uint8_t packet[48];
    memcpy(packet, hello, 48);
    memset(packet + 24, 'x', 24); /* no NUL */
    ck_assert_int_eq(protocol_parse_hello(packet, 48, &v, &diag), 0);
    ck_assert_uint_eq(strlen(v.client), 23);
    packet[25] = '\n';
    ck_assert_int_eq(protocol_parse_hello(packet, 48, &v, &diag), 0);
    ck_assert_str_eq(v.client, "x");
}
END_TEST

START_TEST(open_has_its_parts) {
    struct protocol_open open;
    uint8_t packet[256];
    size_t length = make_open(packet, open_strings, sizeof open_strings);
    ck_assert_uint_eq(length, 130);
    ck_assert_int_eq(protocol_parse_open(packet, length, &open, &diag), 0);
    ck_assert_uint_eq(open.fixed.rank, 1);
    ck_assert_uint_eq(open.fixed.world, 4);
    ck_assert_uint_eq(open.fixed.held, 2);
    ck_assert_uint_eq(open.fixed.epoch, 3);
    ck_assert_uint_eq(open.fixed.step, 5);
    ck_assert_uint_eq(open.fixed.epochs, 10);
    ck_assert_uint_eq(open.fixed.seed, 42);
    ck_assert_uint_eq(open.fixed.global_batch, 256);
    ck_assert_uint_eq(open.fixed.fingerprint[15], 15);
    ck_assert_str_eq(open.name, "train");
    ck_assert_str_eq(open.job, "job-7");
    const char *key = protocol_first_key(&open);
    ck_assert_str_eq(key, "batch=64");
    key = protocol_next_key(&open, key);
    ck_assert_str_eq(key, "shuffle=full");
    ck_assert_ptr_null(protocol_next_key(&open, key));
}
END_TEST

START_TEST(open_without_keys) {
    struct protocol_open open;
    uint8_t packet[256];
    size_t length = make_open(packet, "x\0", 3);
    ck_assert_int_eq(protocol_parse_open(packet, length, &open, &diag), 0);
    ck_assert_str_eq(open.name, "x");
    ck_assert_str_eq(open.job, "");
    ck_assert_ptr_null(protocol_first_key(&open));
}
END_TEST

START_TEST(open_that_lies) {
    static const struct {
        const char *strings;
        size_t length;
        const char *says;
    } cases[] = {
        {"train\0job\0batch=64", 18, "last byte"}, {"train", 6, "without a job"},
        {"train\0\0batch", 13, "key=value"},       {"train\0\0=64", 11, "key=value"},
        {"train\0\0a=b\0", 12, "key=value"}, /* an empty key at the end */
    };
    struct protocol_open open;
    uint8_t packet[256];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t length = make_open(packet, cases[i].strings, cases[i].length);
        ck_assert_int_eq(protocol_parse_open(packet, length, &open, &diag), -EPROTO);
        ck_assert_msg(strstr(diag.text, cases[i].says) != NULL, "case %zu: %s", i, diag.text);
    }
    size_t length = make_open(packet, open_strings, sizeof open_strings);
    packet[12] = 4; /* rank 4 of 4 */
    ck_assert_int_eq(protocol_parse_open(packet, length, &open, &diag), -EINVAL);
    packet[12] = 1;
    packet[9] = 1; /* an unknown flag */
    ck_assert_int_eq(protocol_parse_open(packet, length, &open, &diag), -EPROTO);
    ck_assert_int_eq(protocol_parse_open(packet, 97, &open, &diag), -EPROTO);
}
END_TEST

START_TEST(open_with_too_many_keys) {
    static uint8_t packet[4096];
    char strings[3 + 4 * (PROTOCOL_MAX_KEYS + 1)] = "x\0";
    size_t at = 3;
    for (size_t i = 0; i <= PROTOCOL_MAX_KEYS; i++, at += 4)
        memcpy(strings + at, "a=b", 4);
    struct protocol_open open;
    ck_assert_int_eq(protocol_parse_open(packet, make_open(packet, strings, at - 4), &open, &diag), 0);
    ck_assert_int_eq(protocol_parse_open(packet, make_open(packet, strings, at), &open, &diag), -EPROTO);
}
END_TEST

START_TEST(sample_path) {
    const uint8_t packet[16] = {6, 0, 0, 0, 16, 0, 0, 0, 0x39, 0x30}; /* 12345 */
    uint64_t sample = 0;
    ck_assert_int_eq(protocol_parse_sample_path(packet, 16, &sample, &diag), 0);
    ck_assert_uint_eq(sample, 12345);
    ck_assert_int_eq(protocol_parse_sample_path(packet, 15, &sample, &diag), -EPROTO);
}
END_TEST

START_TEST(errors_go_there_and_back) {
    char packet[64], text[128];
    int code = 0;
    size_t length = protocol_make_error(packet, sizeof packet, -ENOENT, "no pipeline 'x'");
    ck_assert(connection_parse_error(packet, length, &code, text, sizeof text));
    ck_assert_int_eq(code, -ENOENT);
    ck_assert_str_eq(text, "no pipeline 'x'");
    ck_assert(!connection_parse_error(packet, length - 1, &code, text, sizeof text));
    length = protocol_make_error(packet, 24, -EIO, "longer than what fits");
    ck_assert_uint_eq(length, 24);
    ck_assert(connection_parse_error(packet, length, &code, text, sizeof text));
    ck_assert_str_eq(text, "longer ");
    packet[8] = 5; /* no errno: still an error */
    packet[9] = packet[10] = packet[11] = 0;
    ck_assert(connection_parse_error(packet, length, &code, text, sizeof text));
    ck_assert_int_eq(code, -EPROTO);
}
END_TEST

START_TEST(answers_are_checked) {
    struct loaderd_hello_ok ok = {.message = {LOADERD_HELLO_OK, sizeof ok}, .protocol = 1, .ring = 1, .daemon_pid = 77};
    struct loaderd_hello_ok got;
    struct loaderd_opened opened = {.message = {LOADERD_OPENED, sizeof opened}, .session = 3}, got_opened;
    char text[256];
    ck_assert_int_eq(connection_parse_hello_ok(&ok, sizeof ok, &got, text, sizeof text), 0);
    ck_assert_int_eq(got.daemon_pid, 77);
    ck_assert_int_eq(connection_parse_hello_ok(&ok, sizeof ok - 1, &got, text, sizeof text), -EPROTO);
    ck_assert_int_eq(connection_parse_hello_ok(&ok, 3, &got, text, sizeof text), -EPROTO);
    ck_assert_int_eq(connection_parse_opened(&ok, sizeof ok, &got_opened, text, sizeof text), -EPROTO);
    ok.ring = 9;
    ck_assert_int_eq(connection_parse_hello_ok(&ok, sizeof ok, &got, text, sizeof text), -EPROTO);
    ck_assert_msg(strstr(text, "ring 9") != NULL, "%s", text);
    memset(opened.engine, 'e', sizeof opened.engine); /* no NUL */
    ck_assert_int_eq(connection_parse_opened(&opened, sizeof opened, &got_opened, text, sizeof text), 0);
    ck_assert_uint_eq(strlen(got_opened.engine), 15);
}
END_TEST

START_TEST(text_must_end) {
    const char *text;
    uint64_t bytes;
    char error[256];
    struct loaderd_text packet = {.message = {LOADERD_TEXT, sizeof packet}, .bytes = 7, .text = "a/b.jpg"};
    ck_assert_int_eq(connection_parse_text(&packet, sizeof packet, &text, &bytes, error, sizeof error), 0);
    ck_assert_str_eq(text, "a/b.jpg");
    ck_assert_uint_eq(bytes, 7);
    packet.text[7] = 'x';
    ck_assert_int_eq(connection_parse_text(&packet, sizeof packet, &text, &bytes, error, sizeof error), -EPROTO);
}
END_TEST

START_TEST(descriptors_beyond_two_are_closed) {
    int pair[2], fds[2];
    char packet[16];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(4 * sizeof(int))];
    } control = {0};
    struct iovec vector = {.iov_base = "four", .iov_len = 4};
    struct msghdr message = {
        .msg_iov = &vector, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(4 * sizeof(int));
    for (size_t i = 0; i < 4; i++)
        memcpy(CMSG_DATA(c) + i * sizeof(int), &pair[0], sizeof(int));
    ck_assert_int_eq(sendmsg(pair[0], &message, 0), 4);
    int before = dup(0);
    close(before);
    ck_assert_int_eq(connection_receive(pair[1], packet, sizeof packet, fds), 4);
    ck_assert_int_ge(fds[0], 0);
    ck_assert_int_ge(fds[1], 0);
    int after = dup(0);
    ck_assert_int_eq(after, before + 2); /* the third and fourth are gone */
    ck_assert_int_eq(connection_receive(pair[1], packet, sizeof packet, fds), -EAGAIN);
    close(pair[0]);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("protocol");
    TCase *tcase = tcase_create("all");
    tcase_add_test(tcase, type_needs_the_right_length);
    tcase_add_test(tcase, one_byte_wakes);
    tcase_add_test(tcase, daemon_messages_are_not_the_clients);
    tcase_add_test(tcase, hello_negotiates);
    tcase_add_test(tcase, the_highest_common_version);
    tcase_add_test(tcase, drain_and_detach);
    tcase_add_test(tcase, hello_version_is_made_printable);
    tcase_add_test(tcase, open_has_its_parts);
    tcase_add_test(tcase, open_without_keys);
    tcase_add_test(tcase, open_that_lies);
    tcase_add_test(tcase, open_with_too_many_keys);
    tcase_add_test(tcase, sample_path);
    tcase_add_test(tcase, errors_go_there_and_back);
    tcase_add_test(tcase, answers_are_checked);
    tcase_add_test(tcase, text_must_end);
    tcase_add_test(tcase, descriptors_beyond_two_are_closed);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
