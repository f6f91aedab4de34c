/* Loading libraries at run time (kernels/cuda/library.c): order, places, reasons. */
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/cuda/cuda_internal.h"
#include "tests/unit.h"

static void finds_the_first_that_is_there(void **state)
{
    const char *sonames[] = {"libsluice-is-nowhere.so.7", "libm.so.6", NULL};
    char why[256];
    void *library = cudai_library_open(sonames, why, sizeof why);
    assert_non_null(library);
    assert_non_null(cudai_library_symbol(library, "cos"));
    assert_null(cudai_library_symbol(library, "sluice_is_nowhere"));
}

static void says_what_is_missing(void **state)
{
    const char *sonames[] = {"libsluice-is-nowhere.so.7", "libsluice-is-nowhere.so.6", NULL};
    char why[256];
    assert_null(cudai_library_open(sonames, why, sizeof why));
    assert_non_null(strstr(why, "libsluice-is-nowhere.so.7"));
}

/* In $CUDA_HOME/lib64 lies a file that is no library: that is the reason to give, not the absence
 * elsewhere. */
static void names_the_library_that_is_broken(void **state)
{
    char home[] = "test_kernels_library.XXXXXX", directory[64], path[128], why[256];
    assert_non_null(mkdtemp(home));
    snprintf(directory, sizeof directory, "./%s/lib64", home);
    assert_int_equal(mkdir(directory, 0700), 0);
    snprintf(path, sizeof path, "%s/libsluice-is-broken.so", directory);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs("no library\n", file) >= 0);
    assert_int_equal(fclose(file), 0);
    snprintf(directory, sizeof directory, "./%s", home);
    setenv("CUDA_HOME", directory, 1);
    const char *sonames[] = {"libsluice-is-broken.so", "libsluice-is-nowhere.so", NULL};
    assert_null(cudai_library_open(sonames, why, sizeof why));
    unsetenv("CUDA_HOME");
    unlink(path);
    snprintf(path, sizeof path, "%s/lib64", home);
    rmdir(path);
    rmdir(home);
    print_message("%s\n", why);
    assert_non_null(strstr(why, "lib64/libsluice-is-broken.so"));
    assert_null(strstr(why, "No such file"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_the_first_that_is_there),
        cmocka_unit_test(says_what_is_missing),
        cmocka_unit_test(names_the_library_that_is_broken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
