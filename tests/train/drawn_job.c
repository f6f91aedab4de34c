/* See drawn_job.h. */
#include <assert.h>
#include <unistd.h>

#include "base/rng.h"
#include "base/tile.h"
#include "model/model.h"
#include "setup/setup.h"
#include "tests/train/drawn_job.h"
#include "tests/unit.h"

/* A row: settings that belong together, so that a job has all of them or none. */
enum { ROW_SETS = 3, ROWS_MAX = 32, KINDS = 5 };
typedef const char *const row[ROW_SETS];

#define FACTORS_6 "1,1.1,1.2,1.3,1.5,2"

/* A job has one row from each of the next lists. An empty row sets nothing. */
static row heads[] = {{NULL},
                      {"model.num_kv_heads=2"},
                      {"model.num_kv_heads=1"},
                      {"model.num_kv_heads=2", "model.head_dim=24"}};
static row ropes[] = {
    {NULL},
    {NULL},
    {"model.partial_rotary_factor=0.5"},
    {"model.nope_interval=2"},
    {"model.rope_scaling={\"type\":\"linear\",\"factor\":2}"},
    {"model.rope_scaling={\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
     "\"high_freq_factor\":4,\"original_max_position_embeddings\":16}"},
    {"model.rope_scaling={\"type\":\"dynamic\",\"factor\":2,"
     "\"original_max_position_embeddings\":16}"},
    {"model.rope_scaling={\"type\":\"yarn\",\"factor\":4,"
     "\"original_max_position_embeddings\":16}"},
    {"model.head_dim=24",
     "model.rope_scaling={\"type\":\"longrope\",\"factor\":4,"
     "\"original_max_position_embeddings\":16,\"short_factor\":[" FACTORS_6 "," FACTORS_6 "],"
     "\"long_factor\":[" FACTORS_6 "," FACTORS_6 "]}"},
    {"model.head_dim=24", "model.partial_rotary_factor=0.5",
     "model.rope_scaling={\"type\":\"longrope\",\"factor\":4,"
     "\"original_max_position_embeddings\":64,\"short_factor\":[" FACTORS_6
     "],\"long_factor\":[" FACTORS_6 "]}"},
};
static row windows[] = {
    {NULL},
    {NULL},
    {"model.window=1"},
    {"model.window=7", "model.window_pattern=wf"},
    {"model.window=12", "model.window_pattern=fww"},
    {"model.window=5", "model.window_pattern=wwf", "model.window_rope_theta=500"}};
static row documents[] = {
    {"data.documents=joined"},
    {"data.documents=separate"},
    {"data.documents=separate", "data.shuffle=documents"},
};
/* Adapters, and norms that learn apart from their block, need whole units; Muon needs whole
 * matrices. */
