/* The rows of published figures, and how each is planned. See published.h. */
#include "setup/published.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "config/config.h"
#include "config/machine.h"
#include "plan/zero.h"
#include "setup/setup.h"
#include "setup/summary.h"

/* ---- the figures ---- */

/* The job that all rows share: one sequence of 1024 tokens on each GPU, fp16, Adam. */
static const char common_job[] =
    "{\"model\": {\"preset\": \"gpt2-1.5b\"}, \"data\": {\"train\": [\"train.txt\"]},"
    " \"run\": {\"dir\": \"runs/published\", \"steps\": 1, \"commit_every\": 0},"
    " \"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 1,"
    " \"fp16\": {\"enabled\": true}}";

#define PLACES(params, grads, optimizer)                                                           \
    "tiers.place={\"params\":\"" params "\",\"grads\":\"" grads "\",\"optimizer\":\"" optimizer    \
    "\",\"activations\":\"device\"}"
#define ON_GPU    PLACES("device", "device", "device")
#define OFFLOADED PLACES("device", "host", "host") /* as ZeRO-Offload */
#define ON_HOST   PLACES("host", "host", "host")
#define ON_DRIVES "tiers.nvme=[{\"path\":\"slabs\"}]" /* and where else the planner likes */

#define DGX2_ONE  "dgx2-16xv100"
#define DGX2_MANY "dgx2-16xv100-32"

#define RANK_BYTES 32e9 /* of a V100, as ZeRO counts it */

static const char zero[] = "ZeRO (arXiv 1910.02054), GPUs of 32 GB";
static const char offload[] = "ZeRO-Offload (arXiv 2101.06840), one DGX-2 of 16 V100";
static const char tutorial[] = "DeepSpeed's ZeRO tutorial, V100 of 32 GB";
static const char infinity[] = "ZeRO-Infinity (arXiv 2104.07857), DGX-2 with NVMe";

static const char upper_bound[] =
    "The formula counts states alone. The paper's runs also hold activations, fp32 buffers and "
    "fragments; here everything has its address in one arena, and a block is recomputed at a time.";
static const char one_arena[] =
    "The paper's run also holds activations, fused fp32 buffers and fragments of PyTorch's "
    "allocator; here everything has its address in one arena.";

#define LARGEST(name_, source_, what_, machine_, ranks_, stage_, family_, places, params, reason_) \
    {                                                                                              \
        .name = name_, .source = source_, .what = what_, .machine = machine_, .ranks = ranks_,     \
        .stage = stage_, .family = family_, .sets = {places}, .figure = PUBLISHED_LARGEST,         \
        .published = params, .reason = reason_                                                     \
    }
/* The largest model with all states on the GPUs. ZeRO's Table 2 has it measured and by formula. */
#define TABLE2(name_, what_, stage_, params)                                                       \
    {                                                                                              \
        .name = name_, .source = zero, .what = what_, .machine = DGX2_MANY, .ranks = 64,           \
        .stage = stage_, .family = "gpt", .sets = {ON_GPU}, .figure = PUBLISHED_LARGEST,           \
        .published = params, .has_theory = true, .reason = upper_bound                             \
    }
/* Another figure; the last arguments are what its job sets. */
#define CLAIM(name_, source_, what_, machine_, ranks_, stage_, figure_, published_, reason_, ...)  \
    {                                                                                              \
        .name = name_, .source = source_, .what = what_, .machine = machine_, .ranks = ranks_,     \
        .stage = stage_, .sets = {__VA_ARGS__}, .figure = figure_, .published = published_,        \
        .reason = reason_                                                                          \
    }
/* A shape of ZeRO-Offload's Table 3 with its batch on each GPU. */
#define SHAPE(size, what, ranks, stage, places, batch, reason)                                     \
    CLAIM("offload-shape-" size, offload, what, DGX2_ONE, ranks, stage, PUBLISHED_FITS, 1, reason, \
          places, "model.preset=zero-offload-" size, "train_micro_batch_size_per_gpu=" batch)
#define ONE_GPU(size, what, batch) SHAPE(size, what, 1, 0, OFFLOADED, batch, NULL)
#define MANY_GPUS(size, what)      SHAPE(size, what, 16, 3, ON_HOST, "8", no_model_parallel)
/* The GPU memory that a placement saves, of those that ZeRO-Offload compares. */
#define CUT(name, what, places, times)                                                             \
    CLAIM(name, offload, what, DGX2_ONE, 1, 0, PUBLISHED_SAVING, times, NULL, places,              \
          "model.preset=zero-offload-1b")

