#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Prints the paths of archives with the files of a Debian each, of which tests build container images:
#
#     hack/debian-root.sh NAME...
#
# The names are inits, which has programs that are process 1 of images, services, which has servers, languages
# and a program of musl, workloads, whose programs need modules of the kernel, and chromium. It needs root, and takes minutes for each. The cache (hack/cache.sh) keeps what it has made
# until its folder or this script changes. SUITE and MIRROR say which Debian; mmdebstrap is installed by apt where it
# is missing.
set -o errexit -o nounset -o pipefail

# shellcheck source=hack/install-lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/install-lib.sh"

readonly suite="${SUITE:-bookworm}" mirror="${MIRROR:-http://deb.debian.org/debian}"
dir="$("$(dirname "${BASH_SOURCE[0]}")/cache.sh")/debian-root"
script="${suite} $(sha256sum <"${BASH_SOURCE[0]}")"
readonly dir script
readonly -A packages=(
	[inits]=s6,runit,tini,dumb-init,catatonit,openrc,sysvinit-core,systemd,busybox-static,procps
	[workloads]=docker.io,containerd,iptables,nftables,wireguard-tools,iproute2,fuse2fs,e2fsprogs,kmod,systemd,busybox-static,procps
	[chromium]=chromium,fonts-dejavu-core
	[services]=postgresql-15,redis-server,nginx-light,nodejs,python3,musl,musl-dev,procps
)
readonly excluded=('/usr/share/doc/*' '/usr/share/man/*' '/usr/share/locale/*' '/usr/share/i18n/*' '/usr/share/zoneinfo/*' '/usr/lib/*/libLLVM*' '/usr/lib/postgresql/*/lib/bitcode/*')

# add_musl_program adds /usr/bin/musl-program to an archive that has musl-dev. It ends with 7 at SIGTERM.
add_musl_program() {
	local root="${work}/root" lib="${work}/root/usr/lib/x86_64-linux-musl"
	mkdir -p "${root}/usr/bin"
	tar -x -f "$1" -C "${root}" ./usr/lib/x86_64-linux-musl ./usr/include/x86_64-linux-musl
	gcc -nostdinc -isystem "${root}/usr/include/x86_64-linux-musl" -nostdlib -o "${root}/usr/bin/musl-program" -x c - -x none \
		"${lib}/crt1.o" "${lib}/crti.o" -L"${lib}" -lc "${lib}/crtn.o" -Wl,-dynamic-linker,/lib/ld-musl-x86_64.so.1 <<-'END'
		#include <netdb.h>
		#include <pwd.h>
		#include <signal.h>
		#include <stdio.h>
		#include <unistd.h>

		static void end(int number) { _exit(7); }

		int main(void) {
			struct addrinfo *found;
			char host[64];

			gethostname(host, sizeof host);
			printf("%s runs, and its host is %s\n", getpwuid(getuid())->pw_name, getaddrinfo(host, 0, 0, &found) ? "unknown" : "known");
			fflush(stdout);
			for (signal(SIGTERM, end);;)
				pause();
		}
	END
	tar -r -f "$1" --owner root --group root -C "${root}" ./usr/bin/musl-program
}

# make_root makes an archive.
make_root() {
	local name="$1" options=() path
	[[ "$(id -u)" -eq 0 ]] || die "mmdebstrap needs root"
	command -v mmdebstrap >/dev/null || apt_install mmdebstrap
	echo "debian-root.sh: making a Debian ${suite} of ${name}, which takes minutes" >&2
	for path in "${excluded[@]}"; do
		options+=(--dpkgopt="path-exclude=${path}")
	done
	mmdebstrap --quiet --mode=root --variant=essential "${options[@]}" --include="${packages[${name}]}" "${suite}" "${work}/root.tar" "${mirror}" >"${work}/log" 2>&1 ||
		die "mmdebstrap failed: $(tail -n 5 "${work}/log")"
	[[ "${name}" != services ]] || add_musl_program "${work}/root.tar"
	mv "${work}/root.tar" "${dir}/${name}.tar"
	echo "${script}" >"${dir}/${name}.script"
}

mkdir -p "${dir}"
exec 9>"${dir}/.lock"
flock 9 # tests may come here at the same time
work="$(mktemp -d)"
trap 'rm -rf "${work}"' EXIT
for name in "$@"; do
	[[ -n "${packages[${name}]:-}" ]] || die "there is no ${name}: there are ${!packages[*]}"
	if [[ ! -f "${dir}/${name}.script" || "$(<"${dir}/${name}.script")" != "${script}" ]]; then
		make_root "${name}"
	fi
	echo "${dir}/${name}.tar"
done
