/* Declarations that the files of the model module share, beside those of layers_internal.h. Names
 * that begin with modeli_ are for these files and for the module's tests only. */
#ifndef SLUICE_MODEL_INTERNAL_H
#define SLUICE_MODEL_INTERNAL_H

#include <string.h>

#include "model/layers_internal.h"

/* The place of a unit's tensors in the model that is not cut. Initial weights depend on it. */
struct modeli_origin {
    uint32_t unit;
    uint32_t tensors[MODELI_GROUPED_MAX]; /* index within that unit */
};
typedef struct modeli_origin modeli_origin;

/* The products of the experts of a block, one for each size of a block of rows
 * (layer_experts.c). */
struct modeli_mixture {
    modeli_matrix up[MODELI_SIZES_MAX], down[MODELI_SIZES_MAX]; /* after model_prepare */
    /* of their adapters, by number of the matrix */
    modeli_matrix inner[MODELI_ROW_TENSORS_MAX][MODELI_SIZES_MAX],
        outer[MODELI_ROW_TENSORS_MAX][MODELI_SIZES_MAX];
};
typedef struct modeli_mixture modeli_mixture;

/* model.products. model_create fills all but what model_prepare makes: products and attention. */
struct model_products {
    const modeli_family *family;
    /* dense, experts: the second stages of a mixture's first blocks, and of its others. They and
     * `last` have no layers in models without such stages. */
    modeli_list embed, block, dense, experts, last, head;
    modeli_mixture mixtures[2]; /* the products of the routed experts, and of the shared one */
    modeli_origin *origins;     /* [unit_count] */
    /* For a whole head: a chunk of rows and the last, shorter chunk; and one row. */
    modeli_matrix logits[2], row_logits;
    /* [0] without a window, [1] within spec.window; NULL before model_prepare, or if no block has
     * it */
    kernel_attention *attention[2];
    /* All products, one for each shape. */
    matmul_desc *descs;      /* [matmul_count] */
    kernel_matmul **matmuls; /* [matmul_count] */
    uint32_t matmul_count;
};

/* The products of a layer of experts. */
static inline modeli_mixture *modeli_mixture_of(const modeli_layer *layer)
{
    return &layer->net->products->mixtures[layer->row->is_shared];
}

/* Stages of a block. */
static inline uint32_t modeli_block_stages(const model *self)
{
    return self->products->family->experts != NULL ? 2 : 1;
}

static inline modeli_list *modeli_list_of(const model *self, uint32_t stage)
{
    uint32_t stages = modeli_block_stages(self);
    return stage == 0                                       ? &self->products->embed
           : stage + 1 == self->stage_count                 ? &self->products->head
           : stage > self->spec.num_layers * stages         ? &self->products->last
           : (stage - 1) % stages == 0                      ? &self->products->block
           : (stage - 1) / stages < self->spec.dense_blocks ? &self->products->dense
                                                            : &self->products->experts;
}

/* ---- rows.c ---- */
uint64_t modeli_width_of(const model *self, enum modeli_width width);
/* Lists the layers of embedding, block and head, without offsets and places. */
void modeli_list_layers(model *self);
/* Layers [begin, end) of a list. */
struct modeli_range {
    uint32_t begin, end;
};
typedef struct modeli_range modeli_range;
/* The layers that a pass of a block runs: all, or those of a part. */
modeli_range modeli_layers_of(const modeli_list *list, const modeli_part *part, bool backward);

/* Lists tensors into one unit. */
struct modeli_lister {
    model_unit *unit;
    uint64_t end_elems;
    uint32_t capacity; /* of unit->tensors */
};
typedef struct modeli_lister modeli_lister;

/* The whole unit of a stage. */
struct modeli_whole {
    model_unit unit;
    model_tensor tensors[MODELI_TENSORS_MAX];
    uint32_t layers[MODELI_TENSORS_MAX]; /* index of the layer that each tensor belongs to */
    unsigned long long block;
};
typedef struct modeli_whole modeli_whole;

/* Lists the tensors of a stage that is neither cut nor split, and notes their offsets in `list`.
 * Several calls for blocks note the same offsets. */
