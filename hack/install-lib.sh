#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# What the scripts share that install missing programs. They source it.

die() {
	echo "$(basename "$0"): $*" >&2
	exit 1
}

# as_root runs a command as root, or prints the command that needs root.
as_root() {
	if [[ "$(id -u)" -eq 0 ]]; then
		"$@"
	elif command -v sudo >/dev/null; then
		sudo -- "$@"
	else
		die "needs root or sudo to run: $*"
	fi
}

apt_update() { as_root apt-get update -qq >/dev/null || die "apt-get update failed"; }

# apt_install installs packages, with the lists that are there if they will do.
apt_install() {
	command -v apt-get >/dev/null || die "$* is missing and there is no apt-get to install it with: install it by hand"
	echo "$(basename "$0"): installing $*"
	local install=(env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@")
	as_root "${install[@]}" >/dev/null 2>&1 && return
	apt_update
	as_root "${install[@]}" >/dev/null || die "apt-get could not install $*"
}
