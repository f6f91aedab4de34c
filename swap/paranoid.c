/* Paranoid mode: the copies for one worker (paranoid.h), and then what the executor overwrites
 * (executor.h). A worker's part runs one op at a time, on its worker's thread. Only creation
 * allocates.
 *
 *   lay_out ─► fill ─► inner run ─► check ─► bring_back ─► forget
 *
 *   span    the part of one buffer that an op uses, from its first to its last operand there. It is
 *           moved to the scratch as a whole, so operands keep their distances
 *   piece   bytes of a span that the same operands cover, or no operand (a gap, which is a
 * guard) */
#include "swap/paranoid.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"
#include "base/tile.h"
#include "swap/executor_internal.h"
#include "swap/program_internal.h"

enum {
    GUARD_BYTES = 4096,
    TRAP_BYTES = TILE_PERIOD_BYTES, /* buffers that the op does not use lead here */
    PLACES = 13,                    /* a prime, so addresses repeat late */
    POISON = 0xff,
    PIECES_MAX = 2 * OP_OPERANDS_MAX,
};

/* Like POISON this is a NaN of every type, but another one: a guard overwritten by POISON shows. */
enum { GUARD_EVEN = 0xfd, GUARD_ODD = 0xff };

enum piece_use {
    PIECE_GAP = 0,
    PIECE_READ = ACCESS_READ,
    PIECE_WRITE = ACCESS_WRITE,
    PIECE_UPDATE = ACCESS_UPDATE,
    PIECE_SCRATCH, /* written, and not needed afterwards */
};

static_assert(PIECE_SCRATCH == 4, "the uses of a piece that are accesses are combined as bits");

struct piece {
    uint64_t begin, end; /* bytes of the buffer */
    uint8_t use;         /* enum piece_use */
    uint8_t role;        /* role of the first operand that covers it, or of the one before a gap */
};
typedef struct piece piece;

struct span {
    uint32_t buffer_idx;
    uint64_t begin, end;     /* bytes of the buffer */
    unsigned char *original; /* the address of byte `begin` in the program */
    unsigned char *fresh;    /* its address for the op */
    piece pieces[PIECES_MAX];
    uint32_t piece_count;
};
typedef struct span span;

struct paranoid {
    paranoid_config config;
    unsigned char *block;   /* the allocation that contains the scratch */
    unsigned char *trap;    /* [TRAP_BYTES] guard bytes */
    unsigned char *scratch; /* [scratch_bytes] at a multiple of TILE_PERIOD_BYTES */
    uint64_t scratch_bytes;
    uint64_t turn;
    buffer *shadow; /* [shadow_count] buffers for the op; between calls all lead to the trap */
    uint64_t shadow_count;
    unsigned char guard[GUARD_BYTES + 1]; /* the pattern from an even address on */
    /* The present op: */
    span spans[OP_OPERANDS_MAX];
    uint32_t span_count;
};

static const char *role_name(uint8_t role)
{
    static const char *const names[ROLE_COUNT] = {
        [ROLE_SOURCE] = "source",
        [ROLE_TARGET] = "target",
        [ROLE_PARAMS0] = "params 0",
        [ROLE_PARAMS1] = "params 1",
        [ROLE_GRADS0] = "grads 0",
        [ROLE_GRADS1] = "grads 1",
        [ROLE_INPUT] = "input",
        [ROLE_OUTPUT] = "output",
        [ROLE_INPUT_GRAD] = "input grad",
        [ROLE_OUTPUT_GRAD] = "output grad",
        [ROLE_SAVED] = "saved",
        [ROLE_STATE] = "state",
        [ROLE_TOKENS] = "tokens",
        [ROLE_WORKSPACE] = "workspace",
        [ROLE_LOSSES] = "losses",
        [ROLE_NORM_SUMS] = "norm sums",
        [ROLE_CONSTANTS] = "constants",
        [ROLE_CACHE] = "cache",
        [ROLE_HITS] = "hits",
        [ROLE_EXPANDED] = "expanded params",
        [ROLE_SENT] = "rows sent to other ranks' experts",
        [ROLE_RECEIVED] = "rows received for own experts",
        [ROLE_LENT] = "addresses of lent gradients",
    };
    return role < ROLE_COUNT && names[role] ? names[role] : "of unknown role";
}

/* --- layout ----------------------------------------------------------------------------------- */

/* How the op uses the operand. */
static uint8_t operand_use(const op *item, const operand *part)
{
    if (part->role == ROLE_WORKSPACE)
        return PIECE_SCRATCH;
    bool zeroed = part->access == ACCESS_UPDATE && swapi_is_zeroed_first(item, part);
    return zeroed ? PIECE_WRITE : part->access;
}

