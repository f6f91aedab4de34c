/* Weights packed once for several micro-batches (model_call.packed). Every product brings its weight into an order
 * of its own; where the pass's first call leaves it so, the others spare it: a fifth of a step where micro-batches
 * have few rows, still something where they have many. The head multiplies with its matrix for each chunk of rows, so
 * it gains within one call.
 *
 * What a pass holds, each piece rounded up to MODELI_ALIGN_BYTES:
 *   block      forward   | qkv | proj | up | down |                       as products Y = X W^T want them
 *              backward  | qkv | proj | up | down | qkv | proj | up |     for dX = dY W, then for recomputation
 *   of a part  forward, recompute | the part |      backward | the part, for dX |
 *   head, part of its output   forward | logits |   backward | logits, for dX | logits |
 * What a kept `saved` does not need comes last. Adapters are small and not among them. Allocates nothing. */
#include <assert.h>

#include "model/model_internal.h"

static uint64_t bytes_of(const model *self, const kernel_matmul *product)
{
    if (product == NULL || self->ops == NULL || self->ops->matmul_packed_bytes == NULL)
        return 0;
    return size_round_up(self->ops->matmul_packed_bytes(product), MODELI_ALIGN_BYTES);
}

/* Whether `product` takes what `packs`, its fellow for the full chunk of rows, has packed. */
static bool takes(const model *self, const kernel_matmul *packs, const kernel_matmul *product)
{
    return product == packs || self->ops->matmul_packs_alike(packs, product);
}

uint64_t modeli_packed_at(const model *self, enum modeli_product first, enum modeli_product which)
{
    uint64_t at = 0;
    for (uint32_t i = first; i < (uint32_t)which; i++)
        at += bytes_of(self, self->products->matmul[i]);
    return at;
}

uint64_t modeli_packed_input_bytes(const model *self, const modeli_part *part)
{
    return bytes_of(self, part->products[0].input);
}

int modeli_multiply(const model *self, void *stream, const modeli_weight *weight, const void *a,
                    const void *bias, void *c, void *scratch)
{
    const kernel_ops *ops = self->ops;
    kernel_matmul *product = weight->product;
    if (weight->packed == NULL || bytes_of(self, weight->packs) == 0 ||
        !takes(self, weight->packs, product))
        return ops->matmul(product, stream, a, weight->data, bias, c, scratch);
    if (weight->is_first)
        return ops->matmul_pack(product, stream, a, weight->data, weight->packed, bias, c, scratch);
    return ops->matmul_packed(product, stream, a, weight->packed, bias, c, scratch);
}

/* Bytes, and how often a call uses what it packs: chunks of rows whose products take it. */
static void size_chunks(const model *self, const kernel_matmul *const full[2],
                        const kernel_matmul *const last[2], bool backward, model_pass *pass)
{
    uint64_t rows = self->products->shape.rows;
    uint64_t logits = bytes_of(self, full[0]), input = backward ? bytes_of(self, full[1]) : 0;
    pass->packed_bytes = pass->kept_packed_bytes = logits + input;
    pass->packed_uses = (uint32_t)(rows / self->chunk_rows);
    if (last[0] != NULL && logits > 0 && takes(self, full[0], last[0]))
        pass->packed_uses++;
}

static void size_part(const model *self, const modeli_part *part, bool backward, model_pass *pass)
{
    const modeli_part_products *made = part->products;
    if (part->layer == MODELI_LAYER_OUTPUT) {
        const kernel_matmul *const full[2] = {made[0].forward, made[0].input};
        const kernel_matmul *const last[2] = {made[1].forward, made[1].input};
        size_chunks(self, full, last, backward, pass);
    } else if (part->layer <= MODELI_LAYER_DOWN) {
        pass->packed_bytes = bytes_of(self, backward ? made[0].input : made[0].forward);
        pass->kept_packed_bytes = pass->packed_bytes;
    }
}

static void size_whole(const model *self, enum stage_kind kind, bool backward, model_pass *pass)
{
    kernel_matmul *const *matmul = self->products->matmul;
    if (kind == STAGE_HEAD) {
        const kernel_matmul *const full[2] = {matmul[MODELI_LOGITS], matmul[MODELI_LOGITS_INPUT]};
        const kernel_matmul *const last[2] = {matmul[MODELI_LAST_LOGITS],
                                              matmul[MODELI_LAST_LOGITS_INPUT]};
        size_chunks(self, full, last, backward, pass);
    } else if (kind == STAGE_BLOCK && backward) {
        pass->kept_packed_bytes = modeli_packed_at(self, MODELI_QKV_INPUT, MODELI_QKV_WEIGHT);
        pass->packed_bytes =
            pass->kept_packed_bytes + modeli_packed_at(self, MODELI_QKV, MODELI_DOWN);
    } else if (kind == STAGE_BLOCK) {
        pass->packed_bytes = modeli_packed_at(self, MODELI_QKV, MODELI_QKV_INPUT);
        pass->kept_packed_bytes = pass->packed_bytes;
    }
}

void modeli_size_packed(const model *self, enum phase phase, uint32_t stage, uint32_t pass)
{
    const model_stage *of = &self->stages[stage];
    model_pass *sized = &of->passes[phase][pass];
    bool backward = phase == PHASE_BACKWARD;
    sized->packed_uses = 1;
    if (!of->is_cut) {
        size_whole(self, of->kind, backward, sized);
        return;
    }
    const modeli_part *part = modeli_pass_part(self, phase, stage, pass, &backward);
    size_part(self, part, backward, sized);
}
