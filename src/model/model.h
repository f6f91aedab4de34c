/* Models as lists of units (what is fetched together) and stages (what is computed in order). A
 * model is made of a spec (spec.h).
 *
 * UNITS. A unit is a flat vector of parameters: its tensors one after the other, each beginning on
 * a multiple of MODEL_TENSOR_ALIGN_ELEMS. The vector is padded with zeros to a multiple of 4096
 * elements (SHARD_ELEMS_STEP). Some tensors follow the one before without padding, because the
 * group is one matrix (or one vector) for one product: Llama's q, k, v; their biases, if there are
 * any; gate and up.
 *
 * STAGES. A stage is one step of the forward and names the one or two units whose parameters it
 * needs:
 *
 *   stage 0      embed     unit 0            tokens -> x0
 *   stage 1..L   block i   unit i            x(i-1) -> x(i)
 *   stage L+1    head      unit L+1          x(L) -> losses
 *
 * The bert family has one more stage before the head, the dense part of its head. It counts as a
 * block in all that follows, except that it is selected as `head` and has no adapters.
 *
 * A block of a mixture of experts is two stages: attention with its sum, and the experts:
 *
 *   stage 2i+1    block i, attention    unit block.i
 *   stage 2i+2    block i, experts      units block.i.router.0, block.i.experts.0, ..
 *
 * The second is always cut (see PARTS), except in the first spec.dense_blocks blocks, where it is a
 * plain feed-forward part, unit block.i.ffn. The parts of the experts have whole experts,
 * spec.experts_per_unit each, so that experts are fetched, placed and updated apart. The part of
 * the router finds the experts of each token. How experts are cut into units changes no bit of
 * activations and gradients.
 *
 * The head's unit holds the final norm and, if the embedding is not tied, the output matrix. If it
 * is tied, unit 0 is the head's second unit. The boundary activation between two stages is [B,T,C]
 * in the working dtype. A stage's backward recomputes its inner activations from its boundary input
 * into `saved`, as far as they were not kept. The head's backward does forward, loss and backward
 * in one, by chunks of rows, so logits for all tokens never exist at once.
 *
 * PARTS. A unit whose working params would be larger than spec.max_part_bytes is cut
 * (memory-centric tiling):
 * - Every linear layer is cut into blocks of its output columns, which are rows of the stored
 *   matrix.
 * - The embedding and an untied output matrix are cut into blocks of vocabulary rows.
 * - Each part is a unit of its own. The norm before a layer lies in the layer's first part; the
 *   final norm is a unit.
 * - The units are numbered in the order of the forward: embed.0 embed.1 .. embed.positions.0, then
 *   for each block block.0.qkv.0 .. proj.0 .. up.0 .. down.0 .., then head.norm, head.0 .. A tied
 *   head uses the embedding's parts as its matrix.
 * - A stage over a cut unit runs as several passes, each with the params of one part. `saved` holds
 *   what one pass leaves for the next ones.
 *
 *   block, forward   norm1+qkv.0 qkv.1 .. | proj.0 .. | norm2+up.0 .. | down.0 ..
 *          backward  [recompute what it reads]  .. down.1 down.0 | .. up.0 | .. | .. qkv.0
 *   embed            table.0 table.1 .. | positions; the same order in the backward
 *   head, forward    norm | logits.0 logits.1 .. (softmax over all parts)
 *         backward   the same, then gradients  .. logits.1 logits.0 | norm
 *
 * rows.c says which layers run in which part. The parts depend only on the spec, the dtype and
 * max_part_bytes. Initial weights do not depend on the cut. Losses and gradients do, by fp32
 * rounding, because they are summed over a layer's parts. A stage whose units are small enough has
 * one pass.
 *
 * LEARNING. spec.learn selects the units that learn. The others are frozen (model_unit.is_frozen):
 * no pass adds to their gradients. If only some tensors of a unit learn, or in different ways, the
 * unit is split in two, the same way in every block, and the stage's passes name the second unit as
 * units[1]:
 *
 *   block.i, block.i.norms   the matrices; the norms, if they are selected without the matrices
 *   head, head.norm          the same for an untied head (the unit of a tied head is only its norm)
 *   block.i, block.i.vectors the matrices; the norms and biases, if spec.splits_vectors
 *   block.i, block.i.lora    the base; its adapters (spec.lora), and its norms if selected alone
 *   block.i.ffn, block.i.ffn.lora                the same of a mixture's block without experts
 *   block.i.experts.0, block.i.experts.0.lora    some experts; their adapters
 *   block.i.shared_up.0, block.i.shared_up.0.lora    a layer of a shared expert; its adapters
 *
 * The second unit has the next number after the first. Tensors of the base keep their initial
 * weights. A tied embedding is one unit: it learns at both ends or at none. Stages before the first
 * one with a unit that learns have no backward and no recompute pass. The backward of that first
 * stage gets no input_grad and makes none; if it is a cut block, its passes still leave that
 * gradient for each other.
 *
 * PACKED UNITS. A frozen unit with a matrix whose format (model_tensor.stored) is not the working
 * one is packed. The vector that is kept and moved has rest_elems elements of the working dtype,
 * but its bits mean other things. It holds the unit's tensors, each at a multiple of
 * MODEL_REST_ALIGN_BYTES: values of the working dtype, or codes and then scales (base/stored.h),
 * which begin at such a multiple too. The first call of a pass expands its packed units, and the
 * calls for other micro-batches find them (model_call.expanded). model/pack.h packs. The parts of a
 * cut matrix are packed apart, and so are the matrices of each expert. With groups of experts, see
 * below, each group begins at a shard of the packed vector, too. A unit of constants
 * (model_tensor.is_exact) is packed too; passes read its fp32 values as they are kept.
 *
 * EXPERTS OF RANKS. With spec.expert_ranks G, the tensors of a unit of routed experts are listed
 * group by group, of rows / G experts each, and every group begins at a multiple of a shard:
 *
 *   unit    [up of group 0, down of group 0, zeros)[up of group 1, down of group 1, zeros) ...
 *   shards  [rank 0                               )[rank 1                               ) ...
 *
 * Adapters of experts, which are a unit of their own, lie in the same groups. Where G ranks run
 * (spec.owns_experts), each has the params of its own group alone. A pass of such experts is called
 * in three steps (model_call.step), with an all-to-all between them: rows that chose experts of
 * other ranks go there, and results come back. An expert takes the rows of one rank after the
 * other, in the blocks in which that rank itself would take them, and results are added where the
 * rows came from. So every product and every sum is that of a model without expert parallelism, bit
 * by bit. Gradients are kept apart by the rank that the rows came from:
 *
 *   grads   [group, of rows of rank 0)[group, of rows of rank 1) ...     as long as the unit
 *
 * How many rows go where depends on the router. Their places in the buffers are known on the host
 * (model_parcels), as are the numbers of rows of each expert.
 *
 * MODULES. A model can also be described by data (base/module.h). model_create_module makes its
 * units and stages, and model_run hands each pass to the program that computes it.
 *
 * CALLS. model_create needs no device: shapes, bytes and flops are known before anything is
 * allocated. model_prepare makes the products for one backend. A model belongs to one thread. */
