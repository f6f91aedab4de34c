/* Compile time: the time to make the programs of a job's steps, from the model's shapes to the last
 * buffer's address, and its growth with the number of ops. `sluice plan` waits this long, and so
 * does every run before its first step.
 *
 *   bench_compile        with the common options of bench.h; finds configs/models.json like sluice
 *
 * The models are GPT-2 124M and 1.5B on a described desktop, and GPT-2's shape with 10^12
 * parameters on a described DGX-2, so nothing depends on this machine's hardware except the time.
 * Each is compiled with all states on NVMe, which gives the longest programs, and with automatic
 * placement, which compiles several programs. There is no limit to compare with. The figure is ops
 * per second, for the ops of the steady step's program; the time includes the first, flush and eval
 * programs. "Growth" is the exponent of time over ops from one model to the next; 1 means
 * proportional. One thread. */
#include <inttypes.h>

#include "config/config.h"
#include "config/machine.h"
#include "perf/bench.h"
#include "setup/summary.h"

static const char job_text[] =
    "{\"model\": {\"preset\": \"gpt2-124m\"}, \"data\": {\"train\": [\"none\"]}, \"run\": "
    "{\"dir\": \"runs/none\"},"
    " \"tiers\": {\"device\": {\"budget\": \"2GiB\"}, \"host\": {\"budget\": \"2GiB\"},"
    " \"nvme\": [{\"path\": \"slabs\"}]},"
    " \"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 2,"
    " \"bf16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": 3}}";

#define FP16    "bf16.enabled=false", "fp16.enabled=true" /* V100s have no bf16 */
#define ON_NVME "tiers.place={\"params\":\"nvme\",\"grads\":\"nvme\",\"optimizer\":\"nvme\"}"

struct compiled {
    const char *name, *machine_name;
    const char *set[8];
    job *asked;
    machine cluster;
    struct setup_summary plan;
};

static struct compiled works[] = {
    {.name = "gpt2-124m on nvme",
     .machine_name = "desktop-24g",
     .set = {"tiers.device.budget=576MiB", "tiers.host.budget=512MiB", ON_NVME}},
    {.name = "gpt2-1.5b on nvme",
     .machine_name = "desktop-24g",
     .set = {"model.preset=gpt2-1.5b", ON_NVME}},
    {.name = "10^12 parameters on nvme",
     .machine_name = "dgx2-16xv100",
     .set = {"model.preset=gpt-1t", FP16, "run.commit_every=0", "tiers.device.budget=24GiB",
             "tiers.host.budget=64GiB", ON_NVME}},
    {.name = "gpt2-124m automatic",
     .machine_name = "desktop-24g",
     .set = {"tiers.device.budget=576MiB", "tiers.host.budget=512MiB"}},
    {.name = "gpt2-1.5b automatic",
     .machine_name = "desktop-24g",
     .set = {"model.preset=gpt2-1.5b"}},
    {.name = "10^12 parameters automatic",
     .machine_name = "dgx2-16xv100",
     .set = {"model.preset=gpt-1t", FP16, "run.commit_every=0", "tiers.device.budget=24GiB",
             "tiers.host.budget=64GiB"}},
};
enum { WORKS = sizeof works / sizeof works[0], PLACED = 3 };

static double compile(void *user)
{
    struct compiled *work = user;
    struct setup_plan_options options = {.machine = &work->cluster, .is_described = true};
    uint64_t start = clock_ns();
    bench_require(setup_plan_on(work->asked, &options, &work->plan));
    return (double)(clock_ns() - start) * 1e-9;
}

static void read_job(struct compiled *work)
{
    uint32_t count = 0;
    while (work->set[count])
        count++;
    bench_require(machine_read(work->machine_name, &work->cluster));
    uint32_t world = work->cluster.ranks_per_host * work->cluster.host_count;
    bench_require(
        job_read("bench_compile", job_text, work->set, count, world ? world : 1, &work->asked));
}

/* A case that takes many seconds runs only a few times, or once with --quick. */
static void measure(struct compiled *work, struct bench_summary *out)
{
    struct bench_body body = {compile, work};
    double once = compile(work);
    if (once > 2 && bench_is_quick())
        *out = bench_summarize(&once, 1);
    else
        bench_by_turns(&body, 1, once > 2 || bench_is_quick() ? 3 : 7, out);
}

int main(int argc, char **argv)
{
    bench_begin(&argc, argv);
    if (argc > 1) {
        fprintf(stderr, "usage: bench_compile [--csv FILE] [--quick]\n");
        return 2;
    }
    log_set_level(LOG_QUIET);
    struct bench_summary times[WORKS];
    for (int i = 0; i < WORKS; i++)
        read_job(&works[i]);
    for (int i = 0; i < WORKS; i++)
        measure(&works[i], &times[i]);
    for (int i = 0; i < WORKS; i++) {
        char name[96];
        snprintf(name, sizeof name, "compile %s", works[i].name);
        bench_report(name, (double)works[i].plan.op_count * 1e-3, "kops/s", &times[i], NULL);
        printf("    %" PRIu64 " ops in %.3f s\n", works[i].plan.op_count, times[i].median);
    }
    for (int i = 1; i < WORKS; i++)
        if (i != PLACED)
            printf("growth from %s to %s: %.1f times the ops, %.1f times the time, exponent %.2f\n",
                   works[i - 1].name, works[i].name,
                   (double)works[i].plan.op_count / (double)works[i - 1].plan.op_count,
                   times[i].median / times[i - 1].median,
                   log(times[i].median / times[i - 1].median) /
                       log((double)works[i].plan.op_count / (double)works[i - 1].plan.op_count));
    for (int i = 0; i < WORKS; i++)
        job_destroy(works[i].asked);
    return 0;
}
