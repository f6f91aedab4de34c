// The simulated GPU runs kernels as a GPU would, and finds what is wrong with them: barriers and
// shuffles against plain loops, canary kernels that must be caught, deaths in a child process.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

extern "C" {
#include <cmocka.h>
}

#include "kernels/cuda/device.cuh"
#include "tests/simulated_gpu/simulated_gpu.h"

enum { THREADS = 256, EXIT_FAILED = 99 };

template <typename T> static T *device_array(uint64_t count)
{
    T *memory = NULL;
    assert_int_equal(cudaMalloc(&memory, count * sizeof(T)), cudaSuccess);
    return memory;
}

template <typename T> static T *download(const T *memory, uint64_t count)
{
    T *host = static_cast<T *>(malloc(count * sizeof(T)));
    assert_non_null(host);
    assert_int_equal(cudaMemcpy(host, memory, count * sizeof(T), cudaMemcpyDeviceToHost),
                     cudaSuccess);
    return host;
}

template <typename... P, typename... A>
static void launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, A... arguments)
{
    assert_int_equal(cudai_launch(kernel, grid, block, shared_bytes, NULL, arguments...),
                     cudaSuccess);
}

// --- places and barriers -------------------------------------------------------------------------

static __global__ void count_places(unsigned *hits)
{
    unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    unsigned threads = blockDim.x * blockDim.y * blockDim.z;
    atomicAdd(&hits[block * threads + thread], 1u);
}

static void test_places(void **)
{
    dim3 grid(3, 2, 5), block(7, 3, 2);
    uint64_t count = 3 * 2 * 5 * 7 * 3 * 2;
    unsigned *hits = device_array<unsigned>(count);
    assert_int_equal(cudaMemset(hits, 0, count * sizeof *hits), cudaSuccess);
    launch(count_places, grid, block, 0, hits);
    unsigned *got = download(hits, count);
    for (uint64_t i = 0; i < count; i++)
        assert_int_equal(got[i], 1);
    free(got);
    cudaFree(hits);
}

// Each thread reads what the mirror thread wrote; `waits` is what makes it right.
static __global__ void mirror_block(int *target, int waits)
{
    __shared__ int values[THREADS];
    unsigned i = threadIdx.x;
    values[i] = static_cast<int>(blockIdx.x * 1000 + i);
    if (waits)
        __syncthreads();
    target[cudai_thread_idx()] = values[THREADS - 1 - i];
}

static __global__ void mirror_warp(int *target, int waits)
{
    CUDAI_DYNAMIC_SHARED(int, values);
    unsigned i = threadIdx.x;
    values[i] = static_cast<int>(blockIdx.x * 1000 + i);
    if (waits)
        __syncwarp();
    target[cudai_thread_idx()] = values[i ^ 31u];
}

// Threads that saw the wrong value, with one seed.
static uint64_t count_wrong(void (*kernel)(int *, int), unsigned flip, uint64_t seed, int waits)
{
    enum { BLOCKS = 3 };
    simulated_gpu_set_seed(seed);
    int *target = device_array<int>(BLOCKS * THREADS);
    launch(kernel, BLOCKS, THREADS, THREADS * sizeof(int), target, waits);
    int *got = download(target, BLOCKS * THREADS);
    uint64_t wrong = 0;
    for (unsigned i = 0; i < BLOCKS * THREADS; i++)
        wrong += got[i] != static_cast<int>(i / THREADS * 1000 + ((i % THREADS) ^ flip));
    free(got);
    cudaFree(target);
    return wrong;
}

static void test_missing_barriers_show(void **)
{
    for (uint64_t seed = 1; seed <= 10; seed++) {
        assert_int_equal(count_wrong(mirror_block, THREADS - 1, seed, 1), 0);
        assert_int_equal(count_wrong(mirror_warp, 31, seed, 1), 0);
        assert_true(count_wrong(mirror_block, THREADS - 1, seed, 0) > 0);
        assert_true(count_wrong(mirror_warp, 31, seed, 0) > 0);
    }
    simulated_gpu_set_seed(1);
}

