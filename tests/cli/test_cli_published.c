/* Holds each row of `sluice plan --table published`, so that a change of the planner shows: what
 * fits, the bytes at rest, which follow from ZeRO's formulas, and the largest models by name. A row
 * that differs by more than 10 % from the paper must give its reason. The jobs of DeepSpeed's
 * tutorial in configs/jobs must plan to the same bytes as their rows. Runs the program. */
#include <jansson.h>
#include <math.h>
#include <sys/wait.h>

#include "tests/cli/plan_json.h"
#include "tests/unit.h"

enum { COMMAND_BYTES = 1024 };

/* Shards are padded to 4096 elements a rank, and tiles to 64 KiB and a block of skew. */
#define PADDING 0.02

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

static json_t *rows; /* of the table */

static const char *text(const json_t *object, const char *key)
{
    const char *found = json_string_value(member(object, key));
    return found ? found : "";
}

static const json_t *find_row(const char *name)
{
    size_t i;
    json_t *row;
    json_array_foreach(rows, i, row) if (strcmp(text(row, "name"), name) == 0) return row;
    fail_msg("no row \"%s\"", name);
    return NULL;
}

static double bytes_on(const json_t *row, const char *kind, const char *tier)
{
    return number(member(member(row, "state_bytes"), kind), tier);
}

/* Bytes of params, gradients and optimizer that rest on a tier, for each parameter of the model. */
static double states_on(const json_t *row, const char *tier)
{
    return (bytes_on(row, "params", tier) + bytes_on(row, "grads", tier) +
            bytes_on(row, "optimizer", tier)) /
           number(row, "parameters");
}

static void expect_bytes(const char *name, const char *what, double found, double formula)
{
    double most = formula * (1 + PADDING);
    if (!(found >= formula * (1 - 1e-12) && found <= most))
        fail_msg("%s: %s is %.6g, expected %.6g to %.6g", name, what, found, formula, most);
}

/* ---- what fits, with the bytes of a rank for each parameter ---- */

static void jobs_that_fit(void **state)
{
    static const struct {
        const char *name;
        double device, host;
    } expected[] = {
        {"zero-170b", 16.0 / 400, 0},
        {"offload-shape-1b", 2, 14},
        {"offload-shape-2b", 2, 14},
        {"offload-shape-4b", 2, 14},
        {"offload-shape-6b", 2, 14},
        {"offload-shape-8b", 2, 14},
        {"offload-shape-10b", 2, 14},
        {"offload-shape-11b", 2, 14},
        {"offload-shape-12b", 2, 14},
        {"offload-shape-13b", 2, 14},
        {"offload-shape-15b", 0, 1},
        {"offload-shape-20b", 0, 1},
        {"offload-shape-40b", 0, 1},
        {"offload-shape-60b", 0, 1},
        {"offload-shape-70b", 0, 1},
        {"tutorial-1.5b-without", 16, 0},
        {"tutorial-1.5b-stage1", 2 + 2 + 12.0 / 8, 0},
        {"tutorial-10b-stage2", 2 + 14.0 / 32, 0},
    };
    for (size_t i = 0; i < COUNT(expected); i++) {
        const json_t *row = find_row(expected[i].name);
        if (number(row, "ours") != 1)
            fail_msg("%s does not fit: %s", expected[i].name, text(row, "problem"));
        expect_bytes(expected[i].name, "device", states_on(row, "device"), expected[i].device);
        expect_bytes(expected[i].name, "host", states_on(row, "host"), expected[i].host);
        assert_true(states_on(row, "nvme") == 0);
    }
}

/* ZeRO-Infinity's: where each state rests is the planner's choice; their sum is not. */
static void jobs_on_drives(void **state)
{
    static const struct {
        const char *name;
        double each; /* bytes a parameter of all ranks together */
    } expected[] = {{"infinity-1t", 16}, {"infinity-1t-fp32-grads", 18}, {"infinity-32t", 16}};
    for (size_t i = 0; i < COUNT(expected); i++) {
        const json_t *row = find_row(expected[i].name);
        double sum = states_on(row, "device") + states_on(row, "host") + states_on(row, "nvme");
        assert_true(number(row, "ours") == 1);
        expect_bytes(expected[i].name, "all tiers", sum * number(row, "ranks"), expected[i].each);
    }
}

