/* Reads the numbers of a checkpoint's tensors as fp32; see weights.h.
 *
 *   unit's elements ─ by tensor ─┬─► plain: bytes of the file, in pieces, a thread each ─┬─► fp32
 *                                └─► transposed: a strip of rows, from all of the matrix ─┘ */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <omp.h>
#include <string.h>

#include "base/size.h"
#include "hf/hf_internal.h"

enum {
    TEAM_ELEMS = 1 << 16, /* fewer are converted before a team is awake */
    TURN_BLOCK = 32       /* elements per side: two such blocks of 4 bytes fit in the L1 cache */
};

/* The drive reads this far ahead while earlier bytes are converted. */
#define AHEAD_BYTES (32 * MIB)

/* Keeps the first failure of a team's threads. */
static void keep_error(err_record *first, int rc)
{
    if (rc < 0) {
#pragma omp critical(weights_error)
        err_keep(first, rc);
    }
}

static int team_size(const hf_weights *self, uint64_t piece_count)
{
    int threads = omp_get_max_threads();
    if (threads > self->thread_count)
        threads = self->thread_count;
    return (uint64_t)threads > piece_count ? (int)piece_count : threads;
}

/* Checks that all values are finite. Else every later step would fail without saying why. `begin`:
 * position in the whole tensor. */
static int check_finite(const hf_weights *self, const hf_tensor *at, uint64_t begin, uint64_t count,
                        const float *master)
{
    uint32_t bad = 0;
    for (uint64_t i = 0; i < count; i++)
        bad |= (fp32_bits(master[i]) & 0x7f800000u) == 0x7f800000u;
    if (bad == 0)
        return 0;
    uint64_t first = 0;
    while (isfinite(master[first]))
        first++;
    return err_set(ERR_INPUT,
                   "%s: tensor %s holds a value that is not finite: its element %" PRIu64,
                   hf_path(self->files, at->file_idx), at->tensor->name, begin + first);
}

/* Reads `held` elements of a tensor from `begin` on, on one thread. */
static int read_piece(hf_weights *self, const hf_tensor *at, uint64_t begin, uint64_t held,
                      unsigned char *piece, float *target)
{
    enum dtype type = (enum dtype)at->tensor->type;
    uint64_t width = dtype_bytes(type);
    TRY(hf_read(self->files, at, begin * width, held * width,
                type == DTYPE_FP32 ? (void *)target : piece));
    if (type != DTYPE_FP32)
        dtype_convert(piece, type, target, DTYPE_FP32, held);
    return check_finite(self, at, begin, held, target);
}

/* Reads elements [begin, begin + count) of a tensor that is stored as the model has it. */
static int read_plain(hf_weights *self, const hf_tensor *at, uint64_t begin, uint64_t count,
                      float *master)
{
    uint64_t width = dtype_bytes((enum dtype)at->tensor->type);
    uint64_t part = size_div_up(count, (uint64_t)team_size(self, count / TEAM_ELEMS + 1));
    uint64_t step = size_max(1, size_min(self->piece_bytes / width, part));
    uint64_t piece_count = size_div_up(count, step);
    err_record failed = {.code = 0};
    hf_read_ahead(self->files, at, begin * width, count * width + AHEAD_BYTES);
#pragma omp parallel for schedule(dynamic) num_threads(team_size(self, piece_count))
    for (uint64_t i = 0; i < piece_count; i++) {
        uint64_t from = i * step, held = size_min(step, count - from);
        uint64_t thread = (uint64_t)omp_get_thread_num();
        keep_error(&failed, read_piece(self, at, begin + from, held,
                                       self->pieces + thread * self->piece_bytes, master + from));
    }
    return failed.code < 0 ? err_restore(&failed) : 0;
}

/* The same on this thread alone, without the page cache, through `room`. */
static int read_alone(hf_weights *self, const hf_tensor *at, uint64_t begin, uint64_t count,
                      void *room, float *master)
{
    enum dtype type = (enum dtype)at->tensor->type;
    uint64_t width = dtype_bytes(type);
    uint64_t step = (WEIGHTS_ROOM_BYTES - 2 * (uint64_t)HF_BLOCK_BYTES) / width;
    for (uint64_t from = 0; from < count; from += step) {
        uint64_t held = size_min(step, count - from);
        const void *data;
        TRY(hf_read_direct(self->files, at, (begin + from) * width, held * width, room, &data));
        dtype_convert(data, type, master + from, DTYPE_FP32, held);
        TRY(check_finite(self, at, begin + from, held, master + from));
    }
    return 0;
}

/* Transposes columns [first, first + rows) of `count` stored rows of `whole_rows` elements. The
 * stored rows are the matrix's columns from `column` on; target is [rows, columns]. It works in
 * blocks, so that cache lines are used whole. */