void modeli_list_whole(const model *self, modeli_list *list, uint64_t block, modeli_whole *whole);

/* ---- places.c: call it when adapters and parts are known ---- */
void modeli_find_places(model *self);

/* ---- units: units.c ---- */
/* Appends a tensor. The caller fills in its name and its initial weights. */
model_tensor *modeli_append(modeli_lister *list, uint64_t rows, uint64_t columns,
                            bool with_previous);
/* Begins group `idx` of a unit of experts. *group_elems is the length of one: the call for group 1
 * sets it. */
void modeli_begin_group(modeli_lister *list, uint64_t idx, uint64_t *group_elems);
/* Lists all units and their origins. Call after modeli_cut. */
int modeli_list_units(model *self) MUST_CHECK;
uint32_t modeli_stage_unit(const model *self, uint32_t stage); /* the first unit of a stage */

/* ---- what learns: learn.c ---- */
/* The gradients that a stage's backward makes. */
struct modeli_work {
    bool weights; /* of the stage's own matrices: linear layers, output matrix, tables */
    bool norms;   /* of the stage's norms */
    bool input;   /* of the stage's input, for the stage before */
    bool inner;   /* of what the stage's first matrix reads; needed for `input` or `norms` */
};

/* Checks spec.learn and spec.lora of a checked spec. Equal selections get one form. */
int modeli_check_learn(model_spec *spec) MUST_CHECK;
/* True if an adapter's target is a matrix of experts; and if a family's experts have biases. */
bool modeli_names_experts(const model_spec *spec);
bool modeli_has_expert_biases(enum model_family family);
/* Both are for modeli_cut: which lists are split, when the parts are known; and a check of that. */
void modeli_choose_split(model *self);
int modeli_check_split(const model *self) MUST_CHECK;
/* True if the vectors of the list are units of their own, which learn together with its
 * matrices. */
bool modeli_vectors_are_apart(const model *self, const modeli_list *list);
/* True if the layer's tensor goes to the second unit. */
bool modeli_goes_apart(const model *self, const modeli_list *list, const modeli_layer *layer,
                       const model_tensor *tensor);
/* The number of a row's first target; MODEL_LORA_TARGETS_MAX if it has none. It also counts the
 * rows that this model lacks. */
uint32_t modeli_first_target(const modeli_family *family, const modeli_row *row);

/* Both are called after all units are listed. The first corrects the offsets of layers in split
 * units; the second finds the units that learn. */
void modeli_note_split(model *self, modeli_list *list, uint32_t stage);
void modeli_note_learning(model *self);
modeli_work modeli_work_of(const model *self, uint32_t stage);

/* ---- the tensors of adapters: adapters.c ---- */
/* Adds adapters to a second unit: those of linear layers [range.begin, range.end) of a list, or
 * those of a part's experts. */
void modeli_list_adapters(model *self, modeli_list *list, modeli_range range,
                          const modeli_whole *whole, modeli_lister *lister);
void modeli_list_expert_adapters(model *self, const modeli_whole *whole, const modeli_layer *layer,
                                 modeli_part *part, modeli_lister *lister);

/* ---- packed units: pack.c ---- */
/* Finds the packed units and the places of their tensors, when it is known what learns. ERR_CONFIG
 * if the format cannot hold a matrix, or no matrix is packed. */
int modeli_find_packed(model *self) MUST_CHECK;
/* Fills the figures of the pass that are of its packed units. */
void modeli_size_expansion(const model *self, struct pass *pass);
/* Points call->params of the pass's packed units to their places in call->expanded, and fills these
 * if the call expands. */
int modeli_expand(const model *self, const struct pass *pass, void *stream,
                  model_call *call) MUST_CHECK;

/* ---- modules: module.c ---- */
int modeli_run_module(model *self, enum phase phase, uint32_t stage, void *stream,
                      const model_call *call) MUST_CHECK;

/* ---- parts: parts.c ----
 *
 * Decides which kinds of unit are cut, and fills the lists' parts except for offsets. ERR_CONFIG if
 * a row of a matrix does not fit into max_part_bytes. */
int modeli_cut(model *self) MUST_CHECK;

