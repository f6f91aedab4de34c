# nvcc keeps accesses of whole packs whole, which no result of a test can show.
if(SLUICE_CUDA_FOUND)
    add_test(NAME cuda_packs COMMAND ${CMAKE_CURRENT_LIST_DIR}/check_packs.sh
             ${CMAKE_CUDA_COMPILER} ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_BINARY_DIR})
    set_tests_properties(cuda_packs PROPERTIES LABELS cpu TIMEOUT 120)
endif()
