/* Pages of the report from made-up run directories: what they hold, what they say of files that are
 * missing or damaged, that they stay small and well formed, and that no name breaks out of its
 * place. */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/trace.h"
#include "report/chrome_trace.h"
#include "report/metrics.h"
#include "report/report.h"
#include "tests/unit.h"

enum { PATH_BYTES = 256, TAGS_MAX = 64, TAG_BYTES = 16 };

static char directory[] = "/tmp/test_report_report.XXXXXX";
static char *page; /* of the last report */
static size_t page_bytes;
static json_t *data;

static const char *in_directory(const char *name)
{
    static char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

static FILE *create(const char *name)
{
    FILE *file = fopen(in_directory(name), "wb");
    assert_non_null(file);
    return file;
}

static void put(const char *name, const char *text)
{
    FILE *file = create(name);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static int clean(void **state)
{
    static const char *const names[] = {"plan.json", "metrics.jsonl", "trace.json",
                                        "job.json",  "report.html",   "other.html"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unlink(in_directory(names[i]));
    free(page);
    page = NULL;
    json_decref(data);
    data = NULL;
    return 0;
}

static int make_directory(void **state)
{
    return mkdtemp(directory) ? 0 : -1;
}

static int remove_directory(void **state)
{
    clean(state);
    return rmdir(directory); /* nothing else may be left, no temporary file either */
}

static bool is_void(const char *tag)
{
    static const char *const names[] = {"meta", "br", "!doctype"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcasecmp(tag, names[i]) == 0)
            return true;
    return false;
}

/* Every element that begins ends, in order; `at` is behind <html. Scripts and styles are not looked
 * into. */
static void check_balanced(const char *text)
{
    char open[TAGS_MAX][TAG_BYTES];
    int depth = 0;
    for (const char *at = strchr(text, '<'); at; at = strchr(at, '<')) {
        bool ends = at[1] == '/';
        char tag[TAG_BYTES] = "";
        sscanf(at + 1 + ends, "%15[a-zA-Z0-9!]", tag);
        assert_true(tag[0] != '\0'); /* a '<' of a text would be here */
        const char *end = strchr(at, '>');
        assert_non_null(end);
        at = end;
        if (is_void(tag))
            continue;
        if (!ends) {
            assert_true(depth < TAGS_MAX);
            strcpy(open[depth++], tag);
            if (strcmp(tag, "script") == 0 || strcmp(tag, "style") == 0) {
                at = strstr(at, strcmp(tag, "script") == 0 ? "</script>" : "</style>");
                assert_non_null(at);
            }
            continue;
        }
        if (depth == 0 || strcmp(open[depth - 1], tag) != 0)
            fail_msg("</%s> ends <%s>", tag, depth ? open[depth - 1] : "nothing");
        depth--;
    }
    assert_int_equal(depth, 0);
}

/* Makes the page, checks what is true of all, and parses its data. */
static void report(void)
{
    free(page);
    page = NULL;
    json_decref(data);
    data = NULL;
    assert_ok(report_write(directory, NULL));
    FILE *file = fopen(in_directory("report.html"), "rb");
    assert_non_null(file);
    struct stat info;
    assert_int_equal(fstat(fileno(file), &info), 0);
    page_bytes = (size_t)info.st_size;
    page = malloc(page_bytes + 1);
    assert_non_null(page);
    assert_int_equal(fread(page, 1, page_bytes, file), page_bytes);
    page[page_bytes] = '\0';
    fclose(file);
    assert_int_equal(strlen(page), page_bytes);
    assert_null(strstr(page, "http://"));
    assert_null(strstr(page, "https://"));
    assert_null(strstr(page, "src="));
    assert_null(strstr(page, "<link"));
    assert_null(strstr(page, "NAME@"));
    assert_non_null(strstr(page, "default-src 'none'"));
    check_balanced(page);
    char *begin = strstr(page, "id=\"report-data\">");
    assert_non_null(begin);
    begin += strlen("id=\"report-data\">");
    char *end = strstr(begin, "</script>");
    assert_non_null(end);
    for (const char *at = begin; at < end; at++)
        assert_true(*at >= 0x20 && *at < 0x7f && *at != '<' && *at != '>' && *at != '&');
    json_error_t error;
    data = json_loadb(begin, (size_t)(end - begin), JSON_REJECT_DUPLICATES, &error);
    if (!data)
        fail_msg("the data of the page: %s at %d", error.text, error.position);
}

static const json_t *at_path(const char *first, const char *second)
{
    return json_object_get(json_object_get(data, first), second);
}

static double row_number(const json_t *rows, size_t row, size_t column)
{
    const json_t *value = json_array_get(json_array_get(rows, row), column);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

static metrics_line sample_line(uint64_t step)
{
    metrics_line line = {.step = step,
                         .loss = 3.0f,
                         .grad_norm = 1.5,
                         .lr = 1e-3,
                         .loss_scale = 1,
                         .tokens = 1024,
                         .seconds = 0.25,
                         .tokens_per_second = 4096,
                         .model_tflops = 0.5};
    line.lanes[LANE_READ] =
        (metrics_lane){.bytes = 100000000, .busy_seconds = 0.1, .stall_seconds = 0.02};
    line.peak_bytes[TIER_HOST] = 3 << 20;
    return line;
}

static void put_line(FILE *file, const metrics_line *line)
{
    char text[METRICS_LINE_BYTES];
    assert_true(metrics_format(line, text, sizeof text) > 0);
    fputs(text, file);
}

static void begin_trace(FILE *file, int lost)
{
    fprintf(
        file,
        "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"events_lost\":\"%d\"},\"traceEvents\":[\n",
        lost);
}

static void put_waiting_event(FILE *file, int step, double ts, double dur, const char *lane,
                              const char *name, double stall_us, const char *cause)
{
    fprintf(
        file,
        "{\"ph\":\"X\",\"pid\":0,\"tid\":1,\"ts\":%.3f,\"dur\":%.3f,\"cat\":\"%s\",\"name\":\"%s\","
        "\"args\":{\"step\":%d,\"bytes\":1000,\"op\":1,\"program\":\"steady\",\"stall_us\":%.3f,"
        "\"stall_lane\":\"%s\"}},\n",
        ts, dur, lane, name, step, stall_us, cause);
}

/* The only event of a step: a pass of 5 us that paused for 2 of them. */
static void put_paused_event(FILE *file)
{
    fputs("{\"ph\":\"X\",\"pid\":0,\"tid\":1,\"ts\":10,\"dur\":5,\"cat\":\"compute\",\"name\":"
          "\"forward "
          "embed mb "
          "0\",\"args\":{\"step\":1,\"bytes\":1000,\"op\":1,\"program\":\"steady\",\"stall_us\":2,"
          "\"stall_lane\":\"read\",\"paused_us\":2}},\n",
          file);
}

static void put_event(FILE *file, int step, double ts, double dur, const char *lane,
                      const char *name, double stall_us)
{
    put_waiting_event(file, step, ts, dur, lane, name, stall_us, "read");
}

static void end_trace(FILE *file)
{
    fputs("{\"ph\":\"M\",\"pid\":0,\"name\":\"process_name\",\"args\":{}}\n]}\n", file);
    assert_int_equal(fclose(file), 0);
}

static void needs_a_run(void **state)
{
    assert_error(report_write("/tmp/no-such-directory-of-a-run", NULL), ERR_INPUT,
                 "no-such-directory-of-a-run");
    assert_int_equal(report_write("/dev/null", NULL), ERR_INPUT);
    assert_int_equal(report_write(directory, NULL), ERR_INPUT); /* empty */
    assert_non_null(strstr(err_text(), "holds no run"));
    assert_int_equal(access(in_directory("report.html"), F_OK), -1);
    /* A run that has only just begun. */
    put("job.json", "{}");
    report();
    assert_non_null(strstr(page, "plan.json is not there"));
    assert_non_null(strstr(page, "metrics.jsonl is not there"));
    assert_non_null(strstr(page, "trace.json is not there"));
    assert_int_equal(json_array_size(at_path("steps", "rows")), 0);
    assert_true(json_is_null(json_object_get(data, "timeline")));
}

/* Only a mixture whose experts may be left has the section. */
static void experts_that_were_hit(void **state)
{
    for (int is_mixture = 0; is_mixture < 2; is_mixture++) {
        FILE *file = create("metrics.jsonl");
        for (uint64_t step = 1; step <= 3; step++) {
            metrics_line line = sample_line(step);
            line.expert_passes = is_mixture ? 8 : 0;
            line.expert_passes_hit = is_mixture ? 4 + step % 2 : 0; /* 4 and 5, without step 1 */
            line.lanes[LANE_READ].spared_bytes = is_mixture ? 25000000 : 0;
            put_line(file, &line);
        }
        assert_int_equal(fclose(file), 0);
        put("plan.json", "{\"experts\": {\"passes\": 8, \"passes_hit\": 6}, "
                         "\"lanes\": {\"read\": {\"spared_bytes\": 50000000}}}");
        report();
        assert_true((strstr(page, "Experts that were hit") != NULL) == is_mixture);
    }
    assert_non_null(strstr(page, "56.2% of 8 passes"));
    assert_non_null(strstr(page, "(75.0% expected"));
    assert_non_null(strstr(page, "<td>20%</td>")); /* of 125 MB that the lane was spared */
}

static void writes_where_it_is_told(void **state)
{
    put("job.json", "{}");
    char other[PATH_BYTES];
    snprintf(other, sizeof other, "%s/other.html", directory);
    assert_ok(report_write(directory, other));
    assert_int_equal(access(other, F_OK), 0);
    assert_int_equal(access(in_directory("report.html"), F_OK), -1);
    assert_true(report_write(directory, "/no-such-directory/page.html") < 0);
    assert_int_equal(mkdir(in_directory("report.html"), 0700), 0);
    assert_int_equal(report_write(directory, NULL), -EISDIR);
    assert_int_equal(rmdir(in_directory("report.html")), 0);
}

static const char plan_text[] =
    "{\"model\": \"gpt2\", \"parameters\": 7520320, \"units\": 2, \"world_size\": 1, \"steps\": "
    "10,\n"
    "\"step_seconds\": 0.2, \"tokens_per_second\": 5120, \"machine\": {\"is_measured\": false},\n"
    "\"bottleneck\": \"read\", \"ceilings\": {\"read\": 2e9},\n"
    "\"budget_bytes\": {\"host\": 4194304}, \"peak_bytes\": {\"host\": 3145728},\n"
    "\"unit_list\": [{\"name\": \"embed\", \"parameters\": 10, \"tiers\": [\"host\", \"host\", "
    "\"nvme\", "
    "\"host\", \"recompute\"], \"bytes\": [20, 20, 120, 64, 0]}],\n"
    "\"memory\": {\"host\": {\"at_peak\": \"a buffer\"}},\n"
    "\"memory_over_step\": {\"fields\": [\"at_us\", \"params\"], \"seconds\": 0.2},\n"
    "\"reasons\": [\"because it fits\"]}\n";

static void tells_one_step(void **state)
{
    put("plan.json", plan_text);
    FILE *file = create("metrics.jsonl");
    metrics_line line = sample_line(1);
    put_line(file, &line);
    line.is_eval = true;
    line.valid_loss = 2.5f;
    put_line(file, &line);
    assert_int_equal(fclose(file), 0);
    file = create("trace.json");
    begin_trace(file, 0);
    put_paused_event(file);
    end_trace(file);
    report();
    const json_t *rows = at_path("steps", "rows");
    assert_int_equal(json_array_size(rows), 1);
    assert_true(row_number(rows, 0, 0) == 1 && row_number(rows, 0, 3) == 3.0);
    assert_true(row_number(at_path("evals", "rows"), 0, 3) == 2.5);
    const json_t *events = at_path("timeline", "events");
    assert_int_equal(json_array_size(events), 1);
    assert_true(row_number(events, 0, 0) == LANE_COMPUTE && row_number(events, 0, 4) == OP_FORWARD);
    assert_true(row_number(events, 0, 2) == 0 && row_number(events, 0, 3) == 5 &&
                row_number(events, 0, 8) == 2);
    assert_string_equal(json_string_value(json_array_get(at_path("timeline", "units"), 0)),
                        "embed");
    /* The tables: what a reader without scripts sees. */
    assert_non_null(strstr(page, "1 of 10"));
    assert_non_null(strstr(page, "predicted 200 ms: measured +25%"));
    assert_non_null(strstr(page, "because it fits"));
    assert_non_null(strstr(page, "400 MB/s</td><td>1.00 GB/s</td><td>2.00 GB/s</td><td>50%</td>"));
    assert_non_null(strstr(page, "<td class=\"home nvme\">nvme<span>120 B</span></td>"));
    assert_non_null(strstr(page, "a buffer"));
    assert_non_null(strstr(page, "3.00 \xc2\xb5s</td><td>60%</td>")); /* without the pause */
    assert_non_null(strstr(page, "read 2.00 \xc2\xb5s"));
    assert_null(strstr(page, "Not in this page"));
    assert_null(strstr(page, "beside other work"));
    assert_null(strstr(page, "More than 100%"));
}

/* A machine that was probed beside other work, rates above the ceiling, and stalls by cause. */
static void says_what_to_make_of_the_figures(void **state)
{
    put("plan.json", "{\"machine\": {\"is_measured\": true, \"disturbed\": true, "
                     "\"disturbed_by\": \"a <busy> core\"}, \"ceilings\": {\"read\": 5e8}}");
    FILE *file = create("metrics.jsonl");
    metrics_line line = sample_line(1);
    put_line(file, &line);
    assert_int_equal(fclose(file), 0);
    file = create("trace.json");
    begin_trace(file, 0);
    put_waiting_event(file, 1, 10, 5, "compute", "forward embed mb 0", 2, "hand-over");
    put_waiting_event(file, 1, 20, 5, "compute", "forward embed mb 1", 3, "comm");
    put_waiting_event(file, 1, 30, 5, "compute", "backward embed mb 0", 4, "a new word");
    end_trace(file);
    report();
    assert_non_null(strstr(page, "beside other work (a &lt;busy&gt; core): predictions"));
    assert_non_null(strstr(page, "comm 3.00 \xc2\xb5s, hand-over 2.00 \xc2\xb5s, unknown 4.00"));
    assert_non_null(strstr(page, "class=\"lane-hand-over\""));
    assert_non_null(strstr(page, "the op was ready"));
    assert_string_equal(
        json_string_value(json_array_get(json_object_get(data, "stalls"), LANE_COUNT)),
        "hand-over");
    const json_t *events = at_path("timeline", "events");
    assert_true(row_number(events, 0, 9) == LANE_COUNT && row_number(events, 1, 9) == LANE_COMM &&
                row_number(events, 2, 9) == -1);
    assert_non_null(strstr(page, "<td>200%</td>"));
    assert_non_null(strstr(page, "More than 100%"));
    assert_non_null(strstr(page, "was low for that"));
    assert_non_null(strstr(page, "A drive is faster"));
    assert_null(strstr(page, "A copy on the CPU"));
}

static void names_damaged_lines(void **state)
{
    put("plan.json", "{\"model\": \"gpt2\",\n\"units\": ,\n}");
    FILE *file = create("metrics.jsonl");
    metrics_line line = sample_line(1);
    put_line(file, &line);
    fputs("{\"step\": 2, \"loss\"\n[1]\n{\"loss\":1}\n\n{\"event\":\"party\",\"step\":3}\n", file);
    fputc(0, file);
    fputs("\n", file);
    line.step = 4;
    put_line(file, &line);
    fputs("{\"step\":5,\"loss\":1}", file); /* not ended: a run that goes on */
    assert_int_equal(fclose(file), 0);
    file = create("trace.json");
    begin_trace(file, 0);
    put_event(file, 4, 0, 5, "compute", "forward embed mb 0", 0);
    fputs("{\"ph\":\"X\",\n{\"ph\":\"X\",\"ts\":-1,\"dur\":1,\"cat\":\"read\",\"name\":\"read\"},\n"
          "{\"ph\":\"X\",\"ts\":1,\"dur\":1,\"cat\":\"road\",\"name\":\"read\"},\n",
          file);
    end_trace(file);
    report();
    const json_t *rows = at_path("steps", "rows");
    assert_int_equal(json_array_size(rows), 2);
    assert_true(row_number(rows, 1, 0) == 4);
    assert_non_null(strstr(page, "plan.json is left out: line 2"));
    assert_non_null(strstr(page, "metrics.jsonl, line 2 is left out"));
    assert_non_null(strstr(page, "metrics.jsonl, line 3 is left out: it is not an object"));
    assert_non_null(strstr(page, "metrics.jsonl, line 4 is left out: it names no step"));
    assert_non_null(strstr(page, "metrics.jsonl has 3 more lines"));
    assert_non_null(strstr(page, "trace.json, line 3 is left out"));
    assert_non_null(strstr(page, "trace.json, line 4 is left out: it has no time"));
    assert_non_null(strstr(page, "trace.json, line 5 is left out: its lane is not known"));
    assert_int_equal(json_array_size(at_path("timeline", "events")), 1);
}

/* Values whose types differ from those of a plan: the report must not trust any of them. */
static void survives_strange_plans(void **state)
{
    static const char *const plans[] = {
        "[1, 2]",
        "{\"model\": 7, \"units\": \"x\", \"peak_bytes\": 3, \"unit_list\": {\"a\": 1}, "
        "\"memory\": [], \"memory_over_step\": [], \"reasons\": 1}",
        "{\"unit_list\": [1, {\"name\": 4, \"tiers\": [1, \"roof\"], \"bytes\": [\"x\", -5]}], "
        "\"memory\": {}, \"memory_over_step\": {},\"peak_bytes\": {\"host\": []}, \"reasons\": [1, "
        "{}], \"parameters\": -1e300, \"machine\": []}",
        "{\"parameters\": 1e300, \"step_seconds\": 0, \"ceilings\": {\"read\": 0}}",
        "{\"bottleneck\": \"read\", \"units\": 1e300, \"step_seconds\": 1e-300}",
    };
    FILE *file = create("metrics.jsonl");
    fputs("{\"step\":1,\"loss\":\"high\",\"lanes\":[],\"seconds\":-4,\"peak_bytes\":1,\"tokens\":"
          "1e300}\n"
          "{\"step\":2,\"loss\":1,\"lanes\":{\"read\":{\"bytes\":1e300,\"busy_seconds\":1e300}},"
          "\"seconds\":1}\n",
          file);
    assert_int_equal(fclose(file), 0);
    for (size_t i = 0; i < sizeof plans / sizeof plans[0]; i++) {
        put("plan.json", plans[i]);
        report();
        assert_int_equal(json_array_size(at_path("steps", "rows")), 2);
    }
}

static void has_null_for_nan(void **state)
{
    FILE *file = create("metrics.jsonl");
    for (uint64_t step = 1; step <= 3; step++) {
        metrics_line line = sample_line(step);
        if (step == 2)
            line.loss = NAN;
        put_line(file, &line);
    }
    assert_int_equal(fclose(file), 0);
    report();
    const json_t *rows = at_path("steps", "rows");
    assert_int_equal(json_array_size(rows), 3);
    assert_true(json_is_null(json_array_get(json_array_get(rows, 1), 3)));
    assert_true(row_number(rows, 2, 3) == 3.0);
    assert_non_null(strstr(page, "1 steps have a loss that is not finite"));
    assert_null(strstr(page, ">nan<"));
    assert_null(strstr(page, "inf"));
}

static void escapes_names(void **state)
{
    static const char strange[] =
        "<b>&\"'</script><!-- \xe2\x80\xa8 \xc3\xa9\xe7\xb4\x85 \\ tile 3";
    static const char *const units[] = {strange};
    trace ring;
    assert_ok(trace_init(&ring, 16));
    for (uint64_t i = 0; i < 3; i++) {
        trace_event event = {.start_ns = 1000 + i * 100,
                             .end_ns = 1050 + i * 100,
                             .step = 1,
                             .unit = i < 2 ? 0 : UINT32_MAX,
                             .micro_batch_or_tile = 7,
                             .lane = LANE_UPDATE,
                             .kind = OP_UPDATE,
                             .program = PROGRAM_STEADY,
                             .stall_ns = 40,
                             .stall_lane = LANE_READ};
        trace_record(&ring, &event);
    }
    chrome_trace_names names = {.process = "rank 0", .unit_names = units, .unit_count = 1};
    assert_ok(chrome_trace_write(in_directory("trace.json"), FILE_PRIVATE, &ring, &names));
    trace_fini(&ring);
    json_t *plan = json_object(), *list = json_array(), *unit = json_object(),
           *reasons = json_array();
    json_object_set_new(unit, "name", json_string(strange));
    json_array_append_new(list, unit);
    json_object_set_new(plan, "unit_list", list);
    json_object_set_new(plan, "model", json_string(strange));
    json_array_append_new(reasons, json_string(strange));
    json_object_set_new(plan, "reasons", reasons);
    assert_int_equal(json_dump_file(plan, in_directory("plan.json"), 0), 0);
    json_decref(plan);
    report();
    assert_null(strstr(page, "<b>"));
    assert_null(strstr(page, "<!--"));
    assert_non_null(strstr(page, "&lt;b&gt;&amp;&quot;'&lt;/script&gt;"));
    assert_string_equal(json_string_value(json_array_get(at_path("timeline", "units"), 0)),
                        strange);
    assert_string_equal(json_string_value(json_array_get(at_path("plan", "units"), 0)), strange);
    const json_t *events = at_path("timeline", "events");
    assert_int_equal(json_array_size(events), 3);
    assert_true(row_number(events, 0, 5) == 0 && row_number(events, 0, 6) == 7);
    assert_true(row_number(events, 2, 5) == -1 && row_number(events, 2, 6) == 7); /* no unit */
    /* A file that is not UTF-8: jansson refuses the line, and the page names it. */
    FILE *file = create("metrics.jsonl");
    fputs("{\"step\":1,\"loss\":1,\"x\":\"\xff\xfe\"}\n", file);
    assert_int_equal(fclose(file), 0);
    report();
    assert_non_null(strstr(page, "metrics.jsonl, line 1 is left out"));
}

static void shows_a_typical_step(void **state)
{
    for (int variant = 0; variant < 3; variant++) {
        FILE *file = create("trace.json");
        begin_trace(file, variant == 1 ? 5 : 0);
        for (int step = 1; step <= 3; step++) {
            put_event(file, step, step * 200 + 50, step < 3 ? 20 : 50, "update",
                      "update head tile 1", step);
            put_event(file, step, step * 200, 30, "compute", "forward embed mb 0", 10.0 * step);
        }
        if (variant == 2) /* cut: its last step is not whole */
            assert_int_equal(fclose(file), 0);
        else
            end_trace(file);
        report();
        const json_t *timeline = json_object_get(data, "timeline");
        assert_int_equal(json_integer_value(json_object_get(timeline, "step")),
                         variant == 1 ? 3 : 2); /* the median of 1 to 3, of 2 and 3, of 1 and 2 */
        assert_int_equal(json_array_size(json_object_get(timeline, "events")), 2);
        assert_true(json_number_value(json_object_get(timeline, "length_us")) ==
                    (variant == 1 ? 100 : 70));
        /* Stalls are the mean of steps 1 to 3, of 2 and 3 if the beginning is lost, of 1 and 2 if
         * the end is lost. */
        static const char *const means[] = {"20.0 \xc2\xb5s", "25.0 \xc2\xb5s", "15.0 \xc2\xb5s"};
        assert_non_null(strstr(page, means[variant]));
        assert_true((strstr(page, "ends in the middle") != NULL) == (variant == 2));
    }
    FILE *file = create("trace.json"); /* one step, of which events are lost */
    begin_trace(file, 5);
    put_event(file, 9, 50, 20, "update", "update head tile 1", 1);
    end_trace(file);
    report();
    assert_non_null(strstr(page, "holds a part of step 9 alone"));
}

static void stays_small(void **state)
{
    enum { LINES = 20000, SPIKE = 12345, EVENTS = 40000 };
    FILE *file = create("metrics.jsonl");
    for (int step = 1; step <= LINES; step++)
        fprintf(file,
                "{\"step\":%d,\"loss\":%g,\"lr\":0.001,\"tokens_per_second\":100,\"seconds\":1}\n",
                step,
                step == SPIKE       ? 99.0
                : step == SPIKE + 1 ? 0.5
                                    : 2.0);
    assert_int_equal(fclose(file), 0);
    file = create("trace.json");
    begin_trace(file, 0);
    for (int i = 0; i < EVENTS; i++)
        put_event(file, 1, i * 10.0, i == 777 ? 400000 : 8, i == 777 ? "read" : "compute",
                  i == 777 ? "read embed #0" : "forward embed mb 0", 0);
    end_trace(file);
    report();
    assert_true(page_bytes < 3 << 20);
    const json_t *rows = at_path("steps", "rows");
    size_t count = json_array_size(rows);
    assert_in_range(count, 500, 1200);
    double lowest = 1e9, highest = 0, next = 1, sum = 0;
    for (size_t i = 0; i < count; i++) { /* no step is missing, none twice */
        assert_true(row_number(rows, i, 0) == next);
        double steps = row_number(rows, i, 1) - next + 1;
        next = row_number(rows, i, 1) + 1;
        sum += row_number(rows, i, 3) * steps;
        lowest = fmin(lowest, row_number(rows, i, 2));
        highest = fmax(highest, row_number(rows, i, 4));
    }
    assert_true(next == LINES + 1 && lowest == 0.5 && highest == 99);
    assert_true(fabs(sum - (2.0 * (LINES - 2) + 99.5)) < 1e-3);
    assert_non_null(strstr(page, "20000 steps are drawn as"));
    const json_t *events = at_path("timeline", "events");
    assert_in_range(json_array_size(events), 100, 12000);
    double ops = 0, bytes = 0;
    for (size_t i = 0; i < json_array_size(events); i++) {
        ops += row_number(events, i, 10);
        bytes += row_number(events, i, 7);
    }
    assert_true(ops == EVENTS && bytes == 1000.0 * EVENTS);
    assert_non_null(strstr(page, "40000 ops in 408 ms"));
    assert_non_null(strstr(page, "are drawn as one"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(needs_a_run, clean),
        cmocka_unit_test_teardown(experts_that_were_hit, clean),
        cmocka_unit_test_teardown(writes_where_it_is_told, clean),
        cmocka_unit_test_teardown(tells_one_step, clean),
        cmocka_unit_test_teardown(says_what_to_make_of_the_figures, clean),
        cmocka_unit_test_teardown(names_damaged_lines, clean),
        cmocka_unit_test_teardown(survives_strange_plans, clean),
        cmocka_unit_test_teardown(has_null_for_nan, clean),
        cmocka_unit_test_teardown(escapes_names, clean),
        cmocka_unit_test_teardown(shows_a_typical_step, clean),
        cmocka_unit_test_teardown(stays_small, clean),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
