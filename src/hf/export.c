/* Exports a run's last commit as a checkpoint of Hugging Face. See hf.h.
 *
 *   lock, record, job.json ─► tensors and files
 *     ─► sweep: [ masters in order ─ round ─► files under other names ]
 *               [ every extent's sum compared                         ]
 *     ─► files get their names ─► index ─► side files ─► config.json
 *
 * If the run has adapters, they are read first, by a sweep of their own, and added to the weights
 * as these pass.
 *
 * Packed matrices are expanded, or with options.quantized written as codes (export_packed.c).
 *
 * Memory: the sweep's ring, the adapters, one unit and one matrix of a packed base, and for GPT-2 a
 * strip of the current matrix, which is stored transposed. The master weights come on a thread of
 * the sweep, and only this thread writes weights. All else runs on the caller's thread. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/core_set.h"
#include "base/mem.h"
#include "base/size.h"
#include "base/thread.h"
#include "config/config.h"
#include "hf/hf_internal.h"
#include "model/pack.h"
#include "state/rank_slabs.h"
#include "state/run_dir.h"
#include "state/sweep.h"

enum { PIECE_ELEMS = 1 << 20 };

#define SHARD_BYTES 5000000000u

/* Rows of a matrix that is written transposed. data is [columns, capacity]: the rows lie side by
 * side. */
struct export_strip {
    uint32_t tensor;   /* index in the list; PROGRAM_NONE: none */
    uint64_t row;      /* the first row in it, of all matrices of the tensor */
    uint64_t capacity; /* most rows that it holds, which are of one matrix */
    uint64_t elems;    /* elements in it, in the order of [rows, columns] */
    unsigned char *data;
    uint64_t data_bytes;
};

struct exporter {
    const struct hf_export_options *asked;
    struct hf_export_summary *out;
    struct state_run_dir dir;
    state_view view;
    export_list list;
    kernel_context *context; /* of the CPU's kernels, which round the weights */
    unsigned char *rounded;  /* [PIECE_ELEMS] in the export's dtype */
    float *widened;          /* [PIECE_ELEMS] params that do not learn, as fp32 */
    struct export_room room; /* for packed units */
    struct export_strip strip;
    export_adapters adapters; /* empty where the model has none */
    float *merged;            /* [PIECE_ELEMS] weights with adapters added */
    uint32_t copy_rank;
    const manifest *swept; /* the record that is read: the whole, or with adapters' extents only */
    uint64_t extent_bytes; /* bytes of all sweeps */
    uint64_t before_bytes; /* bytes of the sweeps that are done */
    double before_seconds;
    uint64_t damage_count;
    err_record damage; /* the first damage */
};
typedef struct exporter exporter;

/* ---- the run and its model ---- */

static int read_run(exporter *self)
{
    const char *path = self->asked->run_dir;
    char job_path[FILE_PATH_BYTES + 16];
    const manifest *record = &self->view.record;
    TRY(state_view_exists(path));
    if (!self->asked->is_held)
        TRY(state_run_dir_open(&self->dir, path, FILE_PRIVATE));
    TRY(state_view_open(&self->view, path, true));
    if (!self->view.has_record)
        return err_set(ERR_CORRUPT, "%s: no manifest is valid: nothing says what was committed",
                       path);
    TRY(state_check_committed(record, path));
    if (self->view.asked)
        TRY(setup_refuse_module(self->view.asked, "export"));
    if (self->view.net)
        return 0;
    snprintf(job_path, sizeof job_path, "%s/job.json", path);
    job *read = NULL; /* read again for its error message */
    TRY(job_read(job_path, NULL, NULL, 0, rank_slabs_world(record), &read));
    job_destroy(read);
    return err_set(ERR_INPUT, "%s does not describe the model of the run", job_path);
}

