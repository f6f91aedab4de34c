/* machine.json: what is written reads back to the bit, what does not belong there is refused with a
 * sentence that names it, broken texts end in an error, and the described machines read. */
#include "tests/config/test_config_common.h"

#include <errno.h>
#include <math.h>

#include "base/rng.h"
#include "config/config_internal.h"
#include "config/machine.h"

static uint64_t seed;
static char text_file[128];

static machine *new_machine(void)
{
    machine *self = mem_alloc(1, sizeof *self, "test machine");
    assert_non_null(self);
    return self;
}

static int read_machine(const char *text, machine *out)
{
    return machine_read_text("here.json", text, strlen(text), out);
}

/* A number up to 512, with all bits of its mantissa in use. */
static double draw_rate(uint64_t round, uint64_t idx)
{
    return ldexp((double)(1 + rng_below(seed, round, idx, (uint64_t)1 << 53)),
                 (int)rng_below(seed, round, idx + 1, 50) - 94);
}

/* Everything that a machine has, with numbers that no decimal of 15 digits holds. */
static void fill(machine *self, uint64_t round)
{
    uint64_t i = 0;
    memset(self, 0, sizeof *self);
    snprintf(self->name, sizeof self->name, "host \"%u\" \xc3\xbc", (unsigned)round);
    strcpy(self->measured_at, "2026-11-22T08:00:00Z");
    strcpy(self->measured_by, "sluice 0.1.0");
    self->disturbed = round % 2;
    strcpy(self->disturbed_by, round % 2 ? "bf16 forward +-38%" : "");
    self->host_count = 3;
    self->ranks_per_host = 2;
    memset(self->host.cpu, 'x', sizeof self->host.cpu - 1);
    self->host.core_count = 7;
    self->device.thread_count = 6;
    self->host.node_count = 2;
    self->host.memory_bytes = ((uint64_t)1 << 61) + 1;
    double *const reals[] = {
        &self->host.dram_read,         &self->host.dram_copy,
        &self->host.dram_update,       &self->host.update_core_seconds,
        &self->host.update_elems,      &self->host.io_core_seconds,
        &self->device.peak_flops,      &self->device.flops_16bit,
        &self->device.flops_fp32,      &self->device.memory_rate,
        &self->device.row_rate,        &self->device.attention_forward,
        &self->device.op_seconds,      &self->device.attention_backward,
        &self->h2d.pageable,           &self->h2d.pinned,
        &self->h2d.pinned_both,        &self->h2d.pinned_with_nvme,
        &self->d2h.pageable,           &self->d2h.pinned,
        &self->d2h.pinned_both,        &self->d2h.pinned_with_nvme,
        &self->link_all_ranks,         &self->drives_read,
        &self->drives_write,           &self->comm.inside,
        &self->comm.between,           &self->comm.seconds,
        &self->host.copy_core_seconds, &self->host.sum_core_seconds,
        &self->device.expand_rate,
    };
    for (size_t r = 0; r < sizeof reals / sizeof reals[0]; r++)
        *reals[r] = draw_rate(round, i += 2);
    self->device.is_gpu = self->comm.is_copies = round % 2;
    strcpy(self->device.name, "a device");
    self->device.memory_bytes = 85899345920;
    self->device.product_count = round == 0 ? MACHINE_PRODUCTS_MAX : 2;
    for (uint32_t p = 0; p < self->device.product_count; p++)
        self->device.products[p] = (machine_product){.type = (enum dtype)(p % DTYPE_COUNT),
                                                     .accumulates = p % 2,
                                                     .b_transposed = p % 3 == 0,
                                                     .m = p,
                                                     .n = 1 + p,
                                                     .k = 1000000007,
                                                     .flops_per_second = draw_rate(round, i += 2)};
    self->drive_count = round == 0 ? DRIVES_MAX : 1;
    for (uint32_t d = 0; d < self->drive_count; d++) {
        machine_drive *drive = &self->drives[d];
        strcpy(drive->name, "nvme");
        strcpy(drive->path, "/mnt/{rank}/\\");
        drive->count = d;
        drive->capacity_bytes = INT64_MAX - d - 1000000000000000000;
        drive->read = draw_rate(round, i += 2);
        drive->write = draw_rate(round, i += 2);
        drive->mixed = draw_rate(round, i += 2);
        drive->write_with_update = draw_rate(round, i += 2);
        drive->block_bytes = 1 << 20;
        drive->queue_depth = 32;
        drive->sync_seconds = draw_rate(round, i += 2);
        drive->endurance_bytes = 7e15 + 1 / 3.0;
        drive->point_count = round == 0 ? MACHINE_IO_POINTS_MAX : d % 3;
        for (uint32_t p = 0; p < drive->point_count; p++)
            drive->points[p] = (machine_io_point){.kind = (enum machine_io_kind)(p % 3),
                                                  .block_bytes = (uint64_t)4096 << p % 10,
                                                  .queue_depth = p,
                                                  .bytes_per_second = draw_rate(round, i += 2)};
    }
}

