/* SPDX-License-Identifier: MIT */
/*
 * The shim for darknet, called as its training loops call it. Each picture is one bright rectangle on blue: what the labels
 * say of a row is compared with the bright pixels of that row, which nobody computed from the labels.
 */
#include "darknet.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <jpeglib.h>

pthread_t load_data(load_args args);
void free_data(data d);
extern int freed_by_trainer;

#define PICTURES 40
#define BATCH 8
#define STRIDE 6
#define MAX_BOXES 5

static const char *test = "";
static char *paths[PICTURES], path_text[PICTURES][64];
static int rectangle[PICTURES][6]; /* width, height of the picture; left, top, right, bottom */

__attribute__((noreturn)) static void failed(int line, const char *what) {
    fprintf(stderr, "%s: line %d: %s\n", test, line, what);
    exit(2);
}

#define CHECK(condition) ((condition) ? (void)0 : failed(__LINE__, #condition))

static void make_picture(const char *path, const int r[6]) {
    struct jpeg_compress_struct c;
    struct jpeg_error_mgr errors;
    unsigned char row[3 * 640];
    FILE *f = fopen(path, "wb");
    CHECK(f);
    c.err = jpeg_std_error(&errors);
    jpeg_create_compress(&c);
    jpeg_stdio_dest(&c, f);
    c.image_width = (JDIMENSION)r[0];
    c.image_height = (JDIMENSION)r[1];
    c.input_components = 3;
    c.in_color_space = JCS_RGB;
    jpeg_set_defaults(&c);
    jpeg_set_quality(&c, 98, TRUE);
    c.comp_info[0].h_samp_factor = c.comp_info[0].v_samp_factor = 1;
    jpeg_start_compress(&c, TRUE);
    for (int y = 0; y < r[1]; y++) {
        for (int x = 0; x < r[0]; x++) {
            bool bright = x >= r[2] && x < r[4] && y >= r[3] && y < r[5];
            row[3 * x] = row[3 * x + 1] = bright ? 255 : 0;
            row[3 * x + 2] = bright ? 255 : 100;
        }
        JSAMPROW rows[] = {row};
        jpeg_write_scanlines(&c, rows, 1);
    }
    jpeg_finish_compress(&c);
    jpeg_destroy_compress(&c);
    fclose(f);
}

/* voc/JPEGImages/CLASS_N.jpg with voc/labels/CLASS_N.txt: the trainer's rule. */
static void make_pictures(void) {
    static const char *const classes[] = {"cat", "dog", "cow"};
    CHECK(mkdir("voc", 0755) == 0 && mkdir("voc/JPEGImages", 0755) == 0 && mkdir("voc/labels", 0755) == 0);
    for (int i = 0; i < PICTURES; i++) {
        int *r = rectangle[i], w = 160 + i * 37 % 200, h = 120 + i * 53 % 160;
        char name[64];
        r[0] = w, r[1] = h;
        r[2] = w / 8 + i, r[3] = h / 6 + i * 7 % 40;
        r[4] = r[2] + w / 3, r[5] = r[3] + h / 3;
        snprintf(path_text[i], sizeof path_text[i], "voc/JPEGImages/%s_%02d.jpg", classes[i % 3], i);
        paths[i] = path_text[i];
        make_picture(paths[i], r);
        snprintf(name, sizeof name, "voc/labels/%s_%02d.txt", classes[i % 3], i);
        FILE *f = fopen(name, "w");
        CHECK(f);
        fprintf(f, "%d %.9g %.9g %.9g %.9g\n", i % 3, (r[2] + r[4]) / 2.0 / w, (r[3] + r[5]) / 2.0 / h,
                (double)(r[4] - r[2]) / w, (double)(r[5] - r[3]) / h);
        fclose(f);
    }
}

static load_args detection(data *d) {
    load_args a = {.type = DETECTION_DATA,
                   .d = d,
                   .paths = paths,
                   .n = BATCH,
                   .m = PICTURES,
                   .w = 128,
                   .h = 96,
                   .c = 3,
                   .classes = 3,
                   .num_boxes = MAX_BOXES,
                   .truth_size = STRIDE,
                   .resize = 1};
    return a;
}

static data load(const load_args *args) {
    CHECK(pthread_join(load_data(*args), NULL) == 0);
    const data *d = args->d;
    CHECK(d->shallow && d->X.rows == args->n && d->y.rows == args->n && d->X.cols == args->w * args->h * 3);
    return *d;
}