static const char not_said[] =
    "The paper does not say what stops it at 13B. Here 2 bytes a parameter stay on the GPU, and "
    "activations are recomputed block by block.";
static const char all_kept[] =
    "60 GB are 12 values a token, block and element of the hidden size. Ours keep 16: the block's "
    "input, two norms, q, k, v, attention, the sum after it, and 4 each before and after GELU. "
    "With the scratch of the GPU.";
static const char block_by_block[] =
    "The inputs of 48 blocks are 5.03 GB, the rest is scratch for one block. The paper's figure "
    "is round.";

static const char no_model_parallel[] =
    "The paper uses model parallelism. Here there is none: params rest in host memory too, in "
    "ZeRO stage 3.";

static const struct setup_claim claims[] = {
    TABLE2("zero-64-replicated", "largest on 64 GPUs, measured: nothing partitioned", 0, 1.3e9),
    TABLE2("zero-64-stage1", "largest on 64 GPUs, measured: stage 1", 1, 6.2e9),
    LARGEST("zero-data-parallel", zero, "where data parallelism alone ends", DGX2_ONE, 16, 0, "gpt",
            ON_GPU, 1.4e9, one_arena),
    LARGEST("zero-128-stage2", zero, "without model parallelism on 128 GPUs, stage 2", DGX2_MANY,
            128, 2, "gpt", ON_GPU, 13e9, NULL),
    CLAIM("zero-170b", zero, "ZeRO-100B: 170B on 400 GPUs", DGX2_MANY, 400, 3, PUBLISHED_FITS, 1,
          "The paper uses stage 2 with model parallelism. Here there is no model parallelism: it "
          "is stage 3.",
          ON_GPU, "model.preset=gpt-170b"),
    CLAIM("zero-activations", zero, "activations of 1.5B, 32 x 1K tokens, all kept", DGX2_ONE, 1, 0,
          PUBLISHED_ACTIVATIONS, 60e9, all_kept,
          "tiers.place={\"params\":\"device\",\"grads\":\"host\",\"optimizer\":\"host\","
          "\"activations\":\"host\",\"inner_activations\":\"host\"}",
          "train_micro_batch_size_per_gpu=32"),
    CLAIM("zero-activations-recomputed", zero, "the same with recomputation", DGX2_ONE, 1, 0,
          PUBLISHED_ACTIVATIONS, 8e9, block_by_block,
          "tiers.place={\"params\":\"device\",\"grads\":\"host\",\"optimizer\":\"host\","
          "\"activations\":\"device\",\"inner_activations\":\"recompute\"}",
          "train_micro_batch_size_per_gpu=32"),

    LARGEST("offload-1-without", offload, "largest on 1 GPU, without offload", DGX2_ONE, 1, 0,
            "gpt", ON_GPU, 1.4e9, one_arena),
    LARGEST("offload-4-without", offload, "largest on 4 GPUs, data parallelism", DGX2_ONE, 4, 0,
            "gpt", ON_GPU, 1.4e9, one_arena),
    LARGEST("offload-16-without", offload, "largest on 16 GPUs, ZeRO-2 without offload", DGX2_ONE,
            16, 2, "gpt", ON_GPU, 9e9, one_arena),
    LARGEST("offload-1", offload, "largest on 1 GPU, with offload", DGX2_ONE, 1, 0, "zero-offload",
            OFFLOADED, 13e9, not_said),
    LARGEST("offload-16", offload, "largest on 16 GPUs, with offload", DGX2_ONE, 16, 2,
            "zero-offload", OFFLOADED, 13e9, not_said),
    LARGEST("offload-16-parallel", offload, "the same with model parallelism", DGX2_ONE, 16, 3,
            "gpt", ON_HOST, 70e9, no_model_parallel),
    ONE_GPU("1b", "1B trains on 1 GPU, batch 32", "32"),
    ONE_GPU("2b", "2B, batch 32", "32"),
    ONE_GPU("4b", "4B, batch 32", "32"),
    ONE_GPU("6b", "6B, batch 16", "16"),
    ONE_GPU("8b", "8B, batch 16", "16"),
    ONE_GPU("10b", "10B, batch 10", "10"),
    ONE_GPU("11b", "11B, batch 8", "8"),
    ONE_GPU("12b", "12B, batch 4", "4"),
    ONE_GPU("13b", "13B, batch 4", "4"),
    MANY_GPUS("15b", "15B on 16 GPUs, batch 8, model parallelism 2"),
    MANY_GPUS("20b", "20B, batch 8, model parallelism 2"),
    MANY_GPUS("40b", "40B, batch 8, model parallelism 2"),
    MANY_GPUS("60b", "60B, batch 8, model parallelism 2"),
    MANY_GPUS("70b", "70B, batch 8, model parallelism 8"),
    CUT("offload-cut-none", "GPU memory saved: nothing on the CPU", ON_GPU, 1),
    CUT("offload-cut-grads", "gradients on the CPU", PLACES("device", "host", "device"), 16.0 / 14),
    CUT("offload-cut-update", "the update on the CPU", PLACES("device", "device", "host"), 4),
    CUT("offload-cut-both", "both on the CPU, as ZeRO-Offload does", OFFLOADED, 8),
    CLAIM("offload-traffic", offload, "least traffic between CPU and GPU, a parameter", DGX2_ONE, 1,
          0, PUBLISHED_TRAFFIC, 4, NULL, OFFLOADED, "model.preset=zero-offload-1b"),

    CLAIM("tutorial-1.5b-adam", tutorial, "Adam's state of 1.5B, replicated", DGX2_ONE, 8, 0,
          PUBLISHED_OPTIMIZER, 18e9, NULL, ON_GPU),
    CLAIM("tutorial-1.5b-adam-stage1", tutorial, "the same on each of 8 GPUs in stage 1", DGX2_ONE,
          8, 1, PUBLISHED_OPTIMIZER, 2.25e9, NULL, ON_GPU),
    CLAIM("tutorial-1.5b-without", tutorial, "1.5B on 8 GPUs without ZeRO", DGX2_ONE, 8, 0,
          PUBLISHED_FITS, 0, one_arena, ON_GPU),
    CLAIM("tutorial-1.5b-stage1", tutorial, "1.5B on 8 GPUs in stage 1", DGX2_ONE, 8, 1,
          PUBLISHED_FITS, 1, NULL, ON_GPU),
    CLAIM("tutorial-10b-stage2", tutorial, "10B on 32 GPUs in stage 2", DGX2_MANY, 32, 2,
          PUBLISHED_FITS, 1, NULL, ON_GPU, "model.preset=gpt2-10b"),

    CLAIM("infinity-1t", infinity, "1T on one node", DGX2_ONE, 16, 3, PUBLISHED_FITS, 1, NULL,
          ON_DRIVES, "model.preset=gpt-1t"),
    CLAIM("infinity-1t-fp32-grads", infinity, "the same with fp32 gradients, 18 bytes a parameter",
          DGX2_ONE, 16, 3, PUBLISHED_FITS, 1, NULL, ON_DRIVES, "model.preset=gpt-1t",
          "data_types.grad_accum_dtype=fp32"),
    CLAIM("infinity-32t", infinity, "32T on 32 nodes", DGX2_MANY, 512, 3, PUBLISHED_FITS, 1, NULL,
          ON_DRIVES, "model.preset=gpt-32t"),
};

