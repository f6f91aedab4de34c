/* A training step as data: every transfer, every computation, every buffer with its address.
 *
 * A program is compiled before the run (src/plan), checked here (program_check), and then read by
 * two readers: the simulator predicts when each op starts and ends, the executor (swap/executor.h)
 * runs it. A run decides only when each op starts, and which ops are skipped: those of an update
 * after an overflow (if_applied), of a commit that is not due (if_commits), and of experts that no
 * token chose (HITS).
 *
 * The parts of a model, and its state:
 *
 *   unit     parameters that are fetched and released together: the embedding, a block, the head,
 *            or a part of one that is too large. Experts and adapters are units of their own
 *   stage    one step of the forward order: the embedding, a block, the head. The block of a
 *            mixture is two stages
 *   pass     what a stage does, forward, recomputation or backward, while the params of one or two
 *            units are on the device. It runs for each micro-batch. A stage in parts has several
 *   boundary the activation that a stage gets from the stage before it. It is kept from the forward
 *            of the stage to its backward, which first recomputes what is inside the stage, unless
 *            that is kept, too (ROLE_SAVED)
 *   params   the working copy of a unit's weights, which the kernels read
 *   tile     a slice of a unit's optimizer state: master weights and moments (base/tile.h)
 *   shard    the slice of a unit that belongs to one of several ranks (base/shard.h)
 *
 * The parts of a program:
 *
 *   op       one piece of work on one lane: what kind, for which unit, on which buffers
 *   lane     a FIFO of work with one owner; ops of a lane are issued in program order
 *   buffer   a piece of an arena with its offset: a home (where a state lies between steps, live
 *            all the time) or a transient (live from its first writer to its last reader). A
 *            carried transient is also live from the start of its program, or to the end of it
 *   arena    a tier's memory with a hard budget: device, host, and the nvme slabs' address space
 *
 * A step of two blocks, 0 and 1, without embedding and head. Optimizer state rests on nvme, params
 * and gradients on the host, and the update runs in the next forward. Time goes from left to right:
 *
 *   read     O0 O1 .  .  .  .  .  .  .  .    O0: a tile of block 0's optimizer state, and so on
 *   update   .  U0 U1 .  .  .  .  .  .  .    with the last step's gradients; new params go home
 *   write    .  .  O0 O1 .  .  .  .  .  .    the tiles go home
 *   h2d      .  .  P0 P1 .  P0 .  .  .  .    params; those of block 0 again for its backward
 *   compute  .  .  .  F0 F1 B1 C1 B0 C0 N    forward, backward with its recomputation, close the
 *                                            gradient; global norm
 *   d2h      .  .  .  .  .  .  .  G1 .  G0   closed gradients go home
 *
 * To close a gradient is to round its fp32 sum over the micro-batches to the dtype in which it is
 * kept, and to add up its squares for the norm.
 *
 * ORDERING. Ops are stored in issue order, which is a topological order of all dependencies,
 * including those from the reuse of memory: every dependency of op i has an index below i. An op
 * starts when its dependencies are complete and the ops before it on its lane have been issued. The
 * lanes `read` and `write` keep many requests in flight, which complete in any order. The other
 * lanes are chains: an op completes before the next one starts. If reads and writes compete for the
 * drives, the plan decides which goes first (op.behind). Offsets are static and only timing is
 * dynamic, so no timing corrupts memory. And since dependencies and op.behind point backward only,
 * nothing deadlocks.
 *
 * HITS. A unit of experts (of a mixture) is hit if some token chose one of its experts. Hits are
 * data: one byte per unit, in a home in host memory. The forward of a router writes those of its
 * block (ROLE_HITS), and an op that reads a byte depends on it like on any other:
 *   - a read, an h2d or an all-gather is skipped if the byte is 0;
 *   - a pass of the compute lane runs in any case, but reads no params of the unit if it is 0.
 * An all-gather needs all ranks, and so do rows that go to experts of other ranks, so the byte must
 * be the same on all of them: OP_UNITE_HITS makes a unit hit on all ranks if it is hit on one.
 *
 * EXPERTS OF OTHER RANKS. Where each rank owns whole experts (plan_job.is_owned), tokens travel and
 * params do not. For each micro-batch a pass of such experts is five ops:
 *
 *   compute   STEP_SEND                STEP_EXPERTS              STEP_COMBINE
 *   comm               OP_DISPATCH                   OP_RETURN
 *
 *   STEP_SEND      -> SENT
 *   STEP_EXPERTS   PARAMS, RECEIVED -> RECEIVED; in a backward GRADS += too
 *   STEP_COMBINE   SENT -> what the pass writes
 *
 * The buffers SENT and RECEIVED have room for the worst case. How much of them is used depends on
 * what the router chose. The run keeps a table of that for each micro-batch, on the host. All
 * passes use the same tables, since a pass sends only after the one before it has combined its
 * results.
 *
 * LENT GRADIENTS. Gradients may stay in the memory of the user's own program, if that computes the
 * model (a module):
 *
 *   OP_BACKWARD   writes the addresses of its unit's gradients to LENT, in place of GRADS
 *   OP_UPDATE     reads the gradients there, in place of SOURCE; writes NORM_SUMS of its tile
 *
 * LENT is one half of a home. Backwards that lend take the halves in turn, and each waits for the
 * updates that still read its half. So at most two units lend at a time.
 *
 * Pure data: built by one thread, then read-only and shared. */
