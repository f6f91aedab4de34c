// Streams as host threads, events, and the fault that ends everything.
//
// All state is under one mutex; work runs without it. A stream's own condition tells its thread
// that there is work. One for all others tells of what one of them may wait for.
//   enqueue -> stream.queue -> its thread: [delay] run, drop, completed++
//   an event's record is an object of its own: a wait holds on to the record made before it
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <pthread.h>
#include <set>
#include <time.h>
#include <unistd.h>

#include "internal.h"

// One cudaEventRecord.
struct event_record {
    bool is_complete = false;
    int64_t time_ns = 0;
};

struct CUevent_st {
    unsigned flags;
    std::shared_ptr<event_record> latest;
};

struct stream_work {
    simulated::work_kind kind;
    std::function<void()> run, drop;
    std::shared_ptr<event_record> record; // of WORK_EVENT
    bool is_wait;                         // for it, or its making
};

// The work that a stream has captured so far.
struct stream_capture {
    std::vector<std::shared_ptr<simulated::captured_work>> nodes;
    cudaError_t error = cudaSuccess; // the first; the capture then ends with it
};

struct CUstream_st {
    unsigned flags;
    bool is_ending;
    std::unique_ptr<stream_capture> capture; // NULL: work is queued
    std::deque<stream_work> queue;
    uint64_t enqueued, completed;
    uint64_t awaited = UINT64_MAX; // the least number of completed work that somebody waits for
    std::condition_variable filled; // the queue, or the end has come
    pthread_t thread;
    simulated::random_source random{0};
};

namespace simulated
{

struct runtime {
    std::mutex mutex;
    std::condition_variable changed; // an event, a stream that is waited for, a fault
    std::set<cudaStream_t> streams; // but the default one
    std::set<cudaEvent_t> events;
    cudaStream_t default_stream = NULL;
    uint64_t streams_made = 0;
    bool has_fault = false;
    bool is_injected = false;
    simulated_gpu_fault injected = SIMULATED_FAULT_ANY;
    uint64_t injected_skip = 0;
    simulated_gpu_counters counters = {};
};

static runtime *rt = new runtime(); // never freed: threads may outlive main
static __thread cudaError_t last_error;
static __thread bool is_host_function;

typedef std::unique_lock<std::mutex> lock_type;

// A child of fork has none of the threads: it starts with none of the streams.
static void forget_in_child()
{
    runtime *fresh = new runtime();
    fresh->has_fault = rt->has_fault;
    fresh->counters = rt->counters;
    rt = fresh;
}

static const int fork_is_known = pthread_atfork(NULL, NULL, forget_in_child);

// --- errors --------------------------------------------------------------------------------------

cudaError_t report(cudaError_t error)
{
    if (error != cudaSuccess)
        last_error = error;
    return error;
}

bool has_fault()
{
    lock_type lock(rt->mutex);
    return rt->has_fault;
}

cudaError_t enter()
{
    if (get_settings().is_absent)
        return report(cudaErrorNoDevice);
    if (is_host_function)
        return report(cudaErrorNotPermitted);
    return has_fault() ? report(cudaErrorIllegalAddress) : cudaSuccess;
}

void count(uint64_t simulated_gpu_counters::*counter)
{
    lock_type lock(rt->mutex);
    rt->counters.*counter += 1;
}

static int64_t now_ns()
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<int64_t>(time.tv_sec) * 1000000000 + time.tv_nsec;
}

// --- a stream's thread ---------------------------------------------------------------------------

static bool takes_fault(work_kind kind)
{
    bool fits = rt->is_injected &&
                (rt->injected == SIMULATED_FAULT_ANY      ? kind != WORK_EVENT && kind != WORK_HOST
                 : rt->injected == SIMULATED_FAULT_KERNEL ? kind == WORK_KERNEL
                                                          : kind == WORK_COPY);
    if (!fits)
        return false;
    if (rt->injected_skip > 0) {
        rt->injected_skip--;
        return false;
    }
    rt->is_injected = false;
    rt->has_fault = true;
    rt->changed.notify_all();
    return true;
}

