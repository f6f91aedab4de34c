/* Models as lists of units and stages: create, destroy, FLOPs of a step, and which file
 * runs a stage. See model.h. Only model_create allocates. One thread. */
#include "model/model.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"
#include "model/model_internal.h"

enum {
    CHUNK_ROWS_SMALL = 1024, /* up to here a chunk may have C rows */
    CHUNK_ROWS_STEP = 16,
};

/* The logits of a chunk and their gradient take chunk * V * 6 bytes (bf16). The output matrix and
 * its fp32 gradient take C * V * 6. With C / 4 rows a chunk takes a quarter of what the head needs
 * anyway, and the additions to the fp32 gradient (8 V C bytes a chunk) stay small against the
 * chunk's products.
 *
 * Small models take up to C rows, because each chunk packs the matrix twice and adds to all of its
 * gradient. GPT-2 (C = 768, V = 50257, bf16, 2 cores with AMX) trains 1.02 to 1.05 times as fast
 * with 768 rows (221 MiB) as with 384, at 1024 and at 4096 rows in all. */
static uint64_t chunk_rows_of(uint64_t channels, uint64_t rows)
{
    uint64_t least = size_min(channels, CHUNK_ROWS_SMALL);
    uint64_t chunk = size_round_up(size_max(channels / 4, least), CHUNK_ROWS_STEP);
    return size_min(size_max(chunk, MODELI_CHUNK_ROWS_MIN), rows);
}

static void list_stages(model *self)
{
    uint32_t last = self->stage_count - 1;
    for (uint32_t i = 0; i <= last; i++) {
        struct stage *stage = &self->stages[i];
        stage->kind = i == 0 ? STAGE_EMBED : i == last ? STAGE_HEAD : STAGE_BLOCK;
        stage->units[0] = modeli_stage_unit(self, i);
        stage->unit_count = 1;
        stage->is_cut = modeli_list_of(self, i)->part_count > 0;
    }
    if (self->spec.tie_embeddings && !self->stages[last].is_cut) {
        self->stages[last].units[1] = 0;
        self->stages[last].unit_count = 2;
    }
    for (uint32_t i = 1; i <= last; i++) {
        struct stage *stage = &self->stages[i];
        if (modeli_list_of(self, i)->is_split) {
            stage->units[1] = stage->units[0] + 1;
            stage->unit_count = 2;
        }
    }
}

static int check_window(const model_spec *spec, uint64_t micro_batch, const model_window *window)
{
    if (window->tokens > spec->seq_length || window->cache_positions > spec->seq_length)
        return err_set(ERR_CONFIG,
                       "a window of %llu tokens with %llu positions before was asked of a model of "
                       "%llu positions (model.seq_length)",
                       (unsigned long long)window->tokens,
                       (unsigned long long)window->cache_positions,
                       (unsigned long long)spec->seq_length);
    if (window->cache_positions > 0 && micro_batch != 1)
        return err_set(ERR_INTERNAL, "a model with a cache has a micro-batch of %llu, not 1",
                       (unsigned long long)micro_batch);
    return 0;
}

int model_create(const model_spec *spec, enum dtype type, uint64_t micro_batch, model **out)
{
    const model_window whole = {0};
    return model_create_window(spec, type, micro_batch, &whole, out);
}

/* Computes the sizes of activations, of the cache and of the tables. */
static void size_window(model *self, const model_window *window)
{
    uint64_t elem_bytes = dtype_bytes(self->type), rows = modeli_rows(self);
    self->boundary_bytes = rows * self->spec.hidden_size * elem_bytes;
    self->chunk_rows = chunk_rows_of(self->spec.hidden_size, rows);
    self->cache_positions = window->cache_positions;
    self->cache_bytes =
        self->spec.num_layers * (modeli_cache_bytes(self, false) + modeli_cache_bytes(self, true));
    if (modeli_has_rope(self->spec.family))
        self->constants_bytes = modeli_positions(self) * modeli_rotated(&self->spec) *
                                sizeof(float) * (self->spec.window_rope_theta != 0 ? 2 : 1);
}

/* True if the first `count` letters of the pattern say the same of all blocks. */
static bool is_enough(const model_spec *spec, size_t count)
{
    const char *pattern = spec->window_pattern;
    for (uint64_t block = count; block < spec->num_layers; block++)
        if (pattern[block % strlen(pattern)] != pattern[block % count])
            return false;
    return true;
}

