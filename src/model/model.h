/* Model families as lists of units (what is fetched together) and stages (what is computed in
 * order).
 *
 * A unit is a flat vector of parameters: its tensors one after the other, each beginning on a
 * multiple of MODEL_TENSOR_ALIGN_ELEMS, the whole padded with zeros to a multiple of 4096
 * (SHARD_ELEMS_STEP). Llama's k and v lie right behind q, their biases (where there are any)
 * likewise, and up right behind gate, without padding, whatever their sizes: each such group is one
 * matrix, or vector, for one product. A stage is one step of the forward order and names the unit
 * (or two) whose parameters it needs:
 *
 *   stage 0      embed     unit 0            tokens -> x0
 *   stage 1..L   block i   unit i            x(i-1) -> x(i)
 *   stage L+1    head      unit L+1 (final norm, and the output matrix where untied), and unit 0 as
 *                          the second unit where the embedding is tied;   x(L) -> losses
 *
 * Between stages runs the boundary activation [B,T,C] in the working dtype. A stage's backward
 * recomputes its inner activations from its boundary input into `saved`. The head's backward does
 * forward, loss and backward in one, by chunks of rows, so that logits for all tokens never exist.
 *
 * Parts. A unit whose working params would be larger than spec.max_part_bytes is cut
 * (memory-centric tiling): every linear layer into blocks of its output columns, which are rows of
 * the stored matrix, the embedding and an untied output matrix into blocks of vocabulary rows. Each
 * part is a unit of its own; the norm before a layer lies in the layer's first part, the final norm
 * is a unit. Numbers and names of units in the order of the forward: embed.0 embed.1 ..
 * embed.positions.0, then for each block block.0.qkv.0 .. proj.0 .. up.0 .. down.0 .., then
 * head.norm, head.0 .. (a tied head's matrix is the embedding's parts). A stage over a cut unit
 * runs as several passes, each with the params of one part, and what one pass leaves for the next
 * ones lies in `saved`:
 *
 *   block, forward   norm1+qkv.0 qkv.1 .. | proj.0 .. | norm2+up.0 .. | down.0 ..
 *          backward  [recompute as forward without down]  .. down.1 down.0 | .. up.0 | .. | .. qkv.0
 *   (where heads have norms, these lie in the last part of qkv, whose backward begins with them)
 *   embed            table.0 table.1 .. | positions; the same order in the backward
 *   head, forward    norm | logits.0 logits.1 .. (softmax over all parts)
 *         backward   the same, then gradients  .. logits.1 logits.0 | norm
 *
 * Which parts there are is a function of the spec, the dtype and max_part_bytes alone. Initial
 * weights do not depend on the cut. Losses and gradients do, by fp32 rounding: sums over a layer's
 * parts. Stages whose units are small enough have one pass, as ever.
 *
 * What learns. spec.learn selects the units that learn; the others are frozen
 * (model_unit.is_frozen): no pass adds to their gradients. Where the tensors of one unit differ in
 * that, the unit is split in two, the same way in every block, and the stage's passes name the
 * second as units[1]:
 *
 *   block.i, block.i.norms   the matrices; the norms, where they are selected apart
 *   head, head.norm          likewise of an untied head (a tied one's own unit is its norm already)
 *   block.i, block.i.lora    the base; its adapters (spec.lora), and its norms where selected apart
 *
 * The second unit's number follows the first's. Tensors of the base keep their initial weights. A
 * tied embedding is one unit: it learns at both ends or at none. Stages before the first one with a
 * unit that learns have no backward and no recompute pass; the backward of that first one is given
 * no input_grad and makes none (of a cut block it is still what its passes leave for each other).
 *
 * model_create needs no device: shapes, bytes and flops are known before anything is allocated.
 * model_prepare makes the products for one backend. One thread. */
#ifndef SLUICE_MODEL_MODEL_H
#define SLUICE_MODEL_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/error.h"
#include "base/words.h"
#include "kernels/ops.h"

