/* Fuzzes the headers of safetensors files: the first byte says how many bytes of data follow the
 * header, the rest is the header. Bytes end in ERR_INPUT, or in tensors that fill the data without
 * overlap, sized as dtype and shape say, and that are found by their names. */
#include <string.h>

#include "format/safetensors.h"
#include "fuzz.h"

enum { HEADER_MAX = 1 << 16 };

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    return 0;
}

static void check_table(const safetensors_table *self, uint64_t data_begin)
{
    uint64_t end = data_begin;
    for (uint32_t i = 0; i < self->count; i++) {
        const safetensors_tensor *tensor = &self->tensors[i];
        uint64_t elems = 1;
        FUZZ_CHECK(tensor->file_offset == end, "tensor %u begins at %llu", i,
                   (unsigned long long)tensor->file_offset);
        FUZZ_CHECK(tensor->dim_count <= SAFETENSORS_DIMS_MAX, "%u dimensions", tensor->dim_count);
        for (uint32_t d = 0; d < tensor->dim_count; d++)
            elems *= tensor->shape[d];
        FUZZ_CHECK(elems == tensor->elem_count, "elements of tensor %u", i);
        FUZZ_CHECK(tensor->type == SAFETENSORS_OTHER ||
                       tensor->size_bytes == elems * dtype_bytes((enum dtype)tensor->type),
                   "size of tensor %u", i);
        FUZZ_CHECK(safetensors_find(self, tensor->name) == tensor, "name of tensor %u", i);
        end += tensor->size_bytes;
    }
    FUZZ_CHECK(end == self->file_bytes, "the data end at %llu", (unsigned long long)end);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1 || size > HEADER_MAX)
        return 0;
    uint64_t live_bytes = fuzz_live_bytes(), header_bytes = size - 1;
    uint64_t data_begin = SAFETENSORS_LENGTH_BYTES + header_bytes;
    char *header = malloc(size); /* exact, so that ASan sees what reads beyond */
    FUZZ_CHECK(header, "no memory");
    memcpy(header, data + 1, header_bytes);
    safetensors_table table;
    int rc = safetensors_decode("file", header, header_bytes, data_begin + data[0], &table);
    free(header);
    if (rc < 0) {
        fuzz_check_refusal(rc, ERR_INPUT, ERR_INPUT);
        FUZZ_CHECK(!table.tensors && table.count == 0, "tensors beside an error");
    } else {
        check_table(&table, data_begin);
        safetensors_close(&table);
    }
    FUZZ_CHECK(fuzz_live_bytes() == live_bytes, "memory is kept");
    return 0;
}
