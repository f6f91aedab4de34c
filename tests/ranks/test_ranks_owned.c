/* Expert parallelism: ranks own whole experts, and rows of tokens travel to them.
 *
 * Losses have the bits of ZeRO at the same number of ranks, for even and uneven routing. Stages,
 * placements and ways to fetch agree in every bit of norms and weights too. Norms may differ from
 * those of ZeRO by rounding, since blocks of a unit's vector hold other experts. A run goes on
 * after a stop, on as many ranks or on one. The bytes sent are those of the plan, exactly so where
 * every token has all experts. The same holds with adapters of experts and with packed experts.
 * An export is that of a run with ZeRO, byte for byte.
 *
 * test_ranks_owned RANKS [NAME OF A TEST] */
#include <math.h>

#include "base/file.h"
#include "base/mem.h"
#include "hf/hf.h"
#include "infer/infer.h"
#include "setup/summary.h"
#include "tests/ranks/mpi_fixture.h"
#include "tests/unit.h"
#include "train/train.h"

static const fixture_model mixtral = {.family = "mixtral", .layers = 2, .hidden = 64};
static fixture_model shape; /* begins as mixtral */

/* A block without experts, then two with a shared expert. Experts come from the best groups. */
static const fixture_model deepseek = {.family = "deepseek", .layers = 3, .hidden = 64};
static const char *const deepseek_sets[] = {"first_k_dense_replace=1",
                                            "shared_ffn_size=32",
                                            "expert_ffn_size=32",
                                            "kv_latent_size=16",
                                            "rope_head_dim=8",
                                            "scoring_func=sigmoid",
                                            "n_group=4",
                                            "topk_group=2",
                                            "routed_scaling_factor=1.5",
                                            "num_kv_heads=4",
                                            "head_dim=24",
                                            "num_experts_per_tok=2"};

/* 8 experts in units of 4 or 8. Without clipping, so that no bit of a norm acts on a weight. */
static void begin_sets(fixture_sets *sets, bool is_owned)
{
    memset(sets, 0, sizeof *sets);
    fixture_set(sets, "run.steps=4");
    fixture_set(sets, "run.eval_every=2");
    fixture_set(sets, "gradient_clipping=0");
    fixture_set(sets, "communication_data_type=fp32");
    fixture_set(sets, "model.seq_length=16");
    fixture_set(sets, "model.num_experts=8");
    fixture_set(sets, "model.experts_per_unit=%d", mpi_world > 2 ? 8 : 4);
    fixture_set(sets, "model.expert_parallel_size=%u", is_owned ? mpi_world : 1);
    fixture_set(sets, "zero_optimization.stage3_param_persistence_threshold=0");
    bool has_shared = strcmp(shape.family, "deepseek") == 0;
    for (size_t i = 0; has_shared && i < sizeof deepseek_sets / sizeof deepseek_sets[0]; i++)
        fixture_set(sets, "model.%s", deepseek_sets[i]);
}

/* The same losses in every bit, and norms as good as equal. */
static void assert_same_losses(const char *what, const mpi_result *zero, const mpi_result *owned)
{
    if (mpi_rank != 0)
        return;
    assert_int_equal(zero->run.step_count, owned->run.step_count);
    for (uint64_t i = 0; i < zero->run.step_count; i++) {
        if (zero->run.loss_bits[i] != owned->run.loss_bits[i])
            fail_msg("%s: step %llu: %.9g by ZeRO, %.9g with owned experts", what,
                     (unsigned long long)i + 1, zero->run.losses[i], owned->run.losses[i]);
        if (!(fabs(zero->norms[i] / owned->norms[i] - 1) < 1e-12))
            fail_msg("%s: step %llu: norm %.17g by ZeRO, %.17g with owned experts", what,
                     (unsigned long long)i + 1, zero->norms[i], owned->norms[i]);
    }
    for (uint32_t i = 0; i < zero->eval_count; i++)
        assert_true(zero->eval_losses[i] == owned->eval_losses[i]);
    assert_int_equal(owned->run.plan.expert_parallel_size, mpi_world);
}

struct way {
    const char *name;
    const char *sets[6];
};

