# Programs, the executor and its lanes.
add_library(swap_fixture STATIC swap/swap_fixture.c swap/random_programs.c swap/swap_rig.c swap/fake_lane.c
            swap/lane_pace.c)
target_link_libraries(swap_fixture PUBLIC sluice_executor sluice_program sluice_base
                      PRIVATE PkgConfig::CMOCKA)

sluice_test(test_swap_check LIBS swap_fixture sluice_program LABELS cpu debug tsan)
sluice_test(test_swap_check_commits LIBS swap_fixture sluice_program LABELS cpu debug tsan)
sluice_test(test_swap_collectives LIBS swap_fixture sluice_executor LABELS cpu debug tsan
            INSTANCES plain paranoid)
sluice_test(test_swap_pace LIBS swap_fixture sluice_executor LABELS cpu debug)
sluice_test(test_swap_pace_plan LIBS swap_fixture sluice_executor sluice_plan LABELS cpu)
# The same, where runs may not be slower than they should be either.
foreach(name test_swap_pace test_swap_pace_plan)
    test_line(slow.${name} COMMAND ${name} LABELS slow TIMEOUT 120 SERIAL ENVIRONMENT SLUICE_TEST_TIMES=1)
endforeach()
sluice_test(test_swap_places LIBS sluice_program LABELS cpu debug)
sluice_test(test_swap_executor LIBS swap_fixture sluice_executor LABELS cpu debug tsan
            INSTANCES plain paranoid)
sluice_test(test_swap_conditional LIBS swap_fixture sluice_executor LABELS cpu debug tsan
            INSTANCES plain paranoid)
sluice_test(test_swap_hits LIBS swap_fixture sluice_executor LABELS cpu debug tsan
            INSTANCES plain paranoid)
sluice_test(test_swap_paranoid LIBS swap_fixture sluice_executor LABELS cpu debug tsan)
sluice_test(test_swap_carried LIBS swap_fixture sluice_executor LABELS cpu debug tsan)
sluice_test(test_swap_worker LIBS swap_fixture sluice_executor LABELS cpu debug tsan)
sluice_test(test_swap_io LIBS swap_fixture sluice_swap LABELS cpu nvme debug tsan INSTANCES uring pool sim)
sluice_test(test_swap_faults LIBS swap_fixture sluice_swap LABELS cpu nvme debug tsan INSTANCES uring pool sim)
sluice_test(test_swap_state LIBS swap_fixture sluice_swap LABELS cpu nvme debug tsan INSTANCES uring pool sim)
sluice_test(test_swap_checksum LIBS swap_fixture sluice_swap LABELS cpu debug tsan)
sluice_isa_test(test_swap_checksum SETS baseline LABELS cpu)
sluice_test(test_swap_broken_drive LIBS swap_fixture sluice_swap LABELS cpu nvme debug tsan
            INSTANCES uring_full pool_full uring_lost pool_lost)