#define WHOLE "model.max_part_bytes=0"
static row learning[] = {
    {NULL},
    {NULL},
    {"train.only=[\"blocks.0\"]"},
    {"train.only=[\"blocks.0\",\"embed\"]"},
    {"train.only=[\"head\",\"norms\"]", WHOLE},
    {"train.lora={\"rank\":4,\"alpha\":8}", WHOLE},
    {"train.lora={\"rank\":4,\"alpha\":8}", "state.params=nf4_double", WHOLE},
    {"train.only=[\"blocks.0\"]", "state.params=int8_rows"},
    {"train.lora={\"rank\":3,\"alpha\":8,\"dropout\":0.1}", "train.only=[\"norms\"]", WHOLE},
};
static row optimizers[] = {
    {"optimizer={\"type\":\"AdamW\",\"params\":{\"lr\":1e-3,\"weight_decay\":0.1}}"},
    {"optimizer={\"type\":\"AdamW\",\"params\":{\"lr\":1e-3,\"weight_decay\":0.1}}",
     "state.moments=bf16"},
    {"optimizer={\"type\":\"adamw_8bit\",\"params\":{\"lr\":1e-3}}"},
    {"optimizer={\"type\":\"Adam\",\"params\":{\"lr\":1e-3,\"adam_w_mode\":false,"
     "\"weight_decay\":0.01}}"},
    {"optimizer={\"type\":\"Lion\",\"params\":{\"lr\":1e-4,\"weight_decay\":0.1}}"},
    {"optimizer={\"type\":\"Adagrad\",\"params\":{\"lr\":1e-2}}"},
    {"optimizer={\"type\":\"Muon\",\"params\":{\"lr\":3e-3,\"momentum\":0.9,"
     "\"weight_decay\":0.1}}",
     WHOLE},
};
/* A job has about a third of these. */
static row options[] = {
    {"model.qkv_bias=true"},
    {"model.out_bias=true"},
    {"model.mlp_bias=true"},
    {"model.qk_norm=true"},
    {"model.parallel_residual=true"},
    {"model.attention_sinks=true"},
    {"model.q_latent_size=40"},
    {"model.value_head_dim=20"},
    {"model.rope_halves=true"},
    {"model.tie_embeddings=true"},
    {"model.tie_embeddings=false"},
    {"model.residual_multiplier=0.7"},
    {"model.embedding_multiplier=3.5"},
    {"model.attention_multiplier=0.11"},
    {"model.logits_scaling=1.7"},
    {"model.attention_soft_cap=5"},
    {"model.logits_soft_cap=9"},
    {"model.activation=gelu"},
    {"model.activation=gelu_tanh"},
    {"model.activation=silu"},
    {"model.activation=relu"},
    {"model.position_count=50"},
    {"model.type_count=3"},
    {"model.ffn_size=200"},
    {"train.dropout=0.1"},
    {"data_types.grad_accum_dtype=fp32"},
};

struct list {
    row *rows;
    size_t count;
    unsigned taken[ROWS_MAX]; /* each row by so many jobs */
};
#define LIST(name)                                                                                 \
    {                                                                                              \
        .rows = name, .count = sizeof name / sizeof name[0]                                        \
    }
static struct list lists[] = {LIST(heads),    LIST(ropes),      LIST(windows), LIST(documents),
                              LIST(learning), LIST(optimizers), LIST(options)};
enum { LISTS = sizeof lists / sizeof lists[0], OPTIONS = LISTS - 1 };
static_assert(sizeof options / sizeof options[0] <= ROWS_MAX, "the longest list");

uint64_t drawn_job_draw(drawn_job *self, uint64_t bound)
{
    return rng_below(self->seed, self->stream, self->counter++, bound);
}

/* ---- what decides the bits ---- */

/* True if the job can be read, and its model made. */
static bool is_accepted(const drawn_job *self)
{
    char name[32];
    job *asked;
    model *net = NULL;
    snprintf(name, sizeof name, "drawn-%d", (int)getpid()); /* each of several ranks draws */
    int rc = fixture_read_job(name, &self->shape, &self->sets, 1, &asked);
    if (rc == 0) {
        model_spec spec;
        rc = setup_model_spec(asked, &spec);
        if (rc == 0)
            rc = model_create(&spec, asked->type, asked->micro_batch, &net);
        model_destroy(net);
        job_destroy(asked);
    }
    if (rc != 0 && rc != ERR_CONFIG)
        fail_msg("%s: %s", err_name(rc), err_text());
    return rc == 0;
}

