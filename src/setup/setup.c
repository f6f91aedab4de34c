/* Makes a setup from a job: the model, the inputs of the plan, and the order of all steps. See
 * setup.h. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <xxhash.h>

#include "base/mem.h"
#include "base/size.h"
#include "base/thread.h"
#include "config/config.h"
#include "setup/setup_internal.h"

/* Finds the memory nodes of the GPUs of this host's ranks, so that each rank gets cores near its
 * GPU. */
static int find_gpu_nodes(const struct setup *self, int nodes[COMM_RANKS_MAX])
{
    const struct ranks *ranks = &self->ranks;
    int own = self->machine.device_node, all[COMM_RANKS_MAX];
    TRY(comm_exchange(ranks->comm, "nodes of the GPUs", &own, sizeof own, all));
    const comm_rank *list = comm_get_ranks(ranks->comm);
    for (uint32_t r = 0; r < ranks->world; r++)
        if (list[r].host_idx == list[ranks->rank].host_idx)
            nodes[list[r].local_rank] = all[r];
    return 0;
}

/* Chooses cores and thread counts from the machine and the job. */
static int place_cores(struct setup *self)
{
    const struct job *asked = self->job;
    int nodes[COMM_RANKS_MAX];
    TRY(topology_read(&self->machine));
    for (uint32_t d = 0; d < asked->tiers.nvme_count; d++)
        TRY(topology_add_drive(&self->machine, asked->tiers.nvme[d].path));
    core_request request = {
        .compute = {"device", asked->device.cores, asked->device.threads},
        .update = {"update", asked->update.cores, asked->update.threads},
        .io = {"io", asked->io.cores, asked->io.threads},
        .device_is_cpu = !self->gpu,
        .local_rank = self->ranks.local_rank,
        .local_world = self->ranks.local_world,
        .shares_cores = self->ranks.shares_cores,
    };
    if (self->gpu)
        self->machine.device_node = topology_pci_node(device_get_info(self->gpu)->pci_bus_id);
    if (self->gpu && self->ranks.world > 1 && self->ranks.comm) {
        TRY(find_gpu_nodes(self, nodes));
        request.device_nodes = nodes;
    }
    TRY(topology_place(&self->machine, &request, &self->cores));
    self->thread_count = (int)self->cores.compute.thread_count;
    return 0;
}

/* Makes the model of a family, and the one for calls of one token. */
static int make_family(struct setup *self, const struct setup_options *options)
{
    model_spec spec;
    TRY(setup_model_spec(self->job, &spec));
    TRY(setupi_choose_expert_ranks(self, options, &spec));
    /* Nothing learns in an evaluation, so that everything may be packed. */
    if (options->only_eval && model_asks_packed(&spec) && spec.lora.rank == 0 &&
        !spec.learn.is_given)
        spec.learn = (model_learn){.is_given = true, .nothing = true};
    model_window window = options->window;
    TRY(model_create_window(&spec, self->job->type, self->job->micro_batch, &window, &self->net));
    if (window.cache_positions > 0) {
        window.tokens = 1;
        TRY(model_create_window(&spec, self->job->type, 1, &window, &self->single));
    }
    return 0;
}

static int make_model(struct setup *self, const struct setup_options *options)
{
    if (self->is_described)
        TRY(setupi_described_device(self));
    else
        TRY(setupi_choose_backend(self));
    if (self->job->module)
        TRY(model_create_module(self->job->module, self->job->type, &self->net));
    else
        TRY(make_family(self, options));
    if (!self->is_described) {
        TRY(setupi_choose_collectives(self));
        TRY(place_cores(self));
        TRY(setupi_make_cpu_context(self));
    }
    return setupi_prepare_models(self, options);
}

/* Removes from the text what begins with `from` and ends before `until`. */
static void cut_out(char *text, const char *from, const char *until)
{
    char *begin = strstr(text, from), *end = begin ? strstr(begin + 1, until) : NULL;
    if (end)
        memmove(begin, end, strlen(end) + 1);
}

/* True if the identities are equal apart from lines that may differ:
 *
 *   threads     on another number of ranks each rank has other cores, and the bits differ anyway
 *   selection   a run may begin with the state of a run in which other units learned */