// Called and returns with the lock, which it gives up while it works.
static void do_work(lock_type &lock, stream_work &work)
{
    if (work.kind == WORK_EVENT) {
        if (work.is_wait) {
            while (!work.record->is_complete && !rt->has_fault)
                rt->changed.wait(lock);
        } else if (!rt->has_fault) {
            work.record->time_ns = now_ns();
            work.record->is_complete = true;
            rt->changed.notify_all();
        }
        return;
    }
    bool runs = !rt->has_fault && !takes_fault(work.kind);
    if (runs && work.kind == WORK_HOST)
        rt->counters.host_functions++;
    lock.unlock();
    is_host_function = work.kind == WORK_HOST;
    if (runs)
        work.run();
    is_host_function = false;
    if (work.drop)
        work.drop();
    lock.lock();
}

static void delay(cudaStream_t stream)
{
    uint32_t most_us = get_settings().delay_us_max;
    if (most_us > 0 && stream->random.below(3) == 0)
        usleep(stream->random.below(most_us + 1));
}

static void *serve_stream(void *user)
{
    cudaStream_t self = static_cast<cudaStream_t>(user);
    lock_type lock(rt->mutex);
    for (;;) {
        while (self->queue.empty() && !self->is_ending)
            self->filled.wait(lock);
        if (self->queue.empty())
            return NULL;
        stream_work work = std::move(self->queue.front());
        self->queue.pop_front();
        lock.unlock();
        delay(self);
        lock.lock();
        do_work(lock, work);
        if (++self->completed >= self->awaited) {
            self->awaited = UINT64_MAX;
            rt->changed.notify_all();
        }
    }
}

// With the lock.
static cudaStream_t make_stream(unsigned flags)
{
    cudaStream_t made = new CUstream_st();
    made->flags = flags;
    made->random = random_source(get_settings().seed * 31 + ++rt->streams_made);
    if (pthread_create(&made->thread, NULL, serve_stream, made) != 0) {
        delete made;
        return NULL;
    }
    return made;
}

// --- the host's side -----------------------------------------------------------------------------

static bool is_default(cudaStream_t stream)
{
    return stream == NULL || stream == cudaStreamLegacy;
}

// With the lock: waits until the stream has done what it holds now; a fault ends the wait.
static cudaError_t wait_for(lock_type &lock, cudaStream_t stream)
{
    uint64_t target = stream->enqueued;
    while (stream->completed < target && !rt->has_fault) {
        stream->awaited = std::min(stream->awaited, target);
        rt->changed.wait(lock);
    }
    return rt->has_fault ? cudaErrorIllegalAddress : cudaSuccess;
}

static cudaError_t wait_for_streams(lock_type &lock, bool all)
{
    std::set<cudaStream_t> streams = rt->streams;
    for (cudaStream_t stream : streams)
        if (rt->streams.count(stream) && (all || !(stream->flags & cudaStreamNonBlocking)))
            wait_for(lock, stream);
    if (rt->default_stream)
        wait_for(lock, rt->default_stream);
    return rt->has_fault ? cudaErrorIllegalAddress : cudaSuccess;
}

void wait_all()
{
    lock_type lock(rt->mutex);
    wait_for_streams(lock, true);
}

static cudaError_t spoil_capture(cudaStream_t stream)
{
    if (stream->capture->error == cudaSuccess)
        stream->capture->error = cudaErrorStreamCaptureInvalidated;
    return cudaErrorStreamCaptureUnsupported;
}

// With the lock.
static cudaError_t put(lock_type &lock, cudaStream_t stream, stream_work work)
{
    bool waits = is_default(stream);
    if (waits) {
        if (!rt->default_stream)
            rt->default_stream = make_stream(0);
        stream = rt->default_stream;
        if (!stream)
            return cudaErrorMemoryAllocation;
        wait_for_streams(lock, false);
    } else if (!rt->streams.count(stream)) {
        return cudaErrorInvalidResourceHandle;
    }
    if (stream->capture) {
        if (work.kind == WORK_EVENT) // CUDA could take some of these; a segment has none
            return spoil_capture(stream);
        stream->capture->nodes.push_back(
            std::make_shared<captured_work>(work.kind, std::move(work.run), std::move(work.drop)));
        return cudaSuccess;
    }
    stream->queue.push_back(std::move(work));
    stream->enqueued++;
    stream->filled.notify_one();
    if (waits) /* an error of the work itself is told by the next call */
        wait_for(lock, stream);
    return cudaSuccess;
}

