/* The arguments of the optimizer's ops: closing gradients, updates, Muon. Part of
 * kernels/ops.h, whose rules hold here too; include that file. */
#ifndef SLUICE_KERNELS_OPS_UPDATE_H
#define SLUICE_KERNELS_OPS_UPDATE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"

/* Closes a gradient: rounds the fp32 accumulator to the gradient dtype and, in the same pass, sums
 * the squares for the norm. */
struct grad_close_args {
    uint64_t count;           /* elements, a multiple of SHARD_ELEMS_STEP (4096) */
    const float *accumulator; /* [count] */
    /* [count] grad_type, rounded to nearest even. If grad_type is fp32 it may be the accumulator,
     * to which nothing is written then. */
    void *grads;
    enum dtype grad_type;
    /* [count / 4096]: each is the sum of squares of a block of 4096 rounded values, in a fixed
     * order. It is not finite if an element of the block is not finite. */
    double *block_sums;
};
typedef struct grad_close_args grad_close_args;

/* The rule by which an update changes a tile, with g = gradient * grad_scale. */
enum update_rule {
    /* Adam or AdamW (Loshchilov and Hutter 2019) */
    UPDATE_ADAM,
    /* Lion (Chen et al. 2023, algorithm 2, as in DeepSpeed's CPU Lion):
     *   c = beta1 m + (1 - beta1) g
     *   master = master (1 - lr wd) - lr sign(c)
     *   m = beta2 m + (1 - beta2) g
     * sign(0) is 0, as in the paper and in PyTorch. DeepSpeed's CPU loop copies the sign bit of 0
     * instead: there an element whose m and g are 0 moves by lr. */
    UPDATE_LION,
    /* Adagrad (Duchi et al. 2011, as in PyTorch):
     *   g = g + wd master;  v = v + g^2;  master = master - lr g / (sqrt(v) + eps)
     * DeepSpeed's CPU Adagrad is the same if wd is 0. If not, it adds the decay to the g that is
     * squared into v, but not to the g of the step. */
    UPDATE_ADAGRAD,
    UPDATE_RULE_COUNT
};

/* The scalars of one step. All tiles of a step use the same struct. */
struct update_scalars {
    float learning_rate, beta1, beta2, epsilon, weight_decay;
    /* The next three are for Adam only. */
    bool decoupled;         /* true: AdamW; false: Adam, with an L2 term added to the gradient */
    float bias_correction1; /* 1 - beta1^t; or 1 if bias correction is off */
    float bias_correction2_sqrt; /* sqrt(1 - beta2^t); or 1 if bias correction is off */
    float grad_scale; /* clip factor / loss scale; each gradient is first multiplied by it */
};
typedef struct update_scalars update_scalars;

/* One tile, updated in place. The streams should be skewed as base/tile.h describes.
 *
 * Packed state. Adam can keep streams in other formats than fp32. The arithmetic is the same on the
 * widened values; each stream is then stored in its format (base/tile.h):
 *   TILE_LOW16  the master is split: master = master_join(params[i], low[i]) is read and split
 *               again. Its bits are those of an fp32 master. params is read and written, and its
 *               type must be bf16.
 *   TILE_BF16   the moment is rounded to bf16 stochastically
 *   TILE_INT8   the moment is rounded stochastically to 8-bit codes in blocks of TILE_SCALE_ELEMS
 *
 * The random bits of an element depend only on rounding_key and on its number first_elem + i. Tile
 * size, thread count and backend do not change a bit. The two moments may have different formats. A
 * tile of zero bytes has zero moments. kernels/cpu/optimizer/adam_state.c has the exact
 * definitions.
 *
 * Returns ERR_INTERNAL if a stream has a format that it cannot have, if packed state is not Adam's,
 * or if first_elem is not a multiple of 4096. */
struct update_args {
    uint64_t count;
    /* [count] each, fp32 or in the formats of `streams`; read and written. Lion has no v, and
     * Adagrad has no m. */
    void *master, *m, *v;
    const void *grads; /* [count] grad_type */
    enum dtype grad_type;
    /* [count] param_type, written: bf16 by bf16_working_copy, fp16 to nearest even. params may lie
     * on grads if their elements have the same width, and on the master if param_type is fp32. */
    void *params;
    enum dtype param_type;
    const update_scalars *scalars;
    enum update_rule rule;
    /* Only packed state needs the rest. */
    uint32_t streams;      /* the streams code (base/tile.h); without formats: all are fp32 */
    uint64_t rounding_key; /* made from seed, step and unit */
    /* number of the tile's first element in the vector of its whole unit; a multiple of 4096 */
    uint64_t first_elem;
};
typedef struct update_args update_args;

/* Muon (Jordan et al. 2024; as torch.optim.Muon): the momentum of a matrix, made nearly orthogonal,
 * is its step. With g = gradient * grad_scale, momentum mu, and the learning rate r of the matrix's
 * shape, three ops in this order, of which the second needs the whole matrix:
 *   muon_direction   m' = mu m + (1 - mu) g;  d = nesterov ? mu m' + (1 - mu) g : m'
 *   orthogonalize    d = X after `steps` steps, from X = d / max(norm of d, 1e-7):
 *                      A = X X^T;  X = a X + (b A + c A A) X      (with X^T if there are more rows)
 *   muon             m = m';  master = master (1 - learning_rate weight_decay) - r d
 * The first and the last may run on any part of the matrix, tile by tile. The first changes no
 * state, so m' is computed twice, to the same bits. */
struct muon_scalars {
    float learning_rate, momentum, weight_decay;
    bool nesterov;
    float grad_scale;
};
typedef struct muon_scalars muon_scalars;

struct muon_args {
    uint64_t count;
    float *master, *m; /* [count] fp32; muon reads and writes them, muon_direction reads m only */
    const void *grads; /* [count] grad_type */
    enum dtype grad_type;
    float *direction; /* [count] fp32; muon_direction writes it, muon reads it */
    float rate;       /* r; only muon reads it */
    const muon_scalars *scalars;
};
typedef struct muon_args muon_args;

/* Sums are fp32 or better, and their order depends on the shape alone: neither the thread count nor
 * the address changes a bit. NaN and infinity propagate. */
struct orthogonalize_args {
    uint64_t rows, columns;
    float *matrix;  /* [rows, columns] fp32, contiguous, in place; aligned to whole elements only */
    uint32_t steps; /* 5 in the paper */
    void *scratch;  /* orthogonalize_scratch_bytes */
};
typedef struct orthogonalize_args orthogonalize_args;

/* a, b and c of the paper's iteration. */
#define ORTHOGONALIZE_A       3.4445
#define ORTHOGONALIZE_B       (-4.7750)
#define ORTHOGONALIZE_C       2.0315
#define ORTHOGONALIZE_EPSILON 1e-7

#endif
