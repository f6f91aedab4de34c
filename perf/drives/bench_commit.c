/* The commit of a state that rests in memory: bytes per second from the last byte in memory until
 * the step is durable. The limit is the time to write and sync the same number of bytes on the same
 * drive, measured in turns in one run.
 *
 *   bench_commit [DIRECTORY]     default: . ; and the common options of bench.h
 *
 * It trains a model of GPT-2's shape on short random windows. The optimizer state is in host
 * memory, with two places on the drive that holds DIRECTORY. It commits after each step: master
 * weights and both moments are written to the places that the last commit does not need, synced,
 * and named by the manifest. The commit also computes checksums of all extents; the limit does not.
 * Both places and the limit's file are written once before the timing. It needs 1.3 GB of memory
 * and 4 GB of disk (--quick: 0.2 and 0.4), and removes its files.
 *
 * State that rests on NVMe is on the drive already; perf/drives/durability.sh measures its
 * commit. */
#include <errno.h>

#include "base/mem.h"
#include "base/rng.h"
#include "config/config.h"
#include "perf/drives/bench_drive.h"
#include "setup/summary.h"
#include "train/train.h"

enum { WARM_COMMITS = 3 };

/* Makes a job whose main work is its commits. */
static void read_job(const char *folder, job **out)
{
    const char *shape = bench_is_quick() ? "\"num_layers\": 4, \"hidden_size\": 256"
                                         : "\"num_layers\": 8, \"hidden_size\": 1024";
    char text[4 * 4096 + 2048], path[4200];
    snprintf(path, sizeof path, "%s/text", folder);
    FILE *file = fopen(path, "wb");
    bench_require(file ? 0 : err_set(-errno, "%s: cannot be made", path));
    for (uint64_t i = 0; i < 1 << 16; i++)
        fputc((int)rng_below(1, 1, i, 256), file);
    fclose(file);
    snprintf(text, sizeof text,
             "{\"model\": {\"family\": \"gpt2\", %s, \"num_heads\": 4, \"vocab_size\": 256,"
             " \"seq_length\": 64, \"tie_embeddings\": true},"
             " \"data\": {\"train\": [\"%s/text\"], \"format\": \"text\"},"
             " \"run\": {\"dir\": \"%s/run\", \"steps\": 1000, \"commit_every\": 1000},"
             " \"device\": {\"backend\": \"cpu\"},"
             " \"tiers\": {\"device\": {\"budget\": \"4GiB\"}, \"host\": {\"budget\": \"4GiB\"},"
             " \"nvme\": [{\"path\": \"%s/drive\", \"budget\": \"8GiB\"}],"
             " \"place\": {\"params\": \"device\", \"grads\": \"device\", \"optimizer\": \"host\","
             " \"activations\": \"device\"}},"
             " \"schedule\": {\"update\": \"after_backward\"}, \"bf16\": {\"enabled\": true},"
             " \"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 1}",
             shape, folder, folder, folder);
    bench_require(job_read("bench_commit", text, NULL, 0, 1, out));
}

static double commit_once(train_session *session)
{
    struct train_progress progress;
    uint64_t step;
    bench_require(train_step(session, &progress));
    uint64_t start = clock_ns();
    bench_require(train_commit(session, &step));
    double seconds = (double)(clock_ns() - start) * 1e-9;
    if (step != progress.step)
        bench_require(err_set(ERR_INTERNAL, "the commit is not of the last step"));
    return seconds;
}

static char work[2048]; /* removed at the end, also after a failure */

static void remove_work(void)
{
    char command[sizeof work + 16];
    snprintf(command, sizeof command, "rm -rf '%s'", work);
    if (system(command) != 0)
        fprintf(stderr, "bench_commit: %s is left behind\n", work);
}

static void bench(void)
{
    job *asked;
    train_session *session;
    struct train_summary summary;
    struct setup_summary *plan = mem_alloc(1, sizeof *plan, "plan");
    struct bench_drive *drive = mem_alloc(1, sizeof *drive, "drive");
    bench_require(plan && drive ? 0 : -ENOMEM);
    read_job(work, &asked);
    struct train_options options = {.job = asked, .fresh = true};
    bench_require(train_open(&options, &session));
    train_get_summary(session, &summary, plan);
    bench_drive_open(drive, work, plan->commit_bytes);
    double commits[BENCH_RUNS_MAX], writes[BENCH_RUNS_MAX];
    int runs = bench_is_quick() ? 7 : 9;
    for (int run = -WARM_COMMITS; run < runs; run++) {
        bench_require(bench_stopped());
        double commit = commit_once(session), written = bench_drive_move(drive, IO_WRITE, true);
        if (run >= 0) {
            commits[run] = commit;
            writes[run] = written * (double)plan->commit_bytes / (double)drive->bytes;
        }
    }
    bench_drive_close(drive);
    struct bench_summary time = bench_summarize(commits, runs),
                         limit = bench_summarize(writes, runs);
    printf("a commit of %.0f MB: median %.4f s (%.4f to %.4f); written and synced alone %.4f s\n",
           (double)plan->commit_bytes * 1e-6, time.median, time.lowest, time.highest, limit.median);
    bench_report("commit of state in memory", (double)plan->commit_bytes * 1e-9, "GB/s", &time,
                 &limit);
    bench_require(train_close(session));
    job_destroy(asked);
    mem_free(drive);
    mem_free(plan);
}

int main(int argc, char **argv)
{
    bench_begin(&argc, argv);
    if (argc > 2) {
        fprintf(stderr, "usage: bench_commit [DIRECTORY] [--csv FILE] [--quick]\n");
        return 2;
    }
    log_set_level(LOG_WARN);
    snprintf(work, sizeof work, "%s/bench-commit-XXXXXX", argc > 1 ? argv[1] : ".");
    if (strchr(work, '\'') || !mkdtemp(work)) {
        fprintf(stderr, "bench_commit: %s cannot be made: %s\n", work,
                strchr(work, '\'') ? "a quote in its name" : strerror(errno));
        return 2;
    }
    atexit(remove_work);
    bench();
    return 0;
}
