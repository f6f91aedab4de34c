/* Checks the JSON that `sluice plan` prints: ZeRO's tables cell by cell, and a plan whose figures
 * follow from each other. Runs the program. */
#include <jansson.h>
#include <math.h>

#include "tests/cli/plan_json.h"
#include "tests/unit.h"

enum { COMMAND_BYTES = 2048 };

static const char *const tiers[] = {"device", "host", "nvme"};
static const char *const kinds[] = {"params", "grads", "optimizer", "activations",
                                    "inner_activations"};

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

static void near(const char *what, double found, double expected, double tolerance)
{
    if (!(fabs(found - expected) <= tolerance * fabs(expected)))
        fail_msg("%s: %.12g is not %.12g", what, found, expected);
}

/* ---- ZeRO's tables --------------------------------------------------------------------------- */

/* Table 1 as it was published: GB on each rank, by ranks, model and stage. */
static const struct {
    int ranks;
    const char *cells[3][3]; /* 7.5B, 128B, 1T; stages 1, 2, 3 */
} table1[] = {
    {1, {{"120", "120", "120"}, {"2048", "2048", "2048"}, {"16000", "16000", "16000"}}},
    {4, {{"52.5", "41.3", "30"}, {"896", "704", "512"}, {"7000", "5500", "4000"}}},
    {16, {{"35.6", "21.6", "7.5"}, {"608", "368", "128"}, {"4750", "2875", "1000"}}},
    {64, {{"31.4", "16.6", "1.88"}, {"536", "284", "32"}, {"4187", "2218", "250"}}},
    {256, {{"30.4", "15.4", "0.47"}, {"518", "263", "8"}, {"4046", "2054", "62.5"}}},
    {1024, {{"30.1", "15.1", "0.12"}, {"513", "257", "2"}, {"4011", "2013", "15.6"}}},
};
static const double table1_params[] = {7.5e9, 128e9, 1e12};

/* Table 2: by model-parallel parts and stage (0: replicated). */
static const struct {
    int parts, ranks;
    const char *cells[4];
} table2[] = {
    {1, 64, {"2B", "7.6B", "14.4B", "128B"}},      {2, 128, {"4B", "15.2B", "28.8B", "256B"}},
    {4, 256, {"8B", "30.4B", "57.6B", "0.5T"}},    {8, 512, {"16B", "60.8B", "115.2B", "1T"}},
    {16, 1024, {"32B", "121.6B", "230.4B", "2T"}},
};

/* The one row of the list that has these two members. */
static json_t *find_cell(const json_t *list, const char *key, double value, const char *stage_key,
                         double stage, double params)
{
    json_t *row, *found = NULL;
    size_t i;
    json_array_foreach(list, i, row)
    {
        bool fits = params <= 0 || number(row, "parameters") == params;
        if (!fits || number(row, key) != value || number(row, stage_key) != stage)
            continue;
        assert_null(found);
        found = row;
    }
    assert_non_null(found);
    return found;
}

static void cells_of_table_1(void **state)
{
    json_t *all = plan_json(0, "--table zero"), *list = member(all, "table_1");
    assert_int_equal(json_array_size(list), COUNT(table1) * 9);
    for (size_t r = 0; r < COUNT(table1); r++)
        for (size_t m = 0; m < COUNT(table1_params); m++)
            for (int stage = 1; stage <= 3; stage++) {
                json_t *cell =
                    find_cell(list, "ranks", table1[r].ranks, "stage", stage, table1_params[m]);
                const char *shown = json_string_value(member(cell, "gigabytes"));
                assert_string_equal(shown, table1[r].cells[m][stage - 1]);
                double bytes = number(cell, "rank_bytes"); /* unrounded: within a unit of it */
                assert_true(fabs(bytes / 1e9 - atof(shown)) < (bytes >= 1e11 ? 1 : 0.06));
            }
    json_decref(all);
}

