/* An executor on fake lanes, plain or in paranoid mode, for the tests of the executor. */
#ifndef SLUICE_TESTS_SWAP_RIG_H
#define SLUICE_TESTS_SWAP_RIG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/trace.h"
#include "swap/executor.h"
#include "swap/paranoid.h"
#include "tests/swap/fake_lane.h"
#include "tests/swap/swap_fixture.h"

/* The mode of all rigs that are made from here on. */
extern bool rig_is_paranoid;

/* A set of fake lanes with an executor on them. */
struct rig {
    fixture_arenas arenas;
    fake_watch watch;
    lane *lanes[LANE_COUNT];
    uint32_t depths[LANE_COUNT];
    paranoid *checked[LANE_COUNT]; /* in paranoid mode: before the callback of each worker lane */
    bool *skipped;                 /* [op_count] ops that must not reach a lane; NULL: none */
    trace ring;
    executor *exec;
};
typedef struct rig rig;

struct rig_config {
    uint64_t seed;
    bool threaded;
    bool shared_worker; /* compute and update are one lane object; else two of one owner apart */
    bool skip;          /* the update is skipped, */
    bool no_commit; /* the run does not commit: no lane may see an op that fixture_runs says not */
    uint32_t busy_one_in;
    uint64_t fail_op_idx; /* PROGRAM_NONE: none */
    bool fail_submit, fail_poll;
};
typedef struct rig_config rig_config;

void rig_init(rig *self, const program *prog, const rig_config *config);
void rig_fini(rig *self);

/* Replaces the executor by one for these programs. */
void rig_set_programs(rig *self, const program *const *programs, uint32_t count);

/* Lets the watch begin anew, for another run. */
void rig_forget_run(rig *self);

uint32_t rig_in_flight(const rig *self);

/* Do the arenas hold what serial execution left? In paranoid mode: the homes. */
bool rig_matches(const rig *self, const fixture_arenas *serial);

/* Order, dependencies and depths were kept, and nothing is in flight. */
void rig_check_discipline(const rig *self, uint64_t seed);

/* Reads the mode from the program's argument ("plain", "paranoid"); returns rig_is_paranoid. */
bool rig_mode_from(int argc, char **argv);

#endif
