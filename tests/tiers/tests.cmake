# Beside the tiers' own: what only drives and commits meet of src/base.
sluice_test(test_base_failpoint LIBS sluice_base LABELS cpu debug tsan)

# The memory and the drives, and raw I/O between them.
sluice_test(test_tiers_arena LIBS sluice_tiers LABELS cpu debug tsan)
sluice_test(test_tiers_placement LIBS sluice_tiers LABELS cpu debug)
sluice_test(test_tiers_ranks LIBS sluice_tiers LABELS cpu debug)
# Not under tsan: it does not see how GCC's OpenMP synchronizes.
sluice_test(test_tiers_topology LIBS sluice_tiers OpenMP::OpenMP_C LABELS cpu debug)
sluice_test(test_tiers_slab LIBS sluice_tiers LABELS cpu nvme debug tsan)
sluice_test(test_tiers_slab_copy LIBS sluice_tiers LABELS cpu nvme debug INSTANCES sparse reflink)
sluice_test(test_tiers_striping LIBS sluice_tiers LABELS cpu debug tsan)
sluice_test(test_tiers_io LIBS sluice_tiers LABELS cpu nvme debug tsan INSTANCES uring uring_polled uring_unregistered pool sim)
sluice_test(test_tiers_io_behind LIBS sluice_tiers LABELS cpu nvme debug tsan INSTANCES uring pool sim)
sluice_test(test_tiers_latency LIBS sluice_tiers LABELS cpu nvme debug tsan INSTANCES uring pool sim)
sluice_test(test_tiers_io_errors LIBS sluice_tiers LABELS cpu nvme debug tsan INSTANCES uring pool sim)
sluice_test(test_tiers_io_enospc LIBS sluice_tiers LABELS cpu nvme debug tsan INSTANCES uring pool)
sluice_test(test_tiers_drive_speed LIBS sluice_tiers LABELS cpu nvme debug tsan INSTANCES auto pool)
sluice_test(test_tiers_shares LIBS sluice_tiers LABELS cpu nvme debug tsan)
sluice_test(test_tiers_io_faults LIBS sluice_tiers LABELS cpu nvme debug tsan INSTANCES uring pool sim)
sluice_test(test_tiers_io_hung LIBS sluice_tiers LABELS cpu debug tsan)
sluice_test(test_tiers_sim LIBS sluice_tiers LABELS cpu debug tsan)
sluice_test(test_tiers_sync LIBS sluice_tiers LABELS cpu nvme debug tsan INSTANCES uring pool sim)

# The whole program, as the kernel sees it, and with io_uring forbidden.
add_executable(deny_uring tiers/deny_uring.c)
target_link_libraries(deny_uring PRIVATE sluice_options)
add_dependencies(debug_tests deny_uring)
foreach(mode trace denied drives)
    set(labels cpu nvme debug)
    if(mode STREQUAL trace) # LeakSanitizer ends a process that is traced
        set(labels cpu nvme)
    endif()
    test_line(tiers_io_path.${mode} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_io_path.sh ${mode}
              $<TARGET_FILE:sluice> $<TARGET_FILE:deny_uring> LABELS ${labels})
endforeach()

# Starting anew must not lose cores that the placement would use.
sluice_test(test_cli_threads LIBS sluice_cli LABELS cpu)
