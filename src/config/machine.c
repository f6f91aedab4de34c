/* machine.json: its keys as rows, which drive reading and writing, and the comparison with this
 * host. See machine.h. */
#include "config/machine.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/size.h"
#include "base/text.h"
#include "config/config_internal.h"

/* ---- the keys ---- */

/* One key. The key's path is its name alone; its offset counts from the beginning of the struct
 * that its block describes. The limits of numbers are such that no machine exceeds them: a larger
 * value is more likely an error in the unit. */
struct machine_row {
    configi_key key;
    const struct machine_block *below; /* ANY: the block of an object; OBJECTS: of each entry */
    size_t entry_bytes, count_offset;  /* OBJECTS: of an entry; where the number of entries lies */
};
struct machine_block {
    const struct machine_row *rows;
    uint32_t count;
};

#define ROWS(rows)                                                                                 \
    {                                                                                              \
        rows, sizeof rows / sizeof rows[0]                                                         \
    }
#define KEY_OF(type_, key_, member_, kind, range)                                                  \
    .key = {.path = (key_),                                                                        \
            .type = (kind),                                                                        \
            .offset = offsetof(type_, member_),                                                    \
            .member_bytes = sizeof(((const type_ *)0)->member_),                                   \
            .allowed = (range)}
#define ROW(type, key, member, kind, range)                                                        \
    {                                                                                              \
        KEY_OF(type, key, member, kind, range)                                                     \
    }
#define TEXT(type, key, member)         ROW(type, key, member, CONFIGI_STRING, NULL)
#define FLAG(type, key, member)         ROW(type, key, member, CONFIGI_BOOL, NULL)
#define CHOICE(type, key, member, list) ROW(type, key, member, CONFIGI_ENUM, list)
#define COUNT(type, key, member)        ROW(type, key, member, CONFIGI_INT, "[0,65536]")
#define LENGTH(type, key, member)       ROW(type, key, member, CONFIGI_INT, "[0,1e12]")
#define BYTES(type, key, member)        ROW(type, key, member, CONFIGI_SIZE, "[0,9.2e18]")
#define RATE(type, key, member)         ROW(type, key, member, CONFIGI_FLOAT, "[0,1e18]")
#define TIME(type, key, member)         ROW(type, key, member, CONFIGI_FLOAT, "[0,1e3]")
#define OBJECT(type, key, member, block)                                                           \
    {                                                                                              \
        KEY_OF(type, key, member, CONFIGI_ANY, NULL), .below = (block)                             \
    }
#define LIST(type, key, member, number, block)                                                     \
    {                                                                                              \
        KEY_OF(type, key, member, CONFIGI_OBJECTS, NULL),                                          \
            .below = (block), .entry_bytes = sizeof(((const type *)0)->member[0]),                 \
            .count_offset = offsetof(type, number)                                                 \
    }
/* A block that is a struct without a name. Offsets of its rows are from the start of struct
 * machine. */
#define PART(key_, block)                                                                          \
    {                                                                                              \
        .key = {.path = (key_), .type = CONFIGI_ANY}, .below = (block)                             \
    }

static_assert((int)DTYPE_FP32 == 0 && (int)DTYPE_BF16 == 1 && (int)DTYPE_FP16 == 2,
              "the order of \"type\"");
static_assert(MACHINE_IO_READ == 0 && MACHINE_IO_WRITE == 1 && MACHINE_IO_MIXED == 2,
              "the order of \"kind\"");
static_assert(sizeof(enum dtype) == sizeof(int) && sizeof(enum machine_io_kind) == sizeof(int),
              "choices are read as int");

static const struct machine_row product_rows[] = {
    CHOICE(machine_product, "type", type, "fp32|bf16|fp16"),
    FLAG(machine_product, "accumulates", accumulates),
    FLAG(machine_product, "b_transposed", b_transposed),
    LENGTH(machine_product, "m", m),
    LENGTH(machine_product, "n", n),
    LENGTH(machine_product, "k", k),
    RATE(machine_product, "flops_per_second", flops_per_second),
};
static const struct machine_block product_block = ROWS(product_rows);