#define TURN(name, element)                                                                        \
    static void name(const element *source, uint64_t whole_rows, uint64_t first, uint64_t rows,    \
                     uint64_t count, uint64_t columns, uint64_t column, element *target)           \
    {                                                                                              \
        for (uint64_t r0 = 0; r0 < rows; r0 += TURN_BLOCK)                                         \
            for (uint64_t c0 = 0; c0 < count; c0 += TURN_BLOCK)                                    \
                for (uint64_t r = r0; r < size_min(rows, r0 + TURN_BLOCK); r++)                    \
                    for (uint64_t c = c0; c < size_min(count, c0 + TURN_BLOCK); c++)               \
                        target[r * columns + column + c] = source[c * whole_rows + first + r];     \
    }
TURN(turn_16, uint16_t)
TURN(turn_32, uint32_t)

/* How the stored rows of a transposed matrix are cut into pieces. A strip has some columns of each
 * stored row. */
struct turning {
    const hf_tensor *at;
    uint64_t first;               /* element of the tensor at which the matrix begins */
    uint64_t whole_rows, columns; /* of the matrix; stored [columns, whole_rows] */
    uint64_t row, rows;           /* the strip's first row, and its number of rows */
    /* Whole stored rows in a piece; 0: a piece is a span of one stored row. */
    uint64_t lines;
    /* If lines is 0: rows of the strip in a piece, and pieces in a stored row. */
    uint64_t span, spans;
    uint64_t piece_count;
};

static struct turning cut_matrix(const hf_weights *self, const hf_tensor *at,
                                 const hf_layout *layout, uint64_t matrix, uint64_t row)
{
    uint64_t width = dtype_bytes((enum dtype)at->tensor->type);
    uint64_t whole_rows = layout->rows, columns = layout->columns;
    struct turning cut = {.at = at,
                          .first = matrix * whole_rows * columns,
                          .whole_rows = whole_rows,
                          .columns = columns,
                          .row = row,
                          .spans = 1};
    cut.rows = size_min(whole_rows - row, self->strip.capacity_bytes / (columns * width));
    cut.span = size_min(cut.rows, self->piece_bytes / width);
    cut.lines = self->piece_bytes / (whole_rows * width);
    if (cut.lines > 0) {
        cut.piece_count = size_div_up(columns, cut.lines);
    } else {
        cut.spans = size_div_up(cut.rows, cut.span);
        cut.piece_count = columns * cut.spans;
    }
    return cut;
}

static int turn_piece(hf_weights *self, const struct turning *cut, uint64_t idx,
                      unsigned char *piece)
{
    uint64_t width = dtype_bytes((enum dtype)cut->at->tensor->type);
    bool is_whole = cut->lines > 0;
    uint64_t column = is_whole ? idx * cut->lines : idx / cut->spans;
    uint64_t count = is_whole ? size_min(cut->lines, cut->columns - column) : 1;
    uint64_t skipped = is_whole ? 0 : idx % cut->spans * cut->span; /* rows of the strip */
    uint64_t held = is_whole ? cut->rows : size_min(cut->span, cut->rows - skipped);
    uint64_t line = is_whole ? cut->whole_rows : held; /* elements of a stored row in the piece */
    uint64_t from = cut->first + column * cut->whole_rows + (is_whole ? 0 : cut->row + skipped);
    uint64_t first = is_whole ? cut->row : 0;
    unsigned char *target = self->strip.data + skipped * cut->columns * width;
    TRY(hf_read(self->files, cut->at, from * width, count * line * width, piece));
    if (width == 2)
        turn_16((const uint16_t *)(const void *)piece, line, first, held, count, cut->columns,
                column, (uint16_t *)(void *)target);
    else
        turn_32((const uint32_t *)(const void *)piece, line, first, held, count, cut->columns,
                column, (uint32_t *)(void *)target);
    return 0;
}

/* Fills the strip with stored columns from `row` on, as many as it holds. For this the whole matrix
 * is read; if its stored rows are longer than a piece, only the part that the strip needs. */
static int load_strip(hf_weights *self, const hf_tensor *at, const hf_layout *layout,
                      uint64_t matrix, uint64_t row)
{
    struct weights_strip *strip = &self->strip;
    struct turning cut = cut_matrix(self, at, layout, matrix, row);
    if (cut.rows == 0)
        return err_set(ERR_INPUT, "%s: tensor %s has rows of more than %" PRIu64 " bytes",
                       self->dir, at->tensor->name, strip->capacity_bytes);
    err_record failed = {.code = 0};
    strip->of = NULL;
#pragma omp parallel for schedule(dynamic) num_threads(team_size(self, cut.piece_count))
    for (uint64_t i = 0; i < cut.piece_count; i++) {
        uint64_t thread = (uint64_t)omp_get_thread_num();
        keep_error(&failed, turn_piece(self, &cut, i, self->pieces + thread * self->piece_bytes));
    }
    if (failed.code < 0)
        return err_restore(&failed);
    strip->of = at->tensor;
    strip->matrix = matrix;
    strip->row_begin = row;
    strip->rows = cut.rows;
    return 0;
}

