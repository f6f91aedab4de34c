// Matrix instructions by the fragment layouts that the PTX ISA documents ("Warp-level matrix
// instructions": mma.m16n8k16 with 16-bit types, ldmatrix), and cp.async.
//
// In fragments lane = 4 * group + member. A 32-bit register holds two elements, the first one low.
#include "internal.h"

extern "C" {
#include "base/dtype.h"
}

// --- half precision, by the host's own conversions ----------------------------------------------

float simulated_widen_fp16(uint16_t half)
{
    return fp32_from_fp16(half);
}

uint16_t simulated_narrow_fp16(float value)
{
    return fp16_from_fp32(value);
}

static const char mma_name[] = "mma.m16n8k16";
static const char ldmatrix_name[] = "ldmatrix";

// --- mma -----------------------------------------------------------------------------------------

struct mma_request : simulated_request {
    float *d;
    const float *c;
    const uint32_t *a, *b;
    bool is_bf16;
};

static float element(uint32_t pair, int idx, bool is_bf16)
{
    uint16_t bits = static_cast<uint16_t>(pair >> 16 * idx);
    return is_bf16 ? fp32_from_bf16(bits) : fp32_from_fp16(bits);
}

//   A [16 rows][16 k], row-major: register 0 row group, k 2*member..+1; register 1 row group + 8;
//                                 registers 2, 3 the same rows, k + 8
//   B [16 k][8 columns]:          register 0 is column group, k 2*member..+1; register 1 k + 8
//   C, D [16 rows][8 columns]:    0, 1 are row group, columns 2*member..+1; 2, 3 row group + 8
static void complete_mma(simulated_request *const lanes[32])
{
    float a[16][16], b[16][8], c[16][8];
    for (int lane = 0; lane < 32; lane++) {
        const mma_request *own = static_cast<const mma_request *>(lanes[lane]);
        int group = lane / 4, member = lane % 4;
        for (int half = 0; half < 2; half++) {
            for (int r = 0; r < 4; r++)
                a[group + 8 * (r % 2)][2 * member + half + 8 * (r / 2)] =
                    element(own->a[r], half, own->is_bf16);
            for (int r = 0; r < 2; r++)
                b[2 * member + half + 8 * r][group] = element(own->b[r], half, own->is_bf16);
            for (int r = 0; r < 2; r++)
                c[group + 8 * r][2 * member + half] = own->c[2 * r + half];
        }
    }
    for (int row = 0; row < 16; row++) {
        for (int column = 0; column < 8; column++) {
            float sum = c[row][column];
            for (int k = 0; k < 16; k++)
                sum += a[row][k] * b[k][column]; /* the product of two 16-bit numbers is exact */
            c[row][column] = sum;
        }
    }
    for (int lane = 0; lane < 32; lane++) {
        float *d = static_cast<mma_request *>(lanes[lane])->d;
        for (int i = 0; i < 4; i++)
            d[i] = c[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2];
    }
}

static void require_warp(const char *what)
{
    unsigned threads = blockDim.x * blockDim.y * blockDim.z;
    if (threads % 32 != 0)
        simulated_fail("%s: the block's %u threads are not whole warps", what, threads);
}

void simulated_mma_m16n8k16(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4],
                            bool is_bf16, const char *file, int line)
{
    require_warp(mma_name);
    mma_request request;
    request.mask = 0xffffffffu;
    request.what = mma_name;
    request.complete = complete_mma;
    request.file = file;
    request.line = line;
    request.d = d;
    request.a = a;
    request.b = b;
    request.c = c;
    request.is_bf16 = is_bf16;
    simulated_warp_meet(&request);
}

// --- ldmatrix ------------------------------------------------------------------------------------

struct ldmatrix_request : simulated_request {
    uint32_t *registers;
    const void *row;
    int count;
    bool is_transposed;
};

