/* SPDX-License-Identifier: MIT */
/* The report of loaderctl tune: see tune_report.h. It is also well-formed XML, so that any parser can check it. */
#include "tune_report.h"

#include <inttypes.h>
#include <math.h>

#include "base/util.h"

#define WIDE 860.0 /* of a plot, in its own units */
#define HIGH 320.0
#define LEFT 80.0
#define RIGHT 190.0 /* room for names of lines */
#define TOP 20.0
#define BOTTOM 45.0

static const char *const colors[] = {"#b0b0b0", "#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2"};

static void escape(FILE *out, const char *text) {
    for (; *text; text++) {
        if (*text == '<')
            fputs("&lt;", out);
        else if (*text == '>')
            fputs("&gt;", out);
        else if (*text == '&')
            fputs("&amp;", out);
        else if (*text == '"')
            fputs("&quot;", out);
        else if ((unsigned char)*text >= 0x20 || *text == '\n' || *text == '\t')
            fputc(*text, out);
    }
}

double tune_axis(double value) {
    if (!(value > 0) || !isfinite(value))
        return 1;
    double power = pow(10, floor(log10(value)));
    const double step[] = {1, 2, 5, 10};
    for (size_t i = 0; i < ARRAY_SIZE(step); i++)
        if (value <= step[i] * power * (1 + 1e-9))
            return step[i] * power;
    return 10 * power;
}

struct plot {
    double x_end, y_end; /* values at the ends of the axes; both begin at 0 */
};

static double at_x(const struct plot *p, double x) {
    return LEFT + x / p->x_end * (WIDE - LEFT - RIGHT);
}

static double at_y(const struct plot *p, double y) {
    return HIGH - BOTTOM - y / p->y_end * (HIGH - TOP - BOTTOM);
}

static void text_at(FILE *out, double x, double y, const char *anchor, const char *text) {
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    escape(out, text);
    fputs("</text>\n", out);
}

static void line(FILE *out, double x1, double y1, double x2, double y2, const char *style) {
    fprintf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" style=\"%s\"/>\n", x1, y1, x2, y2, style);
}

static void begin_plot(FILE *out, const struct plot *p, const char *id, const char *x_name, const char *y_name) {
    char text[32];
    fprintf(out, "<svg id=\"%s\" viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"%s against %s\">\n", id, WIDE,
            HIGH, y_name, x_name);
    for (int i = 0; i <= 5; i++) {
        double y = p->y_end * i / 5;
        line(out, LEFT, at_y(p, y), WIDE - RIGHT, at_y(p, y), i ? "stroke:#ddd" : "stroke:#333");
        snprintf(text, sizeof text, "%.6g", y);
        text_at(out, LEFT - 8, at_y(p, y) + 4, "end", text);
    }
    text_at(out, (LEFT + WIDE - RIGHT) / 2, HIGH - 6, "middle", x_name);
    text_at(out, LEFT, TOP - 6, "start", y_name);
}

/* A ceiling as a line that ends at the top of the plot at the latest, with its name. */
static void draw_ceiling(FILE *out, const struct plot *p, const struct tune_ceiling *c, size_t color, double *label) {
    char style[96];
    double x = p->x_end, y = c->per_worker > 0 ? c->per_worker * x : c->all;
    if (!(y > 0))
        return;
    if (c->per_worker > 0 && y > p->y_end) {
        x = p->y_end / c->per_worker;
        y = p->y_end;
    }
    if (y > p->y_end)
        return; /* far above: named in the table */
    snprintf(style, sizeof style, "stroke:%s;stroke-width:2;stroke-dasharray:6 4", colors[color % ARRAY_SIZE(colors)]);
    line(out, at_x(p, 0), at_y(p, c->per_worker > 0 ? 0 : y), at_x(p, x), at_y(p, y), style);
    double at = MAX(at_y(p, y), *label + 14);
    *label = at;
    fprintf(out, "<g style=\"fill:%s\">", colors[color % ARRAY_SIZE(colors)]);
    text_at(out, WIDE - RIGHT + 8, at + 4, "start", c->name);
    fputs("</g>\n", out);
}

