# Writes the header that says what is being built. Run at every build, so that the commit is never a stale one; the
# file changes only when its content does. Without git, the commit is the one that scripts/bundle left in .commit, "dirty"
# behind it where there were changes.
#   cmake -DSOURCE=... -DHEADER=... -DVERSION=... -P Version.cmake
cmake_minimum_required(VERSION 3.22)
set(commit "")
set(dirty "false")
find_program(GIT git)
if(GIT AND EXISTS "${SOURCE}/.git")
  execute_process(COMMAND "${GIT}" -C "${SOURCE}" rev-parse HEAD OUTPUT_VARIABLE commit
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  execute_process(COMMAND "${GIT}" -C "${SOURCE}" --no-optional-locks status --porcelain OUTPUT_VARIABLE changes ERROR_QUIET)
  if(changes)
    set(dirty "true")
  endif()
endif()
if(NOT commit AND EXISTS "${SOURCE}/.commit")
  file(READ "${SOURCE}/.commit" words)
  string(REGEX MATCH "^[0-9a-f]+" commit "${words}")
  if(words MATCHES " dirty")
    set(dirty "true")
  endif()
endif()
file(CONFIGURE OUTPUT "${HEADER}" @ONLY CONTENT "#define VRAMLAB_BUILD_COMMIT \"@commit@\"
#define VRAMLAB_BUILD_DIRTY @dirty@
")
