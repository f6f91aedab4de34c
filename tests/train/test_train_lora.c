/* Runs with adapters: where states rest changes no bit, kept activations neither; a run that is
 * stopped goes on to the same bits; nothing but adapters learns; what is exported with and without
 * them agrees. */
#include <fcntl.h>
#include <math.h>
#include <unistd.h>

#include "base/mem.h"
#include "format/manifest.h"
#include "format/safetensors.h"
#include "hf/hf.h"
#include "infer/infer.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"

enum { STEPS = 6, STOP = 3 };

static const fixture_model shapes[] = {
    {.family = "llama", .bf16 = true, .layers = 2, .hidden = 128},
    {.family = "gpt2", .layers = 2, .hidden = 128},
};
static const char *const kinds[] = {"params", "grads", "optimizer", "activations"};
static const char *const adapters[] = {
    "{\"rank\":4,\"alpha\":6,\"dropout\":0.1,\"targets\":[\"q_proj\",\"v_proj\",\"gate_proj\","
    "\"down_proj\"]}",
    "{\"rank\":3,\"alpha\":3,\"dropout\":0.05,\"targets\":[\"c_attn\",\"c_proj\"]}",
};

static fixture_sets make_sets(int family, const char *tier, const char *update)
{
    fixture_sets sets = {.count = 0};
    for (int k = 0; k < 4; k++)
        fixture_set(&sets, "tiers.place.%s=%s", kinds[k], tier);
    fixture_set(&sets, "schedule.update=%s", update);
    fixture_set(&sets, "run.steps=%d", STEPS);
    fixture_set(&sets, "train.lora=%s", adapters[family]);
    fixture_set(&sets, "optimizer.params.lr=0.01");
    return sets;
}

static void placements_give_equal_bits(void **state)
{
    static const struct {
        const char *tiers[4], *inner, *update;
        bool is_tight;
    } cases[] = {
        {{"nvme", "nvme", "nvme", "nvme"}, "recompute", "in_next_forward", true},
        {{"host", "device", "nvme", "host"}, "host", "after_backward", false},
        {{"nvme", "host", "device", "device"}, "nvme", "in_next_forward", false},
        {{"host", "host", "host", "host"}, "selective", "after_backward", true},
        {{"host", "host", "nvme", "nvme"}, "selective_nvme", "in_next_forward", false},
    };
    static fixture_result baseline, result;
    for (int family = 0; family < 2; family++) {
        fixture_sets near = make_sets(family, "device", "after_backward");
        fixture_train_good("near", &shapes[family], &near, &baseline);
        assert_int_equal(baseline.step_count, STEPS);
        assert_true(baseline.losses[STEPS - 1] < baseline.losses[0]);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            fixture_sets sets = make_sets(family, "device", cases[i].update);
            for (int k = 0; k < 4; k++)
                fixture_set(&sets, "tiers.place.%s=%s", kinds[k], cases[i].tiers[k]);
            fixture_set(&sets, "tiers.place.inner_activations=%s", cases[i].inner);
            if (cases[i].is_tight)
                fixture_tighten("moved", &shapes[family], &sets);
            fixture_train_good("moved", &shapes[family], &sets, &result);
            fixture_assert_same(&baseline, &result);
            fixture_remove("moved");
        }
        fixture_remove("near");
    }
}