static bool is_same_but(const struct setup *self, const manifest *found, bool threads,
                        bool selection)
{
    char was[MANIFEST_TEXT_BYTES], is[MANIFEST_TEXT_BYTES];
    char *const texts[2] = {was, is};
    snprintf(was, sizeof was, "%s", found->identity);
    snprintf(is, sizeof is, "%s", self->identity);
    for (int i = 0; i < 2 && threads; i++) {
        cut_out(texts[i], "\nthreads=", "\n");
        /* this line begins with the number of threads */
        cut_out(texts[i], "\nkernels=cpu: ", ", ");
    }
    for (int i = 0; i < 2 && selection; i++)
        cut_out(texts[i], "\ntrain.only=", "\n");
    return strcmp(was, is) == 0;
}

int setup_name_import(const struct job *asked, const model *net, manifest *record)
{
    const kernel_context_config config = {.thread_count = 1};
    struct setup *self = mem_alloc(1, sizeof *self, "setup");
    if (!self)
        return -ENOMEM;
    self->job = asked;
    self->net = (model *)(uintptr_t)net; /* it is only read */
    self->ops = &kernels_reference;
    int rc = self->ops->context_create(&config, &self->context);
    if (rc == 0)
        rc = setupi_make_identity(self);
    if (rc == 0) {
        setupi_import_identity(self->identity, record->identity);
        record->fingerprint = XXH3_64bits(record->identity, strlen(record->identity));
    }
    if (self->context)
        self->ops->context_destroy(self->context);
    mem_free(self);
    return rc;
}

/* Names the first tensor that differs in the modules of the run and of the job; "": not known. */
static void name_tensor(const struct setup *self, const manifest *found, const char *run_dir,
                        char *text, size_t capacity)
{
    const module_spec *is = self->job->module;
    job *was = is ? job_read_of_run(run_dir, (uint32_t)size_max(found->world_size, 1)) : NULL;
    text[0] = '\0';
    if (was && was->module)
        setupi_name_tensor(was->module, is, text, capacity);
    job_destroy(was);
}

/* `borrows`: the state comes from another run. */
static int check_identity(const struct setup *self, const manifest *found, const char *run_dir,
                          bool borrows)
{
    char differences[640], tensors[640];
    bool other_ranks = size_max(found->world_size, 1) != self->ranks.world;
    if (found->fingerprint == self->fingerprint || is_same_but(self, found, other_ranks, borrows))
        return 0;
    if (setup_is_imported(found))
        return setupi_check_import(found, self->identity, run_dir);
    name_tensor(self, found, run_dir, tensors, sizeof tensors);
    setupi_list_differences(found->identity, self->identity, tensors, differences,
                            sizeof differences);
    return err_set(ERR_INPUT,
                   "the run in %s was made with other settings: %s; go on with its own, or begin "
                   "%s",
                   run_dir, differences,
                   borrows ? "from an export of that run (model.hf)" : "in another run.dir");
}

/* The model's stages as the plan takes them: `saved_bytes` is what may be kept. An uncut head has
 * its own as scratch, in the workspace. With a model for calls of one token: the larger of both. */
static int make_stages(struct setup *self)
{
    const model *net = self->net;
    self->stages = mem_alloc(net->stage_count, sizeof *self->stages, "plan stages");
    if (!self->stages)
        return -ENOMEM;
    for (uint32_t i = 0; i < net->stage_count; i++) {
        struct stage *made = &self->stages[i];
        *made = net->stages[i];
        if (self->single)
            made->saved_bytes = size_max(made->saved_bytes, self->single->stages[i].saved_bytes);
        if (!made->is_cut && made->kind != STAGE_BLOCK)
            made->saved_bytes = made->selective_bytes = 0;
        if (made->is_cut)
            made->selective_bytes = made->saved_bytes;
    }
    return 0;
}

/* Chooses the units whose params stay gathered at stage 3: in order, small units, as long as they
 * are within the model's limit. */
