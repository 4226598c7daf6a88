/* SPDX-License-Identifier: MIT */
/*
 * access.c and the key `allow`: what the kernel says of a peer against lists of names and numbers. Users and groups that
 * every machine has are looked up; others are numbers.
 */
#include "access.h"

#include <check.h>
#include <errno.h>
#include <grp.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/util.h"
#include "config.h"

static struct access *list(const char *allow) {
    struct access *access;
    struct diag unknown = DIAG_INIT;
    ck_assert_int_eq(access_new(allow, &access, &unknown), 0);
    ck_assert_msg(unknown.code == 0, "%s", unknown.text);
    return access;
}

#define OWNER 4242u
static bool may(const char *allow, uid_t uid, gid_t gid, size_t groups, const gid_t *group) {
    struct access *access = list(allow);
    bool answer = access_allows(access, OWNER, uid, gid, group, groups);
    access_free(access);
    return answer;
}

START_TEST(lists) {
    const gid_t groups[] = {70, 80, 90};
    ck_assert(may("all", 5, 5, 0, NULL));
    ck_assert(!may("none", 5, 5, 0, NULL));
    ck_assert(may("none", 0, 5, 0, NULL)); /* root */
    ck_assert(may("none", OWNER, 5, 0, NULL));
    ck_assert(may("5", 5, 6, 0, NULL));
    ck_assert(may(" 4, 5\t7", 5, 6, 0, NULL));
    ck_assert(!may("4,7", 5, 6, 0, NULL));
    ck_assert(!may("6", 5, 6, 0, NULL)); /* a user is no group */
    ck_assert(may("@6", 5, 6, 0, NULL));
    ck_assert(!may("@5", 5, 6, 0, NULL));
    ck_assert(may("@90", 5, 6, 3, groups));
    ck_assert(!may("@90", 5, 6, 2, groups));
    ck_assert(!may("90", 5, 6, 3, groups));
    ck_assert(may("1,@2,@80", 5, 6, 3, groups));
}
END_TEST

START_TEST(names) {
    ck_assert(may("root", 0, 0, 0, NULL));
    const struct passwd *daemon = getpwnam("daemon"); /* in base-passwd and its likes */
    if (daemon) {
        ck_assert(may("daemon", daemon->pw_uid, 5, 0, NULL));
        ck_assert(!may("daemon", daemon->pw_uid + 1, 5, 0, NULL));
    }
    const struct group *group = getgrnam("daemon");
    if (group)
        ck_assert(may("@daemon", 5, group->gr_gid, 0, NULL));
    struct access *access;
    struct diag unknown = DIAG_INIT;
    ck_assert_int_eq(access_new("no-such-user-here, 7, @no-such-group", &access, &unknown), 0);
    ck_assert_int_eq(unknown.code, -ENOENT);
    ck_assert_str_eq(unknown.text, "allow: there is no user 'no-such-user-here' on this machine");
    ck_assert(access_allows(access, OWNER, 7, 5, NULL, 0)); /* the others count */
    ck_assert(!access_allows(access, OWNER, 8, 5, NULL, 0));
    access_free(access);
    unknown = (struct diag)DIAG_INIT;
    ck_assert_int_eq(access_new("4294967295", &access, &unknown), 0); /* (uid_t)-1 is nobody */
    ck_assert_int_eq(unknown.code, -ENOENT);
    ck_assert(!access_allows(access, OWNER, UINT32_MAX, UINT32_MAX, NULL, 0));
    access_free(access);
}
END_TEST

