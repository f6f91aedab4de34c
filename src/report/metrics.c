/* metrics.jsonl. See metrics.h. */
#include "report/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/dtype.h"
#include "base/file.h"
#include "report/report_names_internal.h"

enum { CHUNK_BYTES = 16384 };

static void append_field(profi_text *text, const char *name, double value)
{
    profi_append(text, ",\"%s\":", name);
    profi_append_number(text, value);
}

static void append_count(profi_text *text, const char *name, uint64_t value)
{
    profi_append(text, ",\"%s\":%llu", name, (unsigned long long)value);
}

static void append_tokens(profi_text *text, const metrics_line *line)
{
    append_count(text, "tokens", line->tokens);
    if (line->has_counted)
        append_count(text, "counted_tokens", line->counted_tokens);
}

static void append_eval(profi_text *text, const metrics_line *line)
{
    profi_append(text, "{\"event\":\"eval\"");
    append_count(text, "step", line->step);
    append_field(text, "valid_loss", (double)line->valid_loss);
    profi_append(text, ",\"valid_loss_bits\":\"%08x\"", fp32_bits(line->valid_loss));
    append_tokens(text, line);
    append_field(text, "seconds", line->seconds);
    profi_append(text, "}\n");
}

static void append_lanes(profi_text *text, const metrics_line *line)
{
    profi_append(text, ",\"lanes\":{");
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        const metrics_lane *one = &line->lanes[lane];
        profi_append(text, "%s\"%s\":{\"bytes\":%llu", lane ? "," : "",
                     lane_kind_name((enum lane_kind)lane), (unsigned long long)one->bytes);
        if (one->spared_bytes > 0)
            profi_append(text, ",\"spared_bytes\":%llu", (unsigned long long)one->spared_bytes);
        append_field(text, "busy_seconds", one->busy_seconds);
        append_field(text, "stall_seconds", one->stall_seconds);
        profi_append(text, "}");
    }
    profi_append(text, "}");
}

static void append_step(profi_text *text, const metrics_line *line)
{
    profi_append(text, "{\"step\":%llu", (unsigned long long)line->step);
    append_field(text, "loss", (double)line->loss);
    profi_append(text, ",\"loss_bits\":\"%08x\"", fp32_bits(line->loss));
    if (line->has_router_losses) {
        append_field(text, "balance_loss", line->balance_loss);
        append_field(text, "router_z_loss", line->router_z_loss);
    }
    append_field(text, "grad_norm", line->grad_norm);
    append_field(text, "lr", line->lr);
    append_field(text, "loss_scale", line->loss_scale);
    profi_append(text, ",\"skipped\":%s", line->skipped ? "true" : "false");
    append_tokens(text, line);
    append_field(text, "seconds", line->seconds);
    append_field(text, "tokens_per_second", line->tokens_per_second);
    append_field(text, "model_tflops", line->model_tflops);
    append_lanes(text, line);
    if (line->expert_passes > 0)
        profi_append(text, ",\"experts\":{\"passes\":%llu,\"passes_hit\":%llu}",
                     (unsigned long long)line->expert_passes,
                     (unsigned long long)line->expert_passes_hit);
    profi_append(text, ",\"peak_bytes\":{");
    for (int arena = 0; arena < TIER_COUNT; arena++)
        profi_append(text, "%s\"%s\":%llu", arena ? "," : "", tier_name((enum tier)arena),
                     (unsigned long long)line->peak_bytes[arena]);
    profi_append(text, "}}\n");
}

int metrics_format(const metrics_line *line, char *text, size_t text_bytes)
{
    if (text_bytes == 0)
        return err_set(-ENOSPC, "a line of metrics needs a buffer");
    profi_text out;
    profi_text_init(&out, text, text_bytes);
    if (line->is_eval)
        append_eval(&out, line);
    else
        append_step(&out, line);
    if (out.is_cut)
        return err_set(-ENOSPC, "a line of metrics does not fit in %zu bytes", text_bytes);
    return (int)out.length;
}

