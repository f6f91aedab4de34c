/* The places of a block's values and of their gradients, and the layers that a backward computes
 * again. All this follows from the order of the layers and from what each kind's backward reads.
 * Pure.
 *
 * TIME. With n layers, layer i runs at time i in the forward or in the recomputation, and at time
 * 2n - 1 - i in the backward. A piece of `saved` is needed from the time when it is written to the
 * time when it is last read. Pieces may share memory if no time needs both.
 *
 * VALUES. `saved` keeps the values that a backward reads. The others lie in a boundary buffer where
 * one is free:
 * - the input x and the output y; and the value that the last sum adds, which y replaces;
 * - in a whole block, a value of C columns that no backward reads (MODELI_SCRATCH), unless another
 *   value lies there at that time, as with two branches that are added at the end.
 *
 * GRADIENTS. kind->gradient says what a kind can do. A gradient takes the place of its value, or of
 * another gradient, where nothing reads that later. Gradients of attention's operands need places
 * of their own; they find the space of the values after attention. The gradient of a value with
 * several readers is a sum: its last reader gives the first term, and each reader before that adds
 * its own (residual_grad). An ADD only passes a gradient on, so what it adds has no later reader.
 *
 * KEPT SELECTIVELY. With KEPT_SELECTIVE the backward computes again what layers without products
 * can make of what it has: the outputs of norms and gates. `saved` begins with the pieces that are
 * kept. No piece lies on both sides of their end, so that the rest may lie elsewhere:
 *
 *   0                               selective_bytes                      saved_bytes
 *   | qkv, o, m, f, statistics of o | a, b, g, statistics of a and b ... |
 *
 * Gradients take places of either side. A block in parts keeps all.
 *
 * A block in parts also has these pieces, which its passes leave for each other:
 *   input_sum      [N, widest input] fp32    gradient of a layer's input, summed over its parts
 *   bias_sums      [widest output] fp32      column sums of the gradient of a layer's output */
#include <assert.h>

#include "model/model_internal.h"

enum {
    PIECES_MAX =
        2 * MODELI_VALUES_MAX + MODELI_KEPT_MAX * MODELI_LAYERS_MAX + MODELI_LIST_ADAPTERS_MAX
};

/* A piece of `saved`, needed at times [first, last]. */
struct piece {
    uint64_t bytes, offset, end;
    uint32_t first, last;
    bool is_selective; /* kept with KEPT_SELECTIVE */
    bool is_placed;
};

/* Until all pieces have their place, the offset of a spot in `saved` is the index of its piece. */
struct layout {
    const model *self;
    modeli_list *list;
    struct piece pieces[PIECES_MAX];
    uint32_t piece_count;
    uint64_t selective_end; /* of the selective pieces; 0 as long as they are not placed */
    bool is_kept[MODELI_VALUES_MAX];
    bool is_selective[MODELI_VALUES_MAX]; /* kept with KEPT_SELECTIVE */
    modeli_spot grads[MODELI_VALUES_MAX]; /* of each value, as far as the walk back has come */
};

static uint32_t back_time(const modeli_list *list, uint32_t layer)
{
    return 2 * list->layer_count - 1 - layer;
}

static modeli_spot add_piece(struct layout *of, uint64_t bytes, uint32_t first, uint32_t last,
                             bool is_selective)
{
    assert(of->piece_count < PIECES_MAX);
    of->pieces[of->piece_count] =
        (struct piece){.bytes = bytes, .first = first, .last = last, .is_selective = is_selective};
    return (modeli_spot){MODELI_SAVED, of->piece_count++};
}

static uint64_t value_bytes(const struct layout *of, uint32_t value)
{
    return modeli_rows(of->self) * of->list->values[value].columns * dtype_bytes(of->self->type);
}

/* The value that a layer's backward reads, if it reads its input. */
static uint32_t kept_input(const modeli_layer *layer)
{
    if (!layer->kind->keeps_input)
        return MODELI_NO_VALUE;
    return layer->sum != MODELI_NO_VALUE ? layer->sum : layer->reads[0];
}

/* The time of the last backward that reads the value; 0 if there is none. */
static uint32_t last_kept(const modeli_list *list, uint32_t value)
{
    for (uint32_t i = 0; i < list->layer_count; i++) {
        const modeli_layer *layer = &list->layers[i];
        if (kept_input(layer) == value || (layer->kind->keeps_output && layer->writes == value))
            return back_time(list, i);
    }
    return 0;
}

