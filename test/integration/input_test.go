// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
)

func vmManifest(name, spec string) string {
	return fmt.Sprintf("{apiVersion: cloudnative.tw/v1alpha1, kind: VirtualMachine, metadata: {name: %s}, spec: %s}", name, spec)
}

// TestInvalidInput checks that errors shown to a user of kubectl have the field, the
// value and what is allowed. Tests beside the CRD, in config/crd, cover all rules.
func TestInvalidInput(t *testing.T) {
	t.Parallel()
	ns := environment.CreateNamespace(t)
	for name, tc := range map[string]struct {
		spec string
		want []string
	}{
		"cpu 0":          {`{resource: {cpu: 0, memory: 1G}}`, []string{"spec.resource", "cpu is 0", "from 10m to 4096"}},
		"unknown field":  {`{resource: {cpu: 1, memory: 1G}, cpus: 2}`, []string{`unknown field "spec.cpus"`}},
		"unknown action": {`{action: run, resource: {cpu: 1, memory: 1G}}`, []string{"spec.action", `"run"`, `"active", "stopped", "paused"`}},
	} {
		t.Run(name, func(t *testing.T) {
			_, message, err := environment.RunKubectl(t, vmManifest("vm", tc.spec), "apply", "-n", ns, "-f", "-")
			if err == nil {
				t.Fatal("it was accepted")
			}
			for _, want := range tc.want {
				if !strings.Contains(message, want) {
					t.Errorf("kubectl says %q, want %q in it", message, want)
				}
			}
		})
	}
	list, err := environment.VMClient.CloudnativeV1alpha1().VirtualMachines(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 0 {
		t.Errorf("%d VMs were made, error %v", len(list.Items), err)
	}
}

func TestUnknownFieldWarning(t *testing.T) {
	t.Parallel()
	text := vmManifest("vm", `{driver: fake, resource: {cpu: 1, memory: 1G}, cpus: 2}`)
	_, warning, err := environment.RunKubectl(t, text, "create", "-n", environment.CreateNamespace(t), "--validate=warn", "-f", "-")
	if err != nil || !strings.Contains(warning, "Warning:") || !strings.Contains(warning, `unknown field "spec.cpus"`) {
		t.Errorf("error %v, kubectl says %q", err, warning)
	}
}

func TestUnavailableDriver(t *testing.T) {
	t.Parallel()
	vm := environment.CreateVM(t, framework.NewVM("vm").Namespace(environment.CreateNamespace(t)).Driver("xen"))
	vm = environment.WaitForVM(t, vm, framework.HasPhase(api.PhaseFailed, api.ReasonUnknownDriver),
		framework.HasMessage("xen"), framework.HasMessage("docker, fake"),
		framework.HasCondition(api.ConditionStalled, metav1.ConditionTrue), framework.HasCondition(api.ConditionReady, metav1.ConditionFalse))
	environment.WaitForEvent(t, vm, api.ReasonUnknownDriver)
	environment.DeleteVM(t, vm)
	environment.WaitForDeletion(t, vm)
}

// TestSimilarNames uses the namespaces b-c and c for names that would be equal
// if both parts were joined by a dash.
func TestSimilarNames(t *testing.T) {
	t.Parallel()
	environment.CreateNamedNamespace(t, "c")
	environment.CreateNamedNamespace(t, "b-c")
	other := environment.CreateNamespace(t)
	for name, pair := range map[string][2][2]string{
		"one name in two namespaces": {{"c", "same"}, {other, "same"}},
		"a-b in c beside a in b-c":   {{"c", "a-b"}, {"b-c", "a"}},
	} {
		for _, driver := range []string{"docker", "fake"} {
			t.Run(name+" on "+driver, func(t *testing.T) {
				t.Parallel()
				one := environment.CreateVM(t, newSmallVM(pair[0][1]+"-"+driver, pair[0][0], driver))
				two := environment.CreateVM(t, newSmallVM(pair[1][1]+"-"+driver, pair[1][0], driver))
				one, two = environment.WaitForVM(t, one, framework.IsActive), environment.WaitForVM(t, two, framework.IsActive)
				if one.Status.Server.ID == two.Status.Server.ID {
					t.Fatalf("both have the server %s", one.Status.Server.ID)
				}
				environment.DeleteVM(t, one)
				environment.WaitForDeletion(t, one)
				environment.CheckServers(t, one, 0)
				environment.CheckServers(t, two, 1)
				if now := environment.GetVM(t, two); now.Status.Server.ID != two.Status.Server.ID || now.Status.RestartCount != 0 {
					t.Errorf("the other one was touched: %s", framework.FormatStatus(now))
				}
			})
		}
	}
}

// TestNameConflict checks that Drover does not touch a container that is not its own
// and has the name that the server would get.
func TestNameConflict(t *testing.T) {
	t.Parallel()
	for name, labels := range map[string]map[string]string{
		"without labels": nil,
		"with labels that look like ours": {
			"cloudnative.tw/uid": "5c4b3a29-0000-4000-8000-000000000000", "cloudnative.tw/cluster": "another",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// The name has a part of the UID in it, so the VM has to come first.
			vm := environment.CreateVM(t, framework.NewVM("taken").Namespace(environment.CreateNamespace(t)).Resource(api.ResourceMemory, "32M").Image("missing:never"))
			environment.UpdateVM(t, vm, func(vm *api.VirtualMachine) { vm.Spec.Image.PullPolicy = api.PullNever })
			environment.WaitForVM(t, vm, framework.HasPhase(api.PhaseFailed, api.ReasonImageUnavailable))
			foreign := testenv.RunForeignContainer(t, fmt.Sprintf("taken.%s.%.8s", vm.Namespace, vm.UID), labels)
			environment.UpdateVM(t, vm, func(vm *api.VirtualMachine) { vm.Spec.Image.Source = framework.GuestPlain })

			vm = environment.WaitForVM(t, vm, framework.HasPhase(api.PhaseFailed, api.ReasonNameConflict), framework.HasMessage("left alone"))
			if c := testenv.InspectContainer(t, foreign); !c.State.Running || c.RestartCount != 0 {
				t.Errorf("the foreign container is %+v", c.State)
			}
			testenv.RemoveContainer(t, foreign)
			environment.WaitForVM(t, vm, framework.IsActive)
		})
	}
}
