/* SPDX-License-Identifier: MIT */
/* Stands in for the trainer's header of this name where the shim is tested: the names that the shim uses, no more. */
#ifndef DARKNET_H
#define DARKNET_H

#include <pthread.h>

typedef enum { CLASSIFICATION_DATA, DETECTION_DATA, CAPTCHA_DATA, REGION_DATA } data_type;

typedef struct {
    int rows, cols;
    float **vals;
} matrix;

typedef struct {
    matrix X, y;
    int shallow;
} data;

typedef struct {
    data_type type;
    data *d;
    char **paths, **labels;
    void *hierarchy;
    int n, m, w, h, c, classes, num_boxes, truth_size, min, max, size, flip, threads;
    int mixup, blur, gaussian_noise, letter_box, track, contrastive, show_imgs;
    float jitter, resize, angle, aspect, saturation, exposure, hue, label_smooth_eps;
} load_args;

#endif