static __global__ void note_arrival(unsigned *order, unsigned *counters)
{
    order[cudai_thread_idx()] = atomicAdd(&counters[blockIdx.x], 1u);
}

// The order of a warp's lanes differs from block to block and from seed to seed.
static void test_orders_differ(void **)
{
    enum { BLOCKS = 8, WARP = 32, SEEDS = 4 };
    unsigned *order = device_array<unsigned>(BLOCKS * WARP), *first = NULL;
    unsigned *counters = device_array<unsigned>(BLOCKS), same = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        simulated_gpu_set_seed(seed);
        assert_int_equal(cudaMemset(counters, 0, BLOCKS * sizeof *counters), cudaSuccess);
        launch(note_arrival, BLOCKS, WARP, 0, order, counters);
        unsigned *got = download(order, BLOCKS * WARP);
        if (!first)
            first = got;
        for (unsigned b = 0; b < BLOCKS; b++)
            same += memcmp(got + b * WARP, first, WARP * sizeof *got) == 0;
        if (got != first)
            free(got);
    }
    assert_int_equal(same, 1); /* the first with itself */
    free(first);
    simulated_gpu_set_seed(1);
    cudaFree(order);
    cudaFree(counters);
}

// Neither block leaves anything in shared memory for the next one.
static __global__ void read_unset(unsigned *target)
{
    __shared__ unsigned fixed[THREADS];
    CUDAI_DYNAMIC_SHARED(unsigned, dynamic);
    unsigned i = threadIdx.x;
    target[cudai_thread_idx()] = fixed[i] & dynamic[i];
    __syncthreads();
    fixed[i] = dynamic[i] = 7;
}

static void test_shared_memory_is_unset(void **)
{
    unsigned *target = device_array<unsigned>(4 * THREADS);
    launch(read_unset, 4, THREADS, THREADS * sizeof(unsigned), target);
    unsigned *got = download(target, 4 * THREADS);
    for (unsigned i = 0; i < 4 * THREADS; i++)
        assert_int_equal(got[i], UINT32_MAX);
    free(got);
    cudaFree(target);
}

// --- warps ---------------------------------------------------------------------------------------

template <typename T> static __global__ void shuffle(T *target, int amount, int width)
{
    T own = static_cast<T>(threadIdx.x * 3 + 1);
    T results[4] = {__shfl_sync(0xffffffffu, own, amount, width),
                    __shfl_xor_sync(0xffffffffu, own, amount, width),
                    __shfl_up_sync(0xffffffffu, own, static_cast<unsigned>(amount), width),
                    __shfl_down_sync(0xffffffffu, own, static_cast<unsigned>(amount), width)};
    for (int i = 0; i < 4; i++)
        target[i * 64 + static_cast<int>(threadIdx.x)] = results[i];
}

// The lane that `lane` reads, by the words of the programming guide.
static int source_lane(int operation, int lane, int amount, int width)
{
    int begin = lane / width * width, source;
    switch (operation) {
    case 0:
        return begin + amount % width;
    case 1:
        source = lane ^ amount; /* a later segment's lane is not readable, an earlier one's is */
        return source >= begin + width ? lane : source;
    case 2:
        return lane - amount < begin ? lane : lane - amount;
    default:
        return lane + amount >= begin + width ? lane : lane + amount;
    }
}

template <typename T> static void check_shuffles()
{
    T *target = device_array<T>(4 * 64);
    for (int width = 1; width <= 32; width *= 2) {
        for (int amount = 0; amount < 32; amount += 3) {
            launch(shuffle<T>, 1, 64, 0, target, amount, width);
            T *got = download(target, 4 * 64);
            for (int i = 0; i < 4 * 64; i++) {
                int thread = i % 64, warp = thread / 32 * 32;
                int source = warp + source_lane(i / 64, thread % 32, amount, width);
                assert_true(got[i] == static_cast<T>(source * 3 + 1));
            }
            free(got);
        }
    }
    cudaFree(target);
}

static void test_shuffles(void **)
{
    check_shuffles<int>();
    check_shuffles<unsigned>();
    check_shuffles<float>();
    check_shuffles<double>();
    check_shuffles<unsigned long long>();
}

