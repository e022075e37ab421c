#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Builds the root file system of a container with Debian's OpenSSH server, for tests of
# `kubectl vm ssh`, and prints the path of the archive. Its /init makes host keys and runs the server; user
# ann may log in with a key of /home/ann/.ssh/authorized_keys, where none is yet.
#
#     hack/ssh-guest.sh
#
# The packages come by apt-get download and are not installed. An archive that was built by
# the same version of this script is kept in the cache (hack/cache.sh).
set -o errexit -o nounset -o pipefail

# shellcheck source=hack/install-lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/install-lib.sh"

dir="$("$(dirname "${BASH_SOURCE[0]}")/cache.sh")/ssh-guest"
readonly dir archive="${dir}/ssh-guest.tar" built_by="${dir}/ssh-guest.by"
readonly programs=(openssh-server openssh-sftp-server openssh-client busybox-static)

work="$(mktemp -d)"
trap 'rm -rf "${work}"' EXIT
root="${work}/root"

this_version() { sha256sum <"${BASH_SOURCE[0]}"; }

is_built() { [[ -f "${archive}" && -f "${built_by}" && "$(<"${built_by}")" == "$(this_version)" ]]; }

# list_packages prints the programs' packages and the libraries that they may load.
list_packages() {
	printf '%s\n' "${programs[@]}"
	apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks \
		--no-replaces --no-enhances "${programs[@]}" |
		grep -E '^(lib|zlib)' | grep -vE 'perl|elogind|installer|newt|slang|common' | sort -u
}

fetch_packages() {
	local packages
	mapfile -t packages < <(list_packages)
	(cd "${work}" && apt-get download -qq "${packages[@]}" >/dev/null 2>&1)
}

unpack() {
	local package
	mkdir -p "${root}"
	for package in "${work}"/*.deb; do
		dpkg -x "${package}" "${root}"
	done
	rm -rf "${root}"/usr/share/{doc,man,locale,lintian,bug,perl*}
	local applet
	for applet in $("${root}/bin/busybox" --list); do
		[[ -e "${root}/bin/${applet}" ]] || ln -s busybox "${root}/bin/${applet}"
	done
}

configure() {
	mkdir -p "${root}"/{run/sshd,home/ann/.ssh,root,tmp,etc/ssh,proc,dev,sys,var/log}
	chmod 1777 "${root}/tmp"
	cat >"${root}/etc/passwd" <<-END
		root:x:0:0:root:/root:/bin/sh
		sshd:x:100:65534::/run/sshd:/bin/false
		ann:x:1000:1000:Ann:/home/ann:/bin/sh
	END
	printf '%s\n' root:x:0: nogroup:x:65534: ann:x:1000: tty:x:5: >"${root}/etc/group"
	# A password that no text has: the user is not locked, which would refuse keys too.
	printf '%s\n' 'root:*:19000:0:99999:7:::' 'ann:*:19000:0:99999:7:::' >"${root}/etc/shadow"
	cat >"${root}/etc/ssh/sshd_config" <<-END
		PasswordAuthentication no
		KbdInteractiveAuthentication no
		UsePAM no
		Subsystem sftp /usr/lib/openssh/sftp-server
	END
	cat >"${root}/init" <<-'END'
		#!/bin/sh
		ssh-keygen -A >/dev/null
		touch /home/ann/.ssh/authorized_keys
		chown -R 1000:1000 /home/ann
		chmod 700 /home/ann /home/ann/.ssh
		exec /usr/sbin/sshd -D -e
	END
	chmod 755 "${root}/init"
}

main() {
	is_built && return 0
	command -v apt-get >/dev/null || die "there is no apt-get to get an OpenSSH server with"
	echo "ssh-guest.sh: fetching an OpenSSH server" >&2
	fetch_packages || { apt_update && fetch_packages; } || die "apt-get could not download ${programs[*]}"
	unpack
	configure
	tar -C "${root}" --owner=0 --group=0 --numeric-owner -cf "${archive}.new" .
	mv "${archive}.new" "${archive}"
	this_version >"${built_by}"
}

mkdir -p "${dir}"
exec 9>"${dir}/.lock"
flock 9 # tests may come here at the same time
main
echo "${archive}"
