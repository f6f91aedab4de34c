/* The pauses of a wait, on a simulated clock: yields first, then sleeps that grow with the wait, so
 * that a wait ends late by no more than thread.h says. The linker puts the functions here in the
 * place of the clock's and the system's. */
#include <time.h>

#include "base/size.h"
#include "base/thread.h"
#include "tests/unit.h"

enum { BEGIN_NS = 1000, YIELD_NS = 700, SHORTEST_SLEEP_NS = 60000 };

static uint64_t now_ns, slept_ns; /* slept_ns: what the last pause asked for */
static unsigned yields, sleeps;

uint64_t __wrap_clock_ns(void);
int __wrap_sched_yield(void);
int __wrap_nanosleep(const struct timespec *asked, struct timespec *left);

uint64_t __wrap_clock_ns(void)
{
    return now_ns;
}

int __wrap_sched_yield(void)
{
    yields++;
    now_ns += YIELD_NS;
    return 0;
}

int __wrap_nanosleep(const struct timespec *asked, struct timespec *left)
{
    assert_int_equal(asked->tv_sec, 0);
    slept_ns = (uint64_t)asked->tv_nsec;
    sleeps++;
    now_ns += size_max(slept_ns, SHORTEST_SLEEP_NS);
    return 0;
}

static int reset(void **state)
{
    now_ns = BEGIN_NS;
    slept_ns = yields = sleeps = 0;
    return 0;
}

/* Checks one pause of a wait that has lasted so long: a sleep of wanted_ns, or a yield if 0. */
static void expect_pause(backoff *wait, uint64_t waited_ns, uint64_t wanted_ns)
{
    unsigned before = yields + sleeps;
    now_ns = BEGIN_NS + waited_ns;
    slept_ns = 0;
    backoff_pause(wait);
    assert_int_equal(slept_ns, wanted_ns);
    assert_int_equal(yields + sleeps, before + 1);
}

static void pauses_grow(void **state)
{
    static const uint64_t hour_ns = UINT64_C(3600) * 1000000000;
    backoff wait = {0};
    expect_pause(&wait, 0, 0);
    expect_pause(&wait, BACKOFF_SPIN_NS - 1, 0);
    expect_pause(&wait, BACKOFF_SPIN_NS, BACKOFF_SPIN_NS / 8);
    expect_pause(&wait, 4000000, 500000);
    expect_pause(&wait, 8 * BACKOFF_SLEEP_NS_MAX, BACKOFF_SLEEP_NS_MAX);
    expect_pause(&wait, hour_ns, BACKOFF_SLEEP_NS_MAX);
    backoff next = {0}; /* another wait begins anew */
    expect_pause(&next, hour_ns, 0);
}

static void a_wait_ends_late_by_an_eighth(void **state)
{
    static const uint64_t ends_ns[] = {0, 1000, 150000, 250000, 2000000, 30000000, 5000000000};
    for (size_t i = 0; i < sizeof ends_ns / sizeof ends_ns[0]; i++) {
        backoff wait = {0};
        reset(NULL);
        while (now_ns < BEGIN_NS + ends_ns[i])
            backoff_pause(&wait);
        uint64_t late_ns = now_ns - BEGIN_NS - ends_ns[i];
        assert_true(late_ns <= size_max(ends_ns[i] / 8, SHORTEST_SLEEP_NS));
        assert_true(late_ns <= BACKOFF_SLEEP_NS_MAX);
        /* A long wait takes little of a core. */
        assert_true(yields <= BACKOFF_SPIN_NS / YIELD_NS + 1);
        assert_true(sleeps <= 40 + ends_ns[i] / BACKOFF_SLEEP_NS_MAX);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(pauses_grow, reset),
        cmocka_unit_test_setup(a_wait_ends_late_by_an_eighth, reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
