/* Measures one drive: its curve over block size and depth, the smallest setting that is near its
 * best, and that setting beside other work. See probe_internal.h.
 *
 *   curve     a grid of blocks and depths: read, write and mixed, in turns
 *   near      more rounds of the settings that may be chosen
 *   chosen    fdatasync, CPU time, beside Adam, beside copies, beside products
 *
 * "Mixed" keeps the same number of reads and writes in flight, so it reads as much as it writes if
 * the drive serves both equally. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "probe/probe_internal.h"

enum {
    KIND_COUNT = PROBEI_IO_KINDS,
    SETTINGS_MAX = MACHINE_IO_POINTS_MAX / KIND_COUNT,
    NEAR_MAX = 8,
    NEAR_PERCENT = 92,
};

/* The parts' shares of the drive's time. */
static const double curve_share = 0.44, near_share = 0.29, beside_share = 0.27;

enum beside {
    ALONE,
    BESIDE_ADAM,
    BESIDE_COPIES,
    SYNC,
    BESIDE_PRODUCTS, /* comes last, since it is left out if a GPU computes */
    PRODUCTS,        /* products alone */
    BESIDE_COUNT
};
static const char *const beside_names[BESIDE_COUNT] = {"mixed alone",           "mixed beside Adam",
                                                       "mixed beside copies",   "fdatasync",
                                                       "mixed beside products", "products alone"};

struct curve {
    probei *owner;
    drive_bench *bench;
    double pass_seconds, total_seconds;
    probe_setting settings[SETTINGS_MAX];
    uint32_t setting_count, chosen;
    uint32_t near[NEAR_MAX]; /* settings that get more rounds */
    uint32_t near_count;
    probei_figure figures[SETTINGS_MAX][KIND_COUNT];
    probei_figure near_figures[NEAR_MAX * KIND_COUNT];
    probei_figure chosen_figures[KIND_COUNT]; /* the figures of `chosen` */
    double best[KIND_COUNT];                  /* the best rate of any near setting */
    /* The measurements beside other work. */
    probei_adam adam;
    probei_copies copies;
    probei_product product;
    probei_figure beside[BESIDE_COUNT], adam_rate, copy_rate[2], product_rate, cpu;
    uint32_t copy_turn;
};

/* --- the curve --- */

static int run_setting(struct curve *self, uint32_t setting, int kind, double *rate)
{
    const probe_setting *s = &self->settings[setting];
    drive_pass pass = probei_pass((enum machine_io_kind)kind, s->block_bytes,
                                  (uint32_t)s->queue_depth, self->pass_seconds);
    return drive_bench_run(&self->bench, 1, &pass, rate);
}

static int run_curve(void *user, uint32_t variant, double *value)
{
    return run_setting(user, variant / KIND_COUNT, (int)(variant % KIND_COUNT), value);
}

static void name_curve(void *user, uint32_t variant, char text[PROBEI_TEXT_BYTES])
{
    const struct curve *self = user;
    const probe_setting *s = &self->settings[variant / KIND_COUNT];
    snprintf(text, PROBEI_TEXT_BYTES, "%s %llu KiB x %llu", probei_kind_names[variant % KIND_COUNT],
             (unsigned long long)(s->block_bytes / KIB), (unsigned long long)s->queue_depth);
}

static int run_near(void *user, uint32_t variant, double *value)
{
    struct curve *self = user;
    return run_curve(self, self->near[variant / KIND_COUNT] * KIND_COUNT + variant % KIND_COUNT,
                     value);
}

static void name_near(void *user, uint32_t variant, char text[PROBEI_TEXT_BYTES])
{
    struct curve *self = user;
    name_curve(self, self->near[variant / KIND_COUNT] * KIND_COUNT + variant % KIND_COUNT, text);
}

static void list_settings(struct curve *self)
{
    const probei_drive_extent *size = &probei_drive_extents[self->owner->extent];
    for (uint32_t b = 0; b < 4 && size->blocks[b]; b++)
        for (uint32_t d = 0; d < 6 && size->depths[d]; d++) {
            if (size->depths[d] > drive_bench_depth_max(self->bench, size->blocks[b]) ||
                self->setting_count == SETTINGS_MAX)
                continue;
            self->settings[self->setting_count++] =
                (probe_setting){.block_bytes = size->blocks[b], .queue_depth = size->depths[d]};
        }
}

