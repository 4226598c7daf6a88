/* SPDX-License-Identifier: MIT */
/*
 * loaderctl: the command line. One table names the options of the tool with their commands; every configuration key is an
 * option, too (config.c has that table). Parses, checks, calls the command; does nothing else. One thread.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/near.h"
#include "base/util.h"
#include "loaderctl.h"
#include "tune_choice.h"

enum command_bit {
    BENCH = 1,
    DIGEST = 2,
    SHOW = 4,
    INSPECT = 8,
    STATUS = 16,
    VERSION = 32,
    PACK = 64,
    VERIFY = 128,
    UNPACK = 256,
    DRAIN = 512,
    DETACH = 1024,
    DOCTOR = 1 << 16,
    TUNE = 1 << 17,
    STALLS = 2048,
    TOP = 4096,
    TRACE = 8192,
};
#define ON_DAEMON (STATUS | DRAIN | DETACH | STALLS | TOP | TRACE) /* talk to a running one */
#define ON_DATA                                                                                                        \
    (BENCH | DIGEST | SHOW | INSPECT | PACK | VERIFY | UNPACK | DOCTOR |                                               \
     TUNE) /* take DATASET-OR-PIPELINE and configuration keys */

struct command {
    const char *name;
    unsigned bit;
    const char *synopsis, *help;
    int (*run)(const struct options *options);
};

static const struct command commands[] = {
    {"bench", BENCH, "DATASET-OR-PIPELINE", "measure how fast batches come, and what binds", command_bench},
    {"tune", TUNE, "DATASET-OR-PIPELINE", "measure what settings bring, and write the best as a configuration",
     command_tune},
    {"digest", DIGEST, "DATASET-OR-PIPELINE", "one line a batch with the CRC-32 of every field", command_digest},
    {"show", SHOW, "DATASET-OR-PIPELINE", "draw a batch with its labels as a PNG picture", command_show},
    {"inspect", INSPECT, "DATASET-OR-PIPELINE", "tell what a dataset holds, and its first bad sample", command_inspect},
    {"verify", VERIFY, "DATASET-OR-PIPELINE", "tell which samples are damaged", command_verify},
    {"pack", PACK, "DATASET-OR-PIPELINE PACK", "make a pack, which is read faster", command_pack},
    {"unpack", UNPACK, "PACK FOLDER", "make files of a pack's records", command_unpack},
    {"status", STATUS, "", "tell what a running daemon serves", command_status},
    {"top", TOP, "", "watch pipelines, sessions, and what binds them", command_top},
    {"trace", TRACE, "", "record what every worker does, as Chrome's trace events", command_trace},
    {"stalls", STALLS, "", "tell for which steps trainers waited, and why", command_stalls},
    {"drain", DRAIN, "", "let a running daemon end, its sessions go to the next one", command_drain},
    {"detach", DETACH, "SESSION", "end one session of a running daemon", command_detach},
    {"doctor", DOCTOR, "[DATASET-OR-PIPELINE]", "what this machine lacks, what that costs, and the remedy",
     command_doctor},
    {"version", VERSION, "", "versions, codec, SIMD level, read engines", command_version},
};

/* Options that are no configuration keys. */
struct option {
    const char *name, *argument, *help;
    unsigned commands;
    int (*set)(struct options *options, const char *value, struct diag *diag);
};

static int parse_u64(const char *text, uint64_t *ret) {
    char *end;
    errno = 0;
    if (*text < '0' || *text > '9')
        return -EINVAL;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno || *end)
        return -EINVAL;
    *ret = value;
    return 0;
}

static int parse_u32(const char *text, uint32_t *ret) {
    uint64_t value;
    if (parse_u64(text, &value) < 0 || value > UINT32_MAX)
        return -EINVAL;
    *ret = (uint32_t)value;
    return 0;
}

static int set_config(struct options *options, const char *value, struct diag *diag) {
    (void)diag;
    options->config = value;
    return 0;
}

static int set_output(struct options *options, const char *value, struct diag *diag) {
    (void)diag;
    options->output = value;
    return 0;
}

static int set_epoch(struct options *options, const char *value, struct diag *diag) {
    if (parse_u64(value, &options->epoch) < 0)
        return diag_set(diag, -EINVAL, "--epoch %s is no number of an epoch (0, 1, 2 ...)", value);
    return 0;
}