#ifndef SLUICE_MODEL_MODEL_H
#define SLUICE_MODEL_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/error.h"
#include "base/module.h"
#include "base/shard.h"
#include "base/size.h"
#include "base/stage.h"
#include "kernels/ops.h"
#include "model/spec.h"

enum {
    MODEL_NAME_BYTES = 96,
    MODEL_TENSOR_ALIGN_ELEMS = 128,
    MODEL_REST_ALIGN_BYTES = 256,
    MODEL_EXPERTS_UNIT_ELEMS = 16 << 20, /* a useful size of a transfer: 32 MiB in bf16 */
};

enum tensor_init {
    TENSOR_INIT_NORMAL,
    TENSOR_INIT_NORMAL_RESIDUAL,
    /* uniform in +-1 / sqrt(columns): A of an adapter, as in PEFT (Kaiming, a = sqrt 5) */
    TENSOR_INIT_UNIFORM,
    TENSOR_INIT_ZERO,
    TENSOR_INIT_ONE
};

struct model_tensor {
    /* Hugging Face's name, for example "h.0.attn.c_attn.weight" */
    char name[MODEL_NAME_BYTES];
    /* [rows, columns]; a vector has rows 1. Linear weights are [out, in]. Hugging Face stores those
     * of GPT-2's blocks (Conv1D) transposed. */
    uint64_t rows, columns;
    uint64_t offset_elems; /* within the unit's flat vector */
    /* A part holds rows [row_begin, row_begin + rows) of a matrix of whole_rows. Uncut: 0 and rows.
     * A slice of a vector (bias) counts its elements as rows of one column. */
    uint64_t row_begin, whole_rows;
    enum tensor_init init;
    bool is_adapter;           /* A or B of an adapter, "h.0.attn.c_attn.lora_A.weight" */
    bool is_exact;             /* kept and read in fp32, whatever the working dtype is */
    enum stored_format stored; /* how it is kept at rest */
    /* So many rows are a matrix of their own in that format: `rows`, or those of one matrix of an
     * expert. */
    uint64_t stored_rows;
    uint64_t rest_bytes; /* its place in a packed unit */
};
typedef struct model_tensor model_tensor;