/* Adds what a mixture of experts needs. Other families have none of it. */
static void add_experts(drawn_job *self)
{
    fixture_sets *sets = &self->sets;
    uint64_t experts = 2 + drawn_job_draw(self, 6);
    if (is_accepted(self))
        return;
    fixture_set(sets, "model.num_experts=%u", (unsigned)experts);
    fixture_set(sets, "model.num_experts_per_tok=%u", 1 + (unsigned)drawn_job_draw(self, experts));
    fixture_set(sets, "model.expert_ffn_size=%u", 8 * (1 + (unsigned)drawn_job_draw(self, 8)));
    fixture_set(sets, "model.experts_per_unit=%u", 1 + (unsigned)drawn_job_draw(self, experts));
    fixture_set(sets, "model.norm_topk_prob=%s", drawn_job_draw(self, 2) ? "true" : "false");
    if (drawn_job_draw(self, 2))
        fixture_set(sets, "model.router_aux_loss_coef=0.1");
    if (drawn_job_draw(self, 2))
        fixture_set(sets, "model.router_z_loss_coef=0.01");
    if (!is_accepted(self))
        fixture_set(sets, "model.shared_ffn_size=%u", 8 * (1 + (unsigned)drawn_job_draw(self, 8)));
    assert_true(is_accepted(self));
    const char *const more[] = {"scoring_func=sigmoid", "first_k_dense_replace=1", "n_group=2"};
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++) {
        uint32_t before = sets->count;
        if (drawn_job_draw(self, 2) == 0)
            continue;
        fixture_set(sets, "model.%s", more[i]);
        if (i == 2)
            fixture_set(sets, "model.topk_group=2");
        if (!is_accepted(self)) /* another family, or too few experts for groups */
            sets->count = before;
    }
}

static void take(drawn_job *self, struct list *from, size_t idx)
{
    uint32_t before = self->sets.count;
    for (int i = 0; i < ROW_SETS && from->rows[idx][i]; i++)
        fixture_set(&self->sets, "%s", from->rows[idx][i]);
    if (self->sets.count > before && !is_accepted(self))
        self->sets.count = before;
    else
        from->taken[idx]++;
}

/* Draws sizes, the dtype, and the settings that no list holds. */
static void begin(drawn_job *self)
{
    fixture_sets *sets = &self->sets;
    const char *rows = fixture_path(NULL, "rows.npy");
    uint64_t dtype = drawn_job_draw(self, 3);
    self->shape = (fixture_model){
        .family = model_family_name((enum model_family)(self->seed % MODEL_FAMILY_COUNT)),
        .bf16 = dtype == 1,
        .layers = 1 + (uint32_t)drawn_job_draw(self, 4),
        .hidden = 64 + 8 * (uint32_t)drawn_job_draw(self, 13)};
    fixture_set(sets, "run.steps=%d", DRAWN_STEPS);
    fixture_set(sets, "data.train=[\"%s\"]", rows);
    fixture_set(sets, "data.valid=[\"%s\"]", rows);
    fixture_set(sets, "model.vocab_size=%u", 256 + (unsigned)drawn_job_draw(self, 400));
    fixture_set(sets, "model.seq_length=%u", 11 + (unsigned)drawn_job_draw(self, 22));
    fixture_set(sets, "train_micro_batch_size_per_gpu=%u", 1 + (unsigned)drawn_job_draw(self, 3));
    fixture_set(sets, "gradient_accumulation_steps=%u", 1 + (unsigned)drawn_job_draw(self, 4));
    fixture_set(sets, "scheduler={\"type\":\"WarmupLR\",\"params\":{\"warmup_num_steps\":2}}");
    if (strcmp(self->shape.family, "deepseek") == 0) {
        static const char *const sizes[] = {"num_kv_heads=4", "head_dim=24", "rope_head_dim=8",
                                            "kv_latent_size=28"};
        for (int i = 0; i < 4; i++)
            fixture_set(sets, "model.%s", sizes[i]);
    }
    add_experts(self);
    if (dtype == 2)
        fixture_set(sets, "fp16={\"enabled\":true,\"initial_scale_power\":%u,\"hysteresis\":1}",
                    8 + (unsigned)drawn_job_draw(self, 14));
    if (drawn_job_draw(self, 2))
        fixture_set(sets, "model.max_part_bytes=%u",
                    (unsigned)((dtype == 0 ? 4 : 2) * 1024 * (8 + drawn_job_draw(self, 40))));
    if (!is_accepted(self)) /* an expert does not fit */
        self->sets.count--;
    self->is_exact = dtype != 2 && drawn_job_draw(self, 2);
    if (self->is_exact)
        fixture_set(sets, "gradient_clipping=0");
    if (self->is_exact && dtype == 1)
        fixture_set(sets, "bf16.check_grad_overflow=false");
}

