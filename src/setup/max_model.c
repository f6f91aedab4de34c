/* Finds the largest model of a family that fits: a search over shapes by size. Each shape is set up
 * as for a plan, and it is asked whether any placement of it fits (src/plan/search/fit.c). See
 * summary.h. Blocks; allocates only plans. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/size.h"
#include "config/machine.h"
#include "setup/setup_internal.h"

/* The models of one hidden size: about as deep as the published ones of that size. Those of the
 * next size begin where these end. */
struct growth {
    uint32_t hidden, layers_most;
};

struct family {
    const char *name;
    const struct growth *sizes;
    uint32_t count;
    bool is_llama;
};

/* Contains Llama 3.2 1B, 3 8B, 70B and 405B, and a larger size. */
static const struct growth llama_sizes[] = {
    {2048, 16}, {4096, 32}, {8192, 80}, {16384, 126}, {32768, 160}};
static const struct growth offload_sizes[] = {{1600, 48}, {2048, 40}, {2304, 64}, {3072, 72},
                                              {4096, 78}, {8192, 75}, {9216, 128}};
/* GPT-2, then ZeRO's 10B and 100B, ZeRO-Infinity's 1T, and larger ones. */
static const struct growth gpt_sizes[] = {{1024, 24},   {1600, 48},   {2048, 60},   {3072, 72},
                                          {4096, 78},   {8192, 125},  {12288, 125}, {18432, 125},
                                          {25600, 160}, {36864, 160}, {49152, 174}, {65536, 200},
                                          {90112, 205}, {114688, 220}};

#define SIZES(list) list, sizeof list / sizeof list[0]
static const struct family families[] = {
    {"gpt", SIZES(gpt_sizes), false},
    {"zero-offload", SIZES(offload_sizes), false},
    {"llama", SIZES(llama_sizes), true},
};

/* PART_MIB: working params of a part if blocks are cut. It is small compared with any GPU that
 * holds the activations of such a model. */
enum { CUT_FROM_HIDDEN = 8192, PART_MIB = 256, HEAD_ELEMS = 128, KV_HEADS = 8 };

struct search {
    const struct job *asked;
    const struct setup_plan_options *options;
    const struct family *family;
    struct setup_max_model *found;
};

static model_spec shape(const struct search *self, uint32_t size, uint64_t layers)
{
    const struct growth *at = &self->family->sizes[size];
    bool is_llama = self->family->is_llama;
    const model_spec *asked = &self->asked->model;
    model_spec m = {
        .family = is_llama ? MODEL_LLAMA : MODEL_GPT2,
        .num_layers = layers,
        .hidden_size = at->hidden,
        .num_heads = at->hidden == 1600 ? 25 : at->hidden / HEAD_ELEMS,
        .ffn_size = is_llama ? at->hidden / 2 * 7 : 4 * (uint64_t)at->hidden,
        .vocab_size = is_llama ? 128256 : 50257,
        .seq_length = asked->seq_length,
        .tie_embeddings = !is_llama,
        .qkv_bias = !is_llama,
        .hidden_dropout = asked->hidden_dropout,
        .embedding_dropout = asked->embedding_dropout,
        .attention_dropout = asked->attention_dropout,
        .rope_theta = asked->rope_theta,
        .norm_epsilon = asked->norm_epsilon,
        .init_std = asked->init_std,
        .partial_rotary_factor = 1,
        .max_part_bytes = asked->max_part_bytes,
        .learn = asked->learn,
        .lora = asked->lora,
        .stored = asked->stored,
    };
    m.num_kv_heads = is_llama ? KV_HEADS : m.num_heads;
    bool may_cut = self->asked->optimizer.type != JOB_MUON; /* it needs whole matrices */
    if (m.max_part_bytes == 0 && at->hidden >= CUT_FROM_HIDDEN && may_cut)
        m.max_part_bytes = PART_MIB * MIB;
    return m;
}

/* The depth from which models of this size are larger than all models of the size before. */
static uint64_t layers_least(const struct search *self, uint32_t size)
{
    if (size == 0)
        return 1;
    const struct growth *before = &self->family->sizes[size - 1], *at = before + 1;
    double ratio = (double)before->hidden / at->hidden;
    return (uint64_t)(before->layers_most * ratio * ratio) + 1;
}

/* Returns 1 if the shape fits, and 0 if not; err_text() then says why. With only_homes, only the
 * states at rest are checked; without it, *found gets the figures of a shape that fits. */
static int try_shape(struct search *self, uint32_t size, uint64_t layers, bool only_homes)
{
    struct job work = *self->asked; /* borrows the job's text and lists */
    struct setup_options options = {.local_world = self->options->local_world,
                                    .machine = self->options->machine,
                                    .is_described = self->options->is_described,
                                    .plan_watch = self->options->watch,
                                    .only_fits = true,
                                    .only_homes = only_homes};
    struct setup_max_model *found = self->found;
    struct setup *setup;
    work.model = shape(self, size, layers);
    work.module = NULL;
    work.hf[0] = '\0';
    snprintf(work.preset, sizeof work.preset, "%s, %llu x %llu", self->family->name,
             (unsigned long long)layers, (unsigned long long)work.model.hidden_size);
    found->tries++;
    int rc = setup_create(&work, &options, &setup);
    if (rc == ERR_NO_FIT)
        return 0;
    TRY(rc);
    if (only_homes) {
        setup_destroy(setup);
        return 1;
    }
    found->layers = layers;
    found->hidden = work.model.hidden_size;
    found->heads = work.model.num_heads;
    found->max_part_bytes = work.model.max_part_bytes;
    found->param_count = setup->net->param_count;
    found->world_size = setup->ranks.world;
    found->ranks_per_host = setup->ranks.local_world;
    found->zero_stage = setup->plan.zero_stage;
    memcpy(found->need_bytes, setup->need_bytes, sizeof found->need_bytes);
    memcpy(found->budget_bytes, setup->plan.budget_bytes, sizeof found->budget_bytes);
    snprintf(found->machine_name, sizeof found->machine_name, "%s",
             setup->stated ? setup->stated->name : "defaults");
    setupi_why_not_run(setup, found->machine_cannot_run);
    setup_destroy(setup);
    return 1;
}