// The halves of a warp make different numbers of steps, each with its own mask, and meet again.
static __global__ void half_warps(unsigned *target)
{
    unsigned lane = threadIdx.x, half = lane / 16;
    unsigned mask = half ? 0xffff0000u : 0x0000ffffu, value = lane;
    for (unsigned i = 0; i < 2 + 3 * half; i++)
        value = __shfl_xor_sync(mask, value, 1) + 1;
    unsigned ballot = __ballot_sync(mask, lane % 3 == 0);
    unsigned other = __shfl_sync(0xffffffffu, value, static_cast<int>(31 - lane));
    int any = __any_sync(0xffffffffu, lane == 5), all = __all_sync(0xffffffffu, lane != 5);
    target[lane] = value;
    target[32 + lane] = ballot;
    target[64 + lane] = other;
    target[96 + lane] = static_cast<unsigned>(any * 2 + all);
}

static void test_half_warps(void **)
{
    unsigned *target = device_array<unsigned>(128);
    for (uint64_t seed = 1; seed <= 20; seed++) {
        simulated_gpu_set_seed(seed);
        launch(half_warps, 1, 32, 0, target);
        unsigned *got = download(target, 128);
        for (unsigned lane = 0; lane < 32; lane++) {
            unsigned far = 31 - lane;
            unsigned want = lane < 16 ? lane + 2 : (lane ^ 1u) + 5;
            unsigned want_far = far < 16 ? far + 2 : (far ^ 1u) + 5;
            assert_int_equal(got[lane], want);
            assert_int_equal(got[32 + lane], 0x49249249u & (lane < 16 ? 0xffffu : 0xffff0000u));
            assert_int_equal(got[64 + lane], want_far);
            assert_int_equal(got[96 + lane], 2);
        }
        free(got);
    }
    simulated_gpu_set_seed(1);
    cudaFree(target);
}

static __global__ void block_sums(const float *source, float *target)
{
    __shared__ float partial[32];
    float sum = cudai_block_sum(source[cudai_thread_idx()], partial);
    float most = cudai_block_max(source[cudai_thread_idx()], partial);
    target[cudai_thread_idx()] = sum + 1000000.0f * most;
}

static void test_block_sums(void **)
{
    enum { BLOCKS = 5 };
    float host[BLOCKS * THREADS];
    for (unsigned i = 0; i < BLOCKS * THREADS; i++)
        host[i] = static_cast<float>(i * 7 % 50);
    float *source = device_array<float>(BLOCKS * THREADS);
    float *target = device_array<float>(BLOCKS * THREADS);
    assert_int_equal(cudaMemcpy(source, host, sizeof host, cudaMemcpyHostToDevice), cudaSuccess);
    launch(block_sums, BLOCKS, THREADS, 0, source, target);
    float *got = download(target, BLOCKS * THREADS);
    for (unsigned b = 0; b < BLOCKS; b++) {
        float sum = 0, most = 0;
        for (unsigned i = b * THREADS; i < (b + 1) * THREADS; i++) {
            sum += host[i];
            most = fmaxf(most, host[i]);
        }
        for (unsigned i = b * THREADS; i < (b + 1) * THREADS; i++)
            assert_true(got[i] == sum + 1000000.0f * most);
    }
    free(got);
    cudaFree(source);
    cudaFree(target);
}

// --- launches ------------------------------------------------------------------------------------

static __global__ void do_nothing(int)
{
}

static cudaError_t try_launch(dim3 grid, dim3 block, size_t shared_bytes)
{
    cudaError_t error = cudai_launch(do_nothing, grid, block, shared_bytes, NULL, 1);
    assert_int_equal(cudaGetLastError(), error);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    return error;
}

