/* metrics.jsonl: one JSON object per line, for each step and for each evaluation.
 *
 *   {"step":3,"loss":5.51,"loss_bits":"40b05532","grad_norm":1.7,"lr":0.0003,"loss_scale":1,
 *    "skipped":false,"tokens":4096,"seconds":2.1,"tokens_per_second":1950.5,"model_tflops":0.9,
 *    "lanes":{"read":{"bytes":1,"busy_seconds":0.2,"stall_seconds":0.1}, ...all seven...},
 *    "peak_bytes":{"device":1,"host":2,"nvme":3}}
 *   {"event":"eval","step":3,"valid_loss":5.6,"valid_loss_bits":"40b33333","tokens":4096,
 *    "seconds":0.4}
 *
 * "counted_tokens" follows "tokens" if some tokens of the data do not count. "balance_loss" and
 * "router_z_loss" follow "loss_bits" if the model's routers have losses; "loss" is without them.
 * "spared_bytes" follows the "bytes" of a lane if experts were left where they rest, and
 * "experts":{"passes":8,"passes_hit":5} the lanes if there are experts that may be left.
 *
 * Numbers that are not finite become null. Lanes and tiers are named as in swap/program.h. Nothing
 * here allocates, so a line may be written while memory is sealed. A file has one owner thread. A
 * line is one write, so a reader that follows the file sees whole lines. There is no fsync: the
 * resumed run writes again what a crash loses. */
#ifndef SLUICE_REPORT_METRICS_H
#define SLUICE_REPORT_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "swap/program.h"

enum { METRICS_LINE_BYTES = 4096 }; /* enough for any line with its newline and NUL */

struct metrics_lane {
    uint64_t bytes;        /* moved in the step */
    uint64_t spared_bytes; /* of experts that no token chose, and that were not moved */
    double busy_seconds;
    double stall_seconds; /* how long compute and update waited for this lane */
};
typedef struct metrics_lane metrics_lane;

struct metrics_line {
    bool is_eval;  /* the line of an evaluation, with step, valid_loss, tokens and seconds only */
    uint64_t step; /* from 1 */
    float loss;    /* nats per token, without those of the routers */
    bool has_router_losses;
    double balance_loss, router_z_loss; /* of the routers, without their coefficients */
    float valid_loss;
    double grad_norm; /* before clipping */
    double lr;
    double loss_scale;
    bool skipped;
    uint64_t tokens;  /* of the step, all ranks */
    bool has_counted; /* some tokens do not count as targets: counted_tokens is written */
    /* the tokens that count; the loss is the mean over them; 0: there is no loss (null) */
    uint64_t counted_tokens;
    double seconds;
    double tokens_per_second;
    double model_tflops; /* per second, counted by the model's formula */
    metrics_lane lanes[LANE_COUNT];
    /* passes of experts that may be left where they rest (0: there are none), and those of them
     * that some token chose */
    uint64_t expert_passes, expert_passes_hit;
    uint64_t peak_bytes[TIER_COUNT];
};
typedef struct metrics_line metrics_line;

/* Writes the line's JSON object and a newline to text[text_bytes]. Returns the length without NUL,
 * or -ENOSPC with the error set if it does not fit (METRICS_LINE_BYTES always fits). */
int metrics_format(const metrics_line *line, char *text, size_t text_bytes) MUST_CHECK;

struct metrics_file {
    int fd; /* -1: closed */
    char path[1024];
};
typedef struct metrics_file metrics_file;

/* Opens the file, or creates it with this mode (base/file.h), keeps its leading lines whose "step"
 * is not above `last_step`, and cuts off all after them, also a last line without its newline. 0
 * empties the file. Blocks on the file. Returns -errno (-ELOOP: it is a symbolic link), or -EINVAL
 * if it is not a regular file (a device, a fifo); the file is then unchanged. */
int metrics_file_open(metrics_file *self, const char *path, int mode,
                      uint64_t last_step) MUST_CHECK;

/* Appends one line with one write. Returns -errno if it fails; the file is then cut back to its
 * last whole line if that is possible. */
int metrics_file_write(metrics_file *self, const metrics_line *line) MUST_CHECK;

/* True if the last line is an evaluation at this step. */
bool metrics_file_ends_evaluated(const metrics_file *self, uint64_t step);

void metrics_file_close(metrics_file *self); /* does nothing if the file is closed */

#endif