/* Joins the uses of two operands. Scratch that another operand covers too is not scratch. */
static uint8_t join_uses(uint8_t a, uint8_t b)
{
    if (a == PIECE_GAP || b == PIECE_GAP)
        return a | b;
    if (a == PIECE_SCRATCH && b == PIECE_SCRATCH)
        return PIECE_SCRATCH;
    return (a == PIECE_SCRATCH ? PIECE_WRITE : a) | (b == PIECE_SCRATCH ? PIECE_WRITE : b);
}

/* Finds the op's spans, without addresses and pieces. Returns how many. */
static uint32_t find_spans(const op *item, span *spans)
{
    uint32_t count = 0;
    for (uint32_t k = 0; k < item->operand_count; k++) {
        const operand *part = &item->operands[k];
        uint64_t end = part->offset_bytes + part->size_bytes;
        uint32_t at = 0;
        while (at < count && spans[at].buffer_idx != part->buffer_idx)
            at++;
        if (at == count) {
            spans[count].buffer_idx = part->buffer_idx;
            spans[count].begin = part->offset_bytes;
            spans[count].end = end;
            count++;
        }
        spans[at].begin = size_min(spans[at].begin, part->offset_bytes);
        spans[at].end = size_max(spans[at].end, end);
    }
    return count;
}

/* Cuts the span at the ends of its operands, in ascending order. */
static void cut_pieces(const op *item, span *self)
{
    uint64_t bounds[2 * OP_OPERANDS_MAX];
    uint32_t bound_count = 0;
    for (uint32_t k = 0; k < item->operand_count; k++) {
        const operand *part = &item->operands[k];
        if (part->buffer_idx != self->buffer_idx)
            continue;
        for (int side = 0; side < 2; side++) {
            uint64_t bound = part->offset_bytes + (side ? part->size_bytes : 0);
            uint32_t at = bound_count++;
            for (; at > 0 && bounds[at - 1] > bound; at--)
                bounds[at] = bounds[at - 1];
            bounds[at] = bound;
        }
    }
    self->piece_count = 0;
    uint8_t role = ROLE_COUNT;
    for (uint32_t i = 0; i + 1 < bound_count; i++) {
        if (bounds[i] == bounds[i + 1])
            continue;
        piece cut = {.begin = bounds[i], .end = bounds[i + 1], .use = PIECE_GAP, .role = role};
        for (uint32_t k = 0; k < item->operand_count; k++) {
            const operand *part = &item->operands[k];
            if (part->buffer_idx != self->buffer_idx || part->offset_bytes > cut.begin ||
                part->offset_bytes + part->size_bytes < cut.end)
                continue;
            if (cut.use == PIECE_GAP)
                cut.role = part->role;
            cut.use = join_uses(cut.use, operand_use(item, part));
        }
        role = cut.role;
        self->pieces[self->piece_count++] = cut;
    }
}

/* The most scratch that the op needs, wherever its spans lie. */
static int needed_bytes(const op *item, uint64_t *out)
{
    span spans[OP_OPERANDS_MAX];
    uint32_t count = find_spans(item, spans);
    *out = GUARD_BYTES;
    for (uint32_t i = 0; i < count; i++) {
        TRY(size_add(*out, spans[i].end - spans[i].begin, out));
        TRY(size_add(*out, TILE_PERIOD_BYTES + 2 * GUARD_BYTES, out));
    }
    return 0;
}

/* Finds the op's spans and gives each a fresh address with the residue of its real one. */
static int lay_out(paranoid *self, const program *prog, const op *item)
{
    uint64_t needed;
    TRY(needed_bytes(item, &needed));
    uint64_t start = (self->turn++ % PLACES) * TILE_PERIOD_BYTES;
    if (prog->buffer_count > self->shadow_count || start + needed > self->scratch_bytes)
        return err_set(ERR_INTERNAL,
                       "paranoid mode: it was not made for this op, which needs %llu bytes",
                       (unsigned long long)needed);
    self->span_count = find_spans(item, self->spans);
    uintptr_t at = (uintptr_t)self->scratch + start;
    for (uint32_t i = 0; i < self->span_count; i++) {
        span *one = &self->spans[i];
        const buffer *held = &prog->buffers[one->buffer_idx];
        uint64_t offset = held->offset_bytes + one->begin;
        one->original = self->config.arena_base[held->arena] + offset;
        at += GUARD_BYTES;
        at += ((uintptr_t)one->original - at) % TILE_PERIOD_BYTES;
        one->fresh = self->scratch + (at - (uintptr_t)self->scratch);
        at += one->end - one->begin + GUARD_BYTES;
        cut_pieces(item, one);
        self->shadow[one->buffer_idx] = *held;
        self->shadow[one->buffer_idx].offset_bytes =
            (uintptr_t)one->fresh - (uintptr_t)self->config.arena_base[held->arena] - one->begin;
    }
    return 0;
}