struct model_unit {
    char name[MODEL_NAME_BYTES]; /* "embed", "block.0", "head" */
    model_tensor *tensors;
    uint32_t tensor_count;
    uint64_t param_count; /* true parameters, without padding */
    uint64_t elems;       /* length of the padded flat vector, a multiple of 4096 */
    /* The same of the vector that is kept and moved; a packed unit's is shorter than `elems`. */
    uint64_t rest_elems;
    bool is_packed;
    uint32_t rank_groups; /* above 1: it lies in so many groups of experts (EXPERTS OF RANKS) */
    bool is_frozen;       /* its params never change: no gradient, no optimizer state */
    uint32_t group;       /* of a module: whose numbers its optimizer takes; else 0 */
};
typedef struct model_unit model_unit;

/* Other work of the thread that runs a pass, which it may do in the middle of one. */
struct model_pause {
    void (*run)(void *user); /* does what waits, and returns; NULL: there is no such work */
    /* Whether something waits; not called where there is no such work. From any thread, also within
     * a lock: it takes none that is held across a callback. */
    bool (*is_wanted)(void *user);
    void *user;
};
typedef struct model_pause model_pause;

/* A pass of a module that the program computes: one stage, one micro-batch. All buffers are device
 * memory, and are valid until the runner returns. */
struct model_use {
    uint32_t stage, micro_batch;
    bool is_backward, trains; /* trains: false in an evaluation */
    float grad_scale;         /* of the loss whose gradients are added */
    uint32_t unit_count, units[2];
    const void *params[2]; /* [elems] each, in the working dtype; NULL: not read */
    float *grads[2];       /* [elems] fp32; NULL: not wanted */
    bool fresh[2];         /* grads[i] holds nothing yet: all tensors are to be written */
    uint64_t elems[2];     /* of the padded flat vectors */
    /* [tensors of units[0]] The pass lends these gradients: it writes the address of each, which is
     * contiguous and in the working dtype. An address that stays NULL stands for zeros. NULL: the
     * pass lends none. */
    const void **lent;
    model_pause pause; /* only the thread of the op calls `run` */
    double loss;       /* the program fills it in the last stage */
};
typedef struct model_use model_use;
/* Computes the pass. Returns 0; a code below 0; or 1 with an error text: the program has given up
 * the step, and every further pass of it returns 1 as well. Called on the thread of the op. */
typedef int model_runner(void *user, model_use *use);

typedef struct model_products model_products; /* internal: offsets, and what model_prepare makes */

