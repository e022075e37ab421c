#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Shows Drover at work on this host, and checks all that it shows: starts it on a temporary data
# dir, makes a VM by kubectl apply, shows what runs it, uses it, deletes it, and cleans up.
# make demo DRIVER=... calls it.
#
#     hack/demo.sh auto|docker|fake|qemu|pod [FLAG...]
#
# auto is qemu where QEMU is or can be installed, else docker.
# With docker the VM is a container with a small web server, with fake it is simulated. With qemu
# it is a machine that boots a container image, which this builds and serves as a registry; it is
# also shut down and booted again with its disk, and another one does one job. With pod it is a
# machine with a small Linux in a pod of a Kubernetes that this starts, as root, and builds for 15
# minutes the first time. It needs Go, make, and root or sudo for what is missing. Flags go to drover up.
set -o errexit -o nounset -o pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly up_flags=("${@:2}")
readonly usage_period=5   # seconds; the default of 30 is too long for a demo
readonly ready_within=300 # seconds: a guest may be emulated
readonly test_manifest=examples/test-vm.yaml
readonly guest_image=drover.test/guest:demo pod_image=drover.test/drover-machine:demo controller_image=drover.test/drover-controller

driver="${1:-auto}"
vm=linux-vm                          # its name
uid=""                               # its UID
work=""                              # folder of this run
docker_image=""                      # the container's, which this run builds
binaries=""                          # folder of the programs of a Kubernetes
engine_started="${engine_started:-}" # set when this run starts the Docker engine
machine_image=""                     # the machine's container image, which this run builds
registry_pid=""                      # serves it
up_pid=""
watch_pid=""
out="" # of the last command
begun=0

bold="" dim="" plain=""
if [[ -t 1 ]]; then
	bold=$'\e[1m' dim=$'\e[2m' plain=$'\e[0m'
fi

main() {
	[[ "${driver}" =~ ^(auto|docker|fake|qemu|pod)$ ]] || fail "DRIVER is ${driver}: it must be auto, docker, fake, qemu or pod"
	command -v go >/dev/null || fail "there is no Go on this machine: https://go.dev/doc/install"
	trap cleanup EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM HUP
	work="$(mktemp -d "${TMPDIR:-/tmp}/drover-demo-XXXXXX")"
	[[ "${driver}" != auto ]] || choose_driver
	print_step "Build Drover" "The first time, Go compiles a whole Kubernetes API server: that takes minutes."
	run make --no-print-directory build
	"start_${driver}"
	create_vm
	"show_${driver}"
	"use_${driver}"
	delete_vm
	if [[ "${driver}" == pod ]]; then stop_cluster; else stop_drover; fi
	echo
	echo "${bold}All of it worked${plain}, with the ${driver} driver, in $((SECONDS - begun)) s after the builds. Next: make up, and docs/drivers.md."
}

choose_driver() {
	print_step "Look for QEMU, for a real machine"
	if hack/qemu.sh 2>&1 | indent; then driver=qemu; else driver=docker; fi
}

# What the demo prints.