/* N | A..B | A.. | ..B, B not included. */
static int set_steps(struct options *options, const char *value, struct diag *diag) {
    static const char wanted[] = "write --steps A..B (A included, B not), A.., ..B or one number";
    const char *dots = strstr(value, "..");
    uint64_t first = 0, end = STEPS_TO_END;
    char text[32];
    size_t length = dots ? (size_t)(dots - value) : strlen(value);
    if (length >= sizeof text)
        return diag_set(diag, -EINVAL, "--steps %s: %s", value, wanted);
    memcpy(text, value, length);
    text[length] = 0;
    if ((length || !dots) && parse_u64(text, &first) < 0)
        return diag_set(diag, -EINVAL, "--steps %s: %s", value, wanted);
    if (dots && dots[2] && parse_u64(dots + 2, &end) < 0)
        return diag_set(diag, -EINVAL, "--steps %s: %s", value, wanted);
    if (!dots) {
        if (first == UINT64_MAX)
            return diag_set(diag, -EINVAL, "--steps %s: %s", value, wanted);
        end = first + 1;
    }
    if (end <= first)
        return diag_set(diag, -EINVAL, "--steps %s holds no step, since the end is not included", value);
    options->steps_first = first;
    options->steps_end = end;
    options->has_steps = true;
    return 0;
}

static int set_rank(struct options *options, const char *value, struct diag *diag) {
    if (parse_u32(value, &options->rank) < 0)
        return diag_set(diag, -EINVAL, "--rank %s is no number of a rank (0, 1, 2 ...)", value);
    return 0;
}

static int set_world(struct options *options, const char *value, struct diag *diag) {
    if (parse_u32(value, &options->world) < 0 || !options->world)
        return diag_set(diag, -EINVAL, "--world %s is no number of ranks (1, 2, 3 ...)", value);
    return 0;
}

static int set_seconds(struct options *options, const char *value, struct diag *diag) {
    char *end;
    double seconds = strtod(value, &end);
    if (end == value || *end || !isfinite(seconds) || seconds <= 0 || seconds > 1e6)
        return diag_set(diag, -EINVAL, "%s seconds are no duration: a number above 0, at most 1000000", value);
    options->seconds = seconds;
    return 0;
}

static int set_step_ms(struct options *options, const char *value, struct diag *diag) {
    char *end;
    double ms = strtod(value, &end);
    if (end == value || *end || !isfinite(ms) || ms <= 0 || ms > 1e6)
        return diag_set(diag, -EINVAL, "--step-ms %s is no duration: milliseconds above 0, at most 1000000", value);
    options->step_ms = ms;
    return 0;
}

static int set_target(struct options *options, const char *value, struct diag *diag) {
    char *end;
    double rate = strtod(value, &end);
    if (end == value || *end || !isfinite(rate) || rate <= 0 || rate > 1e12)
        return diag_set(diag, -EINVAL, "--target %s is no rate: samples a second, above 0", value);
    options->tune.target = rate;
    return 0;
}

static int set_cpu(struct options *options, const char *value, struct diag *diag) {
    uint32_t budget;
    options->tune.cpu = value;
    return tune_budget(value, 1, &budget, diag);
}

static int set_write(struct options *options, const char *value, struct diag *diag) {
    (void)diag;
    options->tune.write = value;
    return 0;
}

static int set_report(struct options *options, const char *value, struct diag *diag) {
    (void)diag;
    options->tune.report = value;
    return 0;
}

static int set_device(struct options *options, const char *value, struct diag *diag) {
    uint32_t device;
    if (parse_u32(value, &device) < 0 || device > 1023)
        return diag_set(diag, -EINVAL, "--device %s is no number of a CUDA device (0, 1, 2 ...)", value);
    options->device = (int32_t)device;
    return 0;
}

static int set_buffers(struct options *options, const char *value, struct diag *diag) {
    if (parse_u32(value, &options->buffers) < 0 || options->buffers < 2 || options->buffers > 1024)
        return diag_set(diag, -EINVAL, "--buffers %s: from 2 to 1024", value);
    return 0;
}

static int set_finish(struct options *options, const char *value, struct diag *diag) {
    (void)diag;
    options->finish = value;
    return 0;
}

static int set_reason(struct options *options, const char *value, struct diag *diag) {
    (void)diag;
    options->reason = value;
    return 0;
}

static int set_once(struct options *options, const char *value, struct diag *diag) {
    (void)value, (void)diag;
    options->once = true;
    return 0;
}

