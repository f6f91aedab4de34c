/* The enums that several rooms share, each declared once. words.c has the name under which each
 * value is printed and written in job files ("unknown" for a number that is no value). State kinds,
 * tiers and phases are used as indices of arrays. Pure; any thread. */
#ifndef SLUICE_BASE_WORDS_H
#define SLUICE_BASE_WORDS_H

#include <stdbool.h>
#include <stdint.h>

/* Limits that several rooms share. */
enum {
    DRIVES_MAX = 16,         /* drives of one rank */
    PLAN_REASONS_MAX = 24,   /* sentences that explain why states rest where they do */
    PLAN_REASON_BYTES = 256, /* of one such sentence, its zero included */
};

/* Where bytes live: memory with a budget. */
enum tier {
    TIER_DEVICE,
    TIER_HOST,
    TIER_NVME,
    TIER_COUNT, /* the tiers that have memory */
    /* For inner activations only: they are not kept, and the backward computes them again. */
    TIER_RECOMPUTE = TIER_COUNT,
    TIER_AUTO, /* a tier that is still to be chosen */
    /* For inner activations only: a tier that keeps them with KEPT_SELECTIVE. */
    TIER_SELECTIVE, /* the device */
    TIER_SELECTIVE_HOST,
    TIER_SELECTIVE_NVME,
    TIER_WORD_COUNT
};

/* "device", "host", "nvme", "recompute", "auto", "selective", "selective_host", ... */
const char *tier_name(enum tier tier);

/* The tier with the memory of a home: device, host or nvme; TIER_COUNT where nothing is kept. */
static inline enum tier tier_of_home(unsigned home)
{
    return (enum tier)(home >= TIER_SELECTIVE ? home - TIER_SELECTIVE : home);
}

/* How much of a stage's inner activations is kept from its forward to its backward. */
enum kept {
    KEPT_NONE, /* the backward computes them again */
    KEPT_ALL,
    /* The backward finds what only a product can make. It computes the outputs of norms, gates and
     * sums again. */
    KEPT_SELECTIVE,
    KEPT_COUNT
};

static inline enum kept kept_at_home(unsigned home)
{
    return home >= TIER_SELECTIVE ? KEPT_SELECTIVE : home < TIER_COUNT ? KEPT_ALL : KEPT_NONE;
}

/* The kinds of state that a training step keeps in a tier. */
enum state_kind {
    STATE_PARAMS,            /* the working copy of the weights */
    STATE_GRADS,             /* closed gradients; fp32 sums between micro-batches */
    STATE_OPTIMIZER,         /* master weights and moments, as tiles (base/tile.h) */
    STATE_ACTIVATIONS,       /* boundaries between stages */
    STATE_INNER_ACTIVATIONS, /* activations within a stage, if kept from forward to backward */
    STATE_KIND_COUNT
};

/* The name in text for people: "params", "inner activations". */
const char *state_kind_name(enum state_kind kind);
/* The name as a key of files: "params", "inner_activations". */
const char *state_kind_key(enum state_kind kind);

/* The phases of a stage; each runs for every micro-batch. */
enum phase {
    PHASE_FORWARD, /* for the head: losses only, for evaluation */
    /* for a cut block: fills `saved` again; other stages have no recompute passes */
    PHASE_RECOMPUTE,
    PHASE_BACKWARD,
    PHASE_COUNT
};

/* The part of a pass that an op computes: all of it, or one of three steps with an exchange of rows
 * between them if the pass's experts belong to ranks. */
enum op_step {
    STEP_WHOLE,
    STEP_SEND,    /* what comes before the experts, and the rows for other ranks */
    STEP_EXPERTS, /* this rank's experts, on the rows of all ranks */
    STEP_COMBINE, /* the results of all ranks, and what comes after the experts */
};

/* How an op or a pass uses a buffer. With WRITE the former contents are not needed. */
enum operand_access {
    ACCESS_NONE = 0,
    ACCESS_READ = 1,
    ACCESS_WRITE = 2,
    ACCESS_UPDATE = ACCESS_READ | ACCESS_WRITE,
};

/* The order in which the micro-batches of a step go through the stages. */
enum order {
    ORDER_LAYER_MAJOR, /* all micro-batches pass a stage before the next one */
    ORDER_BATCH_MAJOR, /* each micro-batch passes all stages; fp32 sums rest in between */
    ORDER_FASTEST      /* the one that the plan finds faster */
};

const char *order_name(enum order order); /* "layer_major", "batch_major", "fastest" */

/* When the optimizer updates a unit. */
enum update {
    UPDATE_AFTER_BACKWARD,
    UPDATE_IN_NEXT_FORWARD,
    /* Each unit as soon as its gradient is complete, so the gradient never rests in a tier. Exact
     * only without clipping, loss scaling and overflow check. */
    UPDATE_IN_BACKWARD,
    /* After the unit's backward, with the gradient of the step before. Approximate: gradients are
     * one step late. */
    UPDATE_DELAYED_ONE_STEP,
    UPDATE_AUTO /* the one that the plan finds faster */
};

const char *update_name(enum update update); /* "after_backward", ..., "auto" */

/* The units of experts that are fetched for a pass: all of them, ahead; or the hit ones, after
 * their router. A unit is hit if some token chose one of its experts. */
enum fetch {
    FETCH_ALL,
    FETCH_HIT,
    FETCH_AUTO /* what the plan finds faster */
};

