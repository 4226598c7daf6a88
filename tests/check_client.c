/* SPDX-License-Identifier: MIT */
/*
 * Parts of libloaderd that need no daemon: rank from the environment, names and paths, job names, options by size,
 * dtypes, failed opens. Values for the launchers are those that their manuals print (torchrun, Open MPI, MPICH, srun).
 */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../client/private.h"
#include "../client/rank.h"
#include "config.h"
#include <loaderd/abi/ring.h>
#include <loaderd/loaderd.h>

static char error[512];
static struct rank rank;

static void clear_environment(void) {
    static const char *const names[] = {
        "RANK",           "WORLD_SIZE",     "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",    "PMI_RANK",
        "PMI_SIZE",       "SLURM_PROCID",   "SLURM_NTASKS",         "SLURM_STEP_NUM_TASKS",    "SLURM_STEP_ID",
        "SLURM_JOB_ID",   "MASTER_ADDR",    "MASTER_PORT",          "OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE",
        "LOADERD_SOCKET", "LOADERD_DAEMON", "XDG_RUNTIME_DIR"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unsetenv(names[i]);
    error[0] = '\0';
}

static void expect_rank(int64_t given, int64_t world, uint32_t want, uint32_t want_world, const char *source) {
    int r = rank_find(given, world, &rank, error, sizeof error);
    ck_assert_msg(r == 0, "%d %s", r, error);
    ck_assert_uint_eq(rank.rank, want);
    ck_assert_uint_eq(rank.world, want_world);
    ck_assert_str_eq(rank.source, source);
}

START_TEST(rank_defaults_to_the_only_one) {
    expect_rank(-1, -1, 0, 1, "default");
    expect_rank(0, 0, 0, 1, "default"); /* a zeroed struct */
}
END_TEST

START_TEST(rank_given) {
    setenv("RANK", "5", 1);
    setenv("WORLD_SIZE", "8", 1);
    expect_rank(2, 4, 2, 4, "options");
    expect_rank(0, 4, 0, 4, "options");
    ck_assert_int_eq(rank_find(4, 4, &rank, error, sizeof error), -EINVAL);
    ck_assert_msg(strstr(error, "rank 4 of 4") != NULL, "%s", error);
    ck_assert_int_eq(rank_find(3, -1, &rank, error, sizeof error), -EINVAL);
    ck_assert_int_eq(rank_find(-1, 4, &rank, error, sizeof error), -EINVAL);
    ck_assert_int_eq(rank_find(1, INT64_C(1) << 40, &rank, NULL, 0), -EINVAL);
}
END_TEST

START_TEST(rank_of_launchers_in_order) {
    setenv("SLURM_PROCID", "1", 1);
    setenv("SLURM_NTASKS", "2", 1);
    setenv("SLURM_STEP_ID", "0", 1);
    expect_rank(-1, -1, 1, 2, "SLURM_PROCID");
    setenv("PMI_RANK", "2", 1);
    setenv("PMI_SIZE", "3", 1);
    expect_rank(-1, -1, 2, 3, "PMI_RANK");
    setenv("OMPI_COMM_WORLD_RANK", "3", 1);
    setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
    expect_rank(-1, -1, 3, 4, "OMPI_COMM_WORLD_RANK");
    setenv("RANK", "6", 1); /* alone it says nothing */
    expect_rank(-1, -1, 3, 4, "OMPI_COMM_WORLD_RANK");
    setenv("WORLD_SIZE", "8", 1);
    expect_rank(-1, -1, 6, 8, "RANK");
}
END_TEST

/* In an allocation's shell and in a batch script SLURM_NTASKS counts tasks that nobody started. */
START_TEST(rank_of_slurm_only_in_a_step) {
    setenv("SLURM_PROCID", "0", 1);
    setenv("SLURM_NTASKS", "16", 1);
    expect_rank(-1, -1, 0, 1, "default");
    static const char *const special[] = {"4294967290", "4294967291", "4294967292", "4294967293"}; /* slurm.h */
    for (int i = 0; i < 4; i++) {
        setenv("SLURM_STEP_ID", special[i], 1);
        expect_rank(-1, -1, 0, 1, "default");
    }
    setenv("SLURM_STEP_ID", "3", 1);
    setenv("SLURM_PROCID", "7", 1);
    expect_rank(-1, -1, 7, 16, "SLURM_PROCID");
    setenv("SLURM_STEP_NUM_TASKS", "8", 1); /* a smaller step of the same job */
    expect_rank(-1, -1, 7, 8, "SLURM_PROCID");
}
END_TEST

START_TEST(rank_that_is_no_number) {
    static const char *const bad[] = {"", "x", "-1", " 1", "1x", "4294967296", "99999999999999999999"};
    setenv("WORLD_SIZE", "8", 1);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        setenv("RANK", bad[i], 1);
        ck_assert_int_eq(rank_find(-1, -1, &rank, error, sizeof error), -EINVAL);
        ck_assert_msg(strstr(error, "RANK=") != NULL, "%s", error);
    }
    setenv("RANK", "8", 1);
    ck_assert_int_eq(rank_find(-1, -1, &rank, error, sizeof error), -EINVAL);
    ck_assert_msg(strstr(error, "rank 8 of 8 (from RANK)") != NULL, "%s", error);
}
END_TEST

