/* Does the cuDNN that is installed take our graphs of attention? Without a GPU: since 9.8 it makes
 * plans for a GPU that is described to it, here an A100 (sm80) and an H200 (sm90), and a driver
 * that has no GPU (fake_cudnn/fake_driver.c) lets it finish them. The heuristics, the choice of
 * engines and the compiling of kernels are cuDNN's own; nothing runs. Exits with 77 where cuDNN is
 * absent or describes devices otherwise. The argument is the GPU. */
#include <dlfcn.h>

#include "kernels/cuda/attention/cudnn_internal.h"
#include "tests/unit.h"

struct gpu {
    const char *name;
    int version, sm_count, shared_bytes_max, l2_bytes;
};

static const struct gpu gpus[] = {
    {"sm80", 800, 108, 166912, 40 << 20},
    {"sm90", 900, 132, 232448, 60 << 20},
};

static const struct gpu *gpu;
static cudai_cudnn api;
static char *kernels; /* of the fake driver: those loaded so far */

static void skip_all(const char *why)
{
    printf("skipped: %s\n", why);
    exit(77);
}

/* The keys are those of a description that cuDNN writes; 9.19 ignores the last three. */
static void describe(char *json, size_t bytes)
{
    snprintf(json, bytes,
             "{\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],"
             "\"regsPerBlock\":65536,\"multiProcessorCount\":%d,\"warpSize\":32,"
             "\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":%d,"
             "\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,"
             "\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,"
             "\"pciDeviceId\":0,\"isTccDriver\":0,\"supportCoopLaunch\":1,"
             "\"totalGlobalMem\":80000000000,\"smClockRateKHz\":1980000,"
             "\"memClockRateKHz\":2619000,\"l2CacheSize\":%d,\"cudaDeviceId\":0,\"deviceVer\":%d,"
             "\"driverVer\":13000,\"deviceName\":\"NVIDIA %s\",\"memoryBusWidth\":5120,"
             "\"oversizedSharedMemoryPerBlock\":0,\"smCountOrigin\":0}",
             gpu->sm_count, gpu->shared_bytes_max, gpu->l2_bytes, gpu->version, gpu->name);
}

static int setup(void **state)
{
    char json[2048];
    /* cuDNN opens libcuda.so.1, which is this one's soname too: the one that is there is taken */
    void *driver = dlopen(FAKE_DRIVER, RTLD_NOW | RTLD_GLOBAL);
    if (driver == NULL)
        fail_msg("%s", dlerror());
    kernels = dlsym(driver, "fake_driver_kernels");
    assert_non_null(kernels);
    if (cudai_cudnn_load(&api) < 0)
        skip_all(err_text());
    api.compute_major = gpu->version / 100;
    if (api.version_number < 90800)
        skip_all("cuDNN before 9.8 makes no plans without a GPU");
    describe(json, sizeof json);
    cudnnBackendDescriptor_t properties;
    assert_int_equal(api.descriptor_create(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &properties), 0);
    assert_int_equal(api.set(properties, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                             (int64_t)strlen(json), json),
                     0);
    if (cudai_cudnn_check(&api, api.finalize(properties), "a description of a GPU") < 0)
        skip_all(err_text());
    api.device_properties = properties;
    printf("%s, plans for %s\n", api.version, gpu->name);
    return 0;
}

struct shape {
    uint64_t batch, tokens, heads, kv_heads, head_dim;
};

/* The plan's result; *forward and *backward bytes of scratch. */
static int make_plan(const struct shape *shape, enum dtype type, uint64_t *forward,
                     uint64_t *backward)
{
    attention_desc desc = {.batch = shape->batch,
                           .tokens = shape->tokens,
                           .heads = shape->heads,
                           .kv_heads = shape->kv_heads,
                           .head_dim = shape->head_dim,
                           .qkv_stride = (shape->heads + 2 * shape->kv_heads) * shape->head_dim,
                           .type = type,
                           .scale = 0.1f};
    cudai_cudnn_plan *plan;
    kernels[0] = '\0';
    int rc = cudai_cudnn_plan_make(&api, &desc, &plan);
    if (rc < 0)
        return rc;
    *forward = cudai_cudnn_plan_forward_scratch_bytes(plan);
    *backward = cudai_cudnn_plan_backward_scratch_bytes(plan);
    cudai_cudnn_plan_destroy(plan);
    return 0;
}

static void test_taken(void **state)
{
    static const struct shape shapes[] = {
        {2, 2048, 25, 25, 64},  /* gpt2-1.5b */
        {2, 4096, 32, 8, 128},  /* llama 8b: in parts of 16 heads */
        {1, 8192, 32, 32, 128}, /* llama 7b, long: in parts of 4 heads */
        {3, 1000, 6, 2, 80},    /* odd */
        {2, 33, 25, 5, 8},      /* short */
        {1, 256, 4, 4, 256},    /* Hopper alone */
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const struct shape *shape = &shapes[i];
        uint64_t forward = 0, backward = 0;
        bool is_refused = shape->head_dim > 128 && gpu->version < 900;
        if ((api.version_number <= 91500 || gpu->version == 900) && shape->tokens % 128 != 0)
            is_refused = true;
        int rc = make_plan(shape, i % 2 == 0 ? DTYPE_BF16 : DTYPE_FP16, &forward, &backward);
        if ((rc < 0) != is_refused)
            fail_msg("shape %zu: %s", i, rc < 0 ? err_text() : "taken, to our surprise");
        if (is_refused)
            continue;
        printf("B %llu T %llu H %llu G %llu D %llu: scratch %llu and %llu bytes, %s\n",
               (unsigned long long)shape->batch, (unsigned long long)shape->tokens,
               (unsigned long long)shape->heads, (unsigned long long)shape->kv_heads,
               (unsigned long long)shape->head_dim, (unsigned long long)forward,
               (unsigned long long)backward, kernels);
        assert_true(forward < 1 << 20); /* the scores are not there */
        assert_true(backward < 2ull * CUDAI_CUDNN_WORKSPACE_BYTES);
    }
}

/* One head's T x T elements are more than a part may take: from 9.25 there is another way on
 * Hopper. */
static void test_long(void **state)
{
    static const struct shape shape = {1, 32768, 32, 8, 128};
    uint64_t forward, backward;
    int rc = make_plan(&shape, DTYPE_BF16, &forward, &backward);
    if (api.version_number >= 92500 && gpu->version == 900)
        assert_int_equal(rc, 0);
    else
        assert_int_equal(rc, ERR_BACKEND);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_taken), cmocka_unit_test(test_long)};
    for (size_t i = 0; i < sizeof gpus / sizeof gpus[0]; i++)
        if (argc == 2 && strcmp(argv[1], gpus[i].name) == 0)
            gpu = &gpus[i];
    if (gpu == NULL) {
        fprintf(stderr, "usage: %s sm80|sm90\n", argv[0]);
        return 2;
    }
    return cmocka_run_group_tests(tests, setup, NULL);
}