uint32_t setup_published_count(void)
{
    return sizeof claims / sizeof claims[0];
}

const struct setup_claim *setup_published_claim(uint32_t idx)
{
    return &claims[idx];
}

/* ---- planning them ---- */

static uint64_t sum_kind(const struct setup_published *row, enum state_kind kind)
{
    uint64_t sum = 0;
    for (int a = 0; a < TIER_COUNT; a++)
        sum += row->states[kind][a];
    return sum;
}

/* Our figure, if it follows from what rests, of a job that fits. */
static double figure_at_rest(const struct setup_published *row)
{
    const uint64_t(*states)[TIER_COUNT] = row->states;
    zero_states each = zero_mixed_adam();
    if (row->claim->figure == PUBLISHED_OPTIMIZER)
        return (double)sum_kind(row, STATE_OPTIMIZER);
    if (row->claim->figure == PUBLISHED_SAVING)
        return (each.params + each.grads + each.optimizer) * (double)row->param_count /
               (double)(states[STATE_PARAMS][TIER_DEVICE] + states[STATE_GRADS][TIER_DEVICE] +
                        states[STATE_OPTIMIZER][TIER_DEVICE]);
    return 1; /* it fits */
}

/* Our figure, if it needs the compiled programs. */
static double figure_of_programs(const struct setup_published *row,
                                 const struct setup_summary *plan)
{
    if (row->claim->figure == PUBLISHED_TRAFFIC)
        return (double)(plan->lane_bytes[LANE_H2D] + plan->lane_bytes[LANE_D2H]) /
               (double)row->param_count;
    return (double)(sum_kind(row, STATE_ACTIVATIONS) + sum_kind(row, STATE_INNER_ACTIVATIONS) +
                    plan->scratch_bytes[TIER_DEVICE]);
}