/* --- guards ----------------------------------------------------------------------------------- */

static unsigned char guard_byte(const unsigned char *at)
{
    return (uintptr_t)at % 2 ? GUARD_ODD : GUARD_EVEN;
}

static void fill_guard(const paranoid *self, unsigned char *at, uint64_t bytes)
{
    for (uint64_t done = 0, some; done < bytes; done += some) {
        some = size_min(bytes - done, GUARD_BYTES);
        memcpy(at + done, self->guard + (uintptr_t)(at + done) % 2, some);
    }
}

/* The first byte that is no longer a guard byte, or `bytes`. */
static uint64_t find_damage(const paranoid *self, const unsigned char *at, uint64_t bytes)
{
    for (uint64_t done = 0, some; done < bytes; done += some) {
        some = size_min(bytes - done, GUARD_BYTES);
        if (memcmp(at + done, self->guard + (uintptr_t)(at + done) % 2, some) == 0)
            continue;
        while (at[done] == guard_byte(at + done))
            done++;
        return done;
    }
    return bytes;
}

/* --- around the op ---------------------------------------------------------------------------- */

static void fill(const paranoid *self)
{
    for (uint32_t i = 0; i < self->span_count; i++) {
        const span *one = &self->spans[i];
        fill_guard(self, one->fresh - GUARD_BYTES, GUARD_BYTES);
        fill_guard(self, one->fresh + (one->end - one->begin), GUARD_BYTES);
        for (uint32_t k = 0; k < one->piece_count; k++) {
            const piece *cut = &one->pieces[k];
            unsigned char *to = one->fresh + (cut->begin - one->begin);
            uint64_t bytes = cut->end - cut->begin;
            if (cut->use == PIECE_GAP)
                fill_guard(self, to, bytes);
            else if (cut->use == PIECE_READ || cut->use == PIECE_UPDATE)
                memcpy(to, one->original + (cut->begin - one->begin), bytes);
            else
                memset(to, POISON, bytes);
        }
    }
}

/* Makes the error: "... operand target, byte 17 (buffer 3, host, a transient of ...)". */
static int violation(const program *prog, const op *item, const span *one, uint8_t role,
                     const char *what, uint64_t byte)
{
    char text[SWAPI_OP_TEXT_BYTES];
    const buffer *held = &prog->buffers[one->buffer_idx];
    return err_set(ERR_INTERNAL,
                   "paranoid mode: %s %s operand %s, byte %llu (buffer %u, %s, a %s of %llu bytes)",
                   swapi_op_text(prog, (uint32_t)(item - prog->ops), text), what, role_name(role),
                   (unsigned long long)byte, one->buffer_idx, tier_name((enum tier)held->arena),
                   held->is_home ? "home" : "transient", (unsigned long long)held->size_bytes);
}

static int check_piece(const paranoid *self, const program *prog, const op *item, const span *one,
                       const piece *cut)
{
    const unsigned char *at = one->fresh + (cut->begin - one->begin);
    uint64_t bytes = cut->end - cut->begin;
    if (cut->use == PIECE_GAP) {
        uint64_t damage = find_damage(self, at, bytes);
        if (damage < bytes)
            return violation(prog, item, one, cut->role, "wrote beyond the end of",
                             cut->begin + damage);
    }
    if (cut->use != PIECE_READ)
        return 0;
    const unsigned char *was = one->original + (cut->begin - one->begin);
    if (memcmp(at, was, bytes) == 0)
        return 0;
    uint64_t first = 0;
    while (at[first] == was[first])
        first++;
    return violation(prog, item, one, cut->role, "wrote to the read-only", cut->begin + first);
}

