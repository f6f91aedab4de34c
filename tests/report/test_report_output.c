/* Reads back what src/report writes: metrics.jsonl and trace.json with a JSON parser, the live line
 * by its width and words. */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/dtype.h"
#include "base/file.h"
#include "base/mem.h"
#include "report/chrome_trace.h"
#include "report/live.h"
#include "report/metrics.h"
#include "tests/directory.h"

static metrics_line sample_line(uint64_t step)
{
    metrics_line line = {.step = step,
                         .loss = 5.5f + (float)step / 3.0f,
                         .grad_norm = 1.0 / 3.0,
                         .lr = 3e-4,
                         .loss_scale = 65536,
                         .skipped = step == 2,
                         .tokens = 1ull << 40,
                         .seconds = 1.25,
                         .tokens_per_second = 1e6,
                         .model_tflops = 12.5};
    for (int lane = 0; lane < LANE_COUNT; lane++)
        line.lanes[lane] = (metrics_lane){.bytes = UINT64_MAX / 4 + (uint64_t)lane,
                                          .busy_seconds = 0.5 + lane,
                                          .stall_seconds = 0.25 * lane};
    for (int arena = 0; arena < TIER_COUNT; arena++)
        line.peak_bytes[arena] = (uint64_t)arena << 41;
    return line;
}

static json_t *parse(const char *text)
{
    json_error_t error;
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        fail_msg("%s at %d:%d in %s", error.text, error.line, error.column, text);
    return root;
}

static double number_at(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

static void metrics_are_json(void **state)
{
    char text[METRICS_LINE_BYTES];
    metrics_line line = sample_line(2);
    mem_seal();
    int length = metrics_format(&line, text, sizeof text);
    mem_unseal();
    assert_int_equal(length, strlen(text));
    assert_true(length > 0 && text[length - 1] == '\n' && strchr(text, '\n') == text + length - 1);
    json_t *root = parse(text);
    assert_int_equal(json_object_size(root), 13);
    assert_true(number_at(root, "step") == 2);
    assert_true((float)number_at(root, "loss") == line.loss); /* enough digits for an fp32 */
    uint32_t bits =
        (uint32_t)strtoul(json_string_value(json_object_get(root, "loss_bits")), NULL, 16);
    assert_int_equal(bits, fp32_bits(line.loss));
    assert_int_equal(strlen(json_string_value(json_object_get(root, "loss_bits"))), 8);
    assert_true(fabs(number_at(root, "grad_norm") - line.grad_norm) < 1e-9);
    assert_true(number_at(root, "lr") == 3e-4);
    assert_true(number_at(root, "loss_scale") == 65536);
    assert_true(json_is_true(json_object_get(root, "skipped")));
    assert_int_equal(json_integer_value(json_object_get(root, "tokens")), 1ll << 40);
    assert_true(number_at(root, "seconds") == 1.25);
    assert_true(number_at(root, "tokens_per_second") == 1e6);
    assert_true(number_at(root, "model_tflops") == 12.5);
    json_t *lanes = json_object_get(root, "lanes"), *peaks = json_object_get(root, "peak_bytes");
    assert_int_equal(json_object_size(lanes), 8);
    static const char *const lane_names[] = {"read", "write",   "h2d",    "d2h",
                                             "comm", "compute", "update", "commit"};
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        json_t *one = json_object_get(lanes, lane_names[lane]);
        assert_int_equal(json_integer_value(json_object_get(one, "bytes")), line.lanes[lane].bytes);
        assert_true(number_at(one, "busy_seconds") == 0.5 + lane);
        assert_true(number_at(one, "stall_seconds") == 0.25 * lane);
    }
    assert_true(number_at(peaks, "device") == 0);
    assert_int_equal(json_integer_value(json_object_get(peaks, "host")), 1ll << 41);
    assert_int_equal(json_integer_value(json_object_get(peaks, "nvme")), 2ll << 41);
    json_decref(root);
    line.has_router_losses = true;
    line.balance_loss = 1.25;
    line.router_z_loss = 9.5;
    assert_true(metrics_format(&line, text, sizeof text) > length);
    root = parse(text);
    assert_int_equal(json_object_size(root), 15);
    assert_true(number_at(root, "balance_loss") == 1.25);
    assert_true(number_at(root, "router_z_loss") == 9.5);
    assert_null(json_object_get(root, "experts"));
    json_decref(root);
    line.expert_passes = 8;
    line.expert_passes_hit = 5;
    assert_true(metrics_format(&line, text, sizeof text) > length);
    root = parse(text);
    assert_true(number_at(json_object_get(root, "experts"), "passes") == 8);
    assert_true(number_at(json_object_get(root, "experts"), "passes_hit") == 5);
    json_decref(root);
}