#ifndef SLUICE_SWAP_PROGRAM_H
#define SLUICE_SWAP_PROGRAM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/words.h"

enum {
    PROGRAM_NONE = 0xffffffff, /* no unit, no buffer, no op */
    OP_OPERANDS_MAX = 14,
};

enum program_kind {
    PROGRAM_INIT,  /* fills master weights and zero moments, makes the working copies */
    PROGRAM_FIRST, /* a step without a pending update from the step before */
    /* a step; with update in_next_forward it first applies the update of the step before */
    PROGRAM_STEADY,
    PROGRAM_FLUSH, /* pending updates only; empty if updates are never pending */
    PROGRAM_EVAL,  /* forward only: loss of one step's worth of micro-batches */
    PROGRAM_SAVE,  /* only a commit: state homed in memory goes to the slab, then OP_COMMIT */
    PROGRAM_LOAD,  /* state from the slab to memory, working copies from the master weights */
    PROGRAM_KIND_COUNT
};

enum lane_kind {
    LANE_READ,    /* nvme -> host */
    LANE_WRITE,   /* host -> nvme */
    LANE_H2D,     /* host -> device */
    LANE_D2H,     /* device -> host */
    LANE_COMM,    /* collectives between ranks */
    LANE_COMPUTE, /* forward, backward, norm; on a GPU also updates of state homed there */
    LANE_UPDATE,  /* the optimizer, initial values, working copies */
    LANE_COMMIT,  /* sync of the slabs and the manifest */
    LANE_COUNT
};