static void cells_of_table_2(void **state)
{
    json_t *all = plan_json(0, "--table zero"), *list = member(all, "table_2");
    assert_int_equal(json_array_size(list), COUNT(table2) * 4);
    for (size_t r = 0; r < COUNT(table2); r++)
        for (int stage = 0; stage <= 3; stage++) {
            json_t *cell = find_cell(list, "model_parallel", table2[r].parts, "stage", stage, 0);
            assert_int_equal(number(cell, "ranks"), table2[r].ranks);
            const char *shown = json_string_value(member(cell, "shown"));
            assert_string_equal(shown, table2[r].cells[stage]);
            double scale = strchr(shown, 'T') ? 1e12 : 1e9, most = number(cell, "parameters");
            near("a model of table 2", most, atof(shown) * scale, 0.025);
        }
    json_t *volume = member(all, "sent_elements_per_parameter");
    for (size_t stage = 0; stage < 4; stage++)
        near("volume", json_number_value(json_array_get(volume, stage)), stage == 3 ? 3 : 2, 0);
    json_decref(all);
}

/* ---- a plan ---------------------------------------------------------------------------------- */

/* A job whose optimizer rests on a drive; plans touch none. */
static const char job_text[] =
    "{\"model\": {\"family\": \"llama\", \"num_layers\": 4, \"hidden_size\": 256, \"num_heads\": 4,"
    " \"num_kv_heads\": 2, \"ffn_size\": 704, \"vocab_size\": 512, \"seq_length\": 64},"
    " \"data\": {\"train\": [\"none.txt\"]}, \"run\": {\"dir\": \"none\", \"commit_every\": 4},"
    " \"device\": {\"backend\": \"cpu\", \"threads\": 2},"
    " \"tiers\": {\"device\": {\"budget\": \"64MiB\"}, \"host\": {\"budget\": \"64MiB\"},"
    "  \"nvme\": [{\"path\": \".\", \"budget\": \"512MiB\"}],"
    "  \"place\": {\"params\": \"host\", \"grads\": \"host\", \"optimizer\": \"nvme\"}},"
    " \"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 2,"
    " \"zero_optimization\": {\"stage\": 3}, \"bf16\": {\"enabled\": true}}";

/* The shell's way to hand it over. */
#define PLAN_OF_JOB "--machine none - %s <<'JOB'\n%s\nJOB"

static void memory_adds_up(const json_t *plan)
{
    static const char *const parts[] = {"scratch", "alignment", "under_way"};
    double ranks = number(plan, "world_size");
    for (size_t t = 0; t < COUNT(tiers); t++) {
        json_t *tier = member(member(plan, "memory"), tiers[t]), *homes = member(tier, "homes");
        double sum = 0, peak = number(member(plan, "peak_bytes"), tiers[t]);
        for (size_t k = 0; k < COUNT(kinds); k++)
            sum += number(homes, kinds[k]);
        for (size_t p = 0; p < COUNT(parts); p++)
            sum += number(tier, parts[p]);
        if (strcmp(tiers[t], "host") == 0)
            sum += number(tier, "copies");
        if (strcmp(tiers[t], "nvme") == 0)
            sum += number(tier, "save_places") + number(tier, "second_places");
        near(tiers[t], sum, peak, 0);
        assert_true(peak <= number(member(plan, "budget_bytes"), tiers[t]));
        assert_true((peak > 0) == (json_string_value(member(tier, "at_peak"))[0] != '\0'));
        assert_true(number(member(plan, "all_peak_bytes"), tiers[t]) == ranks * peak);
        assert_true(number(member(plan, "host_peak_bytes"), tiers[t]) ==
                    number(plan, "ranks_per_host") * peak);
    }
}

