/* A model as a job describes it: family, sizes, options, the parts that learn, and the formats of
 * its matrices at rest. src/config makes it of the blocks `model`, `train` and `state` of a job,
 * and model_create (src/model) makes units and stages of it. Where a key of `model` has another
 * name, keys_model.c says which member it fills. Plain data; any thread. */
#ifndef SLUICE_BASE_MODEL_SPEC_H
#define SLUICE_BASE_MODEL_SPEC_H

#include <stdbool.h>
#include <stdint.h>

#include "base/stored.h"
#include "base/words.h"

enum {
    MODEL_RANGES_MAX = 60,
    MODEL_LORA_TARGETS_MAX = 16,
    MODEL_PATTERN_BYTES = 256, /* of window_pattern, with its zero */
    MODEL_STORED_RULES_MAX = 256,
    MODEL_STORED_NAME_BYTES = 64,
};

/* The stored format of all matrices whose name has these words in a row, with dots between them:
 * "mlp", "layers.3.self_attn", "embed_tokens". */
struct model_stored_rule {
    char name[MODEL_STORED_NAME_BYTES];
    enum stored_format format;
};
typedef struct model_stored_rule model_stored_rule;

/* How matrices that do not learn are stored (model/model.h: PACKED UNITS): a format for all
 * matrices of blocks, except adapters and routers; and rules for what they name, of which the last
 * one wins. */
struct model_stored {
    enum stored_format format;
    uint32_t rule_count;
    model_stored_rule rules[MODEL_STORED_RULES_MAX];
    bool is_of_checkpoint; /* the checkpoint has them in these formats: none of them may learn */
    /* A rule "working" that names no matrix of the model is no error: the rules come from a block
     * quantization_config. */
    bool may_keep_absent;
};
typedef struct model_stored model_stored;

/* Blocks first .. last, both included. */
struct model_range {
    uint64_t first, last;
};
typedef struct model_range model_range;

/* The tensors of the base that learn: all that any member selects. If all members are 0, everything
 * learns, or with adapters nothing of the base. */
struct model_learn {
    bool is_given;           /* false: the default above */
    bool all;                /* the whole model */
    bool nothing;            /* for an evaluation alone */
    bool embed, head, norms; /* norms: those of all blocks, and the final one */
    uint32_t range_count;
    model_range blocks[MODEL_RANGES_MAX];
};
typedef struct model_learn model_learn;

/* Low-rank adapters (Hu et al. 2021) of linear layers, in every block: y = W x + b + (alpha / rank)
 * B (A x), A [rank, in], B [out, rank]. rank 0: no adapters. */
struct model_lora {
    uint64_t rank;
    double alpha;
    uint32_t targets; /* bit i: model_lora_target(family, i) */
    double dropout;   /* of x, for each target apart; 0: none */
};
typedef struct model_lora model_lora;

/* src/config fills all members but these, which src/setup fills: lora.targets, owns_experts,
 * splits_vectors, and expert_ranks if the job leaves that to the plan. */
