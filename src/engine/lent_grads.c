/* Gradients that the program of a module lends (LENT GRADIENTS in swap/program.h), cut into parts
 * for the kernels.
 *
 *   flat vector  [0              )gap[1                                  )gap[2   )   gap
 *   blocks       |       |       |       |       |       |       |       |       |       |
 *   parts        [in place       )[gathered)[in place                    )[gathered      )
 *
 * Parts are whole blocks of SHARD_ELEMS_STEP elements, as the norm takes them. A block that lies in
 * one tensor is read where the program has it. Others are gathered, one by one, with zeros in their
 * gaps. Called by the threads that update; allocates nothing. */
#include <string.h>

#include "base/size.h"
#include "engine/engine_internal.h"

static uint64_t end_of(const model_tensor *tensor)
{
    return tensor->offset_elems + tensor->rows * tensor->columns;
}

/* The first tensor that ends after the element; tensor_count if there is none. */
static uint32_t find_tensor(const model_unit *unit, uint64_t elem)
{
    uint32_t low = 0, high = unit->tensor_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (end_of(&unit->tensors[middle]) > elem)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static const char *address_of(const struct enginei_lent *lent, uint32_t tensor, uint64_t elem)
{
    uint64_t skipped = elem - lent->unit->tensors[tensor].offset_elems;
    return (const char *)lent->grads[tensor] + skipped * dtype_bytes(lent->type);
}

/* Copies a block, of which `tensor` is the first tensor. */
static void gather(const struct enginei_lent *lent, uint32_t tensor, uint64_t begin, char *block)
{
    uint64_t end = begin + SHARD_ELEMS_STEP, width = dtype_bytes(lent->type);
    memset(block, 0, SHARD_ELEMS_STEP * width);
    for (uint32_t t = tensor; t < lent->unit->tensor_count; t++) {
        const model_tensor *from = &lent->unit->tensors[t];
        uint64_t low = size_max(begin, from->offset_elems), high = size_min(end, end_of(from));
        if (from->offset_elems >= end)
            return;
        if (lent->grads[t])
            memcpy(block + (low - begin) * width, address_of(lent, t, low), (high - low) * width);
    }
}

struct enginei_lent_part enginei_lent_part(const struct enginei_lent *lent, uint64_t begin,
                                           uint64_t most, float *block)
{
    uint32_t tensor = find_tensor(lent->unit, begin);
    const model_tensor *from = &lent->unit->tensors[tensor];
    if (tensor < lent->unit->tensor_count && from->offset_elems <= begin && lent->grads[tensor]) {
        uint64_t count = size_min(end_of(from) - begin, most) / SHARD_ELEMS_STEP * SHARD_ELEMS_STEP;
        if (count > 0)
            return (struct enginei_lent_part){count, address_of(lent, tensor, begin)};
    }
    gather(lent, tensor, begin, (char *)block);
    return (struct enginei_lent_part){SHARD_ELEMS_STEP, block};
}
