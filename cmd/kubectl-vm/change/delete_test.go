// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package change

import (
	"strings"
	"testing"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kittest"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

func TestRemovalText(t *testing.T) {
	base := func(driver string) *framework.VMBuilder {
		return kittest.NewVM(api.PhaseActive, api.ReasonRunning, "True").Driver(driver).Resource(api.ResourceRootDisk, "40G").Spec(func(s *api.VirtualMachineSpec) {
			s.Volumes = []api.Volume{{Name: "data", Size: s.Resource[api.ResourceRootDisk]}}
		})
	}
	tests := map[string]struct {
		vm   *framework.VMBuilder
		keep bool
		want string
		not  string
	}{
		"a machine":   {vm: base("qemu"), want: "root 40G, volume data 40G", not: "kept"},
		"a container": {vm: base("docker"), want: "everything that was written in the container", not: "40G"},
		"kept":        {vm: base("qemu"), keep: true, want: "is kept with its data", not: "disks"},
		"retained":    {vm: base("qemu").DeletionPolicy(api.DeletionRetain), want: "is kept with its data", not: "disks"},
	}
	for name, test := range tests {
		got := removalText(test.vm.Obj(), test.keep)
		assert.True(t, strings.Contains(got, test.want) && !strings.Contains(got, test.not), "%s: %q, want %q and not %q", name, got, test.want, test.not)
	}
}