struct model_spec {
    enum model_family family;
    uint64_t num_layers, hidden_size, num_heads, num_kv_heads, ffn_size, vocab_size, seq_length;
    /* num_kv_heads 0 means num_heads; for gpt2, ffn_size 0 means 4 * hidden_size */
    uint64_t head_dim; /* D; 0: hidden_size / num_heads. llama: H * D may differ from hidden_size */
    /* deepseek: multi-head latent attention. k and v are made from kv_latent_size columns, q from
     * q_latent_size columns or, if that is 0, from the block's input. The last rope_head_dim of a
     * head's D elements have rotary positions, and are the same in all heads of k. Heads of v have
     * value_head_dim elements; 0: D. */
    uint64_t q_latent_size, kv_latent_size, rope_head_dim, value_head_dim;
    bool rope_halves; /* deepseek: rotary positions turn (i, i + R/2) */
    /* Options of some families (families.c); others have or lack them by themselves. Biases
     * of q, k and v (Qwen2), of attention's output, and of the feed-forward part. */
    bool qkv_bias, out_bias, mlp_bias;
    bool attention_sinks; /* a learned logit of each head in its softmax's denominator (gpt-oss) */
    bool qk_norm;         /* norms over each head's D of q and of k, before the rotation (Qwen3) */
    bool parallel_residual;     /* attention and the feed-forward part read the same x (GPT-NeoX) */
    enum activation activation; /* of the feed-forward part */
    /* Factors of the rows of the embedding (rounded to the working dtype), of scores in place of 1
     * / sqrt(D), of each residual branch (an option), and the divisor of logits. 0: none. */
    double embedding_multiplier, attention_multiplier, residual_multiplier, logits_scaling;
    /* Dropouts in training: of what each branch adds to the residual stream and of the embedding's
     * rows, in families that have these; of attention's probabilities. 0: none. */
    double hidden_dropout, embedding_dropout, attention_dropout;
    /* Scores s become c tanh(s / c) before the softmax, and so do logits. 0: they do not. */
    double attention_soft_cap, logits_soft_cap;
    /* A token sees this many positions, of which it is the last, in the blocks that window_pattern
     * names; 0: all up to its own. The pattern has a letter for each block, 'w' for one with the
     * window and 'f' for one without, and is repeated to the last block. "": all have it. */
    uint64_t window;
    char window_pattern[MODEL_PATTERN_BYTES];
    /* The base of the rotary positions of those blocks, which are not scaled; 0: as in the
     * others */
    double window_rope_theta;
    uint64_t nope_interval;  /* llama: every such block has no rotary positions; 0: all have them */
    uint64_t position_count; /* gpt2, opt, bert: positions of the table; 0: seq_length */
    uint64_t type_count;     /* bert: rows of the table of token types, of which 0 is used; 0: 2 */
    /* Share of each head, its first elements, that has rotary positions; 0: all of it. */
    double partial_rotary_factor;
    /* DYNAMIC and LONGROPE depend on the length of sequences. That is seq_length for every call,
     * also for shorter ones, so that all calls of a model have the same angles. */
    rope_form rope;
    bool tie_embeddings;
    double rope_theta;   /* where there are rotary positions; 10000 */
    double norm_epsilon; /* 1e-5 */
    double init_std;     /* std of normal initial weights; 0.02. Residual projections: / sqrt(2L) */
    /* Mixtures of experts: each block has expert_count experts, of which each token uses
     * experts_per_token; 0: not a mixture. expert_ffn_size: features of an expert; 0: ffn_size.
     * shared_ffn_size: those of the expert that all tokens use, in families with one. */
    uint64_t expert_count, experts_per_token, expert_ffn_size, shared_ffn_size;
    uint64_t experts_per_unit; /* 0: as many as make about MODEL_EXPERTS_UNIT_ELEMS */
    /* Expert parallelism over so many ranks: the routed experts of a unit lie in so many groups of
     * equal size, which are the shards of the ranks (model/model.h: EXPERTS OF RANKS). 0 or 1: one
     * group. */
    uint64_t expert_ranks;
    bool owns_experts;     /* this rank has the params of its own group alone */
    uint64_t dense_blocks; /* deepseek, glm4_moe: the first blocks, which have no experts */
    /* The weights of a token's experts are divided by their sum; and multiplied by this, if it is
     * not 0. */
    bool normalizes_experts;
    double routed_scaling;
    /* Scores are sigmoids of logits, in place of their softmax; a constant of each expert (its
     * correction) is added where experts are chosen. */
    bool sigmoid_scores;
    /* Experts are in so many groups of neighbours, and a token's come from the best
     * groups_per_token of them (kernels/ops_experts.h); 0: no groups. */
    uint64_t expert_groups, groups_per_token;
    double swiglu_limit; /* gpt_oss: of gate and up (ACTIVATION_SWIGLU_CLAMPED); 0: 7 */
    /* Coefficients of two losses of the routers that are added in training: load balancing (Fedus
     * et al. 2021, as transformers' load_balancing_loss_func has it), and the z-loss (Zoph et al.
     * 2022). 0: none. */
    double balance_coef, router_z_coef;
    uint64_t max_part_bytes; /* the largest working params of a unit; 0: units are never cut */
    /* The vectors of a block that is not cut (norms, biases) are a unit beside its matrices, which
     * Muon updates with less state. Not with adapters or with norms apart. */
    bool splits_vectors;
    model_learn learn;
    model_lora lora;
    model_stored stored;
};
typedef struct model_spec model_spec;

/* True if the spec asks for another format than the working dtype. */
static inline bool model_asks_packed(const model_spec *spec)
{
    return spec->stored.format != STORED_WORKING || spec->stored.rule_count > 0;
}

#endif
