/* The fixture of the GPU tests finds the mistakes that it should. Each mistake is made by a process
 * of its own (this program, with the mistake's name as its argument), which must fail with the
 * message that names it. */
#include <cuda_runtime_api.h>
#include <math.h>
#include <sys/wait.h>

#include "tests/cuda/gpu_fixture.h"
#include "tests/unit.h"

enum { COUNT = 1000 };

/* --- mistakes --- */

/* Behaves as on a GPU, where canary bytes follow a block and no page guards it. */
static void overrun(void **state)
{
    gpu_fixture *gpu = gpu_begin();
    gpu->is_simulated = false;
    char *memory = gpu_alloc(gpu, COUNT);
    gpu_fill(gpu, memory, 1, COUNT + 1);
    gpu->is_simulated = true;
    gpu_free(gpu, memory);
    gpu_end(gpu);
}

static void far_bytes(void **state)
{
    gpu_fixture *gpu = gpu_begin();
    gpu->is_simulated = false;
    char *memory = gpu_alloc(gpu, COUNT);
    gpu_fill(gpu, memory + COUNT + 4000, 1, 1);
    gpu_end(gpu);
}

static void foreign_memory(void **state)
{
    gpu_fixture *gpu = gpu_begin();
    gpu_free(gpu, gpu);
}

static void pending_error(void **state)
{
    gpu_fixture *gpu = gpu_begin();
    (void)cudaSetDevice(7);
    gpu_end(gpu);
}

static void one_is_off(void **state)
{
    float got[3] = {1, 2, 3.1f}, want[3] = {1, 2, 3};
    gpu_expect_close("numbers", got, want, 3, 0.01, 0.01);
}

static void one_is_nan(void **state)
{
    float got[3] = {1, NAN, 3}, want[3] = {1, 2, 3};
    gpu_expect_close("numbers", got, want, 3, 1e9, 1e9);
}

static void one_byte_differs(void **state)
{
    uint32_t got[2] = {1, 0x10000}, want[2] = {1, 0};
    gpu_expect_same("words", got, want, 2, 4);
}

static const struct mistake {
    const char *name;
    CMUnitTestFunction run;
    const char *words;
} mistakes[] = {
    {"overrun", overrun, "byte 0 beyond the end of a block of 1000 bytes"},
    {"far_bytes", far_bytes, "byte 4000 beyond the end of a block of 1000 bytes"},
    {"foreign_memory", foreign_memory, "memory that gpu_alloc did not give"},
    {"pending_error", pending_error, "cudaErrorInvalidDevice"},
    {"one_is_off", one_is_off, "numbers: 1 of 3 are wrong, the first at 2"},
    {"one_is_nan", one_is_nan, "the first at 1"},
    {"one_byte_differs", one_byte_differs, "words: element 1 of 2 differs in its byte 2"},
};

static void test_mistakes_are_found(void **state)
{
    const char *program = *state;
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        char command[4096], text[4096];
        snprintf(command, sizeof command, "'%s' %s 2>&1", program, mistakes[i].name);
        FILE *output = popen(command, "r");
        assert_non_null(output);
        size_t count = fread(text, 1, sizeof text - 1, output);
        text[count] = 0;
        int status = pclose(output);
        if (!WIFEXITED(status) || WEXITSTATUS(status) == 0 || !strstr(text, mistakes[i].words))
            fail_msg("%s: status 0x%x, no \"%s\" in:\n%s", mistakes[i].name, status,
                     mistakes[i].words, text);
    }
}

/* --- what is right --- */

static void test_memory(void **state)
{
    gpu_fixture *gpu = gpu_begin();
    assert_true(gpu->is_simulated);
    assert_true(gpu->context.sm_count > 0 && gpu->total_bytes > 0);
    for (int guarded = 0; guarded < 2; guarded++) {
        unsigned char host[COUNT];
        gpu->is_simulated = guarded;
        char *memory = gpu_alloc(gpu, COUNT), *none = gpu_alloc(gpu, 0);
        assert_int_equal((uintptr_t)memory % 256, 0);
        gpu_download(gpu, host, memory, COUNT);
        for (int i = 0; i < COUNT; i++)
            assert_int_equal(host[i], 0xff);
        gpu_fill(gpu, memory, 7, COUNT);
        gpu_download(gpu, host, memory, COUNT);
        assert_int_equal(host[0] + host[COUNT - 1], 14);
        gpu_free(gpu, memory);
        gpu_free(gpu, NULL);
        assert_non_null(none); /* freed by gpu_end */
    }
    gpu_end(gpu);
}

static void test_values(void **state)
{
    static float values[COUNT], again[COUNT];
    gpu_fixture *gpu = gpu_begin();
    for (int type = 0; type < DTYPE_COUNT; type++) {
        gpu_random_fill(values, COUNT, gpu->seed, -2, 3);
        float least = INFINITY, most = -INFINITY;
        for (int i = 0; i < COUNT; i++) {
            least = fminf(least, values[i]);
            most = fmaxf(most, values[i]);
        }
        assert_true(least >= -2 && least < -1.9f && most < 3 && most > 2.9f);
        void *memory = gpu_alloc_values(gpu, values, (enum dtype)type, COUNT);
        gpu_round(values, (enum dtype)type, COUNT);
        gpu_download_values(gpu, again, memory, (enum dtype)type, COUNT);
        gpu_expect_same("values", again, values, COUNT, sizeof *values);
    }
    gpu_end(gpu);
    float got[4] = {1, INFINITY, NAN, -0.0f}, want[4] = {1.001f, INFINITY, NAN, 0.0f};
    gpu_expect_close("special values", got, want, 4, 0, 0.01);
}

static void test_absence_is_a_skip(void **state)
{
    char command[4096];
    snprintf(command, sizeof command, "SLUICE_SIMULATED_GPU_ABSENT=1 '%s' overrun >/dev/null",
             (const char *)*state);
    int status = system(command);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 77);
}

int main(int count, char **arguments)
{
    for (size_t i = 0; count > 1 && i < sizeof mistakes / sizeof mistakes[0]; i++) {
        if (strcmp(arguments[1], mistakes[i].name) == 0) {
            const struct CMUnitTest one[] = {{mistakes[i].name, mistakes[i].run, NULL, NULL, NULL}};
            return cmocka_run_group_tests(one, NULL, NULL);
        }
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_mistakes_are_found, arguments[0]),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_values),
        cmocka_unit_test_prestate(test_absence_is_a_skip, arguments[0]),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