static void stopped_runs_go_on(void **state)
{
    static fixture_result whole, result;
    fixture_sets sets = make_sets(0, "nvme", "in_next_forward");
    fixture_train_good("whole", &shapes[0], &sets, &whole);
    for (int part = 0; part < 2; part++) {
        fixture_call call = {.name = "parts", .stop_after = part == 0 ? STOP : 0};
        fixture_run("parts", &shapes[0], &sets, &call, &result);
        if (result.rc != (part == 0 ? ERR_STOPPED : 0))
            fail_msg("part %d: %s: %s", part, err_name(result.rc), result.error);
    }
    fixture_assert_same(&whole, &result);
    manifest found;
    uint64_t units = 0, learning = 0;
    assert_int_equal(manifest_read(fixture_path("parts", "state"), &found), 1);
    for (uint64_t i = 0; i < found.extent_count; i++)
        if (found.extents[i].elem_begin == 0) {
            units++;
            learning += found.extents[i].param_bytes == 0;
        }
    assert_int_equal(units, 1 + 2 * 2 + 1);
    assert_int_equal(learning, 2); /* the adapters of two blocks */
    manifest_fini(&found);
    fixture_sets other = sets;
    fixture_set(&other, "train.lora.rank=5");
    fixture_run("parts", &shapes[0], &other, NULL, &result);
    assert_true(result.rc < 0);
    assert_non_null(strstr(result.error, "train.lora.rank was 4 and is 5"));
    fixture_remove("whole");
    fixture_remove("parts");
}

/* Norms apart from matrices lie in the adapters' units, of which there are as many: the state is no
 * other's. */
static void norms_are_not_taken_over(void **state)
{
    static fixture_result result;
    char from[FIXTURE_PATH_BYTES + 16];
    fixture_sets sets = make_sets(0, "nvme", "in_next_forward"), other = sets;
    fixture_train_good("plain", &shapes[0], &sets, &result);
    fixture_set(&other, "train.only=[\"norms\"]");
    snprintf(from, sizeof from, "%s/plain", fixture_dir);
    fixture_call call = {.name = "norms", .from = from};
    fixture_run("norms", &shapes[0], &other, &call, &result);
    assert_int_equal(result.rc, ERR_INPUT);
    assert_non_null(strstr(result.error, "train.only selects norms apart"));
    fixture_remove("norms");
    fixture_remove("plain");
}

/* Units of as many elements may hold other tensors: what lies where is the run's own. */
static void what_learns_is_not_set_anew(void **state)
{
    static fixture_result result;
    static const char *const sets[] = {"train.only=[\"norms\"]", "train.lora.rank=2",
                                       "train.lora.targets=[\"k_proj\"]", "train={}"};
    char from[FIXTURE_PATH_BYTES + 16];
    const char *data = fixture_path(NULL, "train.txt");
    fixture_sets own = make_sets(0, "nvme", "in_next_forward");
    fixture_train_good("run", &shapes[0], &own, &result);
    snprintf(from, sizeof from, "%s/run", fixture_dir);
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        const struct infer_evaluate_options asked = {
            .path = from, .files = &data, .file_count = 1, .set = &sets[i], .set_count = 1};
        struct infer_evaluate_result out;
        assert_error(infer_evaluate(&asked, &out), ERR_CONFIG, "cannot be set anew for the run in");
    }
    fixture_remove("run");
}

/* ---- export ---------------------------------------------------------------------------------- */

static void export_to(const char *run, const char *name, bool alone)
{
    char from[FIXTURE_PATH_BYTES + 16], to[FIXTURE_PATH_BYTES + 16];
    snprintf(from, sizeof from, "%s/%s", fixture_dir, run);
    snprintf(to, sizeof to, "%s/%s", fixture_dir, name);
    const struct hf_export_options asked = {
        .run_dir = from, .hf_dir = to, .type = "fp32", .adapters = alone, .force = true};
    struct hf_export_summary sum;
    if (hf_export(&asked, &sum) < 0)
        fail_msg("%s: %s", name, err_text());
}

/* A whole tensor of an exported file; the caller frees it. */
static float *tensor_of(const char *dir, const char *file, const char *name)
{
    char path[2 * FIXTURE_PATH_BYTES];
    safetensors_table table;
    snprintf(path, sizeof path, "%s/%s/%s", fixture_dir, dir, file);
    assert_ok(safetensors_open(path, &table));
    const safetensors_tensor *found = safetensors_find(&table, name);
    if (!found)
        fail_msg("%s has no %s", path, name);
    float *values = mem_alloc(found->elem_count, sizeof *values, "test");
    int fd = open(path, O_RDONLY);
    assert_true(values && fd >= 0);
    assert_true(safetensors_read(&table, fd, found, 0, found->size_bytes, values) >= 0);
    close(fd);
    safetensors_close(&table);
    return values;
}

