#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Runs every fuzz target of the root module, one after the other. make fuzz calls it.
#
#     hack/fuzz.sh [PATTERN]
#
# FUZZTIME is how long each runs (30s). PATTERN selects targets by a part of "PACKAGE
# TARGET", such as streams or FuzzProbe. A finding fails the run, and its input is in
# testdata/fuzz of the package: with the fix it is kept there, so that every go test
# runs it.
set -o errexit -o nounset -o pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly fuzztime="${FUZZTIME:-30s}" pattern="${1:-}"

# Lines such as "./internal/image FuzzRef".
targets="$(git ls-files --cached --others --exclude-standard -- '*_test.go' ':!:standalone' ':!:hack' |
	xargs --no-run-if-empty grep -H --only-matching --perl-regexp '^func \KFuzz\w+(?=\(f \*testing\.F\))' |
	sed -E 's|^(.*)/[^/]+:|./\1 |' | sort)"
readonly targets
[[ -n "${targets}" ]] || {
	echo "hack/fuzz.sh: there are no fuzz targets" >&2
	exit 1
}

run=0
findings=0
started="${SECONDS}"
while read -r package target; do
	[[ "${package} ${target}" == *"${pattern}"* ]] || continue
	run=$((run + 1))
	# Minimizing an input that is only interesting would take a minute of its own.
	if output="$(go test -run '^$' -fuzz "^${target}\$" -fuzztime "${fuzztime}" -fuzzminimizetime 5s "${package}" 2>&1)"; then
		printf '%-40s %-22s %s\n' "${package}" "${target}" "$(grep -o 'execs: .*' <<<"${output}" | tail -n 1)"
		continue
	fi
	findings=$((findings + 1))
	echo "${output}"
	input="$(sed -nE 's|^ *Failing input written to (testdata/fuzz/.*)$|\1|p' <<<"${output}" | head -n 1)"
	echo "hack/fuzz.sh: ${package} ${target} has a finding${input:+: keep ${package}/${input} with the fix}" >&2
done <<<"${targets}"
[[ "${run}" -gt 0 ]] || {
	echo "hack/fuzz.sh: no target has \"${pattern}\" in its name" >&2
	exit 1
}
echo "${run} targets, ${findings} findings, $((SECONDS - started)) s"
[[ "${findings}" -eq 0 ]]