enum op_kind {
    OP_READ,  /* copy operand SOURCE (nvme) to TARGET (host) */
    OP_WRITE, /* SOURCE (host) to TARGET (nvme) */
    OP_H2D,   /* SOURCE (host) to TARGET (device) */
    OP_D2H,   /* SOURCE (device) to TARGET (host) */
    /* SOURCE (own shard) of each rank to TARGET (whole: all shards by rank), device */
    OP_ALL_GATHER,
    /* SOURCE (whole, fp32), summed over ranks, to TARGET (own shard, fp32), device; WORKSPACE if
     * the backend needs one */
    OP_REDUCE_SCATTER,
    /* stage: HITS of each rank, united over ranks, to HITS of all; WORKSPACE (device) */
    OP_UNITE_HITS,
    OP_FORWARD,   /* stage, pass, micro-batch: PARAMS, INPUT -> OUTPUT (the head: LOSSES) */
    OP_RECOMPUTE, /* stage, pass, micro-batch: PARAMS, INPUT -> SAVED, for a stage cut in parts */
    /* stage, pass, micro-batch: recompute, then INPUT_GRAD and GRADS +=. The head's op does
     * forward, loss and backward in one. */
    OP_BACKWARD,
    OP_GRAD_ADD,   /* unit, tile: SOURCE, TARGET (fp32 sums of the own shard) -> TARGET */
    OP_GRAD_CLOSE, /* unit, tile: GRADS (fp32 accumulator) -> TARGET (gradient dtype), norm sums */
    /* Part `tile` of the norm of several ranks, if one gather would take too much memory. NORM_SUMS
     * has the gathered sums of some units rank by rank; they go to TARGET block by block. The
     * program's OP_NORM does the last part and makes the norm of all parts. */
    OP_NORM_PART,
    /* Global norm of all closed gradients -> the step's clip factor and skip flag. With several
     * ranks the gathered sums first go from NORM_SUMS to TARGET, as in OP_NORM_PART. */
    OP_NORM,
    /* unit, tile: STATE, SOURCE (gradient) -> STATE, TARGET (working copy). Reads TARGET too
     * with a split master (base/tile.h). Reads INPUT too (the unit's directions) if Muon updates
     * its matrices. With LENT in place of SOURCE it writes NORM_SUMS too. */
    OP_UPDATE,
    OP_INIT,         /* unit, tile: initial STATE and TARGET (working copy) */
    OP_WORKING_COPY, /* unit, tile: STATE -> TARGET (working copy) */
    /* Makes the optimizer state and all is_committed buffers on the slab durable: sync, then
     * manifest. It has no operands; a dependency joins it with every write of such state. */
    OP_COMMIT,
    OP_DIRECTION,     /* unit, tile: STATE, SOURCE (gradient) -> TARGET (fp32: Muon's direction) */
    OP_ORTHOGONALIZE, /* unit: TARGET (direction of the whole unit) in place, with WORKSPACE */
    /* stage, pass, micro-batch: an all-to-all of rows for experts that other ranks own. SOURCE (the
     * rows for each rank) -> TARGET (the rows of each rank), device (EXPERTS OF OTHER RANKS) */
    OP_DISPATCH,
    /* The same back: SOURCE (results for each rank) -> TARGET (those of the rows sent before) */
    OP_RETURN,
    OP_KIND_COUNT
};

enum operand_role {
    ROLE_SOURCE,
    ROLE_TARGET,
    ROLE_PARAMS0, /* working copy of the pass's own unit, whole, device */
    ROLE_PARAMS1, /* of the second unit of a pass (a tied embedding at the head) */
    ROLE_GRADS0,  /* fp32 accumulator of the pass's own unit, whole, device */
    ROLE_GRADS1,
    ROLE_INPUT,       /* boundary activation into the stage [B,T,C] */
    ROLE_OUTPUT,      /* boundary activation out of the stage */
    ROLE_INPUT_GRAD,  /* gradient of INPUT: written by the stage's backward */
    ROLE_OUTPUT_GRAD, /* gradient of OUTPUT: read by it */
    /* Inner activations: kept from forward to backward instead of recomputed, or carried from pass
     * to pass of a stage cut in parts. */
    ROLE_SAVED,
    ROLE_STATE,     /* a tile of optimizer state (base/tile.h) */
    ROLE_TOKENS,    /* token ids of the whole step, int32 */
    ROLE_WORKSPACE, /* scratch of the compute lane, device */
    ROLE_LOSSES,    /* fp32 loss per token; of a router, sums over the tokens of a micro-batch */
    ROLE_NORM_SUMS, /* fp64 block sums of all units */
    ROLE_CONSTANTS, /* tables of the model, such as rotary angles */
    ROLE_CACHE,     /* generation: keys and values of all blocks for the positions so far */
    ROLE_HITS,      /* one byte per unit of experts, host: not 0 if the unit is hit (HITS) */
    ROLE_EXPANDED,  /* packed params in the working dtype, device: the first micro-batch writes */
    ROLE_SENT,      /* rows for the ranks that own their experts; after OP_RETURN: the results */
    ROLE_RECEIVED,  /* rows of all ranks for the experts of this one; then their results */
    ROLE_LENT,      /* addresses of gradients that stay where they are, device (LENT GRADIENTS) */
    ROLE_COUNT
};