static int set_compare(struct options *options, const char *value, struct diag *diag) {
    (void)value, (void)diag;
    options->compare = true;
    return 0;
}

static int set_since(struct options *options, const char *value, struct diag *diag) {
    uint64_t ignored;
    options->since = value;
    return when_parse(value, UINT64_C(2000000000) * 1000000000, &ignored, diag);
}

static int set_over(struct options *options, const char *value, struct diag *diag) {
    char *end;
    double ms = strtod(value, &end);
    if (end == value || *end || !isfinite(ms) || ms < 0 || ms > 1e9)
        return diag_set(diag, -EINVAL, "--over %s is no duration: milliseconds from 0 to 1000000000", value);
    options->over_ms = ms;
    return 0;
}

static int set_json(struct options *options, const char *value, struct diag *diag) {
    (void)value, (void)diag;
    options->json = true;
    return 0;
}

static int set_ceilings(struct options *options, const char *value, struct diag *diag) {
    (void)value, (void)diag;
    options->ceilings = true;
    return 0;
}

static int set_ids(struct options *options, const char *value, struct diag *diag) {
    (void)value, (void)diag;
    options->ids = true;
    return 0;
}

static int set_all(struct options *options, const char *value, struct diag *diag) {
    (void)value, (void)diag;
    options->all = true;
    return 0;
}

static int set_keys(struct options *options, const char *value, struct diag *diag) {
    (void)value, (void)diag;
    options->list_keys = true;
    return 0;
}

/* One of two words. */
static int set_choice(const char *option, const char *value, const char *no, const char *yes, bool *ret,
                      struct diag *diag) {
    if (strcmp(value, no) != 0 && strcmp(value, yes) != 0)
        return diag_set(diag, -EINVAL, "--%s %s: write %s or %s", option, value, no, yes);
    *ret = strcmp(value, yes) == 0;
    return 0;
}

static int set_field(struct options *options, const char *value, struct diag *diag) {
    (void)diag;
    options->pack.field = value;
    return 0;
}

static int set_resize(struct options *options, const char *value, struct diag *diag) {
    if (parse_u32(value, &options->pack.resize) < 0 || options->pack.resize < 1 || options->pack.resize > 65500)
        return diag_set(diag, -EINVAL, "--resize %s is no number of pixels (1 to 65500)", value);
    return 0;
}

static int set_quality(struct options *options, const char *value, struct diag *diag) {
    if (parse_u32(value, &options->pack.quality) < 0 || options->pack.quality < 1 || options->pack.quality > 100)
        return diag_set(diag, -EINVAL, "--quality %s is no quality of a JPEG (1 to 100)", value);
    return 0;
}

static int set_shards(struct options *options, const char *value, struct diag *diag) {
    if (parse_u32(value, &options->pack.shards) < 0 || options->pack.shards < 1 || options->pack.shards > 99999)
        return diag_set(diag, -EINVAL, "--shards %s is no number of files (1 to 99999)", value);
    return 0;
}

/* I/N, counted from 0. */
static int set_part(struct options *options, const char *value, struct diag *diag) {
    const char *slash = strchr(value, '/');
    char text[16];
    if (slash && (size_t)(slash - value) < sizeof text) {
        snprintf(text, sizeof text, "%.*s", (int)(slash - value), value);
        if (parse_u32(text, &options->pack.part) == 0 && parse_u32(slash + 1, &options->pack.parts) == 0 &&
            options->pack.part < options->pack.parts && options->pack.parts <= 99999)
            return 0;
    }
    return diag_set(diag, -EINVAL, "--part %s: write I/N, parts are numbered from 0 to N-1", value);
}

static int set_merge(struct options *options, const char *value, struct diag *diag) {
    (void)value, (void)diag;
    options->pack.merge = true;
    return 0;
}

static int set_metadata(struct options *options, const char *value, struct diag *diag) {
    return set_choice("metadata", value, "drop", "keep", &options->pack.metadata, diag);
}

static int set_jpeg(struct options *options, const char *value, struct diag *diag) {
    return set_choice("jpeg", value, "bytes", "coefficients", &options->pack.coefficients, diag);
}

static int set_keep_headers(struct options *options, const char *value, struct diag *diag) {
    (void)value, (void)diag;
    options->pack.keep_headers = true;
    return 0;
}

