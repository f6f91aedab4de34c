/* TensorBoard's event files. See tensorboard.h. */
#include "report/tensorboard.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    TAG_BYTES = 48,
    EVENT_BYTES = 128, /* enough for any event here: a tag, and fields of fixed size */
    RECORD_BYTES = 8 + 4 + EVENT_BYTES + 4,
    SCALARS_MAX = 16 + 2 * LANE_COUNT + TIER_COUNT,
    SESSION_START = 1,
};

static const char name_begin[] = "events.out.tfevents.";

/* ---- bytes ---- */

struct bytes {
    unsigned char *data;
    size_t count;
};

static void put(struct bytes *out, const void *data, size_t count)
{
    memcpy(out->data + out->count, data, count);
    out->count += count;
}

/* The `count` low bytes of a number, the lowest first. */
static void put_fixed(struct bytes *out, uint64_t value, size_t count)
{
    for (size_t i = 0; i < count; i++)
        out->data[out->count++] = (unsigned char)(value >> 8 * i);
}

static void put_varint(struct bytes *out, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        out->data[out->count++] = (unsigned char)(value | 0x80);
    out->data[out->count++] = (unsigned char)value;
}

/* A field's number with its wire type: 0 varint, 1 eight bytes, 2 counted bytes, 5 four bytes. */
static void put_key(struct bytes *out, unsigned field, unsigned type)
{
    put_varint(out, field << 3 | type);
}

static void put_counted(struct bytes *out, unsigned field, const void *data, size_t count)
{
    put_key(out, field, 2);
    put_varint(out, count);
    put(out, data, count);
}