/* A good moment for the caller to compute something else. */
static inline void modeli_pause(const model_call *call)
{
    if (call->pause.run)
        call->pause.run(call->pause.user);
}

/* Number of positions at which a call may have tokens: rows of the rotary tables. */
static inline uint64_t modeli_positions(const model *self)
{
    return self->cache_positions ? self->cache_positions : self->tokens;
}

/* Tokens of each sequence of a call, without padding. */
static inline uint64_t modeli_call_tokens(const model *self, const model_call *call)
{
    return self->cache_positions ? call->count : self->tokens;
}

/* True for a block that spec.window_pattern names. */
static inline bool modeli_is_windowed(const model *self, uint64_t block)
{
    const char *pattern = self->spec.window_pattern; /* not empty after model_create */
    return pattern[block % strlen(pattern)] == 'w';
}

enum { MODELI_HEAD_DIM_MAX = 256, MODELI_CHUNK_ROWS_MIN = 64 };

/* check_spec.c: as model_create says of its spec; and, when it is complete, what the tables of
 * rotary positions are made from. */
int modeli_check_spec(const model_spec *spec, enum dtype type, uint64_t micro_batch) MUST_CHECK;
int modeli_check_rope(const model_spec *spec) MUST_CHECK;
/* Checks the sizes of latent attention, and that other families have none: layer_latent.c. */
int modeli_check_latents(const model_spec *spec) MUST_CHECK;

/* Bytes of the keys, or of the values, that the cache has of one block. */
uint64_t modeli_cache_bytes(const model *self, bool is_values);
/* The scores of one head and sequence in a block: T T / 2, fewer with a window, or T T if attention
 * sees both sides. */
double modeli_scores_of(const model *self, uint64_t block);

/* ---- sizes of whole stages, layouts of the head: shapes.c ---- */
/* `saved` of the head: mean, rstd [N] fp32, normed [N,C]. A head in parts also has the statistics
 * of the softmax, [N] fp32 each, and the gradient of normed, [N,C] fp32, summed over the parts. In
 * parts, model_logits_pass puts its row at the beginning of mean, rstd and normed. */
struct modeli_head_layout {
    uint64_t mean, rstd, normed;
    uint64_t largest, sum, target_logit, normed_grad; /* 0 unless the head is in parts */
    uint64_t saved_total_bytes;
};
typedef struct modeli_head_layout modeli_head_layout;

/* `temp` of the head, for a chunk of logits of `columns` columns:
 *
 *   logits        [chunk,columns] fp32
 *   logits_grad   [chunk,columns]        backward; at the place of logits if the type is fp32
 *   scratch       of the backend's library
 *
 * model_logits_pass of a whole head puts its one row in temp instead: mean, rstd, normed [C],
 * scratch. */
struct modeli_chunk_layout {
    uint64_t logits, logits_grad, forward_scratch, backward_scratch;
    uint64_t row_mean, row_rstd, row_normed;
};
typedef struct modeli_chunk_layout modeli_chunk_layout;

/* Reserves a piece and returns its offset. */
static inline uint64_t modeli_reserve(uint64_t *end_bytes, uint64_t bytes)
{
    uint64_t offset = *end_bytes;
    *end_bytes = size_round_up(offset + bytes, MODELI_ALIGN_BYTES);
    return offset;
}

/* Elements from row to row of a chunk of logits. In every type rows begin on multiples of 16
 * bytes, as products on a GPU require; vocabularies of odd size, such as GPT-2's, need padding
 * for that. */
static inline uint64_t modeli_logits_stride(uint64_t columns)
{
    return size_round_up(columns, 8);
}

void modeli_head_layout_of(const model *self, modeli_head_layout *layout);
void modeli_chunk_layout_of(const model *self, uint64_t columns, modeli_chunk_layout *layout);
/* If nobody wants input_grad, the backward of an uncut stage, a block or the head, puts that
 * gradient [N,C] into temp.
 * This is its offset there, in bytes. */
uint64_t modeli_unwanted_grad(const model *self, const modeli_list *list);