enum { MODEL_NAME_BYTES = 96, MODEL_TENSOR_ALIGN_ELEMS = 128 };

enum model_family { MODEL_GPT2, MODEL_LLAMA, MODEL_FAMILY_COUNT };

enum { MODEL_RANGES_MAX = 64, MODEL_LORA_TARGETS_MAX = 7 };

/* Blocks first .. last, both included. */
struct model_range {
    uint64_t first, last;
};
typedef struct model_range model_range;

/* Which tensors of the base learn: the union of all that is said. All zeros: everything learns, or
 * with adapters nothing of the base. */
struct model_learn {
    bool is_given;           /* else everything as above */
    bool embed, head, norms; /* norms: of all blocks, and the final one */
    uint32_t range_count;
    model_range blocks[MODEL_RANGES_MAX];
};
typedef struct model_learn model_learn;

/* Low-rank adapters (Hu et al. 2021) of linear layers, in every block: y = W x + b + (alpha / rank)
 * B (A x), A [rank, in], B [out, rank]. rank 0: none. */
struct model_lora {
    uint64_t rank;
    double alpha;
    uint32_t targets; /* bit i: model_lora_target(family, i) */
};
typedef struct model_lora model_lora;

/* What the `model` block of a job says; field names are its keys. */
struct model_spec {
    enum model_family family;
    uint64_t num_layers, hidden_size, num_heads, num_kv_heads, ffn_size, vocab_size, seq_length;
    /* num_kv_heads 0 means num_heads; ffn_size 0 of gpt2 means 4 * hidden_size */
    uint64_t head_dim; /* D; 0: hidden_size / num_heads. llama: H * D may differ from hidden_size */
    bool qkv_bias;     /* llama: q, k and v have biases (Qwen2); gpt2 always has them */
    bool qk_norm; /* llama: RMSNorm over each head's D of q and of k, before the rotation (Qwen3) */
    uint64_t position_count; /* gpt2: rows of the table of positions; 0: seq_length */
    enum rope_scaling rope_scaling;
    double rope_factor, rope_low_freq_factor, rope_high_freq_factor;
    uint64_t rope_original_positions;
    bool tie_embeddings;
    double rope_theta;       /* llama; 10000 */
    double norm_epsilon;     /* 1e-5 */
    double init_std;         /* of normal initial weights; 0.02. Residual projections: / sqrt(2L) */
    uint64_t max_part_bytes; /* most bytes of a unit's working params; 0: units are never cut */
    model_learn learn;       /* the job's `train` block */
    model_lora lora;
};
typedef struct model_spec model_spec;

enum tensor_init {
    TENSOR_INIT_NORMAL,
    TENSOR_INIT_NORMAL_RESIDUAL,
    /* in +-1 / sqrt(columns): A of an adapter, as PEFT has it (Kaiming, a = sqrt 5) */
    TENSOR_INIT_UNIFORM,
    TENSOR_INIT_ZERO,
    TENSOR_INIT_ONE
};

struct model_tensor {
    /* as Hugging Face names it, for example "h.0.attn.c_attn.weight" */
    char name[MODEL_NAME_BYTES];
    /* [rows, columns]; a vector has rows 1. Linear weights are [out, in]; Hugging Face stores those
     * of GPT-2's blocks (Conv1D) transposed */
    uint64_t rows, columns;
    uint64_t offset_elems; /* within the unit's flat vector */
    uint64_t row_begin,
        /* a part holds rows [row_begin, row_begin + rows) of a matrix of whole_rows; uncut: 0 and
         * rows. A slice of a vector (bias) counts its elements as rows, of one column */
        whole_rows;
    enum tensor_init init;
    bool is_adapter; /* A or B of an adapter, "h.0.attn.c_attn.lora_A.weight" */
};
typedef struct model_tensor model_tensor;

