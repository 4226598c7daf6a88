/* SPDX-License-Identifier: MIT */
/*
 * loaderd in place of the loading threads of AlexeyAB/darknet, none of whose files is edited. Compile this file with the
 * trainer's headers and link it into the trainer with
 *
 *     -Wl,--wrap=load_data,--wrap=free_data -lloaderd
 *
 * so that its calls of load_data() and free_data() come here; without -flto, which joins calls before they can be wrapped.
 * docs/c-trainers.md is the guide, docs/TRAINERS.md what was measured.
 *
 * load_data() starts a thread, as the original does, which waits for one batch and points *args.d at it: X rows are planar
 * f32 RGB of 0 to 1 in shared memory, read-only, nothing is copied; y rows are labels as the trainer wants them:
 *   classification   1 at the class whose label is a part of the path (key label_smooth_eps included)
 *   detection        boxes of the YOLO text file beside the picture, moved by the row's crop and mirror: x y w h class, in
 *                    shares of the row; those of less than a pixel and those outside are left out, the others cut at its edge
 * `shallow` is set. free_data() gives a batch of ours back, and passes on every other one. A batch that is asked for and
 * never used is dropped at the next size or at the end. With other sizes (args.w, args.h, args.n) a new session goes on
 * where the last one stood.
 *
 * Pictures come in random order, each once before any comes again; the crop is by the daemon's keys that are nearest to the
 * trainer's (see keys_of()), its pixels are Pillow's. What has no counterpart ends the program with a sentence that names
 * it. LOADERD_DARKNET_KEYS in the environment: further keys of loaderd.conf(5), as "seed=7 workers=8"; they take
 * precedence.
 *
 * Threads: as the original. One thread at a time loads; free_data() may be called while it does.
 */
#include <darknet.h>

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <loaderd/loaderd.h>

pthread_t __wrap_load_data(load_args args);
void __wrap_free_data(data d);
void __real_free_data(data d);

#define SLOTS 4 /* one that the trainer uses, one in flight, two being filled */
#define HELD 2
#define MAX_KEYS 48
#define MAX_LABEL_BYTES (16 << 20)

struct box_of_file {
    float x, y, w, h; /* shares of the picture: centre and size */
    int class;
};

struct boxes {
    bool known;
    int count;
    struct box_of_file *box;
};

/* The pictures that the trainer listed. */
struct pictures {
    char **paths; /* the trainer's */
    int count;    /* of them */
    int *index;   /* sample id: which of them */
    int samples;
    char list[PATH_MAX]; /* the file that the daemon reads */
    int *class;          /* of each sample: index, or one of the marks below */
    struct boxes *boxes; /* of each sample */
};
enum { CLASS_UNKNOWN = -1, CLASS_NONE = -2, CLASS_MANY = -3 };

struct session {
    struct loaderd *loader;
    char keys[2048]; /* what it was opened with */
    uint64_t epoch_samples;
    int leases; /* batches that the trainer has */
    bool retired;
};

