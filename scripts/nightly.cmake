# A night as a dashboard's Nightly: ctest -S scripts/nightly.cmake with -D
#   PART             build: configures and builds; test: runs the tests; submit: notes, files and all of the above
#   BINARY           the build
#   NAME, START      of the build on the dashboard; "APPEND": goes on with what the part before began
#   SOURCE           the checkout (build)
#   CONFIGURE, BUILD the commands that do so (build)
#   TESTS            a regular expression; all but the labels bench and slow when not given (test)
#   JUNIT            where the results go as JUnit's XML (test)
#   RESOURCES, JOBS  file of the cards (vramlab doctor --ctest-resources), "" for none; tests at a time (test)
#   NOTES, FILES     of the night: what the dashboard shows, what it keeps (submit)
#   URL              of a CDash (submit). With file:///dev/null nothing leaves this machine
# What a CDash gets, or would get, is in Testing/<tag> of BINARY. Fails when the part failed, except for failed tests,
# which JUNIT tells.
set(CTEST_SOURCE_DIRECTORY "${SOURCE}")
set(CTEST_BINARY_DIRECTORY "${BINARY}")
cmake_host_system_information(RESULT CTEST_SITE QUERY HOSTNAME)
set(CTEST_BUILD_NAME "${NAME}")
set(CTEST_NIGHTLY_START_TIME "00:00:00 UTC")
ctest_start(Nightly ${START})

if(PART STREQUAL "build")
  set(CTEST_CONFIGURE_COMMAND "${CONFIGURE}")
  set(CTEST_BUILD_COMMAND "${BUILD}")
  if(EXISTS "${SOURCE}/.git")
    set(CTEST_UPDATE_TYPE git)
    set(CTEST_UPDATE_COMMAND git)
    set(CTEST_UPDATE_VERSION_ONLY ON) # only tells the revision
    ctest_update()
  endif()
  ctest_configure(RETURN_VALUE failed)
  if(failed)
    message(FATAL_ERROR "configuring failed")
  endif()
  ctest_build(RETURN_VALUE failed)
  if(failed)
    message(FATAL_ERROR "building failed")
  endif()
elseif(PART STREQUAL "test")
  if(RESOURCES)
    set(cards RESOURCE_SPEC_FILE "${RESOURCES}")
  endif()
  ctest_test(INCLUDE "${TESTS}" EXCLUDE_LABEL "^(bench|slow)$" OUTPUT_JUNIT "${JUNIT}" PARALLEL_LEVEL "${JOBS}" ${cards})
elseif(PART STREQUAL "submit")
  set(CTEST_NOTES_FILES ${NOTES})
  if(FILES)
    ctest_upload(FILES ${FILES})
  endif()
  ctest_submit(SUBMIT_URL "${URL}" RETRY_COUNT 2 RETRY_DELAY 3 RETURN_VALUE refused)
  file(STRINGS "${BINARY}/Testing/TAG" tag LIMIT_COUNT 1)
  file(READ "${BINARY}/Testing/Temporary/LastSubmit_${tag}.log" said)
  if(refused OR said MATCHES "Errors occurred") # an answer that says no is only told there
    message(FATAL_ERROR "${URL} took no results")
  endif()
endif()
