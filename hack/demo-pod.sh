#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Shows virtual machines as pods, and checks all that it shows: starts a Kubernetes of
# several nodes on this host, installs Drover by its chart, boots a small Linux in a pod
# by kubectl apply, asks its web server by a Service, reads its console, shuts it down,
# boots it again with its disk, deletes it, and removes everything. make demo DRIVER=pod
# calls it.
#
#     hack/demo-pod.sh
#
# It needs Go, make, root, and apt for what is missing (runc, CNI plugins, QEMU). The
# first time, it builds Kubernetes and containerd: that takes 15 minutes.
set -o errexit -o nounset -o pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
source hack/demo-lib.sh

readonly nodes=2
readonly machine_image=drover.test/drover-machine:demo controller_image=drover.test/drover-controller
readonly guest_image=drover.test/guest:demo
readonly boot_within=300 # seconds: the guest is emulated

vm=web
binaries="" # folder of the cluster's programs
pod=""      # the machine's pod
service=""  # address of the Service

main() {
	[[ $# -eq 0 ]] || fail "DRIVER=pod takes no flags: $*"
	[[ "$(id -u)" -eq 0 ]] || fail "DRIVER=pod needs root, for the namespaces, network and control groups of nodes"
	create_work_dir
	build_drover
	build_cluster
	build_images
	start_cluster
	install_drover
	apply_manifest
	show_pod
	query_service 1
	show_console
	power_off
	power_on
	delete_vm
	stop_cluster
	echo
	echo "${bold}All of it worked${plain}, with the pod driver, in $((SECONDS - begun)) s after the build. Next: docs/cluster.md."
}

build_cluster() {
	print_step "Build a Kubernetes of several nodes: etcd, control plane, containerd, kubelet"
	run_live hack/cluster-deps.sh
	print_command hack/cluster-binaries.sh
	binaries="$(hack/cluster-binaries.sh)"
}

build_images() {
	print_step "Build the images: the controller, QEMU with drover-machine, and a small guest" \
		"The guest is Debian's kernel, and a static Go program as its init."
	run_live hack/linux-guest.sh bin/guest
	run_live make image IMAGE="${controller_image}:demo"
	run_live make image-machine MACHINE_IMAGE="${machine_image}"
	# A blank disk, with the signature by which it is known to be one.
	printf '%510s\x55\xaa' '' | tr ' ' '\0' >"${work}/disk.img"
	truncate --size 1M "${work}/disk.img"
	run "${binaries}/drover-cluster" image "${guest_image}" "${work}/guest.tar" \
		vmlinuz=bin/guest/vmlinuz initrd=bin/guest/initrd disk/disk.img="${work}/disk.img"
	begun="${SECONDS}"
}

start_cluster() {
	print_step "Start a cluster of ${nodes} nodes, each with a kubelet and a containerd of its own"
	local images="bin/image/drover-controller-linux-amd64.tar,bin/image/drover-machine-linux-amd64.tar,${work}/guest.tar"
	run "${binaries}/drover-cluster" up --dir "${work}/cluster" --nodes "${nodes}" --image "${images}"
	export KUBECONFIG="${work}/cluster/kubeconfig"
	run bin/drover kubectl get nodes
}

install_drover() {
	print_step "Install Drover by its chart, with driver pod"
	local helm
	helm="$(hack/tool.sh helm)"
	run env HELM_CACHE_HOME="${work}" HELM_CONFIG_HOME="${work}" HELM_DATA_HOME="${work}" \
		"${helm}" install drover charts/drover --namespace drover-system --create-namespace --wait --timeout 3m \
		--set "image.repository=${controller_image},image.tag=demo" \
		--set "vmDriver=pod,pod.machineImage=${machine_image}"
	run bin/drover kubectl -n drover-system get pods
}

manifest() {
	cat <<-EOT
		apiVersion: cloudnative.tw/v1alpha1
		kind: VirtualMachine
		metadata:
		  name: ${vm}
		  labels: {app: web}
		spec:
		  image:
		    source: oci://${guest_image}
		    pullPolicy: Never
		    kernel:
		      source: /vmlinuz
		      initrd: /initrd
		      cmdline: console=ttyS0 quiet panic=-1
		  resource:
		    cpu: 1
		    memory: 256Mi
		    rootDisk: 64Mi
		  userData:
		    inline: "hello from user-data"
		  ports:
		  - name: http
		    port: 80
		  shutdownGracePeriodSeconds: 120
		---
		apiVersion: v1
		kind: Service
		metadata:
		  name: ${vm}
		spec:
		  selector: {app: web}
		  ports:
		  - port: 80
	EOT
}

apply_manifest() {
	print_step "Create a virtual machine and a Service for it"
	manifest >"${work}/${vm}.yaml"
	run cat "${work}/${vm}.yaml"
	start_watch
	run bin/drover kubectl apply -f "${work}/${vm}.yaml"
	run bin/drover kubectl wait --for=condition=Ready --timeout="${boot_within}s" "vm/${vm}"
	stop_watch
	service="$(kubectl get service "${vm}" --output 'jsonpath={.spec.clusterIP}')"
	# What asks the Service: the host is outside of the cluster's network.
	kubectl run client --image=drover.test/probe:1 --image-pull-policy=Never --command -- /probe serve >/dev/null
	kubectl wait --for=condition=Ready --timeout=60s pod/client >/dev/null
}

show_pod() {
	print_step "Show what runs it: a pod that the scheduler has placed, and its disk"
	run bin/drover kubectl get vms
	run bin/drover kubectl get pods,pvc --selector "cloudnative.tw/name=${vm}" --output wide
	pod="$(field '.status.objects[?(@.kind=="Pod")].name')"
	[[ -n "${pod}" && "${out}" == *"pod/${pod}"* && "${out}" == *Bound* ]] || fail "there is no pod with a disk"
}

# query_service requires the number of boots of the guest.
query_service() {
	print_step "Ask its web server, by the Service, from another pod"
	print_command bin/drover kubectl exec client -- /probe get "http://${service}"
	until_within 120 guest_answers || fail "the guest does not answer: ${out}"
	indent <<<"${out}"
	[[ "${out}" == *"\"boots\":$1,"* && "${out}" == *"hello from user-data"* ]] || fail "the guest does not say that this is boot $1"
}

guest_answers() { out="$(kubectl exec client -- /probe get "http://${service}" 2>&1)" && [[ -n "${out}" ]]; }

show_console() {
	print_step "Show its serial console" "To type there: bin/drover vm console ${vm}, or kubectl attach -i ${pod}"
	run bin/drover vm logs "${vm}" --tail 5
	[[ "${out}" == *"drover linux guest 1 is up"* ]] || fail "the console does not show that the guest is up"
}

power_off() {
	print_step "Switch it off: the kubelet ends the pod, and the guest shuts down by its power button"
	run bin/drover vm stop "${vm}" --wait --timeout 150s
	run bin/drover kubectl wait --for=delete "pod/${pod}" --timeout=60s
	run bin/drover kubectl get pods --selector "cloudnative.tw/name=${vm}"
	[[ "${out}" == "No resources found"* ]] || fail "the pod is still there"
}

power_on() {
	print_step "Switch it on again: another pod on the same disk, where the guest counts its boots"
	run bin/drover vm start "${vm}" --wait --timeout "${boot_within}s"
	run bin/drover kubectl get pods --selector "cloudnative.tw/name=${vm}" --output wide
	query_service 2
}

delete_vm() {
	print_step "Delete it: the object stays until its pod and its disk are gone"
	run bin/drover vm delete "${vm}" --yes --timeout 150s
	run bin/drover kubectl get vms,pods,pvc --selector "cloudnative.tw/name=${vm}"
	[[ "${out}" == "No resources found"* ]] || fail "something is left"
}

stop_cluster() {
	print_step "End the cluster"
	run "${binaries}/drover-cluster" down --dir "${work}/cluster"
}

# Cleaning up. It ends what this run started and nothing else.
cleanup() {
	local status=$?
	trap - EXIT
	trap '' INT TERM HUP
	set +o errexit
	stop_watch
	if [[ -n "${binaries}" && -n "${work}" ]]; then "${binaries}/drover-cluster" down --dir "${work}/cluster"; fi
	[[ -z "${work}" ]] || rm -rf "${work}"
	exit "${status}"
}

main "$@"
