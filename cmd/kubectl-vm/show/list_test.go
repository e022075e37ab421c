// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package show

import (
	"strings"
	"testing"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kittest"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
	"cloudnative.tw/drover/test/assert"
)

func TestListOfOneVM(t *testing.T) {
	o, out := kittest.NewOptions()
	l := &listOptions{Options: o}
	vm := kittest.NewVM(api.PhaseActive, api.ReasonRunning, "True").Resource(api.ResourceCPU, "1000").Status(func(s *api.VirtualMachineStatus) {
		for _, port := range []int32{80, 81, 82, 83, 84} {
			s.Addresses = []string{"10.213.0.7", "192.0.2.2"}
			s.Ports = append(s.Ports, api.PortStatus{Port: port, HostPort: 8000 + port, Protocol: api.ProtocolTCP})
		}
	}).Obj()
	assert.NoError(t, l.printTable([]api.VirtualMachine{*vm}))
	want := "NAME   STATE    READY   REASON     CPU   MEMORY   ADDRESS      PORTS                        AGE\n" +
		"web    Active   True    Running   1000       4G   10.213.0.7   8080:80,8081:81,8082:82,+2   60m\n"
	assert.True(t, out.String() == want, "got\n%swant\n%s", out, want)
}

// TestPodPorts checks that the ports of a pod are shown where they answer, though the status does not
// list ports of a host for them.
func TestPodPorts(t *testing.T) {
	t.Parallel()
	vm := kittest.NewPodVM()
	assert.Equal(t, "show has", portsText(vm), "ssh 10.244.1.5:22, dns 10.244.1.5:53/udp")
	assert.Equal(t, "list has", joinFirst(vms.PortTexts(vm), maxPorts), "22,53/udp")
	vm.Status.PendingFields = []string{"ports"}
	got := portsText(vm)
	assert.True(t, strings.HasSuffix(got, " (changes apply at the next restart)"), "while they change, show has %q", got)
	vm.Status.Addresses = nil
	assert.Equal(t, "without an address, show has", portsText(vm), "ssh 22 (not open), dns 53/udp (not open)")
	assert.Equal(t, "without an address, list has", joinFirst(vms.PortTexts(vm), maxPorts), vms.NoValue)
	vm.Spec.Ports, vm.Status.Server = nil, &api.ServerStatus{UnpublishedPorts: []string{"80/tcp", "53/udp"}}
	assert.Equal(t, "of an image's ports, show has", portsText(vm), "80/tcp, 53/udp (declared by the image, not in spec.ports)")
	other := kittest.NewPodVM()
	other.Status.Driver = "docker"
	got = portsText(other)
	assert.True(t, strings.Contains(got, "(not open)"), "show has %q for another driver", got)
}