/* Writes the shortest pattern that means the same, so that equal models have equal specs. */
static void shorten_pattern(model_spec *spec)
{
    size_t count = 1;
    if (spec->window_pattern[0] == '\0')
        strcpy(spec->window_pattern, "w");
    while (count < strlen(spec->window_pattern) && !is_enough(spec, count))
        count++;
    spec->window_pattern[count] = '\0';
}

/* Fills in what the spec leaves to its family, and checks it. */
static int complete_spec(model_spec *spec, enum dtype type, uint64_t micro_batch)
{
    if ((unsigned)spec->family >= MODEL_FAMILY_COUNT)
        return err_set(ERR_CONFIG, "model.family is number %d, which is none", (int)spec->family);
    bool has_positions = modeli_has_table(spec->family, MODELI_POSITIONS);
    if (spec->num_kv_heads == 0)
        spec->num_kv_heads = spec->num_heads;
    if (spec->ffn_size == 0 && has_positions && spec->hidden_size <= INT32_MAX)
        spec->ffn_size = 4 * spec->hidden_size;
    if (!has_positions)
        spec->position_count = 0;
    else if (spec->position_count == 0)
        spec->position_count = spec->seq_length;
    if (!modeli_has_table(spec->family, MODELI_TYPES))
        spec->type_count = 0;
    else if (spec->type_count == 0)
        spec->type_count = 2;
    spec->dense_blocks = size_min(spec->dense_blocks, spec->num_layers);
    if (spec->expert_ffn_size == 0)
        spec->expert_ffn_size = modeli_family_of(spec->family)->experts ? spec->ffn_size : 0;
    if (spec->head_dim > MODELI_HEAD_DIM_MAX || spec->value_head_dim > MODELI_HEAD_DIM_MAX)
        return err_set(ERR_CONFIG, "model.%s is %llu, but at most %d are possible",
                       spec->head_dim > MODELI_HEAD_DIM_MAX ? "head_dim" : "value_head_dim",
                       (unsigned long long)size_max(spec->head_dim, spec->value_head_dim),
                       MODELI_HEAD_DIM_MAX);
    TRY(modeli_check_spec(spec, type, micro_batch));
    TRY(modeli_check_gate(spec));
    if (spec->expert_count > 0 && spec->experts_per_unit == 0)
        spec->experts_per_unit = modeli_experts_per_unit(spec);
    shorten_pattern(spec);
    if (spec->head_dim == 0)
        spec->head_dim = spec->hidden_size / spec->num_heads;
    if (spec->value_head_dim == 0)
        spec->value_head_dim = spec->head_dim;
    if (modeli_has_rope(spec->family))
        TRY(modeli_check_rope(spec));
    TRY(modeli_check_learn(spec));
    return modeli_check_expert_ranks(spec);
}

int model_create_window(const model_spec *spec, enum dtype type, uint64_t micro_batch,
                        const model_window *window, model **out)
{
    *out = NULL;
    model_spec full = *spec;
    TRY(complete_spec(&full, type, micro_batch));
    TRY(check_window(&full, micro_batch, window));

    model *self = mem_alloc(1, sizeof *self, "model");
    if (self == NULL)
        return -ENOMEM;
    int rc = -ENOMEM;
    self->spec = full;
    self->type = type;
    self->micro_batch = micro_batch;
    self->tokens = window->tokens ? window->tokens : full.seq_length;
    const modeli_family *family = modeli_family_of(full.family);
    self->stage_count =
        (uint32_t)full.num_layers * (family->experts ? 2 : 1) + (family->last ? 3 : 2);
    self->products = mem_alloc(1, sizeof *self->products, "model.products");
    self->stages = mem_alloc(self->stage_count, sizeof *self->stages, "model.stages");
    if (self->products == NULL || self->stages == NULL)
        goto fail;
    modeli_list_layers(self);
    TRY_GOTO(rc, modeli_cut(self), fail);
    TRY_GOTO(rc, modeli_list_units(self), fail);
    modeli_find_places(self);
    size_window(self, window);
    list_stages(self);
    TRY_GOTO(rc, modeli_create_passes(self), fail);
    modeli_size_stages(self);
    *out = self;
    return 0;

fail:
    model_destroy(self);
    return rc;
}

void model_destroy(model *self)
{
    if (self == NULL)
        return;
    if (self->products != NULL) {
        modeli_release_products(self);
        mem_free(self->products->embed.parts);
        mem_free(self->products->block.parts);
        mem_free(self->products->dense.parts);
        mem_free(self->products->experts.parts);
        mem_free(self->products->last.parts);
        mem_free(self->products->head.parts);
        mem_free(self->products->origins);
    }
    for (uint32_t i = 0; i < self->unit_count; i++)
        mem_free(self->units[i].tensors);
    mem_free(self->units);
    mem_free(self->passes);
    mem_free(self->stages);
    mem_free(self->products);
    mem_free(self);
}