print_step() {
	echo
	echo "${bold}== $1${plain}"
	shift
	[[ $# -eq 0 ]] || printf '   %s\n' "$@"
}

indent() { sed -u 's/^/   /'; }

fail() {
	echo "${bold}demo: $*${plain}" >&2
	[[ ! -s "${work}/up.log" ]] || tail -n 20 "${work}/up.log" "${work}/data/logs/drover.log" | indent >&2
	exit 1
}

# print_command writes a command as it would be typed.
print_command() {
	local word line=""
	for word in "$@"; do
		[[ "${word}" =~ ^([A-Za-z0-9_./:=,@%+-]+|&)$ ]] || word="'${word}'"
		line+=" ${word}"
	done
	echo "   ${dim}\$${plain}${bold}${line}${plain}"
}

# run shows a command and its output, and stores the output in $out.
run() {
	print_command "$@"
	"$@" 2>&1 | tee "${work}/out" | indent || fail "that command failed"
	out="$(<"${work}/out")"
}

# wants TEXT requires it in the output of the last command.
wants() { [[ "${out}" == *"$1"* ]] || fail "the output does not have: $1"; }

# until_within SECONDS COMMAND... waits for the command to succeed.
until_within() {
	local deadline=$((SECONDS + $1))
	shift
	until "$@"; do
		[[ "${SECONDS}" -lt "${deadline}" ]] || return 1
		sleep 0.2
	done
}

field() { bin/drover kubectl get vm "${vm}" --output "jsonpath={$1}"; }

# start_watch shows the VMs from now on, a row whenever one changes.
start_watch() {
	print_command bin/drover kubectl get vms --watch "&"
	bin/drover kubectl get vms --watch > >(indent) 2>/dev/null &
	watch_pid=$!
	sleep 1 # for the watch to begin
}

stop_watch() {
	[[ -n "${watch_pid}" ]] || return 0
	sleep 0.3 # for the last row to be shown
	kill "${watch_pid}" 2>/dev/null || true
	wait "${watch_pid}" 2>/dev/null || true
	watch_pid=""
}

# What is the same with all drivers.

# start_drover starts it with further flags.
start_drover() {
	begun="${SECONDS}"
	print_step "Start Drover" "etcd, kube-apiserver and the controller in one process, on a temporary data dir."
	local flags=(--data-dir "${work}/data" --port 0 --usage-period "${usage_period}s" --vm-driver "${driver}" "$@" "${up_flags[@]}")
	print_command bin/drover up "${flags[@]}"
	# A session of its own: Ctrl-C is for this script, which stops it in order.
	setsid bin/drover up "${flags[@]}" >"${work}/up.log" 2>&1 </dev/null &
	up_pid=$!
	until_within 180 up_is_ready || fail "drover up was not ready within 180 s"
	indent <"${work}/up.log"
	export KUBECONFIG="${work}/data/kubeconfig"
	print_command export "KUBECONFIG=${KUBECONFIG}"
}

up_is_ready() {
	kill -0 "${up_pid}" 2>/dev/null || fail "drover up ended"
	[[ -e "${work}/data/run/ready" ]]
}

stop_drover() {
	print_step "Stop Drover" "Servers would continue to run, and the next start would take them over."
	print_command kill "${up_pid}"
	kill "${up_pid}"
	wait "${up_pid}" || fail "drover up ended with exit status $?"
	up_pid=""
}

create_vm() {
	local manifest="${work}/${vm}.yaml"
	[[ "${vm}" != test-vm ]] || manifest="${test_manifest}"
	print_step "Create a virtual machine, and watch it until it is ready"
	run cat "${manifest}"
	start_watch
	run bin/drover kubectl apply -f "${manifest}"
	bin/drover kubectl wait --for=condition=Ready --timeout="${ready_within}s" "vm/${vm}" >/dev/null || fail "$(field .status.message)"
	stop_watch
	uid="$(field .metadata.uid)"
	run bin/drover vm show "${vm}"
}

delete_vm() {
	print_step "Delete it: the object stays until what runs it is gone"
	run bin/drover vm delete "${vm}" --yes --timeout 150s
	run bin/drover kubectl get vms
	wants "No resources found"
	case "${driver}" in
	docker) run docker ps --all --quiet --filter "name=${vm}.default.${uid:0:8}" ;;
	pod) run bin/drover kubectl get pods,pvc --selector "cloudnative.tw/name=${vm}" --output name ;;
	*) run find "${work}/data/drivers/${driver}" -name "${uid}*" -not -path "*/locks/*" ;;
	esac
	[[ -z "${out}" ]] || fail "something of it is left: ${out}"
}

# get PATH asks the guest's web server, without curl, which a fresh machine may not have.
get() {
	print_command bin/drover vm port-forward "${vm}" 8080:80 "&"
	print_command curl "http://127.0.0.1:8080$1"
	out="$({ printf 'GET %s HTTP/1.0\r\n\r\n' "$1"; sleep 2; } | timeout 60 bin/drover vm port-forward --stdio "${vm}" 80 2>&1)" ||
		fail "the guest does not answer: ${out}"
	indent <<<"${out##*$'\r\n\r\n'}"
}