static int find_type(const exporter *self, enum dtype *type)
{
    const char *name = self->asked->type;
    *type = self->view.asked->type;
    if (!name)
        return 0;
    for (int t = 0; t < DTYPE_COUNT; t++)
        if (strcmp(dtype_name((enum dtype)t), name) == 0) {
            *type = (enum dtype)t;
            return 0;
        }
    return err_set(ERR_USAGE, "the dtype is \"%s\", and must be bf16, fp16 or fp32", name);
}

/* Checks that the commit is of this model and that its slabs can be seen. Sums extent_bytes. */
static int check_record(exporter *self)
{
    const manifest *record = &self->view.record;
    const model *net = self->view.net;
    uint64_t unit_count = 0;
    for (uint64_t i = 0; i < record->extent_count; i++) {
        const manifest_extent *extent = &record->extents[i];
        uint64_t end = extent->elem_begin + extent->elem_count;
        self->extent_bytes += extent->size_bytes;
        if (i + 1 < record->extent_count && extent[1].unit == extent->unit)
            continue;
        unit_count++;
        if (extent->unit >= net->unit_count || end < net->units[extent->unit].rest_elems)
            return err_set(ERR_CORRUPT,
                           "unit %u of the commit in %s has %" PRIu64
                           " elements, which does not fit the model of its job.json",
                           extent->unit, self->asked->run_dir, end);
    }
    if (unit_count != net->unit_count)
        return err_set(ERR_CORRUPT,
                       "the commit in %s has %" PRIu64 " units, and the model of its job.json %u",
                       self->asked->run_dir, unit_count, net->unit_count);
    if (record->is_replicated)
        return rank_slabs_choose(record, 0, &self->copy_rank);
    for (uint32_t r = 0; r < rank_slabs_world(record); r++)
        TRY(rank_slabs_look(record, r));
    return 0;
}

static int make_context(exporter *self)
{
    const kernel_context_config config = {.thread_count = (int)thread_allowed_count()};
    return kernels_cpu.context_create(&config, &self->context);
}

static int reserve(exporter *self)
{
    uint64_t width = dtype_bytes(self->list.type);
    for (uint32_t i = 0; i < self->list.count; i++) {
        const hf_layout *layout = &self->list.tensors[i].layout;
        uint64_t bytes = layout->rows * layout->columns * width;
        if (layout->order == HF_ORDER_TRANSPOSED)
            self->strip.data_bytes =
                size_max(self->strip.data_bytes,
                         layout->is_paired ? bytes : size_min(bytes, WEIGHTS_STRIP_BYTES));
    }
    self->strip.tensor = PROGRAM_NONE;
    self->strip.data = mem_alloc(self->strip.data_bytes, 1, "strip of weights");
    self->rounded = mem_alloc(PIECE_ELEMS, width, "rounded weights");
    self->widened = mem_alloc(PIECE_ELEMS, sizeof *self->widened, "weights");
    self->merged = mem_alloc(PIECE_ELEMS, sizeof *self->merged, "merged weights");
    if (!self->strip.data || !self->rounded || !self->widened || !self->merged)
        return -ENOMEM;
    TRY(hfi_room_reserve(self->view.net, &self->room));
    return make_context(self);
}

/* ---- the stream ---- */

/* Checks that no finite weight has become infinity. */
static int check_range(const export_tensor *tensor, const float *master, const void *rounded,
                       uint64_t count)
{
    const uint16_t *halves = rounded;
    for (uint64_t i = 0; i < count; i++)
        if ((halves[i] & 0x7fffu) == 0x7c00u && (fp32_bits(master[i]) & 0x7f800000u) != 0x7f800000u)
            return err_set(ERR_INPUT,
                           "tensor %s holds %g, and fp16 ends at 65504: export as bf16 or fp32",
                           tensor->name, (double)master[i]);
    return 0;
}

/* Rounds to the export's dtype. If that is the run's own, the result has the bits that training
 * computes with. */