static const struct way ways[] = {
    {"stage 3", {"zero_optimization.stage=3"}},
    {"stage 1", {"zero_optimization.stage=1"}},
    {"stage 2, after the backward",
     {"zero_optimization.stage=2", "schedule.update=after_backward"}},
    {"stage 3, all on drives",
     {"zero_optimization.stage=3", "tiers.place.optimizer=nvme", "tiers.place.params=nvme",
      "tiers.place.grads=nvme", "tiers.place.activations=nvme", "schedule.experts=hit"}},
    {"stage 2, in host memory, checked",
     {"zero_optimization.stage=2", "tiers.place.optimizer=host", "tiers.place.params=host",
      "tiers.place.activations=host", "run.paranoid=true"}},
};

enum { SETS = 4 }; /* of a comparison, at most */

/* All ways with these settings agree, and their losses are those of ZeRO. */
static void compare(const char *what, const char *const sets[SETS], size_t way_count)
{
    static mpi_result zero, first, result;
    static fixture_sets asked;
    for (size_t i = 0; i <= way_count; i++) {
        begin_sets(&asked, i > 0);
        for (int k = 0; k < SETS && sets[k]; k++)
            fixture_set(&asked, "%s", sets[k]);
        const struct way *way = &ways[i == 0 ? 0 : i - 1];
        for (int k = 0; k < 6 && way->sets[k]; k++)
            fixture_set(&asked, "%s", way->sets[k]);
        mpi_train_good("owned", &shape, &asked, i == 0 ? &zero : i == 1 ? &first : &result);
        if (i == 1)
            assert_same_losses(what, &zero, &first);
        if (i > 1)
            mpi_assert_same(way->name, &first, &result);
    }
    if (mpi_rank == 0)
        printf("%u ranks, %s: %zu ways agree\n", mpi_world, what, way_count);
}

enum { WAYS = sizeof ways / sizeof ways[0] };

static void owned_experts_have_the_bits_of_zero(void **state)
{
    static const char *const all[SETS] = {NULL}, *const uneven[SETS] = {
                                                     "model.num_experts_per_tok=1",
                                                     "model.seq_length=4",
                                                     "train_micro_batch_size_per_gpu=1"};
    /* Logits that are all 0: every token chooses the first experts. */
    static const char *const alike[SETS] = {"model.init_std=1e-25"};
    shape.bf16 = false;
    compare("fp32", all, WAYS);
    compare("few tokens, one expert each", uneven, 2);
    compare("all tokens choose the same experts", alike, 2);
    shape.bf16 = true;
    compare("bf16", all, WAYS);
    shape = mixtral;
}

/* Dense blocks and shared experts stay with ZeRO. */
static void a_family_with_shared_experts_has_them(void **state)
{
    static const char *const all[SETS] = {NULL};
    shape = deepseek;
    compare("deepseek", all, 2);
    shape = mixtral;
}

static void frozen_experts_have_them_too(void **state)
{
    static const char *const adapters[SETS] = {"train.lora={\"rank\":2,\"targets\":[\"q_proj\"]}"};
    static const char *const block[SETS] = {"train.only=[\"blocks.1\"]",
                                            "model.router_aux_loss_coef=0.01"};
    static const char *const of_experts[SETS] = {
        "train.lora={\"rank\":2,\"targets\":[\"experts.down_proj\",\"experts.gate_up_proj\"]}",
        "model.num_experts_per_tok=3"};
    compare("adapters of attention", adapters, 2);
    compare("adapters of experts", of_experts, WAYS);
    compare("a block alone, and a loss of routers", block, 3);
}

/* Packed experts, which all ranks expand from their own part. */
static void packed_experts_have_them_too(void **state)
{
    static const char lora[] =
        "train.lora={\"rank\":2,\"targets\":[\"q_proj\",\"experts.down_proj\"]}";
    static const char width[] = "model.expert_ffn_size=64"; /* whole blocks of each format */
    static const char *const cases[][SETS] = {
        {"state.params=nf4_double", width, lora, "gradient_accumulation_steps=3"},
        {"state.params=int8", width, lora},
        {"state.params=fp8_blocks", width, "train.only=[\"blocks.1\"]"},
        {"state.params=mxfp4", width, lora,
         "state.rules=[{\"tensors\":\"experts.gate_up_proj\",\"params\":\"working\"}]"},
    };
    shape.bf16 = true;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        compare(cases[i][0], cases[i], i == 0 ? WAYS : 1);
    shape.bf16 = false;
}