cudaError_t enqueue(cudaStream_t stream, work_kind kind, std::function<void()> run,
                    std::function<void()> drop)
{
    lock_type lock(rt->mutex);
    if (kind == WORK_KERNEL)
        rt->counters.kernels++;
    cudaError_t error = put(lock, stream, stream_work{kind, std::move(run), drop, nullptr, false});
    lock.unlock();
    if (error != cudaSuccess && drop)
        drop();
    return report(error);
}

cudaError_t wait_stream(cudaStream_t stream)
{
    lock_type lock(rt->mutex);
    if (is_default(stream))
        return report(wait_for_streams(lock, false));
    if (!rt->streams.count(stream))
        return report(cudaErrorInvalidResourceHandle);
    if (stream->capture)
        return report(spoil_capture(stream));
    return report(wait_for(lock, stream));
}

// --- capture, for graphs.cc ----------------------------------------------------------------------

cudaError_t begin_capture(cudaStream_t stream)
{
    lock_type lock(rt->mutex);
    if (is_default(stream) || !rt->streams.count(stream) || stream->capture)
        return cudaErrorInvalidValue;
    stream->capture.reset(new stream_capture());
    return cudaSuccess;
}

cudaError_t end_capture(cudaStream_t stream, std::vector<std::shared_ptr<captured_work>> *nodes)
{
    lock_type lock(rt->mutex);
    nodes->clear();
    if (is_default(stream) || !rt->streams.count(stream) || !stream->capture)
        return cudaErrorInvalidValue;
    cudaError_t error = stream->capture->error;
    if (error == cudaSuccess)
        *nodes = std::move(stream->capture->nodes);
    stream->capture.reset();
    return error;
}

cudaError_t launch_captured(cudaStream_t stream,
                            const std::vector<std::shared_ptr<captured_work>> &nodes)
{
    lock_type lock(rt->mutex);
    rt->counters.graph_launches++;
    cudaError_t error = cudaSuccess;
    for (size_t i = 0; i < nodes.size() && error == cudaSuccess; i++) {
        std::shared_ptr<captured_work> node = nodes[i];
        rt->counters.graph_nodes++;
        error = put(lock, stream,
                    stream_work{node->kind, [node] { node->run(); }, nullptr, nullptr, false});
    }
    return error;
}

} // namespace simulated

using namespace simulated;

extern "C" {

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = has_fault() ? cudaErrorIllegalAddress : last_error;
    last_error = cudaSuccess;
    return error;
}

// --- streams -------------------------------------------------------------------------------------

/* Any priority is taken, as CUDA does, and none has an effect here. */
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int)
{
    if (cudaError_t error = enter())
        return error;
    if (!stream || (flags & ~static_cast<unsigned>(cudaStreamNonBlocking)))
        return report(cudaErrorInvalidValue);
    lock_type lock(rt->mutex);
    *stream = make_stream(flags);
    if (!*stream)
        return report(cudaErrorMemoryAllocation);
    rt->streams.insert(*stream);
    rt->counters.streams++;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

// Work that is enqueued still runs; unlike CUDA, this waits for it.
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    cudaError_t error = enter();
    if (error == cudaErrorNoDevice || error == cudaErrorNotPermitted)
        return error; /* a fault does not keep streams from being destroyed */
    lock_type lock(rt->mutex);
    if (!rt->streams.erase(stream))
        return report(cudaErrorInvalidResourceHandle);
    stream->is_ending = true;
    stream->filled.notify_one();
    lock.unlock();
    pthread_join(stream->thread, NULL);
    delete stream;
    return error;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    if (cudaError_t error = enter())
        return error;
    count(&simulated_gpu_counters::synchronizations);
    return wait_stream(stream);
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    if (cudaError_t error = enter())
        return error;
    lock_type lock(rt->mutex);
    if (is_default(stream)) {
        for (cudaStream_t other : rt->streams)
            if (!(other->flags & cudaStreamNonBlocking) && other->completed < other->enqueued)
                return cudaErrorNotReady;
        return cudaSuccess;
    }
    if (!rt->streams.count(stream))
        return report(cudaErrorInvalidResourceHandle);
    if (stream->capture)
        return report(spoil_capture(stream));
    return stream->completed < stream->enqueued ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *user)
{
    if (cudaError_t error = enter())
        return error;
    if (!function)
        return report(cudaErrorInvalidValue);
    return enqueue(
        stream, WORK_HOST, [function, user] { function(user); }, nullptr);
}