static void odd_metrics_are_json(void **state)
{
    char text[METRICS_LINE_BYTES];
    metrics_line line = sample_line(1);
    line.loss = NAN;
    line.grad_norm = INFINITY;
    line.seconds = -INFINITY;
    line.lanes[0].busy_seconds = NAN;
    assert_true(metrics_format(&line, text, sizeof text) > 0);
    json_t *root = parse(text);
    assert_true(json_is_null(json_object_get(root, "loss")));
    assert_true(json_is_null(json_object_get(root, "grad_norm")));
    assert_true(json_is_null(json_object_get(root, "seconds")));
    assert_true(json_is_null(
        json_object_get(json_object_get(json_object_get(root, "lanes"), "read"), "busy_seconds")));
    assert_true(json_is_string(json_object_get(root, "loss_bits")));
    json_decref(root);
    /* The longest line that there can be fits; any shorter buffer is refused, never overrun. */
    memset(&line, 0, sizeof line);
    line.step = line.tokens = UINT64_MAX;
    line.loss = -1.17549435e-38f;
    line.grad_norm = line.lr = line.loss_scale = line.seconds = -1.23456789e-300;
    line.tokens_per_second = line.model_tflops = -1.23456789e-300;
    for (int lane = 0; lane < LANE_COUNT; lane++)
        line.lanes[lane] =
            (metrics_lane){UINT64_MAX, UINT64_MAX, -1.23456789e-300, -1.23456789e-300};
    for (int arena = 0; arena < TIER_COUNT; arena++)
        line.peak_bytes[arena] = UINT64_MAX;
    int length = metrics_format(&line, text, sizeof text);
    assert_true(length > 0);
    json_t *longest = json_loads(text, JSON_DECODE_INT_AS_REAL, NULL);
    assert_non_null(longest);
    json_decref(longest);
    for (int bytes = 0; bytes <= length; bytes++) {
        char *exact = mem_alloc((size_t)bytes, 1, "exact buffer");
        assert_int_equal(metrics_format(&line, exact, (size_t)bytes), -ENOSPC);
        mem_free(exact);
    }
    line = (metrics_line){
        .is_eval = true, .step = 7, .valid_loss = 2.5f, .tokens = 99, .seconds = 0.5};
    assert_true(metrics_format(&line, text, sizeof text) > 0);
    root = parse(text);
    assert_string_equal(json_string_value(json_object_get(root, "event")), "eval");
    assert_true(number_at(root, "valid_loss") == 2.5);
    assert_string_equal(json_string_value(json_object_get(root, "valid_loss_bits")), "40200000");
    assert_true(number_at(root, "step") == 7);
    json_decref(root);
}

static int lines_of(const char *path, uint64_t *last_step)
{
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char text[METRICS_LINE_BYTES];
    int count = 0;
    while (fgets(text, sizeof text, file)) {
        json_t *root = parse(text);
        *last_step = (uint64_t)json_integer_value(json_object_get(root, "step"));
        json_decref(root);
        count++;
    }
    fclose(file);
    return count;
}

static void metrics_file_is_cut(void **state)
{
    const char *path = in_directory("metrics.jsonl");
    metrics_file file;
    uint64_t last = 0;
    assert_ok(metrics_file_open(&file, path, FILE_PRIVATE, UINT64_MAX));
    mem_seal();
    for (uint64_t step = 1; step <= 40; step++) {
        metrics_line line = sample_line(step);
        assert_ok(metrics_file_write(&file, &line));
        if (step % 10 == 0) {
            line.is_eval = true;
            assert_ok(metrics_file_write(&file, &line));
        }
    }
    mem_stats stats;
    mem_get_stats(&stats);
    assert_int_equal(stats.call_count_after_seal, 0);
    mem_unseal();
    metrics_file_close(&file);
    metrics_file_close(&file);
    assert_int_equal(lines_of(path, &last), 44);
    /* A torn last line does not survive an open. */
    FILE *torn = fopen(path, "a");
    fputs("{\"step\":41,\"lo", torn);
    fclose(torn);
    assert_ok(metrics_file_open(&file, path, FILE_PRIVATE, 100));
    metrics_file_close(&file);
    assert_int_equal(lines_of(path, &last), 44);
    /* Resume after step 20: its evaluation stays. */
    assert_ok(metrics_file_open(&file, path, FILE_PRIVATE, 20));
    assert_int_equal(lines_of(path, &last), 22);
    metrics_line line = sample_line(21);
    assert_ok(metrics_file_write(&file, &line));
    metrics_file_close(&file);
    assert_int_equal(lines_of(path, &last), 23);
    assert_int_equal(last, 21);
    assert_ok(metrics_file_open(&file, path, FILE_PRIVATE, 0));
    metrics_file_close(&file);
    assert_int_equal(lines_of(path, &last), 0);
    assert_int_equal(metrics_file_open(&file, "no-such-directory/m", FILE_PRIVATE, 0), -ENOENT);
    assert_int_equal(metrics_file_open(&file, "/dev/full", FILE_PRIVATE, UINT64_MAX), -EINVAL);
    unlink(path);
}

