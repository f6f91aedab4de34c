# Commits: kept, resumed, moved, verified; and proofs that they are durable.
add_library(ranks_fixture STATIC state/ranks_fixture.c)
target_link_libraries(ranks_fixture PUBLIC sluice_profile PkgConfig::CMOCKA)
sluice_test(test_state_resume LIBS train_fixture LABELS cpu nvme debug TIMEOUT 240)
sluice_test(test_state_keep LIBS sluice_profile PkgConfig::XXHASH LABELS cpu debug nvme)
sluice_test(test_state_kept LIBS train_fixture LABELS cpu nvme TIMEOUT 120)
sluice_test(test_state_recut LIBS sluice_profile LABELS cpu debug nvme INSTANCES uring pool sim)
sluice_test(test_state_recut_ranks LIBS ranks_fixture LABELS cpu debug nvme)
sluice_test(test_state_view_ranks LIBS ranks_fixture PkgConfig::XXHASH LABELS cpu debug nvme)
sluice_test(test_state_directory LIBS train_fixture LABELS cpu nvme debug TIMEOUT 120)
sluice_test(test_state_sweep LIBS sluice_profile PkgConfig::XXHASH LABELS cpu debug tsan nvme)
sluice_test(test_state_verify LIBS train_fixture LABELS cpu nvme debug TIMEOUT 120)
sluice_test(test_state_verify_runs LIBS train_fixture LABELS cpu nvme debug TIMEOUT 120)
target_link_options(test_state_directory PRIVATE -Wl,--wrap=plan_machine_default_cpu)

# The records of 10^12 parameters, on drives that keep no bytes.
add_executable(test_state_scale state/test_state_scale.c)
target_link_libraries(test_state_scale PRIVATE train_fixture comm_fixture swap_fixture sluice_options)
foreach(ranks 1 16)
    test_line(slow.test_state_scale.${ranks} COMMAND test_state_scale ${ranks}
              LABELS slow TIMEOUT 1800 SERIAL ENVIRONMENT SLUICE_TEST_TIMES=1)
endforeach()

# Proofs of durability. Arguments are seeds; those of CI are few, the rest is labelled slow.
add_library(crash_case STATIC state/crash_case.c state/crash_image.c)
target_link_libraries(crash_case PUBLIC train_fixture)
# seeds_test(BINARY FIRST-LAST...): further CTest lines of a program, under --all only.
function(seeds_test binary)
    foreach(seeds ${ARGN})
        test_line(slow.${binary}.${seeds} COMMAND ${binary} ${seeds} LABELS slow TIMEOUT 900)
    endforeach()
endfunction()
sluice_test(test_state_crash LIBS crash_case LABELS cpu nvme TIMEOUT 120
            INSTANCES 1-10 11-20)
seeds_test(test_state_crash 21-65 66-110 111-155 156-200)
sluice_test(test_state_power LIBS crash_case LABELS cpu nvme TIMEOUT 120
            INSTANCES 1-10 11-20 canary)
target_link_options(test_state_power PRIVATE -Wl,--wrap=sim_store_create
                    -Wl,--wrap=sim_store_destroy -Wl,--wrap=sim_store_sync
                    -Wl,--wrap=fsync -Wl,--wrap=fdatasync)
seeds_test(test_state_power 21-65 66-110 111-155 156-200)
sluice_test(test_state_faults LIBS crash_case LABELS cpu nvme TIMEOUT 120
            INSTANCES errors harmless commits resumes points recut keep pool uring)
seeds_test(test_state_faults all-commits all-resumes
           all-points all-recut all-keep all-pool all-uring)
