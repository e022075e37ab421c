#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Makes sure that QEMU is there, and qemu-img, by which tests check disks: installs
# them by apt, as root or with sudo, where they are missing. Safe to run again and
# again.
set -o errexit -o nounset -o pipefail

readonly program=qemu-system-x86_64

die() {
	echo "qemu.sh: $*" >&2
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
	command -v apt-get >/dev/null || die "${program} is missing and there is no apt-get to install it with: install it by hand"
	echo "qemu.sh: installing $*"
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1 && return
	as_root apt-get update -qq >/dev/null || die "apt-get update failed"
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null ||
		die "apt-get could not install $*"
}

command -v "${program}" >/dev/null || apt_install qemu-system-x86 seabios
command -v qemu-img >/dev/null || apt_install qemu-utils
echo "qemu.sh: $("${program}" --version | head -n 1)"
