/* The proof for the space of one arena: which buffer may take bytes that another buffer had.
 *
 * The boundaries of all buffers of the arena are its coordinates. A map over them holds, as runs,
 * the latest occupant of each byte. Homes enter first and stay. Transients that are carried in
 * enter next, then the others in the order of their first use. Those that are carried out stay.
 * Each occupant that a newcomer displaces must be finished: all its last uses come before all first
 * uses of the newcomer (the uses that no other use follows or precedes). An occupant that was
 * displaced earlier is ordered through the one that displaced it. A run enters and leaves the map
 * once, so the time is nearly linear in the number of buffers. */
#include "swap/program_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"

/* Occupants by coordinate: run [c, end[c]) belongs to owner[c] where bit c of `starts` is set. */
struct space_map {
    uint64_t *coords; /* [coord_count] ascending, distinct byte offsets */
    uint64_t coord_count;
    uint32_t *owner;   /* [coord_count] buffer index or PROGRAM_NONE: free */
    uint32_t *end;     /* [coord_count] coordinate index */
    uint64_t *starts;  /* bit per coordinate */
    uint64_t *summary; /* bit per word of starts that is not 0 */
};
typedef struct space_map space_map;

/* The first and last uses of a transient: ranges of the pool. */
struct edge_uses {
    uint64_t first_begin, first_count;
    uint64_t last_begin, last_count;
};
typedef struct edge_uses edge_uses;

struct space_walk {
    swapi_check *check;
    edge_uses *edges;  /* [buffer_count] */
    uint32_t *pool;    /* op indices */
    uint32_t *arrival; /* [buffer_count] buffers of the arena in the order in which they enter */
    uint32_t *scratch; /* [longest list of uses] */
    space_map map;
};
typedef struct space_walk space_walk;

static void set_start(space_map *map, uint64_t c)
{
    map->starts[c / 64] |= (uint64_t)1 << (c % 64);
    map->summary[c / 4096] |= (uint64_t)1 << (c / 64 % 64);
}

static void clear_start(space_map *map, uint64_t c)
{
    map->starts[c / 64] &= ~((uint64_t)1 << (c % 64));
    if (map->starts[c / 64] == 0)
        map->summary[c / 4096] &= ~((uint64_t)1 << (c / 64 % 64));
}

/* The start of the run that holds coordinate c; coordinate 0 always starts one. */
static uint64_t find_start(const space_map *map, uint64_t c)
{
    uint64_t word = c / 64;
    uint64_t bits = map->starts[word] & (~(uint64_t)0 >> (63 - c % 64));
    if (bits == 0) {
        uint64_t group = word / 64;
        uint64_t words = map->summary[group] & (((uint64_t)1 << (word % 64)) - 1);
        while (words == 0)
            words = map->summary[--group];
        word = 64 * group + 63 - (uint64_t)__builtin_clzll(words);
        bits = map->starts[word];
    }
    return 64 * word + 63 - (uint64_t)__builtin_clzll(bits);
}

static void split_at(space_map *map, uint64_t c)
{
    if (c + 1 >= map->coord_count)
        return; /* the end of the arena's last buffer */
    uint64_t start = find_start(map, c);
    if (start == c)
        return;
    map->owner[c] = map->owner[start];
    map->end[c] = map->end[start];
    map->end[start] = (uint32_t)c;
    set_start(map, c);
}

static uint64_t coord_of(const space_map *map, uint64_t offset)
{
    uint64_t at = swapi_last_upto(map->coords, map->coord_count, offset);
    assert(map->coords[at] == offset);
    return at;
}

/* Fills the coordinates from the arena's buffers, with all space free. */
static void map_reset(space_map *map, const program *prog, const uint32_t *members, uint64_t count)
{
    uint64_t coord_count = 0;
    for (uint64_t i = 0; i < count; i++) {
        const buffer *item = &prog->buffers[members[i]];
        map->coords[coord_count++] = item->offset_bytes;
        map->coords[coord_count++] = item->offset_bytes + item->size_bytes;
    }
    uint64_t kept = map->coord_count = swapi_sort_distinct(map->coords, coord_count);
    memset(map->starts, 0, (kept / 64 + 1) * sizeof *map->starts);
    memset(map->summary, 0, (kept / 4096 + 1) * sizeof *map->summary);
    map->owner[0] = PROGRAM_NONE;
    map->end[0] = (uint32_t)(kept - 1);
    set_start(map, 0);
}