static int round_weights(exporter *self, const export_tensor *tensor, const float *master,
                         uint64_t count, const void **out)
{
    *out = master;
    if (tensor->type == DTYPE_FP32)
        return 0;
    TRY(kernels_cpu.working_copy(self->context, NULL, master, self->rounded, tensor->type, count));
    *out = self->rounded;
    return tensor->type == DTYPE_FP16 ? check_range(tensor, master, self->rounded, count) : 0;
}

/* Writes the strip's rows: the matrix in one piece if the strip has all of it, else a piece of each
 * stored row. */
static int write_strip(exporter *self)
{
    struct export_strip *strip = &self->strip;
    const export_tensor *tensor = &self->list.tensors[strip->tensor];
    const hf_layout *of = &tensor->layout;
    safetensors_writer *writer = self->list.files[tensor->file_idx].writer;
    uint64_t width = dtype_bytes(self->list.type), rows = strip->elems / of->columns;
    uint64_t row = strip->row % of->rows, first = (strip->row - row) * of->columns;
    strip->tensor = PROGRAM_NONE;
    if (rows == of->rows)
        return safetensors_write(writer, tensor->row_idx, first, rows * of->columns, strip->data);
    for (uint64_t c = 0; c < of->columns; c++)
        TRY(safetensors_write(writer, tensor->row_idx, first + c * of->rows + row, rows,
                              strip->data + c * strip->capacity * width));
    return 0;
}

static void put_elems(struct export_strip *strip, const hf_layout *of, const void *source,
                      uint64_t count, uint64_t width)
{
    const uint16_t *from16 = source;
    const uint32_t *from32 = source;
    uint16_t *to16 = (uint16_t *)(void *)strip->data;
    uint32_t *to32 = (uint32_t *)(void *)strip->data;
    uint64_t row = strip->elems / of->columns, column = strip->elems % of->columns;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t place = column * strip->capacity + hf_layout_turned(of, row);
        if (width == 2)
            to16[place] = from16[i];
        else
            to32[place] = from32[i];
        if (++column == of->columns) {
            column = 0;
            row++;
        }
    }
}

/* Adds elements of the whole matrix from `at` on, in order. The strip gathers rows until it is
 * full. */
static int put_turned(exporter *self, uint32_t idx, uint64_t at, const unsigned char *source,
                      uint64_t count)
{
    struct export_strip *strip = &self->strip;
    const export_tensor *tensor = &self->list.tensors[idx];
    const hf_layout *of = &tensor->layout;
    uint64_t width = dtype_bytes(self->list.type);
    while (count > 0) {
        if (strip->tensor == PROGRAM_NONE) {
            strip->tensor = idx;
            strip->row = at / of->columns;
            strip->elems = 0;
            strip->capacity = size_min(of->rows - strip->row % of->rows,
                                       strip->data_bytes / (of->columns * width));
        }
        if (strip->tensor != idx || strip->capacity == 0 ||
            strip->row * of->columns + strip->elems != at)
            return err_set(ERR_INTERNAL, "tensor %s: element %" PRIu64 " is out of order",
                           tensor->name, at);
        uint64_t held = size_min(count, strip->capacity * of->columns - strip->elems);
        put_elems(strip, of, source, held, width);
        strip->elems += held;
        if (strip->elems == strip->capacity * of->columns)
            TRY(write_strip(self));
        at += held;
        source += held * width;
        count -= held;
    }
    return 0;
}

/* Returns the weights with the tensor's adapter added; `master` itself if it has none. */
static const float *add_adapter(exporter *self, uint32_t unit, const model_tensor *part,
                                uint64_t begin, uint64_t count, const float *master)
{
    if (!hfi_has_adapter(&self->adapters, unit, part))
        return master;
    memcpy(self->merged, master, count * sizeof *master);
    hfi_merge(&self->adapters, unit, part, begin, count, self->merged);
    return self->merged;
}

