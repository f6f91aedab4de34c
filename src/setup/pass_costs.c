/* From measured kernels to the time of a pass. See pass_costs.h. */
#include "setup/pass_costs.h"

#include <math.h>
#include <string.h>

#include "setup/setup_internal.h"

/* The cost of a byte of each row-wise kernel on a CPU, relative to a byte of the mix with which
 * machine.json's row_rate is measured. The mix has equal bytes of LayerNorm and GELU, forward and
 * backward, and of a sum; in this measurement it was as fast as LayerNorm. Measured on two cores of
 * a server CPU of 2023 with AVX-512, bf16, 512 to 2048 rows of 768 (F: 3072), GB/s:
 *
 *   LayerNorm 15.7, RMSNorm 21.8; their gradient 21
 *   GELU and its gradient 10.9, 10.2; SwiGLU and its gradient 17.3, 16.5
 *   sums, biases' gradients, conversions 40 to 80; embedding and its gradient 31, 39
 *   losses of 192 rows of 50257: 9.5
 *   dropout 0.6 times LayerNorm's rate, by processor time on one core, with AVX-512; without it a
 *   mask takes three to four times as long. In attention an element of the mask takes 0.8 ns, in
 *   the op of its own 0.7 */
static const double cpu_row_weights[MODEL_ROW_KIND_COUNT] = {
    [MODEL_ROWS_NORM] = 1,         [MODEL_ROWS_NORM_GRAD] = 0.75, [MODEL_ROWS_GELU] = 1.45,
    [MODEL_ROWS_GELU_GRAD] = 1.55, [MODEL_ROWS_SWIGLU] = 0.9,     [MODEL_ROWS_SWIGLU_GRAD] = 0.95,
    [MODEL_ROWS_PLAIN] = 0.35,     [MODEL_ROWS_TABLE] = 0.5,      [MODEL_ROWS_TABLE_GRAD] = 0.4,
    [MODEL_ROWS_LOSS] = 1.6,       [MODEL_ROWS_DROPOUT] = 1.65,
};

/* ---- products ---- */

/* The features with which the terms of the fit are multiplied: flops, bytes, 1. */
static void features(double m, double n, double k, double elem_bytes, double result_bytes,
                     double out[COSTS_TERMS])
{
    out[0] = 2 * m * n * k;
    out[1] = (m * k + k * n) * elem_bytes + m * n * result_bytes;
    out[2] = 1;
}

static double result_bytes_of(enum dtype result, bool accumulates)
{
    return (double)dtype_bytes(result) * (accumulates ? 2 : 1);
}

static void point_features(const machine_product *point, double out[COSTS_TERMS])
{
    enum dtype result = point->accumulates ? DTYPE_FP32 : point->type;
    features((double)point->m, (double)point->n, (double)point->k, (double)dtype_bytes(point->type),
             result_bytes_of(result, point->accumulates), out);
}

static double dot(const double a[COSTS_TERMS], const double b[COSTS_TERMS])
{
    double sum = 0;
    for (int i = 0; i < COSTS_TERMS; i++)
        sum += a[i] * b[i];
    return sum;
}

/* Solves the normal equations of the terms in `subset`; the other terms are 0. Returns false if the
 * solution is not determined or has a negative term. Gauss-Jordan; the matrix is scaled to a
 * diagonal of 1. */
static bool solve(double matrix[COSTS_TERMS][COSTS_TERMS], const double right[COSTS_TERMS],
                  unsigned subset, double out[COSTS_TERMS])
{
    double a[COSTS_TERMS][COSTS_TERMS + 1];
    for (int i = 0; i < COSTS_TERMS; i++) {
        bool has_i = subset >> i & 1;
        for (int j = 0; j < COSTS_TERMS; j++)
            a[i][j] = has_i && (subset >> j & 1) ? matrix[i][j] / sqrt(matrix[i][i] * matrix[j][j])
                                                 : (i == j ? 1 : 0);
        a[i][COSTS_TERMS] = has_i ? right[i] / sqrt(matrix[i][i]) : 0;
    }
    for (int i = 0; i < COSTS_TERMS; i++) {
        if (a[i][i] < 1e-9)
            return false;
        for (int j = COSTS_TERMS; j >= i; j--)
            a[i][j] /= a[i][i];
        for (int r = 0; r < COSTS_TERMS; r++)
            for (int j = COSTS_TERMS; r != i && j >= i; j--)
                a[r][j] -= a[r][i] * a[i][j];
    }
    for (int i = 0; i < COSTS_TERMS; i++) {
        out[i] = subset >> i & 1 ? a[i][COSTS_TERMS] / sqrt(matrix[i][i]) : 0;
        if (!(out[i] >= 0))
            return false;
    }
    return true;
}

