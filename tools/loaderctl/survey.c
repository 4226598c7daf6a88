/* SPDX-License-Identifier: MIT */
/*
 * Looks at samples for `loaderctl inspect` and `verify`: reads each whole and decodes each picture whole, so that damage
 * which no crop would touch is found, too. Never changes a dataset, keeps no sample. Several threads share a counter;
 * each has buffers and a decoder of its own and writes only the notes of the samples that it took.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/util.h"
#include "dataset/dataset.h"
#include "decode/decode.h"
#include "loaderctl.h"

enum state { SOUND, UNREADABLE, BAD, DAMAGED };

/* What was found out about one sample. */
struct note {
    uint64_t bytes;
    int64_t label;
    uint16_t width, height; /* JPEG has 16 bits for either; 0: no picture */
    uint8_t channels, state;
    bool labelled;
};

struct job {
    const struct dataset *dataset;
    const struct survey_options *options;
    uint64_t total, count;
    uint32_t pictures;                 /* bit e: extent e is one */
    const struct dataset_field *boxes; /* or NULL */
    int label;                         /* the field of that name, -1: none */
    const struct dataset_field *fields;
    struct note *notes;
    pthread_mutex_t lock; /* of options->each_bad */
    _Atomic uint64_t next;
};

/* One thread. */
struct checker {
    struct job *job;
    struct decoder *decoder;
    uint8_t *bytes, *pixels;
    size_t bytes_size, pixels_size;
    struct dataset_box *box; /* DATASET_MAX_BOXES of them, once one is looked at */
    struct survey_bad first;
    bool progress;
    pthread_t thread;
};

/* Notes spread evenly over the dataset. */
static uint64_t sample_of(const struct job *job, uint64_t i) {
    return (uint64_t)((unsigned __int128)i * job->total / job->count);
}

static bool grow(uint8_t **buffer, size_t *size, uint64_t wanted) {
    if (wanted <= *size)
        return true;
    uint8_t *grown = realloc(*buffer, wanted);
    if (!grown)
        return false;
    *buffer = grown;
    *size = wanted;
    return true;
}

