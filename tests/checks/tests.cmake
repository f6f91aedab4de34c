# Tests of the repository itself: which folder includes and links which, the top level, installing,
# the command line. They need no accelerator and no data.

# Lists the folders that each folder links, one line for each, for check_includes.sh. The list is
# complete here, because CMake reads all folders before the tests.
set(links "")
foreach(folder src/base kernels tiers swap src/config src/model src/plan src/comm src/text src/data src/format
        src/report src/setup src/engine src/state src/hf src/infer src/train src/profile src/probe src/cli)
    if(NOT EXISTS ${PROJECT_SOURCE_DIR}/${folder}/CMakeLists.txt)
        continue()
    endif()
    set(linked "")
    get_property(targets DIRECTORY ${PROJECT_SOURCE_DIR}/${folder} PROPERTY BUILDSYSTEM_TARGETS)
    foreach(target ${targets})
        get_target_property(libraries ${target} LINK_LIBRARIES)
        foreach(library ${libraries})
            if(TARGET ${library} AND library MATCHES "^(sluice|kernels)_")
                get_target_property(source_dir ${library} SOURCE_DIR)
                file(RELATIVE_PATH other ${PROJECT_SOURCE_DIR} ${source_dir})
                list(APPEND linked ${other})
            endif()
        endforeach()
    endforeach()
    list(REMOVE_DUPLICATES linked)
    list(REMOVE_ITEM linked ${folder} "")
    list(JOIN linked " " linked)
    string(APPEND links "${folder}: ${linked}\n")
endforeach()
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/folder_links.txt "${links}")

add_test(NAME repo_includes COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_includes.sh
         ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_BINARY_DIR}/folder_links.txt)
add_test(NAME repo_includes_canary COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_includes.sh --self-test)
add_test(NAME repo_links COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_links.sh ${PROJECT_SOURCE_DIR})
add_test(NAME repo_links_canary COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_links.sh --self-test)
add_test(NAME repo_tree COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_tree.sh ${PROJECT_SOURCE_DIR})
add_test(NAME repo_install COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_install.sh
         ${PROJECT_BINARY_DIR} ${CMAKE_C_COMPILER})
set_tests_properties(repo_includes repo_includes_canary repo_links repo_links_canary repo_tree repo_install
                     PROPERTIES LABELS cpu TIMEOUT 60 SKIP_RETURN_CODE 77)

# The targets of perf/ are made after this folder is read, so this tests the option instead.
if(SLUICE_PERF)
    add_test(NAME repo_perf COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_perf.sh table ${PROJECT_SOURCE_DIR}
             ${PROJECT_BINARY_DIR})
    set_tests_properties(repo_perf PROPERTIES LABELS cpu TIMEOUT 60)
endif()

sluice_test(test_cli_options LIBS sluice_cli LABELS cpu debug)
add_test(NAME perf_bigram COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_bigram.sh
         ${PROJECT_SOURCE_DIR}/perf/training/bigram.sh)
set_tests_properties(perf_bigram PROPERTIES LABELS "cpu;debug" TIMEOUT 60)
if(TARGET sluice)
    sluice_test(test_cli_plan LIBS PkgConfig::JANSSON LABELS cpu debug TIMEOUT 180)
    # Long searches, whose claims are seconds of plans: test_cli_plan searches under the sanitizers.
    sluice_test(test_cli_search LIBS PkgConfig::JANSSON LABELS cpu TIMEOUT 120)
    foreach(test test_cli_plan test_cli_search)
        target_compile_definitions(${test} PRIVATE SLUICE_PROGRAM="$<TARGET_FILE:sluice>")
        add_dependencies(${test} sluice)
    endforeach()
    sluice_test(test_cli_published LIBS PkgConfig::JANSSON LABELS cpu)
    target_compile_definitions(test_cli_published PRIVATE SLUICE_PROGRAM="$<TARGET_FILE:sluice>"
                               SLUICE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
    add_dependencies(test_cli_published sluice)
    add_test(NAME cli_commands COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_cli.sh
             $<TARGET_FILE:sluice> ${PROJECT_VERSION})
    set_tests_properties(cli_commands PROPERTIES LABELS "cpu;debug" TIMEOUT 60)
    add_test(NAME cli_runs COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_runs.sh $<TARGET_FILE:sluice>)
    set_tests_properties(cli_runs PROPERTIES LABELS "cpu;nvme" TIMEOUT 60)
    add_test(NAME cli_profile COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_profile.sh
             $<TARGET_FILE:sluice> ${PROJECT_SOURCE_DIR})
    set_tests_properties(cli_profile PROPERTIES LABELS "cpu;nvme" TIMEOUT 240
                         ENVIRONMENT OMP_WAIT_POLICY=passive)
    add_test(NAME cli_ranks COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_cli_ranks.sh
             $<TARGET_FILE:sluice> ${PROJECT_SOURCE_DIR})
    set_tests_properties(cli_ranks PROPERTIES LABELS "cpu;mpi" TIMEOUT 180 SKIP_RETURN_CODE 77)
endif()

if(TARGET sluice)
    add_test(NAME slow.machine COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_machine.sh
             $<TARGET_FILE:sluice> $<TARGET_FILE:test_tiers_topology>)
    set_tests_properties(slow.machine PROPERTIES LABELS "cpu;nvme;slow" TIMEOUT 1200 SKIP_RETURN_CODE 77)
    add_test(NAME slow.train_tutorial_jobs COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_tutorial_jobs.sh
             $<TARGET_FILE:sluice> ${PROJECT_SOURCE_DIR})
    set_tests_properties(slow.train_tutorial_jobs PROPERTIES LABELS "cpu;mpi;nvme;slow" TIMEOUT 600 SKIP_RETURN_CODE 77)
endif()
