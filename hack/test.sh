#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Runs the tests of all modules. make test calls it, after it has built
# bin/drover, which integration tests start.
#
#     hack/test.sh [FLAG...]
#
# Flags go to go test, for example -run TestContract. What the tests need, a C
# compiler for -race, a Docker engine and QEMU, is installed and started if it is
# missing, and where that cannot be the run fails: no test is skipped for the
# lack of an engine.
set -o errexit -o nounset -o pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The program under test, built once. Tests run in their packages' folders.
export DROVER_BIN="${DROVER_BIN:-${PWD}/bin/drover}"
[[ -x "${DROVER_BIN}" ]] || {
	echo "hack/test.sh: ${DROVER_BIN} is missing: run make build" >&2
	exit 1
}
export CGO_ENABLED=1 # for -race

hack/test-deps.sh

# Packages are tested one by one: within each, many tests run at a time already,
# and what must happen within two seconds should not wait for another package's
# clusters. An old result does not count, since go test cannot tell that an
# engine has changed.
run() {
	go test -p 1 -count 1 -timeout 15m "$@" ./... | { grep -v '\[no test files\]$' || true; }
}

echo "compile, module ." # -p 1 would slow this down
go build -buildvcs=false -race ./...
echo "build, Helm"
hack/tool.sh helm >/dev/null
failed=0
echo "test, module ."
run -race "$@" || failed=1
echo "test, module hack/image"
(cd hack/image && run -race "$@") || failed=1

# kube-apiserver is in the next module: compiling it once more, for -race, would
# take longer than all tests together.
echo "test, module standalone"
cd standalone
run "$@" || failed=1
exit "${failed}"
