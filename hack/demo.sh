#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Shows Drover at work on this host, and checks all that it shows: starts it on
# a temporary data dir, applies examples/test-vm.yaml, shows the VM and its
# container, puts load on it, deletes it, and cleans up. make demo calls it.
#
#     [DRIVER=docker|qemu|pod|fake] hack/demo.sh [FLAG...]
#
# It needs Go, make, and root or sudo for what is missing (a Docker engine). On
# a host that cannot have one it continues with simulated servers and reports that. With
# DRIVER=qemu or pod it runs hack/demo-qemu.sh or hack/demo-pod.sh instead. Flags go to
# drover up.
set -o errexit -o nounset -o pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
[[ "${DRIVER:-}" != qemu && "${DRIVER:-}" != pod ]] || exec "hack/demo-${DRIVER}.sh" "$@"
source hack/demo-lib.sh

readonly more_flags=("$@")

readonly image=drover-demo-guest:latest
readonly manifest=examples/test-vm.yaml # what it requests, in the units of its driver:
readonly cpus=2 nano_cpus=2000000000 cpu_milli=2000 memory=4000000000

driver="${DRIVER:-docker}"
reachable=yes   # container addresses can be reached from here
cluster=""      # marks the containers of this run
image_before="" # image of that name that was there already
image_made=""
engine_started="" # set when this run started the Docker engine
uid=""
id=""

main() {
	[[ "${driver}" == docker || "${driver}" == fake ]] || fail "DRIVER is ${driver}: it must be docker, qemu, pod or fake"
	create_work_dir
	[[ "${driver}" == fake ]] || choose_driver
	build_programs
	start_demo
	apply_manifest
	show_vm
	load_vm
	delete_vm
	stop_drover
	echo
	echo "${bold}All of it worked${plain}, with the ${driver} driver, in $((SECONDS - begun)) s after the build. Next: make up, and README.md."
}

# Docker.

engine_answers() { command -v docker >/dev/null && timeout 10 docker info >/dev/null 2>&1; }

dockerd_runs() { [[ -r /var/run/docker.pid && -d "/proc/$(</var/run/docker.pid)" ]]; }

as_root() {
	if [[ "$(id -u)" -eq 0 ]]; then "$@"; else sudo -- "$@"; fi
}

choose_driver() {
	print_step "Find a Docker engine, and install or start one if there is none"
	local ran=""
	if engine_answers || dockerd_runs; then ran=yes; fi
	print_command hack/dockerd.sh
	if hack/dockerd.sh 2>&1 | indent; then
		driver=docker
	elif docker_by_group; then
		record_engine "${ran}"
		rerun_in_group
	else
		driver=fake
		print_note "No Docker engine is available here, for the reason above."
	fi
	record_engine "${ran}"
	[[ "${driver}" == fake ]] || check_host
	[[ "${driver}" == docker ]] || print_note "${bold}Continuing with the fake driver: servers are simulated, one file each.${plain}"
}

# record_engine records an engine that was not there before, to stop it later.
record_engine() {
	if [[ -z "$1" && -z "${DOCKER_HOST:-}" ]] && dockerd_runs; then engine_started=yes; fi
}

# docker_by_group reports whether the engine answers this user as a member of its
# group, which sudo can grant without changing the group's members.
docker_by_group() {
	[[ "$(id -u)" -ne 0 && -z "${DROVER_DEMO_IN_GROUP:-}" ]] && command -v sudo >/dev/null &&
		in_group timeout 10 docker info >/dev/null 2>&1
}

in_group() {
	sudo -E -u "$(id -un)" -g docker -- env PATH="${PATH}" HOME="${HOME}" DROVER_DEMO_IN_GROUP=yes "$@"
}

rerun_in_group() {
	print_note "Your user may not talk to the engine. This run borrows its group, docker, by sudo."
	local status=0
	in_group hack/demo.sh "${more_flags[@]}" || status=$?
	exit "${status}"
}

