/* The proof for the bytes of one buffer.
 *
 * The boundaries of all uses of a buffer cut it into segments. Each segment remembers its last
 * writer and the readers since. In issue order, a read must come after the last writer, and a
 * write after the last writer and after every reader since; everything earlier is then ordered
 * by transitivity. Only the last of the readers on one chain lane is kept. Time is proportional
 * to the number of segments that uses cover. */
#include "swap/program_internal.h"

#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"

/* A reader of a segment since its last write. */
struct reader {
    uint32_t op_idx;
    uint32_t next; /* PROGRAM_NONE at the end; also links the free nodes */
};
typedef struct reader reader;

struct access_walk {
    swapi_check *check;
    uint32_t buffer_idx;
    uint64_t *bounds; /* [bound_count] ascending, distinct: segment s is bounds[s] .. bounds[s+1] */
    uint64_t bound_count;
    uint32_t *writers; /* [bound_count] last writer of the segment, or PROGRAM_NONE */
    uint32_t *readers; /* [bound_count] first reader node, or PROGRAM_NONE */
    reader *nodes;
    uint64_t node_count, node_capacity;
    uint32_t free_node;
};
typedef struct access_walk access_walk;

static const operand *use_operand(const access_walk *self, const swapi_use *use)
{
    return &self->check->prog->ops[use->op_idx].operands[use->operand_idx];
}

/* True if an operand marked as read and written does not depend on the old content: scratch, and a
 * gradient accumulator that this op begins. */
static bool ignores_content(const op *item, const operand *part)
{
    return part->access == ACCESS_UPDATE &&
           (part->role == ROLE_WORKSPACE || swapi_is_zeroed_first(item, part));
}

static int unordered(const access_walk *self, uint64_t segment, uint32_t first,
                     const char *did_first, uint32_t second, const char *did_second)
{
    char second_text[SWAPI_OP_TEXT_BYTES];
    const program *prog = self->check->prog;
    const buffer *item = &prog->buffers[self->buffer_idx];
    return swapi_op_error(
        prog, first,
        " %s and %s %s bytes %llu to %llu of buffer %u (%s, %s) and nothing orders them", did_first,
        swapi_op_text(prog, second, second_text), did_second,
        (unsigned long long)self->bounds[segment], (unsigned long long)self->bounds[segment + 1],
        self->buffer_idx, tier_name((enum tier)item->arena), item->is_home ? "home" : "transient");
}

/* Adds op_idx to the segment's readers. */
static int add_reader(access_walk *self, uint64_t segment, uint32_t op_idx)
{
    const op *ops = self->check->prog->ops;
    uint8_t lane = ops[op_idx].lane;
    for (uint32_t at = self->readers[segment]; at != PROGRAM_NONE; at = self->nodes[at].next) {
        bool same_chain = swapi_lane_is_chain(lane) && ops[self->nodes[at].op_idx].lane == lane;
        if (same_chain || self->nodes[at].op_idx == op_idx) {
            self->nodes[at].op_idx = op_idx;
            return 0;
        }
        if (!swapi_lane_is_chain(lane))
            break; /* the latest is first, which is enough to find a double use by one op */
    }
    uint32_t node = self->free_node;
    if (node != PROGRAM_NONE) {
        self->free_node = self->nodes[node].next;
    } else {
        if (self->node_count == self->node_capacity) {
            uint64_t capacity = self->node_capacity ? 2 * self->node_capacity : 1024;
            reader *grown = mem_resize(self->nodes, capacity, sizeof *grown, "program check");
            if (!grown)
                return -ENOMEM;
            self->nodes = grown;
            self->node_capacity = capacity;
        }
        node = (uint32_t)self->node_count++;
    }
    self->nodes[node] = (reader){.op_idx = op_idx, .next = self->readers[segment]};
    self->readers[segment] = node;
    return 0;
}

