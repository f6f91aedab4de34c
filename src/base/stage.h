/* A step's computations as numbers: the stages in the order of the forward, and their passes.
 * src/model makes them (model/model.h says how a model is cut into stages), src/setup adds what a
 * machine needs for them, and src/plan plans with them. All figures are of one micro-batch. */
#ifndef SLUICE_BASE_STAGE_H
#define SLUICE_BASE_STAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/words.h"

/* The work that each micro-batch does while the params of the pass's units are on the device.
 *
 * All passes of a phase run in order, for every micro-batch. A backward follows its own recompute,
 * or directly its forward if `saved` was kept. A buffer keeps its contents from the pass that
 * writes it until the last pass of the phase that uses it, also through passes that do not use it
 * (ACCESS_NONE). No pass reads a part of a buffer that no pass has written yet. */
struct pass {
    uint32_t units[2];
    uint32_t unit_count;
    bool reads_params[2];
    bool adds_grads[2]; /* never for a frozen unit */
    /* Bytes of the unit's accumulator that are filled with zeros if this pass is the first that
     * adds to it, and that its products write instead of adding. */
    uint64_t zeroed_bytes[2], written_bytes[2];
    /* The probability that a token chooses none of the unit's experts, if all choices are equally
     * likely. If no token of the micro-batches chose one, the unit is not hit, and the pass runs
     * without its params. 0: the params are always needed. */
    double miss;
    /* Expert parallelism: the pass's experts are owned by ranks, which exchange rows (OP_DISPATCH,
     * OP_RETURN). The sizes of the buffers of rows that a rank sends and receives, for the worst
     * case; 0: it exchanges nothing. */
    uint64_t sent_bytes, received_bytes;
    /* Bytes that a rank sends to others, there and back, if all choices are equally likely; and
     * bytes that the steps before and after the experts read and write. */
    uint64_t dispatched_bytes, returned_bytes, moved_bytes;
    /* True for the first pass of each layer of experts, forward and backward: the host waits there
     * for the router's choices. A pass that exchanges rows also waits for the numbers of rows that
     * came. */
    bool reads_back;
    /* A forward that finds out which units of its stage are hit: units [told_begin, told_begin +
     * told_count), in which those of its adapters lie too. 0: it finds out nothing. */
    uint32_t told_begin, told_count;
    /* enum operand_access each. `saved` is NONE in an uncut stage, where the caller decides whether
     * to keep it; the pass needs the memory all the same. */
    uint8_t input, output, output_grad, input_grad, saved;
    /* enum operand_access: of the head its losses, of a block with a router what its losses need
     * (model_call.totals). */
    uint8_t losses;
    /* Products and attention. The backward of an uncut stage includes stage.recompute_flops. */
    double flops;
    /* Time on the device alone, memory included, where the machine's kernels were measured: counts
     * in place of flops. 0: not known. */
    double seconds;
    /* The part of `seconds` in which gradients are copied, unless the pass lends them. */
    double copy_seconds;
    uint64_t dram_bytes; /* an estimate; model/shapes.c has the rules */
    uint64_t temp_bytes; /* scratch of this pass only */
    /* Room for the params of its packed units in the working dtype; 0: none is packed. The first
     * micro-batch that runs while they are on the device fills it, which takes the second figure in
     * bytes of memory traffic. The other micro-batches read it. */
    uint64_t expanded_bytes, expand_dram_bytes;
};

enum stage_kind { STAGE_EMBED, STAGE_BLOCK, STAGE_HEAD };

/* One step of the forward order. The first stage has no input and the last one, the head, no
 * output: boundary activations lie between neighbours. The head's BACKWARD does forward, loss and
 * backward, its FORWARD the losses alone. */
struct stage {
    enum stage_kind kind;
    /* The stage's own unit first; homes of its activations go by that unit. Cut: only its first
     * unit here; the passes name all. */
    uint32_t units[2];
    uint32_t unit_count;
    /* A phase has more than one pass, and `saved` goes from pass to pass. Otherwise only the one
     * backward pass uses it, and makes it itself unless it is kept. */
    bool is_cut;
    struct pass *passes[PHASE_COUNT];
    uint32_t pass_count[PHASE_COUNT]; /* uncut: 1, 0, 1; if it learns nothing: 1, 0, 0 */
    uint64_t saved_bytes;             /* inner activations that the backward needs */
    uint64_t selective_bytes;         /* the first of them, which KEPT_SELECTIVE keeps; cut: all */
    /* Uncut block: what the backward computes again with KEPT_NONE, which its pass includes; and
     * with KEPT_SELECTIVE, which needs no flops. Seconds where they are known. */
    double recompute_flops, recompute_seconds, selective_seconds;
    uint64_t recompute_dram_bytes, selective_dram_bytes;
};

#endif