// Register i of a lane holds, of matrix i, row group and columns 2*member..+1; transposed: column
// group and rows 2*member..+1.
static void complete_ldmatrix(simulated_request *const lanes[32])
{
    for (int lane = 0; lane < 32; lane++) {
        ldmatrix_request *own = static_cast<ldmatrix_request *>(lanes[lane]);
        int group = lane / 4, member = lane % 4;
        for (int i = 0; i < own->count; i++) {
            uint16_t pair[2];
            for (int half = 0; half < 2; half++) {
                int row = own->is_transposed ? 2 * member + half : group;
                int column = own->is_transposed ? group : 2 * member + half;
                const void *address = static_cast<ldmatrix_request *>(lanes[8 * i + row])->row;
                memcpy(&pair[half], static_cast<const uint16_t *>(address) + column, 2);
            }
            own->registers[i] = static_cast<uint32_t>(pair[1]) << 16 | pair[0];
        }
    }
}

static void load_matrices(uint32_t *registers, const void *row, int count, bool is_transposed,
                          const char *file, int line)
{
    require_warp(ldmatrix_name);
    bool gives_row = simulated_lane() < static_cast<unsigned>(8 * count);
    if (gives_row && reinterpret_cast<uintptr_t>(row) % 16 != 0)
        simulated_fail("ldmatrix (%s:%d): the row's address %p is not aligned to 16 bytes", file,
                       line, row);
    ldmatrix_request request;
    request.mask = 0xffffffffu;
    request.what = ldmatrix_name;
    request.complete = complete_ldmatrix;
    request.file = file;
    request.line = line;
    request.registers = registers;
    request.row = row;
    request.count = count;
    request.is_transposed = is_transposed;
    simulated_warp_meet(&request);
}

#define LDMATRIX(name, count, is_transposed)                                                       \
    void simulated_ldmatrix_##name(uint32_t *registers, const void *row, const char *file,         \
                                   int line)                                                       \
    {                                                                                              \
        load_matrices(registers, row, count, is_transposed, file, line);                           \
    }

LDMATRIX(x2, 2, false)
LDMATRIX(x2_trans, 2, true)
LDMATRIX(x4, 4, false)
LDMATRIX(x4_trans, 4, true)

// --- cp.async ------------------------------------------------------------------------------------

using simulated::async_copy;
using simulated::async_queue;

void simulated_cp_async(void *target, const void *source, int bytes, int source_bytes)
{
    if ((bytes != 4 && bytes != 8 && bytes != 16) || source_bytes < 0 || source_bytes > bytes)
        simulated_fail("cp.async of %d bytes from %d", bytes, source_bytes);
    uintptr_t mask = static_cast<uintptr_t>(bytes) - 1;
    if (reinterpret_cast<uintptr_t>(target) & mask || reinterpret_cast<uintptr_t>(source) & mask)
        simulated_fail("cp.async of %d bytes from %p to %p: not aligned", bytes, source, target);
    simulated::get_async_queue().copies.push_back(async_copy{target, source, bytes, source_bytes});
}

void simulated_cp_async_commit()
{
    async_queue &queue = simulated::get_async_queue();
    queue.group_ends.push_back(queue.copies.size());
}

static void finish_copies(async_queue &queue, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const async_copy &copy = queue.copies[i];
        size_t source_bytes = static_cast<size_t>(copy.source_bytes);
        if (source_bytes > 0)
            memcpy(copy.target, copy.source, source_bytes);
        memset(static_cast<char *>(copy.target) + source_bytes, 0,
               static_cast<size_t>(copy.bytes) - source_bytes);
    }
    queue.copies.erase(queue.copies.begin(), queue.copies.begin() + static_cast<long>(count));
}

void simulated_cp_async_wait(int groups)
{
    async_queue &queue = simulated::get_async_queue();
    size_t pending = queue.group_ends.size(), left = static_cast<size_t>(groups);
    if (pending <= left)
        return;
    size_t finished = pending - left, count = queue.group_ends[finished - 1];
    finish_copies(queue, count);
    queue.group_ends.erase(queue.group_ends.begin(),
                           queue.group_ends.begin() + static_cast<long>(finished));
    for (size_t &end : queue.group_ends)
        end -= count;
}

void simulated_cp_async_wait_all()
{
    async_queue &queue = simulated::get_async_queue();
    finish_copies(queue, queue.copies.size());
    queue.group_ends.clear();
}
