/* The public interface: whole tasks without an open run. See sluice.h. */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "comm/comm.h"
#include "config/machine.h"
#include "hf/hf.h"
#include "infer/infer.h"
#include "probe/probe.h"
#include "setup/plan_figures.h"
#include "sluice_internal.h"
#include "train/train.h"

/* ---- train ---- */

static void show_step(void *user, const struct train_progress *progress)
{
    const struct sluice_train_options *options = user;
    const struct sluice_step_info step = api_step_info(progress);
    options->on_step(options->user, &step);
}

static void show_evaluation(void *user, const struct train_eval *eval)
{
    const struct sluice_train_options *options = user;
    options->on_evaluation(options->user, eval->step, eval->loss);
}

static void fill_train_result(const struct train_summary *sum, struct sluice_train_result *out)
{
    *out = (struct sluice_train_result){
        .step = sum->step,
        .steps_done = sum->steps_done,
        .tokens = sum->tokens,
        .seconds = sum->seconds,
        .loss = sum->steps_done ? sum->train_loss : NAN,
        .valid_loss = sum->eval_given ? sum->eval_loss : NAN,
        .resumed = sum->was_resumed,
        .resident_bytes = sum->resident_bytes_max,
    };
    for (int tier = 0; tier < TIER_COUNT; tier++)
        out->peak_bytes[tier] = sum->peak_bytes[tier];
}

int sluice_train(const char *job_path, const struct sluice_train_options *options,
                 struct sluice_train_result *result)
{
    static const struct sluice_train_options defaults;
    struct api_inputs inputs;
    if (!options)
        options = &defaults;
    struct train_summary *sum = mem_alloc(1, sizeof *sum, "summary of a run");
    if (!sum)
        return api_status_of(err_set(-ENOMEM, "no memory for a run"));
    int rc = api_inputs_init(&inputs, job_path, &options->job);
    if (rc == 0) {
        inputs.train.stop = options->stop;
        inputs.train.on_step = options->on_step ? show_step : NULL;
        inputs.train.on_eval = options->on_evaluation ? show_evaluation : NULL;
        inputs.train.user = (void *)(uintptr_t)options;
        rc = train_run(&inputs.train, sum);
    }
    if (result)
        fill_train_result(sum, result);
    rc = api_inputs_fini(&inputs, rc);
    mem_free(sum);
    return api_status_of(rc);
}

/* ---- plan ---- */

/* Reads the figures of a machine. *is_here: it is this one. */
static int read_figures(const char *path, machine **out, bool *is_here)
{
    char why[320];
    *out = NULL;
    *is_here = false;
    if (!path)
        return 0;
    machine *both = mem_alloc(2, sizeof *both, "machine"); /* that one, and this host's name */
    if (!both)
        return err_set(-ENOMEM, "no memory for a machine");
    *out = both;
    TRY(machine_read(path, both));
    TRY(probe_name_host(&both[1]));
    *is_here = machine_is_here(both, &both[1], why, sizeof why);
    return 0;
}

/* The number of ranks to plan for. */
static int choose_world(const struct sluice_plan_options *options, const machine *described,
                        uint32_t *world)
{
    uint64_t hosts = described && described->host_count ? described->host_count : 1;
    uint64_t of_host = described && described->ranks_per_host ? described->ranks_per_host : 1;
    uint64_t asked = options->ranks ? options->ranks : hosts * of_host;
    if (asked > COMM_RANKS_MAX)
        return err_set(ERR_USAGE, "a plan for %llu ranks was asked for, and the most is %d",
                       (unsigned long long)asked, COMM_RANKS_MAX);
    if (options->ranks_per_host > asked)
        return err_set(ERR_USAGE, "ranks_per_host is %u, which is more than all %llu ranks",
                       options->ranks_per_host, (unsigned long long)asked);
    *world = (uint32_t)asked;
    return 0;
}