/* Checks a newcomer that takes bytes of `occupant`: all uses of the occupant must come before. */
static int check_displaced(const space_walk *self, uint32_t occupant, uint32_t newcomer)
{
    const program *prog = self->check->prog;
    const buffer *old = &prog->buffers[occupant], *young = &prog->buffers[newcomer];
    uint64_t low = size_max(old->offset_bytes, young->offset_bytes);
    uint64_t high =
        size_min(old->offset_bytes + old->size_bytes, young->offset_bytes + young->size_bytes);
    if (old->is_home || young->is_home)
        return err_set(ERR_INTERNAL,
                       "program: buffer %u (%s) and buffer %u (%s) share bytes %llu to %llu of the "
                       "%s arena, and a home is live all the time",
                       occupant, old->is_home ? "home" : "transient", newcomer,
                       young->is_home ? "home" : "transient", (unsigned long long)low,
                       (unsigned long long)high, tier_name((enum tier)old->arena));
    if ((old->carried & CARRIED_OUT) || (young->carried & CARRIED_IN))
        return err_set(
            ERR_INTERNAL,
            "program: buffer %u takes bytes %llu to %llu of the %s arena from buffer %u, but %s",
            newcomer, (unsigned long long)low, (unsigned long long)high,
            tier_name((enum tier)old->arena), occupant,
            old->carried & CARRIED_OUT ? "the latter is carried out of the program"
                                       : "the former is carried into the program");
    const edge_uses *last = &self->edges[occupant], *first = &self->edges[newcomer];
    for (uint64_t i = 0; i < last->last_count; i++)
        for (uint64_t k = 0; k < first->first_count; k++) {
            uint32_t before = self->pool[last->last_begin + i];
            uint32_t after = self->pool[first->first_begin + k];
            if (before < after && swapi_order_before(&self->check->order, before, after))
                continue;
            char before_text[SWAPI_OP_TEXT_BYTES], after_text[SWAPI_OP_TEXT_BYTES];
            return err_set(
                ERR_INTERNAL,
                "program: buffers %u and %u share bytes %llu to %llu of the %s arena, and "
                "nothing orders %s, which uses the first, before %s, which uses the second",
                occupant, newcomer, (unsigned long long)low, (unsigned long long)high,
                tier_name((enum tier)old->arena), swapi_op_text(prog, before, before_text),
                swapi_op_text(prog, after, after_text));
        }
    return 0;
}

static int enter(space_walk *self, uint32_t newcomer)
{
    space_map *map = &self->map;
    const buffer *item = &self->check->prog->buffers[newcomer];
    uint64_t low = coord_of(map, item->offset_bytes);
    uint64_t high = coord_of(map, item->offset_bytes + item->size_bytes);
    split_at(map, low);
    split_at(map, high);
    uint32_t checked = PROGRAM_NONE;
    for (uint64_t c = low; c < high; c = map->end[c]) {
        if (map->owner[c] != PROGRAM_NONE && map->owner[c] != checked) {
            checked = map->owner[c];
            TRY(check_displaced(self, checked, newcomer));
        }
        clear_start(map, c);
    }
    map->owner[low] = newcomer;
    map->end[low] = (uint32_t)high;
    set_start(map, low);
    return 0;
}

/* Lists the distinct ops that use buffer b, in issue order, in self->scratch. */
static uint64_t list_users(const space_walk *self, uint64_t b)
{
    uint64_t count = 0;
    for (uint64_t i = self->check->use_begin[b]; i < self->check->use_begin[b + 1]; i++)
        if (count == 0 || self->scratch[count - 1] != self->check->uses[i].op_idx)
            self->scratch[count++] = self->check->uses[i].op_idx;
    return count;
}

/* Finds the users of each transient that no other user precedes (first) or follows (last). Since
 * users are in issue order, it is enough to compare with those already kept. */