/* Writes elements [begin, begin + count) of the tensor `part_idx` of a unit. */
static int put_tensor(exporter *self, uint32_t unit, uint32_t part_idx, uint64_t begin,
                      uint64_t count, const float *master)
{
    const model_tensor *part = &self->view.net->units[unit].tensors[part_idx];
    uint32_t first_idx = self->list.of_unit[unit][part_idx];
    const hf_layout *layout = &self->list.tensors[first_idx].layout;
    uint64_t first = hf_layout_range(layout, part).first;
    uint64_t at = part->row_begin * part->columns + begin; /* position in the whole tensor */
    while (count > 0) {
        uint32_t idx = first_idx + (uint32_t)(at / layout->elems - first);
        const export_tensor *tensor = &self->list.tensors[idx];
        uint64_t held = size_min(count, size_min(PIECE_ELEMS, layout->elems - at % layout->elems));
        const void *rounded;
        const float *values =
            add_adapter(self, unit, part, at - part->row_begin * part->columns, held, master);
        TRY(round_weights(self, tensor, values, held, &rounded));
        if (layout->order == HF_ORDER_TRANSPOSED)
            TRY(put_turned(self, idx, at, rounded, held));
        else
            TRY(hfi_write(layout, self->list.files[tensor->file_idx].writer, tensor->row_idx, at,
                          held, rounded, dtype_bytes(tensor->type)));
        at += held;
        master += held;
        count -= held;
    }
    return 0;
}

/* Writes elements [begin, begin + count) of a unit. */
static int put_elems_of(exporter *self, uint32_t unit_idx, uint64_t begin, uint64_t count,
                        const float *master)
{
    const model_unit *unit = &self->view.net->units[unit_idx];
    for (uint32_t i = 0; i < unit->tensor_count; i++) {
        const model_tensor *part = &unit->tensors[i];
        uint64_t first = part->offset_elems;
        uint64_t low = size_max(begin, first);
        uint64_t high = size_min(begin + count, first + part->rows * part->columns);
        if (low < high && !part->is_adapter)
            TRY(put_tensor(self, unit_idx, i, low - first, high - low, master + (low - begin)));
    }
    return 0;
}

/* Takes bytes of a packed unit. With its last ones, writes its tensors. */
static int put_packed(exporter *self, uint32_t unit_idx, uint64_t begin, const void *data,
                      uint64_t size_bytes)
{
    const model *net = self->view.net;
    const model_unit *unit = &net->units[unit_idx];
    uint64_t all = unit->rest_elems * dtype_bytes(net->type);
    uint64_t held = begin < all ? size_min(size_bytes, all - begin) : 0; /* padding of a shard */
    if (held == 0)
        return 0;
    memcpy(self->room.packed + begin, data, held);
    for (uint32_t i = 0; begin + held == all && i < unit->tensor_count; i++) {
        const model_tensor *tensor = &unit->tensors[i];
        TRY(model_unpack(net, &kernels_cpu, self->context, unit_idx, i, self->room.packed,
                         self->room.unpacked));
        if (self->asked->quantized && hfi_stays_packed(net, tensor)) {
            TRY(hfi_put_matrices(net, &self->list, &self->room, &self->adapters, self->context,
                                 unit_idx, i));
            continue;
        }
        TRY(put_elems_of(self, unit_idx, tensor->offset_elems, tensor->rows * tensor->columns,
                         self->room.unpacked));
    }
    return 0;
}

/* Writes weights of an extent, which come in the order of the commit: fp32 masters, or params that
 * do not learn in the run's working dtype. */
static int put_weights(void *user, uint64_t extent_idx, uint64_t begin_bytes, const void *data,
                       uint64_t size_bytes)
{
    exporter *self = user;
    const manifest_extent *extent = &self->view.record.extents[extent_idx];
    uint64_t width = manifest_weight_bytes(extent);
    uint64_t begin = extent->elem_begin + begin_bytes / width, count = size_bytes / width;
    if (self->view.net->units[extent->unit].is_packed)
        return put_packed(self, extent->unit, begin * width, data, size_bytes);
    if (width == sizeof(float))
        return put_elems_of(self, extent->unit, begin, count, data);
    while (count > 0) {
        uint64_t held = size_min(count, PIECE_ELEMS);
        dtype_convert(data, self->view.asked->type, self->widened, DTYPE_FP32, held);
        TRY(put_elems_of(self, extent->unit, begin, held, self->widened));
        data = (const unsigned char *)data + held * width;
        begin += held;
        count -= held;
    }
    return 0;
}

