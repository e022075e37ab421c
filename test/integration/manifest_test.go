// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver/docker"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
)

// TestManifest applies the documentation's manifest unchanged with kubectl, and checks
// all results.
func TestManifest(t *testing.T) {
	manifest, err := os.ReadFile("../../examples/test-vm.yaml")
	assert.NoError(t, err)
	ns := environment.CreateNamespace(t)
	environment.MustRunKubectl(t, string(manifest), "apply", "-n", ns, "-f", "-")
	vm := getVM(t, ns, "test-vm")
	history := environment.RecordHistory(t, vm)
	vm = environment.WaitForVM(t, vm, framework.IsActive)

	t.Run("history", func(t *testing.T) { checkPhases(t, history.WaitForVersion(t, vm)) })
	t.Run("object", func(t *testing.T) { checkObject(t, vm) })
	t.Run("container", func(t *testing.T) { checkContainer(t, vm) })
	t.Run("columns", func(t *testing.T) { checkColumns(t, vm) })
	t.Run("kubectl", func(t *testing.T) { checkKubectlGet(t, ns) })
	t.Run("load", func(t *testing.T) { checkUsageUnderLoad(t, vm) })
	t.Run("delete", func(t *testing.T) {
		environment.MustRunKubectl(t, "", "delete", "vm", "test-vm", "-n", ns, "--timeout=60s")
		environment.CheckDeletion(t, vm)
		environment.CheckServers(t, vm, 0)
	})
}

func getVM(t *testing.T, ns, name string) *api.VirtualMachine {
	t.Helper()
	vm, err := environment.VMsIn(ns).Get(t.Context(), name, metav1.GetOptions{})
	assert.NoError(t, err)
	return vm
}

// checkPhases checks that the only phase before Active is Creating, which a quick
// creation does not have.
func checkPhases(t *testing.T, all []*api.VirtualMachine) {
	var phases []api.Phase
	for _, vm := range all {
		phases = append(phases, vm.Status.Phase)
	}
	phases = slices.DeleteFunc(slices.Compact(phases), func(p api.Phase) bool { return p == "" || p == api.PhaseCreating })
	assert.True(t, slices.Equal(phases, []api.Phase{api.PhaseActive}), "apart from none and Creating the phases were %v, want only Active", phases)
	assert.True(t, all[0].Status.Phase != "" || all[0].Status.ObservedGeneration == -1,
		"before any controller ran, observedGeneration was %d, want -1", all[0].Status.ObservedGeneration)
}

func checkObject(t *testing.T, vm *api.VirtualMachine) {
	s := vm.Status
	if s.Driver != "docker" || s.Server == nil || s.Server.State != "Running" || len(s.Addresses) == 0 || s.StartTime == nil || s.LastUpdateTime == nil || s.RestartCount != 0 || s.Operation != nil {
		t.Errorf("status is %s", framework.FormatStatus(vm))
	}
	for kind, want := range map[string]metav1.ConditionStatus{
		api.ConditionReady: metav1.ConditionTrue, api.ConditionRunning: metav1.ConditionTrue, api.ConditionObserved: metav1.ConditionTrue,
		api.ConditionRestartRequired: "", api.ConditionDeletionBlocked: "", api.ConditionStalled: "",
	} {
		assert.ReportError(t, framework.HasCondition(kind, want)(vm))
	}
	assert.Contains(t, "message, want a note on rootDisk", s.Message, "rootDisk 40G")
	assert.True(t, slices.Equal(vm.Finalizers, []string{api.FinalizerServer}) && strings.HasPrefix(vm.Annotations[api.AnnotationBound], "docker/"),
		"finalizers %v, annotations %v", vm.Finalizers, vm.Annotations)
}

