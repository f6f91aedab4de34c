# Collectives of ranks that share a GPU, through host memory.
if(TARGET comm_fixture)
    sluice_gpu_test(test_gpu_staged WHOLE LIBS comm_fixture TIMEOUT 60)
endif()