/* True if the line has a step that is not above the last one. */
static bool is_within(const char *line, uint64_t last_step)
{
    static const char name[] = "\"step\":";
    const char *field = strstr(line, name);
    if (!field)
        return false;
    char *end;
    unsigned long long step = strtoull(field + strlen(name), &end, 10);
    return end != field + strlen(name) && step <= last_step;
}

/* Finds the end of the leading whole lines whose step is not above the last one. */
static int find_end(int fd, const char *path, uint64_t last_step, uint64_t *end_bytes)
{
    char chunk[CHUNK_BYTES], line[128]; /* the first bytes of a line */
    size_t line_length = 0;
    uint64_t offset = 0;
    *end_bytes = 0;
    while (last_step > 0) {
        ssize_t got = pread(fd, chunk, sizeof chunk, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_errno(errno, "cannot read the metrics file %s", path);
        if (got == 0)
            break;
        for (ssize_t i = 0; i < got; i++) {
            if (chunk[i] != '\n') {
                if (line_length < sizeof line - 1)
                    line[line_length++] = chunk[i];
                continue;
            }
            line[line_length] = '\0';
            line_length = 0;
            if (!is_within(line, last_step))
                return 0;
            *end_bytes = offset + (uint64_t)i + 1;
        }
        offset += (uint64_t)got;
    }
    return 0;
}

/* A device may never end, a pipe may never begin, and neither can be cut. */
static int check_regular(int fd, const char *path)
{
    struct stat info;
    if (fstat(fd, &info) < 0)
        return err_errno(errno, "cannot examine the metrics file %s", path);
    if (!S_ISREG(info.st_mode))
        return err_set(-EINVAL, "the metrics file %s is not a regular file", path);
    return 0;
}

int metrics_file_open(metrics_file *self, const char *path, int mode, uint64_t last_step)
{
    self->fd = -1;
    int length = snprintf(self->path, sizeof self->path, "%s", path);
    if (length < 0 || (size_t)length >= sizeof self->path)
        return err_errno(ENAMETOOLONG, "the metrics file %s", path);
    int fd;
    int rc = file_create(path, O_RDWR | O_APPEND, mode, &fd);
    if (rc < 0)
        return err_prefix(rc, "the metrics file");
    uint64_t end_bytes = 0;
    rc = check_regular(fd, path);
    if (rc == 0)
        rc = find_end(fd, path, last_step, &end_bytes);
    if (rc == 0 && ftruncate(fd, (off_t)end_bytes) < 0)
        rc = err_errno(errno, "cannot cut the metrics file %s to %llu bytes", path,
                       (unsigned long long)end_bytes);
    if (rc < 0) {
        close(fd);
        return rc;
    }
    self->fd = fd;
    return 0;
}

int metrics_file_write(metrics_file *self, const metrics_line *line)
{
    char text[METRICS_LINE_BYTES];
    int length = metrics_format(line, text, sizeof text);
    if (length < 0)
        return length;
    /* the next open cuts off a partial line */
    int rc = file_append(self->fd, text, (uint64_t)length);
    return rc < 0 ? err_errno(-rc, "cannot write to the metrics file %s", self->path) : 0;
}

bool metrics_file_ends_evaluated(const metrics_file *self, uint64_t step)
{
    char text[METRICS_LINE_BYTES], wanted[64];
    off_t end = lseek(self->fd, 0, SEEK_END);
    if (end <= 0)
        return false;
    off_t begin = end > (off_t)sizeof text - 1 ? end - ((off_t)sizeof text - 1) : 0;
    ssize_t got = pread(self->fd, text, sizeof text - 1, begin);
    if (got <= 0)
        return false;
    text[got - 1] = '\0'; /* the last newline */
    const char *newline = strrchr(text, '\n');
    const char *last = newline ? newline + 1 : text;
    snprintf(wanted, sizeof wanted, "\"step\":%llu,", (unsigned long long)step);
    return strstr(last, "\"event\":\"eval\"") && strstr(last, wanted);
}

void metrics_file_close(metrics_file *self)
{
    if (self->fd >= 0)
        close(self->fd);
    self->fd = -1;
}
