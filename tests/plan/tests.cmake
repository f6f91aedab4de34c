# Placement, compile, simulate, and the formulas of ZeRO. Under the sanitizers a search takes ten times as long: there
# frozen, copies and bound stand for all.
foreach(behaviour compile split carry scale commit saves ranks place random best frozen copies bound)
    set(labels cpu)
    if(behaviour MATCHES "^(frozen|copies|bound)$")
        set(labels cpu debug)
    endif()
    sluice_test(test_plan_${behaviour} LIBS sluice_plan sluice_program sluice_config sluice_base m LABELS ${labels}
                TIMEOUT 180)
endforeach()
sluice_test(test_plan_scouts LIBS sluice_plan sluice_program sluice_base m LABELS cpu tsan TIMEOUT 300)
test_line(test_plan_scouts.open COMMAND test_plan_scouts open LABELS cpu TIMEOUT 180)
sluice_test(test_plan_zero LIBS train_fixture LABELS cpu debug)
# More draws of the same.
foreach(behaviour compile commit ranks)
    test_line(slow.many.test_plan_${behaviour} COMMAND test_plan_${behaviour} LABELS slow TIMEOUT 600
              ENVIRONMENT SLUICE_TEST_MANY=1)
endforeach()
test_line(slow.test_plan_place COMMAND test_plan_place 100 50 LABELS slow TIMEOUT 1800)
test_line(slow.test_plan_random COMMAND test_plan_random 200 LABELS slow TIMEOUT 600)
test_line(slow.test_plan_best COMMAND test_plan_best 64 LABELS slow TIMEOUT 3600)