/* ---- the sums ---- */

static void compare_extent(void *user, const struct state_swept *swept)
{
    exporter *self = user;
    const manifest *record = self->swept;
    const manifest_extent *extent = &record->extents[swept->extent_idx];
    uint32_t rank = rank_slabs_rank_of(record, extent, self->copy_rank);
    char path[FILE_PATH_BYTES];
    uint64_t file_offset;
    if (!swept->error && swept->sum == extent->checksum)
        return;
    if (self->damage_count++ > 0)
        return;
    rank_slabs_locate(record, rank, NULL, extent->offset_bytes, path, &file_offset);
    if (swept->error)
        (void)err_set(ERR_CORRUPT, "unit %u, tile %u of rank %u: %.600s", extent->unit,
                      extent->tile, rank, swept->error);
    else
        (void)err_set(ERR_CORRUPT,
                      "unit %u, tile %u of rank %u: %" PRIu64 " bytes at offset %" PRIu64
                      " of %s have checksum %016" PRIx64 ", but %016" PRIx64 " was written",
                      extent->unit, extent->tile, rank, extent->size_bytes, file_offset, path,
                      swept->sum, extent->checksum);
    err_save(&self->damage, ERR_CORRUPT);
}

static void tell(void *user, uint64_t done_bytes, double seconds)
{
    const exporter *self = user;
    self->out->seconds = self->before_seconds + seconds;
    if (self->asked->on_progress)
        self->asked->on_progress(self->asked->user, self->before_bytes + done_bytes,
                                 self->extent_bytes, self->out->seconds);
}

/* Reads the extents of a record, compares them with their sums, and passes their weights to
 * on_weights. */
static int stream(exporter *self, const manifest *record,
                  int (*on_weights)(void *user, uint64_t extent_idx, uint64_t begin_bytes,
                                    const void *data, uint64_t size_bytes))
{
    uint64_t hash;
    const struct job *was = self->view.asked;
    const struct state_sweep_options options = {
        .record = record,
        .copy_rank = self->copy_rank,
        .net = self->view.net,
        .stuck_ns = (uint64_t)(was->io.stuck_seconds * 1e9),
        .stop_ns = (uint64_t)(was->io.stop_seconds * 1e9),
        .stop = self->asked->stop,
        .faults = self->asked->faults,
        .on_extent = compare_extent,
        .on_weights = on_weights,
        .on_progress = tell,
        .user = self,
    };
    self->swept = record;
    TRY(state_sweep(&options, &hash));
    self->before_seconds = self->out->seconds;
    if (self->damage_count == 0)
        return 0;
    return err_prefix(err_restore(&self->damage),
                      "%" PRIu64 " tiles of the commit are damaged, nothing is exported; sluice "
                      "verify lists them; the first",
                      self->damage_count);
}

/* ---- adapters ---- */

static int take_adapters(void *user, uint64_t extent_idx, uint64_t begin_bytes, const void *data,
                         uint64_t size_bytes)
{
    exporter *self = user;
    return hfi_adapters_take(&self->adapters, extent_idx, begin_bytes, data, size_bytes);
}

static int read_adapters(exporter *self)
{
    const model *net = self->view.net;
    if (net->spec.lora.rank == 0)
        return 0;
    TRY(hfi_adapters_open(net, &self->view.record, &self->adapters));
    self->extent_bytes = self->asked->adapters ? 0 : self->extent_bytes; /* the base is not read */
    self->extent_bytes += self->adapters.extent_bytes;
    TRY(stream(self, &self->adapters.record, take_adapters));
    self->before_bytes = self->adapters.extent_bytes;
    return 0;
}

