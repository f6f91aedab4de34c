/* The keys of machine.json: names, types, ranges. See machine_internal.h. Constant data. */
#include <assert.h>

#include "config/machine_internal.h"

/* No machine exceeds these limits. A larger value is more likely an error in the unit. */
#define RATE_MOST    1e18 /* bytes, flops, elements per second */
#define SECONDS_MOST 1e3
#define RANKS_MOST   65536
#define BYTES_MOST   9.2e18
#define LENGTH_MOST  1e12

#define ROWS(rows)                                                                                 \
    {                                                                                              \
        rows, sizeof rows / sizeof rows[0]                                                         \
    }
#define ROOM(type, member) sizeof(((const type *)0)->member)
#define TEXT(type, key, member)                                                                    \
    {                                                                                              \
        key, MACHINEI_TEXT, offsetof(type, member), ROOM(type, member), 0, NULL, NULL, 0           \
    }
#define NUMBER(type, key, member, kind, most)                                                      \
    {                                                                                              \
        key, kind, offsetof(type, member), ROOM(type, member), most, NULL, NULL, 0                 \
    }
#define FLAG(type, key, member)  NUMBER(type, key, member, MACHINEI_FLAG, 1)
#define BYTES(type, key, member) NUMBER(type, key, member, MACHINEI_BYTES, BYTES_MOST)
#define RATE(type, key, member)  NUMBER(type, key, member, MACHINEI_REAL, RATE_MOST)
#define TIME(type, key, member)  NUMBER(type, key, member, MACHINEI_REAL, SECONDS_MOST)
#define CHOICE(type, key, member, list)                                                            \
    {                                                                                              \
        key, MACHINEI_CHOICE, offsetof(type, member), ROOM(type, member), 0, list, NULL, 0         \
    }
#define LIST(type, key, member, number, block, most)                                               \
    {                                                                                              \
        key, MACHINEI_OBJECTS, offsetof(type, member), ROOM(type, member[0]), most, NULL, block,   \
            offsetof(type, number)                                                                 \
    }
#define OBJECT(type, key, member, block)                                                           \
    {                                                                                              \
        key, MACHINEI_OBJECT, offsetof(type, member), ROOM(type, member), 0, NULL, block, 0        \
    }

static_assert((int)DTYPE_FP32 == 0 && (int)DTYPE_BF16 == 1 && (int)DTYPE_FP16 == 2,
              "the order of \"type\"");
static_assert(MACHINE_IO_READ == 0 && MACHINE_IO_WRITE == 1 && MACHINE_IO_MIXED == 2,
              "the order of \"kind\"");
static_assert(sizeof(enum dtype) == sizeof(int) && sizeof(enum machine_io_kind) == sizeof(int),
              "choices are read as int");

static const machinei_row product_rows[] = {
    CHOICE(machine_product, "type", type, "fp32|bf16|fp16"),
    FLAG(machine_product, "accumulates", accumulates),
    FLAG(machine_product, "b_transposed", b_transposed),
    NUMBER(machine_product, "m", m, MACHINEI_LENGTH, LENGTH_MOST),
    NUMBER(machine_product, "n", n, MACHINEI_LENGTH, LENGTH_MOST),
    NUMBER(machine_product, "k", k, MACHINEI_LENGTH, LENGTH_MOST),
    RATE(machine_product, "flops_per_second", flops_per_second),
};
static const machinei_block product_block = ROWS(product_rows);

static const machinei_row link_rows[] = {
    RATE(machine_link, "pageable", pageable),
    RATE(machine_link, "pinned", pinned),
    RATE(machine_link, "pinned_both", pinned_both),
    RATE(machine_link, "pinned_with_nvme", pinned_with_nvme),
};
static const machinei_block link_block = ROWS(link_rows);

static const machinei_row point_rows[] = {
    CHOICE(machine_io_point, "kind", kind, "read|write|mixed"),
    BYTES(machine_io_point, "block_bytes", block_bytes),
    NUMBER(machine_io_point, "queue_depth", queue_depth, MACHINEI_LENGTH, LENGTH_MOST),
    RATE(machine_io_point, "bytes_per_second", bytes_per_second),
};
static const machinei_block point_block = ROWS(point_rows);

