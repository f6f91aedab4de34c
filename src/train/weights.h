/* The weights of a Hugging Face checkpoint as a model's units see them.
 *
 *   DIR/config.json, model.safetensors or model.safetensors.index.json -> header checks against the model ->
 *   elements [begin, begin + count) of a unit's padded flat vector as fp32
 *
 * The same numbers on any number of ranks and for any cut into tiles, each of whom reads what it asks for and
 * no more. Memory: the headers, and a bounded buffer. One thread. */
#ifndef SLUICE_TRAIN_WEIGHTS_H
#define SLUICE_TRAIN_WEIGHTS_H

#include <stdint.h>

#include "base/error.h"
#include "model/model.h"

typedef struct weights weights;

/* Every tensor of the model must be there with its shape (GPT-2's transposed), in fp32, bf16 or fp16. ERR_INPUT
 * naming file, tensor, and what it is and should be; tensors that the model has no place for are an error too, but
 * for those that repeat (a tied output matrix) or hold no parameters (attention masks, inverse frequencies). */
int weights_open(const char *dir, const model *net, weights **out) MUST_CHECK;
void weights_close(weights *self); /* NULL is allowed */

/* Padding is zero. ERR_INPUT with the path where the file cannot be read or has become shorter. */
int weights_read(weights *self, uint32_t unit, uint64_t begin, uint64_t count,
                 float *master) MUST_CHECK;

/* XXH3 over names, shapes, dtypes and sizes of its files: what a run notes of where it came from. */
uint64_t weights_identity(const weights *self);

#endif
