/* Row-wise ops of the reference backend. The embedding gradient is added row by row in fp32, as
 * kernels/ops.h says. Every other sum is taken in double and rounded once. */
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "kernels/reference/reference_internal.h"
#include "kernels/rope_frequency.h"
#include "kernels/row_position.h"

/* Weight `at` of a norm. */
static double norm_weight(enum dtype type, const void *weight, bool adds_one, uint64_t at)
{
    return weight ? refi_load(type, weight, at) + (adds_one ? 1.0 : 0.0) : 1.0;
}

static void norm_forward_row(const norm_args *args, uint64_t row)
{
    uint64_t channels = args->channels, at = row * norm_stride(args), sum_at = row * channels;
    const void *source = args->sum ? args->sum : args->input;
    uint64_t from = args->sum ? sum_at : at;
    double mean = 0.0, variance = 0.0;
    for (uint64_t c = 0; args->sum && c < channels; c++)
        refi_store(args->type, args->sum, sum_at + c,
                   refi_load(args->type, args->input, at + c) +
                       (args->residual ? refi_load(args->type, args->residual, at + c) : 0.0));
    for (uint64_t c = 0; args->kind == NORM_LAYER && c < channels; c++)
        mean += refi_load(args->type, source, from + c) / (double)channels;
    for (uint64_t c = 0; c < channels; c++) {
        double distance = refi_load(args->type, source, from + c) - mean;
        variance += distance * distance / (double)channels;
    }
    double rstd = 1.0 / sqrt(variance + (double)args->epsilon);
    for (uint64_t c = 0; c < channels; c++) {
        double xhat = (refi_load(args->type, source, from + c) - mean) * rstd;
        double y = xhat * norm_weight(args->type, args->weight, args->adds_one, c);
        if (args->bias)
            y += refi_load(args->type, args->bias, c);
        refi_store(args->type, args->output, at + c, y);
    }
    if (args->kind == NORM_LAYER)
        args->mean[row] = (float)mean;
    args->rstd[row] = (float)rstd;
}

int refi_norm_forward(kernel_context *context, void *stream, const norm_args *args)
{
    for (uint64_t row = 0; row < args->rows; row++)
        norm_forward_row(args, row);
    return 0;
}

/* Scratch: sums of the gradients of weight and bias, [2, C] double. */
size_t refi_norm_grad_scratch_bytes(kernel_context *context, uint64_t rows, uint64_t channels)
{
    return 2 * channels * sizeof(double);
}

static void norm_backward_row(const norm_grad_args *args, uint64_t row, double *weight_sum,
                              double *bias_sum)
{
    uint64_t channels = args->channels, at = row * norm_grad_stride(args), from = row * channels;
    double mean = args->kind == NORM_LAYER ? (double)args->mean[row] : 0.0;
    double rstd = (double)args->rstd[row], g_mean = 0.0, gx_mean = 0.0;
    for (uint64_t c = 0; c < channels; c++) {
        double xhat = (refi_load(args->type, args->input, from + c) - mean) * rstd;
        double dy = refi_load(args->type, args->output_grad, at + c);
        double g = dy * norm_weight(args->type, args->weight, args->adds_one, c);
        weight_sum[c] += dy * xhat;
        bias_sum[c] += dy;
        g_mean += g / (double)channels;
        gx_mean += g * xhat / (double)channels;
    }
    if (args->kind == NORM_RMS)
        g_mean = 0.0; /* RMSNorm subtracts no mean, so the mean of g has no part in the gradient */
    for (uint64_t c = 0; c < channels; c++) {
        double xhat = (refi_load(args->type, args->input, from + c) - mean) * rstd;
        double g = refi_load(args->type, args->output_grad, at + c) *
                   norm_weight(args->type, args->weight, args->adds_one, c);
        double dx = rstd * (g - g_mean - xhat * gx_mean);
        if (args->residual_grad)
            dx += refi_load(args->type, args->residual_grad, at + c);
        refi_store(args->type, args->input_grad, at + c, dx);
    }
}

int refi_norm_backward(kernel_context *context, void *stream, const norm_grad_args *args)
{
    double *weight_sum = args->scratch, *bias_sum = weight_sum + args->channels;
    for (uint64_t c = 0; c < 2 * args->channels; c++)
        weight_sum[c] = 0.0;
    for (uint64_t row = 0; row < args->rows; row++)
        norm_backward_row(args, row, weight_sum, bias_sum);
    for (uint64_t c = 0; c < args->channels; c++) {
        if (args->weight_grad)
            args->weight_grad[c] = (float)((double)args->weight_grad[c] + weight_sum[c]);
        if (args->bias_grad)
            args->bias_grad[c] = (float)((double)args->bias_grad[c] + bias_sum[c]);
    }
    return 0;
}