static void test_launch_limits(void **)
{
    assert_int_equal(try_launch(1, 1024, 49152), cudaSuccess);
    assert_int_equal(try_launch(dim3(1, 65535, 1), 1, 0), cudaSuccess);
    assert_int_equal(try_launch(0, 1, 0), cudaErrorInvalidConfiguration);
    assert_int_equal(try_launch(1, dim3(1, 0, 1), 0), cudaErrorInvalidConfiguration);
    assert_int_equal(try_launch(1, 1025, 0), cudaErrorInvalidConfiguration);
    assert_int_equal(try_launch(1, dim3(32, 33, 1), 0), cudaErrorInvalidConfiguration);
    assert_int_equal(try_launch(1, dim3(1, 1, 65), 0), cudaErrorInvalidConfiguration);
    assert_int_equal(try_launch(dim3(1, 65536, 1), 1, 0), cudaErrorInvalidConfiguration);
    assert_int_equal(try_launch(dim3(1, 1, 65536), 1, 0), cudaErrorInvalidConfiguration);
    assert_int_equal(try_launch(0x80000000u, 1, 0), cudaErrorInvalidConfiguration);
    assert_int_equal(try_launch(1, 32, 49153), cudaErrorInvalidValue);
    assert_int_equal(cudai_allow_shared(do_nothing, 232449), cudaErrorInvalidValue);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    assert_int_equal(cudai_allow_shared(do_nothing, 232448), cudaSuccess);
    assert_int_equal(try_launch(1, 32, 232448), cudaSuccess);
}

static __global__ void keep_static(char *target)
{
    __shared__ char fixed[1024];
    fixed[threadIdx.x] = 1;
    target[threadIdx.x] = fixed[threadIdx.x];
}

static void test_static_shared_memory_counts(void **)
{
    char *target = device_array<char>(1024);
    cudaFuncAttributes attributes;
    assert_int_equal(cudaFuncGetAttributes(&attributes, keep_static), cudaSuccess);
    assert_int_equal(attributes.sharedSizeBytes, 1024);
    assert_int_equal(attributes.maxDynamicSharedSizeBytes, 48 * 1024 - 1024);
    assert_int_equal(cudai_launch(keep_static, 1, 32, 48 * 1024 - 1024, NULL, target), cudaSuccess);
    assert_int_equal(cudai_launch(keep_static, 1, 32, 48 * 1024 - 1023, NULL, target),
                     cudaErrorInvalidValue);
    assert_int_equal(cudai_allow_shared(keep_static, 232448 - 1023), cudaErrorInvalidValue);
    assert_int_equal(cudai_allow_shared(keep_static, 232448 - 1024), cudaSuccess);
    assert_int_equal(cudai_launch(keep_static, 1, 32, 232448 - 1024, NULL, target), cudaSuccess);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    cudaFree(target);
}

// --- what ends the process -----------------------------------------------------------------------

// Runs `action` in a child; it must end with the simulation's message, which holds `words`.
static void expect_death(const char *words, const std::function<void()> &action)
{
    int ends[2], status = 0;
    char text[4096];
    size_t count = 0;
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        action();
        cudaDeviceSynchronize();
        _exit(0);
    }
    close(ends[1]);
    ssize_t got;
    while ((got = read(ends[0], text + count, sizeof text - 1 - count)) > 0)
        count += static_cast<size_t>(got);
    text[count] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != EXIT_FAILED || !strstr(text, words))
        fail_msg("status 0x%x, expected a message with \"%s\", got:\n%s", status, words, text);
}

enum mistake {
    NO_MISTAKE,
    RETURN_BEFORE_BARRIER,
    TWO_BARRIERS,
    RETURN_BEFORE_SHUFFLE,
    FOREIGN_MASK,
    MIXED_MASKS,
    PAST_END,
    SLACK,
    FRONT_SLACK,
    BEFORE_BEGIN,
    MISALIGNED,
    PAST_SHARED,
    FAR_PAST_SHARED,
    BEFORE_SHARED,
    DEEP_STACK
};

static __attribute__((noinline)) int use_stack(volatile int depth)
{
    volatile char room[4096];
    room[0] = static_cast<char>(depth);
    return depth == 0 ? 0 : use_stack(depth - 1) + room[0];
}

