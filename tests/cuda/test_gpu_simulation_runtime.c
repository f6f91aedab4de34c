/* The simulated GPU's streams, events, memory and faults behave as CUDA documents them. Work is
 * made of host functions, copies, fills and simulated_gpu_enqueue. */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <unistd.h>

#include "tests/simulated_gpu/simulated_gpu.h"
#include "tests/unit.h"

#define OK(call) assert_int_equal((call), cudaSuccess)

/* The call is refused, and the runtime reports the error once more as its last error. */
#define REFUSED(call, error)                                                                       \
    do {                                                                                           \
        assert_int_equal((call), (error));                                                         \
        assert_int_equal(cudaGetLastError(), (error));                                             \
        assert_int_equal(cudaGetLastError(), cudaSuccess);                                         \
    } while (0)

/* A door on which a stream waits until the test opens it. */
struct door {
    pthread_mutex_t mutex;
    pthread_cond_t opened;
    int is_open;
};

static struct door closed_door(void)
{
    return (struct door){PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
}

static void wait_at(void *user)
{
    struct door *door = user;
    pthread_mutex_lock(&door->mutex);
    while (!door->is_open)
        pthread_cond_wait(&door->opened, &door->mutex);
    pthread_mutex_unlock(&door->mutex);
}

static void open_door(struct door *door)
{
    pthread_mutex_lock(&door->mutex);
    door->is_open = 1;
    pthread_cond_broadcast(&door->opened);
    pthread_mutex_unlock(&door->mutex);
}

static cudaStream_t new_stream(unsigned flags)
{
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, flags));
    return stream;
}

static cudaEvent_t new_event(unsigned flags)
{
    cudaEvent_t event;
    OK(cudaEventCreateWithFlags(&event, flags));
    return event;
}

/* --- order --- */

enum { STEPS = 200 };

struct step {
    int *counter;
    int seen;
};

static void take_number(void *user)
{
    struct step *step = user;
    step->seen = __atomic_fetch_add(step->counter, 1, __ATOMIC_SEQ_CST);
}

static void test_a_stream_is_in_order(void **state)
{
    static struct step steps[STEPS];
    int counter = 0;
    cudaStream_t stream = new_stream(cudaStreamNonBlocking);
    for (int i = 0; i < STEPS; i++) {
        steps[i].counter = &counter;
        if (i % 2)
            OK(cudaLaunchHostFunc(stream, take_number, &steps[i]));
        else
            OK(simulated_gpu_enqueue(stream, "take_number", take_number, NULL, &steps[i]));
    }
    OK(cudaStreamSynchronize(stream));
    assert_int_equal(cudaStreamQuery(stream), cudaSuccess);
    for (int i = 0; i < STEPS; i++)
        assert_int_equal(steps[i].seen, i);
    OK(cudaStreamDestroy(stream));
}

/* Two streams hand a buffer to and fro; with no events between them some order goes wrong. */
static int count_misordered(int waits)
{
    static struct step steps[STEPS];
    int counter = 0, wrong = 0;
    cudaStream_t streams[2] = {new_stream(cudaStreamNonBlocking),
                               new_stream(cudaStreamNonBlocking)};
    cudaEvent_t event = new_event(cudaEventDisableTiming);
    for (int i = 0; i < STEPS; i++) {
        steps[i].counter = &counter;
        if (waits && i > 0)
            OK(cudaStreamWaitEvent(streams[i % 2], event, 0));
        OK(cudaLaunchHostFunc(streams[i % 2], take_number, &steps[i]));
        if (waits)
            OK(cudaEventRecord(event, streams[i % 2]));
    }
    OK(cudaDeviceSynchronize());
    for (int i = 0; i < STEPS; i++)
        wrong += steps[i].seen != i;
    OK(cudaEventDestroy(event));
    for (int i = 0; i < 2; i++)
        OK(cudaStreamDestroy(streams[i]));
    return wrong;
}

static void test_events_order_streams(void **state)
{
    assert_int_equal(count_misordered(1), 0);
    assert_true(count_misordered(0) > 0);
}

