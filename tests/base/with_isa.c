/* Runs a program in another instruction set than the usual one, for the lines isa_SET.NAME of the
 * suite.
 *
 *   with_isa SET PROGRAM [ARGUMENT...]
 *
 * Exit 77 where the CPU lacks the set, or where it is the usual one, in which the line without a
 * prefix runs the program. SLUICE_ISA makes another set the usual one, and those above it are then
 * skipped, so that a run of the suite can be that of a smaller CPU. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cpu.h"

enum { EXIT_WRONG_USE = 2, EXIT_SKIP = 77 };

int main(int argc, char **argv)
{
    enum cpu_isa isa = CPU_BASELINE;
    while (argc > 2 && isa < CPU_ISA_COUNT && strcmp(argv[1], cpu_isa_name(isa)) != 0)
        isa++;
    if (argc < 3 || isa == CPU_ISA_COUNT) {
        fprintf(stderr, "use: with_isa SET PROGRAM [ARGUMENT...]\n");
        return EXIT_WRONG_USE;
    }
    if (cpu_isa_check() < 0) {
        fprintf(stderr, "%s\n", err_text());
        return EXIT_WRONG_USE;
    }
    const char *asked = getenv("SLUICE_ISA");
    bool is_above = isa > cpu_isa() && asked && *asked;
    if (isa == cpu_isa() || is_above || !cpu_has(isa)) {
        printf("skipped: %s is not another set of this CPU, whose usual one is %s\n", argv[1],
               cpu_isa_name(cpu_isa()));
        return EXIT_SKIP;
    }
    if (setenv("SLUICE_ISA", argv[1], 1) != 0) {
        perror("with_isa: SLUICE_ISA");
        return EXIT_WRONG_USE;
    }
    execv(argv[2], argv + 2);
    perror(argv[2]);
    return EXIT_WRONG_USE;
}
