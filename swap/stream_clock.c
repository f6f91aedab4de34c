/* See stream_clock.h. */
#include "swap/stream_clock.h"

#include "base/error.h"
#include "base/log.h"

enum {
    CLOCK_WAIT_US = 50,           /* wait for an event on an otherwise empty stream */
    CLOCK_START_US_MAX = 4000000, /* at the start */
    CLOCK_TRIES = 8,              /* for each wait time, at the start */
    CLOCK_AGE_US = 1000000,       /* clocks drift by some 10 us a second */
};

/* Relates the GPU's clock to ours: it records an event between two readings of clock_ns and takes
 * the middle. The readings are as far apart as a call and the GPU's answer, about 10 us. 1: done;
 * 0: the busy GPU did not answer within wait_us, and the anchor stays unchanged. */
static int compare(stream_clock *self, uint64_t wait_us)
{
    device_event *spare = self->anchors[1 - self->anchor_idx];
    uint64_t before_ns = clock_ns(), after_ns;
    int rc = device_record(self->gpu, spare, self->stream);
    do {
        if (rc == 0)
            rc = device_event_done(self->gpu, spare);
        after_ns = clock_ns();
    } while (rc == 0 && after_ns - before_ns < wait_us * 1000);
    if (rc < 0)
        return rc;
    self->compare_due_ns = after_ns + CLOCK_AGE_US * (uint64_t)1000;
    if (rc == 1) {
        self->anchor_idx = 1 - self->anchor_idx;
        self->anchor_ns = before_ns + (after_ns - before_ns) / 2;
    }
    return rc;
}

/* The first comparison, without which there are no times, takes the best answer that the GPU gives.
 * Later comparisons wait for only CLOCK_WAIT_US, so their error is at most half of that. Times of
 * the GPU's lanes thus agree with those of the host's within some 10 us, including clock drift;
 * differences on the GPU are exact to half a microsecond. */
int stream_clock_start(stream_clock *self, device *gpu)
{
    int rc = 0;
    *self = (stream_clock){.gpu = gpu};
    TRY(device_stream_create(gpu, true, &self->stream));
    TRY(device_event_create(gpu, true, &self->anchors[0]));
    TRY(device_event_create(gpu, true, &self->anchors[1]));
    for (uint64_t wait_us = CLOCK_WAIT_US; rc == 0 && wait_us < CLOCK_START_US_MAX; wait_us *= 2)
        for (int tries = 0; tries < CLOCK_TRIES && rc == 0; tries++)
            rc = compare(self, wait_us);
    if (rc == 0)
        return err_set(ERR_BACKEND, "gpu lanes: the GPU does not answer within seconds");
    return rc < 0 ? rc : 0;
}

int stream_clock_refresh(stream_clock *self)
{
    int rc = clock_ns() < self->compare_due_ns ? 0 : compare(self, CLOCK_WAIT_US);
    return rc < 0 ? rc : 0;
}

int stream_clock_time(const stream_clock *self, device_event *event, uint64_t *time_ns)
{
    int64_t since_ns;
    *time_ns = 0;
    TRY(device_elapsed_ns(self->gpu, self->anchors[self->anchor_idx], event, &since_ns));
    *time_ns = self->anchor_ns + (uint64_t)since_ns;
    return 0;
}