/* The bright pixels of a row: left, top, right, bottom in pixels; false without any. */
static bool bright_box(const float *row, int w, int h, float ret[4]) {
    bool any = false;
    memset(ret, 0, 4 * sizeof *ret);
    for (int y = 0; y < h; y++)
        for (int x = 0; x < w; x++) {
            if (row[y * w + x] < 0.5F)
                continue;
            if (!any)
                ret[0] = ret[2] = (float)x, ret[1] = ret[3] = (float)y;
            ret[0] = fminf(ret[0], (float)x);
            ret[2] = fmaxf(ret[2], (float)x);
            ret[3] = (float)y;
            any = true;
        }
    ret[2] += any, ret[3] += any;
    return any;
}

/* Which picture a row of whole pictures shows, by its box. */
static int which(const float *box) {
    for (int i = 0; i < PICTURES; i++) {
        const int *r = rectangle[i];
        float x = (float)(r[2] + r[4]) / 2 / (float)r[0], y = (float)(r[3] + r[5]) / 2 / (float)r[1];
        if (fabsf(box[0] - x) < 1e-5F && fabsf(box[1] - y) < 1e-5F && box[4] == (float)(i % 3))
            return i;
    }
    return -1;
}

static int check_rows(const data *d, const load_args *a) {
    int with = 0;
    for (int i = 0; i < a->n; i++) {
        const float *row = d->X.vals[i], *y = d->y.vals[i];
        float b[4];
        bool bright = bright_box(row, a->w, a->h, b);
        for (int j = 0; j < a->w * a->h * 3; j++)
            CHECK(row[j] >= 0 && row[j] <= 1);
        for (int k = STRIDE; k < STRIDE * a->num_boxes; k++)
            CHECK(y[k] == 0); /* one object a picture */
        if (y[2] == 0 && y[3] == 0) {
            CHECK(!bright || b[2] - b[0] <= 2 || b[3] - b[1] <= 2);
            continue;
        }
        with++;
        CHECK(bright);
        CHECK(fabsf(b[0] - (y[0] - y[2] / 2) * (float)a->w) <= 1.5F &&
              fabsf(b[2] - (y[0] + y[2] / 2) * (float)a->w) <= 1.5F);
        CHECK(fabsf(b[1] - (y[1] - y[3] / 2) * (float)a->h) <= 1.5F &&
              fabsf(b[3] - (y[1] + y[3] / 2) * (float)a->h) <= 1.5F);
        CHECK(y[4] >= 0 && y[4] < 3);
    }
    return with;
}

static void whole_pictures(void) {
    data d;
    load_args a = detection(&d);
    bool seen[PICTURES] = {false};
    for (int n = 0; n < PICTURES / BATCH; n++) {
        data b = load(&a);
        CHECK(b.y.cols == MAX_BOXES * STRIDE);
        CHECK(check_rows(&b, &a) == BATCH);
        for (int i = 0; i < BATCH; i++) {
            int p = which(b.y.vals[i]);
            CHECK(p >= 0 && !seen[p]); /* every picture once */
            seen[p] = true;
            const float *blue = b.X.vals[i] + 2 * a.w * a.h, *green = b.X.vals[i] + a.w * a.h;
            CHECK(fabsf(blue[0] - 100.F / 255) < 0.02F && fabsf(green[0]) < 0.02F); /* planes, of 0 to 1 */
        }
        free_data(b);
    }
    CHECK(freed_by_trainer == 0);
    data own = {.X = {.vals = malloc(8)}, .y = {.vals = malloc(8)}, .shallow = 1};
    free_data(own); /* not ours */
    CHECK(freed_by_trainer == 1);
}

static void boxes_follow(void) {
    data d;
    load_args a = detection(&d);
    int with = 0, mirrored = 0;
    a.jitter = 0.2F;
    a.flip = 1;
    a.hue = 0.05F;
    a.saturation = a.exposure = 1.2F;
    for (int n = 0; n < 15; n++) {
        data b = load(&a);
        with += check_rows(&b, &a);
        for (int i = 0; i < BATCH; i++)
            mirrored += b.y.vals[i][0] > 0.6F;
        free_data(b);
    }
    CHECK(with > 100 && mirrored > 10); /* of 120; rectangles lie left of the middle unless mirrored */
}