/* The papers' models do not fit without the tiers that the papers use: 20B with its params on one
 * GPU, and 1T without drives. */
static void refusals(void **state)
{
    static const char *const jobs[] = {
        "host-memory.json --machine dgx2-16xv100 --ranks 1 --set model.preset=zero-offload-20b",
        "nvme.json --machine dgx2-16xv100 --set 'tiers.nvme=[]'",
    };
    for (size_t i = 0; i < COUNT(jobs); i++) {
        char command[COMMAND_BYTES];
        snprintf(command, sizeof command, "%s plan %s/configs/jobs/limits/%s >/dev/null 2>&1",
                 SLUICE_PROGRAM, SLUICE_SOURCE_DIR, jobs[i]);
        int status = system(command);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 3);
    }
}

/* ---- the largest models ---- */

/* GPT-2: 12 h^2 + 13 h for a block; the embeddings of 50257 tokens and of 1024 positions; the last
 * norm. */
static double gpt2_params(double layers, double hidden)
{
    return layers * (12 * hidden * hidden + 13 * hidden) + (50257 + 1024) * hidden + 2 * hidden;
}

static void largest_models(void **state)
{
    static const struct {
        const char *name;
        int layers, hidden;
        /* Bytes a parameter on a rank: device, and host. */
        double device, host;
    } expected[] = {
        {"zero-64-replicated", 36, 2048, 16, 0},
        {"zero-64-stage1", 61, 3072, 4 + 12.0 / 64, 0},
        {"zero-data-parallel", 36, 2048, 16, 0},
        {"zero-128-stage2", 67, 4096, 2 + 14.0 / 128, 0},
        {"offload-1-without", 37, 2048, 16, 0},
        {"offload-4-without", 36, 2048, 16, 0},
        {"offload-16-without", 49, 4096, 2 + 14.0 / 16, 0},
        {"offload-1", 73, 4096, 2, 14},
        {"offload-16", 71, 4096, 2, 14.0 / 16},
        {"offload-16-parallel", 103, 8192, 0, 1},
    };
    for (size_t i = 0; i < COUNT(expected); i++) {
        const json_t *row = find_row(expected[i].name), *need = member(row, "need_bytes");
        double params = gpt2_params(number(row, "num_layers"), number(row, "hidden_size"));
        print_message("%s: %g layers of %g\n", expected[i].name, number(row, "num_layers"),
                      number(row, "hidden_size"));
        assert_true(number(row, "parameters") == params);
        assert_true(fabs(number(row, "ours") - params) <= 1e-6 * params);
        assert_true(number(need, "device") >= expected[i].device * params);
        assert_true(number(need, "host") >= expected[i].host * params);
        assert_true(number(need, "device") <= number(member(row, "budget_bytes"), "device"));
        assert_int_equal(number(row, "num_layers"), expected[i].layers);
        assert_int_equal(number(row, "hidden_size"), expected[i].hidden);
    }
}

/* ---- figures of bytes ---- */

