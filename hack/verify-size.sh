#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Fails when a program built by make build is larger than its limit. The cost of a
# new dependency is visible here first.
set -o errexit -o nounset -o pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

failed=0
# check PROGRAM MB
check() {
	local size
	size="$(stat -c %s "$1")"
	printf '%-22s %3d.%d MB, at most %d\n' "$1" $((size / 1000000)) $((size / 100000 % 10)) "$2"
	[[ "${size}" -le $(($2 * 1000000)) ]] || failed=1
}

check bin/drover 156 # with drover-machine in it
check bin/drover-controller 62
check bin/kubectl-vm 42
check bin/drover-launcher 5
check bin/drover-machine 13
if [[ "${failed}" -ne 0 ]]; then
	echo "verify-size.sh: a program is too large; go tool nm -size -sort size shows what a build without -s has in it" >&2
	exit 1
fi
