# One static library per folder of src/, one test program per folder.
#   mettle_folder(NAME DEPS lib... [SOURCES file...] [TEST_DEPS lib...])   sources: *.cpp of the folder except *_test.cpp and
#   main.cpp
# A test program x_test is built from the folder's *_test.cpp files and registered test by test with CTest.

add_library(mettle_flags INTERFACE)
target_compile_options(mettle_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wno-missing-field-initializers;-Werror;-fmacro-prefix-map=${CMAKE_SOURCE_DIR}/=>")
# GCC 13 takes the growth of a buffer inside fmt 9, inlined into ours, for a write past its end.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
  target_compile_options(mettle_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Wno-array-bounds;-Wno-stringop-overflow>")
endif()
# clang counts libstdc++ 12's own use of get_temporary_buffer (std::stable_sort) as ours.
target_compile_options(mettle_flags INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wno-deprecated-declarations>)
target_include_directories(mettle_flags INTERFACE ${CMAKE_SOURCE_DIR}/src)

function(mettle_folder name)
  cmake_parse_arguments(ARG "" "" "DEPS;SOURCES;TEST_DEPS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "(_test|main)\\.cpp$")
  if(NOT sources)
    add_library(mettle_${name} INTERFACE)
    target_link_libraries(mettle_${name} INTERFACE mettle_flags ${ARG_DEPS})
    return()
  endif()
  add_library(mettle_${name} STATIC ${sources} ${ARG_SOURCES})
  target_link_libraries(mettle_${name} PUBLIC mettle_flags ${ARG_DEPS})
  if(METTLE_TESTS)
    file(GLOB tests CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*_test.cpp)
    if(tests)
      add_executable(${name}_test ${tests})
      target_link_libraries(${name}_test PRIVATE mettle_${name} ${ARG_TEST_DEPS} GTest::gtest GTest::gmock GTest::gtest_main)
      target_compile_definitions(${name}_test PRIVATE METTLE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
      include(GoogleTest)
      gtest_discover_tests(${name}_test TEST_PREFIX "${name}." DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 600)
    endif()
  endif()
endfunction()