static void print_throughput(FILE *out, const struct tune_report *r) {
    double most = r->target;
    uint32_t workers = r->rows ? r->row[r->rows - 1].workers : 1;
    for (uint32_t i = 0; i < r->rows; i++)
        most = MAX(most, r->row[i].rate * (1 + r->row[i].spread));
    struct plot p = {workers * 1.05, tune_axis(most * 1.15)};
    double label = 0;
    char text[64];
    begin_plot(out, &p, "throughput", "workers", "samples a second");
    for (uint32_t i = 0; i < r->ceilings; i++)
        draw_ceiling(out, &p, &r->ceiling[i], i + 2, &label);
    if (r->target > 0) {
        line(out, at_x(&p, 0), at_y(&p, r->target), at_x(&p, p.x_end), at_y(&p, r->target), "stroke:#c00");
        text_at(out, at_x(&p, 0) + 4, at_y(&p, r->target) - 4, "start", "what the trainer takes");
    }
    if (r->budget < workers)
        line(out, at_x(&p, r->budget), at_y(&p, 0), at_x(&p, r->budget), at_y(&p, p.y_end),
             "stroke:#888;stroke-dasharray:2 3");
    fputs("<polyline style=\"fill:none;stroke:#4c78a8;stroke-width:2.5\" points=\"", out);
    for (uint32_t i = 0; i < r->rows; i++)
        fprintf(out, "%s%.1f,%.1f", i ? " " : "", at_x(&p, r->row[i].workers), at_y(&p, r->row[i].rate));
    fputs("\"/>\n", out);
    for (uint32_t i = 0; i < r->rows; i++) {
        const struct tune_row *w = &r->row[i];
        double x = at_x(&p, w->workers);
        line(out, x, at_y(&p, w->rate * (1 - w->spread)), x, at_y(&p, w->rate * (1 + w->spread)), "stroke:#4c78a8");
        fprintf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%d\" style=\"fill:%s\"/>\n", x, at_y(&p, w->rate),
                i == r->chosen ? 7 : 4, i == r->chosen ? "#c00" : "#4c78a8");
        snprintf(text, sizeof text, "%" PRIu32, w->workers);
        text_at(out, x, HIGH - BOTTOM + 18, "middle", text);
    }
    fputs("</svg>\n", out);
}

static void print_histogram(FILE *out, const struct tune_report *r) {
    uint64_t most = 1;
    char text[32];
    for (uint32_t i = 0; i < TUNE_BINS; i++)
        most = MAX(most, r->bin[i]);
    struct plot p = {TUNE_BINS, tune_axis((double)most)};
    begin_plot(out, &p, "latency", "milliseconds from batch to batch", "batches");
    for (uint32_t i = 0; i < TUNE_BINS; i++)
        if (r->bin[i])
            fprintf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" style=\"fill:#4c78a8\"/>\n",
                    at_x(&p, i), at_y(&p, (double)r->bin[i]), at_x(&p, 1) - at_x(&p, 0) - 1,
                    at_y(&p, 0) - at_y(&p, (double)r->bin[i]));
    for (uint32_t i = 0; i <= 4; i++) {
        snprintf(text, sizeof text, "%.3g", r->low_ms + (r->high_ms - r->low_ms) * i / 4);
        text_at(out, at_x(&p, TUNE_BINS * i / 4.0), HIGH - BOTTOM + 18, "middle", text);
    }
    fputs("</svg>\n", out);
}

static void print_stages(FILE *out, const struct tune_report *r) {
    struct plot p = {MAX(r->rows, 1u), 100};
    char text[32];
    begin_plot(out, &p, "stages", "workers", "percent of the workers' time");
    for (uint32_t i = 0; i < r->rows; i++) {
        double from = 0;
        for (uint32_t s = TUNE_STAGES; s-- > 0;) { /* idle, the first, on top */
            double share = CLAMP(100 * r->row[i].stage[s], 0.0, 100 - from);
            if (share > 0)
                fprintf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" style=\"fill:%s\"/>\n",
                        at_x(&p, i + 0.15), at_y(&p, from + share), at_x(&p, 0.7) - at_x(&p, 0),
                        at_y(&p, from) - at_y(&p, from + share), colors[s]);
            from += share;
        }
        snprintf(text, sizeof text, "%" PRIu32, r->row[i].workers);
        text_at(out, at_x(&p, i + 0.5), HIGH - BOTTOM + 18, "middle", text);
    }
    for (uint32_t s = 0; s < TUNE_STAGES; s++) {
        fprintf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"12\" style=\"fill:%s\"/>\n", WIDE - RIGHT + 8,
                TOP + 20 * s, colors[s]);
        text_at(out, WIDE - RIGHT + 26, TOP + 20 * s + 11, "start", r->stage_name[s]);
    }
    fputs("</svg>\n", out);
}

