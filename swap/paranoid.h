/* Paranoid mode: every op works on copies of its operands, at addresses that it has not seen before.
 *
 * What an op declares in the program is what program_check proves safe, what the executor orders and
 * what placement invariance rests on; nothing else would notice an op that touches more. This wrapper
 * stands between a worker and its callback and gives each operand fresh memory for each call:
 *
 *   scratch  .. guard | operand 0 | guard .. guard | operand 1 | guard ..   of NaN-filled surroundings
 *               ^ rotates by 64 KiB from call to call; operand k has its address's residue modulo
 *                 TILE_PERIOD_BYTES, so alignment and skew are those of the real address
 *
 *   before   read: copied in; written only: 0xff bytes, which are NaN as fp64, fp32, fp16 and bf16
 *   run      the inner callback, on a shadow of the program whose buffers lie in the scratch
 *   after    read: must be as it was; guards: must be as they were; written: copied back; workspace: its
 *            content must not matter, so the real one becomes 0xff; then the scratch becomes 0xff, for
 *            whoever keeps an address
 *
 * So an op that reads what it did not declare gets NaN, a write that was not declared is
 * ERR_INTERNAL with op, operand and byte named, and a result left unwritten is NaN downstream. Bytes
 * that several operands of an op cover count as read where one reads and as written where one writes;
 * those between two operands of one buffer are guards. Scratch (ROLE_WORKSPACE) and an accumulator that
 * the op begins (op.first_micro_batch) are written only, whatever their access says.
 *
 * Together with executor_config.paranoid (what is released, and all that is no home at the start of a
 * program, becomes 0xff) a correct program gives the same bits as without. Use, one object per worker:
 *
 *   paranoid_config checked = {.programs = programs, .program_count = n,
 *                              .serves = {[LANE_COMPUTE] = true, [LANE_UPDATE] = true},
 *                              .arena_base = {[TIER_DEVICE] = device, [TIER_HOST] = host},
 *                              .run = run_op, .user = engine};
 *   TRY(paranoid_create(&checked, &self->checked_cores));
 *   lane_worker_config cores = {.run = paranoid_run, .user = self->checked_cores, ...};
 *   executor_config config = {.paranoid = true, .arena_base = {... as above}, ...};
 *
 * The inner callback must compute addresses as lane_operand_address (swap/lane.h) does, as integers and
 * from `prog` as it was passed: a shadow buffer's offset leads from the arena to the scratch and wraps
 * where that lies below. All else of the shadow program is the real one's; `item` lies in its ops.
 *
 * The scratch comes from base/mem at creation: the largest sum of operands of one op served, plus guards
 * and less than 1 MiB for rotation. It is part of no budget: the mode is for tests, and costs about three
 * copies of everything that an op touches. */
#ifndef SLUICE_SWAP_PARANOID_H
#define SLUICE_SWAP_PARANOID_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "swap/program.h"

struct paranoid_config {
    const program *const *programs; /* all that will be run; only looked at by paranoid_create */
    uint32_t program_count;
    bool serves[LANE_COUNT]; /* lanes whose ops will come here */
    unsigned char
        *arena_base[TIER_COUNT]; /* borrowed. An op with an operand in an arena that has none
                                               (nvme, as a rule) is run as it is, unchecked */
    int (*run)(void *user, const program *prog, const op *item);
    void *user;
};
typedef struct paranoid_config paranoid_config;

/* Owner thread: the worker that calls paranoid_run; one op at a time. */
typedef struct paranoid paranoid;

/* -EINVAL without a callback, -EOVERFLOW, -ENOMEM. */
int paranoid_create(const paranoid_config *config, paranoid **out) MUST_CHECK;
void paranoid_destroy(paranoid *self); /* NULL is allowed */

/* Runs one op; fits lane_worker_config.run, with a paranoid as `user`. Allocates nothing. Returns what the
 * inner callback returns (a failed op leaves its operands as they were), or ERR_INTERNAL where the op
 * did what it had not declared, or was not among the programs of paranoid_create. */
int paranoid_run(void *self, const program *prog, const op *item) MUST_CHECK;

#endif