struct model {
    model_spec spec; /* of a module: zeros */
    /* The description of a module, borrowed until model_destroy; NULL: a model of a family. A
     * module has no products and no constants, its passes no activations and no flops. */
    const module_spec *module;
    model_runner *runner; /* of a module; NULL: its passes cannot run */
    void *runner_user;
    enum dtype type;              /* of params in compute and of activations: fp32, bf16, fp16 */
    uint64_t micro_batch, tokens; /* B, T; T is spec.seq_length unless model_window sets it */
    uint64_t cache_positions;     /* from model_window */
    /* cache of all blocks; 0: attention looks only at the T tokens of the call */
    uint64_t cache_bytes;
    uint32_t unit_count, stage_count;
    model_unit *units;
    struct stage *stages; /* final after model_prepare */
    /* of all stages, one stage after the other, phase by phase; final after model_prepare, except
     * that setup adds their seconds and changes flops and dram_bytes of a watched run */
    struct pass *passes;
    uint64_t pass_count;
    uint64_t param_count;     /* true parameters of the whole model; a tied embedding counts once */
    uint32_t first_learning;  /* the first stage with a unit that learns */
    uint64_t boundary_bytes;  /* B*T*C in `type` */
    uint64_t constants_bytes; /* rope tables; 0 for gpt2 */
    uint64_t chunk_rows;      /* rows of logits that exist at a time; depends only on the model */
    const kernel_ops *ops;    /* set by model_prepare */
    kernel_context *context;
    model_products *products;
};
typedef struct model model;

/* Checks the spec and lists units, stages, shapes, bytes and flops. `type` is fp32, bf16 or fp16.
 * An impossible spec (heads that do not divide, ...) is ERR_CONFIG; the text has key, value and
 * rule. */
int model_create(const model_spec *spec, enum dtype type, uint64_t micro_batch,
                 model **out) MUST_CHECK;
void model_destroy(model *self);

/* The units, stages and passes of a module, which is borrowed until model_destroy. Nothing of it is
 * cut or packed. Each pass has the seconds of the description. */
int model_create_module(const module_spec *spec, enum dtype type, model **out) MUST_CHECK;
void model_set_runner(model *self, model_runner *run, void *user);

/* The calls of a model that does not train. */
struct model_window {
    uint64_t tokens; /* T of a call, at most spec.seq_length; 0: spec.seq_length */
    /* For calls that continue each other: the number of positions whose keys and values are kept,
     * at most spec.seq_length; micro_batch must be 1. 0: each call stands alone. */
    uint64_t cache_positions;
};
typedef struct model_window model_window;

/* The same units as model_create's, for calls of another length. For evaluation and generation:
 * only the forward may run. */
int model_create_window(const model_spec *spec, enum dtype type, uint64_t micro_batch,
                        const model_window *window, model **out) MUST_CHECK;

/* Prepares all products and attentions on this backend, which is borrowed until model_destroy. Sets
 * the final scratch bytes of every stage, which may depend on the backend's library. Call it before
 * planning. */
int model_prepare(model *self, const kernel_ops *ops, kernel_context *context) MUST_CHECK;

/* Fills the constants buffer [constants_bytes], device memory. */
int model_fill_constants(model *self, void *stream, void *constants) MUST_CHECK;

/* Writes the initial master weights of elements [begin, begin + count) of a unit to master[count],
 * host memory. Padding is zero. The values depend only on (seed, unit, element). Uses all threads
 * of the caller's OpenMP team. */
void model_init_elems(const model *self, uint32_t unit, uint64_t seed, uint64_t begin,
                      uint64_t count, float *master);

/* Tables of parcels, [ranks] each, in host memory: places of rows in the buffers `sent` and
 * `received` of a call. They stay from the first step of a pass to the last. */
struct model_parcels {
    rank_parcel *sent;     /* rows for each rank's experts, in `sent` */
    rank_parcel *received; /* rows of each rank, in `received`; then the results for it */
    rank_parcel *results;  /* where each rank's results come to lie, in `sent` */
    int32_t *offsets;      /* [MODEL_OFFSETS_MAX]: a layer's first pass leaves them; may be NULL */
};
typedef struct model_parcels model_parcels;
enum { MODEL_OFFSETS_MAX = ROUTER_EXPERTS_MAX + 1 };

