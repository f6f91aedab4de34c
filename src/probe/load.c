/* Runs work on its own thread beside a measurement, for example Adam while a drive is measured. */
#include <time.h>

#include "base/log.h"
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

int probei_load_for(probei_load *self, double seconds, double *rate)
{
    TRY(probei_load_begin(self));
    struct timespec left = {.tv_sec = (time_t)seconds};
    left.tv_nsec = (long)((seconds - (double)left.tv_sec) * 1e9);
    nanosleep(&left, NULL);
    return probei_load_end(self, rate);
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