/* Stores the medians in the settings. */
static void take_medians(struct curve *self)
{
    for (uint32_t s = 0; s < self->setting_count; s++)
        for (int kind = 0; kind < KIND_COUNT; kind++)
            self->settings[s].rates[kind] = self->figures[s][kind].median;
}

/* Lists the setting that is best in all kinds, then the smallest settings within NEAR_PERCENT. */
static void list_near(struct curve *self)
{
    probe_setting rest[SETTINGS_MAX];
    uint32_t where[SETTINGS_MAX], count = self->setting_count;
    for (uint32_t i = 0; i < count; i++) {
        rest[i] = self->settings[i];
        where[i] = i;
    }
    self->near[self->near_count++] = probe_choose_setting(self->settings, count, 1.0);
    while (count > 0 && self->near_count < NEAR_MAX) {
        uint32_t found = probe_choose_setting(rest, count, 0.01 * NEAR_PERCENT);
        if (where[found] != self->near[0])
            self->near[self->near_count++] = where[found];
        rest[found] = rest[--count];
        where[found] = where[count];
    }
}

static int measure_curve(struct curve *self)
{
    probei *owner = self->owner;
    list_settings(self);
    probei_work work = {.count = self->setting_count * KIND_COUNT,
                        .seconds = curve_share * self->total_seconds,
                        .run = run_curve,
                        .name = name_curve,
                        .user = self};
    TRY(probei_rounds(owner, &work, &self->figures[0][0]));
    take_medians(self);
    list_near(self);
    work.count = self->near_count * KIND_COUNT;
    work.seconds = near_share * self->total_seconds;
    work.run = run_near;
    work.name = name_near;
    work.is_checked = true;
    TRY(probei_rounds(owner, &work, self->near_figures));
    /* The choice uses these rounds only. The drive may be faster or slower now than during the
     * curve. */
    probe_setting rivals[NEAR_MAX];
    for (uint32_t i = 0; i < self->near_count; i++) {
        rivals[i] = self->settings[self->near[i]];
        for (int kind = 0; kind < KIND_COUNT; kind++)
            rivals[i].rates[kind] = self->near_figures[i * KIND_COUNT + (uint32_t)kind].median;
    }
    uint32_t found = probe_choose_setting(rivals, self->near_count, 0.01 * PROBE_NEAR_PERCENT);
    self->chosen = self->near[found];
    for (int kind = 0; kind < KIND_COUNT; kind++) {
        self->chosen_figures[kind] = self->near_figures[found * KIND_COUNT + (uint32_t)kind];
        for (uint32_t i = 0; i < self->near_count; i++)
            self->best[kind] = fmax(self->best[kind], rivals[i].rates[kind]);
    }
    return 0;
}

/* --- beside other work --- */

/* Runs the chosen setting, mixed, and records the CPU time of all threads per byte. */
static int run_alone(struct curve *self, double *rate)
{
    double cpu = probei_cpu_seconds(RUSAGE_SELF);
    uint64_t moved = self->bench->moved_bytes;
    TRY(run_setting(self, self->chosen, MACHINE_IO_MIXED, rate));
    moved = self->bench->moved_bytes - moved;
    probei_figure_add(&self->cpu,
                      (probei_cpu_seconds(RUSAGE_SELF) - cpu) / (double)size_max(moved, 1));
    return 0;
}

static int run_beside(struct curve *self, int (*once)(void *, uint64_t *), void *user,
                      enum probei_where where, probei_figure *other, double *rate)
{
    probei_load load = {.owner = self->owner, .where = where, .once = once, .user = user};
    double other_rate;
    TRY(probei_load_begin(&load));
    int rc = run_setting(self, self->chosen, MACHINE_IO_MIXED, rate);
    err_record first;
    err_save(&first, rc);
    int load_rc = probei_load_end(&load, &other_rate);
    if (rc < 0)
        return err_restore(&first);
    TRY(load_rc);
    probei_figure_add(other, other_rate);
    return 0;
}