static uint32_t first_written(const modeli_list *list, uint32_t value)
{
    uint32_t i = 0;
    while (list->layers[i].writes != value && list->layers[i].sum != value)
        i++;
    return i;
}

static uint32_t last_read(const modeli_list *list, uint32_t value)
{
    uint32_t last = first_written(list, value);
    for (uint32_t i = last; i < list->layer_count; i++)
        for (uint32_t k = 0; k < MODELI_READS_MAX; k++)
            last = list->layers[i].reads[k] == value ? i : last;
    return last;
}

/* ---- values ---- */

/* True for the output, and for the value that the last sum adds, which the output replaces. */
static bool is_in_output(const struct layout *of, uint32_t value)
{
    const modeli_list *list = of->list;
    const modeli_layer *last = &list->layers[list->layer_count - 1];
    return value == last->writes ||
           (!of->is_kept[value] && last->kind == &modeli_add && last->reads[1] == value &&
            !list->layers[first_written(list, value)].is_recomputed[KEPT_NONE]);
}

/* True if call.output is free for a value in the forward: no other value lies there as long as this
 * one is needed. A layer may read one value there and replace it by another. */
static bool finds_scratch(const struct layout *of, uint32_t value)
{
    const modeli_list *list = of->list;
    if (list->part_count > 0 || list->values[value].columns != of->self->spec.hidden_size)
        return false;
    for (uint32_t v = MODELI_X + 1; v < list->value_count; v++)
        if (v != value && (is_in_output(of, v) || list->values[v].at.buffer == MODELI_SCRATCH) &&
            first_written(list, v) < last_read(list, value) &&
            first_written(list, value) < last_read(list, v))
            return false;
    return true;
}

static modeli_spot spot_of(struct layout *of, uint32_t value)
{
    const modeli_list *list = of->list;
    uint32_t kept_until = last_kept(list, value);
    if (value == MODELI_X)
        return (modeli_spot){MODELI_INPUT, 0};
    if (is_in_output(of, value))
        return (modeli_spot){MODELI_OUTPUT, 0};
    if (kept_until == 0 && finds_scratch(of, value))
        return (modeli_spot){MODELI_SCRATCH, 0};
    return add_piece(of, value_bytes(of, value), first_written(list, value),
                     kept_until ? kept_until : last_read(list, value), of->is_selective[value]);
}

/* Without `saved` a backward computes again what it reads, and what that is computed from. */
static void find_recomputed(struct layout *of)
{
    bool is_wanted[MODELI_VALUES_MAX];
    for (uint32_t v = 0; v < of->list->value_count; v++)
        is_wanted[v] = of->is_kept[v];
    for (uint32_t i = of->list->layer_count; i-- > 0;) {
        modeli_layer *layer = &of->list->layers[i];
        layer->is_recomputed[KEPT_NONE] =
            is_wanted[layer->writes] || is_wanted[layer->sum] || layer->kind->kept_bytes != NULL;
        for (uint32_t k = 0; k < MODELI_READS_MAX && layer->is_recomputed[KEPT_NONE]; k++)
            is_wanted[layer->reads[k]] = true;
        is_wanted[MODELI_NO_VALUE] = false;
    }
}

/* Decides whether KEPT_SELECTIVE keeps a value that a layer makes. It does if the layer cannot make
 * it again in a backward, which has the values is_there and, if has_inputs, those that the layer
 * makes it of. */
static void decide(struct layout *of, const modeli_layer *layer, uint32_t value, bool has_inputs,
                   bool *is_there)
{
    bool is_cheap = !layer->kind->has_product && has_inputs;
    if (!is_cheap || of->list->part_count > 0)
        of->is_selective[value] |= of->is_kept[value];
    is_there[value] = is_cheap || of->is_selective[value];
}

/* Finds what KEPT_SELECTIVE keeps, and which layers then make the rest again. A layer that changes
 * a kept value in place is not among them: the value is kept as it is after the change. */