struct model_unit {
    char name[MODEL_NAME_BYTES]; /* "embed", "block.0", "head" */
    model_tensor *tensors;
    uint32_t tensor_count;
    uint64_t param_count; /* true parameters, without padding */
    uint64_t elems;       /* of the padded flat vector, a multiple of 4096 */
    bool is_frozen;       /* its params stay as they are: no gradient, no optimizer state */
};
typedef struct model_unit model_unit;

enum stage_kind { STAGE_EMBED, STAGE_BLOCK, STAGE_HEAD };

/* One pass of a stage. What one pass wrote to a buffer must stay until the last pass of the phase
 * that uses it, also through passes that do not (ACCESS_NONE); a part of a buffer that no pass
 * wrote yet is not read. The pass is what runs for each micro-batch while the params of its units
 * are there. All of a phase's passes run in order, for every micro-batch; a backward may follow its
 * own recompute or, where `saved` was kept, its forward directly. */
struct model_pass {
    uint32_t units[2];
    uint32_t unit_count;
    bool reads_params[2];     /* whether params[i] are needed */
    bool adds_grads[2];       /* whether grads[i] are added to; never of a frozen unit */
    uint64_t zeroed_bytes[2]; /* of those: what a first call fills with zeros (model_call.fresh) */
    uint8_t input, output, output_grad, input_grad, losses; /* enum operand_access */
    /* the same; NONE in an uncut stage, where the caller decides whether to keep it: the memory is
     * needed all the same */
    uint8_t saved;
    double flops; /* of an uncut backward with recompute_flops, which kept activations save */
    uint64_t dram_bytes, temp_bytes; /* temp: scratch of this pass alone */
};
typedef struct model_pass model_pass;

/* All bytes and flops are for one micro-batch of B x T tokens. */
struct model_stage {
    enum stage_kind kind;
    uint32_t units[2];   /* the own unit first; unit_count 1 or 2. Cut: its first unit alone, the */
    uint32_t unit_count; /* passes name them all */
    bool is_cut;         /* more than one pass in a phase: `saved` goes from pass to pass */
    model_pass *passes[PHASE_COUNT];  /* owned by the model; final after model_prepare */
    uint32_t pass_count[PHASE_COUNT]; /* uncut: 1, 0, 1; 1, 0, 0 before first_learning */
    uint64_t saved_bytes;             /* inner activations that the backward needs */
    uint64_t forward_temp_bytes;      /* further scratch of the forward */
    uint64_t backward_temp_bytes;     /* further scratch of recompute and backward */
    double forward_flops;             /* matrix products and attention */
    double backward_flops;            /* without recomputation (the head: backward alone) */
    double recompute_flops;           /* what the backward op computes again (0 for embed) */
    /* estimates, for the simulator (shapes.c says how); the backward */
    uint64_t forward_dram_bytes;
    uint64_t backward_dram_bytes; /* includes the recomputation */
};
typedef struct model_stage model_stage;

typedef struct model_products model_products; /* internal: offsets, and what model_prepare makes */

struct model {
    model_spec spec;
    enum dtype type;              /* of params in compute and of activations: fp32, bf16, fp16 */
    uint64_t micro_batch, tokens; /* B, T: spec.seq_length but in a model of a window */
    uint64_t cache_positions;     /* model_window's */
    uint64_t cache_bytes;         /* of them in all blocks; 0: attention is within the T tokens */
    uint32_t unit_count, stage_count;
    model_unit *units;
    model_stage *stages;
    uint64_t param_count;     /* true parameters of the whole model; a tied embedding counts once */
    uint64_t learning_count;  /* those of them that learn */
    uint32_t first_learning;  /* the first stage with a unit that learns */
    uint64_t boundary_bytes;  /* B*T*C in `type` */
    uint64_t constants_bytes; /* rope tables; 0 for gpt2 */
    uint64_t chunk_rows;   /* rows of logits that exist at a time: a function of the model alone */
    const kernel_ops *ops; /* after model_prepare */
    kernel_context *context;
    model_products *products;
};
typedef struct model model;