# check_host checks that the host has what the manifest requests.
check_host() {
	local have_cpus have_memory options
	read -r have_cpus have_memory options < <(docker info --format '{{.NCPU}} {{.MemTotal}} {{.SecurityOptions}}')
	if [[ "${have_cpus}" -lt "${cpus}" || "${have_memory}" -lt "${memory}" ]]; then
		print_note "${manifest} requests ${cpus} CPUs and ${memory} bytes of memory, and the Docker host has ${have_cpus} and ${have_memory}:" \
			"the VM would be Failed, reason Exhausted."
		driver=fake
	fi
	if [[ "${options}" == *rootless* || "${DOCKER_HOST:-unix://}" != unix://* ]]; then reachable=""; fi
}

# The demo.

build_programs() {
	build_drover
	[[ "${driver}" == docker ]] || return 0
	print_step "Build a small guest image: a static Go HTTP server, no registry needed"
	image_before="$(docker image ls --quiet --no-trunc "${image}")"
	image_made=yes
	run hack/demo-guest.sh "${image}"
}

start_demo() {
	local flags=(--vm-driver fake --fake-dir "${work}/fake" --fake-boot-time 1s)
	[[ "${driver}" == fake ]] || flags=(--vm-driver docker --docker-image "${image}")
	start_drover "${flags[@]}" "${more_flags[@]}"
	cluster="$(kubectl get namespace kube-system --output jsonpath='{.metadata.uid}')"
}

apply_manifest() {
	print_step "Create a virtual machine and watch its status"
	run cat "${manifest}"
	start_watch
	run bin/drover kubectl apply -f "${manifest}"
	until_within 60 watched Active || fail "test-vm was not Active within 60 s"
	stop_watch
	run bin/drover kubectl wait --for=condition=Ready --timeout=30s vm/test-vm
	uid="$(field .metadata.uid)"
	id="$(field .status.server.id)"
}

show_vm() {
	if [[ "${driver}" == docker ]]; then show_container; else show_file; fi
	print_step "Show the virtual machine" "CPU is per cent of one CPU, MEMORY per cent of the VM's. They are sampled" \
		"every ${usage_period} s here, and every 30 s by default."
	until_within $((2 * usage_period + 5)) has_usage || fail "no usage was reported"
	run bin/drover kubectl get vms
	run bin/drover vm show "${vm}"
	run bin/drover vm logs "${vm}" --tail 3
}

show_container() {
	print_step "Show the container that runs it" "cpu: 2 is ${nano_cpus} NanoCpus, memory: 4G is ${memory} bytes."
	run docker ps --filter name=test-vm
	[[ "${out}" == *"test-vm.default.${uid:0:8}"* ]] || fail "docker ps does not show container test-vm.default.${uid:0:8}"
	run docker inspect --format 'Memory {{.HostConfig.Memory}} NanoCpus {{.HostConfig.NanoCpus}}' "${id}"
	[[ "${out}" == "Memory ${memory} NanoCpus ${nano_cpus}" ]] || fail "the container has the wrong size"
}

show_file() {
	print_step "Show the file of the simulated server" "cpu: 2 is cpuMilli ${cpu_milli}, memory: 4G is ${memory} bytes."
	run cat "${work}/fake/${uid}.json"
	[[ "${out}" == *"\"cpuMilli\": ${cpu_milli},"* && "${out}" == *"\"memoryBytes\": ${memory},"* ]] ||
		fail "the server has the wrong size"
}

load_vm() {
	print_step "Put load on it and see CPU rise"
	if [[ "${driver}" == docker && -z "${reachable}" ]]; then
		print_note "Left out: the engine is rootless or on another host, so its containers cannot be reached from here."
		return
	fi
	local before
	before="$(cpu)"
	start_watch
	if [[ "${driver}" == docker ]]; then
		http_get "$(field '.status.addresses[0]')" "/load?seconds=20"
	else
		run sed -i 's/"load": 0,/"load": 0.9,/' "${work}/fake/${uid}.json"
	fi
	local from="${SECONDS}"
	# A busy host leaves the guest little, so a clear rise is enough.
	until_within $((2 * usage_period + 10)) cpu_above $((before + 10)) || fail "CPU was ${before} and did not rise by 10: it is $(cpu)"
	print_note "CPU rose within $((SECONDS - from)) s."
	# The first sample with load in it may be half idle.
	until_within $((usage_period + 2)) cpu_above 150 || true
	sleep 0.3 # for the row to be shown
	stop_watch
}

# cpu is the CPU column without its fraction.
cpu() {
	local cpu
	cpu="$(field .status.server.usage.cpu)"
	echo "${cpu%.*}"
}

cpu_above() { [[ "$(cpu)" -ge "$1" ]]; }

# http_get does without curl, which a fresh machine may not have.
http_get() {
	print_command curl "http://$1$2"
	out="$(timeout 10 bash -c 'exec 3<>"/dev/tcp/$0/80" && printf "GET %s HTTP/1.0\r\nHost: %s\r\n\r\n" "$1" "$0" >&3 && cat <&3' "$1" "$2" 2>&1)" ||
		fail "the guest does not answer at http://$1: ${out}"
	out="${out##*$'\r\n\r\n'}"
	indent <<<"${out}"
	[[ "${out}" == burning* ]] || fail "the guest did not take the load"
}

delete_vm() {
	print_step "Delete it: the object stays until the server is gone"
	start_watch
	run bin/drover kubectl delete -f "${manifest}" --timeout=60s
	stop_watch
	run bin/drover kubectl get vms
	[[ "${out}" == "No resources found"* ]] || fail "there still is a VM"
	if [[ "${driver}" == docker ]]; then
		run docker ps --all --filter name=test-vm
		[[ -z "$(docker ps --all --quiet --filter "id=${id}")" ]] || fail "the container is still there"
	else
		run ls "${work}/fake"
		[[ "${out}" != *"${uid}.json"* ]] || fail "the server's file is still there"
	fi
}

# Cleaning up. It ends what this run started and nothing else.

cleanup() {
	local status=$?
	trap - EXIT
	trap '' INT TERM HUP
	set +o errexit
	stop_watch
	stop_up
	if [[ -n "${cluster}" && "${driver}" == docker ]]; then remove_containers; fi
	[[ -z "${image_made}" ]] || remove_image
	[[ -z "${engine_started}" ]] || stop_engine
	[[ -z "${work}" ]] || rm -rf "${work}"
	exit "${status}"
}

# remove_containers removes the containers of an interrupted run.
remove_containers() {
	local left
	left="$(docker ps --all --quiet --filter "label=cloudnative.tw/cluster=${cluster}")"
	# shellcheck disable=SC2086 # one word for each container
	[[ -z "${left}" ]] || docker rm --force --volumes ${left} >/dev/null
}

# remove_image keeps the tag if it existed before this run, and removes the older
# image that lost its tag.
remove_image() {
	local gone="${image_before}"
	[[ -n "${gone}" ]] || gone="${image}"
	[[ "${gone}" == "$(docker image ls --quiet --no-trunc "${image}")" ]] || docker image rm "${gone}" >/dev/null 2>&1
}

stop_engine() {
	if [[ -n "$(docker ps --quiet 2>/dev/null)" ]]; then
		echo "The Docker engine that this run started keeps running: it has running containers."
	elif [[ -d /run/systemd/system ]]; then
		echo "Stopping the Docker engine, which was not running before."
		as_root systemctl stop docker.socket docker.service
	elif dockerd_runs; then
		echo "Stopping the Docker engine, which was not running before."
		as_root kill "$(</var/run/docker.pid)"
		until_within 30 dockerd_has_ended
	fi
}

dockerd_has_ended() { ! dockerd_runs; }

main