/* Times fdatasync after a pass of writes. */
static int run_sync(struct curve *self, double *seconds)
{
    double unused;
    TRY(run_setting(self, self->chosen, MACHINE_IO_WRITE, &unused));
    uint64_t begin_ns = clock_ns();
    TRY(io_sync(self->bench->queue));
    *seconds = (double)(clock_ns() - begin_ns) * 1e-9;
    return 0;
}

static int run_one_beside(void *user, uint32_t variant, double *value)
{
    struct curve *self = user;
    switch ((enum beside)variant) {
    case ALONE:
        return run_alone(self, value);
    case BESIDE_ADAM:
        return run_beside(self, probei_adam_once, &self->adam, PROBEI_UPDATE, &self->adam_rate,
                          value);
    case BESIDE_COPIES: {
        uint32_t turn = self->copy_turn++ % 2;
        self->copies.to_device = turn == 0;
        self->copies.to_host = turn == 1;
        return run_beside(self, probei_copy_once, &self->copies, PROBEI_IO, &self->copy_rate[turn],
                          value);
    }
    case BESIDE_PRODUCTS:
        return run_beside(self, probei_product_once, &self->product, PROBEI_COMPUTE,
                          &self->product_rate, value);
    case PRODUCTS:
        return probei_product_alone(&self->product, self->pass_seconds, value);
    case SYNC:
    case BESIDE_COUNT:
        break;
    }
    return run_sync(self, value);
}

static int measure_beside(struct curve *self)
{
    probei *owner = self->owner;
    uint64_t begin = probei_drive_extents[owner->extent].memory_bytes;
    probei_adam_place(owner, owner->update, begin, owner->memory.size_bytes, &self->adam);
    probei_copies_place(owner, begin, &self->copies);
    TRY(probei_product_open(owner, begin, owner->memory.size_bytes, &self->product));
    self->pass_seconds *= 2;
    probei_work work = {.count = self->product.product ? BESIDE_COUNT : BESIDE_PRODUCTS,
                        .seconds = 0.5 * beside_share * self->total_seconds,
                        .run = run_one_beside,
                        .names = beside_names,
                        .user = self};
    /* Run twice: copies go in one direction in one round and in the other in the next. */
    for (int half = 0; half < 2; half++)
        TRY(probei_rounds(owner, &work, self->beside));
    probei_figure *rest[] = {&self->adam_rate, &self->copy_rate[0], &self->copy_rate[1],
                             &self->product_rate, &self->cpu};
    for (uint32_t i = 0; i < sizeof rest / sizeof rest[0]; i++)
        probei_figure_close(rest[i]);
    self->pass_seconds /= 2;
    return 0;
}

/* --- the findings --- */

static void fill_drive(struct curve *self, machine_drive *drive)
{
    const probe_setting *s = &self->settings[self->chosen];
    drive->block_bytes = s->block_bytes;
    drive->queue_depth = s->queue_depth;
    drive->read = self->chosen_figures[MACHINE_IO_READ].median;
    drive->write = self->chosen_figures[MACHINE_IO_WRITE].median;
    drive->mixed = self->chosen_figures[MACHINE_IO_MIXED].median;
    drive->write_with_update = self->beside[BESIDE_ADAM].median;
    drive->sync_seconds = self->beside[SYNC].median;
    for (uint32_t i = 0; i < self->setting_count; i++)
        for (int kind = 0; kind < KIND_COUNT && drive->point_count < MACHINE_IO_POINTS_MAX; kind++)
            drive->points[drive->point_count++] =
                (machine_io_point){.kind = (enum machine_io_kind)kind,
                                   .block_bytes = self->settings[i].block_bytes,
                                   .queue_depth = self->settings[i].queue_depth,
                                   .bytes_per_second = self->settings[i].rates[kind]};
}

