/* See toy_module.h. */
#include <math.h>
#include <unistd.h>

#include "tests/api/toy_module.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"

toy_job toy_new_job(enum dtype type)
{
    static char dir[FIXTURE_PATH_BYTES + 32], drive[FIXTURE_PATH_BYTES + 32];
    static int count;
    snprintf(dir, sizeof dir, "%s/run%d", fixture_dir, count);
    snprintf(drive, sizeof drive, "%s/drive%d", fixture_dir, count++);
    return (toy_job){.dir = dir, .drive = drive, .type = type};
}

void toy_assert_wrong(int status, const char *word)
{
    assert_int_equal(status, SLUICE_WRONG);
    if (!strstr(sluice_error(), word))
        fail_msg("\"%s\" has no \"%s\"", sluice_error(), word);
}

enum { HEAD = TOY_BLOCKS + 1, TEXT_BYTES = 16384 };

static uint64_t align(uint64_t elems, uint64_t to)
{
    return (elems + to - 1) / to * to;
}

static uint64_t tensor_elems(uint32_t unit, uint32_t idx)
{
    static const uint64_t root[] = {TOY_VOCAB * TOY_WIDTH, TOY_WIDTH};
    static const uint64_t block[] = {TOY_INNER * TOY_WIDTH, TOY_INNER, TOY_WIDTH * TOY_INNER};
    return unit == 0 ? root[idx] : block[idx];
}

static uint32_t tensor_count(uint32_t unit)
{
    return unit == 0 ? 2 : 3;
}

uint64_t toy_offset(uint32_t unit, uint32_t idx)
{
    uint64_t end = 0;
    for (uint32_t i = 0; i < idx; i++)
        end = align(end + tensor_elems(unit, i), 128);
    return end;
}

uint64_t toy_elems(uint32_t unit)
{
    uint32_t last = tensor_count(unit) - 1;
    return align(toy_offset(unit, last) + tensor_elems(unit, last), 4096);
}

static uint32_t mix(uint64_t a, uint64_t b)
{
    uint64_t x = (a + 1) * UINT64_C(0x9e3779b97f4a7c15) + b * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 31) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)(x >> 33);
}

int toy_first(void *user, uint32_t unit, uint64_t begin, uint64_t count, float *values)
{
    memset(values, 0, count * sizeof *values);
    for (uint32_t i = 0; i < tensor_count(unit); i++)
        for (uint64_t k = 0; k < tensor_elems(unit, i); k++) {
            uint64_t at = toy_offset(unit, i) + k;
            bool is_one = unit == 0 && i == 1;
            if (at >= begin && at < begin + count)
                values[at - begin] =
                    is_one ? 1.0f : (float)(mix(unit * 8 + i, k) % 2001) * 1e-4f - 0.1f;
        }
    return 0;
}

/* ---- the job ---- */