static int make_plan(const char *job_path, const struct sluice_plan_options *options,
                     const machine *figures, bool is_here, char **json)
{
    const machine *described = figures && !is_here ? figures : NULL;
    uint32_t world = 1;
    job *work;
    TRY(choose_world(options, described, &world));
    const struct setup_plan_options how = {
        .local_world = options->ranks_per_host,
        .machine = figures,
        .is_described = described != NULL,
    };
    TRY(job_read(job_path, options->job_text, options->set, (uint32_t)options->set_count, world,
                 &work));
    struct setup_summary *plan = mem_alloc(1, sizeof *plan, "plan");
    int rc = plan ? train_check_tokens(work) : -ENOMEM;
    if (rc == 0)
        rc = setup_plan_on(work, &how, plan);
    job_destroy(work);
    if (rc == 0) {
        json_t *object = setup_plan_object(plan);
        *json = object ? json_dumps(object, JSON_REAL_PRECISION(9)) : NULL;
        json_decref(object);
        rc = *json ? 0 : err_set(-ENOMEM, "no memory for the plan's text");
    }
    mem_free(plan);
    return rc;
}

int sluice_plan(const char *job_path, const struct sluice_plan_options *options, char **json)
{
    static const struct sluice_plan_options defaults;
    machine *figures = NULL;
    bool is_here;
    *json = NULL;
    if (!options)
        options = &defaults;
    enum log_level usual = log_get_level(); /* that of an open run */
    int rc = api_begin(options->verbose, false);
    if (rc == 0)
        rc = read_figures(options->machine, &figures, &is_here);
    if (rc == 0)
        rc = make_plan(job_path, options, figures, is_here, json);
    mem_free(figures);
    log_set_level(usual);
    return api_status_of(rc);
}

/* ---- probe ---- */

static void show_probe(void *user, const char *what, double done_share, double seconds_left)
{
    const struct sluice_probe_options *options = user;
    (void)seconds_left;
    options->on_progress(options->user, what, done_share);
}

static int check_probe(const char *path, const struct sluice_probe_options *options)
{
    if (options->drive_count > DRIVES_MAX)
        return err_set(ERR_USAGE, "%zu drives are named, and at most %d can be measured",
                       options->drive_count, DRIVES_MAX);
    TRY(probe_check_drives("drive", options->drives, options->drive_count));
    return probe_check_file(path);
}

int sluice_probe(const char *path, const struct sluice_probe_options *options)
{
    static const struct sluice_probe_options defaults;
    if (!options)
        options = &defaults;
    struct probe_options work = {
        .drives = {"."},
        .drive_count = options->drive_count ? (uint32_t)options->drive_count : 1,
        .backend = options->backend,
        .is_quick = options->quick != 0,
        .is_tiny = options->tiny != 0,
        .stop = options->stop,
        .on_progress = options->on_progress ? show_probe : NULL,
        .user = (void *)(uintptr_t)options,
    };
    int rc = api_begin(false, true);
    if (rc == 0)
        rc = check_probe(path, options);
    if (rc < 0)
        return api_status_of(rc);
    for (size_t d = 0; d < options->drive_count; d++)
        work.drives[d] = options->drives[d];
    machine *found = mem_alloc(1, sizeof *found, "machine");
    rc = found ? probe_run(&work, found) : err_set(-ENOMEM, "no memory for a machine");
    if (rc == 0)
        rc = machine_write(found, path);
    mem_free(found);
    return api_status_of(rc);
}

/* ---- generate ---- */

static int show_text(void *user, const char *bytes, uint64_t count)
{
    const struct sluice_generate_options *options = user;
    if (options->on_text && options->on_text(options->user, bytes, (size_t)count) != 0)
        return err_set(ERR_STOPPED, "stopped by the reader of the text");
    return 0;
}

static void show_token(void *user, int32_t id, bool is_prompt)
{
    const struct sluice_generate_options *options = user;
    options->on_token(options->user, id, is_prompt);
}

