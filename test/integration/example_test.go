// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"os/exec"
	"strings"
	"testing"

	"cloudnative.tw/drover/test/framework"
)

// TestListVMsExample runs the program of examples/list-vms, which uses the
// generated informer and lister, against a running Drover.
func TestListVMsExample(t *testing.T) {
	t.Parallel()
	vm := environment.CreateActiveVM(t, newSmallVM("listed", environment.CreateNamespace(t), "fake"))
	environment.WaitForVM(t, vm, framework.HasUsage)
	cmd := exec.CommandContext(t.Context(), "go", "run", "cloudnative.tw/drover/examples/list-vms", "--kubeconfig", environment.Kubeconfig, "--namespace", vm.Namespace)
	out, err := cmd.CombinedOutput()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if err != nil || len(lines) != 2 {
		t.Fatalf("error %v, it printed:\n%s", err, out)
	}
	want := []string{"NAMESPACE NAME STATUS CPU MEMORY", vm.Namespace + " listed Active 0.00% 25.00%"}
	for n, line := range lines {
		if got := strings.Join(strings.Fields(line), " "); got != want[n] {
			t.Errorf("line %d is %q, want %q", n, got, want[n])
		}
	}
}
