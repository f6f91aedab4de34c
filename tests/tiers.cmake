# The memory and the drives, and raw I/O between them.
sluice_test(test_tiers_arena LIBS sluice_tiers LABELS cpu debug tsan)
sluice_test(test_tiers_slab LIBS sluice_tiers LABELS cpu nvme debug tsan)
sluice_test(test_tiers_striping LIBS sluice_tiers LABELS cpu debug tsan)
sluice_test(test_tiers_io LIBS sluice_tiers LABELS cpu nvme debug tsan INSTANCES uring uring_unregistered pool)
sluice_test(test_tiers_io_errors LIBS sluice_tiers LABELS cpu nvme debug tsan INSTANCES uring pool)
sluice_test(test_tiers_io_enospc LIBS sluice_tiers LABELS cpu nvme debug tsan INSTANCES uring pool)
sluice_test(test_tiers_drive_speed LIBS sluice_tiers LABELS cpu nvme debug tsan INSTANCES auto pool)
