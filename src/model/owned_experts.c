/* Experts that belong to ranks (model.h, EXPERTS OF RANKS): the rows that travel to them and back.
 *
 * Slots are sorted by expert, so those of a unit's experts are one range of all slots, and those of
 * one rank's experts a range of that. They travel as one parcel:
 *
 *   forward    slots of each expert, rows of x
 *              back: rows of y
 *   backward   slots of each expert, order, weights, rows of x, room for gradients of weights, rows
 *              of dy
 *              back: gradients of weights, rows of dx
 *
 * A result takes the place of what it is computed from, and the end of a parcel is its result. The
 * order says which slots have a choice: slot i has i, others -1 (kernels/ops_experts.h).
 *
 * The buffer `sent` has the parcels one after the other. In `received` each rank's parcel has room
 * for the worst case. layer_experts.c computes between the two. Memory is the host's. */
#include <assert.h>
#include <string.h>

#include "model/model_internal.h"

int modeli_check_expert_ranks(const model_spec *spec)
{
    unsigned long long ranks = spec->expert_ranks, all = spec->expert_count;
    unsigned long long unit = spec->experts_per_unit;
    unsigned tensors = modeli_has_expert_biases(spec->family) ? 4 : 2; /* of a group */
    if (ranks <= 1)
        return 0;
    if (all == 0)
        return err_set(ERR_CONFIG,
                       "model.expert_parallel_size is %llu, but the model has no experts: leave it "
                       "out",
                       ranks);
    if (all % ranks != 0)
        return err_set(
            ERR_CONFIG,
            "model.expert_parallel_size is %llu, but must divide model.num_experts %llu, "
            "so that each rank owns as many experts",
            ranks, all);
    if (unit % ranks != 0)
        return err_set(ERR_CONFIG,
                       "model.experts_per_unit is %llu, but must be a multiple of "
                       "model.expert_parallel_size %llu, since each rank owns a part of each unit",
                       unit, ranks);
    /* They train with the bits of ZeRO, but src/hf takes a unit to have one part of each. */
    if (modeli_names_experts(spec))
        return err_set(ERR_CONFIG,
                       "model.expert_parallel_size is %llu, but train.lora.targets names experts, "
                       "whose adapters could not be exported: take experts out of the targets, or "
                       "set model.expert_parallel_size to 1",
                       ranks);
    if (tensors * ranks > MODELI_GROUPED_MAX)
        return err_set(ERR_CONFIG,
                       "model.expert_parallel_size is %llu, but at most %u is possible here (%u if "
                       "experts have no biases)",
                       ranks, MODELI_GROUPED_MAX / tensors, MODELI_GROUPED_MAX / 2);
    if (model_asks_packed(spec))
        return err_set(ERR_CONFIG,
                       "model.expert_parallel_size is %llu, but state.params or state.rules asks "
                       "for packed parameters, which cannot be combined: leave one of them out",
                       ranks);
    return 0;
}

/* ---- parcels ---- */

static uint64_t row_bytes(const modeli_layer *layer)
{
    return layer->in * dtype_bytes(layer->net->type);
}

static uint64_t own_count(const modeli_layer *layer, const modeli_part *part)
{
    return part->rows / modeli_expert_groups(layer);
}

/* Offsets in a parcel of so many slots. */
struct parcel_layout {
    uint64_t counts, order, weights, inputs, weights_grad, rows, end;
    uint64_t reply; /* where the result begins */
};

static struct parcel_layout layout_of(const modeli_layer *layer, const modeli_part *part,
                                      bool backward, uint64_t slots)
{
    struct parcel_layout at = {0};
    at.counts = modeli_reserve(&at.end, own_count(layer, part) * sizeof(int32_t));
    if (backward) {
        at.order = modeli_reserve(&at.end, slots * sizeof(int32_t));
        at.weights = modeli_reserve(&at.end, slots * sizeof(float));
        at.inputs = modeli_reserve(&at.end, slots * row_bytes(layer));
    }
    at.reply = at.end;
    at.weights_grad = modeli_reserve(&at.end, backward ? slots * sizeof(float) : 0);
    at.rows = modeli_reserve(&at.end, slots * row_bytes(layer));
    if (!backward)
        at.inputs = at.rows;
    return at;
}