static void speed_follows(const json_t *plan)
{
    double step = number(plan, "step_seconds"), ranks = number(plan, "world_size");
    double bound = number(plan, "bound_seconds"), longest = 0;
    near("steps an hour", number(plan, "steps_per_hour"), 3600 / step, 1e-7);
    near("tokens/s", number(plan, "tokens_per_second"), number(plan, "tokens_per_step") / step,
         1e-7);
    near("TFLOPS", number(plan, "tflops_per_rank"),
         number(plan, "model_flops") / ranks / step / 1e12, 1e-7);
    assert_true(number(plan, "hardware_tflops_per_rank") > 0);
    assert_true(json_is_null(member(plan, "mfu"))); /* without a machine that has a peak */
    assert_true(bound > 0 && bound <= step * (1 + 1e-6));
    near("distance", 1 + number(plan, "over_bound"), step / bound, 1e-7);
    double schedule_bound = number(plan, "schedule_bound_seconds");
    assert_true(schedule_bound <= step * (1 + 1e-6));
    near("distance", 1 + number(plan, "over_schedule_bound"), step / schedule_bound, 1e-7);
    const char *name;
    json_t *resource;
    double tokens = number(plan, "tokens_per_step") / ranks;
    double computing = number(plan, "computing_seconds");
    json_object_foreach(member(plan, "resources"), name, resource)
    {
        double seconds = number(resource, "seconds"), growing = number(resource, "growing_seconds");
        json_t *hidden = member(resource, "hidden_from_tokens");
        longest = fmax(longest, seconds);
        assert_true(growing >= 0 && growing <= seconds * (1 + 1e-7));
        if (json_is_number(member(resource, "bytes_per_second")))
            near(name, number(resource, "bytes") / number(resource, "bytes_per_second"), seconds,
                 1e-7);
        if (json_is_true(member(resource, "is_computing")))
            assert_true(json_is_null(hidden) && computing <= seconds * (1 + 1e-7));
        else if (json_is_number(hidden) && json_number_value(hidden) > 0)
            near(name, json_number_value(hidden),
                 (seconds - growing) / ((computing - growing) / tokens), 1e-5);
    }
    near("the busiest resource", number(plan, "busiest_seconds"), longest, 1e-7);
    near(json_string_value(member(plan, "busiest_resource")),
         number(
             member(member(plan, "resources"), json_string_value(member(plan, "busiest_resource"))),
             "seconds"),
         longest, 1e-7);
    assert_non_null(
        json_object_get(member(plan, "lanes"), json_string_value(member(plan, "bottleneck"))));
}

static void wear_adds_up(const json_t *plan)
{
    json_t *drives = member(plan, "drives"), *written = member(drives, "written_bytes");
    double sum = number(written, "commits"), step = number(plan, "step_seconds"), read = 0;
    for (size_t k = 0; k < COUNT(kinds); k++) {
        sum += number(written, kinds[k]);
        read += number(member(drives, "read_bytes"), kinds[k]);
    }
    double all = number(drives, "written_bytes_per_step");
    assert_true(fabs(sum - all) <= 6); /* each is rounded to a byte */
    near("B/parameter", number(drives, "written_bytes_per_parameter"),
         all * number(plan, "world_size") / number(plan, "parameters"), 1e-7);
    near("a day", number(drives, "host_written_bytes_per_day"),
         all * number(plan, "ranks_per_host") * 86400 / step, 1e-7);
    near("the drive's bytes", number(member(member(plan, "resources"), "drive"), "bytes"),
         all + read, 1e-6);
    json_t *rates = member(plan, "ceilings");
    near("the drive's time", number(member(member(plan, "resources"), "drive"), "seconds"),
         (read / number(rates, "read") + all / number(rates, "write")) / number(rates, "both_ways"),
         1e-6);
    assert_true(json_is_null(member(drives, "life_days")));
    assert_true(json_is_null(member(drives, "host_endurance_bytes")));
    json_t *commit = member(plan, "commit");
    assert_true(number(commit, "seconds") >= 0);
    near("share of commits", number(written, "commits"),
         number(commit, "every_steps") > 0 ? number(commit, "bytes") / number(commit, "every_steps")
                                           : 0,
         1e-3);
}

static void check_plan(const json_t *plan)
{
    memory_adds_up(plan);
    speed_follows(plan);
    wear_adds_up(plan);
    assert_true(json_is_array(member(plan, "reasons")));
    assert_string_equal(json_string_value(member(member(plan, "machine"), "name")), "defaults");
    assert_true(json_is_false(member(member(plan, "machine"), "is_measured")));
}

static const char *const ways[] = {
    "",
    "--set run.commit_every=0",
    "--set tiers.place.optimizer=host",
    "--set tiers.place.optimizer=host --set run.commit_every=0",
    "--set tiers.place.activations=nvme --set schedule.order=batch_major",
    "--ranks 4",
    "--ranks 4 --ranks-per-host 2 --set zero_optimization.stage=1",
};

static void figures_of_a_plan(void **state)
{
    for (size_t i = 0; i < COUNT(ways); i++) {
        json_t *plan = plan_json(0, PLAN_OF_JOB, ways[i], job_text);
        print_message("%s: %.4f s a step\n", ways[i], number(plan, "step_seconds"));
        check_plan(plan);
        json_decref(plan);
    }
}