# Containers, and simulated servers of the same size.

start_docker() {
	vm=test-vm
	print_step "Find a Docker engine, and install or start one if there is none"
	[[ -e /var/run/docker.pid || -n "${DOCKER_HOST:-}" ]] || export engine_started=yes
	if ! hack/dockerd.sh 2>&1 | indent; then
		[[ "$(id -u)" -ne 0 && -z "${in_group:-}" ]] || fail "there is no Docker engine, for the reason above: make demo DRIVER=fake needs none"
		echo "   Your user may not talk to the engine. This run borrows its group, docker, by sudo."
		rm -rf "${work}"
		exec sudo -E -u "$(id -un)" -g docker -- env PATH="${PATH}" HOME="${HOME}" in_group=yes hack/demo.sh "${driver}" "${up_flags[@]}"
	fi
	print_step "Build a small guest image: a static Go HTTP server, no registry needed"
	CGO_ENABLED=0 run go build -trimpath -buildvcs=false -ldflags "-s -w" -o "${work}/image/demo-guest" ./examples/demo-guest
	docker_image="drover-demo-guest:$$"
	tar -C "${work}/image" -c demo-guest |
		docker import --change 'ENTRYPOINT ["/demo-guest"]' --change 'EXPOSE 80/tcp' - "${docker_image}" >/dev/null
	start_drover --docker-image "${docker_image}"
}

start_fake() {
	vm=test-vm
	start_drover --fake-boot-time 1s
}

show_docker() {
	print_step "Show the container that runs it" "cpu: 2 is 2000000000 NanoCpus, memory: 4G is 4000000000 bytes."
	run docker ps --filter "name=${vm}"
	wants "${vm}.default.${uid:0:8}"
	run docker inspect --format 'Memory {{.HostConfig.Memory}} NanoCpus {{.HostConfig.NanoCpus}}' "$(field .status.server.id)"
	wants "Memory 4000000000 NanoCpus 2000000000"
	run bin/drover vm logs "${vm}" --tail 3
}

show_fake() {
	print_step "Show the file of the simulated server" "cpu: 2 is cpuMilli 2000, memory: 4G is 4000000000 bytes."
	run cat "${work}/data/drivers/fake/${uid}.json"
	wants '"cpuMilli": 2000,'
	wants '"memoryBytes": 4000000000,'
}

use_docker() { use_test_vm get "/load?seconds=20"; }

use_fake() { use_test_vm run sed -i 's/"load": 0,/"load": 0.9,/' "${work}/data/drivers/fake/${uid}.json"; }

# use_test_vm puts load on it by a command.
use_test_vm() {
	print_step "Put load on it and see CPU rise" "CPU is per cent of one CPU, MEMORY per cent of the VM's. They are sampled" \
		"every ${usage_period} s here, and every 30 s by default."
	until_within $((2 * usage_period + 5)) cpu_above 0 || fail "no usage was reported"
	local before
	before="$(cpu)"
	start_watch
	"$@"
	# A busy host leaves the guest little, so a clear rise is enough.
	until_within $((2 * usage_period + 10)) cpu_above $((before + 10)) || fail "CPU was ${before} and did not rise by 10: it is $(cpu)"
	until_within $((usage_period + 2)) cpu_above 150 || true # the first sample with load in it may be half idle
	stop_watch
}

# cpu is the CPU column without its fraction.
cpu() { field .status.server.usage.cpu | cut -d . -f 1; }

cpu_above() { [[ -n "$(cpu)" && "$(cpu)" -ge "$1" ]]; }

# Machines, on this host and in pods.

start_qemu() {
	print_step "Find QEMU, and install it if it is missing"
	run hack/qemu.sh
	print_step "Make the kernel that boots container images" "It is Debian's, in a folder beside Drover's program."
	run make --no-print-directory guest
	build_image
	start_drover --image-plain-http-registries "${machine_image%%/*}" --image-hosts 127.0.0.1 --qemu-unchecked-images
	write_manifest <<-EOF
		  image:
		    source: ${machine_image}
		  env:
		  - name: GREETING
		    value: hello from the manifest
	EOF
}

