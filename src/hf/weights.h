/* The weights of a Hugging Face checkpoint as a model's units see them.
 *
 *   DIR/config.json, model.safetensors or model.safetensors.index.json -> header checks against the model ->
 *   elements [begin, begin + count) of a unit's padded flat vector as fp32
 *
 * The same numbers on any number of ranks and for any cut into tiles, each of whom reads what it
 * asks for and no more, but for the matrices that GPT-2 stores transposed, which are read in strips
 * of up to WEIGHTS_STRIP_BYTES and kept for the next call: who asks in the order of elements reads
 * each once. Memory: the headers, a few MiB for each thread, and for GPT-2 a strip. One thread
 * calls; reads use the caller's OpenMP team. */
#ifndef SLUICE_HF_WEIGHTS_H
#define SLUICE_HF_WEIGHTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "model/model.h"

typedef struct hf_weights hf_weights;

#define WEIGHTS_STRIP_BYTES ((uint64_t)256 << 20)
#define WEIGHTS_PIECE_BYTES                                                                        \
    ((uint64_t)4 << 20) /* of a request: beyond 1 MiB drives gain nothing more */

/* Every tensor of the model must be there with its shape (GPT-2's transposed), in fp32, bf16 or
 * fp16. ERR_INPUT naming file, tensor, and what it is and should be; tensors that the model has no
 * place for are an error too, but for those that repeat (a tied output matrix) or hold no
 * parameters (attention masks, inverse frequencies). Adapters (names with ".lora_") are not looked
 * for: they begin as the model says. */
int hf_weights_open(const char *dir, const model *net, hf_weights **out) MUST_CHECK;
/* The same with other sizes of strips and requests, for tests; the smallest are a row and an
 * element. */
int hf_weights_open_sized(const char *dir, const model *net, uint64_t strip_bytes,
                          uint64_t piece_bytes, hf_weights **out) MUST_CHECK;
void hf_weights_close(hf_weights *self); /* NULL is allowed */

/* Padding is zero. ERR_INPUT with the path where the file cannot be read or has become shorter;
 * ERR_INPUT naming tensor and element for what is no finite number. Elements of adapters stay as
 * the caller has them. */
int hf_weights_read(hf_weights *self, uint32_t unit, uint64_t begin, uint64_t count,
                    float *master) MUST_CHECK;

/* The same on the calling thread alone, past the page cache (hf_read_direct), through the caller's
 * `room` of WEIGHTS_ROOM_BYTES, aligned to 4 KiB. Any number of threads at once, each with its own
 * room, where weights_has_strips is false; else one at a time, and best in the order of elements:
 * strips are read by a team. */
#define WEIGHTS_ROOM_BYTES (((uint64_t)4 << 20) + ((uint64_t)64 << 10))
int hf_weights_read_alone(hf_weights *self, uint32_t unit, uint64_t begin, uint64_t count,
                          void *room, float *master) MUST_CHECK;
/* Some of its matrices are stored transposed: they pass through the one strip. */
bool hf_weights_has_strips(const hf_weights *self);

/* Whether the checkpoint has all tensors of the unit: false where some are adapters. */
bool hf_weights_has_all(const hf_weights *self, uint32_t unit);

/* XXH3 over names, shapes, dtypes and places of its tensors: what a run notes of where it came
 * from. */
uint64_t hf_weights_identity(const hf_weights *self);

/* Bytes of the model's tensors in the checkpoint, for a line of progress. */
uint64_t hf_weights_bytes(const hf_weights *self);
/* What the tensors are, where all are one; else the widest: fp32 where fp16 and bf16 are mixed. */
enum dtype hf_weights_type(const hf_weights *self);

/* Whether Hugging Face stores this tensor of the family as [in, out]: matrices of GPT-2's blocks
 * (Conv1D). */
bool hf_weights_is_transposed(enum model_family family, const char *name);
/* The shape under which Hugging Face stores a tensor of which `tensor` is the whole or a part;
 * dimensions. */
uint32_t hf_weights_shape(enum model_family family, const model_tensor *tensor, uint64_t shape[2]);

#endif