static void find_edges(space_walk *self)
{
    const program *prog = self->check->prog;
    uint64_t used = 0;
    for (uint64_t b = prog->home_count; b < prog->buffer_count; b++) {
        edge_uses *edge = &self->edges[b];
        uint64_t count = list_users(self, b);
        edge->first_begin = used;
        for (uint64_t i = 0; i < count; i++) {
            uint64_t k = edge->first_begin;
            while (k < used &&
                   !swapi_order_before(&self->check->order, self->pool[k], self->scratch[i]))
                k++;
            if (k == used)
                self->pool[used++] = self->scratch[i];
        }
        edge->first_count = used - edge->first_begin;
        edge->last_begin = used;
        for (uint64_t i = count; i-- > 0;) {
            uint64_t k = edge->last_begin;
            while (k < used &&
                   !swapi_order_before(&self->check->order, self->scratch[i], self->pool[k]))
                k++;
            if (k == used)
                self->pool[used++] = self->scratch[i];
        }
        edge->last_count = used - edge->last_begin;
    }
}

/* A transient of the arena and when it enters: 0: with the program, or 1 + the op. */
struct entrance {
    uint32_t at;
    uint32_t buffer_idx;
};

static int compare_entrances(const void *left, const void *right)
{
    const struct entrance *a = left, *b = right;
    if (a->at != b->at)
        return a->at < b->at ? -1 : 1;
    return (a->buffer_idx > b->buffer_idx) - (a->buffer_idx < b->buffer_idx);
}

static int walk_arena(space_walk *self, enum tier arena, struct entrance *entrances)
{
    const program *prog = self->check->prog;
    uint64_t count = 0, transient_count = 0;
    for (uint64_t b = 0; b < prog->buffer_count; b++) {
        if (prog->buffers[b].arena != arena)
            continue;
        if (prog->buffers[b].is_home) {
            self->arrival[count++] = (uint32_t)b;
            continue;
        }
        uint64_t first = self->check->use_begin[b];
        bool is_there = prog->buffers[b].carried & CARRIED_IN;
        entrances[transient_count++] =
            (struct entrance){is_there ? 0 : self->check->uses[first].op_idx + 1, (uint32_t)b};
    }
    qsort(entrances, transient_count, sizeof *entrances, compare_entrances);
    for (uint64_t i = 0; i < transient_count; i++)
        self->arrival[count++] = entrances[i].buffer_idx;
    if (count == 0)
        return 0;
    map_reset(&self->map, prog, self->arrival, count);
    for (uint64_t i = 0; i < count; i++)
        TRY(enter(self, self->arrival[i]));
    return 0;
}

int swapi_check_space(swapi_check *check)
{
    const program *prog = check->prog;
    uint64_t use_count = check->use_begin[prog->buffer_count];
    uint64_t coord_capacity = 2 * prog->buffer_count + 1;
    static const char *const tag = "program check";
    int rc = 0;
    space_walk self = {.check = check};
    space_map *map = &self.map;
    self.edges = mem_alloc(prog->buffer_count, sizeof *self.edges, tag);
    self.pool = mem_alloc(2 * use_count, sizeof *self.pool, tag);
    self.arrival = mem_alloc(prog->buffer_count, sizeof *self.arrival, tag);
    self.scratch = mem_alloc(use_count, sizeof *self.scratch, tag);
    struct entrance *entrances = mem_alloc(prog->buffer_count, sizeof *entrances, tag);
    map->coords = mem_alloc(coord_capacity, sizeof *map->coords, tag);
    map->owner = mem_alloc(coord_capacity, sizeof *map->owner, tag);
    map->end = mem_alloc(coord_capacity, sizeof *map->end, tag);
    map->starts = mem_alloc(coord_capacity / 64 + 1, sizeof *map->starts, tag);
    map->summary = mem_alloc(coord_capacity / 4096 + 1, sizeof *map->summary, tag);
    if (!self.edges || !self.pool || !self.arrival || !self.scratch || !entrances || !map->coords ||
        !map->owner || !map->end || !map->starts || !map->summary)
        rc = -ENOMEM;
    if (rc == 0)
        find_edges(&self);
    for (int arena = 0; arena < TIER_COUNT && rc == 0; arena++)
        rc = walk_arena(&self, (enum tier)arena, entrances);
    mem_free(self.edges);
    mem_free(self.pool);
    mem_free(self.arrival);
    mem_free(self.scratch);
    mem_free(entrances);
    mem_free(map->coords);
    mem_free(map->owner);
    mem_free(map->end);
    mem_free(map->starts);
    mem_free(map->summary);
    return rc;
}