# build_image builds a container image, and serves it as a registry on this host.
build_image() {
	print_step "Build a container image, BusyBox and this script, and serve it as a registry" "No container engine is needed."
	mkdir "${work}/files"
	cat >"${work}/files/start" <<-'EOF'
		#!/bin/sh
		mkdir -p /www
		echo boot >>/www/boots
		echo "${GREETING}: this is boot $(wc -l </www/boots) of $(hostname)" | tee /www/index.html
		exec httpd -f -p 80 -h /www
	EOF
	run cat "${work}/files/start"
	run hack/busybox-image.sh "${work}/hello.tar" "${work}/files"
	go build -trimpath -buildvcs=false -o "${work}/registry" ./hack/registry
	print_command "${work}/registry" "${work}/hello.tar" hello:1 "&"
	"${work}/registry" "${work}/hello.tar" hello:1 >"${work}/reference" </dev/null &
	registry_pid=$!
	until_within 30 test -s "${work}/reference" || fail "the registry did not start"
	machine_image="$(<"${work}/reference")"
	indent <"${work}/reference"
}

start_pod() {
	[[ "$(id -u)" -eq 0 ]] || fail "DRIVER=pod needs root, for the namespaces, network and control groups of nodes"
	[[ "${#up_flags[@]}" -eq 0 ]] || fail "DRIVER=pod takes no flags: ${up_flags[*]}"
	print_step "Build a Kubernetes of several nodes: etcd, control plane, containerd, kubelet"
	run hack/cluster-deps.sh
	print_command hack/cluster-binaries.sh
	binaries="$(hack/cluster-binaries.sh)"
	print_step "Build a small guest: Debian's kernel, and a static Go program as its init" "It serves HTTP and reacts to the power button."
	run hack/linux-guest.sh bin/linux-guest
	print_step "Build the images: the controller, QEMU with drover-machine, and the guest"
	run make image IMAGE="${controller_image}:demo"
	run make image-machine MACHINE_IMAGE="${pod_image}"
	# A blank disk, with the signature by which it is known to be one.
	printf '%510s\x55\xaa' '' | tr ' ' '\0' >"${work}/disk.img"
	truncate --size 1M "${work}/disk.img"
	run "${binaries}/drover-cluster" image "${guest_image}" "${work}/guest.tar" \
		vmlinuz=bin/linux-guest/vmlinuz initrd=bin/linux-guest/initrd disk/disk.img="${work}/disk.img"
	write_manifest <<-EOF
		  userData:
		    inline: "hello from user-data"
		  image:
		    source: oci://${guest_image}
		    pullPolicy: Never
		    kernel:
		      source: /vmlinuz
		      initrd: /initrd
		      cmdline: console=ttyS0 quiet panic=-1 no_timer_check agent=honest
	EOF
	start_cluster
}

# write_manifest writes the VM's manifest, to which it adds further fields from its input.
write_manifest() {
	local rest
	rest="$(cat)"
	cat >"${work}/${vm}.yaml" <<-EOF
		apiVersion: cloudnative.tw/v1alpha1
		kind: VirtualMachine
		metadata:
		  name: ${vm}
		spec:
		  driver: ${driver}
		  resource:
		    cpu: 1
		    memory: 256Mi
		    rootDisk: 64Mi
		  ports:
		  - name: http
		    port: 80
		  readinessProbe:
		    tcpSocket:
		      port: 80
		  shutdownGracePeriodSeconds: 120
		${rest}
	EOF
}

start_cluster() {
	begun="${SECONDS}"
	print_step "Start a cluster of two nodes, each with a kubelet and a containerd of its own"
	local images="bin/image/drover-controller.tar,bin/image/drover-machine.tar,${work}/guest.tar"
	run "${binaries}/drover-cluster" up --dir "${work}/cluster" --nodes 2 --image "${images}"
	export KUBECONFIG="${work}/cluster/kubeconfig"
	run bin/drover kubectl get nodes
	print_step "Install Drover by its chart, with driver pod"
	run env HELM_CACHE_HOME="${work}" HELM_CONFIG_HOME="${work}" HELM_DATA_HOME="${work}" \
		"$(hack/tool.sh helm)" install drover charts/drover --namespace drover-system --create-namespace --wait --timeout 3m \
		--set "image.repository=${controller_image},image.tag=demo" --set "vmDriver=pod,pod.machineImage=${pod_image}"
	run bin/drover kubectl -n drover-system get pods
}