static const struct machine_row link_rows[] = {
    RATE(machine_link, "pageable", pageable),
    RATE(machine_link, "pinned", pinned),
    RATE(machine_link, "pinned_both", pinned_both),
    RATE(machine_link, "pinned_with_nvme", pinned_with_nvme),
};
static const struct machine_block link_block = ROWS(link_rows);

static const struct machine_row point_rows[] = {
    CHOICE(machine_io_point, "kind", kind, "read|write|mixed"),
    BYTES(machine_io_point, "block_bytes", block_bytes),
    LENGTH(machine_io_point, "queue_depth", queue_depth),
    RATE(machine_io_point, "bytes_per_second", bytes_per_second),
};
static const struct machine_block point_block = ROWS(point_rows);

static const struct machine_row drive_rows[] = {
    TEXT(machine_drive, "name", name),
    TEXT(machine_drive, "path", path),
    COUNT(machine_drive, "count", count),
    BYTES(machine_drive, "capacity_bytes", capacity_bytes),
    RATE(machine_drive, "read", read),
    RATE(machine_drive, "write", write),
    RATE(machine_drive, "mixed", mixed),
    RATE(machine_drive, "write_with_update", write_with_update),
    BYTES(machine_drive, "block_bytes", block_bytes),
    LENGTH(machine_drive, "queue_depth", queue_depth),
    TIME(machine_drive, "sync_seconds", sync_seconds),
    ROW(machine_drive, "endurance_bytes", endurance_bytes, CONFIGI_FLOAT, "[0,1e24]"),
    LIST(machine_drive, "points", points, point_count, &point_block),
};
static const struct machine_block drive_block = ROWS(drive_rows);

static const struct machine_row host_rows[] = {
    TEXT(machine, "cpu", host.cpu),
    COUNT(machine, "core_count", host.core_count),
    COUNT(machine, "node_count", host.node_count),
    BYTES(machine, "memory_bytes", host.memory_bytes),
    RATE(machine, "dram_read", host.dram_read),
    RATE(machine, "dram_copy", host.dram_copy),
    RATE(machine, "dram_update", host.dram_update),
    TIME(machine, "update_core_seconds", host.update_core_seconds),
    RATE(machine, "update_elems", host.update_elems),
    TIME(machine, "io_core_seconds", host.io_core_seconds),
    TIME(machine, "copy_core_seconds", host.copy_core_seconds),
    TIME(machine, "sum_core_seconds", host.sum_core_seconds),
};
static const struct machine_block host_block = ROWS(host_rows);

static const struct machine_row device_rows[] = {
    FLAG(machine, "is_gpu", device.is_gpu),
    TEXT(machine, "name", device.name),
    BYTES(machine, "memory_bytes", device.memory_bytes),
    RATE(machine, "compute_capability", device.compute_capability),
    RATE(machine, "peak_flops", device.peak_flops),
    RATE(machine, "flops_16bit", device.flops_16bit),
    RATE(machine, "flops_fp32", device.flops_fp32),
    RATE(machine, "memory_rate", device.memory_rate),
    RATE(machine, "attention_forward", device.attention_forward),
    RATE(machine, "attention_backward", device.attention_backward),
    RATE(machine, "row_rate", device.row_rate),
    RATE(machine, "expand_rate", device.expand_rate),
    TIME(machine, "op_seconds", device.op_seconds),
    COUNT(machine, "thread_count", device.thread_count),
    LIST(machine, "products", device.products, device.product_count, &product_block),
};
static const struct machine_block device_block = ROWS(device_rows);

static const struct machine_row comm_rows[] = {
    RATE(machine, "inside", comm.inside),
    RATE(machine, "between", comm.between),
    TIME(machine, "seconds", comm.seconds),
    FLAG(machine, "is_copies", comm.is_copies),
};
static const struct machine_block comm_block = ROWS(comm_rows);