/* Fills dram_bytes and temp_bytes of a pass, from the scratch known so far. */
void modeli_size_pass(const model *self, uint32_t stage, const modeli_part *part, bool backward,
                      const modeli_work *work, struct pass *pass);

/* ---- passes of all stages: passes.c ---- */
int modeli_create_passes(model *self) MUST_CHECK;
/* Fills all passes, from the scratch sizes known so far. */
void modeli_size_stages(model *self);
/* The part that a pass works on; NULL in an uncut stage. *backward says whether the pass makes
 * gradients: all passes of a backward do, except the first half of a cut head's. */
const modeli_part *modeli_pass_part(const model *self, enum phase phase, uint32_t stage,
                                    uint32_t pass, bool *backward);

/* ---- costs.c ---- */
struct modeli_costing {
    const modeli_part *part; /* NULL: whole */
    enum modeli_turn turn;
    uint32_t stage;
    modeli_work work; /* in a backward */
    enum kept kept;   /* in a recomputation */
    model_costs *costs;
};

/* Columns of activations that a layer reads and writes. If its kind has no function for them, all
 * its values; in a backward the gradients of input and output, and what else it reads. */
uint64_t modeli_columns(const modeli_layer *layer, bool backward);
void modeli_cost_product(const model *self, const modeli_matrix *of, enum modeli_product which,
                         uint64_t count, model_costs *costs);
/* Counts one call on all rows that reads and writes `columns` columns together. */
void modeli_cost_columns(const model *self, enum model_row_kind kind, uint64_t columns,
                         model_costs *costs);
/* The same for `rows` rows of `columns` elements of `elem_bytes`. */
void modeli_cost_rows(enum model_row_kind kind, uint64_t rows, uint64_t columns,
                      uint64_t elem_bytes, model_costs *costs);

/* ---- products: products.c ---- */
/* The shape of a matrix without bias, of a layer or of a part of it, and of a chunk of logits: of a
 * whole head (`part` NULL) or of one part. is_last: the last, shorter chunk; it has 0 rows if all
 * chunks are equal. */
modeli_matrix modeli_matrix_of(const model *self, uint64_t rows, uint64_t in, uint64_t out);
modeli_matrix modeli_layer_matrix(const model *self, const modeli_layer *layer,
                                  const modeli_part *part);
modeli_matrix modeli_logits_matrix(const model *self, const modeli_part *part, bool is_last);
matmul_desc modeli_product_desc(const model *self, const modeli_matrix *of,
                                enum modeli_product which);
/* Makes the products of `made` into *target. */
int modeli_make_matrix(model *self, modeli_matrix *target, modeli_matrix made) MUST_CHECK;
/* Makes those of the logits of a whole head, or of one of its parts. */
int modeli_make_logits(model *self, const modeli_part *part, modeli_matrix chunks[2],
                       modeli_matrix *row) MUST_CHECK;
/* Raises bytes[0] and [1] to the scratch of the products that were made. */
void modeli_product_scratch(const model *self, const modeli_matrix *of, uint64_t bytes[2]);
void modeli_release_products(model *self);

/* ---- how gradients begin: fresh.c ----
 *
 * Fills the fresh accumulators of a call of a backward pass with zeros, except the matrices, which
 * the products of the pass write. */
int modeli_begin_grads(model *self, uint32_t stage, uint32_t pass, void *stream,
                       const model_call *call) MUST_CHECK;
uint64_t modeli_zeroed_bytes(const model *self, uint32_t stage, uint32_t unit);

/* ---- adapters: lora.c ---- */
uint64_t modeli_lora_saved_bytes(const model *self); /* of one adapter's inner activations */
/* True if the layer, which is a linear one, has an adapter: learn.c. */
bool modeli_has_adapter(const modeli_layer *layer);
/* Bytes of temp for a pass with its adapters; they follow the library's scratch. `part`: NULL in a
 * whole stage. */
uint64_t modeli_lora_temp_bytes(const model *self, const modeli_list *list, const modeli_part *part,
                                bool backward);
/* DRAM bytes that the adapters of layers [range.begin, range.end) add to a forward; a backward gets
 * three times as many. */
