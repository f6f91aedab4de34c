/* Answers about a model that its spec gives (base/model_spec.h), or its family alone, before the
 * model is made. families.c describes each family. Pure; any thread. */
#ifndef SLUICE_MODEL_SPEC_H
#define SLUICE_MODEL_SPEC_H

#include "base/model_spec.h"

/* True if something in the model is dropped at random in training. */
bool model_has_dropout(const model_spec *spec);

/* True if a token also sees the tokens after it. Such a model learns to fill in masked tokens, and
 * cannot continue a text. */
bool model_is_bidirectional(enum model_family family);
/* True if Hugging Face stores this tensor of the family as [in, out]: matrices of GPT-2's blocks
 * (Conv1D). */
bool model_is_transposed(enum model_family family, const char *name);

/* The name of target `idx` of a family's linear layers, as in PEFT's target_modules ("q_proj";
 * gpt2's two c_proj are "attn.c_proj" and "mlp.c_proj"). NULL if `idx` is not below the number of
 * targets. */
const char *model_lora_target(enum model_family family, uint32_t idx);
/* True if that target is a matrix of all experts of a block, as in PEFT's target_parameters
 * ("mlp.experts.down_proj"). Its adapter has an A and a B for each expert: A [experts * rank, in],
 * B [experts * out, rank]. */
bool model_lora_is_expert(enum model_family family, uint32_t idx);
/* False for a layer that a model of the spec lacks, such as those of dense blocks or of experts. */
bool model_lora_is_there(const model_spec *spec, uint32_t idx);

#endif