START_TEST(names_and_paths) {
    ck_assert(!private_is_path("imagenet-train"));
    ck_assert(!private_is_path("a.b"));
    ck_assert(!private_is_path("synthetic"));
    ck_assert(private_is_path("./data"));
    ck_assert(private_is_path("wds-*.tar"));
    ck_assert(private_is_path("wds-{000..003}.tar"));
    ck_assert(private_is_path("."));
    ck_assert(private_is_path("data/train"));
    ck_assert(private_is_path("/data"));
    ck_assert(private_is_path("synthetic:10x3:u8"));
}
END_TEST

static void expect_absolute(const char *name, const char *want) {
    char *got = private_absolute(name);
    ck_assert_str_eq(got, want);
    free(got);
}

START_TEST(paths_become_absolute) {
    ck_assert_int_eq(chdir("/usr"), 0);
    expect_absolute("/data", "/data");
    expect_absolute("./data", "/usr/data");
    expect_absolute("data/x", "/usr/data/x");
    expect_absolute("../x", "/usr/../x");
    expect_absolute("a/b.bin,c*.bin,/d/e", "/usr/a/b.bin,/usr/c*.bin,/d/e");
    expect_absolute("synthetic:10x3:u8", "synthetic:10x3:u8");
    expect_absolute("a/b + /c/d + ./e,f", "/usr/a/b + /c/d + /usr/e,/usr/f");
    expect_absolute("synthetic:10x3:u8 + synthetic:20x3:u8", "synthetic:10x3:u8 + synthetic:20x3:u8");
    expect_absolute("a+b", "/usr/a+b");
    expect_absolute("image=a.npy,label=/b/c.npy", "image=/usr/a.npy,label=/b/c.npy");
    expect_absolute("image=/x/a.npy + image=./b.npy", "image=/x/a.npy + image=/usr/b.npy");
    expect_absolute("a/b + synthetic:10x3:u8 +  /c + d,e", "/usr/a/b + synthetic:10x3:u8 + /c + /usr/d,/usr/e");
    char directory[] = "/tmp/check-client-XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(directory));
    ck_assert_int_eq(chdir(directory), 0);
    ck_assert_int_eq(mkdir("a,b", 0700), 0); /* a name with a comma, not two */
    char want[64];
    snprintf(want, sizeof want, "%s/a,b", directory);
    expect_absolute("./a,b", want);
    rmdir("a,b");
    ck_assert_int_eq(chdir("/"), 0);
    rmdir(directory);
}
END_TEST

START_TEST(keys_that_are_paths) {
    ck_assert(private_is_path_key("labels=l.npy"));
    ck_assert(private_is_path_key("classes=x/y"));
    ck_assert(private_is_path_key("index=x"));
    ck_assert(!private_is_path_key("index=auto"));
    ck_assert(!private_is_path_key("index=none"));
    ck_assert(!private_is_path_key("labels=/l.npy"));
    ck_assert(private_is_path_key("labels=/l.npy + m.npy"));
    ck_assert(private_is_path_key("subset=ids.txt"));
    ck_assert(!private_is_path_key("subset=0-99, 200"));
    ck_assert(!private_is_path_key("labels="));
    ck_assert(private_is_path_key("masks=m"));
    ck_assert(private_is_path_key("boxes=labels"));
    ck_assert(!private_is_path_key("boxes=beside"));
    ck_assert(!private_is_path_key("batch=3"));
    ck_assert(!private_is_path_key("label-dtype=i64"));
}
END_TEST