uint64_t modeli_lora_dram_bytes(const model *self, const modeli_list *list, modeli_range range);
/* Makes the products of the adapters of these layers; raises the scratch. */
int modeli_lora_prepare(model *self, modeli_list *list, modeli_range range,
                        uint64_t scratch_bytes[2]) MUST_CHECK;
/* Elements of the list's adapters. */
double modeli_lora_elems(const modeli_list *list);
void modeli_lora_costs(const modeli_layer *layer, const modeli_costing *of, bool wants_input);
/* inner: computes u from the layer's input. outer: adds to the layer's output. */
int modeli_lora_inner(const modeli_run *run, const modeli_layer *layer,
                      const void *source) MUST_CHECK;
int modeli_lora_outer(const modeli_run *run, const modeli_layer *layer, void *target) MUST_CHECK;
/* Two steps: the gradients of the adapters' weights; then the adapters' share, added to the
 * gradient of the layer's input. Between the two calls nothing may use temp beyond the library's
 * scratch. */
int modeli_lora_weight_grads(const modeli_run *run, const modeli_layer *layer,
                             const void *output_grad, const void *source) MUST_CHECK;
int modeli_lora_input_grads(const modeli_run *run, const modeli_layer *layer,
                            void *input_grad) MUST_CHECK;

uint64_t modeli_lora_stride(const model *self); /* elements from row to row of u */
float modeli_lora_scale(const model *self);     /* alpha / rank */

/* ---- adapters of experts: lora_experts.c ----
 *
 * The matrices of a layer of experts are numbered as the row has them: gate and up together, and
 * down; or gate, up and down of a shared expert. */

/* The number of `down`, which is the last. */
uint32_t modeli_expert_down(const modeli_layer *layer);
/* True if this matrix of the layer's experts has adapters: learn.c. */
bool modeli_has_expert_adapter(const modeli_layer *layer, uint32_t matrix);
/* Makes the products of blocks of `rows` rows, whose number is `size`; their scratch. */
int modeli_expert_lora_prepare(model *self, modeli_layer *layer, uint32_t size,
                               uint64_t rows) MUST_CHECK;
void modeli_expert_lora_scratch(const modeli_layer *layer, uint32_t size, uint64_t bytes[2]);

/* Offsets in temp: u of each matrix, du and a term of y or dx, or a copy of columns of dy. */
struct modeli_expert_room {
    uint64_t u[MODELI_ROW_TENSORS_MAX], u_grad, delta;
};
typedef struct modeli_expert_room modeli_expert_room;
modeli_expert_room modeli_expert_lora_room(const modeli_layer *layer, uint64_t rows, uint64_t *end);
/* Elements of adapters that a token is multiplied by. */
double modeli_expert_lora_elems(const modeli_list *list);
void modeli_expert_lora_costs(const modeli_layer *layer, bool backward, uint64_t rows,
                              uint64_t count, model_costs *costs);

/* The adapter of one expert's matrix in a pass; `a` is NULL if there is none. */
struct modeli_expert_lora {
    const modeli_run *run;
    const modeli_layer *layer;
    uint32_t matrix;
    const void *a, *b;
    float *a_grad, *b_grad; /* NULL: not wanted */
    void *u, *u_grad, *delta;
};
typedef struct modeli_expert_lora modeli_expert_lora;
/* The adapter of expert `idx` of the part, or of the own group. Its gradients lie `grads_group`
 * groups further on: the number of the rank whose rows these are, or 0. */
modeli_expert_lora modeli_expert_lora_of(const modeli_run *run, const modeli_layer *layer,
                                         uint32_t matrix, uint64_t idx, uint64_t grads_group,
                                         const modeli_expert_room *at);
/* inner: computes u. outer: adds to the output. input_grad: computes du, and adds to the gradient
 * of the input. grads: those of A and B, from u and du. clear: these are zero. `size` is the index
 * of the block's size, and `at` is its first slot. In a shared expert, slot i is row i. */
int modeli_expert_lora_inner(const modeli_expert_lora *of, uint32_t size, uint64_t at,
                             const void *input) MUST_CHECK;