static void find_selective(struct layout *of)
{
    const modeli_list *list = of->list;
    bool is_there[MODELI_VALUES_MAX] = {[MODELI_NO_VALUE] = true, [MODELI_X] = true};
    bool is_wanted[MODELI_VALUES_MAX];
    for (uint32_t i = 0; i < list->layer_count; i++) {
        const modeli_layer *layer = &list->layers[i];
        bool has_inputs = true;
        for (uint32_t k = 0; k < MODELI_READS_MAX; k++)
            has_inputs = has_inputs && is_there[layer->reads[k]];
        if (layer->sum != MODELI_NO_VALUE) {
            decide(of, layer, layer->sum, has_inputs, is_there);
            decide(of, layer, layer->writes, is_there[layer->sum], is_there);
        } else {
            decide(of, layer, layer->writes, has_inputs, is_there);
        }
    }
    for (uint32_t v = 0; v < list->value_count; v++)
        is_wanted[v] = of->is_kept[v] && !of->is_selective[v];
    for (uint32_t i = list->layer_count; i-- > 0;) {
        modeli_layer *layer = &of->list->layers[i];
        layer->sum_is_kept = of->is_selective[layer->sum];
        layer->is_recomputed[KEPT_SELECTIVE] = is_wanted[layer->writes] || is_wanted[layer->sum];
        bool is_made = layer->is_recomputed[KEPT_SELECTIVE] && !layer->sum_is_kept;
        for (uint32_t k = 0; k < MODELI_READS_MAX && is_made; k++)
            is_wanted[layer->reads[k]] = !of->is_selective[layer->reads[k]];
        is_wanted[MODELI_NO_VALUE] = is_wanted[MODELI_X] = false;
    }
}

/* ---- gradients ---- */

/* The time when the backward has a value's whole gradient and runs the layer that made the value;
 * for x, the time of the last layer. */
static uint32_t grad_time(const modeli_list *list, uint32_t value)
{
    return back_time(list, value == MODELI_X ? 0 : first_written(list, value));
}

/* Says where a value's gradient lies until then. */
static void take_place(struct layout *of, uint32_t value, modeli_spot spot)
{
    if (value == MODELI_NO_VALUE)
        return;
    of->grads[value] = spot;
    if (spot.buffer != MODELI_SAVED)
        return;
    struct piece *piece = &of->pieces[spot.offset_bytes];
    uint32_t end = grad_time(of->list, value);
    piece->last = end > piece->last ? end : piece->last;
}

/* The place of the gradient of the value that layer i reads, if no other gradient has one for it:
 * that of the value, if no later backward reads it; or a new one. */
static modeli_spot new_grad(struct layout *of, uint32_t i)
{
    const modeli_layer *layer = &of->list->layers[i];
    uint32_t value = layer->reads[0], time = back_time(of->list, i);
    if (layer->kind->gradient == MODELI_GRAD_REPLACES && last_kept(of->list, value) == time &&
        of->list->values[value].at.buffer == MODELI_SAVED)
        return of->list->values[value].at;
    return add_piece(of, value_bytes(of, value), time, time, false);
}

/* True if layer i may write the gradient of `value` to a place: no other value has its gradient
 * there that a backward after this layer's reads. */
static bool is_free(const struct layout *of, modeli_spot spot, uint32_t value, uint32_t i)
{
    for (uint32_t v = MODELI_X; v < of->list->value_count; v++)
        if (v != value && of->grads[v].buffer == spot.buffer &&
            of->grads[v].offset_bytes == spot.offset_bytes &&
            grad_time(of->list, v) > back_time(of->list, i))
            return false;
    return spot.buffer != MODELI_OUTPUT_GRAD; /* which is the caller's */
}

/* The place of the sum of a layer's residual_grad and its own gradient of the value. */
static modeli_spot sum_place(struct layout *of, const modeli_layer *layer, uint32_t value,
                             uint32_t i)
{
    const modeli_spot input_grad = {MODELI_GRAD, 0};
    bool is_last = value == MODELI_X && i == 0; /* the block's input_grad is complete */
    if (!is_last && is_free(of, layer->residual_grad, value, i))
        return layer->residual_grad;
    if (is_free(of, input_grad, value, i))
        return input_grad;
    return layer->own_grad.buffer != MODELI_NOWHERE ? layer->own_grad : new_grad(of, i);
}