const char *fetch_name(enum fetch fetch); /* "all", "hit", "auto" */

/* The families of models, in the order of model.family's words (src/config/keys_model.c).
 * src/model/families.c describes each one. */
enum model_family {
    MODEL_GPT2,
    MODEL_LLAMA,
    MODEL_STARCODER2,
    MODEL_PHI,
    MODEL_PHI3,
    MODEL_GEMMA,
    MODEL_OLMO2,
    MODEL_EXAONE4,
    MODEL_GLM,
    MODEL_GLM4,
    MODEL_BERT,
    MODEL_GPT_NEOX,
    MODEL_OPT,
    MODEL_COHERE,
    MODEL_STABLELM,
    MODEL_GEMMA2, /* and Gemma 3, with qk_norm */
    MODEL_MIXTRAL,
    MODEL_QWEN2_MOE,
    MODEL_QWEN3_MOE,
    MODEL_OLMOE,
    MODEL_GPT_OSS,
    MODEL_DEEPSEEK,
    MODEL_GLM4_MOE,
    MODEL_FAMILY_COUNT
};

const char *model_family_name(enum model_family family); /* "gpt2", "llama", ... */

/* How the frequency f of a pair of a rotary embedding is scaled. The kinds are Hugging Face's rope
 * types with these names. A wave is 2 pi / f positions long.
 *   PLAIN    f
 *   LINEAR   f / factor
 *   DYNAMIC  the theta that f comes from is raised if sequences are longer than original_positions
 *            (NTK): by (factor * length / original_positions - factor + 1)^(D / (D - 2))
 *   YARN     f for fast pairs, f / factor for slow ones, a linear blend in between
 *   LONGROPE f / a factor of each pair, from a list for short sequences or one for long ones
 *   LLAMA3   f if the wave is shorter than original_positions / high_freq_factor;
 *            f / factor if it is longer than original_positions / low_freq_factor;
 *            in between both are blended, and the weight of f grows linearly in
 *            original_positions / wave */
enum rope_scaling {
    ROPE_PLAIN,
    ROPE_LINEAR,
    ROPE_LLAMA3,
    ROPE_DYNAMIC,
    ROPE_YARN,
    ROPE_LONGROPE,
    ROPE_SCALING_COUNT
};

const char *rope_scaling_name(enum rope_scaling scaling); /* "default", "linear", "llama3", ... */

enum { ROPE_PAIRS_MAX = 128 }; /* a head has at most 256 elements */

/* A scaling with its numbers. It reads those that it needs. 0 means that a number is not given and
 * follows from others, as kernels/ops.h says (struct rope_table_args). */
struct rope_form {
    enum rope_scaling scaling;
    double factor;                                       /* LONGROPE: of attention_factor alone */
    uint64_t original_positions;                         /* all but LINEAR */
    double low_freq_factor, high_freq_factor;            /* LLAMA3 */
    double attention_factor;                             /* YARN, LONGROPE */
    double beta_fast, beta_slow, mscale, mscale_all_dim; /* YARN */
    bool truncates;                                      /* YARN: bounds are whole pairs */
    uint32_t pair_count;                                 /* LONGROPE: numbers in each list */
    double short_factors[ROPE_PAIRS_MAX], long_factors[ROPE_PAIRS_MAX];
};
typedef struct rope_form rope_form;

/* The function inside the feed-forward part, by the name that config.json has for it. In a gated
 * part it is the function of the gate. */
enum activation {
    ACTIVATION_OF_FAMILY, /* the family's own */
    ACTIVATION_NAMED_GELU,
    ACTIVATION_NAMED_GELU_TANH,
    ACTIVATION_NAMED_RELU,
    ACTIVATION_NAMED_SILU,
    ACTIVATION_NAME_COUNT
};

/* "default", "gelu", "gelu_tanh", "relu", "silu" */
const char *activation_name(enum activation activation);

/* The formats of a file of text or tokens. */
enum data_format {
    DATA_AUTO, /* decided for each file by its first bytes and by the files beside it */
    DATA_TEXT, /* UTF-8 */
    DATA_LLMC, /* llm.c .bin, both header versions */
    DATA_U16,  /* raw little-endian token ids, 16 bits each */
    DATA_U32,
    DATA_MEGATRON, /* .bin beside an .idx */
    DATA_NPY,      /* NumPy's arrays */
    DATA_JSONL,    /* JSON records, one a line or in one array; the first shows their kind */
    DATA_MADE,     /* tokens that a run made from text or JSON records */
    /* JSON records of one kind, as for DATA_JSONL: */
    DATA_MESSAGES,
    DATA_ALPACA,
    DATA_SHAREGPT,
    DATA_PROMPT_COMPLETION,
    DATA_FORMAT_COUNT
};

const char *data_format_name(enum data_format format); /* "auto", "text", "llmc", ... */

/* How the documents of a window are treated. */
enum documents {
    /* Attention looks only at its own document, positions begin again in each, and the first token
     * of a document is no target. */
    DOCUMENTS_SEPARATE,
    DOCUMENTS_JOINED /* as one text */
};

/* The order of the windows of an epoch. */
enum shuffle {
    SHUFFLE_WINDOWS, /* windows of the sequence as it is, in a seeded permutation */
    /* Documents in a seeded permutation, packed end to end; the windows of that in another
     * permutation. */
    SHUFFLE_DOCUMENTS,
    SHUFFLE_NONE /* windows in the order of the sequence */
};

#endif