static int check_generate(const struct sluice_generate_options *options)
{
    if (!(options->temperature >= 0 && options->temperature <= 100))
        return err_set(ERR_USAGE, "temperature is %g, and must be from 0 to 100",
                       options->temperature);
    if (!(options->top_p >= 0 && options->top_p <= 1))
        return err_set(ERR_USAGE, "top_p is %g, and must be from 0 to 1", options->top_p);
    if (options->token_count > 1000000)
        return err_set(ERR_USAGE, "%llu tokens are asked for, and the most is 1000000",
                       (unsigned long long)options->token_count);
    if (options->stop_text && !options->stop_text[0])
        return err_set(ERR_USAGE, "stop_text is empty: give the text to stop at");
    if (options->system && !options->chat)
        return err_set(ERR_USAGE, "a system message needs a conversation: set chat");
    return 0;
}

int sluice_generate(const char *path, const char *prompt, size_t prompt_bytes,
                    const struct sluice_generate_options *options,
                    struct sluice_generate_result *result)
{
    static const struct sluice_generate_options defaults;
    static const char *const ends[] = {
        [GENERATE_TOKENS] = "tokens",
        [GENERATE_END] = "end",
        [GENERATE_TEXT] = "stop_text",
        [GENERATE_STOPPED] = "stopped",
    };
    struct infer_generate_result made = {.tokens = 0};
    if (!options)
        options = &defaults;
    const struct infer_generate_options asked = {
        .run_dir = path,
        .set = options->set,
        .set_count = (uint32_t)options->set_count,
        .prompt = prompt,
        .prompt_bytes = prompt_bytes,
        .token_count = options->token_count ? options->token_count : 256,
        .top_k = options->top_k,
        .seed = options->seed,
        .temperature = options->temperature,
        .top_p = options->top_p,
        .context = options->context,
        .stop_text = options->stop_text,
        .ignores_end = options->ignore_end != 0,
        .is_chat = options->chat != 0,
        .system = options->system,
        .stop = options->stop,
        .on_token = show_text,
        .on_id = options->on_token ? show_token : NULL,
        .user = (void *)(uintptr_t)options,
        .result = &made,
    };
    int rc = api_begin(options->verbose, true);
    if (rc == 0)
        rc = check_generate(options);
    if (rc == 0)
        rc = infer_generate(&asked);
    if (result)
        *result = (struct sluice_generate_result){
            .prompt_tokens = made.prompt_tokens,
            .tokens = made.tokens,
            .context = made.context,
            .prefill_seconds = made.prefill_seconds,
            .decode_seconds = made.decode_seconds,
            .ended_by = ends[made.ended],
        };
    return api_status_of(rc);
}

/* ---- evaluate and export ---- */

int sluice_evaluate_files(const char *path, const char *const *files, size_t file_count,
                          const struct sluice_evaluate_options *options,
                          struct sluice_evaluate_result *result)
{
    static const struct sluice_evaluate_options defaults;
    struct infer_evaluate_result made;
    memset(result, 0, sizeof *result);
    if (!options)
        options = &defaults;
    const struct infer_evaluate_options asked = {
        .path = path,
        .files = files,
        .file_count = (uint32_t)file_count,
        .set = options->set,
        .set_count = (uint32_t)options->set_count,
        .context = options->context,
        .stride = options->stride,
        .batches = options->batches,
        .stop = options->stop,
    };
    int rc = api_begin(options->verbose, true);
    if (rc == 0)
        rc = file_count ? infer_evaluate(&asked, &made)
                        : err_set(ERR_USAGE, "there is nothing to evaluate on: name files");
    if (rc < 0)
        return api_status_of(rc);
    *result = (struct sluice_evaluate_result){
        .loss = made.loss,
        .perplexity = made.perplexity,
        .bits_per_byte = made.bits_per_byte,
        .tokens = made.tokens,
        .seconds = made.seconds,
    };
    return SLUICE_DONE;
}

int sluice_export_run(const char *run_dir, const char *directory,
                      const struct sluice_export_options *options)
{
    static const struct sluice_export_options defaults;
    struct hf_export_summary made;
    if (!options)
        options = &defaults;
    const struct hf_export_options asked = {
        .run_dir = run_dir,
        .hf_dir = directory,
        .type = options->dtype,
        .adapters = options->adapters != 0,
        .force = options->force != 0,
    };
    int rc = api_begin(false, true);
    return api_status_of(rc == 0 ? hf_export(&asked, &made) : rc);
}
