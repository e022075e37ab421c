// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"k8s.io/client-go/rest"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	streamsapi "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/streams"
)

// driverPod is the driver whose servers are pods, and driverQEMU the one whose servers are machines of a host.
const driverPod, driverQEMU = "pod", "qemu"

// podOf returns the name of the pod of a VM of driver pod.
func (o *Options) podOf(vm *api.VirtualMachine) (string, error) {
	n := slices.IndexFunc(vm.Status.Objects, func(o api.ServerObject) bool { return o.Kind == "Pod" })
	if n < 0 {
		return "", fmt.Errorf("the pod of %s does not exist yet, to see why: %s explain %s", vm.Name, o.Program, vm.Name)
	}
	return vm.Status.Objects[n].Name, nil
}

// connectToPod returns a client for a stream of a VM that is a pod, where Drover serves none of pods. The API
// server serves those of a container; the error for others says what to do instead.
func (o *Options) connectToPod(config *rest.Config, vm *api.VirtualMachine, s streamsapi.Stream) (*streams.Client, error) {
	pod, err := o.podOf(vm)
	if err != nil {
		return nil, err
	}
	switch s {
	case streamsapi.Console, streamsapi.Log, streamsapi.PortForward:
		return streams.ForPod(config, pod)
	case streamsapi.Interfaces:
		return nil, fmt.Errorf("%s is a pod, whose guest is not asked for its interfaces unless drover-controller runs with --pod-streams: its ports answer at %s, and its console has the rest:\n  %s console %s",
			vm.Name, cmp.Or(strings.Join(vm.Status.Addresses, ", "), "no address now"), o.Program, vm.Name)
	default:
		return nil, fmt.Errorf("%s is a pod, in whose guest nothing can be run unless drover-controller runs with --pod-streams: log in with %s ssh %s, or at its console:\n  %s console %s",
			vm.Name, o.Program, vm.Name, o.Program, vm.Name)
	}
}

// checkTCPPort fails if a VM does not list a port, where only those that it lists can be reached.
func (o *Options) checkTCPPort(vm *api.VirtualMachine, port int32) error {
	isPort := func(p api.Port) bool { return p.Port == port && p.Protocol != api.ProtocolUDP }
	if slices.ContainsFunc(vm.Spec.Ports, isPort) {
		return nil
	}
	return fmt.Errorf("port %d: VM %s does not list this TCP port in spec.ports; add it with %s port add %s %d", port, vm.Name, o.Program, vm.Name, port)
}

// podPorts returns the ports at which a VM that is a pod answers now, each with its name; none for
// other VMs, and before the pod gets an address.
func podPorts(vm *api.VirtualMachine) []api.Port {
	if driverOf(vm) != driverPod || len(vm.Status.Addresses) == 0 {
		return nil
	}
	return vm.Spec.Ports
}

// podPortText returns a port of a pod with the pod's address.
func podPortText(vm *api.VirtualMachine, p api.Port) string {
	text := net.JoinHostPort(vm.Status.Addresses[0], strconv.Itoa(int(p.Port)))
	if p.Protocol == api.ProtocolUDP {
		text += "/udp"
	}
	return text
}