static void print_cache(FILE *out, const struct tune_report_cache *c) {
    if (!(c->rate > 0))
        return;
    fprintf(out,
            "<h2>With a cache</h2>\n<table id=\"cache\">\n<tr><th>samples/s, once filled</th><th>MB</th><th>s an epoch "
            "without</th><th>s of the first with</th><th>made up for by more epochs</th></tr>\n"
            "<tr><td>%.1f</td><td>%.1f</td><td>%.3g</td><td>%.3g</td><td>",
            c->rate, c->bytes / 1e6, c->epoch, c->first);
    if (c->pays_after > 0)
        fprintf(out, "%.1f</td></tr>\n</table>\n", c->pays_after);
    else
        fputs("never</td></tr>\n</table>\n", out);
}

static void print_tables(FILE *out, const struct tune_report *r) {
    fputs("<h2>Workers</h2>\n<table>\n<tr><th>workers</th><th>samples/s</th><th>spread</th><th>each core more "
          "brings</th></tr>\n",
          out);
    for (uint32_t i = 0; i < r->rows; i++) {
        const struct tune_row *w = &r->row[i];
        double from = i ? w[-1].rate : 0, cores = w->workers - (i ? w[-1].workers : 0);
        fprintf(out, "<tr%s><td>%" PRIu32 "</td><td>%.1f</td><td>%.1f %%</td><td>%+.1f</td></tr>\n",
                i == r->chosen ? " class=\"chosen\"" : "", w->workers, w->rate, 100 * w->spread,
                cores > 0 ? (w->rate - from) / cores : 0);
    }
    fputs("</table>\n<h2>Other settings</h2>\n<table>\n<tr><th>setting</th><th>samples/s</th><th>spread</th></tr>\n",
          out);
    for (uint32_t i = 0; i < r->bars; i++) {
        fputs("<tr><td>", out);
        escape(out, r->bar[i].name);
        fprintf(out, "</td><td>%.1f</td><td>%.1f %%</td></tr>\n", r->bar[i].rate, 100 * r->bar[i].spread);
    }
    fputs("</table>\n", out);
    print_cache(out, &r->cache);
    fputs("<h2>What the parts can do alone</h2>\n<table>\n<tr><th>part</th><th>samples/s of one "
          "worker</th><th>of the machine</th></tr>\n",
          out);
    for (uint32_t i = 0; i < r->ceilings; i++) {
        const struct tune_ceiling *c = &r->ceiling[i];
        if (!(c->per_worker > 0) && !(c->all > 0))
            continue;
        fputs("<tr><td>", out);
        escape(out, c->name);
        if (c->per_worker > 0)
            fprintf(out, "</td><td>%.1f</td><td></td></tr>\n", c->per_worker);
        else
            fprintf(out, "</td><td></td><td>%.1f</td></tr>\n", c->all);
    }
    fputs("</table>\n", out);
}

void tune_print_report(FILE *out, const struct tune_report *r) {
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<title>", out);
    escape(out, r->title);
    fputs("</title>\n<style>\nbody { font: 15px sans-serif; max-width: 900px; margin: 2em auto; color: #222 }\n"
          "svg { width: 100%; font: 12px sans-serif } pre { background: #f4f4f4; padding: 1em; overflow: auto }\n"
          "table { border-collapse: collapse } td, th { padding: 3px 12px; border-bottom: 1px solid #ddd; text-align: "
          "right }\ntd:first-child, th:first-child { text-align: left } .chosen { background: #fdeaea }\n"
          "</style>\n</head>\n<body>\n<h1>",
          out);
    escape(out, r->title);
    fputs("</h1>\n<p>", out);
    escape(out, r->machine);
    fputs("</p>\n<p><b>", out);
    escape(out, r->sentence);
    fputs("</b></p>\n<h2>Throughput</h2>\n", out);
    print_throughput(out, r);
    fputs("<p>Medians of short windows that took turns; bars are half the range between quartiles. The red point is "
          "what is "
          "recommended; broken lines are what a part can do alone.</p>\n<h2>Time from batch to batch</h2>\n",
          out);
    print_histogram(out, r);
    fputs("<h2>Time by stage</h2>\n", out);
    print_stages(out, r);
    print_tables(out, r);
    fputs("<h2>Configuration</h2>\n<pre>", out);
    escape(out, r->section);
    fputs("</pre>\n</body>\n</html>\n", out);
}