/* True if row `idx` of a table lies in the part; row_count 0 means the whole table. */
static bool is_in_part(uint64_t idx, uint64_t row_begin, uint64_t row_count)
{
    return row_count == 0 || (idx >= row_begin && idx - row_begin < row_count);
}

int refi_embedding_forward(kernel_context *context, void *stream, const embedding_args *args)
{
    uint64_t position_count = args->position_count ? args->position_count : args->tokens;
    for (uint64_t row = 0; row < args->batch * args->tokens; row++) {
        TRY(refi_index_check(args->token_ids[row], 0, args->vocab));
        uint64_t token = (uint64_t)args->token_ids[row];
        uint64_t position = row_position_in(row, args->tokens, args->begins, args->position_first,
                                            args->position_begin);
        if (args->token_table && !is_in_part(token, args->row_begin, args->row_count))
            continue;
        token -= args->row_begin;
        for (uint64_t c = 0; c < args->channels; c++) {
            double x = args->token_table
                           ? refi_load(args->type, args->token_table, token * args->channels + c)
                           : refi_load(args->type, args->output, row * args->channels + c);
            if (args->position_table && position < position_count)
                x += refi_load(args->type, args->position_table, position * args->channels + c);
            refi_store(args->type, args->output, row * args->channels + c, x);
        }
    }
    return 0;
}

size_t refi_embedding_grad_scratch_bytes(kernel_context *context, uint64_t rows, uint64_t vocab)
{
    return 0;
}

int refi_embedding_backward(kernel_context *context, void *stream, const embedding_grad_args *args)
{
    uint64_t position_count = args->position_count ? args->position_count : args->tokens;
    for (uint64_t row = 0; row < args->batch * args->tokens; row++) {
        TRY(refi_index_check(args->token_ids[row], 0, args->vocab));
        uint64_t token = (uint64_t)args->token_ids[row];
        uint64_t position = row_position_in(row, args->tokens, args->begins, args->position_first,
                                            args->position_begin);
        bool in_part =
            args->token_table_grad && is_in_part(token, args->row_begin, args->row_count);
        for (uint64_t c = 0; c < args->channels; c++) {
            float dy = (float)refi_load(args->type, args->output_grad, row * args->channels + c);
            if (in_part)
                args->token_table_grad[(token - args->row_begin) * args->channels + c] += dy;
            if (args->position_table_grad && position < position_count)
                args->position_table_grad[position * args->channels + c] += dy;
        }
    }
    return 0;
}

/* Element `i` of the weights of head `at` of all rows. */
static double head_weight(const head_norm_args *args, uint64_t at, uint64_t i)
{
    uint64_t begin = args->weight_per_head ? at % args->heads * args->head_dim : 0;
    return norm_weight(args->type, args->weight, args->adds_one, begin + i);
}

int refi_head_norm_forward(kernel_context *context, void *stream, const head_norm_args *args)
{
    uint64_t dim = args->head_dim;
    for (uint64_t at = 0; at < args->rows * args->heads; at++) {
        uint64_t first = at / args->heads * args->stride + at % args->heads * dim;
        double mean = 0, sum = 0;
        for (uint64_t i = 0; i < dim; i++) {
            double x = refi_load(args->type, args->data, first + i);
            mean += args->is_layer ? x / (double)dim : 0.0;
            refi_store(args->type, args->before, at * dim + i, x);
        }
        for (uint64_t i = 0; i < dim; i++) {
            double distance = refi_load(args->type, args->before, at * dim + i) - mean;
            sum += distance * distance;
        }
        double rstd = 1.0 / sqrt(sum / (double)dim + (double)args->epsilon);
        if (args->is_layer)
            args->mean[at] = (float)mean;
        args->rstd[at] = (float)rstd;
        for (uint64_t i = 0; i < dim; i++) {
            double x = refi_load(args->type, args->before, at * dim + i);
            refi_store(args->type, args->data, first + i,
                       (x - mean) * rstd * head_weight(args, at, i));
        }
    }
    return 0;
}

size_t refi_head_norm_grad_scratch_bytes(kernel_context *context, uint64_t rows, uint64_t heads,
                                         uint64_t head_dim)
{
    return (size_t)head_dim * sizeof(double);
}