/* Checks that the op kept to what it declared. */
static int check(const paranoid *self, const program *prog, const op *item)
{
    for (uint32_t i = 0; i < self->span_count; i++) {
        const span *one = &self->spans[i];
        uint64_t bytes = one->end - one->begin;
        uint64_t damage = find_damage(self, one->fresh - GUARD_BYTES, GUARD_BYTES);
        if (damage < GUARD_BYTES) {
            char what[64];
            snprintf(what, sizeof what, "wrote %llu bytes before the start of",
                     (unsigned long long)(GUARD_BYTES - damage));
            return violation(prog, item, one, one->pieces[0].role, what, one->begin);
        }
        damage = find_damage(self, one->fresh + bytes, GUARD_BYTES);
        if (damage < GUARD_BYTES)
            return violation(prog, item, one, one->pieces[one->piece_count - 1].role,
                             "wrote beyond the end of", one->end + damage);
        for (uint32_t k = 0; k < one->piece_count; k++)
            TRY(check_piece(self, prog, item, one, &one->pieces[k]));
    }
    uint64_t damage = find_damage(self, self->trap, TRAP_BYTES);
    if (damage < TRAP_BYTES) {
        char text[SWAPI_OP_TEXT_BYTES];
        return err_set(ERR_INTERNAL,
                       "paranoid mode: %s wrote byte %llu of a buffer that is none of "
                       "its operands'",
                       swapi_op_text(prog, (uint32_t)(item - prog->ops), text),
                       (unsigned long long)damage);
    }
    return 0;
}

static void bring_back(const paranoid *self)
{
    for (uint32_t i = 0; i < self->span_count; i++) {
        const span *one = &self->spans[i];
        for (uint32_t k = 0; k < one->piece_count; k++) {
            const piece *cut = &one->pieces[k];
            unsigned char *to = one->original + (cut->begin - one->begin);
            if (cut->use == PIECE_SCRATCH)
                memset(to, POISON, cut->end - cut->begin);
            else if (cut->use & PIECE_WRITE)
                memcpy(to, one->fresh + (cut->begin - one->begin), cut->end - cut->begin);
        }
    }
}

static buffer trapped(const paranoid *self)
{
    uint8_t arena = 0;
    while (arena < TIER_COUNT && !self->config.arena_base[arena])
        arena++;
    return (buffer){
        .arena = arena,
        .state_kind = STATE_KIND_COUNT,
        .unit = PROGRAM_NONE,
        .offset_bytes = arena < TIER_COUNT
                            ? (uintptr_t)self->trap - (uintptr_t)self->config.arena_base[arena]
                            : 0,
        .producer = PROGRAM_NONE,
        .last_reader = PROGRAM_NONE,
    };
}

/* Anyone who kept an address of this call finds NaN there. */
static void forget(paranoid *self)
{
    for (uint32_t i = 0; i < self->span_count; i++) {
        const span *one = &self->spans[i];
        memset(one->fresh, POISON, one->end - one->begin);
        self->shadow[one->buffer_idx] = trapped(self);
    }
}

int paranoid_run(void *user, const program *prog, const op *item)
{
    paranoid *self = user;
    for (uint32_t k = 0; k < item->operand_count; k++)
        if (!self->config.arena_base[prog->buffers[item->operands[k].buffer_idx].arena])
            return self->config.run(self->config.user, prog, item);
    TRY(lay_out(self, prog, item));
    fill(self);
    program shadow = *prog;
    shadow.buffers = self->shadow;
    int rc = self->config.run(self->config.user, &shadow, item);
    if (rc >= 0) {
        int found = check(self, prog, item);
        if (found < 0)
            rc = found;
        else
            bring_back(self);
    }
    forget(self);
    return rc;
}

/* --- creation --------------------------------------------------------------------------------- */

static int reserve(paranoid *self, const paranoid_config *config)
{
    static const char tag[] = "paranoid mode";
    uint64_t needed_max = 0, block_bytes;
    for (uint32_t p = 0; p < config->program_count; p++) {
        const program *prog = config->programs[p];
        self->shadow_count = size_max(self->shadow_count, prog->buffer_count);
        for (uint64_t i = 0; i < prog->op_count; i++) {
            uint64_t needed;
            if (!config->serves[prog->ops[i].lane])
                continue;
            TRY(needed_bytes(&prog->ops[i], &needed));
            needed_max = size_max(needed_max, needed);
        }
    }
    TRY(size_add(needed_max, (uint64_t)PLACES * TILE_PERIOD_BYTES, &self->scratch_bytes));
    TRY(size_add(self->scratch_bytes, TRAP_BYTES + TILE_PERIOD_BYTES, &block_bytes));
    self->block = mem_alloc(block_bytes, 1, tag);
    self->shadow = mem_alloc(self->shadow_count, sizeof *self->shadow, tag);
    if (!self->block || !self->shadow)
        return -ENOMEM;
    self->trap = self->block + (-(uintptr_t)self->block) % TILE_PERIOD_BYTES;
    self->scratch = self->trap + TRAP_BYTES;
    for (uint32_t i = 0; i <= GUARD_BYTES; i++)
        self->guard[i] = i % 2 ? GUARD_ODD : GUARD_EVEN;
    fill_guard(self, self->trap, TRAP_BYTES);
    for (uint64_t b = 0; b < self->shadow_count; b++)
        self->shadow[b] = trapped(self);
    return 0;
}