static int choose_gathered(struct setup *self)
{
    const struct job *asked = self->job;
    uint64_t left = asked->model_persistence_threshold;
    self->stays_gathered = mem_alloc(self->net->unit_count, 1, "persistent units"); /* zeroed */
    if (!self->stays_gathered)
        return -ENOMEM;
    for (uint32_t u = 0; u < self->net->unit_count; u++) {
        uint64_t elems = self->net->units[u].elems;
        if (elems >= asked->persistence_threshold || elems > left)
            continue;
        self->stays_gathered[u] = 1;
        left -= elems;
    }
    return 0;
}

/* Fills those inputs of the plan that concern ranks. */
static int make_rank_inputs(struct setup *self)
{
    const struct job *asked = self->job;
    plan_job *plan = &self->plan;
    TRY(choose_gathered(self));
    plan->world = self->ranks.world;
    plan->zero_stage = asked->zero_stage;
    plan->stays_gathered = self->stays_gathered;
    TRY(setupi_find_owned(self));
    plan->wire_bytes = (uint32_t)dtype_bytes(asked->comm.wire);
    bool is_nccl = self->collectives == COMM_NCCL;
    plan->reduce_scratch_bytes = is_nccl && plan->wire_bytes < 4 ? plan->wire_bytes : 0;
    uint64_t piece_elems = COMM_SCRATCH_BYTES / plan->wire_bytes / plan->world;
    plan->reduce_piece_elems = size_max(piece_elems / SHARD_ELEMS_STEP, 1) * SHARD_ELEMS_STEP;
    plan->live_elems_max = asked->max_live_parameters;
    plan->ahead_elems_max = asked->prefetch_bucket_size;
    plan->limits_reuse = asked->limits_reuse;
    plan->reuse_elems_max = asked->max_reuse_distance;
    return 0;
}

/* Muon needs no second moment for units that hold only matrices of blocks. */
static int find_unit_streams(struct setup *self)
{
    const model *net = self->net;
    if (self->job->optimizer.type != JOB_MUON)
        return 0;
    self->unit_streams = mem_alloc(net->unit_count, sizeof *self->unit_streams, "plan units");
    if (!self->unit_streams)
        return -ENOMEM;
    for (uint32_t u = 0; u < net->unit_count; u++)
        self->unit_streams[u] = setup_streams_of(self->job, net, u);
    self->plan.unit_streams = self->unit_streams;
    return 0;
}

/* A pass's expanded params lie at the end of the workspace, so that the plan can tell them from its
 * temp. */
static uint64_t temp_and_expanded(const struct pass *pass)
{
    if (pass->expanded_bytes == 0)
        return pass->temp_bytes;
    return size_round_up(pass->temp_bytes, MODEL_REST_ALIGN_BYTES) + pass->expanded_bytes;
}

/* The largest `saved` and `temp` that the passes of a model need in the workspace. */
static void size_workspace(const model *net, bool only_eval, uint64_t *saved, uint64_t *temp)
{
    int phase_end = only_eval ? PHASE_FORWARD + 1 : PHASE_COUNT;
    for (uint32_t i = 0; i < net->stage_count; i++) {
        const struct stage *from = &net->stages[i];
        if (!from->is_cut) /* `saved` of a cut stage is a buffer of its own */
            *saved = size_max(*saved, from->saved_bytes);
        for (int phase = 0; phase < phase_end; phase++)
            for (uint32_t p = 0; p < from->pass_count[phase]; p++)
                *temp = size_max(*temp, temp_and_expanded(&from->passes[phase][p]));
    }
}

/* Bytes of the addresses of a unit's gradients, if the program of a module lends these and updates
 * can read their dtype; else 0. */
static uint64_t lent_bytes(const struct setup *self)
{
    const model *net = self->net;
    enum dtype closed = self->job->grad_dtype;
    uint64_t most = 0;
    if (!net->module || !net->module->lends_grads || (closed != DTYPE_FP32 && closed != net->type))
        return 0;
    for (uint32_t u = 0; u < net->unit_count; u++)
        most = size_max(most, net->units[u].tensor_count);
    return most * sizeof(void *);
}

