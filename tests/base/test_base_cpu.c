/* The choice of the instruction set. It is made once in a process, so that each case has its
 * own. */
#include <sys/wait.h>
#include <unistd.h>

#include "base/cpu.h"
#include "tests/unit.h"

/* Runs `body` in a child with SLUICE_ISA set so, or unset; it returns true if all is as it
 * should be. */
static void in_a_process(const char *asked, bool (*body)(enum cpu_isa isa), enum cpu_isa isa)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (asked ? setenv("SLUICE_ISA", asked, 1) : unsetenv("SLUICE_ISA"))
            _exit(2);
        _exit(body(isa) ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* True if the kernel's description of the first CPU has the word. */
static bool is_described(const char *word)
{
    char line[8192];
    bool found = false;
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && !found && fgets(line, sizeof line, file) && line[0] != '\n')
        for (char *rest = line, *part; !found && (part = strsep(&rest, " \t\n"));)
            found = strcmp(part, word) == 0;
    if (file)
        fclose(file);
    return found;
}

/* Intel cores that were built for AMX, in a machine that hides it, are faster without bf16. */
static bool has_slow_bf16(void)
{
    return is_described("GenuineIntel") && is_described("avx512_fp16") && !cpu_has(CPU_AMX);
}

static enum cpu_isa usual(void)
{
    enum cpu_isa isa = has_slow_bf16() ? CPU_AVX512 : CPU_AMX;
    while (!cpu_has(isa))
        isa--;
    return isa;
}

static bool is_chosen(enum cpu_isa isa)
{
    return cpu_isa_check() == 0 && cpu_isa() == isa;
}

static bool is_forced(enum cpu_isa isa)
{
    return is_chosen(isa) && cpu_isa_is_forced();
}

static bool is_usual(enum cpu_isa isa)
{
    return is_chosen(isa) && !cpu_isa_is_forced();
}

static bool is_refused_as_unknown(enum cpu_isa isa)
{
    return cpu_isa_check() == ERR_USAGE && strstr(err_text(), "\"avx1024\"") &&
           strstr(err_text(), "not the name of an instruction set") &&
           strstr(err_text(), "baseline") && cpu_isa_check() == ERR_USAGE;
}

static bool is_refused_as_lacking(enum cpu_isa isa)
{
    return cpu_isa_check() == ERR_USAGE && strstr(err_text(), cpu_isa_name(isa)) &&
           strstr(err_text(), "that this CPU lacks");
}

/* Setting the variable after the choice changes nothing. */
static bool stays(enum cpu_isa isa)
{
    return is_chosen(isa) && setenv("SLUICE_ISA", "baseline", 1) == 0 && is_usual(isa);
}

static void the_usual_set_without_a_word(void **state)
{
    in_a_process(NULL, is_usual, usual());
    in_a_process("", is_usual, usual());
    in_a_process(NULL, stays, usual());
}

static void each_set_by_its_name(void **state)
{
    for (enum cpu_isa isa = CPU_BASELINE; isa < CPU_ISA_COUNT; isa++) {
        print_message("%s: %s\n", cpu_isa_name(isa), cpu_has(isa) ? "here" : "not on this CPU");
        in_a_process(cpu_isa_name(isa), cpu_has(isa) ? is_forced : is_refused_as_lacking, isa);
    }
}

static void an_unknown_word(void **state)
{
    in_a_process("avx1024", is_refused_as_unknown, CPU_BASELINE);
}

/* A CPU that has a set has all of x86-64's before it. */
static void sets_are_ordered(void **state)
{
    assert_true(cpu_has(CPU_BASELINE));
    assert_false(cpu_has(CPU_NEON) && cpu_has(CPU_AVX2));
    for (enum cpu_isa isa = CPU_AVX512; isa < CPU_ISA_COUNT; isa++)
        assert_true(!cpu_has(isa) || cpu_has(isa - 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_usual_set_without_a_word),
        cmocka_unit_test(each_set_by_its_name),
        cmocka_unit_test(an_unknown_word),
        cmocka_unit_test(sets_are_ordered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