/* The library has its own list, because it sees no header of the daemon: it must be the daemon's. */
START_TEST(keys_of_the_daemon) {
    static char text[65536];
    FILE *out = fmemopen(text, sizeof text, "w");
    config_print_keys(out);
    fclose(out);
    uint32_t daemon = 0, pipeline = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        char section[32], key[64], with_value[80];
        ck_assert_int_eq(sscanf(line, "%31[^\t]\t%63[^\t]", section, key), 2);
        snprintf(with_value, sizeof with_value, "%s=x", key);
        bool is_daemon = strcmp(section, "daemon") == 0;
        ck_assert_msg(private_is_daemon_key(key) == is_daemon, "%s", line);
        ck_assert_msg(private_is_daemon_key(with_value) == is_daemon, "%s", line);
        daemon += is_daemon;
        pipeline += !is_daemon;
    }
    ck_assert_uint_gt(daemon, 5);
    ck_assert_uint_gt(pipeline, 20);
    ck_assert(private_is_daemon_key("max_pixels=3"));
    ck_assert(!private_is_daemon_key("worker"));
    ck_assert(!private_is_daemon_key("workers-x=3"));
}
END_TEST

START_TEST(jobs) {
    char a[256], b[256];
    private_job(NULL, a, sizeof a);
    private_job(NULL, b, sizeof b);
    ck_assert_str_ne(a, b); /* no launcher: one for each loader */
    ck_assert_ptr_nonnull(strstr(a, "pid-"));
    setenv("PMIX_NAMESPACE", "prterun-host-7", 1);
    ck_assert_str_eq(private_job(NULL, a, sizeof a), "pmix-prterun-host-7");
    setenv("SLURM_JOB_ID", "123", 1);
    ck_assert_str_eq(private_job(NULL, a, sizeof a), "slurm-123");
    setenv("SLURM_STEP_ID", "4", 1);
    ck_assert_str_eq(private_job(NULL, a, sizeof a), "slurm-123-4");
    setenv("MASTER_ADDR", "10.0.0.1", 1);
    ck_assert_str_eq(private_job(NULL, a, sizeof a), "slurm-123-4");
    setenv("MASTER_PORT", "29500", 1);
    ck_assert_str_eq(private_job(NULL, a, sizeof a), "master-10.0.0.1-29500");
    ck_assert_str_eq(private_job("mine", a, sizeof a), "mine");
}
END_TEST

START_TEST(job_names_become_file_names) {
    struct private_daemon a, b;
    char directory[] = "/tmp/check-client-XXXXXX", want[128], longer[300];
    ck_assert_ptr_nonnull(mkdtemp(directory));
    setenv("XDG_RUNTIME_DIR", directory, 1);
    setenv("LOADERD_DAEMON", "/bin/true", 1);
    ck_assert_int_eq(private_init(&a, "job-1.x", NULL, error, sizeof error), 0);
    snprintf(want, sizeof want, "%s/loaderd/private-job-1.x.sock", directory);
    ck_assert_str_eq(a.socket, want);
    ck_assert_str_eq(a.program, "/bin/true");
    ck_assert_int_eq(private_init(&a, "../../etc/x", NULL, error, sizeof error), 0);
    ck_assert_int_eq(private_init(&b, ".._.._etc_x", NULL, error, sizeof error), 0);
    ck_assert_str_ne(a.socket, b.socket);
    ck_assert_ptr_null(strchr(a.socket + strlen(directory) + strlen("/loaderd/"), '/'));
    memset(longer, 'j', sizeof longer);
    longer[sizeof longer - 1] = '\0';
    ck_assert_int_eq(private_init(&a, longer, NULL, error, sizeof error), 0);
    ck_assert_uint_le(strlen(a.socket), CONNECTION_PATH_MAX);
    longer[sizeof longer - 2] = 'k';
    ck_assert_int_eq(private_init(&b, longer, NULL, error, sizeof error), 0);
    ck_assert_str_ne(a.socket, b.socket);
    char path[64];
    struct stat st;
    snprintf(path, sizeof path, "%s/loaderd", directory);
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_uint_eq(st.st_mode & 0777, 0700);
    rmdir(path);
    rmdir(directory);
}
END_TEST