static const struct machine_row top_rows[] = {
    TEXT(machine, "name", name),
    TEXT(machine, "measured_at", measured_at),
    TEXT(machine, "measured_by", measured_by),
    FLAG(machine, "disturbed", disturbed),
    TEXT(machine, "disturbed_by", disturbed_by),
    COUNT(machine, "host_count", host_count),
    COUNT(machine, "ranks_per_host", ranks_per_host),
    PART("host", &host_block),
    PART("device", &device_block),
    OBJECT(machine, "h2d", h2d, &link_block),
    OBJECT(machine, "d2h", d2h, &link_block),
    RATE(machine, "link_all_ranks", link_all_ranks),
    LIST(machine, "drives", drives, drive_count, &drive_block),
    RATE(machine, "drives_read", drives_read),
    RATE(machine, "drives_write", drives_write),
    PART("comm", &comm_block),
};
static const struct machine_block top_block = ROWS(top_rows);

/* ---- reading ---- */

static int read_block(const configi_reader *reader, const char *path, const json_t *value,
                      const struct machine_block *block, char *target);

static int unknown_key(const configi_reader *reader, const char *parent, const char *key,
                       const struct machine_block *block)
{
    char path[CONFIGI_PATH_BYTES], shown[CONFIGI_VALUE_BYTES];
    struct nearest nearest = {0};
    for (uint32_t i = 0; i < block->count; i++)
        nearest_offer(&nearest, key, block->rows[i].key.path);
    configi_join(path, parent, key);
    snprintf(shown, sizeof shown, "%.64s", path + (parent[0] ? strlen(parent) + 1 : 0));
    return configi_error(reader, path, "unknown key \"%s\"; the nearest known key is \"%s\"", shown,
                         nearest.name);
}

static size_t entries_max(const struct machine_row *row)
{
    return row->key.member_bytes / row->entry_bytes;
}

/* Reads an array of objects. `top` is the beginning of the struct that holds the array. */
static int read_objects(const configi_reader *reader, const char *path, const json_t *value,
                        const struct machine_row *row, char *top)
{
    char shown[CONFIGI_VALUE_BYTES];
    if (!json_is_array(value))
        return configi_error(reader, path, "%s is not a list of objects",
                             configi_show(value, shown));
    size_t count = json_array_size(value);
    if (count > entries_max(row))
        return configi_error(reader, path, "%zu entries; at most %zu are possible", count,
                             entries_max(row));
    for (size_t i = 0; i < count; i++) {
        char below[CONFIGI_PATH_BYTES], idx[24];
        snprintf(idx, sizeof idx, "%zu", i);
        configi_join(below, path, idx);
        TRY(read_block(reader, below, json_array_get(value, i), row->below,
                       top + row->key.offset + i * row->entry_bytes));
    }
    uint32_t number = (uint32_t)count;
    memcpy(top + row->count_offset, &number, sizeof number);
    return 0;
}

/* Writes a value that passed its check to its member. */
static int put_value(const configi_reader *reader, const char *path, const json_t *value,
                     const configi_key *key, void *member)
{
    size_t length = json_string_length(value);
    uint64_t whole = 0;
    if (json_is_integer(value))
        whole = (uint64_t)json_integer_value(value);
    else if (key->type == CONFIGI_SIZE || key->type == CONFIGI_INT) /* checked: it is in range */
        whole = (uint64_t)json_real_value(value);
    switch (key->type) {
    case CONFIGI_STRING:
        if (length >= key->member_bytes || strlen(json_string_value(value)) != length)
            return configi_error(reader, path, "a text of %zu bytes; at most %zu are possible",
                                 length, key->member_bytes - 1);
        memcpy(member, json_string_value(value), length); /* the rest is 0 */
        return 0;
    case CONFIGI_BOOL:
        *(bool *)member = json_is_true(value);
        return 0;
    case CONFIGI_ENUM:
        *(int *)member = configi_list_find(key->allowed, json_string_value(value));
        return 0;
    case CONFIGI_FLOAT:
        *(double *)member = json_number_value(value);
        return 0;
    case CONFIGI_SIZE:
        if (json_is_string(value))
            TRY(size_parse(json_string_value(value), &whole));
        *(uint64_t *)member = whole;
        return 0;
    default: /* INT */
        if (key->member_bytes == sizeof(uint32_t))
            *(uint32_t *)member = (uint32_t)whole;
        else
            *(uint64_t *)member = whole;
        return 0;
    }
}

