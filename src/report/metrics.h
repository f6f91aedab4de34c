/* metrics.jsonl: one JSON object a line, one line a step (and one an evaluation).
 *
 *   {"step":3,"loss":5.51,"loss_bits":"40b05532","grad_norm":1.7,"lr":0.0003,"loss_scale":1,
 *    "skipped":false,"tokens":4096,"seconds":2.1,"tokens_per_second":1950.5,"model_tflops":0.9,
 *    "lanes":{"read":{"bytes":1,"busy_seconds":0.2,"stall_seconds":0.1}, ...all seven...},
 *    "peak_bytes":{"device":1,"host":2,"nvme":3}}
 *   {"event":"eval","step":3,"valid_loss":5.6,"valid_loss_bits":"40b33333","tokens":4096,
 *    "seconds":0.4}
 *
 * Behind "tokens" stands "counted_tokens" where some of the data does not count.
 *
 * Numbers that are not finite become null. Lanes and tiers are named as swap/program.h names them.
 * Nothing here allocates, so a line may be written while memory is sealed. A file has one owner
 * thread; a line is one write, so a reader that follows the file sees whole lines. There is no
 * fsync: what a crash loses is written again by the resumed run. */
#ifndef SLUICE_PROF_METRICS_H
#define SLUICE_PROF_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "swap/program.h"

enum { METRICS_LINE_BYTES = 4096 }; /* enough for any line, newline and NUL included */

#define METRICS_KEEP_ALL UINT64_MAX

struct metrics_lane {
    uint64_t bytes; /* moved in the step */
    double busy_seconds;
    double stall_seconds; /* compute and update waited for this lane */
};
typedef struct metrics_lane metrics_lane;

struct metrics_line {
    bool is_eval;  /* the line of an evaluation: step, valid_loss, tokens and seconds only */
    uint64_t step; /* from 1 */
    float loss;    /* nats per token */
    float valid_loss;
    double grad_norm; /* before clipping */
    double lr;
    double loss_scale;
    bool skipped;
    uint64_t tokens;  /* of the step, all ranks */
    bool has_counted; /* some of them do not count as targets: counted_tokens is written */
    /* those that do, over which the loss is the mean; 0: it has none, null */
    uint64_t counted_tokens;
    double seconds;
    double tokens_per_second;
    double model_tflops; /* per second, by the model's own count */
    metrics_lane lanes[LANE_COUNT];
    uint64_t peak_bytes[TIER_COUNT];
};
typedef struct metrics_line metrics_line;

/* Writes the line's JSON object and a newline to text[text_bytes]. Returns the length without NUL,
 * or -ENOSPC with the error set where it does not fit (METRICS_LINE_BYTES always fits). */
int metrics_format(const metrics_line *line, char *text, size_t text_bytes) MUST_CHECK;

struct metrics_file {
    int fd; /* -1: closed */
    char path[1024];
};
typedef struct metrics_file metrics_file;

/* Opens or creates the file for appending after its first `keep_lines` lines; what follows them is
 * cut off, and so is a last line without its newline (METRICS_KEEP_ALL: only that). 0 empties the
 * file. -errno; -EINVAL where it is not a regular file or has fewer lines than `keep_lines` (other
 * than METRICS_KEEP_ALL); the file is then unchanged. Blocks on the file. */
int metrics_file_open(metrics_file *self, const char *path, uint64_t keep_lines) MUST_CHECK;

/* Resuming after `step`: *lines is how many leading lines of the file have a "step" not above it;
 * the number to give to metrics_file_open. 0 lines where the file does not exist. -errno; -EINVAL
 * where it is not a regular file (a link to a device, a fifo), which is not read. */
int metrics_lines_through(const char *path, uint64_t step, uint64_t *lines) MUST_CHECK;

/* Appends one line with one write. -errno where it fails; the file is then back at its last whole
 * line if it could be cut there. */
int metrics_file_write(metrics_file *self, const metrics_line *line) MUST_CHECK;

/* Whether the last line is an evaluation at this step. */
bool metrics_file_ends_evaluated(const metrics_file *self, uint64_t step);

void metrics_file_close(metrics_file *self); /* of a closed file: nothing */

#endif