static const machinei_row drive_rows[] = {
    TEXT(machine_drive, "name", name),
    TEXT(machine_drive, "path", path),
    NUMBER(machine_drive, "count", count, MACHINEI_COUNT, RANKS_MOST),
    BYTES(machine_drive, "capacity_bytes", capacity_bytes),
    RATE(machine_drive, "read", read),
    RATE(machine_drive, "write", write),
    RATE(machine_drive, "mixed", mixed),
    RATE(machine_drive, "write_with_update", write_with_update),
    BYTES(machine_drive, "block_bytes", block_bytes),
    NUMBER(machine_drive, "queue_depth", queue_depth, MACHINEI_LENGTH, LENGTH_MOST),
    TIME(machine_drive, "sync_seconds", sync_seconds),
    NUMBER(machine_drive, "endurance_bytes", endurance_bytes, MACHINEI_REAL, 1e24),
    LIST(machine_drive, "points", points, point_count, &point_block, MACHINE_IO_POINTS_MAX),
};
static const machinei_block drive_block = ROWS(drive_rows);

/* The rows of the blocks that are structs without a name. Offsets are from the start of struct
 * machine. */
static const machinei_row host_rows[] = {
    TEXT(machine, "cpu", host.cpu),
    NUMBER(machine, "core_count", host.core_count, MACHINEI_COUNT, RANKS_MOST),
    NUMBER(machine, "node_count", host.node_count, MACHINEI_COUNT, RANKS_MOST),
    BYTES(machine, "memory_bytes", host.memory_bytes),
    RATE(machine, "dram_read", host.dram_read),
    RATE(machine, "dram_copy", host.dram_copy),
    RATE(machine, "dram_update", host.dram_update),
    TIME(machine, "update_core_seconds", host.update_core_seconds),
    RATE(machine, "update_elems", host.update_elems),
    TIME(machine, "io_core_seconds", host.io_core_seconds),
    TIME(machine, "copy_core_seconds", host.copy_core_seconds),
};
static const machinei_block host_block = ROWS(host_rows);

static const machinei_row device_rows[] = {
    FLAG(machine, "is_gpu", device.is_gpu),
    TEXT(machine, "name", device.name),
    BYTES(machine, "memory_bytes", device.memory_bytes),
    RATE(machine, "peak_flops", device.peak_flops),
    RATE(machine, "flops_16bit", device.flops_16bit),
    RATE(machine, "flops_fp32", device.flops_fp32),
    RATE(machine, "memory_rate", device.memory_rate),
    RATE(machine, "attention_forward", device.attention_forward),
    RATE(machine, "attention_backward", device.attention_backward),
    RATE(machine, "row_rate", device.row_rate),
    TIME(machine, "op_seconds", device.op_seconds),
    NUMBER(machine, "thread_count", device.thread_count, MACHINEI_COUNT, RANKS_MOST),
    LIST(machine, "products", device.products, device.product_count, &product_block,
         MACHINE_PRODUCTS_MAX),
};
static const machinei_block device_block = ROWS(device_rows);

static const machinei_row comm_rows[] = {
    RATE(machine, "inside", comm.inside),
    RATE(machine, "between", comm.between),
    TIME(machine, "seconds", comm.seconds),
    FLAG(machine, "is_copies", comm.is_copies),
};
static const machinei_block comm_block = ROWS(comm_rows);

/* A block of struct machine that is a struct without a name. Offsets of its rows are from the start
 * of struct machine. */
#define PART(key, block)                                                                           \
    {                                                                                              \
        key, MACHINEI_OBJECT, 0, 0, 0, NULL, block, 0                                              \
    }

static const machinei_row top_rows[] = {
    TEXT(machine, "name", name),
    TEXT(machine, "measured_at", measured_at),
    TEXT(machine, "measured_by", measured_by),
    TEXT(machine, "disturbed", disturbed),
    NUMBER(machine, "host_count", host_count, MACHINEI_COUNT, RANKS_MOST),
    NUMBER(machine, "ranks_per_host", ranks_per_host, MACHINEI_COUNT, RANKS_MOST),
    PART("host", &host_block),
    PART("device", &device_block),
    OBJECT(machine, "h2d", h2d, &link_block),
    OBJECT(machine, "d2h", d2h, &link_block),
    RATE(machine, "link_all_ranks", link_all_ranks),
    LIST(machine, "drives", drives, drive_count, &drive_block, DRIVES_MAX),
    RATE(machine, "drives_read", drives_read),
    RATE(machine, "drives_write", drives_write),
    PART("comm", &comm_block),
};
const machinei_block machinei_top = ROWS(top_rows);