int paranoid_create(const paranoid_config *config, paranoid **out)
{
    *out = NULL;
    if (!config->run)
        return err_set(-EINVAL, "paranoid mode: needs the callback that runs ops");
    paranoid *self = mem_alloc(1, sizeof *self, "paranoid mode");
    if (!self)
        return -ENOMEM;
    self->config = *config;
    int rc = reserve(self, config);
    if (rc < 0) {
        paranoid_destroy(self);
        return rc;
    }
    *out = self;
    return 0;
}

void paranoid_destroy(paranoid *self)
{
    if (!self)
        return;
    mem_free(self->block);
    mem_free(self->shadow);
    mem_free(self);
}

/* --- the executor's part ----------------------------------------------------------------------
 *
 * Which bytes become 0xff, and when. It runs on the executor's thread. It overwrites a buffer only
 * while no op is in flight that may use the buffer or what reuses its space: before the first op of
 * a run, before the submit of a read whose dependencies are complete, and after the last user is
 * complete but before anything that waited for that op is issued. */

int swapi_paranoid_create(executor *self, const executor_config *config)
{
    uint64_t buffer_count_max = 0;
    for (uint32_t i = 0; i < config->program_count; i++) {
        const program *prog = config->programs[i];
        buffer_count_max = size_max(buffer_count_max, prog->buffer_count);
        for (int a = 0; a < TIER_COUNT; a++)
            self->peak_bytes[a] = size_max(self->peak_bytes[a], prog->peak_bytes[a]);
    }
    self->users_left = mem_alloc(buffer_count_max, sizeof *self->users_left, "executor");
    return self->users_left ? 0 : -ENOMEM;
}

static void poison(const executor *self, uint32_t arena, uint64_t begin, uint64_t end)
{
    if (self->arena_base[arena] && begin < end)
        memset(self->arena_base[arena] + begin, POISON, end - begin);
}

/* Overwrites the arena up to the highest peak except for its homes and what is carried into the
 * program, which are sorted and do not overlap. */
static void poison_around_kept(const executor *self, uint32_t arena)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < self->now->kept_count; i++) {
        const swapi_kept *kept = &self->now->kept[i];
        if (kept->arena != arena)
            continue;
        poison(self, arena, at, kept->begin);
        at = size_max(at, kept->end);
    }
    poison(self, arena, at, self->peak_bytes[arena]);
}

void swapi_paranoid_begin(executor *self)
{
    if (!self->paranoid)
        return;
    const program *prog = self->now->prog;
    poison_around_kept(self, TIER_DEVICE);
    poison_around_kept(self, TIER_HOST);
    memset(self->users_left, 0, prog->buffer_count * sizeof *self->users_left);
    for (uint64_t i = 0; i < prog->op_count; i++)
        for (uint32_t k = 0; k < prog->ops[i].operand_count; k++)
            self->users_left[prog->ops[i].operands[k].buffer_idx]++;
}

void swapi_paranoid_issue(executor *self, const op *item)
{
    if (!self->paranoid || item->kind != OP_READ)
        return;
    const operand *target = op_operand(item, ROLE_TARGET);
    if (!target)
        return; /* the lane refuses it */
    const buffer *held = &self->now->prog->buffers[target->buffer_idx];
    uint64_t begin = held->offset_bytes + target->offset_bytes;
    poison(self, held->arena, begin, begin + target->size_bytes);
}

void swapi_paranoid_done(executor *self, const op *item)
{
    if (!self->paranoid)
        return;
    const program *prog = self->now->prog;
    for (uint32_t k = 0; k < item->operand_count; k++) {
        uint32_t buffer_idx = item->operands[k].buffer_idx;
        const buffer *held = &prog->buffers[buffer_idx];
        assert(self->users_left[buffer_idx] > 0);
        if (--self->users_left[buffer_idx] == 0 && !held->is_home && !(held->carried & CARRIED_OUT))
            poison(self, held->arena, held->offset_bytes, held->offset_bytes + held->size_bytes);
    }
}