static void add(char *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(char *text, const char *format, ...)
{
    va_list args;
    size_t used = strlen(text);
    va_start(args, format);
    int length = vsnprintf(text + used, TEXT_BYTES - used, format, args);
    va_end(args);
    assert_true(length >= 0 && used + (size_t)length < TEXT_BYTES);
}

static void add_module(char *text, const toy_job *asked)
{
    add(text,
        "\"model\": {\"module\": {\"name\": \"toy\", \"lends_grads\": %s, \"units\": [{\"name\": "
        "\"root\", "
        "\"tensors\": [{\"name\": \"embed\", \"shape\": [%d, %d]}, {\"name\": \"gain\", "
        "\"shape\": [%d]}]}",
        asked->lends ? "true" : "false", TOY_VOCAB, TOY_WIDTH, TOY_WIDTH);
    for (int b = 0; b < TOY_BLOCKS; b++)
        add(text,
            ", {\"name\": \"block.%d\", \"group\": 1, \"frozen\": %s, \"matrices\": true, "
            "\"tensors\": [{\"name\": \"%d.up\", \"shape\": [%d, %d]}, {\"name\": \"%d.bias\", "
            "\"shape\": [%d]}, {\"name\": \"%d.down\", \"shape\": [%d, %d]}]}",
            b, asked->freezes && b == 0 ? "true" : "false", b, TOY_INNER, TOY_WIDTH, b, TOY_INNER,
            b, TOY_WIDTH, TOY_INNER);
    add(text, "], \"stages\": [");
    for (int s = 0; s <= HEAD; s++)
        add(text,
            "%s{\"name\": \"stage.%d\", \"units\": [%d%s], \"forward\": {\"seconds\": 1e-4}, "
            "\"backward\": {\"seconds\": 2e-4%s}}",
            s ? ", " : "", s, s == HEAD ? 0 : s, asked->shares && s > 0 && s < HEAD ? ", 0" : "",
            s == 0 ? ", \"reads\": [false]" : "");
    add(text, "]}}");
}

const char *toy_text(const toy_job *asked)
{
    static char text[TEXT_BYTES];
    strcpy(text, "{");
    add_module(text, asked);
    add(text, ", \"run\": {\"dir\": \"%s\", \"steps\": %d, \"commit_every\": 2}", asked->dir,
        TOY_STEPS_MAX);
    if (asked->drive)
        add(text,
            ", \"tiers\": {\"device\": {\"budget\": \"16MiB\"}, \"host\": {\"budget\": "
            "\"16MiB\"}, \"nvme\": [{\"path\": \"%s\", \"budget\": \"64MiB\"}]}",
            asked->drive);
    if (asked->type != DTYPE_FP32)
        add(text, ", \"%s\": {\"enabled\": true}", dtype_name(asked->type));
    add(text, ", \"gradient_accumulation_steps\": %d, \"optimizer\": %s",
        asked->accumulation ? asked->accumulation : 1,
        asked->optimizer ? asked->optimizer
                         : "{\"type\": \"AdamW\", \"params\": {\"lr\": 0.01, "
                           "\"weight_decay\": 0.1}}");
    add(text, "%s}", asked->more ? asked->more : "");
    return text;
}

static void assert_done(int status)
{
    if (status != SLUICE_DONE)
        fail_msg("%d: %s", status, sluice_error());
}

int toy_try_open(toy *self, const toy_job *asked, const struct sluice_options *options)
{
    memset(self, 0, sizeof *self);
    self->type = asked->type;
    self->accumulation = asked->accumulation ? asked->accumulation : 1;
    int status = sluice_open("toy", options, &self->run);
    if (status != SLUICE_DONE)
        return status;
    struct sluice_info info;
    sluice_get_info(self->run, &info);
    self->rank = info.rank;
    self->world = info.world;
    self->steps_made = info.step;
    for (uint32_t u = 0; u < TOY_UNITS; u++)
        for (uint32_t i = 0; i < tensor_count(u); i++) {
            uint64_t offset, elems;
            assert_done(sluice_module_locate(self->run, u, i, &offset, &elems));
            assert_int_equal(offset, toy_offset(u, i));
            assert_int_equal(elems, tensor_elems(u, i));
        }
    return SLUICE_DONE;
}

void toy_open(toy *self, const toy_job *asked, const char *const *set, size_t set_count)
{
    const struct sluice_options options = {
        .set = set, .set_count = set_count, .job_text = toy_text(asked), .first = toy_first};
    assert_done(toy_try_open(self, asked, &options));
}

void toy_close(toy *self)
{
    assert_done(sluice_close(self->run));
    self->run = NULL;
}

/* ---- passes ---- */

static uint32_t token_of(const toy *self, uint32_t micro_batch, uint32_t row)
{
    return mix(self->steps_made * 64 + micro_batch * 16 + self->rank, row) % TOY_VOCAB;
}

static void embed(toy *self, const float *root, float *root_grad, uint32_t micro_batch)
{
    for (uint32_t r = 0; r < TOY_ROWS; r++) {
        uint64_t at = (uint64_t)token_of(self, micro_batch, r) * TOY_WIDTH;
        for (uint32_t c = 0; c < TOY_WIDTH; c++) {
            if (root_grad)
                root_grad[at + c] += self->x_grad[r][c];
            else
                self->x[0][r][c] = root[at + c];
        }
    }
}

static void block(toy *self, uint32_t idx, const float *w, float *grad)
{
    const float *up = w, *bias = w + toy_offset(1, 1), *down = w + toy_offset(1, 2);
    for (uint32_t r = 0; r < TOY_ROWS; r++) {
        const float *x = self->x[idx][r];
        float inner[TOY_INNER], x_grad[TOY_WIDTH];
        for (uint32_t f = 0; f < TOY_INNER; f++) {
            float sum = bias[f];
            for (uint32_t c = 0; c < TOY_WIDTH; c++)
                sum += up[f * TOY_WIDTH + c] * x[c];
            inner[f] = sum > 0 ? sum : 0;
        }
        if (!grad) {
            for (uint32_t c = 0; c < TOY_WIDTH; c++) {
                float sum = x[c];
                for (uint32_t f = 0; f < TOY_INNER; f++)
                    sum += down[c * TOY_INNER + f] * inner[f];
                self->x[idx + 1][r][c] = sum;
            }
            continue;
        }
        memcpy(x_grad, self->x_grad[r], sizeof x_grad);
        for (uint32_t f = 0; f < TOY_INNER; f++) {
            float sum = 0;
            for (uint32_t c = 0; c < TOY_WIDTH; c++) {
                sum += down[c * TOY_INNER + f] * self->x_grad[r][c];
                grad[toy_offset(1, 2) + c * TOY_INNER + f] += self->x_grad[r][c] * inner[f];
            }
            if (!(inner[f] > 0))
                continue;
            grad[toy_offset(1, 1) + f] += sum;
            for (uint32_t c = 0; c < TOY_WIDTH; c++) {
                grad[f * TOY_WIDTH + c] += sum * x[c];
                x_grad[c] += up[f * TOY_WIDTH + c] * sum;
            }
        }
        memcpy(self->x_grad[r], x_grad, sizeof x_grad);
    }
}

static double head(toy *self, const float *root, float *grad, double grad_scale,
                   uint32_t micro_batch)
{
    const float *gain = root + toy_offset(0, 1);
    double loss = 0;
    for (uint32_t r = 0; r < TOY_ROWS; r++) {
        const float *x = self->x[TOY_BLOCKS][r];
        double probabilities[TOY_VOCAB], sum = 0;
        uint32_t target = token_of(self, micro_batch, r + 100);
        for (uint32_t v = 0; v < TOY_VOCAB; v++) {
            float logit = 0;
            for (uint32_t c = 0; c < TOY_WIDTH; c++)
                logit += root[v * TOY_WIDTH + c] * (gain[c] * x[c]);
            sum += probabilities[v] = exp((double)logit);
        }
        loss -= log(probabilities[target] / sum) / TOY_ROWS;
        if (!grad)
            continue;
        memset(self->x_grad[r], 0, sizeof self->x_grad[r]);
        for (uint32_t v = 0; v < TOY_VOCAB; v++) {
            float logit_grad =
                (float)((probabilities[v] / sum - (v == target ? 1 : 0)) * grad_scale / TOY_ROWS);
            for (uint32_t c = 0; c < TOY_WIDTH; c++) {
                grad[v * TOY_WIDTH + c] += logit_grad * (gain[c] * x[c]);
                grad[toy_offset(0, 1) + c] += logit_grad * root[v * TOY_WIDTH + c] * x[c];
                self->x_grad[r][c] += logit_grad * root[v * TOY_WIDTH + c] * gain[c];
            }
        }
    }
    return loss;
}

/* A frozen block still hands its input's gradient on; nobody wants the other ones. */
static double pass(toy *self, uint32_t stage, bool is_backward, const float *params, float *grads,
                   double grad_scale, uint32_t micro_batch)
{
    static float unwanted[TOY_ELEMS_MAX];
    if (is_backward && !grads)
        grads = unwanted;
    if (stage == 0)
        embed(self, params, is_backward ? grads : NULL, micro_batch);
    else if (stage < HEAD)
        block(self, stage - 1, params, is_backward ? grads : NULL);
    else
        return head(self, params, is_backward ? grads : NULL, grad_scale, micro_batch);
    return (double)NAN;
}

static void widen(enum dtype type, const void *from, uint64_t count, float *to)
{
    const uint16_t *half = from;
    if (type == DTYPE_FP32)
        memcpy(to, from, count * sizeof *to);
    for (uint64_t i = 0; i < count && type != DTYPE_FP32; i++)
        to[i] = type == DTYPE_BF16 ? fp32_from_bf16(half[i]) : fp32_from_fp16(half[i]);
}

/* Lends the gradients, in the memory of those of the second use before, which nothing reads any
 * more. The addresses are aligned to elements only. */
static void lend(toy *self, uint32_t unit, const float *grads)
{
    enum dtype type = self->type;
    char *at = (char *)self->lent[self->lent_count++ % 2] + dtype_bytes(type);
    const void *tensors[3];
    for (uint64_t i = 0; i < toy_elems(unit); i++) {
        uint16_t half = bf16_from_fp32(grads[i]);
        memcpy(at + i * dtype_bytes(type), type == DTYPE_FP32 ? (const void *)&grads[i] : &half,
               dtype_bytes(type));
    }
    for (uint32_t i = 0; i < tensor_count(unit); i++)
        tensors[i] = at + toy_offset(unit, i) * dtype_bytes(type);
    assert_int_equal(sluice_module_lend(self->run, tensors, tensor_count(unit) + 1), SLUICE_WRONG);
    assert_done(sluice_module_lend(self->run, tensors, tensor_count(unit)));
}

/* A pass of the stage's own unit. */
static double compute_own(toy *self, const struct sluice_use *use, uint32_t unit)
{
    assert_int_equal(unit, use->stage == HEAD ? 0 : use->stage);
    assert_int_equal(use->elems[0], toy_elems(unit));
    bool is_backward = use->pass == SLUICE_BACKWARD;
    assert_int_equal(use->params[0] != NULL, !(is_backward && use->stage == 0));
    if (use->params[0])
        widen(self->type, use->params[0], use->elems[0], self->params[0]);
    if (use->params[0] && !is_backward)
        memcpy(self->seen[unit], self->params[0], use->elems[0] * sizeof(float));
    if (use->fresh[0])
        for (uint32_t i = 0; i < tensor_count(unit); i++)
            memset(use->grads[0] + toy_offset(unit, i), 0, tensor_elems(unit, i) * sizeof(float));
    if (is_backward && use->stage == HEAD) /* its forward is part of it */
        memcpy(self->seen[0], self->params[0], sizeof self->seen[0]);
    static float own[TOY_ELEMS_MAX];
    memset(own, 0, sizeof own);
    double loss = pass(self, use->stage, is_backward, self->params[0],
                       use->lends ? own : use->grads[0], use->grad_scale, use->micro_batch);
    if (use->lends)
        lend(self, unit, own);
    return loss;
}

/* A block adds a part of the root to its output. */
static void share(toy *self, uint32_t idx, const float *root, float *grad)
{
    for (uint32_t r = 0; r < TOY_ROWS; r++)
        for (uint32_t c = 0; c < TOY_WIDTH; c++) {
            if (grad)
                grad[toy_offset(0, 1) + c] += 0.01f * self->x_grad[r][c];
            else
                self->x[idx + 1][r][c] += 0.01f * root[toy_offset(0, 1) + c];
        }
}

/* Takes the second unit of a pass, the root. */
static const float *take_root(toy *self, const struct sluice_use *use)
{
    assert_int_equal(use->units[1], 0);
    assert_non_null(use->params[1]);
    assert_int_equal(use->fresh[1], 0); /* the head has begun its gradients */
    widen(self->type, use->params[1], use->elems[1], self->params[1]);
    return self->params[1];
}

double toy_compute(toy *self, const struct sluice_use *use)
{
    uint32_t unit = use->units[0];
    bool is_shared = use->unit_count == 2;
    const float *root = is_shared ? take_root(self, use) : NULL;
    if (is_shared && use->grads[1])
        share(self, use->stage - 1, root, use->grads[1]);
    double loss = compute_own(self, use, unit);
    if (is_shared && use->pass == SLUICE_FORWARD)
        share(self, use->stage - 1, root, NULL);
    return loss;
}

double toy_plain(toy *self, float params[TOY_UNITS][TOY_ELEMS_MAX],
                 float grads[TOY_UNITS][TOY_ELEMS_MAX], double grad_scale, uint32_t micro_batch,
                 bool fresh)
{
    double loss = 0;
    if (fresh)
        memset(grads, 0, sizeof(float[TOY_UNITS][TOY_ELEMS_MAX]));
    for (uint32_t s = 0; s < HEAD; s++)
        (void)pass(self, s, false, params[s], NULL, 0, micro_batch);
    for (uint32_t s = HEAD + 1; s-- > 0;) {
        uint32_t unit = s == HEAD ? 0 : s;
        double own = pass(self, s, true, params[unit], grads[unit], grad_scale, micro_batch);
        loss = s == HEAD ? own : loss;
    }
    return loss;
}

/* ---- steps ---- */

void toy_train(toy *self, uint64_t until)
{
    while (self->steps_made < until) {
        struct sluice_step_info made;
        uint32_t uses = self->accumulation * (2 * HEAD + 1);
        assert_done(sluice_module_begin(self->run, 1));
        for (uint32_t i = 0; i < uses; i++) {
            struct sluice_use use;
            assert_done(sluice_module_wait(self->run, &use));
            assert_int_equal(use.is_training, 1);
            assert_int_equal(use.micro_batch, i / (2 * HEAD + 1));
            uint32_t at = i % (2 * HEAD + 1);
            assert_int_equal(use.stage, at < HEAD ? at : 2 * HEAD - at);
            double loss = toy_compute(self, &use);
            bool has_paused = false;
            self->is_in_pause = true;
            for (uint32_t k = 0; k < self->asked_pauses && !has_paused; k++, usleep(50))
                has_paused = sluice_module_pause(self->run) != 0;
            self->is_in_pause = false;
            self->pauses += has_paused;
            if (has_paused && self->stays_in_pause)
                return;
            assert_done(sluice_module_done(self->run, use.stage == HEAD ? &loss : NULL));
        }
        assert_done(sluice_module_end(self->run, &made));
        assert_int_equal(made.step, self->steps_made + 1);
        float loss = (float)made.loss;
        memcpy(&self->losses[self->steps_made], &loss, sizeof loss);
        self->norms[self->steps_made++] = made.grad_norm;
    }
}

void toy_begin(toy *self, uint32_t uses)
{
    assert_int_equal(sluice_module_begin(self->run, 1), SLUICE_DONE);
    for (uint32_t i = 0; i < uses; i++) {
        struct sluice_use use;
        assert_int_equal(sluice_module_wait(self->run, &use), SLUICE_DONE);
        double loss = toy_compute(self, &use);
        assert_int_equal(sluice_module_done(self->run, &loss), SLUICE_DONE);
    }
}

double toy_evaluate(toy *self)
{
    struct sluice_step_info made;
    assert_done(sluice_module_begin(self->run, 0));
    for (uint32_t s = 0; s <= HEAD; s++) {
        struct sluice_use use;
        assert_done(sluice_module_wait(self->run, &use));
        assert_int_equal(use.is_training, 0);
        assert_int_equal(use.stage, s);
        assert_int_equal(use.pass, SLUICE_FORWARD);
        double loss = toy_compute(self, &use);
        assert_done(sluice_module_done(self->run, s == HEAD ? &loss : NULL));
    }
    assert_done(sluice_module_end(self->run, &made));
    return made.loss;
}
