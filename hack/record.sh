#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Records the picture of the README, docs/first.svg: starts Drover on a temporary data dir with driver
# qemu, runs each command that the picture shows in a terminal of termtosvg, and removes all of it. Times
# in the picture are those of this host. make record calls it.
set -o errexit -o nounset -o pipefail

# shellcheck source=hack/install-lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/install-lib.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

work="$(mktemp -d "${TMPDIR:-/tmp}/drover-record-XXXXXX")"
readonly work

cleanup() {
	kill "${up_pid}" 2>/dev/null && wait "${up_pid}" 2>/dev/null
	bin/drover purge --data-dir "${work}/data" --data --yes >/dev/null
	rm -rf "${work}"
}

command -v termtosvg >/dev/null || apt_install termtosvg
setsid bin/drover up --data-dir "${work}/data" --port 0 --vm-driver qemu >"${work}/up.log" 2>&1 &
up_pid=$!
trap cleanup EXIT
until [[ -e "${work}/data/run/ready" ]]; do
	kill -0 "${up_pid}" || die "drover up ended: $(<"${work}/up.log")"
	[[ "${SECONDS}" -lt 180 ]] || die "drover up was not ready within 180 s"
	sleep 0.2
done

cat >"${work}/session" <<'EOF'
#!/bin/bash
# type_and_run shows a command as it is typed, and runs it.
type_and_run() {
	printf '$ '
	for ((i = 0; i < ${#1}; i++)); do
		printf '%s' "${1:i:1}"
		sleep 0.03
	done
	echo
	eval "$1"
	sleep 1
}
sleep 0.5
type_and_run "uname -r"
type_and_run "drover vm run --rm -- uname -r"
type_and_run "drover vm create web --port 30080:80 --probe 80 --wait"
type_and_run "curl --silent http://localhost:30080/"
type_and_run "drover vm list"
type_and_run "drover vm delete web --yes"
sleep 3
EOF
chmod +x "${work}/session"
# termtosvg stops at the end of its input, so it gets a terminal.
KUBECONFIG="${work}/data/kubeconfig" PATH="${PWD}/bin:${PATH}" script --quiet --return --command \
	"termtosvg docs/first.svg --screen-geometry 92x24 --template gjm8 --min-frame-duration 150 --command ${work}/session" /dev/null