/* The key: what config.c lets through. */
START_TEST(key) {
    static const char *const good[] = {"all", "none", "alice", "@vision", "alice, bob @vision", "1000 @100", "a.b-c_d"};
    static const char *const bad[] = {"",        " ",   ",",   "@",   "all, bob", "none,none",
                                      "al ice!", "a/b", "@@x", "x@y", "user$"};
    struct pipeline_config config;
    struct diag diag = DIAG_INIT;
    ck_assert_int_eq(pipeline_config_init(&config, "x"), 0);
    ck_assert_str_eq(config.allow, "all");
    for (size_t i = 0; i < ARRAY_SIZE(good); i++)
        ck_assert_msg(pipeline_config_set(&config, "allow", good[i], &diag) == 0, "%s: %s", good[i], diag.text);
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        ck_assert_msg(pipeline_config_set(&config, "allow", bad[i], &diag) == -EINVAL, "%s", bad[i]);
    char name[80];
    memset(name, 'a', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    ck_assert_int_eq(pipeline_config_set(&config, "allow", name, &diag), -EINVAL);
    ck_assert_str_eq(config.allow, good[ARRAY_SIZE(good) - 1]); /* the last good one */
    ck_assert_int_eq(pipeline_config_let(&config, "allow", &diag), -EACCES);
    const char *at = "alice,@vision 7";
    struct config_allowed one;
    ck_assert(config_next_allowed(&at, &one) && !one.is_group && strcmp(one.name, "alice") == 0);
    ck_assert(config_next_allowed(&at, &one) && one.is_group && strcmp(one.name, "vision") == 0);
    ck_assert(config_next_allowed(&at, &one) && !one.is_group && strcmp(one.name, "7") == 0);
    ck_assert(!config_next_allowed(&at, &one));
    pipeline_config_deinit(&config);
}
END_TEST

static void format_id(char *text, size_t size, const char *prefix, uint32_t id) {
    snprintf(text, size, "%s%u", prefix, id);
}

/* The peer of a socket pair is this very process: its user, its main group, each further one. */
START_TEST(peer) {
    int ends[2];
    char text[32];
    gid_t groups[NGROUPS_MAX];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
    int count = getgroups(NGROUPS_MAX, groups);
    ck_assert_int_ge(count, 0);
    groups[count++] = getegid();
    const uid_t other = geteuid() + 1;
    for (int i = 0; i < count; i++) {
        format_id(text, sizeof text, "@", groups[i]);
        struct access *access = list(text);
        ck_assert_msg(access_allows_peer(access, other, ends[0]), "%s", text);
        access_free(access);
    }
    format_id(text, sizeof text, "", geteuid());
    struct access *mine = list(text);
    ck_assert(access_allows_peer(mine, other, ends[0]));
    access_free(mine);
    struct access *none = list("none");
    ck_assert_int_eq(access_allows_peer(none, other, ends[0]), geteuid() == 0);
    ck_assert(access_allows_peer(none, geteuid(), ends[0]));
    ck_assert(!access_allows_peer(none, other, STDIN_FILENO)); /* no socket, nobody */
    access_free(none);
    struct access *all = list("all");
    ck_assert(access_is_open(all) && access_allows_peer(all, other, -1));
    access_free(all);
    close(ends[0]);
    close(ends[1]);
}
END_TEST

/* More groups than the first question has room for, as somebody who is not root: only root can arrange that. */
static int in_many_groups(void) {
    gid_t groups[200];
    int ends[2];
    for (size_t i = 0; i < ARRAY_SIZE(groups); i++)
        groups[i] = (gid_t)(60000 + i);
    if (setgroups(ARRAY_SIZE(groups), groups) < 0 || setgid(59999) < 0 || setuid(59999) < 0)
        return 77;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) < 0)
        return 1;
    struct access *in = list("@60199"), *out = list("@60200, 59998");
    return access_allows_peer(in, 1, ends[0]) && !access_allows_peer(out, 1, ends[0]) ? 0 : 2;
}

START_TEST(many_groups) {
    int status;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        _exit(in_many_groups());
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        fprintf(stderr, "check_access: only root can set groups; many_groups skipped\n");
    else
        ck_assert_int_eq(WEXITSTATUS(status), 0);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("access");
    TCase *all = tcase_create("access");
    tcase_add_test(all, lists);
    tcase_add_test(all, names);
    tcase_add_test(all, key);
    tcase_add_test(all, peer);
    tcase_add_test(all, many_groups);
    suite_add_tcase(suite, all);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
