/* Event files for TensorBoard, read back by a reader of the test's own: each record with both
 * checksums, each event with its step, each scalar with the number of the line. A second opening
 * makes a later file that begins at its step. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "report/tensorboard.h"
#include "tests/directory.h"

enum { EVENTS_MAX = 256 };

struct event {
    uint64_t step;
    double wall_seconds;
    char tag[64]; /* "": no scalar */
    float value;
    char version[32];
    uint64_t session_status; /* 0: none */
};

struct log {
    struct event events[EVENTS_MAX];
    uint32_t count;
};

/* CRC32C bit by bit, by its definition. */
static uint32_t masked_crc(const unsigned char *data, size_t count)
{
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < count; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
    }
    crc ^= UINT32_MAX;
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static uint64_t read_fixed(const unsigned char **at, const unsigned char *end, int count)
{
    uint64_t value = 0;
    assert_true(end - *at >= count);
    for (int i = 0; i < count; i++)
        value |= (uint64_t) * (*at)++ << 8 * i;
    return value;
}

static uint64_t read_varint(const unsigned char **at, const unsigned char *end)
{
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        assert_true(*at < end && shift < 64);
        unsigned char byte = *(*at)++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return value;
    }
}

/* The next field: *key is its number * 8 + wire type, *value its number or the count of its bytes,
 * which then follow. */
static void read_field(const unsigned char **at, const unsigned char *end, uint64_t *key,
                       uint64_t *value)
{
    *key = read_varint(at, end);
    switch (*key & 7) {
    case 1:
        *value = read_fixed(at, end, 8);
        break;
    case 5:
        *value = read_fixed(at, end, 4);
        break;
    default:
        assert_true((*key & 7) == 0 || (*key & 7) == 2);
        *value = read_varint(at, end);
        assert_true((*key & 7) == 0 || *value <= (uint64_t)(end - *at));
    }
}

static void read_message(const unsigned char *at, const unsigned char *end, int level,
                         struct event *out)
{
    while (at < end) {
        uint64_t key, value;
        read_field(&at, end, &key, &value);
        switch (level * 100 + (int)key) {
        case 1 << 3 | 1:
            memcpy(&out->wall_seconds, &value, sizeof value);
            break;
        case 2 << 3 | 0:
            out->step = value;
            break;
        case 3 << 3 | 2:
            snprintf(out->version, sizeof out->version, "%.*s", (int)value, (const char *)at);
            break;
        case 5 << 3 | 2: /* summary */
            read_message(at, at + value, 1, out);
            break;
        case 100 + (1 << 3 | 2): /* its value */
            read_message(at, at + value, 2, out);
            break;
        case 200 + (1 << 3 | 2):
            snprintf(out->tag, sizeof out->tag, "%.*s", (int)value, (const char *)at);
            break;
        case 200 + (2 << 3 | 5): {
            uint32_t bits = (uint32_t)value;
            memcpy(&out->value, &bits, sizeof bits);
            break;
        }
        case 7 << 3 | 2: /* session_log */
            read_message(at, at + value, 3, out);
            break;
        case 300 + (1 << 3 | 0):
            out->session_status = value;
            break;
        default:
            fail_msg("field %llu at level %d", (unsigned long long)key, level);
        }
        if ((key & 7) == 2)
            at += value;
    }
}

static void read_log(const char *path, struct log *out)
{
    static unsigned char bytes[1 << 16];
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t count = fread(bytes, 1, sizeof bytes, file);
    assert_true(count < sizeof bytes);
    fclose(file);
    memset(out, 0, sizeof *out);
    for (const unsigned char *at = bytes, *end = bytes + count; at < end;) {
        const unsigned char *begin = at;
        uint64_t event_bytes = read_fixed(&at, end, 8);
        assert_int_equal(read_fixed(&at, end, 4), masked_crc(begin, 8));
        assert_true(event_bytes + 4 <= (uint64_t)(end - at) && out->count < EVENTS_MAX);
        read_message(at, at + event_bytes, 0, &out->events[out->count++]);
        begin = at;
        at += event_bytes;
        assert_int_equal(read_fixed(&at, end, 4), masked_crc(begin, event_bytes));
    }
}

static const struct event *find(const struct log *log, uint64_t step, const char *tag)
{
    for (uint32_t i = 0; i < log->count; i++)
        if (log->events[i].step == step && strcmp(log->events[i].tag, tag) == 0)
            return &log->events[i];
    fail_msg("no %s at step %llu", tag, (unsigned long long)step);
    return NULL;
}