/* The memory of one call: one pass of a stage, one micro-batch. A buffer that the pass does not use
 * (struct pass) may be NULL. All buffers are device memory and no two overlap. output and
 * input_grad serve as scratch before their value is written. */
struct model_call {
    /* whole flat vectors of the pass's units, in `type`; those of packed units as they are kept */
    const void *params[2];
    float *grads[2]; /* backward: their fp32 accumulators; NULL: frozen, or not wanted */
    /* True if grads[i] holds nothing yet. The pass then writes all of the unit, also what it would
     * not touch, and reads nothing: products write the matrices, the rest is filled with zeros. */
    bool fresh[2];
    const void **lent; /* of a module: model_use.lent, in place of grads[0]; or NULL */
    /* Forward of a pass that tells hits: a byte per unit that it tells of (pass.told_begin,
     * told_count). It becomes 1 where a token chose an expert of the unit. NULL: not wanted. In
     * passes of units that are not hit, params may be NULL. */
    uint8_t *hits;
    /* For a pass whose experts belong to ranks: the step; the rows for each rank in the first and
     * the last step; those of each rank in the second one:
     *   STEP_SEND      fills `sent`, parcels.sent and parcels.results
     *   STEP_EXPERTS   takes the rows at parcels.received, which are equally far apart;
     *                  leaves the results in `received`, and their places in parcels.received
     *   STEP_COMBINE   finds the results in `sent`, at parcels.results */
    enum op_step step;
    void *sent, *received;
    model_parcels parcels;
    const int32_t *tokens;  /* [B,T]: only embed and head use it (may always be set) */
    const int32_t *targets; /* [B,T]; -1 ignored: head */
    /* [B,T]: the position in its window at which each token's document begins; NULL: a window is
     * one document. Attention does not look before it, and positions count from it. */
    const int32_t *begins;
    const void *input;       /* [B,T,C]; NULL for embed */
    void *output;            /* forward of embed and blocks */
    const void *output_grad; /* backward of embed and blocks */
    /* backward of blocks and head; NULL: not wanted (see pass.input_grad) */
    void *input_grad;
    float *losses;    /* [B*T] fp32 nats per token: head */
    float grad_scale; /* head backward: loss scale / tokens of the whole step */
    /* [model_totals_bytes], of a model whose routers have losses: sums over all blocks and tokens
     * of the micro-batch (router_sums_args.totals). The forward of each block with a router adds to
     * them, and the first one begins them; the backward reads them. router_scale: loss scale /
     * micro-batches of the whole step. */
    double *totals;
    float router_scale;
    void *saved; /* [saved_bytes]; undefined after the backward */
    /* Block: [saved_bytes - selective_bytes], the rest of `saved`, which then is [selective_bytes];
     * NULL: it lies behind that. Undefined between forward and backward. */
    void *saved_rest;
    void *temp; /* [pass.temp_bytes] */
    /* [pass.expanded_bytes]: the pass's packed units in the working dtype. With `expands` the call
     * fills it, before it computes; else it has the contents that a call of the same pass with the
     * same params left there. */
    void *expanded;
    bool expands;
    const void *constants;
    /* For a model with cache_positions: the call has the `count` tokens at positions `position` and
     * after. Rows after these are padding; their outputs have no meaning. */
    /* [L][2][G][cache_positions][D] in `type`: keys, values. The call reads those of positions
     * before its own and writes those of its own. */
    void *cache;
    uint64_t position, count;
    uint64_t layer; /* block: its index, from 0 on; in every call */
    /* The masks of dropouts follow from their place in the model, from the run's seed, and from [2]
     * in device memory: the step, and the number in the global batch of the call's first sequence.
     * NULL: nothing is dropped. All calls of a micro-batch have the same, and a backward of a model
     * with dropout (model_has_dropout) needs it. */
    const uint32_t *dropout_counter;
    uint64_t dropout_seed;
    uint32_t micro_batch; /* of the step, for modules alone, as is the next one */
    bool trains;          /* false: an evaluation */
    /* Run between two layers, and between two chunks of the head's rows: the caller of model_run
     * may then compute something else with the same kernel_context. So a layer keeps nothing for
     * the next one outside the buffers of the call. The runner of a module gets it, too. */
    model_pause pause;
};
typedef struct model_call model_call;