/* Checks the spec and lists units, stages, shapes, bytes and flops. `type` fp32, bf16 or fp16.
 * ERR_CONFIG with key, value and rule for an impossible spec (heads that do not divide, ...). */
int model_create(const model_spec *spec, enum dtype type, uint64_t micro_batch,
                 model **out) MUST_CHECK;
void model_destroy(model *self);

/* How a model is called that does not train. */
struct model_window {
    uint64_t tokens; /* T of a call, at most spec.seq_length; 0: that */
    /* where calls go on from each other: positions that keys and values are kept of, at most
     * spec.seq_length. micro_batch is 1 then. 0: they do not */
    uint64_t cache_positions;
};
typedef struct model_window model_window;

/* The same units as model_create's, for calls of another length: for evaluation and generation,
 * forward alone. */
int model_create_window(const model_spec *spec, enum dtype type, uint64_t micro_batch,
                        const model_window *window, model **out) MUST_CHECK;

/* Prepares all products and attentions on this backend (borrowed until model_destroy). Sets the
 * final scratch bytes of every stage, which may depend on the library: call before planning. */
int model_prepare(model *self, const kernel_ops *ops, kernel_context *context) MUST_CHECK;

/* Fills the constants buffer [constants_bytes], device memory. */
int model_fill_constants(model *self, void *stream, void *constants) MUST_CHECK;

/* Initial master weights of elements [begin, begin + count) of a unit, padding zero, a function of
 * (seed, unit, element) alone; host memory. Uses all threads of the caller's OpenMP team. */
void model_init_elems(const model *self, uint32_t unit, uint64_t seed, uint64_t begin,
                      uint64_t count, float *master);

/* The memory of one call: one pass of a stage, one micro-batch. What the pass does not use
 * (model_pass) may be NULL. All device memory, no two buffers overlapping: output and input_grad
 * serve as scratch before their value is written. */
struct model_call {
    const void *params[2]; /* whole flat vectors of the pass's units, in `type` */
    float *grads[2];       /* their fp32 accumulators; backward only; NULL: not wanted, frozen */
    /* grads[i] holds nothing yet: all of the unit, what this pass does not touch included, is
     * written and nothing read. Matrices are begun by their products, the rest with zeros */
    bool fresh[2];
    const int32_t *tokens;   /* [B,T]: embed and head only (may be set always) */
    const int32_t *targets;  /* [B,T]; -1 ignored: head */
    const void *input;       /* [B,T,C]; NULL for embed */
    void *output;            /* forward of embed and blocks */
    const void *output_grad; /* backward of embed and blocks */
    void *input_grad; /* backward of blocks and head; NULL: not wanted (model_pass.input_grad) */
    float *losses;    /* [B*T] fp32 nats per token: head */
    float grad_scale; /* head backward: loss scale / tokens of the whole step */
    void *saved;      /* [saved_bytes]; used up by the backward: undefined after it */
    void *temp;       /* [forward_temp_bytes or backward_temp_bytes] */
    const void *constants;
    /* Of a model with cache_positions: the call's tokens are those at `position` and behind it,
     * `count` of them; rows behind these are padding, whose outputs mean nothing. */
    /* [L][2][G][cache_positions][D] in `type`: keys, values; of positions before the call's they
     * are read, of the call's written */
    void *cache;
    uint64_t position, count;
    uint64_t layer; /* of a block: which */
};
typedef struct model_call model_call;

/* Forward. For embed and blocks: output. For the head: losses only (evaluation).
 * `saved` is scratch unless the caller keeps it for the backward. */
int model_forward(model *self, uint32_t stage, void *stream, const model_call *call) MUST_CHECK;

/* Backward of a stage. Blocks first recompute `saved` from input unless `saved_is_valid`. The head
 * does forward, losses and backward. Gradients are added to grads, or begin them
 * (model_call.fresh). */
int model_backward(model *self, uint32_t stage, void *stream, const model_call *call,
                   bool saved_is_valid) MUST_CHECK;

