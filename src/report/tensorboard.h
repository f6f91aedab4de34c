/* Event files for TensorBoard, with the numbers of metrics.jsonl as scalars.
 *
 *   train/loss, train/grad_norm, train/lr, train/loss_scale   of each step
 *   train/balance_loss, train/router_z_loss                   if the model's routers have losses
 *   valid/loss                                                of each evaluation, nats per token
 *   speed/seconds, speed/tokens_per_second, speed/model_tflops
 *   lanes_busy/LANE, lanes_stall/LANE                         shares of the step's time
 *   peak_bytes/TIER
 *
 * A file is a list of records (TFRecord), each a protocol buffer:
 *
 *   offset   size   field
 *   0        8      n, the bytes of the event, little-endian
 *   8        4      checksum of these 8 bytes: CRC32C, rotated right by 15 bits, plus a282ead8
 *   12       n      Event: 1 wall_time (double), 2 step (int64), and one of 3 file_version (text),
 *                   5 summary (1 value: 1 tag, 2 simple_value (float)), 7 session_log (1 status)
 *   12 + n   4      checksum of the event
 *
 * Each opening makes a new file, whose name follows those that are there (TensorBoard reads them in
 * this order). It begins with a session_log START at the first step that will come, so that
 * TensorBoard drops what an earlier process wrote from that step on.
 *
 * Nothing here allocates, so a line may be written while memory is sealed. A file has one owner
 * thread. A line is one write. There is no fsync. */
#ifndef SLUICE_REPORT_TENSORBOARD_H
#define SLUICE_REPORT_TENSORBOARD_H

#include <stdint.h>

#include "base/error.h"
#include "base/file.h"
#include "report/metrics.h"

struct tensorboard_file {
    int fd; /* -1: closed */
    char path[FILE_PATH_BYTES + 320];
};
typedef struct tensorboard_file tensorboard_file;

/* Makes the directory, if it is missing, and a new file in it with this mode (base/file.h). Blocks
 * on the file. Returns -errno; the file is then closed. */
int tensorboard_file_open(tensorboard_file *self, const char *directory, int mode,
                          uint64_t first_step) MUST_CHECK;

/* Appends the line's numbers. Returns -errno if that fails; the file is then cut back to its last
 * whole line if that is possible. */
int tensorboard_file_write(tensorboard_file *self, const metrics_line *line) MUST_CHECK;

void tensorboard_file_close(tensorboard_file *self); /* does nothing if the file is closed */

#endif