show_qemu() {
	print_step "Show the process that runs it, and what its command has printed"
	run cat "${work}/data/drivers/qemu/vms/${uid}/pid"
	[[ -e "/proc/${out}" ]] || fail "no process runs the machine"
	show_output "hello from the manifest: this is boot 1 of ${vm}"
}

show_pod() {
	print_step "Show the pod that the scheduler has placed, its disk, and the machine's serial console"
	run bin/drover kubectl get pods,pvc --selector "cloudnative.tw/name=${vm}" --output wide
	wants Bound
	show_output "drover linux guest 1 is up"
}

# show_output requires a text in what the machine has printed.
show_output() {
	run bin/drover vm logs "${vm}" --tail 20
	wants "$1"
}

use_qemu() {
	query_guest "boot 1"
	print_step "Run a command in it, and list its network interfaces"
	run bin/drover vm exec "${vm}" -- sh -c "uname -sr; ls /www"
	wants boots
	run bin/drover vm ip "${vm}"
	run_job
	print_step "Power it off: Drover presses its power button, and the command gets its stop signal"
	run bin/drover vm stop "${vm}" --wait --timeout 150s
	power_on "boot 2"
}

# run_job runs a machine for one job.
run_job() {
	print_step "Run another machine of the image for one job, whose exit code is 3"
	local code=0 command=(bin/drover vm run --rm --image "${machine_image}" --memory 128Mi -- sh -c 'echo "the job runs"; exit 3')
	print_command "${command[@]}"
	"${command[@]}" 2>&1 | tee "${work}/out" | indent || code=$?
	out="$(<"${work}/out")"
	wants "the job runs"
	[[ "${code}" -eq 3 ]] || fail "the exit code is ${code}"
}

use_pod() {
	query_guest '"boots":1,'
	wants "hello from user-data"
	print_step "Power it off: the kubelet ends the pod, and the guest shuts down by its power button"
	run bin/drover vm stop "${vm}" --wait --timeout 150s
	run bin/drover kubectl wait --for=delete pod --selector "cloudnative.tw/name=${vm}" --timeout=60s
	power_on '"boots":2,'
}

# power_on requires a text of the web server after that.
power_on() {
	print_step "Power it on again: the guest counts its boots on its disk"
	run bin/drover vm start "${vm}" --wait --timeout "${ready_within}s"
	query_guest "$1"
}

# query_guest requires a text of the web server.
query_guest() {
	print_step "Ask its web server"
	get /
	wants "$1"
}

stop_cluster() {
	print_step "End the cluster"
	run "${binaries}/drover-cluster" down --dir "${work}/cluster"
}

# cleanup ends what this run started and nothing else.
cleanup() {
	local status=$?
	trap - EXIT
	trap '' INT TERM HUP
	set +o errexit
	stop_watch
	if [[ -n "${up_pid}" ]]; then
		kill "${up_pid}" 2>/dev/null
		wait "${up_pid}" 2>/dev/null
	fi
	[[ -z "${registry_pid}" ]] || kill "${registry_pid}" 2>/dev/null
	# Servers of an interrupted run outlive Drover.
	[[ ! -e "${work}/data/kubeconfig" ]] || bin/drover purge --data-dir "${work}/data" --data --yes >/dev/null
	[[ ! -e "${work}/cluster" ]] || "${binaries}/drover-cluster" down --dir "${work}/cluster"
	[[ -z "${docker_image}" ]] || docker image rm "${docker_image}" >/dev/null 2>&1
	[[ -z "${engine_started}" || -n "$(docker ps --quiet 2>/dev/null)" ]] || hack/dockerd.sh stop
	rm -rf "${work}"
	exit "${status}"
}

main