/* Somebody else's directory of that name, or one that others may write to, is not used. */
START_TEST(a_directory_of_others_is_refused) {
    struct private_daemon d;
    char directory[] = "/tmp/check-client-XXXXXX", path[64];
    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/loaderd", directory);
    setenv("XDG_RUNTIME_DIR", directory, 1);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    ck_assert_int_eq(chmod(path, 0777), 0);
    int r = private_init(&d, "job", "/bin/true", error, sizeof error);
    ck_assert_msg(r < 0 || strncmp(d.socket, "/tmp/loaderd-", 13) == 0, "%s", d.socket); /* falls back, not in */
    rmdir(path);
    rmdir(directory);
}
END_TEST

START_TEST(programs_are_looked_for) {
    struct private_daemon d;
    setenv("LOADERD_DAEMON", "/no/such/program", 1);
    ck_assert_int_eq(private_init(&d, "job", NULL, error, sizeof error), -ENOENT);
    ck_assert_msg(strstr(error, "/no/such/program (LOADERD_DAEMON)") != NULL, "%s", error);
    ck_assert_int_eq(private_init(&d, "job", "/bin/true", error, sizeof error), 0);
    ck_assert_str_eq(d.program, "/bin/true");
}
END_TEST

static int try_open(const char *name, const struct loaderd_options *options) {
    struct loaderd *loader = (struct loaderd *)(uintptr_t)1;
    int r = loaderd_open(&loader, name, options, error, sizeof error);
    ck_assert_int_lt(r, 0);
    ck_assert_uint_eq((uintptr_t)loader, 1); /* untouched */
    ck_assert_uint_gt(strlen(error), 10);
    return r;
}

START_TEST(options_carry_their_size) {
    struct {
        struct loaderd_options options;
        uint64_t newer;
    } o = {LOADERD_OPTIONS_INIT, 0};
    setenv("LOADERD_SOCKET", "/no/such/socket", 1);
    o.options.size = 0;
    ck_assert_int_eq(try_open("x", &o.options), -EINVAL);
    ck_assert_msg(strstr(error, "LOADERD_OPTIONS_INIT") != NULL, "%s", error);
    o.options.size = sizeof o; /* a newer header that asks for nothing new */
    ck_assert_int_eq(try_open("x", &o.options), -ECONNREFUSED);
    o.newer = 1;
    ck_assert_int_eq(try_open("x", &o.options), -EINVAL);
    ck_assert_msg(strstr(error, "newer libloaderd") != NULL, "%s", error);
    o.options.size = offsetof(struct loaderd_options, rank); /* an older header: what follows is not read */
    o.options.rank = 99;
    o.options.group = "x";
    ck_assert_int_eq(try_open("x", &o.options), -ECONNREFUSED);
}
END_TEST

START_TEST(failed_opens_have_a_sentence) {
    setenv("LOADERD_SOCKET", "/no/such/socket", 1);
    ck_assert_int_eq(try_open("x", NULL), -ECONNREFUSED);
    ck_assert_msg(strstr(error, "$LOADERD_SOCKET = /no/such/socket (No such file") != NULL, "%s", error);
    ck_assert_int_eq(try_open("", NULL), -EINVAL);
    unsetenv("LOADERD_SOCKET");
    setenv("XDG_RUNTIME_DIR", "/no/such", 1);
    ck_assert_int_eq(try_open("x", NULL), -ECONNREFUSED);
    ck_assert_msg(strstr(error, "/no/such/loaderd/socket") && strstr(error, "/run/loaderd/socket"), "%s", error);
    struct loaderd *loader;
    ck_assert_int_eq(loaderd_open(&loader, "x", NULL, NULL, 0), -ECONNREFUSED);
    ck_assert_int_eq(loaderd_open(&loader, "x", NULL, error, 5), -ECONNREFUSED);
    ck_assert_uint_eq(strlen(error), 4);
    char *big = malloc(70000);
    memset(big, 'b', 69999);
    big[69999] = '\0';
    ck_assert_int_eq(try_open(big, NULL), -EINVAL);
    free(big);
    loaderd_close(NULL);
}
END_TEST