struct lease {
    struct lease *next;
    struct session *session;
    struct loaderd_batch batch;
    float **x, **y, *labels;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* of both lists */
static struct lease *leased, *freed;
static struct pictures pictures; /* the loading thread's, one at a time */
static struct session *session;
static uint64_t position; /* samples asked for so far */

__attribute__((format(printf, 1, 2), noreturn)) static void die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fflush(stdout);
    fputs("loaderd: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(EXIT_FAILURE);
}

static void *new (size_t count, size_t size) {
    void *p = calloc(count ? count : 1, size);
    if (!p)
        die("no memory left for %zu x %zu bytes", count, size);
    return p;
}

/* ---- labels: pure ---------------------------------------------------------------------------------------------------- */

/* One number; *at moves behind it. */
static bool take_number(const char **at, const char *end, float *ret) {
    char text[64], *stop;
    size_t n = 0;
    while (*at < end && (**at == ' ' || **at == '\t' || **at == ','))
        ++*at;
    while (*at < end && !isspace((unsigned char)**at) && n < sizeof text - 1)
        text[n++] = *(*at)++;
    text[n] = '\0';
    *ret = strtof(text, &stop);
    /* -Ofast, with which trainers are compiled, knows no isfinite(): no "nan", no "inf", no large number */
    return n > 0 && *stop == '\0' && strchr("+-.0123456789", text[0]) && !strpbrk(text, "nNxX") && *ret >= -1e6F &&
           *ret <= 1e6F;
}

/* The boxes of a YOLO text file, "class x y w h" a line; empty lines are nothing. 0, or the number of a line that is none.
 * *ret is allocated. */
static int parse_boxes(const char *text, size_t length, struct boxes *ret) {
    const char *at = text, *end = text + length;
    *ret = (struct boxes){.known = true};
    for (int line = 1; at < end; line++) {
        const char *newline = memchr(at, '\n', (size_t)(end - at)), *stop = newline ? newline : end;
        while (at < stop && isspace((unsigned char)*at))
            at++;
        if (at < stop) {
            float v[5];
            for (int i = 0; i < 5; i++)
                if (!take_number(&at, stop, &v[i]))
                    return line;
            if (v[0] < 0 || v[0] != floorf(v[0]))
                return line;
            if ((ret->count & (ret->count - 1)) == 0) {
                size_t room = ret->count ? 2 * (size_t)ret->count : 1;
                struct box_of_file *more = realloc(ret->box, room * sizeof *more);
                if (!more)
                    die("no memory left for %zu boxes", room);
                ret->box = more;
            }
            ret->box[ret->count++] = (struct box_of_file){v[1], v[2], v[3], v[4], (int)v[0]};
        }
        at = newline ? newline + 1 : end;
    }
    return 0;
}

static float between_0_and_1(float v) {
    return v < 0 ? 0 : v > 1 ? 1 : v;
}

/* A picture's box as the row shows it; false where the trainer wants none. */
static bool move_box(const struct box_of_file *box, const struct loaderd_row *row, int width, int height,
                     float ret[4]) {
    if ((box->x == 0 && box->y == 0) || box->x + box->w / 2 < 0 || box->y + box->h / 2 < 0 || box->x - box->w / 2 > 1 ||
        box->y - box->h / 2 > 1)
        return false;
    float sx = (float)row->source_width / row->crop_width, sy = (float)row->source_height / row->crop_height;
    float left = (box->x - box->w / 2) * sx - row->crop_x / row->crop_width;
    float right = (box->x + box->w / 2) * sx - row->crop_x / row->crop_width;
    float top = (box->y - box->h / 2) * sy - row->crop_y / row->crop_height;
    float bottom = (box->y + box->h / 2) * sy - row->crop_y / row->crop_height;
    if (row->flip & 1) {
        float old = left;
        left = 1 - right;
        right = 1 - old;
    }
    if (row->flip & 2) {
        float old = top;
        top = 1 - bottom;
        bottom = 1 - old;
    }
    left = between_0_and_1(left);
    right = between_0_and_1(right);
    top = between_0_and_1(top);
    bottom = between_0_and_1(bottom);
    ret[0] = (left + right) / 2;
    ret[1] = (top + bottom) / 2;
    ret[2] = right - left;
    ret[3] = bottom - top;
    return ret[2] >= 1.F / (float)width && ret[3] >= 1.F / (float)height && ret[0] > 0 && ret[1] > 0;
}

/* Where the labels of a picture are: the trainer's rules. False for a name without an ending of pictures. */
static bool label_path(const char *path, char ret[PATH_MAX]) {
    static const char *const folders[][2] = {{"/images/train2017/", "/labels/train2017/"},
                                             {"/images/val2017/", "/labels/val2017/"},
                                             {"/JPEGImages/", "/labels/"},
                                             {"/images/train2014/", "/labels/train2014/"},
                                             {"/images/val2014/", "/labels/val2014/"}};
    static const char *const endings[] = {".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".tiff"};
    if (strlen(path) >= PATH_MAX - 8)
        return false;
    strcpy(ret, path);
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        char *at = strstr(ret, folders[i][0]);
        size_t from = strlen(folders[i][0]), to = strlen(folders[i][1]);
        if (!at)
            continue;
        memmove(at + to, at + from, strlen(at + from) + 1);
        memcpy(at, folders[i][1], to);
    }
    char *dot = strrchr(ret, '.');
    for (size_t i = 0; dot && i < sizeof endings / sizeof endings[0]; i++)
        if (strcasecmp(dot, endings[i]) == 0) {
            strcpy(dot, ".txt");
            return true;
        }
    return false;
}

/* ---- labels of a row ------------------------------------------------------------------------------------------------- */

static const struct boxes *boxes_of(struct pictures *p, uint64_t sample) {
    struct boxes *boxes = &p->boxes[sample];
    char name[PATH_MAX], *text = NULL;
    const char *path = p->paths[p->index[sample]];
    if (boxes->known)
        return boxes;
    if (!label_path(path, name))
        die("%s: no ending of a picture, so that the name of its label file is not known", path);
    FILE *file = fopen(name, "r");
    if (!file) {
        if (errno != ENOENT)
            die("%s: cannot open these labels: %s", name, strerror(errno));
        fprintf(stderr, "loaderd: %s: no such label file: the picture is taken to show nothing\n", name);
        boxes->known = true;
        return boxes;
    }
    text = new (MAX_LABEL_BYTES / 16, 1);
    size_t length = fread(text, 1, MAX_LABEL_BYTES / 16, file);
    if (ferror(file) || !feof(file))
        die("%s: %s", name, ferror(file) ? "cannot be read" : "larger than 1 MiB: no label file");
    fclose(file);
    int line = parse_boxes(text, length, boxes);
    if (line)
        die("%s: line %d is no box: wanted class x y width height", name, line);
    free(text);
    return boxes;
}

static void put_boxes(struct pictures *p, const struct loaderd_row *row, uint64_t epoch, const load_args *args,
                      float *ret) {
    const struct boxes *boxes = boxes_of(p, row->sample);
    int put = 0;
    /* where there are more than fit, other ones each time */
    int first = boxes->count > args->num_boxes ? (int)((epoch + row->position) % (uint64_t)boxes->count) : 0;
    for (int i = 0; i < boxes->count && put < args->num_boxes; i++) {
        int number = (first + i) % boxes->count;
        const struct box_of_file *box = &boxes->box[number];
        float *to = ret + (size_t)put * (size_t)args->truth_size;
        float moved[4];
        if (box->class >= args->classes)
            die("%s: the labels of this picture have class %d, there are %d", p->paths[p->index[row->sample]],
                box->class, args->classes);
        if (!move_box(box, row, args->w, args->h, moved))
            continue;
        memcpy(to, moved, sizeof moved);
        to[4] = (float)box->class;
        if (args->truth_size > 5) /* a number that is this object's own */
            to[5] = (float)(row->sample % 4000 * 4000 + (uint64_t)number % 4000);
        put++;
    }
}

/* Which class a path shows: its labels are looked for once. */
static int find_class(const char *path, const load_args *args) {
    int found = 0, which = CLASS_NONE;
    for (int k = 0; k < args->classes; k++)
        if (strstr(path, args->labels[k]) && found++ == 0)
            which = k;
    if (found != 1)
        fprintf(stderr, "loaderd: %s: %d of the labels are parts of this path, wanted 1\n", path, found);
    return found > 1 ? CLASS_MANY : which;
}

static void put_class(struct pictures *p, uint64_t sample, const load_args *args, float *ret) {
    const char *path = p->paths[p->index[sample]];
    const float right = 1 - args->label_smooth_eps;
    const float other = args->classes > 1 ? args->label_smooth_eps / (float)(args->classes - 1) : 0;
    int *class = &p->class[sample];
    if (*class == CLASS_UNKNOWN)
        *class = find_class(path, args);
    for (int k = 0; k < args->classes; k++) {
        bool is = *class == CLASS_MANY ? strstr(path, args->labels[k]) != NULL : k == *class;
        ret[k] = is ? right : other;
    }
}

/* ---- pictures -------------------------------------------------------------------------------------------------------- */

static void remove_list(void) {
    if (*pictures.list)
        unlink(pictures.list);
}

/* The daemon reads a list file with a line for each picture. */
static void write_list(struct pictures *p) {
    const char *folder = getenv("TMPDIR");
    char here[PATH_MAX];
    if (!getcwd(here, sizeof here))
        die("the current directory has no name: %s", strerror(errno));
    snprintf(p->list, sizeof p->list, "%s/loaderd-darknet-XXXXXX", folder && *folder ? folder : "/tmp");
    int fd = mkstemp(p->list);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
    if (!file)
        die("%s: cannot make the list of pictures: %s", p->list, strerror(errno));
    atexit(remove_list);
    for (int i = 0; i < p->count; i++) {
        const char *path = p->paths[i];
        if (strpbrk(path, "\t\n\r"))
            die("%s: a path with a tab or a line end in it is not supported", path);
        if (!*path)
            continue;
        fprintf(file, "%s%s%s\n", *path == '/' ? "" : here, *path == '/' ? "" : "/", path);
        p->index[p->samples++] = i;
    }
    if (fclose(file) != 0)
        die("%s: cannot write the list of pictures: %s", p->list, strerror(errno));
}

static void learn_pictures(const load_args *args) {
    struct pictures *p = &pictures;
    if (p->paths == args->paths && p->count == args->m)
        return;
    if (p->paths)
        die("another list of pictures in the same process is not supported");
    p->paths = args->paths;
    p->count = args->m;
    p->index = new ((size_t)args->m, sizeof *p->index);
    write_list(p);
    p->class = new ((size_t)p->samples, sizeof *p->class);
    p->boxes = new ((size_t)p->samples, sizeof *p->boxes);
    for (int i = 0; i < p->samples; i++)
        p->class[i] = CLASS_UNKNOWN;
}

/* ---- sessions -------------------------------------------------------------------------------------------------------- */

static void refuse(bool is_wanted, const char *what) {
    if (is_wanted)
        die("%s is not supported by loaderd's shim: take it out of the cfg file, or train with the trainer's own "
            "loader",
            what);
}

static void check_args(const load_args *args) {
    bool detection = args->type == DETECTION_DATA;
    if (!detection && args->type != CLASSIFICATION_DATA)
        die("data of type %d is not supported by loaderd's shim: only those of classifiers and detectors",
            (int)args->type);
    refuse(args->angle != 0 && !detection, "angle (rotated crops)");
    refuse(args->mixup != 0, "mixup, cutmix or mosaic");
    refuse(args->blur != 0, "blur");
    refuse(args->contrastive != 0, "contrastive");
    refuse(args->show_imgs != 0, "-show_imgs");
    refuse(args->c != 0 && args->c != 3, "a number of channels other than 3");
    refuse(!detection && args->hierarchy != NULL, "a hierarchy of labels (tree)");
    refuse(!detection && args->labels == NULL, "unsupervised training");
    refuse(detection && args->gaussian_noise != 0, "gaussian_noise");
    refuse(detection && args->letter_box != 0, "letter_box");
    refuse(detection && args->track != 0, "track");
    refuse(detection && args->resize != 0 && args->resize != 1, "resize other than 1");
    refuse(detection && args->jitter >= 0.5F, "jitter of 0.5 or more");
    if (args->n < 1 || args->m < 1 || args->w < 1 || args->h < 1 || args->classes < 1 ||
        (detection && (args->num_boxes < 1 || args->truth_size < 5)))
        die("%d pictures of %d x %d out of %d, %d classes: all must be positive", args->n, args->w, args->h, args->m,
            args->classes);
}

static void add_key(char *to, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void add_key(char *to, size_t size, const char *format, ...) {
    size_t used = strlen(to);
    va_list args;
    va_start(args, format);
    if (used + 1 < size)
        to[used++] = ' ';
    vsnprintf(to + used, size - used, format, args);
    va_end(args);
}

/* How far a factor drawn from 1/f to f goes from 1. */
static double spread(float factor) {
    double f = factor <= 0 ? 1 : factor;
    return f < 1 ? 1 / f - 1 : f - 1;
}

/* What the trainer's numbers are in keys. */
static void keys_of(const load_args *args, uint64_t epoch_samples, char *to, size_t size) {
    const char *flip = args->flip ? ",flip" : "";
    *to = '\0';
    add_key(to, size, "format=list index=none batch=%d image=%dx%d dtype=f32 layout=nchw shuffle=full", args->n,
            args->h, args->w);
    add_key(to, size, "epoch-samples=%llu slots=%d max-ring-bytes=1024G", (unsigned long long)epoch_samples, SLOTS);
    if (args->type == DETECTION_DATA) {
        double least = 1 - 2 * (double)args->jitter;
        if (args->jitter <= 0)
            add_key(to, size, "augment=stretch%s", flip);
        else
            add_key(to, size, "augment=random-resized-crop%s scale=%.4f,1", flip, least * least);
    } else {
        int side = args->size ? args->size : args->w > args->h ? args->w : args->h;
        double low = args->max > side ? (double)side / args->max : 1,
               high = args->min > side ? (double)side / args->min : 1;
        double aspect = 1 + spread(args->aspect);
        if (low >= 1)
            add_key(to, size, "augment=center-crop%s resize=%d", flip, side);
        else
            add_key(to, size, "augment=random-resized-crop%s scale=%.4f,%.4f ratio=%.4f,%.4f", flip, low * low,
                    high * high, 1 / aspect, aspect);
    }
    double exposure = spread(args->exposure), saturation = spread(args->saturation), hue = fabs((double)args->hue);
    if (exposure > 0 || saturation > 0 || hue > 0)
        add_key(to, size, "color-jitter=%.4f,0,%.4f,%.4f", exposure, saturation, hue > 0.5 ? 0.5 : hue);
}

/* "a=1 b=2" in place becomes keys[]; those named in keys[0..own) before are left out. */
static size_t split_keys(char *text, const char **keys, size_t count, size_t own) {
    for (char *at = text; *(at += strspn(at, " "));) {
        char *key = at;
        bool there = false;
        at += strcspn(at, " ");
        if (*at)
            *at++ = '\0';
        for (size_t i = 0; i < own && !there; i++)
            there = strncmp(keys[i], key, strcspn(key, "=") + 1) == 0;
        if (!there && count < MAX_KEYS - 1)
            keys[count++] = key;
    }
    return count;
}

static struct loaderd *open_loader(const char *text, uint64_t epoch_samples, const load_args *args) {
    struct loaderd_options options = LOADERD_OPTIONS_INIT;
    struct loaderd *loader;
    struct loaderd_info info;
    const char *keys[MAX_KEYS] = {NULL}, *given = getenv("LOADERD_DARKNET_KEYS");
    char error[1024], *own = strdup(given ? given : ""), *preset = strdup(text);
    if (!own || !preset)
        die("no memory left for keys");
    size_t owned = split_keys(own, keys, 0, 0);
    split_keys(preset, keys, owned, owned);
    options.keys = keys;
    options.rank = 0;
    options.world = 1;
    options.held = HELD;
    options.epoch = position / epoch_samples;
    options.step = position % epoch_samples / (uint64_t)args->n;
    if (loaderd_open(&loader, pictures.list, &options, error, sizeof error) < 0)
        die("%s", error);
    loaderd_info(loader, &info);
    if (info.samples != (uint64_t)pictures.samples)
        die("the daemon finds %llu pictures in the list, wanted %d", (unsigned long long)info.samples,
            pictures.samples);
    free(own);
    free(preset);
    return loader;
}

static void end_session(struct session *s) {
    loaderd_close(s->loader);
    free(s);
}

/* What free_data() was called for: here, since calls on a loader must not overlap. */
static void give_back(void) {
    pthread_mutex_lock(&mutex);
    struct lease *list = freed;
    freed = NULL;
    pthread_mutex_unlock(&mutex);
    while (list) {
        struct lease *lease = list;
        struct session *s = lease->session;
        list = lease->next;
        loaderd_release(s->loader, &lease->batch);
        if (--s->leases == 0 && s->retired)
            end_session(s);
        free(lease->x);
        free(lease->y);
        free(lease->labels);
        free(lease);
    }
}

static void prepare_session(const load_args *args) {
    char keys[sizeof session->keys];
    uint64_t batch = (uint64_t)args->n, whole = (uint64_t)pictures.samples / batch;
    uint64_t epoch_samples = batch * (whole ? whole : 1);
    keys_of(args, epoch_samples, keys, sizeof keys);
    if (session && strcmp(session->keys, keys) == 0)
        return;
    struct session *before = session;
    session = new (1, sizeof *session);
    session->loader = open_loader(keys, epoch_samples, args); /* while the old one lives: so does its daemon */
    session->epoch_samples = epoch_samples;
    strcpy(session->keys, keys);
    if (before) {
        before->retired = true;
        if (before->leases == 0)
            end_session(before);
    }
}

/* ---- a batch --------------------------------------------------------------------------------------------------------- */

static void fill(const struct lease *lease, const load_args *args, data *ret) {
    const struct loaderd_batch *b = &lease->batch;
    const bool detection = args->type == DETECTION_DATA;
    const size_t row = (size_t)args->w * (size_t)args->h * 3;
    const size_t labels = detection ? (size_t)args->num_boxes * (size_t)args->truth_size : (size_t)args->classes;
    for (int i = 0; i < args->n; i++) {
        lease->x[i] = (float *)(uintptr_t)b->fields[0].data + (size_t)i * row;
        lease->y[i] = lease->labels + (size_t)i * labels;
        if (detection)
            put_boxes(&pictures, &b->row[i], b->epoch, args, lease->y[i]);
        else
            put_class(&pictures, b->row[i].sample, args, lease->y[i]);
    }
    memset(ret, 0, sizeof *ret);
    ret->shallow = 1;
    ret->X.rows = ret->y.rows = args->n;
    ret->X.cols = (int)row;
    ret->y.cols = (int)labels;
    ret->X.vals = lease->x;
    ret->y.vals = lease->y;
}

static struct lease *lease_batch(const load_args *args) {
    struct lease *lease = new (1, sizeof *lease);
    size_t labels =
        args->type == DETECTION_DATA ? (size_t)args->num_boxes * (size_t)args->truth_size : (size_t)args->classes;
    int r = loaderd_next(session->loader, &lease->batch);
    if (r == 0) /* an epoch is over; the next one begins */
        r = loaderd_next(session->loader, &lease->batch);
    if (r != 1)
        die("%s", r == 0 ? "no further batch: is there a key epochs?" : loaderd_error(session->loader));
    if (lease->batch.rows != (uint32_t)args->n ||
        lease->batch.fields[0].bytes != (uint64_t)args->n * (uint64_t)args->w * (uint64_t)args->h * 3 * sizeof(float))
        die("a batch of %u rows and %llu bytes, wanted %d rows of %d x %d: look at LOADERD_DARKNET_KEYS",
            lease->batch.rows, (unsigned long long)lease->batch.fields[0].bytes, args->n, args->w, args->h);
    position += (uint64_t)args->n;
    session->leases++;
    lease->session = session;
    lease->x = new ((size_t)args->n, sizeof *lease->x);
    lease->y = new ((size_t)args->n, sizeof *lease->y);
    lease->labels = new ((size_t)args->n * labels, sizeof *lease->labels);
    return lease;
}

static void *load(void *arg) {
    load_args *args = arg;
    check_args(args);
    give_back();
    learn_pictures(args);
    prepare_session(args);
    struct lease *lease = lease_batch(args);
    fill(lease, args, args->d);
    pthread_mutex_lock(&mutex);
    lease->next = leased;
    leased = lease;
    pthread_mutex_unlock(&mutex);
    free(args);
    return NULL;
}

pthread_t __wrap_load_data(load_args args) {
    pthread_t thread;
    load_args *copy = new (1, sizeof *copy);
    *copy = args;
    int r = pthread_create(&thread, NULL, load, copy);
    if (r != 0)
        die("cannot start the thread that waits for a batch: %s", strerror(r));
    return thread;
}

void __wrap_free_data(data d) {
    pthread_mutex_lock(&mutex);
    struct lease **at = &leased, *lease;
    while ((lease = *at) && lease->x != d.X.vals)
        at = &lease->next;
    if (lease) {
        *at = lease->next;
        lease->next = freed;
        freed = lease;
    }
    pthread_mutex_unlock(&mutex);
    if (!lease)
        __real_free_data(d);
}