static int read_row(const configi_reader *reader, const char *path, const json_t *value,
                    const struct machine_row *row, char *top)
{
    if (row->key.type == CONFIGI_ANY)
        return read_block(reader, path, value, row->below, top + row->key.offset);
    if (row->key.type == CONFIGI_OBJECTS)
        return read_objects(reader, path, value, row, top);
    TRY(configi_check_value(reader, &row->key, path, value));
    return put_value(reader, path, value, &row->key, top + row->key.offset);
}

static int read_block(const configi_reader *reader, const char *path, const json_t *value,
                      const struct machine_block *block, char *target)
{
    char shown[CONFIGI_VALUE_BYTES];
    if (!json_is_object(value))
        return configi_error(reader, path, "%s is not an object, { ... }",
                             configi_show(value, shown));
    const char *key;
    json_t *below;
    json_object_foreach((json_t *)(uintptr_t)value, key, below)
    {
        char below_path[CONFIGI_PATH_BYTES];
        uint32_t i = 0;
        while (i < block->count && strcmp(block->rows[i].key.path, key) != 0)
            i++;
        if (strcmp(key, "description") == 0) /* it is for people, and allowed in any object */
            continue;
        if (i == block->count)
            return unknown_key(reader, path, key, block);
        configi_join(below_path, path, key);
        TRY(read_row(reader, below_path, below, &block->rows[i], target));
    }
    return 0;
}

/* Takes the reference to `doc`. */
static int read_document(const char *name, json_t *doc, machine *out)
{
    const configi_reader reader = {.file = name};
    int rc = json_is_object(doc)
                 ? read_block(&reader, "", doc, &top_block, (char *)out)
                 : err_set(ERR_CONFIG, "%s: a machine must be an object, { ... }", name);
    json_decref(doc);
    if (rc < 0)
        memset(out, 0, sizeof *out);
    return rc;
}

int machine_read_text(const char *name, const char *text, size_t text_bytes, machine *out)
{
    json_t *doc;
    memset(out, 0, sizeof *out);
    TRY(configi_parse(name, text, text_bytes, true, &doc));
    return read_document(name, doc, out);
}

int machine_read(const char *path, machine *out)
{
    char file[FILE_PATH_BYTES], advice[CONFIGI_ADVICE_BYTES];
    json_t *doc;
    memset(out, 0, sizeof *out);
    if (strchr(path, '/') || text_ends_with(path, ".json")) {
        if (access(path, R_OK) != 0)
            return err_set(ERR_INPUT, "%s: cannot open the machine file: %s", path,
                           strerror(errno));
        TRY(configi_read_json(path, &doc));
        return read_document(path, doc, out);
    }
    if (!configi_is_name(path))
        return err_set(
            ERR_INPUT,
            "\"%.100s\" is not the name of a machine: at most %d letters, digits and ._-; "
            "the path of a file has a slash or ends in .json",
            path, JOB_NAME_BYTES - 1);
    int rc = configi_read_named("clusters", path, NULL, file, &doc, advice);
    if (rc == -ENOENT)
        return err_set(ERR_INPUT, "there is no machine \"%s\"; %s", path, advice);
    return rc < 0 ? rc : read_document(file, doc, out);
}

/* ---- writing ---- */

static json_t *block_json(const struct machine_block *block, const char *source);