START_TEST(items_of_a_row) {
    static const char text[2][4] = {"one", ""};
    static const float boxes[2][3][5];
    static const int32_t lengths[2] = {3, 0}, counts[2] = {0, 4};
    const struct loaderd_field fields[] = {
        {"text", LOADERD_U8, 2, {2, 4}, text, sizeof text},
        {"boxes", LOADERD_F32, 3, {2, 3, 5}, boxes, sizeof boxes},
        {"label", LOADERD_I32, 1, {2}, counts, sizeof counts},
        {"text-length", LOADERD_I32, 1, {2}, lengths, sizeof lengths},
        {"boxes-count", LOADERD_I32, 1, {2}, counts, sizeof counts},
    };
    const struct loaderd_batch batch = {.rows = 2, .nfields = 5, .fields = fields};
    const void *item = NULL;
    ck_assert_int_eq(loaderd_row_items(&batch, "text", 0, &item), 3);
    ck_assert_ptr_eq(item, text[0]);
    ck_assert_int_eq(loaderd_row_items(&batch, "text", 1, &item), 0);
    ck_assert_ptr_eq(item, text[1]);
    ck_assert_int_eq(loaderd_row_items(&batch, "boxes", 0, &item), 0);
    ck_assert_ptr_eq(item, boxes[0]);
    ck_assert_int_eq(loaderd_row_items(&batch, "boxes", 1, &item), -EBADMSG);
    ck_assert_int_eq(loaderd_row_items(&batch, "text", 2, &item), -ERANGE);
    ck_assert_int_eq(loaderd_row_items(&batch, "label", 0, &item), -ENOENT);
    ck_assert_int_eq(loaderd_row_items(&batch, "none", 0, &item), -ENOENT);
}
END_TEST

START_TEST(dtypes) {
    static const struct {
        uint32_t dtype;
        const char *name;
        size_t size;
    } all[] = {{LOADERD_U8, "u8", 1},   {LOADERD_I8, "i8", 1},     {LOADERD_U16, "u16", 2}, {LOADERD_I16, "i16", 2},
               {LOADERD_U32, "u32", 4}, {LOADERD_I32, "i32", 4},   {LOADERD_U64, "u64", 8}, {LOADERD_I64, "i64", 8},
               {LOADERD_F16, "f16", 2}, {LOADERD_BF16, "bf16", 2}, {LOADERD_F32, "f32", 4}, {LOADERD_F64, "f64", 8}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        ck_assert_str_eq(loaderd_dtype_name(all[i].dtype), all[i].name);
        ck_assert_uint_eq(loaderd_dtype_size(all[i].dtype), all[i].size);
    }
    ck_assert_ptr_null(loaderd_dtype_name(0));
    ck_assert_ptr_null(loaderd_dtype_name(13));
    ck_assert_uint_eq(loaderd_dtype_size(0), 0);
    ck_assert_uint_eq(loaderd_dtype_size(UINT32_MAX), 0);
    ck_assert_uint_gt(strlen(loaderd_version()), 0);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("client");
    TCase *tcase = tcase_create("all");
    tcase_add_checked_fixture(tcase, clear_environment, NULL);
    tcase_set_timeout(tcase, 30);
    tcase_add_test(tcase, rank_defaults_to_the_only_one);
    tcase_add_test(tcase, rank_given);
    tcase_add_test(tcase, rank_of_launchers_in_order);
    tcase_add_test(tcase, rank_of_slurm_only_in_a_step);
    tcase_add_test(tcase, rank_that_is_no_number);
    tcase_add_test(tcase, names_and_paths);
    tcase_add_test(tcase, paths_become_absolute);
    tcase_add_test(tcase, keys_that_are_paths);
    tcase_add_test(tcase, keys_of_the_daemon);
    tcase_add_test(tcase, jobs);
    tcase_add_test(tcase, job_names_become_file_names);
    tcase_add_test(tcase, a_directory_of_others_is_refused);
    tcase_add_test(tcase, programs_are_looked_for);
    tcase_add_test(tcase, options_carry_their_size);
    tcase_add_test(tcase, failed_opens_have_a_sentence);
    tcase_add_test(tcase, items_of_a_row);
    tcase_add_test(tcase, dtypes);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
