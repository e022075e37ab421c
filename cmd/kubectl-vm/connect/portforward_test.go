// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"testing"

	"cloudnative.tw/drover/cmd/kubectl-vm/kittest"
	"cloudnative.tw/drover/cmd/kubectl-vm/streams"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
	"cloudnative.tw/drover/test/assert"
)

// TestUnlistedPortOfAPod checks that a port that a pod does not list is refused with the way to list it.
func TestUnlistedPortOfAPod(t *testing.T) {
	t.Parallel()
	err := checkPorts("kubectl vm", vms.Target{VM: kittest.NewPodVM()}, []streams.Forward{{Remote: 22}, {Remote: 2022}})
	for _, want := range []string{"port 2022", "kubectl vm port add web 2022"} {
		assert.ErrorSays(t, "port-forward", err, want)
	}
}

// TestUnlistedPortOfAMachine checks that a machine's TCP ports need not be listed.
func TestUnlistedPortOfAMachine(t *testing.T) {
	t.Parallel()
	vm := kittest.NewPodVM()
	vm.Status.Driver = vms.DriverQEMU
	assert.NoError(t, checkPorts("kubectl vm", vms.Target{VM: vm}, []streams.Forward{{Remote: 2022}}))
}
