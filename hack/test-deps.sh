#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Makes sure that what the tests need is there: a C compiler, which go test
# -race links with, a Docker engine that answers, and QEMU. It installs what is
# missing by apt, as root or with sudo, and fails where it cannot.
set -o errexit -o nounset -o pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)"

die() {
	echo "test-deps.sh: $*" >&2
	exit 1
}

as_root() {
	if [[ "$(id -u)" -eq 0 ]]; then
		"$@"
	elif command -v sudo >/dev/null; then
		sudo -- "$@"
	else
		die "needs root or sudo to run: $*"
	fi
}

apt_install() {
	command -v apt-get >/dev/null || die "$* is missing and there is no apt-get to install it with: install it by hand"
	echo "test-deps.sh: installing $*"
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1 && return
	as_root apt-get update -qq >/dev/null || die "apt-get update failed"
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null ||
		die "apt-get could not install $*"
}

compiler="$(go env CC)"
command -v "${compiler%% *}" >/dev/null || apt_install gcc libc6-dev
"${here}/dockerd.sh"
"${here}/qemu.sh"