/* One pass of one phase. The forward of embed and blocks writes output, that of the head only
 * losses (evaluation). In the backward, blocks first recompute what is missing of `saved`; the head
 * does forward, losses and backward; gradients are added to grads, or begin them
 * (model_call.fresh). For a cut stage `saved` holds what its passes leave for each other. `kept`
 * says, for the backward of an uncut block, how much of `saved` the caller kept from the forward.
 * For a cut stage it has no effect: its `saved` is always filled. Returns 1 if a module's runner
 * returns 1. */
int model_run(model *self, enum phase phase, uint32_t stage, uint32_t pass, void *stream,
              const model_call *call, enum kept kept) MUST_CHECK;

/* fp32 logits [V] of one position (row b*T + t) from the last boundary activation, for generation.
 * Runs pass `pass` of the head's forward, with its temp: call it for all passes in order with the
 * same `saved`. Each pass of a cut head fills its own part of the logits. They are not capped yet:
 * model_cap_logits does that, in memory of the host, when all passes have run. */
int model_logits_pass(model *self, uint32_t pass, void *stream, const model_call *call,
                      uint64_t row, float *logits) MUST_CHECK;
void model_cap_logits(const model *self, float *logits);

/* True for a matrix, whole or in parts; false for vectors, and for norms of several heads. */
static inline bool model_is_matrix(const model_tensor *tensor)
{
    return tensor->is_adapter ||
           (tensor->whole_rows > 1 && tensor->columns > 1 && tensor->init != TENSOR_INIT_ONE);
}

/* The block of a stage, from 0 on; num_layers for BERT's dense part of the head. Not for the first
 * and the last stage. */
uint64_t model_block_of(const model *self, uint32_t stage);

/* True if calls of the stage know their work only when the device has done the one before: a stage
 * of experts, whose rows depend on what the router chose. */
bool model_waits_for_device(const model *self, uint32_t stage);

/* True if a matrix of the model is kept in another format than the working dtype. */
bool model_has_packed(const model *self);

/* Bytes of the totals of a micro-batch; 0: the model has no losses of its routers. */
uint64_t model_totals_bytes(const model *self);
/* Computes the two losses of a micro-batch, without their coefficients, from its totals. */
void model_router_losses(const model *self, const double *totals, double *balance, double *z);

/* True if the unit's experts belong to ranks. */
bool model_is_owned(const model *self, uint32_t unit);

/* True if the unit has matrices of a block and nothing else. */
bool model_has_only_matrices(const model *self, uint32_t unit);

/* A or B of the adapter that a tensor of the unit has, with the rows of the same experts. It is in
 * the next unit. NULL: the tensor has no adapter. */
const model_tensor *model_adapter_of(const model *self, uint32_t unit, const model_tensor *weight,
                                     bool is_b);
/* Moves from tensor *idx of *unit, a part of a whole tensor, to the part with the rows after it.
 * False if that was the last part. */
bool model_next_part(const model *self, uint32_t *unit, uint32_t *idx);

/* Model FLOPs of a training step over `tokens` tokens, as the field counts them: 6 * (parameters of
 * matrices) * tokens, plus 12 * L * H * D * T * tokens / 2 for causal attention; in a block with a
 * window w, w (2 - w / T) stands for T. Attention to both sides counts twice as much. Recomputation
 * is not counted.
 *
 * The 6 are 2 for the forward, 2 for the gradient of the input and 2 for the gradient of the
 * matrix. So a matrix that does not learn costs 4. In a stage before the first one that learns it
 * costs 2, and attention a third. Adapters cost 6 for each of their parameters. */
double model_step_flops(const model *self, uint64_t tokens);

#endif