static void make_mistake(mistake what, float *memory, unsigned count)
{
    CUDAI_DYNAMIC_SHARED(float, shared);
    unsigned i = threadIdx.x;
    switch (what) {
    case TWO_BARRIERS:
        if (i == 5)
            __syncthreads();
        else
            __syncthreads();
        break;
    case FOREIGN_MASK:
        __syncwarp(0xfffffff0u);
        break;
    case MIXED_MASKS:
        __syncwarp(i < 16 ? 0xffffffffu : 0xffff0000u);
        if (i < 16)
            break;
        __shfl_sync(0xffffffffu, 1.0f, 0);
        break;
    case PAST_END:
        memory[count + i] = 1;
        break;
    case SLACK:
        if (i == 0)
            memory[count] = 1;
        break;
    case FRONT_SLACK:
        if (i == 0)
            *(memory - 1) = 1;
        break;
    case BEFORE_BEGIN:
        memory[0] = *(memory - 1024 - i);
        break;
    case MISALIGNED:
        memory[0] = cudai_load<float, 4>(memory + 4 * i + 1).item[0];
        break;
    case PAST_SHARED:
        shared[32 + i] = 1;
        break;
    case FAR_PAST_SHARED:
        shared[32 * 32 + i] = 1;
        break;
    case BEFORE_SHARED:
        *(shared - 1) = 1;
        break;
    case DEEP_STACK:
        memory[0] = static_cast<float>(use_stack(100));
        break;
    default:
        break;
    }
}

static __global__ void mistaken_kernel(mistake what, float *memory, unsigned count)
{
    unsigned i = threadIdx.x;
    if ((what == RETURN_BEFORE_BARRIER || what == RETURN_BEFORE_SHUFFLE) && i == 9)
        return;
    if (what == RETURN_BEFORE_SHUFFLE)
        memory[i] = __shfl_xor_sync(0xffffffffu, 1.0f, 1);
    __syncthreads();
    make_mistake(what, memory, count);
}

static void test_deaths(void **)
{
    static const struct {
        mistake what;
        const char *words;
    } cases[] = {
        {RETURN_BEFORE_BARRIER, "thread (9, 0, 0): has returned"},
        {TWO_BARRIERS, "others wait at"},
        {RETURN_BEFORE_SHUFFLE, "waits at __shfl_xor_sync"},
        {FOREIGN_MASK, "not in its own mask"},
        {MIXED_MASKS, "threads wait for others that do not come"},
        {PAST_END, "of an allocation of 1024 bytes"},
        {SLACK, "byte 0 beyond the end of an allocation of 1000 bytes"},
        {FRONT_SLACK, "before the begin of an allocation of 1024 bytes"},
        {BEFORE_BEGIN, "may not be touched"},
        {MISALIGNED, "not aligned"},
        {PAST_SHARED, "may not be touched"},
        {FAR_PAST_SHARED, "may not be touched"},
        {BEFORE_SHARED, "byte -4 of 128 of dynamic shared memory"},
        {DEEP_STACK, "may not be touched"},
    };
    for (const auto &one : cases) {
        expect_death(one.words, [&one] {
            unsigned count = one.what == SLACK ? 250 : 256;
            float *memory = device_array<float>(count);
            launch(mistaken_kernel, 2, 32, 32 * sizeof(float), one.what, memory, count);
            cudaFree(memory);
        });
        if (one.what == SLACK || one.what == FRONT_SLACK)
            continue; /* found when the memory is freed: no kernel runs then */
        expect_death("mistaken_kernel(mistake", [&one] {
            float *memory = device_array<float>(256);
            launch(mistaken_kernel, 2, 32, 32 * sizeof(float), one.what, memory, 256u);
        });
    }
}

static void test_host_pointers_are_refused(void **)
{
    expect_death("pointer argument 0", [] {
        float *memory = static_cast<float *>(malloc(1024));
        launch(mistaken_kernel, 1, 32, 128, NO_MISTAKE, memory, 256u);
    });
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places),        cmocka_unit_test(test_missing_barriers_show),
        cmocka_unit_test(test_orders_differ), cmocka_unit_test(test_shared_memory_is_unset),
        cmocka_unit_test(test_shuffles),      cmocka_unit_test(test_half_warps),
        cmocka_unit_test(test_block_sums),    cmocka_unit_test(test_static_shared_memory_counts),
        cmocka_unit_test(test_launch_limits), cmocka_unit_test(test_host_pointers_are_refused),
        cmocka_unit_test(test_deaths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
