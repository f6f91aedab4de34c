/* Shared by the files of the optimizer kernels (Adam, Lion, Adagrad): the precomputed scalars and
 * the table of variants.
 *
 * A variant is the same arithmetic compiled for one instruction set. Its functions work on a range
 * of elements in the calling thread; adam.c divides the work among threads. Names that begin with
 * adami_ are shared by the files of this folder, by the optimizers of the CUDA backend, which give
 * the same bits, and by those of the reference backend. Valid as C; the structs are also valid as
 * C++. */
#ifndef SLUICE_KERNELS_CPU_OPTIMIZER_ADAM_INTERNAL_H
#define SLUICE_KERNELS_CPU_OPTIMIZER_ADAM_INTERNAL_H

#ifndef __cplusplus
#include <math.h>
#endif

#include "base/tile.h"
#include "kernels/ops.h"

enum {
    ADAMI_BLOCK_ELEMS = SHARD_ELEMS_STEP, /* unit of threading, and of one sum of squares */
    ADAMI_SUM_LANES = 16,                 /* partial sums of a block, see adam_variant.close */
};

/* A result that is NaN is stored with these bits, because hardware differs in the sign and payload
 * of a NaN. */
#define ADAMI_QUIET_NAN_BITS 0x7fc00000u

/* The scalars of a step in the form that the loops use: all fp32, each computed by correctly
 * rounded operations. */
struct adami_scalars {
    float grad_scale;
    float beta1, one_minus_beta1; /* 1 - beta1 */
    float beta2, one_minus_beta2; /* 1 - beta2 */
    float l2;                     /* weight_decay as an L2 term; 0: no such term */
    float decay;                  /* fma(-learning_rate, weight_decay, 1) if decoupled, else 1 */
    float correction2;            /* 1 / bias_correction2_sqrt */
    float epsilon;
    float minus_step; /* Adam: -(learning_rate / bias_correction1); others: -learning_rate */
};
typedef struct adami_scalars adami_scalars;

struct adami_rounding; /* adam_state_internal.h */

/* The operands of the loops of all optimizers. */
struct adami_work {
    uint64_t count;    /* elements of the call */
    float *master;     /* [count] */
    float *state[2];   /* [count] each: Adam's m and v, Lion's m, Adagrad's v */
    const void *grads; /* [count] grad_type */
    void *params;      /* [count] param_type */
    enum dtype grad_type, param_type;
    adami_scalars scalars;
    /* Only for packed state: `packed` replaces the streams above, and `rounding` holds for all
     * elements of the tile. */
    const update_args *packed;
    const struct adami_rounding *rounding;
};
typedef struct adami_work adami_work;

#ifndef __cplusplus
/* Orders the non-temporal stores of this thread before whatever it stores next. */
static inline void adami_stream_fence(void)
{
#ifdef __x86_64__
    __builtin_ia32_sfence();
#endif
}

static inline adami_scalars adami_prepare(const update_args *args)
{
    const update_scalars *s = args->scalars;
    bool is_adam = args->rule == UPDATE_ADAM;
    bool is_decoupled = is_adam ? s->decoupled : args->rule == UPDATE_LION;
    return (adami_scalars){
        .grad_scale = s->grad_scale,
        .beta1 = s->beta1,
        .one_minus_beta1 = 1.0f - s->beta1,
        .beta2 = s->beta2,
        .one_minus_beta2 = 1.0f - s->beta2,
        .l2 = is_decoupled ? 0.0f : s->weight_decay,
        .decay = is_decoupled ? fmaf(-s->learning_rate, s->weight_decay, 1.0f) : 1.0f,
        .correction2 = is_adam ? 1.0f / s->bias_correction2_sqrt : 1.0f,
        .epsilon = s->epsilon,
        .minus_step = -(is_adam ? s->learning_rate / s->bias_correction1 : s->learning_rate),
    };
}

/* The work of a call on fp32 state. */
static inline adami_work adami_work_of(const update_args *args)
{
    return (adami_work){
        .count = args->count,
        .master = args->master,
        .state = {args->rule == UPDATE_ADAGRAD ? args->v : args->m,
                  args->rule == UPDATE_ADAM ? args->v : NULL},
        .grads = args->grads,
        .params = args->params,
        .grad_type = args->grad_type,
        .param_type = args->param_type,
        .scalars = adami_prepare(args),
    };
}
#endif

/* Works on elements [begin, end) of a tile. For packed state, begin is a multiple of
 * ADAMI_BLOCK_ELEMS. */
typedef void adami_loop(const adami_work *work, uint64_t begin, uint64_t end);

/* The table of the loops: a column (struct) for each instruction set, a row (member) for each
 * optimizer and format of its state.
 *
 *   update         by rule, on fp32 state
 *   update_packed  Adam on packed state: bf16 or 8-bit moments, a split master (adam_state.c)
 *   copy           no optimizer: params = working copy of master
 *
 * The functions may use non-temporal stores (on x86), which other threads may see late. So a thread
 * calls adami_stream_fence after its last call on a range. */
struct adam_variant {
    const char *name; /* "reference", "avx2", "avx512", "neon" */

    /* loops over elements [begin, end) of a tile */
    adami_loop *update[UPDATE_RULE_COUNT]; /* by enum update_rule */
    adami_loop *update_packed;
    adami_loop *copy;

    /* Rounds block `block_idx` of 4096 elements and returns its partial sums of squares: lane j is
     * the sum over the elements j, j + 16, j + 32, ... in that order. */
    void (*close)(const grad_close_args *args, uint64_t block_idx, double lanes[ADAMI_SUM_LANES]);
};

/* adam.c. Runs `loop` over [0, count) in whole blocks of ADAMI_BLOCK_ELEMS, which the threads of
 * the context divide among themselves. */
void adami_over_ranges(const kernel_context *context, uint64_t count, adami_loop *loop,
                       const adami_work *work);

/* adam_state.c. An update of packed state. */
int adami_update_packed(const kernel_context *context, const update_args *args) MUST_CHECK;

extern const struct adam_variant adami_reference;
extern const struct adam_variant adami_avx2;
extern const struct adam_variant adami_avx512;
extern const struct adam_variant adami_neon;

#endif
