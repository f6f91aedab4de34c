# The GPU as a tier.
sluice_gpu_test(test_gpu_device PARTS device LIBS sluice_base TIMEOUT 60)