func checkContainer(t *testing.T, vm *api.VirtualMachine) {
	c := testenv.InspectContainer(t, vm.Status.Server.ID)
	host := c.HostConfig
	assert.True(t, host.Memory == 4000000000 && host.MemorySwap == 4000000000 && host.NanoCPUs == 2000000000 && host.RestartPolicy.Name == "unless-stopped",
		"Memory %d, MemorySwap %d, NanoCpus %d, restart %s", host.Memory, host.MemorySwap, host.NanoCPUs, host.RestartPolicy.Name)
	want := fmt.Sprintf("/test-vm.%s.%.8s", vm.Namespace, vm.UID)
	assert.True(t, c.Name == want, "name %s, want %s", c.Name, want)
	for label, want := range map[string]string{
		docker.LabelUID: string(vm.UID), docker.LabelNamespace: vm.Namespace, docker.LabelName: "test-vm", docker.LabelCluster: environment.ClusterID,
	} {
		assert.Equal(t, "label "+label, c.Config.Labels[label], want)
	}
	assert.True(t, c.Config.Labels[docker.LabelEpoch] != "" && c.Config.Labels[docker.LabelEpoch] != "0", "epoch label is %q", c.Config.Labels[docker.LabelEpoch])
	found, err := framework.DockerClient(t).ContainerList(t.Context(), client.ContainerListOptions{Filters: client.Filters{}.Add("name", "test-vm")})
	assert.True(t, err == nil && slices.ContainsFunc(found.Items, func(s container.Summary) bool { return s.ID == c.ID }),
		"docker ps --filter name=test-vm shows %d containers and not %s, error %v", len(found.Items), c.ID, err)
}

// checkColumns checks the table that the API server sends to kubectl.
func checkColumns(t *testing.T, vm *api.VirtualMachine) {
	raw, err := environment.VMClient.CloudnativeV1alpha1().RESTClient().Get().Namespace(vm.Namespace).Resource("virtualmachines").
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(t.Context())
	assert.NoError(t, err)
	var table metav1.Table
	assert.NoError(t, json.Unmarshal(raw, &table))
	var columns []string
	cells := map[string]any{}
	for n, c := range table.ColumnDefinitions {
		columns = append(columns, fmt.Sprintf("%s %d", strings.ToUpper(c.Name), c.Priority))
		cells[c.Name] = table.Rows[0].Cells[n]
	}
	want := []string{"NAME 0", "STATUS 0", "CPU 0", "MEMORY 0", "AGE 0", "READY 1", "DRIVER 1", "ADDRESS 1", "ID 1", "REASON 1"}
	assert.True(t, slices.Equal(columns, want), "columns are %v, want %v", columns, want)
	for column, want := range map[string]any{
		"Name": "test-vm", "Status": "Active", "Ready": "True", "Driver": "docker",
		"Address": vm.Status.Addresses[0], "ID": vm.Status.Server.ID, "Reason": "Running",
	} {
		assert.True(t, cells[column] == want, "column %s has %v, want %v", column, cells[column], want)
	}
}

func checkKubectlGet(t *testing.T, ns string) {
	for _, name := range []string{"vms", "vm", "virtualmachines", "all"} {
		lines := strings.Split(environment.MustRunKubectl(t, "", "get", name, "-n", ns), "\n")
		assert.Equal(t, "kubectl get "+name+" has the columns", strings.Join(strings.Fields(lines[0]), " "), "NAME STATUS CPU MEMORY AGE")
		assert.True(t, len(lines) >= 2 && strings.Contains(lines[1], "Active"), "kubectl get %s shows %q", name, lines)
	}
}

// loadTime is longer than the usage period.
const loadTime = 3 * time.Second

// checkUsageUnderLoad checks that the usage shows load in the guest. On a busy host the guest
// may get no CPU for a while, so the threshold is low.
func checkUsageUnderLoad(t *testing.T, vm *api.VirtualMachine) {
	isLow, isHigh := func(u api.Usage) bool { return u.CPU < 10 }, hasUsage("CPU above 12", func(u api.Usage) bool { return u.CPU > 12 })
	environment.WaitForVM(t, vm, hasUsage("CPU below 10", isLow))
	testenv.RequestFromGuest(t, vm, "/memory?bytes=400000000")
	environment.WaitForVM(t, vm, hasUsage("memory of at least 10", func(u api.Usage) bool { return u.Memory >= 10 && u.Memory < 100 }))
	var last time.Time
	assert.Eventually(t, "usage under load", func(t testing.TB) error {
		if time.Since(last) > loadTime {
			testenv.RequestFromGuest(t, vm, fmt.Sprintf("/load?seconds=%v", loadTime.Seconds()))
			last = time.Now()
		}
		return isHigh(environment.GetVM(t, vm))
	})
	environment.WaitForVM(t, vm, hasUsage("CPU below 10 again", isLow))
}

func hasUsage(description string, ok func(api.Usage) bool) framework.VMCheck {
	return func(vm *api.VirtualMachine) error {
		u := vm.Status.Server.Usage
		return assert.ErrorUnless(u != nil && ok(*u), "usage is %+v: want %s", u, description)
	}
}
