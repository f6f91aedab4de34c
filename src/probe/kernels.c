/* Measures attention, row-wise kernels, the expanding of packed params, and the cost of handing an
 * op to another thread. See probe_internal.h.
 *
 * The operations of attention are counted as the model counts them: 2 B T^2 C forward (causal), and
 * 2.5 times as many backward. The row-wise kernels are norms, GELU and a sum, forward and backward,
 * on bf16. Their bytes are those of the operands and results, counted once each. Expanding is
 * that of nf4_double, QLoRA's format, to bf16, in a matrix that takes a third of the operands, far
 * more than caches hold; its bytes are the codes and the values. */
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/log.h"
#include "base/size.h"
#include "probe/probe_internal.h"

enum variant { ATTENTION_FORWARD, ATTENTION_BACKWARD, ROWS, EXPAND, HAND_OVER, VARIANT_COUNT };
static const char *const variant_names[VARIANT_COUNT] = {"attention forward", "attention backward",
                                                         "row-wise kernels", "expanding",
                                                         "handing an op over"};

enum {
    HANDS_COUNT = 100,
    /* work of an op that is handed over: so long that the waiting thread sleeps */
    HANDS_WORK_NS = 30000,
    PARTS_MAX = 8, /* operands in a set */
    /* sets take turns, so that each call reads its operands from memory, not from a cache */
    SETS_MAX = 12,
};

struct bench {
    probei *owner;
    attention_desc desc;
    kernel_attention *attention;
    uint64_t rows, channels;
    unsigned char *parts[PARTS_MAX]; /* operands of the current set */
    uint32_t set_count, next_set;
    unsigned char *scratch;
    uint64_t part_bytes; /* of each part */
    stored_expand_args expanded;
};

static void next_set(struct bench *self)
{
    uint64_t set_bytes = PARTS_MAX * self->part_bytes;
    for (uint64_t i = 0; i < PARTS_MAX; i++)
        self->parts[i] = self->owner->operands + self->next_set * set_bytes + i * self->part_bytes;
    self->next_set = (self->next_set + 1) % self->set_count;
}

static int attention_forward(void *user)
{
    struct bench *b = user;
    next_set(b);
    uint64_t columns = b->desc.heads * b->desc.head_dim * 2; /* bytes of q in a row of q, k and v */
    return b->owner->ops->attention_forward(b->attention, b->owner->streams[0], b->parts[0],
                                            b->parts[0] + columns, b->parts[0] + 2 * columns,
                                            b->parts[3], (float *)(void *)b->parts[4], b->scratch);
}

static int attention_backward(void *user)
{
    struct bench *b = user;
    next_set(b);
    uint64_t columns = b->desc.heads * b->desc.head_dim * 2;
    return b->owner->ops->attention_backward(
        b->attention, b->owner->streams[0], b->parts[0], b->parts[0] + columns,
        b->parts[0] + 2 * columns, b->parts[3], (const float *)(const void *)b->parts[4],
        b->parts[5], b->parts[6], b->parts[6] + columns, b->parts[6] + 2 * columns, b->scratch);
}

/* Runs each row-wise kernel once; row_bytes counts the bytes that this moves. */
static int run_rows(void *user)
{
    struct bench *b = user;
    next_set(b);
    const kernel_ops *ops = b->owner->ops;
    kernel_context *context = b->owner->context;
    void *stream = b->owner->streams[0];
    float *small = (float *)(void *)b->parts[4];
    uint64_t skip = size_round_up(size_max(b->rows, b->channels), 64);
    norm_args norm = {.kind = NORM_LAYER,
                      .type = DTYPE_BF16,
                      .rows = b->rows,
                      .channels = b->channels,
                      .epsilon = 1e-5f,
                      .input = b->parts[0],
                      .weight = b->parts[7],
                      .bias = b->parts[7] + 2 * b->channels,
                      .output = b->parts[1],
                      .mean = small,
                      .rstd = small + skip};
    norm_grad_args back = {.kind = NORM_LAYER,
                           .type = DTYPE_BF16,
                           .rows = b->rows,
                           .channels = b->channels,
                           .input = b->parts[0],
                           .weight = b->parts[7],
                           .mean = small,
                           .rstd = small + skip,
                           .output_grad = b->parts[2],
                           .input_grad = b->parts[3],
                           .weight_grad = small + 2 * skip,
                           .bias_grad = small + 3 * skip,
                           .scratch = b->scratch};
    activation_args point = {.kind = ACTIVATION_GELU,
                             .type = DTYPE_BF16,
                             .rows = b->rows,
                             .features = b->channels,
                             .input = b->parts[0],
                             .output = b->parts[1],
                             .output_grad = b->parts[2],
                             .input_grad = b->parts[3]};
    TRY(ops->norm_forward(context, stream, &norm));
    TRY(ops->norm_backward(context, stream, &back));
    TRY(ops->activation_forward(context, stream, &point));
    TRY(ops->activation_backward(context, stream, &point));
    return ops->add(context, stream, DTYPE_BF16, b->rows * b->channels, b->parts[0], b->parts[2],
                    b->parts[1]);
}

