/* Experts that belong to ranks (model.h, EXPERTS OF RANKS): the rows that travel to them and back.
 *
 * Slots are sorted by expert, so those of a unit's experts are one range of all slots, and those of
 * one rank's experts a range of that. They travel as one parcel:
 *
 *   forward    offsets of the slots of each expert, rows of x
 *              back: rows of y
 *   backward   offsets, weights, rows of x, room for gradients of weights, rows of dy
 *              back: gradients of weights, rows of dx
 *
 * A result takes the place of what it is computed from, and the end of a parcel is its result. The
 * owner takes every slot for a choice of its own. A slot without a choice has weight 0 and rows of
 * zeros, so it adds nothing.
 *
 * The buffer `sent` has the parcels one after the other. In `received` each rank's parcel has the
 * same room, enough for the worst case, so that one call reads the offsets of all ranks back.
 * layer_experts.c computes between the two. The backend's ops copy the rows; a weight is a row of
 * one channel there. */
#include <assert.h>

#include "model/model_internal.h"

static_assert((int)MODELI_ALIGN_BYTES == (int)PARCEL_ALIGN_BYTES,
              "a rank's room is a whole layout");

int modeli_check_expert_ranks(const model_spec *spec)
{
    unsigned long long ranks = spec->expert_ranks, all = spec->expert_count;
    unsigned long long unit = spec->experts_per_unit;
    bool has_more = modeli_has_expert_biases(spec->family) || modeli_names_experts(spec);
    unsigned tensors = has_more ? 4 : 2; /* of a group, or of its adapters */
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
    if (tensors * ranks > MODELI_GROUPED_MAX)
        return err_set(ERR_CONFIG,
                       "model.expert_parallel_size is %llu, but at most %u is possible here (%u if "
                       "experts have neither biases nor adapters)",
                       ranks, MODELI_GROUPED_MAX / tensors, MODELI_GROUPED_MAX / 2);
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
    uint64_t offsets, weights, inputs, weights_grad, rows, end;
    uint64_t reply; /* where the result begins */
};

