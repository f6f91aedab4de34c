/* The weights of a Hugging Face checkpoint, as the units of a model.
 *
 *   DIR/config.json, model.safetensors or model.safetensors.index.json -> check against the model
 *     -> elements [begin, begin + count) of a unit's padded flat vector, as fp32
 *
 * The numbers are the same on any number of ranks and for any cut into tiles. Each rank reads only
 * what it asks for, with one exception: matrices that GPT-2 stores transposed are read in strips of
 * up to WEIGHTS_STRIP_BYTES, which are kept for the next call. A caller that asks in the order of
 * elements reads each strip once.
 *
 * Memory: the headers, a few MiB for each thread, and for GPT-2 a strip. One thread calls, except
 * for hf_weights_read_alone. Reads use the caller's OpenMP team. `net` is borrowed until close. */
#ifndef SLUICE_HF_WEIGHTS_H
#define SLUICE_HF_WEIGHTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "model/model.h"

typedef struct hf_weights hf_weights;

#define WEIGHTS_STRIP_BYTES ((uint64_t)256 << 20)
#define WEIGHTS_PIECE_BYTES ((uint64_t)4 << 20) /* of a request; drives need no more than 1 MiB */

/* Opens a checkpoint. Every tensor of the model must be in it as layout.h says, in fp32, bf16 or
 * fp16; experts of a mixture in either of the two layouts. Matrices may be quantized as
 * bitsandbytes has them (nf4, fp4, int8), or as fp8 with scales of blocks. Adapters (names with
 * ".lora_") are not looked for: they begin as the model says.
 *
 * ERR_INPUT names the file, the tensor, and what it is and should be. A tensor that the model has
 * no place for is an error too, unless it repeats another one (a tied output matrix) or holds no
 * parameters (attention masks, inverse frequencies). */
int hf_weights_open(const char *dir, const model *net, hf_weights **out) MUST_CHECK;
/* The same with other sizes of strips and requests, for tests. The smallest sizes are a row and an
 * element. */
int hf_weights_open_sized(const char *dir, const model *net, uint64_t strip_bytes,
                          uint64_t piece_bytes, hf_weights **out) MUST_CHECK;
/* Takes the adapters of a directory in the format of PEFT, which are read at once, as a part of the
 * checkpoint. ERR_INPUT if they are not those of the model. */
int hf_weights_take_adapters(hf_weights *self, const char *dir) MUST_CHECK;
void hf_weights_close(hf_weights *self); /* NULL is allowed */

/* Reads elements [begin, begin + count) of a unit into master, [count] fp32 on the host. Padding
 * becomes zero, and quantized matrices are expanded. Elements of adapters that were not taken are
 * left as the caller has them. ERR_INPUT with the path if the file cannot be read or has become
 * shorter; ERR_INPUT with tensor and element if a value is not finite. */
int hf_weights_read(hf_weights *self, uint32_t unit, uint64_t begin, uint64_t count,
                    float *master) MUST_CHECK;

/* The same on the calling thread alone, without the page cache (hf_read_direct), through the
 * caller's `room` of WEIGHTS_ROOM_BYTES, aligned to 4 KiB. If hf_weights_has_strips is false, any
 * number of threads may call at once, each with its own room. Else only one thread at a time, best
 * in the order of elements, since a team reads the strips. */
#define WEIGHTS_ROOM_BYTES (((uint64_t)4 << 20) + ((uint64_t)64 << 10))
int hf_weights_read_alone(hf_weights *self, uint32_t unit, uint64_t begin, uint64_t count,
                          void *room, float *master) MUST_CHECK;
/* Copies codes and scales of a quantized matrix: a model_source.codes (model/pack.h) whose user is
 * the hf_weights. Returns 0 if the checkpoint does not have this matrix in the tensor's format, or
 * has its rows in another order. ERR_INPUT if the unit has a part of it in whose place no whole
 * groups lie. */
int hf_weights_codes(void *self, uint32_t unit, uint32_t tensor, uint64_t matrix, void *codes,
                     void *scales) MUST_CHECK;
/* True if some of its matrices are stored transposed or quantized. They pass through the one strip,
 * or the one memory for codes. */
bool hf_weights_has_strips(const hf_weights *self);

/* True if the checkpoint has all tensors of the unit; false if some of them are adapters that
 * hf_weights_take_adapters has not taken. */
bool hf_weights_has_all(const hf_weights *self, uint32_t unit);

/* XXH3-64 over names, shapes, dtypes and places of its tensors, and values of adapters. A run notes
 * it as its origin. */
uint64_t hf_weights_identity(const hf_weights *self);

/* Bytes of the model's tensors in the checkpoint, for progress lines. */
uint64_t hf_weights_bytes(const hf_weights *self);
/* The dtype of the tensors if all have the same one. Else the widest; fp32 if fp16 and bf16 are
 * mixed. */
enum dtype hf_weights_type(const hf_weights *self);

#endif
