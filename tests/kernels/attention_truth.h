/* Attention computed row by row in double, to check a backend's attention: packed operands, a run's
 * results, and checks of single rows against the definition, each with its own bound. */
#ifndef SLUICE_TESTS_KERNELS_ATTENTION_TRUTH_H
#define SLUICE_TESTS_KERNELS_ATTENTION_TRUTH_H

#include <stdint.h>

#include "kernels/ops.h"

/* All arrays are on the host, widened to fp32; rows of q | k | v without gaps. */
struct attention_case {
    /* value_dim is set; qkv_stride is the backend's, and here rows have packed_elems */
    attention_desc desc;
    uint64_t packed_elems;     /* (H + G) D + G E */
    const float *qkv;          /* [B T, packed_elems] */
    const float *output_grad;  /* [B T, H E] */
    const float *output, *lse; /* [B T, H E], [B, H, T]: what the kernels gave */
    const float *grads;        /* [B T, packed_elems] */
    const int32_t *begins;     /* [B, T] where documents begin, or NULL */
    attention_dropout masks;   /* counter (on the host) NULL: nothing is dropped */
};
typedef struct attention_case attention_case;

/* Documents of 1 to `longest` tokens, drawn from `seed`; mem_free frees them. */
int32_t *truth_documents(uint64_t batch, uint64_t tokens, uint64_t longest, uint64_t seed);

/* Fails the cmocka test, saying where, unless output, lse and dQ of query row `row` of a head are
 * right. */
void truth_check_query(const attention_case *self, uint64_t batch, uint64_t head, uint64_t row);

/* The same for dK and dV of key row `row`. Takes the kernels' output and lse as given. */
void truth_check_key(const attention_case *self, uint64_t batch, uint64_t kv_head, uint64_t row);

#endif