static int walk_read(access_walk *self, const swapi_use *use)
{
    const program *prog = self->check->prog;
    const operand *part = use_operand(self, use);
    const buffer *item = &prog->buffers[self->buffer_idx];
    uint64_t end = part->offset_bytes + part->size_bytes;
    bool needs_write = !item->is_home && !(item->carried & CARRIED_IN) &&
                       !ignores_content(&prog->ops[use->op_idx], part);
    for (uint64_t s = swapi_last_upto(self->bounds, self->bound_count, part->offset_bytes);
         self->bounds[s] < end; s++) {
        uint32_t writer = self->writers[s];
        if (writer == PROGRAM_NONE && needs_write)
            return swapi_op_error(prog, use->op_idx,
                                  " reads bytes %llu to %llu of buffer %u (%s, transient), which "
                                  "no op before it has written",
                                  (unsigned long long)self->bounds[s],
                                  (unsigned long long)self->bounds[s + 1], self->buffer_idx,
                                  tier_name((enum tier)item->arena));
        if (writer != PROGRAM_NONE && !swapi_order_before(&self->check->order, writer, use->op_idx))
            return unordered(self, s, writer, "writes", use->op_idx, "reads");
        TRY(add_reader(self, s, use->op_idx));
    }
    return 0;
}

static int walk_write(access_walk *self, const swapi_use *use)
{
    const operand *part = use_operand(self, use);
    uint64_t end = part->offset_bytes + part->size_bytes;
    for (uint64_t s = swapi_last_upto(self->bounds, self->bound_count, part->offset_bytes);
         self->bounds[s] < end; s++) {
        uint32_t writer = self->writers[s];
        if (writer != PROGRAM_NONE && writer != use->op_idx &&
            !swapi_order_before(&self->check->order, writer, use->op_idx))
            return unordered(self, s, writer, "writes", use->op_idx, "writes");
        while (self->readers[s] != PROGRAM_NONE) {
            uint32_t node = self->readers[s];
            uint32_t op_idx = self->nodes[node].op_idx;
            if (op_idx != use->op_idx &&
                !swapi_order_before(&self->check->order, op_idx, use->op_idx))
                return unordered(self, s, op_idx, "reads", use->op_idx, "writes");
            self->readers[s] = self->nodes[node].next;
            self->nodes[node].next = self->free_node;
            self->free_node = node;
        }
        self->writers[s] = use->op_idx;
    }
    return 0;
}

/* Cuts the buffer at the boundaries of its uses. */
static void cut_segments(access_walk *self, const swapi_use *uses, uint64_t count)
{
    uint64_t bound_count = 0;
    for (uint64_t i = 0; i < count; i++) {
        const operand *part = use_operand(self, &uses[i]);
        self->bounds[bound_count++] = part->offset_bytes;
        self->bounds[bound_count++] = part->offset_bytes + part->size_bytes;
    }
    self->bound_count = swapi_sort_distinct(self->bounds, bound_count);
    memset(self->writers, 0xff, self->bound_count * sizeof *self->writers);
    memset(self->readers, 0xff, self->bound_count * sizeof *self->readers);
    self->node_count = 0;
    self->free_node = PROGRAM_NONE;
}

/* Walks all uses of one buffer. The uses of one op are adjacent: its reads see the state before its
 * writes. */
static int walk_buffer(access_walk *self, const swapi_use *uses, uint64_t count)
{
    cut_segments(self, uses, count);
    for (uint64_t begin = 0, end; begin < count; begin = end) {
        for (end = begin; end < count && uses[end].op_idx == uses[begin].op_idx; end++)
            if (use_operand(self, &uses[end])->access & ACCESS_READ)
                TRY(walk_read(self, &uses[end]));
        for (uint64_t i = begin; i < end; i++)
            if (use_operand(self, &uses[i])->access & ACCESS_WRITE)
                TRY(walk_write(self, &uses[i]));
    }
    return 0;
}

int swapi_check_accesses(swapi_check *check)
{
    const program *prog = check->prog;
    uint64_t use_count_max = 0;
    for (uint64_t b = 0; b < prog->buffer_count; b++)
        use_count_max = size_max(use_count_max, check->use_begin[b + 1] - check->use_begin[b]);
    int rc = 0;
    access_walk self = {.check = check};
    self.bounds = mem_alloc(2 * use_count_max, sizeof *self.bounds, "program check");
    self.writers = mem_alloc(2 * use_count_max, sizeof *self.writers, "program check");
    self.readers = mem_alloc(2 * use_count_max, sizeof *self.readers, "program check");
    if (!self.bounds || !self.writers || !self.readers)
        rc = -ENOMEM;
    for (uint64_t b = 0; b < prog->buffer_count && rc == 0; b++) {
        self.buffer_idx = (uint32_t)b;
        rc = walk_buffer(&self, &check->uses[check->use_begin[b]],
                         check->use_begin[b + 1] - check->use_begin[b]);
    }
    mem_free(self.bounds);
    mem_free(self.writers);
    mem_free(self.readers);
    mem_free(self.nodes);
    return rc;
}