static struct parcel_layout layout_of(const modeli_layer *layer, const modeli_part *part,
                                      bool backward, uint64_t slots)
{
    struct parcel_layout at = {0};
    at.offsets = modeli_reserve(&at.end, (own_count(layer, part) + 1) * sizeof(int32_t));
    if (backward) {
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
    /* The worst case of one rank's experts, and of the whole unit. */
    uint64_t most = experts_slots_max(rows, count, size_min(choices, count), multiple);
    uint64_t unit_most =
        experts_slots_max(rows, part->rows, size_min(choices, part->rows), multiple);
    struct parcel_layout largest = layout_of(layer, part, backward, most);
    struct parcel_layout none = layout_of(layer, part, backward, 0);
    uint64_t slot_bytes = layout_of(layer, part, backward, MODELI_ALIGN_BYTES).end - none.end;
    uint64_t ends = 4 * MODELI_ALIGN_BYTES; /* what rounding adds to each parcel */
    pass->received_bytes = ranks * largest.end;
    pass->sent_bytes = ranks * (none.end + ends) + size_round_up(unit_most, MODELI_ALIGN_BYTES) /
                                                       MODELI_ALIGN_BYTES * slot_bytes;
    /* The usual one. */
    uint64_t slots =
        size_min(count * size_round_up(size_div_up(rows * choices, all), multiple), most);
    struct parcel_layout usual = layout_of(layer, part, backward, slots);
    pass->dispatched_bytes = (ranks - 1) * usual.end;
    pass->returned_bytes = (ranks - 1) * (usual.end - usual.reply);
    pass->moved_bytes = 2 * ranks * usual.end;
}

static void view_parcel(const struct parcel_layout *at, char *base, modeli_parcel_rows *view)
{
    view->offsets = (int32_t *)(void *)(base + at->offsets);
    view->weights = (float *)(void *)(base + at->weights);
    view->inputs = base + at->inputs;
    view->weights_grad = (float *)(void *)(base + at->weights_grad);
    view->rows = base + at->rows;
}

int modeli_read_parcels(const modeli_run *run, const modeli_layer *layer, int32_t *offsets)
{
    const model *self = run->self;
    const rank_parcel *places = run->call->parcels.received;
    uint64_t ranks = modeli_expert_groups(layer), width = own_count(layer, run->part) + 1;
    uint64_t stride = places[1].begin_bytes - places[0].begin_bytes;
    for (uint64_t r = 1; r < ranks; r++)
        assert(places[r].begin_bytes == places[0].begin_bytes + r * stride);
    const read_back_args args = {.source =
                                     (const char *)run->call->received + places[0].begin_bytes,
                                 .target = offsets,
                                 .rows = ranks,
                                 .row_bytes = width * sizeof *offsets,
                                 .stride_bytes = stride};
    TRY(self->ops->read_back(self->context, run->stream, &args));
    for (uint64_t r = 0; r < ranks; r++)
        for (uint64_t i = width; i-- > 0;)
            offsets[r * width + i] -= offsets[r * width];
    return 0;
}

void modeli_open_parcel(const modeli_run *run, const modeli_layer *layer, uint64_t rank,
                        const int32_t *offsets, modeli_parcel_rows *view)
{
    bool backward = run->turn == MODELI_TURN_BACKWARD;
    const rank_parcel *place = &run->call->parcels.received[rank];
    uint64_t slots = (uint64_t)offsets[own_count(layer, run->part)];
    struct parcel_layout at = layout_of(layer, run->part, backward, slots);
    assert(at.end == place->size_bytes);
    view_parcel(&at, (char *)run->call->received + place->begin_bytes, view);
}

void modeli_close_parcel(const modeli_run *run, const modeli_layer *layer, uint64_t rank,
                         uint64_t slots)
{
    bool backward = run->turn == MODELI_TURN_BACKWARD;
    struct parcel_layout at = layout_of(layer, run->part, backward, slots);
    rank_parcel *place = &run->call->parcels.received[rank];
    place->begin_bytes += at.reply;
    place->size_bytes = at.end - at.reply;
}

/* ---- before and after the experts ---- */

/* The two steps have in common the routing of this rank's rows. */
struct home {
    const modeli_run *run;
    const modeli_layer *layer;
    const int32_t *offsets; /* of the unit's experts, within all slots; on the host */
    experts_rows_args rows;
    experts_rows_args weights; /* the same with a row of one channel for each choice */
    bool backward;
};

static struct home home_of(const modeli_run *run, const modeli_layer *layer,
                           const experts_rows_args *rows, const int32_t *offsets)
{
    struct home of = {.run = run,
                      .layer = layer,
                      .offsets = offsets + run->part->row_begin,
                      .rows = *rows,
                      .weights = *rows,
                      .backward = run->turn == MODELI_TURN_BACKWARD};
    of.weights.type = DTYPE_FP32;
    of.weights.rows *= rows->choices;
    of.weights.choices = of.weights.channels = 1;
    of.weights.weights = NULL;
    of.weights.sums = rows->weights_grad;
    return of;
}

/* The slots of a rank's experts. */
static uint64_t slots_of(const struct home *of, uint64_t rank, uint64_t *begin)
{
    uint64_t count = own_count(of->layer, of->run->part);
    *begin = (uint64_t)of->offsets[rank * count];
    return (uint64_t)of->offsets[(rank + 1) * count] - *begin;
}

static int gather(const struct home *of, const experts_rows_args *rows, uint64_t begin,
                  uint64_t slots, const void *tokens, void *target)
{
    const model *self = of->run->self;
    experts_rows_args args = *rows;
    args.slot_begin = begin;
    args.slot_count = slots;
    args.tokens = tokens;
    args.slot_rows = target;
    return slots ? self->ops->experts_gather(self->context, of->run->stream, &args) : 0;
}

static int fill_parcel(const struct home *of, const int32_t *offsets, uint64_t rank, uint64_t *end)
{
    const modeli_run *run = of->run;
    const model *self = run->self;
    uint64_t begin, slots = slots_of(of, rank, &begin), count = own_count(of->layer, run->part);
    struct parcel_layout at = layout_of(of->layer, run->part, of->backward, slots);
    modeli_parcel_rows parcel;
    char *base = (char *)run->call->sent + *end;
    view_parcel(&at, base, &parcel);
    /* Between equal types it copies words of 4 bytes. */
    TRY(self->ops->convert(self->context, run->stream, offsets + rank * count, DTYPE_FP32,
                           parcel.offsets, DTYPE_FP32, count + 1));
    TRY(gather(of, &of->rows, begin, slots, modeli_value_at(run, of->layer->reads[0]),
               parcel.inputs));
    if (of->backward) {
        TRY(gather(of, &of->weights, begin, slots, of->rows.weights, parcel.weights));
        TRY(self->ops->zero(self->context, run->stream, parcel.weights_grad,
                            slots * sizeof(float)));
        TRY(gather(of, &of->rows, begin, slots, modeli_at_spot(run, of->layer->output_grad),
                   parcel.rows));
    }
    run->call->parcels.sent[rank] = (rank_parcel){*end, at.end};
    run->call->parcels.results[rank] = (rank_parcel){*end + at.reply, at.end - at.reply};
    *end += at.end;
    return 0;
}

int modeli_send_rows(const modeli_run *run, const modeli_layer *layer,
                     const experts_rows_args *rows, const int32_t *offsets,
                     const int32_t *device_offsets)
{
    struct home of = home_of(run, layer, rows, offsets);
    uint64_t ranks = modeli_expert_groups(layer), end = 0;
    for (uint64_t r = 0; r < ranks; r++)
        TRY(fill_parcel(&of, device_offsets + run->part->row_begin, r, &end));
    return 0;
}

/* Adds rows of slots to the sums of their tokens. */
static int combine(const struct home *of, const experts_rows_args *rows, uint64_t begin,
                   uint64_t slots, void *slot_rows)
{
    const model *self = of->run->self;
    experts_rows_args args = *rows;
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
    const rank_parcel *place = &run->call->parcels.results[rank];
    char *base = (char *)run->call->sent + place->begin_bytes - at.reply;
    assert(place->size_bytes == at.end - at.reply);
    char *result = base + at.rows;
    if (!of->backward)
        return combine(of, &of->rows, begin, slots, result);
    /* Each choice gets one addition to 0, which changes no bit. */
    TRY(combine(of, &of->weights, begin, slots, base + at.weights_grad));
    for (uint64_t i = count; i-- > 0;) {
        uint64_t first = (uint64_t)of->offsets[rank * count + i];
        uint64_t next = (uint64_t)of->offsets[rank * count + i + 1];
        TRY(combine(of, &of->rows, first, next - first,
                    result + (first - begin) * row_bytes(of->layer)));
    }
    return 0;
}

int modeli_take_results(const modeli_run *run, const modeli_layer *layer,
                        const experts_rows_args *rows, const int32_t *offsets)
{
    struct home of = home_of(run, layer, rows, offsets);
    const model *self = run->self;
    uint64_t ranks = modeli_expert_groups(layer);
    if (of.backward && run->part->is_last) /* the first pass of the backward */
        TRY(self->ops->zero(self->context, run->stream, of.weights.sums,
                            of.weights.rows * sizeof(float)));
    for (uint64_t r = 0; r < ranks; r++)
        TRY(take_parcel(&of, of.backward ? ranks - 1 - r : r));
    return 0;
}
