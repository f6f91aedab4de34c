/* The values of swap_fixture.h: arenas with random content and ops that mix all they read. */
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "swap/lane.h"
#include "swap_fixture.h"

void fixture_arenas_init(fixture_arenas *self, const program *prog, uint64_t seed)
{
    self->is_skipped = self->norm_skips = false;
    self->is_committing = true;
    for (int a = 0; a < TIER_COUNT; a++) {
        self->size_bytes[a] = prog->budget_bytes[a];
        self->base[a] = mem_alloc(self->size_bytes[a], 1, "test arena");
        must(self->base[a] != NULL, "self->base[a] != NULL");
        for (uint64_t i = 0; i + 8 <= self->size_bytes[a]; i += 8) {
            uint64_t value = rng_u64(seed, (uint64_t)a, i);
            memcpy(self->base[a] + i, &value, 8);
        }
    }
}

void fixture_arenas_fini(fixture_arenas *self)
{
    for (int a = 0; a < TIER_COUNT; a++)
        mem_free(self->base[a]);
}

static unsigned char *operand_memory(fixture_arenas *self, const program *prog, const operand *part)
{
    return lane_operand_address(self->base[prog->buffers[part->buffer_idx].arena], prog, part);
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ (hash >> 29);
}

int fixture_execute(void *user, const program *prog, const op *item)
{
    fixture_arenas *self = user;
    if (item->lane < LANE_COMM) {
        const operand *source = op_operand(item, ROLE_SOURCE);
        memcpy(operand_memory(self, prog, op_operand(item, ROLE_TARGET)),
               operand_memory(self, prog, source), source->size_bytes);
        return 0;
    }
    uint64_t hash = (uint64_t)(item - prog->ops) + 1, word;
    for (uint32_t k = 0; k < item->operand_count; k++) {
        const operand *part = &item->operands[k];
        const unsigned char *from = operand_memory(self, prog, part);
        for (uint64_t i = 0; i < part->size_bytes && (part->access & ACCESS_READ); i += 8) {
            memcpy(&word, from + i, 8);
            hash = mix(hash, word);
        }
    }
    for (uint32_t k = 0; k < item->operand_count; k++) {
        const operand *part = &item->operands[k];
        unsigned char *to = operand_memory(self, prog, part);
        for (uint64_t i = 0; i < part->size_bytes && (part->access & ACCESS_WRITE); i += 8) {
            word = mix(hash, i);
            memcpy(to + i, &word, 8);
        }
    }
    if (item->kind == OP_NORM)
        self->is_skipped = self->norm_skips;
    return 0;
}

void fixture_execute_all(fixture_arenas *arenas, const program *prog)
{
    fixture_execute_unless(arenas, prog, false);
}

void fixture_execute_unless(fixture_arenas *arenas, const program *prog, bool skipped)
{
    fixture_execute_where(arenas, prog, skipped, true);
}

void fixture_execute_where(fixture_arenas *arenas, const program *prog, bool skipped, bool commits)
{
    for (uint32_t i = 0; i < prog->op_count; i++)
        if (fixture_runs(prog, i, skipped, commits))
            (void)fixture_execute(arenas, prog, &prog->ops[i]);
}

bool fixture_arenas_equal(const fixture_arenas *a, const fixture_arenas *b)
{
    for (int k = 0; k < TIER_COUNT; k++)
        if (a->size_bytes[k] != b->size_bytes[k] ||
            memcmp(a->base[k], b->base[k], a->size_bytes[k]) != 0)
            return false;
    return true;
}

bool fixture_homes_equal(const program *prog, const fixture_arenas *a, const fixture_arenas *b)
{
    for (uint64_t i = 0; i < prog->home_count; i++) {
        const buffer *home = &prog->buffers[i];
        if (memcmp(a->base[home->arena] + home->offset_bytes,
                   b->base[home->arena] + home->offset_bytes, home->size_bytes) != 0)
            return false;
    }
    return true;
}
