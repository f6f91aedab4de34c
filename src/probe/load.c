/* Runs work on its own thread beside a measurement, for example Adam while a drive is measured; and
 * products as such work. See probe_internal.h.
 *
 * Work that moves bytes costs the compute threads more than its CPU time: a team waits for its
 * slowest thread, memory and caches are shared, and the drive of a virtual machine copies on the
 * host's cores. So the cost is measured on the products themselves: how much slower they are beside
 * that work. */
#include <math.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/size.h"
#include "probe/probe_internal.h"

static void *run_load(void *user)
{
    probei_load *self = user;
    int rc = probei_bind(self->owner, self->where);
    self->start_ns = clock_ns();
    atomic_store(&self->runs, true);
    while (rc == 0 && !atomic_load(&self->stop))
        rc = self->once(self->user, &self->amount);
    self->end_ns = clock_ns();
    self->result = rc;
    err_save(&self->error, rc);
    return NULL;
}

int probei_load_begin(probei_load *self)
{
    self->amount = 0;
    atomic_init(&self->stop, false);
    atomic_init(&self->runs, false);
    int rc = pthread_create(&self->thread, NULL, run_load, self);
    if (rc != 0)
        return err_errno(rc, "starting a thread of the probe");
    while (!atomic_load(&self->runs))
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    return 0;
}

int probei_load_end(probei_load *self, double *rate)
{
    atomic_store(&self->stop, true);
    pthread_join(self->thread, NULL);
    if (self->result < 0)
        return err_restore(&self->error);
    uint64_t ns = self->end_ns - self->start_ns;
    if (rate)
        *rate = (double)self->amount * 1e9 / (double)(ns ? ns : 1);
    return 0;
}

/* --- products --- */

/* A size in the middle of the range of probei_products; one product takes a few milliseconds. */
static const uint64_t sizes[3] = {1024, 3072, 1024}, tiny_sizes[3] = {64, 128, 64}; /* m, n, k */

int probei_product_open(probei *self, uint64_t begin, uint64_t end, probei_product *out)
{
    *out = (probei_product){.owner = self};
    if (self->gpu)
        return 0;
    const uint64_t *of = self->extent == PROBEI_TINY ? tiny_sizes : sizes;
    matmul_desc desc = {.m = of[0],
                        .n = of[1],
                        .k = of[2],
                        .b_transposed = true,
                        .a_stride = of[2],
                        .b_stride = of[2],
                        .c_stride = of[1],
                        .ab_type = DTYPE_BF16,
                        .c_type = DTYPE_BF16};
    const uint64_t bytes[3] = {2 * of[0] * of[2], 2 * of[1] * of[2], 2 * of[0] * of[1]};
    TRY(self->ops->matmul_create(self->context, &desc, &out->product));
    begin = size_round_up(begin, 4096);
    uint64_t scratch = size_round_up(self->ops->matmul_scratch_bytes(out->product), 4096);
    uint64_t zone = end > begin + scratch ? (end - begin - scratch) / 3 / 4096 * 4096 : 0;
    out->scratch = self->memory.base + begin;
    for (int i = 0; i < 3; i++) {
        out->bytes[i] = size_round_up(bytes[i], 4096);
        out->turns[i] = zone / out->bytes[i];
        out->zones[i] = out->scratch + scratch + (uint64_t)i * zone;
        if (out->turns[i] == 0) {
            probei_product_close(out);
            return 0;
        }
    }
    return 0;
}

int probei_product_once(void *user, uint64_t *count)
{
    probei_product *self = user;
    probei *owner = self->owner;
    unsigned char *at[3];
    for (int i = 0; i < 3; i++)
        at[i] = self->zones[i] + self->next % self->turns[i] * self->bytes[i];
    self->next++;
    TRY(owner->ops->matmul(self->product, owner->streams[0], at[0], at[1], NULL, at[2],
                           self->scratch));
    ++*count;
    return 0;
}

int probei_product_alone(probei_product *self, double seconds, double *rate)
{
    probei_load load = {
        .owner = self->owner, .where = PROBEI_COMPUTE, .once = probei_product_once, .user = self};
    TRY(probei_load_begin(&load));
    struct timespec left = {.tv_sec = (time_t)seconds};
    left.tv_nsec = (long)((seconds - (double)left.tv_sec) * 1e9);
    nanosleep(&left, NULL);
    return probei_load_end(&load, rate);
}

void probei_product_close(probei_product *self)
{
    if (self->product)
        self->owner->ops->matmul_destroy(self->product);
    self->product = NULL;
}

double probei_lost_cores(const probei *self, const probei_figure *alone,
                         const probei_figure *beside, double rate)
{
    if (!(alone->median > 0) || !(rate > 0))
        return 0;
    double kept = beside->median / alone->median;
    return fmax(1 - kept, 0) * self->cores.compute.thread_count / rate;
}