static int set_on_error(struct options *options, const char *value, struct diag *diag) {
    options->pack.skip_bad = strcmp(value, "skip") == 0;
    options->pack.keep_bad = strcmp(value, "keep") == 0;
    if (!options->pack.skip_bad && !options->pack.keep_bad && strcmp(value, "fail") != 0)
        return diag_set(diag, -EINVAL, "--on-error %s: write fail, skip or keep", value);
    return 0;
}

static const struct option option_table[] = {
    {"config", "FILE", "where pipeline names are looked up (" DEFAULT_CONFIG ")", ON_DATA | ON_DAEMON, set_config},
    {"epoch", "N", "which epoch (0)", BENCH | DIGEST | SHOW | TUNE, set_epoch},
    {"steps", "A..B", "steps of the epoch, A included, B not; also A.., ..B, N", DIGEST | SHOW, set_steps},
    {"rank", "N", "which rank's batches (0)", BENCH | DIGEST | SHOW | TUNE, set_rank},
    {"world", "N", "number of ranks (1)", BENCH | DIGEST | SHOW | TUNE, set_world},
    {"seconds", "S", "how long to measure (10)", BENCH, set_seconds},
    {"seconds", "S", "how long all measuring takes, about (60)", TUNE, set_seconds},
    {"step-ms", "N", "hold each batch so long, as a trainer would", BENCH, set_step_ms},
    {"step-ms", "N", "the fewest workers that feed a trainer of so many milliseconds a step", TUNE, set_step_ms},
    {"target", "RATE", "the fewest workers that bring so many samples a second", TUNE, set_target},
    {"cpu", "SHARE", "what loaderd may take of the CPUs: 40%, or a number of them (all)", TUNE, set_cpu},
    {"write", "FILE", "the configuration, as a new file", TUNE, set_write},
    {"report", "FILE", "an HTML page with plots", TUNE, set_report},
    {"device", "N", "the whole way into this CUDA device's memory", BENCH, set_device},
    {"buffers", "N", "device buffers, with --device (3)", BENCH, set_buffers},
    {"finish", "SPEC", "with --device: f32, f16, bf16 or u8, then ,nchw ,imagenet", BENCH, set_finish},
    {"ceilings", NULL, "only what the parts can do alone", BENCH, set_ceilings},
    {"timeout", "S", "sessions that have not ended by then are closed as they are (60)", DRAIN, set_seconds},
    {"reason", "TEXT", "what the session's trainer is told", DETACH, set_reason},
    {"compare", NULL, "why one is slower than the other: loaderctl bench --compare A.json B.json", BENCH, set_compare},
    {"seconds", "S", "how often the view is made anew (1)", TOP, set_seconds},
    {"once", NULL, "print one view and end", TOP, set_once},
    {"seconds", "S", "how long, at most 60 (2)", TRACE, set_seconds},
    {"output", "FILE", "where it goes (trace.json); - is stdout", TRACE, set_output},
    {"since", "WHEN", "from then on: 03:00, 2h, 2026-11-30T03:00", STALLS, set_since},
    {"over", "MS", "only waits of so many milliseconds or more (10)", STALLS, set_over},
    {"ids", NULL, "append the sample ids of each batch", DIGEST, set_ids},
    {"output", "FILE", "the picture (batch.png); - is stdout", SHOW, set_output},
    {"all", NULL, "read and decode every sample, list every class", INSPECT, set_all},
    {"all", NULL, "decode pictures also where checksums say that they are whole", VERIFY, set_all},
    {"field", "NAME,...", "which fields (all)", PACK, set_field},
    {"resize", "N", "make pictures smaller: short side in pixels, as JPEG", PACK, set_resize},
    {"quality", "N", "of the JPEGs that --resize makes (90)", PACK, set_quality},
    {"jpeg", "bytes|coefficients", "how JPEGs are stored (bytes)", PACK, set_jpeg},
    {"metadata", "drop|keep", "comments, Exif, profiles of JPEGs (drop)", PACK, set_metadata},
    {"keep-headers", NULL, "so that unpack gives every JPEG back byte for byte", PACK, set_keep_headers},
    {"on-error", "fail|skip|keep", "bad samples: stop, leave out, take as they are (fail)", PACK, set_on_error},
    {"shards", "N", "a folder of N files (one file)", PACK, set_shards},
    {"part", "I/N", "only this part of the work, I from 0", PACK, set_part},
    {"merge", NULL, "put the parts of PACK together: loaderctl pack --merge PACK", PACK, set_merge},
    {"json", NULL, "print JSON", BENCH | INSPECT | STATUS | STALLS | TOP | VERSION | DOCTOR | TUNE, set_json},
    {"keys", NULL, "list all configuration keys, tab-separated", VERSION, set_keys},
};