/* scratch: [D or H * D] double, the sums of the weight gradient. */
int refi_head_norm_backward(kernel_context *context, void *stream, const head_norm_args *args)
{
    uint64_t dim = args->head_dim, width = args->weight_per_head ? args->heads * dim : dim;
    double *all_sums = args->scratch;
    memset(all_sums, 0, width * sizeof *all_sums);
    for (uint64_t at = 0; at < args->rows * args->heads; at++) {
        uint64_t head = at % args->heads, first = at / args->heads * args->stride + head * dim;
        double *sums = all_sums + (args->weight_per_head ? head * dim : 0);
        double rstd = (double)args->rstd[at], mean = args->is_layer ? (double)args->mean[at] : 0.0;
        double g_mean = 0, gx_mean = 0;
        for (uint64_t i = 0; i < dim; i++) {
            double xhat = (refi_load(args->type, args->before, at * dim + i) - mean) * rstd;
            double dy = refi_load(args->type, args->data, first + i);
            double g = dy * head_weight(args, at, i);
            sums[i] += dy * xhat;
            g_mean += args->is_layer ? g / (double)dim : 0.0;
            gx_mean += g * xhat / (double)dim;
        }
        for (uint64_t i = 0; i < dim; i++) {
            double xhat = (refi_load(args->type, args->before, at * dim + i) - mean) * rstd;
            double g = refi_load(args->type, args->data, first + i) * head_weight(args, at, i);
            refi_store(args->type, args->data, first + i, rstd * (g - g_mean - xhat * gx_mean));
        }
    }
    for (uint64_t i = 0; i < width && args->weight_grad; i++)
        args->weight_grad[i] += (float)all_sums[i];
    return 0;
}

int refi_rope_table(kernel_context *context, void *stream, const rope_table_args *args)
{
    uint64_t pairs = args->head_dim / 2;
    double factor = rope_attention_factor(args);
    for (uint64_t i = 0; i < pairs; i++) {
        double frequency = rope_frequency(args, i);
        for (uint64_t t = 0; t < args->tokens; t++) {
            args->table[(t * pairs + i) * 2] = (float)(cos((double)t * frequency) * factor);
            args->table[(t * pairs + i) * 2 + 1] = (float)(sin((double)t * frequency) * factor);
        }
    }
    return 0;
}

int refi_rope(kernel_context *context, void *stream, const rope_args *args)
{
    uint64_t half = (args->rotated ? args->rotated : args->head_dim) / 2;
    for (uint64_t row = 0; row < args->batch * args->tokens; row++)
        for (uint64_t head = 0; head < args->heads; head++)
            for (uint64_t i = 0; i < half; i++) {
                uint64_t position = row_position(row, args->tokens, args->begins);
                const float *turn = args->table + (position * half + i) * 2;
                double cosine = (double)turn[0];
                double sine = args->inverse ? -(double)turn[1] : (double)turn[1];
                uint64_t begin = row * args->stride + head * args->head_dim;
                uint64_t x_at = begin + (args->interleaved ? 2 * i : i);
                uint64_t y_at = x_at + (args->interleaved ? 1 : half);
                double x = refi_load(args->type, args->data, x_at);
                double y = refi_load(args->type, args->data, y_at);
                refi_store(args->type, args->data, x_at, x * cosine - y * sine);
                refi_store(args->type, args->data, y_at, x * sine + y * cosine);
            }
    return 0;
}

/* f(x), and f'(x) in *slope, of an activation. */
static double activation_function(const activation_args *args, double x, double *slope)
{
    const double alpha = (double)args->alpha, limit = (double)args->limit;
    const double root_2_over_pi = 0.79788456080286535588, root_half = 0.70710678118654752440;
    switch (args->kind) {
    case ACTIVATION_GELU:
    case ACTIVATION_GEGLU: {
        double t = tanh(root_2_over_pi * (x + 0.044715 * x * x * x));
        double bend = root_2_over_pi * (1.0 + 3.0 * 0.044715 * x * x);
        *slope = 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * bend;
        return 0.5 * x * (1.0 + t);
    }
    case ACTIVATION_GELU_ERF:
    case ACTIVATION_GEGLU_ERF: {
        double below = 0.5 * erfc(-x * root_half);
        *slope = below + x * exp(-0.5 * x * x) * 0.5 * root_2_over_pi;
        return x * below;
    }
    case ACTIVATION_RELU:
        *slope = x > 0.0 ? 1.0 : 0.0;
        return x > 0.0 ? x : 0.0;
    case ACTIVATION_SWIGLU_CLAMPED: {
        double v = x > limit ? limit : x, s = 1.0 / (1.0 + exp(-alpha * v));
        *slope = x > limit ? 0.0 : s + alpha * v * s * (1.0 - s);
        return v * s;
    }
    case ACTIVATION_SWIGLU:
    case ACTIVATION_KIND_COUNT:
        break;
    }
    double s = 1.0 / (1.0 + exp(-x));
    *slope = s + x * s * (1.0 - s);
    return x * s;
}

/* Indices of element f of a row: in the output, of the gate (or of the input of a plain
 * activation), and of up. */
struct activation_at {
    uint64_t output, gate, up;
};