static void figures_of_bytes(void **state)
{
    static const struct {
        const char *name;
        double each; /* bytes a parameter on the device */
    } cuts[] = {{"offload-cut-none", 16},
                {"offload-cut-grads", 14},
                {"offload-cut-update", 4},
                {"offload-cut-both", 2}};
    for (size_t i = 0; i < COUNT(cuts); i++) {
        const json_t *row = find_row(cuts[i].name);
        expect_bytes(cuts[i].name, "device", states_on(row, "device"), cuts[i].each);
        expect_bytes(cuts[i].name, "host", states_on(row, "host"), 16 - cuts[i].each);
        assert_true(fabs(number(row, "ours") - 16 / cuts[i].each) <= 16 / cuts[i].each * PADDING);
    }
    /* The gradients go to the CPU and the params come back, 2 bytes each. Beside them only tokens,
     * losses and the sums of the norm pass. */
    expect_bytes("offload-traffic", "bytes a parameter",
                 number(find_row("offload-traffic"), "ours"), 2 + 2);
    for (int stage = 0; stage < 2; stage++) {
        const json_t *row = find_row(stage ? "tutorial-1.5b-adam-stage1" : "tutorial-1.5b-adam");
        double formula = 12 * number(row, "parameters") / (stage ? 8 : 1);
        expect_bytes("Adam's state", "bytes", number(row, "ours"), formula);
    }
    /* The input of each of 48 blocks: 2 bytes x 32 sequences x 1024 tokens x 1600. */
    const json_t *kept = find_row("zero-activations"),
                 *again = find_row("zero-activations-recomputed");
    double inputs = 48.0 * 2 * 32 * 1024 * 1600;
    expect_bytes("recomputed", "inputs of blocks", bytes_on(again, "activations", "device"),
                 inputs);
    assert_true(bytes_on(again, "inner_activations", "device") == 0);
    expect_bytes("kept", "inputs of blocks", bytes_on(kept, "activations", "host"), inputs);
    assert_true(bytes_on(kept, "inner_activations", "host") > 4 * inputs);
}

static void differences_have_reasons(void **state)
{
    size_t i;
    json_t *row;
    json_array_foreach(rows, i, row)
    {
        double published = number(row, "published"), ours = number(row, "ours");
        bool is_close = fabs(ours - published) <= 0.1 * published;
        assert_int_equal(is_close, json_is_true(member(row, "is_close")));
        if (!is_close && text(row, "reason")[0] == '\0')
            fail_msg("%s: published %g, ours %g, and no reason", text(row, "name"), published,
                     ours);
    }
    assert_true(json_array_size(rows) >= 40);
}

/* ---- the tutorial's files ---- */

static void jobs_of_the_tutorial(void **state)
{
    static const struct {
        const char *row, *arguments;
    } jobs[] = {
        {"tutorial-1.5b-stage1", "zero1-1.5b-8gpu.json --machine dgx2-16xv100 --ranks 8"},
        {"tutorial-10b-stage2", "zero2-10b-32gpu.json --machine dgx2-16xv100-32 --ranks 32"},
    };
    static const char *const kinds[] = {"params", "grads", "optimizer"};
    static const char *const tiers[] = {"device", "host", "nvme"};
    for (size_t i = 0; i < COUNT(jobs); i++) {
        char arguments[COMMAND_BYTES];
        snprintf(arguments, sizeof arguments, SLUICE_SOURCE_DIR "/configs/jobs/%s 2>/dev/null",
                 jobs[i].arguments);
        json_t *found = plan_json(0, "%s", arguments);
        const json_t *row = find_row(jobs[i].row);
        for (size_t k = 0; k < COUNT(kinds); k++) {
            double sum = 0; /* the file leaves the tier to the planner */
            for (size_t t = 0; t < COUNT(tiers); t++)
                sum += number(member(member(member(found, "memory"), tiers[t]), "homes"), kinds[k]);
            expect_bytes(jobs[i].row, kinds[k], sum, bytes_on(row, kinds[k], "device"));
        }
        json_decref(found);
    }
}

static int begin(void **state)
{
    rows = json_incref(member(plan_json(0, "--table published"), "published"));
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(jobs_that_fit),
        cmocka_unit_test(jobs_on_drives),
        cmocka_unit_test(refusals),
        cmocka_unit_test(largest_models),
        cmocka_unit_test(figures_of_bytes),
        cmocka_unit_test(differences_have_reasons),
        cmocka_unit_test(jobs_of_the_tutorial),
    };
    return cmocka_run_group_tests(tests, begin, NULL);
}
