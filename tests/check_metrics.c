/* SPDX-License-Identifier: MIT */
/* The metrics page's pure parts: escapes of labels as Prometheus' text format 0.0.4 has them, and where the page may be. */
#include <check.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include "exporter.h"
#include "metrics.h"

static const struct {
    const char *value, *label;
} labels[] = {
    {"", ""},
    {"imagenet-train", "imagenet-train"},
    {"a\\b\"c\nd", "a\\\\b\\\"c\\nd"},
    {"gr\xc3\xbc\xc3\x9f", "gr\xc3\xbc\xc3\x9f"},
    {"\xff\xc3(", "\xef\xbf\xbd\xef\xbf\xbd("},               /* no UTF-8 */
    {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, /* a surrogate */
    {"x\xe2\x82", "x\xef\xbf\xbd\xef\xbf\xbd"},               /* cut */
    {"tab\there", "tab\there"},
};

START_TEST(labels_are_escaped) {
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    metrics_put_label(out, labels[_i].value);
    ck_assert_int_eq(fclose(out), 0);
    ck_assert_str_eq(text, labels[_i].label);
    free(text);
}
END_TEST

static const struct {
    const char *text;
    bool everywhere;
    int result, family;
    unsigned port;
} addresses[] = {
    {"127.0.0.1:9100", false, 0, AF_INET, 9100},
    {"127.1.2.3:0", false, 0, AF_INET, 0},
    {"localhost:65535", false, 0, AF_INET, 65535},
    {"[::1]:9100", false, 0, AF_INET6, 9100},
    {"unix:/run/loaderd/metrics", false, 0, AF_UNIX, 0},
    {"0.0.0.0:9100", false, -EACCES, 0, 0},
    {"0.0.0.0:9100", true, 0, AF_INET, 9100},
    {"[::]:9100", false, -EACCES, 0, 0},
    {"[::]:9100", true, 0, AF_INET6, 9100},
    {"[::ffff:127.0.0.1]:9100", false, -EACCES, 0, 0},
    {"10.0.0.1:80", false, -EACCES, 0, 0},
    {"128.0.0.1:80", false, -EACCES, 0, 0},
    {"", false, -EINVAL, 0, 0},
    {"9100", false, -EINVAL, 0, 0},
    {":9100", false, -EINVAL, 0, 0},
    {"127.0.0.1:", false, -EINVAL, 0, 0},
    {"127.0.0.1:65536", false, -EINVAL, 0, 0},
    {"127.0.0.1:-1", false, -EINVAL, 0, 0},
    {"127.0.0.1:9100x", false, -EINVAL, 0, 0},
    {"127.0.0.1:00000000000000009100", false, -EINVAL, 0, 0},
    {"::1:9100", false, -EINVAL, 0, 0},
    {"[::1:9100", false, -EINVAL, 0, 0},
    {"[]:9100", false, -EINVAL, 0, 0},
    {"example.org:9100", true, -EINVAL, 0, 0},
    {"unix:relative", false, -EINVAL, 0, 0},
    {"unix:", false, -EINVAL, 0, 0},
};

START_TEST(addresses_are_loopback_unless_forced) {
    struct exporter_address a = {0};
    struct diag diag = DIAG_INIT;
    int r = exporter_parse(addresses[_i].text, addresses[_i].everywhere, &a, &diag);
    ck_assert_msg(r == addresses[_i].result, "'%s': %d, %s", addresses[_i].text, r, diag.text);
    ck_assert(r == 0 || (diag.code == r && strstr(diag.text, "metrics")));
    ck_assert_int_eq(a.address.ss_family, addresses[_i].family);
    if (a.address.ss_family == AF_INET)
        ck_assert_uint_eq(ntohs(((struct sockaddr_in *)&a.address)->sin_port), addresses[_i].port);
    if (a.address.ss_family == AF_INET6)
        ck_assert_uint_eq(ntohs(((struct sockaddr_in6 *)&a.address)->sin6_port), addresses[_i].port);
    if (a.address.ss_family == AF_UNIX)
        ck_assert_str_eq(((struct sockaddr_un *)&a.address)->sun_path, addresses[_i].text + 5);
}
END_TEST

START_TEST(long_paths_are_refused) {
    struct exporter_address a;
    struct diag diag = DIAG_INIT;
    char text[200] = "unix:/";
    memset(text + 6, 'x', 150);
    ck_assert_int_eq(exporter_parse(text, false, &a, &diag), -EINVAL);
    ck_assert(strstr(diag.text, "107") != NULL);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("metrics");
    TCase *tests = tcase_create("pure");
    tcase_add_loop_test(tests, labels_are_escaped, 0, sizeof labels / sizeof *labels);
    tcase_add_loop_test(tests, addresses_are_loopback_unless_forced, 0, sizeof addresses / sizeof *addresses);
    tcase_add_test(tests, long_paths_are_refused);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