void drawn_job_make(drawn_job *self, uint64_t stream, uint64_t seed)
{
    memset(self, 0, sizeof *self);
    self->stream = stream;
    self->seed = seed;
    begin(self);
    for (size_t i = 0; i < OPTIONS; i++)
        take(self, &lists[i], drawn_job_draw(self, lists[i].count));
    for (size_t i = 0; i < lists[OPTIONS].count; i++)
        if (drawn_job_draw(self, 3) == 0)
            take(self, &lists[OPTIONS], i);
    fixture_set(&self->sets, "state.master=split");
    self->may_split = is_accepted(self);
    self->sets.count--;
}

/* ---- what changes no bit ---- */

void drawn_job_place(drawn_job *self, fixture_sets *sets, uint64_t unit_count)
{
    static const char *const kinds[KINDS] = {"params", "grads", "optimizer", "activations",
                                             "inner_activations"};
    static const char *const tiers[] = {"device",    "host",           "nvme",          "recompute",
                                        "selective", "selective_host", "selective_nvme"};
    char rules[2000];
    size_t used = (size_t)snprintf(rules, sizeof rules, "[");
    self->is_placed = drawn_job_draw(self, 2);
    for (int k = 0; k < KINDS; k++) {
        bool is_open = !self->is_placed && drawn_job_draw(self, 2);
        const char *tier = tiers[drawn_job_draw(self, k == KINDS - 1 ? 7 : 3)];
        fixture_set(sets, "tiers.place.%s=%s", kinds[k], is_open ? "auto" : tier);
    }
    uint64_t count = drawn_job_draw(self, 10);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t k = drawn_job_draw(self, KINDS), first = drawn_job_draw(self, unit_count);
        used += (size_t)snprintf(rules + used, sizeof rules - used,
                                 "%s{\"units\":\"%u-%u\",\"kind\":\"%s\",\"tier\":\"%s\"}",
                                 i ? "," : "", (unsigned)first,
                                 (unsigned)(first + drawn_job_draw(self, unit_count - first)),
                                 kinds[k], tiers[drawn_job_draw(self, k == KINDS - 1 ? 7 : 3)]);
        assert_true(used < sizeof rules - 2);
    }
    fixture_set(sets, "tiers.place.rules=%s]", rules);
}

void drawn_job_schedule(drawn_job *self, fixture_sets *sets)
{
    static const char *const updates[] = {"after_backward", "in_next_forward", "in_backward"};
    fixture_set(sets, "schedule.update=%s", updates[drawn_job_draw(self, self->is_exact ? 3 : 2)]);
    fixture_set(sets, "schedule.tile_elems=%u",
                drawn_job_draw(self, 2) ? 0 : (unsigned)TILE_ELEMS_STEP << drawn_job_draw(self, 3));
    fixture_set(sets, "debug.schedule.lookahead=%u",
                drawn_job_draw(self, 2) ? 0 : 1 + (unsigned)drawn_job_draw(self, 40));
    fixture_set(sets, "io.backend=%s", drawn_job_draw(self, 2) ? "uring" : "pool");
    fixture_set(sets, "run.commit_every=%u", (unsigned)drawn_job_draw(self, 4));
    if (drawn_job_draw(self, 6) == 0)
        fixture_set(sets, "run.paranoid=true");
    if (self->may_split && drawn_job_draw(self, 2))
        fixture_set(sets, "state.master=split");
    static const char *const fetches[] = {"auto", "all", "hit"};
    fixture_set(sets, "schedule.experts=%s", fetches[drawn_job_draw(self, 3)]);
}

void drawn_job_report(void)
{
    for (size_t i = 0; i < LISTS; i++)
        for (size_t k = 0; k < lists[i].count; k++) {
            const char *const *sets = lists[i].rows[k];
            if (sets[0] == NULL)
                continue;
            printf("%4u jobs with", lists[i].taken[k]);
            for (int s = 0; s < ROW_SETS && sets[s]; s++)
                printf(" %s", sets[s]);
            printf("\n");
            assert_true(lists[i].taken[k] > 0);
        }
}