/* Finds the best terms, none negative. It tries all subsets of the terms and takes the solution
 * with the least sum of squared relative errors. rows: features divided by the measured time. */
static void fit_terms(double rows[][COSTS_TERMS], uint32_t count, double best[COSTS_TERMS])
{
    double matrix[COSTS_TERMS][COSTS_TERMS] = {{0}}, right[COSTS_TERMS] = {0}, least = INFINITY;
    for (uint32_t p = 0; p < count; p++)
        for (int i = 0; i < COSTS_TERMS; i++) {
            for (int j = 0; j < COSTS_TERMS; j++)
                matrix[i][j] += rows[p][i] * rows[p][j];
            right[i] += rows[p][i];
        }
    memset(best, 0, COSTS_TERMS * sizeof *best);
    for (unsigned subset = 1; subset < 1U << COSTS_TERMS; subset++) {
        double terms[COSTS_TERMS], error = 0;
        if (!solve(matrix, right, subset, terms))
            continue;
        for (uint32_t p = 0; p < count; p++) {
            double off = dot(rows[p], terms) - 1;
            error += off * off;
        }
        if (error < least * (1 - 1e-9)) {
            least = error;
            memcpy(best, terms, sizeof terms);
        }
    }
}

static enum cost_kind kind_of(bool accumulates, bool b_transposed)
{
    return accumulates ? COST_WEIGHT : b_transposed ? COST_FORWARD : COST_INPUT;
}

static void fit(const machine *from, enum dtype type, enum cost_kind kind, cost_fit *out)
{
    double rows[MACHINE_PRODUCTS_MAX][COSTS_TERMS];
    memset(out, 0, sizeof *out);
    for (uint32_t i = 0; i < from->device.product_count; i++) {
        const machine_product *point = &from->device.products[i];
        if (point->type != type || kind_of(point->accumulates, point->b_transposed) != kind ||
            !(point->flops_per_second > 0) || point->m == 0 || point->n == 0 || point->k == 0)
            continue;
        double *row = rows[out->count];
        struct cost_point *made = &out->points[out->count++];
        made->at[0] = log((double)point->m);
        made->at[1] = log((double)point->n);
        made->at[2] = log((double)point->k);
        point_features(point, row);
        double seconds = row[0] / point->flops_per_second;
        for (int t = 0; t < COSTS_TERMS; t++)
            row[t] /= seconds;
    }
    if (out->count == 0)
        return;
    fit_terms(rows, out->count, out->terms);
    for (uint32_t i = 0; i < out->count; i++)
        out->points[i].correction = -log(dot(rows[i], out->terms));
}

/* The weighted mean of the points' corrections; nearer points weigh more. A point with correction 0
 * at distance `far` (in log of m, n, k) is added. So beyond a factor of some ten in a dimension
 * only the fit remains. */
static double correction_at(const cost_fit *self, double m, double n, double k)
{
    const double far = 2.5, at[3] = {log(m), log(n), log(k)};
    double weights = 1 / (far * far * far * far), sum = 0;
    for (uint32_t i = 0; i < self->count; i++) {
        double square = 0;
        for (int d = 0; d < 3; d++)
            square += (at[d] - self->points[i].at[d]) * (at[d] - self->points[i].at[d]);
        if (square < 1e-12)
            return self->points[i].correction;
        sum += self->points[i].correction / (square * square);
        weights += 1 / (square * square);
    }
    return sum / weights;
}