/* ---- exports ---- */

static void expect_same(const char *a, const char *b, const char *file)
{
    char *first, *second, path[FIXTURE_PATH_BYTES * 2];
    uint64_t first_bytes, second_bytes;
    snprintf(path, sizeof path, "%s/%s", fixture_path(NULL, a), file);
    assert_ok(file_read(path, 1 << 28, &first, &first_bytes));
    snprintf(path, sizeof path, "%s/%s", fixture_path(NULL, b), file);
    assert_ok(file_read(path, 1 << 28, &second, &second_bytes));
    if (first_bytes != second_bytes || memcmp(first, second, first_bytes) != 0)
        fail_msg("%s and %s have other bytes in %s", a, b, file);
    mem_free(first);
    mem_free(second);
}

/* Runs, and exports on rank 0: as `name`-whole, and with adapters as `name`-adapters. */
static void run_and_export(const char *name, const fixture_sets *sets, bool has_adapters)
{
    static mpi_result result;
    char to[64];
    mpi_train_call(&(mpi_call){.name = name, .keeps = true}, &shape, sets, &result);
    for (int i = 0; mpi_rank == 0 && i <= has_adapters; i++) {
        struct hf_export_summary sum;
        snprintf(to, sizeof to, "%s-%s", name, i ? "adapters" : "whole");
        const struct hf_export_options options = {.run_dir = fixture_path(NULL, name),
                                                  .hf_dir = fixture_path(NULL, to),
                                                  .adapters = i > 0,
                                                  .force = true};
        if (hf_export(&options, &sum) < 0)
            fail_msg("%s: %s", to, err_text());
    }
    mpi_barrier();
}

/* A run of the checkpoint of `begin`. */
static void adapt_sets(fixture_sets *sets, bool is_owned, const char *lora, const char *rate)
{
    memset(sets, 0, sizeof *sets);
    fixture_set(sets, "model={\"hf\": \"%s\", \"seq_length\": 16, \"experts_per_unit\": %d}",
                fixture_path(NULL, "begin-whole"), mpi_world > 2 ? 8 : 4);
    fixture_set(sets, "model.expert_parallel_size=%u", is_owned ? mpi_world : 1);
    fixture_set(sets, "data.tokenizer=bytes");
    fixture_set(sets, "run.steps=2");
    fixture_set(sets, "scheduler=null");
    fixture_set(sets, "gradient_clipping=0");
    fixture_set(sets, "communication_data_type=fp32");
    fixture_set(sets, "zero_optimization.stage=2");
    fixture_set(sets, "optimizer.params.lr=%s", rate);
    fixture_set(sets, "train.lora=%s", lora);
}

static void exports_are_those_of_zero(void **state)
{
    static const char lora[] = "{\"rank\": 3, \"targets\": [\"k_proj\", \"experts.down_proj\", "
                               "\"experts.gate_up_proj\"]}";
    static const char *const names[] = {"zero", "owned"};
    static fixture_sets asked;
    char from[FIXTURE_PATH_BYTES * 2];
    begin_sets(&asked, true);
    fixture_set(&asked, "zero_optimization.stage=1");
    fixture_set(&asked, "data.tokenizer=bytes");
    run_and_export("begin", &asked, false);
    for (int i = 0; i < 2; i++) {
        adapt_sets(&asked, i > 0, lora, "0.1");
        run_and_export(names[i], &asked, true);
    }
    snprintf(from, sizeof from, "{\"from\": \"%s\"}", fixture_path(NULL, "owned-adapters"));
    adapt_sets(&asked, true, from, "0");
    run_and_export("again", &asked, true);
    if (mpi_rank == 0) {
        expect_same("zero-adapters", "owned-adapters", "adapter_model.safetensors");
        expect_same("zero-whole", "owned-whole", "model.safetensors");
        expect_same("owned-adapters", "again-adapters", "adapter_model.safetensors");
        expect_same("owned-whole", "again-whole", "model.safetensors");
        for (int i = 0; i < 2; i++)
            fixture_remove(names[i]);
        fixture_remove("begin");
        fixture_remove("again");
    }
    mpi_barrier();
}