/* Matrices of bf16 that run_rows reads and writes: 2 + 3 + 2 + 3 + 3. */
static double row_bytes(const struct bench *b)
{
    return 13.0 * 2.0 * (double)b->rows * (double)b->channels;
}

static int expand(void *user)
{
    struct bench *b = user;
    return b->owner->ops->stored_expand(b->owner->context, b->owner->streams[0], &b->expanded);
}

/* Half a byte of a code and two of a value. */
static double expand_bytes(const struct bench *b)
{
    return 2.5 * (double)(b->expanded.rows * b->expanded.columns);
}

struct hands {
    int there, back;
    int result;
};

/* The work of one op. Returns 1. */
static int work(void)
{
    uint64_t begin_ns = clock_ns();
    while (clock_ns() - begin_ns < HANDS_WORK_NS)
        ;
    return 1;
}

static void *answer(void *user)
{
    struct hands *self = user;
    uint64_t value;
    for (int i = 0; i < HANDS_COUNT && self->result == 0; i++)
        if (read(self->there, &value, sizeof value) != sizeof value || work() == 0 ||
            write(self->back, &(uint64_t){1}, sizeof value) != sizeof value)
            self->result = -errno;
    return NULL;
}

static int pass_hands(struct hands *self, double *seconds)
{
    uint64_t value, begin_ns = clock_ns();
    for (int i = 0; i < HANDS_COUNT; i++) {
        struct pollfd waiter = {.fd = self->back, .events = POLLIN};
        if (write(self->there, &(uint64_t){1}, sizeof value) != sizeof value ||
            poll(&waiter, 1, 1000) != 1 || read(self->back, &value, sizeof value) != sizeof value)
            return err_set(-EIO, "a thread of the probe does not answer");
    }
    *seconds = fmax((double)(clock_ns() - begin_ns) / HANDS_COUNT - HANDS_WORK_NS, 1) * 1e-9;
    return 0;
}

/* Times an op that goes from the executor's thread to a worker and back. Both threads sleep until
 * they are woken. (On a GPU the launch of the smallest kernel is timed instead.) */
static int time_hand_over(struct bench *b, double *seconds)
{
    struct hands hands = {.there = eventfd(0, EFD_CLOEXEC), .back = eventfd(0, EFD_CLOEXEC)};
    pthread_t id;
    int rc = hands.there >= 0 && hands.back >= 0 ? 0 : err_errno(errno, "eventfd");
    (void)b;
    if (rc == 0) {
        int failed = pthread_create(&id, NULL, answer, &hands);
        rc = failed ? err_errno(failed, "starting a thread of the probe") : 0;
    }
    if (rc == 0) {
        rc = pass_hands(&hands, seconds);
        if (rc < 0)
            pthread_cancel(id);
        pthread_join(id, NULL);
    }
    close(hands.there);
    close(hands.back);
    return rc;
}

static int zero_little(void *user)
{
    struct bench *b = user;
    return b->owner->ops->zero(b->owner->context, b->owner->streams[0], b->parts[4], 4096);
}

static int run_variant(void *user, uint32_t variant, double *value)
{
    struct bench *b = user;
    double seconds, forward = 2.0 * (double)b->desc.batch * (double)b->desc.tokens *
                              (double)b->desc.tokens * (double)(b->desc.heads * b->desc.head_dim);
    switch ((enum variant)variant) {
    case ATTENTION_FORWARD:
        TRY(probei_time(b->owner, attention_forward, b, &seconds));
        *value = forward / seconds;
        return 0;
    case ATTENTION_BACKWARD:
        TRY(probei_time(b->owner, attention_backward, b, &seconds));
        *value = 2.5 * forward / seconds;
        return 0;
    case ROWS:
        TRY(probei_time(b->owner, run_rows, b, &seconds));
        *value = row_bytes(b) / seconds;
        return 0;
    case EXPAND:
        TRY(probei_time(b->owner, expand, b, &seconds));
        *value = expand_bytes(b) / seconds;
        return 0;
    case HAND_OVER:
    case VARIANT_COUNT:
        break;
    }
    return b->owner->gpu ? probei_time(b->owner, zero_little, b, value) : time_hand_over(b, value);
}

/* Places the matrix to expand at the end of the operands. The codes may be any bits. Returns its
 * bytes. */
static uint64_t place_expanded(struct bench *b)
{
    probei *self = b->owner;
    uint64_t columns = 4096, rows = self->operand_bytes / 8 / columns;
    stored_layout layout = stored_layout_of(STORED_NF4_DOUBLE, rows, columns);
    uint64_t value_bytes = size_round_up(2 * rows * columns, 4096);
    uint64_t code_bytes = size_round_up(layout.code_bytes, 4096);
    uint64_t bytes = value_bytes + code_bytes + size_round_up(layout.scale_bytes, 4096);
    unsigned char *begin = self->operands + self->operand_bytes - bytes;
    b->expanded = (stored_expand_args){.format = STORED_NF4_DOUBLE,
                                       .rows = rows,
                                       .columns = columns,
                                       .codes = begin + value_bytes,
                                       .scales = begin + value_bytes + code_bytes,
                                       .type = DTYPE_BF16,
                                       .target = begin};
    return bytes;
}

