#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Shows a real machine at work on this host, and checks all that it shows: boots
# a small Linux by kubectl apply, reads its serial console, queries its web server,
# powers it off by its power button, boots it again with its disk, deletes it, and
# cleans up. make demo DRIVER=qemu calls it.
#
#     hack/demo-qemu.sh [FLAG...]
#
# It needs Go, make, and root or sudo for what is missing (QEMU, from apt). The
# guest's kernel is Debian's, downloaded by apt-get and not installed. Flags go to
# drover up, for example --qemu-accel tcg.
set -o errexit -o nounset -o pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
source hack/demo-lib.sh

readonly more_flags=("$@")
readonly guest="${PWD}/bin/guest"
readonly boot_within=300 # seconds, on a slow host without KVM

vm=linux-vm
uid=""
machine_dir="" # the machine's directory
port="" # the host port that leads to it

main() {
	create_work_dir
	find_qemu
	build_drover
	build_guest
	start_drover --vm-driver qemu --qemu-image-dirs "${guest}" "${more_flags[@]}"
	grep -oE '"Machines [^"]+"' "${data}/logs/drover.log" | indent || true
	apply_manifest
	show_vm
	query_guest
	run_in_guest
	power_off
	power_on
	delete_vm
	stop_drover
	echo
	echo "${bold}All of it worked${plain}, with the qemu driver, in $((SECONDS - begun)) s after the build. Next: make up, and docs/qemu.md."
}

find_qemu() {
	print_step "Find QEMU, and install it if it is missing"
	run_live hack/qemu.sh
}

build_guest() {
	print_step "Build a small guest: Debian's kernel, and a static Go program as its init" "It serves HTTP and reacts to the power button."
	run_live hack/linux-guest.sh "${guest}"
	run ls -l "${guest}/vmlinuz" "${guest}/initrd"
}

manifest() {
	cat <<-EOF
		apiVersion: cloudnative.tw/v1alpha1
		kind: VirtualMachine
		metadata:
		  name: ${vm}
		spec:
		  driver: qemu
		  resource:
		    cpu: 1
		    memory: 256Mi
		    rootDisk: 64Mi
		  image:
		    kernel:
		      source: ${guest}/vmlinuz
		      initrd: ${guest}/initrd
		      cmdline: console=ttyS0 quiet panic=-1 agent=honest
		  userData:
		    inline: "hello from user-data"
		  ports:
		    - name: http
		      port: 80
		  readinessProbe:
		    tcpSocket:
		      port: 80
		  shutdownGracePeriodSeconds: 120
	EOF
}

apply_manifest() {
	print_step "Create a machine, and wait until its web server answers" "No hostPort is requested, so Drover chooses one."
	manifest >"${work}/${vm}.yaml"
	run cat "${work}/${vm}.yaml"
	start_watch
	run bin/drover kubectl apply -f "${work}/${vm}.yaml"
	run bin/drover kubectl wait --for=condition=Ready --timeout="${boot_within}s" "vm/${vm}"
	stop_watch
	uid="$(field .metadata.uid)"
	machine_dir="${data}/drivers/qemu/vms/${uid}"
	process_is_there || fail "no process runs the machine"
	run bin/drover kubectl get vms --output wide
}

process_is_there() { [[ "/proc/$(<"${machine_dir}/pid")/cwd" -ef "${machine_dir}" ]]; }

show_vm() {
	print_step "Show what the machine printed to its serial console"
	shows "drover linux guest 1 is up"
}

# shows prints the console and requires a text on it.
shows() {
	run bin/drover vm logs "${vm}" --tail 20
	[[ "${out}" == *"$1"* ]] || fail "the console does not show: $1"
}

run_in_guest() {
	print_step "Run a command in it, by the guest agent, and list its network interfaces"
	run bin/drover vm exec "${vm}" -- echo "hello from the guest"
	[[ "${out}" == "hello from the guest" ]] || fail "the command has another output"
	run bin/drover vm ip "${vm}"
}

query_guest() {
	print_step "Query its web server, by the port of this host that leads to it"
	run bin/drover vm show "${vm}"
	port="$(field '.status.ports[?(@.name=="http")].hostPort')"
	[[ -n "${port}" ]] || fail "status has no host port"
	http_get 1
	[[ "${out}" == *"hello from user-data"* ]] || fail "the guest did not find its user-data"
}

# http_get does without curl, which a fresh machine may not have, and
# requires the number of boots of the guest.
http_get() {
	local host
	host="$(field '.status.addresses[0]')"
	print_command curl "http://${host}:${port}/"
	out="$(timeout 60 bash -c 'exec 3<>"/dev/tcp/$0/$1" && printf "GET / HTTP/1.0\r\n\r\n" >&3 && cat <&3' "${host}" "${port}" 2>&1)" ||
		fail "the guest does not answer: ${out}"
	out="${out##*$'\r\n\r\n'}"
	indent <<<"${out}"
	[[ "${out}" == *"\"boots\":$1,"* ]] || fail "the guest does not say that this is boot $1"
}

power_off() {
	print_step "Power it off: Drover presses its power button, and the guest shuts down"
	start_watch
	run bin/drover vm stop "${vm}" --wait --timeout 150s
	stop_watch
	shows "drover linux guest powers off"
	[[ "$(field .status.reason)" == StoppedAsAsked ]] || fail "the reason is $(field .status.reason)"
	! process_is_there || fail "a process still runs the machine"
}

power_on() {
	print_step "Power it on again: the guest counts its boots on its disk"
	start_watch
	run bin/drover vm start "${vm}" --wait --timeout "${boot_within}s"
	stop_watch
	port="$(field '.status.ports[?(@.name=="http")].hostPort')"
	http_get 2
}

delete_vm() {
	print_step "Delete it: the object stays until the machine is gone"
	run bin/drover vm delete "${vm}" --yes --timeout 60s
	run find "${data}/drivers/qemu/vms" -mindepth 1
	[[ -z "${out}" ]] || fail "files of the machine are left"
	run bin/drover kubectl get vms
	[[ "${out}" == "No resources found"* ]] || fail "there still is a VM"
}

# Cleaning up. It ends what this run started and nothing else.

cleanup() {
	local status=$?
	trap - EXIT
	trap '' INT TERM HUP
	set +o errexit
	stop_watch
	stop_up
	if [[ -n "${work}" ]]; then
		end_machines
		rm -rf "${work}"
	fi
	exit "${status}"
}

# end_machines ends the machines of an interrupted run: machines outlive Drover.
end_machines() {
	for machine_dir in "${data}"/drivers/qemu/vms/*; do
		if [[ -e "${machine_dir}/pid" ]] && process_is_there; then kill -KILL "$(<"${machine_dir}/pid")"; fi
	done
}

main