/* ---- bytes ---- */

static void check_sent(const char *what, const mpi_result *result)
{
    for (uint32_t r = 0; mpi_rank == 0 && r < mpi_world; r++)
        if (result->run.summary.ranks[r].sent_bytes != result->run.plan.sent_bytes)
            fail_msg("%s: rank %u sent %llu bytes, the plan says %llu", what, r,
                     (unsigned long long)result->run.summary.ranks[r].sent_bytes,
                     (unsigned long long)result->run.plan.sent_bytes);
}

/* If every token has all experts, the number of rows does not depend on the router. */
static void check_volume(const char *const sets[SETS])
{
    static mpi_result zero, owned;
    static fixture_sets asked;
    for (int i = 0; i < 2; i++) {
        begin_sets(&asked, i > 0);
        for (int k = 0; k < SETS && sets[k]; k++)
            fixture_set(&asked, "%s", sets[k]);
        fixture_set(&asked, "model.num_experts_per_tok=8");
        fixture_set(&asked, "zero_optimization.stage=3");
        fixture_set(&asked, "zero_optimization.stage3_max_reuse_distance=0");
        mpi_train_good("sent", &shape, &asked, i == 0 ? &zero : &owned);
    }
    assert_same_losses("every expert", &zero, &owned);
    check_sent("ZeRO", &zero);
    check_sent("owned", &owned);
    if (mpi_rank != 0)
        return;
    const struct setup_summary *plan = &owned.run.plan;
    assert_int_equal(plan->expert_zero_bytes, zero.run.plan.expert_zero_bytes);
    assert_int_equal(plan->expert_rows_bytes, zero.run.plan.expert_rows_bytes);
    /* The plans differ by the bytes that each of them states for experts, and by no others. */
    uint64_t zero_rest = zero.run.plan.sent_bytes - plan->expert_zero_bytes;
    uint64_t owned_rest = plan->sent_bytes - plan->expert_rows_bytes;
    assert_int_equal(zero_rest, owned_rest);
    printf("%u ranks: experts by ZeRO %llu bytes a step, as rows %llu\n", mpi_world,
           (unsigned long long)plan->expert_zero_bytes,
           (unsigned long long)plan->expert_rows_bytes);
}

/* The plans of both ways differ by the bytes that `auto` compares, also if blocks are frozen: those
 * before the first one that learns have no backward, and what is frozen has no gradients. */
static void auto_compares_what_plans_send(void **state)
{
    static const char *const cases[][2] = {
        {NULL},
        {"train.only=[\"blocks.1\"]"},
        {"train.only=[\"head\"]"},
        {"train.lora={\"rank\":2,\"targets\":[\"q_proj\"]}"},
        {"train.only=[\"blocks.1\"]", "gradient_accumulation_steps=3"},
    };
    static const struct setup_plan_options options = {0};
    static struct setup_summary plans[2];
    static fixture_sets asked;
    for (size_t c = 0; mpi_rank == 0 && c < sizeof cases / sizeof cases[0]; c++)
        for (unsigned stage = 1; stage <= 3; stage++) {
            for (int i = 0; i < 2; i++) {
                begin_sets(&asked, i > 0);
                fixture_set(&asked, "zero_optimization.stage=%u", stage);
                fixture_set(&asked, "zero_optimization.stage3_max_reuse_distance=0");
                for (int k = 0; k < 2 && cases[c][k]; k++)
                    fixture_set(&asked, "%s", cases[c][k]);
                job *one = fixture_job_ranks("compared", &shape, &asked, mpi_world);
                if (setup_plan_on(one, &options, &plans[i]) < 0)
                    fail_msg("case %zu: %s", c, err_text());
                job_destroy(one);
            }
            uint64_t zero_rest = plans[0].sent_bytes - plans[0].expert_zero_bytes;
            uint64_t owned_rest = plans[1].sent_bytes - plans[1].expert_rows_bytes;
            if (zero_rest != owned_rest || plans[1].expert_rows_bytes == 0)
                fail_msg("case %zu, stage %u: by ZeRO %llu bytes, %llu of experts; with owned "
                         "experts %llu, %llu of them rows",
                         c, stage, (unsigned long long)plans[0].sent_bytes,
                         (unsigned long long)plans[0].expert_zero_bytes,
                         (unsigned long long)plans[1].sent_bytes,
                         (unsigned long long)plans[1].expert_rows_bytes);
        }
}