static void remove_export(const char *name)
{
    char command[2 * FIXTURE_PATH_BYTES];
    snprintf(command, sizeof command, "rm -r '%s/%s'", fixture_dir, name);
    assert_int_equal(system(command), 0);
}

/* Each kind over the other in one directory: loaders would take what the other left. */
static void check_kinds(void)
{
    static const char *const names[] = {"model.safetensors", "config.json",
                                        "adapter_model.safetensors", "adapter_config.json"};
    char path[2 * FIXTURE_PATH_BYTES];
    snprintf(path, sizeof path, "%s/apart/mine.safetensors", fixture_dir);
    FILE *mine = fopen(path, "w");
    assert_true(mine && fclose(mine) == 0);
    for (int alone = 0; alone < 2; alone++) {
        export_to("run", "apart", alone);
        for (int i = 0; i < 4; i++) {
            snprintf(path, sizeof path, "%s/apart/%s", fixture_dir, names[i]);
            assert_int_equal(access(path, F_OK) == 0, i / 2 == alone);
        }
    }
    snprintf(path, sizeof path, "%s/apart/mine.safetensors", fixture_dir);
    assert_int_equal(access(path, F_OK), 0);
}

/* An export without --adapters adds (alpha / rank) B A to the base, with the A and B of an export
 * with --adapters. GPT-2's matrices are stored transposed; its biases have no adapters. */
static void exports_agree(void **state)
{
    enum { IN = 128, OUT = 3 * IN, RANK = 3 };
    static const char whole[] = "model.safetensors", apart[] = "adapter_model.safetensors";
    static fixture_result result;
    fixture_sets sets = make_sets(1, "host", "after_backward"), still = sets;
    fixture_set(&still, "optimizer.params.lr=0");
    fixture_set(&still, "run.steps=1");
    fixture_train_good("run", &shapes[1], &sets, &result);
    fixture_train_good("still", &shapes[1], &still, &result);
    export_to("run", "merged", false);
    export_to("still", "base", false);
    export_to("run", "apart", true);
    float *sum = tensor_of("merged", whole, "transformer.h.1.attn.c_attn.weight");
    float *base = tensor_of("base", whole, "transformer.h.1.attn.c_attn.weight");
    float *a =
        tensor_of("apart", apart, "base_model.model.transformer.h.1.attn.c_attn.lora_A.weight");
    float *b =
        tensor_of("apart", apart, "base_model.model.transformer.h.1.attn.c_attn.lora_B.weight");
    double largest = 0;
    for (int out = 0; out < OUT; out++)
        for (int in = 0; in < IN; in++) {
            double added = 0; /* alpha is the rank */
            for (int r = 0; r < RANK; r++)
                added += (double)b[out * RANK + r] * a[r * IN + in];
            largest = fmax(largest, fabs(added));
            assert_true(fabs(sum[in * OUT + out] - base[in * OUT + out] - added) < 1e-6);
        }
    assert_true(largest > 1e-4);
    float *biases[] = {tensor_of("merged", whole, "transformer.h.1.attn.c_attn.bias"),
                       tensor_of("base", whole, "transformer.h.1.attn.c_attn.bias")};
    assert_memory_equal(biases[0], biases[1], OUT * sizeof(float));
    float *blocks[] = {sum, base, a, b, biases[0], biases[1]};
    for (int i = 0; i < 6; i++)
        mem_free(blocks[i]);
    check_kinds();
    static const char *const exports[] = {"merged", "base", "apart"};
    for (int i = 0; i < 3; i++)
        remove_export(exports[i]);
    fixture_remove("run");
    fixture_remove("still");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(placements_give_equal_bits),
        cmocka_unit_test(stopped_runs_go_on),
        cmocka_unit_test(norms_are_not_taken_over),
        cmocka_unit_test(what_learns_is_not_set_anew),
        cmocka_unit_test(exports_agree),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