/* Writes this text to a new file; the caller removes it. */
static void write_file(char path[], const char *text)
{
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *file = fdopen(fd, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

/* A measured rate of expanding counts: a pass expands the packed matrices of its block. A block of
 * this model has 4 x 1024 x 1024 + 3 x 1024 x 2816 elements of nf4, in all of them a code of half a
 * byte is read and a bf16 of two bytes written, and every 64 have a scale of 4 bytes. The norms,
 * 2 x 1024 elements, are copied as bf16. Forward and backward expand each of the 2 blocks. */
static void expanding_takes_time(void **state)
{
    static const char *const text =
        "{\"name\": \"expands\", \"host\": {\"core_count\": 2, \"memory_bytes\": \"24GiB\", "
        "\"dram_copy\": 20e9}, \"device\": {\"flops_16bit\": 4e11, \"row_rate\": 20e9, "
        "\"expand_rate\": %.9g, \"products\": [{\"type\": \"bf16\", \"m\": 512, \"n\": 1024, "
        "\"k\": 1024, \"flops_per_second\": 4e11}]}, \"drives\": [{\"name\": \"drive\", "
        "\"capacity_bytes\": 1e12, \"read\": 3e9, \"write\": 3e9}]}";
    static const double rates[] = {1e9, 4e9};
    double seconds[COUNT(rates)];
    for (size_t i = 0; i < COUNT(rates); i++) {
        char path[] = "/tmp/sluice-machine-XXXXXX", machine[1024];
        snprintf(machine, sizeof machine, text, rates[i]);
        write_file(path, machine);
        json_t *plan =
            plan_json(0,
                      "--machine %s --set state.params=nf4 - <<'JOB'\n"
                      "{\"model\": {\"family\": \"llama\", \"num_layers\": 2, \"hidden_size\": "
                      "1024, \"num_heads\": 16, \"ffn_size\": 2816, \"vocab_size\": 256, "
                      "\"seq_length\": 512}, \"run\": {\"dir\": \"x\", \"steps\": 1}, \"data\": "
                      "{\"train\": [\"x\"]}, \"train\": {\"lora\": {\"rank\": 8}}, "
                      "\"bf16\": {\"enabled\": true}, \"train_micro_batch_size_per_gpu\": 1, "
                      "\"optimizer\": {\"type\": \"AdamW\"}}\nJOB",
                      path);
        seconds[i] = number(member(member(plan, "lanes"), "compute"), "busy_seconds");
        json_decref(plan);
        remove(path);
    }
    double elems = 4.0 * 1024 * 1024 + 3.0 * 1024 * 2816;
    double bytes = 2 * 2 * (elems * (0.5 + 2 + 4.0 / 64) + 2 * 1024 * 4);
    near("seconds", seconds[0] - seconds[1], bytes / rates[0] - bytes / rates[1], 0.01);
}

/* Runs a plan whose output is text. */
static void run_text(const char *how, char *text, size_t capacity)
{
    char command[COMMAND_BYTES];
    int used = snprintf(command, sizeof command, "%s plan %s - <<'JOB'\n%s\nJOB", SLUICE_PROGRAM,
                        how, job_text);
    assert_true((size_t)used < sizeof command);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    size_t length = fread(text, 1, capacity - 1, pipe);
    assert_int_equal(pclose(pipe), 0);
    text[length] = '\0';
}

/* For people: at most 90 columns, and each section is there. */
static void text_of_a_plan(void **state)
{
    static const char *const sections[] = {
        "model  ",   "schedule  ", "machine  ", "= peak",       "at the peak",    "predicted  ",
        "bound by ", "computing ", "\nlane  ",  "\nresource  ", "hidden from T*", "\ncommits  ",
    };
    for (size_t i = 0; i < COUNT(ways); i++) {
        char how[256], text[8192];
        snprintf(how, sizeof how, "--machine none %s", ways[i]);
        run_text(how, text, sizeof text);
        assert_null(strstr(text, "disturbed"));
        for (size_t k = 0; k < COUNT(sections); k++)
            if (!strstr(text, sections[k]))
                fail_msg("%s: no \"%s\" in\n%s", ways[i], sections[k], text);
        for (const char *line = text; *line; line += strcspn(line, "\n") + 1)
            if (strcspn(line, "\n") > 90)
                fail_msg("%s: more than 90 columns: %.120s", ways[i], line);
    }
}

/* Two hosts with four ranks each, to tell figures of a rank, of a host and of all hosts apart. */
static const char machine_text[] =
    "{\"name\": \"two hosts\", \"host_count\": 2, \"ranks_per_host\": 4,"
    " \"disturbed\": true, \"disturbed_by\": \"other processes used 1.81 of a core\","
    " \"host\": {\"core_count\": 32, \"memory_bytes\": \"256GiB\", \"dram_copy\": 100e9},"
    " \"device\": {\"is_gpu\": true, \"name\": \"a GPU\", \"memory_bytes\": \"32GiB\","
    "  \"peak_flops\": 125e12, \"flops_16bit\": 80e12, \"memory_rate\": 800e9},"
    " \"h2d\": {\"pinned\": 12e9}, \"d2h\": {\"pinned\": 12e9},"
    " \"drives\": [{\"name\": \"fast\", \"count\": 4, \"capacity_bytes\": 4e12, \"read\": 6e9,"
    "  \"write\": 4e9, \"endurance_bytes\": 7e15}],"
    " \"comm\": {\"inside\": 50e9, \"between\": 10e9}}";

static void figures_of_a_machine(void **state)
{
    char path[] = "/tmp/sluice-machine-XXXXXX";
    write_file(path, machine_text);
    json_t *plan = plan_json(
        0, "--machine %s - --set run.commit_every=0 --set device.backend=auto <<'JOB'\n%s\nJOB",
        path, job_text);
    json_t *drives = member(plan, "drives");
    double step = number(plan, "step_seconds");
    memory_adds_up(plan);
    assert_string_equal(json_string_value(member(member(plan, "machine"), "name")), "two hosts");
    assert_true(json_is_true(member(member(plan, "machine"), "disturbed")));
    assert_string_equal(json_string_value(member(member(plan, "machine"), "disturbed_by")),
                        "other processes used 1.81 of a core");
    assert_int_equal(number(plan, "world_size"), 8);
    assert_int_equal(number(plan, "ranks_per_host"), 4);
    near("peak", number(plan, "peak_tflops_per_rank"), 125, 1e-9);
    near("MFU", number(plan, "mfu"), number(plan, "model_flops") / 8 / step / 125e12, 1e-7);
    double written = number(drives, "written_bytes_per_step");
    assert_true(written > 0);
    near("capacity", number(drives, "host_capacity_bytes"), 16e12, 1e-9);
    near("endurance", number(drives, "host_endurance_bytes"), 28e15, 1e-9);
    near("life", number(drives, "life_days"), 28e15 / (written * 4 * 86400 / step), 1e-6);
    char how[256], text[8192];
    snprintf(how, sizeof how, "--machine %s --set device.backend=auto 2>&1", path);
    run_text(how, text, sizeof text);
    assert_non_null(
        strstr(text, "\ndisturbed    while it was measured: other processes used 1.81 of"));
    assert_non_null(strstr(text, "run sluice probe again on a quiet machine\n"));
    assert_null(strstr(text, "plan for ")); /* no progress where there is no terminal */
    json_decref(plan);
    remove(path);
}

/* A row for each number of ranks; one that the batch cannot be divided by is a row with its
 * reason. */
static void rows_of_ranks(void **state)
{
    char path[] = "/tmp/sluice-plan-XXXXXX";
    write_file(path, job_text);
    json_t *all = plan_json(0,
                            "%s --machine none --ranks 1,2,3,4 --set train_batch_size=16 "
                            "--set gradient_accumulation_steps=auto",
                            path);
    json_t *list = member(all, "table");
    assert_int_equal(json_array_size(list), 4);
    for (size_t i = 0; i < 4; i++) {
        json_t *row = json_array_get(list, i);
        bool fits = i != 2;
        assert_int_equal(number(row, "ranks"), i + 1);
        assert_true(json_is_true(member(row, "fits")) == fits);
        if (fits)
            assert_int_equal(number(member(row, "plan"), "world_size"), i + 1);
        else
            assert_non_null(strstr(json_string_value(member(row, "problem")), "train_batch_size"));
        if (fits)
            check_plan(member(row, "plan"));
    }
    json_decref(all);
    all = plan_json(3, "%s --machine none --ranks 1,2 --set tiers.device.budget=1MiB",
                    path); /* none fits */
    assert_true(json_is_false(member(json_array_get(member(all, "table"), 1), "fits")));
    json_decref(all);
    remove(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cells_of_table_1),     cmocka_unit_test(cells_of_table_2),
        cmocka_unit_test(figures_of_a_plan),    cmocka_unit_test(text_of_a_plan),
        cmocka_unit_test(figures_of_a_machine), cmocka_unit_test(expanding_takes_time),
        cmocka_unit_test(rows_of_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