/* Reads elements [begin, begin + count) of a whole tensor that is stored transposed. */
static int read_turned(hf_weights *self, const hf_tensor *at, const hf_layout *layout,
                       uint64_t begin, uint64_t count, float *master)
{
    struct weights_strip *strip = &self->strip;
    uint64_t columns = layout->columns, width = dtype_bytes((enum dtype)at->tensor->type);
    while (count > 0) {
        uint64_t matrix = begin / columns / layout->rows;
        uint64_t row = hf_layout_turned(layout, begin / columns % layout->rows);
        if (strip->of != at->tensor || strip->matrix != matrix || row < strip->row_begin ||
            row >= strip->row_begin + strip->rows)
            TRY(load_strip(self, at, layout, matrix, layout->is_paired ? 0 : row));
        uint64_t first = (row - strip->row_begin) * columns + begin % columns;
        uint64_t lie_together = layout->is_paired ? row + 1 : strip->row_begin + strip->rows;
        uint64_t held = size_min(count, (lie_together - strip->row_begin) * columns - first);
        dtype_convert(strip->data + first * width, (enum dtype)at->tensor->type, master, DTYPE_FP32,
                      held);
        begin += held;
        count -= held;
        master += held;
    }
    return 0;
}

/* Reads elements that lie in the file as in the model. */
static int read_straight(hf_weights *self, const hf_tensor *at, uint64_t begin, uint64_t count,
                         void *room, float *master)
{
    if (self->packed[at - self->stored].format != STORED_WORKING) {
        TRY(hfi_read_packed(self, at, begin, count, master));
        return check_finite(self, at, begin, count, master);
    }
    return room ? read_alone(self, at, begin, count, room, master)
                : read_plain(self, at, begin, count, master);
}

/* Reads elements of a tensor. `room`: NULL, or memory for a read on this thread alone. */
static int read_tensor(hf_weights *self, const struct weights_source *from,
                       const model_tensor *tensor, uint64_t begin, uint64_t count, void *room,
                       float *master)
{
    /* Position in the whole tensor. The rows of a part follow each other there. */
    uint64_t first = tensor->row_begin * tensor->columns + begin;
    if (from->layout.order == HF_ORDER_TRANSPOSED) {
        TRY(read_turned(self, &from->stored[0], &from->layout, first, count, master));
        return check_finite(self, &from->stored[0], first, count, master);
    }
    uint64_t held;
    for (uint64_t done = 0; done < count; done += held) {
        struct hf_place place = hf_layout_place(&from->layout, first + done);
        held = size_min(place.together, count - done);
        TRY(read_straight(self, &from->stored[place.tensor - from->first], place.elem, held, room,
                          master + done));
    }
    return 0;
}

/* Writes zeros from `*end` up to `begin`; both are within the range that the caller wants. */
static void clear_to(uint64_t begin, uint64_t *end, uint64_t base, float *master)
{
    if (begin > *end)
        memset(master + (*end - base), 0, (begin - *end) * sizeof *master);
    *end = size_max(*end, begin);
}

static int read_unit(hf_weights *self, uint32_t unit, uint64_t begin, uint64_t count, void *room,
                     float *master)
{
    assert(unit < self->net->unit_count);
    const model_unit *source = &self->net->units[unit];
    uint64_t done = begin; /* tensors lie in the order of their offsets */
    for (uint32_t i = 0; i < source->tensor_count; i++) {
        const model_tensor *tensor = &source->tensors[i];
        uint64_t first = tensor->offset_elems;
        uint64_t low = size_max(begin, first);
        uint64_t high = size_min(begin + count, first + tensor->rows * tensor->columns);
        if (low >= high)
            continue;
        clear_to(low, &done, begin, master);
        if (self->units[unit][i].stored_count > 0)
            TRY(read_tensor(self, &self->units[unit][i], tensor, low - first, high - low, room,
                            master + (low - begin)));
        done = high;
    }
    clear_to(begin + count, &done, begin, master);
    return 0;
}

int hf_weights_read(hf_weights *self, uint32_t unit, uint64_t begin, uint64_t count, float *master)
{
    TRY(read_unit(self, unit, begin, count, NULL, master));
    if (self->adapters.net)
        hfi_adapters_put(&self->adapters, unit, begin, count, master);
    return 0;
}

int hf_weights_read_alone(hf_weights *self, uint32_t unit, uint64_t begin, uint64_t count,
                          void *room, float *master)
{
    assert((uintptr_t)room % HF_BLOCK_BYTES == 0);
    return read_unit(self, unit, begin, count, room, master);
}