int complain(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fflush(stdout);
    fputs("loaderctl: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    return EXIT_FAILED;
}

int complain_diag(const struct diag *diag) {
    return complain("%s", diag->text[0] ? diag->text : strerror(-diag->code));
}

void remark(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("# ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
}

int finish_stdout(void) {
    if (fflush(stdout) || ferror(stdout))
        return complain("cannot write to standard output: %s", strerror(errno));
    return 0;
}

static int complain_option(const struct command *command, const char *name, struct diag *diag) {
    struct near near = near_to(name, strlen(name));
    for (size_t i = 0; i < ARRAY_SIZE(option_table); i++) {
        if (option_table[i].commands & command->bit)
            near_try(&near, option_table[i].name);
        else if (strcmp(option_table[i].name, name) == 0)
            return diag_set(diag, -EINVAL, "'%s' has no option --%s; `loaderctl %s --help` lists what it has",
                            command->name, name, command->name);
    }
    if (command->bit & ON_DATA && config_nearest_key(name))
        near_try(&near, config_nearest_key(name));
    if (near.found)
        return diag_set(diag, -EINVAL, "unknown option --%s; did you mean --%s?", name, near.found);
    return diag_set(diag, -EINVAL, "unknown option --%s; `loaderctl %s --help` lists them", name, command->name);
}

static void print_options(FILE *out, const struct command *command) {
    for (size_t i = 0; i < ARRAY_SIZE(option_table); i++) {
        const struct option *o = &option_table[i];
        char left[48];
        if (!(o->commands & command->bit))
            continue;
        snprintf(left, sizeof left, "--%s%s%s", o->name, o->argument ? " " : "", o->argument ? o->argument : "");
        fprintf(out, "  %-24s %s\n", left, o->help);
    }
}

static void print_command_help(FILE *out, const struct command *command) {
    fprintf(out, "usage: loaderctl %s%s%s [options]\n\n%s\n\nOptions:\n", command->name, *command->synopsis ? " " : "",
            command->synopsis, command->help);
    print_options(out, command);
    if (command->bit & ON_DAEMON)
        fprintf(out, "  %-24s %s\n", "--socket PATH", "the daemon's socket");
    if (command->bit & ON_DATA) {
        fprintf(out, "\nKeys of a pipeline, as in loaderd.conf(5):\n");
        config_print_pipeline_help(out);
        fprintf(out, "\nKeys of the daemon:\n");
        config_print_daemon_help(out);
    }
}

static void print_help(FILE *out) {
    fprintf(out, "usage: loaderctl COMMAND [DATASET-OR-PIPELINE] [options]\n\n");
    for (size_t i = 0; i < ARRAY_SIZE(commands); i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].help);
    fprintf(out, "\n`loaderctl COMMAND --help` lists the options of a command.\n"
                 "A DATASET is a path or synthetic:NxDIMS:DTYPE, a PIPELINE a name of the configuration file.\n");
}

static const struct command *find_command(const char *name) {
    for (size_t i = 0; i < ARRAY_SIZE(commands); i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

static int complain_command(const char *name) {
    struct near near = near_to(name, strlen(name));
    for (size_t i = 0; i < ARRAY_SIZE(commands); i++)
        near_try(&near, commands[i].name);
    if (near.found)
        complain("unknown command '%s'; did you mean '%s'?", name, near.found);
    else
        complain("unknown command '%s'; `loaderctl --help` lists them", name);
    return EXIT_USAGE;
}

/* One "--name", "--name=value" or "--name value". *index stands on it and moves past what was taken. */
static int parse_option(const struct command *command, int argc, char **argv, int *index, struct options *options,
                        struct diag *diag) {
    char *name = argv[*index] + 2, *equals = strchr(name, '=');
    const char *value = NULL;
    if (equals) {
        *equals = 0;
        value = equals + 1;
    }
    const struct option *option = NULL;
    for (size_t i = 0; i < ARRAY_SIZE(option_table); i++)
        if (strcmp(option_table[i].name, name) == 0 && option_table[i].commands & command->bit)
            option = &option_table[i];
    bool key = !option && (command->bit & ON_DATA ? config_is_pipeline_key(name) || config_is_daemon_key(name)
                                                  : command->bit & ON_DAEMON && strcmp(name, "socket") == 0);
    if (!option && !key)
        return complain_option(command, name, diag);
    if (option && !option->argument && value)
        return diag_set(diag, -EINVAL, "option --%s takes no value", name);
    if ((key || option->argument) && !value) {
        if (*index + 1 >= argc || strncmp(argv[*index + 1], "--", 2) == 0)
            return diag_set(diag, -EINVAL, "option --%s needs a value (write --%s=VALUE for one that begins with --)",
                            name, name);
        value = argv[++*index];
    }
    if (option)
        return option->set(options, value, diag);
    options->keys[options->nkeys++] = (struct key_value){name, value};
    return 0;
}

static int parse(const struct command *command, int argc, char **argv, struct options *options, struct diag *diag) {
    for (int i = 2; i < argc; i++) {
        if (strncmp(argv[i], "--", 2) == 0 && argv[i][2]) {
            int r = parse_option(command, argc, argv, &i, options, diag);
            if (r < 0)
                return r;
        } else if (argv[i][0] == '-' && argv[i][1]) {
            return diag_set(diag, -EINVAL, "unknown option %s; options are words, as in --batch 64", argv[i]);
        } else if (command->bit & (PACK | UNPACK) && options->target && !options->pack.destination) {
            options->pack.destination = argv[i];
        } else if (options->compare && options->target && !options->second) {
            options->second = argv[i];
        } else if (!(command->bit & (ON_DATA | DETACH)) || options->target) {
            return diag_set(diag, -EINVAL, "'%s' does not take '%s'; options begin with --", command->name, argv[i]);
        } else {
            options->target = argv[i];
        }
    }
    if (command->bit & ON_DATA & ~(unsigned)DOCTOR && !options->target)
        return diag_set(diag, -EINVAL, "'%s' needs a dataset or the name of a pipeline: loaderctl %s %s", command->name,
                        command->name, command->synopsis);
    if (options->compare && !options->second)
        return diag_set(diag, -EINVAL, "--compare needs two results: loaderctl bench --compare A.json B.json");
    if (command->bit & DETACH && !options->target)
        return diag_set(diag, -EINVAL, "'detach' needs the number of a session; `loaderctl status` lists them");
    if (command->bit & (PACK | UNPACK) && !options->pack.destination != options->pack.merge)
        return diag_set(diag, -EINVAL,
                        options->pack.merge ? "--merge takes one name, that of the pack"
                                            : "'%s' needs to know where to: loaderctl %s %s",
                        command->name, command->name, command->synopsis);
    if (options->rank >= options->world)
        return diag_set(diag, -EINVAL, "--rank %" PRIu32 " of --world %" PRIu32 ": ranks are numbered from 0",
                        options->rank, options->world);
    return setup_check_keys(options, diag);
}

static bool asks_help(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return true;
    return false;
}

int main(int argc, char **argv) {
    const struct command *command = argc > 1 ? find_command(argv[1]) : NULL;
    log_init("loaderctl", LOG_NOTICE);
    if (argc > 1 && !command && strcmp(argv[1], "--version") == 0)
        command = find_command("version");
    if (asks_help(argc, argv) || (argc > 1 && strcmp(argv[1], "help") == 0)) {
        if (command)
            print_command_help(stdout, command);
        else
            print_help(stdout);
        return finish_stdout();
    }
    if (argc < 2) {
        print_help(stderr);
        return EXIT_USAGE;
    }
    if (!command)
        return complain_command(argv[1]);

    struct options options = {.command = command->name,
                              .world = 1,
                              .seconds = command->bit & (DRAIN | TUNE) ? 60
                                         : command->bit == TOP         ? 1
                                         : command->bit == TRACE       ? 2
                                                                       : 10,
                              .device = -1,
                              .over_ms = -1,
                              .steps_end = STEPS_TO_END,
                              .pack = {.quality = 90}};
    struct diag diag = DIAG_INIT;
    options.keys = calloc((size_t)argc, sizeof *options.keys);
    if (!options.keys)
        return complain("out of memory");
    int status = EXIT_USAGE;
    if (parse(command, argc, argv, &options, &diag) < 0)
        complain_diag(&diag);
    else
        status = command->run(&options);
    free(options.keys);
    return status;
}