static void round_trip(void **state)
{
    machine *was = new_machine(), *is = new_machine();
    for (uint64_t round = 0; round < 8; round++) {
        fill(was, round);
        int rc = machine_write(was, text_file);
        assert_ok(rc);
        rc = machine_read(text_file, is);
        assert_ok(rc);
        /* Compares members one by one, because there is padding after a bool or a kind. */
        assert_int_equal(was->device.is_gpu, is->device.is_gpu);
        assert_memory_equal(&was->host, &is->host, sizeof was->host);
        assert_memory_equal(was->device.products, is->device.products, sizeof was->device.products);
        assert_memory_equal(&was->h2d, &is->h2d, sizeof was->h2d);
        assert_memory_equal(&was->d2h, &is->d2h, sizeof was->d2h);
        assert_memory_equal(was->drives, is->drives, sizeof was->drives);
        assert_memory_equal(was, is, sizeof *was); /* the rest; padding is 0 in both */
    }
    memset(was, 0, sizeof *was);
    assert_int_equal(machine_write(was, text_file), 0);
    assert_int_equal(machine_read(text_file, is), 0);
    assert_memory_equal(was, is, sizeof *was);
    mem_free(was);
    mem_free(is);
}

static void as_people_write(void **state)
{
    machine *self = new_machine();
    assert_int_equal(read_machine("{ // by hand\n"
                                  "  \"name\": \"two\", \"description\": \"for people\",\n"
                                  "  \"host\": {\"memory_bytes\": \"1.5TiB\", \"core_count\": 96,\n"
                                  "    \"description\": \"also here\"},\n"
                                  "  \"device\": {\"is_gpu\": true, \"memory_bytes\": \"32 GiB\",\n"
                                  "    \"peak_flops\": 125e12, /* sheet */ },\n"
                                  "  \"drives\": [{\"count\": 8, \"capacity_bytes\": 3.84e12,\n"
                                  "    \"read\": 3500000000,},],\n"
                                  "}",
                                  self),
                     0);
    assert_string_equal(self->name, "two");
    assert_int_equal(self->host.memory_bytes, 3 * ((uint64_t)1 << 39));
    assert_int_equal(self->host.core_count, 96);
    assert_true(self->device.is_gpu && self->device.peak_flops == 125e12);
    assert_int_equal(self->device.memory_bytes, (uint64_t)32 << 30);
    assert_int_equal(self->drive_count, 1);
    assert_int_equal(self->drives[0].count, 8);
    assert_int_equal(self->drives[0].capacity_bytes, 3840000000000);
    assert_true(self->drives[0].read == 3.5e9);
    mem_free(self);
}

