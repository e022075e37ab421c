#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Checks what Drover's programs link for known vulnerabilities, with the govulncheck
# that hack/tools/vuln pins.
#
#     hack/vulncheck.sh [FLAG...]
#
# Flags go to govulncheck, for example -show verbose. VULNCHECK_DB names another
# database than https://vuln.go.dev, such as file:///var/lib/vulndb.
#
# Module standalone is checked by package: finding out which of Kubernetes' functions
# are called takes more time and memory than a build machine has. So a finding there
# may be in a function that is never called.
#
# Exit code: 0 if no vulnerability is known, 3 if one is, 1 if the check failed.
set -o errexit -o nounset -o pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
readonly root
readonly db="${VULNCHECK_DB:-https://vuln.go.dev}"
govulncheck="$("${root}/hack/tool.sh" govulncheck)"
readonly govulncheck

found=() unknown=()
# check MODULE LEVEL [FLAG...]
check() {
	local code=0
	echo "vulncheck ${1}, by ${2}"
	GOWORK=off "${govulncheck}" -C "${root}/${1}" -db "${db}" -scan "${2}" "${@:3}" ./... || code=$?
	case "${code}" in
	0) ;;
	3) found+=("${1}") ;;
	*) unknown+=("${1}") ;;
	esac
}

check . symbol "$@"
check standalone package "$@"
check hack/image symbol "$@"
check hack/release symbol "$@"

if [[ "${#unknown[@]}" -gt 0 ]]; then
	echo "vulncheck.sh: NOT CHECKED: ${unknown[*]}. The error stands above; the database is queried at ${db}," >&2
	echo "vulncheck.sh: and VULNCHECK_DB names another one (https:// or file://) where that cannot be reached." >&2
	exit 1
fi
if [[ "${#found[@]}" -gt 0 ]]; then
	echo "vulncheck.sh: known vulnerabilities in: ${found[*]}" >&2
	exit 3
fi
echo "No known vulnerabilities."