/* Files without an end or without a beginning (devices, pipes) are refused; no reader waits for
 * them. */
static void only_regular_files_are_read(void **state)
{
    const char *path = in_directory("odd.jsonl");
    static const char *const devices[] = {"/dev/zero", "/dev/full", "/dev/null"};
    metrics_file file;
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++) {
        assert_int_equal(symlink(devices[i], path), 0);
        assert_error(metrics_file_open(&file, path, FILE_PRIVATE, 5), -ELOOP,
                     "odd.jsonl is a symbolic link");
        unlink(path);
        assert_error(metrics_file_open(&file, devices[i], FILE_PRIVATE, 5), -EINVAL,
                     "is not a regular file");
    }
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(metrics_file_open(&file, path, FILE_PRIVATE, UINT64_MAX), -EINVAL);
    unlink(path);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(metrics_file_open(&file, path, FILE_PRIVATE, 5), -EISDIR);
    rmdir(path);
}

/* A disk that is full in the middle of a line: an error, and the lines before it stay whole. */
static void failed_write_leaves_whole_lines(void **state)
{
    const char *path = in_directory("full.jsonl");
    metrics_file file;
    metrics_line line = sample_line(1);
    assert_ok(metrics_file_open(&file, path, FILE_PRIVATE, UINT64_MAX));
    assert_ok(metrics_file_write(&file, &line));
    struct stat before, after;
    assert_int_equal(stat(path, &before), 0);
    struct rlimit old, limited;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    limited = old;
    limited.rlim_cur = (rlim_t)before.st_size + 10;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limited), 0);
    int rc = metrics_file_write(&file, &line);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_error(rc, -EFBIG, "full.jsonl");
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(after.st_size, before.st_size);
    assert_ok(metrics_file_write(&file, &line));
    metrics_file_close(&file);
    uint64_t last;
    assert_int_equal(lines_of(path, &last), 2);
    unlink(path);
}

static trace_event sample_event(uint64_t i)
{
    trace_event event = {.start_ns = 1000000000 + i * 1000,
                         .end_ns = 1000000000 + i * 1000 + 500,
                         .bytes = i,
                         .step = 1 + i / 8,
                         .op_idx = (uint32_t)i,
                         .unit = i % 4,
                         .micro_batch_or_tile = (uint16_t)(i % 3),
                         .lane = LANE_COMPUTE,
                         .kind = OP_FORWARD,
                         .program = PROGRAM_STEADY,
                         .stall_lane = LANE_COUNT};
    return event;
}

static const json_t *find_event(const json_t *events, const char *phase, const char *name)
{
    size_t idx;
    json_t *event;
    json_array_foreach(events, idx,
                       event) if (strcmp(json_string_value(json_object_get(event, "ph")), phase) ==
                                      0 &&
                                  strcmp(json_string_value(json_object_get(event, "name")), name) ==
                                      0) return event;
    return NULL;
}

