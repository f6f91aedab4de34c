/* Makes a setup from a job: the model, cores, budgets, and the order of all steps. See setup.h. */
#include <errno.h>

#include "base/mem.h"
#include "base/size.h"
#include "base/thread.h"
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

/* Ranks that exist plan at the same time. */
static uint32_t planning_threads(const struct setup *self)
{
    uint64_t count = thread_allowed_count();
    if (self->ranks.comm && self->ranks.shares_cores)
        count /= self->ranks.local_world;
    if (self->job->device.threads > 0)
        count = size_min(count, self->job->device.threads);
    return (uint32_t)count;
}

static int setup_fill(struct setup *self, const struct setup_options *options)
{
    if (self->is_described)
        TRY(setupi_described_ranks(self));
    TRY(make_model(self, options));
    TRY(setupi_make_plan_inputs(self, options));
    if (!options->only_eval)
        TRY(setupi_find_matrices(self));
    if (self->is_described) {
        TRY(setupi_described_budgets(self));
    } else {
        TRY(setupi_make_drives(self, options));
        TRY(make_budgets(self));
    }
    self->plan.watch = options->plan_watch;
    self->plan.threads = planning_threads(self);
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
        TRY(setupi_check_identity(self, options->found,
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
