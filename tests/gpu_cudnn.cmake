# cuDNN's attention: on a GPU, or (simulated) its absence; and, where its header is and without a GPU,
# its graphs on a stand-in that computes them, and its plans by the cuDNN that is installed.
if(TARGET sluice_kernels_reference)
    sluice_gpu_test(test_gpu_cudnn PARTS base attention LIBS sluice_kernels_reference)
endif()

get_property(cudnn_sources GLOBAL PROPERTY SLUICE_KERNELS_CUDNN_SOURCES)
if(cudnn_sources AND TARGET sluice_kernels_reference)
    add_library(cudnn_under_test OBJECT ${cudnn_sources})
    target_link_libraries(cudnn_under_test PUBLIC sluice_options sluice_base)
    target_include_directories(cudnn_under_test PUBLIC ${CUDNN_INCLUDE_DIR}
                               ${CUDAToolkit_INCLUDE_DIRS})

    add_library(fake_cudnn OBJECT fake_cudnn/fake_library.c fake_cudnn/fake_run.c)
    target_link_libraries(fake_cudnn PUBLIC sluice_options cudnn_under_test)
    add_executable(test_cudnn_graphs test_cudnn_graphs.c $<TARGET_OBJECTS:fake_cudnn>
                   $<TARGET_OBJECTS:cudnn_under_test>)
    target_link_libraries(test_cudnn_graphs PRIVATE sluice_kernels_reference fake_cudnn
                          PkgConfig::CMOCKA)
    add_test(NAME test_cudnn_graphs COMMAND test_cudnn_graphs)
    set_tests_properties(test_cudnn_graphs PROPERTIES LABELS cpu TIMEOUT 60)

    if(NOT SLUICE_SANITIZE) # the library is not ours
        add_library(fake_driver MODULE fake_cudnn/fake_driver.c)
        target_link_libraries(fake_driver PRIVATE sluice_options)
        target_link_options(fake_driver PRIVATE -Wl,-soname,libcuda.so.1)
        add_executable(test_cudnn_plans test_cudnn_plans.c
                       ${PROJECT_SOURCE_DIR}/kernels/cuda/library.c
                       $<TARGET_OBJECTS:cudnn_under_test>)
        target_compile_definitions(test_cudnn_plans PRIVATE
                                   FAKE_DRIVER="$<TARGET_FILE:fake_driver>")
        target_link_libraries(test_cudnn_plans PRIVATE cudnn_under_test PkgConfig::CMOCKA
                              ${CMAKE_DL_LIBS})
        add_dependencies(test_cudnn_plans fake_driver)
        foreach(gpu sm80 sm90)
            add_test(NAME test_cudnn_plans.${gpu} COMMAND test_cudnn_plans ${gpu})
            set_tests_properties(test_cudnn_plans.${gpu} PROPERTIES LABELS cpu TIMEOUT 120
                                 SKIP_RETURN_CODE 77)
        endforeach()
    endif()
endif()
