#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Explores what faults do to Drover (test/faults, test/schedules, test/specs), and prints tables
# of it. It installs what is missing. Logs of runs that broke a rule are left in
# DROVER_FAULTS_DIR, bin/faults unless it is set.
#
#     hack/faults.sh SIZE [FLAG...]
#
# SIZE says how much: short, default, full or exhaustive. Flags are those of go test. With some,
# test/faults alone is run.
set -o errexit -o nounset -o pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly size="${1:?usage: hack/faults.sh SIZE [FLAG...]}"
shift
hack/test-deps.sh
export DROVER_BIN="${DROVER_BIN:-${PWD}/bin/drover}" DROVER_FAULTS_DIR="${DROVER_FAULTS_DIR:-${PWD}/bin/faults}" DROVER_TEST_TIER=full
rm -rf "${DROVER_FAULTS_DIR}"
mkdir -p "${DROVER_FAULTS_DIR}"
failed=0
go test -count 1 -timeout 12h -parallel 6 -v ./test/faults -size "${size}" "$@" || failed=1
if [[ "$#" -gt 0 ]]; then
	exit "${failed}"
fi
if [[ "${size}" == full ]]; then
	go test -count 1 -timeout 12h -v ./test/schedules -duration 30m || failed=1
	go test -count 1 -timeout 3h -v ./test/specs || failed=1
else
	go test -count 1 -timeout 1h -v ./test/schedules || failed=1
fi
exit "${failed}"