static struct activation_at activation_place(const activation_args *args, uint64_t row, uint64_t f)
{
    uint64_t width = activation_is_gated(args->kind) ? 2 * args->features : args->features;
    return (struct activation_at){.output = row * args->features + f,
                                  .gate = row * width + f,
                                  .up = row * width + args->features + f};
}

/* The factor of f(gate) that belongs to `up`, and its slope. */
static double up_factor(const activation_args *args, double up, double *slope)
{
    double limit = (double)args->limit;
    *slope = 1.0;
    if (args->kind != ACTIVATION_SWIGLU_CLAMPED)
        return up;
    if (up > limit || up < -limit)
        *slope = 0.0;
    return (up > limit ? limit : up < -limit ? -limit : up) + 1.0;
}

int refi_activation_forward(kernel_context *context, void *stream, const activation_args *args)
{
    for (uint64_t row = 0; row < args->rows; row++)
        for (uint64_t f = 0; f < args->features; f++) {
            struct activation_at at = activation_place(args, row, f);
            double slope, x = refi_load(args->type, args->input, at.gate);
            double y = activation_function(args, x, &slope);
            if (activation_is_gated(args->kind))
                y *= up_factor(args, refi_load(args->type, args->input, at.up), &slope);
            refi_store(args->type, args->output, at.output, y);
        }
    return 0;
}

int refi_activation_backward(kernel_context *context, void *stream, const activation_args *args)
{
    for (uint64_t row = 0; row < args->rows; row++)
        for (uint64_t f = 0; f < args->features; f++) {
            struct activation_at at = activation_place(args, row, f);
            double slope, x = refi_load(args->type, args->input, at.gate);
            double value = activation_function(args, x, &slope);
            double dy = refi_load(args->type, args->output_grad, at.output), up = 1.0;
            if (activation_is_gated(args->kind)) {
                double up_slope;
                up = up_factor(args, refi_load(args->type, args->input, at.up), &up_slope);
                refi_store(args->type, args->input_grad, at.up, dy * value * up_slope);
            }
            refi_store(args->type, args->input_grad, at.gate, dy * up * slope);
        }
    return 0;
}

int refi_scale_rows(kernel_context *context, void *stream, const scale_rows_args *args)
{
    for (uint64_t row = 0; row < args->rows; row++)
        for (uint64_t column = 0; column < args->columns; column++) {
            uint64_t at = row * args->target_stride + column;
            float value =
                (float)refi_load(args->type, args->source, row * args->source_stride + column);
            float scaled = args->scale * value;
            if (args->accumulates)
                scaled = (float)refi_load(args->type, args->target, at) + scaled;
            refi_store(args->type, args->target, at, (double)scaled);
        }
    return 0;
}

/* The words come from base/rng.h, not from the function that the other backends share. */
int refi_dropout(kernel_context *context, void *stream, const dropout_args *args)
{
    double drop_below = (double)args->probability * 4294967296.0;
    float scale = (float)(1.0 / (1.0 - (double)args->probability));
    for (uint64_t row = 0; row < args->rows; row++)
        for (uint64_t column = 0; column < args->columns; column++) {
            uint64_t token = args->row_begin + row;
            uint64_t elem = token % args->tokens * args->columns + column;
            uint64_t sequence = args->counter[1] + token / args->tokens;
            uint64_t from = (uint64_t)args->counter[0] << 32 | sequence,
                     at = row * args->columns + column;
            uint32_t words[4];
            rng_block(args->seed, from, UINT64_C(1) << 63 | (uint64_t)args->site << 40 | elem / 4,
                      words);
            float x = (float)refi_load(args->type, args->source, at);
            bool is_dropped = words[elem % 4] < (uint32_t)drop_below;
            refi_store(args->type, args->target, at, is_dropped ? 0.0 : (double)(scale * x));
        }
    return 0;
}

int refi_add(kernel_context *context, void *stream, enum dtype type, uint64_t count, const void *a,
             const void *b, void *out)
{
    for (uint64_t i = 0; i < count; i++)
        refi_store(type, out, i, refi_load(type, a, i) + refi_load(type, b, i));
    return 0;
}

size_t refi_bias_backward_scratch_bytes(kernel_context *context, uint64_t rows, uint64_t n)
{
    return 0;
}

int refi_bias_backward(kernel_context *context, void *stream, enum dtype type, uint64_t rows,
                       uint64_t n, uint64_t stride, const void *output_grad, float *bias_grad,
                       void *scratch)
{
    for (uint64_t c = 0; c < n; c++) {
        double sum = (double)bias_grad[c];
        for (uint64_t row = 0; row < rows; row++)
            sum += refi_load(type, output_grad, row * stride + c);
        bias_grad[c] = (float)sum;
    }
    return 0;
}