static int fill_row(const struct setup *setup, bool is_compiled, struct setup_published *out)
{
    out->param_count = setup->net->param_count;
    memcpy(out->states, setup->set.home_bytes, sizeof out->states);
    memcpy(out->need, setup->need_bytes, sizeof out->need);
    memcpy(out->budget, setup->plan.budget_bytes, sizeof out->budget);
    if (!is_compiled) {
        out->ours = figure_at_rest(out);
        return 0;
    }
    struct setup_summary *plan = mem_alloc(1, sizeof *plan, "published figure");
    if (!plan)
        return -ENOMEM;
    setup_summarize(setup, plan);
    memcpy(out->need, plan->peak_bytes, sizeof out->need);
    out->ours = figure_of_programs(out, plan);
    mem_free(plan);
    return 0;
}

static int plan_job_of(const struct job *asked, const struct setup_plan_options *options,
                       struct setup_published *out)
{
    enum published_figure figure = out->claim->figure;
    bool is_compiled = figure == PUBLISHED_TRAFFIC || figure == PUBLISHED_ACTIVATIONS;
    struct setup *setup;
    const struct setup_options inputs = {.machine = options->machine,
                                         .is_described = options->is_described,
                                         .plan_watch = options->watch,
                                         .only_fits = !is_compiled};
    int rc = setup_create(asked, &inputs, &setup);
    if (rc == ERR_NO_FIT)
        snprintf(out->problem, sizeof out->problem, "%s", err_text());
    if (rc < 0)
        return rc == ERR_NO_FIT ? 0 : rc;
    rc = fill_row(setup, is_compiled, out);
    setup_destroy(setup);
    return rc;
}

static int find_largest(const struct job *asked, const struct setup_plan_options *options,
                        struct setup_published *out)
{
    struct setup_max_model *found = mem_alloc(1, sizeof *found, "published figure");
    if (!found)
        return -ENOMEM;
    int rc = setup_max_model(asked, out->claim->family, options, found);
    if (rc == 0) {
        out->ours = (double)found->param_count;
        out->param_count = found->param_count;
        out->layers = found->layers;
        out->hidden = found->hidden;
        memcpy(out->need, found->need_bytes, sizeof out->need);
        memcpy(out->budget, found->budget_bytes, sizeof out->budget);
        snprintf(out->problem, sizeof out->problem, "%s", found->next_problem);
    }
    mem_free(found);
    return rc;
}

static int read_job_of(const struct setup_claim *claim, struct job **out)
{
    const char *sets[PUBLISHED_SETS_MAX + 1];
    char stage[40];
    uint32_t count = 0;
    while (count < PUBLISHED_SETS_MAX && claim->sets[count]) {
        sets[count] = claim->sets[count];
        count++;
    }
    snprintf(stage, sizeof stage, "zero_optimization.stage=%u", claim->stage);
    sets[count++] = stage;
    return job_read(claim->name, common_job, sets, count, claim->ranks, out);
}

int setup_published_plan(uint32_t idx, struct plan_watch *watch, struct setup_published *out)
{
    const struct setup_claim *claim = &claims[idx];
    struct job *asked;
    struct machine *on = mem_alloc(1, sizeof *on, "described machine");
    memset(out, 0, sizeof *out);
    out->claim = claim;
    if (!on)
        return -ENOMEM;
    int rc = machine_read(claim->machine, on);
    if (rc == 0)
        rc = read_job_of(claim, &asked);
    if (rc == 0) {
        const struct setup_plan_options options = {
            .machine = on, .is_described = true, .watch = watch};
        rc = claim->figure == PUBLISHED_LARGEST ? find_largest(asked, &options, out)
                                                : plan_job_of(asked, &options, out);
        job_destroy(asked);
    }
    mem_free(on);
    if (claim->has_theory) {
        zero_states each = zero_mixed_adam();
        out->theory = zero_params_max(&each, claim->stage, RANK_BYTES, claim->ranks);
    }
    return rc;
}