int modeli_expert_lora_outer(const modeli_expert_lora *of, uint32_t size, void *output) MUST_CHECK;
int modeli_expert_lora_input_grad(const modeli_expert_lora *of, uint32_t size, uint64_t at,
                                  const void *output_grad, void *input_grad) MUST_CHECK;
int modeli_expert_lora_grads(const modeli_expert_lora *of, uint32_t size, uint64_t at,
                             enum modeli_product product, const void *output_grad,
                             const void *input) MUST_CHECK;
int modeli_expert_lora_clear(const modeli_expert_lora *of) MUST_CHECK;

/* The gate of a feed-forward part: layer_gate.c. This checks the limit of the family's gate, and
 * fills it in if it has one. */
int modeli_check_gate(model_spec *spec) MUST_CHECK;
activation_args modeli_activation_args(const model *self, uint64_t rows, uint64_t features,
                                       const void *input);

bool modeli_has_shared(enum model_family family); /* it has a shared expert: rows.c */

/* ---- linear layers: layer_linear.c ----
 *
 * The backward of a product from the gradient [N,matrix_rows] of its whole output, without
 * adapters. */
int modeli_linear_backward(const modeli_run *run, const modeli_layer *layer,
                           void *output_grad) MUST_CHECK;
/* Rounds the sum of a layer's input gradients over its parts, in list.input_sum, and adds what the
 * input's other readers gave. */
int modeli_round_input_grad(const modeli_run *run, const modeli_layer *layer) MUST_CHECK;

/* ---- mixtures: layer_router.c, layer_experts.c ---- */
/* The value of a router, in `saved`: offsets in bytes of what its experts read there. */
struct modeli_routing {
    uint64_t logits;                               /* [N,E] fp32 */
    uint64_t chosen, weights, slots, weights_grad; /* [N,K], as in kernels/ops_experts.h */
    uint64_t offsets, order;                       /* [E + 1], [slot_count] */
    uint64_t bytes;
    uint64_t experts, choices;     /* E, K */
    uint64_t multiple, slot_count; /* as in experts_sort_args */
};
typedef struct modeli_routing modeli_routing;

modeli_routing modeli_routing_of(const modeli_layer *layer);
/* The router whose choices the losses count; NULL: the list has none. */
const modeli_layer *modeli_router_of(const modeli_list *list);
uint32_t modeli_first_router(const model *self);  /* the first stage with one */
uint64_t modeli_slot_multiple(const model *self); /* modeli_routing.multiple */
uint64_t modeli_choices_of(const modeli_layer *layer); /* K of a layer of experts */
/* The probability that a token chooses none of `count` experts, if all choices are equally likely;
 * 0 for the shared expert. */
double modeli_miss(const modeli_layer *layer, uint64_t count);
/* The units, from the first of the stage on, whose hits this router's forward tells; those of
 * adapters in between have no hits of their own. None: begin = end. */
modeli_range modeli_told_units(const modeli_list *list, const modeli_layer *router);
/* Features of an expert, and elements of all its matrices. */
uint64_t modeli_expert_width(const modeli_layer *layer);
uint64_t modeli_expert_elems(const modeli_layer *layer);
/* The experts of a unit where the spec does not say: a divisor of their number, so that all units
 * are alike. */
uint64_t modeli_experts_per_unit(const model_spec *spec);
/* Groups in which the experts of each of the layer's units lie. */
static inline uint64_t modeli_expert_groups(const modeli_layer *layer)
{
    bool is_routed = layer->kind->has_experts && !layer->row->is_shared;
    return is_routed ? size_max(layer->net->spec.expert_ranks, 1) : 1;
}
/* Where a unit has what belongs to expert `idx` of the part, in elements: that of the first expert
 * is at `first` (MODELI_ABSENT: there is none), and each has `elems`. The unit's groups are
 * group_elems apart. */
static inline uint64_t modeli_expert_at(const modeli_layer *layer, const modeli_part *part,
                                        uint64_t group_elems, uint64_t first, uint64_t idx,
                                        uint64_t elems)
{
    uint64_t each = part->rows / modeli_expert_groups(layer);
    return first == MODELI_ABSENT ? first : first + idx / each * group_elems + idx % each * elems;
}

