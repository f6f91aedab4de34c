/* The largest model of a family that fits: a search over shapes by size, each tried as a plan is made, without
 * looking for what would fit in its place. See train.h. Blocks; allocates plans alone. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/size.h"
#include "train/train_internal.h"

/* The models of a hidden size: as deep as the published ones of that size, or nearly. Those of the next size
 * begin where these end. */
struct growth {
    uint32_t hidden, layers_most;
};

struct family {
    const char *name;
    const struct growth *sizes;
    uint32_t count;
    bool is_llama;
};

/* Llama 3.2 1B, 3 8B, 70B, 405B lie on it; then on. */
static const struct growth llama_sizes[] = {
    {2048, 16}, {4096, 32}, {8192, 80}, {16384, 126}, {32768, 160}};
static const struct growth offload_sizes[] = {{1600, 48}, {2048, 40}, {2304, 64}, {3072, 72},
                                              {4096, 78}, {8192, 75}, {9216, 128}};
/* GPT-2, then ZeRO's 10B and 100B, ZeRO-Infinity's 1T, and on. */
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

/* Working params of a part, of blocks that are cut: small beside any GPU that holds such a model's activations. */
enum { CUT_FROM_HIDDEN = 8192, PART_MIB = 256, HEAD_ELEMS = 128, KV_HEADS = 8 };

struct search {
    const struct job *asked;
    const struct train_plan_options *options;
    const struct family *family;
    struct plan_summary *plan; /* of the largest that fits */
    uint32_t tries;
};

static struct job_model shape(const struct search *self, uint32_t size, uint64_t layers)
{
    const struct growth *at = &self->family->sizes[size];
    bool is_llama = self->family->is_llama;
    struct job_model m = self->asked->model; /* seq_length, and how it is initialized */
    snprintf(m.preset, sizeof m.preset, "%s, %llu x %u", self->family->name,
             (unsigned long long)layers, at->hidden);
    snprintf(m.family, sizeof m.family, "%s", is_llama ? "llama" : "gpt2");
    m.num_layers = layers;
    m.hidden_size = at->hidden;
    m.num_heads = at->hidden == 1600 ? 25 : at->hidden / HEAD_ELEMS;
    m.num_kv_heads = is_llama ? KV_HEADS : m.num_heads;
    m.ffn_size = is_llama ? at->hidden / 2 * 7 : 4 * (uint64_t)at->hidden;
    m.vocab_size = is_llama ? 128256 : 50257;
    m.tie_embeddings = !is_llama;
    if (m.max_part_bytes == 0 && at->hidden >= CUT_FROM_HIDDEN)
        m.max_part_bytes = PART_MIB * MIB;
    return m;
}

/* The depth from which a size is larger than all models of the size before. */
static uint64_t layers_least(const struct search *self, uint32_t size)
{
    if (size == 0)
        return 1;
    const struct growth *before = &self->family->sizes[size - 1], *at = before + 1;
    double ratio = (double)before->hidden / at->hidden;
    return (uint64_t)(before->layers_most * ratio * ratio) + 1;
}

/* 1: it fits, and *plan is of it; 0: it does not. */
static int try_shape(struct search *self, uint32_t size, uint64_t layers, bool is_brief,
                     struct plan_summary *plan)
{
    struct job work = *self->asked; /* borrows its text and list */
    struct traini_setup_options options = {.local_world = self->options->local_world,
                                           .machine = self->options->machine,
                                           .is_described = self->options->is_described,
                                           .only_fits = is_brief};
    traini_setup *setup;
    work.model = shape(self, size, layers);
    self->tries++;
    int rc = traini_setup_create(&work, &options, &setup);
    if (rc == ERR_NO_FIT)
        return 0;
    TRY(rc);
    traini_setup_summary(setup, plan);
    traini_setup_destroy(setup);
    return 1;
}

/* The largest size whose least depth fits; -1: none. */
static int find_size(struct search *self, int *size)
{
    *size = -1;
    for (uint32_t s = 0; s < self->family->count; s++) {
        int fits = try_shape(self, s, layers_least(self, s), true, self->plan);
        TRY(fits);
        if (!fits)
            break;
        *size = (int)s;
    }
    return 0;
}

/* The greatest depth of the size that fits; the least does. */
static int find_depth(struct search *self, uint32_t size, uint64_t *layers)
{
    uint64_t fits_at = layers_least(self, size), most = self->family->sizes[size].layers_most;
    while (fits_at < most) {
        uint64_t middle = fits_at + (most - fits_at + 1) / 2;
        int fits = try_shape(self, size, middle, true, self->plan);
        TRY(fits);
        if (fits)
            fits_at = middle;
        else
            most = middle - 1;
    }
    *layers = fits_at;
    return 0;
}

static int find_family(const char *name, const struct family **out)
{
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        if (strcmp(families[i].name, name) == 0) {
            *out = &families[i];
            return 0;
        }
    return err_set(ERR_USAGE,
                   "there is no family \"%s\" of models: gpt, zero-offload and llama are", name);
}

/* The model that comes next, and what stops it. */
static int explain_next(struct search *self, uint32_t size, uint64_t layers,
                        struct train_max_model *out)
{
    static struct plan_summary next; /* large; of a model that fits after all */
    layers++;
    if (layers > self->family->sizes[size].layers_most) {
        size++;
        layers = size < self->family->count ? layers_least(self, size) : 0;
    }
    if (size >= self->family->count)
        return 0; /* the family ends here */
    int fits = try_shape(self, size, layers, false, &next);
    TRY(fits);
    out->next_layers = layers;
    out->next_hidden = self->family->sizes[size].hidden;
    snprintf(out->next_problem, sizeof out->next_problem, "%s",
             fits ? "fits, but no smaller one of its hidden size does" : err_text());
    return 0;
}

int train_max_model(const struct job *asked, const char *family,
                    const struct train_plan_options *options, struct train_max_model *out)
{
    struct search work = {.asked = asked, .options = options, .plan = &out->plan};
    int size;
    memset(out, 0, sizeof *out);
    TRY(find_family(family, &work.family));
    enum log_level usual = log_get_level();
    if (usual < LOG_WARN) /* each try would say what the first one said */
        log_set_level(LOG_WARN);
    int rc = find_size(&work, &size);
    if (rc == 0 && size < 0) {
        rc = try_shape(&work, 0, 1, false, &out->plan);
        rc = rc < 0
                 ? rc
                 : err_prefix(ERR_NO_FIT, "not even the smallest model of family %s fits", family);
    }
    uint64_t layers = 0;
    if (rc == 0)
        rc = find_depth(&work, (uint32_t)size, &layers);
    if (rc == 0) /* once more as a plan is made: the last one tried may be one that did not fit */
        rc = try_shape(&work, (uint32_t)size, layers, true, &out->plan);
    if (rc >= 0)
        rc = explain_next(&work, (uint32_t)size, layers, out);
    log_set_level(usual);
    TRY(rc);
    struct job_model m = shape(&work, (uint32_t)size, layers);
    out->layers = layers;
    out->hidden = m.hidden_size;
    out->heads = m.num_heads;
    out->max_part_bytes = m.max_part_bytes;
    out->tries = work.tries;
    return 0;
}
