#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Prints, a line each and in order, what a cluster could leave on a host: folders in
# TMPDIR, processes, control groups, mounts, network namespaces and interfaces, settings
# of the kernel that a kubelet would change, images and containers of the Docker engine.
# What differs before and after a run was left by it, or by another run at the same time.
#
#     test/cluster/leftovers.sh
set -o errexit -o nounset -o pipefail

readonly temp="${TMPDIR:-/tmp}"

folders() {
	find "${temp}" -ignore_readdir_race -mindepth 1 -maxdepth 1 \( -name 'Test*' -o -name 'drover-*' -o -name 'tmp.*' \) -printf 'folder %p\n'
}

# processes are those of the programs that tests start.
processes() {
	local comm pid
	for comm in /proc/[0-9]*/comm; do
		pid="${comm#/proc/}"
		case "$(cat "${comm}" 2>/dev/null || true)" in
		qemu-system* | drover* | dockerd | containerd* | runc* | kubelet | kube-* | etcd | pause | probe) echo "process ${pid%/comm} $(tr '\0' ' ' <"${comm%comm}cmdline" 2>/dev/null | cut -c 1-200)" ;;
		esac
	done
}

groups() { find /sys/fs/cgroup -type d -name 'drover-*' -printf 'control group %p\n' 2>/dev/null || true; }

mounts() {
	awk -v temp="${temp}/" 'index($2, temp) == 1 || index($2, "/var/lib/kubelet") == 1 {print "mount " $2}' /proc/mounts
}

networks() {
	find /run/netns -mindepth 1 -printf 'network namespace %f\n' 2>/dev/null || true
	find /sys/class/net -name 'drover-*' -printf 'interface %f\n'
}

settings() {
	local file
	for file in /proc/sys/{vm/overcommit_memory,vm/panic_on_oom,kernel/panic,kernel/panic_on_oops,kernel/keys/root_max*}; do
		echo "setting ${file#/proc/sys/} $(cat "${file}")"
	done
}

engine() {
	command -v docker >/dev/null && timeout 20 docker info >/dev/null 2>&1 || return 0
	docker image ls --all --quiet --no-trunc | sed 's/^/image /'
	docker ps --all --no-trunc --format 'container {{.ID}} {{.Names}}'
}

{ folders && processes && groups && mounts && networks && settings && engine; } | LC_ALL=C sort -u
