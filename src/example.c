/* An example of libsluice: training that ends when the held-out loss no longer falls.
 *
 *   cc -o example example.c $(pkg-config --cflags --libs sluice)
 *   ./example job.json [steps between evaluations] [evaluations without a better loss] [directory]
 *
 * The job is an ordinary one with data.valid; its run.steps is the largest number of steps. If a
 * directory is named, it must be new or empty; the trained model is written there as a Hugging Face
 * checkpoint. The program can be killed at any time and started again: it resumes from the last
 * commit, like `sluice train`. Under mpirun each process is a rank. The exit status is that of the
 * command, and 0 if training ended by itself. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include <sluice.h>

static int fail(const char *what, int status)
{
    fprintf(stderr, "example: %s: %s\n", what, sluice_error());
    return status;
}

/* Makes steps up to the next evaluation, or to the run's last step. */
static int train_some(sluice_run *run, uint64_t until, int speaks)
{
    struct sluice_info info;
    sluice_get_info(run, &info);
    for (uint64_t step = info.step; step < until && step < info.steps; step++) {
        struct sluice_step_info made;
        int status = sluice_step(run, &made);
        if (status != SLUICE_DONE)
            return fail("step", status);
        if (speaks)
            printf("step %llu  loss %.4f  gradient norm %.3f%s  %.2f s\n",
                   (unsigned long long)made.step, made.loss, made.grad_norm,
                   made.skipped ? "  skipped" : "", made.seconds);
    }
    return SLUICE_DONE;
}

/* Trains until the held-out loss has not fallen `patience` times in a row, or until the last
 * step. */
static int train(sluice_run *run, uint64_t every, unsigned patience)
{
    struct sluice_info info;
    double loss, best;
    sluice_get_info(run, &info);
    int speaks = info.rank == 0, status = sluice_evaluate(run, &best);
    if (status != SLUICE_DONE)
        return fail("evaluation", status);
    if (speaks)
        printf("%llu parameters, at step %llu of %llu, held-out loss %.4f\n",
               (unsigned long long)info.param_count, (unsigned long long)info.step,
               (unsigned long long)info.steps, best);
    for (unsigned worse = 0; worse < patience && info.step < info.steps;) {
        status = train_some(run, info.step + every, speaks);
        if (status != SLUICE_DONE)
            return status;
        status = sluice_evaluate(run, &loss);
        if (status != SLUICE_DONE)
            return fail("evaluation", status);
        sluice_get_info(run, &info);
        if (speaks)
            printf("step %llu  held-out loss %.4f%s\n", (unsigned long long)info.step, loss,
                   loss < best ? "" : "  not better");
        worse = loss < best ? 0 : worse + 1;
        best = loss < best ? loss : best;
    }
    return SLUICE_DONE;
}

/* True if sluice_export can take the directory: it does not exist yet, or it is empty. */
static int is_free(const char *path)
{
    int entry_count = 0;
    DIR *directory = opendir(path);
    if (!directory)
        return errno == ENOENT;
    while (readdir(directory))
        entry_count++;
    closedir(directory);
    return entry_count <= 2; /* "." and ".." */
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "use: %s job.json [steps between evaluations] [patience] [directory]\n",
                argv[0]);
        return SLUICE_WRONG;
    }
    long every = argc > 2 ? strtol(argv[2], NULL, 10) : 50;
    long patience = argc > 3 ? strtol(argv[3], NULL, 10) : 3;
    if (every < 1 || patience < 1) {
        fprintf(stderr, "example: steps and patience are whole numbers of 1 or more\n");
        return SLUICE_WRONG;
    }
    if (argc > 4 && !is_free(argv[4])) { /* now, and not after hours of training */
        fprintf(stderr, "example: %s is not an empty directory: name another one for the model\n",
                argv[4]);
        return SLUICE_WRONG;
    }
    sluice_run *run;
    int status = sluice_open(argv[1], NULL, &run);
    if (status != SLUICE_DONE)
        return fail(argv[1], status);
    status = train(run, (uint64_t)every, (unsigned)patience);
    if (status == SLUICE_DONE && argc > 4) {
        status = sluice_export(run, argv[4], NULL);
        if (status != SLUICE_DONE)
            status = fail("export", status);
    }
    int closed = sluice_close(run); /* commits what is not yet committed */
    if (closed != SLUICE_DONE && status == SLUICE_DONE)
        status = fail("closing", closed);
    return status;
}