static void trace_is_json(void **state)
{
    static const char *const units[] = {"embedding", "block.0", "strange \"name\"\n\\", "head"};
    chrome_trace_names names = {
        .process = "rank 0",
        .rank = 3,
        .unit_names = units,
        .unit_count = 4,
        .drive_count = 1,
        .drives = {
            {.path = "/a \"drive\"", .ways = {{.count = 0}, {3, 1500, 2500, 3500, 4000000}}}}};
    trace ring;
    assert_ok(trace_init(&ring, 64));
    for (uint64_t i = 0; i < 100; i++) {
        trace_event event = sample_event(i);
        if (i == 90) { /* an update that waited, of a unit without a name */
            event.kind = OP_UPDATE;
            event.lane = LANE_UPDATE;
            event.unit = 11;
            event.stall_ns = 2500;
            event.stall_lane = LANE_READ;
        } else if (i == 91) { /* one that was ready before the cores were idle */
            event.unit = 12;
            event.stall_ns = 700;
            event.paused_ns = 250;
            event.stall_is_hand_over = 1;
        } else if (i >= 97) { /* three reads at once: three tracks */
            event.kind = OP_READ;
            event.lane = LANE_READ;
            event.start_ns = 1000000000 + 97000;
            event.micro_batch_or_tile = i == 97 ? 0xffff : 5;
            event.unit = i == 98 ? PROGRAM_NONE : 1;
        }
        trace_record(&ring, &event);
    }
    const char *path = in_directory("trace.json");
    assert_ok(chrome_trace_write(path, FILE_PRIVATE, &ring, &names));
    json_error_t error;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        fail_msg("%s at %d", error.text, error.line);
    const json_t *events = json_object_get(root, "traceEvents");
    /* 64 events of the ring, one process name, name and order of 8 lanes and 2 more tracks, and the
     * one direction of the drive that moved something. */
    assert_int_equal(json_array_size(events), 64 + 1 + 2 * 10 + 1);
    const json_t *times = json_object_get(find_event(events, "M", "drive_times"), "args");
    assert_string_equal(json_string_value(json_object_get(times, "drive")), "/a \"drive\"");
    assert_string_equal(json_string_value(json_object_get(times, "direction")), "write");
    assert_true(number_at(times, "transfers") == 3 && number_at(times, "p50_us") == 1.5);
    assert_true(number_at(times, "p99_us") == 3.5 && number_at(times, "max_us") == 4000);
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(root, "otherData"), "events_lost")),
        "36");
    const json_t *event = find_event(events, "X", "forward block.0 mb 1"); /* i = 37 */
    assert_non_null(event);
    assert_true(fabs(number_at(event, "ts") - 1.0) < 1e-6); /* the oldest kept is i = 36 */
    assert_true(fabs(number_at(event, "dur") - 0.5) < 1e-6);
    assert_true(number_at(event, "pid") == 3);
    const json_t *args = json_object_get(event, "args");
    assert_true(number_at(args, "bytes") == 37 && number_at(args, "step") == 1 + 37 / 8);
    assert_string_equal(json_string_value(json_object_get(args, "program")),
                        program_kind_name(PROGRAM_STEADY));
    event = find_event(events, "X", "update unit 11 tile 0");
    assert_non_null(event);
    args = json_object_get(event, "args");
    assert_true(fabs(number_at(args, "stall_us") - 2.5) < 1e-6);
    assert_string_equal(json_string_value(json_object_get(args, "stall_lane")), "read");
    args = json_object_get(find_event(events, "X", "forward unit 12 mb 1"), "args");
    assert_string_equal(json_string_value(json_object_get(args, "stall_lane")), "hand-over");
    assert_true(fabs(number_at(args, "paused_us") - 0.25) < 1e-6);
    assert_non_null(find_event(events, "X", "forward strange \"name\"\n\\ mb 2"));
    const json_t *plain = find_event(events, "X", "read block.0");
    const json_t *numbered = find_event(events, "X", "read #5");
    const json_t *both = find_event(events, "X", "read block.0 #5");
    assert_true(plain && numbered && both);
    assert_true(number_at(plain, "tid") != number_at(numbered, "tid"));
    assert_true(number_at(both, "tid") != number_at(numbered, "tid"));
    json_decref(root);
    /* A failure leaves the old file and no temporary one. */
    assert_int_equal(mkdir(in_directory("taken"), 0700), 0);
    assert_int_equal(chrome_trace_write(in_directory("taken"), FILE_PRIVATE, &ring, &names),
                     -EISDIR);
    assert_int_equal(access(in_directory("taken.tmp"), F_OK), -1);
    rmdir(in_directory("taken"));
    assert_int_equal(chrome_trace_write("no-such-directory/t", FILE_PRIVATE, &ring, &names),
                     -ENOENT);
    /* No events, no names. */
    ring.written = 0;
    names = (chrome_trace_names){0};
    assert_ok(chrome_trace_write(path, FILE_PRIVATE, &ring, &names));
    root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    assert_non_null(root);
    assert_int_equal(json_array_size(json_object_get(root, "traceEvents")), 1 + 2 * 8);
    json_decref(root);
    trace_fini(&ring);
    unlink(path);
}