static void test_a_wait_holds_the_record_before_it(void **state)
{
    struct door door = closed_door();
    cudaStream_t first = new_stream(cudaStreamNonBlocking),
                 second = new_stream(cudaStreamNonBlocking);
    cudaEvent_t event = new_event(cudaEventDefault), later = new_event(cudaEventDefault);
    assert_int_equal(cudaEventQuery(event), cudaSuccess); /* never recorded */
    OK(cudaStreamWaitEvent(second, event, 0));
    OK(cudaEventRecord(event, first));
    OK(cudaStreamWaitEvent(second, event, 0));
    OK(cudaLaunchHostFunc(first, wait_at, &door));
    OK(cudaEventRecord(event, first)); /* a new record: the wait above is not for it */
    OK(cudaStreamSynchronize(second));
    assert_int_equal(cudaEventQuery(event), cudaErrorNotReady);
    assert_int_equal(cudaStreamQuery(first), cudaErrorNotReady);
    OK(cudaStreamWaitEvent(second, event, 0));
    OK(cudaEventRecord(later, second));
    usleep(5000);
    assert_int_equal(cudaEventQuery(later), cudaErrorNotReady);
    float milliseconds = -1;
    assert_int_equal(cudaEventElapsedTime(&milliseconds, event, later), cudaErrorNotReady);
    (void)cudaGetLastError();
    open_door(&door);
    OK(cudaEventSynchronize(later));
    assert_int_equal(cudaEventQuery(event), cudaSuccess);
    OK(cudaEventElapsedTime(&milliseconds, event, later));
    assert_true(milliseconds >= 0);
    cudaEvent_t untimed = new_event(cudaEventDisableTiming);
    OK(cudaEventRecord(untimed, first));
    OK(cudaEventSynchronize(untimed));
    REFUSED(cudaEventElapsedTime(&milliseconds, event, untimed), cudaErrorInvalidResourceHandle);
    OK(cudaEventDestroy(event));
    OK(cudaEventDestroy(later));
    OK(cudaEventDestroy(untimed));
    REFUSED(cudaEventQuery(untimed), cudaErrorInvalidResourceHandle);
    OK(cudaStreamDestroy(first));
    OK(cudaStreamDestroy(second));
    REFUSED(cudaStreamSynchronize(second), cudaErrorInvalidResourceHandle);
}

static void take_long(void *user)
{
    usleep(20000);
}

static void test_the_default_stream_waits_for_blocking_ones(void **state)
{
    struct door door = closed_door();
    int counter = 0;
    struct step before = {&counter, -1}, by_default = {&counter, -1};
    cudaStream_t apart = new_stream(cudaStreamNonBlocking),
                 blocking = new_stream(cudaStreamDefault);
    OK(cudaLaunchHostFunc(apart, wait_at, &door));
    OK(cudaLaunchHostFunc(blocking, take_long, NULL));
    OK(cudaLaunchHostFunc(blocking, take_number, &before));
    OK(cudaLaunchHostFunc(NULL, take_number,
                          &by_default)); /* would hang if it waited for `apart` */
    OK(cudaStreamSynchronize(NULL));
    assert_int_equal(before.seen, 0);
    assert_int_equal(by_default.seen, 1);
    open_door(&door);
    OK(cudaStreamDestroy(apart));
    OK(cudaStreamDestroy(blocking));
}

static void call_runtime(void *user)
{
    cudaError_t *errors = user;
    errors[0] = cudaDeviceSynchronize();
    errors[1] = cudaStreamQuery(NULL);
}

static void test_host_functions_may_not_call(void **state)
{
    cudaError_t errors[2] = {cudaSuccess, cudaSuccess};
    cudaStream_t stream = new_stream(cudaStreamNonBlocking);
    OK(cudaLaunchHostFunc(stream, call_runtime, errors));
    OK(cudaStreamSynchronize(stream));
    assert_int_equal(errors[0], cudaErrorNotPermitted);
    assert_int_equal(errors[1], cudaErrorNotPermitted);
    OK(cudaStreamDestroy(stream));
}

/* --- memory --- */