/* True if the layer's experts belong to ranks that exchange rows. */
static inline bool modeli_are_owned(const modeli_layer *layer)
{
    return layer->net->spec.owns_experts && modeli_expert_groups(layer) > 1;
}

/* ---- experts that belong to ranks: owned_experts.c ---- */
/* Checks spec.expert_ranks of a complete spec. */
int modeli_check_expert_ranks(const model_spec *spec) MUST_CHECK;
/* Fills the figures of an owned part's pass that concern the exchange. */
void modeli_size_exchange(const modeli_layer *layer, const modeli_part *part, bool backward,
                          struct pass *pass);
/* One rank's rows for the own experts. Slots count from 0. */
struct modeli_parcel_rows {
    int32_t *offsets;    /* [own experts + 1]: the slots of each, in the order of that rank */
    float *weights;      /* backward: of each slot; 0 where a slot has no choice */
    float *weights_grad; /* backward: the gradients of these */
    char *inputs, *rows; /* [slots,C]: x; and y, or dy and then dx. In a forward they are one */
};
typedef struct modeli_parcel_rows modeli_parcel_rows;
/* Reads the slots of the own experts of all ranks' rows: offsets [ranks][own experts + 1], those of
 * each rank from 0 on. Waits for the device, once for all ranks. */
int modeli_read_parcels(const modeli_run *run, const modeli_layer *layer,
                        int32_t *offsets) MUST_CHECK;
/* Finds the rows that came from a rank. offsets: [own experts + 1], of that rank. */
void modeli_open_parcel(const modeli_run *run, const modeli_layer *layer, uint64_t rank,
                        const int32_t *offsets, modeli_parcel_rows *view);
/* Leaves the results of so many slots for that rank. */
void modeli_close_parcel(const modeli_run *run, const modeli_layer *layer, uint64_t rank,
                         uint64_t slots);
/* The first and the last step of a pass. `rows`: what is common to all calls for this rank's own
 * rows; offsets: [E + 1], on the host and on the device. */
int modeli_send_rows(const modeli_run *run, const modeli_layer *layer,
                     const experts_rows_args *rows, const int32_t *offsets,
                     const int32_t *device_offsets) MUST_CHECK;
int modeli_take_results(const modeli_run *run, const modeli_layer *layer,
                        const experts_rows_args *rows, const int32_t *offsets) MUST_CHECK;

/* ---- dropout.c ----
 *
 * target = dropout(source), of `rows` rows of [N,columns], or of all; they may be the same. Call
 * these only if the call drops. */
int modeli_drop_rows(const model *self, void *stream, const model_call *call, double probability,
                     uint64_t site, uint64_t row_begin, uint64_t rows, uint64_t columns,
                     const void *source, void *target) MUST_CHECK;
int modeli_drop(const model *self, void *stream, const model_call *call, double probability,
                uint64_t site, uint64_t columns, const void *source, void *target) MUST_CHECK;
/* True if rows of the embedding have a dropout. */
bool modeli_drops_rows(const model *self);
/* The site number `idx` of the call's block. */
uint64_t modeli_block_site(const model_call *call, uint64_t idx);

/* ---- embedding and head: embed.c, head.c. `part`: NULL if they are whole ---- */
int modeli_embed(model *self, void *stream, const model_call *call, const modeli_part *part,
                 bool backward) MUST_CHECK;
int modeli_head(model *self, void *stream, const model_call *call, const modeli_part *part,
                bool backward) MUST_CHECK;
int modeli_row_logits(model *self, void *stream, const model_call *call, const modeli_part *part,
                      uint64_t row, float *logits) MUST_CHECK;

/* The layers of the head; and the first one of the embedding. */
enum { MODELI_FINAL_NORM, MODELI_OUTPUT_MATRIX, MODELI_TABLE = 0 };

static inline const modeli_layer *modeli_final_norm_of(const model *self)
{
    return &self->products->head.layers[MODELI_FINAL_NORM];
}

static inline const modeli_layer *modeli_output_of(const model *self)
{
    return &self->products->head.layers[MODELI_OUTPUT_MATRIX];
}

#endif