cudaError_t cudaDeviceSynchronize(void)
{
    if (cudaError_t error = enter())
        return error;
    lock_type lock(rt->mutex);
    rt->counters.synchronizations++;
    return report(wait_for_streams(lock, true));
}

// --- events --------------------------------------------------------------------------------------

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    if (cudaError_t error = enter())
        return error;
    unsigned known = cudaEventBlockingSync | cudaEventDisableTiming;
    if (!event || (flags & ~known))
        return report(cudaErrorInvalidValue);
    lock_type lock(rt->mutex);
    *event = new CUevent_st{flags, nullptr};
    rt->events.insert(*event);
    rt->counters.events++;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    cudaError_t error = enter();
    if (error == cudaErrorNoDevice || error == cudaErrorNotPermitted)
        return error;
    lock_type lock(rt->mutex);
    if (!rt->events.erase(event))
        return report(cudaErrorInvalidResourceHandle);
    delete event;
    return error;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    if (cudaError_t error = enter())
        return error;
    lock_type lock(rt->mutex);
    if (!rt->events.count(event))
        return report(cudaErrorInvalidResourceHandle);
    rt->counters.records++;
    if (!(event->flags & cudaEventDisableTiming))
        rt->counters.timed_records++;
    std::shared_ptr<event_record> record = std::make_shared<event_record>();
    cudaError_t error = put(lock, stream, stream_work{WORK_EVENT, nullptr, nullptr, record, false});
    if (error == cudaSuccess)
        event->latest = record;
    return report(error);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    if (cudaError_t error = enter())
        return error;
    lock_type lock(rt->mutex);
    if (flags != 0)
        return report(cudaErrorInvalidValue);
    if (!rt->events.count(event) || (!is_default(stream) && !rt->streams.count(stream)))
        return report(cudaErrorInvalidResourceHandle);
    rt->counters.waits++;
    if (!event->latest)
        return cudaSuccess; /* never recorded: nothing to wait for */
    return report(
        put(lock, stream, stream_work{WORK_EVENT, nullptr, nullptr, event->latest, true}));
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    if (cudaError_t error = enter())
        return error;
    lock_type lock(rt->mutex);
    if (!rt->events.count(event))
        return report(cudaErrorInvalidResourceHandle);
    return event->latest && !event->latest->is_complete ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    if (cudaError_t error = enter())
        return error;
    lock_type lock(rt->mutex);
    rt->counters.synchronizations++;
    if (!rt->events.count(event))
        return report(cudaErrorInvalidResourceHandle);
    std::shared_ptr<event_record> record = event->latest;
    while (record && !record->is_complete && !rt->has_fault)
        rt->changed.wait(lock);
    return rt->has_fault ? report(cudaErrorIllegalAddress) : cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to)
{
    if (cudaError_t error = enter())
        return error;
    lock_type lock(rt->mutex);
    if (!rt->events.count(from) || !rt->events.count(to) || !from->latest || !to->latest ||
        ((from->flags | to->flags) & cudaEventDisableTiming))
        return report(cudaErrorInvalidResourceHandle);
    if (!from->latest->is_complete || !to->latest->is_complete)
        return report(cudaErrorNotReady);
    int64_t elapsed_ns = to->latest->time_ns - from->latest->time_ns;
    *milliseconds = static_cast<float>(static_cast<double>(elapsed_ns) * 1e-6);
    return cudaSuccess;
}

// --- controls ------------------------------------------------------------------------------------

void simulated_gpu_get_counters(simulated_gpu_counters *counters)
{
    lock_type lock(rt->mutex);
    *counters = rt->counters;
}

void simulated_gpu_inject_fault(enum simulated_gpu_fault kind, uint64_t skip)
{
    lock_type lock(rt->mutex);
    rt->is_injected = true;
    rt->injected = kind;
    rt->injected_skip = skip;
}

void simulated_gpu_clear_fault(void)
{
    lock_type lock(rt->mutex);
    rt->is_injected = rt->has_fault = false;
    last_error = cudaSuccess;
}

cudaError_t simulated_gpu_enqueue(cudaStream_t stream, const char *name,
                                  void (*function)(void *user), void (*drop)(void *user),
                                  void *user)
{
    (void)name;
    cudaError_t error = enter();
    if (error != cudaSuccess) {
        if (drop)
            drop(user);
        return error;
    }
    return enqueue(
        stream, WORK_KERNEL, [function, user] { function(user); },
        [drop, user] {
            if (drop)
                drop(user);
        });
}
}
