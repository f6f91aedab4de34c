/* The words that several rooms share. Each enum is declared once, and words.c has the name under
 * which each value is printed and written in job files ("unknown" for a number that is no value).
 * State kinds, tiers and phases are indices of arrays. Pure; any thread. */
#ifndef SLUICE_BASE_WORDS_H
#define SLUICE_BASE_WORDS_H

/* Limits that several rooms share. */
enum {
    DRIVES_MAX = 16,         /* drives of a rank */
    PLAN_REASONS_MAX = 24,   /* sentences that say why states rest where they do */
    PLAN_REASON_BYTES = 256, /* of such a sentence, with its zero */
};

/* Where bytes live: memory with a budget. */
enum tier {
    TIER_DEVICE,
    TIER_HOST,
    TIER_NVME,
    TIER_COUNT, /* those that have memory */
    /* Inner activations alone: they are not kept, and the backward computes them again. */
    TIER_RECOMPUTE = TIER_COUNT,
    TIER_AUTO, /* a home that is to be chosen */
};

const char *tier_name(enum tier tier); /* "device", "host", "nvme", "recompute", "auto" */

/* What a training step keeps somewhere. */
enum state_kind {
    STATE_PARAMS,            /* the working copy of the weights */
    STATE_GRADS,             /* closed gradients; fp32 accumulators between micro-batches */
    STATE_OPTIMIZER,         /* master weights and moments, as tiles (base/tile.h) */
    STATE_ACTIVATIONS,       /* boundaries between stages */
    STATE_INNER_ACTIVATIONS, /* those within a stage, where kept from forward to backward */
    STATE_KIND_COUNT
};

/* For people: "params", "inner activations". */
const char *state_kind_name(enum state_kind kind);
/* As a key of files: "params", "inner_activations". */
const char *state_kind_key(enum state_kind kind);

/* What a pass of a stage does for each micro-batch. */
enum phase {
    PHASE_FORWARD,   /* the head's: losses alone, for evaluation */
    PHASE_RECOMPUTE, /* a cut block's: fills `saved` again; other stages have no such passes */
    PHASE_BACKWARD,
    PHASE_COUNT
};

/* How an op, or a pass, uses a buffer. WRITE needs nothing of what was there. */
enum operand_access {
    ACCESS_NONE = 0,
    ACCESS_READ = 1,
    ACCESS_WRITE = 2,
    ACCESS_UPDATE = ACCESS_READ | ACCESS_WRITE,
};

/* In which order the micro-batches of a step pass the stages. */
enum order {
    ORDER_LAYER_MAJOR, /* all micro-batches pass a stage before the next one */
    ORDER_BATCH_MAJOR, /* each micro-batch passes all stages; fp32 accumulators rest in between */
    ORDER_FASTEST      /* whichever the plan finds faster */
};

const char *order_name(enum order order); /* "layer_major", "batch_major", "fastest" */

/* When the optimizer updates a unit. */
enum update {
    UPDATE_AFTER_BACKWARD,
    UPDATE_IN_NEXT_FORWARD,
    /* Each unit as its gradient completes, which never rests. Exact only without clipping, loss
     * scaling and overflow check. */
    UPDATE_IN_BACKWARD,
    /* With the gradient of the step before, after the unit's backward. Approximate: gradients are
     * one step late. */
    UPDATE_DELAYED_ONE_STEP,
    UPDATE_AUTO /* whichever the plan finds faster */
};

const char *update_name(enum update update); /* "after_backward", ..., "auto" */

/* The update of that name; UPDATE_AUTO for every other text. */
enum update update_named(const char *name);

/* How the frequency f of a pair of a rotary embedding is stretched, as Hugging Face's rope types of
 * these names do it. A wave is 2 pi / f positions long.
 *   PLAIN    f
 *   LINEAR   f / factor
 *   LLAMA3   f where the wave is shorter than original_positions / high_freq_factor;
 *            f / factor where it is longer than original_positions / low_freq_factor;
 *            in between both are blended, and the weight of f grows linearly in
 *            original_positions / wave */
enum rope_scaling { ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3, ROPE_SCALING_COUNT };

const char *rope_scaling_name(enum rope_scaling scaling); /* "default", "linear", "llama3" */

/* What a file of text or tokens holds. */
enum data_format {
    DATA_AUTO, /* decided for each file by its first bytes and by the files beside it */
    DATA_TEXT, /* bytes */
    DATA_LLMC, /* llm.c .bin, both header versions */
    DATA_U16,  /* raw little-endian token ids */
    DATA_U32,
    DATA_MEGATRON, /* .bin beside an .idx */
    DATA_NPY,      /* NumPy's arrays */
    DATA_JSONL,    /* JSON lines; made into a file of tokens before they are read */
    DATA_MADE,     /* tokens that a run made of text and JSON lines */
    DATA_FORMAT_COUNT
};

const char *data_format_name(enum data_format format); /* "auto", "text", "llmc", ... */

/* The order of the windows of an epoch. */
enum shuffle {
    SHUFFLE_WINDOWS, /* windows of the sequence as it is, in a seeded permutation */
    /* Documents in a seeded permutation, packed end to end; windows of that, in another one. */
    SHUFFLE_DOCUMENTS,
    SHUFFLE_NONE /* windows in the order of the sequence */
};

const char *shuffle_name(enum shuffle shuffle); /* "windows", "documents", "none" */

#endif
