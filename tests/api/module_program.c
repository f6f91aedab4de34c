/* A program that trains the toy module, as one rank or as many under mpirun:
 *
 *   module_program DIRECTORY UNTIL ACCUMULATION [KEY=VALUE...]
 *
 * Several ranks also check that a second run is refused, since MPI has ended with the first one.
 * Rank 0 prints the bits of each loss, and a sum of all params after step UNTIL. The exit status is
 * that of sluice_open where the run is refused. */
#include "tests/api/toy_module.h"
#include "tests/unit.h"

static int usage(const char *name)
{
    fprintf(stderr, "use: %s DIRECTORY UNTIL ACCUMULATION [KEY=VALUE...]\n", name);
    return 2;
}

int main(int argc, char **argv)
{
    static toy self;
    char run[4096], drive[4096];
    if (argc < 4)
        return usage(argv[0]);
    snprintf(run, sizeof run, "%s/run", argv[1]);
    snprintf(drive, sizeof drive, "%s/drive", argv[1]);
    uint64_t until = strtoull(argv[2], NULL, 10), sum = 0;
    const toy_job asked = {.dir = run,
                           .drive = drive,
                           .type = DTYPE_FP32,
                           .accumulation = (uint32_t)strtoul(argv[3], NULL, 10)};
    const struct sluice_options options = {.set = (const char *const *)argv + 4,
                                           .set_count = (size_t)argc - 4,
                                           .job_text = toy_text(&asked),
                                           .first = toy_first};
    int status = toy_try_open(&self, &asked, &options);
    if (status != SLUICE_DONE) {
        fprintf(stderr, "%s\n", sluice_error());
        return status;
    }
    uint64_t begun = self.steps_made, rank = self.rank;
    if (sluice_broadcast(self.run, &rank, sizeof rank) != SLUICE_DONE || rank != 0) {
        fprintf(stderr, "rank %u has no data of rank 0: %s\n", self.rank, sluice_error());
        return 1;
    }
    toy_train(&self, until);
    double loss = toy_evaluate(&self);
    for (uint32_t u = 0; u < TOY_UNITS; u++)
        for (uint64_t i = 0; i < toy_elems(u); i++) {
            union {
                float value;
                uint32_t bits;
            } seen = {self.seen[u][i]};
            sum = sum * UINT64_C(0x100000001b3) + seen.bits;
        }
    for (uint64_t s = begun; s < until && self.rank == 0; s++)
        printf("step %d loss %08x norm %a\n", (int)s + 1, self.losses[s], self.norms[s]);
    if (self.rank == 0)
        printf("params %016llx loss %a\n", (unsigned long long)sum, loss);
    toy_close(&self);
    sluice_run *second;
    if (self.world > 1 && (sluice_open("toy", &options, &second) != SLUICE_WRONG ||
                           !strstr(sluice_error(), "MPI has ended"))) {
        fprintf(stderr, "rank %u, the second run: %s\n", self.rank, sluice_error());
        return 1;
    }
    return 0;
}