static int export_adapters_alone(exporter *self, enum dtype type)
{
    const struct hf_export_options *asked = self->asked;
    const char *from = self->view.asked->hf[0] ? self->view.asked->hf : NULL;
    struct hf_export_summary *out = self->out;
    uint32_t tensor_count;
    TRY(hfi_check_adapters(self->view.net));
    TRY(make_context(self));
    TRY(hfi_take_directory(asked->hf_dir, asked->force));
    TRY(read_adapters(self));
    TRY(hfi_adapters_write(&self->adapters, self->context, from, asked->hf_dir, type, &tensor_count,
                           &out->written_bytes));
    TRY(hfi_remove_whole(asked->hf_dir, from));
    out->step = self->view.record.point.step;
    out->param_count = out->written_bytes / dtype_bytes(type);
    out->tensor_count = tensor_count;
    out->file_count = 1;
    out->read_bytes = self->extent_bytes;
    out->type = dtype_name(type);
    return 0;
}

/* ---- the whole export ---- */

static int export_all(exporter *self)
{
    const struct hf_export_options *asked = self->asked;
    struct hf_export_summary *out = self->out;
    enum dtype type;
    TRY(read_run(self));
    TRY(find_type(self, &type));
    TRY(check_record(self));
    if (asked->adapters)
        return export_adapters_alone(self, type);
    if (asked->quantized)
        TRY(hfi_check_packed(self->view.net));
    TRY(hfi_list(self->view.net, type, asked->fused_experts, asked->quantized,
                 asked->shard_bytes ? asked->shard_bytes : SHARD_BYTES, &self->list));
    TRY(reserve(self));
    TRY(hfi_check_config(&self->view));
    TRY(hfi_take_directory(asked->hf_dir, asked->force));
    TRY(hfi_create(&self->list, asked->hf_dir));
    TRY(read_adapters(self));
    TRY(stream(self, &self->view.record, put_weights));
    TRY(hfi_finish(&self->list, asked->hf_dir));
    json_t *quantization = asked->quantized ? hfi_packed_config(self->view.net, &self->list) : NULL;
    int rc = asked->quantized && !quantization
                 ? -ENOMEM
                 : hfi_write_side_files(&self->view, asked->hf_dir, type, quantization,
                                        &out->side_files);
    json_decref(quantization);
    TRY(rc);
    TRY(hfi_remove_adapters(asked->hf_dir));
    out->step = self->view.record.point.step;
    out->param_count = self->list.elem_count;
    out->tensor_count = self->list.count;
    out->file_count = self->list.file_count;
    out->written_bytes = self->list.total_bytes;
    out->read_bytes = self->extent_bytes;
    out->type = dtype_name(type);
    return 0;
}

int hf_export(const struct hf_export_options *options, struct hf_export_summary *summary)
{
    memset(summary, 0, sizeof *summary);
    summary->type = "";
    exporter *self = mem_alloc(1, sizeof *self, "export");
    if (!self)
        return -ENOMEM;
    self->asked = options;
    self->out = summary;
    self->dir.lock_fd = -1;
    int rc = export_all(self);
    err_record first;
    err_save(&first, rc);
    hfi_list_fini(&self->list);
    hfi_adapters_close(&self->adapters);
    if (self->context)
        kernels_cpu.context_destroy(self->context);
    state_view_close(&self->view);
    state_run_dir_close(&self->dir);
    if (arena_process_memory(NULL, &summary->resident_bytes_max, NULL) < 0)
        summary->resident_bytes_max = 0; /* not known */
    mem_free(self->strip.data);
    mem_free(self->rounded);
    mem_free(self->widened);
    hfi_room_free(&self->room);
    mem_free(self->merged);
    mem_free(self);
    return rc < 0 ? err_restore(&first) : 0;
}