static int read_fully(int fd, uint8_t *into, uint64_t length, uint64_t offset, struct diag *diag) {
    for (uint64_t done = 0; done < length;) {
        ssize_t n = pread(fd, into + done, length - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return diag_set(diag, -errno, "cannot read at byte %" PRIu64 ": %s", offset + done, strerror(errno));
        if (n == 0)
            return diag_set(diag, -ESTALE,
                            "ends at byte %" PRIu64 ", wanted %" PRIu64 ": shorter than when it was scanned",
                            offset + done, offset + length);
        done += (uint64_t)n;
    }
    return 0;
}

static int read_extent(struct checker *checker, const struct extent *extent, uint64_t *ret_length, struct diag *diag) {
    uint64_t length = extent->length, limit = checker->job->options->limits->max_sample_bytes;
    cleanup_close int opened = -1;
    int fd = extent->file ? extent->file->fd : -1;
    if (!extent->file) {
        struct stat status;
        fd = opened = openat(extent->dirfd, extent->path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
        if (fd < 0 || fstat(fd, &status) < 0)
            return diag_set(diag, -errno, "cannot open: %s", strerror(errno));
        if (!S_ISREG(status.st_mode))
            return diag_set(diag, -EINVAL, "is no regular file");
        if (length == EXTENT_WHOLE_FILE)
            length = (uint64_t)status.st_size;
    }
    if (length > limit)
        return diag_set(diag, -EFBIG, "has %" PRIu64 " bytes, more than max-sample-bytes = %" PRIu64, length, limit);
    if (!grow(&checker->bytes, &checker->bytes_size, MAX(length, 1u)))
        return diag_set(diag, -ENOMEM, "out of memory for %" PRIu64 " bytes", length);
    *ret_length = length;
    return read_fully(fd, checker->bytes, length, extent->offset, diag);
}

static enum state decode_whole(struct checker *checker, const uint8_t *bytes, uint64_t length, struct note *note,
                               struct diag *diag) {
    struct decode_info info;
    enum decode_verdict verdict = decoder_open(checker->decoder, bytes, length, &info, diag);
    if (verdict == DECODE_BAD)
        return BAD;
    if (!note->width) { /* of several pictures the first */
        note->width = (uint16_t)info.width;
        note->height = (uint16_t)info.height;
        note->channels = (uint8_t)info.channels;
    }
    uint32_t channels = info.channels == 1 ? 1 : 3;
    size_t stride = (size_t)info.width * channels;
    if (!grow(&checker->pixels, &checker->pixels_size, stride * info.height)) {
        diag_set(diag, -ENOMEM, "out of memory for %u x %u pixels", info.width, info.height);
        verdict = DECODE_BAD;
    } else {
        const struct box whole = {0, 0, info.width, info.height};
        const struct picture picture = {checker->pixels, stride, info.width, info.height, channels};
        verdict = decoder_read(checker->decoder, channels, &whole, &picture, diag);
    }
    decoder_close(checker->decoder);
    return verdict == DECODE_BAD ? BAD : verdict == DECODE_DAMAGED ? DAMAGED : SOUND;
}

/* The whole of one piece of a sample, by what it holds. */
static enum state check_piece(struct checker *checker, uint32_t piece, const uint8_t *bytes, uint64_t length,
                              struct note *note, struct diag *diag) {
    const struct job *job = checker->job;
    uint32_t count;
    if (job->pictures & 1u << piece)
        return decode_whole(checker, bytes, length, note, diag);
    if (!job->boxes || job->boxes->extent != piece)
        return SOUND;
    if (!checker->box && !(checker->box = malloc(DATASET_MAX_BOXES * sizeof *checker->box))) {
        diag_set(diag, -ENOMEM, "out of memory for boxes");
        return BAD;
    }
    if (dataset_boxes(job->boxes, bytes, length, 1, 1, checker->box, &count, diag) == 0)
        return SOUND;
    diag_prefix(diag, "boxes");
    return BAD;
}

/* An integer of any dtype as it lies in a record, little-endian. */
static int64_t integer(const uint8_t *bytes, uint32_t dtype) {
    union {
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        int64_t i64;
    } value = {0};
    memcpy(&value, bytes, loaderd_dtype_size(dtype));
    switch (dtype) {
    case LOADERD_U8:
        return value.u8;
    case LOADERD_I8:
        return value.i8;
    case LOADERD_U16:
        return value.u16;
    case LOADERD_I16:
        return value.i16;
    case LOADERD_U32:
        return value.u32;
    case LOADERD_I32:
        return value.i32;
    default:
        return value.i64;
    }
}

/* The sample's label, of the index or of the extent that has just been read. */
static void note_label(const struct checker *checker, const struct location *location, int extent, uint64_t length,
                       struct note *note) {
    const struct job *job = checker->job;
    if (job->label < 0)
        return;
    const struct dataset_field *field = &job->fields[job->label];
    if (field->source == SOURCE_VALUE && extent < 0) {
        note->label = location->value[job->label];
        note->labelled = true;
    } else if (field->source == SOURCE_BYTES && (int)field->extent == extent &&
               field->offset + field->bytes <= length) {
        note->label = integer(checker->bytes + field->offset, field->spec.dtype);
        note->labelled = true;
    }
}

/* A record that holds its fields at places of its own. */
static enum state check_pieces(struct checker *checker, uint64_t sample, uint64_t length, struct location *location,
                               struct note *note, struct diag *diag) {
    struct dataset_piece piece[MAX_EXTENTS];
    const struct job *job = checker->job;
    enum state state = SOUND;
    if (dataset_split(job->dataset, sample, checker->bytes, length, piece, location->value, diag) < 0)
        return BAD;
    note_label(checker, location, -1, 0, note);
    for (uint32_t i = 0; i < MAX_EXTENTS && state == SOUND; i++)
        state = check_piece(checker, i, piece[i].bytes, piece[i].length, note, diag);
    return state;
}

static enum state check_sample(struct checker *checker, uint64_t sample, struct note *note, struct diag *diag) {
    struct location location;
    enum state state = SOUND;
    const struct job *job = checker->job;
    bool checksums = dataset_has_check(job->dataset);
    uint32_t crc = 0;
    dataset_locate(job->dataset, sample, &location);
    if (!dataset_splits(job->dataset))
        note_label(checker, &location, -1, 0, note);
    for (uint32_t i = 0; i < location.extents && state == SOUND; i++) {
        uint64_t length = 0;
        int r = read_extent(checker, &location.extent[i], &length, diag);
        note->bytes += length;
        if (r < 0)
            state = r == -EFBIG ? BAD : UNREADABLE;
        else if (checksums && dataset_check(job->dataset, sample, i, checker->bytes, length, &crc, diag) < 0)
            state = BAD;
        else if (checksums && job->options->checksums)
            state = SOUND;
        else if (dataset_splits(job->dataset))
            state = check_pieces(checker, sample, length, &location, note, diag);
        else
            state = check_piece(checker, i, checker->bytes, length, note, diag);
        if (r == 0 && !dataset_splits(job->dataset))
            note_label(checker, &location, (int)i, length, note);
    }
    return state;
}

static void keep_first(struct survey_bad *first, uint64_t sample, const char *text) {
    if (first->found && first->sample <= sample)
        return;
    *first = (struct survey_bad){.found = true, .sample = sample};
    snprintf(first->text, sizeof first->text, "%s", text);
}

static void *check_samples(void *argument) {
    struct checker *checker = argument;
    struct job *job = checker->job;
    uint64_t shown_ns = now_ns();
    for (uint64_t i; (i = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed)) < job->count;) {
        struct diag diag = DIAG_INIT;
        enum state state = check_sample(checker, sample_of(job, i), &job->notes[i], &diag);
        job->notes[i].state = (uint8_t)state;
        if (state != SOUND)
            keep_first(&checker->first, sample_of(job, i), diag.text);
        if (state != SOUND && job->options->each_bad) {
            pthread_mutex_lock(&job->lock);
            job->options->each_bad(job->options->arg, sample_of(job, i), diag.text);
            pthread_mutex_unlock(&job->lock);
        }
        if (checker->progress && now_ns() - shown_ns > UINT64_C(500000000)) {
            shown_ns = now_ns();
            fprintf(stderr, "\r\033[K%" PRIu64 " of %" PRIu64 " samples", i, job->count);
        }
    }
    if (checker->progress)
        fputs("\r\033[K", stderr);
    return NULL;
}

static int compare(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Least, median and most of n >= 1 values; sorts them. */
static void spread(uint64_t *values, uint64_t n, uint64_t *ret_least, uint64_t *ret_median, uint64_t *ret_most) {
    qsort(values, n, sizeof *values, compare);
    *ret_least = values[0];
    *ret_median = values[n / 2];
    *ret_most = values[n - 1];
}

static void sum_sizes(const struct job *job, uint64_t *values, struct survey *ret) {
    uint64_t least, median, most, n = 0, sum = 0;
    for (uint64_t i = 0; i < job->count; i++)
        sum += values[i] = job->notes[i].bytes;
    spread(values, job->count, &ret->bytes_min, &ret->bytes_median, &ret->bytes_max);
    ret->bytes_mean = sum / job->count;
    for (uint64_t i = 0; i < job->count; i++)
        if (job->notes[i].width)
            values[n++] = job->notes[i].width;
    ret->pictures = n > 0;
    if (!n)
        return;
    spread(values, n, &least, &median, &most);
    ret->width_min = (uint32_t)least, ret->width_median = (uint32_t)median, ret->width_max = (uint32_t)most;
    n = 0;
    for (uint64_t i = 0; i < job->count; i++)
        if (job->notes[i].width)
            values[n++] = job->notes[i].height;
    spread(values, n, &least, &median, &most);
    ret->height_min = (uint32_t)least, ret->height_median = (uint32_t)median, ret->height_max = (uint32_t)most;
}

static int compare_signed(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void sum_labels(const struct job *job, uint64_t *scratch, struct survey *ret) {
    int64_t *labels = (int64_t *)scratch;
    uint64_t n = 0;
    for (uint64_t i = 0; i < job->count; i++)
        if (job->notes[i].labelled)
            labels[n++] = job->notes[i].label;
    if (!n)
        return;
    qsort(labels, n, sizeof *labels, compare_signed);
    ret->label_min = labels[0];
    ret->label_max = labels[n - 1];
    for (uint64_t i = 0; i < n; i++)
        ret->labels += i == 0 || labels[i] != labels[i - 1];
}

static void sum_states(const struct job *job, struct survey *ret) {
    for (uint64_t i = 0; i < job->count; i++) {
        const struct note *note = &job->notes[i];
        ret->unreadable += note->state == UNREADABLE;
        ret->bad += note->state == BAD;
        ret->damaged += note->state == DAMAGED;
        ret->gray += note->channels == 1;
        ret->color += note->channels == 3;
        ret->cmyk += note->channels == 4;
    }
}

static void find_fields(struct job *job) {
    uint32_t n = dataset_fields(job->dataset, &job->fields);
    job->label = -1;
    for (uint32_t i = 0; i < n; i++) {
        const struct field_spec *spec = &job->fields[i].spec;
        if (job->fields[i].source == SOURCE_PICTURE)
            job->pictures |= 1u << job->fields[i].extent;
        if (job->fields[i].source == SOURCE_BOXES)
            job->boxes = &job->fields[i];
        if (strcmp(spec->name, "label") == 0 && spec->ndim == 0 && spec->dtype <= LOADERD_I64)
            job->label = (int)i;
    }
}

/* Thread 0 is the caller. Those that do not start leave their share to the others. */
static int run_checkers(struct job *job, struct checker *checkers, uint32_t threads, struct diag *diag) {
    const struct daemon_config *limits = job->options->limits;
    const struct decode_limits decode = {.max_pixels = limits->max_pixels, .max_scans = limits->max_scans};
    uint32_t started = 1, ready = 0;
    for (; ready < threads; ready++) {
        checkers[ready].job = job;
        if (decoder_new(&decode, &checkers[ready].decoder) < 0)
            break;
    }
    if (!ready)
        return diag_set(diag, -ENOMEM, "out of memory for a decoder");
    checkers[0].progress = isatty(STDERR_FILENO);
    while (started < ready && pthread_create(&checkers[started].thread, NULL, check_samples, &checkers[started]) == 0)
        started++;
    check_samples(&checkers[0]);
    for (uint32_t i = 1; i < started; i++)
        pthread_join(checkers[i].thread, NULL);
    return 0;
}

int survey_run(const struct dataset *dataset, const struct survey_options *options, struct survey *ret,
               struct diag *diag) {
    struct job job = {.dataset = dataset, .options = options, .total = dataset_samples(dataset)};
    uint32_t threads = MAX(options->threads, 1u);
    struct survey survey = {0};
    job.count = MIN(options->samples, job.total);
    pthread_mutex_init(&job.lock, NULL);
    find_fields(&job);
    cleanup_free struct checker *checkers = calloc(threads, sizeof *checkers);
    cleanup_free struct note *notes = calloc(MAX(job.count, 1u), sizeof *notes);
    cleanup_free uint64_t *values = calloc(MAX(job.count, 1u), sizeof *values);
    if (!checkers || !notes || !values)
        return diag_set(diag, -ENOMEM, "out of memory for notes on %" PRIu64 " samples", job.count);
    job.notes = notes;
    int r = run_checkers(&job, checkers, threads, diag);
    for (uint32_t i = 0; i < threads; i++) {
        if (checkers[i].first.found)
            keep_first(&survey.first, checkers[i].first.sample, checkers[i].first.text);
        decoder_free(checkers[i].decoder);
        free(checkers[i].bytes);
        free(checkers[i].pixels);
        free(checkers[i].box);
    }
    if (r < 0)
        return r;
    survey.samples = job.count;
    if (job.count) {
        sum_sizes(&job, values, &survey);
        sum_states(&job, &survey);
        sum_labels(&job, values, &survey);
    }
    *ret = survey;
    return 0;
}