static int make_plan_inputs(struct setup *self, const struct setup_options *options)
{
    if (self->job->accumulation >= UINT32_MAX)
        return err_set(ERR_CONFIG,
                       "gradient_accumulation_steps is %llu: a step may have fewer than 2^32 "
                       "micro-batches",
                       (unsigned long long)self->job->accumulation);
    const model *net = self->net;
    plan_job *plan = &self->plan;
    self->unit_elems = mem_alloc(net->unit_count, sizeof *self->unit_elems, "plan units");
    self->is_frozen = mem_alloc(net->unit_count, 1, "plan units");
    if (!self->unit_elems || !self->is_frozen)
        return -ENOMEM;
    TRY(make_stages(self));
    uint64_t saved = 0, temp = 0;
    size_workspace(net, options->only_eval, &saved, &temp);
    if (self->single)
        size_workspace(self->single, options->only_eval, &saved, &temp);
    for (uint32_t u = 0; u < net->unit_count; u++) {
        self->unit_elems[u] = net->units[u].rest_elems;
        self->is_frozen[u] = net->units[u].is_frozen && !options->params_alone;
    }
    self->workspace_temp_offset = size_round_up(saved, 256);
    uint64_t step_tokens = self->job->accumulation * net->micro_batch * net->tokens;
    uint64_t counters = model_has_dropout(&net->spec) ? 2 * self->job->accumulation : 0;
    *plan = (plan_job){
        .unit_count = net->unit_count,
        .stage_count = net->stage_count,
        .unit_elems = self->unit_elems,
        .stages = self->stages,
        .is_frozen = self->is_frozen,
        .micro_batch_count = (uint32_t)self->job->accumulation,
        .boundary_bytes = net->boundary_bytes,
        .workspace_bytes =
            size_round_up(self->workspace_temp_offset + temp, MODEL_REST_ALIGN_BYTES),
        .constants_bytes = net->constants_bytes,
        .cache_bytes = net->cache_bytes,
        /* and targets, begins of documents, counters of dropout */
        .tokens_bytes = (3 * step_tokens + counters) * sizeof(int32_t),
        .losses_bytes = step_tokens * sizeof(float),
        .totals_bytes = model_totals_bytes(net),
        .param_bytes = (uint32_t)dtype_bytes(net->type),
        .grad_bytes = (uint32_t)dtype_bytes(self->job->grad_dtype),
        .lent_bytes = lent_bytes(self),
        .experts = self->job->schedule.experts,
        .call_tokens = self->single ? 1 : net->micro_batch * net->tokens,
        .in_order = net->module != NULL,
        .order =
            self->job->schedule.order == ORDER_BATCH_MAJOR ? ORDER_BATCH_MAJOR : ORDER_LAYER_MAJOR,
        .state_streams = setupi_state_streams(self->job, options->params_alone),
        .tile_elems = options->found && options->as_it_lies ? options->found->tile_elems
                                                            : self->job->schedule.tile_elems,
        .tile_elems_max = self->job->sub_group_size,
        .lookahead_ops = self->job->schedule.lookahead,
        .needs_save_places = !options->is_trial && !options->params_alone,
        .commits = !options->is_trial && !options->only_eval && self->job->run.commit_every > 0,
        .commit_every = self->job->run.commit_every,
        .only_eval = options->only_eval,
        .norm_part_bytes = options->test ? options->test->norm_part_bytes : 0,
    };
    if (plan->tile_elems)
        plan->tile_elems = size_round_up(plan->tile_elems, TILE_ELEMS_STEP);
    TRY(find_unit_streams(self));
    TRY(make_rank_inputs(self));
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++) {
        self->homes[kind] = mem_alloc(net->unit_count, 1, "plan homes");
        if (!self->homes[kind])
            return -ENOMEM;
        plan->homes[kind] = self->homes[kind];
    }
    return 0;
}

