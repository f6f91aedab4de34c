/* A small program that is right; the tests of program_check break it. */
#ifndef SLUICE_TESTS_SMALL_STEP_H
#define SLUICE_TESTS_SMALL_STEP_H

#include "base/tile.h"
#include "tests/swap/swap_fixture.h"

/* Buffers of the hand-built program: homes first. */
enum {
    B_OPTIMIZER, /* nvme, two tiles */
    B_GRADS,     /* host */
    B_PARAMS,    /* host, two pieces */
    B_TILE0,     /* host transients from here: state of tile 0, then in its space of tile 1 */
    B_TILE1,
    B_WHOLE0, /* device: working copies of two units, one after the other in the same space */
    B_WHOLE1,
    B_OUTPUT, /* device: activation */
    B_ACCUMULATOR,
    B_CLOSED, /* device: gradient on its way to the host */
    B_SCRATCH,
};

enum { TILE = 8192, PIECE = 4096 };

/* A step in miniature: two tiles through one slot of host memory, two units through one of
 * device. */
static inline void build_step(program *out)
{
    builder b;
    builder_init(&b, PROGRAM_STEADY, 5 * 4096, 65536 + 8192 + 65536, 4 * TILE);
    builder_home(&b, TIER_NVME, TILE, 2 * TILE);
    builder_home(&b, TIER_HOST, TILE_RESIDUE_GRADS, PIECE);
    builder_home(&b, TIER_HOST, TILE_RESIDUE_PARAMS, 65536 + PIECE);
    builder_transient(&b, TIER_HOST, 0, TILE);
    builder_transient(&b, TIER_HOST, 0, TILE);
    builder_transient(&b, TIER_DEVICE, 0, PIECE);
    builder_transient(&b, TIER_DEVICE, 0, PIECE);
    builder_transient(&b, TIER_DEVICE, PIECE, 2048);
    builder_transient(&b, TIER_DEVICE, 2 * PIECE, PIECE);
    builder_transient(&b, TIER_DEVICE, 3 * PIECE, PIECE);
    builder_transient(&b, TIER_DEVICE, 4 * PIECE, 1024);

    builder_op(&b, OP_READ); /* 0: tile 0 */
    builder_use(&b, ROLE_SOURCE, ACCESS_READ, B_OPTIMIZER, 0, TILE);
    builder_use(&b, ROLE_TARGET, ACCESS_WRITE, B_TILE0, 0, TILE);
    builder_op(&b, OP_UPDATE); /* 1 */
    builder_use(&b, ROLE_STATE, ACCESS_UPDATE, B_TILE0, 0, TILE);
    builder_use(&b, ROLE_SOURCE, ACCESS_READ, B_GRADS, 0, PIECE);
    builder_use(&b, ROLE_TARGET, ACCESS_WRITE, B_PARAMS, 0, PIECE);
    builder_dep(&b, 0);
    builder_op(&b, OP_WRITE); /* 2 */
    builder_use(&b, ROLE_SOURCE, ACCESS_READ, B_TILE0, 0, TILE);
    builder_use(&b, ROLE_TARGET, ACCESS_WRITE, B_OPTIMIZER, 0, TILE);
    builder_dep(&b, 1);
    builder_op(&b, OP_H2D); /* 3 */
    builder_use(&b, ROLE_SOURCE, ACCESS_READ, B_PARAMS, 0, PIECE);
    builder_use(&b, ROLE_TARGET, ACCESS_WRITE, B_WHOLE0, 0, PIECE);
    builder_dep(&b, 1);
    builder_op(&b, OP_FORWARD); /* 4 */
    builder_use(&b, ROLE_PARAMS0, ACCESS_READ, B_WHOLE0, 0, PIECE);
    builder_use(&b, ROLE_OUTPUT, ACCESS_WRITE, B_OUTPUT, 0, 2048);
    builder_use(&b, ROLE_WORKSPACE, ACCESS_UPDATE, B_SCRATCH, 0, 1024);
    builder_dep(&b, 3);
    builder_op(&b, OP_BACKWARD); /* 5: zeroes the accumulator first */
    builder_use(&b, ROLE_PARAMS0, ACCESS_READ, B_WHOLE0, 0, PIECE);
    builder_use(&b, ROLE_OUTPUT_GRAD, ACCESS_READ, B_OUTPUT, 0, 2048);
    builder_use(&b, ROLE_GRADS0, ACCESS_UPDATE, B_ACCUMULATOR, 0, PIECE);
    builder_use(&b, ROLE_WORKSPACE, ACCESS_UPDATE, B_SCRATCH, 0, 1024);
    b.prog.ops[5].fresh_grads = 1;
    builder_op(&b, OP_GRAD_CLOSE); /* 6 */
    builder_use(&b, ROLE_GRADS0, ACCESS_READ, B_ACCUMULATOR, 0, PIECE);
    builder_use(&b, ROLE_TARGET, ACCESS_WRITE, B_CLOSED, 0, PIECE);
    builder_op(&b, OP_D2H); /* 7: over the gradient that op 1 read */
    builder_use(&b, ROLE_SOURCE, ACCESS_READ, B_CLOSED, 0, PIECE);
    builder_use(&b, ROLE_TARGET, ACCESS_WRITE, B_GRADS, 0, PIECE);
    builder_dep(&b, 6);
    builder_op(&b, OP_READ); /* 8: tile 1 in the space of tile 0 */
    builder_use(&b, ROLE_SOURCE, ACCESS_READ, B_OPTIMIZER, TILE, TILE);
    builder_use(&b, ROLE_TARGET, ACCESS_WRITE, B_TILE1, 0, TILE);
    builder_dep(&b, 2);
    builder_op(&b, OP_WORKING_COPY); /* 9 */
    builder_use(&b, ROLE_STATE, ACCESS_READ, B_TILE1, 0, TILE);
    builder_use(&b, ROLE_TARGET, ACCESS_WRITE, B_PARAMS, 65536, PIECE);
    builder_dep(&b, 8);
    builder_op(&b, OP_H2D); /* 10: unit 1 in the space of unit 0, whose last use is op 5 */
    builder_use(&b, ROLE_SOURCE, ACCESS_READ, B_PARAMS, 65536, PIECE);
    builder_use(&b, ROLE_TARGET, ACCESS_WRITE, B_WHOLE1, 0, PIECE);
    builder_dep(&b, 9);
    builder_dep(&b, 5);
    builder_op(&b, OP_FORWARD); /* 11 */
    builder_use(&b, ROLE_PARAMS0, ACCESS_READ, B_WHOLE1, 0, PIECE);
    builder_use(&b, ROLE_OUTPUT, ACCESS_WRITE, B_OUTPUT, 0, 2048);
    builder_dep(&b, 10);
    builder_finish(&b, out);
}

#endif