static void refusals(void **state)
{
    static const struct {
        const char *text, *says, *also;
    } cases[] = {
        {"[]", "must be an object", ""},
        {"{", "here.json:1:", ""},
        {"{\"name\": \"a\", \"name\": \"b\"}", "duplicate", "name"},
        {"{\"hosts\": {}}", "hosts: unknown key", "\"host\""},
        {"{\"host\": {\"dram_reed\": 1}}", "host.dram_reed: unknown key", "\"dram_read\""},
        {"{\"drives\": [{}, {\"reads\": 1}]}", "drives.1.reads: unknown key", "\"read\""},
        {"{\"name\": 7}", "name: 7 is not a string", ""},
        {"{\"host\": 7}", "host: 7 is not an object", ""},
        {"{\"host\": {\"core_count\": 1.5}}", "host.core_count: 1.5 is not a whole number", ""},
        {"{\"host\": {\"core_count\": -1}}", "host.core_count: -1 is out of range", "65536"},
        {"{\"host\": {\"core_count\": 1e300}}",
         "host.core_count: 1e300 is out of range: must be below 2^63", ""},
        {"{\"host\": {\"memory_bytes\": \"32GB and\"}}", "host.memory_bytes: ", "GiB"},
        {"{\"host\": {\"memory_bytes\": \"9EiB\"}}", "host.memory_bytes: ", ""},
        {"{\"host\": {\"dram_read\": \"36GB\"}}", "host.dram_read: \"36GB\" is not a number", ""},
        {"{\"host\": {\"dram_read\": -2.5}}", "host.dram_read: -2.5 is out of range", ""},
        {"{\"host\": {\"dram_read\": 1e19}}", "out of range", ""},
        {"{\"device\": {\"is_gpu\": 1}}", "device.is_gpu: 1 is not true or false", ""},
        {"{\"device\": {\"products\": {}}}", "device.products: {} is not a list", ""},
        {"{\"device\": {\"products\": [{\"type\": \"fp8\"}]}}", "device.products.0.type: \"fp8\"",
         "bf16"},
        {"{\"drives\": [{\"points\": [{\"kind\": 1}]}]}", "drives.0.points.0.kind: 1", "mixed"},
        {"{\"drives\": [[]]}", "drives.0: [] is not an object", ""},
        {"{\"drives\": [{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}]}",
         "drives: 17 entries; at most 16", ""},
        {"{\"comm\": {\"seconds\": 5000}}", "comm.seconds: 5000 is out of range", ""},
        {"{\"name\": \"0123456789012345678901234567890123456789012345678901234567890123456789"
         "01234567890123456789012345\"}",
         "name: a text of 96 bytes; at most 95", ""},
    };
    machine *self = new_machine(), *empty = new_machine();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (read_machine(cases[i].text, self) != ERR_CONFIG || !strstr(err_text(), cases[i].says) ||
            !strstr(err_text(), cases[i].also) || !strstr(err_text(), "here.json"))
            fail_msg("%s: \"%s\", and not \"%s\" ... \"%s\"", cases[i].text, err_text(),
                     cases[i].says, cases[i].also);
        assert_memory_equal(self, empty, sizeof *self);
    }
    assert_error(machine_read("no/such.json", self), ERR_INPUT, "no/such.json");
    assert_error(machine_read("8xh10", self), ERR_INPUT, "\"8xh100\"");
    assert_int_equal(machine_read("..", self), ERR_INPUT);
    assert_int_equal(machine_read("", self), ERR_INPUT);
    mem_free(self);
    mem_free(empty);
}

/* A machine that could not be read again is not written, and the old file stays. */
static void unwritable(void **state)
{
    machine *self = new_machine();
    strcpy(self->name, "before");
    assert_int_equal(machine_write(self, text_file), 0);
    for (int i = 0; i < 5; i++) {
        memset(self, 0, sizeof *self);
        if (i == 0)
            self->host.dram_read = NAN;
        if (i == 1)
            self->host.dram_read = -1;
        if (i == 2)
            strcpy(self->name, "\xff");
        if (i == 3)
            self->drive_count = DRIVES_MAX + 1;
        if (i == 4)
            self->host.memory_bytes = UINT64_MAX;
        assert_int_equal(machine_write(self, text_file), -EINVAL);
        assert_int_equal(machine_read(text_file, self), 0);
        assert_string_equal(self->name, "before");
    }
    assert_true(machine_write(self, "no/such/machine.json") < 0);
    mem_free(self);
}

