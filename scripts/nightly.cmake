# The tests of a build as a dashboard's Nightly: ctest -S scripts/nightly.cmake with -D
#   SOURCE, BINARY   the checkout and its build
#   JUNIT            where the results go as JUnit's XML
#   TESTS            a regular expression; all but the labels bench and slow when not given
#   URL              of a CDash to submit to; "": nothing is submitted, and Testing/<tag> of the build has what would be
set(CTEST_SOURCE_DIRECTORY "${SOURCE}")
set(CTEST_BINARY_DIRECTORY "${BINARY}")
cmake_host_system_information(RESULT CTEST_SITE QUERY HOSTNAME)
set(CTEST_BUILD_NAME "nightly")
set(CTEST_NIGHTLY_START_TIME "00:00:00 UTC")
ctest_start(Nightly)
ctest_test(INCLUDE "${TESTS}" EXCLUDE_LABEL "^(bench|slow)$" OUTPUT_JUNIT "${JUNIT}" RETURN_VALUE failed)
if(URL)
  ctest_submit(SUBMIT_URL "${URL}" RETRY_COUNT 3 RETRY_DELAY 20 RETURN_VALUE refused)
  if(refused)
    message(WARNING "${URL} took no results")
  endif()
endif()