static live_status sample_status(void)
{
    live_status status = {.step = 120,
                          .steps = 300,
                          .loss = 3.21449,
                          .grad_norm = 1.5,
                          .lr = 3e-4,
                          .step_seconds = 2,
                          .tokens_per_second = 1234.5,
                          .stall_share = 0.123,
                          .seconds_left = 3725};
    status.lane_bytes[LANE_READ] = 5800000000;
    status.lane_bytes[LANE_WRITE] = 3900000000;
    return status;
}

static void live_line_fits(void **state)
{
    live_status status = sample_status();
    char text[LIVE_LINE_BYTES], exact[LIVE_LINE_BYTES];
    size_t full_length = live_format(&status, 200, text, sizeof text);
    assert_int_equal(full_length, strlen(text));
    assert_string_equal(text, "step 120/300  loss 3.2145  1.23k tok/s  read 2.90 write 1.95 GB/s  "
                              "stall 12%  left 1h02m");
    size_t previous = full_length;
    for (unsigned width = 200; width-- > 0;) {
        memset(text, 'x', sizeof text);
        size_t length = live_format(&status, width, text, sizeof text);
        assert_int_equal(length, strlen(text));
        assert_true(length <= width && length <= previous);
        previous = length;
        assert_true(strncmp(text, "step 120/300", width < 12 ? width : 12) == 0);
    }
    assert_true(live_format(&status, 45, text, sizeof text) > 0);
    assert_string_equal(text, "step 120/300  loss 3.2145  1.23k tok/s");
    assert_true(live_format(&status, 5, text, sizeof text) == 5);
    /* A small buffer cuts the line like a narrow terminal. */
    assert_int_equal(live_format(&status, 200, exact, 10), 9);
    assert_string_equal(exact, "step 120/");
}

static void live_line_says_little_it_does_not_know(void **state)
{
    live_status status = {.step = 1,
                          .loss = NAN,
                          .tokens_per_second = NAN,
                          .stall_share = NAN,
                          .seconds_left = -1,
                          .skipped = true};
    status.lane_bytes[LANE_READ] = 5; /* without a duration there is no rate */
    char text[LIVE_LINE_BYTES];
    live_format(&status, 200, text, sizeof text);
    assert_string_equal(text, "step 1  loss nan (skipped)  ? tok/s");
    static const struct {
        double seconds;
        const char *text;
    } times[] = {{0, "left 0s"},        {59.4, "left 59s"},     {60, "left 1m00s"},
                 {3599, "left 59m59s"}, {86399, "left 23h59m"}, {400000, "left 4d15h"},
                 {INFINITY, "left ?"}};
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        status.seconds_left = times[i].seconds;
        live_format(&status, 200, text, sizeof text);
        assert_string_equal(text + strlen(text) - strlen(times[i].text), times[i].text);
    }
    static const struct {
        double rate;
        const char *text;
    } rates[] = {{0, " 0.0 tok/s"},    {99.96, " 100 tok/s"},   {999.4, " 999 tok/s"},
                 {999.6, " 1k tok/s"}, {12345, " 12.3k tok/s"}, {1234567, " 1.23M tok/s"}};
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) {
        status.tokens_per_second = rates[i].rate;
        live_format(&status, 200, text, sizeof text);
        assert_non_null(strstr(text, rates[i].text));
    }
}

static void plain_line_says_all(void **state)
{
    live_status status = sample_status();
    char text[LIVE_LINE_BYTES];
    size_t length = live_format_plain(&status, text, sizeof text);
    assert_int_equal(length, strlen(text));
    assert_string_equal(text, "step 120/300  loss 3.2145  grad norm 1.5  lr 0.0003  2.000 s  "
                              "1.23k tok/s  read 2.90 write 1.95 GB/s  stall 12%  left 1h02m");
    status.has_router_losses = true;
    status.balance_loss = 1.25;
    status.router_z_loss = 9.5;
    live_format_plain(&status, text, sizeof text);
    assert_non_null(strstr(text, "loss 3.2145  balance 1.2500  router z 9.5  grad norm 1.5"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(metrics_are_json),
        cmocka_unit_test(odd_metrics_are_json),
        cmocka_unit_test(metrics_file_is_cut),
        cmocka_unit_test(only_regular_files_are_read),
        cmocka_unit_test(failed_write_leaves_whole_lines),
        cmocka_unit_test(trace_is_json),
        cmocka_unit_test(live_line_fits),
        cmocka_unit_test(live_line_says_little_it_does_not_know),
        cmocka_unit_test(plain_line_says_all),
    };
    return cmocka_run_group_tests(tests, directory_make, directory_remove);
}
