/* The parts that lane_stream.c, which submits and polls, and lane_stream_create.c share. */
#ifndef SLUICE_SWAP_LANE_STREAM_INTERNAL_H
#define SLUICE_SWAP_LANE_STREAM_INTERNAL_H

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "swap/lane_stream.h"
#include "swap/stream_clock.h"
#include "swap/stream_graphs.h"

/* Everything that post_completion uses. It is not part of the lane, because the lane may be freed
 * while the driver of a failed GPU is still in a call of post_completion. */
struct mailbox {
    atomic_uint_least64_t finished_count;
    int news_fd; /* the lane's */
};
typedef struct mailbox mailbox;

/* One call of post_completion posts this: so many of the stream's ops are complete. */
struct note {
    mailbox *box;
    uint64_t count;
};
typedef struct note note;

/* A place of the ring: an op in flight, or free. */
struct flight {
    lane_request *request;
    device_event *start; /* timed; NULL unless config.is_timed */
    device_event *end;
    bool has_end; /* `end` is recorded for this op */
    uint64_t submitted_ns;
    note *posted; /* used if the op reports */
};
typedef struct flight flight;

/* One lane kind. */
struct gpu_stream {
    device_stream *work;
    device_stream *signal; /* runs only post_completion, after the end events of `work` */
    flight *ring;          /* [depth]; op n of the stream is at n % depth */
    uint64_t submitted_count;
    uint64_t reported_count; /* ops up to the latest one whose completion will be posted */
    uint64_t polled_count;
    mailbox *box;
    uint64_t last_end_ns; /* of the last op polled */
};
typedef struct gpu_stream gpu_stream;

struct lane_stream {
    lane base; /* first: a lane * is a lane_stream * */
    lane_stream_config config;
    gpu_stream streams[LANE_COUNT];
    mailbox *boxes; /* [LANE_COUNT], followed by the notes of all places of all rings */
    int epoll_fd;   /* what event_fd returns; watches the two below */
    int news_fd;    /* eventfd, written by post_completion */
    int timer_fd;   /* always runs: starting and stopping it would cost two calls per op */
    bool dead;      /* the GPU has failed: nothing in flight comes back */
    bool is_finish_failed;
    bool is_idle;            /* no op has come back since the timer last woke poll */
    err_record error;        /* the first */
    stream_graphs *prepared; /* [prepared_count] the programs of lane_stream_prepare */
    uint32_t prepared_count;
    stream_clock clock; /* if config.is_timed */
};
typedef struct lane_stream lane_stream;

static_assert(offsetof(lane_stream, base) == 0, "a lane_stream starts with its lane");

static inline uint32_t swapi_in_flight(const gpu_stream *stream)
{
    return (uint32_t)(stream->submitted_count - stream->polled_count);
}

/* Two of the lane's functions: lane_stream.c. */
int swapi_stream_submit(lane *base, lane_request *request) MUST_CHECK;
int swapi_stream_poll(lane *base, lane_request **done, size_t max) MUST_CHECK;

#endif
