/* Packing the units of a frozen base whose matrices are kept in a stored format (model.h, PACKED
 * UNITS). Weights come in pieces of fp32 from wherever they are, so that beside the packed unit
 * only a piece and one matrix's scales are in memory. All threads of the context quantize.
 *
 * The values of a matrix are quantized as they come, before any rounding to the working dtype.
 * Codes and scales that a checkpoint has are copied. The same weights give the same bytes on every
 * machine. A packer belongs to one thread at a time. */
#ifndef SLUICE_MODEL_PACK_H
#define SLUICE_MODEL_PACK_H

#include "model/model.h"

typedef struct model_packer model_packer;

/* Where the weights of a packed unit come from. */
struct model_source {
    /* Elements [begin, begin + count) of a unit's flat vector as fp32. */
    int (*values)(void *user, uint32_t unit, uint64_t begin, uint64_t count, float *values);
    /* Codes and scales of a matrix, in the tensor's format, where they exist already. `matrix`: of
     * the tensor's matrices of stored_rows rows. Returns 1, or 0 if the values must be quantized.
     * NULL: always. */
    int (*codes)(void *user, uint32_t unit, uint32_t tensor, uint64_t matrix, void *codes,
                 void *scales);
    void *user;
};
typedef struct model_source model_source;

/* Reserves memory for the largest packed unit of the model, which is borrowed. */
int model_packer_create(const model *net, model_packer **out) MUST_CHECK;
void model_packer_destroy(model_packer *self); /* NULL is allowed */

/* Packs a unit, or finds it packed by the last call. *packed: [rest_elems] of the working dtype,
 * valid until the next call. `ops` are those of a CPU. ERR_INPUT if a weight is not finite; else
 * the source's errors. */
int model_pack(model_packer *self, const kernel_ops *ops, kernel_context *context, uint32_t unit,
               const model_source *source, const void **packed) MUST_CHECK;

/* The place of codes of matrix `idx` of a tensor in a packed unit, in bytes. Its scales follow at
 * the next multiple of MODEL_REST_ALIGN_BYTES. */
uint64_t model_matrix_at(const model_tensor *tensor, uint64_t idx);

/* Expands a tensor of a packed unit. values: [rows, columns] fp32; a matrix in a stored format is
 * not rounded to the working dtype. `ops` are those of a CPU. */
int model_unpack(const model *net, const kernel_ops *ops, kernel_context *context, uint32_t unit,
                 uint32_t tensor, const void *packed, float *values) MUST_CHECK;

#endif
