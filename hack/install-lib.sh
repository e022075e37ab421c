#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# What the scripts share that install missing programs. They source it.

die() {
	echo "$(basename "$0"): $*" >&2
	exit 1
}

# need_root ends the script where it can change nothing on this host. sudo may ask for a password.
need_root() {
	[[ "$(id -u)" -eq 0 ]] || { command -v sudo >/dev/null && { sudo -n true 2>/dev/null || sudo -v 2>/dev/null; }; } ||
		die "needs root, or a sudo that allows it: $1"
}

# as_root runs a command as root.
as_root() {
	if [[ "$(id -u)" -eq 0 ]]; then
		"$@"
	else
		sudo -- "$@"
	fi
}

# apt_get runs apt-get, which gives up on a mirror that does not answer, and ends in any case.
apt_get() {
	as_root env DEBIAN_FRONTEND=noninteractive timeout --kill-after=30 1800 apt-get -qq \
		-o Acquire::Retries=1 -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20 -o DPkg::Lock::Timeout=300 "$@" </dev/null 2>&1
}

apt_update() {
	local output
	need_root "to update the lists of packages"
	output="$(apt_get update)" || die "apt-get update failed: $(first_error "${output}")"
}

# first_error is the line of apt-get's output that names the cause, such as a mirror that does not answer.
first_error() { grep --max-count=1 -E 'Failed to fetch|Could not' <<<"$1" || tail -n 1 <<<"$1"; }

# apt_install installs packages, with the lists that are there if they will do. It tries once more
# with new ones.
apt_install() {
	local output
	command -v apt-get >/dev/null || die "$* is missing and there is no apt-get to install it with: install it by hand"
	need_root "to install $*"
	echo "$(basename "$0"): installing $*" >&2
	output="$(apt_get install -y --no-install-recommends "$@")" && return
	echo "$(basename "$0"): installing once more, with new lists of packages: $(first_error "${output}")" >&2
	output="$(apt_get update; apt_get install -y --no-install-recommends "$@")" ||
		die "apt-get could not install $*: $(first_error "${output}")"
}

# download_package PACKAGE FOLDER fetches a package into a folder and installs nothing.
download_package() {
	(cd "$2" && timeout --kill-after=30 900 apt-get download -qq "$1" -o Acquire::Retries=1 \
		-o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20 >apt.log 2>&1)
}

# cloud_kernel is Debian's package of its kernel for clouds, and cloud_kernel_version the one with a version
# that it stands for, if there is any.
readonly cloud_kernel=linux-image-cloud-amd64
cloud_kernel_version() {
	{ apt-cache depends "${cloud_kernel}" 2>/dev/null || true; } | awk '/Depends: linux-image-/ {name = $2} END {print name}'
}

# fetch_cloud_kernel FOLDER [HINT] downloads that package into a folder and unpacks it into FOLDER/root. Where it
# cannot, it ends the script, with a hint to people.
fetch_cloud_kernel() {
	local package
	command -v apt-get >/dev/null || die "there is no apt-get to get a kernel with${2:-}"
	package="$(cloud_kernel_version)"
	if [[ -z "${package}" ]] || ! download_package "${package}" "$1"; then
		apt_update
		package="$(cloud_kernel_version)"
		[[ -n "${package}" ]] || die "apt knows no package ${cloud_kernel}, which is Debian's${2:-}"
		download_package "${package}" "$1" || die "apt-get could not download ${package}: $(tail -n 1 "$1/apt.log")"
	fi
	dpkg -x "$1"/*.deb "$1/root"
}