double costs_of_product(const costs *self, const model_cost_product *item)
{
    if (!self->is_known)
        return 0;
    const cost_fit *own = &self->fits[kind_of(item->accumulates, item->b_transposed)];
    double m = (double)item->m, n = (double)item->n, k = (double)item->k, of[COSTS_TERMS];
    features(m, n, k, (double)dtype_bytes(item->type),
             result_bytes_of(item->result, item->accumulates), of);
    return dot(of, own->terms) * exp(correction_at(own, m, n, k));
}

/* ---- all kernels ---- */

static double best_rate(const machine *from, enum dtype type)
{
    double best = 0;
    for (uint32_t i = 0; i < from->device.product_count; i++)
        if (from->device.products[i].type == type)
            best = fmax(best, from->device.products[i].flops_per_second);
    return best;
}

void costs_learn(const machine *from, enum dtype type, costs *out)
{
    memset(out, 0, sizeof *out);
    int any = -1;
    for (int kind = COST_KIND_COUNT - 1; kind >= 0; kind--) {
        fit(from, type, (enum cost_kind)kind, &out->fits[kind]);
        any = out->fits[kind].count > 0 ? kind : any;
    }
    out->is_known = any >= 0;
    for (int kind = 0; kind < COST_KIND_COUNT && any >= 0; kind++)
        if (out->fits[kind].count == 0)
            out->fits[kind] =
                out->fits[kind == COST_FORWARD && out->fits[COST_INPUT].count > 0 ? COST_INPUT
                                                                                  : any];
    out->is_gpu = from->device.is_gpu;
    double best = best_rate(from, type); /* used if attention was not measured */
    out->attention_forward =
        from->device.attention_forward > 0 ? from->device.attention_forward : best;
    out->attention_backward =
        from->device.attention_backward > 0 ? from->device.attention_backward : best;
    out->row_rate = from->device.row_rate > 0 ? from->device.row_rate
                    : out->is_gpu             ? from->device.memory_rate
                                              : from->host.dram_copy;
}

double costs_of_kernels(const costs *self, const model_costs *kernels)
{
    if (!self->is_known)
        return 0;
    double seconds = kernels->attention_forward_flops / self->attention_forward +
                     kernels->attention_backward_flops / self->attention_backward;
    for (uint32_t i = 0; i < kernels->product_count; i++)
        seconds +=
            (double)kernels->products[i].count * costs_of_product(self, &kernels->products[i]);
    for (int kind = 0; kind < MODEL_ROW_KIND_COUNT && self->row_rate > 0; kind++)
        seconds +=
            kernels->row_bytes[kind] * (self->is_gpu ? 1 : cpu_row_weights[kind]) / self->row_rate;
    return seconds;
}

void setupi_price_passes(struct setup *self, const machine *from)
{
    costs known;
    model_costs kernels;
    const model *net = self->net;
    struct pass *pass = net->passes;
    if (net->module) /* its description has the seconds */
        return;
    if (!from || from->device.is_gpu == self->plan.machine.device_is_cpu)
        return;
    costs_learn(from, net->type, &known);
    /* a run on fewer threads than were measured is slower */
    double threads = setupi_measured_threads(from);
    double slower = !known.is_gpu && self->thread_count > 0 && threads > self->thread_count
                        ? threads / (double)self->thread_count
                        : 1;
    for (uint32_t s = 0; s < net->stage_count; s++) {
        model_recompute_costs(net, s, KEPT_NONE, &kernels);
        self->stages[s].recompute_seconds = slower * costs_of_kernels(&known, &kernels);
        model_recompute_costs(net, s, KEPT_SELECTIVE, &kernels);
        self->stages[s].selective_seconds = slower * costs_of_kernels(&known, &kernels);
        for (int phase = 0; phase < PHASE_COUNT; phase++)
            for (uint32_t p = 0; p < net->stages[s].pass_count[phase]; p++) {
                model_pass_costs(net, (enum phase)phase, s, p, &kernels);
                (pass++)->seconds = slower * costs_of_kernels(&known, &kernels);
            }
    }
}