static json_t *objects_json(const struct machine_row *row, const char *top)
{
    uint32_t count;
    memcpy(&count, top + row->count_offset, sizeof count);
    if (count > entries_max(row))
        return NULL;
    json_t *list = json_array();
    for (uint32_t i = 0; list && i < count; i++) {
        const char *entry = top + row->key.offset + i * row->entry_bytes;
        if (json_array_append_new(list, block_json(row->below, entry)) < 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* Returns NULL if there is no memory, or if JSON cannot hold the value: not finite, not UTF-8, or
 * more entries than the array has. */
static json_t *row_json(const struct machine_row *row, const char *top)
{
    const char *source = top + row->key.offset;
    char entry[JOB_NAME_BYTES];
    uint64_t whole;
    switch (row->key.type) {
    case CONFIGI_STRING:
        return json_stringn(source, strnlen(source, row->key.member_bytes));
    case CONFIGI_BOOL:
        return json_boolean(*(const bool *)source);
    case CONFIGI_FLOAT:
        return json_real(*(const double *)source);
    case CONFIGI_ENUM: {
        int idx = *(const int *)source;
        bool is_choice = idx >= 0 && configi_list_entry(row->key.allowed, idx, entry, sizeof entry);
        return is_choice ? json_string(entry) : NULL;
    }
    case CONFIGI_ANY:
        return block_json(row->below, source);
    case CONFIGI_OBJECTS:
        return objects_json(row, top);
    default: /* INT, SIZE */
        whole = row->key.member_bytes == sizeof(uint32_t) ? *(const uint32_t *)source
                                                          : *(const uint64_t *)source;
        return whole <= INT64_MAX ? json_integer((json_int_t)whole) : NULL;
    }
}

static json_t *block_json(const struct machine_block *block, const char *source)
{
    json_t *object = json_object();
    for (uint32_t i = 0; object && i < block->count; i++) {
        const struct machine_row *row = &block->rows[i];
        json_t *value = row_json(row, source);
        if (!value)
            err_set(-EINVAL, "\"%s\" of a machine cannot be written as JSON", row->key.path);
        if (!value || json_object_set_new(object, row->key.path, value) < 0) {
            json_decref(object);
            return NULL;
        }
    }
    return object;
}

/* Checks that the text can be read again: counts fit their arrays, numbers lie in their ranges. */
static int check_written(const char *path, const char *text)
{
    machine *again = mem_alloc(1, sizeof *again, "machine");
    if (!again)
        return -ENOMEM;
    int rc = machine_read_text(path, text, strlen(text), again);
    mem_free(again);
    return rc < 0 ? err_prefix(-EINVAL, "not written") : 0;
}

int machine_write(const machine *self, const char *path)
{
    char *text;
    json_t *doc = block_json(&top_block, (const char *)self);
    if (!doc)
        return -EINVAL;
    int rc = configi_dump(doc, &text);
    json_decref(doc);
    TRY(rc);
    rc = check_written(path, text);
    if (rc == 0)
        rc = file_write(path, FILE_SHARED, text, strlen(text));
    mem_free(text);
    return rc;
}

/* ---- this host ---- */

/* Reads the value of the first line of /proc/cpuinfo that begins with one of the keys; "CPU" if
 * there is none. */
static void name_cpu(char name[MACHINE_NAME_BYTES])
{
    static const char *const keys[] = {"model name", "Model", "cpu model", "CPU part"};
    char line[512];
    FILE *file = fopen("/proc/cpuinfo", "re");
    name[0] = '\0';
    while (file && name[0] == '\0' && fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');
        for (size_t k = 0; colon && k < sizeof keys / sizeof keys[0]; k++) {
            if (strncmp(line, keys[k], strlen(keys[k])) != 0)
                continue;
            const char *value = colon + 1 + strspn(colon + 1, " \t");
            snprintf(name, MACHINE_NAME_BYTES, "%.*s", (int)strcspn(value, "\n"), value);
            break;
        }
    }
    if (file)
        fclose(file);
    if (name[0] == '\0')
        snprintf(name, MACHINE_NAME_BYTES, "CPU");
}

void machine_name_host(machine *target)
{
    memset(target->name, 0, sizeof target->name);
    if (gethostname(target->name, sizeof target->name - 1) != 0)
        snprintf(target->name, sizeof target->name, "localhost");
    memset(target->host.cpu, 0, sizeof target->host.cpu);
    name_cpu(target->host.cpu);
}

bool machine_is_here(const machine *self, const machine *here, char *why, size_t why_bytes)
{
    why[0] = '\0';
    if (self->measured_at[0] == '\0')
        snprintf(why, why_bytes, "it is described, not measured");
    else if (strcmp(self->name, here->name) != 0)
        snprintf(why, why_bytes, "it is of host \"%s\", and this is \"%s\"", self->name,
                 here->name);
    else if (strcmp(self->host.cpu, here->host.cpu) != 0)
        snprintf(why, why_bytes, "its CPU is \"%s\", and this host's \"%s\"", self->host.cpu,
                 here->host.cpu);
    else if (self->host.core_count != here->host.core_count)
        snprintf(why, why_bytes, "it was measured on %u cores, and %u may be used now",
                 self->host.core_count, here->host.core_count);
    return why[0] == '\0';
}