/* CRC32C, four bits at a time. An event has some 50 bytes and a step some 30 events. */
static uint32_t masked_crc(const unsigned char *data, size_t count)
{
    static const uint32_t table[16] = {
        0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
        0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
        0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
    };
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < count; i++) {
        crc ^= data[i];
        crc = crc >> 4 ^ table[crc & 15];
        crc = crc >> 4 ^ table[crc & 15];
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static void put_record(struct bytes *out, const struct bytes *event)
{
    size_t begin = out->count;
    put_fixed(out, event->count, 8);
    put_fixed(out, masked_crc(out->data + begin, 8), 4);
    put(out, event->data, event->count);
    put_fixed(out, masked_crc(event->data, event->count), 4);
}

/* ---- events ---- */

static void begin_event(struct bytes *out, double wall_seconds, uint64_t step)
{
    uint64_t bits;
    memcpy(&bits, &wall_seconds, sizeof bits);
    put_key(out, 1, 1);
    put_fixed(out, bits, 8);
    put_key(out, 2, 0);
    put_varint(out, step);
}

/* The events that one line of the metrics becomes. */
struct events {
    struct bytes records;
    double wall_seconds;
    uint64_t step;
    uint32_t scalar_count;
};

static void put_scalar(struct events *self, const char *group, const char *name, double value)
{
    unsigned char value_data[TAG_BYTES + 16], summary_data[TAG_BYTES + 24], event_data[EVENT_BYTES];
    struct bytes one = {value_data, 0}, summary = {summary_data, 0}, event = {event_data, 0};
    char tag[TAG_BYTES];
    float number = (float)value;
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    int length = snprintf(tag, sizeof tag, "%s/%s", group, name);
    assert(length > 0 && length < TAG_BYTES && self->scalar_count < SCALARS_MAX);
    self->scalar_count++;
    put_counted(&one, 1, tag, (size_t)length);
    put_key(&one, 2, 5);
    put_fixed(&one, bits, 4);
    put_counted(&summary, 1, one.data, one.count);
    begin_event(&event, self->wall_seconds, self->step);
    put_counted(&event, 5, summary.data, summary.count);
    put_record(&self->records, &event);
}

static void put_step(struct events *self, const metrics_line *line)
{
    put_scalar(self, "train", "loss", (double)line->loss);
    put_scalar(self, "train", "grad_norm", line->grad_norm);
    put_scalar(self, "train", "lr", line->lr);
    put_scalar(self, "train", "loss_scale", line->loss_scale);
    if (line->has_router_losses) {
        put_scalar(self, "train", "balance_loss", line->balance_loss);
        put_scalar(self, "train", "router_z_loss", line->router_z_loss);
    }
    put_scalar(self, "speed", "seconds", line->seconds);
    put_scalar(self, "speed", "tokens_per_second", line->tokens_per_second);
    put_scalar(self, "speed", "model_tflops", line->model_tflops);
    for (int i = 0; line->seconds > 0 && i < LANE_COUNT; i++) {
        const char *name = lane_kind_name((enum lane_kind)i);
        put_scalar(self, "lanes_busy", name, line->lanes[i].busy_seconds / line->seconds);
        put_scalar(self, "lanes_stall", name, line->lanes[i].stall_seconds / line->seconds);
    }
    for (int tier = 0; tier < TIER_COUNT; tier++)
        put_scalar(self, "peak_bytes", tier_name((enum tier)tier), (double)line->peak_bytes[tier]);
}

static double wall_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* ---- the file ---- */

/* Readers would wait at a partial record. */
static int append(tensorboard_file *self, const struct bytes *records)
{
    int rc = file_append(self->fd, records->data, records->count);
    return rc < 0 ? err_errno(-rc, "cannot write to the event file %s", self->path) : 0;
}

/* The time in the name of a new file: now, and later than those of all files that are there. */
static int choose_time(const char *directory, long long *seconds)
{
    *seconds = (long long)wall_clock();
    DIR *list = opendir(directory);
    if (!list)
        return err_errno(errno, "cannot read the directory of event files %s", directory);
    for (struct dirent *entry; (entry = readdir(list));) {
        if (strncmp(entry->d_name, name_begin, sizeof name_begin - 1) != 0)
            continue;
        long long other = strtoll(entry->d_name + sizeof name_begin - 1, NULL, 10);
        if (other >= *seconds && other < 9999999999)
            *seconds = other + 1;
    }
    closedir(list);
    return 0;
}

/* Writes the file's first two records. */
static int begin_file(tensorboard_file *self, uint64_t first_step)
{
    static const char version[] = "brain.Event:2";
    unsigned char data[2 * RECORD_BYTES], event_data[EVENT_BYTES], log_data[8];
    struct bytes records = {data, 0}, event = {event_data, 0}, log = {log_data, 0};
    begin_event(&event, wall_clock(), 0);
    put_counted(&event, 3, version, sizeof version - 1);
    put_record(&records, &event);
    event.count = 0;
    begin_event(&event, wall_clock(), first_step);
    put_key(&log, 1, 0);
    put_varint(&log, SESSION_START);
    put_counted(&event, 7, log.data, log.count);
    put_record(&records, &event);
    return append(self, &records);
}

int tensorboard_file_open(tensorboard_file *self, const char *directory, int mode,
                          uint64_t first_step)
{
    char host[256] = "localhost";
    long long seconds;
    self->fd = -1;
    int rc = file_make_directories(directory, mode, NULL);
    if (rc < 0)
        return err_prefix(rc, "run.tensorboard");
    TRY(choose_time(directory, &seconds));
    (void)gethostname(host, sizeof host - 1);
    do { /* a run that starts in the same second takes the next one */
        int length = snprintf(self->path, sizeof self->path, "%s/%s%010lld.%.200s.sluice",
                              directory, name_begin, seconds++, host);
        if (length < 0 || (size_t)length >= sizeof self->path)
            return err_errno(ENAMETOOLONG, "the event file %s", directory);
        rc = file_create(self->path, O_WRONLY | O_EXCL, mode, &self->fd);
    } while (rc == -EEXIST);
    if (rc < 0)
        return err_prefix(rc, "the event file");
    rc = begin_file(self, first_step);
    if (rc < 0)
        tensorboard_file_close(self);
    return rc;
}

int tensorboard_file_write(tensorboard_file *self, const metrics_line *line)
{
    unsigned char data[SCALARS_MAX * RECORD_BYTES];
    struct events all = {.records = {data, 0}, .wall_seconds = wall_clock(), .step = line->step};
    if (line->is_eval)
        put_scalar(&all, "valid", "loss", (double)line->valid_loss);
    else
        put_step(&all, line);
    return append(self, &all.records);
}

void tensorboard_file_close(tensorboard_file *self)
{
    if (self->fd >= 0)
        close(self->fd);
    self->fd = -1;
}
