/* The work on the experts of a part, one after the other, which layer_experts.c and run_expert.c
 * share. */
#ifndef SLUICE_MODEL_EXPERTS_INTERNAL_H
#define SLUICE_MODEL_EXPERTS_INTERNAL_H

#include <assert.h>

#include "model/model_internal.h"

enum {
    /* An offset for each expert, and one more for each rank. A rank's group has two tensors or
     * more. */
    MODELI_READ_OFFSETS_MAX = ROUTER_EXPERTS_MAX + MODELI_GROUPED_MAX / 2,
};
static_assert(MODELI_READ_OFFSETS_MAX * sizeof(int32_t) <= KERNEL_READ_BACK_BYTES,
              "one call reads them back");

/* Offsets in temp, after the scratch of the products. */
struct modeli_experts_room {
    uint64_t inputs, up, gated; /* [R,C], [R,2F], [R,F] */
    uint64_t outputs;           /* [R,C]: outputs, or in a backward the gradients of the inputs */
    uint64_t gated_grad;        /* [R,F], only in a backward */
    modeli_expert_room lora;
    uint64_t end;
};
typedef struct modeli_experts_room modeli_experts_room;

/* The work on one expert at a time. */
struct modeli_experts_run {
    const modeli_run *run;
    const modeli_layer *layer;
    const modeli_mixture *by;
    modeli_experts_room at;
    experts_rows_args rows; /* what is common to all calls */
    /* Experts that belong to ranks: the rows of one rank; where its group is in the gradients. */
    const modeli_parcel_rows *parcel;
    uint64_t grads_group;
    /* The expert's matrices, and its biases, which may be NULL. */
    const void *up, *down, *up_bias, *down_bias;
    float *up_grad, *down_grad, *up_bias_grad, *down_bias_grad;
    /* of up_count matrices, which is 2 where gate and up are apart; and of the one after them */
    modeli_expert_lora up_lora[2], down_lora;
    uint32_t up_count;
    const int32_t *device_offsets;
    const int32_t *offsets; /* on the host: of the slots of each expert, or of the own group's */
    int32_t read[MODELI_READ_OFFSETS_MAX]; /* what was read back */
};
typedef struct modeli_experts_run modeli_experts_run;

/* layer_experts.c: the sizes of blocks, in rows. From the multiple of the slots on, each is twice
 * the one before, as far as an expert may need. */
uint64_t modeli_expert_size_at(const modeli_layer *layer, uint32_t idx);
uint32_t modeli_expert_size_count(const modeli_layer *layer);

/* run_expert.c: runs expert `idx` of the part, or of the own group, over all its slots, the largest
 * blocks first. */
int modeli_run_expert(modeli_experts_run *of, uint64_t idx) MUST_CHECK;

#endif