/* Places the operands of all kernels but expanding in parts of one size, followed by the scratch
 * memory. */
static int place(struct bench *b)
{
    probei *self = b->owner;
    uint64_t free_bytes = self->operand_bytes - place_expanded(b);
    /* A GPU shows its speed only in kernels that fill it and move more than its cache holds. */
    static const struct size {
        uint64_t batch, tokens, heads, head_dim;
    } tiny = {1, 64, 2, 64}, on_cpu = {2, 512, 12, 64}, on_gpu = {2, 4096, 16, 128};
    const struct size *size = self->extent == PROBEI_TINY ? &tiny : self->gpu ? &on_gpu : &on_cpu;
    b->desc = (attention_desc){.batch = size->batch,
                               .tokens = size->tokens,
                               .heads = size->heads,
                               .kv_heads = size->heads,
                               .head_dim = size->head_dim,
                               .type = DTYPE_BF16,
                               .scale = 0.125f};
    b->channels = b->desc.heads * b->desc.head_dim;
    b->rows = b->desc.batch * b->desc.tokens;
    b->desc.qkv_stride = 3 * b->channels;
    TRY(self->ops->attention_create(self->context, &b->desc, &b->attention));
    b->part_bytes = size_round_up(3 * b->rows * b->channels * 2, 4096);
    b->part_bytes = size_max(b->part_bytes, size_round_up(64 * (b->rows + b->channels), 4096));
    uint64_t scratch = size_max(self->ops->attention_forward_scratch_bytes(b->attention),
                                self->ops->attention_backward_scratch_bytes(b->attention));
    scratch =
        size_max(scratch, self->ops->norm_grad_scratch_bytes(self->context, b->rows, b->channels));
    uint64_t set_bytes = PARTS_MAX * b->part_bytes;
    if (set_bytes + scratch > free_bytes)
        return err_set(-ENOMEM, "kernels need %llu MiB to be measured, more than the probe has",
                       (unsigned long long)((set_bytes + scratch) / MIB));
    b->set_count = (uint32_t)size_min((free_bytes - scratch) / set_bytes, SETS_MAX);
    b->scratch = self->operands + b->set_count * set_bytes;
    next_set(b);
    return 0;
}

/* Used instead of the median for times that are short or long depending on the core that the
 * scheduler chose: the median would be one or the other. */
static double mean(const probei_figure *figure)
{
    double sum = 0;
    for (uint32_t i = 0; i < figure->count; i++)
        sum += figure->values[i];
    return sum / figure->count;
}

static void report(probei *self, const struct bench *b, const probei_figure *f)
{
    machine *out = self->out;
    double best = out->device.flops_16bit;
    out->device.attention_forward = f[ATTENTION_FORWARD].median;
    out->device.attention_backward = f[ATTENTION_BACKWARD].median;
    out->device.row_rate = f[ROWS].median;
    out->device.expand_rate = f[EXPAND].median;
    out->device.op_seconds = mean(&f[HAND_OVER]);
    probei_say(self, "kernels on bf16 (%llu x %llu tokens, %llu heads of %llu)",
               (unsigned long long)b->desc.batch, (unsigned long long)b->desc.tokens,
               (unsigned long long)b->desc.heads, (unsigned long long)b->desc.head_dim);
    for (int i = 0; i < 2; i++)
        probei_found(self, variant_names[i], f[i].median * 1e-9, "GFLOP/s", &f[i],
                     "%.0f%% of the best product", 100 * f[i].median / best);
    probei_found(self, "norms, GELU, sums: read and written", f[ROWS].median * 1e-9, "GB/s",
                 &f[ROWS], "%.0f%% of a copy in memory",
                 100 * f[ROWS].median / out->host.dram_copy);
    probei_found(self, "4-bit codes expanded to bf16", f[EXPAND].median * 1e-9, "GB/s", &f[EXPAND],
                 "%.0f%% of a copy in memory", 100 * f[EXPAND].median / out->host.dram_copy);
    probei_found(self, self->gpu ? "launching a kernel" : "handing an op to a thread and back",
                 out->device.op_seconds * 1e6, "us", &f[HAND_OVER], "%s", "");
}

int probei_kernels(probei *self)
{
    struct bench bench = {.owner = self};
    probei_figure figures[VARIANT_COUNT] = {{.count = 0}};
    TRY(probei_fill_operands(self));
    int rc = place(&bench);
    probei_work work = {.count = VARIANT_COUNT,
                        .seconds = probei_step_left(self),
                        .warms_up = true,
                        .is_checked = true,
                        .loose = 1U << HAND_OVER, /* varies by nature: see mean */
                        .run = run_variant,
                        .names = variant_names,
                        .user = &bench};
    if (rc == 0)
        rc = probei_rounds(self, &work, figures);
    if (rc == 0)
        report(self, &bench, figures);
    if (bench.attention)
        self->ops->attention_destroy(bench.attention);
    return rc;
}