/* The gradients of MODELI_GRAD_COLUMNS. */
static void place_columns(struct layout *of, uint32_t i)
{
    modeli_layer *layer = &of->list->layers[i];
    uint32_t time = back_time(of->list, i);
    layer->output_grad = of->grads[layer->writes];
    for (uint32_t k = 0; k < MODELI_READS_MAX && layer->reads[k] != MODELI_NO_VALUE; k++) {
        uint32_t value = layer->reads[k];
        assert(value != MODELI_X && value != layer->writes);
        if (of->grads[value].buffer == MODELI_NOWHERE)
            take_place(of, value, add_piece(of, value_bytes(of, value), time, time, false));
        layer->input_grads[k] = of->grads[value];
    }
}

static void place_grad(struct layout *of, uint32_t i)
{
    modeli_layer *layer = &of->list->layers[i];
    if (layer->kind->gradient == MODELI_GRAD_COLUMNS) {
        place_columns(of, i);
        return;
    }
    layer->output_grad = layer->input_grad = of->grads[layer->writes];
    assert(layer->output_grad.buffer != MODELI_NOWHERE);
    bool is_changed = layer->kind->gradient != MODELI_GRAD_IN_PLACE &&
                      layer->kind->gradient != MODELI_GRAD_PASSES;
    uint32_t value = layer->sum != MODELI_NO_VALUE ? layer->sum : layer->reads[0];
    if (is_changed && value != layer->writes)
        layer->residual_grad = of->grads[value];
    bool adds = layer->residual_grad.buffer != MODELI_NOWHERE;
    assert(!adds || layer->kind->is_norm || layer->kind->has_matrix);
    for (int k = 0; k < 2 && (!is_changed || layer->sum != MODELI_NO_VALUE); k++)
        assert(layer->reads[k] == layer->writes ||
               of->grads[layer->reads[k]].buffer == MODELI_NOWHERE);
    bool is_only =
        value == MODELI_X && !adds && i == 0; /* nobody else gives the input's gradient */
    if (is_changed && is_only)
        layer->input_grad = layer->own_grad = (modeli_spot){MODELI_GRAD, 0};
    else if (is_changed && !(adds && layer->kind->gradient == MODELI_GRAD_ADDS))
        layer->input_grad = layer->own_grad = new_grad(of, i);
    if (adds)
        layer->input_grad = sum_place(of, layer, value, i);
    take_place(of, layer->reads[0], layer->input_grad);
    take_place(of, layer->reads[1], layer->input_grad);
}

/* ---- memory ---- */

/* True if the piece may not lie at its offset. *next: an offset above what is in its way. */
static bool is_in_the_way(const struct layout *of, const struct piece *piece, uint64_t *next)
{
    uint64_t end = piece->offset;
    modeli_reserve(&end, piece->bytes);
    for (uint32_t i = 0; i < of->piece_count; i++) {
        const struct piece *other = &of->pieces[i];
        *next = other->end;
        if (other->is_placed && other->first <= piece->last && piece->first <= other->last &&
            piece->offset < other->end && other->offset < end)
            return true;
    }
    *next = of->selective_end;
    return piece->offset < of->selective_end && end > of->selective_end;
}

/* Gives a piece the lowest place, and returns its end. A piece that a recomputation writes may not
 * lie in the first part of `saved`, which is kept then. */
static uint64_t place_piece(struct layout *of, struct piece *piece)
{
    bool is_made_again = piece->first < of->list->layer_count && !piece->is_selective;
    piece->offset = is_made_again ? of->selective_end : 0;
    for (uint64_t next; is_in_the_way(of, piece, &next);)
        piece->offset = next;
    piece->is_placed = true;
    piece->end = piece->offset;
    modeli_reserve(&piece->end, piece->bytes);
    return piece->end;
}

/* The order in which pieces get their places: what is kept selectively, what else is kept from the
 * forward to the backward, the others. */
static int rank_of(const struct layout *of, const struct piece *piece)
{
    uint32_t turn = of->list->layer_count;
    return piece->is_selective ? 0 : piece->first < turn && piece->last >= turn ? 1 : 2;
}