static void report(struct curve *self, const machine_drive *drive)
{
    probei *owner = self->owner;
    char left[SIZE_TEXT_BYTES];
    probei_say(owner, "%s (%s), %s free, by %s%s", drive->path, drive->name,
               size_format(drive->capacity_bytes, left),
               self->bench->backend == IO_URING ? "io_uring" : "threads of pread and pwrite",
               self->bench->store.files[0].direct ? "" : ", THROUGH THE PAGE CACHE");
    probei_say(owner, "  chosen of %u settings: %llu KiB, %llu in flight each way",
               self->setting_count, (unsigned long long)(drive->block_bytes / KIB),
               (unsigned long long)drive->queue_depth);
    const double rates[KIND_COUNT] = {drive->read, drive->write, drive->mixed};
    for (int kind = 0; kind < KIND_COUNT; kind++)
        probei_found(owner, probei_kind_names[kind], rates[kind] * 1e-9, "GB/s",
                     &self->chosen_figures[kind], "%.0f%% of the best of all settings%s",
                     100 * rates[kind] / self->best[kind],
                     kind == MACHINE_IO_MIXED ? "; both ways together" : "");
    probei_found(owner, "mixed beside Adam", drive->write_with_update * 1e-9, "GB/s",
                 &self->beside[BESIDE_ADAM], "%.0f%% of alone; Adam keeps %.0f%%",
                 100 * drive->write_with_update / self->beside[ALONE].median,
                 100 * self->adam_rate.median / owner->out->host.update_elems);
    probei_found(owner, "mixed beside copies", self->beside[BESIDE_COPIES].median * 1e-9, "GB/s",
                 &self->beside[BESIDE_COPIES], "copies %.1f and %.1f GB/s",
                 self->copy_rate[0].median * 1e-9, self->copy_rate[1].median * 1e-9);
    if (self->product.product)
        probei_found(owner, "mixed beside products", self->beside[BESIDE_PRODUCTS].median * 1e-9,
                     "GB/s", &self->beside[BESIDE_PRODUCTS], "products keep %.0f%%",
                     100 * self->product_rate.median / self->beside[PRODUCTS].median);
    probei_found(owner, "fdatasync after writing", drive->sync_seconds * 1e3, "ms",
                 &self->beside[SYNC], "%s", "");
    probei_found(owner, "CPU time of direct I/O", self->cpu.median * 1e12, "ms/GB", &self->cpu,
                 "%.0f%% of a core at the mixed rate", 100 * self->cpu.median * drive->mixed);
}

static int measure(struct curve *self, uint32_t drive_idx)
{
    machine *out = self->owner->out;
    machine_drive *drive = &out->drives[drive_idx];
    TRY(measure_curve(self));
    TRY(measure_beside(self));
    fill_drive(self, drive);
    if (drive_idx == 0) {
        out->h2d.pinned_with_nvme = self->copy_rate[0].median;
        out->d2h.pinned_with_nvme = self->copy_rate[1].median;
    }
    /* With several drives, the one that costs the most counts. */
    double lost = probei_lost_cores(self->owner, &self->beside[PRODUCTS], &self->product_rate,
                                    self->beside[BESIDE_PRODUCTS].median);
    lost = fmax(lost, self->cpu.median);
    out->host.io_core_seconds = fmax(out->host.io_core_seconds, lost);
    report(self, drive);
    return 0;
}

int probei_drive(probei *self)
{
    uint32_t drive_idx = self->steps[self->step_idx].drive_idx;
    const probei_drive_extent *size = &probei_drive_extents[self->extent];
    const machine_drive *drive = &self->out->drives[drive_idx];
    uint64_t file_bytes = size_min(size->file_bytes, drive->capacity_bytes / 2 / MIB * MIB);
    struct curve *curve = mem_alloc(1, sizeof *curve, "probe drive");
    drive_bench *bench = mem_alloc(1, sizeof *bench, "probe bench");
    int rc = curve && bench ? probei_check(self, "making the file") : -ENOMEM;
    if (rc == 0)
        rc = probei_bench_open(self, drive->path, file_bytes, self->memory.base, size->memory_bytes,
                               bench);
    if (rc == 0) {
        *curve = (struct curve){.owner = self, .bench = bench, .pass_seconds = size->pass_seconds};
        curve->total_seconds = probei_step_left(self);
        rc = measure(curve, drive_idx);
        err_record first;
        err_save(&first, rc);
        drive_bench_close(bench);
        probei_product_close(&curve->product);
        if (rc < 0)
            rc = err_restore(&first);
    }
    mem_free(curve);
    mem_free(bench);
    return rc;
}