static void knows_this_host(void **state)
{
    char why[512];
    machine *here = new_machine(), *other = new_machine();
    machine_name_host(here);
    assert_true(here->name[0] != '\0' && here->host.cpu[0] != '\0');
    here->host.core_count = 2;
    memcpy(other, here, sizeof *other);
    assert_false(machine_is_here(other, here, why, sizeof why));
    assert_non_null(strstr(why, "described"));
    strcpy(other->measured_at, "2026-11-22");
    assert_true(machine_is_here(other, here, why, sizeof why));
    other->host.core_count++;
    assert_false(machine_is_here(other, here, why, sizeof why));
    assert_non_null(strstr(why, "cores"));
    other->host.core_count--;
    strcpy(other->host.cpu, "abacus");
    assert_false(machine_is_here(other, here, why, sizeof why));
    assert_non_null(strstr(why, "\"abacus\""));
    memcpy(other->host.cpu, here->host.cpu, sizeof other->host.cpu);
    strcpy(other->name, "elsewhere");
    assert_false(machine_is_here(other, here, why, sizeof why));
    assert_non_null(strstr(why, "\"elsewhere\""));
    mem_free(here);
    mem_free(other);
}

/* Random changes to a right file end in a machine or in ERR_CONFIG. */
static void broken_texts(void **state)
{
    enum { ROUNDS = 1500, BYTES_MAX = 1 << 16 };
    static char right[BYTES_MAX], text[BYTES_MAX];
    machine *self = new_machine();
    fill(self, 1);
    assert_int_equal(machine_write(self, text_file), 0);
    FILE *file = fopen(text_file, "rb");
    assert_non_null(file);
    size_t bytes = fread(right, 1, sizeof right, file);
    fclose(file);
    assert_in_range(bytes, 1000, sizeof right - 1);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        memcpy(text, right, bytes);
        size_t length = bytes, edits = 1 + (size_t)rng_below(seed, round, 900, 3);
        for (size_t e = 0; e < edits; e++) {
            static const char letters[] = "{}[],:\"0123456789eE+-.truefalsn\\u\xff\n/#*x";
            size_t at = (size_t)rng_below(seed, round, 901 + 4 * e, length);
            text[at] = letters[rng_below(seed, round, 902 + 4 * e, sizeof letters)];
            if (rng_below(seed, round, 903 + 4 * e, 8) == 0)
                length = at + 1;
        }
        int rc = machine_read_text("broken.json", text, length, self);
        if (rc < 0 && (rc != ERR_CONFIG || !strstr(err_text(), "broken.json")))
            fail_msg("round %u: %s: %s", (unsigned)round, err_name(rc), err_text());
    }
    mem_free(self);
}

/* Every member of configs/clusters.json is a machine that says what a plan needs. */
static void described_machines(void **state)
{
    json_t *all, *value;
    const char *name;
    assert_int_equal(configi_read_json(SLUICE_SOURCE_DIR "/configs/clusters.json", &all), 0);
    assert_true(json_object_size(all) >= 7);
    machine *self = new_machine();
    json_object_foreach(all, name, value)
    {
        assert_ok(machine_read(name, self));
        assert_true(self->name[0] != '\0' && self->measured_at[0] == '\0');
        assert_true(self->host_count > 0 && self->ranks_per_host > 0);
        assert_true(self->host.memory_bytes > 0 && self->host.core_count > 0);
        assert_true(self->host.dram_copy > 0 && self->device.is_gpu);
        assert_true(self->device.memory_bytes > 0 && self->device.peak_flops > 0);
        assert_true(self->device.compute_capability > 0);
        assert_true(self->device.memory_rate > 0 && self->h2d.pinned > 0 && self->d2h.pinned > 0);
        assert_true(self->drive_count > 0 && self->drives[0].read > 0);
        assert_true(self->drives[0].write > 0 && self->drives[0].capacity_bytes > 0);
        assert_true(self->ranks_per_host == 1 || self->comm.inside > 0);
        assert_true(self->host_count == 1 || self->comm.between > 0);
    }
    json_decref(all);
    mem_free(self);
}

static int setup(void **state)
{
    seed = unit_seed(1);
    int rc = test_setup(state);
    snprintf(text_file, sizeof text_file, "%s/machine.json", test_dir);
    return rc;
}

static int teardown(void **state)
{
    unlink(text_file);
    return test_teardown(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),         cmocka_unit_test(as_people_write),
        cmocka_unit_test(refusals),           cmocka_unit_test(unwritable),
        cmocka_unit_test(knows_this_host),    cmocka_unit_test(broken_texts),
        cmocka_unit_test(described_machines),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
