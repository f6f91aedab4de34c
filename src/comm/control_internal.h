/* The control plane's own header: what its files and comm.c share. */
#ifndef SLUICE_COMM_CONTROL_INTERNAL_H
#define SLUICE_COMM_CONTROL_INTERNAL_H

#include "comm/comm_internal.h"

/* Connects all ranks, fills self->ranks, starts the thread, sets self->control. Blocks. */
int commi_control_open(comm *self, const comm_join_config *config) MUST_CHECK;
/* Whether the failed join on this thread is one that rank 0 prints. */
bool commi_join_is_told(int code);
/* Ends the thread. code 0: all have said that they leave; else waits for nobody for longer than a second. */
void commi_control_close(comm *self, int code);
void commi_control_wake(struct commi_control *control);

void commi_control_fail(comm *self, int code, const char *text);
int commi_control_error(comm *self);
bool commi_control_is_teller(const comm *self);

#endif