static int make_budgets(struct setup *self)
{
    uint64_t available = 0;
    if (self->job->tiers.device_budget == 0 || self->job->tiers.host_budget == 0)
        TRY(arena_available_memory(&available));
    available /= self->ranks.local_world; /* per rank, as budgets are */
    /* Defaults: half of the available host memory, and a quarter for the arena that stands for a
     * device; the rest is left to the machine. On a GPU, all its memory except what its libraries
     * need. */
    uint64_t *budget = self->plan.budget_bytes;
    budget[TIER_DEVICE] =
        self->job->tiers.device_budget ? self->job->tiers.device_budget : available / 4;
    if (self->gpu &&
        /* the free memory is known when all ranks that share a GPU have loaded the libraries */
        self->ranks.comm)
        TRY(ranks_barrier(&self->ranks, "libraries of the GPUs"));
    if (self->gpu)
        TRY(setupi_gpu_budget(self, self->job->tiers.device_budget, &budget[TIER_DEVICE]));
    budget[TIER_HOST] = self->job->tiers.host_budget ? self->job->tiers.host_budget : available / 2;
    for (int a = TIER_DEVICE; a <= TIER_HOST; a++)
        budget[a] = budget[a] / TILE_BLOCK_BYTES * TILE_BLOCK_BYTES;
    return 0;
}

/* Ranks that exist plan at the same time, and share the cores of their host. */
static uint32_t planning_threads(const struct ranks *ranks)
{
    core_set cores;
    uint32_t count = thread_allowed_cores(&cores) < 0 ? 1 : core_set_count(&cores);
    return ranks->comm ? count / ranks->local_world : count;
}

static int setup_fill(struct setup *self, const struct setup_options *options)
{
    if (self->is_described)
        TRY(setupi_described_ranks(self));
    TRY(make_model(self, options));
    TRY(make_plan_inputs(self, options));
    if (!options->only_eval)
        TRY(setupi_find_matrices(self));
    if (self->is_described) {
        TRY(setupi_described_budgets(self));
    } else {
        TRY(setupi_make_drives(self, options));
        TRY(make_budgets(self));
    }
    self->plan.watch = options->plan_watch;
    self->plan.threads = planning_threads(&self->ranks);
    setup_machine_figures(self, &self->plan.machine);
    const plan_machine *figures = options->figures ? options->figures
                                  : options->test  ? options->test->pace
                                                   : NULL;
    if (figures)
        self->plan.machine = *figures;
    else
        setupi_price_passes(self, self->stated);
    setupi_watch_inputs(self, options);
    TRY(setupi_make_identity(self));
    TRY(setupi_share_inputs(self));
    if (options->found && !options->only_eval)
        TRY(check_identity(self, options->found,
                           options->found_in ? options->found_in : self->job->run.dir,
                           options->found_in != NULL));
    TRY(setupi_place_and_compile(self));
    return setupi_compare_programs(self);
}

/* Fills in the ranks of a plan that is not run. */
static void imagine_ranks(struct setup *self, uint32_t local_world)
{
    uint32_t world = size_max(self->job->world, 1);
    self->ranks = (struct ranks){
        .world = world, .local_world = local_world ? local_world : world, .shares_cores = true};
    ranks_name_host(&self->ranks);
}

int setup_create(const struct job *asked, const struct setup_options *options, struct setup **out)
{
    *out = NULL;
    struct setup *self = mem_alloc(1, sizeof *self, "setup");
    if (!self)
        return -ENOMEM;
    self->job = asked;
    self->stated = options->machine;
    self->is_described = options->is_described;
    self->only_fits = options->only_fits;
    self->only_homes = options->only_homes;
    if (options->ranks)
        self->ranks = *options->ranks;
    else
        imagine_ranks(self, options->local_world);
    int rc = setup_fill(self, options);
    if (rc < 0) {
        setup_destroy(self);
        return rc;
    }
    *out = self;
    return 0;
}

void setup_destroy(struct setup *self)
{
    if (!self)
        return;
    plan_set_fini(&self->set);
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        mem_free(self->homes[kind]);
    mem_free(self->stages);
    mem_free(self->unit_elems);
    mem_free(self->is_frozen);
    mem_free(self->matrix_flops);
    mem_free(self->unit_streams);
    mem_free(self->stays_gathered);
    mem_free(self->is_owned);
    model_destroy(self->single);
    model_destroy(self->net);
    if (self->context)
        self->ops->context_destroy(self->context);
    device_close(self->gpu);
    mem_free(self);
}