/* One pass of one phase; the two calls above are its whole stages where nothing is cut. For a cut
 * stage `saved` holds what its passes leave for each other. In an uncut stage's backward
 * `saved_is_valid` says that the caller kept `saved` from the forward; a cut stage's always finds
 * it filled. */
int model_run(model *self, enum phase phase, uint32_t stage, uint32_t pass, void *stream,
              const model_call *call, bool saved_is_valid) MUST_CHECK;

/* fp32 logits [V] of one position (row b*T + t) from the last boundary activation: for generation.
 * temp as for the head's forward. For a head that is not cut. */
int model_logits(model *self, void *stream, const model_call *call, uint64_t row,
                 float *logits) MUST_CHECK;

/* The same for any head: pass `pass` of its forward, all of them in order with one `saved`; each
 * pass of a cut head fills its own part of the logits. */
int model_logits_pass(model *self, uint32_t pass, void *stream, const model_call *call,
                      uint64_t row, float *logits) MUST_CHECK;

/* What runs in a pass, for those who know how fast it runs. */
enum { MODEL_COST_PRODUCTS_MAX = 64 };

/* `count` products [m,k] x [k,n] of operands of `type`. */
struct model_cost_product {
    enum dtype type, result; /* result: of what they give */
    bool accumulates;        /* they add to what is there */
    bool b_transposed;       /* the second operand is stored [n,k] */
    uint64_t m, n, k, count;
};
typedef struct model_cost_product model_cost_product;

/* Row-wise kernels, by how much they compute for each byte. */
enum model_row_kind {
    MODEL_ROWS_NORM,
    MODEL_ROWS_NORM_GRAD,
    MODEL_ROWS_GELU,
    MODEL_ROWS_GELU_GRAD,
    MODEL_ROWS_SWIGLU,
    MODEL_ROWS_SWIGLU_GRAD,
    MODEL_ROWS_PLAIN,      /* sums, rotary positions, conversions, gradients of biases */
    MODEL_ROWS_TABLE,      /* rows of the embedding */
    MODEL_ROWS_TABLE_GRAD, /* added in order */
    MODEL_ROWS_LOSS,       /* softmax and losses of logits, and their gradient */
    MODEL_ROW_KIND_COUNT
};

struct model_costs {
    uint32_t product_count;
    model_cost_product products[MODEL_COST_PRODUCTS_MAX];
    double attention_forward_flops, attention_backward_flops;
    double row_bytes[MODEL_ROW_KIND_COUNT]; /* read and written together */
    uint64_t call_count;                    /* of kernels */
};
typedef struct model_costs model_costs;

/* One pass of one micro-batch; of an uncut block's backward with the recomputation, as
 * model_pass.flops has it: the flops of both are equal. */
void model_pass_costs(const model *self, enum phase phase, uint32_t stage, uint32_t pass,
                      model_costs *out);

/* Of an uncut block: what its backward need not run where `saved` is kept. Nothing of other
 * stages. */
void model_kept_costs(const model *self, uint32_t stage, model_costs *out);

/* Of products and attention, counted as model_stage's are. */
double model_costs_flops(const model_costs *costs);

/* The name of target `idx` of a family's linear layers, as PEFT's target_modules has it ("q_proj";
 * gpt2's two c_proj are "attn.c_proj" and "mlp.c_proj"); NULL from the number of targets on. */
const char *model_lora_target(enum model_family family, uint32_t idx);

/* Model FLOPs of a training step over `tokens` tokens, as the field counts them: 6 * parameters
 * (the matrix ones) * tokens plus 12 * L * H * D * T * tokens / 2 for causal attention;
 * recomputation not counted. Of each 6, 2 are the forward, 2 the gradient of the input and 2 its
 * own: a matrix that does not learn costs 4, one of a stage before the first that learns 2, and
 * attention there a third; adapters cost 6 for each of their parameters. */
double model_step_flops(const model *self, uint64_t tokens);

#endif
