# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0

# Installs BUILD_DIR into a fresh prefix, builds the consumer against it elsewhere and runs it.
file(REMOVE_RECURSE ${WORK_DIR})
foreach(
  command
  "${CMAKE_COMMAND};--install;${BUILD_DIR};--prefix;${WORK_DIR}/prefix"
  "${CMAKE_COMMAND};-S;${SOURCE_DIR};-B;${WORK_DIR}/build;-DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix;-DCMAKE_CXX_COMPILER=${CXX}"
  "${CMAKE_COMMAND};--build;${WORK_DIR}/build"
  "${WORK_DIR}/build/consumer"
)
  execute_process(COMMAND ${command} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