static void plans_say_what_is_sent(void **state)
{
    static const char *const plain[SETS] = {NULL};
    static const char *const packed[SETS] = {
        "state.params=int8", "model.expert_ffn_size=512",
        "train.lora={\"rank\":2,\"targets\":[\"q_proj\",\"experts.down_proj\"]}"};
    check_volume(plain);
    check_volume(packed);
}

static void auto_takes_the_smaller_volume(void **state)
{
    static mpi_result result;
    static fixture_sets asked;
    for (unsigned tokens = 4; tokens <= 64; tokens *= 16) {
        begin_sets(&asked, false);
        fixture_set(&asked, "model.expert_parallel_size=auto");
        fixture_set(&asked, "model.seq_length=%u", tokens);
        fixture_set(&asked, "train_micro_batch_size_per_gpu=%u", tokens > 4 ? 4 : 1);
        fixture_set(&asked, "zero_optimization.stage=2");
        fixture_set(&asked, "run.steps=2");
        mpi_train_good("auto", &shape, &asked, &result);
        const struct setup_summary *plan = &result.run.plan;
        bool is_owned = plan->expert_rows_bytes < plan->expert_zero_bytes;
        if (mpi_rank == 0) {
            assert_int_equal(plan->expert_parallel_size, is_owned ? mpi_world : 1);
            assert_int_equal(is_owned, tokens == 4);
        }
    }
}

/* ---- resuming ---- */

/* An evaluation of the run, by one rank, has the loss of the run's last one. */
static void check_evaluation(const mpi_result *of)
{
    struct infer_evaluate_result result;
    const char *files[] = {fixture_path("valid.txt", NULL)};
    const struct infer_evaluate_options options = {.path = fixture_path("stopped", NULL),
                                                   .files = files,
                                                   .file_count = 1,
                                                   .batches = 2 * mpi_world};
    assert_ok(infer_evaluate(&options, &result));
    double own = of->eval_losses[of->eval_count - 1];
    if (!(fabs(result.loss / own - 1) < 1e-6))
        fail_msg("an evaluation has %.9g, and the run had %.9g", result.loss, own);
}

static void go_on(const char *const sets[SETS])
{
    static mpi_result whole, half, rest;
    static fixture_sets asked;
    for (int i = 0; i < 3; i++) {
        begin_sets(&asked, true);
        for (int k = 0; k < SETS && sets[k]; k++)
            fixture_set(&asked, "%s", sets[k]);
        fixture_set(&asked, "zero_optimization.stage=2");
        fixture_set(&asked, "tiers.place.optimizer=nvme");
        fixture_set(&asked, "run.steps=%d", i == 0 ? 8 : 3 * i);
        const mpi_call call = {.name = i == 0 ? "whole" : "stopped", .keeps = i > 0};
        mpi_train_call(&call, &shape, &asked, i == 0 ? &whole : i == 1 ? &half : &rest);
    }
    if (mpi_rank == 0) {
        assert_int_equal(whole.run.step_count, 8);
        assert_int_equal(rest.run.step_count, 6);
        for (int i = 0; i < 6; i++)
            assert_int_equal(whole.run.loss_bits[i], rest.run.loss_bits[i]);
        check_evaluation(&rest);
    }
    /* One rank goes on with all experts; its step has the sequences of all ranks. It adds up the
     * gradients of all micro-batches in one sum. Ranks add up their own ones, and then these sums
     * in the order of ranks. So bits differ, as they do by ZeRO, by no more than rounding. */
    mpi_barrier();
    if (mpi_rank == 0) {
        static fixture_result alone;
        fixture_set(&asked, "run.steps=8");
        fixture_set(&asked, "gradient_accumulation_steps=%u", 2 * mpi_world);
        fixture_set(&asked, "device.threads=1");
        job *one = fixture_job("stopped", &shape, &asked);
        const fixture_call call = {.name = "stopped"};
        fixture_train(one, &call, &alone);
        if (alone.rc < 0)
            fail_msg("one rank: %s", alone.error);
        assert_int_equal(alone.step_count, 8);
        for (int i = 0; i < 8; i++) {
            double apart = fabs(alone.losses[i] / whole.run.losses[i] - 1);
            if (apart > (i < 6 ? 0 : 1e-8))
                fail_msg("step %d: %.9g on one rank from step 7 on, %.9g on %u", i + 1,
                         alone.losses[i], whole.run.losses[i], mpi_world);
        }
        job_destroy(one);
        fixture_remove("stopped");
    }
    mpi_barrier();
}