/* As the training loop: one batch in use, one in flight, sizes that change; nothing appears twice. */
static void sizes_change(void) {
    static const int sizes[][3] = {{128, 96, 8}, {96, 96, 8}, {64, 128, 4}};
    bool seen[PICTURES] = {false};
    static data buffer; /* a batch may still arrive when the program ends */
    data train;
    load_args a = detection(&buffer);
    pthread_t thread = load_data(a);
    int count = 0;
    for (size_t n = 0; n < sizeof sizes / sizeof sizes[0]; n++) {
        if (a.w != sizes[n][0] || a.h != sizes[n][1]) {
            a.w = sizes[n][0], a.h = sizes[n][1], a.n = sizes[n][2];
            pthread_join(thread, NULL);
            for (int i = 0; i < buffer.X.rows; i++)
                seen[which(buffer.y.vals[i])] = true; /* dropped: it was the next one */
            count += buffer.X.rows;
            free_data(buffer);
            thread = load_data(a);
        }
        pthread_join(thread, NULL);
        train = buffer;
        CHECK(train.X.rows == a.n && train.X.cols == a.w * a.h * 3);
        if (count + 2 * a.n <= PICTURES)
            thread = load_data(a);
        CHECK(check_rows(&train, &a) == a.n);
        for (int i = 0; i < a.n; i++) {
            int p = which(train.y.vals[i]);
            CHECK(p >= 0 && !seen[p]);
            seen[p] = true;
        }
        count += a.n;
        free_data(train);
    }
    CHECK(count == 36);
}

static void classes(void) {
    static char *labels[] = {"cat", "dog", "cow"};
    data d;
    load_args a = {.type = CLASSIFICATION_DATA,
                   .d = &d,
                   .paths = paths,
                   .labels = labels,
                   .n = BATCH,
                   .m = PICTURES,
                   .w = 64,
                   .h = 64,
                   .size = 64,
                   .min = 64,
                   .max = 128,
                   .classes = 3,
                   .flip = 1,
                   .aspect = 0.75F,
                   .label_smooth_eps = 0.1F};
    int of[3] = {0};
    for (int n = 0; n < PICTURES / BATCH; n++) {
        data b = load(&a);
        CHECK(b.y.cols == 3);
        for (int i = 0; i < BATCH; i++) {
            const float *y = b.y.vals[i];
            int k = y[0] > 0.5F ? 0 : y[1] > 0.5F ? 1 : 2;
            of[k]++;
            for (int j = 0; j < 3; j++)
                CHECK(fabsf(y[j] - (j == k ? 0.9F : 0.05F)) < 1e-6F);
        }
        free_data(b);
    }
    CHECK(of[0] == 14 && of[1] == 13 && of[2] == 13); /* all pictures, once */
}

/* Fewer pictures than a batch: they repeat; all of them are there. */
static void few_pictures(void) {
    data d;
    load_args a = detection(&d);
    int seen[3] = {0};
    a.m = 3;
    for (int n = 0; n < 3; n++) {
        data b = load(&a);
        for (int i = 0; i < BATCH; i++)
            seen[which(b.y.vals[i])]++;
        free_data(b);
    }
    CHECK(seen[0] == 8 && seen[1] == 8 && seen[2] == 8);
}

static void write_text(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    CHECK(f && fputs(text, f) >= 0);
    fclose(f);
}

/* Label files as people write them; more boxes than fit; one of less than a pixel, one outside, one over the edge. */
static void label_files(void) {
    data d;
    load_args a = detection(&d);
    a.n = 1;
    a.m = 1;
    write_text("voc/labels/cat_00.txt",
               "\n  1 0.5 0.5 0.25 0.125\r\n\n2 0.1 0.2 0.001 0.5\n0 1.5 0.5 0.2 0.2\n2\t0.95 0.5 0.2 0.5");
    data b = load(&a);
    const float *y = b.y.vals[0];
    static const float wanted[2][5] = {{0.5F, 0.5F, 0.25F, 0.125F, 1}, {0.925F, 0.5F, 0.15F, 0.5F, 2}};
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 5; j++)
            CHECK(fabsf(y[i * STRIDE + j] - wanted[i][j]) < 1e-6F);
    CHECK(y[5] != y[STRIDE + 5]);
    CHECK(y[2 * STRIDE + 2] == 0);
    free_data(b);
}

static void too_many_boxes(void) {
    data d;
    load_args a = detection(&d);
    a.n = a.m = 1;
    bool seen[8] = {false};
    FILE *f = fopen("voc/labels/cat_00.txt", "w");
    CHECK(f);
    for (int i = 0; i < 8; i++)
        fprintf(f, "%d %g 0.5 0.1 0.1\n", i % 3, (i + 1) / 10.0);
    fclose(f);
    for (int n = 0; n < 8; n++) {
        data b = load(&a);
        for (int k = 0; k < MAX_BOXES; k++)
            seen[(int)lrintf(b.y.vals[0][k * STRIDE] * 10) - 1] = true;
        free_data(b);
    }
    for (int i = 0; i < 8; i++)
        CHECK(seen[i]);
}

