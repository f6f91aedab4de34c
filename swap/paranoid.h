/* Paranoid mode: every op works on copies of its operands, at addresses that it has not seen
 * before.
 *
 * program_check proves an op safe by what it declares, the executor orders ops by that, and
 * placement invariance rests on it. Nothing else would notice an op that touches more. This wrapper
 * stands between a worker and its callback and gives each operand fresh memory for each call:
 *
 *   scratch  .. guard | operand 0 | guard .. guard | operand 1 | guard ..   NaN around all
 *               ^ moves by 64 KiB from call to call. Operand k keeps its address modulo
 *                 TILE_PERIOD_BYTES, so alignment and skew are those of the real address
 *
 *   before   read: copied in. Written only: 0xff bytes, which are NaN as fp64, fp32, fp16 and bf16
 *   run      the inner callback, on a shadow of the program whose buffers lie in the scratch
 *   after    read: must be unchanged. Guards: must be unchanged. Written: copied back. Workspace:
 *            its content must not matter, so the real one becomes 0xff. Then the scratch becomes
 *            0xff, in case somebody kept an address
 *
 * So an op that reads undeclared bytes gets NaN, an undeclared write is ERR_INTERNAL with op,
 * operand and byte named, and a result that was not written is NaN for its readers. Bytes that
 * several operands cover count as read if one of them reads, and as written if one writes. Bytes
 * between two operands of one buffer are guards. Workspace (ROLE_WORKSPACE) and an accumulator that
 * the op begins (op.fresh_grads) count as written only, whatever their access says.
 *
 * A correct program gives the same bits with this and executor_config.paranoid as without. Use one
 * object per worker:
 *
 *   paranoid_config checked = {.programs = programs, .program_count = n,
 *                              .serves = {[LANE_COMPUTE] = true, [LANE_UPDATE] = true},
 *                              .arena_base = {[TIER_DEVICE] = device, [TIER_HOST] = host},
 *                              .run = run_op, .user = engine};
 *   TRY(paranoid_create(&checked, &self->checked_cores));
 *   lane_worker_config cores = {.run = paranoid_run, .user = self->checked_cores, ...};
 *   executor_config config = {.paranoid = true, .arena_base = {... as above}, ...};
 *
 * The inner callback must compute addresses with lane_operand_address (swap/lane.h) from the `prog`
 * that it was given: a shadow buffer's offset leads from the arena to the scratch, and wraps if
 * that lies below. Everything else of the shadow program is the real one's; `item` lies in its ops.
 *
 * The scratch comes from base/mem at creation: the largest sum of operands of one op served, plus
 * guards and less than 1 MiB. It is part of no budget: the mode is for tests, and costs about three
 * copies of everything that an op touches. */
#ifndef SLUICE_SWAP_PARANOID_H
#define SLUICE_SWAP_PARANOID_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "swap/program.h"

struct paranoid_config {
    const program *const *programs; /* all that may run; read by paranoid_create only */
    uint32_t program_count;
    bool serves[LANE_COUNT]; /* the lanes whose ops will come here */
    /* Borrowed. An op with an operand in an arena without a base (usually nvme) runs unchecked. */
    unsigned char *arena_base[TIER_COUNT];
    int (*run)(void *user, const program *prog, const op *item);
    void *user;
};
typedef struct paranoid_config paranoid_config;

/* Owner thread: the worker that calls paranoid_run; one op at a time. */
typedef struct paranoid paranoid;

/* -EINVAL without a callback, -EOVERFLOW, -ENOMEM. */
int paranoid_create(const paranoid_config *config, paranoid **out) MUST_CHECK;
void paranoid_destroy(paranoid *self); /* NULL is allowed */

/* Runs one op; usable as lane_worker_config.run, with a paranoid as `user`. Allocates nothing.
 * Returns the result of the inner callback; a failed op leaves its operands unchanged. ERR_INTERNAL
 * if the op did what it had not declared, or was not among the programs of paranoid_create. */
int paranoid_run(void *self, const program *prog, const op *item) MUST_CHECK;

#endif