static void runs_go_on(void **state)
{
    static const char *const plain[SETS] = {NULL};
    static const char *const adapted[SETS] = {
        "train.lora={\"rank\":2,\"targets\":[\"experts.down_proj\",\"experts.gate_up_proj\"]}",
        "state.params=nf4_double", "model.expert_ffn_size=64", "optimizer.params.lr=0.05"};
    go_on(plain);
    go_on(adapted);
}

/* On one rank experts lie in groups too, and nothing travels. */
static void groups_change_no_bit_of_one_rank(void **state)
{
    static mpi_result plain, grouped;
    static fixture_sets asked;
    for (int i = 0; i < 2; i++) {
        begin_sets(&asked, i > 0);
        mpi_train_alone("grouped", &shape, &asked, 2, i ? &grouped : &plain);
    }
    for (uint64_t i = 0; mpi_rank == 0 && i < plain.run.step_count; i++)
        assert_int_equal(plain.run.loss_bits[i], grouped.run.loss_bits[i]);
}

/* ---- refusals ---- */

static void what_cannot_be_is_refused(void **state)
{
    static const struct {
        const char *sets[3];
        const char *text;
    } cases[] = {
        {{"zero_optimization.stage=0"}, "zero_optimization.stage is 0"},
        {{"schedule.order=batch_major"}, "schedule.order is batch_major or fastest"},
        {{"schedule.order=fastest"}, "schedule.order is batch_major or fastest"},
        {{"model.expert_parallel_size=8"}, "it must be 1 or the number of ranks"},
        {{"model.num_experts=9"}, "must divide model.num_experts 9"},
        {{"model.num_experts=16", "model.experts_per_unit=1"}, "must be a multiple of"},
    };
    static struct setup_summary plan;
    static fixture_sets asked;
    const struct setup_plan_options options = {0};
    for (size_t i = 0; mpi_rank == 0 && i < sizeof cases / sizeof cases[0]; i++) {
        begin_sets(&asked, true);
        fixture_set(&asked, "zero_optimization.stage=2");
        for (int k = 0; k < 3 && cases[i].sets[k]; k++)
            fixture_set(&asked, "%s", cases[i].sets[k]);
        job *one = fixture_job_ranks("refused", &shape, &asked, mpi_world);
        int rc = setup_plan_on(one, &options, &plan);
        if (rc != ERR_CONFIG || !strstr(err_text(), cases[i].text))
            fail_msg("case %zu: %d, %s", i, rc, err_text());
        printf("refused: %s\n", err_text());
        job_destroy(one);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest all[] = {
        cmocka_unit_test(owned_experts_have_the_bits_of_zero),
        cmocka_unit_test(a_family_with_shared_experts_has_them),
        cmocka_unit_test(frozen_experts_have_them_too),
        cmocka_unit_test(packed_experts_have_them_too),
        cmocka_unit_test(exports_are_those_of_zero),
        cmocka_unit_test(plans_say_what_is_sent),
        cmocka_unit_test(auto_compares_what_plans_send),
        cmocka_unit_test(auto_takes_the_smaller_volume),
        cmocka_unit_test(runs_go_on),
        cmocka_unit_test(groups_change_no_bit_of_one_rank),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    shape = mixtral;
    mpi_launch(argc, argv);
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    return mpi_end(cmocka_run_group_tests(all, mpi_setup, mpi_teardown));
}