/* FLOPs for each element of a matrix and token: forward, gradient of the input, gradient of the
 * matrix. */
static double products_of(bool goes_back, bool learns)
{
    return 2 + (goes_back ? 2 : 0) + (learns ? 2 : 0);
}

/* Counts the elements that a token is multiplied by: of the experts only those of its own. */
static double matrix_elems(const modeli_list *list)
{
    double elems = 0;
    for (uint32_t i = 0; i < list->layer_count; i++) {
        const modeli_layer *layer = &list->layers[i];
        elems += layer->kind->has_experts
                     ? (double)modeli_choices_of(layer) * (double)modeli_expert_elems(layer)
                 : layer->kind->has_matrix ? (double)layer->matrix_rows * (double)layer->in
                                           : 0;
    }
    return elems;
}

double model_step_flops(const model *self, uint64_t tokens)
{
    const model_spec *spec = &self->spec;
    if (self->module) /* what its program computes is not known */
        return 0;
    double attention = 0.5 * (double)(modeli_width_of(self, MODELI_QUERIES) +
                                      modeli_width_of(self, MODELI_OUTPUTS));
    /* Sums over all blocks: FLOPs of matrices, elements of A and B, and FLOPs of attention's scores
     * (the forward is a third). */
    double products = 0, adapters = 0, attends = 0;
    for (uint32_t s = 1; s + 1 < self->stage_count; s++) {
        bool goes_back = s >= self->first_learning;
        double flops = products_of(goes_back, !self->units[self->stages[s].units[0]].is_frozen);
        const modeli_list *list = modeli_list_of(self, s);
        products += flops * matrix_elems(list);
        adapters += modeli_lora_elems(list) + modeli_expert_lora_elems(list);
        if (list == &self->products->block)
            attends += (goes_back ? 12 : 4) * modeli_scores_of(self, model_block_of(self, s));
    }
    double matrices =
        products + products_of(true, modeli_work_of(self, self->stage_count - 1).weights) *
                       (double)spec->vocab_size * (double)spec->hidden_size;
    return (matrices + 6 * adapters) * (double)tokens +
           attends * attention * (double)tokens / (double)self->tokens;
}

uint64_t model_block_of(const model *self, uint32_t stage)
{
    if (self->module)
        return stage - 1;
    return size_min((stage - 1) / modeli_block_stages(self), self->spec.num_layers);
}

bool model_waits_for_device(const model *self, uint32_t stage)
{
    return !self->module && modeli_list_of(self, stage) == &self->products->experts;
}

/* ---- running ---- */

int model_run(model *self, enum phase phase, uint32_t stage, uint32_t pass, void *stream,
              const model_call *call, enum kept kept)
{
    bool backward;
    assert(self->ops != NULL);
    assert(stage < self->stage_count);
    assert(pass < self->stages[stage].pass_count[phase]);
    if (self->module)
        return modeli_run_module(self, phase, stage, stream, call);
    if (phase == PHASE_BACKWARD)
        TRY(modeli_begin_grads(self, stage, pass, stream, call));
    const modeli_part *part = modeli_pass_part(self, phase, stage, pass, &backward);
    model_call expanded = *call;
    TRY(modeli_expand(self, &self->stages[stage].passes[phase][pass], stream, &expanded));
    call = &expanded;
    switch (self->stages[stage].kind) {
    case STAGE_EMBED:
        return modeli_embed(self, stream, call, part, backward);
    case STAGE_BLOCK:
        return modeli_block(self, stream, modeli_list_of(self, stage), call, part, phase, kept);
    case STAGE_HEAD:
        return modeli_head(self, stream, call, part, backward);
    }
    return err_set(ERR_INTERNAL, "stage %u of the model has no kind", stage);
}

int model_logits_pass(model *self, uint32_t pass, void *stream, const model_call *call,
                      uint64_t row, float *logits)
{
    uint32_t head = self->stage_count - 1;
    assert(self->ops != NULL);
    assert(row < modeli_rows(self));
    assert(pass < self->stages[head].pass_count[PHASE_FORWARD]);
    bool is_backward;
    const modeli_part *part = modeli_pass_part(self, PHASE_FORWARD, head, pass, &is_backward);
    model_call expanded = *call;
    TRY(modeli_expand(self, &self->stages[head].passes[PHASE_FORWARD][pass], stream, &expanded));
    return modeli_row_logits(self, stream, &expanded, part, row, logits);
}
