/* NCCL as it is found at run time (src/comm/nccl_library.c). Loading it needs no GPU. Exit 77: this
 * build has no NCCL, or the machine has none; the error then says how to get it. */
#include <errno.h>

#include "comm/comm.h"
#include "tests/unit.h"

static int code;

static void it_loads_or_says_why(void **state)
{
    code = comm_nccl_check();
    if (code == 0) {
        assert_ok(comm_nccl_check());
        return;
    }
    printf("%s\n", err_text());
    assert_true(code == -ENOTSUP || code == ERR_BACKEND);
    assert_non_null(strstr(err_text(), code == -ENOTSUP ? "-DSLUICE_NCCL=ON" : "libnccl"));
    assert_non_null(strstr(err_text(), "staged"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_loads_or_says_why),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return failed == 0 && code < 0 ? 77 : failed;
}