static metrics_line step_line(uint64_t step)
{
    metrics_line line = {.step = step,
                         .loss = 2.5f + (float)step,
                         .grad_norm = 0.75,
                         .lr = 3e-4,
                         .loss_scale = 1,
                         .tokens = 4096,
                         .seconds = 2,
                         .tokens_per_second = 2048,
                         .model_tflops = 0.5};
    for (int i = 0; i < LANE_COUNT; i++) {
        line.lanes[i].busy_seconds = 0.25 * i;
        line.lanes[i].stall_seconds = 0.125 * i;
    }
    for (int tier = 0; tier < TIER_COUNT; tier++)
        line.peak_bytes[tier] = 1000u + (unsigned)tier;
    return line;
}

static void check_begin(const struct log *log, uint64_t first_step)
{
    assert_string_equal(log->events[0].version, "brain.Event:2");
    assert_true(log->events[0].wall_seconds > 1.7e9);
    assert_int_equal(log->events[1].session_status, 1);
    assert_int_equal(log->events[1].step, first_step);
}

static void numbers_are_those_of_the_line(void **state)
{
    static struct log log;
    tensorboard_file file;
    char path[300];
    snprintf(path, sizeof path, "%s/new/board", directory);
    assert_ok(tensorboard_file_open(&file, path, 0640, 1));
    struct stat info;
    assert_int_equal(stat(file.path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0640);
    const uint64_t late = (uint64_t)1 << 40; /* a step of several bytes */
    metrics_line line = step_line(1);
    assert_ok(tensorboard_file_write(&file, &line));
    line = step_line(late);
    line.has_router_losses = true;
    line.balance_loss = 1.25;
    line.router_z_loss = 0.5;
    line.loss = NAN;
    assert_ok(tensorboard_file_write(&file, &line));
    const metrics_line eval = {.is_eval = true, .step = late, .valid_loss = 1.75f};
    assert_ok(tensorboard_file_write(&file, &eval));
    read_log(file.path, &log);
    tensorboard_file_close(&file);
    tensorboard_file_close(&file);

    check_begin(&log, 1);
    const uint32_t of_step = 7 + 2 * LANE_COUNT + TIER_COUNT;
    assert_int_equal(log.count, 2 + of_step + of_step + 2 + 1);
    assert_true(find(&log, 1, "train/loss")->value == 3.5f);
    assert_true(find(&log, 1, "train/grad_norm")->value == 0.75f);
    assert_true(find(&log, 1, "train/lr")->value == 3e-4f);
    assert_true(find(&log, 1, "speed/tokens_per_second")->value == 2048);
    assert_true(find(&log, 1, "speed/seconds")->value == 2);
    assert_true(find(&log, 1, "lanes_busy/write")->value == 0.125f);
    assert_true(find(&log, 1, "lanes_stall/write")->value == 0.0625f);
    assert_true(find(&log, 1, "peak_bytes/nvme")->value == 1002);
    assert_true(isnan(find(&log, late, "train/loss")->value));
    assert_true(find(&log, late, "train/balance_loss")->value == 1.25f);
    assert_true(find(&log, late, "valid/loss")->value == 1.75f);
}

static void each_opening_makes_a_later_file(void **state)
{
    static struct log log;
    char path[300], last[sizeof(tensorboard_file)] = "";
    snprintf(path, sizeof path, "%s/again", directory);
    for (uint64_t first = 1; first < 5; first++) { /* within a second */
        tensorboard_file file;
        assert_ok(tensorboard_file_open(&file, path, 0600, first));
        assert_true(strcmp(last, file.path) < 0);
        snprintf(last, sizeof last, "%s", file.path);
        const metrics_line line = step_line(first);
        assert_ok(tensorboard_file_write(&file, &line));
        read_log(file.path, &log);
        check_begin(&log, first);
        tensorboard_file_close(&file);
    }
}

static void failures_are_values(void **state)
{
    tensorboard_file file;
    char path[300];
    snprintf(path, sizeof path, "%s/plain", directory);
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    assert_true(fd >= 0);
    close(fd);
    assert_true(tensorboard_file_open(&file, path, 0600, 1) < 0); /* a file is there */
    assert_non_null(strstr(err_text(), "plain"));
    assert_int_equal(file.fd, -1);

    snprintf(path, sizeof path, "%s/full", directory);
    assert_ok(tensorboard_file_open(&file, path, 0600, 1));
    close(file.fd);
    file.fd = open("/dev/full", O_WRONLY);
    if (file.fd < 0)
        return;
    const metrics_line line = step_line(1);
    assert_error(tensorboard_file_write(&file, &line), -ENOSPC, "event file");
    tensorboard_file_close(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_those_of_the_line),
        cmocka_unit_test(each_opening_makes_a_later_file),
        cmocka_unit_test(failures_are_values),
    };
    return cmocka_run_group_tests(tests, directory_make, directory_remove);
}