static void test_kinds_of_memory(void **state)
{
    enum { BYTES = 1000 };
    char *a, *b, *pinned, *pageable = malloc(BYTES);
    assert_non_null(pageable);
    OK(cudaMalloc((void **)&a, BYTES));
    OK(cudaMalloc((void **)&b, BYTES));
    OK(cudaHostAlloc((void **)&pinned, BYTES, cudaHostAllocMapped));
    assert_int_equal((uintptr_t)a % 256, 0);
    assert_int_equal((unsigned char)pinned[BYTES - 1], 0xff);
    REFUSED(cudaMemcpy(pinned, pageable, BYTES, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    REFUSED(cudaMemcpy(a, pinned, BYTES, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    REFUSED(cudaMemcpy(a, pinned, BYTES, cudaMemcpyDeviceToDevice), cudaErrorInvalidValue);
    REFUSED(cudaMemcpy(a, b, BYTES, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    REFUSED(cudaMemcpy(a, pinned, BYTES + 1, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    REFUSED(cudaMemcpy(a, NULL, BYTES, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    REFUSED(cudaMemset(pageable, 0, BYTES), cudaErrorInvalidValue);
    REFUSED(cudaMemset(a + 1, 0, BYTES), cudaErrorInvalidValue);
    memset(pinned, 3, BYTES);
    OK(cudaMemcpy(a, pinned, BYTES, cudaMemcpyHostToDevice));
    OK(cudaMemcpy(b + 1, a + 1, BYTES - 1, cudaMemcpyDeviceToDevice));
    OK(cudaMemset(b, 4, 1));
    OK(cudaMemcpy(pageable, b, BYTES, cudaMemcpyDefault));
    assert_int_equal(pageable[0], 4);
    assert_int_equal(pageable[1], 3);
    assert_int_equal(pageable[BYTES - 1], 3);
    REFUSED(cudaFree(a + 1), cudaErrorInvalidValue);
    REFUSED(cudaFree(pinned), cudaErrorInvalidValue);
    REFUSED(cudaFreeHost(a), cudaErrorInvalidValue);
    OK(cudaFree(a));
    OK(cudaFree(b));
    REFUSED(cudaFree(b), cudaErrorInvalidValue);
    OK(cudaFreeHost(pinned));
    free(pageable);
}

static void test_pageable_copies_are_synchronous(void **state)
{
    enum { BYTES = 4096 };
    char *memory, *pinned, pageable[BYTES];
    simulated_gpu_counters before, after;
    cudaStream_t stream = new_stream(cudaStreamNonBlocking);
    OK(cudaMalloc((void **)&memory, BYTES));
    OK(cudaHostAlloc((void **)&pinned, BYTES, 0));
    memset(pinned, 9, BYTES);
    simulated_gpu_get_counters(&before);
    OK(cudaMemcpyAsync(memory, pinned, BYTES, cudaMemcpyHostToDevice, stream));
    simulated_gpu_get_counters(&after);
    assert_int_equal(after.copies - before.copies, 1);
    assert_int_equal(after.pageable_copies - before.pageable_copies, 0);
    OK(cudaMemcpyAsync(pageable, memory, BYTES, cudaMemcpyDeviceToHost, stream));
    assert_int_equal(pageable[BYTES - 1], 9); /* complete on return */
    simulated_gpu_get_counters(&after);
    assert_int_equal(after.pageable_copies - before.pageable_copies, 1);
    OK(cudaFree(memory));
    OK(cudaFreeHost(pinned));
    OK(cudaStreamDestroy(stream));
}

static void test_registration(void **state)
{
    enum { BYTES = 8192 };
    char *host = aligned_alloc(4096, 2 * BYTES), *memory;
    assert_non_null(host);
    OK(cudaMalloc((void **)&memory, 2 * BYTES));
    OK(cudaHostRegister(host, BYTES, cudaHostRegisterDefault));
    REFUSED(cudaHostRegister(host + 4096, BYTES, 0), cudaErrorHostMemoryAlreadyRegistered);
    OK(cudaHostRegister(host + BYTES, BYTES, cudaHostRegisterDefault));
    /* A copy may not span two registrations. */
    REFUSED(cudaMemcpy(memory, host, 2 * BYTES, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    struct cudaPointerAttributes attributes;
    OK(cudaPointerGetAttributes(&attributes, host + 1));
    assert_int_equal(attributes.type, cudaMemoryTypeHost);
    assert_true(simulated_gpu_may_touch(host, BYTES));
    REFUSED(cudaHostUnregister(host + 4096), cudaErrorHostMemoryNotRegistered);
    OK(cudaHostUnregister(host));
    assert_false(simulated_gpu_may_touch(host, BYTES));
    OK(cudaHostUnregister(host + BYTES));
    OK(cudaFree(memory));
    free(host);
}

static void test_memory_ends(void **state)
{
    size_t free_bytes, total_bytes, free_before;
    void *first, *second;
    OK(cudaMemGetInfo(&free_before, &total_bytes));
    simulated_gpu_set_total_bytes(10 << 20);
    OK(cudaMalloc(&first, 6 << 20));
    assert_int_equal((uintptr_t)first % (2 << 20), 0);
    REFUSED(cudaMalloc(&second, 5 << 20), cudaErrorMemoryAllocation);
    assert_null(second);
    OK(cudaMemGetInfo(&free_bytes, &total_bytes));
    assert_int_equal(free_bytes, 4 << 20);
    assert_int_equal(total_bytes, 10 << 20);
    OK(cudaMalloc(&second, 4 << 20));
    OK(cudaFree(first));
    OK(cudaFree(second));
    simulated_gpu_set_total_bytes((uint64_t)2 << 30);
    OK(cudaMemGetInfo(&free_bytes, &total_bytes));
    assert_int_equal(free_bytes, free_before);
}

/* --- faults --- */

static void set_flag(void *user)
{
    *(int *)user = 1;
}

static void check_everything_fails(cudaStream_t stream, cudaEvent_t event)
{
    void *memory;
    char text[4] = {0};
    enum cudaError fault = cudaErrorIllegalAddress;
    assert_int_equal(cudaStreamSynchronize(stream), fault);
    assert_int_equal(cudaDeviceSynchronize(), fault);
    assert_int_equal(cudaStreamQuery(stream), fault);
    assert_int_equal(cudaEventQuery(event), fault);
    assert_int_equal(cudaEventSynchronize(event), fault);
    assert_int_equal(cudaMalloc(&memory, 16), fault);
    assert_int_equal(cudaMemcpy(text, text + 2, 2, cudaMemcpyHostToHost), fault);
    assert_int_equal(cudaLaunchHostFunc(stream, set_flag, text), fault);
    assert_int_equal(cudaEventRecord(event, stream), fault);
    assert_int_equal(cudaGetLastError(), fault);
    assert_int_equal(cudaGetLastError(), fault); /* sticky */
    assert_string_equal(cudaGetErrorName(fault), "cudaErrorIllegalAddress");
}

static void test_faults(void **state)
{
    for (int kind = SIMULATED_FAULT_KERNEL; kind <= SIMULATED_FAULT_COPY; kind++) {
        int ran[3] = {0, 0, 0}, dropped = 0;
        char *memory;
        cudaStream_t stream = new_stream(cudaStreamNonBlocking), other = new_stream(0);
        cudaEvent_t event = new_event(0);
        OK(cudaMalloc((void **)&memory, 64));
        simulated_gpu_inject_fault((enum simulated_gpu_fault)kind, 1);
        struct door door = closed_door();
        OK(cudaLaunchHostFunc(stream, wait_at, &door));
        OK(simulated_gpu_enqueue(stream, "first", set_flag, NULL, &ran[0]));
        OK(cudaMemcpyAsync(memory, memory + 32, 32, cudaMemcpyDeviceToDevice, stream));
        OK(simulated_gpu_enqueue(stream, "second", set_flag, NULL, &ran[1]));
        OK(cudaMemcpyAsync(memory, memory + 32, 32, cudaMemcpyDeviceToDevice, stream));
        OK(cudaLaunchHostFunc(stream, set_flag, &ran[2]));
        OK(simulated_gpu_enqueue(stream, "third", set_flag, set_flag, &dropped));
        OK(cudaEventRecord(event, stream));
        open_door(&door);
        check_everything_fails(stream, event);
        assert_int_equal(cudaStreamDestroy(other), cudaErrorIllegalAddress);
        assert_int_equal(cudaStreamDestroy(stream), cudaErrorIllegalAddress);
        assert_int_equal(ran[0], 1);
        assert_int_equal(ran[1], kind == SIMULATED_FAULT_COPY);
        assert_int_equal(ran[2], 0);
        assert_int_equal(dropped, 1); /* by `drop`: what it holds is freed */
        simulated_gpu_clear_fault();
        OK(cudaGetLastError());
        OK(cudaEventDestroy(event));
        OK(cudaFree(memory));
    }
}

static void test_absence(void **state)
{
    int count = 7, version = 7;
    simulated_gpu_set_absent(1);
    assert_int_equal(cudaGetDeviceCount(&count), cudaErrorNoDevice);
    assert_int_equal(count, 0);
    assert_int_equal(cudaSetDevice(0), cudaErrorNoDevice);
    OK(cudaDriverGetVersion(&version));
    assert_int_equal(version, 0);
    simulated_gpu_set_absent(0);
    (void)cudaGetLastError();
    OK(cudaGetDeviceCount(&count));
    assert_int_equal(count, 1);
    REFUSED(cudaSetDevice(1), cudaErrorInvalidDevice);
    struct cudaDeviceProp properties;
    OK(cudaGetDeviceProperties(&properties, 0));
    assert_string_equal(properties.name, "Simulated GPU");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_stream_is_in_order),
        cmocka_unit_test(test_events_order_streams),
        cmocka_unit_test(test_a_wait_holds_the_record_before_it),
        cmocka_unit_test(test_the_default_stream_waits_for_blocking_ones),
        cmocka_unit_test(test_host_functions_may_not_call),
        cmocka_unit_test(test_kinds_of_memory),
        cmocka_unit_test(test_pageable_copies_are_synchronous),
        cmocka_unit_test(test_registration),
        cmocka_unit_test(test_memory_ends),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_absence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