/* A byte range of a buffer that an op uses. */
struct operand {
    uint32_t buffer_idx;
    uint8_t role;   /* enum operand_role */
    uint8_t access; /* enum operand_access */
    uint16_t reserved;
    uint64_t offset_bytes; /* from the start of the buffer */
    uint64_t size_bytes;
};
typedef struct operand operand;

/* An op's needs of the machine's shared resources. The simulator divides them by the resources'
 * rates. */
struct op_demand {
    uint64_t drive_read_bytes, drive_write_bytes;
    uint64_t h2d_bytes, d2h_bytes; /* host-device link, each direction */
    uint64_t comm_bytes;           /* sent by this rank to other ranks */
    uint64_t dram_bytes;
    uint64_t device_bytes; /* of a GPU's own memory; the CPU backend has dram_bytes instead */
    double device_flops;   /* matrix products and attention on the device */
    double device_seconds; /* of the whole device; if known, it replaces device_flops */
    /* of CPU cores that work or wait for memory, summed; without those for device_flops */
    double core_seconds;
    double wait_seconds; /* during which no resource is busy: the drives' sync */
    /* The share of steps in which the op is expected to run, because its unit is hit; 0 acts as 1.
     * The other members are its needs in such a step. */
    double share;
};
typedef struct op_demand op_demand;

struct op {
    uint8_t kind; /* enum op_kind */
    uint8_t lane; /* enum lane_kind */
    uint8_t operand_count;
    /* OP_BACKWARD: a bit for each accumulator that this op begins and does not read: bit 0 for
     * GRADS0, bit 1 for GRADS1. */
    uint8_t fresh_grads;
    uint8_t if_applied; /* 1: skipped if the update is skipped */
    uint8_t if_commits; /* 1: skipped if the run of the program does not commit */
    uint8_t step;       /* enum op_step; see EXPERTS OF OTHER RANKS for its operands */
    uint8_t reserved;
    uint32_t unit;        /* the unit served, or PROGRAM_NONE */
    uint32_t stage;       /* place in the forward order, or PROGRAM_NONE */
    uint32_t pass;        /* its number in this phase of the stage; 0 unless units are cut */
    uint32_t micro_batch; /* or PROGRAM_NONE */
    uint32_t tile;        /* or PROGRAM_NONE; of a norm with parts: the part */
    uint32_t state_kind;  /* transfers: enum state_kind of the moved bytes, or PROGRAM_NONE */
    uint32_t dep_begin;   /* dependencies: program.deps[dep_begin .. dep_begin + dep_count) */
    uint32_t dep_count;
    /* Reads and writes: an earlier op of the other direction that goes to the drives first, or
     * PROGRAM_NONE. It matters for speed only: this op may start as soon as all of that op is with
     * the drives, and nothing depends on which of them was first. */
    uint32_t behind;
    /* Per-tile ops, and transfers of a tile of optimizer state, gradients or params: the first
     * element within the unit. For partitioned state it is within the rank's shard of the unit,
     * since all ranks have the same program. Other ops: both 0. */
    uint64_t elem_begin;
    uint64_t elem_count;
    op_demand demand;
    uint64_t predicted_start_ns, predicted_end_ns; /* from the start of the program */
    operand operands[OP_OPERANDS_MAX];
};
typedef struct op op;