void modeli_size_exchange(const modeli_layer *layer, const modeli_part *part, bool backward,
                          struct pass *pass)
{
    const model *self = layer->net;
    uint64_t ranks = modeli_expert_groups(layer), rows = modeli_rows(self);
    uint64_t count = own_count(layer, part), multiple = modeli_slot_multiple(self);
    uint64_t choices = modeli_choices_of(layer), all = self->spec.expert_count;
    uint64_t table = parcel_table_bytes(ranks);
    /* The worst case of one rank's experts, and of the whole unit. */
    uint64_t most = experts_slots_max(rows, count, size_min(choices, count), multiple);
    uint64_t unit_most =
        experts_slots_max(rows, part->rows, size_min(choices, part->rows), multiple);
    struct parcel_layout largest = layout_of(layer, part, backward, most);
    struct parcel_layout none = layout_of(layer, part, backward, 0);
    uint64_t slot_bytes = layout_of(layer, part, backward, MODELI_ALIGN_BYTES).end - none.end;
    uint64_t ends = 5 * MODELI_ALIGN_BYTES; /* what rounding adds to each parcel */
    pass->received_bytes = table + ranks * largest.end;
    pass->sent_bytes =
        table + ranks * (none.end + ends) +
        size_round_up(unit_most, MODELI_ALIGN_BYTES) / MODELI_ALIGN_BYTES * slot_bytes;
    /* The usual one. */
    uint64_t slots = count * size_round_up(size_div_up(rows * choices, all), multiple);
    struct parcel_layout usual = layout_of(layer, part, backward, slots);
    pass->dispatched_bytes = (ranks - 1) * usual.end;
    pass->returned_bytes = (ranks - 1) * (usual.end - usual.reply);
    pass->moved_bytes = 2 * ranks * usual.end;
}

static rank_parcel *table_of(void *buffer)
{
    return buffer;
}

static void view_parcel(const struct parcel_layout *at, char *base, modeli_parcel_rows *view)
{
    view->counts = (int32_t *)(void *)(base + at->counts);
    view->order = (int32_t *)(void *)(base + at->order);
    view->weights = (float *)(void *)(base + at->weights);
    view->inputs = base + at->inputs;
    view->weights_grad = (float *)(void *)(base + at->weights_grad);
    view->rows = base + at->rows;
}

void modeli_open_parcel(const modeli_run *run, const modeli_layer *layer, uint64_t rank,
                        modeli_parcel_rows *view, int32_t *offsets)
{
    bool backward = run->turn == MODELI_TURN_BACKWARD;
    char *base = (char *)run->call->received + table_of(run->call->received)[rank].begin_bytes;
    uint64_t count = own_count(layer, run->part);
    const int32_t *counts = (const int32_t *)(const void *)base;
    offsets[0] = 0;
    for (uint64_t i = 0; i < count; i++)
        offsets[i + 1] = offsets[i] + counts[i];
    struct parcel_layout at = layout_of(layer, run->part, backward, (uint64_t)offsets[count]);
    assert(at.end == table_of(run->call->received)[rank].size_bytes);
    view_parcel(&at, base, view);
}

void modeli_close_parcel(const modeli_run *run, const modeli_layer *layer, uint64_t rank,
                         uint64_t slots)
{
    bool backward = run->turn == MODELI_TURN_BACKWARD;
    struct parcel_layout at = layout_of(layer, run->part, backward, slots);
    rank_parcel *place = &table_of(run->call->received)[rank];
    place->begin_bytes += at.reply;
    place->size_bytes = at.end - at.reply;
}

/* ---- before and after the experts ---- */

/* The two steps have in common the routing of this rank's rows. */
struct home {
    const modeli_run *run;
    const modeli_layer *layer;
    const int32_t *offsets; /* of the unit's experts, within all slots */
    experts_rows_args rows;
    bool backward;
};

static struct home home_of(const modeli_run *run, const modeli_layer *layer,
                           const experts_rows_args *rows, const int32_t *offsets)
{
    return (struct home){.run = run,
                         .layer = layer,
                         .offsets = offsets + run->part->row_begin,
                         .rows = *rows,
                         .backward = run->turn == MODELI_TURN_BACKWARD};
}

/* The slots of a rank's experts. */
static uint64_t slots_of(const struct home *of, uint64_t rank, uint64_t *begin)
{
    uint64_t count = own_count(of->layer, of->run->part);
    *begin = (uint64_t)of->offsets[rank * count];
    return (uint64_t)of->offsets[(rank + 1) * count] - *begin;
}

static int gather(const struct home *of, uint64_t begin, uint64_t slots, const void *tokens,
                  void *target)
{
    const model *self = of->run->self;
    experts_rows_args args = of->rows;
    args.slot_begin = begin;
    args.slot_count = slots;
    args.tokens = tokens;
    args.slot_rows = target;
    return slots ? self->ops->experts_gather(self->context, of->run->stream, &args) : 0;
}