/* The greatest depth in [least, most] at which a size fits, or 0. least - 1 is assumed to fit. */
static int find_depth(struct search *self, uint32_t size, uint64_t least, uint64_t most,
                      bool only_homes, uint64_t *depth)
{
    uint64_t fits_at = least - 1;
    while (fits_at < most) {
        uint64_t middle = fits_at + (most - fits_at + 1) / 2;
        int fits = try_shape(self, size, middle, only_homes);
        TRY(fits);
        if (fits)
            fits_at = middle;
        else
            most = middle - 1;
    }
    *depth = fits_at < least ? 0 : fits_at;
    return 0;
}

/* The greatest depth at which a size fits; 0: none. State at rest nearly decides the depth and is
 * cheap to check. From that depth the search goes down, in steps that double, until a whole model
 * fits. */
static int find_whole_depth(struct search *self, uint32_t size, uint64_t *depth)
{
    uint64_t least = layers_least(self, size), high, low;
    TRY(find_depth(self, size, least, self->family->sizes[size].layers_most, true, &high));
    for (uint64_t step = 1; high > 0; step *= 2) {
        low = high > least + step - 1 ? high - step + 1 : least;
        int fits = try_shape(self, size, low, false);
        TRY(fits);
        if (fits) {
            TRY(find_depth(self, size, low + 1, high, false, depth));
            *depth = *depth ? *depth : low;
            return 0;
        }
        high = low > least ? low - 1 : 0;
    }
    *depth = 0;
    return 0;
}

/* The largest size whose smallest depth has room for the states at rest; -1: none. */
static int find_size(struct search *self, int *size)
{
    int fits_at = -1, most = (int)self->family->count - 1;
    while (fits_at < most) {
        int middle = fits_at + (most - fits_at + 1) / 2;
        int fits = try_shape(self, (uint32_t)middle, layers_least(self, (uint32_t)middle), true);
        TRY(fits);
        if (fits)
            fits_at = middle;
        else
            most = middle - 1;
    }
    *size = fits_at;
    return 0;
}

static int find_family(const char *name, const struct family **out)
{
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        if (strcmp(families[i].name, name) == 0) {
            *out = &families[i];
            return 0;
        }
    return err_set(ERR_USAGE, "there is no model family \"%s\": take gpt, zero-offload or llama",
                   name);
}

/* Tries the next larger model and keeps the reason why it does not fit. */
static int explain_next(struct search *self, uint32_t size)
{
    struct setup_max_model *found = self->found, kept = *found;
    uint64_t layers = found->layers + 1;
    if (layers > self->family->sizes[size].layers_most) {
        size++;
        layers = size < self->family->count ? layers_least(self, size) : 0;
    }
    if (size >= self->family->count)
        return 0; /* the family has no larger model */
    int fits = try_shape(self, size, layers, false);
    TRY(fits);
    kept.tries = found->tries;
    *found = kept;
    found->next_layers = layers;
    found->next_hidden = self->family->sizes[size].hidden;
    snprintf(found->next_problem, sizeof found->next_problem, "%s",
             fits ? "fits too, although the search assumes that a larger model needs more"
                  : err_text());
    return 0;
}

static int explain_none(struct search *self)
{
    int fits = try_shape(self, 0, 1, false);
    TRY(fits);
    return fits ? err_set(ERR_INTERNAL, "a model fits that was not found")
                : err_prefix(ERR_NO_FIT, "not even the smallest model of family %s fits",
                             self->family->name);
}

/* Removes the rules that place units by their number: those are units of the job's own model, and
 * the models of the search have others. */
static void drop_rules_of_units(struct job *work)
{
    uint32_t kept = 0;
    for (uint32_t r = 0; r < work->tiers.rule_count; r++) {
        const struct job_rule *rule = &work->tiers.rules[r];
        if (rule->unit_last == UINT32_MAX && rule->name[0] == '\0')
            work->tiers.rules[kept++] = *rule;
        else
            log_warn("tiers.place.rules: rule %u, for %s, is dropped: it names units of the job's "
                     "own model, and --max-model looks at others",
                     r, state_kind_name(rule->kind));
    }
    work->tiers.rule_count = kept;
}

int setup_max_model(const struct job *asked, const char *family,
                    const struct setup_plan_options *options, struct setup_max_model *out)
{
    struct job plain = *asked; /* borrows the job's text and lists */
    struct search work = {.asked = &plain, .options = options, .found = out};
    int size = -1;
    memset(out, 0, sizeof *out);
    TRY(find_family(family, &work.family));
    drop_rules_of_units(&plain);
    enum log_level usual = log_get_level();
    if (usual < LOG_WARN) /* each try would repeat the messages of the first */
        log_set_level(LOG_WARN);
    uint64_t layers = 0;
    int rc = find_size(&work, &size);
    for (; rc == 0 && size >= 0 && layers == 0; size -= layers == 0)
        rc = find_whole_depth(&work, (uint32_t)size, &layers);
    if (rc == 0 && layers == 0)
        rc = explain_none(&work);
    if (rc == 0)
        rc = explain_next(&work, (uint32_t)size);
    log_set_level(usual);
    return rc;
}