/* Transients whose content passes from one program to the next, at the same offset in both. */
enum {
    CARRIED_IN = 1,  /* the program before has left the content there */
    CARRIED_OUT = 2, /* the content must be there at the end, for the program after */
    /* Both: no op uses the buffer. Its content lies there all the time. */
    CARRIED_THROUGH = CARRIED_IN | CARRIED_OUT,
};

struct buffer {
    uint8_t arena;      /* enum tier */
    uint8_t is_home;    /* live all the time; same offset in all programs of a set */
    uint8_t state_kind; /* enum state_kind, or STATE_KIND_COUNT (scratch, tokens, ...) */
    /* 1: params on nvme that commits make durable like optimizer state (half of a split master). */
    uint8_t is_committed;
    uint8_t carried; /* 0, or CARRIED_... */
    uint32_t tile;   /* carried: the tile of the unit that it holds */
    uint32_t unit;   /* or PROGRAM_NONE */
    uint64_t offset_bytes, size_bytes;
    /* Transient: index of its first writer. Homes, and what is only read: PROGRAM_NONE; a gradient
     * that is carried in needs no write in this program. */
    uint32_t producer;
    uint32_t last_reader; /* transient: index of the last op that uses it; homes: PROGRAM_NONE */
};
typedef struct buffer buffer;

struct program {
    enum program_kind kind;
    uint32_t world; /* number of ranks, for the sizes of collectives; 0 acts as 1 */
    uint64_t op_count, dep_count, buffer_count;
    op *ops;         /* [op_count] in issue order */
    uint32_t *deps;  /* [dep_count] op indices */
    buffer *buffers; /* [buffer_count]; homes first, the same in every program of a set */
    uint64_t home_count;
    uint64_t budget_bytes[TIER_COUNT];
    uint64_t peak_bytes[TIER_COUNT];   /* end of the highest byte that is ever live */
    uint32_t peak_buffer[TIER_COUNT];  /* the buffer that ends there, or PROGRAM_NONE */
    uint64_t predicted_ns;             /* length of the program */
    uint64_t lane_busy_ns[LANE_COUNT]; /* predicted */
    uint64_t lane_bytes[LANE_COUNT];   /* expected to be moved by the lane's ops */
};
typedef struct program program;

/* Frees the program's arrays and zeroes it. */
void program_fini(program *prog);

/* The operand of `item` with this role, or NULL. */
const operand *op_operand(const op *item, enum operand_role role);

/* True if op `op_idx` has op `dep_idx` among its dependencies. */
bool op_depends_on(const program *prog, uint32_t op_idx, uint32_t dep_idx);

/* Bytes that the op moves: the size of its target for copies, demand.comm_bytes (what this rank
 * sends) for collectives, 0 for others. */
uint64_t op_moved_bytes(const op *item);