/* Places each rank in order of time. */
static void place_pieces(struct layout *of)
{
    uint64_t end = 0;
    for (int rank = 0; rank < 3; rank++) {
        for (uint32_t time = 0; time < 2 * of->list->layer_count; time++)
            for (uint32_t i = 0; i < of->piece_count; i++) {
                struct piece *piece = &of->pieces[i];
                if (piece->first == time && rank_of(of, piece) == rank)
                    end = size_max(end, place_piece(of, piece));
            }
        if (rank == 0 && of->list->part_count == 0)
            of->selective_end = of->list->selective_bytes = end;
    }
    of->list->saved_bytes = end;
}

static void resolve(const struct layout *of, modeli_spot *spot)
{
    if (spot->buffer == MODELI_SAVED)
        spot->offset_bytes = of->pieces[spot->offset_bytes].offset;
}

static void place_parts(const model *self, modeli_list *list, uint64_t *end)
{
    uint64_t widest_in = 0, widest_out = 0;
    bool has_bias = false;
    for (uint32_t i = 0; i < list->layer_count; i++) {
        const modeli_layer *layer = &list->layers[i];
        if (layer->matrix_rows == 0)
            continue;
        widest_in = size_max(widest_in, layer->in);
        widest_out = size_max(widest_out, layer->matrix_rows);
        has_bias |= layer->at.bias != MODELI_ABSENT;
    }
    list->input_sum = modeli_reserve(end, modeli_rows(self) * widest_in * sizeof(float));
    list->bias_sums = modeli_reserve(end, has_bias ? widest_out * sizeof(float) : 0);
}

/* Pieces that only their layer uses, and the adapters' inner activations. */
static void add_own_pieces(struct layout *of)
{
    modeli_list *list = of->list;
    for (uint32_t i = 0; i < list->layer_count; i++) {
        modeli_layer *layer = &of->list->layers[i];
        for (uint32_t k = 0; k < MODELI_KEPT_MAX && layer->kind->kept_bytes; k++)
            layer->kept[k] = add_piece(of, layer->kind->kept_bytes(layer, k), i, back_time(list, i),
                                       !layer->is_recomputed[KEPT_SELECTIVE]);
    }
    for (uint32_t a = 0; a < list->adapter_count; a++) {
        modeli_adapter *adapter = &list->adapters[a];
        adapter->inner_at = add_piece(of, modeli_lora_saved_bytes(of->self), adapter->layer,
                                      back_time(list, adapter->layer), true);
    }
}

static void find_places(const model *self, modeli_list *list)
{
    struct layout of = {.self = self, .list = list};
    for (uint32_t v = MODELI_X; v < list->value_count; v++)
        of.is_kept[v] = last_kept(list, v) > 0;
    find_recomputed(&of);
    find_selective(&of);
    add_own_pieces(&of);
    for (uint32_t v = MODELI_X; v < list->value_count; v++)
        list->values[v].at = spot_of(&of, v);
    of.grads[list->layers[list->layer_count - 1].writes] = (modeli_spot){MODELI_OUTPUT_GRAD, 0};
    for (uint32_t i = list->layer_count; i-- > 0;)
        place_grad(&of, i);
    assert(of.grads[MODELI_X].buffer == MODELI_GRAD);

    place_pieces(&of);
    for (uint32_t v = MODELI_X; v < list->value_count; v++)
        resolve(&of, &list->values[v].at);
    for (uint32_t a = 0; a < list->adapter_count; a++)
        resolve(&of, &list->adapters[a].inner_at);
    for (uint32_t i = 0; i < list->layer_count; i++) {
        modeli_layer *layer = &list->layers[i];
        modeli_spot *spots[] = {&layer->kept[0],    &layer->kept[1],       &layer->output_grad,
                                &layer->input_grad, &layer->residual_grad, &layer->own_grad};
        for (uint32_t k = 0; k < sizeof spots / sizeof spots[0]; k++)
            resolve(&of, spots[k]);
        for (uint32_t k = 0; k < MODELI_READS_MAX; k++)
            resolve(&of, &layer->input_grads[k]);
    }
    if (list->part_count == 0)
        return;
    place_parts(self, list, &list->saved_bytes);
    list->selective_bytes = list->saved_bytes;
}

void modeli_find_places(model *self)
{
    find_places(self, &self->products->block);
    if (self->products->dense.layer_count > 0)
        find_places(self, &self->products->dense);
    if (self->products->experts.layer_count > 0)
        find_places(self, &self->products->experts);
    if (self->products->last.layer_count > 0)
        find_places(self, &self->products->last);
}