/* Fills what the owner needs of each slot, besides its rows. */
static void describe_slots(const struct home *of, uint64_t begin, uint64_t slots,
                           const modeli_parcel_rows *parcel)
{
    for (uint64_t i = 0; i < slots; i++) {
        int32_t choice = of->rows.order[begin + i];
        parcel->order[i] = choice < 0 ? -1 : (int32_t)i;
        parcel->weights[i] = choice < 0 ? 0 : of->rows.weights[choice];
        parcel->weights_grad[i] = 0;
    }
}

static int fill_parcel(const struct home *of, uint64_t rank, uint64_t *end)
{
    const modeli_run *run = of->run;
    uint64_t begin, slots = slots_of(of, rank, &begin), count = own_count(of->layer, run->part);
    struct parcel_layout at = layout_of(of->layer, run->part, of->backward, slots);
    modeli_parcel_rows parcel;
    char *base = (char *)run->call->sent + *end;
    view_parcel(&at, base, &parcel);
    memset(parcel.counts, 0, size_round_up(count * sizeof(int32_t), MODELI_ALIGN_BYTES));
    for (uint64_t i = 0; i < count; i++)
        parcel.counts[i] = of->offsets[rank * count + i + 1] - of->offsets[rank * count + i];
    if (of->backward)
        describe_slots(of, begin, slots, &parcel);
    TRY(gather(of, begin, slots, modeli_value_at(run, of->layer->reads[0]), parcel.inputs));
    if (of->backward)
        TRY(gather(of, begin, slots, modeli_at_spot(run, of->layer->output_grad), parcel.rows));
    table_of(run->call->sent)[rank] = (rank_parcel){*end, at.end};
    *end += at.end;
    return 0;
}

int modeli_send_rows(const modeli_run *run, const modeli_layer *layer,
                     const experts_rows_args *rows, const int32_t *offsets)
{
    struct home of = home_of(run, layer, rows, offsets);
    uint64_t ranks = modeli_expert_groups(layer), end = parcel_table_bytes(ranks);
    for (uint64_t r = 0; r < ranks; r++)
        TRY(fill_parcel(&of, r, &end));
    return 0;
}

/* Adds rows of slots to the sums of their tokens. */
static int combine(const struct home *of, uint64_t begin, uint64_t slots, void *slot_rows)
{
    const model *self = of->run->self;
    experts_rows_args args = of->rows;
    args.slot_begin = begin;
    args.slot_count = slots;
    args.slot_rows = slot_rows;
    args.weights = of->backward ? NULL : args.weights;
    return slots ? self->ops->experts_combine(self->context, of->run->stream, &args) : 0;
}

/* Takes the results of one rank's experts in the order in which this rank would have computed
 * them. */
static int take_parcel(const struct home *of, uint64_t rank)
{
    const modeli_run *run = of->run;
    uint64_t begin, slots = slots_of(of, rank, &begin), count = own_count(of->layer, run->part);
    struct parcel_layout at = layout_of(of->layer, run->part, of->backward, slots);
    const rank_parcel *place = &table_of(run->call->sent)[rank];
    char *base = (char *)run->call->sent + place->begin_bytes - at.reply;
    assert(place->size_bytes == at.end - at.reply);
    char *result = base + at.rows;
    const float *weights_grad = (const float *)(const void *)(base + at.weights_grad);
    if (!of->backward)
        return combine(of, begin, slots, result);
    for (uint64_t i = 0; i < slots; i++)
        if (of->rows.order[begin + i] >= 0)
            of->rows.weights_grad[of->rows.order[begin + i]] = weights_grad[i];
    for (uint64_t i = count; i-- > 0;) {
        uint64_t first = (uint64_t)of->offsets[rank * count + i];
        uint64_t next = (uint64_t)of->offsets[rank * count + i + 1];
        TRY(combine(of, first, next - first, result + (first - begin) * row_bytes(of->layer)));
    }
    return 0;
}

int modeli_take_results(const modeli_run *run, const modeli_layer *layer,
                        const experts_rows_args *rows, const int32_t *offsets)
{
    struct home of = home_of(run, layer, rows, offsets);
    uint64_t ranks = modeli_expert_groups(layer);
    for (uint64_t r = 0; r < ranks; r++)
        TRY(take_parcel(&of, of.backward ? ranks - 1 - r : r));
    return 0;
}