/* Proves the program safe under any timing. It relies on what the lanes guarantee: an op waits for
 * its dependencies, and on every lane except read and write also for the op before it. It proves
 * that
 *
 * for each op and buffer by itself
 *  - every operand lies in its buffer and every buffer in its arena's budget; lane, arenas and
 *    operands match the op kind; copies move equal sizes; no role appears twice in an op;
 *  - dependencies point backward;
 *  - reads and writes of nvme are multiples of 4 KiB on both sides; the residues of tiles,
 *    gradients and params (base/tile.h) hold in device and host memory (arenas start on 2 MiB);
 *  - an op that uses optimizer state or an is_committed buffer on nvme has its state_kind and its
 *    elements;
 *  - a TARGET of all-gather is `world` times its SOURCE, a SOURCE of reduce-scatter `world` times
 *    its TARGET. Each rank has whole blocks of SHARD_ELEMS_STEP elements (without state_kind, for
 *    the norm's sums, of fp64). Operands of a collective do not overlap. Collectives have no
 *    condition except if_applied, and are all on one lane, in one order;
 *  - an OP_DISPATCH reads SOURCE and writes TARGET, an OP_RETURN reads SOURCE and updates TARGET.
 *    Neither has a condition, and only passes have SENT, RECEIVED and steps;
 *  - an OP_GRAD_ADD reads SOURCE and adds it to TARGET, which is as large;
 *  - ROLE_HITS is in one home in host memory. Forward ops and OP_UNITE_HITS write it, and ops that
 *    read it read one byte. No other op has it than reads, copies to the device, all-gathers, and
 *    passes. The WORKSPACE of an OP_UNITE_HITS has room for the hits of one rank, and of all;
 *  - ROLE_LENT is half of one home in device memory. Backwards write it, and updates read it, after
 *    a backward of their unit wrote it last; they have NORM_SUMS, and no SOURCE. All other updates
 *    have SOURCE. LENT and NORM_SUMS of an update are in device memory wherever the others are;
 *  - with several ranks an OP_NORM and an OP_NORM_PART have NORM_SUMS and TARGET of equal size,
 *    with equally many sums of each rank. Parts are numbered from 0, an OP_NORM is the last one,
 *    and a single rank has no parts;
 *
 * for ops together
 *  - every read of a transient follows, through dependencies, a write of the same bytes (scratch,
 *    and an accumulator that the op begins, are not read);
 *  - two ops that touch the same bytes of a buffer are ordered if one of them writes;
 *  - a transient that a conditional op (if_applied, if_commits) writes is read only by ops of the
 *    same condition;
 *  - an op that reads hits comes after a write of them, an all-gather after an OP_UNITE_HITS of
 *    them; and what a transfer that reads hits writes to a transient is read only by ops that read
 *    the same hits, of the same write;
 *  - of an OP_COMMIT and an OP_WRITE of optimizer state or of an is_committed buffer to nvme, one
 *    depends on the other directly; an OP_COMMIT that depends on a write with if_commits has
 *    if_commits too;
 *  - homes overlap nothing. Two transients that overlap in an arena are never live together: all
 *    uses of one are ordered before all uses of the other;
 *  - a carried buffer holds one tile's optimizer state or gradient in host memory, and its ops are
 *    of that tile. One that is carried in is there before all other transients, without a write.
 *    One that is carried out is written once, by an op without condition, and nothing takes its
 *    bytes. If it was read from a home, nothing writes those bytes of the home after the read. A
 *    tile that is carried in, or through, is not written at its home before its first use;
 *  - producers, last readers and peaks are correct, and every transient is used, unless it is
 *    carried through.
 *
 * Time and scratch memory grow about linearly with ops, dependencies and operands (100 000 ops: a
 * fraction of a second). Returns 0, ERR_INTERNAL with the ops, buffers and bytes named, or
 * -ENOMEM. */
int program_check(const program *prog) MUST_CHECK;

/* Proves that `to` may run after `from`: what is carried out of `from` is what is carried into
 * `to`, buffer by buffer, with the same place, size, unit, tile, elements and state. Both programs
 * have passed program_check. 0, ERR_INTERNAL with the buffer named, or -ENOMEM. */
int program_check_seam(const program *from, const program *to) MUST_CHECK;

/* Bytes of WORKSPACE that an OP_UNITE_HITS of `unit_count` units needs: hits of the rank, then of
 * `world` ranks, each rounded up to 8. */
uint64_t program_united_bytes(uint64_t unit_count, uint64_t world);

/* A 64-bit hash of all ops, dependencies, operands and offsets: equal on all ranks, or they must
 * not start. Element ranges are part of it. Demands, predictions and budgets are not. */
uint64_t program_hash(const program *prog);

const char *program_kind_name(enum program_kind kind);
const char *lane_kind_name(enum lane_kind kind); /* "read", "write", "h2d", ... */
const char *op_kind_name(enum op_kind kind);     /* "forward", "update", ... */

#endif