/* A picture without a label file shows nothing. */
static void no_labels(void) {
    data d;
    load_args a = detection(&d);
    a.n = a.m = 1;
    CHECK(unlink("voc/labels/cat_00.txt") == 0);
    data b = load(&a);
    for (int i = 0; i < STRIDE * MAX_BOXES; i++)
        CHECK(b.y.vals[0][i] == 0);
    free_data(b);
}

static load_args refused;

static void try_refused(void) {
    load(&refused);
}

/* Ends the program with a sentence that has this word. */
static void refuses(const load_args *a, const char *word) {
    char text[2048];
    int fds[2], status;
    refused = *a;
    CHECK(pipe(fds) == 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(fds[1], 2);
        try_refused();
        _exit(0);
    }
    close(fds[1]);
    size_t length = 0;
    for (ssize_t n; length < sizeof text - 1 && (n = read(fds[0], text + length, sizeof text - 1 - length)) > 0;)
        length += (size_t)n;
    text[length] = '\0';
    close(fds[0]);
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == EXIT_FAILURE);
    if (!strstr(text, word)) {
        fprintf(stderr, "%s: wanted \"%s\" in: %s\n", test, word, text);
        exit(2);
    }
}

static void refusals(void) {
    static char *labels[] = {"cat", "dog", "cow"};
    data d;
    load_args a = detection(&d), b;
#define REFUSES(change, word) (b = a, b.change, refuses(&b, word))
    REFUSES(mixup = 3, "mosaic");
    REFUSES(blur = 1, "blur");
    REFUSES(gaussian_noise = 10, "gaussian_noise");
    REFUSES(letter_box = 1, "letter_box");
    REFUSES(track = 1, "track");
    REFUSES(contrastive = 1, "contrastive");
    REFUSES(show_imgs = 1, "show_imgs");
    REFUSES(resize = 1.5F, "resize");
    REFUSES(c = 1, "channels");
    REFUSES(type = REGION_DATA, "data of type 3");
    REFUSES(n = 0, "must be positive");
    REFUSES(classes = 1, "have class");
    a.type = CLASSIFICATION_DATA;
    a.labels = labels;
    REFUSES(angle = 7, "angle");
    REFUSES(labels = NULL, "unsupervised");
    REFUSES(hierarchy = &d, "hierarchy");
    a = detection(&d);
    a.n = a.m = 1;
    write_text("voc/labels/cat_00.txt", "1 0.5 0.5 0.2 0.2\n1 0.5 0.5 0.2\n");
    refuses(&a, "cat_00.txt: line 2 is no box");
    write_text("voc/labels/cat_00.txt", "1 0.5 nan 0.2 0.2\n");
    refuses(&a, "line 1 is no box");
    setenv("LOADERD_DARKNET_KEYS", "image=32", 1);
    refuses(&a, "LOADERD_DARKNET_KEYS");
    setenv("LOADERD_DARKNET_KEYS", "bathc=3", 1);
    refuses(&a, "bathc");
}

static const struct {
    const char *name;
    void (*run)(void);
} tests[] = {
    {"whole pictures", whole_pictures},
    {"boxes follow", boxes_follow},
    {"sizes change", sizes_change},
    {"classes", classes},
    {"few pictures", few_pictures},
    {"label files", label_files},
    {"too many boxes", too_many_boxes},
    {"no labels", no_labels},
    {"refusals", refusals},
};

int main(void) {
    int failures = 0;
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        char directory[] = "/tmp/loaderd-darknet-test-XXXXXX", command[128];
        int status = 0;
        test = tests[i].name;
        CHECK(mkdtemp(directory) && chdir(directory) == 0);
        setenv("XDG_RUNTIME_DIR", directory, 1);
        setenv("TMPDIR", directory, 1);
        unsetenv("LOADERD_DARKNET_KEYS");
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0) {
            make_pictures();
            tests[i].run();
            exit(0);
        }
        CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
        bool passed = WIFEXITED(status) && WEXITSTATUS(status) == 0;
        printf("%s: %s\n", passed ? "ok" : "FAILED", test);
        fflush(stdout);
        failures += !passed;
        CHECK(chdir("/") == 0);
        snprintf(command, sizeof command, "rm -rf %s", directory);
        CHECK(system(command) == 0);
    }
    return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
