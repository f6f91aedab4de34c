/* Packing the units of a frozen base whose matrices are kept in a stored format (model.h, PACKED
 * UNITS). Weights come in pieces of fp32 from wherever they are, so that beside the packed unit
 * only a piece and one matrix's scales are in memory. All threads of the context quantize.
 *
 * The values of a matrix are quantized as they come, before any rounding to the working dtype. The
 * same weights give the same bytes on every machine. A packer belongs to one thread at a time. */
#ifndef SLUICE_MODEL_PACK_H
#define SLUICE_MODEL_PACK_H

#include "model/model.h"

typedef struct model_packer model_packer;

/* Elements [begin, begin + count) of a unit's flat vector as fp32. */
typedef int model_source(void *user, uint32_t unit, uint64_t begin, uint64_t count, float *values);

/* Reserves memory for the largest packed unit of the model, which is borrowed. */
int model_packer_create(const model *net, model_packer **out) MUST_CHECK;
void model_packer_destroy(model_packer *self); /* NULL is allowed */

/* Packs a unit, or finds it packed by the last call. *packed: [rest_elems] of the working dtype,
 * valid until the next call. `ops` are those of a CPU. ERR_INPUT if a weight is not finite; else
 * the source's errors. */
int model_pack(model_packer *self, const kernel_ops *ops, kernel_context *context, uint32_t unit,
               model_source *source, void *user, const void **packed) MUST_CHECK;

/* Expands a tensor of a packed unit. values: [rows, columns] fp32; a matrix in a stored format is
 * not rounded to the working dtype. `ops` are those of a CPU. */
int model_unpack(const model *net, const kernel_ops *ops, kernel_context *context, uint32_t unit,
                 uint32_t tensor, const void *packed, float *values) MUST_CHECK;

#endif
